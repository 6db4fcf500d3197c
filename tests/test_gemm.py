"""Matrix products: every shape, layout, path, mode and thread count gives the bits of one fused chain per output.

The reference here is written from the definition alone (round to odd in float64, one output's chain over k) and is itself checked with
exact rational arithmetic. Must not contain timings.
"""

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest

import onemodel as om
from onemodel._kernels import gemm, table
from onemodel._pool import pool

FAST, EXACT = 0, 1
PATHS = table.available_isas()
FEW = 4
FUSED = {"avx2", "avx512", "neon"}  # paths whose fast mode has the bits of the definition, too


def fused(a, b, c):
    """a·b + c in float32 with one rounding: the float64 sum is moved to its odd neighbour where it is not exact."""
    p = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    s = np.asarray(p + c)
    t = s - p
    error = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    even = np.isfinite(s) & (error != 0) & (bits & 1 == 0)
    towards_zero = (error < 0) != (s < 0)
    return np.where(even, bits + np.where(towards_zero, -1, 1), bits).view(np.float64).astype(np.float32)


def chain(a, b, bias=None, step=fused):
    """The product by its definition: one float32 accumulator per output from +0, k increasing, then the bias."""
    with np.errstate(all="ignore"):
        c = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(a.shape[1]):
            c = step(a[:, k, None], b[k], c)
        return c if bias is None else c + bias


def two_roundings(a, b, c):
    return a * b + c


def bits(x):
    return np.ascontiguousarray(x).view(np.uint32)


def canonical(x):
    return np.where(np.isnan(x), np.uint32(0x7FC00000), bits(x))


def check(got, a, b, bias=None, path=None, mode=EXACT, expected=None):
    """Exact mode to the bit, NaN included; fast mode to the bit except which NaN, by the path's own step. Few rows or a single column may
    sum lanes along k in fast mode: within the error bound of any order."""
    if mode == EXACT or path in FUSED:
        want = chain(a, b, bias) if expected is None else expected
    else:
        want = chain(a, b, bias, two_roundings)
    given = bits(got) if mode == EXACT else canonical(got)
    wrong = np.argwhere(given != canonical(want))
    if len(wrong) and mode == FAST and (a.shape[0] <= FEW or b.shape[1] == 1):
        beside = np.zeros(b.shape[1]) if bias is None else bias
        exact = a.astype(np.float64) @ b.astype(np.float64) + beside
        bound = 2.0**-24 * (a.shape[1] + 2) * (np.abs(a).astype(np.float64) @ np.abs(b) + np.abs(beside))
        assert (np.abs(got - exact) <= bound).all(), f"{path} fast [{a.shape} x {b.shape}]: {np.abs(got - exact).max()} off"
    elif len(wrong):
        first = tuple(wrong[0])
        pytest.fail(f"{path} mode {mode} [{a.shape} x {b.shape}]: {len(wrong)} outputs differ, {first}: {got[first]!r}, expected {want[first]!r}")


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rounded(x):
    """A Fraction as the nearest float32, ties to even, by integer arithmetic; returned as a Fraction (None beyond the largest)."""
    if x == 0:
        return Fraction(0)
    exponent = max(abs(x.numerator).bit_length() - x.denominator.bit_length() - 24, -149)
    while abs(x) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    while exponent > -149 and abs(x) < Fraction(2) ** (exponent + 23):
        exponent -= 1
    value = round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent  # Python rounds ties to even
    return None if abs(value) >= Fraction(2) ** 128 else value


def test_the_reference_is_a_fused_multiply_add():
    """Random bits, and sums where the product lies just beside the middle of two floats, against rational arithmetic."""
    rng = np.random.default_rng(1)
    raw = [rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32) for _ in range(3)]
    hard = np.array([(1 + 2**-12, 1 + 2**-12, 2.0**-60), (1 + 2**-12, 1 + 2**-12, -(2.0**-60)), (2.0**-75, 2.0**-75, 2.0**-149), (1.5, 2.0**-149, 0),
                     (2.0**-100, 2.0**-49, 2.0**-126), (3e38, 1, 3e38), (1 + 2**-23, 2.0**-24, 1), (-1, 2.0**-25, 1)], np.float32)
    near = normal(2, 3, 4000)
    near[2] = near[0] * near[1] * np.float32(-1)
    a, b, c = (np.concatenate([raw[i], hard[:, i], near[i]]) for i in range(3))
    with np.errstate(all="ignore"):
        keep = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        a, b, c = a[keep], b[keep], c[keep]
        got = fused(a, b, c)
    for x, y, z, r in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        want = rounded(Fraction(x) * Fraction(y) + Fraction(z))
        assert (abs(r) == np.inf) if want is None else Fraction(r) == want, (x, y, z, r)


