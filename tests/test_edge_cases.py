"""Owns the cases that have broken other frameworks, one test each with its id and value, run in both modes and on every instruction set.

Rows on views, graphs, versions and interop stand in test_autograd.py and test_tensor.py under the same ids.
"""

import ctypes
import math
import mmap
import os
import platform
import threading
import time

import numpy as np
import pytest

import onemodel as om
from onemodel._kernels import table
from onemodel._pool import pool

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=[(isa, mode) for isa in table.available_isas() for mode in om.modes.MODES], ids=lambda p: "-".join(p))
def path(request):
    """The test runs on each instruction set in each mode, in the smallest pieces."""
    isa, mode = request.param
    table.select_isa(isa)
    om.set_arithmetic(mode)
    table.set_smallest_piece(1)
    return request.param


def close(t, expected, relative=1e-6):
    array, expected = t.detach().numpy(), np.asarray(expected, np.float64)
    assert array.shape == expected.shape
    np.testing.assert_allclose(array, expected, rtol=relative, atol=1e-12)


def leaf(data):
    return om.tensor(data, requires_grad=True)


def signs(t):
    return np.signbit(t.detach().numpy()).tolist()


# -- activations ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 15, 37, 150])
def test_R01_relu_of_nan_and_negative_zero(path, length):
    x = np.resize(np.float32([NAN, -1, 2, -0.0]), length)
    y = om.relu(om.tensor(x))
    expected = np.resize(np.float32([NAN, 0, 2, 0]), length)
    assert np.array_equal(y.numpy(), expected, equal_nan=True) and not any(signs(y)[i] for i in range(length) if i % 4)


def test_R02_slope_of_relu(path):
    for length in (1, 37):
        x = leaf(np.resize(np.float32([NAN, 0.0, -0.0, 1e-45]), length))
        om.relu(x).backward(om.ones(length))
        assert x.grad.tolist() == np.resize([0.0, 0.0, 0.0, 1.0], length).tolist()


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_G01_gelu_at_the_infinities(path, form):
    for repeat in (1, 13):
        y = om.gelu(om.tensor([INF, -INF, NAN] * repeat), form).numpy()
        assert (y[::3] == INF).all() and (y[1::3] == 0).all() and np.isnan(y[2::3]).all()
    assert signs(om.gelu(om.tensor([-INF]), form)) == [True]


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_G02_slope_of_gelu_far_out(path, form):
    x = leaf([1e20, -1e20, 3e38, -3e38] * 10)
    om.gelu(x, form).backward(om.ones(40))
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 0.0] * 10


ONE_VARIABLE = ["tanh", "sigmoid", "exp", "gelu", "gelu_tanh", "sin", "cos", "log", "sqrt", "relu", "silu", "softplus", "leaky_relu", "elu"]


def words(t):
    """The different values as bits; in fast mode the sign and payload of a NaN are whatever the hardware makes."""
    found = t.detach().numpy()
    if om.get_arithmetic() == "fast":
        found = np.where(np.isnan(found), np.float32(NAN), found)
    return set(np.ascontiguousarray(found).view(np.uint32).reshape(-1).tolist())


@pytest.mark.parametrize("name", ONE_VARIABLE)
@pytest.mark.parametrize("value", [0.7310586, -1.9, 20.0, 1e-40, NAN, INF])
def test_T01_a_value_depends_on_no_position_or_stride(path, name, value):
    function = (lambda t: om.gelu(t, "tanh")) if name == "gelu_tanh" else getattr(om, name)

    def bits(t):
        x = t.clone().requires_grad_()
        y = function(x)
        y.backward(om.ones_like(y))
        return words(y), words(x.grad)

    one = bits(om.tensor([value]))
    for length in [*range(2, 41), 64, 100, 127, 150]:
        assert bits(om.full((length,), value)) == one, length
    wide = om.full((40, 3), value)
    for view in (wide[:, 1], wide.T, wide[::2], wide.flip(0), wide[:1, :1].expand(33, 5)):
        y = function(view)
        assert words(y) == one[0]


