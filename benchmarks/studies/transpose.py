"""Transposes of matrices of 8-byte words: a lab note's kernels, and one that multiplies by twiddles.

The note (docs/studies/transpose.md) times its kernels with and without bank conflicts, and asks why the
kernels without conflicts are no faster. Beside them is a kernel that moves pairs of words, in several shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import plots
from ..harness import Row
from ..tables import Table, power
from . import kernel, ncu, page, runner, transforms
from .kernel import Kernel
from .page import Rows, StudyKind, number, quotient, table, texts
from .runner import Entry, Figures, Group
from .transforms import WORD, WORD_BYTES

SIDE = 64  # rows and columns of the small matrices
TILE = 16  # side of a tile of the batched kernel
LEAST_BLOCKS = 256  # blocks of the kernel of pairs have several tiles only where there are as many blocks
WITH, WITHOUT = "with", "without"  # bank conflicts, or twiddles
ONE, MANY = "one matrix", f"matrices of {SIDE} x {SIDE}"
BATCH = "Transpose Batch"

Sides = tuple[int, int]  # rows and columns

# Two shapes of as many words: the matrix of the batched kernel, split as in GPU-NTT's four-step transform,
# and the one matrix of the kernel of pairs.
SIZES: tuple[tuple[Sides, Sides], ...] = (((32, 4096), (256, 512)), ((512, 32768), (4096, 4096)))

# Kernels for 64 x 64 neighbours: columns and threads of a block, and what values are multiplied by.
SMALL = {
    "small_transpose_4096_W": (SIDE, 256, "OWN_FACTORS"),
    "small_transpose_mult_4096": (SIDE, 256, "SHARED_FACTORS"),
    "small_transpose_4096": (SIDE, 256, "NO_FACTORS"),
    "small_transpose_4096_v2": (SIDE, 512, "NO_FACTORS"),
    "small_transpose_4096_v3": (SIDE // 2, 1024, "NO_FACTORS"),
}

# The kernel of pairs: rows and columns of a tile, threads of a block, and tiles of a block at most.
SHAPES = {
    ONE: (
        *((64, 64, 256, 1), (64, 64, 256, 4), (64, 64, 256, 8), (64, 64, 256, 16), (64, 64, 512, 16)),
        *((64, 64, 128, 8), (64, 32, 128, 16), (32, 64, 128, 16), (32, 32, 128, 16)),
    ),
    MANY: ((SIDE, SIDE, 256, 1), (SIDE, SIDE, 256, 16), (SIDE, SIDE, 512, 16)),
}


def grid(tile: Sides, most: int, n: int, sides: Sides) -> tuple[int, int, int]:
    """Numbers of blocks across a matrix, and down it or down all matrices; tiles of a block."""
    across, down = sides[1] // tile[1], n // sides[1] // tile[0]
    while most > 1 and (down % most or across * down // most < LEAST_BLOCKS):
        most //= 2
    return across, down // most, most


# ---- values on the host ----


@cache
def twiddles(rows: int, columns: int) -> NDArray[Any]:
    """Compute the matrix of w^(i j), with w of order rows * columns."""
    n = rows * columns
    exponents = np.multiply.outer(np.arange(rows, dtype=np.uint32), np.arange(columns, dtype=np.uint32))
    return transforms.powers(transforms.root(n, "cyclic"), n)[exponents]


def expected(n: int, sides: Sides, factors: Sides | None = None) -> NDArray[Any]:
    """Compute the transposes of n residues as matrices.

    factors: the residues are first multiplied by twiddles of that shape.
    """
    x = transforms.residues(n)
    if factors is not None:
        x = transforms.products(x, np.resize(twiddles(*factors), n))
    return x.reshape(-1, *sides).swapaxes(1, 2).reshape(-1)


def halves(n: int) -> tuple[int, NDArray[Any], NDArray[Any]]:
    """Two tables that give the powers of w, of order n, and before them log2 of the size of the first."""
    log_low = n.bit_length() // 2
    return log_low, *transforms.split_powers(transforms.root(n, "cyclic"), n, log_low)


# ---- what is launched ----


class Transposes(Group):
    """Rows with the least bytes to move, and the blocks that a multiprocessor has room for by each limit."""

    def figures(self, entry: Entry, facts: Figures, y: Any, row: Row, done: Mapping[str, Row]) -> Figures:
        found = super().figures(entry, facts, y, row, done)
        if not entry.kernels:
            return found
        read = (entry.moved_bytes or 2 * y.nbytes) - y.nbytes
        limits = kernel.Multiprocessor.of_device().limits(*kernel.block_of(found))
        by_limit = {f"calculated_limit_{name}": limit for name, limit in limits.items()}
        return {**found, "least_read_bytes": read, "least_written_bytes": y.nbytes, **by_limit}


def scalars(*values: int) -> tuple[Any, ...]:
    return tuple(map(np.uint32, values))


def factors_and_modulus(sides: Sides) -> tuple[Any, ...]:
    return *transforms.on_card(twiddles(*sides)), transforms.moduli()


def powers_and_modulus(rows: int, columns: int, tiles: int) -> tuple[Any, ...]:
    log_low, *tables = halves(rows * columns)
    sizes, of_low = scalars(rows, columns, tiles), np.uint32(log_low)
    return *sizes, *transforms.on_card(*tables), of_low, transforms.moduli()


def entries(batch: Sides, square: Sides) -> Iterator[Entry]:
    n, small, padding = square[0] * square[1], (SIDE, SIDE), {WITH: "false", WITHOUT: "true"}
    own = partial(Kernel, "transpose.cu")
    for conflicts, padded in padding.items():
        blocks, arguments = (batch[1] // TILE, batch[0] // TILE, 1), partial(scalars, *batch)
        one = own(f"transpose_batch<{padded}>", blocks, (TILE, TILE), arguments)
        yield Entry(BATCH, [one], partial(expected, n, batch), params={"conflicts": conflicts})
    for variant, (width, threads, factors) in SMALL.items():
        of = {"OWN_FACTORS": (n // SIDE**2, SIDE**2), "SHARED_FACTORS": small}.get(factors)
        blocks, arguments = (SIDE // width, n // SIDE**2), partial(factors_and_modulus, of or small)
        right = partial(expected, n, small, of)
        moved_bytes = 3 * WORD_BYTES * n if factors == "OWN_FACTORS" else None
        for conflicts, padded in padding.items():
            one = own(
                f"transpose_small<{width}, {threads}, {factors}, {padded}>", blocks, (threads,), arguments
            )
            yield Entry(variant, [one], right, moved_bytes, params={"conflicts": conflicts})
    for what, shapes in SHAPES.items():
        sides, flag = (square, "false") if what == ONE else (small, "true")
        made = dict.fromkeys((shape[:3], grid(shape[:2], shape[3], n, sides)) for shape in shapes)
        for (rows, columns, threads), (*blocks, tiles) in made:
            arguments = partial(powers_and_modulus, *sides, tiles)
            for twiddled, of in ((WITHOUT, None), (WITH, sides)):
                flags = f"{flag}, {str(twiddled == WITH).lower()}"
                name = f"transpose_pairs<{WORD}, Pairs<{rows}, {columns}, {threads}>, {flags}>"
                params = {"of": what, "twiddles": twiddled, "tiles": tiles}
                one, right = own(name, tuple(blocks), (threads,), arguments), partial(expected, n, sides, of)
                yield Entry(f"{rows} x {columns}, {threads} threads", [one], right, params=params)


def groups(sizes: Sequence[tuple[Sides, Sides]] = SIZES) -> list[Group]:
    found: list[Group] = []
    for batch, square in sizes:
        n = square[0] * square[1]
        x = partial(transforms.residues, n)
        found.append(Transposes("transpose", {"n": n}, x, list(entries(batch, square))))
    return found


PARTS = {"kernels": runner.counted("transpose", groups)}


# ---- the page ----

# Times in us, with and without bank conflicts, by size. None stands for a figure that the note lacks.
NOTE: dict[str, dict[int, tuple[float | None, float | None]]] = {
    BATCH: {2**17: (8.53, 6.50), 2**24: (660, 700)},
    "small_transpose_4096_W": {2**17: (9.89, 9.09), 2**24: (970, 970)},
    "small_transpose_mult_4096": {2**17: (8.29, 7.55), 2**24: (650, 650)},
    "small_transpose_4096": {2**24: (650, 650)},
    "small_transpose_4096_v2": {2**24: (660, 650)},
    "small_transpose_4096_v3": {2**24: (None, 650)},
}


def note_table(rows: Rows) -> Iterator[Table]:
    """Yield the note's table, with its figures and ours; then what conflicts cost on either card."""
    sizes = rows.values("n")
    body, costs = [], []
    for variant, known in NOTE.items():
        line, quotients = [variant], [variant]
        for n in sizes:
            noted = known.get(n, (None, None))
            found = [rows.one(n=n, variant=variant, conflicts=conflicts) for conflicts in (WITH, WITHOUT)]
            for theirs, row in zip(noted, found, strict=True):
                line += [number(theirs), *texts(row, "us | share of copy")]
            quotients += [quotient(*noted), quotient(*map(page.median, found))]
        body.append(tuple(line))
        costs.append(tuple(quotients))
    columns = [f"{power(n)} {conflicts} conflicts" for n in sizes for conflicts in (WITH, WITHOUT)]
    names = [f"{x}: {what}" for x in columns for what in ("the note, us", "here, us", "share of copy")]
    yield Table("Transposes with and without bank conflicts", ("kernel", *names), tuple(body))
    names = [f"{power(n)}: {what}" for n in sizes for what in ("the note", "here")]
    yield Table("Time with conflicts by time without", ("kernel", *names), tuple(costs))


