"""Products of square matrices of floats: a lab note's ladder of kernels, the steps of its outlook, cuBLAS.

The exact ones on the same page are measured by modular.py.

The note (docs/studies/gemm.md) climbs from global memory to tiles, double buffers, registers and WMMA. Its
outlook names asynchronous copies, tuning, and tensor cores with corrected errors: those are here too, as
templates over the shapes of tiles, of which a tuner takes one for each card and size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..harness import Case, CudaEvents, Row, Timer, measure, record, release
from ..harness import rows as read_rows
from ..tables import Table, figure
from . import kernel, modular
from .page import StudyKind, optional

SIZES = (1024, 2048, 4096)
FULL = 1024  # the largest size of which all entries are verified
SAMPLED = 128  # entries of larger ones
RUNS = 10  # of which the note gives the mean
TIE = 0.02  # a shape is preferred to those before it if it takes less by more

TOLERANCE = 0.05  # the note's, of an entry of a product of halves: its error by the root mean square of all
COARSE = 1e-3  # relative L2 error of a product of halves or tf32; one term left out of 4096 makes 16e-3

OP, SHAPE_OP = "gemm", "gemm shape"

# ---- what is launched ----


@dataclass(frozen=True)
class Kernel:
    """An instance of a kernel of benchmarks/kernels, and its blocks."""

    variant: str
    file: str
    expression: str
    tile: tuple[int, int]
    """Rows and columns of the result that a block computes."""
    threads: int
    dynamic_bytes: int = 0
    dtype: str = "float32"
    exact: bool = True
    """As exact as sums of floats are."""
    shape: str = ""


def shared(variant: str, stages: int, rows: int, columns: int) -> Kernel:
    expression = f"gemm_shared<32, {stages}, {rows}, {columns}>"
    return Kernel(variant, "gemm.cu", expression, (64, 64), 64 * 64 // (rows * columns))


STEPS = (
    Kernel("naive", "gemm.cu", "gemm_naive", (16, 16), 256),
    shared("shared tiles", 1, 4, 1),
    shared("double buffer", 2, 4, 1),
    shared("8 x 4 entries", 2, 8, 4),
    Kernel("WMMA", "gemm_wmma.cu", "gemm_wmma", (64, 64), 128, dtype="float16", exact=False),
)


def pipelined(m: int, n: int, k: int, rows: int, columns: int, stages: int) -> Kernel:
    """Tiles of m x n x k, a thread has rows x columns entries."""
    return Kernel(
        "pipeline",
        "gemm.cu",
        f"gemm_pipelined<Pipelined<{m}, {n}, {k}, {rows}, {columns}, {stages}>>",
        (m, n),
        m // rows * (n // columns),
        4 * stages * k * (m + 4 + n),
        shape=f"{m}x{n}x{k}, {rows}x{columns} a thread, {stages} stages",
    )


def tensor(operand: str, m: int, n: int, k: int, rows: int, columns: int, stages: int) -> Kernel:
    """Tiles of m x n x k, a warp has rows x columns entries."""
    halves = operand == "Halves"
    return Kernel(
        "mma.sync" if halves else "mma.sync, split",
        "gemm_tensor.cu",
        f"gemm_tensor<Tensor<{operand}, {m}, {n}, {k}, {rows}, {columns}, {stages}>>",
        (m, n),
        32 * (m // rows) * (n // columns),
        (2 if halves else 4) * stages * k * (m + n),
        dtype="float16" if halves else "float32",
        exact=not halves,
        shape=f"{m}x{n}x{k}, {rows}x{columns} a warp, {stages} stages",
    )


# What the tuner chooses from; ties go to the first.
SHAPES = (
    pipelined(128, 256, 16, 8, 16, 3),
    pipelined(128, 128, 16, 8, 16, 4),
    pipelined(256, 128, 16, 16, 8, 3),
    pipelined(128, 128, 16, 8, 8, 4),
    pipelined(128, 128, 32, 8, 8, 3),
    pipelined(64, 128, 16, 8, 8, 4),
    pipelined(64, 64, 32, 8, 4, 3),
    tensor("Halves", 256, 128, 64, 64, 64, 3),
    tensor("Halves", 128, 256, 64, 64, 64, 3),
    tensor("Halves", 128, 256, 32, 64, 64, 4),
    tensor("Halves", 128, 128, 64, 64, 64, 3),
    tensor("Halves", 128, 128, 64, 64, 32, 3),
    tensor("Halves", 128, 64, 64, 64, 32, 3),
    tensor("Halves", 64, 64, 64, 32, 32, 4),
    tensor("Floats", 128, 128, 32, 64, 32, 3),
    tensor("Floats", 128, 128, 16, 64, 32, 4),
    tensor("Floats", 128, 64, 32, 64, 32, 3),
    tensor("Floats", 64, 64, 32, 32, 32, 3),
)


@dataclass(frozen=True)
class Launch:
    """A variant, ready for matrices of one size."""

    variant: str
    library: str
    run: Callable[[Any, Any, Any], object]
    """From a and b to c, the product."""
    dtype: str
    """Of a and b; c is float32."""
    exact: bool
    shape: str = ""
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)


@cache
def kernels(file: str, variant: str, device: int) -> dict[str, Any]:
    """All shapes of a variant: what a card lacks for one is no hindrance to another."""
    return kernel.load(file, [k.expression for k in (*STEPS, *SHAPES) if k.variant == variant])


def own(k: Kernel, n: int) -> Launch:
    import cupy

    if n % k.tile[0] or n % k.tile[1]:
        raise ValueError(f"{n} is no multiple of the tile's {k.tile[0]} and {k.tile[1]}")
    function = kernels(k.file, k.variant, cupy.cuda.Device().id)[k.expression]
    if k.dynamic_bytes:
        function.max_dynamic_shared_size_bytes = k.dynamic_bytes
    grid = n // k.tile[1], n // k.tile[0]

    def run(a: Any, b: Any, c: Any) -> None:
        function(grid, (k.threads,), (a, b, c, np.int32(n)), shared_mem=k.dynamic_bytes)

    facts = kernel.facts_of(function, grid[0] * grid[1], k.threads, k.dynamic_bytes)
    return Launch(k.variant, "study", run, k.dtype, k.exact, k.shape, facts)


# By cuBLAS: the operands' dtype and CUDA's number of it, and of the kind of computation (cublas_api.h).
CUBLAS = {
    "FP32": ("float32", 0, 68),  # CUDA_R_32F, CUBLAS_COMPUTE_32F
    "TF32": ("float32", 0, 77),  # CUBLAS_COMPUTE_32F_FAST_TF32
    "FP16": ("float16", 2, 68),  # CUDA_R_16F
}


def cublas(variant: str, n: int) -> Launch:
    from cupy.cuda import cublas as blas
    from cupy.cuda.device import get_cublas_handle

    dtype, operand, computation = CUBLAS[variant]
    handle = get_cublas_handle()
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def run(a: Any, b: Any, c: Any) -> None:
        # To cuBLAS, columns come first: it computes the transpose, from b and a.
        left, right = (b.data.ptr, operand, n), (a.data.ptr, operand, n)
        out = (c.data.ptr, 0, n, computation, blas.CUBLAS_GEMM_DEFAULT)
        scale = one.ctypes.data, zero.ctypes.data
        blas.gemmEx(
            handle, blas.CUBLAS_OP_N, blas.CUBLAS_OP_N, n, n, n, scale[0], *left, *right, scale[1], *out
        )

    return Launch(variant, "cuBLAS", run, dtype, exact=variant == "FP32")


# ---- what is true of a result ----


@dataclass(frozen=True, eq=False)
class Problem:
    """Normal random matrices of one size, and entries of their product."""

    n: int
    operands: Mapping[str, tuple[Any, Any]]
    """a and b by dtype: floats, and those rounded to halves."""
    c: Any
    entries: Any
    """Those that are verified, as places in c."""
    expected: NDArray[np.float64]
    """Of the product of the floats, at the entries."""

    @classmethod
    def make(cls, n: int) -> Problem:
        import cupy

        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
        if n <= FULL:
            entries = np.arange(n * n)
            expected = (a.astype(np.float64) @ b.astype(np.float64)).ravel()
        else:
            entries = rng.choice(n * n, SAMPLED, replace=False)
            rows, columns = a[entries // n].astype(np.float64), b[:, entries % n].astype(np.float64)
            expected = np.einsum("ik,ki->i", rows, columns)
        operands = {
            dtype: (cupy.asarray(a.astype(dtype)), cupy.asarray(b.astype(dtype)))
            for dtype in ("float32", "float16")
        }
        return cls(n, operands, cupy.empty((n, n), np.float32), cupy.asarray(entries), expected)

    def values(self, c: Any) -> NDArray[Any]:
        """The entries that are verified, in host memory."""
        import cupy

        return np.asarray(cupy.asnumpy(c.ravel().take(self.entries)))

    def bound(self, exact: bool) -> float:
        """Of the relative L2 error: a sum of n floats in some order, or of products of rounded numbers."""
        return 2.0**-24 * self.n**0.5 if exact else COARSE

    def right(self, launch: Launch, values: NDArray[Any]) -> bool:
        l2, most = errors(values, self.expected)
        return l2 < self.bound(launch.exact) and most < TOLERANCE and bool(abs(self.c).max() < np.inf)

    def case(self, launch: Launch, op: str = OP) -> Case:
        a, b = self.operands[launch.dtype]

        def run() -> Any:
            launch.run(a, b, self.c)
            return self.c

        self.c.fill(np.nan)
        params: dict[str, int | str] = {"variant": launch.variant, "n": self.n}
        params |= {"shape": launch.shape} if op == SHAPE_OP else {}
        return Case(op, launch.library, params, run, partial(self.right, launch), self.n**2, self.values)


def errors(values: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """Relative L2, and the largest by the root mean square of what is expected."""
    off = np.abs(values - expected)
    rms = np.sqrt(np.mean(expected**2))
    return float(np.sqrt(np.mean(off**2)) / rms), float(off.max() / rms)


# ---- the run ----


def peak_tflops() -> float:
    """Of float sums and products, at the highest clock: two for each lane and cycle."""
    import cupy

    device = cupy.cuda.Device()
    lanes = 64 if device.compute_capability in ("75", "80") else 128  # of a multiprocessor
    hertz = 1000 * device.attributes["ClockRate"]
    return 2e-12 * lanes * device.attributes["MultiProcessorCount"] * hertz


def with_figures(row: Row, launch: Launch, problem: Problem, timer: Timer, case: Case) -> Row:
    """The row and what the tables show."""
    n = problem.n
    bytes_ = n * n * (2 * np.dtype(launch.dtype).itemsize + 4)
    l2, most = errors(problem.values(problem.c), problem.expected)
    tflops = 2e-3 * n**3 / row.median
    figures = dict(launch.facts) | {
        "ms_mean": round(timer.elapsed(case.run, RUNS) / RUNS / 1e6, 5),
        "ms_median": round(row.median / 1e6, 5),
        "tflops": round(tflops, 3),
        "gbps": round(bytes_ / row.median, 2),
        "peak_share": round(tflops / peak_tflops(), 4),
        "error_l2": l2,
        "error_max": most,
    }
    return dataclasses.replace(row, figures=figures)


def measured(problem: Problem, launch: Launch, timer: Timer, out: Path, op: str = OP) -> Row:
    """The recorded row of a launch."""
    case = problem.case(launch, op)
    row = with_figures(measure(case, timer), launch, problem, timer, case)
    record(row, out)
    p, f = row.params, row.figures
    shape = f" ({launch.shape})" if launch.shape else ""
    print(
        f"{p['n']}, {row.library} {p['variant']}{shape}: {f['ms_median']:.3f} ms, "
        f"{f['tflops']:.2f} TFLOPS, error {f['error_l2']:.1e}",
        flush=True,
    )
    return row


def say(line: str) -> None:
    print(line, flush=True)


def tuned(problem: Problem, timer: Timer, out: Path) -> int:
    """Measures every shape; how many failed."""
    failures = 0
    prepared = ((f"{problem.n}, {k.variant} ({k.shape})", partial(own, k, problem.n)) for k in SHAPES)
    for launch in kernel.made(prepared, say):
        try:
            measured(problem, launch, timer, out, SHAPE_OP)
        except Exception as error:
            failures += 1
            say(f"{problem.n}, {launch.variant} ({launch.shape}): FAILED, {error}")
    return failures


def choice(rows: Iterable[Row], card: str, n: int, variant: str) -> Kernel | None:
    """The shape that a card's newest rows are in favour of; None where nothing was measured."""
    times = {
        str(row.params["shape"]): row.median
        for row in rows
        if (row.op, row.machine["name"], row.params.get("n"), row.params.get("variant"), row.verified)
        == (SHAPE_OP, card, n, variant, True)
    }
    known = [k for k in SHAPES if k.variant == variant and k.shape in times]
    best = min((times[k.shape] for k in known), default=0.0)
    return next((k for k in known if times[k.shape] * (1 - TIE) <= best), None)


