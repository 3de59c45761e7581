"""Large transforms in four steps: a lab note's kernels, the same without transposes, and without a table.

The note (docs/studies/fourstep.md) draws FourStepPartialForwardCore1, a kernel of rows that are too long for
a block of threads, and has no figures of it. Here every step has its row, and every whole transform, beside
polygpu's passes; then transforms in two passes of many shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu.backends import get_backend
from polygpu.backends.cuda.tiles import Card, Pass, flow_lag, split_passes

from .. import plots
from ..harness import Row, Timer
from ..tables import Table, figure, power
from . import kernel, runner, transforms
from .page import StudyKind, optional, sectors, stalls
from .runner import DEVICE, Entry, Group
from .transforms import WORD, WORD_BYTES
from .transpose import TILE

OP, PASSES_OP = "fourstep", "fourstep passes"
LOG_PART = 9  # of the values of a block in the kernels of rows
LOG_NEIGHBOURS = 4  # columns of a block where they lie: 128 bytes
LOG_THREADS = 9  # at most, in a block of columns
TURNED = 1024  # values of a block of columns that follow each other

Run = Callable[[Any, Any], object]


@dataclass(frozen=True)
class Size:
    """A batch of transforms of n1 n2 points."""

    log_n1: int
    log_n2: int
    batch: int

    @property
    def n1(self) -> int:
        return 1 << self.log_n1

    @property
    def n2(self) -> int:
        return 1 << self.log_n2

    @property
    def degree(self) -> int:
        return self.n1 * self.n2

    @property
    def points(self) -> int:
        """Of the batch."""
        return self.batch * self.degree

    @property
    def parts(self) -> int:
        """Of a row: what a block of threads can hold of it."""
        return self.n2 >> LOG_PART

    @property
    def params(self) -> dict[str, int | str]:
        return {"n1": self.n1, "n2": self.n2, "batch": self.batch}


SIZES = (Size(5, 12, 1), Size(5, 15, 1), Size(9, 15, 1), Size(5, 12, 64), Size(5, 15, 8))
LOG_POINTS = (16, 17, 18, 19, 20)  # of transforms in two passes, in other shapes
BATCH_BYTES = 2**26  # of those


# ---- values between the steps, on the host ----


@dataclass(frozen=True)
class Values:
    """What each step takes and gives, by name: arrays of batch x n1 n2."""

    size: Size

    @property
    def psi(self) -> int:
        return transforms.root(self.size.degree)

    @cached_property
    def x(self) -> NDArray[Any]:
        return transforms.residues(self.size.points).reshape(self.size.batch, self.size.degree)

    @cached_property
    def turned(self) -> NDArray[Any]:
        """Columns one after the other."""
        s = self.size
        return np.ascontiguousarray(self.x.reshape(s.batch, s.n1, s.n2).swapaxes(1, 2)).reshape(self.x.shape)

    @cached_property
    def columns(self) -> NDArray[Any]:
        """Transforms of the columns, in place."""
        return after(self.size, self.size.log_n1)

    @cached_property
    def weighted(self) -> NDArray[Any]:
        """Times W."""
        factors = np.broadcast_to(table_w(self.size.log_n1, self.size.log_n2), self.x.shape)
        return transforms.products(self.columns, factors)

    @cached_property
    def across(self) -> NDArray[Any]:
        """The first stages of the rows."""
        s = self.size
        parts = self.weighted.reshape(s.batch * s.n1, s.parts, 1 << LOG_PART).swapaxes(1, 2)
        omega = pow(self.psi, 2 * s.n1 << LOG_PART, transforms.modulus())
        done = transforms.transformed(parts, "cyclic", omega)
        return np.ascontiguousarray(done.swapaxes(1, 2)).reshape(self.x.shape)

    @cached_property
    def whole(self) -> NDArray[Any]:
        return transforms.transformed(self.x)


@cache
def values(size: Size) -> Values:
    return Values(size)


@cache
def after(size: Size, stages: int) -> NDArray[Any]:
    """The first stages of whole transforms: transforms of values that are far apart."""
    x, stride = values(size).x, size.degree >> stages
    psi = pow(transforms.root(size.degree), stride, transforms.modulus())
    done = transforms.transformed(x.reshape(size.batch, 1 << stages, stride).swapaxes(1, 2), psi=psi)
    return np.ascontiguousarray(done.swapaxes(1, 2)).reshape(x.shape)


@cache
def table_w(log_n1: int, log_n2: int) -> NDArray[Any]:
    """psi^((2 k + 1) j) in row br(k) and column j."""
    n1, n2 = 1 << log_n1, 1 << log_n2
    of_psi = transforms.powers(transforms.root(n1 * n2), 2 * n1 * n2)
    k = np.array([int(f"{row:0{log_n1}b}"[::-1], 2) for row in range(n1)])
    return of_psi[np.outer(2 * k + 1, np.arange(n2))].reshape(-1)


def pairs(residues: NDArray[Any]) -> NDArray[Any]:
    """With their quotients, as node_twiddles."""
    q = transforms.modulus()
    return np.array([(w, (w << 64) // q) for w in residues.tolist()], np.uint64)


# ---- what is launched ----


@dataclass(frozen=True, eq=False)
class Tables:
    """Constants of transforms of n1 n2 points, on the card."""

    moduli: Any
    columns: Any
    rows: Any
    factors: Any
    low: Any
    high: Any


@cache
def tables(log_n1: int, log_n2: int, device: int) -> Tables:
    import cupy

    q, n1, n2 = transforms.modulus(), 1 << log_n1, 1 << log_n2
    psi, log_low = transforms.root(n1 * n2), low_bits(log_n1 + log_n2)
    step = pow(psi, 1 << log_low, q)
    backend: Any = get_backend(DEVICE)
    return Tables(
        backend._moduli(transforms.ring(n1 * n2).basis),
        cupy.asarray(transforms.node_twiddles(n1, psi=pow(psi, n2, q))),
        cupy.asarray(transforms.node_twiddles(n2, "cyclic", pow(psi, 2 * n1, q))),
        cupy.asarray(table_w(log_n1, log_n2)),
        cupy.asarray(pairs(transforms.powers(psi, 1 << log_low))),
        cupy.asarray(pairs(transforms.powers(step, 2 * n1 * n2 >> log_low))),
    )


@dataclass(frozen=True)
class Step:
    """One kernel of a transform."""

    name: str
    part: str
    """Of the transform, in the figure."""
    takes: str
    gives: str
    """Of Values."""
    lazy: bool = False


TURN = Step("transpose", "transpose", "x", "turned")
TURNED_COLUMNS = Step("columns, stored as columns", "columns", "turned", "columns")
COLUMNS = Step("columns in place", "columns", "x", "columns")
WEIGHTED_COLUMNS = Step("columns in place, times w", "columns", "x", "weighted")
WEIGHTED_ACROSS = Step("rows across, times W", "rows across", "columns", "across", lazy=True)
ACROSS = Step("rows across", "rows across", "weighted", "across", lazy=True)
WITHIN = Step("rows within", "rows within", "across", "whole")

VARIANTS = {
    "A": (TURN, TURNED_COLUMNS, WEIGHTED_ACROSS, WITHIN),
    "B": (COLUMNS, WEIGHTED_ACROSS, WITHIN),
    "C": (WEIGHTED_COLUMNS, ACROSS, WITHIN),
}
LIBRARY = "D"
STEPS = tuple(dict.fromkeys(step for steps in VARIANTS.values() for step in steps))


@dataclass(frozen=True)
class Launch:
    """Of a step: what is compiled, and the blocks it is launched in."""

    expression: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Callable[[Tables], tuple[Any, ...]]
    """After x and y."""
    table_bytes: int
    dynamic_bytes: int = 0
    file: str = "fourstep.cu"

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)


def log_each(log_n1: int) -> int:
    """log2 of the butterflies of a thread in a stage of columns in place."""
    return max(0, log_n1 + LOG_NEIGHBOURS - 1 - LOG_THREADS)


def launch(step: Step, size: Size) -> Launch:
    points, log_n1, log_n2 = size.points, size.log_n1, size.log_n2
    pair = 2 * WORD_BYTES
    if step is TURN:
        return Launch(
            "transpose_batch<true>",
            (size.n2 // TILE, size.n1 // TILE, size.batch),
            (TILE, TILE),
            lambda _: (np.uint32(size.n1), np.uint32(size.n2)),
            table_bytes=0,
            file="transpose.cu",
        )
    if step is TURNED_COLUMNS:
        return Launch(
            f"columns_in_turn<{WORD}, {log_n1}>",
            (points // TURNED,),
            (TURNED // 2,),
            lambda t: (t.moduli, t.columns, np.uint32(log_n2)),
            pair * size.n1,
        )
    if step.part == "columns":
        weighted, log_values = step is WEIGHTED_COLUMNS, log_n1 + LOG_NEIGHBOURS
        each = log_each(log_n1)
        log_low = low_bits(log_n1 + log_n2)
        powers = (1 << log_low) + (2 * size.degree >> log_low) if weighted else 0
        return Launch(
            f"columns_in_place<{WORD}, {log_n1}, {LOG_NEIGHBOURS}, {each}, {str(weighted).lower()}>",
            (points >> log_values,),
            (1 << (log_values - 1 - each),),
            lambda t: (t.moduli, t.columns, np.uint32(log_n2), t.low, t.high, np.uint32(log_low)),
            pair * (size.n1 + powers),
            WORD_BYTES << log_values,
        )
    blocks, threads = points >> LOG_PART, 1 << (LOG_PART - 1)
    if step is WITHIN:
        return Launch(
            f"rows_within<{WORD}, {log_n2}>",
            (blocks,),
            (threads,),
            lambda t: (t.moduli, t.rows),
            pair * size.n2,
        )
    weighted = step is WEIGHTED_ACROSS
    return Launch(
        f"rows_across<{WORD}, {log_n2}, {str(weighted).lower()}>",
        (blocks,),
        (threads,),
        lambda t: (t.moduli, t.rows, t.factors, np.uint32(log_n1 + log_n2)),
        pair * size.parts + (WORD_BYTES * size.degree if weighted else 0),
    )


def low_bits(log_points: int) -> int:
    """log2 of the entries of the table of low powers, where those of both make twice the points."""
    return (log_points + 1) // 2


@cache
def kernels(sizes: Sequence[Size], device: int) -> dict[str, Any]:
    made = [launch(step, size) for size in sizes for step in STEPS]
    found: dict[str, Any] = {}
    for file in dict.fromkeys(one.file for one in made):
        own = dict.fromkeys(one.expression for one in made if one.file == file)
        found |= kernel.load(file, list(own))
    return found


def ready(step: Step, size: Size) -> tuple[Launch, Any, Run]:
    """A step's launch, its function and what calls it."""
    import cupy

    device, made = cupy.cuda.Device().id, launch(step, size)
    function = kernels(SIZES, device)[made.expression]
    if made.dynamic_bytes:
        function.max_dynamic_shared_size_bytes = made.dynamic_bytes
    arguments = made.arguments(tables(size.log_n1, size.log_n2, device))

    def run(x: Any, y: Any) -> None:
        function(made.grid, made.block, (x, y, *arguments), shared_mem=made.dynamic_bytes)

    return made, function, run


