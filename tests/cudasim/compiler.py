"""From CUDA C++ to a shared object that runs under the simulator's runtime; cached on disk."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .translate import TranslationError, translate

_HERE = Path(__file__).resolve().parent
_INCLUDE = _HERE / "include"
_RUNTIME = _HERE / "runtime"
_one_runtime = threading.Lock()  # so that two threads which compile at once load the same one

# -ffp-contract=off: an explicit __fma_rn is a fused operation and nothing else is; error-free sums need that.
# -fno-strict-aliasing: CUDA code reads words through vector pointers, and nvcc allows it.
_COMMON = ["-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-gnu-unique"]
# -nodefaultlibs: kernels call only these two and what is in the process already. Linking takes half the time.
_LIBRARIES = ["-lm", "-lgcc"]
_BUILD = {
    "": ["-O1", "-nodefaultlibs"],
    "thread": ["-O1", "-g1", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1"],
    "address": [
        "-O1",
        "-g1",
        "-fsanitize=address,alignment",
        "-fsanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
}
_RUNTIME_BUILD = {
    "": ["-O2"],
    "thread": ["-O2", "-g1", "-DCUDASIM_THREAD_SANITIZER"],
    "address": ["-O2", "-g1", "-DCUDASIM_ADDRESS_SANITIZER"],
}


class CompileError(Exception):
    """The kernel's source does not compile; the text is the compiler's."""


def sanitizer() -> str:
    """Which checks kernels of this process are built with: "", "thread" or "address" (see check.py)."""
    name = os.environ.get("CUDASIM_SANITIZER", "")
    if name not in _BUILD:
        raise ValueError(f"CUDASIM_SANITIZER is {name!r}, must be one of {', '.join(map(repr, _BUILD))}")
    return name


def cache_folder() -> Path:
    folder = os.environ.get("CUDASIM_CACHE_DIR") or os.path.join(
        tempfile.gettempdir(), f"cudasim-{os.getuid()}"
    )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return path


@functools.cache
def _machine_flags() -> list[str]:
    """Hardware FMA where there is one: without it the same results come from a slow library call."""
    if platform.machine() != "x86_64":
        return []
    try:
        flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return []
    return [f"-m{name}" for name in ("fma", "avx2", "bmi2") if name in flags]


@functools.cache
def _compiler() -> tuple[str, str]:
    """The C++ compiler and its version."""
    command = os.environ.get("CUDASIM_CXX", "g++")
    try:
        version = _run([command, "--version"])
    except OSError as error:
        raise CompileError(f"the CUDA simulator needs g++ (or CUDASIM_CXX): {error}") from error
    return command, version.split("\n", 1)[0]


def find_library(name: str) -> str:
    """Return the path of a library of the compiler, or its bare name if the compiler does not have it."""
    return _run([_compiler()[0], f"-print-file-name={name}"]).strip()


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@functools.cache
def _own_sources(folder: Path) -> str:
    return _digest([(p.name, p.read_text()) for p in sorted(folder.rglob("*")) if p.is_file()])


def _run(command: Sequence[str], text: str | None = None) -> str:
    # Under check.py this process has a sanitizer preloaded; the compiler is quicker without it.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, input=text)
    if result.returncode:
        raise CompileError(result.stderr)
    return result.stdout


@contextmanager
def _into_cache(target: Path) -> Iterator[Path]:
    """A file to write, which is moved into its place when whole: other processes may want the same one."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / "built"
        yield built
        os.replace(built, target)


@functools.cache
def runtime() -> ctypes.CDLL:
    """The simulator's runtime, built on first use. Global symbols: kernels link against it when they load."""
    compiler, version = _compiler()
    flags = ["-std=c++17", *_COMMON, *_RUNTIME_BUILD[sanitizer()]]
    if os.environ.get("CUDASIM_UCONTEXT"):
        flags.append("-DCUDASIM_UCONTEXT")
    key = _digest(flags, version, _own_sources(_INCLUDE), _own_sources(_RUNTIME))
    target = cache_folder() / f"runtime-{key}.so"
    with _one_runtime:
        if not target.exists():
            with _into_cache(target) as built, ThreadPoolExecutor(os.cpu_count()) as workers:
                sources = sorted(_RUNTIME.glob("*.cpp"))
                objects = [str(built.with_name(f"{source.stem}.o")) for source in sources]
                commands = (
                    [compiler, *flags, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)
                )
                list(workers.map(_run, commands))
                _run([compiler, "-shared", "-pthread", *objects, "-o", str(built)])
    return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


