"""Key switching without division, hoisting and linear transforms, against Python ints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from devices import CARDS, on
from oracle import chain, draw

import polygpu as pg
from polygpu import Poly, Ring, lattice
from polygpu._backends.base import Backend
from polygpu._backends.cpu import CpuBackend
from polygpu._core.plans.cache import forget
from polygpu.lattice import LinearTransform, SwitchKey, hoist, rotation_keys, switch_key

Ints = np.ndarray[Any, np.dtype[Any]]  # of Python ints, coefficients along the last axis

N = 8
T = chain(N, (40,) * 5 + (41, 41))
P = T[5:]
S = T.ternary(seed=1)


# ---- the definitions, in Python ints ----


def ints(a: Poly) -> Ints:
    return a.cpu().to_bigints(centered=True)


def product(a: Ints, b: Ints) -> Ints:
    """a b modulo X^n + 1."""
    n = a.shape[-1]
    total: Any = 0
    for i in range(n):
        turned = np.concatenate([-b[..., n - i :], b[..., : n - i]], axis=-1)
        total = total + a[..., i, None] * turned
    return np.asarray(total, object)


def moved(a: Ints, g: int) -> Ints:
    """a(X^g)."""
    n, out = a.shape[-1], np.empty_like(a)
    for j in range(n):
        at = j * g % (2 * n)
        out[..., at % n] = -a[..., j] if at >= n else a[..., j]
    return out


def centred(a: Ints, q: int) -> Ints:
    return (a + q // 2) % q - q // 2


def rounded(a: Ints, q: int, d: int) -> Ints:
    """The centred value modulo q, divided by d and rounded to the nearest."""
    return (2 * centred(a, q) + d) // (2 * d)


def digits(a: Ints, ring: Ring, size: int) -> list[Ints]:
    parts = [ring.moduli[i : i + size] for i in range(0, ring.rows, size)]
    return [centred(a, math.prod(part)) for part in parts]


def sums(a: Ints, key: SwitchKey, ring: Ring) -> Ints:
    """The sum of digit_j key_j, (*batch, 2, n), not reduced."""
    whole = ring.join(key.special)
    entries = ints(key.value.restrict(whole))
    made = digits(a, ring, key.limbs_per_digit)
    terms = [[product(digit, half) for half in entry] for digit, entry in zip(made, entries, strict=False)]
    return np.stack([sum(term[c] for term in terms) for c in (0, 1)], axis=-2)


def body(a: Ints) -> Ints:
    """(a, 0)."""
    return np.stack([a, np.zeros_like(a)], axis=-2)


def rotation(c: Ints, key: SwitchKey, ring: Ring) -> Ints:
    """The rotated ciphertext, P times as large."""
    g, factor = key.galois_element, key.special.modulus
    assert g is not None
    if key.turned:
        return moved(factor * body(c[..., 0, :]) + sums(c[..., 1, :], key, ring), g)
    return factor * body(moved(c[..., 0, :], g)) + sums(moved(c[..., 1, :], g), key, ring)


def is_value(found: Poly, expected: Ints, ring: Ring) -> None:
    assert found.ring == ring
    assert np.array_equal(found.cpu().to_bigints(), expected % ring.modulus)


# ---- key switches ----

KEYS = {
    size: switch_key(S, S * S, ring=T[:5], special=P, limbs_per_digit=size, seed=b"k")
    for size in (1, 2, 3, 5)
}
EXACT = {"ring": T[:5], "special": P, "seed": b"r"}
TURNED = rotation_keys(S, [3, 5, 15], limbs_per_digit=2, turned=True, **EXACT)
PLAIN = rotation_keys(S, [3, 5, 15], limbs_per_digit=2, **EXACT)


def values(ring: Ring, batch: tuple[int, ...], seed: int) -> Poly:
    """Elements of which many coefficients are 0, 1, Q - 1 or half of Q."""
    with pg.device("cpu"):
        return ring(draw(ring, batch, seed))


@on("cpu", "reference", "toy", *CARDS)
@pytest.mark.parametrize("limbs", [1, 2, 4, 5])
@pytest.mark.parametrize("size", KEYS)
def test_key_switch_without_division(device: str, size: int, limbs: int) -> None:
    Q, key = T[:limbs], KEYS[size].to()
    whole = Q.join(P)
    for domain in ("coef", "eval"):
        a, add = values(Q, (3,), 1).to(), values(T[: limbs + 1] if limbs < 5 else Q, (3, 2), 2).to()
        expected = sums(ints(a), key, Q)
        more = P.modulus * ints(add)
        if domain == "eval":
            a, add = a.ntt(), add.ntt()
        hoisted = hoist(a, special=P, limbs_per_digit=size)
        for x in (a, hoisted):
            is_value(lattice.key_switch(x, key, divide=False), expected, whole)
            both = lattice.key_switch(x, key, add=add, divide=False)
            is_value(both, expected + more, whole)
            assert both.domain == "eval"
            body_alone = lattice.key_switch(x, key, add=add[..., 0], divide=False)
            is_value(body_alone, expected + body(more[..., 0, :]), whole)
            divided = rounded(expected + more, whole.modulus, P.modulus)
            found = lattice.key_switch(x, key, add=add)
            is_value(found, divided, Q)
            assert found.domain == domain and found == both.mod_down(Q)
        if limbs > 1:
            low = rounded(expected + more, whole.modulus, P.modulus * Q.moduli[-1])
            for x in (a, hoisted):
                is_value(lattice.key_switch(x, key, add=add, rescale=1), low, Q[:-1])


# ---- rotations ----


@on("cpu", "reference", "toy", *CARDS)
@pytest.mark.parametrize("keys", [PLAIN, TURNED], ids=["plain", "turned"])
@pytest.mark.parametrize("limbs", [1, 3, 5])
def test_rotations_match_python_ints(device: str, keys: dict[int, SwitchKey], limbs: int) -> None:
    Q, some = T[:limbs], [key.to() for key in keys.values()]
    whole = Q.join(P)
    for c in (values(Q, (2,), 3).to(), values(Q, (3, 2), 4).to().ntt()):
        h = hoist(c, special=P, limbs_per_digit=2)
        expected = [rotation(ints(c), key, Q) for key in some]
        for x in (c, h):
            lazy, done = lattice.rotate_many(x, some, divide=False), lattice.rotate_many(x, some)
            assert lazy.domain == "eval" and done.domain == c.domain
            for i, key in enumerate(some):
                is_value(lazy[i], expected[i], whole)
                is_value(done[i], rounded(expected[i], whole.modulus, P.modulus), Q)
                assert lattice.rotate(x, key, divide=False) == lazy[i]
                assert lattice.rotate(x, key) == done[i]
    assert lattice.rotate_many(h, []).shape == (0, 3, 2)


def test_rotations_by_keys_of_several_levels() -> None:
    rings = {3: T[:3], 5: T[:5], 15: T[:4]}
    for turned in (False, True):
        keys = rotation_keys(
            S, [5, 3, -1], **{**EXACT, "ring": rings | {-1: T[:4]}}, limbs_per_digit=2, turned=turned
        )
        c = values(T[:3], (2,), 5)
        found = lattice.rotate_many(c, keys.values(), divide=False)
        for i, key in enumerate(keys.values()):
            is_value(found[i], rotation(ints(c), key, T[:3]), T[:3].join(P))


def test_many_rotations_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    c = values(T[:5], (2, 2), 6).ntt()
    for keys in (PLAIN, TURNED):
        expected = lattice.rotate_many(c, keys.values())
        with monkeypatch.context() as patched:
            patched.setattr(Backend, "divided_bytes", 1)
            assert lattice.rotate_many(c[:1], keys.values()) == expected[:, :1]


# ---- products ----


def tensor(a: Ints, b: Ints) -> Ints:
    """The parts of a product, along the axis before the last."""
    (a0, a1), (b0, b1) = (np.moveaxis(x, -2, 0) for x in np.broadcast_arrays(a, b))
    return np.stack([product(a0, b0), product(a0, b1) + product(a1, b0), product(a1, b1)], axis=-2)


@on("cpu", "reference", "toy", *CARDS)
@pytest.mark.parametrize("limbs", [1, 3, 5])
def test_products_of_ciphertexts(device: str, limbs: int) -> None:
    Q, key = T[:limbs], KEYS[2].to()
    whole, factor = Q.join(P), P.modulus
    for batches in (((2,), (2,)), ((3, 2), (2,)), ((3, 1, 2), (1, 2, 2))):
        a, b = (values(Q, batch, i).to() for i, batch in enumerate(batches))
        parts = tensor(ints(a), ints(b))
        for x, y in (
            (a, b),
            (a.ntt(), b.ntt()),
            (a, b.ntt()),
            (a, a),
            (a.ntt(), values(Q, batches[0], 0).to()),
        ):
            other = tensor(ints(a), ints(a)) if y is not b and y.shape == a.shape and y == a else parts
            found = lattice.tensor(x, y)
            is_value(found, other, Q)
            assert found.domain == ("eval" if "eval" in (x.domain, y.domain) else "coef")
            squared = centred(other[..., 2, :], Q.modulus)
            sum_of_both = sums(squared, key, Q) + factor * other[..., :2, :]
            done = lattice.multiply(x, y, key)
            is_value(done, rounded(sum_of_both, whole.modulus, factor), Q)
            assert done.domain == found.domain
            more = values(T[: min(limbs + 1, 5)], done.shape, 7).to()
            with_more = sum_of_both + factor * ints(more)
            more = more.ntt() if done.domain == "eval" else more
            is_value(lattice.multiply(x, y, key, add=more), rounded(with_more, whole.modulus, factor), Q)
            if limbs > 1:
                low = rounded(with_more, whole.modulus, factor * Q.moduli[-1])
                is_value(lattice.multiply(x, y, key, add=more, rescale=1), low, Q[:-1])
    if limbs < 5:
        for batch in ((2,), (3, 2)):
            more_a, more_b = values(T[:5], batch, 1).to().ntt(), values(T[: limbs + 1], batch, 2).to().ntt()
            a, b = more_a.restrict(Q), more_b.restrict(Q)
            assert lattice.tensor(more_a, more_b, ring=Q) == lattice.tensor(a, b)
            assert lattice.tensor(more_a, more_a, ring=Q) == lattice.tensor(a, a)
            assert lattice.multiply(more_a, more_b, key, ring=Q) == lattice.multiply(a, b, key)


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize("domain", ["coef", "eval"])
def test_inner_products_of_ciphertexts(device: str, domain: str) -> None:
    Q, key = T[:3], KEYS[2].to()
    whole, factor, last = Q.join(P), P.modulus, Q.moduli[-1]
    batches = ((2,), (3, 2), (2, 1, 2), (1, 3, 2), (2, 3, 2))
    a, b, c, d, more = (values(T[:4], batch, i).to() for i, batch in enumerate(batches))
    for pairs in ([(a, b)], [(a, b), (b, b)], [(a, b), (c, d), (b, a), (c, c)]):
        parts = [tensor(ints(x.restrict(Q)), ints(y.restrict(Q))) for x, y in pairs]
        total = sum(parts[1:], parts[0])
        squared = centred(total[..., 2, :], Q.modulus)
        expected = sums(squared, key, Q) + factor * total[..., :2, :]
        moved: dict[int, pg.Poly] = {}  # of one object one
        for x in (a, b, c, d):
            moved[id(x)] = x.ntt() if domain == "eval" else x
        xs, ys = ([moved[id(pair[i])] for pair in pairs] for i in range(2))
        is_value(lattice.inner_product(xs, ys, key, ring=Q), rounded(expected, whole.modulus, factor), Q)
        if expected.shape[:-1] == batches[-1]:
            added = more.ntt() if domain == "eval" else more
            found = lattice.inner_product(xs, ys, key, ring=Q, add=added, rescale=1)
            low = rounded(expected + factor * ints(more.restrict(Q)), whole.modulus, factor * last)
            is_value(found, low, Q[:-1])


# ---- matrices times slots ----


def slot_product(c: Ints, M: LinearTransform, keys: dict[int, SwitchKey], ring: Ring, rescale: int) -> Ints:
    """The definition of `transform`, from the encoded diagonals; the matrix's ring is `ring`."""
    n, whole, factor = ring.n, ring.join(M.special), M.special.modulus
    encoded = dict(zip(M._steps, ints(M.diagonals.intt()), strict=True))
    total: Any = 0
    for g in {k - k % M.baby for k in encoded}:
        inner: Any = 0
        for k, diagonal in encoded.items():
            if k - k % M.baby == g:
                i = k % M.baby
                pair = rotation(c, keys[pow(5, i, 2 * n)], ring) if i else factor * c
                inner = inner + product(np.broadcast_to(diagonal, pair.shape), pair)
        if g:
            key = keys[pow(5, g, 2 * n)]
            mask = rounded(inner[..., 1, :], whole.modulus, factor)
            inner = moved(body(inner[..., 0, :]) + sums(mask, key, ring), pow(5, g, 2 * n))
        total = total + inner
    dropped = math.prod(ring.moduli[ring.rows - rescale :])
    return rounded(total, whole.modulus, factor * dropped)


