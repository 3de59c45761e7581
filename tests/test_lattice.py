"""Key switching on every device: against Python ints, against the operations it combines, and decrypted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from devices import CARDS, Work, backend, on, over, same
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import as_key, as_keys, centred, chain, draw, drawn, product

import polygpu as pg
from polygpu import Poly, Ring, lattice
from polygpu._backends.base import Backend
from polygpu._backends.cuda import CudaBackend
from polygpu._backends.cuda import lattice as cuda_lattice
from polygpu.errors import CoefficientError, DomainError, ParameterError, RingMismatch
from polygpu.testing import chains

# The last two limbs are special, the others Q's.
CHAINS = {
    "30 bits": chain(16, (30,) * 6),
    "50 bits": chain(16, (50,) * 7),
    "46 to 60 bits": chain(16, (60, 46, 50, 58, 60, 60)),
    "small words among large ones": chain(32, (30, 28, 30, 60, 50)),
    "64, 63 and 40 bits": chain(16, (64, 63, 40, 64, 64)),
    "cyclic": chain(16, (50, 30, 60, 50), "cyclic"),
    "one limb": chain(8, (40, 40, 41)),
}
every_chain = over(CHAINS, ["30 bits", "46 to 60 bits", "small words among large ones"])


def parts(T: Ring) -> tuple[Ring, Ring]:
    return T[:-2], T[-2:]


def on_card(x: Poly) -> Poly:
    return x.to(pg._backends.current_device())


# ---- definitions, in Python ints ----


def switched(R: Ring, a: list[int], key: np.ndarray, special: Ring, size: int) -> list[list[int]]:
    """Both components of the key switch of one polynomial a of R; key: ints (digits, 2, n)."""
    T, P = R.join(special), special.modulus  # the key is right modulo each of its limbs, so modulo T
    sums = [[0] * R.n for _ in range(2)]
    for j in range(0, len(R.moduli), size):
        digit = [centred(x, math.prod(R.moduli[j : j + size])) for x in a]
        for c in range(2):
            sums[c] = [s + t for s, t in zip(sums[c], product(T, digit, key[j // size, c]), strict=True)]
    return [[(2 * (x % T.modulus) + P) // (2 * P) % R.modulus for x in row] for row in sums]


def switched_batch(R: Ring, a: np.ndarray, key: np.ndarray, special: Ring, size: int) -> np.ndarray:
    rows = [switched(R, x.tolist(), key, special, size) for x in a.reshape(-1, R.n)]
    return np.array(rows, dtype=object).reshape(*a.shape[:-1], 2, R.n)


def same_values(found: Poly, expected: np.ndarray, domain: str) -> None:
    assert found.domain == domain and found.data.flags.c_contiguous
    assert type(found.data) is backend().xp.ndarray
    np.testing.assert_array_equal(found.to_bigints(), expected)


# ---- key_switch ----


@every_chain
def test_key_switch_matches_python_ints(name: str) -> None:
    K = CHAINS[name]
    Q, special = parts(K)
    for size in range(1, len(Q.moduli) + 1):
        digits = -(-len(Q.moduli) // size)
        integers = draw(K, (digits, 2), size)
        key = K(integers).ntt()
        for limbs in {len(Q.moduli), max(1, len(Q.moduli) - 1), 1}:
            R = Q[:limbs]
            x = draw(R, (2,), limbs)
            a = R(x)
            expected = switched_batch(R, x, integers, special, size)
            for value in (a, a.ntt()):
                found = lattice.key_switch(value, as_key(key, size, special))
                same_values(found, expected, value.domain)
                out = R.zeros((2, 2))
                assert lattice.key_switch(value, as_key(key, size, special), out=out) is out
                same_values(out, expected, value.domain)
            assert np.array_equal(a.to_bigints(), x)


@every_chain
def test_key_switch_with_add(name: str) -> None:
    K = CHAINS[name]
    Q, special = parts(K)
    key = drawn(K, (-(-Q.rows // 2), 2), 1).to(pg._backends.current_device()).ntt()
    for R in {Q.rows: Q, 1: Q[:1]}.values():
        a, more = (drawn(R, batch, 2).to(pg._backends.current_device()) for batch in ((3,), (3, 2)))
        for x, add in ((a, more), (a.ntt(), more.ntt())):
            expected = lattice.key_switch(x, as_key(key, 2, special)) + add
            assert lattice.key_switch(x, as_key(key, 2, special), add=add) == expected
            out = add.copy()
            assert lattice.key_switch(x, as_key(key, 2, special), add=out, out=out) is out
            assert out == expected and out.domain == x.domain


@every_chain
def test_key_switch_with_rescale(name: str) -> None:
    """The sums and `add` are divided by P and the last limbs with one rounding, as in Python ints."""
    K = CHAINS[name]
    Q, special = parts(K)
    key = drawn(K, (-(-Q.rows // 2), 2), 1).to(pg._backends.current_device()).ntt()
    pairs = [(Q.rows, 1), (Q.rows, Q.rows - 1), (Q.rows - 1, 1)]
    if pg._backends.current_device() != "cpu":  # each pair has kernels of its own
        del pairs[1:]
    for limbs, count in pairs:
        if not 0 < count < limbs:
            continue
        R = Q[:limbs]
        a, more = (drawn(R, batch, 2).to(pg._backends.current_device()) for batch in ((2,), (2, 2)))
        T, S = R.join(special), R[:-count]
        some = key[: -(-R.rows // 2)].restrict(T)
        sums = pg.einsum("bd,dc->bc", a.digits(T, limbs_per_digit=2).ntt(), some).intt().to_bigints()
        total = (sums + special.modulus * more.to_bigints()) % T.modulus
        D = T.modulus // S.modulus
        for x, add in ((a, more), (a.ntt(), more.ntt())):
            found = lattice.key_switch(x, as_key(key, 2, special), add=add, rescale=count)
            assert found.ring == S and found.domain == x.domain
            assert (found.to_bigints() == (2 * total + D) // (2 * D) % S.modulus).all()
            out = S.zeros((2, 2)).to(found.device)
            again = lattice.key_switch(x, as_key(key, 2, special), add=add, rescale=count, out=out)
            assert again is out and out == found
    for count, error in ((Q.rows, ParameterError), (-1, ParameterError), (0.5, pg.errors.NotAnInteger)):
        with pytest.raises(error, match="rescale"):
            lattice.key_switch(drawn(Q), as_key(key.cpu(), 2, special), rescale=count)  # type: ignore[arg-type]


def test_key_switch_raises_for_an_invalid_add() -> None:
    K = CHAINS["50 bits"]
    Q, special = parts(K)
    key, x = drawn(K, (5, 2)).ntt(), drawn(Q).ntt()
    for add, error, text in (
        (Q.zeros((2,)), DomainError, "add is in the domain 'coef', and the result is in 'eval'"),
        (Q.zeros((3,)).ntt(), ParameterError, r"batch shape of add is \(3,\)\. It must be \(2,\)"),
        (Q[:1].zeros((2,)).ntt(), RingMismatch, "must have all limbs"),
        (7, TypeError, "add"),
    ):
        with pytest.raises(error, match=text):
            lattice.key_switch(x, as_key(key, 1, special), add=add)  # type: ignore[arg-type]


@on("cpu", *CARDS)
@pytest.mark.parametrize("conversion", ["exact", "fast"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2), (0,)])
def test_key_switch_equals_digits_dot_and_mod_down(
    device: str, conversion: Any, batch: tuple[int, ...]
) -> None:
    K = chain(64, (50, 50, 50, 50, 50, 51, 51))
    Q, special = parts(K)
    a, key = (drawn(R, b, 5).to(pg._backends.current_device()) for R, b in ((Q, batch), (K, (3, 2))))
    key = key.ntt()
    for R in (Q, Q[:4], Q[:2]):
        x = a.restrict(R)
        T = R.join(special)
        count = -(-len(R.moduli) // 2)
        for value in (x, x.ntt()):
            digits = value.digits(T, limbs_per_digit=2, conversion=conversion).ntt()
            total = pg.einsum("...j,jc->...c", digits, key.restrict(T)[:count])
            expected = total.mod_down(R, conversion=conversion)
            found = lattice.key_switch(value, as_key(key, 2, special), conversion=conversion)
            assert found == expected and found.domain == value.domain


# Polynomials that a GPU evaluates in two passes of listed rows: degree, bits of the primes of Q and of the
# special ones, limbs of a digit.
LONG = {
    "30 bits": (1 << 10, (30,) * 5, (30,) * 2, 2),
    "31 bits": (1 << 11, (31,) * 3, (31,), 1),
    "32 bits": (1 << 10, (32,) * 3, (32,) * 2, 2),
    "12 limbs a digit": (1 << 10, (30,) * 13, (30,) * 12, 12),
    "50 bits": (1 << 12, (50,) * 5, (50,) * 2, 2),
    "50 bits, 8 limbs a digit": (1 << 10, (50,) * 17, (50,) * 8, 8),
    "60 bits": (1 << 11, (60, 58, 60), (60, 60), 2),
    "62 bits": (1 << 10, (62,) * 3, (62,), 1),
    "64 bits": (1 << 10, (64,) * 3, (64,) * 2, 2),
    "40 and 55 bits": (1 << 10, (40, 55, 40), (55, 55), 2),
    # All digits have two limbs, but the limbs of one digit have other words than those of the next.
    "61 bits, then 55": (1 << 10, (61, 61, 55, 55), (55,), 2),
    "2^13": (1 << 13, (50,) * 3, (50,), 1),
    "2^14": (1 << 14, (50,) * 12, (50,) * 4, 4),
    "2^15": (1 << 15, (30,) * 9, (30,) * 3, 3),
    "2^16": (1 << 16, (50,) * 24, (50,) * 6, 6),
    "2^16, 30 bits": (1 << 16, (30,) * 48, (30,) * 12, 12),
    "2^16, 60 bits": (1 << 16, (60,) * 5, (60,) * 2, 2),
    "2^17": (1 << 17, (50,) * 3, (51,) * 2, 2),
}
SHORTER = [name for name in LONG if "^" not in name]


@over(LONG, SHORTER, CARDS)
def test_key_switch_of_long_polynomials(name: str) -> None:
    n, bits, more, size = LONG[name]
    T = chain(n, (*bits, *more))
    Q, special = T[: len(bits)], T[len(bits) :]
    digits = -(-Q.rows // size)
    with pg.device("cpu"):
        key = drawn(T, (digits, 2), 1).ntt()
        x = drawn(Q, (2,), 2)
    for R in (Q, Q[:-1]):
        value = (x if n < 1 << 13 else x[0]).restrict(R)
        for a in (value, value.ntt()):
            expected = lattice.key_switch(a, as_key(key, size, special))
            found = lattice.key_switch(on_card(a), as_key(on_card(key), size, special))
            same(found, expected)
            found = lattice.key_switch(on_card(a), as_key(on_card(key), size, special), add=found)
            same(found, expected + expected)
    pair = x.ntt()
    gs = [5, 2 * n - 1]
    expected = lattice.rotate_many(pair, as_keys(gs, [key] * 2, size, special))
    same(lattice.rotate_many(on_card(pair), as_keys(gs, [on_card(key)] * 2, size, special)), expected)


@on(*CARDS)
def test_key_switch_of_more_rows_than_a_grid(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_lattice, "MAX_GRID_Y", 7)  # of 8 rows
    n, bits, more, size = LONG["31 bits"]
    T = chain(n, (*bits, *more))
    Q, special = T[: len(bits)], T[len(bits) :]
    with pg.device("cpu"):
        key, x = drawn(T, (3, 2), 1).ntt(), drawn(Q, (), 2).ntt()
    found = lattice.key_switch(on_card(x), as_key(on_card(key), size, special), add=on_card(pg.stack([x, x])))
    same(found, lattice.key_switch(x, as_key(key, size, special), add=pg.stack([x, x])))


def test_key_switch_of_32_bit_limbs_with_a_64_bit_key() -> None:
    """The limbs of the value and P fit 32 bits; other limbs of the key do not."""
    K = chain(16, (30, 30, 60, 30, 30))
    Q, special = parts(K)
    R = Q[:2]
    assert R.join(special).dtype != K.dtype
    x, integers = draw(R, (2,)), draw(K, (3, 2))
    found = lattice.key_switch(R(x).ntt(), as_key(K(integers).ntt(), 1, special))
    same_values(found, switched_batch(R, x, integers, special, 1), "eval")


@settings(max_examples=40)
@given(chains(max_degree=8, max_limbs=5, transform=True), st.data())
def test_key_switch_in_any_chain(rings: tuple[Ring, Ring], data: st.DataObject) -> None:
    Q, special = rings
    K = Q.join(special)
    size = data.draw(st.integers(1, len(Q.moduli)))
    R = Q[: data.draw(st.integers(1, len(Q.moduli)))]
    x, integers = draw(R, (), 1), draw(K, (-(-len(Q.moduli) // size), 2), 2)
    value = R(x).ntt() if data.draw(st.booleans()) else R(x)
    found = lattice.key_switch(value, as_key(K(integers).ntt(), size, special))
    same_values(found, switched_batch(R, x, integers, special, size), value.domain)


# ---- rotations ----


@on("cpu", *CARDS)
@pytest.mark.parametrize("batch", [(), (3,), (0,)])
@pytest.mark.parametrize("together", [1, 2, 100])
def test_hoisted_rotations_equal_single_rotations(
    device: str, batch: tuple[int, ...], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results do not depend on how many sums are divided together."""
    K = CHAINS["50 bits"]
    Q, special = parts(K)
    gs = [5, 25, 2 * K.n - 1, 1, -5]
    keys = drawn(K, (len(gs), 3, 2), 1).to(pg._backends.current_device()).ntt()
    c = drawn(Q, (*batch, 2), 2).to(pg._backends.current_device())
    one = 2 * math.prod(batch) * K.rows * K.n * K.dtype.itemsize
    for kind in (Backend, CudaBackend):
        monkeypatch.setattr(kind, "divided_bytes", together * one)
    for value in (c, c.ntt(), c.restrict(Q[:3]).ntt()):
        found = lattice.rotate_many(value, as_keys(gs, keys, 2, special))
        assert found.shape == (len(gs), *batch, 2) and found.domain == value.domain
        for g, key, rotated in zip(gs, keys, found, strict=True):
            first, second = value[..., 0].automorphism(g), value[..., 1].automorphism(g)
            expected = lattice.key_switch(second, as_key(key, 2, special))
            assert rotated[..., 1] == expected[..., 1]
            assert rotated[..., 0] == expected[..., 0] + first
        alone = lattice.rotate_many(value, as_keys(gs[1:2], [keys[1]], 2, special))
        assert alone.shape == (1, *batch, 2) and alone.domain == value.domain and alone[0] == found[1]


