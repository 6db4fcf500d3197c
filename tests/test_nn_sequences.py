"""Owns the tests of the layers for sequences: LSTM, GRU, MultiheadAttention, the transformer encoder and CTCLoss; torch is asked in those marked oracle."""

import copy
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onemodel as om
from onemodel import nn
from onemodel.errors import ShapeError


@pytest.fixture(autouse=True)
def seed():
    om.manual_seed(0)


def normal(*shape, k=0):
    return om.tensor(np.random.default_rng(k).normal(size=shape).astype(np.float32))


# -- parameters and first values --


@pytest.mark.parametrize(("name", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_parameters_are_torchs(name, gates):
    layer = getattr(nn, name)(5, 8, num_layers=2, bidirectional=True)
    names = [f"{part}_l{k}{end}" for k in (0, 1) for end in ("", "_reverse") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    assert list(layer.state_dict()) == names
    shapes = {key: p.shape for key, p in layer.named_parameters()}
    assert shapes["weight_ih_l0"] == (8 * gates, 5) and shapes["weight_ih_l1_reverse"] == (8 * gates, 16) and shapes["bias_hh_l1"] == (8 * gates,)
    values = np.concatenate([p.detach().numpy().ravel() for p in layer.parameters()])
    assert np.abs(values).max() <= 1 / math.sqrt(8) and abs(values.std() * math.sqrt(3 * 8) - 1) < 0.05
    assert list(getattr(nn, name)(5, 8, bias=False).state_dict()) == ["weight_ih_l0", "weight_hh_l0"]


def test_attention_parameters_are_torchs():
    layer = nn.MultiheadAttention(12, 3)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {
        "in_proj_weight": (36, 12), "in_proj_bias": (36,), "out_proj.weight": (12, 12), "out_proj.bias": (12,)}
    assert np.abs(layer.in_proj_weight.detach().numpy()).max() <= math.sqrt(6 / 48) and not layer.in_proj_bias.detach().numpy().any()
    assert not layer.out_proj.bias.detach().numpy().any() and layer.out_proj.weight.detach().numpy().std() > 0.1
    apart = nn.MultiheadAttention(12, 3, bias=False, kdim=5, vdim=7)
    assert {k: v.shape for k, v in apart.state_dict().items()} == {
        "q_proj_weight": (12, 12), "k_proj_weight": (12, 5), "v_proj_weight": (12, 7), "out_proj.weight": (12, 12)}


def test_an_encoder_is_made_of_copies():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, nn.LayerNorm(8))
    parts = {part: [v.sha256() for k, v in encoder.state_dict().items() if k.endswith(part)] for part in ("in_proj_weight", "linear1.weight")}
    assert all(len(found) == 3 and len(set(found)) == 1 for found in parts.values())
    assert len({id(p) for p in encoder.parameters()}) == 3 * 12 + 2
    assert "layers.2.self_attn.out_proj.bias" in encoder.state_dict() and "norm.weight" in encoder.state_dict()


# -- the layer is the function --


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_a_recurrent_layer_is_the_function(name):
    """Also rows Q01 and Q08: states are [layers·directions, batch, hidden], layer 0 forward first, whatever batch_first is."""
    layer = getattr(nn, name)(4, 6, 2, batch_first=True, bidirectional=True)
    x = normal(5, 3, 4)
    function = {"LSTM": om.lstm, "GRU": om.gru}[name]
    y, state = layer(x)
    expected, wanted = function(x, None, list(layer.parameters()), num_layers=2, bidirectional=True, batch_first=True)
    assert y.sha256() == expected.sha256() and y.shape == (5, 3, 12)
    h, found = (wanted[0], state[0]) if name == "LSTM" else (wanted, state)
    assert h.sha256() == found.sha256() and found.shape == (4, 5, 6)
    last = found.numpy()[2:] if not found.requires_grad else found.detach().numpy()[2:]
    out = y.detach().numpy()
    np.testing.assert_array_equal(last[0], out[:, -1, :6])
    np.testing.assert_array_equal(last[1], out[:, 0, 6:])


def test_every_state_gets_its_gradient():
    layer = nn.LSTM(3, 4, 2, bidirectional=True)
    hx = tuple(normal(4, 2, 4, k=k).requires_grad_() for k in (1, 2))
    y, (h, c) = layer(normal(5, 2, 3), hx)
    (c.sum() + h.sum()).backward()
    assert all(p.grad is not None and np.abs(p.grad.numpy()).max() > 0 for p in layer.parameters())
    assert all((np.abs(t.grad.numpy()).max(axis=(1, 2)) > 0).all() for t in hx)


def test_dropout_stands_between_layers_in_training():
    layer = nn.GRU(3, 16, 2, dropout=0.5)
    x = normal(4, 2, 3)
    assert layer(x)[0].sha256() != layer(x)[0].sha256()
    layer.eval()
    assert layer(x)[0].sha256() == layer(x)[0].sha256()
    with pytest.warns(UserWarning, match="between layers"):
        nn.GRU(3, 4, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.GRU(3, 4, 2, dropout=0.5)


def test_self_attention_needs_no_copy_of_its_input_and_one_product():
    """q, k and v of one tensor have the bits that they have apart."""
    for mode in ("fast", "exact"):
        with om.arithmetic(mode):
            layer, x = nn.MultiheadAttention(16, 4, batch_first=True), normal(2, 5, 16)
            together, _ = layer(x, x, x, need_weights=False)
            two, _ = layer(x, x.clone(), x.clone(), need_weights=False)
            np.testing.assert_allclose(together.detach().numpy(), two.detach().numpy(), atol=1e-6)
            if mode == "exact":
                assert together.sha256() == two.sha256()


def test_batch_first_is_a_transposition():
    first, second = nn.MultiheadAttention(8, 2, batch_first=True), nn.MultiheadAttention(8, 2)
    second.load_state_dict(first.state_dict())
    x, padding = normal(3, 5, 8), om.tensor(np.arange(5) > np.array([[2], [4], [3]]))
    y, w = first(x, x, x, padding)
    turned = x.transpose(0, 1)
    z, v = second(turned, turned, turned, padding)
    assert y.sha256() == z.transpose(0, 1).contiguous().sha256() and w.sha256() == v.sha256()


def test_masks_of_both_types_mean_the_same():
    with om.arithmetic("exact"):
        layer, x = nn.MultiheadAttention(8, 2), normal(5, 3, 8)
        hide = om.tensor(np.triu(np.ones((5, 5), bool), 1))
        pad = om.tensor(np.arange(5) > np.array([[2], [4], [3]]))

        def added(mask):
            return om.tensor(np.where(mask.numpy(), -np.inf, 0).astype(np.float32))

        def y(mask, padding, causal=False, need=False):
            return layer(x, x, x, padding, need, mask, is_causal=causal)[0].sha256()

        assert len({y(hide, None), y(added(hide), None), y(hide, None, True), y(None, None, True)}) == 1
        assert len({y(hide, pad), y(added(hide), added(pad)), y(hide, added(pad)), y(added(hide), pad), y(None, pad, True)}) == 1
        assert len({y(None, pad), y(None, added(pad))}) == 1 and y(None, pad) != y(None, None)
        apart = om.tensor(np.broadcast_to(hide.numpy(), (6, 5, 5)).copy())
        assert y(apart, None) == y(hide, None)
        assert y(None, None, True, True) == y(hide, None, False, True)


def test_a_query_that_sees_no_key():
    """Row A01, in the layer: zeros in front of the output product, zero weights, finite gradients; with and without weights."""
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), normal(2, 3, 8).requires_grad_()
    padding = om.tensor(np.array([[True] * 3, [False, True, False]]))
    for need in (True, False):
        x.grad = None
        y, w = layer(x, x, x, padding, need_weights=need)
        assert np.abs(y.detach().numpy()[0] - layer.out_proj.bias.detach().numpy()).max() == 0
        assert w is None or (not w.detach().numpy()[0].any() and w.detach().numpy()[1].sum() == pytest.approx(3))
        y.sum().backward()
        assert np.isfinite(x.grad.numpy()).all() and all(np.isfinite(p.grad.numpy()).all() for p in layer.parameters())


def test_dropout_of_weights():
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5), normal(6, 2, 8)
    w = layer(x, x, x, average_attn_weights=False)[1].detach().numpy()
    assert w.shape == (2, 2, 6, 6) and 0.2 < (w == 0).mean() < 0.8
    assert not (layer.eval()(x, x, x, average_attn_weights=False)[1].detach().numpy() == 0).any()


def test_an_encoder_copies_and_saves(tmp_path):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, activation=nn.GELU("tanh"), norm_first=True), 2, nn.LayerNorm(8)).eval()
    x = normal(4, 2, 8)
    om.save(encoder.state_dict(), tmp_path / "e.safetensors")
    other = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, activation=nn.GELU("tanh"), norm_first=True), 2, nn.LayerNorm(8)).eval()
    assert other(x).sha256() != encoder(x).sha256()
    other.load_state_dict(om.load(tmp_path / "e.safetensors"))
    assert other(x).sha256() == encoder(x).sha256() == copy.deepcopy(encoder)(x).sha256()
    assert encoder(x, is_causal=True).sha256() != encoder(x).sha256()