MATRICES = {
    "identity": ({0: [1]}, None),
    "one": ({1: [0.5j]}, None),
    "all": ({k: np.arange(1, 5) * (1 + k * 1j) for k in range(4)}, None),
    "all, one baby": ({k: [k, 1] for k in range(4)}, 1),
    "all, four babies": ({k: [k, 1j] for k in range(4)}, 4),
    "some": ({0: [1], 3: [2, 3], 1: [-1]}, 2),
    "giants alone": ({2: [1, 2, 3, 4]}, 2),
    "negative": ({-1: [1], -2: [1j]}, 2),
}
ALL = rotation_keys(S, [pow(5, k, 2 * N) for k in range(1, 4)], limbs_per_digit=2, turned=True, **EXACT)


@on("cpu", "reference", "toy", *CARDS)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("limbs", [1, 3, 5])
def test_linear_transform_matches_python_ints(device: str, name: str, limbs: int) -> None:
    diagonals, baby = MATRICES[name]
    Q = T[:limbs]
    M = LinearTransform(diagonals, ring=Q, special=P, scale=2**20, baby=baby)
    assert M.device == pg._backends.current_device()
    keys = {g: key.to() for g, key in ALL.items()}
    assert set(M.galois_elements) <= keys.keys()
    for c in (values(Q, (2,), 7).to(), values(Q, (3, 2), 8).to().ntt()):
        for rescale in (0, 1) if limbs > 1 else (0,):
            expected = slot_product(ints(c), M, ALL, Q, rescale)
            found = lattice.transform(c, M, keys, rescale=rescale)
            is_value(found, expected, Q[: limbs - rescale])
            assert found.domain == c.domain
            h = hoist(c, special=P, limbs_per_digit=2)
            assert lattice.transform(h, M, keys, rescale=rescale) == found
    if limbs < 5:
        more = values(T[:5], (2,), 9).to()
        assert lattice.transform(more, M, keys) == lattice.transform(more.restrict(Q), M, keys)


