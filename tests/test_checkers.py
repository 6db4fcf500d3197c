"""Owns the tests of the checks: each is shown an operator with one planted fault and must find it, and passes the sound one."""

import numpy as np
import pytest
import registry_cases as checks

import onemodel as om
from onemodel._pool.pool import give_block, take_block
from onemodel.ops import OPS
from onemodel.registry import FUNCTIONS, ErrorSample, Input, Op, Sample
from onemodel.training import GradientCheckError
from onemodel.training.gradcheck import check_sample

SAMPLE = Sample("matrix", (Input((3, 4)), Input((4,))))


class Sound(Op):
    """y = a·b with a broadcast b: what the planted faults below start from."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a

    @staticmethod
    def reference(a, b):
        return a * b


@pytest.fixture
def plant(monkeypatch):
    """Puts a class, with one part replaced, into the registry as "planted"."""

    def put(**changes):
        op = type("Planted", (Sound,), {k: staticmethod(v) if callable(v) else v for k, v in changes.items()})
        monkeypatch.setitem(OPS, "planted", op)
        monkeypatch.setitem(FUNCTIONS, "planted", op.apply)
        return op

    return put


def test_the_sound_operator_passes(plant):
    plant()
    checks.check_forward("planted", SAMPLE)
    checks.check_memory("planted", SAMPLE)
    checks.check_gradient("planted", SAMPLE)
    assert check_sample("planted", SAMPLE).error < 1e-4


def test_wrong_reference(plant):
    plant(reference=lambda a, b: a * b * (1 + 1e-6))
    with pytest.raises(AssertionError, match="eps of the largest value"):
        checks.check_forward("planted", SAMPLE)


def test_wrong_shape(plant):
    plant(reference=lambda a, b: (a * b)[None])
    with pytest.raises(AssertionError, match="shape"):
        checks.check_forward("planted", SAMPLE)


def test_nan_where_there_is_none(plant):
    plant(forward=lambda ctx, a, b: a * b + (a - a) / (a - a))
    with pytest.raises(AssertionError, match="NaN or inf"):
        checks.check_forward("planted", SAMPLE)


@pytest.mark.parametrize("setting", ["isa", "threads"])
def test_one_bit_that_depends_on_the_path(plant, setting):
    """One bit of one element differs on one instruction set in exact mode, or with the number of threads in fast mode."""

    def forward(ctx, a, b):
        y = Sound.forward(ctx, a, b)
        here = om.get_arithmetic() == "exact" and om.get_isa() == om.available_isas()[-1] if setting == "isa" else om.get_num_threads() > 1
        if here:
            y.numpy().view(np.uint32)[1, 2] ^= 1
        return y

    plant(forward=forward)
    with pytest.raises(AssertionError, match="other bits"):
        checks.check_forward("planted", SAMPLE)


def test_changed_input(plant):
    def forward(ctx, a, b):
        y = Sound.forward(ctx, a, b)
        a.mul_(1.0)
        return y

    plant(forward=forward)
    with pytest.raises(AssertionError, match="an input was changed"):
        checks.check_forward("planted", SAMPLE)


def test_leaked_block(plant):
    addresses = []

    def forward(ctx, a, b):
        addresses.append(take_block(1000))
        return Sound.forward(ctx, a, b)

    plant(forward=forward)
    with pytest.raises(AssertionError, match="1 blocks of .* bytes did not come back"):
        checks.check_memory("planted", SAMPLE)
    for address in addresses:
        give_block(address)


def test_cycle(plant):
    """A record that holds its own output frees nothing until the garbage collector runs."""

    def forward(ctx, a, b):
        ctx.mine = [Sound.forward(ctx, a, b)]
        ctx.mine.append(ctx.mine)
        return ctx.mine[0]

    plant(forward=forward)
    with pytest.raises(AssertionError, match="did not come back"):
        checks.check_memory("planted", SAMPLE)


def test_element_that_is_never_written(plant):
    def forward(ctx, a, b):
        y = Sound.forward(ctx, a, b)
        old, y = y, om.empty(*a.shape)
        y[:2].copy_(old[:2])
        return y

    plant(forward=forward)
    with pytest.raises(AssertionError, match="poisoned memory changed the bits"):
        checks.check_memory("planted", SAMPLE)


@pytest.mark.parametrize("check", ["reference", "measured"])
@pytest.mark.parametrize("which", [0, 1])
def test_gradient_off_by_a_thousandth(plant, check, which):
    def backward(ctx, g):
        found = list(Sound.backward(ctx, g))
        found[which] = found[which] * 1.001
        return tuple(found)

    plant(backward=backward)
    with pytest.raises((AssertionError, GradientCheckError), match=f"input {which}"):
        checks.check_gradient("planted", SAMPLE) if check == "reference" else check_sample("planted", SAMPLE)


def test_missing_gradient(plant):
    plant(backward=lambda ctx, g: (Sound.backward(ctx, g)[0], None))
    with pytest.raises(AssertionError, match="1 gradients, expected 2"):
        checks.check_gradient("planted", SAMPLE)


def test_gradient_bits_that_depend_on_threads(plant):
    def backward(ctx, g):
        a, b = Sound.backward(ctx, g)
        return (a * (1 + 2.0**-23) if om.get_num_threads() > 1 else a), b

    plant(backward=backward)
    with pytest.raises(AssertionError, match="other gradient bits"):
        checks.check_gradient("planted", SAMPLE)


ERROR = ErrorSample("shapes", (Input((2, 3)), Input((4,))), ValueError, "do not broadcast")


def test_right_error_passes(plant):
    plant()
    checks.check_error("planted", ERROR)


@pytest.mark.parametrize("change,words", [({"error": TypeError}, "expected TypeError, got"), ({"message": "nothing of the kind"}, "is not in"),
                                          ({"args": (Input((2, 3)), Input((3,)))}, "got a result")])
def test_wrong_error(plant, change, words):
    plant()
    with pytest.raises(AssertionError, match=words):
        checks.check_error("planted", ERROR._replace(**change))


def test_error_that_keeps_memory(plant):
    addresses = []

    def forward(ctx, a, b):
        addresses.append(take_block(1000))
        return Sound.forward(ctx, a, b)

    plant(forward=forward)
    with pytest.raises(AssertionError, match="left memory taken"):
        checks.check_error("planted", ERROR)
    for address in addresses:
        give_block(address)


def test_operator_that_reads_returned_memory(plant):
    op = plant()
    op.samples = [SAMPLE]
    checks.check_closed_scope("planted")
    FUNCTIONS["planted"] = lambda a, b: om.zeros(3, 4)
    with pytest.raises(pytest.fail.Exception):
        checks.check_closed_scope("planted")


def test_operator_that_shares_no_work(plant):
    op = plant(forward=lambda ctx, a, b: om.zeros(3, 4))
    op.samples = [SAMPLE]
    with pytest.raises(AssertionError, match="no sample ran on more than one thread"):
        checks.check_threads("planted", seconds=0.1)
    op = plant()
    op.samples = [Sample("square", (Input((64, 64)), Input((64, 64))))]
    checks.check_threads("planted")


def test_digest_sees_type_shape_and_value():
    x = om.arange(6, dtype=om.float32)
    others = [x.reshape(2, 3), x.cast(om.int32), om.tensor([0.0, 1, 2, 3, 4, 5.0000005])]
    assert len({t.sha256() for t in [x, *others]}) == 4
