"""Automorphisms and products with monomials."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from devices import CARDS, Work, backend, on, over, there
from oracle import check, draw, every_ring, few_rings, few_transforms, fold, in_domain, ring, times_monomial

import polygpu as pg
from polygpu import Poly, Ring


def substituted(R: Ring, x: Any, g: int) -> list[int]:
    """The coefficients of a(X^g)."""
    out = [0] * (6 * R.n)  # X^6n = 1 in every ring
    for j, c in enumerate(x):
        out[g * j % (6 * R.n)] += int(c)
    return fold(R, out)


def units(R: Ring) -> list[int]:
    order = R.n * {"cyclic": 1, "negacyclic": 2, "trinomial": 3}[R.kind]
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
def test_automorphisms_respect_products(name: str) -> None:
    R = ring(name)
    a, b, g = R(draw(R, (), 1)), R(draw(R, (), 2)), 2 * R.n - 1
    assert (a * b).automorphism(g) == a.automorphism(g) * b.automorphism(g)


@every_ring
def test_mul_monomial(name: str) -> None:
    R = ring(name)
    n, x = R.n, draw(R, (2,))
    for k in (0, 1, -1, 3, n - 1, n, n + 1, -n, 2 * n - 1, 2 * n, -2 * n - 1, 5**30, -(5**30)):
        expected = [times_monomial(R, row, k) for row in x]
        check(R(x).mul_monomial(k), expected)
        if R.has_eval:
            check(R(x).ntt().mul_monomial(k), expected, "eval")


ORDERS_OF_ITEMS = {
    "30 bits": Ring(16, pg.ntt_primes(16, bits=30, count=2)),
    "60 bits": Ring(16, pg.ntt_primes(16, bits=60, count=3)),
    "one coefficient": Ring(1, 97),
    "cyclic": Ring(8, 97, kind="cyclic"),
    "no transform": Ring(12, 2**32),
    "2^64": Ring(16, 2**64),
    "wide": Ring(8, 2**70 + 25),
}


@over(ORDERS_OF_ITEMS, few=("30 bits", "cyclic", "2^64"))
def test_permutations_with_one_number_per_item(device: str, name: str) -> None:
    """Arrays of numbers broadcast with the batch. `out` may be the value itself."""
    R = ORDERS_OF_ITEMS[name]
    x, rng = draw(R, (2, 3)), random.Random(R.n)
    ks = [rng.randrange(-(2**40), 2**40) for _ in range(2)]
    gs = [g for g in range(8 * R.n, 0, -1) if math.gcd(g, 2 * R.n) == 1][:3]
    column = np.array(ks)[:, None]
    turned = [[times_monomial(R, row, k) for row in rows] for rows, k in zip(x, ks, strict=True)]
    by_3 = [[times_monomial(R, row, 3) for row in rows] for rows in x]
    conjugate = [[substituted(R, row, -1) for row in rows] for rows in x]
    by_g = [[substituted(R, row, g) for row, g in zip(rows, gs, strict=True)] for rows in x]
    for domain in ("coef", "eval") if R.has_eval else ("coef",):
        a = in_domain(R(x), domain)
        check(a[0, 0].mul_monomial(ks), [times_monomial(R, x[0, 0], k) for k in ks], domain)
        for method, numbers, expected in (
            (Poly.mul_monomial, column, turned),
            (Poly.mul_monomial, column.tolist(), turned),
            (Poly.mul_monomial, column.astype(object), turned),
            (Poly.mul_monomial, 3, by_3),
            (Poly.automorphism, gs, by_g),
            (Poly.automorphism, 2 * R.n - 1, conjugate),
        ):
            check(method(a, numbers), expected, domain)
            other, same = in_domain(R.zeros((2, 3)), domain), a.copy()
            assert method(a, numbers, out=other) is other
            assert method(same, numbers, out=same) is same
            check(other, expected, domain)
            check(same, expected, domain)
        assert a[:0].mul_monomial(3).shape == a[:0].mul_monomial([[1, 2, 3]]).shape == (0, 3)


@over(ORDERS_OF_ITEMS, few=("30 bits", "2^64"))
def test_permutations_by_numbers_of_every_shape(device: str, name: str) -> None:
    """Numbers broadcast over batch axes and may add axes to the result."""
    R = ORDERS_OF_ITEMS[name]
    order = R._plan.quotient.order
    gs = [g for g in range(-order, order) if math.gcd(g, order) == 1] or [1]
    rng = np.random.default_rng(R.n)
    shapes = [(), (1,), (3,), (1, 3), (2, 1), (2, 3), (1, 1), (2, 1, 1), (2, 2, 1), (1, 2, 3)]
    if device in ("cpu", "cuda"):
        shapes += [(5, 1, 1, 1), (2, 1, 2, 1), (0, 1, 1)]
    for batch in ((2, 3), (2, 1), (), (0, 3)):
        x = draw(R, batch)
        for shape in shapes:
            try:
                full = np.broadcast_shapes(batch, shape)
            except ValueError:
                continue
            items = np.broadcast_to(x, (*full, R.n)).reshape(-1, R.n)
            for numbers, method, expect in (
                (rng.choice(gs, shape), Poly.automorphism, substituted),
                (rng.integers(-(2**40), 2**40, shape), Poly.mul_monomial, times_monomial),
            ):
                each = np.broadcast_to(numbers, full).ravel().tolist()
                rows = [expect(R, row, number) for row, number in zip(items, each, strict=True)]
                expected = np.array(rows, object).reshape(*full, R.n)
                for domain in ("coef", "eval") if R.has_eval else ("coef",):
                    found = method(in_domain(R(x), domain), numbers)
                    assert found.domain == domain and found.shape == full
                    assert np.array_equal(found.to_bigints(), expected)


@over(ORDERS_OF_ITEMS, few=("30 bits", "2^64"))
def test_mul_monomial_by_exponents_on_the_device(device: str, name: str) -> None:
    R = ORDERS_OF_ITEMS[name]
    a, ks = R(draw(R, (2, 3))), np.array([[-3], [5]])
    for numbers in (ks, ks[0], np.array(7), ks.T.copy()[0, :1], np.array([1, -1, 2**40])):
        for domain in ("coef", "eval") if R.has_eval else ("coef",):
            x = in_domain(a, domain)
            assert x.mul_monomial(there(numbers)) == x.mul_monomial(numbers)


@on(*CARDS)
def test_permutations_by_numbers_of_every_layout(device: str) -> None:
    """Axes of length one have any stride; others are strided or permuted."""
    R, numbers = Ring(16, 97), np.random.default_rng(1).integers(0, 16, (4, 6)) * 2 + 1
    layouts = [lambda a: a, lambda a: a[:, :3], lambda a: a[:, ::2], lambda a: a[::2], lambda a: a.T]
    layouts += [lambda a: a[:, 2:3], lambda a: a[:, 0][:, None], lambda a: a[0][None, :, None]]
    layouts += [
        lambda a: a.ravel()[:, None],
        lambda a: a[:, :, None, None],
        lambda a: a.ravel()[None, ::2, None],
    ]
    for layout in layouts:
        own, given = layout(numbers), layout(there(numbers))
        for shape in (own.shape, (1,) * own.ndim):
            x = R(draw(R, shape))
            assert x.mul_monomial(given) == x.mul_monomial(own)
            assert x.automorphism(given) == x.automorphism(own)


@on(*CARDS)
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
def test_permutation_of_a_batch_is_one_launch(
    device: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New numbers build no tables, and known ones copy nothing from the host."""
    work = Work(monkeypatch)
    R = Ring(16, pg.ntt_primes(16, bits=30, count=2, kind=kind), kind=kind)
    a = R(draw(R, (2, 3)))
    gs = [[1, 3, 5], [[7], [3]], [[1, 3, 5], [7, 9, 11]], 3, [3]]
    for x in (a, a.ntt()):
        for g in gs:
            x.automorphism(g)  # type: ignore[arg-type]
            changed = (np.array(g) * 3).tolist()
            kernels, prepared, copies = work.of(lambda x=x, g=changed: x.automorphism(g))
            assert (kernels, prepared) == (["permute"], 0) and copies <= 1
            assert work.of(lambda x=x, g=changed: x.automorphism(g)) == (["permute"], 0, 0)
            x.mul_monomial(g)  # type: ignore[arg-type]
            kernels, prepared, copies = work.of(lambda x=x, k=changed: x.mul_monomial(k))
            assert kernels.count("mul_monomial") == 1 and prepared == 0 and copies <= 1
            assert work.of(lambda x=x, k=changed: x.mul_monomial(k)) == (kernels, 0, 0)
        numbers = there(np.array([1, 3, 5]))
        assert work.of(lambda x=x, k=numbers: x.mul_monomial(k))[1:] == (0, 0)
    kernels, *_ = work.of(lambda: a.mul_monomial([1, 2, 3]))
    assert kernels == ["mul_monomial"]


