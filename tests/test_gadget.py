"""Gadget decomposition and external products on every device: against Python ints, noise against theory."""

from __future__ import annotations

import copy
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
from devices import CARDS, backend, host, on, over, there
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import chain, draw, everywhere, fold, product

import polygpu as pg
from polygpu import Poly, Ring, _cpu, lattice
from polygpu._backends import cuda
from polygpu._backends.cuda import lattice as cuda_lattice
from polygpu._ops import gadget as gadgets

GOLDILOCKS = 2**64 - 2**32 + 1
RINGS = {
    "30 bits": Ring(16, pg.ntt_primes(16, bits=30)),
    "31 bits": Ring(8, pg.ntt_primes(8, bits=31)),
    "32 bits": Ring(8, pg.ntt_primes(8, bits=32)),
    "50 bits": Ring(16, pg.ntt_primes(16, bits=50)),
    "62 bits": Ring(8, pg.ntt_primes(8, bits=62)),
    "63 bits": Ring(8, pg.ntt_primes(8, bits=63)),
    "Goldilocks": Ring(16, GOLDILOCKS),
    "cyclic": Ring(16, pg.ntt_primes(16, bits=40, kind="cyclic"), kind="cyclic"),
    "2^32": Ring(5, 2**32),
    "2^64": Ring(5, 2**64),
    "2^20": Ring(12, 2**20),
    "2^63": Ring(5, 2**63),
    "3": Ring(4, 3),
    "2^64 - 59": Ring(7, 2**64 - 59),
    "leaves": Ring(16, 2**29 + 177),
    "two of 30 bits": Ring(8, pg.ntt_primes(8, bits=30, count=2)),
    "two of 32 bits": Ring(8, pg.ntt_primes(8, bits=32, count=2)),
    "three words": chain(8, (30, 50, 64)),
    "cyclic, two": Ring(8, pg.ntt_primes(8, bits=40, kind="cyclic", count=2), kind="cyclic"),
    "2^32 and 3": Ring(5, [2**32, 3]),
    "five of 62 bits": Ring(4, pg.ntt_primes(4, bits=62, count=5)),
}
SEVERAL = ["two of 30 bits", "two of 32 bits", "three words", "cyclic, two", "2^32 and 3", "five of 62 bits"]
COMPLETE = ["30 bits", "32 bits", "50 bits", "62 bits", "Goldilocks", "cyclic"]
MULTIPLIED = [*COMPLETE, "2^32", "2^64", "2^64 - 59", "leaves", *SEVERAL]
GADGETS = [
    (1, 1),
    (1, 7),
    (2, 3),
    (8, 2),
    (7, 4),
    (16, 2),
    (10, 3),
    (32, 2),
    (20, 3),
    (30, 1),
    (64, 1),
    (1, 64),
]


def fitting(q: int) -> list[tuple[int, int]]:
    return [(bits, levels) for bits, levels in GADGETS if 1 << bits * levels <= q]


def evaluated(value: Poly) -> Poly:
    """Return the value in the domain "eval", if the ring has one."""
    return value.ntt() if value.ring.has_eval else value


# ---- definitions, in Python ints ----


