"""Owns the differential tests against PyTorch: shapes, strides, broadcasts and extreme values made by hypothesis, forward and gradient.

An operator is compared with the torch function of its name; where names differ, the table PEERS says so. Needs torch.
"""

import importlib.util

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import onemodel as om
from onemodel import samples
from onemodel.ops import OPS
from onemodel.registry import FUNCTIONS, rules

pytestmark = pytest.mark.oracle
if importlib.util.find_spec("torch") is not None:
    import torch
    import torch.nn.functional as F
else:  # conftest skips every test here; the sister files still import the names
    torch = F = None

EPS = 2.0**-23
few = settings(max_examples=settings().max_examples // 4)  # per operator and mode; --full makes it a hundred and more


def scalars_first(function):
    """torch's maximum and its kin take tensors only."""
    return lambda a, b: function(*(x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64) for x in (a, b)))


def torch_slice(x, dim=0, start=None, end=None, step=1):
    return x[(slice(None),) * (dim % max(x.ndim, 1)) + (slice(start, end, step),)]


def torch_index(x, key):
    """A list of lists is one index tensor here; torch still reads it as a tuple."""
    def index(part):
        return torch.as_tensor(np.array(part, bool if np.asarray(part).dtype == bool else np.int64)) if isinstance(part, (list, np.ndarray)) else part

    return x[tuple(index(part) for part in key) if isinstance(key, tuple) else index(key)]


def torch_reduce(function):
    def reduce(x, dim=None, keepdim=False):
        dims = tuple(range(x.ndim)) if dim is None else dim
        return function(x, dims, keepdim=keepdim)

    return reduce


def torch_saturating_cast(x, dtype):
    """torch leaves a float out of range undefined, so only values in range go there."""
    if np.dtype(dtype) == np.uint8:
        x = x.clamp(0, 255)
    return x.to({"float32": torch.float32, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8, "bool": torch.bool}[np.dtype(dtype).name])


def torch_conv(name):
    """Two paddings per dimension are a pad of the input, or a crop of what is transposed, in torch."""
    def call(input, weight, bias=None, stride=1, padding=0, *args, **kwargs):
        spatial = int(name[-2])
        if isinstance(padding, int) or isinstance(padding, str) or len(padding) <= spatial:
            return getattr(F, name)(input, weight, bias, stride, padding, *args, **kwargs)
        around = [v for side in zip(padding[:spatial][::-1], padding[spatial:][::-1], strict=True) for v in side]
        if name == "conv_transpose2d":
            return F.pad(F.conv_transpose2d(input, weight, bias, stride, 0, *args, **kwargs), [-v for v in around])
        return getattr(F, name)(F.pad(input, around), weight, bias, stride, 0, *args, **kwargs)

    return call


def torch_stage(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, kernel_size=2, pool_stride=None, pool_padding=0, pool_dilation=1,
                ceil_mode=False):
    y = torch_conv("conv2d")(x, weight, bias, stride, padding, dilation, groups)
    return F.relu(F.max_pool2d(y, kernel_size, pool_stride, pool_padding, pool_dilation, ceil_mode))


