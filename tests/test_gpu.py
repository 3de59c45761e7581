"""The API on a real GPU: every result bit for bit as on the CPU, at every edge of every word.

`pytest -m gpu` runs these where a GPU answers. Each new shape of a transform compiles for about half a
second, so most rings here share a few degrees. On an H100 each of these parts takes less than 8 minutes:

    pytest -m gpu -k "words or 30_bits or other_words"
    pytest -m gpu -k "50_bits or 60_bits or cyclic_rings"
    pytest -m gpu -k "huge or other_cards or incomplete or flows"
    pytest -m gpu -k "fft or matrices"
    pytest -m gpu -k "not (words or sizes or huge or other_cards or incomplete or flows or fft or matrices)"

The cases of SANITIZED, under each of CUDA's checkers:

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m pytest -m gpu -k sanitizer
    compute-sanitizer --tool racecheck ...; --tool initcheck ...
"""

from __future__ import annotations

import copy
import gc
import itertools
import math
import os
import pickle
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matrices
import numpy as np
import pytest
import test_fft
from hypothesis import given, settings
from hypothesis import strategies as st

import polygpu as pg
from polygpu import Poly, Ring, fft, ntt_primes
from polygpu.backends import cuda, get_backend
from polygpu.backends.cuda.matmul_tiles import RESIDUE_DEPTH, has_digits, matmul_method
from polygpu.backends.cuda.tiles import Card
from polygpu.plans import cache as plan_cache
from polygpu.plans.basis import basis_of
from polygpu.testing import polys, rings

with warnings.catch_warnings():  # CuPy's own, at import
    warnings.simplefilter("ignore")
    ABSENT = cuda.absence(0)
    if ABSENT is None:
        import cupy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(ABSENT is not None, reason=f"no GPU answers: {ABSENT}"),
]

GPU = "cuda:0"
GIB = 2**30
BABYBEAR = 15 * 2**27 + 1
GOLDILOCKS = 2**64 - 2**32 + 1
KINDS = ("negacyclic", "cyclic")

on_every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _room() -> Iterator[None]:
    """Every test starts with the card's memory free."""
    yield
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


# ---- values, and what it means to be the same ----


