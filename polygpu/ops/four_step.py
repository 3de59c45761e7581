"""The steps of a transform that several memories share (plans/four_step.py), on one part of the values each.

A part is an array (*batch, rows, height, count) of neighbouring columns, a power of two of them, or an array
(*batch, rows, count, width) of neighbouring rows. Steps work in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from ..backends import Array, backend_of
from ..plans.four_step import FourStepPlan
from ..plans.ntt import NttPlan
from .integers import from_integers
from .pointwise import pointwise


def forward_columns(plan: FourStepPlan, x: Array, first: int) -> None:
    """Coefficients of the columns from number `first` on: what rows are transformed of."""
    compute, count = backend_of(x), x.shape[-1]
    for limb, part in _limbs(x):
        whole = part.reshape(1, -1)
        compute.ntt(plan.columns(limb, count), whole, whole)
        _twist(plan, limb, part, first, 1)


def inverse_columns(plan: FourStepPlan, x: Array, first: int) -> None:
    """Back to coefficients."""
    compute, count = backend_of(x), x.shape[-1]
    for limb, part in _limbs(x):
        _twist(plan, limb, part, first, -1)
        whole = part.reshape(1, -1)
        compute.intt(plan.columns(limb, count), whole, whole)


def forward_rows(plan: FourStepPlan, x: Array) -> None:
    """Rows after forward_columns to the evaluation domain, in the order of the ring."""
    _transform_rows(plan, x, backend_of(x).ntt)


def inverse_rows(plan: FourStepPlan, x: Array) -> None:
    """Evaluated rows to what inverse_columns takes."""
    _transform_rows(plan, x, backend_of(x).intt)


def _transform_rows(plan: FourStepPlan, x: Array, transform: Callable[[NttPlan, Array, Array], Any]) -> None:
    for limb, part in _limbs(x):
        rows = part.reshape(-1, 1, plan.width)
        transform(plan.rows(limb), rows, rows)


def _limbs(x: Array) -> Iterator[tuple[int, Array]]:
    """The parts of each polynomial modulo each limb, and the limb's number."""
    limbs = x.shape[-3]
    for i, part in enumerate(x.reshape(prod(x.shape[:-2]), *x.shape[-2:])):
        if part.size:
            yield i % limbs, part


def _twist(plan: FourStepPlan, limb: int, x: Array, first: int, sign: int) -> None:
    """Entry (r, j) times the twiddle of row r to the power sign * (first + j)."""
    compute, basis = backend_of(x), plan.limb(limb)
    starts, steps = (_twiddles(plan, limb, x, sign * power) for power in (first, 1))
    rows = x.reshape(plan.height, 1, -1)
    compute.scale_by_powers(basis, rows, starts, steps, rows)


def _twiddles(plan: FourStepPlan, limb: int, x: Array, power: int) -> Array:
    """Of each row to a power, (height, 1, 1), where x is; a product an entry."""
    compute, basis = backend_of(x), plan.limb(limb)
    *factors, last = (from_integers(basis, 1, f, compute) for f in plan.row_steps(limb, power))
    found = last.reshape(1, 1, 1)
    with compute.device_scope():
        for factor in factors:
            found = compute.xp.concatenate([found, pointwise(basis, "mul", found, factor)])
    return found
