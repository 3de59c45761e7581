"""Cosets and low-degree extensions, against their definitions in Python ints and python-flint."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import flint
import numpy as np
import pytest
from devices import host
from oracle import (
    BABYBEAR,
    GOLDILOCKS,
    bit_reversed,
    check,
    draw,
    every_ring,
    few_rings,
    over,
    ring,
    value_at,
)

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes, zk

# Complete transforms of every word, both kinds, one and several limbs.
FIELDS = {
    "20 bits": Ring(8, ntt_primes(32, bits=20), kind="cyclic"),
    "BabyBear": Ring.preset("babybear", 16),
    "50 bits": Ring(8, ntt_primes(32, bits=50), kind="negacyclic"),
    "Goldilocks": Ring.preset("goldilocks", 8),
    "limbs": Ring(8, [*ntt_primes(64, bits=30, count=2), *ntt_primes(64, bits=62)], kind="cyclic"),
    "100 bits": Ring(8, ntt_primes(32, bits=100), kind="cyclic"),
    "degree 1": Ring(1, 97, kind="cyclic"),
}
every_field = over(FIELDS)


def coset_points(R: Ring, limb: int, shift: int) -> list[int]:
    """shift times the points of the contract, from the ring's root."""
    assert R.roots is not None
    q, root = R.moduli[limb], R.roots[limb]
    exponents = [bit_reversed(k, R.n) for k in range(R.n)]
    if R.kind == "negacyclic":
        exponents = [2 * e + 1 for e in exponents]
    return [shift * pow(root, e, q) % q for e in exponents]


def check_values(found: Poly, x: Any, shift: int) -> None:
    """Evaluated residues are values of the polynomials x at the coset, for each limb."""
    R = found.ring
    assert found.domain == "eval" and found.data.shape == (*x.shape[:-1], R.rows, R.n)
    residues = found.to_residue_ints()
    for limb, q in enumerate(R.moduli):
        at = coset_points(R, limb, shift)
        for i in np.ndindex(x.shape[:-1]):
            row = residues[i] if R._plan.basis.wide else residues[i][limb]
            assert row.tolist() == [value_at(x[i], p, q) for p in at]


@every_field
@pytest.mark.parametrize("shift", [1, 3, -5, 2**200 + 1])
def test_coset_ntt_round_trip(name: str, shift: int) -> None:
    R = FIELDS[name]
    x = draw(R, (2,))
    a = R(x)
    values = zk.coset_ntt(a, shift)
    assert values.ring == R
    check_values(values, x, shift)
    check(zk.coset_intt(values, shift), x)
    if R.n > 1:
        assert zk.coset_ntt(a.ntt(), shift) == values  # of the same polynomial
    check(a, x)


@every_field
@pytest.mark.parametrize(("factor", "shift"), [(1, 1), (2, 1), (4, 7), (2, -1)])
def test_low_degree_extension_round_trip(name: str, factor: int, shift: int) -> None:
    R = FIELDS[name]
    x = draw(R, (2,))
    extended = zk.low_degree_extension(R(x), factor, shift=shift)
    larger = extended.ring
    assert (larger.n, larger.moduli, larger.kind) == (factor * R.n, R.moduli, R.kind)
    check_values(extended, x, shift)
    found = zk.interpolate(extended, R.n, shift=shift)
    assert found.ring == R
    check(found, x)


def test_extension_with_generator_roots_contains_the_values() -> None:
    """The points of the ring are the first points of the larger ring, in order."""
    for q in (BABYBEAR, GOLDILOCKS):
        R = Ring(64, q, kind="cyclic", root="generator")
        a = R.random(3, seed=1)
        extended = zk.low_degree_extension(a, 8)
        assert extended.data[..., :64].tolist() == a.ntt().data.tolist()
        codeword = flint.nmod_poly([int(v) for v in a[0].data[0]], q)
        omega, order = extended.ring.roots[0], 512
        expected = [int(codeword(pow(omega, bit_reversed(k, order), q))) for k in range(order)]
        assert extended[0].data[0].tolist() == expected


