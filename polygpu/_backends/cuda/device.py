"""The GPU through CuPy: detection, copies of arrays, memory that outlives a call, recorded graphs.

Only this file imports CuPy.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from ..._core.locks import cached_property, new_lock
from ..._core.plans.basis import Handles
from ..._core.plans.cache import Calls
from ...errors import DeviceError, OutOfDeviceMemory
from .. import Array, Mark
from .words import Card

_LEAST_CAPABILITY = (7, 5)
_DRIVER = ("cuLaunchKernelEx", "cuMemsetD32Async", "cuGetErrorName", "cuGetErrorString")
# The driver's functions for graphs. Drivers for CUDA 12.3 or later have all of them.
_GRAPHS = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddDependencies_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
)
_PER_THREAD = 2  # the handle cudaStreamPerThread: a different stream in each thread
_NO_MEMORY, _CAPTURE = 2, range(900, 909)  # cudaError codes: out of memory; not allowed while recording
_LONGEST_STEP = 1 << 31  # a 2D copy needs rows that are less than this many bytes apart
_PEER_ALREADY = 704  # cudaError code: access to the other card's memory was enabled before
_RESERVE = 1 << 22  # bytes that a graph's pool gets in addition to 9/8 of the first run's memory
_LARGE_BYTES = 1 << 28  # the most bytes of large constants kept on the device
_SMALL_BYTES = 1 << 16  # constants up to this size are looked up by their bytes, larger ones by identity

_GUESTS = 64  # the most streams of other libraries that are remembered

_log = logging.getLogger("polygpu")
_numbers = itertools.count()
INSTALL = (
    'Use pip install "polygpu[cuda13]" (CUDA 13) or pip install "polygpu[cuda12]" (CUDA 12) to add CuPy.'
)


def _cupy() -> Any:
    """Import CuPy. If its folder for compiled kernels is not writable, let CuPy keep kernels in memory."""
    if "cupy" not in sys.modules and find_spec("cupy") is not None:
        folder = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
        try:
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            _log.info("compiled kernels are not kept: %s", error)
            os.environ["CUPY_CACHE_DIR"] = tempfile.gettempdir()  # read when CuPy is imported
            os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    import cupy

    return cupy


def absence(index: int) -> str | None:
    """Return why GPU `index` cannot be used and what to do, or None if it can be used."""
    try:
        cupy = _cupy()
    except ImportError as error:
        return f"CuPy cannot be imported ({error}). {INSTALL}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (
            f"No GPU answers ({error}). Check with nvidia-smi that the driver works and that CuPy fits the "
            f"driver. {INSTALL}"
        )
    if index >= count:
        return f"The number of GPUs is {count}, and the first is cuda:0."
    capability = _card(cupy, index).capability
    if capability < _LEAST_CAPABILITY:
        version = "{}.{}".format(*capability)
        return f"The compute capability of cuda:{index} is {version}, and kernels need at least 7.5."
    return None


def _card(cupy: Any, index: int) -> Card:
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    capability = properties["major"], properties["minor"]
    names = "sharedMemPerBlockOptin", "l2CacheSize", "multiProcessorCount", "totalGlobalMem"
    return Card(capability, *(properties[name] for name in names))


def count() -> int:
    """Return the number of GPUs."""
    found: int = _cupy().cuda.runtime.getDeviceCount()
    return found


def describe() -> str:
    """Return a line with the name and memory of each GPU, and the versions of CUDA and CuPy."""
    cupy = _cupy()
    runtime = cupy.cuda.runtime
    cards = []
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        memory = properties["totalGlobalMem"] / 2**30
        cards.append(f"cuda:{index} {properties['name'].decode()}, {memory:.0f} GiB")
    driver = runtime.driverGetVersion()
    return f"{'; '.join(cards)}; CUDA {driver // 1000}.{driver % 1000 // 10}, CuPy {cupy.__version__}"


# ---- memory that outlives a call ----


class Kept(list[Any]):
    """A list of the launches that a graph records, and of the arrays that they read.

    The graph keeps this list, so the arrays stay allocated. All launches are on `device`.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def check(self, device: str) -> None:
        """Raise DeviceError if `device` is not the device of the graph."""
        if device != self.device:
            raise DeviceError(
                f"{device} was used while {self.device} records a graph, and a graph holds the work of one "
                "device only. Call capture once for each device, with a function that uses only this "
                "device."
            )

    def take(self, memory: Any, size: int) -> None:
        """Do nothing: `memory` comes from the graph's own pool, which the graph keeps."""

    def refuse(self) -> None:
        """Do nothing: the CUDA graph records all work, even work that this Kept does not list."""


