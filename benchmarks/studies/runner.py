"""Variants of a kernel: verified, timed beside a copy of the same bytes, counted by the profiler."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polygpu._backends import get_backend

from ..harness import Case, CudaEvents, Row, Timer, measure, record, release
from . import kernel, ncu
from .kernel import Kernel, Ready

DEVICE = "cuda:0"
POISON = 0xA5A5A5A5A5A5A5A5  # integer results hold it before they are written; it is not a residue
RECORDED_BYTES = 2**25  # below it, kernels run in a graph: they are faster than Python calls them
MOST_SETS = 256  # of arrays that a kernel works on in turn

Figures = Mapping[str, float]
Params = Mapping[str, int | str]


class Task(NamedTuple):
    """A case that becomes a row. `figures` gets this row and the rows before it, by variant."""

    case: Case
    figures: Callable[[Row, Mapping[str, Row]], Figures]


Tasks = tuple[Iterable[Task], Timer]  # tasks that share arrays, and their clock
Part = Callable[[Path, Timer | None], Iterator[Tasks]]  # of a study; the path is the directory of the results


def run(parts: Iterable[Part], out: Path, timer: Timer | None = None) -> int:
    """Measure all tasks and keep their rows; 1 if one of them failed."""
    failures = 0
    for part in parts:
        for tasks, clock in part(out, timer):
            failures += measured(tasks, clock, out)
            release()
    return 1 if failures else 0


def measured(tasks: Iterable[Task], timer: Timer, out: Path) -> int:
    """Measure the tasks and record their rows; how many failed."""
    failures, done = 0, dict[str, Row]()
    for case, figures in tasks:
        try:
            row = measure(case, timer)
            row = dataclasses.replace(row, figures=dict(figures(row, done)))
        except Exception as error:
            failures += 1
            say(f"{case}: FAILED, {type(error).__name__}: {error}")
            continue
        record(row, out)
        done[str(row.params.get("variant"))] = row
        say(f"{case}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.figures.items()))
    return failures


def say(line: str) -> None:
    print(line, flush=True)


# ---- variants that read the same arrays ----


@dataclass(frozen=True, eq=False)
class Entry:
    """A variant: what runs (one kernel, several in a row, or something else) and what must come out."""

    variant: str
    work: Sequence[Kernel] | Callable[[], Ready]
    expected: Callable[
        [], NDArray[Any]
    ]  # y in host memory, or a period of it: POISON where it is not written
    moved_bytes: int | None = None  # at least, through the card's memory; None: what a copy moves
    library: str = "study"
    facts: Figures = field(default_factory=dict)  # besides those of a kernel
    params: Params = field(default_factory=dict)  # of its row, besides the group's
    modulus: int | None = None  # y may be lazy, and is compared modulo this; None: y equals what is expected
    bounds: tuple[float, float] | None = None  # of what errors() gives; None: y is exact
    op: str = ""  # of its row; "": the group's

    @property
    def kernels(self) -> Sequence[Kernel]:
        return () if callable(self.work) else self.work

    def ready(self, functions: Mapping[str, Any], x: Callable[[], NDArray[Any]]) -> Ready:
        if callable(self.work):
            return self.work()
        runs = [kernel.ready(one, functions) for one in self.work]
        return runs[0] if len(runs) == 1 else kernel.in_a_row(self.work, runs, x)

    def right(self, values: NDArray[Any]) -> bool:
        expected = np.resize(self.expected(), values.shape)
        if self.bounds is not None:
            return bool(np.all(np.array(errors(values, expected)) < self.bounds))
        return np.array_equal(values if self.modulus is None else values % np.uint64(self.modulus), expected)


Plan = list[tuple[Entry, Ready]]


@dataclass(frozen=True, eq=False)
class Group:
    """Entries that read the same array x and write another of its size. If `copied`, a copy comes first."""

    op: str
    params: Params
    x: Callable[[], NDArray[Any]]
    entries: Sequence[Entry]
    copied: ClassVar[bool] = True

    def sets(self, l2_bytes: int) -> list[tuple[Any, ...]]:
        """Return pairs of x and room for a result, on the card.

        There are enough copies that no cache holds them, but at most MOST_SETS.
        """
        import cupy

        x = cupy.asarray(self.x())
        count = min(MOST_SETS, max(1, math.ceil(4 * l2_bytes / (2 * x.nbytes))))
        return [(x.copy() if i else x, cupy.empty_like(x)) for i in range(count)]

    def values(self, y: Any) -> NDArray[Any]:
        """Return the values of y that are verified in host memory."""
        import cupy

        return np.asarray(cupy.asnumpy(y))

    def whole(self, y: Any) -> bool:
        """Whether the rest of y agrees with `values`."""
        return True

    def tasks(self, plan: Iterable[tuple[Entry, Ready, Figures]], timer: Timer) -> Iterator[Task]:
        sets = self.sets(int(timer.machine()["l2_bytes"]))
        for entry, ready, counters in plan:
            facts = {**ready.facts, **entry.facts, **counters}
            yield Task(self.case(entry, ready, sets), partial(self.figures, entry, facts, sets[0][-1]))

    def case(self, entry: Entry, ready: Ready, sets: Sequence[tuple[Any, ...]]) -> Case:
        """Return the case that runs the entry on all sets, one after the other."""
        import cupy

        def run() -> Any:
            for arrays in sets:
                ready.run(*arrays)
            return first

        first, *others = (arrays[-1] for arrays in sets)
        for y in (first, *others):
            y.fill(np.nan if y.dtype.kind in "fc" else np.uint64(POISON).astype(y.dtype))

        def verify(values: NDArray[Any]) -> bool:
            same = all(bool(cupy.array_equal(y, first)) for y in others)
            return same and self.whole(first) and entry.right(values)

        repeat, launch = run, {}
        if self.copied:
            recorded = first.nbytes < RECORDED_BYTES
            repeat = get_backend(DEVICE).capture(run) if recorded else run
            launch = {"launch": f"CUDA graph of {len(sets)}" if recorded else "plain"}
        op, params = entry.op or self.op, {**self.params, "variant": entry.variant, **entry.params, **launch}
        return Case(op, entry.library, params, repeat, verify, first.size, self.values, len(sets))

    def figures(self, entry: Entry, facts: Figures, y: Any, row: Row, done: Mapping[str, Row]) -> Figures:
        found = {**self.rates(entry, y, row, done), **facts}
        if entry.bounds is not None:
            values = self.values(y)
            found["error_l2"], found["error_max"] = errors(values, np.resize(entry.expected(), values.shape))
        return found

    def rates(self, entry: Entry, y: Any, row: Row, done: Mapping[str, Row]) -> Figures:
        """Time and bandwidth, and those of the copy."""
        copied = row if entry.variant == "copy" else done["copy"]
        moved_bytes = 2 * y.nbytes if entry.moved_bytes is None else entry.moved_bytes
        copy_gbps, gbps = 2 * y.nbytes / copied.median, moved_bytes / row.median
        return {
            "us_median": round(row.median / 1000, 3),
            "gbps": round(gbps, 1),
            "copy_gbps": round(copy_gbps, 1),
            "copy_share": round(gbps / copy_gbps, 4),
        }


def errors(values: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """Return the relative L2 error, and the largest error over the root mean square of what is expected."""
    off = np.abs(values - expected)
    rms = np.sqrt(np.mean(np.abs(expected) ** 2))
    return float(np.sqrt(np.mean(off**2)) / rms), float(off.max() / rms)


def copy() -> Ready:
    import cupy

    return Ready(lambda x, y: cupy.copyto(y, x))


def plans(groups: Sequence[Group]) -> list[tuple[Group, Plan]]:
    """Return the entries that this machine can run, after a copy if the group asks for one."""
    functions = kernel.compiled(one for group in groups for entry in group.entries for one in entry.kernels)
    found: list[tuple[Group, Plan]] = []
    for group in groups:
        plan: Plan = []
        copies = [Entry("copy", copy, group.x, library="CuPy")] if group.copied else []
        for entry in (*copies, *group.entries):
            try:
                plan.append((entry, entry.ready(functions, group.x)))
            except Exception as error:  # a library or a header is missing, a kernel does not compile
                text = str(error).strip().splitlines() or [""]
                say(f"{group.op} {group.params}, {entry.variant}: skipped, {type(error).__name__}: {text[0]}")
        found.append((group, plan))
    return found


def launches(groups: Sequence[Group]) -> Iterator[Callable[[], object]]:
    """Yield a launch of every entry that is one kernel, for a profiler."""
    for group, plan in plans(groups):
        (arrays,) = group.sets(0)
        yield from (partial(ready.run, *arrays) for _, ready in plan if ready.kernel is not None)


def tasks_of(groups: Sequence[Group], timer: Timer, study: str = "") -> Iterator[Tasks]:
    """Yield the tasks of the groups.

    study: its kernels are counted by a profiler, under which a child process launches the same groups. If it
    is "", kernels are not counted.
    """
    made = plans(groups)
    kernels = [ready for _, plan in made for _, ready in plan if ready.kernel is not None]
    seen: dict[Ready, Figures] = {}
    try:
        if kernels and study:
            counters = ncu.count(study, [ready.kernel or "" for ready in kernels])
            seen = dict(zip(kernels, map(ncu.figures, counters), strict=True))
    except ncu.Uncounted as error:
        say(f"no counters: {error}")
    for group, plan in made:
        yield group.tasks(((entry, ready, seen.get(ready, {})) for entry, ready in plan), timer), timer


def counted(study: str, groups: Callable[[], Sequence[Group]]) -> Part:
    return lambda out, timer: tasks_of(groups(), timer or CudaEvents(), study)
