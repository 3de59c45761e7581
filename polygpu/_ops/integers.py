"""Conversion between integers, real numbers and residues, and norms of elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .._backends import Array, Memory, backend_for, backend_of, host, is_device_array
from .._core.checks import Domain, debugging, exact_number, integer, sequence, shown
from .._core.exact.crt import signed_ints, words_to_ints
from .._core.memory import check_array
from .._core.plans.basis import Basis
from .._core.plans.crt import composition_of, norm_words, words_of
from .._core.reporting import Work, reporting
from .._core.ring_plan import RingPlan
from ..errors import CoefficientError, DeviceError, NotCanonical, ParameterError
from .arrays import (
    as_integers,
    broadcasts,
    check_uncut,
    check_unmasked,
    contiguous,
    copied,
    empty,
    holds_poly,
    shared,
)
from .calls import repeated

if TYPE_CHECKING:
    from fractions import Fraction

_WORD = np.dtype(np.uint64)
_LONG = 1 << 18  # residues; converting this many to Python ints takes about 10 ms and reports progress
_LONG_IN = 1 << 16  # residues; computing this many from Python ints takes at least 5 ms and reports progress
_PIECE = 1 << 14  # the least number of Python ints between two reports of progress

# ---- from integers to residues ----


def from_integers(basis: Basis, n: int, x: Any, compute: Memory) -> Array:
    """Return residues (*batch, rows, n) of the integers x, (*batch, at most n).

    If x is on a GPU, the residues are on the GPU of x. Otherwise they are on the device `compute`.
    """
    integers = as_integers(x, are_coefficients=True)
    if integers.ndim == 0:
        integers = integers.reshape(1)
    if integers.shape[-1] > n:
        raise ParameterError(
            f"x has {integers.shape[-1]} coefficients, and at most n={n} fit. Reduce x modulo the ring's "
            "polynomial first, or reshape it to (*batch, n)."
        )
    shape = (*integers.shape[:-1], basis.rows, n)
    if integers.dtype == object:
        data = empty(host(), shape, basis.dtype)
        residues_of_ints(basis, integers, data)
        return compute.from_host(data)
    if not is_device_array(integers):
        if compute.xp is np or basis.wide:
            data = empty(host(), shape, basis.dtype)
            backend_for(basis, data).reduce_integers(basis, integers, data)
            return compute.from_host(data)
        integers = compute.from_host(
            integers
        )  # integers are reduced on the GPU, because residues of several limbs would take more bytes to copy
    data = empty(backend_of(integers), shape, basis.dtype)
    backend_for(basis, data).reduce_integers(basis, integers, data)
    return data


def residues_of_ints(basis: Basis, x: Array, out: Array) -> None:
    """Reduce an object array of Python ints (*batch, count) into `out` (*batch, rows, n) in host memory.

    Both arrays are C-contiguous. The entries of `out` beyond `count` become zero.
    """
    count, compute = x.shape[-1], backend_for(basis, out)
    if x.size * len(basis.moduli) < _LONG_IN:
        compute.reduce_integers(basis, x, out)
        return
    # If there are several polynomials, a piece has whole polynomials. If there is only one, a piece has some
    # of its coefficients.
    items = x.size // count
    x, target = x.reshape(items, count), out.reshape(items, *out.shape[-2:])
    unit = count if items > 1 else 1
    with Work(x.size, "residues of {} Python ints modulo {} moduli", x.size, len(basis.moduli)) as work:
        for piece in work.pieces(unit):
            at = slice(piece.start // unit, piece.stop // unit)
            if items > 1:
                compute.reduce_integers(basis, x[at], target[at])
                continue
            part = np.empty((1, basis.rows, at.stop - at.start), basis.dtype)
            compute.reduce_integers(basis, np.ascontiguousarray(x[:, at]), part)
            target[..., at] = part
    if items == 1:
        target[..., count:] = 0


# ---- from real numbers to residues ----

_DOUBLE = np.dtype(np.float64)
_BITS = 53  # bits of a double's mantissa
_BLOCK = 1 << 12  # how many doubles are multiplied at a time, so that they stay in a cache
_USUAL = 900  # factors from 2^-900 to 2^900 are multiplied as pairs of doubles
_NEAR = 2.0**-30  # a fraction nearer to 1/2 than this is rounded by exact arithmetic
_STEP = 10  # a mantissa times 2^0 ... 2^9 fits an int64, so the table of powers has only powers of 2^10


def from_floats(basis: Basis, n: int, x: Any, scale: Any, compute: Memory) -> Array:
    """Return residues (*batch, rows, n) of the integers nearest to x * scale. Halves are rounded to even.

    Products are exact before they are rounded. If x is on a GPU, the residues are on the GPU of x. Otherwise
    they are on the device `compute`.
    """
    factor = exact_number(scale)
    if factor is None:
        raise ParameterError(
            f"scale={shown(scale)} of type {type(scale).__name__} is not an int, a finite float or a "
            "Fraction. Convert it to one of these."
        )
    numbers = _real_numbers(x)
    if numbers.ndim == 0:
        numbers = numbers.reshape(1)
    if is_device_array(numbers):
        compute = backend_of(numbers)
    if factor == 1 and numbers.dtype.kind in "iu":
        return from_integers(basis, n, numbers, compute)
    are_doubles = numbers.dtype == _DOUBLE
    exponent, sign = _exponent_of(factor) if are_doubles else None, 1 if factor > 0 else -1
    if exponent is not None:
        integers = _nearest_by_power(numbers, sign, exponent)
        if integers is not None:
            return from_integers(basis, n, integers, compute)
    numbers = backend_of(numbers).to_host(numbers)
    _check_finite(numbers)
    if exponent is not None and numbers.shape[-1] <= n:
        return compute.from_host(_times_power(basis, n, sign * numbers, exponent))
    integers = _nearest_by_pairs(numbers, factor) if are_doubles else None
    if integers is None:
        exact = _nearest(numbers.ravel().tolist(), factor)
        try:
            integers = np.array(exact, np.int64).reshape(numbers.shape)
        except OverflowError:
            integers = np.array(exact, object).reshape(numbers.shape)
    return from_integers(basis, n, integers, compute)


def _exponent_of(factor: Fraction) -> int | None:
    """Return e if |factor| is 2^e, else None."""
    top, bottom = abs(factor.numerator), factor.denominator
    is_power = top and not top & (top - 1) and not bottom & (bottom - 1)
    return top.bit_length() - bottom.bit_length() if is_power else None


def _real_numbers(x: Any) -> Array:
    """Return x as an array of doubles, of machine integers, or of Python ints and floats."""
    if holds_poly(x):
        raise CoefficientError(
            "x holds a Poly, whose coefficients are integers already. Use the Poly itself, or give "
            "poly.to_float64()."
        )
    check_unmasked(x, "x")
    x = shared(x, "x")
    if isinstance(x, (bytes, bytearray, memoryview)):
        raise _not_real(f"x is of type {type(x).__name__}")
    if not is_device_array(x):
        if hasattr(x, "__cuda_array_interface__"):
            return as_integers(x)  # raises, because only CuPy's arrays may lie on a GPU
        try:  # lists become object arrays, because np.asarray would round large ints beside a float
            x = np.asarray(x) if hasattr(x, "__array__") else np.array(x, dtype=object)
        except ValueError:
            raise _ragged() from None
    if x.dtype.kind in "iu":
        return as_integers(x)
    if x.dtype.kind == "f" and x.dtype.itemsize <= 8:
        with backend_of(x).device_scope():
            return backend_of(x).xp.ascontiguousarray(x, dtype=_DOUBLE).reshape(x.shape)  # type: ignore[no-any-return]
    if x.dtype.kind != "O":
        raise _not_real(f"x has dtype {x.dtype}")
    objects: Array = x
    kinds = set(map(type, objects.flat))
    wrong = {kind for kind in kinds if not _is_float(kind) and not _is_int(kind)}
    for value in objects.flat if wrong else ():
        if isinstance(value, (list, tuple)):
            raise _ragged()
        if type(value) in wrong:
            raise _not_real(f"The entry {shown(value)} of x is of type {type(value).__name__}")
    if all(map(_is_float, kinds)):
        return objects.astype(_DOUBLE, order="C")
    if all(map(_is_int, kinds)):
        return as_integers(objects)
    mixed = np.empty(objects.size, object)
    mixed[:] = [float(v) if _is_float(type(v)) else operator.index(v) for v in objects.flat]
    return mixed.reshape(objects.shape)


def _is_float(kind: type) -> bool:
    if issubclass(kind, np.floating):
        return np.dtype(kind).itemsize <= 8
    return issubclass(kind, float)


def _is_int(kind: type) -> bool:
    return issubclass(kind, (int, np.integer)) and not issubclass(kind, bool)


def _ragged() -> CoefficientError:
    return CoefficientError("x is a ragged nested list. Pad its lists with zeros to one length.")


def _not_real(what: str) -> CoefficientError:
    return CoefficientError(
        f"{what}, and values must be ints, or floats of at most 64 bits. Convert the values first. If they "
        "are complex slots, use polygpu.fft.from_slots to compute real coefficients."
    )


def _check_finite(numbers: Array) -> None:
    """Raise CoefficientError for the first number that is infinite or NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        if numbers.dtype == _DOUBLE and math.isfinite(numbers.max(initial=0) - numbers.min(initial=0)):
            return
        finite = numbers - numbers == 0  # works for Python ints too, unlike np.isfinite
    if not finite.all():
        at = tuple(int(i) for i in np.argwhere(~finite.astype(bool))[0])
        raise CoefficientError(
            f"x has {float(numbers[at])} at {at}, which is not finite and has no nearest integer. Look for "
            "an overflow or a division by zero where x was computed."
        )


