"""Number-theoretic transforms: their tables of twiddles, and the launches of their passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from ..._core.plans.basis import basis_of
from ..._core.plans.ntt import NttPlan, PrimeTables
from .. import Array
from .copies import copied, copy, copy_launch, shared_axes
from .device import Shared
from .launch import (
    ALIGNMENT,
    POINTER,
    U32,
    U64,
    Context,
    Launch,
    Recipe,
    Struct,
    cbool,
    ctype,
    entrywise,
    modulus_constants,
)
from .tiles import Pass, Rows, flow_lag, prefetch_distance, split_passes, table_offsets
from .words import MAX_LIMBS, Card, Group, Word, transform_groups

MAX_GRID_Y = 65535

TABLES = Struct("ntt.cu", "Tables", ("of", (POINTER, MAX_LIMBS)), ("rows", (np.dtype(np.uint16), MAX_LIMBS)))
PASS = Struct(
    "ntt.cu",
    "Pass",
    ("moduli", POINTER),
    ("offset tiles", U64),
    ("limbs total log_degree log_blocks starts_next", U32),
)
ONE_PASS = Struct(
    "ntt.cu",
    "PassParameters<u64>",
    ("x y", POINTER),
    ("pass", PASS),
    ("rows", U64),
    ("ahead", U32),
    ("tables", TABLES),
    ("pitch", U64),
)
FLOW = Struct(
    "ntt.cu",
    "FlowParameters<u64>",
    ("x y progress", POINTER),
    ("pass", PASS),
    ("rows_offset", U64),
    ("lag", U32),
    ("tables", TABLES),
)
FILL = Struct(
    "tables.cu",
    "FillParameters",
    ("tables moduli factors first", POINTER),
    ("offset root", U64),
    ("log_blocks log_length log_values bits inverse quotient", U32),
)


# ---- launches, pure functions of sizes, addresses and the card ----


def passes_over(
    rows: int | None, points: int, leaf_size: int, word_bytes: int, card: Card
) -> tuple[Pass, ...]:
    """Return the passes for transforms of `rows` rows; if `rows` is None, assume that they fill the card."""
    few = rows is not None and rows * points * leaf_size < card.multiprocessors << 12
    return split_passes(points, leaf_size, word_bytes, card, few)


def packed_tables(addresses: Iterable[int], at: Sequence[int] = (0,)) -> bytes:
    """Return the packed struct Tables.

    addresses: the table of each limb. at: the row of each limb in a polynomial.
    """
    of, rows = np.array(list(addresses), np.uint64), np.array(at, np.uint16)
    return TABLES(of=of.tobytes(), rows=rows.tobytes())  # padded with zeros


def packed_pass(rows: Rows, passed: Pass, offset: int, tiles: int, starts_next: bool = False) -> bytes:
    """Return the packed struct Pass."""
    return PASS(
        moduli=rows.moduli,
        offset=offset,
        tiles=tiles,
        limbs=rows.limbs,
        total=rows.total,
        log_degree=rows.log_degree,
        log_blocks=passed.log_blocks,
        starts_next=starts_next,
    )


def leaves_room(grid: tuple[int, int], threads: int, card: Card) -> bool:
    """Return whether the next kernel may start early, because this launch has few threads.

    Few means at most 1/16 of the threads that the card holds. This bound was chosen by measurements
    (docs/experiments.md). During larger launches, blocks of the next kernel would gather on few
    multiprocessors.
    """
    return grid[0] * grid[1] * threads <= card.multiprocessors << 7


def tiles_and_grid(rows: Rows, passed: Pass, card: Card) -> tuple[int, tuple[int, int]]:
    """Return the number of tiles of a pass over all rows, and its grid of blocks of threads."""
    tiles = rows.count << rows.log_degree >> (passed.log_length + passed.log_columns)
    log_parts = rows.log_degree - passed.log_block_values
    # If the twiddles take more than an eighth of the L2 cache, tiles that share twiddles run at the same
    # time.
    large = 8 * rows.limbs * passed.entries * rows.word.twiddle_bytes > card.l2_bytes
    if large and log_parts >= 0 and rows.limbs << log_parts <= MAX_GRID_Y:
        return tiles, (rows.count // rows.limbs, rows.limbs << log_parts)
    return tiles, (-(-tiles >> passed.log_rows), 1)


def blocks_ahead(rows: Rows, passed: Pass, card: Card) -> int:
    """Return how many blocks ahead a block prefetches, or 0 if the values of a block are not contiguous."""
    if rows.total > rows.limbs and passed.log_rows:
        return 0
    return prefetch_distance(passed, rows.word.bytes, card)


class Progress(NamedTuple):
    """How the last two passes of a transform share one launch (cuda/flow.cuh)."""

    units: int
    lag: int  # the second pass works this many units behind the first; 0: the passes take two launches


def progress_of(rows: Rows, passes: tuple[Pass, ...], card: Card) -> Progress:
    """Return the Progress of the last two passes. Its lag is 0 if the passes take two launches."""
    if len(passes) < 2:
        return Progress(0, 0)
    units = rows.count << passes[-2].log_blocks
    columns, last = passes[-2:]
    return Progress(units, flow_lag(columns, last, rows.log_degree, units, rows.word, card))


class Ends(NamedTuple):
    """Whether other parts of a transform come before or after this part (see NttPlan)."""

    below: bool = False  # whether this part is below another one
    is_open: bool = False  # whether another part follows below the leaves of this one
    pitch: int = 0  # entries from leaf to leaf in the result of a forward part with is_open; 0: dense


WHOLE = Ends()


def transform_recipe(
    rows: Rows,
    passes: tuple[Pass, ...],
    offsets: Sequence[int],
    direction: str,
    card: Card,
    done: int = 0,
    ends: Ends = WHOLE,
) -> Recipe:
    """Return the recipe for a transform of operand 0 (x) to operand 1 (y).

    The first launch reads x, later launches read y. offsets: for each pass, where its twiddles begin in a
    prime's table, in bytes. done: how many passes were already applied to y; the recipe omits these
    passes.
    """
    below, is_open, pitch = ends
    recipe = Recipe(2)
    if rows.count == 0:
        return recipe
    word, forward = rows.word, direction == "forward"
    steps: list[tuple[int, ...]] = [(i,) for i in range(len(passes))]
    units, lag = progress_of(rows, passes, card)
    # A flow (two passes in one launch) needs leaves in [0, q). A part with `is_open` has leaves that are not
    # fully reduced, so its passes are separate launches.
    if lag and not done and not is_open:
        steps[-2:] = [tuple(range(len(passes)))[-2:]]
    for i, step in enumerate(steps if forward else steps[::-1]):
        if i < done:
            continue
        counters = 0
        parts, own = [passes[k] for k in step], [offsets[k] for k in step]
        first, last = i == 0, i + 1 == len(steps)
        # Between launches, values are lazy: they are not fully reduced to [0, q). If the last launch of an
        # inverse transform is lazy, it also leaves out the work at the root, such as the factor 1/n.
        lazy_in = not first or (below if forward else is_open)
        lazy_out = not last or (is_open if forward else below)
        if len(step) == 1:
            name, flags = f"ntt_{direction}", [lazy_in, lazy_out if forward else not lazy_out]
            tiles, grid = tiles_and_grid(rows, parts[0], card)
            room = leaves_room(grid, parts[0].threads, card)
            packed = packed_pass(rows, parts[0], own[0], tiles, room)
            ahead = blocks_ahead(rows, parts[0], card)
            apart = pitch if last else 0
            flags += [True] * bool(apart)
            more = {"rows": rows.spanned, "ahead": ahead, "tables": rows.tables, "pitch": apart}
            parameters = ONE_PASS(**{"x": 0, "y": 0, "pass": packed}, **more)
        else:
            name, flags = f"ntt_{direction}_flow", [lazy_in if forward else not lazy_out]
            packed = packed_pass(rows, parts[0], own[0], units)
            log_unit = rows.log_degree - parts[0].log_blocks
            grid = (units + lag) * sum(1 << (log_unit - p.log_block_values) for p in parts), 1
            counters = 1 + units
            flow = {"rows_offset": own[1], "progress": 0, "lag": lag, "tables": rows.tables}
            parameters = FLOW(**{"x": 0, "y": 0, "pass": packed}, **flow)
        arguments = ", ".join([word.argument, *(p.shape for p in parts), *map(cbool, flags)])
        shared = max(p.shared_values for p in parts) * word.bytes
        kernel, threads = f"{name}<{arguments}>", parts[0].threads
        launch = Launch("ntt.cu", kernel, grid, threads, parameters, shared, counters)
        recipe.launch(launch, 1 if i else 0, 1, offsets=rows.first)
    return recipe


def order_of(passed: Pass) -> dict[str, int]:
    """Return the kernel parameters that define the order of the twiddles of a pass."""
    return {name: getattr(passed, name) for name in ("log_blocks", "log_length", "log_values")}


def fill_launch(word: Word, passed: Pass, primes: int, **values: int) -> Launch:
    """Return the launch that writes the twiddles of a pass into the tables of several primes."""
    kernel = f"fill_twiddles<{word.name}>"
    return entrywise("tables.cu", kernel, passed.entries, FILL(**values, **order_of(passed)), primes)


def _tables_key(word: Word, passes: tuple[Pass, ...]) -> str:
    """Return the key under which the tables for these passes are stored."""
    return f"tables {word.name} {[p.shape for p in passes]}"


# ---- on a device ----


def ntt(gpu: Context, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
    _transform(gpu, plan, x, out, "forward", first)


def intt(gpu: Context, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
    _transform(gpu, plan, x, out, "inverse", first)


def prefers_tables(gpu: Context, residues: int, itemsize: int) -> bool:
    """Return whether tables of up to 4 words for each residue take at most 1/8 of the card's memory."""
    return 4 * itemsize * residues <= gpu.card.memory_bytes >> 3


