"""Counters of kernels by Nsight Compute. A child process launches the kernels, and the tool's CSV is read."""

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

STALLS = (  # why a warp waits, in the tool's words
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected"),
    *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
)
LIMITS = ("registers", "shared_mem", "warps", "blocks")  # of the blocks that a multiprocessor holds
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LIMIT = "launch__occupancy_limit_{}"

# Figures of a row and where they come from.
FIGURES = {
    "warp_instructions": "smsp__inst_executed.sum",
    "thread_instructions": "smsp__thread_inst_executed.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "achieved_occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical_occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "counted_registers": "launch__registers_per_thread",
    "counted_ns": "gpu__time_duration.sum",  # at the clock that the tool sets
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_hit_rate": "lts__t_sector_hit_rate.pct",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "carved_shared_bytes": "launch__shared_mem_config_size",
    "warp_latency_cycles": "smsp__average_warp_latency_per_inst_issued.ratio",
    **{f"limit_{name}": LIMIT.format(name) for name in LIMITS},
    **{f"stall_{name}": STALLED.format(name) for name in STALLS},  # cycles between two instructions of a warp
}
SHARES = ("achieved_occupancy", "theoretical_occupancy", "l2_hit_rate")  # parts of 1; the tool gives per cent
METRICS = tuple(FIGURES.values())
TIMEOUT_S = 240


class Uncounted(RuntimeError):
    """Raised when kernels could not be counted; the text says why."""


@dataclass(frozen=True)
class Counted:
    """A launch, with the METRICS that the tool gave."""

    kernel: str
    counters: dict[str, float] = field(default_factory=dict)


def figures(counted: Counted) -> dict[str, float]:
    """Return the FIGURES whose metrics were counted."""
    found = {name: counted.counters[metric] for name, metric in FIGURES.items() if metric in counted.counters}
    return {name: value / 100 if name in SHARES else value for name, value in found.items()}


def parse(text: str) -> list[Counted]:
    """Return the launches in the output of `ncu --csv`, in their order.

    The output has a line for each metric.
    """
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
    """Make each launch twice: the first time compiles, the second is seen by the profiler."""
    import cupy

    for launch in launches:
        launch()
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.profilerStart()
        launch()
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.profilerStop()


def count(study: str, kernels: Sequence[str]) -> list[Counted]:
    """Return the counters of a study's launches. The name of each launch contains its entry of `kernels`.

    Raises:
        Uncounted: ncu was not found, failed, may not read counters, or saw other launches.
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
    """Return the path of ncu, from PATH or from the folders of the toolkit, or None if it is not found."""
    places = [*Path("/opt/nvidia/nsight-compute").glob("*/ncu"), *Path("/usr/local").glob("cuda*/bin/ncu")]
    return shutil.which("ncu") or next(map(str, sorted(places, reverse=True)), None)
