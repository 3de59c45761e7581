"""Arrays as operands and results: allocation, memory layout, and conversion of what users pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import prod
from typing import Any, ClassVar, NoReturn

import numpy as np

from .. import _cpu
from .._backends import Array, Memory, backend_of, checked_device, get_backend, is_device_array
from .._backends.host_records import note_made
from .._core.checks import shown
from .._core.memory import new_array
from ..errors import CoefficientError, DeviceError, PolyGPUError

# ---- results ----


def empty(compute: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], *, zero: bool = False) -> Array:
    """Make a new array on the device of `compute`, filled with zeros if `zero`.

    The address of an array in host memory is a multiple of 64 bytes.

    Raises:
        OutOfHostMemory, OutOfDeviceMemory: the array does not fit in the memory of the device.
    """
    if compute.xp is np or prod(shape) * dtype.itemsize >> 62:  # for 2^62 bytes or more, new_array raises
        array = new_array(shape, dtype, zero)
        note_made(array, zero)
        return array
    array = compute.empty(shape, dtype)
    if zero:
        fill(compute, array, 0)
    return array


def fill(compute: Memory, x: Array, value: int) -> None:
    """Write a number into all entries of an array."""
    compute.copy(compute.constant(np.array(value, x.dtype)), x)


def overlap(compute: Memory, a: Array, b: Array) -> bool:
    """Return whether two arrays may share memory."""
    if isinstance(a, np.ndarray):
        return np.may_share_memory(a, b)
    if a.flags.c_contiguous and b.flags.c_contiguous:
        first, second = compute.address(a), compute.address(b)
        return first < second + b.nbytes and second < first + a.nbytes
    with compute.device_scope(views=True):
        return bool(compute.xp.may_share_memory(a, b))


# ---- operands ----


def copied(x: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Return an aligned copy of x in C order. dtype: an integer dtype; None keeps the dtype of x."""
    compute = backend_of(x)
    y = empty(compute, x.shape, x.dtype if dtype is None else dtype)
    compute.copy(x, y)
    return y


def contiguous(x: Any) -> Array:
    """Return x if it is in C order and aligned for its dtype, else an aligned copy in C order."""
    if isinstance(x, np.ndarray):
        x = np.asarray(x)  # a subclass of ndarray becomes a plain ndarray
        usable = x.flags.c_contiguous and x.flags.aligned
    else:
        usable = x.flags.c_contiguous and backend_of(x).address(x) % x.dtype.itemsize == 0
    return x if usable else copied(x)


