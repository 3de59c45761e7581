"""What the pages of all studies share: rows by their parameters, and tables whose columns are text.

The columns of a table are one text, in which " | " separates them, as in "by = $library | us". A column is a
heading, " = " and the source of its texts; a heading without a source is one of COLUMNS. A source is

    name                      a function that is given by this name
    $name                     a parameter of the row
    shared_bytes .0f          a figure of the row, and its form for format()
    shared_bytes / 1024 .1f   a figure over a number or over another figure
    bank_conflicts @64 .1f    a figure for each 64 points of the row's work

Without a form a figure has three significant digits. If the row lacks the figure, the text is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..harness import Row
from ..tables import Table, figure
from . import ncu

Text = Callable[[Row], str]


class Rows(list[Row]):
    """Rows of one op and machine. Of rows that differ only in how they were launched, the newest."""

    def where(self, **params: object) -> Rows:
        """Return the rows with these parameters. None stands for a row without the parameter."""
        return Rows(r for r in self if all(r.params.get(name) == value for name, value in params.items()))

    def one(self, **params: object) -> Row | None:
        return next(iter(self.where(**params)), None)

    def variants(self, names: Iterable[str]) -> Rows:
        """Return the rows of these variants, in this order; variants without a row are left out."""
        return Rows(row for name in names for row in self.where(variant=name)[:1])

    def values(self, name: str) -> list[Any]:
        """Return the values of a parameter, each once, sorted."""
        return sorted({row.params[name] for row in self if name in row.params})


def noted(us: float, figures: Mapping[str, float], **params: int | str) -> Any:
    """Return a measurement of a lab note, as if it were a row."""
    return SimpleNamespace(params=params, median=1000 * us, work=1, figures={"us_median": us, **figures})


@dataclass(frozen=True)
class StudyKind:
    """Tables of a study's rows."""

    layout: Callable[[Rows], Iterator[Table]]
    op: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row.op == self.op and row.machine["kind"] == "gpu"]

    def cells(self, rows: Iterable[Row]) -> Rows:
        own = self.rows(rows)
        keys = (frozenset((name, x) for name, x in row.params.items() if name != "launch") for row in own)
        return Rows(dict(zip(keys, own, strict=True)).values())

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the tables of the rows of one machine, if there are any."""
        if cells := self.cells(rows):
            yield from self.layout(cells)


# ---- texts ----


def number(x: float | None, form: str = "") -> str:
    """form: of Python's format(), or three significant digits."""
    return "" if x is None else format(x, form) if form else figure(x)


def quotient(a: float | None, b: float | None, form: str = "") -> str:
    return number(a / b, form) if a is not None and b else ""


def median(row: Row | None) -> float | None:
    return row.median if row else None


def longest_stalls(row: Row) -> list[tuple[str, float]]:
    """Why a warp waits, and cycles between two of its instructions: the longest first, without zeros."""
    found = {name: row.figures.get(f"stall_{name}", 0) for name in ncu.STALLS}
    return sorted(((x, t) for x, t in found.items() if t), key=lambda stall: stall[1], reverse=True)


def stalls(row: Row) -> str:
    return ", ".join(f"{x.replace('_', ' ')} {t:.1f}" for x, t in longest_stalls(row)[:3])


def theoretical(row: Row) -> str:
    """Return the profiler's occupancy if it has counted, else the calculator's."""
    f = row.figures
    return number(f.get("theoretical_occupancy", f.get("occupancy")), ".0%")


# ---- tables ----


def text_of(source: str) -> Text:
    """Return the text of a parameter or a figure as a function of a row, from its source as above."""
    if source.startswith("$"):
        return lambda row: str(row.params.get(source[1:], ""))
    match = re.fullmatch(r"(\w+)(?: / (\w+)| @(\d+))?(?: (\S+))?", source)
    assert match, source
    name, by, points, form = match.groups("")

    def text(row: Row) -> str:
        known = {"median_ns": row.median, "median_ps": 1000 * row.median, **row.figures}
        whole: float | None = float(by) if by.isdigit() else known.get(by)
        if points:
            whole = row.work / int(points)
        return quotient(known.get(name), whole if by or points else 1, form)

    return text


COMMON = (
    "variant = $variant | us = us_median | ms = median_ns / 1000000 | ps a point = median_ps @1 | "
    "GB/s = gbps .0f | share of copy = copy_share .0% | launches = launches .0f | "
    "words a point = words_a_point .2f | blocks = blocks .0f | threads = threads .0f | "
    "threads a block = threads .0f | registers = registers .0f | shared KB = shared_bytes / 1024 .1f | "
    "occupancy = occupancy .0% | theoretical occupancy = theoretical | achieved = achieved_occupancy .0% | "
    "sectors a load = load_sectors / load_requests .1f | "
    "sectors a store = store_sectors / store_requests .1f | "
    "stalls, cycles an instruction = stalls | relative L2 = error_l2 .2e | "
    "largest, by the root mean square of the result = error_max .2e"
)


def columns(text: str, own: dict[str, Text]) -> dict[str, Text]:
    """Return what stands under each heading."""
    found = {}
    for name, _, source in (part.partition(" = ") for part in text.split(" | ")):
        found[name] = own.get(source) or text_of(source) if source else COLUMNS[name]
    return found


COLUMNS: dict[str, Text] = columns(COMMON, {"theoretical": theoretical, "stalls": stalls})


def heads(text: str) -> tuple[str, ...]:
    return tuple(part.partition(" = ")[0] for part in text.split(" | "))


def texts(row: Row | None, text: str, **own: Text) -> tuple[str, ...]:
    """Return the texts of a row's columns, or empty texts if the row is None."""
    return tuple(made(row) if row else "" for made in columns(text, own).values())


def across(rows: Iterable[Row | None], text: str) -> list[str]:
    """Return the columns of one row, then those of the next."""
    return [one for row in rows for one in texts(row, text)]


def table(title: str, text: str, rows: Iterable[Row], **own: Text) -> Table:
    """Return a table with a line for each row."""
    made = columns(text, own)
    return Table(title, tuple(made), tuple(tuple(one(row) for one in made.values()) for row in rows))


def accuracy_table(title: str, first: str, rows: Iterable[Row], **own: Text) -> Table:
    """Errors, the smallest first."""
    text = f"{first} | relative L2 | largest, by the root mean square of the result"
    made = table(title, text, (row for row in rows if "error_l2" in row.figures), **own)
    return Table(made.title, made.header, tuple(sorted(made.body, key=lambda line: float(line[1]))))
