"""A real GPU: sizes that fill it, memory, streams, threads, graphs, sanitizers, launches of other cards.

`pytest -m gpu` runs these where a GPU answers. Each new shape of a transform compiles for about half a
second, so most rings here share a few degrees. On an H100 each of these parts takes less than 8 minutes:

    pytest -m gpu --deselect tests/test_gpu.py
    pytest -m gpu tests/test_gpu.py -k "transforms or passes"
    pytest -m gpu tests/test_gpu.py -k "fft or matmul or polynomials"
    pytest -m gpu tests/test_gpu.py -k "not (transforms or passes or fft or matmul or polynomials)"

The tests named after the sanitizer, under each of CUDA's checkers:

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m pytest -m gpu -k sanitizer
    compute-sanitizer --tool racecheck ...; --tool initcheck ...
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matrices
import numpy as np
import pytest
import test_fft
from devices import ABSENT, agree, card_of, needs_card, noted_kernels, product_plan, same
from oracle import (
    BABYBEAR,
    KINDS,
    as_key,
    check_products_by_fft,
    check_ring,
    check_transform,
    drawn,
    edges,
    halved,
    prime,
)
from test_multiply import DIGITS

import polygpu as pg
from polygpu import Poly, Ring, fft, lattice, ntt_primes
from polygpu._backends import cuda, get_backend
from polygpu._backends.cuda import matmul
from polygpu._backends.cuda.matmul_tiles import has_digits, matmul_method
from polygpu._backends.cuda.words import Card
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.basis import basis_of

if ABSENT is None:
    import cupy

pytestmark = [pytest.mark.gpu, needs_card]

GPU = "cuda:0"
GIB = 2**30


@pytest.fixture(autouse=True)
def _room() -> Iterator[None]:
    """Every test starts with the card's memory free."""
    yield
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


