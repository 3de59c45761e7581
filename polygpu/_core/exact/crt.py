"""Conversions of Python integers to residues and words, and of words to Python integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def words_to_ints(words: NDArray[Any]) -> NDArray[np.object_]:
    """Return Python ints (*batch, n) from words (*batch, words, n), the lowest word first."""
    count = words.shape[-2]
    flat = np.ascontiguousarray(np.moveaxis(words, -2, -1)).astype("<u8").tobytes()
    size = 8 * count
    values = [int.from_bytes(flat[i : i + size], "little") for i in range(0, len(flat), size)]
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out.reshape(*words.shape[:-2], words.shape[-1])


def ints_to_words(x: NDArray[np.object_], words: int) -> NDArray[np.uint64]:
    """Return words (*batch, words, n), the lowest word first, of non-negative Python ints (*batch, n)."""
    flat = b"".join(int(v).to_bytes(8 * words, "little") for v in x.ravel())
    array = np.frombuffer(flat, "<u8").reshape(*x.shape, words).astype(np.uint64)
    return np.ascontiguousarray(np.moveaxis(array, -1, -2))


def signed_ints(words: NDArray[np.uint64], out: NDArray[np.object_] | None = None) -> NDArray[np.object_]:
    """Return Python ints (*shape) from words in two's complement (*shape, words), the lowest word first.

    out: a C-contiguous array (*shape) for the result, or None for a new one.
    """
    shape, count = words.shape[:-1], words.shape[-1]
    if out is None:
        out = np.empty(shape, dtype=object)
    if count == 1:
        out[...] = words[..., 0].view(np.int64)
        return out
    whole = np.ascontiguousarray(words, "<u8").view(f"V{8 * count}").ravel().tolist()
    from_bytes = int.from_bytes
    out.reshape(-1)[:] = [from_bytes(x, "little", signed=True) for x in whole]
    return out


def signed_words(x: list[int]) -> NDArray[np.uint64] | None:
    """Return ints as words in two's complement, (len(x), words), the lowest word first.

    Return None if the ints differ so much in size that most of the words would only repeat signs.
    """
    sizes = list(map(int.bit_length, x))
    words = max(sizes, default=0) // 64 + 1
    if words * len(x) > 4 * (sum(sizes) // 64 + len(x)):
        return None
    size = 8 * words
    flat = b"".join([v.to_bytes(size, "little", signed=True) for v in x])
    return np.frombuffer(flat, "<u8").astype(np.uint64, copy=False).reshape(len(x), words)


def reduce_ints(moduli: tuple[int, ...], x: NDArray[np.object_], out: NDArray[Any]) -> None:
    """Write x modulo moduli[i] to the first `count` entries of row i of `out`, and zeros to the others.

    x: Python ints, (*batch, count). out: (*batch, rows, n). For one modulus above 2^64, the rows of `out` are
    the words of residues.
    """
    count = x.shape[-1]
    out[..., count:] = 0
    if out.shape[-2] > len(moduli):  # one modulus above 2^64: the rows are the words of residues
        out[..., :count] = ints_to_words(x % moduli[0], out.shape[-2])
        return
    for i, q in enumerate(moduli):
        out[..., i, :count] = (x % q).astype(out.dtype)
