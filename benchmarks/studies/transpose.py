"""Transposes of matrices of 8-byte words: a lab note's kernels, and one that multiplies by twiddles.

The note (docs/studies/transpose.md) times its kernels with and without bank conflicts, and asks why the ones
without are no faster. Beside them is a kernel that moves pairs of words, in several shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu.backends import get_backend

from .. import plots
from ..harness import Row, Timer
from ..tables import Table, figure, power
from . import kernel, ncu, runner, transforms
from .page import StudyKind, longest_stalls, optional, ratio, sectors
from .runner import DEVICE, Entry, Group

SIDE = 64  # rows and columns of the small matrices
TILE = 16  # of the batched kernel
LEAST_BLOCKS = 256  # of the kernel of pairs, before its blocks have several tiles
WITH, WITHOUT = "with", "without"  # bank conflicts
ONE, MANY = "one matrix", f"matrices of {SIDE} x {SIDE}"


@dataclass(frozen=True)
class Size:
    """Of the arrays, as the matrices that they are."""

    batch: tuple[int, int]
    """Rows and columns for the batched kernel: the split of GPU-NTT's four-step transform."""
    square: tuple[int, int]
    """Rows and columns of the one matrix whose twiddles are multiplied."""

    @property
    def n(self) -> int:
        assert self.batch[0] * self.batch[1] == self.square[0] * self.square[1]
        return self.square[0] * self.square[1]

    def matrix(self, of: str) -> tuple[int, int]:
        """Rows and columns of what the kernel of pairs transposes."""
        return self.square if of == ONE else (SIDE, SIDE)


SIZES = (Size((32, 4096), (256, 512)), Size((512, 32768), (4096, 4096)))


@dataclass(frozen=True)
class Small:
    """A kernel for 64 x 64 neighbours: columns and threads of a block, and what values are multiplied by."""

    variant: str
    columns: int = SIDE
    threads: int = 256
    factors: str = "NO_FACTORS"

    def expression(self, padded: bool) -> str:
        flag = str(padded).lower()
        return f"transpose_small<{self.columns}, {self.threads}, {self.factors}, {flag}>"


