"""Products of digits with ciphertexts modulo 2^32 and 2^64 in doubles: fast, with a stated error."""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import ParameterError, PrecisionError
from ..locks import cached_property
from ..memory import check_memory
from ..quotient import Quotient
from ..reporting import LONG, Work
from .basis import basis_of
from .cache import cached
from .fft import unit_roots
from .permutation import bit_reversal
from .product import LEAST_LENGTH, LONG_DOUBLE, FftPlan, stage_growth

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

MOST_BITS = 31  # of a digit
_ROWS = 256  # of polynomials that are transformed in extended precision at once
# The mean square of a rounding error, in units of 2^-53 of the rounded number, if numbers are spread over
# several octaves: the mean of 4^-x for x in [0, 1), over 3.
_ROUNDING = 0.1803


class ProductError(NamedTuple):
    """The rounding error of a coefficient of one product: its largest size, and its standard deviation.

    Both count residues. `std` holds for uniform digits and ciphertexts.
    """

    bound: float
    std: float


@dataclass(frozen=True, eq=False)
class TorusPlan(FftPlan):
    """Sums of `terms` products of digits with residues modulo q = 2^32 or 2^64, by one transform for each.

    The residues are transformed with more digits than a double has. The sums are rounded to multiples of
    `unit` (docs/math.md, "Products in doubles").
    """

    terms: int
    bits: int
    levels: int

    @property
    def sums(self) -> int:
        """Sums of products: one."""
        return 1

    @property
    def modulus_bits(self) -> int:
        """32 or 64."""
        return self.basis.moduli[0].bit_length() - 1

    @property
    def unit(self) -> int:
        """What sums are rounded to: 2^32 modulo 2^64 for digits of less than 32 bits together, else 1."""
        return 1 << 32 if self.modulus_bits == 64 and self.bits * self.levels < 32 else 1

    @cached_property
    def error(self) -> ProductError:
        """Return the error of a product, 0 if it is exact."""
        return self._error(False)

    @cached_property
    def combined_error(self) -> ProductError:
        """Return the same of a product with combined residues, which are transformed in doubles."""
        return self._error(True)

    def _error(self, is_combined: bool) -> ProductError:
        from fractions import Fraction

        n, bits, unit = self.degree, self.bits, self.unit
        bound = torus_error_bound(n, self.terms, bits, self.modulus_bits, is_combined)
        if unit == 1 and 2 * bound < 1:
            return ProductError(0.0, 0.0)
        size = sqrt(self.terms * n * (4**bits + 2) / 12 / 12) * 2.0**self.modulus_bits
        std = (
            sqrt(_relative_variance(self.points.bit_length() - 1, self.terms, is_combined)) * 2.0**-53 * size
        )
        if unit > 1 or std > 4:
            rounded = sqrt(std**2 + unit**2 / 12)
        else:  # both products are integers: they differ by at least k where the error exceeds k - 1/2
            rounded = sqrt(sum((2 * k - 1) * erfc((k - 0.5) / std / sqrt(2)) for k in range(1, 40)))
        return ProductError(float(bound + Fraction(unit, 2)), rounded)

    @cached_property
    def roots(self) -> NDArray[np.complex128]:
        """Return exp(2 pi i k / (4 points)) for k = 0 ... 4 points - 1."""
        return unit_roots(np.arange(4 * self.points, dtype=np.int64), 4 * self.points)

    def spectra(self, residues: NDArray[np.unsignedinteger]) -> NDArray[np.complex128]:
        """Return the spectra (*batch, points) of polynomials (*batch, n), in the order of the tree's leaves.

        They are computed in extended precision and rounded once.
        """
        points, batch = self.points, residues.shape[:-1]
        twist = unit_roots(np.arange(points, dtype=np.int64), 4 * points, np.clongdouble)
        order = bit_reversal(points)
        rows = residues.reshape(-1, 2, points)
        out = np.empty((len(rows), points), np.complex128)
        with Work(len(rows), "spectra of {} points", points, when=rows.size >= LONG) as work:
            for first in range(0, len(rows), _ROWS):
                piece = slice(first, first + _ROWS)
                signed = rows[piece].view(f"i{residues.dtype.itemsize}")
                values = np.empty((len(signed), points), np.clongdouble)
                values.real, values.imag = signed[:, 0], signed[:, 1]
                out[piece] = np.fft.ifft(values * twist, norm="forward")[:, order]
                work.step(len(signed))
        return out.reshape(*batch, points)


