"""Owns the tests of softmax, class losses, squared error and SGD kernels on bare arrays; operators and optimisers are tested elsewhere."""

import itertools

import numpy as np
import pytest

from onemodel._kernels import loss, optim, probe, softmax, table

FAST, EXACT = 0, 1
ISAS = table.available_isas()
INF, NAN = np.inf, np.nan


def f4(*values):
    return np.array(values, np.float32)


def blank(shape):
    return np.full(shape, 9, np.float32)


def soft(mode, x, axis=-1, logarithm=False):
    y = blank(x.shape)
    softmax._array_softmax(mode, logarithm, x, axis % x.ndim, y)
    return y


def soft_bwd(mode, y, g, axis=-1, logarithm=False):
    dx = blank(y.shape)
    softmax._array_softmax_bwd(mode, logarithm, y, g, axis % y.ndim, dx)
    return dx


def lse(mode, x, axis):
    out = blank(x.shape[:axis] + x.shape[axis + 1 :])
    softmax._array_logsumexp(mode, x, axis, out)
    return out


def lse_bwd(mode, x, axis, y, g):
    dx = blank(x.shape)
    softmax._array_logsumexp_bwd(mode, x, axis, y, g, dx)
    return dx


def class_loss(mode, from_logits, x, target, weight=None, ignore=-100, reduction="mean", g=None):
    out = np.asarray(blank(target.shape if reduction == "none" else ()))
    g = np.ones(out.shape, np.float32) if g is None else g
    dx = blank(x.shape)
    loss._array_class_loss(mode, from_logits, x, target, weight, ignore, reduction, out, np.asarray(g), dx)
    return out, dx


def wide(x, axis):
    """softmax, its logarithm and logsumexp in float64."""
    x = x.astype(np.float64)
    m = x.max(axis=axis, keepdims=True)
    total = np.log(np.exp(x - m).sum(axis=axis, keepdims=True)) + m
    return np.exp(x - total), x - total, total.squeeze(axis)


def near(got, expected, tolerance=2e-6):
    scale = np.abs(expected).max(initial=1)
    return got.shape == expected.shape and np.abs(got - expected).max(initial=0) <= tolerance * scale


def cases():
    rng = np.random.default_rng(0)
    for shape in ((5, 10), (9, 300), (3, 7, 33), (2, 3, 4, 5), (1, 1), (17, 1), (2, 1500), (600, 2)):
        for axis in range(len(shape)):
            x, g = (3 * rng.standard_normal(shape)).astype(np.float32), rng.standard_normal(shape).astype(np.float32)
            yield x, g, axis
            yield np.ascontiguousarray(x.T).T, g[..., ::-1], axis
            yield x[::-1], np.broadcast_to(g[..., :1], shape), axis


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_values_and_gradients(isa, mode):
    table.select_isa(isa)
    for x, g, axis in cases():
        p, log_p, total = wide(x, axis)
        y, z = soft(mode, x, axis), soft(mode, x, axis, True)
        assert near(y, p) and near(z, log_p) and near(lse(mode, x, axis), total)
        g8 = g.astype(np.float64)
        assert near(soft_bwd(mode, y, g, axis), p * (g8 - (g8 * p).sum(axis=axis, keepdims=True)), 5e-6)
        assert near(soft_bwd(mode, z, g, axis, True), g8 - p * g8.sum(axis=axis, keepdims=True), 5e-6)
        outer = np.ascontiguousarray(np.take(g, 0, axis))
        assert near(lse_bwd(mode, x, axis, lse(mode, x, axis), outer), p * np.expand_dims(outer, axis), 5e-6)


def test_a_gradient_off_by_a_thousandth_is_seen():
    x, g, axis = next(cases())
    p = wide(x, axis)[0]
    right = p * (g - (g * p).sum(axis=axis, keepdims=True))
    assert near(soft_bwd(EXACT, soft(EXACT, x, axis), g, axis), right, 5e-6)
    assert not near(1.001 * soft_bwd(EXACT, soft(EXACT, x, axis), g, axis), right, 5e-6)


