"""Compiles the CUDA kernels without a GPU, by NVRTC through ctypes, and reads what ptxas says of them.

`pip install nvidia-cuda-nvrtc` is all it needs: no CuPy, no driver. What is compiled is what the launch code
of polygpu.backends.cuda asks for on a card of each architecture, recorded from its own calls.

    python tests/nvrtc.py                  a representative part, for every architecture: some minutes
    python tests/nvrtc.py --arch 90 --all  every instantiation, for one: some minutes too

Exits with 1 where a kernel does not compile, spills more than it is allowed or takes more registers.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from cudasim import in_place_of_cupy

from polygpu.backends import cuda_sources
from polygpu.backends.cuda import CudaBackend
from polygpu.backends.cuda.matmul_tiles import has_limbs
from polygpu.backends.cuda.tiles import Card
from polygpu.plans.basis import basis_of
from polygpu.plans.ntt import NttPlan
from polygpu.plans.permutation import automorphism
from polygpu.plans.product import AuxiliaryPlan, FftPlan

# A card of each architecture: what one block may hold in shared memory, the L2 cache, the multiprocessors.
CARDS = {
    75: Card((7, 5), 64 << 10, 4 << 20, 40),
    80: Card((8, 0), 163 << 10, 40 << 20, 108),
    86: Card((8, 6), 99 << 10, 6 << 20, 82),
    89: Card((8, 9), 99 << 10, 72 << 20, 128),
    90: Card((9, 0), 227 << 10, 50 << 20, 132),
    100: Card((10, 0), 227 << 10, 126 << 20, 148),
    120: Card((12, 0), 99 << 10, 96 << 20, 170),
}

# One modulus for each word, by its bits: the launch code looks at sizes only.
MODULI = tuple((1 << bits) - 1 for bits in (30, 31, 32, 50, 60, 62, 64))
# log2 of the points and coefficients of a leaf: every transform, and one of each kind of tile: short ones, of
# 4 and 8 values a thread (2, 5), of leaves, of few rows and of many (9), of 32 values a thread (13, 14), of
# few rows in two passes (12 to 18), of one pass, two and three.
ALL = tuple((size, base) for size in range(1, 27) for base in (1, 2, 4, 8))
PART = ((7, 2), *((size, 1) for size in (2, 5, 9, 12, 13, 14, 15, 18, 20, 25)))


# ---- which kernels: the launch code runs on arrays without memory, and every launch is noted ----


@dataclass(frozen=True)
class Kernel:
    """An instance of a kernel template, and the block it is launched with."""

    file: str
    expression: str
    threads: int
    shared: int

    @property
    def template(self) -> str:
        """Its name without arguments."""
        return self.expression.partition("<")[0]

    @property
    def word(self) -> str:
        """The first template argument, a word of cuda/word.cuh or a type; empty without."""
        return (*re.split("[<,>]", self.expression), "")[1]


@dataclass
class _Recorder:
    """Stands for CuPy: arrays are views of one number, and a launch is a line in a list."""

    card: Card
    launches: list[Kernel]
    options: tuple[str, ...] = ()

    @property
    def module(self) -> ModuleType:
        """To be put in the place of `cupy`."""
        major, minor = self.card.capability
        properties = {
            "major": major,
            "minor": minor,
            "sharedMemPerBlockOptin": self.card.shared_bytes,
            "l2CacheSize": self.card.l2_bytes,
            "multiProcessorCount": self.card.multiprocessors,
        }
        stream = SimpleNamespace(ptr=0, record=lambda: None)
        module = ModuleType("cupy")
        module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
            Device=lambda index: nullcontext(),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            get_current_stream=lambda index: stream,
            runtime=SimpleNamespace(getDeviceProperties=lambda index: properties),
            cublas=_Cublas(),
            device=SimpleNamespace(get_cublas_handle=lambda: 0),
        )
        module.RawModule = self._raw_module  # type: ignore[attr-defined]
        module.empty = module.zeros = module.ones = _array  # type: ignore[attr-defined]
        module.ascontiguousarray = lambda x: x  # type: ignore[attr-defined]
        module.asarray = np.asarray  # type: ignore[attr-defined]
        module.may_share_memory = lambda x, y: False  # type: ignore[attr-defined]
        return module

    def _raw_module(self, code: str, options: tuple[str, ...], name_expressions: Sequence[str]) -> Any:
        self.options = options
        (file,) = (name for name, text in sources(".cu").items() if code.startswith(text))

        def get_function(expression: str) -> Callable[..., None]:
            def launch(
                grid: Any, block: tuple[int, ...], args: Any, *, shared_mem: int = 0, **_: object
            ) -> None:
                assert max(grid[1:], default=1) <= 65535, (expression, grid)
                self.launches.append(Kernel(file, expression, int(np.prod(block)), shared_mem))

            return _Function(launch)

        return SimpleNamespace(get_function=get_function)


class _Function:
    """What `get_function` gives: callable, and open to attributes."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch

    def __call__(self, *args: Any, **keywords: Any) -> None:
        self._launch(*args, **keywords)