def _nearest_by_power(x: Array, sign: int, exponent: int) -> Array | None:
    """Return x * sign * 2^exponent, rounded to int64.

    Return None if a product is NaN or does not lie in (-2^63, 2^63), or if 2^exponent is not a double.
    """
    compute = backend_of(x)
    with compute.device_scope(), np.errstate(over="ignore"):
        if not x.size:
            return x.astype(np.int64)
        if not -1074 <= exponent <= 1023:
            return None
        # Each product is exact, or so small that it is rounded to 0, or too large for an int64.
        product = x * (sign * 2.0**exponent)
        if not float(abs(product).max()) < 2.0**63:
            return None
        return compute.xp.rint(product).astype(np.int64)  # type: ignore[no-any-return]


def _times_power(basis: Basis, n: int, x: Array, exponent: int) -> Array:
    """Return residues of the integers nearest to x * 2^exponent. x: doubles, (*batch, at most n)."""
    fractions, exponents = np.frexp(x)
    exponents = exponents.astype(np.int64) + exponent
    # If a product is below 2^53, its entry of `mantissas` is the product, rounded. A larger product is an
    # integer already. It equals its 53-bit entry of `mantissas`, times 2^(_STEP * steps + rest).
    mantissas = np.rint(np.ldexp(fractions, np.clip(exponents, -_BITS, _BITS).astype(np.intc))).astype(
        np.int64
    )
    steps, rest = np.divmod(np.maximum(exponents - _BITS, 0), _STEP)
    data = empty(host(), (*x.shape[:-1], basis.rows, n), basis.dtype)
    compute = backend_for(basis, data)
    compute.reduce_integers(basis, mantissas << rest, data)
    first = int(steps.min())
    used = np.flatnonzero(np.bincount((steps - first).ravel()))
    powers = np.array([1 << _STEP * (first + step) for step in used.tolist()], object)
    table = empty(host(), (basis.rows, len(used)), basis.dtype)
    residues_of_ints(basis, powers, table)
    column = np.zeros((*x.shape[:-1], n), np.intp)
    column[..., : x.shape[-1]] = np.searchsorted(used, steps - first)
    factors = np.ascontiguousarray(np.moveaxis(np.take(table, column, axis=1), 0, -2))
    compute.pointwise(basis, "mul", data, factors, None, data)
    return data


