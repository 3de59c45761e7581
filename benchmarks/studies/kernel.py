"""The kernels of benchmarks/kernels, compiled, and what becomes of them on a card."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from polygpu.backends import cuda_sources

from ..harness import ROOT

KERNELS = ROOT / "benchmarks" / "kernels"

Launch = TypeVar("Launch")


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


@dataclass(frozen=True)
class Multiprocessor:
    """What one of a card holds at a time."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    reserved_bytes: int = 1024
    """Of shared memory, for each block."""

    @classmethod
    def of_device(cls) -> Multiprocessor:
        """CuPy's current one."""
        import cupy

        a = cupy.cuda.Device().attributes
        return cls(
            warps=a["MaxThreadsPerMultiProcessor"] // 32,
            blocks=a["MaxBlocksPerMultiprocessor"],
            registers=a["MaxRegistersPerMultiprocessor"],
            shared_bytes=a["MaxSharedMemoryPerMultiprocessor"],
            reserved_bytes=a["ReservedSharedMemoryPerBlock"],
        )

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


def facts_of(function: Any, blocks: int, threads: int, dynamic_bytes: int = 0) -> dict[str, float]:
    """What the compiler gave a kernel, and what becomes of it on this card."""
    card = Multiprocessor.of_device()
    shared = function.shared_size_bytes + dynamic_bytes
    return {
        "blocks": blocks,
        "threads": threads,
        "registers": function.num_regs,
        "shared_bytes": shared,
        "spilled_bytes": function.local_size_bytes,
        "occupancy": round(card.occupancy(threads, function.num_regs, shared), 4),
    }


def made(prepared: Iterable[tuple[str, Callable[[], Launch]]], say: Callable[[str], object]) -> list[Launch]:
    """The launches that can be made here, of (name, what makes it)."""
    found: list[Launch] = []
    for name, make in prepared:
        try:
            found.append(make())
        except Exception as error:  # a library or a header is missing, a kernel does not compile
            text = str(error).strip().splitlines() or [""]
            say(f"{name}: skipped, {type(error).__name__}: {text[0]}")
    return found
