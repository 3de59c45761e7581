"""Transforms of every word, size and number of layers; their order; transforms in place."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from devices import agree, backend, card_of, same, shares_memory, sized
from oracle import (
    BABYBEAR,
    GOLDILOCKS,
    KINDS,
    chain,
    check,
    check_ring,
    check_transform,
    draw,
    drawn,
    every_transform,
    everywhere,
    halved,
    leaf_points,
    prime,
    ring,
    value_at,
)

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes
from polygpu._backends.cuda.words import groups_of


@every_transform
def test_transforms_in_place_and_into_out(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a, out = R(x), R.ones(2)
    expected = a.ntt().data.tolist()
    assert a.ntt(out=out) is out
    assert out.domain == "eval" and out.data.tolist() == expected
    check(a, x)
    assert out.intt(out=out) is out
    check(out, x)
    assert a.ntt(out=a) is a
    assert a.domain == "eval" and a.data.tolist() == expected
    again = R.ones(2)
    assert a.ntt(out=again) is again  # a is evaluated already: a copy
    assert again.domain == "eval" and again.data.tolist() == expected
    assert a.ntt() is a and R(x).intt().domain == "coef"


@every_transform
def test_ntt_order_matches_the_documentation(name: str) -> None:
    """Leaf k of a limb is a mod X^base - x_k, x_k = psi^(2 br(k) + 1) or omega^br(k)."""
    R = ring(name)
    x = draw(R, (2,))
    base = R.leaf_size
    data = R(x).ntt().to_residue_ints()
    for i in range(2):
        for limb, q in enumerate(R.moduli):
            row = data[i] if len(R.moduli) != R.rows else data[i, limb]
            expected = [
                value_at(x[i][r::base], point, q) for point in leaf_points(R, limb) for r in range(base)
            ]
            assert row.tolist() == expected


@every_transform
def test_eval_points_and_natural_order(name: str) -> None:
    R = ring(name)
    points = R.n // R.leaf_size
    order = R.natural_order()
    assert sorted(order.tolist()) == list(range(points))
    for limb in range(len(R.moduli)):
        assert type(R.eval_points(limb)) is np.ndarray  # whatever the device is
        assert R.eval_points(limb).tolist() == leaf_points(R, limb)
        assert R.eval_points(limb)[order].tolist() == leaf_points(R, limb, natural=True)


@every_transform
def test_natural_order_of_residues(name: str) -> None:
    """Entry k is a(psi^(2k+1)) or a(omega^k); leaves of several coefficients stay together."""
    R = ring(name)
    x = draw(R, (2,))
    base = R.leaf_size
    natural = R(x).natural_order()
    assert natural.shape == (2, R.rows, R.n)
    rows = R.from_residues(natural).to_residue_ints().reshape(2, len(R.moduli), R.n)
    for i in range(2):
        for limb, q in enumerate(R.moduli):
            assert rows[i, limb].tolist() == [
                value_at(x[i][r::base], point, q)
                for point in leaf_points(R, limb, natural=True)
                for r in range(base)
            ]


@everywhere
def test_natural_order_is_a_copy() -> None:
    a = Ring(1, 17)([5]).ntt()
    assert not shares_memory(a.natural_order(), a.data)


# ---- cards, bit for bit as the CPU ----

EDGES = [17, 29, 30, 31, 32, 45, 46, 49, 50, 51, 60, 61, 62, 63, 64]


@sized(
    "n, bits, kind",
    simulated=itertools.product([64], [29, 30, 31, 32, 45, 50, 60, 61, 62, 63, 64], KINDS),
    cuda=itertools.product([64, 1024], EDGES, KINDS),
)
def test_operations_at_the_limit_of_each_word(n: int, bits: int, kind: Any) -> None:
    """Every operation of a ring is checked."""
    check_ring(Ring(n, prime(n, bits, kind), kind=kind))


KNOWN = [
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
]
SMALL = [(1, 3, "negacyclic"), (2, 5, "negacyclic"), (8, 17, "negacyclic"), (64, 257, "negacyclic")]
SMALL += [(64, 7681, "negacyclic"), (64, 12289, "negacyclic"), (2, 3, "cyclic"), (4, 5, "cyclic")]
SMALL += [(16, 17, "cyclic"), (64, 257, "cyclic"), (64, 7681, "cyclic"), (64, 12289, "cyclic")]


@sized("n, q, kind", simulated=SMALL, cuda=KNOWN)
def test_operations_modulo_known_primes(n: int, q: int, kind: Any) -> None:
    check_ring(Ring(n, q, kind=kind))


@sized("root", simulated=["generator", 5], cuda=["generator", 5])
def test_operations_with_another_root(root: Any) -> None:
    q = prime(64, 30)
    given = root if root == "generator" else pow(Ring(64, q).roots[0], 5, q)  # type: ignore[index]
    check_ring(Ring(64, q, root=given))


@sized(
    "bits, log_n, kind",
    # Lengths of all rounds, lone rows and ragged tiles; the words take turns.
    simulated=[((30, 50, 60)[s % 3], s, kind) for s in (0, 1, 2, 3, 4, 5, 7, 9, 10, 12) for kind in KINDS],
    cuda=[
        *itertools.product([30, 50, 60], range(21), ["negacyclic"]),
        *itertools.product([31, 32, 64], [13, 14, 15, 17], ["negacyclic"]),
        *itertools.product([30, 50, 60], [1, 2, 3, 12, 14, 16, 20], ["cyclic"]),
    ],
)
def test_transforms_of_every_size(device: str, bits: int, log_n: int, kind: Any) -> None:
    n = 1 << log_n
    R = Ring(n, prime(n, bits, kind), kind=kind)
    a, b = (drawn(R, (5,) if log_n < 14 else (2,), seed) for seed in (1, 2))
    check_transform(a[:1])
    check_transform(a)
    agree(Poly.mul, a, b)
    if device == "cuda:0" and 12 <= log_n <= 18:  # on a card that these rows fill
        with card_of(1):
            check_transform(a)
            agree(Poly.mul, a, b)


@sized(
    "bits, log_n, doubles",
    # Several rows a block, and ragged blocks.
    simulated=[
        *itertools.product([(60, 50, 50, 60), (64, 50, 30), (30, 31, 32)], [1, 4, 6, 9], ["fast"]),
        *itertools.product([(30, 62, 31, 31), (50, 32, 30)], [1, 4, 6, 9], ["slow"]),
    ],
    cuda=itertools.product(
        [(60, 50, 50, 60), (30, 62, 31, 31, 50), (64, 30, 50), (30, 31, 32), (30,) * 70 + (31,)],
        [1, 6, 9, 12, 13, 16],
        ["fast", "slow"],
    ),
)
def test_transforms_with_limbs_of_several_words(
    device: str, bits: tuple[int, ...], log_n: int, doubles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each limb uses its own word: interleaved groups, parts of a ring, joined rings."""
    n, compute = 1 << log_n, backend()
    if doubles == "slow":  # small limbs take 32-bit integers in 64-bit memory
        monkeypatch.setattr(compute, "card", replace(compute.card, capability=(8, 9)))
    R = chain(n, bits, KINDS[device == "cuda:1" and log_n > 4])
    assert len(groups_of(R._plan.basis, compute.card)) > (
        doubles == "fast"
    )  # slow: 50 and 60 bits share a word
    batch = (5,) if n < 1 << 13 else (2,)
    for part in (R, R[::-1], R[1:], R[1:].join(R[:1])) if device == "cuda:0" else (R,):
        a, b = drawn(part, batch, 1), drawn(part, batch, 2)
        check_transform(a)
        check_transform(a[0])
        agree(Poly.mul, a, b)
        agree(Poly.mul, a, b[0])
        agree(Poly.mul, a.ntt(), b.ntt())
        if device == "cuda:0":
            with card_of(1):
                check_transform(a)


