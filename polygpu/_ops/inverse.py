"""Multiplicative inverses: point by point, or by the extended Euclidean algorithm and Hensel lifting."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from .. import _cpu
from .._backends import Array, backend_of, host
from .._core.checks import shown
from .._core.exact.crt import ints_to_words, words_to_ints
from .._core.exact.primes import prime_power
from .._core.plans.basis import Basis, basis_of
from .._core.quotient import Quotient
from .._core.reporting import Work, counted
from .._core.ring_plan import ring_plan
from .._core.value import V, Value
from ..errors import NotInvertible
from .arrays import contiguous, empty
from .batch import ROWS
from .integers import from_integers, ones, residues_of_ints
from .multiply import multiply
from .pointwise import pointwise
from .transform import intt, ntt, to_domain

# Progress is reported if polynomials * (n * words)^2 is at least _LONG. At _LONG, the extended Euclidean
# algorithm takes about 10 ms.
_LONG = 1 << 24


# (y, ok, why). y: the inverses; arbitrary values for elements without an inverse.
# ok: for each element, whether it has an inverse; in host memory.
# why(): a text about the first element without an inverse. Call why() only if `ok` has a False.
Inverses = tuple[V, "np.ndarray[Any, np.dtype[np.bool_]]", Callable[[], str]]


def inverse(x: V) -> V:
    """Return the inverse of each element, in x's domain.

    Raises:
        NotInvertible: an element has no inverse, or a modulus is not a power of a prime.
    """
    y, ok, why = _inverses(x)
    if not ok.all():
        raise NotInvertible(
            f"The value has no inverse: {why()}. Use try_inverse to find the batch elements that have an "
            "inverse."
        )
    return y


def try_inverse(x: V) -> tuple[V, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the inverses, in x's domain, and a bool for each element: whether it has an inverse.

    The first result is 0 for elements without an inverse.

    Raises:
        NotInvertible: a modulus is not a power of a prime.
    """
    y, ok, _ = _inverses(x)
    if not ok.all():
        compute = backend_of(y._data)
        with compute.device_scope():
            none = y._data.dtype.type(0)
            y = y._with(compute.xp.where(compute.from_host(ok)[..., None, None], y._data, none))
    return y, ok


def _inverses(x: V) -> Inverses[V]:
    if x._plan.leaf_size == 1:
        y, ok, why = _of_values(ntt(x))
    else:
        y, ok, why = (_of_limbs if len(x._plan.moduli) > 1 else _of_coefficients)(intt(x))
    return to_domain(y, x._domain), ok, why


def _of_values(x: V) -> Inverses[V]:
    """Return the inverses of evaluated values, point by point."""
    ring, data = x._plan, x._data
    compute, xp = backend_of(data), backend_of(data).xp
    with compute.device_scope():
        zero: Any = ~data.reshape(*x._batch, len(ring.moduli), ring.basis.words, ring.n).any(axis=-2)
        ok = np.asarray(~compute.to_host(zero.any(axis=(-2, -1))))
        if not ok.all():  # replace 0 by 1, which has an inverse
            filled = xp.zeros_like(data).reshape(*x._batch, len(ring.moduli), ring.basis.words, ring.n)
            filled[..., 0, :] = zero
            x = x._with(data | filled.reshape(data.shape))

        def why() -> str:
            *batch, limb, k = (int(i) for i in xp.argwhere(zero)[0])
            at = f" of limb {limb}" if len(ring.moduli) > 1 else ""
            return f"it is 0 modulo {shown(ring.moduli[limb])} at evaluation index {k}{at}" + (
                f" in batch element {tuple(batch)}" if batch else ""
            )

    return (_wide_reciprocals if ring.basis.wide else _reciprocals)(x), ok, why


def _reciprocals(x: V) -> V:
    """Return x^(q-2), the inverse of evaluated x. Each limb has its own q, and so its own exponent."""
    ring, compute = x._plan, backend_of(x._data)
    with compute.device_scope():
        exponents = [q - 2 for q in ring.moduli]
        y = one = x._with(ones(ring, "eval", x._batch, compute))
        for bit in reversed(range(max(e.bit_length() for e in exponents))):
            y = multiply(y, y)
            taken = np.array([e >> bit & 1 for e in exponents], np.bool_)
            rows = compute.from_host(np.resize(taken, ring.rows)[:, None])
            y = multiply(y, x._with(compute.xp.where(rows, x._data, one._data)))
    return y


def _wide_reciprocals(x: V) -> V:
    """Return 1 / x modulo a prime above 2^64, by three products per residue and one inverse in total."""
    compute = backend_of(x._data)
    return x._with(compute.from_host(_together(x._plan.basis, compute.to_host(x._data))))


