"""Plans: what a transform or a product needs, as plain read-only data; no device is touched here."""

from __future__ import annotations

import os
import resource
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from . import _cpu
from .errors import OutOfHostMemory, TablesTooLarge
from .roots import Kind

# A block of this many bytes is transformed while it stays in a core's first cache.
CACHE_BLOCK_BYTES = 1 << 15

_SMALL_ARRAY = 1 << 26  # bytes; nobody asks the system whether so few are available


# What a backend keeps with a plan, by device: a native object or a copy of the tables. Dies with the plan.
Handles = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Limbs:
    """The moduli of a ring and how residues are stored: arrays (*batch, rows, degree) of dtype."""

    moduli: tuple[int, ...]
    dtype: np.dtype[Any]
    words: int  # words of one residue; more than 1 only for a single modulus above 2^64
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def rows(self) -> int:
        """Length of the limb axis."""
        return self.words if self.words > 1 else len(self.moduli)

    @cached_property
    def wide(self) -> bool:
        """Whether one modulus is held in several words."""
        return self.words > 1


@lru_cache(maxsize=256)
def limbs_of(moduli: tuple[int, ...]) -> Limbs:
    """The limbs of the given moduli: uint32 where every q <= 2^32, else uint64."""
    narrow = all(q <= 1 << 32 for q in moduli)
    words = -(-(moduli[0] - 1).bit_length() // 64) if len(moduli) == 1 else 1
    return Limbs(moduli, np.dtype(np.uint32 if narrow else np.uint64), max(1, words))


def words_to_ints(words: NDArray[Any]) -> NDArray[np.object_]:
    """(*batch, words, n) little-endian uint64 to Python ints (*batch, n)."""
    count = words.shape[-2]
    flat = np.ascontiguousarray(np.moveaxis(words, -2, -1)).astype("<u8").tobytes()
    size = 8 * count
    values = [int.from_bytes(flat[i : i + size], "little") for i in range(0, len(flat), size)]
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out.reshape(*words.shape[:-2], words.shape[-1])


def ints_to_words(x: NDArray[np.object_], words: int) -> NDArray[np.uint64]:
    """Non-negative Python ints (*batch, n) to little-endian uint64 (*batch, words, n)."""
    flat = b"".join(int(v).to_bytes(8 * words, "little") for v in x.ravel())
    array = np.frombuffer(flat, "<u8").reshape(*x.shape, words).astype(np.uint64)
    return np.ascontiguousarray(np.moveaxis(array, -1, -2))


@dataclass(frozen=True, eq=False)
class NttPlan:
    """A transform modulo each limb, complete (base 1) or stopped where leaves have `base` coefficients.

    The twiddle of node 1 splits X^N ± 1 in two, those of nodes 2i and 2i + 1 the halves of node i
    (docs/math.md, "The tree of factors"). A limb's table is two rows, twiddles by node and their
    Shoup quotients; the inverse table carries 1/points. For a wide modulus there is one row of
    Python ints.
    """

    limbs: Limbs
    degree: int
    kind: Kind
    base: int
    roots: tuple[int, ...]
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def points(self) -> int:
        """Leaves of the tree."""
        return self.degree // self.base

    @property
    def block(self) -> int:
        """Coefficients that a core transforms together; it walks longer rows depth first."""
        return CACHE_BLOCK_BYTES // self.limbs.dtype.itemsize

    @cached_property
    def tables(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Forward and inverse table in host memory, (limbs, 2, points) each; made when first asked for."""
        moduli, points = self.limbs.moduli, self.points
        if self.limbs.wide:
            forward, inverse = _wide_tables(moduli[0], self.roots[0], points, self.kind)
        else:
            forward = np.zeros((len(moduli), 2, points), self.limbs.dtype)
            inverse = np.zeros_like(forward)
            if points > 1:
                for i, (q, root) in enumerate(zip(moduli, self.roots, strict=True)):
                    _cpu.fill_twiddles(q, root, self.kind == "negacyclic", forward[i], inverse[i])
        forward.setflags(write=False)
        inverse.setflags(write=False)
        return forward, inverse


@dataclass(frozen=True, eq=False)
class AuxiliaryPlan:
    """An exact product modulo anything: over the integers by enough primes, then reduced."""

    limbs: Limbs
    degree: int
    kind: Kind
    transform: NttPlan  # over the auxiliary primes
    handles: Handles = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class FftPlan:
    """An exact product modulo words, over the integers by transforms in doubles, then reduced.

    Centred residues are split in balanced digits. A row of digits becomes length / 2 complex numbers,
    x_j + i x_(j + length/2), and is multiplied modulo X^(length/2) - i. Products of digits i and j are summed
    by their weight, 2^(width (i + j)), and rounded: exactly, since no coefficient of a sum is wrong by more
    than error_bound, which is below 1/2 (docs/math.md, "Products by FFT").
    """

    limbs: Limbs
    degree: int
    kind: Kind
    length: int  # real numbers of a transform: the degree, or enough for the linear product
    digits: int
    error_bound: float
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def width(self) -> int:
        """Bits of a digit."""
        return self.split(self.digits)[0]

    @property
    def sums(self) -> int:
        """Sums of products of digits that count modulo q."""
        return self.split(self.digits)[1]

    def split(self, digits: int) -> tuple[int, int]:
        """Width and sums of so many digits."""
        moduli = self.limbs.moduli
        width, sums, bits = digit_width(moduli, digits), 2 * digits - 1, residue_bits(moduli)
        if moduli == (1 << bits,):
            sums = min(sums, -(-bits // width))  # the others vanish
        return width, sums

    def work(self, digits: int) -> int:
        """Real numbers that a product with so many digits transforms."""
        return (2 * digits + self.split(digits)[1]) * self.length

    @property
    def bytes(self) -> int:
        """Of the table, and of what a core holds for a product."""
        return (16 * self.digits + 16) * self.length

    @property
    def points(self) -> int:
        """Complex numbers of a transform."""
        return self.length // 2

    @cached_property
    def twiddles(self) -> NDArray[np.complex128]:
        """w by node of the tree of factors of X^points - i (see unit_roots); entry 0 is 1."""
        turns = np.array([0, 1], np.int64)  # of node 1: w = exp(i pi / 4), an eighth of a turn
        while len(turns) < max(self.points, 2):
            # The constants of a node's children are its twiddle and minus that: their twiddles the roots.
            below = turns[len(turns) // 2 :]
            children = np.stack([below, below + 4 * len(turns) // 2], axis=-1).ravel()
            turns = np.concatenate([2 * turns, children])
        table = unit_roots(turns, 4 * len(turns))[: self.points]
        table.setflags(write=False)
        return table


def residue_bits(moduli: tuple[int, ...]) -> int:
    """The least b with centred residues of at most 2^(b - 1) in size."""
    return max(max(moduli) - 1, 1).bit_length()


def digit_width(moduli: tuple[int, ...], digits: int) -> int:
    """Bits of each of so many digits of centred residues."""
    return max(2, -(-residue_bits(moduli) // digits))


_PI = np.longdouble("3.14159265358979323846264338327950288")


def unit_roots(k: NDArray[np.int64], order: int) -> NDArray[np.complex128]:
    """exp(2 pi i k / order) for a power of two `order` of at least 8, within 1.01 * 2^-53 of their size.

    Extended precision leaves 11 bits and more for the errors of its cosines and sines, of angles up to pi/4.
    """
    octant, rest = np.divmod(k % order, order // 8)
    angle = 2 * _PI / order * np.where(octant % 2, order // 8 - rest, rest)
    c, s = np.cos(angle), np.sin(angle)
    swapped = (octant + 1) % 4 >= 2
    roots = np.empty(k.shape, np.complex128)
    roots.real = np.where(swapped, s, c) * np.where((octant + 2) % 8 >= 4, -1, 1)
    roots.imag = np.where(swapped, c, s) * np.where(octant >= 4, -1, 1)
    return roots


Plan = NttPlan | AuxiliaryPlan | FftPlan
_P = TypeVar("_P", NttPlan, AuxiliaryPlan, FftPlan)

# Plans live while a ring uses them; the most recent ones also between rings.
_plans: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_recent: deque[Plan] = deque(maxlen=8)
_lock = threading.RLock()


def cached(key: tuple[Any, ...], build: Callable[[], _P]) -> _P:
    """The plan of this key, built once while it lives."""
    with _lock:
        plan: _P | None = _plans.get(key)
        if plan is None:
            plan = _plans[key] = build()
            _recent.append(plan)
        return plan


def plan_ntt(n: int, moduli: tuple[int, ...], kind: Kind, base: int, roots: tuple[int, ...]) -> NttPlan:
    """The plan of a transform with the given roots, one a modulus, of order root_order(n // base)."""

    def build() -> NttPlan:
        check_memory(table_bytes(n, moduli, base), n, moduli)
        return NttPlan(limbs_of(moduli), n, kind, base, roots)

    return cached(("ntt", n, moduli, kind, base, roots), build)


def _wide_tables(q: int, root: int, points: int, kind: Kind) -> tuple[NDArray[Any], NDArray[Any]]:
    def table(x: int, scale: int) -> NDArray[Any]:
        bits = points.bit_length() - 1
        powers = [1]
        for level in reversed(range(bits if kind == "negacyclic" else max(bits - 1, 0))):
            factor = pow(x, 1 << level, q)
            powers += [p * factor % q for p in powers]
        nodes = [
            powers[node if kind == "negacyclic" else node - (1 << (node.bit_length() - 1))]
            for node in range(1, points)
        ]
        row = np.array([1, *nodes], dtype=object)
        row[:2] = row[:2] * scale % q
        return row.reshape(1, 1, points)

    return table(root, 1), table(pow(root, -1, q), pow(points, -1, q))


def table_bytes(n: int, moduli: tuple[int, ...], base: int) -> int:
    """Bytes of the twiddle tables of plan_ntt."""
    limbs = limbs_of(moduli)
    if limbs.wide:  # Python ints: a pointer and an object of about 28 bytes and the digits
        return 2 * (n // base) * (36 + 9 * limbs.words)
    return 4 * len(moduli) * (n // base) * limbs.dtype.itemsize


def check_memory(needed: int, n: int, moduli: tuple[int, ...]) -> None:
    """Raise TablesTooLarge where tables of so many bytes do not fit what memory is available."""
    available = _available_memory()
    if needed > available:
        raise TablesTooLarge(
            f"tables for n = {n} and {len(moduli)} moduli take {_gib(needed)}, {_gib(available)} are "
            "available; use a smaller n or fewer moduli at a time"
        )


def check_array(size: int) -> None:
    """Raise OutOfHostMemory where an array of so many bytes does not fit what memory is available."""
    if size > _SMALL_ARRAY and size > _available_memory():
        raise no_memory(size)


def no_memory(size: int) -> OutOfHostMemory:
    """The error of an array of so many bytes."""
    return OutOfHostMemory(
        f"an array of {_gib(size)} is needed, {_gib(_available_memory())} are available; take smaller batches"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >> 1000 == 0 else f"2^{size.bit_length() - 31} GiB"


def _available_memory() -> int:
    """Bytes the machine has left, or less where a container or a limit of this process allows less."""
    page = os.sysconf("SC_PAGE_SIZE")
    limits = [os.sysconf("SC_PHYS_PAGES") * page]
    for path, key in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        if words := _line(path, key):
            if key:
                limits.append(int(words[1]) * 1024)
            elif words[0].isdecimal():
                limits.append(int(words[0]))
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY and (words := _line("/proc/self/statm")):
        limits.append(max(0, addresses - int(words[0]) * page))
    return min(limits)


def _line(path: str, key: str = "") -> list[str]:
    """The words of the first line that begins with key; none where there is no such file or line."""
    try:
        with open(path) as lines:
            return next(line for line in lines if line.startswith(key)).split()
    except (OSError, StopIteration):
        return []


# ---- permutations ----


@lru_cache(maxsize=64)
def bit_reversal(points: int) -> NDArray[np.int64]:
    """br(k) for k = 0 ... points - 1, points a power of two."""
    index = np.zeros(1, np.int64)
    while len(index) < points:
        index = np.concatenate([2 * index, 2 * index + 1])
    index.setflags(write=False)
    return index


@dataclass(frozen=True)
class Permutation:
    """An order of the n entries of a row: entry j of the result is entry k of the row.

    k = (j * multiplier + offset) mod order, where k >= n stands for the negative of entry k - n. Of the
    evaluation domain of a full transform, whose order is bit-reversed: k = br(p), where x_p is x_br(j)
    to the power of the multiplier, another point of the same tree.
    """

    n: int
    order: int  # of X in coefficients: 2n (negacyclic) or n (cyclic)
    multiplier: int
    offset: int
    evaluated: bool

    @property
    def index(self) -> NDArray[np.int64]:
        """k by j."""
        return _index(self)


@lru_cache(maxsize=64)
def _index(p: Permutation) -> NDArray[np.int64]:
    if not p.evaluated:
        index = (np.arange(p.n, dtype=np.int64) * p.multiplier + p.offset) % p.order
    else:
        reversal = bit_reversal(p.n)
        if p.order == p.n:
            index = reversal[reversal * p.multiplier % p.n]
        else:
            index = reversal[((2 * reversal + 1) * p.multiplier % p.order - 1) // 2]
    index.setflags(write=False)
    return index


def automorphism(n: int, kind: Kind, g: int, evaluated: bool) -> Permutation:
    """X -> X^g: in coefficients X^j goes to X^(gj), and a(X^g) at a point is a at its g-th power."""
    order = 2 * n if kind == "negacyclic" else n
    return Permutation(n, order, g % order if evaluated else pow(g, -1, order), 0, evaluated)


def monomial_product(n: int, kind: Kind, k: int) -> Permutation:
    """The product with X^k, in coefficients."""
    order = 2 * n if kind == "negacyclic" else n
    return Permutation(n, order, 1, -k % order, False)