@on(*CARDS)
def test_rotations_by_other_elements_copy_no_tables(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """New Galois elements copy at most one number each, and known ones nothing."""
    work = Work(monkeypatch)
    K = Ring(CHAINS["50 bits"].n, CHAINS["50 bits"].moduli)
    Q, special = parts(K)
    keys = drawn(K, (3, 3, 2), 1).to(pg._backends.current_device()).ntt()
    c = drawn(Q, (2, 2), 2).to(pg._backends.current_device()).ntt()
    lattice.rotate_many(c, as_keys([5, 25, -1], keys, 2, special))
    gs = [3, 7, 2 * K.n - 3]
    kernels, prepared, copies = work.of(lambda: lattice.rotate_many(c, as_keys(gs, keys, 2, special)))
    assert kernels.count("rotated_sums") == 1 and prepared == 0 and copies <= 1
    assert work.of(lambda: lattice.rotate_many(c, as_keys(gs, keys, 2, special))) == (kernels, 0, 0)
    found = lattice.rotate_many(c, as_keys(gs, keys, 2, special))
    with pg.device("cpu"):
        same(found, lattice.rotate_many(c.cpu(), as_keys(gs, keys.cpu(), 2, special)))


# ---- under encryption ----


def encrypted_key(T: Ring, Q: Ring, size: int, s: Poly, t: Poly, seed: int) -> Poly:
    """A key that switches from t to s."""
    P = T.modulus // Q.modulus
    hidden = pg.stack([t.scale_by(g * P) for g in pg.rns.gadget(Q, limbs_per_digit=size)])
    mask = T.random(hidden.shape, seed=seed).ntt()
    noise = T.binomial(4, batch=hidden.shape, seed=seed + 1).ntt()
    return pg.stack([noise - mask * s + hidden, mask], axis=1)


@on("cpu", "simulated", "cuda")
def test_noise_after_a_key_switch_matches_theory(device: str) -> None:
    """Noise is (sum of digit_j e_j) / P plus the rounding of each component."""
    n, size = 64, 2
    K = chain(n, (40,) * 5 + (41, 41))
    Q, special = parts(K)
    s, t = K.ternary(seed=1).ntt(), K.ternary(seed=2).ntt()
    key = encrypted_key(K, Q, size, s, t, 3)
    for R in (Q, Q[:3]):
        a = R.random(seed=4).ntt()
        d = lattice.key_switch(a, as_key(key, size, special))
        noise = d[0] + d[1] * s.restrict(R) - a * t.restrict(R)
        # |e| <= 4, 3 digits of at most half a group of 80 bits over P of 82, and 1/2 (1 + |s|_1) of roundings
        assert noise.norm(math.inf) <= 3 * n * 4 * 2**80 / 2 / special.modulus + (1 + n) / 2
        assert noise.norm(math.inf) > 0


# ---- add_constant ----

CONSTANT_RINGS = {
    "one limb": chain(8, (30,)),
    "RNS": chain(8, (50, 30, 60)),
    "cyclic": chain(8, (50, 30), "cyclic"),
    "degree 1": Ring(1, [17, 97]),
    "incomplete": Ring(16, [97, 17, 193]),
    "one leaf": Ring(8, 7),
    "composite": Ring(6, [2**20, 3**7, 11]),
    "2^64": Ring(5, 2**64, kind="cyclic"),
    "2^100": Ring(4, 2**100),
    "100 bits": Ring(8, pg.ntt_primes(8, bits=100)),
}


@over(CONSTANT_RINGS, ["RNS", "incomplete", "composite"])
@pytest.mark.parametrize("batch", [(1,), (2,), (3, 2), (2, 3, 3), (0, 2), (2, 0, 2)])
def test_add_constant_changes_the_first_component(name: str, batch: tuple[int, ...]) -> None:
    R = CONSTANT_RINGS[name]
    values, q = draw(R, batch, 3), R.modulus
    values[..., 0, 0] = q - 1
    one_each = np.array([3**i for i in range(math.prod(batch[:-1]))], object).reshape(batch[:-1])
    numbers: list[Any] = [0, 1, -1, q - 1, -q, 2**200 + 5, np.int8(-3), np.uint64(2**64 - 1), one_each]
    numbers += [one_each % 100 - 50, one_each.tolist(), np.array(one_each % 1000, np.int16)]
    if len(batch) == 3:
        numbers += [[1, 2**70, -3], [[4], [-5]], np.array([[7]], ">i4"), (1, 2, 3)]
    numbers = [x for x in numbers if np.shape(x) == () or 0 not in batch or isinstance(x, np.ndarray)]
    for x in numbers:
        expected, ints = values.copy(), np.array(x.tolist() if hasattr(x, "tolist") else x, object)
        expected[..., 0, 0] = (expected[..., 0, 0] + ints) % q
        for domain in ("coef", "eval") if R.has_eval else ("coef",):
            c = R(values) if domain == "coef" else R(values).ntt()
            kept = c.copy()
            same_values(lattice.add_constant(c, x), expected, domain)
            assert c == kept and c.domain == domain


@on("cpu", *CARDS)
def test_add_constant_of_arrays_on_the_device(device: str) -> None:
    R = CHAINS["50 bits"]
    values = draw(R, (3, 2), 4)
    for dtype in (np.int32, np.uint64, np.int64):
        x = backend().from_host(np.array([1, 2, 99], dtype))
        expected = values.copy()
        expected[:, 0, 0] = (expected[:, 0, 0] + np.array([1, 2, 99], object)) % R.modulus
        same_values(lattice.add_constant(R(values), x), expected, "coef")
        same_values(lattice.add_constant(R(values).ntt(), x[::1]), expected, "eval")
    if device != "cpu":
        with pytest.raises(
            pg.DeviceError, match=r"x is on cuda:.* and the Poly to combine it with is on cpu"
        ):
            lattice.add_constant(R(values).cpu(), x)
        with pytest.raises(pg.DeviceError, match=r"ints is on cuda:.* and the Poly to combine it with"):
            R(values).cpu()[:, 0].scale_by(x)


def test_add_constant_changes_the_message() -> None:
    R = CHAINS["50 bits"]
    s, mask = R.ternary(seed=1), R.random(3, seed=2)
    message = R([[1], [2], [3]])
    c = pg.stack([message - mask * s, mask], axis=-1)
    assert c.shape == (3, 2)
    for made in (lattice.add_constant(c, [10, 20, -30]), lattice.add_constant(c.ntt(), [10, 20, -30])):
        assert made[:, 0] + made[:, 1] * s == R([[11], [22], [-27]])


CIPHERTEXT = Ring(4, [17, 97]).ones((3, 2))
NO_CONSTANTS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a ciphertext that is an array": (np.ones((2, 4)), 1, RingMismatch, "c must be a Poly, not ndarray"),
    "a ciphertext that is an int": (3, 1, RingMismatch, "c must be a Poly, not int"),
    "a plain value": (CIPHERTEXT[0, 0], 1, ParameterError, r"batch shape of c is \(\).*use c \+ x"),
    "no components": (CIPHERTEXT[:, :0], 1, ParameterError, r"batch shape of c is \(3, 0\).*at least one"),
    "a float": (CIPHERTEXT, 1.5, CoefficientError, r"x=1.5 is of type float.*Use round\(x\)"),
    "floats": (
        CIPHERTEXT,
        [1, 2.5, 3],
        CoefficientError,
        r"entry 2.5 of x .*Use \[round\(v\) for v in x\]\.$",
    ),
    "an array of floats": (
        CIPHERTEXT,
        np.ones(3),
        CoefficientError,
        r"x has dtype float64.*Round x to integers\.$",
    ),
    "NaN": (CIPHERTEXT, math.nan, CoefficientError, "x=nan .*no nearest integer"),
    "complex": (CIPHERTEXT, 1j, CoefficientError, r"x=1j .*round\(x.real\)"),
    "a bool": (CIPHERTEXT, True, CoefficientError, r"x=True .*int\(x\)"),
    "bools": (CIPHERTEXT, np.array([True] * 3), CoefficientError, "x has dtype bool.*astype"),
    "None": (CIPHERTEXT, None, CoefficientError, "x=None .*such as 0"),
    "a text": (CIPHERTEXT, "12", CoefficientError, r"x='12' .*int\(x\)"),
    "bytes": (CIPHERTEXT, b"12", CoefficientError, "x=b'12' .*from_bytes"),
    "a Poly": (CIPHERTEXT, CIPHERTEXT[0, 0], CoefficientError, "x must hold integers, not a Poly"),
    "a masked array": (
        CIPHERTEXT,
        np.ma.masked_array([1, 2, 3], [0, 1, 0]),
        CoefficientError,
        "x is a masked",
    ),
    "ragged lists": (CIPHERTEXT, [[1], [2, 3]], CoefficientError, "x is a ragged nested list"),
    "too few": (
        CIPHERTEXT,
        [1, 2],
        ParameterError,
        r"x has shape \(2,\), which does not broadcast to .* \(3,\)",
    ),
    "an axis too many": (
        CIPHERTEXT,
        [[1, 2, 3]] * 2,
        ParameterError,
        r"x has shape \(2, 3\), which does not",
    ),
    "none": (CIPHERTEXT, [], ParameterError, r"x has shape \(0,\), which does not broadcast"),
    "one for a single ciphertext": (CIPHERTEXT[0], [1], ParameterError, r"x has shape \(1,\).* shape \(\)"),
}


