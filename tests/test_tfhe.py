"""The TFHE example: tables and sums of encrypted messages, noise against theory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from devices import CARDS, host, on, there

from polygpu import lattice
from polygpu.examples import tfhe

# Small, and so not secure, with less noise than the default set.
SCHEME = tfhe.TFHE(n=64, N=256, bits=31, noise=12, ring_noise=3)


@pytest.fixture(scope="module")
def keys() -> tfhe.Keys:
    return SCHEME.keygen(b"keys")


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_encrypt_decrypt_round_trip(keys: tfhe.Keys, batch: tuple[int, ...]) -> None:
    messages = np.random.default_rng(1).integers(0, SCHEME.p, batch)
    vectors = SCHEME.encrypt(keys, messages, b"x")
    assert vectors.shape == (*batch, SCHEME.N + 1) and vectors.dtype == SCHEME.ring.dtype
    assert np.array_equal(SCHEME.decrypt(keys, vectors), messages)


def test_bootstrap_of_every_message_with_many_tables(keys: tfhe.Keys) -> None:
    messages = np.arange(SCHEME.p)
    vectors = SCHEME.encrypt(keys, messages, b"m")
    tables = [lambda m, i=i: i >> 2 * m & 3 for i in range(0, 256, 13)]  # some of the 256 tables
    found = SCHEME.bootstrap(keys, vectors, *tables)
    assert found.shape == (len(tables), SCHEME.p, SCHEME.N + 1)
    for table, row in zip(tables, found, strict=True):
        assert SCHEME.decrypt(keys, row).tolist() == [table(m) for m in range(SCHEME.p)]


def test_bootstrap_of_a_sum_of_bootstraps(keys: tfhe.Keys) -> None:
    messages = np.array([0, 1, 1])
    vectors = SCHEME.encrypt(keys, messages, b"m")
    (bits,) = SCHEME.bootstrap(keys, vectors, lambda m: 1 - m % 2)
    (total,) = SCHEME.bootstrap(keys, SCHEME.add(bits[0], bits[1], vectors[2]), lambda m: m)
    assert SCHEME.decrypt(keys, total) == 2


def test_add_numbers_of_four_bits(keys: tfhe.Keys) -> None:
    for x, y in ((0, 0), (5, 6), (15, 15), (9, 7)):
        bits = [np.array([v >> i & 1 for i in range(4)]) for v in (x, y)]
        encrypted = [SCHEME.encrypt(keys, b, bytes([i])) for i, b in enumerate(bits)]
        total = SCHEME.decrypt(keys, tfhe.add_numbers(SCHEME, keys, *encrypted))
        assert sum(int(bit) << i for i, bit in enumerate(total)) == x + y


def test_noise_matches_theory(keys: tfhe.Keys) -> None:
    """Several keys are used, because ciphertexts of one key share a part of their noise."""
    squares = []
    for seed in range(6):
        own = SCHEME.keygen(bytes([seed]))
        messages = np.arange(SCHEME.p).repeat(32)
        (found,) = SCHEME.bootstrap(own, SCHEME.encrypt(own, messages, b"m"), lambda m: m)
        error = SCHEME.phase(own, found) - messages / (2 * SCHEME.p)
        squares.append(np.mean((error - np.rint(error)) ** 2))
    assert 0.8 < np.sqrt(np.mean(squares)) / SCHEME.deviation() < 1.25


def test_failure_probability_grows_with_terms_and_messages() -> None:
    assert 0 < tfhe.TFHE().failure(1) < tfhe.TFHE().failure() < 2.0**-40
    assert tfhe.FOUR_BITS.failure() < 2.0**-30 < tfhe.TFHE(p=16).failure()


@pytest.mark.parametrize(
    ("name", "log2"), [("1+1 bits", -144.322), ("2+2 bits", -129.581), ("3+3 bits", -128.992)]
)
def test_failure_probability_of_parameter_sets(name: str, log2: float) -> None:
    assert math.log2(tfhe.SETS[name].failure()) == pytest.approx(log2, abs=1)


@pytest.mark.parametrize(
    ("name", "log2"),
    [
        ("1+1 bits, groups of 4", -144.8),
        ("2+2 bits, groups of 4", -139.2),
        ("3+3 bits, groups of 4", -124.7),
    ],
)
def test_failure_probability_of_sets_with_key_groups(name: str, log2: float) -> None:
    assert math.log2(tfhe.SETS[name].failure()) == pytest.approx(log2, abs=0.1)


@pytest.fixture(scope="module")
def four_bits() -> tfhe.Keys:
    return tfhe.FOUR_BITS.keygen(b"keys")


def centred(turns: Any) -> Any:
    return turns - np.rint(turns)


@pytest.mark.parametrize("name", ["2+2 bits", "2+2 bits, groups of 4"])
def test_bootstrap_of_four_bit_messages(name: str, four_bits: tfhe.Keys) -> None:
    """The noise of 200 random messages is compared with theory after each step."""
    scheme, messages = tfhe.SETS[name], np.random.default_rng(1).integers(0, 16, 200)
    keys = four_bits if scheme is tfhe.FOUR_BITS else scheme.keygen(b"keys")
    vectors, of = scheme.encrypt(keys, messages, b"m"), scheme.variances()
    (found,) = scheme.bootstrap(keys, vectors, lambda m: (7 * m + 3) % 16)
    expected = (7 * messages + 3) % 16
    assert np.array_equal(scheme.decrypt(keys, found), expected)
    rotation = centred(scheme.phase(keys, found) - expected / 32)
    bits, levels = scheme.switch_digits
    short = lattice.lwe_switch(found, keys.switch, q=scheme.q, bits=bits, levels=levels)
    switch = centred(scheme.phase(keys, short) - scheme.phase(keys, found))
    # A vector modulo 2N, as one modulo q, has the phase that turns the table.
    turned = (scheme.rounded(keys, found) << 52).view(np.uint64)
    rounding = centred(scheme.phase(keys, turned) - scheme.phase(keys, short))
    fresh = centred(scheme.phase(keys, vectors) - messages / 32)
    for name, error in {"fresh": fresh, "rotation": rotation, "switch": switch, "rounding": rounding}.items():
        assert np.sqrt(np.mean(error**2) / of[name]) == pytest.approx(1, abs=0.2), name


def test_arithmetic_of_eight_bit_integers(four_bits: tfhe.Keys) -> None:
    numbers = tfhe.Integers(tfhe.FOUR_BITS, four_bits)
    x, y = np.array([201, 255, 0]), np.array([118, 255, 7])
    cx, cy = numbers.encrypt(x, 4, b"x"), numbers.encrypt(y, 4, b"y")
    assert numbers.decrypt(cx).tolist() == x.tolist()
    assert numbers.decrypt(numbers.add(cx, cy)).tolist() == ((x + y) % 256).tolist()
    assert numbers.decrypt(numbers.multiply(cx, cy)).tolist() == (x * y % 256).tolist()
    less = tfhe.FOUR_BITS.decrypt(four_bits, numbers.less(cx, cy))
    assert less.tolist() == (x < y).tolist()
    assert numbers.decrypt(numbers.apply(cx, lambda m: 3 - m % 4)).tolist() == (255 - x).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "1+1 bits",
        "1+1 bits, groups of 4",
        pytest.param("3+3 bits", marks=pytest.mark.tools),
        pytest.param("3+3 bits, groups of 4", marks=pytest.mark.tools),
    ],
)
def test_bootstrap_with_other_parameter_sets(name: str) -> None:
    scheme = tfhe.SETS[name]
    keys, messages = scheme.keygen(b"keys"), np.arange(0, scheme.p, scheme.p // 4)
    (found,) = scheme.bootstrap(keys, scheme.encrypt(keys, messages, b"m"), lambda m: scheme.p - 1 - m)
    assert scheme.decrypt(keys, found).tolist() == [scheme.p - 1 - m for m in messages]


def test_run_at_full_size() -> None:
    result = tfhe.run(seed=b"run")
    assert result.table_ok and result.sum_ok and result.bootstraps == 48
    assert result.deviation < 2 * result.theory


@on(*CARDS)
def test_results_on_a_card_have_the_same_bits(device: str) -> None:
    scheme = tfhe.TFHE(n=8, N=64, noise=12, ring_noise=3, switch_digits=(4, 4))
    keys = scheme.keygen(b"keys")
    vectors = scheme.encrypt(keys, np.array([0, 3]), b"m")
    tables = [lambda m: m, lambda m: 3 - m]
    expected = scheme.bootstrap(keys, vectors, *tables)
    found = scheme.bootstrap(keys.to(device), there(vectors), *tables)
    assert np.array_equal(host(found), expected)
    bits = scheme.encrypt(keys, np.array([[1, 0], [1, 1]]), b"bits")
    total = tfhe.add_numbers(scheme, keys.to(device), *map(there, bits))
    assert scheme.decrypt(keys, total).shape == (3,)  # decrypts vectors on a card too
    assert np.array_equal(host(total), tfhe.add_numbers(scheme, keys, *bits))
