"""Rings: their identity, roots of unity, primes, plans and tables, against definitions in Python ints."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import logging
import math
import os
import pickle
import random
import re
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy

import polygpu as pg
from polygpu import Ring, is_prime, ntt_primes, plan, roots

GOLDILOCKS = 2**64 - 2**32 + 1
BABYBEAR = 15 * 2**27 + 1
KOALABEAR = 127 * 2**24 + 1
KINDS: Any = pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])

SMALL_PRIMES = list(sympy.primerange(2, 200))


def root_order(points: int, kind: str) -> int:
    return 2 * points if kind == "negacyclic" else points


def order_of(x: int, q: int) -> int:
    """The multiplicative order of x mod q, by trying."""
    power, k = x % q, 1
    while power != 1 % q:
        power, k = power * x % q, k + 1
    return k


# ---- identity ----

SAME = [
    ((8, 17), {}, (8, [17]), {}),
    ((8, 17), {}, (np.int32(8), np.uint64(17)), {}),
    ((8, 17), {}, (8, np.array(17)), {}),
    ((8, [17, 97]), {}, (8, (17, 97)), {}),
    ((8, [17, 97]), {}, (8, np.array([17, 97])), {}),
    ((8, [17, 97]), {}, (8, (q for q in (17, 97))), {}),
    ((8, 17), {}, (8, 17), {"kind": "negacyclic", "root": "minimal"}),
    ((8, 17), {}, (8, 17), {"root": 3}),
    ((8, 17), {}, (8, 17), {"root": [3]}),
    ((8, [17, 97]), {}, (8, [17, 97]), {"root": np.array([3, 8])}),
    ((4, 97), {"root": "generator"}, (4, 97), {"root": pow(5, 12, 97)}),
    ((4, 15), {"root": "generator"}, (4, 15), {}),  # no transform: the root means nothing
    ((5, 17), {"root": "generator"}, (5, 17), {}),
]
OTHER = [
    ((8, 17), {}, (4, 17), {}),
    ((8, 17), {}, (8, 97), {}),
    ((8, [17, 97]), {}, (8, [97, 17]), {}),
    ((8, [17, 97]), {}, (8, 17 * 97), {}),
    ((8, 17), {}, (8, 17), {"kind": "cyclic"}),
    ((8, 17), {}, (8, 17), {"root": 5}),
    ((64, 7681), {}, (64, 7681), {"root": "generator"}),
]


@pytest.mark.parametrize(("a", "a_options", "b", "b_options"), SAME)
def test_equal_parameters_are_the_same_ring(a: Any, a_options: Any, b: Any, b_options: Any) -> None:
    x, y = Ring(*a, **a_options), Ring(*b, **b_options)
    assert (x == y) is True and (x != y) is False and hash(x) == hash(y) and {x: 1}[y] == 1
    assert x.roots == y.roots
    assert x(3) + y(4) == 7


@pytest.mark.parametrize(("a", "a_options", "b", "b_options"), OTHER)
def test_other_parameters_are_other_rings(a: Any, a_options: Any, b: Any, b_options: Any) -> None:
    x, y = Ring(*a, **a_options), Ring(*b, **b_options)
    assert (x != y) is True and (x == y) is False and len({x, y}) == 2
    with pytest.raises(pg.RingMismatch):
        x(1) + y(1)


def test_a_ring_equals_no_other_thing() -> None:
    for other in (None, 8, "Ring(8, 17)", (8, 17)):
        assert Ring(8, 17) != other


PICKLED = [
    Ring(8, 17),
    Ring(8, 17, root=5),
    Ring(8, [17, 97], root="generator"),
    Ring(6, [2**64, 3], kind="cyclic"),
    Ring(4, 2**200),
]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("ring", PICKLED, ids=repr)
def test_pickles_are_parameters(ring: Ring, protocol: int) -> None:
    if ring.has_eval:
        assert ring.transform is not None  # built tables do not travel
    stream = pickle.dumps(ring, protocol)
    again = pickle.loads(stream)
    assert again == ring and again.roots == ring.roots and hash(again) == hash(ring)
    assert len(stream) < 300
    assert copy.deepcopy(ring) == copy.copy(ring) == ring


PROPERTIES = [k for k, v in vars(Ring).items() if isinstance(v, (property, functools.cached_property))]


@pytest.mark.parametrize("name", [*PROPERTIES, "_n", "_moduli", "other"])
def test_a_ring_is_frozen(name: str) -> None:
    ring = Ring(8, 17)
    before = getattr(ring, name, None)
    with pytest.raises(AttributeError):
        setattr(ring, name, 3)
    assert getattr(ring, name, None) is before or getattr(ring, name) == before


def test_parameters_are_plain_ints() -> None:
    ring = Ring(np.int64(8), np.array([17, 97], np.uint8), root=np.array([3, 8]))
    for value in (ring.n, ring.modulus, *ring.moduli, *(ring.roots or ())):
        assert type(value) is int
    assert type(ring.moduli) is tuple


@pytest.mark.parametrize(
    ("moduli", "dtype", "rows"),
    [
        (2, np.uint32, 1),
        (2**32, np.uint32, 1),
        (2**32 + 1, np.uint64, 1),
        ([3, 2**32], np.uint32, 2),
        ([3, 2**32 + 1], np.uint64, 2),
        (2**64, np.uint64, 1),
        ([2**64, 3], np.uint64, 2),
        (2**64 + 1, np.uint64, 2),
        (2**128, np.uint64, 2),
        (2**128 + 1, np.uint64, 3),
        ([2**300], np.uint64, 5),
    ],
)
def test_storage_follows_the_widest_modulus(moduli: Any, dtype: type, rows: int) -> None:
    ring = Ring(3, moduli)
    assert ring.dtype == dtype and ring.rows == rows
    assert ring.modulus == math.prod(ring.moduli)
    assert ring.zeros(2).data.shape == (2, rows, 3) and ring.zeros().data.dtype == dtype


@pytest.mark.parametrize("ring", PICKLED, ids=repr)
def test_repr_can_be_evaluated(ring: Ring) -> None:
    assert eval(repr(ring), {"Ring": Ring}) == ring


def test_repr_and_latex_are_short() -> None:
    many, huge = Ring(8, ntt_primes(8, 30, 20)), Ring(2, 2**20_000)
    for ring in (many, huge):
        assert len(repr(ring)) < 200 and "\n" not in repr(ring)
        assert len(ring._repr_latex_()) < 200
    assert "20 moduli" in repr(many)
    assert "X^{2} + 1" in huge._repr_latex_()


# ---- presets ----


@pytest.mark.parametrize(
    ("name", "n", "q", "root", "base"),
    [
        ("ml-kem", 256, 3329, 17, 2),
        ("ml-dsa", 256, 8380417, 1753, 1),
        ("falcon-512", 512, 12289, 49, 1),
        ("falcon-1024", 1024, 12289, 7, 1),
    ],
)
def test_presets_of_schemes(name: str, n: int, q: int, root: int, base: int) -> None:
    ring = Ring.preset(name)
    assert ring == Ring(n, q) == Ring.preset(name, n)
    assert (ring.kind, ring.roots, ring.base_degree) == ("negacyclic", (root,), base)
    assert [x for x in range(1, root + 1) if pow(x, n // base, q) == q - 1] == [root]


@pytest.mark.parametrize(
    ("name", "q", "generator"),
    [("babybear", BABYBEAR, 31), ("koalabear", KOALABEAR, 3), ("goldilocks", GOLDILOCKS, 7)],
)
@pytest.mark.parametrize("n", [None, 1, 2, 1024])
def test_presets_of_fields(name: str, q: int, generator: int, n: int | None) -> None:
    ring = Ring.preset(name, n)
    size = 2**16 if n is None else n
    assert (ring.n, ring.moduli, ring.kind, ring.base_degree) == (size, (q,), "cyclic", 1)
    assert ring.roots == (pow(generator, (q - 1) // size, q),)
    assert generator == sympy.primitive_root(q)


# ---- roots of unity ----


@KINDS
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
def test_the_minimal_root_is_the_least_of_its_order(n: int, kind: Any) -> None:
    order = root_order(n, kind)
    for q in SMALL_PRIMES:
        if (q - 1) % order == 0:
            least = next(x for x in range(1, q) if order_of(x, q) == order)
            assert Ring(n, q, kind=kind).roots == (least,)


@KINDS
@pytest.mark.parametrize("rule", ["minimal", "generator"])
@pytest.mark.parametrize("bits", [20, 30, 31, 32, 50, 62, 63, 64, 100, 200])
@pytest.mark.parametrize("n", [1, 2, 256])
def test_roots_of_large_primes(n: int, bits: int, rule: Any, kind: Any) -> None:
    order = root_order(n, kind)
    q = ntt_primes(n, bits, kind=kind)[0]
    if rule == "generator" and bits > 64:
        return  # needs the factors of q - 1
    (root,) = Ring(n, q, kind=kind, root=rule).roots or ()
    assert pow(root, order, q) == 1 and (order == 1 or pow(root, order // 2, q) == q - 1)
    if rule == "minimal":
        assert root == min(pow(root, k, q) for k in range(1, order + 1, 2))
    else:
        assert root == pow(int(sympy.primitive_root(q)), (q - 1) // order, q)


def test_roots_of_an_rns_ring_are_those_of_its_limbs() -> None:
    moduli = [97, 12289, *ntt_primes(16, 50, 2)]
    for rule in ("minimal", "generator"):
        limbs = [Ring(16, q, root=rule).roots for q in moduli]
        assert Ring(16, moduli, root=rule).roots == tuple(r for (r,) in limbs)


@pytest.mark.parametrize("q", [5, 17, 97, 193])
@KINDS
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_exactly_the_elements_of_the_right_order_are_roots(n: int, q: int, kind: Any) -> None:
    base = Ring(n, q, kind=kind).base_degree
    if base is None:
        return
    order = root_order(n // base, kind)
    for x in range(1, q):
        if order_of(x, q) == order:
            ring = Ring(n, q, kind=kind, root=x)
            assert ring.roots == (x,)
            assert ring.eval_points()[0] == (x if kind == "negacyclic" else 1)
        else:
            with pytest.raises(pg.BadRoot, match=f"order {order}"):
                Ring(n, q, kind=kind, root=x)


def test_a_generator_of_a_wide_prime_where_it_can_be_found() -> None:
    q = 2**89 - 1
    (root,) = Ring(4, q, root="generator").roots or ()
    assert root == q - 1  # order 2: four leaves are out of reach, q = 3 mod 4


def test_another_root_permutes_the_evaluation_domain() -> None:
    a = list(range(8))
    for root in (x for x in range(1, 97) if order_of(x, 97) == 16):
        ring = Ring(8, 97, root=root)
        values = dict(zip(ring.eval_points().tolist(), ring(a).ntt().data[0].tolist(), strict=True))
        assert values == {
            x: sum(c * pow(x, j, 97) for j, c in enumerate(a)) % 97 for x in range(97) if pow(x, 8, 97) == 96
        }


# ---- where a transform exists ----


def expected_base(n: int, moduli: tuple[int, ...], kind: str) -> int | None:
    """The rule of the contract: stop k <= 3 layers early, the least such k, every q prime."""
    if n & (n - 1) or not all(sympy.isprime(q) for q in moduli):
        return None
    for k in range(4):
        if n >> k and all((q - 1) % root_order(n >> k, kind) == 0 for q in moduli):
            return 2**k
    return None


@KINDS
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 96])
def test_base_degree_of_small_rings(n: int, kind: Any) -> None:
    for q in range(2, 200):
        ring = Ring(n, q, kind=kind)
        base = expected_base(n, (q,), kind)
        assert (ring.base_degree, ring.has_eval) == (base, base is not None)
        assert (ring.roots is None) == (base is None)


@KINDS
@pytest.mark.parametrize("moduli", list(itertools.permutations([5, 17, 97, 41, 4], 2)), ids=str)
def test_base_degree_of_rns_is_that_of_the_least_friendly_limb(moduli: Any, kind: Any) -> None:
    for n in (1, 2, 4, 8, 16, 32):
        assert Ring(n, moduli, kind=kind).base_degree == expected_base(n, moduli, kind)


@pytest.mark.parametrize(
    ("n", "q", "kind", "base"),
    [
        (256, 3329, "negacyclic", 2),
        (512, 3329, "negacyclic", 4),
        (1024, 3329, "negacyclic", 8),
        (2048, 3329, "negacyclic", None),
        (256, 3329, "cyclic", 1),
        (1, 2, "negacyclic", None),
        (1, 2, "cyclic", 1),
        (2, 2, "cyclic", 2),
        (8, 2, "cyclic", 8),
        (16, 2, "cyclic", None),
        (1, 3, "negacyclic", 1),
        (2, 3, "negacyclic", 2),
        (4, 3, "cyclic", 2),
        (2**40, GOLDILOCKS, "cyclic", None),
        (2**35, GOLDILOCKS, "cyclic", 8),
        (2**26, BABYBEAR, "negacyclic", 1),
        (2**27, BABYBEAR, "negacyclic", 2),
        (4, 2**89 - 1, "negacyclic", 4),
    ],
)
def test_base_degree_examples(n: int, q: int, kind: Any, base: int | None) -> None:
    assert Ring(n, q, kind=kind).base_degree == base


# ---- explain ----

EXPLAINED = [
    (Ring(8, 97), ["Ring(8, 97)", "X^8 + 1", "7 bits", "uint32", "transform of 8 points", "order 16"]),
    (Ring(8, 97, kind="cyclic"), ["X^8 - 1", "transform of 8 points", "33, of order 8"]),
    (Ring(256, 3329), ["1 layer early", "128 leaves of 2", "17, of order 256", "1.0 KiB", "4.0 KiB"]),
    (Ring(512, 3329), ["2 layers early", "128 leaves of 4"]),
    (Ring(1024, 3329), ["3 layers early", "128 leaves of 8"]),
    (Ring(8, 7), ["3 layers early", "of 8 coefficients", "6, of order 2"]),
    (Ring(8, [17, 97, 193]), ["[17, 97, 193]", "19 bits", "(*batch, 3, 8)", "3, 8, 3", "order 16"]),
    (Ring(8, ntt_primes(8, 50, 5)), ["5 moduli", "250 bits", "(*batch, 5, 8)", "uint64", "..."]),
    (Ring(12, 97), ["FFT of 16 complex points, 1 digit of 7 bits", "none", "12 is no power of two"]),
    (Ring(12, 97, product="ntt"), ["auxiliary", "none", "12 is no power of two", "transforms of 32 points"]),
    (Ring(16, 15, product="ntt"), ["auxiliary", "none", "15 is not prime", "transforms of 16 points"]),
    (Ring(16, 1_000_003), ["FFT", "1000003", "mod 32 is 3", "must be 1", "ntt_primes(16, bits=20"]),
    (Ring(16, 2**64), ["uint64", "4 digits of 16 bits", "error below", "by proof", "not prime"]),
    (Ring(1024, 12289, product="fft"), ["FFT of 512 complex points, 1 digit of 14 bits", "of order 2048"]),
    (Ring(16, 2**64, product="ntt"), ["uint64", "3 auxiliary primes", "not prime"]),
    (Ring(8, 2**128), ["(*batch, 2, 8)", "2 words", "auxiliary", "129 bits", "not prime"]),
    (Ring(8, ntt_primes(8, 100)), ["(*batch, 2, 8)", "2 words", "auxiliary", "of order 16"]),
    (Ring(1, 2, kind="cyclic"), ["X^1 - 1", "transform of 1 point", "1, of order 1"]),
]


@pytest.mark.parametrize(("ring", "parts"), EXPLAINED, ids=lambda x: repr(x) if isinstance(x, Ring) else "")
def test_explain_names_the_path(ring: Ring, parts: list[str]) -> None:
    text = ring.explain()
    for part in parts:
        assert part in text


@pytest.mark.parametrize("ring", [ring for ring, _ in EXPLAINED], ids=repr)
def test_explain_tells_what_the_plan_holds(ring: Ring) -> None:
    text, how = ring.explain(), ring.product_plan()
    found = re.search(r"(\d+) auxiliary primes? of (\d+) bits, transforms of (\d+) points", text)
    assert (found is not None) == isinstance(how, plan.AuxiliaryPlan)
    if isinstance(how, plan.FftPlan):
        digits = f"{how.digits} digit{'s' * (how.digits > 1)} of {how.width} bits"
        assert f"FFT of {how.points} complex points, {digits}, error below {how.error_bound:.2g}" in text
        size = how.twiddles.nbytes + (sum(t.nbytes for t in ring.transform.tables) if ring.has_eval else 0)
    else:
        transform = getattr(how, "transform", how)
        size = sum(table.nbytes for table in transform.tables)
        if found is not None:
            primes = transform.limbs.moduli
            assert tuple(map(int, found.groups())) == (len(primes), primes[0].bit_length(), transform.degree)
    assert f"tables    {size / 1024:.1f} KiB" in text
    assert f"{ring.zeros().data.nbytes / 1024:.1f} KiB a polynomial" in text


WORDS = [(2**30 - 1, "q < 2^30"), (2**30, "q < 2^31"), (2**31, "q <= 2^32"), (2**32, "q <= 2^32")]
WORDS += [(2**32 + 1, "q < 2^50"), (2**50, "q < 2^62"), (2**62, "q <= 2^64"), (2**64, "q <= 2^64")]


@pytest.mark.parametrize(("q", "word"), WORDS)
def test_explain_names_the_word(q: int, word: str) -> None:
    assert f" {word}\n" in Ring(3, q).explain()


@KINDS
@pytest.mark.parametrize("q", [2, 3, 7, 23, 1_000_003, 2**31 - 1, 2**61 - 1, 2**89 - 1])
def test_the_way_out_that_a_message_names_is_one(q: int, kind: Any) -> None:
    """ntt_primes(...) of the message, run, gives moduli with a transform."""
    for k in range(21):
        ring = Ring(2**k, q, kind=kind)
        if ring.has_eval:
            continue
        with pytest.raises(pg.NotNTTFriendly) as caught:
            ring.zeros(0).ntt()
        assert f"mod {root_order(2**k, kind)} is" in str(caught.value)
        call = re.search(r"ntt_primes\(.*?\)", str(caught.value))
        assert call is not None
        for p in eval(call.group(), {"ntt_primes": ntt_primes}):
            assert Ring(2**k, p, kind=kind).base_degree == 1


# ---- plans and tables ----


def test_equal_rings_share_their_tables() -> None:
    x, y = Ring(64, 7681), Ring(64, [7681], root=Ring(64, 7681).roots or ())
    assert x is not y
    assert x.transform is y.transform and x.product_plan() is y.product_plan() is x.transform
    a, b = Ring(12, 97), Ring(12, 97)
    assert a.product_plan() is b.product_plan()
    assert Ring(64, 7681, root="generator").transform is not x.transform
    assert Ring(64, 7681, kind="cyclic").transform is not x.transform


def test_plans_outlive_their_ring_for_a_while() -> None:
    alive = weakref.ref(Ring(4, 97).transform)
    gc.collect()
    assert alive() is not None and Ring(4, 97).transform is alive()
    for n in range(3, 40):
        assert Ring(n, 15).product_plan()
    gc.collect()
    assert alive() is None


def test_threads_build_one_plan() -> None:
    q = ntt_primes(2048, 50, 3)[2]
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: Ring(2048, q).transform, range(16)))
    assert all(p is plans[0] for p in plans)


@KINDS
@pytest.mark.parametrize(
    ("n", "moduli"),
    [
        (1, 17),
        (2, 17),
        (16, 97),
        (16, [97, 193]),
        (64, BABYBEAR),
        (16, ntt_primes(16, 32)),
        (32, ntt_primes(32, 62)),
        (8, GOLDILOCKS),
        (16, 41),
        (16, 5),
        (8, 7),
        (8, ntt_primes(8, 100)),
        (2, ntt_primes(2, 300)),
    ],
)
def test_tables_are_their_definition(n: int, moduli: Any, kind: Any) -> None:
    """Node 1 is X^n ± 1; the twiddle w of node i splits X^2m - w^2 into nodes 2i and 2i + 1,
    X^m - w and X^m + w; leaf k is X^base - x_k. The inverse table holds 1/w, the first two
    entries times 1/points, and beside each entry stands its Shoup quotient."""
    ring = Ring(n, moduli, kind=kind)
    points, word = ring.transform.points, 8 * ring.dtype.itemsize
    forward_table, inverse_table = ring.transform.tables
    for i, q in enumerate(ring.moduli):
        constants = [0] * points + [int(x) for x in ring.eval_points(i)]
        for node in reversed(range(1, points)):
            assert constants[2 * node + 1] == -constants[2 * node] % q
            constants[node] = constants[2 * node] ** 2 % q
        assert constants[1] % q == (-1 if kind == "negacyclic" else 1) % q
        forward = [1] + [constants[2 * node] for node in range(1, points)]
        scale = pow(points, -1, q)
        inverse = [pow(w, -1, q) * (scale if node < 2 else 1) % q for node, w in enumerate(forward)]
        if points == 1:
            continue  # nothing is transformed
        assert forward_table[i][0].tolist() == forward
        assert inverse_table[i][0].tolist() == inverse
        if ring.rows == len(ring.moduli):
            assert forward_table[i][1].tolist() == [(w << word) // q for w in forward]
            assert inverse_table[i][1].tolist() == [(w << word) // q for w in inverse]


@pytest.mark.parametrize("ring", [Ring(16, 97), Ring(8, ntt_primes(8, 100)), Ring(256, 3329)], ids=repr)
def test_tables_are_read_only(ring: Ring) -> None:
    for array in (*ring.transform.tables, plan.bit_reversal(16), ring.natural_order()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for name in ("tables", "base", "roots"):
        with pytest.raises(AttributeError):
            setattr(ring.transform, name, None)


def test_eval_points_are_a_copy() -> None:
    ring = Ring(4, 17)
    ring.eval_points()[:] = 0
    assert ring.eval_points().tolist() == [2, 15, 8, 9]


BIG = ntt_primes(2**40, 62)[0]


@pytest.mark.parametrize(
    "compute",
    [
        lambda: Ring(2**40, BIG).transform,
        lambda: Ring(2**40, BIG).product_plan(),
        lambda: Ring(2**40, BIG, kind="cyclic").transform,
        lambda: Ring(2**40, [BIG, 2**64]).product_plan(),
        lambda: Ring(2**40, 15).product_plan(),
        lambda: Ring(2**40 + 1, 2**100).product_plan(),
        lambda: Ring(2**45, 15).product_plan(),
        lambda: Ring(2**60 + 1, 15).product_plan(),
    ],
    ids=["transform", "product", "cyclic", "RNS", "composite", "wide", "2^45", "2^60"],
)
def test_tables_too_large_are_refused_at_once(compute: Any) -> None:
    start = time.perf_counter()
    with pytest.raises(pg.TablesTooLarge, match=r"n = \d{13,}.*GiB.*smaller n") as caught:
        compute()
    assert time.perf_counter() - start < 2
    assert isinstance(caught.value, MemoryError)


def test_a_ring_too_large_to_compute_in_can_still_be_explained() -> None:
    """In a process of its own, which can be stopped."""
    code = f"import polygpu; print(polygpu.Ring(2**40, {BIG}).explain())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 0 or "TablesTooLarge" in done.stderr


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 12, 15, 16])
def test_automorphism_index_of_coefficients(n: int, kind: Any) -> None:
    """Entry j of a(X^g) is entry k of a where g k = j, negated (n + k) where X^(gk) = -X^j."""
    period = 2 * n if kind == "negacyclic" else n
    for g in (g for g in range(period) if math.gcd(g, period) == 1):
        expected = [0] * n
        for k in range(n):
            turns, j = divmod(g * k, n)
            expected[j] = k + n * (turns % 2) if kind == "negacyclic" else k
        assert plan.automorphism(n, kind, g, False).index.tolist() == expected


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 32])
def test_automorphism_index_of_values(n: int, kind: Any) -> None:
    """a(X^g) at x_k is a at x_k^g."""
    ring = Ring(n, 193, kind=kind)
    points = ring.eval_points().tolist()
    period = 2 * n if kind == "negacyclic" else n
    for g in (g for g in range(period) if math.gcd(g, period) == 1):
        index = plan.automorphism(n, kind, g, True).index
        assert index.tolist() == [points.index(pow(x, g, 193)) for x in points]
        assert not index.flags.writeable


@pytest.mark.parametrize("points", [1, 2, 4, 64])
def test_bit_reversal(points: int) -> None:
    bits = points.bit_length() - 1
    expected = [int(f"{k:0{bits}b}"[::-1], 2) if bits else 0 for k in range(points)]
    assert plan.bit_reversal(points).tolist() == expected


# ---- primes ----

CARMICHAEL = [561, 1105, 1729, 2465, 2821, 6601, 8911, 10585, 41041, 825265, 321197185, 5394826801]
STRONG_PSEUDOPRIMES = [  # the least ones to the first 1, 2, 3 ... 13 prime bases
    2047,
    1373653,
    25326001,
    3215031751,
    2152302898747,
    3474749660383,
    341550071728321,
    3825123056546413051,
    318665857834031151167461,
    3317044064679887385961981,
]
SPECIAL = [
    *CARMICHAEL,
    *STRONG_PSEUDOPRIMES,
    *(2**p - 1 for p in (2, 11, 31, 61, 67, 89, 107, 127, 521)),
    *(2 ** (2**k) + 1 for k in range(8)),
    *(2**k + d for k in (31, 32, 62, 63, 64, 65, 128) for d in range(-40, 41)),
    *(p * p for p in (2, 3, 41, 43, 65537, 2**31 - 1, 2**61 - 1)),
    (2**31 - 1) * (2**61 - 1),
    (2**89 - 1) * (2**107 - 1),
    GOLDILOCKS,
    BABYBEAR,
    KOALABEAR,
]


def test_is_prime_of_small_numbers() -> None:
    assert [n for n in range(-50, 5000) if is_prime(n)] == list(sympy.primerange(5000))


@pytest.mark.parametrize("n", SPECIAL)
def test_is_prime_of_special_numbers(n: int) -> None:
    assert is_prime(n) is sympy.isprime(n)


def test_is_prime_of_random_numbers() -> None:
    rng = random.Random(1)
    for bits in (16, 20, 32, 40, 63, 64, 81, 82, 90, 128, 200):
        for _ in range(60):
            n = rng.getrandbits(bits) | 1
            assert is_prime(n) is sympy.isprime(n)
        assert is_prime(int(sympy.nextprime(2**bits)))


def test_is_prime_takes_numpy_ints() -> None:
    assert is_prime(np.int64(2**61 - 1)) and not is_prime(np.uint64(2**64 - 1))
    assert is_prime(np.uint8(251)) and not is_prime(np.int8(-7))


@KINDS
@pytest.mark.parametrize("bits", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_ntt_primes_are_the_largest_ones(n: int, bits: int, kind: Any) -> None:
    order = root_order(n, kind)
    expected = [p for p in sympy.primerange(2 ** (bits - 1), 2**bits) if (p - 1) % order == 0][::-1]
    for count in range(len(expected) + 1):
        assert ntt_primes(n, bits, count, kind) == expected[:count]
    with pytest.raises(pg.ParameterError, match=rf"bits={bits}: only {len(expected)} prime"):
        ntt_primes(n, bits, len(expected) + 1, kind)


@KINDS
@pytest.mark.parametrize("bits", [30, 31, 32, 50, 60, 62, 63, 64, 65, 100, 256])
def test_large_ntt_primes(bits: int, kind: Any) -> None:
    order = root_order(1024, kind)
    primes = ntt_primes(1024, bits, 4, kind)
    assert primes == sorted(set(primes), reverse=True) and len(primes) == 4
    between = range(primes[-1], 2**bits, order)
    assert between[0] % order == 1
    assert [p for p in reversed(between) if sympy.isprime(p)] == primes
    assert all(type(p) is int and p.bit_length() == bits for p in primes)
    assert Ring(1024, primes[0], kind=kind).base_degree == 1


def test_ntt_primes_takes_numpy_ints() -> None:
    primes = ntt_primes(np.int64(8), np.uint8(30), np.int32(2))
    assert primes == ntt_primes(8, 30, 2) and all(type(p) is int for p in primes)


# ---- primitive roots on disk ----

Q = 12289  # 11 is its least primitive root, 2 and 3 are the prime factors of Q - 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty cache folder; nothing is remembered in this process."""

    def forget() -> None:
        roots._primitive_root.cache_clear()
        roots.root_of_unity.cache_clear()
        monkeypatch.setattr(roots, "_cache_paused_until", 0.0)

    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYGPU_CACHE_DIR", str(folder))
    forget()
    yield lambda: (forget(), folder / "primitive_roots.sqlite")[1]
    roots._primitive_root.cache_clear()
    roots.root_of_unity.cache_clear()


