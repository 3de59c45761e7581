"""Distributions of small integers: how bytes of a random stream become the coefficients of a polynomial.

All tables are computed with integers, so they are the same on every machine. docs/math.md, "Small random
elements", has bounds on the distances from the ideal distributions, with proofs.
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
_ONE_DRAW, _TWO_DRAWS = 16, 1024  # the largest sigma with one 64-bit word per coefficient, and with two
_TOP = 1 << 63  # each 64-bit word of the stream gives a sign and a number below this
_PRECISION = 256  # bits after the binary point during the computation of a table
_NEGLIGIBLE = 1 << (_PRECISION - 128)


@dataclass(frozen=True, eq=False)
class Sampler:
    """The rule by which bytes of a random stream become an integer v, |v| <= bound.

    n is the degree. For coefficient j of polynomial i, w is the little-endian number of `size` bytes at byte
    size * (i * n + j) of the stream.
      ternary   v = floor(3 * w / 2^64) - 1.
      sparse    v = 1 - 2 * (w mod 2) for the h coefficients of the polynomial that have the least pairs
                (floor(w / 2), j), and v = 0 for the other coefficients, with h = parameter.
      binomial  v = (number of ones among bits 0 ... eta - 1 of w) - (number of ones among bits
                eta ... 2 eta - 1), with eta = parameter.
      tuniform  v = floor((u + 1) / 2) - 2^b with u = w mod 2^(b + 2) and b = parameter.
      gaussian  v = sum of weights[i] * z_i, with a term for each 64-bit word w_i of w. |z_i| is the number of
                thresholds that are at most floor(w_i / 2), and z_i has a minus sign if w_i is odd.
    """

    shape: Shape
    size: int
    parameter: int
    bound: int
    weights: tuple[int, ...] = ()
    thresholds: tuple[int, ...] = ()
    variance: Fraction | None = None  # for a Gaussian, the variance of one z_i
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def distance(self) -> Fraction:
        """A bound on the statistical distance of one coefficient from the ideal distribution.

        The distance of a sparse polynomial of degree n is at most n times this bound.
        """
        from fractions import Fraction  # imported only here, because it imports decimal, which takes long

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
    """Return the sampler of polynomials in which exactly `weight` coefficients are 1 or -1, the others 0."""
    return Sampler("sparse", 8, weight, 1)


@lru_cache(maxsize=64)
def binomial(eta: int) -> Sampler:
    """Return the sampler of the centred binomial distribution: the difference of two sums of eta bits."""
    return Sampler("binomial", _bytes_of(2 * eta), eta, eta)


@lru_cache(maxsize=64)
def tuniform(b: int) -> Sampler:
    """Return the sampler of TUniform: uniform on [-2^b, 2^b], but each end has half the probability."""
    return Sampler("tuniform", _bytes_of(b + 2), b, 1 << b)


@lru_cache(maxsize=64)
def gaussian(sigma: Fraction) -> Sampler:
    """Return the sampler of the discrete Gaussian with standard deviation sigma.

    A wide Gaussian is a sum of two or four narrow ones, with the weights (1, k) or (1, k, l, k * l) for
    integers k and l.
    """
    variance, weights = sigma * sigma, [1]
    draws = 1 if sigma <= _ONE_DRAW else 2 if sigma <= _TWO_DRAWS else 4
    while len(weights) < draws:
        # k is the largest integer with sigma / (k^2 + 1) >= 8/5. With this k, the sum of two terms is close
        # to a Gaussian (docs/math.md, "Small random elements").
        k = isqrt(isqrt(int(variance * 25 / 64)) - 1)
        variance /= k * k + 1
        weights = [w * factor for w in weights for factor in (1, k)]
    thresholds = cumulative(variance)
    return Sampler(
        "gaussian", 8 * draws, 0, len(thresholds) * sum(weights), tuple(weights), thresholds, variance
    )


def _bytes_of(bits: int) -> int:
    """Return the number of bytes, a power of two, that hold `bits` bits."""
    return max(1, 1 << (bits - 1).bit_length() >> 3)


def cumulative(variance: Fraction) -> tuple[int, ...]:
    """Return round(2^63 * P(|z| <= j)) for j = 0, 1, ..., up to the last value below 2^63.

    z has the discrete Gaussian distribution: its probability is proportional to exp(-z^2 / (2 * variance)).
    """
    step = _exp_minus(1 / (2 * variance))  # exp(-1 / (2 sigma^2))
    square = step * step >> _PRECISION
    # density: exp(-j^2 / (2 sigma^2)). ratio: the factor from j to j + 1, exp(-(2 j + 1) / (2 sigma^2)).
    density, ratio, sums = 1 << _PRECISION, step, [1 << _PRECISION]
    while True:
        density, ratio = density * ratio >> _PRECISION, ratio * square >> _PRECISION
        if density < _NEGLIGIBLE:
            break
        sums.append(sums[-1] + 2 * density)
    rounded = ((2 * _TOP * x + sums[-1]) // (2 * sums[-1]) for x in sums)
    return tuple(x for x in rounded if x < _TOP)


def _exp_minus(x: Fraction) -> int:
    """Return exp(-x) * 2^256 for 0 <= x <= 2, with an error below 2^10."""
    term, total, i = 1 << _PRECISION, 1 << _PRECISION, 0
    while term:
        i += 1
        term = term * x.numerator // (x.denominator * i)
        total += -term if i % 2 else term
    return total
