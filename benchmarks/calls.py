"""Single calls on a GPU: the host's time for a call, products of matrices back to back, and tables of calls.

`python -m benchmarks.gpu --only calls` measures these calls. The tables also show calls in CUDA graphs and
first products. While the host's time is measured, a kernel that only waits keeps the stream busy. So the time
of a call is the time that the host needs to queue it, and no call waits for the work of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import Poly, linalg

from .batches import Workload
from .harness import Case, Machine, Row, Unverified
from .matrices import Product, multiply_integers
from .tables import Table, figure, power

# The param "launch" of a row: HOST for the host's time, BACK_TO_BACK for the card's time.
HOST, BACK_TO_BACK = "host", "back to back"
GRAPH_CALLS = 20  # number of calls in one graph
BUSY_NS = 5_000_000  # time for which a kernel keeps the stream busy, longer than ten samples of calls
ATTEMPTS = 5
SUMS = 4096, 50, 4, 8, 4  # degree, bits and limbs of a ring; terms of a sum, rows of a matrix
SQUARES = 512, 2048  # sizes of matrices of integers
SQUARES_MODULUS = 2**31 - 1

_WAIT = r"""
extern "C" __global__ void benchmark_wait(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}
"""


class HostTime:
    """A timer of the host, which measures how long it takes to queue work behind a kernel that waits."""

    warm_up_ns, total_ns = 1e6, 1e7

    def __init__(self, machine: Machine) -> None:
        import cupy

        self._wait = cupy.RawKernel(_WAIT, "benchmark_wait")
        self._begun, self._machine, self._device = cupy.cuda.Event(), machine, cupy.cuda.Device()

    def rest(self) -> None:
        self._device.synchronize()

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        for _ in range(ATTEMPTS):
            self._device.synchronize()
            self._wait((1,), (1,), (np.uint64(BUSY_NS),))
            self._begun.record()
            start = perf_counter_ns()
            for _ in range(loops):
                run()
            spent = perf_counter_ns() - start
            if not self._begun.done:
                self._device.synchronize()
                return spent
        raise Unverified(
            f"{loops} calls take longer than the {BUSY_NS / 1e6:g} ms for which the stream is busy"
        )

    def machine(self) -> Machine:
        return self._machine


# ---- what is called ----


def host_cases(w: Workload) -> Iterator[Case]:
    """Yield the cases of plain calls on one polynomial, which make new results, and of a graph's replay."""
    s, (x, y) = w.first, (poly.data.astype(object) for poly in (w.host_a, w.host_b))
    q = np.array(w.ring.moduli, dtype=object)[:, None]
    evaluated = s.a.ntt()

    def is_product(values: NDArray[Any]) -> bool:
        s.a.mul(s.b, out=s.result)
        return w.is_product(values)

    def is_forward(values: NDArray[Any]) -> bool:
        s.a.ntt(out=s.transform)
        return w.is_forward(values)

    def equals(expected: NDArray[Any]) -> Callable[[NDArray[Any]], bool]:
        return lambda values: np.array_equal(values.astype(object), expected)

    yield w.case("product", "natural to natural", [lambda: s.a * s.b], is_product, HOST)
    yield w.case("add", "natural", [lambda: s.a + s.b], equals((x + y) % q), HOST)
    yield w.case("neg", "natural", [lambda: -s.a], equals(-x % q), HOST)
    yield w.case("forward", "natural to bit-reversed", [s.a.ntt], is_forward, HOST)
    yield w.case("inverse", "bit-reversed to natural", [evaluated.intt], equals(x), HOST)
    yield w.case("replay", "natural", [pg.capture(Poly.sub, s.b, s.a)], equals((y - x) % q), HOST)


def sum_cases(device: str) -> Iterator[Case]:
    """Yield the cases of sums of products of evaluated values."""
    n, bits, limbs, terms, count = SUMS
    ring = pg.Ring(n, pg.ntt_primes(n, bits=bits, count=limbs))
    q = np.array(ring.moduli, dtype=object)[:, None]
    with pg.device("cpu"):
        host = [
            ring.random(shape, seed=i).data for i, shape in enumerate(((terms,), (terms,), (count, terms)))
        ]
    x, y, matrix = (ring.from_residues(data, domain="eval").to(device) for data in host)
    p, r, m = (data.astype(object) for data in host)
    expected = {"dot": (p * r).sum(axis=0) % q, "matrix @ vector": (m * p).sum(axis=1) % q}
    runs: dict[str, Callable[[], pg.Poly]] = {
        "dot": lambda: pg.dot(x, y),
        "matrix @ vector": lambda: matrix @ x,
    }
    for op, run in runs.items():
        params = {"n": n, "word": "f64", "bits": bits, "word_bytes": 8, "limbs": limbs, "batch": terms}

        def verify(values: NDArray[Any], op: str = op) -> bool:
            return np.array_equal(values.astype(object), expected[op])

        work = expected[op].size
        yield Case(
            op, "polygpu", params | {"launch": HOST}, run, verify, work, lambda poly: poly.cpu().data.copy()
        )