@pytest.mark.parametrize("kind", ["lstm", "encoder"])
def test_a_warm_step_takes_no_memory(kind):
    model = nn.LSTM(6, 8, 2, bidirectional=True) if kind == "lstm" else nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    x = normal(5, 3, 6 if kind == "lstm" else 8)
    padding = om.tensor(np.arange(5) > np.array([[2], [4], [3]]))

    def step():
        with om.ActivationScope():
            y = model(x)[0] if kind == "lstm" else model(x, src_key_padding_mask=padding)
            y.sum().backward()
        model.zero_grad()

    for _ in range(3):
        step()
    before = om.pool_stats()
    for _ in range(3):
        step()
    after = om.pool_stats() - before
    assert after.native_allocations == 0 and after.outstanding_bytes == 0


# -- errors --


HUGE = [2**62, 2**70, -(2**63), -1, 0]
WRONG = [1.5, None, "2", True, np.bool_(True), [2]]


@pytest.mark.parametrize(("make", "names"), [
    (lambda **k: nn.LSTM(**{"input_size": 3, "hidden_size": 4, **k}), ("input_size", "hidden_size", "num_layers")),
    (lambda **k: nn.GRU(**{"input_size": 3, "hidden_size": 4, **k}), ("input_size", "hidden_size", "num_layers")),
    (lambda **k: nn.MultiheadAttention(**{"embed_dim": 4, "num_heads": 2, **k}), ("embed_dim", "num_heads", "kdim", "vdim")),
    (lambda **k: nn.TransformerEncoderLayer(**{"d_model": 4, "nhead": 2, **k}), ("d_model", "nhead", "dim_feedforward")),
    (lambda **k: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), **{"num_layers": 2, **k}), ("num_layers",)),
])
def test_numbers_are_checked(make, names):
    """Row Q05 and its kind: no size below 1, none beyond memory, nothing but integers."""
    for name in names:
        for bad in HUGE:
            with pytest.raises((ValueError, MemoryError)):
                make(**{name: bad})
        for bad in WRONG:
            if bad is not None or name not in ("kdim", "vdim"):
                with pytest.raises(TypeError):
                    make(**{name: bad})
        make(**{name: np.int64(2)})


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: nn.LSTM(3, 4, proj_size=2), ValueError, "proj_size must be 0"),
    (lambda: nn.LSTM(3, 4, bias=1), TypeError, "bias must be True or False"),
    (lambda: nn.GRU(3, 4, batch_first=None), TypeError, "batch_first"),
    (lambda: nn.GRU(3, 4, bidirectional=2), TypeError, "bidirectional"),
    (lambda: nn.GRU(3, 4, dropout=1.5), ValueError, "dropout"),
    (lambda: nn.GRU(3, 4, dropout=float("nan")), ValueError, "dropout"),
    (lambda: nn.MultiheadAttention(6, 4), ValueError, "does not divide"),
    (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), ValueError, "add_bias_kv"),
    (lambda: nn.MultiheadAttention(4, 2, add_zero_attn=True), ValueError, "add_zero_attn"),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, activation="tanh"), ValueError, "activation"),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, activation=3), TypeError, "activation"),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, norm_first=1), TypeError, "norm_first"),
    (lambda: nn.TransformerEncoder(om.relu, 2), TypeError, "encoder_layer"),
    (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, om.relu), TypeError, "norm"),
    (lambda: nn.CTCLoss(blank=1.0), TypeError, "blank"),
    (lambda: nn.CTCLoss(blank=-1), ValueError, "blank"),
    (lambda: nn.CTCLoss(reduction="avg"), ValueError, "reduction"),
    (lambda: nn.CTCLoss(zero_infinity=1), TypeError, "zero_infinity"),
])
def test_options_are_checked(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_inputs_are_checked():
    """Rows Q02 to Q04 in the layer, and what attention is given."""
    lstm, mha, x = nn.LSTM(4, 6), nn.MultiheadAttention(4, 2), om.ones(5, 3, 4)
    state = om.ones(1, 3, 6)
    for call in [lambda: lstm(om.ones(5, 3, 2)), lambda: lstm(om.ones(4)), lambda: lstm(om.ones(0, 3, 4)), lambda: lstm(x, (om.ones(1, 2, 6), state)),
                 lambda: lstm(x, (state, om.ones(1, 3, 5))), lambda: lstm(x, (om.ones(1, 1, 3, 6), state)), lambda: mha(x, x, om.ones(4, 3, 4)),
                 lambda: mha(x, om.ones(5, 2, 4), om.ones(5, 2, 4)), lambda: mha(om.ones(5, 3, 6), x, x), lambda: mha(x, x.select(0, 0), x),
                 lambda: mha(x, x, x, om.zeros(5, 3)), lambda: mha(x, x, x, attn_mask=om.zeros(4, 5)), lambda: mha(x, x, x, attn_mask=om.zeros(3, 5, 5))]:
        with pytest.raises(ShapeError):
            call()
    for call in [lambda: lstm([[1.0]]), lambda: lstm(x, state), lambda: lstm(x.cast(om.int64)), lambda: mha(x, x, None), lambda: mha(x, x.cast(om.int64), x),
                 lambda: mha(x, x, x, attn_mask=om.zeros(5, 5).cast(om.int64)), lambda: mha(x, x, x, np.zeros((3, 5), bool)),
                 lambda: mha(x, x, x, need_weights=1), lambda: mha(x, x, x, is_causal=None)]:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="no gradient"):
        mha(x, x, x, attn_mask=om.zeros(5, 5).requires_grad_())


