"""Multiplicative inverses: pointwise, or limb by limb in Python integers, lifted modulo powers of two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import empty
from ..backends import Array, backend_of
from ..checks import Domain, shown
from ..errors import NotInvertible
from ..exact.inverse import inverse_mod_prime, inverse_mod_two
from ..exact.primes import is_prime
from .elementwise import pointwise
from .integers import big_integers, from_integers, ones
from .multiply import multiply
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring


def inverse(ring: Ring, x: Array, domain: Domain) -> Array:
    """The inverse of each element, in x's domain.

    Raises:
        NotInvertible: some element has none, or a modulus is neither prime nor a power of two.
    """
    if ring.leaf_size == 1:
        y = _inverse_evaluated(ring, to_domain(ring, x, domain, "eval"))
        return to_domain(ring, y, "eval", domain)
    by_moduli = _inverse_by_limbs if len(ring.moduli) > 1 else _inverse_of_coefficients
    return to_domain(ring, by_moduli(ring, to_domain(ring, x, domain, "coef")), "coef", domain)


def _inverse_evaluated(ring: Ring, x: Array) -> Array:
    """x^(q-2) of evaluated values, each limb with its own exponent."""
    compute, xp = backend_of(x), backend_of(x).xp
    with compute.device_scope():
        zero = ~x.reshape(*x.shape[:-2], len(ring.moduli), ring.basis.words, ring.n).any(axis=-2)
        if zero.any():
            *batch, limb, k = (int(i) for i in xp.argwhere(zero)[0])
            at = f" of limb {limb}" if len(ring.moduli) > 1 else ""
            raise NotInvertible(
                f"inverse: the value is 0 at evaluation index {k}{at}, q = {shown(ring.moduli[limb])}"
                + (f", batch element {tuple(batch)}" if batch else "")
            )
        exponents = [q - 2 for q in ring.moduli]
        y = one = to_domain(ring, ones(ring.basis, ring.n, x.shape[:-2], compute), "coef", "eval")
        for bit in reversed(range(max(e.bit_length() for e in exponents))):
            y = multiply(ring, y, y, "eval")
            taken = np.array([e >> bit & 1 for e in exponents], np.bool_)
            rows = compute.from_host(np.resize(taken, ring.rows)[:, None])
            y = multiply(ring, y, xp.where(rows, x, one), "eval")
    return y


def _inverse_by_limbs(ring: Ring, x: Array) -> Array:
    """The inverse in each limb's own ring, of which some may have a transform."""
    compute = backend_of(x)
    data = empty(compute, x.shape, x.dtype)
    for i, q in enumerate(ring.moduli):
        limb = type(ring)(ring.n, q, kind=ring.kind, product=ring.product)
        with compute.device_scope():
            row = x[..., i : i + 1, :].astype(limb.dtype, order="C")
        try:
            y = inverse(limb, row, "coef")
        except NotInvertible as error:
            raise NotInvertible(f"limb {i}: {error}") from None
        with compute.device_scope():
            data[..., i : i + 1, :] = y
    return data


def _inverse_of_coefficients(ring: Ring, x: Array) -> Array:
    """Modulo one prime by the extended Euclid, modulo a power of two by Hensel lifting."""
    basis, n, q, compute = ring.basis, ring.n, ring.modulus, backend_of(x)
    constant = -1 if ring.kind == "negacyclic" else 1
    if is_prime(q):
        invert: Callable[[list[int]], list[int]] = partial(inverse_mod_prime, q=q, constant=constant)
    elif q & (q - 1) == 0:
        invert = inverse_mod_two
    else:
        raise NotInvertible(
            f"inverse: {shown(q)} is neither prime nor a power of two; give its coprime factors as moduli"
        )
    batch = x.shape[:-2]
    elements = big_integers(basis, x, False).reshape(-1, n)
    found = np.zeros(elements.shape, dtype=object)
    for i, element in enumerate(elements):
        try:
            found[i] = invert([int(v) for v in element])
        except NotInvertible as error:
            at = tuple(int(k) for k in np.unravel_index(i, batch)) if batch else ()
            raise NotInvertible(f"{error}" + (f" (batch element {at})" if at else "")) from None
    y = from_integers(basis, n, found.reshape(*batch, n), compute)
    if q & (q - 1) == 0:  # Newton: right mod 2^k becomes right mod 2^2k
        two = from_integers(basis, n, 2, compute)
        for _ in range((q.bit_length() - 2).bit_length()):
            y = multiply(ring, y, pointwise(basis, "sub", two, multiply(ring, x, y, "coef")), "coef")
    return y
