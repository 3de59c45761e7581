"""One kernel launch: the checks a card and its driver make, the arguments as CuPy passes them, the run."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Sequence

import numpy as np

from . import compiler, memory
from .cards import Card
from .settings import ORDERS, Settings


class CUDADriverError(RuntimeError):
    """Stands for `cupy.cuda.driver.CUDADriverError`."""

    def __init__(self, status: int, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.status = status


class KernelError(RuntimeError):
    """The simulator found a fault of the kernel: a deadlock, a bad address, a failed assertion."""


def invalid_value(detail: str) -> CUDADriverError:
    return CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", f"invalid argument: {detail}")


class _Config(ctypes.Structure):
    """`LaunchConfig` of runtime/scheduler.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_uint64),
        ("shared_limit", ctypes.c_uint64),
        ("order", ctypes.c_uint),
        ("concurrent_blocks", ctypes.c_uint),
        ("resident_blocks", ctypes.c_uint),
        ("clusters", ctypes.c_uint),
        ("dependent", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
    )


class _Parameter(ctypes.Structure):
    """`sim::Parameter` of include/export.h."""

    _fields_ = (("kind", ctypes.c_char), ("bytes", ctypes.c_uint))


_KINDS = {"p": "a pointer", "i": "an integer", "f": "a floating-point number", "s": "a struct"}
_launch_count = itertools.count()


class Entry:
    """A kernel in a loaded module."""

    def __init__(self, module: compiler.CompiledModule, name: str) -> None:
        number = module.kernels[name]
        self.name = name
        self.module = module  # keeps the library loaded
        self.address = ctypes.cast(getattr(module.library, f"sim_enter_{number}"), ctypes.c_void_p)
        list_parameters = getattr(module.library, f"sim_parameters_{number}")
        list_parameters.restype = ctypes.POINTER(_Parameter)
        listed = list_parameters()
        self.parameters: list[tuple[str, int]] = []
        while listed[len(self.parameters)].bytes:
            parameter = listed[len(self.parameters)]
            self.parameters.append((parameter.kind.decode(), parameter.bytes))


def argument_bytes(value: object) -> tuple[str, np.ndarray]:
    """The bytes that CuPy passes for a kernel argument, and what kind of value it is.

    Python ints are 64-bit and Python floats are doubles, whatever the kernel takes; NumPy scalars keep
    their size.
    """
    if hasattr(value, "__cuda_array_interface__"):
        return "p", np.array([value.__cuda_array_interface__["data"][0]], np.uint64)
    if hasattr(value, "ptr") and hasattr(value, "mem"):  # MemoryPointer
        return "p", np.array([value.ptr], np.uint64)
    if value is None:
        return "p", np.zeros(1, np.uint64)
    if isinstance(value, np.void | np.ndarray):  # a struct by value
        return "s", np.frombuffer(value.tobytes(), np.uint8)
    if isinstance(value, bool):
        return "i", np.array([value])
    if isinstance(value, int):
        return "i", np.array([value], np.int64)  # OverflowError beyond int64, as with CuPy
    if isinstance(value, float):
        return "f", np.array([value])
    if isinstance(value, complex):
        return "s", np.array([value])
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return {"f": "f", "c": "s"}.get(value.dtype.kind, "i"), np.array([value])
    raise TypeError(f"Unsupported type {type(value)}")


def _check_argument(
    kernel: str, position: int, value: object, kind: str, size: int, parameter: tuple[str, int]
) -> None:
    expected, expected_size = parameter
    if size == expected_size and expected in (kind, "s"):
        return
    if expected == "p" and kind == "i" and size == 8:  # an address as a Python int
        if memory.is_device_address(int(value)):  # type: ignore[call-overload]
            return
        raise KernelError(f"{kernel}: argument {position}, {value:#x}, is no address of living device memory")
    raise TypeError(
        f"{kernel}: argument {position} ({type(value).__module__}.{type(value).__qualname__}) is passed as "
        f"{_KINDS[kind]} of {size} bytes, the kernel takes {_KINDS[expected]} of {expected_size}"
    )


def _dimensions(value: object, what: str) -> tuple[int, int, int]:
    if not isinstance(value, tuple) or not 1 <= len(value) <= 3:
        raise TypeError(f"{what} must be a tuple of 1 to 3 ints, not {value!r}")
    x, y, z = (*(int(v) for v in value), 1, 1)[:3]
    return x, y, z


