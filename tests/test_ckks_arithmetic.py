"""Sums, products and polynomials of CKKS ciphertexts beside NumPy's: scales, limbs, all degrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygpu as pg
from polygpu import lattice
from polygpu.examples.ckks_arithmetic import Arithmetic, Ciphertext, decrypt, encode

N, LEVELS, SCALE = 64, 8, 2.0**40
PRIMES = pg.ntt_primes(N, bits=60, count=4)
T = pg.Ring(N, [PRIMES[0], *pg.ntt_primes(N, bits=40, count=LEVELS, near=True), *PRIMES[1:]])
Q, P = T[: LEVELS + 1], T[LEVELS + 1 :]
SECRET = T.ternary(weight=16, seed=1).ntt()
OF: dict[str, Any] = {"ring": Q, "special": P, "limbs_per_digit": 3}
ARITHMETIC = Arithmetic(Q, lattice.switch_key(SECRET, SECRET * SECRET, seed=2, **OF))
POINTS = np.random.default_rng(3).uniform(-1, 1, N // 2)


def encrypted(z: Any, limbs: int = LEVELS + 1, scale: float = SCALE) -> Ciphertext:
    ring = Q[:limbs]
    m = encode(z, ring, scale)
    mask = ring.random(m.shape, seed=4, domain="eval")
    noise = ring.gaussian(3.2, batch=m.shape, seed=5).ntt()
    return Ciphertext(pg.stack([m + noise - mask * SECRET.restrict(ring), mask], axis=-1), scale)


def near(c: Ciphertext, expected: Any, error: float = 2.0**-24) -> None:
    found = decrypt(SECRET, c)
    assert found.shape == np.shape(expected) and abs(found - expected).max() < error


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_products_and_sums(batch: tuple[int, ...]) -> None:
    x, y, z = np.random.default_rng(6).uniform(-1, 1, (3, *batch, N // 2))
    a, b, c = encrypted(x), encrypted(y, LEVELS), encrypted(z, LEVELS - 1, SCALE * 1.25)
    q = Q.moduli
    product = ARITHMETIC.product(a, b)
    near(product, x * y)
    assert product.limbs == LEVELS - 1 and product.scale == a.scale * b.scale / q[LEVELS - 1]
    doubled = ARITHMETIC.doubled_product(a, a, 1.0)
    near(doubled, 2 * x * x - 1)
    assert doubled.limbs == LEVELS and doubled.scale == a.scale**2 / q[LEVELS]
    large = encrypted(x, LEVELS + 1, 2 * SCALE)
    doubled = ARITHMETIC.doubled_product(large, large, 1.0)
    near(doubled, 2 * x * x - 1)
    assert doubled.scale == large.scale**2 / 2 / q[LEVELS]
    less = encrypted(z, LEVELS + 1, SCALE * 1.25)
    near(ARITHMETIC.doubled_product(a, b, less), 2 * x * y - z)
    near(ARITHMETIC.plus(c, -0.75), z - 0.75)
    assert ARITHMETIC.plus(c, 1).scale == c.scale


BASES = {
    "power": np.polynomial.polynomial.polyval,
    "chebyshev": np.polynomial.chebyshev.chebval,
}


@pytest.mark.parametrize("baby", [2, 4, 8, 16])
@pytest.mark.parametrize("basis", BASES)
def test_polynomials_of_all_degrees(basis: Any, baby: int) -> None:
    """Also sparse ones, and trailing zeros, which cost nothing."""
    x, rng = encrypted(POINTS), np.random.default_rng(7)
    for degree in (*range(0, 20), 24, 31, 32, 40, 63):
        c = rng.uniform(-1, 1, degree + 1) / (1 + degree)
        if degree % 3 == 2:
            c[:-1] *= rng.integers(0, 2, degree)
        scale = SCALE * rng.uniform(0.5, 2)
        found = ARITHMETIC.polynomial(x, [*c, 0.0, 0.0], scale, basis=basis, baby=baby)
        near(found, BASES[basis](POINTS, c), 2.0**-19)
        assert found.scale == pytest.approx(scale, rel=1e-14)
        assert found.limbs == LEVELS + 1 - degree.bit_length()


def test_polynomials_of_batches_and_of_the_last_limbs() -> None:
    x = np.array([POINTS, POINTS / 2])
    for degree, limbs in ((1, 2), (3, 3), (7, 4)):
        c = np.full(degree + 1, 0.25)
        found = ARITHMETIC.polynomial(encrypted(x, limbs), c, SCALE)
        near(found, np.polynomial.polynomial.polyval(x, c), 2.0**-20)
        assert found.limbs == 1
        with pytest.raises(pg.ParameterError, match=f"degree {degree + 1} takes .* limbs"):
            ARITHMETIC.polynomial(encrypted(x, limbs), [*c, 1], SCALE)


@pytest.mark.parametrize("coefficients", [[], [0.0], [0, 0, 0]])
def test_the_polynomial_0(coefficients: list[float]) -> None:
    near(ARITHMETIC.polynomial(encrypted(POINTS), coefficients, SCALE), np.zeros(N // 2))


def test_another_basis_is_refused() -> None:
    with pytest.raises(pg.ParameterError, match="'power' or 'chebyshev'"):
        ARITHMETIC.polynomial(encrypted(POINTS), [1, 2], SCALE, basis="legendre")  # type: ignore[arg-type]
