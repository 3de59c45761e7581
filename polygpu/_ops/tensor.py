"""Products of ciphertexts of two components, before and after relinearisation."""

from __future__ import annotations

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
    """Return (x_0*y_0, x_0*y_1 + x_1*y_0, x_1*y_1), (*batch, 3), for evaluated ciphertexts (*batch, 2)."""
    compute, batch = backend_of(x), np.broadcast_shapes(x.shape[:-3], y.shape[:-3])
    data = empty(compute, (*batch, 3, *x.shape[-2:]), x.dtype)
    compute.tensor(basis, x, y, None, data[..., :2, :, :], data[..., 2, :, :], False)
    return data


@repeated
# Eight parameters, because @repeated identifies a call by its arguments: the function may read nothing else.
def inner_product(
    ring: RingPlan,
    xs: tuple[Array, ...],
    ys: tuple[Array, ...],
    relin: Value,
    switch: KeySwitch,
    add: Array | None,
    target: RingPlan,
    *,
    out: Array | None = None,
) -> Value:
    """Return the sum over i of xs[i] * ys[i], plus `add`, relinearised by one key switch: (*batch, 2).

    xs, ys, add: evaluated ciphertexts of two components. target: see `key_switch`.
    """
    compute, rest = backend_of(xs[0]), xs[0].shape[-2:]
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (*xs, *ys)))
    pair, square = (empty(compute, (*batch, *axes, *rest), xs[0].dtype) for axes in ((2,), ()))
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        compute.tensor(ring.basis, x, y, None if i else add, pair, square, i > 0)
    return key_switch(Value(ring, square, "eval"), relin, switch, pair, target, out=out)
