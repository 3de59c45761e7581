"""Fourier transforms of batches of short rows of complex numbers, cyclic convolutions, and the slots of CKKS.

NumPy arrays are transformed on the CPU, CuPy arrays on their GPU, in its current stream. Arrays of PyTorch,
JAX and others with `__dlpack__` are read without a copy. Results are arrays of NumPy or CuPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ._backends import Array, backend_of, is_device_array
from ._ops.arrays import NotAnArray, array_from, check_unmasked, contiguous, shared, spread
from ._ops.results import result
from .errors import DeviceError, NotComplex, ParameterError

MAX_LENGTH = 4096  # largest number of points of a row for `fft`
MAX_DEGREE = 1 << 17  # largest degree of the ring for to_slots and from_slots

__all__ = ["MAX_DEGREE", "MAX_LENGTH", "convolve64", "fft", "fft64", "from_slots", "to_slots"]


def fft64(x: Any, *, inverse: bool = False, out: Any = None) -> Any:
    """Compute discrete Fourier transforms of 64 points over the last axis.

    X[k] is the sum over j of x[j] * exp(-2 * pi * i * j * k / 64), where i is the imaginary unit. The results
    are in natural order. The inverse transform has the sign + in the exponent and the factor 1/64.

    Args:
        x: a complex64 or complex128 array (*batch, 64). If it is not C-contiguous, it is copied first.
        inverse: whether to compute the inverse transform.
        out: a C-contiguous array of x's shape, dtype and device to write the result into. It may be x.

    Returns:
        `out` if it is given, else a new array of x's shape and dtype on x's device.

    Raises:
        NotComplex: x is not an array of complex numbers.
        ParameterError: the last axis does not have 64 points, or inverse is not a bool.
        OutputError: `out` cannot hold the result. DeviceError: `out` is on another device.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Relative error in the 2-norm: at most 4 * 2^-24 (complex64) or 4 * 2^-53 (complex128), unless a sum of
    values of a row overflows or underflows.
    Cost: two rounds of eight 8-point transforms per row. Memory is read once and written once.
    Source: Cooley & Tukey 1965; 64 = 8 x 8.

    >>> import numpy as np
    >>> x = np.exp(2j * np.pi * 5 * np.arange(64) / 64)
    >>> int(np.argmax(abs(fft64(x)))), bool(np.allclose(fft64(fft64(x), inverse=True), x))
    (5, True)
    """
    x = _checked(x, "x")
    n = x.shape[-1]
    if n != 64:
        raise ParameterError(
            f"The last axis of x has {n} points, but it must have 64. Use fft for other lengths."
        )
    return fft(x, inverse=inverse, out=out)


def fft(x: Any, *, inverse: bool = False, out: Any = None) -> Any:
    """Compute discrete Fourier transforms over the last axis, whose length is a power of two up to 4096.

    X[k] is the sum over j of x[j] * exp(-2 * pi * i * j * k / n), where i is the imaginary unit. The results
    are in natural order. The inverse transform has the sign + in the exponent and the factor 1/n.

    Args:
        x: a complex64 or complex128 array (*batch, n). If it is not C-contiguous, it is copied first.
        inverse: whether to compute the inverse transform.
        out: see fft64.

    Returns:
        `out` if it is given, else a new array of x's shape and dtype on x's device.

    Raises:
        ParameterError: n is not a power of two, n is above 4096, or inverse is not a bool. For other errors
            see fft64.

    Relative error in the 2-norm: below 2^-21 (complex64) or 2^-50 (complex128).
    Cost: memory is read once and written once, because one core, or one thread block of a GPU, transforms a
    whole row.
    Source: Stockham's self-sorting form, Govindaraju et al. 2008.

    >>> import numpy as np
    >>> fft(np.array([[1, 2, 3, 4]], np.complex64)).tolist()
    [[(10+0j), (-2+2j), (-2+0j), (-2-2j)]]
    """
    x = _checked(x, "x")
    n = x.shape[-1]
    if not isinstance(inverse, (bool, np.bool_)):
        raise ParameterError(
            f"inverse={inverse!r} must be True or False. It is not a length, because a transform always has "
            "the length of the last axis."
        )
    if n == 0 or n & (n - 1) or n > MAX_LENGTH:
        raise ParameterError(
            f"The last axis of x has {n} points, but their number must be a power of two of at most "
            f"{MAX_LENGTH}. Use numpy.fft or cupy.fft for other lengths."
        )
    source = contiguous(x)
    compute = backend_of(source)
    data = result(compute, source.shape, source.dtype, out, source)
    if source.size:
        compute.fft(source.reshape(-1, n), data.reshape(-1, n), bool(inverse))
    return data


def convolve64(a: Any, b: Any, *, out: Any = None) -> Any:
    """Compute cyclic convolutions of 64 points over the last axis, in one pass.

    c[k] is the sum over i of a[i] * b[(k - i) mod 64].

    Args:
        a: a complex64 or complex128 array (*batch, 64).
        b: an array of a's dtype, on a's device. The batch axes of a and b broadcast. If a or b has a
            single row, this row is a filter for all rows of the other operand, and is transformed only once.
        out: a C-contiguous array of the result's shape and of a's dtype to write into. It may be a or b.

    Returns:
        `out` if it is given, else a new array of the broadcast shape and of a's dtype, on a's device.

    Raises:
        NotComplex: a or b is not an array of complex numbers, or their dtypes differ.
        ParameterError: the last axis of a or b does not have 64 points, or the batch axes do not broadcast.
        DeviceError: a, b and `out` are not all on one device. OutputError: `out` cannot hold the result.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Error of a row in the 2-norm: below 8 * u * |a| * |b|, where |a| and |b| are the 2-norms of the rows, and
    u is 2^-21 (complex64) or 2^-50 (complex128). No result has a norm above 8 * |a| * |b|. For random rows
    the error is below u * |a| * |b|.
    Cost: three transforms per row. The operands are read once and the result is written once, and no
    intermediate result goes through memory.
    Source: the convolution theorem, with the transform of fft64.

    >>> import numpy as np
    >>> shift = np.eye(64, dtype=np.complex128)[1]
    >>> np.round(convolve64(np.arange(64) + 0j, shift).real[:3]).astype(int).tolist()
    [63, 0, 1]
    """
    a, b = _checked(a, "a"), _checked(b, "b")
    for name, x in (("a", a), ("b", b)):
        if x.shape[-1] != 64:
            raise ParameterError(f"The last axis of {name} has {x.shape[-1]} points, but it must have 64.")
    if a.dtype != b.dtype:
        raise NotComplex(
            f"a is {a.dtype} and b is {b.dtype}. Both must have the same dtype. Use astype to convert one "
            "of them."
        )
    if backend_of(a).name != backend_of(b).name:
        raise DeviceError(
            f"a is on {backend_of(a).name} and b is on {backend_of(b).name}. Copy one of them to the other's "
            "device."
        )
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ParameterError(
            f"The batch shapes {a.shape[:-1]} and {b.shape[:-1]} do not broadcast. Counted from the last "
            "axis, two lengths must be equal, or one of them must be 1."
        ) from None
    compute = backend_of(a)
    if a.size == 64 != b.size:
        a, b = b, a  # backends expect a filter (a single row) as the second operand
    left = contiguous(spread(a, shape))
    right = contiguous(b if b.size == 64 else spread(b, shape))
    data = result(compute, shape, a.dtype, out, a, b)
    if data.size:
        compute.convolve(left.reshape(-1, 64), right.reshape(-1, 64), data.reshape(-1, 64))
    return data


# ---- slots: real polynomials as complex vectors ----


def to_slots(x: Any) -> Any:
    """Return the slots of CKKS: values of real polynomials at half of the primitive 2N-th roots of unity.

    Slot j, for j < N/2, is the sum over k of x[k] * exp(i * pi * 5^j * k / N), where i is the imaginary unit.
    The values at the other half of the roots are the conjugates of the slots. The slots of a product of two
    polynomials modulo X^N + 1 are the products of their slots. The slots of x(X^5) are the slots of x,
    rotated left by one position.

    Args:
        x: real coefficients, a float64 array (*batch, N) of NumPy or CuPy, for example from Poly.to_float64.
            N is a power of two from 2 to 2**17.

    Returns a complex128 array (*batch, N/2) on x's device.

    Raises:
        ParameterError: N is not a power of two from 2 to 2**17. NotComplex: x is not an array of float64.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Relative error in the 2-norm: below 2^-48.
    Cost: a complex transform of N/2 points, and a permutation of them.
    Source: Cheon, Kim, Kim, Song 2016/421, section 3.2. As in an FFT of real numbers, two reals are packed in
    one complex number.

    >>> import numpy as np
    >>> x = np.array([0.0, 1, 0, 0])  # X, at exp(i pi / 4) and at its fifth power
    >>> np.round(to_slots(x) ** 2, 6).tolist()
    [1j, 1j]
    """
    x = _checked(x, "x", "float64")
    n = x.shape[-1]
    if n < 2 or n & (n - 1) or n > MAX_DEGREE:
        raise ParameterError(
            f"The last axis of x has {n} entries. Their number N must be a power of two from 2 to "
            f"{MAX_DEGREE}."
        )
    source, half = contiguous(x), n // 2
    compute = backend_of(source)
    turns, order = (compute.constant(a) for a in _slot_tables(n, inverse=False))
    with compute.device_scope():
        packed = (source[..., :half] + 1j * source[..., half:]) * turns
        values = _transform(packed.reshape(-1, half), inverse=True) * half
        return values[:, order].reshape(*source.shape[:-1], half)


def from_slots(z: Any) -> Any:
    """Return the real polynomials whose slots are z: the inverse of to_slots.

    CKKS encodes z as ring.from_floats(from_slots(z), scale=scale). Then N must be the degree of the ring, so
    pad a shorter z with zeros to N/2 numbers.

    Args:
        z: slots, a complex128 array (*batch, N/2) of NumPy or CuPy. N/2 is a power of two up to 2**16.

    Returns the coefficients, a float64 array (*batch, N) on z's device.

    Raises:
        ParameterError: N/2 is not a power of two up to 2**16. NotComplex: z is not an array of complex128.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Relative error in the 2-norm: below 2^-48.
    Cost: a permutation of N/2 points, and a complex transform of them. Source: see to_slots.

    >>> import numpy as np
    >>> from_slots(np.array([1j, 1j])).round(6).tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    z = _checked(z, "z", "complex128")
    half = z.shape[-1]
    if half == 0 or half & (half - 1) or 2 * half > MAX_DEGREE:
        raise ParameterError(
            f"The last axis of z has {half} slots, but their number must be a power of two of at most "
            f"{MAX_DEGREE // 2}."
        )
    source = contiguous(z)
    compute = backend_of(source)
    turns, order = (compute.constant(a) for a in _slot_tables(2 * half, inverse=True))
    with compute.device_scope():
        packed = _transform(source.reshape(-1, half)[:, order], inverse=False) * turns / half
        pairs = packed.view(np.float64).reshape(-1, half, 2)  # real and imaginary parts
        found = contiguous(pairs.swapaxes(1, 2))
        return found.reshape(*source.shape[:-1], 2 * half)