def _read_options(options: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The NVRTC options that mean something here, as options of g++, and the include folders among them."""
    standard = 17
    defines: list[str] = []
    folders: list[Path] = []
    rest = list(options)
    while rest:
        option = rest.pop(0)
        if match := re.fullmatch(r"--?std=(?:c|gnu)\+\+(\d+)", option):
            standard = max(standard, int(match[1]) if match[1] not in ("98", "03") else 17)
        elif match := re.fullmatch(r"(?:-I|--include-path)=?(.*)", option):
            folders.append(Path(match[1] or rest.pop(0)))
        elif match := re.fullmatch(r"(-D|-U|--define-macro|--undefine-macro)=?(.*)", option):
            letter = "-D" if match[1] in ("-D", "--define-macro") else "-U"
            defines.append(letter + (match[2] or rest.pop(0)))
    return [f"-std=gnu++{standard}", *defines, *(f"-I{folder}" for folder in folders)], folders


def _headers(folders: Sequence[Path]) -> list[tuple[str, str]]:
    files = (p for folder in folders if folder.is_dir() for p in sorted(folder.rglob("*")))
    return [
        (str(p), p.read_text())
        for p in files
        if p.suffix in (".cu", ".cuh", ".h", ".hpp", ".inc") and p.is_file()
    ]


@functools.lru_cache(64)
def _translated(source: Path, flags: tuple[str, ...]) -> tuple[str, list[str]]:
    """The C++ of a source and its extern "C" kernels; once for all instances of its templates."""
    preprocess = ["-x", "c++", "-E", f"-I{_INCLUDE}", "-include", "cuda_sim.h", str(source)]
    try:
        return translate(_run([_compiler()[0], *flags, *preprocess]))
    except TranslationError as error:
        raise CompileError(str(error)) from error


def _export(number: int, name: str) -> str:
    """What makes a kernel, or an instance of a kernel template, callable from Python (see export.h)."""
    return (
        f'extern "C" void sim_enter_{number}(void **arguments) {{ ::sim::call(&{name}, arguments); }} '
        f'extern "C" const ::sim::Parameter *sim_parameters_{number}() '
        f"{{ return ::sim::parameters(&{name}); }}\n"
    )


class CompiledModule:
    """A loaded shared object and its kernels by name or name expression."""

    def __init__(self, library: ctypes.CDLL, kernels: dict[str, int]) -> None:
        self.library = library
        self.kernels = kernels


def compile_module(
    code: str, options: Sequence[str], name_expressions: Sequence[str], compute_capability: tuple[int, int]
) -> CompiledModule:
    """Compile and load, or load from the cache.

    Raises:
        CompileError: with the text of g++ and the source's own file names and lines.
    """
    compiler, version = _compiler()
    flags, folders = _read_options(options)
    flags += [*_COMMON, *_machine_flags(), *_BUILD[sanitizer()]]
    flags += [f"-D__CUDA_ARCH__={10 * (10 * compute_capability[0] + compute_capability[1])}"]
    source_key = _digest(code, flags, version, _own_sources(_INCLUDE), _headers(folders))
    folder, key = cache_folder(), _digest(source_key, tuple(name_expressions))
    target, names_file = folder / f"{key}.so", folder / f"{key}.names"
    if not (target.exists() and names_file.exists()):
        source = folder / f"{source_key}.cu"
        if not source.exists():
            with _into_cache(source) as written:
                written.write_text(code)
        text, extern = _translated(source, tuple(flags))
        names = [*extern, *(name for name in name_expressions if name not in extern)]
        text += '\n# 1 "name_expressions"\n' + "".join(_export(i, name) for i, name in enumerate(names))
        with _into_cache(target) as built:
            of_text = ["-shared", "-x", "c++-cpp-output", "-", "-x", "none", *_LIBRARIES]
            _run([compiler, *flags, *of_text, "-o", str(built)], text)
        with _into_cache(names_file) as written:
            written.write_text("\n".join(names))
    runtime()
    names = names_file.read_text().split("\n")
    return CompiledModule(ctypes.CDLL(str(target)), {name: i for i, name in enumerate(names) if name})