@on(*CARDS)
@pytest.mark.parametrize(
    ("n", "bits", "babies"),
    [
        (128, (30, 30, 31), (1, 4, 64)),  # more terms, or results, than a launch takes
        (128, (32, 32, 32), (8,)),
        (128, (30, 50, 60, 64), (8,)),
        (512, (49, 49, 49), (2,)),
    ],
)
def test_linear_transforms_of_many_steps_match_the_host(
    device: str, n: int, bits: tuple[int, ...], babies: tuple[int, ...]
) -> None:
    T = chain(n, bits)
    Q, special = T[:-1], T[-1:]
    count = n // 2 if n < 512 else 6
    elements = [pow(5, k, 2 * n) for k in range(1, count)]
    of: dict[str, Any] = {"ring": Q, "special": special, "limbs_per_digit": 1, "seed": 1}
    for baby in babies:
        with pg.device("cpu"):
            M = LinearTransform(
                {k: [1 + k] for k in range(count)}, ring=Q, special=special, scale=2**10, baby=baby
            )
            needed = [g for g in elements if g in M.galois_elements]
            keys = rotation_keys(T.ternary(seed=1), needed, turned=True, **of)
            c = values(Q, (2,), 1).ntt()
            expected = lattice.transform(c, M, keys), lattice.rotate_many(c, keys.values(), divide=False)
        here = {g: key.to() for g, key in keys.items()}
        assert lattice.transform(c.to(), M.to(), here).cpu() == expected[0]
        assert lattice.rotate_many(c.to(), here.values(), divide=False).cpu() == expected[1]


