"""Checks of the native core beside the tests: memory, threads, instruction sets, instructions, aarch64.

    python tests/core.py            all of them: some minutes
    python tests/core.py objects    wide instructions stay in the objects of their instruction sets, Python in
                                    the bindings
    python tests/core.py kernels    the kernels (native/smoke.cpp), memory of results (native/pool.cpp) and
                                    the module under AddressSanitizer and UndefinedBehaviorSanitizer
    python tests/core.py threads    that memory and the module (native/threads.py) under ThreadSanitizer
    python tests/core.py counts     instructions of the AVX2 kernels and of the portable ones, by valgrind
    python tests/core.py aarch64    the core compiles for aarch64, and its kernels run under emulation

They need g++, its sanitizers, cmake, ninja, nanobind and valgrind, g++ for aarch64 and its emulator, and an
installed polygpu. A check that cannot run here says so and does not fail. Exits with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polygpu import _cpu

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "tests" / "native"
MOST = 5 / 8  # of portable instructions
SCALAR = ("gemm62", "q64-mul")  # AVX2 has no product of 64-bit words: their vectors gain nothing
CXX = os.environ.get("CXX", "g++")
CXX_AARCH64, AARCH64 = "aarch64-linux-gnu-g++", "qemu-aarch64"

ISAS = sorted(path.stem for path in (ROOT / "cpu").glob("isa_*.cpp"))
WIDE = [name for name in ISAS if name.startswith("isa_avx")]  # what only some machines can run
KERNELS = [*ISAS, "tables"]
POOL = ("pool", "available")  # memory of results
BINDINGS = ("module",)  # what knows of Python
# To keep compile times short, a call checks each access, and some checks of pointers are left out.
ADDRESS = (
    "-O1 -g1 -fsanitize=address,undefined -fno-sanitize=null,alignment,object-size,vptr,pointer-overflow"
    " -fno-sanitize-recover=all --param asan-instrumentation-with-call-threshold=0"
)
THREAD = "-O1 -g1 -fsanitize=thread"


class Failed(Exception):
    """A check failed."""


class Missing(Exception):
    """What a check needs is not here."""


def run(command: Sequence[object], **options: Any) -> str:
    """The output of a command that must end well."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    except FileNotFoundError:
        raise Missing(words[0]) from None
    if done.returncode:
        raise Failed(f"{shlex.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def must_be_caught(command: Sequence[object], report: str, **options: Any) -> None:
    """Run a planted mistake. It must be reported: only then does silence elsewhere mean something."""
    try:
        run(command, **options)
    except Failed as failure:
        if re.search(report, str(failure)):
            print(f"planted and caught: {report}")
            return
        raise
    raise Failed(f"planted, but not caught: {report}")


@dataclass(frozen=True)
class Core:
    """The core as CMakeLists.txt builds it, and parts of it compiled with other options."""

    folder: Path

    @cached_property
    def objects(self) -> dict[str, Path]:
        """Of the library as it is shipped, by the name of the source."""
        cmake_folder = run([sys.executable, "-m", "nanobind", "--cmake_dir"]).strip()
        configure = [
            "cmake",
            "-S",
            ROOT / "cpu",
            "-B",
            self.folder,
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        options = [f"-DCMAKE_CXX_COMPILER={CXX}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
        options += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={cmake_folder}"]
        run([*configure, *options])
        run(["cmake", "--build", self.folder])
        found = self.folder.glob("CMakeFiles/_cpu.dir/**/*.cpp.o")
        return {path.name.partition(".")[0]: path for path in found}

    def compiled(self, names: Sequence[str], kind: str, flags: str) -> list[Path]:
        """Objects of sources, compiled as for the library and then with `flags`."""
        assert self.objects
        to = self.folder / kind
        to.mkdir(exist_ok=True)
        commands = []
        for entry in json.loads((self.folder / "compile_commands.json").read_text()):
            name = Path(entry["file"]).stem
            if name in names:
                words = shlex.split(entry["command"])
                words[words.index("-o") + 1] = str(to / f"{name}.o")
                commands.append([*words, *shlex.split(flags)])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda words: run(words, cwd=self.folder), commands))
        return [to / f"{name}.o" for name in names]

    def package(self, kind: str, objects: Sequence[Path], flags: str) -> Path:
        """A folder with polygpu, its module linked from `objects`."""
        folder = self.folder / f"{kind}-package"
        shutil.copytree(ROOT / "cuda", folder / "cuda")
        shutil.copytree(
            ROOT / "polygpu", folder / "polygpu", ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
        (module,) = self.folder.glob("_cpu.*so")
        library = self.folder / "libnanobind-static.a"
        target = folder / "polygpu" / module.name
        run([CXX, "-shared", *shlex.split(flags), *objects, library, "-pthread", "-o", target])
        return folder

    def program(self, source: str, objects: Sequence[Path], flags: str) -> Path:
        """A program of native/, linked with `objects`."""
        program = self.folder / Path(source).stem
        run(
            [
                CXX,
                "-std=c++17",
                *shlex.split(flags),
                "-I",
                ROOT / "cpu",
                NATIVE / source,
                *objects,
                "-o",
                program,
            ]
        )
        return program


def runtime(sanitizer: str) -> str:
    """The libraries that an interpreter without instrumentation must load first: GCC's, as are the flags."""
    if "clang" in run([CXX, "--version"]):
        raise Missing("g++")
    found = []
    for name in (
        f"lib{sanitizer}.so",
        "libstdc++.so",
    ):  # without the latter, exceptions cannot be intercepted
        path = Path(run([CXX, f"-print-file-name={name}"]).strip())
        if not path.is_absolute():
            raise Missing(f"{name} of {CXX}")
        found.append(str(path.resolve()))
    return " ".join(found)


def environment(package: Path, preload: str, **options: str) -> dict[str, str]:
    """For `python -S`, which imports polygpu from `package`, however else it is installed."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(package), *(path for path in sys.path if "site-packages" in path)]
        ),
        "PYTHONMALLOC": "malloc",
        "POLYGPU_CACHE_DIR": str(package / "cache"),
        "POLYGPU_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "1",
        "LD_PRELOAD": preload,
        **options,
    }


# Legacy prefixes, then the first byte of VEX or EVEX coding, which has no other use in 64-bit mode.
WIDE_CODING = re.compile(r"^(?:(?:26|2e|36|3e|64|65|66|67|f0|f2|f3) )*(?:c4|c5|62) ")


def wide_instructions(disassembly: str) -> list[str]:
    """Lines of `objdump --disassemble --wide --show-raw-insn` that only machines with AVX can run."""
    lines = (line.split("\t") for line in disassembly.splitlines())
    return ["\t".join(line) for line in lines if len(line) > 2 and WIDE_CODING.match(line[1])]


def check_objects(core: Core) -> None:
    """No wide instruction outside the objects of its set, and no function in them that the linker may share.

    Of a template or an inline function with external linkage the linker keeps one copy, perhaps that of such
    an object. Nor may they run anything when the library is loaded.
    """
    if platform.machine() != "x86_64":
        raise Missing("x86-64")
    disassemble = ["objdump", "--disassemble", "--wide", "--show-raw-insn"]
    for name, path in core.objects.items():
        found = wide_instructions(run([*disassemble, path]))
        if name not in WIDE:
            if found:
                raise Failed(f"{name} contains {len(found)} wide instructions\n" + "\n".join(found[:5]))
            continue
        if not found:
            raise Failed(f"{name} contains no wide instruction, or they are not recognised")
        shared = run(
            ["nm", "--demangle", "--defined-only", "--extern-only", "--format=posix", path]
        ).splitlines()
        if [line.split(" ")[0] for line in shared] != [f"pg::{name}"]:
            raise Failed(f"{name} defines more than pg::{name} for others\n" + "\n".join(shared))
        if ".init_array" in run(["objdump", "--section-headers", path]):
            raise Failed(f"{name} runs code when the library is loaded")
        print(f"{name}: {len(found)} wide instructions, all its own")
    print("none in " + ", ".join(name for name in core.objects if name not in WIDE))
    check_layers(core)


def check_layers(core: Core) -> None:
    """The core asks nothing of Python: it links without the bindings."""
    objects = [path for name, path in core.objects.items() if name not in BINDINGS]
    run([CXX, "-shared", "-Wl,--no-undefined", *objects, "-pthread", "-o", core.folder / "layers.so"])
    print("without " + ", ".join(BINDINGS) + ": nothing undefined")


def check_kernels(core: Core) -> None:
    """Every instruction set of this machine, the pool and the module, under sanitizers of addresses and C++.

    The module is called from threads, then with arrays of every wrong kind.
    """
    preload = runtime("asan")
    others = [name for name in core.objects if name not in KERNELS]
    objects = core.compiled([*KERNELS, *others], "address", ADDRESS)
    smoke = core.program("smoke.cpp", objects[: len(KERNELS)], ADDRESS)
    isas = _cpu.supported_isas()
    for isa in isas:
        must_be_caught([smoke, isa, "plant-overrun"], "ERROR: AddressSanitizer")
    must_be_caught([smoke, "plant-shift"], "runtime error: shift exponent")
    print(f"{' '.join(isas)}: {run([smoke, *isas]).strip()}")
    package = core.package("address", objects, ADDRESS)
    pool = core.program("pool.cpp", core.compiled(POOL, "address", ADDRESS), f"{ADDRESS} -pthread")
    for plant in ("plant-reuse", "plant-overrun"):
        must_be_caught([pool, plant], "ERROR: AddressSanitizer: use-after-poison")
    print(f"pool: {run([pool])}", end="")
    # Plans and interned objects live until the interpreter ends.
    settings = environment(package, preload, ASAN_OPTIONS="detect_leaks=0")
    python = [sys.executable, "-S", NATIVE / "threads.py"]
    must_be_caught([*python, "plant-overrun"], "ERROR: AddressSanitizer", env=settings)
    for isa in isas:
        print(f"module, {isa}: {run(python, env={**settings, 'POLYGPU_CPU_ISA': isa})}", end="")
    print(run([sys.executable, "-S", ROOT / "tests" / "malformed.py"], env=settings), end="")


def check_threads(core: Core) -> None:
    """The pool, then the module with the portable kernels.

    Other kernels need no run: threads share out the same rows on every instruction set.
    """
    preload = runtime("tsan")
    pool = core.program("pool.cpp", core.compiled(POOL, "thread", THREAD), f"{THREAD} -pthread")
    print(f"pool: {run([pool, 200])}", end="")
    # Forks run without the sanitizer: its own locks could be held when a child is made.
    pool = core.program("pool.cpp", [core.objects[name] for name in POOL], "-O2 -pthread")
    print(f"pool, forks: {run([pool, 'forks'])}", end="")
    objects = core.compiled([name for name in core.objects if name not in WIDE], "thread", THREAD)
    package = core.package("thread", [*objects, *(core.objects[name] for name in WIDE)], THREAD)
    options = "halt_on_error=1 die_after_fork=0"  # the child makes threads of its own
    settings = environment(package, preload, POLYGPU_CPU_ISA="portable", TSAN_OPTIONS=options)
    python = [sys.executable, "-S", NATIVE / "threads.py"]
    must_be_caught([*python, "plant-race"], "WARNING: ThreadSanitizer: data race", env=settings)
    print(run(python, env=settings), end="")


def counted(core: Core) -> dict[str, float]:
    """Instructions of each kernel, by its name and size, for a unit of its work (native/counts.cpp)."""
    if not shutil.which("valgrind") or not Path("/usr/include/valgrind/callgrind.h").exists():
        raise Missing("valgrind")
    known = [isa for isa in _cpu.supported_isas() if not isa.startswith("avx512")]  # known to valgrind
    program = core.program("counts.cpp", [core.objects[name] for name in KERNELS], "-O1")
    out = core.folder / "callgrind.out"
    run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, *known])
    counts = {}
    for path in core.folder.glob("callgrind.out.*"):
        found = re.search(r"Client Request: (.*) (\d+)\n(?:.*\n)*?totals: (\d+)", path.read_text())
        assert found, path
        counts[found[1]] = int(found[3]) / int(found[2])
    return counts


def check_counts(core: Core) -> None:
    """AVX2 takes at most 5/8 of the portable instructions: a loop that is scalar or spills takes more."""
    counts = counted(core)
    names = {name for _, _, name in (key.partition(" ") for key in counts) if not name.startswith(SCALAR)}
    both = [name for name in sorted(names) if {f"avx2 {name}", f"portable {name}"} <= counts.keys()]
    shares = {name: counts[f"avx2 {name}"] / counts[f"portable {name}"] for name in both}
    if not shares:
        raise Missing("AVX2")
    above = [f"{name}: {share:.3f} of portable" for name, share in shares.items() if share > MOST]
    if above:
        raise Failed(f"more than {MOST} of the portable instructions\n" + "\n".join(above))
    print(f"{len(shares)} kernels take at most {max(shares.values()):.3f} of the portable instructions")


def check_aarch64(core: Core) -> None:
    """The core compiles, the bindings too, and native/smoke.cpp runs with the kernels of aarch64."""
    for tool in (CXX_AARCH64, AARCH64):
        if not shutil.which(tool):
            raise Missing(tool)
    compiler = [CXX_AARCH64, "-std=c++17", "-O3", "-ffp-contract=off", "-I", ROOT / "cpu"]
    check = [*compiler, "-fsyntax-only", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    nanobind = run([sys.executable, "-m", "nanobind", "--include_dir"]).strip()
    for headers in (nanobind, sysconfig.get_path("include"), np.get_include()):
        check += ["-isystem", headers]
    sources = sorted((ROOT / "cpu").rglob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: run([*check, source]), sources))
    print(f"{len(sources)} sources compile without a warning")
    smoke, isas = core.folder / "smoke-aarch64", ("neon", "portable")
    kernels = [ROOT / "cpu" / f"{name}.cpp" for name in KERNELS]
    run([*compiler, "-static", NATIVE / "smoke.cpp", *kernels, "-o", smoke])
    print(f"{' '.join(isas)}, under emulation: {run([AARCH64, smoke, *isas]).strip()}")


CHECKS: dict[str, Callable[[Core], None]] = {
    "objects": check_objects,
    "kernels": check_kernels,
    "threads": check_threads,
    "counts": check_counts,
    "aarch64": check_aarch64,
}


def main() -> int:
    """Run the checks that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checks", nargs="*", choices=[*CHECKS, []], help="some, instead of all")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        core = Core(Path(folder))
        for name in options.checks or CHECKS:
            began = time.monotonic()
            print(f"-- {name}", flush=True)
            try:
                CHECKS[name](core)
            except Missing as missing:
                print(f"SKIPPED: {missing} is not here")
            except Failed as failure:
                print(f"FAILED: {failure}")
                failed = True
            print(f"{time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