def moved(size: Size, passes: int, table_bytes: int) -> int:
    """Bytes: so many passes read and write all values, and read their tables once."""
    return 2 * WORD_BYTES * size.points * passes + table_bytes


def words(size: Size, moved_bytes: int) -> dict[str, float]:
    return {"words_a_point": round(moved_bytes / WORD_BYTES / size.points, 3)}


def one_step(step: Step, size: Size) -> Entry:
    made, function, run = ready(step, size)
    moved_bytes = moved(size, 1, made.table_bytes)
    return Entry(
        step.name,
        run,
        lambda: getattr(values(size), step.gives),
        moved_bytes,
        kernel=made.expression.partition("<")[0],
        facts=kernel.facts_of(function, made.blocks, made.threads, made.dynamic_bytes)
        | words(size, moved_bytes),
        modulus=transforms.modulus() if step.lazy else None,
    )


def whole(variant: str, size: Size) -> Entry:
    """All steps of a variant; what is transposed goes to an array of its own."""
    import cupy

    steps = VARIANTS[variant]
    made, _, runs = zip(*(ready(step, size) for step in steps), strict=True)
    turned = cupy.empty(size.points, np.uint64) if TURN in steps else None

    def run(x: Any, y: Any) -> None:
        source = x
        for step, one in zip(steps, runs, strict=True):
            target = turned if step is TURN else y
            one(source, target)
            source = target

    moved_bytes = moved(size, len(steps), sum(m.table_bytes for m in made))
    facts = {"launches": len(steps)} | words(size, moved_bytes)
    return Entry(variant, run, lambda: values(size).whole, moved_bytes, facts=facts)


