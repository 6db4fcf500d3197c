"""Owns the tests of conv1d, conv2d and conv_transpose2d beyond the registry's: edge rows by their ids, bits against the definition, views, bad
arguments. Must not contain a comparison with torch (test_oracle_conv.py) or timings.
"""

import functools
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from test_gemm import canonical, fused

import onemodel as om
from onemodel import memory
from onemodel._kernels import table
from onemodel._pool import pool
from onemodel.ops.conv import numbers, padding_of


@pytest.fixture(params=[(isa, mode) for isa in table.available_isas() for mode in om.modes.MODES], ids=lambda p: "-".join(p))
def path(request):
    """The test runs on each instruction set in each mode, in the smallest pieces."""
    isa, mode = request.param
    table.select_isa(isa)
    om.set_arithmetic(mode)
    table.set_smallest_piece(1)
    return request.param


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def leaf(array):
    return om.tensor(np.asarray(array, np.float32)).requires_grad_()


def whole(*shape, seed=0):
    """Small integers, of which every sum is exact: any order gives these bits."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@functools.cache
def expected_of(name, shapes, kwargs):
    """Result and gradients of Σ W·y of the float64 definition, which is linear in each input; the derivative is what a unit step changes."""
    reference = functools.partial(om.ops.OPS[name].reference, **dict(kwargs))
    wide = [whole(*shape, seed=place).astype(np.float64) for place, shape in enumerate(shapes)]
    y = reference(*wide)
    w, found = whole(*y.shape, seed=9), []
    for place, array in enumerate(wide):
        slopes, unit = np.empty_like(array), np.zeros_like(array)
        for i in np.ndindex(array.shape):
            unit[i] = 1
            slopes[i] = np.sum(w * reference(*[unit if k == place else a for k, a in enumerate(wide)]))
            unit[i] = 0
        found.append(slopes)
    return y, w, found


def exactly(function, *shapes, **kwargs):
    """On whole numbers, the operator and its gradients are the definition's to the last bit."""
    y, w, slopes = expected_of(function.__name__, shapes, tuple(kwargs.items()))
    leaves = [leaf(whole(*shape, seed=place)) for place, shape in enumerate(shapes)]
    got = function(*leaves, **kwargs)
    np.testing.assert_array_equal(got.detach().numpy(), y)
    got.backward(om.tensor(w))
    for t, slope in zip(leaves, slopes, strict=True):
        np.testing.assert_array_equal(t.grad.numpy(), slope)


# -- the rows of edge-cases.md --------------------------------------------------------------------------------------------------


def test_V02_groups_with_stride(path):
    exactly(om.conv2d, (1, 4, 7, 7), (4, 1, 3, 3), groups=4, stride=2)
    exactly(om.conv2d, (2, 6, 7, 6), (4, 3, 3, 2), groups=2, stride=(2, 3), padding=1)
    exactly(om.conv_transpose2d, (1, 4, 3, 4), (4, 1, 3, 3), groups=4, stride=2)


def test_V04_groups_with_stride_beyond_the_kernel(path):
    exactly(om.conv2d, (1, 4, 7, 8), (4, 2, 2, 2), groups=2, stride=3, padding=1)
    exactly(om.conv_transpose2d, (1, 4, 3, 2), (4, 1, 2, 2), groups=2, stride=3, padding=1)


def test_V05_dropped_tail(path):
    x, w = leaf(normal(0, 1, 1, 12)), leaf(normal(1, 1, 1, 3))
    om.conv1d(x, w, stride=5).backward(om.tensor([[[1.0, 1.0]]]))
    assert x.grad.shape == (1, 1, 12) and x.grad.tolist()[0][0][8:] == [0.0] * 4 and x.grad.tolist()[0][0][3:5] == [0.0] * 2
    exactly(om.conv1d, (1, 1, 12), (1, 1, 3), stride=5)
    exactly(om.conv2d, (1, 2, 9, 12), (3, 2, 3, 2), stride=(5, 4))


