"""Linear combinations: sums of integer multiples of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._backends import Array, Memory, backend_for
from .._core.plans.basis import Basis
from .._core.value import V
from ..errors import ParameterError
from .arrays import as_integers, broadcasts, empty, layouts, overlap
from .calls import repeated
from .integers import constants
from .results import result_array, result_shape


def combine(values: Sequence[V], ints: Any, constant: Any, step: int, out: Array | None = None) -> V:
    """Return a linear combination of the values for each row of `ints`. The values are in one domain.

    ints: the factors, of shape (..., number of values).
    constant: integers to add to every step-th entry. Their shape broadcasts to the result's batch shape.
    step: n if the values are in coefficients, else the leaf size.

    The arrays of the values may have any strides.
    """
    basis, arrays = values[0]._plan.basis, [x._data for x in values]
    compute = backend_for(basis, arrays[0])
    integers = as_integers(ints, "ints")
    if not integers.ndim:
        raise ParameterError("ints is a single integer. Give a list of integers, one for each of polys.")
    if integers.shape[-1] != len(values):
        raise ParameterError(
            f"ints has shape {integers.shape}, which does not end in {len(values)}, the number of polys. "
            "Give one integer for each value in polys along the last axis."
        )
    batch = (*integers.shape[:-1], *result_shape(*arrays)[:-2])
    residues = None
    if type(constant) is not int or constant:
        residues = _constants(basis, constant, batch, compute)
    factors = constants(basis, integers, compute)
    return _combined(*values, factors, residues, step, layouts(*arrays), out=out)  # type: ignore[no-any-return]


def _constants(basis: Basis, constant: Any, batch: tuple[int, ...], compute: Memory) -> Array:
    """Return the residues of `constant`, (*shape, rows, 1). Check that `shape` broadcasts to `batch`."""
    added = as_integers(constant, "constant")
    if not broadcasts(added.shape, batch):
        raise ParameterError(
            f"constant has shape {added.shape}, which does not broadcast to {batch}, the batch shape of the "
            "result. Give one integer, or one for each combination and batch element."
        )
    return constants(basis, added, compute)


@repeated
def _combined(*parts: Any, out: Array | None = None) -> Any:
    *values, factors, constant, step, _ = parts
    basis, arrays = values[0]._plan.basis, [x._data for x in values]
    compute = backend_for(basis, arrays[0])
    data = result_array(compute, (*factors.shape[:-3], *result_shape(*arrays)), out, *arrays)
    taken = out is not None and any(overlap(compute, x, data) for x in arrays)
    target = empty(compute, data.shape, data.dtype) if taken else data
    compute.combine(basis, arrays, factors, constant, step, target)
    if taken:
        compute.copy(target, data)
    return values[0]._with(data)
