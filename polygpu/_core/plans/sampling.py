"""Distributions of small integers: how many bytes of stream a coefficient takes, and which integer they give.

All tables are computed with integers, so they are the same on every machine. docs/math.md, "Small random
elements", has the distances from the ideal distributions and their proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt
from typing import TYPE_CHECKING, Literal

from .basis import Handles

if TYPE_CHECKING:
    from fractions import Fraction

Shape = Literal["ternary", "sparse", "binomial", "gaussian", "tuniform"]

SIGMA_MIN, SIGMA_MAX = 0.5, 1 << 20
ETA_MAX, B_MAX = 32, 62
_ONE_DRAW, _TWO_DRAWS = 16, 1024  # the largest sigma that takes one word of stream, or two
_TOP = 1 << 63  # a word of stream gives a sign and a number below this
_PRECISION = 256  # bits after the binary point while a table is computed
_NEGLIGIBLE = 1 << (_PRECISION - 128)


@dataclass(frozen=True, eq=False)
class Sampler:
    """How the bytes of a coefficient become an integer v, |v| <= bound.

    Coefficient j of polynomial i has the `size` bytes from byte size (i n + j) of the stream on, a
    little-endian number w:
      ternary   v = floor(3 w / 2^64) - 1
      sparse    the `parameter` coefficients of a polynomial with the least (floor(w / 2), j) are
                1 - 2 (w mod 2), the others 0
      binomial  the ones among bits 0 to eta - 1 of w less those among bits eta to 2 eta - 1; eta = parameter
      tuniform  v = floor((u + 1) / 2) - 2^b with u = w mod 2^(b + 2); b = parameter
      gaussian  v = sum of weights[i] z_i, a term for each word w_i of 64 bits: |z_i| is the number of
                thresholds that are at most floor(w_i / 2), and z_i < 0 where w_i is odd
    """

    shape: Shape
    size: int
    parameter: int
    bound: int
    weights: tuple[int, ...] = ()
    thresholds: tuple[int, ...] = ()
    variance: Fraction | None = None  # of one term of a Gaussian
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def distance(self) -> Fraction:
        """A bound on the statistical distance of one coefficient from the ideal distribution.

        For a sparse polynomial the bound is for the whole polynomial: n times this.
        """
        from fractions import Fraction  # here, so that importing polygpu stays fast: it imports decimal

        if self.shape == "ternary":
            return Fraction(1, 1 << 64)
        if self.shape == "sparse":
            return Fraction(1, _TOP)
        if self.shape == "gaussian":
            return Fraction(len(self.weights) * (len(self.thresholds) + 2), 1 << 64)
        return Fraction(0)


TERNARY = Sampler("ternary", 8, 0, 1)


@lru_cache(maxsize=64)
def sparse(weight: int) -> Sampler:
    """Exactly `weight` coefficients are 1 or -1."""
    return Sampler("sparse", 8, weight, 1)


@lru_cache(maxsize=64)
def binomial(eta: int) -> Sampler:
    """Return the sampler of the difference of two sums of eta bits."""
    return Sampler("binomial", _bytes_of(2 * eta), eta, eta)


@lru_cache(maxsize=64)
def tuniform(b: int) -> Sampler:
    """Uniform on [-2^b, 2^b], except that both ends have half the probability."""
    return Sampler("tuniform", _bytes_of(b + 2), b, 1 << b)


@lru_cache(maxsize=64)
def gaussian(sigma: Fraction) -> Sampler:
    """Return the sampler of the discrete Gaussian.

    A wide one is the sum of narrow ones with weights 1, k or 1, k, l, k l.
    """
    variance, weights = sigma * sigma, [1]
    draws = 1 if sigma <= _ONE_DRAW else 2 if sigma <= _TWO_DRAWS else 4
    while len(weights) < draws:
        # The largest k with sigma / (k^2 + 1) >= 8/5, so that the sum of two terms is close to a Gaussian.
        k = isqrt(isqrt(int(variance * 25 / 64)) - 1)
        variance /= k * k + 1
        weights = [w * factor for w in weights for factor in (1, k)]
    thresholds = cumulative(variance)
    return Sampler(
        "gaussian", 8 * draws, 0, len(thresholds) * sum(weights), tuple(weights), thresholds, variance
    )


def _bytes_of(bits: int) -> int:
    """Return the least power of two of bytes that holds `bits` bits."""
    return max(1, 1 << (bits - 1).bit_length() >> 3)


def cumulative(variance: Fraction) -> tuple[int, ...]:
    """round(2^63 P(|z| <= j)) for j = 0, 1, ..., of the discrete Gaussian, as far as they are below 2^63."""
    step = _exp_minus(1 / (2 * variance))  # exp(-1 / (2 sigma^2))
    square = step * step >> _PRECISION
    density, ratio, sums = 1 << _PRECISION, step, [1 << _PRECISION]
    while True:
        density, ratio = density * ratio >> _PRECISION, ratio * square >> _PRECISION
        if density < _NEGLIGIBLE:
            break
        sums.append(sums[-1] + 2 * density)
    rounded = ((2 * _TOP * x + sums[-1]) // (2 * sums[-1]) for x in sums)
    return tuple(x for x in rounded if x < _TOP)


def _exp_minus(x: Fraction) -> int:
    """exp(-x) 2^256 for 0 <= x <= 2, off by less than 2^10."""
    term, total, i = 1 << _PRECISION, 1 << _PRECISION, 0
    while term:
        i += 1
        term = term * x.numerator // (x.denominator * i)
        total += -term if i % 2 else term
    return total
