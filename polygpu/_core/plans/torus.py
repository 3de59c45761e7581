"""Products of digits with ciphertexts modulo 2^32 or 2^64 by FFT in doubles: fast, with a known error."""

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

MOST_BITS = 31  # the most bits of a digit
_ROWS = 256  # the number of polynomials that are transformed in extended precision at a time
# The mean square of the relative rounding error of a double, in units of (2^-53)^2, for numbers that are
# spread over several powers of two. It is 1/3 of the mean of 4^-x for x in [0, 1).
_ROUNDING = 0.1803


class ProductError(NamedTuple):
    """A bound on the rounding error of a coefficient of a product, and the error's standard deviation.

    The unit is that of the residues modulo q. `std` assumes uniformly distributed digits and ciphertexts.
    """

    bound: float
    std: float


@dataclass(frozen=True, eq=False)
class TorusPlan(FftPlan):
    """Sums of `terms` products of digits with residues modulo q = 2^32 or 2^64, by one FFT for each operand.

    The FFT of the residues is computed in extended precision, then rounded to doubles. The sums are rounded
    to multiples of `unit` (docs/math.md, "Products in doubles").
    """

    terms: int
    bits: int
    levels: int

    @property
    def sums(self) -> int:
        """The number of sums of products, which is 1, because residues are not split into digits."""
        return 1

    @property
    def modulus_bits(self) -> int:
        """The bits of the modulus, 32 or 64."""
        return self.basis.moduli[0].bit_length() - 1

    @property
    def unit(self) -> int:
        """The unit of rounding: sums are rounded to multiples of this number.

        It is 2^32 if q = 2^64 and the digits have fewer than 32 bits together, else 1.
        """
        return 1 << 32 if self.modulus_bits == 64 and self.bits * self.levels < 32 else 1

    @cached_property
    def error(self) -> ProductError:
        """Return the error of a product, which is 0 if the product is exact."""
        return self._error(False)

    @cached_property
    def combined_error(self) -> ProductError:
        """Return the error of a product with a sum of keys.

        Blind rotations with keys for groups of bits multiply by sums of keys. A sum is rounded to doubles
        before its FFT.
        """
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
        else:  # sums are rounded to integers: an error above k - 1/2 becomes an error of at least k
            rounded = sqrt(sum((2 * k - 1) * erfc((k - 0.5) / std / sqrt(2)) for k in range(1, 40)))
        return ProductError(float(bound + Fraction(unit, 2)), rounded)

    @cached_property
    def roots(self) -> NDArray[np.complex128]:
        """Return exp(2 pi i k / (4 * points)) for k = 0 ... 4 * points - 1."""
        return unit_roots(np.arange(4 * self.points, dtype=np.int64), 4 * self.points)

    def spectra(self, residues: NDArray[np.unsignedinteger]) -> NDArray[np.complex128]:
        """Return the FFTs (*batch, points) of polynomials (*batch, n), in the order of the tree's leaves.

        The FFTs are computed in extended precision, then rounded to doubles.
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

    is_combined: whether the residues are rounded to doubles before their FFT, as for `combined_error`.
    """
    from fractions import Fraction  # imported only here, because it imports decimal, which takes long

    u, stages = Fraction(1, 1 << 53), (n // 2).bit_length() - 1
    size = Fraction(terms * n << bits + modulus_bits, 4)
    # In extended precision, the FFT of residues has a relative error of at most u / 4. Rounding to doubles
    # adds u. The twist, a product with a rounded factor, adds 3.01 * u.
    of_spectrum = stage_growth() ** stages * (1 + u) if is_combined else 1 + Fraction(5, 4) * u
    growth = stage_growth() ** (2 * stages) * of_spectrum * (1 + Fraction(301, 100) * u)
    return size * (growth * (1 + 3 * terms * u) - 1)


def _relative_variance(stages: int, terms: int, is_combined: bool) -> float:
    """Return the variance of the error divided by the variance of the sum, in units of 2^-106.

    stages: the number of stages of an FFT. Source of the model: docs/math.md, "Products in doubles".
    """
    of_stage, transforms = 0.75 + 1 + 0.5 + 0.5, 3 if is_combined else 2
    return _ROUNDING * (transforms * stages * of_stage + 1 + (terms + 0.5) + 1.5 + 1)


def plan_torus(quotient: Quotient, q: int, terms: int, bits: int, levels: int) -> TorusPlan:
    """Return the plan of sums of products in doubles.

    Raises:
        ParameterError: the modulus is not 2^32 or 2^64, or the ring is not modulo X^n + 1 with n a power of
            two of at least 32 (LEAST_LENGTH), or `bits` is above 31 (MOST_BITS).
        PrecisionError: NumPy has no extended precision on this machine.
        TablesTooLarge: the tables of the plan do not fit in memory.
    """
    n = quotient.degree
    if q not in (1 << 32, 1 << 64):
        raise ParameterError(
            f"q={q} must be 2**32 or 2**64 for precision='double'. Use precision='exact' for other moduli."
        )
    if not quotient.is_binomial or quotient.wrap != -1 or n & (n - 1) or n < LEAST_LENGTH:
        raise ParameterError(
            f"The ring is modulo {quotient}, but precision='double' needs X^n + 1 with n a power of two of "
            f"at least {LEAST_LENGTH}. Use precision='exact' for other rings."
        )
    if bits > MOST_BITS:
        raise ParameterError(
            f"bits={bits} must be at most {MOST_BITS} for precision='double'. Use fewer bits, or "
            "precision='exact'."
        )
    if not LONG_DOUBLE:
        raise PrecisionError(
            "precision='double' needs a NumPy longdouble with more digits than a double, and this machine "
            "has none. Use precision='exact'."
        )

    def build() -> TorusPlan:
        plan = TorusPlan(basis_of((q,)), quotient, n, 1, 0.0, terms, bits, levels)
        check_memory(plan.bytes, n, (q,))
        return plan

    return cached(("torus", quotient, q, terms, bits, levels), build)