class _Cublas:
    """Its kernels are its own: nothing is launched."""

    CUBLAS_OP_N = CUBLAS_OP_T = CUBLAS_COMPUTE_32I = CUBLAS_GEMM_DEFAULT = 0

    def gemmStridedBatchedEx(self, *args: Any) -> None:
        pass


def _array(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros(1, dtype), shape)


@cache
def sources(suffix: str) -> dict[str, str]:
    """The CUDA sources of a suffix by name, as they were when first asked for."""
    return {path.name: path.read_text() for path in sorted(Path(cuda_sources()).glob(f"*{suffix}"))}


@cache
def record(card: Card, transforms: tuple[tuple[int, int], ...] = ALL) -> tuple[Kernel, ...]:
    """Every kernel that a card is asked to run for transforms (size, base) of 2^size points; each once."""
    recorder = _Recorder(card, [])
    with in_place_of_cupy({"cupy": recorder.module}):
        backend = CudaBackend(0)
    backend.address = lambda x: 0  # type: ignore[method-assign]
    for modulus in MODULI:
        basis = basis_of((modulus,))
        x = _array((1, 1, 64), basis.dtype)
        for op, n in product(("add", "sub", "neg", "mul", "mul_add"), (63, 64)):  # by entries, in chunks
            entries = _array((1, 1, n), basis.dtype)
            backend.pointwise(basis, op, entries, entries, entries, entries)  # type: ignore[arg-type]
        for evaluated in (False, True):
            backend.permute(basis, x, automorphism(64, "negacyclic", 3, evaluated), x)
        backend.reduce_integers(basis, _array((1, 64), np.int64), x)
        auxiliary = NttPlan(basis_of((MODULI[3],)), 64, "negacyclic", 1, (1,))
        backend.multiply(AuxiliaryPlan(basis, 64, "negacyclic", auxiliary), x, x, x)
        for size, base in transforms:
            ntt = NttPlan(basis, base << size, "negacyclic", base, (1,))
            # Few rows; as many as fill the card; so many that two passes run in one launch.
            for batch in (1, (card.multiprocessors << 12 >> size) + 1, 1 << 20):
                x = _array((batch, 1, base << size), basis.dtype)
                backend.ntt(ntt, x, x)
                backend.intt(ntt, x, x)
                backend.multiply(ntt, x, x, x)
    for modulus, digits, (size, base) in product((MODULI[2], MODULI[-1]), (1, 2, 3, 5), transforms):
        if base == 1 and size >= 4:
            basis = basis_of((modulus,))
            for degree in (1 << size, 2 << size):  # linear products, which are folded, and negacyclic ones
                x = _array((1, 1, degree), basis.dtype)
                plan = FftPlan(basis, degree, "negacyclic", 2 << size, digits, 0)
                plan.__dict__["twiddles"] = _array((plan.points,), np.complex128)
                backend.multiply(plan, x, x, x)
    for dtype, size in product((np.complex64, np.complex128), range(1, 13)):
        x = _array((1, 1 << size), dtype)
        for inverse in (False, True):
            backend.fft(x, x, inverse)
        if size == 6:
            backend.convolve(x, x, x)
    for modulus in (MODULI[1], MODULI[2], MODULI[4], MODULI[6]):  # one for each sum
        basis = basis_of((modulus,))

        def array(*shape: int, dtype: Any = basis.dtype) -> Any:
            return _array(shape, dtype)

        sizes = (1, 2, 4, 8)
        for rows, columns, points in (*product(sizes, sizes, (63, 64)), (16, 16, 64)):
            a, b = array(1 << 16, rows, 3, 1, points), array(1 << 16, 3, columns, 1, points)
            backend.matmul_points(basis, a, b, array(1 << 16, rows, columns, 1, points))
        if modulus > 1 << 62:
            continue
        for rows, columns, length in (
            *((size,) * 3 for size in (16, 32, 64, 128)),
            *product(sizes, (63, 64), (64,)),
        ):
            a, b = array(1 << 16, rows, length), array(1 << 16, length, columns)
            backend._matmul_integer(basis, a, b, array(1 << 16, rows, columns))
        for columns, length in product(sizes, (63, 64)):
            a, b = array(1, 64, length), array(1, length, columns)
            backend._matmul_integer(basis, a, b, array(1, 64, columns))
        for rows, length in product((64, 65), (1, 2, 4)):  # both blocks; copies of 4, 8 and 16 bytes
            a, b, out = array(1, rows, length), array(1, length, 64), array(1, rows, 64)
            if has_limbs(modulus, basis.dtype.itemsize):
                backend._matmul_limbs(basis, a, b, out)
            backend._matmul_residues(basis, a, b, out)
        if has_limbs(modulus, basis.dtype.itemsize):
            for batch, m, n in ((1 << 17, 1, 1), (1, 1 << 24, 1), (1, 1, 1 << 24)):  # more than 65535 blocks
                backend._matmul_limbs(basis, array(batch, m, 4), array(batch, 4, n), array(batch, m, n))
    basis_of.cache_clear()  # their handles hold what no other backend shall find
    # A kernel that is launched with several sizes of shared memory counts once, with the largest.
    largest: dict[str, Kernel] = {}
    for kernel in recorder.launches:
        known = largest.get(kernel.expression)
        if known is None or known.shared < kernel.shared:
            largest[kernel.expression] = kernel
    return tuple(largest.values())


