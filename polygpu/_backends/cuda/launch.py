"""Kernel launches: parameters of kernels, recipes of launches, and prepared calls."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import _cpu
from ..._core.locks import new_lock
from ..._core.plans.basis import Basis, Handles
from ..._core.plans.cache import Calls
from ..._core.reporting import Work, counted
from ...errors import DeviceError
from .. import Array, cuda_sources
from .device import INSTALL, Device, Launched, Shared, recording
from .sources import constant, digest, text_of, waits

THREADS = 256  # threads of a block, in kernels that work entry by entry and in products of integer matrices
ALIGNMENT = 16  # the most bytes that a thread moves with one instruction
MAX_AXES = constant("rows.cuh", "MAX_AXES")
MODULUS_BYTES = 128  # the size of struct Modulus

_STREAMS = 64  # the most streams that a prepared call remembers
_STEP_BYTES = 512  # estimated bytes of a prepared launch without its parameters
_CAN_START_EARLY = (9, 0)  # least compute capability on which a kernel may start before the previous one ends
_EARLY_BLOCKS = constant("ptx.cuh", "EARLY_BLOCKS")  # the most blocks of a launch that may start early

_log = logging.getLogger("polygpu")


# ---- parameters of kernels ----


_CODES = {"<u4": "I", "<u8": "Q", "<i8": "q"}  # format characters of Python's module struct, by dtype
# C++ types of integers in kernels. A key is the dtype's kind, "i" or "u", and its size in bytes.
INTEGER_TYPES = {
    "i1": "signed char",
    "u1": "unsigned char",
    "i2": "short",
    "u2": "unsigned short",
    "i4": "i32",
    "u4": "u32",
    "i8": "i64",
    "u8": "u64",
}


class Struct:
    """A C struct of cuda/ with the parameters of a kernel, mirrored field by field by a NumPy dtype.

    Args:
        file: the file of cuda/ that defines the struct.
        name: the struct's name in C++.
        fields: pairs (names, type), in the order of the struct. `names` is one string with spaces. `type` is
            a NumPy dtype (uint64 for pointers) or a Struct.
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
        """Pack the values of all fields into bytes. For a field that is a Struct or an array, pass bytes."""
        if len(values) != len(self._fields):
            raise TypeError(
                f"{self.name} has the fields {self._fields}, but values were given for {tuple(values)}."
            )
        return self._packer.pack(*[values[field] for field in self._fields])


POINTER = U64 = np.dtype(np.uint64)
I64, U32 = np.dtype(np.int64), np.dtype(np.uint32)
LAYOUT = Struct("rows.cuh", "Layout", ("shape", (U64, MAX_AXES)), ("step", (U64, (3, MAX_AXES))))


def layout_struct(operands: int) -> Struct:
    """Return the struct that describes the layout of `operands` operands."""
    name = f"LayoutOf<{operands}>"
    return Struct("rows.cuh", name, ("shape", (U64, MAX_AXES)), ("step", (U64, (operands, MAX_AXES))))


DENSE = bytes(LAYOUT.dtype.itemsize)  # zeros: if all operands are dense, kernels do not read the layout


class Launch(NamedTuple):
    """A kernel with its grid and parameters: all that a launch needs except the addresses of operands."""

    file: str  # the file of cuda/ that defines the kernel
    kernel: str  # name of the kernel, with template arguments
    grid: tuple[int, int]
    threads: int  # threads of a block
    parameters: bytes  # a packed Struct
    shared: int = 0  # bytes of dynamic shared memory
    counters: int = 0  # 32-bit words of an extra last operand, all 0 at the start; 0: no such operand


class Step(NamedTuple):
    """A launch in a Recipe. The parameters of the kernel begin with the addresses of `operands`."""

    launch: Launch
    operands: tuple[int, ...]  # the launch's operands, as indices of the recipe's operands
    offsets: tuple[int, ...]  # bytes, added to the address of each operand


