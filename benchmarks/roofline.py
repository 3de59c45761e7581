"""The roofline of batched forward transforms, as SVG: butterflies a second over butterflies a byte.

A transform of N points is (N/2) log2 N butterflies and moves 2 words a point at least: one reading, one
writing. The slope is the copy's bandwidth, the plateaus are what the multipliers could do with nothing
else to do (docs/performance.md). Points below the slope move more than that, or wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .harness import Row
from .plots import document, text

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 460, 70, 50, 20, 150
X, Y = (0.25, 4.0), (0.4, 6.0)  # butterflies a byte, 10^12 butterflies a second
CLOCK_GHZ = 1.98  # of an H100 SXM, and an H200, that has not reached its power limit
# Butterflies of a multiprocessor in a clock, by the rates of the instructions that one multiplies with:
# 64 lanes of 32-bit multiply-add, of which high and wide products take two; 64 lanes of FP64.
PER_CLOCK = {"u32": 64 / 4, "f64": 64 / 8, "u64": 64 / 14}
LABELLED = (2**10, 2**12, 2**14, 2**16, 2**20, 2**24)
COLOURS = {"u32": "#1b6ca8", "f64": "#c1542e", "u64": "#4b8b3b"}


def svg(cells: Mapping[tuple[str, int, str], Row]) -> str:
    """The figure of the rows of one machine."""
    rows = [row for (_, _, op), row in sorted(cells.items()) if op == "forward"]
    copy = max(row.figures["copy_gbps"] for row in rows)
    cores = int(rows[0].machine["multiprocessors"])
    parts = [*axes(), *slope(copy)]
    for word, colour in COLOURS.items():
        own = [row for row in rows if row.params["word"] == word]
        roof = PER_CLOCK[word] * cores * CLOCK_GHZ / 1000
        parts += plateau(word, roof, copy, colour)
        parts += points(own, colour)
    return document(WIDTH, HEIGHT, parts)


def at(x: float, y: float) -> tuple[float, float]:
    """Where a value lies in the figure, whose axes are logarithmic."""

    def share(value: float, ends: tuple[float, float]) -> float:
        return math.log(value / ends[0]) / math.log(ends[1] / ends[0])

    return (
        LEFT + share(x, X) * (WIDTH - LEFT - RIGHT),
        HEIGHT - BOTTOM - share(y, Y) * (HEIGHT - BOTTOM - TOP),
    )


def line(x: float, y: float, x2: float, y2: float, colour: str, style: str = "") -> str:
    (a, b), (c, d) = at(x, y), at(x2, y2)
    return f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{colour}"{style}/>'


def axes() -> Iterable[str]:
    for x in (0.25, 0.5, 1, 2, 4):
        yield line(x, Y[0], x, Y[1], "#e4e4e4")
        yield text(at(x, Y[0])[0], HEIGHT - BOTTOM + 16, f"{x:g}", anchor="middle")
    for y in (0.5, 1, 2, 5):
        yield line(X[0], y, X[1], y, "#e4e4e4")
        yield text(LEFT - 6, at(X[0], y)[1] + 4, f"{y:g}", anchor="end")
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "butterflies a byte", anchor="middle")
    yield text(LEFT, TOP - 6, "10^12 butterflies a second")


def slope(copy_gbps: float) -> Iterable[str]:
    end = min(X[1], Y[1] * 1000 / copy_gbps)
    yield line(X[0], X[0] * copy_gbps / 1000, end, end * copy_gbps / 1000, "#333")
    x, y = at(end, end * copy_gbps / 1000)
    yield text(x + 4, y + 14, f"copy, {copy_gbps:.0f} GB/s")


def plateau(word: str, roof: float, copy_gbps: float, colour: str) -> Iterable[str]:
    yield line(roof * 1000 / copy_gbps, roof, X[1], roof, colour, ' stroke-dasharray="6 4"')
    yield text(at(X[1], roof)[0] + 6, at(X[1], roof)[1] + 4, f"{word}, multipliers", colour)


def points(rows: Iterable[Row], colour: str) -> Iterable[str]:
    for row in rows:
        n, word_bytes = int(row.params["n"]), int(row.params["word_bytes"])
        butterflies = math.log2(n) / 2  # of a coefficient
        x, y = at(butterflies / (2 * word_bytes), butterflies * row.work / row.median / 1000)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
        if n in LABELLED:
            yield text(x + 4, y + 15, f"2^{n.bit_length() - 1}", colour)
