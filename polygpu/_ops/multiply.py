"""Products of polynomials, and powers."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
from numpy import ndarray

from .._backends import Array, backend_for, backend_of
from .._core.checks import Product, unverified, verifying
from .._core.plans.product import AuxiliaryPlan, FftProductPlan, Plan
from .._core.reporting import LONG, reporting
from .._core.value import V, Value
from .._core.ways import plan_of_product, way_of_many, way_of_sums
from ..errors import DomainError
from .arrays import contiguous, copied, empty, joined, layouts, overlap, spread
from .batch import in_pieces
from .calls import device_of, record, repeated
from .integers import of_residues, ones
from .pointwise import Layouts, multiply_add, pointwise
from .results import result_array, result_shape
from .transform import intt, ntt
from .verify import check_again, check_product

_LEAST = LONG >> 6  # residues; a product is never long work if its result has fewer


def multiply(a: V, b: V, product: Product = "auto", out: Array | None = None) -> V:
    """Return a*b. The operands must be in the same domain, the domain of the result. Batch axes broadcast.

    Raises:
        DomainError: the operands are evaluated and product is "fft".
        PrecisionError, ParameterError, TablesTooLarge: see `plan_of_product`.
    """
    if verifying():
        return _verified(a, b, product, out)
    ring, domain, x, y = a._plan, a._domain, a._data, b._data
    key = (
        product,
        domain,
        None if type(x) is ndarray else device_of(x),
        x is y,
        x is out,
        y is out,
        x.shape,
        y.shape,
    )
    if (replay := ring.calls.get(key)) and (data := replay((x, y), out)) is not None:
        return a._with(data)
    compute = backend_for(ring.basis, x)
    return a._with(record(ring.calls, key, compute, lambda: _product(a, b, product, out), (x, y), out))


def _product(a: V, b: V, product: Product, out: Array | None) -> Array:
    """Return the residues of a*b."""
    ring, domain, x, y = a._plan, a._domain, a._data, b._data
    compute = backend_for(ring.basis, x)
    if domain == "eval" and product == "fft":
        raise DomainError(
            "product='fft' multiplies coefficients, and an operand is evaluated. Use intt() on this "
            "operand first, or omit product."
        )
    data = result_array(compute, result_shape(x, y), out, x, y)
    if domain == "eval":
        compute.multiply_eval(ring.transform, x, y, data)
        return data
    plan = plan_of_product(ring, product, compute)
    if x.size != y.size:
        counts = prod(x.shape[:-2]), prod(y.shape[:-2])
        if way_of_many(ring, product, plan, counts, compute) == "matrix":
            many, one = (a, b) if counts[1] == 1 else (b, a)
            if overlap(compute, many._data, data):  # a product of matrices would read what it has overwritten
                compute.multiply(plan, x, y, data)
            else:
                _multiply_by_matrix(many, one, data)
            return data
    long = data.size >= _LEAST and compute.xp is np and _size_of_work(plan, data) >= LONG
    if long and reporting() is not None:
        run = partial(compute.multiply, plan)
        in_pieces("product of {}", len(ring.moduli), run, data, x, y)
    else:
        compute.multiply(plan, x, y, data)
    return data


def _size_of_work(plan: Plan, data: Array) -> int:
    """Return how many residues the transforms of a product process, for a comparison with LONG."""
    rows: int = prod(data.shape[:-2]) * len(plan.basis.moduli)
    if isinstance(plan, AuxiliaryPlan):
        return rows * plan.transform.degree * len(plan.transform.tables)
    if isinstance(plan, FftProductPlan):
        return rows * plan.work(plan.digits) // 3
    return rows * plan.degree


def _verified(a: V, b: V, product: Product, out: Array | None) -> V:
    """Return the product after checking it; see verify.py."""
    compute = backend_of(a._data)
    with unverified():
        if out is not None:  # the check reads the operands after out is written
            a, b = (x._with(copied(x._data)) if overlap(compute, x._data, out) else x for x in (a, b))
        c = multiply(a, b, product, out)
        if not c._data.size:
            return c
        if c._domain == "eval":
            check_again(intt(a), intt(b), intt(c), multiply, by_fft=False)
        else:
            check_product(a, b, c, plan_of_product(a._plan, product, compute), multiply)
    return c


def multiply_limbs(a: V, b: V, product: Product = "auto", out: Array | None = None) -> V:
    """Return multiply(a, b, product, out). The data of a and b may have any strides.

    Pointwise products read the data as they are. Other products read copies.
    """
    strides = layouts(a._data, b._data)
    if strides is not None and product != "fft" and _by_entries(a):
        return a._with(pointwise(a._plan.basis, "mul", a._data, b._data, out, strides))
    return multiply(_dense(a), _dense(b), product, out)


def _by_entries(a: Value) -> bool:
    """Return whether products with this value are pointwise products of residues."""
    return a._domain == "eval" and a._plan.leaf_size == 1 and not verifying()


def _dense(x: V) -> V:
    data = contiguous(x._data)
    return x if data is x._data else x._with(data)


@repeated
def fma(a: V, b: V | Array, c: V | Array, strides: Layouts = None, *, out: Array | None = None) -> V:
    """Return a*b + c, computed in one pass if products are pointwise.

    b, c: values in a's domain, or the residues (rows, 1) of an int.
    strides: the result of layouts(a, b, c).
    """
    ring, basis = a._plan, a._plan.basis
    by_entries = _by_entries(a)
    if not by_entries:
        a = _dense(a)

    def value(x: V | Array) -> V:
        if isinstance(x, Value):
            return x if by_entries else _dense(x)
        step = ring.n if a._domain == "coef" else ring.transform.leaf_size
        return a._with(of_residues(basis, x, ring.n, step, ()))

    y, z = b if by_entries else value(b), value(c)
    arrays = (a._data, y._data if isinstance(y, Value) else y, z._data)
    if by_entries:
        return a._with(multiply_add(basis, *arrays, out, strides))
    if out is not None:
        result_array(backend_for(basis, a._data), result_shape(*arrays), out, *arrays)  # checks `out` first
    return a._with(pointwise(basis, "add", multiply(a, value(y))._data, z._data, out))


@repeated
def power(x: V, exponent: int, *, out: None = None) -> V:
    """Return x^exponent in x's domain, exponent >= 0, by squaring.

    Intermediate powers stay evaluated if `way_of_sums` chooses the transform for this ring.
    """
    if exponent == 0:
        return x._with(ones(x._plan, x._domain, x._batch, backend_of(x._data)))
    if exponent == 1:
        return x._with(copied(x._data))
    if x._domain == "coef" and way_of_sums(x._plan) == "transform":
        return intt(power(ntt(x), exponent))
    result = x
    for bit in bin(exponent)[3:]:
        result = multiply(result, result)
        if bit == "1":
            result = multiply(result, x)
    return result


# ---- many short polynomials times one: a product of matrices ----


def _multiply_by_matrix(many: Value, one: Value, out: Array) -> None:
    """Multiply each polynomial of `many` by `one`, as a vector times the matrix whose row k is X^k * one."""
    ring, x, y = many._plan, many._data, one._data
    compute, n, below = backend_of(x), ring.n, y
    if ring.quotient.wrap == -1:
        below = empty(compute, y.shape, y.dtype)
        compute.pointwise(ring.basis, "neg", y, None, None, below)
    # Let b be `one`. Coefficient j of X^k * b is entry n + j - k of the row (X^n * b, b), which has 2n
    # entries. `rows` has n copies of this row, one after another. In copy k, the coefficient is entry
    # n + j + k * (2n - 1) of `rows`. So row k of the matrix is the n entries from n + k * (2n - 1).
    rows = spread(joined([below.reshape(n), y.reshape(n)], 0), (n, 2 * n)).reshape(-1)
    matrix = contiguous(rows[n:].reshape(n, 2 * n - 1)[:, :n])
    compute.matmul(ring.basis, x.reshape(1, -1, n), matrix.reshape(1, n, n), out.reshape(1, -1, n))
