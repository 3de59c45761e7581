"""Time and memory of a transform over several GPUs or processes, for those who plan a machine or a job.

    python -m benchmarks.scale                           # a table, and the figure docs/scale.svg
    python -m benchmarks.scale --devices 64 --log-n 36   # one transform: time, memory, what bounds it

docs/scale.md, "Planning", has the formula and says what it leaves out. The rates of a GPU, of the link
between GPUs of a host and of processes come from rows in benchmarks/results. A network's rate is assumed.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from polygpu._backends.cuda.words import Card as Words
from polygpu._backends.cuda.words import word_of
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._distributed.divided import _BUFFERS, _SLICES, Layout, Order, layout_of
from polygpu.errors import ParameterError

from .distributed import ONE
from .harness import RESULTS, ROOT, Row, print_table
from .harness import rows as read_rows
from .svg import COLOURS, LogAxes, document, text
from .tables import Table, drawn, figure, newest, of_last_machine, power

GIB = 2**30
NETWORK_GBPS = 50.0  # assumed, of a GPU each way: 400 Gb/s
HOST_GPUS = 8
LEAST_MESSAGE = 2**16  # bytes from one GPU to another: below, latency counts, which the model leaves out
TABLES_SHARE = 8  # rows have tables of their own where these take at most an eighth of a GPU's memory
TWIST_COPIES = 2  # assumed: where they have none, twiddles take as long as so many copies of all coefficients
EXCHANGES: dict[Order, int] = {"transposed": 1, "natural": 2}
HOST = "the host's calls"  # a bound of a plan

PRODUCT, EXCHANGE = "product on workers", "exchange among workers"  # of processes: ops of benchmarks.dask
ALONE = "product in one process"
PRODUCT_EXCHANGES = 3

BITS = 64  # of the prime in figure and table
DEVICES = (1, 2, 8, 64, 1024)
LOG_POINTS = range(26, 41)
TABLE_LOG_POINTS = (26, 28, 30, 32, 34, 36, 38, 40)
AXES = LogAxes((2.0 ** LOG_POINTS[0], 2.0 ** LOG_POINTS[-1]), (0.1, 1e5), right=90)  # points, ms


# ---- GPUs ----


@dataclass(frozen=True)
class Card:
    """A GPU and its link, as measured."""

    name: str
    memory_bytes: int
    copy_gbps: float
    link_gbps: float  # to the other GPUs of its host, each way
    rates: Mapping[int, Mapping[int, float]]  # by bits of the prime and log2 of the points
    measured: Sequence[Measured]

    def ps(self, bits: int, points: int) -> float:
        """Time of a coefficient of a transform.

        Between measured sizes it is linear in log2 of the points. Above the largest it is proportional to
        log2 of the points, below the smallest it is constant.
        """
        known, k = sorted(self.rates[bits].items()), math.log2(points)
        if k >= known[-1][0]:
            return known[-1][1] * k / known[-1][0]
        if k <= known[0][0]:
            return known[0][1]
        (low, a), (high, b) = next(pair for pair in pairwise(known) if k <= pair[1][0])
        return a + (b - a) * (k - low) / (high - low)

    @cached_property
    def call_ms(self) -> float:
        """Time of the host for a launch or a copy, an upper bound: a transform's time over its calls."""
        several = [x for x in self.measured if x.devices > 1]
        return min((x.ms / Plan(self, x.n, x.devices, x.bits).calls(x.order) for x in several), default=0.0)


