"""A table of figures, and how figures are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        rule = ("---:",) * len(self.header)
        lines = (f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.body))
        return "\n".join((f"**{self.title}**", "", *lines))


def figure(x: float) -> str:
    """Three significant digits, more where the integer part is longer."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(x)))}f}"


def power(n: int) -> str:
    return f"2^{n.bit_length() - 1}"


def unique(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))