@pytest.fixture
def whole_card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests that take gigabytes run one at a time: pytest's workers wait for each other."""
    with open(tmp_path_factory.getbasetemp().parent / "whole_card.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- every word, every size ----


@pytest.mark.parametrize("bits", [30, 31, 32, 50, 60, 62, 64])
@pytest.mark.parametrize("log_n", [2, 4, 5, 7, 8, 9, 10, 11])
def test_transforms_of_many_rows(bits: int, log_n: int) -> None:
    """There are three rows more than fill the card, which take other tiles than few rows."""
    ring = Ring(1 << log_n, ntt_primes(1 << log_n, bits=bits)[:1])
    backend = get_backend(GPU)
    batch = (backend.card.multiprocessors << 12 >> log_n) + 3  # type: ignore[attr-defined]
    a, b = drawn(ring, (batch,), 1), drawn(ring, (batch,), 2)
    agree(Poly.ntt, a)
    agree(Poly.intt, a.ntt())
    agree(Poly.mul, a, b)


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
@pytest.mark.usefixtures("whole_card")
def test_huge_transforms_match_horner(bits: int, log_n: int, kind: Any) -> None:
    """Values at random points are computed by Horner's rule in Python ints."""
    n = 1 << log_n
    q = BABYBEAR if bits == 31 else prime(n, bits, kind)
    ring = Ring(n, q, kind=kind)
    assert ring.roots is not None
    (root,) = ring.roots
    assert pow(root, n, q) == (q - 1 if kind == "negacyclic" else 1)
    a, b = drawn(ring, seed=1).to(GPU), drawn(ring, seed=2).to(GPU)
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


# Compute capability and shared memory of a block. Launches for these cards run on any newer card.
CARDS = {"T4": Card((7, 5), 64 << 10), "L40S": Card((8, 9), 99 << 10)}


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("bits", "log_n"), [(30, 14), (30, 17), (50, 13), (50, 17), (60, 14), (60, 23)])
def test_transforms_with_launches_of_other_cards(
    card: str, bits: int, log_n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = get_backend(GPU)
    if CARDS[card].shared_bytes > backend.card.shared_bytes:
        pytest.skip("this card has less shared memory")
    monkeypatch.setattr(backend, "card", CARDS[card])
    n = 1 << log_n
    # Tables depend on the launch: a prime for each card that no other test uses.
    q = ntt_primes(n, bits=bits, count=6)[4 + list(CARDS).index(card)]
    ring = Ring(n, q)
    a, b = drawn(ring, (2,), 1), drawn(ring, (2,), 2)
    agree(Poly.ntt, a)
    agree(Poly.intt, a.ntt())
    agree(Poly.mul, a, b)


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
def test_two_passes_in_one_launch(
    bits: int, log_n: int, batch: int, limbs: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch gives the bits of two launches, and some rows are compared with the host's.

    A batch of four fifths of the cache, in whole units, is enough for such a launch (flow_lag). The batches
    above are enough for the 50 MiB of an H100; a larger cache gets larger batches.
    """
    n = 1 << log_n
    backend: Any = get_backend(GPU)
    row_bytes = (4 if bits <= 32 else 8) << log_n
    batch = max(batch, math.ceil((0.8 * backend.card.l2_bytes / row_bytes + 2) / limbs))
    if bits == 30 and log_n == 24:
        bits = 31
    try:
        ring = Ring(n, ntt_primes(n, bits=bits, count=limbs, kind=kind), kind=kind)
    except pg.ParameterError as error:
        pytest.skip(str(error))
    names = noted_kernels(monkeypatch)
    with pg.device("cuda"):
        x = ring.from_residues(_residues(ring, batch))
    found = {"ntt": x.ntt(), "intt": Poly(ring, x.data, "eval").intt()}
    assert names >= {"ntt_forward_flow", "ntt_inverse_flow"}
    names.clear()
    monkeypatch.setattr(backend, "card", replace(backend.card, l2_bytes=0))  # without a cache, two launches
    assert x.ntt() == found["ntt"] and (Poly(ring, x.data, "eval").intt()) == found["intt"]
    assert found["ntt"].intt() == x
    assert not any("flow" in name for name in names)
    for row in {0, batch // 2, batch - 1} if log_n <= 20 else ():
        same(found["ntt"][row], x[row].cpu().ntt())
        same(found["intt"][row], Poly(ring, x[row].cpu().data, "eval").intt())


def _residues(ring: Ring, batch: int) -> Any:
    """Residues that are made on the card; the last item is q - 1 everywhere."""
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


@pytest.mark.parametrize(
    ("log_n", "bits", "layers"),
    [(16, 17, 1), (17, 17, 2), (18, 17, 3), (15, 60, 1), (17, 50, 2), (18, 60, 3)],
)
def test_incomplete_long_transforms(log_n: int, bits: int, layers: int) -> None:
    n = 1 << log_n
    ring = Ring(n, 65537 if bits == 17 else halved(n, bits, layers))
    assert ring.leaf_size == 1 << layers
    a, b = drawn(ring, (2,), 1), drawn(ring, (2,), 2)
    check_transform(a)
    agree(Poly.mul, a, b)


def trinomial_primes(n: int) -> list[int]:
    """Return a prime for each word of the transforms modulo X^n - X^(n/2) + 1."""
    return [prime(n, b, "trinomial") for b in (30, 50, 60, 64)]


# Rings and batches for the checkers of CUDA, by name: words of each size; tiles that are full, ragged or
# long, as a batch that fills the card takes them; few rows; flows.
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
    "RNS": (lambda: Ring(64, ntt_primes(64, bits=50, count=3)), (2, 3)),
    "RNS of unlike primes": (
        lambda: Ring(64, [q for b in (20, 50, 64) for q in ntt_primes(64, bits=b)]),
        (3,),
    ),
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
    "leaves of 2, 60 bits": (lambda: Ring(64, halved(64, 60, 1)), (2, 3)),
    "one leaf": (lambda: Ring(2, 3), (3,)),
    "2^64": (lambda: Ring(64, 2**64), (2, 3)),
    "2^64, n = 33": (lambda: Ring(33, 2**64), (2,)),
    "FFT, 1 digit": (lambda: Ring(64, 3329, product="fft"), (35,)),
    "FFT, 1 digit, folded": (lambda: Ring(20, 3331, kind="cyclic", product="fft"), (3,)),
    "FFT, 2 digits": (lambda: Ring(64, 2**32 - 5, product="fft"), (3,)),
    "FFT, 4 digits": (lambda: Ring(64, [2**64, 3, 2**61 - 1], product="fft"), (2, 3)),
    "FFT, 4 digits, folded": (lambda: Ring(500, 2**64 - 59, product="fft"), (3,)),
    "FFT of 2^13, in passes": (lambda: Ring(2**13, 2**64, product="fft"), (2,)),
    "trinomial": (lambda: Ring(64, trinomial_primes(64), kind="trinomial"), (2,)),
    "trinomial, leaves of 3": (lambda: Ring(48, trinomial_primes(48), kind="trinomial"), (2,)),
    "trinomial, two passes": (lambda: Ring(2**16, trinomial_primes(2**16), kind="trinomial"), (1,)),
    "trinomial, auxiliary primes": (lambda: Ring(10, [2**64, 3], kind="trinomial"), (2,)),
    "RNS with 2^64, cyclic": (lambda: Ring(6, [2**64, 3, 2**64 - 59], kind="cyclic"), (2,)),
}


@pytest.mark.parametrize("name", SANITIZED)
def test_sanitizer_of_transforms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SANITIZED) <= 42
    make, batch = SANITIZED[name]
    ring = make()
    names = noted_kernels(monkeypatch)
    small = {"l2_bytes": 4 << 20} if "flow" in name else {}  # few rows flow with a small cache
    with nullcontext() if "few" in name else card_of(1, **small):
        check_ring(ring, batch)
    assert ("flow" in name) == ("ntt_forward_flow" in names) == ("ntt_inverse_flow" in names)
    a, b = drawn(ring, (2, 1), 1), drawn(ring, (3,), 2)
    if ring.n <= 512:
        agree(lambda x, y: x * y - x, a, b)
        integers = np.array([[-(2**63), 2**63 - 1], [0, -1]])[:, : ring.n]
        same(ring(cupy.asarray(integers)), ring(integers))


# ---- products by FFT ----


@pytest.mark.parametrize("moduli", DIGITS, ids=str)
@pytest.mark.parametrize("log_n", range(17))
def test_products_by_fft(log_n: int, moduli: Any) -> None:
    """One kernel serves short rows, several passes long ones. Products equal those by auxiliary primes."""
    batch = (5, 7) if log_n < 10 else (5,)
    for kind in KINDS:
        check_products_by_fft(Ring(1 << log_n, moduli, kind=kind), batch)
    if 3 <= log_n < 16:
        check_products_by_fft(Ring((1 << log_n) + 3, moduli), batch)


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
    """There are more rows than one chunk or all multiprocessors take. Products match the host."""
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


# ---- Fourier transforms ----


@test_fft.on_every_type
def test_ffts_of_a_million_rows(dtype: Any) -> None:
    """Some rows are compared with NumPy in long double, all with smaller batches and by the inverse."""
    rows = (1 << 20) + 3
    generator = cupy.random.RandomState(1)
    x = cupy.empty((rows, 64), dtype)
    x.real, x.imag = generator.standard_normal((rows, 64)), generator.standard_normal((rows, 64))
    found = fft.fft64(x)
    some = [0, 1, 15, 16, rows // 2, rows - 4, rows - 3, rows - 1]
    assert test_fft.error(found[some], test_fft.exact(cupy.asnumpy(x[some]))) < test_fft.SHORT[dtype]
    step = 99991
    for first in range(0, rows, step):
        assert bool((fft.fft64(x[first : first + step]) == found[first : first + step]).all())
    fft.fft64(found, inverse=True, out=found)
    wrong = cupy.linalg.norm(found - x, axis=-1)
    assert float((wrong / cupy.linalg.norm(x, axis=-1)).max()) < 2.1 * test_fft.SHORT[dtype]


@pytest.mark.usefixtures("whole_card")
def test_ffts_of_more_than_2_to_the_32_numbers() -> None:
    """Indices exceed 32 bits: 32 GiB, in place."""
    if cupy.cuda.runtime.memGetInfo()[0] < 36 * GIB:
        pytest.skip("needs 36 GiB of free memory")
    rows = 2**26 + 5
    x = cupy.empty((rows, 64), np.complex64)
    fill = cupy.ElementwiseKernel(
        "", "float32 x", "x = (float)((i * 0x9e3779b97f4a7c15ull >> 44)) - 524288.f", "test_fill_reals"
    )
    fill(x.view(np.float32))
    some = [0, 1, 2**25 - 1, 2**25, 2**26 - 1, 2**26, rows - 1]
    kept, f = cupy.asnumpy(x[some]), test_fft.values((64,), np.complex64)
    assert fft.fft64(x, out=x) is x
    assert test_fft.error(x[some], test_fft.exact(kept)) < test_fft.LONG[np.complex64]
    kept = cupy.asnumpy(x[some])
    assert fft.convolve64(x, cupy.asarray(f), out=x) is x
    assert test_fft.error(x[some], test_fft.exact_convolution(kept, f)) < test_fft.LONG[np.complex64]


def test_ffts_on_streams() -> None:
    """FFTs run in the order of their stream, and the host does not wait for them."""
    x = test_fft.values((1000, 64), np.complex64)
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
    x = cupy.asarray(test_fft.values((100, 64), np.complex64, 1))
    f = cupy.asarray(test_fft.values((64,), np.complex64, 2))
    replay = backend.capture(lambda: (fft.fft64(x), fft.convolve64(x, f), fft.fft(x.reshape(-1, 256))))
    for seed in (3, 4):
        x[...] = cupy.asarray(test_fft.values((100, 64), np.complex64, seed))
        expected = fft.fft64(x), fft.convolve64(x, f), fft.fft(x.reshape(-1, 256))
        for got, value in zip(replay(), expected, strict=True):
            assert bool((got == value).all())


@test_fft.on_every_type
def test_sanitizer_of_ffts(dtype: Any) -> None:
    """CUDA's checkers run on rows of one thread, of a warp and of a block, and on partial batches."""
    for n in (1, 2, 8, 16, 64, 128, 256, 512, 4096):
        x = test_fft.values((5, n), dtype)
        for inverse in (False, True):
            y = cupy.asarray(x)
            assert (
                test_fft.error(fft.fft(y, inverse=inverse), test_fft.exact(x, inverse)) < test_fft.LONG[dtype]
            )
            fft.fft(y, inverse=inverse, out=y)
            assert test_fft.error(y, test_fft.exact(x, inverse)) < test_fft.LONG[dtype]
    for rows in (1, 21):
        a, b = test_fft.values((rows, 64), dtype, 1), test_fft.values((rows, 64), dtype, 2)
        x, y = cupy.asarray(a), cupy.asarray(b)
        assert (
            test_fft.error(fft.convolve64(x, y[0]), test_fft.exact_convolution(a, b[0]))
            < test_fft.LONG[dtype]
        )
        assert (
            test_fft.error(fft.convolve64(x, y, out=y), test_fft.exact_convolution(a, b))
            < test_fft.LONG[dtype]
        )


# ---- products of matrices ----


@pytest.mark.parametrize("q", [2**30 - 35, 2**62 - 57])
def test_integer_matmul_of_large_matrices(q: int) -> None:
    """Some rows of the product are compared with Python integers."""
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


def ways(q: int) -> list[Callable[..., None]]:
    """The functions that multiply matrices modulo q."""
    by_digits = [matmul.by_digits] if has_digits(q, basis_of((q,)).dtype.itemsize) else []
    return [matmul.by_integer, *by_digits, matmul.by_residues]


def words_of(q: int, *shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    dtype = basis_of((q,)).dtype
    top = np.iinfo(dtype).max
    return [
        np.random.default_rng([q, i]).integers(0, top, shape, dtype, endpoint=True)
        for i, shape in enumerate(shapes)
    ]


def check_rows(q: int, a: Any, b: Any, out: Any, rows: list[int]) -> None:
    """Compares these rows of every product with Python integers."""
    for s, row in itertools.product(range(len(out)), rows):
        left, right = a[s % len(a), row].astype(object), b[s % len(b)].astype(object)
        np.testing.assert_array_equal(out[s, row].get(), (left @ right % q).astype(out.dtype))


@pytest.mark.usefixtures("whole_card")
@pytest.mark.parametrize("q", [2**31 - 1, 2**62])
def test_matmul_of_more_than_65535_blocks(q: int) -> None:
    """Batches, rows and columns need more blocks than the second and third grid axis hold."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    for batch, m, k, n in ((70000, 3, 5, 4), (1, 128 * 65535 + 5, 3, 2), (1, 2, 3, 32 * 65535 + 5)):
        a, b = words_of(q, (batch, m, k), (batch, k, n))
        x, y = cupy.asarray(a), cupy.asarray(b)
        results = []
        for product in ways(q):
            results.append(cupy.empty((batch, m, n), basis.dtype))
            product(backend, basis, x, y, results[-1])
        for s, row in ((0, 0), (batch - 1, m - 1), (batch // 2, m // 2)):
            expected = a[s, row].astype(object) @ b[s].astype(object) % q
            np.testing.assert_array_equal(results[0][s, row].get(), expected.astype(basis.dtype))
        for other in results[1:]:
            cupy.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize(("n", "q"), [(16, 2**32), (24, 2**31 - 1), (128, 2**60 - 93), (100, 2**13)])
def test_products_of_many_polynomials_and_one(n: int, q: int) -> None:
    """The ring computes many short polynomials times one as a matrix product."""
    ring = pg.Ring(n, q)
    count = -(-(1 << 22) // n)
    with pg.device(GPU):
        many, one = ring.random((count,), seed=1), ring.random(seed=2)
        assert get_backend(GPU).prefers_matrix(product_plan(ring), count)
        product = many * one
        assert product == one * many == pg.Poly.mul(many, one, product="ntt")
        assert many[:5] * one == product[:5]


# (batch of a, of b, m, k, n): several waves of blocks, and few blocks of many stages.
LARGE = [(1, 1, 1100, 1100, 1100), (1, 1, 1025, 1023, 1090), (3, 1, 300, 257, 514), (1, 3, 514, 254, 300)]
LARGE += [(1, 1, 129, 5000, 257), (5, 5, 129, 130, 131), (1, 1, 7, 2048, 1024), (1, 1, 2000, 64, 20)]


@pytest.mark.parametrize("q", [3, 2**31 - 1, 2**32 - 5, 2**32, 2**60 - 93, 2**62])
def test_large_matmul_by_every_method(q: int) -> None:
    """Every method and the card's choice agree. Some rows are compared with Python integers."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    for left, right, m, k, n in LARGE:
        a, b = words_of(q, (left, m, k), (right, k, n))
        x, y = cupy.asarray(a), cupy.asarray(b)
        results = []
        for product in (matmul.matmul, *ways(q)):
            results.append(cupy.full((max(left, right), m, n), q - 1, basis.dtype))
            product(backend, basis, x, y, results[-1])
        check_rows(q, a, b, results[0], [0, m // 2, m - 1])
        for other in results[1:]:
            cupy.testing.assert_array_equal(other, results[0])
        cupy.testing.assert_array_equal(x, a)
        cupy.testing.assert_array_equal(y, b)


VIEWS: tuple[Callable[[Any, Any], tuple[Any, Any]], ...] = (
    lambda a, b: (a[:, :1280], b),
    lambda a, b: (a.T[:1280], a),
    lambda a, b: (a[:, ::2], b[644::-1, 3:]),
    lambda a, b: (a[::-1, 5:1285], b[:, ::-3]),
)


@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5, 2**60 - 93])
def test_matmul_of_any_layout(q: int) -> None:
    """Views are not contiguous, integers may be signed, and sizes are large enough for tensor cores."""
    matmul = pg.linalg.matmul
    a, b = words_of(q, (640, 1290), (1280, 1284))
    for view in VIEWS:
        got = matmul(*view(cupy.asarray(a), cupy.asarray(b)), q=q)
        np.testing.assert_array_equal(got.get(), matmul(*view(a, b), q=q))
    a = np.random.default_rng(q).integers(-(2**63), 2**63 - 1, (2, 600, 600), np.int64, endpoint=True)
    x = cupy.asarray(a)
    np.testing.assert_array_equal(matmul(x, x[::-1], q=q).get(), matmul(a, a[::-1], q=q))


@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5])
def test_matmul_in_a_graph(q: int) -> None:
    """cuBLAS cannot be captured, so a captured product takes another method."""
    n, ring = 2048, Ring(2048, q)
    backend: Any = get_backend(GPU)
    assert matmul_method(q, ring.dtype.itemsize, 1, n, n, n, backend.card) == "residues"
    x = drawn(ring, (n,), 1).to(GPU)

    def square(x: Poly) -> Any:
        return pg.linalg.matmul(x.data[:, 0], x.data[:, 0], q=q)

    replay = pg.capture(square, x)
    for seed in (2, 3):
        x.data[...] = cupy.asarray(drawn(ring, (n,), seed).data)
        cupy.testing.assert_array_equal(replay(), square(x))


def test_matmul_with_little_memory(little_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries of the residue method do not fit, so another is used. Operands do not change."""
    q = 2**31 - 1
    (a,) = words_of(q, (1024, 1024))
    x, backend = cupy.asarray(a), get_backend(GPU)
    out = cupy.empty((1, 1024, 1024), x.dtype)
    with pytest.raises(pg.errors.OutOfDeviceMemory, match=r"cuda:0 .*memory"):
        matmul.by_residues(backend, basis_of((q,)), x[None], x[None], out)  # type: ignore[arg-type]
    gc.collect()
    monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: "residues")
    check_rows(q, a[None], a[None], pg.linalg.matmul(x, x, q=q)[None], [0, 700])
    cupy.testing.assert_array_equal(x, a)


@pytest.mark.parametrize("q", [2**31 - 1, 2**60 - 93])
def test_matmul_on_streams(q: int) -> None:
    """Every method returns while the stream is busy and reads what was queued there before."""
    basis, backend = basis_of((q,)), get_backend(GPU)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, y, out = (cupy.zeros((1, 130, 130), basis.dtype) for _ in range(3))
        for product in ways(q):
            multiply = partial(product, backend, basis, x, y, out)
            x[...] = y[...] = 1
            multiply()  # makes kernels and tables
            stream.synchronize()
            spin(300)
            x[...], y[...] = 5, 7
            multiply()
            busy = not stream.done
            assert busy and (out == 35 * 130).all()


def test_sanitizer_of_matmul() -> None:
    """CUDA's checkers run on partial tiles, copies of every size and several stages."""
    for q in (2**31 - 1, 2**32, 2**62):
        for product, k in itertools.product(ways(q), (36, 131, 134)):
            matrices.check_matmul(get_backend(GPU), q, (2, 130, k), (1, k, 37), multiply=product)


# ---- operations on batches ----

OF_BATCHES = {
    "30 bits": Ring(64, ntt_primes(64, bits=30)),
    "60 bits": Ring(64, ntt_primes(64, bits=60)),
    "RNS": Ring(64, ntt_primes(64, bits=50, count=3)),
    "incomplete": Ring(16, [17, 97]),
    "2^64": Ring(12, 2**64, product="ntt"),
    "by FFT": Ring(12, [2**64, 3], product="fft"),
    "wide": Ring(4, 2**128),
}


@pytest.mark.parametrize("name", [name for name in OF_BATCHES if name != "wide"])  # wide values leave the GPU
def test_capture_of_a_matrix_product(name: str) -> None:
    ring = OF_BATCHES[name]
    a, b = drawn(ring, (3, 3), 1), drawn(ring, (3, 3), 2)
    x, y = a.to(GPU), b.to(GPU)
    replay = pg.capture(lambda x, y: x @ y, x, y)
    same(replay(), a @ b)
    pg.matmul(y, y, out=x)
    same(replay(), b @ b @ b)


def test_matmul_out_of_memory_raises() -> None:
    matmul = pg.linalg.matmul
    long = cupy.ones((2**20, 1), np.uint32)
    with pytest.raises(pg.errors.OutOfDeviceMemory, match=r"cuda:0 .*memory"):
        matmul(long, long.T, q=97)
    ring = OF_BATCHES["30 bits"]
    with pytest.raises(pg.errors.OutOfDeviceMemory, match=r"cuda:0 .*memory"):
        pg.einsum("i,j->ij", ring.zeros(2**17).to(GPU), ring.zeros(2**17).to(GPU))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [30, 60])
def test_automorphisms_of_long_rows(bits: int, kind: Any) -> None:
    ring = Ring(2**16, prime(2**16, bits, kind), kind=kind)
    a = drawn(ring, (2,))
    for x, g in itertools.product((a, a.ntt()), (5, -1)):
        agree(lambda x, g=g: x.automorphism(g), x)


def test_gpu_arrays_of_other_libraries_raise() -> None:
    class Tensor:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<u4", "data": (1, False), "version": 3}  # noqa: RUF012

    with pytest.raises(pg.DeviceError, match=r"cupy\.asarray"):
        OF_BATCHES["30 bits"](Tensor())


# ---- devices ----


def test_devices_by_name() -> None:
    with pg.device("cuda") as name:
        assert name == GPU and Ring(4, 17)([1, 2]).device == GPU
    count = cupy.cuda.runtime.getDeviceCount()
    with (
        pytest.raises(pg.errors.BackendUnavailable, match=f"The number of GPUs is {count}"),
        pg.device(f"cuda:{count}"),
    ):
        pass
    with pytest.raises(pg.errors.BackendUnavailable, match="GPUs"):
        drawn(Ring(4, 17)).to("cuda:999")


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
    "30 bits": Ring(64, ntt_primes(64, bits=30)),
    "50 bits, RNS": Ring(64, ntt_primes(64, bits=50, count=3)),
    "long": Ring(2**17, ntt_primes(2**17, bits=30)),
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
def test_operations_on_streams(name: str) -> None:
    """No work runs before earlier work of its stream, and none runs on another stream."""
    ring = STREAM_RINGS[name]
    a, b = drawn(ring, (3,), 1), drawn(ring, (3,), 2)
    expected = several(a, b)
    several(a.to(GPU), b.to(GPU))  # makes kernels and tables
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
    """Calls return while the stream is still busy, so nothing synchronises."""
    ring = STREAM_RINGS["50 bits, RNS"]
    x, y = drawn(ring, (3,), 1).to(GPU), drawn(ring, (3,), 2).to(GPU)
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
    """A stream does not read tables before another stream has filled them."""
    n, moduli, warm_moduli = {
        "complete": (1024, ntt_primes(1024, bits=60, count=9)[8], ntt_primes(1024, bits=60)[0]),
        "incomplete": (512, halved(512, 28, 1), halved(512, 27, 1)),
        "auxiliary": (40, 2**63 - 25, 2**63 - 24),
        "FFT": (40, 2**63 - 23, 2**63 - 22),
        "constants": (1024, ntt_primes(1024, bits=60, count=11)[10], ntt_primes(1024, bits=60)[0]),
    }[kind]

    def compute(x: Poly, y: Poly) -> Poly:
        if kind == "constants":
            return x[:, None] * (x.ring.modulus - 5) + y[None]
        return x * y

    product: Any = {"auxiliary": "ntt", "FFT": "fft"}.get(kind, "auto")
    warm, ring = Ring(n, warm_moduli, product=product), Ring(n, moduli, product=product)
    for _ in range(2):  # compiles the kernels
        compute(drawn(warm, (2,), 1).to(GPU), drawn(warm, (2,), 2).to(GPU))
    a, b = drawn(ring, (3,), 1), drawn(ring, (3,), 2)
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
def test_operations_in_threads(own_streams: bool) -> None:
    """Two threads run at a time, on shared rings and on rings of their own."""
    shared = [Ring(64, ntt_primes(64, bits=bits, count=7)[6]) for bits in (30, 50, 60)]
    if own_streams:  # test_streams_share_tables covers tables that streams share
        for ring in shared:
            several(drawn(ring, (3,), 1).to(GPU), drawn(ring, (3,), 2).to(GPU))
        cupy.cuda.Device().synchronize()

    def work(thread: int) -> None:
        with (
            cupy.cuda.Device(0),
            cupy.cuda.Stream(non_blocking=True) if own_streams else cupy.cuda.Stream.null,
        ):
            own = Ring(64, ntt_primes(64, bits=60, count=10)[8 + thread])
            for turn in range(10):
                for ring in (*shared, own):
                    a, b = drawn(ring, (3,), turn + 100 * thread), drawn(ring, (3,), turn)
                    for got, value in zip(several(a.to(GPU), b.to(GPU)), several(a, b), strict=True):
                        same(got, value)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, thread) for thread in range(2)]:
            done.result()


