"""Orders of the entries of a row: bit reversal, automorphisms, products with monomials."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..quotient import Quotient

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


def point_exponents(leaves: Quotient) -> NDArray[np.int64]:
    """Return which power of the root of unity each point is, in the order of evaluated entries."""
    exponents: NDArray[np.int64] = leaves.exponents(bit_reversal(leaves.degree)) % leaves.order
    return exponents


@lru_cache(maxsize=64)
def natural_order(leaves: Quotient, leaf_size: int = 1) -> NDArray[np.int64]:
    """Return where entry k in natural order is among the evaluated ones; leaves change places whole.

    In natural order the exponents of the points ascend.
    """
    exponents = point_exponents(leaves)
    points = _places(leaves, exponents)[np.sort(exponents)]
    index: NDArray[np.int64] = (points[:, None] * leaf_size + np.arange(leaf_size)).reshape(-1)
    index.setflags(write=False)
    return index


def _places(leaves: Quotient, exponents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by exponent the place of the point with it; entries of other exponents mean nothing."""
    places = np.empty(leaves.order, np.int64)
    places[exponents] = np.arange(leaves.degree)
    return places


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


@lru_cache(maxsize=64)
def order_of_slots(n: int) -> NDArray[np.int64]:
    """Where the evaluations lie among the slots: the inverse of slot_order."""
    index = np.argsort(slot_order(n))
    index.setflags(write=False)
    return index


# An automorphism X -> X^g moves entries by a multiplier: entry j of the result is entry k of the row. In
# coefficients k = j * multiplier mod the order of X, where k >= n stands for the negative of entry k - n. In
# the evaluation domain of a complete transform point k is point j to the power of the multiplier.


@lru_cache(maxsize=1024)
def multiplier_of(quotient: Quotient, g: int, evaluated: bool) -> int:
    """Return the multiplier: X^j goes to X^(gj), and a(X^g) at a point is a at its g-th power."""
    order = quotient.order
    return g % order if evaluated else pow(g, -1, order)


@lru_cache(maxsize=64)
def automorphism_index(quotient: Quotient, multiplier: int, evaluated: bool) -> NDArray[np.int64]:
    """Return the array of k, by j, of an automorphism."""
    n, order = quotient.degree, quotient.order
    if not evaluated:
        index = np.arange(n, dtype=np.int64) * multiplier % order
    else:
        exponents = point_exponents(quotient)
        index = _places(quotient, exponents)[exponents * multiplier % order]
    index.setflags(write=False)
    return index


@lru_cache(maxsize=64)
def monomial_index(quotient: Quotient, exponent: int) -> NDArray[np.int64]:
    """Return the array of k, by j, of the product of coefficients with X^exponent."""
    index = (np.arange(quotient.degree, dtype=np.int64) - exponent) % quotient.order
    index.setflags(write=False)
    return index
