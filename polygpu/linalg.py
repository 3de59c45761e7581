"""Exact products of integer matrices modulo q.

Products of NumPy arrays are computed by the CPU core, of CuPy arrays by their GPU, on its current stream.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ._backends import Array, backend_of, is_device_array
from ._core.checks import integer, shown, verifying
from ._core.plans.basis import Basis, basis_of
from ._core.reporting import Work
from ._ops.arrays import (
    as_integers,
    check_unmasked,
    contiguous,
    copied,
    empty,
    holds_poly,
    in_dtype,
    overlap,
    spread,
)
from ._ops.calls import device_of, record
from ._ops.results import result
from ._ops.verify import check_matrices
from .errors import CoefficientError, DeviceError, ParameterError

MAX_MODULUS = 1 << 64

_SMALL = 1 << 12  # entries of bytes up to which a copy as words is as fast
_LONG = 1 << 29  # products of words from which a call on the host reports progress: 13 to 56 ms on a core

__all__ = ["MAX_MODULUS", "matmul"]


def matmul(A: Any, B: Any, *, q: int, out: Any = None) -> Any:
    """Return the matrix product A B modulo q, by NumPy's rules for shapes.

    The last two axes are matrices, the others broadcast. An array of one axis is a row on the left and a
    column on the right.

    Args:
        A: integers of any dtype, sign and size: an array of NumPy or CuPy, or nested lists. An unsigned array
            of the result's dtype is read as it is. So is a matrix of int8, uint8, int16 or uint16, row by row
            or transposed, also a memory-mapped one; on a GPU if its rows, or its columns if these are dense,
            begin at multiples of 4 bytes. Of any other array a copy is made first.
        B: as A, on its device; bytes are copied to words.
        q: any modulus from 2 to 2**64.
        out: C-contiguous array of the result's shape and dtype, on its device, to write into; may be A or B.

    Returns:
        Residues in [0, q) on the operands' device, uint32 for q <= 2**32, else uint64; `out` if it is given.

    Raises:
        ParameterError: shapes that do not fit, a single number, or q outside its range.
        CoefficientError: A or B holds something other than integers.
        OutputError: `out` cannot take the result. DeviceError: operands or `out` on several devices.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.
        VerificationError: inside `with polygpu.verify()`, a wrong result.

    Cost: of an m x k by a k x n matrix, m k n products of words; each takes about ten times as long for q
    above 2**62. A batch of A with one B is one product of all rows of A.
    Source: docs/math.md, "Products of matrices".

    >>> matmul([[1, 2], [3, 4]], [[5, 6], [7, -8]], q=10).tolist()
    [[9, 0], [3, 6]]
    """
    modulus = integer(q, "q")
    if not 2 <= modulus <= MAX_MODULUS:
        raise ParameterError(
            f"q: {shown(modulus)} must be from 2 to 2**64; pg.matmul takes values of pg.Ring(1, q) for any q"
        )
    basis = basis_of((modulus,))
    if verifying() or not _are_words(basis, A, B):
        return _product(basis, A, B, out)
    key = "matmul", device_of(A), A is B, A is out, B is out, A.shape, B.shape
    if (replay := basis.calls.get(key)) and (found := replay((A, B), out)) is not None:
        return found
    return record(basis.calls, key, backend_of(A), lambda: _product(basis, A, B, out), (A, B), out)


def _product(basis: Basis, A: Any, B: Any, out: Any) -> Any:
    """Return the product of matrices that no record repeats."""
    left = _bytes(A) if _are_bytes(A) else _words(A, "A", basis)
    right = _words(B, "B", basis)
    if left.dtype.itemsize <= 2 and right.ndim > 2:  # bytes are multiplied by one matrix
        left = _words(left, "A", basis)
    compute = backend_of(left)
    if backend_of(right).name != compute.name:
        raise DeviceError(
            f"B: on {backend_of(right).name}, and A is on {compute.name}; copy one to the other's device"
        )
    a = left.reshape(1, -1) if left.ndim == 1 else left
    b = right.reshape(-1, 1) if right.ndim == 1 else right
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise ParameterError(
            f"A, B: shapes {left.shape} and {right.shape}; the last axis of A, {k}, must be as long as the "
            f"{'only' if right.ndim == 1 else 'second last'} one of B, {b.shape[-2]}"
        )
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ParameterError(
            f"A, B: batch shapes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast; reshape one"
        ) from None
    shape = (*batch, *(m,) * (left.ndim > 1), *(n,) * (right.ndim > 1))
    data = result(compute, shape, basis.dtype, out, left, right)
    if not data.size:
        return data
    taken = out is not None and any(overlap(compute, x, data) for x in (left, right))
    target = empty(compute, shape, basis.dtype) if taken else data
    a, b = _batched(a, batch), _batched(b, batch)
    if len(b) == 1:
        a = a.reshape(1, -1, k) if k else a.reshape(1, len(a) * m, 0)  # all rows at once
    c = target.reshape(max(len(a), len(b)), a.shape[1], n)
    if data.size * k >= _LONG and compute.xp is np:
        with Work(1, "product of matrices, {} x {} x {}", data.size // n, k, n):
            compute.matmul(basis, a, b, c)
    else:
        compute.matmul(basis, a, b, c)
    if verifying():
        check_matrices(compute, basis, a, b, c)
    if taken:
        compute.copy(target, data)
    return data


def _are_words(basis: Basis, A: Any, B: Any) -> bool:
    """Return whether both are contiguous arrays of the basis' dtype in one memory, ready for use."""
    if type(A) is np.ndarray:
        fits = type(B) is np.ndarray and A.flags.aligned and B.flags.aligned
    else:
        fits = is_device_array(A) and type(B) is type(A) and A.device == B.device
    return fits and A.dtype == B.dtype == basis.dtype and A.flags.c_contiguous and B.flags.c_contiguous


