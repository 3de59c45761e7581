"""`polygpu bench`: times of transforms and products on this machine, beside those of recorded machines.

A measurement is a Row of polygpu._bench.timing, as in the repository's benchmarks.
`python -m benchmarks.report` makes `recorded.json` from the rows in the repository. With `--check` it
compares the file with these rows instead.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _cpu
from .._backends import backend, device, get_backend, gpu_names
from .._backends.reference import evaluate, reverse_bits
from .._core.exact.primes import ntt_primes
from ..errors import BackendUnavailable
from ..poly import Poly
from ..ring import Ring
from .timing import Case, CudaEvents, Row, Timer, WallClock, figure, measure, on_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPS = ("ntt", "intt", "product")
DEGREES, BITS = (2**12, 2**14, 2**16), (30, 50, 60)
THREADED, THREADED_ROWS = ((2**12, 50), (2**14, 50)), 8  # pairs (N, bits of q); polynomials per thread
BATCH_BYTES = 2**29  # bytes of a GPU's batch; at most a sixteenth of the GPU's free memory is used
REST_S = 0.25  # seconds for which a GPU rests before each measurement
POINTS = 3  # number of values of a polynomial that are compared with Python ints

_ON_GPU = {"ntt": "forward", "intt": "inverse", "product": "product"}  # op names in rows of GPUs
_OPS = {name: op for op, name in _ON_GPU.items()}


# ---- what is measured ----


class Workload:
    """Two operands on the current device, modulo one prime. An operand is a batch or a single polynomial."""

    def __init__(self, n: int, bits: int, batch: int | None = None) -> None:
        self.ring, self.batch = Ring(n, ntt_primes(n, bits=bits)), batch
        shape = () if batch is None else (batch,)
        self.a, self.b = (self.ring.random(shape, seed=seed) for seed in (1, 2))

    def rows(self, poly: Poly) -> NDArray[Any]:
        """Return the residues of the first, a middle and the last polynomial, in host memory."""
        picked = [()] if self.batch is None else [(i,) for i in sorted({0, self.batch // 2, self.batch - 1})]
        return np.concatenate([get_backend(poly.device).to_host(poly.data[i]) for i in picked])

    def cases(self, names: Mapping[str, str], more: Mapping[str, int | str]) -> Iterator[Case]:
        """Yield the cases of a forward transform, an inverse transform and a product.

        names: a dict from "ntt", "intt" and "product" to the `op` of the rows (see `Row`). more: further
        entries of the rows' `params`.

        If there is a batch, each case writes to its own `out`. Each result is compared with a second
        computation. For the transform and the product, a few polynomials are also evaluated at random points
        with Python ints.
        """
        n, q, rng, roots = self.ring.n, self.ring.moduli[0], random.Random(1), self.ring.roots
        transformed, product = self.a.ntt(), self.a * self.b
        outs: list[Poly | None] = [None] * 3
        if self.batch is not None:
            outs = [x.copy() for x in (transformed, self.a, product)]
        x, y = self.rows(self.a).tolist(), self.rows(self.b).tolist()
        assert roots is not None and pow(roots[0], n, q) == q - 1
        points = {k: pow(roots[0], 2 * reverse_bits(k, n) + 1, q) for k in rng.sample(range(n), POINTS)}

        def at_points(holds: Callable[[int, int, int], bool]) -> bool:
            """Return whether holds(i, k, point) is true for all rows i and items (k, point) of `points`."""
            return all(holds(i, k, point) for k, point in points.items() for i in range(len(x)))

        def is_transform(values: NDArray[Any]) -> bool:
            whole = transformed if outs[0] is None else outs[0]
            same = at_points(lambda i, k, point: int(values[i, k]) == evaluate(x[i], point, q))
            return same and bool((values < q).all()) and whole.intt() == self.a

        def is_inverse(values: NDArray[Any]) -> bool:  # is_transform has already checked the operand
            return bool((values == np.array(x)).all()) and (outs[1] is None or outs[1] == self.a)

        def is_product(values: NDArray[Any]) -> bool:
            z, whole = values.tolist(), product if outs[2] is None else outs[2]

            def holds(i: int, k: int, point: int) -> bool:
                a, b, c = (evaluate(of[i], point, q) for of in (x, y, z))
                return a * b % q == c

            again = (transformed * self.b.ntt()).intt()
            return at_points(holds) and bool((values < q).all()) and whole == again

        runs: dict[str, tuple[Callable[[], Poly], Callable[[NDArray[Any]], bool]]] = {
            "ntt": (partial(self.a.ntt, out=outs[0]), is_transform),
            "intt": (partial(transformed.intt, out=outs[1]), is_inverse),
            "product": (partial(self.a.mul, self.b, out=outs[2]), is_product),
        }
        batch = self.batch or 1
        params = {"n": n, "bits": q.bit_length(), "limbs": 1, "batch": batch, "q": q, **more}
        for op, (run, verify) in runs.items():
            yield Case(names[op], "polygpu", params, run, verify, work=batch * n, values=self.rows)


def measure_here(devices: Sequence[str], told: Callable[[Row], Any]) -> list[Row]:
    """Measure the devices with these names, and return the rows.

    "cpu" is measured with one core and then with all threads. A GPU is measured with large batches.

    told: a function that is called with each row as soon as it is measured.

    Raises:
        Unverified: a result is wrong.
    """
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        told(row)

    for name in devices:
        with device(name):
            (_measure_cpu if name == "cpu" else _measure_gpu)(keep)
    return rows


def _measure_cpu(keep: Callable[[Row], None]) -> None:
    timer, names = WallClock(), dict(zip(OPS, OPS, strict=True))
    with on_cores(1):
        for n, bits in itertools.product(DEGREES, BITS):
            _measure(Workload(n, bits).cases(names, {}), timer, keep)
    threads = _cpu.num_threads()
    if threads > 1:
        for n, bits in THREADED:
            work = Workload(n, bits, THREADED_ROWS * threads)
            _measure(work.cases(names, {"threads": threads}), timer, keep)


def _measure_gpu(keep: Callable[[Row], None]) -> None:
    compute: Any = backend()
    with compute.device_scope():
        cupy = compute.xp
        timer = CudaEvents(REST_S, cupy)
        size = min(BATCH_BYTES, cupy.cuda.Device().mem_info[0] // 16)
        for n, bits in itertools.product(DEGREES, BITS):
            work = Workload(n, bits, max(2, size // (n * (4 if bits <= 32 else 8))))
            _measure(work.cases(_ON_GPU, {"launch": "plain", "device": compute.name}), timer, keep)


def _measure(cases: Iterable[Case], timer: Timer, keep: Callable[[Row], None]) -> None:
    for case in cases:
        keep(measure(case, timer))


def answering() -> list[str]:
    """Return the devices that `polygpu bench` measures: the CPU and each GPU that answers."""
    try:
        return ["cpu", *gpu_names()]
    except BackendUnavailable:
        return ["cpu"]


# ---- rows and figures ----


class Key(NamedTuple):
    """What a figure measures: an operation, the bit length of the prime, and the degree."""

    op: str
    bits: int
    n: int


@dataclass(frozen=True)
class Figures:
    """The times of a machine, in picoseconds per coefficient."""

    name: str
    kind: str  # "cpu" for one core, "threads" for all cores, or "gpu"
    about: str
    ps: Mapping[Key, float]


def _key(row: Row) -> tuple[str, Key] | None:
    """Return the kind of machine and the Key of a row, or None if the tables do not show the row."""
    p, op, kind = row.params, row.op, row.machine["kind"]
    if p.get("limbs") != 1 or not row.verified or row.unit != "ns" or not {"bits", "n"} <= p.keys():
        return None
    batch, bits, n = int(p.get("batch", 1)), int(p["bits"]), int(p["n"])
    if kind == "gpu":
        if (row.library, p.get("launch")) != ("polygpu", "plain") or "load_s" in p or batch == 1:
            return None
        goldilocks = str(p.get("word")).startswith("Goldilocks")
        return (kind, Key(_OPS[op], bits, n)) if op in _OPS and not goldilocks else None
    if kind != "cpu":
        return None
    if row.library == "polygpu" and op in OPS:
        kind = "threads" if "threads" in p else kind
        return (kind, Key(op, bits, n)) if batch == 1 or kind == "threads" else None
    op = op.removeprefix("peer ")
    if row.library == "polygpu, call" and op != row.op and op in OPS and batch == 1:
        return kind, Key(op, bits, n)
    return None


def figures(rows: Iterable[Row]) -> list[Figures]:
    """Return one Figures for each machine and each of its kinds ("cpu", "threads" or "gpu").

    The time of a Key is the time of its newest row, or the median over passes if this row belongs to a run of
    several passes. Only rows of the machine's best instruction set count.
    """
    groups: dict[tuple[str, str], dict[Key, list[Row]]] = {}
    for row in rows:
        found = _key(row)
        if found is not None:
            kind, key = found
            groups.setdefault((kind, str(row.machine["name"])), {}).setdefault(key, []).append(row)
    return [_figures(name, kind, cells) for (kind, name), cells in sorted(groups.items())]


def _figures(name: str, kind: str, cells: Mapping[Key, list[Row]]) -> Figures:
    isas = {str(row.machine.get("isa")) for rows in cells.values() for row in rows}
    best = next((isa for isa in _cpu.all_isas() if isa in isas), None)
    ps, used = {}, []
    for key, rows in sorted(cells.items()):
        rows = [row for row in rows if best is None or row.machine.get("isa") == best]
        if not rows:
            continue
        newest = max(rows, key=lambda row: row.date)
        run = _run(newest)
        if run is None:
            rows = [newest]
        else:
            rows = [row for row in rows if _run(row) == run]
        used += rows
        exact = median(_picoseconds(row) for row in rows)
        ps[key] = round(exact, 2) or exact
    return Figures(name, kind, _about(kind, used), ps)


def _picoseconds(row: Row) -> float:
    return 1000 * row.median / row.work


def _run(row: Row) -> str | None:
    """Return the name of the benchmark run that measured a row, or None if the row names no run.

    A run measures its cases in several passes, and all passes have the run's name.
    """
    run = row.params.get("run")
    return None if run is None else str(run).rpartition(", pass")[0]


def _about(kind: str, rows: Sequence[Row]) -> str:
    date = max(row.date for row in rows)[:10]
    machine = rows[-1].machine
    if kind == "gpu":
        return f"driver {machine['driver']}, CUDA {machine['cuda']}, {date}"
    clocks = sorted(float(row.machine["clock_ghz"]) for row in rows)
    cores = f"{rows[-1].params['threads']} threads" if kind == "threads" else "one core"
    return f"{cores}, {machine['isa']}, {clocks[0]:.2f} to {clocks[-1]:.2f} GHz, {date}"


_RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded.json")


def as_json(machines: Iterable[Figures]) -> str:
    """Return figures as the text of a JSON file, with one line per machine, operation and prime size."""
    parts = []
    for m in machines:
        lines = []
        for op, bits in dict.fromkeys((key.op, key.bits) for key in m.ps):
            cells = [[key.n, ps] for key, ps in m.ps.items() if (key.op, key.bits) == (op, bits)]
            lines.append(f"  {json.dumps([op, bits, cells])}")
        head = json.dumps({"name": m.name, "kind": m.kind, "about": m.about})[:-1]
        parts.append(f'{head}, "ps": [\n' + ",\n".join(lines) + "\n ]}")
    return "[" + ",\n ".join(parts) + "]\n"


def recorded() -> list[Figures]:
    """Read the recorded figures of all machines from the file _RECORDED."""
    with open(_RECORDED, encoding="utf-8") as file:
        machines = json.load(file)
    return [
        Figures(
            m["name"],
            m["kind"],
            m["about"],
            {Key(op, bits, n): ps for op, bits, cells in m["ps"] for n, ps in cells},
        )
        for m in machines
    ]


def line_of(row: Row) -> str:
    """Return a row as a line of JSON."""
    return json.dumps(asdict(row)) + "\n"


# ---- tables ----


KINDS = {  # the title of each kind's table
    "cpu": "one core, one polynomial: us a call",
    "threads": "all threads, batches: us a polynomial",
    "gpu": "GPU, batches: ps a coefficient",
}


def _letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else str(i + 1)


class Board(NamedTuple):
    """The machines of one kind. The first `own` are the user's, and the others come from recorded.json."""

    kind: str
    own: int
    machines: list[Figures]

    def mine(self) -> set[Key]:
        """Return the keys for which the user's machines have figures."""
        return {key for m in self.machines[: self.own] for key in m.ps}

    def legend(self) -> list[str]:
        """Return a line for each machine."""
        return [
            f"{_letter(i)}  {m.name}{' (yours)' if i < self.own else ''}: {m.about}"
            for i, m in enumerate(self.machines)
        ]


