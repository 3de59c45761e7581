"""The structure of the project: imports between modules, public names, and promises of the documents."""

import ast
import doctest
import importlib
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import polygpu as pg
from polygpu import _cpu

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "polygpu"

# A module imports from its own floor and from floors below. Names without an underscore are the public face.
FLOORS = [
    {"errors", "_cpu", "_core"},
    {"_backends"},
    {"_ops"},
    {"ring", "poly", "functions", "recording"},
    {"rns", "lattice", "linalg", "fft", "zk", "memory"},
    {"__init__", "__main__", "interop", "torch", "files", "dask", "cli", "testing", "examples"}
    | {"_distributed", "_bench", "__pyinstaller"},
]
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
MODULES = {
    ".".join(p for p in path.relative_to(PACKAGE).with_suffix("").parts if p != "__init__") or "__init__"
    for path in PACKAGE.rglob("*.py")
} | {"_cpu"}


def floor_of(module):
    return FLOOR[module.split(".")[0]]


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
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
                yield inner if inner in MODULES else source or "__init__"


def test_layer_list_names_every_module():
    assert {module.split(".")[0] for module in MODULES} == set(FLOOR)


def test_imports_go_to_lower_layers():
    """Imports for types only are included."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        wrong += [f"{module} imports {x}" for x in imports_of(path) if floor_of(x) > floor_of(module)]
    assert not wrong


def test_modules_have_no_cyclic_imports():
    # _backends/__init__.py loads a backend when one is asked for.
    loaded = {f"_backends.{name}" for name in ("cpu", "cuda", "reference", "wide")}
    imports = {}
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        imports[module] = set(imports_of(path, types=False)) - {module}
        imports[module] -= loaded if module == "_backends" else set()
    while imports:
        ends = {module for module, targets in imports.items() if not targets & set(imports)}
        assert ends, imports
        imports = {module: targets for module, targets in imports.items() if module not in ends}


def test_operations_do_not_use_poly():
    for path in (PACKAGE / "_ops").glob("*.py"):
        tree = ast.parse(path.read_text())
        assert not any(isinstance(n, ast.Name) and n.id == "Poly" for n in ast.walk(tree)), path


def test_no_module_sets_attributes_of_foreign_classes():
    """No module sets attributes of a class that another module defines."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            assert not any(isinstance(x, ast.Attribute) for x in targets), f"{path}:{node.lineno}"


def test_functions_of_many_parameters_have_a_comment():
    """A comment above a function of more than seven parameters states the reason."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                count = len([x for x in arguments if x.arg not in ("self", "cls", "gpu")])
                assert count <= 7 or lines[node.lineno - 2].lstrip().startswith("#"), f"{path}:{node.lineno}"


def test_cuda_backend_is_imported_only_as_a_whole():
    for path in PACKAGE.rglob("*.py"):
        if path.parent != PACKAGE / "_backends" / "cuda":
            assert not any(target.startswith("_backends.cuda.") for target in imports_of(path)), path


def test_pyinstaller_hook_names_all_data_files(monkeypatch):
    patterns = []
    hooks = types.ModuleType("PyInstaller.utils.hooks")
    hooks.collect_data_files = lambda package, includes: patterns.extend(includes)
    for name in ("PyInstaller", "PyInstaller.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    (folder,) = importlib.import_module("polygpu.__pyinstaller").hook_dirs()
    runpy.run_path(os.path.join(folder, "hook-polygpu.py"))
    code = {".py", ".pyc", ".pyi", ".so", ".typed"}
    data = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in code}
    data |= set((ROOT / "cuda").iterdir())  # which a wheel has as polygpu/cuda
    found = {path for pattern in patterns for top in (PACKAGE, ROOT) for path in top.glob(pattern)}
    assert len(data) > 10 and not data - found


def test_reference_backend_imports_only_the_base():
    assert set(imports_of(PACKAGE / "_backends" / "reference.py")) == {"_backends.base"}


def test_only_one_module_uses_the_wide_backend():
    for path in (PACKAGE / "_backends").rglob("*.py"):
        if path.name != "__init__.py":  # this one chooses the backend
            assert not re.search(r"\.wide\b", path.read_text()), path


def test_cupy_is_imported_in_one_module():
    for path in PACKAGE.rglob("*.py"):
        if path != PACKAGE / "_backends" / "cuda" / "device.py":
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
    if path.name == "hook-polygpu.py":
        pytest.skip("runs in PyInstaller")
    if path == PACKAGE / "torch.py":
        pytest.importorskip("torch")
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


def test_readme_installation_takes_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "pip install . && polygpu demo" in text
    assert 'pip install ".[test]" && pytest' in text
    script = (ROOT / ".ci" / "run").read_text()
    assert "pip install --quiet .\npolygpu demo" in script


def test_source_folder_uses_the_installed_core(tmp_path):
    """In a clone Python finds the sources first; they use the core of an installed package."""
    sources, site = tmp_path / "src", tmp_path / "site"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "cuda")
    shutil.copytree(Path(pg.__file__).parent, sources / "polygpu", ignore=ignored)
    (site / "polygpu").mkdir(parents=True)
    core = Path(_cpu.__file__)
    (site / "polygpu" / core.name).symlink_to(core)
    (site / "polygpu-9.dist-info").mkdir()
    metadata = site / "polygpu-9.dist-info" / "METADATA"
    program = (
        "import importlib.metadata as m; found = m.distributions\n"
        f"m.distributions = lambda name: found(name=name, path={[str(site)]})\n"
        "import polygpu; print(polygpu.Ring(4, 17))"
    )
    for version, words in (
        (pg.__version__, "Ring(4, 17)"),
        ("0.0.1", "Run `pip install .` in the folder of the sources."),
    ):
        metadata.write_text(f"Metadata-Version: 2.1\nName: polygpu\nVersion: {version}\n")
        command = [sys.executable, "-c", program]
        ran = subprocess.run(
            command,
            cwd=sources,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(sources)},
        )
        assert words in ran.stdout + ran.stderr, ran.stderr
        assert (ran.returncode == 0) == (version == pg.__version__)


def test_versions_agree():
    declared = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    newest = re.search(r"^## \[?(\d[^\]\s]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (.*)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert declared[1] == pg.__version__ == newest[1] == cited[1]


def test_links_in_documents_exist():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)  # code has brackets too
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
