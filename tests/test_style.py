"""How sentences are built: constructions that readers had to read twice do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = (
    "polygpu",
    "cpu",
    "cuda",
    "docs",
    "benchmarks",
    "tests",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
CODE = {".py", ".hpp", ".cpp", ".cuh", ".cu"}

# What to write instead, and the pattern that finds the construction.
RULES = {
    "is not a power of two, has no transform": re.compile(
        r"\b(?:is|are|was|were|be) no (?!longer|more|less|other|such|reason|need|way|better|faster|slower"
        r"|worse|use\b|\w+ (?:to|in|on|at|for|of|that|which|between|left|free)\b)\w+"
    ),
    "does not have the order": re.compile(r"\b(?:has|have|had) not (?:the|a|an|all|any|one)\b"),
    "n entries": re.compile(r"\bso many \w+"),
    "None if there is none": re.compile(
        r"(?:;|,|\bor|\bfor|\bNone|\bnothing|\b0|\bFalse|\bTrue|\bitself|\braise|\bRaise) where "
        r"(?:there|it|they|a|the|this|that|none|no|one|all|both|each)\b"
    ),
    "about 10 ms": re.compile(r"\bsome \d"),
    "see `zeros`": re.compile(r"\bas of [a-z_`]+(?:\(\))?[.,;:]"),
    "at least n": re.compile(r"\bfrom (?:\w+ )?\d[\w^*]* on\b|\bfrom [a-z_]+ on[,.;]"),
    "that it does not have": re.compile(r"\bthat (?:\w+ )?has not[.,;]"),
    "no docstring, if the base says it all": re.compile(r"^\s*See (?:Backend|Memory|Arithmetic|the base)"),
    "what it had not done": re.compile(r"\bdid what\b|\bwhat it had not\b"),
    "of the ring": re.compile(r"\bof the \w+'s own\b"),
    "Return ... or None if there is none": re.compile(
        r"; (?:None|nothing|itself) (?:where|if there is none)"
    ),
}
# Sentences in which a pattern finds something else.
RIGHT = ("assert ring.leaf_size is None  # modulo 2^64 there is no transform",)


@cache
def prose() -> list[tuple[str, str]]:
    """Return all lines with their places."""
    return [(f"{path.relative_to(ROOT)}:{number}", line) for path in files() for number, line in texts(path)]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines of prose: of a page, of docstrings without their examples, of comments."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        yield from enumerate(source.splitlines(), 1)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = re.sub(r"(?m)^ *>>> (?:.*\n?)(?: *\S.*\n?)*", "\n", ast.get_docstring(node) or "")
                first = node.body[0].lineno
                yield from ((first + i, line) for i, line in enumerate(text.splitlines()))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
    else:
        yield from (
            (i, line.split("//", 1)[1]) for i, line in enumerate(source.splitlines(), 1) if "//" in line
        )


def files() -> list[Path]:
    found = []
    for root in (ROOT / name for name in TEXTS):
        found += (
            [path for path in root.rglob("*") if path.suffix in {".md", *CODE}] if root.is_dir() else [root]
        )
    return sorted(path for path in found if path.is_file() and path != Path(__file__))


@pytest.mark.parametrize("advice", RULES)
def test_no_text_matches_a_style_pattern(advice: str) -> None:
    found = [
        f"{place}: {line.strip()}"
        for place, line in prose()
        if RULES[advice].search(line) and not any(right in line for right in RIGHT)
    ]
    assert not found, f"write as in: {advice!r}\n" + "\n".join(found)


def test_style_patterns_match_marked_sentences() -> None:
    """Each pattern finds a sentence that readers marked, and not its replacement."""
    marked = {
        "is not a power of two, has no transform": (
            "x is no Poly",
            "x is not a Poly",
        ),
        "does not have the order": ("3 has not the order 8", "3 does not have the order 8"),
        "n entries": ("digits of so many entries", "digits of `entries` coefficients"),
        "None if there is none": (
            "a function, None where there is none",
            "a function, or None if there is none",
        ),
        "about 10 ms": ("some 10 ms on a core", "about 10 ms on a core"),
        "see `zeros`": ("batch: as of zeros.", "batch: see `zeros`."),
        "at least n": ("from 64 on", "at least 64"),
        "that it does not have": ("a key that a has not.", "a key that `a` does not have."),
        "no docstring, if the base says it all": ("See Backend.", "Return the sum."),
        "what it had not done": ("f did what it should", "f does what it should"),
        "of the ring": ("of the ring's own", "of the ring"),
        "Return ... or None if there is none": (
            "the plan; None where none is",
            "the plan, or None if there is none",
        ),
    }
    assert marked.keys() == RULES.keys()
    for advice, (before, after) in marked.items():
        assert RULES[advice].search(before) and not RULES[advice].search(after)
