"""Write the measured tables into README.md and docs/performance.md.

    python -m benchmarks.report [--check] [--results DIR] [FILE ...]

A table stands between `<!-- table: NAME -->` and `<!-- end: NAME -->`. Which rows count: of all
verified rows of one machine, op, params and library, the newest, measured on a clean tree or not.
The line under a table names every date and commit its rows come from, and says where a tree had
uncommitted changes. With `--check` nothing is written, and a table that differs is an error.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .harness import RESULTS, ROOT, Row
from .harness import rows as read_rows

PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        rule = ("---:",) * len(self.header)
        lines = (f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.body))
        return "\n".join((f"**{self.title}**", "", *lines))


@dataclass(frozen=True)
class Kind:
    """One table for each prime size: a line for each N, a column for each library and op."""

    title: str
    device: str
    ops: Mapping[str, str]
    """The ops of its rows, and what the heading of a column says of them."""
    cell: Callable[[Row, Row | None], str]
    """The text for a row, beside python-flint's row for the same op."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Those of `rows` that the tables show: one limb, no batch; of two moduli the newer row."""
        shown: dict[object, Row] = {}
        for row in rows:
            p, machine = row.params, row.machine
            if row.op in self.ops and machine["kind"] == self.device and p["limbs"] == p["batch"] == 1:
                shown[machine["name"], row.op, row.library, p["n"], p["bits"]] = row
        return list(shown.values())

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """The tables of the rows of one machine."""
        primes: dict[int, dict[tuple[int, str, str], Row]] = {}
        for row in self.rows(rows):
            cells = primes.setdefault(int(row.params["bits"]), {})
            cells[int(row.params["n"]), row.op, row.library] = row
        for bits, cells in sorted(primes.items()):
            columns = list(dict.fromkeys((op, library) for _, op, library in cells))
            columns.sort(key=lambda column: column[1] != "polygpu")
            yield Table(
                f"{bits}-bit prime: {self.title}",
                ("N", *(library + self.ops[op] for op, library in columns)),
                tuple(
                    (str(n), *(self.text(cells, n, op, library) for op, library in columns))
                    for n in sorted({n for n, _, _ in cells})
                ),
            )

    def text(self, cells: Mapping[tuple[int, str, str], Row], n: int, op: str, library: str) -> str:
        if (n, op, library) not in cells:
            return ""
        return self.cell(cells[n, op, library], cells.get((n, op, "python-flint")))


def times_flint(row: Row, flint: Row | None) -> str:
    return us(row) + (f" ({figure(flint.median / row.median)}x)" if flint else "")


def per_butterfly(row: Row, _: Row | None) -> str:
    n = int(row.params["n"])
    return f"{us(row)} ({figure(row.median / (n / 2 * math.log2(n)))})"


KINDS = {
    "cpu-product": Kind(
        title="product, us (times as fast as python-flint)",
        device="cpu",
        ops={"product": ""},
        cell=times_flint,
    ),
    "cpu-ntt": Kind(
        title="NTT, us (ns for each of N/2 log2 N butterflies)",
        device="cpu",
        ops={"ntt": ", forward", "intt": ", inverse"},
        cell=per_butterfly,
    ),
}


def newest(rows: Iterable[Row]) -> list[Row]:
    """The rows that count, of rows in the order of their dates; in that order."""
    kept: dict[object, Row] = {}
    for row in rows:
        if row.verified:
            kept[row.machine["name"], row.op, row.library, tuple(sorted(row.params.items()))] = row
    return sorted(kept.values(), key=lambda row: row.date)


def figure(x: float) -> str:
    """Three significant digits, more where the integer part is longer."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(x)))}f}"


def us(row: Row) -> str:
    return figure(row.median / 1000)


def markdown(kind: Kind, rows: Iterable[Row]) -> str:
    """What stands between the markers of a table: a part for each machine."""
    machines: dict[str, list[Row]] = {}
    for row in kind.rows(rows):
        machines.setdefault(str(row.machine["name"]), []).append(row)
    parts = []
    for _, own in sorted(machines.items()):
        parts += [*(table.markdown() for table in kind.tables(own)), provenance(own)]
    return "\n\n".join(parts or ["Nothing has been measured yet."])


def provenance(rows: Sequence[Row]) -> str:
    """Where and when the rows of one machine were measured, and with what."""
    clocks = sorted(float(row.machine["clock_ghz"]) for row in rows)
    commits = (
        f"{row.date[:10]} at commit {row.commit[:10]}" + (" with uncommitted changes" if row.dirty else "")
        for row in rows
    )
    versions = (f"{name} {number}" for row in rows for name, number in row.versions.items())
    spread = max((row.q3 - row.q1) / row.median for row in rows)
    return (
        f"{rows[0].machine['name']}, {unique(row.machine['cores'] for row in rows)} core(s), "
        f"{figure(clocks[0])} to {figure(clocks[-1])} GHz "
        f"({unique(row.machine['clock_source'] for row in rows)}), "
        f"{unique(row.machine['isa'] for row in rows)}; {unique(commits)}; {unique(versions)}. "
        f"Medians of {min(row.samples for row in rows)} or more samples, whose quartiles are "
        f"{spread:.0%} of the median apart at worst. Every result was verified."
    )


def unique(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def rewrite(page: str, rows: Sequence[Row]) -> str:
    """`page` with every marked table written anew."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in KINDS:
            raise ValueError(f"table {name!r}: unknown, must be one of {', '.join(KINDS)}")
        if match["end"] is None:
            raise ValueError(f"table {name!r}: the page has no end marker for it")
        return f"<!-- table: {name} -->\n\n{markdown(KINDS[name], rows)}\n\n<!-- end: {name} -->"

    marked = r"<!-- table: (?P<name>\S+) -->(.*?(?P<end><!-- end: (?P=name) -->))?"
    return re.sub(marked, table, page, flags=re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a table differs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("pages", nargs="*", type=Path, metavar="FILE", default=list(PAGES))
    options = parser.parse_args(arguments)

    rows = newest(read_rows(options.results))
    status = 0
    for path in options.pages:
        page = path.read_text(encoding="utf-8")
        written = rewrite(page, rows)
        if written == page:
            continue
        if options.check:
            print(f"{path}: a table differs from the results; run python -m benchmarks.report")
            status = 1
        else:
            path.write_text(written, encoding="utf-8")
            print(f"{path}: written")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