def largest(rows: Rows) -> list[Row]:
    """Return the rows of all kernels at the largest size, in the order of the study."""
    own = rows.where(n=max(rows.values("n")))
    noted = (own.one(variant=name, conflicts=conflicts) for name in NOTE for conflicts in (WITH, WITHOUT))
    return [*(row for row in noted if row), *(row for row in own if "of" in row.params)]


def label(row: Row, tiles: bool = True) -> str:
    p = row.params
    if "of" not in p:
        return f"{p['variant']}, {p['conflicts']} conflicts"
    held = f"{p['tiles']} a block, " if tiles else ""
    return f"{p['variant']}, {held}{p['of']}, {p['twiddles']} twiddles"


def next_reasons(row: Row) -> str:
    """Return the longest reasons why a warp waits, except long_scoreboard, and the share of its cycles."""
    stalls = [stall for stall in page.longest_stalls(row) if stall[0] != "long_scoreboard"]
    latency = row.figures.get("warp_latency_cycles")
    return ", ".join(f"{name} {cycles / latency:.0%}" for name, cycles in stalls[:2]) if latency else ""


def counter_table(rows: Rows) -> Iterator[Table]:
    """Yield the table of what the profiler counted at the largest size."""
    columns = (
        "kernel = label | share of copy | sectors a load | sectors a store | "
        "bank conflicts a word = bank_conflicts @1 .2f | "
        "DRAM read, by the least = dram_read_bytes / least_read_bytes .2f | "
        "DRAM written, by the least = dram_write_bytes / least_written_bytes .2f | "
        "theoretical occupancy = theoretical_occupancy .0% | achieved | "
        "cycles between two instructions = warp_latency_cycles .1f | "
        "long_scoreboard = stall_long_scoreboard / warp_latency_cycles .0% | next reasons = next_reasons"
    )
    title = f"Counters, {power(max(rows.values('n')))} words"
    yield table(title, columns, largest(rows), label=label, next_reasons=next_reasons)


