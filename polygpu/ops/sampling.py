"""Uniform polynomials from a seed: a ChaCha20 stream whose values do not depend on how it is cut.

The stream, fixed by test vectors (tests/test_sampling.py):
  key      SHA-256("polygpu uniform 1" || tag || seed), tag and seed being "int:" and Python's hex(seed),
           "str:" and its UTF-8, or "bytes:" and the bytes
  nonce    8 bytes: limb as uint32, then 0 as uint32, little-endian; the block counter has 64 bits
  number   coefficient j of polynomial i is the little-endian integer of the W + 1 words of 64 bits at
           byte 8 (W + 1) (i n + j), W = words of one residue, mod q: bias at most 2^-64 (wide reduction)
Source of the cipher: Bernstein 2008, "ChaCha, a variant of Salsa20".
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..arrays import empty
from ..backends import Array, host
from ..checks import integer, shown
from ..errors import NotAnInteger, ParameterError
from ..plans.basis import Basis

_CHUNK_WORDS = 1 << 20  # words of stream held at a time
_BLOCK = 64  # bytes of a ChaCha20 block
_COUNTED = 1 << 32  # blocks the library counts
_STREAM = _BLOCK << 64  # bytes of a key's stream for a limb

Seed = int | bytes | str | None


def key_of(seed: Seed) -> bytes:
    """The cipher's key for a seed: an int, bytes or str; None takes one from the operating system."""
    import hashlib
    import secrets

    if seed is None:
        tagged = b"os:" + secrets.token_bytes(32)
    elif isinstance(seed, (bytes, str)):
        tagged = b"bytes:" + seed if isinstance(seed, bytes) else b"str:" + _utf8(seed)
    else:
        try:
            tagged = b"int:" + hex(integer(seed, "seed")).encode()
        except NotAnInteger:
            raise NotAnInteger(f"seed: {shown(seed)} must be an int, bytes, str or None") from None
    return hashlib.sha256(b"polygpu uniform 1" + tagged).digest()


def _utf8(seed: str) -> bytes:
    try:
        return seed.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"seed: {seed!r} has no UTF-8; give bytes or an int") from None


def stream(key: bytes, limb: int, offset: int, size: int) -> Array:
    """`size` bytes of the key's stream for a limb, from byte `offset`, as uint8."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    first, skip = divmod(offset, _BLOCK)
    buffer = np.zeros(skip + size, np.uint8)
    done = 0
    while done < len(buffer):
        # The library counts blocks in 32 bits; the upper half of the counter goes through the nonce.
        block = first + done // _BLOCK
        count = min(len(buffer) - done, (_COUNTED - block % _COUNTED) * _BLOCK)
        nonce = block.to_bytes(8, "little") + limb.to_bytes(4, "little") + bytes(4)
        part = buffer[done : done + count].data
        Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update_into(part, part)
        done += count
    return buffer[skip:]


def uniform(basis: Basis, n: int, batch: tuple[int, ...], seed: Seed, start: int) -> Array:
    """Residues (*batch, rows, n) uniform in [0, q), the polynomials start, start + 1, ..., in host memory."""
    if integer(start, "start") < 0:
        raise ParameterError(f"start: {shown(start)} must be at least 0")
    if start >> 48:
        raise ParameterError(f"start: {shown(start)} must be below 2**48")
    compute = host()
    out = empty(compute, (*batch, basis.rows, n), basis.dtype)
    key, words, items = key_of(seed), basis.words + 1, prod(batch)
    last = _STREAM // (8 * words * n)
    if start + items > last:
        raise ParameterError(
            f"start: {start} and {shown(items)} polynomials from there; at n = {n} the stream has {last}"
        )
    flat = out.reshape(items, basis.rows, n)
    step = max(1, _CHUNK_WORDS // (words * n))
    for limb in range(len(basis.moduli)):
        for first in range(0, items, step):
            count = min(step, items - first)
            size = 8 * words * n
            raw = stream(key, limb, size * (start + first), size * count)
            numbers = np.ascontiguousarray(raw).view("<u8").astype(np.uint64, copy=False)
            compute.reduce_words(basis, numbers.reshape(count, n, words), limb, flat[first : first + count])
    return out