def everything(mode):
    """The bytes of every kernel's results on all cases."""
    parts = []
    for x, g, axis in cases():
        outer = np.ascontiguousarray(np.take(g, 0, axis))
        for logarithm in (False, True):
            y = soft(mode, x, axis, logarithm)
            parts += [y, soft_bwd(mode, y, g, axis, logarithm)]
        parts += [lse(mode, x, axis), lse_bwd(mode, x, axis, lse(mode, x, axis), outer)]
    rng = np.random.default_rng(3)
    for n, classes, inner in ((40, 10, 1), (3, 5, 33), (2, 700, 1)):
        x, target = rng.standard_normal((n, classes, inner)).astype(np.float32), rng.integers(0, classes, (n, inner))
        for from_logits, reduction in itertools.product((False, True), ("none", "mean", "sum")):
            parts += class_loss(mode, from_logits, x, target, rng.random(classes, dtype=np.float32), 1, reduction)
    return b"".join(np.asarray(p).tobytes() for p in parts)


def test_exact_bits_are_the_same_on_every_path_and_thread_count():
    seen = set()
    for isa in ISAS:
        table.select_isa(isa)
        for threads, piece in ((1, 32768), (2, 1), (3, 1)):
            table.set_num_threads(threads)
            table.set_smallest_piece(piece)
            seen.add(everything(EXACT))
    assert len(seen) == 1


@pytest.mark.parametrize("isa", ISAS)
def test_fast_bits_are_the_same_at_every_thread_count(isa):
    table.select_isa(isa)
    seen = set()
    for threads, piece in ((1, 32768), (2, 1), (3, 1)):
        table.set_num_threads(threads)
        table.set_smallest_piece(piece)
        seen.add(everything(FAST))
    assert len(seen) == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("spread", [1, 4, 30])  # the last reaches subnormal exponentials and quotients
