"""CUDA's driver for launch code that calls it itself: `path()` is a library that loads as libcuda.so does."""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from . import compiler, devices, graphs, launch, memory, settings, streams

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of CUlaunchAttributeID
_INVALID_VALUE = 1
_UNKNOWN_FAILURE = 719  # CUDA_ERROR_LAUNCH_FAILED

functions: weakref.WeakValueDictionary[int, Function] = weakref.WeakValueDictionary()
_handles = itertools.count(0xC0DE, 16)
active = [settings.from_environment()]  # the last one is that of the innermost simulated_cuda


class Function:
    """Stands for `cupy.cuda.Function`: a kernel on a device, under a handle of the driver."""

    def __init__(self, kernel: Any, entry: launch.Entry, device: int) -> None:
        self.kernel, self.entry, self.device = kernel, entry, device
        self.ptr = next(_handles)
        functions[self.ptr] = self


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("value", ctypes.c_int * 17))


class _Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


_Launch = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_Fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
_Error = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))


_Set = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(graphs.KernelParams))
_Create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_Add = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.POINTER(graphs.KernelParams)
)
_Edge = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_Instantiate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
_LaunchGraph = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Destroy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Calls(ctypes.Structure):
    """`Calls` of runtime/driver.cpp."""

    _fields_ = (
        ("launch", _Launch),
        ("fill", _Fill),
        ("error", _Error),
        ("set_params", _Set),
        ("create_graph", _Create),
        ("add_kernel", _Add),
        ("add_edge", _Edge),
        ("instantiate", _Instantiate),
        ("launch_graph", _LaunchGraph),
        ("destroy", _Destroy),
    )


class _Driver:
    """What the library calls. An exception becomes a status, and `error` gives its text back."""

    def __init__(self) -> None:
        self.failures = {_INVALID_VALUE: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument")}
        self.calls = _Calls(
            _Launch(self.launch),
            _Fill(self.fill),
            _Error(self.error),
            _Set(self.set_params),
            _Create(self.create_graph),
            _Add(self.add_kernel),
            _Edge(self.add_edge),
            _Instantiate(self.instantiate),
            _LaunchGraph(self.launch_graph),
            _Destroy(self.destroy),
        )

    def launch(self, config: Any, function: int, parameters: Any) -> int:
        return self._status(lambda: _launch(config.contents, functions[function], parameters))

    def fill(self, address: int, word: int, words: int, stream: int | None) -> int:
        def run() -> None:
            memory.bytes_at(address, 4 * words).view(np.uint32)[:] = word

        return self._status(lambda: streams.of_pointer(stream or 0)._run(run))

    def error(self, status: int, text: int, out: Any) -> int:
        known = self.failures.get(status)
        if known is None:
            return 1
        out[0] = known[text]
        return 0

    def set_params(self, exec_: int, node: int, params: Any) -> int:
        """As with CUDA: the kernel stays the same, and a launch that came before keeps its parameters."""
        index, new = graphs.nodes[node].index, params.contents
        actions: list[Any] = streams.graph_of(exec_)._actions
        if actions[index].function.ptr != new.function:
            return _INVALID_VALUE
        actions[index] = actions[index].changed(new)
        return 0

    def create_graph(self, out: Any) -> int:
        out[0] = streams.new_graph()
        return 0

    def add_kernel(self, out: Any, graph: int, params: Any) -> int:
        def add() -> None:
            node, function = params.contents, functions[params.contents.function]
            out[0] = graphs.append(streams.graph_of(graph), _work(function, node, node.parameters, False))

        return self._status(add)

    def add_edge(self, graph: int, begin: int, end: int, kind: int) -> int:
        """The end of a programmatic edge may start before its begin has ended. Work runs in nodes' order."""
        nodes = streams.graph_of(graph).nodes
        places = {node.handle: i for i, node in enumerate(nodes)}
        if begin not in places or places[begin] + 1 != places.get(end):
            return _INVALID_VALUE
        if kind:
            graphs.start_early(streams.graph_of(graph), places[end])
        return 0

    def instantiate(self, out: Any, graph: int) -> int:
        out[0] = streams.instantiate(graph)
        return 0

    def launch_graph(self, exec_: int, stream: int | None) -> int:
        return self._status(lambda: streams.launch_graph(exec_, stream or 0))

    def destroy(self, graph: int) -> int:
        streams.destroy_graph(graph)
        return 0

    def _status(self, call: Any) -> int:
        try:
            call()
        except launch.CUDADriverError as error:
            name, _, text = str(error).partition(": ")
            self.failures[error.status] = name.encode(), text.encode()
            return error.status
        except Exception as error:
            self.failures[_UNKNOWN_FAILURE] = type(error).__name__.encode(), str(error).encode()
            return _UNKNOWN_FAILURE
        return 0


def _launch(config: _Config, function: Function, parameters: Any) -> None:
    dependent = any(
        config.attributes[i].id == PROGRAMMATIC_STREAM_SERIALIZATION and config.attributes[i].value[1]
        for i in range(config.attribute_count)
    )
    work = _work(function, config, parameters, dependent)
    streams.of_pointer(config.stream or 0)._run(work)


def _work(
    function: Function, config: _Config | graphs.KernelParams, parameters: Any, dependent: bool
) -> graphs.Work:
    device = devices.current()
    if function.device != device:
        raise launch.CUDADriverError(
            400, "CUDA_ERROR_INVALID_HANDLE", f"a kernel of device {function.device} on device {device}"
        )
    sizes = {"grid": tuple(config.grid), "block": tuple(config.block), "shared_mem": config.shared}
    blocks = [ctypes.string_at(parameters[i], size) for i, (_, size) in enumerate(function.entry.parameters)]
    return graphs.Work(function, sizes | {"dependent": dependent}, blocks, active[-1])


@contextmanager
def in_place_of_libcuda(chosen: settings.Settings) -> Iterator[None]:
    """Let POLYGPU_LIBCUDA name the simulated driver, if there is a compiler to build it."""
    former = os.environ.get("POLYGPU_LIBCUDA")
    active.append(chosen)
    with suppress(compiler.CompileError):
        os.environ["POLYGPU_LIBCUDA"] = path()
    try:
        yield
    finally:
        active.pop()
        os.environ.pop("POLYGPU_LIBCUDA", None)
        if former is not None:
            os.environ["POLYGPU_LIBCUDA"] = former


@functools.cache
def path() -> str:
    """The path of the library that has the driver's functions; the first call connects it to Python."""
    runtime = compiler.runtime()
    memory.attach_runtime(runtime)
    driver = _Driver()
    runtime.sim_set_driver(ctypes.byref(driver.calls))
    _kept.append(driver)
    atexit.register(
        runtime.sim_set_driver, None
    )  # the library's records may be destroyed after Python's functions
    return str(runtime._name)


_kept: list[_Driver] = []
