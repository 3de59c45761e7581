"""LWE vectors on every device: key switching and modulus switching against Python ints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from devices import CARDS, host, on, there
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gadget import digits_of

import polygpu as pg
from polygpu import Ring, lattice

PRIME = pg.ntt_primes(16, bits=31)[0]
# q, bits, levels
DIGITS = [
    (2**64, 4, 4),
    (2**64, 3, 5),
    (2**64, 8, 8),
    (2**64, 16, 4),
    (2**64, 20, 3),
    (2**32, 2, 8),
    (2**32, 9, 2),
    (PRIME, 2, 8),
    (2**63 - 25, 7, 8),
    (2**64 - 59, 8, 7),
    (2**20, 5, 4),
    (97, 1, 6),
]


def dtype_of(q: int) -> Any:
    return np.uint32 if q <= 2**32 else np.uint64


def vectors(q: int, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Random residues, with the ends of the range among them."""
    rng = np.random.default_rng(seed)
    words = [int.from_bytes(rng.bytes(8), "little") % q for _ in range(math.prod(shape))]
    edges = [0, 1, q - 1, q // 2, q // 2 + 1, (q - 1) // 2]
    words[: len(edges)] = edges[: len(words)]
    return np.array(words, dtype_of(q)).reshape(shape)


def switched(x: list[int], key: list[list[int]], q: int, bits: int, levels: int) -> list[int]:
    total = [x[0], *[0] * (len(key[0]) - 1)]
    for i, a in enumerate(x[1:]):
        for level, digit in enumerate(digits_of(a, q, bits, levels)):
            row = key[i * levels + level]
            total = [(t + digit * k) % q for t, k in zip(total, row, strict=True)]
    return total


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize(("q", "bits", "levels"), DIGITS)
def test_lwe_switch_matches_python_ints(device: str, q: int, bits: int, levels: int) -> None:
    x, key = vectors(q, (3, 2, 8), 1), vectors(q, (7 * levels, 5), 2)
    found = lattice.lwe_switch(there(x), there(key), q=q, bits=bits, levels=levels)
    expected = [
        [switched(v, key.tolist(), q, bits, levels) for v in some] for some in x.astype(object).tolist()
    ]
    assert found.dtype == dtype_of(q)
    assert host(found).astype(object).tolist() == expected
    alone = lattice.lwe_switch(there(x[1, 1]), there(key), q=q, bits=bits, levels=levels)
    assert host(alone).astype(object).tolist() == expected[1][1]


@pytest.mark.parametrize("q", [2**64, PRIME])
@pytest.mark.parametrize("rows", [1, 47, 48, 100])
def test_lwe_switch_of_few_and_many_vectors(rows: int, q: int) -> None:
    """Digits of many vectors are multiplied as bytes, unless q is a power of two."""
    x, key = vectors(q, (rows, 10), 1), vectors(q, (9 * 4, 6), 2)
    found = lattice.lwe_switch(x, key, q=q, bits=4, levels=4)
    assert found.tolist() == [switched(v, key.tolist(), q, 4, 4) for v in x.tolist()]


@on("cpu", "reference", *CARDS)
def test_lwe_switch_into_out(device: str) -> None:
    x, key = there(vectors(2**32, (4, 5), 1)), there(vectors(2**32, (4 * 3, 5), 2))
    right = lattice.lwe_switch(x, key, q=2**32, bits=4, levels=3)
    out = right.copy() * 0
    assert lattice.lwe_switch(x, key, q=2**32, bits=4, levels=3, out=out) is out
    assert (host(out) == host(right)).all()
    given = host(x).copy()
    lattice.lwe_switch(x, key, q=2**32, bits=4, levels=3, out=x)
    assert (host(x) == host(right)).all() and not (host(x) == given).all()
    for wrong in (key[:4], x[:, :4]):
        with pytest.raises(pg.errors.OutputError, match="out"):
            lattice.lwe_switch(x, key, q=2**32, bits=4, levels=3, out=wrong)
    empty = lattice.lwe_switch(x[:0], key, q=2**32, bits=4, levels=3)
    assert empty.shape == (0, 5)


@on("cpu", *CARDS)
@pytest.mark.parametrize(("q", "options"), [(2**64, {"tuniform": 20}), (PRIME, {"sigma": 3.2})])
def test_lwe_switch_keeps_the_phase(device: str, q: int, options: dict[str, Any]) -> None:
    """The phase changes only by the dropped digits and the noise of the key."""
    rng = np.random.default_rng(5)
    old, new = rng.integers(0, 2, 40), rng.integers(0, 2, 25)
    bits, levels = (4, 6) if q > 2**32 else (4, 5)
    key = lattice.lwe_switch_key(new, old, q=q, bits=bits, levels=levels, seed=7, **options)
    assert key.shape == (40 * levels, 26) and key.dtype == dtype_of(q)
    weights = lattice.gadget(Ring(1, q), bits=bits, levels=levels)

    def phase(v: np.ndarray[Any, Any], secret: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = host(v).astype(object)
        return np.asarray((values[..., 0] + values[..., 1:] @ secret) % q)

    def centred(v: Any) -> np.ndarray[Any, Any]:
        return np.asarray((v + q // 2) % q - q // 2)

    hidden = np.array([int(s) * g for s in old for g in weights], object)
    noise = centred(phase(key, new) - hidden)
    most = 2**20 if "tuniform" in options else 10 * 3.2
    assert np.abs(noise).max() <= most and len(set(noise)) > 10
    x = vectors(q, (30, 41), 3)
    found = lattice.lwe_switch(there(x), key, q=q, bits=bits, levels=levels)
    left_out = q / 2 / 2 ** (bits * levels) + levels * 2**bits / 4
    error = centred(phase(found, new) - phase(x, old))
    assert np.abs(error).max() <= 40 * (left_out + levels * 2 ** (bits - 1) * most)
    other = lattice.lwe_switch_key(new, old, q=q, bits=bits, levels=levels, seed=8, **options)
    assert not (host(other)[:, 1:] == host(key)[:, 1:]).any()
    moved = lattice.lwe_switch_key(new, old[::-1].copy(), q=q, bits=bits, levels=levels, seed=7, **options)
    assert not (host(moved)[:, 1:] == host(key)[:, 1:]).any()


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize("q", [2**64, 2**32, PRIME, 2**64 - 59, 4096, 5000])
def test_lwe_modulus_switch_matches_python_ints(device: str, q: int) -> None:
    x = vectors(q, (5, 9), 1)
    for to in (2, 256, 4096):
        found = lattice.lwe_modulus_switch(there(x), q=q, to=to)
        expected = [[(2 * v * to + q) // (2 * q) % to for v in row] for row in x.astype(object).tolist()]
        assert found.dtype == np.int64 and host(found).tolist() == expected
        # With the mean: masks alike, and the body with half of their errors, up to their parts.
        centred = host(lattice.lwe_modulus_switch(there(x), q=q, to=to, centered_mean=True))
        assert centred[:, 1:].tolist() == [row[1:] for row in expected]
        for row, body in zip(x.astype(object).tolist(), centred[:, 0], strict=True):
            errors = [v * to / q - (2 * v * to + q) // (2 * q) for v in row[1:]]
            exact = row[0] * to / q + sum(errors) / 2
            near = (int(body) - exact + to / 2) % to - to / 2
            more = min(20, (q.bit_length() - 1) - (to.bit_length() - 1))
            assert abs(near) <= 0.5 + 10 / 2**more


def test_centred_lwe_modulus_switch_halves_the_variance() -> None:
    n, to, count = 400, 4096, 4000
    rng = np.random.default_rng(4)
    secret = rng.integers(0, 2, n)
    x = rng.integers(0, 2**64, (count, n + 1), dtype=np.uint64)
    phase = (x[:, 0] + x[:, 1:] @ secret.astype(np.uint64)).astype(np.float64) / 2.0**64 * to
    for centred, variance in ((False, (n / 24) + 1 / 12), (True, n / 48 + 1 / 12)):
        found = lattice.lwe_modulus_switch(x, q=2**64, to=to, centered_mean=centred)
        error = (found[:, 0] + found[:, 1:] @ secret - phase + to / 2) % to - to / 2
        weight = secret.mean()
        if not centred:
            variance = n * weight / 12 + 1 / 12
        assert np.mean(error**2) == pytest.approx(variance, rel=0.1)


@settings(max_examples=60)
@given(st.integers(2, 2**64), st.data())
def test_lwe_switch_modulo_any_number(q: int, data: st.DataObject) -> None:
    total = data.draw(st.integers(1, q.bit_length() - 1))
    bits = data.draw(st.integers(1, total))
    levels = data.draw(st.integers(1, min(3, total // bits)))
    m, n, seed = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 9)), data.draw(st.integers(0, 99))
    x, key = vectors(q, (2, m + 1), seed), vectors(q, (m * levels, n + 1), seed + 1)
    found = lattice.lwe_switch(x, key, q=q, bits=bits, levels=levels)
    expected = [switched(v, key.tolist(), q, bits, levels) for v in x.tolist()]
    assert found.tolist() == expected


@on("cpu", *CARDS)
@pytest.mark.parametrize("ring", [Ring(32, 2**64), Ring(32, 2**32), Ring(32, pg.ntt_primes(32, bits=30))])
def test_ggsw_encrypts_its_messages(device: str, ring: Ring) -> None:
    q, k = ring.modulus, 2
    secret = ring.ternary(k, seed=1)
    messages = np.array([0, 1, -3])
    made = lattice.ggsw(messages, secret, bits=6, levels=3, tuniform=4, seed=2)
    assert made.shape == (3, k + 1, 3, k + 1) and made.domain == ("eval" if ring.leaf_size == 1 else "coef")
    coefficients = made.intt()
    phase = coefficients[..., 0]
    for i in range(k):
        phase = phase + (coefficients[..., i + 1] * secret[i]).intt()
    weights = lattice.gadget(ring, bits=6, levels=3)
    for message, rows in zip(messages.tolist(), phase, strict=True):
        for component in range(k + 1):
            factor = ring([1]) if component == 0 else secret[component - 1].intt()
            for level, weight in enumerate(weights):
                error = rows[component, level] - (factor * (message * weight % q)).intt()
                assert error.norm(float("inf")) <= 16
    again = lattice.ggsw(messages, secret, bits=6, levels=3, tuniform=4, seed=2)
    assert again == made
    assert lattice.ggsw(messages, secret, bits=6, levels=3, tuniform=4) != made


def test_invalid_arguments_raise() -> None:
    x, key = np.zeros((2, 5), np.uint32), np.zeros((8, 4), np.uint32)
    R = Ring(32, 2**32)
    s = R.ternary(1, seed=1)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: lattice.lwe_switch(x, key, q=2**32, bits=4, levels=3), pg.ParameterError, "key has shape"),
        (
            lambda: lattice.lwe_switch(x[0, 0], key, q=2**32, bits=4, levels=2),
            pg.ParameterError,
            "key has shape",
        ),
        (
            lambda: lattice.lwe_switch(x, key[0], q=2**32, bits=4, levels=2),
            pg.ParameterError,
            "key has shape",
        ),
        (lambda: lattice.lwe_switch(x, key, q=2**65, bits=4, levels=2), pg.ParameterError, "q="),
        (lambda: lattice.lwe_switch(x, key, q=2**32, bits=17, levels=2), pg.ParameterError, "at most"),
        (
            lambda: lattice.lwe_switch(x * 0.5, key, q=2**32, bits=4, levels=2),
            pg.errors.CoefficientError,
            "x",
        ),
        (lambda: lattice.lwe_modulus_switch(x, q=2**32, to=100), pg.ParameterError, "power of two"),
        (lambda: lattice.lwe_modulus_switch(x, q=97, to=128), pg.ParameterError, "power of two"),
        (lambda: lattice.lwe_modulus_switch(x, q=2**64, to=2**33), pg.ParameterError, "power of two"),
        (
            lambda: lattice.lwe_modulus_switch(x, q=2**32, to=64, centered_mean=1),  # type: ignore[arg-type]
            pg.ParameterError,
            "centered_mean",
        ),
        (
            lambda: lattice.lwe_modulus_switch(7, q=2**32, to=64, centered_mean=True),
            pg.ParameterError,
            "x is a single number",
        ),
        (
            lambda: lattice.lwe_switch_key([0, 1], [1], q=2**32, bits=4, levels=2),
            pg.ParameterError,
            "Give exactly one of sigma and tuniform",
        ),
        (
            lambda: lattice.lwe_switch_key([0, 1], [1], q=2**32, bits=4, levels=2, sigma=3.2, tuniform=3),
            pg.ParameterError,
            "Give exactly one of sigma and tuniform",
        ),
        (
            lambda: lattice.lwe_switch_key([[0, 1]], [1], q=2**32, bits=4, levels=2, tuniform=3),
            pg.ParameterError,
            "to has shape",
        ),
        (
            lambda: lattice.lwe_switch_key([0, 1], [2**40], q=2**64, bits=4, levels=2, tuniform=3),
            pg.ParameterError,
            "other contains an entry",
        ),
        (
            lambda: lattice.ggsw([1], s[0], bits=4, levels=2, tuniform=3),
            pg.ParameterError,
            "batch shape of secret",
        ),
        (
            lambda: lattice.ggsw([1.5], s, bits=4, levels=2, tuniform=3),
            pg.errors.CoefficientError,
            "messages",
        ),
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text):
            call()