def torch_self_attention(input, num_heads, attn_mask=None, is_causal=False):
    n, length, columns = input.shape
    q, k, v = input.reshape(n, length, 3, num_heads, columns // (3 * num_heads)).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal)
    return y.transpose(1, 2).flatten(2)


def peers():
    return {
        "conv_relu_pool2d": torch_stage, "self_attention": torch_self_attention,
        **{name: torch_conv(name) for name in ("conv1d", "conv2d", "conv_transpose2d")},
        "index": torch_index, "slice": torch_slice, "cast": torch_saturating_cast, "maximum": scalars_first(torch.maximum),
        "minimum": scalars_first(torch.minimum), "sum": torch_reduce(torch.sum), "mean": torch_reduce(torch.mean), "amax": torch_reduce(torch.amax),
        "amin": torch_reduce(torch.amin), "logsumexp": torch_reduce(torch.logsumexp), "square": torch.square, "contiguous": lambda x: x.contiguous(),
        "expand": lambda x, *s: x.expand(*s), "clone": lambda x: x.clone(), "permute": lambda x, *d: x.permute(*d), "relu": torch.relu,
        "reshape": lambda x, *s: x.reshape(*s), "flip": lambda x, *d: x.flip(*d), "sigmoid": torch.sigmoid, "tanh": torch.tanh, "squeeze": torch_squeeze,
        "dropout": torch_dropout, "lstm_layer": torch_layer(torch.lstm, 4), "gru_layer": torch_layer(torch.gru, 3), "ctc_loss": torch_ctc,
        "global_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
        "pad": lambda x, pad, **more: F.pad(x, tuple(int(n) for n in pad), **more),
    }


def torch_layer(run, gates):
    """One direction of one layer, with zeros where a bias or a state is not given; torch.lstm and torch.gru take flat weights."""
    def call(x, w_ih, w_hh, b_ih=None, b_hh=None, h0=None, c0=None, reverse=False):
        def zeros(*shape):
            return torch.zeros(shape, dtype=x.dtype)

        hidden = w_hh.shape[1]
        flat = [w_ih, w_hh, *(zeros(gates * hidden) if b is None else b for b in (b_ih, b_hh))]
        states = [(zeros(x.shape[1], hidden) if h is None else h)[None] for h in (h0, c0)]
        y = run(x.flip(0) if reverse else x, states if gates == 4 else states[0], flat, True, 1, 0.0, False, False, False)[0]
        return y.flip(0) if reverse else y

    return call


def torch_ctc(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """torch's gradient has e^log_probs on every used frame besides the true one: a term of value 0 takes it away."""
    inputs, labels = (torch.as_tensor(n) for n in (input_lengths, target_lengths))
    loss = F.ctc_loss(log_probs, targets, inputs, labels, blank, "none", zero_infinity)
    p = torch.exp(log_probs if log_probs.ndim == 3 else log_probs[:, None])
    used = torch.arange(p.shape[0])[:, None] < inputs.reshape(1, -1)
    term = ((p - p.detach()).sum(-1) * used).sum(0).reshape(loss.shape)
    loss = loss - torch.where((loss == 0) & zero_infinity | loss.isinf(), 0.0, term)
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else (loss / labels.clamp(min=1)).mean()


def torch_dropout(x, p=0.5, training=True, generator=None):
    """torch's own generator gives other zeros; with the same ones its arithmetic is a product."""
    if not training or p == 0:
        return F.dropout(x, p, training)
    kept = om.dropout(om.ones(x.shape), p, generator=generator).numpy() > 0
    return torch.where(torch.from_numpy(np.asarray(kept)), x / (1 - p) if p < 1 else 0 * x, torch.zeros((), dtype=x.dtype))


def torch_squeeze(x, dim=None):
    return x.squeeze() if dim is None else x.squeeze(dim)


def peer(name):
    found = peers().get(name) or getattr(F, name, None) or getattr(torch, name, None)
    assert found is not None, f"{name}: torch has no function of this name; say in peers() what to compare it with"
    return found


def to_torch(t):
    """The same values as a contiguous leaf (torch's nll_loss goes backward for no other), in float64: torch's own float32 rounding
    (its gelu cancels at -4) is not the question."""
    array = t.detach().numpy()
    return torch.from_numpy(array.astype(np.float64 if array.dtype == np.float32 else array.dtype, order="C")).requires_grad_(t.requires_grad)


def swapped(value, table):
    if isinstance(value, om.Tensor):
        return table[id(value)]
    if isinstance(value, (list, tuple)) and any(isinstance(v, om.Tensor) for v in value):
        return type(value)(swapped(v, table) for v in value)
    return value


def close(ours, theirs, tolerance, what, floor=1e-37):
    ours = np.array(ours.detach().numpy())
    theirs = theirs.detach().numpy()
    with np.errstate(over="ignore"):
        theirs = theirs.astype(np.float32) if theirs.dtype == np.float64 else theirs
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, torch {theirs.shape}"
    if ours.dtype != np.float32:
        assert np.array_equal(ours, theirs), what
        return
    finite = np.isfinite(theirs)
    same = np.array_equal(np.isfinite(ours), finite) and np.array_equal(ours[~finite], theirs[~finite], equal_nan=True)
    assert same, f"{what}: {ours.tolist()} where torch has {theirs.tolist()}"
    a, b = ours[finite].astype(float), theirs[finite].astype(float)
    worst = np.abs(a - b).max(initial=0)
    assert worst <= tolerance * EPS * np.abs(b).max(initial=0) + floor, f"{what}: {ours.tolist()} where torch has {theirs.tolist()}"


def compare(name, function, torch_function, args, kwargs=None, tolerance=16.0, gradient=True):
    """Ours and torch's on the same values: results, and the gradients of Σ W·y."""
    kwargs = kwargs or {}
    leaves = [t for t in found_tensors([*args, *kwargs.values()])]
    table = {id(t): to_torch(t) for t in leaves}
    ours = samples.outputs(function(*args, **kwargs))
    theirs = torch_function(*(swapped(a, table) for a in args), **{k: swapped(v, table) for k, v in kwargs.items()})
    theirs = [theirs] if isinstance(theirs, torch.Tensor) else theirs
    for y, z in zip(ours, theirs, strict=True):
        close(y, z, tolerance, name)
        assert y.requires_grad == z.requires_grad, f"{name}: requires_grad {y.requires_grad}, torch {z.requires_grad}"
    if not gradient or not ours[0].requires_grad:
        return
    weights = [samples.weights(y, number) for number, y in enumerate(ours)]
    sum((y * om.tensor(w)).sum() for y, w in zip(ours, weights, strict=True)).backward()
    sum((z * torch.from_numpy(w)).sum() for z, w in zip(theirs, weights, strict=True)).backward()
    for number, t in enumerate(leaves):
        if t.requires_grad:
            want = table[id(t)].grad
            assert (t.grad is None) == (want is None), f"{name}: gradient of input {number}"
            if want is not None:
                close(t.grad, want, 4 * tolerance, f"{name}, gradient of input {number} for {args} {kwargs}", floor=4 * EPS)


def found_tensors(values):
    for v in values:
        if isinstance(v, om.Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from found_tensors(v)


SAMPLES = [(name, s) for name, s in samples.cases()]
# What torch refuses to compute: no channels, a padding beyond half the kernel before it is dilated, an output without a pixel.
REFUSED = {("conv_relu_pool2d", "no_channels"), ("max_pool2d", "no_channels"), ("max_pool2d", "dilated"), ("max_pool2d", "dilated_far"), ("max_pool1d", "dilated"),
           ("avg_pool2d", "no_channels"), ("adaptive_avg_pool2d", "nothing"), ("adaptive_max_pool2d", "nothing")}


@pytest.mark.parametrize("name,sample", SAMPLES, ids=[f"{name}-{s.name}" for name, s in SAMPLES])
def test_sample(name, sample):
    """Every sample of the registry: what our own reference says, torch says too."""
    call = samples.call_of(name, sample)
    if (name, sample.name) in REFUSED:
        with pytest.raises(RuntimeError):
            compare(name, call.function, peer(name), call.args, call.kwargs)
        return
    compare(name, call.function, peer(name), call.args, call.kwargs, max(16.0, sample.tolerance), gradient=sample.gradcheck)


# -- what hypothesis makes ------------------------------------------------------------------------------------------------------

ORDINARY = st.floats(-4, 4, width=32).filter(lambda v: abs(v) > 1e-3)
EXTREME = st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.8, -104.5,
                           1e-8, 16777217.0, 0.5, 1.0, -1.0])
LAYOUTS = st.sampled_from(["plain", "transposed", "strided", "flipped"])
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def tensors(draw, shape=None, extreme=False, stretch=True):
    """A leaf of random shape, layout and values; sizes of 1 may be stretched by stride 0."""
    shape = draw(SHAPES) if shape is None else shape
    n = int(np.prod(shape))
    values = draw(st.lists(st.one_of(ORDINARY, EXTREME) if extreme else ORDINARY, min_size=n, max_size=n))
    array = np.array(values, np.float32).reshape(shape)
    layout = draw(LAYOUTS)
    if layout == "transposed":
        t = om.tensor(array.T).T
    elif layout == "strided" and shape:
        t = om.tensor(np.repeat(array, 2, axis=-1))[..., ::2]
    elif layout == "flipped" and shape:
        t = om.tensor(array[..., ::-1].copy()).flip(-1)
    else:
        t = om.tensor(array)
    return t.requires_grad_()


@st.composite
def broadcast_pairs(draw, extreme=False):
    """Two leaves whose shapes broadcast: sizes dropped to 1 or left out in front."""
    full = draw(SHAPES)

    def reduced():
        shape = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in full)
        return shape[draw(st.integers(0, len(shape))):] if shape and draw(st.booleans()) else shape

    return draw(tensors(shape=reduced(), extreme=extreme)), draw(tensors(shape=reduced(), extreme=extreme))


