"""Products of square matrices of floats: a lab note's ladder of kernels, the steps of its outlook, cuBLAS.

The exact products on the same page are measured by modular.py.

The note (docs/studies/gemm.md) goes from global memory to tiles, double buffers, registers and WMMA. Its
outlook names asynchronous copies, tuning, and tensor cores with corrected errors. These steps are here too,
as templates over the shapes of tiles. A tuner takes one shape for each card and size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..harness import Case, CudaEvents, Row, Timer
from ..harness import rows as read_rows
from ..tables import Table, figure
from . import modular, page, runner
from .kernel import Kernel, Ready
from .page import Rows, StudyKind, number, table, texts
from .runner import Entry, Figures, Group, Part, Task, Tasks

SIZES = (1024, 2048, 4096)
FULL = 1024  # the largest size of which all entries are verified
SAMPLED = 128  # entries of larger ones
RUNS = 10  # of which the note gives the mean
TIE = 0.02  # the first shape is taken whose time, less this share, is not above the best time

TOLERANCE = 0.05  # the note's, of an entry of a product of halves: its error over the root mean square of all
COARSE = 1e-3  # relative L2 error of a product of halves or tf32; without one of 4096 terms it is 16e-3

OP, SHAPE_OP = "gemm", "gemm shape"


@dataclass(frozen=True)
class Product:
    """A kernel of benchmarks/kernels for matrices of any size that its tile divides."""

    variant: str
    file: str
    expression: str
    tile: tuple[int, int]  # rows and columns of the result that a block computes
    threads: int
    dynamic_bytes: int = 0
    dtype: str = "float32"
    exact: bool = True  # up to the rounding of sums of floats
    shape: str = ""

    def kernel(self, n: int) -> Kernel:
        grid, size = (n // self.tile[1], n // self.tile[0]), lambda: (np.int32(n),)
        return Kernel(self.file, self.expression, grid, (self.threads,), size, self.dynamic_bytes)


def shared(variant: str, stages: int, rows: int, columns: int) -> Product:
    expression = f"gemm_shared<32, {stages}, {rows}, {columns}>"
    return Product(variant, "gemm.cu", expression, (64, 64), 64 * 64 // (rows * columns))


def pipelined(m: int, n: int, k: int, rows: int, columns: int, stages: int) -> Product:
    """Tiles of m x n x k; a thread has rows x columns entries."""
    expression = f"gemm_pipelined<Pipelined<{m}, {n}, {k}, {rows}, {columns}, {stages}>>"
    shape = f"{m}x{n}x{k}, {rows}x{columns} a thread, {stages} stages"
    threads, bytes_ = m // rows * (n // columns), 4 * stages * k * (m + 4 + n)
    return Product("pipeline", "gemm.cu", expression, (m, n), threads, bytes_, shape=shape)


def tensor(operand: str, m: int, n: int, k: int, rows: int, columns: int, stages: int) -> Product:
    """Tiles of m x n x k; a warp has rows x columns entries."""
    expression = f"gemm_tensor<Tensor<{operand}, {m}, {n}, {k}, {rows}, {columns}, {stages}>>"
    shape, halves = f"{m}x{n}x{k}, {rows}x{columns} a warp, {stages} stages", operand == "Halves"
    variant, dtype = ("mma.sync", "float16") if halves else ("mma.sync, split", "float32")
    threads, bytes_ = 32 * (m // rows) * (n // columns), (2 if halves else 4) * stages * k * (m + n)
    return Product(variant, "gemm_tensor.cu", expression, (m, n), threads, bytes_, dtype, not halves, shape)


STEPS = (
    Product("naive", "gemm.cu", "gemm_naive", (16, 16), 256),
    shared("shared tiles", 1, 4, 1),
    shared("double buffer", 2, 4, 1),
    shared("8 x 4 entries", 2, 8, 4),
    Product("WMMA", "gemm_wmma.cu", "gemm_wmma", (64, 64), 128, dtype="float16", exact=False),
)
# The shapes that the tuner chooses from; of equally fast ones it takes the first.
SHAPES = (
    *(
        pipelined(128, 256, 16, 8, 16, 3),
        pipelined(128, 128, 16, 8, 16, 4),
        pipelined(256, 128, 16, 16, 8, 3),
    ),
    *(pipelined(128, 128, 16, 8, 8, 4), pipelined(128, 128, 32, 8, 8, 3), pipelined(64, 128, 16, 8, 8, 4)),
    pipelined(64, 64, 32, 8, 4, 3),
    *(tensor("Halves", 256, 128, 64, 64, 64, 3), tensor("Halves", 128, 256, 64, 64, 64, 3)),
    *(tensor("Halves", 128, 256, 32, 64, 64, 4), tensor("Halves", 128, 128, 64, 64, 64, 3)),
    *(tensor("Halves", 128, 128, 64, 64, 32, 3), tensor("Halves", 128, 64, 64, 64, 32, 3)),
    tensor("Halves", 64, 64, 64, 32, 32, 4),
    *(tensor("Floats", 128, 128, 32, 64, 32, 3), tensor("Floats", 128, 128, 16, 64, 32, 4)),
    *(tensor("Floats", 128, 64, 32, 64, 32, 3), tensor("Floats", 64, 64, 32, 32, 32, 3)),
)
VARIANTS = tuple(dict.fromkeys(k.variant for k in (*STEPS, *SHAPES)))
TUNED = tuple(dict.fromkeys(k.variant for k in SHAPES))

# Products by cuBLAS: dtype of the operands, CUDA's numbers of the type and the computation (cublas_api.h).
CUBLAS = {
    "FP32": ("float32", 0, 68),  # CUDA_R_32F, CUBLAS_COMPUTE_32F
    "TF32": ("float32", 0, 77),  # CUBLAS_COMPUTE_32F_FAST_TF32
    "FP16": ("float16", 2, 68),  # CUDA_R_16F
}


def cublas(variant: str, n: int) -> Ready:
    from cupy.cuda import cublas as blas
    from cupy.cuda.device import get_cublas_handle

    _, operand, computation = CUBLAS[variant]
    handle = get_cublas_handle()
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def run(a: Any, b: Any, c: Any) -> None:
        # cuBLAS takes matrices column by column, so it reads transposes: c^T = b^T a^T.
        left, right = (b.data.ptr, operand, n), (a.data.ptr, operand, n)
        out = (c.data.ptr, 0, n, computation, blas.CUBLAS_GEMM_DEFAULT)
        plain, scale = blas.CUBLAS_OP_N, (one.ctypes.data, zero.ctypes.data)
        blas.gemmEx(handle, plain, plain, n, n, n, scale[0], *left, *right, scale[1], *out)

    return Ready(run)


# ---- what is true of a result ----


@lru_cache(1)
def matrices(n: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """Return normally distributed a and b, the places of the entries that are verified, and these entries.

    The entries are computed in double.
    """
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    if n <= FULL:
        return a, b, np.arange(n * n), (a.astype(np.float64) @ b.astype(np.float64)).ravel()
    places = rng.choice(n * n, SAMPLED, replace=False)
    rows, columns = a[places // n].astype(np.float64), b[:, places % n].astype(np.float64)
    return a, b, places, np.einsum("ik,ki->i", rows, columns)


def bounds(n: int, exact: bool) -> tuple[float, float]:
    """Bounds of the errors. exact: of a sum of n floats in any order; else of products of rounded numbers."""
    return 2.0**-24 * n**0.5 if exact else COARSE, TOLERANCE


@dataclass(frozen=True, eq=False)
class Products(Group):
    """Products of the random matrices, rounded to halves where dtype says so."""

    dtype: str
    copied = False

    @property
    def n(self) -> int:
        return int(self.params["n"])

    def sets(self, l2_bytes: int) -> list[tuple[Any, ...]]:
        import cupy

        a, b, *_ = matrices(self.n)
        operands = (cupy.asarray(x.astype(self.dtype)) for x in (a, b))
        return [(*operands, cupy.empty((self.n, self.n), np.float32))]

    def values(self, y: Any) -> NDArray[Any]:
        import cupy

        return super().values(y.ravel().take(cupy.asarray(matrices(self.n)[2])))

    def whole(self, y: Any) -> bool:
        return bool(abs(y).max() < np.inf)

    def tasks(self, plan: Any, timer: Timer) -> Iterator[Task]:
        for case, figures in super().tasks(plan, timer):
            yield Task(case, partial(self.with_mean, case, figures, timer))

    def with_mean(self, case: Case, figures: Any, timer: Timer, row: Row, done: Mapping[str, Row]) -> Figures:
        """Return the figures, with the mean of RUNS calls, as in the note, beside the median."""
        mean = timer.elapsed(case.run, RUNS) / RUNS
        return {**figures(row, done), "ms_mean": round(mean / 1e6, 5)}

    def rates(self, entry: Entry, y: Any, row: Row, done: Mapping[str, Row]) -> Figures:
        tflops, bytes_ = 2e-3 * self.n**3 / row.median, self.n**2 * (2 * np.dtype(self.dtype).itemsize + 4)
        rates = {"ms_median": round(row.median / 1e6, 5), "tflops": round(tflops, 3)}
        return rates | {"gbps": round(bytes_ / row.median, 2), "peak_share": round(tflops / peak_tflops(), 4)}


def peak_tflops() -> float:
    """Compute the peak in 10^12 sums and products of floats a second, at the highest clock.

    Each lane does two in a cycle.
    """
    import cupy

    device = cupy.cuda.Device()
    lanes = 64 if device.compute_capability in ("75", "80") else 128  # of a multiprocessor
    return 2e-9 * lanes * device.attributes["MultiProcessorCount"] * device.attributes["ClockRate"]


# ---- the run ----


def of_size(n: int, chosen: Iterable[Product], op: str = OP, peers: Iterable[str] = ()) -> list[Group]:
    """Kernels, and products by cuBLAS, grouped by the type of their operands."""
    own: dict[str, list[Entry]] = {"float32": [], "float16": []}

    def right() -> NDArray[Any]:
        return matrices(n)[3]

    for k in chosen:
        params = {"shape": k.shape} if op == SHAPE_OP else {}
        entry = Entry(k.variant, [k.kernel(n)], right, params=params, bounds=bounds(n, k.exact))
        own[k.dtype].append(entry)
    for variant in peers:
        work, exact = partial(cublas, variant, n), variant == "FP32"
        own[CUBLAS[variant][0]].append(Entry(variant, work, right, library="cuBLAS", bounds=bounds(n, exact)))
    return [Products(op, {"n": n}, lambda: matrices(n)[0], entries, dtype) for dtype, entries in own.items()]


def choice(rows: Iterable[Row], card: str, n: int, variant: str) -> Product | None:
    """Choose the shape by a card's newest rows, or return None if no shape was measured."""
    times = {
        str(row.params["shape"]): row.median
        for row in rows
        if (row.op, row.machine["name"], row.params.get("n"), row.params.get("variant"), row.verified)
        == (SHAPE_OP, card, n, variant, True)
    }
    known = [k for k in SHAPES if k.variant == variant and k.shape in times]
    best = min((times[k.shape] for k in known), default=0.0)
    return next((k for k in known if times[k.shape] * (1 - TIE) <= best), None)


