"""Automorphisms, products with powers of X, and slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from .._backends import Array, Memory, backend_for, backend_of, is_device_array
from .._core.checks import integer, shown
from .._core.plans.permutation import multiplier_of, order_of_slots, slot_order
from .._core.quotient import Quotient
from .._core.ring_plan import RingPlan
from .._core.value import V, Value
from ..errors import NotNTTFriendly, ParameterError
from .arrays import as_integers, copied, empty, overlap
from .calls import repeated
from .integers import from_integers, ones
from .multiply import multiply
from .points import padded
from .pointwise import folded
from .results import result_array
from .transform import intt, ntt


def automorphism(x: V, g: object, out: Array | None = None) -> V:
    """Return x(X^g) in x's domain.

    g: an integer coprime to the order of X, or an array with such an integer for each batch element.
    """
    ring, evaluated, home = x._plan, x._domain == "eval", backend_of(x._data)
    one = type(g) is int or _is_one(g)
    if one:
        shape: tuple[int, ...] = ()
        moves = multipliers(ring.quotient, (g if type(g) is int else _integer(g, "g"),), evaluated)
    else:
        numbers = _numbers(g, "g")
        shape = numbers.shape
        batch = _result_batch(x._data, shape, "g")
        moves = multipliers(ring.quotient, tuple(numbers.ravel().tolist()), evaluated)
    if evaluated and ring.transform.leaf_size > 1:  # incomplete transform: residues change within leaves
        if out is not None:  # raise for a wrong `out` before computing
            result_array(home, (*_result_batch(x._data, shape, "g"), *x._data.shape[-2:]), out, x._data)
        return ntt(automorphism(intt(x), g), out)
    if one:
        return _reordered(x, home.constant(moves), None, True, out=out)
    return _reordered(x, _in_turn(x, moves.reshape(shape), batch), batch, True, out=out)


@lru_cache(maxsize=1024)
def multipliers(quotient: Quotient, gs: tuple[int, ...], evaluated: bool) -> Array:
    """Return for each g the multiplier (see `multiplier_of`) by which X -> X^g permutes entries.

    Raises:
        ParameterError: a g is not coprime to the order of X.
    """
    acting, order = quotient if evaluated else quotient.cover, quotient.order
    for g in gs:
        if gcd(g, order) != 1:
            raise ParameterError(
                f"g={shown(g)} has a common factor with {order}. X -> X^g is an automorphism only if g is "
                f"coprime to {order}."
            )
    array = np.array([multiplier_of(acting, g, evaluated) for g in gs], np.int64)
    array.setflags(write=False)
    return array


@lru_cache(maxsize=1024)
def _number(x: int) -> Array:
    """Return the int64 array [x]."""
    array = np.array([x], np.int64)
    array.setflags(write=False)
    return array


def mul_monomial(x: V, k: object, out: Array | None = None) -> V:
    """Return X^k * x in x's domain. k: an integer, or an array with an integer for each batch element."""
    ring, home = x._plan, backend_of(x._data)
    if type(k) is int or _is_one(k):
        number = k if type(k) is int else _integer(k, "k")
        exponent = home.constant(_number(number % ring.quotient.order))
        if x._domain == "eval":
            return _times_monomials(x, exponent, (), out=out)
        return _reordered(x, exponent, None, False, out=out)
    numbers = exponents_of(ring, k, "k", home)
    batch = _result_batch(x._data, numbers.shape, "k")
    if x._domain == "eval":
        return _times_monomials(x, home.constant(numbers.ravel()), numbers.shape, out=out)
    return _reordered(x, _in_turn(x, numbers, batch), batch, False, out=out)


@repeated
def _times_monomials(x: V, exponents: Array, batch: tuple[int, ...], *, out: Array | None = None) -> V:
    """Return x * X^e for each exponent e. x and the result are evaluated.

    batch: the shape of the exponents, or () if there is one exponent for all batch elements.
    """
    one = x._with(ones(x._plan, "coef", (), backend_of(x._data)), "coef")
    monomials = _reordered(one, exponents.reshape(batch or (1,)), batch, False, out=None)
    return multiply(x, ntt(monomials, monomials._data), out=out)


def exponents_of(ring: RingPlan, numbers: object, name: str, near: Memory) -> Array:
    """Return exponents of X as int64, reduced modulo the order of X.

    If `numbers` is on the device `near`, the result is on `near`. Otherwise the result is in host memory.
    Exponents on a GPU are not reduced if the order is a power of two, because kernels reduce them.
    """
    given = as_integers(numbers, name)
    if backend_of(given) is not near:
        given = backend_of(given).to_host(given)
    order = ring.quotient.order
    if is_device_array(given) and order & (order - 1) == 0:
        return given.view(np.int64) if given.dtype.itemsize == 8 else copied(given, np.dtype(np.int64))
    with backend_of(given).device_scope():
        if given.dtype != object:  # a dtype of few bits may not hold the order
            given = given.astype(np.int64 if given.dtype.kind == "i" else np.uint64)
        reduced: Array = (given % order).astype(np.int64)
    return reduced


# ---- slots ----


@repeated
def to_slots(x: Value, *, out: None = None) -> Array:
    """Return the slots as residues (*batch, n): the values at psi^(5^j) for j < n/2, then at psi^(-5^j).

    psi is the ring's root of unity, of order 2n.
    """
    _check_slots(x._plan)
    data, compute, n = ntt(x)._data, backend_of(x._data), x._plan.n
    slots = empty(compute, (*x._batch, n), data.dtype)
    compute.take(data.reshape(slots.shape), compute.constant(slot_order(n)), slots)
    return slots