MAPS = {name: rules(op)[0] for name, op in OPS.items() if type(next(iter(rules(op)), None)).__name__ == "Map"}
UNARY = [name for name, rule in MAPS.items() if len(rule.words.split()) == 2]
BINARY = [name for name, rule in MAPS.items() if rule.words.split()[1:] == ["a", "b"]]  # the second input of others is a number
MODES = st.sampled_from(["fast", "exact"])


@pytest.mark.parametrize("name", UNARY)
@few
@given(x=tensors(), mode=MODES)
def test_unary(name, x, mode):
    with om.arithmetic(mode):
        compare(name, FUNCTIONS[name], peer(name), [x], tolerance=32)


@pytest.mark.parametrize("name", UNARY)
@few
@given(x=tensors(shape=(7,), extreme=True), mode=MODES)
def test_unary_extreme(name, x, mode):
    """One element at a time: a large value must not hide the error of a small one."""
    with om.arithmetic(mode):
        for i in range(7):
            one = x.detach()[i:i + 1].clone().requires_grad_()
            if str(one.item()) not in OURS.get(name, ()):
                compare(name, FUNCTIONS[name], peer(name), [one], tolerance=32)


# Where these operators define otherwise than torch: gelu, silu and their slopes have limits at the infinities (torch: inf·0), relu's slope is 0 at NaN.
OURS = {"gelu": ["-inf", "inf"], "silu": ["-inf", "inf"], "relu": ["nan"]}


