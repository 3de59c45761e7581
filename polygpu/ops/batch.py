"""Batch axes of arrays (*batch, rows, n): how they broadcast, memory for results, indexing and joining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from .. import _cpu
from ..arrays import broadcasts, check_writable, empty, overlap
from ..backends import Array, Memory, backend_of, same_device
from ..checks import integer, shown
from ..errors import OutputError, ParameterError
from ..reporting import Work, counted

ROWS = 32  # least rows of a thread in a piece of a long call: at a piece's end threads wait for each other
_OF_VIEWS = {int, slice, type(None), type(Ellipsis)}  # types of indices that copy nothing


# ---- results ----


def result_shape(first: Array, *others: Array) -> tuple[int, ...]:
    """The shape of a result: the batch shapes of the operands together, rows and coefficients."""
    shape: tuple[int, ...] = first.shape
    for x in others:
        if x.shape != shape:
            break
    else:  # np.broadcast_shapes takes as long as a short product
        return shape
    try:
        return np.broadcast_shapes(shape, *(x.shape for x in others))
    except ValueError:
        raise ParameterError(
            f"batch shapes {_shapes([first, *others])} do not broadcast; reshape or index the batch axes"
        ) from None


def result_array(compute: Memory, shape: tuple[int, ...], out: Array | None, *operands: Array) -> Array:
    """The array to write, of this shape: a new one, or `out` after all checks. `out` may be an operand."""
    if out is None:
        return empty(compute, shape, operands[0].dtype)
    if out.shape != shape:
        raise OutputError(f"out: batch shape {out.shape[:-2]}, the result has {shape[:-2]}")
    if not same_device(out, operands[0]):
        raise OutputError(f"out: on {backend_of(out).name}, the operands are on {compute.name}")
    check_writable(compute, out, *operands)
    return out


def check_apart(out: Array | None, *operands: Array) -> None:
    """Raise OutputError where an `out` shares memory with what is read while it is written."""
    if out is not None and any(overlap(backend_of(out), x, out) for x in operands):
        raise OutputError("out: is in the memory of an operand that is read until the end; give other memory")


# ---- long work ----


def in_pieces(what: str, limbs: int, run: Callable[..., Any], out: Array, *operands: Array) -> None:
    """Call run(*operands, out) on the host, as Work: in pieces of the batch where progress is reported.

    what: the text of the Work, with {} for the number of polynomials. limbs: of the ring. Batch axes of the
    operands broadcast to those of `out`, as in run(). All arrays are C-contiguous.
    """
    items = prod(out.shape[:-2])
    whole = [x.shape == out.shape or prod(x.shape[:-2]) == 1 for x in operands]
    step = 1 if all(whole) else items // len(out)  # polynomials for each index of the first axis
    if all(whole):
        out, *operands = (x.reshape(-1, *x.shape[-2:]) for x in (out, *operands))  # type: ignore[assignment]
    threads = _cpu.num_threads()
    unit = lcm(step, threads // gcd(threads, limbs))
    least = 1 if threads == 1 else -(-ROWS * threads // limbs)
    with Work(items, what, counted(items, "polynomial")) as work:
        for piece in work.pieces(unit, least):
            at = slice(piece.start // step, -(-piece.stop // step))
            run(*(x[at] if x.ndim == out.ndim and len(x) > 1 else x for x in operands), out[at])


# ---- axes ----


def checked_axis(axis: object, ndim: int) -> int:
    """The batch axis, counted from the left."""
    a = integer(axis, "axis")
    if not -ndim <= a < ndim:
        raise ParameterError(f"axis: {shown(a)} is outside the {ndim} batch axes")
    return a % ndim


def _batch_keys(key: Any) -> tuple[Any, ...]:
    """A key of the batch axes, which an Ellipsis fills up."""
    keys = key if isinstance(key, tuple) else (key,)
    return keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis)


def _no_such_entry(error: IndexError, x: Array) -> IndexError:
    return IndexError(f"{error}; the batch shape is {x.shape[:-2]}, coefficients are in poly.data")


def index(x: Array, key: Any) -> Array:
    """The entries at a key of the batch axes, by NumPy's rules: a view if it is C-contiguous, else a copy."""
    keys = _batch_keys(key)
    at = (*keys, slice(None), slice(None))
    compute = backend_of(x)
    try:
        if set(map(type, keys)) <= _OF_VIEWS:
            data = x[at]
        else:
            with compute.device_scope():
                data = x[at]
    except IndexError as error:
        raise _no_such_entry(error, x) from None
    if not data.flags.c_contiguous:
        with compute.device_scope():
            data = compute.xp.ascontiguousarray(data)
    return data  # type: ignore[no-any-return]


def assign(x: Array, key: Any, value: Array) -> None:
    """Write values at a key of the batch axes, by NumPy's rules. The values may share memory with x."""
    compute = backend_of(x)
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise OutputError("value: is read-only and takes no assignment; value.copy() can be written")
    keys = _batch_keys(key)
    at = (*keys, slice(None), slice(None))
    with compute.device_scope():
        if overlap(compute, x, value):
            value = value.copy()
        try:
            place = compute.xp.broadcast_to(x[..., 0, 0], x.shape[:-2])[keys].shape
        except IndexError as error:
            raise _no_such_entry(error, x) from None
        if not broadcasts(value.shape[:-2], place):
            raise ParameterError(
                f"value: batch shape {value.shape[:-2]} does not broadcast to {place}, that of the place; "
                "reshape or index its batch axes"
            )
        x[at] = value


def reshape(x: Array, sizes: Any) -> Array:
    """A view in another batch shape; one size may be -1."""
    batch = x.shape[:-2]
    try:
        new = np.empty(batch, np.bool_).reshape(sizes).shape
    except (ValueError, TypeError, OverflowError):
        raise ParameterError(f"shape: the batch shape {batch} does not reshape to {shown(sizes)}") from None
    return x.reshape(*new, *x.shape[-2:])


def stack(arrays: Sequence[Array], axis: object) -> Array:
    """Arrays of one batch shape along a new batch axis."""
    at = checked_axis(axis, arrays[0].ndim - 1)
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ParameterError(f"polys: batch shapes {_shapes(arrays)} must be equal to be stacked")
    compute = backend_of(arrays[0])
    with compute.device_scope():
        return compute.xp.stack(arrays, at)  # type: ignore[no-any-return]


def concatenate(arrays: Sequence[Array], axis: object) -> Array:
    """Arrays along a batch axis that they have."""
    first = arrays[0]
    at = checked_axis(axis, first.ndim - 2)
    if any(
        x.ndim != first.ndim or np.delete(x.shape, at).tolist() != np.delete(first.shape, at).tolist()
        for x in arrays
    ):
        raise ParameterError(f"polys: batch shapes {_shapes(arrays)} must be equal but for axis {at}")
    compute = backend_of(first)
    with compute.device_scope():
        return compute.xp.concatenate(arrays, at)  # type: ignore[no-any-return]


def _shapes(arrays: Sequence[Array]) -> str:
    return ", ".join(str(x.shape[:-2]) for x in arrays)
