"""Products of polynomials without a complete transform: through auxiliary primes, or an FFT, exactly."""

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

# Auxiliary primes stay below 2^50: within reach of the 52-bit multipliers of CPUs and the FP64 units of GPUs.
AUXILIARY_BITS = 50

MAX_DIGITS = 8  # of an operand of a product by FFT
# The twiddles of an FFT are rounded from a format with more bits (_core/plans/fft.py).
LONG_DOUBLE = np.finfo(np.longdouble).nmant >= 63
LEAST_LENGTH = 32  # real numbers of an FFT at least, so that kernels find whole vectors and tiles
_LONG = 1 << 16  # complex roots of unity; this many take about 10 ms, and show their progress
_MOST_BITS, _MOST_TERMS = 30, 1 << 20  # of a digit in a kernel; of products in a sum


@dataclass(frozen=True, eq=False)
class AuxiliaryPlan:
    """An exact product for any moduli: over the integers, by enough auxiliary primes, then reduced."""

    basis: Basis
    quotient: Quotient
    transform: NttPlan  # over the auxiliary primes
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def degree(self) -> int:
        """Coefficients of a row."""
        return self.quotient.degree


@dataclass(frozen=True, eq=False)
class FftPlan:
    """Exact products for moduli up to 2^64: over the integers, by transforms in doubles, then reduced.

    Centred residues are split into balanced digits. A row of digits becomes length / 2 complex numbers,
    x_j + i x_(j + length/2), and is multiplied modulo X^(length/2) - i. Products of digits i and j are summed
    by their weight, 2^(width (i + j)), and rounded. Rounding gives the exact sum, since the error of a
    coefficient is at most error_bound, which is below 1/2 (docs/math.md, "Products by FFT").
    """

    basis: Basis
    quotient: Quotient
    length: int  # real numbers of a transform: the degree, or enough for the linear product
    digits: int
    error_bound: float
    handles: Handles = field(default_factory=dict, repr=False, kw_only=True)

    @cached_property
    def degree(self) -> int:
        """Coefficients of a row."""
        return self.quotient.degree

    @property
    def width(self) -> int:
        """Bits of a digit."""
        return digit_width(self.basis.moduli, self.digits)

    @property
    def bytes(self) -> int:
        """Bytes of the table, and of a core's scratch memory for a product."""
        return (16 * self.digits + 16) * self.length

    @property
    def points(self) -> int:
        """Complex numbers of a transform."""
        return self.length // 2

    @cached_property
    def twiddles(self) -> NDArray[np.complex128]:
        """w by node of the tree of factors of X^points - i (see unit_roots); entry 0 is 1."""
        with Work(1, "roots of unity of {} points", self.points, when=self.points >= _LONG):
            turns = np.array([0, 1], np.int64)  # of node 1: w = exp(i pi / 4), an eighth of a turn
            while len(turns) < max(self.points, 2):
                # The constants of a node's children are its twiddle and minus that; their square roots are
                # the children's twiddles.
                below = turns[len(turns) // 2 :]
                children = np.stack([below, below + 4 * len(turns) // 2], axis=-1).ravel()
                turns = np.concatenate([2 * turns, children])
            table = unit_roots(turns, 4 * len(turns))[: self.points]
        table.setflags(write=False)
        return table


class FftProductPlan(FftPlan):
    """A product of two polynomials, both of `digits` digits."""

    @property
    def sums(self) -> int:
        """The number of sums of products of digits that do not vanish modulo q."""
        return self.split(self.digits)[1]

    def split(self, digits: int) -> tuple[int, int]:
        """Return the width of `digits` digits, and the number of sums."""
        moduli = self.basis.moduli
        width, sums, bits = digit_width(moduli, digits), 2 * digits - 1, residue_bits(moduli)
        if moduli == (1 << bits,):
            sums = min(sums, -(-bits // width))  # the others are multiples of q = 2^bits
        return width, sums

    def work(self, digits: int) -> int:
        """Return how many real numbers are transformed for a product with `digits` digits."""
        return (2 * digits + self.split(digits)[1]) * self.length


@dataclass(frozen=True, eq=False)
class FftSumPlan(FftPlan):
    """Sums of `terms` products of a small polynomial with any other; only the others are split into digits.

    No coefficient of a small polynomial exceeds 2^(bits - 1) in size.
    """

    terms: int
    bits: int

    @property
    def sums(self) -> int:
        """Sums of products: as many as digits."""
        return self.digits


Plan = NttPlan | AuxiliaryPlan | FftProductPlan


def residue_bits(moduli: tuple[int, ...]) -> int:
    """Return a b for which centred residues are at most 2^(b - 1) in size.

    It is the least one, or one more if the largest modulus is 2^k + 1 with k >= 1.
    """
    return max(max(moduli) - 1, 1).bit_length()


def digit_width(moduli: tuple[int, ...], digits: int) -> int:
    """Return the bits of each of `digits` digits of centred residues."""
    return max(2, -(-residue_bits(moduli) // digits))


class AuxiliarySize(NamedTuple):
    """Points of the auxiliary transform, and how many primes suffice."""

    points: int
    primes: int


def auxiliary_size(quotient: Quotient, moduli: tuple[int, ...]) -> AuxiliarySize:
    """Return the points of the least auxiliary transform, and the fewest primes that are sure to suffice.

    The product of the primes exceeds 2 n (q/2)^2 for each q: a coefficient of the product of two centred
    operands, |x| <= q/2, is at most n (q/2)^2 in size (docs/math.md).
    """
    n = quotient.degree
    points = n if quotient.is_binomial and n & (n - 1) == 0 else 1 << (2 * n - 2).bit_length()
    bound = n * max(moduli) ** 2 // 2 + 1
    return AuxiliarySize(points, -(-bound.bit_length() // (AUXILIARY_BITS - 1)))  # each exceeds 2^(bits - 1)


def auxiliary_bytes(quotient: Quotient, moduli: tuple[int, ...]) -> int:
    """Bytes that products take: twiddles, constants of the mixed-radix digits, residues of two operands."""
    points, count = auxiliary_size(quotient, moduli)
    return (4 + 2) * 8 * points * count + 16 * count * count


def plan_auxiliary(quotient: Quotient, moduli: tuple[int, ...]) -> AuxiliaryPlan:
    """Return the plan of an exact product in the ring of any moduli and any degree."""

    def build() -> AuxiliaryPlan:
        n = quotient.degree
        points, count = auxiliary_size(quotient, moduli)
        # A linear product is folded afterwards.
        own = quotient if points == n else Quotient("cyclic", points)
        check_memory(auxiliary_bytes(quotient, moduli), n, moduli)
        primes = tuple(ntt_primes(points, bits=AUXILIARY_BITS, count=count, kind=own.kind))
        roots = tuple(any_root(p, own.order) for p in primes)
        return AuxiliaryPlan(basis_of(moduli), quotient, plan_ntt(own, primes, 1, roots))

    return cached(("auxiliary", quotient, moduli), build)


def fft_error_bound(n: int, points: int, digits: int, width: int) -> Fraction:
    """Return a bound on the error of each coefficient of a sum of products of digits.

    Source: docs/math.md, equation 6.
    """
    return sum_error_bound(n, points, digits, width, width)


def sum_error_bound(n: int, points: int, terms: int, left: int, right: int) -> Fraction:
    """Return the same bound for `terms` products of digits of `left` and of `right` bits (equation 6a)."""
    from fractions import Fraction  # here, so that importing polygpu stays fast: it imports decimal

    u = Fraction(1, 1 << 53)
    stages = points.bit_length() - 1
    size = Fraction(terms * n << left + right, 4)  # of all products: terms n 2^(left - 1) 2^(right - 1)
    return size * (stage_growth() ** (3 * stages) * (1 + 3 * terms * u) - 1)


def stage_growth() -> Fraction:
    """1 + eps: how much a stage of a transform may lengthen a vector of errors, over what it does exactly."""
    from fractions import Fraction

    return 1 + Fraction(17, 4) / (1 << 53)


def fft_length(quotient: Quotient) -> int:
    """Real numbers of a transform: the degree itself, or enough for the linear product.

    The transform is one modulo X^length + 1.
    """
    n = quotient.degree
    whole = n & (n - 1) == 0 and quotient.kind == "negacyclic" and n >= LEAST_LENGTH
    return n if whole else max(LEAST_LENGTH, 1 << (2 * n - 2).bit_length())


def coarsest_fft(quotient: Quotient, moduli: tuple[int, ...]) -> FftProductPlan:
    """Return the plan of plan_fft, whatever memory there is.

    Raises:
        PrecisionError: n is so large that even the shortest digits are not proven exact, or NumPy has no
            extended precision here.
        ParameterError: a modulus above 2^64.
    """
    if basis_of(moduli).wide:
        raise ParameterError(
            f"q = {shown(moduli[0])} is above 2**64, where there is no product by FFT; "
            "auxiliary primes serve it: leave 'fft' out"
        )
    if not LONG_DOUBLE:
        raise PrecisionError(
            "NumPy's longdouble has no more digits than a double here: no table of a product by FFT is close "
            "enough; auxiliary primes are exact: leave 'fft' out"
        )
    n, length = quotient.degree, fft_length(quotient)
    for digits in range(1, MAX_DIGITS + 1):
        width = digit_width(moduli, digits)
        bound = fft_error_bound(n, length // 2, digits, width)
        if 2 * bound < 1:
            return FftProductPlan(basis_of(moduli), quotient, length, digits, float(bound))
    raise PrecisionError(
        f"n = {n} with moduli of {residue_bits(moduli)} bits: a product by FFT with {digits} digits of "
        f"{width} bits may be wrong by {float(bound):.2g}, which must be below 1/2; auxiliary primes are "
        "exact: leave 'fft' out"
    )


def plan_fft(quotient: Quotient, moduli: tuple[int, ...]) -> FftProductPlan:
    """Return the plan of an exact product by transforms in doubles.

    It has the fewest digits that are proven exact.

    Raises:
        PrecisionError, ParameterError: there is none.
        TablesTooLarge: its table does not fit in memory.
    """

    def build() -> FftProductPlan:
        plan = coarsest_fft(quotient, moduli)
        check_memory(plan.bytes, quotient.degree, moduli)
        return plan

    return cached(("fft", quotient, moduli), build)


def plan_fft_sums(quotient: Quotient, q: int, terms: int, bits: int) -> FftSumPlan | None:
    """Return the plan of exact sums of products with polynomials of `bits` bits, or None without a proof.

    It splits the other factors into the fewest digits for which it is proven (docs/math.md, "Products by
    FFT").
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
    """Return the number of digits and the error bound, or None if no number is proven exact."""
    if not 1 <= terms <= _MOST_TERMS or bits > _MOST_BITS:
        return None
    total = residue_bits((q,))
    for digits in range(1, MAX_DIGITS + 1):
        width = digit_width((q,), digits)
        bound = sum_error_bound(n, length // 2, terms, bits, width)
        if 2 * bound < 1 and width <= _MOST_BITS and -(-total // width) == digits:
            return digits, float(bound)
    return None
