"""Tables of figures: how figures are written, and which rows a table shows."""

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


UNITS = {"ms": 1e6, "us": 1e3}  # length of each unit in ns


@dataclass(frozen=True)
class Line:
    """A kind of work, which gives a line of a table for each shape that was measured."""

    work: str
    op: str
    unit: str  # "ms" or "us"; any other text, such as "ns a residue", means ns divided by the row's `work`
    must: float | None = None  # the greatest allowed time, in the unit
    beside: str = ""  # op of the row with which this work is compared
    name: str = ""  # name of the compared row in the table
    times: float | None = None  # the greatest allowed ratio to the time of the compared row
    only: Mapping[str, int] = field(default_factory=dict)  # params that the rows of this line must have
    library: str = "polygpu"  # library of the compared row

    def time(self, row: Row) -> float:
        return row.median / UNITS.get(self.unit, row.work)

    def cells(self, rows: Sequence[Row], beside: Sequence[Row]) -> tuple[str, ...]:
        """Return the cells for one shape. They are medians over the passes, each of which has one row."""
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
    if "left" in p:  # the row of a program, whose primes have several bit lengths
        bits = ""
    many = f", {batch} polynomials" if batch > 1 else ""
    left = f"; {p['left']}" if "left" in p else ""
    return f"N = {degree}, {count} limb{'s' * (limbs > 1)}{bits}{many}{left}"


Measured = Mapping[tuple[str, str, tuple[tuple[str, int | str], ...]], Mapping[Any, Row]]


def shape_params(row: Row) -> tuple[tuple[str, int | str], ...]:
    """Return the params that two compared rows must share: all but the pass and the calls in a graph."""
    return tuple(sorted((key, value) for key, value in row.params.items() if key not in ("run", "launch")))


@dataclass(frozen=True)
class LineKind:
    """A table with the given lines in their order, each for all shapes that were measured."""

    title: str
    device: str
    lines: tuple[Line, ...]

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows."""
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


def subject(row: Row) -> tuple[object, ...]:
    """Return what a row measures, and where. A newer row with the same subject replaces an older one."""
    return row.machine["name"], row.op, row.library, tuple(sorted(row.params.items()))


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the newest verified row for each machine, op, library and params.

    Rows must be given in the order of their dates, and are returned in this order.
    """
    kept: dict[object, Row] = {}
    for row in rows:
        if row.verified:
            kept[subject(row)] = row
    return sorted(kept.values(), key=lambda row: row.date)


def of_last_machine(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the machine that was measured last."""
    own = sorted(rows, key=lambda row: row.date)
    return [row for row in own if row.machine["name"] == own[-1].machine["name"]]


def drawn(kind: Any, draw: Callable[[Any], str | None], rows: Sequence[Row]) -> str | None:
    """Return the figure for the machine that was measured last, or None if `rows` has none for it."""
    own = of_last_machine(kind.rows(rows))
    return draw(kind.cells(own)) if own else None