def _are_bytes(A: Any) -> bool:
    """Return whether A is a matrix of integers of 1 or 2 bytes that is worth reading as it is."""
    if type(A) not in (np.ndarray, np.memmap) and not is_device_array(A):
        return False
    if A.dtype.kind not in "iu" or A.dtype.itemsize > 2 or A.ndim != 2 or A.size < _SMALL:
        return False
    return backend_of(np.asarray(A) if isinstance(A, np.ndarray) else A).multiplies_bytes


def _bytes(A: Array) -> Array:
    """Return the matrix with dense rows or columns: A itself if it has them, else a copy."""
    if is_device_array(A):
        return A if A.itemsize in A.strides else copied(A)
    x = np.asarray(A)
    is_dense = x.itemsize in x.strides and x.flags.aligned and x.dtype.isnative
    return x if is_dense else np.array(x, x.dtype.newbyteorder("="), order="C")


def _words(x: Any, name: str, basis: Basis) -> Array:
    """Return the integers in the basis' dtype.

    An unsigned dtype that fits stays as it is. Others are reduced to [0, q).
    """
    if holds_poly(x):
        raise CoefficientError(f"{name}: a Poly is no integer; pg.matmul multiplies matrices of polynomials")
    check_unmasked(x, name)
    is_array = isinstance(x, np.ndarray) or is_device_array(x)
    if is_array and x.ndim and x.dtype.kind == "u" and x.dtype.itemsize <= basis.dtype.itemsize:
        return contiguous(in_dtype(x, basis.dtype))
    integers = as_integers(x, name)
    if not integers.ndim:
        raise ParameterError(f"{name}: a single number; give a matrix, or an array of one axis")
    if integers.dtype == object:
        return (integers % basis.moduli[0]).astype(basis.dtype, order="C")
    integers = contiguous(integers)
    words = empty(backend_of(integers), integers.shape, basis.dtype)
    if words.size:
        count = words.shape[-1]
        backend_of(words).reduce_integers(basis, integers.reshape(-1, count), words.reshape(-1, 1, count))
    return words


def _batched(x: Array, batch: tuple[int, ...]) -> Array:
    """Return x as (1, m, k) if it is one matrix for the whole batch, else as (prod(batch), m, k).

    If it has some of the batch axes but not all, it is copied to the full batch.
    """
    own = prod(x.shape[:-2])
    if own not in (1, prod(batch)):
        x, own = spread(x, (*batch, *x.shape[-2:])), prod(batch)
    return x.reshape(own, *x.shape[-2:])