@pytest.mark.parametrize("name", BINARY)
@few
@given(pair=broadcast_pairs(), mode=MODES)
def test_binary(name, pair, mode):
    if name == "pow":
        pair = (om.tensor(np.abs(pair[0].detach().numpy())).requires_grad_(), pair[1])
    with om.arithmetic(mode):
        compare(name, FUNCTIONS[name], peer(name), pair, tolerance=64)


@pytest.mark.parametrize("name", BINARY)
@few
@given(pair=st.tuples(tensors(shape=(7,), extreme=True), tensors(shape=(7,), extreme=True)), mode=MODES)
def test_binary_extreme(name, pair, mode):
    with om.arithmetic(mode):
        for i in range(7):
            compare(name, FUNCTIONS[name], peer(name), [t.detach()[i:i + 1] for t in pair], tolerance=64)


@pytest.mark.parametrize("name", BINARY)
@few
@given(x=tensors(), scalar=ORDINARY, left=st.booleans())
def test_binary_scalar(name, x, scalar, left):
    if name == "pow":
        x, scalar = om.tensor(np.abs(x.detach().numpy())).requires_grad_(), abs(scalar)
    compare(name, FUNCTIONS[name], peer(name) if name in ("maximum", "minimum") else with_scalars(peer(name)), [scalar, x] if left else [x, scalar], tolerance=64)


