"""Owns the tests of pooling beyond the registry's: the edge rows, every bit against a plain loop nest, threads and bands, what must not crash."""

import time

import numpy as np
import pytest

import onemodel as om
from onemodel import nn, samples
from onemodel._kernels import table
from onemodel.errors import ShapeError, TensorVersionError

F = np.float32
NAN, INF = F(np.nan), F(np.inf)


def bits(a):
    return np.ascontiguousarray(a).view(np.uint32)


def axis(size, k, s, pad, d, ceil):
    """The real elements of each window along one axis, and how many it counts with padding."""
    n = (size + 2 * pad - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
    if ceil and (n - 1) * s >= size + pad:
        n -= 1
    starts = [o * s - pad for o in range(n)]
    return [([i for i in range(a, a + (k - 1) * d + 1, d) if 0 <= i < size], min(a + k, size + pad) - a) for a in starts]


def adaptive_axis(size, n):
    return [(list(range(o * size // n, -(-(o + 1) * size // n))), 0) for o in range(n)]


def canonical(a):
    a[np.isnan(a)] = NAN
    return a


def nest_max(x, rows, cols, g):
    """Winner, index and gradient of one plane, as the definition reads."""
    y, at, dx = np.full((len(rows), len(cols)), -INF), np.full((len(rows), len(cols)), -1, np.int32), np.zeros_like(x)
    for o, (rs, _) in enumerate(rows):
        for j, (cs, _) in enumerate(cols):
            for r in rs:
                for c in cs:
                    v = x[r, c]
                    if at[o, j] < 0 or v > y[o, j] or (np.isnan(v) and not np.isnan(y[o, j])):
                        y[o, j], at[o, j] = v, r * x.shape[1] + c
            if at[o, j] >= 0:
                dx.ravel()[at[o, j]] += g[o, j]
    return canonical(y), at, canonical(dx)


def nest_avg(x, rows, cols, g, include, divisor):
    y, dx = np.zeros((len(rows), len(cols)), F), np.zeros_like(x)
    for o, (rs, high) in enumerate(rows):
        for j, (cs, wide) in enumerate(cols):
            total = 0.0
            for r in rs:
                for c in cs:
                    total += float(x[r, c])
            count = divisor or (high * wide if include else len(rs) * len(cs))
            y[o, j] = total / count
            q = g[o, j] / F(count)
            for r in rs:
                for c in cs:
                    dx[r, c] += q
    return canonical(y), canonical(dx)


def plane_values(rng, shape, special):
    x = rng.integers(-4, 5, shape).astype(F) if rng.random() < 0.5 else rng.normal(size=shape).astype(F)  # half of them full of ties
    if special:
        pick = rng.random(shape)
        x = np.where(pick < 0.1, -INF, np.where(pick < 0.15, NAN, np.where(pick < 0.3, F(-0.0), x))).astype(F)
        x = np.where((pick > 0.9) & (pick < 0.93), INF, x).astype(F)
    return x


def geometries(count, seed, dilated):
    rng = np.random.default_rng(seed)
    fixed = [((6, 40), (2, 2), (2, 2), (0, 0), (1, 1), False), ((7, 37), (2, 2), (2, 2), (0, 0), (1, 1), False), ((7, 37), (2, 2), (2, 2), (0, 0), (1, 1), True),
             ((9, 41), (3, 3), (2, 2), (1, 1), (1, 1), False), ((6, 33), (3, 3), (1, 1), (1, 1), (1, 1), False), ((1, 1), (2, 2), (1, 1), (1, 1), (1, 1), False),
             ((3, 2), (7, 9), (1, 1), (3, 4), (1, 1), True),
             ((1, 20), (2, 4), (1, 3), (1, 1), (1, 1), False), ((3, 34), (4, 5), (1, 2), (2, 2), (1, 1), False)]  # more windows than rows
    yield from ((rng, *one) for one in fixed)
    while count:
        size, kernel = rng.integers(1, (8, 30)), rng.integers(1, 6, 2)
        stride, dilation = rng.integers(1, 5, 2), rng.integers(1, 4, 2) if dilated else np.ones(2, int)
        reach = (kernel - 1) * dilation + 1
        padding, ceil = rng.integers(0, reach // 2 + 1), bool(rng.integers(2))
        if all(len(axis(*map(int, a), ceil)) > 0 for a in zip(size, kernel, stride, padding, dilation, strict=True)):
            count -= 1
            yield (rng, *(tuple(map(int, v)) for v in (size, kernel, stride, padding, dilation)), ceil)


def everywhere():
    for isa in table.available_isas():
        for mode in ("exact", "fast"):
            table.select_isa(isa)
            om.set_arithmetic(mode)
            yield f"{isa} {mode}"


def same(got, want, what):
    got = np.array(got)
    if got.dtype == F and om.get_arithmetic() == "fast":  # a NaN is a NaN there
        got = canonical(got)
    assert np.array_equal(bits(got), bits(want)), what


@pytest.mark.parametrize("special", [False, True])
def test_max_pool_is_the_loop_nest_bit_for_bit(special):
    for rng, size, kernel, stride, padding, dilation, ceil in geometries(60, 1 + special, True):
        x = plane_values(rng, size, special)
        rows, cols = (axis(*a, ceil) for a in zip(size, kernel, stride, padding, dilation, strict=True))
        g = rng.normal(size=(len(rows), len(cols))).astype(F)
        with np.errstate(all="ignore"):
            y, at, dx = nest_max(x, rows, cols, g)
        for where in everywhere():
            what = (where, size, kernel, stride, padding, dilation, ceil)
            t = om.tensor(x[None]).requires_grad_()
            got, index = om.max_pool2d(t, kernel, stride, padding, dilation, ceil, True)
            got.backward(om.tensor(g[None]))
            same(got.detach().numpy()[0], y, what)
            same(index.numpy()[0], at, what)
            same(t.grad.numpy()[0], dx, what)
            same(om.max_pool2d(t.detach(), kernel, stride, padding, dilation, ceil).numpy()[0], y, what)


@pytest.mark.parametrize("special", [False, True])
def test_avg_pool_is_the_loop_nest_bit_for_bit(special):
    for rng, size, kernel, stride, padding, _, ceil in geometries(60, 3 + special, False):
        x = plane_values(rng, size, special)
        include, divisor = bool(rng.integers(2)), int(rng.choice([0, 0, 3, -8]))
        rows, cols = (axis(*a, 1, ceil) for a in zip(size, kernel, stride, padding, strict=True))
        g = plane_values(rng, (len(rows), len(cols)), special)
        with np.errstate(all="ignore"):
            y, dx = nest_avg(x, rows, cols, g, include, divisor)
        for where in everywhere():
            what = (where, size, kernel, stride, padding, ceil, include, divisor)
            t = om.tensor(x[None]).requires_grad_()
            got = om.avg_pool2d(t, kernel, stride, padding, ceil, include, divisor or None)
            got.backward(om.tensor(g[None]))
            same(got.detach().numpy()[0], y, what)
            same(t.grad.numpy()[0], dx, what)


@pytest.mark.parametrize("output", [(3, 4), (2, 5), (7, 12), (9, 15), (1, 2), (1, 1)])
def test_adaptive_pools_are_the_loop_nest_bit_for_bit(output):
    rng = np.random.default_rng(5)
    x, g = plane_values(rng, (7, 12), False), rng.normal(size=output).astype(F)
    rows, cols = adaptive_axis(7, output[0]), adaptive_axis(12, output[1])
    y, at, dx = nest_max(x, rows, cols, g)
    mean, dmean = nest_avg(x, rows, cols, g, False, 0)
    for where in everywhere():
        t, u = (om.tensor(x[None]).requires_grad_() for _ in range(2))
        got, index = om.adaptive_max_pool2d(t, output, True)
        got.backward(om.tensor(g[None]))
        average = om.adaptive_avg_pool2d(u, output)
        average.backward(om.tensor(g[None]))
        for have, want in ((got.detach(), y), (index, at), (t.grad, dx), (average.detach(), mean), (u.grad, dmean)):
            same(have.numpy()[0], want, (where, output))


# ---- the edge rows ----


@pytest.mark.parametrize("place", [(0,), (3,), (1,), (0, 3), (1, 2)])
def test_p01_a_nan_wins_and_takes_the_gradient(place):
    for size in (2, 26):
        x = np.tile(np.array([[1, 5], [7, 2]], F), (1, size // 2))
        for k in place:
            x[k // 2, k % 2 :: 2] = NAN
        for where in everywhere():
            t = om.tensor(x[None]).requires_grad_()
            y = om.max_pool2d(t, 2)
            y.backward(om.ones(*y.shape))
            assert np.isnan(y.detach().numpy()).all(), where
            want = np.zeros_like(x)
            want[place[0] // 2, place[0] % 2 :: 2] = 1
            assert np.array_equal(t.grad.numpy()[0], want), where


@pytest.mark.parametrize("kernel,stride,padding", [(2, 2, 0), (2, 2, 1), (3, 1, 1), (3, 2, 1), (4, 4, 2), (9, 1, 4)])
def test_p02_a_window_of_minus_infinity_routes_to_its_first_real_element(kernel, stride, padding):
    for width in (4, 20):
        t = om.full((1, 4, width), -np.inf).requires_grad_()
        y, index = om.max_pool2d(t, kernel, stride, padding, return_indices=True)
        y.backward(om.ones(*y.shape))
        assert (y.detach().numpy() == -np.inf).all()
        first = [[max(o * stride - padding, 0) * width + max(j * stride - padding, 0) for j in range(y.shape[2])] for o in range(y.shape[1])]
        assert index.tolist()[0] == first
        want = np.bincount(np.ravel(first), minlength=4 * width).reshape(4, width)
        assert np.array_equal(t.grad.numpy()[0], want)


def test_p02_a_dilated_window_without_an_element_gives_minus_infinity_and_no_gradient():
    t = om.ones(1, 1, 1).requires_grad_()
    y, index = om.max_pool2d(t, 2, 1, 1, 2, return_indices=True)
    y.backward(om.ones(*y.shape))
    assert (y.tolist(), index.tolist(), t.grad.tolist()) == ([[[-np.inf]]], [[[-1]]], [[[0.0]]])


def test_p03_sizes_that_would_overflow_are_refused_at_once():
    x = om.ones(1, 1, 8, 8)
    start = time.process_time()
    for big in (2**31, 2**33 + 1, 2**62, 2**63 - 1, 2**63, 2**70, -(2**63), -(2**70)):
        for name in ("kernel_size", "stride", "padding", "dilation"):
            with pytest.raises(ValueError, match=f"max_pool2d: {name} must be from"):
                om.max_pool2d(x, **{"kernel_size": 2, name: big})
        for name in ("kernel_size", "stride", "padding"):
            with pytest.raises(ValueError, match=f"avg_pool2d: {name} must be from"):
                om.avg_pool2d(x, **{"kernel_size": 2, name: big})
    with pytest.raises(ShapeError, match="larger than x"):
        om.max_pool2d(x, 2**31 - 1, dilation=2**31 - 1)
    assert om.max_pool2d(x, 2, 2**31 - 1).shape == (1, 1, 1, 1)
    assert om.max_pool2d(x, (2**31 - 1, 1), 1, (2**30 - 1, 0)).shape == (1, 1, 8, 8)  # taps that meet padding alone cost nothing
    assert om.avg_pool2d(x, (2**31 - 1, 1), 1, (2**30 - 1, 0)).shape == (1, 1, 8, 8)
    assert time.process_time() - start < 1


def test_p06_padding_is_at_most_half_the_effective_kernel():
    x = om.ones(1, 1, 12, 12)
    om.max_pool2d(x, 6, padding=3)
    om.max_pool2d(x, 3, padding=2, dilation=2)
    om.avg_pool2d(x, 6, padding=3)
    for call in (lambda: om.max_pool2d(x, 6, padding=4), lambda: om.max_pool2d(x, 5, padding=3), lambda: om.max_pool2d(x, 3, padding=3, dilation=2),
                 lambda: om.avg_pool2d(x, 6, padding=4), lambda: om.avg_pool2d(x, 5, padding=3), lambda: om.max_pool1d(x[0], 5, padding=3)):
        with pytest.raises(ValueError, match="at most half the kernel"):
            call()


def test_p08_overlapping_windows_add_up():
    for where in everywhere():
        x = om.zeros(1, 7, 7)
        x[0, 3, 3] = 5.0
        x[0, 0, 0] = 9.0
        x.requires_grad_()
        y = om.max_pool2d(x, 3, 1, 1)
        y.backward(om.ones(*y.shape))
        assert x.grad[0, 3, 3].item() == 9.0 and x.grad[0, 0, 0].item() == 4.0 and x.grad.sum().item() == 49.0, where


def test_p20_what_overhangs_in_ceil_mode_does_not_count():
    x = om.arange(16).cast(om.float32).reshape(1, 4, 4)
    assert om.avg_pool2d(x, 2, 3, ceil_mode=True).tolist() == [[[2.5, 5.0], [12.5, 15.0]]]
    row = om.avg_pool1d(om.ones(1, 7), 5, 4, 2, ceil_mode=True)
    assert np.array_equal(row.numpy()[0], np.array([0.6, 1, 1 / 3], F))


def test_p21_the_last_window_starts_inside():
    assert om.max_pool2d(om.ones(1, 5, 8), 1, 2, ceil_mode=True).shape == (1, 3, 4)
    for pool in (om.max_pool2d, om.avg_pool2d):
        assert pool(om.ones(1, 9, 9), 2, 2, 1, ceil_mode=True).shape == (1, 5, 5)
        assert pool(om.ones(1, 1, 1), 2, 2, ceil_mode=True).shape == (1, 1, 1)


def test_p23_corners_and_inputs_that_are_too_small():
    x = om.arange(36).cast(om.float32).reshape(1, 6, 6) + 1.0
    assert om.avg_pool2d(x, 2, 2, 1)[0, 0, 0].item() == 0.25
    assert om.avg_pool2d(x, 2, 2, 1, count_include_pad=False)[0, 0, 0].item() == 1.0
    for pool in (om.max_pool2d, om.avg_pool2d):
        with pytest.raises(ShapeError, match=r"kernel 4x4 is larger than x with its padding, 2x5 \(x \[1, 2, 5\]\)"):
            pool(om.ones(1, 2, 5), 4)


def test_signed_zeros_first_wins_and_gradients_start_from_plus_zero():
    for where in everywhere():
        x = np.array([[[-0.0, 0.0], [0.0, 0.0]]], F)
        assert np.signbit(om.max_pool2d(om.tensor(x), 2).item()), where
        assert not np.signbit(om.avg_pool2d(om.tensor(np.full((1, 2, 2), -0.0, F)), 2).item()), where
        for pool in (om.max_pool2d, om.avg_pool2d):
            for kernel in (2, 3):
                t = om.ones(1, 6, 6).requires_grad_()
                y = pool(t, kernel)
                y.backward(om.full(y.shape, -0.0))
                assert not np.signbit(t.grad.numpy()).any(), where


# ---- planes, types, memory ----


def test_a_plane_of_2_31_elements_is_refused_before_any_work():
    x = om.zeros(1).expand(1, 65536, 32768)
    for call in (lambda: om.max_pool2d(x, 2), lambda: om.avg_pool2d(x, 2), lambda: om.max_pool1d(om.zeros(1).expand(1, 2**31), 2),
                 lambda: om.adaptive_max_pool2d(x, 2), lambda: om.global_avg_pool2d(x)):
        start = time.process_time()
        with pytest.raises(ShapeError, match=r"fewer than 2\*\*31"):
            call()
        assert time.process_time() - start < 0.01


def test_numpy_integers_are_integers_and_nothing_else_is():
    x = om.ones(1, 4, 4)
    assert om.max_pool2d(x, np.int64(2), (np.int32(2), np.uint8(1))).shape == (1, 2, 3)
    for wrong in (2.0, np.float32(2), True, np.bool_(True), "2", None, [2.0, 2], ((2,), 2), [[2]], om.ones(1)):
        with pytest.raises(TypeError, match="max_pool2d: kernel_size must be an integer"):
            om.max_pool2d(x, wrong)
    with pytest.raises(ValueError, match="max_pool1d: kernel_size must be an integer, got a tuple of 2"):
        om.max_pool1d(x, (2, 2))


def test_an_index_is_written_only_where_it_is_wanted():
    x = om.ones(4, 4, 32, 32)

    def taken(call):
        before = om.pool_stats()
        kept = call()
        return (om.pool_stats() - before).requests, kept

    plain = taken(lambda: om.max_pool2d(x, 2))[0]
    assert taken(lambda: om.max_pool2d(x, 2, return_indices=True))[0] == plain + 1
    x.requires_grad_()
    assert taken(lambda: om.max_pool2d(x, 2))[0] == plain + 1
    with om.no_grad():
        assert taken(lambda: om.max_pool2d(x, 2))[0] == plain


def test_indices_have_no_gradient_and_are_guarded():
    x = om.rand(1, 6, 6).requires_grad_()
    y, index = om.max_pool2d(x, 2, return_indices=True)
    assert y.requires_grad and not index.requires_grad and index.dtype == np.int32
    with om.no_grad():
        index.add_(1)
    with pytest.raises(TensorVersionError, match="max_pool2d"):
        y.sum().backward()


@pytest.mark.parametrize("kernel,stride", [(2, 2), (3, 2), (3, 1)])
@pytest.mark.parametrize("wrong", [-1, -(2**31), 2**31 - 1, 36, 37])
def test_an_index_that_was_overwritten_reaches_no_foreign_memory(kernel, stride, wrong):
    """An exported array raises no version."""
    for where in everywhere():
        x = om.rand(2, 6, 6).requires_grad_()
        y, index = om.max_pool2d(x, kernel, stride, return_indices=True)
        index.numpy()[:] = wrong
        y.backward(om.ones(*y.shape))
        assert not x.grad.numpy()[0].any() and not x.grad.numpy()[1].any(), where


def test_threads_and_bands_change_no_bit():
    cases = [(om.max_pool2d, (2, 2)), (om.max_pool2d, (3, 2, 1)), (om.max_pool2d, (3, 1, 1)), (om.max_pool2d, (2, 2, 0, 2, True)), (om.avg_pool2d, (2, 2)),
             (om.avg_pool2d, (3, 2, 1)), (om.avg_pool2d, (3, 1, 1)), (om.avg_pool2d, (2, 3)), (om.adaptive_avg_pool2d, ((5, 7),)), (om.adaptive_max_pool2d, (4,))]
    for shape in ((1, 37, 45), (3, 5, 9, 10), (1, 1, 700, 64)):
        data = samples.values(samples.Input(shape), 0)
        for pool, args in cases:
            seen = set()
            for threads, piece in ((1, 32768), (1, 1), (3, 1), (3, 300), (3, 32768)):
                table.set_num_threads(threads)
                table.set_smallest_piece(piece)
                x = om.tensor(data).requires_grad_()
                y = pool(x, *args)
                y.backward(om.from_numpy(samples.weights(y)))
                seen.add((y.sha256(), x.grad.sha256()))
            assert len(seen) == 1, (pool.__name__, args, shape)


def test_layers_are_their_operators():
    x, row = om.rand(2, 3, 9, 8), om.rand(2, 3, 9)
    pairs = [
        (nn.MaxPool2d(3, 2, 1), om.max_pool2d(x, 3, 2, 1)), (nn.MaxPool2d(2, dilation=2, ceil_mode=True), om.max_pool2d(x, 2, None, 0, 2, True)),
        (nn.AvgPool2d((3, 2), 2, 1, True, False), om.avg_pool2d(x, (3, 2), 2, 1, True, False)),
        (nn.AvgPool2d(2, divisor_override=3), om.avg_pool2d(x, 2, divisor_override=3)),
        (nn.AdaptiveAvgPool2d((None, 3)), om.adaptive_avg_pool2d(x, (9, 3))), (nn.AdaptiveMaxPool2d(2), om.adaptive_max_pool2d(x, 2)),
        (nn.GlobalAvgPool2d(), x.mean((2, 3), True)),
    ]  # fmt: skip
    pairs += [(nn.MaxPool1d(3, 1), om.max_pool1d(row, 3, 1)), (nn.AvgPool1d(3, ceil_mode=True), om.avg_pool1d(row, 3, ceil_mode=True))]
    for layer, want in pairs:
        got = layer(row if "1d" in type(layer).__name__ else x)
        assert got.sha256() == want.sha256(), layer
    y, index = nn.MaxPool2d(2, 2, 0, 1, True)(x)
    assert index.sha256() == om.max_pool2d(x, 2, return_indices=True)[1].sha256() and y.shape == (2, 3, 4, 4)
    assert nn.AdaptiveMaxPool2d(2, True)(x)[1].dtype == np.int32
    assert repr(nn.MaxPool2d(3, 2, 1)) == "MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)"


def test_unpooling_by_the_index():
    x = om.rand(2, 3, 7, 9)
    y, index = om.max_pool2d(x, 3, 2, 1, return_indices=True)
    flat = x.numpy().reshape(2, 3, -1)
    assert np.array_equal(np.take_along_axis(flat, index.numpy().reshape(2, 3, -1).astype(np.int64), 2).reshape(y.shape), y.numpy())