def tune(out: Path, timer: Timer | None = None) -> int:
    """Measures the shapes anew, on which later runs base their choice."""
    timer = timer or CudaEvents()
    failures = 0
    for n in SIZES:
        failures += tuned(Problem.make(n), timer, out)
        release()
    return 1 if failures else 0


def ladder(out: Path, timer: Timer | None = None) -> int:
    """Every step at every size, and cuBLAS; how many failed."""
    timer = timer or CudaEvents()
    card = str(timer.machine()["name"])
    variants = list(dict.fromkeys(k.variant for k in SHAPES))
    failures = 0
    for n in SIZES:
        problem = Problem.make(n)
        if not all(choice(read_rows(out), card, n, variant) for variant in variants):
            failures += tuned(problem, timer, out)
        rows = read_rows(out)
        chosen = [k for variant in variants if (k := choice(rows, card, n, variant)) is not None]
        prepared: list[tuple[str, Callable[[], Launch]]]
        prepared = [(f"{n}, {k.variant}", partial(own, k, n)) for k in (*STEPS, *chosen)]
        prepared += [(f"{n}, cuBLAS {variant}", partial(cublas, variant, n)) for variant in CUBLAS]
        for launch in kernel.made(prepared, say):
            try:
                measured(problem, launch, timer, out)
            except Exception as error:
                failures += 1
                say(f"{n}, {launch.library} {launch.variant}: FAILED, {error}")
        del problem
        release()
    return failures


