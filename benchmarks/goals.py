"""Goals of the CPU core: what is measured for them, and the table that compares the two.

Everything that the goals need is measured in one pass, and passes follow each other in one process. So what
disturbs a machine for a while does not fall on one goal alone. The median over the passes counts.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from operator import sub, truediv
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import _cpu
from polygpu._backends import get_backend
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.basis import basis_of
from polygpu._core.ways import plan_of_product

from .harness import Case, Row, cores, instructions, measure, on_cores
from .polynomials import Workload, folded, from_flint, to_flint
from .tables import Goal, Table, figure, power

# Instruction sets and the sizes of the primes that transforms are measured with.
TRANSFORMS = {"avx512": (30, 46, 50, 60), "avx2": (30, 50), "portable": (46, 50)}
PRODUCT_BITS = (30, 50, 60)
POINTWISE_BITS = (50, 60)
BITS = 50  # of the prime where only one size is measured
ROWS_IN_L2 = 4  # of a pointwise product: 384 KiB in three arrays
NATIVE_ROWS = 128
COEFFICIENTS = 2**14  # that one call transforms, at least: 256 KiB in two arrays of 8-byte words
THREADS, THREADED_ROWS = 2, 64


@dataclass(frozen=True)
class Sizes:
    """Degrees, and the number of passes."""

    transforms: tuple[int, ...] = (2**12, 2**14, 2**16)
    products: tuple[int, ...] = (2**12, 2**16)
    pointwise: int = 2**12
    threaded: int = 2**14
    called: int = 2**8
    rings: tuple[int, ...] = (2**16,)
    passes: int = 3


FULL = Sizes()
QUICK = Sizes(transforms=(2**12, 2**14), products=(2**12,), rings=(), passes=1)


# What is measured


def measured(sizes: Sizes, packages: Sequence[str]) -> Iterator[Row]:
    """The rows of all cases, pass after pass."""
    own = list(cases(sizes))
    for run in range(1, sizes.passes + 1):
        for case in own:
            isa, threads = str(case.params.get("isa", _cpu.isa())), int(case.params.get("threads", 1))
            params = {**case.params, "isa": isa, "threads": threads, "run": run}
            with instructions(isa), on_cores(threads):
                row = measure(dataclasses.replace(case, params=params), packages=packages)
            yield row


def cases(sizes: Sizes) -> Iterator[Case]:
    """The cases of one pass. A line is printed for what this machine cannot run."""
    supported, workload = _cpu.supported_isas(), cache(Workload)
    for isa, primes in TRANSFORMS.items():
        if isa not in supported:
            print(f"{isa}: not on this machine, skipped")
            continue
        for w in (workload(n, bits) for bits in primes for n in sizes.transforms):
            yield from transform_cases(w, isa)
    for w in (workload(n, bits) for n in sizes.products for bits in PRODUCT_BITS):
        yield product_case(w)
        if find_spec("flint"):
            yield flint_case(w)
    for bits in POINTWISE_BITS:
        yield pointwise_case(workload(sizes.pointwise, bits))
    for threads in (1, THREADS):
        if threads <= cores():
            yield threaded_case(workload(sizes.threaded, BITS), threads)
        else:
            print(f"{threads} threads: this process may run on {cores()} core(s), skipped")
    yield product_case(workload(sizes.called, BITS))
    yield native_case(workload(sizes.called, BITS))
    for n in sizes.rings:
        yield ring_case(workload(n, BITS))


def backend_case(
    w: Workload,
    op: str,
    params: Mapping[str, int | str],
    run: Callable[..., None],
    operands: Sequence[Any],
    right: Callable[[NDArray[Any]], bool],
) -> Case:
    """A call that writes into an array made before. A result that was read is overwritten with zeros."""
    operands = [None if x is None else aligned(x) for x in operands]
    out = aligned(np.zeros_like(operands[0]))

    def taken(_: object) -> NDArray[Any]:
        values = out.copy()
        out.fill(0)
        return values

    return Case(op, "polygpu", {**w.params, **params}, partial(run, *operands, out), right, out.size, taken)


def aligned(x: NDArray[Any]) -> NDArray[Any]:
    """A 64-byte aligned copy: the peers' benchmarks align their arrays so."""
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def transform_cases(w: Workload, isa: str) -> Iterator[Case]:
    cpu, transform, rows = get_backend("cpu"), w.ring._plan.transform, transformed_rows(w.n)
    x, values = multiples(w.a, rows, w), multiples(w.a_evaluated, rows, w)
    params = {"isa": isa, "batch": rows}
    yield backend_case(w, "forward", params, partial(cpu.ntt, transform), [x], equal_to(values))
    yield backend_case(w, "inverse", params, partial(cpu.intt, transform), [values], equal_to(x))


