"""The CKKS example: products, rotations, matrices and polynomials of encrypted vectors, and their noise."""

from __future__ import annotations

import numpy as np
import pytest
from devices import CARDS, on

import polygpu as pg
from polygpu.examples import ckks
from polygpu.examples.ckks_arithmetic import Array, Ciphertext

# Small, and so not secure.
SCHEME = ckks.CKKS(n=512, first=50, bits=36, depth=4, size=2)
TOLERANCE = 2.0**-16


@pytest.fixture(scope="module")
def keys() -> ckks.Keys:
    return SCHEME.keygen(b"keys", [*range(1, 6), -1, 200])


def vectors(seed: int, batch: tuple[int, ...] = ()) -> Array:
    rng = np.random.default_rng(seed)
    real, imaginary = rng.uniform(-1, 1, (2, *batch, SCHEME.n // 2))
    return np.asarray(real + 1j * imaginary)


def near(keys: ckks.Keys, c: Ciphertext, expected: Array, tolerance: float = TOLERANCE) -> None:
    found = SCHEME.decrypt(keys.secret, c)
    assert found.shape == expected.shape and abs(found - expected).max() < tolerance


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_encrypt_decrypt_round_trip(keys: ckks.Keys, batch: tuple[int, ...]) -> None:
    x = vectors(1, batch)
    c = SCHEME.encrypt(keys.public, x, b"x")
    assert c.value.shape == (*batch, 2) and c.scale == 2.0**36
    near(keys, c, x)
    assert abs(SCHEME.decrypt(keys.secret, c) - x).max() > 0


def test_fresh_noise_matches_theory(keys: ckks.Keys) -> None:
    x = vectors(2, (40,))
    error = SCHEME.decrypt(keys.secret, SCHEME.encrypt(keys.public, x, b"noise")) - x
    assert 0.9 < np.sqrt(np.mean(abs(error) ** 2)) / SCHEME.fresh_deviation() < 1.1


@pytest.mark.parametrize("batch", [(), (2,)])
def test_arithmetic_on_ciphertexts(keys: ckks.Keys, batch: tuple[int, ...]) -> None:
    x, y = vectors(3, batch), vectors(4, batch)
    cx, cy = SCHEME.encrypt(keys.public, x, b"x"), SCHEME.encrypt(keys.public, y, b"y")
    near(keys, SCHEME.add(cx, cy), x + y)
    product = SCHEME.multiply(keys, cx, cy)
    near(keys, product, x * y)
    assert product.limbs == SCHEME.depth
    near(keys, SCHEME.multiply(keys, product, cx), x * y * x)
    near(keys, SCHEME.multiply_plain(cx, y), x * y)
    near(keys, SCHEME.multiply_plain(cx, 0.25), x / 4)
    near(keys, SCHEME.add_plain(cx, y), x + y)
    assert SCHEME.multiply_plain(cx, 0.25).scale == cx.scale


def test_sums_of_ciphertexts_at_different_levels(keys: ckks.Keys) -> None:
    x = vectors(10)
    c = SCHEME.encrypt(keys.public, x, b"x")
    far = c._replace(scale=1.5 * c.scale)  # a fresh one whose slots are x / 1.5
    lower = SCHEME.multiply(keys, c, c)
    for total in (SCHEME.add(lower, far), SCHEME.add(far, lower)):
        assert (total.limbs, total.scale) == (SCHEME.depth, lower.scale)
        near(keys, total, x * x + x / 1.5)
    with pytest.raises(ValueError, match="scales"):  # no integer near the ratio of the scales
        SCHEME.add(lower, c._replace(scale=c.scale * 2.0**40))


def test_squarings_through_all_levels(keys: ckks.Keys) -> None:
    x = vectors(5) / 2
    c, power = SCHEME.encrypt(keys.public, x, b"x"), x
    for _ in range(SCHEME.depth):
        c, power = SCHEME.multiply(keys, c, c), power * power
        near(keys, c, power)
    assert c.limbs == 1


def test_rotations(keys: ckks.Keys) -> None:
    x = vectors(6)
    c = SCHEME.encrypt(keys.public, x, b"x")
    lower = SCHEME.multiply_plain(c, 1)
    for value in (c, lower):
        for k, turned in zip((1, 3, -1, 200), SCHEME.rotate(keys, value, [1, 3, -1, 200]), strict=True):
            near(keys, turned, np.roll(x, -k))


def test_matrix_times_vector(keys: ckks.Keys) -> None:
    rng = np.random.default_rng(7)
    matrix, x = rng.uniform(-1, 1, (4, 4)), rng.uniform(-1, 1, 4)
    c = SCHEME.encrypt(keys.public, np.resize(x, SCHEME.n // 2), b"x")
    product = SCHEME.matrix_vector(keys, matrix, c)
    near(keys, product, np.resize(matrix @ x, SCHEME.n // 2))
    assert product.scale == c.scale and product.limbs == SCHEME.depth
    pair = pg.stack([c.value, SCHEME.add_plain(c, 1).value])
    expected = np.resize([matrix @ x, matrix @ (x + 1)], (2, 4))
    turned = SCHEME.matrix_vector(keys, 1j * matrix, Ciphertext(pair, c.scale))
    near(keys, turned, 1j * np.tile(expected, SCHEME.n // 8))


def test_polynomial_uses_one_limb_per_bit_of_the_degree(keys: ckks.Keys) -> None:
    x = vectors(8).real
    c = SCHEME.encrypt(keys.public, x, b"x")
    tall = [0.0] * 15 + [1.0]  # takes all limbs but one
    for coefficients in ([0.5], [0.5, -2.0], [0.5, 0.25, 0, -0.0208], [1.0, -1, 0.5, 0.25, 0.125], tall):
        found = SCHEME.polynomial(keys, coefficients, c)
        near(keys, found, np.polynomial.polynomial.polyval(x, coefficients))
        assert found.limbs == c.limbs - (len(coefficients) - 1).bit_length()
        assert found.scale == 2.0**SCHEME.bits
        near(keys, SCHEME.add(found, c), np.polynomial.polynomial.polyval(x, coefficients) + x)
    with pytest.raises(ValueError, match="degree 16 uses 5 and must leave at least one"):
        SCHEME.polynomial(keys, [0.0, *tall], c)


def test_add_raises_for_different_scales(keys: ckks.Keys) -> None:
    c = SCHEME.encrypt(keys.public, vectors(9), b"x")
    with pytest.raises(ValueError, match="scales"):
        SCHEME.add(c, c._replace(scale=2 * c.scale))


def test_default_parameters_are_secure() -> None:
    scheme = ckks.CKKS()
    assert scheme.secure and not SCHEME.secure
    moduli = scheme.ring.moduli
    for i in range(0, len(moduli), scheme.size):  # the noise of a switched key stays small
        assert np.prod([float(q) for q in moduli[i : i + scheme.size]]) <= scheme.extra.modulus


def test_run_at_full_size() -> None:
    result = ckks.run(seed=b"run")
    assert result.slots == 8192 and 0.9 < result.fresh / result.theory < 1.1
    assert max(result.product, result.matrix, result.polynomial) < 2.0**-20


@on(*CARDS)
def test_results_on_a_card_have_the_same_bits(device: str) -> None:
    scheme = ckks.CKKS(n=64, first=50, bits=36, depth=2, size=1)
    x, y = (np.random.default_rng(seed).uniform(-1, 1, 32) for seed in (1, 2))

    def run() -> tuple[list[pg.Poly], Array]:
        keys = scheme.keygen(b"keys", [1, 2, 3])
        cx, cy = (scheme.encrypt(keys.public, v, name) for v, name in ((x, b"x"), (y, b"y")))
        product = scheme.multiply(keys, cx, cy)
        turned = scheme.rotate(keys, product, [1, 3])
        plain = scheme.multiply_plain(scheme.add(turned[0], turned[1]), y)
        matrix = scheme.matrix_vector(keys, np.arange(16.0).reshape(4, 4), cx)
        found = [product, *turned, plain, matrix, scheme.polynomial(keys, [1, 2, 3], cy)]
        return [c.value.cpu() for c in found], scheme.decrypt(keys.secret, plain)

    there, found = run()
    with pg.device("cpu"):
        here, expected = run()
    assert there == here
    assert np.array_equal(found, expected)
    assert abs(found - (np.roll(x * y, -1) + np.roll(x * y, -3)) * y).max() < 2.0**-16
