"""Transforms and products on several GPUs of one host, compared with one GPU, in one process.

    python -m benchmarks.distributed [--quick] [--only SECTION] ... [--results DIR] [--log-heights K ...]

Calls are queued one after the other. Times are taken by the host's clock, from a moment when all devices are
idle until they are idle again. Results are new arrays. A transform is verified by comparing it with that of
one GPU, which `benchmarks.gpu` verifies. The exchange is compared with an all-to-all by NCCL if CuPy finds
NCCL. Section huge, which --quick leaves out, transforms 2^33 points modulo a 60-bit prime. No single GPU can
hold them, so 45 random values are verified by Horner's rule. With --log-heights, columns have 2^K points for
each K given; these times are printed and not kept.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends.reference import reverse_bits
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans.cache import forget
from polygpu._distributed import Devices, Divided
from polygpu._distributed.group import copy

from .harness import RESULTS, Case, Machine, Unverified, gpu_machine, measure, record, release
from .tables import Line, LineKind

QUICK = (2**20,)  # so small that several GPUs wait for the calls of the host
DEGREES = (*QUICK, 2**26, 2**28, 2**30)
PRODUCT_DEGREE, PRODUCT_BYTES = 2**16, 2**31  # degree of a batch of products, and bytes of each operand
HUGE, HUGE_POINTS, HUGE_ROW = 2**33, 45, 2**20
REST_S = 0.5
ONE = "forward on one GPU"
SECTIONS = "exchanges", "products", "transforms", "huge"


class AllGpus:
    """A timer that reads the host's clock before and after work on all GPUs."""

    warm_up_ns, total_ns = 1e7, 1e8

    def __init__(self, count: int) -> None:
        import cupy

        self._cupy, self._count = cupy, count

    def wait(self) -> None:
        for i in range(self._count):
            self._cupy.cuda.Device(i).synchronize()

    def rest(self) -> None:
        self.wait()
        sleep(REST_S)

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        self.wait()
        start = perf_counter_ns()
        for _ in range(loops):
            run()
        self.wait()
        return perf_counter_ns() - start

    def machine(self) -> Machine:
        return {**gpu_machine(self._cupy), "gpus": self._count}


def ring_of(n: int, bits: int) -> pg.Ring:
    """Return a ring of degree n modulo the largest prime, or a cyclic one modulo Goldilocks for 64 bits.

    Its root comes from a generator, because the search for the smallest root would take long.
    """
    if bits == 64:
        return pg.Ring(n, GOLDILOCKS, kind="cyclic", root="generator")
    return pg.Ring(n, pg.ntt_primes(n, bits=bits)[0], root="generator")


def ends(values: pg.Poly | Divided) -> NDArray[Any]:
    """Return the first and last residues of each device's part, in host memory."""
    parts = (values.data,) if isinstance(values, pg.Poly) else values.data
    found = [part.reshape(-1)[at] for part in parts for at in (slice(0, 512), slice(-512, None))]
    return np.concatenate([np.asarray(x.get()) for x in found])


def ends_of_runs(whole: pg.Poly, count: int) -> NDArray[Any]:
    """Return the first and last residues of each of `count` runs of a value, in host memory."""
    runs = whole.data.reshape(count, -1)
    return np.concatenate([np.asarray(x.get()) for run in runs for x in (run[:512], run[-512:])])


def same(found: Divided, whole: pg.Poly) -> bool:
    """Return whether a divided value in natural order equals `whole`, a value on the first GPU."""
    size = whole.ring.n // len(found.devices)
    group = Devices(found.devices)
    return all(
        bool((group.place(part, 0) == whole.data[..., i * size : (i + 1) * size]).all())
        for i, part in enumerate(found.data)
    )


def params(ring: pg.Ring, batch: int = 1) -> dict[str, int | str]:
    bits = ring.moduli[0].bit_length()
    return {"n": ring.n, "bits": bits, "limbs": 1, "batch": batch, "word_bytes": ring.dtype.itemsize}


def transforms(gpus: Devices, n: int, bits: int) -> Iterator[Case]:
    """Yield the cases of transforms on one GPU and on all GPUs.

    A whole result is compared once. After that only the ends of each part are compared.
    """
    ring, count = ring_of(n, bits), len(gpus)
    with pg.device("cuda:0"):
        whole = ring.random(seed=1)
    expected = whole.ntt()

    one, runs = ends_of_runs(expected, 1), ends_of_runs(expected, count)
    yield Case(ONE, "polygpu", params(ring), whole.ntt, partial(np.array_equal, one), n, ends)
    for order in ("transposed", "natural"):
        a = gpus.random(ring, seed=1, order=order)
        evaluated = a.ntt()
        if not same(evaluated, expected):
            raise Unverified(f"forward on {count} GPUs, n = {n}, {bits} bits, {order} order: wrong values")
        name = f"forward on {count} GPUs, {order} order"
        yield Case(name, "polygpu", params(ring), a.ntt, partial(np.array_equal, runs), n, ends)
        if evaluated.intt(order=order) != a:
            raise Unverified(f"inverse on {count} GPUs, n = {n}, {bits} bits, {order} order: wrong values")
        first = ends(a)
        name = f"inverse on {count} GPUs, {order} order"
        back = partial(evaluated.intt, order=order)
        yield Case(name, "polygpu", params(ring), back, partial(np.array_equal, first), n, ends)
        del a, evaluated, back
        release()


