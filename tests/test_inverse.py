"""Inverses of units, and the errors for all other elements."""

from __future__ import annotations

import math
from typing import Any

import flint
import numpy as np
import pytest
from devices import CARDS, on, over, same, there
from oracle import FEW, R17, RINGS, RNS, check, draw, everywhere, product, ring, times

import polygpu as pg
from polygpu import Poly, Ring


def is_unit(R: Ring, x: Any) -> bool:
    """Whether the determinant of multiplication by x is a unit mod Q."""
    n = R.n
    rows = [product(R, x, [0] * i + [1] + [0] * (n - 1 - i)) for i in range(n)]
    return math.gcd(int(flint.fmpz_mat(rows).det()), R.modulus) == 1


def is_power(q: int) -> bool:
    """Whether q is a power of one prime."""
    return len(flint.fmpz(q).factor()) == 1


INVERTIBLE_KINDS = [
    name
    for name in RINGS
    if name != "ML-KEM"  # tested below: its determinant takes a while
    and "composite" not in name
    and all(pg.is_prime(q) or is_power(q) for q in ring(name).moduli)
]


@over(INVERTIBLE_KINDS, FEW)
def test_inverse_in_every_ring(name: str) -> None:
    R = ring(name)
    one = [1] + [0] * (R.n - 1)
    found = 0
    for seed in range(40):
        x = draw(R, (), seed)
        if is_unit(R, x):
            found += 1
            y = R(x).inverse()
            assert y.domain == "coef"
            assert product(R, x, y.to_bigints()) == one
            if R.has_eval:
                check(R(x).ntt().inverse(), y.to_bigints(), "eval")
            assert R(x) ** -1 == y and R(x) ** -3 == y * y * y
        else:
            with pytest.raises(pg.NotInvertible):
                R(x).inverse()
        if found == 3:
            break
    assert found


