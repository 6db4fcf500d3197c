"""Owns the tests of embedding, gather, index_select, masked_fill, cumsum and split beyond the registry's: bits, edge rows, indices, threads."""

import gc

import numpy as np
import pytest

import onemodel as om
from onemodel import nn
from onemodel._kernels import table
from onemodel._pool import pool

F32 = np.float32


@pytest.fixture(params=[(isa, mode) for isa in table.available_isas() for mode in om.modes.MODES], ids=lambda p: "-".join(p))
def path(request):
    """The test runs on each instruction set in each mode, in the smallest pieces."""
    table.select_isa(request.param[0])
    om.set_arithmetic(request.param[1])
    table.set_smallest_piece(1)
    return request.param


@pytest.fixture
def poisoned():
    """Every block holds signalling NaN when it is taken and when it went back."""
    old = pool.set_pool_poison(True)
    yield
    pool.set_pool_poison(old)


def bits(a):
    return np.ascontiguousarray(a, F32).view(np.uint32)


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def leaf(data):
    return om.tensor(data, requires_grad=True)


# -- embedding --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cols", [1, 3, 37, 70, 200])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding_adds_rows_in_id_order(path, cols, padding):
    ids = np.array([[2, 0, 4, 2], [4, 4, 2, 1]])
    w, g = normal(5, cols), normal(2, 4, cols, seed=2)
    g[0, 0, 0], g[1, 3, -1] = 1e8, -1e8  # an order of additions shows itself
    weight = leaf(w)
    y = om.embedding(om.tensor(ids), weight, padding)
    assert np.array_equal(bits(y.detach().numpy()), bits(w[ids]))
    y.backward(om.tensor(g))
    expected = np.zeros_like(w)
    for i, row in zip(ids.ravel(), g.reshape(-1, cols), strict=True):
        if padding is None or i != padding % 5:
            expected[i] += row
    assert np.array_equal(bits(weight.grad.numpy()), bits(expected))


def test_E02_padding_idx_does_not_change_the_output():
    w = normal(3, 4)
    assert np.array_equal(om.embedding(om.tensor([0, 2]), om.tensor(w), 0).numpy(), w[[0, 2]])


def test_E04_gradcheck_without_the_padding_row():
    w = leaf(normal(3, 4))
    om.embedding(om.tensor([1, 0, 1]), w, 0).sum().backward()
    assert w.grad.numpy()[:, 0].tolist() == [0, 2, 0]
    ids = om.tensor([1, 2, 1])  # without ids of that row a finite difference sees what the gradient says
    assert om.training.gradient_check(lambda weight: om.embedding(ids, weight, 0), [w]).error < 1e-3


@pytest.mark.parametrize("bad", [3, -1, 2**62, -(2**63), 2**31])
def test_a_wrong_id_is_named_and_nothing_is_taken(bad):
    weight = leaf(normal(3, 4))
    with pytest.raises(IndexError, match=rf"embedding: id {bad} at position \(1, 0\) is out of range: expected 0 to 2"):
        om.embedding(om.tensor(np.array([[0, 1], [bad, 2]])), weight)
    gc.collect()
    before = om.pool_stats()
    for _ in range(3):
        with pytest.raises(IndexError):
            om.embedding(om.tensor(np.array([bad])), weight)
    assert (om.pool_stats() - before).outstanding_blocks == 0


def operators_by_index(index):
    x = leaf(normal(4, 3))
    return {"embedding": om.embedding(index, x), "index_select": om.index_select(x, 0, index),
            "gather": om.gather(x, 0, index.unsqueeze(1))}


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather"])
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_an_index_in_an_array_is_checked_again_in_backward(name, kind):
    """A write through NumPy raises no version, so backward cannot believe what forward saw."""
    array = np.array([0, 3, 1], kind)
    y = operators_by_index(om.from_numpy(array))[name]
    array[1] = 1 << 30
    with pytest.raises(IndexError, match=name):
        y.backward(om.ones_like(y))


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather"])
def test_an_index_changed_in_place_is_an_error(name):
    index = om.tensor([0, 3, 1])
    y = operators_by_index(index)[name]
    index.add_(1)
    with pytest.raises(om.TensorVersionError):
        y.backward(om.ones_like(y))


