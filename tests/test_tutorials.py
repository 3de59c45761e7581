"""The tutorials and the gallery: their code runs in order, and what it asserts holds."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from devices import CARDS, MARKS, simulated

import polygpu as pg

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted((DOCS / "tutorials").glob("*.md"))
PLOTS = sorted((DOCS / "gallery").glob("plot_*.py"))
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None

# A cell of MyST-NB, which the site executes; or a block that it shows, because it needs a card.
BLOCK = re.compile(r"^```(?P<kind>\{code-cell\} ipython3|python)\n(?P<code>.*?)^```$", re.M | re.S)
OPTIONS = re.compile(r"\A(?:---\n.*?^---\n|(?::[^\n]*\n)+)", re.M | re.S)


class Cell(NamedTuple):
    """A cell. Empty lines before its code give it the line numbers that it has in the file."""

    code: str
    executed: bool


def cells_of_page(text: str) -> Iterator[Cell]:
    for block in BLOCK.finditer(text):
        options = OPTIONS.match(block["code"])
        begin = block.start("code") + (options.end() if options else 0)
        lines = text.count("\n", 0, begin)
        yield Cell("\n" * lines + text[begin : block.end("code")], block["kind"] != "python")


def cells_of_script(text: str) -> Iterator[Cell]:
    """The cells of a script of sphinx-gallery, which "# %%" divides."""
    begins = [0, *(match.start() for match in re.finditer(r"^# %%", text, re.M)), len(text)]
    for begin, end in pairwise(begins):
        yield Cell("\n" * text.count("\n", 0, begin) + text[begin:end], True)


def execute(path: Path, cells: list[Cell]) -> None:
    """Every cell in one fresh namespace; those that draw are left out where matplotlib is missing."""
    names: dict[str, Any] = {"__name__": "__main__"}
    if HAS_MATPLOTLIB:
        import matplotlib

        matplotlib.use("Agg")
    for code, _ in cells:
        if HAS_MATPLOTLIB or "matplotlib" not in code:
            exec(compile(code, str(path), "exec"), names)
    if HAS_MATPLOTLIB:
        from matplotlib import pyplot

        pyplot.close("all")


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def test_cells_of_a_page() -> None:
    page = """# A

```{code-cell} ipython3
:tags: [x]

a = 1
```

```python
b = a
```

    c = 3

```{code-cell} ipython3
---
tags: [hide-cell]
---
d = 4
```
"""
    found = list(cells_of_page(page))
    assert [(cell.code.strip(), cell.executed) for cell in found] == [
        ("a = 1", True),
        ("b = a", False),
        ("d = 4", True),
    ]
    for cell in found:  # in the lines of the page
        assert page.startswith(cell.code.strip(), len("".join(page.splitlines(True)[: _line(cell)])))
    script = '"""A."""\nx = 1\n# %%\n# Words.\ny = x\n'
    assert [cell.code.count("\n") for cell in cells_of_script(script)] == [2, 5]


def _line(cell: Cell) -> int:
    """Return the number of its first line, counted from 0."""
    return len(cell.code) - len(cell.code.lstrip("\n"))


@named(PAGES)
def test_pages_have_every_required_part(path: Path) -> None:
    text = path.read_text("utf-8")
    for part in ("**For**", "**You will**", "**Time:**", "## Exercises", "## Where to go on"):
        assert text.count(part) == 1, part
    if path.stem == "pytorch":  # run by tests/test_torch.py
        assert text.count("{admonition} Answer") == 3
        return
    assert "kernelspec:\n" in text.split("---\n")[1]  # else the site does not execute it
    assert text.count("code_prompt_show: Answer") == 3
    assert sum(cell.code.count("assert ") for cell in cells_of_page(text) if cell.executed) >= 6


def test_number_of_pages_and_plots() -> None:
    assert len(PAGES) >= 9 and len(PLOTS) >= 4


@named(PAGES)
def test_code_of_a_page_runs(path: Path) -> None:
    execute(path, [cell for cell in cells_of_page(path.read_text("utf-8")) if cell.executed])


def on_cards(test: Any) -> Any:
    """Runs a test on a simulated card, and on a real one where one answers."""
    return pytest.mark.parametrize("device", [pytest.param(x, marks=MARKS.get(x, ())) for x in CARDS])(test)


@contextmanager
def card(device: str) -> Iterator[None]:
    """A card named "cuda", simulated for the test or real. The current device stays the CPU."""
    with simulated() if device == "simulated" else nullcontext():
        yield


@on_cards
def test_code_of_the_gpu_page_runs_on_a_card(device: str) -> None:
    """Cells that the site shows without executing them are included."""
    path = DOCS / "tutorials" / "gpus.md"
    cells = list(cells_of_page(path.read_text("utf-8")))
    assert not all(cell.executed for cell in cells)
    with card(device):
        execute(path, cells)


@on_cards
@pytest.mark.parametrize("name, sizes", [("ckks", "n = 8192"), ("bfv", "n, t = 8192")], ids=["ckks", "bfv"])
def test_code_of_scheme_pages_runs_on_a_card(name: str, sizes: str, device: str) -> None:
    path = DOCS / "tutorials" / f"{name}.md"
    text = path.read_text("utf-8")
    assert text.count(f"\n{sizes}") == 1
    if device == "simulated":  # which is slow
        text = text.replace(f"\n{sizes}", f"\n{sizes.replace('8192', '512')}")
    with card(device), pg.device("cuda"):
        execute(path, list(cells_of_page(text)))


@named(PLOTS)
def test_code_of_a_plot_runs(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "assert " in text
    execute(path, list(cells_of_script(text)))