def test_V06_permuted_input_with_padding(path):
    data, kernel = normal(0, 1, 11, 5), normal(1, 3, 5, 1, 8)
    x = om.tensor(data).permute(0, 2, 1).unsqueeze(2)
    dense = om.conv2d(x.clone(), om.tensor(kernel), padding=(0, 7)).sha256()
    assert {om.conv2d(x, om.tensor(kernel), padding=(0, 7)).sha256() for _ in range(20)} == {dense}
    assert om.conv1d(x.squeeze(2), om.tensor(kernel[:, :, 0]), padding=7).unsqueeze(2).sha256() == dense


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose2d"])
def test_V08_V09_V10_parameters_out_of_range(name):
    function = getattr(om, name)
    x, w = (om.ones(1, 4, 5), om.ones(4, 2, 3)) if name == "conv1d" else (om.ones(1, 4, 5, 5), om.ones(4, 2, 3, 3))
    for parameter in ("groups", "stride", "dilation"):
        for bad in (0, -1, -(2**63), 2**31, 2**62, 2**63, 2**70, -(2**70), 10**5000, np.int64(0), np.int8(-1), [0], (2**62,)):
            with pytest.raises(ValueError if not (parameter == "groups" and isinstance(bad, (list, tuple))) else TypeError, match=f"^{name}: {parameter} must be"):
                function(x, w, **{parameter: bad})
    for parameter in ("padding", "output_padding")[: 1 + (name == "conv_transpose2d")]:
        for bad in (-1, -(2**63), 2**31, 2**62, 2**70, -(2**70), np.int64(-1), [-1]):
            with pytest.raises(ValueError, match=f"^{name}: {parameter} must be"):
                function(x, w, **{parameter: bad})
    for parameter in ("groups", "stride", "dilation", "padding", "output_padding")[: 4 + (name == "conv_transpose2d")]:
        for bad in (True, False, 1.0, float("nan"), None, b"1", {}, np.float32(1), np.bool_(True), np.ones(2), om.ones(1), object(), 1j, (True,), (1.0,), [None], range(2)):
            with pytest.raises(TypeError, match=f"^{name}: {parameter} must be"):
                function(x, w, **{parameter: bad})
        for bad in ((), (1,) * 3, [1] * 9):
            with pytest.raises(TypeError if parameter == "groups" else ValueError, match=f"^{name}: {parameter} must be"):
                function(x, w, **{parameter: bad})
        word = pytest.raises(ValueError if parameter == "padding" else TypeError, match=f"^{name}: {parameter} must be")
        with word:
            function(x, w, **{parameter: "1"})


def test_V11_weight_of_the_wrong_rank():
    for shape in ((2, 3), (), (4,), (1, 1, 1), (1, 1, 1, 1, 1)):
        for function in (om.conv2d, om.conv_transpose2d):
            with pytest.raises(om.ShapeError, match="expected x"):
                function(om.ones(1, 1, 4, 4), om.ones(*shape))
    for shape in ((), (4,), (4, 4), (1, 1, 1, 4, 4)):
        with pytest.raises(om.ShapeError, match="expected x"):
            om.conv2d(om.ones(*shape), om.ones(1, 1, 1, 1))


def test_V12_empty_filter():
    for function, shape in ((om.conv2d, (8, 4, 0, 3)), (om.conv2d, (8, 4, 3, 0)), (om.conv_transpose2d, (4, 8, 0, 3)), (om.conv2d, (0, 4, 1, 1))):
        with pytest.raises(om.ShapeError):
            function(om.ones(1, 4, 5, 5), om.ones(*shape))
    with pytest.raises(om.ShapeError):
        om.conv1d(om.ones(1, 4, 5), om.ones(8, 4, 0))


def test_V13_stride_beyond_the_kernel(path):
    y = om.conv2d(om.arange(25.0).reshape(1, 1, 5, 5), om.ones(1, 1, 1, 1), stride=2)
    assert y.tolist() == [[[[0, 2, 4], [10, 12, 14], [20, 22, 24]]]]
    exactly(om.conv2d, (1, 1, 5, 5), (1, 1, 1, 1), stride=2)