# -- matmul ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def poisoned():
    """Every block holds signalling NaN when it is taken and when it went back."""
    old = pool.set_pool_poison(True)
    yield
    pool.set_pool_poison(old)


def test_M02_no_inner_dimension(path, poisoned):
    a, b = om.zeros(3, 0, requires_grad=True), om.zeros(0, 5, requires_grad=True)
    y = a @ b
    assert y.tolist() == [[0.0] * 5] * 3 and not any(map(any, signs(y)))
    y.sum().backward()
    assert a.grad.shape == (3, 0) and b.grad.shape == (0, 5)
    assert om.linear(om.zeros(2, 0), om.zeros(4, 0), om.ones(4)).tolist() == [[1.0] * 4] * 2


def test_M04_batch_dimensions_of_several_strides(path):
    x = om.tensor(np.arange(120, dtype=np.float32).reshape(2, 5, 3, 4) % 7).transpose(1, 2).requires_grad_()
    w = om.tensor(np.arange(144, dtype=np.float32).reshape(2, 3, 4, 6) % 5).requires_grad_()
    dense, w2 = x.detach().contiguous().requires_grad_(), w.detach().clone().requires_grad_()
    y, z = x @ w, dense @ w2
    assert y.shape == (2, 3, 5, 6) and y.sha256() == z.sha256() == om.tensor(x.detach().numpy() @ w.detach().numpy()).sha256()
    y.sum().backward()
    z.sum().backward()
    assert x.grad.sha256() == dense.grad.sha256() and w.grad.sha256() == w2.grad.sha256()


@pytest.mark.parametrize("m,k,n", [(1, 1, 1), (3, 5, 2), (17, 33, 9), (70, 65, 33), (1, 300, 7)])
def test_M05_products_store_and_never_scale_what_was_there(path, poisoned, m, k, n):
    a, b = om.ones(m, k, requires_grad=True), om.ones(k, n, requires_grad=True)
    y = a @ b
    assert (y.detach().numpy() == k).all()
    y.backward(om.ones(m, n))
    assert (a.grad.numpy() == n).all() and (b.grad.numpy() == m).all()


@pytest.mark.parametrize("a,b", [((6, 2), (1,)), ((3, 1), (1, 5)), ((2, 3), (3,)), ((), (7,)), ((2, 3, 1, 5), (3, 1, 5)), ((2, 3, 1, 5), (1, 5))])
def test_M09_M10_gradients_have_their_operands_shape(path, a, b):
    x, y = om.ones(*a, requires_grad=True), om.full(b, 2.0, requires_grad=True)
    z = x * y
    w = np.arange(z.numel(), dtype=np.float32).reshape(z.shape) + 1
    z.backward(om.tensor(w))

    def summed(array, shape):
        lead = tuple(range(array.ndim - len(shape)))
        array = array.sum(lead)
        return array.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True).reshape(shape)

    assert x.grad.tolist() == summed(w * 2, a).tolist() and y.grad.tolist() == summed(w, b).tolist()


def test_M09_bias(path):
    b = om.zeros(3, requires_grad=True)
    (om.ones(2, 3) + b).sum().backward()
    assert b.grad.tolist() == [2.0, 2.0, 2.0]


# -- sums -----------------------------------------------------------------------------------------------------------------------


def test_U01_a_column_of_more_than_2_to_the_24_ones(path):
    x = om.ones(1, 1).expand(2**24 + 4096, 2)
    assert x.sum(0).tolist() == [16781312.0, 16781312.0] and x.mean(0).tolist() == [1.0, 1.0]


def test_U02_many_equal_decimals(path):
    x = om.full((1000, 1000), 0.3)
    assert x.sum().item() == 300000.0 and x.sum((1, 0)).item() == 300000.0 and x.T.sum().item() == 300000.0