def test_ctc_loss_is_the_function():
    log_probs = om.log_softmax(normal(7, 2, 5), 2)
    given = (om.tensor([[1, 2, 3], [0, 0, 1]]), (7, 6), (3, 2))
    for options in ({}, {"reduction": "sum"}, {"reduction": "none", "zero_infinity": True}):
        assert nn.CTCLoss(blank=4, **options)(log_probs, *given).sha256() == om.ctc_loss(log_probs, *given, blank=4, **options).sha256()
    assert repr(nn.CTCLoss(4)) == "CTCLoss(blank=4, reduction='mean', zero_infinity=False)"


def test_reprs():
    assert repr(nn.LSTM(3, 4, 2, bidirectional=True)) == "LSTM(3, 4, num_layers=2, bidirectional=True)"
    assert "(layers): ModuleList(" in repr(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1))


# -- torch's weights give torch's outputs and gradients --

some = settings(max_examples=settings().max_examples // 2)  # --full makes it ten times as many


def close(ours, theirs, bound=5e-5, least=1e-2):
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours.detach().numpy() - theirs).max(initial=0) <= bound * max(np.abs(theirs).max(initial=0), least)


def loaded(layer, torchs):
    layer.load_state_dict({key: om.tensor(value.numpy()) for key, value in torchs.state_dict().items()})
    return layer