def test_K02_K05_output_sizes_that_cannot_be():
    with pytest.raises(ValueError, match="output_padding must be from 0 to"):
        om.conv_transpose2d(om.ones(1, 1, 2, 2), om.ones(1, 1, 2, 2), output_padding=-1)
    with pytest.raises(om.ShapeError, match="the output would be -5 by -5"):
        om.conv_transpose2d(om.ones(1, 1, 1, 1), om.ones(1, 1, 1, 1), padding=3)
    with pytest.raises(om.ShapeError, match="the output would be 0 by 3"):
        om.conv_transpose2d(om.ones(1, 1, 1, 4), om.ones(1, 1, 2, 2), padding=1)
    with pytest.raises(om.ShapeError):
        om.conv_transpose2d(om.ones(0, 1, 0, 4), om.ones(1, 1, 1, 1), stride=2)
    for op, stride, dilation in ((1, 1, 1), ((0, 2), (3, 2), 1), (3, 1, (4, 3))):
        with pytest.raises(ValueError, match="must be smaller than the stride"):
            om.conv_transpose2d(om.ones(1, 1, 3, 3), om.ones(1, 1, 2, 2), stride=stride, output_padding=op, dilation=dilation)


def test_K03_output_padding_receives_real_contributions(path):
    y = om.conv_transpose2d(om.ones(1, 1, 1, 1), om.arange(1.0, 10.0).reshape(1, 1, 3, 3), stride=2, padding=1, output_padding=1)
    assert y.tolist() == [[[[5, 6], [8, 9]]]]


def test_K04_groups_stand_before_dilation():
    x, w, b = om.tensor(whole(1, 4, 4, 4)), om.tensor(whole(4, 3, 3, 3, seed=1)), om.ones(6)
    y = om.conv_transpose2d(x, w, b, 2, 1, 0, 2, 3)
    assert y.shape == (1, 6, 11, 11)
    assert y.sha256() == om.conv_transpose2d(x, w, bias=b, stride=2, padding=1, output_padding=0, groups=2, dilation=3).sha256()
    # conv2d has them the other way round
    w = om.tensor(whole(6, 2, 2, 2, seed=1))
    assert om.conv2d(x, w, b, 1, 0, 3, 2).sha256() == om.conv2d(x, w, b, dilation=3, groups=2).sha256()


def test_K06_expanded_weight(path):
    """Strides of 0 mean what they say, for every operand in every direction."""
    x = om.tensor(whole(1, 1, 3, 4))
    stretched = om.ones(1, 1, 1, 1).expand(1, 1, 2, 2)
    for function in (om.conv2d, om.conv_transpose2d):
        assert function(x, stretched).tolist() == function(x, om.ones(1, 1, 2, 2)).tolist()
        a, b = om.ones(1, 1, 1, 1).requires_grad_(), om.ones(1, 1, 2, 2).requires_grad_()
        function(x, a.expand(1, 1, 2, 2)).sum().backward()  # the gradient of sum is itself an expanded tensor
        function(x, b).sum().backward()
        assert a.grad.item() == b.grad.sum().item()
    bias = om.ones(1).expand(3)
    wide = om.tensor(whole(1, 2, 4, 5)).expand(3, 2, 4, 5)
    w = om.tensor(whole(3, 2, 3, 3, seed=1))
    assert om.conv2d(wide, w, bias).tolist() == om.conv2d(wide.clone(), w, om.ones(3)).tolist()


@given(h=st.integers(1, 6), s=st.integers(1, 4), d=st.integers(1, 4), k=st.integers(1, 4), p=st.integers(0, 3), op=st.integers(0, 3))
def test_K07_output_size_of_the_transposed(h, s, d, k, p, op):
    size = (h - 1) * s - 2 * p + d * (k - 1) + op + 1
    x, w = om.ones(1, 1, h, 1), om.ones(1, 1, k, 1)
    if size < 1 or op >= max(s, d):
        with pytest.raises(ValueError):
            om.conv_transpose2d(x, w, None, (s, 1), (p, 0), (op, 0), 1, (d, 1))
    else:
        assert om.conv_transpose2d(x, w, None, (s, 1), (p, 0), (op, 0), 1, (d, 1)).shape == (1, 1, size, 1)