def test_the_row_of_a_large_table_is_all_that_is_added_up():
    """The gradient is dense, but its work is one pass of zeros and the rows named."""
    weight = om.rand(20000, 16).requires_grad_()
    y = om.embedding(om.tensor([19999, 5, 5]), weight)
    y.backward(om.ones_like(y))
    rows = np.flatnonzero(weight.grad.numpy().any(1))
    assert rows.tolist() == [5, 19999] and weight.grad.numpy()[5].tolist() == [2.0] * 16


# -- gather and index_select ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_gather_along_each_dimension(path, axis):
    rng = np.random.default_rng(axis)
    shape, want = [3, 4, 5, 19], [2, 3, 4, 17]
    want[axis] = 7
    x, index, g = normal(*shape), rng.integers(0, shape[axis], want), normal(*want, seed=9)
    for view in (lambda a: om.tensor(a), lambda a: om.tensor(a.transpose(3, 1, 0, 2).copy()).permute(2, 1, 3, 0)):
        t, i = view(x).requires_grad_(), view(index)
        y = om.gather(t, axis, i)
        part = x[tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(want))]
        assert np.array_equal(y.detach().numpy(), np.take_along_axis(part, index, axis))
        y.backward(om.tensor(g))
        expected = np.zeros_like(x)
        for at in np.ndindex(*want):
            to = list(at)
            to[axis] = index[at]
            expected[tuple(to)] += g[at]
        assert np.array_equal(bits(t.grad.numpy()), bits(expected))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_index_select_adds_in_index_order(path, axis):
    x, index = normal(3, 4, 21), np.array([1, 0, 1, 2, 1])
    g = normal(*[5 if d == axis else n for d, n in enumerate(x.shape)], seed=3)
    t = leaf(x)
    y = om.index_select(t, axis, om.tensor(index))
    assert np.array_equal(y.detach().numpy(), np.take(x, index, axis))
    y.backward(om.tensor(g))
    expected = np.zeros_like(x)
    for k, i in enumerate(index):
        expected[(slice(None),) * axis + (i,)] += g[(slice(None),) * axis + (k,)]
    assert np.array_equal(bits(t.grad.numpy()), bits(expected))


@pytest.mark.parametrize("outer,size,inner,n", [(1, 9, 5, 20), (3, 4, 1, 7), (2, 6, 33, 11), (1, 1, 100, 3), (2, 3, 4, 0), (0, 3, 4, 2), (1, 5, 1, 600)])
@pytest.mark.parametrize("dtype", [F32, np.int32, np.int64, np.uint8, np.bool_])
def test_slices_by_index(path, outer, size, inner, n, dtype):
    rng = np.random.default_rng(0)
    index = rng.integers(0, size, n)
    x = (rng.standard_normal((outer, size, inner)) * 99).astype(dtype)
    for y in (om.index_select(om.tensor(x), 1, om.tensor(index)), om.tensor(x)[:, om.tensor(index)]):
        assert y.numpy().dtype == dtype and np.array_equal(y.numpy(), x[:, index])


@pytest.mark.parametrize("place", [0, 1, 511, 512, 700, 1029])
def test_the_first_wrong_index_is_found_anywhere(place):
    index = np.zeros(1030, np.int64)
    index[place], index[-1] = -7, 9
    with pytest.raises(IndexError, match=f"index {index[place]} at position {place} "):
        om.index_select(om.ones(5), 0, om.tensor(index))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_gather_in_many_pieces_finds_the_first_wrong_index(axis):
    table.set_smallest_piece(1)
    om.set_num_threads(3)
    array = np.zeros((50, 40), np.int64)
    array[7, 30] = array[7, 31] = array[40, 2] = 50
    with pytest.raises(IndexError, match=r"index 50 at position \(7, 30\) is out of range: expected 0 to 49"):
        om.gather(om.ones(50, 50), axis, om.tensor(array))


