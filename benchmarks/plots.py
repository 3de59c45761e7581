"""Bar charts as SVG, with one bar for each variant. A bar is divided into parts, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from .svg import COLOURS, WIDTH, document, text
from .tables import figure

LEFT, LINE, TOP = 270, 22, 52
LETTER = 6.6  # largest width of a letter


@dataclass(frozen=True)
class Bar:
    label: str
    parts: Mapping[str, float]
    """Lengths by name, all in one unit; the bar is as long as their sum. A heading has no parts."""
    note: str = ""
    """The text behind the bar; where it is empty, the bar's length."""


def bars(title: str, lines: Sequence[Bar], mark: tuple[str, float] | None = None) -> str | None:
    """Return the figure as SVG, or None if no bar has a part.

    mark: a value that a dashed line marks, and the text that explains it.
    """
    if not any(bar.parts for bar in lines):
        return None
    longest = max([fsum(bar.parts.values()) for bar in lines] + [mark[1] if mark else 0]) or 1
    scale = (WIDTH - LEFT - room(lines)) / longest
    names = list(dict.fromkeys(name for bar in lines for name in bar.parts))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    height = TOP + LINE * len(lines) + 16
    body = [text(8, 18, title, style=' font-weight="bold"'), *legend(names, colours)]
    for i, bar in enumerate(lines):
        body += line(bar, TOP + LINE * i, scale, colours)
    if mark:
        x = LEFT + mark[1] * scale
        body.append(
            f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 14}" stroke="#333" '
            'stroke-dasharray="5 4"/>'
        )
        body.append(text(x, height - 3, mark[0], anchor="middle"))
    return document(WIDTH, height, body)


def room(lines: Sequence[Bar]) -> float:
    """Return the width that must stay free for the longest text behind a bar."""
    return 12 + LETTER * max(len(written(bar)) for bar in lines)


def written(bar: Bar) -> str:
    return bar.note or figure(fsum(bar.parts.values())) if bar.parts else ""


def legend(names: Sequence[str], colours: Mapping[str, str]) -> list[str]:
    """Draw the names of the parts beside their colours. The result is empty if there is only one part."""
    found, x = [], 8.0
    for name in names if len(names) > 1 else ():
        found.append(f'<rect x="{x:.1f}" y="28" width="10" height="10" fill="{colours[name]}"/>')
        found.append(text(x + 14, 37, name))
        x += 30 + LETTER * len(name)
    return found


def line(bar: Bar, y: float, scale: float, colours: Mapping[str, str]) -> list[str]:
    if not bar.parts:
        return [text(8, y + 14, bar.label, style=' font-style="italic"')]
    found, x = [text(LEFT - 6, y + 14, bar.label, anchor="end")], float(LEFT)
    for name, value in bar.parts.items():
        width = value * scale
        found.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{LINE - 7}" fill="{colours[name]}"/>'
        )
        x += width
    return [*found, text(x + 5, y + 14, written(bar))]
