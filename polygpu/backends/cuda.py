"""The CUDA backend: kernels of cuda/ compiled at run time, launched through CuPy on its current stream.

Nothing here synchronises, and temporaries come from CuPy's pool. The one file that imports CuPy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from ..errors import ParameterError
from ..plan import AuxiliaryPlan, Limbs, NttPlan, Plan
from . import Array, Op, cuda_sources, load

_OPS: dict[Op, int] = {"add": 0, "sub": 1, "neg": 2, "mul": 3, "mul_add": 4}
_LEAST_CAPABILITY = (7, 5)
_THREADS = 256  # of a block of the kernels that work entry by entry
_CHUNK_BYTES = 1 << 28  # of residues modulo auxiliary primes held at a time
_MAX_PRIMES = 6  # crt.cu
_MAX_AXES = 6  # pointwise.cu
_SMALL_BYTES = 1 << 12  # host arrays up to this size are kept on the device by value
_KEPT_CONSTANTS = 32  # larger ones, by identity

_INSTALL = 'pip install "polygpu[cuda13]" (CUDA 13) or pip install "polygpu[cuda12]" (CUDA 12) adds CuPy'


def absence(index: int) -> str | None:
    """Why GPU `index` cannot be used, and what to do; None where it answers."""
    try:
        import cupy
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
    capability = _capability(cupy, index)
    if capability < _LEAST_CAPABILITY:
        return "its compute capability is {}.{}, kernels need 7.5 or more".format(*capability)
    return None


def _capability(cupy: Any, index: int) -> tuple[int, int]:
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    return properties["major"], properties["minor"]


def describe() -> str:
    """The GPUs that answer, with driver and CuPy."""
    import cupy

    runtime = cupy.cuda.runtime
    cards = []
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        memory = properties["totalGlobalMem"] / 2**30
        cards.append(f"cuda:{index} {properties['name'].decode()}, {memory:.0f} GiB")
    driver = runtime.driverGetVersion()
    return f"{'; '.join(cards)}; CUDA {driver // 1000}.{driver % 1000 // 10}, CuPy {cupy.__version__}"


# ---- what is launched: pure functions ----


@dataclass(frozen=True)
class Card:
    """What the choice of a launch depends on."""

    capability: tuple[int, int]
    shared_bytes: int  # of one block, the most it may ask for

    @property
    def fast_doubles(self) -> bool:
        """Whether FP64 runs at half the rate of FP32 or better, as on V100, A100, H100 and B200."""
        return self.capability in ((8, 0), (9, 0), (10, 0))


@dataclass(frozen=True)
class Pass:
    """One launch over all rows: stages log_blocks ... log_blocks + log_length - 1 (cuda/tile.cuh)."""

    log_blocks: int
    log_length: int
    log_columns: int
    log_rows: int
    log_values: int  # of one transform in one thread: the stages of a round
    log_padding: int  # a word of padding after every 2^log_padding words of shared memory

    @property
    def shape(self) -> str:
        """The template argument of the kernels."""
        sizes = (self.log_length, self.log_columns, self.log_rows, self.log_values, self.log_padding)
        return f"Shape<{', '.join(map(str, sizes))}>"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 1 << (self.log_length - self.log_values + self.log_columns + self.log_rows)

    @property
    def starts(self) -> list[int]:
        """For each stage, the depth in the tree at which its round starts; the first round takes the rest."""
        first = (self.log_length - 1) % self.log_values + 1
        rounds = [0] * first
        while len(rounds) < self.log_length:
            rounds += [len(rounds)] * self.log_values
        return [self.log_blocks + start for start in rounds]

    @property
    def shared_values(self) -> int:
        """Values in shared memory."""
        values = 1 << (self.log_length + self.log_columns + self.log_rows)
        return values + (values >> self.log_padding)


def _log_values(log_length: int, word_bytes: int) -> int:
    """Values of a thread: 16, or 32 of the longest 32-bit transforms, two blocks of which then fit an SM."""
    return 5 if log_length >= 14 and word_bytes == 4 else min(log_length, 4)


def word_of(limbs: Limbs, card: Card) -> str:
    """The word of cuda/word.cuh that serves all moduli of a ring on a card."""
    largest = max(limbs.moduli)
    if limbs.dtype == np.uint32:
        return "Lazy32" if largest < 1 << 30 else "Tight32" if largest < 1 << 31 else "Strict32"
    if largest < 1 << 50 and card.fast_doubles:
        return "Float64"
    return "Lazy64" if largest < 1 << 62 else "Strict64"


@lru_cache(maxsize=256)
def split_passes(points: int, base: int, word_bytes: int, card: Card) -> tuple[Pass, ...]:
    """The passes of a forward transform, in their order; the inverse runs them backwards."""
    log_points, log_base = points.bit_length() - 1, base.bit_length() - 1

    def fits(log_length: int, log_columns: int) -> bool:
        small = (1 << (log_length + log_columns)) * 17 // 16 * word_bytes <= card.shared_bytes
        lanes = log_length - _log_values(log_length, word_bytes) + log_columns  # log2 of the threads
        return small and lanes <= 10 and log_length <= (15 if word_bytes == 4 else 14)

    def one(log_blocks: int, log_length: int, log_columns: int) -> Pass:
        log_values = _log_values(log_length, word_bytes)
        log_rows = max(0, 8 - (log_length - log_values + log_columns))
        while not fits(log_length, log_columns + log_rows):
            log_rows -= 1
        # Found free of bank conflicts, or nearly, by simulation (docs/kernels.md).
        wide = word_bytes == 4 and (log_values == 5 or log_columns == 5 or log_length >= 10)
        return Pass(log_blocks, log_length, log_columns, log_rows, log_values, 5 if wide else 4)

    if fits(log_points, log_base):
        return (one(0, log_points, log_base),)
    # Tiles of columns are 128 bytes wide, narrower where they are long; rows of 2^12 are the fastest.
    last = 12 - log_base
    above = log_points - last
    if above > 8:
        last = min(max(log_points - 10, last), 14 - log_base)
        while not fits(last, log_base):
            last -= 1
        above = log_points - last
    columns = -(-above // 10) if above > 8 else 1
    passes, done = [], 0
    for i in range(columns):
        length = (above - done) // (columns - i)
        width = (128 // word_bytes).bit_length() - 1 - max(0, length - 8)
        while not fits(length, width):
            width -= 1
        passes.append(one(done, length, width))
        done += length
    return (*passes, one(done, last, log_base))


# ---- the backend ----


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
    table = np.zeros((len(moduli), 10), np.uint64)
    for row, q in zip(table, moduli, strict=True):
        bits, shift = q.bit_length(), 64 - q.bit_length()
        row[0], row[1] = q % (1 << 64), q - 1
        if bits <= 64:
            row[2] = q << shift
            row[3] = ((1 << 128) - 1) // (q << shift) - (1 << 64)
        row[4] = (1 << (bits + 62)) // q if bits <= 62 else 0
        row[5] = (1 << 64) // q if 2 < q < 1 << 32 else 0
        row[6:7].view(np.float64)[0] = 1.0 / q
        row[7] = bits | max(shift, 0) << 32
        row[8:].view(np.uint32)[:] = [x % (1 << 32) for x in (q, -q, 2 * q, -2 * q)]
    return table


@dataclass(frozen=True)
class _Replay:
    """Launches a recorded graph; keeps the memory that it writes to."""

    device: Any
    graph: Any
    pool: Any
    result: Any

    def __call__(self) -> Any:
        with self.device:
            self.graph.launch()
        return self.result


class CudaBackend:
    """The kernels behind the protocol, on one GPU."""

    def __init__(self, index: int) -> None:
        import cupy

        self.xp: Any = cupy
        self.name = f"cuda:{index}"
        self._device = cupy.cuda.Device(index)
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.card = Card((properties["major"], properties["minor"]), properties["sharedMemPerBlockOptin"])
        self._kernels: dict[str, Any] = {}
        self._read_only: dict[int, tuple[Array, Array]] = {}

    # ---- arrays ----

    def to_host(self, x: Array) -> Array:
        """See Backend; waits for the stream."""
        return self.xp.asnumpy(x)  # type: ignore[no-any-return]

    def from_host(self, x: Array) -> Array:
        """See Backend."""
        with self._device:
            return self.xp.asarray(x)  # type: ignore[no-any-return]

    def constant(self, x: Array) -> Array:
        """See Backend: small arrays are known by their values, large read-only ones by their identity."""
        if x.nbytes <= _SMALL_BYTES:
            return self._small(x.dtype.str, x.shape, x.tobytes())
        if x.flags.writeable:
            return self.from_host(x)
        known = self._read_only.get(id(x))
        if known is None or known[0] is not x:
            if len(self._read_only) >= _KEPT_CONSTANTS:
                self._read_only.pop(next(iter(self._read_only)))
            known = self._read_only[id(x)] = (x, self.from_host(x))
        return known[1]

    @lru_cache(maxsize=1024)  # noqa: B019  (a backend lives as long as the process)
    def _small(self, dtype: str, shape: tuple[int, ...], data: bytes) -> Array:
        return self.from_host(np.frombuffer(data, dtype).reshape(shape))

    def address(self, x: Array) -> int:
        """See Backend."""
        return int(x.data.ptr)  # type: ignore[attr-defined]

    def here(self) -> AbstractContextManager[Any]:
        """See Backend."""
        return self._device  # type: ignore[no-any-return]

    def capture(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """See Backend: a CUDA graph, with a memory pool of its own that no other call can reuse."""
        cuda = self.xp.cuda
        with self._device:
            pool, stream = cuda.MemoryPool(), cuda.Stream(non_blocking=True)
            stream.wait_event(cuda.get_current_stream().record())
            with cuda.using_allocator(pool.malloc), stream:
                f()  # compiles kernels, makes tables, fills the pool
                stream.synchronize()
                stream.begin_capture()
                try:
                    result = f()
                finally:
                    graph = stream.end_capture()

        return _Replay(self._device, graph, pool, result)

    # ---- launching ----

    def _kernel(self, file: str, expression: str) -> Any:
        kernel = self._kernels.get(expression)
        if kernel is None:
            with open(os.path.join(cuda_sources(), file)) as source:
                code = source.read()
            module = self.xp.RawModule(
                code=f"{code}\n// sources {_digest()}\n",
                options=("-std=c++17", f"-I{cuda_sources()}"),
                name_expressions=(expression,),
            )
            kernel = self._kernels[expression] = module.get_function(expression)
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
        with self._device:
            kernel = self._kernel(file, expression)
            if shared > 48 << 10:
                kernel.max_dynamic_shared_size_bytes = shared
            kernel((grid, rows), (threads,), tuple(args), shared_mem=shared)

    def _entrywise(self, file: str, expression: str, entries: int, args: Sequence[Any]) -> None:
        self._run(file, expression, -(-entries // _THREADS), _THREADS, args)

    def _moduli(self, limbs: Limbs) -> Array:
        table: Array | None = limbs.handles.get(self.name)
        if table is None:
            table = limbs.handles[self.name] = self.from_host(_constants(limbs.moduli))
        return table

    def _tables(self, plan: NttPlan) -> dict[str, Array]:
        """Forward and inverse twiddles, and the constants of incomplete leaves, made on the device."""
        tables: dict[str, Array] | None = plan.handles.get(self.name)
        if tables is not None:
            return tables
        limbs, points = plan.limbs, plan.points
        word = word_of(limbs, self.card)
        bits = points.bit_length() - (1 if plan.kind == "negacyclic" else 2)
        size = {"Lazy32": 2, "Tight32": 2, "Strict32": 2, "Float64": 1, "Lazy64": 2, "Strict64": 2}[word]
        moduli = self._moduli(limbs)
        starts = [start for p in self._passes(plan) for start in p.starts] if points > 1 else [0]
        device_starts = self.from_host(np.array(starts, np.uint32))
        tables = {}
        for name, sign in (("forward", 1), ("inverse", -1)):
            factors = np.ones((len(limbs.moduli), max(bits, 1)), np.uint64)
            scale = np.ones(len(limbs.moduli), np.uint64)
            for i, (q, root) in enumerate(zip(limbs.moduli, plan.roots, strict=True)):
                x = pow(root, sign, q)
                for d in reversed(range(bits)):
                    factors[i, d], x = x, x * x % q
                if sign < 0:
                    scale[i] = pow(points, -1, q)
            with self._device:
                table = self.xp.empty((len(limbs.moduli), points, size), limbs.dtype)
                args = [table, moduli, self.from_host(factors), self.from_host(scale), device_starts]
                args.append(np.uint64(points))
            args += [np.uint32(bits), np.uint32(plan.kind == "negacyclic")]
            self._run(
                "tables.cu",
                f"fill_twiddles<{word}>",
                -(-points // _THREADS),
                _THREADS,
                args,
                rows=len(limbs.moduli),
            )
            tables[name] = table
        if plan.base > 1 and points > 1:
            with self._device:
                leaves = tables["leaves"] = self.xp.empty((len(limbs.moduli), points), np.uint64)
            args = [leaves, tables["forward"], moduli, device_starts, np.uint64(points)]
            self._run(
                "tables.cu",
                f"fill_leaves<{word}>",
                -(-points // _THREADS),
                _THREADS,
                args,
                rows=len(limbs.moduli),
            )
        elif plan.base > 1:
            constants = [[q - 1 if plan.kind == "negacyclic" else 1] for q in limbs.moduli]
            tables["leaves"] = self.from_host(np.array(constants, np.uint64))
        plan.handles[self.name] = tables
        return tables

    def _on_host(self, method: str, *args: Any) -> None:
        """A wide modulus is computed on by the CPU backend; the last argument is the result."""
        *operands, out = args
        host = [self.to_host(x) if isinstance(x, self.xp.ndarray) else x for x in operands]
        result = np.empty(out.shape, out.dtype)
        getattr(load("cpu"), method)(*host, result)
        out.set(result)

    # ---- residues one by one ----

    @lru_cache(maxsize=256)  # noqa: B019
    def _layout(self, shape: tuple[int, ...], *operands: tuple[int, ...]) -> Array:
        """Batch shape and operands' steps in rows, as pointwise.cu wants them; shapes end in the limbs."""
        limbs, batch = shape[-1], shape[:-1]
        table = np.zeros((4, _MAX_AXES), np.uint64)
        table[0] = 1
        table[0, _MAX_AXES - len(batch) :] = batch
        for i, operand in enumerate(operands):
            step = limbs
            for axis, size in enumerate(reversed(operand[:-1])):
                if size != 1:
                    table[i + 1, _MAX_AXES - 1 - axis] = step
                step *= size
        return self.constant(table)

    def pointwise(self, limbs: Limbs, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """See Backend."""
        if limbs.wide:
            self._on_host("pointwise", limbs, op, a, b, c, out)
            return
        operands = [a, a if b is None else b, a if c is None else c]
        if out.ndim - 2 > _MAX_AXES:
            operands = [self._broadcast(x, out.shape) for x in operands]
        dense = all(x.shape == out.shape for x in operands)
        layout = self._layout(out.shape[:-1], *(x.shape[:-1] for x in operands)) if not dense else out
        args = [*operands, out, self._moduli(limbs), layout, np.uint64(out.shape[-1])]
        args += [
            np.uint64(operands[1].shape[-1]),
            np.uint64(out.size),
            np.uint32(limbs.rows),
            np.uint32(dense),
        ]
        self._entrywise("pointwise.cu", f"pointwise<{_ctype(limbs)}, {_OPS[op]}>", out.size, args)

    def permute(self, limbs: Limbs, x: Array, index: Array, out: Array) -> None:
        """See Backend."""
        if limbs.wide:
            self._on_host("permute", limbs, x, index, out)
            return
        args: list[Any] = [x, out, index, self._moduli(limbs)]
        args += [np.uint64(out.shape[-1]), np.uint64(out.size), np.uint32(limbs.rows)]
        self._entrywise("pointwise.cu", f"permute<{_ctype(limbs)}>", out.size, args)

    def reduce_integers(self, limbs: Limbs, x: Array, out: Array) -> None:
        """See Backend."""
        if limbs.wide:
            self._on_host("reduce_integers", limbs, x, out)
            return
        args: list[Any] = [x, out, self._moduli(limbs), np.uint64(x.shape[-1]), np.uint64(out.shape[-1])]
        args += [np.uint64(out.size), np.uint32(limbs.rows), np.uint32(x.dtype.kind == "i")]
        self._entrywise("pointwise.cu", f"reduce_integers<{_ctype(limbs)}>", out.size, args)

    def reduce_words(self, limbs: Limbs, words: Array, limb: int, out: Array) -> None:
        """See Backend; computed on the host, where the words come from."""
        result = self.to_host(out)
        load("cpu").reduce_words(limbs, self.to_host(words), limb, result)
        out.set(result)  # type: ignore[attr-defined]

    # ---- transforms ----

    def _pass(self, plan: NttPlan, passed: Pass, tables: Array, rows: int) -> tuple[int, int, int, list[Any]]:
        """Grid, threads, shared bytes, and the arguments that all transform kernels share."""
        lanes = plan.degree >> passed.log_blocks >> passed.log_length >> passed.log_columns
        tiles = rows * (lanes << passed.log_blocks)
        args = [self._moduli(plan.limbs), tables, np.uint64(tiles), np.uint32(len(plan.limbs.moduli))]
        args += [np.uint32(x.bit_length() - 1) for x in (plan.points, plan.degree)]
        args.append(np.uint32(passed.log_blocks))
        shared = passed.shared_values * plan.limbs.dtype.itemsize
        return -(-tiles >> passed.log_rows), passed.threads, shared, args

    def _passes(self, plan: NttPlan) -> tuple[Pass, ...]:
        return split_passes(plan.points, plan.base, plan.limbs.dtype.itemsize, self.card)

    def _transform(self, plan: NttPlan, x: Array, out: Array, direction: str) -> None:
        rows = prod(out.shape[:-1])
        if plan.points == 1:
            with self._device:
                out[...] = x
            return
        tables, word = self._tables(plan)[direction], word_of(plan.limbs, self.card)
        passes = self._passes(plan)
        order = passes if direction == "forward" else passes[::-1]
        source = x
        for i, passed in enumerate(order):
            grid, threads, shared, args = self._pass(plan, passed, tables, rows)
            lazy_in, last = i > 0, i + 1 == len(order)
            flags = f"{_bool(lazy_in)}, {_bool(not last if direction == 'forward' else last)}"
            expression = f"ntt_{direction}<{word}, {passed.shape}, {flags}>"
            self._run("ntt.cu", expression, grid, threads, [source, out, *args], shared)
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
            with self._device:
                a, b = (x.copy() if self.xp.may_share_memory(x, out) else x for x in (a, b))
            if out.ndim - 2 > _MAX_AXES:
                a, b = (self._broadcast(x, out.shape) for x in (a, b))
            dense = a.shape == b.shape == out.shape
            layout = self._layout(out.shape[:-1], a.shape[:-1], b.shape[:-1]) if not dense else out
            args = [
                a,
                b,
                out,
                self._tables(plan)["leaves"],
                self._moduli(limbs),
                layout,
                np.uint64(plan.degree),
            ]
            args += [np.uint64(out.size), np.uint32(limbs.rows), np.uint32(plan.base), np.uint32(dense)]
            self._entrywise("pointwise.cu", f"multiply_leaves<{_ctype(limbs)}>", out.size, args)

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        if plan.limbs.wide:
            self._on_host("multiply", plan, a, b, out)
        elif isinstance(plan, AuxiliaryPlan):
            self._multiply_auxiliary(plan, a, b, out)
        elif self._fuses(plan):
            self._multiply_fused(plan, a, b, out)
        else:
            with self._device:
                x = self.xp.empty(a.shape, a.dtype)
                y = x if b is a else self.xp.empty(b.shape, b.dtype)
            self.ntt(plan, a, x)
            if b is not a:
                self.ntt(plan, b, y)
            self.multiply_leaves(plan, x, y, out)
            self.intt(plan, out, out)

    def _fuses(self, plan: NttPlan) -> bool:
        """Whether both operands fit the registers of one block's threads."""
        passes = self._passes(plan)
        limit = 512 if plan.limbs.dtype.itemsize == 4 else 256
        return plan.base == 1 and plan.points > 1 and len(passes) == 1 and passes[0].threads <= limit

    def _multiply_fused(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        tables, (passed,) = self._tables(plan), self._passes(plan)
        rows = prod(out.shape[:-1])
        grid, threads, shared, args = self._pass(plan, passed, tables["forward"], rows)
        # The kernel repeats an operand over leading axes; other ways to broadcast need a copy.
        a, b = (
            x if out.shape[out.ndim - x.ndim :] == x.shape else self._broadcast(x, out.shape) for x in (a, b)
        )
        args = [
            a,
            b,
            out,
            *args,
            tables["inverse"],
            np.uint64(prod(a.shape[:-1])),
            np.uint64(prod(b.shape[:-1])),
        ]
        expression = f"ntt_product<{word_of(plan.limbs, self.card)}, {passed.shape}>"
        self._run("ntt.cu", expression, grid, threads, args, shared)

    def _broadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        """A copy in the full shape; the operand itself where it has that."""
        if x.shape == shape:
            return x
        with self._device:
            return self.xp.ascontiguousarray(self.xp.broadcast_to(x, shape))  # type: ignore[no-any-return]

    def _multiply_auxiliary(self, plan: AuxiliaryPlan, a: Array, b: Array, out: Array) -> None:
        limbs, transform, n = plan.limbs, plan.transform, plan.degree
        count, length = len(transform.limbs.moduli), transform.degree
        if count > _MAX_PRIMES:
            raise ParameterError(
                f"product: n = {n} takes {count} auxiliary primes, at most {_MAX_PRIMES} fit a kernel; "
                "multiply on the host with poly.cpu()"
            )
        constants: Array | None = plan.handles.get(self.name)
        if constants is None:
            constants = plan.handles[self.name] = self.from_host(_mixed_radix(transform.limbs.moduli))
        moduli, primes = self._moduli(limbs), self._moduli(transform.limbs)
        units, batch = prod(out.shape[:-1]), out.shape[:-2]
        step = max(1, _CHUNK_BYTES // (8 * count * length))
        rows = [self._rows(x.shape[:-2], batch) for x in (a, b)]
        sizes = [np.uint64(n), np.uint64(length)]
        for first in range(0, units, step):
            size = min(step, units - first)
            where = [np.uint64(size), np.uint64(first), np.uint32(limbs.rows), np.uint32(count)]
            spread = []
            for x, row_of_unit in zip((a, b), rows, strict=True):
                with self._device:
                    y = self.xp.empty((size, count, length), np.uint64)
                args: list[Any] = [x, y, moduli, primes, row_of_unit, *sizes, *where]
                self._entrywise("crt.cu", f"crt_spread<{_ctype(limbs)}>", size * length, args)
                spread.append(y)
            self.multiply(transform, spread[0], spread[1], spread[0])
            args = [
                spread[0],
                out,
                moduli,
                primes,
                constants,
                *sizes,
                *where,
                np.uint32(plan.kind == "negacyclic"),
            ]
            self._entrywise("crt.cu", f"crt_compose<{_ctype(limbs)}>", size * n, args)

    @lru_cache(maxsize=64)  # noqa: B019
    def _rows(self, own: tuple[int, ...], batch: tuple[int, ...]) -> Array:
        """For each polynomial of the result, which one of an operand it takes."""
        index = np.arange(prod(own), dtype=np.uint64).reshape(own)
        return self.from_host(np.ascontiguousarray(np.broadcast_to(index, batch)))


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
