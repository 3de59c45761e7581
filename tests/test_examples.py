"""Every public function of the examples against plain arithmetic: empty, zero, one and largest inputs.

The functions `run` and the demo are tried at full size in the files of their schemes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import polygpu as pg
from polygpu.examples import bfv, ckks, ml_dsa, ml_kem, pir, tfhe
from polygpu.examples.ckks_arithmetic import Ciphertext, decode, galois_element, rescale

slow = settings(max_examples=settings().max_examples // 2)  # half of the profile's
BATCHES = st.sampled_from([(), (0,), (1,), (2,), (2, 0), (2, 2)])
NUMPY_INTS = st.sampled_from([int, np.int8, np.int64])


def refused(call: Callable[[], Any], *words: str) -> None:
    """The call raises an error of polygpu's own, which names these words."""
    with pytest.raises((pg.ParameterError, pg.errors.CoefficientError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


# ---- CKKS ----

ONE_SLOT = ckks.CKKS(n=2, first=60, depth=1, size=1)  # the smallest degree
EIGHT = ckks.CKKS(n=16, first=60, depth=3)
LAST = ckks.CKKS(n=8, first=60, depth=0)  # no product is left
LONG = ckks.CKKS(n=4, first=60, depth=28)  # a modulus above all doubles
SCALED = 2.0**-20  # errors of products, rotations and plain operations on numbers of about 1


@cache
def ckks_keys(scheme: ckks.CKKS) -> ckks.Keys:
    return scheme.keygen(b"keys", range(scheme.n // 2))


def slots_of(scheme: ckks.CKKS, batch: tuple[int, ...], size: float = 1.0) -> Any:
    parts = st.floats(-size, size) | st.sampled_from([0.0, -0.0, size, -size, 5e-324])
    pairs = arrays(np.float64, (*batch, scheme.n // 2, 2), elements=parts)
    return pairs.map(lambda x: x[..., 0] + 1j * x[..., 1])


def encrypted(scheme: ckks.CKKS, z: Any, seed: bytes = b"seed") -> Ciphertext:
    return scheme.encrypt(ckks_keys(scheme).public, z, seed)


def near(scheme: ckks.CKKS, c: Ciphertext, expected: Any, error: float = SCALED) -> None:
    found = scheme.decrypt(ckks_keys(scheme).secret, c)
    assert found.shape == np.shape(expected) and np.max(abs(found - expected), initial=0) <= error


@slow
@given(data=st.data(), scheme=st.sampled_from([ONE_SLOT, EIGHT]), batch=BATCHES)
def test_ckks_matches_numpy(data: Any, scheme: ckks.CKKS, batch: tuple[int, ...]) -> None:
    keys, half = ckks_keys(scheme), scheme.n // 2
    other = data.draw(st.sampled_from([batch, ()]))
    x, y = data.draw(slots_of(scheme, batch)), data.draw(slots_of(scheme, other))
    number = data.draw(st.floats(-1, 1))
    cx, cy = encrypted(scheme, x), encrypted(scheme, y, b"other")
    near(scheme, cx, x)
    a, b, ca, cb = data.draw(st.sampled_from([(x, y, cx, cy), (y, x, cy, cx)]))  # either may be the batch
    near(scheme, scheme.add(ca, cb), a + b)
    near(scheme, scheme.multiply(keys, ca, cb), a * b)
    near(scheme, scheme.multiply_plain(ca, b), a * b)
    near(scheme, scheme.add_plain(ca, b), a + b)
    near(scheme, scheme.add_plain(cx, number), x + number)
    near(scheme, scheme.multiply_plain(cx, number), x * number)
    lower = rescale(Ciphertext(cx.value * 2**40, cx.scale * 2**40))
    near(scheme, scheme.add(lower, cy), x + y)
    amounts = data.draw(st.lists(st.integers(-100, 100), max_size=3))
    kind = data.draw(NUMPY_INTS)
    turned = scheme.rotate(keys, cx, [kind(k) for k in amounts])
    for k, c in zip(amounts, turned, strict=True):
        near(scheme, c, np.roll(x, -k, axis=-1))
    coefficients = data.draw(st.lists(st.floats(-1, 1), min_size=1, max_size=2**scheme.depth))
    near(
        scheme,
        scheme.polynomial(keys, coefficients, cx),
        np.polynomial.polynomial.polyval(x, coefficients),
        2.0**-16,
    )
    d = data.draw(st.sampled_from([d for d in (1, 2, 4, 8) if half % d == 0]))
    matrix = data.draw(arrays(np.float64, (d, d), elements=st.floats(-1, 1)))
    repeated = np.tile(x[..., :d], half // d)
    expected = np.tile(np.einsum("ij,...j->...i", matrix, x[..., :d]), half // d)
    near(scheme, scheme.matrix_vector(keys, matrix, encrypted(scheme, repeated)), expected)


@given(
    data=st.data(), scheme=st.sampled_from([ONE_SLOT, EIGHT, LAST, LONG]), sign=st.sampled_from([1, -1, 1j])
)
def test_ckks_values_of_any_size_round_trip_or_raise(data: Any, scheme: ckks.CKKS, sign: complex) -> None:
    bits = scheme.ring.modulus.bit_length() - scheme.bits
    exponent = data.draw(st.integers(-1080, 1022) | st.integers(bits - 4, bits + 2) | st.integers(20, 26))
    value = sign * data.draw(st.floats(1, 1.9375)) * 2.0 ** min(exponent, 1022)
    size = abs(Fraction(value.real) + Fraction(value.imag)) * 2**scheme.bits
    if 2 * size < scheme.ring.modulus - 2**16:
        near(scheme, encrypted(scheme, value), [value] * (scheme.n // 2), SCALED + 2.0**-40 * abs(value))
    elif 2 * size > scheme.ring.modulus:
        refused(lambda: encrypted(scheme, value), "of z ", "smaller scale or more limbs")
        refused(lambda: scheme.add_plain(encrypted(scheme, 0), value), "of z ")


@given(z=st.floats(0.5, 2**40), exponent=st.integers(-40, 900), scale=st.floats(1, 2) | st.fractions(1, 2))
def test_ckks_encode_with_any_scale(z: float, exponent: int, scale: Any) -> None:
    large = scale * Fraction(2) ** exponent
    for kind in (Fraction, float, np.float64):
        m = LONG.encode(z, LONG.ring, kind(large))
        assert abs(m.to_bigints(centered=True)[0] - Fraction(z) * large) <= Fraction(1, 2) + z * large / 2**47
        assert abs(decode(m, float(large))[0] - z) <= z * 2.0**-46 + 4 / float(large)


def test_ckks_raises_for_invalid_arguments() -> None:
    keys, c = ckks_keys(EIGHT), encrypted(EIGHT, 1)
    few = EIGHT.keygen(b"keys", [np.uint8(3), -7])
    assert set(few.rotations) == {galois_element(16, 3), galois_element(16, 1)}
    refused(lambda: EIGHT.rotate(few, c, [3, 2, 8]), "[2]", "keygen")
    refused(lambda: EIGHT.matrix_vector(few, np.ones((4, 4)), c), "[2]", "keygen")
    refused(lambda: EIGHT.polynomial(keys, [], c), "shape of coefficients is (0,)")
    refused(lambda: EIGHT.polynomial(keys, [0.0] * 8 + [1.0], c), "4 limbs", "smaller degree")
    for matrix in (np.ones((2, 3)), np.ones((3, 3)), np.ones((0, 0)), np.ones(4), 2.0):
        refused(lambda m=matrix: EIGHT.matrix_vector(keys, m, c), "shape of matrix is", "divisor of N/2 = 8")
    refused(lambda: encrypted(EIGHT, np.ones(4)), "(4,)", "N/2 = 8")
    refused(lambda: encrypted(EIGHT, [np.nan] * 8), "NaN")
    refused(lambda: encrypted(EIGHT, np.inf), "infinite")
    refused(lambda: EIGHT.add(c, c._replace(scale=2 * c.scale)), "scales")
    refused(lambda: LAST.multiply_plain(encrypted(LAST, 1), 1))
    assert not EIGHT.secure and EIGHT.fresh_deviation() < 2.0**-30
    assert np.array_equal(EIGHT.whole.moduli, EIGHT.ring.moduli + EIGHT.extra.moduli)


# ---- BFV and retrieval ----

MODULI = [17, 65537, *(pg.ntt_primes(8, bits=bits)[0] for bits in (32, 33, 62, 63, 64))]


@cache
def bfv_keys(scheme: bfv.BFV) -> bfv.Keys:
    return scheme.keygen(b"keys")


def centred(x: Any, t: int) -> list[Any]:
    """The representatives in (-t/2, t/2), in Python ints."""
    return ((np.array(x, object) + t // 2) % t - t // 2).tolist()


@slow
@given(data=st.data(), t=st.sampled_from(MODULI), batch=BATCHES)
def test_bfv_matches_python(data: Any, t: int, batch: tuple[int, ...]) -> None:
    scheme = bfv.BFV(n=8, t=t, bits=60, limbs=5)
    keys = bfv_keys(scheme)
    edges = st.sampled_from(
        [0, 1, -1, t // 2, -(t // 2), t // 2 + 1, t - 1, 2**63 - 1, -(2**63), 2**64, 10**30]
    )
    numbers = arrays(object, (*batch, 8), elements=edges | st.integers(-t, t))
    x, y = data.draw(numbers), data.draw(numbers)
    cx, cy = (scheme.encrypt(keys.public, v, seed) for v, seed in ((x, b"x"), (y, b"y")))
    product = scheme.multiply(cx, cy)
    factor = data.draw(st.sampled_from([3, np.int8(-3), np.uint64(2**63)]))
    pairs = [
        *((cx, x), (cx + cy, x + y), (cx - cy, x - y), (cx * factor, x * int(factor))),
        *((product, x * y), (scheme.relinearise(keys.relin, product), x * y)),
    ]
    for c, expected in pairs:
        found = scheme.decrypt(keys.secret, c)
        assert (
            found.dtype == np.int64 and found.shape == (*batch, 8) and found.tolist() == centred(expected, t)
        )
        assert scheme.noise_budget(keys.secret, c) > 1


def test_bfv_zeros_encrypt_zero() -> None:
    scheme = bfv.BFV(n=8, t=17, bits=30, limbs=2)
    s = scheme.whole.ternary(seed=1).ntt()
    for batch in ((), (0,), (2, 1)):
        c = bfv.zeros(s, b"seed", batch)
        assert c.shape == (2, *batch) and np.max((c[0] + c[1] * s).norm(np.inf), initial=0) <= 21
    assert bfv.derive(b"seed", "a") == hashlib.shake_256(b"a\0seed").digest(32) != bfv.derive(b"seed", "b")
    refused(lambda: scheme.encrypt(s, np.full(8, 0.5), b""), "float64")
    refused(lambda: scheme.encrypt(s, np.zeros(7, int), b""), "n=8")
    refused(lambda: bfv.BFV(n=8, t=18).plain.from_slots([0] * 8), "no slots", "1 modulo 2n")


@slow
@given(data=st.data(), size=st.integers(1, 40), count=st.integers(1, 60))
def test_simple_pir_retrieves_every_record(data: Any, size: int, count: int) -> None:
    database = data.draw(arrays(np.uint8, (count, size), elements=st.sampled_from([0, 127, 128, 255])))
    server, index = pir.simple.Server(database, size, b"public"), data.draw(st.integers(0, count - 1))
    client = pir.simple.Client(server.layout, server.seed, server.hint)
    query, secret = client.query(data.draw(NUMPY_INTS)(index), b"query")
    assert client.record(index, server.answer(query[:, None])[:, 0], secret) == database[index].tobytes()


# ---- TFHE ----

TORI = [
    tfhe.TFHE(n=4, N=32, bits=31, noise=8, ring_noise=1, digits=(8, 3)),
    tfhe.TFHE(n=4, N=32, bits=64, noise=20, ring_noise=1, digits=(12, 4), switch_digits=(4, 12)),
    tfhe.TFHE(
        n=4, N=32, bits=64, is_torus=True, noise=20, ring_noise=1, digits=(12, 4), switch_digits=(4, 12)
    ),
]


@cache
def tfhe_keys(scheme: tfhe.TFHE) -> tfhe.Keys:
    return scheme.keygen(b"keys").to("cpu")


@given(data=st.data(), scheme=st.sampled_from(TORI), batch=BATCHES)
def test_tfhe_matches_python(data: Any, scheme: tfhe.TFHE, batch: tuple[int, ...]) -> None:
    keys, p = tfhe_keys(scheme), scheme.p
    kind = data.draw(st.sampled_from([np.int64, np.uint8, np.uint64]))
    x, y = (data.draw(arrays(kind, batch, elements=st.integers(0, p - 1))) for _ in range(2))
    y = np.minimum(y, p - 1 - x)
    cx, cy = scheme.encrypt(keys, x, b"x"), scheme.encrypt(keys, y, b"y")
    assert scheme.decrypt(keys, cx).tolist() == x.tolist()
    assert scheme.decrypt(keys, scheme.add(cx, cy)).tolist() == (x + y).tolist()
    turns = scheme.phase(keys, cx) - x / (2 * p)
    assert np.max(abs(turns - np.rint(turns)), initial=0) < 2.0**-20
    tables = data.draw(st.lists(st.lists(st.integers(0, p - 1), min_size=p, max_size=p), max_size=2))
    found = scheme.bootstrap(keys, cx, *(lambda m, t=table: kind(t[m]) for table in tables))
    assert found.shape == (len(tables), *batch, scheme.N + 1)
    for table, row in zip(tables, found, strict=True):
        assert scheme.decrypt(keys, row).tolist() == np.array(table)[x.astype(int)].tolist()
    assert scheme.failure(2) < 2.0**-40 and scheme.deviation() < 1


@given(data=st.data(), scheme=st.sampled_from(TORI[:1]), count=st.integers(0, 3))
def test_tfhe_add_numbers_of_any_length(data: Any, scheme: tfhe.TFHE, count: int) -> None:
    keys, numbers = tfhe_keys(scheme), [data.draw(st.integers(0, 2**count - 1)) for _ in range(2)]
    bits = [scheme.encrypt(keys, [v >> i & 1 for i in range(count)], bytes([v])) for v in numbers]
    total = scheme.decrypt(keys, tfhe.add_numbers(scheme, keys, *bits))
    assert sum(int(bit) << i for i, bit in enumerate(total)) == sum(numbers) and len(total) == count + 1


def test_tfhe_raises_for_invalid_messages() -> None:
    scheme = TORI[0]
    keys = tfhe_keys(scheme)
    for messages in (4, [-1], np.array([2**63], np.uint64)):
        refused(lambda m=messages: scheme.encrypt(keys, m, b""), "messages", "from 0 to 3")
    refused(lambda: scheme.encrypt(keys, [0.5], b""), "float64")
    vectors = scheme.encrypt(keys, [1], b"")
    refused(lambda: scheme.bootstrap(keys, vectors, lambda m: m + 1), "4, which is not from 0 to 3")
    refused(lambda: tfhe.TFHE(N=4, n=4).bootstrap(keys, vectors, lambda m: m), "N=4", "2 p = 8")


# ---- ML-KEM and ML-DSA ----

SEEDS = st.binary(min_size=32, max_size=32)


@slow
@given(seeds=st.lists(st.tuples(SEEDS, SEEDS, SEEDS), max_size=2))
def test_ml_kem_and_ml_dsa_on_batches_of_any_length(seeds: list[tuple[bytes, bytes, bytes]]) -> None:
    p, (d, z, m) = ml_kem.ML_KEM_512, ([list(column) for column in zip(*seeds, strict=True)] or [[], [], []])
    ek, dk = ml_kem.keygen(p, d, z)
    key, c = ml_kem.encaps(p, ek, m)
    assert ml_kem.decaps(p, dk, c) == key
    assert ml_kem.keygen(p, d[:1], z[:1]) == (ek[:1], dk[:1])
    other = [bytes([ci[0] ^ 1]) + ci[1:] for ci in c]
    assert ml_kem.decaps(p, dk, other) == [
        hashlib.shake_256(zi + ci).digest(32) for zi, ci in zip(z, other, strict=True)
    ]
    public, secret = ml_dsa.keygen(ml_dsa.ML_DSA_44, d)
    assert ml_dsa.keygen(ml_dsa.ML_DSA_44, d[:1]) == (public[:1], secret[:1])
    fields = ml_kem.columns(secret, 32, 32, 64, 2560 - 128)
    assert fields[0] == [pk[:32] for pk in public]
    assert fields[2] == [hashlib.shake_256(pk).digest(64) for pk in public]


@given(d=st.integers(1, 16), rows=st.integers(0, 3), data=st.data())
def test_ml_kem_byte_encode_matches_python_ints(d: int, rows: int, data: Any) -> None:
    edges = st.sampled_from([0, 1, 2**d - 1]) | st.integers(0, 2**d - 1)
    values = data.draw(arrays(data.draw(st.sampled_from([np.int64, np.uint16])), (rows, 8), elements=edges))
    packed = ml_kem.byte_encode(values, d)
    expected = [sum(int(v) << d * i for i, v in enumerate(row)).to_bytes(d, "little") for row in values]
    assert packed == expected
    assert ml_kem.byte_decode(ml_kem.as_array(packed, d), d).tolist() == values.tolist()
    if rows and d < 16:
        for wrong in (2**d, -1, 2**d + 65536):
            refused(lambda w=wrong: ml_kem.byte_encode(np.full((1, 8), w), d), f"from 0 to {2**d - 1}")
    refused(lambda: ml_kem.byte_encode(np.full((1, 8), 0.5), d), "float64")


@given(rows=st.lists(st.binary(min_size=5, max_size=5), max_size=3))
def test_ml_kem_columns_and_join(rows: list[bytes]) -> None:
    ml_kem.check_lengths(rows, 5)
    fields = ml_kem.columns(rows, 2, 0, 3)
    assert fields == [[row[:2] for row in rows], [b""] * len(rows), [row[2:] for row in rows]]
    assert ml_kem.join(*fields) == rows
    assert ml_kem.as_array(rows, 5).tolist() == [list(row) for row in rows]
    refused(lambda: ml_kem.columns([*rows, b"1234"], 5), f"Entry {len(rows)} has 4 bytes, but it must have 5")


@given(rows=st.integers(0, 2), seed=st.integers(0, 9))
def test_ml_kem_rejection_sampling_and_evaluation(rows: int, seed: int) -> None:
    R, q = ml_kem.RING, ml_kem.Q
    candidates = np.random.default_rng(seed).integers(0, 4096, (rows, 560), np.uint16)
    accepted = ml_kem.first_accepted(candidates, below=q)
    assert accepted.tolist() == [[v for v in row if v < q][:256] for row in candidates.tolist()]
    value = ml_kem.evaluations(R, accepted)
    assert value.domain == "eval" and ml_kem.residues(value).tolist() == accepted.tolist()
    assert ml_kem.evaluations(R, ml_kem.residues(value.intt().ntt())) == value
    for wrong in (q, -1, 2**32):
        refused(lambda w=wrong: ml_kem.evaluations(R, np.full((1, 256), w)), str(wrong))
    refused(lambda: ml_kem.evaluations(R, np.full((1, 256), 0.5)), "float64")
