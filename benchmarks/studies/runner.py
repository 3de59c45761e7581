"""Kernels on arrays of integers: verified, timed beside a copy of the same bytes, counted by the profiler."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu.backends import get_backend

from ..harness import Case, CudaEvents, Row, Timer, measure, record, release
from . import kernel, ncu

DEVICE = "cuda:0"
POISON = 0xA5A5A5A5A5A5A5A5  # what a result holds before it is written; no residue
RECORDED_BYTES = 2**25  # smaller arrays are worked on in a graph: kernels run faster than Python calls them
MOST_SETS = 256


@dataclass(frozen=True, eq=False)
class Entry:
    """A kernel, or several in a row, ready to run."""

    variant: str
    run: Callable[[Any, Any], object]
    """From x to y, arrays on the card."""
    expected: Callable[[], NDArray[Any]]
    """What y must be, in host memory: POISON where it is not written."""
    moved_bytes: int
    """The least that it moves through the card's memory."""
    library: str = "study"
    kernel: str | None = None
    """Part of its name in a profile; None: not one kernel."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Of the kernel and its blocks."""
    params: Mapping[str, int | str] = field(default_factory=dict)
    """Of its row, beside the group's."""
    modulus: int | None = None
    """Of y, which may be lazy; None: y is what is expected itself."""


@dataclass(frozen=True, eq=False)
class Group:
    """Entries that read the same array x, and write another of its size. The first is the copy."""

    op: str
    params: Mapping[str, int | str]
    x: Callable[[], NDArray[Any]]
    entries: Sequence[tuple[str, Callable[[], Entry]]]
    """Names, for messages, and what makes them."""

    def made(self, say: Callable[[str], object]) -> list[Entry]:
        """A copy, and the entries that can be made here."""
        own = ((f"{self}, {name}", make) for name, make in self.entries)
        return [copy(self.x), *kernel.made(own, say)]

    def __str__(self) -> str:
        return " ".join((self.op, *(f"{k}={v}" for k, v in self.params.items())))


def copy(x: Callable[[], NDArray[Any]]) -> Entry:
    import cupy

    return Entry("copy", lambda x, y: cupy.copyto(y, x), x, 2 * x().nbytes, library="CuPy")


def sets_of(x: Any, l2_bytes: int) -> list[tuple[Any, Any]]:
    """x, of the host or the card, and room for a result, so many times over that no cache holds them."""
    import cupy

    first = cupy.asarray(x)
    copies = min(MOST_SETS, max(1, math.ceil(4 * l2_bytes / (2 * x.nbytes))))
    return [(first if i == 0 else first.copy(), cupy.empty_like(first)) for i in range(copies)]


def case(group: Group, entry: Entry, sets: Sequence[tuple[Any, Any]]) -> Case:
    """The entry on all sets, one after the other."""
    import cupy

    def run() -> Any:
        for x, y in sets:
            entry.run(x, y)
        return sets[0][1]

    x, first = sets[0]
    for _, y in sets:
        y.fill(np.uint64(POISON).astype(y.dtype))
    recorded = x.nbytes < RECORDED_BYTES
    repeat = get_backend(DEVICE).capture(run) if recorded else run

    def verify(values: NDArray[Any]) -> bool:
        reduced = values if entry.modulus is None else values % np.uint64(entry.modulus)
        right = np.array_equal(reduced, entry.expected().reshape(values.shape))
        return right and all(bool(cupy.array_equal(y, first)) for _, y in sets[1:])

    params: dict[str, int | str] = {**group.params, "variant": entry.variant, **entry.params}
    params |= {"launch": f"CUDA graph of {len(sets)}" if recorded else "plain"}
    return Case(group.op, entry.library, params, repeat, verify, x.size, cupy.asnumpy, len(sets))


def launches(groups: Iterable[Group]) -> Iterator[Callable[[], object]]:
    """Every single kernel, for a profiler."""
    import cupy

    for group in groups:
        x = cupy.asarray(group.x())
        y = cupy.empty_like(x)
        for entry in group.made(print):
            if entry.kernel is not None:
                yield partial(entry.run, x, y)


def run(study: str, groups: Sequence[Group], out: Path, timer: Timer | None = None) -> int:
    """Measure all entries and keep their rows; 1 if one of them was wrong."""
    timer = timer or CudaEvents()
    l2_bytes = int(timer.machine()["l2_bytes"])
    plans = [(group, group.made(lambda line: print(line, flush=True))) for group in groups]
    kernels = [entry for _, plan in plans for entry in plan if entry.kernel is not None]
    counted: dict[Entry, ncu.Counted] = {}
    try:
        if kernels:
            counted = dict(zip(kernels, ncu.count(study, [e.kernel or "" for e in kernels]), strict=True))
    except ncu.Uncounted as error:
        print(f"no counters: {error}", flush=True)
    failures = 0
    for group, plan in plans:
        sets = sets_of(group.x(), l2_bytes)
        copied: Row | None = None
        for entry in plan:
            try:
                row = measure(case(group, entry, sets), timer)
                copied = copied or row
                figures = times(row, entry.moved_bytes, copied, 2 * sets[0][0].nbytes) | dict(entry.facts)
                if entry in counted:
                    figures |= ncu.figures(counted[entry])
                row = dataclasses.replace(row, figures=figures)
                record(row, out)
                print(describe(row), flush=True)
            except Exception as error:
                failures += 1
                print(f"{group}, {entry.variant} {dict(entry.params)}: FAILED, {error}", flush=True)
                if copied is None:
                    break  # the copy, beside which the others stand
        del sets
        release()
    return 1 if failures else 0


def times(row: Row, moved_bytes: int, copied: Row, copied_bytes: int) -> dict[str, float]:
    """Of a row, beside a copy."""
    copy_gbps, gbps = copied_bytes / copied.median, moved_bytes / row.median
    return {
        "us_median": round(row.median / 1000, 3),
        "gbps": round(gbps, 1),
        "copy_gbps": round(copy_gbps, 1),
        "copy_share": round(gbps / copy_gbps, 4),
    }


def describe(row: Row) -> str:
    what = " ".join(f"{k}={v}" for k, v in row.params.items())
    return f"{row.op} {what}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.figures.items())