def _together(basis: Basis, x: Array) -> Array:
    """Return 1 / x, in host memory, with a single inversion modulo q.

    Let u and v be the halves of x. Then 1 / u = v / (u * v) and 1 / v = u / (u * v). So only u * v must be
    inverted. This is done by recursion.
    Source: Montgomery 1987, "Speeding the Pollard and elliptic curve methods of factorization", 10.3.1.
    """
    if not x.size:
        return x
    q, count = basis.moduli[0], x.shape[-1]
    if count > 1:
        u, v = (contiguous(half) for half in np.split(x, [count // 2], axis=-1))
        inverse = _together(basis, pointwise(basis, "mul", u, v))
        return np.concatenate([pointwise(basis, "mul", inverse, y) for y in (v, u)], axis=-1)
    values = words_to_ints(x)
    flat = values.ravel().tolist()
    products = list(accumulate(flat, lambda product, value: product * value % q, initial=1))
    rest = pow(products[-1], -1, q)  # in each step below: the inverse of flat[0] * ... * flat[i]
    for i in range(len(flat) - 1, -1, -1):
        flat[i], rest = products[i] * rest % q, rest * flat[i] % q
    values.reshape(-1)[:] = flat
    return ints_to_words(values, basis.words)


def _of_limbs(x: V) -> Inverses[V]:
    """Compute the inverses limb by limb, since the rings of some limbs may have a complete transform."""
    ring, compute = x._plan, backend_of(x._data)
    data, reasons = empty(compute, x._data.shape, x._data.dtype), list[tuple[int, Callable[[], str]]]()
    ok = np.ones(x._batch, np.bool_)
    for i, q in enumerate(ring.moduli):
        limb = ring_plan(ring.n, q, ring.quotient.kind, product=ring.product)
        with compute.device_scope():
            row = x._data[..., i : i + 1, :].astype(limb.dtype, order="C")
        try:
            y, found, why = _inverses(Value(limb, row, "coef"))
        except NotInvertible as error:
            raise NotInvertible(f"Limb {i} cannot be inverted. {error}") from None
        if not found.all():
            reasons.append((i, why))
            ok &= found
        with compute.device_scope():
            data[..., i : i + 1, :] = y._data
    return x._with(data), ok, lambda: f"{reasons[0][1]()} in limb {reasons[0][0]}"


def _of_coefficients(x: V) -> Inverses[V]:
    """Return the inverses modulo p^k, by the extended Euclidean algorithm modulo p and Hensel lifting."""
    ring, basis, q, compute = x._plan, x._plan.basis, x._plan.modulus, backend_of(x._data)
    power = prime_power(q)
    if power is None:
        raise NotInvertible(
            f"The modulus {shown(q)} is neither prime nor a power of a prime, so inverses cannot be "
            "computed. Use a ring whose moduli are coprime factors of this modulus."
        )
    p, exponent = power
    field = basis_of((p,))
    residues = _modulo_prime(basis, field, compute.to_host(x._data))
    found = empty(host(), residues.shape, field.dtype)
    degrees = _invert(field, residues, ring.quotient, found)
    ok = np.asarray(degrees == 0).reshape(x._batch)

    def why() -> str:
        i = int(np.argmax(degrees != 0))
        at = tuple(int(k) for k in np.unravel_index(i, x._batch)) if x._batch else ()
        return f"it shares a factor of degree {degrees[i]} with {ring.quotient} modulo {shown(p)}" + (
            f" in batch element {at}" if at else ""
        )

    found[~ok] = 0  # invert() leaves arbitrary values for elements without an inverse
    data = found
    if exponent > 1:
        data = empty(host(), x._data.shape, basis.dtype, zero=True)
        data[..., : field.rows, :] = found
    y = x._with(compute.from_host(data))
    two = from_integers(basis, ring.n, 2, compute)
    for _ in range((exponent - 1).bit_length()):  # Newton: an inverse mod p^j gives one mod p^(2j)
        y = multiply(y, x._with(pointwise(basis, "sub", two, multiply(x, y)._data)))
    return y, ok, why


def _invert(field: Basis, x: Array, quotient: Quotient, out: Array) -> Array:
    """Call HostBackend.invert(), and report progress if it takes long.

    Return, for each element, the degree of its common factor with `quotient`. The degree is 0 if the element
    has an inverse.
    """
    items, n = prod(x.shape[:-2]), x.shape[-1]
    degrees = np.zeros(items, np.int64)
    rows, target = (y.reshape(items, *y.shape[-2:]) for y in (x, out))
    is_long, p = items * n * n * field.words**2 >= _LONG, shown(field.moduli[0])
    with Work(items, "inverse of {} modulo {}", counted(items, "polynomial"), p, when=is_long) as work:
        for piece in work.pieces(least=ROWS * _cpu.num_threads()):
            degrees[piece] = host().invert(field, rows[piece], quotient, target[piece])
    return degrees


def _modulo_prime(basis: Basis, field: Basis, x: Array) -> Array:
    """Return x modulo p. x: residues modulo p^k, in host memory. basis, field: the bases of p^k and of p."""
    if basis is field:
        return x
    p = field.moduli[0]
    if not basis.wide:
        residues: Array = x % basis.dtype.type(p)
        return residues.astype(field.dtype)
    if p == 2:
        return (x[..., :1, :] & np.uint64(1)).astype(field.dtype)
    out = empty(host(), (*x.shape[:-2], field.rows, x.shape[-1]), field.dtype)
    residues_of_ints(field, words_to_ints(x), out)
    return out