def resolved() -> tuple[Any, Any]:
    return Ring(512, Q).roots, Ring(512, Q, root="generator").roots


RIGHT = ((49,), (pow(11, (Q - 1) // 1024, Q),))


@contextmanager
def no_sympy() -> Iterator[None]:
    def lost(_: int) -> int:
        raise AssertionError("SymPy was asked again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sympy, "primitive_root", lost)
        yield


def works_again(cache: Any) -> bool:
    """Whether the cache gives right roots, keeps them, and its folder holds nothing else."""
    file, found = cache(), resolved()
    cache()
    with no_sympy():
        again = resolved()
    roots._keep_root(97, 5, [2, 3])
    kept = ("61", "5", "2 3") in rows(file)
    return kept and found == again == RIGHT and [p.name for p in file.parent.iterdir()] == [file.name]


def python(code: str, *args: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def output(process: subprocess.Popen[str], timeout: float = 60) -> tuple[str, str, int]:
    """What it wrote to stdout and stderr, and its exit status."""
    with process:
        try:
            return *process.communicate(timeout=timeout), process.returncode
        finally:
            process.kill()


def test_primitive_roots_are_kept(cache: Any) -> None:
    assert resolved() == RIGHT
    file = cache()
    assert str(file) == roots.cache_file()
    assert file.is_file() and [p.name for p in file.parent.iterdir()] == [file.name]
    with no_sympy():
        assert resolved() == RIGHT
    assert roots._primitive_root.cache_info().maxsize is not None


def test_a_kept_root_saves_the_import_of_sympy(cache: Any) -> None:
    assert resolved() == RIGHT
    code = f"import sys, polygpu; polygpu.Ring(512, {Q}).transform; print('sympy' in sys.modules)"
    assert output(python(code)) == ("False\n", "", 0)


def test_sqlite_is_imported_only_for_a_root(cache: Any) -> None:
    code = "import sys, polygpu; polygpu.Ring(512, 12289); print('sqlite3' in sys.modules)"
    assert output(python(code)) == ("False\n", "", 0)


@pytest.mark.parametrize("name", ["\udcff", "file:x?mode=memory#%20", "x" * 250, ":memory:", "a'b\n"])
def test_the_folder_may_have_any_name(
    cache: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (str(tmp_path / name), name):  # absolute and relative
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("POLYGPU_CACHE_DIR", folder)
        cache()
        assert resolved() == RIGHT
        cache()
        with no_sympy():
            assert resolved() == RIGHT
        assert (tmp_path / name / "primitive_roots.sqlite").stat().st_size
        shutil.rmtree(tmp_path / name)


def rows(file: Path) -> list[Any]:
    with closing(sqlite3.connect(file)) as db:
        return db.execute("SELECT q, root, factors FROM roots ORDER BY age").fetchall()


def test_roots_of_several_moduli_are_all_kept(cache: Any) -> None:
    for q in (97, 193, 257):
        assert Ring(4, q).roots is not None
    assert rows(cache()) == [("61", "5", "2 3"), ("c1", "5", "2 3"), ("101", "3", "2")]


def test_numbers_beyond_the_limit_on_digits_are_kept(cache: Any) -> None:
    q = 1 << 20000
    roots._keep_root(q, 5, [q - 1])
    assert rows(cache()) == [(f"{q:x}", "5", f"{q - 1:x}")]
    assert roots._kept_root(q) is None  # not proved


def test_processes_that_write_at_the_same_time_lose_nothing(cache: Any) -> None:
    primes = ntt_primes(4, 30, 200)
    code = (
        "import sys, sympy, polygpu; print('ready', flush=True); input()\n"
        "for q in map(int, sys.argv[1:]): polygpu.Ring(4, q).roots"
    )
    processes = [python(code, *primes[i::4]) for i in range(4)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [output(process) for process in processes] == [("", "", 0)] * 4
    assert {int(q, 16) for q, _, _ in rows(cache())} == set(primes)
    with no_sympy():
        assert all(Ring(4, q).roots for q in primes)


def test_processes_that_make_the_file_at_the_same_time_lose_nothing(cache: Any, tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from polygpu import roots
        for number in range(40):
            os.environ["POLYGPU_CACHE_DIR"] = os.path.join(sys.argv[1], str(number))
            read, write = os.pipe()
            children = []
            for q in range(4):
                if (child := os.fork()) == 0:
                    os.close(write)
                    os.read(read, 1)  # until all are there
                    roots._keep_root(q, 1, [2])
                    os._exit(0)
                children.append(child)
            os.close(read)
            os.close(write)
            if any(os.waitpid(child, 0)[1] for child in children):
                sys.exit("a child failed")"""
    assert output(python(code, tmp_path)) == ("", "", 0)
    files = [tmp_path / str(number) / "primitive_roots.sqlite" for number in range(40)]
    assert all(sorted(q for q, _, _ in rows(file)) == ["0", "1", "2", "3"] for file in files)


def test_threads_that_write_at_the_same_time_lose_nothing(cache: Any) -> None:
    primes = ntt_primes(4, 30, 100)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda q: Ring(4, q).roots, primes))
    assert {int(q, 16) for q, _, _ in rows(cache())} == set(primes)


def test_a_fork_finds_no_lock_held(cache: Any) -> None:
    """One thread is in the cache all the time, while another one forks."""
    code = """if True:
        import os, signal, threading, polygpu
        from polygpu import roots
        roots._keep_root(41, 6, [2, 5])
        stop, found = threading.Event(), []
        def use():
            while not stop.is_set():
                roots._keep_root(97, 5, [2, 3])
        def look():
            for _ in range(3):  # the writer may be in the way for long
                roots._cache_paused_until = 0
                found.append(roots._kept_root(41))
        thread = threading.Thread(target=use)
        thread.start()
        wrong = 0
        for _ in range(100):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                thread = threading.Thread(target=look)
                thread.start()
                thread.join()
                os._exit(6 not in found)
            wrong += os.waitpid(child, 0)[1] != 0
            if wrong > 2:
                break
        stop.set()
        thread.join()
        print(wrong)"""
    assert output(python(code))[0] == "0\n"


def test_the_time_of_an_entry_does_not_grow(cache: Any) -> None:
    times = []
    for q in range(10**9, 10**9 + 2000):
        began = time.perf_counter()
        roots._keep_root(q, 5, [2, 3])
        roots._kept_root(q)
        times.append(time.perf_counter() - began)
    assert len(rows(cache())) == 2000
    assert statistics.median(times[-200:]) < 3 * statistics.median(times[:200])


def test_the_newest_entries_stay(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_CACHE_ENTRIES", 20)
    primes = ntt_primes(4, 20, 50)
    for q in primes:
        assert Ring(4, q).roots
    assert [int(q, 16) for q, _, _ in rows(cache())] == primes[-20:]
    assert Ring(4, primes[0]).roots  # forgotten, found anew, the newest now
    assert [int(q, 16) for q, _, _ in rows(cache())] == [*primes[-19:], primes[0]]
    roots._keep_root(primes[-19], 1, [])  # replaced, which also makes it the newest
    assert [int(q, 16) for q, _, _ in rows(cache())] == [*primes[-18:], primes[0], primes[-19]]


def test_a_full_cache_is_small(cache: Any) -> None:
    """As many entries of 64 bits as are kept, and more."""
    roots._keep_root(41, 6, [2, 5])
    with closing(sqlite3.connect(cache(), isolation_level=None)) as db:
        entries = ((f"{q:x}", "ff", "2 3 5 7 b d " + "f" * 12) for q in range(2**63, 2**63 + 20000))
        db.execute("BEGIN")
        db.executemany("INSERT INTO roots VALUES (NULL, ?, ?, ?)", entries)
        db.execute("COMMIT")
    roots._keep_root(43, 3, [2, 3, 7])
    assert len(rows(cache())) == roots._CACHE_ENTRIES == 16384
    assert roots._kept_root(43) == 3 and roots._kept_root(41) is None
    assert cache().stat().st_size < 4e6 < roots._CACHE_BYTES


def written(file: Path, *entries: Any, age: int | None = None) -> None:
    """A cache file with these entries of q, root and factors, whatever their types; text may be no UTF-8."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE roots (age INTEGER PRIMARY KEY, q UNIQUE, root, factors)")
        for entry in entries:
            marks = ", ".join("CAST(? AS TEXT)" if isinstance(x, str) else "?" for x in entry)
            values = [x.encode("utf-8", "surrogateescape") if isinstance(x, str) else x for x in entry]
            db.execute(f"INSERT INTO roots VALUES (?, {marks})", (age, *values))
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'roots'", (roots._TABLE,))


def sql(*statements: str) -> Any:
    def write(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return write


def patched(change: Any, entries: int = 300) -> Any:
    """Writes a good file of about 10 pages, whose bytes are then changed."""

    def write(file: Path) -> None:
        written(file, (f"{Q:x}", "b", "2 3"), *((f"x{i}", "b", "2 3") for i in range(entries)))
        data = bytearray(file.read_bytes())
        file.write_bytes(change(data) or data)

    return write


def put(at: int, data: bytes) -> Any:
    return patched(lambda file: file.__setitem__(slice(at, at + len(data)), data))


def noise(count: int) -> bytes:
    return random.Random(7).randbytes(count)


def sparse(file: Path) -> None:
    written(file, (f"{Q:x}", "b", "2 3"))
    os.truncate(file, 1 << 36)


def with_neighbour(suffix: str, data: bytes) -> Any:
    def write(file: Path) -> None:
        written(file, (f"{Q:x}", "b", "2 3"))
        file.with_name(file.name + suffix).write_bytes(data)

    return write


KEY = f"{Q:x}"
ENTRIES = {
    "null entry": (KEY, None, None),
    "number entry": (KEY, 43, 43),
    "text entry": (KEY, "43", "43"),
    "text root": (KEY, "x", "2 3"),
    "null root": (KEY, None, "2 3"),
    "float root": (KEY, 43.5, "2 3"),
    "infinite root": (KEY, math.inf, "2 3"),
    "blob root": (KEY, b"\xff\0", "2 3"),
    "root of no UTF-8": (KEY, "\udcff", "2 3"),
    "empty root": (KEY, "", "2 3"),
    "huge root": (KEY, "9" * 5000, "2 3"),
    "huge text": (KEY, "9" * 10_000_000, "2 3"),
    "zero": (KEY, "0", "2 3"),
    "one": (KEY, "1", "2 3"),
    "q": (KEY, KEY, "2 3"),
    "negative": (KEY, "-b", "2 3"),
    "a square": (KEY, "79", "2 3"),
    "a factor missing": (KEY, "5", "2"),
    "no factors": (KEY, "7", ""),
    "null factors": (KEY, "7", None),
    "number of factors": (KEY, "7", 2),
    "a factor 0": (KEY, "7", "0 2 3"),
    "a factor 1": (KEY, "7", "1 2 3"),
    "a composite factor": (KEY, "7", "3000"),
    "a negative factor": (KEY, "7", "-2 3"),
    "factors that are no numbers": (KEY, "7", "2 y"),
    "factors of no UTF-8": (KEY, "7", "2 \udcff"),
    "many factors": (KEY, "7", "2 " * 5_000_000),
    "a huge factor": (KEY, "7", "2 3 " + "1" * 10_000),
    "another key": ("x", "b", "2 3"),
    "a number as key": (Q, "b", "2 3"),
    "the key in capitals": (KEY.upper() + " ", "b", "2 3"),
}


def entry_of(entry: tuple[Any, ...]) -> Any:
    return lambda file: written(file, entry)


GOOD = f"INSERT INTO roots VALUES (1, '{KEY}', 'b', '2 3')"
DAMAGED: dict[str, Any] = {name: entry_of(entry) for name, entry in ENTRIES.items()} | {
    "nothing": lambda file: file.write_bytes(b""),
    "one byte": lambda file: file.write_bytes(b"S"),
    "JSON": lambda file: file.write_bytes(b'{"12289": [11, [2, 3]]}'),
    "no database": lambda file: file.write_bytes(b"\x00\xff\xfe garbage"),
    "noise": lambda file: file.write_bytes(noise(20_000)),
    "zeros": lambda file: file.write_bytes(bytes(20_000)),
    "half a header": patched(lambda file: file[:50]),
    "the header alone": patched(lambda file: file[:100]),
    "half a page": patched(lambda file: file[:2048]),
    "the first page": patched(lambda file: file[:4096]),
    "half a file": patched(lambda file: file[: len(file) // 2]),
    "half the last page": patched(lambda file: file[:-2048]),
    "too long": patched(lambda file: file + noise(5000)),
    "zeros after the header": patched(lambda file: file[:100] + bytes(len(file) - 100)),
    "zeros after the first page": patched(lambda file: file[:4096] + bytes(len(file) - 4096)),
    "noise after the header": patched(lambda file: file[:100] + noise(len(file) - 100)),
    "noise after the first page": patched(lambda file: file[:4096] + noise(len(file) - 4096)),
    "pages in reverse": patched(
        lambda file: b"".join(file[i : i + 4096] for i in (0, *range(len(file) - 4096, 0, -4096)))
    ),
    "unknown page size": put(16, b"\x00\x03"),
    "another page size": put(16, b"\x02\x00"),
    "a newer format to write": put(18, b"\x03"),
    "a newer format to read": put(19, b"\x03"),
    "a newer format of schemas": put(44, b"\x00\x00\x00\x09"),
    "another encoding": put(56, b"\x00\x00\x00\x02"),
    "no encoding": put(56, b"\x00\x00\x00\x09"),
    "a statement that is none": patched(lambda file: file.replace(b"CREATE TABLE", b"CREATE TUBLE")),
    "too large": sparse,
    "no table": sql("CREATE TABLE t (x)", "DROP TABLE t"),
    "another table": sql("CREATE TABLE t (x)", "INSERT INTO t VALUES (1)"),
    "a table too many": sql(roots._TABLE, GOOD, "CREATE TABLE t (x)"),
    "a column missing": sql("CREATE TABLE roots (age INTEGER PRIMARY KEY, q UNIQUE, root)"),
    "no key": sql("CREATE TABLE roots (age, q, root, factors)", GOOD.replace("'b'", "'5'"), GOOD),
    "other columns": sql("CREATE TABLE roots (a, b, c, d)", GOOD),
    "a view": sql("CREATE VIEW roots AS SELECT 1 AS age, 1 AS q, 1 AS root, 1 AS factors"),
    "a view without its table": sql("CREATE VIEW roots AS SELECT * FROM t"),
    "a trigger": sql(
        roots._TABLE, "CREATE TRIGGER t BEFORE INSERT ON roots BEGIN SELECT RAISE(ABORT, 'no'); END"
    ),
    "a trigger of an unknown function": sql(
        roots._TABLE, "CREATE TRIGGER t BEFORE INSERT ON roots BEGIN SELECT f(); END"
    ),
    "the last age": lambda file: written(file, ("x", "b", "2 3"), age=2**63 - 1),
    "negative ages": lambda file: written(file, ("x", "b", "2 3"), age=-(2**63)),
    "text in UTF-16": sql("PRAGMA encoding='UTF-16'", roots._TABLE, GOOD),
    "large pages": sql("PRAGMA page_size=65536", roots._TABLE, GOOD),
    "a write-ahead log": sql("PRAGMA journal_mode=WAL", roots._TABLE, GOOD),
    "a journal of noise": with_neighbour("-journal", noise(5000)),
    "a journal of nothing": with_neighbour("-journal", b""),
    "a journal that stops": with_neighbour("-journal", bytes.fromhex("d9d505f920a163d7ffffffff") + noise(4)),
    "a write-ahead log of noise": with_neighbour("-wal", noise(5000)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_cache_is_survived(cache: Any, damage: str) -> None:
    file = cache()
    file.parent.mkdir()
    DAMAGED[damage](file)
    began = time.process_time()
    assert works_again(cache)
    assert time.process_time() - began < 5


def test_a_file_too_large_is_made_anew(cache: Any) -> None:
    cache().parent.mkdir()
    sparse(cache())
    assert works_again(cache) and cache().stat().st_size < 100_000


@pytest.mark.parametrize("entry", ["huge text", "many factors", "a huge factor"])
def test_huge_entries_take_little_memory(cache: Any, entry: str) -> None:
    cache().parent.mkdir()
    DAMAGED[entry](cache())
    tracemalloc.start()
    try:
        assert roots._kept_root(Q) is None
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


def test_a_cache_with_wrong_bytes_is_survived(cache: Any) -> None:
    file = cache()
    file.parent.mkdir()
    patched(lambda _: None, entries=100)(file)
    good, some = file.read_bytes(), random.Random(1)
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(some.choice([1, 10, 100])):
            at = some.choice([some.randrange(110), some.randrange(len(bad))])
            bad[at] = some.choice([0, 1, 255, some.randrange(256)])
        file.write_bytes(bad)
        cache()
        assert resolved() == RIGHT
        for stray in file.parent.iterdir():
            stray.unlink()


def test_a_damaged_cache_that_was_replaced_meanwhile_stays(cache: Any) -> None:
    """Two processes find the damage; the first one has made the file anew when the second would."""
    file, calls = cache(), []

    def work(_: Any) -> str:
        calls.append(1)
        if len(calls) == 1:
            written(new := file.with_name("new"), (KEY, "b", "2 3"))
            new.replace(file)
            raise sqlite3.DatabaseError("database disk image is malformed")
        return "done"

    roots._keep_root(41, 6, [2, 5])
    assert roots._in_cache(work) == "done"
    assert roots._kept_root(Q) == 11


@pytest.mark.parametrize(
    "error", [sqlite3.DatabaseError("malformed"), UnicodeDecodeError("x", b"", 0, 0, "x")]
)
def test_a_cache_is_made_anew_once(cache: Any, error: Exception) -> None:
    calls = []

    def work(_: Any) -> None:
        calls.append(1)
        raise error

    assert roots._in_cache(work) is None and len(calls) == 2


@pytest.mark.parametrize(
    "entry",
    [
        [3, [2]],  # the least non-residue: of the right order, but no primitive root
        [3, [2, 5]],
        [7, [2, 5]],  # a primitive root, not the least one
        [35, [2, 5]],
        [6, [2]],  # right, but not proven
        [6, [2, 5, 7]],
        [6, [2, 5, 5]],
        [6, [2, 2, 5]],
        [1, []],
        [1, [2, 5]],
        [6 + 41, [2, 5]],
        [6 - 41, [2, 5]],
    ],
)
def test_a_wrong_entry_of_the_cache_never_changes_a_root(cache: Any, entry: Any) -> None:
    """Any non-residue gives a root of the right order; only the least primitive root, 6, the right one."""
    file = cache()
    root, factors = entry
    roots._keep_root(41, root, factors)
    assert len(rows(file)) == 1 and roots._kept_root(41) is None
    assert Ring(4, 41, root="generator").roots == (pow(6, 5, 41),)
    assert Ring(4, 41).roots == (3,)
    assert rows(file) == [("29", "6", "2 5")]  # and is replaced


def test_a_right_entry_of_the_cache_is_believed(cache: Any) -> None:
    roots._keep_root(41, 6, [5, 2])
    with no_sympy():
        assert Ring(4, 41, root="generator").roots == (pow(6, 5, 41),)


def irregular(kind: str, place: Path) -> None:
    """Put something at this place that is no regular file."""
    other = place.with_name("other")
    if "FIFO" in kind:
        os.mkfifo(other if "link" in kind else place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, pytest.MonkeyPatch.context() as patch:
            patch.chdir(place.parent)  # a socket's path has at most 107 bytes
            made.bind(place.name)
    if not os.path.lexists(place):
        place.symlink_to({"device": "/dev/zero", "loop of links": place}.get(kind, other))


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    """A FIFO would be read for ever, a device without end."""
    kinds = ("FIFO", "link to a FIFO", "socket", "folder", "device", "loop of links")
    places = list(itertools.product(kinds, ("", "-journal", "-wal", "-shm")))
    for number, (kind, suffix) in enumerate(places):
        file = tmp_path / str(number) / "primitive_roots.sqlite"
        file.parent.mkdir()
        if suffix:
            written(file, (KEY, "b", "2 3"))
        irregular(kind, file.with_name(file.name + suffix))
    before = {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")}
    code = """if True:
        import os, sys
        from polygpu import roots
        for number in range(int(sys.argv[2])):
            os.environ["POLYGPU_CACHE_DIR"] = os.path.join(sys.argv[1], str(number))
            print(number, flush=True)
            roots._keep_root(41, 6, [2, 5])
            if roots._kept_root(41) or roots._kept_root(12289):
                print("used")"""
    done = "".join(f"{number}\n" for number in range(len(places)))
    assert output(python(code, tmp_path, len(places)), timeout=30) == (done, "", 0), places
    assert before == {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")}


def test_a_root_is_found_beside_a_fifo(cache: Any) -> None:
    file = cache()
    file.parent.mkdir()
    os.mkfifo(file)
    code = f"import polygpu; print(polygpu.Ring(512, {Q}).roots)"
    assert output(python(code), timeout=30) == ("(49,)\n", "", 0)


def test_a_link_to_a_file_is_followed(cache: Any, tmp_path: Path) -> None:
    file = cache()
    file.parent.mkdir()
    file.symlink_to(tmp_path / "elsewhere" / "roots")
    assert works_again(cache)
    assert file.is_symlink() and rows(tmp_path / "elsewhere" / "roots")
    (tmp_path / "elsewhere" / "roots").write_bytes(noise(10_000))
    assert works_again(cache)
    assert file.is_symlink() and rows(tmp_path / "elsewhere" / "roots")


def test_a_process_killed_in_a_transaction_leaves_a_cache_that_works(cache: Any) -> None:
    """Its last pages are in the file already, and the journal tells what stood there."""
    roots._keep_root(41, 6, [2, 5])
    before = rows(cache())
    code = """if True:
        import os, signal
        from polygpu import roots
        def work(db):
            db.execute("PRAGMA cache_size=1")
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE roots SET root = 'ff'")
            for i in range(1000):
                db.execute("INSERT INTO roots VALUES (NULL, ?, 'b', '2 3')", (f"x{i}",))
            os.kill(os.getpid(), signal.SIGKILL)
        roots._in_cache(work)"""
    assert output(python(code)) == ("", "", -signal.SIGKILL)
    file = cache()
    assert sorted(p.name for p in file.parent.iterdir()) == [file.name, file.name + "-journal"]
    assert file.stat().st_size > 20_000
    with no_sympy():
        assert Ring(4, 41).roots == (3,)
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert rows(file) == before
    assert works_again(cache)


def test_processes_killed_at_any_time_leave_a_cache_that_works(cache: Any) -> None:
    code = """if True:
        import itertools
        from polygpu import roots
        print("ready", flush=True)
        for q in itertools.count(10**9):
            roots._keep_root(q, 5, [2, 3])"""
    for delay in (0, 0.01, 0.02, 0.05):
        process = python(code)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.kill()
        assert output(process) == ("", "", -signal.SIGKILL)
        assert works_again(cache)
        roots._keep_root(Q, 1, [])  # the next round computes it anew


@pytest.mark.parametrize("lock", ["SHARED", "RESERVED", "EXCLUSIVE"])
def test_a_cache_that_stays_locked_is_waited_for_once(
    cache: Any, lock: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    roots._keep_root(41, 6, [2, 5])
    primes = ntt_primes(4, 20, 20)
    Ring(4, primes[0]).roots  # noqa: B018  (imports what is needed)
    cache()
    caplog.set_level(logging.DEBUG, "polygpu")
    with closing(sqlite3.connect(roots.cache_file(), isolation_level=None)) as other:
        other.execute(
            "BEGIN" if lock == "SHARED" else "BEGIN EXCLUSIVE" if lock[0] == "E" else "BEGIN IMMEDIATE"
        )
        other.execute("SELECT * FROM roots").fetchone()
        began = time.monotonic()
        assert all(Ring(4, q).roots for q in primes[1:])
        assert 0.5 < time.monotonic() - began < 3
    assert capfd.readouterr() == ("", "")
    assert [record.name for record in caplog.records] == ["polygpu"]
    assert "primitive roots are not cached: database is locked" in caplog.text
    roots._keep_root(97, 5, [2, 3])
    assert len(rows(cache())) == 2  # left alone for a while
    roots._keep_root(97, 5, [2, 3])
    assert len(rows(cache())) == 3


def test_a_full_disk_is_no_error(cache: Any) -> None:
    """Every write fails, as beyond a limit on the size of files."""
    code = f"""if True:
        import resource, sys, polygpu
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
        print(polygpu.Ring(512, {Q}).roots)"""
    roots._keep_root(41, 6, [2, 5])
    for limit in (0, 9000):
        assert output(python(code, limit)) == ("(49,)\n", "", 0)
        assert rows(cache())[0] == ("29", "6", "2 5")
        roots._keep_root(Q, 1, [])
    assert works_again(cache)
    cache().unlink()
    for limit in (0, 9000):
        assert output(python(code, limit)) == ("(49,)\n", "", 0)
        assert works_again(cache)
        cache().unlink()


def test_a_python_without_sqlite_is_no_error(
    cache: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "polygpu")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sqlite3", None)
        assert resolved() == RIGHT
    assert "primitive roots are not cached" in caplog.text
    assert not cache().exists()
    assert works_again(cache)


def test_a_file_of_earlier_versions_is_ignored(cache: Any) -> None:
    old = cache().with_name("primitive_roots.json")
    old.parent.mkdir()
    old.write_text('{"12289": [7, [2, 3]]}')
    assert resolved() == RIGHT
    assert old.read_text() == '{"12289": [7, [2, 3]]}'


@pytest.mark.parametrize("variable", ["POLYGPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("place", ["a file", "below a file", "/proc/no/such", "/dev/null/x", "~nobody/x"])
def test_a_cache_that_cannot_be_written_is_no_error(
    variable: str, place: str, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for name in ("POLYGPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, {"a file": str(file), "below a file": str(file / "x")}.get(place, place))
    monkeypatch.chdir(tmp_path)
    cache()
    assert resolved() == RIGHT
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_home_is_no_error(cache: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert resolved() == RIGHT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everywhere")
@pytest.mark.parametrize("mode", [0o600, 0o400, 0])
def test_a_cache_without_permissions_is_no_error(cache: Any, mode: int) -> None:
    roots._keep_root(Q, 11, [2, 3])
    file = cache()
    file.chmod(mode)
    file.parent.chmod(0o500)
    with no_sympy() if mode else nullcontext():
        assert resolved() == RIGHT  # what can be read is used
    assert Ring(4, 41).roots == (3,)
    file.parent.chmod(0o700)
    file.chmod(0o600)
    assert rows(file) == [(KEY, "b", "2 3")]


def test_a_folder_that_went_away_is_no_error(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("POLYGPU_CACHE_DIR", "relative")
    (tmp_path / "gone").rmdir()
    assert resolved() == RIGHT


def test_a_cache_is_used_once_it_can_be(cache: Any) -> None:
    """Only waiting for a lock keeps this process from another attempt."""
    cache().mkdir(parents=True)
    roots._keep_root(41, 6, [2, 5])
    (place := Path(roots.cache_file())).rmdir()
    roots._keep_root(41, 6, [2, 5])
    assert rows(place) == [("29", "6", "2 5")]


def test_an_empty_variable_means_the_default(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYGPU_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    cache()
    assert resolved() == RIGHT
    assert [p.name for p in tmp_path.iterdir()] == ["xdg"]
    assert (tmp_path / "xdg" / "polygpu" / "primitive_roots.sqlite").is_file()
