"""Random matrices of residues, and the verification of their products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLED = 64  # number of entries of a product that are verified one by one (all entries if it has fewer)

Words = NDArray[Any]


def residues(rng: np.random.Generator, q: int, shape: tuple[int, ...]) -> Words:
    """Draw residues modulo q.

    With 2^k the power of two above q, residues below 2^k - q are twice as likely as others.
    """
    dtype = np.dtype(np.uint32 if q <= 1 << 32 else np.uint64)
    words = rng.integers(np.iinfo(dtype).max, size=shape, dtype=dtype, endpoint=True)
    words >>= dtype.type(8 * dtype.itemsize - (q - 1).bit_length())
    return np.minimum(words, words - dtype.type(q)) if q & (q - 1) else words


@dataclass(frozen=True, eq=False)
class Product:
    """A product of matrices (batch, m, k) and (batch, k, n) modulo q, in host memory."""

    q: int
    a: Words
    b: Words
    multiply: Callable[[Words, Words], Words]
    """Matrices by columns modulo q, exact; not what is measured."""

    @classmethod
    def random(
        cls, q: int, batch: int, m: int, k: int, n: int, multiply: Callable[[Words, Words], Words]
    ) -> Product:
        rng = np.random.default_rng((batch, m, k, n))
        a, b = (residues(rng, q, (batch, *shape)) for shape in ((m, k), (k, n)))
        return cls(q, a, b, multiply)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.a.shape[:2], self.b.shape[2])

    @cached_property
    def places(self) -> tuple[NDArray[np.intp], ...]:
        """The indices of the entries that are verified one by one."""
        batch, m, n = self.shape
        count = batch * m * n
        flat = np.random.default_rng(1).choice(count, min(SAMPLED, count), replace=False)
        return np.unravel_index(flat, self.shape)

    @cached_property
    def column(self) -> Words:
        """The random vectors x by which the whole products are multiplied, as columns."""
        return residues(np.random.default_rng(2), self.q, (self.shape[2], 1))

    @cached_property
    def expected(self) -> Words:
        """The result of `values` for a right product: entries by Python integers, then A (B x)."""
        batch, i, j = self.places
        pairs = zip(self.a[batch, i].tolist(), self.b[batch, :, j].tolist(), strict=True)
        entries = [sum(map(int.__mul__, *pair)) % self.q for pair in pairs]
        image = self.multiply(self.a, self.multiply(self.b, self.column))
        return np.concatenate((np.array(entries, np.uint64), image.ravel().astype(np.uint64)))

    def values(self, c: Words) -> Words:
        """Return what is verified of a result C: its largest entry, the entries at `places`, and C x.

        By Freivalds, a wrong C has the right C x with probability at most 2/q if q is prime.
        """
        c = c.reshape(self.shape)
        image = self.multiply(c, self.column).ravel()
        return np.concatenate([np.asarray(x, np.uint64) for x in ([c.max()], c[self.places], image)])

    def holds(self, values: Words) -> bool:
        return int(values[0]) < self.q and np.array_equal(values[1:], self.expected)


def multiply_integers(q: int, matrix: Words, columns: Words) -> Words:
    """Compute a product modulo q by Python integers."""
    return np.asarray(matrix.astype(object) @ columns.astype(object) % q, np.uint64)
