"""A launch as data, and the one place that launches: kernels of cuda/, compiled at run time."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...errors import DeviceError
from ...plans.basis import Basis, Handles
from .. import Array, cuda_sources
from .device import INSTALL, Device, Shared

THREADS = 256  # of a block of the kernels that work entry by entry, and of products of integers
ALIGNMENT = 16  # bytes that a thread moves at once (cuda/memory.cuh)
MAX_AXES = 6  # rows.cuh
MODULUS_BYTES = 128  # modulus.cuh

_RECORDS = 64  # of a plan that are kept

_log = logging.getLogger("polygpu")


# ---- what kernels read ----


_CODES = {"<u4": "I", "<u8": "Q", "<i8": "q"}  # of Python's struct


class Struct:
    """The parameters of kernels: a NumPy dtype that mirrors a C struct of cuda/, field by field.

    Fields come as their names, in order, and what they are: a NumPy dtype or another Struct. Pointers are
    addresses, uint64.
    """

    dtype: np.dtype[Any]
    made: ClassVar[list[Struct]] = []

    def __init__(self, file: str, name: str, *fields: tuple[str, Any]) -> None:
        self.file, self.name = file, name
        pairs = [(field, of) for names, of in fields for field in names.split()]
        self._fields = tuple(field for field, _ in pairs)
        self.dtype = np.dtype(
            [(field, of.dtype if isinstance(of, Struct) else of) for field, of in pairs], align=True
        )
        layout, end = "<", 0
        for field in self._fields:
            part, offset = self.dtype.fields[field][:2]  # type: ignore[index]
            layout += "x" * (offset - end)
            layout += _CODES.get(part.str) or f"{part.itemsize}s"
            end = offset + part.itemsize
        self._packer = struct.Struct(layout + "x" * (self.dtype.itemsize - end))
        self.made.append(self)

    def __call__(self, **values: Any) -> bytes:
        """The struct with these values; bytes for a field that is a Struct or an array."""
        if len(values) != len(self._fields):
            raise TypeError(f"{self.name}: fields {self._fields}, values of {tuple(values)}")
        return self._packer.pack(*[values[field] for field in self._fields])


POINTER = U64 = np.dtype(np.uint64)
I64, U32 = np.dtype(np.int64), np.dtype(np.uint32)
LAYOUT = Struct("rows.cuh", "Layout", ("shape", (U64, MAX_AXES)), ("step", (U64, (3, MAX_AXES))))
DENSE = bytes(LAYOUT.dtype.itemsize)  # no kernel reads a dense layout


class Launch(NamedTuple):
    """A kernel, and all that its launch depends on."""

    file: str  # of cuda/
    kernel: str  # an instance of a template there
    grid: tuple[int, int]
    threads: int
    parameters: bytes  # of a Struct
    shared: int = 0  # bytes of dynamic shared memory
    counters: int = 0  # words of zeros that it wants, whose address follows those of its operands


class Record(NamedTuple):
    """Launches that are ready but for the addresses with which their parameters begin."""

    launches: tuple[Launch, ...]
    used: tuple[Shared, ...]  # what they read beside their operands
    offset: int = 0  # bytes from the beginning of an operand to what the launches take of it


@lru_cache(maxsize=64)
def _void(size: int) -> np.dtype[Any]:
    return np.dtype((np.void, size))


def entrywise(file: str, kernel: str, entries: int, parameters: bytes, rows: int = 1) -> Launch:
    """A launch with one thread for each of so many entries, of each of so many rows."""
    return Launch(file, kernel, (-(-entries // THREADS), rows), THREADS, parameters)


@lru_cache(maxsize=256)
def _layout(shape: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> bytes:
    """Batch shape and operands' steps in rows; shapes end in the limbs."""
    limbs, batch = shape[-1], shape[:-1]
    table = np.zeros((4, MAX_AXES), np.uint64)
    table[0] = 1
    table[0, MAX_AXES - len(batch) :] = batch
    for i, operand in enumerate(operands):
        step = limbs
        for axis, size in enumerate(reversed(operand[:-1])):
            if size != 1:
                table[i + 1, MAX_AXES - 1 - axis] = step
            step *= size
    return table.tobytes()


