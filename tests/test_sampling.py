"""The random stream: its definition word by word, vectors that never change, independence of the cut."""

import hashlib
import struct

import numpy as np
import pytest
from oracle import everywhere

import polygpu as pg
from polygpu.ops.sampling import stream


def chacha20_block(key, counter, nonce):
    """One block by Bernstein's definition, 64-bit counter and 64-bit nonce."""
    state = list(struct.unpack("<4I", b"expand 32-byte k")) + list(struct.unpack("<8I", key))
    state += [counter & 0xFFFFFFFF, counter >> 32, *struct.unpack("<2I", nonce)]
    x = list(state)

    def quarter(a, b, c, d):
        for i, j, k, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) & 0xFFFFFFFF
            v = x[k] ^ x[i]
            x[k] = (v << turn | v >> (32 - turn)) & 0xFFFFFFFF

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return struct.pack("<16I", *((u + v) & 0xFFFFFFFF for u, v in zip(x, state, strict=True)))


def expected_residue(tagged_seed, q, words, n, limb, poly, coefficient):
    key = hashlib.sha256(b"polygpu uniform 1" + tagged_seed).digest()
    size = 8 * (words + 1)
    position = size * (poly * n + coefficient)
    nonce = struct.pack("<2I", limb, 0)
    block = position // 64
    text = b"".join(chacha20_block(key, block + i, nonce) for i in range(size // 64 + 2))
    return int.from_bytes(text[position % 64 : position % 64 + size], "little") % q


@everywhere
@pytest.mark.parametrize(
    "moduli", [[97], [2**32], [2**64], [pg.ntt_primes(8, 60)[0], 5, 2**20], [2**200 - 75], [2**128]]
)
@pytest.mark.parametrize(
    ("seed", "tagged"), [(7, b"int:0x7"), (-1, b"int:-0x1"), (b"ab", b"bytes:ab"), ("ab", b"str:ab")]
)
def test_values_follow_the_definition(moduli, seed, tagged):
    n, ring = 5, pg.Ring(5, moduli)
    poly = ring.random((3,), seed=seed, start=2)
    values = poly.to_residue_ints()
    for limb, q in enumerate(moduli):
        for i in range(3):
            row = values[i] if ring.basis.wide else values[i, limb]
            expected = [expected_residue(tagged, q, ring.basis.words, n, limb, 2 + i, j) for j in range(n)]
            assert row.tolist() == expected


def test_counter_goes_beyond_32_bits():
    key = bytes(range(32))
    for block in (2**32 - 1, 2**32, 2**40 + 3):
        found = stream(key, 5, 64 * block, 128).tobytes()
        nonce = struct.pack("<2I", 5, 0)
        assert found == chacha20_block(key, block, nonce) + chacha20_block(key, block + 1, nonce)


def test_vectors_never_change():
    assert pg.Ring(4, 97).random(seed=1).to_bigints().tolist() == VECTOR_97
    assert pg.Ring(2, pg.ntt_primes(2, 60)).random(seed="polygpu").to_bigints().tolist() == VECTOR_60
    assert pg.Ring(2, 2**130).random(seed=b"wide").to_bigints().tolist() == VECTOR_WIDE


def test_batch_split_start_and_device_change_nothing():
    ring = pg.Ring(64, pg.ntt_primes(64, 40, 2))
    whole = ring.random((6, 2), seed=3)
    parts = pg.concatenate([ring.random((2, 2), seed=3, start=4 * i) for i in range(3)])
    assert whole == parts
    with pg.device("reference"):
        assert np.array_equal(ring.random((6, 2), seed=3).data, whole.data)


def test_long_batches_are_cut_without_a_seam(monkeypatch):
    ring = pg.Ring(100, [2**61 - 1, 97])
    whole = ring.random(50, seed=9)
    monkeypatch.setattr("polygpu.ops.sampling._CHUNK_WORDS", 1000)
    assert ring.random(50, seed=9) == whole


def test_seeds_differ_and_none_is_fresh():
    ring = pg.Ring(16, 2**61 - 1)
    values = [ring.random(seed=s) for s in (0, 1, "0", b"0", None, None)]
    assert all(values[i] != values[j] for i in range(6) for j in range(i))


def test_uniform_within_five_sigma():
    q, count = 5, 1 << 17
    values = pg.Ring(count, q).random(seed=11).data[0]
    expected, sigma = count / q, (count * (1 / q) * (1 - 1 / q)) ** 0.5
    assert all(abs(c - expected) < 5 * sigma for c in np.bincount(values, minlength=q))


@pytest.mark.parametrize("seed", [1.5, True, [1], np.array([1])])
def test_wrong_seeds(seed):
    with pytest.raises(pg.ParameterError, match="seed"):
        pg.Ring(4, 17).random(seed=seed)


# Written once; a change of these values breaks what users stored.
VECTOR_97 = [25, 64, 24, 20]
VECTOR_60 = [506098983141776237, 613216136142840060]
VECTOR_WIDE = [1268621741508298999607502452925608211057, 769644458608208929120327236752827337144]