INCOMPLETE = [
    (256, 3329, "negacyclic"),
    (512, 3329, "negacyclic"),
    (1024, 3329, "negacyclic"),
    (4, 3, "negacyclic"),
    (128, [q for q in ntt_primes(64, bits=60, count=8) if (q - 1) % 256][:2], "negacyclic"),
    (256, [3329, halved(256, 50, 1)], "negacyclic"),
]


@sized(
    "n, moduli, kind",
    simulated=INCOMPLETE,
    cuda=[
        *INCOMPLETE,
        (512, 3329, "cyclic"),
        (16, 41, "cyclic"),
        (16, [17, 97], "negacyclic"),
        (16, 41, "negacyclic"),
        (16, 5, "negacyclic"),
        (8, 7, "negacyclic"),
        (4, 7, "negacyclic"),
        (2, 3, "negacyclic"),
        *(
            (64, halved(64, bits, layers), "negacyclic")
            for bits, layers in ((50, 1), (60, 2), (64, 3), (32, 2))
        ),
    ],
)
def test_incomplete_transforms(n: int, moduli: Any, kind: Any) -> None:
    """Leaves have 2, 4 or 8 coefficients; those of ML-KEM have 2."""
    R = Ring(n, moduli, kind=kind)
    assert R.leaf_size not in (1, None)
    check_ring(R, (2, 3))
    a, b = drawn(R, (3, 1), 1).ntt(), drawn(R, (2,), 2).ntt()
    agree(Poly.mul, a, b)
    agree(lambda x, y: pg.dot(x, y, axis=0), a, b)


