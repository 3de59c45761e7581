"""The kernels of benchmarks/kernels, compiled, and what they take of a card."""

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

from polygpu._backends import cuda_sources

from ..harness import ROOT

KERNELS = ROOT / "benchmarks" / "kernels"


@dataclass(frozen=True)
class Kernel:
    """An instance of a template, and how it is launched."""

    file: str
    expression: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Callable[[], tuple[Any, ...]] = tuple  # after the arrays; made on the card
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
    """What can be run on arrays on the card. The last of them gets the result."""

    run: Callable[..., object]
    facts: Mapping[str, float] = field(default_factory=dict)  # of the kernel and its blocks
    kernel: str | None = None  # part of its name in a profile; None: not one kernel


def load(file: str, expressions: Sequence[str]) -> dict[str, Any]:
    """Instances of the templates of a file, by their expressions."""
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
    """Return the folder with mma.h if there is one.

    It is of the toolkit or of its wheels (cuda-runtime, cuda-crt). NVRTC has no mma.h.
    """
    homes = [Path(home) for name in ("CUDA_PATH", "CUDA_HOME") if (home := os.environ.get(name))]
    homes += sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*"))  # wheels of NVRTC's version
    folders = [home / "include" for home in (*homes, Path("/usr/local/cuda"))]
    return tuple(f for f in folders if (f / "mma.h").exists() and (f / "crt" / "mma.h").exists())[:1]


def compiled(kernels: Iterable[Kernel]) -> dict[str, Any]:
    """Functions by expression, compiled file by file; an exception in place of what does not compile."""
    files: dict[str, dict[str, None]] = {}
    for kernel in kernels:
        files.setdefault(kernel.file, {})[kernel.expression] = None
    found: dict[str, Any] = {}
    for file, expressions in files.items():
        try:
            found |= load(file, tuple(expressions))
        except Exception:
            for one in expressions:  # one by one: a card may lack what one of them needs
                try:
                    found |= load(file, (one,))
                except Exception as error:
                    found[one] = error
    return found


def ready(kernel: Kernel, functions: Mapping[str, Any]) -> Ready:
    """Return the kernel with its arguments on the card.

    Raise the compiler's error if it did not compile.
    """
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
    """Return the kernels as one run: one after the other, the last one to y.

    If a kernel may not write where it reads, values go from y to an array made here, or back to y.
    """
    import cupy

    aside = [False]  # whether a kernel writes to scratch, not to y; from the last kernel to the first
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
    """What one multiprocessor of a card holds at a time."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved_bytes: int = 1024  # of shared memory, for each block

    @classmethod
    def of_device(cls) -> Multiprocessor:
        """Of CuPy's current device."""
        import cupy

        a = cupy.cuda.Device().attributes
        blocks, registers = a["MaxBlocksPerMultiprocessor"], a["MaxRegistersPerMultiprocessor"]
        shared, reserved = a["MaxSharedMemoryPerMultiprocessor"], a["ReservedSharedMemoryPerBlock"]
        return cls(a["MaxThreadsPerMultiProcessor"] // 32, blocks, registers, shared, reserved)

    def limits(self, threads: int, registers: int, shared_bytes: int) -> dict[str, int]:
        """Return how many blocks there is room for, by each limit.

        A block has `threads` threads, with `registers` registers each, and `shared_bytes` of shared memory. A
        warp gets registers in units of 256, and each of four schedulers has a quarter of them. A block gets
        shared memory in units of 128 bytes (CUDA's occupancy calculator, since compute capability 5.0).
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
        """How many such blocks it holds at once."""
        return min(self.limits(threads, registers, shared_bytes).values())

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> float:
        """Return the share of its room for warps that such blocks fill."""
        return self.resident(threads, registers, shared_bytes) * -(-threads // 32) / self.warps


def block_of(facts: Mapping[str, float]) -> tuple[int, int, int]:
    """Threads, registers of a thread and shared memory of a block."""
    return int(facts["threads"]), int(facts["registers"]), int(facts["shared_bytes"])


def resident_blocks(facts: Mapping[str, float]) -> int:
    """How many blocks CuPy's current card holds at once."""
    import cupy

    count = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    return Multiprocessor.of_device().resident(*block_of(facts)) * count


def facts_of(function: Any, blocks: int, threads: int, dynamic_bytes: int = 0) -> dict[str, float]:
    """Return what the compiler gave a kernel, and its occupancy on this card."""
    facts = {"blocks": blocks, "threads": threads, "registers": function.num_regs}
    facts |= {"shared_bytes": function.shared_size_bytes + dynamic_bytes}
    facts |= {"spilled_bytes": function.local_size_bytes}
    return facts | {"occupancy": round(Multiprocessor.of_device().occupancy(*block_of(facts)), 4)}