# -- losses ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
def test_L01_all_targets_ignored(path, loss):
    function = getattr(om, loss)
    targets = om.full((4,), -100)
    for reduction, expected in (("none", [0.0] * 4), ("sum", 0.0), ("mean", NAN)):
        x = leaf(np.float32(np.arange(12).reshape(4, 3)))
        y = function(x, targets, reduction=reduction)
        assert np.array_equal(y.detach().numpy(), np.float32(expected), equal_nan=True)
        y.backward(om.ones_like(y))
        assert x.grad.tolist() == [[0.0] * 3] * 4


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_L03_the_ignored_index_may_lie_outside_the_classes(path, reduction):
    x = leaf(np.float32(np.arange(20).reshape(4, 5) % 3))
    y = om.cross_entropy(x, om.tensor([4, 200, 0, 1]), ignore_index=200, reduction=reduction)
    rows = om.cross_entropy(x.detach()[[0, 2, 3]], om.tensor([4, 0, 1]), reduction="none").tolist()
    expected = {"none": [rows[0], 0.0, *rows[1:]], "sum": sum(rows), "mean": sum(rows) / 3}[reduction]
    close(y, expected)
    y.backward(om.ones_like(y))
    assert x.grad.tolist()[1] == [0.0] * 5
    with pytest.raises(IndexError):
        om.cross_entropy(x, om.tensor([4, 200, 0, 1]))
    for wrong in (5, -1, 2**40):
        with pytest.raises(IndexError, match="out of range|class"):
            om.nll_loss(x, om.tensor([4, wrong, 0, 1]), ignore_index=200)


@pytest.mark.parametrize("row,expected", [([3.0, 1.0, 0.0], 2.1698460), ([-2.0, 1.0, 0.0], 0.3490122), ([-INF, 1.0, 0.0], 0.3132617)])
def test_L06_the_ignored_class_stays_in_the_denominator(path, row, expected):
    close(om.cross_entropy(om.tensor([row]), om.tensor([1]), ignore_index=0), expected)


@pytest.mark.parametrize("size", [1.0, 3e9, 1e20, 1e36, -1e36, 0.0])
def test_L07_large_equal_logits(path, size):
    close(om.cross_entropy(om.tensor([[size] * 3]), om.tensor([2])), 1.0986123)


def test_L08_the_mean_divides_by_the_rows_that_count(path):
    x = om.tensor(np.float32(np.arange(60).reshape(6, 10) % 7))
    targets = om.tensor([7, 1, 7, 3, 9, 7])
    rows = om.cross_entropy(x, targets, ignore_index=7, reduction="none").tolist()
    assert [r == 0 for r in rows] == [True, False, True, False, False, True]
    close(om.cross_entropy(x, targets, ignore_index=7), sum(rows) / 3)
    close(om.nll_loss(om.log_softmax(x, 1), targets, ignore_index=7), sum(rows) / 3)


# -- softmax --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1])
def test_S02_one_infinity_makes_the_row_nan(path, dim):
    x = om.tensor([[5.0, INF, -1.0]])
    for function in (om.softmax, om.log_softmax):
        y = function(x if dim else x.T, dim)
        assert np.isnan(y.numpy()).all()


def test_S03_gradient_at_a_masked_place(path):
    x = leaf([1.0, 2.0, 2.0, 3.0])
    y = om.softmax(x + om.tensor([0.0, -INF, 0.0, 0.0]), 0)
    close(y, [0.0900306, 0.0, 0.2447285, 0.6652410], 2e-6)
    y[0].backward()
    close(x.grad, [0.0819251, 0.0, -0.0220330, -0.0598920], 3e-6)
    assert x.grad.tolist()[1] == 0.0


def test_S04_log_softmax_backward_never_multiplies_by_its_output(path):
    x = leaf([0.0, 0.0, -INF])
    om.log_softmax(x, 0).backward(om.tensor([1.0, 0.0, 0.0]))
    assert x.grad.tolist() == [0.5, -0.5, 0.0]


def test_S05_no_overflow(path):
    assert om.log_softmax(om.tensor([89.5]), 0).tolist() == [0.0] and om.softmax(om.tensor([400.0, -300.0]), 0).tolist() == [1.0, 0.0]
    assert om.logsumexp(om.tensor([1e38, 1e38]), 0).item() == np.float32(1e38)


# -- joins, views, casts --------------------------------------------------------------------------------------------------------


def test_H02_an_empty_tensor_promotes_nothing():
    with pytest.raises(TypeError, match=r"\.cast\(om\."):
        om.cat([om.tensor([1, 2, 3]), om.zeros(0)])