@lru_cache(maxsize=32)
def _slot_tables(n: int, inverse: bool) -> tuple[Array, Array]:
    """Return two tables with which a Fourier transform of n/2 points computes the slots.

    The first table holds exp(i * pi * k / n) for k < n/2. Multiply coefficient k by entry k before the
    transform. Output t is then the value at the root exp(i * pi * (4 * t + 1) / n). Entry j of the second
    table is the t of slot j: 5^j = 4 * t + 1 modulo 2 * n.

    inverse: True inverts the numbers in the first table, and the permutation in the second (from t to j).
    """
    half, power = n // 2, 1
    order = np.empty(half, np.int64)
    for j in range(half):
        order[j], power = power // 4, power * 5 % (2 * n)
    turns = np.exp((-1j if inverse else 1j) * np.pi * np.arange(half) / n)
    tables = turns, np.argsort(order) if inverse else order
    for table in tables:
        table.setflags(write=False)
    return tables


def _transform(x: Array, inverse: bool) -> Array:
    """Compute Fourier transforms of rows of 2^k points, for k up to 16.

    Treat a row of more than MAX_LENGTH points as a matrix: transform the columns of the matrix, multiply
    by twiddles, and transform its rows. Source: Bailey 1990, "FFTs in external or hierarchical memory".
    """
    rows, n = x.shape
    if n <= MAX_LENGTH:
        return fft(contiguous(x), inverse=inverse)  # type: ignore[no-any-return]
    first = 1 << (n.bit_length() // 2)
    second = n // first
    compute = backend_of(x)
    twiddles = compute.constant(_step_twiddles(first, second, inverse))
    columns = fft(contiguous(x.reshape(rows, first, second).swapaxes(1, 2)), inverse=inverse)
    found = fft(contiguous((columns * twiddles).swapaxes(1, 2)), inverse=inverse)
    return contiguous(found.swapaxes(1, 2)).reshape(rows, n)


@lru_cache(maxsize=16)
def _step_twiddles(first: int, second: int, inverse: bool) -> Array:
    """Return the table of w^(j * k) for j < second and k < first.

    w is exp(-2 * pi * i / (first * second)). If `inverse` is True, w is the inverse of this number.
    """
    products = np.outer(np.arange(second), np.arange(first)) / (first * second)
    table: Array = np.exp((2j if inverse else -2j) * np.pi * products)
    table.setflags(write=False)
    return table


def _checked(x: Any, name: str, *dtypes: str) -> Array:
    """Return x as an array of NumPy or CuPy. Raise NotComplex unless its dtype is allowed.

    dtypes: the names of the allowed dtypes, by default complex64 and complex128.
    """
    dtypes = dtypes or ("complex64", "complex128")
    given, x = x, shared(x, name, NotComplex)
    kinds = " or ".join(dtypes)
    if isinstance(x, NotAnArray):
        raise NotComplex(f"{name} must be an array of {kinds}, not {type(x).__name__}. {x._exits()}.")
    if not isinstance(x, np.ndarray) and not is_device_array(x):
        if hasattr(x, "__cuda_array_interface__"):
            raise DeviceError(
                f"{name} is a GPU array of {type(x).__module__}. Use cupy.asarray({name}) to make an array "
                "of CuPy."
            )
        raise NotComplex(
            f"{name} must be an array of {kinds}, not {type(x).__name__}. Use "
            f"numpy.asarray({name}, {dtypes[-1]!r}) to make one."
        )
    check_unmasked(x, name)
    if x.dtype.name not in dtypes or not x.dtype.isnative:
        way = f"{array_from(given, name)}.astype({dtypes[-1]!r})"
        raise NotComplex(f"{name} has dtype {x.dtype}, but it must be {kinds}. Use {way} to convert it.")
    if x.ndim == 0:
        raise ParameterError(f"{name} is a single number. Give an array whose last axis holds the points.")
    return x  # type: ignore[no-any-return]
