"""The polynomial modulo which a ring is reduced, against long division of lists of ints."""

from __future__ import annotations

import random

import pytest

from polygpu import Ring
from polygpu._core.exact.roots import any_root, has_order
from polygpu._core.plans.permutation import natural_order, point_exponents
from polygpu._core.quotient import KINDS, Kind, Quotient
from polygpu._core.value import Value
from polygpu._ops.multiply import multiply
from polygpu._ops.transform import ntt

QUOTIENTS = [
    Quotient(kind, n) for kind in KINDS for n in (1, 2, 3, 5, 8, 12) if kind != "trinomial" or n % 2 == 0
]
each = pytest.mark.parametrize("quotient", QUOTIENTS, ids=str)


def remainder(coefficients: list[int], quotient: Quotient) -> list[int]:
    rest, n = list(coefficients), quotient.degree
    while len(rest) > n:
        lead = rest.pop()
        for exponent, sign in quotient.terms[1:]:
            rest[len(rest) - n + exponent] -= sign * lead
    return rest + [0] * (n - len(rest))


@each
def test_terms_of_each_kind(quotient: Quotient) -> None:
    n = quotient.degree
    terms, texts = {
        "negacyclic": ([(n, 1), (0, 1)], (f"X^{n} + 1", f"<i>X</i><sup>{n}</sup> + 1", f"X^{{{n}}} + 1")),
        "cyclic": ([(n, 1), (0, -1)], (f"X^{n} - 1", f"<i>X</i><sup>{n}</sup> − 1", f"X^{{{n}}} - 1")),
        "trinomial": (
            [(n, 1), (n // 2, -1), (0, 1)],
            (
                f"X^{n} - X^{n // 2} + 1",
                f"<i>X</i><sup>{n}</sup> − <i>X</i><sup>{n // 2}</sup> + 1",
                f"X^{{{n}}} - X^{{{n // 2}}} + 1",
            ),
        ),
    }[quotient.kind]
    assert list(quotient.terms) == terms and quotient.is_binomial == (len(terms) == 2)
    assert quotient.wrap == (-terms[1][1] if len(terms) == 2 else 0)
    assert (str(quotient), quotient.html, quotient.latex) == texts


@each
def test_powers_of_x(quotient: Quotient) -> None:
    n, one = quotient.degree, remainder([1], quotient)
    powers = [remainder([0] * k + [1], quotient) for k in range(5 * n)]
    assert next(k for k, power in enumerate(powers) if k and power == one) == quotient.order
    for k in range(-3 * n, 3 * n):
        row = [0] * n
        for exponent, sign in quotient.power_of_x(k):
            row[exponent] += sign
        assert row == powers[k % quotient.order]


@each
def test_folding_equals_the_remainder(quotient: Quotient) -> None:
    n, m = quotient.degree, quotient.multiple
    assert m >= 2 * n and remainder([-1, *[0] * (m - 1), 1], quotient) == [0] * n
    rng = random.Random(n)
    for length in range(n, m + 1):
        x = [rng.randrange(-9, 10) for _ in range(length)]
        folded = x[:n]
        for first, to, count, sign in quotient.folding(length):
            for i in range(count):
                folded[to + i] += sign * x[first + i]
        assert folded == remainder(x, quotient)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q", [3, 5, 17, 97, 193])
def test_evaluation_points_are_roots(kind: Kind, q: int) -> None:
    for n in (1, 2, 4, 8, 16, 32)[kind == "trinomial" :]:
        quotient = Quotient(kind, n)
        roots = [x for x in range(1, q) if sum(c * x**e for e, c in quotient.terms) % q == 0]
        assert quotient.has_points(q) == (len(roots) == n)
        if len(roots) == n:
            root = any_root(q, quotient.order)
            exponents = point_exponents(quotient).tolist()
            assert sorted(pow(root, e, q) for e in exponents) == roots
            in_turn = [exponents[k] for k in natural_order(quotient)]
            assert in_turn == sorted(exponents) and in_turn[0] >= 0 and in_turn[-1] < quotient.order
            for node in range(1, n):  # both nodes below it have the constants w and -w, or 1 - w
                w = pow(root, quotient.exponent_of_node(node), q)
                below = [w, (1 - w if quotient.wrap == 0 and node == 1 else -w) % q]
                level = node.bit_length()  # of the two
                span = n >> level
                for i, constant in enumerate(below):
                    first = (2 * node + i - (1 << level)) * span
                    assert {pow(root, e * span, q) for e in exponents[first : first + span]} == {constant}


@pytest.mark.parametrize("q", [2, 3, 7, 13, 31, 61, 97, 193, 577])
def test_has_order_of_roots(q: int) -> None:
    """Orders need not be powers of two."""
    for x in range(1, q):
        order = next(e for e in range(1, q) if pow(x, e, q) == 1)
        assert [e for e in range(1, q) if (q - 1) % e == 0 and has_order(x, e, q)] == [order]
    for order in (e for e in range(1, q) if (q - 1) % e == 0):
        assert has_order(any_root(q, order), order, q)


def test_operations_return_the_class_of_their_first_operand() -> None:
    ring = Ring(8, 97)
    a = ring([1, 2])
    x = Value(ring._plan, a.data, "coef")
    assert type(multiply(a, a)) is type(ntt(a)) is type(a)
    assert type(multiply(x, x)) is type(ntt(x)) is Value
    assert (multiply(a, a).data == multiply(x, x)._data).all() and ntt(a).ring is a.ring