def by_limit(name: str, row: Row) -> str:
    """Return the number of blocks that was worked out, and the profiler's in brackets."""
    worked_out, profiled = (number(row.figures.get(f"{x}limit_{name}"), ".0f") for x in ("calculated_", ""))
    return worked_out + f" ({profiled})" * bool(profiled)


def binding(row: Row) -> str:
    limits = {name: row.figures[f"calculated_limit_{name}"] for name in ncu.LIMITS}
    return ", ".join(name.partition("_")[0] for name in limits if limits[name] == min(limits.values()))


def blocks_in_carved(row: Row) -> str:
    """How many blocks fit the shared memory that the driver carved out of the multiprocessor's memory."""
    if "carved_shared_bytes" not in row.figures:
        return ""
    card = kernel.Multiprocessor(0, 0, 0, int(row.figures["carved_shared_bytes"]))
    return str(card.limits(*kernel.block_of(row.figures))["shared_mem"])


def limit_table(rows: Rows) -> Iterator[Table]:
    """How many blocks a multiprocessor holds by each limit: worked out, and as the profiler says."""
    own = {label(row, tiles=False): row for row in largest(rows) if "calculated_limit_warps" in row.figures}
    columns = (
        "kernel = label | threads | registers | shared KB | by registers = registers | "
        "by shared memory = shared_mem | by warps = warps | by blocks = blocks | what binds = binding | "
        "shared memory carved, KB = carved_shared_bytes / 1024 .0f | blocks in it = blocks_in_carved | "
        "occupancy worked out = occupancy .0% | the profiler's = theoretical_occupancy .0%"
    )
    texts: dict[str, page.Text] = {name: partial(by_limit, name) for name in ncu.LIMITS}
    texts |= {"binding": binding, "blocks_in_carved": blocks_in_carved, "label": partial(label, tiles=False)}
    title = "Blocks that a multiprocessor has room for, worked out (the profiler's)"
    yield table(f"{title}, {power(max(rows.values('n')))} words", columns, own.values(), **texts)