def exchanges(gpus: Devices, n: int) -> Iterator[Case]:
    """Yield the cases of an exchange: each GPU has n / devices words and sends an equal share to each."""
    import cupy

    count = len(gpus)
    share = n // count // count
    numbers = gpus.each(
        lambda i: cupy.arange(count * share, dtype=cupy.uint64) + np.uint64(i * count * share)
    )
    source = [x.reshape(count, share) for x in numbers]
    target = gpus.each(lambda i: cupy.zeros((count, share), cupy.uint64))

    def by_copies() -> list[Any]:
        copy((source[i][j], target[j][i]) for i, j in product(range(count), repeat=2) if i != j)
        return target

    def verify(_: Any) -> bool:
        return all(
            int(target[j][i][0]) == (i * count + j) * share
            and int(target[j][i][-1]) == (i * count + j + 1) * share - 1
            for i, j in product(range(count), repeat=2)
            if i != j
        )

    def values(parts: list[Any]) -> NDArray[Any]:
        return np.concatenate([x[:, :512].get().ravel() for x in parts])

    shape: dict[str, int | str] = {"n": n, "bits": 64, "limbs": 1, "batch": 1, "word_bytes": 8}
    work = share * (count - 1)  # words that each GPU sends
    yield Case(f"exchange among {count} GPUs", "polygpu", shape, by_copies, verify, work, values)
    for x in target:
        with x.device:
            x.fill(0)
    from cupy.cuda import nccl

    if not nccl.available:
        print("NCCL: not found by CuPy", flush=True)
        return
    peers = nccl.NcclCommunicator.initAll(list(range(count)))
    streams = gpus.each(lambda i: cupy.cuda.Stream(non_blocking=True))

    def by_nccl() -> list[Any]:
        nccl.groupStart()
        for i, j in product(range(count), repeat=2):
            if i != j:
                with cupy.cuda.Device(i):
                    peers[i].send(source[i][j].data.ptr, share, nccl.NCCL_UINT64, j, streams[i].ptr)
                    peers[i].recv(target[i][j].data.ptr, share, nccl.NCCL_UINT64, j, streams[i].ptr)
        nccl.groupEnd()
        for stream in streams:
            stream.synchronize()
        return target

    yield Case(f"exchange among {count} GPUs", "NCCL", shape, by_nccl, verify, work, values)


def products(gpus: Devices, bits: int) -> Iterator[Case]:
    """Yield the cases of a batch of products, on one GPU and spread over all."""
    n = PRODUCT_DEGREE
    ring = pg.Ring(n, pg.ntt_primes(n, bits=bits)[0])
    batch = PRODUCT_BYTES // (n * ring.dtype.itemsize)
    shape = params(ring, batch)
    with pg.device("cuda:0"):
        a, b = ring.random(batch, seed=1), ring.random(batch, seed=2)
    expected = a * b
    with pg.device("cpu"):
        if a[:2].cpu() * b[:2].cpu() != expected[:2].cpu():
            raise Unverified(f"products of {bits} bits: wrong values")
    one = ends(expected)
    yield Case(
        "products on one GPU", "polygpu", shape, lambda: a * b, partial(np.array_equal, one), batch * n, ends
    )
    x, y = gpus.spread(a), gpus.spread(b)
    if (x * y).gather("cuda:0") != expected:
        raise Unverified(f"products of {bits} bits on {len(gpus)} GPUs: wrong values")

    def values(c: Any) -> NDArray[Any]:
        return np.concatenate([ends(part) for part in c.parts])

    many = values(gpus.spread(expected))
    name = f"products on {len(gpus)} GPUs"
    yield Case(name, "polygpu", shape, lambda: x * y, partial(np.array_equal, many), batch * n, values)