class Recipe:
    """The launches of a call, in order.

    Operands are numbered from 0: first the operands of the call, then the temporaries.

    Args:
        operands: the number of operands of the call.
        used: other arrays that the launches read, such as tables.
    """

    def __init__(self, operands: int, *used: Shared) -> None:
        self.given = operands
        self.steps: list[Step] = []
        self.used = list(used)  # arrays, other than operands, that the launches read
        self.temporaries: list[int] = []  # bytes of each temporary operand
        # Indices of temporaries that all launches and added recipes share. The contents are not kept from one
        # launch or added recipe to the next.
        self._lent: list[int] = []

    def temporary(self, size: int) -> int:
        """Add a temporary of `size` bytes. Return its operand index."""
        self.temporaries.append(size)
        return self.given + len(self.temporaries) - 1

    def _lend(self, number: int, size: int) -> int:
        """Return the operand index of shared temporary `number`. Enlarge it to at least `size` bytes.

        The next launch or added recipe may overwrite the contents.
        """
        if number == len(self._lent):
            self._lent.append(self.temporary(size))
        at = self._lent[number] - self.given
        self.temporaries[at] = max(self.temporaries[at], size)
        return self._lent[number]

    def launch(self, launch: Launch, *operands: int, offsets: int | tuple[int, ...] = 0) -> None:
        """Append a launch on the operands with these indices.

        offsets: bytes to skip at the start of each operand. One integer stands for all operands.
        """
        if isinstance(offsets, int):
            offsets = (offsets,) * len(operands)
        if launch.counters:
            operands, offsets = (*operands, self._lend(0, 4 * launch.counters)), (*offsets, 0)
        self.steps.append(Step(launch, operands, offsets))

    def add(self, recipe: Recipe, *operands: int) -> None:
        """Append the launches of `recipe`. operands[i]: the index in `self` of operand i of `recipe`."""
        numbers = (*operands, *(self._lend(i, size) for i, size in enumerate(recipe.temporaries)))
        self.steps += [s._replace(operands=tuple(numbers[i] for i in s.operands)) for s in recipe.steps]
        self.used += recipe.used


class Prepared:
    """A recipe whose kernels are loaded. A launch needs only a stream and the addresses of operands."""

    __slots__ = ("held", "launch", "steps", "streams", "temporaries", "used")

    def __init__(
        self, launch: _cpu.Launches, steps: Sequence[Any], used: Sequence[Any], temporaries: list[int]
    ) -> None:
        self.launch, self.temporaries = launch, temporaries
        self.used = [x for x in used if isinstance(x, Shared)]
        self.held = used  # arrays that the launches read; this reference keeps them allocated
        self.steps = steps  # the tuples from which `launch` was made
        self.streams: set[int] = set()  # handles of streams that need not wait for the arrays in `used`


def bytes_of(steps: Sequence[Any]) -> int:
    """Estimate how many bytes of memory prepared launches take."""
    return sum(_STEP_BYTES + len(step[-1]) for step in steps)


