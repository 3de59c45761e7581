"""The card, and the arithmetic of moduli on it: words of transforms, sums of products, groups of limbs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..._core.exact.primes import GOLDILOCKS
from ..._core.plans.basis import Basis
from ..._core.plans.ntt import NttPlan, PrimeTables
from .sources import constant

MAX_LIMBS = constant("ntt.cu", "MAX_LIMBS")  # of a launch: their tables are parameters


@dataclass(frozen=True)
class Card:
    """The properties of a card on which the choice of a launch depends."""

    capability: tuple[int, int]
    shared_bytes: int  # of shared memory, the most that one block may ask for
    l2_bytes: int = 0  # of the L2 cache; 0: not to be relied on
    multiprocessors: int = 1
    memory_bytes: int = 0

    @property
    def fast_doubles(self) -> bool:
        """Whether FP64 runs at half the rate of FP32 or better, as on A100, H100 and B200."""
        return self.capability in ((8, 0), (9, 0), (10, 0))


# ---- words ----


@dataclass(frozen=True)
class Word:
    """A word of cuda/word.cuh: how a kernel computes modulo one number.

    moduli: from the least to below the largest that it serves. storages: bytes of the residues that it reads.
    """

    name: str  # of the template, with its arguments
    moduli: tuple[int, int]
    storages: tuple[int, ...]
    own_bytes: int  # of a value
    twiddle_bytes: int  # of a twiddle in a table
    needs_doubles: bool = False  # a card with fast FP64
    many_instructions: bool = False  # two passes outgrow the instruction cache
    product_ps: float = 20.0  # of a coefficient of a product, by measurement
    product_ps_long: float = 20.0  # the same for at least 256 points
    among: int = 0  # bytes of residues of the ring, if rows of other limbs lie between; 0: its rows are alone

    def serves(self, q: int, storage_bytes: int, card: Card) -> bool:
        """Whether the word serves a modulus whose residues have `storage_bytes` bytes in memory."""
        least, end = self.moduli
        known = least <= q < end and storage_bytes in self.storages
        return known and (card.fast_doubles or not self.needs_doubles)

    def grouped(self, storage_bytes: int) -> Word:
        """Return the word for rows among those of other limbs, of residues of `storage_bytes` bytes."""
        return replace(self, among=storage_bytes)

    @property
    def alone(self) -> Word:
        """The word for rows without others between them; it has the same tables."""
        return replace(self, among=0)

    @property
    def argument(self) -> str:
        """The template argument of kernels."""
        return f"Grouped<{self.name}, u{8 * self.among}>" if self.among else self.name

    @property
    def bytes(self) -> int:
        """Bytes of a value in shared memory, where residues in the ring's storage lie too."""
        return max(self.own_bytes, self.among)


# In the order of preference: the first one that serves a modulus is its word. Small moduli take doubles too:
# one more group would cost what 32-bit integers gain.
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
COMPLEX = Word("Complex128", (0, 0), (16,), 16, 16)  # of FFTs


def word_of(q: int, storage_bytes: int, card: Card) -> Word:
    """Return the first of WORDS that serves a modulus on a card; storage_bytes: of a residue."""
    return next(word for word in WORDS if word.serves(q, storage_bytes, card))


class Group(NamedTuple):
    """Limbs that one word serves, at most MAX_LIMBS: their numbers, which ascend."""

    limbs: tuple[int, ...]
    word: Word


def limbs_by_word(moduli: tuple[int, ...], storage_bytes: int, card: Card) -> dict[Word, list[int]]:
    """Return the numbers of the limbs that each word serves, in the order of their first ones."""
    limbs: dict[Word, list[int]] = {}
    for i, q in enumerate(moduli):
        limbs.setdefault(word_of(q, storage_bytes, card), []).append(i)
    return limbs


