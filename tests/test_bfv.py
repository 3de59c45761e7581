"""The BFV example: decryption inverts encryption, also after sums and products of ciphertexts."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from devices import CARDS, on

import polygpu as pg
from polygpu.examples import bfv

# Small, and so not secure, to try batches; the default set is tried once, by `bfv.run`.
SCHEME = bfv.BFV(n=1024, t=12289, bits=30, limbs=4)


@pytest.fixture(scope="module")
def keys() -> bfv.Keys:
    return SCHEME.keygen(b"keys")


def values(seed: int, batch: tuple[int, ...] = (2,)) -> bfv.Array:
    """Uniform integers in (-t/2, t/2), shape (*batch, N), with both ends present."""
    half = SCHEME.t // 2
    x = np.random.default_rng(seed).integers(-half, half, (*batch, SCHEME.n), endpoint=True)
    x[..., :2] = -half, half
    return x


def centred(x: bfv.Array) -> bfv.Array:
    """The representative of x mod t in (-t/2, t/2)."""
    half = SCHEME.t // 2
    return (x + half) % SCHEME.t - half


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_encrypt_decrypt_round_trip(keys: bfv.Keys, batch: tuple[int, ...]) -> None:
    x = values(1, batch)
    ciphertext = SCHEME.encrypt(keys.public, x, b"x")
    assert ciphertext.shape == (2, *batch)
    assert np.array_equal(SCHEME.decrypt(keys.secret, ciphertext), x)


def test_sums_differences_and_multiples_of_ciphertexts(keys: bfv.Keys) -> None:
    x, y = values(1), values(2)
    cx, cy = SCHEME.encrypt(keys.public, x, b"x"), SCHEME.encrypt(keys.public, y, b"y")
    assert np.array_equal(SCHEME.decrypt(keys.secret, cx + cy), centred(x + y))
    assert np.array_equal(SCHEME.decrypt(keys.secret, cx - cy), centred(x - y))
    assert np.array_equal(SCHEME.decrypt(keys.secret, cx * 3), centred(3 * x))


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_products_before_and_after_relinearising(keys: bfv.Keys, batch: tuple[int, ...]) -> None:
    x, y = values(1, batch), values(2, batch)
    three = SCHEME.multiply(SCHEME.encrypt(keys.public, x, b"x"), SCHEME.encrypt(keys.public, y, b"y"))
    two = SCHEME.relinearise(keys.relin, three)
    assert (three.shape, two.shape) == ((3, *batch), (2, *batch))
    assert SCHEME.relinearise(keys.relin, three.ntt()) == two
    for ciphertext in (three, two):
        assert np.array_equal(SCHEME.decrypt(keys.secret, ciphertext), centred(x * y))


def test_two_multiplications_leave_a_noise_budget(keys: bfv.Keys) -> None:
    x, y, z = values(1), values(2), values(3)
    cx, cy, cz = (SCHEME.encrypt(keys.public, v, seed) for v, seed in ((x, b"x"), (y, b"y"), (z, b"z")))

    def multiply(a: pg.Poly, b: pg.Poly) -> pg.Poly:
        return SCHEME.relinearise(keys.relin, SCHEME.multiply(a, b))

    once = multiply(cx, cy)
    twice = multiply(once + cz, cz)
    budgets = [SCHEME.noise_budget(keys.secret, c) for c in (cx, cx + cz, once, twice)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[-1] > 8  # a failed decryption shows about 0, never less
    assert np.array_equal(SCHEME.decrypt(keys.secret, twice), centred((centred(x * y) + z) * z))


@on(*CARDS)
def test_results_on_a_card_have_the_same_bits(device: str) -> None:
    scheme = bfv.BFV(n=64, t=257, bits=30, limbs=3)
    x, y = (np.random.default_rng(seed).integers(-128, 128, (2, 64)) for seed in (1, 2))

    def run() -> tuple[pg.Poly, bfv.Array]:
        keys = scheme.keygen(b"keys")
        cx, cy = (scheme.encrypt(keys.public, v, name) for v, name in ((x, b"x"), (y, b"y")))
        product = scheme.relinearise(keys.relin, scheme.multiply(cx, cy))
        return product.cpu(), scheme.decrypt(keys.secret, product)

    there, found = run()
    with pg.device("cpu"):
        here, expected = run()
    assert there == here
    assert np.array_equal(found, expected)
    assert np.array_equal(found, (x * y + 128) % 257 - 128)


def test_encryptions_of_batch_entries_are_independent(keys: bfv.Keys) -> None:
    one = SCHEME.encrypt(keys.public, np.zeros((2, SCHEME.n), np.int64), b"seed")
    assert not pg.equal(one[:, 0], one[:, 1]).any()


def test_keygen_and_encrypt_are_determined_by_seeds(keys: bfv.Keys) -> None:
    x = values(1)
    assert SCHEME.keygen(b"keys") == keys
    assert SCHEME.keygen(b"other").secret != keys.secret
    again = SCHEME.encrypt(keys.public, x, b"x")
    assert again == SCHEME.encrypt(keys.public, x, b"x")
    assert not pg.equal(again, SCHEME.encrypt(keys.public, x, b"y")).any()


def test_decrypt_with_another_key_fails(keys: bfv.Keys) -> None:
    x = values(1)
    ciphertext = SCHEME.encrypt(keys.public, x, b"x")
    other = SCHEME.keygen(b"other").secret
    assert SCHEME.noise_budget(other, ciphertext) < 1
    assert (SCHEME.decrypt(other, ciphertext) != x).mean() > 0.99


def test_keys_encrypt_their_messages_with_small_noise(keys: bfv.Keys) -> None:
    """s is ternary, the public key encrypts 0, and relin[i] encrypts (P mod q_i, else 0) s^2."""
    s = keys.secret
    assert set(s.to_bigints(centered=True).tolist()) == {-1, 0, 1}
    noise = keys.public[0] + keys.public[1] * s
    assert 0 < np.max(noise.norm(np.inf)) <= 21
    whole = SCHEME.whole(s.to_bigints(centered=True)).ntt()
    square = whole * whole
    for i, (body, mask) in enumerate(keys.relin.value):
        hidden = np.zeros(
            (SCHEME.limbs + 1, SCHEME.n), square.data.dtype
        )  # P s^2 modulo its own prime, else 0
        q = SCHEME.whole.moduli[i]
        hidden[i] = square.data[i].astype(object) * SCHEME.special.modulus % q
        noise = body + mask * whole - SCHEME.whole.from_residues(hidden, domain="eval")
        assert 0 < np.max(noise.norm(np.inf)) <= 40  # 12 standard deviations


def test_default_parameters_are_secure_and_run_succeeds() -> None:
    assert bfv.BFV().secure
    assert not SCHEME.secure
    assert len(inspect.getsource(bfv).splitlines()) < 200
    result = bfv.run(b"seed")
    assert result.sum_ok
    assert result.product_ok
    assert result.fresh_budget > result.product_budget > 100
