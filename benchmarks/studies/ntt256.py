"""Transforms of 2^16 residues by transforms of 256: a lab note's stages, each alone and in a row.

The note (docs/studies/ntt256.md) takes 128 threads a transform, and compares blocks of 1, 2 and 4 transforms,
with a transpose of its own between both halves or one that is part of the first half's store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu.backends import get_backend
from polygpu.backends.reference import reverse_bits

from ..harness import Row, Timer
from ..plots import Bar, bars
from ..tables import Table, figure
from . import kernel, runner, transforms
from .page import StudyKind, optional, sectors, stalls, us
from .runner import DEVICE, Entry, Group
from .transpose import TILE

SIDE = 256
POINTS = SIDE * SIDE
BATCHES = (1, 256)  # the note's, and one that goes through memory
PERIOD = 5  # transforms after which the input repeats

# Stages: what each makes of the matrix that the one before leaves.
TRANSPOSE, COLUMNS, AGAIN, ROWS = "transpose", "columns", "second transpose", "rows"
WHOLE = "whole"


@dataclass(frozen=True)
class Stage:
    """A kernel and the blocks it is launched in."""

    name: str
    variant: str
    file: str
    expression: str
    held: int = 0
    """Transforms of a block; 0: a transpose."""

    @property
    def block(self) -> tuple[int, ...]:
        return (128 * self.held,) if self.held else (TILE, TILE)

    def grid(self, batch: int) -> tuple[int, ...]:
        return (SIDE * batch // self.held,) if self.held else (SIDE // TILE, SIDE // TILE, batch)

    @property
    def kernel(self) -> str:
        return self.expression.partition("<")[0]


def transpose(name: str) -> Stage:
    return Stage(name, "16 x 16 tiles", "transpose.cu", "transpose_batch<true>")


def columns(held: int, store: str) -> Stage:
    how = {"AS_ROWS": "", "AS_COLUMNS": ", transposed by value", "AS_COLUMNS_AT_ONCE": ", transposed"}[store]
    return Stage(COLUMNS, f"{held} a block{how}", "ntt256.cu", f"ntt256<{held}, {store}, false>", held)


def rows(held: int) -> Stage:
    return Stage(ROWS, f"{held} a block", "ntt256.cu", f"ntt256<{held}, AS_ROWS, true>", held)


FIRST, SECOND = transpose(TRANSPOSE), transpose(AGAIN)


def separate(held: int) -> tuple[Stage, ...]:
    return FIRST, columns(held, "AS_ROWS"), SECOND, rows(held)


def fused(held: int, store: str = "AS_COLUMNS_AT_ONCE") -> tuple[Stage, ...]:
    return FIRST, columns(held, store), rows(held)


PIPELINES = {
    "original": fused(1, "AS_COLUMNS"),
    "2 a block, separate": separate(2),
    "2 a block, fused": fused(2),
    "4 a block, separate": separate(4),
    "4 a block, fused": fused(4),
}
ALONE = columns(1, "AS_ROWS")  # beside polygpu's own kernel
STAGES = tuple(dict.fromkeys((*(stage for stages in PIPELINES.values() for stage in stages), ALONE)))
OWN = "polygpu"


# ---- what is launched ----


@cache
def kernels(device: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in dict.fromkeys(stage.file for stage in STAGES):
        own = (stage.expression for stage in STAGES if stage.file == file)
        found |= kernel.load(file, list(dict.fromkeys(own)))
    return found


def groups() -> list[Group]:
    found = []
    for batch in BATCHES:
        for name in (TRANSPOSE, COLUMNS, AGAIN, ROWS):
            entries: list[tuple[str, Callable[[], Entry]]] = [
                (stage.variant, partial(alone, stage, batch)) for stage in STAGES if stage.name == name
            ]
            if name == COLUMNS:
                entries += [
                    (own_rows_variant(few), partial(library_rows, few, batch)) for few in (False, True)
                ]
            found.append(group(name, batch, entries))
        whole = [(variant, partial(pipeline, variant, batch)) for variant in PIPELINES]
        found.append(group(WHOLE, batch, [*whole, (OWN, partial(library, batch))]))
    return found


def group(stage: str, batch: int, entries: Sequence[tuple[str, Callable[[], Entry]]]) -> Group:
    before = {COLUMNS: TRANSPOSE, AGAIN: COLUMNS, ROWS: AGAIN}.get(stage, "")  # what is read
    return Group("ntt256", {"stage": stage, "batch": batch}, partial(array, before, batch), entries)


def launcher(stage: Stage, batch: int) -> Callable[[Any, Any], None]:
    """From matrices to matrices, arrays on the card."""
    import cupy

    function = kernels(cupy.cuda.Device().id)[stage.expression]
    more = constants(stage) if stage.held else (np.uint32(SIDE), np.uint32(SIDE))

    def run(x: Any, y: Any) -> None:
        function(stage.grid(batch), stage.block, (x, y, *more))

    return run


def constants(stage: Stage) -> tuple[Any, ...]:
    """The modulus, the twiddles by node, and the factors of a matrix, on the card."""
    import cupy

    backend: Any = get_backend(DEVICE)
    kind, psi = ("cyclic", rows_root()) if stage.name == ROWS else ("negacyclic", columns_root())
    table = cupy.asarray(transforms.node_twiddles(SIDE, kind, psi))
    return backend._moduli(transforms.ring(SIDE).transform.basis), table, cupy.asarray(factors())


def alone(stage: Stage, batch: int) -> Entry:
    import cupy

    run = launcher(stage, batch)
    function = kernels(cupy.cuda.Device().id)[stage.expression]
    facts = kernel.facts_of(function, int(np.prod(stage.grid(batch))), int(np.prod(stage.block)))
    at = TRANSPOSE if stage.name == TRANSPOSE else COLUMNS if "AS_ROWS, false" in stage.expression else AGAIN
    right = partial(array, ROWS if stage.name == ROWS else at, batch)
    moved = 16 * POINTS * batch + (8 * POINTS if stage.name == ROWS else 0)
    return Entry(stage.variant, run, right, moved, kernel=stage.kernel, facts=facts)


def pipeline(variant: str, batch: int) -> Entry:
    """All stages in a row; every second result lies in an array of its own."""
    import cupy

    runs = [launcher(stage, batch) for stage in PIPELINES[variant]]
    scratch = cupy.empty((batch, SIDE, SIDE), np.uint64)

    def run(x: Any, y: Any) -> None:
        for left, one in zip(reversed(range(len(runs))), runs, strict=True):
            target = scratch if left % 2 else y
            one(x, target)
            x = target

    return Entry(variant, run, partial(array, WHOLE, batch), 16 * POINTS * batch)


def library(batch: int) -> Entry:
    """polygpu's transform in the passes that it takes for so many rows."""
    passes = transforms.passes_of(POINTS, batch)
    run = transforms.in_passes(POINTS, passes)
    return Entry(OWN, run, partial(array, WHOLE, batch), 16 * POINTS * batch, OWN)