def test_Y01_new_shapes_keep_no_memory():
    w = leaf(normal(0, 4, 3, 3, 3))
    rng = np.random.default_rng(0)

    def steps(count):
        for h, width in rng.integers(24, 100, (count, 2)):
            om.conv2d(om.ones(1, 3, int(h), int(width)), w, padding=1).sum().backward()
            w.grad = None

    steps(60)
    before = memory.pool_stats()
    steps(120)
    change = memory.pool_stats() - before
    assert change.outstanding_bytes == 0 and change.cached_bytes <= 4 * before.peak_outstanding_bytes


# -- bits -----------------------------------------------------------------------------------------------------------------------


def taps(x, shape, stride, padding, dilation):
    """((c, r, s), what this tap sees at every output) for one group's images, zeros outside."""
    (height, width), (kh, kw) = shape
    top, left = padding
    wide = np.zeros((*x.shape[:2], max(top + x.shape[2], (height - 1) * stride[0] + (kh - 1) * dilation[0] + 1),
                     max(left + x.shape[3], (width - 1) * stride[1] + (kw - 1) * dilation[1] + 1)), np.float32)
    wide[:, :, top:top + x.shape[2], left:left + x.shape[3]] = x
    for c, r, s in np.ndindex(x.shape[1], kh, kw):
        yield (c, r, s), wide[:, c, r * dilation[0]:, s * dilation[1]:][:, ::stride[0], ::stride[1]][:, :height, :width]


def by_definition(x, w, b, g, stride, padding, dilation, groups):
    """y and the weight gradient as docs say them, one fused step after the other."""
    icg, ocg = x.shape[1] // groups, w.shape[0] // groups
    size, pad = g.shape[2:], padding
    y, dw = np.zeros(g.shape, np.float32), np.zeros(w.shape, np.float32)
    for group in range(groups):
        channels, outputs = slice(group * icg, (group + 1) * icg), slice(group * ocg, (group + 1) * ocg)
        for (c, r, s), seen in taps(x[:, channels], (size, w.shape[2:]), stride, pad, dilation):
            y[:, outputs] = fused(w[outputs, c, r, s][:, None, None], seen[:, None], y[:, outputs])
            for n in range(len(x)):
                chain = np.zeros(ocg, np.float32)
                for i in np.ndindex(size):
                    chain = fused(g[n, outputs][(slice(None), *i)], seen[n][i], chain)
                dw[outputs, c, r, s] = chain if n == 0 else dw[outputs, c, r, s] + chain
    db = np.add.accumulate(g.astype(np.float64).transpose(1, 0, 2, 3).reshape(w.shape[0], -1), axis=1)[:, -1].astype(np.float32)
    return y if b is None else y + b[:, None, None], dw, db


GEOMETRIES = [
    ((2, 3, 5, 7), (4, 3, 3, 3), {"padding": 1}),
    ((1, 5, 1, 9), (9, 5, 1, 4), {"padding": (0, 1, 0, 3)}),
    ((2, 4, 6, 5), (6, 2, 2, 3), {"groups": 2, "stride": (2, 1), "padding": (1, 2)}),
    ((1, 3, 7, 7), (6, 1, 3, 3), {"groups": 3, "padding": 2, "dilation": 2}),
    ((3, 2, 4, 4), (3, 2, 1, 1), {}),
    ((1, 3, 9, 8), (17, 3, 4, 5), {"stride": 3, "padding": (2, 0, 1, 1)}),
]