def test_H11_strides_of_size_one_mean_nothing(path):
    """A dimension of size 1 may carry any stride: no address is computed from it."""
    array = np.lib.stride_tricks.as_strided(np.arange(5, dtype=F32), (1, 5), (8 * 2**40, 4))
    x = om.from_numpy(array)
    assert om.gather(x, 0, om.tensor([[0] * 5, [0] * 5])).tolist() == [list(range(5))] * 2
    assert om.gather(x, 1, om.tensor([[4, 0]])).tolist() == [[4, 0]]
    assert om.embedding(om.tensor([0, 0]), x).tolist() == [list(range(5))] * 2
    assert om.cumsum(x, 0).tolist() == [list(range(5))] and om.pad(x, (1, 0)).tolist() == [[0, *range(5)]]
    planes = om.from_numpy(np.lib.stride_tricks.as_strided(np.arange(5, dtype=F32), (1, 1, 1, 5), (2**50, 2**45, 2**40, 4)))
    assert om.interpolate(planes, (2, 5)).tolist() == [[[list(range(5))] * 2]]


def test_payloads_are_kept_and_sums_have_one_nan():
    strange = np.array([0xFFC00123, 0x80000000, 0x7FA00001], np.uint32).view(F32)
    index = om.tensor([2, 0, 1, 0])
    for isa in table.available_isas():
        table.select_isa(isa)
        with om.arithmetic("exact"):
            for y in (om.gather(om.tensor(strange), 0, index), om.index_select(om.tensor(strange), 0, index),
                      om.embedding(index, om.tensor(strange).unsqueeze(1))):
                assert bits(y.numpy()).ravel().tolist() == [0x7FA00001, 0xFFC00123, 0x80000000, 0xFFC00123]
            assert bits(om.cumsum(om.tensor(np.concatenate([[1], strange[:1], [1]]).astype(F32)), 0).numpy()).tolist() == [0x3F800000, 0x7FC00000, 0x7FC00000]
            for y, x in ((om.gather(x, 0, index), x) for x in [leaf(normal(3))]):
                y.backward(om.tensor(np.array([0xFFC00123, 1, 2, 3], np.uint32).view(F32)))
                assert bits(x.grad.numpy()).tolist() == [4, 2, 0x7FC00000]


def test_X27_no_gradient_is_added_to_what_memory_held(poisoned, path):
    index = om.tensor([1, 1, 3])
    found = set()
    for _ in range(3):
        x = om.ones(4, 3).requires_grad_()
        (om.embedding(index, x).sum() + om.gather(x, 0, index.unsqueeze(1)).sum() + om.index_select(x, 0, index).sum()
         + om.index_select(x, 1, om.tensor([0])).sum() + om.cumsum(x, 0).sum() + om.split(x, 1)[2].sum()).backward()
        found.add(x.grad.sha256())
    assert len(found) == 1 and x.grad.numpy()[0].tolist() == [4 + 1, 4, 4]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_pieces_change_no_bit(path, count):
    index = om.tensor(np.random.default_rng(1).integers(0, 6, (9, 40)))

    def run():
        x = leaf(normal(6, 40))
        digests = []
        for f in (lambda: om.gather(x, 0, index), lambda: om.gather(x, 1, index[:6]), lambda: om.embedding(index, x), lambda: om.cumsum(x, 0),
                  lambda: om.cumsum(x, 1), lambda: om.index_select(x, 0, index[0]), lambda: om.masked_fill(x, x > 0, 2.0)):
            y = f()
            x.grad = None
            y.backward(om.tensor(normal(*y.shape, seed=7)))
            digests += [y.sha256(), x.grad.sha256()]
        return digests

    om.set_num_threads(1)
    table.set_smallest_piece(1 << 30)
    whole = run()
    om.set_num_threads(count)
    table.set_smallest_piece(1)
    assert run() == whole


