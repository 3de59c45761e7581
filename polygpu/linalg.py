"""Exact products of integer matrices modulo q.

Products of NumPy arrays are computed on the CPU. Products of CuPy arrays are computed on the GPU that holds
them, in its current stream.
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

# Copy matrices of 1- or 2-byte integers with fewer than _SMALL entries to words. Reading in place is not
# faster.
_SMALL = 1 << 12
_LONG = 1 << 29  # a host call with at least this many products of words (13 to 56 ms) reports progress

__all__ = ["MAX_MODULUS", "matmul"]


def matmul(A: Any, B: Any, *, q: int, out: Any = None) -> Any:
    """Return the matrix product A @ B modulo q, by NumPy's rules for shapes.

    The last two axes are those of the matrices, and the others broadcast. An array with a single axis is a
    row if it is A, and a column if it is B.

    Args:
        A: integers of any dtype, sign and size, in an array of NumPy or CuPy or in nested lists. Two kinds of
            arrays are read in place: a C-contiguous array of the result's dtype; and a matrix of int8, uint8,
            int16 or uint16 that is stored by rows or by columns (also a memory-mapped one). On a GPU the rows
            or columns of such a matrix must begin at multiples of 4 bytes. Other arrays are copied first.
        B: integers as for A, on the same device. Entries of 1 or 2 bytes are always copied to words.
        q: any modulus from 2 to 2**64.
        out: a C-contiguous array of the result's shape, dtype and device to write into. It may be A or B.

    Returns:
        `out` if it is given, else a new array on the operands' device. It holds residues in [0, q), as uint32
        for q <= 2**32, else as uint64.

    Raises:
        ParameterError: the shapes do not fit, A or B is a single number, or q is outside its range.
        CoefficientError: A or B holds something other than integers.
        OutputError: `out` cannot hold the result. DeviceError: A, B and `out` are not all on one device.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.
        VerificationError: the result is wrong. This is checked only inside `with polygpu.verify()`.

    Cost: for an m x k and a k x n matrix, m * k * n products of words. Each takes about ten times as long if
    q is above 2**62. If A is a batch and B a single matrix, one product multiplies all rows of A.
    Source: docs/math.md, "Products of matrices".

    >>> matmul([[1, 2], [3, 4]], [[5, 6], [7, -8]], q=10).tolist()
    [[9, 0], [3, 6]]
    """
    modulus = integer(q, "q")
    if not 2 <= modulus <= MAX_MODULUS:
        raise ParameterError(
            f"q={shown(modulus)} must be from 2 to 2**64. Use pg.matmul with values of pg.Ring(1, q) for a "
            "larger q."
        )
    basis = basis_of((modulus,))
    if verifying() or not _are_words(basis, A, B):
        return _product(basis, A, B, out)
    key = "matmul", device_of(A), A is B, A is out, B is out, A.shape, B.shape
    if (replay := basis.calls.get(key)) and (found := replay((A, B), out)) is not None:
        return found
    return record(basis.calls, key, backend_of(A), lambda: _product(basis, A, B, out), (A, B), out)


def _product(basis: Basis, A: Any, B: Any, out: Any) -> Any:
    """Return A @ B modulo q. `matmul` calls this function if it has no recorded call to repeat."""
    left = _bytes(A) if _are_bytes(A) else _words(A, "A", basis)
    right = _words(B, "B", basis)
    if left.dtype.itemsize <= 2 and right.ndim > 2:  # the kernels for bytes support only a single matrix B
        left = _words(left, "A", basis)
    compute = backend_of(left)
    if backend_of(right).name != compute.name:
        raise DeviceError(
            f"A is on {compute.name} and B is on {backend_of(right).name}. Copy one of them to the other's "
            "device."
        )
    a = left.reshape(1, -1) if left.ndim == 1 else left
    b = right.reshape(-1, 1) if right.ndim == 1 else right
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise ParameterError(
            f"The shapes of A and B are {left.shape} and {right.shape}. The last axis of A, of length {k}, "
            f"must be as long as the {'only' if right.ndim == 1 else 'second last'} axis of B, of length "
            f"{b.shape[-2]}."
        )
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ParameterError(
            f"The batch shapes of A and B, {a.shape[:-2]} and {b.shape[:-2]}, do not broadcast. Reshape one "
            "of them."
        ) from None
    shape = (*batch, *(m,) * (left.ndim > 1), *(n,) * (right.ndim > 1))
    data = result(compute, shape, basis.dtype, out, left, right)
    if not data.size:
        return data
    taken = out is not None and any(overlap(compute, x, data) for x in (left, right))
    target = empty(compute, shape, basis.dtype) if taken else data
    a, b = _batched(a, batch), _batched(b, batch)
    if len(b) == 1:
        a = a.reshape(1, -1, k) if k else a.reshape(1, len(a) * m, 0)  # join all rows of the batch
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
    """Return whether A and B are C-contiguous arrays of the basis' dtype on the same device."""
    if type(A) is np.ndarray:
        fits = type(B) is np.ndarray and A.flags.aligned and B.flags.aligned
    else:
        fits = is_device_array(A) and type(B) is type(A) and A.device == B.device
    return fits and A.dtype == B.dtype == basis.dtype and A.flags.c_contiguous and B.flags.c_contiguous


