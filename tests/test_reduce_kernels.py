"""Owns the tests of reduction kernels on bare arrays: exact sums against a plain chain of doubles, extrema, ties; operators are tested elsewhere."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onemodel._kernels import reduce as kernels
from onemodel._kernels import table

FAST, EXACT = 0, 1
ISAS = table.available_isas()
NAN_BITS = 0x7FC00000


def chain(x, axes=(0,), mean=False):
    """The definition: a double that starts at +0 and takes the elements one by one, rounded once; NaN as the one NaN."""
    kept = [i for i in range(x.ndim) if i not in axes]
    rows = np.ascontiguousarray(x.transpose([*kept, *axes])).astype(np.float64)
    rows = rows.reshape(int(np.prod([x.shape[i] for i in kept], dtype=int)), int(np.prod([x.shape[i] for i in axes], dtype=int)))
    acc = np.zeros(len(rows))
    with np.errstate(all="ignore"):
        if rows.shape[1]:
            acc = np.add.accumulate(np.concatenate([acc[:, None], rows], axis=1), axis=1)[:, -1]
        out = (acc / rows.shape[1] if mean else acc).astype(np.float32).reshape([x.shape[i] for i in kept])
    return np.where(np.isnan(out), np.uint32(NAN_BITS), out.view(np.uint32)).astype(np.uint32)


def reduced(mode, name, x, axes):
    out = np.full([n for i, n in enumerate(x.shape) if i not in axes], 7, np.float32)
    kernels._array_reduce(mode, name, x, axes, out)
    return out


def repeated(n, first, pattern):
    return np.concatenate([first, np.resize(pattern, n)])[:n]


def adversaries(n, seed=0):
    """Data that break a sum done in another order, or a window that is one element or one bit too generous."""
    rng = np.random.default_rng(seed)
    normal, small = rng.standard_normal(n), 2.4 * 2.0**-24
    sets = {
        "normal": normal,
        "uniform": rng.random(n, dtype=np.float32),
        "uniform_all_bits": rng.random(n),
        "exp": np.exp(3 * normal),
        "exponents": normal * 10.0 ** rng.integers(-38, 38, n),
        "near_exponents": normal * 2.0 ** rng.integers(-30, 3, n),
        "denormals": normal * 1e-42,
        "denormals_and_ones": np.where(rng.random(n) < 0.5, normal * 1e-42, normal),
        "largest": np.copysign(3.4e38, normal),
        "cancelling": np.where(np.arange(n) % 2, -1, 1) * 2.0 ** rng.integers(0, 40, n) * (1 + rng.integers(0, 2, n) * 2.0**-23),
        "zeros": np.where(rng.random(n) < 0.9, np.copysign(0.0, normal), normal),
        # A large first element sets the spacing of the doubles; the rest are halves of it (ties) and near-halves.
        "ties": np.concatenate([[2.0**30], rng.integers(-9, 9, n - 1) * 2.0**-23]),
        "near_ties": np.concatenate([[2.0**30], (rng.integers(-9, 9, n - 1) * 2.0**23 + rng.integers(-1, 2, n - 1)) * 2.0**-46]),
        "odd_ties": np.concatenate([[2.0**30 + 2**7], rng.integers(0, 2, n - 1) * 2.0**-23]),
        "crossing": np.concatenate([[2.0**24 - 1], np.abs(normal[1:])]),
        "crossing_back": np.concatenate([[2.0**24 + 1], -np.abs(normal[1:])]),
        "off_grid": np.concatenate([[2.0**10, 2.0**-60], normal[2:]]),
        # Out of the range where a window's reasoning holds and back, before the window's end or a piece's could show it; the zeros
        # let the first piece, which starts from nothing, go by.
        "over_a_binade": repeated(n, [2.0**30 - 64, *[0] * 200], [128, *[small] * 9, -128, *[small] * 3]),
        "under_a_binade": repeated(n, [2.0**30 + 128, *[0] * 200], [-256, *[small] * 9, 256, *[small] * 3]),
        "over_a_grid": repeated(n, [2.0**10 - 4, 2.0**-43, *[0] * 200], [2, 2, 2, -2, -2, -2]),
        "over_a_grid_slowly": repeated(n, [2.0**10 - 200, 2.0**-43, *[0] * 200], [1] * 300 + [-1] * 300 + [0] * 424),
        "one_infinity": np.where(np.arange(n) == n // 2, np.inf, normal),
        "two_infinities": np.where(np.arange(n) % 97 == 0, np.copysign(np.inf, normal), normal),
        "a_nan": np.where(np.arange(n) == n - 1, np.nan, normal),
    }
    with np.errstate(over="ignore"):
        return {name: x.astype(np.float32) for name, x in sets.items()}


def test_the_reference_is_a_plain_loop():
    for x in adversaries(700).values():
        acc = 0.0
        for v in x.tolist():
            acc += v
        with np.errstate(over="ignore"):
            last = np.float32(acc)
        assert chain(x) == (NAN_BITS if np.isnan(last) else last.view(np.uint32))


def test_another_order_is_noticed():
    """Each of these sums is right to half a unit of a double; the data must be able to tell them from the chain."""
    data = adversaries(5000)
    for other in (lambda x: x[::-1], lambda x: np.sort(x), lambda x: x.reshape(-1, 8).T.ravel(), lambda x: np.concatenate([x[1000:], x[:1000]])):
        # Rounding to float32 hides most differences, so look at what is left after the sum itself is taken away.
        differ = [name for name, x in data.items() if residue(x) != residue(np.ascontiguousarray(other(x)))]
        assert len(differ) >= 5, differ


def residue(x):
    """The chain, then minus its own float32 value: the low bits of the double."""
    with np.errstate(all="ignore"):
        total = np.add.accumulate(np.concatenate([[0.0], x.astype(np.float64)]))[-1]
        return (total - np.float64(np.float32(total))).tobytes() if np.isfinite(total) else b""


def with_low_bits(x):
    """x, followed by elements that take away the leading bits of its chain, so that the float32 result shows the double's low bits."""
    with np.errstate(all="ignore"):
        total = np.add.accumulate(np.concatenate([[0.0], x.astype(np.float64)]))[-1]
        high = np.float32(total)
        if not np.isfinite(high):
            return x
        return np.concatenate([x, [-high]]).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_exact_sum_has_the_bits_of_the_chain(isa):
    table.select_isa(isa)
    for n in [2, 3, 7, 127, 128, 129, 255, 256, 1023, 1024, 1025, 1500, 4096, 9999]:
        for name, x in adversaries(n, n).items():
            for data in (x, with_low_bits(x)):
                for op in ("sum", "mean"):
                    got = reduced(EXACT, op, data, (0,)).view(np.uint32)
                    assert got == chain(data, mean=op == "mean"), (name, n, op)