def _check_shape(card: Card, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    for name, sizes, limits in (
        ("grid", grid, (2**31 - 1, 65535, 65535)),
        ("block", block, (1024, 1024, 64)),
    ):
        if any(not 1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
            raise invalid_value(f"{name} {sizes}, each 1 to {limits}")
    threads = block[0] * block[1] * block[2]
    if threads > card.threads_per_block:
        raise invalid_value(f"block {block} has {threads} threads, the limit is {card.threads_per_block}")


class Launch:
    """A kernel with its arguments, checked as the driver does at a launch; may run many times."""

    def __init__(
        self,
        *,
        entry: Entry,
        card: Card,
        device: int,
        grid: object,
        block: object,
        arguments: Sequence[object],
        shared_mem: int,
        max_dynamic_shared: int,
        cooperative: bool,
        dependent: bool = False,
    ) -> None:
        self._entry = entry
        grid_size, block_size = _dimensions(grid, "grid"), _dimensions(block, "block")
        _check_shape(card, grid_size, block_size)
        if shared_mem > max_dynamic_shared:
            raise invalid_value(
                f"{shared_mem} bytes of dynamic shared memory, the kernel's max_dynamic_shared_size_bytes is "
                f"{max_dynamic_shared}"
            )
        blocks = grid_size[0] * grid_size[1] * grid_size[2]
        threads = block_size[0] * block_size[1] * block_size[2]
        resident = card.resident_blocks(threads, shared_mem)
        if cooperative and blocks > resident:
            raise CUDADriverError(
                720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", f"{blocks} blocks, the card holds {resident}"
            )
        opted_in = max_dynamic_shared > card.shared_per_block
        self._config = _Config(
            grid=grid_size,
            block=block_size,
            dynamic_shared=shared_mem,
            shared_limit=card.shared_per_block_optin if opted_in else card.shared_per_block,
            resident_blocks=resident,
            clusters=card.has_clusters,
            dependent=dependent,
        )
        self._arguments = tuple(arguments)  # keeps the arrays alive
        self._values, self._pointers = _pack(entry, self._arguments, device)

    def run(self, settings: Settings) -> None:
        self._config.order = ORDERS[settings.order]
        self._config.concurrent_blocks = settings.concurrent_blocks
        self._config.seed = 1_000_003 * settings.seed + next(_launch_count)
        error = ctypes.create_string_buffer(8192)
        runtime = compiler.runtime()
        memory.attach_runtime(runtime)
        with memory.one_at_a_time:
            failed = runtime.sim_launch(
                ctypes.byref(self._config),
                self._entry.address,
                self._pointers,
                error,
                ctypes.c_size_t(len(error)),
            )
            memory.check_guards(self._entry.name)
        if failed:
            text = error.value.decode(errors="replace")
            if settings.order == "random":
                text += f"\n  in a random order of the threads, seed {self._config.seed}"
            raise _failure(self._entry.name, text)


def _failure(kernel: str, text: str) -> Exception:
    """The driver's error for what a card would refuse to launch; for all else the simulator's."""
    refused = re.match(r"CUDA_ERROR_(\w+): ", text)
    if not refused:
        return KernelError(f"{kernel}: {text}")
    status = {"INVALID_VALUE": 1, "LAUNCH_OUT_OF_RESOURCES": 701, "INVALID_CLUSTER_SIZE": 912}[refused[1]]
    return CUDADriverError(status, refused[0][:-2], text[refused.end() :])


def _pack(
    entry: Entry, arguments: Sequence[object], device: int
) -> tuple[list[np.ndarray], ctypes.Array[ctypes.c_void_p]]:
    """The arguments' bytes, and the array of pointers to them that the kernel's entry reads."""
    if len(arguments) != len(entry.parameters):
        raise TypeError(f"{entry.name}: {len(arguments)} arguments, the kernel takes {len(entry.parameters)}")
    values = []
    pointers = (ctypes.c_void_p * max(1, len(arguments)))()
    for i, (argument, parameter) in enumerate(zip(arguments, entry.parameters, strict=True)):
        kind, data = argument_bytes(argument)
        _check_argument(entry.name, i, argument, kind, data.nbytes, parameter)
        owner = getattr(getattr(argument, "device", None), "id", device)
        if owner != device:
            raise KernelError(
                f"{entry.name}: argument {i} lies on device {owner}, the kernel runs on device {device}"
            )
        values.append(data)
        pointers[i] = data.ctypes.data
    return values, pointers
