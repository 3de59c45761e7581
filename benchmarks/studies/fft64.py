"""Batched 64-point FFTs of complex64: a lab note's three block shapes, tensor cores, polygpu's own, cuFFT.

The note (docs/studies/fft64.md) expects that blocks of 16 FFTs with one point in a thread (B) are two to
three times as fast as blocks of 64 FFTs with four points in a thread, in loops (A). A block loads its FFTs in
the order in which they lie in memory, or each thread loads its own points: both are measured. A and C are
measured with unrolled loops too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu import fft
from polygpu._backends import get_backend

from ..harness import Row
from ..tables import Table, power
from . import kernel, page, runner
from .kernel import Kernel, Ready
from .page import Rows, StudyKind, number, quotient, table
from .runner import DEVICE, Entry, Figures, Group

N = 64
BATCHES = (10_000, 2**20)  # the note's, and one that goes through memory
PERIOD = 4093  # FFTs after which the input repeats: prime, so that a period begins at every place of a block
BOUNDS = (4e-6, math.inf)  # of a right result's errors; without the low parts of split floats they are 3e-4
OP, CONVOLUTION_OP = "fft64", "convolve64"

COALESCED, LITERAL = "coalesced", "literal"  # loads
EACH, ONE = "a filter a row", "one filter"  # of convolutions
SEPARATE = {EACH: "four calls", ONE: "three calls"}  # of cuFFT

# The kernel with radix-2 stages: FFTs of a block, threads of an FFT, whether loops are unrolled.
STAGES = {
    "A": (64, 16, "false"),
    "A unrolled": (64, 16, "true"),
    "B": (16, 64, "false"),
    "C": (32, 32, "false"),
    "C unrolled": (32, 32, "true"),
}
# Kernels on tensor cores, by what floats are split into.
TENSOR, TENSOR_FFTS = {"E FP16": "Halves", "E TF32": "Tf32"}, 16


# ---- what must come out, a period of it ----


@cache
def first_period() -> NDArray[Any]:
    """Return normally distributed random inputs."""
    rng = np.random.default_rng(N)
    return rng.standard_normal((PERIOD, 2 * N), dtype=np.float32).view(np.complex64)


def exact(x: NDArray[Any]) -> NDArray[Any]:
    """Compute the DFTs of rows of 64 points, in long double: products with the matrix of roots."""
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


def exact_convolutions(loads: str, factor: int) -> NDArray[Any]:
    """Convolutions of the period with itself in reverse order, or with its last row alone; times a factor."""
    filters = exact_period()[-1:] if loads == ONE else exact_period()[::-1]
    return np.asarray(exact((exact_period() * filters).conj()).conj() / N * factor)


# ---- what is launched ----


class Batch(Group):
    """Rows of FFTs. The first period is verified on the host, the rest is compared with it on the card."""

    def values(self, y: Any) -> NDArray[Any]:
        return super().values(y[:PERIOD])

    def whole(self, y: Any) -> bool:
        import cupy

        return bool(cupy.array_equal(y[PERIOD:], y[: max(0, len(y) - PERIOD)]))

    def figures(self, entry: Entry, facts: Figures, y: Any, row: Row, done: Mapping[str, Row]) -> Figures:
        found = dict(super().figures(entry, facts, y, row, done))
        if row.op == CONVOLUTION_OP:
            separate = done.get(SEPARATE[str(row.params["loads"])])
            return found | ({"times_separate": round(separate.median / row.median, 3)} if separate else {})
        if "cuFFT" in done:
            found["cufft_ratio"] = round(row.median / done["cuFFT"].median, 4)
        if executed := found.get("thread_instructions"):
            found["instructions_per_fft"] = round(executed / len(y), 2)
            if "blocks" in found:
                found["instructions_per_thread"] = round(executed / (found["blocks"] * found["threads"]), 2)
        # A library's kernel has no figures of the compiler: the profiler's stand for them.
        for counted, ours in (("counted_registers", "registers"), ("theoretical_occupancy", "occupancy")):
            if counted in found:
                found.setdefault(ours, found[counted])
        return found


def entries(ffts: int) -> Iterator[Entry]:
    own, count = partial(Entry, expected=exact_period, bounds=BOUNDS), lambda: (np.int32(ffts),)
    yield own("cuFFT", partial(cufft, ffts), library="cuFFT")
    for variant, (held, lanes, unrolled) in STAGES.items():
        loop_turns = 0 if unrolled == "true" or lanes == N else 6 * N // lanes  # of a thread, over its points
        for loads, coalesced in ((COALESCED, "true"), (LITERAL, "false")):
            name, grid = f"fft64_stages<{held}, {lanes}, {unrolled}, {coalesced}, true>", (-(-ffts // held),)
            kernels = [Kernel("fft64.cu", name, grid, (held, lanes), count)]
            yield own(variant, kernels, facts={"loop_turns": loop_turns}, params={"loads": loads})
    for variant, operand in TENSOR.items():
        name, grid = f"fft64_tensor<{operand}>", (-(-ffts // TENSOR_FFTS),)
        kernels = [Kernel("fft64_tensor.cu", name, grid, (256,), count, resident=True)]
        yield own(variant, kernels, facts={"loop_turns": 0}, params={"loads": COALESCED})
    yield own("D", partial(library, ffts), library="polygpu", params={"loads": COALESCED})


def library(ffts: int) -> Ready:
    """polygpu's own transform: an FFT has 8 threads, each with 8 points, and one exchange."""
    import cupy

    def run(x: Any, y: Any) -> None:
        fft.fft64(x, out=y)

    x = cupy.zeros((ffts, N), np.complex64)
    run(x, cupy.empty_like(x))  # which compiles it
    function = get_backend(DEVICE)._kernels["fft<float, 6, false>"]  # type: ignore[attr-defined]
    threads = 128
    held = threads * 8 // N  # FFTs of a block; shared memory has room for them once
    return Ready(run, kernel.facts_of(function, -(-ffts // held), threads, 8 * N * held), "fft")


def cufft(ffts: int) -> Ready:
    from cupy.cuda.cufft import CUFFT_C2C, CUFFT_FORWARD, Plan1d

    plan = Plan1d(N, CUFFT_C2C, ffts)
    return Ready(lambda x, y: plan.fft(x, y, CUFFT_FORWARD), kernel="")


def convolutions(ffts: int) -> Iterator[Entry]:
    """Convolutions by calls of cuFFT and by one kernel, with a filter for each row and with one for all."""
    import cupy

    @cache
    def filters(loads: str) -> Any:
        rows = np.resize(first_period()[::-1], (ffts, N))
        return cupy.asarray(rows if loads == EACH else rows[:1])

    @cache
    def spectra(loads: str) -> Any:
        return fft.fft64(filters(loads))

    def separate(loads: str) -> Ready:
        from cupy.cuda.cufft import CUFFT_C2C, CUFFT_FORWARD, CUFFT_INVERSE, Plan1d

        plan = Plan1d(N, CUFFT_C2C, ffts)

        def run(x: Any, y: Any) -> None:
            plan.fft(x, y, CUFFT_FORWARD)
            if loads == EACH:
                plan.fft(filters(loads), spectra(loads), CUFFT_FORWARD)
            cupy.multiply(y, spectra(loads), out=y)
            plan.fft(y, y, CUFFT_INVERSE)

        return Ready(run)

    def fused(loads: str) -> Ready:
        return Ready(lambda x, y: fft.convolve64(x, filters(loads), out=y))

    own = partial(Entry, bounds=BOUNDS, op=CONVOLUTION_OP)
    for loads, variant in SEPARATE.items():  # cuFFT's inverse leaves out the factor 1/N
        right, params = partial(exact_convolutions, loads, N), {"loads": loads}
        yield own(variant, partial(separate, loads), right, library="cuFFT", params=params)
    for loads in SEPARATE:
        right, params = partial(exact_convolutions, loads, 1), {"loads": loads}
        yield own("fused", partial(fused, loads), right, library="polygpu", params=params)


def groups(batches: Sequence[int] = BATCHES) -> list[Group]:
    """Return the groups of transforms of all batches, and of convolutions of the last one."""

    def group(ffts: int) -> Group:
        own = [*entries(ffts), *(convolutions(ffts) if ffts == batches[-1] else ())]
        return Batch(OP, {"ffts": ffts}, lambda: np.resize(first_period(), (ffts, N)), own)

    return list(map(group, batches))


PARTS = {"kernels": runner.counted("fft64", groups)}


# ---- the page ----

WITHIN = 0.25  # of what the note expects: an expectation held

# What is compared: a figure and its unit.
COMPARED = {
    "blocks": ("blocks", 1),
    "loop turns a thread": ("loop_turns", 1),
    "shared memory, KB": ("shared_bytes", 1024),
    "registers a thread": ("registers", 1),
    "instructions a thread": ("instructions_per_thread", 1),
}
# What the note expects, in the order of COMPARED: one value, one of two, or a range.
EXPECTED: dict[str, tuple[str, ...]] = {
    "A": ("157", "24", "33", "40", "200 or 396"),
    "B": ("625", "0", "8.4", "20", "50 or 72"),
    "C": ("313", "12", "16.8", "30", "120"),
}
SPEED_UP = "2 to 3"  # of B over A


def held(value: float, expected: str) -> bool:
    """Whether a value is within a quarter of one of the expected values, or of the range."""
    ranges = ([float(x) for x in one.split(" to ")] for one in expected.split(" or "))
    return any(own[0] * (1 - WITHIN) <= value <= own[-1] * (1 + WITHIN) for own in ranges)


def verdict(values: Sequence[float | None], expected: str) -> str:
    """Whether the expectation held, for both ways to load; one word where they agree."""
    found = ["" if x is None else "yes" if held(x, expected) else "no" for x in values]
    return found[0] if len(set(found)) == 1 else ", ".join(text or "?" for text in found)


def note_table(rows: Rows) -> Iterator[Table]:
    """Yield the table of what the note expects, beside what was found at its own size."""

    def found(variant: str, ffts: int) -> list[Row | None]:
        return [rows.one(variant=variant, loads=loads, ffts=ffts) for loads in (COALESCED, LITERAL)]

    body = []
    for variant, expectations in EXPECTED.items():
        for (what, (name, unit)), expected in zip(COMPARED.items(), expectations, strict=True):
            figures = [row.figures.get(name) if row else None for row in found(variant, BATCHES[0])]
            values = [None if x is None else x / unit for x in figures]
            texts = (number(x, ".4g") for x in values)
            body.append((variant, what, expected, *texts, verdict(values, expected)))
    for ffts in BATCHES:
        both = zip(found("A", ffts), found("B", ffts), strict=True)
        times = [a.median / b.median if a and b else None for a, b in both]
        what = f"times as fast as A, {count_of(ffts)} FFTs"
        body.append(("B", what, SPEED_UP, *map(number, times), verdict(times, SPEED_UP)))
    title = f"The note's figures, and what was found ({count_of(BATCHES[0])} FFTs)"
    names = page.heads("variant | figure | the note | coalesced loads | literal loads | held?")
    yield Table(title, names, tuple(body))


def count_of(ffts: int) -> str:
    return power(ffts) if ffts & (ffts - 1) == 0 else f"{ffts:,}"


def time_table(rows: Rows) -> Iterator[Table]:
    """Yield a table for each size, the fastest first."""
    columns = (
        "variant | loads = $loads | us | GB/s | share of copy | time by cuFFT's = cufft_ratio .2f | blocks | "
        "threads | loop turns = loop_turns .0f | shared KB | registers | occupancy | achieved | "
        "instructions a thread = instructions_per_thread .0f | "
        "instructions an FFT = instructions_per_fft .0f | bank conflicts an FFT = bank_conflicts @64 .1f"
    )
    for ffts in rows.values("ffts"):
        found = sorted(rows.where(ffts=ffts), key=lambda row: row.median)
        yield table(f"{count_of(ffts)} FFTs", columns, found)


def accuracy_table(rows: Rows) -> Iterator[Table]:
    """Errors at the note's size: they do not depend on it."""
    found = [row for row in rows.where(ffts=BATCHES[0]) if row.params.get("loads") != LITERAL]
    title = f"Errors against a DFT in long double, normal random input, {PERIOD} FFTs"
    yield page.accuracy_table(title, "variant", found)


def convolution_table(rows: Rows) -> Iterator[Table]:
    """Convolutions in one kernel, beside separate calls for transforms and products."""

    def share(row: Row) -> str:
        """Return the share of the copy's bandwidth, by the bytes that must be moved at least."""
        gbps = (16 if row.params["loads"] == ONE else 24) * row.work / row.median
        return quotient(gbps, row.figures["copy_gbps"], ".0%") if row.library == "polygpu" else ""

    yield table(
        f"Convolutions of 64 points, complex64, {count_of(max(rows.values('ffts')))} rows",
        "filter = $loads | by = by | us | ps a point | share of copy = share | times as fast = times | "
        "relative L2 error = error_l2 .2e",
        rows,
        by=lambda row: f"{row.library}, {row.params['variant']}",
        share=share,
        times=lambda row: f"{row.figures['times_separate']:.2f}x" if "times_separate" in row.figures else "",
    )


KINDS = {
    "fft64-convolution": StudyKind(convolution_table, CONVOLUTION_OP),
    "fft64-note": StudyKind(note_table, OP),
    "fft64-time": StudyKind(time_table, OP),
    "fft64-accuracy": StudyKind(accuracy_table, OP),
}
