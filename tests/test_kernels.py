"""Owns the checks of kernel rows called by themselves, over all instruction sets and modes; operators have their own tests."""

import math

import numpy as np
import pytest

from onemodel._kernels import probe, table

ISAS = table.available_isas()
INPUTS = probe.INPUTS
ROWS = {name: signature for name, (signature, _) in table.rows().items() if signature in INPUTS}


class Tables:
    """Every (instruction set, mode), the set being the active one meanwhile: asking the processor at each call would take most of the time."""

    def __iter__(self):
        for isa in ISAS:
            table.select_isa(isa)
            yield from ((isa, 0), (isa, 1))


BOTH = Tables()
F = np.float32
NAN, PAYLOAD = F(np.nan), np.array([0xFFC12345], np.uint32).view(F)[0]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-45, -1e-45, 1.1754944e-38, -1.1754942e-38, 3.4028235e38, -3.4028235e38,
                    np.inf, -np.inf, np.nan, PAYLOAD, 88.72284, -87.4, -103.97, 1e20, -1e20, 2.0, -3.0, 1e-20,
                    131072.0, 131073.0, 16777216.0, -14.3, -13.2, 9.1, 20.0, -20.5], F)


def inputs(signature, n, seed=0):
    """Arrays for a row of this class: ordinary numbers, random bit patterns, special values, equal pairs."""
    rng = np.random.default_rng(seed)
    arrays = []
    for k in range(INPUTS[signature]):
        x = np.where(rng.random(n) < 0.6, rng.normal(0, 3, n).astype(F), rng.integers(0, 2**32, n, dtype=np.uint32).view(F))
        x = np.where(rng.random(n) < 0.3, rng.choice(SPECIAL, n), x)
        arrays.append(np.where(rng.random(n) < 0.1, arrays[0], x).astype(F) if k else x.astype(F))
    if signature == "select":
        arrays[0] = rng.integers(0, 2, n).astype(np.uint8)
    return arrays


def bits(x):
    return x.view(np.uint32) if x.dtype == F else x


def same_bits(a, b, mode):
    """Exact mode: every bit. Fast mode: the compiler chooses the operand whose NaN is passed on, so a NaN equals a NaN."""
    same = bits(a) == bits(b)
    return bool(np.all(same if mode or a.dtype != F else same | (np.isnan(a) & np.isnan(b))))


def all_bits(n, seed):
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(F)


@pytest.mark.parametrize("name", ROWS)
def test_result_does_not_depend_on_position_or_length(name):
    arrays = inputs(ROWS[name], 150)
    for isa, mode in BOTH:
        whole = probe.run(name, *arrays, mode=mode, isa=isa)
        for n in range(150):
            assert same_bits(probe.run(name, *(a[:n] for a in arrays), mode=mode, isa=isa), whole[:n], mode), (isa, mode, n)
        for shift in range(1, 17):
            moved = probe.run(name, *(np.roll(a, shift) for a in arrays), mode=mode, isa=isa)
            assert same_bits(np.roll(moved, -shift), whole, mode), (isa, mode, shift)


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name] != "compare"])
def test_output_may_be_an_input(name):
    arrays = inputs(ROWS[name], 200)
    for isa, mode in BOTH:
        want = probe.run(name, *arrays, mode=mode, isa=isa)
        for k, array in enumerate(arrays):
            if array.dtype == F:
                copies = [a.copy() for a in arrays]
                probe.run(name, *copies, mode=mode, isa=isa, out=copies[k])
                assert same_bits(copies[k], want, mode), (isa, mode, k)