@on(*CARDS)
def test_capture_of_permutations_by_arrays(device: str) -> None:
    R = Ring(16, pg.ntt_primes(16, bits=60, count=2))
    a, ks = R(draw(R, (2, 3))), there(np.array([1, -3, 40]))

    def f(x: Poly) -> Poly:
        y = x.automorphism([5, -1, 3]).mul_monomial([[3], [-4]]) + x.mul_monomial(ks)
        return y.ntt().mul_monomial([1, 2, 3]).automorphism([[1], [3]]).mul_monomial(-1)

    assert pg.capture(f, a)() == f(a) and backend().name == a.device


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint64, object, range])
def test_permutations_by_numbers_of_every_dtype(dtype: Any) -> None:
    """The dtype may be too narrow for the order of X."""
    R = Ring(256, pg.ntt_primes(256, bits=30))
    a = R(draw(R))
    numbers: Any = range(1, 4) if dtype is range else np.array([1, 2, 3], dtype)
    expected = pg.stack([a.mul_monomial(k) for k in (1, 2, 3)])
    assert a.mul_monomial(numbers) == expected and a.ntt().mul_monomial(numbers) == expected
    assert a.mul_monomial(np.array(2**70 + 1, object)) == a.mul_monomial(2**70 + 1)
    gs: Any = range(1, 6, 2) if dtype is range else np.array([1, 3, 5], dtype)
    assert a.automorphism(gs) == pg.stack([a.automorphism(g) for g in (1, 3, 5)])


