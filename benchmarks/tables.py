"""A table of figures, and how figures are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True)
class Goal:
    """What a figure is to reach, beside the best peer's; less is better unless `more` is."""

    peer: float | None
    peer_name: str
    must: float | None = None
    moonshot: float | None = None
    peer_worst: float | None = None
    """The peer's figure at its worst place, where there are several."""
    more: bool = False

    def best(self, values: Mapping[str, float]) -> str:
        """The place of the best of several values."""
        return (max if self.more else min)(values, key=values.__getitem__)

    def worst(self, values: Mapping[str, float]) -> str:
        return (min if self.more else max)(values, key=values.__getitem__)

    def verdict(self, value: float) -> str:
        """What the value reaches: moonshot, must or neither."""
        for name, target in (("moonshot", self.moonshot), ("must", self.must)):
            if target is not None and (value >= target if self.more else value <= target):
                return name
        return "missed"

    def peer_text(self) -> str:
        if self.peer is None:
            return ""
        to = f" to {figure(self.peer_worst)}" if self.peer_worst else ""
        return f"{figure(self.peer)}{to} ({self.peer_name})"


def figure(x: float) -> str:
    """Three significant digits, more where the integer part is longer."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}" if x else "0"


def power(n: int) -> str:
    return f"2^{n.bit_length() - 1}"


def unique(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))
