"""A module object that stands in for `cupy`: arrays of `arrays.py`, kernels run by the simulator.

It has what launch code of a library plausibly needs. Anything else raises AttributeError with the name, so
that what is missing here is not taken for what is missing in CuPy.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from . import arrays, compiler, cublas, devices, driver, launch, memory, settings, streams
from .arrays import ndarray
from .cards import CARDS, Card

_active = settings.from_environment()


# ---- kernels ----


class RawModule:
    """Stands for `cupy.RawModule`: compiled once for each compute capability, when a kernel is asked for."""

    def __init__(
        self,
        *,
        code: str | None = None,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
        jitify: bool = False,
    ) -> None:
        if code is None:
            raise NotImplementedError("the simulator needs source code: it cannot run cubin or PTX")
        if not isinstance(options, tuple):
            raise TypeError(
                f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})"
            )
        self.code = code
        self.options = options
        self.enable_cooperative_groups = enable_cooperative_groups
        self.name_expressions = None if name_expressions is None else tuple(name_expressions)
        self._compiled: dict[tuple[int, int], compiler.CompiledModule] = {}

    def compile(self, log_stream: Any = None) -> None:
        self._module()

    def _module(self) -> compiler.CompiledModule:
        capability = devices.card(devices.current()).compute_capability
        if capability not in self._compiled:
            try:
                self._compiled[capability] = compiler.compile_module(
                    self.code, self.options, self.name_expressions or (), capability
                )
            except compiler.CompileError as error:
                raise CompileException(str(error), self.code, "default_program", self.options) from error
        return self._compiled[capability]

    def get_function(self, name: str) -> RawKernel:
        kernel = RawKernel.__new__(RawKernel)
        kernel._set_up(self, name)
        kernel._entry()
        return kernel


class RawKernel:
    """Stands for `cupy.RawKernel`; also what `RawModule.get_function` returns."""

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool = False,
    ) -> None:
        module = RawModule(
            code=code, options=options, backend=backend, enable_cooperative_groups=enable_cooperative_groups
        )
        self._set_up(module, name)

    def _set_up(self, module: RawModule, name: str) -> None:
        self.name = self.__name__ = name
        self._module = module
        self._entries: dict[tuple[int, int], launch.Entry] = {}
        self._functions: dict[int, driver.Function] = {}
        self._dynamic_limits: dict[int, int] = {}

    def compile(self, log_stream: Any = None) -> None:
        self._entry()

    def _entry(self) -> launch.Entry:
        capability = devices.card(devices.current()).compute_capability
        if capability not in self._entries:
            compiled = self._module._module()
            if self.name not in compiled.kernels:
                known = ", ".join(compiled.kernels) or "none"
                raise launch.CUDADriverError(
                    500, "CUDA_ERROR_NOT_FOUND", f"named symbol not found: {self.name} (kernels: {known})"
                )
            self._entries[capability] = launch.Entry(compiled, self.name)
        return self._entries[capability]

    @property
    def kernel(self) -> driver.Function:
        """The driver's function on the current device."""
        device = devices.current()
        if device not in self._functions:
            self._functions[device] = driver.Function(self, self._entry(), device)
        return self._functions[device]

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: streams.Stream | None = None,
        enable_cooperative_groups: bool | None = None,
    ) -> None:
        device = devices.current()
        cooperative = self._module.enable_cooperative_groups
        if enable_cooperative_groups is not None:
            cooperative = enable_cooperative_groups
        prepared = launch.Launch(
            entry=self._entry(),
            card=devices.card(device),
            device=device,
            grid=grid,
            block=block,
            arguments=args,
            shared_mem=int(shared_mem),
            max_dynamic_shared=self.max_dynamic_shared_size_bytes,
            cooperative=cooperative,
        )
        target = stream or streams.current_stream()
        target._run(lambda: prepared.run(_active))

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        device = devices.current()
        return self._dynamic_limits.get(device, devices.card(device).shared_per_block)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        card = devices.card(devices.current())
        if not 0 <= size <= card.shared_per_block_optin:
            raise launch.invalid_value(
                f"max_dynamic_shared_size_bytes = {size}: {card.name} has {card.shared_per_block_optin}"
            )
        self._dynamic_limits[devices.current()] = int(size)

    # What ptxas would say; the simulator does not know it.
    num_regs = 32
    shared_size_bytes = 0
    local_size_bytes = 0


