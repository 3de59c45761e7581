"""Times of transforms and products on this machine, beside recorded machines: polygpu bench and plot.

Rows are those of polygpu._bench.timing, as the benchmarks keep them. `python -m benchmarks.report` makes
`recorded.json` from the repository's rows, and compares it with them under `--check`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _cpu
from .._backends import backend, device, get_backend, gpu_names
from .._backends.reference import evaluate, reverse_bits
from .._core.exact.primes import ntt_primes
from ..errors import BackendUnavailable, ParameterError
from ..poly import Poly
from ..ring import Ring
from .svg import COLOURS, LogAxes, document, text
from .timing import SCHEMA, Case, CudaEvents, Row, Timer, WallClock, figure, measure, on_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPS = ("ntt", "intt", "product")
DEGREES, BITS = (2**12, 2**14, 2**16), (30, 50, 60)
THREADED, THREADED_ROWS = ((2**12, 50), (2**14, 50)), 8  # N and bits; polynomials of each thread
BATCH_BYTES = 2**29  # of a GPU's batch, or a sixteenth of its free memory where that is less
REST_S = 0.25  # seconds for which a GPU rests before each measurement
POINTS = 3  # how many values of a row are compared with Python ints

_ON_GPU = {"ntt": "forward", "intt": "inverse", "product": "product"}  # names of the ops in rows of GPUs
_OPS = {name: op for op, name in _ON_GPU.items()}


# ---- what is measured ----


class Workload:
    """Two operands modulo one prime on the current device: batches, or single polynomials without a batch."""

    def __init__(self, n: int, bits: int, batch: int | None = None) -> None:
        self.ring, self.batch = Ring(n, ntt_primes(n, bits)), batch
        shape = () if batch is None else (batch,)
        self.a, self.b = (self.ring.random(shape, seed=seed) for seed in (1, 2))

    def rows(self, poly: Poly) -> NDArray[Any]:
        """The residues of the first, a middle and the last polynomial, in host memory."""
        picked = [()] if self.batch is None else [(i,) for i in sorted({0, self.batch // 2, self.batch - 1})]
        return np.concatenate([get_backend(poly.device).to_host(poly.data[i]) for i in picked])

    def cases(self, names: Mapping[str, str], more: Mapping[str, int | str]) -> Iterator[Case]:
        """A forward transform, an inverse transform and a product.

        Each case of a batch writes into memory of its own. Each result is compared as a whole with another
        computation of the same value, and some of its rows with Python ints, at random points.
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
            """Whether `holds` is true for each row i and each chosen k with its point."""
            return all(holds(i, k, point) for k, point in points.items() for i in range(len(x)))

        def is_transform(values: NDArray[Any]) -> bool:
            whole = transformed if outs[0] is None else outs[0]
            same = at_points(lambda i, k, point: int(values[i, k]) == evaluate(x[i], point, q))
            return same and bool((values < q).all()) and whole.intt() == self.a

        def is_inverse(values: NDArray[Any]) -> bool:  # whose operand was shown to be right before
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
    """The rows of some devices: for "cpu" of one core, then of all threads; for a GPU of large batches.

    told: called with each row.

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
    """The devices that `polygpu bench` measures: the CPU and each GPU that answers."""
    try:
        return ["cpu", *gpu_names()]
    except BackendUnavailable:
        return ["cpu"]


# ---- rows and figures ----


class Key(NamedTuple):
    """What a figure is of: an operation, the size of the prime, and the degree."""

    op: str
    bits: int
    n: int


@dataclass(frozen=True)
class Figures:
    """The times of a machine, in picoseconds a coefficient."""

    name: str
    kind: str  # "cpu": one core, "threads": all of them, "gpu"
    about: str
    ps: Mapping[Key, float]


def _key(row: Row) -> tuple[str, Key] | None:
    """Return the kind and the key of a row, or None for a row that gives no figure.

    Raises:
        TypeError: a parameter that a figure needs is not an int.
    """
    p, op, kind = row.params, row.op, row.machine["kind"]
    if p.get("limbs") != 1 or not row.verified or row.unit != "ns" or not {"bits", "n"} <= p.keys():
        return None
    batch, bits, n = p.get("batch", 1), p["bits"], p["n"]
    if not (type(batch) is type(bits) is type(n) is int):
        raise TypeError
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
    """The figures of each machine and kind.

    The time of a key is that of its newest row, or the median over the passes of that row's run. Only rows of
    the machine's best instruction set count.
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
    """The name of a row's run, which all its passes share; None for a row outside such a run."""
    run = row.params.get("run")
    return None if run is None else str(run).rpartition(", pass")[0]


