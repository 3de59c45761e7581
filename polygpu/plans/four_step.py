"""A transform in steps that touch a part of the coefficients each: columns, twiddles, rows.

For values that lie in several memories. Coefficient c width + j is entry (c, j) of a matrix of `height` rows;
evaluated entry i width + k is entry (i, k) of the result. Source: Bailey 1990, "FFTs in external or
hierarchical memory"; docs/math.md, "Four steps", for the order and for X^n + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import Kind
from .basis import Basis, basis_of
from .cache import cached
from .ntt import NttPlan, part_of, prime_tables


@dataclass(frozen=True, eq=False)
class FourStepPlan:
    """The steps of a complete transform of height * width coefficients, modulo each limb."""

    basis: Basis
    kind: Kind
    height: int  # points of a column's transform
    width: int  # points of a row's transform
    roots: tuple[int, ...]  # of each limb: of order 2 degree (negacyclic) or degree (cyclic)

    @property
    def degree(self) -> int:
        """Coefficients."""
        return self.height * self.width

    def limb(self, i: int) -> Basis:
        """The basis of one limb, stored as the others are."""
        return self.rows(i).basis

    def columns(self, i: int, count: int) -> NttPlan:
        """Transforms modulo limb i of so many neighbouring columns: a tree with leaves of as many."""
        q, root = self.basis.moduli[i], pow(self.roots[i], self.width, self.basis.moduli[i])
        tables = prime_tables(q, root, self.height, self.kind, self.basis.dtype)
        key = "columns", self.height * count, count, q, root, self.kind, self.basis.dtype
        basis = basis_of((q,), self.basis.dtype.itemsize == 8)
        return cached(key, lambda: NttPlan(basis, self.height * count, self.kind, count, (tables,)))

    def rows(self, i: int) -> NttPlan:
        """The cyclic transform of a row modulo limb i, after its coefficients were multiplied by twiddles."""
        plan = cached(
            ("rows", self.basis.moduli, self.roots, self.width, self.kind, self.basis.dtype), self._rows
        )
        return part_of(plan, (i,))

    def _rows(self) -> NttPlan:
        order = self.height << (self.kind == "negacyclic")  # of the tree above the rows
        pairs = zip(self.basis.moduli, self.roots, strict=True)
        tables = (prime_tables(q, pow(x, order, q), self.width, "cyclic", self.basis.dtype) for q, x in pairs)
        return NttPlan(self.basis, self.width, "cyclic", 1, tuple(tables))

    def row_steps(self, i: int, power: int) -> list[int]:
        """Factors modulo limb i of twiddles at column `power`: of each bit of a row's number, of all rows.

        The bits from the lowest on. A row's twiddle is the product of the factors of its bits that are 1, and
        of the last one.
        """
        q, negacyclic = self.basis.moduli[i], self.kind == "negacyclic"
        x = pow(self.roots[i], power, q)
        bits = range(self.height.bit_length() - 1)
        factors = [pow(x, (self.height >> (bit + 1)) << negacyclic, q) for bit in bits]
        return [*factors, x if negacyclic else 1]


def plan_four_step(basis: Basis, kind: Kind, roots: tuple[int, ...], height: int, width: int) -> FourStepPlan:
    """The steps of the transform with these roots."""
    key = "four steps", basis.moduli, kind, roots, height, width, basis.dtype
    return cached(key, lambda: FourStepPlan(basis, kind, height, width, roots))