def square_cases(size: int) -> Iterator[Case]:
    """Yield the cases of products of integer matrices: the host's time, and the card's time back to back."""
    import cupy

    q = SQUARES_MODULUS
    product = Product.random(
        q, 1, size, size, size, lambda matrix, columns: multiply_integers(q, matrix[0], columns)
    )
    a, b = (cupy.asarray(x[0]) for x in (product.a, product.b))
    params: dict[str, int | str] = {"n": size, "word": "u32", "bits": 31, "word_bytes": 4, "limbs": 1}
    for launch in (HOST, BACK_TO_BACK):
        yield Case(
            op="linalg.matmul",
            library="polygpu",
            params=params | {"batch": 1, "launch": launch},
            run=lambda: linalg.matmul(a, b, q=q),
            verify=product.holds,
            work=size * size,
            values=lambda c: product.values(cupy.asnumpy(c)),
        )


# ---- tables ----


@dataclass(frozen=True)
class CallKind:
    """A table with a line for each shape and a column for each kind of call."""

    title: str
    heads: tuple[str, ...]
    line: Callable[[Row], tuple[Any, ...]]
    """A function that returns the first cells of a line, by which lines are sorted. The last one is N."""
    columns: Mapping[str, Mapping[str, str]]
    """A dict from the heading of each column to the op and the params of its rows, as text."""
    unit: float = 1e3  # length in ns of the unit that the table shows

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows, only the newest one for each cell."""
        shown: dict[object, Row] = {}
        for row in rows:
            own = (row.machine["kind"], row.library) == ("gpu", "polygpu")
            if own and (column := self.column(row)) is not None:
                shown[row.machine["name"], self.line(row), column] = row
        return list(shown.values())

    def column(self, row: Row) -> str | None:
        """Return the heading of the row's column, or None if no column shows the row."""
        known = {"op": row.op, "of": "sums" if row.op in _SUMS else ""} | {
            key: str(value) for key, value in row.params.items()
        }
        for head, wanted in self.columns.items():
            if wanted.items() <= known.items():
                return head
        return None

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine, if there are any."""
        cells = {(self.line(row), self.column(row)): row for row in self.rows(rows)}
        lines = sorted({line for line, _ in cells})
        heads = [head for head in self.columns if any(head == column for _, column in cells)]
        body = tuple(
            (*map(str, line[:-1]), power(line[-1]), *(self.text(cells.get((line, head))) for head in heads))
            for line in lines
        )
        if body:
            yield Table(self.title, (*self.heads, *heads), body)

    def text(self, row: Row | None) -> str:
        return "" if row is None else figure(row.median / self.unit)


def _shape(row: Row) -> tuple[int, ...]:
    p = row.params
    return int(p["bits"]), int(p["limbs"]), int(p["n"])


_IN_GRAPH = {"launch": f"CUDA graph of {GRAPH_CALLS}"}
_SUMS = {"dot": "dot", "matrix @ vector": "matrix @ vector", "linalg.matmul": "linalg.matmul"}  # by op

KINDS = {
    "gpu-host": CallKind(
        "Host time of one call on one polynomial, us",
        ("bits", "limbs", "N"),
        _shape,
        {
            "a * b": {"op": "product", "launch": HOST},
            "a + b": {"op": "add", "launch": HOST},
            "-a": {"op": "neg", "launch": HOST},
            "ntt()": {"op": "forward", "launch": HOST},
            "intt()": {"op": "inverse", "launch": HOST},
            "graph of one launch": {"op": "replay", "launch": HOST},
        },
    ),
    "gpu-sums": CallKind(
        "Sums of products and matrices of integers, us a call",
        ("call", "limbs", "N"),
        lambda row: (_SUMS.get(row.op, ""), int(row.params["limbs"]), int(row.params["n"])),
        {"host": {"of": "sums", "launch": HOST}, "back to back": {"of": "sums", "launch": BACK_TO_BACK}},
    ),
    "gpu-graph": CallKind(
        f"Few polynomials in a CUDA graph of {GRAPH_CALLS} calls, us a call",
        ("bits", "polynomials", "limbs", "N"),
        lambda row: (int(row.params["bits"]), int(row.params["batch"]), *_shape(row)[1:]),
        {
            "ntt": {"op": "forward"} | _IN_GRAPH,
            "intt": {"op": "inverse"} | _IN_GRAPH,
            "product": {"op": "product"} | _IN_GRAPH,
        },
    ),
    "gpu-first": CallKind(
        "First product of a process, s",
        ("bits", "limbs", "N"),
        _shape,
        {
            "no kernels kept": {"op": "first product", "cache": "empty"},
            "kernels kept on disk": {"op": "first product", "cache": "full"},
        },
        unit=1e9,
    ),
}