RNS_OF_CARDS = [
    (256, ntt_primes(256, bits=30, count=3), "negacyclic"),
    (64, ntt_primes(64, bits=50, count=2) + ntt_primes(64, bits=30, count=2), "negacyclic"),
    (64, ntt_primes(64, bits=62) + ntt_primes(64, bits=20) + ntt_primes(64, bits=64), "negacyclic"),
]


@sized(
    "n, moduli, kind",
    simulated=RNS_OF_CARDS,
    cuda=[
        *RNS_OF_CARDS,
        (64, ntt_primes(64, bits=60, count=5, kind="cyclic"), "cyclic"),
        (64, ntt_primes(64, bits=29, count=2) + ntt_primes(64, bits=31, count=2), "negacyclic"),
        (1024, ntt_primes(1024, bits=30, count=32), "negacyclic"),
        (1024, ntt_primes(1024, bits=50, count=32), "negacyclic"),
        (2**16, ntt_primes(2**16, bits=30, count=5), "negacyclic"),
        (2**16, ntt_primes(2**16, bits=50, count=3), "negacyclic"),
        (4, ntt_primes(4, bits=20, count=300), "negacyclic"),
    ],
)
def test_operations_with_limbs_of_different_primes(n: int, moduli: Any, kind: Any) -> None:
    R = Ring(n, moduli, kind=kind)
    check_ring(R, (2, 3))
    if n * len(moduli) <= 4096:
        a = drawn(R, (2,))
        assert a.to().to_bigints().tolist() == a.to_bigints().tolist()


@sized("log_n, bits", simulated=[(13, 60)], cuda=[(17, 30), (17, 60)])
def test_transforms_of_long_rows_in_place(log_n: int, bits: int) -> None:
    """The transforms take several passes."""
    R = Ring(1 << log_n, prime(1 << log_n, bits))
    a, b = drawn(R, (3,), 1), drawn(R, (3,), 2)
    x, y = a.to(), b.to()
    same(x.ntt(out=x), a.ntt())
    same(x.intt(out=x), a)
    same(x.mul(y, out=y), a * b)
    same(x.mul(x, out=x), a * a)
