"""Verification and timing of benchmark cases, and the files in which their rows are kept.

polygpu._bench.timing verifies and times. `record` appends a row, as one line of JSON, to the file
`<date>-<machine>.jsonl`. Each row names the commit that was measured.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from polygpu._bench import timing
from polygpu._bench.timing import (
    REST_S,
    SCHEMA,
    Case,
    CudaEvents,
    Machine,
    Row,
    Timer,
    Unverified,
    WallClock,
    gpu_machine,
    on_cores,
    print_table,
)

__all__ = [
    "REST_S",
    "Case",
    "CudaEvents",
    "Machine",
    "Row",
    "Timer",
    "Unverified",
    "WallClock",
    "command_line",
    "gpu_machine",
    "measure",
    "measured",
    "on_cores",
    "print_table",
    "record",
    "release",
    "rows",
    "timer_of",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def measure(case: Case, timer: Timer | None = None, packages: Sequence[str] = ()) -> Row:
    """Verify and time a case, and return its row, which names the commit."""
    return timing.measure(case, timer, packages, checkout())


def command_line(program: str, about: str | None, quick: str) -> argparse.ArgumentParser:
    """Return the parser of a program of measurements on one device; quick: what --quick measures instead."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    return parser


def timer_of(device: str) -> Timer | None:
    """Return the timer of a GPU, or None for the clock of the CPU."""
    return None if device == "cpu" else CudaEvents()


def measured(cases: Iterable[Case], timer: Timer | None, directory: Path) -> Iterator[tuple[Case, Row]]:
    """Measure each case, append its row to a file in `directory`, and yield case and row."""
    for case in cases:
        row = measure(case, timer)
        record(row, directory)
        yield case, row


def in_passes(cases: Iterable[Case], passes: int, packages: Sequence[str]) -> Iterator[Row]:
    """Measure all cases on one core, several times over; yield a row for each case and pass.

    So if something disturbs the machine for a while, it only affects one pass.
    """
    own = list(cases)
    for run in range(1, passes + 1):
        for case in own:
            with on_cores(1):
                row = measure(replace(case, params={**case.params, "run": run}), packages=packages)
            yield row


def release() -> None:
    """Free the GPU memory that is no longer used."""
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


def record(row: Row, directory: Path = RESULTS) -> Path:
    """Append `row` to the file for its day and machine, and return the path of this file."""
    machine = re.sub(r"[^a-z0-9]+", "-", str(row.machine["name"]).lower()).strip("-")
    path = directory / f"{row.date[:10]}-{machine}.jsonl"
    directory.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")
    return path


def rows(place: Path = RESULTS) -> list[Row]:
    """Return the rows of the current schema, in the order of their dates. `place` is a file or a folder."""
    lines = (
        json.loads(line)
        for path in ([place] if place.is_file() else sorted(place.glob("*.jsonl")))
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    return sorted((Row(**x) for x in lines if x["schema"] == SCHEMA), key=lambda row: row.date)


@functools.cache
def checkout() -> tuple[str, bool | None]:
    """Return the current commit, and whether files other than the results differ from it.

    Outside a git repository, return "unknown" and None.
    """
    try:
        commit = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown", None
    return commit, bool(changes)


def git(*arguments: str) -> str:
    # Without the ceiling, an unpacked release inside another git checkout would count as part of that one.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