def draw(ring: Ring, batch: tuple[int, ...] = (), seed: int = 0) -> Poly:
    """On the host: uniform residues and many at the edges; the first polynomial of a batch is all Q - 1."""
    if ring.basis.wide:
        source = random.Random(f"{ring!r} {batch} {seed}")
        edges = [0, 1, ring.modulus // 2, ring.modulus - 1]
        values = np.empty(math.prod(batch) * ring.n, dtype=object)
        for i in range(len(values)):
            values[i] = source.choice(edges) if source.random() < 0.3 else source.randrange(ring.modulus)
        if batch:
            values[: ring.n] = ring.modulus - 1
        return ring(values.reshape(*batch, ring.n))
    rng = np.random.default_rng([seed, ring.n, *batch])
    data = np.empty((*batch, ring.rows, ring.n), ring.dtype)
    for i, q in enumerate(ring.moduli):
        x = rng.integers(0, q - 1, size=(*batch, ring.n), dtype=np.uint64, endpoint=True)
        edges_of_limb = np.array([0, 1, q // 2, q - 1], dtype=np.uint64)
        at = rng.random(x.shape) < 0.2
        x[at] = rng.choice(edges_of_limb, size=int(at.sum()))
        data[..., i, :] = x
        if batch and data.size:
            data[(0,) * len(batch)][i] = q - 1
    return ring.from_residues(data)


def same(on_gpu: Poly, on_cpu: Poly) -> None:
    assert on_gpu.device == GPU and on_cpu.device == "cpu"
    assert (on_gpu.ring, on_gpu.domain, on_gpu.shape) == (on_cpu.ring, on_cpu.domain, on_cpu.shape)
    assert type(on_gpu.data) is cupy.ndarray and on_gpu.data.flags.c_contiguous
    assert on_gpu.data.dtype == on_cpu.data.dtype
    got = cupy.asnumpy(on_gpu.data)
    if not np.array_equal(got, on_cpu.data):
        wrong = np.argwhere(got != on_cpu.data)
        at = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {got.size} differ, first {got[at]} not {on_cpu.data[at]} at {at}"
        )


def check(compute: Callable[..., Poly], *operands: Poly) -> None:
    """The same call on the host and on the GPU; operands stay as they were."""
    there = [x.to(GPU) for x in operands]
    same(compute(*there), compute(*operands))
    for moved, kept in zip(there, operands, strict=True):
        same(moved, kept)


def check_ring(ring: Ring, batch: tuple[int, ...] = (3,)) -> None:
    """Every operation of a ring once, on random coefficients with edges and on the largest."""
    a, b = draw(ring, batch, 1), draw(ring, batch[-1:], 2)
    for x, y in ((a, b), (a, a)):
        check(lambda x, y: x + y, x, y)
        check(lambda x, y: x - y, x, y)
        for method in ("auto", "ntt"):
            check(partial(Poly.mul, product=method), x, y)
    check(lambda x: -x, a)
    check(lambda x: x * (ring.modulus - 2), a)
    check(lambda x: x * x, a)
    check(lambda x: x.sum(), a)
    g = next(g for g in range(ring.n // 2 + 3, 4 * ring.n + 4) if math.gcd(g, 2 * ring.n) == 1)
    check(lambda x: x.automorphism(g), a)
    check(lambda x: x.mul_monomial(-3), a)
    if not ring.has_eval:
        if not ring.basis.wide:
            check_methods(a, b)
        return
    check_transform(ring, a)
    e, f = a.ntt(), b.ntt()
    check(lambda x, y: x + y, e, f)
    check(lambda x, y: x * y, e, f)
    check(pg.fma, e, f, f)
    check(lambda x: x.automorphism(g), e)


def check_methods(a: Poly, b: Poly) -> None:
    """Products by auxiliary primes and by FFT, which the card chooses between."""
    for x, y in ((a, b), (a, a)):
        expected = x.mul(y, product="ntt")
        for method in ("ntt", "fft"):
            same(x.to(GPU).mul(y.to(GPU), product=method), expected)  # type: ignore[arg-type]


def check_transform(ring: Ring, a: Poly) -> None:
    check(Poly.ntt, a)
    check(Poly.intt, a.ntt())
    check(Poly.intt, Poly(ring, a.data, "eval"))  # the largest values in that domain too


def prime(n: int, bits: int, kind: Any = "negacyclic") -> int:
    """The largest of that size with a transform; skips where there is none."""
    try:
        return ntt_primes(n, bits, kind=kind)[0]
    except pg.ParameterError as error:
        pytest.skip(str(error))


# ---- every word, every size ----


@on_every_kind
@pytest.mark.parametrize("bits", [17, 29, 30, 31, 32, 45, 46, 49, 50, 51, 60, 61, 62, 63, 64])
@pytest.mark.parametrize("n", [64, 1024])
def test_words_at_their_edges(n: int, bits: int, kind: Any) -> None:
    check_ring(Ring(n, prime(n, bits, kind), kind=kind), (3,))


@pytest.mark.parametrize(
    ("n", "q", "kind"),
    [
        (1024, GOLDILOCKS, "negacyclic"),
        (1024, GOLDILOCKS, "cyclic"),
        (1024, BABYBEAR, "negacyclic"),
        (64, 127 * 2**24 + 1, "cyclic"),
        (1024, 12289, "negacyclic"),
        (256, 8380417, "negacyclic"),
        (1, 2, "cyclic"),
        (1, 17, "negacyclic"),
        (2, 5, "negacyclic"),
        (2, 3, "cyclic"),
    ],
)
def test_words_of_known_rings(n: int, q: int, kind: Any) -> None:
    check_ring(Ring(n, q, kind=kind))


@pytest.mark.parametrize("root", ["generator", 5])
def test_words_with_another_root(root: Any) -> None:
    q = prime(64, 30)
    given_root = root if root == "generator" else pow(Ring(64, q).roots[0], 5, q)  # type: ignore[index]
    check_ring(Ring(64, q, root=given_root))


def _sizes(bits: int, logs: range) -> list[Any]:
    return [pytest.param(bits, log_n, id=f"{bits}-{log_n}") for log_n in logs]


@pytest.mark.parametrize(("bits", "log_n"), _sizes(30, range(21)))
def test_sizes_of_30_bits(bits: int, log_n: int) -> None:
    _check_size(bits, log_n)


@pytest.mark.parametrize(("bits", "log_n"), _sizes(50, range(21)))
def test_sizes_of_50_bits(bits: int, log_n: int) -> None:
    _check_size(bits, log_n)


@pytest.mark.parametrize(("bits", "log_n"), _sizes(60, range(21)))
def test_sizes_of_60_bits(bits: int, log_n: int) -> None:
    _check_size(bits, log_n)


@pytest.mark.parametrize("bits", [30, 31, 32, 50, 60, 62, 64])
@pytest.mark.parametrize("log_n", [2, 4, 5, 7, 8, 9, 10, 11])
def test_sizes_of_many_rows(bits: int, log_n: int) -> None:
    """As many as fill the card, and three: other tiles than those of few."""
    ring = Ring(1 << log_n, ntt_primes(1 << log_n, bits)[:1])
    backend = get_backend(GPU)
    batch = (backend.card.multiprocessors << 12 >> log_n) + 3  # type: ignore[attr-defined]
    a, b = draw(ring, (batch,), 1), draw(ring, (batch,), 2)
    check(Poly.ntt, a)
    check(Poly.intt, a.ntt())
    check(Poly.mul, a, b)


@pytest.mark.parametrize("bits", [31, 32, 64])
@pytest.mark.parametrize("log_n", [13, 14, 15, 17])
def test_sizes_of_other_words(bits: int, log_n: int) -> None:
    _check_size(bits, log_n)


@pytest.mark.parametrize("bits", [30, 50, 60])
@pytest.mark.parametrize("log_n", [1, 2, 3, 12, 14, 16, 20])
def test_sizes_of_cyclic_rings(bits: int, log_n: int) -> None:
    _check_size(bits, log_n, "cyclic")


@pytest.mark.parametrize(
    "bits",
    [(60, 50, 50, 60), (30, 62, 31, 31, 50), (64, 30, 50), (30, 31, 32), (30,) * 70 + (31,)],
    ids=lambda bits: "-".join(map(str, bits[-5:])),
)
@pytest.mark.parametrize("log_n", [1, 6, 9, 12, 13, 16])
@pytest.mark.parametrize("doubles", ["fast", "slow"])
def test_limbs_of_several_words(
    bits: tuple[int, ...], log_n: int, doubles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each limb in its own word: groups of limbs among the rows of others, parts of a ring, joined rings."""
    n = 1 << log_n
    backend: Any = get_backend(GPU)
    if doubles == "slow":  # small limbs take 32-bit integers in 64-bit memory
        monkeypatch.setattr(backend, "card", replace(backend.card, capability=(8, 9)))
    primes = {size: iter(ntt_primes(n, size, bits.count(size))) for size in set(bits)}
    ring = Ring(n, [next(primes[size]) for size in bits])
    batch = (5,) if n < 1 << 13 else (2,)
    for part in (ring, ring[::-1], ring[1:], ring[1:].join(ring[:1])):
        a, b = draw(part, batch, 1), draw(part, batch, 2)
        check_transform(part, a)
        check(Poly.mul, a, b)
        check(Poly.mul, a, b[0])
        with filled_card():
            check(Poly.ntt, a)
            check(Poly.intt, a.ntt())


def _check_size(bits: int, log_n: int, kind: Any = "negacyclic") -> None:
    n = 1 << log_n
    ring = Ring(n, prime(n, bits, kind), kind=kind)
    a, b = (draw(ring, (5,) if log_n < 14 else (2,), seed) for seed in (1, 2))
    check_transform(ring, a)
    check(Poly.mul, a, b)
    if 12 <= log_n <= 18:  # as one of many rows
        with filled_card():
            check_transform(ring, a)
            check(Poly.mul, a, b)


def noted_kernels(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are launched from now on."""
    backend: Any = get_backend(GPU)
    kernel, names = backend._kernel, set[str]()

    def noted(launch: Any) -> Any:
        names.add(launch.kernel.partition("<")[0])
        return kernel(launch)

    monkeypatch.setattr(backend, "_kernel", noted)
    return names


@contextmanager
def filled_card(**changes: Any) -> Iterator[None]:
    """A card that few rows fill: they take the kernels of many."""
    backend: Any = get_backend(GPU)
    card = backend.card
    backend.card = replace(card, multiprocessors=1, **changes)
    try:
        yield
    finally:
        backend.card = card


@pytest.mark.parametrize(
    ("bits", "log_n", "kind"),
    [
        (30, 22, "negacyclic"),
        (50, 22, "negacyclic"),
        (60, 22, "cyclic"),
        (31, 24, "negacyclic"),
        (50, 24, "negacyclic"),
        (60, 24, "negacyclic"),
        (31, 25, "cyclic"),
        (60, 25, "negacyclic"),
    ],
)
def test_huge_by_horner(bits: int, log_n: int, kind: Any) -> None:
    """Values at random points of the domain, by Horner's rule in Python ints."""
    n = 1 << log_n
    q = BABYBEAR if bits == 31 else prime(n, bits, kind)
    ring = Ring(n, q, kind=kind)
    assert ring.roots is not None
    (root,) = ring.roots
    assert pow(root, n, q) == (q - 1 if kind == "negacyclic" else 1)
    a, b = draw(ring, seed=1).to(GPU), draw(ring, seed=2).to(GPU)
    evaluated = a.ntt()
    for k in random.Random(log_n).sample(range(n), 1 if log_n > 22 else 3):
        at = int(f"{k:0{log_n}b}"[::-1], 2)
        x = pow(root, 2 * at + 1 if kind == "negacyclic" else at, q)
        value = horner(a, x)
        assert int(evaluated.data[0, k]) == value
    assert evaluated.intt() == a
    assert horner(a * b, x) == value * horner(b, x) % q


def horner(poly: Poly, x: int) -> int:
    """The value at x of the only row."""
    (q,), total = poly.ring.moduli, 0
    for c in reversed(cupy.asnumpy(poly.data[0]).tolist()):
        total = (total * x + c) % q
    return total


# Compute capability and shared memory of a block. Their launches run on any newer card.
CARDS = {"T4": Card((7, 5), 64 << 10), "L40S": Card((8, 9), 99 << 10)}


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("bits", "log_n"), [(30, 14), (30, 17), (50, 13), (50, 17), (60, 14), (60, 23)])
def test_launches_of_other_cards(card: str, bits: int, log_n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = get_backend(GPU)
    if CARDS[card].shared_bytes > backend.card.shared_bytes:
        pytest.skip("this card has less shared memory")
    monkeypatch.setattr(backend, "card", CARDS[card])
    n = 1 << log_n
    # Tables depend on the launch: a prime for each card that no other test uses.
    q = ntt_primes(n, bits, 6)[4 + list(CARDS).index(card)]
    ring = Ring(n, q)
    a, b = draw(ring, (2,), 1), draw(ring, (2,), 2)
    check(Poly.ntt, a)
    check(Poly.intt, a.ntt())
    check(Poly.mul, a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bits", "log_n", "batch", "limbs"),
    [
        (30, 16, 161, 1),
        (31, 16, 100, 2),
        (32, 17, 81, 1),
        (30, 20, 9, 1),
        (30, 24, 1, 1),
        (50, 15, 201, 1),
        (50, 15, 67, 3),
        (50, 20, 5, 1),
        (50, 24, 1, 1),
        (60, 15, 330, 1),
        (60, 16, 31, 3),
        (61, 17, 51, 1),
        (64, 16, 81, 1),
    ],
)
def test_flows(
    bits: int, log_n: int, batch: int, limbs: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes in one launch: as in two launches, bit for bit, and some rows as on the host.

    Such a launch takes batches from four fifths of the cache on, counted in whole blocks (flow_lag). The
    batches above are enough for 50 MiB, an H100's; a larger cache gets larger ones.
    """
    n = 1 << log_n
    backend: Any = get_backend(GPU)
    row_bytes = (4 if bits <= 32 else 8) << log_n
    batch = max(batch, math.ceil((0.8 * backend.card.l2_bytes / row_bytes + 2) / limbs))
    if bits == 30 and log_n == 24:
        bits = 31
    try:
        ring = Ring(n, ntt_primes(n, bits, limbs, kind=kind), kind=kind)
    except pg.ParameterError as error:
        pytest.skip(str(error))
    names = noted_kernels(monkeypatch)
    with pg.device("cuda"):
        x = ring.from_residues(_residues(ring, batch))
    found = {"ntt": x.ntt(), "intt": Poly(ring, x.data, "eval").intt()}
    assert names >= {"ntt_forward_flow", "ntt_inverse_flow"}
    names.clear()
    monkeypatch.setattr(backend, "card", replace(backend.card, l2_bytes=0))  # nothing flows through no cache
    assert x.ntt() == found["ntt"] and (Poly(ring, x.data, "eval").intt()) == found["intt"]
    assert found["ntt"].intt() == x
    assert not any("flow" in name for name in names)
    for row in {0, batch // 2, batch - 1} if log_n <= 20 else ():
        same(found["ntt"][row], x[row].cpu().ntt())
        same(found["intt"][row], Poly(ring, x[row].cpu().data, "eval").intt())


def _residues(ring: Ring, batch: int) -> Any:
    """Made on the card; the last row is all q - 1."""
    data = cupy.empty((batch, ring.rows, ring.n), ring.dtype)
    moduli = cupy.asarray(np.array([q % 2**64 for q in ring.moduli], np.uint64))
    fill = cupy.ElementwiseKernel(
        "raw uint64 q, uint64 n, uint64 limbs",
        "T x",
        "unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull; z ^= z >> 29; z *= 0xbf58476d1ce4e5b9ull;"
        "x = (T)((z ^ (z >> 32)) % q[i / n % limbs])",
        "test_residues",
    )
    fill(moduli, np.uint64(ring.n), np.uint64(ring.rows), data)
    data[-1] = (moduli - np.uint64(1)).astype(ring.dtype)[:, None]
    return data


# ---- other rings ----


def _halved(n: int, bits: int, layers: int) -> int:
    """A prime whose transform of degree n stops `layers` layers early."""
    order = 2 * n >> layers
    return next(q for q in ntt_primes(order // 2, bits, 50) if (q - 1) % (2 * order))


@pytest.mark.parametrize(
    ("n", "moduli", "kind"),
    [
        (256, 3329, "negacyclic"),
        (512, 3329, "negacyclic"),
        (1024, 3329, "negacyclic"),
        (512, 3329, "cyclic"),
        (16, 41, "cyclic"),
        (16, [17, 97], "negacyclic"),
        (16, 41, "negacyclic"),
        (16, 5, "negacyclic"),
        (8, 7, "negacyclic"),
        (4, 7, "negacyclic"),
        (2, 3, "negacyclic"),
        (64, _halved(64, 50, 1), "negacyclic"),
        (64, _halved(64, 60, 2), "negacyclic"),
        (64, _halved(64, 64, 3), "negacyclic"),
        (64, _halved(64, 32, 2), "negacyclic"),
    ],
)
def test_incomplete_transforms(n: int, moduli: Any, kind: Any) -> None:
    ring = Ring(n, moduli, kind=kind)
    assert ring.leaf_size not in (1, None)
    check_ring(ring, (2, 3))
    a, b = draw(ring, (3, 1), 1).ntt(), draw(ring, (2,), 2).ntt()
    check(lambda x, y: x * y, a, b)
    check(lambda x: x * x, a)
    check(lambda x, y: pg.dot(x, y, axis=0), a, b)


@pytest.mark.parametrize(
    ("log_n", "bits", "layers"),
    [(16, 17, 1), (17, 17, 2), (18, 17, 3), (15, 60, 1), (17, 50, 2), (18, 60, 3)],
)
def test_incomplete_long_transforms(log_n: int, bits: int, layers: int) -> None:
    n = 1 << log_n
    ring = Ring(n, 65537 if bits == 17 else _halved(n, bits, layers))
    assert ring.leaf_size == 1 << layers
    a, b = draw(ring, (2,), 1), draw(ring, (2,), 2)
    check_transform(ring, a)
    check(Poly.mul, a, b)


@pytest.mark.parametrize(
    ("n", "moduli", "kind"),
    [
        (64, ntt_primes(64, 30, 3), "negacyclic"),
        (64, ntt_primes(64, 50, 3), "negacyclic"),
        (64, ntt_primes(64, 60, 5, "cyclic"), "cyclic"),
        (64, ntt_primes(64, 29, 2) + ntt_primes(64, 31, 2), "negacyclic"),
        (64, ntt_primes(64, 50, 2) + ntt_primes(64, 30, 2) + ntt_primes(64, 20), "negacyclic"),
        (64, [q for bits in (20, 50, 64) for q in ntt_primes(64, bits)], "negacyclic"),
        (1024, ntt_primes(1024, 30, 32), "negacyclic"),
        (1024, ntt_primes(1024, 50, 32), "negacyclic"),
        (2**16, ntt_primes(2**16, 30, 5), "negacyclic"),
        (2**16, ntt_primes(2**16, 50, 3), "negacyclic"),
        (4, ntt_primes(4, 20, 300), "negacyclic"),
    ],
)
def test_rns(n: int, moduli: Any, kind: Any) -> None:
    ring = Ring(n, moduli, kind=kind)
    check_ring(ring, (3,))
    a = draw(ring, (2,))
    if n * len(moduli) <= 4096:
        assert a.to(GPU).to_bigints().tolist() == a.to_bigints().tolist()


AUXILIARY = {
    "2^32": (64, 2**32, "negacyclic"),
    "2^32 cyclic": (64, 2**32, "cyclic"),
    "2^64": (64, 2**64, "negacyclic"),
    "2^64, n = 12, cyclic": (12, 2**64, "cyclic"),
    "2^64 - 1, n = 9": (9, 2**64 - 1, "negacyclic"),
    "2^32 - 1, n = 5": (5, 2**32 - 1, "cyclic"),
    "2": (64, 2, "negacyclic"),
    "3, n = 4": (4, 3, "cyclic"),
    "composite": (64, 10**9, "negacyclic"),
    "unfriendly prime": (64, 1_000_003, "negacyclic"),
    "unfriendly prime, 61 bits, n = 6": (6, 2**61 - 1, "cyclic"),
    "n = 1, 2^64": (1, 2**64, "negacyclic"),
    "n = 31": (31, 2**31 - 1, "negacyclic"),
    "n = 33": (33, 10**18 + 2, "negacyclic"),
    "RNS with 2^64": (6, [2**64, 3, 2**64 - 59], "cyclic"),
    "RNS of small ones": (8, [2**20, 97, 3**5], "negacyclic"),
    "long": (2**15, 2**60, "negacyclic"),
    "long, n = 3 * 2^13": (3 * 2**13, 2**64, "negacyclic"),
}


@pytest.mark.parametrize("name", AUXILIARY)
def test_auxiliary_products(name: str) -> None:
    n, moduli, kind = AUXILIARY[name]
    check_ring(Ring(n, moduli, kind=kind), (2, 3) if n < 1000 else (2,))  # type: ignore[arg-type]


@pytest.mark.parametrize("units", [1, 2, 5])
def test_auxiliary_products_in_parts(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch is multiplied a part at a time."""
    monkeypatch.setattr(cuda.multiply, "_CHUNK_BYTES", units * 8 * 3 * 128)
    for moduli in (2**64, [2**64, 3, 2**64 - 59], 10**9):
        ring = Ring(33, moduli, product="ntt")
        check(Poly.mul, draw(ring, (2, 3), 1), draw(ring, (3,), 2))
        check(Poly.mul, draw(ring, (2, 1), 1), draw(ring, (1, 4), 2))


@pytest.mark.parametrize(
    ("n", "q", "kind"),
    [
        (8, 2**65, "negacyclic"),
        (61, 2**128, "negacyclic"),
        (16, 2**200 - 75, "cyclic"),
        (6, 10**40, "cyclic"),
        (8, ntt_primes(8, 100)[0], "negacyclic"),
        (16, ntt_primes(16, 128, kind="cyclic")[0], "cyclic"),
    ],
)
def test_wide_moduli(n: int, q: int, kind: Any) -> None:
    check_ring(Ring(n, q, kind=kind), (2,))


@settings(max_examples=40)
@given(rings(max_degree=16), st.data())
def test_drawn_rings(ring: Ring, data: st.DataObject) -> None:
    a = data.draw(polys(ring, domain="coef"))
    b = data.draw(polys(ring, batch=(), domain="coef"))
    for compute in (Poly.add, Poly.sub, Poly.mul):
        check(compute, a, b)
    if ring.has_eval:
        check_transform(ring, a)
        check(Poly.mul, a.ntt(), b.ntt())
        check(pg.fma, a.ntt(), b.ntt(), a.ntt())


# What the checkers of CUDA look at, by name: every kernel, every word, tiles that are full, ragged or long,
# as rows of a batch that fills the card; few rows; flows.
SANITIZED: dict[str, tuple[Callable[[], Ring], tuple[int, ...]]] = {
    "u32, 3 rows": (lambda: Ring(64, prime(64, 30)), (3,)),
    "u32 of 31 bits": (lambda: Ring(64, prime(64, 31)), (3,)),
    "u32 of 32 bits": (lambda: Ring(64, prime(64, 32)), (3,)),
    "f64": (lambda: Ring(64, prime(64, 50)), (3,)),
    "u64": (lambda: Ring(64, prime(64, 60)), (3,)),
    "u64 of 64 bits": (lambda: Ring(64, prime(64, 64)), (3,)),
    "cyclic": (lambda: Ring(64, prime(64, 30, "cyclic"), kind="cyclic"), (3,)),
    "2 points": (lambda: Ring(2, 5), (67,)),
    "1 point": (lambda: Ring(1, 17), (3,)),
    "RNS": (lambda: Ring(64, ntt_primes(64, 50, 3)), (2, 3)),
    "RNS of unlike primes": (lambda: Ring(64, [q for b in (20, 50, 64) for q in ntt_primes(64, b)]), (3,)),
    "u32 2^12": (lambda: Ring(2**12, prime(2**12, 30)), (2,)),
    "f64 2^12": (lambda: Ring(2**12, prime(2**12, 50)), (2,)),
    "u64 2^12": (lambda: Ring(2**12, prime(2**12, 60)), (2,)),
    "u32 2^14": (lambda: Ring(2**14, prime(2**14, 30)), (2,)),
    "f64 2^14": (lambda: Ring(2**14, prime(2**14, 50)), (1,)),
    "u64 2^14": (lambda: Ring(2**14, prime(2**14, 60)), (1,)),
    "u32 2^16, two passes": (lambda: Ring(2**16, prime(2**16, 30)), (1,)),
    "f64 2^15, two passes": (lambda: Ring(2**15, prime(2**15, 50)), (1,)),
    "u64 2^15, two passes": (lambda: Ring(2**15, prime(2**15, 60)), (1,)),
    "u32 2^16, a flow": (lambda: Ring(2**16, prime(2**16, 30)), (13,)),
    "f64 2^15, a flow": (lambda: Ring(2**15, prime(2**15, 50)), (17,)),
    "u64 2^16, a flow": (lambda: Ring(2**16, prime(2**16, 60)), (9,)),
    "u32 2^13, few rows": (lambda: Ring(2**13, prime(2**13, 30)), (2,)),
    "u64 2^12, few rows": (lambda: Ring(2**12, prime(2**12, 60)), (3,)),
    "leaves of 2": (lambda: Ring(256, 3329), (2, 3)),
    "leaves of 4": (lambda: Ring(512, 3329), (2,)),
    "leaves of 2, 60 bits": (lambda: Ring(64, _halved(64, 60, 1)), (2, 3)),
    "one leaf": (lambda: Ring(2, 3), (3,)),
    "2^64": (lambda: Ring(64, 2**64), (2, 3)),
    "2^64, n = 33": (lambda: Ring(33, 2**64), (2,)),
    "FFT, 1 digit": (lambda: Ring(64, 3329, product="fft"), (35,)),
    "FFT, 1 digit, folded": (lambda: Ring(20, 3331, kind="cyclic", product="fft"), (3,)),
    "FFT, 2 digits": (lambda: Ring(64, 2**32 - 5, product="fft"), (3,)),
    "FFT, 4 digits": (lambda: Ring(64, [2**64, 3, 2**61 - 1], product="fft"), (2, 3)),
    "FFT, 4 digits, folded": (lambda: Ring(500, 2**64 - 59, product="fft"), (3,)),
    "FFT of 2^13, in passes": (lambda: Ring(2**13, 2**64, product="fft"), (2,)),
    "RNS with 2^64, cyclic": (lambda: Ring(6, [2**64, 3, 2**64 - 59], kind="cyclic"), (2,)),
}


@pytest.mark.parametrize("name", SANITIZED)
def test_sanitizer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SANITIZED) <= 38
    make, batch = SANITIZED[name]
    ring = make()
    names = noted_kernels(monkeypatch)
    small = {"l2_bytes": 4 << 20} if "flow" in name else {}  # few rows are many for a small cache
    with nullcontext() if "few" in name else filled_card(**small):
        check_ring(ring, batch)
    assert ("flow" in name) == ("ntt_forward_flow" in names) == ("ntt_inverse_flow" in names)
    a, b = draw(ring, (2, 1), 1), draw(ring, (3,), 2)
    if ring.n <= 512:
        check(lambda x, y: x * y - x, a, b)
        integers = np.array([[-(2**63), 2**63 - 1], [0, -1]])[:, : ring.n]
        same(ring(cupy.asarray(integers)), ring(integers))


# ---- products by FFT ----

# Of 1, 2 and more digits, in words of 32 and 64 bits.
DIGITS: list[Any] = [3329, 2**31 - 1, [3, 2**32 - 5], 2**40 - 87, [2**64, 3, 2**61 - 1], 2**64 - 59]


def edges(ring: Ring, batch: tuple[int, ...], seed: int) -> Poly:
    """On the host: the first rows have all their residues at q/2, around it in turns and at q - 1."""
    a = draw(ring, batch, seed)
    rows = a.data.reshape(-1, ring.rows, ring.n)
    for limb, q in enumerate(ring.moduli):
        half, other = q // 2, (q // 2 + 1) % q
        for row, (even, odd) in zip(rows, ((half, half), (half, other), (q - 1, q - 1)), strict=False):
            row[limb, ::2], row[limb, 1::2] = even, odd
    return a


def check_products_by_fft(ring: Ring, batch: tuple[int, ...]) -> None:
    check_methods(edges(ring, batch, 1), edges(ring, batch[-1:], 2))


@pytest.mark.parametrize("moduli", DIGITS, ids=str)
@pytest.mark.parametrize("log_n", range(17))
def test_products_by_fft(log_n: int, moduli: Any) -> None:
    """In one kernel as far as that goes, and in passes; of powers of two, and folded."""
    n = 1 << log_n
    batch = (5, 7) if log_n < 10 else (5,)
    check_products_by_fft(Ring(n, moduli), batch)
    check_products_by_fft(Ring(n, moduli, kind="cyclic"), batch)
    if 3 <= log_n < 16:
        check_products_by_fft(Ring(n + 3, moduli), batch)


@pytest.mark.parametrize("moduli", DIGITS, ids=str)
@pytest.mark.parametrize("n", [20, 512, 1000, 2**13])
def test_products_by_fft_in_passes(n: int, moduli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.multiply, "fft_tile", lambda *_: None)
    names = noted_kernels(monkeypatch)
    check_products_by_fft(Ring(n, moduli, product="fft"), (2, 3))
    assert {"fft_split", "fft_multiply", "fft_compose"} <= names and "fft_product" not in names


@pytest.mark.parametrize("card", CARDS)
def test_products_by_fft_on_smaller_cards(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = get_backend(GPU)
    if CARDS[card].shared_bytes > backend.card.shared_bytes:
        pytest.skip("this card has less shared memory")
    monkeypatch.setattr(backend, "card", CARDS[card])
    for log_n in (6, 9, 10, 11, 12, 13):
        for q in (3329, 2**32 - 5, 2**64):
            check_products_by_fft(Ring(1 << log_n, q), (3,))


@pytest.mark.parametrize(("n", "q"), [(4096, 2**32), (2**13, 2**64), (2**16, 2**64 - 59)])
def test_products_by_fft_of_many_rows(n: int, q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More units than one part takes, and than multiprocessors: each as alone."""
    monkeypatch.setattr(cuda.multiply, "_CHUNK_BYTES", 1 << 26)
    ring = Ring(n, q, product="fft")
    batch = (1 << 24) // n + 3
    with pg.device("cuda"):
        x = ring.from_residues(_residues(ring, batch))
    constant = edges(ring, (1,), 3)
    product, square = x * constant.to(GPU), x * x
    for row in {0, 1, batch // 2, batch - 2, batch - 1}:
        same(product[row], x[row].cpu().mul(constant[0], product="ntt"))
        same(square[row], x[row].cpu().mul(x[row].cpu(), product="ntt"))


def test_products_by_fft_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch is multiplied a part at a time; operands broadcast."""
    monkeypatch.setattr(cuda.multiply, "fft_tile", lambda *_: None)
    for moduli in (2**64, [2**64, 3, 2**64 - 59], 10**9):
        ring = Ring(33, moduli, product="fft")
        found: Any = ring.product_plan()
        for units in (1, 2, 5):
            monkeypatch.setattr(
                cuda.multiply, "_CHUNK_BYTES", units * 16 * found.points * (2 * found.digits + found.sums)
            )
            for left, right in (((2, 3), (3,)), ((2, 1), (1, 4))):
                a, b = edges(ring, left, 1), edges(ring, right, 2)
                same(a.to(GPU) * b.to(GPU), a.mul(b, product="ntt"))


@settings(max_examples=40)
@given(rings(max_degree=1024, max_bits=64), st.data())
def test_drawn_products_by_fft(ring: Ring, data: st.DataObject) -> None:
    a, b = data.draw(polys(ring, domain="coef")), data.draw(polys(ring, batch=(), domain="coef"))
    same(a.to(GPU).mul(b.to(GPU), product="fft"), a.mul(b, product="ntt"))


# ---- Fourier transforms ----

BOUND = {np.complex64: 2.0**-21, np.complex128: 2.0**-50}  # relative, in the 2-norm of a row
BOUND_OF_64 = {np.complex64: 4 * 2.0**-24, np.complex128: 4 * 2.0**-53}

on_every_type = pytest.mark.parametrize("dtype", BOUND, ids=lambda dtype: dtype.__name__)


def complex_rows(shape: tuple[int, ...], dtype: Any, seed: int = 1) -> Any:
    """On the host."""
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(dtype)


def close(found: Any, expected: Any, bound: float) -> None:
    wrong = np.linalg.norm((cupy.asnumpy(found) - expected).astype(np.clongdouble), axis=-1)
    assert np.all(wrong < bound * np.linalg.norm(expected, axis=-1))


def exact_transform(x: Any, inverse: bool = False) -> Any:
    return (np.fft.ifft if inverse else np.fft.fft)(x.astype(np.clongdouble))


def exact_convolution(a: Any, b: Any) -> Any:
    return exact_transform(exact_transform(a) * exact_transform(b), True)


@on_every_type
@pytest.mark.parametrize("log_n", range(13))
def test_ffts(log_n: int, dtype: Any) -> None:
    """Batches that fill blocks and that do not: a row's bits are the same in each, and in place."""
    n = 1 << log_n
    x = complex_rows((1027, n), dtype)
    there = cupy.asarray(x)
    for inverse in (False, True):
        found = fft.fft(there, inverse)
        assert type(found) is cupy.ndarray and found.dtype == dtype
        close(found, exact_transform(x, inverse), BOUND_OF_64[dtype] if n == 64 else BOUND[dtype])
        for rows in (1, 5, 33, 1027):
            y = cupy.asarray(x[:rows])
            assert fft.fft(y, inverse, out=y) is y
            assert bool((y == found[:rows]).all())
    assert bool((there == cupy.asarray(x)).all())


@on_every_type
@pytest.mark.parametrize("inverse", [False, True])
def test_64_points_by_the_definition(dtype: Any, inverse: bool) -> None:
    x = test_fft.rows_of_64(dtype)
    found = cupy.asnumpy(fft.fft64(cupy.asarray(x), inverse))
    assert max(test_fft.errors_by_definition(x, found, inverse)) <= test_fft.SHORT[dtype]


@on_every_type
def test_ffts_of_a_million_rows(dtype: Any) -> None:
    """Rows of 64: some by their definition, all as in smaller batches, and back to where they were."""
    rows = (1 << 20) + 3
    generator = cupy.random.RandomState(1)
    x = cupy.empty((rows, 64), dtype)
    x.real, x.imag = generator.standard_normal((rows, 64)), generator.standard_normal((rows, 64))
    found = fft.fft64(x)
    some = [0, 1, 15, 16, rows // 2, rows - 4, rows - 3, rows - 1]
    close(found[some], exact_transform(cupy.asnumpy(x[some])), BOUND_OF_64[dtype])
    step = 99991
    for first in range(0, rows, step):
        assert bool((fft.fft64(x[first : first + step]) == found[first : first + step]).all())
    fft.fft64(found, inverse=True, out=found)
    wrong = cupy.linalg.norm(found - x, axis=-1)
    assert float((wrong / cupy.linalg.norm(x, axis=-1)).max()) < 2.1 * BOUND_OF_64[dtype]


def test_ffts_beyond_2_to_the_32_numbers() -> None:
    """Indices beyond 32 bits: 32 GiB, in place."""
    if cupy.cuda.runtime.memGetInfo()[0] < 36 * GIB:
        pytest.skip("needs 36 GiB of free memory")
    rows = 2**26 + 5
    x = cupy.empty((rows, 64), np.complex64)
    fill = cupy.ElementwiseKernel(
        "", "float32 x", "x = (float)((i * 0x9e3779b97f4a7c15ull >> 44)) - 524288.f", "test_fill_reals"
    )
    fill(x.view(np.float32))
    some = [0, 1, 2**25 - 1, 2**25, 2**26 - 1, 2**26, rows - 1]
    kept, f = cupy.asnumpy(x[some]), complex_rows((64,), np.complex64)
    assert fft.fft64(x, out=x) is x
    close(x[some], exact_transform(kept), BOUND[np.complex64])
    kept = cupy.asnumpy(x[some])
    assert fft.convolve64(x, cupy.asarray(f), out=x) is x
    close(x[some], exact_convolution(kept, f), BOUND[np.complex64])


@on_every_type
@pytest.mark.parametrize("rows", [1, 5, 33, 16384, 100003])
def test_convolutions_by_fft(rows: int, dtype: Any) -> None:
    a, b = complex_rows((rows, 64), dtype, 1), complex_rows((rows, 64), dtype, 2)
    x, y = cupy.asarray(a), cupy.asarray(b)
    found, filtered = fft.convolve64(x, y), fft.convolve64(x, y[:1])
    part = slice(max(0, rows - 5000), rows)
    close(found[part], exact_convolution(a[part], b[part]), BOUND[dtype])
    close(filtered[part], exact_convolution(a[part], b[:1]), BOUND[dtype])
    if rows > 1:
        assert bool((fft.convolve64(y[0], x) == filtered).all())
    for out in (0, 1):
        operands = x.copy(), y.copy()
        assert fft.convolve64(*operands, out=operands[out]) is operands[out]
        assert bool((operands[out] == found).all())
    assert bool((x == cupy.asarray(a)).all()) and bool((y == cupy.asarray(b)).all())


@on_every_type
def test_ffts_of_any_layout(dtype: Any) -> None:
    x = complex_rows((6, 64), dtype)
    there = cupy.asarray(x)
    expected = fft.fft64(there)
    padded = cupy.zeros((6, 70), dtype)
    padded[:, 3:67] = there
    off = cupy.zeros(x.nbytes + 8, np.uint8)[8:].view(dtype).reshape(x.shape)
    off[...] = there
    for y in (padded[:, 3:67], off, cupy.repeat(there, 2, axis=0)[::2], cupy.asfortranarray(there)):
        assert bool((fft.fft64(y) == expected).all())
        kept = cupy.ascontiguousarray(y).view(np.uint8)  # CuPy compares aligned complex numbers only
        assert bool((kept == there.view(np.uint8)).all())
    left, right = complex_rows((3, 1, 64), dtype, 3), complex_rows((1, 4, 64), dtype, 4)
    close(
        fft.convolve64(cupy.asarray(left), cupy.asarray(right)), exact_convolution(left, right), BOUND[dtype]
    )
    assert fft.fft64(there[:0]).shape == fft.convolve64(there[:0], there[0]).shape == (0, 64)


def test_ffts_that_cannot_be() -> None:
    x = complex_rows((3, 64), np.complex64)
    y = cupy.asarray(x)
    for call, error, words in (
        (lambda: fft.convolve64(y, x), pg.DeviceError, "b: on cpu, and a is on cuda:0"),
        (lambda: fft.convolve64(x, y), pg.DeviceError, "b: on cuda:0, and a is on cpu"),
        (lambda: fft.fft64(y, out=x), pg.DeviceError, "out: on cpu, the operands are on cuda:0"),
        (lambda: fft.fft64(x, out=y), pg.DeviceError, "out: on cuda:0, the operands are on cpu"),
        (lambda: fft.fft64(y, out=y[:2]), pg.OutputError, "the result is complex64"),
        (lambda: fft.fft64(y[:2], out=y[1:]), pg.OutputError, "overlaps an operand in part"),
        (lambda: fft.fft64(y, out=y.astype(np.complex128)), pg.OutputError, "complex128"),
        (lambda: fft.fft64(y.real), pg.NotComplex, "float32"),
        (lambda: fft.fft(y[:, :48]), pg.ParameterError, "48 points"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert bool((y == cupy.asarray(x)).all())


def test_ffts_on_streams() -> None:
    """They run in order with what their stream has, and wait for nothing."""
    x = complex_rows((1000, 64), np.complex64)
    values = cupy.asarray(x)
    f = values[:1].copy()

    def compute(y: Any) -> list[Any]:
        return [fft.fft64(y), fft.fft(y.reshape(-1, 256), inverse=True), fft.convolve64(y, f)]

    expected = compute(values)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        compute(cupy.zeros_like(values))
        stream.synchronize()
        y = cupy.zeros_like(values)
        spin(300)
        y[...] = values
        found = compute(y)
        busy = not stream.done
        stream.synchronize()
    assert busy
    for got, value in zip(found, expected, strict=True):
        assert bool((got == value).all())


def test_ffts_in_a_graph() -> None:
    backend: Any = get_backend(GPU)
    x = cupy.asarray(complex_rows((100, 64), np.complex64, 1))
    f = cupy.asarray(complex_rows((64,), np.complex64, 2))
    replay = backend.capture(lambda: (fft.fft64(x), fft.convolve64(x, f), fft.fft(x.reshape(-1, 256))))
    for seed in (3, 4):
        x[...] = cupy.asarray(complex_rows((100, 64), np.complex64, seed))
        expected = fft.fft64(x), fft.convolve64(x, f), fft.fft(x.reshape(-1, 256))
        for got, value in zip(replay(), expected, strict=True):
            assert bool((got == value).all())


@on_every_type
def test_sanitizer_of_ffts(dtype: Any) -> None:
    """What the checkers of CUDA look at: rows of one thread, of a warp and of a block, ragged batches."""
    for n in (1, 2, 8, 16, 64, 128, 256, 512, 4096):
        x = complex_rows((5, n), dtype)
        for inverse in (False, True):
            y = cupy.asarray(x)
            close(fft.fft(y, inverse), exact_transform(x, inverse), BOUND[dtype])
            fft.fft(y, inverse, out=y)
            close(y, exact_transform(x, inverse), BOUND[dtype])
    for rows in (1, 21):
        a, b = complex_rows((rows, 64), dtype, 1), complex_rows((rows, 64), dtype, 2)
        x, y = cupy.asarray(a), cupy.asarray(b)
        close(fft.convolve64(x, y[0]), exact_convolution(a, b[0]), BOUND[dtype])
        close(fft.convolve64(x, y, out=y), exact_convolution(a, b), BOUND[dtype])


# ---- products of matrices ----


@contextmanager
def card_of(multiprocessors: int) -> Iterator[Any]:
    """The backend, as on a card so large: 0 for the largest tiles and sums in one part."""
    backend: Any = get_backend(GPU)
    card = backend.card
    backend.card = replace(card, multiprocessors=multiprocessors)
    try:
        yield backend
    finally:
        backend.card = card


check_integers = partial(matrices.check_matmul, method="_matmul_integer")


@pytest.mark.parametrize("q", matrices.MODULI)
def test_products_of_integers(q: int) -> None:
    """Both sides of every tile, few rows and columns, long sums, no terms; the largest values."""
    shapes = [(1, 1, 1), (3, 0, 4), (15, 17, 16), (33, 64, 31), (127, 130, 129), (300, 70, 200)]
    shapes += [(5, 5000, 1), (1, 5000, 3), (300, 129, 8), (8, 129, 300), (1, 64, 1001), (64, 3001, 64)]
    for (m, k, n), values in zip(
        shapes * 3, [v for v in ("random", "last", "words") for _ in shapes], strict=True
    ):
        for multiprocessors in (1, 132):
            with card_of(multiprocessors) as backend:
                check_integers(backend, q, (1, m, k), (1, k, n), values)
    with card_of(132) as backend:
        for a_batch, b_batch in ((7, 7), (7, 1), (1, 7), (0, 0)):
            check_integers(backend, q, (a_batch, 9, 20), (b_batch, 20, 11))
            check_integers(backend, q, (a_batch, 9, 20), (b_batch, 20, 3))
            check_integers(backend, q, (a_batch, 3, 20), (b_batch, 20, 9))


@pytest.mark.parametrize("layout", matrices.LAYOUTS)
@pytest.mark.parametrize("moduli", matrices.POINT_MODULI)
def test_products_at_points(moduli: tuple[int, ...], layout: matrices.Layout) -> None:
    for multiprocessors in (0, 132):
        with card_of(multiprocessors) as backend:
            matrices.check_all_points(backend, moduli, layout)
            for size in ((1, 17, 33, 18, 64), (1, 3, 3, 3, 1024)):
                matrices.check_points(backend, moduli, size, "random", layout)
                matrices.check_points(backend, moduli, size, "last", layout)


@pytest.mark.parametrize("q", [2**30 - 35, 2**62 - 57])
def test_a_large_product_of_integers(q: int) -> None:
    """Some rows of it, by Python integers."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    dtype = basis.dtype
    a, b = (
        np.random.default_rng(i).integers(0, 1 << 8 * dtype.itemsize, (1, 2050, 2049), dtype) for i in (1, 2)
    )
    b = b.reshape(1, 2049, 2050)
    out = cupy.empty((1, 2050, 2050), dtype)
    backend.matmul(basis, cupy.asarray(a), cupy.asarray(b), out)
    for row in (0, 1027, 2049):
        expected = (a[0, row].astype(object) @ b[0].astype(object)) % q
        np.testing.assert_array_equal(out[0, row].get(), expected.astype(dtype))


# ---- the ways of a product of matrices ----

ALIKE = (2, 3, 256, 2**31 - 1, 2**31, 2**32 - 5, 2**32, 2**50 - 27, 2**60 - 93, 2**61 - 1, 2**62)


def ways(q: int) -> list[str]:
    """The methods of the backend that multiply matrices modulo q."""
    by_digits = ["_matmul_digits"] if has_digits(q, basis_of((q,)).dtype.itemsize) else []
    return ["_matmul_integer", *by_digits, "_matmul_residues"]


def words_of(q: int, *shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    dtype = basis_of((q,)).dtype
    top = np.iinfo(dtype).max
    return [
        np.random.default_rng([q, i]).integers(0, top, shape, dtype, endpoint=True)
        for i, shape in enumerate(shapes)
    ]


def check_rows(q: int, a: Any, b: Any, out: Any, rows: list[int]) -> None:
    """Those of every product, by Python integers."""
    for s, row in itertools.product(range(len(out)), rows):
        left, right = a[s % len(a), row].astype(object), b[s % len(b)].astype(object)
        np.testing.assert_array_equal(out[s, row].get(), (left @ right % q).astype(out.dtype))


@pytest.mark.parametrize("q", ALIKE)
def test_matrices_by_every_way(q: int) -> None:
    """Around tiles of 128 rows, 16 or 32 columns, 16 terms; copies of 4, 8 and 16 bytes; shared operands."""
    shapes = [(1, 1, 1, 1, 1), (1, 1, 5, 7, 9), (2, 2, 3, 18, 17), (1, 3, 4, 16, 4), (3, 1, 4, 20, 5)]
    shapes += [(1, 1, 128, 64, 32), (1, 1, 129, 66, 33), (2, 1, 127, 65, 31), (1, 2, 130, 3, 70)]
    for method, (left, right, m, k, n) in itertools.product(ways(q), shapes):
        matrices.check_matmul(get_backend(GPU), q, (left, m, k), (right, k, n), method=method)
    edges: tuple[matrices.Values, ...] = ("last", "words", "half", "past half")
    for method, values in itertools.product(ways(q), edges):
        matrices.check_matmul(get_backend(GPU), q, (1, 9, 67), (2, 67, 13), values, method)


@pytest.mark.parametrize("q", [2**31 - 1, 2**62])
def test_matrices_beyond_65535_blocks(q: int) -> None:
    """Batches, rows and columns whose blocks are more than the second and third axis of a grid hold."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    for batch, m, k, n in ((70000, 3, 5, 4), (1, 128 * 65535 + 5, 3, 2), (1, 2, 3, 32 * 65535 + 5)):
        a, b = words_of(q, (batch, m, k), (batch, k, n))
        x, y = cupy.asarray(a), cupy.asarray(b)
        results = []
        for method in ways(q):
            results.append(cupy.empty((batch, m, n), basis.dtype))
            getattr(backend, method)(basis, x, y, results[-1])
        for s, row in ((0, 0), (batch - 1, m - 1), (batch // 2, m // 2)):
            expected = a[s, row].astype(object) @ b[s].astype(object) % q
            np.testing.assert_array_equal(results[0][s, row].get(), expected.astype(basis.dtype))
        for other in results[1:]:
            cupy.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize(("n", "q"), [(16, 2**32), (24, 2**31 - 1), (128, 2**60 - 93), (100, 2**13)])
def test_matrices_of_one_polynomial(n: int, q: int) -> None:
    """Many short polynomials times one, which the ring leaves to a product of matrices."""
    ring = pg.Ring(n, q)
    count = -(-(1 << 22) // n)
    with pg.device(GPU):
        many, one = ring.random((count,), seed=1), ring.random(seed=2)
        assert get_backend(GPU).prefers_matrix(ring.product_plan(), count)
        product = many * one
        assert product == one * many == pg.Poly.mul(many, one, product="ntt")
        assert many[:5] * one == product[:5]


# (batch of a, of b, m, k, n): several waves of blocks, and few of many stages.
LARGE = [(1, 1, 1100, 1100, 1100), (1, 1, 1025, 1023, 1090), (3, 1, 300, 257, 514), (1, 3, 514, 254, 300)]
LARGE += [(1, 1, 129, 5000, 257), (5, 5, 129, 130, 131), (1, 1, 7, 2048, 1024), (1, 1, 2000, 64, 20)]


@pytest.mark.parametrize("q", [3, 2**31 - 1, 2**32 - 5, 2**32, 2**60 - 93, 2**62])
def test_large_matrices_by_every_way(q: int) -> None:
    """All the same, and so is what the card chooses; some rows by Python integers."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    for left, right, m, k, n in LARGE:
        a, b = words_of(q, (left, m, k), (right, k, n))
        x, y = cupy.asarray(a), cupy.asarray(b)
        results = []
        for method in ("matmul", *ways(q)):
            results.append(cupy.full((max(left, right), m, n), q - 1, basis.dtype))
            getattr(backend, method)(basis, x, y, results[-1])
        check_rows(q, a, b, results[0], [0, m // 2, m - 1])
        for other in results[1:]:
            cupy.testing.assert_array_equal(other, results[0])
        cupy.testing.assert_array_equal(x, a)
        cupy.testing.assert_array_equal(y, b)


@pytest.mark.parametrize("q", [2**31 - 1, 2**32, 2**61 - 1])
def test_matrices_of_long_sums(q: int) -> None:
    """As many terms as one launch sums in 32 bits, and one more; the largest of them."""
    backend: Any = get_backend(GPU)
    basis = basis_of((q,))
    values: tuple[matrices.Values, ...] = ("random", "words", "half")
    for method, longest in (
        ("_matmul_digits", (1 << 15) // basis.dtype.itemsize),
        ("_matmul_residues", RESIDUE_DEPTH),
    ):
        for k, value in itertools.product((longest, longest + 1), values):
            matrices.check_matmul(backend, q, (1, 2, k), (1, k, 3), value, method)
    # -128 modulo 256 in both operands
    x, out = cupy.full((1, 1, RESIDUE_DEPTH + 1), 128, basis.dtype), cupy.empty((1, 1, 1), basis.dtype)
    backend._matmul_residues(basis, x, x.reshape(1, -1, 1), out)
    assert out.item() == 128**2 * x.size % q


def test_matrices_by_residues_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, and rows of one matrix, whose sums do not fit at once; one call of cuBLAS, and many."""
    q = 2**60 - 93
    backend: Any = get_backend(GPU)
    basis = basis_of((q,))
    for left, right, m, k, n in ((5, 5, 200, 700, 90), (1, 4, 1300, 130, 60), (3, 1, 140, 200, 70)):
        a, b = words_of(q, (left, m, k), (right, k, n))
        results = []
        for lone, size, depth in (
            (1 << 33, 1 << 30, RESIDUE_DEPTH),
            (1, 1 << 22, 192),
            (1 << 33, 1 << 18, 64),
        ):
            monkeypatch.setattr(cuda.matmul, "LONE_PRODUCT", lone)
            monkeypatch.setattr(cuda.matmul, "_SUM_BYTES", size)
            monkeypatch.setattr(cuda.matmul, "RESIDUE_DEPTH", depth)
            results.append(cupy.full((max(left, right), m, n), 1, basis.dtype))
            backend._matmul_residues(basis, cupy.asarray(a), cupy.asarray(b), results[-1])
            cupy.testing.assert_array_equal(results[-1], results[0])
        check_rows(q, a, b, results[0], [0, m - 1])


VIEWS: tuple[Callable[[Any, Any], tuple[Any, Any]], ...] = (
    lambda a, b: (a[:, :1280], b),
    lambda a, b: (a.T[:1280], a),
    lambda a, b: (a[:, ::2], b[644::-1, 3:]),
    lambda a, b: (a[::-1, 5:1285], b[:, ::-3]),
)


@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5, 2**60 - 93])
def test_matrices_of_any_layout(q: int) -> None:
    """Views that are not contiguous, and signed integers, of sizes that take tensor cores."""
    matmul = pg.linalg.matmul
    a, b = words_of(q, (640, 1290), (1280, 1284))
    for view in VIEWS:
        got = matmul(*view(cupy.asarray(a), cupy.asarray(b)), q)
        np.testing.assert_array_equal(got.get(), matmul(*view(a, b), q))
    a = np.random.default_rng(q).integers(-(2**63), 2**63 - 1, (2, 600, 600), np.int64, endpoint=True)
    x = cupy.asarray(a)
    np.testing.assert_array_equal(matmul(x, x[::-1], q).get(), matmul(a, a[::-1], q))


@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5])
def test_matrices_in_a_graph(q: int) -> None:
    """A product that would take cuBLAS, which graphs do not record, takes another way."""
    n, ring = 2048, Ring(2048, q)
    backend: Any = get_backend(GPU)
    assert matmul_method(q, ring.dtype.itemsize, 1, n, n, n, backend.card) == "residues"
    x = draw(ring, (n,), 1).to(GPU)

    def square(x: Poly) -> Any:
        return pg.linalg.matmul(x.data[:, 0], x.data[:, 0], q)

    replay = pg.capture(square, x)
    for seed in (2, 3):
        x.data[...] = cupy.asarray(draw(ring, (n,), seed).data)
        cupy.testing.assert_array_equal(replay(), square(x))


def test_matrices_without_memory(little_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries of products by residues do not fit: another way is taken, and operands stay."""
    q = 2**31 - 1
    (a,) = words_of(q, (1024, 1024))
    x, backend = cupy.asarray(a), get_backend(GPU)
    out = cupy.empty((1, 1024, 1024), x.dtype)
    with pytest.raises(pg.OutOfDeviceMemory, match=r"cuda:0: .*memory"):
        backend._matmul_residues(basis_of((q,)), x[None], x[None], out)  # type: ignore[attr-defined]
    gc.collect()
    monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: "residues")
    check_rows(q, a[None], a[None], pg.linalg.matmul(x, x, q)[None], [0, 700])
    cupy.testing.assert_array_equal(x, a)


@pytest.mark.parametrize("q", [2**31 - 1, 2**60 - 93])
def test_matrices_on_streams(q: int) -> None:
    """Every way returns while the stream is busy, and reads what was queued there before."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, y, out = (cupy.zeros((1, 130, 130), basis.dtype) for _ in range(3))
        for method in ways(q):
            multiply = partial(getattr(backend, method), basis, x, y, out)
            x[...] = y[...] = 1
            multiply()  # kernels and tables exist
            stream.synchronize()
            spin(300)
            x[...], y[...] = 5, 7
            multiply()
            busy = not stream.done
            assert busy and (out == 35 * 130).all()


def test_sanitizer_of_matrices() -> None:
    """What the checkers of CUDA look at: ragged tiles, every size of copies, several stages."""
    for q in (2**31 - 1, 2**32, 2**62):
        for method, k in itertools.product(ways(q), (36, 131, 134)):
            matrices.check_matmul(get_backend(GPU), q, (2, 130, k), (1, k, 37), method=method)


# ---- operations on batches ----

SHAPES = [
    ((), ()),
    ((), (3,)),
    ((3,), ()),
    ((1,), (5,)),
    ((3, 1), (2,)),
    ((2,), (3, 1)),
    ((2, 1, 3), (4, 1)),
    ((2, 3), (3,)),
    ((0,), (1,)),
    ((0, 3), (3,)),
    ((1, 1, 2, 1, 1, 2), (2, 1, 1, 3, 1, 1)),
]
OF_BATCHES = {
    "30 bits": Ring(64, ntt_primes(64, 30)),
    "60 bits": Ring(64, ntt_primes(64, 60)),
    "RNS": Ring(64, ntt_primes(64, 50, 3)),
    "incomplete": Ring(16, [17, 97]),
    "2^64": Ring(12, 2**64, product="ntt"),
    "by FFT": Ring(12, [2**64, 3], product="fft"),
    "wide": Ring(4, 2**128),
}
on_few_rings = pytest.mark.parametrize("name", OF_BATCHES)


@on_few_rings
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_broadcasting(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    ring = OF_BATCHES[name]
    a, b = draw(ring, left, 1), draw(ring, right, 2)
    for compute in (Poly.add, Poly.sub, Poly.mul):
        check(compute, a, b)
    check(pg.fma, a, b, b)
    if ring.has_eval:
        check(Poly.mul, a.ntt(), b.ntt())
        check(pg.fma, a.ntt(), b.ntt(), a.ntt())
        check(Poly.add, a.ntt(), b)  # mixed domains


@pytest.mark.parametrize("name", ["30 bits", "incomplete", "2^64"])
def test_broadcasting_of_many_axes(name: str) -> None:
    """As on the CPU, or refused by an error of polygpu's own; constants and equal shapes work in any case."""
    ring = OF_BATCHES[name]
    a, b = draw(ring, (2, 1, 2, 1, 1, 2, 1), 1), draw(ring, (1, 2, 1, 1, 2, 1, 1), 2)
    check(Poly.add, a, a)
    check(Poly.mul, a, a)
    check(lambda x: x * 7, a)
    for compute in (Poly.add, Poly.mul):
        try:
            check(compute, a, b)
        except pg.PolyGPUError as error:
            assert "axes" in str(error)


def test_shapes_that_do_not_broadcast() -> None:
    ring = OF_BATCHES["30 bits"]
    a, b = draw(ring, (3,)).to(GPU), draw(ring, (2,)).to(GPU)
    with pytest.raises(pg.ParameterError, match="broadcast"):
        _ = a + b


@on_few_rings
def test_out(name: str) -> None:
    ring = OF_BATCHES[name]
    a, b = draw(ring, (2, 3), 1), draw(ring, (3,), 2)

    def into(compute: Callable[..., Poly], *operands: Poly) -> None:
        """Into other memory, and into the first operand, of the result's shape."""
        expected = compute(*operands)
        there = [x.to(GPU) for x in operands]
        target = draw(ring, expected.shape, 9).to(GPU)
        assert compute(*there, out=target) is target
        same(target, expected)
        address = there[0].data.data.ptr
        assert compute(*there, out=there[0]) is there[0]
        same(there[0], expected)
        assert there[0].data.data.ptr == address
        for moved, kept in zip(there[1:], operands[1:], strict=True):
            same(moved, kept)

    for compute in (Poly.add, Poly.sub, Poly.mul):
        into(compute, a, b)
        into(compute, a, a)
    into(Poly.neg, a)
    into(lambda x, out=None: x.mul(12345, out=out), a)
    into(pg.fma, a, b, b)
    squared = a.to(GPU)
    same(squared.mul(squared, out=squared), a * a)
    if ring.has_eval:
        into(Poly.ntt, a)
        into(Poly.intt, a.ntt())
        into(Poly.mul, a.ntt(), b.ntt())
        into(pg.fma, a.ntt(), b.ntt(), b.ntt())


def test_out_of_long_transforms() -> None:
    """In place through several passes."""
    for q in (prime(2**17, 30), prime(2**17, 60)):
        ring = Ring(2**17, q)
        a, b = draw(ring, (3,), 1), draw(ring, (3,), 2)
        x, y = a.to(GPU), b.to(GPU)
        same(x.ntt(out=x), a.ntt())
        same(x.intt(out=x), a)
        same(x.mul(y, out=y), a * b)
        same(x.mul(x, out=x), a * a)


def test_out_that_cannot_be() -> None:
    ring = OF_BATCHES["30 bits"]
    a, b = draw(ring, (2, 3), 1).to(GPU), draw(ring, (3,), 2).to(GPU)
    with pytest.raises(pg.OutputError, match="on cpu"):
        a.add(b, out=draw(ring, (2, 3)))
    with pytest.raises(pg.OutputError, match="on cuda:0"):
        a.cpu().add(b.cpu(), out=a)
    with pytest.raises(pg.OutputError, match="batch shape"):
        a.add(b, out=b)
    with pytest.raises(pg.OutputError, match="overlaps"):
        a[0].add(a[1], out=Poly(ring, a.data.reshape(6, 1, 64)[1:4], "coef"))


@on_few_rings
def test_batches(name: str) -> None:
    ring = OF_BATCHES[name]
    a, b = draw(ring, (2, 3), 1), draw(ring, (2, 3), 2)
    check(lambda x: x * x, a)
    check(lambda x: x**3, a)
    check(lambda x: x**0, a)
    check(lambda x: 3 - x * 2 + 1, a)
    for axis in (None, 0, 1, -1, (0, 1), ()):
        check(lambda x, axis=axis: x.sum(axis), a)
    check(lambda x: x[:0].sum(0), a)
    check(lambda x: x.reshape(6)[:5].sum(), a)
    for axis in (0, 1):
        check(lambda x, y, axis=axis: pg.dot(x, y, axis=axis), a, b)
        check(lambda x, y, axis=axis: pg.stack([x, y], axis), a, b)
        check(lambda x, y, axis=axis: pg.concatenate([x, y, x], axis), a, b)
    for key in (0, -1, (1, 2), slice(None, None, -1), (slice(None), 1), (None, 1), [1, 0, 1], (..., 0)):
        check(lambda x, key=key: x[key], a)
    check(lambda x: x[np.array([True, False])], a)
    check(lambda x: x.reshape(3, -1), a)
    check(Poly.copy, a)
    check(lambda x: pg.stack([row[0] for row in x]), a)
    assert len(a.to(GPU)) == 2
    if ring.has_eval:
        check(lambda x, y: pg.stack([x, y.ntt()]), a, b)
        check(lambda x, y: pg.dot(x.ntt(), y), a, b)
        assert np.array_equal(cupy.asnumpy(a.to(GPU).natural_order()), a.natural_order())
    with pytest.raises(IndexError, match="batch shape"):
        _ = a.to(GPU)[0, 0, 0]


@pytest.mark.parametrize("name", ["30 bits", "RNS", "incomplete"])
def test_long_sums_and_dots(name: str) -> None:
    ring = OF_BATCHES[name]
    a, b = draw(ring, (1001,), 1), draw(ring, (1001,), 2)
    check(Poly.sum, a)
    check(pg.dot, a, b)
    check(pg.dot, a.ntt(), b.ntt())


# Operands and results in every order of axes, broadcast, merged and copied (einsum.py).
EINSUMS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(5, 3), (3, 4)]),
    ("ij,kj->ki", [(5, 3), (4, 3)]),
    ("ij,bjk->bik", [(2, 3), (4, 3, 2)]),
    ("bij,jk->ibk", [(2, 3, 2), (2, 3)]),
    ("abcd,cbe->aed", [(2, 3, 2, 2), (2, 3, 2)]),
    ("aibj,cjbk->ackib", [(2, 2, 3, 2), (2, 2, 3, 2)]),
    ("...ij,...jk", [(2, 1, 2, 3), (4, 3, 2)]),
    ("i,i", [(33,), (33,)]),
    ("i,j->ji", [(3,), (2,)]),
    ("iij,jk->k", [(2, 2, 3), (3, 2)]),
    ("ij->ji", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ij,jk,kl", [(2, 3), (3, 2), (2, 2)]),
    ("ij,jk", [(2, 0), (0, 4)]),
    ("ij,jk", [(0, 2), (2, 4)]),
]


@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS, ids=str)
@on_few_rings
def test_sums_of_products(name: str, subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    ring = OF_BATCHES[name]
    polys = [draw(ring, shape, i) for i, shape in enumerate(shapes)]
    compute = partial(pg.einsum, subscripts)
    check(compute, *polys)
    if ring.has_eval:
        check(compute, polys[0].ntt(), *polys[1:])
    expected = compute(*polys)
    out = draw(ring, expected.shape, 9).to(GPU)
    assert compute(*[p.to(GPU) for p in polys], out=out) is out
    same(out, expected)


@on_few_rings
def test_a_matrix_product_in_an_operand_and_recorded(name: str) -> None:
    ring = OF_BATCHES[name]
    a, b = draw(ring, (3, 3), 1), draw(ring, (3, 3), 2)
    x, y = a.to(GPU), b.to(GPU)
    same(pg.matmul(x, y, out=x), a @ b)
    if not ring.basis.wide:  # those leave the GPU
        replay = pg.capture(lambda x, y: x @ y, x, y)
        same(replay(), a @ b @ b)
        pg.matmul(y, y, out=x)
        same(replay(), b @ b @ b)


@pytest.mark.parametrize("q", [2, 97, 2**32, 2**32 + 1, 2**50 - 27, 2**62])
def test_matrices_of_integers_of_any_type(q: int) -> None:
    """CuPy arrays in and out, as NumPy ones on the host."""
    source = np.random.default_rng(q)
    matmul = pg.linalg.matmul
    word = np.uint32 if q <= 2**32 else np.uint64
    for dtype in map(np.dtype, "bBhHiIlL"):
        info = np.iinfo(dtype)
        a, b = (
            source.integers(info.min, info.max, shape, dtype, endpoint=True)
            for shape in ((2, 1, 5, 33), (3, 33, 4))
        )
        pairs = (
            (a, b),
            (a[0, 0], b),
            (a, b[0]),
            (a[0, 0, 0], b[0]),
            (a, b[0, :, 0]),
            (b[0].T, a[:, 0].swapaxes(1, 2)),
        )
        for x, y in pairs:
            got = matmul(cupy.asarray(x), cupy.asarray(y), q)
            assert isinstance(got, cupy.ndarray) and got.dtype == word
            np.testing.assert_array_equal(got.get(), matmul(x, y, q))
    square = cupy.asarray(source.integers(0, q, (70, 70), word))
    expected = matmul(square.get(), square.get(), q)
    assert matmul(square, square, q, out=square) is square
    np.testing.assert_array_equal(square.get(), expected)


def test_matrices_on_two_devices_or_too_large() -> None:
    matmul = pg.linalg.matmul
    a = cupy.ones((3, 3), np.uint32)
    with pytest.raises(pg.DeviceError, match="B: on cpu, and A is on cuda:0"):
        matmul(a, a.get(), 97)
    with pytest.raises(pg.DeviceError, match="out: on cpu, the operands are on cuda:0"):
        matmul(a, a, 97, out=a.get())
    with pytest.raises(pg.CoefficientError, match="A: dtype float64"):
        matmul(a * 1.0, a, 97)
    long = cupy.ones((2**20, 1), np.uint32)
    with pytest.raises(pg.OutOfDeviceMemory, match=r"cuda:0: .*memory"):
        matmul(long, long.T, 97)
    ring = OF_BATCHES["30 bits"]
    x = draw(ring, (2,), 1).to(GPU)
    with pytest.raises(pg.DeviceError, match="operands on cuda:0 and cpu"):
        pg.dot(x, x.cpu())
    with pytest.raises(pg.OutOfDeviceMemory, match=r"cuda:0: .*memory"):
        pg.einsum("i,j->ij", ring.zeros(2**17).to(GPU), ring.zeros(2**17).to(GPU))


@on_few_rings
def test_values_that_leave_the_gpu(name: str) -> None:
    ring = OF_BATCHES[name]
    a = draw(ring, (2,), 1)
    x = a.to(GPU)
    assert x.to_bigints(centered=True).tolist() == a.to_bigints(centered=True).tolist()
    assert x.to_residue_ints().tolist() == a.to_residue_ints().tolist()
    assert np.asarray(x.norm(1)).tolist() == np.asarray(a.norm(1)).tolist()
    assert np.asarray(x(3)).tolist() == np.asarray(a(3)).tolist()
    assert "device=cuda:0" in repr(x) and "cuda:0" in x._repr_html_()
    assert x.to(GPU) is x and x.to("cuda") is x and a.to("cpu") is a
    back = x.cpu()
    assert back.device == "cpu" and back == a
    with pytest.raises(TypeError, match=r"poly\.cpu"):
        np.asarray(x)


@on_few_rings
def test_equality(name: str) -> None:
    ring = OF_BATCHES[name]
    a = draw(ring, (3,), 1)
    x, y = a.to(GPU), a.to(GPU).copy()
    assert x == y and x is not y
    y.data[1, 0, 2] ^= 1
    assert x != y
    assert pg.equal(x, y).tolist() == [True, False, True]
    zero = ring.zeros(2).to(GPU)
    assert zero == 0 and zero != 1 and pg.equal(zero, 0).tolist() == [True, True]
    if ring.has_eval:
        assert x.ntt() == x and x.ntt() != y


# ---- structure ----


@on_every_kind
@pytest.mark.parametrize("bits", [30, 60])
def test_automorphisms(bits: int, kind: Any) -> None:
    ring = Ring(16, ntt_primes(16, bits, 2, kind), kind=kind)
    a = draw(ring, (2,))
    for g in range(-33, 34, 2):
        check(lambda x, g=g: x.automorphism(g), a)
        check(lambda x, g=g: x.automorphism(g), a.ntt())
    for k in (*range(-34, 35, 3), 10**30):
        check(lambda x, k=k: x.mul_monomial(k), a)
    large = Ring(2**16, prime(2**16, bits, kind), kind=kind)
    b = draw(large, (2,))
    for g in (5, -1):
        check(lambda x, g=g: x.automorphism(g), b)
        check(lambda x, g=g: x.automorphism(g), b.ntt())


@on_every_kind
def test_monomials_of_evaluated_values(kind: Any) -> None:
    ring = Ring(16, ntt_primes(16, 30, 2, kind), kind=kind)
    check(lambda x: x.mul_monomial(5), draw(ring, (2,)).ntt())


@pytest.mark.parametrize("default", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "ring",
    [
        Ring(64, ntt_primes(64, 30)),
        Ring(64, ntt_primes(64, 60, 3)),
        Ring(16, 41),
        Ring(16, [17, 97]),
        Ring(7, 2**31 - 1),
        Ring(8, 2**32),
        Ring(8, 2**64, kind="negacyclic"),
        Ring(6, [2**20, 97]),
        Ring(4, 2**128),
    ],
    ids=repr,
)
def test_inverse(ring: Ring, default: str) -> None:
    """Of 1 - 2X, which all but a few of these rings can invert, whatever the default device is."""
    a = ring([[1, -2], [1, -4]])
    x = a.to(GPU)
    try:
        expected, square = a.inverse(), a**-2
    except pg.NotInvertible:
        with pg.device(default), pytest.raises(pg.NotInvertible):
            x.inverse()
        return
    with pg.device(default):
        same(x.inverse(), expected)
        same(x**-2, square)
        if ring.has_eval:
            same(x.ntt().inverse(), expected.ntt())


def test_inverse_that_does_not_exist() -> None:
    ring = OF_BATCHES["RNS"]
    with pytest.raises(pg.NotInvertible, match="index"):
        ring.zeros(2).to(GPU).inverse()


# ---- new values on the device ----


@on_few_rings
def test_new_values(name: str) -> None:
    ring = OF_BATCHES[name]
    integers = [[-1, 2**70, 0, 5], [3, 1, -(2**200), 7]]
    small = np.array([[-(2**63), 2**63 - 1, -1], [0, 1, 12345]])

    def make() -> list[Poly]:
        return [
            ring(integers),
            ring(7),
            ring(small),
            ring(np.arange(4, dtype=np.uint8)),
            ring.zeros((2, 3)),
            ring.ones(2),
            ring.monomial(-1, 3),
            ring.random((2, 3), seed=5),
            ring.random(2, seed="text", start=3),
        ]

    with pg.device("cuda"):
        made = make()
    for x, y in zip(made, make(), strict=True):
        same(x, y)


def test_eval_points_are_host_integers_on_every_device() -> None:
    for name in ("30 bits", "RNS", "incomplete"):
        ring = OF_BATCHES[name]
        expected = ring.eval_points(len(ring.moduli) - 1)
        with pg.device("cuda"):
            found = ring.eval_points(len(ring.moduli) - 1)
        assert isinstance(found, np.ndarray) and np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("name", OF_BATCHES)
def test_integers_on_the_device(name: str, dtype: Any) -> None:
    ring, limits = OF_BATCHES[name], np.iinfo(dtype)
    x = np.array([[limits.min, limits.max, 0], [1, limits.max // 2, limits.min + 1]], dtype=dtype)
    same(ring(cupy.asarray(x)), ring(x))
    same(ring(cupy.asarray(x)[:, ::2]), ring(x[:, ::2]))
    same(ring(cupy.asarray(x)[0, 1]), ring(x[0, 1]))
    same(ring(cupy.zeros((0, 2), dtype)), ring(np.zeros((0, 2), dtype)))


def test_residues_on_the_device() -> None:
    ring = OF_BATCHES["RNS"]
    a = draw(ring, (2,))
    data = cupy.asarray(a.data)
    shared = ring.from_residues(data)
    assert shared.data is data
    assert ring.from_residues(data, copy=True).data.data.ptr != data.data.ptr
    same(ring.from_residues(data.astype(np.int64)), a)
    same(ring.from_residues(cupy.asfortranarray(data)), a)
    with pytest.raises(pg.ParameterError, match="copy"):
        ring.from_residues(data[:, :, ::-1], copy=False)
    data[1, 2, 3] = ring.moduli[2]
    with pg.debug(), pytest.raises(pg.NotCanonical, match=r"\(1, 2, 3\)"):
        ring.from_residues(data)
    with pytest.raises(pg.CoefficientError, match="float64"):
        ring(cupy.zeros(3))


@on_few_rings
def test_pickle_and_copies(name: str) -> None:
    ring = OF_BATCHES[name]
    a = draw(ring, (2,))
    for x, y in ((a, a.to(GPU)), (a.ntt(), a.to(GPU).ntt())) if ring.has_eval else ((a, a.to(GPU)),):
        for made in (pickle.loads(pickle.dumps(y)), copy.copy(y), copy.deepcopy(y), y.copy()):
            same(made, x)
        assert copy.deepcopy(y).data.data.ptr != y.data.data.ptr


def test_dlpack() -> None:
    for name in ("30 bits", "60 bits"):
        a = draw(OF_BATCHES[name], (2,))
        x = a.to(GPU)
        shared = cupy.from_dlpack(x)
        assert shared.data.ptr == x.data.data.ptr and shared.dtype == x.data.dtype
        assert np.array_equal(cupy.asnumpy(shared), a.data)
        assert x.__dlpack_device__() == x.data.__dlpack_device__()
        same(a.ring.from_residues(cupy.from_dlpack(x)), a)


def test_other_arrays_of_the_gpu_are_named() -> None:
    class Tensor:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<u4", "data": (1, False), "version": 3}  # noqa: RUF012

    with pytest.raises(pg.DeviceError, match=r"cupy\.asarray"):
        OF_BATCHES["30 bits"](Tensor())


# ---- devices ----


def test_devices_do_not_mix() -> None:
    ring = OF_BATCHES["30 bits"]
    x, y = draw(ring, (2,), 1).to(GPU), draw(ring, (2,), 2)
    mixed: list[Callable[[], Any]] = [
        lambda: x + y,
        lambda: y + x,
        lambda: x * y,
        lambda: x.ntt() * y.ntt(),
        lambda: pg.fma(x, x, y),
        lambda: pg.dot(y, x),
        lambda: pg.equal(x, y),
        lambda: pg.stack([x, y]),
        lambda: pg.concatenate([y, x]),
    ]
    for call in mixed:
        with pytest.raises(pg.DeviceError, match=r"poly\.to"):
            call()


def test_the_default_device_does_not_move_values() -> None:
    ring = OF_BATCHES["RNS"]
    a, b = draw(ring, (2,), 1), draw(ring, (2,), 2)
    x, y = a.to(GPU), b.to(GPU)
    with pg.device("cuda:0"):
        assert (a + b).device == "cpu" and (a * 3 + 1).device == "cpu"
        assert (x + y).device == GPU
    with pg.device("reference"):
        assert (x + y).device == GPU
    same(x * y + 1, a * b + 1)
    same(2 - x, 2 - a)
    same(x.ntt() + 5, a.ntt() + 5)


def test_devices_by_name() -> None:
    with pg.device("cuda") as name:
        assert name == GPU and Ring(4, 17)([1, 2]).device == GPU
    count = cupy.cuda.runtime.getDeviceCount()
    with pytest.raises(pg.BackendUnavailable, match=f"there are {count} GPUs"), pg.device(f"cuda:{count}"):
        pass
    with pytest.raises(pg.BackendUnavailable, match="GPUs"):
        draw(Ring(4, 17)).to("cuda:999")


# ---- streams, threads, graphs ----


def spin(milliseconds: int = 100) -> None:
    """Keep the current stream busy."""
    kernel = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) {'
        "const long long start = clock64(); while (clock64() - start < n) {} }",
        "spin",
    )
    kernel((1,), (1,), (np.int64(milliseconds * 1_500_000),))


STREAM_RINGS = {
    "30 bits": Ring(64, ntt_primes(64, 30)),
    "50 bits, RNS": Ring(64, ntt_primes(64, 50, 3)),
    "long": Ring(2**17, ntt_primes(2**17, 30)),
    "incomplete": Ring(256, 3329),
    "2^64": Ring(64, 2**64, product="ntt"),
    "by FFT": Ring(64, 2**64, product="fft"),
}


def several(a: Poly, b: Poly) -> list[Poly]:
    """Results of many kinds, from coefficients."""
    values = [a + b, a * b, a * 3, a.automorphism(3), pg.stack([a, b]), a.sum(), a * b + a - b]
    if a.ring.has_eval:
        values += [
            a.ntt(),
            b.ntt().intt(),
            a.ntt() * b.ntt(),
            pg.fma(a.ntt(), b.ntt(), a.ntt()),
            pg.dot(a, b),
        ]
    return values


@pytest.mark.parametrize("name", STREAM_RINGS)
def test_streams(name: str) -> None:
    """Nothing runs before what was queued on the same stream, nor on another stream."""
    ring = STREAM_RINGS[name]
    a, b = draw(ring, (3,), 1), draw(ring, (3,), 2)
    expected = several(a, b)
    several(a.to(GPU), b.to(GPU))  # kernels and tables exist
    stream = cupy.cuda.Stream(non_blocking=True)
    left, right = (cupy.asarray(x.data) for x in (a, b))
    cupy.cuda.Device().synchronize()
    with stream:
        x, y = (ring.from_residues(cupy.zeros_like(data)) for data in (left, right))
        stream.synchronize()
        spin()
        x.data[...], y.data[...] = left, right
        found = several(x, y)
    stream.synchronize()
    for got, value in zip(found, expected, strict=True):
        same(got, value)


def test_streams_do_not_wait_for_the_host() -> None:
    """Calls return while the stream is still busy: nothing synchronises."""
    ring = STREAM_RINGS["50 bits, RNS"]
    x, y = draw(ring, (3,), 1).to(GPU), draw(ring, (3,), 2).to(GPU)
    several(x, y)
    out = x.copy()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        several(x, y)  # fills this stream's pool
        stream.synchronize()
        spin(500)
        several(x, y)
        x.mul(y, out=out)
        busy = not stream.done
        stream.synchronize()
    assert busy
    same(out, x.cpu() * y.cpu())


@pytest.mark.parametrize("kind", ["complete", "incomplete", "auxiliary", "FFT", "constants"])
def test_streams_share_tables(kind: str) -> None:
    """Tables that one stream is still to make are not read by another before."""
    n, moduli, warm_moduli = {
        "complete": (1024, ntt_primes(1024, 60, 9)[8], ntt_primes(1024, 60)[0]),
        "incomplete": (512, _halved(512, 28, 1), _halved(512, 27, 1)),
        "auxiliary": (40, 2**63 - 25, 2**63 - 24),
        "FFT": (40, 2**63 - 23, 2**63 - 22),
        "constants": (1024, ntt_primes(1024, 60, 11)[10], ntt_primes(1024, 60)[0]),
    }[kind]

    def compute(x: Poly, y: Poly) -> Poly:
        if kind == "constants":
            return x[:, None] * (x.ring.modulus - 5) + y[None]
        return x * y

    product: Any = {"auxiliary": "ntt", "FFT": "fft"}.get(kind, "auto")
    warm, ring = Ring(n, warm_moduli, product=product), Ring(n, moduli, product=product)
    for _ in range(2):  # kernels are compiled
        compute(draw(warm, (2,), 1).to(GPU), draw(warm, (2,), 2).to(GPU))
    a, b = draw(ring, (3,), 1), draw(ring, (3,), 2)
    operands = [(a.to(GPU), b.to(GPU)) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    with streams[0]:
        spin(300)
        first = compute(*operands[0])
    with streams[1]:
        second = compute(*operands[1])
        streams[1].synchronize()
        same(second, compute(a, b))
    streams[0].synchronize()
    same(first, compute(a, b))


@pytest.mark.parametrize("own_streams", [False, True])
def test_threads(own_streams: bool) -> None:
    """Two at a time, on rings that both use first here and on rings of their own."""
    shared = [Ring(64, ntt_primes(64, bits, 7)[6]) for bits in (30, 50, 60)]
    if own_streams:  # tables across streams: test_streams_share_tables
        for ring in shared:
            several(draw(ring, (3,), 1).to(GPU), draw(ring, (3,), 2).to(GPU))
        cupy.cuda.Device().synchronize()

    def work(thread: int) -> None:
        with (
            cupy.cuda.Device(0),
            cupy.cuda.Stream(non_blocking=True) if own_streams else cupy.cuda.Stream.null,
        ):
            own = Ring(64, ntt_primes(64, 60, 10)[8 + thread])
            for turn in range(10):
                for ring in (*shared, own):
                    a, b = draw(ring, (3,), turn + 100 * thread), draw(ring, (3,), turn)
                    for got, value in zip(several(a.to(GPU), b.to(GPU)), several(a, b), strict=True):
                        same(got, value)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, thread) for thread in range(2)]:
            done.result()


@pytest.mark.parametrize("name", STREAM_RINGS)
def test_graphs(name: str) -> None:
    """A captured call reads what its arguments hold at each replay."""
    ring = STREAM_RINGS[name]
    a, b = draw(ring, (3,), 1), draw(ring, (3,), 2)
    x, y = a.to(GPU), b.to(GPU)
    replay = pg.capture(lambda x, y: (x * y, x + y, x * x - y), x, y)
    for seed in (3, 4):
        a = draw(ring, (3,), seed)
        x.data[...] = cupy.asarray(a.data)
        for got, value in zip(replay(), (a * b, a + b, a * a - b), strict=True):
            same(got, value)


# ---- the first call ----


def first_call(**variables: str) -> float:
    """Seconds that the first transforms and product of a ring take in a process of their own."""
    program = (
        "import time, polygpu as pg, numpy as np\n"
        "ring = pg.Ring(2**16, pg.ntt_primes(2**16, 30))\n"
        "x = ring.random(2, seed=1).to('cuda')\n"
        "began = time.perf_counter()\n"
        "y = (x * x).ntt()\n"
        "y = y.cpu()\n"
        "print(time.perf_counter() - began)\n"
        "assert y == (x.cpu() * x.cpu()).ntt()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUPY_CACHE")} | variables
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_kernels_are_kept_on_disk(tmp_path: Path) -> None:
    """Compiled once a machine: the second process finds all it needs, and is done sooner."""
    folder = tmp_path / "kernels"
    first = first_call(CUPY_CACHE_DIR=str(folder))
    kept = {path.name for path in folder.iterdir()}
    second = first_call(CUPY_CACHE_DIR=str(folder))
    assert {path.name for path in folder.iterdir()} == kept
    assert len(kept) >= 5 and first < 10 and second < first / 2


def test_kernels_without_a_home() -> None:
    assert first_call(HOME="/proc/nowhere", POLYGPU_CACHE_DIR="/proc/nowhere") < 10


def test_tables_of_2_to_the_24() -> None:
    """A ring whose root is known is ready in a fifth of a second, once its kernels are compiled."""
    n, seconds = 2**24, []
    data = cupy.zeros((1, n), np.uint64)
    for q in ntt_primes(n, 60, 3):
        assert Ring(n, q).roots is not None
        plan_cache.forget()
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        x = Ring(n, q).from_residues(data)
        x.ntt(out=x)
        cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.2


# ---- sizes of memory ----


@pytest.mark.parametrize(
    ("n", "moduli"), [(4, ntt_primes(4, 30)), (4, ntt_primes(4, 60, 2)), (4, 13), (3, 2**64), (1, 17)]
)
def test_rows_beyond_65535(n: int, moduli: Any) -> None:
    ring = Ring(n, moduli)
    check_ring(ring, (2**17 + 3,))
    a, b = draw(ring, (70001, 1), 1), draw(ring, (2,), 2)
    check(Poly.add, a, b)
    check(Poly.mul, a, b)
    integers = np.random.default_rng(1).integers(-(2**62), 2**62, size=(70001, n))
    same(ring(cupy.asarray(integers)), ring(integers))


def test_more_than_2_to_the_32_residues() -> None:
    """Indices beyond 32 bits, signed and unsigned: 16 GiB an array."""
    ring = Ring(16, ntt_primes(16, 30))
    rows = 2**28 + 1001
    if cupy.cuda.runtime.memGetInfo()[0] < 40 * GIB:
        pytest.skip("needs 40 GiB of free memory")
    data = cupy.empty((rows, 1, 16), np.uint32)
    fill = cupy.ElementwiseKernel(
        "uint32 q", "uint32 x", "x = (unsigned int)((i * 0x9e3779b97f4a7c15ull >> 20) % q)", "test_fill"
    )
    fill(np.uint32(ring.moduli[0]), data)
    x, out = ring.from_residues(data), ring.from_residues(cupy.zeros_like(data))
    parts = [slice(0, 5), *(slice((1 << b) - 3, (1 << b) + 3) for b in (26, 27, 28)), slice(rows - 5, rows)]
    parts.append(slice(rows // 2 - 3, rows // 2 + 3))

    def agree(result: Poly, compute: Callable[[Poly], Poly]) -> None:
        for part in parts:
            same(result[part], compute(x[part].cpu()))

    agree(x.ntt(out=out), Poly.ntt)
    assert _equal_in_parts(out.intt(out=out), x)
    agree(x.add(x, out=out), lambda a: a + a)
    agree(x.mul(3, out=out), lambda a: a * 3)
    agree(x.mul(x, out=out), lambda a: a * a)
    constant = draw(ring)
    agree(x.mul(constant.to(GPU), out=out), lambda a: a * constant)
    agree(x.sub(constant.to(GPU), out=out), lambda a: a - constant)
    del out
    agree(x.automorphism(3), lambda a: a.automorphism(3))


def _equal_in_parts(x: Poly, y: Poly) -> bool:
    step = 1 << 26
    return all(x[i : i + step] == y[i : i + step] for i in range(0, len(x), step))


def test_more_than_2_to_the_31_residues_of_integers_and_leaves() -> None:
    """The other kernels, by 8 GiB and a little."""
    if cupy.cuda.runtime.memGetInfo()[0] < 40 * GIB:
        pytest.skip("needs 40 GiB of free memory")
    ring = Ring(16, 41)  # leaves of 4
    rows = 2**27 + 1001
    integers = cupy.arange(rows * 2, dtype=np.int64).reshape(rows, 2)
    x = ring(integers)
    parts = [
        slice(0, 5),
        slice(rows // 2 - 3, rows // 2 + 3),
        slice(2**26 - 3, 2**26 + 3),
        slice(rows - 5, rows),
    ]
    for part in parts:
        same(x[part], ring(cupy.asnumpy(integers[part])))
    del integers
    e = x.ntt()
    product = e * e
    for part in parts:
        same(product[part], x[part].cpu().ntt() ** 2)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """CuPy's pool gives no more than it has given, and 32 MiB."""
    pool = cupy.get_default_memory_pool()
    gc.collect()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + (32 << 20))
    yield
    pool.set_limit(size=0)


def test_out_of_memory_on_the_card() -> None:
    ring = OF_BATCHES["30 bits"]
    a = draw(ring, (3,), 1)
    x = a.to(GPU)
    with pg.device("cuda"), pytest.raises(pg.OutOfDeviceMemory, match=r"cuda:0: .*memory.*smaller batches"):
        ring.zeros(2**40)
    same(x * x, a * a)


def test_out_of_memory_within_a_call(little_memory: None) -> None:
    """The operands stay as they were, and the next call works."""
    for ring in (Ring(2**17, prime(2**17, 30)), Ring(2**15, 2**60)):
        size = 12 << 20
        a = draw(ring, (size // (ring.n * ring.dtype.itemsize),), 1)
        small = draw(ring, (), 2)
        x, y = a.to(GPU), small.to(GPU)
        for call in (lambda x: (x * x).ntt(), lambda x: pg.stack([x] * 3), lambda x: x.copy() + x.copy()):
            with pytest.raises(pg.OutOfDeviceMemory, match=r"cuda:0: .*memory.*smaller batches"):
                call(x)
            gc.collect()
        same(x, a)
        del x
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        same(y + y, small + small)


def test_nothing_leaks() -> None:
    """Memory in use stays the same over calls of one kind, and is given back."""
    ring = Ring(2**16, ntt_primes(2**16, 30, 4))
    x = draw(ring, (8,), 1).to(GPU)
    pool = cupy.get_default_memory_pool()

    def calls() -> None:
        for _ in range(3):
            _ = (x * x).ntt().automorphism(5).sum() + 1

    calls()
    gc.collect()
    used = pool.used_bytes()
    calls()
    gc.collect()
    assert pool.used_bytes() == used