class Tape(Kept):
    """A list of the launches, allocations and arrays of one call, oldest first (see records.py).

    repeatable: whether the list is complete. If it is not, the call gets no record.
    """

    repeatable = True

    def check(self, device: str) -> None:
        """Set `repeatable` to False if `device` is not the device of the tape."""
        self.repeatable &= device == self.device

    def take(self, memory: Any, size: int) -> None:
        """Append a Taken for `memory`, which the recorded call allocated. size: bytes of `memory`."""
        self.append(Taken(memory.ptr, size))

    def refuse(self) -> None:
        """Set `repeatable` to False. Call this for work that a record cannot repeat."""
        self.repeatable = False


class Taken(NamedTuple):
    """An entry of a Tape: the recorded call allocated `size` bytes at `address`."""

    address: int
    size: int


class Launched(NamedTuple):
    """An entry of a Kept or a Tape: a prepared call was launched on operands at `addresses`."""

    steps: Sequence[Any]  # the launches, in the form that the native core takes (cpu/bindings/launches.hpp)
    addresses: Sequence[int]


@dataclass(frozen=True)
class Replay:
    """A recorded graph, as a function without arguments. It works on the arrays of the recording."""

    device: Any
    graph: Any
    kept: tuple[Any, ...]  # objects whose memory the graph reads or writes
    result: Any  # what the recorded function returned
    nbytes: int  # bytes of the memory pool that only this graph uses
    launches: int  # how many kernels of this library the graph launches

    def __call__(self) -> Any:
        """Launch the graph on the current stream. Return `result`, which the graph overwrites."""
        self.device.note(self)
        with self.device.device_scope():
            self.graph.launch()
        return self.result


class _Handle(NamedTuple):
    """The handle of another library's stream. It implements CUDA's stream protocol."""

    stream: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream  # version 0 of the protocol


# Whether this thread uses the stream and the memory of another library (Device.guest).
_is_guest: ContextVar[bool] = ContextVar("polygpu_guest", default=False)
# The list to which this thread's work is added: Kept for a graph, Tape for a record of a call, or None.
recording: ContextVar[Kept | None] = ContextVar("polygpu_recording", default=None)


@contextmanager
def aside() -> Iterator[None]:
    """Turn recording off inside a `with` block, for example to make a table for all later calls."""
    token = recording.set(None)
    try:
        yield
    finally:
        recording.reset(token)


def _check_not_captured(stream: Any, name: str) -> None:
    """Raise DeviceError if `stream` is recording a graph: new work would run only in replays."""
    if stream.is_capturing():
        raise DeviceError(
            f"f made a table or copied from the host while {name} recorded f. Calls such as poly(x) and "
            "poly.to() do this. Make every call of f do the same work, and make the arguments of f before "
            "you call capture."
        )


