"""Owns the tests of generators: streams, states, threads, forms and errors, and the digests that every machine must give."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import onemodel as om
from onemodel._kernels import table

DRAWS = {
    "rand": lambda g: om.rand(1001, generator=g),
    "randn": lambda g: om.randn(7, 143, generator=g),
    "randint": lambda g: om.randint(-5, 12, (999,), generator=g),
    "randint_wide": lambda g: om.randint(-(2**63), 2**63 - 1, 999, generator=g),
    "randperm": lambda g: om.randperm(997, generator=g),
}
DIGESTS = {
    "rand": "27bdcfa7d18c39686b88708cf034de4d2d1b048aa66ef25b4e2270506040b2e0",
    "randn": "5467c9f65f499bd4b91b7ac3b46732d493f3224dadb7cb59db15a24eb2a6791e",
    "randint": "7447705e123c3e20a3eddf934ed57810894de01d02dfee1d240e9af42f1cbeee",
    "randint_wide": "73f2e72ab0827573b62de2960a1916727aa438787fc30c17f0d480382f03b72e",
    "randperm": "4a67e56a733444f6bd4e59ef47fe1820afb66fb235326e3a155a7090a3eb2da3",
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_bits_are_the_same_everywhere(name):
    table.set_smallest_piece(1)
    for isa in om.available_isas():
        for mode in ("exact", "fast"):
            for threads in (1, 2, 3):
                om.set_num_threads(threads)
                with om.use_isa(isa), om.arithmetic(mode):
                    assert DRAWS[name](om.Generator(7)).sha256() == DIGESTS[name], (isa, mode, threads)


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_is_a_stream(name):
    draw = DRAWS[name]
    a, b = om.Generator(7), om.Generator(7)
    first, second = draw(a), draw(a)
    assert first.sha256() != second.sha256()
    assert [draw(b).sha256(), draw(b).sha256()] == [first.sha256(), second.sha256()]
    assert draw(om.Generator(8)).sha256() != first.sha256()
    state = b.get_state()
    third = draw(b)
    other = om.Generator(99)
    assert other.set_state(state) is other and draw(other).sha256() == third.sha256() and other.initial_seed() == 7
    assert draw(b.manual_seed(7)).sha256() == first.sha256()


WORDS = {"rand": 1001, "randn": 1002, "randint": 2 * 999, "randint_wide": 2 * 999, "randperm": 2 * 997}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_takes_words_that_no_other_gets(name, start):
    """A pair of normal numbers shares a pair of words, so randn begins and ends between pairs."""
    a, b = om.Generator(3), om.Generator(3)
    om.rand(start, generator=a)
    DRAWS[name](a)
    om.rand(start + WORDS[name] + (start if name == "randn" else 0), generator=b)
    assert a.get_state().tolist() == b.get_state().tolist()


def test_places_do_not_depend_on_how_a_stream_is_cut():
    whole = om.rand(1000, generator=om.Generator(1)).numpy()
    g = om.Generator(1)
    parts = [om.rand(n, generator=g).numpy() for n in (1, 2, 3, 5, 0, 489, 500)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    g = om.Generator(1)
    integers = [om.randint(10**9, n, generator=g).numpy() for n in (1, 2, 7, 490)]
    assert np.concatenate(integers).tobytes() == om.randint(10**9, 500, generator=om.Generator(1)).numpy().tobytes()


def test_seeds_of_all_kinds():
    assert om.rand(3, generator=om.Generator(-1)).sha256() == om.rand(3, generator=om.Generator(2**64 - 1)).sha256()
    assert om.Generator(2**64 - 1).initial_seed() == 2**64 - 1
    assert om.Generator(np.int64(5)).initial_seed() == 5
    g = om.Generator()
    assert g.initial_seed() == 0 and g.seed() == g.initial_seed() != 0
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="manual_seed"):
            om.Generator(seed)
    for seed in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="manual_seed: seed must be an integer"):
            om.manual_seed(seed)


def test_the_default_generator():
    assert om.manual_seed(7) is om.default_generator
    assert om.rand(3).sha256() == om.rand(3, generator=om.Generator(7)).sha256()
    code = "import onemodel as om; print(om.rand(3).sha256())"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert fresh == om.rand(3, generator=om.Generator(0)).sha256()


def test_states_travel(tmp_path):
    g = om.Generator(-3)
    om.rand(10, generator=g)
    om.save({"generator": g.get_state()}, tmp_path / "f")
    copies = [om.Generator().set_state(om.load(tmp_path / "f")["generator"]), copy.deepcopy(g), pickle.loads(pickle.dumps(g))]
    expected = om.rand(5, generator=g).sha256()
    assert {om.rand(5, generator=c).sha256() for c in copies} == {expected}
    for wrong in (om.zeros(16), om.zeros(15, dtype=om.uint8), b"0" * 16, None):
        with pytest.raises(ValueError, match="set_state"):
            g.set_state(wrong)


def test_threads_share_a_generator_without_a_number_twice():
    g, found = om.Generator(5), []

    def draw():
        found.extend(om.randint(2**62, 10, generator=g).tolist()[0] for _ in range(200))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(found)) == len(found) == 800
    h = om.Generator(5)
    om.rand(2 * 8000, generator=h)
    assert g.get_state().tolist() == h.get_state().tolist()


def test_a_forked_child_is_not_locked_by_a_thread_it_does_not_have():
    with om.default_generator._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            om.rand(3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- what the numbers are --


def test_rand_is_even_over_0_to_1():
    x = om.rand(100_000, generator=om.Generator(1)).numpy()
    assert x.dtype == np.float32 and 0 <= x.min() < 1e-4 and 1 - 1e-4 < x.max() < 1
    assert (x * 2.0**24 == np.floor(x * 2.0**24)).all()
    counts = np.histogram(x, 100, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 150  # chi square with 99 degrees of freedom: 150 is beyond 99.9 %


def test_randn_is_normal():
    from statistics import NormalDist

    x = om.randn(100_000, generator=om.Generator(1)).numpy()
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01 and np.abs(x).max() < 6
    edges = np.array([NormalDist().inv_cdf(i / 100) for i in range(1, 100)])
    counts = np.bincount(np.searchsorted(edges, x), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 150
    assert abs(np.corrcoef(x[0::2], x[1::2])[0, 1]) < 0.01


def test_randint_is_even_and_inside():
    x = om.randint(-3, 7, (100_000,), generator=om.Generator(1))
    assert x.dtype == np.int64
    counts = np.bincount(x.numpy() + 3)
    assert len(counts) == 10 and ((counts - 10_000) ** 2 / 10_000).sum() < 30
    assert set(om.randint(4, 5, 10).tolist()) == {4}
    wide = om.randint(-(2**63), 2**63 - 1, 1000, generator=om.Generator(1)).numpy()
    assert wide.min() < -(2**62) and wide.max() > 2**62


def test_randperm_is_a_permutation_and_each_place_is_reached():
    assert sorted(om.randperm(1000).tolist()) == list(range(1000))
    g = om.Generator(1)
    counts = np.zeros((5, 5))
    for _ in range(2000):
        counts[np.arange(5), om.randperm(5, generator=g).numpy()] += 1
    assert ((counts - 400) ** 2 / 400).sum() < 40  # 16 degrees of freedom
    assert om.randperm(0).shape == (0,) and om.randperm(1).tolist() == [0]
    assert sorted(om.randperm(np.int64(5)).tolist()) == [0, 1, 2, 3, 4]


# -- forms and errors --


def test_forms():
    assert om.rand(2, 3).shape == om.rand((2, 3)).shape == om.randn([2, 3]).shape == (2, 3)
    assert om.rand().shape == () and om.rand(0, 3).shape == (0, 3)
    assert om.rand(2, requires_grad=True).requires_grad and om.randn(2, requires_grad=True).is_leaf
    assert om.randint(5, (2, 3)).shape == om.randint(0, 5, (2, 3)).shape == om.randint(low=0, high=5, size=(2, 3)).shape == (2, 3)
    assert om.randint(300, 2, dtype=om.int32).dtype == np.int32 and om.randint(256, 2, dtype=om.uint8).dtype == np.uint8
    assert om.randint(3, ()).item() in (0, 1, 2)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: om.rand(2, dtype=om.int64), TypeError, "rand: .*float32"),
    (lambda: om.rand(2.0), TypeError, "rand: a size must be an integer"),
    (lambda: om.rand(-1), ValueError, "negative"),
    (lambda: om.rand(2, generator=3), TypeError, "om.Generator"),
    (lambda: om.randint(5), TypeError, "size is missing"),
    (lambda: om.randint(5, 5, 2), ValueError, "low < high"),
    (lambda: om.randint(0, 2**63, 2), ValueError, "int64"),
    (lambda: om.randint(0, 257, 2, dtype=om.uint8), ValueError, "uint8"),
    (lambda: om.randint(0.0, 5, 2), TypeError, "low must be an integer"),
    (lambda: om.randint(5, 2, dtype=om.float32), TypeError, "integer type"),
    (lambda: om.randperm(-1), ValueError, "randperm"),
    (lambda: om.randperm(2.0), TypeError, "randperm"),
    (lambda: om.rand(2**62), MemoryError, None),
])
def test_wrong_calls(call, error, message):
    before = om.default_generator.get_state().tolist()
    with pytest.raises(error, match=message):
        call()
    assert om.default_generator.get_state().tolist() == before


def test_a_digest_would_notice_one_bit():
    x = om.rand(10, generator=om.Generator(7)).numpy().copy()
    x.view(np.uint32)[3] ^= 1
    assert om.tensor(x).sha256() != om.rand(10, generator=om.Generator(7)).sha256()
