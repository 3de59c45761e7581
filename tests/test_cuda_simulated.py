"""The kernels of cuda/ and their launch code, run on the CPU by tests/cudasim, match the CPU backend."""

import gc
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import nvrtc
import pytest
import test_fft
from cudasim import CARDS, check, in_place_of_cupy, streams
from devices import agree, forget, needs_compiler, noted_kernels, product_plan, same, simulated
from oracle import KINDS, chain, check_products_by_fft, check_ring, check_transform, drawn
from test_multiply import BY_FFT

import polygpu as pg
from polygpu import _backends as backends
from polygpu import fft, lattice
from polygpu._backends import cuda
from polygpu._backends.cuda.device import Shared
from polygpu._backends.cuda.launch import modulus_constants
from polygpu._backends.cuda.tiles import (
    Rows,
    fft_tile,
    flow_lag,
    prefetch_distance,
    split_passes,
    table_offsets,
)
from polygpu._backends.cuda.transform import (
    packed_tables,
    passes_over,
    transform_recipe,
)
from polygpu._backends.cuda.words import (
    COMPLEX,
    Card,
    goldilocks_word,
    groups_of,
    transform_groups,
    word_of,
)
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.basis import basis_of
from polygpu._core.plans.cache import Calls
from polygpu._core.plans.ntt import NttPlan, prime_tables
from polygpu._core.plans.product import fft_error_bound, plan_fft
from polygpu._core.quotient import Quotient

ORDERS = ("forward", "reverse", "random")
WORDS = {29: "Lazy32", 30: "Lazy32", 31: "Tight32", 32: "Strict32", 45: "Float64", 50: "Float64"}
WORDS |= {60: "Lazy60", 61: "Lazy64", 62: "Lazy64", 63: "Strict64", 64: "Strict64"}
PI = np.longdouble("3.14159265358979323846264338327950288")


@pytest.fixture
def gpu():
    with simulated(order="random", seed=7, concurrent_blocks=3) as cupy:
        yield cupy


def check_products(ring, batch=(3,)):
    """Transforms of a batch whose first value is the largest, and its products with that and with others."""
    a, b = drawn(ring, batch, 1), drawn(ring, batch, 2)
    check_transform(a)
    agree(pg.Poly.mul, a, a[0])
    agree(pg.Poly.mul, a, b)


def primes(n, bits, kind="negacyclic", count=1):
    return pg.ntt_primes(n, bits=bits, count=count, kind=kind)


# ---- what runs on a card, bit for bit ----


@needs_compiler
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("bits", WORDS)
def test_operations_in_any_order_of_threads(bits, order):
    """Simulated threads run in several orders. Tests on all devices use a random order."""
    with simulated(order=order, seed=bits):
        for kind in KINDS:
            ring = pg.Ring(64, primes(64, bits, kind), kind=kind)
            (group,) = groups_of(ring._plan.basis, backends.get_backend("cuda:0").card)
            assert (group.limbs, group.word.argument) == ((0,), WORDS[bits])
            check_ring(ring)
        check_ring(pg.Ring(256, 3329), (2, 3))


@needs_compiler
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("kind", KINDS)
def test_goldilocks_in_any_order_of_threads(kind, order):
    """Few rows take rounds of one to three stages. Rings with limbs of other words are included."""
    with simulated(order=order, seed=1):
        for n in (2, 4, 8, 16, 64, 512, 2**13):
            check_products(pg.Ring(n, GOLDILOCKS, kind=kind))
        check_products(pg.Ring(32, GOLDILOCKS, kind=kind, root="generator"))
        check_products(pg.Ring(64, [*primes(64, 50, kind), GOLDILOCKS, *primes(64, 30, kind)], kind=kind))
        check_products(pg.Ring(2**14, GOLDILOCKS, kind=kind), (1,))  # in two passes