# ---- the compiler ----


@dataclass(frozen=True)
class Usage:
    """What ptxas reports of a kernel."""

    registers: int
    spilled: int  # bytes of spill stores and loads
    stack: int


def library_path() -> Path | None:
    """Where a wheel has put NVRTC: nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12; None if nowhere."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    found = [p for root in roots or () for p in sorted(Path(root).glob("*/lib/libnvrtc.so.*"))]
    return found[0] if found else None


class Compiler:
    """One NVRTC, loaded."""

    def __init__(self) -> None:
        path = library_path()
        if path is None:
            raise RuntimeError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
        self._library = ctypes.CDLL(str(path))

    @cached_property
    def version(self) -> tuple[int, int]:
        """Of CUDA."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, text)
        return text.value.decode(errors="replace")

    def compile(self, file: str, expressions: Sequence[str], arch: int) -> dict[str, Usage]:
        """Compile instances of the templates of one file of cuda/ to machine code."""
        return self.compile_code(file, sources(".cu")[file], sources(".cuh"), expressions, arch)

    def compile_code(
        self,
        file: str,
        code: str,
        headers: Mapping[str, str],
        expressions: Sequence[str],
        arch: int,
        folders: Sequence[Path] = (),
    ) -> dict[str, Usage]:
        """Compile instances of the templates of a source to machine code; `folders` have further headers.

        Raises:
            RuntimeError: with the compiler's text.
        """
        library, program = self._library, ctypes.c_void_p()

        def check(status: int) -> None:
            if status:
                raise RuntimeError(f"{file}, sm_{arch}: {self._text(program, 'ProgramLog') or status}")

        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        check(
            library.nvrtcCreateProgram(
                ctypes.byref(program), code.encode(), file.encode(), len(headers), texts, names
            )
        )
        try:
            for expression in expressions:
                check(library.nvrtcAddNameExpression(program, expression.encode()))
            options = [f"-arch=sm_{arch}", "-std=c++17", "--ptxas-options=-v"]
            options += [f"-I{folder}" for folder in folders]
            encoded = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            check(library.nvrtcCompileProgram(program, len(options), encoded))
            usages = _read_log(self._text(program, "ProgramLog"))
            lowered = {}
            for expression in expressions:
                name = ctypes.c_char_p()
                check(library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name)))
                lowered[expression] = (name.value or b"").decode()
            return {expression: usages[name] for expression, name in lowered.items()}
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


def _read_log(log: str) -> dict[str, Usage]:
    """ptxas's report, by mangled name."""
    usages = {}
    for part in log.split("Compiling entry function '")[1:]:
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if frame is None or registers is None:
            raise RuntimeError(f"ptxas's report is not understood:\n{part}")
        stack, stores, loads = map(int, frame.groups())
        usages[part.partition("'")[0]] = Usage(int(registers[1]), stores + loads, stack)
    return usages