@cache
def _digest() -> str:
    """Of all CUDA sources: CuPy's cache of compiled kernels does not see edited headers."""
    digest = hashlib.sha256()
    folder = cuda_sources()
    for name in sorted(os.listdir(folder)):
        if name.endswith((".cu", ".cuh")):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def modulus_constants(moduli: Sequence[int]) -> Array:
    """struct Modulus of cuda/modulus.cuh, one a row."""
    table = np.zeros((len(moduli), MODULUS_BYTES // 8), np.uint64)
    for row, q in zip(table, moduli, strict=True):
        bits, shift = q.bit_length(), 64 - q.bit_length()
        row[0], row[1] = q % (1 << 64), q - 1
        if bits <= 64:
            row[2] = q << shift
            row[3] = ((1 << 128) - 1) // (q << shift) - (1 << 64)
        row[4] = (1 << (bits + 62)) // q if bits <= 62 else 0
        row[5] = (1 << 64) // q if q > 1 else 0
        row[6:7].view(np.float64)[0] = 1.0 / q
        row[7] = bits | max(shift, 0) << 32
        row[8:10].view(np.uint32)[:] = [x % (1 << 32) for x in (q, -q, 2 * q, -2 * q)]
        row[10:14] = [x % (1 << 64) for x in (2 * q, 3 * q, 6 * q, -q)]
        power = (1 << 64) % q
        row[14:] = power, (power << 64) // q
    return table


def ctype(basis: Basis) -> str:
    """The type of residues in memory, a template argument."""
    return "u32" if basis.dtype == np.uint32 else "u64"


def cbool(value: bool) -> str:
    """A flag, as a template argument."""
    return "true" if value else "false"


# ---- launching ----


class Launcher(Device):
    """Launches kernels; what it launches is up to the operations that inherit from it."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._kernels: dict[str, Any] = {}
        self._records_key = f"{self.name} records"

    def _kernel(self, launch: Launch) -> Any:
        kernel = self._kernels.get(launch.kernel)
        if kernel is None:
            began = time.perf_counter()
            with open(os.path.join(cuda_sources(), launch.file)) as source:
                code = source.read()
            try:
                module = self.xp.RawModule(
                    code=f"{code}\n// sources {_digest()}\n",
                    options=("-std=c++17", f"-I{cuda_sources()}"),
                    name_expressions=(launch.kernel,),
                )
                kernel = self._kernels[launch.kernel] = module.get_function(launch.kernel)
            except Exception as error:  # of the compiler, of the loader, of the driver
                raise DeviceError(
                    f"{self.name}: {launch.kernel} does not compile or load: {error}; "
                    f"CuPy {self.xp.__version__} needs NVRTC and a driver of its CUDA version: {INSTALL}"
                ) from error
            _log.info("%s: %s in %.2f s", self.name, launch.kernel, time.perf_counter() - began)
        return kernel

    def launch(self, launch: Launch, *addresses: int) -> None:
        """On the current stream, with other addresses at the beginning of its parameters.

        A grid without blocks is no launch.
        """
        if launch.grid[0] == 0:
            return
        packed = launch.parameters
        if addresses:
            packed = struct.pack(f"<{len(addresses)}Q", *addresses) + packed[8 * len(addresses) :]
        with self._scope:
            kernel = self._kernel(launch)
            if launch.shared > 48 << 10:
                kernel.max_dynamic_shared_size_bytes = launch.shared
            # One void of so many bytes: CuPy describes structured ones field by field, which takes 20 us.
            parameters = np.frombuffer(packed, _void(len(packed)))
            kernel(launch.grid, (launch.threads,), (parameters,), shared_mem=launch.shared)

    def _recorded(self, handles: Handles, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What a plan's handles have of records for this device and a key: the newest of them are kept."""
        records = handles.get(self._records_key)
        if records is None:
            records = handles.setdefault(self._records_key, {})
        key = (self.card, *key)
        record = records.get(key)
        if record is None:
            record = make()
            for old in list(records)[: max(0, len(records) - _RECORDS + 1)]:
                records.pop(old, None)
            records[key] = record
        return record

    def _use(self, used: Iterable[Shared]) -> None:
        """Make the current stream wait for them, and a graph that is recorded keep them."""
        stream = self._stream()
        for shared in used:
            shared.on(stream)

    # ---- operands ----

    def _moduli(self, basis: Basis) -> int:
        """The address of a basis's moduli on the device."""
        return self.address(self._moduli_of(basis).on(self._stream()))

    def _moduli_of(self, basis: Basis) -> Shared:
        return self._kept(
            basis.handles, "moduli", lambda: (self.from_host(modulus_constants(basis.moduli)), ())
        )

    def _aligned(self, *arrays: Array) -> bool:
        """Whether kernels may move their values in chunks."""
        return all(self.address(x) % ALIGNMENT == 0 for x in arrays)

    def _spread(self, shape: tuple[int, ...], *operands: Array) -> tuple[list[Array], dict[str, Any]]:
        """Operands of a result (*batch, rows, n) as kernels want them, and the fields layout and dense."""
        if len(shape) - 2 > MAX_AXES:
            operands = tuple(self._broadcast(x, shape) for x in operands)
        if all(x.shape[:-1] == shape[:-1] for x in operands):
            return list(operands), {"layout": DENSE, "dense": True}
        layout = _layout(shape[:-1], tuple(x.shape[:-1] for x in operands))
        return list(operands), {"layout": layout, "dense": False}

    def _broadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        """A copy in the full shape; the operand itself where it has that."""
        if x.shape == shape:
            return x
        with self._scope:
            return self.xp.ascontiguousarray(self.xp.broadcast_to(x, shape))  # type: ignore[no-any-return]

    def _repeated(self, x: Array, shape: tuple[int, ...]) -> Array:
        """For kernels that repeat an operand over leading axes: other ways to broadcast take a copy."""
        return x if shape[len(shape) - x.ndim :] == x.shape else self._broadcast(x, shape)