@needs_compiler
@pytest.mark.parametrize("size", [9, 10, 12, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_goldilocks_of_many_rows(gpu, kind, size, monkeypatch):
    """Rounds have up to five stages if the rows fill a card, here one of a single multiprocessor."""
    backend = backends.get_backend("cuda:0")
    monkeypatch.setattr(backend, "card", replace(backend.card, multiprocessors=1))
    kernels = noted_kernels(monkeypatch)
    check_products(pg.Ring(1 << size, GOLDILOCKS, kind=kind), ((4096 >> size) + 1,))
    (one,) = split_passes(1 << size, 1, 8, backend.card)
    assert one.log_values == (5 if size == 13 else 4) and any(one.shape in name for name in kernels)


@needs_compiler
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_ffts_in_any_order_of_threads(dtype, order):
    """Every order gives the same bits."""
    found = []
    for options in ({"order": order}, {"order": "random", "concurrent_blocks": 3}):
        with simulated(**options) as cupy:
            rows = [cupy.asarray(test_fft.values((33, 1 << i), dtype)) for i in range(13)]
            found.append([fft.fft(x, inverse=inverse).get() for x in rows for inverse in (False, True)])
            a, b = (cupy.asarray(test_fft.values((33, 64), dtype, seed)) for seed in (1, 2))
            found[-1] += [fft.convolve64(a, b).get(), fft.convolve64(a, b[0], out=a).get()]
    for x, y in zip(*found, strict=True):
        np.testing.assert_array_equal(x, y)


@needs_compiler
@pytest.mark.parametrize("size", [7, 9, 11])
def test_transforms_of_many_short_rows(gpu, size, monkeypatch):
    """If rows fill a card, here of one multiprocessor, they take other tiles than few rows."""
    backend = backends.get_backend("cuda:0")
    monkeypatch.setattr(backend, "card", replace(backend.card, multiprocessors=1))
    kernels = noted_kernels(monkeypatch)
    n, batch = 1 << size, (4096 >> size) + 1
    (one,) = split_passes(n, 1, 4 if size == 9 else 8, backend.card)
    ring = pg.Ring(n, primes(n, {7: 60, 9: 30, 11: 50}[size]))
    check_products(ring, (batch,))
    assert one.log_values == 4 and sum(one.shape in name for name in kernels) == 3
    kernels.clear()
    agree(pg.Poly.mul, drawn(ring, (1,), 1), drawn(ring, (1,), 2))
    (small,) = split_passes(n, 1, 4 if size == 9 else 8, backend.card, few=True)
    assert small != one and any("ntt_product<" in name and small.shape in name for name in kernels)


@needs_compiler
def test_incomplete_transforms_of_many_short_rows(gpu, monkeypatch):
    """Transforms of many rows and of few rows alternate."""
    backend = backends.get_backend("cuda:0")
    monkeypatch.setattr(backend, "card", replace(backend.card, multiprocessors=1))
    ring = pg.Ring.preset("ml-kem")
    for batch in (17, 2, 17):
        check_products(ring, (batch,))
        agree(pg.Poly.mul, drawn(ring, (batch,), 1).ntt(), drawn(ring, (batch,), 2).ntt())


@needs_compiler
@pytest.mark.parametrize(
    "card, size, bits",
    [
        ("h100", 13, 30),
        ("h100", 14, 50),
        ("h100", 14, 60),
        ("h100", 15, 30),
        ("h100", 16, 30),
        ("h100", 17, 50),
        ("t4", 13, 50),
        ("t4", 14, 30),
        ("rtx3090", 14, 60),
        ("rtx3090", 13, 64),
        ("48 KB", 13, 30),
        ("48 KB", 12, 64),
        ("48 KB", 13, 50),
    ],
)
def test_transforms_of_long_rows(card, size, bits):
    """Rows are as long as one pass allows, or longer; single rows and batches."""
    with simulated("t4" if card == "48 KB" else card, order="random", seed=1):
        backend = backends.get_backend("cuda:0")
        if card == "48 KB":
            backend.card = replace(backend.card, shared_bytes=48 << 10)
        ring = pg.Ring(1 << size, GOLDILOCKS if bits == 64 else primes(1 << size, bits))
        a, b = ring.random(seed=1), ring.random(seed=2)
        alone = passes_over(1, ring.n, 1, ring.dtype.itemsize, backend.card)
        for _ in range(2):
            same(a.to("cuda").ntt(), a.ntt())
            same(a.ntt().to("cuda").intt(), a)
            same(a.to("cuda") * b.to("cuda"), a * b)
            backend.card = replace(backend.card, multiprocessors=1)  # which one row fills
        assert passes_over(1, ring.n, 1, ring.dtype.itemsize, backend.card) != alone


def pieces(*shapes):
    """Stands in for split_passes. A shape: log2 of stages, columns, rows, and columns of a thread."""

    def split(points, base, word_bytes, card, few=False):
        (like,) = split_passes(16, 1, word_bytes, card)
        passes, done = [], 0
        for stages, columns, rows, *width in shapes:
            shape = {"log_length": stages, "log_columns": columns, "log_rows": rows}
            shape["log_width"] = sum(width)
            passes.append(replace(like, log_blocks=done, log_values=min(stages, 4), **shape))
            done += stages
        return tuple(passes)

    return split


@needs_compiler
@pytest.mark.parametrize("bits", [30, 31, 50, 60, 62])
def test_transforms_in_three_passes(bits, monkeypatch):
    """On cards three passes begin at 2^23 points; here at 2^12. Values stay lazy between passes."""
    monkeypatch.setattr(cuda.transform, "split_passes", pieces((3, 4, 2), (5, 2, 3), (4, 0, 6)))
    for kind, order in zip(KINDS, ("reverse", "random"), strict=True):
        with simulated(order=order, seed=bits):
            ring = pg.Ring(1 << 12, primes(1 << 12, bits, kind, count=2), kind=kind)
            check_products(ring)


@needs_compiler
@pytest.mark.parametrize("bits", [(60, 50, 30), (50, 62, 62)], ids=str)
@pytest.mark.parametrize("lag", [0, 2])
def test_transforms_of_limb_groups_in_several_passes(bits, lag, monkeypatch):
    """Columns of 30-bit limbs may be stored in 64 bits, and two passes may share one launch."""
    monkeypatch.setattr(cuda.transform, "split_passes", pieces((2, 5, 0), (5, 4, 0), (4, 0, 5)))
    monkeypatch.setattr(cuda.transform, "flow_lag", lambda *_: lag)
    monkeypatch.setattr(cuda.transform, "MAX_GRID_Y", 65535 if lag else 0)
    with simulated("rtx3090", order="random", seed=lag, concurrent_blocks=3):
        ring = chain(1 << 11, bits)
        check_products(ring)


@needs_compiler
def test_ring_with_more_limbs_than_one_launch(gpu):
    ring = chain(16, (30,) * 70 + (31,))
    groups = groups_of(ring._plan.basis, backends.get_backend("cuda:0").card)
    assert [len(group.limbs) for group in groups] == [64, 6, 1]
    check_products(ring)


@needs_compiler
@pytest.mark.parametrize(
    ("compute", "moduli", "product", "kernels"),
    [
        (pg.Poly.ntt, primes(16, 50), "auto", 2),
        (pg.Poly.mul, primes(16, 50), "auto", 2),
        (pg.Poly.mul, [*primes(16, 50), *primes(16, 60)], "auto", 4),
        (pg.Poly.mul, 2**32, "fft", 2),
    ],
)
def test_kernels_of_a_first_call_compile_in_parallel(gpu, monkeypatch, compute, moduli, product, kernels):
    """No kernel finishes compiling here before all have been requested."""
    together, load = threading.Barrier(kernels, timeout=30), gpu.RawModule.get_function

    def meeting(module, name):
        together.wait()
        return load(module, name)

    monkeypatch.setattr(gpu.RawModule, "get_function", meeting)
    ring = pg.Ring(16, moduli, product=product)
    operands = [drawn(ring, (2,), seed) for seed in (1, 2)]
    agree(compute, *operands[: 1 if compute is pg.Poly.ntt else 2])


@needs_compiler
def test_tables_are_filled_once_before_any_stream_reads_them(gpu, monkeypatch):
    """The first call may fail, and rings that share the tables may be freed."""
    ring = pg.Ring(64, primes(64, 50, count=2))
    x, names = ring.random((2,), seed=1), noted_kernels(monkeypatch)
    y, noted = x.to("cuda"), cuda.CudaBackend._kernel

    def refused(self, launch):
        raise pg.DeviceError(launch.kernel)

    monkeypatch.setattr(cuda.CudaBackend, "_kernel", refused)
    with pytest.raises(pg.DeviceError):
        y.ntt()
    monkeypatch.setattr(cuda.CudaBackend, "_kernel", noted)
    first, second = ring[:1], ring[1:]
    parts = [part.from_residues(x.data[:, i : i + 1].copy()) for i, part in enumerate((first, second))]
    moved = [part.to("cuda") for part in parts]
    with gpu.cuda.Stream(non_blocking=True):
        same(moved[0].ntt(), parts[0].ntt())
    assert any(name.startswith("fill_twiddles") for name in names)
    names.clear()
    same(moved[1].ntt(), parts[1].ntt())
    same(y.ntt(), x.ntt())
    assert not any(name.startswith("fill_twiddles") for name in names)


@needs_compiler
def test_rings_share_the_tables_of_primes(gpu, monkeypatch):
    """Parts of a ring, joined rings and chains with a wider word reuse tables on the device."""
    ring = chain(64, (50, 50, 60))
    x = ring.random(seed=1)
    same(x.to("cuda").ntt(), x.ntt())
    with monkeypatch.context() as patch:
        patch.setattr(cuda.transform, "_make_tables", None)
        for part in (ring[:2], ring[[2, 0]], ring[2:].join(ring[:1]), ring[1:]):
            x = part.random((2,), seed=2)
            same(x.to("cuda").ntt(), x.ntt())
            same(x.to("cuda") * x.to("cuda"), x * x)
    narrow, wide = chain(64, (30, 30)), chain(64, (30, 60))
    for ring in (narrow, wide):
        x = ring.random(seed=3)
        same(x.to("cuda").ntt(), x.ntt())


# Twiddles lie differently for words of 4 bytes, of 8 bytes and for doubles: each flow with all three.
FLOWS = [
    *product([((4, 4, 1), (5, 0, 4)), ((3, 3, 2), (5, 1, 3))], (30, 50, 60)),
    *product([((2, 5, 0), (5, 4, 0), (4, 0, 5)), ((4, 5, 1, 1), (6, 0, 3))], (31, 50, 62)),
]


@needs_compiler
@pytest.mark.parametrize("concurrent_blocks", [1, 5])
@pytest.mark.parametrize(("passes", "bits"), FLOWS)
def test_two_passes_in_one_launch(passes, bits, concurrent_blocks, monkeypatch):
    """The second pass follows the first by one or several units, of whole rows or blocks."""
    stages, base = sum(p[0] for p in passes), 1 << passes[-1][1]
    monkeypatch.setattr(cuda.transform, "split_passes", pieces(*passes))
    expressions = noted_kernels(monkeypatch)
    fitting = (q for q in primes(1 << stages, bits, count=80) if base == 1 or (q - 1) % (4 << stages))
    q, other = next(fitting), next(fitting)
    for lag in (1, 3):
        monkeypatch.setattr(cuda.transform, "flow_lag", lambda *_, lag=lag: lag)
        with simulated(order="random", seed=bits + lag, concurrent_blocks=concurrent_blocks):
            ring = pg.Ring(base << stages, [q, other])
            assert ring._plan.transform.leaf_size == base
            check_products(ring, (5,))
    assert {"ntt_forward_flow", "ntt_inverse_flow"} <= expressions


@needs_compiler
def test_incomplete_transforms_of_two_passes(monkeypatch):
    monkeypatch.setattr(cuda.transform, "split_passes", pieces((3, 4, 1), (4, 1, 3)))
    with simulated(order="random"):
        check_ring(pg.Ring.preset("ml-kem"), (3,))


# ---- products by FFT ----


@needs_compiler
@pytest.mark.parametrize("name", BY_FFT)
def test_products_by_fft_in_one_kernel(name, monkeypatch):
    """A single product, several products in a block, and a last block with fewer products."""
    n, moduli, kind = BY_FFT[name]
    names = noted_kernels(monkeypatch)
    for order in ORDERS:
        with simulated(order=order, seed=n):
            ring = pg.Ring(n, moduli, kind=kind)
            for batch in [(1,), (2,)] if n >= 1000 or order != "random" else [(1,), (2, 3), (19,)]:
                check_products_by_fft(ring, batch)
    digits = product_plan(ring, "fft").digits
    assert "fft_product" in names and "fft_multiply" not in names
    assert digits == int(name[0]) if "digit" in name else digits <= 4
    assert any(f", {1 << (digits - 1).bit_length()}, " in name for name in names)


@needs_compiler
def test_products_of_more_digits_than_a_kernel_holds(gpu, monkeypatch):
    """Five digits take several passes on every card."""
    names = noted_kernels(monkeypatch)
    ring = pg.Ring(2**13, 2**64 - 59)
    assert product_plan(ring, "fft").digits == 5
    check_products_by_fft(ring, (2,))
    assert "fft_compose" in names and "fft_product" not in names


@needs_compiler
@pytest.mark.parametrize("card", ["h100", "t4"])
def test_products_by_fft_on_cards(card, monkeypatch):
    """2^11 points of 2 digits take one kernel if they fit the shared memory of a block."""
    names = noted_kernels(monkeypatch)
    with simulated(card, order="random", seed=5):
        ring = pg.Ring(4096, 2**32)
        check_products_by_fft(ring, (1,))
        whole = fft_tile(product_plan(ring, "fft"), backends.get_backend("cuda:0").card) is not None
        assert whole == ("fft_product" in names) == (card == "h100")


@needs_compiler
@pytest.mark.parametrize("passes", [((4, 4, 1), (5, 0, 4)), ((2, 5, 0), (5, 4, 0), (4, 0, 5))])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_products_by_fft_of_several_passes(passes, lag, monkeypatch):
    """Products take two or three passes, of which two may share a launch."""
    monkeypatch.setattr(cuda.multiply, "fft_tile", lambda *_: None)
    monkeypatch.setattr(cuda.multiply, "split_passes", pieces(*passes))
    monkeypatch.setattr(cuda.transform, "flow_lag", lambda *_: lag)
    names = noted_kernels(monkeypatch)
    with simulated(order="random", seed=lag, concurrent_blocks=1 + lag):
        points = 1 << sum(p[0] for p in passes)
        n, kind = (points - 7, "cyclic") if lag == 1 else (2 * points, "negacyclic")
        check_products_by_fft(pg.Ring(n, [2**64, 3], kind=kind), (3,))
    assert ("ntt_forward_flow" in names) == ("ntt_inverse_flow" in names) == (lag > 0)


@needs_compiler
def test_product_algorithm_is_chosen_by_card(gpu, monkeypatch):
    """The FFT is taken if it is faster than auxiliary primes. The option `product` overrides this."""
    names = noted_kernels(monkeypatch)
    for options, launched in (
        ({}, "fft_product"),
        ({"product": "fft"}, "fft_product"),
        ({"product": "ntt"}, "auxiliary_compose"),
    ):
        plan_cache.forget()  # and calls that are prepared
        ring = pg.Ring(100, 2**32, **options)
        a, b = ring.random((2,), seed=1), ring.random((2,), seed=2)
        names.clear()
        same(a.to("cuda") * b.to("cuda"), pg.Poly.mul(a, b, product="ntt"))
        assert launched in names and len(names & {"fft_product", "auxiliary_compose"}) == 1
        with pg.device("cuda"):
            assert ("FFT of 128 complex points" in ring.explain()) == (launched == "fft_product")
    ring = pg.Ring(64, primes(64, 30))
    x = ring.random(seed=1).to("cuda")
    names.clear()
    same(x * x, ring.random(seed=1) ** 2)
    assert "ntt_product" in names and "fft_product" not in names


def tree_of_factors(points):
    """Twiddles of the nodes under X^points - i, stage by stage, in long doubles from exact turns."""
    turns = [Fraction(1, 4)]  # of the nodes' constants
    while len(turns) < points:
        angles = [np.longdouble(t.numerator) / t.denominator * PI for t in turns]  # half of them, in radians
        yield np.array([np.cos(x) + 1j * np.sin(x) for x in angles])[:, None]
        turns = [half + part for half in (t / 2 for t in turns) for part in (0, Fraction(1, 2))]


def transformed_exactly(row):
    for w in tree_of_factors(len(row)):
        u, v = np.split(row.astype(np.clongdouble).reshape(len(w), -1), 2, axis=-1)
        row = np.concatenate([u + w * v, u - w * v], axis=-1).ravel()
    return row


def transformed_back_exactly(row):
    for w in reversed(list(tree_of_factors(len(row)))):
        x, y = np.split(row.astype(np.clongdouble).reshape(len(w), -1), 2, axis=-1)
        row = np.concatenate([x + y, (x - y) * w.conj()], axis=-1).ravel()
    return row


@needs_compiler
@pytest.mark.parametrize("log_points", (4, 7, 9))
def test_errors_of_fft_passes_are_within_proven_bounds(gpu, log_points):
    """Forward errors are relative to a row's 2-norm, inverse ones to the sum of magnitudes."""
    points = 1 << log_points
    compute, planned = backends.get_backend("cuda:0"), plan_fft(Quotient("negacyclic", 2 * points), (2**20,))
    passes = split_passes(points, 1, 16, compute.card)
    tables = cuda.multiply._fft_tables(compute, planned, passes).on(gpu.cuda.Stream.null)
    moduli = compute.moduli(planned.basis)
    offsets = table_offsets(passes, COMPLEX)
    x = test_fft.values((5, points), np.complex128)
    there = gpu.asarray(x)
    packed = packed_tables([compute.address(tables)])
    rows, at = Rows(5, (0,), 1, log_points, COMPLEX, moduli, packed), compute.address(there)

    def transform(direction):
        compute.run_once(transform_recipe(rows, passes, offsets, direction, compute.card), at, at)

    transform("forward")
    found, exact = gpu.asnumpy(there), np.array([transformed_exactly(row) for row in x])
    eps = (1 + 17 / 4 * 2.0**-53) ** log_points - 1
    wrong = np.linalg.norm(found - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
    assert np.all(wrong < eps) and np.all(wrong > eps / 50)
    transform("inverse")
    exact = np.array([transformed_back_exactly(row) for row in found])
    wrong = np.abs(gpu.asnumpy(there) - exact).max(axis=-1) / np.abs(found).sum(axis=-1)
    assert np.all(wrong < eps) and np.all(wrong > 0)


@pytest.mark.parametrize("card", nvrtc.CARDS.values(), ids=lambda card: "sm_{}{}".format(*card.capability))
def test_tiles_of_products_by_fft(card):
    """A tile takes all stages of a plan, fits a block, and holds the digits of both operands."""
    for log_n, bits, kind in product(range(16), range(1, 65), KINDS):
        found = plan_fft(Quotient(kind, 1 << log_n), (1 << bits,))
        tile = fft_tile(found, card)
        if tile is None:
            assert found.digits > 4 or found.points >= 512
            continue
        digits = 1 << (found.digits - 1).bit_length()
        width, sums = found.split(digits)
        assert digits <= 4 and digits * width >= bits and sums <= 2 * digits - 1
        assert float(fft_error_bound(found.degree, found.points, digits, width)) <= found.error_bound < 0.5
        assert 1 << tile.log_length == found.points and tile.log_columns == 0
        assert 2 * digits <= min(1 << tile.log_rows, 1 << tile.log_values)
        assert 128 <= tile.threads <= 512 and 16 * tile.shared_values <= card.shared_bytes


# ---- two cards ----


@needs_compiler
def test_ffts_stay_on_their_device():
    with simulated(devices_count=2) as cupy:
        x = test_fft.values((3, 64), np.complex64)
        zero = cupy.asarray(x)
        with cupy.cuda.Device(1):
            one = cupy.asarray(x)
        for y, index in ((zero, 0), (one, 1)):
            for found in (
                fft.fft64(y),
                fft.fft(y, inverse=True),
                fft.convolve64(y, y),
                fft.convolve64(y, y[0]),
            ):
                assert found.device.id == index
        np.testing.assert_array_equal(fft.fft64(one).get(), fft.fft64(zero).get())
        with pytest.raises(pg.DeviceError, match="a is on cuda:0 and b is on cuda:1"):
            fft.convolve64(zero, one)
        with pytest.raises(pg.DeviceError, match="out is on cuda:1 and the operands are on cuda:0"):
            fft.fft64(zero, out=one)
        np.testing.assert_array_equal(zero.get(), x)


# ---- races and bad addresses ----

# Transforms and products by FFT of ragged batches: rows of a warp and of several, products that are folded
# and that are not, in one kernel and in passes. IN_PLACE is defined before.
FFTS = """
import numpy as np
from cudasim import simulated_cuda
import polygpu as pg
from polygpu import fft
from polygpu._backends import cuda
from test_fft import values

def multiply(*parameters, **options):
    ring = pg.Ring(*parameters, **options, product="fft")
    a = ring.random((3,), seed=1)
    x = a.to("cuda")
    y = x.copy()
    assert x.mul(y, out=x if IN_PLACE else None).cpu() == a.mul(a, product="ntt")

with simulated_cuda("h100", order="random", seed=1, concurrent_blocks=2) as cupy:
    for n, inverse in ((64, False), (512, True)):
        x = cupy.asarray(values((3, n), np.complex64))
        fft.fft(x, inverse=inverse, out=x)
    for rows in (1, 19):
        x, y = (cupy.asarray(values((rows, 64), np.complex64)) for _ in range(2))
        fft.convolve64(x, y, out=y if IN_PLACE else None)
        fft.convolve64(x, y[:1], out=x if IN_PLACE else None)
    multiply(20, [3, 2**32 - 5], kind="cyclic")
    multiply(512, 2**64 - 59)
    if not IN_PLACE:
        cuda.multiply.fft_tile = lambda *_: None
        multiply(20, [3, 2**32 - 5], kind="cyclic")
"""

OF_MATRICES = """
from dataclasses import replace
from cudasim import simulated_cuda
from matrices import check_matmul, check_points
from polygpu import _backends as backends
from polygpu._backends.cuda.matmul import by_integer

with simulated_cuda("h100", order="random", seed=1, concurrent_blocks=2):
    backend = backends.get_backend("cuda:0")
"""
OF_INTEGERS = """
    for q in (2**31 - 1, 2**32, 2**62):
        for m, n in ((34, 33), (3, 70), (70, 3), (1, 1)):
            check_matmul(backend, q, (2, m, 35), (2, 35, n), "words", by_integer)
            check_matmul(backend, q, (1, m, 400), (1, 400, n), "random", by_integer)
"""
AT_POINTS = """
    for multiprocessors in (0, 132):
        backend.card = replace(backend.card, multiprocessors=multiprocessors)
        for moduli in ((3, 2**31 - 1), (2**32,), (2**64, 5)):
            check_points(backend, moduli, (3, 9, 4, 5, 12))
            check_points(backend, moduli, (2, 5, 3, 7, 5), layout="transposed")
"""
ROTATIONS = """
from dataclasses import replace
import numpy as np
from cudasim import simulated_cuda
import polygpu as pg
from polygpu import _backends as backends, lattice

cases = []
for bits, n, k in ((31, 256, 2), (50, 512, 3), (60, 256, 1)):
    R = pg.Ring(n, pg.ntt_primes(n, bits=bits))
    c, keys = R.random((2, k), seed=1), R.random((2, k, 2, k), seed=2).ntt()
    exponents = np.array([[1, 3, n + 5], [2 * n - 1, 0, n]])
    cases.append((c, keys, exponents, lattice.blind_rotate(c, keys, exponents, bits=7)))
with simulated_cuda("h100", order="random", seed=1, concurrent_blocks=2):
    backend = backends.get_backend("cuda:0")
    for multiprocessors in (1, 132):  # of many ciphertexts, and of few
        backend.card = replace(backend.card, multiprocessors=multiprocessors)
        for c, keys, exponents, expected in cases:
            assert lattice.blind_rotate(c.to("cuda"), keys.to("cuda"), exponents, bits=7).cpu() == expected
"""
ROTATIONS_IN_DOUBLES = """
import numpy as np
from cudasim import simulated_cuda
import polygpu as pg
from polygpu import lattice
from polygpu._backends.cuda import torus
from polygpu._backends.cuda.tiles import Pass

cases = []
# n, bits of the modulus, bits and levels of digits, components;
# log2 of a thread's values, ciphertexts of a block, whether it stages the key, whether it is a cluster's;
# or bits of a group and whether kernels stage its keys
for n, modulus, bits, levels, k, log_values, items, is_staged, is_split in (
    (512, 64, 23, 1, 2, 3, 2, True, False),
    (512, 32, 9, 2, 3, 3, 1, False, False),
    (512, 32, 9, 2, 3, 3, 1, True, True),
    (1024, 64, 10, 2, 2, 4, 2, True, False),
    (2048, 64, 23, 1, 2, 5, 2, True, False),
    (2048, 64, 23, 1, 2, 3, 1, True, False),
    (2048, 64, 23, 1, 2, 3, 1, True, True),
):
    R = pg.Ring(n, 2**modulus)
    c, key = R.random((3, k), seed=1), R.random((2, k, levels, k), seed=2)
    exponents = np.array([[1, 3, n + 5], [2 * n - 1, 0, n], [0, 7, 9]])
    passed = Pass(0, n.bit_length() - 2, 0, 1, log_values)
    made = torus.Rotation(passed, k, levels, items, is_staged, False, is_split)
    prepared = lattice.prepare(key, bits=bits, precision="double")
    expected = lattice.blind_rotate(c, prepared, exponents, bits=bits)
    cases.append((c, key, bits, exponents, (made, None), expected))
for n, modulus, bits, levels, k, group, is_staged in (
    (512, 64, 22, 1, 2, 3, True),
    (512, 32, 9, 2, 3, 2, False),
    (1024, 64, 22, 1, 2, 2, True),
):
    R = pg.Ring(n, 2**modulus)
    c, key = R.random((3, k), seed=1), R.random((2, 2**group, k, levels, k), seed=2)
    exponents = np.array([range(1, 2 * n, n // 3)] * 3)[:, : 2 * group] * [[1], [2], [5]]
    passed = Pass(0, n.bit_length() - 2, 0, 1, 3)
    made = torus.Rotation(passed, k, levels, 1, is_staged, True, is_staged and levels == 1)
    combined = torus.Combination(passed, 2, is_staged)
    prepared = lattice.prepare(key, bits=bits, precision="double")
    expected = lattice.blind_rotate(c, prepared, exponents, bits=bits)
    cases.append((c, key, bits, exponents, (made, combined), expected))
for order in ("forward", "reverse", "random"):
    with simulated_cuda("h100", order=order, seed=1, concurrent_blocks=2):
        for c, key, bits, exponents, (made, combined), expected in cases:
            torus.rotation_of, torus.combination_of = lambda *_, **__: made, lambda *_: combined
            prepared = lattice.prepare(key.to("cuda"), bits=bits, precision="double")
            assert lattice.blind_rotate(c.to("cuda"), prepared, exponents, bits=bits).cpu() == expected
"""
KEY_SWITCHES = """
from dataclasses import replace
from cudasim import simulated_cuda
import polygpu as pg
from polygpu import _backends as backends, lattice

cases = []
shapes = (30, 10, 3, 2), (31, 11, 2, 1), (50, 12, 2, 1), (60, 10, 3, 2), (30, 15, 2, 1)
for bits, log_n, limbs, size in shapes:
    R = pg.Ring(1 << log_n, pg.ntt_primes(1 << log_n, bits=bits, count=limbs + size))
    Q, P = R[:limbs], R[limbs:]
    x, key = Q.random(seed=1).ntt(), R.random((-(-limbs // size), 2), seed=2).ntt()
    add = Q.random(2, seed=3).ntt()
    key = lattice.SwitchKey(key, ring=Q, special=P, limbs_per_digit=size)
    cases.append((x, key, add, lattice.key_switch(x, key, add=add)))
with simulated_cuda("h100", order="random", seed=1, concurrent_blocks=2):
    backend = backends.get_backend("cuda:0")
    for multiprocessors in (1, 132):  # of many rows, and of few
        backend.card = replace(backend.card, multiprocessors=multiprocessors)
        for x, key, add, expected in cases[: 5 if multiprocessors > 1 else 4]:
            found = lattice.key_switch(x.to("cuda"), key.to("cuda"), add=add.to("cuda"))
            assert found.cpu() == expected
"""
MEMORY_OF_THE_CORE = """
import time
import polygpu as pg
from polygpu import _cpu

R = pg.Ring(4096, pg.ntt_primes(4096, bits=30))
R.ones() + R.ones()
_cpu.pool_set_bounds(1 << 30, 0.1)
R.random(1000, seed=1) * R.random(1000, seed=2)  # by several threads, one of which then waits
[R.random(seed=i) for i in range(100)]
end = time.monotonic() + 60
while pg.memory.held() and time.monotonic() < end:
    time.sleep(0.1)  # the thread that waits frees what this one allocated
assert not pg.memory.held()
"""
# The longest first.
CHECKED = {
    "products of integers, thread": OF_MATRICES + OF_INTEGERS,
    "products at points, thread": OF_MATRICES + AT_POINTS,
    "products of integers, address": OF_MATRICES + OF_INTEGERS,
    "FFTs, thread": "IN_PLACE = False" + FFTS,
    "FFTs in place, thread": "IN_PLACE = True" + FFTS,
    "products at points, address": OF_MATRICES + AT_POINTS,
    "key switches, thread": KEY_SWITCHES,
    "key switches, address": KEY_SWITCHES,
    "rotations, thread": ROTATIONS,
    "rotations in doubles, thread": ROTATIONS_IN_DOUBLES,
    "rotations in doubles, address": ROTATIONS_IN_DOUBLES,
    "rotations, address": ROTATIONS,
    "memory of the core, thread": MEMORY_OF_THE_CORE,
}


@pytest.fixture(scope="module")
def checked():
    """All runs under sanitizers, at once."""
    runs = {name: (name.rpartition(" ")[2], code) for name, code in CHECKED.items()}
    return check.run_together({name: run for name, run in runs.items() if not check.missing(run[0])})


@needs_compiler
@pytest.mark.sanitized
@pytest.mark.parametrize("name", CHECKED)
def test_no_races_or_bad_addresses(name, checked):
    sanitizer = name.rpartition(" ")[2]
    if reason := check.missing(sanitizer):
        pytest.skip(f"{sanitizer} sanitizer: {reason}")
    result = checked[name].result()
    assert result.returncode == 0, result.output
    assert not result.reports, result.reports[0]


# ---- ranges of words ----

GOLDILOCKS_PROBE = """
#include "goldilocks.cuh"
using W = Goldilocks<1, NEGACYCLIC>;
struct Probe {
    const u64 *x;  // of each case 16 values of three words, and signs
    u64 *y;        // 256 results of each
    const Modulus *m;
};
__global__ void probe(const __grid_constant__ Probe p) {
    const W word(*p.m);
    const u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    const u64 *const from = p.x + 49 * t;
    u64 *const y = p.y + 256 * t;
    Wide x[16], z[16];
    for (int i = 0; i < 16; ++i) x[i] = {(u32)from[3 * i], (u32)from[3 * i + 1], (u32)from[3 * i + 2]};
    for (int s = 0; s < 192; ++s) y[s] = word.word(W::lifted(word.shifted(x[0], s), W::negates(s)));
    const u64 a = (u64)x[1].b << 32 | x[1].a, b = (u64)x[2].b << 32 | x[2].a;
    y[192] = word.word(W::lifted(word.product(a, b), false)), y[193] = word.canonical(a);
    y[194] = word.multiply(a, b), y[195] = word.add_products(a, b);
    for (const u64 signs : {0ull, from[48]}) {  // which values stand for their negatives
        bool minus[16];
        for (int i = 0; i < 16; ++i) z[i] = i ? x[i] : W::lifted(x[i], false), minus[i] = signs >> i & 1;
        word.forward_values<16>(z, minus);
        for (int i = 0; i < 16; ++i) y[(signs ? 232 : 200) + i] = word.word(z[i]);
    }
    for (int i = 0; i < 16; ++i) z[i] = i ? x[i] : W::lifted(x[i], false);
    word.inverse_values<16>(z);
    for (int i = 0; i < 16; ++i) y[216 + i] = word.word(z[i]);
}
"""


@needs_compiler
def test_goldilocks_arithmetic_at_its_bounds(gpu):
    """Operands are the largest values of both signs within a round, and words of at least p."""
    rng, p, cases = random.Random(1), GOLDILOCKS, 64
    backend = backends.get_backend("cuda:0")
    low, high = -(1 << 32) + 1, (1 << 65) - 1  # of products
    near = [0, 1, p - 1, p, p + 1, 2**64 - 1, 2**63, 2**32 - 1, 2**32, low, high, -1]
    values = [[rng.choice([*near, rng.randrange(low, high)]) for _ in range(16)] for _ in range(cases)]
    values[0], values[1] = [high] * 16, [low] * 16
    for case in (2, 3):  # the largest sum: in one result all terms have one sign
        values[case] = [high if (i ^ case) & 1 else low for i in range(16)]
    for case in range(4, 8):  # the most that a shift takes, in the first value alone
        values[case] = [(1 << 69) - 1 if case % 2 else 1 - (1 << 69), *[0] * 15]
    signs = [rng.randrange(1, 1 << 15) << 1 for _ in range(cases)]  # never of value 0
    signs[:4] = [0xAAAA, 0x5554, 0xFFFE, 0xCCCC]
    words = [
        [*(v >> s & 0xFFFFFFFF for v in row for s in (0, 32, 64)), minus]
        for row, minus in zip(values, signs, strict=True)
    ]
    x = gpu.asarray(np.array(words, np.uint64).ravel())
    y, m = gpu.zeros(256 * cases, np.uint64), backend.from_host(modulus_constants([p]))
    module = gpu.RawModule(
        code=GOLDILOCKS_PROBE,
        options=("-std=c++17", f"-I{backends.cuda_sources()}"),
        name_expressions=("probe",),
    )
    arguments = np.array([a.data.ptr for a in (x, y, m)], np.uint64)
    module.get_function("probe")((cases // 32,), (32,), (arguments.view("V24")[0],))
    found = y.get().reshape(cases, 256).tolist()
    turns = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15]  # frequencies in the order of the tree
    root = pow(2, 12, p)
    for row, minus, result in zip(values, signs, found, strict=True):
        assert [v % p for v in result[:192]] == [row[0] * pow(2, s, p) % p for s in range(192)]
        a, b = row[1] % 2**64, row[2] % 2**64
        assert result[192] % p == result[194] % p == a * b % p and result[193] == (a - p if a >= p else a)
        assert result[195] % p == (a + b) % p
        if abs(row[0]) < 1 << 66:
            for at, meant in ((200, row), (232, [-v if minus >> i & 1 else v for i, v in enumerate(row)])):
                spectrum = [sum(v * pow(root, i * k, p) for i, v in enumerate(meant)) % p for k in turns]
                assert [v % p for v in result[at : at + 16]] == spectrum
            pairs = [
                sum(v * pow(root, -i * k, p) for v, k in zip(row, turns, strict=True)) % p for i in range(16)
            ]
            assert [v % p for v in result[216:232]] == pairs


@pytest.mark.parametrize("kind", KINDS)
def test_goldilocks_word_of_each_root(kind):
    """The tree's root of unity of order 64, or of the largest order below, is 2^(3K)."""
    for n, root in product((2, 8, 32, 64, 2**12), ("minimal", "generator")):
        (tables,) = pg.Ring(n, GOLDILOCKS, kind=kind, root=root)._plan.transform.tables
        k, quotient = re.fullmatch(r"Goldilocks<(\d+), (\w+)>", goldilocks_word(tables).name).groups()
        order = tables.points * (2 if kind == "negacyclic" else 1)
        least = min(order, 64)
        assert quotient == kind.upper() and int(k) % 2
        assert pow(tables.root, order // least, GOLDILOCKS) == pow(2, 192 // least * int(k), GOLDILOCKS)


def test_goldilocks_word_needs_a_power_of_two_order():
    for degree, word in ((8, "Goldilocks<"), (12, "Strict64")):
        quotient, basis = Quotient("negacyclic", degree), basis_of((GOLDILOCKS,))
        root = pow(7, (GOLDILOCKS - 1) // quotient.order, GOLDILOCKS)  # 7 is a primitive root
        plan = NttPlan(basis, quotient, 1, (prime_tables(GOLDILOCKS, root, quotient, basis.dtype),))
        (group,) = transform_groups(plan, Card((9, 0), 1 << 16))
        assert group.word.name.startswith(word)


def growing(q, log_length, stage, rng):
    """Twiddles by node, a row and its transform, exact: value 2^(log_length - 1 - stage) grows to the worst.

    Each stage before adds -7q/16 to it, which doubles do not round to the other side of q/2; then it is
    multiplied by a twiddle near q/2.
    """
    n = 1 << log_length
    w = [int(x) for x in rng.integers(1, q, n)]
    row = [int(x) for x in rng.integers(0, q, n)]
    at = n >> (stage + 1)
    row[at] = 0
    x = np.array(row, object)
    for depth in range(log_length):
        half = n >> (depth + 1)
        if depth < stage:
            w[1 << depth] = -(7 * q // 16) * pow(int(x[at + half]), -1, q) % q
        elif depth == stage:
            w[1 << depth] = q // 2
        blocks = x.reshape(1 << depth, 2, half)
        product = np.array(w[1 << depth : 2 << depth], object)[:, None] * blocks[:, 1]
        x = (np.stack([blocks[:, 0] + product, blocks[:, 0] - product], 1) % q).reshape(n)
    return w, row, x


def starts(one):
    """For each stage of a pass, the one at which its round starts; the first round takes the rest."""
    first = (one.log_length - 1) % one.log_values + 1
    later = range(first, one.log_length)
    return [0] * first + [stage - (stage - first) % one.log_values for stage in later]


@needs_compiler
@pytest.mark.parametrize("bits", [30, 31, 50, 60, 62])
def test_lazy_values_at_their_bounds(gpu, bits):
    """Constructed twiddles reach the bounds (12q of 15q at 60 bits); those of transforms do not."""
    card, (q,), log_length = Card((9, 0), 227 << 10), primes(64, bits), 12
    basis, word = basis_of((q,)), WORDS[bits]
    (one,) = split_passes(1 << log_length, 1, basis.dtype.itemsize, card)
    entries = [0, 1]  # of a node: cuda/tile.cuh, Twiddles
    for node in range(2, 1 << log_length):
        depth = node.bit_length() - 1
        start = starts(one)[depth]
        above, below = divmod(node - (1 << depth), 1 << (depth - start))
        unit = 2 if depth > start and (basis.dtype == np.uint32 or word == "Float64") else 1
        entries.append((1 << depth) + unit * ((below // unit << start) + above) + below % unit)
    module = gpu.RawModule(
        code=(Path(backends.cuda_sources()) / "ntt.cu").read_text(),
        options=("-std=c++17", f"-I{backends.cuda_sources()}"),
        name_expressions=(f"ntt_forward<{word}, {one.shape}, false, false>",),
    )
    forward = module.get_function(module.name_expressions[0])
    forward.max_dynamic_shared_size_bytes = card.shared_bytes
    rng = np.random.default_rng(bits)
    for stage in (*range(3, log_length), 11, 11, 7, 7):
        w, row, expected = growing(q, log_length, stage, rng)
        table = np.zeros((1 << log_length, 1 if word == "Float64" else 2), basis.dtype)
        for node, entry in enumerate(entries):
            if word == "Float64":
                table[entry] = np.float64(w[node] - q if w[node] > q // 2 else w[node]).view(np.uint64)
            else:
                table[entry] = w[node], (w[node] << 8 * basis.dtype.itemsize) // q
        x, moduli, twiddles = map(gpu.asarray, (np.array(row, basis.dtype), modulus_constants((q,)), table))
        parameters = one_pass(x, moduli, twiddles, 1, log_length)
        forward((1,), (one.threads,), (parameters,), shared_mem=one.shared_values * basis.dtype.itemsize)
        np.testing.assert_array_equal(x.get(), expected.astype(basis.dtype))


def one_pass(x, moduli, table, tiles, log_degree):
    """Parameters of a pass over rows of their own: the first stages, of one limb."""
    sizes = {
        "offset": 0,
        "tiles": tiles,
        "limbs": 1,
        "total": 1,
        "log_degree": log_degree,
        "log_blocks": 0,
    }
    sizes["starts_next"] = 1
    packed = cuda.transform.PASS(moduli=moduli.data.ptr, **sizes)
    values = {"x": x.data.ptr, "y": x.data.ptr, "pass": packed, "rows": tiles, "ahead": 0, "pitch": 0}
    values["tables"] = packed_tables([table.data.ptr])
    return np.frombuffer(cuda.transform.ONE_PASS(**values), np.uint8)


BADLY_INVERTED = 1125899894671361  # a prime whose inverse lies nearly halfway between two doubles


def product_of_doubles(x, w, q):
    """What Float64::mul leaves of the integer x w, and the multiple of q that it takes away; exact."""
    inverse, denominator = (1 / q).as_integer_ratio()
    bias = 3 << 51
    sum_of = int(float(x * w)) * inverse + bias * denominator
    taken = Fraction(sum_of / denominator) - bias  # a quotient of integers is rounded once, as FMA rounds
    return x * w - taken * q, taken


class Largest:
    """Coefficients whose transforms modulo q, in doubles of which none is relaxed, have the largest values.

    1 / q is rounded: where it is too small, x w leaves products beyond q/2 if it is positive, beyond -q/2
    if negative; where too large, the other way round.
    """

    def __init__(self, q, table, rng):
        self.q, self.rng = q, rng
        self.table = [int(w) - q if w > q // 2 else int(w) for w in table]
        self.side = 1 if Fraction(1 / q) * q < 1 else -1

    def best(self, parts, fitness):
        """The best of some numbers below q / parts."""
        return max(map(int, self.rng.integers(0, self.q // parts, 400)), key=fitness)

    def sign_of_factor(self, sign, w):
        """Of what, times w, leaves the largest products of a sign."""
        return self.side * sign * (1 if w > 0 else -1)

    def forward(self, stages, block, sign):
        """2^stages coefficients, and the value of this sign that they make in a block after these stages."""
        if stages == 0:
            x = self.q - 1 if sign > 0 else 0
            return [x], x
        above, x = self.forward(stages - 1, block // 2, sign)
        if block & 1:
            sign = -sign
        w = self.table[(1 << (stages - 1)) + block // 2]
        factor = self.sign_of_factor(sign, w) if stages > 1 else 1
        below, y = self.forward(stages - 1, block // 2, factor)
        less = factor * self.best(4, lambda t: sign * product_of_doubles(y - factor * t, w, self.q)[0])
        below[0] -= less
        product = int(product_of_doubles(y - less, w, self.q)[0])
        return [v for pair in zip(above, below, strict=True) for v in pair], x + (-1) ** (block & 1) * product

    def inverse(self, node, sign):
        """Four coefficients below a node, and the product of this sign that its stage makes of their sums."""
        w, q = self.table[node], self.q
        factor = self.sign_of_factor(sign, w)
        less = self.best(4, lambda t: sign * product_of_doubles(factor * (2 * q - 2 - t), w, q)[0])
        large, small = [q - 1 - less, q - 1], [0, 0]
        product = int(product_of_doubles(factor * (2 * q - 2 - less), w, q)[0])
        return (large + small if factor > 0 else small + large), product


@needs_compiler
def test_forward_products_beyond_half_of_q(gpu):
    """After six stages products exceed 2^52, where rounding can lose half a multiple of q."""
    ring = pg.Ring(128, BADLY_INVERTED)
    make = Largest(BADLY_INVERTED, ring._plan.transform.tables[0].forward[0], np.random.default_rng(1))
    node = min(range(64, 128), key=make.table.__getitem__)
    coefficients, y = make.forward(6, node - 64, 1)

    def taken(less):
        return product_of_doubles(y - less, make.table[node], make.q)[1]

    less = make.best(64, lambda t: taken(t).denominator)
    assert y - less > 1 << 52 and taken(less).denominator == 2
    coefficients[0] -= less
    row = np.zeros((1, 128), np.uint64)
    row[0, 1::2] = coefficients
    value = ring.from_residues(row)
    same(value.to("cuda").ntt(), value.ntt())


@needs_compiler
def test_inverse_products_beyond_half_of_q(gpu):
    """The difference of two sums of four products, which is multiplied, also exceeds 2^52."""
    ring = pg.Ring(256, BADLY_INVERTED)
    make = Largest(BADLY_INVERTED, ring._plan.transform.tables[0].inverse[0], np.random.default_rng(1))
    node = max(range(8, 16), key=lambda i: abs(make.table[i]))
    w = make.table[node]
    sign = -1 if w > 0 else 1

    def drawn():
        children = [make.inverse(8 * node + i, sign if i < 4 else -sign) for i in range(8)]
        difference = sum(x for _, x in children[:4]) - sum(x for _, x in children[4:])
        return product_of_doubles(difference, w, make.q)[1].denominator, difference, [x for x, _ in children]

    halves, difference, coefficients = max((drawn() for _ in range(12)), key=lambda found: found[0])
    assert abs(difference) > 1 << 52 and halves == 2
    row = np.zeros((8, 8, 4), np.uint64)
    row[node - 8] = coefficients
    value = ring.from_residues(row.reshape(1, 256), domain="eval")
    same(value.to("cuda").intt(), value.intt())


MULTIPLIED = r"""
#include "word.cuh"
extern "C" __global__ void multiplied(const double *x, const double *w, double *y,
                                      const Modulus *m, int *bounds) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = Float64(*m).mul(x[i], {w[i]});
    if (i <= Float64::Bounds::LIMIT) bounds[i] = Float64::Bounds::multiplied((int)i);
}
"""


@needs_compiler
@pytest.mark.parametrize("q", [BADLY_INVERTED, 2**50 - 27, 2**49 + 69, 2**33 + 17])
def test_bounds_of_products_in_doubles(gpu, q):
    """The bounds hold, and the worst prime nearly reaches them."""
    module = gpu.RawModule(code=MULTIPLIED, options=("-std=c++17", f"-I{backends.cuda_sources()}"))
    multiplied, count = module.get_function("multiplied"), 1 << 14
    rng = np.random.default_rng(q)
    bounds = gpu.zeros((257,), np.int32)
    for bound in (32, 64, 104, 128, 150, 200, 256):
        x = (bound << 44) - rng.integers(0, 1 << 43, count)
        w = rng.choice([-1, 1], count) * (q // 2 - rng.integers(0, q // 64, count))
        y = gpu.zeros((count,), np.float64)
        operands = [gpu.asarray(v.astype(np.float64)) for v in (x, w)]
        multiplied((count // 256,), (256,), (*operands, y, gpu.asarray(modulus_constants((q,))), bounds))
        y, most = y.get(), bounds.get()[bound]
        assert not ((x.astype(object) * w - y.astype(np.int64)) % q).any()
        reached = abs(y).max() / 2.0**44
        assert reached <= most
        if q == BADLY_INVERTED:
            assert reached > most - 5


@needs_compiler
@pytest.mark.parametrize("n", [2, 64, 2**13])
@pytest.mark.parametrize("bits", [30, 60])
def test_arrays_at_any_word_alignment(gpu, bits, n):
    """Kernels move 16 bytes at once; arrays may begin at any word."""
    ring = pg.Ring(n, primes(n, bits))
    backend = backends.get_backend("cuda:0")
    backend.card = replace(backend.card, multiprocessors=2)  # blocks of threads enough to prefetch

    def off(values):
        array = gpu.zeros((values.size + 1,), values.dtype)
        array[1:] = gpu.asarray(values.ravel())
        return array[1:].reshape(values.shape)

    a = ring.random((-(-(1 << 14) // n),), seed=n)
    x, target = ring.from_residues(off(a.data)), ring.from_residues(off(np.zeros_like(a.data)))
    assert x.data.data.ptr % 16
    same(x.ntt(), a.ntt())
    assert x.ntt(out=target) is target
    same(target, a.ntt())
    same(target.intt(out=target), a)
    same(x.automorphism(5, out=target), a.automorphism(5))
    same(x.ntt().automorphism(5), a.ntt().automorphism(5))
    same(x.mul_monomial(3), a.mul_monomial(3))
    same(x.mul_monomial(-5, out=target), a.mul_monomial(-5))
    same(x.mul(x, out=x), a * a)
    other = pg.Ring(n, primes(n, bits + 1))
    converted = other.from_residues(off(np.zeros_like(other.zeros(a.shape).data)), domain="eval")
    same(a.ntt().to("cuda").convert(other, out=converted), a.ntt().convert(other))


# ---- values, streams and graphs ----


@needs_compiler
@pytest.mark.parametrize("blocks", [1, 2])
def test_in_place_results_of_partial_tiles(blocks):
    """Threads of the last tile without a row must not change the rows of others."""
    with simulated(concurrent_blocks=blocks):
        ring = pg.Ring(64, primes(64, 30))
        a, b = ring.random((67,), seed=1), ring.random((67,), seed=2)
        x, y = a.to("cuda"), b.to("cuda")
        same(x.mul(y, out=x), a * b)
        same(y.ntt(out=y), b.ntt())
        same(y.intt(out=y), b)


SECOND = {
    "product": lambda x, y: x * y,
    "sum": lambda x, y: x + y,
    "negative": lambda x, y: -x,
    "integer": lambda x, y: x * 3 - 5,
    "power": lambda x, y: x**3,
    "fma": lambda x, y: pg.fma(x, y, x),
    "batch": lambda x, y: x.sum(),
    "dot": lambda x, y: pg.dot(x, y),
    "matmul": lambda x, y: x[:, None] @ y[None],
    "einsum": lambda x, y: pg.einsum("i,j,i->ji", x, y, x),
    "broadcast": lambda x, y: x * y[0],
    "stack": lambda x, y: pg.stack([x, y])[1, 1:],
    "concatenate": lambda x, y: pg.concatenate([x, y])[::2],
    "copy": lambda x, y: x.copy().reshape(3, 1),
    "automorphism": lambda x, y: x.automorphism(7),
    "monomial": lambda x, y: x.mul_monomial(3),
    "out": lambda x, y: x.mul(y, out=x.copy()),
    "nothing to do": lambda x, y: x.intt(out=y.copy()),
    "residues": lambda x, y: x.ring.from_residues(x.data, copy=True),
    "integers": lambda x, y: x if x.ring._plan.basis.wide else x.ring(x.data[:, 0, :]),
}
SECOND_EVALUATED = {
    "transform": lambda x, y: x.ntt(),
    "and back": lambda x, y: x.ntt().intt(),
    "leaves": lambda x, y: x.ntt() * y.ntt(),
    "mixed": lambda x, y: x.ntt() + y,
    "fma": lambda x, y: pg.fma(x.ntt(), y.ntt(), x.ntt()),
    "automorphism": lambda x, y: x.ntt().automorphism(7),
}


@needs_compiler
@pytest.mark.parametrize(
    "ring",
    [
        pytest.param(lambda: pg.Ring(16, primes(16, 30, count=2)), id="fused"),
        pytest.param(lambda: pg.Ring.preset("ml-kem"), id="leaves"),
        pytest.param(lambda: pg.Ring(20, 10**18, product="ntt"), id="auxiliary"),
        pytest.param(lambda: pg.Ring(20, 10**18, product="fft"), id="FFT"),
        pytest.param(lambda: pg.Ring(9, 2**100), id="host"),
        pytest.param(lambda: pg.Ring(1, 17), id="one point"),
    ],
)
def test_operations_on_a_second_card(ring):
    """Values are computed on the card that holds them, whatever device is current."""
    with simulated(devices_count=2):
        ring = ring()
        a, b = ring.random((3,), seed=1), ring.random((3,), seed=2)
        x, y = a.to("cuda:1"), b.to("cuda:1")
        for name, compute in (SECOND | (SECOND_EVALUATED if ring.has_eval else {})).items():
            got = compute(x, y)
            assert got.device == "cuda:1", name
            same(got, compute(a, b))
        assert x == x.copy() and x != x + 1
        assert (x.to_bigints() == a.to_bigints()).all()
        with pytest.raises(pg.DeviceError, match="cuda:1 and cuda:0"):
            x + b.to("cuda:0")
        same(x.to("cuda:0"), a)

        def make():
            return (
                ring([1, -2][: ring.n]),
                ring.random((2,), seed=1),
                ring.zeros((2,)),
                ring.ones((2,)),
                ring.monomial(-1),
            )

        with pg.device("cuda:1"):
            made = make()
        for got, expected in zip(made, make(), strict=True):
            assert got.device == "cuda:1"
            same(got, expected)


@needs_compiler
def test_graph_keeps_operands_and_tables_alive(gpu):
    """Operands, tables and constants live as long as the graph."""
    ring = pg.Ring(64, primes(64, 60))
    a = ring.random((2,), seed=1)
    x = a.to("cuda")
    expected = a * 12345 + a.automorphism(5) * a
    replay = pg.capture(lambda x: x * 12345 + x.automorphism(5) * x, x)
    kept = [weakref.ref(y) for y in (x, x.ring._plan.transform)]
    backend = backends.get_backend("cuda:0")
    backend._constants, backend._large_constants = Calls(), Calls()
    del ring, x
    plan_cache.forget()
    gc.collect()
    assert all(y() is not None for y in kept)
    junk = [gpu.full(64, 2**63, np.uint64) for _ in range(100)]
    same(replay(), expected)
    del junk, replay
    gc.collect()
    assert kept[0]() is None


@needs_compiler
def test_streams_wait_for_shared_tables(gpu, monkeypatch):
    """A second stream waits for the tables, and the first waits before their memory is reused."""
    waits = []
    wait = gpu.cuda.Stream.wait_event

    def noted(stream, event):
        waits.append(stream)
        wait(stream, event)

    monkeypatch.setattr(gpu.cuda.Stream, "wait_event", noted)
    ring = pg.Ring(64, primes(64, 60))
    x, stream = ring.random(seed=1).to("cuda"), gpu.cuda.Stream(non_blocking=True)
    with monkeypatch.context() as patch:
        patch.setattr(gpu.cuda.Event, "done", False)
        x.ntt()
        assert not waits
        for count in (4, 8):  # for the moduli, the prime's table, what fills it, what points to it
            with stream:
                x.ntt()
            assert waits == [stream] * count
    with stream:
        x.ntt()  # which finds that all is made
        waits.clear()
        x.ntt()
    assert not waits
    (table,) = ring._plan.transform.tables[0].handles.values()
    table.__del__()
    assert [y.ptr for y in waits] == [0]


@needs_compiler
def test_repeated_launches_become_one_graph(gpu, monkeypatch):
    """The first two cached calls on a stream launch kernels. Later ones launch a graph."""
    launched = []

    def noted(exec_, stream):
        launched.append(exec_)
        launch_graph(exec_, stream)

    launch_graph = streams.launch_graph
    monkeypatch.setattr(streams, "launch_graph", noted)
    ring, before = pg.Ring(64, primes(64, 30, count=3)), len(streams.graphs)
    x = ring.random(seed=1).to("cuda").ntt()
    expected = x.cpu().rescale()
    same(x.rescale(), expected)
    counts = []
    for _ in range(6):
        with gpu.cuda.Stream(non_blocking=True):
            for _ in range(5):
                same(x.rescale(), expected)
                same(x.copy().rescale(), expected)
            counts.append(len(launched))
            launched.clear()
    graphs, most = counts[:4], 10 - 3  # the first call waits for tables; two more are not graphs yet
    assert graphs == [most] * 4 and counts[4:] == [0, 0]
    assert len(streams.graphs) - before == 2 * 4  # each as recorded, and ready for launches
    plan_cache.forget()
    del x, ring
    gc.collect()
    assert len(streams.graphs) == before


@needs_compiler
def test_streams_may_end_before_their_ring(gpu, monkeypatch):
    """The library keeps no stream alive. For work of a destroyed stream it synchronises the device."""
    ring = pg.Ring(64, primes(64, 59))
    x, begun = ring.random(seed=1).to("cuda"), []
    x.ntt()
    for _ in range(20):
        stream = gpu.cuda.Stream(non_blocking=True)
        begun.append(weakref.ref(stream))
        with stream:
            x.ntt()
        del stream
    gc.collect()
    assert not any(stream() for stream in begun)
    waited = []
    monkeypatch.setattr(gpu.cuda.Device, "synchronize", lambda device: waited.append(device))
    (table,) = ring._plan.transform.tables[0].handles.values()
    table.__del__()
    assert len(waited) == 1


@needs_compiler
def test_capture_does_not_wait_for_memory(gpu, monkeypatch):
    """A wait would end the capture."""
    ring = pg.Ring(64, primes(64, 57))
    x = ring.random(seed=1).to("cuda")
    x.ntt()
    with gpu.cuda.Stream(non_blocking=True):
        x.ntt()
    gc.collect()
    (table,) = ring._plan.transform.tables[0].handles.values()
    waited, ends = [], iter((lambda: None, table.__del__))
    monkeypatch.setattr(
        gpu.cuda.Device,
        "synchronize",
        lambda device: waited.append(gpu.cuda.get_current_stream().is_capturing()),
    )
    other = pg.Ring(64, primes(64, 55)).random(seed=1).to("cuda")
    recorded = pg.capture(lambda y: (next(ends)(), y + y)[1], other)
    assert waited == [False] and recorded() == other + other


@needs_compiler
def test_per_thread_default_streams_are_distinct(gpu, monkeypatch):
    ring, waits = pg.Ring(64, primes(64, 58)), []
    x = ring.random(seed=1).to("cuda")
    monkeypatch.setattr(gpu.cuda.Stream, "wait_event", lambda stream, event: waits.append(stream))
    monkeypatch.setattr(gpu.cuda.Event, "done", False)
    own = [gpu.cuda.Stream(non_blocking=True) for _ in range(2)]
    for stream in own:
        stream.ptr = 2  # cudaStreamPerThread
        monkeypatch.setitem(streams._streams, 2, stream)
        with stream:
            x.ntt()
    assert set(waits) >= set(own)


@needs_compiler
def test_home_stream_waits_for_tables_filled_on_another_stream(gpu, monkeypatch):
    waits = []
    monkeypatch.setattr(gpu.cuda.Stream, "wait_event", lambda stream, event: waits.append(stream.ptr))
    backend, stream = backends.get_backend("cuda:0"), gpu.cuda.Stream(non_blocking=True)
    x, home, log = gpu.empty(4, np.uint64), gpu.cuda.Stream.null, []
    filling = Shared(x, gpu.cuda.Device(0), home, (), lambda: log.append(1))
    shared = backend.share(x, (filling,))
    with stream:
        shared.on(stream)
    assert waits == [stream.ptr, 0, stream.ptr] and log == [1]  # home, before it has the memory back
    shared.on(home)
    assert waits[3:] in ([], [0]) and log == [1]


@needs_compiler
def test_guests_bring_their_stream_and_their_memory(gpu):
    """Work of a guest is on its stream, and asks its allocator for results and temporary memory."""
    ring = pg.Ring(64, primes(64, 50))
    x = ring.random(3, seed=1).to("cuda")
    expected, backend = (x * x).cpu(), backends.get_backend("cuda:0")
    stream, asked, freed = gpu.cuda.Stream(non_blocking=True), [], []

    def allocate(size, index, handle):
        asked.append((size, index, handle))
        return len(asked)

    seen = []
    for _ in range(2):
        with backend.guest(stream.ptr, allocate, freed.append):
            seen.append(gpu.cuda.get_current_stream())
            product = x * x
        assert product.cpu() == expected
        del product
    assert seen[0] is seen[1] and seen[0].ptr == stream.ptr  # one object: it stays known to shared tables
    assert {handle for _, _, handle in asked} == {stream.ptr} and {index for _, index, _ in asked} == {0}
    assert sum(size for size, _, _ in asked) >= 2 * x.data.nbytes
    gc.collect()
    assert sorted(freed) == list(range(1, len(asked) + 1))
    with backend.guest(0, allocate, freed.append):
        assert gpu.cuda.get_current_stream().ptr == 0


@needs_compiler
def test_guests_without_memory_or_inside_capture_raise(gpu):
    """An allocator that has nothing left gives an error of polygpu; a graph cannot record a guest's work."""
    x, backend = pg.Ring(64, primes(64, 50)).random(3, seed=1).to("cuda"), backends.get_backend("cuda:0")

    def refuse(size, index, handle):
        raise MemoryError("nothing left")

    with backend.guest(0, refuse, lambda address: None), pytest.raises(pg.errors.OutOfDeviceMemory):
        x + x

    def visit(a):
        with backend.guest(0, refuse, lambda address: None):
            return a

    with pytest.raises(pg.DeviceError, match="operator of another library"):
        pg.capture(visit, x)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_residues_on_a_card_are_checked_there(gpu, monkeypatch, dtype):
    ring = pg.Ring(64, primes(64, 50, count=2))
    a = ring.random(3, seed=1).to("cuda")
    backend, words = backends.get_backend("cuda:0"), a.data.astype(dtype)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "to_host", lambda x: pytest.fail("residues were copied to the host"))
        found = ring.from_residues(words, check=True)
    assert found == a
    words[1, 1, 5] = ring.moduli[1]
    with pytest.raises(pg.errors.NotCanonical, match=rf"{ring.moduli[1]} at \(1, 1, 5\)"):
        ring.from_residues(words, check=True)


@needs_compiler
def test_constants_are_shared_between_streams(gpu):
    """A stream that did not copy the constants waits for the copy."""
    backend, stream = backends.get_backend("cuda:0"), gpu.cuda.Stream(non_blocking=True)
    small, large = np.arange(3), np.arange(10**4)
    large.setflags(write=False)
    for x in (small, large):
        first = backend.constant(x)
        assert backend.constant(x) is first
        with stream:
            second = backend.constant(x)
            assert second is first
        np.testing.assert_array_equal(second.get(), x)


# ---- what is launched ----


@pytest.mark.parametrize("card", nvrtc.CARDS.values(), ids=lambda card: "sm_{}{}".format(*card.capability))
def test_split_passes_cover_every_stage_once(card):
    for size, base, word_bytes, few in product(range(1, 31), (1, 2, 4, 8), (4, 8), (False, True)):
        passes = split_passes(1 << size, base, word_bytes, card, few)
        log_base = base.bit_length() - 1
        # Every stage once, in order.
        assert passes[0].log_blocks == 0
        for one, following in pairwise(passes):
            assert following.log_blocks == one.log_blocks + one.log_length
        assert passes[-1].log_blocks + passes[-1].log_length == size
        assert passes[-1].log_columns == log_base  # the last pass reads leaves as they lie
        for one in passes:
            assert one.log_length >= 1
            # Neighbouring columns exist: between two values of a transform.
            stride = size + log_base - one.log_blocks - one.log_length
            assert one.log_columns <= stride
            assert one.log_columns > 0 or stride == 0
            # What a block may ask for.
            assert 32 <= one.threads <= 512
            assert one.shared_values * word_bytes <= card.shared_bytes
            # Values of threads, threads of blocks.
            values = 1 << (one.log_length + one.log_columns + one.log_rows)
            assert one.threads << (one.log_values + one.log_width) == values
            assert one.shared_values >= values
            # Rounds: each stage belongs to one that starts at or above it, of at most log_values stages.
            for i, start in enumerate(starts(one)):
                assert 0 <= start <= i < start + one.log_values
            rounds = sorted(set(starts(one)))
            assert len(rounds) == -(-one.log_length // one.log_values)
            assert all(later - sooner <= one.log_values for sooner, later in pairwise(rounds))


def test_number_of_passes_by_length():
    """One pass as far as a block of 512 threads reaches, two up to 2^22 points, three beyond."""
    h100, t4 = Card((9, 0), 227 << 10), Card((7, 5), 64 << 10)
    for word_bytes, size in product((4, 8), range(1, 29)):
        count = len(split_passes(1 << size, 1, word_bytes, h100))
        assert count == (1 if size <= 14 else 2 if size <= 22 else 3), (size, word_bytes)
    for word_bytes, least in ((4, 13), (8, 12)):  # few rows: two passes soon, and small tiles
        for size in range(least, 19):
            passes = split_passes(1 << size, 1, word_bytes, h100, few=True)
            assert len(passes) == 2 and all(p.log_block_values <= 12 for p in passes)
        for size, log_base in product(range(1, 12), range(4)):  # few short rows: small blocks
            (many,) = split_passes(1 << size, 1 << log_base, word_bytes, h100)
            if size + log_base > 11:
                continue
            (small,) = split_passes(1 << size, 1 << log_base, word_bytes, h100, few=True)
            assert small.log_values == min(size, 2 if size <= 4 and log_base == 0 else 3)
            assert small.threads == 64 or small.log_rows == 0
            assert (many == small) == (size <= 6)
    assert len(split_passes(1 << 12, 1, 8, t4)) == 1
    assert len(split_passes(1 << 13, 1, 8, t4)) == 2


H100 = nvrtc.CARDS[90]
BY_WORD = 2**30 - 35, 2**50 - 27, 2**60 - 93, 2**64 - 59  # Lazy32, Float64, Lazy60, Strict64


def lag(size, word, batch, card=H100):
    passes = split_passes(1 << size, 1, word.bytes, card)
    return flow_lag(*passes[-2:], size, batch << passes[-2].log_blocks, word, card)


def test_flow_lag_by_card_and_shape():
    """The lag fills an eighth of the cache. It is 0 for few rows, very long rows, or too much code."""
    lazy32, doubles, lazy60, strict64 = (word_of(q, 4 if q < 2**32 else 8, H100) for q in BY_WORD)
    assert lag(16, lazy32, 2048) == 25 and lag(16, doubles, 1024) == 12 and lag(15, doubles, 4096) == 25
    assert lag(16, lazy32, 99) == 0 and lag(16, lazy32, 100) == 25
    assert lag(20, doubles, 64) == 1 and lag(21, doubles, 64) == 0
    assert lag(24, lazy32, 8) == 25  # its blocks of 2^16
    assert lag(16, lazy60, 2048) == 12 and lag(20, lazy60, 64) == lag(20, strict64, 64) == 0
    goldilocks = word_of(GOLDILOCKS, 8, H100)
    for word in (goldilocks, goldilocks.grouped(8)):
        assert lag(16, word, 2048) == 12 and lag(20, word, 64) == 0
    assert lag(16, lazy32, 2048, Card((9, 0), 227 << 10)) == 0


def test_prefetch_distance_by_length():
    """The distance is 16 KB for each of 132 multiprocessors, in blocks of threads."""

    def distance(size, word_bytes, card=H100):
        return prefetch_distance(split_passes(1 << size, 1, word_bytes, card)[-1], word_bytes, card)

    assert [distance(size, 4) for size in (10, 12, 13, 14)] == [132, 132, 66, 33]
    assert [distance(size, 8) for size in (12, 13, 14)] == [66, 33, 16]
    assert distance(12, 4, nvrtc.CARDS[80]) == 0


@pytest.mark.parametrize(
    "q, capability, word",
    [
        (2**30 - 35, (9, 0), "Lazy32"),
        (2**30 + 3, (9, 0), "Tight32"),
        (2**31 - 1, (7, 5), "Tight32"),
        (2**31 + 11, (9, 0), "Strict32"),
        (2**32, (9, 0), "Strict32"),
        (2**32 + 15, (9, 0), "Float64"),
        (2**50 - 27, (8, 0), "Float64"),
        (2**50 - 27, (8, 6), "Lazy60"),
        (2**50 - 27, (12, 0), "Lazy60"),
        (2**50 + 55, (9, 0), "Lazy60"),
        (2**60 - 93, (9, 0), "Lazy60"),
        (2**60 + 33, (9, 0), "Lazy64"),
        (2**40 - 87, (8, 6), "Lazy64"),
        (2**40 + 15, (8, 6), "Lazy60"),
        (2**62 - 57, (9, 0), "Lazy64"),
        (2**62 + 135, (9, 0), "Strict64"),
        (2**64, (10, 0), "Strict64"),
    ],
)
def test_word_of_each_modulus_and_card(q, capability, word):
    """The narrowest word that fits a modulus is chosen, and doubles only on cards that are fast in them."""
    card = Card(capability, 64 << 10)
    assert word_of(q, 4 if q <= 1 << 32 else 8, card).name == word
    if q < 1 << 31 and not card.fast_doubles:
        assert word_of(q, 8, card).name == word
    elif q <= 1 << 32:
        assert word_of(q, 8, card).name == "Float64"


@pytest.mark.parametrize(
    "capability, bits, groups",
    [
        ((9, 0), (50, 50, 50), [((0, 1, 2), "Float64")]),
        ((9, 0), (60, 50, 50, 60), [((0, 3), "Lazy60, u64"), ((1, 2), "Float64, u64")]),
        ((9, 0), (30, 31, 62), [((0, 1), "Float64, u64"), ((2,), "Lazy64, u64")]),
        ((8, 6), (30, 31, 62), [((0,), "Lazy32, u64"), ((1,), "Tight32, u64"), ((2,), "Lazy64, u64")]),
        (
            (9, 0),
            (30, 31, 30, 32),
            [((0, 2), "Lazy32, u32"), ((1,), "Tight32, u32"), ((3,), "Strict32, u32")],
        ),
        ((9, 0), (32, 50, 30), [((0, 1, 2), "Float64")]),
        ((8, 6), (64, 30), [((0,), "Strict64, u64"), ((1,), "Lazy32, u64")]),
    ],
)
def test_limb_groups_by_word(capability, bits, groups):
    """Limbs with the same word form one group, even if other limbs lie between them."""
    moduli = [primes(64, b, count=9)[i] for i, b in enumerate(bits)]
    if len(groups) > 1:
        groups = [(limbs, f"Grouped<{word}>") for limbs, word in groups]
    found = groups_of(basis_of(tuple(moduli)), Card(capability, 64 << 10))
    assert [(group.limbs, group.word.argument) for group in found] == groups


NOTED = r"""
#include "ntt.cu"
// trace[n * threads + t]: the byte of shared memory that access n of thread t is at; counts[t]: its accesses.
static int *trace, *counts, shared_bytes;
extern "C" __global__ void start(int *new_trace, int *new_counts, int bytes) {
    trace = new_trace, counts = new_counts, shared_bytes = bytes;
}
static __device__ __noinline__ void note(const void *place) {
    extern __shared__ __align__(16) unsigned char memory[];
    const long at = (const unsigned char *)place - memory;
    if (at >= 0 && at < shared_bytes) trace[counts[threadIdx.x]++ * blockDim.x + threadIdx.x] = (int)at;
}
template <class T> struct Noted {  // a residue that notes where it is written and read
    T x;
    Noted() = default;
    Noted(T value) : x(value) {}
    Noted(const Noted &other) : x(other.x) { note(&other), note(this); }
    Noted &operator=(const Noted &other) {
        note(&other), note(this);
        x = other.x;
        return *this;
    }
};
template <class T> struct Word {
    using Storage = Noted<T>;
    using Value = Noted<T>;
    using Bounds = Canonical;
    static constexpr bool GROUPED = false;
    static constexpr int BLOCKS = 1, PRODUCT_BLOCKS = 1;
    struct Twiddle {
        u64 w, shoup;
    };
    explicit Word(const Modulus &) {}
    static Value load(const Storage &x, bool) { return x; }
    static Storage store_lazy(const Value &x) { return x; }
    void forward(Value &, Value &, Twiddle, bool) const {}
    Storage canonical(const Value &x) const { return x; }
    void inverse(Value &, Value &, Twiddle, bool) const {}
    void inverse_root(Value &, Value &, Twiddle, Twiddle) const {}
    Storage finish(const Value &x) const { return x; }
    Value multiply(const Value &x, const Value &) const { return x; }
};
"""


def conflicts(places, word_bytes, access_bytes):
    """The most threads that meet in a bank, of those served at once: 128 bytes' worth of a warp."""
    lanes = min(128 // access_bytes, places.shape[-1])
    warps = np.sort(places.reshape(-1, lanes) % (128 // word_bytes), axis=1)
    ways = 1
    while ways < lanes and (warps[:, ways:] == warps[:, :-ways]).any():
        ways += 1
    return ways


@needs_compiler
@pytest.mark.parametrize("word_bytes", [4, 8])
def test_tiles_have_no_bank_conflicts(gpu, word_bytes):
    """No two threads of a warp access the same bank, in any tile of any card.

    The accesses of running transforms are counted, on residues that note where they are. Also, every exchange
    puts each value into a place of its own, inside the tile's memory.
    """
    shapes = {
        one.shape: one
        for card in nvrtc.CARDS.values()
        for size, base, few in product(range(1, 29), (1, 2, 4, 8), (False, True))
        for one in split_passes(1 << size, base, word_bytes, card, few)
    }
    word = f"Word<{'u32' if word_bytes == 4 else 'u64'}>"
    kernels = {}  # name expression: shape, words and bytes of an access of a thread for each of its exchanges
    for shape, one in shapes.items():
        values = 1 << (one.log_values + one.log_width)
        exchanges = [(values, word_bytes << one.log_width)] * (len(set(starts(one))) - 1)
        alone = one.log_columns == 0  # neighbours are spread over threads, in chunks
        chunks = [(values, min(16, values * word_bytes))] if alone else []
        kernels[f"ntt_forward<{word}, {shape}, false, false>"] = one, exchanges + chunks
        kernels[f"ntt_inverse<{word}, {shape}, false, true>"] = one, chunks + exchanges
        if alone and 2 * one.shared_values * word_bytes <= H100.shared_bytes:  # both operands at once
            both = [(2 * values, 2 * word_bytes)] * len(exchanges)
            kernels[f"ntt_product<{word}, {shape}>"] = one, both + exchanges
    half = len(kernels) // 2
    modules = [
        gpu.RawModule(
            code=NOTED,
            options=("-std=c++17", f"-I{backends.cuda_sources()}"),
            name_expressions=names,
        )
        for names in (tuple(kernels)[:half], tuple(kernels)[half:])
    ]
    with ThreadPoolExecutor() as workers:
        list(workers.map(gpu.RawModule.compile, modules))
    module_of = {name: module for module in modules for name in module.name_expressions}
    for expression, (one, exchanges) in kernels.items():
        module = module_of[expression]
        values, tiles = 1 << (one.log_values + one.log_width), 1 << one.log_rows
        most = one.shared_values * (2 if "product" in expression else 1)
        words = sum(2 * count for count, _ in exchanges)  # written, then read
        trace = gpu.empty((words + 1, one.threads), np.int32)
        counts = gpu.zeros((one.threads,), np.int32)
        module.get_function("start")((1,), (1,), (trace, counts, np.int32(most * word_bytes)))
        # The pass alone, over rows of its own: stages 0 to log_length - 1 of one limb.
        x = gpu.zeros((values * one.threads * word_bytes,), np.uint8)
        moduli, twiddles = gpu.zeros((16,), np.uint64), gpu.zeros((2 << one.log_length,), np.uint64)
        parameters = one_pass(x, moduli, twiddles, tiles, one.log_length + one.log_columns)
        if "product" in expression:
            at = dict.fromkeys("aby", x.data.ptr)
            sizes = {"inverse_offset": 0, "rows_a": tiles, "rows_b": tiles, "ahead": 0}
            fields = parameters.view(cuda.transform.ONE_PASS.dtype)
            same = {name: fields[name].tobytes() for name in ("pass", "tables")}
            parameters = cuda.multiply.PRODUCT(**at, **same, **sizes)
            parameters = np.frombuffer(parameters, np.uint8)
        kernel = module.get_function(expression)
        kernel.max_dynamic_shared_size_bytes = most * word_bytes
        kernel((1,), (one.threads,), (parameters,), shared_mem=most * word_bytes)
        assert (counts.get() == words).all(), expression
        accesses = trace.get()[:-1]
        assert (accesses % word_bytes == 0).all()
        done = 0
        for count, size in exchanges:
            for _ in range(2):
                places = accesses[done : done + count] // word_bytes
                assert places.max() < most
                assert len(np.unique(places)) == places.size
                assert conflicts(places, word_bytes, size) == 1, expression
                done += count


# ---- what a machine lacks ----


@contextmanager
def instead_of_cupy(module):
    forget()
    try:
        with in_place_of_cupy({"cupy": module}):
            yield
    finally:
        forget()


def test_cuda_without_cupy_raises(monkeypatch):
    with instead_of_cupy(None):
        with pytest.raises(
            pg.errors.BackendUnavailable, match=r'CuPy cannot be imported.*pip install "polygpu\[cuda'
        ):
            pg.Ring(4, 17)([1]).to("cuda")
        with (
            pytest.raises(pg.errors.BackendUnavailable, match="device='cuda:3' does not answer"),
            pg.device("cuda:3"),
        ):
            pass
        monkeypatch.setenv("POLYGPU_DEVICE", "cuda")
        backends._default_device.cache_clear()
        with pytest.raises(pg.errors.BackendUnavailable, match="POLYGPU_DEVICE='cuda' does not answer"):
            pg.Ring(4, 17)([1])
        monkeypatch.undo()


def test_cuda_without_a_driver_raises():
    error = type("CUDARuntimeError", (RuntimeError,), {})

    def count():
        raise error("cudaErrorNoDevice: no CUDA-capable device is detected")

    module = ModuleType("cupy")
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(CUDARuntimeError=error, getDeviceCount=count))
    with (
        instead_of_cupy(module),
        pytest.raises(pg.errors.BackendUnavailable, match=r"No GPU answers \(cudaErrorNoDevice.*nvidia-smi"),
    ):
        pg.Ring(4, 17)([1]).to("cuda")


@needs_compiler
def test_kernel_compilation_error(gpu, monkeypatch, caplog):
    """The error names the kernel, and the process can continue."""
    ring = pg.Ring(16, primes(16, 30))
    a = ring.random(seed=1)
    x = a.to("cuda")
    text_of = cuda.launch.text_of
    monkeypatch.setattr(
        cuda.launch, "text_of", lambda file: text_of(file) + "\nnot CUDA\n" * (file == "ntt.cu")
    )
    with pytest.raises(pg.DeviceError, match=r"(?s)ntt_forward<Lazy32.*does not compile.* on cuda:0.*NVRTC"):
        x.ntt()
    same(x + x, a + a)
    monkeypatch.setattr(cuda.launch, "text_of", text_of)
    with caplog.at_level("INFO", "polygpu"):
        same(x.ntt(), a.ntt())
    assert re.search(r"cuda:0: ntt_forward<Lazy32, .*> in \d+\.\d\d s", caplog.text)


@needs_compiler
def test_out_of_gpu_memory_raises(gpu, monkeypatch):
    ring = pg.Ring(16, primes(16, 30))
    a = ring.random((3,), seed=1)
    x = a.to("cuda")

    def empty(*_, **__):
        raise gpu.cuda.memory.OutOfMemoryError("Out of memory allocating 192 bytes")

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "ndarray", empty)
        for call in (x.ntt, lambda: x * x, lambda: x + 1, lambda: x.automorphism(3)):
            with pytest.raises(
                pg.errors.OutOfDeviceMemory, match=r"cuda:0 is out of memory \(Out of memory.*smaller batches"
            ):
                call()
    same(x.ntt(), a.ntt())


@needs_compiler
def test_key_switch_out_of_gpu_memory_raises(gpu, monkeypatch):
    """Nothing is computed, and the message states what is needed and what would help."""
    T = pg.Ring(64, pg.ntt_primes(64, bits=30, count=3))
    Q, P = T[:2], T[2:]
    s, c = T.ternary(seed=1), Q.random(2, seed=2).ntt().to("cuda")
    M = lattice.LinearTransform({k: [k] for k in range(1, 17)}, ring=Q, special=P, scale=2**20, baby=1)
    made = lattice.rotation_keys(s, M.galois_elements, ring=Q, special=P, limbs_per_digit=1, turned=True)
    M, keys = M.to("cuda"), {g: key.to("cuda") for g, key in made.items()}
    calls = {
        "fewer than 16 giants": lambda: lattice.transform(c, M, keys),
        "Rotate by fewer than 16 keys": lambda: lattice.rotate_many(c, keys.values()),
        "by fewer than 16 keys": lambda: lattice.rotate_many(c, keys.values(), divide=False),
    }
    for hint, call in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(type(gpu.cuda.Device()), "mem_info", property(lambda _: (20_000, 1 << 30)))
            with pytest.raises(
                pg.errors.OutOfDeviceMemory, match=rf"cuda:0 needs \d+ bytes .* 20000 .*{hint}"
            ):
                call()
        call()


@pytest.mark.parametrize("home", ["/proc/nowhere", None])
def test_import_of_cupy_with_an_unwritable_home(tmp_path, home):
    """CuPy creates a cache folder at import. If it cannot, polygpu must not fail."""
    (tmp_path / "cupy.py").write_text(
        "import os, types\n"
        "folder = os.environ.get('CUPY_CACHE_DIR') or os.path.expanduser('~/.cupy/kernel_cache')\n"
        "os.makedirs(folder, exist_ok=True)\n"
        "print(folder, os.environ.get('CUPY_CACHE_IN_MEMORY'))\n"
        "runtime = types.SimpleNamespace(CUDARuntimeError=OSError, getDeviceCount=lambda: 0)\n"
        "cuda = types.SimpleNamespace(runtime=runtime)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUPY_")}
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"HOME": home or str(tmp_path / "home"), "PYTHONPATH": path}
    command = "from polygpu._backends.cuda import absence; print(absence(0))"
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    kept = f"{tmp_path}/home/.cupy/kernel_cache None" if home is None else f"{tempfile.gettempdir()} 1"
    assert done.stdout.splitlines() == [kept, "The number of GPUs is 0, and the first is cuda:0."]


def test_absent_card_raises():
    with simulated(devices_count=2), pytest.raises(pg.errors.BackendUnavailable, match="number of GPUs is 2"):
        pg.Ring(4, 17)([1]).to("cuda:2")
    with simulated(devices_count=0), pytest.raises(pg.errors.BackendUnavailable, match="number of GPUs is 0"):
        pg.Ring(4, 17)([1]).to("cuda")


def test_card_with_too_low_compute_capability_raises():
    v100 = replace(CARDS["t4"], name="Simulated V100", compute_capability=(7, 0))
    with (
        simulated(v100),
        pytest.raises(
            pg.errors.BackendUnavailable,
            match=r"capability of cuda:0 is 7\.0, and kernels need at least 7\.5",
        ),
    ):
        pg.Ring(4, 17)([1]).to("cuda")


def test_default_device_from_the_environment(monkeypatch):
    with simulated("t4"):
        monkeypatch.setenv("POLYGPU_DEVICE", "cuda")
        backends._default_device.cache_clear()
        assert pg.Ring(4, 17)([1]).device == "cuda:0"
        assert "Simulated T4" in cuda.describe()
        monkeypatch.undo()
