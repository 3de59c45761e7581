"""Bar charts of studies as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks import plots
from benchmarks.plots import Bar
from benchmarks.svg import LogAxes

SPACE = "{http://www.w3.org/2000/svg}"


def rectangles(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The rectangles of the bars, without the background and the squares of the legend."""
    return [r for r in root.iter(f"{SPACE}rect") if r.get("height") == str(plots.LINE - 7)]


def texts(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SPACE}text")]


def attribute(node: ElementTree.Element, name: str) -> float:
    return float(node.attrib[name])


def test_bar_lengths_are_proportional():
    lines = [Bar("a", {"x": 10, "y": 30}), Bar("b", {"y": 80}), Bar("c", {"x": 0.5, "z": 20}, "a note")]
    root = ElementTree.fromstring(plots.bars("Title", lines))
    bars = rectangles(root)
    scale = (plots.WIDTH - plots.LEFT - plots.room(lines)) / 80
    assert [attribute(r, "width") for r in bars] == pytest.approx(
        [x * scale for x in (10, 30, 80, 0.5, 20)], abs=0.06
    )
    # Parts follow each other; every line starts at the left, below the one before.
    starts = [attribute(r, "x") for r in bars]
    assert starts == pytest.approx(
        [plots.LEFT, plots.LEFT + 10 * scale, plots.LEFT, plots.LEFT, plots.LEFT + 0.5 * scale], abs=0.06
    )
    heights = [attribute(r, "y") for r in bars]
    assert heights[0] == heights[1] < heights[2] < heights[3] == heights[4]
    assert heights[2] - heights[0] == plots.LINE
    # One colour for each name, the same in every line.
    assert bars[1].get("fill") == bars[2].get("fill") != bars[0].get("fill") == bars[3].get("fill")
    assert {"x", "y", "z", "Title", "a", "b", "c", "40.0", "80.0", "a note"} == set(texts(root))
    *_, bottom = (float(x) for x in root.attrib["viewBox"].split())
    assert heights[-1] + plots.LINE < bottom


def test_long_notes_end_inside_the_figure():
    note = "a long note, longer than any figure"
    root = ElementTree.fromstring(plots.bars("Title", [Bar("a", {"x": 9}, note), Bar("b", {"x": 10})]))
    at = {node.text: attribute(node, "x") for node in root.iter(f"{SPACE}text")}
    assert at[note] > plots.LEFT and at[note] + plots.LETTER * len(note) < plots.WIDTH
    assert at["10.0"] > at[note]


def test_plot_without_bars_is_none():
    assert plots.bars("Title", []) is None and plots.bars("Title", [Bar("heading", {})], ("copy", 1)) is None


def test_mark_longer_than_every_bar():
    root = ElementTree.fromstring(plots.bars("Title", [Bar("a", {"x": 50})], ("copy", 100)))
    (bar,) = rectangles(root)
    (mark,) = root.iter(f"{SPACE}line")
    end = plots.WIDTH - plots.room([Bar("a", {"x": 50})])
    assert attribute(mark, "x1") == attribute(mark, "x2") == pytest.approx(end, abs=0.06)
    assert attribute(bar, "width") == pytest.approx((end - plots.LEFT) / 2, abs=0.06)
    assert "copy" in texts(root)
    assert "x" not in texts(root)  # one part needs no legend


def test_names_are_escaped_and_headings_have_no_bar():
    names = "a < b & 'c' \"d\""
    root = ElementTree.fromstring(
        plots.bars(
            names, [Bar(f"heading {names}", {}), Bar(names, {names: 1, "other": 2}, names)], (names, 2)
        )
    )
    assert texts(root).count(names) == 5  # the title, a part in the legend, the label, the note and the mark
    assert f"heading {names}" in texts(root)
    assert len(rectangles(root)) == 2


def test_more_names_than_colours():
    lines = [Bar(str(i), {str(i): 1.0}) for i in range(len(plots.COLOURS) + 1)]
    bars = rectangles(ElementTree.fromstring(plots.bars("Title", lines)))
    assert [bar.get("fill") for bar in bars] == [*plots.COLOURS, plots.COLOURS[0]]


def test_logarithmic_axes():
    axes = LogAxes((1, 100), (1, 1000), width=300, height=360, left=50, bottom=30, top=30, right=50)
    assert axes.at(1, 1) == pytest.approx((50, 330)) and axes.at(100, 1000) == pytest.approx((250, 30))
    assert axes.at(10, 10) == pytest.approx((150, 230))
    body = plots.document(300, 360, axes.grid({1: "one", 10: "ten"}, {100: "hundred"}, "below", "above"))
    root = ElementTree.fromstring(body)
    assert texts(root) == ["one", "ten", "hundred", "below", "above"]
    lines = list(root.iter(f"{SPACE}line"))
    assert [attribute(line, "x1") for line in lines] == pytest.approx([50, 150, 50])
    assert attribute(lines[2], "y1") == attribute(lines[2], "y2") == pytest.approx(130)
