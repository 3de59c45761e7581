"""Gadgets: the decomposition of residues into digits, and how products with the digits are computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..quotient import Quotient
from .basis import Basis, Handles
from .ntt import NttPlan
from .product import FftSumPlan
from .torus import TorusPlan


@dataclass(frozen=True, eq=False)
class Gadget:
    """The decomposition of residues modulo the one modulus q of a basis into `levels` digits.

    The base is B = 2^bits, and B^levels <= q. A residue x in [0, q) is scaled and rounded to
    y = floor((2 * x * B^levels + q) / (2 * q)) mod B^levels. The digits of x are those of y, in [-B/2, B/2),
    the most significant first.
    """

    basis: Basis
    transform: NttPlan | None  # for products, if the ring has a complete transform
    bits: int
    levels: int
    product: FftSumPlan | TorusPlan | None = None  # for products by FFT
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def by_polynomials(self) -> bool:
        """Whether products are computed one polynomial at a time, without a plan for sums of products."""
        return self.transform is None and self.product is None

    @property
    def quotient(self) -> Quotient:
        """The quotient of the ring of products. Read it only if `transform` or `product` is not None."""
        plan = self.transform or self.product
        assert plan is not None
        return plan.quotient

    @property
    def offset(self) -> int:
        """The number (B/2) * (1 + B + ... + B^(levels - 1)), where B = 2^bits.

        To split a number into digits in [-B/2, B/2), add `offset`, split the sum into digits in [0, B), and
        subtract B/2 from each digit.
        """
        return sum(1 << (self.bits * (i + 1) - 1) for i in range(self.levels))
