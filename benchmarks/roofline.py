"""The roofline of batched forward transforms, as SVG: butterflies a second over butterflies a byte.

A transform of N points takes (N/2) log2 N butterflies and moves at least 2 words per point, because it reads
and writes each point once. The slope of the figure is the bandwidth of a copy. The plateaus are the rates of
kernels that only multiply (docs/performance.md). A transform whose point is below the slope moves more than 2
words per point, or waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .harness import Row
from .svg import LogAxes, document, text

AXES = LogAxes((0.25, 4.0), (0.4, 6.0))  # butterflies per byte, and 10^12 butterflies per second
CLOCK_GHZ = 1.98  # clock of an H100 SXM or an H200 that has not reached its power limit
# Butterflies per multiprocessor and clock cycle, by the rates of the instructions with which they multiply:
# 64 lanes of 32-bit multiply-add, on which high and wide products count twice, and 64 lanes of FP64.
PER_CLOCK = {"u32": 64 / 4, "f64": 64 / 8, "u64": 64 / 14}
LABELLED = (2**10, 2**12, 2**14, 2**16, 2**20, 2**24)
COLOURS = {"u32": "#1b6ca8", "f64": "#c1542e", "u64": "#4b8b3b"}


def svg(cells: Mapping[tuple[str, int, str], Row]) -> str:
    """Draw the figure of the rows of one machine."""
    rows = [row for (_, _, op), row in sorted(cells.items()) if op == "forward"]
    copy = max(row.figures["copy_gbps"] for row in rows)
    cores = int(rows[0].machine["multiprocessors"])
    parts = [*axes(), *slope(copy)]
    for word, colour in COLOURS.items():
        own = [row for row in rows if row.params["word"] == word]
        roof = PER_CLOCK[word] * cores * CLOCK_GHZ / 1000
        parts += plateau(word, roof, copy, colour)
        parts += points(own, colour)
    return document(AXES.width, AXES.height, parts)


def axes() -> Iterable[str]:
    xs, ys = ({x: f"{x:g}" for x in values} for values in ((0.25, 0.5, 1, 2, 4), (0.5, 1, 2, 5)))
    return AXES.grid(xs, ys, "butterflies a byte", "10^12 butterflies a second")


def slope(copy_gbps: float) -> Iterable[str]:
    start, end = AXES.x[0], min(AXES.x[1], AXES.y[1] * 1000 / copy_gbps)
    yield AXES.line(start, start * copy_gbps / 1000, end, end * copy_gbps / 1000, "#333")
    x, y = AXES.at(end, end * copy_gbps / 1000)
    yield text(x + 4, y + 14, f"copy, {copy_gbps:.0f} GB/s")


def plateau(word: str, roof: float, copy_gbps: float, colour: str) -> Iterable[str]:
    yield AXES.line(roof * 1000 / copy_gbps, roof, AXES.x[1], roof, colour, ' stroke-dasharray="6 4"')
    x, y = AXES.at(AXES.x[1], roof)
    yield text(x + 6, y + 4, f"{word}, multipliers", colour)


def points(rows: Iterable[Row], colour: str) -> Iterable[str]:
    for row in rows:
        n, word_bytes = int(row.params["n"]), int(row.params["word_bytes"])
        butterflies = math.log2(n) / 2  # butterflies per coefficient
        x, y = AXES.at(butterflies / (2 * word_bytes), butterflies * row.work / row.median / 1000)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
        if n in LABELLED:
            yield text(x + 4, y + 15, f"2^{n.bit_length() - 1}", colour)
