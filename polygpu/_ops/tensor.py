"""Products of ciphertexts of two components, before and after relinearisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._backends import Array, backend_of
from .._core.plans.basis import Basis
from .._core.ring_plan import RingPlan
from .._core.value import Value
from .arrays import empty
from .calls import repeated
from .switch import KeySwitch, key_switch


@repeated
def tensor(basis: Basis, x: Array, y: Array, *, out: None = None) -> Array:
    """Return (x_0 y_0, x_0 y_1 + x_1 y_0, x_1 y_1), (*batch, 3), of evaluated ciphertexts (*batch, 2)."""
    data = empty(backend_of(x), (*_batch(x, y), 3, *x.shape[-2:]), x.dtype)
    _products(basis, x, y, data[..., :2, :, :], data[..., 2, :, :])
    return data


@repeated
# Eight parameters: all that a repeated call reads stands among its arguments.
def multiply(
    ring: RingPlan,
    x: Array,
    y: Array,
    relin: Value,
    switch: KeySwitch,
    add: Array | None,
    target: RingPlan,
    *,
    out: Array | None = None,
) -> Value:
    """Return the product of evaluated ciphertexts, relinearised, plus `add`, divided once: (*batch, 2)."""
    compute, rest = backend_of(x), x.shape[-2:]
    pair, square = (empty(compute, (*_batch(x, y), *axes, *rest), x.dtype) for axes in ((2,), ()))
    _products(ring.basis, x, y, pair, square)
    if add is not None:
        compute.pointwise(ring.basis, "add", pair, add, None, pair)
    return key_switch(Value(ring, square, "eval"), relin, switch, pair, target, out=out)


def _batch(x: Array, y: Array) -> tuple[int, ...]:
    return np.broadcast_shapes(x.shape[:-3], y.shape[:-3])


def _products(basis: Basis, x: Array, y: Array, pair: Array, square: Array) -> None:
    """Write the products of components; square: of the last ones."""
    compute = backend_of(x)
    (x0, x1), (y0, y1) = ((v[..., 0, :, :], v[..., 1, :, :]) for v in (x, y))
    mixed = empty(compute, square.shape, square.dtype)

    def write(place: Array, op: Any, a: Array, b: Array, c: Array | None = None) -> None:
        made = place if place.flags.c_contiguous else empty(compute, place.shape, place.dtype)
        compute.pointwise(basis, op, a, b, c, made)
        if made is not place:
            compute.copy(made, place)

    write(pair[..., 0, :, :], "mul", x0, y0)
    write(square, "mul", x1, y1)
    compute.pointwise(basis, "mul", x0, y1, None, mixed)
    if x is y:
        write(pair[..., 1, :, :], "add", mixed, mixed)
    else:
        write(pair[..., 1, :, :], "mul_add", x1, y0, mixed)