def layouts(*operands: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the strides of all operands, or None if all operands are C-contiguous.

    Callers add the result to the key of a recorded call (calls.py). Without it, calls that differ only in
    strides would have the same key.
    """
    return None if all(x.flags.c_contiguous for x in operands) else tuple(x.strides for x in operands)


def in_dtype(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return x itself or a copy, with the integer dtype `dtype`, which must hold all values of x."""
    return x if x.dtype == dtype else copied(x, dtype)


def joined(arrays: Sequence[Array], axis: int) -> Array:
    """Return a new array, the concatenation of `arrays` along an axis. axis: at least 0."""
    first, start = arrays[0], 0
    before = (slice(None),) * axis
    compute = backend_of(first)
    length = sum(x.shape[axis] for x in arrays)
    data = empty(compute, (*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype)
    for x in arrays:
        compute.copy(x, data[(*before, slice(start, start + x.shape[axis]))])
        start += x.shape[axis]
    return data


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether an array of shape `shape` broadcasts to the shape `to`, by NumPy's rules."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """Return x broadcast to a shape: a copy in C order, or x itself if it has that shape."""
    if x.shape == shape:
        return x
    compute = backend_of(x)
    y = empty(compute, shape, x.dtype)
    compute.copy(x, y)
    return y


# ---- values that are not arrays ----


class NotAnArray:
    """Base class of values for which all functions of NumPy raise an error, except those in `_forwarded`.

    `array * value` calls the operator of the value, not that of NumPy. A subclass overrides `_exits`.
    """

    __slots__ = ()
    __array_ufunc__ = None
    _forwarded: ClassVar[tuple[Any, ...]] = (np.shape, np.ndim)

    def _exits(self) -> str:
        """Return a sentence, without its period, that names what to use instead of NumPy's functions."""
        raise NotImplementedError

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in self._forwarded:
            return function._implementation(*args, **options)
        name = f"{function.__module__}.{function.__name__}"
        raise CoefficientError(f"{name} does not accept a {type(self).__name__}. {self._exits()}.")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Raise CoefficientError, since it is not clear whether residues or coefficients are meant."""
        raise CoefficientError(
            f"numpy.asarray cannot make an array of a {type(self).__name__}. {self._exits()}."
        )


def refuse_array(other: object) -> None:
    """Raise CoefficientError if `other` is an array or a sequence.

    A str, bytes or bytearray does not count as a sequence.
    """
    if isinstance(other, (NotAnArray, np.generic, str, bytes, bytearray)):
        return
    kinds = ("__array__", "__dlpack__", "__cuda_array_interface__")
    if isinstance(other, Sequence) or any(hasattr(type(other), kind) for kind in kinds):
        raise CoefficientError(
            f"The operand must be a Poly or an int, not {type(other).__name__}. Use ring(values) to make a "
            "polynomial of the values, or ring(array[..., None]) for a batch of constants."
        )


# ---- arrays of other libraries ----

# DLPack's codes of device types. Source: dlpack.h, DLDeviceType
_HOST_KINDS = (1, 3, 11)  # pageable memory, memory pinned by CUDA, memory pinned by ROCm
_GPU_KINDS = (2, 13)  # memory of a CUDA GPU, memory managed by CUDA
_OTHER_KINDS = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}


def shared(x: Any, name: str, error: type[PolyGPUError] = CoefficientError) -> Any:
    """Return an array of NumPy or CuPy that shares the memory of x, an array of another library.

    Arrays of other libraries, such as PyTorch and JAX, have `__dlpack__`. Any other x is returned unchanged.
    If `__dlpack__` fails for an array in host memory, `__array__` makes a copy.

    Raises:
        DeviceError: x does not name its device, or polygpu does not compute on this device.
        BackendUnavailable: x is on a GPU that polygpu cannot use.
        error: x can be neither shared nor copied. The class `error` is an argument.
    """
    if isinstance(x, np.ndarray) or not hasattr(type(x), "__dlpack__") or is_device_array(x) or holds_poly(x):
        return x
    described = f"{name} is a {type(x).__module__.partition('.')[0]}.{type(x).__name__}"
    ways: list[Callable[[Any], Any]]
    try:
        kind, index = (int(number) for number in x.__dlpack_device__())
    except Exception as reason:
        raise DeviceError(
            f"{described} that does not say on which device it is ({_first_line(reason)}). Give an array "
            "whose values lie in memory."
        ) from reason
    ways = [np.from_dlpack, np.asarray] if hasattr(type(x), "__array__") else [np.from_dlpack]
    if kind in _GPU_KINDS:
        compute = get_backend(checked_device(f"cuda:{index}", name))
        ways = [compute.xp.from_dlpack]
    elif kind in _HOST_KINDS:
        compute = get_backend("cpu")
    else:
        raise DeviceError(
            f"{described} on a device of {_OTHER_KINDS.get(kind, f'DLPack kind {kind}')}. polygpu computes "
            "on the host and on NVIDIA GPUs. Copy the array to one of these first."
        )
    refusals: list[Exception] = []
    for way in ways:
        try:
            with compute.device_scope():
                return way(x)
        except Exception as reason:
            refusals.append(reason)
    raise error(
        f"{described} of {getattr(x, 'dtype', 'no dtype')} that polygpu cannot read "
        f"({_first_line(refusals[-1])}). Convert it to an array of plain numbers that lie in memory."
    ) from refusals[-1]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def check_uncut(x: Any, dtype: np.dtype[Any], name: str) -> None:
    """Raise CoefficientError if x is a JAX array of residues that JAX may have cut from 64 to 32 bits."""
    jax: Any = sys.modules.get("jax")
    kind: Any = getattr(jax, "Array", None)
    if kind is None or not isinstance(x, kind) or jax.config.jax_enable_x64:
        return
    if x.dtype.itemsize < dtype.itemsize:
        raise CoefficientError(
            f"{name} is a JAX array of {x.dtype}, and residues are {dtype}. JAX cuts integers to 32 bits "
            "because jax_enable_x64 is off. Call jax.config.update('jax_enable_x64', True) before you make "
            f"the array, or give numpy.asarray({name}) if no integer was cut."
        )


def holds_poly(x: object) -> bool:
    """Return whether x is a Poly or another value of a ring, or nested lists that contain one."""
    if isinstance(x, (list, tuple)):
        return set(map(type, x)) != {int} and any(map(holds_poly, x))
    return isinstance(x, NotAnArray)


def _value_in(x: Any) -> NotAnArray:
    """Return the first value of a ring, such as a Poly, in x: x itself, or an entry of the nested lists x."""
    return x if isinstance(x, NotAnArray) else _value_in(next(filter(holds_poly, x)))


_EXACT = "Nothing is rounded or guessed."


def array_from(x: Any, name: str) -> str:
    """Return a Python expression, for error messages, that turns x into an array with a method astype.

    x: an array of any library. name: the name of x in the expression.
    """
    if hasattr(x, "astype"):
        return name
    module = "cupy" if hasattr(x, "__cuda_array_interface__") else "np"
    return f"{module}.{'asarray' if hasattr(x, '__array__') else 'from_dlpack'}({name})"


def _wrong_dtype(name: str, x: Any, dtype: np.dtype[Any], are_coefficients: bool) -> CoefficientError:
    """Return the error for an array x whose dtype is not an integer dtype."""
    array, module = array_from(x, name), "cupy" if hasattr(x, "__cuda_array_interface__") else "np"
    way = f"Use {array}.astype({module}.int64)"
    if dtype.kind in "fc":
        real = array if dtype.kind == "f" else f"{array}.real"
        if dtype.itemsize > (8 if dtype.kind == "f" else 16):
            real = f"{real}.astype({module}.float64)"
        way = f"Round {real} to integers"
        if are_coefficients:
            way = f"Use ring.from_floats({real}), which rounds exactly"
        if dtype.kind == "c":
            way += ", if you do not need the imaginary parts"
    elif dtype.kind == "V":
        way = f"Use the field {array}[{dtype.names[0]!r}]" if dtype.names else f"Use {array}.view(np.uint8)"
    return CoefficientError(f"{name} has dtype {dtype}, and its values must be ints. {_EXACT} {way}.")


def _no_integer(name: str, x: Any, value: Any, are_coefficients: bool) -> CoefficientError:
    """Return the error for a value that is not an integer. The value is an entry of x, or x itself."""
    conversion = _conversion(value)
    if value is not x:
        flat = isinstance(x, Sequence) and not any(isinstance(v, (list, tuple, np.ndarray)) for v in x)
        way = f"[{conversion} for v in {name}]" if flat else f"{conversion} for each entry v"
        way = f"Use {way}" if conversion else _way_around(value, "entry")
        if are_coefficients and isinstance(value, float) and conversion:
            way += ", or ring.from_floats(x) to round all entries to the nearest integers"
    elif isinstance(x, (bytes, bytearray, memoryview)):
        way = f"Use list({name}) for one int per byte, or int.from_bytes({name}, 'little') for a single int"
    else:
        way = f"Use {conversion.replace('v', name, 1)}" if conversion else _way_around(value, name)
    kind, text = type(value).__name__, shown(value)
    is_short = len(text) <= 100 and "\n" not in text
    if value is x:
        what = f"{name}={text}" if is_short else name
    else:
        what = f"The entry {text} of {name}" if is_short else f"An entry of {name}"
    return CoefficientError(f"{what} is of type {kind}, and values must be ints. {_EXACT} {way}.")


def _conversion(value: Any) -> str:
    """Return a Python expression, for error messages, that makes an int of `value`.

    In the expression, `value` has the name v. Return "" if no expression is known.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "int.from_bytes(v, 'little')"
    if isinstance(value, (bool, np.bool_, str)) or hasattr(type(value), "__index__"):
        return "int(v)"
    if isinstance(value, (complex, np.complexfloating)):
        return "round(v.real)"
    if isinstance(value, (float, np.floating)) and not math.isfinite(value):
        return ""
    return "round(v)" if hasattr(type(value), "__round__") else ""


def _way_around(value: Any, name: str) -> str:
    """Return advice for a value that cannot become an int, as a sentence without its period."""
    if value is None:
        return "Replace None with an int, such as 0"
    if isinstance(value, (float, np.floating)):
        return "Replace this value, because NaN and infinity have no nearest integer"
    if isinstance(value, NotAnArray):
        return value._exits()
    if isinstance(value, Mapping):
        return f"Use a list of coefficients, such as [{name}.get(i, 0) for i in range(n)]"
    if isinstance(value, Set):
        return f"Use a list, such as sorted({name}), as a set has no order"
    if isinstance(value, Iterable):
        return f"Use list({name})"
    return "Give an int, a list of ints, or an array of an integer dtype"


def check_unmasked(x: object, name: str) -> None:
    """Raise CoefficientError if x is a masked array of NumPy."""
    masked = sys.modules.get("numpy.ma")  # None while numpy.ma is not imported: no masked array exists
    if masked and isinstance(x, masked.MaskedArray):
        raise CoefficientError(
            f"{name} is a masked array, and polygpu does not have masked entries. Use {name}.filled(0) or "
            f"{name}.data."
        )


def as_integers(x: object, name: str = "x", *, are_coefficients: bool = False) -> Array:
    """Return the integers x as an array in C order.

    An array of an integer dtype keeps its dtype. Python ints become int64 if all of them fit. Otherwise the
    result is an object array of Python ints.

    are_coefficients: whether the error for floats recommends `ring.from_floats`.

    Raises:
        CoefficientError: x holds something that is not an integer.
    """
    if type(x) is list or type(x) is tuple:
        small = _cpu.integers_of_list(x)
        if small is not None:
            return small
    if holds_poly(x):
        value = _value_in(x)
        raise CoefficientError(f"{name} must hold integers, not a {type(value).__name__}. {value._exits()}.")
    if isinstance(x, (bytes, bytearray, memoryview)):
        raise _no_integer(name, x, x, are_coefficients)
    check_unmasked(x, name)
    given, x = x, shared(x, name)
    if is_device_array(x):
        device_array: Any = x
        if device_array.dtype.kind not in "iu":
            raise _wrong_dtype(name, given, device_array.dtype, are_coefficients)
        return contiguous(device_array)
    if hasattr(x, "__cuda_array_interface__"):
        raise DeviceError(
            f"{name} is a GPU array of {type(x).__module__}, but it must be an array of CuPy. Use "
            f"cupy.asarray({name})."
        )
    if not isinstance(x, np.ndarray) and not isinstance(x, np.generic) and hasattr(x, "__array__"):
        x = np.asarray(x)
    if isinstance(x, (np.ndarray, np.generic)):
        array = np.asarray(x)
    else:
        # With dtype=object, entries keep their types. Without it, np.array would turn [True, 2] into ints and
        # [2**63, -1] into floats.
        try:
            array = np.array(x, dtype=object)
        except ValueError:
            raise CoefficientError(
                f"{name} is a ragged nested list. Pad its lists with zeros to one length."
            ) from None
    if array.dtype.kind in "iu":
        return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
    if array.dtype.kind != "O":
        if isinstance(x, np.generic):
            raise _no_integer(name, x, x, are_coefficients)
        raise _wrong_dtype(name, given, array.dtype, are_coefficients)
    if set(map(type, array.flat)) != {int}:
        for value in array.flat:
            if isinstance(value, (list, tuple, np.ndarray)):
                raise CoefficientError(
                    f"{name} is a ragged nested list. Pad its lists with zeros to one length."
                )
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise _no_integer(name, given, value, are_coefficients)
        array = np.array([int(value) for value in array.flat], dtype=object).reshape(array.shape)
    try:
        return array.astype(np.int64, order="C")
    except OverflowError:
        return array