def _nearest_by_pairs(x: Array, factor: Fraction) -> Array | None:
    """Return the int64s nearest to x * factor. x: finite doubles.

    Return None if a product may be too large for an int64, or if the factor is far from 1 (_USUAL).

    Each product is computed as the sum of two doubles. The sum is exact if the factor is a double. Any other
    factor is replaced by the sum of two doubles: the nearest double, and the double nearest to the remainder.
    Then the error of a product is less than 2^-40. A product near to a half (_NEAR) is then computed in
    Python ints.
    """
    largest = exact_number(float(max(x.max(initial=0), -x.min(initial=0))))
    assert largest is not None
    size, bits = abs(factor), factor.numerator.bit_length() - factor.denominator.bit_length()
    # The largest double below 2^63 is 2^63 - 2^10. With a factor between 2^-_USUAL and 2^_USUAL no product
    # overflows, and products of at least 1/4 lose no bits to underflow.
    if largest * size >= (1 << 63) - (1 << 10) or (size and abs(bits) > _USUAL):
        return None
    high = float(factor)
    integers, flat = np.empty(x.size, np.int64), x.ravel()
    parts = high, float(factor - exact_number(high)), factor == high  # type: ignore[operator]
    for i in range(0, x.size, _BLOCK):
        block, place = flat[i : i + _BLOCK], integers[i : i + _BLOCK]
        unsure = _round_pairs(block, *parts, place)
        if len(unsure):
            place[unsure] = _nearest(block[unsure].tolist(), factor)
    return integers.reshape(x.shape)


