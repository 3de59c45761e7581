"""Complex Fourier transforms and cyclic convolutions of rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..._core.plans.fft import unit_roots
from .. import Array
from .copies import copy
from .device import Shared
from .launch import POINTER, U64, Context, Launch, Recipe, Struct, cbool

FFT = Struct("fft.cu", "FftParameters<double>", ("x y twiddles", POINTER), ("rows", U64))
CONVOLVE = Struct("fft.cu", "ConvolveParameters<double>", ("a b y twiddles", POINTER), ("rows rows_b", U64))


def fft_launch(n: int, dtype: np.dtype[Any], rows: int, inverse: bool, **values: int) -> Launch:
    """Return the launch that transforms rows of n complex numbers by FFT."""
    return _launch(f"fft<{{}}, {cbool(inverse)}>", n, dtype, rows, FFT(rows=rows, **values))


def convolve_launch(n: int, dtype: np.dtype[Any], rows: int, **values: int) -> Launch:
    """Return the launch that computes cyclic convolutions of rows of n complex numbers."""
    return _launch("fft_convolve<{}>", n, dtype, rows, CONVOLVE(rows=rows, **values))


def _launch(kernel: str, n: int, dtype: np.dtype[Any], rows: int, parameters: bytes) -> Launch:
    """Return the launch of a kernel on `rows` rows of n complex numbers of type `dtype`.

    kernel: the name. In it, {} stands for two template arguments: the real type, and log2 of n.
    """
    lanes = max(1, n // 8)
    threads = max(128, lanes)
    rows_of_block = threads // lanes
    kernel = kernel.format(f"{'float' if dtype == np.complex64 else 'double'}, {n.bit_length() - 1}")
    shared = rows_of_block * n * dtype.itemsize
    return Launch("fft.cu", kernel, (-(-rows // rows_of_block), 1), threads, parameters, shared)


def fft(gpu: Context, x: Array, out: Array, inverse: bool) -> None:
    rows, n = x.shape
    if n == 1:
        copy(gpu, x, out)
        return

    def recipe() -> Recipe:
        twiddles = _twiddles(gpu, n, x.dtype)
        made = Recipe(2, twiddles)
        where = {"x": 0, "y": 0, "twiddles": gpu.address(twiddles.value)}
        made.launch(fft_launch(n, x.dtype, rows, inverse, **where), 0, 1)
        return made

    gpu.run(gpu.handles, ("fft", x.shape, x.dtype, inverse), recipe, x, out)


def convolve(gpu: Context, a: Array, b: Array, out: Array) -> None:
    rows, n = a.shape

    def recipe() -> Recipe:
        twiddles = _twiddles(gpu, n, a.dtype)
        made = Recipe(3, twiddles)
        where = {"a": 0, "b": 0, "y": 0, "twiddles": gpu.address(twiddles.value), "rows_b": len(b)}
        made.launch(convolve_launch(n, a.dtype, rows, **where), 0, 1, 2)
        return made

    gpu.run(gpu.handles, ("convolve", a.shape, b.shape, a.dtype), recipe, a, b, out)


def _twiddles(gpu: Context, n: int, dtype: np.dtype[Any]) -> Shared:
    return gpu.kept(
        gpu.handles, f"fft twiddles {n} {dtype}", lambda: (gpu.from_host(_fft_twiddles(n, dtype)), ())
    )


@lru_cache(maxsize=64)
def _fft_twiddles(n: int, dtype: np.dtype[Any]) -> Array:
    """Return the table of twiddles of cuda/fft.cu.

    Consider a round of radix R, and let P be the product of the radices of the rounds before it. Entry
    r * P + j of the table, with j < P and 0 < r < R, is w^(r * j) for w = exp(-2 pi i / (P * R)).
    """
    table = np.ones(n, dtype)
    log_p, log_r = 0, (n.bit_length() - 2) % 3 + 1
    while 1 << log_p + log_r < n:
        log_p, log_r = log_p + log_r, 3
        r, i = np.divmod(np.arange(1 << log_p, 1 << log_p + log_r), 1 << log_p)
        table[1 << log_p : 1 << log_p + log_r] = unit_roots(-r * i, 1 << log_p + log_r)
    table.setflags(write=False)
    return table
