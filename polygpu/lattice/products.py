"""Sums and products of ciphertexts with numbers and with each other."""

from __future__ import annotations

from typing import Any

from .._ops.pointwise import add_to_first
from ..errors import ParameterError
from ..poly import Poly, checked_poly


def add_constant(c: Poly, x: Any) -> Poly:
    """Return ciphertexts plus integers: each is added to component 0 of its ciphertext, at X^0.

    The phase of the result is that of c plus the constant polynomial x. Evaluated ciphertexts stay so: x is
    added at every point, or to the constant of every leaf if the transform is incomplete.

    Args:
        c: ciphertexts, (*batch, k), in either domain.
        x: ints of any size and sign, taken modulo Q: one int, or a nested list or an array of integers or
            Python ints whose shape broadcasts to (*batch,).

    Returns a new value of c's ring, shape and domain.

    Raises:
        RingMismatch: c is no Poly.
        ParameterError: c has no axis of components, or the shape of x does not broadcast to (*batch,).
        CoefficientError: x holds something other than integers. Nothing is rounded.
        DeviceError: x is an array on another device than c.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a copy of c, and one sum for each ciphertext and limb; n / leaf_size sums for evaluated ones.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> c = R([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])  # two ciphertexts of two components
    >>> pg.lattice.add_constant(c, [10, -1]).to_bigints(centered=True)[..., :2].tolist()
    [[[11, 2], [3, 4]], [[4, 6], [7, 8]]]
    >>> pg.lattice.add_constant(c.ntt(), 2**100) == pg.lattice.add_constant(c, 2**100)
    True
    """
    c = checked_poly(c, "c")
    if not c.ndim or not c.shape[-1]:
        raise ParameterError(
            f"c: batch shape {c.shape}; its last axis must be that of a ciphertext's components, at least "
            "one. Add an int to a plain value with +"
        )
    plan = c._plan
    return c._with(add_to_first(plan.basis, c._data, x, plan.constant_step(c._domain)))