# ---- polygpu's own passes ----


def passes_of(size: Size) -> tuple[Pass, ...]:
    return transforms.passes_of(size.degree, size.batch)


def launches_of(passes: Sequence[Pass], log_points: int, batch: int, card: Card) -> int:
    """Of the passes: the last two may share one."""
    if len(passes) < 2:
        return len(passes)
    units = batch << passes[-2].log_blocks
    return len(passes) - bool(flow_lag(passes[-2], passes[-1], log_points, units, WORD, card))


def table_bytes(one: Pass) -> int:
    return 2 * WORD_BYTES << (one.log_blocks + one.log_length)


def library(size: Size) -> Entry:
    backend: Any = get_backend(DEVICE)
    passes, log_points = passes_of(size), size.log_n1 + size.log_n2
    moved_bytes = moved(size, len(passes), sum(map(table_bytes, passes)))
    facts = words(size, moved_bytes)
    facts["launches"] = launches_of(passes, log_points, size.batch, backend.card)
    run = transforms.in_passes(size.degree, passes)
    return Entry(LIBRARY, run, lambda: values(size).whole, moved_bytes, library="polygpu", facts=facts)


def one_pass(size: Size, passes: Sequence[Pass], number: int) -> Entry:
    import cupy

    one = passes[number]
    run = transforms.in_passes(size.degree, passes, only=number)
    run(cupy.zeros(size.degree, np.uint64), cupy.empty(size.degree, np.uint64))  # which compiles it
    moved_bytes = moved(size, 1, table_bytes(one))
    stages = one.log_blocks + one.log_length
    return Entry(
        pass_name(number, len(passes)),
        run,
        lambda: values(size).whole if number + 1 == len(passes) else after(size, stages),
        moved_bytes,
        library="polygpu",
        kernel="ntt_forward",
        facts=transforms.facts_of_pass(size.degree, one, size.batch) | words(size, moved_bytes),
    )


