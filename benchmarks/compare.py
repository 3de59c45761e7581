"""Compare two files or folders of results, and list what became slower.

    python -m benchmarks.compare OLD NEW [--least PERCENT] [--all]

Rows are compared if they have the same machine, op, params and library. Of several such rows in one file the
newest counts. A row is slower if its median is at least PERCENT (10) larger than before, and if its first
quartile lies above the old third quartile, so that noise alone does not explain the difference. The exit
status is 1 if a row is slower.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .harness import Row, rows
from .tables import newest, subject


@dataclass(frozen=True)
class Change:
    """A row of both files."""

    old: Row
    new: Row

    @property
    def ratio(self) -> float:
        """The new median divided by the old one."""
        return self.new.median / self.old.median

    @property
    def exceeds_noise(self) -> bool:
        """Whether the middle halves of the samples do not overlap."""
        return self.new.q1 > self.old.q3 or self.new.q3 < self.old.q1

    def __str__(self) -> str:
        params = " ".join(f"{name}={value}" for name, value in self.new.params.items())
        return (
            f"{self.ratio:6.2f}  {self.old.median:12.4g} {self.new.median:12.4g} {self.new.unit}  "
            f"{self.new.op} {params} [{self.new.library}] {self.new.machine['name']}"
        )


def changes(old: Iterable[Row], new: Iterable[Row]) -> list[Change]:
    """Return the rows that both have, if their units are equal, with the largest ratio first."""
    before = {subject(row): row for row in newest(old)}
    pairs = (Change(was, row) for row in newest(new) if (was := before.get(subject(row))) is not None)
    pairs = (change for change in pairs if change.old.unit == change.new.unit)
    return sorted(pairs, key=lambda change: -change.ratio)


def slower(found: Iterable[Change], percent: float) -> list[Change]:
    """Return the changes by at least `percent` that noise does not explain."""
    return [change for change in found if change.ratio >= 1 + percent / 100 and change.exceeds_noise]


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison. Return 1 if something is slower, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Compare two files of results."
    )
    parser.add_argument("old", type=Path, help="a file of rows, such as one of benchmarks/results")
    parser.add_argument("new", type=Path, help="a later file")
    parser.add_argument("--least", type=float, default=10, metavar="PERCENT", help="default: 10")
    parser.add_argument("--all", action="store_true", help="print all rows that both files have")
    options = parser.parse_args(arguments)
    found = changes(rows(options.old), rows(options.new))
    worse = slower(found, options.least)
    shown = found if options.all else worse
    if shown:
        print(f"{'ratio':>6}  {'before':>12} {'after':>12}")
    for change in shown:
        print(change)
    print(f"rows in both files: {len(found)}; slower by at least {options.least:g} %: {len(worse)}")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
