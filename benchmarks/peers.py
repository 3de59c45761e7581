"""Transforms and products of another library compared with those of polygpu, in one run on one core.

    python -m benchmarks.cpu --only peers --peer NAME=PATH [--peer NAME=PATH ...]

This is for users who have another C library installed and ask which of the two is faster on their machine.
NAME is the name of the library, or LIBRARY:BUILD, for example HEXL:gcc. Of several builds of a library the
summary shows the fastest. PATH is a shared library with the following functions, which need a few lines of C
around the functions of the library:

    const char *peer_version(void);
    void *peer_plan(uint64_t n, uint64_t q, uint64_t psi, uint32_t word_bytes);
    void peer_forward(const void *plan, void *y, const void *x, uint64_t count);
    void peer_inverse(const void *plan, void *y, const void *x, uint64_t count);
    void peer_product(const void *plan, void *y, const void *a, const void *b, uint64_t count);
    void peer_free(void *plan);

Each call works on `count` polynomials of Z_q[X]/(X^n + 1), one after the other in memory. Residues are in
[0, q), as uint64 if word_bytes is 8, or as uint32 if it is 4. Arrays begin at multiples of 64 bytes, and y is
not one of the operands. peer_plan returns NULL if the library does not support n, q or the word. psi is the
smallest primitive 2n-th root of unity. peer_forward gives the values at the odd powers of psi in the
library's own order, and peer_inverse takes them in this order. peer_product takes and gives coefficients.
Results are verified before they are timed.

polygpu has two rows for each operation. "kernel" is polygpu's compiled core on the same aligned arrays.
"call" is `a.ntt()`, `a.intt()` or `a * b` for one polynomial. A pass measures all libraries one after the
other. Ratios of times are taken within a pass, and the table shows their medians over all passes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu import _backends as backends
from polygpu import _cpu

from .harness import Case, Row, measure, on_cores
from .polynomials import Workload
from .tables import Table, figure, power

DEGREES = (2**12, 2**13, 2**14, 2**16)
QUICK = DEGREES[:1]
PRIME_BITS = (30, 46, 50, 60)
PASSES = 3
COEFFICIENTS = 2**14  # least number of coefficients in one call of a kernel
OPS = ("peer ntt", "peer intt", "peer product")
KERNEL, CALL = "polygpu, kernel", "polygpu, call"
ALIGNMENT = 64

Run = Callable[[], Any]


class PeerError(ValueError):
    """Raised if another library (a peer) cannot be loaded."""


class _Plan:
    """A peer's plan. It is freed when no call uses it any more."""

    def __init__(self, address: int, free: Callable[[ctypes.c_void_p], None]) -> None:
        self.address, self._free = ctypes.c_void_p(address), free

    def __del__(self) -> None:
        self._free(self.address)


class Peer:
    """A shared library with the functions that the module's docstring lists."""

    def __init__(self, named: str) -> None:
        self.name, given, path = named.partition("=")
        if not (self.name.partition(":")[0] and given and path) or self.name in (KERNEL, CALL):
            raise PeerError(f"--peer {named}: must be NAME=PATH of a shared library")
        try:
            self._library = ctypes.CDLL(path)
            for name in ("version", "plan", "forward", "inverse", "product", "free"):
                getattr(self._library, f"peer_{name}")
        except (OSError, AttributeError) as error:
            raise PeerError(f"--peer {named}: {error}; benchmarks/peers.py names the functions") from error
        self._library.peer_version.restype = ctypes.c_char_p
        self._library.peer_plan.restype = ctypes.c_void_p
        self.version = self._library.peer_version().decode()

    def cases(self, w: Workload) -> Iterator[Case]:
        """Yield the peer's cases, in polygpu's words for q, or in 8 bytes if the library takes only these."""
        for size in (4, 8) if w.q < 1 << 32 else (8,):
            plan = self._library.peer_plan(
                ctypes.c_uint64(w.n), ctypes.c_uint64(w.q), ctypes.c_uint64(w.psi), ctypes.c_uint32(size)
            )
            if plan:
                yield from self._cases(w, _Plan(plan, self._library.peer_free), np.dtype(f"u{size}"))
                return

    def _cases(self, w: Workload, plan: _Plan, dtype: np.dtype[Any]) -> Iterator[Case]:
        a, b, y, values = (rows_of(x, count_of(w), dtype) for x in (w.a, w.b, w.a, w.a))
        count = ctypes.c_uint64(count_of(w))

        def run(name: str, *operands: NDArray[Any]) -> Run:
            function = getattr(self._library, f"peer_{name}")
            addresses = [x.ctypes.data_as(ctypes.c_void_p) for x in operands]  # each keeps its array alive
            return lambda: function(plan.address, *addresses, count)

        run("forward", values, a)()
        for op, call in zip(
            OPS, (run("forward", y, a), run("inverse", y, values), run("product", y, a, b)), strict=True
        ):
            yield case(w, op, self.name, call, y)


