"""Integers to residues and back: elements from ints and from residues, norms."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import numpy as np

from ..arrays import as_integers, broadcasts, check_uncut, check_unmasked, empty, shared
from ..backends import Array, Memory, backend_for, backend_of, host, is_device_array
from ..checks import debugging, integer, sequence, shown
from ..errors import CoefficientError, NotCanonical, ParameterError
from ..exact.crt import residues_of_ints, signed_ints, words_to_ints
from ..memory import check_array
from ..plans.basis import Basis
from ..plans.crt import composition_of, norm_words, words_of
from ..reporting import Work, reporting

_WORD = np.dtype(np.uint64)
_LONG = 1 << 18  # residues from which on making Python ints of them is long work: some 10 ms
_PIECE = 1 << 14  # Python ints that are made at a time, at least

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
    if integers.dtype == object:
        data = empty(host(), shape, basis.dtype)
        residues_of_ints(basis.moduli, integers, data)
        return compute.from_host(data)
    if not is_device_array(integers):
        if compute.xp is np or basis.wide:
            data = empty(host(), shape, basis.dtype)
            backend_for(basis, data).reduce_integers(basis, integers, data)
            return compute.from_host(data)
        integers = compute.from_host(integers)  # the GPU reduces them; residues of several limbs are larger
    data = empty(backend_of(integers), shape, basis.dtype)
    backend_for(basis, data).reduce_integers(basis, integers, data)
    return data


def constant(basis: Basis, n: int, x: int, step: int, compute: Memory) -> Array:
    """Residues (rows, n) of an int at every step-th entry; step: n in coefficients, else the leaf size."""
    return _placed(basis, n, x, slice(0, None, step), compute)


def monomial(basis: Basis, n: int, x: int, k: int, compute: Memory) -> Array:
    """Residues (rows, n) of x X^k, 0 <= k < n."""
    return _placed(basis, n, x, slice(k, k + 1), compute)


def _placed(basis: Basis, n: int, x: int, at: slice, compute: Memory) -> Array:
    data = empty(compute, (basis.rows, n), basis.dtype, zero=True)
    with compute.device_scope():
        data[:, at] = compute.constant(basis.residues(x))
    return data


def factors(basis: Basis, x: Any, batch: tuple[int, ...], compute: Memory) -> Array:
    """Residues (*shape of x, rows, 1) of integers, one for each batch element: x broadcasts to the batch."""
    integers = as_integers(x, "ints")
    if not broadcasts(integers.shape, batch):
        raise ParameterError(
            f"ints: shape {integers.shape} does not broadcast to the batch shape {batch}; give one integer "
            "for each batch element, or index the batch with None first"
        )
    return from_integers(basis, 1, integers[..., None], compute)


def factors_of_limbs(basis: Basis, x: Any, compute: Memory) -> Array:
    """Residues (rows, 1) of one integer for each limb."""
    values = [integer(v, "limbs") for v in sequence(x)]
    if len(values) != len(basis.moduli):
        raise ParameterError(f"limbs: {len(values)} factors for {len(basis.moduli)} moduli; give one a limb")
    return compute.constant(basis.residues(values))


def ones(basis: Basis, n: int, batch: tuple[int, ...], compute: Memory) -> Array:
    """A batch of the ring's one, as residues of coefficients."""
    data = empty(compute, (*batch, basis.rows, n), basis.dtype, zero=True)
    with compute.device_scope():
        data[..., :: basis.words, 0] = 1
    return data


def from_residues(basis: Basis, n: int, data: Any, copy: bool | None) -> Array:
    """Residues as an element holds them: the array given where it can; see Ring.from_residues."""
    check_unmasked(data, "data")
    check_uncut(data, basis.dtype, "data")
    data = shared(data, "data")
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
    """Raise NotCanonical for the first residue outside [0, q); words of a wide modulus make one residue."""
    values = backend_of(array).to_host(array)
    if basis.wide:
        words = values.astype(object)
        values = np.zeros_like(words[..., :1, :])
        for w in range(basis.rows):
            values += words[..., w : w + 1, :] << 64 * w
        values[..., 0, :][((words < 0) | (words >= 1 << 64)).any(axis=-2)] = -1
    limits = np.array(basis.moduli, dtype=object)[:, None]
    if values.dtype.kind == "u":  # machine words compare faster than Python ints
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