def test_more_than_one_thread_takes_part():
    table.set_smallest_piece(1)
    om.set_num_threads(3)
    x = om.rand(400, 400).requires_grad_()
    index = om.tensor(np.random.default_rng(1).integers(0, 400, (400, 400)))
    calls = {"embedding": lambda: om.embedding(index[0], x), "gather": lambda: om.gather(x, 1, index), "cumsum": lambda: om.cumsum(x, 1)}
    for name, f in calls.items():
        forward = backward = 0
        for _ in range(50):
            y = f()
            forward = max(forward, table.last_threads())
            y.backward(y.detach())
            backward = max(backward, table.last_threads())
        assert forward > 1 and backward > 1, name


# -- masked_fill --------------------------------------------------------------------------------------------------------------------


def test_masked_fill_replaces_a_nan_and_its_gradient():
    x = leaf([np.nan, 1.0, np.inf])
    y = om.masked_fill(x, om.tensor([True, False, True]), 0.0)
    assert y.tolist() == [0, 1, 0]
    y.backward(om.tensor([np.nan, 2.0, np.inf]))
    assert x.grad.tolist() == [0, 2, 0]


def test_a_broadcast_mask_is_not_copied():
    x, mask = om.rand(64, 256), om.tensor(np.arange(256) % 2 == 0)
    om.masked_fill(x, mask, 1.0)
    before = om.pool_stats()
    y = om.masked_fill(x, mask, 1.0)
    taken = om.pool_stats() - before
    assert taken.requests <= 2 and (y.numpy()[:, ::2] == 1).all()  # the result and the number


# -- cumsum -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape,axis", [((37,), 0), ((3, 29), 1), ((5, 70), 0), ((2, 7, 45), 1), ((12, 3, 1), 1), ((300, 2), 0)])
def test_cumsum_is_one_running_sum_in_double(path, shape, axis):
    x = normal(*shape) * F32(10) ** np.random.default_rng(2).integers(-8, 8, shape).astype(F32)
    t = leaf(x)
    y = om.cumsum(t, axis)
    assert np.array_equal(bits(y.detach().numpy()), bits(np.cumsum(x.astype(np.float64), axis).astype(F32)))
    g = normal(*shape, seed=4)
    y.backward(om.tensor(g))
    expected = np.flip(np.cumsum(np.flip(g, axis).astype(np.float64), axis), axis).astype(F32)
    assert np.array_equal(bits(t.grad.numpy()), bits(expected))


# -- split ------------------------------------------------------------------------------------------------------------------------


def test_parts_are_views_and_their_gradients_meet():
    x = leaf(normal(6, 4))
    a, b, c = om.split(x, [1, 2, 3])
    assert b.strides == x.strides and np.shares_memory(b.detach().numpy(), x.detach().numpy())
    (a.sum() + (c * om.tensor(np.arange(12, dtype=F32).reshape(3, 4))).sum() + (c * 2.0).sum()).backward()
    assert np.array_equal(x.grad.numpy(), np.concatenate([np.ones((1, 4)), np.zeros((2, 4)), np.arange(12).reshape(3, 4) + 2]))


def test_parts_go_backward_one_by_one_and_through_grad():
    x = leaf(normal(5, 3))
    y = x * 2.0
    parts = om.split(y, 2)
    parts[0].sum().backward(retain_graph=True)
    assert x.grad.numpy()[:, 0].tolist() == [2, 2, 0, 0, 0]
    parts[2].sum().backward()
    assert x.grad.numpy()[:, 0].tolist() == [2, 2, 0, 0, 2]
    x.grad = None
    parts = om.chunk(x * 3.0, 3)
    (g,) = om.grad(parts[1].sum() + parts[1].sum(), [x])
    assert g.numpy()[:, 0].tolist() == [0, 0, 6, 6, 0] and x.grad is None
    with pytest.raises(om.GraphReleasedError):
        parts[1].sum().backward()