def entrywise(file: str, kernel: str, entries: int, parameters: bytes, rows: int = 1) -> Launch:
    """Return a launch with at least `entries` threads along x, and `rows` blocks along y."""
    return Launch(file, kernel, (-(-entries // THREADS), rows), THREADS, parameters)


def layout_of(
    shape: tuple[int, ...], *operands: tuple[int, ...], steps: Sequence[tuple[int, ...] | None] = ()
) -> dict[str, Any]:
    """Return the kernel parameters `layout` and `dense` for operands that broadcast to `shape`.

    shape: (*batch, rows, n). operands: the shape of each operand. steps: for each operand, the strides of
    its batch axes, counted in rows, or None if the operand is dense. Empty steps: all operands are dense.
    """
    if not any(steps) and all(len(x) == len(shape) and x[:-1] == shape[:-1] for x in operands):
        return {"layout": DENSE, "dense": True}
    return {"layout": layout_table(shape, operands, steps, 3), "dense": False}


def layout_table(
    shape: tuple[int, ...],
    operands: Sequence[tuple[int, ...]],
    steps: Sequence[tuple[int, ...] | None],
    count: int,
) -> bytes:
    """Return the packed layout for `count` operands. See `layout_of` for the other arguments."""
    limbs, batch = shape[-2], shape[:-2]
    table = np.zeros((1 + count, MAX_AXES), np.uint64)
    table[0] = 1
    table[0, MAX_AXES - len(batch) :] = batch
    for i, operand in enumerate(operands):
        step, own = limbs, steps[i] if steps else None
        for axis, size in enumerate(reversed(operand[:-2])):
            if size != 1:
                table[i + 1, MAX_AXES - 1 - axis] = step if own is None else own[-1 - axis]
            step *= size
    return table.tobytes()


def modulus_constants(moduli: Sequence[int]) -> Array:
    """Return an array with the struct Modulus (cuda/modulus.cuh) of modulus i in row i."""
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
    """Return the C++ type of a basis's residues in memory, for a template argument."""
    return "u32" if basis.dtype == np.uint32 else "u64"


def cbool(value: bool) -> str:
    """Return a flag as C++ writes it, for a template argument."""
    return "true" if value else "false"


# ---- launching ----


class Context(Device):
    """One GPU, with all that operations need: memory, streams and launches."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.handles: Handles = {}  # prepared calls and tables that do not belong to a plan
        self._kernels: dict[str, Any] = {}
        self._one_at_a_time = new_lock()  # held while the limit of a kernel's shared memory is raised
        self._make_context = partial(self.xp.cuda.runtime.free, 0)

    def run(
        self, handles: Handles, key: tuple[Any, ...], recipe: Callable[[], Recipe], *operands: Array
    ) -> None:
        """Launch the prepared call that `handles` stores under `key`, on the current stream.

        If nothing is stored, prepare recipe() and store the prepared call. The key must contain
        everything on which the recipe depends, except the card and the owner of `handles` (such as a
        plan).
        """
        records = handles.get(self._records_key)
        prepared = None if records is None else records.get(key)
        if prepared is None:
            prepared = self._keep(handles, key, recipe())
        if self.current_device() == self.index:
            self.launch_prepared(prepared, [x.data.ptr for x in operands])  # type: ignore[attr-defined]
        else:
            with self.scope:
                self.launch_prepared(prepared, [x.data.ptr for x in operands])  # type: ignore[attr-defined]

    def run_once(self, recipe: Recipe, *operands: int) -> None:
        """Launch a recipe without storing the prepared call. operands: addresses."""
        self._refuse()
        with self.scope:
            self.launch_prepared(self._prepare(recipe), list(operands))

    def launch(self, launch: Launch, *operands: int) -> None:
        """Execute a single launch without storing a prepared call. operands: addresses."""
        recipe = Recipe(len(operands))
        recipe.launch(launch, *range(len(operands)))
        self.run_once(recipe, *operands)

    def filling(self, launches: Sequence[Launch], *kept: Array) -> Shared:
        """Return a part (see Shared) that executes `launches` at its first use, to fill arrays.

        kept: all arrays that `launches` read or write.
        """

        def fill() -> None:
            for launch in launches:
                self.launch(launch)

        return Shared(kept, self._device, self.stream(), (), fill, launches)

    def launch_prepared(self, prepared: Prepared, addresses: list[int]) -> None:
        """Launch a prepared call on the current stream.

        addresses: those of the operands. This method appends the addresses of temporaries to the
        list.
        """
        stream = self.stream()
        at = stream.ptr
        recorded = recording.get()
        if recorded is not None:
            recorded.check(self.name)
        if at not in prepared.streams or recorded is not None:
            for shared in prepared.used:
                shared.on(stream)
            if all(shared.follows(stream) for shared in prepared.used):
                if len(prepared.streams) == _STREAMS:
                    prepared.streams.clear()
                prepared.streams.add(at)
        # Temporaries may be freed before the kernels have run: the pool gives their memory only to later work
        # of this stream.
        if prepared.temporaries:
            temporaries = [self._allocate(size) for size in prepared.temporaries]
            addresses += [x.ptr for x in temporaries]
        if recorded is not None:
            recorded += [x for x in prepared.held if not isinstance(x, Shared)]
            recorded.append(Launched(prepared.steps, tuple(addresses)))
        try:
            try:
                prepared.launch(at, *addresses)
            except _cpu.NoContext:  # this thread has not used the GPU before
                self._make_context()
                prepared.launch(at, *addresses)
        except _cpu.DriverError as error:
            raise DeviceError(f"{self.name} failed with {error}.") from error

    def _keep(self, handles: Handles, key: tuple[Any, ...], recipe: Recipe) -> Prepared:
        """Prepare a recipe. Store the prepared call in `handles` under `key`, and return the call."""
        records: Calls = handles.setdefault(self._records_key, Calls())
        with self.scope:
            prepared = self._prepare(recipe)
        records.store(key, prepared, bytes_of(prepared.steps))
        return prepared

    def _prepare(self, recipe: Recipe) -> Prepared:
        pending = [launch for shared in recipe.used for launch in shared.pending()]
        self._compile([*(step.launch for step in recipe.steps), *pending])
        ready = []
        for launch, operands, offsets in recipe.steps:
            if launch.grid[0] == 0:
                continue  # CUDA refuses a grid without blocks
            function = self._kernel(launch)
            sizes = launch.grid, launch.threads, launch.shared, launch.counters
            few = launch.grid[0] * launch.grid[1] <= _EARLY_BLOCKS
            early = few and self.card.capability >= _CAN_START_EARLY and waits(launch.file)
            ready.append((launch.kernel, function, *sizes, early, operands, offsets, launch.parameters))
        call = _cpu.Launches(self.driver, ready)
        return Prepared(call, ready, recipe.used, recipe.temporaries)

    def _compile(self, launches: Sequence[Launch]) -> None:
        """Compile the kernels that are not loaded yet, each in a thread of its own."""
        missing = {x.kernel: x for x in launches if x.kernel not in self._kernels and x.grid[0]}
        if not missing:
            return

        def one(launch: Launch) -> None:
            with self.scope:  # the current device is set for each thread
                self._kernel(launch)

        count = len(missing)
        with Work(count, "compiling {} for {}", counted(count, "kernel"), self.name) as work:
            if count == 1:
                one(*missing.values())
                return
            with ThreadPoolExecutor(count) as workers:
                for made in as_completed([workers.submit(one, launch) for launch in missing.values()]):
                    made.result()
                    work.step()

    def _kernel(self, launch: Launch) -> int:
        """Return the driver's handle of the kernel of `launch`.

        Load the kernel, and raise its limit of shared memory, if necessary.
        """
        kernel = self._kernels.get(launch.kernel)
        if kernel is None:
            began = time.perf_counter()
            try:
                module = self.xp.RawModule(
                    code=f"{text_of(launch.file)}\n// sources {digest()}\n",
                    options=("-std=c++17", f"-I{cuda_sources()}"),
                    name_expressions=(launch.kernel,),
                )
                # If several threads compile the kernel at once, all use the first result. The kernel
                # stays loaded, because prepared calls hold only its handle.
                kernel = self._kernels.setdefault(launch.kernel, module.get_function(launch.kernel))
            except Exception as error:  # from the compiler, the loader or the driver
                raise DeviceError(
                    f"{launch.kernel} does not compile or load on {self.name} ({error}). CuPy "
                    f"{self.xp.__version__} needs NVRTC and a driver of its CUDA version. {INSTALL}"
                ) from error
            _log.info("%s: %s in %.2f s", self.name, launch.kernel, time.perf_counter() - began)
        if launch.shared > 48 << 10:
            with self._one_at_a_time:
                if launch.shared > kernel.max_dynamic_shared_size_bytes:
                    kernel.max_dynamic_shared_size_bytes = launch.shared
        return int(kernel.kernel.ptr)

    # ---- operands ----

    def moduli_of(self, basis: Basis) -> Shared:
        """Return the array of a basis's moduli (struct Modulus) on the device."""
        return self.kept(
            basis.handles, "moduli", lambda: (self.from_host(modulus_constants(basis.moduli)), ())
        )

    def moduli(self, basis: Basis) -> int:
        """Return the address of a basis's moduli (struct Modulus), for a launch on the current stream."""
        return self.address(self.moduli_of(basis).on(self.stream()))

    def aligned(self, *arrays: Array) -> bool:
        """Return whether all arrays begin at multiples of ALIGNMENT bytes."""
        return all(self.address(x) % ALIGNMENT == 0 for x in arrays)