@pytest.mark.parametrize("shape,kernel,kwargs", GEOMETRIES)
@pytest.mark.parametrize("isa", table.available_isas())
def test_exact_bits_are_the_definition_s(isa, shape, kernel, kwargs):
    table.select_isa(isa)
    om.set_arithmetic("exact")
    table.set_smallest_piece(1)
    x, w, b = normal(0, *shape), normal(1, *kernel), normal(2, kernel[0])
    leaves = [leaf(a) for a in (x, w, b)]
    y = om.conv2d(*leaves, **kwargs)
    g = normal(3, *y.shape)
    y.backward(om.tensor(g))
    stride, dilation = numbers(kwargs.get("stride", 1)), numbers(kwargs.get("dilation", 1))
    padding = padding_of(kwargs.get("padding", 0), kernel[2:], dilation)
    expected = by_definition(x, w, b, g, stride, padding[:2], dilation, kwargs.get("groups", 1))
    for got, want, what in zip((y.detach(), leaves[1].grad, leaves[2].grad), expected, ("y", "dw", "db"), strict=True):
        np.testing.assert_array_equal(canonical(got.numpy()), canonical(want), err_msg=what)


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), mode=st.sampled_from(om.modes.MODES))
def test_the_transposed_has_the_bits_of_the_adjoint(data, mode):
    """conv_transpose2d of g is conv2d's gradient of x, and the gradients of the one are those of the other."""
    integers = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, k, s, d = integers(1, 2), (integers(1, 4), integers(1, 4)), (integers(1, 3), integers(1, 3)), (integers(1, 2), integers(1, 2))
    p = (integers(0, 2), integers(0, 2))
    h = [max(d[i] * (k[i] - 1) + 1 - 2 * p[i], 1) + integers(0, 5) for i in range(2)]
    x, w = leaf(normal(0, 2, groups * integers(1, 3), *h)), leaf(normal(1, groups * integers(1, 3), 1, *k))
    w = leaf(normal(1, w.shape[0], x.shape[1] // groups, *k))
    with om.arithmetic(mode):
        y = om.conv2d(x, w, None, s, p, d, groups)
        g = leaf(normal(2, *y.shape))
        y.backward(g.detach(), retain_graph=True)
        more = [h[i] - ((y.shape[i + 2] - 1) * s[i] - 2 * p[i] + d[i] * (k[i] - 1) + 1) for i in range(2)]
        if any(m < 0 or m >= max(s[i], d[i]) for i, m in enumerate(more)):
            return
        w2 = leaf(w.detach().numpy())
        z = om.conv_transpose2d(g, w2, None, s, p, tuple(more), groups, d)
        assert z.shape == x.shape and z.sha256() == x.grad.sha256()
        z.backward(x.detach())
        assert g.grad.sha256() == y.sha256()
        assert w2.grad.sha256() == w.grad.sha256()


def test_one_dimension_is_height_one(path):
    x, w, b = normal(0, 2, 6, 11), normal(1, 4, 3, 3), normal(2, 4)
    for kwargs in ({"padding": 2}, {"stride": 3, "padding": (0, 1)}, {"padding": "same", "dilation": 2}):
        flat, image = [leaf(a) for a in (x, w, b)], [leaf(a) for a in (x[:, :, None], w[:, :, None], b)]
        pad = kwargs["padding"]
        square = {**kwargs, "stride": (1, kwargs.get("stride", 1)), "dilation": (1, kwargs.get("dilation", 1)),
                  "padding": pad if pad == "same" else (0, *numbers(pad, 2)[:1], 0, numbers(pad, 2)[-1])}
        if pad == "same":
            square.pop("stride")
        y, z = om.conv1d(*flat, groups=2, **kwargs), om.conv2d(*image, groups=2, **square)
        assert y.detach().unsqueeze(2).sha256() == z.sha256()
        g = normal(3, *y.shape)
        y.backward(om.tensor(g))
        z.backward(om.tensor(g[:, :, None]))
        for a, c in zip(flat, image, strict=True):
            assert a.grad.reshape(*c.shape).sha256() == c.grad.sha256()


# -- memory ---------------------------------------------------------------------------------------------------------------------

VIEWS = {
    "channels": lambda t: t[:, 1:4], "images": lambda t: t[::2], "rows": lambda t: t[:, :, ::2], "crop": lambda t: t[:, :, 1:-1, 2:-1],
    "upside_down": lambda t: t.flip(2), "swapped": lambda t: t.transpose(0, 1), "stretched": lambda t: t[:1].expand(*t.shape),
    "rows_of_one": lambda t: t[:, :, :, 3:4], "backwards": lambda t: t.flip(3), "columns": lambda t: t[..., ::2], "turned": lambda t: t.transpose(2, 3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name, path):
    """The bits do not depend on where x lies; a view with contiguous rows is read where it is, without a copy."""
    view = VIEWS[name](om.tensor(normal(0, 4, 5, 9, 10)))
    w = normal(1, 3, view.shape[1], 3, 1 if view.shape[3] < 3 else 3)
    b = normal(2, 3)
    results = []
    for x in (view.clone(), view, view):
        leaves = [x.detach().requires_grad_(), leaf(w), leaf(b)]
        before = memory.pool_stats()
        y = om.conv2d(*leaves, padding=1)
        y.backward(om.tensor(normal(3, *y.shape)))
        requests = (memory.pool_stats() - before).requests
        results.append((requests, y.sha256(), *(t.grad.sha256() for t in leaves)))
    assert results[0][1:] == results[1][1:] == results[2][1:]
    copies = 2 if name in ("backwards", "columns", "turned") else 0  # one in forward, one for the weight gradient
    assert results[1][0] == results[0][0] + copies


@pytest.mark.parametrize("function,weight", [(om.conv2d, (3, 2, 3, 3)), (om.conv_transpose2d, (2, 3, 3, 3))])
def test_what_is_saved_is_what_backward_reads(function, weight):
    x, w, b = leaf(normal(0, 1, 2, 5, 5)), leaf(normal(1, *weight)), leaf(normal(2, 3))
    saved = lambda *inputs: [s is not None for s in function(*inputs).grad_fn.saved_tensors]  # noqa: E731
    assert saved(x, w, b) == [True, True]
    assert saved(x, w.detach(), b) == [False, True]
    assert saved(x.detach(), w, b) == [True, False]
    assert saved(x.detach(), w.detach(), b) == [False, False]
    assert function(x.detach(), w.detach()).grad_fn is None
    y = function(x.detach(), w.detach(), b)
    y.backward(om.ones(*y.shape))
    assert b.grad.tolist() == [y.numel() / 3] * 3 and x.grad is None and w.grad is None
    (only,) = om.grad(function(x, w, b).sum(), [w])
    whole_pass = leaf(w.detach().numpy())
    function(x.detach(), whole_pass, b).sum().backward()
    assert only.sha256() == whole_pass.grad.sha256() and x.grad is None


@pytest.mark.parametrize("function,weight", [(om.conv2d, (3, 2, 3, 3)), (om.conv_transpose2d, (2, 3, 3, 3))])
def test_a_changed_operand_is_found(function, weight):
    for changed in range(2):
        leaves = [leaf(normal(0, 1, 2, 5, 5)), leaf(normal(1, *weight))]
        y = function(*leaves)
        with om.no_grad():
            leaves[changed].mul_(2)
        with pytest.raises(om.TensorVersionError, match=function.__name__):
            y.sum().backward()
        assert leaves[0].grad is None and leaves[1].grad is None


def test_a_warm_step_allocates_nothing(path):
    leaves = [leaf(normal(0, 2, 4, 12, 13)), leaf(normal(1, 6, 2, 3, 3)), leaf(normal(2, 6)), leaf(normal(3, 6, 2, 4, 4))]

    def step():
        y = om.conv2d(*leaves[:3], padding=1, groups=2)
        om.conv_transpose2d(y, leaves[3], stride=2).sum().backward()
        for t in leaves:
            t.grad = None

    for _ in range(3):
        step()
    before = memory.pool_stats()
    for _ in range(3):
        step()
    change = memory.pool_stats() - before
    assert (change.native_allocations, change.outstanding_blocks) == (0, 0)


def test_memory_that_runs_out_is_an_error_and_comes_back():
    x, w = leaf(normal(0, 2, 4, 64, 64)), leaf(normal(1, 8, 4, 3, 3))
    y = om.conv2d(x, w, padding=1)
    before = memory.pool_stats()
    try:
        pool.pool_trim()
        om.set_pool_limit(before.outstanding_bytes + 1000)
        with pytest.raises(MemoryError):
            om.conv2d(x, w, padding=1)
        with pytest.raises(MemoryError):
            y.sum().backward()
        with pytest.raises(MemoryError):
            om.conv_transpose2d(y.detach(), w, padding=1)
    finally:
        om.set_pool_limit(None)
    del y
    assert memory.pool_stats().outstanding_bytes <= before.outstanding_bytes
    om.conv2d(x, w, padding=1).sum().backward()
    assert x.grad.shape == x.shape


# -- sizes of 0, and arguments in all their forms -------------------------------------------------------------------------------


def test_nothing_in_gives_nothing_out(path):
    x, w, b = leaf(np.zeros((0, 3, 5, 6))), leaf(normal(1, 4, 3, 3, 3)), leaf(normal(2, 4))
    y = om.conv2d(x, w, b)
    assert y.shape == (0, 4, 3, 4)
    y.sum().backward()
    assert x.grad.shape == x.shape and not w.grad.numpy().any() and b.grad.tolist() == [0.0] * 4
    x, w, b = leaf(np.zeros((0, 4, 5, 6))), leaf(normal(1, 4, 3, 3, 3)), leaf(normal(2, 3))
    y = om.conv_transpose2d(x, w, b, stride=2)
    assert y.shape == (0, 3, 11, 13)
    y.sum().backward()
    assert x.grad.shape == x.shape and not w.grad.numpy().any() and b.grad.tolist() == [0.0] * 3
    assert om.conv2d(om.zeros(0, 1, 0, 2), om.ones(2, 1, 3, 3), padding=2).shape == (0, 2, 2, 4)


def test_a_sum_over_no_channels_is_0_and_the_bias(path):
    """torch gives a result without channels here, which its own weight contradicts."""
    x, w, b = leaf(np.zeros((2, 0, 3, 4))), leaf(np.zeros((3, 0, 2, 2))), leaf([1.0, -0.0, 3.0])
    y = om.conv2d(x, w, b)
    assert y.shape == (2, 3, 2, 3) and [y.tolist()[1][c][0][0] for c in range(3)] == [1.0, 0.0, 3.0]
    assert not np.signbit(y.detach().numpy()).any()  # +0 + -0
    y.sum().backward()
    assert b.grad.tolist() == [12.0] * 3 and x.grad.shape == x.shape and w.grad.shape == w.shape
    assert om.conv2d(x.detach(), w.detach()).tolist() == np.zeros((2, 3, 2, 3)).tolist()


def test_empty_images_are_refused():
    for shape in ((1, 1, 0, 4), (1, 1, 4, 0), (1, 0, 4)):
        for function in (om.conv2d, om.conv_transpose2d):
            with pytest.raises(om.ShapeError, match="the image is empty"):
                function(om.zeros(*shape), om.ones(1, 1, 1, 1), padding=2)


def test_forms_of_parameters():
    x, w = om.tensor(normal(0, 1, 2, 7, 7)), om.tensor(normal(1, 2, 1, 3, 3))
    usual = om.conv2d(x, w, None, 2, 1, 2, 2).sha256()
    for two, one in ((np.int64(2), np.uint8(1)), ((2, 2), (1, 1)), ([2, np.int32(2)], [1]), ((2,), (1, 1, 1, 1)), ([2], [1, 1, 1, 1])):
        assert om.conv2d(x, w, None, two, one, two, np.int16(2)).sha256() == usual
    assert om.conv2d(x, w, padding="valid", groups=2).sha256() == om.conv2d(x, w, groups=2).sha256()
    even = om.tensor(normal(1, 2, 1, 4, 2))
    assert om.conv2d(x, even, padding="same", groups=2).sha256() == om.conv2d(x, even, padding=(1, 0, 2, 1), groups=2).sha256()
    assert om.conv1d(x[:, :, 0], w[:, :, 0], padding=(2, 1), groups=2).shape == om.conv1d(x[0, :, 0], w[:, :, 0], padding=[2, 1], groups=2).unsqueeze(0).shape == (1, 2, 8)


def test_sizes_beyond_any_memory():
    """Checked before anything is taken: sizes whose products, or whose bytes, do not fit 64 bits."""
    top = 2**31 - 1
    x, w, one = om.ones(1, 1, 3, 3), om.ones(1, 1, 3, 3), om.ones(1)
    start = time.process_time()
    before = memory.pool_stats()
    for function, kwargs in (
        (om.conv2d, {"padding": top}), (om.conv2d, {"padding": top, "stride": top}), (om.conv2d, {"padding": (0, top, top, 0), "stride": top}),
        (om.conv2d, {"dilation": top}), (om.conv2d, {"padding": top, "dilation": top}), (om.conv2d, {"padding": "same", "dilation": top}),
        (om.conv_transpose2d, {"stride": top}), (om.conv_transpose2d, {"dilation": top}), (om.conv_transpose2d, {"padding": top}),
        (om.conv_transpose2d, {"stride": top, "dilation": top, "output_padding": top - 1}),
    ):
        with pytest.raises(om.ShapeError):
            function(x, w, **kwargs)
    for shape in ((1, 2**40, 3, 3), (1, 1, 2**33, 3), (2**40, 1, 2**31 + 1, 1)):
        with pytest.raises((om.ShapeError, MemoryError)):
            om.conv2d(one.expand(*shape), w)
    with pytest.raises((om.ShapeError, MemoryError)):
        om.conv2d(x, one.expand(1, 1, 2**32, 3))
    with pytest.raises((om.ShapeError, MemoryError)):
        om.conv_transpose2d(x, one.expand(1, 2**30, 3, 3), groups=1)
    with pytest.raises((om.ShapeError, MemoryError)):
        om.conv2d(one.expand(2**50, 1, 3, 3), w)
    change = memory.pool_stats() - before
    assert change.outstanding_blocks == 0 and time.process_time() - start < 1


@pytest.mark.parametrize("far", [10**5, 2**31 - 1])
def test_taps_far_outside_take_no_memory(path, far):
    """Only the middle tap meets the image: no engine may make the padded image, which would have gigabytes."""
    om.set_pool_limit(4 << 20)
    try:
        for shape, kernel, kwargs in (
            ((1, 2, 3, 3), (4, 2, 3, 3), {"padding": (1, far), "dilation": (1, far)}), ((1, 4, 3, 3), (4, 1, 3, 3), {"padding": (far, 1), "dilation": (far, 1), "groups": 4}),
            ((1, 2, 3, 3), (4, 2, 3, 3), {"padding": (far, 1), "stride": (far, 1)}), ((2, 2, 1, 3), (2, 2, 1, 3), {"padding": (0, far), "stride": (1, far)}),
        ):
            x, w = om.ones(*shape).requires_grad_(), om.ones(*kernel).requires_grad_()
            y = om.conv2d(x, w, **kwargs)
            y.backward(om.ones(*y.shape))
            assert y.sum().item() == x.grad.sum().item() == w.grad.sum().item() > 0
            assert np.isfinite(y.detach().numpy()).all()
        x, w = om.ones(1, 1, 1, 3).requires_grad_(), om.ones(1, 1, 1, 3).requires_grad_()
        y = om.conv_transpose2d(x, w, dilation=(1, far), padding=(0, far))
        y.sum().backward()
        assert y.tolist() == [[[[1.0] * 3]]] and x.grad.tolist() == [[[[1.0] * 3]]] and w.grad.tolist() == [[[[0.0, 3.0, 0.0]]]]
    finally:
        om.set_pool_limit(None)