def _round_pairs(x: Array, high: float, low: float, exact: bool, out: Array) -> Array:
    """Write the int64s nearest to x * (high + low) to `out`. Return the indices of int64s that may be wrong.

    exact: whether `high` equals the factor in `_nearest_by_pairs`. If True, no int64 is wrong, and the
    returned array is empty.
    """
    product, error = _two_product(x, high)
    if low:
        error += x * low
    whole = np.rint(product)
    product -= whole  # exact, as are the subtractions from `product` below
    rest = product + error
    more = np.rint(rest)
    np.add(whole.astype(np.int64), more.astype(np.int64), out=out)
    rest -= more
    near = np.flatnonzero(abs(rest) > 0.5 - _NEAR)
    if not exact or not len(near):
        return near
    # If `exact`, whole + product + error is exactly x * high. The sum below is x * high minus (whole + more +
    # half). It has the right sign, and it is 0 only at a tie. A tie is already rounded to even, because
    # `whole` and `more` are even: np.rint rounds halves to even, and if x * high is not a double, the nearest
    # double is an even integer.
    half = np.copysign(0.5, rest[near])
    is_beyond = np.sign(product[near] - more[near] - half + error[near]) == np.sign(half)
    out[near] += (2 * half * is_beyond).astype(np.int64)
    return near[:0]


def _two_product(x: Array, y: float) -> tuple[Array, Array]:
    """Return the doubles p nearest to x * y, and the exact differences x * y - p.

    x is split into parts of at most 26 and 27 bits, and y into two parts of at most 26 bits. So all products
    of a part of x and a part of y fit 53 bits.
    Source: Dekker 1971, "A floating-point technique for extending the available precision".
    """
    c = y * (2.0**27 + 1)
    y_top = c - (c - y)
    y_rest = y - y_top
    top = (x.view(np.uint64) & np.uint64(-1 << 27 & (1 << 64) - 1)).view(_DOUBLE)
    rest = x - top
    product = x * y
    error = top * y_top
    error -= product
    error += rest * y_top
    error += top * y_rest
    error += rest * y_rest
    return product, error


def _nearest(values: Iterable[float], factor: Fraction) -> list[int]:
    """Return the integers nearest to values times factor, halves to even, computed in Python ints."""
    top, bottom, found = factor.numerator, factor.denominator, []
    for value in values:
        numerator, denominator = value.as_integer_ratio()
        denominator *= bottom
        nearest, rest = divmod(2 * numerator * top + denominator, 2 * denominator)  # rounds halves up
        found.append(nearest if rest else nearest & ~1)
    return found


def constant(basis: Basis, n: int, x: int, step: int, compute: Memory) -> Array:
    """Return the residues (rows, n) of the element that is the int x.

    step: n if the element is in coefficients, else the leaf size.
    """
    return of_residues(basis, residues_on(compute, basis, x), n, step, ())