def gradients_close(layer, torchs):
    for (key, p), (name, q) in zip(layer.named_parameters(), torchs.named_parameters(), strict=True):
        assert key == name
        close(p.grad, q.grad, 1e-4, 0.1)


@pytest.mark.oracle
@some
@given(st.data())
def test_recurrent_layers(data):
    torch = pytest.importorskip("torch")
    draw = data.draw
    kind = draw(st.sampled_from(["LSTM", "GRU"]))
    inputs, hidden, steps, batch = (draw(st.integers(1, n)) for n in (5, 7, 6, 4))
    options = {"num_layers": draw(st.integers(1, 3)), **{name: draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}}
    torch.manual_seed(draw(st.integers(0, 1000)))
    theirs = getattr(torch.nn, kind)(inputs, hidden, **options)
    ours = loaded(getattr(nn, kind)(inputs, hidden, **options), theirs)
    shape = draw(st.sampled_from([(steps, inputs), (batch, steps, inputs) if options["batch_first"] else (steps, batch, inputs)]))
    arrays = [np.random.default_rng(steps).normal(size=shape).astype(np.float32)]
    if draw(st.booleans()):
        states = (options["num_layers"] * (1 + options["bidirectional"]), *((batch,) if len(shape) == 3 else ()), hidden)
        arrays += [np.random.default_rng(k).normal(size=states).astype(np.float32) for k in range(2 if kind == "LSTM" else 1)]
    a, b = [torch.tensor(x, requires_grad=True) for x in arrays], [om.tensor(x, requires_grad=True) for x in arrays]

    def run(layer, x, *hx):
        y, state = layer(x, (hx if kind == "LSTM" else hx[0]) if hx else None)
        return (y, *state) if kind == "LSTM" else (y, state)

    outs, expected = run(ours, *b), run(theirs, *a)
    for y, z in zip(outs, expected, strict=True):
        close(y, z)
    first = draw(st.integers(0, 1))  # the states alone, or the output too
    sum((y * y).sum() for y in outs[first:]).backward()
    sum((z * z).sum() for z in expected[first:]).backward()
    gradients_close(ours, theirs)
    for t, u in zip(b, a, strict=True):
        close(t.grad, u.grad, 1e-4, 0.1)


