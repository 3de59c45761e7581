"""Automorphisms and products with monomials."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from devices import on
from oracle import check, draw, every_ring, few_rings, few_transforms, fold, in_domain, ring, sign_of

from polygpu import Ring


def substituted(R: Ring, x: Any, g: int) -> list[int]:
    """The coefficients of a(X^g)."""
    out = [0] * R.n
    for j, c in enumerate(x):
        turns, at = divmod(g * j, R.n)
        out[at] += int(c) * sign_of(R) ** (turns % 2)
    return [c % R.modulus for c in out]


def units(R: Ring) -> list[int]:
    order = 2 * R.n if R.kind == "negacyclic" else R.n
    rng = random.Random(R.n)
    some = {1, 3, 5, 7, 11, order - 1, order + 1, -1, -3, 5**20, rng.randrange(order)}
    return [g for g in some if math.gcd(g, order) == 1]


@every_ring
def test_automorphisms(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    for g in units(R):
        expected = [substituted(R, row, g) for row in x]
        check(R(x).automorphism(g), expected)
        if R.has_eval:
            check(R(x).ntt().automorphism(g), expected, "eval")


@on("cpu", "reference", "cuda")
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 12, 15])
def test_every_automorphism_of_small_rings(n: int, kind: Any) -> None:
    R = Ring(n, 97, kind=kind)
    order = 2 * n if kind == "negacyclic" else n
    x = draw(R)
    for g in range(-order, 2 * order + 1):
        if math.gcd(g, order) == 1:
            check(R(x).automorphism(g), substituted(R, x, g))
            if R.has_eval:
                check(R(x).ntt().automorphism(g), substituted(R, x, g), "eval")


@pytest.mark.parametrize("domain", ["coef", "eval"])
@few_transforms
def test_automorphisms_compose(name: str, domain: str) -> None:
    R = ring(name)
    a = in_domain(R(draw(R)), domain)
    for g in units(R):
        for h in units(R):
            assert a.automorphism(g).automorphism(h) == a.automorphism(g * h)


@few_rings
def test_an_automorphism_respects_products(name: str) -> None:
    R = ring(name)
    a, b, g = R(draw(R, (), 1)), R(draw(R, (), 2)), 2 * R.n - 1
    assert (a * b).automorphism(g) == a.automorphism(g) * b.automorphism(g)


@every_ring
def test_mul_monomial(name: str) -> None:
    R = ring(name)
    n, x = R.n, draw(R, (2,))
    for k in (0, 1, -1, 3, n - 1, n, n + 1, -n, 2 * n - 1, 2 * n, -2 * n - 1, 5**30, -(5**30)):
        turns, at = divmod(k, n)
        expected = [fold(R, [*[0] * at, *(row * sign_of(R) ** (turns % 2))]) for row in x]
        check(R(x).mul_monomial(k), expected)
        if R.has_eval:
            check(R(x).ntt().mul_monomial(k), expected, "eval")
