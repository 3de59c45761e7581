"""The expected results of ring operations, by Python ints and python-flint, and the rings of the tests."""

from __future__ import annotations

import math
import random
import sys
from functools import cache, partial
from typing import Any

import flint
import numpy as np
import pytest
from devices import agree, backend, card_name, over, same

import polygpu as pg
from polygpu import Poly, Ring, lattice, ntt_primes

GOLDILOCKS = 2**64 - 2**32 + 1
BABYBEAR = 15 * 2**27 + 1


# Each name maps to the degree n, the moduli, and the sign s of the polynomial X^n + s, or 0 for
# X^n - X^(n/2) + 1. The rings cover every word size, every way to multiply, and even and odd degrees.
RINGS: dict[str, tuple[int, int | list[int], int]] = {
    "20 bits": (16, ntt_primes(16, bits=20), +1),
    "20 bits cyclic": (32, ntt_primes(32, bits=20, kind="cyclic"), -1),
    "30 bits": (64, ntt_primes(64, bits=30), +1),
    "BabyBear, 31 bits": (32, BABYBEAR, +1),
    "32 bits": (16, ntt_primes(16, bits=32), +1),
    "50 bits": (32, ntt_primes(32, bits=50), +1),
    "50 bits cyclic": (8, ntt_primes(8, bits=50, kind="cyclic"), -1),
    "60 bits": (16, ntt_primes(16, bits=60), +1),
    "62 bits": (64, ntt_primes(64, bits=62), +1),
    "63 bits": (16, ntt_primes(16, bits=63), +1),
    "64 bits": (32, ntt_primes(32, bits=64), +1),
    "Goldilocks": (64, GOLDILOCKS, +1),
    "Goldilocks cyclic": (16, GOLDILOCKS, -1),
    "30 bits, trinomial": (16, ntt_primes(16, bits=30, kind="trinomial"), 0),
    "31 bits, trinomial": (8, ntt_primes(8, bits=31, kind="trinomial"), 0),
    "32 bits, trinomial": (32, ntt_primes(32, bits=32, kind="trinomial"), 0),
    "50 bits, trinomial": (64, ntt_primes(64, bits=50, kind="trinomial"), 0),
    "60 bits, trinomial": (16, ntt_primes(16, bits=60, kind="trinomial"), 0),
    "62 bits, trinomial": (8, ntt_primes(8, bits=62, kind="trinomial"), 0),
    "64 bits, trinomial": (4, ntt_primes(4, bits=64, kind="trinomial"), 0),
    "Goldilocks, trinomial": (32, GOLDILOCKS, 0),
    "RNS of 3, trinomial": (
        16,
        [q for b in (20, 50, 64) for q in ntt_primes(16, bits=b, kind="trinomial")],
        0,
    ),
    "leaves of 3": (48, 7681, 0),
    "leaves of 3, RNS": (12, ntt_primes(12, bits=60, kind="trinomial", count=2), 0),
    "leaves of 3, two of them": (6, 13, 0),
    "degree 2, trinomial": (2, 7, 0),
    "degree 10, trinomial": (10, 10**9, 0),
    "degree 14, trinomial": (14, 2**61 - 1, 0),
    "2^64, trinomial": (12, 2**64, 0),
    "q = 2, trinomial": (6, 2, 0),
    "degree 1": (1, 17, +1),
    "degree 1 cyclic, q = 2": (1, 2, -1),
    "degree 2": (2, 5, +1),
    "RNS of 3": (16, ntt_primes(16, bits=30, count=3), +1),
    "RNS of 3 words": (16, [q for b in (20, 50, 64) for q in ntt_primes(16, bits=b)], +1),
    "RNS of 3 cyclic": (8, ntt_primes(8, bits=60, count=3, kind="cyclic"), -1),
    "ML-KEM": (256, 3329, +1),
    "1 layer early, cyclic": (16, 41, -1),
    "1 layer early, RNS": (16, [17, 97], +1),
    "2 layers early": (16, 41, +1),
    "3 layers early": (16, 5, +1),
    "1 leaf": (8, 7, +1),
    "unfriendly prime": (16, 1_000_003, +1),
    "unfriendly prime, 33 bits": (9, 2**33 - 9, +1),
    "unfriendly prime, 61 bits": (6, 2**61 - 1, -1),
    "degree 12": (12, 97, +1),
    "degree 15": (15, 97, -1),
    "degree 7": (7, 2**31 - 1, +1),
    "composite": (16, 10**9, +1),
    "q = 2": (8, 2, +1),
    "q = 3": (4, 3, -1),
    "2^32": (16, 2**32, +1),
    "2^32 - 1": (5, 2**32 - 1, -1),
    "2^64": (12, 2**64, -1),
    "2^64 - 1": (9, 2**64 - 1, +1),
    "RNS of mixed moduli": (8, [2**20, 97, 3**5], +1),
    "RNS with 2^64": (6, [2**64, 3, 2**64 - 59], -1),
    "2^65": (8, 2**65, +1),
    "2^128": (4, 2**128, +1),
    "65 bits, composite": (9, 2**64 + 1, +1),
    "wide composite": (6, 10**40, -1),
    "wide unfriendly prime": (12, 2**89 - 1, -1),
    "wide prime, 100 bits": (8, ntt_primes(8, bits=100), +1),
    "wide prime, 128 bits, cyclic": (16, ntt_primes(16, bits=128, kind="cyclic"), -1),
    "wide prime, 300 bits": (4, ntt_primes(4, bits=300), +1),
    "wide prime, 100 bits, trinomial": (8, ntt_primes(8, bits=100, kind="trinomial"), 0),
    "wide, leaves of 3": (12, ntt_primes(12, bits=90, kind="trinomial"), 0),
    "2^128, trinomial": (6, 2**128, 0),
    "wide, 1 layer early": (8, next(q for q in ntt_primes(4, bits=90, count=9) if (q - 1) % 16), +1),
}