def tune(out: Path, timer: Timer | None) -> Iterator[Tasks]:
    """Measure the shapes anew; later runs choose by these rows."""
    timer = timer or CudaEvents()
    for n in SIZES:
        yield from runner.tasks_of(of_size(n, SHAPES, SHAPE_OP), timer)


def ladder(out: Path, timer: Timer | None) -> Iterator[Tasks]:
    """Every step at every size, and cuBLAS."""
    timer = timer or CudaEvents()
    card = str(timer.machine()["name"])
    for n in SIZES:
        if not all(choice(read_rows(out), card, n, variant) for variant in TUNED):
            yield from runner.tasks_of(of_size(n, SHAPES, SHAPE_OP), timer)
        rows = read_rows(out)
        chosen = [k for variant in TUNED if (k := choice(rows, card, n, variant)) is not None]
        yield from runner.tasks_of(of_size(n, (*STEPS, *chosen), peers=CUBLAS), timer)


PARTS: dict[str, Part] = {"ladder": ladder, **modular.PARTS}


# ---- the page ----


# The note's table, of an RTX 2080 Ti: N, kernel, ms, TFLOPS (in the column GFLOPS/s), GB/s. Then the bytes of
# an element of the operands, and the corresponding variant here.
NOTE = (
    (1024, "Shared-memory", 0.77, 2.78, 16.3, 4, "8 x 4 entries"),
    (2048, "Shared-memory", 3.43, 5.01, 14.7, 4, "8 x 4 entries"),
    (2048, "Tensor Core (FP16)", 3.35, 5.12, 10.0, 2, "WMMA"),
    (4096, "Shared-memory", 21.23, 6.47, 9.48, 4, "8 x 4 entries"),
    (4096, "Tensor Core (FP16)", 18.18, 7.56, 7.38, 2, "WMMA"),
)
NOTE_PEAK_TFLOPS = 68 * 64 * 2 * 2.1e9 / 1e12