def check_names(others: Sequence[Peer]) -> None:
    """Raise PeerError if two peers have the same name."""
    names = [peer.name for peer in others]
    for name in names:
        if names.count(name) > 1:
            raise PeerError(f"--peer {name}: given twice; NAME:BUILD tells builds of a library apart")


# ---- what is measured ----


def count_of(w: Workload) -> int:
    return max(1, COEFFICIENTS // w.n)


def rows_of(x: NDArray[Any], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of `count` copies of a polynomial, at an address that is a multiple of 64."""
    room = np.empty(count * x.size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    rows = room[start : start + count * x.size * dtype.itemsize].view(dtype).reshape(count, x.size)
    rows[:] = x
    return rows


def case(w: Workload, op: str, library: str, run: Run, y: NDArray[Any]) -> Case:
    """Return the case of a call that fills all rows of y with the same result.

    Evaluated values may be in any order.
    """

    def verify(values: NDArray[Any]) -> bool:
        if not (values == values[0]).all():
            return False
        if op == "peer product":
            return w.is_product(values[0].astype(np.uint64))
        expected = w.a if op == "peer intt" else np.sort(w.a_evaluated.astype(np.uint64))
        return np.array_equal(values[0] if op == "peer intt" else np.sort(values[0]), expected)

    return Case(op, library, w.params, run, verify, y.size, lambda _: y.copy())


def own_cases(w: Workload) -> Iterator[Case]:
    """Yield polygpu's cases: the core on aligned arrays, then calls on one polynomial."""
    compute, plan, dtype, count = (
        backends.get_backend("cpu"),
        w.ring._plan.transform,
        w.ring.dtype,
        count_of(w),
    )
    evaluated = w.a_evaluated.astype(dtype)
    a, b, y, values = (rows_of(x.astype(dtype), count, dtype)[:, None] for x in (w.a, w.b, w.a, evaluated))
    runs: tuple[Run, ...] = (
        lambda: compute.ntt(plan, a, y),
        lambda: compute.intt(plan, values, y),
        lambda: compute.multiply(plan, a, b, y),
    )
    for op, run in zip(OPS, runs, strict=True):
        yield case(w, op, KERNEL, run, y[:, 0])
    u, v, x = (
        w.ring.from_residues(rows[:1, 0], domain=domain)
        for rows, domain in ((a, "coef"), (b, "coef"), (values, "eval"))
    )
    for op, call in zip(OPS, (u.ntt, x.intt, lambda: u * v), strict=True):
        one = case(w, op, CALL, call, y[0])
        yield replace(one, values=lambda found: found.data)


def measured(peers: Sequence[Peer], quick: bool, packages: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of all libraries, pass after pass. Each row names its run and pass."""
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
    versions = {f"version of {peer.name}": peer.version for peer in peers}
    for number in range(1, 1 + (1 if quick else PASSES)):
        for bits in PRIME_BITS:
            for n in QUICK if quick else DEGREES:
                w = Workload(n, bits)
                for one in (*own_cases(w), *(c for peer in peers for c in peer.cases(w))):
                    params = {**one.params, "run": f"{begun}, pass {number}", **versions}
                    with on_cores(1):
                        row = measure(replace(one, params=params), packages=packages)
                    yield row


# ---- the tables ----

Shape = tuple[int, int]  # bit length of the prime, and N
# Times in ns per coefficient, by shape, then by library and op, then by run.
Times = dict[Shape, dict[tuple[str, str], dict[str, float]]]


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the newest run for each instruction set of each machine."""
    own = [row for row in rows if row.op in OPS]
    last: dict[tuple[Any, Any], str] = {}
    for row in own:
        last[_setting(row)] = max(last.get(_setting(row), ""), _begun(row))
    return [row for row in own if _begun(row) == last[_setting(row)]]


def times(rows: Iterable[Row]) -> dict[str, Times]:
    """Return the times of rows, by instruction set."""
    found: dict[str, Times] = {}
    for row in rows:
        shape = int(row.params["bits"]), int(row.params["n"])
        at = found.setdefault(str(row.machine["isa"]), {}).setdefault(shape, {})
        at.setdefault((row.library, row.op), {})[str(row.params["run"])] = row.median / row.work
    return found


class PeerKind:
    """A table with a line for each prime size and N: polygpu's times, and the peers' times as multiples."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows of the newest run for each instruction set."""
        return newest(rows)

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield a table for each instruction set of one machine."""
        for isa, shapes in times(self.rows(rows)).items():
            peers = sorted({library for shape in shapes.values() for library, _ in shape} - {KERNEL, CALL})
            heads = [
                "kernel, ns",
                *(head for peer in peers for head in (f"{peer} / kernel", f"{peer} / call")),
            ]
            body = []
            for (bits, n), shape in sorted(shapes.items()):
                cells = [_triple(shape, KERNEL, None)]
                for peer in peers:
                    cells += [_triple(shape, peer, KERNEL), _triple(shape, peer, CALL)]
                body.append((str(bits), power(n), *cells))
            yield Table(
                f"Beside other libraries on one core, {isa}, a coefficient, forward / inverse / product",
                ("bits", "N", *heads),
                tuple(body),
            )


class PeerSummaryKind:
    """A table with lines for each prime size: the ratio of a peer's fastest build to polygpu, for all N."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows of the newest run with the best instruction set of each machine."""
        own, best = newest(rows), dict[Any, Any]()
        for name, isa in map(_setting, own):
            best[name] = min(best.get(name, isa), isa, key=_cpu.all_isas().index)
        return [row for row in own if row.machine["isa"] == best[row.machine["name"]]]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of one machine."""
        for shapes in times(self.rows(rows)).values():
            peers = {library for shape in shapes.values() for library, _ in shape} - {KERNEL, CALL}
            families = sorted({peer.partition(":")[0] for peer in peers})
            body = []
            for bits in sorted({bits for bits, _ in shapes}):
                for beside, what in ((KERNEL, "kernel"), (CALL, "call")):
                    cells = []
                    for family in families:
                        builds = [peer for peer in peers if peer.partition(":")[0] == family]
                        cells.append(
                            _ranges([v for (b, _), v in shapes.items() if b == bits], builds, beside)
                        )
                    body.append((str(bits), what, *cells))
            degrees = sorted({n for _, n in shapes})
            yield Table(
                f"polygpu's speed over each library's, N = {power(degrees[0])} to {power(degrees[-1])}, "
                "worst to best: forward, inverse, product",
                ("bits", "polygpu", *families),
                tuple(body),
            )


def speedups(rows: Iterable[Row]) -> dict[str, tuple[float, float]]:
    """Return for each library the least and the largest ratio of its fastest build's time to the kernel's."""
    found: dict[str, list[float]] = {}
    by_machine: dict[Any, list[Row]] = {}
    for row in PeerSummaryKind().rows(rows):
        by_machine.setdefault(row.machine["name"], []).append(row)
    for shapes in (shapes for own in by_machine.values() for shapes in times(own).values()):
        for shape, op in product(shapes.values(), OPS):
            builds: dict[str, list[float]] = {}
            for peer in {library for library, _ in shape} - {KERNEL, CALL}:
                if (ratio := _ratio(shape, op, peer, KERNEL)) is not None:
                    builds.setdefault(peer.partition(":")[0], []).append(ratio)
            for family, ratios in builds.items():
                found.setdefault(family, []).append(min(ratios))
    return {family: (min(ratios), max(ratios)) for family, ratios in sorted(found.items())}


def _setting(row: Row) -> tuple[Any, Any]:
    return row.machine["name"], row.machine["isa"]


def _begun(row: Row) -> str:
    return str(row.params.get("run", "")).partition(",")[0]


def _ratio(
    shape: dict[tuple[str, str], dict[str, float]], op: str, library: str, beside: str
) -> float | None:
    """Return the median over the passes of a library's time divided by the time of `beside`.

    Return None if no pass has both times.
    """
    own, other = shape.get((library, op), {}), shape.get((beside, op), {})
    ratios = [own[run] / other[run] for run in own if run in other]
    return median(ratios) if ratios else None


def _ranges(
    shapes: Sequence[dict[tuple[str, str], dict[str, float]]], builds: Sequence[str], beside: str
) -> str:
    cells = []
    for op in OPS:
        found = [[_ratio(shape, op, build, beside) for build in builds] for shape in shapes]
        least = [min(known) for ratios in found if (known := [x for x in ratios if x is not None])]
        cells.append(f"{min(least):.2f} to {max(least):.2f}" if least else "-")
    return ", ".join(cells)


def _triple(shape: dict[tuple[str, str], dict[str, float]], library: str, beside: str | None) -> str:
    """Return the figures for the three ops: the library's times, or their ratios to the times of `beside`."""
    cells = []
    for op in OPS:
        own = list(shape.get((library, op), {}).values())
        value = _ratio(shape, op, library, beside) if beside else median(own) if own else None
        cells.append("-" if value is None else figure(value))
    return " / ".join(cells)


KINDS = {"cpu-peers": PeerKind(), "cpu-peers-summary": PeerSummaryKind()}