def digits_of(x: int, q: int, bits: int, levels: int) -> list[int]:
    base = 1 << bits
    rest, found = (2 * x * base**levels + q) // (2 * q) % base**levels, []
    for _ in range(levels):
        digit = (rest + base // 2) % base - base // 2
        found.append(digit)
        rest = (rest - digit) // base
    return found[::-1]


def external(R: Ring, ggsw: np.ndarray, c: np.ndarray, bits: int) -> np.ndarray:
    """The external product of ggsw (k, levels, k, n) and c (k, n)."""
    k, levels = ggsw.shape[:2]
    total = np.zeros((k, R.n), object)
    for i in range(k):
        digits = [digits_of(int(x), R.modulus, bits, levels) for x in c[i]]
        for level in range(levels):
            digit = [d[level] for d in digits]
            for j in range(k):
                total[j] += np.array(product(R, digit, ggsw[i, level, j]), object)
    return total % R.modulus


def turned(R: Ring, row: np.ndarray, e: int) -> np.ndarray:
    return np.array(fold(R, [0] * e + list(row)), object)


def rotated(R: Ring, matrices: np.ndarray, c: np.ndarray, exponents: np.ndarray, bits: int) -> np.ndarray:
    """Blind rotation: c becomes X^e_0 c; then each matrix i adds its external product with X^e_i c - c."""
    order = 2 * R.n if R.kind == "negacyclic" else R.n
    first, *rest = (int(e) % order for e in exponents)
    total = np.array([turned(R, row, first) for row in c])
    for matrix, e in zip(matrices, rest, strict=True):
        moved = np.array([turned(R, row, e) for row in total])
        total = (total + external(R, matrix, (moved - total) % R.modulus, bits)) % R.modulus
    return total


# ---- digits ----


def around(*numbers: int) -> list[int]:
    return [x + d for x in numbers for d in (-2, -1, 0, 1, 2)]


def edges(q: int, bits: int, levels: int) -> list[int]:
    """Values next to those at which the rounding or a digit changes."""
    power, rng = 1 << bits * levels, random.Random(q)
    values = around(0, q // 2, q - 1, q // (2 * power), q - q // (2 * power), q >> bits, q // power)
    for _ in range(20):
        m = rng.randrange(power)
        values += around(m * q // power, (2 * m + 1) * q // (2 * power))
    return [v % q for v in values]


@over(RINGS, ["30 bits", "2^32", "63 bits", "2^64", "two of 30 bits", "three words"])
def test_decompose_matches_python_ints(name: str) -> None:
    R = RINGS[name]
    q = R.modulus
    for bits, levels in fitting(q):
        values = edges(q, bits, levels)
        values += [0] * (-len(values) % (2 * R.n))
        x = np.array(values, object).reshape(2, -1, R.n)
        found = lattice.decompose(R(x), bits=bits, levels=levels)
        expected = [[digits_of(v, q, bits, levels) for v in row] for row in x.reshape(-1, R.n).tolist()]
        wanted = np.array(expected, object).transpose(0, 2, 1).reshape(*x.shape[:2], levels, R.n)
        np.testing.assert_array_equal(found.to_bigints(), wanted % q)
        assert found.domain == "coef" and type(found.data) is backend().xp.ndarray
        weights = lattice.gadget(R, bits=bits, levels=levels)
        assert list(weights) == [(2 * q + (1 << bits * i)) // (2 << bits * i) for i in range(1, levels + 1)]
        sums = (wanted.transpose(0, 1, 3, 2) * np.array(weights, object)).sum(axis=-1)
        error = (x - sums + q // 2) % q - q // 2
        bound = q / (2 << bits * levels) + levels * 2**bits / 4
        assert max(abs(int(e)) for e in error.ravel()) <= bound + 1e-9 * q
        out = R.zeros(found.shape)
        assert lattice.decompose(R(x), bits=bits, levels=levels, out=out) is out and out == found


@settings(max_examples=60)
@given(st.integers(2, 2**64), st.data())
def test_decompose_modulo_any_number(q: int, data: st.DataObject) -> None:
    total = data.draw(st.integers(1, q.bit_length() - 1))
    bits = data.draw(st.integers(1, total))
    levels = total // bits
    n = data.draw(st.integers(1, 40))
    x = [data.draw(st.integers(0, q - 1)) for _ in range(n)]
    found = lattice.decompose(Ring(n, q)(x), bits=bits, levels=levels).to_bigints()
    assert [[v % q for v in digits_of(v, q, bits, levels)] for v in x] == found.T.tolist()
    assert [digits_of(v, q, bits, levels) for v in x] == lattice.decompose_integers(
        x, q=q, bits=bits, levels=levels
    ).tolist()


@everywhere
def test_decompose_integers() -> None:
    for q in (3, 12289, 2**31 - 1, 2**32, 2**50, GOLDILOCKS, 2**64):
        for bits, levels in fitting(q):
            values = edges(q, bits, levels)
            expected = [digits_of(v, q, bits, levels) for v in values]
            assert lattice.decompose_integers(values, q=q, bits=bits, levels=levels).tolist() == expected
            array = there(np.array(values, np.uint64).reshape(5, -1))
            found = lattice.decompose_integers(array, q=q, bits=bits, levels=levels)
            assert type(found) is type(array) and found.dtype == np.int64
            assert found.reshape(-1, levels).tolist() == expected
            assert lattice.decompose_integers([-1, -q, q + 1], q=q, bits=bits, levels=levels).tolist() == [
                digits_of(v % q, q, bits, levels) for v in (-1, -q, q + 1)
            ]
    assert lattice.decompose_integers(np.zeros((0, 3), np.int64), q=17, bits=2, levels=2).shape == (0, 3, 2)


def test_decompose_integers_with_one_level() -> None:
    """With one level the digit is x 2N / q, rounded. Here 2N = 2^11."""
    rng, q = random.Random(1), 2**32
    x = [rng.randrange(q) for _ in range(100)]
    found = lattice.decompose_integers(x, q=q, bits=11, levels=1)[..., 0] % 2048
    assert found.tolist() == [(2 * v * 2048 + q) // (2 * q) % 2048 for v in x]


# ---- products ----


@over(MULTIPLIED, ["30 bits", "50 bits", "2^32", "three words"])
def test_external_product(name: str) -> None:
    R = RINGS[name]
    for k, bits, levels, batch in ((2, 4, 3, (2,)), (2, 14, 2, ()), (3, 7, 2, (2, 1)), (1, 8, 1, (3,))):
        matrix, c = draw(R, (k, levels, k), bits), draw(R, (*batch, k), levels)
        ggsw = evaluated(R(matrix))
        rows = [external(R, matrix, item, bits) for item in c.reshape(-1, k, R.n)]
        expected = np.array(rows, object).reshape(c.shape)
        for value in (R(c), evaluated(R(c))):
            found = lattice.external_product(ggsw, value, bits=bits)
            assert found.domain == value.domain and found.shape == value.shape
            np.testing.assert_array_equal(found.to_bigints(), expected)
            copy = value.copy()
            assert lattice.external_product(ggsw, copy, bits=bits, out=copy) is copy and copy == found
            other = draw(R, (*batch, k), 7)
            chosen = lattice.cmux(ggsw, R(other), value, bits=bits)
            difference = (c - other) % R.modulus
            rows = [external(R, matrix, item, bits) for item in difference.reshape(-1, k, R.n)]
            wanted = (other + np.array(rows, object).reshape(c.shape)) % R.modulus
            np.testing.assert_array_equal(chosen.to_bigints(), wanted)


@over(MULTIPLIED, ["30 bits", "cyclic", "2^64", "two of 30 bits"])
def test_blind_rotate(name: str) -> None:
    R = RINGS[name]
    order = 2 * R.n if R.kind == "negacyclic" else R.n
    for k, bits, levels, batch, count in ((2, 5, 2, (2,), 4), (2, 9, 1, (), 2), (2, 5, 2, (3,), 0)):
        keys, acc = draw(R, (count, k, levels, k), bits), draw(R, (*batch, k), levels)
        exponents = np.random.default_rng(1).integers(-order, 2 * order, (*batch, count + 1))
        if count:
            exponents[..., 1] = 0
        expected = []
        for item, powers in zip(acc.reshape(-1, k, R.n), exponents.reshape(-1, count + 1), strict=True):
            expected.append(rotated(R, keys, item, powers, bits))
        bsk = evaluated(R(keys) if count else R.zeros(keys.shape[:-1]))
        for value in (R(acc), evaluated(R(acc))):
            found = lattice.blind_rotate(value, bsk, exponents, bits=bits)
            assert found.domain == "coef"
            np.testing.assert_array_equal(found.to_bigints().reshape(-1, k, R.n), np.array(expected))
            out = R.zeros(found.shape)
            assert lattice.blind_rotate(value, bsk, exponents, bits=bits, out=out) is out and out == found
            assert lattice.blind_rotate(value, bsk, there(exponents), bits=bits) == found
            assert (
                lattice.blind_rotate(value, bsk, there((exponents % order).astype(np.uint16)), bits=bits)
                == found
            )


CHAINS = {  # moduli of Q and of P, limbs of a digit
    "30 bits": (chain(16, (30,) * 4), 3, 2),
    "one limb": (chain(16, (31, 31)), 1, 1),
    "mixed words": (chain(8, (30, 50, 64, 46, 60)), 3, 2),
    "63 bits": (chain(8, (63,) * 5), 4, 4),
}


def by_limbs(T: Ring, count: int, size: int, ggsw: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The sum of digits times rows modulo Q P, divided by P: ggsw (k, digits, k, n), c (k, n)."""
    Q, P, k = T[:count], T[count:], len(c)
    total = np.zeros((k, T.n), object)
    for i in range(k):
        for j in range(ggsw.shape[1]):
            own = math.prod(Q.moduli[j * size : (j + 1) * size])
            digit = [(int(x) + own // 2) % own - own // 2 for x in c[i]]  # own is odd
            for column in range(k):
                total[column] += np.array(product(T, digit, ggsw[i, j, column]), object)
    centred = (total + T.modulus // 2) % T.modulus - T.modulus // 2
    return (2 * centred + P.modulus) // (2 * P.modulus) % Q.modulus


@over(CHAINS, ["30 bits", "mixed words"])
def test_external_product_with_groups_of_limbs(name: str) -> None:
    T, count, size = CHAINS[name]
    Q, P = T[:count], T[count:]
    way: dict[str, Any] = {"limbs_per_digit": size, "special": P}
    for k, batch in ((2, (2,)), (2, ()), (3, (2, 1)), (1, (3,))):
        matrix = draw(T, (k, -(-count // size), k), k)
        c, other = draw(Q, (*batch, k), 1), draw(Q, (*batch, k), 2)
        ggsw = T(matrix).ntt()
        difference = (c - other) % Q.modulus
        expected, moved = (
            np.array([by_limbs(T, count, size, matrix, x) for x in y.reshape(-1, k, T.n)], object)
            for y in (c, difference)
        )
        for value in (Q(c), Q(c).ntt()):
            found = lattice.external_product(ggsw, value, **way)
            assert found.domain == value.domain and found.ring == Q
            np.testing.assert_array_equal(found.to_bigints(), expected.reshape(c.shape))
            copied = value.copy()
            assert lattice.external_product(ggsw, copied, out=copied, **way) is copied and copied == found
            chosen = lattice.cmux(ggsw, Q(other), value, **way)
            wanted = (other + moved.reshape(c.shape)) % Q.modulus
            np.testing.assert_array_equal(chosen.to_bigints(), wanted)
    bsk, acc = draw(T, (2, 2, -(-count // size), 2), 5), draw(Q, (2,), 6)
    total = np.array([turned(Q, row, 3) for row in acc])
    for matrix, e in zip(bsk, (5, 2 * T.n - 1), strict=True):
        moved = np.array([turned(Q, row, e) for row in total])
        total = (total + by_limbs(T, count, size, matrix, (moved - total) % Q.modulus)) % Q.modulus
    found = lattice.blind_rotate(Q(acc), T(bsk).ntt(), [3, 5, -1], **way)
    np.testing.assert_array_equal(found.to_bigints(), total)


def test_keys_of_one_seed_have_distinct_masks() -> None:
    """The keys differ in the message, in their digits, or only in the split between Q and P."""
    T = chain(16, (30,) * 4)
    s = T.ternary(1, seed=9)

    def key(message: Any, limbs: int, size: int) -> Poly:
        return lattice.ggsw(
            message, s.restrict(T[:limbs]), limbs_per_digit=size, special=T[limbs:], sigma=3.2, seed=7
        )

    keys = [key([m], limbs, 2) for m in (5, 6, -1) for limbs in (1, 2)] + [key([5], 3, 2), key([5], 3, 3)]
    bodies = [x[0, 0, 0].intt().data for x in keys]
    for i, x in enumerate(bodies):
        assert all((x[1] != y[1]).any(axis=-1).all() for y in bodies[:i])
    assert key([5], 2, 2) == key(np.array([5], np.uint8), 2, 2)
    t = T.ternary(seed=2)
    masks = [
        lattice.switch_key(s[0], t, ring=T[:limbs], special=T[limbs:], limbs_per_digit=2, seed=7).value[0, 1]
        for limbs in (1, 2, 3)
    ]
    assert masks[0] != masks[1] != masks[2] != masks[0]


@on("cpu", *CARDS)
@pytest.mark.parametrize("by_base", [True, False])
def test_noise_of_external_products_in_several_limbs(device: str, by_base: bool) -> None:
    """Standard deviations are within 10 % of theory, for each kind of key that ggsw makes."""
    n, sigma, B, levels = 256, 3.2, 2**13, 4
    T = Ring(n, pg.ntt_primes(n, bits=30, count=3))
    Q, P = T[:2], T[2:]
    way: dict[str, Any] = {"bits": 13} if by_base else {"limbs_per_digit": 1, "special": P}
    made = way | {"levels": levels} if by_base else way
    s = Q.ternary(1, seed=1)
    key = lattice.ggsw([1], s, sigma=sigma, seed=2, **made)[0]
    c = Q.random((100, 2), seed=3)
    before, after = (x[:, 0] + x[:, 1] * s[0] for x in (c, lattice.external_product(key, c, **way)))
    noise = host((after - before).to_float64())
    weight = int((host(s.to_int64()) != 0).sum())
    if by_base:
        # Digits are uniform in [-B/2, B/2); those of weights that are rounded, and what digits leave off,
        # count for the body and for each coefficient of s.
        variance = 2 * levels * n * ((B * B + 2) / 12) * sigma**2
        variance += (1 + weight) * (Q.modulus / B**levels) ** 2 / 12
    else:
        own = [q / P.modulus for q in Q.moduli]
        variance = 2 * n / 12 * sigma**2 * sum(x * x for x in own) + (1 + weight) / 12
    assert abs(float(np.std(noise)) / math.sqrt(variance) - 1) < 0.1
    assert abs(float(np.mean(noise))) < 6 * math.sqrt(variance / noise.size) + B


@on(*CARDS)
@pytest.mark.parametrize("n", [64, 256])  # 64 is too short for one kernel
def test_capture_of_blind_rotate(device: str, n: int) -> None:
    """The exponents are on the card, and each replay reads them again."""
    R = Ring(n, pg.ntt_primes(n, bits=31))
    acc, bsk = R.random((2, 2), seed=1), R.random((3, 2, 2, 2), seed=2).ntt()
    exponents = there(np.arange(8).reshape(2, 4))
    turned = pg.capture(lambda acc: lattice.blind_rotate(acc, bsk, exponents, bits=7), acc)
    for more in (0, 5):
        exponents += more
        assert turned() == lattice.blind_rotate(acc, bsk, host(exponents), bits=7)


@pytest.fixture
def in_one_kernel(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether one kernel served each product."""
    served = []
    kernel = cuda_lattice._by_one_kernel

    def noted(*arguments: Any) -> bool:
        served.append(kernel(*arguments))
        return served[-1]

    monkeypatch.setattr(cuda_lattice, "_by_one_kernel", noted)
    return served


@on(*CARDS)
@pytest.mark.parametrize(
    ("bits", "n", "k", "items", "count", "kind"),
    [
        (30, 256, 2, 140, 1, "negacyclic"),
        (30, 4096, 2, 1, 1, "negacyclic"),
        (31, 256, 2, 140, 2, "negacyclic"),
        (31, 1024, 2, 2, 2, "negacyclic"),
        (32, 256, 3, 1, 3, "cyclic"),
        (32, 256, 2, 133, 1, "negacyclic"),
        (50, 512, 2, 1, 3, "negacyclic"),
        (50, 256, 1, 133, 1, "cyclic"),
        (60, 256, 3, 1, 3, "negacyclic"),
        (62, 256, 2, 3, 0, "cyclic"),
        (62, 2048, 1, 1, 1, "negacyclic"),
        (64, 256, 2, 2, 3, "negacyclic"),
    ],
)
def test_external_product_in_one_kernel(
    device: str, bits: int, n: int, k: int, items: int, count: int, kind: Any, in_one_kernel: list[bool]
) -> None:
    """These polynomials fit one block's memory. The first and last item are checked by definition."""
    R, levels = Ring(n, pg.ntt_primes(n, bits=bits, kind=kind), kind=kind), 3
    x, matrices = draw(R, (items, k), 1), draw(R, (max(count, 1), k, levels, k), 2)
    with pg.device("cpu"):
        c, keys = R(x), R(matrices).ntt()
    exponents = np.random.default_rng(n).integers(-9 * n, 9 * n, (items, 1 + count))
    exponents[0, -1] = exponents[-1, 0] = 0
    same = c.to(device).copy()
    assert lattice.external_product(keys[0].to(device), same, bits=7, out=same) is same
    given = there(exponents)
    found = lattice.blind_rotate(c.to(device), keys[:count].to(device), given, bits=7).cpu().to_bigints()
    products = same.cpu().to_bigints()
    for item in {0, items - 1}:
        np.testing.assert_array_equal(products[item], external(R, matrices[0], x[item], 7))
        total = rotated(R, matrices[:count], x[item], exponents[item], 7)
        np.testing.assert_array_equal(found[item], total)
    with pg.device("cpu"):
        assert (lattice.external_product(keys[0], c, bits=7).to_bigints() == products).all()
        assert (lattice.blind_rotate(c, keys[:count], exponents, bits=7).to_bigints() == found).all()
    assert in_one_kernel == [True, True]


@on(*CARDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_external_product_of_the_shortest_polynomials(device: str, n: int) -> None:
    R = Ring(n, pg.ntt_primes(n, bits=30))
    x, matrix = draw(R, (200, 2), 1), draw(R, (2, 3, 2), 2)
    found = lattice.external_product(R(matrix).ntt(), R(x), bits=7).to_bigints()
    assert (found[-1] == external(R, matrix, x[-1], 7)).all()


@on(*CARDS)
def test_external_product_in_several_kernels(device: str, in_one_kernel: list[bool]) -> None:
    """One kernel does not support four components or matrices that are not aligned."""
    R = Ring(256, pg.ntt_primes(256, bits=31))
    with pg.device("cpu"):
        c, keys = R.random((2, 4), seed=1), R.random((2, 4, 2, 4), seed=2).ntt()
        two, exponents = c[:, :2].copy(), [[3, 5, 7]]
        pairs = R.random((2, 2, 2, 2), seed=3).ntt()
        expected = (
            lattice.blind_rotate(c, keys, exponents, bits=7),
            lattice.blind_rotate(two, pairs, exponents, bits=7),
        )
    assert lattice.blind_rotate(c.to(device), keys.to(device), exponents, bits=7).cpu() == expected[0]
    words = there(np.concatenate([np.zeros(1, R.dtype), pairs.data.ravel()]))[1:]
    odd = R.from_residues(words.reshape(pairs.data.shape), domain="eval", copy=False)
    assert lattice.blind_rotate(two.to(device), odd, exponents, bits=7).cpu() == expected[1]
    assert in_one_kernel and not any(in_one_kernel)


@everywhere
@pytest.mark.parametrize("name", ["30 bits", "50 bits", "cyclic", "2^32", "2^64"])
def test_extract_keeps_the_phase_of_the_coefficient(name: str) -> None:
    R = RINGS[name]
    (q,) = R.moduli
    assert lattice.extract(R.zeros((0, 2)), 0).shape == (0, 1 + R.n)
    for k in (2, 3):
        c, s = draw(R, (2, k), k), draw(R, (k - 1,), k + 1)
        value = R(c).ntt() if name == "50 bits" else R(c)
        for i in (0, 1, R.n - 1):
            found = lattice.extract(value, i)
            assert found.dtype == R.dtype and found.shape == (2, 1 + (k - 1) * R.n)
            for item, vector in zip(c, found.tolist(), strict=True):
                phase = int(item[0][i])
                for a, secret in zip(item[1:], s, strict=True):
                    phase += product(R, a, secret)[i]
                secrets = s.ravel().tolist()
                assert (
                    vector[0] + sum(a * b for a, b in zip(vector[1:], secrets, strict=True)) - phase
                ) % q == 0


# ---- under encryption ----


def encrypted(R: Ring, s: Poly, messages: Poly, seed: int) -> Poly:
    """RLWE encryptions (*batch, 2) of messages in coefficients."""
    mask = R.random(messages.shape, seed=seed)
    noise = R.binomial(4, batch=messages.shape, seed=seed + 1)
    return pg.stack([messages + noise - mask * s, mask], axis=-1)


def ggsw_of(R: Ring, s: Poly, bits_hidden: list[int], bits: int, levels: int, seed: int) -> Poly:
    """GGSW encryptions of bits: (count, 2, levels, 2), evaluated."""
    count = len(bits_hidden)
    zeros = encrypted(R, s, R.zeros((count, 2, levels)), seed)
    data = zeros.to_bigints()
    for i, m in enumerate(bits_hidden):
        for component in range(2):
            for level, weight in enumerate(lattice.gadget(R, bits=bits, levels=levels)):
                data[i, component, level, component, 0] += m * weight
    return R(data).ntt()


@on("cpu", *CARDS)
@pytest.mark.parametrize("q", [pg.ntt_primes(64, bits=31)[0], pg.ntt_primes(64, bits=50)[0]])
def test_blind_rotate_turns_the_phase(device: str, q: int) -> None:
    """The phase turns by the exponents of the encrypted bits, and the noise stays within its bound."""
    R, bits, levels, hidden = Ring(64, q), 7, 3, [1, 0, 1, 1, 0, 1]
    s = R.ternary(seed=1)
    key = ggsw_of(R, s, hidden, bits, levels, 2)
    message = R([q // 8 * (i % 8) for i in range(64)])
    acc = encrypted(R, s, pg.stack([message, message]), 9)
    exponents = np.array([[3, 5, 7, 11, 100, 13, 17], [0, 1, 2, 3, 4, 5, 6]])
    turned_by = [(e[0] + sum(b * x for b, x in zip(hidden, e[1:], strict=True))) for e in exponents.tolist()]
    found = lattice.blind_rotate(acc, key, exponents, bits=bits)
    # Noise of a step: 2 levels n products of a digit of at most B/2 and noise |e| <= 4, and the rounding of
    # digits for the body and for each coefficient of s.
    step = 2 * levels * 64 * 2**bits / 2 * 4 + (1 + 64) * (
        q / 2 / 2 ** (bits * levels) + levels * 2**bits / 4
    )
    for item, e in zip(found, turned_by, strict=True):
        phase = item[0] + item[1] * s
        noise = (phase - message.mul_monomial(int(e))).norm(math.inf)
        assert 0 < noise <= 4 + len(hidden) * step < q / 16


# ---- products by FFT ----

WITHOUT_TRANSFORM = ["2^32", "2^64", "2^20", "2^63", "2^64 - 59", "leaves"]


@over(WITHOUT_TRANSFORM, ["2^32", "2^64", "leaves"])
def test_external_product_with_prepared_matrices(name: str) -> None:
    R = RINGS[name]
    for k, bits, levels in ((2, 4, 3), (1, 19, 1), (3, 5, 2)):
        matrices, c = draw(R, (3, k, levels, k), bits), draw(R, (2, k), levels)
        prepared = lattice.prepare(R(matrices), bits=bits)
        assert isinstance(prepared, lattice.Prepared)
        assert (prepared.ring, prepared.shape, prepared.bits) == (R, (3, k, levels, k), bits)
        assert prepared.device == R.zeros().device and "Prepared(" in repr(prepared)
        exponents = np.random.default_rng(k).integers(-99, 99, (2, 4))
        found = lattice.blind_rotate(R(c), prepared, exponents, bits=bits)
        for item, x, powers in zip(found.to_bigints(), c, exponents, strict=True):
            np.testing.assert_array_equal(item, rotated(R, matrices, x, powers, bits))
        one = lattice.prepare(R(matrices[1]), bits=bits)
        product = lattice.external_product(one, R(c), bits=bits)
        expected = [external(R, matrices[1], x, bits) for x in c]
        np.testing.assert_array_equal(product.to_bigints(), np.array(expected))
        other = R(draw(R, (2, k), 9))
        assert lattice.cmux(one, other, R(c), bits=bits) == lattice.cmux(
            R(matrices[1]), other, R(c), bits=bits
        )


@on("cpu", *CARDS)
@pytest.mark.parametrize(
    ("log_q", "n", "bits", "levels"), [(32, 1024, 7, 3), (64, 512, 7, 4), (64, 256, 23, 1)]
)
def test_external_product_of_the_largest_digits(
    device: str, log_q: int, n: int, bits: int, levels: int
) -> None:
    """All digits of c and all pieces of the matrix have their largest size and equal signs."""
    R, k, q = Ring(n, 2**log_q), 2, 2**log_q
    gadget = gadgets.gadget_of(R._plan, bits, levels, components=k)
    assert gadget.product is not None and gadget.product.terms == k * levels
    width, half = gadget.product.width, -(1 << bits - 1)
    largest = sum(half * g for g in lattice.gadget(R, bits=bits, levels=levels)) % q
    assert set(digits_of(largest, q, bits, levels)) == {half}
    pieces = -sum(1 << width * i + width - 1 for i in range(gadget.product.digits)) % q
    c = R(np.full((1, k, n), largest, object)).to(device)
    ggsw = R(np.full((k, levels, k, n), pieces, object)).to(device)
    found = lattice.external_product(ggsw, c, bits=bits).to_bigints()
    row = [k * levels * half * pieces * (2 * i + 2 - n) % q for i in range(n)]
    assert found.tolist() == [[row] * k]


@settings(max_examples=80)
@given(st.integers(2, 2**64), st.sampled_from(["negacyclic", "cyclic"]), st.data())
def test_external_product_modulo_any_number(q: int, kind: Any, data: st.DataObject) -> None:
    total = data.draw(st.integers(1, q.bit_length() - 1))
    bits = data.draw(st.integers(1, total))
    levels = data.draw(st.integers(1, min(3, total // bits)))
    n, k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 2))
    R, seed = Ring(n, q, kind=kind), data.draw(st.integers(0, 99))
    matrix, c = draw(R, (k, levels, k), seed), draw(R, (k,), seed + 1)
    found = lattice.external_product(lattice.prepare(R(matrix), bits=bits), R(c), bits=bits)
    np.testing.assert_array_equal(found.to_bigints(), external(R, matrix, c, bits))


@on(*CARDS)
def test_external_product_in_many_chunks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R = Ring(32, 2**32)
    ggsw, c = R.random((2, 3, 2), seed=1), R.random((7, 2), seed=2)
    monkeypatch.setattr(cuda.multiply, "_CHUNK_BYTES", 1 << 13)  # chunks of three ciphertexts
    found = lattice.external_product(ggsw.to(device), c.to(device), bits=7)
    assert found.cpu() == lattice.external_product(ggsw.cpu(), c.cpu(), bits=7)


def test_prepare_without_an_exact_fft() -> None:
    """Digits are multiplied as polynomials if the ring asks for "ntt" or no FFT is proven exact."""
    rng, exact = Ring(32, 2**32, product="ntt"), Ring(32, 2**32)
    ggsw, c = rng.random((2, 3, 2), seed=1), rng.random((3, 2), seed=2)
    assert lattice.prepare(ggsw, bits=7) is ggsw
    found = lattice.external_product(ggsw, c, bits=7)
    wanted = lattice.external_product(exact.from_residues(ggsw.data), exact.from_residues(c.data), bits=7)
    np.testing.assert_array_equal(found.data, wanted.data)
    wide = Ring(8, 2**64)
    ggsw, c = wide.random((1, 1, 1), seed=1), wide.random((1, 1), seed=2)
    assert gadgets.gadget_of(wide._plan, 40, 1, components=1).by_polynomials
    expected = external(wide, ggsw.to_bigints(), c[0].to_bigints(), 40)
    np.testing.assert_array_equal(lattice.external_product(ggsw, c, bits=40)[0].to_bigints(), expected)
    turned = lattice.blind_rotate(c, ggsw.reshape(1, 1, 1, 1), [[3, 5]], bits=40)[0]
    matrices = ggsw.to_bigints()[None]
    np.testing.assert_array_equal(
        turned.to_bigints(), rotated(wide, matrices, c[0].to_bigints(), np.array([3, 5]), 40)
    )


def test_prepared_matrices_raise_for_other_digits_and_rings() -> None:
    R = Ring(32, 2**32)
    ggsw, c = R.random((2, 3, 2), seed=1), R.random((3, 2), seed=2)
    prepared = lattice.prepare(ggsw, bits=7)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: lattice.external_product(prepared, c, bits=8), pg.ParameterError, "for digits of 7 bits"),
        (
            lambda: lattice.external_product(prepared, Ring(32, 2**31)(c.data), bits=7),
            pg.RingMismatch,
            "ggsw is of",
        ),
        (
            lambda: lattice.external_product(prepared, c[:, :1], bits=7),
            pg.ParameterError,
            "the number of components",
        ),
        (
            lambda: lattice.blind_rotate(c, prepared, [0] * 4, bits=7),
            pg.ParameterError,
            "bsk has batch shape",
        ),
        (
            lambda: lattice.prepare(ggsw[0], bits=7),
            pg.ParameterError,
            "must have one of the shapes \\(k, levels, k\\)",
        ),
        (lambda: lattice.prepare(ggsw, bits=11), pg.ParameterError, "at most"),
        (lambda: lattice.prepare(3, bits=7), pg.RingMismatch, "ggsw must be a Poly, not int"),  # type: ignore[arg-type]
        (lambda: lattice.prepare(prepared, bits=7), pg.ParameterError, "already prepared"),  # type: ignore[arg-type]
        (lambda: lattice.prepare(ggsw[None, None], bits=7), pg.ParameterError, "2\\*\\*g for groups"),
        (
            lambda: lattice.prepare(ggsw[:0, :, :0], bits=7),
            pg.ParameterError,
            "must have one of the shapes \\(k, levels, k\\)",
        ),
        (lambda: pickle.dumps(prepared), TypeError, "prepare them again"),
        (lambda: copy.deepcopy(prepared), TypeError, "prepare them again"),
        (lambda: lattice.blind_rotate(c, ggsw[None], 3, bits=7), pg.ParameterError, "exponents has shape"),
        (
            lambda: lattice.blind_rotate(None, ggsw[None], [3], bits=7),  # type: ignore[arg-type]
            pg.RingMismatch,
            "acc must be a Poly, not NoneType",
        ),
        (lambda: lattice.prepare(ggsw, bits=1.5), pg.errors.NotAnInteger, "bits"),  # type: ignore[arg-type]
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text):
            call()
    with pg.device("reference"), pytest.raises(pg.DeviceError, match="was prepared on cpu"):
        lattice.external_product(prepared, c, bits=7)
    before = _cpu.isa()
    try:
        _cpu.set_isa("portable" if before != "portable" else "avx2")
        with pytest.raises(pg.DeviceError, match=f"prepared for the instruction set {before}"):
            lattice.external_product(prepared, c, bits=7)
    finally:
        _cpu.set_isa(before)
    assert lattice.prepare(Ring(16, 97).zeros((2, 1, 2)), bits=6).domain == "eval"  # type: ignore[union-attr]


@on("cpu", *CARDS)
def test_out_that_overlaps_an_operand_raises(device: str) -> None:
    """`out` may be neither the operand itself nor a view of its memory."""
    R = RINGS["30 bits"]
    c, ggsw = R.random((2, 3, 2), seed=1), R.random((2, 3, 2), seed=2).ntt()
    bsk, exponents = R.random((4, 2, 3, 2), seed=3).ntt(), [[[0] * 5] * 3] * 2
    for out in (c, c.reshape(2, 3, 2), c[:]):
        before = c.copy()
        with pytest.raises(pg.errors.OutputError, match="operand"):
            lattice.blind_rotate(c, bsk, exponents, bits=4, out=out)
        assert c == before
    for out in (ggsw, ggsw.reshape(2, 3, 2)):
        before = ggsw.copy()
        with pytest.raises(pg.errors.OutputError, match="operand"):
            lattice.external_product(ggsw, c, bits=4, out=out)
        assert ggsw == before


def test_invalid_arguments_raise() -> None:
    R = RINGS["30 bits"]
    ggsw, c = R.random((2, 3, 2), seed=1).ntt(), R.random((5, 2), seed=2)
    bsk = R.random((4, 2, 3, 2), seed=3).ntt()
    many = Ring(16, pg.ntt_primes(16, bits=30, count=2))
    of_three, longer = many.random((2, 3, 2), seed=4).ntt(), Ring(16, pg.ntt_primes(16, bits=40, count=2))
    wide, s = Ring(16, 2**100), R.ternary(1, seed=1)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: lattice.decompose(many.zeros(), bits=4, levels=16), pg.ParameterError, "at most q"),
        (
            lambda: lattice.decompose(longer.zeros(), bits=13, levels=5),
            pg.ParameterError,
            "must be at most 64",
        ),
        (lambda: lattice.gadget(wide, bits=13, levels=5), pg.ParameterError, "at most 2"),
        (lambda: lattice.decompose(wide.zeros(), bits=13, levels=5), pg.ParameterError, "at most 2"),
        (lambda: lattice.gadget(longer, bits=100, levels=1), pg.ParameterError, "at most q"),
        (lambda: lattice.gadget(longer, bits=1, levels=81), pg.ParameterError, "at most q"),
        (lambda: lattice.gadget(longer, bits=13, levels=5), pg.ParameterError, "must be at most 64"),
        (lambda: lattice.gadget(longer, bits=10**30, levels=1), pg.ParameterError, "at most q"),
        (
            lambda: lattice.ggsw([2**63], s, bits=4, levels=2, sigma=3.2),
            pg.ParameterError,
            "messages contains .*2..63",
        ),
        (
            lambda: lattice.ggsw([1], s, bits=4, limbs_per_digit=1, special=many[1:], sigma=3.2),
            pg.ParameterError,
            "Give either bits and levels",
        ),
        (
            lambda: lattice.ggsw([1], s, limbs_per_digit=1, special=5, sigma=3.2),  # type: ignore[arg-type]
            pg.ParameterError,
            "special must be a Ring, not int",
        ),
        (
            lambda: lattice.blind_rotate(c, of_three[None], [0, 0], limbs_per_digit=1, special=many[1:]),
            pg.ParameterError,
            "bsk has 3 levels and must have 1",
        ),
        (
            lambda: lattice.external_product(of_three, c, bits=4),
            pg.RingMismatch,
            "special primes, give limbs_per_digit",
        ),
        (lambda: lattice.external_product(ggsw, c), pg.ParameterError, "Give either bits"),
        (
            lambda: lattice.external_product(ggsw, c, bits=4, limbs_per_digit=1, special=R),
            pg.ParameterError,
            "Give either bits",
        ),
        (lambda: lattice.external_product(ggsw, c, limbs_per_digit=1), pg.ParameterError, "Give either bits"),
        (
            lambda: lattice.external_product(ggsw, c, limbs_per_digit=1, special=many[1:]),
            pg.RingMismatch,
            "ggsw is of .*join",
        ),
        (
            lambda: lattice.external_product(of_three, c, limbs_per_digit=1, special=many[1:]),
            pg.ParameterError,
            "must have 1\\..*each group of",
        ),
        (
            lambda: lattice.external_product(of_three, c, limbs_per_digit=1, special=R),
            pg.ParameterError,
            "coprime",
        ),
        (lambda: lattice.ggsw([1], s, bits=4, sigma=3.2), pg.ParameterError, "Give either bits and levels"),
        (
            lambda: lattice.ggsw([1], s, bits=4, levels=2, limbs_per_digit=1, special=many[1:], sigma=3.2),
            pg.ParameterError,
            "Give either bits and levels",
        ),
        (lambda: lattice.prepare(of_three, bits=4, precision="double"), pg.ParameterError, "'double'"),
        (lambda: lattice.decompose(R.zeros(), bits=16, levels=2), pg.ParameterError, "at most q"),
        (lambda: lattice.decompose(R.zeros(), bits=0, levels=2), pg.ParameterError, "at least 1"),
        (lambda: lattice.decompose(R.zeros(), bits=2, levels=-1), pg.ParameterError, "at least 1"),
        (lambda: lattice.decompose(R.zeros(), bits=10**30, levels=10**30), pg.ParameterError, "at most q"),
        (lambda: lattice.decompose(R.zeros(), bits=2.5, levels=1), pg.errors.NotAnInteger, "bits"),
        (lambda: lattice.decompose(3, bits=2, levels=1), pg.RingMismatch, "a must be a Poly, not int"),  # type: ignore[arg-type]
        (
            lambda: lattice.decompose(R.zeros(), bits=4, levels=2, out=R.zeros(3)),
            pg.errors.OutputError,
            "out",
        ),
        (lambda: lattice.gadget(5, bits=4, levels=2), pg.ParameterError, "ring must be a Ring, not int"),  # type: ignore[arg-type]
        (lambda: lattice.decompose_integers([1.5], q=17, bits=1, levels=1), pg.errors.CoefficientError, "x"),
        (lambda: lattice.decompose_integers([1], q=2**65, bits=1, levels=1), pg.ParameterError, "q="),
        (lambda: lattice.external_product(ggsw.intt(), c, bits=4), pg.ParameterError, "in coefficients"),
        (
            lambda: lattice.external_product(ggsw, c[:, 0], bits=4),
            pg.ParameterError,
            "the number of components",
        ),
        (
            lambda: lattice.external_product(ggsw[:1], c, bits=4),
            pg.ParameterError,
            "the number of components",
        ),
        (
            lambda: lattice.external_product(R.zeros((0, 3, 0)).ntt(), R.zeros((5, 0)), bits=4),
            pg.ParameterError,
            "k >= 1",
        ),
        (lambda: lattice.external_product(ggsw, c, bits=11), pg.ParameterError, "at most"),
        (lambda: lattice.external_product(ggsw, c, bits=4, out=c[:1]), pg.errors.OutputError, "out"),
        (lambda: lattice.cmux(ggsw, c, c[:1], bits=4), pg.ParameterError, "batch shape of c1 is"),
        (
            lambda: lattice.blind_rotate(c, bsk, np.zeros((5, 4)), bits=4),
            pg.errors.CoefficientError,
            "exponents",
        ),
        (
            lambda: lattice.blind_rotate(c, bsk, np.zeros((5, 4), int), bits=4),
            pg.ParameterError,
            "must have 5",
        ),
        (
            lambda: lattice.blind_rotate(c, bsk, np.zeros((3, 5), int), bits=4),
            pg.ParameterError,
            "batch shape",
        ),
        (lambda: lattice.blind_rotate(c, bsk, [0] * 5, bits=4, out=c), pg.errors.OutputError, "operand"),
        (lambda: lattice.blind_rotate(c, ggsw, [0] * 3, bits=4), pg.ParameterError, "bsk must have .*count"),
        (lambda: lattice.external_product(bsk, c, bits=4), pg.ParameterError, "ggsw must have \\(k"),
        (lambda: lattice.extract(c, 16), pg.ParameterError, "i=16"),
        (lambda: lattice.extract(R.zeros(), 0), pg.ParameterError, "a ciphertext"),
        (lambda: lattice.extract(many.zeros(2), 0), pg.ParameterError, "one modulus"),
        (
            lambda: lattice.external_product(Ring(16, 97).random((2, 1, 2)).ntt(), c, bits=4),
            pg.RingMismatch,
            "different rings",
        ),
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text):
            call()
