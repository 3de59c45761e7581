"""A transform in steps of which each touches a part of the coefficients: columns, twiddles, rows.

For values that lie in several memories. Coefficient c width + j is entry (c, j) of a matrix of `height` rows;
evaluated entry i width + k is entry (i, k) of the result. Source: Bailey 1990, "FFTs in external or
hierarchical memory"; docs/math.md, "Four steps", for the order and for X^n + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import Kind
from .basis import Basis, Handles, basis_of
from .cache import cached, keep
from .ntt import NttPlan, prime_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT = 512  # trees, and twiddles of single columns, that a plan keeps
_LAUNCH_LEVELS = 10  # levels of columns that one launch does, at most


@dataclass(frozen=True, eq=False)
class FourStepPlan:
    """The steps of a complete transform of height * width coefficients, modulo each limb."""

    basis: Basis
    kind: Kind
    height: int  # points of a column's transform
    width: int  # points of a row's transform
    roots: tuple[int, ...]  # of each limb: of order 2 degree (negacyclic) or degree (cyclic)
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def degree(self) -> int:
        """Coefficients."""
        return self.height * self.width

    def limb(self, i: int) -> Basis:
        """The basis of one limb, stored as the others are."""
        return basis_of((self.basis.moduli[i],), self.basis.dtype == np.uint64)

    def columns(self, i: int, count: int, is_open: bool = False) -> NttPlan:
        """Transforms modulo limb i of `count` neighbouring columns: a tree whose leaves have `count` entries.

        is_open: these are the first levels of the whole tree, to be followed by rows_below.
        """
        divisor = self.degree if is_open else self.height
        return self._part(i, self.width, self.height, count, self.kind, divisor, is_open=is_open)

    def rows(self, i: int) -> NttPlan:
        """The cyclic transform of a row modulo limb i, after its coefficients were multiplied by twiddles."""
        return self._part(i, self.height << (self.kind == "negacyclic"), self.width, 1, "cyclic", self.width)

    def rows_below(self, i: int, first: int, count: int) -> NttPlan:
        """The last levels of the whole tree modulo limb i, of rows `first` to `first` + count - 1.

        They lie below one node: count is a power of two and divides `first`.
        """
        node, n, done = (self.height + first) // count, count * self.width, count.bit_length() - 1
        return self._part(i, 1, n, 1, self.kind, n, node, done)

    def columns_above(self, i: int, count: int) -> NttPlan:
        """Open columns without their last levels, which columns_below does."""
        points = 1 << self.levels_above
        leaf_size = self.height // points * count
        return self._part(i, self.degree // points, points, leaf_size, self.kind, self.degree, is_open=True)

    def columns_below(self, i: int, first: int, rows: int, count: int) -> NttPlan:
        """The last levels of open columns modulo limb i, for `rows` rows from `first` on; see rows_below."""
        node = (self.height + first) // rows
        done = self.levels_above - (node.bit_length() - 1)
        return self._part(i, self.width, rows, count, self.kind, rows, node, done, True)

    @property
    def levels_above(self) -> int:
        """Levels of columns_above: all but those of the last launch over columns."""
        levels = self.height.bit_length() - 1
        return levels - levels // max(1, -(-levels // _LAUNCH_LEVELS))

    def _part(
        self,
        i: int,
        power: int,
        points: int,
        leaf_size: int,
        kind: Kind,
        divisor: int,
        node: int = 1,
        done: int = 0,
        is_open: bool = False,
    ) -> NttPlan:
        """A transform modulo limb i with a power of its root, or a part of one (plans/ntt.py)."""
        key: Any = i, power, points, leaf_size, node, done, is_open
        if (known := self.handles.get(key)) is not None:
            return known  # type: ignore[no-any-return]
        q, dtype = self.basis.moduli[i], self.basis.dtype
        tables = prime_tables(q, pow(self.roots[i], power, q), points, kind, dtype, divisor, node)
        plan = NttPlan(self.limb(i), points * leaf_size, kind, leaf_size, (tables,), done, is_open)
        return keep(self.handles, key, plan, _KEPT)  # type: ignore[no-any-return]

    def row_twiddles(self, i: int, power: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Twiddles modulo limb i at column `power`: row a m + b has high[a] low[b], m = len(low).

        The twiddle of row r is s_r to this power, s_r = psi^(2 br(r) + 1) or omega^br(r): a factor for each
        bit of r.
        """
        key: Any = i, power
        if (known := self.handles.get(key)) is not None:
            return known  # type: ignore[no-any-return]
        q, negacyclic = self.basis.moduli[i], self.kind == "negacyclic"
        x, bits = pow(self.roots[i], power, q), self.height.bit_length() - 1

        def products(first: int, of: range) -> NDArray[Any]:
            found = [first]
            for bit in of:
                factor = pow(x, (self.height >> (bit + 1)) << negacyclic, q)
                found += [value * factor % q for value in found]
            made = np.array(found, self.basis.dtype)
            made.setflags(write=False)
            return made

        low = bits // 2
        both = products(x if negacyclic else 1, range(low, bits)), products(1, range(low))
        return keep(self.handles, key, both, _KEPT)  # type: ignore[no-any-return]


def plan_four_step(basis: Basis, kind: Kind, roots: tuple[int, ...], height: int, width: int) -> FourStepPlan:
    """The steps of the transform with these roots."""
    key = "four steps", basis.moduli, kind, roots, height, width, basis.dtype
    return cached(key, lambda: FourStepPlan(basis, kind, height, width, roots))
