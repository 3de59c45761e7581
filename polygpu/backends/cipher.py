"""The random stream in host memory: ChaCha20 of the cryptography package.

Source of the cipher: Bernstein 2008, "ChaCha, a variant of Salsa20".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Array

BLOCK = 64  # bytes of a ChaCha20 block
_COUNTED = 1 << 32  # blocks that the package can count


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
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        nonce = self._block.to_bytes(8, "little") + self._nonce
        self._cipher: Any = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        blocks = _COUNTED - self._block % _COUNTED
        self._left, self._block = blocks * BLOCK, self._block + blocks