def groups_of(basis: Basis, card: Card, apart: bool = False) -> tuple[Group, ...]:
    """Return the groups of a ring's limbs, word by word, in the order of each word's first limb.

    apart: rows of other limbs lie between their rows, in any case.
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
    """Return the groups of a plan's limbs, by the words of their transforms."""
    groups = []
    for group in groups_of(plan.basis, card, apart):
        word = word_of_tree(group.word.alone, plan.tables[group.limbs[0]])
        groups.append(group._replace(word=replace(word, among=group.word.among)))
    return tuple(groups)


def word_of_tree(word: Word, tables: PrimeTables) -> Word:
    """Return the word of the transform with these tables, of a modulus that `word` serves elsewhere."""
    if word == BY_SHIFTS:
        word = goldilocks_word(tables)
    if not tables.quotient.is_binomial:
        word = replace(word, name=f"Trinomial<{word.name}>")
    return word


def goldilocks_word(tables: PrimeTables) -> Word:
    """Return the word of a root of unity modulo the Goldilocks prime.

    In cuda/goldilocks.cuh the root's power of order 64 is a power of 2. Orders that are not powers of
    two have no shifts, and take Strict64.
    """
    p, order = tables.modulus, tables.quotient.order
    if order & (order - 1):  # not a power of two
        return STRICT64
    least = min(order, 64)
    root = pow(tables.root, order // least, p)
    k = next(k for k in range(1, 64, 2) if pow(2, 192 // least * k, p) == root)
    return replace(BY_SHIFTS, name=f"{BY_SHIFTS.name}<{k}, {tables.quotient.kind.upper()}>")


# ---- sums of products ----


@dataclass(frozen=True)
class Sum:
    """A sum of cuda/sum.cuh: how a kernel adds products of residues modulo one number.

    largest: that a modulus may be.
    """

    name: str
    largest: int
    bytes: int  # of a residue in a thread
    half: int = 0  # bits of the halves into which factors are split; 0: they are not
    quotients: bool = False  # factors of single residues stand with the quotients of Shoup's products
    doubles: bool = False  # factors are centred doubles
    tiles: tuple[tuple[int, int], ...] = ()  # of staged products of matrices: sums of a thread, and points
    most_side: int = 4  # sums of a thread along an axis, in products of matrices


SUM_31 = Sum("Sum31", (1 << 31) - 1, 4, quotients=True, tiles=((8, 1), (4, 2)), most_side=8)
SUM_32 = Sum("Sum32", 1 << 32, 4, tiles=((4, 2),))
SUM_62 = Sum("Sum62", 1 << 62, 8, tiles=((4, 1),))
SUM_64 = Sum("Sum64", 1 << 64, 8)
# Of conversions: those whose moduli, also the source's, are at most this large.
_NARROW = Sum("Sum30", (1 << 30) - 1, 4, quotients=True), SUM_31, SUM_32
_DOUBLES = Sum("SumFloat64", (1 << 50) - 1, 8, doubles=True)
_LEAST_FOR_DOUBLES = 16  # modulus of the target
_HALVES = tuple(Sum(f"SumHalves<{half}>", 1 << 2 * half, 8, half=half) for half in (25, 30))


def sum_of_products(basis: Basis) -> Sum:
    """Return the sum of products of matrices that serves all moduli."""
    wide: bool = basis.dtype == np.uint64
    largest = max(basis.moduli)
    if wide:
        return SUM_62 if largest <= SUM_62.largest else SUM_64
    return SUM_31 if largest <= SUM_31.largest else SUM_32


def sum_of_conversion(source: tuple[int, ...], target: tuple[int, ...], narrow: bool, card: Card) -> Sum:
    """Return the sum of a conversion between these moduli; narrow: all residues have four bytes in memory."""
    both = max((*source, *target))
    if narrow:
        return next(x for x in _NARROW if both <= x.largest)
    doubles = card.fast_doubles and min(target) >= _LEAST_FOR_DOUBLES
    if doubles and both <= _DOUBLES.largest:
        return _DOUBLES
    wide = SUM_62 if max(target) <= SUM_62.largest else SUM_64
    return next((x for x in _HALVES if both <= x.largest), wide)