@cache
def ring(name: str) -> Ring:
    n, moduli, sign = RINGS[name]
    return Ring(n, moduli, kind={1: "negacyclic", -1: "cyclic", 0: "trinomial"}[sign])


# One ring for each code path, for tests whose rule does not depend on the modulus and for slow devices.
FEW = [
    "30 bits",
    "RNS of 3 words",
    "ML-KEM",
    "composite",
    "2^128",
    "wide prime, 100 bits",
    "RNS of 3, trinomial",
]
FEW += ["leaves of 3, RNS"]
WITH_EVAL = [name for name in RINGS if ring(name).has_eval]
every_ring = over(RINGS, FEW)
every_transform = over(WITH_EVAL, FEW)
few_rings = over(FEW)
few_transforms = over([name for name in FEW if name in WITH_EVAL])
everywhere = pytest.mark.usefixtures("device")

R17 = Ring(4, 17)
RNS = Ring(4, [17, 97, 193])

# Domains of two operands and of their result.
DOMAINS = [
    ("coef", "coef", "coef"),
    ("eval", "eval", "eval"),
    ("coef", "eval", "eval"),
    ("eval", "coef", "eval"),
]

# ---- object arrays (*batch, n) of Python ints in [0, Q) ----


def draw(R: Ring, batch: tuple[int, ...] = (), seed: int = 0) -> np.ndarray:
    """Draw elements, many coefficients of which are edge cases. Equal arguments give equal elements."""
    rng, q = random.Random(f"{R!r} {batch} {seed}"), R.modulus
    edges = [0, 1, q - 1, q // 2, (q + 1) // 2 % q]
    values = np.empty(math.prod(batch) * R.n, dtype=object)
    for i in range(len(values)):
        values[i] = rng.choice(edges) if rng.random() < 0.3 else rng.randrange(q)
    return values.reshape(*batch, R.n)


def padded(R: Ring, values: list[int]) -> np.ndarray:
    return np.array([*values, *[0] * (R.n - len(values))], dtype=object)


def times_monomial(R: Ring, x: Any, k: int) -> list[int]:
    """Multiply x by X^k, for any integer k."""
    return fold(R, [*[0] * (k % (6 * R.n)), *x])  # X^6n = 1 in every ring


def centred(x: int, m: int) -> int:
    """Return the representative of x modulo m in [-m/2, m/2)."""
    x %= m
    return x - m if 2 * x >= m else x


def fold(R: Ring, coefficients: list[int]) -> list[int]:
    """Return the remainder modulo the ring's polynomial and modulo Q."""
    return [c % R.modulus for c in remainder(R.kind, R.n, coefficients)]


def remainder(kind: str, n: int, coefficients: Any) -> list[int]:
    """Return the remainder modulo the polynomial of this kind and degree, by long division."""
    rest = [int(c) for c in coefficients]
    for i in reversed(range(n, len(rest))):
        if kind == "trinomial":
            rest[i - n // 2] += rest[i]
        rest[i - n] += rest[i] if kind == "cyclic" else -rest[i]
    return [*rest, *[0] * n][:n]


def product(R: Ring, x: Any, y: Any) -> list[int]:
    """Multiply two polynomials, each a row of n ints."""
    z = flint.fmpz_poly([int(v) for v in x]) * flint.fmpz_poly([int(v) for v in y])
    return fold(R, [int(c) for c in z])


def times(R: Ring, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Multiply two batches of polynomials, which broadcast."""
    x, y = np.broadcast_arrays(x, y)
    z = np.empty(x.shape, dtype=object)
    for i in np.ndindex(x.shape[:-1]):
        z[i] = product(R, x[i], y[i])
    return z


def value_at(row: Any, x: int, q: int) -> int:
    """Evaluate the polynomial with the coefficients `row` at x modulo q, by the definition."""
    return sum(int(c) * pow(x, j, q) for j, c in enumerate(row)) % q


def bit_reversed(k: int, points: int) -> int:
    result = 0
    for _ in range(points.bit_length() - 1):
        result, k = 2 * result + k % 2, k // 2
    return result


def leaf_points(R: Ring, limb: int, natural: bool = False) -> list[int]:
    """Return the points x_k at which the ring's transform must evaluate, in its order or the natural one.

    For an incomplete transform x_k is the constant of the leaf X^leaf_size - x_k.
    """
    q, root, points = R.moduli[limb], R.roots[limb], R.n // R.leaf_size
    if R.kind == "trinomial":
        half = [6 * bit_reversed(k, points // 2) for k in range(points // 2)]
        exponents = [e + 1 for e in half] + [(e - 1) % (3 * points) for e in half]
        return [pow(root, e, q) for e in (sorted(exponents) if natural else exponents)]
    order = [k if natural else bit_reversed(k, points) for k in range(points)]
    return [pow(root, 2 * k + 1 if R.kind == "negacyclic" else k, q) for k in order]


def residues(R: Ring, x: np.ndarray) -> list[Any]:
    """Return what Poly.data must hold for the coefficients x, as nested lists (*batch, rows, n)."""
    if R.rows != len(R.moduli):
        rows = [x % R.modulus >> 64 * i & (1 << 64) - 1 for i in range(R.rows)]
    else:
        rows = [x % q for q in R.moduli]
    return np.stack(rows, axis=-2).tolist()


def check(poly: Poly, expected: Any, domain: str = "coef", batch: Any = None) -> None:
    """Assert that a Poly has the expected coefficients, and all properties that every Poly must have."""
    expected = np.array(expected, dtype=object)
    R = poly.ring
    assert type(poly.data) is backend().xp.ndarray and poly.data.dtype == R.dtype
    assert poly.data.dtype.isnative and poly.data.flags.c_contiguous
    assert not isinstance(poly.data, np.ndarray) or poly.data.flags.aligned
    assert poly.domain == domain
    assert poly.data.shape == (*poly.shape, R.rows, R.n)
    assert poly.shape == (expected.shape[:-1] if batch is None else batch)
    with pg.debug():
        R.from_residues(poly.data, domain=poly.domain)  # canonical
    assert poly.to_bigints().tolist() == expected.tolist()


def in_domain(poly: Poly, domain: str) -> Poly:
    return poly.ntt() if domain == "eval" else poly.intt()


BYTE_ORDER = "<" if sys.byteorder == "little" else ">"
LAYOUTS = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "Fortran": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "unaligned": lambda x: np.frombuffer(b"?" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "unaligned, other byte order": lambda x: np.frombuffer(
        b"?" + x.astype(x.dtype.newbyteorder()).tobytes(), x.dtype.newbyteorder(), offset=1
    ).reshape(x.shape),
    "order of bytes by name": lambda x: x.view(x.dtype.newbyteorder(BYTE_ORDER)),
    "subclass": lambda x: x.view(np.recarray),
}


# ---- comparisons of a card with the CPU ----

KINDS = ("negacyclic", "cyclic")


def drawn(R: Ring, batch: tuple[int, ...] = (), seed: int = 0) -> Poly:
    """Draw a value on the host, with uniform residues and many edge cases.

    All coefficients of the first polynomial of a batch are Q - 1.
    """
    if R._plan.basis.wide:
        source = random.Random(f"{R!r} {batch} {seed}")
        edges = [0, 1, R.modulus // 2, R.modulus - 1]
        values = np.empty(math.prod(batch) * R.n, dtype=object)
        for i in range(len(values)):
            values[i] = source.choice(edges) if source.random() < 0.3 else source.randrange(R.modulus)
        if batch:
            values[: R.n] = R.modulus - 1
        with pg.device("cpu"):
            return R(values.reshape(*batch, R.n))
    rng = np.random.default_rng([seed, R.n, *batch])
    data = np.empty((*batch, R.rows, R.n), R.dtype)
    for i, q in enumerate(R.moduli):
        x = rng.integers(0, q - 1, size=(*batch, R.n), dtype=np.uint64, endpoint=True)
        edges_of_limb = np.array([0, 1, q // 2, q - 1], dtype=np.uint64)
        at = rng.random(x.shape) < 0.2
        x[at] = rng.choice(edges_of_limb, size=int(at.sum()))
        data[..., i, :] = x
        if batch and data.size:
            data[(0,) * len(batch)][i] = q - 1
    return R.from_residues(data)


def check_ring(R: Ring, batch: tuple[int, ...] = (3,)) -> None:
    """Compare every operation of a ring on a card with the CPU.

    The operands have random coefficients, edge cases and the largest coefficients.
    """
    a, b = drawn(R, batch, 1), drawn(R, batch[-1:], 2)
    for x, y in ((a, b), (a, a)):
        agree(Poly.add, x, y)
        agree(Poly.sub, x, y)
        for method in ("auto", "ntt"):
            agree(partial(Poly.mul, product=method), x, y)
    agree(Poly.neg, a)
    agree(lambda x: x * (R.modulus - 2), a)
    agree(lambda x: x * x, a)
    agree(Poly.sum, a)
    g = next(g for g in range(R.n // 2 + 3, 4 * R.n + 4) if math.gcd(g, 6 * R.n) == 1)
    agree(lambda x: x.automorphism(g), a)
    agree(lambda x: x.mul_monomial(-3), a)
    if not R.has_eval:
        if not R._plan.basis.wide:
            check_methods(a, b)
        return
    check_transform(a)
    e, f = a.ntt(), b.ntt()
    agree(Poly.add, e, f)
    agree(Poly.mul, e, f)
    agree(Poly.mul, e, e)
    agree(pg.fma, e, f, f)
    agree(lambda x: x.automorphism(g), e)


def check_methods(a: Poly, b: Poly, methods: tuple[Any, ...] = ("ntt", "fft")) -> None:
    """Check the methods between which a card chooses for products: auxiliary primes ("ntt") and FFT."""
    for x, y in ((a, b), (a, a)):
        expected = x.mul(y, product="ntt")
        for method in methods:
            same(x.to(card_name()).mul(y.to(card_name()), product=method), expected)


def edges(R: Ring, batch: tuple[int, ...], seed: int) -> Poly:
    """Make a value on the host whose first three polynomials have only edge cases as residues.

    The residues are q // 2 in the first polynomial, alternately q // 2 and q // 2 + 1 in the second, and
    q - 1 in the third. Other polynomials are as in `drawn`.
    """
    a = drawn(R, batch, seed)
    rows = a.data.reshape(-1, R.rows, R.n)
    for limb, q in enumerate(R.moduli):
        half, other = q // 2, (q // 2 + 1) % q
        for row, (even, odd) in zip(rows, ((half, half), (half, other), (q - 1, q - 1)), strict=False):
            row[limb, ::2], row[limb, 1::2] = even, odd
    return a


def check_products_by_fft(R: Ring, batch: tuple[int, ...]) -> None:
    check_methods(edges(R, batch, 1), edges(R, batch[-1:], 2), ("fft",))


def check_transform(a: Poly) -> None:
    agree(Poly.ntt, a)
    agree(Poly.intt, a.ntt())
    agree(Poly.intt, Poly(a.ring, a.data, "eval"))  # a.data has the largest residues, now as evaluated values


def prime(n: int, bits: int, kind: Any = "negacyclic") -> int:
    """Return the largest prime of this bit length with a transform of degree n, or skip the test."""
    try:
        return ntt_primes(n, bits=bits, kind=kind)[0]
    except pg.ParameterError as error:
        pytest.skip(str(error))


def chain(n: int, bits: tuple[int, ...], kind: Any = "negacyclic") -> Ring:
    """Return a ring whose limbs are primes of these bit lengths."""
    primes = {size: iter(ntt_primes(n, bits=size, count=bits.count(size), kind=kind)) for size in set(bits)}
    return Ring(n, [next(primes[size]) for size in bits], kind=kind)


def as_key(value: Poly, size: int, special: Ring, g: int | None = None) -> lattice.SwitchKey:
    """Make a switching key of `value`, whose batch shape is (digits, 2).

    Its ring has all limbs of `value` that are not in `special`.
    """
    own = [i for i, q in enumerate(value.ring.moduli) if q not in special.moduli]
    return lattice.SwitchKey(
        value, ring=value.ring[own], special=special, limbs_per_digit=size, galois_element=g
    )


def as_keys(gs: Any, values: Any, size: int, special: Ring) -> list[lattice.SwitchKey]:
    """Make a list of rotation keys: one for each Galois element in `gs` and value in `values`."""
    return [as_key(value, size, special, g) for g, value in zip(gs, values, strict=True)]


def halved(n: int, bits: int, layers: int) -> int:
    """Return a prime whose transform of degree n must stop `layers` layers early."""
    order = 2 * n >> layers
    return next(q for q in ntt_primes(order // 2, bits=bits, count=50) if (q - 1) % (2 * order))