def with_scalars(function):
    """torch's comparisons want the tensor on the left; the scalar as a float32 tensor means the same."""
    return lambda a, b: function(*(v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=torch.float64) for v in (a, b)))


@few
@given(data=st.data(), mode=MODES)
def test_where_and_clamp(data, mode):
    a, b = data.draw(broadcast_pairs(extreme=True))
    condition = om.tensor(np.arange(int(np.prod(np.broadcast_shapes(a.shape, b.shape)))).reshape(np.broadcast_shapes(a.shape, b.shape)) % 3 == 0)
    with om.arithmetic(mode):
        compare("where", om.where, torch.where, [condition, a, b])
        low, high = sorted(data.draw(st.tuples(ORDINARY, ORDINARY)))
        compare("clamp", om.clamp, torch.clamp, [a.detach().requires_grad_()], {"min": low, "max": high})
        compare("clamp", om.clamp, torch.clamp, [b.detach().requires_grad_()], {"min": low})


REDUCTIONS = ["sum", "mean", "amax", "amin", "logsumexp"]


@pytest.mark.parametrize("name", REDUCTIONS)
@few
@given(x=tensors(), data=st.data(), keepdim=st.booleans(), mode=MODES)
def test_reductions(name, x, data, keepdim, mode):
    dims = data.draw(st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim)) if x.ndim else []
    dim = tuple(d - x.ndim if d % 2 else d for d in dims) or None
    empty = any(n == 0 for i, n in enumerate(x.shape) if not dims or i in dims)
    if name in ("amax", "amin") and empty:
        with pytest.raises(ValueError):
            FUNCTIONS[name](x, dim, keepdim)
        return
    with om.arithmetic(mode):
        if name == "logsumexp" and dim is None:
            dim = tuple(range(x.ndim))
        compare(name, FUNCTIONS[name], peer(name), [x], {"dim": dim, "keepdim": keepdim}, tolerance=256)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
@few
@given(x=tensors(shape=(3, 4), extreme=True), dim=st.sampled_from([None, 0, 1, (0, 1)]), mode=MODES)
def test_reductions_extreme(name, x, dim, mode):
    if name in ("sum", "mean"):  # a sum of values that cancel has the error of the largest: powers of two apart they are exact
        array = x.detach().numpy()
        x = om.tensor(np.where(np.isfinite(array), np.sign(array), array)).requires_grad_()
    with om.arithmetic(mode):
        # A NaN takes the gradient here; torch makes all of it NaN.
        compare(name, FUNCTIONS[name], peer(name), [x], {"dim": dim}, tolerance=64, gradient=not np.isnan(x.detach().numpy()).any())


@few
@given(x=tensors(shape=(3, 4), extreme=True), dim=st.sampled_from([None, 0, 1, -1]), keepdim=st.booleans())
def test_argmax(x, dim, keepdim):
    """Equal largest elements: ours is the first, torch's any."""
    array = x.detach().numpy()
    top = np.where(np.isnan(array), np.inf, array)
    if not np.isnan(array).any():
        compare("argmax", om.argmax, lambda x, dim, keepdim: torch.from_numpy(np.asarray(np.argmax(top, dim, keepdims=keepdim))),
                [x.detach()], {"dim": dim, "keepdim": keepdim})
    else:
        assert np.isnan(array.reshape(-1)[om.argmax(x).item()])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@few
@given(x=tensors(), data=st.data(), mode=MODES)
def test_softmax(name, x, data, mode):
    dim = data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
    with om.arithmetic(mode):
        compare(name, FUNCTIONS[name], peer(name), [x, dim], tolerance=64)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@few
