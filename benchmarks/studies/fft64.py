"""Batched 64-point FFTs of complex64: a lab note's three block shapes, tensor cores, polygpu's own, cuFFT.

The note (docs/studies/fft64.md) expects that 16 FFTs a block with a point a thread (B) are two to three times
as fast as 64 FFTs with four points a thread in loops (A). Each shape loads its FFTs as they lie in memory, or
each thread its own points; both are here, and A and C with their loops unrolled too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu import fft
from polygpu.backends import get_backend

from ..harness import Case, CudaEvents, Row, Timer, measure, record, release
from ..tables import Table, figure, power
from . import kernel, ncu
from .page import StudyKind, optional
from .runner import DEVICE, sets_of, times

N = 64
BATCHES = (10_000, 2**20)  # the note's, and one that goes through memory
PERIOD = 4093  # FFTs after which the input repeats: prime, so that it begins anywhere in a block
BOUND = 4e-6  # of a right result's relative L2 error; half a split alone has 3e-4

EACH, ONE = "a filter a row", "one filter"  # of convolutions

Run = Callable[[Any, Any], object]


# ---- what is launched ----


@dataclass(frozen=True)
class Shape:
    """A kernel of benchmarks/kernels and the blocks it is launched in."""

    variant: str
    file: str
    expression: str
    block: tuple[int, ...]
    ffts: int
    """Of a block at a time."""
    loads: str = "coalesced"
    loop_turns: int = 0
    """That a thread makes in the stages, over its points."""
    persistent: bool = False
    """No more blocks than the card holds, which go on to further FFTs."""

    @property
    def threads(self) -> int:
        return math.prod(self.block)


def stages(variant: str, ffts: int, lanes: int, unrolled: bool) -> Iterator[Shape]:
    for loads in ("coalesced", "literal"):
        flags = ", ".join(str(flag).lower() for flag in (unrolled, loads == "coalesced", True))
        expression = f"fft64_stages<{ffts}, {lanes}, {flags}>"
        points = N // lanes
        loop_turns = 0 if unrolled or points == 1 else 6 * points
        yield Shape(variant, "fft64.cu", expression, (ffts, lanes), ffts, loads, loop_turns)


SHAPES = (
    *stages("A", 64, 16, False),
    *stages("A unrolled", 64, 16, True),
    *stages("B", 16, 64, False),
    *stages("C", 32, 32, False),
    *stages("C unrolled", 32, 32, True),
    Shape("E FP16", "fft64_tensor.cu", "fft64_tensor<Halves>", (256,), 16, persistent=True),
    Shape("E TF32", "fft64_tensor.cu", "fft64_tensor<Tf32>", (256,), 16, persistent=True),
)


@dataclass(frozen=True)
class Launch:
    """A variant, ready for batches of one size."""

    variant: str
    library: str
    run: Run
    """From x to y, arrays of (ffts, 64)."""
    loads: str = ""
    kernel: str | None = None
    """Part of its name in a profile; None: not a kernel."""
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Of the kernel and its blocks."""


def prepare(ffts: int) -> Iterator[tuple[str, Callable[[], Launch]]]:
    """The variants and what makes their launches, in the order of their rows."""
    yield "copy", copy
    yield "cuFFT", partial(cufft, ffts)
    for shape in SHAPES:
        yield f"{shape.variant} {shape.loads}", partial(own, shape, ffts)
    yield "D", partial(library, ffts)


@cache
def kernels(file: str, device: int) -> dict[str, Any]:
    return kernel.load(file, [shape.expression for shape in SHAPES if shape.file == file])