def transformed_rows(n: int) -> int:
    """Rows of one call: enough that the cost of the call counts little. That cost has its own line."""
    return max(1, COEFFICIENTS // n)


def multiples(x: NDArray[Any], count: int, w: Workload) -> NDArray[Any]:
    """x, 2x, 3x ... mod q, as a batch: a linear function maps them to the same multiples of its result."""
    rows = np.arange(1, count + 1)[:, None] * x.astype(object) % w.q
    return np.ascontiguousarray(rows.astype(w.ring.dtype)[:, None])


def equal_to(expected: NDArray[Any]) -> Callable[[NDArray[Any]], bool]:
    return partial(np.array_equal, expected)


def product_case(w: Workload) -> Case:
    a, b = w.ring.from_residues(w.a[None]), w.ring.from_residues(w.b[None])
    return w.case("Poly.mul", "polygpu", lambda: pg.Poly.mul(a, b), lambda c: c.data[0])


def flint_case(w: Workload) -> Case:
    """The linear product alone is timed; it is folded modulo X^n + 1 to be verified."""
    a, b = to_flint(w.a, w.q), to_flint(w.b, w.q)
    return w.case("nmod_poly.mul", "python-flint", lambda: a * b, lambda c: from_flint(folded(c, w.n), w.n))


def pointwise_case(w: Workload) -> Case:
    a, b = multiples(w.a, ROWS_IN_L2, w), multiples(w.b, ROWS_IN_L2, w)
    run = partial(get_backend("cpu").pointwise, w.ring._plan.basis, "mul")
    right = equal_to(a.astype(object) * b % w.q)
    return backend_case(w, "pointwise", {"batch": ROWS_IN_L2}, run, [a, b, None], right)


def threaded_case(w: Workload, threads: int) -> Case:
    x, values = multiples(w.a, THREADED_ROWS, w), multiples(w.a_evaluated, THREADED_ROWS, w)
    params = {"batch": THREADED_ROWS, "threads": threads}
    return backend_case(
        w,
        "batch forward",
        params,
        partial(get_backend("cpu").ntt, w.ring._plan.transform),
        [x],
        equal_to(values),
    )


def native_case(w: Workload) -> Case:
    """Products of a large batch: the time of a row without the cost of a call."""
    a, b = multiples(w.a, NATIVE_ROWS, w), np.repeat(multiples(w.b, 1, w), NATIVE_ROWS, axis=0)

    def right(c: NDArray[Any]) -> bool:
        return w.is_product(c[0, 0]) and np.array_equal(c, multiples(c[0, 0], NATIVE_ROWS, w))

    compute = get_backend("cpu")
    run = partial(compute.multiply, plan_of_product(w.ring._plan, "auto", compute))
    return backend_case(w, "multiply", {"batch": NATIVE_ROWS}, run, [a, b], right)


def ring_case(w: Workload) -> Case:
    """A ring whose root is known, and its first transform, which needs the tables."""

    def run(x: NDArray[Any], out: NDArray[Any]) -> None:
        forget_plans()
        get_backend("cpu").ntt(pg.Ring(w.n, w.q, root=w.psi)._plan.transform, x, out)

    x, values = multiples(w.a, 1, w), multiples(w.a_evaluated, 1, w)
    return backend_case(w, "Ring", {}, run, [x], equal_to(values))


def forget_plans() -> None:
    """Empty the plans that polygpu keeps between rings; a ring in use keeps its own plan."""
    plan_cache.forget()
    basis_of.cache_clear()


# The table


Rows = Sequence[Row]  # of one pass
Values = Callable[[Rows], dict[str, float]]


@dataclass(frozen=True)
class Line:
    """A goal, and its values by the places where they were measured. The worst value must reach the goal."""

    work: str
    goal: Goal
    values: Values

    def medians(self, passes: Sequence[Rows]) -> dict[str, float]:
        """The median over the passes for each place."""
        found: dict[str, list[float]] = {}
        for rows in passes:
            for place, value in self.values(rows).items():
                found.setdefault(place, []).append(value)
        return {place: statistics.median(values) for place, values in found.items()}


def row_of(rows: Rows, op: str, **params: int | str) -> Row | None:
    """The newest row of this op with these parameters."""
    return next((r for r in reversed(rows) if r.op == op and params.items() <= r.params.items()), None)


def rows_of(row: Row) -> int:
    return int(row.params["batch"])


def transforms(rows: Rows, isa: str, primes: Sequence[int]) -> dict[tuple[str, int, int], Row]:
    """The rows of transforms, by op, size of the prime and N."""
    return {
        (row.op, int(row.params["bits"]), int(row.params["n"])): row
        for row in rows
        if row.op in ("forward", "inverse") and row.params["isa"] == isa and row.params["bits"] in primes
    }


def cycles(isa: str, bits: int) -> Values:
    """Cycles of the core for a butterfly."""

    def values(rows: Rows) -> dict[str, float]:
        return {
            f"{op} {power(n)}": row.median
            * float(row.machine["clock_ghz"])
            / (rows_of(row) * n / 2 * math.log2(n))
            for (op, _, n), row in transforms(rows, isa, (bits,)).items()
        }

    return values


def portable_times(rows: Rows) -> dict[str, float]:
    fast, slow = (transforms(rows, isa, TRANSFORMS["portable"]) for isa in ("avx512", "portable"))
    return {
        f"{op} {power(n)}, {bits} bits": slow[op, bits, n].median / fast[op, bits, n].median
        for op, bits, n in slow.keys() & fast.keys()
    }


def us(op: str, **params: int | str) -> Values:
    """Microseconds for a row of the batch."""

    def values(rows: Rows) -> dict[str, float]:
        row = row_of(rows, op, **params)
        return {"": row.median / 1000 / rows_of(row)} if row else {}

    return values


def both(value: Callable[[float, float], float], first: Values, second: Values) -> Values:
    """A value that follows from two others, where both were measured."""

    def values(rows: Rows) -> dict[str, float]:
        a, b = first(rows), second(rows)
        return {place: value(a[place], b[place]) for place in a.keys() & b.keys()}

    return values


def ring_ms(rows: Rows) -> dict[str, float]:
    """The time of a ring with its tables: the row less the transform with which it ends."""
    ring = row_of(rows, "Ring", n=2**16, bits=BITS)
    if ring is None:
        return {}
    own = {name: ring.params[name] for name in ("n", "bits", "isa")}
    first = row_of(rows, "forward", **own)
    return {"": (ring.median - first.median) / 1e6} if first else {}


def ntt(what: str, isa: str, bits: int, goal: Goal) -> Line:
    return Line(f"NTT, {what}, cycles a butterfly", goal, cycles(isa, bits))


def product(k: int, bits: int, own: Goal, beside_flint: tuple[float, float]) -> Iterator[Line]:
    """Poly.mul at N = 2^k by itself and beside python-flint."""
    at: dict[str, int | str] = {"n": 2**k, "bits": bits}
    mul, flint = us("Poly.mul", **at), us("nmod_poly.mul", **at)
    name = f"Poly.mul, N = 2^{k}, {bits}-bit prime"
    yield Line(f"{name}, us", own, mul)
    ratio = Goal(1, "python-flint", *beside_flint, more=True)
    yield Line(f"{name}, times as fast as python-flint", ratio, both(truediv, flint, mul))


# Peers: HEXL 1.2.5, tfhe-ntt 0.7.1 and FLINT 3.7-dev, each built from source and run on one core of an Intel
# Xeon server with AVX-512 IFMA.
LINES = (
    ntt("30-bit prime, uint32", "avx512", 30, Goal(0.69, "tfhe-ntt", 0.60, 0.45)),
    ntt("46-bit prime", "avx512", 46, Goal(0.80, "HEXL", 0.62, 0.50, peer_worst=0.95)),
    ntt("50-bit prime", "avx512", 50, Goal(0.80, "HEXL", 0.76, 0.62, peer_worst=0.95)),
    ntt("60-bit prime", "avx512", 60, Goal(1.74, "HEXL", 1.72, 1.50)),
    ntt("30-bit prime, AVX2", "avx2", 30, Goal(1.06, "tfhe-ntt", 0.90, 0.75)),
    ntt("50-bit prime, AVX2", "avx2", 50, Goal(1.18, "FLINT, cyclic", 1.0, 0.85)),
    Line("NTT, portable, times the time with AVX-512 IFMA", Goal(None, "", 7), portable_times),
    *product(12, 30, Goal(15.0, "tfhe-ntt", 13), (36, 48)),
    *product(12, 50, Goal(17.1, "HEXL", 14), (60, 75)),
    *product(12, 60, Goal(38.0, "HEXL", 38), (28, 34)),
    *product(16, 30, Goal(321, "tfhe-ntt", 290), (48, 65)),
    *product(16, 50, Goal(482, "HEXL", 330), (65, 85)),
    *product(16, 60, Goal(826, "HEXL", 820), (34, 42)),
    *(
        Line(
            f"pointwise product in the second cache, N = 2^12, {bits}-bit prime, us",
            goal,
            us("pointwise", n=2**12, bits=bits),
        )
        for bits, goal in ((50, Goal(0.85, "HEXL", 0.80, 0.6)), (60, Goal(2.84, "HEXL", 2.7, 2.0)))
    ),
    Line(
        f"two threads, {THREADED_ROWS} rows of N = 2^14, times as fast as one",
        Goal(None, "", 1.7, 1.9, more=True),
        both(truediv, *(us("batch forward", n=2**14, threads=count) for count in (1, THREADS))),
    ),
    Line(
        "Poly.mul, N = 2^8, beyond the native time, us",
        Goal(None, "", 6, 2),
        both(sub, us("Poly.mul", n=2**8, bits=BITS), us("multiply", n=2**8, bits=BITS)),
    ),
    Line("Ring with its tables, N = 2^16, 50-bit prime, root given, ms", Goal(16.5, "HEXL", 3, 1.5), ring_ms),
)
OPS = ("forward", "inverse", "batch forward", "Poly.mul", "nmod_poly.mul", "pointwise", "multiply", "Ring")

Medians = Sequence[tuple[Line, Mapping[str, float]]]


class GoalKind:
    """The table of goals: a line for each."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Those of `rows` that the table follows from."""
        return [row for row in rows if row.op in OPS and row.machine["kind"] == "cpu"]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """The table of the rows of one machine."""
        passes: dict[int | str, list[Row]] = {}
        for row in self.rows(rows):
            passes.setdefault(row.params["run"], []).append(row)
        if passes:
            yield goal_table([(line, line.medians([*passes.values()])) for line in LINES], len(passes))


def goal_table(medians: Medians, passes: int) -> Table:
    body = []
    for line, values in medians:
        goal = line.goal
        worst = best = holds = ""
        if values:
            place = goal.worst(values)
            worst = f"{figure(values[place])}{f' ({place})' if place else ''}"
            best = figure(values[goal.best(values)]) if len(values) > 1 else ""
            holds = goal.verdict(values[place])
        targets = (f"{x:g}" if x else "" for x in (goal.must, goal.moonshot))
        body.append((line.work, goal.peer_text(), *targets, worst, best, holds))
    return Table(
        f"Goals of one core, medians of {passes} pass(es)",
        ("work", "best peer", "must", "moonshot", "measured: worst", "best", "holds"),
        tuple(body),
    )


KINDS = {"cpu-goals": GoalKind()}