def _transform(gpu: Context, plan: NttPlan, x: Array, out: Array, direction: str, first: int) -> None:
    rows = slice(first, first + len(plan.tables))
    if plan.points == 1:
        copy(gpu, x[..., rows, :], out[..., rows, :])
        return
    pitch = 0 if out.shape == x.shape else out.strides[0] // out.itemsize
    unaligned = (gpu.address(x) | gpu.address(out) | pitch * out.itemsize) % ALIGNMENT
    if unaligned or (pitch and plan.leaf_size == 1):
        aligned = copied(gpu, x[..., rows, :])
        _transform(gpu, plan, aligned, aligned, direction, 0)
        if pitch:
            copy(gpu, aligned.reshape(out.shape), out)
        else:
            copy(gpu, aligned, out[..., rows, :])
        return
    shape = x.shape
    key = direction, first, shape, pitch
    gpu.run(plan.handles, key, lambda: recipe_of(gpu, plan, direction, shape, first, pitch), x, out)


def recipe_of(
    gpu: Context,
    plan: NttPlan,
    direction: str,
    shape: tuple[int, ...],
    first: int = 0,
    pitch: int = 0,
) -> Recipe:
    """Return the recipe that transforms all polynomials of an array of shape `shape`.

    first: the row of the plan's first limb in a polynomial. pitch: see Ends.
    """
    if plan.leaf_size == 3:
        return _recipe_of_thirds(gpu, plan, direction, shape, first)
    size, count = plan.basis.dtype.itemsize, prod(shape[:-2])
    passes = passes_over(
        count * len(plan.basis.moduli) << plan.done,
        plan.points >> plan.done,
        plan.leaf_size,
        size,
        gpu.card,
    )
    passes = tuple(replace(p, log_blocks=p.log_blocks + plan.done) for p in passes)
    recipe, between = Recipe(2), shape[-2] - len(plan.basis.moduli)
    for group in transform_groups(plan, gpu.card, between > 0):
        rows = rows_of(gpu, plan, group, count, passes, recipe, between, first)
        offsets = table_offsets(passes, group.word)
        own = offsets[: len(passes)] if direction == "forward" else offsets[len(passes) : -1]
        ends = Ends(plan.below, plan.is_open, pitch)
        recipe.add(transform_recipe(rows, passes, own, direction, gpu.card, ends=ends), 0, 1)
    return recipe