class _Recordings:
    """A context manager that encloses each recording of a graph. All threads share one object.

    While any thread records, CUDA forbids waiting for a device. So `kept` holds values that may be freed
    only after such a wait. Python's cycle collection is off while any thread records: it could free
    memory pools of earlier graphs, and the driver forbids this in a thread that records.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._threads: list[int] = []  # the thread of each recording
        self._collected = False  # whether the cycle collector was on before and must be turned on again
        self.kept: list[tuple[Any, Any]] = []  # values to free later, each with its device
        os.register_at_fork(after_in_child=self._forget_others)

    def _forget_others(self) -> None:
        """Forget the recordings of other threads. Python calls this in the child process after fork().

        The values in `kept` are not freed.
        """
        others, self._threads = self._threads, [x for x in self._threads if x == get_ident()]
        if others and not self._threads and self._collected:
            gc.enable()

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._collected = gc.isenabled()
                gc.disable()
            self._threads.append(get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads.remove(get_ident())
            if not self._threads:
                if self._collected:
                    gc.enable()
                for device in {device.id: device for _, device in self.kept}.values():
                    device.synchronize()
                self.kept.clear()

    def let_go(self, value: Any, device: Any) -> None:
        """Wait for the work on `device`, after which the caller can free `value`.

        If a graph is being recorded, do not wait. Instead keep `value` until no graph is being recorded.
        """
        with self._lock:
            if self._threads:
                self.kept.append((value, device))
            else:
                device.synchronize()


_recordings = _Recordings()


class Shared:
    """Arrays that are made once, on one stream (home), and read on any stream.

    Before a stream reads the arrays for the first time, the stream waits until they are made. When the
    arrays are freed, the home stream waits for all streams that read them. Then the pool of the home
    stream gets the memory.

    parts: other Shared objects that must be made before this one. Either this object's arrays contain the
    addresses of a part's arrays, or the part fills this object's arrays.

    fill: for a part that fills arrays of another object (Context.filling), the function that fills them;
    otherwise None. The first use on any stream calls `fill`, and then sets `value` of this object to None.
    launches: the launches that `fill` executes.
    """

    def __init__(
        self,
        value: Any,
        device: Any,
        stream: Any,
        parts: Sequence[Shared] = (),
        fill: Callable[[], None] | None = None,
        launches: Sequence[Any] = (),
    ) -> None:
        self.value, self._device, self._home, self._parts = value, device, stream, parts
        self._fill, self._launches = fill, launches
        self._made, self._maker = stream.record(), stream.ptr
        self.ready = False  # whether the arrays and all parts are made, so that no stream has to wait
        # Streams other than home that read the value, by handle. If one of these streams is unknown or was
        # deleted, _all_known becomes False, and __del__ waits for the whole device.
        self._readers: dict[int, ReferenceType[Any]] = {}
        self._all_known = True
        self._one_at_a_time = new_lock()

    def parts(self) -> Iterator[Shared]:
        """Yield the parts, and recursively the parts of each part."""
        for part in self._parts:
            yield part
            yield from part.parts()

    def pending(self) -> list[Any]:
        """Return the launches that the first use will execute, so that kernels can be compiled in advance."""
        return [*self._launches, *(launch for part in self._parts for launch in part.pending())]

    def on(self, stream: Any) -> Any:
        """Make `stream`, which must be the current stream, wait until the value is made. Return the value."""
        with self._one_at_a_time:
            for part in self._parts:
                part.on(stream)
            if not self.ready:
                _check_not_captured(stream, f"cuda:{self._device.id}")
                if stream.ptr != self._maker or stream.ptr == _PER_THREAD:
                    stream.wait_event(self._made)
                if self._fill is not None:
                    with self._device, aside():
                        self._fill()
                        self._made, self._maker = stream.record(), stream.ptr
                        # Below, the value is freed to the pool of the home stream. So the home stream waits
                        # for the launches of `fill`.
                        if stream.ptr != self._home.ptr:
                            self._home.wait_event(self._made)
                    self.value, self._fill, self._launches = None, None, ()
                self.settle()
            if stream.ptr != self._home.ptr:
                self._note(stream)
        recorded = recording.get()
        if recorded is not None:
            recorded.append(self)
        return self.value

    def follows(self, stream: Any) -> bool:
        """Return whether `stream` can use the value at once: the value is ready, or `stream` made it."""
        own = stream.ptr == self._maker == self._home.ptr != _PER_THREAD and self._fill is None
        return self.ready or (own and all(part.follows(stream) for part in self._parts))

    def settle(self) -> None:
        """Set `ready` to whether the GPU has finished the value and its parts.

        Do not call this while a graph is recorded.
        """
        self.ready = self._fill is None and self._made.done and all(part.ready for part in self._parts)

    def _note(self, stream: Any) -> None:
        if stream.ptr == _PER_THREAD:  # a different stream in each thread
            self._all_known = False
        elif (reader := self._readers.get(stream.ptr)) is None or reader() is not stream:
            living = {at: reader for at, reader in self._readers.items() if reader() is not None}
            self._all_known &= len(living) == len(self._readers)
            self._readers = {**living, stream.ptr: ref(stream)}

    def __del__(self) -> None:
        if self.value is not None and (self._readers or not self._all_known):
            try:  # when the process ends, CUDA and this module may already be unloaded
                with self._device:
                    readers = [stream for reader in self._readers.values() if (stream := reader())]
                    if self._all_known and len(readers) == len(self._readers):
                        for stream in readers:
                            self._home.wait_event(stream.record())
                    else:  # deleted streams, and graphs on any stream, may still read the value
                        _recordings.let_go(self.value, self._device)
            except Exception:
                pass


class _Identity:
    """A dictionary key that holds an object. Two keys are equal if they hold the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


