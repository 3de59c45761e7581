"""Memory for results: new arrays, and all checks of an `out` that is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._backends import Array, Memory, backend_of, is_device_array, same_device
from ..errors import DeviceError, OutputError, ParameterError
from .arrays import check_unmasked, empty, overlap


def result_shape(first: Array, *others: Array) -> tuple[int, ...]:
    """Return the shape of a result, (*batch, rows, n), where batch is the operands' broadcast batch shape."""
    shape: tuple[int, ...] = first.shape
    for x in others:
        if x.shape != shape:
            break
    else:  # equal shapes need no np.broadcast_shapes, which takes as long as a short product
        return shape
    try:
        return np.broadcast_shapes(shape, *(x.shape for x in others))
    except ValueError:
        raise ParameterError(
            f"The batch shapes {batch_shapes([first, *others])} do not broadcast. Reshape or index the batch "
            "axes."
        ) from None


def batch_shapes(arrays: Any) -> str:
    """Return the batch shapes of arrays, for a message."""
    return ", ".join(str(x.shape[:-2]) for x in arrays)


def result_array(compute: Memory, shape: tuple[int, ...], out: Array | None, *operands: Array) -> Array:
    """Return the array for residues of this shape: `out`, or a new array if `out` is None.

    `out` may be an operand.
    """
    if out is None:
        return empty(compute, shape, operands[0].dtype)
    if out.shape != shape:
        raise OutputError(
            f"out has batch shape {out.shape[:-2]} and the result has {shape[:-2]}. Give an out of the "
            "result's batch shape."
        )
    if not same_device(out, operands[0]):
        raise OutputError(
            f"out is on {backend_of(out).name} and the operands are on {compute.name}. Give an out on their "
            "device."
        )
    _check_writable(compute, out, *operands)
    return out


def result(
    compute: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], out: Any, *operands: Array
) -> Array:
    """Return the array for a result that is not a Poly: a new array, or `out`, which may be an operand."""
    if out is None:
        return empty(compute, shape, dtype)
    if not isinstance(out, np.ndarray) and not is_device_array(out):
        raise OutputError(f"out must be an array of {dtype}, not {type(out).__name__}.")
    check_unmasked(out, "out")
    if backend_of(out).name != compute.name:
        raise DeviceError(
            f"out is on {backend_of(out).name} and the operands are on {compute.name}. Give an out on their "
            "device."
        )
    if out.shape != shape or out.dtype != dtype:
        raise OutputError(
            f"out is an array of {out.dtype} {out.shape}, but the result is an array of {dtype} {shape}. "
            "Give an out of the result's dtype and shape."
        )
    if not out.flags.c_contiguous or compute.address(out) % out.dtype.itemsize:
        raise OutputError(
            "out must be C-contiguous and aligned. Give such an array, or omit out and copy the result."
        )
    _check_writable(compute, out, *operands)
    return out  # type: ignore[no-any-return]


def _check_writable(compute: Memory, out: Array, *operands: Array) -> None:
    """Raise OutputError if `out` is read-only, or overlaps an operand without being that operand."""
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise OutputError("out is read-only. Give an array that can be written.")
    for x in operands:
        if x is out or not overlap(compute, x, out):
            continue
        if compute.address(x) != compute.address(out) or x.shape != out.shape or not x.flags.c_contiguous:
            raise OutputError(
                "out overlaps an operand in part. Give the operand itself as out, or an out in other memory."
            )


def check_apart(out: Array | None, *operands: Array) -> None:
    """Raise OutputError if `out` shares memory with an operand.

    Pass the operands that are still read after the first entries of `out` are written.
    """
    if out is not None and any(overlap(backend_of(out), x, out) for x in operands):
        raise OutputError(
            "out shares memory with an operand that is still read after the first entries of out are "
            "written. Give an out in other memory, or omit out."
        )