class CompileException(Exception):
    """Stands for `cupy.cuda.compiler.CompileException`."""

    def __init__(
        self, message: str, source: str, name: str, options: Sequence[str], backend: str = "nvrtc"
    ) -> None:
        super().__init__(message)
        self.source = source
        self.name = name
        self.options = options
        self.backend = backend


# ---- arrays ----


def _to_device(values: Any, dtype: Any = None, copy: bool = True, order: str = "C") -> ndarray:
    if isinstance(values, ndarray):
        same = dtype is None or values.dtype == np.dtype(dtype)
        if same and not copy:
            return values
        return values.copy() if dtype is None else values.astype(dtype)
    if isinstance(values, list | tuple) and any(isinstance(v, ndarray) for v in values):
        result: ndarray = _delegate(np.stack)(list(values))
        return result if dtype is None else result.astype(dtype)
    host = np.array(values, dtype, order=order if order in ("C", "F") else "C")  # type: ignore[call-overload]
    result = ndarray(host.shape, host.dtype)
    result._memory.written_by_host()
    streams.submit(lambda: np.copyto(result._host, host))
    return result


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype, order=order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    result = ndarray(shape, np.array(fill_value).dtype if dtype is None else dtype, order=order)
    result.fill(fill_value)
    return result


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 0, dtype, order)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype, order)


def _like(make: Callable[..., ndarray]) -> Any:
    def like(
        a: ndarray, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
    ) -> ndarray:
        return make(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)

    return like


def full_like(a: ndarray, fill_value: Any, dtype: Any = None, **_: Any) -> ndarray:
    return full(a.shape, fill_value, a.dtype if dtype is None else dtype)


def array(values: Any, dtype: Any = None, copy: bool = True, order: str = "K", **_: Any) -> ndarray:
    return _to_device(values, dtype, copy, order)


def asarray(values: Any, dtype: Any = None, order: Any = None, **_: Any) -> ndarray:
    return _to_device(values, dtype, copy=False)


def ascontiguousarray(values: Any, dtype: Any = None) -> ndarray:
    result = asarray(values, dtype)
    return result if result.flags.c_contiguous else result.copy()