def from_slots(ring: RingPlan, values: object, compute: Memory) -> Value:
    """Return the evaluated element with the slots `values`."""
    _check_slots(ring)
    given = as_integers(values, "values")
    if given.shape[-1:] != (ring.n,):
        raise ParameterError(
            f"values has shape {given.shape}. Its last axis must have n={ring.n} entries, one for each slot."
        )
    slots = from_integers(ring.basis, ring.n, given, compute)
    home = backend_of(slots)
    evaluated = empty(home, slots.shape, slots.dtype)
    home.take(slots, home.constant(order_of_slots(ring.n)), evaluated)
    return Value(ring, evaluated, "eval")


def _check_slots(ring: RingPlan) -> None:
    """Raise NotNTTFriendly if the ring has no slots."""
    one = len(ring.moduli) == 1 and not ring.basis.wide and ring.n > 1 and ring.quotient.kind == "negacyclic"
    if not one or ring.leaf_size != 1:
        raise NotNTTFriendly(
            f"The ring is {ring!r}, which has no slots. Use a ring with kind='negacyclic', n >= 2 a power of "
            "two, and one prime q below 2**64 that is 1 modulo 2n. ntt_primes finds such primes."
        )


# ---- one integer for each batch element ----


def _is_one(x: object) -> bool:
    """Return whether x is one number, and not a sequence, an array with axes or an array on a GPU."""
    several = isinstance(x, Sequence) and not isinstance(x, (str, bytes, bytearray))
    return not several and not getattr(x, "shape", ()) and not is_device_array(x)


def _integer(x: Any, name: str) -> int:
    """Return x as an int; x may be an array without axes."""
    return integer(x.item() if isinstance(x, np.ndarray) else x, name)


def _numbers(x: object, name: str) -> Array:
    """Return x as an array of integers in host memory."""
    given = as_integers(x, name)
    return backend_of(given).to_host(given)


def _result_batch(x: Array, numbers: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the batch shape of x broadcast with the shape `numbers`.

    numbers: the shape of an array that has a number for each batch element.
    """
    batch: tuple[int, ...] = x.shape[:-2]
    if not numbers:
        return batch
    try:
        return np.broadcast_shapes(batch, numbers)
    except ValueError:
        raise ParameterError(
            f"{name} has shape {numbers}, which does not broadcast with the batch shape {batch}. Give one "
            "integer for each batch element, or add a batch axis to the value with poly[..., None] first."
        ) from None


def _in_turn(x: Value, numbers: Array, batch: tuple[int, ...]) -> Array:
    """Drop leading axes of length 1 from `numbers`, and broadcast the other k axes to batch[-k:].

    If k is 0, the result has the shape (1,). The result is on x's device.
    """
    while numbers.ndim and len(numbers) == 1:
        numbers = numbers.reshape(numbers.shape[1:])
    last = batch[len(batch) - numbers.ndim :]
    if numbers.shape != last:
        home = backend_of(numbers)
        with home.device_scope():
            numbers = home.xp.ascontiguousarray(home.xp.broadcast_to(numbers, last))
    if not numbers.ndim:
        numbers = numbers.reshape(1)  # one number, which stands for all batch elements
    return backend_of(x._data).constant(numbers) if isinstance(numbers, np.ndarray) else numbers


def _items(compute: Memory, x: Array, batch: tuple[int, ...], out: Array | None) -> Array:
    """Return x broadcast to a batch shape: x itself, or a copy if the shape differs or x overlaps `out`."""
    if x.shape[:-2] == batch and (out is None or not overlap(compute, x, out)):
        return x
    items = empty(compute, (*batch, *x.shape[-2:]), x.dtype)
    compute.copy(x, items)
    return items


def _acting(x: Value) -> Quotient:
    """Return the polynomial modulo which automorphisms and products with X permute the entries of x.

    If x is evaluated, the result is the ring's polynomial. If x is in coefficients, the result is the
    binomial of least degree that the ring's polynomial divides.
    """
    return x._plan.quotient if x._domain == "eval" else x._plan.quotient.cover


@repeated
def _reordered(
    x: V, numbers: Array, batch: tuple[int, ...] | None, by_automorphisms: bool, *, out: Array | None
) -> V:
    """Apply automorphisms to x, or multiply x by powers of X.

    numbers: the multipliers of the automorphisms, or the exponents.
    batch: the batch shape of the result, or None for the batch shape of x.
    """
    basis, quotient = x._plan.basis, _acting(x)
    if numbers.shape == (1,):
        numbers = numbers.reshape(())
    given, batch = padded(x._data, quotient.degree), x._batch if batch is None else batch
    compute = backend_for(basis, given)
    into = out if given is x._data else None
    data = result_array(compute, (*batch, *given.shape[-2:]), into, given)
    items = _items(compute, given, batch, into)
    if by_automorphisms:
        compute.automorphism(basis, quotient, items, numbers, x._domain == "eval", data)
    else:
        compute.mul_monomial(basis, quotient, items, numbers, data)
    return x._with(folded(basis, data, x._plan.n, x._plan.quotient.folding(quotient.degree), out))
