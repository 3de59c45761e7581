"""The GPU through CuPy: detection, copies of arrays, memory that outlives a call, recorded graphs.

The one file that imports CuPy.
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
# Those that make graphs; drivers for CUDA 12.3 and later have them all.
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
_PER_THREAD = 2  # the handle that names a different stream in each thread (cudaStreamPerThread)
_NO_MEMORY, _CAPTURE = 2, range(900, 909)  # of cudaError: out of memory; calls that a recording forbids
_LONGEST_STEP = 1 << 31  # bytes from row to row of a copy
_PEER_ALREADY = 704  # of cudaError: the other card's memory was reachable before
_RESERVE = 1 << 22  # bytes that a graph's pool has more than its first run took
_LARGE_BYTES = 1 << 28  # of constants that are known by identity, together
_SMALL_BYTES = 1 << 16  # host arrays up to this size are kept on the device by value, larger ones by identity

_log = logging.getLogger("polygpu")
_numbers = itertools.count()
INSTALL = 'pip install "polygpu[cuda13]" (CUDA 13) or pip install "polygpu[cuda12]" (CUDA 12) adds CuPy'


def _cupy() -> Any:
    """CuPy; it keeps compiled kernels on disk, or in memory where its folder cannot be made or written."""
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
    """Return why GPU `index` cannot be used, and what to do, or None if it can be used."""
    try:
        cupy = _cupy()
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); {INSTALL}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU answers ({error}); check the driver with nvidia-smi, and that CuPy fits it: {INSTALL}"
    if index >= count:
        return f"there are {count} GPUs, numbered from 0"
    capability = _card(cupy, index).capability
    if capability < _LEAST_CAPABILITY:
        return "its compute capability is {}.{}, kernels need 7.5 or more".format(*capability)
    return None


def _card(cupy: Any, index: int) -> Card:
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    capability = properties["major"], properties["minor"]
    names = "sharedMemPerBlockOptin", "l2CacheSize", "multiProcessorCount", "totalGlobalMem"
    return Card(capability, *(properties[name] for name in names))


def count() -> int:
    """How many GPUs there are."""
    found: int = _cupy().cuda.runtime.getDeviceCount()
    return found


def describe() -> str:
    """Describe the GPUs that answer, with the versions of CUDA and CuPy."""
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
    """What calls read while a graph is recorded, for the graph to keep, and their launches.

    All are on one device.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def check(self, device: str) -> None:
        """Raise where another device works: its work would not be in the graph."""
        if device != self.device:
            raise DeviceError(
                f"{device}: works while {self.device} records; a graph holds the work of one device, so "
                "capture what each of several devices does alone"
            )

    def take(self, memory: Any, size: int) -> None:
        """Note that a call takes memory, of which the graph's pool knows."""

    def refuse(self) -> None:
        """Note work that is no launch of this library; the graph holds it."""


class Tape(Kept):
    """What a call does, in order, for its record (records.py): launches, memory that it takes, what it reads.

    repeatable: whether this is all that it does.
    """

    repeatable = True

    def check(self, device: str) -> None:
        """Note that another device works; its work is no part of the record."""
        self.repeatable &= device == self.device

    def take(self, memory: Any, size: int) -> None:
        """Note that the call takes memory."""
        self.append(Taken(memory.ptr, size))

    def refuse(self) -> None:
        """Note work that is no launch of this library, or that a later call need not do."""
        self.repeatable = False


class Taken(NamedTuple):
    """Memory that a call takes, by its address and size."""

    address: int
    size: int


class Launched(NamedTuple):
    """Launches that were made while work was recorded: a prepared call, and its operands' addresses."""

    steps: Sequence[Any]  # as the native core takes them (cpu/bindings/launches.hpp)
    addresses: Sequence[int]


