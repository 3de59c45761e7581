"""Transforms of 2^16 residues by transforms of 256: a lab note's stages, each alone and in a row.

The note (docs/studies/ntt256.md) takes 128 threads for a transform, and compares blocks of 1, 2 and 4
transforms. The transpose between the two halves is a kernel of its own, or part of the first half's stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..plots import Bar, bars
from ..tables import Table, figure
from . import runner, transforms
from .fourstep import Transforms, swapped
from .kernel import Kernel
from .page import Rows, StudyKind, heads, median, number, quotient, table, texts
from .runner import Entry, Group
from .transforms import in_passes
from .transpose import TILE

SIDE = 256
POINTS = SIDE * SIDE
BATCHES = (1, 256)  # the note's, and one that goes through memory
PERIOD = 5  # transforms after which the input repeats
OWN = "polygpu"

# Stages. BEFORE: the stage whose matrix each one takes; "" is the input.
TRANSPOSE, COLUMNS, AGAIN, ROWS = "transpose", "columns", "second transpose", "rows"
WHOLE = "whole"
BEFORE = {TRANSPOSE: "", COLUMNS: TRANSPOSE, AGAIN: COLUMNS, ROWS: AGAIN, WHOLE: ""}  # what is read

# How rows of a matrix are stored.
STORES = {"AS_ROWS": "", "AS_COLUMNS": ", transposed by value", "AS_COLUMNS_AT_ONCE": ", transposed"}


class Stage(NamedTuple):
    """A kernel with `held` transforms in a block; 0: a transpose."""

    name: str
    held: int = 0
    store: str = "AS_ROWS"

    @property
    def variant(self) -> str:
        return f"{self.held} a block{STORES[self.store]}" if self.held else "16 x 16 tiles"

    @property
    def leaves(self) -> str:
        return self.name if self.store == "AS_ROWS" else AGAIN

    def kernel(self, batch: int) -> Kernel:
        grid: tuple[int, ...] = (SIDE // TILE, SIDE // TILE, batch)
        if not self.held:
            sides = np.uint32(SIDE), np.uint32(SIDE)
            return Kernel("transpose.cu", "transpose_batch<true>", grid, (TILE, TILE), lambda: sides)
        name = f"ntt256<{self.held}, {self.store}, {str(self.name == ROWS).lower()}>"
        grid, block = (SIDE * batch // self.held,), (128 * self.held,)
        return Kernel("ntt256.cu", name, grid, block, partial(constants, self.name))


def separate(held: int) -> tuple[Stage, ...]:
    return Stage(TRANSPOSE), Stage(COLUMNS, held), Stage(AGAIN), Stage(ROWS, held)


def fused(held: int, store: str = "AS_COLUMNS_AT_ONCE") -> tuple[Stage, ...]:
    return Stage(TRANSPOSE), Stage(COLUMNS, held, store), Stage(ROWS, held)


PIPELINES = {
    "original": fused(1, "AS_COLUMNS"),
    "2 a block, separate": separate(2),
    "2 a block, fused": fused(2),
    "4 a block, separate": separate(4),
    "4 a block, fused": fused(4),
}
ALONE = Stage(COLUMNS, 1)  # beside polygpu's own kernel
STAGES = tuple(dict.fromkeys((*(stage for stages in PIPELINES.values() for stage in stages), ALONE)))


@cache
def period() -> Transforms:
    return Transforms(SIDE, SIDE, PERIOD)


def after(stage: str) -> NDArray[Any]:
    """Return the matrices that a stage leaves, for a period; "": those that the first stage reads."""
    if stage == COLUMNS:
        return swapped(after(AGAIN))
    name = {"": "x", TRANSPOSE: "turned", AGAIN: "columns"}.get(stage, "whole")
    found: NDArray[Any] = getattr(period(), name).reshape(PERIOD, SIDE, SIDE)
    return found


def own_rows() -> NDArray[Any]:
    """Compute transforms of the rows that the first transpose leaves.

    Their root is that of the ring of degree 256.
    """
    return transforms.transformed(after(TRANSPOSE))


def constants(stage: str) -> tuple[Any, ...]:
    """Return the modulus, the twiddles by node, and the factors of a matrix."""
    *_, factors, _ = of_rows = period().of_rows
    return (*(of_rows if stage == ROWS else period().of_columns)[:2], factors)


def groups(batches: Sequence[int] = BATCHES) -> list[Group]:
    return [group(stage, batch) for batch in batches for stage in BEFORE]


def group(stage: str, batch: int) -> Group:
    entries = []
    for own in (own for own in STAGES if own.name == stage):
        moved_bytes = 8 * POINTS * (2 * batch + 1) if stage == ROWS else None  # and the factors
        entries.append(Entry(own.variant, [own.kernel(batch)], partial(after, own.leaves), moved_bytes))
    if stage == COLUMNS:  # polygpu's kernel, in its shape for many rows and for few
        for one in (transforms.taken(SIDE, few) for few in (False, True)):
            work, values = in_passes(SIDE, SIDE * batch, [one]), 1 << one.log_values
            entries.append(Entry(f"{OWN}, {values} values a thread", work, own_rows, library=OWN))
    if stage == WHOLE:
        for variant, stages in PIPELINES.items():
            entries.append(Entry(variant, [one.kernel(batch) for one in stages], partial(after, WHOLE)))
        work = in_passes(POINTS, batch, transforms.passes_of(POINTS, batch))
        entries.append(Entry(OWN, work, partial(after, WHOLE), library=OWN))

    def x() -> NDArray[Any]:
        return np.resize(after(BEFORE[stage]), (batch, SIDE, SIDE))

    return Group("ntt256", {"stage": stage, "batch": batch}, x, entries)


PARTS = {"kernels": runner.counted("ntt256", groups)}


# ---- the page ----

NOTE = {  # us, by stage
    "original": (3.97, 9.63, 12.10),
    "2 a block, separate": (4.13, 10.34, 3.9, 12.48),
    "2 a block, fused": (3.84, 12.96, 12.51),
    "4 a block, separate": (4.06, 11.52, 4.19, 13.22),
    "4 a block, fused": (3.9, 14.11, 13.02),
}


def title(batch: int) -> str:
    return "one transform" if batch == 1 else f"{batch} transforms"


def stage_us(rows: Rows, variant: str) -> list[float | None]:
    found = [rows.one(stage=stage.name, variant=stage.variant) for stage in PIPELINES[variant]]
    return [row.figures["us_median"] if row else None for row in found]


def summed(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return fsum(known) if len(known) == len(times) else None


def of_stages(times: Sequence[float | None], original: Sequence[float | None]) -> tuple[str, str, str]:
    """Return the times of the stages, their sum, and the sum over the original's."""
    stages = " + ".join("?" if time is None else figure(time) for time in times) if any(times) else ""
    total = summed(times)
    return stages, number(total), quotient(total, summed(original), ".2f")


