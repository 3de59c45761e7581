"""Complex transforms of rows, and their convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...plans.fft import unit_roots
from .. import Array
from .launch import Launcher, cbool


class Fft(Launcher):
    """Kernels of fft.cu."""

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """See Backend."""
        n = x.shape[-1]
        if n == 1:
            with self._here:
                out[...] = x
            return
        self._run_fft(f"fft<{{}}, {{}}, {cbool(inverse)}>", [x, out])

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        self._run_fft("fft_convolve<{}, {}>", [a, b, out], np.uint64(len(b)))

    def _run_fft(self, expression: str, arrays: Sequence[Array], *more: Any) -> None:
        """Launch a kernel of fft.cu on rows of arrays; its name lacks the type and log2 of the length."""
        rows, n = arrays[0].shape
        dtype = arrays[0].dtype
        lanes = max(1, n // 8)
        threads = max(128, lanes)
        rows_of_block = threads // lanes
        args = [*arrays, self.constant(_fft_twiddles(n, dtype)), np.uint64(rows), *more]
        shared = rows_of_block * n * dtype.itemsize
        name = expression.format("float" if dtype == np.complex64 else "double", n.bit_length() - 1)
        self._run("fft.cu", name, -(-rows // rows_of_block), threads, args, shared)


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
