"""Copies between arrays of any strides: dense, broadcast, or by an index. Arrays filled with a constant."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np

from .. import Array
from .launch import (
    ALIGNMENT,
    INTEGER_TYPES,
    MAX_AXES,
    POINTER,
    THREADS,
    U32,
    U64,
    Context,
    Launch,
    Recipe,
    Struct,
    cbool,
)

_FILE = "copy.cu"
_MAX_BLOCKS = 65535  # the most blocks along the second axis of a grid
# The C++ type of each size in bytes, for copies that move bytes without conversion.
UNITS = {1: "unsigned char", 2: "unsigned short", 4: "u32", 8: "u64", 16: "ulonglong2"}

COPY = Struct(
    _FILE,
    "CopyParameters",
    ("x y", POINTER),
    ("n rows x_step y_step", U64),
    ("shape x_steps y_steps", (U64, MAX_AXES)),
    ("log_width", U32),
)

ITEMS = Struct(_FILE, "ItemsParameters", ("x index y", POINTER), ("n items", U64))

Axis = tuple[int, int, int]  # the length of an axis, and its strides in x and in out


def shared_axes(axes: list[Axis]) -> list[Axis]:
    """Merge the axes of a copy into as few as possible. Sort the axes by descending stride in `out`.

    Two axes are merged if both arrays have one constant stride over the two axes.
    """
    merged: list[Axis] = []
    for n, x_step, y_step in sorted((a for a in axes if a[0] != 1), key=lambda a: -abs(a[2])):
        if merged and merged[-1][1:] == (n * x_step, n * y_step):
            merged[-1] = (merged[-1][0] * n, x_step, y_step)
        else:
            merged.append((n, x_step, y_step))
    return merged


def axes_of(x: Array, out: Array, places: int) -> tuple[list[Axis], str, str]:
    """Return the axes of a copy, the innermost last, and the C++ types of the entries of x and of `out`.

    Strides count entries of these C++ types. places: the bitwise or of the addresses of x and `out`.
    """
    lead = out.ndim - x.ndim
    axes = [
        (n, x.strides[i - lead] if i >= lead and x.shape[i - lead] > 1 else 0, out.strides[i])
        for i, n in enumerate(out.shape)
    ]
    source, target, size = x.dtype, out.dtype, out.dtype.itemsize
    if source != target and (source.itemsize != size or {source.kind, target.kind} - {"i", "u"}):
        types = INTEGER_TYPES[source.str[1:]], INTEGER_TYPES[target.str[1:]]
        sizes = source.itemsize, size
    else:
        # No conversion: copy bytes. The innermost axis is a run of bytes: one entry or several dense entries.
        # A thread copies `unit` bytes at once, as many as the run, the strides and the alignment allow.
        axes = shared_axes([*axes, (size, 1, 1)])
        if not axes or axes[-1][1:] != (1, 1):  # the bytes are not neighbours: a run is one byte
            axes.append((1, 1, 1))
        *outer, (run, _, _) = axes
        unit = gcd(ALIGNMENT, places, run, *(step for axis in outer for step in axis[1:]))
        axes = [*outer, (run // unit, unit, unit)]
        types, sizes = (UNITS[unit],) * 2, (unit, unit)
    merged = shared_axes(axes) or [(1, 0, 0)]
    return [(n, x_step // sizes[0], y_step // sizes[1]) for n, x_step, y_step in merged], *types


def copy_launch(axes: list[Axis], source: str, target: str, **values: int) -> Launch:
    """Return the launch that copies entries of type `source` to type `target`, on up to MAX_AXES + 1 axes."""
    *outer, (n, x_step, y_step) = axes
    log_width = min(n - 1, THREADS - 1).bit_length()
    rows = prod(length for length, _, _ in outer)
    blocks = -(-n >> log_width), min(_MAX_BLOCKS, -(-rows * (1 << log_width) // THREADS))
    table = np.ones((3, MAX_AXES), np.int64)
    for column, axis in enumerate(outer, MAX_AXES - len(outer)):
        table[:, column] = axis
    steps = dict(zip(("shape", "x_steps", "y_steps"), (row.tobytes() for row in table), strict=True))
    ends = {"x_step": x_step % (1 << 64), "y_step": y_step % (1 << 64)}
    parameters = COPY(n=n, rows=rows, log_width=log_width, **ends, **steps, **values)
    return Launch(_FILE, f"copy_entries<{source}, {target}>", blocks, THREADS, parameters)


def items_launch(size: int, items: int, unit: int, scatters: bool, **values: int) -> Launch:
    """Return the launch that gathers or scatters `items` items.

    size: bytes of an item. unit: bytes that a thread copies at once.
    """
    n = size // unit
    blocks = -(-n // THREADS), min(_MAX_BLOCKS, items)
    parameters = ITEMS(n=n, items=items, **values)
    return Launch(_FILE, f"copy_items<{UNITS[unit]}, {cbool(scatters)}>", blocks, THREADS, parameters)


def copy(gpu: Context, x: Array, out: Array) -> None:
    if not out.size:
        return
    places = (gpu.address(x) | gpu.address(out)) % ALIGNMENT
    if out.ndim > MAX_AXES and len(axes_of(x, out, places)[0]) > MAX_AXES + 1:
        _copy_in_parts(gpu, x, out)
        return

    def recipe() -> Recipe:
        made = Recipe(2)
        made.launch(copy_launch(*axes_of(x, out, places), x=0, y=0), 0, 1)
        return made

    key = "copy", places, x.dtype, x.shape, x.strides, out.dtype, out.shape, out.strides
    gpu.run(gpu.handles, key, recipe, x, out)


def gather(gpu: Context, x: Array, index: Array, out: Array) -> None:
    _move_items(gpu, x, index, out, False)


def scatter(gpu: Context, x: Array, index: Array, out: Array) -> None:
    _move_items(gpu, x, index, out, True)


def _move_items(gpu: Context, x: Array, index: Array, out: Array, scatters: bool) -> None:
    size, items = prod(x.shape[1:]) * x.dtype.itemsize, len(index)
    if not size or not items:
        return
    unit = gcd(ALIGNMENT, size, gpu.address(x), gpu.address(out))

    def recipe() -> Recipe:
        made = Recipe(3)
        made.launch(items_launch(size, items, unit, scatters, x=0, index=0, y=0), 0, 1, 2)
        return made

    gpu.run(gpu.handles, ("items", scatters, size, items, unit), recipe, x, index, out)


def _copy_in_parts(gpu: Context, x: Array, out: Array) -> None:
    """Copy arrays that have too many axes for the kernel: one copy for each index of the shortest axis."""
    length, axis = min((n, i) for i, n in enumerate(out.shape) if n > 1)
    before: tuple[Any, ...] = (slice(None),) * axis
    own = axis - out.ndim + x.ndim  # the index of this axis in x; negative if x does not have the axis
    for i in range(length):
        part = x if own < 0 else x[(*before[:own], i if x.shape[own] > 1 else 0)]
        copy(gpu, part, out[(*before, i)])


def filled(gpu: Context, shape: tuple[int, ...], dtype: np.dtype[Any], value: int) -> Array:
    """Return a new array with `value` in every entry."""
    array = gpu.empty(shape, dtype)
    copy(gpu, gpu.constant(np.array(value, dtype)), array)
    return array


def copied(gpu: Context, x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Return a C-contiguous copy of x, broadcast to `shape` if it is given."""
    array = gpu.empty(x.shape if shape is None else shape, x.dtype)
    copy(gpu, x, array)
    return array


def dense(gpu: Context, x: Array) -> Array:
    """Return x itself if it is C-contiguous, otherwise a C-contiguous copy."""
    return x if x.flags.c_contiguous else copied(gpu, x)


def fitted(gpu: Context, shape: tuple[int, ...], *operands: Array) -> tuple[Array, ...]:
    """Return the operands in a form that kernels can broadcast to `shape`, (*batch, rows, n).

    If `shape` has more than MAX_AXES batch axes, return dense operands of this shape.
    """
    if len(shape) - 2 <= MAX_AXES:
        return operands
    return tuple(broadcast(gpu, x, shape) for x in operands)


def broadcast(gpu: Context, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x itself if it is dense and has shape `shape`, otherwise a dense copy broadcast to `shape`."""
    return x if x.shape == shape and x.flags.c_contiguous else copied(gpu, x, shape)


def repeated(gpu: Context, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x itself if its shape is the end of `shape`, otherwise a copy broadcast to `shape`.

    Use this for kernels that repeat an operand over leading axes, and cannot broadcast other axes.
    """
    return x if shape[len(shape) - x.ndim :] == x.shape else broadcast(gpu, x, shape)