@pytest.mark.parametrize("count,shape", [(12, (-3, -4)), (12, (0, -1)), (12, (2**31, 2**31, 4, -1)), (1, (-1, -1)), (12, (2**62, 2**62)), (0, (2**63, 0))])
def test_H03_impossible_shapes(count, shape):
    with pytest.raises(ValueError):
        om.zeros(count).reshape(*shape)


def test_H04_a_free_size_beside_zero():
    with pytest.raises(ValueError, match="ambiguous"):
        om.zeros(2, 0, 3).reshape(0, -1)
    assert om.zeros(0, 4).reshape(-1, 4).shape == (0, 4)


def test_H05_stepped_slices():
    z = om.zeros(4, 2, requires_grad=True)
    ((z[1::4] * om.tensor([5.0, 7.0])).sum() + (z[2::2] * om.tensor([10.0, 20.0])).sum()).backward()
    assert z.grad.tolist() == [[0, 0], [5, 7], [10, 20], [0, 0]]


def test_H07_bounds_of_slices():
    x = om.arange(3)
    assert (x[2:1].tolist(), x[1:3].tolist(), x[5:10].tolist(), x[-9:1].tolist(), x[::2**62].tolist()) == ([], [1, 2], [], [0], [0])
    for step in (-1, 0, -(2**70)):
        with pytest.raises(ValueError, match="positive"):
            x[::step]


def test_H08_gradients_of_stretched_views_add_up():
    x = om.ones(1, requires_grad=True)
    w = om.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    (x.expand(2, 3) * w).sum().backward()
    assert x.grad.tolist() == [21.0]
    y = om.ones(3, requires_grad=True)
    (y.expand(4, 2, 3) * w).sum().backward()
    assert y.grad.tolist() == [20.0, 28.0, 36.0]
    z = om.ones(2, 1, requires_grad=True)
    (z.expand(5, 2, 3)[1:, :, 1:] * 1).sum().backward()
    assert z.grad.tolist() == [[8.0], [8.0]]


def test_H09_flip_of_two_dimensions():
    x = om.tensor(np.float32(np.arange(24).reshape(2, 1, 3, 4)))
    assert x.flip([0, 3]).shape == (2, 1, 3, 4) and x.flip([0, 3]).tolist() == x.flip(0).flip(3).tolist() == x.flip(3).flip(0).tolist()


@pytest.mark.parametrize("dtype,low,high,big", [("int32", -(2**31), 2**31 - 1, 2**31 - 1), ("int64", -(2**63), 2**63 - 1, 3_000_000_000), ("uint8", 0, 255, 255)])
def test_H12_casts_saturate_alike_in_body_and_tail(path, dtype, low, high, big):
    row = [NAN, INF, -INF, 3e9, -1.9, 1.9, -0.5, 1e30, -1e30]
    expected = [0, high, low, big, 0 if low == 0 else -1, 1, 0, high, low]
    for length in [*range(1, 40), 100]:
        assert om.tensor(np.resize(np.float32(row), length)).cast(dtype).tolist() == np.resize(np.array(expected, dtype), length).tolist()
    wide = om.tensor(np.resize(np.float32(row), (9, 30))).T
    assert np.array_equal(wide.cast(dtype).numpy(), wide.contiguous().cast(dtype).numpy())
    assert om.tensor(row, dtype=dtype).tolist() == expected


def test_H13_squeeze_of_a_scalar():
    s = om.ones(())
    assert s.squeeze(-1).shape == s.squeeze(0).shape == s.squeeze().shape == ()
    for wrong in (-2, 1):
        with pytest.raises(IndexError):
            s.squeeze(wrong)


# -- engine ---------------------------------------------------------------------------------------------------------------------


def test_X04_saved_integers_are_watched():
    x, target = leaf([[1.0, 2.0], [3.0, 4.0]]), om.tensor([0, 1])
    y = om.nll_loss(x, target)
    target.mul_(0)
    with pytest.raises(om.TensorVersionError):
        y.backward()