@pytest.mark.parametrize("name", ROWS)
def test_exact_bits_agree_on_all_instruction_sets(name):
    arrays = inputs(ROWS[name], 20000, seed=1)
    want = probe.run(name, *arrays, mode=1, isa=ISAS[0])
    for isa in ISAS[1:]:
        got = probe.run(name, *arrays, mode=1, isa=isa)
        wrong = np.flatnonzero(bits(got) != bits(want))
        assert wrong.size == 0, (isa, [a[wrong[0]] for a in arrays], got[wrong[0]], want[wrong[0]])
    if want.dtype == F and name != "where":
        nans = bits(want)[np.isnan(want)]
        assert nans.size and (nans == 0x7FC00000).all()


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_lanes_in_doubt_take_the_double_form(name):
    """Near the middle between two floats a pair of floats cannot tell which is nearer; one lane of 700 is so near."""
    x = np.random.default_rng(6).uniform(-100, 20, 1 << 19).astype(F)
    want = probe.run(name, x, mode=1, isa="scalar")
    for isa in ISAS:
        assert np.array_equal(bits(probe.run(name, x, mode=1, isa=isa)), bits(want)), isa


def test_where_keeps_payloads():
    for isa, mode in BOTH:
        signalling = np.array([0x7F812345, 0xFFFFFFFF], np.uint32).view(F)
        got = probe.run("where", np.array([1, 0], np.uint8), signalling, signalling, mode=mode, isa=isa)
        assert np.array_equal(bits(got), bits(signalling))


# -- functions of one variable against float64 -------------------------------------------------------------------------------------------
each = np.frompyfunc
normal_tail = each(lambda x: math.erfc(-x / math.sqrt(2)) / 2, 1, 1)
K = math.sqrt(2 / math.pi)


def phi(x):
    return normal_tail(x).astype(np.float64)


def density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def tanh_slope(x):
    e = np.exp(-2 * K * (x + 0.044715 * x**3))
    s = 1 / (1 + e)
    return s * (1 + 2 * K * x * (1 + 3 * 0.044715 * x * x) * e * s)


REFERENCE = {
    "sigmoid": lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), 1.0) / (1 + np.exp(-np.abs(x))),
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "square": np.square,
    "gelu_erf": lambda x: x * phi(x),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * K * (x + 0.044715 * x**3))),
}
# units in the last place: (fast, exact); where the reference itself is in doubt by 2^-29 of a unit, 0.5001 asks for the nearest float
BOUND = {"sigmoid": (1.4, 0.5001), "tanh": (1.3, 0.5001), "exp": (1.0, 0.5001), "log": (1.0, 0.5001), "sin": (0.5001, 0.5001),
         "cos": (0.5001, 0.5001), "sqrt": (0.5, 0.5), "square": (0.5, 0.5), "gelu_erf": (2.0, 1.1), "gelu_tanh": (0.5001, 0.5001)}


def ulps(got, want):
    """Distance in units in the last place of the float nearest `want`; agreeing NaN and infinities count 0."""
    size = np.maximum(np.abs(want), 2.0**-126)
    unit = 2.0 ** (np.floor(np.log2(np.where(np.isfinite(size), size, 1.0))) - 23)
    with np.errstate(over="ignore"):
        nearest = want.astype(F)
    distance = np.abs(got.astype(np.float64) - want) / unit
    same = (np.isnan(got) & np.isnan(want)) | (np.isinf(nearest) & (got == nearest))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def points(n, seed):
    rng = np.random.default_rng(seed)
    scaled = np.exp(rng.uniform(-25, 5, n)) * rng.choice([-1, 1], n)
    return np.concatenate([all_bits(n, seed), rng.uniform(-110, 110, n).astype(F), rng.normal(0, 2, n).astype(F), scaled.astype(F), SPECIAL])


def check_bounds(name, x, tables):
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
        for isa, mode in tables:
            got = probe.run(name, x, mode=mode, isa=isa)
            usual = np.isfinite(x) if name.startswith("gelu") else slice(None)  # the reference has inf * 0 there
            error = ulps(got[usual], want[usual])
            worst = int(np.argmax(error))
            assert error[worst] <= BOUND[name][mode], (isa, mode, x[usual][worst], got[usual][worst], want[usual][worst], error[worst])


@pytest.mark.parametrize("name", REFERENCE)
def test_within_bound_of_float64(name):
    check_bounds(name, points(4000, 3), BOTH)


