"""What the pages of all studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..harness import Row
from ..tables import Table


@dataclass(frozen=True)
class StudyKind:
    """Tables of a study's rows."""

    layout: Callable[[Mapping[Any, Row]], Iterator[Table]]
    op: str
    cell: Callable[[Row], Any]
    """By what `layout` finds a row."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row.op == self.op and row.machine["kind"] == "gpu"]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """The tables of the rows of one machine."""
        cells = {self.cell(row): row for row in self.rows(rows)}
        if cells:
            yield from self.layout(cells)


def optional(figures: Mapping[str, float], name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else ""
