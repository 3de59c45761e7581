"""The card, and how its kernels compute modulo q: classes Word (transforms) and Sum (sums of products)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..._core.exact.primes import GOLDILOCKS
from ..._core.plans.basis import Basis
from ..._core.plans.ntt import NttPlan, PrimeTables
from .sources import constant

MAX_LIMBS = constant("ntt.cu", "MAX_LIMBS")  # the most limbs of a launch, which has a pointer for each


@dataclass(frozen=True)
class Card:
    """The properties of a card on which the choice of launches depends."""

    capability: tuple[int, int]  # compute capability
    shared_bytes: int  # the most shared memory that one block can have
    l2_bytes: int = 0  # size of the L2 cache; 0 turns off what relies on it
    multiprocessors: int = 1
    memory_bytes: int = 0

    @property
    def fast_doubles(self) -> bool:
        """Whether FP64 runs at half the rate of FP32 or better, as on A100, H100 and B200."""
        return self.capability in ((8, 0), (9, 0), (10, 0))


# ---- words ----


@dataclass(frozen=True)
class Word:
    """A class of cuda/word.cuh that defines how transforms compute modulo one number."""

    name: str  # name of the C++ class, with its template arguments
    moduli: tuple[int, int]  # (a, b): this Word can compute modulo q if a <= q < b
    storages: tuple[int, ...]  # the sizes in bytes that residues in memory may have
    own_bytes: int  # bytes of a value in a kernel
    twiddle_bytes: int  # bytes of a twiddle in a table
    needs_doubles: bool = False  # whether this Word is used only on cards with fast FP64
    many_instructions: bool = False  # whether the code of two passes does not fit the instruction cache
    product_ps: float = 20.0  # measured picoseconds of a product, divided by its number of coefficients
    product_ps_long: float = 20.0  # product_ps for products of at least 256 points
    among: int = 0  # bytes of a residue in memory if polynomials have rows outside the Group; else 0

    def serves(self, q: int, storage_bytes: int, card: Card) -> bool:
        """Return whether this Word can compute modulo q, with residues of `storage_bytes` bytes in memory."""
        least, end = self.moduli
        known = least <= q < end and storage_bytes in self.storages
        return known and (card.fast_doubles or not self.needs_doubles)

    def grouped(self, storage_bytes: int) -> Word:
        """Return the variant of this Word for a Group that does not have all rows of a polynomial.

        storage_bytes: bytes of a residue in memory.
        """
        return replace(self, among=storage_bytes)

    @property
    def alone(self) -> Word:
        """This Word with `among` = 0. It uses the same tables of twiddles."""
        return replace(self, among=0)

    @property
    def argument(self) -> str:
        """The C++ class, as a template argument of kernels."""
        return f"Grouped<{self.name}, u{8 * self.among}>" if self.among else self.name

    @property
    def bytes(self) -> int:
        """Bytes for a value in shared memory: the larger one of `own_bytes` and `among`."""
        return max(self.own_bytes, self.among)


# In order of preference: a modulus uses the first Word that can compute modulo it. With 64-bit residues,
# small moduli use Float64 and share a launch with larger moduli. Lazy32 is faster, but it would need a launch
# of its own, which costs more time than it saves.
WORDS = (
    FLOAT64 := Word("Float64", (0, 1 << 50), (8,), 8, 8, needs_doubles=True),
    Word("Lazy32", (0, 1 << 30), (4, 8), 4, 8, product_ps=10.0, product_ps_long=10.0),
    Word("Tight32", (0, 1 << 31), (4, 8), 4, 8),
    Word("Strict32", (0, 1 + (1 << 32)), (4,), 4, 8),
    LAZY60 := Word("Lazy60", (1 << 40, 1 << 60), (8,), 8, 16, many_instructions=True),
    BY_SHIFTS := Word("Goldilocks", (GOLDILOCKS, GOLDILOCKS + 1), (8,), 8, 8, many_instructions=True),
    Word("Lazy64", (0, 1 << 62), (8,), 8, 16, many_instructions=True),
    STRICT64 := Word(
        "Strict64", (0, 1 + (1 << 64)), (8,), 8, 16, many_instructions=True, product_ps_long=48.0
    ),
)
COMPLEX = Word("Complex128", (0, 0), (16,), 16, 16)  # the word of complex FFTs, which have no modulus


def word_of(q: int, storage_bytes: int, card: Card) -> Word:
    """Return the first of WORDS that can compute modulo q on a card; storage_bytes: bytes of a residue."""
    return next(word for word in WORDS if word.serves(q, storage_bytes, card))


class Group(NamedTuple):
    """At most MAX_LIMBS limbs with the same Word. `limbs` holds their indices, ascending."""

    limbs: tuple[int, ...]
    word: Word


def limbs_by_word(moduli: tuple[int, ...], storage_bytes: int, card: Card) -> dict[Word, list[int]]:
    """Return a dict from each Word to the indices of its limbs. Words are sorted by their first limb."""
    limbs: dict[Word, list[int]] = {}
    for i, q in enumerate(moduli):
        limbs.setdefault(word_of(q, storage_bytes, card), []).append(i)
    return limbs


def groups_of(basis: Basis, card: Card, apart: bool = False) -> tuple[Group, ...]:
    """Return the Groups of the limbs of a basis, ordered by Word as in limbs_by_word.

    apart: whether polynomials also have rows of limbs outside the basis.
    """
    size = basis.dtype.itemsize
    groups = [
        Group(tuple(limbs[i : i + MAX_LIMBS]), word)
        for word, limbs in limbs_by_word(basis.moduli, size, card).items()
        for i in range(0, len(limbs), MAX_LIMBS)
    ]
    if len(groups) > 1 or apart:
        groups = [group._replace(word=group.word.grouped(size)) for group in groups]
    return tuple(groups)


def transform_groups(plan: NttPlan, card: Card, apart: bool = False) -> tuple[Group, ...]:
    """Return the Groups of a plan's limbs, with the Words of their transforms (see word_of_tree)."""
    groups = []
    for group in groups_of(plan.basis, card, apart):
        word = word_of_tree(group.word.alone, plan.tables[group.limbs[0]])
        groups.append(group._replace(word=replace(word, among=group.word.among)))
    return tuple(groups)


