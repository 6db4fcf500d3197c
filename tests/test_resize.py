"""Owns the tests of interpolate and pad beyond the registry's: bits against a plain loop nest, edge rows, threads, layers."""

import threading
import time

import numpy as np
import pytest

import onemodel as om
from onemodel import nn
from onemodel._kernels import table
from onemodel._pool import pool

F32 = np.float32
INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=[(isa, mode) for isa in table.available_isas() for mode in om.modes.MODES], ids=lambda p: "-".join(p))
def path(request):
    """The test runs on each instruction set in each mode, in the smallest pieces."""
    table.select_isa(request.param[0])
    om.set_arithmetic(request.param[1])
    table.set_smallest_piece(1)
    return request.param


def bits(a):
    return np.ascontiguousarray(a, F32).view(np.uint32)


# -- the definition, one step at a time ----------------------------------------------------------------------------------------


def neighbours(mode, align, n, out, factor=0.0):
    """Per output its pixels and their weights, in float32 steps."""
    scale = F32(n - 1) / F32(out - 1) if align and out > 1 else F32(0) if align else F32(1 / factor) if factor else F32(n) / F32(out)
    found = []
    for o in range(out):
        if mode == "nearest":
            i = o if n == out else o // 2 if out == 2 * n else min(int(F32(o) * scale), n - 1)
            found.append([(i, F32(1))])
        elif mode == "nearest-exact":
            found.append([(min(int((F32(o) + F32(0.5)) * scale), n - 1), F32(1))])
        else:
            at = F32(o) if n == out else scale * F32(o) if align else scale * (F32(o) + F32(0.5)) - F32(0.5)
            if n == out:
                found.append([(o, F32(1))])
            elif at <= 0:
                found.append([(0, F32(1))])
            elif at >= n - 1:
                found.append([(n - 1, F32(1))])
            else:
                i = int(at)
                upper = at - F32(i)
                found.append([(i, F32(1) - upper), (i + 1, upper)])
    return found


def loop_forward(x, rows, columns):
    def mixed(pairs):
        return pairs[0] if len(pairs) == 1 else pairs[0] + pairs[1]

    y = np.empty((*x.shape[:2], len(rows), len(columns)), F32)
    for n, c, o, p in np.ndindex(y.shape):
        lines = []
        for i, h in rows[o]:
            terms = [x[n, c, i, j] if len(columns[p]) == 1 else w * x[n, c, i, j] for j, w in columns[p]]
            lines.append(mixed(terms) if len(rows[o]) == 1 else h * mixed(terms))
        y[n, c, o, p] = mixed(lines)
    return y


def loop_backward(g, shape, rows, columns):
    """The scatter, in the order in which outputs stand."""
    dx = np.zeros(shape, F32)
    for n, c, o, p in np.ndindex(g.shape):
        for i, h in rows[o]:
            for j, w in columns[p]:
                dx[n, c, i, j] += h * (w * g[n, c, o, p])
    return dx


CASES = [
    ("nearest", None, (3, 5), (7, 4), None), ("nearest", None, (4, 9), (8, 18), None), ("nearest", None, (5, 7), None, (1.3, 0.6)),
    ("nearest-exact", None, (5, 4), (3, 9), None), ("nearest-exact", None, (3, 3), None, (1.3, 2)), ("bilinear", False, (3, 19), (6, 38), None),
    ("bilinear", None, (2, 2), (4, 4), None), ("bilinear", None, (5, 33), None, (1.3, 2.7)), ("bilinear", None, (9, 35), (4, 11), None),
    ("bilinear", None, (3, 3), None, (2.0, 1.2)), ("bilinear", True, (3, 18), (7, 40), None), ("bilinear", True, (7, 20), (3, 1), None),
    ("bilinear", True, (2, 2), (12, 21), None), ("bilinear", False, (1, 1), (3, 5), None), ("bilinear", True, (4, 6), (7, 11), None),
    ("bilinear", None, (6, 6), (2, 2), None), ("bilinear", None, (1, 17), (1, 34), None),
]


@pytest.mark.parametrize("mode,align,shape,size,factor", CASES)
def test_bits_of_the_plain_loops(path, mode, align, shape, size, factor):
    x = np.random.default_rng(1).standard_normal((2, 2, *shape)).astype(F32)
    t = om.tensor(x, requires_grad=True)
    y = om.interpolate(t, size, factor, mode, align)
    factors = factor or (0.0, 0.0)
    rows, columns = (neighbours(mode, align, n, out, f) for n, out, f in zip(shape, y.shape[2:], factors, strict=True))
    assert np.array_equal(bits(y.detach().numpy()), bits(loop_forward(x, rows, columns)))
    g = np.random.default_rng(2).standard_normal(y.shape).astype(F32)
    y.backward(om.tensor(g))
    assert np.array_equal(bits(t.grad.numpy()), bits(loop_backward(g, x.shape, rows, columns)))


