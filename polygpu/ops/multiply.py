"""Products of polynomials: the one place that chooses how, and the call that does it."""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..arrays import overlap
from ..backends import Array, backend_for, backend_of, get_backend
from ..checks import Domain, Product, unverified, verifying
from ..errors import DomainError, PrecisionError, TablesTooLarge
from ..memory import check_memory
from ..plans.ntt import TransformSize
from ..plans.product import (
    AuxiliaryPlan,
    FftProductPlan,
    Plan,
    auxiliary_size,
    coarsest_fft,
    plan_auxiliary,
    plan_fft,
)
from ..reporting import LONG, reporting
from .batch import in_pieces, result_array, result_shape
from .calls import remember
from .integers import ones
from .pointwise import pointwise
from .transform import to_domain
from .verify import check_again, check_product

if TYPE_CHECKING:
    from ..ring import Ring

_MATRIX_MODULUS = 1 << 62  # products of matrices modulo larger ones do not use vectors
_LEAST = LONG >> 6  # residues of a result; a product of fewer is never computed with LONG residues
_CLEARLY = 0.8  # estimates are rough: FFT replaces a complete transform only below this share of its time


Way = Literal["transform", "fft", "auxiliary"]


def choose(ring: Ring, product: Product, device: str) -> tuple[Way, str]:
    """How coefficients of a ring are multiplied on a device, and why. Makes no tables.

    It is the way that is asked for, else the one with the least estimate of the device (see _CLEARLY).
    """
    n, moduli, kind, leaf_size = ring.n, ring.moduli, ring.kind, ring.leaf_size
    exact: Way = "auxiliary" if leaf_size is None or ring.basis.wide else "transform"
    asked = ring.product if product == "auto" else product
    if asked != "auto":
        return "fft" if asked == "fft" else exact, "as asked for"
    if ring.basis.wide:
        return exact, "the one way above 2**64"
    try:
        by_fft = coarsest_fft(n, moduli, kind)
        check_memory(by_fft.bytes, n, moduli)
    except (PrecisionError, TablesTooLarge):
        return exact, "no FFT is proven to be exact and fits in memory"
    compute = get_backend(device)
    cost = compute.product_ns(ring.basis, by_fft)
    if leaf_size is None:
        other = least = compute.product_ns(ring.basis, auxiliary_size(n, moduli))
    else:
        other = compute.product_ns(ring.basis, TransformSize(n // leaf_size, leaf_size))
        least = _CLEARLY * other if leaf_size == 1 else other
    reason = f"estimates on {device}: FFT {_time(cost)}, {_NAMES[exact]} {_time(other)}"
    return "fft" if cost < least else exact, reason


_NAMES = {"transform": "transform", "auxiliary": "auxiliary primes"}


def _time(ns: float) -> str:
    return f"{ns / 1000:.2g} us"


def plan_product(ring: Ring, way: Way) -> Plan:
    """The plan of products in one of the ways.

    Raises:
        PrecisionError, ParameterError: no FFT is proven to be exact.
        TablesTooLarge: it does not fit in memory.
    """
    if way == "transform":
        return ring.transform
    return (plan_fft if way == "fft" else plan_auxiliary)(ring.n, ring.moduli, ring.kind)


def multiply(
    ring: Ring, a: Array, b: Array, domain: Domain, product: Product = "auto", out: Array | None = None
) -> Array:
    """a b of elements in one domain, in that domain; batch axes broadcast.

    Raises:
        DomainError: evaluated operands, and product="fft".
        PrecisionError, ParameterError, TablesTooLarge: as Ring.product_plan.
    """
    if verifying():
        return _verified(ring, a, b, domain, product, out)
    key = product, domain, type(a), a is b, a.shape, b.shape
    if (call := ring.calls.get(key)) and (data := call(a, b, out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(ring.basis, a)
    if domain == "eval" and product == "fft":
        raise DomainError("product: 'fft' multiplies coefficients; use intt() first, or leave it out")
    data = result_array(compute, result_shape(a, b), out, a, b)
    if domain == "eval":
        done = compute.multiply_eval(ring.transform, a, b, data)
        remember(ring.calls, key, compute, done, data)
        return data
    plan = ring.product_plan(product, compute.name)
    if a.size != b.size and product == ring.product == "auto":
        many, one = (b, a) if a.size < b.size else (a, b)
        if _as_matrices(plan, many, one):
            if overlap(compute, many, data):  # a product of matrices would read what it has overwritten
                compute.multiply(plan, a, b, data)
            else:
                _multiply_by_matrix(ring, many, one, data)
            return data
    if data.size >= _LEAST and compute.xp is np and _size_of_work(plan, data) >= LONG:
        # It is not remembered: the next such call is long too, and looks for reporting() again.
        if reporting() is None:
            compute.multiply(plan, a, b, data)
        else:
            run = partial(compute.multiply, plan)
            in_pieces("product of {}", len(ring.moduli), run, data, a, b)
        return data
    done = compute.multiply(plan, a, b, data)
    remember(ring.calls, key, compute, done, data)
    return data


def _size_of_work(plan: Plan, data: Array) -> int:
    """Residues that a product is computed with."""
    rows: int = prod(data.shape[:-2]) * len(plan.basis.moduli)
    if isinstance(plan, AuxiliaryPlan):
        return rows * plan.transform.degree * len(plan.transform.tables)
    if isinstance(plan, FftProductPlan):
        return rows * plan.work(plan.digits) // 3
    return rows * plan.degree


def _verified(ring: Ring, a: Array, b: Array, domain: Domain, product: Product, out: Array | None) -> Array:
    """The product, after its check."""
    compute = backend_of(a)
    with unverified():
        if out is not None:  # the operands are read again
            with compute.device_scope():
                a, b = (x.copy() if overlap(compute, x, out) else x for x in (a, b))
        data = multiply(ring, a, b, domain, product, out)
        if not data.size:
            return data

        def again(other: Ring, x: Array, y: Array) -> Array:
            return multiply(other, x, y, "coef")

        if domain == "eval":
            x, y, z = (to_domain(ring, v, "eval", "coef") for v in (a, b, data))
            check_again(ring, x, y, z, again, by_fft=False)
        else:
            check_product(ring, a, b, data, ring.product_plan(product, compute.name), again)
    return data


def multiply_add(ring: Ring, a: Array, b: Array, c: Array, domain: Domain, out: Array | None = None) -> Array:
    """a b + c of elements in one domain, in that domain; one pass if products are entry by entry."""
    compute, shape = backend_for(ring.basis, a), result_shape(a, b, c)
    if domain == "eval" and ring.transform.leaf_size == 1 and not verifying():
        data = result_array(compute, shape, out, a, b, c)
        compute.pointwise(ring.basis, "mul_add", a, b, c, data)
        return data
    if out is not None:
        result_array(compute, shape, out, a, b, c)  # refused before anything is computed
    return pointwise(ring.basis, "add", multiply(ring, a, b, domain), c, out)


def power(ring: Ring, x: Array, domain: Domain, exponent: int) -> Array:
    """x^exponent in x's domain, exponent >= 0, by squaring.

    The powers in between are evaluated if the ring multiplies_evaluated.
    """
    compute = backend_of(x)
    if exponent == 0:
        one = ones(ring.basis, ring.n, x.shape[:-2], compute)
        return to_domain(ring, one, "coef", domain)
    if exponent == 1:
        with compute.device_scope():
            return x.copy()
    if domain == "coef" and ring.multiplies_evaluated:
        evaluated = power(ring, to_domain(ring, x, "coef", "eval"), "eval", exponent)
        return to_domain(ring, evaluated, "eval", "coef")
    result = x
    for bit in bin(exponent)[3:]:
        result = multiply(ring, result, result, domain)
        if bit == "1":
            result = multiply(ring, result, x, domain)
    return result


# ---- many short polynomials times one: a product of matrices ----


def _as_matrices(plan: Plan, many: Array, one: Array) -> bool:
    """Whether to multiply many polynomials by the matrix of one."""
    compute, basis, count = backend_of(many), plan.basis, prod(many.shape[:-2])
    possible = prod(one.shape[:-2]) == 1 < count and basis.rows == 1
    return possible and basis.moduli[0] <= _MATRIX_MODULUS and compute.prefers_matrix(plan, count)


def _multiply_by_matrix(ring: Ring, many: Array, one: Array, out: Array) -> None:
    """The rows of coefficients of many, times the Toeplitz matrix whose row k is X^k times one."""
    compute, n, below = backend_of(many), ring.n, one
    index = compute.constant(_toeplitz_index(n))
    with compute.device_scope():
        if ring.kind == "negacyclic":
            below = compute.xp.empty_like(one)
            compute.pointwise(ring.basis, "neg", one, None, None, below)
        matrix = compute.xp.concatenate([below.reshape(n), one.reshape(n)])[index]
    compute.matmul(ring.basis, many.reshape(1, -1, n), matrix.reshape(1, n, n), out.reshape(1, -1, n))


@lru_cache(maxsize=16)
def _toeplitz_index(n: int) -> Array:
    """Where coefficient j of X^k b stands in (X^n b, b), by (k, j)."""
    k, j = np.ogrid[:n, :n]
    index: Array = n + j - k
    index.setflags(write=False)
    return index