@pytest.mark.parametrize(("c", "x", "error", "text"), NO_CONSTANTS.values(), ids=list(NO_CONSTANTS))
def test_add_constant_raises_for_invalid_constants(c: Any, x: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        lattice.add_constant(c, x)


# ---- what is refused ----


def test_invalid_arguments_raise() -> None:
    K = chain(16, (40,) * 5)
    Q, special = parts(K)
    a, key = Q.random(seed=1).ntt(), K.random((2, 2), seed=2).ntt()
    good: dict[str, Any] = {"a": a, "key": as_key(key, 2, special)}
    assert lattice.key_switch(**good).shape == (2,)
    made: dict[str, Any] = {"value": key, "ring": Q, "special": special, "limbs_per_digit": 2}
    assert lattice.SwitchKey(**made) == good["key"]
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"a": 3}, pg.RingMismatch, "a must be a Poly, not int"),
        ({"key": None}, pg.ParameterError, "key must be a SwitchKey, not NoneType"),
        ({"key": key}, pg.ParameterError, "key must be a SwitchKey, not Poly"),
        ({"value": None}, pg.RingMismatch, "value must be a Poly, not NoneType"),
        ({"value": key.intt()}, pg.errors.DomainError, "value is in coefficients"),
        ({"value": key[:1]}, pg.ParameterError, r"batch shape \(1, 2\) and must have \(2, 2\)"),
        ({"value": key[0]}, pg.ParameterError, r"batch shape \(2,\)"),
        ({"value": K[:4].random((2, 2)).ntt()}, pg.RingMismatch, "has no limb modulo"),
        ({"limbs_per_digit": 0}, pg.ParameterError, "limbs_per_digit=0 must be at least 1"),
        ({"limbs_per_digit": 2.0}, pg.errors.NotAnInteger, "limbs_per_digit"),
        ({"special": Q}, pg.ParameterError, "special has the modulus .*Use special moduli that are coprime"),
        ({"limbs_per_digit": np.uint64(0)}, pg.ParameterError, "limbs_per_digit=0"),
        ({"ring": 5}, pg.ParameterError, "ring must be a Ring, not int"),
        ({"ring": Q[1:]}, pg.RingMismatch, "Limb 0 of ring is .*Drop limbs from the end"),
        ({"ring": Q[[0, 2]]}, pg.RingMismatch, "Limb 1 of ring is .*Drop limbs from the end"),
        ({"galois_element": 4}, pg.ParameterError, "4 has a common factor"),
        ({"galois_element": 5.0}, pg.errors.NotAnInteger, "galois_element"),
        ({"turned": True}, pg.ParameterError, "turned=True needs a galois_element"),
        ({"turned": 1, "galois_element": 5}, pg.ParameterError, "turned=1 must"),
        ({"special": 5}, pg.ParameterError, "special must be a Ring, not int"),
        ({"special": Ring(8, 17)}, pg.RingMismatch, "special"),
        ({"conversion": "quick"}, pg.ParameterError, "conversion"),
        ({"out": Q.zeros(3)}, pg.errors.OutputError, "out has batch shape"),
        ({"value": K.zeros((2, 2)).ntt(), "special": Q[:1].join(special)}, pg.ParameterError, "coprime"),
        ({"a": Q[1:].random().ntt()}, pg.RingMismatch, "Limb 0 of ring is .*Drop limbs from the end"),
        ({"a": Ring(16, 2**100).random()}, pg.ParameterError, "above 2"),
    ]
    for change, error, text in wrong:
        with pytest.raises(error, match=text):
            if change.keys() & {*made, "galois_element", "turned"}:
                lattice.SwitchKey(**(made | change))
            else:
                lattice.key_switch(**(good | change))
    incomplete = Ring(16, [97, 17, 193]), Ring(16, [257, 353])
    with pytest.raises(pg.NotNTTFriendly, match="needs a complete transform"):
        as_key(incomplete[0].join(incomplete[1]).random((3, 2)), 1, incomplete[1])
    c = Q.random(2, seed=3).ntt()
    turn, other = as_key(key, 2, special, 5), as_key(K.random((3, 2)).ntt(), 1, special, 7)
    for operand, keys, error, text in [
        (c, None, pg.ParameterError, "keys must be a sequence .*, not NoneType"),
        (c, {5: turn}, pg.ParameterError, r"keys must .* not dict.*keys.values\(\)"),
        (c, [3], pg.ParameterError, r"keys\[0\] must be a SwitchKey, not int"),
        (c, [turn, good["key"]], pg.ParameterError, r"keys\[1\]\.galois_element is None"),
        (c, [turn, other], pg.ParameterError, r"keys\[1\]\.limbs_per_digit differs"),
        (a, [turn], pg.ParameterError, "components of a ciphertext"),
        (Q[1:].random(2), [turn], pg.RingMismatch, "Limb 0 of ring is"),
    ]:
        with pytest.raises(error, match=text):
            lattice.rotate_many(operand, keys)  # type: ignore[arg-type]
    for value in (c, c.intt(), Q.zeros((3, 2))):
        none = lattice.rotate_many(value, [])
        assert none.shape == (0, *value.shape) and none.domain == value.domain and none.ring is Q


