"""Fits the polynomials of onemodel/_kernels/lane_math.h and lane_pieces.h and prints each as C coefficients with the bound it reaches.

Owns where the coefficients come from; must not contain what the kernels do with them. Needs mpmath.

Each entry is a weighted least-squares fit on Chebyshev nodes with 80 digits (close to the minimax polynomial); then the lowest
coefficient is rounded to the kernel's type, the rest is fitted again to what is left, and so on, so that the rounding of a coefficient
is absorbed by those above it. The printed bound is the largest weighted error of the rounded polynomial on a dense grid.
"""

import argparse
import struct
from functools import partial

import mpmath as mp

mp.mp.dps = 80


def to_double(c):
    return mp.mpf(float(c))


def to_float(c):
    return mp.mpf(struct.unpack("f", struct.pack("f", float(c)))[0])


def nodes(lo, hi, n):
    return [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]


def fit(f, lo, hi, degree, rounded, weight):
    """Coefficients c[0..degree], lowest first, rounded one after the other."""
    xs = nodes(mp.mpf(lo), mp.mpf(hi), 12 * (degree + 1))
    squares = [weight(x) ** 2 for x in xs]
    left = [f(x) for x in xs]
    done = []
    for first in range(degree + 1):
        n = degree + 1 - first
        moments = [sum(w * x**p for w, x in zip(squares, xs, strict=True)) for p in range(2 * first, 2 * degree + 1)]
        rhs = mp.matrix([sum(w * y * x ** (first + j) for w, x, y in zip(squares, xs, left, strict=True)) for j in range(n)])
        rows = mp.matrix([[moments[i + j] for j in range(n)] for i in range(n)])
        done.append(rounded(mp.lu_solve(rows, rhs)[0]))
        left = [y - done[-1] * x**first for x, y in zip(xs, left, strict=True)]
    return done


def worst(f, coefficients, lo, hi, weight):
    """Largest |weight(x) * (f(x) - p(x))| on 2 000 points that lean towards both ends."""
    return max(abs(weight(x) * (f(x) - mp.polyval(coefficients[::-1], x))) for x in nodes(mp.mpf(lo), mp.mpf(hi), 2000))


HALF_LN2 = mp.log(2) / 2 * (1 + mp.mpf(2) ** -20)  # the rounding of x / ln 2 may pass one half by a hair
QUARTER_PI = mp.pi / 4 * (1 + mp.mpf(2) ** -20)
THIRTYSECOND_LN2 = mp.log(2) / 32 * (1 + mp.mpf(2) ** -12)  # here the rounding is that of a float
ATANH_TOP = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * (1 + mp.mpf(2) ** -20)


def root(z):
    return mp.sqrt(z)


def mills(t):
    """exp(t^2/2) * Phi(-t)"""
    return mp.exp(t * t / 2) * mp.erfc(t / mp.sqrt(2)) / 2


def over_r2(r):
    return (mp.exp(r) - 1 - r) / r**2


def log_tail(f):
    """(log(1 + f) - f + f^2/2) / f^3"""
    return (mp.log1p(f) - f + f**2 / 2) / f**3


def mills_of(q):
    return mills((1 / q - 1) / MILLS_STEP) / q


MILLS_STEP = mp.mpf(3) / 10
MILLS_LO = 1 / (1 + MILLS_STEP * 15)

# name: (function, lo, hi, degree, rounding, weight that turns its error into the relative error of the result, what it is)
TABLE = {
    "EXP": (over_r2, -HALF_LN2, HALF_LN2, 8, to_double, lambda r: r**2 / mp.exp(r), "(e^r - 1 - r) / r^2"),
    "EXP_SHORT": (over_r2, -HALF_LN2, HALF_LN2, 6, to_double, lambda r: r**2 / mp.exp(r), "(e^r - 1 - r) / r^2"),
    "SIN": (lambda z: (mp.sin(root(z)) / root(z) - 1) / z, 0, QUARTER_PI**2, 5, to_double, lambda z: z * root(z) / mp.sin(root(z)),
            "(sin r / r - 1) / z, z = r^2"),
    "COS": (lambda z: (mp.cos(root(z)) - 1 + z / 2) / z**2, 0, QUARTER_PI**2, 5, to_double, lambda z: z**2 / mp.cos(root(z)),
            "(cos r - 1 + z/2) / z^2, z = r^2"),
    "LOG": (lambda z: (2 * mp.atanh(root(z)) / root(z) - 2) / z, 0, ATANH_TOP, 6, to_double, lambda z: z / 2,
            "(2 atanh s / s - 2) / z, z = s^2"),
    "MILLS": (mills_of, MILLS_LO, 1, 14, to_double, lambda q: 1 / mills_of(q), "e^(t^2/2) Phi(-t) / q, q = 1 / (1 + 0.3 t)"),
    "EXP_FLOAT": (over_r2, -HALF_LN2, HALF_LN2, 5, to_float, lambda r: r**2 / mp.exp(r), "(e^r - 1 - r) / r^2"),
    "EXP_FLOAT_SHORT": (over_r2, -HALF_LN2, HALF_LN2, 4, to_float, lambda r: r**2 / mp.exp(r), "(e^r - 1 - r) / r^2"),
    "EXP_SIXTEENTH": (over_r2, -THIRTYSECOND_LN2, THIRTYSECOND_LN2, 2, to_float, lambda r: r**2 / mp.exp(r), "(e^r - 1 - r) / r^2"),
    "EXP_SIXTEENTH_SHORT": (over_r2, -THIRTYSECOND_LN2, THIRTYSECOND_LN2, 1, to_float, lambda r: r**2 / mp.exp(r), "(e^r - 1 - r) / r^2"),
    "LOG_FLOAT": (log_tail, mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1, 7, to_float, lambda f: f**3 / mp.log1p(f),
                  "(log(1 + f) - f + f^2/2) / f^3"),
}