def _are_bytes(A: Any) -> bool:
    """Return whether A should be read in place, as a matrix of integers of 1 or 2 bytes."""
    if type(A) not in (np.ndarray, np.memmap) and not is_device_array(A):
        return False
    if A.dtype.kind not in "iu" or A.dtype.itemsize > 2 or A.ndim != 2 or A.size < _SMALL:
        return False
    return backend_of(np.asarray(A) if isinstance(A, np.ndarray) else A).multiplies_bytes


def _bytes(A: Array) -> Array:
    """Return A if its rows or its columns are contiguous in memory, else a copy."""
    if is_device_array(A):
        return A if A.itemsize in A.strides else copied(A)
    x = np.asarray(A)
    is_dense = x.itemsize in x.strides and x.flags.aligned and x.dtype.isnative
    return x if is_dense else np.array(x, x.dtype.newbyteorder("="), order="C")


def _words(x: Any, name: str, basis: Basis) -> Array:
    """Return the integers x as an array of the basis' dtype.

    Unsigned integers of at most the size of this dtype are not reduced. Other integers are reduced to [0, q).
    """
    if holds_poly(x):
        raise CoefficientError(
            f"{name} must hold integers, not a Poly. Use pg.matmul to multiply matrices of polynomials."
        )
    check_unmasked(x, name)
    is_array = isinstance(x, np.ndarray) or is_device_array(x)
    if is_array and x.ndim and x.dtype.kind == "u" and x.dtype.itemsize <= basis.dtype.itemsize:
        return contiguous(in_dtype(x, basis.dtype))
    integers = as_integers(x, name)
    if not integers.ndim:
        raise ParameterError(f"{name} is a single number. Give a matrix, or an array of one axis.")
    if integers.dtype == object:
        return (integers % basis.moduli[0]).astype(basis.dtype, order="C")
    integers = contiguous(integers)
    words = empty(backend_of(integers), integers.shape, basis.dtype)
    if words.size:
        count = words.shape[-1]
        backend_of(words).reduce_integers(basis, integers.reshape(-1, count), words.reshape(-1, 1, count))
    return words


def _batched(x: Array, batch: tuple[int, ...]) -> Array:
    """Return x in shape (1, m, k) if it is one matrix for the whole batch, else in (prod(batch), m, k).

    If x has some of the batch axes but not all, it is copied to the full batch.
    """
    own = prod(x.shape[:-2])
    if own not in (1, prod(batch)):
        x, own = spread(x, (*batch, *x.shape[-2:])), prod(batch)
    return x.reshape(own, *x.shape[-2:])