def huge(gpus: Devices) -> Iterator[Case]:
    """Yield the case of a transform that no single GPU holds, verified at random points by Horner's rule."""
    n, count = HUGE, len(gpus)
    ring = ring_of(n, 60)
    assert ring.roots is not None
    (q,), (root,) = ring.moduli, ring.roots
    a = gpus.random(ring, seed=1, order="natural")
    places = random.Random(33).sample(range(n), HUGE_POINTS)
    points = [pow(root, 2 * reverse_bits(k, n) + 1, q) for k in places]
    part, size = pg.Ring(HUGE_ROW, q), n // count
    expected = [0] * HUGE_POINTS

    def values_of_rows(i: int) -> NDArray[Any]:
        """Cut the run of GPU i into rows of HUGE_ROW coefficients; return their values (rows, points)."""
        rows = part.from_residues(a.data[i].reshape(-1, 1, HUGE_ROW))
        return rows(np.array(points, dtype=object))  # type: ignore[no-any-return]

    for i, found in enumerate(gpus.each(values_of_rows)):
        for p, x in enumerate(points):
            step, total = pow(x, HUGE_ROW, q), 0
            for value in reversed(found[:, p].tolist()):
                total = (total * step + int(value)) % q
            expected[p] = (expected[p] + total * pow(x, i * size, q)) % q
    release()

    def values(c: Divided) -> NDArray[Any]:
        return np.array([int(c.data[k // size][0, k % size]) for k in places], dtype=np.uint64)

    def verify(found: NDArray[Any]) -> bool:
        return found.tolist() == expected

    name = f"forward on {count} GPUs, natural order"
    yield Case(name, "polygpu", params(ring), a.ntt, verify, n, values, samples=3)


def by_height(gpus: Devices, n: int, bits: int, log_heights: Sequence[int]) -> None:
    """Print times of transforms with columns of other lengths."""
    timer, ring = AllGpus(len(gpus)), ring_of(n, bits)
    with pg.device("cuda:0"):
        expected = ring.random(seed=1).ntt()
    for order, k in product(("transposed", "natural"), log_heights):
        a = gpus.random(ring, seed=1, order=order, log_height=k)
        right = same(a.ntt(), expected)
        timer.rest()
        took = sorted(timer.elapsed(a.ntt, 1) for _ in range(7))
        inverse = partial(a.ntt().intt, order=order)
        back = sorted(timer.elapsed(inverse, 1) for _ in range(5))
        print(
            f"n = {n}, {bits} bits, {order}, columns of 2^{k}: {took[3] / 1e6:.2f} ms "
            f"(least {took[0] / 1e6:.2f}), back {back[2] / 1e6:.2f}, {'right' if right else 'WRONG'}",
            flush=True,
        )
        del a, inverse
        release()


def lines(count: int) -> tuple[Line, ...]:
    """Return the lines of the table, with the greatest allowed ratios of times.

    They mean that several GPUs are 1.7, 1.25 and 1.9 times as fast as one (transform in transposed order, in
    natural order, products), and that the exchange reaches 0.7 of NCCL's rate.
    """
    made = []
    for way, order, times in (
        ("forward", "transposed", 0.588),
        ("forward", "natural", 0.8),
        ("inverse", "transposed", None),
        ("inverse", "natural", None),
    ):
        op = f"{way} on {count} GPUs, {order} order"
        made.append(Line(op, op, "ms", None, ONE, "one GPU", times))
    both, exchange = f"products on {count} GPUs", f"exchange among {count} GPUs"
    return (
        *made,
        Line(both, both, "ms", None, "products on one GPU", "one GPU", 0.526),
        Line(exchange, exchange, "ms", None, exchange, "NCCL", 1.43, library="NCCL"),
    )


KINDS = {"gpu-scale": LineKind("On several GPUs of one host", "gpu", lines(2))}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section, or several")
    parser.add_argument(
        "--log-heights", type=int, nargs="*", default=[], help="log2 of points of columns to try"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    options = parser.parse_args(arguments)
    gpus = pg.devices()
    degrees = QUICK if options.quick else DEGREES
    if options.log_heights:
        by_height(gpus, degrees[-1], 64, options.log_heights)
        return 0
    groups: dict[str, list[Callable[[], Iterator[Case]]]] = {
        "exchanges": [lambda: exchanges(gpus, degrees[-1])],
        "products": [lambda bits=bits: products(gpus, bits) for bits in (30, 60)],
        "transforms": [
            lambda n=n, bits=bits: transforms(gpus, n, bits) for n, bits in product(degrees, (64, 60))
        ],
        "huge": [] if options.quick else [lambda: huge(gpus)],
    }
    timer, failures = AllGpus(len(gpus)), 0
    for group in (group for name in options.only or SECTIONS for group in groups[name]):
        try:
            with pg.device("cpu"):
                for case in group():
                    row = measure(case, timer)
                    record(row, options.results)
                    rate = 8 * row.work / row.median if "exchange" in row.op else row.ps_per_coefficient
                    print(f"{case}: {row.median / 1e6:.3f} ms, {rate:.2f}", flush=True)
        except Exception as error:
            failures += 1
            print(f"FAILED, {type(error).__name__}: {error}", flush=True)
        forget()
        release()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