BATCH = "Transpose Batch"
SMALL = (
    Small("small_transpose_4096_W", factors="OWN_FACTORS"),
    Small("small_transpose_mult_4096", factors="SHARED_FACTORS"),
    Small("small_transpose_4096"),
    Small("small_transpose_4096_v2", threads=512),
    Small("small_transpose_4096_v3", columns=SIDE // 2, threads=1024),
)


@dataclass(frozen=True)
class Pairs:
    """A tile of the kernel of pairs, the threads of a block, and how many tiles it has at most."""

    rows: int
    columns: int
    threads: int
    tiles: int

    @property
    def variant(self) -> str:
        return f"{self.rows} x {self.columns}, {self.threads} threads"

    def expression(self, of: str, twiddled: bool) -> str:
        flags = f"{str(of == MANY).lower()}, {str(twiddled).lower()}"
        shape = f"Pairs<{self.rows}, {self.columns}, {self.threads}>"
        return f"transpose_pairs<{transforms.WORD}, {shape}, {flags}>"

    def grid(self, of: str, size: Size) -> tuple[int, int, int]:
        """Blocks along the columns, along the rows or over the matrices, and the tiles of a block."""
        rows, columns = size.matrix(of)
        across, down = columns // self.columns, rows // self.rows * (size.n // (rows * columns))
        tiles = self.tiles
        while tiles > 1 and (down % tiles or across * down // tiles < LEAST_BLOCKS):
            tiles //= 2
        return across, down // tiles, tiles


SHAPES = {
    ONE: (
        Pairs(64, 64, 256, 1),
        Pairs(64, 64, 256, 4),
        Pairs(64, 64, 256, 8),
        Pairs(64, 64, 256, 16),
        Pairs(64, 64, 512, 16),
        Pairs(64, 64, 128, 8),
        Pairs(64, 32, 128, 16),
        Pairs(32, 64, 128, 16),
        Pairs(32, 32, 128, 16),
    ),
    MANY: (Pairs(SIDE, SIDE, 256, 1), Pairs(SIDE, SIDE, 256, 16), Pairs(SIDE, SIDE, 512, 16)),
}


# ---- values on the host ----


@cache
def twiddles(rows: int, columns: int) -> NDArray[Any]:
    """w^(i j) of a matrix, w of the order of its size."""
    n = rows * columns
    exponents = np.multiply.outer(np.arange(rows, dtype=np.uint32), np.arange(columns, dtype=np.uint32))
    found = transforms.powers(transforms.root(n, "cyclic"), n)[exponents]
    found.flags.writeable = False
    return found


def expected(n: int, rows: int, columns: int, factors: Callable[[], NDArray[Any]] | None) -> NDArray[Any]:
    """The transposes of n residues in matrices, with products by factors that repeat."""
    x = transforms.residues(n)
    if factors is not None:
        table = factors().reshape(-1)
        x = transforms.products(x, np.tile(table, n // len(table)))
    return x.reshape(-1, rows, columns).swapaxes(1, 2).reshape(-1)


def halves(n: int) -> tuple[int, NDArray[Any], NDArray[Any]]:
    """Powers of w of order n: log2 of the size of the first table, and both tables as Shoup pairs."""
    q, w, log_low = transforms.modulus(), transforms.root(n, "cyclic"), n.bit_length() // 2
    low = transforms.powers(w, 1 << log_low)
    high = transforms.powers(pow(w, 1 << log_low, q), n >> log_low)
    low, high = (np.array([(x, (x << 64) // q) for x in map(int, t)], np.uint64) for t in (low, high))
    return log_low, low, high


# ---- what is launched ----


@cache
def kernels(device: int) -> dict[str, Any]:
    expressions = [f"transpose_batch<{flag}>" for flag in ("false", "true")]
    expressions += [small.expression(padded) for small in SMALL for padded in (False, True)]
    expressions += [s.expression(of, flag) for of in SHAPES for s in SHAPES[of] for flag in (False, True)]
    return kernel.load("transpose.cu", list(dict.fromkeys(expressions)))


class Tables:
    """What kernels read beside the matrices, on the card once."""

    def __init__(self, size: Size) -> None:
        self.size = size

    @cached_property
    def modulus(self) -> Any:
        backend: Any = get_backend(DEVICE)
        return backend._moduli(transforms.ring(SIDE).basis)

    @cached_property
    def own(self) -> Any:
        """A factor for each value: rows of 4096 in a matrix of them all."""
        return self._copied(self.own_factors())

    @cached_property
    def shared(self) -> Any:
        return self._copied(twiddles(SIDE, SIDE))

    @cached_property
    def halves(self) -> dict[str, tuple[np.uint32, Any, Any]]:
        """By what is transposed."""
        orders = {ONE: self.size.n, MANY: SIDE * SIDE}
        found = {of: halves(order) for of, order in orders.items()}
        return {of: (np.uint32(k), self._copied(a), self._copied(b)) for of, (k, a, b) in found.items()}

    def own_factors(self) -> NDArray[Any]:
        return twiddles(self.size.n // SIDE**2, SIDE**2)

    @staticmethod
    def _copied(x: NDArray[Any]) -> Any:
        import cupy

        return cupy.asarray(x)


def groups() -> list[Group]:
    return [
        Group("transpose", {"n": s.n}, partial(transforms.residues, s.n), list(entries(s))) for s in SIZES
    ]


def entries(size: Size) -> Iterator[tuple[str, Callable[[], Entry]]]:
    tables = Tables(size)
    for padded in (False, True):
        yield f"{BATCH} {padded}", partial(batch, size, padded)
    for chosen in SMALL:
        for padded in (False, True):
            yield f"{chosen.variant} {padded}", partial(small, size, tables, chosen, padded)
    for of, shapes in SHAPES.items():
        for shape in {(s.variant, s.grid(of, size)): s for s in shapes}.values():
            for twiddled in (False, True):
                name = f"{of}, {shape.variant}, {shape.grid(of, size)[2]} a block, twiddles {twiddled}"
                yield name, partial(pairs, size, tables, of, shape, twiddled)


def entry(
    size: Size,
    variant: str,
    launch: tuple[str, tuple[int, ...], tuple[int, ...], tuple[Any, ...]],
    right: Callable[[], NDArray[Any]],
    params: Mapping[str, int | str],
    words: int = 2,
) -> Entry:
    """Of an expression's kernel with its grid, block and arguments behind x and y; words: a point moves."""
    import cupy

    expression, grid, block, arguments = launch
    function = kernels(cupy.cuda.Device().id)[expression]
    threads = int(np.prod(block))
    facts = kernel.facts_of(function, int(np.prod(grid)), threads)
    limits = kernel.Multiprocessor.of_device().limits(
        threads, int(facts["registers"]), int(facts["shared_bytes"])
    )
    bytes_ = transforms.WORD_BYTES * size.n
    return Entry(
        variant,
        lambda x, y: function(grid, block, (x, y, *arguments)),
        right,
        words * bytes_,
        kernel=expression.partition("<")[0],
        facts=facts
        | {f"calculated_limit_{name}": limit for name, limit in limits.items()}
        | {"least_read_bytes": (words - 1) * bytes_, "least_written_bytes": bytes_},
        params=params,
    )


def batch(size: Size, padded: bool) -> Entry:
    rows, columns = size.batch
    grid = (columns // TILE, rows // TILE, 1)
    expression = f"transpose_batch<{str(padded).lower()}>"
    launch = (expression, grid, (TILE, TILE), (np.uint32(rows), np.uint32(columns)))
    right = partial(expected, size.n, rows, columns, None)
    return entry(size, BATCH, launch, right, {"conflicts": WITHOUT if padded else WITH})


def small(size: Size, tables: Tables, chosen: Small, padded: bool) -> Entry:
    own = chosen.factors == "OWN_FACTORS"
    shared = partial(twiddles, SIDE, SIDE)
    factors = None if chosen.factors == "NO_FACTORS" else tables.own_factors if own else shared
    grid = (SIDE // chosen.columns, size.n // SIDE**2)
    launch = (
        chosen.expression(padded),
        grid,
        (chosen.threads,),
        (tables.own if own else tables.shared, tables.modulus),
    )
    right = partial(expected, size.n, SIDE, SIDE, factors)
    params = {"conflicts": WITHOUT if padded else WITH}
    return entry(size, chosen.variant, launch, right, params, words=3 if own else 2)


def pairs(size: Size, tables: Tables, of: str, shape: Pairs, twiddled: bool) -> Entry:
    (rows, columns), (across, down, tiles) = size.matrix(of), shape.grid(of, size)
    log_low, low, high = tables.halves[of]
    arguments = (*map(np.uint32, (rows, columns, tiles)), low, high, log_low, tables.modulus)
    launch = (shape.expression(of, twiddled), (across, down), (shape.threads,), arguments)
    right = partial(expected, size.n, rows, columns, partial(twiddles, rows, columns) if twiddled else None)
    params: dict[str, int | str] = {"of": of, "twiddles": WITH if twiddled else WITHOUT, "tiles": tiles}
    return entry(size, shape.variant, launch, right, params)


def launches() -> Iterator[Callable[[], object]]:
    """Every kernel of the study, for a profiler."""
    yield from runner.launches(groups())


def main(out: Path, timer: Timer | None = None) -> int:
    return runner.run("transpose", groups(), out, timer)


# ---- the page's tables ----

# us, with and without bank conflicts, by size; None where the note has no figure.
NOTE: dict[str, dict[int, tuple[float | None, float | None]]] = {
    BATCH: {2**17: (8.53, 6.50), 2**24: (660, 700)},
    "small_transpose_4096_W": {2**17: (9.89, 9.09), 2**24: (970, 970)},
    "small_transpose_mult_4096": {2**17: (8.29, 7.55), 2**24: (650, 650)},
    "small_transpose_4096": {2**24: (650, 650)},
    "small_transpose_4096_v2": {2**24: (660, 650)},
    "small_transpose_4096_v3": {2**24: (None, 650)},
}

# By n; variant; conflicts, or what is transposed and whether by twiddles; tiles of a block.
Cell = tuple[int, str, str, str, int]
Cells = Mapping[Cell, Row]


def cell(row: Row) -> Cell:
    p = row.params
    conflicts = str(p.get("conflicts", p.get("of", "")))
    return int(p["n"]), str(p["variant"]), conflicts, str(p.get("twiddles", "")), int(p.get("tiles", 0))


def sizes_of(cells: Cells) -> list[int]:
    return sorted({key[0] for key in cells})


def of_the_note(cells: Cells, n: int, variant: str, conflicts: str) -> Row | None:
    return cells.get((n, variant, conflicts, "", 0))


def note_table(cells: Cells) -> Iterator[Table]:
    """The note's table, with its figures and ours; then what conflicts cost on either card."""
    columns = [(n, i, conflicts) for n in sizes_of(cells) for i, conflicts in enumerate((WITH, WITHOUT))]
    body, costs = [], []
    for variant, known in NOTE.items():
        texts, ratios = [], []
        for n, i, conflicts in columns:
            theirs, row = known.get(n, (None, None))[i], of_the_note(cells, n, variant, conflicts)
            texts += [
                figure(theirs) if theirs else "",
                figure(row.figures["us_median"]) if row else "",
                f"{row.figures['copy_share']:.0%}" if row else "",
            ]
        for n in sizes_of(cells):
            before, after = known.get(n, (None, None))
            rows = [of_the_note(cells, n, variant, conflicts) for conflicts in (WITH, WITHOUT)]
            ratios += [
                figure(before / after) if before and after else "",
                figure(rows[0].median / rows[1].median) if rows[0] and rows[1] else "",
            ]
        body.append((variant, *texts))
        costs.append((variant, *ratios))
    heads = [
        f"{power(n)} {conflicts} conflicts: {what}"
        for n, _, conflicts in columns
        for what in ("the note, us", "here, us", "share of copy")
    ]
    yield Table("Transposes with and without bank conflicts", ("kernel", *heads), tuple(body))
    heads = [f"{power(n)}: {what}" for n in sizes_of(cells) for what in ("the note", "here")]
    yield Table("Time with conflicts by time without", ("kernel", *heads), tuple(costs))


def largest(cells: Cells) -> list[tuple[Cell, Row]]:
    """The rows of all kernels at the largest size, in the order of the study."""
    n = max(sizes_of(cells))
    keys = [(n, variant, conflicts, "", 0) for variant in NOTE for conflicts in (WITH, WITHOUT)]
    keys += [key for key in cells if key[0] == n and key[2] in SHAPES]
    return [(key, cells[key]) for key in keys if key in cells]


def label(key: Cell, tiles: bool = True) -> str:
    _, variant, what, twiddled, count = key
    if what not in SHAPES:
        return f"{variant}, {what} conflicts"
    return ", ".join((variant, *([f"{count} a block"] if tiles else []), what, f"{twiddled} twiddles"))


def counter_table(cells: Cells) -> Iterator[Table]:
    """What the profiler counted at the largest size."""
    body = []
    for key, row in largest(cells):
        f = row.figures
        stalls = [stall for stall in longest_stalls(f) if stall[0] != "long_scoreboard"]
        latency = f.get("warp_latency_cycles")
        others = [f"{x} {share(cycles, latency)}" for x, cycles in stalls[:2] if latency]
        body.append(
            (
                label(key),
                f"{f['copy_share']:.0%}",
                sectors(f, "load"),
                sectors(f, "store"),
                f"{f['bank_conflicts'] / row.work:.2f}" if "bank_conflicts" in f else "",
                ratio(f, "dram_read_bytes", "least_read_bytes", "{:.2f}"),
                ratio(f, "dram_write_bytes", "least_written_bytes", "{:.2f}"),
                optional(f, "theoretical_occupancy", "{:.0%}"),
                optional(f, "achieved_occupancy", "{:.0%}"),
                optional(f, "warp_latency_cycles", "{:.1f}"),
                share(f["stall_long_scoreboard"], latency) if "stall_long_scoreboard" in f else "",
                ", ".join(others),
            )
        )
    yield Table(
        f"Counters, {power(max(sizes_of(cells)))} words",
        (
            "kernel",
            "share of copy",
            "sectors a load",
            "sectors a store",
            "bank conflicts a word",
            "DRAM read, by the least",
            "DRAM written, by the least",
            "theoretical occupancy",
            "achieved",
            "cycles between two instructions",
            "long_scoreboard",
            "next reasons",
        ),
        tuple(body),
    )


def share(value: float, whole: float | None) -> str:
    return f"{value / whole:.0%}" if whole else ""


def limit_table(cells: Cells) -> Iterator[Table]:
    """How many blocks a multiprocessor holds by each limit: worked out, and as the profiler says."""
    body: dict[str, tuple[str, ...]] = {}
    for key, row in largest(cells):
        f = row.figures
        if "calculated_limit_warps" not in f:
            continue
        limits = [
            f"{f[f'calculated_limit_{x}']:.0f}" + optional(f, f"limit_{x}", " ({:.0f})") for x in ncu.LIMITS
        ]
        least = min(f[f"calculated_limit_{x}"] for x in ncu.LIMITS)
        binding = [x.partition("_")[0] for x in ncu.LIMITS if f[f"calculated_limit_{x}"] == least]
        carved = int(f.get("carved_shared_bytes", 0))
        body[label(key, tiles=False)] = (
            f"{f['threads']:.0f}",
            f"{f['registers']:.0f}",
            f"{f['shared_bytes'] / 1024:.1f}",
            *limits,
            ", ".join(binding),
            f"{carved / 1024:.0f}" if carved else "",
            str(blocks_of(carved, f)) if carved else "",
            optional(f, "occupancy", "{:.0%}"),
            optional(f, "theoretical_occupancy", "{:.0%}"),
        )
    yield Table(
        f"Blocks that a multiprocessor has room for, worked out (the profiler's), "
        f"{power(max(sizes_of(cells)))} words",
        (
            "kernel",
            "threads",
            "registers",
            "shared KB",
            "by registers",
            "by shared memory",
            "by warps",
            "by blocks",
            "what binds",
            "shared memory carved, KB",
            "blocks in it",
            "occupancy worked out",
            "the profiler's",
        ),
        tuple((name, *line) for name, line in body.items()),
    )


def blocks_of(shared_bytes: int, figures: Mapping[str, float]) -> int:
    """Those for which so much shared memory has room."""
    card = kernel.Multiprocessor(warps=0, blocks=0, registers=0, shared_bytes=shared_bytes)
    of_a_block = (int(figures[name]) for name in ("threads", "registers", "shared_bytes"))
    return card.limits(*of_a_block)["shared_mem"]


def pairs_table(cells: Cells) -> Iterator[Table]:
    """The kernel of pairs: a table for each size and kind of matrices."""
    for n in sizes_of(cells):
        for of in SHAPES:
            body = []
            for key, plain in cells.items():
                size, variant, what, twiddled, tiles = key
                if (size, what, twiddled) != (n, of, WITHOUT):
                    continue
                row = cells.get((n, variant, of, WITH, tiles))
                f = row.figures if row else {}
                body.append(
                    (
                        variant,
                        str(tiles),
                        optional(f, "blocks", "{:.0f}"),
                        optional(f, "registers", "{:.0f}"),
                        f"{f['shared_bytes'] / 1024:.1f}" if "shared_bytes" in f else "",
                        optional(f, "occupancy", "{:.0%}"),
                        f"{f['warp_instructions'] * 32 / n:.1f}" if "warp_instructions" in f else "",
                        figure(plain.figures["us_median"]),
                        f"{plain.figures['copy_share']:.0%}",
                        figure(f["us_median"]) if row else "",
                        f"{f['copy_share']:.0%}" if row else "",
                        f"{row.median / plain.median - 1:+.0%}" if row else "",
                    )
                )
            if body:
                yield Table(
                    f"Pairs of words, {power(n)} words, {of}",
                    (
                        "tile and block",
                        "tiles a block",
                        "blocks",
                        "registers",
                        "shared KB",
                        "occupancy",
                        "instructions a word",
                        "plain, us",
                        "share of copy",
                        "with twiddles, us",
                        "share of copy",
                        "twiddles cost",
                    ),
                    tuple(body),
                )


def shares(cells: Cells) -> str | None:
    """The figure: share of the copy by kernel, at the largest size."""
    lines, heading = [], ""
    for (_, variant, what, twiddled, tiles), row in largest(cells):
        above = f"Pairs of words, {what}" if what in SHAPES else "The note's kernels, bank conflicts"
        if above != heading:
            lines.append(plots.Bar(heading := above, {}))
        name = f"{variant}, {what}"
        if what in SHAPES:
            name = f"{variant}, {tiles} a block" + (", twiddles" if twiddled == WITH else "")
        share_of_copy = row.figures["copy_share"]
        lines.append(plots.Bar(name, {"share": share_of_copy}, f"{share_of_copy:.0%}"))
    title = f"Transposes of {power(max(sizes_of(cells)))} words of 8 bytes: share of the copy's bandwidth"
    return plots.bars(title, lines, ("copy", 1.0))


KINDS = {
    "transpose-note": StudyKind(note_table, "transpose", cell),
    "transpose-counters": StudyKind(counter_table, "transpose", cell),
    "transpose-limits": StudyKind(limit_table, "transpose", cell),
    "transpose-pairs": StudyKind(pairs_table, "transpose", cell),
}
FIGURES = {"studies/transpose.svg": (KINDS["transpose-pairs"], shares)}
