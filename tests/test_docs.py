"""The reference names every public name, docstrings are complete, and the code in pages runs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from test_tutorials import cells_of_page, execute

import polygpu as pg

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "index.md",
    DOCS / "questions.md",
    DOCS / "which-verb.md",
    *sorted((DOCS / "coming-from").glob("*.md")),
]

# Modules whose names are public, beside polygpu's own.
MODULES = (
    "_distributed",
    "dask",
    "errors",
    "fft",
    "interop",
    "lattice",
    "linalg",
    "memory",
    "rns",
    "testing",
    "torch",
    "zk",
)
if importlib.util.find_spec("torch") is None:  # documented with a stand-in for PyTorch
    with patch.dict(sys.modules, {"torch": MagicMock(), "torch.library": MagicMock()}):
        STAND_IN = {"torch": importlib.import_module("polygpu.torch")}
else:
    STAND_IN = {}

# Public by their spelling, and of no use outside the library.
INTERNAL = {
    "polygpu._distributed.devices": "polygpu.devices",
    "polygpu._distributed.Devices.each": "of Group, which runs the parts of operators",
    "polygpu._distributed.Devices.empty": "of Group",
    "polygpu._distributed.Devices.on": "of Group",
    "polygpu._distributed.Devices.place": "of Group",
    "polygpu.dask.BlockedPoly.visualize": "of Dask",
}

# Docstrings that leave parts out, and why. A part that is there must not stand here.
STRATEGY = "a strategy of Hypothesis: it draws later, for as long as what it draws takes"
EXEMPT = {
    f"polygpu.testing.{name}": {"Cost": STRATEGY}
    for name in (
        "chains",
        "coefficients",
        "degrees",
        "edge_coefficients",
        "friendly_moduli",
        "kinds",
        "moduli",
        "polys",
        "rings",
    )
}


# ---- what is public


def public_names() -> Iterator[tuple[str, Any]]:
    """Qualified names and objects: of polygpu, of its public modules, and the members of their classes."""
    for name in pg.__all__:
        if getattr(pg, name) is not vars(pg.errors).get(name):
            yield f"polygpu.{name}", getattr(pg, name)
    for short in MODULES:
        module = STAND_IN.get(short) or importlib.import_module(f"polygpu.{short}")
        own = [name for name, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
            yield f"{module.__name__}.{name}", getattr(module, name)


METHODS = (FunctionType, classmethod, staticmethod, property, cached_property)


def everything() -> dict[str, Any]:
    """Public names, and the methods and properties of public classes."""
    found = dict(public_names())
    for name, x in list(found.items()):
        if inspect.isclass(x) and not issubclass(x, Exception):
            members = {member: inspect.getattr_static(x, member) for member in dir(x) if member[0] != "_"}
            found |= {f"{name}.{member}": y for member, y in members.items() if isinstance(y, METHODS)}
    return found


def documented() -> dict[str, Any]:
    return {name: x for name, x in everything().items() if name not in INTERNAL}


def test_documented_modules_match_the_exports():
    tree = ast.parse((ROOT / "polygpu" / "__init__.py").read_text())
    exported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is None
        for alias in node.names
        if alias.asname == alias.name
    }
    assert exported <= set(MODULES)


# ---- signatures

# Made by other calls, not by their own.
RETURNED = {"Poly", "Devices", "Divided", "Spread", "dask.BlockedPoly", "lattice.Hoisted", "lattice.Prepared"}
KEYWORDS = set(
    re.findall(
        r"\w+",
        """
    add baby bits centered chunks conversion copy count divide divisor domain levels limbs_per_digit order out
    plaintext product q rescale rounding scale seed special start weight
