"""Arrays as operands and results: their integers and memory layout, new arrays, and checks of `out`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from . import _cpu
from .backends import Array, Memory, backend_of, checked_device, get_backend, is_device_array
from .checks import shown
from .errors import CoefficientError, DeviceError, OutputError, PolyGPUError
from .memory import SMALL_ARRAY, check_array, no_memory

# ---- results ----


def empty(compute: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], *, zero: bool = False) -> Array:
    """A new array on a device, of zeros if `zero`. In host memory it begins at a multiple of 64 bytes.

    Raises:
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.
    """
    if compute.xp is np:
        array = _cpu.empty(shape, dtype, zero, SMALL_ARRAY)
        if array is not None:
            return array
    size = prod(shape) * dtype.itemsize
    if compute.xp is not np and size >> 62 == 0:  # no device is asked for more
        if not zero:
            return compute.empty(shape, dtype)
        with compute.device_scope():
            return compute.xp.zeros(shape, dtype)  # type: ignore[no-any-return]
    check_array(size)
    array = _cpu.empty(shape, dtype, zero, size) if size >> 63 == 0 else None
    if array is None:  # also for an empty array with an axis that is too long
        raise no_memory(size)
    return array


def result(
    compute: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], out: Any, *operands: Array
) -> Array:
    """An array for a result: a new one, or `out` after all checks. `out` may be one of the operands."""
    if out is None:
        return empty(compute, shape, dtype)
    if not isinstance(out, np.ndarray) and not is_device_array(out):
        raise OutputError(f"out: {type(out).__name__}, must be an array of {dtype}")
    check_unmasked(out, "out")
    if backend_of(out).name != compute.name:
        raise DeviceError(f"out: on {backend_of(out).name}, the operands are on {compute.name}")
    if out.shape != shape or out.dtype != dtype:
        raise OutputError(f"out: {out.dtype} {out.shape}, the result is {dtype} {shape}")
    if not out.flags.c_contiguous or compute.address(out) % out.dtype.itemsize:
        raise OutputError("out: must be C-contiguous and aligned; leave it out and copy the result")
    check_writable(compute, out, *operands)
    return out  # type: ignore[no-any-return]


def check_writable(compute: Memory, out: Array, *operands: Array) -> None:
    """Raise OutputError where `out` is read-only, or overlaps an operand without being that operand."""
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise OutputError("out: is read-only; give one that can be written")
    for x in operands:
        if x is out or not overlap(compute, x, out):
            continue
        if compute.address(x) != compute.address(out) or x.shape != out.shape:
            raise OutputError("out: overlaps an operand in part; give the operand itself or other memory")


def overlap(compute: Memory, a: Array, b: Array) -> bool:
    """Whether two arrays may share memory."""
    if isinstance(a, np.ndarray):
        return np.may_share_memory(a, b)
    if a.flags.c_contiguous and b.flags.c_contiguous:
        first, second = compute.address(a), compute.address(b)
        return first < second + b.nbytes and second < first + a.nbytes
    with compute.device_scope():
        return bool(compute.xp.may_share_memory(a, b))


# ---- operands ----


def contiguous(x: Any) -> Array:
    """The array in C order and aligned for its dtype: x itself where it is so, else a copy."""
    if type(x) is np.ndarray and x.flags.c_contiguous and x.flags.aligned:
        return x
    compute = backend_of(x)
    with compute.device_scope():
        y: Array = compute.xp.ascontiguousarray(x)
        if compute.address(y) % y.dtype.itemsize:
            y = y.view(np.uint8).copy().view(y.dtype)  # CuPy copies complex128 only from aligned memory
        return y.reshape(x.shape)  # ascontiguousarray gives a 0-d array an axis


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of the first shape broadcasts to the second, by NumPy's rules."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """The array broadcast to a shape, as a copy in C order; x itself where it has that shape."""
    if x.shape == shape:
        return x
    compute = backend_of(x)
    y = empty(compute, shape, x.dtype)
    with compute.device_scope():
        y[...] = x
    return y


# ---- arrays of other libraries ----

# DLPack's numbers for types of devices. Source: dlpack.h, DLDeviceType
_HOST_KINDS = (1, 3, 11)  # pageable memory; pinned by CUDA, by ROCm
_GPU_KINDS = (2, 13)  # CUDA; CUDA's managed memory
_OTHER_KINDS = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}


def shared(x: Any, name: str, error: type[PolyGPUError] = CoefficientError) -> Any:
    """The array of another library as one of NumPy or CuPy that shares its memory; all else unchanged.

    It takes arrays with `__dlpack__`, such as those of PyTorch and JAX. Where `__dlpack__` refuses an array
    in host memory, for instance because DLPack lacks its dtype, the array's `__array__` makes a copy.

    Raises:
        DeviceError: the array is on a device that polygpu does not compute on.
        BackendUnavailable: it is on a GPU that does not answer.
        error: the library does not share the array.
    """
    if isinstance(x, np.ndarray) or not hasattr(type(x), "__dlpack__") or is_device_array(x) or holds_poly(x):
        return x
    described = f"{name}: {type(x).__module__.partition('.')[0]}.{type(x).__name__}"
    ways: list[Callable[[Any], Any]]
    try:
        kind, index = (int(number) for number in x.__dlpack_device__())
    except Exception as reason:
        raise DeviceError(
            f"{described} says no device ({_first_line(reason)}); give an array whose values lie in memory"
        ) from reason
    ways = [np.from_dlpack, np.asarray] if hasattr(type(x), "__array__") else [np.from_dlpack]
    if kind in _GPU_KINDS:
        compute = get_backend(checked_device(f"cuda:{index}", name))
        ways = [compute.xp.from_dlpack]
    elif kind in _HOST_KINDS:
        compute = get_backend("cpu")
    else:
        raise DeviceError(
            f"{described} on a device of {_OTHER_KINDS.get(kind, f'DLPack kind {kind}')}; values are "
            "computed on the host and on NVIDIA GPUs: copy it there first"
        )
    refusals: list[Exception] = []
    for way in ways:
        try:
            with compute.device_scope():
                return way(x)
        except Exception as reason:
            refusals.append(reason)
    raise error(
        f"{described} of {getattr(x, 'dtype', 'no dtype')} gives no array ({_first_line(refusals[-1])}); "
        "convert it to an array of plain numbers that lie in memory"
    ) from refusals[-1]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def check_uncut(x: Any, dtype: np.dtype[Any], name: str) -> None:
    """Raise CoefficientError for an array of JAX that should hold 64-bit residues and was cut to 32 bits."""
    jax: Any = sys.modules.get("jax")
    kind: Any = getattr(jax, "Array", None)
    if kind is None or not isinstance(x, kind) or jax.config.jax_enable_x64:
        return
    if x.dtype.itemsize < dtype.itemsize:
        raise CoefficientError(
            f"{name}: an array of JAX of {x.dtype}, residues are {dtype}, and jax_enable_x64 is off, so that "
            "JAX cuts integers to 32 bits; jax.config.update('jax_enable_x64', True) before it is made, or "
            "numpy.asarray(x) if none was cut"
        )


_EXACT = "must be ints; convert with x.astype(np.int64) or round yourself, nothing is rounded for you"


def holds_poly(x: object) -> bool:
    """Whether x is a Poly, or nested lists that hold one: NumPy would read its residues."""
    return hasattr(x, "to_bigints") or (isinstance(x, (list, tuple)) and any(map(holds_poly, x)))


def check_unmasked(x: object, name: str) -> None:
    """Raise CoefficientError for an array of NumPy's that declares some entries invalid."""
    masked = sys.modules.get("numpy.ma")  # before this module is imported there are no masked arrays
    if masked and isinstance(x, masked.MaskedArray):
        raise CoefficientError(
            f"{name}: a masked array, and there are no masked entries here; x.filled(0) or x.data is an array"
        )