def pass_name(number: int, count: int) -> str:
    return f"{LIBRARY}, pass {number + 1} of {count}"


# ---- the run ----


def groups(size: Size) -> Iterator[Group]:
    """What takes the same values."""
    passes = passes_of(size)

    def group(takes: str, x: Callable[[], NDArray[Any]], *more: tuple[str, Callable[[], Entry]]) -> Group:
        steps = [(step.name, partial(one_step, step, size)) for step in STEPS if step.takes == takes]
        return Group(OP, size.params | {"takes": takes}, x, [*steps, *more])

    def alone(number: int) -> tuple[str, Callable[[], Entry]]:
        return pass_name(number, len(passes)), partial(one_pass, size, passes, number)

    wholes = [(variant, partial(whole, variant, size)) for variant in VARIANTS]
    yield group("x", lambda: values(size).x, *wholes, (LIBRARY, partial(library, size)), alone(0))
    for takes in dict.fromkeys(step.takes for step in STEPS if step.takes != "x"):
        yield group(takes, partial(getattr, values(size), takes))
    for number in range(1, len(passes)):
        stages = passes[number].log_blocks
        yield group(f"{stages} stages", partial(after, size, stages), alone(number))


def launches() -> Iterator[Callable[[], object]]:
    for size in SIZES:
        yield from runner.launches(groups(size))


