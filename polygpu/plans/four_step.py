"""A transform in steps that touch a part of the coefficients each: columns, twiddles, rows.

For values that lie in several memories. Coefficient c width + j is entry (c, j) of a matrix of `height` rows;
evaluated entry i width + k is entry (i, k) of the result. Source: Bailey 1990, "FFTs in external or
hierarchical memory"; docs/math.md, "Four steps", for the order and for X^n + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..checks import Kind
from .basis import Basis, basis_of
from .cache import cached
from .ntt import NttPlan, prime_tables


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
        return basis_of((self.basis.moduli[i],), self.basis.dtype == np.uint64)

    def columns(self, i: int, count: int) -> NttPlan:
        """Transforms modulo limb i of so many neighbouring columns: a tree with leaves of as many."""
        return self._tree(i, self.width, self.height, count, self.kind)

    def rows(self, i: int) -> NttPlan:
        """The cyclic transform of a row modulo limb i, after its coefficients were multiplied by twiddles."""
        return self._tree(i, self.height << (self.kind == "negacyclic"), self.width, 1, "cyclic")

    def _tree(self, i: int, power: int, points: int, leaf_size: int, kind: Kind) -> NttPlan:
        """A transform modulo limb i with a power of its root."""
        q, dtype = self.basis.moduli[i], self.basis.dtype
        tables = prime_tables(q, pow(self.roots[i], power, q), points, kind, dtype)
        key = "tree", q, tables.root, points, leaf_size, kind, dtype
        return cached(key, lambda: NttPlan(self.limb(i), points * leaf_size, kind, leaf_size, (tables,)))

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
