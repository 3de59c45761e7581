"""Gadgets: digits to a base, and how products with them are computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..quotient import Quotient
from .basis import Basis, Handles
from .ntt import NttPlan
from .product import FftSumPlan
from .torus import TorusPlan


@dataclass(frozen=True, eq=False)
class Gadget:
    """Digits to a base B = 2^bits, `levels` of them, modulo the one modulus q of a basis, B^levels <= q.

    The digits of x in [0, q) are those of y = floor((2 x B^levels + q) / (2 q)) mod B^levels, in [-B/2, B/2),
    the most significant first.
    """

    basis: Basis
    transform: NttPlan | None  # for products; complete
    bits: int
    levels: int
    product: FftSumPlan | TorusPlan | None = None  # for products in a ring without a transform
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def by_polynomials(self) -> bool:
        """Whether products are products of polynomials, since neither a transform nor an exact FFT serves."""
        return self.transform is None and self.product is None

    @property
    def quotient(self) -> Quotient:
        """The quotient of the ring, in which products are computed."""
        plan = self.transform or self.product
        assert plan is not None
        return plan.quotient

    @property
    def offset(self) -> int:
        """Added to y: the digits in [0, B) of the sum are the wanted digits plus B/2."""
        return sum(1 << (self.bits * (i + 1) - 1) for i in range(self.levels))