@repeated
def of_residues(
    basis: Basis, residues: Array, n: int, step: int, batch: tuple[int, ...], *, out: None = None
) -> Array:
    """Return an array (*batch, rows, n) with the residues (rows, 1) at every step-th entry, 0 elsewhere."""
    compute = backend_of(residues)
    data = empty(compute, (*batch, basis.rows, n), basis.dtype, zero=True)
    compute.copy(residues, data[..., ::step])
    return data


def monomial(basis: Basis, n: int, x: int, terms: Iterable[tuple[int, int]], compute: Memory) -> Array:
    """Return residues (rows, n) of the int x times the sum of sign * X^exponent over all terms.

    terms: pairs (exponent, sign), with exponents below n.
    """
    data = empty(compute, (basis.rows, n), basis.dtype, zero=True)
    for exponent, sign in terms:
        compute.copy(compute.constant(basis.residues(sign * x)), data[:, exponent : exponent + 1])
    return data


def scalars(basis: Basis, x: Any, batch: tuple[int, ...], compute: Memory, name: str) -> Array:
    """Return the residues (*shape of x, rows, 1) of the integers x.

    batch: a batch shape. The shape of x must broadcast to `batch`.
    compute: the device of the value with which the residues will be combined.
    """
    integers = as_integers(x, name)
    if not broadcasts(integers.shape, batch):
        raise ParameterError(
            f"{name} has shape {integers.shape}, which does not broadcast to the batch shape {batch}. Give "
            f"one integer for each batch element, or give {name} axes of length 1, so that its shape "
            "broadcasts."
        )
    if is_device_array(integers) and backend_of(integers).name != compute.name:
        raise DeviceError(
            f"{name} is on {backend_of(integers).name} and the Poly to combine it with is on {compute.name}. "
            "Copy one of them to the other's device."
        )
    return constants(basis, integers, compute)


def constants(basis: Basis, integers: Array, compute: Memory) -> Array:
    """Return residues (*shape, rows, 1) of integers, for operands on the device `compute`.

    If `compute` is a GPU and `integers` is in host memory, the residues are cached by the values of the
    integers. Residues of Python ints are not cached.
    """
    if compute.xp is np or not isinstance(integers, np.ndarray):
        return from_integers(basis, 1, integers[..., None], compute)
    key = "constants", integers.dtype, integers.shape, integers.tobytes()
    found: Array | None = None if integers.dtype == object else basis.constants.get(key)
    if found is None:
        found = from_integers(basis, 1, integers[..., None], host())
        if integers.dtype != object:
            found.setflags(write=False)
            basis.constants.store(key, found, found.nbytes)
    return compute.constant(found)


def factors_of_limbs(basis: Basis, x: Any, compute: Memory) -> Array:
    """Return residues (rows, 1) of the integers in x, one integer for each limb."""
    values = [integer(v, "limbs") for v in sequence(x)]
    if len(values) != len(basis.moduli):
        raise ParameterError(
            f"limbs has {len(values)} factors, and the ring has {len(basis.moduli)} moduli. Give one factor "
            "for each limb."
        )
    return compute.constant(basis.residues(values))


def residues_on(compute: Memory, basis: Basis, x: int) -> Array:
    """Return the residues of an int, (rows, 1), on a device. The residues of recent ints are cached."""
    key = "residues", x
    found: Array | None = basis.constants.get(key)
    if found is None:
        found = basis.residues(x)
        found.setflags(write=False)
        basis.constants.store(key, found, found.nbytes)
    return compute.constant(found)


def ones(ring: RingPlan, domain: Domain, batch: tuple[int, ...], compute: Memory) -> Array:
    """Return the residues of a batch whose elements are all 1, in coefficients or evaluated."""
    one = residues_on(compute, ring.basis, 1)
    return of_residues(ring.basis, one, ring.n, ring.constant_step(domain), batch)


