"""Owns the tests of data sets and the loader: batches, order, and that an interrupted epoch goes on to the bit."""

import copy
import itertools

import numpy as np
import pytest

import onemodel as om
from onemodel.data import DataLoader, TensorDataset


def ten():
    return TensorDataset(om.arange(10, dtype=om.float32).reshape(10, 1), om.arange(10))


def rows(loader):
    return [labels.tolist() for _, labels in loader]


# -- data sets --


def test_a_data_set_of_tensors():
    data = ten()
    assert len(data) == 10
    x, y = data[3]
    assert x.tolist() == [3] and y.item() == 3
    assert [t.tolist() for t in data[2:4]] == [[[2], [3]], [2, 3]]
    assert data[om.tensor([9, 0])][1].tolist() == [9, 0]
    with pytest.raises(IndexError):
        data[10]


@pytest.mark.parametrize(("tensors", "error", "message"), [
    ([], ValueError, "at least one"),
    ([om.ones(3), om.ones(2)], ValueError, r"one length, got shapes \(3,\), \(2,\)"),
    ([om.tensor(1.0)], ValueError, "one length"),
    ([np.ones(3)], TypeError, "from_numpy"),
    ([om.tensor(1.0), 3], TypeError, "from_numpy"),
])
def test_a_data_set_refuses(tensors, error, message):
    with pytest.raises(error, match=message):
        TensorDataset(*tensors)


# -- batches --


def test_in_order():
    loader = DataLoader(ten(), 4)
    assert len(loader) == 3 and rows(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert rows(loader) == rows(loader)
    x, y = next(iter(loader))
    assert x.shape == (4, 1) and y.dtype == np.int64
    assert rows(DataLoader(ten(), 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(DataLoader(ten(), 4, drop_last=True)) == 2
    assert rows(DataLoader(ten())) == [[i] for i in range(10)]
    assert rows(DataLoader(ten(), 100)) == [list(range(10))]


def test_shuffled_by_the_generator_alone():
    a = DataLoader(ten(), 3, shuffle=True, generator=om.Generator(5))
    b = DataLoader(ten(), 3, shuffle=True, generator=om.Generator(5))
    first = rows(a)
    om.rand(100)
    assert rows(b) == first and sorted(sum(first, [])) == list(range(10))
    assert rows(a) == rows(b) != first
    x, y = next(iter(a))
    assert x.reshape(-1).tolist() == y.tolist()


def test_without_a_generator_the_default_one_seeds_it():
    found = []
    for _ in range(2):
        om.manual_seed(3)
        loader = DataLoader(ten(), 3, shuffle=True)
        om.rand(100)
        found.append(rows(loader))
    assert found[0] == found[1]
    om.manual_seed(4)
    assert rows(DataLoader(ten(), 3, shuffle=True)) != found[0]


def test_any_sequence_is_a_data_set():
    data = [(om.full((2,), float(i)), i, {"no": 0}["no"] + i / 2, (np.float32(i), np.full(2, i, np.int32))) for i in range(5)]
    x, i, half, (f, a) = next(iter(DataLoader(data, 2)))
    assert x.tolist() == [[0, 0], [1, 1]] and i.tolist() == [0, 1] and i.dtype == np.int64
    assert half.tolist() == [0, 0.5] and half.dtype == np.float32 and f.tolist() == [0, 1]
    assert a.tolist() == [[0, 0], [1, 1]] and a.dtype == np.int32
    with pytest.raises(TypeError, match="sample must be"):
        next(iter(DataLoader(["a", "b"], 2)))
    with pytest.raises(ValueError, match="different lengths"):
        next(iter(DataLoader([(1, 2), (1,)], 2)))
    shuffled = [int(b) for b in DataLoader(list(range(50)), shuffle=True, generator=om.Generator(1))]
    assert shuffled != list(range(50)) and sorted(shuffled) == list(range(50))


def test_an_empty_data_set_has_no_batch():
    assert rows(DataLoader(TensorDataset(om.zeros(0, 2), om.zeros(0)), 4)) == []


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"batch_size": 0}, ValueError, "at least 1"),
    ({"batch_size": 2.0}, TypeError, "an int"),
    ({"batch_size": True}, TypeError, "an int"),
    ({"shuffle": True, "generator": 3}, TypeError, "om.Generator"),
])
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        DataLoader(ten(), **options)


# -- resuming --


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seen", range(9))  # batches before the interruption: two epochs of four, and one
def test_an_interrupted_run_goes_on_to_the_bit(shuffle, seen, tmp_path):
    def loader():
        return DataLoader(ten(), 3, shuffle=shuffle, generator=om.Generator(8) if shuffle else None)

    def endless(loader):
        while True:
            for _, labels in loader:
                # What else draws from the generator, as augmentation does, must go on too.
                yield labels.tolist(), om.randint(100, 2, generator=loader.generator).tolist() if shuffle else None

    whole = list(itertools.islice(endless(loader()), 20))
    first = loader()
    assert list(itertools.islice(endless(first), seen)) == whole[:seen]
    om.save({"loader": first.state_dict()}, tmp_path / "f")
    second = loader()
    if shuffle:
        om.rand(5, generator=second.generator)
    second.load_state_dict(om.load(tmp_path / "f")["loader"])
    assert list(itertools.islice(endless(second), 20 - seen)) == whole[seen:]


def test_a_state_after_an_epoch_starts_the_next():
    a, b = (DataLoader(ten(), 3, shuffle=True, generator=om.Generator(8)) for _ in range(2))
    rows(a)
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    assert rows(b) == rows(a)


def test_a_state_of_another_loader_is_refused():
    shuffled = DataLoader(ten(), 3, shuffle=True, generator=om.Generator(8))
    state = shuffled.state_dict()
    for change, message in [({"length": 11}, "length 11, this loader 10"), ({"batch_size": 4}, "batch_size"), ({"generator": None}, "shuffles"),
                            ({"more": 1}, "keys"), ({"position": 5}, "position"), ({"position": 2, "epoch_start": om.zeros(3)}, "set_state"), ({"position": 2, "epoch_start": None}, "epoch_start")]:
        with pytest.raises(ValueError, match=message):
            shuffled.load_state_dict({**state, **change})
    with pytest.raises(ValueError, match="shuffles"):
        DataLoader(ten(), 3).load_state_dict(state)


def test_batches_take_no_memory_after_the_first():
    loader = DataLoader(ten(), 2, shuffle=True, generator=om.Generator(1))
    rows(loader)
    before = om.pool_stats()
    rows(loader)
    change = om.pool_stats() - before
    assert change.requests > 0 and change.native_allocations == 0 and change.outstanding_blocks == 0


def test_a_state_that_is_no_dict_is_refused_with_the_loaders_name():
    loader = DataLoader(ten(), 3)
    for state in (None, [], "position", om.ones(2)):
        with pytest.raises(ValueError, match=f"^DataLoader.load_state_dict: expected the keys position, .*, got {type(state).__name__}"):
            loader.load_state_dict(state)
