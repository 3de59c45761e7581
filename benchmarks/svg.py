"""Figures as SVG: text, and the axes of a figure in logarithmic scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

WIDTH = 760
COLOURS = ("#1b6ca8", "#c1542e", "#4b8b3b", "#8a5ba6", "#b08a2e", "#5f6b73")


def document(width: int, height: int, body: Iterable[str]) -> str:
    """Return the text of an SVG file: the body on a white ground."""
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n{lines}\n</svg>\n'
    )


def text(x: float, y: float, words: str, colour: str = "#333", anchor: str = "start", style: str = "") -> str:
    """Return an SVG element with `words` at the point (x, y). anchor and style are attributes of SVG."""
    at = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {at} fill="{colour}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


@dataclass(frozen=True)
class LogAxes:
    """Logarithmic axes of a figure: their ends, the figure's size, and the margins around the axes."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = WIDTH
    height: int = 460
    left: int = 70
    bottom: int = 50
    top: int = 20
    right: int = 150

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position in the figure of the point with the coordinates (x, y)."""

        def share(value: float, ends: tuple[float, float]) -> float:
            return math.log(value / ends[0]) / math.log(ends[1] / ends[0])

        return (
            self.left + share(x, self.x) * (self.width - self.left - self.right),
            self.height - self.bottom - share(y, self.y) * (self.height - self.bottom - self.top),
        )

    def line(self, x: float, y: float, x2: float, y2: float, colour: str, style: str = "") -> str:
        """Draw a straight line between two points."""
        (a, b), (c, d) = self.at(x, y), self.at(x2, y2)
        return f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{colour}"{style}/>'

    def grid(self, xs: Mapping[float, str], ys: Mapping[float, str], below: str, above: str) -> Iterable[str]:
        """Draw grid lines at the values xs and ys, with their labels, and the names of both axes."""
        for x, name in xs.items():
            yield self.line(x, self.y[0], x, self.y[1], "#e4e4e4")
            yield text(self.at(x, self.y[0])[0], self.height - self.bottom + 16, name, anchor="middle")
        for y, name in ys.items():
            yield self.line(self.x[0], y, self.x[1], y, "#e4e4e4")
            yield text(self.left - 6, self.at(self.x[0], y)[1] + 4, name, anchor="end")
        middle = (self.left + self.width - self.right) / 2
        yield text(middle, self.height - 12, below, anchor="middle")
        yield text(self.left, self.top - 6, above)