@pytest.mark.parametrize("name", ["plain", "channels_last", "stretched", "backwards"])
def test_any_strides_give_the_bits_of_a_copy(path, name):
    x = om.tensor(np.random.default_rng(3).standard_normal((3, 2, 5, 7)).astype(F32))
    view = {"plain": x, "channels_last": x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), "stretched": x[:1].expand(3, 2, 5, 7),
            "backwards": x.flip(0, 2)}[name]
    for mode in ("nearest", "bilinear"):
        assert om.interpolate(view, scale_factor=2, mode=mode).sha256() == om.interpolate(view.clone(), scale_factor=2, mode=mode).sha256()


def test_a_line_is_a_plane_of_one_row(path):
    x = om.tensor(np.random.default_rng(4).standard_normal((2, 3, 9)).astype(F32))
    y = om.interpolate(x, 17, mode="linear")
    assert np.array_equal(bits(y.numpy()), bits(om.interpolate(x.unsqueeze(2), (1, 17), mode="bilinear").squeeze(2).numpy()))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_pieces_change_no_bit(path, count):
    x = np.random.default_rng(5).standard_normal((1, 1, 13, 11)).astype(F32)

    def run():
        t = om.tensor(x, requires_grad=True)
        y = om.interpolate(t, (31, 24), mode="bilinear")
        y.backward(y.detach())
        return y.sha256(), t.grad.sha256()

    om.set_num_threads(1)
    table.set_smallest_piece(1 << 30)
    whole = run()
    om.set_num_threads(count)
    table.set_smallest_piece(1)
    assert run() == whole


def test_no_image_and_no_channel(path):
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4)):
        x = om.ones(*shape).requires_grad_()
        y = om.interpolate(x, 6, mode="bilinear")
        y.backward(om.ones_like(y))
        assert y.shape == (*shape[:2], 6, 6) and x.grad.shape == shape


def test_more_than_one_thread_takes_part():
    table.set_smallest_piece(1)
    om.set_num_threads(3)
    x = om.rand(4, 8, 40, 40).requires_grad_()

    def both():
        y = om.interpolate(x, scale_factor=2, mode="bilinear")
        forward = table.last_threads()
        y.backward(om.ones_like(y))
        return forward, table.last_threads()

    forward = backward = 1
    end = time.monotonic() + 20  # on a busy machine workers may be late for many jobs
    while min(forward, backward) < 2 and time.monotonic() < end:
        forward, backward = map(max, (forward, backward), both())
    assert min(forward, backward) > 1


# -- edge rows --------------------------------------------------------------------------------------------------------------------


def line(values):
    return om.tensor(np.array(values, F32).reshape(1, 1, 1, -1)).requires_grad_()


def resized(x, size, align):
    return om.interpolate(x, (x.shape[2], size), mode="bilinear", align_corners=align)


def test_Z01_one_output(path):
    assert resized(line([5, 6, 7]), 1, True).tolist() == [[[[5.0]]]]
    assert resized(line([5, 6, 7]), 1, False).tolist() == [[[[6.0]]]]


def test_Z02_a_large_ratio_drops_no_term(path):
    x = line([1, 2])
    resized(x, 12, True).backward(om.ones(1, 1, 1, 12))
    np.testing.assert_allclose(x.grad.numpy().ravel(), [6, 6], rtol=1e-6)
    for align in (True, False):
        for n, out in ((2, 500), (3, 100), (7, 64)):
            x = line(range(n))
            resized(x, out, align).backward(om.ones(1, 1, 1, out))
            assert abs(x.grad.numpy().sum() - out) < 1e-4 * out


def test_Z03_what_align_corners_means(path):
    np.testing.assert_allclose(resized(line([2, 8]), 4, True).detach().numpy().ravel(), [2, 4, 6, 8], rtol=1e-6)
    assert resized(line([2, 8]), 4, False).detach().numpy().ravel().tolist() == [2, 3.5, 6.5, 8]


@pytest.mark.parametrize("align", [True, False])
def test_Z07_one_pixel(path, align):
    x = om.full((1, 1, 1, 1), 3.25).requires_grad_()
    y = om.interpolate(x, 5, mode="bilinear", align_corners=align)
    assert (y.detach().numpy() == 3.25).all()
    y.backward(om.ones(1, 1, 5, 5))
    assert x.grad.item() == 25


def test_infinities_stay_where_one_pixel_counts(path):
    """An output at an end has one neighbour, so no 0·inf; between two pixels, one of them not finite, it may be NaN, as torch's is."""
    y = resized(line([INF, 1, -INF]), 6, False).detach().numpy().ravel()
    assert y[0] == INF and y[-1] == -INF
    same = om.interpolate(line([1, INF, NAN]), (1, 3), mode="bilinear").detach().numpy().ravel()
    assert same[0] == 1 and same[1] == INF and np.isnan(same[2])