@pytest.mark.usefixtures("device")
def test_product_of_extensions_is_the_extension_of_the_product() -> None:
    """Both polynomials have degree below n/2, so that nothing wraps."""
    R = Ring.preset("babybear", 16)
    x, y = (draw(R, (), seed) for seed in (1, 2))
    x[8:], y[8:] = 0, 0
    a, b = R(x), R(y)
    wide = zk.low_degree_extension(a, 2, shift=31) * zk.low_degree_extension(b, 2, shift=31)
    product = flint.nmod_poly([int(v) for v in x], BABYBEAR) * flint.nmod_poly([int(v) for v in y], BABYBEAR)
    expected = [int(product[i]) for i in range(16)]
    check(zk.interpolate(wide, 16, shift=31), expected)


@pytest.mark.usefixtures("device")
def test_values_of_too_high_degree_raise() -> None:
    R = FIELDS["BabyBear"]
    values = zk.low_degree_extension(R(draw(R, (2, 3))), 2, shift=3).copy()
    values.data[1, 2, 0, 5] ^= 1
    with pytest.raises(
        pg.ParameterError, match=r"values at batch element \(1, 2\) must have degree below n=16"
    ):
        zk.interpolate(values, 16, shift=3)
    with pytest.raises(pg.ParameterError, match=r"polynomial of values must .* that are not 0"):
        zk.interpolate(values[1, 2], 16, shift=3)
    assert zk.interpolate(values, 32, shift=3).ring.n == 32
    check(zk.interpolate(values[0], 16, shift=3), draw(R, (2, 3))[0])


@every_ring
def test_powers_modulo_each_limb(name: str) -> None:
    R = ring(name)
    for x in (0, 1, -1, 3, R.modulus + 2, -(2**70)):
        for count in (0, 1, 2, 5, 8):
            found = host(zk.powers(R, x, count=count))
            assert found.shape == (R.rows, count) and found.dtype == R.dtype
            if R._plan.basis.wide:
                got = [[sum(int(w) << 64 * i for i, w in enumerate(column)) for column in found.T]]
            else:
                got = found.tolist()
            assert got == [[pow(x, k, q) for k in range(count)] for q in R.moduli]


@pytest.mark.usefixtures("device")
def test_powers_of_many_elements() -> None:
    R = Ring(8, [17, 97])
    x = np.array([[2, -3, 5], [0, 2**40, 1]])
    found = host(zk.powers(R, x, count=6))
    assert found.shape == (2, 3, 2, 6)
    for i in np.ndindex(2, 3):
        assert found[i].tolist() == [[pow(int(x[i]), k, q) for k in range(6)] for q in R.moduli]
    assert R.from_residues(zk.powers(R, 2, count=8)).to_bigints().tolist() == [
        2**k % (17 * 97) for k in range(8)
    ]


@every_ring
def test_hadamard_products(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (), 2)
    expected = x * y % R.modulus
    check(zk.hadamard(R(x), R(y)), expected)
    check(zk.hadamard(R(y), R(x)), expected)
    a = R(x)
    zk.hadamard(a, R(y), out=a)
    check(a, expected)
    if R.has_eval:
        check(zk.hadamard(R(x).ntt(), R(y)), expected)


