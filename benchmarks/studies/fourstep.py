"""Large transforms in four steps: a lab note's kernels, the same without transposes, and without a table.

The note (docs/studies/fourstep.md) draws FourStepPartialForwardCore1, a kernel of rows that are too long for
a block of threads, and has no measurements of it. Here every step and every whole transform has a row, beside
polygpu's passes. Then come polygpu's transforms in two passes of many shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from math import log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polygpu._backends import get_backend
from polygpu._backends.cuda.tiles import Pass, flow_lag, split_passes
from polygpu._backends.cuda.words import LAZY60, Card
from polygpu._backends.reference import reverse_bits

from .. import plots
from ..harness import Row
from ..tables import Table, power
from . import page, runner, transforms
from .kernel import Kernel, Ready
from .page import Rows, StudyKind, number, quotient, table
from .runner import DEVICE, Entry, Group
from .transforms import WORD, WORD_BYTES, in_passes, modulus, on_card
from .transpose import TILE

OP, PASSES_OP = "fourstep", "fourstep passes"
PART = 512  # values of a block in the kernels of rows
NEIGHBOURS = 16  # columns of a block that takes columns where they lie: 128 bytes
THREADS = 512  # at most, in a block of columns
TURNED = 1024  # values of a block whose columns follow each other in memory
LOG_POINTS = (16, 17, 18, 19, 20)  # of transforms in two passes of many shapes
BATCH_BYTES = 2**26  # of a batch of these


def swapped(x: NDArray[Any]) -> NDArray[Any]:
    """Matrices, transposed."""
    return np.ascontiguousarray(x.swapaxes(1, 2))


@dataclass(frozen=True)
class Transforms:
    """A batch of transforms of n1 n2 points: values before and after each step, by name, and constants."""

    n1: int
    n2: int
    batch: int

    @property
    def degree(self) -> int:
        return self.n1 * self.n2

    @property
    def psi(self) -> int:
        return transforms.root(self.degree)

    @cached_property
    def x(self) -> NDArray[Any]:
        return transforms.residues(self.batch * self.degree).reshape(self.batch, self.degree)

    @cached_property
    def turned(self) -> NDArray[Any]:
        """Columns one after the other."""
        return swapped(self.x.reshape(self.batch, self.n1, self.n2)).reshape(self.x.shape)

    @cached_property
    def columns(self) -> NDArray[Any]:
        """Transforms of the columns, in place."""
        return self.after(int(log2(self.n1)))

    @cached_property
    def w(self) -> NDArray[Any]:
        """The table W: psi^((2 k + 1) j) in row br(k) and column j."""
        k = np.array([reverse_bits(row, self.n1) for row in range(self.n1)])
        return transforms.powers(self.psi, 2 * self.degree)[np.outer(2 * k + 1, np.arange(self.n2))]

    @cached_property
    def weighted(self) -> NDArray[Any]:
        """Transforms of the columns, times W."""
        return transforms.products(self.columns, np.resize(self.w, self.x.shape))

    @cached_property
    def across(self) -> NDArray[Any]:
        """After the first stages of the rows, which leave transforms of parts of 512 neighbours."""
        parts = swapped(self.weighted.reshape(-1, self.n2 // PART, PART))
        omega = pow(self.psi, 2 * self.n1 * PART, modulus())
        return swapped(transforms.transformed(parts, "cyclic", omega)).reshape(self.x.shape)

    def after(self, stages: int) -> NDArray[Any]:
        """Return the values after `stages` stages of whole transforms.

        They are transforms of values degree / 2^stages apart.
        """
        stride = self.degree >> stages
        values = swapped(self.x.reshape(self.batch, 1 << stages, stride))
        done = transforms.transformed(values, psi=pow(self.psi, stride, modulus()))
        return swapped(done).reshape(self.x.shape)

    def value(self, name: str) -> NDArray[Any]:
        """Return the values of a name: of a property, or such as "8 stages"."""
        found = self.after(int(name.split()[0])) if name.endswith(" stages") else getattr(self, name)
        return np.asarray(found)

    @cached_property
    def whole(self) -> NDArray[Any]:
        return self.after(int(log2(self.degree)))

    @cached_property
    def of_columns(self) -> tuple[Any, ...]:
        """On the card: modulus, twiddles by node, log2 of n2; two tables of powers of psi and log_low."""
        table = transforms.node_twiddles(self.n1, psi=pow(self.psi, self.n2, modulus()))
        powers = transforms.split_powers(self.psi, 2 * self.degree, self.log_low)
        log_n2, log_low = np.uint32(log2(self.n2)), np.uint32(self.log_low)
        return transforms.moduli(), *on_card(table), log_n2, *on_card(*powers), log_low

    @cached_property
    def of_rows(self) -> tuple[Any, ...]:
        """On the card: modulus, twiddles by node, W, log2 of the points."""
        table = transforms.node_twiddles(self.n2, "cyclic", pow(self.psi, 2 * self.n1, modulus()))
        return transforms.moduli(), *on_card(table, self.w), np.uint32(log2(self.degree))

    @property
    def log_low(self) -> int:
        """log2 of the size of the first table of powers. Both tables together give powers below 2 n1 n2."""
        return self.degree.bit_length() // 2


SIZES = tuple(
    Transforms(*size)
    for size in ((32, 2**12, 1), (32, 2**15, 1), (512, 2**15, 1), (32, 2**12, 64), (32, 2**15, 8))
)


# ---- what is launched ----


class Step(NamedTuple):
    """One kernel of a transform. `takes` and `gives` are names of values of Transforms."""

    part: str  # the part of the transform, as the figure names it
    takes: str
    gives: str
    work: Sequence[Kernel] | Callable[[], Ready]
    entries: int  # of the tables that it reads, counted in pairs of words
    lazy: bool = False


def steps(t: Transforms) -> dict[str, Step]:
    """Return the study's kernels by name, in the order of the page."""
    log_n1, log_n2, points, values = int(log2(t.n1)), int(log2(t.n2)), t.batch * t.degree, t.n1 * NEIGHBOURS
    each = max(1, values // 2 // THREADS)  # butterflies of a thread in a stage

    def launched(name: str, values: int, threads: int, arguments: Any, shared_bytes: int = 0) -> list[Kernel]:
        """values: of a block of threads."""
        grid, in_place = (points // values,), "in_turn" not in name
        return [Kernel("fourstep.cu", name, grid, (threads,), arguments, shared_bytes, in_place)]

    def columns(product: str) -> list[Kernel]:
        name = f"columns_in_place<{WORD}, {log_n1}, {int(log2(NEIGHBOURS))}, {int(log2(each))}, {product}>"
        return launched(name, values, values // 2 // each, lambda: t.of_columns, WORD_BYTES * values)

    def across(table: str) -> list[Kernel]:
        return launched(f"rows_across<{WORD}, {log_n2}, {table}>", PART, PART // 2, lambda: t.of_rows)

    sides, grid = (np.uint32(t.n1), np.uint32(t.n2)), (t.n2 // TILE, t.n1 // TILE, t.batch)
    turn = [Kernel("transpose.cu", "transpose_batch<true>", grid, (TILE, TILE), lambda: sides)]
    turned = launched(f"columns_in_turn<{WORD}, {log_n1}>", TURNED, TURNED // 2, lambda: t.of_columns[:3])
    within = launched(f"rows_within<{WORD}, {log_n2}>", PART, PART // 2, lambda: t.of_rows[:2])
    powers, parts, w = (1 << t.log_low) + (2 * t.degree >> t.log_low), t.n2 // PART, t.degree // 2
    rows = "rows across"
    return {
        "transpose": Step("transpose", "x", "turned", turn, 0),
        "columns, stored as columns": Step("columns", "turned", "columns", turned, t.n1),
        "rows across, times W": Step(rows, "columns", "across", across("true"), parts + w, lazy=True),
        "rows within": Step("rows within", "across", "whole", within, t.n2),
        "columns in place": Step("columns", "x", "columns", columns("false"), t.n1),
        "columns in place, times w": Step("columns", "x", "weighted", columns("true"), t.n1 + powers),
        "rows across": Step(rows, "weighted", "across", across("false"), parts, lazy=True),
    }


VARIANTS = {
    "A": ("transpose", "columns, stored as columns", "rows across, times W", "rows within"),
    "B": ("columns in place", "rows across, times W", "rows within"),
    "C": ("columns in place, times w", "rows across", "rows within"),
}
LIBRARY = "D"
WHOLES = (*VARIANTS, LIBRARY)
PARTS_OF = {name: step.part for name, step in steps(SIZES[0]).items()}


def pass_name(number: int, count: int) -> str:
    return f"{LIBRARY}, pass {number + 1} of {count}"


def entries_of(one: Pass) -> int:
    return 1 << (one.log_blocks + one.log_length)


def moved(points: int, passes: int, entries: int) -> int:
    """Count the bytes that `passes` passes move.

    Passes read and write all values, and read each pair of their tables once.
    """
    return 2 * WORD_BYTES * (points * passes + entries)


def launches_of(passes: Sequence[Pass], degree: int, batch: int) -> int:
    """Return the number of launches of several passes: the last two may share one."""
    backend: Any = get_backend(DEVICE)
    units = batch << passes[-2].log_blocks
    return len(passes) - bool(
        flow_lag(passes[-2], passes[-1], int(log2(degree)), units, LAZY60, backend.card)
    )


def groups_of(t: Transforms) -> Iterator[Group]:
    """Yield steps, passes and whole transforms, grouped by the values that they take."""
    own, passes, points = steps(t), transforms.passes_of(t.degree, t.batch), t.batch * t.degree
    for i, one in enumerate(passes):
        takes, gives = (f"{x} stages" for x in (one.log_blocks, one.log_blocks + one.log_length))
        work = in_passes(t.degree, t.batch, passes, i)
        own[pass_name(i, len(passes))] = Step("", takes if i else "x", gives, work, entries_of(one))

    def entry(variant: str, names: Sequence[str], work: Any, **facts: int) -> Entry:
        done = [own[name] for name in names]
        moved_bytes = moved(points, len(done), sum(step.entries for step in done))
        words = {"words_a_point": round(moved_bytes / WORD_BYTES / points, 3)}
        library, lazy = "polygpu" if variant.startswith(LIBRARY) else "study", done[-1].lazy
        right = partial(t.value, done[-1].gives)
        return Entry(
            variant, work, right, moved_bytes, library, words | facts, modulus=modulus() if lazy else None
        )

    wholes = []
    for variant, names in VARIANTS.items():
        kernels = [one for name in names for one in own[name].work]
        wholes.append(entry(variant, names, kernels, launches=len(names)))
    launches, names = launches_of(passes, t.degree, t.batch), list(own)[-len(passes) :]
    wholes.append(entry(LIBRARY, names, in_passes(t.degree, t.batch, passes), launches=launches))
    for takes in dict.fromkeys(step.takes for step in own.values()):
        single = [entry(name, [name], step.work) for name, step in own.items() if step.takes == takes]
        more = wholes if takes == "x" else []
        yield Group(OP, {**asdict(t), "takes": takes}, partial(t.value, takes), [*single, *more])


def groups(sizes: Sequence[Transforms] = SIZES) -> list[Group]:
    return [group for size in sizes for group in groups_of(size)]


# ---- two passes in other shapes ----


def tile(log_blocks: int, log_length: int, log_columns: int, log_values: int) -> Pass:
    """Return a tile with enough transforms for 256 threads."""
    log_rows = max(0, 8 - (log_length - log_values + log_columns))
    return Pass(log_blocks, log_length, log_columns, log_rows, log_values)


def fits(one: Pass, card: Card) -> bool:
    held = one.shared_values * WORD_BYTES <= card.shared_bytes
    return one.log_values <= one.log_length and held and 32 <= one.threads <= 512


def shapes(log_points: int, card: Card) -> list[tuple[Pass, ...]]:
    """Return the shapes to compare, of those that fit on the card.

    These are the library's own passes, other splits and widths, and its own with other values in a thread.
    """
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


def shape_group(log_points: int, batch_bytes: int = BATCH_BYTES) -> Group:
    """Return the group of transforms in all shapes; polygpu takes the first by itself."""
    backend: Any = get_backend(DEVICE)
    degree, found = 1 << log_points, shapes(log_points, backend.card)
    batch = batch_bytes // WORD_BYTES // degree
    x = transforms.residues(batch * degree).reshape(batch, degree)
    right = cache(lambda: transforms.transformed(x))

    def entry(passes: tuple[Pass, ...]) -> Entry:
        facts = {"taken": int(passes == found[0]), "launches": launches_of(passes, degree, batch)}
        facts |= {"column_threads": passes[0].threads, "row_threads": passes[-1].threads}
        params = {"columns": described(passes[0]), "rows": described(passes[-1])}
        moved_bytes = moved(x.size, len(passes), sum(map(entries_of, passes)))
        return Entry("passes", in_passes(degree, batch, passes), right, moved_bytes, "polygpu", facts, params)

    return Group(PASSES_OP, {"n": degree, "batch": batch}, lambda: x, list(map(entry, found)))


def described(one: Pass) -> str:
    across = f" x {1 << one.log_columns}" if one.log_columns else ""
    return f"2^{one.log_length}{across}, {1 << one.log_values} a thread"


PARTS = {
    "steps": runner.counted(OP, groups),
    "passes": runner.counted(OP, lambda: list(map(shape_group, LOG_POINTS))),
}


# ---- the page ----


def by_size(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Titles, and the rows of each size; batches last."""
    found = {tuple(int(row.params[name]) for name in ("n1", "n2", "batch")) for row in rows}
    for n1, n2, batch in sorted(found, key=lambda size: (size[2] > 1, size[0] * size[1])):
        how_many = f"{batch} transforms" if batch > 1 else "one transform"
        yield f"{power(n1 * n2)} = {n1} x {n2} points, {how_many}", rows.where(n1=n1, n2=n2, batch=batch)


def variant_of(row: Row) -> str:
    return str(row.params["variant"])


def passes_in(rows: Rows) -> list[str]:
    """Names of polygpu's passes that have a row."""
    return sorted({name for name in map(variant_of, rows) if name.startswith(f"{LIBRARY}, ")})


def parts_of(rows: Rows, variant: str) -> Rows:
    """Return the rows of the steps or passes of a whole transform, or no rows if one is missing."""
    names: Sequence[str] = VARIANTS.get(variant, ())
    if variant == LIBRARY and (found := passes_in(rows)):
        count = int(found[0].rpartition(" ")[2])
        names = [pass_name(number, count) for number in range(count)]
    parts = rows.variants(names)
    return parts if len(parts) == len(names) else Rows()


def used_by(row: Row) -> str:
    return ", ".join(v for v, names in VARIANTS.items() if variant_of(row) in names) or LIBRARY


def in_order(rows: Rows) -> Rows:
    """Return the rows of steps and passes, in the order of the page."""
    return rows.variants([*PARTS_OF, *passes_in(rows)])


def step_table(rows: Rows) -> Iterator[Table]:
    columns = "step = $variant | of = used_by | us | ps a point | words a point | GB/s | share of copy"
    for title, found in by_size(rows):
        yield table(title, columns, in_order(found), used_by=used_by)


def whole_table(rows: Rows) -> Iterator[Table]:
    columns = (
        "variant | launches | sum of the steps, us = summed | whole, us = us_median | ps a point | "
        "words a point | share of copy, of its own bytes = copy_share .0% | of two words a point = of_two | "
        "time by D's = by_library"
    )
    for title, found in by_size(rows):

        def summed(row: Row, found: Rows = found) -> str:
            parts = parts_of(found, variant_of(row))
            return number(sum(part.figures["us_median"] for part in parts)) if parts else ""

        def of_two(row: Row) -> str:
            """Return the share of the copy if only two words a point were counted."""
            return number(row.figures["copy_share"] * 2 / row.figures["words_a_point"], ".0%")

        def by_library(row: Row, found: Rows = found) -> str:
            return quotient(row.median, page.median(found.one(variant=LIBRARY)), ".2f")

        yield table(
            title, columns, found.variants(WHOLES), summed=summed, of_two=of_two, by_library=by_library
        )


def counter_table(rows: Rows) -> Iterator[Table]:
    columns = (
        "step = $variant | blocks | threads | registers | shared KB | occupancy | achieved | "
        "conflicts per 1000 points = bank_conflicts @1000 .1f | sectors a load | sectors a store | "
        "instructions a point = thread_instructions @1 .1f | stalls, cycles an instruction"
    )
    for title, found in by_size(rows):
        yield table(title, columns, in_order(found))


def shape_table(rows: Rows) -> Iterator[Table]:
    """Yield a table for each size, the fastest first."""
    columns = (
        "columns = $columns | rows = $rows | threads = threads | launches | us | ps a point | "
        "share of copy, of its own bytes = copy_share .0% | time by what is taken = by_taken | taken = taken"
    )
    for n in rows.values("n"):
        found = sorted(
            (row for row in rows.where(n=n) if "columns" in row.params), key=lambda row: row.median
        )
        best = next((row.median for row in found if row.figures["taken"]), None)
        yield table(
            f"{power(n)} points, {found[0].params['batch'] if found else 0} transforms",
            columns,
            found,
            threads=lambda row: f"{row.figures['column_threads']:.0f} / {row.figures['row_threads']:.0f}",
            by_taken=lambda row, best=best: quotient(row.median, best, ".2f"),
            taken=lambda row: "yes" * bool(row.figures["taken"]),
        )


def draw(rows: Rows) -> str | None:
    """Bars of the times of the steps; behind each is the time of the whole transform."""
    lines = []
    for title, found in by_size(rows):
        parts = {variant: own for variant in WHOLES if (own := parts_of(found, variant))}
        lines += [plots.Bar(title, {})] if parts else []
        for variant, own in parts.items():
            times: dict[str, float] = {}
            for row in own:
                part = PARTS_OF.get(variant_of(row), "D's last pass" if row is own[-1] else "columns")
                times[part] = times.get(part, 0) + 1000 * row.median / row.work
            note = f"{sum(times.values()):.1f}"
            if whole := found.one(variant=variant):
                note += f", whole {1000 * whole.median / whole.work:.1f}"
            lines.append(plots.Bar(variant, times, note))
    return plots.bars("Steps of a transform, ps a point", lines)


KINDS = {
    "fourstep-steps": StudyKind(step_table, OP),
    "fourstep-whole": StudyKind(whole_table, OP),
    "fourstep-counters": StudyKind(counter_table, OP),
    "fourstep-passes": StudyKind(shape_table, PASSES_OP),
}
FIGURES = {"studies/fourstep.svg": (KINDS["fourstep-whole"], draw)}
