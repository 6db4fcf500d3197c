"""Owns the checks of the lane primitives that have no row of their own: the fused step against rational arithmetic, tails, the control state."""

from fractions import Fraction

import numpy as np
import pytest

from onemodel._kernels import probe, table

ISAS = table.available_isas()


def nearest_float(value):
    """The float32 nearest a Fraction, ties to even, with overflow to infinity: the definition, without floating point."""
    if value == 0:
        return np.float32(0.0)
    sign, value = (-1, -value) if value < 0 else (1, value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    count, rest = divmod(value, unit)
    if rest * 2 > unit or (rest * 2 == unit and count % 2):
        count += 1
    rounded = count * unit
    return np.float32(sign * (float("inf") if rounded >= 2**128 else float(rounded)))


def hard_triples():
    """Products that fall on or a hair beside the middle between two floats, sums that cancel, and the ends of the range."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0x3F800000, 0x40800000, 400, dtype=np.uint32).view(np.float32) for _ in range(2))
    product = a.astype(np.float64) * b.astype(np.float64)
    cancel = -product.astype(np.float32)
    tie = np.float32(1.0) + np.zeros(400, np.float32)
    small = (rng.choice([-1, 1], 400) * 2.0 ** rng.integers(-149, -20, 400)).astype(np.float32)
    half_unit = (rng.choice([-1, 1], 400) * 2.0**-24 * (1 + rng.integers(0, 2, 400))).astype(np.float32)
    two = np.float32(2)
    triples = [(a, b, cancel), (tie, half_unit, tie), (a, tie, small), (half_unit, tie + np.float32(2.0**-23), tie),
               (a * two**-80, b * two**-60, small), (a * two**100, b * two**27, -a * two**120), (a * two**-75, b * two**-75, half_unit * two**-120)]
    # (1 + d)(1 - d) is a hair below one, too little for a double beside c: rounding twice takes the tie upwards from an odd c
    d = (2.0 ** -rng.integers(15, 24, 400)).astype(np.float32)
    odd = (1 + 2.0**-23 * (2 * rng.integers(0, 2**22, 400) + 1)).astype(np.float32)
    triples.append(((1 + d) * np.float32(2**-24), 1 - d, odd))
    triples.append((-(1 + d) * np.float32(2**-24), 1 - d, -odd))
    bits = rng.integers(0, 2**32, (3, 2000), dtype=np.uint32).view(np.float32)
    triples.append(tuple(bits[:, np.isfinite(bits).all(0)]))
    return [np.ascontiguousarray(np.concatenate(column)) for column in zip(*triples, strict=True)]


def test_fused_step_rounds_once():
    a, b, c = hard_triples()
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    want = np.array([nearest_float(value) for value in exact])
    with np.errstate(over="ignore"):
        twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert np.sum(want != twice) > 10, "the triples are too easy: rounding twice gives the same"
    for isa in ISAS:
        got = probe.run("fma", a, b, c, mode=1, isa=isa)
        wrong = np.flatnonzero(got != want)
        assert wrong.size == 0, f"{isa}: fma({a[wrong[0]]!r}, {b[wrong[0]]!r}, {c[wrong[0]]!r}) = {got[wrong[0]]!r}, not {want[wrong[0]]!r}"


def test_fused_step_special_values():
    values = np.array([0.0, -0.0, 1.0, -1.0, 3.4028235e38, -3.4028235e38, 1e-45, -1e-45, np.inf, -np.inf, np.nan], np.float32)
    a, b, c = (np.ascontiguousarray(g.ravel()) for g in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):  # double is exact enough here but for the rounding of finite cases, which the test above covers
        want = (a.astype(np.float64) * b + c).astype(np.float32)
    special = ~np.isfinite(want) | (want == 0)
    for isa in ISAS:
        got = probe.run("fma", a, b, c, mode=1, isa=isa)
        assert np.array_equal(got[special & ~np.isnan(want)].view(np.uint32), want[special & ~np.isnan(want)].view(np.uint32)), isa
        assert np.array_equal(np.isnan(got), np.isnan(want)), isa


@pytest.mark.parametrize("isa", ISAS)
def test_tail_stores_nothing_beyond_the_end(isa):
    for n in range(1, 40):
        out = np.full(n + 32, 7.0, np.float32)
        probe.run("neg", np.ones(n, np.float32), mode=0, isa=isa, out=out[:n])
        assert (out[:n] == -1).all() and (out[n:] == 7).all()
