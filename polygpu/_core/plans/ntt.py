"""Number theoretic transforms (NTTs): which ones exist for given moduli, and their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import _cpu
from ..checks import shown
from ..exact.primes import is_prime
from ..locks import cached_property
from ..memory import check_memory
from ..quotient import Quotient
from ..reporting import Work
from .basis import Basis, Handles, basis_of
from .cache import cached, keep
from .permutation import bit_reversal

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows are transformed in blocks of this many bytes, which stay in the L1 cache of a core.
CACHE_BLOCK_BYTES = 1 << 15

_LONG_WIDE = 1 << 13  # points; a table of this many Python ints takes about 10 ms and reports progress
_PARTS = 64  # the most results of part_of that a plan keeps


def least_leaf_size(quotient: Quotient, moduli: tuple[int, ...]) -> int | None:
    """Return the least leaf size of a transform modulo all moduli, or None if no leaf size allows one."""
    for size in quotient.leaf_sizes:
        if all(map(quotient.with_degree(quotient.degree // size).has_points, moduli)):
            return size if all(is_prime(q) for q in moduli) else None
    return None


class TransformSize(NamedTuple):
    """The size of a transform whose tables need not exist."""

    points: int
    leaf_size: int


@dataclass(frozen=True, eq=False)
class PrimeTables:
    """The twiddle tables of one prime, shared by the transforms of all rings that have the prime.

    Node 1 of the tree of factors is the quotient. The twiddle of node i splits its polynomial into two
    factors, which are nodes 2i and 2i + 1 (docs/math.md, "The tree of factors"). A table has two rows: the
    twiddle of node i at index i, and the Shoup quotients of the twiddles. For a modulus above 2^64 there is
    one row, of Python ints. The table of the inverse includes the factor 1/divisor.

    The tree may be a part of a larger tree: the levels below `node`, or the upper levels. For upper levels,
    `divisor` is the number of points of the larger tree. Only GPUs use tables of parts.
    """

    modulus: int
    root: int  # root of unity for the whole tree
    quotient: Quotient  # the polynomial of the whole tree; its degree is the number of the tree's leaves
    dtype: np.dtype[Any]  # the dtype of residues in memory; object if the modulus is above 2^64
    divisor: int
    node: int = 1  # the node of the whole tree below which this part lies; 1 if it begins at the root
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def points(self) -> int:
        """Return the number of leaves below `node`. If `node` is 1, these are all leaves of the tree."""
        return self.quotient.degree >> (self.node.bit_length() - 1)

    @property
    def forward(self) -> NDArray[Any]:
        """The table of the forward transform, (2, points), in host memory. It is made on the first access."""
        return self._both[0]

    @property
    def inverse(self) -> NDArray[Any]:
        """The table of the inverse transform, (2, points), in host memory. It is made on the first access."""
        return self._both[1]

    @cached_property
    def _both(self) -> tuple[NDArray[Any], NDArray[Any]]:
        assert self.node == 1 and self.divisor == self.points
        if self.dtype == object:
            is_long = self.points >= _LONG_WIDE
            with Work(1, "tables of {} points modulo {}", self.points, shown(self.modulus), when=is_long):
                forward, inverse = _wide_tables(self.modulus, self.root, self.quotient)
        else:
            forward, inverse = (np.zeros((2, self.points), self.dtype) for _ in range(2))
            if self.points > 1:
                _cpu.fill_twiddles(self.modulus, self.root, self.quotient.native, forward, inverse)
        forward.setflags(write=False)
        inverse.setflags(write=False)
        return forward, inverse


@dataclass(frozen=True, eq=False)
class NttPlan:
    """A transform modulo each limb, complete (leaf_size 1) or stopped at leaves of more coefficients.

    A plan may be a part of a complete transform: the first levels of a tree, or the levels below some of its
    nodes. Between two parts, residues may be canonical or lazy, that is, not fully reduced modulo q.
    """

    basis: Basis
    quotient: Quotient
    leaf_size: int
    tables: tuple[PrimeTables, ...]  # one for each limb
    done: int = 0  # the number of levels of the tables' tree that an earlier part has done
    is_open: bool = False  # whether a later part does the levels below the leaves of this one
    # Results of part_of, with the indices of the limbs as keys.
    parts: dict[tuple[int, ...], NttPlan] = field(default_factory=dict, repr=False)
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def degree(self) -> int:
        """Return the number of coefficients of a row."""
        return self.quotient.degree

    @property
    def below(self) -> bool:
        """Whether an earlier part of the tree does the levels above this part."""
        return self.done > 0 or self.tables[0].node > 1

    @property
    def points(self) -> int:
        """The number of leaves of the tree."""
        return self.degree // self.leaf_size

    @property
    def leaves(self) -> Quotient:
        """The quotient as a polynomial in X^leaf_size. The leaves are X^leaf_size - c for its roots c."""
        return self.quotient.with_degree(self.points)

    @cached_property
    def thirds(self) -> NttPlan:
        """Return the plan of the complete transform of n/3 coefficients.

        Call this only if leaf_size is 3. The transform of a polynomial then consists of three such
        transforms, each of every third coefficient.
        """
        return NttPlan(self.basis, self.leaves, 1, self.tables)

    @property
    def block(self) -> int:
        """The number of coefficients that fit L1; longer rows are transformed depth first."""
        return CACHE_BLOCK_BYTES // self.basis.dtype.itemsize


def plan_ntt(quotient: Quotient, moduli: tuple[int, ...], leaf_size: int, roots: tuple[int, ...]) -> NttPlan:
    """Return the plan of a transform.

    roots: one root of unity for each modulus, of the order that X^leaf_size has.
    """

    def build() -> NttPlan:
        n = quotient.degree
        check_memory(table_bytes(n, moduli, leaf_size), n, moduli)
        basis = basis_of(moduli)
        dtype = np.dtype(object) if basis.wide else basis.dtype
        leaves = quotient.with_degree(n // leaf_size)
        tables = tuple(prime_tables(q, root, leaves, dtype) for q, root in zip(moduli, roots, strict=True))
        return NttPlan(basis, quotient, leaf_size, tables)

    return cached(("ntt", quotient, moduli, leaf_size, roots), build)


def part_of(plan: NttPlan, limbs: tuple[int, ...]) -> NttPlan:
    """Return the transform of some limbs, for residues with the dtype of the plan.

    limbs: indices of limbs of the plan, in any order; a limb may occur several times.
    """
    if limbs == tuple(range(len(plan.tables))):
        return plan
    if (known := plan.parts.get(limbs)) is not None:
        return known
    chosen = tuple(plan.tables[i] for i in limbs)

    def build() -> NttPlan:
        basis = basis_of(tuple(t.modulus for t in chosen), plan.basis.dtype == np.uint64)
        return NttPlan(basis, plan.quotient, plan.leaf_size, chosen)

    tables = ((t.modulus, t.root, t.dtype) for t in chosen)
    return keep(plan.parts, limbs, cached(("ntt", plan.quotient, plan.leaf_size, *tables), build), _PARTS)


def prime_tables(
    q: int,
    root: int,
    quotient: Quotient,
    dtype: np.dtype[Any],
    divisor: int | None = None,
    node: int = 1,
) -> PrimeTables:
    """Return the tables of a prime, the same object for equal arguments; see PrimeTables.

    divisor: None means the number of points of the whole tree.
    """
    of = q, root, quotient, dtype, quotient.degree if divisor is None else divisor, node
    return cached(("prime", *of), lambda: PrimeTables(*of), recent=False)


def _wide_tables(q: int, root: int, quotient: Quotient) -> tuple[NDArray[Any], NDArray[Any]]:
    points = quotient.degree
    levels = (1 << level for level in range(points.bit_length() - 1))
    exponents = [
        e * (points // (2 * nodes)) % quotient.order
        for nodes in levels
        for e in quotient.exponents(bit_reversal(nodes)).tolist()
    ]
    half = quotient.order.bit_length() // 2
    mask = (1 << half) - 1

    def table(x: int, scale: int) -> NDArray[Any]:
        # Each x^e is the product of an entry of `low`, a power of x, and an entry of `high`, a power of
        # x^(2^half).
        low, high = [1], [1]
        for row, factor in (low, x), (high, pow(x, 1 << half, q)):
            row += accumulate(repeat(factor, 2 << half), lambda a, b: a * b % q)
        twiddles = (low[e & mask] * high[e >> half] % q for e in exponents)
        return np.array([[scale, *twiddles]], dtype=object)

    forward, scale = table(root, 1), pow(points, -1, q)
    inverse = table(pow(root, -1, q), scale)
    if points > 1:
        inverse[0, 1] = quotient.inverse_root_twiddle(int(forward[0, 1]), q) * scale % q
    return forward, inverse


def table_bytes(n: int, moduli: tuple[int, ...], leaf_size: int) -> int:
    """Return the number of bytes of the twiddle tables of plan_ntt."""
    basis = basis_of(moduli)
    if basis.wide:  # a Python int takes a pointer and an object of about 28 bytes plus its digits
        return 2 * (n // leaf_size) * (36 + 9 * basis.words)
    return 4 * len(moduli) * (n // leaf_size) * basis.dtype.itemsize