@dataclass(frozen=True)
class Plan:
    """One forward transform over several GPUs, into a new value."""

    card: Card
    n: int
    devices: int
    bits: int = BITS
    network_gbps: float = NETWORK_GBPS
    host_gpus: int = HOST_GPUS

    @property
    def part(self) -> int:
        """Coefficients of a GPU."""
        return self.n // self.devices

    @property
    def word_bytes(self) -> int:
        return 4 if self.bits <= 32 else 8

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.n, self.devices, tables=self.has_tables)

    def slices(self, order: Order) -> int:
        """Slices of a GPU's columns. Calls of several hosts are not counted: they take the most slices."""
        layout = self.layout if self.devices <= self.host_gpus else replace(self.layout, slices=_SLICES)
        return layout.in_order(order).slices

    @property
    def has_tables(self) -> bool:
        """Whether all rows of a GPU have tables of their own: then no twiddles follow the columns."""
        return 4 * self.word_bytes * self.part * TABLES_SHARE <= self.card.memory_bytes

    # ---- time, ms ----

    @property
    def link_gbps(self) -> float:
        """Bandwidth of a GPU to the others, each way."""
        inside = self.devices <= self.host_gpus
        return self.card.link_gbps if inside else min(self.network_gbps, self.card.link_gbps)

    @property
    def rows(self) -> float:
        return self.card.ps(self.bits, self.layout.width) * self.part / 1e9

    @property
    def columns(self) -> float:
        """The time of a whole transform on one GPU less that of its rows."""
        return max(0.0, self.card.ps(self.bits, self.n) * self.part / 1e9 - self.rows)

    @property
    def twiddles(self) -> float:
        if self.devices == 1 or self.has_tables:
            return 0.0
        return TWIST_COPIES * 2 * self.word_bytes * self.part / self.card.copy_gbps / 1e6

    @property
    def exchange(self) -> float:
        sent = self.part * self.word_bytes * (self.devices - 1) / self.devices
        return sent / self.link_gbps / 1e6

    def calls(self, order: Order) -> int:
        """Launches and copies, about: a slice has one for its columns and one for each GPU; then the rows."""
        each = self.slices(order) * (1 + EXCHANGES[order] * self.devices) + self.layout.row_slices
        return self.devices * each

    def queue(self, order: Order) -> float:
        """Time of the host, which has one thread for all its GPUs. For more hosts nothing is known: 0."""
        return self.calls(order) * self.card.call_ms if 1 < self.devices <= self.host_gpus else 0.0

    def on_gpus(self, order: Order) -> float:
        """Time of GPUs and links. One slice is computed while another is exchanged.

        So the shorter of computation and exchange is hidden, except for one slice.
        """
        shorter, longer = sorted((self.columns + self.twiddles, EXCHANGES[order] * self.exchange))
        return longer + shorter / self.slices(order) + self.rows

    def ms(self, order: Order = "transposed") -> float:
        return max(self.on_gpus(order), self.queue(order))

    def bound(self, order: Order) -> str:
        """What limits the time."""
        if self.queue(order) > self.on_gpus(order):
            return HOST
        exchange = EXCHANGES[order] * self.exchange
        return "exchange and rows" if exchange > self.columns + self.twiddles else "computation"

    # ---- bytes ----

    @property
    def message(self) -> int:
        """Bytes from one GPU to another."""
        return self.part * self.word_bytes // self.devices

    @property
    def values(self) -> float:
        """The operand, the result and the slices on their way, on a GPU."""
        slices = min(1, _BUFFERS / self.slices("natural")) if self.devices > 1 else 0
        return (2 + slices) * self.part * self.word_bytes

    @property
    def tables(self) -> int:
        """Twiddles on a GPU, of the forward and the inverse transform."""
        entries = self.n
        if self.devices > 1:
            entries = self.layout.height + (self.part if self.has_tables else self.layout.width)
        q = GOLDILOCKS if self.bits == 64 else (1 << self.bits) - 1
        return 2 * entries * word_of(q, self.word_bytes, Words((9, 0), 0)).twiddle_bytes

    @property
    def memory(self) -> float:
        """Values and tables on a GPU."""
        return self.values + self.tables

    @property
    def fits(self) -> bool:
        return self.memory <= self.card.memory_bytes


@dataclass(frozen=True)
class Measured:
    """A transform that was measured."""

    n: int
    devices: int
    bits: int
    order: Order
    ms: float


def measured(rows: Iterable[Row]) -> Iterator[Measured]:
    """Forward transforms on one GPU and on several."""
    for row in rows:
        if match := re.fullmatch(r"forward on (one|\d+) GPUs?(?:, (\w+) order)?", row.op):
            devices = 1 if match[1] == "one" else int(match[1])
            n, bits = int(row.params["n"]), int(row.params["bits"])
            order: Order = "natural" if match[2] == "natural" else "transposed"
            yield Measured(n, devices, bits, order, row.median / 1e6)


