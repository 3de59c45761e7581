"""Transforms of 64 residues: a lab note's kernel through shared memory, what its parts cost, and registers.

The note (docs/studies/ntt64.md) has 32 threads a transform, with and without bank conflicts, leaves out
global memory, twiddles, butterflies and shared memory in turn, and concludes that values belong in registers:
8 threads with 8 values each, which is one of the shapes of polygpu's own kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu.backends import get_backend
from polygpu.backends.cuda.tiles import Pass

from ..harness import Row, Timer
from ..plots import Bar, bars
from ..tables import Table, figure
from . import kernel, runner, transforms
from .page import StudyKind, optional, sectors, stalls, us
from .runner import DEVICE, POISON, Entry, Group

N = 64
HELD = 4  # transforms of a block
BLOCKS = (1, 512, 65536)
PERIOD = 1021  # transforms after which the input repeats: prime, so that it begins anywhere in a block

# Variants of the kernel through shared memory, by what they leave out, and whether it has no bank conflicts.
CONFLICTS, WHOLE = "conflicts", "no conflicts"
GLOBAL = "without global memory"
TWIDDLES = "without twiddles"
BUTTERFLIES = "without butterflies"
SHARED = "without butterflies, shared memory"
STAGES = {
    CONFLICTS: ("NOTHING", False),
    WHOLE: ("NOTHING", True),
    GLOBAL: ("GLOBAL", True),
    TWIDDLES: ("TWIDDLES", True),
    BUTTERFLIES: ("BUTTERFLIES", True),
    SHARED: ("SHARED", True),
}
ABLATIONS = (GLOBAL, TWIDDLES, BUTTERFLIES, SHARED)

# Variants of 8 threads a transform.
LOG_HELD = 2
LOG_VALUES = 3
# So much shared memory leaves room for 21 blocks of a warp on a multiprocessor with 228 KB: a third of its
# 64 warps.
THIRD_BYTES = 9984
PLAIN, THIRD = "8 threads, conflicts", "8 threads, conflicts, more shared memory"
OWN = "8 threads, polygpu"  # and the threads of a block
OWN_LOG_ROWS = (2, 5)

# Values of a thread and threads of a block of polygpu's kernel, in logarithms.
SWEEP = tuple((log_values, log_threads) for log_values in (2, 3, 4, 5) for log_threads in (5, 6, 7, 8))


# ---- what is launched ----


def expression(variant: str) -> str:
    without, swizzled = STAGES[variant]
    return f"ntt64_shared<{without}, {str(swizzled).lower()}>"


REGISTERS = f"ntt64_registers<{LOG_HELD}>"


@cache
def kernels(device: int) -> dict[str, Any]:
    return kernel.load("ntt64.cu", [*map(expression, STAGES), REGISTERS])


def groups() -> list[Group]:
    found = []
    for blocks in BLOCKS:
        entries: list[tuple[str, Callable[[], Entry]]] = []
        entries += [(variant, partial(stages, variant, blocks)) for variant in STAGES]
        entries.append((PLAIN, partial(registers, PLAIN, 8 * N << LOG_HELD, blocks)))
        entries.append((THIRD, partial(registers, THIRD, THIRD_BYTES, blocks)))
        for log_rows in OWN_LOG_ROWS:
            one = Pass(0, 6, 0, log_rows, LOG_VALUES)
            variant = own_variant(one.threads)
            entries.append((variant, partial(library, variant, one, HELD * blocks)))
        params = {"blocks": blocks, "transforms": HELD * blocks}
        found.append(Group("ntt64", params, partial(values, blocks), entries))
    shapes = [Pass(0, 6, 0, k + v - 6, v) for v, k in SWEEP]
    for blocks in BLOCKS[1:]:
        sweep: list[tuple[str, Callable[[], Entry]]] = [
            (one.shape, partial(library, "polygpu", one, HELD * blocks, shape_of(one))) for one in shapes
        ]
        found.append(Group("ntt64 shape", {"transforms": HELD * blocks}, partial(values, blocks), sweep))
    return found


def own_variant(threads: int) -> str:
    return f"{OWN}, {threads} a block"


def shape_of(one: Pass) -> dict[str, int]:
    return {"values": 1 << one.log_values, "threads": one.threads}


def stages(variant: str, blocks: int) -> Entry:
    import cupy

    function = kernels(cupy.cuda.Device().id)[expression(variant)]
    moduli, table = constants()
    q = transforms.modulus()
    w, number = one_twiddle(), result_without_memory()[2, 37]
    scalars = [np.uint64(c) for c in (q, 2**64 // q, w, (w << 64) // q, number)]

    def run(x: Any, y: Any) -> None:
        function((blocks,), (32 * HELD,), (x, y, moduli, table, *scalars))

    facts = kernel.facts_of(function, blocks, 32 * HELD)
    moved = 0 if variant == GLOBAL else bytes_of(blocks)
    return Entry(variant, run, partial(expected, variant, blocks), moved, kernel="ntt64_shared", facts=facts)


def registers(variant: str, shared_bytes: int, blocks: int) -> Entry:
    import cupy

    function = kernels(cupy.cuda.Device().id)[REGISTERS]
    threads = 8 * HELD
    moduli, _ = constants()
    table = transforms.table_of(N, Pass(0, 6, 0, LOG_HELD, LOG_VALUES))

    def run(x: Any, y: Any) -> None:
        function((blocks,), (threads,), (x, y, moduli, table), shared_mem=shared_bytes)

    facts = kernel.facts_of(function, blocks, threads, shared_bytes)
    right = partial(expected, variant, blocks)
    return Entry(variant, run, right, bytes_of(blocks), kernel="ntt64_registers", facts=facts)


def library(variant: str, one: Pass, count: int, params: Mapping[str, int | str] | None = None) -> Entry:
    """polygpu's own kernel in one shape."""
    import cupy

    run = transforms.in_passes(N, (one,))
    x = cupy.zeros((1, N), np.uint64)
    run(x, cupy.empty_like(x))
    facts = transforms.facts_of_pass(N, one, count)
    right = partial(expected, variant, count // HELD)
    moved = bytes_of(count // HELD)
    return Entry(variant, run, right, moved, "polygpu", "ntt_forward", facts, params or {})


def constants() -> tuple[Any, Any]:
    """The modulus and the twiddles by node, on the card."""
    import cupy

    backend: Any = get_backend(DEVICE)
    table = cupy.asarray(transforms.node_twiddles(N))
    return backend._moduli(transforms.ring(N).transform.basis), table


def bytes_of(blocks: int) -> int:
    return 2 * 8 * N * HELD * blocks


# ---- what must come out ----


def values(blocks: int) -> NDArray[Any]:
    return repeated(first_period(), blocks)


def repeated(period: NDArray[Any], blocks: int) -> NDArray[Any]:
    return np.resize(period, (HELD * blocks, N))


def first_period() -> NDArray[Any]:
    return transforms.residues(N * PERIOD).reshape(PERIOD, N)


@cache
def transformed_period() -> NDArray[Any]:
    return transforms.transformed(first_period())


def expected(variant: str, blocks: int) -> NDArray[Any]:
    x = first_period()
    if variant == GLOBAL:
        right = result_without_memory()
        return repeated(np.where(right == right[2, 37], right, np.uint64(POISON)), blocks)
    if variant == TWIDDLES:
        return repeated(network(x), blocks)
    if variant == BUTTERFLIES:
        return repeated(x[:, ::-1], blocks)  # every bit of an index has changed
    if variant == SHARED:
        return repeated(np.roll(x, N // 2, axis=-1), blocks)
    return repeated(transformed_period(), blocks)


def one_twiddle() -> int:
    """Of all butterflies, where none is read."""
    return transforms.root(N)


def network(x: NDArray[Any]) -> NDArray[Any]:
    """The six stages with one twiddle, in Python's integers."""
    q, w = transforms.modulus(), one_twiddle()
    found = x.astype(object)
    for half in (32, 16, 8, 4, 2, 1):
        low, high = np.moveaxis(found.reshape(-1, N // (2 * half), 2, half), 2, 0)
        product = high * w
        found = np.stack([(low + product) % q, (low - product) % q], axis=2).reshape(x.shape)
    return found.astype(np.uint64)


@cache
def result_without_memory() -> NDArray[Any]:
    """A period of the transforms of values that the kernel makes itself."""
    return network(np.arange(2**16, dtype=np.uint64).reshape(-1, N) * np.uint64(0x5851F42D4C9))


# ---- the run ----


def launches() -> Iterator[Callable[[], object]]:
    """Every kernel of the study, for a profiler."""
    return runner.launches(groups())


def main(out: Path, timer: Timer | None = None) -> int:
    return runner.run("ntt64", groups(), out, timer)


# ---- the page ----

# us, achieved occupancy; the theoretical one is 100 % throughout.
NOTE = {
    (1, CONFLICTS): (3.39, 0.0828),
    (1, WHOLE): (3.52, 0.0823),
    (512, CONFLICTS): (11.07, 0.727),
    (512, WHOLE): (10.14, 0.7182),
    (65536, CONFLICTS): (856.42, 0.9464),
    (65536, WHOLE): (824.74, 0.9528),
}
NOTE_ABLATIONS = {  # us
    (1, GLOBAL): 3.23,
    (512, GLOBAL): 8.76,
    (1, TWIDDLES): 3.30,
    (512, TWIDDLES): 9.98,
    (65536, TWIDDLES): 819.62,
    (1, BUTTERFLIES): 2.53,
    (512, BUTTERFLIES): 6.21,
    (65536, BUTTERFLIES): 649.66,
    (1, SHARED): 1.44,
    (512, SHARED): 1.92,
    (65536, SHARED): 60.61,
}
NOTE_REGISTERS = (
    13.38,
    0.3333,
    0.2199,
)  # us, theoretical and achieved occupancy, of a size that it leaves open

Cells = Mapping[tuple[int, str], Row]  # by blocks and variant


def cell(row: Row) -> tuple[int, str]:
    return int(row.params["blocks"]), str(row.params["variant"])


def sizes(cells: Cells) -> list[int]:
    return sorted({blocks for blocks, _ in cells} | {blocks for blocks, _ in NOTE})


def of(row: Row | None, name: str, form: str = "{:.0%}") -> str:
    return optional(row.figures, name, form) if row else ""


def theoretical(row: Row | None) -> str:
    """The profiler's where it has counted, else the calculator's."""
    return of(row, "theoretical_occupancy") or of(row, "occupancy")


def each_transform(row: Row | None, name: str) -> str:
    if row is None or name not in row.figures:
        return ""
    return f"{row.figures[name] / int(row.params['transforms']):.1f}"


def note_table(cells: Cells) -> Iterator[Table]:
    columns = [(blocks, variant) for blocks in sizes(cells) for variant in (CONFLICTS, WHOLE)]
    noted = [NOTE.get(column) for column in columns]
    here = [cells.get(column) for column in columns]
    body = (
        ("time, us", "the note", *(figure(n[0]) if n else "" for n in noted)),
        ("time, us", "here", *map(us, here)),
        ("time by that with conflicts", "the note", *ratios([n[0] if n else None for n in noted])),
        ("time by that with conflicts", "here", *ratios([r.median if r else None for r in here])),
        ("achieved occupancy", "the note", *(f"{n[1]:.2%}" if n else "" for n in noted)),
        ("achieved occupancy", "here", *(of(r, "achieved_occupancy", "{:.2%}") for r in here)),
        ("theoretical occupancy", "the note", *("100%" if n else "" for n in noted)),
        ("theoretical occupancy", "here", *map(theoretical, here)),
        ("bank conflicts a transform", "here", *(each_transform(r, "bank_conflicts") for r in here)),
        ("share of copy", "here", *(of(r, "copy_share") for r in here)),
        ("stalls, cycles an instruction", "here", *(stalls(r.figures) if r else "" for r in here)),
    )
    heads = (f"{blocks} x {HELD}, {variant}" for blocks, variant in columns)
    yield Table("32 threads a transform", ("figure", "of", *heads), body)


def ratios(times: list[float | None]) -> Iterator[str]:
    """Of neighbours, under the second."""
    for with_, without in zip(times[::2], times[1::2], strict=True):
        yield ""
        yield f"{without / with_:.2f}" if with_ and without else ""


def ablation_table(cells: Cells) -> Iterator[Table]:
    body = []
    for variant in ABLATIONS:
        for blocks in sizes(cells):
            whole, after = NOTE.get((blocks, WHOLE)), NOTE_ABLATIONS.get((blocks, variant))
            own_whole, own = cells.get((blocks, WHOLE)), cells.get((blocks, variant))
            share = f"{own.median / own_whole.median:.0%}" if own and own_whole else ""
            body.append(
                (
                    variant,
                    f"{blocks} x {HELD}",
                    figure(whole[0]) if whole else "",
                    figure(after) if after else "",
                    f"{after / whole[0]:.0%}" if after and whole else "",
                    us(own_whole),
                    us(own),
                    share,
                    stalls(own.figures) if own else "",
                )
            )
    heads = (
        f"{whose}: {what}" for whose in ("the note", "here") for what in ("before, us", "after, us", "left")
    )
    yield Table(
        "What is left without a part",
        ("variant", "transforms", *heads, "here: stalls, cycles an instruction"),
        tuple(body),
    )


def registers_table(cells: Cells) -> Iterator[Table]:
    own = [variant for _, variant in cells if variant.startswith(OWN)]
    blocks = sizes(cells)
    asked, unasked = NOTE_REGISTERS, len(blocks) * ("",)
    times = tuple(figure(asked[0]) if n == 512 else "" for n in blocks)
    achieved = tuple(f"{asked[2]:.2%}" if n == 512 else "" for n in blocks)
    body = [
        ("conflicts", "the note", "", "", "", f"{asked[1]:.2%}", *times, *achieved, "", "", "", ""),
        ("no conflicts", "the note", "", "", "", "", *unasked, *unasked, "", "", "", ""),
    ]
    for variant in dict.fromkeys((PLAIN, THIRD, *own)):
        found = [cells.get((n, variant)) for n in blocks]
        last = next((r for r in reversed(found) if r), None)
        body.append(
            (
                variant.removeprefix("8 threads, "),
                "here",
                of(last, "threads", "{:.0f}"),
                f"{last.figures['shared_bytes'] / 1024:.2f}" if last else "",
                of(last, "registers", "{:.0f}"),
                theoretical(last),
                *map(us, found),
                *(of(r, "achieved_occupancy", "{:.2%}") for r in found),
                each_transform(last, "bank_conflicts"),
                sectors(last.figures, "load") if last else "",
                sectors(last.figures, "store") if last else "",
                stalls(last.figures) if last else "",
            )
        )
    heads = (f"{n} x {HELD}, {what}" for what in ("us", "achieved") for n in blocks)
    yield Table(
        "8 threads a transform, 8 values a thread",
        (
            "variant",
            "of",
            "threads a block",
            "shared KB a block",
            "registers",
            "theoretical occupancy",
            *heads,
            "bank conflicts a transform",
            "sectors a load",
            "sectors a store",
            "stalls, cycles an instruction",
        ),
        tuple(body),
    )


Shapes = Mapping[tuple[int, int, int], Row]  # by transforms, values of a thread, threads of a block


def shape_cell(row: Row) -> tuple[int, int, int]:
    p = row.params
    return int(p["transforms"]), int(p.get("values", 0)), int(p.get("threads", 0))


def taken() -> tuple[int, int]:
    """What polygpu takes by itself, for few transforms and for many."""
    one = transforms.taken(N)
    return 1 << one.log_values, one.threads


def shape_rows(shapes: Shapes) -> Iterator[tuple[int, list[tuple[int, int, Row]]]]:
    """By the number of transforms."""
    for transforms_ in sorted({count for count, held, _ in shapes if held}):
        own = ((held, threads, row) for (count, held, threads), row in shapes.items() if count == transforms_)
        yield transforms_, sorted((x for x in own if x[0]), key=lambda x: x[:2])


def shape_table(shapes: Shapes) -> Iterator[Table]:
    for count, rows in shape_rows(shapes):
        body = []
        for held, threads, row in rows:
            f = row.figures
            body.append(
                (
                    str(held),
                    f"{threads}{'*' * ((held, threads) == taken())}",
                    us(row),
                    figure(1000 * row.median / row.work),
                    f"{f['copy_share']:.0%}",
                    of(row, "registers", "{:.0f}"),
                    f"{f['shared_bytes'] / 1024:.2f}",
                    theoretical(row),
                    of(row, "achieved_occupancy"),
                    of(row, "spilled_bytes", "{:.0f}"),
                    each_transform(row, "thread_instructions"),
                    each_transform(row, "bank_conflicts"),
                    stalls(f),
                )
            )
        yield Table(
            f"polygpu's kernel, {count} transforms (* what it takes by itself)",
            (
                "values a thread",
                "threads a block",
                "us",
                "ps a point",
                "share of copy",
                "registers",
                "shared KB a block",
                "theoretical occupancy",
                "achieved",
                "spilled bytes",
                "instructions a transform",
                "bank conflicts a transform",
                "stalls, cycles an instruction",
            ),
            tuple(body),
        )


def ablation_bars(cells: Cells) -> str | None:
    """What is left of the time at the largest size, beside the note's."""
    blocks = sizes(cells)[-1]
    whole, own = NOTE.get((blocks, WHOLE)), cells.get((blocks, WHOLE))
    lines = []
    if whole:
        noted = [(WHOLE, whole[0]), *((v, NOTE_ABLATIONS.get((blocks, v))) for v in ABLATIONS)]
        lines += [Bar("the note", {}), *share_bars(noted, whole[0])]
    if own:
        found = [cells.get((blocks, v)) for v in (WHOLE, *ABLATIONS, "copy")]
        times = [(str(r.params["variant"]), r.figures["us_median"]) for r in found if r]
        lines += [Bar("here", {}), *share_bars(times, own.figures["us_median"])]
    return bars(
        f"64-point transforms, {blocks} x {HELD}: time by that of the whole kernel", lines, ("whole", 1.0)
    )


def share_bars(
    times: list[tuple[str, float | None]] | list[tuple[str, float]], whole: float
) -> Iterator[Bar]:
    for name, time in times:
        if time is not None:
            yield Bar(name, {"share": time / whole}, f"{figure(time)} us")


def shape_bars(shapes: Shapes) -> str | None:
    """Shares of the copy by shape, for the most transforms."""
    lines, held = [], 0
    _, rows = max(shape_rows(shapes), default=(0, []))
    for own, threads, row in rows:
        if own != held:
            lines.append(Bar(f"{own} values a thread", {}))
            held = own
        label = f"{threads} threads a block{' (taken)' * ((own, threads) == taken())}"
        share = row.figures["copy_share"]
        lines.append(Bar(label, {"share": share}, f"{share:.0%}"))
    return bars("64-point transforms by polygpu's kernel: share of the copy's speed", lines, ("copy", 1.0))


KINDS = {
    "ntt64-note": StudyKind(note_table, "ntt64", cell),
    "ntt64-ablations": StudyKind(ablation_table, "ntt64", cell),
    "ntt64-registers": StudyKind(registers_table, "ntt64", cell),
    "ntt64-shapes": StudyKind(shape_table, "ntt64 shape", shape_cell),
}
FIGURES = {
    "studies/ntt64.svg": (KINDS["ntt64-ablations"], ablation_bars),
    "studies/ntt64-shapes.svg": (KINDS["ntt64-shapes"], shape_bars),
}