@pytest.mark.full
@pytest.mark.parametrize("name", REFERENCE)
def test_within_bound_of_float64_dense(name):
    best = [(isa, mode) for isa in ISAS[-2:] for mode in (0, 1)]
    step = 3001
    for start in range(0, 2**32, step * 2**18):
        x = np.arange(start, min(start + step * 2**18, 2**32), step, dtype=np.uint64).astype(np.uint32).view(F)
        check_bounds(name, x, best)


def test_bounds_notice_one_flipped_bit():
    x = points(100, 4)
    with np.errstate(all="ignore"):
        want = np.tanh(x.astype(np.float64))
    got = probe.run("tanh", x, mode=1)
    got[5:6].view(np.uint32)[:] ^= 1
    assert ulps(got, want).max() > BOUND["tanh"][1]


# units in the last place, and what serves instead where the slope crosses zero and its terms cancel: (fast, exact)
SLOPES = [("gelu_erf_bwd", lambda x: phi(x) + x * density(x), ((2.2, 2.0**-27), (2.2, 2.0**-27))),
          ("gelu_tanh_bwd", tanh_slope, ((0.51, 2.0**-38), (0.51, 2.0**-38)))]


@pytest.mark.parametrize(("name", "slope", "bound"), SLOPES)
def test_gelu_slopes(name, slope, bound):
    x = np.concatenate([points(4000, 5), np.random.default_rng(5).uniform(-14, 1, 20000).astype(F)])
    x = x[np.abs(x) < 14]
    want = slope(x.astype(np.float64))
    for isa, mode in BOTH:
        got = probe.run(name, x, np.ones_like(x), mode=mode, isa=isa)
        wrong = (ulps(got, want) > bound[mode][0]) & (np.abs(got - want) > bound[mode][1])
        assert not wrong.any(), (isa, mode, x[wrong][0], got[wrong][0], want[wrong][0])