# By variant of the note: the last step of its kind, and the product by cuBLAS beside it.
PEERS = {"8 x 4 entries": ("pipeline", "FP32"), "WMMA": ("mma.sync", "FP16")}
OPERANDS = {"mma.sync": "FP16", "WMMA": "FP16"} | {name: name for name in CUBLAS}  # else FP32


def named(row: Row) -> str:
    return f"{'cuBLAS ' * (row.library == 'cuBLAS')}{row.params['variant']}"


def note_table(rows: Rows) -> Iterator[Table]:
    """Yield the table of the note's figures worked out again, and of the same kernels on this card."""
    columns = (
        'N | kernel | note: ms | note: "GFLOPS/s" | TFLOPS from its ms | note: GB/s | GB/s from its ms | '
        "of its FP32 peak | here: ms | here: TFLOPS | last step: TFLOPS | cuBLAS: TFLOPS"
    )
    body = []
    for n, name, ms, noted_tflops, noted_gbps, operand_bytes, variant in NOTE:
        tflops, gbps = 2e-9 * n**3 / ms, n * n * (2 * operand_bytes + 4) / ms / 1e6
        of_peak, found = f"{tflops / NOTE_PEAK_TFLOPS:.0%}", rows.where(n=n)
        noted = f"{ms:g}", f"{noted_tflops:g}", f"{tflops:.2f}", f"{noted_gbps:g}", figure(gbps), of_peak
        here = texts(found.one(variant=variant), "ms = ms_mean")
        both = (texts(found.one(variant=x), "TFLOPS = tflops") for x in (variant, *PEERS[variant]))
        body.append((str(n), name, *noted, *here, *chain.from_iterable(both)))
    title = "The note's table, its figures from its times, and this card"
    yield Table(title, page.heads(columns), tuple(body))