def is_rate(row: Row) -> bool:
    """Whether it is a forward transform on one GPU that had rested: one limb, in a batch or alone."""
    p = row.params
    if (row.library, p.get("limbs")) != ("polygpu", 1) or "load_s" in p:
        return False
    return row.op == ONE or (row.op == "forward" and p["batch"] != 1 and p["word"] != "Goldilocks, X^N + 1")


def is_exchange(row: Row) -> bool:
    return row.op.startswith("exchange among ") and row.op.endswith(" GPUs") and row.library == "polygpu"


@dataclass(frozen=True)
class CardKind:
    """Tables of GPUs for which an exchange was measured."""

    layout: Callable[[Card], Iterator[Table]]
    compares: bool = False
    """Whether they need transforms that were measured on several GPUs."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """The rows from which the model takes rates, and those it is compared with."""
        used, machines = [], set()
        for row in rows:
            if row.machine["kind"] != "gpu":
                continue
            is_compared = any(x.devices > 1 for x in measured([row]))
            if is_rate(row) or is_exchange(row) or is_compared:
                used.append(row)
            if is_compared if self.compares else is_exchange(row):
                machines.add(row.machine["name"])
        return [row for row in used if row.machine["name"] in machines]

    def cells(self, rows: Iterable[Row]) -> Card:
        """The card, from the rows of one machine. A single transform takes precedence over a batch."""
        own = self.rows(rows)
        rates: dict[int, dict[int, float]] = {}
        for row in sorted(filter(is_rate, own), key=lambda row: row.op == ONE):
            known = rates.setdefault(int(row.params["bits"]), {})
            known[int(row.params["n"]).bit_length() - 1] = 1000 * row.median / row.work
        link = next(row for row in reversed(own) if is_exchange(row))
        return Card(
            str(link.machine["name"]),
            int(link.machine["memory_bytes"]),
            max(row.figures["copy_gbps"] for row in own if "copy_gbps" in row.figures),
            int(link.params["word_bytes"]) * link.work / link.median,
            rates,
            list(measured(own)),
        )

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """The tables of the rows of one machine."""
        if own := self.rows(rows):
            yield from self.layout(self.cells(own))


def plans_of(card: Card, devices: int, log_points: Iterable[int]) -> list[Plan]:
    """Plans of the sizes that the model covers."""
    plans = [Plan(card, 1 << k, devices) for k in log_points]
    return [plan for plan in plans if devices == 1 or plan.message >= LEAST_MESSAGE]


def plan_table(card: Card) -> Iterator[Table]:
    """The time of a transform for each size and number of GPUs, and the memory that one GPU needs."""
    found = {(p.n, d): p for d in DEVICES for p in plans_of(card, d, TABLE_LOG_POINTS)}

    def time(plan: Plan, order: Order) -> str:
        took = duration(plan.ms(order))
        return f"*{took}*" if plan.bound(order) == HOST else took

    def cell(plan: Plan | None) -> str:
        if plan is None:
            return ""
        times = " / ".join(time(plan, order) for order in list(EXCHANGES)[: plan.devices])
        return f"{times if plan.fits else 'does not fit'} ({gib(plan.memory)})"

    body = [(power(1 << k), *(cell(found.get((1 << k, d))) for d in DEVICES)) for k in TABLE_LOG_POINTS]
    title = (
        "Model of a forward transform modulo Goldilocks: transposed / natural order (memory of a GPU); "
        "in italics where the host's calls bound it"
    )
    yield Table(title, ("N", *map(gpus, DEVICES)), tuple(body))


def measured_table(card: Card) -> Iterator[Table]:
    """Transforms that were measured, beside the model."""
    body = []
    for x in sorted(card.measured, key=lambda x: (x.bits, x.devices, x.n, x.order)):
        if x.devices > 1:
            plan = Plan(card, x.n, x.devices, x.bits)
            model, bound = plan.ms(x.order), plan.bound(x.order)
            shape = (power(x.n), f"{x.bits}", f"{x.devices}", x.order)
            body.append((*shape, duration(x.ms), duration(model), bound, figure(x.ms / model)))
    header = ("N", "bits", "GPUs", "order", "measured", "model", "bound by", "measured / model")
    yield Table("Measured transforms beside the model", header, tuple(body))


def svg(card: Card) -> str:
    """Times of a transform in transposed order over its points, a curve for each number of GPUs."""
    xs = {2.0**k: f"2^{k}" for k in LOG_POINTS if k % 2 == 0}
    ys = {10.0**k: f"{10.0 ** (k - 3):g} s" if k >= 3 else f"{10.0**k:g} ms" for k in range(-1, 6)}
    colours = dict(zip(DEVICES, COLOURS, strict=False))
    body = [*AXES.grid(xs, ys, f"points; {card.name}", "a forward transform, transposed order")]
    for devices, colour in colours.items():
        plans = plans_of(card, devices, LOG_POINTS)
        for a, b in pairwise(plans):
            style = "" if b.fits else ' stroke-dasharray="5 4"'
            width, times = ' stroke-width="1.5"', [plan.on_gpus("transposed") for plan in (a, b)]
            body.append(AXES.line(a.n, times[0], b.n, times[1], colour, width + style))
            if b.queue("transposed") > times[1]:
                body.append(AXES.line(a.n, a.ms(), b.n, b.ms(), colour, f'{width} stroke-dasharray="1 3"'))
        x, y = AXES.at(plans[-1].n, plans[-1].on_gpus("transposed"))
        body.append(text(x + 6, y + 4, gpus(devices), colour))
    for one in card.measured:
        if (one.bits, one.order) == (BITS, "transposed") and one.n >= 1 << LOG_POINTS[0]:
            x, y = AXES.at(one.n, one.ms)
            colour = colours.get(one.devices, COLOURS[-1])
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    notes = (
        "line: GPUs and links",
        "dashed: more than the memory",
        "dotted: the host's calls",
        "point: measured",
    )
    body += [text(AXES.left + 12, AXES.top + 20 + 16 * i, note) for i, note in enumerate(notes)]
    return document(AXES.width, AXES.height, body)


def duration(ms: float) -> str:
    return f"{figure(ms / 1000)} s" if ms >= 1000 else f"{figure(ms)} ms"


def gib(size: float) -> str:
    """At least one decimal: a memory of 139.8 GiB does not hold 140.0."""
    return f"{figure(size / GIB) if size < 10 * GIB else format(size / GIB, '.1f')} GiB"


def gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


# ---- processes ----


def product_seconds(
    alone: float, exchange: Mapping[int, float], processes: int, parts: int, cores: int
) -> float:
    """Seconds of a product of values in so many parts, on processes of one thread each.

    Args:
        alone: seconds of the product on one thread.
        exchange: seconds of an exchange, by number of processes. One process only copies; two also send.
        processes: number of processes.
        parts: number of parts of each value.
        cores: number of cores of the host.
    """
    busy = min(processes, cores)
    copied = exchange[1]
    sent = max(0.0, 2 * (min(2, cores) * exchange[2] - copied))  # of all coefficients
    one = (copied + sent * (processes - 1) / processes) / busy
    return alone * max(math.ceil(parts / processes) / parts, 1 / busy) + PRODUCT_EXCHANGES * one


class ProcessKind:
    """Products on processes of one host, beside the model."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row.op in (PRODUCT, EXCHANGE, ALONE) and row.machine["kind"] == "cpu"]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """The table of the rows of one machine."""
        found: dict[tuple[int, int, int], dict[tuple[str, int], Row]] = {}
        for row in self.rows(rows):
            bits, n, parts, processes = (int(row.params[x]) for x in ("bits", "n", "parts", "processes"))
            found.setdefault((bits, n, parts), {})[row.op, processes] = row
        body = []
        for (bits, n, parts), own in sorted(found.items()):
            seconds = {key: row.median / 1e9 for key, row in own.items()}
            exchange = {count: took for (op, count), took in seconds.items() if op == EXCHANGE}
            if (ALONE, 1) not in own or not {1, 2} <= exchange.keys():
                continue
            alone, cores = seconds[ALONE, 1], int(own[ALONE, 1].machine["cores"])
            for processes in sorted(count for op, count in own if op == PRODUCT):
                took = seconds[PRODUCT, processes]
                model = product_seconds(alone, exchange, processes, parts, cores)
                times = (f"{figure(x)} s" for x in (alone, exchange.get(processes, 0.0), took, model))
                shape = (power(n), f"{bits}", f"{parts}", f"{processes}")
                body.append((*shape, *times, figure(took / model)))
        header = ("N", "bits", "parts", "processes", "one process without Dask", "one exchange")
        if body:
            heads = (*header, "measured", "model", "measured / model")
            yield Table("A product on processes of one host, beside the model", heads, tuple(body))


KINDS: dict[str, CardKind | ProcessKind] = {
    "scale-plan": CardKind(plan_table),
    "scale-measured": CardKind(measured_table, compares=True),
    "scale-processes": ProcessKind(),
}
FIGURES = {"scale.svg": (CardKind(plan_table), svg)}


# ---- one's own case ----


def lines_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """The lines that the command prints: names and what the model says."""
    yield "GPU", f"{plan.card.name}, {gib(plan.card.memory_bytes)}"
    yield "points on a GPU", f"{power(plan.part)}, {gib(plan.part * plan.word_bytes)}"
    if plan.devices == 1:
        yield "time", duration(plan.ms())
    else:
        inside = plan.devices <= plan.host_gpus
        where = "inside a host, measured among 2" if inside else "of a network, assumed"
        yield "link", f"{figure(plan.link_gbps)} GB/s each way, {where}"
        for name in ("columns", "twiddles", "exchange", "rows"):
            yield name, duration(getattr(plan, name))
        for order in EXCHANGES:
            if queue := plan.queue(order):
                yield f"the host's calls, {order} order", duration(queue)
            yield f"time, {order} order", f"{duration(plan.ms(order))}, bound by {plan.bound(order)}"
        if plan.message < LEAST_MESSAGE:
            size = f"{plan.message} bytes, below {LEAST_MESSAGE}"
            yield "a message", f"{size}: latency, which the model leaves out, is longer than the exchange"
    yield "operand, result and slices", gib(plan.values)
    yield "tables", gib(plan.tables)
    yield "memory", f"{gib(plan.memory)}, {'fits' if plan.fits else 'DOES NOT FIT'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--devices", type=int, help="GPUs, a power of two")
    parser.add_argument("--log-n", type=int, help="log2 of the points")
    parser.add_argument("--bits", type=int, default=BITS, help="of the prime: 30, 50, 60; 64 is Goldilocks")
    parser.add_argument("--network-gbps", type=float, default=NETWORK_GBPS, help="of a GPU each way, GB/s")
    parser.add_argument("--host-gpus", type=int, default=HOST_GPUS, help="GPUs that a host links")
    parser.add_argument("--memory-gib", type=float, help="of a GPU, where it is another than measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "scale.svg", help="file to write")
    options = parser.parse_args(arguments)
    if (options.devices is None) != (options.log_n is None):
        parser.error("--devices and --log-n: give both, or none")
    rows, kind = newest(read_rows(options.results)), CardKind(plan_table)
    if not (own := of_last_machine(kind.rows(rows))):
        parser.error(
            f"{options.results}: no row of an exchange among GPUs; run python -m benchmarks.distributed"
        )
    card = kind.cells(own)
    if options.memory_gib is not None:
        card = replace(card, memory_bytes=int(options.memory_gib * GIB))
    if options.devices is None:
        for table in (*plan_table(card), *measured_table(card)):
            if table.body:
                print_table(table.title, table.header, table.body)
        options.figure.write_text(drawn(kind, svg, rows) or "", encoding="utf-8")
        print(f"{options.figure}: written")
        return 0
    if options.bits not in card.rates:
        parser.error(
            f"--bits {options.bits}: no rows, must be one of {', '.join(map(str, sorted(card.rates)))}"
        )
    plan = Plan(
        card, 1 << options.log_n, options.devices, options.bits, options.network_gbps, options.host_gpus
    )
    try:
        lines = list(lines_of(plan))
    except ParameterError as error:
        parser.error(str(error))
    title = (
        f"A forward transform of 2^{options.log_n} points of {options.bits} bits on {gpus(options.devices)}"
    )
    print_table(title, ("", "model"), lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
