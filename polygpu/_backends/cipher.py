"""The random stream in host memory, by ChaCha20 from the package `cryptography`.

Source of the cipher: Bernstein 2008, "ChaCha, a variant of Salsa20".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .._core.locks import no_fork
from .records import Array

BLOCK = 64  # bytes of a ChaCha20 block
_COUNTED = 1 << 32  # blocks after which the package's 32-bit counter would overflow


@cache
def _package() -> Callable[[bytes, bytes], Any]:
    """Return a function that makes a ChaCha20 cipher from a key and a nonce of 16 bytes."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    def cipher(key: bytes, nonce: bytes) -> Any:
        return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()

    with no_fork:  # in the first call, the package holds a lock while it registers ciphers
        cipher(bytes(32), bytes(16))
    return cipher


class Keystream:
    """The bytes of a key's stream for a limb, beginning with byte `offset`.

    The nonce is the limb's index as uint32, then 0 as uint32, little-endian; the block counter has 64 bits.
    """

    def __init__(self, key: bytes, limb: int, offset: int) -> None:
        self._key, self._nonce = key, limb.to_bytes(4, "little") + bytes(4)
        self._block, skip = divmod(offset, BLOCK)
        self._left = 0
        if skip:
            self.fill(np.empty(skip, np.uint8), np.zeros(skip, np.uint8))

    def fill(self, out: Array, zeros: Array) -> None:
        """Write the next bytes of the stream to `out`, uint8.

        zeros: zero bytes, at least as many as `out` has. Encrypting them gives the stream.
        """
        done, size = 0, len(out)
        while done < size:
            if not self._left:
                self._begin()
            count = min(size - done, self._left)
            self._cipher.update_into(zeros[:count].data, out[done : done + count].data)
            done, self._left = done + count, self._left - count

    def _begin(self) -> None:
        # The package increments only the lower 32 bits of the counter. So a cipher object encrypts at most
        # 2^32 blocks. The upper half of the counter is part of the 16-byte nonce.
        nonce = self._block.to_bytes(8, "little") + self._nonce
        self._cipher = _package()(self._key, nonce)
        blocks = _COUNTED - self._block % _COUNTED
        self._left, self._block = blocks * BLOCK, self._block + blocks