def test_X27_scattering_backwards_starts_from_zeros(poisoned):
    x, ids = om.zeros(5, 3, requires_grad=True), om.tensor([0, 0, 4])
    for _ in range(3):
        om.clear_grad(x)
        (x[ids].sum() + (x[1:4:2] * 2).sum() + om.nll_loss(x, om.tensor([0, 1, 2, 0, 1]), reduction="sum") + x.amax(1).sum()).backward()
        assert np.isfinite(x.grad.numpy()).all() and x.grad.sum().item() == 9 + 12 - 5 + 5
    assert x.grad.tolist()[3][1:] == pytest.approx([2 + 1 / 3] * 2)


# -- memory ---------------------------------------------------------------------------------------------------------------------


def test_Y01_random_shapes_do_not_grow_the_pool():
    random = np.random.default_rng(0)

    def step():
        h, w = random.integers(24, 161, 2)
        x = om.ones(4, int(h), int(w), requires_grad=True)
        (x.tanh() * 2 + 1).sum().backward()

    for _ in range(200):
        step()
    settled = om.pool_stats().native_bytes
    live = 4 * 160 * 160 * 4
    for _ in range(800):
        step()
    assert om.pool_stats().native_bytes <= max(settled, 16 * live) + 2 * live


def test_Y02_trim_gives_memory_back():
    x = om.zeros(1 << 24)
    held = om.pool_stats().native_bytes
    del x
    om.pool_trim()
    assert om.pool_stats().native_bytes <= held - (1 << 26) + (1 << 22)


def test_Y03_peak_counts_exactly_and_resets():
    om.pool_reset_peak()
    start = om.pool_stats()
    x = om.zeros(1 << 20)
    del x
    peak = om.pool_stats().peak_outstanding_bytes - start.outstanding_bytes
    assert 1 << 22 <= peak <= (1 << 22) * 5 // 4
    om.pool_reset_peak()
    assert om.pool_stats().peak_outstanding_bytes == om.pool_stats().outstanding_bytes


# -- fork, threads, reproducibility ---------------------------------------------------------------------------------------------


def work():
    """One of everything that shares work between threads, forward and backward; its digests."""
    random = np.random.default_rng(3)
    x = om.tensor(random.standard_normal((32, 63)).astype(np.float32)).requires_grad_()
    w = om.tensor(random.standard_normal((500, 63)).astype(np.float32)).requires_grad_()
    b = om.tensor(random.standard_normal(500).astype(np.float32)).requires_grad_()
    y = om.gelu(om.linear(x, w, b))
    z = om.log_softmax(y, 1) + om.softmax(y, 0) * y.mean(1, keepdim=True) + om.logsumexp(y, 1).unsqueeze(1) + y.amax(0)
    om.cross_entropy(z, om.tensor(random.integers(0, 500, 32))).backward()
    return [t.sha256() for t in (y, z, x.grad, w.grad, b.grad)]


def test_O01_no_bit_depends_on_the_number_of_threads(path):
    om.set_num_threads(1)
    expected = work()
    for threads in (2, 3, 5, 8):
        om.set_num_threads(threads)
        for _ in range(3):
            assert work() == expected
    end = time.monotonic() + 20
    while table.last_threads() < 2 and time.monotonic() < end:  # a busy machine may leave a small job to its caller
        om.ones(1 << 18).exp()
    assert table.last_threads() > 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_F01_parent_and_child_go_on_after_fork():
    om.set_num_threads(3)
    table.set_smallest_piece(1)
    expected = work()
    child = os.fork()
    if child == 0:
        os._exit(0 if work() == expected else 1)
    timer = threading.Timer(60, os.kill, (child, 9))
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0 and work() == expected


