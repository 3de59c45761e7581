"""Orders of the entries of a row: bit reversal, automorphisms, products with monomials."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..checks import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


@lru_cache(maxsize=64)
def bit_reversal(points: int) -> NDArray[np.int64]:
    """br(k) for k = 0 ... points - 1, points a power of two."""
    index = np.zeros(1, np.int64)
    while len(index) < points:
        index = np.concatenate([2 * index, 2 * index + 1])
    index.setflags(write=False)
    return index


@lru_cache(maxsize=64)
def slot_order(n: int) -> NDArray[np.int64]:
    """Where the values at psi^(5^j), then those at psi^(-5^j), j = 0 ... n/2 - 1, lie among evaluations.

    The powers of 5 and their negatives are all odd residues modulo 2n, n a power of two, at least 2.
    """
    powers = np.ones(n // 2, np.int64)
    for j in range(1, n // 2):
        powers[j] = powers[j - 1] * 5 % (2 * n)
    index: NDArray[np.int64] = bit_reversal(n)[np.concatenate([powers, 2 * n - powers]) // 2]
    index.setflags(write=False)
    return index


@dataclass(frozen=True)
class Permutation:
    """An order of the n entries of a row: entry j of the result is entry k of the row.

    In coefficients k = (j * multiplier + offset) mod order, where k >= n stands for the negative of entry
    k - n. In the evaluation domain of a complete transform, whose order is bit-reversed, k = br(p), where
    point x_p is x_br(j) to the power of the multiplier.
    """

    n: int
    order: int  # of X in coefficients: 2n (negacyclic) or n (cyclic)
    multiplier: int
    offset: int
    evaluated: bool

    @property
    def index(self) -> NDArray[np.int64]:
        """The array of k, by j."""
        return _index(self)


@lru_cache(maxsize=64)
def _index(p: Permutation) -> NDArray[np.int64]:
    if not p.evaluated:
        index = (np.arange(p.n, dtype=np.int64) * p.multiplier + p.offset) % p.order
    else:
        reversal = bit_reversal(p.n)
        if p.order == p.n:
            index = reversal[reversal * p.multiplier % p.n]
        else:
            index = reversal[((2 * reversal + 1) * p.multiplier % p.order - 1) // 2]
    index.setflags(write=False)
    return index


def automorphism(n: int, kind: Kind, g: int, evaluated: bool) -> Permutation:
    """X -> X^g: in coefficients X^j goes to X^(gj), and a(X^g) at a point is a at its g-th power."""
    order = 2 * n if kind == "negacyclic" else n
    return Permutation(n, order, g % order if evaluated else pow(g, -1, order), 0, evaluated)


def monomial_product(n: int, kind: Kind, k: int) -> Permutation:
    """The product with X^k, in coefficients."""
    order = 2 * n if kind == "negacyclic" else n
    return Permutation(n, order, 1, -k % order, False)
