"""Batch axes of arrays (*batch, rows, n): long work in pieces, indexing and joining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from .. import _cpu
from .._backends import Array, backend_of, is_device_array
from .._core.checks import integer, shown
from .._core.reporting import Work, counted
from ..errors import OutputError, ParameterError
from .arrays import broadcasts, contiguous, copied, empty, joined, overlap, spread
from .calls import repeated
from .results import batch_shapes

ROWS = 32  # least rows per thread in a piece of work. Threads wait for each other after each piece
_OF_VIEWS = {int, slice, type(None), type(Ellipsis)}  # types of indices for which NumPy returns a view


# ---- long work ----


def in_pieces(what: str, limbs: int, run: Callable[..., Any], out: Array, *operands: Array) -> None:
    """Call run(*operands, out) on the host. If progress is reported, call it for each piece of the batch.

    what: the text of the progress report. {} stands for the number of polynomials.
    limbs: the number of limbs of the ring.
    run: a function that broadcasts the batch axes of the operands to those of `out`.

    `out` and the operands must be C-contiguous.
    """
    items = prod(out.shape[:-2])
    whole = [x.shape == out.shape or prod(x.shape[:-2]) == 1 for x in operands]
    step = 1 if all(whole) else items // len(out)  # polynomials for each index of the first axis
    if all(whole):
        out, *operands = (x.reshape(-1, *x.shape[-2:]) for x in (out, *operands))  # type: ignore[assignment]
    threads = _cpu.num_threads()
    # The number of rows in a piece (polynomials * limbs) is a multiple of the number of threads.
    unit = lcm(step, threads // gcd(threads, limbs))
    least = 1 if threads == 1 else -(-ROWS * threads // limbs)
    with Work(items, what, counted(items, "polynomial")) as work:
        for piece in work.pieces(unit, least):
            at = slice(piece.start // step, -(-piece.stop // step))
            run(*(x[at] if x.ndim == out.ndim and len(x) > 1 else x for x in operands), out[at])


# ---- axes ----


def checked_axis(axis: object, ndim: int) -> int:
    """Check a batch axis, and return its index from the left. ndim: the number of batch axes."""
    a = integer(axis, "axis")
    if not -ndim <= a < ndim:
        raise ParameterError(
            f"axis={shown(a)} is not one of the {ndim} batch axes. Axes count from 0 for the first one, or "
            "from -1 for the last one."
        )
    return a % ndim


def _batch_keys(key: Any) -> tuple[Any, ...]:
    """Return the index `key` as a tuple that has an Ellipsis. If `key` has none, append one."""
    keys = key if isinstance(key, tuple) else (key,)
    return keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis)


def _axes_of(key: Any) -> int:
    """Return the number of batch axes that `key` indexes. key: an entry of an index tuple."""
    if key is None or key is Ellipsis:
        return 0
    if isinstance(key, (bool, list)) or hasattr(key, "dtype"):
        array = np.asarray(key) if isinstance(key, (bool, list)) else key
        return int(array.ndim) if array.dtype == np.bool_ else 1
    return 1


def _gives_view(keys: tuple[Any, ...]) -> bool:
    """Return whether x[keys] is a view for a NumPy array x."""
    return all(type(key) in _OF_VIEWS or isinstance(key, np.integer) for key in keys)


def _on_device(keys: tuple[Any, ...]) -> bool:
    """Return whether some of the keys are arrays on a GPU."""
    return any(is_device_array(key) for key in keys)


def _items(x: Array) -> Array:
    """Return a view of x, (*batch, rows, n), with all batch axes merged into one."""
    return x.reshape(prod(x.shape[:-2]), *x.shape[-2:])


def _item_numbers(x: Array, keys: tuple[Any, ...]) -> Array:
    """Return the indices, in the flattened batch, of the polynomials x[keys].

    Arrays in `keys` must be in host memory.
    """
    batch = x.shape[:-2]
    numbers: Array = np.arange(prod(batch)).reshape(batch)[keys]
    return numbers


def _no_such_entry(error: IndexError, keys: tuple[Any, ...], x: Array) -> IndexError:
    """Return an IndexError for wrong keys. NumPy's own message would count the limb axis as a batch axis."""
    batch, used = x.shape[:-2], sum(map(_axes_of, keys))
    reason = str(error)
    if used > len(batch):
        reason = f"{used} {'index is' if used == 1 else 'indices are'} given for {len(batch)} axes"
    return IndexError(
        f"poly[...] indexes batch axes only. The batch shape is {batch}, and {reason}. Coefficients are in "
        "poly.data[..., limb, i] as residues, and in poly.tolist() and poly.to_bigints() as ints."
    )


