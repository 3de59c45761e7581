"""Device arrays. Like those of CuPy they are no `numpy.ndarray`, so that a mix of both is an error.

The values live in an `Allocation`; `_host` is the NumPy view of them that all operations go through.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import devices, streams
from .memory import Allocation, one_at_a_time


class MemoryPointer:
    """An address in an allocation, as `cupy.ndarray.data`."""

    def __init__(self, mem: Allocation, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device = devices.Device(mem.device)

    @property
    def device_id(self) -> int:
        return self.mem.device

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class Flags:
    """CuPy's three flags, and two that follow from them."""

    def __init__(self, flags: Any, owndata: bool) -> None:
        self.c_contiguous = bool(flags.c_contiguous)
        self.f_contiguous = bool(flags.f_contiguous)
        self.owndata = owndata
        self.forc = self.c_contiguous or self.f_contiguous
        self.fnc = self.f_contiguous and not self.c_contiguous

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self, name.lower()))


class ndarray:
    """A simulated device array."""

    __slots__ = ("__weakref__", "_host", "_memory", "base")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        dtype = np.dtype(dtype)
        if dtype.kind not in "biufc":
            raise ValueError(f"Unsupported dtype {dtype}")
        lengths = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        count = int(np.prod(lengths, dtype=np.int64))
        memory = memptr.mem if memptr else Allocation(count * dtype.itemsize, devices.current())
        offset = memptr.ptr - memptr.mem.ptr if memptr else 0
        if strides is None:
            host: Any = np.ndarray(lengths, dtype, memory.bytes, offset, order="F" if order == "F" else "C")
        else:
            host = np.ndarray(lengths, dtype, memory.bytes, offset, strides)
        self._memory: Allocation = memory
        self._host: np.ndarray[Any, Any] = host
        self.base: ndarray | None = None

    # ---- description ----

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    flags = property(lambda self: Flags(self._host.flags, self.base is None))
    device = property(lambda self: devices.Device(self._memory.device))

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(self._memory, self._address() - self._memory.ptr)

    def _address(self) -> int:
        return int(self._host.__array_interface__["data"][0]) if self.size else self._memory.ptr

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "strides": None if self._host.flags.c_contiguous else self.strides,
            "data": (self._address(), False),
            "stream": 1,
            "version": 3,
        }

    def __dlpack__(self, **_: object) -> Any:
        return self._host.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._memory.device  # kDLCUDA

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return elementwise(ufunc, *inputs, **keywords)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        from . import fake_cupy

        own = getattr(fake_cupy.cupy, function.__name__, None)
        return NotImplemented if own is None else own(*args, **kwargs)

    # ---- to and from the host ----

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        streams.require_no_capture()
        with one_at_a_time:
            if out is None:
                return self._host.copy(order="C" if order == "A" else order)  # type: ignore[arg-type]
            np.copyto(out, self._host, casting="no")
        return out

    def set(self, values: Any, stream: Any = None) -> None:
        if not isinstance(values, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError(
                f"{values.dtype} array of shape {values.shape} set to {self.dtype} of shape {self.shape}"
            )
        streams.submit(lambda: np.copyto(self._host, values))

    def item(self, *args: Any) -> Any:
        streams.require_no_capture()
        with one_at_a_time:
            return self._host.item(*args)

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self) -> bytes:
        return bytes(self.get().tobytes())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.get()[()])

    def __float__(self) -> float:
        return float(self.item())

    def __repr__(self) -> str:
        return repr(self._host)

    def __str__(self) -> str:
        return str(self._host)

    # ---- views ----

    def _view_of(self, host: Any) -> ndarray:
        view = ndarray.__new__(ndarray)
        view._host, view._memory = host, self._memory
        view.base = self if self.base is None else self.base
        return view

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> ndarray:
        if _is_basic(index):
            key = index if isinstance(index, tuple) else (index,)
            return self._view_of(self._host[key if Ellipsis in key else (*key, ...)])
        return compute(lambda: self._host[_host_index(index)], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        key, source = _host_index(index), operand(value)
        streams.submit(lambda: self._host.__setitem__(key, source))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        return wrap(self._host.reshape(*shape, order=order), self)  # type: ignore[call-overload]

    def ravel(self, order: str = "C") -> ndarray:
        return wrap(self._host.ravel(order), self)  # type: ignore[arg-type]

    def flatten(self, order: str = "C") -> ndarray:
        return compute(lambda: self._host.flatten(order), self)  # type: ignore[arg-type]

    def view(self, dtype: Any = None) -> ndarray:
        return self._view_of(self._host.view() if dtype is None else self._host.view(dtype))

    def transpose(self, *axes: Any) -> ndarray:
        return self._view_of(self._host.transpose(*axes))

    T = property(lambda self: self.transpose())

    def swapaxes(self, a: int, b: int) -> ndarray:
        return self._view_of(self._host.swapaxes(a, b))

    def squeeze(self, axis: Any = None) -> ndarray:
        return self._view_of(self._host.squeeze(axis))

    # ---- new arrays ----

    def copy(self, order: str = "C") -> ndarray:
        return compute(lambda: self._host.copy(order), self)  # type: ignore[arg-type]

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return compute(lambda: self._host.astype(dtype), self)

    def fill(self, value: Any) -> None:
        streams.submit(lambda: self._host.fill(operand(value)))

    def take(self, indices: Any, axis: int | None = None) -> ndarray:
        return compute(lambda: self._host.take(operand(indices), axis), self)

    def _reduce(self, name: str, *args: Any, **keywords: Any) -> ndarray:
        return compute(lambda: getattr(self._host, name)(*args, **keywords), self)

    def all(self, *args: Any, **keywords: Any) -> ndarray:
        return self._reduce("all", *args, **keywords)

    def any(self, *args: Any, **keywords: Any) -> ndarray:
        return self._reduce("any", *args, **keywords)

    def sum(self, *args: Any, **keywords: Any) -> ndarray:
        return self._reduce("sum", *args, **keywords)

    def min(self, *args: Any, **keywords: Any) -> ndarray:
        return self._reduce("min", *args, **keywords)

    def max(self, *args: Any, **keywords: Any) -> ndarray:
        return self._reduce("max", *args, **keywords)

    def argmax(self, *args: Any, **keywords: Any) -> ndarray:
        return self._reduce("argmax", *args, **keywords)


def operand(value: Any) -> Any:
    """What NumPy computes with for an operand of a device operation; host arrays are refused, as by CuPy."""
    if isinstance(value, ndarray):
        if value._memory.device != devices.current():
            raise ValueError(
                f"Array device must be same as the current device: array device = {value._memory.device} "
                f"while current = {devices.current()}"
            )
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, list | tuple):
        return type(value)(operand(v) for v in value)
    return value


