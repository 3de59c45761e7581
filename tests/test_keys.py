"""Key-switching keys: what they encrypt, seeds, rings of fewer limbs, files."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import CARDS, host, on
from hypothesis import given
from hypothesis import strategies as st
from oracle import chain, drawn

import polygpu as pg
from polygpu import Poly, Ring, lattice
from polygpu.lattice import SwitchKey, rotation_keys, switch_key

T = chain(16, (40,) * 6 + (41, 41))
Q, P = T[:6], T[6:]
S = T.ternary(seed=1)
OTHER = T.ternary(seed=2)
DIGITS: dict[str, Any] = {"ring": Q, "special": P, "limbs_per_digit": 4}
NOISE = 12 * 3.2


def rotation(g: int = 5, **options: Any) -> SwitchKey:
    return rotation_keys(S, [g], **{**DIGITS, "seed": b"seed", **options})[g]


def hides(key: SwitchKey, to: Poly, other: Poly) -> None:
    """Each component is P g_j other and a small noise, in Python ints."""
    weights = pg.rns.gadget(key.ring, limbs_per_digit=key.limbs_per_digit)
    assert key.value.shape == (len(weights), 2) and key.value.domain == "eval"
    modulus = key.value.ring.modulus
    for (body, mask), weight in zip(key.value.cpu(), weights, strict=True):
        phase = (body + mask * to).to_bigints(centered=True)
        hidden = other.to_bigints(centered=True) * (weight * key.special.modulus)
        noise = [
            (int(x) - int(y) + modulus // 2) % modulus - modulus // 2
            for x, y in zip(phase, hidden, strict=True)
        ]
        assert 0 < max(map(abs, noise)) <= NOISE


# ---- parameters ----


def test_max_log_q_matches_the_standard() -> None:
    """Bounds are near 0.0267 n (2024/463) and at least double when the degree doubles."""
    bounds = [lattice.max_log_q(1 << k) for k in range(10, 18)]
    assert all(2 * x <= y <= 2.1 * x for x, y in itertools.pairwise(bounds))
    assert all(abs(bound / (0.0267 * 2**k) - 1) < 0.06 for k, bound in enumerate(bounds, 10))
    for k in (15, 16):
        sparse = [lattice.max_log_q(1 << k, secret=weight) for weight in (32, 64, 192)]
        assert sparse == sorted(sparse) and sparse[-1] < lattice.max_log_q(1 << k)


@pytest.mark.parametrize(
    ("n", "options", "words"),
    [
        (1 << 9, {}, "n=512 has no recorded bound"),
        (3 << 10, {}, r"2\*\*10, .* 2\*\*17"),
        (1 << 14, {"secret": 32}, r"n=16384 .* 2\*\*15, 2\*\*16, 2\*\*17"),
        (1 << 14, {"secret": 33}, r"secret=33 .* \[32, 64,"),
        (1 << 14, {"secret": 1.5}, "secret=1.5 "),
        (1 << 14, {"bits": 80}, "bits=80 .* Use bits=128"),
        (1 << 14, {"secret": "gaussian"}, "secret='gaussian' .* Use 'ternary'"),
        (2.0**14, {}, "n=16384.0 "),
    ],
)
def test_max_log_q_raises_without_a_recorded_bound(n: Any, options: Any, words: str) -> None:
    with pytest.raises(pg.PolyGPUError, match=words):
        lattice.max_log_q(n, **options)


# ---- what keys hide ----


@on("cpu", *CARDS)
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_switch_key_encrypts_the_other_secret(device: str, size: int) -> None:
    key = switch_key(S, OTHER, ring=Q, special=P, limbs_per_digit=size)
    assert key.device == pg._backends.current_device()
    hides(key, S, OTHER)


def test_switch_key_with_limbs_of_two_words() -> None:
    """A digit may have narrower words than the key."""
    R = chain(16, (30, 30, 50, 30, 50, 60))
    s, other = R.ternary(seed=1), R.ternary(seed=2)
    hides(switch_key(s, other, ring=R[:4], special=R[4:], limbs_per_digit=2), s, other)


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("g", [5, -1, 3 - 32])
def test_rotation_keys_encrypt_the_rotated_secret(kind: Any, turned: bool, g: int) -> None:
    R = chain(16, (40,) * 4 + (41, 41), kind)
    s, order = R.ternary(seed=1), 32 if kind == "negacyclic" else 16
    keys = rotation_keys(s, [g, g + order, 7], ring=R[:4], special=R[4:], limbs_per_digit=2, turned=turned)
    assert sorted(keys) == sorted({g % order, 7})
    for element, key in keys.items():
        assert (key.galois_element, key.turned) == (element, turned)
        if turned:
            hides(key, s.automorphism(pow(element, -1, order)), s)
        else:
            hides(key, s, s.automorphism(element))


def test_switch_key_of_secrets_in_other_rings_and_domains() -> None:
    """Only the centred secret matters: modulo Q, evaluated, or with more limbs."""
    expected = switch_key(S, OTHER, **DIGITS, seed=1)
    for to, other in ((S.restrict(Q), OTHER.ntt()), (S.ntt(), OTHER.restrict(Q).ntt())):
        assert switch_key(to, other, **DIGITS, seed=1) == expected


def test_rotation_keys_with_a_ring_per_galois_element() -> None:
    keys = rotation_keys(S, [5, 25], **{**DIGITS, "ring": {5: Q, 25: Q[:2]}})
    assert keys[5].ring == Q and keys[25].ring == Q[:2] and keys[25].value.shape == (1, 2)
    c = drawn(Q[:2], (3, 2))
    assert lattice.rotate_many(c, keys.values()).shape == (2, 3, 2)
    for g, found in zip((25, 5), lattice.rotate_many(c, [keys[25], keys[5]]), strict=True):
        assert found == lattice.rotate(c, keys[g])
    with pytest.raises(pg.ParameterError, match="ring has no entry for the Galois element 3"):
        rotation_keys(S, [3], **{**DIGITS, "ring": {5: Q}})


# ---- seeds ----


def test_keys_have_distinct_masks_and_noise() -> None:
    """This includes keys of one seed that differ in secret, kind, Galois element, digits or ring."""
    seeded = {**DIGITS, "seed": b"seed"}
    keys = [
        switch_key(S, OTHER, **seeded),
        switch_key(S, S * S, **seeded),
        switch_key(OTHER, S, **seeded),
        switch_key(S, OTHER, **{**seeded, "limbs_per_digit": 3}),
        switch_key(S, OTHER, **{**seeded, "sigma": 3.25}),
        switch_key(S, OTHER, **{**seeded, "ring": Q[:5]}),
        switch_key(S, OTHER, **{**seeded, "seed": b"other"}),
        *(switch_key(S, OTHER, **DIGITS) for _ in range(2)),
        *rotation_keys(S, [5, 25, 1], **seeded).values(),
        *rotation_keys(S, [5], turned=True, **seeded).values(),
    ]
    masks = [key.value[j, 1].data[0].tobytes() for key in keys for j in range(len(key.value))]
    public = [seed for key in keys for seed in key._masks or ()]
    assert len(set(masks)) == len(masks) == len(set(public)) == len(public)
    assert switch_key(S, OTHER, **seeded) == keys[0]


def test_public_seeds_expand_to_masks_and_not_to_noise(tmp_path: Path) -> None:
    secret = b"of a length that nothing else has"
    key = rotation(seed=secret)
    pg.save(tmp_path / "key", {"key": key})
    public = key._masks or ()
    assert len(public) == 2 and len({*public, secret}) == 3
    for kept in (pickle.dumps(key), (tmp_path / "key").read_bytes()):
        assert secret not in kept and secret.hex().encode() not in kept
    for j, seed in enumerate(public):
        assert (key.value[j, 1].data == T.random(seed=seed).data).all()
        hidden = S.automorphism(5) * (pg.rns.gadget(Q, limbs_per_digit=4)[j] * P.modulus)
        noise = (key.value[j, 0] + key.value[j, 1] * S - hidden).intt()
        for known in (*public, secret, *(f"{x.hex()}" for x in public)):
            assert noise != T.gaussian(3.2, seed=known)


def test_noise_of_keys_has_the_given_deviation() -> None:
    R = chain(1 << 12, (40, 40, 41))
    s, o = R.ternary(seed=1), R.ternary(seed=2)
    for sigma in (3.2, 20):
        key = switch_key(s, o, ring=R[:2], special=R[2:], limbs_per_digit=1, sigma=sigma, seed=1)
        weights = pg.rns.gadget(R[:2], limbs_per_digit=1)
        noise = [b + a * s - o * (w * R.moduli[2]) for (b, a), w in zip(key.value, weights, strict=True)]
        found = np.concatenate([x.intt().to_float64() for x in noise])
        assert abs(found.std() / sigma - 1) < 0.04 and abs(found.mean()) < 5 * sigma / math.sqrt(len(found))


# ---- fewer limbs ----


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_key_at_fewer_limbs_matches_a_key_generated_there(limbs: int, size: int, evaluated: bool) -> None:
    """The ring may end inside a digit."""
    key = switch_key(S, OTHER, ring=Q, special=P, limbs_per_digit=size, seed=1)
    R = Q[:limbs]
    a = R.random(2, seed=limbs)
    a = a.ntt() if evaluated else a
    below = key.at(R)
    assert below.value is key.value and below.ring == R and below.nbytes == key.nbytes
    assert below == key.at(Q[: min(6, limbs + 1)]).at(R)
    found = lattice.key_switch(a, below)
    assert found.ring == R and found == lattice.key_switch(a, key)
    count = -(-limbs // size)
    rows = [*range(limbs), *range(6, 8)]
    own = SwitchKey(key.value[:count].restrict(T[rows]), ring=R, special=P, limbs_per_digit=size)
    assert found == lattice.key_switch(a, own)
    phase = found[:, 0] + found[:, 1] * S.restrict(R) - a * OTHER.restrict(R)
    bound = count * 16 * NOISE * 2.0 ** (40 * min(size, limbs)) / P.modulus + 9
    assert phase.norm(math.inf).max() <= bound


def test_key_at_raises_for_limbs_that_are_not_a_prefix() -> None:
    key = rotation()
    for rows in ([1], [0, 2], [1, 2, 3, 4, 5], [0, 1, 2, 3, 5]):
        with pytest.raises(pg.RingMismatch, match="Drop limbs from the end"):
            key.at(T[rows])
    with pytest.raises(pg.RingMismatch, match="has no limb modulo"):
        key.at(Q.join(Ring(16, pg.ntt_primes(16, bits=30))))
    with pytest.raises(pg.ParameterError, match="ring must be a Ring, not int"):
        key.at(3)  # type: ignore[arg-type]


# ---- rotations ----


@on("reference", "cpu", *CARDS)
def test_rotate_with_either_kind_of_key(device: str) -> None:
    """Results match the definition bit for bit, and the phases rotate."""
    message = Q.random(3, seed=4)
    mask = Q.random(3, seed=5)
    c = pg.stack([message - mask * S.restrict(Q).to(), mask], axis=1)
    for g in (5, -1):
        element = g % 32
        plain, turned = (rotation(element, turned=turned) for turned in (False, True))
        moved = c.automorphism(g)
        first, second = moved[:, 0], lattice.key_switch(moved[:, 1], plain)
        found = lattice.rotate(c, plain)
        assert found[:, 0] == first + second[:, 0] and found[:, 1] == second[:, 1]
        switched = lattice.key_switch(c[:, 1], turned)
        before = pg.stack([c[:, 0] + switched[:, 0], switched[:, 1]], axis=1)
        again = lattice.rotate(c, turned)
        assert again == before.automorphism(g)
        assert lattice.rotate_many(c, [turned, turned]) == pg.stack([again, again])
        for d in (found, again):
            phase = d[:, 0] + d[:, 1] * S.restrict(Q).to() - message.automorphism(g)
            assert float(host(phase.norm(math.inf)).max()) < 1 << 90


# ---- as values ----


def test_equality_copies_and_repr_of_keys() -> None:
    key = rotation()
    assert key == rotation() and key != rotation(25) and key != key.at(Q[:3]) and key != 3
    assert repr(key) == (
        "SwitchKey(n=16, limbs=6, special=2, limbs_per_digit=4, galois_element=5, device=cpu)"
    )
    assert "turned=True" in repr(rotation(turned=True))
    assert pickle.loads(pickle.dumps(key)) == key and key.to() is key and key.cpu() is key
    with pytest.raises(TypeError, match="unhashable"):
        hash(key)
    with pytest.raises(AttributeError):
        key.ring = Q  # type: ignore[misc]
    foreign = SwitchKey(key.value, **DIGITS, galois_element=5)
    assert foreign == key and foreign._masks is None


@on(*CARDS)
def test_keys_move_between_devices(device: str) -> None:
    with pg.device("cpu"):
        key = rotation()
    moved = key.to()
    assert moved.device == pg._backends.current_device() and moved.cpu() == key
    assert rotation() == moved


# ---- files ----


def test_save_load_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.safetensors"
    key, relin = rotation(), switch_key(S, S * S, **DIGITS)
    foreign = SwitchKey(key.value, ring=Q, special=P, limbs_per_digit=4)
    values = {"key": key, "low": key.at(Q[:3]), "relin": relin, "foreign": foreign, "x": S}
    pg.save(path, values)
    found = pg.load(path)
    assert found == values
    assert found["key"]._masks == key._masks and found["foreign"]._masks is None
    pg.save(path, found)
    assert pg.load(path) == values
    large = rotation_keys(
        (R := chain(1 << 12, (50,) * 4)).ternary(), [5], ring=R[:3], special=R[3:], limbs_per_digit=1
    )
    pg.save(path, {"key": large[5]})
    assert path.stat().st_size < 0.51 * large[5].nbytes
    assert pg.load(path, mmap=True)["key"] == large[5]


def with_key(path: Path, change: Any) -> None:
    """Change what a file says of its key."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    told = json.loads(header["__metadata__"]["polygpu"])
    change(told["values"]["key"]["key"])
    header["__metadata__"]["polygpu"] = json.dumps(told)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [
        ("masks", [], r"batch shape \(2,\) and must have \(2, 2\)"),
        ("masks", ["00" * 32], "its 1 masks do not fit bodies"),
        ("masks", ["00" * 31 + "0g", "00" * 32], "64 hexadecimal"),
        ("masks", "00" * 32, "list of masks"),
        ("masks", [5, 6], "64 hexadecimal"),
        ("limbs_per_digit", 0, "limbs_per_digit"),
        ("limbs_per_digit", 3.5, "numbers are ints of at most"),
        ("limbs_per_digit", 1, "batch shape"),
        ("galois_element", 4, "common factor"),
        ("galois_element", -2, "ints of at least -1"),
        ("turned", "yes", "ints of at least -1"),
        ("ring", 9, "its ring must be one of"),
        ("special", -1, "its ring must be one of"),
        ("special", 0, "key is not valid"),
        ("more", 1, "nothing else"),
    ],
)
def test_load_of_damaged_keys_raises(name: str, x: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    pg.save(path, {"key": rotation()})
    with_key(path, lambda key: key.update({name: x}))
    with pytest.raises(pg.errors.FileError, match=words):
        pg.load(path, verify=False)
    with pytest.raises(pg.errors.FileError):
        pg.load(path)