def big_integers(basis: Basis, data: Array, centered: bool) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Coefficients as Python ints (*batch, n)."""
    if data.size < _LONG or reporting() is None:
        return _big_integers(basis, data, centered)
    # A piece is some polynomials of several, or some coefficients of a single one.
    items, n = prod(data.shape[:-2]), data.shape[-1]
    check_array(8 * items * n)
    x, out = data.reshape(items, *data.shape[-2:]), np.empty((items, n), object)
    unit = n if items > 1 else 1
    with Work(items * n, "to_bigints of {} x {}", items * n, len(basis.moduli)) as work:
        for piece in work.pieces(unit, _PIECE):
            at = slice(piece.start // unit, piece.stop // unit)
            if items > 1:
                _big_integers(basis, x[at], centered, out[at])
                continue
            with backend_of(x).device_scope():
                part = backend_of(x).xp.ascontiguousarray(x[..., at])
            _big_integers(basis, part, centered, out[:, at])
    return out.reshape(*data.shape[:-2], n)


def _big_integers(
    basis: Basis, data: Array, centered: bool, out: np.ndarray[Any, np.dtype[np.object_]] | None = None
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """As big_integers, without reports of progress; out is C-contiguous."""
    shape = (*data.shape[:-2], data.shape[-1], words_of(composition_of(basis).modulus))
    if len(basis.moduli) == 1 and not centered:
        values = residue_ints(basis, data).reshape(shape[:-1])
        if out is None:
            return values
        out[...] = values
        return out
    compute = backend_for(basis, data)
    words = empty(compute, shape, _WORD)
    compute.to_words(basis, data, centered, words)
    return signed_ints(compute.to_host(words), out)


def machine_integers(basis: Basis, data: Array, centered: bool) -> Array:
    """Coefficients as int64 (*batch, n), where the data lie."""
    compute = backend_for(basis, data)
    values = empty(compute, (*data.shape[:-2], data.shape[-1]), np.dtype(np.int64))
    flat = compute.to_int64(basis, data, centered, values)
    if flat >= 0:
        at = tuple(int(i) for i in np.unravel_index(flat, values.shape))
        column: Any = (*at[:-1], slice(None), slice(at[-1], at[-1] + 1))
        with compute.device_scope():
            wrong = compute.xp.ascontiguousarray(data[column])
        value = big_integers(basis, wrong, centered).item()
        raise ParameterError(
            f"to_int64: {shown(value)} at {at} is outside [-2**63, 2**63); to_bigints() gives ints of any "
            "size, to_float64() rounded ones"
        )
    return values


def doubles(basis: Basis, data: Array, centered: bool) -> Array:
    """Coefficients as the nearest doubles (*batch, n), where the data lie."""
    compute = backend_for(basis, data)
    values = empty(compute, (*data.shape[:-2], data.shape[-1]), np.dtype(np.float64))
    compute.to_float64(basis, data, centered, values)
    return values


def norm(basis: Basis, data: Array, p: float) -> Any:
    """Norms of centred coefficients of each batch element: exact ints for p = 1 and inf, floats for p = 2."""
    if p not in (1, 2, math.inf):
        raise ParameterError(f"p: {shown(p)} must be 1, 2 or inf")
    batch, compute = data.shape[:-2], backend_for(basis, data)
    words = empty(compute, (*batch, norm_words(composition_of(basis).modulus, data.shape[-1], p)), _WORD)
    compute.norm(basis, data, p, words)
    # The words are unsigned. With a zero word more they are in two's complement too.
    host_words = compute.to_host(words)
    padded = np.concatenate([host_words, np.zeros((*batch, 1), _WORD)], axis=-1)
    value = signed_ints(padded)
    if p == 2:
        value = np.array([_square_root(int(x)) for x in value.flat], np.float64).reshape(batch)
    return value if batch else value.item()


def _square_root(x: int) -> float:
    """The double nearest to the root of an int of any size, halves to even."""
    shift = max(0, 112 - x.bit_length() + 1) & ~1  # the root has 56 bits or more
    root = math.isqrt(x << shift)
    try:  # the last bit says whether anything lies below the root, so that float() rounds once and right
        return math.ldexp(float(2 * root + (root * root != x << shift)), -shift // 2 - 1)
    except OverflowError:
        raise ParameterError("norm: larger than any float; p = 1 and p = inf give exact ints") from None