# ---- what is allowed ----

# Registers of a thread and bytes of spills, by kernel, word and threads of a block: the most anywhere.
# `python tests/nvrtc.py --all --budget` prints what to write here.
BUDGET: dict[tuple[str, str], dict[int, tuple[int, int]]] = {
    ("arrange_twiddles", "Complex128"): {256: (24, 0)},
    ("crt_compose", "u32"): {256: (64, 0)},
    ("crt_compose", "u64"): {256: (64, 0)},
    ("crt_spread", "u32"): {256: (40, 0)},
    ("crt_spread", "u64"): {256: (40, 0)},
    ("fft", "double"): {128: (72, 0), 256: (80, 0), 512: (88, 0)},
    ("fft", "float"): {128: (64, 0), 256: (64, 0), 512: (64, 0)},
    ("fft_compose", "u32"): {256: (48, 0)},
    ("fft_compose", "u64"): {256: (56, 0)},
    ("fft_convolve", "double"): {128: (144, 0)},
    ("fft_convolve", "float"): {128: (64, 0)},
    ("fft_multiply", ""): {256: (56, 0)},
    ("fft_product", "u32"): {128: (128, 96), 256: (128, 96), 512: (128, 96)},
    ("fft_product", "u64"): {128: (128, 80), 256: (128, 80), 512: (128, 80)},
    ("fft_split", "u32"): {256: (40, 0)},
    ("fft_split", "u64"): {256: (40, 0)},
    ("fill_leaves", "Float64"): {256: (32, 0)},
    ("fill_leaves", "Lazy32"): {256: (32, 0)},
    ("fill_leaves", "Lazy60"): {256: (24, 0)},
    ("fill_leaves", "Lazy64"): {256: (24, 0)},
    ("fill_leaves", "Strict32"): {256: (32, 0)},
    ("fill_leaves", "Strict64"): {256: (24, 0)},
    ("fill_leaves", "Tight32"): {256: (32, 0)},
    ("fill_twiddles", "Float64"): {256: (32, 0)},
    ("fill_twiddles", "Lazy32"): {256: (40, 0)},
    ("fill_twiddles", "Lazy60"): {256: (40, 0)},
    ("fill_twiddles", "Lazy64"): {256: (40, 0)},
    ("fill_twiddles", "Strict32"): {256: (40, 0)},
    ("fill_twiddles", "Strict64"): {256: (40, 0)},
    ("fill_twiddles", "Tight32"): {256: (40, 0)},
    ("gemm_compose", "u32"): {256: (56, 0)},
    ("gemm_compose", "u64"): {256: (64, 32)},
    ("gemm_limbs", "u32"): {64: (256, 416), 128: (256, 384)},
    ("gemm_limbs", "u64"): {64: (256, 432), 128: (256, 416)},
    ("gemm_split", "u32"): {256: (48, 0)},
    ("gemm_split", "u64"): {256: (48, 0)},
    ("matmul_integer", "Sum31"): {256: (224, 0)},
    ("matmul_integer", "Sum32"): {256: (120, 0)},
    ("matmul_integer", "Sum62"): {256: (216, 0)},
    ("matmul_narrow", "Sum31"): {256: (128, 96)},
    ("matmul_narrow", "Sum32"): {256: (128, 80)},
    ("matmul_narrow", "Sum62"): {256: (248, 32)},
    ("matmul_points", "Sum31"): {128: (168, 128)},
    ("matmul_points", "Sum32"): {128: (128, 32)},
    ("matmul_points", "Sum62"): {128: (192, 0)},
    ("matmul_points", "Sum64"): {128: (208, 0)},
    ("matmul_points_staged", "Sum31"): {128: (168, 80)},
    ("matmul_points_staged", "Sum32"): {128: (168, 0)},
    ("matmul_points_staged", "Sum62"): {128: (208, 0)},
    ("multiply_leaves", "u32"): {256: (48, 0)},
    ("multiply_leaves", "u64"): {256: (48, 0)},
    ("ntt_forward", "Complex128"): {64: (80, 0), 128: (128, 0), 256: (128, 16), 512: (128, 0)},
    ("ntt_forward", "Float64"): {32: (64, 0), 64: (72, 0), 128: (64, 0), 256: (128, 0), 512: (128, 0)},
    ("ntt_forward", "Lazy32"): {32: (56, 0), 64: (64, 0), 128: (64, 0), 256: (64, 16), 512: (64, 0)},
    ("ntt_forward", "Lazy60"): {32: (96, 0), 64: (80, 0), 128: (80, 0), 256: (128, 112), 512: (128, 64)},
    ("ntt_forward", "Lazy64"): {32: (88, 0), 64: (80, 0), 128: (80, 0), 256: (128, 64), 512: (128, 144)},
    ("ntt_forward", "Strict32"): {32: (56, 0), 64: (64, 0), 128: (64, 0), 256: (128, 0), 512: (128, 0)},
    ("ntt_forward", "Strict64"): {32: (88, 0), 64: (88, 0), 128: (88, 0), 256: (168, 0), 512: (128, 0)},
    ("ntt_forward", "Tight32"): {32: (48, 0), 64: (56, 0), 128: (56, 0), 256: (64, 16), 512: (64, 0)},
    ("ntt_forward_flow", "Complex128"): {128: (128, 0), 256: (128, 0)},
    ("ntt_forward_flow", "Float64"): {256: (80, 0)},
    ("ntt_forward_flow", "Lazy32"): {256: (64, 16)},
    ("ntt_forward_flow", "Lazy60"): {256: (80, 96)},
    ("ntt_forward_flow", "Lazy64"): {256: (80, 128)},
    ("ntt_forward_flow", "Strict32"): {256: (128, 0)},
    ("ntt_forward_flow", "Strict64"): {256: (120, 0)},
    ("ntt_forward_flow", "Tight32"): {256: (64, 32)},
    ("ntt_inverse", "Complex128"): {64: (88, 0), 128: (128, 0), 256: (128, 32), 512: (128, 0)},
    ("ntt_inverse", "Float64"): {32: (72, 0), 64: (72, 0), 128: (72, 0), 256: (128, 0), 512: (128, 0)},
    ("ntt_inverse", "Lazy32"): {32: (56, 0), 64: (64, 0), 128: (64, 0), 256: (64, 32), 512: (64, 0)},
    ("ntt_inverse", "Lazy60"): {32: (96, 0), 64: (80, 0), 128: (80, 0), 256: (128, 48), 512: (128, 240)},
    ("ntt_inverse", "Lazy64"): {32: (88, 0), 64: (80, 0), 128: (80, 0), 256: (128, 32), 512: (128, 48)},
    ("ntt_inverse", "Strict32"): {32: (56, 0), 64: (64, 0), 128: (64, 0), 256: (128, 0), 512: (128, 0)},
    ("ntt_inverse", "Strict64"): {32: (80, 0), 64: (80, 0), 128: (80, 0), 256: (152, 0), 512: (128, 0)},
    ("ntt_inverse", "Tight32"): {32: (56, 0), 64: (64, 0), 128: (64, 0), 256: (64, 80), 512: (64, 0)},
    ("ntt_inverse_flow", "Complex128"): {128: (128, 0), 256: (128, 0)},
    ("ntt_inverse_flow", "Float64"): {256: (80, 0)},
    ("ntt_inverse_flow", "Lazy32"): {256: (64, 16)},
    ("ntt_inverse_flow", "Lazy60"): {256: (80, 64)},
    ("ntt_inverse_flow", "Lazy64"): {256: (80, 64)},
    ("ntt_inverse_flow", "Strict32"): {256: (128, 0)},
    ("ntt_inverse_flow", "Strict64"): {256: (96, 0)},
    ("ntt_inverse_flow", "Tight32"): {256: (64, 16)},
    ("ntt_product", "Float64"): {64: (104, 0), 128: (104, 0), 256: (128, 16)},
    ("ntt_product", "Lazy32"): {64: (72, 0), 128: (72, 0), 256: (128, 32), 512: (128, 0)},
    ("ntt_product", "Lazy60"): {64: (128, 0), 128: (128, 0), 256: (128, 64)},
    ("ntt_product", "Lazy64"): {64: (128, 0), 128: (128, 0), 256: (128, 128)},
    ("ntt_product", "Strict32"): {64: (64, 0), 128: (64, 0), 256: (128, 0), 512: (128, 0)},
    ("ntt_product", "Strict64"): {64: (96, 0), 128: (96, 0), 256: (160, 0)},
    ("ntt_product", "Tight32"): {64: (72, 0), 128: (72, 0), 256: (128, 32), 512: (128, 0)},
    ("permute", "u32"): {256: (32, 0)},
    ("permute", "u64"): {256: (32, 0)},
    ("pointwise", "u32"): {256: (56, 0)},
    ("pointwise", "u64"): {256: (56, 0)},
    ("reduce_integers", "u32"): {256: (32, 0)},
    ("reduce_integers", "u64"): {256: (32, 0)},
}