def steps(out: Path, timer: Timer | None = None) -> int:
    return runner.run(OP, [group for size in SIZES for group in groups(size)], out, timer)


def in_other_passes(out: Path, timer: Timer | None = None) -> int:
    backend: Any = get_backend(DEVICE)
    made = [shape_group(log_points, backend.card) for log_points in LOG_POINTS]
    return runner.run(OP, made, out, timer)


PARTS = {"steps": steps, "passes": in_other_passes}


def main(out: Path, timer: Timer | None = None) -> int:
    return max([part(out, timer) for part in PARTS.values()])


# ---- two passes in other shapes ----


def tile(log_blocks: int, log_length: int, log_columns: int, log_values: int) -> Pass:
    """Of so many transforms as make 256 threads."""
    log_rows = max(0, 8 - (log_length - log_values + log_columns))
    return Pass(log_blocks, log_length, log_columns, log_rows, log_values)


def fits(one: Pass, card: Card) -> bool:
    held = one.shared_values * WORD_BYTES <= card.shared_bytes
    return one.log_values <= one.log_length and held and 32 <= one.threads <= 512


def shapes(log_points: int, card: Card) -> list[tuple[Pass, ...]]:
    """The library's own, other splits with other widths, and its own with other values a thread."""
    taken = split_passes(1 << log_points, 1, WORD_BYTES, card)
    found = [taken]
    for above in (4, 6, 8, 10):
        below = log_points - above
        rows = tile(above, below, 0, 5 if below > 12 else 4)
        found += [(tile(0, above, width, 4), rows) for width in (2, 3, 4)]
    columns, rows = taken[0], taken[-1]
    for log_values in (3, 5):
        found.append((tile(0, columns.log_length, columns.log_columns, log_values), rows))
        found.append((columns, tile(rows.log_blocks, rows.log_length, 0, log_values)))
    return [passes for passes in dict.fromkeys(found) if all(fits(one, card) for one in passes)]


def shape_group(log_points: int, card: Card) -> Group:
    batch = BATCH_BYTES // WORD_BYTES >> log_points
    taken = split_passes(1 << log_points, 1, WORD_BYTES, card)

    @cache
    def x() -> NDArray[Any]:
        return transforms.residues(batch << log_points).reshape(batch, 1 << log_points)

    @cache
    def expected() -> NDArray[Any]:
        return transforms.transformed(x())

    def entry(passes: tuple[Pass, ...]) -> Entry:
        facts = {
            "taken": passes == taken,
            "launches": launches_of(passes, log_points, batch, card),
            "column_threads": passes[0].threads,
            "row_threads": passes[-1].threads,
        }
        return Entry(
            "passes",
            transforms.in_passes(1 << log_points, passes),
            expected,
            2 * WORD_BYTES * x().size * len(passes) + sum(map(table_bytes, passes)),
            library="polygpu",
            facts={name: int(value) for name, value in facts.items()},
            params={"columns": described(passes[0]), "rows": described(passes[-1])},
        )

    entries = [
        (f"{described(passes[0])}, {described(passes[-1])}", partial(entry, passes))
        for passes in shapes(log_points, card)
    ]
    return Group(PASSES_OP, {"n": 1 << log_points, "batch": batch}, x, entries)


def described(one: Pass) -> str:
    across = f" x {1 << one.log_columns}" if one.log_columns else ""
    return f"2^{one.log_length}{across}, {1 << one.log_values} a thread"


# ---- the page's tables ----

Cells = Mapping[tuple[int, int, int, str], Row]  # by n1, n2, batch and variant


def cell(row: Row) -> tuple[int, int, int, str]:
    p = row.params
    takes = f", {p['takes']}" if p["variant"] == "copy" else ""
    return int(p["n1"]), int(p["n2"]), int(p["batch"]), f"{p['variant']}{takes}"