def asnumpy(
    values: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> Any:
    if isinstance(values, ndarray):
        return values.get(order=order, out=out)
    return np.array(values, copy=None, order="F" if order == "F" else "C")


def arange(*args: Any, dtype: Any = None) -> ndarray:
    return _to_device(np.arange(*args, dtype=dtype))


def copyto(target: ndarray, source: Any, casting: Any = "same_kind", where: Any = None) -> None:
    if not isinstance(target, ndarray):
        raise TypeError(f"dst must be cupy.ndarray, not {type(target)}")
    host, values = target._host, arrays.operand(source)
    mask = True if where is None else arrays.operand(where)
    streams.submit(lambda: np.copyto(host, values, casting=casting, where=mask))


def shares_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    return np.shares_memory(arrays.operand(a), arrays.operand(b))


def may_share_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    return np.may_share_memory(arrays.operand(a), arrays.operand(b))


def from_dlpack(source: Any, **_: Any) -> ndarray:
    if isinstance(source, ndarray):
        return source.view()
    device = source.__dlpack_device__()
    if device[0] not in (2, 13):
        raise TypeError(f"CPU arrays cannot be directly imported to CuPy (DLPack device {device})")
    return _to_device(np.from_dlpack(source))


def _delegate(function: Any) -> Any:
    """A function of NumPy on device arrays: views stay views, all else is a new device array."""

    def on_device(*args: Any, **keywords: Any) -> Any:
        def collect(value: Any) -> Iterator[ndarray]:
            if isinstance(value, ndarray):
                yield value
            elif isinstance(value, list | tuple):
                for part in value:
                    yield from collect(part)

        out = keywords.pop("out", None)
        hosts = [arrays.operand(a) for a in args]
        named = {k: arrays.operand(v) for k, v in keywords.items()}
        if out is not None:
            return arrays.elementwise(lambda out: np.copyto(out, function(*hosts, **named)), out=out)
        values = function(*hosts, **named)
        sources = [*collect(args), *collect(tuple(keywords.values()))]
        if isinstance(values, tuple | list):
            return type(values)(arrays.wrap(v, *sources) for v in values)
        if any(
            isinstance(values, np.ndarray) and np.may_share_memory(values, s._memory.bytes) for s in sources
        ):
            return arrays.wrap(values, *sources)
        return arrays.compute(lambda: function(*hosts, **named))

    on_device.__name__ = function.__name__
    return on_device


_DELEGATED = """
    add multiply remainder power negative abs right_shift bitwise_count equal isfinite minimum where
    rint floor ceil round sqrt exp sin cos conj real imag angle sum prod max min any all argmax mean
    cumsum array_equal allclose concatenate stack split moveaxis swapaxes diagonal transpose
    broadcast_to broadcast_arrays reshape ravel roll repeat tile pad take sort unique matmul dot
    einsum outer argwhere
""".split()  # noqa: SIM905
_FFT = ["fft", "ifft", "rfft", "irfft", "fftshift"]


# ---- the module ----


def allocated(size: int) -> arrays.MemoryPointer:
    """Stands for `cupy.cuda.alloc`: memory of the current pool, which may keep it."""
    return arrays.MemoryPointer(memory.Allocation(size, devices.current()), 0)


class MemoryPool:
    """Stands for `cupy.cuda.MemoryPool`.

    It keeps all that was allocated from it, since a graph that was recorded meanwhile uses that memory again.
    Memory that it keeps serves no other allocation. The default pool keeps nothing.
    """

    def __init__(self) -> None:
        self.kept: list[memory.Allocation] = []

    def malloc(self, size: int) -> arrays.MemoryPointer:
        with memory.kept_in(None):  # what is asked of a pool by name is free again when it is dropped
            return allocated(size)

    def used_bytes(self) -> int:
        return memory.live_bytes(devices.current())

    def total_bytes(self) -> int:
        return sum(x.size for x in self.kept) if self.kept else self.used_bytes()

    def free_bytes(self) -> int:
        return 0

    def get_limit(self) -> int:
        return 0  # none

    def free_all_blocks(self, stream: Any = None) -> None:
        pass


class PythonFunctionAllocator:
    """Stands for `cupy.cuda.PythonFunctionAllocator`: tells the two functions what is allocated and freed.

    The memory itself is the simulator's, whatever address `malloc_func` returns.
    """

    def __init__(self, malloc_func: Callable[[int, int], int], free_func: Callable[[int, int], None]) -> None:
        self._malloc, self._free = malloc_func, free_func

    @property
    def kept(self) -> PythonFunctionAllocator:
        """What `memory.kept_in` appends allocations to."""
        return self

    def append(self, allocation: memory.Allocation) -> None:
        address = self._malloc(allocation.size, allocation.device)
        weakref.finalize(allocation, self._free, address, allocation.device).atexit = False

    def malloc(self, size: int) -> arrays.MemoryPointer:
        return allocated(size)


class _FakeModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated {self.__name__} has no {name!r} (tests/cudasim/fake_cupy.py)")


def _module(name: str, **members: Any) -> ModuleType:
    module = _FakeModule(name)
    module.__dict__.update(members)
    module.__path__ = []
    return module


def memory_copy(
    target: int, target_pitch: int, source: int, pitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    """Stands for `cupy.cuda.runtime.memcpy2DAsync`."""

    def rows(address: int, step: int) -> np.ndarray[Any, Any]:
        if step < width or (height > 1 and step >= 1 << 31):
            raise streams.CUDARuntimeError(
                12, f"cudaErrorInvalidPitchValue: {step} for rows of {width} bytes"
            )
        found = memory.bytes_at(address, (height - 1) * step + width)
        return np.lib.stride_tricks.as_strided(found, (height, width), (step, 1))

    if width and height:
        to, of = rows(target, target_pitch), rows(source, pitch)
        cards = memory.card_of(source), memory.card_of(target)
        streams.of_pointer(stream).copy(lambda: np.copyto(to, of), cards)


def _build() -> ModuleType:
    pool = MemoryPool()
    runtime = _module(
        "cupy.cuda.runtime",
        CUDARuntimeError=streams.CUDARuntimeError,
        getDeviceCount=devices.count,
        getDevice=devices.current,
        free=lambda address: None,
        getDeviceProperties=lambda device: devices.card(device).properties(),
        deviceSynchronize=lambda: None,
        deviceCanAccessPeer=lambda device, peer: int(device != peer),
        deviceEnablePeerAccess=devices.enable_peer,
        memcpyDefault=4,
        memcpy2DAsync=memory_copy,
        memcpyAsync=lambda target, source, size, kind, stream: memory_copy(
            target, size, source, size, size, 1, kind, stream
        ),
        runtimeGetVersion=lambda: 12080,
        driverGetVersion=lambda: 12080,
        streamCaptureModeThreadLocal=1,
    )
    own_driver = _module("cupy.cuda.driver", CUDADriverError=launch.CUDADriverError)
    cuda_compiler = _module("cupy.cuda.compiler", CompileException=CompileException)
    cuda_memory = _module(
        "cupy.cuda.memory",
        MemoryPool=MemoryPool,
        MemoryPointer=arrays.MemoryPointer,
        OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {}),
    )
    stream = _module(
        "cupy.cuda.stream",
        Stream=streams.Stream,
        Event=streams.Event,
        get_current_stream=streams.current_stream,
    )
    graph = _module("cupy.cuda.graph", Graph=streams.Graph)
    names = [name for name in vars(cublas) if name.startswith(("CUBLAS", "gemm"))]
    cuda = _module(
        "cupy.cuda",
        runtime=runtime,
        driver=own_driver,
        compiler=cuda_compiler,
        memory=cuda_memory,
        stream=stream,
        graph=graph,
        cublas=_module("cupy.cuda.cublas", **{name: getattr(cublas, name) for name in names}),
        device=_module("cupy.cuda.device", Device=devices.Device, get_cublas_handle=lambda: 0),
        Device=devices.Device,
        Stream=streams.Stream,
        Event=streams.Event,
        Graph=streams.Graph,
        MemoryPool=MemoryPool,
        PythonFunctionAllocator=PythonFunctionAllocator,
        MemoryPointer=arrays.MemoryPointer,
        get_current_stream=streams.current_stream,
        get_elapsed_time=streams.get_elapsed_time,
        alloc=allocated,
        using_allocator=lambda allocator=pool.malloc: memory.kept_in(
            None if allocator == pool.malloc else allocator.__self__.kept
        ),
    )
    own = _module(
        "cupy",
        __version__="14.2.0+simulated",
        cuda=cuda,
        ndarray=ndarray,
        RawModule=RawModule,
        RawKernel=RawKernel,
        empty=empty,
        zeros=zeros,
        ones=ones,
        full=full,
        empty_like=_like(empty),
        zeros_like=_like(zeros),
        full_like=full_like,
        array=array,
        asarray=asarray,
        ascontiguousarray=ascontiguousarray,
        asnumpy=asnumpy,
        arange=arange,
        copyto=copyto,
        shares_memory=shares_memory,
        may_share_memory=may_share_memory,
        from_dlpack=from_dlpack,
        get_default_memory_pool=lambda: pool,
        newaxis=None,
        pi=np.pi,
        fft=_module("cupy.fft", **{name: _delegate(getattr(np.fft, name)) for name in _FFT}),
        **{name: _delegate(getattr(np, name)) for name in _DELEGATED},
    )
    scalars = (
        "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128 dtype"
        " result_type promote_types can_cast iinfo finfo ndim shape isscalar"
    )
    own.__dict__.update({name: getattr(np, name) for name in scalars.split()})
    return own


cupy = _build()


def _all_modules() -> dict[str, ModuleType]:
    found = {"cupy": cupy}
    waiting = [cupy]
    while waiting:
        for value in vars(waiting.pop()).values():
            if isinstance(value, _FakeModule) and value.__name__ not in found:
                found[value.__name__] = value
                waiting.append(value)
    return found


@contextmanager
def in_place_of_cupy(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let `import cupy` find these, by name, and no others; None stands for a package that is missing."""

    def take_away() -> dict[str, ModuleType | None]:
        names = [name for name in sys.modules if name == "cupy" or name.startswith("cupy.")]
        return {name: sys.modules.pop(name) for name in names}

    former = take_away()
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        yield
    finally:
        take_away()
        sys.modules.update(former)  # type: ignore[arg-type]


@contextmanager
def simulated_cuda(
    card: str | Card = "h100",
    *,
    devices_count: int = 1,
    order: str | None = None,
    seed: int | None = None,
    concurrent_blocks: int | None = None,
) -> Iterator[ModuleType]:
    """Let `import cupy` give the simulated one, with that many cards of that kind.

    `order` of threads: forward, reverse or random (with `seed`); `concurrent_blocks` are started together.
    """
    global _active
    chosen = CARDS[card] if isinstance(card, str) else card
    former_settings = _active
    base = settings.from_environment()
    _active = settings.Settings(
        order=base.order if order is None else order,
        seed=base.seed if seed is None else seed,
        concurrent_blocks=base.concurrent_blocks if concurrent_blocks is None else concurrent_blocks,
    )
    former_cards = devices.set_cards([chosen] * devices_count)
    try:
        with in_place_of_cupy(_all_modules()), driver.in_place_of_libcuda(_active):
            yield cupy
    finally:
        devices.set_cards(former_cards)
        _active = former_settings
