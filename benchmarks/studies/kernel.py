"""The kernels of benchmarks/kernels, compiled, and what becomes of them on a card."""

from __future__ import annotations

import math
import os
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from polygpu.backends import cuda_sources

from ..harness import ROOT

KERNELS = ROOT / "benchmarks" / "kernels"


@dataclass(frozen=True)
class Kernel:
    """An instance of a template, and how it is launched."""

    file: str
    expression: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Callable[[], tuple[Any, ...]] = tuple  # behind the arrays; made on the card
    dynamic_bytes: int = 0
    in_place: bool = False  # may write where it reads
    resident: bool = False  # has no more blocks than the card holds at once: they go on to further work

    @property
    def template(self) -> str:
        return self.expression.partition("<")[0]

    @property
    def threads(self) -> int:
        return math.prod(self.block)


@dataclass(frozen=True, eq=False)
class Ready:
    """What can be run: from arrays on the card to the last of them."""

    run: Callable[..., object]
    facts: Mapping[str, float] = field(default_factory=dict)  # of the kernel and its blocks
    kernel: str | None = None  # part of its name in a profile; None: not one kernel


def load(file: str, expressions: Sequence[str]) -> dict[str, Any]:
    """Instances of the templates of a file, by their names."""
    import cupy

    folders = [KERNELS, cuda_sources(), *toolkit_headers()]
    module = cupy.RawModule(
        code=(KERNELS / file).read_text(encoding="utf-8"),
        options=("-std=c++17", *(f"-I{folder}" for folder in folders)),
        name_expressions=tuple(expressions),
    )
    return {expression: module.get_function(expression) for expression in expressions}


@cache
def toolkit_headers() -> tuple[Path, ...]:
    """The folder with mma.h: of the toolkit or its wheels (cuda-runtime, cuda-crt). NVRTC comes without."""
    homes = [Path(home) for name in ("CUDA_PATH", "CUDA_HOME") if (home := os.environ.get(name))]
    homes += sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*"))  # of NVRTC's own version
    folders = [home / "include" for home in (*homes, Path("/usr/local/cuda"))]
    return tuple(f for f in folders if (f / "mma.h").exists() and (f / "crt" / "mma.h").exists())[:1]


def compiled(kernels: Iterable[Kernel]) -> dict[str, Any]:
    """Functions by expression, those of a file at once; an exception stands for what does not compile."""
    files: dict[str, dict[str, None]] = {}
    for kernel in kernels:
        files.setdefault(kernel.file, {})[kernel.expression] = None
    found: dict[str, Any] = {}
    for file, expressions in files.items():
        try:
            found |= load(file, tuple(expressions))
        except Exception:
            for one in expressions:  # what a card lacks for one is no hindrance to the others
                try:
                    found |= load(file, (one,))
                except Exception as error:
                    found[one] = error
    return found


def ready(kernel: Kernel, functions: Mapping[str, Any]) -> Ready:
    """With its arguments on the card; raises what the compiler said."""
    function, dynamic_bytes, blocks = functions[kernel.expression], kernel.dynamic_bytes, kernel.grid
    if isinstance(function, Exception):
        raise function
    if dynamic_bytes > function.max_dynamic_shared_size_bytes:
        function.max_dynamic_shared_size_bytes = dynamic_bytes
    facts = facts_of(function, math.prod(blocks), kernel.threads, dynamic_bytes)
    if kernel.resident:
        blocks = (min(blocks[0], resident_blocks(facts)),)
        facts["blocks"] = blocks[0]
    arguments = kernel.arguments()

    def run(*arrays: Any) -> None:
        function(blocks, kernel.block, (*arrays, *arguments), shared_mem=dynamic_bytes)

    return Ready(run, facts, kernel.template)


def in_a_row(kernels: Sequence[Kernel], runs: Sequence[Ready], x: Callable[[], NDArray[Any]]) -> Ready:
    """One after the other, to y; by an array of their own where one may not write where it reads."""
    import cupy

    aside = [False]  # whether to y or elsewhere, from the end
    for kernel in reversed(kernels[1:]):
        aside.append(aside[-1] if kernel.in_place else not aside[-1])
    scratch = cupy.empty(x().shape, x().dtype) if any(aside) else None

    def run(x: Any, y: Any) -> None:
        for one, elsewhere in zip(runs, reversed(aside), strict=True):
            one.run(x, target := scratch if elsewhere else y)
            x = target

    return Ready(run)


@dataclass(frozen=True)
class Multiprocessor:
    """What one of a card holds at a time."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved_bytes: int = 1024  # of shared memory, for each block

    @classmethod
    def of_device(cls) -> Multiprocessor:
        """CuPy's current one."""
        import cupy

        a = cupy.cuda.Device().attributes
        blocks, registers = a["MaxBlocksPerMultiprocessor"], a["MaxRegistersPerMultiprocessor"]
        shared, reserved = a["MaxSharedMemoryPerMultiprocessor"], a["ReservedSharedMemoryPerBlock"]
        return cls(a["MaxThreadsPerMultiProcessor"] // 32, blocks, registers, shared, reserved)

    def limits(self, threads: int, registers: int, shared_bytes: int) -> dict[str, int]:
        """How many blocks of so many threads, registers a thread and bytes there is room for, by what.

        Registers are given out to warps in units of 256 and by four schedulers apart, shared memory in units
        of 128 bytes (CUDA's occupancy calculator, since compute capability 5.0).
        """
        warps = -(-threads // 32)
        of_a_warp = -(-max(1, registers) * 32 // 256) * 256
        return {
            "registers": self.registers // of_a_warp // 4 * 4 // warps,
            "shared_mem": self.shared_bytes // (-(-shared_bytes // 128) * 128 + self.reserved_bytes),
            "warps": self.warps // warps,
            "blocks": self.blocks,
        }

    def resident(self, threads: int, registers: int, shared_bytes: int) -> int:
        """The blocks that are there at once."""
        return min(self.limits(threads, registers, shared_bytes).values())

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> float:
        """The share of its warps that such blocks fill."""
        return self.resident(threads, registers, shared_bytes) * -(-threads // 32) / self.warps


def block_of(facts: Mapping[str, float]) -> tuple[int, int, int]:
    """Its threads, their registers and its shared memory."""
    return int(facts["threads"]), int(facts["registers"]), int(facts["shared_bytes"])


def resident_blocks(facts: Mapping[str, float]) -> int:
    """Those that CuPy's current card holds at once."""
    import cupy

    count = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    return Multiprocessor.of_device().resident(*block_of(facts)) * count


def facts_of(function: Any, blocks: int, threads: int, dynamic_bytes: int = 0) -> dict[str, float]:
    """What the compiler gave a kernel, and what becomes of it on this card."""
    facts = {"blocks": blocks, "threads": threads, "registers": function.num_regs}
    facts |= {"shared_bytes": function.shared_size_bytes + dynamic_bytes}
    facts |= {"spilled_bytes": function.local_size_bytes}
    return facts | {"occupancy": round(Multiprocessor.of_device().occupancy(*block_of(facts)), 4)}