def compute(function: Callable[[], Any], *sources: ndarray) -> ndarray:
    """A new device array with the values that `function` gives when the stream comes to it."""
    for source in sources:
        operand(source)
    with one_at_a_time:
        values = np.asarray(function())
        result = ndarray(values.shape, values.dtype)
        if streams.current_stream().is_capturing():
            streams.submit(lambda: np.copyto(result._host, function()))
        else:
            np.copyto(result._host, values)
    return result


def wrap(values: Any, *sources: ndarray) -> ndarray:
    """A view where the values lie in the memory of a source, else a new array."""
    for source in sources:
        if isinstance(values, np.ndarray) and (
            np.may_share_memory(values, source._memory.bytes)
            or (not values.size and len(sources) == 1)  # an empty part stays on the card of its source
        ):
            return source._view_of(values)
    return compute(lambda: values)


def elementwise(function: Callable[..., Any], *inputs: Any, out: Any = None, **keywords: Any) -> Any:
    hosts = [operand(value) for value in inputs]
    if out is None:
        return compute(lambda: function(*hosts, **keywords))
    target = out[0] if isinstance(out, tuple) else out
    if not isinstance(target, ndarray):
        raise TypeError("return arrays must be of ArrayType")
    host = operand(target)
    streams.submit(lambda: function(*hosts, out=host, **keywords))
    return target


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or (isinstance(part, slice | int | np.integer) and not isinstance(part, bool))
        for part in parts
    )


def _host_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_host_index(part) for part in index)
    # Index arrays of the host are allowed, as by CuPy: they are copied to the device.
    return index._host if isinstance(index, ndarray) else index


def _add_operators() -> None:
    binary = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "truediv": np.true_divide,
        "floordiv": np.floor_divide,
        "mod": np.remainder,
        "pow": np.power,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "lshift": np.left_shift,
        "rshift": np.right_shift,
        "matmul": np.matmul,
    }
    compare = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    unary = {"neg": np.negative, "invert": np.invert, "abs": np.absolute}

    def forward(function: np.ufunc) -> Any:
        return lambda self, other: elementwise(function, self, other)

    def reflected(function: np.ufunc) -> Any:
        return lambda self, other: elementwise(function, other, self)

    def in_place(function: np.ufunc) -> Any:
        return lambda self, other: elementwise(function, self, other, out=self)

    for name, function in (binary | compare).items():
        setattr(ndarray, f"__{name}__", forward(function))
    for name, function in binary.items():
        setattr(ndarray, f"__r{name}__", reflected(function))
        setattr(ndarray, f"__i{name}__", in_place(function))
    for name, function in unary.items():
        setattr(ndarray, f"__{name}__", lambda self, function=function: elementwise(function, self))


_add_operators()


ndarray.__module__ = "cupy"  # launch code recognises CuPy's arrays by it
