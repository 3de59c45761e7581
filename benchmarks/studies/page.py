"""What the pages of all studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..harness import Row
from ..tables import Table, figure
from . import ncu


@dataclass(frozen=True)
class StudyKind:
    """Tables of a study's rows."""

    layout: Callable[[Mapping[Any, Row]], Iterator[Table]]
    op: str
    cell: Callable[[Row], Any]
    """By what `layout` finds a row."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row.op == self.op and row.machine["kind"] == "gpu"]

    def cells(self, rows: Iterable[Row]) -> dict[Any, Row]:
        return {self.cell(row): row for row in self.rows(rows)}

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """The tables of the rows of one machine."""
        cells = self.cells(rows)
        if cells:
            yield from self.layout(cells)


def us(row: Row | None) -> str:
    return figure(row.figures["us_median"]) if row else ""


def ratio(figures: Mapping[str, float], name: str, other: str, form: str = "{:.1f}") -> str:
    return form.format(figures[name] / figures[other]) if name in figures and figures.get(other) else ""


def sectors(figures: Mapping[str, float], op: str) -> str:
    """Of 32 bytes, that a "load" or a "store" of a warp moves."""
    return ratio(figures, f"{op}_sectors", f"{op}_requests")


def longest_stalls(figures: Mapping[str, float]) -> list[tuple[str, float]]:
    """Reasons, and cycles between two instructions; those that take none are left out."""
    found = {name: figures.get(f"stall_{name}", 0) for name in ncu.STALLS}
    return sorted(((x, t) for x, t in found.items() if t), key=lambda stall: stall[1], reverse=True)


def stalls(figures: Mapping[str, float], most: int = 3) -> str:
    """The longest ones, in cycles between two instructions of a warp."""
    return ", ".join(f"{x.replace('_', ' ')} {t:.1f}" for x, t in longest_stalls(figures)[:most])


def optional(figures: Mapping[str, float], name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else ""
