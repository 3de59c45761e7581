"""The steps of a transform that several memories share (plans/four_step.py), on one part of the values each.

A part is an array (*batch, rows, height, count) of neighbouring columns, a power of two of them, or an array
(*batch, rows, count, width) of neighbouring rows; its last two axes are dense. A step writes into `out`, an array of
the same shape, by default the part itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..backends import Array, backend_of
from ..plans.four_step import FourStepPlan
from ..plans.ntt import NttPlan
from .pointwise import pointwise


def forward_columns(plan: FourStepPlan, x: Array, first: int, out: Array | None = None) -> None:
    """Coefficients of the columns from number `first` on: what rows are transformed of."""
    compute, count = backend_of(x), x.shape[-1]
    for limb, part, target in _limbs(x, out):
        compute.ntt(plan.columns(limb, count), part.reshape(1, -1), target.reshape(1, -1))
        _twist(plan, limb, target, first, 1, target)


def inverse_columns(plan: FourStepPlan, x: Array, first: int, out: Array | None = None) -> None:
    """Back to coefficients."""
    compute, count = backend_of(x), x.shape[-1]
    for limb, part, target in _limbs(x, out):
        _twist(plan, limb, part, first, -1, target)
        whole = target.reshape(1, -1)
        compute.intt(plan.columns(limb, count), whole, whole)


def forward_rows(plan: FourStepPlan, x: Array, out: Array | None = None) -> None:
    """Rows after forward_columns to the evaluation domain, in the order of the ring."""
    _transform_rows(plan, x, out, backend_of(x).ntt)


def inverse_rows(plan: FourStepPlan, x: Array, out: Array | None = None) -> None:
    """Evaluated rows to what inverse_columns takes."""
    _transform_rows(plan, x, out, backend_of(x).intt)


def _transform_rows(
    plan: FourStepPlan, x: Array, out: Array | None, transform: Callable[[NttPlan, Array, Array], Any]
) -> None:
    for limb, part, target in _limbs(x, out):
        transform(plan.rows(limb), part.reshape(-1, 1, plan.width), target.reshape(-1, 1, plan.width))


def _limbs(x: Array, out: Array | None) -> Iterator[tuple[int, Array, Array]]:
    """The number of each limb of each polynomial, its part and where that goes."""
    target = x if out is None else out
    if x.size:
        for at in np.ndindex(x.shape[:-2]):
            yield at[-1], x[at], target[at]


def _twist(plan: FourStepPlan, limb: int, x: Array, first: int, sign: int, out: Array) -> None:
    """Entry (r, j) times the twiddle of row r to the power sign * (first + j)."""
    starts, steps = (_twiddles(plan, limb, x, sign * power) for power in (first, 1))
    shape = plan.height, 1, -1
    backend_of(x).scale_by_powers(plan.limb(limb), x.reshape(shape), starts, steps, out.reshape(shape))


def _twiddles(plan: FourStepPlan, limb: int, x: Array, power: int) -> Array:
    """Of each row to a power, (height, 1, 1), where x is."""
    compute = backend_of(x)
    high, low = map(compute.constant, plan.row_twiddles(limb, power))
    found = pointwise(plan.limb(limb), "mul", low.reshape(1, 1, -1), high.reshape(-1, 1, 1))
    return found.reshape(plan.height, 1, 1)