@pytest.mark.parametrize("name", MATRICES)
def test_linear_transform_multiplies_slots_by_the_matrix(name: str) -> None:
    """In NumPy's matrix, row r has entry d_k[r] in column r + k."""
    diagonals, baby = MATRICES[name]
    Q, half = T[:5], N // 2
    M = LinearTransform(diagonals, ring=Q, special=P, scale=2**40, baby=baby)
    matrix = np.zeros((half, half), complex)
    for k, row in diagonals.items():
        for r in range(half):
            matrix[r, (r + k) % half] += np.resize(row, half)[r]
    v = np.array([1, -2 + 1j, 0.5, 3j])
    m, mask, s = Q.from_floats(pg.fft.from_slots(v), scale=2**40), Q.random(seed=1), S.restrict(Q)
    c = pg.stack([m - mask * s, mask])
    d = lattice.transform(c, M, ALL, rescale=1)
    phase = (d[0] + d[1] * S.restrict(d.ring)).to_float64() / 2**80 * Q.moduli[-1]
    assert np.abs(pg.fft.to_slots(phase) - matrix @ v).max() < 2**-25


@on("cpu", "cuda")
def test_random_ciphertexts_match_python_ints(device: str) -> None:
    """Each operation runs on 2500 ciphertexts in four chains."""
    rng = np.random.default_rng(1)
    for case, (bits, sizes) in enumerate([((30,) * 4, 2), ((49,) * 3, 1), ((60,) * 3, 3), ((31, 50, 30), 2)]):
        whole = chain(N, (*bits, *bits[:2]))
        Q, special = whole[: len(bits)], whole[len(bits) :]
        of: dict[str, Any] = {"ring": Q, "special": special, "limbs_per_digit": sizes, "seed": case}
        elements = [pow(5, k, 2 * N) for k in range(1, 4)]
        with pg.device("cpu"):
            s = whole.ternary(seed=case)
            turned, plain = (rotation_keys(s, elements, turned=t, **of) for t in (True, False))
            relin = switch_key(s, s * s, **of)
        diagonals = {k: rng.normal(size=4) + 1j * rng.normal(size=4) for k in range(4)}
        M = LinearTransform(diagonals, ring=Q, special=special, scale=2**20, baby=2)
        c = values(Q, (2500, 2), case).to()
        numbers = ints(c)
        here = [{g: key.to() for g, key in keys.items()} for keys in (turned, plain)]
        own = relin.to()
        is_value(lattice.transform(c, M, here[0]), slot_product(numbers, M, turned, Q, 0), Q)
        expected = sums(numbers[:, 0], relin, Q)
        is_value(lattice.key_switch(c[:, 0], own, divide=False), expected, whole)
        parts = tensor(numbers, numbers[::-1])
        is_value(lattice.tensor(c, c[::-1]), parts, Q)
        both = sums(centred(parts[:, 2], Q.modulus), relin, Q) + special.modulus * parts[:, :2]
        is_value(lattice.multiply(c, c[::-1], own), rounded(both, whole.modulus, special.modulus), Q)
        total = 2 * parts + tensor(numbers, numbers)
        both = sums(centred(total[:, 2], Q.modulus), relin, Q) + special.modulus * total[:, :2]
        found = lattice.inner_product([c, c, c[::-1]], [c, c[::-1], c], own)
        is_value(found, rounded(both, whole.modulus, special.modulus), Q)
        for keys, moved_keys in zip((turned, plain), here, strict=True):
            found = lattice.rotate_many(c, moved_keys.values(), divide=False)
            divided = lattice.rotate_many(c, moved_keys.values())
            for i, key in enumerate(keys.values()):
                right = rotation(numbers, key, Q)
                is_value(found[i], right, whole)
                is_value(divided[i], rounded(right, whole.modulus, special.modulus), Q)
        added = expected + special.modulus * numbers
        done = lattice.key_switch(c[:, 0], own, add=c)
        is_value(done, rounded(added, whole.modulus, special.modulus), Q)
        is_value(lattice.add_constant(c, 7), numbers + np.array([[7], [0]]) * (np.arange(N) == 0), Q)
        is_value(pg.combine([3, -(2**70)], [c, c[::-1]]), 3 * numbers - 2**70 * numbers[::-1], Q)
        fewer, low = Q[:-1], c.restrict(Q[:-1])
        both = sums(ints(low)[:, 0], relin, fewer)
        is_value(lattice.key_switch(low[:, 0], own, divide=False), both, fewer.join(special))