@dataclass(frozen=True)
class Replay:
    """A graph that is launched on the arrays it was recorded with."""

    device: Any
    graph: Any
    kept: tuple[Any, ...]  # all that the graph reads and writes
    result: Any
    nbytes: int  # of the memory that is the graph's alone
    launches: int  # of kernels of this library

    def __call__(self) -> Any:
        """Launch on the current stream; returns the result of the recorded f, overwritten."""
        self.device.note(self)
        with self.device.device_scope():
            self.graph.launch()
        return self.result


# What notes the work of this thread: for a graph, or for the record of a call.
recording: ContextVar[Kept | None] = ContextVar("polygpu_recording", default=None)


@contextmanager
def aside() -> Iterator[None]:
    """Inside a `with`, work is not noted: it is done once, for this and all later calls."""
    token = recording.set(None)
    try:
        yield
    finally:
        recording.reset(token)


def _check_not_captured(stream: Any, name: str) -> None:
    """Raise DeviceError if a graph is being recorded: work queued now would run only in its replays."""
    if stream.is_capturing():
        raise DeviceError(
            f"{name}: no table is made and nothing copied from the host while work is recorded; f did in its "
            "second run what it had not done in its first, or copies (poly(x) and poly.to() do); let it do "
            "the same at each call, on values that are there"
        )


class _Recordings:
    """The number of graphs being recorded: meanwhile no device may be waited for, and values are kept.

    Python's automatic cycle collection is off too. It would free the pools of earlier graphs, which the
    driver does not allow in a thread that records.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._threads: list[int] = []  # one entry for each recording: the thread that records
        self._collected = False  # whether the cycle collector is to be turned on again
        self.kept: list[tuple[Any, Any]] = []
        os.register_at_fork(after_in_child=self._forget_others)

    def _forget_others(self) -> None:
        """Drop the recordings of threads that a child of fork() does not have; free no device memory."""
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
        """Keep a value until all work on the device that reads it is done."""
        with self._lock:
            if self._threads:
                self.kept.append((value, device))
            else:
                device.synchronize()


_recordings = _Recordings()


class Shared:
    """Arrays made once, on one stream, and read on any.

    A stream that reads them first waits until they and their parts are made: arrays that they point to, and
    work that fills them. Their memory goes back to the first stream's pool; before it is used again, that
    stream waits for all other readers.

    `fill` makes `launches` once, before the first use on any stream; until then their kernels can be
    compiled. Afterwards the launches and the value are dropped.
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
        self.ready = False  # whether all is made: then no stream has to wait
        # Streams other than the first that read the value. A stream that is gone cannot be waited for: then
        # the device is.
        self._readers: dict[int, ReferenceType[Any]] = {}
        self._all_known = True
        self._one_at_a_time = new_lock()

    def parts(self) -> Iterator[Shared]:
        """All its parts, and theirs."""
        for part in self._parts:
            yield part
            yield from part.parts()

    def pending(self) -> list[Any]:
        """Return the launches that the first use will make, with those of the parts."""
        return [*self._launches, *(launch for part in self._parts for launch in part.pending())]

    def on(self, stream: Any) -> Any:
        """Return the value for work on a stream, the current one, and let it wait until the value is made."""
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
                        if stream.ptr != self._home.ptr:  # the memory that filling read goes to home's pool
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
        """Whether work queued on a stream runs after the value is made, without a wait."""
        own = stream.ptr == self._maker == self._home.ptr != _PER_THREAD and self._fill is None
        return self.ready or (own and all(part.follows(stream) for part in self._parts))

    def settle(self) -> None:
        """Set `ready` once all is made; not to be called while a graph is recorded."""
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
            try:  # at the end of the process CUDA may be gone, and this module's names
                with self._device:
                    readers = [stream for reader in self._readers.values() if (stream := reader())]
                    if self._all_known and len(readers) == len(self._readers):
                        for stream in readers:
                            self._home.wait_event(stream.record())
                    else:  # streams that are gone, and graphs on any stream, may still read it
                        _recordings.let_go(self.value, self._device)
            except Exception:
                pass