def time_table(rows: Rows) -> Iterator[Table]:
    """Yield a table for each batch; the note's figures are of the first."""
    for batch in rows.values("batch"):
        found, first, body = rows.where(batch=batch), batch == min(BATCHES), []
        own = found.one(stage=WHOLE, variant=OWN)
        for variant in (*PIPELINES, OWN):
            whole = found.one(stage=WHOLE, variant=variant)
            stages: tuple[str, ...] = ("",) * (6 if first else 3)
            if variant != OWN:
                stages = of_stages(stage_us(found, variant), stage_us(found, "original"))
                stages = (*(of_stages(NOTE[variant], NOTE["original"]) if first else ()), *stages)
            by_own = quotient(median(whole), median(own), ".2f")
            body.append((variant, *stages, *texts(whole, "us"), by_own, *texts(whole, "share of copy")))
        noted = "the note: stages, us | sum | by the original's | " if first else ""
        here = "here: stages, us | sum | by the original's | in a row, us | by polygpu's | share of copy"
        yield Table(f"{title(batch).capitalize()} of 2^16", heads(f"variant | {noted}{here}"), tuple(body))


def kernel_table(rows: Rows) -> Iterator[Table]:
    columns = (
        "stage = $stage | kernel = $variant | us | share of copy | blocks | threads a block | "
        "shared KB a block = shared_bytes / 1024 .1f | registers | theoretical occupancy | achieved | "
        "instructions a row of 256 = thread_instructions @256 .1f | "
        "bank conflicts a row of 256 = bank_conflicts @256 .1f | "
        "sectors a load | sectors a store | stalls, cycles an instruction"
    )
    single = Rows(r for r in rows if r.params["stage"] != WHOLE and r.params["variant"] != "copy")
    for batch in rows.values("batch"):
        yield table(f"Stages of {title(batch)}", columns, single.where(batch=batch))


def stage_bars(batch: int, rows: Rows) -> str | None:
    """Stages one after the other; the note's too for the batch that it has."""
    found, lines = rows.where(batch=batch), []

    def bar(variant: str, times: Sequence[float | None]) -> Bar:
        stages = zip(PIPELINES[variant], times, strict=True)
        return Bar(variant, {stage.name: time or 0 for stage, time in stages})

    if batch == min(BATCHES):
        lines = [Bar("the note", {}), *(bar(*noted) for noted in NOTE.items()), Bar("here", {})]
    here = {variant: stage_us(found, variant) for variant in PIPELINES}
    lines += [bar(variant, times) for variant, times in here.items() if summed(times)]
    if own := found.one(stage=WHOLE, variant=OWN):
        lines.append(Bar("polygpu, whole", {"whole": own.figures["us_median"]}))
    return bars(f"{title(batch)} of 2^16, us by stage", lines)


KINDS = {
    "ntt256-time": StudyKind(time_table, "ntt256"),
    "ntt256-kernels": StudyKind(kernel_table, "ntt256"),
}
FIGURES = {
    "studies/ntt256.svg": (KINDS["ntt256-time"], partial(stage_bars, BATCHES[0])),
    "studies/ntt256-batch.svg": (KINDS["ntt256-time"], partial(stage_bars, BATCHES[1])),
}