@pytest.fixture(autouse=True)
def poisoned():
    """Scratch from the pool is full of signalling NaN: no pad lane may reach an output."""
    old = pool.set_pool_poison(True)
    yield
    pool.set_pool_poison(old)


def both_modes(path):
    table.select_isa(path)
    return (FAST, EXACT)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("k", [0, 1, 2, 15, 17, 40])
def test_every_shape_around_the_tile_edges(path, k):
    modes = both_modes(path)
    for m, n in itertools.product([0, 1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 29], [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65, 129]):
        a, b = normal(m * 7 + k, m, k), normal(n * 5 + k, k, n)
        expected = chain(a, b)
        for mode in modes:
            check(gemm.matmul_arrays(a, b, None, mode), a, b, None, path, mode, expected)


def layouts(x):
    """The same matrix in every kind of storage: name -> view."""
    rows, columns = x.shape
    spread = np.full((2 * rows + 1, 3 * columns + 2), np.nan, np.float32)
    spread[1 : 2 * rows + 1 : 2, 2 : 3 * columns + 2 : 3] = x
    padded = np.full((rows, columns + 5), np.nan, np.float32)
    padded[:, 2 : columns + 2] = x
    return {
        "rows": x, "columns": np.ascontiguousarray(x.T).T, "padded rows": padded[:, 2 : columns + 2],
        "padded columns": np.pad(np.ascontiguousarray(x.T), ((0, 0), (3, 4)), constant_values=np.nan)[:, 3 : rows + 3].T,
        "apart": spread[1 : 2 * rows + 1 : 2, 2 : 3 * columns + 2 : 3], "backwards": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        "columns backwards": np.ascontiguousarray(x.T[::-1]).T[:, ::-1],
    }


SHAPES = [(1, 40, 33), (9, 50, 20), (37, 1, 50), (50, 3, 30), (70, 70, 19), (150, 41, 23), (90, 200, 7)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_and_thread_count(path, shape):
    m, n, k = shape
    a, b, bias = normal(1, m, k), normal(2, k, n), normal(3, n)
    modes = both_modes(path)
    table.set_smallest_piece(1)
    expected = {mode: chain(a, b, bias, fused if mode == EXACT or path in FUSED else two_roundings) for mode in modes}
    for mode, ((na, va), (nb, vb)) in itertools.product(modes, itertools.product(layouts(a).items(), layouts(b).items())):
        for threads in (1, 2, 3, 8) if na == "rows" else (2,):
            table.set_num_threads(threads)
            got = gemm.matmul_arrays(va, vb, bias, mode)
            if threads == 1 or na != "rows":
                check(got, a, b, bias, path, mode, expected[mode])
                first = got
            assert np.array_equal(bits(got), bits(first)), (na, nb, mode, threads)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("m", [1, 2, 3, 7, 60])
def test_nothing_is_written_beside_the_output(path, m):
    """Every width of the last panel, at the end of a buffer that is looked at on both sides."""
    for n, mode in itertools.product([*range(1, 70), 129, 137], both_modes(path)):
        a, b = normal(m, m, 11), normal(n, 11, n)
        whole = np.full(m * n + 256, 7, np.float32)
        gemm.matmul_arrays(a, b, None, mode, whole[128:-128].reshape(m, n))
        assert np.all(whole[:128] == 7) and np.all(whole[-128:] == 7), (m, n, mode)


@pytest.mark.parametrize("shape", [(8, 2000, 200), (300, 300, 300), (2000, 1, 200)], ids=str)
def test_threads_take_part(shape):
    """A worker of a busy machine may come too late for one product, not for every one of several seconds."""
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, k, n)
    table.set_num_threads(2)
    table.set_smallest_piece(1000)
    end = time.monotonic() + 20
    while gemm.matmul_arrays(a, b) is not None and table.last_threads() < 2:
        assert time.monotonic() < end, "no product ran on more than one thread"