def index(x: Array, key: Any) -> Array:
    """Return x[key] by NumPy's rules, as a C-contiguous view or a copy. `key` indexes only batch axes."""
    keys, compute, rest = _batch_keys(key), backend_of(x), x.shape[-2:]
    try:
        if _gives_view(keys):
            data = x[(*keys, slice(None), slice(None))]
            return data if data.flags.c_contiguous else copied(data)
        if _on_device(keys):
            with compute.device_scope():
                return copied(x[(*keys, slice(None), slice(None))])
        numbers = _item_numbers(x, keys)
    except IndexError as error:
        raise _no_such_entry(error, keys, x) from None
    data = empty(compute, (*numbers.shape, *rest), x.dtype)
    compute.gather(_items(x), compute.constant(numbers.ravel()), _items(data))
    return data


def assign(x: Array, key: Any, value: Array) -> None:
    """Assign `value` to x[key] by NumPy's rules. `key` indexes only batch axes.

    `value` may share memory with x. If `key` names a polynomial twice, the polynomial gets the last value.
    """
    keys, compute, rest = _batch_keys(key), backend_of(x), x.shape[-2:]
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise OutputError(
            "The Poly is read-only, so nothing can be assigned to it. Assign to poly.copy(), which can be "
            "written."
        )
    at = (*keys, slice(None), slice(None))
    if overlap(compute, x, value):
        value = copied(value)
    view = _gives_view(keys)
    try:
        if view:
            place = x[at].shape[:-2]
        elif _on_device(keys):
            with compute.device_scope():
                place = compute.xp.broadcast_to(x[..., 0, 0], x.shape[:-2])[keys].shape
        else:
            numbers = _item_numbers(x, keys)
            place = numbers.shape
    except IndexError as error:
        raise _no_such_entry(error, keys, x) from None
    if not broadcasts(value.shape[:-2], place):
        raise ParameterError(
            f"value has batch shape {value.shape[:-2]}, which does not broadcast to {place}, the shape of "
            "the assigned entries. Reshape value, or index its batch axes."
        )
    if view:
        compute.copy(value, x[at])
    elif _on_device(keys):
        with compute.device_scope():
            x[at] = value
    else:
        values = _items(contiguous(spread(value, (*place, *rest))))
        numbers = numbers.ravel()
        # If an index occurs several times, its last value must stay. np.unique finds the first occurrence of
        # each index, so `numbers` is passed in reversed order.
        different, last = np.unique(numbers[::-1], return_index=True)
        if len(different) < len(numbers):
            chosen = empty(compute, (len(different), *rest), x.dtype)
            compute.gather(values, compute.constant(len(numbers) - 1 - last), chosen)
            numbers, values = different, chosen
        compute.scatter(values, compute.constant(numbers), _items(x))


def reshape(x: Array, sizes: Any) -> Array:
    """Return a view of x with the batch shape `sizes`. One of the sizes may be -1."""
    batch = x.shape[:-2]
    try:
        new = np.empty(batch, np.bool_).reshape(sizes).shape
    except (ValueError, TypeError, OverflowError):
        raise ParameterError(
            f"shape={shown(sizes)} does not fit the batch shape {batch}. Give ints whose product is the "
            "number of polynomials in the batch. One of the ints may be -1."
        ) from None
    return x.reshape(*new, *x.shape[-2:])


def stack(arrays: Sequence[Array], axis: object) -> Array:
    """Return the stack of arrays of equal batch shapes along a new batch axis."""
    at = checked_axis(axis, arrays[0].ndim - 1)
    shape = arrays[0].shape
    for x in arrays:
        if x.shape != shape:
            raise ParameterError(
                f"polys have the batch shapes {batch_shapes(arrays)}, which must be equal for stack. Reshape "
                "or index their batch axes."
            )
    return _stacked(at, *arrays)


def concatenate(arrays: Sequence[Array], axis: object) -> Array:
    """Return the concatenation of arrays along an existing batch axis."""
    at = checked_axis(axis, arrays[0].ndim - 2)
    before, after = arrays[0].shape[:at], arrays[0].shape[at + 1 :]
    for x in arrays:
        if x.shape[:at] != before or x.shape[at + 1 :] != after:
            raise ParameterError(
                f"polys have the batch shapes {batch_shapes(arrays)}, which must be equal except in axis "
                f"{at}. Reshape or index their batch axes."
            )
    return _joined(at, *arrays)


@repeated
def _stacked(axis: int, *arrays: Array, out: None = None) -> Array:
    return joined([x[(slice(None),) * axis + (None,)] for x in arrays], axis)


@repeated
def _joined(axis: int, *arrays: Array, out: None = None) -> Array:
    return joined(arrays, axis)
