"""Transforms and products on the GPU, compared with a copy and with cuFFT, in one process.

    python -m benchmarks.gpu [--quick] [--only SECTION] [--out DIR]

Batches of 512 MiB do not fit in the card's L2 cache, so each call reads and writes the card's memory. Calls
on smaller batches use several buffers in turn, which together are four times as large as the L2 cache. Single
polynomials stay in the cache, and their rows show what a launch costs. `eff1` of a row is the bandwidth of
reading and writing its coefficients once, divided by the bandwidth of the copy, `copy_gbps`. Both bandwidths
count the bytes read and the bytes written.

SECTION is one of: batches; calls (host time of plain calls, single polynomials in graphs, matrices back to
back, see calls.py); verbs (the host's time for a repeated call of each function, see verbs.py); first (the
first product of a process, see first.py); conversions (bases of moduli and samplers, see conversions.py);
cufft.

A card that works for a long time reaches its power limit and lowers its clock. So it rests before each row,
and some rows are measured again after a load.

Before a result is timed, rows at the beginning, the middle and the end of the batch are compared with the CPU
backend (up to n = 2^17), and random entries are compared with Horner's rule in Python ints. The whole result
is compared with one that the GPU computes in another way.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends.cuda import absence
from polygpu._core.exact.primes import GOLDILOCKS

from . import calls, conversions, first, verbs
from .batches import BABYBEAR, DEVICE, Run, Workload, fill
from .harness import RESULTS, Case, CudaEvents, Row, Timer, measure, print_table, record
from .report import KINDS

BATCH_BYTES = 2**29
PRIME_BITS = (30, 50, 60)
DEGREES = (*(2**k for k in range(10, 18)), 2**20, 2**24)
QUICK = (2**12, 2**14, 2**16)
SINGLE_DEGREES, SINGLE_LIMBS = (2**12, 2**16), (1, 32)  # degrees and limbs of single polynomials
RNS_DEGREE, RNS_LIMBS = 2**16, 32
STRUCTURE_DEGREE = 2**16  # degree for automorphisms and pointwise products
SECTIONS = ("batches", "calls", "verbs", "first", "conversions", "cufft")
LOADED_DEGREES, LOAD_S = (2**12, 2**14, 2**16, 2**20), 1.5  # degrees timed again after a load of LOAD_S s
GALOIS = 5  # Galois element of the automorphism X -> X^5

ORDERS = {
    "forward": "natural to bit-reversed",
    "inverse": "bit-reversed to natural",
    "product": "natural to natural",
}


# ---- what is computed ----


def modulus(n: int, bits: int) -> int:
    """Return the largest prime of this bit length with a transform of degree n.

    If no prime of 30 bits has such a transform, return the prime BabyBear, if it has one.
    """
    try:
        return pg.ntt_primes(n, bits=bits)[0]
    except pg.ParameterError:
        if bits == 30 and BABYBEAR % (2 * n) == 1:
            return BABYBEAR
        raise


def transform_cases(w: Workload) -> Iterator[Case]:
    w.poison(*(s.transform for s in w.sets))
    forward = [partial(s.a.ntt, out=s.transform) for s in w.sets]
    yield w.case("forward", ORDERS["forward"], forward, w.is_forward)
    if w.ring.rows == 1 and w.ring.n in LOADED_DEGREES:
        yield w.case("forward", ORDERS["forward"], forward, w.is_forward, load_s=LOAD_S)
    for s in w.sets:
        s.a.ntt(out=s.transform)
        w.poison(s.result)
    yield w.case(
        "inverse", ORDERS["inverse"], [partial(s.transform.intt, out=s.result) for s in w.sets], w.is_inverse
    )
    w.poison(*(s.result for s in w.sets))
    yield w.case(
        "product", ORDERS["product"], [partial(s.a.mul, s.b, out=s.result) for s in w.sets], w.is_product
    )


def structure_cases(w: Workload) -> Iterator[Case]:
    """Yield the cases of automorphisms of coefficients and of evaluated values, and of pointwise products."""
    n, s = w.ring.n, w.first
    s.a.ntt(out=s.transform)
    back = pow(GALOIS, -1, 2 * n)

    def is_automorphism(values: NDArray[Any]) -> bool:
        moved = GALOIS * np.arange(n) % (2 * n)
        q = np.array(w.ring.moduli, dtype=np.uint64)[:, None]
        x = w.host_a.data.astype(np.uint64)
        expected = np.empty_like(x)
        expected[..., moved % n] = np.where(moved < n, x, (q - x) % q)
        return np.array_equal(values, expected) and s.a.automorphism(GALOIS).automorphism(back) == s.a

    def is_automorphism_of_values(values: NDArray[Any]) -> bool:
        expected = w.host_a.ntt().automorphism(GALOIS).data
        again = s.transform.automorphism(GALOIS).automorphism(back)
        return np.array_equal(values, expected) and again == s.transform

    def is_pointwise_product(values: NDArray[Any]) -> bool:
        x, y = (w.rows(poly).astype(object) for poly in (s.transform, other))
        q = np.array(w.ring.moduli, dtype=object)[:, None]
        return np.array_equal(values, x * y % q) and s.result.intt() == s.a * s.b

    yield w.case("automorphism", "natural", [partial(s.a.automorphism, GALOIS)], is_automorphism)
    yield w.case(
        "automorphism", "bit-reversed", [partial(s.transform.automorphism, GALOIS)], is_automorphism_of_values
    )
    other = s.b.ntt()
    w.poison(s.result)
    yield w.case(
        "pointwise", "bit-reversed", [partial(s.transform.mul, other, out=s.result)], is_pointwise_product
    )


def single_cases(w: Workload) -> Iterator[Case]:
    """Yield the cases of transforms and products of single polynomials.

    They are measured as plain calls, and as one or many calls in a CUDA graph.
    """
    s = w.first
    directions: tuple[tuple[str, pg.Poly, pg.Poly, Run, Callable[[NDArray[Any]], bool]], ...] = (
        ("forward", s.a, s.transform, partial(s.a.ntt, out=s.transform), w.is_forward),
        ("inverse", s.transform, s.result, partial(s.transform.intt, out=s.result), w.is_inverse),
        ("product", s.a, s.result, partial(s.a.mul, s.b, out=s.result), w.is_product),
    )
    for op, _, target, run, verify in directions:
        w.poison(target)
        yield w.case(op, ORDERS[op], [run], verify)

    for (op, source, target, run, verify), count in itertools.product(directions, (1, calls.GRAPH_CALLS)):

        def repeat(_: pg.Poly, run: Run = run, count: int = count) -> pg.Poly:
            return [run() for _ in range(count)][-1]

        replay = pg.capture(repeat, source)
        w.poison(target)
        yield w.case(op, ORDERS[op], [replay], verify, f"CUDA graph of {count}", count)


# ---- what it is compared with ----


def plain_params(n: int, word: str, word_bytes: int, batch: int, order: str) -> dict[str, int | str]:
    return {
        "n": n,
        "word": word,
        "bits": 8 * word_bytes,
        "word_bytes": word_bytes,
        "limbs": 1,
        "batch": batch,
        "order": order,
    }


def copy_cases(n: int) -> Iterator[Case]:
    """Yield the case of a copy of n words of 4 bytes between two arrays."""
    import cupy

    source, target = cupy.empty((1, 1, n), np.uint32), cupy.full((1, 1, n), 2**32 - 1, np.uint32)
    fill(source, [2**32 - 1], 1)

    def run() -> Any:
        cupy.copyto(target, source)
        return target

    yield Case(
        op="copy",
        library="CuPy",
        params=plain_params(n, "u32", 4, 1, "none"),
        run=run,
        verify=lambda _: bool(cupy.array_equal(target, source)),
        work=n,
        values=lambda x: np.asarray(cupy.asnumpy(x[..., :: max(1, n // 2**20)])),
    )


def cufft_cases(n: int, word_bytes: int) -> Iterator[Case]:
    import cupy
    import cupy.fft  # fails here if cuFFT is missing

    real = np.dtype(np.float32 if word_bytes == 8 else np.float64)
    complex_type = np.dtype(np.complex64 if word_bytes == 8 else np.complex128)
    batch = max(1, BATCH_BYTES // (word_bytes * n))
    integers = cupy.empty((batch, 1, 2 * n), np.uint32)
    fill(integers, [2**24 - 1], 3)
    x = ((integers[:, 0] - real.type(2**23)) * real.type(2.0**-23)).astype(real).view(complex_type)
    del integers
    picked = sorted({0, batch // 2, batch - 1})

    def rows(y: Any) -> NDArray[Any]:
        return np.stack([cupy.asnumpy(y[i]) for i in picked])

    def verify(values: NDArray[Any]) -> bool:
        expected = np.fft.fft(rows(x).astype(np.complex128))
        tolerance = 1e-5 if word_bytes == 8 else 1e-13
        return bool(np.abs(values - expected).max() < tolerance * np.abs(expected).max())

    yield Case(
        op="fft",
        library="cuFFT",
        params=plain_params(n, complex_type.name, word_bytes, batch, "natural to natural"),
        run=lambda: cupy.fft.fft(x),
        verify=verify,
        work=batch * n,
        values=rows,
    )
    cupy.fft.config.get_plan_cache().clear()


# ---- the run ----


def programme(
    degrees: Sequence[int], l2_bytes: int
) -> Iterator[tuple[str, str, Callable[[], Iterator[Case]]]]:
    """Yield groups of cases, each with its section and name. The cases of a group share buffers.

    The buffers of a group are freed after the group.
    """

    def batched(
        n: int, moduli: Sequence[int], batch: int | None = None, kind: str = "negacyclic"
    ) -> Workload:
        ring = pg.Ring(n, moduli, kind=kind)
        size = ring.dtype.itemsize * n * len(moduli)
        batch = batch or max(1, BATCH_BYTES // size)
        copies = math.ceil(4 * l2_bytes / (2 * batch * size))
        return Workload(ring, batch, max(1, copies))

    def group(cases: Callable[[Workload], Iterator[Case]], make: Callable[[], Workload]) -> Iterator[Case]:
        yield from cases(make())

    for bits in PRIME_BITS:
        for n in degrees:

            def make(n: int = n, bits: int = bits) -> Workload:
                return batched(n, [modulus(n, bits)])

            yield "batches", f"{bits} bits, n = {n}", partial(group, transform_cases, make)
        for n, limbs in itertools.product(SINGLE_DEGREES, SINGLE_LIMBS):

            def single(n: int = n, bits: int = bits, limbs: int = limbs) -> Workload:
                return Workload(pg.Ring(n, pg.ntt_primes(n, bits=bits, count=limbs)), 1)

            name = f"{bits} bits, n = {n}, one polynomial, limbs: {limbs}"
            yield "calls", f"{name}, host", partial(group, calls.host_cases, single)
            yield "calls", name, partial(group, single_cases, single)

        def ciphertext(bits: int = bits) -> Workload:
            return Workload(pg.Ring(RNS_DEGREE, pg.ntt_primes(RNS_DEGREE, bits=bits, count=RNS_LIMBS)), 2)

        name = f"{bits} bits, n = {RNS_DEGREE}, one ciphertext, limbs: {RNS_LIMBS}"
        yield "calls", name, partial(group, single_cases, ciphertext)

        def structure(bits: int = bits) -> Workload:
            return batched(STRUCTURE_DEGREE, [modulus(STRUCTURE_DEGREE, bits)])

        yield "batches", f"{bits} bits, automorphisms", partial(group, structure_cases, structure)
    for kind, n in itertools.product(("cyclic", "negacyclic"), degrees):
        name, make = f"Goldilocks, {kind}, n = {n}", partial(batched, n, [GOLDILOCKS], kind=kind)
        yield "batches", name, partial(group, transform_cases, make)
    for bits, batch in itertools.product(PRIME_BITS[:2], (None, 1)):

        def rns(bits: int = bits, batch: int | None = batch) -> Workload:
            return batched(RNS_DEGREE, pg.ntt_primes(RNS_DEGREE, bits=bits, count=RNS_LIMBS), batch)

        yield (
            "batches",
            f"{RNS_LIMBS} limbs of {bits} bits, batch {batch or 'in memory'}",
            partial(group, transform_cases, rns),
        )
    yield "calls", "sums of products", partial(calls.sum_cases, DEVICE)
    for size in calls.SQUARES:
        yield "calls", f"matrices of integers, {size}", partial(calls.square_cases, size)
    yield "verbs", "verbs", partial(verbs.cases, DEVICE)
    yield "first", "first products", first.cases
    for bits in PRIME_BITS:
        yield "conversions", f"conversions, {bits} bits", partial(conversions.gpu_cases, DEVICE, bits)
    yield "conversions", "samplers", partial(conversions.sampler_cases, DEVICE, conversions.GPU, few=True)
    for word_bytes, n in itertools.product((8, 16), degrees):
        yield "cufft", f"cuFFT, {word_bytes} bytes, n = {n}", partial(cufft_cases, n, word_bytes)


def with_figures(row: Row, copy_gbps: float) -> Row:
    """Return the row with further figures for the tables.

    These are times in us and, if memory may bound the operation, the share of the copy's bandwidth.
    """
    word_bytes = int(row.params["word_bytes"])
    assert row.minimum is not None
    figures = {"us_median": round(row.median / 1000, 3), "us_min": round(row.minimum / 1000, 3)}
    bound = row.op not in conversions.OPS
    if bound and row.params.get("launch") not in (calls.HOST, calls.BACK_TO_BACK, "first"):
        figures |= {
            "ps_per_coef": round(1000 * row.median / row.work, 3),
            "copy_gbps": round(copy_gbps, 1),
            "eff1": round(2 * word_bytes * row.work / row.median / copy_gbps, 4),
        }
    return dataclasses.replace(row, figures=figures)


def describe(row: Row) -> str:
    p, f = row.params, row.figures
    what = (
        f"{row.library} {row.op}, {p['word']} {p['bits']} bits, n = {p['n']}, {p['limbs']} x {p['batch']}, "
    )
    how = ", ".join(str(p[key]) for key in ("verb", "launch", "cache", "order") if key in p)
    share = f"{f['ps_per_coef']:.2f} ps a coefficient, {f['eff1']:.1%} of copy, " if "eff1" in f else ""
    return f"{what}{how}: {f['us_median']:.2f} us (least {f['us_min']:.2f}), {share}digest {row.digest}"


@pg.device("cpu")  # for the values that results are compared with
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"N = {', '.join(map(str, QUICK))} alone")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section, or several")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    options = parser.parse_args(arguments)
    reason = absence(0)
    if reason is not None:
        print(f"{DEVICE}: {reason}")
        return 1

    import cupy

    timer = CudaEvents()
    machine = timer.machine()
    timers: dict[object, Timer] = {calls.HOST: calls.HostTime(machine), "first": first.Processes(machine)}
    rows: list[Row] = []
    failures = 0

    def failed(what: object, error: Exception) -> None:
        nonlocal failures
        failures += 1
        print(f"{what}: FAILED, {type(error).__name__}: {error}", flush=True)

    def run(name: str, cases: Callable[[], Iterator[Case]]) -> None:
        try:
            for case in cases():
                try:
                    row = measure(case, timers.get(case.params.get("launch"), timer))
                    gbps = rows[0].figures["copy_gbps"] if rows else 8 * row.work / row.median
                    rows.append(with_figures(row, gbps))
                    record(rows[-1], options.out)
                    print(describe(rows[-1]), flush=True)
                except Exception as error:
                    failed(case, error)
        except ImportError as error:
            print(f"{name}: skipped, {error}", flush=True)
        except Exception as error:
            failed(name, error)

    def free() -> None:
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()

    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    run("copy", partial(copy_cases, BATCH_BYTES // 4))
    if not rows:
        print("without the copy's bandwidth there is nothing to compare with")
        return 1
    free()
    for section, name, cases in programme(QUICK if options.quick else DEGREES, int(machine["l2_bytes"])):
        if section in (options.only or SECTIONS):
            run(name, cases)
            free()
    for table in (table for kind in KINDS.values() for table in kind.tables(rows)):
        print_table(table.title, table.header, table.body)
    if failures:
        print(f"{failures} cases failed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
