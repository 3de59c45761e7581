"""A transform in steps of which each touches a part of the coefficients: columns, twiddles, rows.

For values that lie in several memories. Coefficient c width + j is entry (c, j) of a matrix of `height` rows;
evaluated entry i width + k is entry (i, k) of the result. Source: Bailey 1990, "FFTs in external or
hierarchical memory"; docs/math.md, "Four steps", for the order and for X^n + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..quotient import Quotient
from .basis import Basis, Handles, basis_of
from .cache import cached, keep
from .ntt import NttPlan, prime_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT = 512  # trees, and twiddles of single columns, that a plan keeps
_LAUNCH_LEVELS = 10  # levels of columns that one launch does, at most


# Which part of a tree a transform is: below which node, after how many levels, if it is open; see NttPlan.
_Place = tuple[int, int, bool]
_WHOLE: _Place = 1, 0, False


@dataclass(frozen=True, eq=False)
class FourStepPlan:
    """The steps of a complete transform of height * width coefficients, modulo each limb."""

    basis: Basis
    quotient: Quotient
    height: int  # points of a column's transform
    width: int  # points of a row's transform
    roots: tuple[int, ...]  # of each limb, of the order of X
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def degree(self) -> int:
        """Coefficients."""
        return self.quotient.degree

    def limb(self, i: int) -> Basis:
        """Return the basis of one limb, stored as the others are."""
        return basis_of((self.basis.moduli[i],), self.basis.dtype == np.uint64)

    def columns(self, i: int, count: int, is_open: bool = False) -> NttPlan:
        """Return the transform modulo limb i of `count` neighbouring columns.

        It is a tree whose leaves have `count` entries.

        is_open: these are the first levels of the whole tree, to be followed by rows_below.
        """
        divisor = self.degree if is_open else self.height
        tree = self.quotient.with_degree(self.height)
        return self._part(i, self.width, tree, count, divisor, (1, 0, is_open))

    def rows(self, i: int) -> NttPlan:
        """Return the cyclic transform of a row modulo limb i, which follows the product with twiddles."""
        tree = Quotient("cyclic", self.width)
        return self._part(i, self.quotient.order // self.width, tree, 1, self.width)

    def rows_below(self, i: int, first: int, count: int) -> NttPlan:
        """Return the last levels of the whole tree modulo limb i, of rows `first` to `first` + count - 1.

        They lie below one node: count is a power of two and divides `first`.
        """
        node, done = (self.height + first) // count, count.bit_length() - 1
        return self._part(i, 1, self.quotient, 1, count * self.width, (node, done, False))

    def columns_above(self, i: int, count: int) -> NttPlan:
        """Open columns without their last levels, which columns_below does."""
        points = 1 << self.levels_above
        leaf_size = self.height // points * count
        tree = self.quotient.with_degree(points)
        return self._part(i, self.degree // points, tree, leaf_size, self.degree, (1, 0, True))

    def columns_below(self, i: int, first: int, rows: int, count: int) -> NttPlan:
        """Return the last levels of open columns modulo limb i, for `rows` rows, the first of them `first`.

        See rows_below.
        """
        node = (self.height + first) // rows
        done = self.levels_above - (node.bit_length() - 1)
        tree = self.quotient.with_degree(self.height)
        return self._part(i, self.width, tree, count, rows, (node, done, True))

    @property
    def levels_above(self) -> int:
        """Levels of columns_above: all but those of the last launch over columns."""
        levels = self.height.bit_length() - 1
        return levels - levels // max(1, -(-levels // _LAUNCH_LEVELS))

    def _part(
        self, i: int, power: int, tree: Quotient, leaf_size: int, divisor: int, place: _Place = _WHOLE
    ) -> NttPlan:
        """Return a transform modulo limb i with a power of its root, or a part of one."""
        key: Any = i, power, tree, leaf_size, place
        if (known := self.handles.get(key)) is not None:
            return known  # type: ignore[no-any-return]
        q, dtype = self.basis.moduli[i], self.basis.dtype
        node, done, is_open = place
        tables = prime_tables(q, pow(self.roots[i], power, q), tree, dtype, divisor, node)
        part = tree.with_degree(tables.points * leaf_size)
        plan = NttPlan(self.limb(i), part, leaf_size, (tables,), done, is_open)
        return keep(self.handles, key, plan, _KEPT)  # type: ignore[no-any-return]

    def row_twiddles(self, i: int, power: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Twiddles modulo limb i at column `power`: row a m + b has high[a] low[b], m = len(low).

        The twiddle of row r is s_r to this power, s_r = psi^(2 br(r) + 1) or omega^br(r): a factor for each
        bit of r.
        """
        key: Any = i, power
        if (known := self.handles.get(key)) is not None:
            return known  # type: ignore[no-any-return]
        q, tree = self.basis.moduli[i], self.quotient.with_degree(self.height)
        x, bits = pow(self.roots[i], power, q), self.height.bit_length() - 1
        start = tree.exponents(0)
        apart = tree.exponents(1) - start  # exponents of neighbouring points

        def products(first: int, of: range) -> NDArray[Any]:
            found = [first]
            for bit in of:
                factor = pow(x, apart * (self.height >> (bit + 1)), q)
                found += [value * factor % q for value in found]
            made = np.array(found, self.basis.dtype)
            made.setflags(write=False)
            return made

        low = bits // 2
        both = products(pow(x, start, q), range(low, bits)), products(1, range(low))
        return keep(self.handles, key, both, _KEPT)  # type: ignore[no-any-return]


def plan_four_step(basis: Basis, quotient: Quotient, roots: tuple[int, ...], height: int) -> FourStepPlan:
    """Return the steps of the transform with these roots."""
    width = quotient.degree // height
    key = "four steps", basis.moduli, quotient, roots, height, basis.dtype
    return cached(key, lambda: FourStepPlan(basis, quotient, height, width, roots))