def pairs_table(rows: Rows) -> Iterator[Table]:
    """Yield the tables of the kernel of pairs: one for each size and kind of matrices."""
    times = "plain, us | share of copy | with twiddles, us | share of copy | twiddles cost"
    for n in rows.values("n"):
        facts = "blocks | registers | shared KB | occupancy | instructions a word = warp_instructions @32 .1f"
        for of in SHAPES:
            body = []
            for plain in rows.where(n=n, of=of, twiddles=WITHOUT):
                variant, tiles = plain.params["variant"], plain.params["tiles"]
                row = rows.one(n=n, of=of, twiddles=WITH, variant=variant, tiles=tiles)
                cost = number(row.median / plain.median - 1, "+.0%") if row else ""
                both = (text for one in (plain, row) for text in texts(one, "us | share of copy"))
                body.append((str(variant), str(tiles), *texts(row, facts), *both, cost))
            if body:
                names = page.heads(f"tile and block | tiles a block | {facts} | {times}")
                yield Table(f"Pairs of words, {power(n)} words, {of}", names, tuple(body))


def shares(rows: Rows) -> str | None:
    """Draw the figure: share of the copy by kernel, at the largest size."""
    lines, heading = [], ""
    for row in largest(rows):
        p, of, share = row.params, row.params.get("of"), row.figures["copy_share"]
        above = f"Pairs of words, {of}" if of else "The note's kernels, bank conflicts"
        if above != heading:
            lines.append(plots.Bar(heading := above, {}))
        name = f"{p['variant']}, " + (f"{p['tiles']} a block" if of else str(p["conflicts"]))
        lines.append(
            plots.Bar(name + ", twiddles" * (p.get("twiddles") == WITH), {"share": share}, f"{share:.0%}")
        )
    title = f"Transposes of {power(max(rows.values('n')))} words of 8 bytes: share of the copy's bandwidth"
    return plots.bars(title, lines, ("copy", 1.0))


KINDS = {
    "transpose-note": StudyKind(note_table, "transpose"),
    "transpose-counters": StudyKind(counter_table, "transpose"),
    "transpose-limits": StudyKind(limit_table, "transpose"),
    "transpose-pairs": StudyKind(pairs_table, "transpose"),
}
FIGURES = {"studies/transpose.svg": (KINDS["transpose-pairs"], shares)}