def sizes_of(cells: Cells) -> list[Size]:
    found = dict.fromkeys(Size(n1.bit_length() - 1, n2.bit_length() - 1, batch) for n1, n2, batch, _ in cells)
    return sorted(found, key=lambda size: (size.batch > 1, size.degree))


def title(size: Size) -> str:
    batch = f", {size.batch} transforms" if size.batch > 1 else ", one transform"
    return f"{power(size.degree)} = {size.n1} x {size.n2} points{batch}"


def own(cells: Cells, size: Size) -> dict[str, Row]:
    """The rows of a size, by variant."""
    key = size.n1, size.n2, size.batch
    return {variant: row for (*of, variant), row in cells.items() if tuple(of) == key}


def stages_of(rows: Mapping[str, Row], variant: str) -> dict[str, Row] | None:
    """The rows of what a whole transform is made of; None where one is missing."""
    if variant == LIBRARY:
        names = sorted(name for name in rows if name.startswith(f"{LIBRARY}, "))
        count = int(names[0].rpartition(" ")[2]) if names else 0
        names = [pass_name(number, count) for number in range(count)]
    else:
        names = [step.name for step in VARIANTS[variant]]
    return {name: rows[name] for name in names} if names and all(name in rows for name in names) else None


def used_by(name: str) -> str:
    if name.startswith(LIBRARY):
        return LIBRARY
    return ", ".join(v for v, steps in VARIANTS.items() if any(step.name == name for step in steps))


def in_order(rows: Mapping[str, Row]) -> list[str]:
    """Names of the steps and passes that there are."""
    library = sorted(name for name in rows if name.startswith(f"{LIBRARY}, "))
    return [*(step.name for step in STEPS if step.name in rows), *library]


def two_words(row: Row) -> float:
    """The share of a copy, as if two words a point were moved."""
    return row.figures["copy_share"] * 2 / row.figures["words_a_point"]


def step_table(cells: Cells) -> Iterator[Table]:
    for size in sizes_of(cells):
        rows = own(cells, size)
        body = []
        for name in in_order(rows):
            f = rows[name].figures
            body.append(
                (
                    name,
                    used_by(name),
                    figure(f["us_median"]),
                    figure(1e6 * f["us_median"] / size.points),
                    f"{f['words_a_point']:.2f}",
                    f"{f['gbps']:.0f}",
                    f"{f['copy_share']:.0%}",
                )
            )
        yield Table(
            title(size),
            ("step", "of", "us", "ps a point", "words a point", "GB/s", "share of copy"),
            tuple(body),
        )


def whole_table(cells: Cells) -> Iterator[Table]:
    for size in sizes_of(cells):
        rows = own(cells, size)
        body = []
        for variant in (*VARIANTS, LIBRARY):
            row, stages = rows.get(variant), stages_of(rows, variant)
            if row is None:
                continue
            f = row.figures
            total = sum(r.figures["us_median"] for r in stages.values()) if stages else None
            library = rows.get(LIBRARY)
            body.append(
                (
                    variant,
                    f"{f['launches']:.0f}",
                    figure(total) if total else "",
                    figure(f["us_median"]),
                    figure(1e6 * f["us_median"] / size.points),
                    f"{f['words_a_point']:.2f}",
                    f"{f['copy_share']:.0%}",
                    f"{two_words(row):.0%}",
                    f"{row.median / library.median:.2f}" if library else "",
                )
            )
        yield Table(
            title(size),
            (
                "variant",
                "launches",
                "sum of the steps, us",
                "whole, us",
                "ps a point",
                "words a point",
                "share of copy, of its own bytes",
                "of two words a point",
                "time by D's",
            ),
            tuple(body),
        )