def test_exact_mode_has_one_nan_and_nearest_keeps_payloads():
    strange = np.array([0xFFC00123, 0x3F800000], np.uint32).view(F32)
    x = om.tensor(strange.reshape(1, 1, 1, 2)).requires_grad_()
    for isa in table.available_isas():
        table.select_isa(isa)
        with om.arithmetic("exact"):
            assert set(bits(om.interpolate(x, (1, 5), mode="bilinear").detach().numpy()).ravel()) <= {0x7FC00000, 0x3F800000}
            y = om.interpolate(x, (1, 4))
            assert bits(y.detach().numpy()).ravel().tolist() == [0xFFC00123] * 2 + [0x3F800000] * 2
            x.grad = None
            y.backward(om.tensor(np.array([0xFFC00123, 1, 2, 3], np.uint32).view(F32).reshape(y.shape)))
            assert bits(x.grad.numpy()).ravel().tolist() == [0x7FC00000, 5]


@pytest.fixture
def poisoned():
    """Every block holds signalling NaN when it is taken and when it went back."""
    old = pool.set_pool_poison(True)
    yield
    pool.set_pool_poison(old)


def test_X27_no_gradient_is_added_to_what_memory_held(poisoned, path):
    found = set()
    for _ in range(3):
        x = om.ones(2, 3, 4, 5).requires_grad_()
        (om.interpolate(x, (2, 3), mode="bilinear").sum() + om.interpolate(x, 3).sum() + om.pad(x, (-1, 2)).sum()
         + om.pad(x, (2, 1), "reflect").sum()).backward()
        found.add(x.grad.sha256())
    assert len(found) == 1 and np.isfinite(x.grad.numpy()).all()


def test_a_warm_step_takes_no_memory():
    x = om.rand(2, 4, 16, 16).requires_grad_()

    def step():
        with om.ActivationScope():
            y = om.pad(om.interpolate(x, scale_factor=2, mode="bilinear"), (1, 1, 1, 1))
            y.sum().backward()

    step()
    step()
    before = om.pool_stats()
    step()
    change = om.pool_stats() - before
    assert (change.native_allocations, change.outstanding_bytes) == (0, 0)


def test_threads_of_python_share_a_tensor():
    x = om.rand(2, 3, 20, 20)
    expected = om.interpolate(x, 37, mode="bilinear").sha256()
    found = []

    def work():
        with om.no_grad():
            found.extend(om.interpolate(x, 37, mode="bilinear").sha256() for _ in range(10))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert set(found) == {expected} and len(found) == 40


# -- pad --------------------------------------------------------------------------------------------------------------------------


def test_pad_keeps_payloads_and_shares_the_gradient():
    strange = np.array([0xFFC00123, 0x80000000], np.uint32).view(F32)
    for mode in ("constant", "replicate", "circular"):
        y = om.pad(om.tensor(strange), (1, 1), mode)
        assert bits(y.numpy())[1:3].tolist() == [0xFFC00123, 0x80000000]


def test_every_element_of_a_padded_tensor_is_written_once(poisoned):
    for borders in ((1, 2), (0, 1, 3, 0), (2, 2, 0, 1, 1, 0), (-1, 3, 2, -2), (-6, 5, 1, 1)):
        x = np.arange(120, dtype=np.int32).reshape(4, 5, 6)
        pairs = [(0, 0)] * (3 - len(borders) // 2) + [borders[i:i + 2] for i in range(0, len(borders), 2)][::-1]
        cropped = x[tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, pairs, strict=True))]
        expected = np.pad(cropped, [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=7)
        assert np.array_equal(om.pad(om.tensor(x), borders, value=7).numpy(), expected)


# -- layers -----------------------------------------------------------------------------------------------------------------------


def test_layers():
    x = om.rand(2, 3, 4, 5)
    up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    assert up(x).sha256() == om.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True).sha256()
    assert nn.Upsample(size=(3, 9))(x).shape == (2, 3, 3, 9) and "scale_factor=2" in repr(up)
    assert nn.ZeroPad2d((1, 2, 3, 4))(x).sha256() == om.pad(x, (1, 2, 3, 4)).sha256() and nn.ZeroPad2d(1)(x).shape == (2, 3, 6, 7)
    assert not list(up.parameters()) and "1, 2, 3, 4" in repr(nn.ZeroPad2d((1, 2, 3, 4)))
    for wrong, error in ((1.0, TypeError), (True, TypeError), ((1, 2), ValueError)):
        with pytest.raises(error, match="ZeroPad2d"):
            nn.ZeroPad2d(wrong)
    assert om.resize2d is om.interpolate