def ladder_table(rows: Rows) -> Iterator[Table]:
    """Yield a table for each size, in the order of the steps."""
    columns = (
        "kernel = named | ms, mean of 10 = ms_mean .4g | ms, median = ms_median .4g | TFLOPS = tflops | "
        "GB/s = gbps | of FP32 peak = peak_share .0% | of cuBLAS = of_cublas | blocks | threads | "
        "registers | shared KB | occupancy"
    )
    for n in rows.values("n"):
        found = rows.where(n=n)

        def of_cublas(row: Row, found: Rows = found) -> str:
            peer = found.one(variant=OPERANDS.get(str(row.params["variant"]), "FP32"))
            return number(row.figures["tflops"] / peer.figures["tflops"], ".0%") if peer else ""

        yield table(
            f"N = {n}", columns, found.variants((*VARIANTS, *CUBLAS)), named=named, of_cublas=of_cublas
        )


def accuracy_table(rows: Rows) -> Iterator[Table]:
    """Errors of the largest size that was verified in full."""
    title = f"Errors against sums in double, normal random matrices, N = {FULL}"
    if found := rows.where(n=FULL):
        yield page.accuracy_table(title, "kernel = named", found, named=named)


def shape_table(rows: Rows) -> Iterator[Table]:
    """TFLOPS of every shape; the shape that the tuner takes is marked."""
    sizes, card = rows.values("n"), str(rows[0].machine["name"])
    body = []
    for k in SHAPES:
        line = []
        for n in sizes:
            (tflops,) = texts(rows.one(variant=k.variant, shape=k.shape, n=n), "TFLOPS = tflops")
            line.append(tflops + "*" * (choice(rows, card, n, k.variant) == k))
        body += [(k.variant, k.shape, *line)] if any(line) else []
    yield Table("TFLOPS by shape (* taken)", ("kernel", "tile", *(f"N = {n}" for n in sizes)), tuple(body))


KINDS = {
    "gemm-note": StudyKind(note_table, OP),
    "gemm-ladder": StudyKind(ladder_table, OP),
    "gemm-shapes": StudyKind(shape_table, SHAPE_OP),
    "gemm-accuracy": StudyKind(accuracy_table, OP),
    **modular.KINDS,
}
