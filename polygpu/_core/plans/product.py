"""Exact products of polynomials for rings without a complete transform: by auxiliary primes or by FFT."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import ParameterError, PrecisionError
from ..checks import shown
from ..exact.primes import ntt_primes
from ..exact.roots import any_root
from ..locks import cached_property
from ..memory import check_memory
from ..quotient import Quotient
from ..reporting import Work
from .basis import Basis, Handles, basis_of
from .cache import cached
from .fft import unit_roots
from .ntt import NttPlan, plan_ntt

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

# Auxiliary primes are below 2^50, within reach of the 52-bit multipliers of CPUs and the FP64 units of GPUs.
AUXILIARY_BITS = 50

MAX_DIGITS = 8  # the most digits of a residue in a product by FFT
# Whether np.longdouble is precise enough for the computation of twiddles.
LONG_DOUBLE = np.finfo(np.longdouble).nmant >= 63
LEAST_LENGTH = 32  # an FFT takes at least this many real numbers, so that kernels work on whole vectors
_LONG = 1 << 16  # complex roots of unity; to compute this many takes about 10 ms and reports progress
_MOST_BITS, _MOST_TERMS = 30, 1 << 20  # the most bits of a digit and the most terms of a sum in kernels


@dataclass(frozen=True, eq=False)
class AuxiliaryPlan:
    """A product for any moduli, computed exactly over the integers by auxiliary primes, then reduced."""

    basis: Basis
    quotient: Quotient
    transform: NttPlan  # modulo the auxiliary primes
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def degree(self) -> int:
        """Return the number of coefficients of a row."""
        return self.quotient.degree


@dataclass(frozen=True, eq=False)
class FftPlan:
    """Products for moduli up to 2^64, computed exactly over the integers by FFTs in doubles, then reduced.

    Centred residues are split into balanced digits. A row of digits x_j becomes length / 2 complex numbers
    x_j + I * x_(j + length/2), with I^2 = -1. Such rows are multiplied modulo X^(length/2) - I. The product
    of digit i and digit j has the weight 2^(width * (i + j)). Products of equal weight are added, and the
    sums are rounded. Rounded sums are exact, because error_bound is below 1/2 (docs/math.md, "Products by
    FFT").
    """

    basis: Basis
    quotient: Quotient
    length: int  # how many real numbers are transformed: the degree, or enough for an unreduced product
    digits: int
    error_bound: float
    handles: Handles = field(default_factory=dict, repr=False, kw_only=True)

    @cached_property
    def degree(self) -> int:
        """Return the number of coefficients of a row."""
        return self.quotient.degree

    @property
    def width(self) -> int:
        """The number of bits of a digit."""
        return digit_width(self.basis.moduli, self.digits)

    @property
    def bytes(self) -> int:
        """The bytes of the table, plus those of the scratch memory that one core uses for a product."""
        return (16 * self.digits + 16) * self.length

    @property
    def points(self) -> int:
        """The number of complex numbers of a transform."""
        return self.length // 2

    @cached_property
    def twiddles(self) -> NDArray[np.complex128]:
        """Return the twiddle of each node of the tree of factors of X^points - I, I^2 = -1; entry 0 is 1."""
        with Work(1, "roots of unity of {} points", self.points, when=self.points >= _LONG):
            # turns[i] / (4 * len(turns)) is the angle of the twiddle of node i, in full turns. The twiddle of
            # node 1 is exp(I * pi / 4), an eighth of a turn.
            turns = np.array([0, 1], np.int64)
            while len(turns) < max(self.points, 2):
                # The constants of a node's children are w and -w, with w the twiddle of the node. The
                # children's twiddles are the square roots of these constants.
                below = turns[len(turns) // 2 :]
                children = np.stack([below, below + 4 * len(turns) // 2], axis=-1).ravel()
                turns = np.concatenate([2 * turns, children])
            table = unit_roots(turns, 4 * len(turns))[: self.points]
        table.setflags(write=False)
        return table


class FftProductPlan(FftPlan):
    """A product of two polynomials, both split into `digits` digits."""

    @property
    def sums(self) -> int:
        """The number of sums of products of digits.

        Sum k adds the products of digit i and digit j with i + j = k. A sum with a weight 2^(width * k) that
        is a multiple of q is left out.
        """
        return self.split(self.digits)[1]

    def split(self, digits: int) -> tuple[int, int]:
        """Return the bits of a digit, and the number of sums (see `sums`), for `digits` digits."""
        moduli = self.basis.moduli
        width, sums, bits = digit_width(moduli, digits), 2 * digits - 1, residue_bits(moduli)
        if moduli == (1 << bits,):
            sums = min(sums, -(-bits // width))  # the other sums have weights that are multiples of q
        return width, sums

    def work(self, digits: int) -> int:
        """Return how many real numbers are transformed for a product with `digits` digits."""
        return (2 * digits + self.split(digits)[1]) * self.length


@dataclass(frozen=True, eq=False)
class FftSumPlan(FftPlan):
    """Sums of `terms` products of a small polynomial and an arbitrary polynomial.

    Coefficients of small polynomials are at most 2^(bits - 1) in absolute value. Only arbitrary polynomials
    are split into digits.
    """

    terms: int
    bits: int

    @property
    def sums(self) -> int:
        """The number of sums: one for each digit. Small polynomials are not split into digits."""
        return self.digits


Plan = NttPlan | AuxiliaryPlan | FftProductPlan


def residue_bits(moduli: tuple[int, ...]) -> int:
    """Return a number b so that centred residues are at most 2^(b - 1) in absolute value.

    b is the least such number, or one more if the largest modulus is 2^k + 1 with k >= 1.
    """
    return max(max(moduli) - 1, 1).bit_length()


def digit_width(moduli: tuple[int, ...], digits: int) -> int:
    """Return the number of bits of each digit if centred residues are split into `digits` digits."""
    return max(2, -(-residue_bits(moduli) // digits))


class AuxiliarySize(NamedTuple):
    """The number of points of the auxiliary transform, and the number of primes that suffice."""

    points: int
    primes: int


def auxiliary_size(quotient: Quotient, moduli: tuple[int, ...]) -> AuxiliarySize:
    """Return the number of points of the least auxiliary transform, and a number of primes that suffices.

    The coefficients of centred operands are at most q/2 in absolute value, so those of the product are at
    most n * (q/2)^2. The product of the primes exceeds twice this bound for each modulus q (docs/math.md).
    """
    n = quotient.degree
    points = n if quotient.is_binomial and n & (n - 1) == 0 else 1 << (2 * n - 2).bit_length()
    bound = n * max(moduli) ** 2 // 2 + 1
    # Each prime exceeds 2^(AUXILIARY_BITS - 1).
    return AuxiliarySize(points, -(-bound.bit_length() // (AUXILIARY_BITS - 1)))


def auxiliary_bytes(quotient: Quotient, moduli: tuple[int, ...]) -> int:
    """Return the bytes that a product by auxiliary primes needs for tables and for residues of two operands.

    The tables are twiddles and constants for mixed-radix digits.
    """
    points, count = auxiliary_size(quotient, moduli)
    return (4 + 2) * 8 * points * count + 16 * count * count


def plan_auxiliary(quotient: Quotient, moduli: tuple[int, ...]) -> AuxiliaryPlan:
    """Return the plan of exact products by auxiliary primes, for any moduli and any degree."""

    def build() -> AuxiliaryPlan:
        n = quotient.degree
        points, count = auxiliary_size(quotient, moduli)
        # If `points` is not n, the product is computed modulo X^points - 1 and reduced afterwards.
        own = quotient if points == n else Quotient("cyclic", points)
        check_memory(auxiliary_bytes(quotient, moduli), n, moduli)
        primes = tuple(ntt_primes(points, bits=AUXILIARY_BITS, count=count, kind=own.kind))
        roots = tuple(any_root(p, own.order) for p in primes)
        return AuxiliaryPlan(basis_of(moduli), quotient, plan_ntt(own, primes, 1, roots))

    return cached(("auxiliary", quotient, moduli), build)


def fft_error_bound(n: int, points: int, digits: int, width: int) -> Fraction:
    """Return a bound on the error of each coefficient of a sum of `digits` products of polynomials.

    The coefficients of the polynomials are digits of `width` bits. n: the degree. points: the number of
    complex numbers of an FFT.
    Source: docs/math.md, equation 6.
    """
    return sum_error_bound(n, points, digits, width, width)


def sum_error_bound(n: int, points: int, terms: int, left: int, right: int) -> Fraction:
    """Return a bound on the error of each coefficient of a sum of `terms` products of polynomials.

    The coefficients of one factor have `left` bits, those of the other factor have `right` bits.
    n: the degree. points: the number of complex numbers of an FFT.
    Source: docs/math.md, equation 6a.
    """
    from fractions import Fraction  # imported only here, because it imports decimal, which takes long

    u = Fraction(1, 1 << 53)
    stages = points.bit_length() - 1
    size = Fraction(terms * n << left + right, 4)  # the largest sum: terms * n * 2^(left + right - 2)
    return size * (stage_growth() ** (3 * stages) * (1 + 3 * terms * u) - 1)


def stage_growth() -> Fraction:
    """Return 1 + eps, where eps bounds the relative error that rounding adds in one stage of a transform.

    Source: docs/math.md, "Products by FFT".
    """
    from fractions import Fraction

    return 1 + Fraction(17, 4) / (1 << 53)


def fft_length(quotient: Quotient) -> int:
    """Return the length such that FFTs modulo X^length + 1 compute products in the ring.

    If the quotient is X^n + 1 and n is a power of two of at least LEAST_LENGTH, the length is n. Otherwise
    the length is a power of two of at least LEAST_LENGTH that has room for a product before its reduction.
    """
    n = quotient.degree
    whole = n & (n - 1) == 0 and quotient.kind == "negacyclic" and n >= LEAST_LENGTH
    return n if whole else max(LEAST_LENGTH, 1 << (2 * n - 2).bit_length())


def coarsest_fft(quotient: Quotient, moduli: tuple[int, ...]) -> FftProductPlan:
    """Return the plan of plan_fft without a check of memory.

    Raises:
        PrecisionError: n is so large that even products of the shortest digits are not proven exact, or NumPy
            has no extended precision on this machine.
        ParameterError: a modulus is above 2^64.
    """
    if basis_of(moduli).wide:
        raise ParameterError(
            f"q={shown(moduli[0])} is above 2**64, so there is no product by FFT. Use product='auto', which "
            "multiplies through auxiliary primes."
        )
    if not LONG_DOUBLE:
        raise PrecisionError(
            "A product by FFT needs a NumPy longdouble with more digits than a double, and this machine has "
            "none. Use product='auto', which multiplies through auxiliary primes."
        )
    n, length = quotient.degree, fft_length(quotient)
    for digits in range(1, MAX_DIGITS + 1):
        width = digit_width(moduli, digits)
        bound = fft_error_bound(n, length // 2, digits, width)
        if 2 * bound < 1:
            return FftProductPlan(basis_of(moduli), quotient, length, digits, float(bound))
    raise PrecisionError(
        f"A product by FFT for n={n} and moduli of {residue_bits(moduli)} bits, with {digits} digits of "
        f"{width} bits, may be wrong by {float(bound):.2g}. The error must be below 1/2. Use product='auto', "
        "which is exact."
    )


def plan_fft(quotient: Quotient, moduli: tuple[int, ...]) -> FftProductPlan:
    """Return the plan of exact products by FFT, with as few digits as a proof of exactness allows.

    Raises:
        PrecisionError, ParameterError: there is no such plan; see coarsest_fft.
        TablesTooLarge: the table of the plan does not fit in memory.
    """

    def build() -> FftProductPlan:
        plan = coarsest_fft(quotient, moduli)
        check_memory(plan.bytes, quotient.degree, moduli)
        return plan

    return cached(("fft", quotient, moduli), build)


def plan_fft_sums(quotient: Quotient, q: int, terms: int, bits: int) -> FftSumPlan | None:
    """Return the plan of exact sums of products with small polynomials, or None if exactness is not proven.

    See FftSumPlan for terms and bits. The number of digits is the least for which exactness is proven
    (docs/math.md, "Products by FFT").
    """
    n, length = quotient.degree, fft_length(quotient)
    found = _digits_of_sums(n, length, q, terms, bits)
    if found is None or not LONG_DOUBLE:
        return None

    def build() -> FftSumPlan:
        plan = FftSumPlan(basis_of((q,)), quotient, length, *found, terms, bits)
        check_memory(plan.bytes, n, (q,))
        return plan

    return cached(("fft sums", quotient, q, terms, bits), build)


@lru_cache(maxsize=64)
def _digits_of_sums(n: int, length: int, q: int, terms: int, bits: int) -> tuple[int, float] | None:
    """Return the least number of digits for which sums are proven exact, and the bound on their error.

    Return None if no number of digits suffices. n: the degree. For the other arguments see FftSumPlan.
    """
    if not 1 <= terms <= _MOST_TERMS or bits > _MOST_BITS:
        return None
    total = residue_bits((q,))
    for digits in range(1, MAX_DIGITS + 1):
        width = digit_width((q,), digits)
        bound = sum_error_bound(n, length // 2, terms, bits, width)
        if 2 * bound < 1 and width <= _MOST_BITS and -(-total // width) == digits:
            return digits, float(bound)
    return None
