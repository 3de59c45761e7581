"""What the pages of all studies share: rows by their parameters, and tables whose columns are text.

Columns stand beside each other as in the table, each a heading and what stands under it, "by = $library": a
function given by name; a parameter of the row, $name; or a figure, by a number, by another figure or by so
many points of the row's work, with its form: "shared_bytes / 1024 .1f", "bank_conflicts @64 .1f". Without a
form there are three significant digits; without the figure nothing. A heading alone is one of COLUMNS.
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
    """Of one op and machine; of two that differ in how they were launched alone, the newer one."""

    def where(self, **params: object) -> Rows:
        """Those with these parameters; None: without one of that name."""
        return Rows(r for r in self if all(r.params.get(name) == value for name, value in params.items()))

    def one(self, **params: object) -> Row | None:
        return next(iter(self.where(**params)), None)

    def variants(self, names: Iterable[str]) -> Rows:
        """Those that there are, in that order."""
        return Rows(row for name in names for row in self.where(variant=name)[:1])

    def values(self, name: str) -> list[Any]:
        """Of a parameter, each once, in their order."""
        return sorted({row.params[name] for row in self if name in row.params})


def noted(us: float, figures: Mapping[str, float], **params: int | str) -> Any:
    """A figure of a lab note, as if it were a row."""
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
        """The tables of the rows of one machine."""
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
    """Reasons, and cycles between two instructions of a warp; those that take none are left out."""
    found = {name: row.figures.get(f"stall_{name}", 0) for name in ncu.STALLS}
    return sorted(((x, t) for x, t in found.items() if t), key=lambda stall: stall[1], reverse=True)


def stalls(row: Row) -> str:
    return ", ".join(f"{x.replace('_', ' ')} {t:.1f}" for x, t in longest_stalls(row)[:3])


def theoretical(row: Row) -> str:
    """The profiler's occupancy where it has counted, else the calculator's."""
    f = row.figures
    return number(f.get("theoretical_occupancy", f.get("occupancy")), ".0%")


# ---- tables ----


def text_of(source: str) -> Text:
    """Of a parameter or a figure, as above."""
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
    """What stands under each heading."""
    found = {}
    for name, _, source in (part.partition(" = ") for part in text.split(" | ")):
        found[name] = own.get(source) or text_of(source) if source else COLUMNS[name]
    return found


COLUMNS: dict[str, Text] = columns(COMMON, {"theoretical": theoretical, "stalls": stalls})


def heads(text: str) -> tuple[str, ...]:
    return tuple(part.partition(" = ")[0] for part in text.split(" | "))


def texts(row: Row | None, text: str, **own: Text) -> tuple[str, ...]:
    """What stands in a row's columns; nothing in those of no row."""
    return tuple(made(row) if row else "" for made in columns(text, own).values())


def across(rows: Iterable[Row | None], text: str) -> list[str]:
    """The columns of one row, then those of the next."""
    return [one for row in rows for one in texts(row, text)]


def table(title: str, text: str, rows: Iterable[Row], **own: Text) -> Table:
    """A line for each row."""
    made = columns(text, own)
    return Table(title, tuple(made), tuple(tuple(one(row) for one in made.values()) for row in rows))


def accuracy_table(title: str, first: str, rows: Iterable[Row], **own: Text) -> Table:
    """Errors, the smallest first."""
    text = f"{first} | relative L2 | largest, by the root mean square of the result"
    made = table(title, text, (row for row in rows if "error_l2" in row.figures), **own)
    return Table(made.title, made.header, tuple(sorted(made.body, key=lambda line: float(line[1]))))
