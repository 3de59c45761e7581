"""Tables for the Chinese remainder theorem: from residues to integers of several words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..locks import cached_property
from .basis import Basis

Table = np.ndarray[Any, np.dtype[np.uint64]]
_PREFIX_BITS = 66  # of a product of limbs that determines any int64: 64 bits, the sign, one bit more


def words_of(modulus: int) -> int:
    """64-bit words that hold integers in (-Q, Q) in two's complement."""
    return modulus.bit_length() // 64 + 1


def norm_words(modulus: int, n: int, p: float) -> int:
    """Words of a norm of n centred integers: largest size, sum of sizes (p = 1) or of squares (p = 2)."""
    words = words_of(modulus)
    return words + 1 if p == 1 else 2 * words + 1 if p == 2 else words


@dataclass(frozen=True, eq=False)
class Composition:
    """Constants of the Chinese remainder theorem: x = sum of (x_i inverse_i mod q_i) Q / q_i, modulo Q."""

    basis: Basis

    @cached_property
    def modulus(self) -> int:
        """Q."""
        return prod(self.basis.moduli)

    @cached_property
    def inverse(self) -> Table:
        """(Q / q_i)^-1 mod q_i."""
        return _words([pow(self.modulus // q, -1, q) for q in self.basis.moduli])

    def tables(self, bits: int) -> tuple[Table, ...]:
        """Return the tables of the CPU core, which adds digits of `bits` bits, or zeros for one wide modulus.

        They are inverse; terms and the modulus, in digits that hold bits(Q) + 3 bits; prefix_inverse; bounds.
        """
        if self.basis.words > 1:
            return (_words([0]),) * 5
        count = -(-(self.modulus.bit_length() + 3) // bits)
        modulus = digits_of(self.modulus, bits, count)
        return self.inverse, self.terms(bits, count), modulus, self.prefix_inverse, self.bounds

    def terms(self, bits: int, digits: int) -> Table:
        """Return little-endian digits of `bits` bits: of each Q / q_i, then of -Q.

        They are an array (digits, limbs + 1). -Q is taken modulo 2^(bits digits).
        """
        values = [self.modulus // q for q in self.basis.moduli]
        values.append((1 << bits * digits) - self.modulus)
        return np.ascontiguousarray(np.stack([digits_of(v, bits, digits) for v in values], axis=-1))

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """Return the first moduli, whose product is Q or has enough bits for any machine integer."""
        moduli = self.basis.moduli
        count = next(
            (i for i in range(1, len(moduli)) if prod(moduli[:i]).bit_length() >= _PREFIX_BITS), len(moduli)
        )
        return moduli[:count]

    @cached_property
    def prefix_inverse(self) -> Table:
        """(m, m): 1 / q_j mod q_i for j < i, of the prefix."""
        rows = [
            [pow(p, -1, q) if j < i else 0 for j, p in enumerate(self.prefix)]
            for i, q in enumerate(self.prefix)
        ]
        return _words(rows)

    @cached_property
    def bounds(self) -> Table:
        """(2, 2, m), not centred and centred, in mixed-radix digits of the prefix, whose product is P.

        A number of [0, P) up to the first bound is an int64. Of centred integers, one from the second bound
        on is an int64 once P is subtracted. All others do not fit.
        """
        whole = prod(self.prefix)
        half, most = (whole + 1) // 2, (1 << 63) - 1
        bounds = [(min(most, whole - 1), 0), (min(most, half - 1), max(whole - (1 << 63), half))]
        return _words([[self._mixed(x) for x in pair] for pair in bounds])

    def _mixed(self, x: int) -> list[int]:
        digits = []
        for q in self.prefix:
            x, digit = divmod(x, q)
            digits.append(digit)
        return digits


@lru_cache(maxsize=256)
def composition_of(basis: Basis) -> Composition:
    """Return the tables of a basis, made when first asked for."""
    return Composition(basis)


def digits_of(x: int, bits: int, count: int) -> Table:
    """Return the first `count` little-endian digits of x, of `bits` bits each."""
    mask = (1 << bits) - 1
    return _words([x >> bits * i & mask for i in range(count)])


def _words(x: Sequence[Any]) -> Table:
    return np.array(x, dtype=np.uint64)
