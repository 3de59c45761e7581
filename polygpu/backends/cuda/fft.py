"""Complex transforms of rows, and their convolutions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...plans.fft import unit_roots
from .. import Array
from .launch import POINTER, U64, Launch, Launcher, Struct, cbool

FFT = Struct("fft.cu", "FftParameters<double>", ("x y twiddles", POINTER), ("rows", U64))
CONVOLVE = Struct("fft.cu", "ConvolveParameters<double>", ("a b y twiddles", POINTER), ("rows rows_b", U64))


def fft_launch(n: int, dtype: np.dtype[Any], rows: int, inverse: bool, **values: int) -> Launch:
    """Transforms of rows."""
    return _launch(f"fft<{{}}, {cbool(inverse)}>", n, dtype, rows, FFT(rows=rows, **values))


def convolve_launch(n: int, dtype: np.dtype[Any], rows: int, **values: int) -> Launch:
    """Convolutions of rows."""
    return _launch("fft_convolve<{}>", n, dtype, rows, CONVOLVE(rows=rows, **values))


def _launch(kernel: str, n: int, dtype: np.dtype[Any], rows: int, parameters: bytes) -> Launch:
    """Of a kernel on rows, whose name lacks the type and log2 of the length."""
    lanes = max(1, n // 8)
    threads = max(128, lanes)
    rows_of_block = threads // lanes
    kernel = kernel.format(f"{'float' if dtype == np.complex64 else 'double'}, {n.bit_length() - 1}")
    shared = rows_of_block * n * dtype.itemsize
    return Launch("fft.cu", kernel, (-(-rows // rows_of_block), 1), threads, parameters, shared)


class Fft(Launcher):
    """Kernels of fft.cu."""

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """See Backend."""
        rows, n = x.shape
        if n == 1:
            with self._scope:
                out[...] = x
            return
        where = {"x": self.address(x), "y": self.address(out), "twiddles": self._twiddles(x)}
        self.launch(fft_launch(n, x.dtype, rows, inverse, **where))

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        rows, n = a.shape
        where = {"a": self.address(a), "b": self.address(b), "y": self.address(out)}
        where |= {"twiddles": self._twiddles(a), "rows_b": len(b)}
        self.launch(convolve_launch(n, a.dtype, rows, **where))

    def _twiddles(self, x: Array) -> int:
        return self.address(self.constant(_fft_twiddles(x.shape[-1], x.dtype)))


@lru_cache(maxsize=64)
def _fft_twiddles(n: int, dtype: np.dtype[Any]) -> Array:
    """Twiddles of cuda/fft.cu: exp(-2 pi i r i / (P R)) at r P + i, for the round after those of P."""
    table = np.ones(n, dtype)
    log_p, log_r = 0, (n.bit_length() - 2) % 3 + 1
    while 1 << log_p + log_r < n:
        log_p, log_r = log_p + log_r, 3
        r, i = np.divmod(np.arange(1 << log_p, 1 << log_p + log_r), 1 << log_p)
        table[1 << log_p : 1 << log_p + log_r] = unit_roots(-r * i, 1 << log_p + log_r)
    table.setflags(write=False)
    return table