def test_exact_softmax_is_its_definition(isa, spread):
    """True maximum, e = exp(x - m) in float32, a chain of doubles rounded once, one division: from the kernel's own exp."""
    table.select_isa(isa)
    x = (spread * np.random.default_rng(1).standard_normal((300, 333))).astype(np.float32)
    e = probe.run("exp", (x - x.max(axis=1, keepdims=True)).ravel(), mode=EXACT).reshape(x.shape)
    s = np.add.accumulate(e.astype(np.float64), axis=1)[:, -1:].astype(np.float32)
    assert np.array_equal(soft(EXACT, x), e / s)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_edge_cases(isa, mode):
    table.select_isa(isa)
    for pad in (0, 1, 15, 40):  # body and tail; the padding is masked out
        masked, nothing = f4(*[-INF] * pad), np.zeros(pad, np.float32)

        def row(*values, masked=masked):
            return np.concatenate([masked, f4(*values)])

        for logarithm in (False, True):  # S02, and rows with nothing to choose from
            for bad in (row(5, INF, -1), row(-INF, -INF), row(1, NAN), row(-INF, NAN)):
                assert np.isnan(soft(mode, bad, 0, logarithm)).all()
                assert np.isnan(soft(mode, np.ascontiguousarray(np.stack([bad, bad], 1)), 0, logarithm)).all()
        assert soft(mode, row(89.5), 0, True)[-1] == 0 and soft(mode, row(400, -300), 0)[-2:].tolist() == [1, 0]  # S05
        x = row(1, -INF, 2, 3)  # S03
        dx = soft_bwd(mode, soft(mode, x), row(1, 0, 0, 0, masked=nothing))
        assert np.allclose(dx[pad:], [0.0819251, 0, -0.0220330, -0.0598920], atol=1e-7) and dx[pad + 1] == 0
        dx = soft_bwd(mode, soft(mode, row(0, 0, -INF), 0, True), row(1, 0, 0, masked=nothing), 0, True)  # S04
        assert np.allclose(dx[pad:], [0.5, -0.5, 0], atol=1e-7) and dx[-1] == 0
        for values, expected in (((-INF, -INF), -INF), ((1, INF), INF), ((-INF, INF), INF), ((INF, NAN), NAN), ((3e9, 3e9), 3e9), ((-0.0,), 0)):
            for x, axis in ((row(*values), 0), (np.ascontiguousarray(np.stack([row(*values)] * 3, 1)), 0)):
                got = lse(mode, x, axis)
                assert np.array_equal(got, np.full(got.shape, expected, np.float32), equal_nan=True)
    assert lse(mode, np.zeros((2, 0), np.float32), 1).tolist() == [-INF, -INF]
    assert soft(mode, np.zeros((3, 0), np.float32)).shape == (3, 0)
    if mode == EXACT:
        assert (soft(mode, f4(5, INF, -NAN)).view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_class_losses(isa, mode):
    table.select_isa(isa)
    rng = np.random.default_rng(0)
    for n, classes, inner in ((8, 10, 1), (3, 5, 20), (1, 2, 1), (30, 600, 1), (0, 4, 1)):
        logits = (2 * rng.standard_normal((n, classes, inner))).astype(np.float32)
        target = rng.integers(0, classes, (n, inner))
        target[:, ::3] = 1
        one_hot = np.moveaxis(np.eye(classes)[target], -1, 1)
        for weight, ignore, reduction in itertools.product((None, rng.random(classes, dtype=np.float32)), (-100, 1), ("none", "mean", "sum")):
            w = (np.ones(classes) if weight is None else weight.astype(np.float64))[target] * (target != ignore)
            g = np.asarray(rng.standard_normal(target.shape if reduction == "none" else ())).astype(np.float32)
            with np.errstate(all="ignore"):
                scale = w * g / (w.sum() if reduction == "mean" else 1)
            scale[w == 0] = 0
            p, log_p, _ = wide(logits, 1) if n else (logits, logits, None)
            each = -(w * (log_p * one_hot).sum(axis=1))
            with np.errstate(all="ignore"):
                expected = {"none": each, "sum": each.sum(), "mean": each.sum() / w.sum()}[reduction]
            for from_logits, x, dx in ((True, logits, (p - one_hot) * scale[:, None]), (False, log_p.astype(np.float32), -one_hot * scale[:, None])):
                got, got_dx = class_loss(mode, from_logits, x, target, weight, ignore, reduction, g)
                assert np.allclose(got, expected, rtol=2e-6, atol=2e-6, equal_nan=True)
                assert near(got_dx, dx, 3e-6)


@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_class_losses_on_the_edge(mode):
    ignored = np.full((4, 1), -100)
    for from_logits in (False, True):
        for reduction, expected in (("mean", NAN), ("sum", 0.0), ("none", 0.0)):  # L01
            out, dx = class_loss(mode, from_logits, np.zeros((4, 3, 1), np.float32), ignored, reduction=reduction)
            assert np.array_equal(out, np.full(out.shape, expected, np.float32), equal_nan=True) and (dx == 0).all()
    out, _ = class_loss(mode, True, np.zeros((4, 5, 1), np.float32), np.array([[4], [200], [0], [1]]), ignore=200, reduction="none")  # L03
    assert out[1] == 0 and np.allclose(out[[0, 2, 3]], np.log(5))
    for x, expected in (((3, 1, 0), 2.1698460), ((-2, 1, 0), 0.3490122), ((-INF, 1, 0), 0.3132617)):  # L06
        assert np.isclose(class_loss(mode, True, f4(*x).reshape(1, 3, 1), np.array([[1]]), ignore=0)[0], expected, rtol=1e-6)
    for size in (1, 1e5, 3e9, 1e36, -1e36):  # L07
        assert np.isclose(class_loss(mode, True, np.full((1, 3, 1), size, np.float32), np.array([[2]]))[0], 1.0986123, rtol=1e-6)
    assert np.isclose(class_loss(mode, True, f4(20, 0).reshape(1, 2, 1), np.array([[0]]))[0], np.log1p(np.exp(-20.0)), rtol=1e-6)
    out, _ = class_loss(mode, False, np.zeros((1, 3, 1), np.float32), np.array([[2]]))
    assert not np.signbit(out)  # a loss of 0 is +0


def test_bad_targets_are_found():
    find = loss._array_first_bad_target
    assert find(np.array([0, 4, 2]), 5, -100) == -1
    assert find(np.array([0, 5, -1]), 5, -100) == 1
    assert find(np.array([0, -100, -1]), 5, -100) == 2
    assert find(np.array([0, 200, 4]), 5, 200) == -1
    assert find(np.array([], np.int64), 5, 0) == -1


def test_cross_entropy_is_log_softmax_then_nll_loss():
    rng = np.random.default_rng(0)
    for n, classes, inner in ((9, 10, 1), (4, 7, 19)):
        x, target = rng.standard_normal((n, classes, inner)).astype(np.float32), rng.integers(0, classes, (n, inner))
        log_p = soft(EXACT, x, 1, True)
        for reduction in ("none", "mean", "sum"):
            g = np.asarray(rng.standard_normal(target.shape if reduction == "none" else ())).astype(np.float32)
            out, dx = class_loss(EXACT, True, x, target, reduction=reduction, g=g)
            apart, d_log = class_loss(EXACT, False, log_p, target, reduction=reduction, g=g)
            assert np.array_equal(out, apart) and np.array_equal(dx, soft_bwd(EXACT, log_p, d_log, 1, True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_squared_error(isa, mode):
    table.select_isa(isa)
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 129, 5000):
        a, b = rng.standard_normal((2, n)).astype(np.float32)
        squares = (a - b) ** 2
        for reduction in ("none", "mean", "sum"):
            out = np.asarray(blank(n if reduction == "none" else ()))
            g = np.asarray(rng.standard_normal(out.shape)).astype(np.float32)
            da = blank(n)
            loss._array_mse_loss(mode, a, b, reduction, out, g, da)
            with np.errstate(all="ignore"):
                total = np.float64(sum(squares.astype(np.float64).tolist()))
                expected = {"none": squares, "sum": total, "mean": total / n}[reduction]
                slope = 2 * (a.astype(np.float64) - b) * g / (n if reduction == "mean" else 1)
            assert np.allclose(out, expected, rtol=0 if mode == EXACT and reduction == "none" else 1e-6, equal_nan=True)
            assert near(da, slope, 1e-6)


def sgd_reference(p, g, buffer, lr, mu, dampening, nesterov, weight_decay, maximize, first):
    """The rule in float32, one rounding per operation."""
    lr, mu, undamped, decay = (np.float32(v) for v in (lr, mu, 1 - dampening, weight_decay))
    d = -g if maximize else g
    if weight_decay:
        d = d + decay * p
    if buffer is not None:
        buffer[:] = d if first else mu * buffer + undamped * d
        d = d + mu * buffer if nesterov else buffer
    p[:] = p - lr * d


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [FAST, EXACT])
def test_sgd_is_its_formula_to_the_bit(isa, mode):
    table.select_isa(isa)
    rng = np.random.default_rng(0)
    options = ((0, 0, 0, 0, 0), (0, 0, 0, 0.1, 1), (0.9, 0, 0, 0, 0), (0.9, 0, 1, 0.01, 0), (0.5, 0.3, 0, 0.1, 1))
    for mu, dampening, nesterov, decay, maximize in options:
        sizes = (1, 37, 200, 0, 1000)
        params = [rng.standard_normal(n).astype(np.float32) for n in sizes]
        copies, state = [p.copy() for p in params], [np.zeros_like(p) if mu else None for p in params]
        copied = [None if b is None else b.copy() for b in state]
        for step in range(4):
            table.set_num_threads(1 + step % 3)
            table.set_smallest_piece(1 if step else 32768)
            grads = [rng.standard_normal(n).astype(np.float32) for n in sizes]
            optim._array_sgd(mode, params, grads, state, 0.1, mu, dampening, nesterov, decay, maximize, step == 0)
            for p, g, b in zip(copies, grads, copied, strict=True):
                sgd_reference(p, g, b, 0.1, mu, dampening, nesterov, decay, maximize, step == 0)
        for p, q in zip(params, copies, strict=True):
            assert np.array_equal(p, q)