@pytest.mark.parametrize(
    ("n", "moduli", "kind"),
    [
        (1, 8, "negacyclic"),
        (1, 7, "cyclic"),
        (2, 3, "negacyclic"),
        (2, 4, "negacyclic"),
        (2, 5, "negacyclic"),
        (2, 7, "cyclic"),
        (3, 2, "cyclic"),
        (3, 4, "negacyclic"),
        (4, 3, "cyclic"),
        (4, 3, "negacyclic"),
        (5, 2, "negacyclic"),
        (2, [3, 4], "negacyclic"),
        (2, 9, "cyclic"),
        (3, 9, "negacyclic"),
        (2, 27, "negacyclic"),
        (2, 25, "cyclic"),
        (1, 49, "negacyclic"),
        (2, [2, 5], "cyclic"),
    ],
)
def test_inverse_of_every_element_of_small_rings(n: int, moduli: Any, kind: Any) -> None:
    R = Ring(n, moduli, kind=kind)
    q, one = R.modulus, [1] + [0] * (n - 1)
    for number in range(q**n):
        x = [number // q**i % q for i in range(n)]
        if is_unit(R, x):
            assert product(R, x, R(x).inverse().to_bigints()) == one
        else:
            with pytest.raises(pg.NotInvertible):
                R(x).inverse()


@everywhere
def test_inverse_of_ml_kem_batches() -> None:
    R = ring("ML-KEM")
    x = draw(R, (2,), 3)
    y = R(x).inverse()
    check(y * R(x), [[1] + [0] * 255] * 2)
    check(R.from_residues(y.data), y.to_bigints())
    assert [product(R, *pair) for pair in zip(x, y.to_bigints(), strict=True)] == [[1] + [0] * 255] * 2


@over(["30 bits", "RNS of 3", "degree 12", "2^64", "2^128", "ML-KEM"], ["RNS of 3", "degree 12", "2^64"])
@pytest.mark.parametrize("batch", [(0,), (1,), (2, 2)])
def test_inverse_of_batches(name: str, batch: tuple[int, ...]) -> None:
    R = ring(name)
    x = np.zeros((*batch, R.n), dtype=object)
    x[..., 1] = np.arange(1, math.prod(batch) + 1).reshape(batch) * 2 - 1
    y = R(x).inverse()
    expected = np.zeros_like(x)
    expected[..., 0] = 1
    check(y, y.to_bigints(), batch=batch)
    assert times(R, x, y.to_bigints()).tolist() == expected.tolist()


@over(INVERTIBLE_KINDS, FEW)
def test_try_inverse_in_every_ring(name: str) -> None:
    """One batch holds units and other elements, in both domains."""
    R = ring(name)
    x = np.array([draw(R, (), seed) for seed in range(6)] + [[0] * R.n, [1] + [0] * (R.n - 1)], dtype=object)
    units = [is_unit(R, row) for row in x]
    a = R(x.reshape(2, 4, R.n))
    for value in (a, a.ntt()) if R.has_eval else (a,):
        b, ok = value.try_inverse()
        assert ok.dtype == np.bool_ and ok.shape == b.shape == (2, 4) and ok.ravel().tolist() == units
        assert b.domain == value.domain and b.device == value.device and b.ring is R
        for i, unit in enumerate(units):
            item = b.reshape(8)[i]
            assert item * R(x[i]) == 1 if unit else item == 0
    b, ok = a[0, 0].try_inverse()
    assert ok.shape == () and bool(ok) == units[0]
    b, ok = R.zeros((2, 0)).try_inverse()
    assert ok.shape == b.shape == (2, 0)


def test_try_inverse_modulo_a_composite_raises() -> None:
    with pytest.raises(pg.NotInvertible, match="neither prime nor a power"):
        Ring(4, 15).ones().try_inverse()


def test_inverse_modulo_a_wide_prime_computes_no_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values modulo a wide prime are inverted together, without one power each."""
    R = Ring(256, 3 * 2**189 + 1)  # a prime
    x = R.random((2, 2), seed=1).ntt()
    powers = []
    monkeypatch.setattr("polygpu._ops.inverse.multiply", lambda *_: powers.append(1))
    y = x.inverse()
    monkeypatch.undo()
    assert not powers and x * y == R.ones((2, 2)).ntt()


def message_of_inverse(poly: Poly) -> str:
    with pytest.raises(pg.NotInvertible) as caught:
        poly.inverse()
    return str(caught.value)


@everywhere
@pytest.mark.parametrize("limb", range(3))
@pytest.mark.parametrize("k", range(4))
def test_not_invertible_names_limb_and_index(limb: int, k: int) -> None:
    data = np.ones((2, 3, 4), np.uint32)
    data[1, limb, k] = 0
    message = message_of_inverse(RNS.from_residues(there(data), domain="eval").intt())
    assert f"index {k} of limb {limb}" in message and f"modulo {RNS.moduli[limb]} " in message
    assert "(1,)" in message


@pytest.mark.parametrize(
    ("moduli", "value", "limb"),
    [([8, 17], [17], 1), ([17, 8], [17], 0), ([8, 17], [2], 0), ([17, 13], [13], 1)],
)
def test_not_invertible_names_the_limb_of_an_rns_without_a_transform(
    moduli: list[int], value: list[int], limb: int
) -> None:
    R = Ring(4, moduli)
    assert R.leaf_size != 1
    message = message_of_inverse(R(value))
    assert f"limb {limb}" in message and f"limb {1 - limb}" not in message


@pytest.mark.parametrize("moduli", [13, 8, [9 * 0 + 13, 4]])
def test_not_invertible_names_the_batch_element(moduli: Any) -> None:
    R = Ring(6, moduli)
    x = np.zeros((2, 3, 6), dtype=object)
    x[..., 0] = 1
    x[1, 2] = 0
    assert "(1, 2)" in message_of_inverse(R(x))


@pytest.mark.parametrize("name", ["composite", "2^64 - 1", "wide composite"])
def test_not_invertible_for_a_composite_modulus_names_a_solution(name: str) -> None:
    message = message_of_inverse(ring(name).ones())
    assert "neither prime nor a power of a prime" in message
    assert "moduli are coprime factors of this modulus" in message


def test_not_invertible_is_a_value_error_and_zero_division_error() -> None:
    for error in (ValueError, ZeroDivisionError):
        with pytest.raises(error):
            R17(0).inverse()


@on(*CARDS)
@pytest.mark.parametrize(
    ("n", "moduli"), [(16, 97), (256, 3329), (9, 2**20), (9, 2**100), (5, 101), (5, [101, 2**16])]
)
def test_inverse_stays_on_the_device_of_its_value(device: str, n: int, moduli: Any) -> None:
    """This holds pointwise, for extended Euclid and Hensel lifting, on any default device."""
    with pg.device("cpu"):
        a = Ring(n, moduli)([[1, 2], [3, 0]])
        expected, x = a.inverse(), a.to(device)
        same(x.inverse(), expected)
        same(x**-2, a**-2)
        if a.ring.has_eval:
            same(x.ntt().inverse(), expected.ntt())


def inverse_by_flint(x: Any, n: int, q: int, sign: int) -> list[int] | None:
    """Return the inverse modulo X^n - sign and a prime of any size, or None if x has no inverse."""
    P = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(q))
    g, s, _ = P([int(v) for v in x]).xgcd(P([-sign, *[0] * (n - 1), 1]))
    if g.degree():
        return None
    values = [int(v) for v in s]
    return values + [0] * (n - len(values))


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize(
    ("n", "q"),
    [
        (701, 3),
        (677, 2),
        (64, 2),
        (129, 2),
        (761, 4591),
        (200, 113),
        (200, 127),  # the last of 16-bit words
        (200, 131),
        (200, 32749),  # the last of 32-bit words
        (200, 32771),
        (150, 2**31 - 1),  # the last whose sums of two products fit in a word
        (150, 2**31 + 11),
        (90, 2**61 - 1),
        (90, 2**64 - 59),
        (40, 2**89 - 1),
        (24, 2**521 - 1),
    ],
)
def test_inverse_modulo_primes_of_every_word(n: int, q: int, kind: Any) -> None:
    """Extended Euclid at word limits against python-flint. Sparse values give long steps."""
    R = Ring(n, q, kind=kind, product="ntt")
    if R.leaf_size == 1:
        pytest.skip("has a complete transform")
    found = 0
    for seed in range(8):
        x = draw(R, (), seed)
        if seed % 2:
            x[n // 3 :] = 0
            x[-1 - seed] = q - 1
        if seed == 4:
            x[:] = q - 1
        expected = inverse_by_flint(x, n, q, -1 if kind == "negacyclic" else 1)
        if expected is None:
            with pytest.raises(pg.NotInvertible, match="shares a factor"):
                R(x).inverse()
        else:
            found += 1
            check(R(x).inverse(), expected)
    assert found


@pytest.mark.parametrize(
    ("p", "k"), [(3, 7), (5, 13), (7, 1), (2, 11), (4591, 3), (2**61 - 1, 2), (2**89 - 1, 3)]
)
def test_inverse_modulo_powers_of_primes(p: int, k: int) -> None:
    R = Ring(11, p**k, kind="cyclic")
    for seed in range(3):
        x = draw(R, (), seed)
        if is_unit(R, x):
            assert product(R, x, R(x).inverse().to_bigints()) == [1] + [0] * 10
    y = R([1, p]).inverse()  # 1 + p X is 1 modulo p
    assert product(R, [1, p, *[0] * 9], y.to_bigints()) == [1] + [0] * 10
