"""Counters of kernels by Nsight Compute: a child process launches each once, and the tool's CSV is read."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import ROOT

METRICS = (
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
    "sm__maximum_warps_per_active_cycle_pct",
    "gpu__time_duration.sum",  # ns, at the clock that the tool sets
)
TIMEOUT_S = 120


class Uncounted(RuntimeError):
    """There are no counters; the text says why."""


@dataclass(frozen=True)
class Counted:
    """A launch, with those of METRICS that the tool gave."""

    kernel: str
    counters: dict[str, float] = field(default_factory=dict)


def parse(text: str) -> list[Counted]:
    """The launches of `ncu --csv`, a line for each metric, in their order."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[int, Counted] = {}
    for line in csv.DictReader(lines[start:]):
        counted = found.setdefault(int(line["ID"]), Counted(line["Kernel Name"]))
        try:
            counted.counters[line["Metric Name"]] = float(line["Metric Value"].replace(",", ""))
        except ValueError:  # n/a
            continue
    return [found[number] for number in sorted(found)]


def expose(launches: Iterable[Callable[[], object]]) -> None:
    """Make each launch twice, the second time seen by the profiler: the first compiles."""
    import cupy

    for launch in launches:
        launch()
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.profilerStart()
        launch()
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.profilerStop()


def count(study: str, kernels: Sequence[str]) -> list[Counted]:
    """The counters of a study's launches, whose names contain `kernels`, one for one.

    Raises:
        Uncounted: there is no ncu, it may not read counters, or the launches are others.
    """
    program = find()
    if program is None:
        raise Uncounted("there is no ncu")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        command = [program, "--csv", "--print-units", "base", "--profile-from-start", "off"]
        command += ["--metrics", ",".join(METRICS), "--log-file", str(log)]
        command += [sys.executable, "-m", "benchmarks.studies", study, "--counted"]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Uncounted(f"ncu: {error}") from error
        text = log.read_text() if log.exists() else ""
    counted = parse(text)
    if done.returncode or not counted:
        said = [line for line in (text + done.stdout + done.stderr).splitlines() if line.strip()]
        raise Uncounted(f"ncu, exit status {done.returncode}: {' '.join(said[-3:])}")
    names = [c.kernel for c in counted]
    if len(names) != len(kernels) or any(k not in n for k, n in zip(kernels, names, strict=True)):
        raise Uncounted(f"ncu saw the kernels {', '.join(names)}; launched were {', '.join(kernels)}")
    return counted


def find() -> str | None:
    """On the path, or where the toolkit puts it."""
    places = [*Path("/opt/nvidia/nsight-compute").glob("*/ncu"), *Path("/usr/local").glob("cuda*/bin/ncu")]
    return shutil.which("ncu") or next(map(str, sorted(places, reverse=True)), None)
