"""Automorphisms and products with powers of X: coefficients or evaluated residues in another order."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import as_integers, overlap
from ..backends import Array, Memory, backend_for, backend_of
from ..checks import Domain, integer, shown
from ..errors import NotNTTFriendly, ParameterError
from ..plans.basis import Basis
from ..plans.permutation import Permutation, monomial_product, slot_order
from ..plans.permutation import automorphism as automorphism_order
from .batch import assign, index, result_array
from .integers import from_integers
from .multiply import multiply
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring


def automorphism(ring: Ring, x: Array, domain: Domain, g: object, out: Array | None = None) -> Array:
    """a(X^g) in a's domain, for g coprime to the order of X: one g, or an array of them."""
    if not _is_one(g):
        return _automorphisms(ring, x, domain, _by_item(x, _numbers(g, "g"), "g"), out)
    number = checked_automorphism(ring, g)
    if domain == "eval" and ring.transform.leaf_size > 1:  # leaves of several coefficients also change inside
        if out is not None:
            result_array(backend_of(x), x.shape, out, x)  # refused before anything is computed
        value = automorphism(ring, to_domain(ring, x, "eval", "coef"), "coef", number)
        return to_domain(ring, value, "coef", "eval", out)
    return _permuted(ring.basis, x, automorphism_order(ring.n, ring.kind, number, domain == "eval"), out)


def _automorphisms(ring: Ring, x: Array, domain: Domain, gs: Array, out: Array | None) -> Array:
    """a(X^g) for each item with its own g."""
    compute, orders = backend_of(x), np.unique(gs).tolist()
    for g in orders:
        checked_automorphism(ring, g)
    data = result_array(compute, (*gs.shape, *x.shape[-2:]), out, x)
    items = _items(compute, x, gs.shape, out)
    for g in orders:
        where = tuple(compute.from_host(places) for places in np.nonzero(gs == g))
        assign(data, where, automorphism(ring, index(items, where), domain, int(g)))
    return data


def checked_automorphism(ring: Ring, g: object) -> int:
    """g modulo the order of X, for g coprime to it."""
    order, number = order_of(ring), _integer(g, "g")
    if gcd(number, order) != 1:
        raise ParameterError(
            f"g: {shown(number)} has a common factor with {order}; X -> X^g is an automorphism for g coprime "
            "to it"
        )
    return number % order


def multiply_by_monomial(ring: Ring, x: Array, domain: Domain, k: object, out: Array | None = None) -> Array:
    """X^k a in a's domain: one k, or an array of them."""
    if domain == "eval":
        one = from_integers(ring.basis, ring.n, 1, backend_of(x))
        monomials = multiply_by_monomial(ring, one, "coef", k)
        if monomials.ndim > 2:
            _by_item(x, np.empty(monomials.shape[:-2], np.bool_), "k")
        return multiply(ring, x, to_domain(ring, monomials, "coef", "eval", monomials), "eval", out=out)
    if _is_one(k):
        return _permuted(ring.basis, x, monomial_product(ring.n, ring.kind, _integer(k, "k")), out)
    exponents = _by_item(x, exponents_of(ring, k, "k"), "k")
    compute = backend_for(ring.basis, x)
    data = result_array(compute, (*exponents.shape, *x.shape[-2:]), out, x)
    items = _items(compute, x, exponents.shape, out)
    compute.turn(ring.basis, order_of(ring), items, np.ascontiguousarray(exponents), data)
    return data


def exponents_of(ring: Ring, numbers: object, name: str, near: Memory | None = None) -> Array:
    """Exponents of X as int64, modulo the order of X: on the host, or on the device `near` if given there."""
    given = as_integers(numbers, name)
    if backend_of(given) is not near:
        given = backend_of(given).to_host(given)
    with backend_of(given).device_scope():
        if given.dtype != object:  # a dtype of few bits may not hold the order
            given = given.astype(np.int64 if given.dtype.kind == "i" else np.uint64)
        reduced: Array = (given % order_of(ring)).astype(np.int64)
    return reduced


def order_of(ring: Ring) -> int:
    """The least e > 0 with X^e = 1."""
    return 2 * ring.n if ring.kind == "negacyclic" else ring.n


# ---- slots ----


def to_slots(ring: Ring, x: Array, domain: Domain) -> Array:
    """Residues (*batch, n): values at the powers psi^(5^j), then at psi^(-5^j)."""
    order = _checked_slots(ring)
    evaluated, compute = to_domain(ring, x, domain, "eval"), backend_of(x)
    with compute.device_scope():
        return compute.xp.ascontiguousarray(evaluated[..., 0, :][..., compute.constant(order)])  # type: ignore[no-any-return]


def from_slots(ring: Ring, values: object, compute: Memory) -> Array:
    """The evaluated element with these slots."""
    order = _checked_slots(ring)
    given = as_integers(values, "values")
    if given.shape[-1:] != (ring.n,):
        raise ParameterError(f"values: shape {given.shape}; the last axis must be n = {ring.n}, the slots")
    slots = from_integers(ring.basis, ring.n, given, compute)
    home = backend_of(slots)
    with home.device_scope():
        evaluated = home.xp.empty_like(slots)
        evaluated[..., home.constant(order)] = slots
    return evaluated  # type: ignore[no-any-return]


def _checked_slots(ring: Ring) -> Array:
    """The order of the slots of a ring that has them."""
    one = len(ring.moduli) == 1 and not ring.basis.wide and ring.n > 1 and ring.kind == "negacyclic"
    if not one or not ring.has_eval or ring.leaf_size != 1:
        raise NotNTTFriendly(
            f"{ring!r}: slots are values at the roots of X^n + 1, n > 1, modulo one prime q = 1 mod 2n below "
            "2**64; ntt_primes gives such primes"
        )
    return slot_order(ring.n)


# ---- numbers for items ----


def _is_one(x: object) -> bool:
    """Whether x is treated as a single number: it is no sequence, and no array with axes."""
    several = isinstance(x, Sequence) and not isinstance(x, (str, bytes, bytearray))
    return not several and not getattr(x, "shape", ())


def _integer(x: Any, name: str) -> int:
    """The number as an int; it may be an array without axes."""
    return integer(x.item() if isinstance(x, np.ndarray) else x, name)


def _numbers(x: object, name: str) -> Array:
    """Integers on the host."""
    given = as_integers(x, name)
    return backend_of(given).to_host(given)


def _by_item(x: Array, numbers: Array, name: str) -> Array:
    """The numbers, broadcast to the batch shape of the result: one for each item."""
    try:
        return np.broadcast_to(numbers, np.broadcast_shapes(x.shape[:-2], numbers.shape))
    except ValueError:
        raise ParameterError(
            f"{name}: shape {numbers.shape} does not broadcast with {x.shape[:-2]}, that of the batch"
        ) from None


def _items(compute: Memory, x: Array, batch: tuple[int, ...], out: Array | None) -> Array:
    """x broadcast to a batch shape, in memory that it does not share with `out`."""
    if x.shape[:-2] == batch:
        if out is None or not overlap(compute, x, out):
            return x
        with compute.device_scope():
            return x.copy()
    with compute.device_scope():
        return compute.xp.ascontiguousarray(compute.xp.broadcast_to(x, (*batch, *x.shape[-2:])))  # type: ignore[no-any-return]


def _permuted(basis: Basis, x: Array, permutation: Permutation, out: Array | None = None) -> Array:
    compute = backend_for(basis, x)
    data = result_array(compute, x.shape, out, x)
    compute.permute(basis, _items(compute, x, x.shape[:-2], out), permutation, data)
    return data