PARTS = {"ladder": ladder, **modular.PARTS}


def main(out: Path, timer: Timer | None = None) -> int:
    return 1 if sum(part(out, timer) for part in PARTS.values()) else 0


# ---- the page's tables ----


@dataclass(frozen=True)
class Noted:
    """A line of the note's table, of an RTX 2080 Ti."""

    n: int
    name: str
    ms: float
    tflops: float
    """In the column GFLOPS/s."""
    gbps: float
    operand_bytes: int
    variant: str
    """That it is here."""


NOTE = (
    Noted(1024, "Shared-memory", 0.77, 2.78, 16.3, 4, "8 x 4 entries"),
    Noted(2048, "Shared-memory", 3.43, 5.01, 14.7, 4, "8 x 4 entries"),
    Noted(2048, "Tensor Core (FP16)", 3.35, 5.12, 10.0, 2, "WMMA"),
    Noted(4096, "Shared-memory", 21.23, 6.47, 9.48, 4, "8 x 4 entries"),
    Noted(4096, "Tensor Core (FP16)", 18.18, 7.56, 7.38, 2, "WMMA"),
)
NOTE_PEAK_TFLOPS = 68 * 64 * 2 * 2.1e9 / 1e12

# The last step of each kind, and what of cuBLAS it is beside.
PEERS = {"8 x 4 entries": ("pipeline", "FP32"), "WMMA": ("mma.sync", "FP16")}
OPERANDS = {"mma.sync": "FP16", "WMMA": "FP16"} | {name: name for name in CUBLAS}  # else FP32