def _about(kind: str, rows: Sequence[Row]) -> str:
    date = max(row.date for row in rows)[:10]
    machine = rows[-1].machine
    if kind == "gpu":
        return f"driver {machine['driver']}, CUDA {machine['cuda']}, {date}"
    clocks = sorted(float(row.machine["clock_ghz"]) for row in rows)
    if not all(0 < clock < 1000 for clock in clocks):
        raise ValueError
    cores = f"{rows[-1].params['threads']} threads" if kind == "threads" else "one core"
    return f"{cores}, {machine['isa']}, {clocks[0]:.2f} to {clocks[-1]:.2f} GHz, {date}"


_RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded.json")


def as_json(machines: Iterable[Figures]) -> str:
    """The text of a file of figures, with a line for each machine, operation and size of primes."""
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
    """The figures of the repository's machines."""
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
    """A row as a line of a file."""
    return json.dumps(asdict(row)) + "\n"


def rows_of(path: str) -> list[Row]:
    """The rows of a file of `polygpu bench --out`, or of the benchmarks.

    Raises:
        ParameterError: there is no such file, or it holds something else.
    """
    text = _text_of(path)
    if text is None:
        raise _refused(path, "no such file")
    return _rows_in(path, text)


def with_rows(path: str, rows: Iterable[Row]) -> str:
    """Return the text of a file as it is now, if there is one, and new rows behind it.

    Raises:
        ParameterError: the file holds something else than rows.
    """
    text = _text_of(path) or ""
    _rows_in(path, text)
    if text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(map(line_of, rows))


def _text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise _refused(path, "no text") from None
    except OSError as error:
        raise _refused(path, error.strerror or error) from None
    except ValueError as error:  # a name that no file can have
        raise _refused(path, error) from None