@given(x=tensors(shape=(3, 4), extreme=True), dim=st.sampled_from([0, 1]), mode=MODES)
def test_softmax_extreme(name, x, dim, mode):
    with om.arithmetic(mode):
        compare(name, FUNCTIONS[name], peer(name), [x, dim], tolerance=64, gradient=False)


SIZES = st.integers(0, 6)


@few
@given(data=st.data(), m=SIZES, k=SIZES, n=SIZES, batch=st.lists(st.integers(0, 3), max_size=2), mode=MODES)
def test_matmul(data, m, k, n, batch, mode):
    def lead():
        shape = tuple(1 if data.draw(st.booleans()) else b for b in batch)
        return shape[data.draw(st.integers(0, len(shape))):]

    a = data.draw(tensors(shape=data.draw(st.sampled_from([(k,), (*lead(), m, k)]))))
    b = data.draw(tensors(shape=data.draw(st.sampled_from([(k,), (*lead(), k, n)]))))
    with om.arithmetic(mode):
        compare("matmul", om.matmul, torch.matmul, [a, b], tolerance=64)


@few
@given(data=st.data(), lead=st.lists(st.integers(0, 4), max_size=3), i=SIZES, o=SIZES, bias=st.booleans(), mode=MODES)
def test_linear(data, lead, i, o, bias, mode):
    args = [data.draw(tensors(shape=(*lead, i))), data.draw(tensors(shape=(o, i)))]
    args += [data.draw(tensors(shape=(o,)))] if bias else []
    with om.arithmetic(mode):
        compare("linear", om.linear, F.linear, args, tolerance=64)


@few
@given(data=st.data(), stacked=st.booleans())
def test_joins(data, stacked):
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape) - stacked, len(shape) - 1 + stacked))
    parts = []
    for _ in range(data.draw(st.integers(1, 4))):
        one = list(shape)
        if not stacked:
            one[dim] = data.draw(st.integers(0, 3))
        parts.append(data.draw(tensors(shape=tuple(one), extreme=True)))
    name = "stack" if stacked else "cat"
    compare(name, FUNCTIONS[name], getattr(torch, name), [parts], {"dim": dim})


@few
@given(data=st.data())
def test_chains_of_views(data):
    """Some view operators in a row, as both libraries see them."""
    x = data.draw(tensors())
    steps = []
    shape = x.shape
    for _ in range(data.draw(st.integers(1, 5))):
        probe = torch.empty(shape)
        kind = data.draw(st.sampled_from(["permute", "reshape", "slice", "select", "flip", "unsqueeze", "squeeze", "expand", "flatten", "transpose"]))
        rank = len(shape)
        if kind == "permute":
            arguments = (tuple(data.draw(st.permutations(range(rank)))),)
        elif kind == "reshape":
            arguments = (data.draw(st.sampled_from([shape[::-1], (probe.numel(),), (1, *shape), (*shape, 1)])),)
        elif kind == "unsqueeze":
            arguments = (data.draw(st.integers(-rank - 1, rank)),)
        elif kind == "expand":
            arguments = ((data.draw(st.integers(0, 3)), *(data.draw(st.integers(0, 3)) if n == 1 else n for n in shape)),)
        elif rank == 0:
            continue
        elif kind == "slice":
            bounds = st.one_of(st.none(), st.integers(-7, 7))
            arguments = (data.draw(st.integers(-rank, rank - 1)), data.draw(bounds), data.draw(bounds), data.draw(st.integers(1, 3)))
        elif kind == "select":
            dim = data.draw(st.integers(0, rank - 1))
            if shape[dim] == 0:
                continue
            arguments = (dim, data.draw(st.integers(-shape[dim], shape[dim] - 1)))
        elif kind in ("flip", "squeeze"):
            arguments = (data.draw(st.integers(-rank, rank - 1)),)
        elif kind == "transpose":
            arguments = (data.draw(st.integers(-rank, rank - 1)), data.draw(st.integers(-rank, rank - 1)))
        else:
            first, last = sorted(data.draw(st.tuples(st.integers(0, rank - 1), st.integers(0, rank - 1))))
            arguments = (first, last)
        shape = tuple(peer(kind)(probe, *arguments).shape)
        if len(shape) > 8 or int(np.prod(shape)) > 2000:
            break
        steps.append((kind, arguments))

    def run(functions):
        def chain(t):
            for kind, arguments in steps:
                t = functions(kind)(t, *arguments)
            return t * 1.0

        return chain

    compare(f"views {steps}", run(lambda kind: FUNCTIONS[kind]), run(peer), [x])


