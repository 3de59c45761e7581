"""The card, and the words that serve moduli on it: their bytes, and the groups of limbs that share one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..._core.exact.primes import GOLDILOCKS
from ..._core.plans.basis import Basis
from ..._core.plans.ntt import NttPlan, PrimeTables

MAX_LIMBS = 64  # of a launch: their tables are parameters (cuda/ntt.cu)


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


class Group(NamedTuple):
    """Limbs that one word serves, at most MAX_LIMBS: their numbers, which ascend."""

    limbs: tuple[int, ...]
    word: str


def word_of(q: int, storage_bytes: int, card: Card) -> str:
    """The fastest word of cuda/word.cuh that serves a modulus on a card; storage_bytes: of a residue."""
    if q < 1 << 50 and card.fast_doubles and storage_bytes == 8:
        return "Float64"  # small moduli too: one more group would cost what 32-bit integers gain
    if q < 1 << 31 or storage_bytes == 4:
        return "Lazy32" if q < 1 << 30 else "Tight32" if q < 1 << 31 else "Strict32"
    if 1 << 40 <= q < 1 << 60:
        return "Lazy60"
    if q == GOLDILOCKS:
        return "Goldilocks"
    return "Lazy64" if q < 1 << 62 else "Strict64"


def groups_of(basis: Basis, card: Card, apart: bool = False) -> tuple[Group, ...]:
    """The groups of a ring's limbs, in the order of their first ones.

    apart: rows of other limbs lie between their rows, in any case.
    """
    size = basis.dtype.itemsize
    limbs_of: dict[str, list[int]] = {}
    for i, q in enumerate(basis.moduli):
        limbs_of.setdefault(word_of(q, size, card), []).append(i)
    groups = [
        Group(tuple(limbs[i : i + MAX_LIMBS]), word)
        for word, limbs in limbs_of.items()
        for i in range(0, len(limbs), MAX_LIMBS)
    ]
    if len(groups) > 1 or apart:
        groups = [g._replace(word=f"Grouped<{g.word}, u{8 * size}>") for g in groups]
    return tuple(groups)


def transform_groups(plan: NttPlan, card: Card, apart: bool = False) -> tuple[Group, ...]:
    """Return the groups of a plan's limbs, by the words of their transforms."""
    groups = []
    for group in groups_of(plan.basis, card, apart):
        word = group.word
        if "Goldilocks" in word:
            tables = plan.tables[group.limbs[0]]
            shifts = tables.quotient.order & (tables.quotient.order - 1) == 0  # a power of two
            word = word.replace("Goldilocks", goldilocks_word(tables) if shifts else "Strict64")
        groups.append(group._replace(word=word))
    return tuple(groups)


def goldilocks_word(tables: PrimeTables) -> str:
    """Return the word of cuda/goldilocks.cuh for a root of unity, whose power of order 64 is a power of 2."""
    p, order = tables.modulus, tables.quotient.order
    least = min(order, 64)
    root = pow(tables.root, order // least, p)
    k = next(k for k in range(1, 64, 2) if pow(2, 192 // least * k, p) == root)
    return f"Goldilocks<{k}, {tables.quotient.kind.upper()}>"


def arithmetic_of(word: str) -> str:
    """The word without Grouped<...>, which says where residues lie: words of one arithmetic share tables."""
    return word[len("Grouped<") : word.rindex(",")] if word.startswith("Grouped<") else word


def twiddle_bytes_of(word: str) -> int:
    """Bytes of a twiddle in a table."""
    arithmetic = arithmetic_of(word)
    short = arithmetic.endswith("32") or arithmetic == "Float64" or arithmetic.startswith("Goldilocks")
    return 8 if short else 16


def word_bytes_of(word: str) -> int:
    """Bytes of a value of a word in memory."""
    return 16 if word == "Complex128" else 4 if word.endswith("32") or ", u32" in word else 8