def library_rows(few: bool, batch: int) -> Entry:
    """polygpu's kernel for transforms of 256, as for few rows or for many. Its root is the ring's own."""
    import cupy

    one = transforms.taken(SIDE, few)
    run = transforms.in_passes(SIDE, (one,))
    x = cupy.zeros((1, SIDE), np.uint64)
    run(x, cupy.empty_like(x))
    facts = transforms.facts_of_pass(SIDE, one, SIDE * batch)
    right = partial(repeated, own_rows, batch)
    return Entry(own_rows_variant(few), run, right, 16 * POINTS * batch, OWN, "ntt_forward", facts)


def own_rows_variant(few: bool) -> str:
    return f"{OWN}, {1 << transforms.taken(SIDE, few).log_values} values a thread"


# ---- what must come out ----


def columns_root() -> int:
    """Of order 512."""
    return pow(transforms.root(POINTS), SIDE, transforms.modulus())


def rows_root() -> int:
    """Of order 256."""
    return pow(transforms.root(POINTS), 2 * SIDE, transforms.modulus())


@cache
def factors() -> NDArray[Any]:
    """psi^((2 k1 + 1) j) of row br(k1) and column j."""
    found = np.empty((SIDE, SIDE), np.uint64)
    for row in range(SIDE):
        turn = 2 * reverse_bits(row, SIDE) + 1
        found[row] = transforms.powers(pow(transforms.root(POINTS), turn, transforms.modulus()), SIDE)
    return found