# ---- the first call ----


def first_call(**variables: str) -> float:
    """Seconds that the first transforms and product of a ring take in a process of their own."""
    program = (
        "import time, polygpu as pg, numpy as np\n"
        "ring = pg.Ring(2**16, pg.ntt_primes(2**16, bits=30))\n"
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
    """A second process finds all compiled kernels on disk and finishes sooner."""
    folder = tmp_path / "kernels"
    first = first_call(CUPY_CACHE_DIR=str(folder))
    kept = {path.name for path in folder.iterdir()}
    second = first_call(CUPY_CACHE_DIR=str(folder))
    assert {path.name for path in folder.iterdir()} == kept
    assert len(kept) >= 5 and first < 10 and second < first / 2


def test_kernels_are_compiled_without_a_home() -> None:
    assert first_call(HOME="/proc/nowhere", POLYGPU_CACHE_DIR="/proc/nowhere") < 10


def test_tables_of_2_to_the_24_points_are_built_in_time() -> None:
    """With a known root and compiled kernels, a ring is ready in 0.2 s."""
    n, seconds = 2**24, []
    data = cupy.zeros((1, n), np.uint64)
    for q in ntt_primes(n, bits=60, count=3):
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
    ("n", "moduli"),
    [(4, ntt_primes(4, bits=30)), (4, ntt_primes(4, bits=60, count=2)), (4, 13), (3, 2**64), (1, 17)],
)
def test_batches_of_more_than_65535_rows(n: int, moduli: Any) -> None:
    ring = Ring(n, moduli)
    check_ring(ring, (2**17 + 3,))
    a, b = drawn(ring, (70001, 1), 1), drawn(ring, (2,), 2)
    agree(Poly.add, a, b)
    agree(Poly.mul, a, b)
    integers = np.random.default_rng(1).integers(-(2**62), 2**62, size=(70001, n))
    same(ring(cupy.asarray(integers)), ring(integers))


