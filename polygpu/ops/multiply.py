"""Products of polynomials: the one place that chooses how, and the call that does it."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ..arrays import overlap
from ..backends import Array, Backend, load, of
from ..checks import Product
from ..errors import PrecisionError, TablesTooLarge
from ..linalg import MAX_MODULUS
from ..memory import check_memory
from ..plans.ntt import TransformSize
from ..plans.product import Plan, auxiliary_size, coarsest_fft, plan_auxiliary, plan_fft

if TYPE_CHECKING:
    from ..ring import Ring

_CLEARLY = 0.8  # estimates are rough: a complete transform gives way to less than this share of its time


Way = Literal["transform", "fft", "auxiliary"]


class Choice(NamedTuple):
    """How coefficients of a ring are multiplied on a device, and why."""

    way: Way
    reason: str


def choose(ring: Ring, product: Product, device: str) -> Choice:
    """What is asked for, or the way for which the device's estimate is least. Makes no tables."""
    n, moduli, kind, base = ring.n, ring.moduli, ring.kind, ring.base_degree
    exact: Way = "auxiliary" if base is None or ring.basis.wide else "transform"
    asked = ring.product if product == "auto" else product
    if asked != "auto":
        return Choice("fft" if asked == "fft" else exact, "as asked for")
    if ring.basis.wide:
        return Choice(exact, "the one way above 2**64")
    try:
        by_fft = coarsest_fft(n, moduli, kind)
        check_memory(by_fft.bytes, n, moduli)
    except (PrecisionError, TablesTooLarge):
        return Choice(exact, "no FFT is proven to be exact and fits in memory")
    compute = load(device)
    cost = compute.product_ns(ring.basis, by_fft)
    if base is None:
        other = least = compute.product_ns(ring.basis, auxiliary_size(n, moduli))
    else:
        other = compute.product_ns(ring.basis, TransformSize(n // base, base))
        least = _CLEARLY * other if base == 1 else other
    reason = f"estimates on {device}: FFT {_time(cost)}, {_NAMES[exact]} {_time(other)}"
    return Choice("fft" if cost < least else exact, reason)


_NAMES = {"transform": "transform", "auxiliary": "auxiliary primes"}


def _time(ns: float) -> str:
    return f"{ns / 1000:.2g} us"


def plan_product(ring: Ring, way: Way) -> Plan:
    """What a product in one of the ways needs.

    Raises:
        PrecisionError, ParameterError: no FFT is proven to be exact.
        TablesTooLarge: it does not fit in memory.
    """
    if way == "transform":
        return ring.transform
    return (plan_fft if way == "fft" else plan_auxiliary)(ring.n, ring.moduli, ring.kind)


def multiply(ring: Ring, a: Array, b: Array, out: Array, product: Product) -> None:
    """out = a b of coefficients (*batch, rows, n), which broadcast to out's shape."""
    compute = of(a)
    plan = ring.product_plan(product, compute.name)
    if a.size != b.size and product == ring.product == "auto":
        many, one = (b, a) if a.size < b.size else (a, b)
        if _as_matrices(compute, plan, many, one, out):
            return _multiply_by_matrix(compute, ring, many, one, out)
    compute.multiply(plan, a, b, out)


# ---- many short polynomials times one: a product of matrices ----


def _as_matrices(compute: Backend, plan: Plan, many: Array, one: Array, out: Array) -> bool:
    """Whether to multiply many polynomials by the matrix of one, into memory that holds neither."""
    basis, count = plan.basis, prod(many.shape[:-2])
    possible = prod(one.shape[:-2]) == 1 < count and basis.rows == 1 and basis.moduli[0] <= MAX_MODULUS
    return possible and compute.prefers_matrix(plan, count) and not overlap(compute, many, out)


def _multiply_by_matrix(compute: Backend, ring: Ring, many: Array, one: Array, out: Array) -> None:
    """a b for all a, rows of coefficients: times the Toeplitz matrix of X^k b, row by row."""
    n, below = ring.n, one
    index = compute.constant(_toeplitz_index(n))
    with compute.here():
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
