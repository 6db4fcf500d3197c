"""Owns the tests of attention beyond the registry's: the known faults of other frameworks by their ids, masks, causal rows, blocks, memory."""

import numpy as np
import pytest

import onemodel as om
from onemodel import memory
from onemodel._kernels import table


def operands(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [om.tensor(rng.normal(size=shape).astype(np.float32), requires_grad=True) for shape in shapes]


def run(q, k, v, *args, **kwargs):
    y = om.scaled_dot_product_attention(q, k, v, *args, **kwargs)
    for t in (q, k, v):
        t.grad = None
    y.backward(om.tensor(np.random.default_rng(9).normal(size=y.shape).astype(np.float32)))
    return [y.detach().numpy(), *(t.grad.numpy().copy() for t in (q, k, v))]


def test_A01_a_row_that_sees_nothing_is_zero():
    q, k, v = operands(0, (3, 4), (3, 4), (3, 4))
    additive = np.zeros((3, 3), np.float32)
    additive[2] = -np.inf
    for mask in (om.tensor(additive), om.tensor(additive == 0)):
        y, dq, dk, dv = run(q, k, v, mask)
        assert not y[2].any() and not dq[2].any()
        assert all(np.isfinite(a).all() for a in (y, dq, dk, dv)) and dk.any() and dv.any()
        dropped = om.scaled_dot_product_attention(q, k, v, mask, dropout_p=1e-9)
        np.testing.assert_allclose(dropped.detach().numpy(), y, rtol=1e-5, atol=1e-6)


def test_A05_a_broadcast_mask_is_read_with_stride_zero():
    q, k, v = operands(1, (2, 8, 64, 4), (2, 8, 64, 4), (2, 8, 64, 4))
    mask = om.tensor(np.random.default_rng(2).normal(size=(1, 1, 64, 64)).astype(np.float32))
    whole = run(q, k, v, mask.expand(2, 8, 64, 64).contiguous())
    om.pool_reset_peak()
    before = memory.pool_stats()
    with om.no_grad():
        y = om.scaled_dot_product_attention(q, k, v, mask)
    assert memory.pool_stats().peak_outstanding_bytes - before.outstanding_bytes < y.numel() * 4 + 64 * 64 * 4 * 2 + 65536
    assert all(np.array_equal(a, b) for a, b in zip(run(q, k, v, mask), whole, strict=True))


def test_masks_of_every_stride_and_the_names():
    q, k, v = operands(3, (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))
    values = np.random.default_rng(4).normal(size=(5, 7)).astype(np.float32)
    whole = run(q, k, v, om.tensor(values))
    for mask in (om.tensor(values.T.copy()).T, om.tensor(np.repeat(values, 2, 1))[:, ::2], om.tensor(values[:, ::-1].copy()).flip(-1)):
        assert all(np.array_equal(a, b) for a, b in zip(run(q, k, v, mask), whole, strict=True))
    assert om.attention is om.scaled_dot_product_attention


def test_a_causal_row_ends_with_its_last_key():
    """What lies behind it enters neither maximum, sum nor product: NaN there does no harm."""
    q, k, v = operands(5, (1, 40, 8), (1, 40, 8), (1, 40, 8))
    y = om.scaled_dot_product_attention(q, k, v, is_causal=True).detach().numpy()
    spoilt_k, spoilt_v = k.detach().numpy().copy(), v.detach().numpy().copy()
    spoilt_k[:, 23:] = np.nan
    spoilt_v[:, 23:] = np.inf
    spoilt = om.scaled_dot_product_attention(q, om.tensor(spoilt_k), om.tensor(spoilt_v), is_causal=True).detach().numpy()
    assert np.array_equal(spoilt[:, :23], y[:, :23]) and np.isnan(spoilt[:, 23:]).all()
    for mode in ("fast", "exact"):
        with om.arithmetic(mode):
            assert np.array_equal(om.scaled_dot_product_attention(q, k, v, is_causal=True).detach().numpy()[:, :23],
                                  om.scaled_dot_product_attention(q[:, :23], k[:, :23], v[:, :23], is_causal=True).detach().numpy())


def test_what_a_causal_row_does_not_see_does_not_touch_its_gradient():
    """At every block size: a NaN at query, key, value or g 37 spreads only to what it is seen by, or sees."""
    sizes, at = (1, 1000, 3), 37
    plain = [t.detach().numpy() for t in operands(6, sizes, sizes, sizes)]
    g = np.random.default_rng(11).normal(size=sizes).astype(np.float32)

    def gradients(spoilt, value):
        arrays = [a.copy() for a in (*plain, g)]
        if spoilt is not None:
            arrays[spoilt][:, at] = value
        q, k, v = (om.tensor(a, requires_grad=True) for a in arrays[:3])
        om.scaled_dot_product_attention(q, k, v, is_causal=True).backward(om.tensor(arrays[3]))
        return [t.grad.numpy() for t in (q, k, v)]

    with om.arithmetic("exact"):
        right = gradients(None, 0.0)
        for spoilt in range(4):
            for value in (np.nan, np.inf):
                seen = set()
                for isa in table.available_isas():
                    table.select_isa(isa)
                    dq, dk, dv = gradients(spoilt, value)
                    seen.add(dq.tobytes() + dk.tobytes() + dv.tobytes())
                assert len(seen) == 1
                if spoilt in (0, 3):  # a query or its g: its own dq, and the keys that it sees
                    assert np.array_equal(np.delete(dq, at, 1), np.delete(right[0], at, 1))
                    assert np.array_equal(dk[:, at + 1:], right[1][:, at + 1:]) and np.array_equal(dv[:, at + 1:], right[2][:, at + 1:])
                else:  # a key or a value: the queries that see it
                    assert np.array_equal(dq[:, :at], right[0][:, :at]) and not np.isfinite(dq[:, at:]).all()


def test_an_additive_mask_hides_finite_keys_and_a_nan_stays():
    q, k, v = operands(6, (3, 4), (5, 4), (5, 4))
    mask = np.zeros((3, 5), np.float32)
    mask[:, 4] = -np.inf
    big = k.detach().numpy().copy()
    big[4] = 1e30
    y = om.scaled_dot_product_attention(q, k, v, om.tensor(mask)).detach().numpy()
    assert np.array_equal(om.scaled_dot_product_attention(q, om.tensor(big), v, om.tensor(mask)).detach().numpy(), y)
    big[4] = np.nan
    assert np.isnan(om.scaled_dot_product_attention(q, om.tensor(big), v, om.tensor(mask)).detach().numpy()).all()


@pytest.mark.parametrize("causal", [False, True])
def test_exact_bits_are_those_of_the_plain_composition(causal):
    """Blocks, threads and packing change nothing: a row alone has the bits it has among others."""
    q, k, v = operands(7, (2, 2, 131, 24), (2, 2, 131, 24), (2, 2, 131, 20))
    seen = set()
    with om.arithmetic("exact"):
        for isa in table.available_isas():
            for threads in (1, 2, 3, 8):
                table.select_isa(isa)
                om.set_num_threads(threads)
                table.set_smallest_piece(1)
                seen.add(b"".join(a.tobytes() for a in run(q, k, v, is_causal=causal)))
        assert len(seen) == 1
        y = om.scaled_dot_product_attention(q, k, v, is_causal=causal).detach().numpy()
        for i in (0, 5, 47, 48, 130):
            row = om.scaled_dot_product_attention(q[:, :, i:i + 1], k[:, :, :i + 1] if causal else k, v[:, :, :i + 1] if causal else v)
            assert np.array_equal(row.detach().numpy()[:, :, 0], y[:, :, i])
        if not causal:
            scores = (q @ k.transpose(-2, -1)) * float(np.float32(24**-0.5))
            assert np.array_equal((om.softmax(scores, -1) @ v).detach().numpy(), y)


def test_a_warm_step_takes_no_memory_and_keeps_no_scores():
    q, k, v = operands(8, (2, 4, 200, 16), (2, 4, 200, 16), (2, 4, 200, 16))

    def step():
        with om.ActivationScope():
            om.scaled_dot_product_attention(q, k, v).sum().backward()

    step(), step()
    before = memory.pool_stats()
    om.pool_reset_peak()
    step()
    after = memory.pool_stats()
    assert after.native_allocations == before.native_allocations and after.outstanding_bytes == before.outstanding_bytes
    assert after.peak_outstanding_bytes - before.outstanding_bytes < 2 * 4 * 200 * 200 * 4  # less than all the scores


def test_other_operands_raise_what_they_should():
    q, k, v = operands(9, (2, 3, 4), (2, 5, 4), (2, 5, 4))
    for mask in (om.zeros(7), om.zeros(2, 3, 4, 5), om.zeros(3, 5).requires_grad_()):
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            om.scaled_dot_product_attention(q, k, v, mask)
    for scale in (True, "1"):
        with pytest.raises(TypeError, match="scale"):
            om.scaled_dot_product_attention(q, k, v, scale=scale)
    for scale in (2**70 * 2**70, 10**400, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale"):
            om.scaled_dot_product_attention(q, k, v, scale=scale)
    for p, error in ((-0.1, ValueError), (1.1, ValueError), (float("nan"), ValueError), (10**5000, ValueError), (True, TypeError), ("0", TypeError)):
        with pytest.raises(error, match="dropout_p"):
            om.scaled_dot_product_attention(q, k, v, dropout_p=p)
    for causal in ("no", 1, None):
        with pytest.raises(TypeError, match="is_causal must be True or False"):
            om.scaled_dot_product_attention(q, k, v, is_causal=causal)
    right = om.scaled_dot_product_attention(q, k, v, scale=0.5).detach().numpy()
    for half in (np.float32(0.5), np.float64(0.5)):
        assert np.array_equal(om.scaled_dot_product_attention(q, k, v, scale=half).detach().numpy(), right)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 2, 0, 3), (2, 0, 1, 3), (0, 1, 2, 3)])