@pytest.mark.usefixtures("whole_card")
def test_operations_on_more_than_2_to_the_32_residues() -> None:
    """Indices exceed 32 bits, signed and unsigned: 16 GiB per array."""
    ring = Ring(16, ntt_primes(16, bits=30))
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
    constant = drawn(ring)
    agree(x.mul(constant.to(GPU), out=out), lambda a: a * constant)
    agree(x.sub(constant.to(GPU), out=out), lambda a: a - constant)
    del out
    agree(x.automorphism(3), lambda a: a.automorphism(3))


def _equal_in_parts(x: Poly, y: Poly) -> bool:
    step = 1 << 26
    return all(x[i : i + step] == y[i : i + step] for i in range(0, len(x), step))


@pytest.mark.usefixtures("whole_card")
def test_integers_and_leaves_of_more_than_2_to_the_31_residues() -> None:
    """Kernels of integers and of incomplete transforms run on more than 8 GiB."""
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
    """CuPy's pool may grow by at most 32 MiB."""
    pool = cupy.get_default_memory_pool()
    gc.collect()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + (32 << 20))
    yield
    pool.set_limit(size=0)


def test_out_of_memory_on_the_card() -> None:
    ring = OF_BATCHES["30 bits"]
    a = drawn(ring, (3,), 1)
    x = a.to(GPU)
    with (
        pg.device("cuda"),
        pytest.raises(pg.errors.OutOfDeviceMemory, match=r"cuda:0 .*memory.*smaller batches"),
    ):
        ring.zeros(2**40)
    same(x * x, a * a)