def mills_rest(centre, high, h):
    return mills(centre + h) - high


def mills_weight(centre, h):
    return 1 / mills(centre + h)


def mills_pieces(degree):
    """Rows of sixteen floats for lookup by bits 21 to 24 of 1 + t (quarters of four octaves): centre c, then e^(t^2/2) Phi(-t) as
    high + (low + h (c1 + h (c2 + ...))), h = t - c; and the largest relative error."""
    columns, bound = [None] * 16, 0
    for octave in range(4):
        for quarter in range(4):
            lo, hi = ((4 + quarter + step) * mp.mpf(2) ** (octave - 2) - 1 for step in (0, 1))
            centre, half = (lo + hi) / 2, (hi - lo) / 2 * (1 + mp.mpf(2) ** -18)
            high = to_float(mills(centre))
            piece = partial(mills_rest, centre, high), partial(mills_weight, centre)
            c = fit(piece[0], -half, half, degree, to_float, piece[1])
            bound = max(bound, worst(piece[0], c, -half, half, piece[1]))
            columns[(127 + octave) % 4 * 4 + quarter] = [centre, high, *c]
    return [list(row) for row in zip(*columns, strict=True)], bound


def pieces(f, step, degree):
    """Rows of sixteen floats: f(i step + h), |h| <= step / 2, as high + (low + h (c1 + h (c2 + ...))), a column for each i; and the largest
    relative error. An f that is 0 at 0 has low = 0 there, so that the error stays relative."""
    columns, bound = [], 0
    for i in range(16):
        centre, half = i * step, step / 2 * (1 + mp.mpf(2) ** -18)
        lo, high = (-half if i else mp.mpf(0)), to_float(f(centre))
        rest = partial(lambda centre, high, h: f(centre + h) - high, centre, high)
        weight = partial(lambda centre, h: 1 / f(centre + h), centre)
        if f(centre) == 0:
            c = [mp.mpf(0), *fit(lambda h: f(h) / h, lo, half, degree - 1, to_float, lambda h: h / f(h))]
        else:
            c = fit(rest, lo, half, degree, to_float, weight)
        bound = max(bound, worst(rest, c, lo, half, weight))
        columns.append([high, *c])
    return [list(row) for row in zip(*columns, strict=True)], bound


# name: (function, width of a piece, degree, what it is)
PIECES = {
    "NORMAL_PIECES": (lambda t: mp.erfc(t / mp.sqrt(2)) / 2, mp.mpf(1) / 4, 6, "Phi(-t)"),
    "SIGMOID_PIECES": (lambda t: 1 / (1 + mp.exp(t)), mp.mpf(1), 7, "1 / (1 + e^t)"),
    "TANH_PIECES": (mp.tanh, mp.mpf(5) / 8, 7, "tanh t"),
}


def print_pieces(name):
    rows, bound = pieces(*PIECES[name][:3])
    print(f"/* {name}: {PIECES[name][3]}; relative error 2^{float(mp.log(bound, 2)):.1f} */")
    for row in rows:
        print("    {" + ", ".join(f"{float(x):.9g}" for x in row) + "},")


def print_sixteenths():
    powers = [mp.mpf(2) ** (mp.mpf(i) / 16) for i in range(16)]
    nearest = [to_float(power) for power in powers]
    bits = [struct.unpack("I", struct.pack("f", float(power)))[0] - (i << 19) for i, power in enumerate(nearest)]
    print("/* SIXTEENTHS: 2^(i/16), what the nearest float lacks relative to it, and the float less i << 19 in its bits */")
    for row in (nearest, [to_float(power / near - 1) for power, near in zip(powers, nearest, strict=True)],
                [struct.unpack("f", struct.pack("I", b))[0] for b in bits]):
        print("    {" + ", ".join(f"{float(x):.9g}f" for x in row) + "},")


def print_mills_pieces():
    rows, bound = mills_pieces(6)
    print(f"/* MILLS_PIECES: relative error 2^{float(mp.log(bound, 2)):.1f} */")
    for row in rows:
        print("    {" + ", ".join(f"{float(x):.9g}" for x in row) + "},")


PRINTERS = {"SIXTEENTHS": print_sixteenths, "MILLS_PIECES": print_mills_pieces, **{name: partial(print_pieces, name) for name in PIECES}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"which of {', '.join([*TABLE, *PRINTERS])} (default: all)")
    for name in parser.parse_args().names or [*TABLE, *PRINTERS]:
        if name in PRINTERS:
            PRINTERS[name]()
            continue
        f, lo, hi, degree, rounded, weight, what = TABLE[name]
        c = fit(f, lo, hi, degree, rounded, weight)
        bound = worst(f, c, lo, hi, weight)
        suffix = "f" if rounded is to_float else ""
        print(f"/* {name}: {what}; relative error 2^{float(mp.log(bound, 2)):.1f} */")
        print(", ".join((f"{float(x):.9g}" if suffix else f"{float(x):.17g}") + suffix for x in c))


if __name__ == "__main__":
    main()