def _rows_in(path: str, text: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        try:
            row = _parsed(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise _refused(path, f"line {number} is no row of a measurement") from None
        if row is not None:
            rows.append(row)
    return rows


def _refused(path: str, reason: object) -> ParameterError:
    return ParameterError(f"{path}: {reason}; polygpu bench --out FILE writes such files")


_FIELDS = {field.name for field in fields(Row)}


def _parsed(x: Any) -> Row | None:
    """Return a row of a file, or None if it has another schema. Fields that later versions add are dropped.

    Anything else raises TypeError, ValueError, KeyError, AttributeError, OverflowError or RecursionError.
    """
    if x["schema"] != SCHEMA:
        return None
    row = Row(**{name: value for name, value in x.items() if name in _FIELDS})
    if not (isinstance(row.params, dict) and isinstance(row.machine, dict)):
        raise TypeError
    texts = (row.date, row.op, row.library, row.unit, row.machine["name"], row.machine["kind"])
    if not all(isinstance(x, str) for x in texts) or type(row.verified) is not bool:
        raise TypeError
    if type(row.median) not in (int, float) or type(row.work) is not int:
        raise TypeError
    if not (row.machine["name"] and row.work > 0 and 1e-6 < _picoseconds(row) < 1e18):
        raise ValueError
    if (found := _key(row)) is not None:
        _about(found[0], [row])
        if not (1 < found[1].n < 1 << 62 and 1 < found[1].bits < 1 << 16):
            raise ValueError
    return row


# ---- tables ----


class Kind(NamedTuple):
    """How figures of a kind are shown."""

    where: str
    of_tables: str  # the unit of tables
    of_plots: str  # the unit of plots
    scale: int  # picoseconds in the unit of plots


KINDS = {
    "cpu": Kind("one core, one polynomial", "us a call", "ns a coefficient", 1000),
    "threads": Kind("all threads, batches", "us a polynomial", "ns a coefficient", 1000),
    "gpu": Kind("GPU, batches", "ps a coefficient", "ps a coefficient", 1),
}


def _letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else str(i + 1)


def _printable(words: str) -> str:
    """Return words of a file without what would steer a terminal or is not allowed in an SVG."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


class Board(NamedTuple):
    """The machines of one kind, the user's own first."""

    kind: str
    own: int
    machines: list[Figures]

    def mine(self) -> set[Key]:
        """The keys for which own machines have figures."""
        return {key for m in self.machines[: self.own] for key in m.ps}

    def legend(self) -> list[str]:
        """A line for each machine."""
        return [
            f"{_letter(i)}  {_printable(m.name)}{' (yours)' if i < self.own else ''}: {_printable(m.about)}"
            for i, m in enumerate(self.machines)
        ]


def boards(own: Sequence[Figures], others: Sequence[Figures]) -> list[Board]:
    """A board for each kind of the own machines; where there are none, for each kind of the others."""
    kinds = [kind for kind in KINDS if any(m.kind == kind for m in own or others)]
    return [
        Board(
            kind,
            sum(m.kind == kind for m in own),
            [m for m in (*own, *others) if m.kind == kind],
        )
        for kind in kinds
    ]


def table(board: Board) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Title, header and lines: the times of all machines for the keys of own ones.

    Beside the time of another machine stands in brackets the first machine's time over it.
    """
    kind, body = KINDS[board.kind], []
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
    title = f"{kind.where}: {kind.of_tables}"
    return title, ("", "", "N", *map(_letter, range(len(board.machines)))), body


def _power(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)


# ---- plots ----


def _cells(board: Board, op: str) -> dict[int, dict[int, list[tuple[int, float]]]]:
    """By bits and N, the machines' numbers and times: for the bits of own machines, or BITS without any."""
    found: dict[int, dict[int, list[tuple[int, float]]]] = {}
    scale, bits = KINDS[board.kind].scale, {key.bits for key in board.mine()} or BITS
    for i, m in enumerate(board.machines):
        for key, ps in m.ps.items():
            if key.op == op and key.bits in bits:
                found.setdefault(key.bits, {}).setdefault(key.n, []).append((i, ps / scale))
    return {bits: dict(sorted(cells.items())) for bits, cells in sorted(found.items())}


def bars(board: Board, op: str, width: int, mark: str = "█") -> list[str]:
    """Lines of text: bars for the sizes that own machines have, else for the sizes that bench measures."""
    kind, mine = KINDS[board.kind], board.mine()
    lines, room = [f"{op}, {kind.where}: {kind.of_plots}, shorter is faster"], max(10, width - 24)
    for bits, cells in _cells(board, op).items():
        chosen = [n for n in cells if (Key(op, bits, n) in mine if mine else n in DEGREES)]
        if not chosen:
            continue
        lines.append(f"{bits} bits")
        longest = max(value for n in chosen for _, value in cells[n])
        for n in chosen:
            for j, (i, value) in enumerate(cells[n]):
                bar = mark * max(1, round(room * value / longest))
                lines.append(f"{_power(n) if j == 0 else '':>6} {_letter(i):>2} {bar} {figure(value)}")
    return lines


_PANEL, _PANEL_HEIGHT, _LEGEND_LINE = 300, 250, 18


def svg(boards: Sequence[Board], op: str) -> str:
    """A figure: a panel for each size of primes, a line for each machine, logarithmic axes."""
    body: list[str] = []
    top, width = 10, 3 * _PANEL
    for board in boards:
        kind = KINDS[board.kind]
        panels = _cells(board, op)
        if not panels:
            continue
        body.append(text(12, top + 14, f"{op}, {kind.where}", style=' font-weight="bold"'))
        top += 24
        ends = _ends([value for cells in panels.values() for of in cells.values() for _, value in of])
        degrees = _ends([n for cells in panels.values() for n in cells])
        for at, (bits, cells) in enumerate(panels.items()):
            x, y = at % 3 * _PANEL, top + at // 3 * _PANEL_HEIGHT
            body.append(f'<g transform="translate({x} {y})">')
            body += _panel(board, f"{bits} bits, {kind.of_plots}", cells, degrees, ends)
            body.append("</g>")
        top += -(-len(panels) // 3) * _PANEL_HEIGHT
        for i, line in enumerate(board.legend()):
            body.append(f'<rect x="12" y="{top + 3}" width="14" height="4" fill="{_colour(i)}"/>')
            body.append(text(34, top + 10, line))
            top += _LEGEND_LINE
        top += 14
    return document(width, top, body)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 1.3, max(values) * 1.3


def _panel(
    board: Board,
    title: str,
    cells: Mapping[int, Sequence[tuple[int, float]]],
    degrees: tuple[float, float],
    ends: tuple[float, float],
) -> Iterator[str]:
    axes = LogAxes(degrees, ends, _PANEL, _PANEL_HEIGHT, left=48, bottom=44, top=30, right=12)
    steps = [m * 10.0**e for e in range(-4, 8) for m in (1, 2, 5)]
    step = 2 if degrees[1] < 2**8 * degrees[0] else 4
    powers = {2.0**k: f"2^{k}" for k in range(0, 62, step) if degrees[0] <= 2**k <= degrees[1]}
    yield from axes.grid(powers, {y: f"{y:g}" for y in steps if ends[0] <= y <= ends[1]}, "N", title)
    for i in reversed(range(len(board.machines))):  # own machines last, so that they lie above the others
        points = [(n, value) for n, values in cells.items() for j, value in values if j == i]
        style = f' stroke-width="{2.5 if i < board.own else 1.2}"'
        for (n, value), (n2, value2) in itertools.pairwise(points):
            yield axes.line(n, value, n2, value2, _colour(i), style)
        for n, value in points:
            x, y = axes.at(n, value)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if i < board.own else 2}" fill="{_colour(i)}"/>'
