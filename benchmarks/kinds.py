"""Transforms and products modulo X^n - X^(n/2) + 1, compared with those modulo X^n + 1.

    python -m benchmarks.kinds [--device cuda] [--quick] [--results DIR]

Both rings have the same n and the same prime. Operands stay in the same memory; on a GPU several calls are
one CUDA graph. Each case is measured in both rings before the next one, so that the state of the machine is
the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends import checked_device
from polygpu._backends.reference import evaluate
from polygpu._core.quotient import Kind
from polygpu.testing import multiply_integers

from .conversions import poison, recorded
from .harness import Case, Row, command_line, measured, on_cores, release, timer_of
from .tables import Table, figure

OPS = {"forward": "forward transform", "inverse": "inverse transform", "product": "product"}
RINGS: tuple[Kind, Kind] = ("negacyclic", "trinomial")
BITS = (30, 31, 50, 60, 62, 64)  # one prime for each word of the transforms
MUST = 1.15  # greatest allowed ratio to the time modulo X^n + 1


@dataclass(frozen=True)
class Sizes:
    """The degrees that are measured on a device, and the number of coefficients in a call."""

    degrees: tuple[int, ...]
    coefficients: int


CPU, GPU = Sizes((256, 1024, 4096, 1 << 14, 1 << 16), 1 << 18), Sizes((1 << 12, 1 << 16), 1 << 25)
QUICK = Sizes((64,), 1 << 8)


def cases(sizes: Sizes, device: str, cores: int) -> Iterator[Case]:
    """Yield the cases of both rings: each case in one ring, then in the other."""
    for n in sizes.degrees:
        for bits in BITS:
            # A prime for the trinomial ring of degree 2n is 1 modulo 6n, so it serves both rings of degree n.
            (q,) = pg.ntt_primes(2 * n, bits=bits, kind="trinomial")
            params = {"n": n, "bits": bits, "batch": max(1, sizes.coefficients // n)}
            params |= {"cores": cores} if device == "cpu" else {"launch": "CUDA graph"}
            made = [list(cases_of(pg.Ring(n, q, kind=kind), params, device)) for kind in RINGS]
            yield from (case for pair in zip(*made, strict=True) for case in pair)


def cases_of(R: pg.Ring, params: dict[str, Any], device: str) -> Iterator[Case]:
    """Yield the three cases of a ring."""
    batch, (q,) = params["batch"], R.moduli
    with pg.device("cpu"):
        a, b = R.random(batch, seed=1), R.random(batch, seed=2)
        evaluated = a.ntt()
    x, y, e = a.to(device), b.to(device), evaluated.to(device)
    out, point = x.copy(), int(R.eval_points()[R.n // 3])

    def is_transform(found: NDArray[Any]) -> bool:
        rows = a.data[[0, -1], 0].tolist()
        some = [evaluate(row, point, q) for row in rows] == found[[0, -1], 0, R.n // 3].tolist()
        return some and np.array_equal(found, evaluated.data)

    def is_product(found: NDArray[Any]) -> bool:
        left, right = a.data[[0, -1], 0].tolist(), b.data[[0, -1], 0].tolist()
        expected = [multiply_integers(u, v, q, R.kind) for u, v in zip(left, right, strict=True)]
        return found[[0, -1], 0].tolist() == expected

    for name, run, verify in (
        ("forward", lambda: x.ntt(out=out), is_transform),
        ("inverse", lambda: e.intt(out=out), lambda found: np.array_equal(found, a.data)),
        ("product", lambda: x.mul(y, out=out), is_product),
    ):
        work, calls = recorded(run, x, device)
        poison(out)
        op = f"{name}, {R.kind}"
        yield Case(op, "polygpu", params, work, verify, batch * R.n, on_host, calls)


def on_host(x: pg.Poly) -> NDArray[Any]:
    """Return the residues in host memory."""
    return np.asarray(x.cpu().data)


# ---- the tables ----


@dataclass(frozen=True)
class QuotientKind:
    """A table of the operations of both rings on one device."""

    device: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows."""
        names = {f"{op}, {kind}" for op in OPS for kind in RINGS}
        return [row for row in rows if row.op in names and row.machine["kind"] == self.device]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine."""
        of: dict[tuple[str, Kind, int, int], Row] = {}
        for row in self.rows(rows):
            op, _, kind = row.op.partition(", ")
            of[op, kind, int(row.params["n"]), int(row.params["bits"])] = row  # type: ignore[index]
        body = tuple(
            (OPS[op], str(n), *(self._cell(of, op, n, bits) for bits in BITS))
            for op in OPS
            for n in sorted({n for _, _, n, _ in of})
        )
        header = "operation", "N", *(f"{bits} bits" for bits in BITS)
        unit = "ns" if self.device == "cpu" else "ps"
        title = f"X^n - X^(n/2) + 1: {unit} a coefficient (times as long as modulo X^n + 1; must: {MUST})"
        yield Table(title, header, body)

    def _cell(self, of: dict[tuple[str, Kind, int, int], Row], op: str, n: int, bits: int) -> str:
        base, row = (of.get((op, kind, n, bits)) for kind in RINGS)
        if base is None or row is None:
            return ""
        each = row.median / (int(row.params["batch"]) * n) * (1 if self.device == "cpu" else 1000)
        return f"{figure(each)} ({figure(row.median / base.median)})"


KINDS = {"cpu-kinds": QuotientKind("cpu"), "gpu-kinds": QuotientKind("gpu")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("benchmarks.kinds", __doc__, "small sizes")
    options = parser.parse_args(arguments)
    device = checked_device(options.device)
    timer = timer_of(device)
    sizes = QUICK if options.quick else CPU if device == "cpu" else GPU
    with on_cores(1):
        for case, row in measured(cases(sizes, device, 1), timer, options.results):
            print(f"{case}: {figure(row.median / 1e6)} ms", flush=True)
            if device != "cpu":
                release()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