# -- values that rules fix ------------------------------------------------------------------------------------------------------------------
INF = np.inf
EDGES = [
    ("relu", ([NAN, -1, 2, -0.0, 0.0, INF, -INF],), [NAN, 0.0, 2, 0.0, 0.0, INF, 0.0]),
    ("gelu_erf", ([INF, -INF, NAN, -0.0, 0.0, 1e20, -1e20, -14.5],), [INF, -0.0, NAN, -0.0, 0.0, 1e20, -0.0, -0.0]),
    ("gelu_tanh", ([INF, -INF, NAN, -0.0, 0.0, 1e20, -1e20],), [INF, -0.0, NAN, -0.0, 0.0, 1e20, -0.0]),
    ("gelu_tanh_bwd", ([1e20, -1e20, INF, -INF, NAN], [1] * 5), [1, -0.0, 1, -0.0, NAN]),
    ("gelu_erf_bwd", ([1e20, -1e20, INF, -INF, NAN, -14.75, 14.75, 0.0], [1] * 8), [1, -0.0, 1, -0.0, NAN, -0.0, 1, 0.5]),
    ("sigmoid", ([INF, -INF, NAN, 0.0, -200],), [1, 0.0, NAN, 0.5, 0.0]),
    ("tanh", ([INF, -INF, NAN, -0.0, 0.0, 1e-45, -1e-45],), [1, -1, NAN, -0.0, 0.0, 1e-45, -1e-45]),
    ("exp", ([INF, -INF, NAN, 89, -104, 0.0],), [INF, 0.0, NAN, INF, 0.0, 1]),
    ("log", ([INF, -INF, NAN, 0.0, -0.0, 1, -1],), [INF, NAN, NAN, -INF, -INF, 0.0, NAN]),
    ("sin", ([INF, -INF, NAN, 0.0, -0.0],), [NAN, NAN, NAN, 0.0, -0.0]),
    ("cos", ([INF, -INF, NAN, 0.0, -0.0],), [NAN, NAN, NAN, 1, 1]),
    ("sqrt", ([0.0, -0.0, -1, INF],), [0.0, -0.0, NAN, INF]),
    ("sqrt_bwd", ([0.0, 2, INF], [1, 1, 1]), [INF, 0.25, 0.0]),
    ("abs_bwd", ([0.0, -0.0, 2, -2, NAN], [3] * 5), [0.0, 0.0, 3, -3, 0.0]),
    ("relu_bwd", ([0.0, NAN, 2, -1], [3, 3, 3, NAN]), [0.0, 0.0, 3, 0.0]),
    ("maximum", ([1, NAN, 1, INF], [2, 1, NAN, NAN]), [2, NAN, NAN, NAN]),
    ("minimum", ([1, NAN, 1, INF], [2, 1, NAN, NAN]), [1, NAN, NAN, NAN]),
    ("maximum_bwd", ([1, 2, 3], [2, 2, 2], [8, 8, 8]), [0.0, 4, 8]),
    ("minimum_bwd", ([1, 2, 3], [2, 2, 2], [8, 8, 8]), [8, 4, 0.0]),
    ("clamp", ([NAN, -5, 0.5, 5, 5], [-1, -1, -1, -1, 2], [1, 1, 1, INF, 1]), [NAN, -1, 0.5, 5, 1]),
    ("clamp_bwd", ([-1, 1, 0, -1.5, 1.5, NAN], [-1] * 6, [1] * 6, [7] * 6), [7, 7, 7, 0.0, 0.0, 0.0]),
    ("pow_bwd_a", ([0.0, 2, 0.0, 3], [0.0, 0.0, 2, 2], [5, 5, 5, 5]), [0.0, 0.0, 0.0, 30]),
    ("pow_bwd_b", ([0.0, 0.0, 1, 2], [2, 0.0, 3, 0.0], [5, 5, 5, 5]), [0.0, 0.0, 0.0, 5 * math.log(2)]),
    ("div_bwd_b", ([3, 3, 1e-25, 1e25, 0], [2, 0.0, 1e-25, 1e25, 1e-40], [4, 4, 1, 1, 1]), [-3, -INF, -F(1) / F(1e-25), -F(1) / F(1e25), -0.0]),
    # C99 F.9.4.4
    ("pow", ([0.0, -0.0, -0.0, 0.0, -0.0, -0.0, -1, -1, NAN, 1, 1, -8, -8], [-3, -3, -2, 3, 3, 0.5, INF, -INF, 0.0, NAN, INF, 1 / 3, 3]),
     [INF, -INF, INF, 0.0, -0.0, 0.0, 1, 1, 1, 1, 1, NAN, -512]),
    ("pow", ([0.5, 0.5, 2, 2, -INF, -INF, -INF, -INF, INF, INF, -INF, -2, -2], [-INF, INF, -INF, INF, -3, -2, 3, 2.5, -1, 2, -0.5, 16777217, 127]),
     [INF, 0.0, 0.0, INF, -0.0, 0.0, -INF, INF, 0.0, INF, 0.0, INF, -1.7014118e38]),
]


@pytest.mark.parametrize(("name", "arrays", "want"), EDGES)
def test_edge_values(name, arrays, want):
    arrays, want = [np.array(a, F) for a in arrays], np.array(want, F)
    for isa, mode in BOTH:
        got = probe.run(name, *arrays, mode=mode, isa=isa)
        near = np.isfinite(want) & (want != 0) & np.isclose(got, want, rtol=2e-7, atol=0)
        assert (near | (bits(got) == bits(want)) | (np.isnan(got) & np.isnan(want))).all(), (isa, mode, got, want)