def test_the_gradients_of_many_parts_cost_one_pass():
    """Blocks taken in backward: parts put theirs into one buffer, instead of one of the whole size each."""
    x = om.rand(256, 64).requires_grad_()

    def step(count):
        parts = om.chunk(x, count)
        loss = om.cat([p.reshape(-1) for p in parts]).sum()
        om.pool_reset_peak()
        before = om.pool_stats().outstanding_bytes
        x.grad = None
        loss.backward()
        return om.pool_stats().peak_outstanding_bytes - before

    step(128)
    assert step(128) <= step(2) + 64 * 1024


def test_a_failing_part_leaves_nothing_behind():
    x = leaf(normal(4, 2))
    a, b = om.split(x, 2)
    saved = om.tensor([2.0, 3.0])
    z = (a.sum() + (b * saved).sum())
    saved.mul_(2.0)
    with pytest.raises(om.TensorVersionError):
        z.backward()
    x.grad = None
    om.split(x, 2)[1].sum().backward()
    assert x.grad.numpy().sum() == 4


def test_H07_empty_parts(path):
    assert [p.shape for p in om.split(om.ones(0, 3), 2)] == [(0, 3)] and [p.shape for p in om.split(om.ones(2), [0, 2, 0])] == [(0,), (2,), (0,)]
    assert [p.shape for p in om.chunk(om.ones(0, 3), 2)] == [(0, 3)] * 2 and len(om.split(om.ones(0), 0)) == 1


def test_H08_gradients_of_stretched_inputs_are_summed(path):
    for f in (lambda x: om.gather(x, 0, om.tensor([[0], [2], [2]])), lambda x: om.embedding(om.tensor([2, 1]), x), lambda x: om.cumsum(x, 0)[:2],
              lambda x: om.split(x, 2)[0], lambda x: om.pad(x, (1, -1)), lambda x: om.masked_fill(x, om.tensor([True, False]), 0.0)):
        one = om.ones(1, 1).requires_grad_()
        y = f(one.expand(3, 2))
        y.sum().backward()
        copy = om.ones(3, 2).requires_grad_()
        f(copy).sum().backward()
        assert one.grad.shape == (1, 1) and one.grad.item() == copy.grad.numpy().sum()


# -- the layer ----------------------------------------------------------------------------------------------------------------------


def test_embedding_layer():
    om.manual_seed(3)
    layer = nn.Embedding(2000, 8, padding_idx=-1)
    w = layer.weight.detach().numpy()
    assert layer.padding_idx == 1999 and not w[-1].any() and abs(w[:-1].mean()) < 0.05 and abs(w[:-1].std() - 1) < 0.05
    ids = om.tensor([[0, 1999], [5, 5]])
    y = layer(ids)
    y.sum().backward()
    assert y.shape == (2, 2, 8) and layer.weight.grad.numpy()[[0, 5, 1999], 0].tolist() == [1, 2, 0]
    assert list(layer.state_dict()) == ["weight"] and repr(layer) == "Embedding(2000, 8, padding_idx=1999)"
    fixed = nn.Embedding.from_pretrained(om.tensor(w[:4]), padding_idx=0)
    assert not fixed.weight.requires_grad and np.array_equal(fixed(om.tensor([3, 0])).numpy(), w[[3, 0]])
    assert nn.Embedding.from_pretrained(om.tensor(w[:4]), freeze=False).weight.requires_grad


@pytest.mark.parametrize("arguments,error", [((2.0, 3), TypeError), ((2, True), TypeError), ((-1, 3), ValueError), ((2, 2**62), ValueError),
                                             ((2, 3, 2), ValueError), ((2, 3, "a"), TypeError), ((2, 3, None, 1.0), ValueError)])
def test_wrong_arguments_of_the_layer(arguments, error):
    with pytest.raises(error, match="Embedding: "):
        nn.Embedding(*arguments)