def own(shape: Shape, ffts: int) -> Launch:
    import cupy

    function = kernels(shape.file, cupy.cuda.Device().id)[shape.expression]
    blocks = -(-ffts // shape.ffts)
    if shape.persistent:
        card = kernel.Multiprocessor.of_device()
        resident = card.resident(shape.threads, function.num_regs, function.shared_size_bytes)
        blocks = min(blocks, resident * cupy.cuda.Device().attributes["MultiProcessorCount"])

    def run(x: Any, y: Any) -> None:
        function((blocks,), shape.block, (x, y, np.int32(ffts)))

    facts = kernel.facts_of(function, blocks, shape.threads) | {"loop_turns": shape.loop_turns}
    name = shape.expression.partition("<")[0]
    return Launch(shape.variant, "study", run, shape.loads, name, facts)


def library(ffts: int) -> Launch:
    """polygpu's own transform: 8 threads an FFT, 8 points a thread, one exchange."""
    import cupy

    def run(x: Any, y: Any) -> None:
        fft.fft64(x, out=y)

    x = cupy.zeros((ffts, N), np.complex64)
    run(x, cupy.empty_like(x))
    function = get_backend(DEVICE)._kernels["fft<float, 6, false>"]  # type: ignore[attr-defined]
    threads = 128
    held = threads * 8 // N  # FFTs of a block, in shared memory once
    facts = kernel.facts_of(function, -(-ffts // held), threads, 8 * N * held)
    return Launch("D", "polygpu", run, "coalesced", "fft", facts)


def cufft(ffts: int) -> Launch:
    from cupy.cuda.cufft import CUFFT_C2C, CUFFT_FORWARD, Plan1d

    plan = Plan1d(N, CUFFT_C2C, ffts)
    return Launch("cuFFT", "cuFFT", lambda x, y: plan.fft(x, y, CUFFT_FORWARD), kernel="")


def copy() -> Launch:
    import cupy

    return Launch("copy", "CuPy", lambda x, y: cupy.copyto(y, x))


def convolutions(filters: Any) -> Iterator[Launch]:
    """Convolutions by calls of cuFFT and by one kernel, with a filter for each row and with one for all."""
    one = filters[:1].copy()
    try:
        yield from separate_convolutions(filters, one)
    except ImportError as error:
        print(f"convolutions by cuFFT: skipped, {error}", flush=True)
    yield Launch("fused", "polygpu", lambda x, y: fft.convolve64(x, filters, out=y), EACH)
    yield Launch("fused", "polygpu", lambda x, y: fft.convolve64(x, one, out=y), ONE)


def separate_convolutions(filters: Any, one: Any) -> Iterator[Launch]:
    import cupy
    from cupy.cuda.cufft import CUFFT_C2C, CUFFT_FORWARD, CUFFT_INVERSE, Plan1d

    plan, spectra = Plan1d(N, CUFFT_C2C, len(filters)), cupy.empty_like(filters)
    spectrum = fft.fft64(one)

    def four(x: Any, y: Any) -> None:
        plan.fft(x, y, CUFFT_FORWARD)
        plan.fft(filters, spectra, CUFFT_FORWARD)
        cupy.multiply(y, spectra, out=y)
        plan.fft(y, y, CUFFT_INVERSE)

    def three(x: Any, y: Any) -> None:
        plan.fft(x, y, CUFFT_FORWARD)
        cupy.multiply(y, spectrum, out=y)
        plan.fft(y, y, CUFFT_INVERSE)

    yield Launch("four calls", "cuFFT", four, EACH)
    yield Launch("three calls", "cuFFT", three, ONE)


# ---- what is true of a result ----


@cache
def first_period() -> NDArray[Any]:
    """Normal random FFTs."""
    rng = np.random.default_rng(N)
    return rng.standard_normal((PERIOD, 2 * N), dtype=np.float32).view(np.complex64)


def exact(x: NDArray[Any]) -> NDArray[Any]:
    """The DFTs of rows of 64, in long double: the product with the matrix of roots."""
    k = np.arange(N)
    return np.asarray(x.astype(np.clongdouble) @ roots()[np.outer(k, k) % N])


@cache
def roots() -> NDArray[Any]:
    """exp(-2 pi i k / 64) in long double, from angles of at most 45 degrees."""
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288") / N
    quarter, eighth = N // 4, N // 8
    angle = np.arange(eighth + 1) * turn
    cosine, sine = np.cos(angle), np.sin(angle)
    first = np.concatenate([cosine, sine[eighth - 1 :: -1]])  # cosines up to 90 degrees
    found = first[:quarter] - 1j * first[quarter:0:-1]
    return np.concatenate([found, -1j * found, -found, 1j * found])


@cache
def exact_period() -> NDArray[Any]:
    return exact(first_period())


@cache
def exact_convolutions(shared: bool) -> NDArray[Any]:
    """Of the period with itself backwards, or with its last FFT alone."""
    filters = exact_period()[-1:] if shared else exact_period()[::-1]
    return np.asarray(exact((exact_period() * filters).conj()).conj() / N)


def errors(values: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """Relative L2, and the largest by the root mean square of what is expected."""
    off = np.abs(values - expected)
    rms = np.sqrt(np.mean(np.abs(expected) ** 2))
    return float(np.sqrt(np.mean(off**2)) / rms), float(off.max() / rms)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs and outputs, so many times over that no cache holds them."""

    ffts: int
    sets: list[tuple[Any, Any]]

    @classmethod
    def make(cls, ffts: int, l2_bytes: int) -> Batch:
        import cupy

        period = cupy.asarray(first_period())
        x = cupy.ascontiguousarray(cupy.tile(period, (-(-ffts // PERIOD), 1))[:ffts])
        return cls(ffts, sets_of(x, l2_bytes))

    def values(self, y: Any) -> NDArray[Any]:
        """The first period, in host memory."""
        import cupy

        return np.asarray(cupy.asnumpy(y[:PERIOD]))

    def case(self, launch: Launch, expected: NDArray[Any], op: str = "fft64") -> Case:
        import cupy

        def run() -> Any:
            for x, y in self.sets:
                launch.run(x, y)
            return self.sets[0][1]

        # Small kernels run faster than Python calls them; large copies are slower in a graph.
        recorded = self.ffts < BATCHES[-1]
        repeat = get_backend(DEVICE).capture(run) if recorded else run
        for _, y in self.sets:
            y.fill(np.nan)

        def verify(values: NDArray[Any]) -> bool:
            y = self.sets[0][1]
            repeats = bool(cupy.array_equal(y[PERIOD:], y[: max(0, self.ffts - PERIOD)]))
            repeats &= all(bool(cupy.array_equal(other, y)) for _, other in self.sets[1:])
            return repeats and errors(values, expected[: self.ffts])[0] < BOUND

        params: dict[str, int | str] = {"variant": launch.variant, "ffts": self.ffts}
        params |= {"launch": f"CUDA graph of {len(self.sets)}" if recorded else "plain"}
        params |= {"loads": launch.loads} if launch.loads else {}
        work, calls = N * self.ffts, len(self.sets)
        return Case(op, launch.library, params, repeat, verify, work, self.values, calls)


# ---- the run ----


def launches() -> Iterator[Callable[[], object]]:
    """Every kernel of the study, for a profiler."""
    import cupy

    for ffts in BATCHES:
        x = cupy.zeros((ffts, N), np.complex64)
        y = cupy.empty_like(x)
        for launch in made(ffts, print):
            if launch.kernel is not None:
                yield partial(launch.run, x, y)


def made(ffts: int, say: Callable[[str], object]) -> list[Launch]:
    """The launches that can be made here."""
    return kernel.made(((f"{ffts} FFTs, {name}", make) for name, make in prepare(ffts)), say)


def with_figures(row: Row, launch: Launch, error: tuple[float, float], copied: Row, cufft: Row | None) -> Row:
    """The row and what the tables show, beside the copy of the same bytes and cuFFT."""
    per_point = 16  # bytes: one reading and one writing
    figures = dict(launch.facts) | times(row, per_point * row.work, copied, per_point * copied.work)
    if cufft is not None:
        figures["cufft_ratio"] = round(row.median / cufft.median, 4)
    if launch.variant != "copy":
        figures |= {"error_l2": error[0], "error_max": error[1]}
    return dataclasses.replace(row, figures=figures)


def with_counters(row: Row, counted: ncu.Counted) -> Row:
    """The row and what the profiler saw of one launch."""
    seen = ncu.figures(counted)
    figures = dict(row.figures)
    if "thread_instructions" in seen:
        executed = seen["thread_instructions"]
        figures["instructions_per_fft"] = round(executed / int(row.params["ffts"]), 2)
        if "blocks" in figures:
            threads = figures["blocks"] * figures["threads"]
            figures["instructions_per_thread"] = round(executed / threads, 2)
    # What the compiler's figures do not say of a library's kernels.
    for name, ours in (("counted_registers", "registers"), ("theoretical_occupancy", "occupancy")):
        if name in seen:
            figures.setdefault(ours, seen[name])
    for name in ("warp_instructions", "bank_conflicts", "achieved_occupancy", "counted_ns"):
        if name in seen:
            figures[name] = seen[name]
    return dataclasses.replace(row, figures=figures)


def describe(row: Row) -> str:
    p, f = row.params, row.figures
    what = f"{p['variant']} {p.get('loads', '')}".strip()
    return f"{p['ffts']} FFTs, {what}: {f['us_median']:.2f} us, " + ", ".join(
        f"{name} {value:.4g}" for name, value in f.items() if name != "us_median"
    )


def main(out: Path, timer: Timer | None = None) -> int:
    timer = timer or CudaEvents()
    machine = timer.machine()
    plans = {ffts: made(ffts, lambda line: print(line, flush=True)) for ffts in BATCHES}
    counted: dict[tuple[int, str, str], ncu.Counted] = {}
    keys = [(n, x.variant, x.loads) for n, plan in plans.items() for x in plan if x.kernel is not None]
    names = [x.kernel or "" for plan in plans.values() for x in plan if x.kernel is not None]
    try:
        counted = dict(zip(keys, ncu.count("fft64", names), strict=True))
    except ncu.Uncounted as error:
        print(f"no counters: {error}", flush=True)
    failures = 0
    for ffts, plan in plans.items():
        batch = Batch.make(ffts, int(machine["l2_bytes"]))
        done: dict[str, Row] = {}
        for launch in plan:
            try:
                expected = first_period() if launch.variant == "copy" else exact_period()
                row = measure(batch.case(launch, expected), timer)
                off = errors(batch.values(batch.sets[0][1]), exact_period()[:ffts])
                copied = row if launch.variant == "copy" else done["copy"]
                row = with_figures(row, launch, off, copied, done.get("cuFFT"))
                if (ffts, launch.variant, launch.loads) in counted:
                    row = with_counters(row, counted[ffts, launch.variant, launch.loads])
                record(row, out)
                done[launch.variant] = row
                print(describe(row), flush=True)
            except Exception as error:
                failures += 1
                print(f"{ffts} FFTs, {launch.variant} {launch.loads}: FAILED, {error}", flush=True)
        if ffts == BATCHES[-1]:
            failures += measure_convolutions(batch, timer, done["copy"], out)
        del batch
        release()
    return 1 if failures else 0


def measure_convolutions(batch: Batch, timer: Timer, copied: Row, out: Path) -> int:
    """The rows of convolutions; how many failed."""
    import cupy

    period = cupy.asarray(first_period()[::-1].copy())
    filters = cupy.ascontiguousarray(cupy.tile(period, (-(-batch.ffts // PERIOD), 1))[: batch.ffts])
    failures = 0
    separate: dict[str, Row] = {}  # by cuFFT
    for launch in convolutions(filters):
        try:
            expected = exact_convolutions(launch.loads == ONE)
            if launch.library == "cuFFT":
                expected = expected * N  # its inverse leaves out the factor
            row = measure(batch.case(launch, expected, "convolve64"), timer)
            off = errors(batch.values(batch.sets[0][1]), expected[: batch.ffts])
            row = with_figures(row, launch, off, copied, None)
            if launch.library == "cuFFT":
                separate[launch.loads] = row
            elif launch.loads in separate:
                times = separate[launch.loads].median / row.median
                row = dataclasses.replace(row, figures=row.figures | {"times_separate": round(times, 3)})
            record(row, out)
            print(describe(row), flush=True)
        except Exception as error:
            failures += 1
            print(f"convolutions, {launch.variant} {launch.loads}: FAILED, {error}", flush=True)
    return failures


# ---- the page's tables ----

WITHIN = 0.25  # of what the note expects

# (least, most) of what the note expects: ~200 or 396 instructions, ~50 or 72.
EXPECTED: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "A": {
        "blocks": ((157, 157),),
        "loop_turns": ((24, 24),),
        "shared_bytes": ((33 * 1024, 33 * 1024),),
        "registers": ((40, 40),),
        "instructions_per_thread": ((200, 200), (396, 396)),
    },
    "B": {
        "blocks": ((625, 625),),
        "loop_turns": ((0, 0),),
        "shared_bytes": ((8.4 * 1024, 8.4 * 1024),),
        "registers": ((20, 20),),
        "instructions_per_thread": ((50, 50), (72, 72)),
    },
    "C": {
        "blocks": ((313, 313),),
        "loop_turns": ((12, 12),),
        "shared_bytes": ((16.8 * 1024, 16.8 * 1024),),
        "registers": ((30, 30),),
        "instructions_per_thread": ((120, 120),),
    },
}
SPEED_UP = ((2.0, 3.0),)  # of B over A
NAMES = {
    "blocks": "blocks",
    "loop_turns": "loop turns a thread",
    "shared_bytes": "shared memory, KB",
    "registers": "registers a thread",
    "instructions_per_thread": "instructions a thread",
}


def held(value: float, expected: Iterable[tuple[float, float]]) -> bool:
    """Is it within a quarter of one of the ranges?"""
    return any(low * (1 - WITHIN) <= value <= high * (1 + WITHIN) for low, high in expected)


def ranges(expected: Iterable[tuple[float, float]], scale: float = 1) -> str:
    return " or ".join(
        f"{low / scale:g}" + (f" to {high / scale:g}" if high > low else "") for low, high in expected
    )


Cells = Mapping[tuple[str, str, int], Row]  # by variant, loads and FFTs


def cell(row: Row) -> tuple[str, str, int]:
    return str(row.params["variant"]), str(row.params.get("loads", "")), int(row.params["ffts"])


def note_table(cells: Cells) -> Iterator[Table]:
    """What the note expects, beside what was found at its own size."""
    ffts = BATCHES[0]
    body = []
    for variant, expectations in EXPECTED.items():
        found = [cells.get((variant, loads, ffts)) for loads in ("coalesced", "literal")]
        for name, expected in expectations.items():
            scale = 1024 if name == "shared_bytes" else 1
            values = [row.figures.get(name) if row else None for row in found]
            texts = ["" if v is None else f"{v / scale:.4g}" for v in values]
            verdicts = [verdict(v, expected) for v in values]
            body.append((variant, NAMES[name], ranges(expected, scale), *texts, joined(verdicts)))
    for size in BATCHES:
        ratios = [
            ratio(cells.get(("A", x, size)), cells.get(("B", x, size))) for x in ("coalesced", "literal")
        ]
        texts = ["" if v is None else figure(v) for v in ratios]
        what = f"times as fast as A, {count_of(size)} FFTs"
        body.append(("B", what, ranges(SPEED_UP), *texts, joined([verdict(v, SPEED_UP) for v in ratios])))
    yield Table(
        f"The note's figures, and what was found ({count_of(ffts)} FFTs)",
        ("variant", "figure", "the note", "coalesced loads", "literal loads", "held?"),
        tuple(body),
    )


def ratio(a: Row | None, b: Row | None) -> float | None:
    return a.median / b.median if a and b else None


def verdict(value: float | None, expected: Iterable[tuple[float, float]]) -> str:
    return "" if value is None else "yes" if held(value, expected) else "no"


def joined(verdicts: Sequence[str]) -> str:
    """Of both loads; once where they agree."""
    return verdicts[0] if len(set(verdicts)) == 1 else ", ".join(v or "?" for v in verdicts)


def count_of(ffts: int) -> str:
    return power(ffts) if ffts & (ffts - 1) == 0 else f"{ffts:,}"


def time_table(cells: Cells) -> Iterator[Table]:
    """A table for each size, the fastest first."""
    for ffts in sorted({ffts for _, _, ffts in cells}):
        rows = sorted((row for (_, _, n), row in cells.items() if n == ffts), key=lambda row: row.median)
        body = []
        for row in rows:
            f = row.figures
            body.append(
                (
                    str(row.params["variant"]),
                    str(row.params.get("loads", "")),
                    figure(f["us_median"]),
                    f"{f['gbps']:.0f}",
                    f"{f['copy_share']:.0%}",
                    optional(f, "cufft_ratio", "{:.2f}"),
                    optional(f, "blocks", "{:.0f}"),
                    optional(f, "threads", "{:.0f}"),
                    optional(f, "loop_turns", "{:.0f}"),
                    f"{f['shared_bytes'] / 1024:.1f}" if "shared_bytes" in f else "",
                    optional(f, "registers", "{:.0f}"),
                    optional(f, "occupancy", "{:.0%}"),
                    optional(f, "achieved_occupancy", "{:.0%}"),
                    optional(f, "instructions_per_thread", "{:.0f}"),
                    optional(f, "instructions_per_fft", "{:.0f}"),
                    per_fft(f, "bank_conflicts", ffts),
                )
            )
        yield Table(
            f"{count_of(ffts)} FFTs",
            (
                "variant",
                "loads",
                "us",
                "GB/s",
                "share of copy",
                "time by cuFFT's",
                "blocks",
                "threads",
                "loop turns",
                "shared KB",
                "registers",
                "occupancy",
                "achieved",
                "instructions a thread",
                "instructions an FFT",
                "bank conflicts an FFT",
            ),
            tuple(body),
        )


def per_fft(figures: Mapping[str, float], name: str, ffts: int) -> str:
    return f"{figures[name] / ffts:.1f}" if name in figures else ""


def accuracy_table(cells: Cells) -> Iterator[Table]:
    """Errors at the note's size: they do not depend on it."""
    body = []
    for (variant, loads, ffts), row in cells.items():
        if ffts == BATCHES[0] and loads != "literal" and "error_l2" in row.figures:
            body.append((variant, f"{row.figures['error_l2']:.2e}", f"{row.figures['error_max']:.2e}"))
    yield Table(
        f"Errors against a DFT in long double, normal random input, {PERIOD} FFTs",
        ("variant", "relative L2", "largest, by the root mean square of the result"),
        tuple(sorted(body, key=lambda line: float(line[1]))),
    )


def convolution_table(cells: Cells) -> Iterator[Table]:
    """What one kernel does, beside calls of their own for transforms and products."""
    body = []
    for (variant, loads, _), row in cells.items():
        f = row.figures
        bytes_ = 16 if loads == ONE else 24
        gbps = bytes_ * row.work / row.median if row.library == "polygpu" else None  # moved at least
        body.append(
            (
                loads,
                f"{row.library}, {variant}",
                figure(f["us_median"]),
                figure(1000 * row.median / row.work),
                f"{gbps / f['copy_gbps']:.0%}" if gbps else "",
                optional(f, "times_separate", "{:.2f}x"),
                f"{f['error_l2']:.2e}",
            )
        )
    yield Table(
        f"Convolutions of 64 points, complex64, {count_of(max(n for _, _, n in cells))} rows",
        ("filter", "by", "us", "ps a point", "share of copy", "times as fast", "relative L2 error"),
        tuple(body),
    )


KINDS = {
    "fft64-convolution": StudyKind(convolution_table, "convolve64", cell),
    "fft64-note": StudyKind(note_table, "fft64", cell),
    "fft64-time": StudyKind(time_table, "fft64", cell),
    "fft64-accuracy": StudyKind(accuracy_table, "fft64", cell),
}