def test_out_of_memory_within_a_call(little_memory: None) -> None:
    """The operands do not change, and the next call succeeds."""
    for ring in (Ring(2**17, prime(2**17, 30)), Ring(2**15, 2**60)):
        size = 24 << 20
        a = drawn(ring, (size // (ring.n * ring.dtype.itemsize),), 1)
        small = drawn(ring, (), 2)
        x, y = a.to(GPU), small.to(GPU)
        for call in (lambda x: (x * x).ntt(), lambda x: pg.stack([x] * 3), lambda x: x.copy() + x.copy()):
            with pytest.raises(pg.errors.OutOfDeviceMemory, match=r"cuda:0 .*memory.*smaller batches"):
                call(x)
            gc.collect()
        same(x, a)
        del x
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        same(y + y, small + small)


def test_repeated_calls_leak_no_memory() -> None:
    """Repeated calls leave as much memory in use as before."""
    ring = Ring(2**16, ntt_primes(2**16, bits=30, count=4))
    x = drawn(ring, (8,), 1).to(GPU)
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


# ---- lattices ----


@pytest.mark.parametrize(("bits", "log_n", "size"), [(30, 10, 2), (50, 12, 1), (60, 11, 2), (50, 15, 1)])
def test_sanitizer_of_key_switches(bits: int, log_n: int, size: int) -> None:
    """CUDA's checkers run on rows of one warp and of several, few rows and many."""
    T = Ring(1 << log_n, ntt_primes(1 << log_n, bits=bits, count=3 + size))
    Q, special = T[:3], T[3:]
    x, key, add = drawn(Q, (), 1).ntt(), drawn(T, (-(-3 // size), 2), 2).ntt(), drawn(Q, (2,), 3).ntt()
    expected = lattice.key_switch(x, as_key(key, size, special), add=add)
    for multiprocessors in (1, 132):
        with card_of(multiprocessors):
            found = lattice.key_switch(x.to(GPU), as_key(key.to(GPU), size, special), add=add.to(GPU))
        same(found, expected)


@pytest.mark.parametrize(("bits", "n", "k"), [(31, 1024, 2), (50, 512, 3), (60, 256, 1)])
def test_sanitizer_of_blind_rotations(bits: int, n: int, k: int) -> None:
    """One block holds one ciphertext. Two ciphertexts are many for one card and few for the other."""
    R = Ring(n, ntt_primes(n, bits=bits))
    c, keys = drawn(R, (2, k), 1), drawn(R, (2, k, 2, k), 2).ntt()
    exponents = np.array([[1, 3, n + 5], [2 * n - 1, 0, n]])
    expected = lattice.blind_rotate(c, keys, exponents, bits=7)
    for multiprocessors in (1, 132):
        with card_of(multiprocessors):
            same(lattice.blind_rotate(c.to(GPU), keys.to(GPU), exponents, bits=7), expected)
