"""Blind rotation modulo 2^32 or 2^64 in one kernel, by FFT in double precision, and the FFT of its keys."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._core.plans.fft import unit_roots
from ..._core.plans.gadget import Gadget
from ..._core.plans.permutation import bit_reversal
from ..._core.plans.torus import TorusPlan
from .. import Array
from .copies import copy
from .device import Shared
from .launch import POINTER, U32, U64, Context, Launch, Recipe, Struct, cbool, ctype
from .sources import constant
from .tiles import Pass
from .words import Card

_FILE = "torus.cu"
KEY_ROWS, KEY_PARTS, _COMBINED_STAGES, MOST_GROUP = (
    constant(_FILE, name) for name in ("KEY_ROWS", "KEY_PARTS", "COMBINED_STAGES", "MOST_GROUP")
)
_COMBINED_BYTES = 1 << 29  # the most bytes of combined keys (see Combination) in memory at once
_COMBINED_THREADS = 256  # the most threads of a block that combines keys
_REGISTERS = 1 << 16  # registers of a multiprocessor; each thread of a rotation takes up to 256
_MOST_COMPONENTS, _MOST_LEVELS = 5, 3
_LOG_POINTS = range(8, 12)
_HAS_BULK_COPIES = (9, 0)  # the least compute capability with bulk copies to shared memory
_BARRIERS = 15  # named barriers of a block
TORUS = Struct(
    _FILE,
    "TorusParameters<u64>",
    ("x key y exponents tables", POINTER),
    ("first last", (U64, 32)),
    ("items count width bits offset begins", U32),
)
COMBINE = Struct(
    _FILE,
    "CombineParameters<u64>",
    ("keys y exponents tables", POINTER),
    ("first", (U64, 32)),
    ("items count width k levels group bits", U32),
)


class Rotation(NamedTuple):
    """A kernel for blind rotation: its transforms, and how ciphertexts are divided among blocks."""

    passed: Pass
    k: int  # components of a ciphertext
    levels: int  # digits of a coefficient
    items: int  # ciphertexts that share a block
    is_staged: bool  # whether a block copies the key of each step to shared memory in advance
    is_own: bool = False  # whether each ciphertext has its own key, as after a Combination
    is_split: bool = False  # whether a cluster of blocks rotates a ciphertext, one block per component

    @property
    def lanes(self) -> int:
        """Number of threads for each component."""
        return 1 << self.passed.log_length - self.passed.log_values

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.lanes * self.here * self.items

    @property
    def here(self) -> int:
        """Number of components of a ciphertext that one block works on."""
        return 1 if self.is_split else self.k

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block (struct Torus in torus.cu)."""
        points, rows = 1 << self.passed.log_length, self.here * self.items
        is_paired = self.k == 2 and self.lanes == 32 and self.passed.log_values == 5 and self.levels == 1
        room = 2 * 16 * 17 if is_paired else points + self.lanes
        key = self.levels * self.k * self.here * points if self.is_staged else 0
        inboxes = 2 * (self.k - 1) * points if self.is_split else 0
        tables = _shared_twiddles(self.passed, 2)
        tables += points // 2 + 1 if tables else 0  # the factors of the twist (torus.cu)
        held = 0 if self.is_own else 2 * points + (16 if is_paired else 0)
        barriers = (12 * KEY_PARTS if self.is_staged else 0) + (16 if self.is_split else 0)
        return 16 * (key + inboxes + tables + rows * room) + 4 * rows * held + barriers


class Combination(NamedTuple):
    """A kernel that makes a key for each ciphertext and group of secret bits, from the keys of the group."""

    passed: Pass
    items: int  # ciphertexts that share a block
    is_staged: bool  # whether a block copies the key to shared memory in advance

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.items << self.passed.log_length - self.passed.log_values

    def shared(self, itemsize: int) -> int:
        """Return the bytes of shared memory of a block (cuda/torus.cu). itemsize: bytes of a residue."""
        points = 1 << self.passed.log_length
        tables = _shared_twiddles(self.passed, 1)
        rooms = 16 * (self.items * points + self.threads)
        staged = _COMBINED_STAGES * 2 * points * itemsize if self.is_staged else 0
        return max(rooms, staged) + 16 * tables + (8 * _COMBINED_STAGES if self.is_staged else 0)


