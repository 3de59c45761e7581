"""Exact products for moduli of one word by two methods: transforms modulo auxiliary primes, and FFT.

    python -m benchmarks.products [--device cpu | cuda] [--quick] [--out DIR]

The operands are single polynomials on the CPU, and batches of 256 MiB on a GPU. `auto` of a row says whether
the ring chooses this method by itself. If the chosen method takes over 15 % longer than the other, a line at
the end says so, and the exit status is 1. Results are compared with products of Python integers (Kronecker
substitution). For a batch on a GPU, three rows are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends import get_backend
from polygpu._backends.reference import big_product
from polygpu._core.ways import plan_of_product

from .harness import RESULTS, Case, CudaEvents, Row, WallClock, measure, print_table, record
from .report import KINDS

DEGREES = (2**8, 2**10, 2**11, 2**12, 2**13, 2**14, 2**16)
QUICK = (2**10, 2**12)
MODULI = {
    "12289": 12289,
    "2^32": 2**32,
    "2^32 - 5": 2**32 - 5,
    "2^48 - 59": 2**48 - 59,
    "2^64": 2**64,
    "2^64 - 59": 2**64 - 59,
}
# Names of moduli that are the largest prime of a bit length with a transform.
PRIMES = {"32-bit prime": 32, "63-bit prime": 63, "64-bit prime": 64}
NAMES = (*MODULI, *PRIMES)
BATCH_BYTES = 1 << 28
SLOWER = 1.15  # greatest allowed ratio of the chosen method's time to the other method's


def modulus(n: int, name: str) -> int:
    """Return the modulus for the column `name` of the tables, for degree n."""
    return MODULI[name] if name in MODULI else pg.ntt_primes(n, bits=PRIMES[name])[0]


def cases(n: int, name: str, device: str) -> Iterator[Case]:
    """Yield the cases of both methods for one ring, or only that by primes if an FFT would not be exact."""
    ring = pg.Ring(n, modulus(n, name))
    word_bytes = ring.dtype.itemsize
    batch = 1 if device == "cpu" else max(1, BATCH_BYTES // (word_bytes * n))
    picked = sorted({0, batch // 2, batch - 1})
    with pg.device("cpu"):
        few = [ring.random((len(picked),), seed=seed) for seed in (1, 2)]
    a, b = (operand(ring, x, picked, batch, device) for x in few)
    out = a.copy()
    q = ring.modulus
    expected = np.array(
        [big_product(*pair, q) for pair in zip(*(x.to_bigints().tolist() for x in few), strict=True)],
        object,
    )
    chosen = plan_of_product(ring._plan, "auto", get_backend(a.device))

    def values(poly: pg.Poly) -> NDArray[Any]:
        rows: NDArray[Any] = poly[picked].cpu().data[:, 0] if batch > 1 else poly.cpu().data.reshape(1, n)
        return rows

    for method in ("ntt", "fft"):
        try:
            plan = plan_of_product(ring._plan, method, get_backend(a.device))  # type: ignore[arg-type]
        except pg.errors.PrecisionError:
            continue
        params: dict[str, int | str] = {
            "n": n,
            "q": name,
            "method": method,
            "limbs": 1,
            "batch": batch,
            "word_bytes": word_bytes,
            "auto": int(plan is chosen),
        }
        yield Case(
            op="exact product",
            library="polygpu",
            params=params,
            run=partial(a.mul, b, out=out, product=method),  # type: ignore[arg-type]
            verify=lambda found: np.array_equal(found.astype(object), expected),
            work=batch * n,
            values=values,
        )


def operand(ring: pg.Ring, few: pg.Poly, picked: Sequence[int], batch: int, device: str) -> pg.Poly:
    """Return a batch on the device that holds the polynomials of `few` at the indices `picked`.

    At all other indices it holds copies of the first polynomial of `few`.
    """
    if batch == 1:
        return few[0].to(device)
    few = few.to(device)
    index = np.zeros(batch, np.intp)
    index[list(picked)] = np.arange(len(picked))
    return few[index]


def slower_choices(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line for each ring that chooses a method which is clearly slower than the other."""
    found: dict[tuple[object, object], list[Row]] = {}
    for row in rows:
        found.setdefault((row.params["n"], row.params["q"]), []).append(row)
    for (n, q), both in found.items():
        best = min(both, key=lambda row: row.median)
        for taken in both:
            if taken.params["auto"] and taken.median > SLOWER * best.median:
                methods = f"{taken.params['method']} is taken, {best.params['method']}"
                yield f"n = {n}, q = {q}: {methods} is {taken.median / best.median:.2f} times as fast"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help=f"N = {', '.join(map(str, QUICK))} alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    options = parser.parse_args(arguments)
    timer = WallClock() if options.device == "cpu" else CudaEvents()
    rows: list[Row] = []
    for name in NAMES:
        for n in QUICK if options.quick else DEGREES:
            for case in cases(n, name, options.device):
                rows.append(measure(case, timer))
                record(rows[-1], options.out)
                print(f"{case}: {rows[-1].ps_per_coefficient:.1f} ps a coefficient", flush=True)
    for kind in ("cpu-exact", "gpu-exact"):
        for table in KINDS[kind].tables(rows):
            print_table(table.title, table.header, table.body)
    slower = list(slower_choices(rows))
    for line in slower:
        print(line)
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