@few_rings
def test_pad_of_coefficients(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a = R(x)
    for n in (R.n, R.n + (2 if R.kind == "trinomial" else 1), 2 * R.n):
        padded = zk.pad(a, n)
        assert (padded.ring.n, padded.ring.moduli, padded.ring.kind) == (n, R.moduli, R.kind)
        check(padded, [[*row, *[0] * (n - R.n)] for row in x])
    assert zk.pad(a, R.n) is a
    other = Ring(R.n, R.moduli, kind="cyclic" if R.kind == "negacyclic" else "negacyclic")
    moved = zk.pad(a, other)
    assert moved.ring == other
    moved.add(1, out=moved)
    check(a, x)


def test_extension_with_given_roots() -> None:
    R, larger = Ring(4, 97, kind="cyclic", root=22), Ring(8, 97, kind="cyclic", root=33)
    assert pow(22, 4, 97) == 1 and pow(33, 8, 97) == 1
    a = R([1, 2, 3])
    with pytest.raises(pg.errors.BadRoot, match=r"zk\.pad\(a, larger_ring\)"):
        zk.low_degree_extension(a, 2)
    values = zk.coset_ntt(zk.pad(a, larger), 5)
    check_values(values, np.array([1, 2, 3, 0], dtype=object), 5)
    with pytest.raises(pg.errors.BadRoot, match=r"n=4\. Use zk\.coset_intt\(values, shift\)"):
        zk.interpolate(values, 4, shift=5)


R17 = Ring(4, 17, kind="cyclic")
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shift 0": (
        lambda: zk.coset_ntt(R17([1]), 34),
        pg.ParameterError,
        "shift=34 is 0 modulo 17. Use a shift",
    ),
    "shift float": (lambda: zk.coset_ntt(R17([1]), 1.0), pg.ParameterError, "shift=1.0"),  # type: ignore[arg-type]
    "no transform": (lambda: zk.coset_ntt(Ring(4, 15)([1]), 2), pg.NotNTTFriendly, "15"),
    "incomplete": (
        lambda: zk.coset_ntt(Ring(256, 3329)([1]), 2),
        pg.NotNTTFriendly,
        "leaves of 2 coefficients.*ntt_primes\\(256",
    ),
    "too long": (lambda: zk.low_degree_extension(R17([1]), 32), pg.NotNTTFriendly, "17"),
    "factor 3": (
        lambda: zk.low_degree_extension(R17([1]), 3),
        pg.ParameterError,
        "factor=3 must be a power",
    ),
    "factor 0": (lambda: zk.low_degree_extension(R17([1]), 0), pg.ParameterError, "factor=0"),
    "no Poly": (lambda: zk.coset_ntt([1], 2), pg.RingMismatch, "a must be a Poly, not list"),  # type: ignore[arg-type]
    "smaller": (lambda: zk.pad(R17([1]), 2), pg.ParameterError, "n=2 must be at least 4.*interpolate"),
    "other moduli": (
        lambda: zk.pad(R17([1]), Ring(8, 97)),
        pg.RingMismatch,
        "needs a ring with the moduli of .*convert",
    ),
    "n above": (lambda: zk.interpolate(R17([1]), 8), pg.ParameterError, "n=8 must be from 1 to 4"),
    "count": (lambda: zk.powers(R17, 2, count=-1), pg.ParameterError, "count=-1 must be at least 0"),
    "no ring": (lambda: zk.powers(17, 2, count=1), pg.ParameterError, "ring must be a Ring, not int"),  # type: ignore[arg-type]
    "base": (lambda: zk.powers(R17, 2.5, count=1), pg.ParameterError, "x=2.5"),  # type: ignore[arg-type]
    "factors": (lambda: zk.hadamard(R17([1]), 2), pg.RingMismatch, "b must be a Poly, not int"),  # type: ignore[arg-type]
    "rings": (lambda: zk.hadamard(R17([1]), Ring(4, 17)([1])), pg.RingMismatch, "different rings"),
}


@pytest.mark.parametrize(("call", "cls", "words"), BAD.values(), ids=list(BAD))
def test_invalid_arguments_raise(call: Callable[[], Any], cls: type[Exception], words: str) -> None:
    with pytest.raises(cls, match=words) as caught:
        call()
    assert type(caught.value) in (cls, pg.errors.NotAnInteger)


def test_low_degree_extension_of_a_large_ring() -> None:
    """Some of the 2^14 points are compared."""
    R = Ring.preset("goldilocks", 1 << 12)
    a = R.random(seed=2)
    values = zk.low_degree_extension(a, 4, shift=7)
    omega, row = values.ring.roots[0], a.to_bigints()
    codeword = flint.nmod_poly([int(v) for v in row], GOLDILOCKS)
    for k in random.Random(1).sample(range(1 << 14), 50):
        point = 7 * pow(omega, bit_reversed(k, 1 << 14), GOLDILOCKS) % GOLDILOCKS
        assert int(values.data[0, k]) == int(codeword(point))