def violations(kernel: Kernel, usage: Usage) -> list[str]:
    """What a kernel takes beyond its allowance."""
    registers, spilled = BUDGET.get((kernel.template, kernel.word), {}).get(kernel.threads, (0, 0))
    found = []
    if usage.registers > registers:
        found.append(f"{usage.registers} registers, allowed {registers}")
    if usage.spilled > spilled:
        found.append(f"{usage.spilled} bytes spilled, allowed {spilled}")
    return found


def _suggestion(measured: Iterable[tuple[Kernel, Usage]]) -> str:
    """A BUDGET that the measured kernels just keep, in round numbers."""
    most: dict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)
    for kernel, usage in measured:
        by_threads = most[kernel.template, kernel.word]
        registers, spilled = by_threads.get(kernel.threads, (0, 0))
        by_threads[kernel.threads] = (
            max(registers, -(-usage.registers // 8) * 8),
            max(spilled, -(-usage.spilled // 16) * 16),
        )
    lines = [f"    {key}: {dict(sorted(most[key].items()))}," for key in sorted(most)]
    return "\n".join(["BUDGET = {", *lines, "}"]).replace("'", '"')


# ---- the command line ----


@dataclass(frozen=True)
class _Job:
    arch: int
    kernels: tuple[Kernel, ...]  # of one file


def _compile(job: _Job) -> tuple[_Job, dict[str, Usage] | str]:
    try:
        return job, Compiler().compile(
            job.kernels[0].file, [kernel.expression for kernel in job.kernels], job.arch
        )
    except RuntimeError as error:
        return job, str(error)


def _jobs(arch: int, kernels: Sequence[Kernel]) -> Iterator[_Job]:
    """A dozen at a time, of unlike cost: each program parses its file anew."""
    by_file = defaultdict(list)
    for kernel in kernels:
        by_file[kernel.file].append(kernel)
    for group in by_file.values():
        parts = -(-len(group) // 12)
        for i in range(parts):
            yield _Job(arch, tuple(group[i::parts]))


def _row(kernels: Sequence[tuple[Kernel, Usage]]) -> str:
    registers = [usage.registers for _, usage in kernels]
    spilled = max(usage.spilled for _, usage in kernels)
    first = kernels[0][0]
    least, most = min(registers), max(registers)
    spread = f"{least}-{most}" if least < most else f"{most}"
    line = f"  {first.template:16s} {first.word:9s} {first.threads:4d} threads  {spread:>7s} registers"
    return line + (f"  {spilled} bytes spilled" if spilled else "") + f"  ({len(kernels)})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print a table, and say what is not allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", type=int, choices=CARDS, action="append", help="instead of all")
    parser.add_argument("--all", action="store_true", help="every instantiation, not a part of them")
    parser.add_argument("--budget", action="store_true", help="print a BUDGET of what was measured")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    major, minor = Compiler().version
    print(f"NVRTC {major}.{minor}")
    sources(".cuh")  # before the other processes start
    found: list[str] = []
    jobs: list[_Job] = []
    total = 0
    for arch in options.arch or CARDS:
        kernels = record(CARDS[arch], ALL if options.all else PART)
        total += len(kernels)
        jobs += list(_jobs(arch, kernels))
    rows: dict[int, dict[tuple[str, str, int], list[tuple[Kernel, Usage]]]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for job, result in pool.map(_compile, jobs):
            if isinstance(result, str):
                found.append(result)
                continue
            groups = rows.setdefault(job.arch, defaultdict(list))
            for kernel in job.kernels:
                usage = result[kernel.expression]
                groups[kernel.template, kernel.word, kernel.threads].append((kernel, usage))
                found += [f"sm_{job.arch} {kernel.expression}: {text}" for text in violations(kernel, usage)]
    for arch, groups in rows.items():
        print(f"sm_{arch}")
        for key in sorted(groups):
            print(_row(groups[key]))
    if options.budget:
        print(_suggestion(pair for groups in rows.values() for group in groups.values() for pair in group))
    print(f"{total} kernels in {time.monotonic() - began:.0f} s")
    for text in found:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
