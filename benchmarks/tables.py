"""A table of figures, how figures are written, and which rows count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from polygpu._bench.timing import figure

from .harness import Row


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        rule = ("---:",) * len(self.header)
        lines = (f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.body))
        return "\n".join((f"**{self.title}**", "", *lines))


def power(n: int) -> str:
    return f"2^{n.bit_length() - 1}"


def unique(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


# ---- tables of kinds of work, each beside another row ----


UNITS = {"ms": 1e6, "us": 1e3}  # in ns


@dataclass(frozen=True)
class Line:
    """A kind of work: a line of a table for each shape that was measured."""

    work: str
    op: str
    unit: str  # "ms", "us", or another text such as "ns a residue": ns for each unit of `work` of the rows
    must: float | None = None  # the greatest time, in the unit
    beside: str = ""  # the op of the row that it stands beside
    name: str = ""  # what the table calls that row
    times: float | None = None  # the greatest ratio to its time
    only: Mapping[str, int] = field(default_factory=dict)  # params that the rows of this line must have
    library: str = "polygpu"  # of the row that it stands beside

    def time(self, row: Row) -> float:
        return row.median / UNITS.get(self.unit, row.work)

    def cells(self, rows: Sequence[Row], beside: Sequence[Row]) -> tuple[str, ...]:
        """Return the cells for one shape, which has a row for each pass: medians over the passes."""
        time, verdicts, more = median(map(self.time, rows)), [], ("", "", "")
        if self.must is not None:
            verdicts.append(time <= self.must)
        if beside:
            ratio = median(r.median / b.median for r, b in zip(rows, beside, strict=True))
            if self.times is not None:
                verdicts.append(ratio <= self.times)
            name = f"{self.name}, {figure(median(map(self.time, beside)))} {self.unit}"
            more = (name, figure(ratio), text(self.times))
        holds = "" if not verdicts else "yes" if all(verdicts) else "no"
        return (self.work, shape(rows[0]), f"{figure(time)} {self.unit}", text(self.must), *more, holds)


def text(x: float | None) -> str:
    return "" if x is None else f"{x:g}"


def shape(row: Row) -> str:
    p = row.params
    n, limbs, to, batch = (int(p.get(key, 1)) for key in ("n", "limbs", "to", "batch"))
    degree = power(n) if n & (n - 1) == 0 else str(n)
    count = f"{limbs} to {to}" if to not in (1, limbs) else str(limbs)
    if "special" in p:
        count = f"{limbs} + {p['special']}"
    bits = f" of {p['bits']} bits" if limbs > 1 else f", {p['bits']} bits"
    if "left" in p:  # a program, whose primes have several lengths
        bits = ""
    many = f", {batch} polynomials" if batch > 1 else ""
    left = f"; {p['left']}" if "left" in p else ""
    return f"N = {degree}, {count} limb{'s' * (limbs > 1)}{bits}{many}{left}"


Measured = Mapping[tuple[str, str, tuple[tuple[str, int | str], ...]], Mapping[Any, Row]]


def shape_params(row: Row) -> tuple[tuple[str, int | str], ...]:
    """Return the params that rows beside each other share: all but the pass and the calls of a graph."""
    return tuple(sorted((key, value) for key, value in row.params.items() if key not in ("run", "launch")))


@dataclass(frozen=True)
class LineKind:
    """One table: the lines in their order, each for all shapes that were measured."""

    title: str
    device: str
    lines: tuple[Line, ...]

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Those of `rows` that the table shows."""
        ops = {op for line in self.lines for op in (line.op, line.beside)}
        return [row for row in rows if row.op in ops and row.machine["kind"] == self.device]

    def cells(self, rows: Iterable[Row]) -> Measured:
        """Return the rows of each op, library and shape, by pass."""
        measured: dict[Any, dict[Any, Row]] = {}
        for row in self.rows(rows):
            measured.setdefault((row.op, row.library, shape_params(row)), {})[row.params.get("run")] = row
        return measured

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine, if there are any."""
        measured, body = self.cells(rows), []
        for line in self.lines:
            shown = [key for key in measured if key[:2] == (line.op, "polygpu")]
            shown = [key for key in shown if line.only.items() <= dict(key[2]).items()]
            for key in sorted(shown, key=lambda key: [dict(key[2])[name] for name in ("bits", "limbs", "n")]):
                beside = measured.get((line.beside, line.library, key[2]), {})
                passes = [run for run in measured[key] if run in beside or not line.beside]
                if passes:
                    own = [measured[key][run] for run in passes]
                    body.append(line.cells(own, [beside[run] for run in passes if line.beside]))
        if body:
            yield Table(
                self.title, ("work", "shape", "time", "must", "beside", "ratio", "must", "holds"), tuple(body)
            )


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that count. Rows are given in the order of their dates and come back in it."""
    kept: dict[object, Row] = {}
    for row in rows:
        if row.verified:
            kept[row.machine["name"], row.op, row.library, tuple(sorted(row.params.items()))] = row
    return sorted(kept.values(), key=lambda row: row.date)


def of_last_machine(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the machine that was measured last."""
    own = sorted(rows, key=lambda row: row.date)
    return [row for row in own if row.machine["name"] == own[-1].machine["name"]]


def drawn(kind: Any, draw: Callable[[Any], str | None], rows: Sequence[Row]) -> str | None:
    """Draw the figure of the machine measured last, or return None if it has no rows."""
    own = of_last_machine(kind.rows(rows))
    return draw(kind.cells(own)) if own else None