def _shared_twiddles(passed: Pass, directions: int) -> int:
    """Return how many twiddles lie in shared memory (struct TorusTransform), for 1 or 2 directions."""
    later = len(_rounds(passed)) - 1
    return 0 if passed.log_values == 3 else directions * later << passed.log_length - 1


def rotation_of(
    plan: TorusPlan, levels: int, items: int, card: Card, is_own: bool = False
) -> Rotation | None:
    """Choose the kernel that rotates `items` ciphertexts. Return None if no kernel supports the sizes.

    If there are few ciphertexts, many threads rotate each one: a cluster of blocks if all clusters can run
    at once. If there are many, a block rotates several ciphertexts, with the key in shared memory. The
    thresholds were chosen by measurements (docs/experiments.md).
    """
    log_points, k = plan.points.bit_length() - 1, plan.terms // levels
    if log_points not in _LOG_POINTS or not 2 <= k <= _MOST_COMPONENTS or levels > _MOST_LEVELS:
        return None
    if plan.unit == 1 and plan.modulus_bits == 64:
        return None
    can_stage = card.capability >= _HAS_BULK_COPIES
    split = Rotation(Pass(0, log_points, 0, 1, 3), k, levels, 1, True, is_own, True)
    resident = min(card.shared_bytes // split.shared, _REGISTERS // (256 * split.threads)) if can_stage else 0
    if items * k <= resident * card.multiprocessors:
        return split
    few = is_own or items <= card.multiprocessors
    for log_values in (3, 4, 5) if few else (5, 4, 3):
        lanes = 1 << log_points - log_values
        is_simple = k == 2 and levels == 1
        most = 512 if log_values == 4 and is_simple else 256  # threads of a block, limited by registers
        if lanes < 32 or (log_values == 5 and not is_simple):
            continue
        named = 1 if lanes == 32 else k + 1  # named barriers for one ciphertext
        for count in range(1 if few else min(_BARRIERS // named, most // (lanes * k)), 0, -1):
            for is_staged in (True, False)[not can_stage :]:
                made = Rotation(Pass(0, log_points, 0, 1, log_values), k, levels, count, is_staged, is_own)
                if made.shared <= card.shared_bytes and made.threads <= most:
                    return made
    return None


def combination_of(plan: TorusPlan, items: int, card: Card) -> Combination:
    """Choose the kernel that combines keys for `items` ciphertexts."""
    log_points = plan.points.bit_length() - 1
    passed = Pass(0, log_points, 0, 1, 3)
    most = min(items, _COMBINED_THREADS >> log_points - passed.log_values)
    for is_staged in (True, False)[card.capability < _HAS_BULK_COPIES :]:
        for count in range(most, 0, -1):
            made = Combination(passed, count, is_staged)
            if made.shared(plan.basis.dtype.itemsize) <= card.shared_bytes:
                return made
    raise AssertionError(f"{card} has no room for one transform.")


def combination_launch(plan: TorusPlan, made: Combination, items: int, **values: int) -> Launch:
    """Return the launch that combines the keys of values["count"] groups."""
    parameters = COMBINE(first=_constants(made.passed)[0].tobytes(), items=items, **values)
    kernel = (
        f"torus_combination<{ctype(plan.basis)}, {made.passed.shape}, {made.items}, {cbool(made.is_staged)}>"
    )
    polynomials = values["count"] * values["k"] ** 2 * values["levels"]
    grid = polynomials * -(-items // made.items), 1
    return Launch(_FILE, kernel, grid, made.threads, parameters, made.shared(plan.basis.dtype.itemsize))


def rotation_launch(plan: TorusPlan, made: Rotation, items: int, **values: object) -> Launch:
    """Return the launch of the blind rotation of `items` ciphertexts."""
    forward, inverse = _constants(made.passed)
    rest = 32 - plan.bits * made.levels
    offset = 1 << rest >> 1
    if made.levels > 1:  # the kernel adds half of the base to each digit, then reads digits as bit fields
        offset += sum(1 << rest + plan.bits * i + plan.bits - 1 for i in range(made.levels))
    parameters = TORUS(
        first=forward.tobytes(),
        last=inverse.tobytes(),
        items=items,
        bits=plan.bits,
        offset=offset % (1 << 32),
        **values,
    )
    of = f"{ctype(plan.basis)}, {made.passed.shape}, {made.k}, {made.levels}"
    kernel = f"torus_rotation<{of}, {made.items}, {cbool(made.is_staged)}, {cbool(made.is_own)}>"
    grid = -(-items // made.items), 1
    if made.is_split:
        kernel, grid = f"torus_rotation_split<{of}, {cbool(made.is_own)}>", (items * made.k, 1)
    return Launch(_FILE, kernel, grid, made.threads, parameters, made.shared)


# ---- tables ----


def _rounds(passed: Pass) -> list[tuple[int, int]]:
    """Return the first stage and the number of stages of each round of a pass (tile.cuh, Shape)."""
    length, values = passed.log_length, passed.log_values
    first = length - (-(-length // values) - 1) * values
    return [(0, first), *((start, values) for start in range(first, length, values))]


def _forward_twiddles(start: int, radix: int) -> NDArray[np.complex128]:
    """Return the twiddles of a round that begins with stage `start`: (2^(radix - 1), 2^start).

    radix: the number of stages of the round. Each column of the result belongs to one node of stage `start`.
    Let this node have the number 1, and let node i have the children 2 * i and 2 * i + 1. Then the column
    holds the twiddles of nodes 1, 2, 4, 6, ..., 2^radix - 2.
    """
    entry = np.array([1, *range(2, 1 << radix, 2)], np.int64)[:, None]
    stage = np.array([int(e).bit_length() - 1 for e in entry[:, 0]])[:, None]
    log = start + stage
    place = (np.arange(1 << start) << stage) + entry - (1 << stage)  # index of the node in its stage
    # The twiddle of node 2^s + r is w^(1 + 4 * r'), where w has order 2^(s + 3) and r' is r with its s bits
    # reversed.
    most = start + radix - 1
    power = 1 + 4 * (bit_reversal(1 << most)[place] >> most - log)
    return unit_roots(power << most - log, 1 << most + 3)


def _inverse_twiddles(radix: int, log_h: int) -> NDArray[np.complex128]:
    """Return the twiddles of an inverse round: (2^(radix - 1), 2^log_h).

    radix: stages of the round. log_h: log2 of the stride between the values of a thread.
    """
    rows = [(0, 0), *((stage, k) for stage in range(1, radix) for k in range(1 << stage - 1))]
    order = 1 << max(3, radix + log_h)
    stage, k = np.array(rows, np.int64).T[..., None]
    return unit_roots(-((k << log_h) + np.arange(1 << log_h)) * (order >> stage + 1 + log_h), order)


def _constants(passed: Pass) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return the twiddles of the first forward and the first inverse round, each padded to 16 entries."""
    rounds, both = _rounds(passed), np.zeros((2, 16), np.complex128)
    first, last = _forward_twiddles(*rounds[0]), _inverse_twiddles(rounds[-1][1], 0)
    both[0, : len(first)], both[1, : len(last)] = first[:, 0], last[:, 0]
    return both[0], both[1]


def _tables(gpu: Context, plan: TorusPlan, passed: Pass) -> Shared:
    """Return the tables of TorusTransform: the forward twiddles, the inverse twiddles, then the twist."""

    def make() -> tuple[Array, tuple[()]]:
        points, length, values = plan.points, passed.log_length, passed.log_values
        lanes = np.arange(points >> values)
        parts: list[NDArray[Any]] = []
        for start, radix in _rounds(passed)[1:]:
            parts.append(_forward_twiddles(start, radix)[:, lanes >> length - start - radix])
        for start, radix in _rounds(passed)[-2::-1]:
            log_h = length - start - radix
            table = _inverse_twiddles(radix, log_h)
            for group in range(1 << values - radix):
                parts.append(table[:, lanes + len(lanes) * group & (1 << log_h) - 1])
        scale = 1 / points / (2.0**32 if plan.unit > 1 else 1.0)
        parts.append(unit_roots(-np.arange(points // 2 + 1, dtype=np.int64), 4 * points) * scale)
        return gpu.from_host(np.concatenate([x.ravel() for x in parts])), ()

    return gpu.kept(plan.handles, f"torus tables {passed.log_values}", make)


# ---- operations ----


def prepare(gpu: Context, gadget: Gadget, matrices: Array, out: Array) -> None:
    """Write the Fourier transforms of `matrices` to `out`.

    If there is a kernel for blind rotation, a bootstrapping key is stored in the kernel's order
    (_arranged).
    """
    plan = gadget.product
    assert isinstance(plan, TorusPlan)
    spectra = plan.spectra(gpu.to_host(matrices)[..., 0, :])
    if spectra.ndim == 5 and rotation_of(plan, gadget.levels, 1, gpu.card) is not None:
        spectra = _arranged(spectra)
    copy(gpu, gpu.from_host(np.ascontiguousarray(spectra).reshape(out.shape)), out)


def _arranged(spectra: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return `spectra` in the order of the kernels (matrix_place in cuda/torus.cu).

    spectra: (count, k, levels, k, points).
    """
    count, k, levels, _, points = spectra.shape
    some, groups = KEY_ROWS // KEY_PARTS, np.arange(points // KEY_ROWS)
    rows = np.empty((count, KEY_PARTS, k, some, levels, k, len(groups)), np.complex128)
    rows[..., groups ^ (groups >> 3 & 3)] = spectra.reshape(
        count, k, levels, k, len(groups), KEY_PARTS, some
    ).transpose(0, 5, 3, 6, 2, 1, 4)
    return rows


def rotate(gpu: Context, gadget: Gadget, ggsws: Array, c: Array, exponents: Array, out: Array) -> bool:
    """Do a blind rotation in one kernel.

    Return True. If no kernel supports the sizes, do nothing and return False.
    """
    plan = gadget.product
    assert isinstance(plan, TorusPlan)
    items, count = prod(c.shape[:-3]), exponents.shape[-1] - 1
    made = rotation_of(plan, gadget.levels, items, gpu.card)
    if made is None:
        return False

    def recipe() -> Recipe:
        tables = _tables(gpu, plan, made.passed)
        where = dict.fromkeys(("x", "key", "y", "exponents"), 0)
        where |= {"tables": gpu.address(tables.value), "count": count, "width": 1 + count, "begins": 1}
        recipe = Recipe(4, tables)
        recipe.launch(rotation_launch(plan, made, items, **where), 0, 1, 2, 3)
        return recipe

    gpu.run(plan.handles, ("rotate", items, count), recipe, c, ggsws, out, exponents)
    return True


def rotate_by_groups(
    gpu: Context, gadget: Gadget, keys: Array, c: Array, exponents: Array, out: Array
) -> bool:
    """Do a blind rotation by combined keys (see Combination), in chunks of up to _COMBINED_BYTES of keys.

    Return True. If no kernel supports the sizes, do nothing and return False.
    """
    plan = gadget.product
    assert isinstance(plan, TorusPlan)
    items, bits, k = prod(c.shape[:-3]), exponents.shape[-1] - 1, c.shape[-3]
    group, levels, itemsize = keys.shape[1].bit_length() - 1, gadget.levels, c.itemsize
    rotation = rotation_of(plan, levels, items, gpu.card, is_own=True)
    if rotation is None or group > MOST_GROUP:
        return False

    def recipe() -> Recipe:
        combination = combination_of(plan, items, gpu.card)
        used = [_tables(gpu, plan, x.passed) for x in (combination, rotation)]
        tables = [gpu.address(x.value) for x in used]
        recipe, matrix = Recipe(4, *used), k * levels * k
        step = items * matrix * plan.points * 16
        together = max(1, min(len(keys), _COMBINED_BYTES // step))
        spectra = recipe.temporary(together * step)
        for first in range(0, max(1, len(keys)), together):
            count = min(together, len(keys) - first)
            where = {"count": count, "width": 1 + bits}
            launch = combination_launch(
                plan,
                combination,
                items,
                **dict.fromkeys(("keys", "y", "exponents"), 0),
                tables=tables[0],
                k=k,
                levels=levels,
                group=group,
                bits=bits - first * group,
                **where,
            )
            offsets = (first << group) * matrix * 2 * plan.points * itemsize, 0, 8 * (1 + first * group)
            recipe.launch(launch, 1, spectra, 3, offsets=offsets)
            launch = rotation_launch(
                plan,
                rotation,
                items,
                **dict.fromkeys(("x", "key", "y", "exponents"), 0),
                tables=tables[1],
                begins=int(first == 0),
                **where,
            )
            recipe.launch(launch, 2 if first else 0, spectra, 2, 3)
        return recipe

    gpu.run(plan.handles, ("rotate by groups", items, bits, group), recipe, c, keys, out, exponents)
    return True