def counter_table(cells: Cells) -> Iterator[Table]:
    for size in sizes_of(cells):
        rows = own(cells, size)
        body = []
        for name in in_order(rows):
            f = rows[name].figures
            body.append(
                (
                    name,
                    optional(f, "blocks", "{:.0f}"),
                    optional(f, "threads", "{:.0f}"),
                    optional(f, "registers", "{:.0f}"),
                    f"{f['shared_bytes'] / 1024:.1f}" if "shared_bytes" in f else "",
                    optional(f, "occupancy", "{:.0%}"),
                    optional(f, "achieved_occupancy", "{:.0%}"),
                    over(f, "bank_conflicts", size.points / 1000),
                    sectors(f, "load"),
                    sectors(f, "store"),
                    over(f, "thread_instructions", size.points),
                    stalls(f),
                )
            )
        yield Table(
            title(size),
            (
                "step",
                "blocks",
                "threads",
                "registers",
                "shared KB",
                "occupancy",
                "achieved",
                "conflicts per 1000 points",
                "sectors a load",
                "sectors a store",
                "instructions a point",
                "stalls, cycles an instruction",
            ),
            tuple(body),
        )


def over(figures: Mapping[str, float], name: str, by: float) -> str:
    return f"{figures[name] / by:.1f}" if name in figures and by else ""


ShapeCells = Mapping[tuple[int, str, str], Row]  # by points, columns and rows; the copy without


def shape_cell(row: Row) -> tuple[int, str, str]:
    p = row.params
    return int(p["n"]), str(p.get("columns", "")), str(p.get("rows", ""))


def shape_table(cells: ShapeCells) -> Iterator[Table]:
    """The fastest first."""
    for n in sorted({n for n, _, _ in cells}):
        rows = sorted(
            (r for (m, columns, _), r in cells.items() if m == n and columns), key=lambda r: r.median
        )
        taken = next((r for r in rows if r.figures["taken"]), None)
        body = []
        for row in rows:
            f = row.figures
            body.append(
                (
                    str(row.params["columns"]),
                    str(row.params["rows"]),
                    f"{f['column_threads']:.0f} / {f['row_threads']:.0f}",
                    f"{f['launches']:.0f}",
                    figure(f["us_median"]),
                    figure(1000 * row.median / row.work),
                    f"{f['copy_share']:.0%}",
                    f"{row.median / taken.median:.2f}" if taken else "",
                    "yes" if f["taken"] else "",
                )
            )
        batch = rows[0].params["batch"] if rows else 0
        yield Table(
            f"{power(n)} points, {batch} transforms",
            (
                "columns",
                "rows",
                "threads",
                "launches",
                "us",
                "ps a point",
                "share of copy, of its own bytes",
                "time by what is taken",
                "taken",
            ),
            tuple(body),
        )


KINDS = {
    "fourstep-steps": StudyKind(step_table, OP, cell),
    "fourstep-whole": StudyKind(whole_table, OP, cell),
    "fourstep-counters": StudyKind(counter_table, OP, cell),
    "fourstep-passes": StudyKind(shape_table, PASSES_OP, shape_cell),
}


# ---- the figure ----


def draw(cells: Cells) -> str | None:
    """Times of the steps, one after the other; what the whole takes behind them."""
    parts = {step.name: step.part for step in STEPS}
    lines = []
    for size in sizes_of(cells):
        rows = own(cells, size)
        found = {v: stages for v in (*VARIANTS, LIBRARY) if (stages := stages_of(rows, v)) is not None}
        if found:
            lines.append(plots.Bar(title(size), {}))
        for variant, stages in found.items():
            times: dict[str, float] = {}
            for i, (name, row) in enumerate(stages.items()):
                part = parts.get(name, "D's last pass" if i + 1 == len(stages) else "columns")
                times[part] = times.get(part, 0) + 1000 * row.median / row.work
            note = f"{sum(times.values()):.1f}"
            if variant in rows:
                note += f", whole {1000 * rows[variant].median / rows[variant].work:.1f}"
            lines.append(plots.Bar(variant, times, note))
    return plots.bars("Steps of a transform, ps a point", lines)


FIGURES = {"studies/fourstep.svg": (KINDS["fourstep-whole"], draw)}
