"""Owns the differential tests of embedding, gather, index_select, masked_fill, cumsum and split against PyTorch: shapes, strides and values made by
hypothesis."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from test_oracle import MODES, F, compare, tensors, torch

import onemodel as om

pytestmark = pytest.mark.oracle


@st.composite
def indices(draw, shape, size):
    """int64 or int32 in [0, size), in some layout, perhaps stretched along the first dimension."""
    n = int(np.prod(shape))
    assume(size > 0 or n == 0)
    values = draw(st.lists(st.integers(0, max(size - 1, 0)), min_size=n, max_size=n))
    array = np.array(values, draw(st.sampled_from([np.int64, np.int32]))).reshape(shape)
    layout = draw(st.sampled_from(["plain", "transposed", "strided", "expanded"]))
    if layout == "transposed":
        return om.tensor(array.T).T
    if layout == "strided" and shape:
        return om.tensor(np.repeat(array, 2, axis=-1))[..., ::2]
    if layout == "expanded" and shape and shape[0]:
        return om.tensor(array[:1]).expand(*shape)
    return om.tensor(array)


def dims(x):
    return st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1)


@given(data=st.data(), mode=MODES)
def test_embedding(data, mode):
    rows, cols = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 9))
    weight = data.draw(tensors(shape=(rows, cols), extreme=data.draw(st.booleans())))
    if rows and data.draw(st.integers(0, 3)) == 0:
        weight = weight.detach()[:1].expand(rows, cols).requires_grad_()
    ids = data.draw(indices(tuple(data.draw(st.lists(st.integers(0, 4), max_size=3))), rows))
    padding = data.draw(st.one_of(st.none(), st.integers(-rows, rows - 1))) if rows else None
    with om.arithmetic(mode):
        compare("embedding", om.embedding, F.embedding, [ids, weight], {"padding_idx": padding})


@given(data=st.data(), mode=MODES)
def test_gather(data, mode):
    x = data.draw(tensors(extreme=data.draw(st.booleans())))
    dim = data.draw(dims(x))
    axis = dim % max(x.ndim, 1)
    shape = tuple(data.draw(st.integers(0, n if d != axis else 6)) for d, n in enumerate(x.shape))
    index = data.draw(indices(shape, x.shape[axis] if x.ndim else 1))
    with om.arithmetic(mode):
        compare("gather", om.gather, lambda x, dim, i: torch.gather(x, dim, i.long()), [x, dim, index])


@given(data=st.data(), mode=MODES)
def test_index_select(data, mode):
    x = data.draw(tensors(extreme=data.draw(st.booleans())))
    dim = data.draw(dims(x))
    shape = (data.draw(st.integers(0, 6)),) if x.ndim and data.draw(st.integers(0, 4)) else ()
    index = data.draw(indices(shape, x.shape[dim] if x.ndim else 1))
    with om.arithmetic(mode):
        compare("index_select", om.index_select, torch.index_select, [x, dim, index])


@given(data=st.data(), value=st.sampled_from([0.0, -1.5, 3, float("-inf"), float("nan")]), as_tensor=st.booleans())
def test_masked_fill(data, value, as_tensor):
    x = data.draw(tensors(extreme=True))
    shape = tuple(n if data.draw(st.booleans()) else 1 for n in x.shape)[data.draw(st.integers(0, x.ndim)):]
    mask = om.tensor(np.random.default_rng(data.draw(st.integers(0, 99))).random(shape) < 0.5)
    if as_tensor:
        value = om.tensor(float(value)).requires_grad_()
    compare("masked_fill", om.masked_fill, torch.masked_fill, [x, mask, value])


@given(data=st.data(), mode=MODES)
def test_cumsum(data, mode):
    x = data.draw(tensors())
    with om.arithmetic(mode):
        compare("cumsum", om.cumsum, torch.cumsum, [x, data.draw(dims(x))])


@given(values=st.lists(st.sampled_from([1.0, -2.0, float("inf"), float("-inf"), float("nan"), 3e38, -3e38, 1e-45]), max_size=7), mode=MODES)
def test_cumsum_of_extreme_values(values, mode):
    with om.arithmetic(mode):
        compare("cumsum", om.cumsum, torch.cumsum, [om.tensor(np.array(values, np.float32)), 0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_])
def test_cumsum_of_integers(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for dim in (0, 1, -2):
        y = om.cumsum(om.tensor(array), dim)
        assert y.dtype == np.int64 and np.array_equal(y.numpy(), torch.cumsum(torch.from_numpy(array), dim).numpy())


@given(data=st.data())
def test_split_and_chunk(data):
    x = data.draw(tensors(extreme=True))
    assume(x.ndim)
    dim = data.draw(dims(x))
    size = x.shape[dim]
    kind = data.draw(st.sampled_from(["size", "sections", "chunks"]))
    if kind == "chunks":
        compare("chunk", om.chunk, torch.chunk, [x, data.draw(st.integers(1, 7)), dim])
    elif kind == "size":
        compare("split", om.split, torch.split, [x, data.draw(st.integers(1 if size else 0, 7)), dim])
    else:
        cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=3)))
        compare("split", om.split, torch.split, [x, [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)], dim])


def test_a_table_of_torch_loads():
    theirs = torch.nn.Embedding(7, 5, padding_idx=2)
    ours = om.nn.Embedding(7, 5, padding_idx=2)
    ours.load_state_dict({name: om.tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    ids = np.array([[2, 0], [6, 6]])
    assert np.array_equal(ours(om.tensor(ids)).detach().numpy(), theirs(torch.from_numpy(ids)).detach().numpy())