@cache
def period() -> Mapping[str, NDArray[Any]]:
    """A period of what each stage leaves; "": of what the first one reads."""
    x = transforms.residues(PERIOD * POINTS).reshape(PERIOD, SIDE, SIDE)
    turned = np.ascontiguousarray(x.transpose(0, 2, 1))
    transformed = transforms.transformed(turned, psi=columns_root())
    again = np.ascontiguousarray(transformed.transpose(0, 2, 1))
    twiddled = transforms.products(again, np.broadcast_to(factors(), again.shape))
    return {
        "": x,
        TRANSPOSE: turned,
        COLUMNS: transformed,
        AGAIN: again,
        ROWS: transforms.transformed(twiddled, "cyclic", rows_root()),
        WHOLE: transforms.transformed(x.reshape(PERIOD, POINTS)).reshape(x.shape),
    }


@cache
def own_rows() -> NDArray[Any]:
    """Rows of the first transpose, by the root of the ring of 256."""
    return transforms.transformed(period()[TRANSPOSE])


def repeated(of: Callable[[], NDArray[Any]], batch: int) -> NDArray[Any]:
    return np.resize(of(), (batch, SIDE, SIDE))


def array(after: str, batch: int) -> NDArray[Any]:
    """What a stage leaves."""
    return repeated(lambda: period()[after], batch)


# ---- the run ----


def launches() -> Iterator[Callable[[], object]]:
    """Every kernel of the study, for a profiler."""
    return runner.launches(groups())


def main(out: Path, timer: Timer | None = None) -> int:
    return runner.run("ntt256", groups(), out, timer)


# ---- the page ----

NOTE = {  # us, by stage
    "original": (3.97, 9.63, 12.10),
    "2 a block, separate": (4.13, 10.34, 3.9, 12.48),
    "2 a block, fused": (3.84, 12.96, 12.51),
    "4 a block, separate": (4.06, 11.52, 4.19, 13.22),
    "4 a block, fused": (3.9, 14.11, 13.02),
}

Cells = Mapping[tuple[int, str, str], Row]  # by batch, stage and variant


def cell(row: Row) -> tuple[int, str, str]:
    return int(row.params["batch"]), str(row.params["stage"]), str(row.params["variant"])


def batches(cells: Cells) -> list[int]:
    return sorted({batch for batch, _, _ in cells})


def stage_us(cells: Cells, batch: int, variant: str) -> list[float | None]:
    found = [cells.get((batch, stage.name, stage.variant)) for stage in PIPELINES[variant]]
    return [row.figures["us_median"] if row else None for row in found]


def summed(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) if len(known) == len(times) else None


def plus(times: Sequence[float | None]) -> str:
    return " + ".join("?" if time is None else figure(time) for time in times) if any(times) else ""


def time_table(cells: Cells) -> Iterator[Table]:
    """A table for each batch; the note has the first."""
    for batch in batches(cells):
        first = batch == min(BATCHES)
        best = summed(NOTE["original"])
        body = []
        for variant, noted in NOTE.items():
            times = stage_us(cells, batch, variant)
            total, original = summed(times), summed(stage_us(cells, batch, "original"))
            whole = cells.get((batch, WHOLE, variant))
            assert best is not None
            note = (plus(noted), figure(sum(noted)), f"{sum(noted) / best:.2f}")
            body.append(
                (
                    variant,
                    *(note if first else ()),
                    plus(times),
                    figure(total) if total else "",
                    f"{total / original:.2f}" if total and original else "",
                    us(whole),
                    *from_whole(cells, batch, whole),
                )
            )
        own = cells.get((batch, WHOLE, OWN))
        body.append((OWN, *(("",) * 3 if first else ()), "", "", "", us(own), *from_whole(cells, batch, own)))
        note_heads = ("the note: stages, us", "sum", "by the original's")
        yield Table(
            f"{'One transform' if batch == 1 else f'{batch} transforms'} of 2^16",
            (
                "variant",
                *(note_heads if first else ()),
                "here: stages, us",
                "sum",
                "by the original's",
                "in a row, us",
                "by polygpu's",
                "share of copy",
            ),
            tuple(body),
        )


