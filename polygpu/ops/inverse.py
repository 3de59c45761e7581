"""Multiplicative inverses: pointwise, or limb by limb by the extended Euclid, lifted to powers of primes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from .. import _cpu
from ..arrays import empty
from ..backends import Array, backend_of, host
from ..checks import Domain, shown
from ..errors import NotInvertible
from ..exact.crt import residues_of_ints, words_to_ints
from ..exact.primes import prime_power
from ..plans.basis import Basis, basis_of
from ..reporting import Work, counted
from .batch import ROWS
from .integers import from_integers, ones
from .multiply import multiply
from .pointwise import pointwise
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring

_LONG = 1 << 24  # items times (n words)^2 from which on the extended Euclid is long work: some 10 ms


def inverse(ring: Ring, x: Array, domain: Domain) -> Array:
    """The inverse of each element, in x's domain.

    Raises:
        NotInvertible: some element has none, or a modulus is no power of a prime.
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
    """The inverse in the ring of each limb; some of these rings may have a complete transform."""
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
    """The inverse modulo p^k, p prime: modulo p by the extended Euclid, then by Hensel lifting."""
    basis, q, compute = ring.basis, ring.modulus, backend_of(x)
    power = prime_power(q)
    if power is None:
        raise NotInvertible(
            f"inverse: {shown(q)} is neither prime nor a power of a prime; give its coprime factors as moduli"
        )
    p, exponent = power
    field = basis_of((p,))
    residues = _modulo_prime(basis, field, compute.to_host(x))
    found = empty(host(), residues.shape, field.dtype)
    degrees = _invert(field, residues, ring.kind == "negacyclic", found)
    if degrees.any():
        i = int(np.argmax(degrees != 0))
        at = tuple(int(k) for k in np.unravel_index(i, x.shape[:-2])) if x.ndim > 2 else ()
        raise NotInvertible(
            f"inverse: the polynomial shares a factor of degree {degrees[i]} with "
            f"X^{ring.n} {'+' if ring.kind == 'negacyclic' else '-'} 1 mod {shown(p)}"
            + (f" (batch element {at})" if at else "")
        )
    y = found
    if exponent > 1:
        y = empty(host(), x.shape, basis.dtype, zero=True)
        y[..., : field.rows, :] = found
    y = compute.from_host(y)
    two = from_integers(basis, ring.n, 2, compute)
    for _ in range((exponent - 1).bit_length()):  # Newton: right mod p^k becomes right mod p^2k
        y = multiply(ring, y, pointwise(basis, "sub", two, multiply(ring, x, y, "coef")), "coef")
    return y


def _invert(field: Basis, x: Array, negacyclic: bool, out: Array) -> Array:
    """HostBackend.invert(), as Work where it is long."""
    items, n = prod(x.shape[:-2]), x.shape[-1]
    degrees = np.zeros(items, np.int64)
    rows, target = (y.reshape(items, *y.shape[-2:]) for y in (x, out))
    is_long, p = items * n * n * field.words**2 >= _LONG, shown(field.moduli[0])
    with Work(items, "inverse of {} modulo {}", counted(items, "polynomial"), p, when=is_long) as work:
        for piece in work.pieces(least=ROWS * _cpu.num_threads()):
            degrees[piece] = host().invert(field, rows[piece], negacyclic, target[piece])
    return degrees


def _modulo_prime(basis: Basis, field: Basis, x: Array) -> Array:
    """Residues modulo p of residues modulo p^k, in host memory."""
    if basis is field:
        return x
    p = field.moduli[0]
    if not basis.wide:
        residues: Array = x % basis.dtype.type(p)
        return residues.astype(field.dtype)
    if p == 2:
        return (x[..., :1, :] & np.uint64(1)).astype(field.dtype)
    out = empty(host(), (*x.shape[:-2], field.rows, x.shape[-1]), field.dtype)
    residues_of_ints(field.moduli, words_to_ints(x), out)
    return out