def word_of_tree(word: Word, tables: PrimeTables) -> Word:
    """Return the variant of `word` for the kind of the ring.

    For the Goldilocks prime, the variant also depends on the root of unity. word: the result of word_of
    for the modulus of `tables`.
    """
    if word == BY_SHIFTS:
        word = goldilocks_word(tables)
    if not tables.quotient.is_binomial:
        word = replace(word, name=f"Trinomial<{word.name}>")
    return word


def goldilocks_word(tables: PrimeTables) -> Word:
    """Return the Word for a root of unity modulo the Goldilocks prime.

    Let m be the order of the root, but at most 64. The name of the Word contains the odd k for which
    2^(192 * k / m) is the root to the power of (order / m). So cuda/goldilocks.cuh multiplies by shifts.
    Return Strict64 if the order of the root is not a power of two.
    """
    p, order = tables.modulus, tables.quotient.order
    if order & (order - 1):  # the order is not a power of two
        return STRICT64
    least = min(order, 64)
    root = pow(tables.root, order // least, p)
    k = next(k for k in range(1, 64, 2) if pow(2, 192 // least * k, p) == root)
    return replace(BY_SHIFTS, name=f"{BY_SHIFTS.name}<{k}, {tables.quotient.kind.upper()}>")


# ---- sums of products ----


@dataclass(frozen=True)
class Sum:
    """A class of cuda/sum.cuh that defines how kernels add up products of residues modulo one number."""

    name: str
    largest: int  # the largest modulus
    bytes: int  # bytes of a residue in a thread
    half: int = 0  # bits of the lower half of a factor, if factors are split; 0 if they are not
    quotients: bool = False  # whether constant factors are stored with quotients for Shoup's multiplication
    doubles: bool = False  # whether factors are centred doubles
    tiles: tuple[tuple[int, int], ...] = ()  # tiles (side, points) of a thread in matmul_points_staged
    most_side: int = 4  # in products of matrices, a thread has at most this many sums along an axis


SUM_31 = Sum("Sum31", (1 << 31) - 1, 4, quotients=True, tiles=((8, 1), (4, 2)), most_side=8)
SUM_32 = Sum("Sum32", 1 << 32, 4, tiles=((4, 2),))
SUM_62 = Sum("Sum62", 1 << 62, 8, tiles=((4, 1),))
SUM_64 = Sum("Sum64", 1 << 64, 8)
# The classes for conversions. All moduli, of source and target, must be at most the field `largest`.
_NARROW = Sum("Sum30", (1 << 30) - 1, 4, quotients=True), SUM_31, SUM_32
_DOUBLES = Sum("SumFloat64", (1 << 50) - 1, 8, doubles=True)
_LEAST_FOR_DOUBLES = 16  # _DOUBLES is used only if all moduli of the target are at least this
_HALVES = tuple(Sum(f"SumHalves<{half}>", 1 << 2 * half, 8, half=half) for half in (25, 30))


def sum_of_products(basis: Basis) -> Sum:
    """Return the Sum for products of matrices modulo all moduli of a basis."""
    wide: bool = basis.dtype == np.uint64
    largest = max(basis.moduli)
    if wide:
        return SUM_62 if largest <= SUM_62.largest else SUM_64
    return SUM_31 if largest <= SUM_31.largest else SUM_32


def sum_of_conversion(source: tuple[int, ...], target: tuple[int, ...], narrow: bool, card: Card) -> Sum:
    """Return the Sum for a conversion between these moduli. narrow: whether all residues have 4 bytes."""
    both = max((*source, *target))
    if narrow:
        return next(x for x in _NARROW if both <= x.largest)
    doubles = card.fast_doubles and min(target) >= _LEAST_FOR_DOUBLES
    if doubles and both <= _DOUBLES.largest:
        return _DOUBLES
    wide = SUM_62 if max(target) <= SUM_62.largest else SUM_64
    return next((x for x in _HALVES if both <= x.largest), wide)