def torus_error_bound(
    n: int, terms: int, bits: int, modulus_bits: int, is_combined: bool = False
) -> Fraction:
    """Return a bound on the error of a coefficient before it is rounded (docs/math.md, equation 6b).

    is_combined: residues are rounded to doubles, and transformed as digits are.
    """
    from fractions import Fraction  # here, so that importing polygpu stays fast: it imports decimal

    u, stages = Fraction(1, 1 << 53), (n // 2).bit_length() - 1
    size = Fraction(terms * n << bits + modulus_bits, 4)
    # A spectrum is rounded once, after errors of at most a quarter of that; the twist is a product by a
    # rounded factor.
    of_spectrum = stage_growth() ** stages * (1 + u) if is_combined else 1 + Fraction(5, 4) * u
    growth = stage_growth() ** (2 * stages) * of_spectrum * (1 + Fraction(301, 100) * u)
    return size * (growth * (1 + 3 * terms * u) - 1)


def _relative_variance(stages: int, terms: int, is_combined: bool) -> float:
    """Return the variance of the error over that of the sum, in units of 2^-106.

    A stage takes x and y to s = x + w y and 2 x - s. A part of s is rounded after the first product, where
    its variance is 3/4 of the final one, and after the second; 2 x - s has the error of s and one more. So a
    stage adds 3/4 + 1 + 1/2 roundings, and half of that of a rounded twiddle. A sum of t products is rounded
    2 t times, on the way from 0 to the whole. The twist is a product, which is rounded after either half, by
    a rounded factor. A spectrum of residues is rounded once, or combined residues are and their transform has
    its stages. Source: docs/math.md, "Products in doubles".
    """
    of_stage, transforms = 0.75 + 1 + 0.5 + 0.5, 3 if is_combined else 2
    return _ROUNDING * (transforms * stages * of_stage + 1 + (terms + 0.5) + 1.5 + 1)


def plan_torus(quotient: Quotient, q: int, terms: int, bits: int, levels: int) -> TorusPlan:
    """Return the plan of sums of products in doubles.

    Raises:
        ParameterError: another modulus than 2^32 and 2^64, another ring than X^n + 1 for a power of two, or
            digits that are too long.
        PrecisionError: NumPy has no extended precision here.
        TablesTooLarge: its tables do not fit in memory.
    """
    n = quotient.degree
    if q not in (1 << 32, 1 << 64):
        raise ParameterError(f"q = {q}: precision='double' serves 2**32 and 2**64; leave it out")
    if not quotient.is_binomial or quotient.wrap != -1 or n & (n - 1) or n < LEAST_LENGTH:
        raise ParameterError(
            f"{quotient}: precision='double' needs X**n + 1, n a power of two of at least {LEAST_LENGTH}; "
            "leave it out"
        )
    if bits > MOST_BITS:
        raise ParameterError(f"bits: {bits}, precision='double' takes at most {MOST_BITS}; leave it out")
    if not LONG_DOUBLE:
        raise PrecisionError(
            "NumPy's longdouble has no more digits than a double here, so that no spectrum is exact enough; "
            "leave precision='double' out"
        )

    def build() -> TorusPlan:
        plan = TorusPlan(basis_of((q,)), quotient, n, 1, 0.0, terms, bits, levels)
        check_memory(plan.bytes, n, (q,))
        return plan

    return cached(("torus", quotient, q, terms, bits, levels), build)