@pytest.mark.parametrize("path", PATHS)
def test_expanded_operands(path):
    """Zero strides in either dimension of either operand."""
    row, column, one = normal(1, 1, 30), normal(2, 30, 1), normal(3, 1, 1)
    for mode in both_modes(path):
        for a, b in [(np.broadcast_to(row, (20, 30)), normal(4, 30, 35)), (np.broadcast_to(column, (30, 25)), normal(5, 25, 35)),
                 (normal(6, 25, 30), np.broadcast_to(column, (30, 40))),
                     (normal(7, 150, 1), np.broadcast_to(row, (1, 30))), (np.broadcast_to(one, (9, 17)), np.broadcast_to(one, (17, 33)))]:
            check(gemm.matmul_arrays(a, b, None, mode), a, b, None, path, mode)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(3, 70, 900), (16, 100, 800), (1, 300, 1000), (300, 1, 1000), (150, 33, 801), (200, 20, 400), (29, 75, 500)], ids=str)
def test_blocks_of_k_continue_the_same_chain(path, shape):
    m, n, k = shape
    a, b = normal(1, m, k), normal(2, n, k).T
    far = np.full((k, 1024), np.nan, np.float32)[:, 3 : n + 3]  # rows 4 KB apart
    far[:] = b
    for mode in both_modes(path):
        for x, y in [(a, b), (np.ascontiguousarray(a.T).T, np.ascontiguousarray(b)), (a, far)]:
            check(gemm.matmul_arrays(x, y, normal(3, n), mode), x, y, normal(3, n), path, mode)


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, -3e38, 1e-30, 1.0, -1.0], np.float32)


@pytest.mark.parametrize("path", PATHS)
def test_special_values_in_exact_mode(path):
    """Infinities, signed zeros, denormals, overflow; every NaN comes out as the canonical one whatever its payload was."""
    table.select_isa(path)
    rng, seen = np.random.default_rng(5), set()
    for m, n, k in [(1, 200, 5), (15, 40, 3), (200, 33, 4), (60, 1, 4)]:
        a, b = (np.where(rng.random(s) < 0.3, rng.choice(SPECIAL, s), normal(6, *s)).astype(np.float32) for s in [(m, k), (k, n)])
        a.view(np.uint32)[np.isnan(a)] = 0xFFC12345
        got = gemm.matmul_arrays(a, b, None, EXACT)
        check(got, a, b, None, path, EXACT)
        seen |= {*np.where(np.isnan(got), 0, np.where(np.isinf(got), 1, 2)).flat}
    assert seen == {0, 1, 2}
    a, b, bias = np.full((2, 3), np.nan, np.float32), np.ones((3, 4), np.float32), np.array([0, 1, np.nan, np.inf], np.float32)
    assert (bits(gemm.matmul_arrays(a, b, bias, EXACT)) == 0x7FC00000).all()
    expected = bits(np.array([[0, 1, 0, np.inf]] * 2, np.float32)) | np.array([0, 0, 0x7FC00000, 0], np.uint32)
    assert (bits(gemm.matmul_arrays(a[:, :0], b[:0], bias, EXACT)) == expected).all()
    zero = gemm.matmul_arrays(np.full((3, 2), -0.0, np.float32), np.ones((2, 20), np.float32), None, EXACT)
    assert (bits(zero) == 0).all(), "the chain starts at +0, so -0 products give +0"


@pytest.mark.parametrize("path", PATHS)
def test_c_is_never_read_and_nothing_beside_it_is_written(path):
    for mode in both_modes(path):
        for m, n, k in [(5, 19, 4), (40, 40, 0), (150, 35, 5), (1, 140, 3), (33, 1, 7)]:
            a, b = normal(1, m, k), normal(2, k, n)
            room = np.full((m + 2, n + 9), np.nan, np.float32)
            gemm.matmul_arrays(a, b, None, mode, room[1 : m + 1, 4 : n + 4])
            check(room[1 : m + 1, 4 : n + 4], a, b, None, path, mode)
            room[1 : m + 1, 4 : n + 4] = np.nan
            assert np.isnan(room).all()


def batched(a, b, mode):
    return gemm.batched_arrays(a, b, mode)