def as_integers(x: object, name: str = "x") -> Array:
    """x as an array of machine integers, in C order and of its own dtype, or as one of Python ints.

    Python ints become int64 where all of them fit. All else raises CoefficientError.
    """
    if holds_poly(x):
        raise CoefficientError(
            f"{name}: a Poly is no integer; pass poly.to_bigints(), or join values with pg.stack"
        )
    if isinstance(x, (bytes, bytearray, memoryview)):
        raise CoefficientError(f"{name}: {type(x).__name__} {_EXACT}")
    check_unmasked(x, name)
    x = shared(x, name)
    if is_device_array(x):
        device_array: Any = x
        if device_array.dtype.kind not in "iu":
            raise CoefficientError(f"{name}: dtype {device_array.dtype} {_EXACT}")
        with backend_of(device_array).device_scope():
            integers = backend_of(device_array).xp.ascontiguousarray(device_array)
            return integers.reshape(device_array.shape)  # type: ignore[no-any-return]
    if hasattr(x, "__cuda_array_interface__"):
        raise DeviceError(
            f"{name}: a GPU array of {type(x).__module__}; cupy.asarray(x) makes it one of CuPy"
        )
    if not isinstance(x, np.ndarray) and not isinstance(x, np.generic) and hasattr(x, "__array__"):
        x = np.asarray(x)
    if isinstance(x, (np.ndarray, np.generic)):
        array = np.asarray(x)
    else:
        # Through Python objects: np.array would turn [True, 2] into ints and [2**63, -1] into floats.
        try:
            array = np.array(x, dtype=object)
        except ValueError:
            raise CoefficientError(
                f"{name}: ragged nested lists; pad them with zeros to one length"
            ) from None
    if array.dtype.kind in "iu":
        return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
    if array.dtype.kind != "O":
        raise CoefficientError(f"{name}: dtype {array.dtype} {_EXACT}")
    for value in array.flat:
        if isinstance(value, (list, tuple)):
            raise CoefficientError(f"{name}: ragged nested lists; pad them with zeros to one length")
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise CoefficientError(f"{name}: {shown(value)} of type {type(value).__name__} {_EXACT}")
    if any(isinstance(value, np.integer) for value in array.flat):
        array = np.array([int(value) for value in array.flat], dtype=object).reshape(array.shape)
    try:
        return array.astype(np.int64, order="C")
    except OverflowError:
        return array
