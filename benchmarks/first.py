"""The first product of a fresh process, with an empty cache of compiled kernels and with a full one.

`python -m benchmarks.gpu --only first` measures it. It starts each process by

    python -m benchmarks.first N BITS FILE

This process multiplies operands that are on the GPU. It prints the nanoseconds until the product is in host
memory, and writes the residues of the product to FILE. Before the time starts, CuPy has already run a kernel,
and the root of the ring has been found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends.reference import big_product

from .harness import ROOT, Case, Machine

SIZES = (4096, 50), (65536, 30), (4096, 60)  # pairs of a degree and the bit length of the prime
SAMPLES = 5  # number of processes for each case


class First(NamedTuple):
    """The result of one process: its time in ns and the residues of its product."""

    ns: int
    values: NDArray[Any]


class Processes:
    """A timer that sums the times which the processes took for their products."""

    warm_up_ns, total_ns = 0.0, 0.0

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def rest(self) -> None:
        """Do nothing. There is no work to wait for, because each run is a new process."""

    def elapsed(self, run: Callable[[], First], loops: int) -> float:
        return float(sum(run().ns for _ in range(loops)))

    def machine(self) -> Machine:
        return self._machine


def ring(n: int, bits: int) -> pg.Ring:
    return pg.Ring(n, pg.ntt_primes(n, bits=bits)[0])


def operands(n: int, bits: int) -> list[pg.Poly]:
    with pg.device("cpu"):
        return [ring(n, bits).random(seed=seed) for seed in (1, 2)]


def process(n: int, bits: int, kernels: str | None) -> First:
    """Run one process with `kernels` as the folder of compiled kernels; None means a new, empty folder."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "product.npy"
        environment = {"CUPY_CACHE_DIR": kernels or f"{folder}/kernels", "PYTHONSAFEPATH": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        command = [sys.executable, "-m", "benchmarks.first", str(n), str(bits), str(path)]
        found = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return First(int(found.stdout), np.load(path))


def cases(run: Callable[[int, int, str | None], First] = process) -> Iterator[Case]:
    """Yield two cases for each size: with an empty cache of kernels, then with a full one.

    The full cache is filled by the first run of its case, which is only verified.
    """
    for n, bits in SIZES:
        a, b = (x.to_bigints().tolist() for x in operands(n, bits))
        expected = np.array([big_product(a, b, ring(n, bits).modulus)], object)

        def verify(values: NDArray[Any], expected: NDArray[Any] = expected) -> bool:
            return np.array_equal(values.astype(object), expected)

        with ExitStack() as kept:
            for cache in ("empty", "full"):
                kernels = kept.enter_context(TemporaryDirectory()) if cache == "full" else None
                size = 4 if bits <= 32 else 8
                params: dict[str, int | str] = {"n": n, "word": f"u{8 * size}", "bits": bits, "limbs": 1}
                yield Case(
                    op="first product",
                    library="polygpu",
                    params=params | {"word_bytes": size, "batch": 1, "launch": "first", "cache": cache},
                    run=partial(run, n, bits, kernels),
                    verify=verify,
                    work=n,
                    values=lambda first: first.values,
                    samples=SAMPLES,
                )


def main(arguments: Sequence[str]) -> None:
    import cupy

    (cupy.arange(10) * 2).get()
    a, b = (x.to("cuda") for x in operands(int(arguments[0]), int(arguments[1])))
    assert a.ring.roots is not None
    cupy.cuda.Device().synchronize()
    start = perf_counter_ns()
    product = (a * b).cpu()
    print(perf_counter_ns() - start)
    np.save(arguments[2], product.data)


if __name__ == "__main__":
    main(sys.argv[1:])