class _Scope:
    """A `with` block that makes a device current and turns CUDA's errors into errors of polygpu.

    foreign: whether CuPy's own kernels run in the block. A record cannot repeat these kernels.
    """

    def __init__(self, name: str, cupy: Any, device: Any, foreign: bool) -> None:
        self._name, self._device, self._error = name, device, cupy.cuda.memory.OutOfMemoryError
        self._foreign = foreign
        self._runtime_error = cupy.cuda.runtime.CUDARuntimeError

    def __enter__(self) -> None:
        self._device.__enter__()
        if self._foreign and (noting := recording.get()) is not None:
            noting.refuse()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._device.__exit__(kind, error, trace)
        if error is None:
            return
        if isinstance(error, self._runtime_error):
            if error.status != _NO_MEMORY:
                raise DeviceError(f"{self._name} failed with {error}.") from error
            raise self.out_of_memory(error) from error
        if isinstance(error, self._error):
            raise self.out_of_memory(error) from error

    def out_of_memory(self, error: BaseException) -> OutOfDeviceMemory:
        """Return the error of polygpu that replaces an out-of-memory error of CuPy or CUDA."""
        return OutOfDeviceMemory(
            f"{self._name} is out of memory ({error}). Delete values that are no longer needed, use smaller "
            "batches, or free what CuPy keeps with cupy.get_default_memory_pool().free_all_blocks()."
        )


def _as_rows(x: Array, target: Array) -> tuple[int, int, int, int, int]:
    """Return how to copy x to `target`: (axes, rows, width, step of target, step of x).

    Both arrays have the same shape. For each index of the first `axes` axes, one call copies `rows` rows.
    Rows are dense in both arrays. width: bytes of a row. step: bytes from one row to the next. `rows` is
    1 if a step would be _LONGEST_STEP or more.
    """
    ends, axes, width = (target, x), x.ndim, x.dtype.itemsize
    while axes and (x.shape[axes - 1] == 1 or all(a.strides[axes - 1] == width for a in ends)):
        axes -= 1
        width *= x.shape[axes]
    if not axes or any(a.strides[axes - 1] >= _LONGEST_STEP for a in ends):
        return axes, 1, width, width, width
    steps = [a.strides[axes - 1] for a in ends]
    axes, rows = axes - 1, x.shape[axes - 1]
    while axes and all(a.strides[axes - 1] == rows * step for a, step in zip(ends, steps, strict=True)):
        axes -= 1
        rows *= x.shape[axes]
    return axes, rows, width, steps[0], steps[1]


# ---- the device ----