def _recipe_of_thirds(
    gpu: Context, plan: NttPlan, direction: str, shape: tuple[int, ...], first: int
) -> Recipe:
    """Return the recipe for transforms whose leaves have 3 coefficients.

    Third i has the coefficients of X^i, X^(i + 3), X^(i + 6), ... (i = 0, 1, 2). The thirds are copied to
    dense rows, (3, items, limbs, points), transformed completely in X^3, and copied back.
    """
    *batch, total, n = shape
    items, limbs, points, size = prod(batch), len(plan.basis.moduli), plan.points, plan.basis.dtype.itemsize
    lengths = 3, items, limbs, points
    apart, dense = (1, total * n, n, 3), (items * limbs * points, limbs * points, points, 1)
    recipe, word, start = Recipe(2), ctype(plan.basis), first * n * size
    thirds = recipe.temporary(size * prod(lengths))
    if not items:
        return recipe
    there = shared_axes([*zip(lengths, apart, dense, strict=True)])
    back = shared_axes([*zip(lengths, dense, apart, strict=True)])
    recipe.launch(copy_launch(there, word, word, x=0, y=0), 0, thirds, offsets=(start, 0))
    recipe.add(recipe_of(gpu, plan.thirds, direction, lengths), thirds, thirds)
    recipe.launch(copy_launch(back, word, word, x=0, y=0), thirds, 1, offsets=(0, start))
    return recipe


