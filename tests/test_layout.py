"""The shape of the project: who imports whom, what is public, what the documents promise."""

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import polygpu as pg

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "polygpu"

# A module imports only from layers below its own; modules of one layer do not import each other.
LAYERS = [
    {"errors", "_cpu", "exact", "plans", "ops", "exact.root_cache", "backends.reference"},
    {"checks", "memory", "reporting"},
    {"exact.crt", "exact.primes"},
    {"exact.roots"},
    {"plans.basis", "plans.cache", "plans.fft", "plans.permutation"},
    {"plans.crt", "plans.ntt", "plans.sampling"},
    {"plans.four_step", "plans.product", "plans.rns", "backends.cuda.words"},
    {"plans.lattice"},
    {"backends", "backends.cuda.tiles"},
    {"backends.cipher", "backends.wide", "backends.cuda.matmul_tiles", "backends.cuda.graph"},
    {"backends.cpu", "backends.cuda.device"},
    {"backends.cuda.launch"},
    {f"backends.cuda.{name}" for name in ("pointwise", "integers", "transform", "fft", "sampling")},
    {"backends.cuda.matmul", "backends.cuda.multiply", "backends.cuda.rns"},
    {"backends.cuda.lattice"},
    {"backends.cuda"},
    {"arrays"},
    {"ops.batch", "ops.calls", "ops.integers", "ops.sampling", "fft"},
    {"ops.verify"},
    {"ops.pointwise", "ops.show", "ops.transform", "linalg"},
    {"ops.four_step", "ops.multiply"},
    {"ops.einsum", "ops.explain", "ops.inverse", "ops.permutation", "ops.points", "ops.rns"},
    {"ops.gadget", "ops.lattice"},
    {"poly", "presets"},
    {"ring", "recording"},
    {"files", "functions", "interop", "lattice", "rns"},
    {"zk", "dask", "distributed.group"},
    {"distributed.spread"},
    {"distributed.divided"},
    {"distributed.devices"},
    {"distributed"},
    {"__init__"},
    {"testing", "examples", "timing", "svg"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] == "examples":
        return "examples"
    return ".".join(p for p in parts if p != "__init__") or "__init__"


def for_types_only(tree):
    """The nodes under `if TYPE_CHECKING:`."""
    guarded = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    return {node for guard in guarded for node in ast.walk(guard)}


def imports_of(path, types=True):
    """Modules of polygpu that a file imports, wherever in the file; types: also those for types only."""
    module = path.relative_to(PACKAGE).with_suffix("").parts
    package, tree = module[:-1], ast.parse(path.read_text())
    left_out = set() if types else for_types_only(tree)
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "polygpu":
                    yield name.name.removeprefix("polygpu").lstrip(".") or "__init__"
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - (node.level - 1)]
                source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            elif (node.module or "").split(".")[0] == "polygpu":
                source = node.module.removeprefix("polygpu").lstrip(".")
            else:
                continue
            for name in node.names:
                inner = f"{source}.{name.name}".strip(".")
                target = inner if inner in LEVEL else source or "__init__"
                yield "examples" if target.startswith("examples") else target


def test_imports_point_one_way():
    # backends/__init__.py loads a backend when one is asked for.
    allowed = {("backends", f"backends.{name}") for name in ("cpu", "cuda", "reference", "wide")}
    allowed |= {("examples", "examples")}
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        for target in imports_of(path, types=False):
            if (module, target) not in allowed and LEVEL[target] >= LEVEL[module]:
                wrong.append(f"{module} imports {target}")
    assert not wrong


def test_only_the_ring_is_named_by_layers_below_it():
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        above = {x for x in imports_of(path) if LEVEL[x] >= LEVEL[module]}
        above -= set(imports_of(path, types=False))
        assert above <= {"ring"}, path
        assert not above or module == "poly" or module.startswith("ops."), path


def test_operations_know_no_poly():
    for path in (PACKAGE / "ops").glob("*.py"):
        tree = ast.parse(path.read_text())
        assert not {"poly", "functions"} & set(imports_of(path)), path
        assert not any(isinstance(n, ast.Name) and n.id == "Poly" for n in ast.walk(tree)), path


def test_no_class_is_completed_from_outside():
    """No module sets attributes of a class that another module defines."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            assert not any(isinstance(x, ast.Attribute) for x in targets), f"{path}:{node.lineno}"


def test_others_import_the_cuda_backend_whole():
    for path in PACKAGE.rglob("*.py"):
        if path.parent != PACKAGE / "backends" / "cuda":
            assert not any(target.startswith("backends.cuda.") for target in imports_of(path)), path


def test_reference_shares_nothing():
    assert list(imports_of(PACKAGE / "backends" / "reference.py")) == []


def test_one_backend_knows_wide_moduli():
    for path in (PACKAGE / "backends").rglob("*.py"):
        if path.name != "__init__.py":  # this one chooses the backend
            assert not re.search(r"\.wide\b", path.read_text()), path


def test_cupy_is_imported_nowhere_outside_its_backend():
    for path in PACKAGE.rglob("*.py"):
        if path != PACKAGE / "backends" / "cuda" / "device.py":
            assert not re.search(r"^\s*(import|from) cupy", path.read_text(), re.MULTILINE), path


def test_all_is_complete_and_sorted():
    public = {name for name in vars(pg) if not name.startswith("_")}
    modules = {m.name for m in pkgutil.iter_modules(pg.__path__)}
    assert set(pg.__all__) == public - modules
    assert list(pg.__all__) == sorted(pg.__all__)
    assert all(getattr(pg, name).__doc__ for name in pg.__all__)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_docstring_examples_run(path):
    if path.name == "__main__.py":
        pytest.skip("runs the command line")
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(p for p in parts if p != "__init__"))
    assert doctest.testmod(module).failed == 0


def test_every_public_function_has_a_docstring_with_an_example():
    for name in (
        "Ring",
        "Poly",
        "ntt_primes",
        "is_prime",
        "device",
        "debug",
        "verify",
        "fma",
        "matmul",
        "dot",
        "einsum",
    ):
        assert ">>>" in getattr(pg, name).__doc__, name
    for module in (pg.interop, pg.linalg, pg.zk):
        for name in module.__all__:
            if callable(getattr(module, name)):
                assert ">>>" in getattr(module, name).__doc__, name


def test_readme_code_runs():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    space = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), space)


def test_readme_set_up_is_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "pip install . && polygpu demo" in text
    assert 'pip install ".[test]" && pytest' in text
    script = (ROOT / ".ci" / "run").read_text()
    assert "pip install --quiet .\npolygpu demo" in script


def test_versions_agree():
    declared = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    newest = re.search(r"^## \[?(\d[^\]\s]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert declared[1] == pg.__version__ == newest[1]


def test_links_in_documents_exist():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)  # code has brackets too
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