def from_residues(basis: Basis, n: int, data: Any, copy: bool | None, check: bool | None) -> Array:
    """Return an array of residues that an element can use as its data: `data` itself, or a copy.

    See Ring.from_residues for `copy` and `check`.
    """
    check_unmasked(data, "data")
    check_uncut(data, basis.dtype, "data")
    data = shared(data, "data")
    is_array = isinstance(data, np.ndarray) or is_device_array(data)
    array = as_integers(data, "data") if not is_array or data.dtype == object else data
    if array.ndim < 2 or array.shape[-2:] != (basis.rows, n):
        raise ParameterError(
            f"data has shape {array.shape}, which must end in (rows, n) = ({basis.rows}, {n}). Use ring(x) "
            "for integers of shape (*batch, n)."
        )
    if array.dtype.kind not in "iuO":
        raise CoefficientError(
            f"data has dtype {array.dtype}, which is not an integer dtype. Convert it to {basis.dtype}."
        )
    flaw = _flaw(basis, data) if is_array else f"is of type {type(data).__name__}, not an array"
    if flaw and copy is False:
        raise ParameterError(
            f"data {flaw}. With copy=False, as in Poly(ring, data, domain), data must be a C-contiguous, "
            f"aligned array of {basis.dtype}. Use ring.from_residues(data, domain), which copies if it must."
        )
    if check or array.dtype != basis.dtype or debugging():
        _check_canonical(basis, array)
    if flaw or copy:
        array = copied(array, basis.dtype)
    return array


def _flaw(basis: Basis, array: Array) -> str | None:
    """Return the reason why an element cannot use `array` as its data, or None if it can.

    The reason is a text that ends a sentence, such as "is not aligned".
    """
    if isinstance(array, np.ndarray) and type(array) is not np.ndarray:
        return f"is of type {type(array).__name__}, a subclass of ndarray"
    if array.dtype != basis.dtype:
        return f"has dtype {array.dtype}" + ("" if array.dtype.isnative else " in the other byte order")
    if not array.flags.c_contiguous:
        return f"is not C-contiguous (strides {array.strides})"
    return "is not aligned" if backend_of(array).address(array) % basis.dtype.itemsize else None


def _check_canonical(basis: Basis, array: Array) -> None:
    """Raise NotCanonical for the first residue outside [0, q).

    Machine integers are compared on the device of `array`, and copied to the host only if one is wrong. If q
    is above 2^64, residues are compared as Python ints.
    """
    compute, values = backend_of(array), array
    limits = np.array(basis.moduli, dtype=object)[:, None]
    if basis.wide:
        words = compute.to_host(array).astype(object)
        values = np.zeros_like(words[..., :1, :])
        for w in range(basis.rows):
            values += words[..., w : w + 1, :] << 64 * w
        values[..., 0, :][((words < 0) | (words >= 1 << 64)).any(axis=-2)] = -1
    if values.dtype.kind in "iu":  # machine words compare faster than Python ints
        largest = compute.constant((limits - 1).astype(np.uint64))
        with compute.device_scope():
            # A negative integer becomes a word of at least 2^63, which may be below q.
            wrong = (values.astype(np.uint64) > largest) | (values < 0)
            if not wrong.any():
                return
        values, wrong = compute.to_host(values), compute.to_host(wrong)
    else:
        values = values.astype(object)
        wrong = (values < 0) | (values >= limits)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise NotCanonical(
            f"data has {values[at]} at {at}, which is not a residue modulo {shown(basis.moduli[at[-2]])}. "
            "Use ring(x) for any integers."
        )


# ---- from residues to numbers ----