def masks(draw, batch, heads, length, keys, lone):
    """(attn_mask, key_padding_mask) as arrays or None; every query sees its first key."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))

    def one(shape, kind):
        if kind == "none":
            return None
        if kind == "add":
            return rng.normal(size=shape).astype(np.float32)
        hidden = rng.random(shape) < 0.4
        hidden[..., 0] = False
        return hidden

    kinds = st.sampled_from(["none", "add", "hide"])
    attn = one(draw(st.sampled_from([(length, keys), (batch * heads, length, keys)])), draw(kinds))
    return attn, one((keys,) if lone else (batch, keys), draw(kinds))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Support for mismatched")
@some
@given(st.data())
def test_multihead_attention(data):
    torch = pytest.importorskip("torch")
    draw = data.draw
    heads, width, batch, length, keys = (draw(st.integers(1, n)) for n in (3, 4, 3, 6, 7))
    dim = heads * width
    same = draw(st.sampled_from(["self", "key", "none", "widths"]))
    lone, first, bias, need, average = (draw(st.booleans()) for _ in range(5))
    options = {"bias": bias, "batch_first": first, **({"kdim": 5, "vdim": 3} if same == "widths" else {})}
    keys, batch = length if same == "self" else keys, 1 if lone else batch
    torch.manual_seed(draw(st.integers(0, 1000)))
    theirs = torch.nn.MultiheadAttention(dim, heads, **options)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
    ours = loaded(nn.MultiheadAttention(dim, heads, **options), theirs)

    def shape(n, size):
        return (n, size) if lone else (batch, n, size) if first else (n, batch, size)

    rng = np.random.default_rng(length)
    sizes = [(length, dim), (keys, options.get("kdim", dim)), (keys, options.get("vdim", dim))][: {"self": 1, "key": 2}.get(same, 3)]
    arrays = [rng.normal(size=shape(*size)).astype(np.float32) for size in sizes]
    attn, padding = masks(draw, batch, heads, length, keys, lone)
    results = []
    for layer, tensor in ((ours, om.tensor), (theirs, torch.tensor)):
        leaves = [tensor(x, requires_grad=True) for x in arrays]
        qkv = (leaves * 3)[:3] if same == "self" else (*leaves, leaves[1])[:3]
        y, w = layer(*qkv, None if padding is None else tensor(padding), need, None if attn is None else tensor(attn), average)
        ((y * y).sum() if w is None else (y * y).sum() + (w * w).sum()).backward()
        results.append((y, w, leaves))
    (y, w, b), (z, v, a) = results
    close(y, z)
    assert (w is None) == (v is None)
    if w is not None:
        close(w, v)
    gradients_close(ours, theirs)
    for t, u in zip(b, a, strict=True):
        close(t.grad, u.grad, 1e-4, 0.1)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Support for mismatched", "ignore:enable_nested_tensor")
@some
@given(st.data())
def test_transformer_encoders(data):
    torch = pytest.importorskip("torch")
    draw = data.draw
    heads, batch, length, layers = (draw(st.integers(1, n)) for n in (2, 3, 6, 2))
    activation = draw(st.sampled_from(["relu", "gelu", "tanh"]))
    options = {name: draw(st.booleans()) for name in ("batch_first", "norm_first", "bias")}
    eps = draw(st.sampled_from([1e-5, 1e-2]))
    final, lone, causal = (draw(st.booleans()) for _ in range(3))
    batch = 1 if lone else batch
    torch.manual_seed(draw(st.integers(0, 1000)))
    models = []
    for lib, function in ((torch.nn, torch.tanh), (nn, om.tanh)):
        layer = lib.TransformerEncoderLayer(4 * heads, heads, 9, 0.0, function if activation == "tanh" else activation, eps, **options)
        models.append(lib.TransformerEncoder(layer, layers, lib.LayerNorm(4 * heads) if final else None))
    theirs, ours = models
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.2 * torch.randn_like(p))
    loaded(ours, theirs)
    size = 4 * heads
    x = np.random.default_rng(length).normal(size=(length, size) if lone else (batch, length, size) if options["batch_first"] else (length, batch, size))
    attn, padding = masks(draw, batch, heads, length, length, lone)
    if causal:
        attn, padding = np.triu(np.ones((length, length), bool), 1), None
    results = []
    for model, tensor in ((ours, om.tensor), (theirs, torch.tensor)):
        leaf = tensor(x.astype(np.float32), requires_grad=True)
        y = model(leaf, *(None if m is None else tensor(m) for m in (attn, padding)), True if causal else None)
        (y * y * y).sum().backward()
        results.append((y, leaf.grad))
    close(results[0][0], results[1][0])
    close(results[0][1], results[1][1], 2e-4, 0.1)
    gradients_close(ours, theirs)