def test_failed_permutation_does_not_change_out() -> None:
    R = Ring(8, 17)
    a, out = R(draw(R, (2, 3))), R.zeros((2, 3))
    for call, error, words in (
        (lambda: a.mul_monomial([1, 2], out=out), pg.ParameterError, ["k has shape (2,)", "(2, 3)"]),
        (lambda: a.ntt().mul_monomial([1, 2], out=out), pg.ParameterError, ["(2, 3)"]),
        (lambda: a.mul_monomial([1.5, 2, 3], out=out), pg.errors.CoefficientError, ["1.5 of k"]),
        (lambda: a.automorphism([3, 4, 5], out=out), pg.ParameterError, ["g=4", "16"]),
        (lambda: a.automorphism([3, 5], out=out), pg.ParameterError, ["g has shape (2,)"]),
        (lambda: a.mul_monomial([1, 2, 3], out=out[0]), pg.errors.OutputError, ["(3,)", "(2, 3)"]),
        (lambda: a.automorphism(3, out=Ring(8, 97).zeros((2, 3))), pg.errors.OutputError, ["out", "97"]),
        (lambda: a.mul_monomial(1, out=out.data), pg.errors.OutputError, ["out", "Poly"]),
    ):
        with pytest.raises(error) as caught:
            call()
        assert all(word in str(caught.value) for word in words)
        assert out == 0


@on("cpu", *CARDS)
def test_mul_monomial_by_exponents_of_every_dtype_on_the_device(device: str) -> None:
    """The order of X may be a power of two or not."""
    for R in (Ring(8, 17), Ring(8, 17, kind="cyclic"), Ring(12, [97, 193]), Ring(6, 2**32, kind="cyclic")):
        x = R.random((4,), seed=1)
        for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
            info = np.iinfo(dtype)
            numbers = [info.min, info.max, info.max // 3, 5]
            found = x.mul_monomial(there(np.array(numbers, dtype)))
            for a, k, moved in zip(x, numbers, found, strict=True):
                with pg.device("reference"):
                    expected = R.from_residues(a.cpu().data).mul_monomial(k)
                np.testing.assert_array_equal(moved.cpu().data, expected.data)
