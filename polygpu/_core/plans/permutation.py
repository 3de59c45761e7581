"""Permutations of the entries of a row: bit reversal, automorphisms, products with monomials."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..quotient import Quotient

if TYPE_CHECKING:
    from numpy.typing import NDArray


@lru_cache(maxsize=64)
def bit_reversal(points: int) -> NDArray[np.int64]:
    """Return the bit reversals of k = 0 ... points - 1, where points is a power of two."""
    index = np.zeros(1, np.int64)
    while len(index) < points:
        index = np.concatenate([2 * index, 2 * index + 1])
    index.setflags(write=False)
    return index


def point_exponents(leaves: Quotient) -> NDArray[np.int64]:
    """Return the exponent e of each point w^e, for the root of unity w, in the order of evaluated entries."""
    exponents: NDArray[np.int64] = leaves.exponents(bit_reversal(leaves.degree)) % leaves.order
    return exponents


@lru_cache(maxsize=64)
def natural_order(leaves: Quotient, leaf_size: int = 1) -> NDArray[np.int64]:
    """Return the indices of evaluated entries, in ascending order of the exponents of the points.

    The leaf_size entries of a leaf stay together.
    """
    reversal, n = bit_reversal(leaves.degree), leaves.degree
    points = reversal if leaves.is_binomial else reversal[leaves.ascending(np.arange(n))]
    if leaf_size == 1 and points is reversal:
        return points
    index: NDArray[np.int64] = (points[:, None] * leaf_size + np.arange(leaf_size)).reshape(-1)
    index.setflags(write=False)
    return index


@lru_cache(maxsize=64)
def slot_order(n: int) -> NDArray[np.int64]:
    """Return the indices of the evaluations at psi^(5^j), then at psi^(-5^j), for j = 0 ... n/2 - 1.

    psi is the root of unity of order 2n, and n is a power of two of at least 2. Each odd residue modulo 2n
    is 5^j or -5^j for exactly one of these j, so each evaluation occurs once.
    """
    powers = np.ones(n // 2, np.int64)
    for j in range(1, n // 2):
        powers[j] = powers[j - 1] * 5 % (2 * n)
    index: NDArray[np.int64] = bit_reversal(n)[np.concatenate([powers, 2 * n - powers]) // 2]
    index.setflags(write=False)
    return index


@lru_cache(maxsize=64)
def order_of_slots(n: int) -> NDArray[np.int64]:
    """Return the inverse permutation of slot_order: for each evaluation, its index among the slots."""
    index = np.argsort(slot_order(n))
    index.setflags(write=False)
    return index


# An automorphism X -> X^g is a permutation with signs: entry j of the result is entry k of the row, and k
# follows from j and a multiplier. In coefficients, k = j * multiplier mod the order of X; if k >= n, entry j
# of the result is minus entry k - n of the row. In the evaluation domain of a complete transform, point k is
# (point j)^multiplier.


@lru_cache(maxsize=1024)
def multiplier_of(quotient: Quotient, g: int, evaluated: bool) -> int:
    """Return the multiplier of X -> X^g: 1/g in coefficients, and g in the evaluation domain.

    The automorphism moves X^k to X^(g*k). So coefficient j of a(X^g) is coefficient j/g of a, up to its sign.
    Here 1/g is the inverse of g modulo the order of X. The value of a(X^g) at a point w is a(w^g).
    """
    order = quotient.order
    return g % order if evaluated else pow(g, -1, order)


def _product(x: NDArray[np.int64], multiplier: int, order: int) -> NDArray[np.int64]:
    """Return x * multiplier modulo `order` < 2^39. x and multiplier must be below `order`."""
    if order >> 31 == 0:
        return x * multiplier % order
    high, low = multiplier >> 16, multiplier & 0xFFFF  # high * x and low * x fit 63 bits
    return (x * high % order * (1 << 16) + x * low) % order


@lru_cache(maxsize=64)
def automorphism_index(quotient: Quotient, multiplier: int, evaluated: bool) -> NDArray[np.int64]:
    """Return the array `index`: the automorphism moves entry index[j] of a row to entry j.

    For rows of coefficients, index[j] >= n means that entry index[j] - n is moved and negated.
    """
    n, order = quotient.degree, quotient.order
    if not evaluated:
        index = _product(np.arange(n, dtype=np.int64), multiplier, order)
    else:
        moved = _product(point_exponents(quotient), multiplier, order)
        index = bit_reversal(n)[quotient.reversed_nodes(moved)]
    index.setflags(write=False)
    return index


@lru_cache(maxsize=64)
def monomial_index(quotient: Quotient, exponent: int) -> NDArray[np.int64]:
    """Return the array `index`: coefficient j of the product X^exponent * x is coefficient index[j] of x.

    If index[j] is at least n, coefficient j of the product is minus coefficient index[j] - n of x.
    """
    index = (np.arange(quotient.degree, dtype=np.int64) - exponent) % quotient.order
    index.setflags(write=False)
    return index
