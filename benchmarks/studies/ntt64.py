"""Transforms of 64 residues: a lab note's kernel through shared memory, what its parts cost, and registers.

The note (docs/studies/ntt64.md) has 32 threads for a transform, with and without bank conflicts. It leaves
out global memory, twiddles, butterflies and shared memory in turn, and concludes that values belong in
registers: 8 threads with 8 values each. This is one of the shapes of polygpu's own kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu._backends.cuda.tiles import Pass

from ..harness import Row
from ..plots import Bar, bars
from ..tables import Table, figure
from . import page, runner, transforms
from .kernel import Kernel
from .page import Rows, StudyKind, number, quotient, texts
from .runner import POISON, Entry, Group
from .transforms import in_passes

N = 64
HELD = 4  # transforms of a block
BLOCKS = (1, 512, 65536)
PERIOD = 1021  # transforms after which the input repeats: prime, so that it begins at any place of a block

# Variants of the kernel through shared memory, by what they leave out, and whether it has no bank conflicts.
CONFLICTS, WHOLE = "conflicts", "no conflicts"
GLOBAL = "without global memory"
TWIDDLES = "without twiddles"
BUTTERFLIES = "without butterflies"
SHARED = "without butterflies, shared memory"
STAGES = {
    CONFLICTS: "NOTHING, false",
    WHOLE: "NOTHING, true",
    GLOBAL: "GLOBAL, true",
    TWIDDLES: "TWIDDLES, true",
    BUTTERFLIES: "BUTTERFLIES, true",
    SHARED: "SHARED, true",
}
ABLATIONS = (GLOBAL, TWIDDLES, BUTTERFLIES, SHARED)

# Variants with 8 threads for a transform, and the shared memory of a block. With 9984 bytes, a multiprocessor
# of 228 KB has room for 21 blocks of one warp: a third of its 64 warps.
LOG_VALUES = 3
PLAIN, THIRD = "8 threads, conflicts", "8 threads, conflicts, more shared memory"
REGISTERS = {PLAIN: 8 * N * HELD, THIRD: 9984}
OWN = "8 threads, polygpu"  # the variant's name goes on with the threads of a block
OWN_LOG_ROWS = (2, 5)

# log2 of the values of a thread and of the threads of a block, in polygpu's kernel.
SWEEP = tuple((log_values, log_threads) for log_values in (2, 3, 4, 5) for log_threads in (5, 6, 7, 8))


# ---- what must come out, a period of it ----


def first_period() -> NDArray[Any]:
    return transforms.residues(N * PERIOD).reshape(PERIOD, N)


def repeated(count: int) -> NDArray[Any]:
    return np.resize(first_period(), (count, N))


def expected(variant: str) -> NDArray[Any]:
    x = first_period()
    if variant == GLOBAL:
        right = result_without_memory()
        return np.where(right == right[2, 37], right, np.uint64(POISON))
    if variant == TWIDDLES:
        return network(x)
    if variant == BUTTERFLIES:
        return x[:, ::-1]  # every bit of an index has changed
    if variant == SHARED:
        return np.roll(x, N // 2, axis=-1)
    return transforms.transformed(x)


def one_twiddle() -> int:
    """Return the twiddle of all butterflies in kernels that read none."""
    return transforms.root(N)


def network(x: NDArray[Any]) -> NDArray[Any]:
    """Compute the six stages with one twiddle, in Python's integers."""
    q, w = transforms.modulus(), one_twiddle()
    found = x.astype(object)
    for half in (32, 16, 8, 4, 2, 1):
        low, high = np.moveaxis(found.reshape(-1, N // (2 * half), 2, half), 2, 0)
        product = high * w
        found = np.stack([(low + product) % q, (low - product) % q], axis=2).reshape(x.shape)
    return found.astype(np.uint64)


@cache
def result_without_memory() -> NDArray[Any]:
    """Compute a period of the transforms of values that the kernel makes itself."""
    return network(np.arange(2**16, dtype=np.uint64).reshape(-1, N) * np.uint64(0x5851F42D4C9))


# ---- what is launched ----


def of_stages() -> tuple[Any, ...]:
    """Return the modulus, the twiddles by node, and scalars for kernels that do not read these."""
    q, w = transforms.modulus(), one_twiddle()
    scalars = (q, 2**64 // q, w, (w << 64) // q, result_without_memory()[2, 37])
    table = transforms.on_card(transforms.node_twiddles(N))
    return transforms.moduli(), *table, *map(np.uint64, scalars)


def of_registers() -> tuple[Any, ...]:
    log_rows = HELD.bit_length() - 1
    return transforms.moduli(), transforms.round_twiddles(N, Pass(0, 6, 0, log_rows, LOG_VALUES))


def entries(blocks: int, log_rows: Iterable[int]) -> Iterator[Entry]:
    for variant, template in STAGES.items():
        kernel = Kernel("ntt64.cu", f"ntt64_shared<{template}>", (blocks,), (32 * HELD,), of_stages)
        moved_bytes = 0 if variant == GLOBAL else None
        yield Entry(variant, [kernel], partial(expected, variant), moved_bytes)
    for variant, shared_bytes in REGISTERS.items():
        name = f"ntt64_registers<{HELD.bit_length() - 1}>"
        kernel = Kernel("ntt64.cu", name, (blocks,), (8 * HELD,), of_registers, shared_bytes)
        yield Entry(variant, [kernel], partial(expected, variant))
    for one in (Pass(0, 6, 0, k, LOG_VALUES) for k in log_rows):
        variant, work = f"{OWN}, {one.threads} a block", in_passes(N, HELD * blocks, [one])
        yield Entry(variant, work, partial(expected, variant), library="polygpu")


def shapes(blocks: int, sweep: Iterable[tuple[int, int]]) -> Iterator[Entry]:
    for one in (Pass(0, 6, 0, log_threads + log_values - 6, log_values) for log_values, log_threads in sweep):
        work, right = in_passes(N, HELD * blocks, [one]), partial(expected, "polygpu")
        params: dict[str, int | str] = {"values": 1 << one.log_values, "threads": one.threads}
        yield Entry("polygpu", work, right, library="polygpu", params=params)


def groups(
    blocks: Sequence[int] = BLOCKS,
    sweep: Sequence[tuple[int, int]] = SWEEP,
    log_rows: Sequence[int] = OWN_LOG_ROWS,
) -> list[Group]:
    """Return groups: the variants for each number of blocks, and the sweep for each but the first."""

    def group(op: str, n: int, own: Iterable[Entry], **params: int) -> Group:
        x = partial(repeated, HELD * n)
        return Group(op, {**params, "transforms": HELD * n}, x, list(own))

    found = [group("ntt64", n, entries(n, log_rows), blocks=n) for n in blocks]
    return found + [group("ntt64 shape", n, shapes(n, sweep)) for n in blocks[1:]]


PARTS = {"kernels": runner.counted("ntt64", groups)}


# ---- the page ----

# By variant: us and achieved occupancy at each number of blocks. The theoretical occupancy is always 100 %.
NOTED: dict[str, tuple[tuple[float, ...], ...]] = {
    CONFLICTS: ((3.39, 0.0828), (11.07, 0.727), (856.42, 0.9464)),
    WHOLE: ((3.52, 0.0823), (10.14, 0.7182), (824.74, 0.9528)),
    GLOBAL: ((3.23,), (8.76,)),
    TWIDDLES: ((3.30,), (9.98,), (819.62,)),
    BUTTERFLIES: ((2.53,), (6.21,), (649.66,)),
    SHARED: ((1.44,), (1.92,), (60.61,)),
}
OCCUPANCIES = ("theoretical_occupancy", "achieved_occupancy")
NOTE = Rows(
    page.noted(
        figures[0], dict(zip(OCCUPANCIES, (1, *figures[1:]), strict=False)), variant=variant, blocks=blocks
    )
    for variant, of_blocks in NOTED.items()
    for blocks, figures in zip((1, 512, 65536), of_blocks, strict=False)
)
# us, theoretical and achieved occupancy, of a size that the note does not give
NOTE_REGISTERS = (13.38, 0.3333, 0.2199)

STALLS = "stalls, cycles an instruction"
TURNS = f"bank conflicts a transform = bank_conflicts @{N} .1f"
SHARED_KB = "shared KB a block = shared_bytes / 1024 .2f"
ACHIEVED = "achieved occupancy = achieved_occupancy .2%"


def sizes(rows: Rows) -> list[int]:
    return sorted({*rows.values("blocks"), *NOTE.values("blocks")})


def note_table(rows: Rows) -> Iterator[Table]:
    columns = [(blocks, variant) for blocks in sizes(rows) for variant in (CONFLICTS, WHOLE)]
    both, body = {"the note": NOTE, "here": rows}, []
    for name in ("time, us = us_median", "time by that with conflicts", ACHIEVED, "theoretical occupancy"):
        for whose, source in both.items():
            found = [source.one(blocks=blocks, variant=variant) for blocks, variant in columns]
            line = ratios(found) if name.startswith("time by") else page.across(found, name)
            body.append((*page.heads(name), whose, *line))
    body += [
        (*page.heads(name), "here", *page.across(found, name)) for name in (TURNS, "share of copy", STALLS)
    ]
    names = (f"{blocks} x {HELD}, {variant}" for blocks, variant in columns)
    yield Table("32 threads a transform", ("figure", "of", *names), tuple(body))


def ratios(rows: list[Row | None]) -> list[str]:
    """Time of every second row over the time of the row before it; an empty text before each."""
    pairs = zip(map(page.median, rows[::2]), map(page.median, rows[1::2]), strict=True)
    return [text for with_, without in pairs for text in ("", quotient(without, with_, ".2f"))]


def ablation_table(rows: Rows) -> Iterator[Table]:
    body = []
    for variant in ABLATIONS:
        for blocks in sizes(rows):
            line = [variant, f"{blocks} x {HELD}"]
            for source in (NOTE, rows):
                found = whole, row = [source.one(blocks=blocks, variant=name) for name in (WHOLE, variant)]
                line += [*page.across(found, "us"), quotient(page.median(row), page.median(whole), ".0%")]
            body.append((*line, *texts(row, STALLS)))
    whose = [f"{x}: {what}" for x in ("the note", "here") for what in ("before, us", "after, us", "left")]
    names = ("variant", "transforms", *whose, f"here: {STALLS}")
    yield Table("What is left without a part", names, tuple(body))


def registers_table(rows: Rows) -> Iterator[Table]:
    blocks = sizes(rows)
    facts = f"threads a block | {SHARED_KB} | registers | theoretical occupancy"
    counters = f"{TURNS} | sectors a load | sectors a store | {STALLS}"
    time, theoretical, achieved = NOTE_REGISTERS
    noted = [x if n == 512 else "" for x in (number(time), f"{achieved:.2%}") for n in blocks]
    body = [
        ("conflicts", "the note", "", "", "", f"{theoretical:.2%}", *noted, "", "", "", ""),
        ("no conflicts", "the note", "", "", "", "", *("" for _ in noted), "", "", "", ""),
    ]
    own = [name for row in rows if (name := str(row.params["variant"])).startswith(OWN)]
    for variant in dict.fromkeys((*REGISTERS, *own)):
        found = [rows.one(blocks=n, variant=variant) for n in blocks]
        last = next((row for row in reversed(found) if row), None)
        here = [*page.across(found, "us"), *page.across(found, ACHIEVED)]
        line = (*texts(last, facts), *here, *texts(last, counters))
        body.append((variant.removeprefix("8 threads, "), "here", *line))
    times = [f"{n} x {HELD}, {what}" for what in ("us", "achieved") for n in blocks]
    names = ("variant", "of", *page.heads(facts), *times, *page.heads(counters))
    yield Table("8 threads a transform, 8 values a thread", names, tuple(body))


def is_taken(row: Row) -> bool:
    """Whether it is the shape that polygpu takes by itself."""
    one = transforms.taken(N)
    return (row.params["values"], row.params["threads"]) == (1 << one.log_values, one.threads)


def in_order(rows: Rows) -> list[Row]:
    """Return the rows of shapes, by values of a thread, then by threads of a block."""
    found = (row for row in rows if "values" in row.params)
    return sorted(found, key=lambda row: (row.params["values"], row.params["threads"]))


def shape_table(rows: Rows) -> Iterator[Table]:
    columns = (
        "values a thread = $values | threads a block = threads | us | ps a point | share of copy | "
        f"registers | {SHARED_KB} | theoretical occupancy | achieved | spilled bytes = spilled_bytes .0f | "
        f"instructions a transform = thread_instructions @64 .1f | {TURNS} | {STALLS}"
    )

    def threads(row: Row) -> str:
        return f"{row.params['threads']}{'*' * is_taken(row)}"

    for count in rows.values("transforms"):
        title = f"polygpu's kernel, {count} transforms (* what it takes by itself)"
        yield page.table(title, columns, in_order(rows.where(transforms=count)), threads=threads)


def ablation_bars(rows: Rows) -> str | None:
    """Draw what is left of the time at the largest size, in the note and here."""
    blocks, lines = sizes(rows)[-1], []
    for whose, source in (("the note", NOTE), ("here", rows)):
        found = source.where(blocks=blocks).variants((WHOLE, *ABLATIONS, "copy"))
        if whole := found.one(variant=WHOLE):
            lines.append(Bar(whose, {}))
            for row in found:
                us = row.figures["us_median"]
                share = {"share": us / whole.figures["us_median"]}
                lines.append(Bar(str(row.params["variant"]), share, f"{figure(us)} us"))
    title = f"64-point transforms, {blocks} x {HELD}: time by that of the whole kernel"
    return bars(title, lines, ("whole", 1.0))


def shape_bars(rows: Rows) -> str | None:
    """Shares of the copy by shape, for the most transforms."""
    lines, held = [], None
    for row in in_order(rows.where(transforms=max(rows.values("transforms")))):
        if held != row.params["values"]:
            held = row.params["values"]
            lines.append(Bar(f"{held} values a thread", {}))
        label = f"{row.params['threads']} threads a block{' (taken)' * is_taken(row)}"
        lines.append(Bar(label, {"share": row.figures["copy_share"]}, f"{row.figures['copy_share']:.0%}"))
    return bars("64-point transforms by polygpu's kernel: share of the copy's speed", lines, ("copy", 1.0))


KINDS = {
    "ntt64-note": StudyKind(note_table, "ntt64"),
    "ntt64-ablations": StudyKind(ablation_table, "ntt64"),
    "ntt64-registers": StudyKind(registers_table, "ntt64"),
    "ntt64-shapes": StudyKind(shape_table, "ntt64 shape"),
}
FIGURES = {
    "studies/ntt64.svg": (KINDS["ntt64-ablations"], ablation_bars),
    "studies/ntt64-shapes.svg": (KINDS["ntt64-shapes"], shape_bars),
}