def rows_of(
    gpu: Context,
    plan: NttPlan,
    group: Group,
    count: int,
    passes: tuple[Pass, ...],
    recipe: Recipe,
    between: int = 0,
    first: int = 0,
) -> Rows:
    """Return the rows of a group in `count` polynomials. Add its moduli and tables to recipe.used.

    between: how many rows a polynomial has besides the rows of the plan. first: the first row of the
    plan.
    """
    basis, limbs, log_degree = plan.basis, group.limbs, plan.degree.bit_length() - 1
    moduli = gpu.moduli_of(basis_of(tuple(basis.moduli[i] for i in limbs), basis.dtype.itemsize == 8))
    tables = group_tables(gpu, plan, group, passes)
    recipe.used += [moduli, tables]
    where, total = gpu.address(moduli.value), len(basis.moduli) + between
    start = first * plan.degree * basis.dtype.itemsize
    return Rows(count * len(limbs), limbs, total, log_degree, group.word, where, tables.value, start)


def group_tables(gpu: Context, plan: NttPlan, group: Group, passes: tuple[Pass, ...]) -> Shared:
    """Return the packed struct Tables of a group. It points to tables that all plans share."""
    key = _tables_key(group.word, passes)
    primes = [plan.tables[i] for i in group.limbs]

    def make() -> tuple[bytes, list[Shared]]:
        shared = prime_tables(gpu, primes, group.word, passes)
        return packed_tables([gpu.address(table.value) for table in shared], group.limbs), shared

    return gpu.kept(plan.handles, f"{key} {group.limbs}", make)


def prime_tables(
    gpu: Context, primes: Sequence[PrimeTables], word: Word, passes: tuple[Pass, ...], directions: int = 2
) -> list[Shared]:
    """Return the table of each prime for these passes. Make the tables that are missing.

    directions: 1 for the forward transform only, 2 for both directions.
    """
    names = [f"{gpu.name} {_tables_key(word, passes)} {count}" for count in (2, 1)[: 3 - directions]]
    missing = [p for p in primes if not any(name in p.handles for name in names)]
    if missing:
        tables, filling = _make_tables(gpu, missing, word, passes, directions)
        for prime, table in zip(missing, tables, strict=True):
            made = gpu.share(table, (filling,))
            prime.handles.setdefault(names[-1], made)  # if another thread was first, its table stays
    return [next(p.handles[name] for name in names if name in p.handles) for p in primes]


def _make_tables(
    gpu: Context, primes: Sequence[PrimeTables], word: Word, passes: tuple[Pass, ...], directions: int
) -> tuple[list[Array], Shared]:
    """Return uninitialized tables of the primes, and a Shared that fills the tables at its first use."""
    tree, node = primes[0].quotient, primes[0].node
    bits, exponent = tree.degree.bit_length() - 1, tree.exponent_of_node(node)
    offsets = table_offsets(passes, word)
    moduli = gpu.from_host(modulus_constants([p.modulus for p in primes]))
    size = offsets[directions * len(passes)]
    tables: list[Array] = [gpu.xp.empty(size, np.uint8) for _ in primes]
    pointers = gpu.from_host(np.array([gpu.address(x) for x in tables], np.uint64))
    launches, kept = list[Launch](), [moduli, pointers, *tables]
    for direction, sign in enumerate((1, -1)[:directions]):
        factors = np.ones((len(primes), bits + 2), np.uint64)
        first = np.ones((len(primes), 2), np.uint64)
        for i, prime in enumerate(primes):
            q = prime.modulus
            x = pow(prime.root, sign, q)
            first[i, 1] = pow(x, exponent, q)
            for d in range(bits + 2):
                factors[i, d], x = x, x * x % q
            if sign < 0 and node == 1:
                w, scale = pow(prime.root, exponent, q), pow(prime.divisor, -1, q)
                first[i] = scale, tree.inverse_root_twiddle(w, q) * scale % q
        constants = [gpu.from_host(x) for x in (factors, first)]
        kept += constants
        values = {"tables": gpu.address(pointers), "moduli": gpu.address(moduli), "bits": bits}
        values |= {"factors": gpu.address(constants[0]), "first": gpu.address(constants[1])}
        values |= {"quotient": tree.number, "inverse": sign < 0, "root": node}
        for passed, offset in zip(passes, offsets[direction * len(passes) :], strict=False):
            launches.append(fill_launch(word, passed, len(primes), offset=offset, **values))
    return tables, gpu.filling(launches, *kept)


def leaf_constants(gpu: Context, plan: NttPlan) -> Shared:
    """Return a tuple: an array with a pointer to the array of each limb, then the arrays of all limbs.

    The array of a limb holds the constants c of the leaves X^leaf_size - c.
    """

    def constants(prime: PrimeTables) -> Array:
        return prime.quotient.leaf_constants(prime.forward[0].astype(np.uint64), prime.modulus)

    def make() -> tuple[Array, ...]:
        leaves = [gpu.from_host(constants(prime)) for prime in plan.tables]
        return gpu.from_host(np.array([gpu.address(x) for x in leaves], np.uint64)), *leaves

    return gpu.kept(plan.handles, "leaves", lambda: (make(), ()))