class Device:
    """One GPU: its properties, arrays, constants, streams and graphs."""

    def __init__(self, index: int) -> None:
        cupy = self.xp = _cupy()
        self.name = f"cuda:{index}"
        self.index = index
        self.card = _card(cupy, index)
        self.current_device = cupy.cuda.runtime.getDevice
        self.memory_error = cupy.cuda.memory.OutOfMemoryError
        self._device = cupy.cuda.Device(index)
        self.scope = _Scope(self.name, cupy, self._device, foreign=False)
        self._foreign_scope = _Scope(self.name, cupy, self._device, foreign=True)
        self._guests: dict[int, Any] = {}  # streams of other libraries, by handle
        self._lanes: dict[int, Any] = {}  # streams for copies, by the index of the target device
        self._constants, self._large_constants = Calls(), Calls(_LARGE_BYTES)

    @property
    def card(self) -> Card:
        """The properties of the GPU that decide which kernels are launched.

        Setting this property makes all prepared calls invalid.
        """
        return self._card

    @card.setter
    def card(self, card: Card) -> None:
        self._card = card
        self._records_key = f"{self.name} calls {next(_numbers)}"

    @cached_property
    def driver(self) -> dict[str, int]:
        """Return the addresses of the driver's functions for launches and graphs, by name.

        If the driver lacks a function for graphs, the result has no functions for graphs. Raises the
        errors of `libcuda`.
        """
        graphs = _GRAPHS if all(hasattr(self.libcuda, name) for name in _GRAPHS) else ()
        return {
            name: ctypes.cast(getattr(self.libcuda, name), ctypes.c_void_p).value or 0
            for name in (*_DRIVER, *graphs)
        }

    @cached_property
    def libcuda(self) -> ctypes.CDLL:
        """Load the library of CUDA's driver.

        Raises:
            DeviceError: the library is not found, or lacks a function that launches need.
        """
        path = os.environ.get("POLYGPU_LIBCUDA") or "libcuda.so.1"
        try:
            library = ctypes.CDLL(path)
            for name in _DRIVER:
                getattr(library, name)
            return library
        except (OSError, AttributeError) as error:
            raise DeviceError(
                f"{path} does not load for {self.name}, or it is too old ({error}). Set "
                "POLYGPU_LIBCUDA=/path/of/libcuda.so.1 to the library of a driver for CUDA 12 or later."
            ) from error

    # ---- streams and memory of other libraries ----

    @contextmanager
    def guest(
        self, stream: int, allocate: Callable[[int, int, int], int], free: Callable[[int], None]
    ) -> Iterator[None]:
        """Enter a block that uses the stream and the memory of another library. See base.py.

        Raises:
            DeviceError: `capture` is recording a graph.
        """
        if type(recording.get()) is Kept:
            raise DeviceError(
                f"{self.name} records a graph, and f calls an operator of another library, which works on "
                "that library's stream. Record such calls by that library's own graphs."
            )

        def malloc(size: int, index: int) -> int:
            try:
                return allocate(size, index, stream)
            except MemoryError as error:
                raise self.memory_error(size, 0) from error

        cuda = self.xp.cuda
        allocator = cuda.PythonFunctionAllocator(malloc, lambda address, index: free(address))
        token = _is_guest.set(True)
        try:
            with self.scope:
                # Keep one Stream object for each handle, because Shared compares these objects.
                if len(self._guests) >= _GUESTS:
                    self._guests.clear()
                known = self._guests.get(stream)
                if known is None:
                    made = cuda.Stream.from_external(_Handle(stream)) if stream else cuda.Stream.null
                    known = self._guests.setdefault(stream, made)
                with cuda.using_allocator(allocator.malloc), known:
                    yield
        finally:
            _is_guest.reset(token)

    # ---- copies between devices ----

    def mark(self) -> Mark:
        """Record an event on the current stream and return it. Raise DeviceError during a capture."""
        if self.is_recording():
            raise DeviceError(
                f"{self.name} cannot record a copy between devices. Make such copies outside capture."
            )
        self._refuse()
        with self.scope:
            return self.stream().record()

    def await_marks(self, marks: Iterable[Mark]) -> None:
        with self.scope:  # the default streams of all cards have one handle, so make this card current
            stream = self.stream()
            for mark in marks:
                stream.wait_event(mark)

    def send(self, x: Array, target: Array, after: Iterable[Mark]) -> Mark:
        """Copy x to `target` by copy engines. If both are on this card, copy by a kernel.

        A kernel reaches the memory bandwidth even if rows are short. Copy engines copy directly if
        the cards can access each other's memory.
        """
        runtime = self.xp.cuda.runtime
        to: int = target.data.device_id  # type: ignore[attr-defined]
        with self.scope:
            lane = self._lane_to(to)
            for mark in after:
                lane.wait_event(mark)
            if to == self.index:
                with lane:
                    target[...] = x
            elif x.size:
                axes, rows, width, to_step, step = _as_rows(x, target)
                for at in np.ndindex(x.shape[:axes]):
                    place, source = (
                        self.address(a) + sum(i * stride for i, stride in zip(at, a.strides, strict=False))
                        for a in (target, x)
                    )
                    if rows == 1:
                        runtime.memcpyAsync(place, source, width, runtime.memcpyDefault, lane.ptr)
                    else:
                        ends = place, to_step, source, step
                        runtime.memcpy2DAsync(*ends, width, rows, runtime.memcpyDefault, lane.ptr)
            return lane.record()

    def _lane_to(self, index: int) -> Any:
        """Return the stream for copies to card `index`.

        The first call enables access to that card's memory, if possible.
        """
        lane = self._lanes.get(index)
        if lane is None:
            runtime = self.xp.cuda.runtime
            if index != self.index and runtime.deviceCanAccessPeer(self.index, index):
                try:
                    runtime.deviceEnablePeerAccess(index)
                except runtime.CUDARuntimeError as error:
                    if error.status != _PEER_ALREADY:
                        raise
            lane = self._lanes.setdefault(index, self.xp.cuda.Stream(non_blocking=True))
        return lane

    # ---- arrays ----

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Allocate an array from CuPy's pool. Raise OutOfDeviceMemory if memory is short."""
        if self.current_device() != self.index:
            with self.scope:
                return self.empty(shape, dtype)
        try:
            array = self.xp.ndarray(shape, dtype)
        except self.memory_error as error:
            raise self.scope.out_of_memory(error) from error
        noting = recording.get()
        if noting is not None:
            noting.take(array.data, array.nbytes)
        return array  # type: ignore[no-any-return]

    def require(self, nbytes: int, hint: str) -> None:
        """Raise OutOfDeviceMemory if card and CuPy's pool together have fewer than `nbytes` bytes free.

        Inside `guest`, do nothing: only the other library knows how much memory is free.
        """
        if _is_guest.get():
            return
        with self.scope:
            pool = self.xp.get_default_memory_pool()
            free, limit = self._device.mem_info[0], pool.get_limit()
            if limit:
                free = min(free, limit - pool.total_bytes())
            free += pool.free_bytes()
        if nbytes > free:
            raise OutOfDeviceMemory(
                f"{self.name} needs {nbytes} bytes of memory for results and intermediate values, and {free} "
                f"are free. Nothing was done. {hint}, delete values that are no longer needed, or use "
                "smaller batches."
            )

    def _allocate(self, size: int) -> Any:
        """Allocate `size` bytes and return CuPy's pointer. This device must be the current one."""
        try:
            memory = self.xp.cuda.alloc(size)
        except self.memory_error as error:
            raise self.scope.out_of_memory(error) from error
        noting = recording.get()
        if noting is not None:
            noting.take(memory, size)
        return memory

    def to_host(self, x: Array) -> Array:
        """Wait for the work of the current stream, and return a copy of x in host memory."""
        self._refuse()
        return self.xp.asnumpy(x)  # type: ignore[no-any-return]

    def from_host(self, x: Array) -> Array:
        """Copy x to the card. Raise DeviceError while a graph is recorded."""
        self._refuse()
        return self._uploaded(x)

    def _uploaded(self, x: Array) -> Array:
        with self.scope:
            _check_not_captured(self.stream(), self.name)
            return self.xp.asarray(x)  # type: ignore[no-any-return]

    def _refuse(self) -> None:
        """Call refuse() of the current recording, if there is one."""
        noting = recording.get()
        if noting is not None:
            noting.refuse()

    def constant(self, x: Array) -> Array:
        """Return a copy of x on the card.

        Arrays of up to _SMALL_BYTES bytes share one copy if their values are equal. A larger
        read-only array has one copy for all calls with the same object x. A larger writeable array is
        copied in each call.
        """
        if x.nbytes <= _SMALL_BYTES:
            known: Calls = self._constants
            key: tuple[Any, ...] = x.dtype.str, x.shape, x.tobytes()
        elif x.flags.writeable:
            return self.from_host(x)
        else:
            known, key = self._large_constants, (_Identity(x),)
        shared = known.get(key)
        if shared is None:
            shared = self.share(self._uploaded(x))
            known.store(key, shared, x.nbytes)
        copy: Array = shared.on(self.stream())
        self.note(copy)
        return copy

    def note(self, x: Any) -> None:
        """Let the graph or record that is being made keep x alive. If none is being made, do nothing."""
        noting = recording.get()
        if noting is not None:
            noting.append(x)

    def stream(self) -> Any:
        return self.xp.cuda.get_current_stream(self.index)

    def address(self, x: Array) -> int:
        return int(x.data.ptr)  # type: ignore[attr-defined]

    def device_scope(self, views: bool = False) -> AbstractContextManager[Any]:
        return self.scope if views else self._foreign_scope

    def kept(self, handles: Handles, key: str, make: Callable[[], tuple[Any, Sequence[Shared]]]) -> Shared:
        """Return what `handles` stores for this device under `key`.

        If nothing is stored, call `make` for a value and its parts (see Shared), and store them.
        """
        key = f"{self.name} {key}"
        shared = handles.get(key)
        if shared is None:
            _check_not_captured(self.stream(), self.name)
            with self.scope, aside():
                made = self.share(*make())
            shared = handles.setdefault(key, made)  # if another thread was faster, use its value
        return shared  # type: ignore[no-any-return]

    def share(self, value: Any, parts: Sequence[Shared] = ()) -> Shared:
        return Shared(value, self._device, self.stream(), parts)

    def is_recording(self) -> bool:
        noting = recording.get()
        return (noting is not None and type(noting) is not Tape) or self.stream().is_capturing()

    def _reserve(self, pool: Any) -> None:
        """Replace the free blocks of a pool by one block: 9/8 of the pool's size, plus _RESERVE bytes.

        The driver allocates no memory while work is recorded. The recorded run may need other sizes
        than the first run, and the pool can cut the block into pieces of any size.
        """
        taken = pool.total_bytes()
        pool.free_all_blocks()
        with suppress(self.memory_error):  # if that is too much memory, the pool may still get what it needs
            pool.malloc(taken + (taken >> 3) + _RESERVE)

    def capture(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """Record a CUDA graph. Its memory comes from a pool that only this graph uses."""
        cuda = self.xp.cuda
        if self.is_recording():
            raise DeviceError(
                f"{self.name} is already recording a graph, so capture cannot begin. Call f itself in the "
                "function that is being recorded, or call capture(f, ...) before that recording begins."
            )
        with self.scope:
            pool, stream, recorded = cuda.MemoryPool(), cuda.Stream(non_blocking=True), Kept(self.name)
            stream.wait_event(cuda.get_current_stream().record())
            token = recording.set(recorded)
            try:
                with _recordings, cuda.using_allocator(pool.malloc), stream:
                    try:
                        f()  # the first run compiles kernels, makes tables and fills the pool
                    finally:
                        stream.synchronize()
                    for x in recorded:
                        if isinstance(x, Shared):
                            x.settle()
                    self._reserve(pool)
                    before = len(recorded)
                    # In this mode other threads may allocate memory during the recording.
                    stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
                    try:
                        result = f()
                    except BaseException as error:
                        with suppress(cuda.runtime.CUDARuntimeError):  # f may have ended the recording
                            stream.end_capture()
                        cause = error.__cause__ if isinstance(error, DeviceError) else error
                        by_cupy = type(cause) is RuntimeError and "capturing" in str(cause)
                        by_cuda = (
                            isinstance(cause, cuda.runtime.CUDARuntimeError) and cause.status in _CAPTURE
                        )
                        if by_cupy or by_cuda:
                            raise DeviceError(
                                f"{self.name} cannot record f ({cause}). While f is recorded, f must not "
                                "wait for the GPU or read values back to the host. norm, ==, verify() and "
                                "operations with a modulus above 2^64 do this. "
                                "Do such steps after the recorded call, with the result of f."
                            ) from cause
                        raise
                    graph = stream.end_capture()
            finally:
                recording.reset(token)
            kept, nbytes = (f, pool, stream, recorded), pool.total_bytes()
            launches = sum(len(x.steps) for x in recorded[before:] if isinstance(x, Launched))
        return Replay(self, graph, kept, result, nbytes, launches)
