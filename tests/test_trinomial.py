"""The ring modulo X^n - X^(n/2) + 1, against Python ints and python-flint, at the limits of every word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devices import CARDS, on, sized
from oracle import check, check_ring, draw, fold, leaf_points, times, times_monomial
from test_inverse import is_unit

import polygpu as pg
from polygpu import Ring, lattice, ntt_primes
from polygpu.testing import WORD_LIMITS

SIZES = (2, 4, 6, 10, 12, 48, 768, 1 << 12, 3 << 12)
SMALL = (2, 4, 6, 10, 12, 48)
NTTRU = 7681


def has_tree(n: int) -> bool:
    return any(n == leaf << a for leaf in (1, 3) for a in range(1, n.bit_length()))


def moduli(n: int) -> Iterator[int | list[int]]:
    """At the limits of the words: primes with a transform and moduli without one; and several together."""
    if has_tree(n):
        least = n.bit_length() + 8  # bits; primes of this size exist
        primes = [
            ntt_primes(n, bits=b, kind="trinomial")[0] for b in (20, *WORD_LIMITS, 65, 100) if b >= least
        ]
        yield from primes
        yield primes[:: len(primes) // 3][:3]
        if n == 768:
            yield NTTRU
    yield from (2, 3, 6, 2**31 - 1, 2**32 - 5, 2**32, 2**61 - 1, 2**64 - 59, 2**64, 10**25)


def rings(n: int) -> list[Ring]:
    return [Ring(n, q, kind="trinomial") for q in moduli(n)]


def values_at_leaves(R: Ring, row: Any, limb: int, some: int) -> Iterator[tuple[int, int]]:
    """Places in an evaluated row, and what must be there: residues modulo X^leaf_size - c."""
    points, q = leaf_points(R, limb), R.moduli[limb]
    size = R.leaf_size
    for k in range(0, len(points), max(1, len(points) // some)):
        for r in range(size):
            value = 0
            for c in reversed(row[r::size]):
                value = (value * points[k] + int(c)) % q
            yield k * size + r, value


@sized("n", cpu=SIZES, cuda=SIZES, reference=SMALL, toy=(4, 6, 10), simulated=(2, 6, 10, 48, 768))
def test_every_operation_matches_python_ints(device: str, n: int) -> None:
    for R in rings(n)[:: 5 if device == "simulated" and n > 10 else 1]:
        x, y = draw(R, (3,), 1), draw(R, (3,), 2)
        x[0] = y[0] = R.modulus - 1
        a, b, product = R(x), R(y), times(R, x, y)
        check(a * b, product)
        gs = [g for g in (5, 7, -1, 3 * n - 5) if math.gcd(g, 3 * n) == 1][:: 1 if n < 1000 else 3]
        moved = {g: [substituted(R, row, g) for row in x] for g in gs}
        turned = {k: [times_monomial(R, row, k) for row in x] for k in (1, n // 2, n, 3 * n // 2, -1)}
        domains = (a, a.ntt()) if R.has_eval else (a,)
        for value in domains:
            for g in gs:
                check(value.automorphism(g).intt(), moved[g])
            for k, expected in turned.items():
                check(value.mul_monomial(k).intt(), expected)
        if R.has_eval:
            evaluated = a.ntt()
            check(evaluated.intt(), x)
            check((evaluated * b.ntt()).intt(), product)
            if not R._plan.basis.wide:
                rows = evaluated.cpu().data
                for limb in range(len(R.moduli)):
                    for at, value in values_at_leaves(R, x[1], limb, 24):
                        assert rows[1, limb, at] == value


def substituted(R: Ring, row: Any, g: int) -> list[int]:
    moved = [0] * (3 * R.n)
    for j, c in enumerate(row):
        moved[g * j % len(moved)] += int(c)
    return fold(R, moved)


def test_order_of_evaluation_points() -> None:
    """These numbers fix the order of evaluated entries and natural order."""
    R = Ring(8, 73, kind="trinomial")
    (psi,) = R.roots or ()
    assert psi == 7 and [k for k in range(1, 25) if pow(psi, k, 73) == 1] == [24]
    exponents = [1, 13, 7, 19, 23, 11, 5, 17]
    assert R.eval_points().tolist() == [pow(psi, e, 73) for e in exponents] == [7, 66, 30, 43, 21, 52, 17, 56]
    assert R.natural_order().tolist() == [0, 6, 2, 5, 1, 7, 3, 4]
    a = R([1, 2, 3, 4, 5, 6, 7, 8])
    assert a.ntt().data.tolist() == [
        [sum((j + 1) * pow(psi, e * j, 73) for j in range(8)) % 73 for e in exponents]
    ]
    assert Ring(2, 7, kind="trinomial").eval_points().tolist() == [3, 5]


def test_nttru_preset() -> None:
    """Lyubashevsky & Seiler 2019: X^768 - X^384 + 1 modulo 7681, leaves of 3 coefficients."""
    R = Ring.preset("nttru")
    assert (R.n, R.moduli, R.kind, R.leaf_size) == (768, (NTTRU,), "trinomial", 3)
    assert Ring(768, NTTRU, kind="trinomial") == R and len(R.eval_points()) == 256
    constants = set(R.eval_points().tolist())
    assert len(constants) == 256 and not any((c**256 - c**128 + 1) % NTTRU for c in constants)
    f = R.random(seed=1)
    assert f.inverse() * f == R.ones() and (f.ntt().inverse() * f.ntt()).intt() == R.ones()
    with pytest.raises(pg.ParameterError, match=r"not the degree of the preset .* n=768"):
        Ring.preset("nttru", 512)


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize(("n", "q"), [(4, 13), (6, 13), (10, 2**31 - 1), (12, 3), (8, 2), (6, 2**20)])
def test_inverses_of_units(n: int, q: int) -> None:
    R = Ring(n, q, kind="trinomial")
    a = R.random((6,), seed=q)
    inverse, found = a.try_inverse()
    units = [is_unit(R, row) for row in a.to_bigints()]
    assert found.tolist() == units and any(units)
    for item, inverted, unit in zip(a, inverse, units, strict=True):
        assert item * inverted == (1 if unit else 0)


@on("cpu", *CARDS)
@pytest.mark.parametrize("n", [16, 48])
def test_every_supported_operation(device: str, n: int, tmp_path: Path) -> None:
    R = Ring(n, ntt_primes(n, bits=40, kind="trinomial", count=2), kind="trinomial")
    a, b = R.random((2,), seed=1), R.random((2,), seed=2)
    with pg.verify():
        assert a * b == b * a and (a.ntt() * b.ntt()).intt() == a * b
    pg.save(tmp_path / "x.safetensors", {"a": a, "evaluated": a.ntt()})
    kept = pg.load(tmp_path / "x.safetensors")
    assert kept["a"] == a and kept["evaluated"] == a.ntt() and kept["a"].ring == R
    assert R[:1].join(R[1:]) == R and a.restrict(R[:1]).ring == R[:1]
    assert pg.dot(a, b) == (a * b).sum() and pg.einsum("i,j->ij", a, b)[1, 0] == a[1] * b[0]
    assert (a**3).intt() == a * a * a
    assert R.ternary(seed=3).norm(float("inf")) == 1


@sized(
    "n", cpu=(16, 1024), cuda=(2, 4, 16, 1024, 1 << 13), reference=(16,), toy=(16,), simulated=(2, 4, 8, 1024)
)
@pytest.mark.parametrize("bits", [30, 50, 60, 64])
def test_rotations_of_ciphertexts(device: str, n: int, bits: int) -> None:
    T = Ring(n, ntt_primes(n, bits=bits, kind="trinomial", count=3), kind="trinomial")
    Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    keys = lattice.rotation_keys(s, [5, -1], ring=Q, special=P, limbs_per_digit=1, seed=2)
    message, mask = Q.random(seed=3), Q.random(seed=4)
    c = pg.stack([message - mask * s.restrict(Q), mask])
    for g, d in zip((5, -1), lattice.rotate_many(c.ntt(), [keys[5], keys[-1 % (3 * n)]]), strict=True):
        error = (d[0] + d[1] * s.restrict(Q)).intt() - message.automorphism(g)
        assert 0 < error.norm(float("inf")) < 100 * n**0.5


@on("cpu", "reference", "toy", *CARDS)
@pytest.mark.parametrize("q", [*ntt_primes(256, bits=30, kind="trinomial"), 2**32])
def test_external_products(q: int) -> None:
    """The phase of the product is the ciphertext's phase times the message of the matrix."""
    n = 256
    R = Ring(n, q, kind="trinomial")
    s, bits, levels = R.ternary(seed=1), 7, 4
    matrix = lattice.ggsw(3, pg.stack([s]), bits=bits, levels=levels, sigma=3.2, seed=2)
    message, mask = R.random(seed=3), R.random(seed=4)
    c = pg.stack([message - mask * s, mask])
    d = lattice.external_product(matrix, c, bits=bits)
    error = d[0] + d[1] * s - 3 * message
    assert 0 < error.norm(float("inf")) < q / 2**10


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda R: R.random(seed=1).to_slots(), "has no slots"),
        (lambda R: lattice.extract(R.random((2,), seed=1), 0), "X\\^n is 1 or -1"),
        (
            lambda R: lattice.blind_rotate(
                R.random((2,), seed=1), R.random((1, 2, 1, 2), seed=2).ntt(), [0, 1], bits=4
            ),
            "X\\^n is 1 or -1",
        ),
        (lambda R: Ring(5, 7, kind="trinomial"), "n=5 must be even"),
        (lambda R: Ring(4, 7, kind="quadrinomial"), "'trinomial'"),  # type: ignore[arg-type]
        (lambda R: R.random(seed=1).automorphism(3), "common factor with 12"),
        (lambda R: Ring(10, 31, kind="trinomial").random(seed=1).ntt(), "neither 2\\*\\*a nor 3"),
        (lambda R: ntt_primes(10, bits=30, kind="trinomial"), "neither 2\\*\\*a nor 3"),
        (
            lambda R: Ring(4, 31, kind="trinomial").random(seed=1).ntt(),
            "q=31 is 7 modulo 12, but a complete transform needs moduli that are 1 modulo 12",
        ),
        (lambda R: Ring(4, 13, kind="trinomial", root=2**3).random(), "order 12"),
    ],
)
def test_unsupported_operations_raise(call: Any, why: str) -> None:
    with pytest.raises(pg.ParameterError, match=why):
        call(Ring(4, 13, kind="trinomial"))


@pytest.mark.gpu
@on("cuda")
@pytest.mark.parametrize("n", [2, 48, 768, 1 << 12, 3 << 12, 1 << 16, 1 << 20])
def test_operations_on_a_card_match_the_core(n: int) -> None:
    for bits in WORD_LIMITS:
        if bits >= n.bit_length() + 8:
            check_ring(Ring(n, ntt_primes(n, bits=bits, kind="trinomial"), kind="trinomial"))
    mixed = [q for bits in (30, 50, 61) for q in ntt_primes(n, bits=bits, kind="trinomial")]
    check_ring(Ring(n, mixed, kind="trinomial"))
