"""The choice of a method for products in a ring. All operations choose here.

The methods ("ways"):
  transform  The ring's NTT, then products of points, or of leaves if the NTT is incomplete.
  auxiliary  NTTs modulo auxiliary primes give the exact product over the integers, which is then reduced.
  fft        FFTs in doubles. The result is exact by a proven bound.
  matrix     Many short polynomials are multiplied by one polynomial through a product of matrices.
  separate   For sums of products: each product is computed alone, then the products are added.

`multiply` calls way_of_product, and way_of_many if the operands are in coefficients. Powers, matmul, dot and
einsum call way_of_sums. Products with gadget ciphertexts call way_of_gadget.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from ..errors import PrecisionError, TablesTooLarge
from .checks import Product
from .memory import check_memory
from .plans.ntt import TransformSize
from .plans.product import (
    FftSumPlan,
    Plan,
    auxiliary_size,
    coarsest_fft,
    plan_auxiliary,
    plan_fft,
    plan_fft_sums,
)
from .ring_plan import RingPlan

Way = Literal["transform", "auxiliary", "fft", "matrix", "separate"]

_NAMES = {"transform": "transform", "auxiliary": "auxiliary primes"}
# Estimates are rough. So an FFT replaces a complete transform only if the FFT is estimated to take less than
# this share of the transform's time.
_CLEARLY = 0.8
_MATRIX_MODULUS = 1 << 62  # for larger moduli, products of matrices do not use vector instructions


def way_of_product(ring: RingPlan, product: Product, compute: Any) -> tuple[Way, str]:
    """Choose how a backend multiplies two polynomials in coefficients, without making tables.

    product: the rule of this call; "auto" stands for the rule of the ring. compute: the backend.
    Returns the way, and a text that says why it was chosen.
    """
    n, moduli, leaf_size, wide = ring.n, ring.moduli, ring.leaf_size, ring.basis.wide
    exact: Way = "auxiliary" if leaf_size is None or wide else "transform"
    asked = ring.product if product == "auto" else product
    if asked != "auto":
        return ("fft" if asked == "fft" else exact, "as asked for")
    if wide:
        return (exact, "the one way above 2**64")
    try:
        by_fft = coarsest_fft(ring.quotient, moduli)
        check_memory(by_fft.bytes, n, moduli)
    except (PrecisionError, TablesTooLarge):
        return (exact, "no FFT is proven to be exact and fits in memory")
    estimate = partial(compute.product_ns, ring.basis)
    cost = estimate(by_fft)
    if leaf_size is None:
        other = least = estimate(auxiliary_size(ring.quotient, moduli))
    else:
        other = estimate(TransformSize(n // leaf_size, leaf_size))
        least = _CLEARLY * other if leaf_size == 1 else other
    reason = f"estimates on {compute.name}: FFT {_time(cost)}, {_NAMES[exact]} {_time(other)}"
    return ("fft" if cost < least else exact, reason)


def _time(ns: float) -> str:
    return f"{ns / 1000:.2g} us"


def plan_of_product(ring: RingPlan, product: Product, compute: Any) -> Plan:
    """Return the plan of products of coefficients on a backend's device. The ring caches the plan.

    Raises:
        PrecisionError, ParameterError: `product` is "fft", and no FFT is proven to be exact.
        TablesTooLarge: the tables of the plan do not fit in memory.
    """
    key = product, compute.name
    plan = ring.products.get(key)
    if plan is None:
        way, _ = way_of_product(ring, product, compute)
        plan = ring.products[key] = _plan_of_way(ring, way)
    return plan


def _plan_of_way(ring: RingPlan, way: Way) -> Plan:
    if way == "transform":
        return ring.transform
    return (plan_fft if way == "fft" else plan_auxiliary)(ring.quotient, ring.moduli)


def way_of_many(
    ring: RingPlan, product: Product, plan: Plan, counts: tuple[int, int], compute: Any
) -> Literal["matrix"] | None:
    """Choose "matrix" if it is faster than `plan` at multiplying many polynomials by one, else None.

    plan: the plan for single products. counts: the number of polynomials in each of the two operands.
    """
    possible = product == ring.product == "auto" and min(counts) == 1 < max(counts) and ring.rows == 1
    if not possible or not ring.quotient.is_binomial or ring.moduli[0] > _MATRIX_MODULUS:
        return None
    return "matrix" if compute.prefers_matrix(plan, max(counts)) else None


def way_of_sums(ring: RingPlan) -> Way:
    """Choose how to compute powers and sums of products: "transform" or "separate".

    With "transform", intermediate results stay evaluated. With "separate", each product is computed alone.
    """
    by_transform = not ring.basis.wide and ring.has_eval and ring.product != "fft"
    return "transform" if by_transform else "separate"


def way_of_gadget(ring: RingPlan, terms: int, bits: int) -> tuple[Way, FftSumPlan | None]:
    """Choose how to compute sums of `terms` products by small polynomials with coefficients of `bits` bits.

    The ring has one modulus of at most 2^64. Returns the way, and the plan of the FFT if "fft" was chosen.
    """
    if ring.leaf_size == 1:
        return "transform", None
    sums = None if ring.product == "ntt" else plan_fft_sums(ring.quotient, ring.moduli[0], terms, bits)
    return ("separate", None) if sums is None else ("fft", sums)