""",
    )
)


def signatures() -> dict[str, inspect.Signature]:
    """How each public function, method and class is called: without `self` and types."""
    found = {}
    for name, x in documented().items():
        short = name.removeprefix("polygpu.").removeprefix("_distributed.")
        f = x.__func__ if isinstance(x, (classmethod, staticmethod)) else x
        is_error = inspect.isclass(f) and issubclass(f, Exception)
        if short in RETURNED or is_error or not (inspect.isclass(f) or isinstance(f, FunctionType)):
            continue
        parameters = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in inspect.signature(f).parameters.values()
            if parameter.name not in ("self", "cls")
        ]
        found[short] = inspect.Signature(parameters)
    return found


def test_signatures_page_is_complete() -> None:
    page = (DOCS / "reference" / "signatures.md").read_text()
    listed = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).split("\n")
    assert sorted(filter(None, listed)) == sorted(f"{name}{x}" for name, x in signatures().items())


def test_signatures_have_keyword_options_and_out_last() -> None:
    about = {  # what these verbs are about
        "Divided.reorder": "order",
        "dask.BlockedPoly.rechunk": "chunks",
        "lattice.expand": "count",
        "lattice.trace": "count",
    }
    for name, signature in signatures().items():
        parameters = list(signature.parameters.values())
        for parameter in parameters:
            is_option = parameter.name in KEYWORDS and parameter.name != about.get(name)
            if is_option and not name.startswith("testing."):
                assert parameter.kind == inspect.Parameter.KEYWORD_ONLY, f"{name}: {parameter.name}"
        assert "out" not in signature.parameters or parameters[-1].name == "out", name


# ---- the reference

DIRECTIVE = re.compile(r"^\.\. (auto\w+|currentmodule):: ([\w.]+)(\(\))?\n((?:   :.*\n)*)", re.MULTILINE)


def directives() -> Iterator[tuple[str, str, str]]:
    """For each entry of autodoc: its name, "()" where it shows no arguments, and its options."""
    for path in sorted((DOCS / "reference").glob("*.md")):
        module = ""
        for directive, target, arguments, options in DIRECTIVE.findall(path.read_text()):
            if directive in ("currentmodule", "automodule"):
                module = target
            else:
                name = target if target.startswith("polygpu.") else f"{module}.{target}"
                yield name, arguments, options


def reference_names() -> Iterator[str]:
    for name, _, options in directives():
        yield name
        if options:
            members = re.search(r":members:(.*)", options)
            if members and not members[1].strip():
                yield from (known for known in documented() if known.rpartition(".")[0] == name)
            elif members:
                yield from (f"{name}.{member.strip()}" for member in members[1].split(","))


# Classes that are shown without arguments: users get their objects from functions.
MADE_BY_FUNCTIONS = {name for name, arguments, _ in directives() if arguments}


def test_every_public_name_is_in_the_reference():
    assert not set(documented()) - set(reference_names())


def test_reference_names_are_unique_and_exist():
    names = Counter(reference_names())
    assert not [name for name, count in names.items() if count > 1]
    for name in names:
        module, x = "polygpu", pg
        for part in name.split(".")[1:]:
            if inspect.ismodule(x) and not hasattr(x, part):
                importlib.import_module(f"{module}.{part}")
            x, module = getattr(x, part), f"{module}.{part}"


# ---- docstrings

IMPERATIVE = "Check|Divide|Index|Join|Make|Move|Raise|Read|Record|Show|Write"


def parameters_of(x: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(x).parameters.values()
    return [p.name for p in parameters if p.name not in ("self", "cls") and p.kind is not p.VAR_KEYWORD]


def returns_nothing(x: Callable[..., Any]) -> bool:
    """Whether a docstring needs no result. Functions for a `with` are generators, and need none either."""
    is_context = inspect.isgeneratorfunction(inspect.unwrap(x))
    return is_context or getattr(x, "__annotations__", {}).get("return") in (None, "None", type(None))


def refuses(x: Callable[..., Any]) -> bool:
    """Whether it may raise: by what it is given, or by a statement of its own."""
    if parameters_of(x):
        return True
    return any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(dedent(inspect.getsource(x)))))


def lacking(name: str, x: Callable[..., Any]) -> Iterator[str]:
    """The parts that a docstring lacks."""
    text, is_class = inspect.getdoc(x) or "", inspect.isclass(x)
    if name not in MADE_BY_FUNCTIONS:
        for parameter in parameters_of(x):
            if not re.search(rf"(?m)^\W*{parameter}(, \w+)*:|`{parameter}`", text):
                yield f"Args: {parameter}"
        if refuses(x) and "Raises" not in text:
            yield "Raises"
    if not is_class:
        says_what = "Returns" in text or not re.match(rf"({IMPERATIVE})\b", text)
        if not (returns_nothing(x) or says_what):
            yield "Returns"
        if "Cost" not in text:
            yield "Cost"
    if ">>>" not in text:
        yield "example"


def callables() -> dict[str, Callable[..., Any]]:
    """Return public functions and methods, and public classes other than exceptions."""
    found = {}
    for name, x in documented().items():
        x = x.__func__ if isinstance(x, (classmethod, staticmethod)) else x
        if callable(x) and not (inspect.isclass(x) and issubclass(x, Exception)):
            found[name] = x
    return found


@pytest.mark.parametrize("name", callables())
def test_docstring_is_complete(name):
    assert set(lacking(name, callables()[name])) == set(EXEMPT.get(name, ()))


def test_exempt_names_are_public():
    assert set(EXEMPT) <= set(callables()) and set(INTERNAL) <= set(everything())


def test_every_public_name_has_a_docstring():
    assert not [name for name, x in documented().items() if not inspect.getdoc(x)]


# ---- pages


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_code_in_pages_runs(path):
    cells = [cell for cell in cells_of_page(path.read_text()) if cell.executed]
    execute(path, cells)


def test_every_question_has_an_answer_a_link_and_code():
    text = (DOCS / "questions.md").read_text()
    questions = re.split(r"(?m)^### ", text)[1:]
    assert len(questions) >= 20
    for question in questions:
        title, _, answer = question.partition("\n")
        prose, _, code = answer.partition("```")
        assert title.endswith("?") and code, title
        assert re.search(r"\]\(|\{py:", prose), title


def test_the_site_lists_every_page():
    """Each page is in a table of contents. Sphinx would also warn otherwise."""
    listed = set()
    for path in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.splitlines():
                target = re.sub(r".*<(.*)>", r"\1", line.strip())
                if target and not target.startswith(":"):
                    listed.add((path.parent / target).resolve())
    pages = {path.with_suffix("").resolve() for path in DOCS.rglob("*.md")} - {(DOCS / "index").resolve()}
    assert pages <= listed
    assert all(Path(f"{x}.md").exists() for x in listed if x.parts[-2] != "auto_gallery")