def to_residue_ints(basis: Basis, data: Array) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return residues as Python ints: (*batch, limbs, n), or (*batch, n) for one modulus above 2^64."""
    residues = backend_of(data).to_host(data)
    return words_to_ints(residues) if basis.wide else residues.astype(object)


def to_bigints(basis: Basis, data: Array, centered: bool) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return coefficients as Python ints (*batch, n)."""
    if data.size < _LONG or reporting() is None:
        return _to_bigints(basis, data, centered)
    # If there are several polynomials, a piece has whole polynomials. If there is only one, a piece has some
    # of its coefficients.
    items, n = prod(data.shape[:-2]), data.shape[-1]
    check_array(8 * items * n)
    x, out = data.reshape(items, *data.shape[-2:]), np.empty((items, n), object)
    unit = n if items > 1 else 1
    with Work(items * n, "to_bigints of {} x {}", items * n, len(basis.moduli)) as work:
        for piece in work.pieces(unit, _PIECE):
            at = slice(piece.start // unit, piece.stop // unit)
            if items > 1:
                _to_bigints(basis, x[at], centered, out[at])
                continue
            _to_bigints(basis, contiguous(x[..., at]), centered, out[:, at])
    return out.reshape(*data.shape[:-2], n)


def _to_bigints(
    basis: Basis, data: Array, centered: bool, out: np.ndarray[Any, np.dtype[np.object_]] | None = None
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return what to_bigints returns, without reports of progress.

    out: a C-contiguous array for the result, or None for a new one.
    """
    shape = (*data.shape[:-2], data.shape[-1], words_of(composition_of(basis).modulus))
    if len(basis.moduli) == 1 and not centered:
        values = to_residue_ints(basis, data).reshape(shape[:-1])
        if out is None:
            return values
        out[...] = values
        return out
    compute = backend_for(basis, data)
    words = empty(compute, shape, _WORD)
    compute.to_words(basis, data, centered, words)
    return signed_ints(compute.to_host(words), out)


def tolist(basis: Basis, data: Array) -> list[Any]:
    """Return coefficients as nested lists (*batch, n) of Python ints in [0, Q)."""
    if len(basis.moduli) > 1 or basis.wide:
        values = to_bigints(basis, data, centered=False)
    else:
        values = backend_of(data).to_host(data).reshape(*data.shape[:-2], data.shape[-1])
    return values.tolist()  # type: ignore[no-any-return]


def to_int64(basis: Basis, data: Array, centered: bool) -> Array:
    """Return coefficients as int64 (*batch, n), on the device of the data."""
    compute = backend_for(basis, data)
    values = empty(compute, (*data.shape[:-2], data.shape[-1]), np.dtype(np.int64))
    flat = compute.to_int64(basis, data, centered, values)
    if flat >= 0:
        at = tuple(int(i) for i in np.unravel_index(flat, values.shape))
        column: Any = (*at[:-1], slice(None), slice(at[-1], at[-1] + 1))
        value = to_bigints(basis, contiguous(data[column]), centered).item()
        raise ParameterError(
            f"The coefficient {shown(value)} at {at} is outside [-2**63, 2**63), the range of to_int64. Use "
            "to_bigints() for ints of any size, or to_float64() for rounded ones."
        )
    return values


@repeated
def to_float64(basis: Basis, data: Array, centered: bool, *, out: None = None) -> Array:
    """Return coefficients as the nearest doubles (*batch, n), on the device of the data."""
    compute = backend_for(basis, data)
    values = empty(compute, (*data.shape[:-2], data.shape[-1]), np.dtype(np.float64))
    compute.to_float64(basis, data, centered, values)
    return values


def norm(basis: Basis, data: Array, p: float) -> Any:
    """Return the p-norm of the centred coefficients of each batch element.

    Norms are ints if p is 1 or inf, and floats if p is 2.
    """
    if p not in (1, 2, math.inf):
        raise ParameterError(f"p={shown(p)} must be 1, 2 or inf.")
    batch, compute = data.shape[:-2], backend_for(basis, data)
    words = empty(compute, (*batch, norm_words(composition_of(basis).modulus, data.shape[-1], p)), _WORD)
    compute.norm(basis, data, p, words)
    # The words are unsigned, but signed_ints reads two's complement. So a zero is appended as highest word.
    host_words = compute.to_host(words)
    padded = np.concatenate([host_words, np.zeros((*batch, 1), _WORD)], axis=-1)
    value = signed_ints(padded)
    if p == 2:
        value = np.array([_square_root(int(x)) for x in value.flat], np.float64).reshape(batch)
    return value if batch else value.item()


def _square_root(x: int) -> float:
    """Return the double nearest to the square root of an int of any size, halves to even."""
    shift = max(0, 112 - x.bit_length() + 1) & ~1  # so that the root has at least 56 bits
    root = math.isqrt(x << shift)
    try:  # an additional last bit tells whether the root was cut, so that float() rounds correctly
        return math.ldexp(float(2 * root + (root * root != x << shift)), -shift // 2 - 1)
    except OverflowError:
        raise ParameterError(
            "The norm with p=2 is larger than any float. Use p=1 or p=inf, which give exact ints."
        ) from None
