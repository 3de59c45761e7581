"""Values of polynomials at points, and powers of numbers, with few backend calls even for large degrees."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import numpy as np

from .._backends import Array, backend_for, backend_of, is_device_array
from .._core.checks import integer
from .._core.plans.basis import Basis, basis_of
from ..errors import ParameterError
from .arrays import as_integers, contiguous, copied, empty, fill, holds_poly, in_dtype, joined
from .calls import repeated
from .integers import from_integers, residues_on, to_bigints
from .pointwise import multiply_add, pointwise

_CHUNK = 1 << 22  # residues in memory at a time; it limits how many points are evaluated together


def checked_points(x: Any) -> Array:
    """Return integers x of any size as an array of the same shape in host memory."""
    if holds_poly(x):
        raise ParameterError("x must hold integers, not a Poly. Give the integers at which to evaluate.")
    if is_device_array(x):
        x = backend_of(x).to_host(x)
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        return as_integers(x)
    points = np.array(x, dtype=object)
    return np.array([integer(v, "x") for v in points.flat], dtype=object).reshape(points.shape)


@repeated
def powers(basis: Basis, x: Array, count: int, *, out: None = None) -> Array:
    """Return x^0 ... x^(count - 1) along the last axis, for residues x of shape (*batch, rows, 1).

    Cost: at most 2 * count products.
    """
    compute = backend_for(basis, x)
    found, step = empty(compute, x.shape, x.dtype, zero=True), x
    fill(compute, found[..., :: basis.words, :], 1)  # of the number 1, only the lowest word is not 0
    while found.shape[-1] < count:
        found = joined([found, pointwise(basis, "mul", found, step)], found.ndim - 1)
        step = pointwise(basis, "mul", step, step)
    return found if found.shape[-1] == count else copied(found[..., :count])


def scale_by_powers(basis: Basis, x: Array, factor: int) -> Array:
    """Return the coefficients of x(factor * X), (*batch, rows, n). Cost: two products per coefficient."""
    compute = backend_of(x)
    step = residues_on(backend_for(basis, x), basis, factor)
    if basis.wide:
        return pointwise(basis, "mul", x, powers(basis, step, x.shape[-1]))
    return _scaled(basis, x, residues_on(compute, basis, 1), step)


@repeated
def _scaled(basis: Basis, x: Array, first: Array, step: Array, *, out: None = None) -> Array:
    """Return x with entry j of each row multiplied by first * step^j."""
    compute = backend_of(x)
    data = empty(compute, x.shape, x.dtype)
    compute.scale_by_powers(basis, x, first, step, data)
    return data


def padded(x: Array, n: int) -> Array:
    """Return x with zeros appended up to n coefficients, or x itself if it has n coefficients."""
    return x if n == x.shape[-1] else _padded(x, n)


@repeated
def _padded(x: Array, n: int, *, out: None = None) -> Array:
    compute = backend_of(x)
    data = empty(compute, (*x.shape[:-1], n), x.dtype, zero=True)
    compute.copy(x, data[..., : x.shape[-1]])
    return data


def truncated(x: Array, n: int) -> tuple[Array, tuple[int, ...] | None]:
    """Return the first n coefficients, and the first batch index at which a later coefficient is not 0.

    The index is None if all later coefficients are 0. The call waits for the GPU.
    """
    compute = backend_of(x)
    with compute.device_scope():
        rest: Any = x[..., n:].any(axis=(-2, -1))
        rest = np.asarray(compute.to_host(rest))
        found = tuple(int(i) for i in np.argwhere(rest)[0]) if rest.any() else None
        return contiguous(x[..., :n]), found


def evaluate(basis: Basis, data: Array, x: Any) -> Any:
    """Return the values of polynomials at integers x, as Python ints (*batch, *x.shape).

    If (*batch, *x.shape) is (), return one int. data: the polynomials, (*batch, rows, n).
    """
    points, compute = checked_points(x), backend_of(data)
    batch, (rows, n) = data.shape[:-2], data.shape[-2:]
    items, total = prod(batch), points.size
    if not items or not total:
        return np.zeros((*batch, *points.shape), object)
    values = np.zeros((items, rows, total), basis.dtype)
    at = points.reshape(-1, 1)
    for limb, part in _parts(basis):
        matrix = not part.wide
        x_limb = contiguous(in_dtype(data.reshape(items, rows, n)[:, limb], part.dtype))
        size = max(1, _CHUNK // ((items + 2) * (isqrt(n) + 1) if matrix else items * n))
        for first in range(0, total, size):
            some = from_integers(part, 1, at[first : first + size], compute)
            found = (_by_matrices if matrix else _by_halves)(part, x_limb, some)
            values[:, limb, first : first + size] = compute.to_host(found)
    composed = to_bigints(basis, values, False).reshape((*batch, *points.shape))
    return composed if composed.ndim else composed.item()


def _parts(basis: Basis) -> list[tuple[slice, Basis]]:
    """Return, for each modulus, its rows and the basis of this modulus alone."""
    if len(basis.moduli) == 1:
        return [(slice(0, basis.rows), basis)]
    return [(slice(i, i + 1), basis_of((q,))) for i, q in enumerate(basis.moduli)]


def _by_matrices(basis: Basis, x: Array, points: Array) -> Array:
    """Return values (polynomials, 1, points), by two products of matrices.

    At a point r, the value is the sum over i and j of r^(i * m) * x_(i * m + j) * r^j, where m is about
    sqrt(n). The first product of matrices sums over i (giant steps), the second over j (baby steps).
    Source: Paterson & Stockmeyer 1973, for scalars.
    """
    compute, items, n, count = backend_of(x), len(x), x.shape[-1], len(points)
    width = 1 << (n.bit_length() // 2)  # the m of the docstring
    height = -(-n // width)
    x = padded(x, height * width)
    baby = powers(basis, points, width)
    last = contiguous(baby[..., -1:])
    giant = powers(basis, pointwise(basis, "mul", last, points), height)
    partial = empty(compute, (items, count, width), basis.dtype)
    compute.matmul(basis, giant.reshape(1, count, height), x.reshape(items, height, width), partial)
    by_point = contiguous(partial.transpose(1, 0, 2))
    values = empty(compute, (count, items, 1), basis.dtype)
    compute.matmul(basis, by_point, baby.reshape(count, width, 1), values)
    return values.transpose(1, 2, 0)


def _by_halves(basis: Basis, x: Array, points: Array) -> Array:
    """Return values (polynomials, rows, points) for any modulus.

    Let `low` and `high` be the halves of the coefficients. The value at r is that of low + r^(n/2) * high. So
    each step halves the number of coefficients, until one is left.
    """
    compute, (items, rows, n) = backend_of(x), x.shape
    steps = [points]
    while 1 << len(steps) < n:
        steps.append(pointwise(basis, "mul", steps[-1], steps[-1]))
    length = 1 << (n - 1).bit_length()
    with compute.device_scope():
        value = padded(x, length).reshape(items, 1, rows, length)
        while length > 1:
            length //= 2
            low, high = contiguous(value[..., :length]), contiguous(value[..., length:])
            value = multiply_add(basis, high, steps[length.bit_length() - 1], low)
        value = compute.xp.broadcast_to(value, (items, len(points), rows, 1))
        values: Array = value[..., 0].transpose(0, 2, 1)
        return values
