"""CUDA's driver for launch code that calls it itself: `path()` is a library that loads as libcuda.so does."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from . import compiler, devices, launch, memory, settings, streams

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of CUlaunchAttributeID
_UNKNOWN_FAILURE = 719  # CUDA_ERROR_LAUNCH_FAILED

functions: weakref.WeakValueDictionary[int, Function] = weakref.WeakValueDictionary()
_handles = itertools.count(0xC0DE, 16)
active = [settings.from_environment()]  # the last: of the innermost simulated_cuda


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


class _Calls(ctypes.Structure):
    """`Calls` of runtime/driver.cpp."""

    _fields_ = (("launch", _Launch), ("fill", _Fill), ("error", _Error))


class _Driver:
    """What the library calls; an exception becomes a status, under which its text is kept."""

    def __init__(self) -> None:
        self.failures: dict[int, tuple[bytes, bytes]] = {}
        self.calls = _Calls(_Launch(self.launch), _Fill(self.fill), _Error(self.error))

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
    device = devices.current()
    if function.device != device:
        raise launch.CUDADriverError(
            400, "CUDA_ERROR_INVALID_HANDLE", f"a kernel of device {function.device} on device {device}"
        )
    sizes = [size for _, size in function.entry.parameters]
    prepared = launch.Launch(
        entry=function.entry,
        card=devices.card(device),
        device=device,
        grid=tuple(config.grid),
        block=tuple(config.block),
        arguments=[
            np.frombuffer(ctypes.string_at(parameters[i], size), np.uint8) for i, size in enumerate(sizes)
        ],
        shared_mem=config.shared,
        max_dynamic_shared=function.kernel.max_dynamic_shared_size_bytes,
        cooperative=False,
        dependent=any(
            config.attributes[i].id == PROGRAMMATIC_STREAM_SERIALIZATION and config.attributes[i].value[1]
            for i in range(config.attribute_count)
        ),
    )
    chosen = active[-1]
    streams.of_pointer(config.stream or 0)._run(lambda: prepared.run(chosen))


@contextmanager
def in_place_of_libcuda(chosen: settings.Settings) -> Iterator[None]:
    """Let POLYGPU_LIBCUDA name the simulated driver, where there is a compiler to build it."""
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
    """Where the library lies that has the driver's functions."""
    runtime = compiler.runtime()
    memory.attach_runtime(runtime)
    driver = _Driver()
    runtime.sim_set_driver(ctypes.byref(driver.calls))
    _kept.append(driver)
    return str(runtime._name)


_kept: list[_Driver] = []
