"""The random stream in host memory: ChaCha20 of the cryptography package.

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
_COUNTED = 1 << 32  # blocks that the package can count


@cache
def _package() -> Callable[[bytes, bytes], Any]:
    """Return the function of the package that makes a ChaCha20 cipher of a key and a nonce."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    def cipher(key: bytes, nonce: bytes) -> Any:
        return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()

    with no_fork:  # the package registers all its ciphers with the first one, under a lock of its own
        cipher(bytes(32), bytes(16))
    return cipher


class Keystream:
    """The bytes of a key's stream for a limb, from a byte on.

    The nonce is the limb as uint32, then 0 as uint32, little-endian; the block counter has 64 bits.
    """

    def __init__(self, key: bytes, limb: int, offset: int) -> None:
        self._key, self._nonce = key, limb.to_bytes(4, "little") + bytes(4)
        self._block, skip = divmod(offset, BLOCK)
        self._left = 0
        if skip:
            self.fill(np.empty(skip, np.uint8), np.zeros(skip, np.uint8))

    def fill(self, out: Array, zeros: Array) -> None:
        """Write the next bytes of the stream to `out`, uint8; zeros: as many, the plaintext of the cipher."""
        done, size = 0, len(out)
        while done < size:
            if not self._left:
                self._begin()
            count = min(size - done, self._left)
            self._cipher.update_into(zeros[:count].data, out[done : done + count].data)
            done, self._left = done + count, self._left - count

    def _begin(self) -> None:
        # The package counts blocks in 32 bits; the upper half of the counter goes through the nonce.
        nonce = self._block.to_bytes(8, "little") + self._nonce
        self._cipher = _package()(self._key, nonce)
        blocks = _COUNTED - self._block % _COUNTED
        self._left, self._block = blocks * BLOCK, self._block + blocks
