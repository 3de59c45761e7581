"""Tables of the Chinese remainder theorem, which turn residues into integers of several words."""

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
_PREFIX_BITS = 66  # an int64 is determined modulo a product of this many bits; 65 would suffice


def words_of(modulus: int) -> int:
    """Return how many 64-bit words hold any integer in (-modulus, modulus) in two's complement."""
    return modulus.bit_length() // 64 + 1


def norm_words(modulus: int, n: int, p: float) -> int:
    """Return the number of 64-bit words that hold a norm of n centred integers modulo `modulus`.

    The norm is the sum of absolute values for p = 1, the sum of squares for p = 2, else the maximum.
    """
    words = words_of(modulus)
    return words + 1 if p == 1 else 2 * words + 1 if p == 2 else words


@dataclass(frozen=True, eq=False)
class Composition:
    """Constants of the Chinese remainder theorem.

    Let Q be the product of the moduli q_i, and inverse_i = (Q / q_i)^-1 mod q_i. The integer x with residues
    x_i modulo q_i is the sum of (x_i * inverse_i mod q_i) * Q / q_i, modulo Q.
    """

    basis: Basis

    @cached_property
    def modulus(self) -> int:
        """Return Q, the product of the moduli."""
        return prod(self.basis.moduli)

    @cached_property
    def inverse(self) -> Table:
        """Return (Q / q_i)^-1 mod q_i for each modulus q_i, where Q is the product of the moduli."""
        return _words([pow(self.modulus // q, -1, q) for q in self.basis.moduli])

    def tables(self, bits: int) -> tuple[Table, ...]:
        """Return the tables that the C++ core takes: inverse, terms, modulus, prefix_inverse, bounds.

        The terms and the modulus are split into digits of `bits` bits. The digits of one number have,
        together, at least 3 bits more than Q. For a modulus above 2^64, which needs no tables, all five are
        [0].
        """
        if self.basis.words > 1:
            return (_words([0]),) * 5
        count = -(-(self.modulus.bit_length() + 3) // bits)
        modulus = digits_of(self.modulus, bits, count)
        return self.inverse, self.terms(bits, count), modulus, self.prefix_inverse, self.bounds

    def terms(self, bits: int, digits: int) -> Table:
        """Return the digits of each Q / q_i and then of -Q, the lowest digit first, (digits, limbs + 1).

        Q is the product of the moduli q_i. A digit has `bits` bits. -Q is taken modulo 2^(bits * digits).
        """
        values = [self.modulus // q for q in self.basis.moduli]
        values.append((1 << bits * digits) - self.modulus)
        return np.ascontiguousarray(np.stack([digits_of(v, bits, digits) for v in values], axis=-1))

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """Return the fewest first moduli whose product has at least _PREFIX_BITS bits, or else all moduli."""
        moduli = self.basis.moduli
        count = next(
            (i for i in range(1, len(moduli)) if prod(moduli[:i]).bit_length() >= _PREFIX_BITS), len(moduli)
        )
        return moduli[:count]

    @cached_property
    def prefix_inverse(self) -> Table:
        """Return a table (m, m), m = len(prefix): entry (i, j) is 1 / q_j mod q_i if j < i, else 0."""
        rows = [
            [pow(p, -1, q) if j < i else 0 for j, p in enumerate(self.prefix)]
            for i, q in enumerate(self.prefix)
        ]
        return _words(rows)

    @cached_property
    def bounds(self) -> Table:
        """Return two bounds for integers in [0, Q), then two for centred integers, (2, 2, m).

        A bound is m mixed-radix digits for the m moduli of `prefix`. With the bounds, the core decides
        whether an integer x fits int64. Let P be the product of `prefix`, and y = x mod P. The candidate is y
        if y <= first bound, and y - P if integers are centred and y >= second bound. x fits if there is a
        candidate and it equals x modulo the other moduli.
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
    """Return the tables of a basis. Each table is made when it is first read."""
    return Composition(basis)


def digits_of(x: int, bits: int, count: int) -> Table:
    """Return the lowest `count` digits of x, of `bits` bits each, the lowest first."""
    mask = (1 << bits) - 1
    return _words([x >> bits * i & mask for i in range(count)])


def _words(x: Sequence[Any]) -> Table:
    return np.array(x, dtype=np.uint64)
