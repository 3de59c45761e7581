"""Time a function on this machine, after its result was shown to be right.

A `Case` is a function to run, and a check of its result. `measure` runs the function once, verifies the
result, and only then times the function and returns a `Row`. The time is the median of samples. A sample is a
loop of calls that takes long enough for the resolution of the clock. Each kind of device has its own `Timer`.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import __version__, _cpu
from .._backends import backend, get_backend
from .._core.processors import allowed_processors

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = 1  # version of Row; it goes up whenever a field changes its meaning

SAMPLE_NS = 200_000  # least length of a sample, thousands of times the resolution of the clock
WARM_UP_NS = 20_000_000  # in this time caches, branch predictors and the core's frequency settle
REST_S = 0.5  # seconds for which a GPU rests before it is timed
SAMPLES = 20  # least number of samples
TOTAL_NS = 100_000_000  # least length of all samples together, so that they include the machine's noise
HEAP_KEPT = 31 * 2**20  # bytes; just below 32 MiB, up to which glibc keeps freed blocks (see WallClock)

Machine = Mapping[str, str | int | float]


class Unverified(AssertionError):
    """A result was wrong, or was different after the timing, so no time is reported."""


@dataclass(frozen=True)
class Case:
    """One thing to time: the operation `op` of `library` with the parameters `params`."""

    op: str
    library: str
    params: Mapping[str, int | str]
    run: Callable[[], Any]
    verify: Callable[[NDArray[Any]], bool]
    """Returns whether `values(run())` is right, by an oracle that shares no code with `run`."""
    work: int
    """Number of coefficients that one call computes. The median divided by it is the time per coefficient."""
    values: Callable[[Any], NDArray[Any]] = np.asarray
    """Turns a result into plain numbers that can be compared between libraries. It is not timed."""
    calls: int = 1
    """Number of calls that one `run` makes, each of the same work."""
    load_ns: float = 0
    """Nanoseconds for which `run` is repeated before it is timed, if longer than the timer's warm-up."""
    samples: int = SAMPLES
    """Least number of samples. Choose it smaller if one sample takes seconds."""

    def __str__(self) -> str:
        return f"{self.op} {' '.join(f'{k}={v}' for k, v in self.params.items())} [{self.library}]"


@dataclass(frozen=True)
class Row:
    """A verified measurement, with everything that is needed to judge it or to repeat it."""

    schema: int
    date: str  # UTC, ISO 8601
    op: str
    library: str
    params: dict[str, int | str]
    unit: str  # unit of the median and the quartiles, which are times per call
    median: float
    q1: float
    q3: float
    samples: int
    loops: int  # number of calls in a sample
    work: int
    ps_per_coefficient: float
    verified: bool
    digest: str  # digest of the result; it is equal for libraries that compute equal values
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    commit: str
    dirty: bool | None  # whether files differ from `commit`; None if the commit is unknown
    minimum: float | None = None  # smallest sample, in the same unit as the median; None in the oldest rows
    figures: dict[str, float] = field(default_factory=dict)  # derived from the time; names contain the units


class Timer(Protocol):
    """A clock for one kind of device."""

    warm_up_ns: float
    """Nanoseconds spent before the first sample."""
    total_ns: float
    """Least time of all samples together, in nanoseconds."""

    def rest(self) -> None:
        """Wait until earlier work no longer slows the device."""

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        """Return the nanoseconds that `loops` calls take until all results exist."""

    def machine(self) -> Machine:
        """Return a dict that describes the device as it is now, with at least `kind` and `name`."""


class WallClock:
    """A timer for the CPU, whose work is done when the call returns."""

    warm_up_ns: float = WARM_UP_NS
    total_ns: float = TOTAL_NS

    def __init__(self) -> None:
        # glibc maps each large block anew until a block of that size has been freed. From then on it keeps
        # blocks up to that size, at most 32 MiB. Without this line, work that ran before would decide
        # whether the time of a function with large temporaries includes page faults.
        np.empty(HEAP_KEPT, dtype=np.uint8)

    def rest(self) -> None:
        """Do nothing, because earlier work does not change the clock frequency of a core."""

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        """Return the nanoseconds of wall-clock time that `loops` calls take."""
        start = perf_counter_ns()
        for _ in range(loops):
            run()
        return perf_counter_ns() - start

    def machine(self) -> Machine:
        """Return a dict that describes the CPU as it is now."""
        backend()  # if nothing has run yet, this chooses the instruction set
        return {
            "kind": "cpu",
            "name": cpu_name(),
            "cores": allowed_processors(),
            "clock_ghz": round(_cpu.clock_ghz(), 3),
            "clock_source": "dependent additions and rotations",
            "isa": _cpu.isa(),
        }


class CudaEvents:
    """A timer for a GPU: events on CuPy's current stream, on which the work is queued.

    A card near its power limit lowers its clock within tens of milliseconds. So all samples together take
    about 10 ms, or more if the timed function is slow.
    """

    warm_up_ns, total_ns = 1e6, 1e7

    def __init__(self, rest_s: float = REST_S, cupy: Any = None) -> None:
        cupy = get_backend("cuda:0").xp if cupy is None else cupy
        self._rest_s = rest_s
        self._cuda = cupy.cuda
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()
        self._machine = gpu_machine(cupy)

    def rest(self) -> None:
        """Wait until earlier work no longer makes the card lower its clock."""
        self._stop.record()
        self._stop.synchronize()
        sleep(self._rest_s)

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        """Return the nanoseconds that the GPU takes for `loops` calls of `run`."""
        run()  # the timed calls are queued while the GPU still works on this one
        self._start.record()
        for _ in range(loops):
            run()
        self._stop.record()
        self._stop.synchronize()
        return 1e6 * float(self._cuda.get_elapsed_time(self._start, self._stop))

    def machine(self) -> Machine:
        """Return a dict that describes the GPU."""
        return self._machine


