"""Available host memory, and errors for arrays and tables that do not fit in it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .. import _cpu
from ..errors import OutOfHostMemory, TablesTooLarge

SMALL_ARRAY = 1 << 26  # bytes; up to this size an array is allocated without a check of available memory


def check_memory(needed: int, n: int, moduli: tuple[int, ...]) -> None:
    """Raise TablesTooLarge if tables of `needed` bytes do not fit in the available memory."""
    if not _fits(needed):
        raise TablesTooLarge(
            f"Tables for n={n} and len(moduli)={len(moduli)} need {_gib(needed)} of memory, and only "
            f"{_gib(_available_memory())} are available. Use a smaller n, or fewer moduli at a time."
        )


def new_array(
    shape: tuple[int, ...], dtype: np.dtype[Any], zero: bool = False
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a new array that begins at a multiple of 64 bytes. If `zero` is True, fill it with zeros.

    Raises:
        OutOfHostMemory: the array does not fit in the available memory.
    """
    array = _cpu.empty(shape, dtype, zero, SMALL_ARRAY)
    if array is None:
        size = prod(shape) * dtype.itemsize
        check_array(size)
        array = _cpu.empty(shape, dtype, zero, size) if size >> 63 == 0 else None
        if array is None:  # the system refused, or the array is empty but has an axis that is too long
            raise no_memory(size)
    return array


def check_array(size: int) -> None:
    """Raise OutOfHostMemory if an array of `size` bytes does not fit in the available memory."""
    if size > SMALL_ARRAY and not _fits(size):
        raise no_memory(size)


def no_memory(size: int) -> OutOfHostMemory:
    """Return the error to raise if an array of `size` bytes does not fit in memory."""
    return OutOfHostMemory(
        f"An array of {_gib(size)} is needed, and only {_gib(_available_memory())} are available. Use "
        "smaller batches."
    )


def _fits(size: int) -> bool:
    """Return whether `size` bytes are available.

    If not, release the memory kept for later results, and check again.
    """
    if size <= _available_memory():
        return True
    _cpu.pool_release()
    return size <= _available_memory()


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >> 1000 == 0 else f"2^{size.bit_length() - 31} GiB"


def _available_memory() -> int:
    """Return the number of bytes that the machine, the container and this process's limits leave free."""
    return _cpu.available_memory()
