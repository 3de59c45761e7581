"""The CUDA backend: kernels of cuda/ compiled at run time, launched through CuPy on its current stream.

Nothing here synchronises, and temporaries come from CuPy's pool. The one file that imports CuPy.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from ...errors import DeviceError, OutOfDeviceMemory, ParameterError
from ...plan import AuxiliaryPlan, FftPlan, Handles, Limbs, NttPlan, Permutation, Plan, unit_roots
from .. import Array, Op, cuda_sources, load
from .matmul_tiles import (
    LIMBS_EDGE,
    LOG_POINTS_THREADS,
    LONE_PRODUCT,
    MOST_NARROW,
    RESIDUE_DEPTH,
    PointsTile,
    coprimes,
    has_limbs,
    integer_tile,
    limbs_rows,
    limbs_shared,
    limbs_stages,
    matmul_method,
    narrow_lanes,
    part_of_sums,
    points_tile,
    residue_table,
    staged_tile,
    sum_of,
    weight_table,
)
from .tiles import (
    Card,
    Pass,
    Rows,
    fft_tile,
    flow_lag,
    kernel_digits,
    prefetch_distance,
    split_passes,
    word_bytes_of,
    word_of,
)

_OPS: dict[Op, int] = {"add": 0, "sub": 1, "neg": 2, "mul": 3, "mul_add": 4}
_LEAST_CAPABILITY = (7, 5)
_THREADS = 256  # of a block of the kernels that work entry by entry, and of products of integers
_CHUNK_BYTES = 1 << 28  # of residues modulo auxiliary primes held at a time
_ALIGNMENT = 16  # bytes that a thread moves at once (cuda/memory.cuh)
_SUM_BYTES = 1 << 30  # of 32-bit sums modulo small numbers held at a time
_CUDA_R_8I, _CUDA_R_32I = 3, 10  # cudaDataType
_MAX_PRIMES = 6  # crt.cu
_MAX_GRID_Y = 65535
_MAX_AXES = 6  # rows.cuh
_SMALL_BYTES = 1 << 12  # host arrays up to this size are kept on the device by value, larger ones by identity

_log = logging.getLogger("polygpu")
_INSTALL = 'pip install "polygpu[cuda13]" (CUDA 13) or pip install "polygpu[cuda12]" (CUDA 12) adds CuPy'


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
    """Why GPU `index` cannot be used, and what to do; None where it answers."""
    try:
        cupy = _cupy()
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); {_INSTALL}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (
            f"no GPU answers ({error}); check the driver with nvidia-smi, and that CuPy fits it: {_INSTALL}"
        )
    if index >= count:
        return f"there are {count} GPUs, numbered from 0"
    capability = _card(cupy, index).capability
    if capability < _LEAST_CAPABILITY:
        return "its compute capability is {}.{}, kernels need 7.5 or more".format(*capability)
    return None


def _card(cupy: Any, index: int) -> Card:
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    capability = properties["major"], properties["minor"]
    sizes = (properties[name] for name in ("sharedMemPerBlockOptin", "l2CacheSize", "multiProcessorCount"))
    return Card(capability, *sizes)


def describe() -> str:
    """The GPUs that answer, with driver and CuPy."""
    cupy = _cupy()
    runtime = cupy.cuda.runtime
    cards = []
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        memory = properties["totalGlobalMem"] / 2**30
        cards.append(f"cuda:{index} {properties['name'].decode()}, {memory:.0f} GiB")
    driver = runtime.driverGetVersion()
    return f"{'; '.join(cards)}; CUDA {driver // 1000}.{driver % 1000 // 10}, CuPy {cupy.__version__}"


# ---- what kernels read ----


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


def _constants(moduli: Sequence[int]) -> Array:
    """struct Modulus of cuda/modulus.cuh, one a row."""
    table = np.zeros((len(moduli), 16), np.uint64)
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


# ---- memory that outlives a call ----

# What the calls under a recording read, for the graph to keep.
_recorded: ContextVar[list[Any] | None] = ContextVar("polygpu_recorded", default=None)


class _Shared:
    """Arrays made once, on one stream, and read on any.

    Other streams wait for their making. Before their memory, which goes back to the first stream's pool,
    serves anything else, that stream waits for the others.
    """

    def __init__(self, value: Any, device: Any, stream: Any) -> None:
        self._value, self._device, self._home = value, device, stream
        self._made = stream.record()
        self._streams = {stream.ptr: stream}

    def on(self, stream: Any) -> Any:
        """The value, for work on a stream."""
        if stream.ptr not in self._streams:
            stream.wait_event(self._made)
            self._streams[stream.ptr] = stream
        recorded = _recorded.get()
        if recorded is not None:
            recorded.append(self)
        return self._value

    def __del__(self) -> None:
        if len(self._streams) > 1:
            try:  # at the end of the process CUDA may be gone, and this module's names
                with self._device:
                    for stream in self._streams.values():
                        self._home.wait_event(stream.record())
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


class _Here:
    """Enters a device; names it in errors of memory."""

    def __init__(self, name: str, cupy: Any, device: Any) -> None:
        self._name, self._device, self._error = name, device, cupy.cuda.memory.OutOfMemoryError

    def __enter__(self) -> None:
        self._device.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._device.__exit__(kind, error, trace)
        if isinstance(error, self._error):
            raise OutOfDeviceMemory(
                f"{self._name}: {error}; delete values that are no longer needed, take smaller batches, "
                "or give back what CuPy keeps with cupy.get_default_memory_pool().free_all_blocks()"
            ) from error


@dataclass(frozen=True)
class _Replay:
    """Launches a recorded graph."""

    here: Any
    graph: Any
    kept: tuple[Any, ...]  # all that the graph reads and writes
    result: Any

    def __call__(self) -> Any:
        with self.here:
            self.graph.launch()
        return self.result


# ---- the backend ----


class CudaBackend:
    """The kernels behind the protocol, on one GPU."""

    def __init__(self, index: int) -> None:
        cupy = self.xp = _cupy()
        self.name = f"cuda:{index}"
        self.card = _card(cupy, index)
        self._index = index
        self._device = cupy.cuda.Device(index)
        self._here = _Here(self.name, cupy, self._device)
        self._kernels: dict[str, Any] = {}

    # ---- arrays ----

    def to_host(self, x: Array) -> Array:
        """See Backend; waits for the stream."""
        return self.xp.asnumpy(x)  # type: ignore[no-any-return]

    def from_host(self, x: Array) -> Array:
        """See Backend."""
        with self._here:
            return self.xp.asarray(x)  # type: ignore[no-any-return]

    def constant(self, x: Array) -> Array:
        """See Backend: one copy a stream, small arrays known by their values, read-only ones by identity."""
        if x.nbytes <= _SMALL_BYTES:
            copy = self._small(self._stream().ptr, x.dtype.str, x.shape, x.tobytes())
        elif x.flags.writeable:
            return self.from_host(x)
        else:
            copy = self._large(self._stream().ptr, _Identity(x))
        recorded = _recorded.get()
        if recorded is not None:
            recorded.append(copy)
        return copy

    @lru_cache(maxsize=1024)  # noqa: B019  (a backend lives as long as the process)
    def _small(self, stream: int, dtype: str, shape: tuple[int, ...], data: bytes) -> Array:
        return self.from_host(np.frombuffer(data, dtype).reshape(shape))

    @lru_cache(maxsize=32)  # noqa: B019
    def _large(self, stream: int, array: _Identity) -> Array:
        return self.from_host(array.value)

    def _stream(self) -> Any:
        return self.xp.cuda.get_current_stream(self._index)

    def address(self, x: Array) -> int:
        """See Backend."""
        return int(x.data.ptr)  # type: ignore[attr-defined]

    def here(self) -> AbstractContextManager[Any]:
        """See Backend."""
        return self._here

    def capture(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """See Backend: a CUDA graph, with a memory pool of its own that no other call can reuse."""
        cuda = self.xp.cuda
        with self._here:
            pool, stream, recorded = cuda.MemoryPool(), cuda.Stream(non_blocking=True), list[Any]()
            stream.wait_event(cuda.get_current_stream().record())
            token = _recorded.set(recorded)
            try:
                with cuda.using_allocator(pool.malloc), stream:
                    f()  # compiles kernels, makes tables, fills the pool
                    stream.synchronize()
                    # Other threads may allocate meanwhile.
                    stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
                    try:
                        result = f()
                    finally:
                        graph = stream.end_capture()
            finally:
                _recorded.reset(token)
        return _Replay(self._here, graph, (f, pool, stream, recorded), result)

    # ---- launching ----

    def _kernel(self, file: str, expression: str) -> Any:
        kernel = self._kernels.get(expression)
        if kernel is None:
            began = time.perf_counter()
            with open(os.path.join(cuda_sources(), file)) as source:
                code = source.read()
            try:
                module = self.xp.RawModule(
                    code=f"{code}\n// sources {_digest()}\n",
                    options=("-std=c++17", f"-I{cuda_sources()}"),
                    name_expressions=(expression,),
                )
                kernel = self._kernels[expression] = module.get_function(expression)
            except Exception as error:  # of the compiler, of the loader, of the driver
                raise DeviceError(
                    f"{self.name}: {expression} does not compile or load: {error}; "
                    f"CuPy {self.xp.__version__} needs NVRTC and a driver of its CUDA version: {_INSTALL}"
                ) from error
            _log.info("%s: %s in %.2f s", self.name, expression, time.perf_counter() - began)
        return kernel

    def _run(
        self,
        file: str,
        expression: str,
        grid: int,
        threads: int,
        args: Sequence[Any],
        shared: int = 0,
        rows: int = 1,
    ) -> None:
        """Launch on the current stream; Python ints go as 64-bit, np.uint32 as 32-bit arguments."""
        if grid == 0:
            return
        with self._here:
            kernel = self._kernel(file, expression)
            if shared > 48 << 10:
                kernel.max_dynamic_shared_size_bytes = shared
            kernel((grid, rows), (threads,), tuple(args), shared_mem=shared)

    def _entrywise(
        self, file: str, expression: str, entries: int, args: Sequence[Any], rows: int = 1
    ) -> None:
        self._run(file, expression, -(-entries // _THREADS), _THREADS, args, rows=rows)

    def _shared(self, handles: Handles, key: str, make: Callable[[], Any]) -> Any:
        """What a plan's handles hold for this device, made where they hold nothing."""
        shared = handles.get(f"{self.name} {key}")
        if shared is None:
            with self._here:
                made = _Shared(make(), self._device, self._stream())
            shared = handles.setdefault(f"{self.name} {key}", made)  # another thread may have been faster
        return shared.on(self._stream())

    def _moduli(self, limbs: Limbs) -> Array:
        moduli: Array = self._shared(
            limbs.handles, "moduli", lambda: self.from_host(_constants(limbs.moduli))
        )
        return moduli

    def _tables(self, plan: NttPlan, passes: tuple[Pass, ...]) -> dict[str, Any]:
        key = f"tables {[p.shape for p in passes]}"
        tables: dict[str, Any] = self._shared(plan.handles, key, lambda: self._make_tables(plan, passes))
        return tables

    def _make_tables(self, plan: NttPlan, passes: tuple[Pass, ...]) -> dict[str, Any]:
        """Twiddles by direction and pass, and the constants of incomplete leaves, made on the device."""
        limbs, points = plan.limbs, plan.points
        word = word_of(limbs, self.card)
        bits = points.bit_length() - (1 if plan.kind == "negacyclic" else 2)
        size = 1 if word == "Float64" else 2  # entries of W::Twiddle
        moduli = self._moduli(limbs)
        starts = [self.from_host(np.array(p.starts, np.uint32)) for p in passes]
        rows = len(limbs.moduli)
        tables: dict[str, Any] = {}
        for name, sign in (("forward", 1), ("inverse", -1)):
            factors = np.ones((rows, max(bits, 1)), np.uint64)
            scale = np.ones(rows, np.uint64)
            for i, (q, root) in enumerate(zip(limbs.moduli, plan.roots, strict=True)):
                x = pow(root, sign, q)
                for d in reversed(range(bits)):
                    factors[i, d], x = x, x * x % q
                if sign < 0:
                    scale[i] = pow(points, -1, q)
            constants = [self.from_host(x) for x in (factors, scale)]
            tables[name] = {}
            for p, starts_of_pass in zip(passes, starts, strict=True):
                entries = 1 << (p.log_blocks + p.log_length)
                table = tables[name][p] = self.xp.empty((rows, entries, size), limbs.dtype)
                args = [table, moduli, *constants, starts_of_pass]
                args += [np.uint32(x) for x in (p.log_blocks, p.log_length, bits, plan.kind == "negacyclic")]
                self._entrywise("tables.cu", f"fill_twiddles<{word}>", entries, args, rows)
        if plan.base > 1 and points > 1:
            tables["leaves"] = self.xp.empty((rows, points), np.uint64)
            last = passes[-1]
            args = [tables["leaves"], tables["forward"][last], moduli, starts[-1]]
            args += [np.uint32(last.log_blocks), np.uint32(last.log_length)]
            self._entrywise("tables.cu", f"fill_leaves<{word}>", points, args, rows)
        elif plan.base > 1:
            leaves = [[q - 1 if plan.kind == "negacyclic" else 1] for q in limbs.moduli]
            tables["leaves"] = self.from_host(np.array(leaves, np.uint64))
        return tables

    def _on_host(self, method: str, *args: Any) -> None:
        """A wide modulus is computed on by the CPU backend; the last argument is the result."""
        *operands, out = args
        host = [self.to_host(x) if isinstance(x, self.xp.ndarray) else x for x in operands]
        result = np.empty(out.shape, out.dtype)
        getattr(load("cpu"), method)(*host, result)
        out.set(result)

    def _aligned(self, *arrays: Array) -> bool:
        """Whether kernels may move their values in chunks."""
        return all(self.address(x) % _ALIGNMENT == 0 for x in arrays)

    # ---- residues one by one ----

    def _spread(self, shape: tuple[int, ...], *operands: Array) -> tuple[list[Array], Array, np.uint32]:
        """Operands of a result (*batch, rows, n) as kernels want them, the layout (rows.cuh), and `dense`."""
        if len(shape) - 2 > _MAX_AXES:
            operands = tuple(self._broadcast(x, shape) for x in operands)
        if all(x.shape[:-1] == shape[:-1] for x in operands):
            return list(operands), operands[0], np.uint32(True)  # no kernel reads a dense layout
        layout = _layout(shape[:-1], tuple(x.shape[:-1] for x in operands))
        return list(operands), self.constant(layout), np.uint32(False)

    def _broadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        """A copy in the full shape; the operand itself where it has that."""
        if x.shape == shape:
            return x
        with self._here:
            return self.xp.ascontiguousarray(self.xp.broadcast_to(x, shape))  # type: ignore[no-any-return]

    def _repeated(self, x: Array, shape: tuple[int, ...]) -> Array:
        """For kernels that repeat an operand over leading axes: other ways to broadcast take a copy."""
        return x if shape[len(shape) - x.ndim :] == x.shape else self._broadcast(x, shape)

    def prefers_fft(self, plan: FftPlan, residues: int) -> bool:
        """See Backend; by measurement (docs/performance.md), of one kernel and of passes."""
        if fft_tile(plan, self.card) is None:
            return plan.work(plan.digits) < 4 * residues
        return plan.work(kernel_digits(plan)) < 10 * residues

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """See Backend; by measurement (docs/studies/gemm.md)."""
        complete = isinstance(plan, NttPlan) and plan.base == 1
        return not complete and plan.degree <= 128 and count * plan.degree >= 1 << 22

    def pointwise(self, limbs: Limbs, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """See Backend."""
        if limbs.wide:
            self._on_host("pointwise", limbs, op, a, b, c, out)
            return
        operands, layout, dense = self._spread(out.shape, a, a if b is None else b, a if c is None else c)
        args = [*operands, out, self._moduli(limbs), layout, np.uint64(out.shape[-1])]
        args += [np.uint64(operands[1].shape[-1]), np.uint64(out.size), np.uint32(limbs.rows), dense]
        width = _ALIGNMENT // out.dtype.itemsize
        if out.shape[-1] % width or not self._aligned(*(x for x in (*operands, out) if x.shape[-1] > 1)):
            width = 1
        expression = f"pointwise<{_ctype(limbs)}, {_OPS[op]}, {width}>"
        self._entrywise("pointwise.cu", expression, out.size // width, args)

    def permute(self, limbs: Limbs, x: Array, permutation: Permutation, out: Array) -> None:
        """See Backend."""
        if limbs.wide:
            self._on_host("permute", limbs, x, permutation, out)
            return
        p = permutation
        args = [x, out, self._moduli(limbs), *map(np.uint64, (p.n, p.order, p.multiplier, p.offset))]
        args += [np.uint64(out.size), np.uint32(limbs.rows)]
        expression = f"permute<{_ctype(limbs)}, {_bool(p.evaluated)}>"
        self._entrywise("pointwise.cu", expression, out.size, args)

    def reduce_integers(self, limbs: Limbs, x: Array, out: Array) -> None:
        """See Backend."""
        if limbs.wide:
            self._on_host("reduce_integers", limbs, x, out)
            return
        args: list[Any] = [x, out, self._moduli(limbs), np.uint64(x.shape[-1]), np.uint64(out.shape[-1])]
        args += [np.uint64(out.size), np.uint32(limbs.rows), np.uint32(x.dtype.kind == "i")]
        self._entrywise("pointwise.cu", f"reduce_integers<{_ctype(limbs)}>", out.size, args)

    # ---- transforms ----

    def _pass(self, rows: Rows, passed: Pass, tables: Array) -> tuple[int, int, list[Any]]:
        """The grid in x and y, and the arguments that all transform kernels share."""
        limbs, log_degree = rows.limbs, rows.log_degree
        tiles = rows.count << log_degree >> (passed.log_length + passed.log_columns)
        args = [rows.moduli, tables, np.uint64(tiles), np.uint32(limbs)]
        args += [np.uint32(log_degree), np.uint32(passed.log_blocks)]
        log_parts = log_degree - passed.log_block_values
        # Where twiddles are more than an eighth of the cache, rows that share them run side by side.
        large = 8 * tables.nbytes > self.card.l2_bytes
        if large and log_parts >= 0 and limbs << log_parts <= _MAX_GRID_Y:
            return rows.count // limbs, limbs << log_parts, args
        return -(-tiles >> passed.log_rows), 1, args

    def _passes(self, plan: NttPlan, rows: int | None = None) -> tuple[Pass, ...]:
        """The passes over so many rows; over many where none is given."""
        if plan.points == 1:
            return ()
        few = rows is not None and rows * plan.degree < self.card.multiprocessors << 12
        return split_passes(plan.points, plan.base, plan.limbs.dtype.itemsize, self.card, few)

    def _transform(self, plan: NttPlan, x: Array, out: Array, direction: str) -> None:
        rows = prod(out.shape[:-1])
        if plan.points == 1:
            with self._here:
                out[...] = x
            return
        if not self._aligned(x, out):
            with self._here:
                aligned = x.copy()
            self._transform(plan, aligned, aligned, direction)
            with self._here:
                out[...] = aligned
            return
        passes = self._passes(plan, rows)
        tables, word = self._tables(plan, passes)[direction], word_of(plan.limbs, self.card)
        log_degree, moduli = plan.degree.bit_length() - 1, self._moduli(plan.limbs)
        self._run_passes(
            Rows(rows, len(plan.limbs.moduli), log_degree, word, moduli), passes, tables, x, out, direction
        )

    def _run_passes(
        self,
        rows: Rows,
        passes: tuple[Pass, ...],
        tables: dict[Pass, Array],
        x: Array,
        out: Array,
        direction: str,
    ) -> None:
        word, word_bytes, log_degree = rows.word, word_bytes_of(rows.word), rows.log_degree
        steps: list[tuple[Pass, ...]] = [(p,) for p in passes]
        lag = 0
        if len(passes) > 1:
            columns, last = passes[-2:]
            units = rows.count << columns.log_blocks
            lag = flow_lag(columns, last, log_degree, units, word, self.card)
            if lag:
                steps[-2:] = [(columns, last)]
        source = x
        for i, step in enumerate(steps if direction == "forward" else steps[::-1]):
            grid, grid_y, args = self._pass(rows, step[0], tables[step[0]])
            lazy_in, root = i > 0, i + 1 == len(steps)  # whether the last stages of an inverse are the root's
            if len(step) == 1:
                name, flags = f"ntt_{direction}", [lazy_in, root if direction == "inverse" else not root]
                args.append(np.uint32(prefetch_distance(step[0], word_bytes, self.card)))
            else:
                name, flags = f"ntt_{direction}_flow", [root if direction == "inverse" else lazy_in]
                with self._here:
                    progress = self.xp.zeros(1 + units, np.uint32)
                args[2] = np.uint64(units)
                args += [tables[last], progress, np.uint32(lag)]
                tasks = (1 << (log_degree - columns.log_blocks - p.log_block_values) for p in step)
                grid, grid_y = (units + lag) * sum(tasks), 1
            arguments = ", ".join([word, *(p.shape for p in step), *map(_bool, flags)])
            shared = max(p.shared_values for p in step) * word_bytes
            args = [source, out, *args]
            self._run("ntt.cu", f"{name}<{arguments}>", grid, step[0].threads, args, shared, grid_y)
            source = out

    def ntt(self, plan: NttPlan, x: Array, out: Array) -> None:
        """See Backend."""
        if plan.limbs.wide:
            self._on_host("ntt", plan, x, out)
        else:
            self._transform(plan, x, out, "forward")

    def intt(self, plan: NttPlan, x: Array, out: Array) -> None:
        """See Backend."""
        if plan.limbs.wide:
            self._on_host("intt", plan, x, out)
        else:
            self._transform(plan, x, out, "inverse")

    def multiply_leaves(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        limbs = plan.limbs
        if limbs.wide:
            self._on_host("multiply_leaves", plan, a, b, out)
        elif plan.base == 1:
            self.pointwise(limbs, "mul", a, b, None, out)
        else:
            # Every coefficient of a leaf reads all of both operands' leaf.
            with self._here:
                a, b = (x.copy() if self.xp.may_share_memory(x, out) else x for x in (a, b))
            operands, layout, dense = self._spread(out.shape, a, b)
            tables = self._tables(plan, self._passes(plan, prod(out.shape[:-1])))
            args: list[Any] = [*operands, out, tables["leaves"], self._moduli(limbs), layout]
            args += [np.uint64(plan.degree), np.uint64(out.size), np.uint32(limbs.rows)]
            args += [np.uint32(plan.base), dense]
            self._entrywise("pointwise.cu", f"multiply_leaves<{_ctype(limbs)}>", out.size, args)

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        if plan.limbs.wide:
            self._on_host("multiply", plan, a, b, out)
        elif isinstance(plan, AuxiliaryPlan):
            self._multiply_auxiliary(plan, a, b, out)
        elif isinstance(plan, FftPlan):
            self._multiply_fft(plan, a, b, out)
        elif self._fuses(plan):
            self._multiply_fused(plan, a, b, out)
        else:
            with self._here:
                x = self.xp.empty(a.shape, a.dtype)
                y = x if b is a else self.xp.empty(b.shape, b.dtype)
            self.ntt(plan, a, x)
            if b is not a:
                self.ntt(plan, b, y)
            self.multiply_leaves(plan, x, y, out)
            self.intt(plan, out, out)

    def _multiply_fft(self, plan: FftPlan, a: Array, b: Array, out: Array) -> None:
        tile = fft_tile(plan, self.card)
        if tile is None:
            self._multiply_fft_in_passes(plan, a, b, out)
            return
        digits = kernel_digits(plan)
        width, sums = plan.split(digits)
        fold = plan.length != plan.degree or plan.kind == "cyclic"
        units, limbs = prod(out.shape[:-1]), plan.limbs
        operands = [self._repeated(x, out.shape) for x in (a, b)]
        args = [*operands, out, self._moduli(limbs), self._fft_tables(plan, (tile,))[tile], np.uint64(units)]
        args += [np.uint64(prod(x.shape[:-1])) for x in operands]
        args += [np.uint32(x) for x in (limbs.rows, plan.degree, width, sums, plan.kind == "negacyclic")]
        expression = f"fft_product<{_ctype(limbs)}, {tile.shape}, {digits}, {_bool(fold)}>"
        shared = tile.shared_values * word_bytes_of("Complex128")
        grid = -(-units * 2 * digits >> tile.log_rows)
        self._run("fft_product.cu", expression, grid, tile.threads, args, shared)

    def _multiply_fft_in_passes(self, plan: FftPlan, a: Array, b: Array, out: Array) -> None:
        limbs, points, (width, sums) = plan.limbs, plan.points, plan.split(plan.digits)
        moduli, log_points = self._moduli(limbs), points.bit_length() - 1
        passes = split_passes(points, 1, word_bytes_of("Complex128"), self.card)
        tables = self._fft_tables(plan, passes)
        units = prod(out.shape[:-1])
        step = max(1, _CHUNK_BYTES // (16 * points * (2 * plan.digits + sums)))
        for first in range(0, units, step):
            size = min(step, units - first)

            def rows(count: int, size: int = size) -> Rows:
                return Rows(size * count, 1, log_points, "Complex128", moduli)

            spectra: list[Array] = []
            for x in (a,) if b is a else (a, b):
                with self._here:
                    y = self.xp.empty((size, plan.digits, points), np.complex128)
                (source,), layout, dense = self._spread(out.shape, x)
                args = [source, y, moduli, layout, *map(np.uint64, (plan.degree, points, size, first))]
                args += [*map(np.uint32, (limbs.rows, plan.digits, width)), dense]
                self._entrywise("fft_product.cu", f"fft_split<{_ctype(limbs)}>", size * points, args)
                self._run_passes(rows(plan.digits), passes, tables, y, y, "forward")
                spectra.append(y)
            with self._here:
                c = self.xp.empty((size, sums, points), np.complex128)
            args = [spectra[0], spectra[-1], c, *map(np.uint64, (points, size))]
            args += map(np.uint32, (plan.digits, sums))
            self._entrywise("fft_product.cu", "fft_multiply", size * points, args)
            self._run_passes(rows(sums), passes, tables, c, c, "inverse")
            args = [c, out, moduli, *map(np.uint64, (plan.degree, points, size, first))]
            args += map(np.uint32, (limbs.rows, width, sums, plan.kind == "negacyclic"))
            self._entrywise("fft_product.cu", f"fft_compose<{_ctype(limbs)}>", size * plan.degree, args)

    def _fft_tables(self, plan: FftPlan, passes: tuple[Pass, ...]) -> dict[Pass, Array]:
        """Twiddles by pass, in its order."""

        def make() -> dict[Pass, Array]:
            nodes = self.from_host(plan.twiddles)
            tables = {}
            for p in passes:
                entries = 1 << (p.log_blocks + p.log_length)
                tables[p] = self.xp.empty(entries, np.complex128)
                starts = self.from_host(np.array(p.starts, np.uint32))
                args = [tables[p], nodes, starts, np.uint32(p.log_blocks), np.uint32(p.log_length)]
                self._entrywise("tables.cu", "arrange_twiddles<Complex128>", entries, args)
            return tables

        return self._shared(plan.handles, f"tables {passes}", make)  # type: ignore[no-any-return]

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """See Backend."""
        n = x.shape[-1]
        if n == 1:
            with self._here:
                out[...] = x
            return
        self._run_fft(f"fft<{{}}, {{}}, {_bool(inverse)}>", [x, out])

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        self._run_fft("fft_convolve<{}, {}>", [a, b, out], np.uint64(len(b)))

    def _run_fft(self, expression: str, arrays: Sequence[Array], *more: Any) -> None:
        """Launch a kernel of fft.cu on rows of arrays; its name lacks the type and log2 of the length."""
        rows, n = arrays[0].shape
        dtype = arrays[0].dtype
        lanes = max(1, n // 8)
        threads = max(128, lanes)
        rows_of_block = threads // lanes
        args = [*arrays, self.constant(_fft_twiddles(n, dtype)), np.uint64(rows), *more]
        shared = rows_of_block * n * dtype.itemsize
        name = expression.format("float" if dtype == np.complex64 else "double", n.bit_length() - 1)
        self._run("fft.cu", name, -(-rows // rows_of_block), threads, args, shared)

    # ---- products of matrices on tensor cores ----

    def _matmul_limbs(self, limbs: Limbs, a: Array, b: Array, out: Array) -> None:
        """By bytes of the words, where has_limbs."""
        (batch, m, n), k, size = out.shape, a.shape[2], limbs.dtype.itemsize
        stages, rows = limbs_stages(size, self.card), limbs_rows(m)
        aligned = next(x for x in (16, 8, 4) if k * size % x == 0 and self.address(a) % x == 0)
        expression = f"gemm_limbs<{_ctype(limbs)}, {rows}, {LIMBS_EDGE}, 64, {stages}, {aligned}>"
        shared = limbs_shared(size, rows, self.card)
        grid = batch * -(-m // rows) * -(-n * size // LIMBS_EDGE)
        steps = [np.uint64(x.shape[1] * x.shape[2] if len(x) > 1 else 0) for x in (a, b)]
        longest = (1 << 15) // size
        for first in range(0, k, longest):
            operands = [a.reshape(-1)[first:], b.reshape(-1)[first * n :], out, self._moduli(limbs)]
            sizes = [np.uint32(x) for x in (m, n, min(longest, k - first))]
            args = [*operands, *sizes, np.uint64(k), *steps, np.uint32(first > 0)]
            self._run("gemm.cu", expression, grid, rows, args, shared)

    def _matmul_residues(self, limbs: Limbs, a: Array, b: Array, out: Array) -> None:
        """By residues modulo small numbers, multiplied by cuBLAS: q up to 2^62."""
        longest = RESIDUE_DEPTH
        for first in range(0, a.shape[2], longest):
            with self._here:
                left, right = (
                    self.xp.ascontiguousarray(x)
                    for x in (a[:, :, first : first + longest], b[:, first : first + longest])
                )
            self._add_residues(limbs, left, right, out, first > 0)

    def _add_residues(self, limbs: Limbs, a: Array, b: Array, out: Array, add: bool) -> None:
        (batch, m, n), k, (q,) = out.shape, a.shape[2], limbs.moduli
        primes = coprimes(q, k)
        count, depth, pitch = len(primes), -(-k // 64) * 64, -(-n // 4) * 4
        moduli, weights = self._moduli(limbs), self.constant(weight_table(q, primes))
        tables = [self.constant(residue_table(primes, limbs.dtype.itemsize, left)) for left in (True, False)]
        # Matrices, or rows of one, whose sums are held at a time.
        most = max(128, _SUM_BYTES // (4 * count * pitch))
        parts = -(-m // most)
        tall, matrices = (m, most // m) if parts == 1 else (-(-m // (128 * parts)) * 128, 1)
        for r in range(0, m, tall):
            height = min(tall, m - r)
            for s in range(0, batch, matrices):
                size = min(matrices, batch - s)
                if s == 0 or len(a) > 1:
                    left = self._residues(
                        limbs, a[s : s + size, r : r + height], tables[0], height, depth, False
                    )
                if s == r == 0 or len(b) > 1:
                    right = self._residues(limbs, b[s : s + size], tables[1], pitch, depth, True)
                with self._here:
                    sums = self.xp.empty((count, size, height, pitch), np.int32)
                self._multiply_bytes(left, right, sums)
                result = out[s : s + size, r : r + height]
                args = [sums, result, moduli, tables[0], weights, np.uint32(count), np.uint64(size * height)]
                args += [np.uint32(x) for x in (n, pitch, add)]
                self._entrywise("gemm.cu", f"gemm_compose<{_ctype(limbs)}>", sums[0].size // 4, args)

    def _residues(
        self, limbs: Limbs, x: Array, table: Array, rows: int, depth: int, transposed: bool
    ) -> Array:
        """Of (size, rows, k), or (size, k, rows), modulo each of a table: (count, size, rows, depth)."""
        count, size, k = len(table), len(x), x.shape[1 if transposed else 2]
        with self._here:
            residues: Array = self.xp.empty((count, size, rows, depth), np.int8)
        args = [x, residues, self._moduli(limbs), table, np.uint32(count), np.uint64(size)]
        args += [np.uint32(v) for v in (x.shape[2] if transposed else rows, rows, k, depth)]
        groups = -(-rows // 8) * 8 if transposed else rows
        expression = f"gemm_split<{_ctype(limbs)}, {_bool(transposed)}>"
        self._entrywise("gemm.cu", expression, size * groups * depth // 8, args)
        return residues

    def _multiply_bytes(self, left: Array, right: Array, sums: Array) -> None:
        """sums[..., i, j] = left[..., i, :] . right[..., j, :] by cuBLAS; a second axis of 1 is shared."""
        cublas = self.xp.cuda.cublas
        (_, size, m, n), k = sums.shape, left.shape[3]
        left_step, right_step = (prod(x.shape[2:]) * (x.shape[1] == size) for x in (left, right))
        one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
        together = left_step and right_step and m * n * k < LONE_PRODUCT
        with self._here:
            handle = self.xp.cuda.device.get_cublas_handle()
            for x, y, z in [(left, right, sums)] if together else zip(left, right, sums, strict=True):
                # By columns: the transpose of sums is right times the transpose of left.
                cublas.gemmStridedBatchedEx(
                    *(handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, n, m, k),
                    *(one.ctypes.data, self.address(y), _CUDA_R_8I, k, right_step),
                    *(self.address(x), _CUDA_R_8I, k, left_step),
                    *(zero.ctypes.data, self.address(z), _CUDA_R_32I, n, m * n),
                    *(z.size // (m * n), cublas.CUBLAS_COMPUTE_32I, cublas.CUBLAS_GEMM_DEFAULT),
                )

    def _fuses(self, plan: NttPlan) -> bool:
        """Whether both operands fit the registers of one block's threads."""
        passes = self._passes(plan)
        if plan.base > 1 or len(passes) != 1:
            return False
        word_bytes = plan.limbs.dtype.itemsize
        fits = 2 * passes[0].shared_values * word_bytes <= self.card.shared_bytes
        return fits and word_bytes << passes[0].log_values <= 128

    def _multiply_fused(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        count = prod(out.shape[:-1])
        passes = self._passes(plan, count)
        if len(passes) > 1:  # of few rows, which one kernel does sooner than two passes thrice
            passes = self._passes(plan)
        (passed,) = passes
        tables = self._tables(plan, passes)
        word, log_degree = word_of(plan.limbs, self.card), plan.degree.bit_length() - 1
        rows = Rows(count, len(plan.limbs.moduli), log_degree, word, self._moduli(plan.limbs))
        grid, grid_y, args = self._pass(rows, passed, tables["forward"][passed])
        shared = 2 * passed.shared_values * plan.limbs.dtype.itemsize
        a, b = (self._repeated(x, out.shape) for x in (a, b))
        args = [
            a,
            b,
            out,
            *args,
            tables["inverse"][passed],
            np.uint64(prod(a.shape[:-1])),
            np.uint64(prod(b.shape[:-1])),
            np.uint32(prefetch_distance(passed, plan.limbs.dtype.itemsize, self.card)),
        ]
        expression = f"ntt_product<{word}, {passed.shape}>"
        self._run("ntt.cu", expression, grid, passed.threads, args, shared, grid_y)

    def _multiply_auxiliary(self, plan: AuxiliaryPlan, a: Array, b: Array, out: Array) -> None:
        limbs, transform, n = plan.limbs, plan.transform, plan.degree
        count, length = len(transform.limbs.moduli), transform.degree
        if count > _MAX_PRIMES:
            raise ParameterError(
                f"product: n = {n} takes {count} auxiliary primes, at most {_MAX_PRIMES} fit a kernel; "
                "multiply on the host with poly.cpu()"
            )
        constants = self._shared(
            plan.handles, "digits", lambda: self.from_host(_mixed_radix(transform.limbs.moduli))
        )
        moduli, primes = self._moduli(limbs), self._moduli(transform.limbs)
        spread = [self._spread(out.shape, x) for x in (a, b)]
        units, sizes = prod(out.shape[:-1]), [np.uint64(n), np.uint64(length)]
        step = max(1, _CHUNK_BYTES // (8 * count * length))
        for first in range(0, units, step):
            size = min(step, units - first)
            where = [np.uint64(size), np.uint64(first), np.uint32(limbs.rows), np.uint32(count)]
            residues = []
            for (x,), layout, dense in spread:
                with self._here:
                    residues.append(self.xp.empty((size, count, length), np.uint64))
                args: list[Any] = [x, residues[-1], moduli, primes, layout, *sizes, *where, dense]
                self._entrywise("crt.cu", f"crt_spread<{_ctype(limbs)}>", size * length, args)
            self.multiply(transform, residues[0], residues[1], residues[0])
            args = [residues[0], out, moduli, primes, constants, *sizes, *where]
            args.append(np.uint32(plan.kind == "negacyclic"))
            self._entrywise("crt.cu", f"crt_compose<{_ctype(limbs)}>", size * n, args)

    # ---- products of matrices ----

    def matmul(self, limbs: Limbs, a: Array, b: Array, out: Array) -> None:
        """See Backend. CuPy records no call of cuBLAS in a graph: products take another way there."""
        (batch, m, n), k, (q,), size = out.shape, a.shape[2], limbs.moduli, limbs.dtype.itemsize
        if not out.size or not k:
            with self._here:
                out[...] = 0
            return
        method = matmul_method(q, size, batch, m, k, n, self.card)
        if method == "residues" and not self._stream().is_capturing() and _recorded.get() is None:
            try:
                self._matmul_residues(limbs, a, b, out)
                return
            except OutOfDeviceMemory:  # the other ways need none
                pass
        if method == "integer" or not has_limbs(q, size):
            self._matmul_integer(limbs, a, b, out)
        else:
            self._matmul_limbs(limbs, a, b, out)

    def _matmul_integer(self, limbs: Limbs, a: Array, b: Array, out: Array) -> None:
        """By the integer arithmetic of CUDA cores. Few long sums are taken in parts."""
        (batch, rows, columns), length = out.shape, a.shape[2]
        part = part_of_sums(sum_of(limbs), batch, rows, columns, length, self.card)
        if part == length:
            self._matmul_parts(limbs, a, b, out, part)
            return
        parts = -(-length // part)
        with self._here:
            sums = self.xp.empty((parts, rows, columns), out.dtype)
            ones = self.xp.ones((1, 1, parts), out.dtype)
        self._matmul_parts(limbs, a, b, sums, part)
        self._matmul_integer(limbs, ones, sums.reshape(1, parts, -1), out.reshape(1, 1, -1))

    def _matmul_parts(self, limbs: Limbs, a: Array, b: Array, out: Array, part: int) -> None:
        """The products; or, where a part is shorter than the sums, those of all parts of one product."""
        if out.size == 0:
            return
        word, (batch, rows, columns), moduli = sum_of(limbs), out.shape, self._moduli(limbs)
        length, width = a.shape[2], _ALIGNMENT // out.dtype.itemsize
        if part < length:
            total, a_batch, b_batch = length, part, part * columns
        else:
            total = batch * length
            a_batch, b_batch = (x.shape[1] * x.shape[2] if len(x) > 1 else 0 for x in (a, b))
        if columns <= MOST_NARROW:
            if columns > 1:
                with self._here:
                    b = self.xp.ascontiguousarray(b.swapaxes(1, 2))
            if part < length:
                b_batch = part
            if length % width or part % width or not self._aligned(a, b):
                width = 1
            log_lanes, grid = narrow_lanes(batch, rows, columns, -(-part // width), self.card)
            sizes = (a_batch, b_batch, length, rows, columns, total, part)
            args = [a, b, out, moduli, *map(np.uint64, sizes), np.uint32(log_lanes)]
            expression = f"matmul_narrow<{word}, {1 << (columns - 1).bit_length()}, {width}>"
            self._run("matmul.cu", expression, grid, _THREADS, args)
        elif rows <= MOST_NARROW:
            chunks = columns % width == 0 and self._aligned(b, out)
            tile = points_tile(limbs, batch, rows, 1, columns, chunks, self.card)
            steps = (a_batch, length, 1, b_batch, columns, 0, rows * columns, columns, 0)
            self._run_points(limbs, a, b, out, steps, (batch, rows, 1, total, part, columns), tile, True)
        else:
            sizes = (a_batch, length, b_batch, rows, columns, total, part)
            args = [a, b, out, moduli, *map(np.uint64, sizes)]
            of_integers = integer_tile(word, batch, rows, columns, self.card)
            self._run(
                "matmul.cu", f"matmul_integer<{word}, {of_integers.side}>", of_integers.grid, _THREADS, args
            )

    def matmul_points(self, limbs: Limbs, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        if out.size == 0:
            return
        batch, rows, columns, _, points = out.shape
        item = out.dtype.itemsize
        arrays = [x for x in (a, b, out) if x.size]
        strides = [x.strides[i] for x in arrays for i in range(3) if x.shape[i] > 1]
        chunks = not any(size % _ALIGNMENT for size in (points * item, *strides)) and self._aligned(*arrays)
        steps = [size // item for x in (a, b, out) for size in x.strides[:3]]
        length = a.shape[2]
        staged = chunks and staged_tile(limbs, batch, rows, columns, length, points, self.card)
        if staged:
            args = [a, b, out, self._moduli(limbs), *map(np.int64, steps)]
            args += map(np.uint64, (batch, rows, columns, points, limbs.rows * points))
            args.append(np.uint32(length))
            expression = f"matmul_points_staged<{sum_of(limbs)}, {staged.side}, {staged.width}>"
            self._run("matmul.cu", expression, staged.grid, 1 << LOG_POINTS_THREADS, args)
            return
        tile = points_tile(limbs, batch, rows, columns, points, chunks, self.card)
        sizes = (batch, rows, columns, batch * length, length, points)
        self._run_points(limbs, a, b, out, steps, sizes, tile, False)

    def _run_points(
        self,
        limbs: Limbs,
        a: Array,
        b: Array,
        out: Array,
        steps: Sequence[int],
        sizes: Sequence[int],
        tile: PointsTile,
        integers: bool,
    ) -> None:
        args = [a, b, out, self._moduli(limbs), *map(np.int64, steps), *map(np.uint64, sizes)]
        args.append(np.uint64(limbs.rows * sizes[-1]))
        args += map(np.uint32, (tile.log_lanes, tile.log_columns, tile.log_rows))
        shape = f"{tile.rows}, {tile.columns}, {tile.width}"
        expression = f"matmul_points<{sum_of(limbs)}, {shape}, {_bool(integers)}>"
        self._run("matmul.cu", expression, tile.grid, 1 << LOG_POINTS_THREADS, args)


@lru_cache(maxsize=64)
def _fft_twiddles(n: int, dtype: np.dtype[Any]) -> Array:
    """Twiddles of cuda/fft.cu: exp(-2 pi i r i / (P R)) at r P + i, for the round after those of P."""
    table = np.ones(n, dtype)
    log_p, log_r = 0, (n.bit_length() - 2) % 3 + 1
    while 1 << log_p + log_r < n:
        log_p, log_r = log_p + log_r, 3
        r, i = np.divmod(np.arange(1 << log_p, 1 << log_p + log_r), 1 << log_p)
        table[1 << log_p : 1 << log_p + log_r] = unit_roots(-r * i, 1 << log_p + log_r)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=256)
def _layout(shape: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> Array:
    """Batch shape and operands' steps in rows, as cuda/rows.cuh wants them; shapes end in the limbs."""
    limbs, batch = shape[-1], shape[:-1]
    table = np.zeros((1 + len(operands), _MAX_AXES), np.uint64)
    table[0] = 1
    table[0, _MAX_AXES - len(batch) :] = batch
    for i, operand in enumerate(operands):
        step = limbs
        for axis, size in enumerate(reversed(operand[:-1])):
            if size != 1:
                table[i + 1, _MAX_AXES - 1 - axis] = step
            step *= size
    return table


def _ctype(limbs: Limbs) -> str:
    return "u32" if limbs.dtype == np.uint32 else "u64"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _mixed_radix(primes: tuple[int, ...]) -> Array:
    """1/p_j mod p_i, row by row, then the mixed-radix digits of (P - 1) / 2 (crt.cu)."""
    count = len(primes)
    table = np.zeros(count * count + count, np.uint64)
    for i, p in enumerate(primes):
        for j in range(i):
            table[i * count + j] = pow(primes[j], -1, p)
    rest = (prod(primes) - 1) // 2
    for i, p in enumerate(primes):
        rest, table[count * count + i] = divmod(rest, p)
    return table