BATCHES = {
    "plain": ((3, 4), lambda: (normal(1, 3, 4, 5, 6), normal(2, 3, 4, 6, 7))),
    "one weight": ((4, 9), lambda: (normal(1, 4, 9, 11, 6), np.broadcast_to(normal(2, 6, 17), (4, 9, 6, 17)))),
    "one weight, turned": ((5,), lambda: (normal(1, 40, 5, 6).transpose(1, 0, 2), np.broadcast_to(normal(2, 17, 6).T, (5, 6, 17)))),
    "one weight, few rows apart": ((4, 3), lambda: (normal(1, 4, 2, 3, 6).transpose(0, 2, 1, 3), np.broadcast_to(normal(2, 6, 17), (4, 3, 6, 17)))),
    "one row each": ((7,), lambda: (normal(1, 7, 1, 8), np.broadcast_to(normal(2, 8, 20), (7, 8, 20)))),
    "one x": ((6,), lambda: (np.broadcast_to(normal(1, 5, 6), (6, 5, 6)), normal(2, 6, 6, 9))),
    "strides that do not merge": ((2, 5), lambda: (normal(1, 2, 3, 5, 4).transpose(0, 2, 1, 3), normal(2, 2, 5, 4, 6))),
    "columns": ((2, 3), lambda: (normal(1, 2, 3, 30, 9), normal(2, 2, 3, 9, 1))),
    "tall": ((2,), lambda: (normal(1, 2, 170, 5), normal(2, 2, 20, 5).transpose(0, 2, 1))),
    "tall, one weight": ((3,), lambda: (normal(1, 170, 3, 5).transpose(1, 0, 2), np.broadcast_to(normal(2, 20, 5).T, (3, 5, 20)))),
    "half broadcast": ((3, 4), lambda: (np.broadcast_to(normal(1, 3, 1, 5, 6), (3, 4, 5, 6)), np.broadcast_to(normal(2, 4, 6, 8), (3, 4, 6, 8)))),
    "no items": ((0, 3), lambda: (normal(1, 0, 3, 5, 6), normal(2, 0, 3, 6, 7))),
    "no steps": ((2,), lambda: (normal(1, 2, 5, 0), normal(2, 2, 0, 7))),
    "backwards": ((4,), lambda: (normal(1, 4, 5, 6)[::-1], normal(2, 4, 6, 7)[::-1, ::-1])),
    "singles": ((1, 1), lambda: (normal(1, 1, 1, 15, 6), normal(2, 1, 1, 6, 7))),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BATCHES)
def test_batches(path, name):
    shape, make = BATCHES[name]
    a, b = make()
    for mode, piece, threads in [(m, p, t) for m in both_modes(path) for p, t in [(32768, 1), (1, 2), (1, 8), (50, 3)]]:
        table.set_smallest_piece(piece)
        table.set_num_threads(threads)
        got = batched(a, b, mode)
        assert got.shape == (*shape, a.shape[-2], b.shape[-1])
        for item in np.ndindex(shape):
            check(got[item], a[item], b[item], None, path, mode)


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
def test_long_grid(path):
    modes = both_modes(path)
    sizes = [1, 2, 3, 6, 8, 13, 14, 15, 16, 17, 27, 31, 33, 48, 63, 65, 97, 139, 141, 200, 257, 385]
    for seed, (m, n) in enumerate(itertools.product(sizes, sizes)):
        k = sizes[seed * 7 % len(sizes)] * (3 if seed % 5 == 0 else 1)
        a, b = normal(seed, m, k), normal(seed + 1, k, n)
        expected = chain(a, b)
        for mode in modes:
            table.set_num_threads(1 + seed % 3)
            table.set_smallest_piece(1 if seed % 2 else 32768)
            check(gemm.matmul_arrays(a, b, None, mode), a, b, None, path, mode, expected)
            check(gemm.matmul_arrays(np.ascontiguousarray(a.T).T, np.ascontiguousarray(b.T).T, None, mode), a, b, None, path, mode, expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_a_bias_gradient_taken_with_the_weights_is_its_own_sum(path, mode):
    """A wide layer's gradient is summed as it is packed, by bands and blocks of steps: in exact mode the bits of the sum alone."""
    table.select_isa(path)
    x, g = normal(1, 700, 40), normal(2, 700, 300)
    g[:, 7], g[5, 9] = 0.0, np.inf
    seen = set()
    for threads in (1, 2, 3):
        table.set_num_threads(threads)
        table.set_smallest_piece(1000)
        w, b = om.zeros(300, 40, requires_grad=True), om.zeros(300, requires_grad=True)
        with om.arithmetic(mode):
            om.linear(om.tensor(x), w, b).backward(om.tensor(g))
            alone = om.tensor(g).sum(0).numpy()
        seen.add(b.grad.numpy().tobytes() + w.grad.numpy().tobytes())
        if mode == "exact":
            assert b.grad.numpy().tobytes() == alone.tobytes()
        else:
            np.testing.assert_allclose(b.grad.numpy(), alone, rtol=1e-5, atol=1e-4)
    assert len(seen) == 1