@few
@given(data=st.data())
def test_indexing(data):
    x = data.draw(tensors(shape=data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))))
    key = []
    many = False
    for size in x.shape[:data.draw(st.integers(1, x.ndim))]:
        kind = data.draw(st.sampled_from(["int", "slice", "list", "none"]))
        if kind == "int":
            key.append(data.draw(st.integers(-size, size - 1)))
        elif kind == "list" and not many:
            many = True
            key.append(data.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=6)))
        else:
            key.append(slice(data.draw(st.one_of(st.none(), st.integers(-6, 6))), data.draw(st.one_of(st.none(), st.integers(-6, 6))), data.draw(st.integers(1, 3))))
        if kind == "none":
            key.append(None)
    if many and any(isinstance(k, int) for k in key):
        key = [slice(k, k + 1) if isinstance(k, int) and k != -1 else slice(-1, None) if isinstance(k, int) else k for k in key]
    compare(f"index {key}", om.index, torch_index, [x, tuple(key)])


@few
@given(data=st.data(), reduction=st.sampled_from(["none", "sum", "mean"]), ignore=st.sampled_from([-100, 1]), weighted=st.booleans(), mode=MODES)
@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_class_losses(name, data, reduction, ignore, weighted, mode):
    shape = data.draw(st.sampled_from([(4,), (3, 4), (1, 2), (2, 3, 2), (2, 3, 2, 2), (0, 3)]))
    classes = shape[0] if len(shape) == 1 else shape[1]
    rest = shape[:0] if len(shape) == 1 else (shape[0], *shape[2:])
    n = int(np.prod(rest))
    chosen = data.draw(st.lists(st.sampled_from([*range(classes), ignore]), min_size=n, max_size=n))
    target = om.tensor(np.array(chosen, np.int64).reshape(rest))
    options = {"ignore_index": ignore, "reduction": reduction}
    if weighted:
        options["weight"] = om.tensor(np.linspace(0.5, 2, classes, dtype=np.float32))
    x = data.draw(tensors(shape=shape))
    all_ignored = n == 0 or all(c == ignore for c in chosen)
    with om.arithmetic(mode):
        compare(name, FUNCTIONS[name], peer(name), [x, target], options, tolerance=64, gradient=not (all_ignored and reduction == "mean"))


@few
@given(pair=st.data(), reduction=st.sampled_from(["none", "sum", "mean"]), mode=MODES)
def test_mse_loss(pair, reduction, mode):
    shape = pair.draw(SHAPES)
    with om.arithmetic(mode):
        compare("mse_loss", om.mse_loss, F.mse_loss, [pair.draw(tensors(shape=shape)), pair.draw(tensors(shape=shape))], {"reduction": reduction}, tolerance=64)


def test_a_planted_difference_is_found():
    x = om.tensor([1.0, 2.0]).requires_grad_()
    with pytest.raises(AssertionError, match="where torch has"):
        compare("exp", lambda t: t.exp() * 1.00001, torch.exp, [x])
    with pytest.raises(AssertionError, match="gradient of input 0"):
        compare("square", lambda t: t * t.detach(), torch.square, [x])
    with pytest.raises(AssertionError, match="shape"):
        compare("sum", lambda t: t.sum(0, keepdim=True), torch.sum, [x])