def test_pow_within_one_unit():
    rng = np.random.default_rng(6)
    a = np.concatenate([np.exp(rng.uniform(-80, 80, 4000)), rng.normal(1, 0.01, 2000), rng.uniform(0, 10, 2000)]).astype(F)
    b = np.concatenate([rng.normal(0, 1, 4000), rng.normal(0, 5000, 2000), rng.integers(-20, 20, 2000)]).astype(F)
    a[::3] *= np.where(b[::3] == np.round(b[::3]), F(-1), F(1))
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
    for isa, mode in BOTH:
        error = ulps(probe.run("pow", a, b, mode=mode, isa=isa), want)
        assert error.max() <= 0.51, (isa, mode, a[error.argmax()], b[error.argmax()])


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name] == "compare"])
def test_comparisons(name):
    a, b = inputs("compare", 1000, seed=7)
    want = getattr(np, {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}[name])(a, b)
    for isa, mode in BOTH:
        assert np.array_equal(probe.run(name, a, b, mode=mode, isa=isa), want.astype(np.uint8))


def test_arithmetic_is_one_ieee_operation():
    a, b, g = inputs("map3", 3000, seed=8)
    y = np.abs(a)
    with np.errstate(all="ignore"):
        wants = {"add": ((a, b), a + b), "sub": ((a, b), a - b), "mul": ((a, b), a * b), "div": ((a, b), a / b), "square": ((a,), a * a),
                 "sqrt": ((a,), np.sqrt(a)), "neg": ((a,), -a), "abs": ((a,), np.abs(a)), "sigmoid_bwd": ((y, g), g * y * (1 - y)),
                 "tanh_bwd": ((y, g), g * (1 - y * y)), "sqrt_bwd": ((y, g), g / (2 * y)), "square_bwd": ((a, g), g * (2 * a)),
                 "div_bwd_b": ((a, b, g), -(g * ((a / b) / b)))}
        wants["sin_bwd"] = ((a, g), g * probe.run("cos", a, mode=1))
        wants["cos_bwd"] = ((a, g), -(g * probe.run("sin", a, mode=1)))
    for name, (arrays, want) in wants.items():
        for isa, mode in BOTH:
            got = probe.run(name, *arrays, mode=mode, isa=isa)
            same = (bits(got) == bits(want)) | (np.isnan(got) & np.isnan(want))
            assert same.all(), (name, isa, mode, [x[~same][0] for x in arrays])


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["maximum", "minimum", "pow", "clamp"])
def test_gradient_rules_are_those_of_torch(name):
    import torch

    rng = np.random.default_rng(9)
    values = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, INF, -INF, NAN], F)
    a, b, c = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(values, values, values if name == "clamp" else F(0)))
    g = rng.normal(0, 1, a.size).astype(F)
    ta, tb, tc = (torch.tensor(v, requires_grad=True) for v in (a, b, c))
    if name == "clamp":
        torch.clamp(ta, tb.detach(), tc.detach()).backward(torch.tensor(g))
        wants = [("clamp_bwd", (a, b, c, g), ta.grad)]
    else:
        getattr(torch, name)(ta, tb).backward(torch.tensor(g))
        wants = [("pow_bwd_a", (a, b, g), ta.grad), ("pow_bwd_b", (a, b, g), tb.grad)] if name == "pow" else [
            (f"{name}_bwd", (a, b, g), ta.grad), (f"{name}_bwd", (b, a, g), tb.grad)]
    for row, arrays, want in wants:
        want = want.numpy()
        for isa, mode in BOTH:
            got = probe.run(row, *arrays, mode=mode, isa=isa)
            same = np.isclose(got, want, rtol=1e-6, atol=0, equal_nan=True)
            assert same.all(), (row, isa, mode, [x[~same][0] for x in arrays], got[~same][0], want[~same][0])


def test_probe_refuses_what_it_cannot_run():
    x = np.ones(3, F)
    with pytest.raises(ValueError, match="no element-wise row"):
        probe.run("no_such_row", x, mode=0)
    with pytest.raises(ValueError, match="expected 2 arrays"):
        probe.run("add", x, mode=0)
    with pytest.raises(TypeError, match="contiguous float32"):
        probe.run("add", x, np.ones(4, F), mode=0)
    with pytest.raises(TypeError, match="contiguous float32"):
        probe.run("neg", x.astype(np.float64), mode=0)