def test_F04_many_inference_threads_share_weights():
    random = np.random.default_rng(3)
    w = om.tensor(random.standard_normal((200, 100)).astype(np.float32))
    inputs = [om.tensor(random.standard_normal((16, 100)).astype(np.float32)) for _ in range(8)]

    def infer(x):
        with om.no_grad(), om.ActivationScope():
            return om.softmax(om.linear(x, w).tanh(), 1).sha256()

    expected = [infer(x) for x in inputs]
    found = [[] for _ in inputs]

    def run(i):
        for _ in range(20):
            found[i].append(infer(inputs[i]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert [set(f) for f in found] == [{e} for e in expected] and all(len(f) == 20 for f in found)


class ControlWord:
    """Reads and writes the floating-point control word of x86-64 (MXCSR) by eight bytes of machine code."""

    def __init__(self):
        self.code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.code.write(bytes.fromhex("0fae17c3 0fae1fc3"))  # ldmxcsr [rdi]; ret; stmxcsr [rdi]; ret
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.code))
        self.word = ctypes.c_uint32()

    def call(self, offset):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.start + offset)(ctypes.addressof(self.word))

    def read(self):
        self.call(4)
        return self.word.value

    def write(self, value):
        self.word.value = value
        self.call(0)


def test_M04_leading_sizes_of_one_have_no_stride(path):
    x = om.tensor(np.random.default_rng(4).normal(size=(2, 8, 5)).astype(np.float32))
    w = om.tensor(np.random.default_rng(5).normal(size=(3, 5)).astype(np.float32))
    for view in (x.flip(1).unsqueeze(1), x.flip(1).unsqueeze(2), x.reshape(2, 1, 8, 5).flip(2), x[:, :1].unsqueeze(2), x[:, None, 2:3], x[:1].expand(4, 8, 5)):
        flat = om.tensor(np.ascontiguousarray(view.numpy()).reshape(-1, 5))
        expected = (flat @ w.T).tolist()
        for product in (lambda v: om.linear(v, w), lambda v: v @ w.T):
            y = view.detach().requires_grad_()
            result = product(y)
            assert result.reshape(-1, 3).tolist() == expected
            g = om.tensor(np.random.default_rng(6).normal(size=(*result.shape[::-1],)).astype(np.float32)).permute(*range(result.ndim - 1, -1, -1))
            result.backward(g)
            close(y.grad, g.numpy().astype(np.float64) @ w.numpy().astype(np.float64), 1e-4)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets MXCSR, which is x86-64's")
@pytest.mark.parametrize("threads", [1, 8])
def test_D02_the_callers_flush_mode_neither_matters_nor_changes(path, threads):
    control = ControlWord()
    om.set_num_threads(threads)
    x = om.full((5000,), 1e-40)
    half = om.full((8, 64), 2e-23)
    rows, weight, bias = om.full((20, 80), 1.0), leaf(np.ones((300, 80))), leaf(np.zeros(300))
    image, kernel = om.full((2, 16, 6, 6), 1.0), leaf(np.ones((16, 16, 3, 3)))
    to_rows, to_image = om.full((20, 300), 1e-42), om.full((2, 16, 2, 2), 1e-42)

    def gradients():
        """Sums in double that are rounded to subnormals, and chains that end there; weights of gradients whose rows are many enough to be packed."""
        y, z = om.linear(rows, weight, bias), om.conv_relu_pool2d(image, kernel, bias[:16])
        return [*om.grad(y, [weight, bias], to_rows), *om.grad(z, [kernel, bias], to_image)]

    def digests():
        return [t.sha256() for t in gradients()] + [t.sha256() for t in (x * 1.0, x + x, x.sum(), half @ (half.T * 1e-20), om.relu(x), om.softmax(x, 0), x.cast(om.int32), om.maximum(x, 0.0))]

    expected = digests()
    assert (x * 1.0).tolist() == x.tolist()
    before = control.read()
    try:
        control.write(before | 0x8040)  # flush to zero, denormals are zero
        found = digests()
        after = control.read()
    finally:
        control.write(before)
    assert found == expected
    assert after & 0x8040 == 0x8040


def test_D01_denormals_are_kept(path):
    x = leaf([1e-40, -1e-45, 1e-38])
    y = x * 0.5
    assert y.tolist() == (x.detach().numpy() * np.float32(0.5)).tolist() and y.tolist()[0] != 0
    y.backward(om.tensor([1e-40, 1e-40, 1.0]))
    assert x.grad.tolist()[0] == float(np.float32(1e-40) * np.float32(0.5)) and math.copysign(1, y.tolist()[1]) == -1
