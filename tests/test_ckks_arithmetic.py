"""Arithmetic of CKKS ciphertexts beside NumPy: scales, limbs, batches, and polynomials of every degree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import polygpu as pg
from polygpu import lattice
from polygpu.examples import ckks_arithmetic
from polygpu.examples.ckks_arithmetic import Arithmetic, Array, Ciphertext

EVALUATED = {"power": np.polynomial.polynomial.polyval, "chebyshev": np.polynomial.chebyshev.chebval}


@dataclass(frozen=True)
class Scheme:
    """Encryption under a secret key, small and so not secure; `step` primes lie between two of the ring."""

    n: int
    bits: int
    step: int
    tolerance: float
    levels: int = 8

    @property
    def scale(self) -> float:
        return 2.0**self.bits

    def encrypt(
        self, z: Any, *, limbs: int | None = None, seed: int = 1, scale: float | None = None
    ) -> Ciphertext:
        arithmetic, secret = made(self)
        ring, scale = arithmetic.ring[:limbs], scale or self.scale
        m = ckks_arithmetic.encode(z, ring, scale)
        mask = ring.random(m.shape, seed=seed, domain="eval")
        e = ring.gaussian(3.2, batch=m.shape, seed=seed + 1).ntt()
        return Ciphertext(pg.stack([m + e - mask * secret.restrict(ring), mask], axis=-1), scale)

    def check(self, c: Ciphertext, expected: Any, size: float = 1.0) -> None:
        found = ckks_arithmetic.decrypt(made(self)[1], c)
        assert found.shape == np.shape(expected)
        assert np.max(abs(found - expected), initial=0) < self.tolerance * size

    def vectors(self, seed: int, batch: tuple[int, ...] = ()) -> Array:
        return np.random.default_rng(seed).uniform(-1, 1, (*batch, self.n // 2))


# Of NEAR, primes agree with the scale to 2^-34. Those of UNEVEN are up to 2^-10 away: a constant at a wrong
# scale shows. Errors are near 2^-38 and 2^-24.
NEAR = Scheme(n=64, bits=45, step=1, tolerance=2.0**-32)
UNEVEN = Scheme(n=128, bits=32, step=1000, tolerance=2.0**-18)
SCHEMES = pytest.mark.parametrize("scheme", [NEAR, UNEVEN], ids=["near", "uneven"])
BASES = pytest.mark.parametrize("basis", EVALUATED)


@cache
def made(scheme: Scheme) -> tuple[Arithmetic, pg.Poly]:
    """The arithmetic of a scheme and its secret."""
    long = pg.ntt_primes(scheme.n, bits=58, count=3)
    count = scheme.levels * scheme.step
    primes = pg.ntt_primes(scheme.n, bits=scheme.bits, count=count, near=True)[:: scheme.step]
    Q, P = pg.Ring(scheme.n, [long[-1], *primes]), pg.Ring(scheme.n, long[:-1])
    secret = Q.join(P).ternary(seed=1).ntt()
    relin = lattice.switch_key(secret, secret * secret, ring=Q, special=P, limbs_per_digit=2, seed=2)
    return Arithmetic(Q, relin), secret


@pytest.fixture
def arithmetic(scheme: Scheme) -> Arithmetic:
    return made(scheme)[0]


def after(c: Ciphertext, scheme: Scheme) -> int:
    """The prime by which a product modulo the limbs of c is divided."""
    return made(scheme)[0].ring.moduli[c.limbs - 1]


def test_uneven_primes_are_far_from_the_scale() -> None:
    ratios = [q / UNEVEN.scale - 1 for q in made(UNEVEN)[0].ring.moduli[1:]]
    assert 2.0**-11 < max(abs(r) for r in ratios) < 2.0**-6


# ---- sums and products ----


@SCHEMES
@pytest.mark.parametrize("batch", [(), (0,), (3,), (2, 2)])
def test_product(scheme: Scheme, arithmetic: Arithmetic, batch: tuple[int, ...]) -> None:
    x, y = scheme.vectors(1, batch), scheme.vectors(2)
    for a, b in ((x, y), (y, x), (x, x)):
        ca, cb = scheme.encrypt(a), scheme.encrypt(b, seed=3, scale=1.25 * scheme.scale)
        product = arithmetic.product(ca, cb)
        assert product.limbs == ca.limbs - 1
        assert product.scale == ca.scale * cb.scale / after(ca, scheme)
        scheme.check(product, a * b)


@SCHEMES
def test_products_ignore_surplus_limbs(scheme: Scheme, arithmetic: Arithmetic) -> None:
    x, y = scheme.vectors(1), scheme.vectors(2)
    cx, low = scheme.encrypt(x), scheme.encrypt(y, limbs=4, seed=3)
    for a, b in ((cx, low), (low, cx)):
        product = arithmetic.product(a, b)
        assert product.limbs == 3 and product.scale == a.scale * b.scale / after(low, scheme)
        scheme.check(product, x * y)
        scheme.check(arithmetic.doubled_product(a, b, 0.5), 2 * x * y - 0.5)
        scheme.check(arithmetic.doubled_product(a, b, cx), 2 * x * y - x)
        short = scheme.encrypt(y, limbs=3, seed=5)
        doubled = arithmetic.doubled_product(a, b, short)  # minus has the fewest
        assert doubled.limbs == 2
        scheme.check(doubled, 2 * x * y - y)


@SCHEMES
@pytest.mark.parametrize("batch", [(), (0,), (3,)])
def test_doubled_product(scheme: Scheme, arithmetic: Arithmetic, batch: tuple[int, ...]) -> None:
    x, y, z = (scheme.vectors(seed, batch) for seed in (1, 2, 3))
    cx, cy = scheme.encrypt(x), scheme.encrypt(y, seed=3)
    other = scheme.encrypt(z, seed=5, scale=0.75 * scheme.scale)
    large = cx._replace(scale=2 * cx.scale), cy._replace(scale=2 * cy.scale)  # slots are halved
    for minus, value in ((other, z), (1.0, 1.0), (-2.5, -2.5), (0, 0)):
        doubled = arithmetic.doubled_product(cx, cy, minus)
        assert doubled.limbs == cx.limbs - 1
        assert doubled.scale == cx.scale * cy.scale / after(cx, scheme)
        scheme.check(doubled, 2 * x * y - value)
        doubled = arithmetic.doubled_product(*large, minus)
        assert doubled.scale == 2 * cx.scale * cy.scale / after(cx, scheme)  # halved for the factor 2
        scheme.check(doubled, x * y / 2 - value)


@SCHEMES
def test_plus_of_a_constant(scheme: Scheme, arithmetic: Arithmetic) -> None:
    x = scheme.vectors(1, (2,))
    c = scheme.encrypt(x)
    for constant in (0, 1, -1.0, 0.3, -7.5, 2.0**10):
        total = arithmetic.plus(c, constant)
        assert (total.limbs, total.scale) == (c.limbs, c.scale)
        scheme.check(total, x + constant)


@SCHEMES
def test_add(scheme: Scheme, arithmetic: Arithmetic) -> None:
    x, y = scheme.vectors(1, (2,)), scheme.vectors(2)
    fresh, low = scheme.encrypt(x), scheme.encrypt(y, limbs=3, seed=3, scale=1.3 * scheme.scale)
    same = scheme.encrypt(y, seed=5)
    for a, b in ((fresh, low), (low, fresh), (fresh, same), (same, fresh)):
        total = ckks_arithmetic.add(a, b)
        assert total.limbs == min(a.limbs, b.limbs)
        assert total.scale == (low.scale if low in (a, b) else fresh.scale)
        scheme.check(total, x + y)
    scheme.check(ckks_arithmetic.add(arithmetic.product(fresh, fresh), same), x * x + y)


@SCHEMES
def test_add_raises_for_incompatible_scales(scheme: Scheme) -> None:
    c = scheme.encrypt(scheme.vectors(1))
    low = scheme.encrypt(scheme.vectors(1), limbs=3)
    for a, b in ((c, c._replace(scale=1.5 * c.scale)), (c._replace(scale=c.scale**3), low)):
        for pair in ((a, b), (b, a)):
            with pytest.raises(pg.ParameterError, match=r"scales .* differ"):
                ckks_arithmetic.add(*pair)
    with pytest.raises(pg.ParameterError, match="not close to an integer"):
        made(scheme)[0].doubled_product(c, c, c._replace(scale=1.5 * c.scale**2))


@SCHEMES
def test_rescale(scheme: Scheme) -> None:
    x = scheme.vectors(1)
    c = scheme.encrypt(x, scale=scheme.scale**2 / 8)
    found = ckks_arithmetic.rescale(c)
    assert found.limbs == c.limbs - 1 and found.scale == c.scale / after(c, scheme)
    scheme.check(found, x)


@SCHEMES
def test_linear_transform(scheme: Scheme, arithmetic: Arithmetic) -> None:
    relin, n = arithmetic.relin, scheme.n
    x, d = scheme.vectors(1, (2,)), scheme.vectors(2)
    c = scheme.encrypt(x)
    M = lattice.LinearTransform({0: d, 3: [2j]}, ring=c.value.ring, special=relin.special, scale=2.0**31)
    of: Any = {"ring": relin.ring, "special": relin.special, "limbs_per_digit": 2}
    keys = lattice.rotation_keys(made(scheme)[1], M.galois_elements, turned=True, seed=7, **of)
    assert {ckks_arithmetic.galois_element(n, k) for k in (3, 3 - n, 3 + n // 2)} == set(M.galois_elements)
    found = ckks_arithmetic.transform(c, M, keys)
    assert found.limbs == c.limbs - 1
    assert found.scale == pytest.approx(c.scale * 2.0**31 / after(c, scheme), rel=2.0**-50)
    scheme.check(found, d * x + 2j * np.roll(x, -3, axis=-1), size=c.scale / found.scale)


# ---- polynomials ----


@SCHEMES
@BASES
@pytest.mark.parametrize("baby", [2, 4, 8, 16])
def test_polynomials_of_every_degree(scheme: Scheme, arithmetic: Arithmetic, basis: Any, baby: int) -> None:
    x = scheme.vectors(1)
    c = scheme.encrypt(x)
    for degree in range(41):
        series = np.random.default_rng(degree).uniform(-1, 1, degree + 1)
        found = arithmetic.polynomial(c, series, scheme.scale, basis=basis, baby=baby)
        assert found.limbs == c.limbs - degree.bit_length()
        assert found.scale == pytest.approx(scheme.scale, rel=2.0**-50)
        scheme.check(found, EVALUATED[basis](x, series), 1 + degree)


@SCHEMES
@BASES
def test_polynomials_down_to_one_limb(scheme: Scheme, arithmetic: Arithmetic, basis: Any) -> None:
    x = scheme.vectors(1)
    for degree in (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63):
        series = np.random.default_rng(degree).uniform(-1, 1, degree + 1) / (degree + 1)
        c = scheme.encrypt(x, limbs=degree.bit_length() + 1)
        found = arithmetic.polynomial(c, series, scheme.scale, basis=basis)
        assert found.limbs == 1
        scheme.check(found, EVALUATED[basis](x, series))


@SCHEMES
@BASES
@pytest.mark.parametrize("baby", [2, 8])
def test_polynomials_with_zero_coefficients(
    scheme: Scheme, arithmetic: Arithmetic, basis: Any, baby: int
) -> None:
    x = scheme.vectors(1)
    c = scheme.encrypt(x)
    for places in ([0], [1], [2], [8], [31], [32], [0, 32], [1, 31], [3, 8], [7, 9, 24], range(1, 32, 2), []):
        series = np.zeros(48)
        series[list(places)] = 0.75
        found = arithmetic.polynomial(c, series, scheme.scale, basis=basis, baby=baby)
        assert found.limbs == c.limbs - max(places, default=0).bit_length()  # trailing zeros are free
        scheme.check(found, EVALUATED[basis](x, series), 4)


@SCHEMES
@BASES
@pytest.mark.parametrize("batch", [(0,), (1,), (3,), (2, 2)])
def test_polynomials_of_batches(
    scheme: Scheme, arithmetic: Arithmetic, basis: Any, batch: tuple[int, ...]
) -> None:
    x = scheme.vectors(1, batch)
    for series in ([0.0], [0.5], [0.5, 1], [0.25, -1, 0.5], np.linspace(-1, 1, 20)):
        found = arithmetic.polynomial(scheme.encrypt(x), series, scheme.scale, basis=basis)
        scheme.check(found, EVALUATED[basis](x, series), 4)


@SCHEMES
@BASES
def test_polynomials_at_any_scale(scheme: Scheme, arithmetic: Arithmetic, basis: Any) -> None:
    x = scheme.vectors(1)
    series = np.linspace(-1, 1, 12)
    for given, wanted in ((1.25, 0.8), (0.9, 1.0), (1.0, 4.0), (2.0**-6, 1.0), (2.3, 1.0)):
        c = scheme.encrypt(x, scale=given * scheme.scale)
        for some in (series, series[:2], series[:1]):
            found = arithmetic.polynomial(c, some, wanted * scheme.scale, basis=basis)
            assert found.scale == pytest.approx(wanted * scheme.scale, rel=2.0**-50)
            scheme.check(found, EVALUATED[basis](x, some), 8 / min(given, 1))


def test_polynomials_of_complex_slots() -> None:
    x = NEAR.vectors(1) + 1j * NEAR.vectors(2)
    series = [0.5, -1, 0.25, 0, 1]
    found = made(NEAR)[0].polynomial(NEAR.encrypt(x), series, NEAR.scale)
    NEAR.check(found, np.polynomial.polynomial.polyval(x, series), 8)


def test_operands_are_not_changed() -> None:
    arithmetic, c = made(NEAR)[0], NEAR.encrypt(NEAR.vectors(1))
    before, series = c.value.copy(), np.linspace(-1, 1, 20)
    for basis in EVALUATED:
        arithmetic.polynomial(c, series, NEAR.scale, basis=basis)  # type: ignore[arg-type]
    ckks_arithmetic.add(c, arithmetic.product(c, c))
    arithmetic.doubled_product(c, c, c)
    assert c.value == before and np.array_equal(series, np.linspace(-1, 1, 20))


# ---- refusals ----


@BASES
def test_polynomial_with_too_few_limbs_raises(basis: Any) -> None:
    arithmetic = made(NEAR)[0]
    for degree in (1, 2, 3, 4, 8, 40):
        c = NEAR.encrypt(NEAR.vectors(1), limbs=degree.bit_length())
        with pytest.raises(pg.ParameterError, match=rf"x has {c.limbs} limbs.*degree {degree}.*bootstrap"):
            arithmetic.polynomial(c, np.ones(degree + 1), NEAR.scale, basis=basis)
    last = NEAR.encrypt(NEAR.vectors(1), limbs=1)
    for call in (arithmetic.product, lambda x, y: arithmetic.doubled_product(x, y, 1.0)):
        with pytest.raises(pg.ParameterError, match="rescale"):
            call(last, last)
    with pytest.raises(pg.ParameterError):
        ckks_arithmetic.rescale(last)


def test_wrong_arguments_are_refused() -> None:
    arithmetic, c = made(NEAR)[0], NEAR.encrypt(NEAR.vectors(1))

    def refused(match: str, coefficients: Any = (1.0, 2.0), **options: Any) -> None:
        with pytest.raises((pg.ParameterError, pg.errors.CoefficientError), match=match):
            arithmetic.polynomial(c, coefficients, NEAR.scale, **options)

    refused("basis='legendre' must be 'power' or 'chebyshev'", basis="legendre")
    refused("basis='legendre'", [0], basis="legendre")
    for baby in (-2, 0, 1, 3, 12):
        refused(f"baby={baby} must be a power of two", baby=baby)
    refused(r"shape of coefficients is \(0,\)", [])
    refused(r"shape of coefficients is \(2, 2\)", np.ones((2, 2)))
    refused(r"shape of coefficients is \(\)", 1.0)
    for wrong in (np.nan, np.inf, -np.inf):
        refused("coefficients contains a number that is infinite or NaN", [1.0, wrong])