def from_whole(cells: Cells, batch: int, whole: Row | None) -> tuple[str, str]:
    own = cells.get((batch, WHOLE, OWN))
    if whole is None:
        return "", ""
    return f"{whole.median / own.median:.2f}" if own else "", f"{whole.figures['copy_share']:.0%}"


def kernel_table(cells: Cells) -> Iterator[Table]:
    for batch in batches(cells):
        body = []
        for (own, stage, variant), row in cells.items():
            if own != batch or stage == WHOLE or variant == "copy":
                continue
            f = row.figures
            theoretical = optional(f, "theoretical_occupancy", "{:.0%}") or optional(f, "occupancy", "{:.0%}")
            body.append(
                (
                    stage,
                    variant,
                    us(row),
                    f"{f['copy_share']:.0%}",
                    optional(f, "blocks", "{:.0f}"),
                    optional(f, "threads", "{:.0f}"),
                    f"{f['shared_bytes'] / 1024:.1f}" if "shared_bytes" in f else "",
                    optional(f, "registers", "{:.0f}"),
                    theoretical,
                    optional(f, "achieved_occupancy", "{:.0%}"),
                    a_transform(f, "thread_instructions", batch),
                    a_transform(f, "bank_conflicts", batch),
                    sectors(f, "load"),
                    sectors(f, "store"),
                    stalls(f),
                )
            )
        yield Table(
            f"Stages of {'one transform' if batch == 1 else f'{batch} transforms'}",
            (
                "stage",
                "kernel",
                "us",
                "share of copy",
                "blocks",
                "threads a block",
                "shared KB a block",
                "registers",
                "theoretical occupancy",
                "achieved",
                "instructions a row of 256",
                "bank conflicts a row of 256",
                "sectors a load",
                "sectors a store",
                "stalls, cycles an instruction",
            ),
            tuple(body),
        )


def a_transform(figures: Mapping[str, float], name: str, batch: int) -> str:
    return f"{figures[name] / (SIDE * batch):.1f}" if name in figures else ""


def stage_bars(batch: int, cells: Cells) -> str | None:
    """Stages one after the other, beside the note's where it has them."""
    lines = []
    if batch == min(BATCHES):
        lines.append(Bar("the note", {}))
        lines += [Bar(variant, parts(variant, noted)) for variant, noted in NOTE.items()]
        lines.append(Bar("here", {}))
    for variant in PIPELINES:
        times = stage_us(cells, batch, variant)
        if summed(times):
            lines.append(Bar(variant, parts(variant, [time or 0 for time in times])))
    if own := cells.get((batch, WHOLE, OWN)):
        lines.append(Bar("polygpu, whole", {"whole": own.figures["us_median"]}))
    what = "one transform" if batch == 1 else f"{batch} transforms"
    return bars(f"{what} of 2^16, us by stage", lines)


def parts(variant: str, times: Sequence[float]) -> dict[str, float]:
    return {stage.name: time for stage, time in zip(PIPELINES[variant], times, strict=True)}


KINDS = {
    "ntt256-time": StudyKind(time_table, "ntt256", cell),
    "ntt256-kernels": StudyKind(kernel_table, "ntt256", cell),
}
FIGURES = {
    "studies/ntt256.svg": (KINDS["ntt256-time"], partial(stage_bars, BATCHES[0])),
    "studies/ntt256-batch.svg": (KINDS["ntt256-time"], partial(stage_bars, BATCHES[1])),
}
