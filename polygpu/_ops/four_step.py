"""The steps of a four-step transform (_core/plans/four_step.py), for values on several devices.

Each step works on a part of the values: neighbouring columns, (*batch, limbs, height, count), or neighbouring
rows, (*batch, limbs, count, width). The count of columns is a power of two. The last two axes of a part are
dense. A step writes to `out`, an array of the part's shape. If `out` is None, the step overwrites the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._backends import Array, Backend, backend_of
from .._core.plans.four_step import FourStepPlan
from .._core.plans.ntt import NttPlan
from .pointwise import pointwise

Transform = Callable[[NttPlan, Array, Array], Any]


def forward_columns(plan: FourStepPlan, x: Array, first: int, out: Array | None = None) -> None:
    """Transform the columns x, and multiply them by twiddles. The next step is forward_rows.

    first: the index of the first column of x.
    """
    target = x if out is None else out
    transform_columns(plan, x, target, backend_of(x).ntt)
    compute = backend_of(x)
    twist(plan, target, 0, twiddles(plan, compute, first), twiddles(plan, compute, 1), target)


def inverse_columns(plan: FourStepPlan, x: Array, first: int, out: Array | None = None) -> None:
    """Undo forward_columns. Call inverse_rows first. first: the index of the first column of x."""
    target = x if out is None else out
    compute = backend_of(x)
    twist(plan, x, 0, twiddles(plan, compute, -first), twiddles(plan, compute, -1), target)
    transform_columns(plan, target, target, backend_of(x).intt)


def forward_rows(plan: FourStepPlan, x: Array, out: Array | None = None) -> None:
    """Transform rows to the evaluation domain, in the ring's order of entries.

    The step before is forward_columns.
    """
    transform_rows(plan, x, x if out is None else out, backend_of(x).ntt)


def inverse_rows(plan: FourStepPlan, x: Array, out: Array | None = None) -> None:
    """Transform evaluated rows back. The next step is inverse_columns."""
    transform_rows(plan, x, x if out is None else out, backend_of(x).intt)


def transform_columns(
    plan: FourStepPlan, x: Array, out: Array, transform: Transform, is_open: bool = False
) -> None:
    """Transform each column by itself, without twiddles.

    transform: the ntt or intt of a backend.
    is_open: if True, do the first levels of butterflies of the whole transform instead. transform_below does
    the other levels. The columns are then called open.
    """
    count = x.shape[-1]
    for limb, part, target in _limbs(x, out):
        transform(plan.columns(limb, count, is_open), part.reshape(1, -1), target.reshape(1, -1))


def transform_rows(plan: FourStepPlan, x: Array, out: Array, transform: Transform) -> None:
    """Transform each row by itself. `twist` is a separate step. transform: the ntt or intt of a backend."""
    for limb, part, target in _limbs(x, out):
        transform(plan.rows(limb), part.reshape(-1, 1, plan.width), target.reshape(-1, 1, plan.width))


def transform_columns_apart(
    plan: FourStepPlan, x: Array, buffer: Array, out: list[Array], transform: Transform
) -> None:
    """Transform open columns (see `transform_columns`). Write an equal share of the rows to each of `out`.

    buffer: x, or another array of x's shape.
    out: parts of `buffer`, or other arrays. Other arrays may have gaps between their rows.

    The backend must prefer tables (`prefers_tables`), and 2^plan.levels_above must be at least len(out).
    """
    count, rows = x.shape[-1], x.shape[-2] // len(out)
    for limb, part, target in _limbs(x, buffer):
        transform(plan.columns_above(limb, count), part.reshape(1, -1), target.reshape(1, -1))
    for k, ends in enumerate(out):
        for limb, part, target in _limbs(buffer[..., k * rows : (k + 1) * rows, :], ends):
            below = plan.columns_below(limb, k * rows, rows, count)
            if target.flags.c_contiguous:
                target = target.reshape(1, -1)
            transform(below, part.reshape(1, -1), target)


def transform_below(plan: FourStepPlan, x: Array, first: int, out: Array, transform: Transform) -> None:
    """Transform rows of open columns (see `transform_columns`) to the evaluation domain, or back.

    The backend must prefer tables (`prefers_tables`). The rows need no `twist`.

    x: `count` neighbouring rows, (*batch, limbs, count, width). `count` is a power of two.
    first: the index of the first row of x, a multiple of `count`.
    """
    for limb, part, target in _limbs(x, out):
        transform(plan.rows_below(limb, first, part.shape[0]), part.reshape(1, -1), target.reshape(1, -1))


def twiddles(plan: FourStepPlan, compute: Backend, power: int) -> list[Array]:
    """Return, for each limb, an array (height, 1, 1) with the twiddle of each row, raised to `power`."""
    found = []
    for limb in range(len(plan.basis.moduli)):
        high, low = map(compute.constant, plan.row_twiddles(limb, power))
        product = pointwise(plan.limb(limb), "mul", low.reshape(1, 1, -1), high.reshape(-1, 1, 1))
        found.append(product.reshape(plan.height, 1, 1))
    return found


def twist(
    plan: FourStepPlan, x: Array, row: int, starts: list[Array], steps: list[Array], out: Array
) -> None:
    """Multiply entry (r, j) of x by start * step^j, where start and step belong to row `row` + r.

    x: rows of a part of the values, (*batch, limbs, rows, count), with a dense last axis.
    row: the index, in the values, of the first row of x.
    starts, steps: for each limb, an array with the start, or the step, of each row of the values.
    out: x, another array of x's shape, or an array (*batch, limbs, rows, runs, count / runs).
    """
    compute, rows = backend_of(x), slice(row, row + x.shape[-2])
    for limb, part, target in _limbs(x, out):
        first, step = starts[limb][rows], steps[limb][rows]
        compute.scale_by_powers(plan.limb(limb), part[:, None], first, step, target[:, None])


def _limbs(x: Array, out: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield, for each limb of each polynomial, the index of the limb and its entries in x and in `out`."""
    if x.size:
        for at in np.ndindex(x.shape[:-2]):
            yield at[-1], x[at], out[at]