def rotations_of(bits: int, size: int) -> list[np.ndarray[Any, Any]]:
    """Return rotations and products with matrices on the host, of rings that know no earlier call."""
    forget()
    whole = chain(128, (bits,) * 7)
    Q, special, s, results = whole[:5], whole[5:], whole.ternary(seed=1), []
    of: dict[str, Any] = {"ring": Q, "special": special, "limbs_per_digit": size, "seed": 1}
    elements = [5, 25, 3, 1, 255]
    M = LinearTransform({k: [1 + k] for k in (0, 1, 2, 5)}, ring=Q, special=special, scale=2**10, baby=2)
    needed = sorted({*elements, *M.galois_elements})
    turned, plain = (rotation_keys(s, needed, turned=is_turned, **of) for is_turned in (True, False))
    for count in (0, 1, 3):
        c = values(Q, (count, 2), 1).ntt()
        for keys in (turned, plain):
            results.append(lattice.rotate_many(c, [keys[g] for g in elements], divide=False))
        results.append(lattice.transform(c, M, turned))
    return [result.data for result in results]


@pytest.mark.parametrize("bits", [30, 31, 50, 60, 64])
@pytest.mark.parametrize("size", [1, 3])
def test_native_rotated_sums_match_the_composed_ones(
    bits: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pg.device("cpu"):
        native, calls = rotations_of(bits, size), []

        def composed(*arguments: Any) -> None:
            calls.append(arguments)
            Backend.rotated_sums(*arguments)

        monkeypatch.setattr(CpuBackend, "rotated_sums", composed)
        for found, expected in zip(native, rotations_of(bits, size), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert len(calls) >= 3 * 4
        forget()


def test_repeated_rotation_uses_the_given_keys() -> None:
    with pg.device("cpu"):
        Q, c = T[:5], values(T[:5], (2,), 1).ntt()
        for seed in (1, 2, 3):
            s = T.ternary(seed=seed)
            elements = [pow(5, k, 2 * N) for k in range(4)]
            keys = rotation_keys(s, elements, ring=Q, special=P, limbs_per_digit=2, seed=seed)
            found = lattice.rotate_many(c, keys.values(), divide=False)
            for i, key in enumerate(keys.values()):
                is_value(found[i], rotation(ints(c), key, Q), T)


# ---- what is refused ----

M4 = LinearTransform({0: [1], 1: [1]}, ring=T[:4], special=P, scale=2**20, baby=2)
C4 = values(T[:4], (2,), 1)
UNFRIENDLY = Ring(8, 2**32)
H4 = hoist(C4, special=P, limbs_per_digit=2)


def without(g: int) -> dict[int, SwitchKey]:
    return {other: key for other, key in ALL.items() if other != g}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: lattice.key_switch(C4, KEYS[2], rescale=1, divide=False),
            pg.ParameterError,
            "rescale=1 must be 0 if divide=False",
        ),
        (lambda: lattice.key_switch(H4, KEYS[2]), pg.ParameterError, r"hoist x\[\.\.\., None\]"),
        (
            lambda: lattice.key_switch(hoist(C4[0], special=P, limbs_per_digit=2), KEYS[3]),
            pg.ParameterError,
            "key.limbs_per_digit differs",
        ),
        (
            lambda: lattice.key_switch(C4[0], KEYS[2], add=T[:3].zeros()),
            pg.RingMismatch,
            "must have all limbs",
        ),
        (
            lambda: lattice.key_switch(C4[0], KEYS[2], add=T.zeros(3)),
            pg.ParameterError,
            r"batch shape of add is \(3,\)",
        ),
        (lambda: lattice.rotate_many(H4, [], divide=False), pg.ParameterError, "keys is empty"),
        (
            lambda: lattice.rotate_many(C4, [PLAIN[3], TURNED[5]]),
            pg.ParameterError,
            r"keys\[1\]\.turned differs",
        ),
        (
            lambda: lattice.rotate(H4, rotation_keys(S, [3], limbs_per_digit=1, **EXACT)[3]),
            pg.ParameterError,
            "limbs_per_digit differs from that of the hoisted",
        ),
        (lambda: lattice.tensor(C4[0], C4[0]), pg.ParameterError, r"batch shape of a is \(\)"),
        (lambda: lattice.tensor(C4, T.zeros(2)), pg.RingMismatch, "different rings"),
        (lambda: lattice.tensor(C4, T[:3].zeros(2), ring=T[:4]), pg.RingMismatch, "."),
        (lambda: lattice.tensor(T.zeros((3, 2)), T.zeros((2, 2))), pg.ParameterError, "do not broadcast"),
        (lambda: lattice.tensor(C4, 3), pg.RingMismatch, "b must be a Poly, not int"),
        (lambda: lattice.tensor(UNFRIENDLY.zeros(2), UNFRIENDLY.zeros(2)), pg.NotNTTFriendly, "complete"),
        (
            lambda: lattice.multiply(C4, C4, KEYS[2].value),
            pg.ParameterError,
            "relin must be a SwitchKey, not Poly",
        ),
        (lambda: lattice.multiply(C4, C4, KEYS[2], add=C4.ntt()), pg.errors.DomainError, "add is .* 'eval'"),
        (lambda: lattice.multiply(C4, C4, KEYS[2], add=T.zeros(3)), pg.ParameterError, "batch shape of add"),
        (lambda: lattice.multiply(C4, C4, KEYS[2], rescale=4), pg.ParameterError, "rescale=4"),
        (
            lambda: lattice.inner_product([], [], KEYS[2]),
            pg.ParameterError,
            "a must be .* not an empty sequence",
        ),
        (
            lambda: lattice.inner_product(C4, [C4], KEYS[2]),
            pg.ParameterError,
            "a must be a list .*, not Poly",
        ),
        (lambda: lattice.inner_product([C4], 7, KEYS[2]), pg.ParameterError, "b must be a list .*, not int"),
        (lambda: lattice.inner_product([C4, C4], [C4], KEYS[2]), pg.ParameterError, "2 in a and 1 in b"),
        (
            lambda: lattice.inner_product([C4, 7], [C4, C4], KEYS[2]),
            pg.RingMismatch,
            "a must be a Poly, not int",
        ),
        (lambda: hoist(7, special=P, limbs_per_digit=2), pg.RingMismatch, "x must be a Poly, not int"),
        (
            lambda: hoist(C4, special=7, limbs_per_digit=2),
            pg.ParameterError,
            "special must be a Ring, not int",
        ),
        (
            lambda: hoist(C4, special=T[3:5], limbs_per_digit=2),
            pg.PolyGPUError,
            "factor in common|coprime|share",
        ),
        (lambda: hoist(C4, special=P, limbs_per_digit=0), pg.ParameterError, "limbs_per_digit=0"),
        (
            lambda: hoist(C4, special=P, limbs_per_digit=2, conversion="quick"),
            pg.ParameterError,
            "conversion",
        ),
        (
            lambda: lattice.transform(C4, M4, without(5)),
            pg.ParameterError,
            r"no key for the Galois elements \[5\]",
        ),
        (lambda: lattice.transform(C4, M4, PLAIN), pg.ParameterError, r"keys\[5\] must be a turned key"),
        (lambda: lattice.transform(C4, M4, {5: TURNED[3]}), pg.ParameterError, r"turned key of X -> X\^5"),
        (
            lambda: lattice.transform(C4, M4, [TURNED[5]]),
            pg.ParameterError,
            "keys must be a dict .*, not list",
        ),
        (lambda: lattice.transform(C4, {0: [1]}, ALL), pg.ParameterError, "M must be .*, not dict"),
        (lambda: lattice.transform(C4[0], M4, ALL), pg.ParameterError, "batch shape of c"),
        (lambda: lattice.transform(values(T[:3], (2,), 1), M4, ALL), pg.RingMismatch, "restrict"),
        (lambda: lattice.transform(values(T, (2,), 1), M4, ALL, rescale=4), pg.ParameterError, "rescale=4"),
        (
            lambda: lattice.transform(hoist(values(T[:5], (2,), 1), special=P, limbs_per_digit=2), M4, ALL),
            pg.RingMismatch,
            r"Use restrict\(M\.ring\) on the ciphertext",
        ),
    ],
)
def test_invalid_calls_raise(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("diagonals", "options", "error", "words"),
    [
        ({}, {}, pg.ParameterError, "diagonals is empty"),
        ([[1]], {}, pg.ParameterError, "diagonals must be a dict .*, not list"),
        (
            {0: [1], 4: [1]},
            {},
            pg.ParameterError,
            "key 4 of diagonals is 0 modulo n/2 = 4, and so is another",
        ),
        ({0.5: [1]}, {}, pg.errors.NotAnInteger, "diagonals"),
        ({0: [1, 2, 3]}, {}, pg.ParameterError, r"shape of diagonals\[0\] is \(3,\)"),
        ({0: [1] * 8}, {}, pg.ParameterError, r"shape of .* is \(8,\)"),
        ({0: 1}, {}, pg.ParameterError, r"shape of .* is \(\)"),
        ({0: []}, {}, pg.ParameterError, r"shape of .* is \(0,\)"),
        ({0: ["x"]}, {}, pg.errors.NotComplex, "finite complex"),
        ({0: [math.nan]}, {}, pg.errors.NotComplex, "finite complex"),
        ({0: [[1], [2, 3]]}, {}, pg.errors.NotComplex, "finite complex"),
        ({0: [1]}, {"baby": 3}, pg.ParameterError, "baby=3 must be a power of two"),
        ({0: [1]}, {"baby": 8}, pg.ParameterError, "baby=8"),
        ({0: [1]}, {"ring": 5}, pg.ParameterError, "ring must be a Ring, not int"),
        ({0: [1]}, {"special": Ring(16, 97)}, pg.PolyGPUError, "degree"),
        ({0: [1]}, {"special": T[:1]}, pg.PolyGPUError, "common|coprime|share|factor"),
        ({0: [1]}, {"scale": "1"}, pg.PolyGPUError, "scale"),
        (
            {0: [1]},
            {"ring": Ring(8, 17, kind="cyclic"), "special": Ring(8, 41, kind="cyclic")},
            pg.ParameterError,
            "no slots",
        ),
    ],
)
def test_invalid_matrices_raise(diagonals: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        LinearTransform(diagonals, **{"ring": T[:4], "special": P, "scale": 2**20, **options})


def test_linear_transform_chooses_the_fewest_steps() -> None:
    def baby(*steps: int) -> int:
        Q = pg.Ring(64, pg.ntt_primes(64, bits=30, count=2))
        return LinearTransform({k: [1] for k in steps}, ring=Q[:1], special=Q[1:], scale=1).baby

    assert baby(0) == 1 and baby(*range(16)) == 4 and baby(*range(32)) == 4
    assert baby(0, 8, 16, 24) == 16 and baby(0, 1, 2, 3) == 2