Cells = Mapping[tuple[str, int], Row]  # by variant and size


def cell(row: Row) -> tuple[str, int]:
    return str(row.params["variant"]), int(row.params["n"])


def note_table(cells: Cells) -> Iterator[Table]:
    """The note's figures worked out again, and the same kernels on this card."""
    body = []
    for noted in NOTE:
        n, seconds = noted.n, noted.ms / 1000
        tflops = 2e-12 * n**3 / seconds
        step, (last, peer) = noted.variant, PEERS[noted.variant]
        found = [cells.get((variant, n)) for variant in (step, last, peer)]
        body.append(
            (
                str(n),
                noted.name,
                f"{noted.ms:g}",
                f"{noted.tflops:g}",
                f"{tflops:.2f}",
                f"{noted.gbps:g}",
                figure(n * n * (2 * noted.operand_bytes + 4) / seconds / 1e9),
                f"{tflops / NOTE_PEAK_TFLOPS:.0%}",
                figure(found[0].figures["ms_mean"]) if found[0] else "",
                *("" if row is None else figure(row.figures["tflops"]) for row in found),
            )
        )
    yield Table(
        "The note's table, its figures from its times, and this card",
        (
            "N",
            "kernel",
            "note: ms",
            'note: "GFLOPS/s"',
            "TFLOPS from its ms",
            "note: GB/s",
            "GB/s from its ms",
            "of its FP32 peak",
            "here: ms",
            "here: TFLOPS",
            "last step: TFLOPS",
            "cuBLAS: TFLOPS",
        ),
        tuple(body),
    )