def boards(own: Sequence[Figures], others: Sequence[Figures]) -> list[Board]:
    """Return one Board for each kind in KINDS that a machine of `own` has."""
    kinds = [kind for kind in KINDS if any(m.kind == kind for m in own)]
    return [
        Board(
            kind,
            sum(m.kind == kind for m in own),
            [m for m in (*own, *others) if m.kind == kind],
        )
        for kind in kinds
    ]


def table(board: Board) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Return title, header and lines of a table. The table has a line for each key in board.mine().

    A line has the time of each machine. The time of a recorded machine is followed by a ratio in brackets:
    the time of the first machine that has the key, divided by the recorded time.
    """
    body = []
    for key in sorted(board.mine(), key=lambda k: (OPS.index(k.op), k.bits, k.n)):
        first, scale = next(m.ps[key] for m in board.machines if key in m.ps), 1.0
        if board.kind != "gpu":
            scale = key.n / 1e6
        cells = []
        for i, m in enumerate(board.machines):
            ps = m.ps.get(key)
            ratio = "" if i < board.own or ps is None else f" ({first / ps:.2f}x)"
            cells.append("" if ps is None else figure(ps * scale) + ratio)
        body.append((key.op, f"{key.bits} bits", _power(key.n), *cells))
    return KINDS[board.kind], ("", "", "N", *map(_letter, range(len(board.machines)))), body


def _power(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)