def test_heads_come_out_as_they_went_in(order):
    """A result lies in memory as the query does, gradients as their operands; bits are those of contiguous heads."""
    rng = np.random.default_rng(3)
    packed = rng.normal(size=(3, 5, 4, 18)).astype(np.float32)
    weight = rng.normal(size=(3, 5, 4, 6)).astype(np.float32)
    results = []
    with om.arithmetic("exact"):
        for copied in (False, True):
            leaf = om.tensor(packed, requires_grad=True)
            q, k, v = (t.permute(*order) for t in om.split(leaf, 6, -1))
            if copied:
                q, k, v = (t.clone() for t in (q, k, v))
            y = om.scaled_dot_product_attention(q, k, v)
            back = np.argsort(order)
            assert (y if copied else y.permute(*map(int, back))).is_contiguous()
            (y * om.tensor(weight).permute(*order)).sum().backward()
            results.append((y.sha256(), leaf.grad.sha256()))
    assert results[0] == results[1]


@pytest.mark.parametrize("mode", ["fast", "exact"])
@pytest.mark.parametrize("masked", ["no", "causal", "boolean"])
@pytest.mark.parametrize("length_first", [False, True])
def test_self_attention_has_the_bits_of_three_parts(mode, masked, length_first):
    x, g = (t.detach() for t in operands(11, (60, 3, 72) if length_first else (3, 60, 72), (3, 60, 24)))
    mask = om.tensor(np.random.default_rng(2).random((3, 1, 60, 60)) < 0.7) if masked == "boolean" else None

    def gradients(attend):
        leaf = x.detach().requires_grad_()
        y = attend(leaf.transpose(0, 1) if length_first else leaf)
        y.backward(g)
        return y.detach().numpy().tobytes(), leaf.grad.numpy().tobytes()

    def parts(t):
        q, k, v = (p.reshape(3, 60, 4, 6).permute(0, 2, 1, 3) for p in om.split(t, 24, -1))
        return om.scaled_dot_product_attention(q, k, v, mask, is_causal=masked == "causal").permute(0, 2, 1, 3).reshape(3, 60, 24)

    with om.arithmetic(mode):
        assert gradients(lambda t: om.self_attention(t, 4, mask, masked == "causal")) == gradients(parts)
        y = om.self_attention(x.transpose(0, 1) if length_first else x, 4, mask, masked == "causal")
    assert (y.transpose(0, 1) if length_first else y).is_contiguous()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mode", om.modes.MODES)
def test_parts_of_a_head_change_no_bit(mode, causal):
    """One head of many queries, so that threads share its rows."""
    q, k, v = (om.tensor(np.random.default_rng(seed).standard_normal((1, 1, 517, 32), dtype=np.float32)) for seed in range(3))
    found = set()
    for isa in table.available_isas():
        table.select_isa(isa)
        bits = set()
        for threads in (1, 2, 3, 5, 8):
            om.set_num_threads(threads)
            with om.arithmetic(mode):
                bits.add(om.scaled_dot_product_attention(q, k, v, is_causal=causal).numpy().tobytes())
        assert len(bits) == 1, isa
        found |= bits
    assert mode == "fast" or len(found) == 1