def ladder_table(cells: Cells) -> Iterator[Table]:
    """A table for each size, in the order of the steps."""
    order = [*(k.variant for k in (*STEPS, *SHAPES)), *CUBLAS]
    for n in sorted({n for _, n in cells}):
        body = []
        for variant in dict.fromkeys(order):
            row = cells.get((variant, n))
            if row is None:
                continue
            f, peer = row.figures, cells.get((OPERANDS.get(variant, "FP32"), n))
            body.append(
                (
                    f"cuBLAS {variant}" if row.library == "cuBLAS" else variant,
                    f"{f['ms_mean']:.4g}",
                    f"{f['ms_median']:.4g}",
                    figure(f["tflops"]),
                    figure(f["gbps"]),
                    f"{f['peak_share']:.0%}",
                    f"{f['tflops'] / peer.figures['tflops']:.0%}" if peer else "",
                    optional(f, "blocks", "{:.0f}"),
                    optional(f, "threads", "{:.0f}"),
                    optional(f, "registers", "{:.0f}"),
                    f"{f['shared_bytes'] / 1024:.1f}" if "shared_bytes" in f else "",
                    optional(f, "occupancy", "{:.0%}"),
                )
            )
        yield Table(
            f"N = {n}",
            (
                "kernel",
                "ms, mean of 10",
                "ms, median",
                "TFLOPS",
                "GB/s",
                "of FP32 peak",
                "of cuBLAS",
                "blocks",
                "threads",
                "registers",
                "shared KB",
                "occupancy",
            ),
            tuple(body),
        )


def accuracy_table(cells: Cells) -> Iterator[Table]:
    """Errors of the largest size that was verified in full."""
    body = []
    for (variant, n), row in cells.items():
        if n == FULL:
            f = row.figures
            name = f"cuBLAS {variant}" if row.library == "cuBLAS" else variant
            body.append((name, f"{f['error_l2']:.2e}", f"{f['error_max']:.2e}"))
    if body:
        yield Table(
            f"Errors against sums in double, normal random matrices, N = {FULL}",
            ("kernel", "relative L2", "largest, by the root mean square of the result"),
            tuple(sorted(body, key=lambda line: float(line[1]))),
        )


def shape_cell(row: Row) -> tuple[str, str, int]:
    return str(row.params["variant"]), str(row.params["shape"]), int(row.params["n"])


def shape_table(cells: Mapping[tuple[str, str, int], Row]) -> Iterator[Table]:
    """TFLOPS of every shape; that which the tuner takes is marked."""
    sizes = sorted({n for _, _, n in cells})
    rows = list(cells.values())
    card = str(rows[0].machine["name"])
    chosen = {(k.variant, n): choice(rows, card, n, k.variant) for k in SHAPES for n in sizes}
    body = []
    for k in SHAPES:
        found = [cells.get((k.variant, k.shape, n)) for n in sizes]
        texts = [
            figure(row.figures["tflops"]) + "*" * (chosen[k.variant, n] == k) if row else ""
            for n, row in zip(sizes, found, strict=True)
        ]
        if any(texts):
            body.append((k.variant, k.shape, *texts))
    yield Table("TFLOPS by shape (* taken)", ("kernel", "tile", *(f"N = {n}" for n in sizes)), tuple(body))


KINDS = {
    "gemm-note": StudyKind(note_table, OP, cell),
    "gemm-ladder": StudyKind(ladder_table, OP, cell),
    "gemm-shapes": StudyKind(shape_table, SHAPE_OP, shape_cell),
    "gemm-accuracy": StudyKind(accuracy_table, OP, cell),
    **modular.KINDS,
}
