"""Packing, traces and expansion against their definitions in Python ints, and noise against theory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from devices import host, on, over, there
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import chain, draw, product

import polygpu as pg
from polygpu import Poly, Ring, lattice

# moduli of Q and of P, limbs of Q, limbs of a digit
CHAINS = {
    "30 bits": (chain(16, (30, 30)), 1, 1),
    "31 bits, n = 1": (chain(1, (31, 31)), 1, 1),
    "n = 2": (chain(2, (30, 30, 30)), 2, 1),
    "two limbs": (chain(16, (30,) * 4), 2, 2),
    "mixed words": (chain(8, (30, 50, 64, 46, 60)), 3, 2),
    "63 bits": (chain(8, (63, 63)), 1, 1),
}
FEW = ["30 bits", "mixed words"]


def keys_of(name: str, gs: list[int], s: Poly) -> dict[int, lattice.SwitchKey]:
    T, count, size = CHAINS[name]
    return lattice.rotation_keys(s, gs, ring=T[:count], special=T[count:], limbs_per_digit=size, seed=2)


def elements(n: int) -> list[int]:
    """Those of packing, and for n = 1 one that is not needed: rings of LWE vectors are read from keys."""
    return [2**j + 1 for j in range(1, n.bit_length())] or [1]


def rotated(c: Poly, key: lattice.SwitchKey) -> Poly:
    """A rotation by its definition: (c_0(X^g), 0) + key_switch(c_1(X^g))."""
    moved = c.automorphism(key.galois_element)
    made = lattice.key_switch(moved[..., 1], key)
    return pg.stack([made[..., 0] + moved[..., 0], made[..., 1]], axis=-1)


def packed(cs: list[Poly], keys: dict[int, lattice.SwitchKey]) -> Poly:
    """Algorithm 2 of 2020/015, recursive."""
    n, count = cs[0].ring.n, len(cs)
    if count == 1:
        return cs[0]
    even, odd = packed(cs[::2], keys), packed(cs[1::2], keys).mul_monomial(n // count)
    return even + odd + rotated(even - odd, keys[count + 1])


def traced(c: Poly, keys: dict[int, lattice.SwitchKey], count: int) -> Poly:
    while count < c.ring.n:
        count *= 2
        c = c + rotated(c, keys[count + 1])
    return c


def expanded(c: Poly, keys: dict[int, lattice.SwitchKey], count: int) -> list[Poly]:
    """Figure 3 of SealPIR, with two automorphisms for each pair."""
    cs, n = [c], c.ring.n
    for j in range(count.bit_length() - 1):
        key = keys[(n >> j) + 1]
        moved = [x.mul_monomial(-(1 << j)) for x in cs]
        cs = [x + rotated(x, key) for x in (*cs, *moved)]
    return cs


def phase(c: Poly, s: Poly) -> Poly:
    return c[..., 0] + c[..., 1] * s.restrict(c.ring)


def largest(x: Poly) -> float:
    return float(np.max(host(x[None].norm(math.inf)), initial=0))


@over(CHAINS, FEW)
def test_pack_matches_the_definition(name: str) -> None:
    """Bits are equal for every count, batch and domain."""
    T, limbs, _ = CHAINS[name]
    n, Q, s = T.n, T[:limbs], T.ternary(seed=1)
    keys = keys_of(name, elements(n), s)
    for count in [1 << j for j in range(n.bit_length())]:
        for batch in ((), (2,), (3, 1)):
            c = Q(draw(Q, (*batch, count, 2), count))
            expected = traced(packed([c[..., i, :] for i in range(count)], keys), keys, count)
            for value in (c, c.ntt()):
                found = lattice.pack(value, keys)
                assert found.domain == value.domain and found.shape == (*batch, 2)
                assert found == expected
            assert lattice.trace(c[..., 0, :], keys, count) == traced(c[..., 0, :], keys, count)
    assert lattice.pack(Q.zeros((0, n, 2)), keys).shape == (0, 2)


@over(CHAINS, FEW)
def test_expand_matches_the_definition(name: str) -> None:
    """Phases are equal. Bits differ, because the definition rotates twice as often."""
    T, limbs, _ = CHAINS[name]
    n, Q, s = T.n, T[:limbs], T.ternary(seed=1)
    keys = keys_of(name, [(n >> j) + 1 for j in range(n.bit_length() - 1)] or [1], s)
    for count in [1 << j for j in range(n.bit_length())]:
        for batch in ((), (2,), (0,)):
            c = Q(draw(Q, (*batch, 2), count))
            for value in (c, c.ntt()):
                found = lattice.expand(value, keys, count)
                assert found.domain == value.domain and found.shape == (*batch, count, 2)
                wanted = pg.stack(expanded(c, keys, count), axis=-2)
                assert largest(phase(found, s) - phase(wanted, s)) <= 100 * count * n
                of_c = phase(c, s).to_bigints()
                at = phase(found, s).to_bigints()
                rest = [i for i in range(n) if i % count]
                for i in range(count):
                    kept = (at[..., i, :: count or 1] - count * of_c[..., i::count]) % Q.modulus
                    noise = np.concatenate([kept, at[..., i, rest]], axis=-1)
                    assert all(min(int(e), Q.modulus - int(e)) <= 100 * count * n for e in noise.ravel())


@over(CHAINS, FEW)
def test_pack_of_lwe_vectors_keeps_messages(name: str) -> None:
    """Messages are the largest and smallest ones; n times each is at its coefficient."""
    T, limbs, _ = CHAINS[name]
    n, Q, s = T.n, T[:limbs], T.ternary(seed=1)
    keys, secret = keys_of(name, elements(n), s), [int(x) for x in host(s.to_int64())]
    inverse = pow(n, -1, Q.modulus)
    for count in [1 << j for j in range(n.bit_length())]:
        rng = np.random.default_rng(count)
        messages = [int(x) for x in rng.choice([0, 1, -1, Q.modulus // 2, Q.modulus - 1, 12345], count)]
        vectors = []
        for m in messages:
            mask = [int(x) % Q.modulus for x in rng.integers(0, 2**63, n).astype(object) ** 6]
            body = m * inverse - sum(a * b for a, b in zip(mask, secret, strict=True))
            vectors.append([body, *mask])
        found = lattice.pack(vectors, keys)
        assert found.domain == "coef" and found.ring == Q
        wanted = [0] * n
        wanted[:: n // count] = messages
        assert largest(phase(found, s) - Q(wanted)) <= 100 * n * n


@over(CHAINS, ["mixed words"])
def test_embed_keeps_phases(name: str) -> None:
    """Phases of residues and of vectors modulo other q match Python ints, and extract inverts embed."""
    T, limbs, _ = CHAINS[name]
    Q, n = T[:limbs], T.n
    for m in {0, 1, n - 1, n, n + 1, 3 * n}:
        count = max(1, -(-m // n))
        s = draw(Q, (count,), 1)
        flat = [int(x) for x in s.ravel()][:m]
        s.ravel()[m:] = 12345 % Q.modulus  # of no influence
        for q in (None, Q.modulus, 2, 3, 2**31 - 1, 2**32, 2**64 - 59, 2**64):
            if q is not None and q > 2**64:
                continue
            modulus = q or Q.modulus
            rng = np.random.default_rng(m)
            x = [
                [int(v) % modulus for v in rng.integers(0, 2**63, m + 1).astype(object) ** 9]
                for _ in range(2)
            ]
            x[1][0] = modulus - 1
            x[0][-1] = modulus // 2
            found = lattice.embed(x, Q, q=q)
            assert found.shape == (2, 1 + count) and found.ring == Q
            scaled = [
                [v if q is None else (2 * v * Q.modulus + q) // (2 * q) % Q.modulus for v in row] for row in x
            ]
            for c, row in zip(found.to_bigints(), scaled, strict=True):
                total = int(c[0][0]) + sum(product(Q, a, b)[0] for a, b in zip(c[1:], s, strict=True))
                expected = row[0] + sum(a * b for a, b in zip(row[1:], flat, strict=True))
                assert (total - expected) % Q.modulus == 0
            if limbs == 1 and q is None:
                assert lattice.extract(found, 0)[..., : 1 + m].tolist() == x
            negative = [[v - modulus for v in row] for row in x]
            assert lattice.embed(negative, Q, q=q) == found
    words = np.array([[2**64 - 1, 5], [1, 0]], np.uint64)
    assert lattice.embed(there(words), Q, q=2**64) == lattice.embed(words.tolist(), Q, q=2**64)


@settings(max_examples=40)
@given(st.data())
def test_embed_modulo_any_number(data: st.DataObject) -> None:
    n, kind = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(["negacyclic", "cyclic"]))
    R = Ring(n, data.draw(st.sampled_from([17, 2**32, 2**64, 2**64 - 59])), kind=kind)
    q, m = data.draw(st.integers(2, 2**64)), data.draw(st.integers(0, 2 * n))
    x = [data.draw(st.integers(-(2**70), 2**70)) for _ in range(m + 1)]
    found = lattice.embed(x, R, q=q)
    s = draw(R, (max(1, -(-m // n)),), 3)
    scaled = [(2 * (v % q) * R.modulus + q) // (2 * q) for v in x]
    c = found.to_bigints()
    total = int(c[0][0]) + sum(product(R, a, b)[0] for a, b in zip(c[1:], s, strict=True))
    expected = scaled[0] + sum(a * int(b) for a, b in zip(scaled[1:], s.ravel()[:m], strict=True))
    assert (total - expected) % R.modulus == 0


@over(CHAINS, FEW)
def test_ggsw_from_ciphertexts(name: str) -> None:
    T, limbs, size = CHAINS[name]
    Q, s = T[:limbs], T.ternary(seed=1)
    relin = lattice.switch_key(s, s * s, ring=Q, special=T[limbs:], limbs_per_digit=size, seed=3)
    for batch in ((), (2,)):
        c = Q(draw(Q, (*batch, 3, 2), 4))
        for value in (c, c.ntt()):
            found = lattice.rgsw_from_rlwe(value, relin)
            assert found.domain == "eval" and found.shape == (*batch, 2, 3, 2)
            assert found[..., 0, :, :] == c
            switched = lattice.key_switch(c[..., 1], relin)
            assert found[..., 1, :, 0] == switched[..., 0]
            assert found[..., 1, :, 1] == switched[..., 1] + c[..., 0]
            wanted = phase(c, s) * s.restrict(Q)
            assert largest(phase(found[..., 1, :, :], s) - wanted) <= 100 * T.n


@on("cpu", "cuda")
@pytest.mark.parametrize(
    ("verb", "count"), [("pack", 1), ("pack", 16), ("pack", 256), ("trace", 16), ("expand", 16)]
)
def test_noise_matches_theory(device: str, verb: str, count: int) -> None:
    """The standard deviation is within 10 % of docs/math.md, equation 15."""
    n, sigma, items = 256, 3.2, max(10, 600 // count)
    T = Ring(n, pg.ntt_primes(n, bits=30, count=2))
    Q, P = T[:1], T[1:]
    s = T.ternary(seed=1)
    weight = int((host(s.to_int64()) != 0).sum())
    gs = {*elements(n), *((n >> j) + 1 for j in range(8))}
    keys = lattice.rotation_keys(s, sorted(gs), ring=Q, special=P, limbs_per_digit=1, sigma=sigma, seed=2)
    c = Q.random((items, *((count, 2) if verb == "pack" else (2,))), seed=count)
    given = host(phase(c, s).to_int64())
    if verb == "pack":
        found, steps, at = lattice.pack(c, keys), 8, slice(None, None, n // count)
        exact = n * given[..., 0].astype(object)
    elif verb == "trace":
        found, steps, at = lattice.trace(c, keys, count), 4, slice(None, None, n // count)
        exact = (n // count) * given[..., at].astype(object)
    else:
        found, steps, at = lattice.expand(c, keys, count), 4, slice(0, 1)
        exact = count * given[..., :count, None].astype(object)
    noise = host(phase(found, s).to_int64())[..., at].astype(object) - exact
    centred = ((noise + Q.modulus // 2) % Q.modulus - Q.modulus // 2).astype(float)
    of_one = n / 12 * (Q.modulus / P.modulus * sigma) ** 2 + (1 + weight) / 12
    assert 0.9 < float(np.std(centred)) / math.sqrt((4**steps - 1) / 3 * of_one) < 1.1


@on("cpu", "simulated", "cuda")
def test_trivial_results_are_copies(device: str) -> None:
    """Rings without a transform are included."""
    for R in (CHAINS["30 bits"][0][:1], Ring(16, 2**32)):
        for c in (R.random(2, seed=3), *((R.random(2, seed=3).ntt(),) if R.has_eval else ())):
            kept = c.copy()
            for found in (lattice.trace(c, {}, 16), lattice.expand(c, {}, 1)[0]):
                assert found == c and found.domain == c.domain
                found[...] = found + found
                assert c == kept
    R = Ring(1, 17)
    c = R.random((1, 2), seed=1)
    found = lattice.pack(c, {})
    assert found == c[0]
    found[...] = found + 1
    assert c == R.random((1, 2), seed=1)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a missing key": (
        lambda x: lattice.pack(x.c, {3: x.keys[3]}),
        pg.ParameterError,
        r"elements \[5, 9, 17\]",
    ),
    "keys in a list": (lambda x: lattice.pack(x.c, [*x.keys.values()]), pg.ParameterError, "must be a dict"),
    "no keys for vectors": (lambda x: lattice.pack([[1, 2]], {}), pg.ParameterError, "keys is empty"),
    "another key": (lambda x: lattice.pack(x.c, x.keys | {3: x.keys[5]}), pg.ParameterError, "X -> X.3"),
    "a turned key": (lambda x: lattice.pack(x.c, x.keys | {3: x.turned}), pg.ParameterError, "not turned"),
    "no key": (lambda x: lattice.pack(x.c, x.keys | {3: 5}), pg.ParameterError, "must be a SwitchKey"),
    "three ciphertexts": (
        lambda x: lattice.pack(x.c[:3], x.keys),
        pg.ParameterError,
        r"c\.shape\[-2\]=3 must",
    ),
    "too many": (lambda x: lattice.pack(x.R.zeros((32, 2)), x.keys), pg.ParameterError, "from 1 to n=16"),
    "three components": (lambda x: lattice.pack(x.R.zeros((4, 3)), x.keys), pg.ParameterError, "count, 2"),
    "no batch": (lambda x: lattice.pack(x.R.zeros(2), x.keys), pg.ParameterError, "count, 2"),
    "keys of several rings": (
        lambda x: lattice.pack([[1] * 17], x.of_two_rings),
        pg.ParameterError,
        "Use embed",
    ),
    "relin a rotation": (
        lambda x: lattice.rgsw_from_rlwe(x.c, x.keys[3]),
        pg.ParameterError,
        "relin is a rot",
    ),
    "keys of two kinds": (
        lambda x: lattice.pack(x.c, x.keys | {5: x.other}),
        pg.ParameterError,
        "equal special and limbs_per_digit",
    ),
    "long vectors": (lambda x: lattice.pack([[1] * 18], x.keys), pg.ParameterError, "at most n"),
    "floats": (lambda x: lattice.pack([[1.5]], x.keys), pg.errors.CoefficientError, "1.5 of c"),
    "a cyclic ring": (
        lambda x: lattice.pack(Ring(4, 17, kind="cyclic").zeros((2, 2)), x.keys),
        pg.ParameterError,
        "power of two",
    ),
    "trace of 3": (lambda x: lattice.trace(x.c[0], x.keys, 3), pg.ParameterError, "count=3"),
    "trace of 0": (lambda x: lattice.trace(x.c[0], x.keys, 0), pg.ParameterError, "count=0"),
    "trace of a value": (lambda x: lattice.trace(x.R.zeros(), x.keys, 4), pg.ParameterError, "length 2"),
    "expand by 1.5": (lambda x: lattice.expand(x.c[0], x.keys, 1.5), pg.errors.NotAnInteger, "count"),
    "expand too far": (lambda x: lattice.expand(x.c[0], x.keys, 32), pg.ParameterError, "n=16"),
    "expand without keys": (lambda x: lattice.expand(x.c[0], {}, 4), pg.ParameterError, r"\[17, 9\]"),
    "no vectors": (lambda x: lattice.embed(5, x.R), pg.ParameterError, "last axis"),
    "empty vectors": (lambda x: lattice.embed([[], []], x.R), pg.ParameterError, "last axis"),
    "q of 1": (lambda x: lattice.embed([1], x.R, q=1), pg.ParameterError, "q=1 "),
    "q too large": (
        lambda x: lattice.embed([1], x.R, q=2**64 + 1),
        pg.ParameterError,
        "q=18446744073709551617",
    ),
    "a wide ring": (lambda x: lattice.embed([1], Ring(4, 2**100)), pg.ParameterError, "above 2"),
    "no ring": (lambda x: lattice.embed([1], 17), pg.ParameterError, "ring must be a Ring, not int"),
    "rows of a value": (lambda x: lattice.rgsw_from_rlwe(x.c[0], x.relin), pg.ParameterError, "levels, 2"),
    "relin a Poly": (lambda x: lattice.rgsw_from_rlwe(x.c, x.c), pg.ParameterError, "SwitchKey"),
}


class Given:
    def __init__(self) -> None:
        T, _, _ = CHAINS["30 bits"]
        s = T.ternary(seed=1)
        self.R = T[:1]
        self.c = self.R.random((4, 2), seed=1)
        self.keys = keys_of("30 bits", [3, 5, 9, 17], s)
        of = {"ring": self.R, "special": T[1:], "limbs_per_digit": 1}
        U = chain(16, (30,) * 4)
        self.of_two_rings = self.keys | keys_of("two limbs", [3], U.ternary(seed=1))
        self.other = lattice.rotation_keys(
            U.ternary(seed=1), [5], ring=U[:1], special=U[2:], limbs_per_digit=1
        )[5]
        self.relin = lattice.switch_key(s, s * s, **of)
        self.turned = lattice.rotation_keys(s, [3], turned=True, **of)[3]


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_arguments_raise(name: str) -> None:
    call, error, text = REFUSED[name]
    given = Given()
    with pytest.raises(error, match=text):
        call(given)
