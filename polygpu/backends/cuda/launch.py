"""Kernels of cuda/, compiled at run time and launched on the current stream; operands as they want them."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...plans.basis import Basis
from .. import Array, cuda_sources, load
from .device import INSTALL, Device

THREADS = 256  # of a block of the kernels that work entry by entry, and of products of integers
ALIGNMENT = 16  # bytes that a thread moves at once (cuda/memory.cuh)
_MAX_AXES = 6  # rows.cuh

_log = logging.getLogger("polygpu")


# ---- what kernels read ----


@cache
def _digest() -> str:
    """Of all CUDA sources: CuPy's cache of compiled kernels does not see edited headers."""
    digest = hashlib.sha256()
    folder = cuda_sources()
    for name in sorted(os.listdir(folder)):
        if name.endswith((".cu", ".cuh")):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def _constants(moduli: Sequence[int]) -> Array:
    """struct Modulus of cuda/modulus.cuh, one a row."""
    table = np.zeros((len(moduli), 16), np.uint64)
    for row, q in zip(table, moduli, strict=True):
        bits, shift = q.bit_length(), 64 - q.bit_length()
        row[0], row[1] = q % (1 << 64), q - 1
        if bits <= 64:
            row[2] = q << shift
            row[3] = ((1 << 128) - 1) // (q << shift) - (1 << 64)
        row[4] = (1 << (bits + 62)) // q if bits <= 62 else 0
        row[5] = (1 << 64) // q if q > 1 else 0
        row[6:7].view(np.float64)[0] = 1.0 / q
        row[7] = bits | max(shift, 0) << 32
        row[8:10].view(np.uint32)[:] = [x % (1 << 32) for x in (q, -q, 2 * q, -2 * q)]
        row[10:14] = [x % (1 << 64) for x in (2 * q, 3 * q, 6 * q, -q)]
        power = (1 << 64) % q
        row[14:] = power, (power << 64) // q
    return table


@lru_cache(maxsize=256)
def _layout(shape: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> Array:
    """Batch shape and operands' steps in rows, as cuda/rows.cuh wants them; shapes end in the limbs."""
    limbs, batch = shape[-1], shape[:-1]
    table = np.zeros((1 + len(operands), _MAX_AXES), np.uint64)
    table[0] = 1
    table[0, _MAX_AXES - len(batch) :] = batch
    for i, operand in enumerate(operands):
        step = limbs
        for axis, size in enumerate(reversed(operand[:-1])):
            if size != 1:
                table[i + 1, _MAX_AXES - 1 - axis] = step
            step *= size
    return table


def ctype(basis: Basis) -> str:
    """The type of residues in memory, a template argument."""
    return "u32" if basis.dtype == np.uint32 else "u64"


def cbool(value: bool) -> str:
    """A flag, as a template argument."""
    return "true" if value else "false"


# ---- launching ----


class Launcher(Device):
    """Launches kernels; what it launches is up to the operations that inherit from it."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._kernels: dict[str, Any] = {}

    def _kernel(self, file: str, expression: str) -> Any:
        kernel = self._kernels.get(expression)
        if kernel is None:
            began = time.perf_counter()
            with open(os.path.join(cuda_sources(), file)) as source:
                code = source.read()
            try:
                module = self.xp.RawModule(
                    code=f"{code}\n// sources {_digest()}\n",
                    options=("-std=c++17", f"-I{cuda_sources()}"),
                    name_expressions=(expression,),
                )
                kernel = self._kernels[expression] = module.get_function(expression)
            except Exception as error:  # of the compiler, of the loader, of the driver
                raise DeviceError(
                    f"{self.name}: {expression} does not compile or load: {error}; "
                    f"CuPy {self.xp.__version__} needs NVRTC and a driver of its CUDA version: {INSTALL}"
                ) from error
            _log.info("%s: %s in %.2f s", self.name, expression, time.perf_counter() - began)
        return kernel

    def _run(
        self,
        file: str,
        expression: str,
        grid: int,
        threads: int,
        args: Sequence[Any],
        shared: int = 0,
        rows: int = 1,
    ) -> None:
        """Launch on the current stream; Python ints go as 64-bit, np.uint32 as 32-bit arguments."""
        if grid == 0:
            return
        with self._here:
            kernel = self._kernel(file, expression)
            if shared > 48 << 10:
                kernel.max_dynamic_shared_size_bytes = shared
            kernel((grid, rows), (threads,), tuple(args), shared_mem=shared)

    def _entrywise(
        self, file: str, expression: str, entries: int, args: Sequence[Any], rows: int = 1
    ) -> None:
        self._run(file, expression, -(-entries // THREADS), THREADS, args, rows=rows)

    # ---- operands ----

    def _moduli(self, basis: Basis) -> Array:
        moduli: Array = self._shared(
            basis.handles, "moduli", lambda: self.from_host(_constants(basis.moduli))
        )
        return moduli

    def _aligned(self, *arrays: Array) -> bool:
        """Whether kernels may move their values in chunks."""
        return all(self.address(x) % ALIGNMENT == 0 for x in arrays)

    def _spread(self, shape: tuple[int, ...], *operands: Array) -> tuple[list[Array], Array, np.uint32]:
        """Operands of a result (*batch, rows, n) as kernels want them, the layout (rows.cuh), and `dense`."""
        if len(shape) - 2 > _MAX_AXES:
            operands = tuple(self._broadcast(x, shape) for x in operands)
        if all(x.shape[:-1] == shape[:-1] for x in operands):
            return list(operands), operands[0], np.uint32(True)  # no kernel reads a dense layout
        layout = _layout(shape[:-1], tuple(x.shape[:-1] for x in operands))
        return list(operands), self.constant(layout), np.uint32(False)

    def _broadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        """A copy in the full shape; the operand itself where it has that."""
        if x.shape == shape:
            return x
        with self._here:
            return self.xp.ascontiguousarray(self.xp.broadcast_to(x, shape))  # type: ignore[no-any-return]

    def _repeated(self, x: Array, shape: tuple[int, ...]) -> Array:
        """For kernels that repeat an operand over leading axes: other ways to broadcast take a copy."""
        return x if shape[len(shape) - x.ndim :] == x.shape else self._broadcast(x, shape)

    def _on_host(self, method: str, *args: Any) -> None:
        """A wide modulus is computed on by the CPU backend; the last argument is the result."""
        *operands, out = args
        host = [self.to_host(x) if isinstance(x, self.xp.ndarray) else x for x in operands]
        result = np.empty(out.shape, out.dtype)
        getattr(load("cpu"), method)(*host, result)
        out.set(result)