@on("reference", "cpu", *CARDS)
def test_numpy_sizes_empty_batches_and_overlapping_out(device: str) -> None:
    """Sizes may be NumPy integers, batches empty; `out` may not overlap the key."""
    K = chain(16, (40,) * 5)
    Q, special = parts(K)
    key = K.random((2, 2), seed=2).ntt()
    a = Q.random(3, seed=1).ntt()
    expected = lattice.key_switch(a, as_key(key, 2, special))
    for size in (np.uint64(2), np.int8(2)):
        assert lattice.key_switch(a, as_key(key, size, special)) == expected  # type: ignore[arg-type]
    for empty in (a[:0], a.intt()[:0]):
        assert lattice.key_switch(empty, as_key(key, 2, special)).shape == (0, 2)
    same = K.zeros((2, 2)).ntt()
    within = Q.from_residues(
        same.data.reshape(-1)[: 2 * Q.rows * Q.n].reshape(2, Q.rows, Q.n), domain="eval", copy=False
    )
    with pytest.raises(pg.errors.OutputError, match="shares memory with an operand"):
        lattice.key_switch(a[0], as_key(same, 2, special), out=within)


# ---- limbs of two words ----


def verbs_of(T: Ring) -> list[tuple[Any, ...]]:
    """Verbs of rings whose last two limbs are special, and operands for them, in host memory."""
    Q, P = parts(T)
    with pg.device("cpu"):
        a, b, key = drawn(Q, (2,), 1), drawn(Q, (), 2), drawn(T, (2, 2), 4).ntt()
        d = a.ntt()
    return [
        (Poly.ntt, a),
        (Poly.intt, d),
        (Poly.mul, a, b),
        (Poly.rescale, a),
        (Poly.rescale, d),
        (lambda x: x.mod_up(T), d),
        (lambda x: x.digits(T, limbs_per_digit=3), d),
        (lambda x, k: lattice.key_switch(x, as_key(k, 3, P)), d, key),
        (lambda x, k: lattice.key_switch(x, as_key(k, 3, P)), a, key),
        (lambda x, k: lattice.key_switch(x, as_key(k, 3, P), rescale=1), d, key),
        (lambda x, k: lattice.rotate_many(x, as_keys([5, 3], [k, k], 3, P)), d, key),
    ]


@on(*CARDS)
@pytest.mark.parametrize("n", [64, 1024])
def test_key_switch_of_limbs_of_two_words_in_any_order(device: str, n: int) -> None:
    """Alternating primes around 2^50 take no more launches than separated ones."""
    mixed, more = (
        pg.ntt_primes(n, bits=50, count=8, near=True),
        pg.ntt_primes(n, bits=50, count=16, near=True),
    )
    below, above = ([q for q in more if (q < 2**50) == side] for side in (True, False))
    launches: list[list[int]] = []
    for moduli in (mixed, sorted(mixed), below, above):
        counts = []
        for verb, *operands in verbs_of(Ring(n, moduli)):
            moved = list(map(on_card, operands))
            same(verb(*moved), verb(*operands))
            counts.append(pg.capture(verb, *moved).launches)
        launches.append(counts)
    for one, other, *apart in zip(*launches, strict=True):
        assert max(one, other) <= sum(apart), launches