@pytest.mark.parametrize("isa", ISAS)
def test_long_exact_sums(isa):
    table.select_isa(isa)
    for name, x in adversaries(150_000, 5).items():
        data = with_low_bits(x)
        assert reduced(EXACT, "sum", data, (0,)).view(np.uint32) == chain(data), name


@given(st.lists(st.tuples(st.integers(0, 2**24), st.integers(-60, 40), st.integers(1, 200)), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_exact_sum_on_drawn_mixtures(parts, seed):
    """Runs of like elements at drawn scales: windows that hold, windows that just do not, and what is between."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.copysign((m - rng.integers(0, 4, n)) * 2.0 ** (e - 24), rng.standard_normal(n)) for m, e, n in parts]).astype(np.float32)
    data = with_low_bits(x)
    for isa in ISAS:
        table.select_isa(isa)
        assert reduced(EXACT, "sum", data, (0,)).view(np.uint32) == chain(data), isa


def layouts(x):
    """The same numbers behind other strides: permuted, flipped, stepped, stretched."""
    for order in itertools.permutations(range(x.ndim)):
        yield x.transpose(order)
    yield x[::-1, :, ::-1]
    yield x[:, ::2, 1::3]
    yield np.broadcast_to(x[:, :1], x.shape)
    yield np.broadcast_to(x[0, 0, 0], (3, 5, 4))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_set_of_axes_and_layout(isa, threads):
    table.select_isa(isa)
    table.set_num_threads(threads)
    table.set_smallest_piece(1)
    x = adversaries(7 * 40 * 33)["near_exponents"].reshape(7, 40, 33)
    for view in layouts(x):
        for axes in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in range(4)):
            assert (reduced(EXACT, "sum", view, axes).view(np.uint32) == chain(view, axes)).all(), (view.strides, axes)
            assert np.array_equal(reduced(EXACT, "amax", view, axes), view.max(axis=axes))
            assert np.array_equal(reduced(FAST, "amin", view, axes), view.min(axis=axes))
            wide = view.astype(np.float64)
            assert np.allclose(reduced(FAST, "mean", view, axes), wide.mean(axis=axes), rtol=1e-6, atol=1e-6 * np.abs(wide).mean()), axes


@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_threads_and_pieces_do_not_change_bits(mode):
    x = adversaries(300_000)["normal"]
    table_2d = x.reshape(300, 1000)
    views = [(x, (0,)), (table_2d, (0,)), (table_2d, (1,)), (table_2d.T, (0, 1)), (x.reshape(30, 100, 100), (0, 2))]
    for isa in ISAS:
        table.select_isa(isa)
        for view, axes in views:
            seen = set()
            for threads, piece in itertools.product((1, 2, 3), (1, 1000, 10**9)):
                table.set_num_threads(threads)
                table.set_smallest_piece(piece)
                seen.add(reduced(mode, "sum", view, axes).tobytes())
            assert len(seen) == 1


def test_more_than_one_thread_runs():
    table.set_num_threads(2)
    table.set_smallest_piece(1)
    x = np.ones((64, 50_000), np.float32)
    assert any(reduced(EXACT, "sum", x, (1,)) is not None and table.last_threads() == 2 for _ in range(50))


@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_sums_that_freeze_a_float32(mode):
    """U01 and U02 of the edge cases."""
    ones = np.broadcast_to(np.float32(1), (2**24 + 4096, 2))
    assert (reduced(mode, "sum", ones, (0,)) == 16781312).all()
    assert reduced(mode, "sum", np.full((1000, 1000), 0.3, np.float32), (0, 1)) == np.float32(300000.0)


@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_nothing_to_add(mode):
    x = np.zeros((3, 0, 2), np.float32)
    assert (reduced(mode, "sum", x, (1,)).view(np.uint32) == 0).all()
    assert (reduced(mode, "mean", x, (1,)).view(np.uint32) == NAN_BITS).all()
    assert reduced(mode, "sum", x, (0,)).shape == (0, 2)
    assert reduced(mode, "sum", np.full(300, -0.0, np.float32), (0,)).view(np.uint32) == 0


@pytest.mark.parametrize("isa", ISAS)
def test_extrema_of_special_values(isa):
    table.select_isa(isa)
    nan = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    for n in range(1, 70):
        for at in {0, n // 2, n - 1}:
            for axes, shape in (((1,), (2, n)), ((0,), (n, 2))):
                for value in (*nan, np.float32(np.inf), np.float32(-np.inf)):
                    x = np.ones(shape, np.float32)
                    x[(slice(None), at) if axes == (1,) else at] = value
                    for op, plain in (("amax", np.max), ("amin", np.min)):
                        got = reduced(EXACT, op, x, axes)
                        if np.isnan(value):
                            assert (got.view(np.uint32) == NAN_BITS).all()
                        else:
                            assert np.array_equal(got, plain(x, axis=axes))
        zeros = np.copysign(np.zeros(n, np.float32), -1)
        assert np.signbit(reduced(EXACT, "amax", zeros, (0,)))
        zeros[n // 2] = 0.0
        assert not np.signbit(reduced(EXACT, "amax", zeros, (0,)))
        assert np.signbit(reduced(EXACT, "amin", zeros, (0,))) == (n > 1)


@pytest.mark.parametrize("isa", ISAS)
def test_argmax(isa):
    table.select_isa(isa)
    table.set_smallest_piece(1)
    rng = np.random.default_rng(0)
    for shape in ((9, 17, 6), (3, 600, 70), (1, 1, 1), (4, 33, 1)):
        x = rng.integers(0, 5, shape).astype(np.float32)  # ties everywhere: the first one counts
        x[rng.random(shape) < 0.02] = np.nan
        x[x == 0] = np.copysign(0, rng.standard_normal((x == 0).sum()))
        for view in (x, x[::-1], x.transpose(2, 0, 1), x[:, ::2]):
            for axis in (-1, 0, 1, 2):
                # -1 means all elements here
                expected = np.asarray(np.argmax(view) if axis < 0 else np.argmax(view, axis=axis))
                out = np.full(expected.shape, -1, np.int64)
                kernels._array_argmax(view, axis, out)
                assert np.array_equal(out, expected)


def ties_reference(x, axes, y, g):
    y, g = (np.expand_dims(v, axes) for v in (y, g))
    tied = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(tied, (g / tied.sum(axis=axes, keepdims=True)).astype(np.float32), np.float32(0))


@pytest.mark.parametrize("isa", ISAS)
def test_gradient_of_an_extremum_is_shared_among_ties(isa):
    table.select_isa(isa)
    table.set_smallest_piece(1)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (5, 12, 9)).astype(np.float32)
    x[2, 3, 4] = np.nan
    for view in layouts(x):
        for axes in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in range(1, 4)):
            y = np.asarray(reduced(EXACT, "amax", view, axes))
            g = np.asarray(rng.standard_normal(y.shape)).astype(np.float32)
            dx = np.full(view.shape, 9, np.float32)
            kernels._array_extremum_bwd(EXACT, view, axes, y, g, dx)
            assert np.array_equal(dx, ties_reference(view, axes, y, g))


def test_sum_to_undoes_a_broadcast():
    """M09 and M10 of the edge cases."""
    rng = np.random.default_rng(0)
    shapes = [((6, 2), (1,)), ((3, 5), (3, 1)), ((3, 5), (1, 5)), ((2, 3), (3,)), ((7,), ())]
    shapes += [((2, 3, 1, 5), (3, 1, 5)), ((2, 3, 1, 5), (1, 5)), ((4, 1), (4, 1))]
    for shape, to in shapes:
        x = rng.standard_normal(shape).astype(np.float32)
        out = np.full(to, 9, np.float32)
        kernels._array_sum_to(EXACT, x, out)
        axes = tuple(i for i in range(len(shape)) if i < len(shape) - len(to) or (to[i - len(shape) + len(to)] == 1 and shape[i] != 1))
        assert np.array_equal(out.view(np.uint32).ravel(), chain(x, axes).ravel())


@pytest.mark.parametrize("isa", ISAS)
def test_add_into_is_one_addition(isa):
    table.select_isa(isa)
    a, b = adversaries(1001, 1)["exponents"], adversaries(1001, 2)["denormals_and_ones"]
    acc = a.copy()
    kernels._array_add_into(EXACT, acc, b)
    assert np.array_equal(acc, a + b)


@pytest.mark.parametrize("kind", ["even", "positive", "zeros", "wide", "ties", "infinite", "infinite_at_pace", "tiny"])
def test_a_long_sum_on_threads_is_the_chain(kind):
    """Windows that threads looked at beforehand join with the chain's bits, on and off the grid, and at any remainder."""
    import onemodel as om

    random = np.random.default_rng(5)
    for n in (70_000, 1024 * 1024 + 1000, 2_300_001):
        x = random.uniform(-1, 1, n)
        if kind == "positive":
            x = np.abs(x) * 1e3
        elif kind == "zeros":
            x[random.random(n) < 0.5] = 0.0
        elif kind == "wide":
            x *= 2.0 ** random.integers(-60, 60, n)
        elif kind == "ties":
            x = np.where(random.random(n) < 0.5, 2.0**24 + 2, 2.0**-29)
        elif kind == "infinite":
            x[n // 2] = np.inf
        elif kind == "infinite_at_pace":  # behind a stretch of one binade that grows evenly
            x = np.abs(x) + 0.1
            x[n // 2] = np.inf
        elif kind == "tiny":
            x *= 1e-39
        x = x.astype(np.float32)
        chain = np.add.accumulate(x.astype(np.float64))[-1].astype(np.float32)
        for isa in om.available_isas():
            for threads in (1, 2, 3):
                with om.use_isa(isa), om.arithmetic("exact"):
                    table.set_num_threads(threads)
                    got = om.from_numpy(x).sum().numpy()
                assert got.tobytes() == chain.tobytes(), f"{kind} {n} {isa} {threads} threads: {got!r}, the chain gives {chain!r}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", (FAST, EXACT))
def test_sums_of_large_values_stay_in_range(isa, mode):
    """Eight of them leave the range of a float32; what they sum to does not."""
    table.select_isa(isa)
    for shape in ((64, 300), (300, 64), (8, 3), (3000,), (20, 7, 31)):
        x = np.full(shape, 3e38, np.float32)
        x[tuple(slice(n // 2, n // 2 * 2) if i == 0 else slice(None) for i, n in enumerate(shape))] *= -1  # the second half cancels the first
        for axis in range(len(shape)):
            if axis == 0:
                assert np.all(reduced(mode, "sum", x, (0,)) == 3e38 * (shape[0] % 2)), shape
            means = reduced(mode, "mean", np.abs(x), (axis,))
            assert np.allclose(means, 3e38, rtol=1e-6), (shape, axis)


@pytest.mark.parametrize("isa", ISAS)
def test_the_threads_looks_change_no_bit_of_a_growing_sum(isa):
    """Sums that pass through many binades, up and down, in more windows than are looked at together."""
    table.select_isa(isa)
    table.set_smallest_piece(1)
    rng = np.random.default_rng(3)
    n = 400_001
    squares = rng.uniform(-2, 2, n) ** 2
    sets = {"squares": squares, "up_and_down": np.concatenate([squares[: n // 2], -squares[n // 2 :]]), "signed": rng.uniform(-1, 1, n),
            "growing": squares * np.linspace(1e-9, 1e6, n) ** 2, "ties": rng.integers(0, 1 << 24, n) * 2.0 ** rng.integers(-40, -20, n)}
    for name, x in sets.items():
        data = with_low_bits(x.astype(np.float32))
        for threads in (1, 2, 3, 8):
            table.set_num_threads(threads)
            assert reduced(EXACT, "sum", data, (0,)).view(np.uint32) == chain(data), (name, threads)
