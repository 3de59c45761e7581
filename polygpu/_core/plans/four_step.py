"""The four-step transform, for values that lie in the memories of several devices.

Coefficient c * width + j is entry (c, j) of a matrix of `height` rows. First each column is transformed, then
entries are multiplied by twiddles, then each row is transformed. Evaluated entry i * width + k is entry
(i, k) of the result. Source: Bailey 1990, "FFTs in external or hierarchical memory"; docs/math.md, "Four
steps", for the order of the points and for X^n + 1.
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

_KEPT = 512  # a plan keeps at most this many transforms and arrays of twiddles, together
_LAUNCH_LEVELS = 10  # the most levels of the tree that one launch computes for columns


# (node, done, is_open): the part of a tree that a transform computes; see PrimeTables and NttPlan in
# plans/ntt.py.
_Place = tuple[int, int, bool]
_WHOLE: _Place = 1, 0, False


@dataclass(frozen=True, eq=False)
class FourStepPlan:
    """The steps of a complete transform of height * width coefficients, modulo each limb.

    There are two methods. The first one transforms columns, multiplies by twiddles, and transforms rows. The
    second one does not multiply by twiddles between columns and rows: transforms of columns do the first
    levels of the whole tree of factors (docs/math.md), and transforms of rows_below do the last levels.
    Columns are called open in the second method.
    """

    basis: Basis
    quotient: Quotient
    height: int  # number of points of the transform of a column
    width: int  # number of points of the transform of a row
    roots: tuple[int, ...]  # the root of unity of each limb; its order is that of X
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def degree(self) -> int:
        """The number of coefficients."""
        return self.quotient.degree

    def limb(self, i: int) -> Basis:
        """Return the basis of limb i alone, with the dtype of the whole basis."""
        return basis_of((self.basis.moduli[i],), self.basis.dtype == np.uint64)

    def columns(self, i: int, count: int, is_open: bool = False) -> NttPlan:
        """Return the transform modulo limb i of `count` neighbouring columns.

        The entries of all `count` columns, row by row, are transformed like one polynomial, by an incomplete
        transform with leaves of `count` entries.

        is_open: if True, the transform does the first levels of the whole tree, and rows_below does the other
        levels. If False, the transform is the first step of the four-step transform.
        """
        divisor = self.degree if is_open else self.height
        tree = self.quotient.with_degree(self.height)
        return self._part(i, self.width, tree, count, divisor, (1, 0, is_open))

    def rows(self, i: int) -> NttPlan:
        """Return the cyclic transform of a row modulo limb i, for rows already multiplied by twiddles."""
        tree = Quotient("cyclic", self.width)
        return self._part(i, self.quotient.order // self.width, tree, 1, self.width)

    def rows_below(self, i: int, first: int, count: int) -> NttPlan:
        """Return the transform modulo limb i that does the last levels of the whole tree of factors.

        The transform takes the rows `first` to `first` + count - 1. count is a power of two that divides
        `first`, so one node of the tree is above these rows.
        """
        node, done = (self.height + first) // count, count.bit_length() - 1
        return self._part(i, 1, self.quotient, 1, count * self.width, (node, done, False))

    def columns_above(self, i: int, count: int) -> NttPlan:
        """Return the transform that does the first levels of `count` open columns modulo limb i.

        The transforms of columns_below do the other levels. For open columns see FourStepPlan.
        """
        points = 1 << self.levels_above
        leaf_size = self.height // points * count
        tree = self.quotient.with_degree(points)
        return self._part(i, self.degree // points, tree, leaf_size, self.degree, (1, 0, True))

    def columns_below(self, i: int, first: int, rows: int, count: int) -> NttPlan:
        """Return the transform that does the last levels of `count` open columns modulo limb i.

        The transform takes the rows `first` to `first` + rows - 1 of these columns. `rows` is a power of two
        that divides `first`. For open columns see FourStepPlan.
        """
        node = (self.height + first) // rows
        done = self.levels_above - (node.bit_length() - 1)
        tree = self.quotient.with_degree(self.height)
        return self._part(i, self.width, tree, count, rows, (node, done, True))

    @property
    def levels_above(self) -> int:
        """The number of levels in a plan of columns_above: all levels but those of the last launch."""
        levels = self.height.bit_length() - 1
        return levels - levels // max(1, -(-levels // _LAUNCH_LEVELS))

    def _part(
        self, i: int, power: int, tree: Quotient, leaf_size: int, divisor: int, place: _Place = _WHOLE
    ) -> NttPlan:
        """Return the transform modulo limb i with the root roots[i]^power, or a part of this transform.

        tree: the polynomial of the whole tree of factors, in X^leaf_size. divisor: see PrimeTables. place:
        the part of the tree, by default the whole tree.
        """
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
        """Return arrays (high, low) with the twiddles of column `power` modulo limb i.

        With m = len(low), the twiddle of row a * m + b is high[a] * low[b]. The twiddle of row r is
        s_r^power. For X^n + 1, s_r is w^(2 * br(r) + 1). For X^n - 1, s_r is w^br(r). w is the root of the
        limb, and br reverses the bits of r.
        """
        key: Any = i, power
        if (known := self.handles.get(key)) is not None:
            return known  # type: ignore[no-any-return]
        q, tree = self.basis.moduli[i], self.quotient.with_degree(self.height)
        x, bits = pow(self.roots[i], power, q), self.height.bit_length() - 1
        start = tree.exponents(0)
        apart = tree.exponents(1) - start  # the difference of the exponents of two successive indices

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
    """Return the plan of the four-step transform with these roots and columns of `height` entries."""
    width = quotient.degree // height
    key = "four steps", basis.moduli, quotient, roots, height, basis.dtype
    return cached(key, lambda: FourStepPlan(basis, quotient, height, width, roots))
