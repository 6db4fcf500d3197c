"""Owns the contract of in-place operations: values, strides, overlap, what is refused. Must not test gradients."""

import numpy as np
import pytest

import onemodel as om


def sample(dtype=np.float32, shape=(2, 3)):
    return np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5, dtype)


def test_in_place_arithmetic():
    t = om.tensor([1.0, 2.0])
    same = t
    t += 1
    t -= om.tensor([0.5])
    t *= om.tensor([2.0, 3.0])
    t /= 2.0
    assert t is same and t.tolist() == [1.5, 3.75] and t.version == 4
    n = om.tensor([1, 2])
    n += 3
    n *= om.tensor([2, 2])
    assert n.tolist() == [8, 10]
    assert t.fill_(2.5).tolist() == [2.5, 2.5] and t.copy_(om.tensor([1, 2])).tolist() == [1.0, 2.0] and t.zero_().tolist() == [0.0, 0.0]


def test_in_place_on_strided_targets():
    base = om.zeros(3, 4)
    base[:, 1::2].add_(om.ones(3, 1))
    base.T[0] += 5.0
    base.flip(0)[0].mul_(2)
    assert base.tolist() == [[5, 1, 0, 1], [5, 1, 0, 1], [10, 2, 0, 2]]


@pytest.mark.parametrize("call,error,words", [
    (lambda t: t.add_(om.ones(3)), ValueError, "do not broadcast"), (lambda t: t.add_(om.ones(2, 2)), ValueError, "does not broadcast to the target"),
    (lambda t: t.copy_(om.ones(3)), ValueError, "broadcast"), (lambda t: t.add_("a"), TypeError, "om.tensor"), (lambda t: t.fill_(om.ones(2)), ValueError, "copy_"),
    (lambda t: t.add_(om.tensor([1, 2])), TypeError, "cast"), (lambda t: t.copy_([1.0, 2.0]), TypeError, "om.tensor"),
    (lambda t: t.expand(3, 2).add_(1), RuntimeError, "overlap"), (lambda t: om.from_numpy(np.lib.stride_tricks.as_strided(sample(), (2, 2), (4, 4))).zero_(), RuntimeError, "overlap"),
    (lambda t: om.tensor([1, 2]).__itruediv__(2), TypeError, "float32"), (lambda t: om.tensor([1], dtype=om.uint8).add_(0.5), TypeError, "cast"),
])
def test_in_place_refuses_and_changes_nothing(call, error, words):
    t = om.tensor([1.0, 2.0])
    with pytest.raises(error, match=words):
        call(t)
    assert t.tolist() == [1.0, 2.0] and t.version == 0


OVERLAPS = {
    "X02_shift_right": (lambda a: a[:, 1:], lambda a: a[:, :-1]), "shift_left": (lambda a: a[:, :-1], lambda a: a[:, 1:]),
    "transposed": (lambda a: a[:4, :4], lambda a: a[:4, :4].T), "flipped": (lambda a: a, lambda a: a[::-1]), "row": (lambda a: a, lambda a: a[:1]),
    "itself": (lambda a: a, lambda a: a), "interleaved": (lambda a: a[:, ::2], lambda a: a[:, 1::2]), "column": (lambda a: a, lambda a: a[:, 2:3]),
}


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("action", ["add_", "copy_", "setitem", "mul_"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_overlapping_operands_act_as_if_copied_first(name, action, dtype):
    a = sample(dtype, (4, 6)) + 1
    target, source = OVERLAPS[name]
    expected, t = a.copy(), om.from_numpy(a.copy())
    x, y = om.from_numpy(target(t.numpy())), om.from_numpy(source(t.numpy()))
    first = source(a)
    if action == "add_":
        target(expected)[...] += first
        x.add_(y)
    elif action == "mul_":
        target(expected)[...] *= first
        x.mul_(y)
    elif action == "copy_":
        target(expected)[...] = first
        x.copy_(y)
    else:
        target(expected)[...] = first
        x[...] = y
    assert t.tolist() == expected.tolist()


def test_overlap_of_views_made_here():
    t = om.arange(6, dtype=om.float32)
    t[1:].copy_(t[:-1])
    assert t.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    t[:-1] += t[1:]
    assert t.tolist() == [0.0, 1.0, 3.0, 5.0, 7.0, 4.0]
    t[[0, 1, 2]] = t[[2, 1, 0]]
    assert t.tolist() == [3.0, 1.0, 0.0, 5.0, 7.0, 4.0]
    t[[0, 1, 2]] = t[3:]
    assert t.tolist() == [5.0, 7.0, 4.0, 5.0, 7.0, 4.0]
