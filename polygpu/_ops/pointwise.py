"""Operations on each residue: sums, differences, negatives, multiples, equality, sums over batch axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .._backends import Arithmetic, Array, Op, backend_for, backend_of
from .._core.plans.basis import Basis
from ..errors import ParameterError
from .arrays import contiguous, copied, empty, overlap
from .batch import checked_axis
from .calls import device_of, record, repeated
from .integers import factors_of_limbs, residues_on, scalars
from .results import result_array, result_shape

# The result of `layouts` (arrays.py): the strides of a call's operands, or None if all are dense.
Layouts = tuple[tuple[int, ...], ...] | None


def pointwise(
    basis: Basis, op: Op, a: Array, b: Array, out: Array | None = None, strides: Layouts = None
) -> Array:
    """Compute a + b, a - b or a * b, residue by residue. Batch axes broadcast.

    strides: the result of layouts(a, b).
    """
    key: tuple[Any, ...]
    key = op, None if type(a) is ndarray else device_of(a), a is b, a is out, b is out, a.shape, b.shape
    if strides is not None:
        key += strides
    if (replay := basis.calls.get(key)) and (data := replay((a, b), out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(basis, a)

    def work() -> Array:
        data = result_array(compute, result_shape(a, b), out, a, b)
        compute.pointwise(basis, op, a, b, None, data)
        return data

    return record(basis.calls, key, compute, work, (a, b), out)


def neg(basis: Basis, x: Array, out: Array | None = None) -> Array:
    """Return -x."""
    key = "neg", None if type(x) is ndarray else device_of(x), x is out, x.shape
    if (replay := basis.calls.get(key)) and (data := replay((x,), out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(basis, x)

    def work() -> Array:
        data = result_array(compute, x.shape, out, x)
        compute.pointwise(basis, "neg", x, None, None, data)
        return data

    return record(basis.calls, key, compute, work, (x,), out)


def multiply_add(
    basis: Basis, a: Array, b: Array, c: Array, out: Array | None = None, strides: Layouts = None
) -> Array:
    """Compute a * b + c, residue by residue. Batch axes broadcast.

    b may have one residue per row.
    strides: the result of layouts(a, b, c).
    """
    same = a is b, a is c, b is c, a is out, b is out, c is out
    key: tuple[Any, ...]
    key = "mul_add", None if type(a) is ndarray else device_of(a), same, a.shape, b.shape, c.shape
    if strides is not None:
        key += strides
    if (replay := basis.calls.get(key)) and (data := replay((a, b, c), out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(basis, a)

    def work() -> Array:
        data = result_array(compute, result_shape(a, b, c), out, a, b, c)
        compute.pointwise(basis, "mul_add", a, b, c, data)
        return data

    return record(basis.calls, key, compute, work, (a, b, c), out)


def scale(basis: Basis, x: Array, factor: int, out: Array | None = None, strides: Layouts = None) -> Array:
    """Return x times the int `factor`. strides: the result of layouts(x)."""
    return pointwise(basis, "mul", x, residues_on(backend_for(basis, x), basis, factor), out, strides)


def scale_by(basis: Basis, x: Array, ints: Any, limbs: Any, out: Array | None = None) -> Array:
    """Return x times one integer for each batch element (`ints`), or for each limb (`limbs`)."""
    if (ints is None) == (limbs is None):
        raise ParameterError(
            "scale_by needs either ints, one for each batch element, or limbs, one for each modulus. Give "
            "exactly one of them."
        )
    compute = backend_of(x)
    if limbs is None:
        factors = scalars(basis, ints, x.shape[:-2], compute, "ints")
    else:
        factors = factors_of_limbs(basis, limbs, compute)
    return pointwise(basis, "mul", x, factors, out)


def add_constant(
    basis: Basis, x: Array, constant: int, step: int, out: Array | None = None, strides: Layouts = None
) -> Array:
    """Return x with `constant` added to every step-th entry.

    step: n if x is in coefficients, else the leaf size. strides: the result of layouts(x).
    """
    compute = backend_for(basis, x)
    scalar = residues_on(compute, basis, constant)
    if step == 1:
        return pointwise(basis, "add", x, scalar, out, strides)
    return _added(basis, contiguous(x), scalar, step, out=out)


@repeated
def _added(basis: Basis, x: Array, scalar: Array, step: int, *, out: Array | None = None) -> Array:
    """Return x with the residues `scalar`, (rows, 1), added to every step-th entry."""
    compute = backend_for(basis, x)
    data = result_array(compute, x.shape, out, x)
    entries = copied(x[..., ::step])  # contiguous() would not copy if there is one entry
    compute.pointwise(basis, "add", entries, scalar, None, entries)
    if data is not x:
        compute.copy(x, data)
    compute.copy(entries, data[..., ::step])
    return data


def add_to_first(basis: Basis, x: Array, ints: Any, step: int) -> Array:
    """Return x, (*batch, k, rows, n), with the constants `ints` added to component 0.

    step: n if x is in coefficients, else the leaf size.
    """
    return _added_to_first(basis, x, scalars(basis, ints, x.shape[:-3], backend_of(x), "x"), step)


@repeated
def _added_to_first(basis: Basis, x: Array, constants: Array, step: int, *, out: None = None) -> Array:
    """Return x with `constants` added to every step-th entry of component 0.

    constants: residues (*shape, rows, 1).
    """
    compute, data = backend_for(basis, x), copied(x)
    entries = copied(x[..., 0, :, ::step])
    compute.pointwise(basis, "add", entries, constants, None, entries)
    compute.copy(entries, data[..., 0, :, ::step])
    return data


def folded(
    basis: Basis, x: Array, n: int, runs: list[tuple[int, int, int, int]], out: Array | None = None
) -> Array:
    """Return the first n coefficients of x plus or minus runs of the other coefficients.

    runs: the result of Quotient.folding. If `runs` is empty, the result is x itself.
    """
    if not runs:
        return x
    compute = backend_for(basis, x)
    data = copied(x[..., :n])
    for first, to, count, sign in runs:
        low, high = contiguous(data[..., to : to + count]), contiguous(x[..., first : first + count])
        compute.pointwise(basis, "add" if sign > 0 else "sub", low, high, None, low)
        compute.copy(low, data[..., to : to + count])
    if out is None:
        return data
    compute.copy(data, result_array(compute, data.shape, out, x))
    return out


@repeated
def sum_over(
    basis: Basis, x: Array, axis: int | tuple[int, ...] | None = None, *, out: Array | None = None
) -> Array:
    """Return the sum over batch axes. axis: the axes; None for all batch axes.

    If `axis` is (), the result is a copy of x. The sum over an axis of length 0 is 0.
    """
    compute, total, ndim = backend_for(basis, x), x, x.ndim - 2
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for i in sorted({checked_axis(a, ndim) for a in axes}, reverse=True):
        order = i, *(j for j in range(total.ndim) if j != i)
        total = _sum_first(compute, basis, total.transpose(order))
    if out is not None:
        out = result_array(compute, total.shape, out, x)
        compute.copy(total, out)
        return out
    return copied(total) if overlap(compute, total, x) else total


def _sum_first(compute: Arithmetic, basis: Basis, x: Array) -> Array:
    """Return the sum over the first axis, by adding halves in about log2 len(x) calls.

    If the axis has length 1, the result is a view of x.
    """
    if not len(x):
        return empty(compute, x.shape[1:], x.dtype, zero=True)
    x = contiguous(x)
    while len(x) > 1:
        half = len(x) // 2
        total = empty(compute, (len(x) - half, *x.shape[1:]), x.dtype)
        compute.pointwise(basis, "add", x[:half], x[half : 2 * half], None, total[:half])
        if len(x) % 2:
            compute.copy(x[-1], total[-1])
        x = total
    first: Array = x[0]
    return first


def equal(a: Array, b: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether elements in one domain are equal: a bool for each batch element, in host memory."""
    result_shape(a, b)
    compute = backend_of(a)
    with compute.device_scope():
        same = (a == b).all(axis=(-2, -1))
        return np.asarray(compute.to_host(same))
