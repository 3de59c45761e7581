"""Operations on each residue: sums, differences, negatives, multiples, equality, sums over batch axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Arithmetic, Array, Op, backend_for, backend_of
from ..errors import ParameterError
from ..plans.basis import Basis
from .batch import checked_axis, result_array, result_shape
from .calls import remember
from .integers import factors, factors_of_limbs


def pointwise(basis: Basis, op: Op, a: Array, b: Array, out: Array | None = None) -> Array:
    """a + b, a - b or a * b, residue by residue; batch axes broadcast."""
    key = op, type(a), a.shape, b.shape
    if (call := basis.calls.get(key)) and (data := call(a, b, out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(basis, a)
    data = result_array(compute, result_shape(a, b), out, a, b)
    done = compute.pointwise(basis, op, a, b, None, data)
    remember(basis.calls, key, compute, done, data)
    return data


def negate(basis: Basis, x: Array, out: Array | None = None) -> Array:
    """-x."""
    key = "neg", type(x), x.shape
    if (call := basis.calls.get(key)) and (data := call(x, None, out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(basis, x)
    data = result_array(compute, x.shape, out, x)
    done = compute.pointwise(basis, "neg", x, None, None, data)
    remember(basis.calls, key, compute, done, data)
    return data


def multiply_add(basis: Basis, a: Array, b: Array, c: Array, out: Array | None = None) -> Array:
    """a * b + c, residue by residue; b may be one number a row, and batch axes broadcast."""
    compute = backend_for(basis, a)
    data = result_array(compute, result_shape(a, b, c), out, a, b, c)
    compute.pointwise(basis, "mul_add", a, b, c, data)
    return data


def scale(basis: Basis, x: Array, factor: int, out: Array | None = None) -> Array:
    """x times an int."""
    compute = backend_for(basis, x)
    data = result_array(compute, x.shape, out, x)
    compute.pointwise(basis, "mul", x, compute.constant(basis.residues(factor)), None, data)
    return data


def scale_by(basis: Basis, x: Array, ints: Any, limbs: Any, out: Array | None = None) -> Array:
    """x times one integer for each batch element, or for each limb."""
    if (ints is None) == (limbs is None):
        raise ParameterError("scale_by: give integers for the batch, or limbs=, one for each modulus")
    compute = backend_of(x)
    if limbs is None:
        scalars = factors(basis, ints, x.shape[:-2], compute)
    else:
        scalars = factors_of_limbs(basis, limbs, compute)
    return pointwise(basis, "mul", x, scalars, out)


def add_constant(basis: Basis, x: Array, constant: int, step: int, out: Array | None = None) -> Array:
    """x plus an int in every step-th entry; step: n in coefficients, else the leaf size."""
    compute = backend_for(basis, x)
    scalar = compute.constant(basis.residues(constant))
    if step == 1:
        return pointwise(basis, "add", x, scalar, out)
    data = result_array(compute, x.shape, out, x)
    with compute.device_scope():
        entries = x[..., ::step].copy()  # ascontiguousarray would not copy a single entry
        compute.pointwise(basis, "add", entries, scalar, None, entries)
        if data is not x:
            data[...] = x
        data[..., ::step] = entries
    return data


def add_up(
    basis: Basis, x: Array, axis: int | tuple[int, ...] | None = None, out: Array | None = None
) -> Array:
    """The sum over batch axes, by default all. Over no axis it is a copy of x, over an empty axis 0."""
    compute, total, ndim = backend_for(basis, x), x, x.ndim - 2
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    with compute.device_scope():
        for i in sorted({checked_axis(a, ndim) for a in axes}, reverse=True):
            total = _sum_first(compute, basis, compute.xp.moveaxis(total, i, 0))
        if out is not None:
            out = result_array(compute, total.shape, out, x)
            out[...] = total
            return out
        return total.copy() if total is x else total


def _sum_first(compute: Arithmetic, basis: Basis, x: Array) -> Array:
    """The sum over the first axis, by halves: about log2 len(x) calls."""
    xp = compute.xp
    if not len(x):
        return xp.zeros(x.shape[1:], x.dtype)  # type: ignore[no-any-return]
    x = xp.ascontiguousarray(x)
    while len(x) > 1:
        half = len(x) // 2
        rest = x[2 * half :]
        total = xp.empty_like(x[:half])
        compute.pointwise(basis, "add", x[:half], x[half : 2 * half], None, total)
        x = xp.concatenate([total, rest]) if len(rest) else total
    first: Array = x[0].copy()
    return first


def equal(a: Array, b: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether elements in one domain are equal: a bool for each batch element, in host memory."""
    result_shape(a, b)
    compute = backend_of(a)
    with compute.device_scope():
        same = (a == b).all(axis=(-2, -1))
        return np.asarray(compute.to_host(same))
