"""Owns the process and thread settings: arithmetic, instruction set, threads, environment variables. Must not test results of operators."""

import os
import subprocess
import sys
import threading

import pytest

import onemodel as om


def python(code, **env):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    return done.stdout.strip(), done.stderr


def test_arithmetic():
    assert om.get_arithmetic() == "fast"
    om.set_arithmetic("exact")
    with om.arithmetic("fast"):
        assert om.get_arithmetic() == "fast"
        with om.arithmetic("exact"):
            assert om.get_arithmetic() == "exact"
        assert om.get_arithmetic() == "fast"
    assert om.get_arithmetic() == "exact"

    @om.arithmetic("fast")
    def inner():
        return om.get_arithmetic()

    assert (inner(), om.get_arithmetic()) == ("fast", "exact")
    with pytest.raises(KeyError), om.arithmetic("fast"):
        raise KeyError
    assert om.get_arithmetic() == "exact"


def test_arithmetic_of_a_with_block_belongs_to_its_thread():
    seen = []
    with om.arithmetic("exact"):
        thread = threading.Thread(target=lambda: seen.append(om.get_arithmetic()))
        thread.start()
        thread.join(60)
    assert seen == ["fast"]
    om.set_arithmetic("exact")
    thread = threading.Thread(target=lambda: seen.append(om.get_arithmetic()))
    thread.start()
    thread.join(60)
    assert seen == ["fast", "exact"]


@pytest.mark.parametrize("setting,start", [(om.arithmetic("exact"), "fast"), (om.use_isa("scalar"), om.get_isa())], ids=["arithmetic", "isa"])
def test_a_decorated_generator_has_the_setting_only_while_it_runs(setting, start):
    get = om.get_arithmetic if start == "fast" else om.get_isa

    @setting
    def steps():
        yield get()
        yield get()

    before = get()
    for inside in steps():
        assert inside != before or before == "scalar"
        assert get() == before


def test_use_isa():
    best = om.available_isas()[-1]
    assert om.get_isa() in om.available_isas() and om.available_isas()[0] == "scalar"
    with om.use_isa("scalar"):
        assert om.get_isa() == "scalar"
        with om.use_isa(best):
            assert om.get_isa() == best
        assert om.get_isa() == "scalar"
    for wrong in ("mmx", "", "AVX2", None):
        with pytest.raises((ValueError, TypeError)):
            om.use_isa(wrong)
    with pytest.raises(ValueError, match="available: scalar"):
        om.use_isa("mmx")


@pytest.mark.parametrize("wrong", ["precise", "", None, 1, "Exact"])
def test_wrong_arithmetic(wrong):
    for call in (om.set_arithmetic, om.arithmetic):
        with pytest.raises((ValueError, TypeError), match="'fast' or 'exact'"):
            call(wrong)


@pytest.mark.parametrize("wrong,error", [(0, ValueError), (-1, ValueError), (2**40, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError), (None, TypeError)])
def test_wrong_number_of_threads(wrong, error):
    before = om.get_num_threads()
    with pytest.raises(error, match="set_num_threads"):
        om.set_num_threads(wrong)
    assert om.get_num_threads() == before


def test_environment_chooses_the_instruction_set():
    code = "import onemodel as om; print(om.get_isa())"
    for isa in om.available_isas():
        assert python(code, ONEMODEL_ISA=isa)[0] == isa
    assert python(code, ONEMODEL_ISA="")[0] == python(code)[0]
    out, err = python(code, ONEMODEL_ISA="mmx")
    assert out == "" and "ONEMODEL_ISA='mmx' is not available here; available: scalar" in err


def test_show_config(capsys, monkeypatch):
    monkeypatch.setenv("ONEMODEL_ISA", om.get_isa())
    om.show_config()
    shown = capsys.readouterr().out
    for word in (om.__version__, *om.available_isas(), "fast", str(om.get_num_threads()), f"ONEMODEL_ISA={om.get_isa()}"):
        assert word in shown


def test_import_is_quiet_and_light():
    """No other library comes along, and nothing is printed."""
    heavy = ("torch", "scipy", "pytest", "hypothesis", "matplotlib", "tqdm", "psutil", "onemodel.training", "onemodel.demos.digits", "numpy.random")
    out, err = python(f"import sys, onemodel; print([m for m in {heavy!r} if m in sys.modules])")
    assert (out, err) == ("[]", "")


def test_public_names():
    """Every name of the contract is there, and the operators are too."""
    names = """tensor from_numpy empty zeros ones full arange empty_like zeros_like ones_like full_like Tensor float32 int32 int64 uint8 bool_
        no_grad enable_grad is_grad_enabled grad value_and_grad zero_grad clear_grad GraphReleasedError TensorVersionError ScopeClosedError ShapeError
        Op ops ActivationScope pool_stats PoolStats pool_reset_peak pool_trim set_pool_limit set_arithmetic arithmetic get_arithmetic set_num_threads
        get_num_threads available_isas get_isa use_isa show_config training""".split()
    assert [name for name in names if not hasattr(om, name)] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        om.no_such_name  # noqa: B018 - the access is the test
    assert issubclass(om.ShapeError, ValueError)
    assert all(issubclass(e, RuntimeError) for e in (om.GraphReleasedError, om.TensorVersionError, om.ScopeClosedError))


def test_isa_blocks_close_in_any_order():
    """The choice is the process's: what runs at the end is what ran before, whoever leaves first."""
    before = om.get_isa()
    first, second = om.use_isa("scalar"), om.use_isa(om.available_isas()[-1])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert om.get_isa() == om.available_isas()[-1]
    second.__exit__(None, None, None)
    assert om.get_isa() == before


def test_isa_blocks_of_threads_do_not_lose_each_other():
    before, errors = om.get_isa(), []
    interval = sys.getswitchinterval()

    def blocks(turn):
        try:
            for i in range(800):
                with om.use_isa(om.available_isas()[(i + turn) % len(om.available_isas())]):
                    pass
        except Exception as error:
            errors.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=blocks, args=(turn,)) for turn in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors and om.get_isa() == before


def test_no_grad_without_parentheses():
    @om.no_grad
    def doubled(x):
        return x * 2

    assert not doubled(om.ones(2, requires_grad=True)).requires_grad and om.is_grad_enabled()


def test_no_grad_refuses_what_it_cannot_cover():
    async def later():
        return om.is_grad_enabled()

    with pytest.raises(TypeError, match="async"):
        om.no_grad(later)
    with pytest.raises(TypeError, match="expected a function"):
        om.no_grad(5)