class _Identity:
    """A key that is the object itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


class _Scope:
    """Enters a device, and names it in CUDA's errors.

    foreign: what is done inside is work of CuPy's, of which a record of a call knows nothing.
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
                raise DeviceError(f"{self._name}: {error}") from error
            raise self.out_of_memory(error) from error
        if isinstance(error, self._error):
            raise self.out_of_memory(error) from error

    def out_of_memory(self, error: BaseException) -> OutOfDeviceMemory:
        """Return the library's error for CuPy's."""
        return OutOfDeviceMemory(
            f"{self._name}: {error}; delete values that are no longer needed, take smaller batches, "
            "or give back what CuPy keeps with cupy.get_default_memory_pool().free_all_blocks()"
        )


def _as_rows(x: Array, target: Array) -> tuple[int, int, int, int, int]:
    """How to copy x to target, of the same shape: (axes, rows, width, target's step, x's step).

    There is one copy for each index of the first `axes` axes. It has `rows` rows of `width` bytes, which lie
    the given bytes apart. A row is dense in both arrays; rows at equal steps go in one copy where a copy
    engine takes the step.
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
    """One GPU: its card, arrays, constants, streams and graphs."""

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
        self._lanes: dict[int, Any] = {}  # streams of copies, by the card that they go to
        self._constants, self._large_constants = Calls(), Calls(_LARGE_BYTES)

    @property
    def card(self) -> Card:
        """The card, on which the choice of launches depends; calls prepared for another one are not found."""
        return self._card

    @card.setter
    def card(self, card: Card) -> None:
        self._card = card
        self._records_key = f"{self.name} calls {next(_numbers)}"

    @cached_property
    def driver(self) -> dict[str, int]:
        """Return the addresses of libcuda's functions for launches, by name.

        It raises DeviceError as `libcuda` does.
        """
        graphs = _GRAPHS if all(hasattr(self.libcuda, name) for name in _GRAPHS) else ()
        return {
            name: ctypes.cast(getattr(self.libcuda, name), ctypes.c_void_p).value or 0
            for name in (*_DRIVER, *graphs)
        }

    @cached_property
    def libcuda(self) -> ctypes.CDLL:
        """CUDA's driver.

        Raises:
            DeviceError: it is not found, or lacks what launches need.
        """
        path = os.environ.get("POLYGPU_LIBCUDA") or "libcuda.so.1"
        try:
            library = ctypes.CDLL(path)
            for name in _DRIVER:
                getattr(library, name)
            return library
        except (OSError, AttributeError) as error:
            raise DeviceError(
                f"{self.name}: {path} does not load or is too old: {error}; "
                "POLYGPU_LIBCUDA=/path/of/libcuda.so.1 names another, of a driver for CUDA 12 or later"
            ) from error

    # ---- beside other cards ----

    def mark(self) -> Mark:
        """Record an event; raise DeviceError in a recording."""
        if self.is_recording():
            raise DeviceError(f"{self.name}: copies between devices are not recorded; make them outside")
        self._refuse()
        with self.scope:
            return self.stream().record()

    def await_marks(self, marks: Iterable[Mark]) -> None:
        with self.scope:  # each card's default stream has the same handle: enter this card
            stream = self.stream()
            for mark in marks:
                stream.wait_event(mark)

    def send(self, x: Array, target: Array, after: Iterable[Mark]) -> Mark:
        """Copy from card to card by the copy engines, straight where the cards are linked.

        On one card a kernel copies, at the speed of memory whatever the rows.
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
        """Return the stream of copies to another card, and let this card access its memory if it can."""
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
        """Take memory from CuPy's pool; raise OutOfDeviceMemory where it does not fit."""
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
        """Raise OutOfDeviceMemory if the card and CuPy's pool have less than `nbytes` bytes together."""
        with self.scope:
            pool = self.xp.get_default_memory_pool()
            free, limit = self._device.mem_info[0], pool.get_limit()
            if limit:
                free = min(free, limit - pool.total_bytes())
            free += pool.free_bytes()
        if nbytes > free:
            raise OutOfDeviceMemory(
                f"{self.name}: {nbytes} bytes of memory are needed for results and intermediate values, and "
                f"{free} are free. Nothing was done. {hint}, delete values that are no longer needed, or "
                "take smaller batches"
            )

    def _allocate(self, size: int) -> Any:
        """CuPy's pointer to `size` bytes on the current device, which is this one."""
        try:
            memory = self.xp.cuda.alloc(size)
        except self.memory_error as error:
            raise self.scope.out_of_memory(error) from error
        noting = recording.get()
        if noting is not None:
            noting.take(memory, size)
        return memory

    def to_host(self, x: Array) -> Array:
        """Copy to host memory, which waits for the stream."""
        self._refuse()
        return self.xp.asnumpy(x)  # type: ignore[no-any-return]

    def from_host(self, x: Array) -> Array:
        """Copy to the card; raise DeviceError in a recording."""
        self._refuse()
        return self._uploaded(x)

    def _uploaded(self, x: Array) -> Array:
        with self.scope:
            _check_not_captured(self.stream(), self.name)
            return self.xp.asarray(x)  # type: ignore[no-any-return]

    def _refuse(self) -> None:
        """Note work that no record of a call can repeat."""
        noting = recording.get()
        if noting is not None:
            noting.refuse()

    def constant(self, x: Array) -> Array:
        """Copy once: small arrays are known by value, large read-only ones by identity."""
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
        """Let the graph or the record keep x, where work is noted."""
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
        """Return the value of a plan's handles for this device.

        If there is none yet, `make` gives it and its parts.
        """
        key = f"{self.name} {key}"
        shared = handles.get(key)
        if shared is None:
            _check_not_captured(self.stream(), self.name)
            with self.scope, aside():
                made = self.share(*make())
            shared = handles.setdefault(key, made)  # another thread may have been faster
        return shared  # type: ignore[no-any-return]

    def share(self, value: Any, parts: Sequence[Shared] = ()) -> Shared:
        return Shared(value, self._device, self.stream(), parts)

    def is_recording(self) -> bool:
        noting = recording.get()
        return (noting is not None and type(noting) is not Tape) or self.stream().is_capturing()

    def _reserve(self, pool: Any) -> None:
        """Give a pool one free block as large as all its memory, and an eighth more.

        While work is recorded the driver gives no memory. The second run of a function may take memory in
        other sizes than the first, in which calls were recorded, and pieces of one block serve any sizes.
        """
        taken = pool.total_bytes()
        pool.free_all_blocks()
        with suppress(self.memory_error):  # then the pieces of before may still do
            pool.malloc(taken + (taken >> 3) + _RESERVE)

    def capture(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """Record a CUDA graph, with a memory pool of its own that no other call can reuse."""
        cuda = self.xp.cuda
        if self.is_recording():
            raise DeviceError(
                f"{self.name}: capture inside a recording; call f itself there, or record it before"
            )
        with self.scope:
            pool, stream, recorded = cuda.MemoryPool(), cuda.Stream(non_blocking=True), Kept(self.name)
            stream.wait_event(cuda.get_current_stream().record())
            token = recording.set(recorded)
            try:
                with _recordings, cuda.using_allocator(pool.malloc), stream:
                    try:
                        f()  # a first time, to compile kernels, make tables and fill the pool
                    finally:
                        stream.synchronize()
                    for x in recorded:
                        if isinstance(x, Shared):
                            x.settle()
                    self._reserve(pool)
                    before = len(recorded)
                    # Other threads may allocate meanwhile.
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
                                f"{self.name}: {cause}; f must not wait or read values back while it is "
                                "recorded (norm, ==, verify(), a modulus above 2^64); do that with its result"
                            ) from cause
                        raise
                    graph = stream.end_capture()
            finally:
                recording.reset(token)
            kept, nbytes = (f, pool, stream, recorded), pool.total_bytes()
            launches = sum(len(x.steps) for x in recorded[before:] if isinstance(x, Launched))
        return Replay(self, graph, kept, result, nbytes, launches)