def measure(
    case: Case,
    timer: Timer | None = None,
    packages: Sequence[str] = (),
    checkout: tuple[str, bool | None] = ("unknown", None),
) -> Row:
    """Verify `case`, then time it.

    Args:
        case: what to run, and how to tell that its result is right.
        timer: the clock of the device that runs the case. None means a WallClock.
        packages: distributions whose versions the row records, in addition to numpy and polygpu.
        checkout: the commit that is measured, and whether the working tree differs from it.

    Raises:
        Unverified: the result is wrong, or it is different after the timing.
    """
    timer = timer or WallClock()
    values = case.values(case.run())
    if not case.verify(values):
        raise Unverified(f"The result of {case} is wrong, so it is not timed.")
    seen = digest(values)
    timer.rest()
    loops, times = sample(case.run, timer, case.load_ns, case.samples)
    if digest(case.values(case.run())) != seen:
        raise Unverified(f"The result of {case} changed while it was timed.")
    calls = loops * case.calls
    q1, median, q3 = (t / calls for t in statistics.quantiles(times, n=4, method="inclusive"))
    commit, dirty = checkout
    return Row(
        schema=SCHEMA,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        op=case.op,
        library=case.library,
        params=dict(case.params),
        unit="ns",
        median=round(median, 1),
        q1=round(q1, 1),
        q3=round(q3, 1),
        samples=len(times),
        loops=calls,
        work=case.work,
        ps_per_coefficient=round(1000 * median / case.work, 2),
        verified=True,
        digest=seen,
        machine=dict(timer.machine()),
        versions=versions(packages),
        commit=commit,
        dirty=dirty,
        minimum=round(min(times) / calls, 1),
    )


def sample(
    run: Callable[[], Any], timer: Timer, load_ns: float = 0, least: int = SAMPLES
) -> tuple[int, list[float]]:
    """Time run(): return the number of calls in a sample, and the nanoseconds of each sample."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        loops, spent = 1, 0.0
        while (once := timer.elapsed(run, loops)) < SAMPLE_NS or spent < max(load_ns, timer.warm_up_ns):
            spent += once
            if once < SAMPLE_NS:
                loops *= 2
        times: list[float] = []
        while len(times) < least or sum(times) < timer.total_ns:
            times.append(timer.elapsed(run, loops))
        return loops, times
    finally:
        if collecting:
            gc.enable()


def digest(values: NDArray[Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of the values. Integers are hashed as 64-bit words."""
    words = values.astype("<u8") if values.dtype.kind in "uiO" else values
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()[:16]


# ---- the machine and the software ----


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Restrict the process to the last `count` of its cores, and polygpu to `count` threads.

    On macOS only the threads are restricted.
    """
    backend()  # if nothing has run yet, this sets the number of threads
    threads = _cpu.num_threads()
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else None
    if allowed is not None:
        os.sched_setaffinity(0, sorted(allowed)[-count:])
    _cpu.set_num_threads(count)
    try:
        yield
    finally:
        _cpu.set_num_threads(threads)
        if allowed is not None:
            os.sched_setaffinity(0, allowed)


def cpu_name() -> str:
    """Return the CPU's model name with family and model, because in clouds different CPUs share a name."""
    info = cpuinfo()
    if "model name" not in info:
        return platform.processor() or platform.machine()
    family, model = info.get("cpu family", "?"), info.get("model", "?")
    return f"{info['model name']} (family {family}, model {model})"


def gpu_machine(cupy: Any) -> dict[str, str | int | float]:
    """Describe CuPy's current GPU, its driver and the CUDA libraries in use."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    number = runtime.runtimeGetVersion()
    return {
        "kind": "gpu",
        "name": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": int(properties["multiProcessorCount"]),
        "memory_bytes": int(properties["totalGlobalMem"]),
        "l2_bytes": int(properties["l2CacheSize"]),
        "driver": gpu_driver(),
        "cuda": f"{number // 1000}.{number % 1000 // 10}",
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": str(cupy.__version__),
    }


def gpu_driver() -> str:
    """Return the version of the NVIDIA driver, or "unknown"."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    except (OSError, subprocess.SubprocessError):
        found = []
    return found[0] if found else "unknown"


def cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo, or {} on systems without that file."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, NumPy and polygpu, and of those `packages` that are installed."""
    found = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "polygpu": __version__,
    }
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# ---- tables ----


def figure(x: float) -> str:
    """Return x as text with three significant digits, or all digits of the integer part if there are more."""
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}" if x else "0"


def print_table(title: str, header: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    """Print a table, with the package rich if it is installed."""
    body = list(body)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
        print(f"\n{title}")
        for line in (header, *body):
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    else:
        table = Table(*header, title=title, title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for line in body:
            table.add_row(*line)
        Console().print(table)
