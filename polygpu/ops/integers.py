"""Integers to residues and back: elements from ints and from residues, norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import as_integers, check_unmasked, empty
from ..backends import Array, Memory, backend_for, backend_of, host, is_device_array
from ..checks import debugging, shown
from ..errors import CoefficientError, NotCanonical, ParameterError
from ..exact.crt import residues_of_ints, words_to_ints
from ..plans.basis import Basis

# ---- in ----


def from_integers(basis: Basis, n: int, x: Any, compute: Memory) -> Array:
    """Residues (*batch, rows, n) of integers (*batch, at most n), on a device; a GPU's array stays there."""
    integers = as_integers(x)
    if integers.ndim == 0:
        integers = integers.reshape(1)
    if integers.shape[-1] > n:
        raise ParameterError(
            f"x: {integers.shape[-1]} coefficients, at most n = {n} fit; "
            "reduce it mod X^n ± 1 first, or reshape it to (*batch, n)"
        )
    shape = (*integers.shape[:-1], basis.rows, n)
    if is_device_array(integers):
        data = empty(backend_of(integers), shape, basis.dtype)
        backend_for(basis, data).reduce_integers(basis, integers, data)
        return data
    data = empty(host(), shape, basis.dtype)
    if integers.dtype == object:
        residues_of_ints(basis.moduli, integers, data)
    else:
        backend_for(basis, data).reduce_integers(basis, integers, data)
    return compute.from_host(data)


def ones(basis: Basis, n: int, batch: tuple[int, ...], compute: Memory) -> Array:
    """Residues of a batch of the ring's one, in coefficients."""
    data = empty(compute, (*batch, basis.rows, n), basis.dtype, zero=True)
    with compute.device_scope():
        data[..., :: basis.words, 0] = 1
    return data


def from_residues(basis: Basis, n: int, data: Any, copy: bool | None) -> Array:
    """Residues as an element holds them: the array given where it can; see Ring.from_residues."""
    check_unmasked(data, "data")
    is_array = isinstance(data, np.ndarray) or is_device_array(data)
    array = as_integers(data, "data") if not is_array or data.dtype == object else data
    if array.ndim < 2 or array.shape[-2:] != (basis.rows, n):
        raise ParameterError(
            f"data: shape {array.shape} must end in (rows, n) = ({basis.rows}, {n}); "
            "ring(x) takes integers (*batch, n)"
        )
    if array.dtype.kind not in "iuO":
        raise CoefficientError(f"data: dtype {array.dtype} must be an integer dtype, best {basis.dtype}")
    flaw = _flaw(basis, data) if is_array else f"{type(data).__name__}, no array"
    if flaw and copy is False:
        raise ParameterError(
            f"data: {flaw}; with copy=False, as in Poly(ring, data, domain), it must be a C-contiguous, "
            f"aligned array of {basis.dtype}: ring.from_residues(data, domain) copies where it must"
        )
    if array.dtype != basis.dtype or debugging():
        _check_canonical(basis, array)
    if flaw or copy:
        with backend_of(array).device_scope():
            array = backend_of(array).xp.array(array, dtype=basis.dtype, order="C", copy=True)
    return array


def _flaw(basis: Basis, array: Array) -> str | None:
    """Why an element cannot hold the array as it is; None where it can."""
    if isinstance(array, np.ndarray) and type(array) is not np.ndarray:
        return f"{type(array).__name__}, a subclass of ndarray"
    if array.dtype != basis.dtype:
        return f"dtype {array.dtype}" + ("" if array.dtype.isnative else " in the other byte order")
    if not array.flags.c_contiguous:
        return f"not C-contiguous (strides {array.strides})"
    return "not aligned" if backend_of(array).address(array) % basis.dtype.itemsize else None


def _check_canonical(basis: Basis, array: Array) -> None:
    """Raise NotCanonical for the first residue outside [0, q), the words of a wide one together."""
    values = backend_of(array).to_host(array)
    if basis.wide:
        words = values.astype(object)
        values = np.zeros_like(words[..., :1, :])
        for w in range(basis.rows):
            values += words[..., w : w + 1, :] << 64 * w
        values[..., 0, :][((words < 0) | (words >= 1 << 64)).any(axis=-2)] = -1
    limits = np.array(basis.moduli, dtype=object)[:, None]
    if values.dtype.kind == "u":  # without Python ints where words can tell
        wrong = values > (limits - 1).astype(np.uint64)
    else:
        wrong = (values.astype(object) < 0) | (values.astype(object) >= limits)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise NotCanonical(
            f"data: {values[at]} at {at} is not a residue mod {shown(basis.moduli[at[-2]])}; "
            "ring(x) takes any integers"
        )


# ---- out ----


def residue_ints(basis: Basis, data: Array) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Residues as Python ints (*batch, limbs, n); of one modulus above 2^64 (*batch, n), not their words."""
    residues = backend_of(data).to_host(data)
    return words_to_ints(residues) if basis.wide else residues.astype(object)


def norm(coefficients: Array, p: float) -> Any:
    """Norms over the last axis of Python ints: exact for p = 1 and inf, floats for p = 2."""
    size = np.abs(coefficients)
    if p == 1:
        value = np.asarray(size.sum(axis=-1), object)
    elif p == math.inf:
        value = np.asarray(size.max(axis=-1), object)
    elif p == 2:
        squares = np.asarray((size * size).sum(axis=-1), object)
        roots = [_square_root(x) for x in squares.flat]
        value = np.array(roots, np.float64).reshape(squares.shape)
    else:
        raise ParameterError(f"p: {shown(p)} must be 1, 2 or inf")
    return value if value.ndim else value.item()


def _square_root(x: int) -> float:
    """The root of an int of any size."""
    try:
        return math.sqrt(x) if x.bit_length() < 1000 else float(math.isqrt(x))
    except OverflowError:
        raise ParameterError("norm: larger than any float; p = 1 and p = inf give exact ints") from None
