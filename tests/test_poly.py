"""The contract of Poly, operation by operation, against Python ints and python-flint."""

from __future__ import annotations

import copy
import enum
import math
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import flint
import numpy as np
import pytest

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes

GOLDILOCKS = 2**64 - 2**32 + 1
BABYBEAR = 15 * 2**27 + 1

# name: degree, moduli, sign of X^n + sign. Every word, every way to multiply, degrees of any parity.
RINGS: dict[str, tuple[int, int | list[int], int]] = {
    "20 bits": (16, ntt_primes(16, 20), +1),
    "20 bits cyclic": (32, ntt_primes(32, 20, kind="cyclic"), -1),
    "30 bits": (64, ntt_primes(64, 30), +1),
    "BabyBear, 31 bits": (32, BABYBEAR, +1),
    "32 bits": (16, ntt_primes(16, 32), +1),
    "50 bits": (32, ntt_primes(32, 50), +1),
    "50 bits cyclic": (8, ntt_primes(8, 50, kind="cyclic"), -1),
    "60 bits": (16, ntt_primes(16, 60), +1),
    "62 bits": (64, ntt_primes(64, 62), +1),
    "63 bits": (16, ntt_primes(16, 63), +1),
    "64 bits": (32, ntt_primes(32, 64), +1),
    "Goldilocks": (64, GOLDILOCKS, +1),
    "Goldilocks cyclic": (16, GOLDILOCKS, -1),
    "degree 1": (1, 17, +1),
    "degree 1 cyclic, q = 2": (1, 2, -1),
    "degree 2": (2, 5, +1),
    "RNS of 3": (16, ntt_primes(16, 30, 3), +1),
    "RNS of 3 words": (16, [q for b in (20, 50, 64) for q in ntt_primes(16, b)], +1),
    "RNS of 3 cyclic": (8, ntt_primes(8, 60, 3, kind="cyclic"), -1),
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
    "wide prime, 100 bits": (8, ntt_primes(8, 100), +1),
    "wide prime, 128 bits, cyclic": (16, ntt_primes(16, 128, kind="cyclic"), -1),
    "wide prime, 300 bits": (4, ntt_primes(4, 300), +1),
    "wide, 1 layer early": (8, next(q for q in ntt_primes(4, 90, 9) if (q - 1) % 16), +1),
}


@cache
def ring(name: str) -> Ring:
    n, moduli, sign = RINGS[name]
    return Ring(n, moduli, kind="negacyclic" if sign > 0 else "cyclic")


every_ring = pytest.mark.parametrize("name", RINGS)
every_transform = pytest.mark.parametrize("name", [name for name in RINGS if ring(name).has_eval])
# One of each path, for rules that do not depend on the modulus.
FEW = ["30 bits", "RNS of 3 words", "ML-KEM", "composite", "2^128", "wide prime, 100 bits"]
few_rings = pytest.mark.parametrize("name", FEW)
few_transforms = pytest.mark.parametrize("name", [name for name in FEW if ring(name).has_eval])

R17 = Ring(4, 17)
RNS = Ring(4, [17, 97, 193])

# ---- the oracle: object arrays (*batch, n) of Python ints in [0, Q) ----


def draw(R: Ring, batch: tuple[int, ...] = (), seed: int = 0) -> np.ndarray:
    """Elements with every edge among them, the same at each call."""
    rng, q = random.Random(f"{R!r} {batch} {seed}"), R.modulus
    edges = [0, 1, q - 1, q // 2, (q + 1) // 2 % q]
    values = np.empty(math.prod(batch) * R.n, dtype=object)
    for i in range(len(values)):
        values[i] = rng.choice(edges) if rng.random() < 0.3 else rng.randrange(q)
    return values.reshape(*batch, R.n)


def sign_of(R: Ring) -> int:
    """X^n is this."""
    return -1 if R.kind == "negacyclic" else 1


def fold(R: Ring, coefficients: list[int]) -> list[int]:
    """The remainder mod X^n ± 1 and Q."""
    out = [0] * R.n
    for i, c in enumerate(coefficients):
        out[i % R.n] += c * sign_of(R) ** (i // R.n)
    return [c % R.modulus for c in out]


def product(R: Ring, x: Any, y: Any) -> list[int]:
    """x * y of two rows of n ints."""
    z = flint.fmpz_poly([int(v) for v in x]) * flint.fmpz_poly([int(v) for v in y])
    return fold(R, [int(c) for c in z])


def times(R: Ring, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x * y of batches."""
    x, y = np.broadcast_arrays(x, y)
    z = np.empty(x.shape, dtype=object)
    for i in np.ndindex(x.shape[:-1]):
        z[i] = product(R, x[i], y[i])
    return z


def value_at(row: Any, x: int, q: int) -> int:
    """a(x) mod q from the definition."""
    return sum(int(c) * pow(x, j, q) for j, c in enumerate(row)) % q


def bit_reversed(k: int, points: int) -> int:
    result = 0
    for _ in range(points.bit_length() - 1):
        result, k = 2 * result + k % 2, k // 2
    return result


def leaf_points(R: Ring, limb: int, natural: bool = False) -> list[int]:
    """The points x_k of the contract; of leaves X^base - x_k for an incomplete transform."""
    q, root, points = R.moduli[limb], R.roots[limb], R.n // R.leaf_size
    order = [k if natural else bit_reversed(k, points) for k in range(points)]
    return [pow(root, 2 * k + 1 if R.kind == "negacyclic" else k, q) for k in order]


def residues(R: Ring, x: np.ndarray) -> list[Any]:
    """What `data` must hold, as nested lists (*batch, rows, n)."""
    if R.rows != len(R.moduli):
        rows = [x % R.modulus >> 64 * i & (1 << 64) - 1 for i in range(R.rows)]
    else:
        rows = [x % q for q in R.moduli]
    return np.stack(rows, axis=-2).tolist()


def check(poly: Poly, expected: Any, domain: str = "coef", batch: Any = None) -> None:
    """The value, and what the contract says of every Poly."""
    expected = np.array(expected, dtype=object)
    R = poly.ring
    assert type(poly.data) is np.ndarray and poly.data.dtype == R.dtype
    assert poly.data.dtype.isnative and poly.data.flags.c_contiguous and poly.data.flags.aligned
    assert poly.domain == domain
    assert poly.data.shape == (*poly.shape, R.rows, R.n)
    assert poly.shape == (expected.shape[:-1] if batch is None else batch)
    with pg.debug():
        R.from_residues(poly.data, poly.domain)  # canonical
    assert poly.to_bigints().tolist() == expected.tolist()


def in_domain(poly: Poly, domain: str) -> Poly:
    return poly.ntt() if domain == "eval" else poly.intt()


# ---- ring(x): integers in ----


@every_ring
def test_data_holds_x_reduced_in_every_limb(name: str) -> None:
    R = ring(name)
    q = R.modulus
    x = draw(R, (2, 3))
    x[0, 0] += q * random.Random(name).choice([-(2**200), -1, 1, 2**200])
    x[1, 2] = -x[1, 2]
    poly = R(x)
    assert poly.data.tolist() == residues(R, x)
    assert poly.data.dtype == (np.uint32 if max(R.moduli) <= 2**32 else np.uint64)
    assert type(poly.data) is np.ndarray and poly.data.flags.c_contiguous
    assert (poly.domain, poly.shape, poly.ndim, poly.ring) == ("coef", (2, 3), 2, R)
    assert poly.to_bigints().tolist() == (x % q).tolist()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("name", ["30 bits", "64 bits", "RNS of 3 words", "2^32", "2^128", "q = 2"])
def test_any_integer_dtype(name: str, kind: str, order: str) -> None:
    R = ring(name)
    info = np.iinfo(kind)
    values = [info.min, info.max, 0, 1][: R.n]
    x = np.array(values, dtype=kind).astype(order + kind)
    assert R(x).data.tolist() == R(values).data.tolist() == residues(R, padded(R, values))


def padded(R: Ring, values: list[int]) -> np.ndarray:
    return np.array([*values, *[0] * (R.n - len(values))], dtype=object)


class Small(enum.IntEnum):
    TWO = 2


@pytest.mark.parametrize(
    "x",
    [
        [-1, 2, 2**70],
        (-1, 2, 2**70),
        np.array([-1, 2, 2**70], dtype=object),
        [np.int8(-1), np.uint64(2), 2**70],
        [-1, Small.TWO, 2**70],
    ],
    ids=["list", "tuple", "object array", "NumPy ints", "IntEnum"],
)
def test_ints_in_any_container(x: Any) -> None:
    assert RNS(x).data.tolist() == residues(RNS, padded(RNS, [-1, 2, 2**70]))


@pytest.mark.parametrize(
    ("x", "values"),
    [
        (range(-1, 3), [-1, 0, 1, 2]),
        ([2**63, -1], [2**63, -1]),
        ([2**64 - 1, 2**64], [2**64 - 1, 2**64]),
        ([-(2**63) - 1, 2**63], [-(2**63) - 1, 2**63]),
        (np.arange(4, dtype=np.uint64) + np.uint64(2**64 - 4), list(range(2**64 - 4, 2**64))),
        ([], []),
    ],
    ids=["range", "2^63", "2^64", "-2^63 - 1", "uint64", "nothing"],
)
def test_ints_at_the_edge_of_machine_words(x: Any, values: list[int]) -> None:
    assert RNS(x).data.tolist() == residues(RNS, padded(RNS, values))


@pytest.mark.parametrize(
    "x",
    [-3, np.int64(-3), np.int8(-3), np.array(-3), np.array(-3, ">i2"), np.array(-3, object), [-3]],
    ids=repr,
)
@few_rings
def test_one_int_is_a_constant(name: str, x: Any) -> None:
    R = ring(name)
    check(R(x), fold(R, [-3]), batch=())


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
    "subclass": lambda x: x.view(np.recarray),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32, np.int8])
@few_rings
def test_any_memory_layout(name: str, dtype: type, layout: str) -> None:
    R = ring(name)
    x = np.random.default_rng(1).integers(0, 100, (3, R.n)).astype(dtype)
    view = LAYOUTS[layout](x)
    assert R(view).data.tolist() == residues(R, view.astype(object))


@pytest.mark.parametrize("size", [100, 2**80])
@pytest.mark.parametrize("layout", ["transposed", "Fortran", "every other", "backwards", "broadcast"])
@few_rings
def test_any_memory_layout_of_python_ints(name: str, layout: str, size: int) -> None:
    R = ring(name)
    source = random.Random(1)
    x = np.array([[source.randrange(-size, size) for _ in range(R.n)] for _ in range(3)], dtype=object)
    view = LAYOUTS[layout](x)
    assert R(view).data.tolist() == residues(R, view)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (3, 0, 2)])
@few_rings
def test_missing_coefficients_are_zero_and_batches_may_be_empty(name: str, shape: tuple[int, ...]) -> None:
    R = ring(name)
    for dtype in (np.int64, np.uint8, object):
        poly = R(np.zeros(shape, dtype))
        assert poly.shape == shape[:-1]
        assert not poly.data.any()


def test_short_rows_are_padded_at_the_high_end() -> None:
    check(R17([[1, 2], [3, 4]]), [[1, 2, 0, 0], [3, 4, 0, 0]])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, object])
@few_rings
def test_integers_are_copied_never_shared_never_changed(name: str, dtype: type) -> None:
    R = ring(name)
    x = np.full((2, R.n), 7, dtype)
    poly = R(x)
    assert (x == 7).all() and not np.shares_memory(x, poly.data)


# ---- from_residues: residues in ----


@every_ring
def test_plain_residues_are_shared(name: str) -> None:
    R = ring(name)
    data = R(draw(R, (2,))).data
    poly = R.from_residues(data)
    assert np.shares_memory(poly.data, data) and (poly.domain, poly.shape) == ("coef", (2,))
    assert np.shares_memory(R.from_residues(data, copy=False).data, data)
    assert not np.shares_memory(R.from_residues(data, copy=True).data, data)
    check(R.from_residues(data, copy=True), draw(R, (2,)))


@every_transform
def test_residues_of_the_evaluation_domain(name: str) -> None:
    R = ring(name)
    data = R(draw(R)).ntt().data.copy()
    check(R.from_residues(data, "eval"), draw(R), "eval")


OTHER_DATA = {
    **{name: layout for name, layout in LAYOUTS.items() if name not in ("read-only", "subclass")},
    "other dtype": lambda x: x.astype(np.int64) if x.dtype == np.uint32 else x.astype(object),
    "object": lambda x: x.astype(object),
    "lists": lambda x: x.tolist(),
}


@pytest.mark.parametrize("layout", OTHER_DATA)
@few_rings
def test_other_residues_are_copied(name: str, layout: str) -> None:
    R = ring(name)
    plain = R(draw(R, (3,))).data
    if layout in ("transposed", "Fortran", "every other", "broadcast"):
        data = OTHER_DATA[layout](plain)
    elif layout == "backwards":
        data = plain[::-1].copy()[::-1]
    else:
        data = OTHER_DATA[layout](plain)
    before = np.array(data, dtype=object)
    poly = R.from_residues(data)
    assert poly.data.tolist() == before.tolist()
    assert poly.data.flags.c_contiguous and poly.data.flags.aligned and poly.data.dtype == R.dtype
    assert not (isinstance(data, np.ndarray) and np.shares_memory(data, poly.data))
    assert np.array_equal(np.array(data, dtype=object), before)
    with pytest.raises(pg.ParameterError, match="copy=False"):
        R.from_residues(data, copy=False)


def test_read_only_residues_are_shared_and_stay_read_only() -> None:
    data = np.array([[1, 2, 3, 16]], np.uint32)
    data.flags.writeable = False
    poly = R17.from_residues(data)
    assert np.shares_memory(poly.data, data) and not poly.data.flags.writeable
    check(poly * poly, product(R17, [1, 2, 3, 16], [1, 2, 3, 16]))


def test_an_array_subclass_becomes_a_plain_array() -> None:
    data = np.array([[1, 2, 3, 16]], np.uint32).view(np.recarray)
    assert type(R17.from_residues(data).data) is np.ndarray


@pytest.mark.parametrize("wrong", [17, 2**32 - 1])
def test_debug_checks_residues_that_are_shared(wrong: int) -> None:
    data = np.array([[1, 2, wrong, 16]], np.uint32)
    R17.from_residues(data)  # nothing looks at the values of plain arrays
    with pg.debug():
        with pytest.raises(pg.NotCanonical, match=rf"{wrong} at \(0, 2\).*17"):
            R17.from_residues(data)
        R17.from_residues(data % 17)
    R17.from_residues(data)


@pytest.mark.parametrize(
    ("q", "value"),
    [
        (2**65, 2**65),
        (2**65, 2**65 + 5),
        (2**65, 3 * 2**64),
        (2**64 + 1, 2**64 + 1),
        (10**30, 10**30),
        (10**30, 2**128 - 1),
        (2**128 - 1, 2**128 - 1),
    ],
)
def test_debug_checks_the_words_of_a_wide_residue_together(q: int, value: int) -> None:
    R = Ring(2, q)
    data = np.array([[0, value % 2**64], [0, value >> 64]], np.uint64)
    with pg.debug():
        with pytest.raises(pg.NotCanonical, match=f"{value} at .*1.* is not a residue mod {q}"):
            R.from_residues(data)
        data[:, 1] = (q - 1) % 2**64, (q - 1) >> 64
        check(R.from_residues(data), [0, q - 1])


@pytest.mark.parametrize("word", [-1, 2**64, -(2**64)])
@pytest.mark.parametrize("row", [0, 1])
def test_words_of_a_wide_residue_are_checked_where_they_are_converted(row: int, word: int) -> None:
    words = [[0, 3], [0, 2**30]]
    words[row][1] = word
    for data in (words, np.array(words, object), np.array(words, np.int64) if word == -1 else words):
        with pytest.raises(pg.NotCanonical, match=str(2**100)):
            Ring(2, 2**100).from_residues(data)


@pytest.mark.parametrize("data", [[[1, 2, 3, 17]], [[-1, 2, 3, 4]], [[1, 2, 3, 2**32]]])
@pytest.mark.parametrize("dtype", [np.int64, object, ">i8", None])
def test_residues_are_checked_where_they_are_converted(data: Any, dtype: Any) -> None:
    with pytest.raises(pg.NotCanonical, match="17"):
        R17.from_residues(data if dtype is None else np.array(data, dtype))


@pytest.mark.parametrize("wrong", [1.5, True, None, "3", 2j])
def test_object_residues_must_be_ints(wrong: Any) -> None:
    with pytest.raises(pg.CoefficientError):
        R17.from_residues(np.array([[0, 1, 2, wrong]], dtype=object))


# ---- zeros, ones, monomial ----


@pytest.mark.parametrize("batch", [(), 0, 3, (2, 3), [2], (np.int64(2), 0)])
@few_rings
def test_zeros_and_ones(name: str, batch: Any) -> None:
    R = ring(name)
    shape = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    one = np.zeros((*shape, R.n), dtype=object)
    check(R.zeros(batch), one, batch=shape)
    one[..., 0] = 1
    check(R.ones(batch), one, batch=shape)


@every_ring
def test_monomials_of_any_exponent(name: str) -> None:
    R = ring(name)
    for k in (*range(-2 * R.n - 1, 2 * R.n + 2, max(1, R.n // 5)), 10**30, -(10**30)):
        turns, at = divmod(k, R.n)
        expected = [0] * R.n
        expected[at] = sign_of(R) ** (turns % 2) % R.modulus
        check(R.monomial(k), expected)


def test_monomial_times_a_coefficient() -> None:
    check(RNS.monomial(-3, 2**100), [0, -(2**100) % RNS.modulus, 0, 0])
    check(RNS.monomial(np.int64(2), np.int8(-5)), [0, 0, -5 % RNS.modulus, 0])


# ---- +, -, *: values ----

OPERATIONS = {
    "add": (Poly.add, lambda R, x, y: (x + y) % R.modulus),
    "sub": (Poly.sub, lambda R, x, y: (x - y) % R.modulus),
    "mul": (Poly.mul, times),
}
every_operation = pytest.mark.parametrize("operation", OPERATIONS)
DOMAINS = [
    ("coef", "coef", "coef"),
    ("eval", "eval", "eval"),
    ("coef", "eval", "eval"),
    ("eval", "coef", "eval"),
]


@every_ring
def test_sums_differences_products(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (3,), 2)
    x[0], y[0] = R.modulus - 1, R.modulus - 1  # the largest accumulators
    a, b = R(x), R(y)
    check(a + b, (x + y) % R.modulus)
    check(a - b, (x - y) % R.modulus)
    check(-a, -x % R.modulus)
    check(+a, x)
    check(a * b, times(R, x, y))
    check(a * a, times(R, x, x))
    check(Poly.mul(a, b), times(R, x, y))


@pytest.mark.parametrize(("left", "right", "result"), DOMAINS)
@every_operation
@every_transform
def test_domains(name: str, operation: str, left: str, right: str, result: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    method, oracle = OPERATIONS[operation]
    poly = method(in_domain(R(x), left), in_domain(R(y), right))
    check(poly, oracle(R, x, y), result)


@pytest.mark.parametrize("domain", ["coef", "eval"])
@few_transforms
def test_unary_operations_keep_the_domain(name: str, domain: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a = in_domain(R(x), domain)
    check(-a, -x % R.modulus, domain)
    check(a.neg(), -x % R.modulus, domain)
    check(a.copy(), x, domain)
    check(a.sum(), x.sum(axis=0) % R.modulus, domain)


SCALARS = [0, 1, -1, 5, 2**31, -(2**63), 2**64, -(3**100), np.int8(-7), np.uint64(2**64 - 1)]


@pytest.mark.parametrize("c", SCALARS, ids=repr)
@pytest.mark.parametrize("domain", ["coef", "eval"])
@pytest.mark.parametrize("name", [*FEW, "RNS with 2^64", "2^32", "2^64", "64 bits", "q = 2", "2^65"])
def test_ints_are_constants_of_the_ring(name: str, domain: str, c: Any) -> None:
    R = ring(name)
    if domain == "eval" and not R.has_eval:
        return
    x, q, k = draw(R, (2,)), R.modulus, int(c)
    constant = padded(R, [k])
    a = in_domain(R(x), domain)
    check(a + c, (x + constant) % q, domain)
    check(c + a, (x + constant) % q, domain)
    check(a - c, (x - constant) % q, domain)
    check(c - a, (constant - x) % q, domain)
    check(a * c, x * k % q, domain)
    check(c * a, x * k % q, domain)
    check(Poly.mul(a, c), x * k % q, domain)


def test_the_sum_builtin() -> None:
    x = draw(RNS, (5,))
    check(sum(RNS(x)), x.sum(axis=0) % RNS.modulus)


@pytest.mark.parametrize(
    "expression",
    [
        lambda x, a: x * a,
        lambda x, a: a * x,
        lambda x, a: x + a,
        lambda x, a: a - x,
        lambda x, a: x - a,
    ],
)
@pytest.mark.parametrize("x", [np.arange(4), np.array(3), np.ones((1, 4)), np.zeros(0, int)])
def test_an_array_is_no_operand(x: np.ndarray, expression: Any) -> None:
    with pytest.raises(TypeError, match=r"ring\(array"):
        expression(x, R17([1, 2]))


@pytest.mark.parametrize("other", [1.5, "1", None, True, np.True_, np.float64(2), 1j, [1], b"1"])
def test_other_types_are_no_operands(other: Any) -> None:
    a = R17([1, 2])
    for expression in (
        lambda: a + other,
        lambda: other + a,
        lambda: a - other,
        lambda: a * other,
        lambda: other * a,
    ):
        with pytest.raises(TypeError):
            expression()


def test_augmented_assignment_rebinds() -> None:
    x = draw(RNS, (2,))
    a = first = RNS(x)
    a += 1
    a -= 2
    a *= a
    check(first, x)
    shifted = x.copy()
    shifted[:, 0] -= 1
    check(a, times(RNS, shifted, shifted))


BATCHES = [
    ((), (3,)),
    ((3,), ()),
    ((1,), (4,)),
    ((2, 1), (3,)),
    ((2, 1, 3), (4, 1)),
    ((0,), ()),
    ((0, 1), (5,)),
    ((1, 1), ()),
]


@pytest.mark.parametrize("domain", ["coef", "eval"])
@pytest.mark.parametrize(("left", "right"), BATCHES)
@every_operation
@few_rings
def test_batch_axes_broadcast(
    name: str, operation: str, left: tuple[int, ...], right: tuple[int, ...], domain: str
) -> None:
    R = ring(name)
    if domain == "eval" and not R.has_eval:
        return
    x, y = draw(R, left, 1), draw(R, right, 2)
    method, oracle = OPERATIONS[operation]
    expected = oracle(R, x, y)
    check(method(in_domain(R(x), domain), in_domain(R(y), domain)), expected, domain)


# ---- out= ----

SHARING = {
    "other memory": lambda a, b: (a, b, a.ring.ones(a.shape)),
    "the first operand": lambda a, b: (a, b, a),
    "the second operand": lambda a, b: (a, b, b),
    "both operands": lambda a, b: (a, a, a),
    "two views of one array": lambda a, b: (a, a.ring.from_residues(a.data[:], a.domain), a),
}


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize(("left", "right", "result"), DOMAINS)
@every_operation
@few_rings
def test_out(name: str, operation: str, left: str, right: str, result: str, sharing: str) -> None:
    R = ring(name)
    if "eval" in (left, right) and not R.has_eval:
        return
    x, y = draw(R, (3,), 1), draw(R, (3,), 2)
    a, b, out = SHARING[sharing](in_domain(R(x), left), in_domain(R(y), right))
    method, oracle = OPERATIONS[operation]
    if b is not a and sharing != "two views of one array":
        expected = oracle(R, x, y)
    else:
        expected, result = oracle(R, x, x), left
    untouched = [(p, p.data.copy(), p.domain) for p in (a, b) if p is not out]
    memory = out.data
    assert method(a, b, out=out) is out
    assert out.data is memory
    check(out, expected, result)
    for p, data, domain in untouched:
        if not np.shares_memory(p.data, memory):
            assert np.array_equal(p.data, data) and p.domain == domain


@pytest.mark.parametrize("c", [-3, 2**70])
@few_rings
def test_out_with_an_int(name: str, c: int) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a = R(x)
    assert a.mul(c, out=a) is a
    check(a, x * c % R.modulus)
    assert a.sub(c, out=a) is a
    check(a, (x * c - padded(R, [c])) % R.modulus)
    assert a.neg(out=a) is a
    check(a, (padded(R, [c]) - x * c) % R.modulus)


@few_rings
def test_out_with_a_batch_that_broadcasts(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (), 2)
    a, b = R(x), R(y)
    check(a.mul(b, out=a), times(R, x, y))
    check(b, y)


@every_transform
def test_transforms_in_place_and_into_out(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a, out = R(x), R.ones(2)
    expected = a.ntt().data.tolist()
    assert a.ntt(out=out) is out
    assert out.domain == "eval" and out.data.tolist() == expected
    check(a, x)
    assert out.intt(out=out) is out
    check(out, x)
    assert a.ntt(out=a) is a
    assert a.domain == "eval" and a.data.tolist() == expected
    again = R.ones(2)
    assert a.ntt(out=again) is again  # there already: a copy
    assert again.domain == "eval" and again.data.tolist() == expected
    assert a.ntt() is a and R(x).intt().domain == "coef"


@every_ring
def test_operands_are_never_changed(name: str) -> None:
    """Operands on read-only memory: every operation answers, and their bytes stay."""
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    operands = [in_domain(R(v), d) for v in (x, y) for d in ("coef", "eval")[: 1 + R.has_eval]]
    for p in operands:
        p.data.flags.writeable = False
    before = [p.data.tobytes() for p in operands]
    domains = [p.domain for p in operands]
    g = 2 * R.n - 1 if R.kind == "negacyclic" else max(R.n - 1, 1)
    for a in operands:
        for b in operands:
            for result in (a + b, a - b, a * b, pg.fma(a, b, a), pg.dot(a, b), pg.stack([a, b])):
                assert result.data.flags.writeable
            pg.equal(a, b)
        for result in (-a, a * 3, a + 3, a**2, a.automorphism(g), a.mul_monomial(3), a.sum()):
            assert result.data.flags.writeable
        a.intt(), a.to_bigints(True), a.norm(1), a([2]), a.copy(), a[0], repr(a), a._repr_html_()
    assert [p.data.tobytes() for p in operands] == before
    assert [p.domain for p in operands] == domains


# ---- fma, dot, powers ----


@pytest.mark.parametrize("domains", ["ccc", "eee", "cce", "ece", "eec", "cee"])
@every_transform
def test_fma_of_any_domains(name: str, domains: str) -> None:
    R = ring(name)
    x, y, z = (draw(R, (2,), seed) for seed in range(3))
    a, b, c = (
        in_domain(R(v), {"c": "coef", "e": "eval"}[d]) for v, d in zip((x, y, z), domains, strict=True)
    )
    expected = (times(R, x, y) + z) % R.modulus
    domain = "eval" if "e" in domains else "coef"
    check(pg.fma(a, b, c), expected, domain)
    out = R.ones(2)
    assert pg.fma(a, b, c, out=out) is out
    check(out, expected, domain)


@every_ring
def test_fma(name: str) -> None:
    R = ring(name)
    x, y, z = draw(R, (2, 1), 1), draw(R, (3,), 2), draw(R, (), 3)
    check(pg.fma(R(x), R(y), R(z)), (times(R, x, y) + z) % R.modulus)
    check(pg.fma(R(x), -5, 2**70), (x * -5 + padded(R, [2**70])) % R.modulus)


@pytest.mark.parametrize("domain", ["coef", "eval"])
@pytest.mark.parametrize("which", [0, 1, 2])
@few_rings
def test_fma_may_write_into_an_operand(name: str, which: int, domain: str) -> None:
    R = ring(name)
    if domain == "eval" and not R.has_eval:
        return
    values = [draw(R, (2,), seed) for seed in range(3)]
    operands = [in_domain(R(v), domain) for v in values]
    pg.fma(*operands, out=operands[which])
    check(operands[which], (times(R, values[0], values[1]) + values[2]) % R.modulus, domain)
    for i in {0, 1, 2} - {which}:
        check(operands[i], values[i], domain)


@every_ring
def test_dot(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (3,), 2)
    check(pg.dot(R(x), R(y)), times(R, x, y).sum(axis=0) % R.modulus)


@pytest.mark.parametrize("axis", [0, 1, -1, -2, np.int64(1)])
@pytest.mark.parametrize(("left", "right", "result"), DOMAINS)
@few_transforms
def test_dot_axes_and_domains(name: str, left: str, right: str, result: str, axis: int) -> None:
    R = ring(name)
    x, y = draw(R, (2, 3), 1), draw(R, (3,), 2)
    expected = times(R, x, y).sum(axis=axis if axis >= 0 else axis - 1) % R.modulus
    check(pg.dot(in_domain(R(x), left), in_domain(R(y), right), axis=axis), expected, result)


def test_dot_over_an_axis_that_only_the_other_has() -> None:
    x, y = draw(RNS, (3,), 1), draw(RNS, (2, 3), 2)
    for a, b in ((x, y), (y, x)):
        check(pg.dot(RNS(a), RNS(b), axis=1), times(RNS, x, y).sum(axis=1) % RNS.modulus)
        check(pg.dot(RNS(a), RNS(b), axis=0), times(RNS, x, y).sum(axis=0) % RNS.modulus)


def test_dot_of_nothing_is_zero() -> None:
    check(pg.dot(R17.zeros((0, 2)), R17.zeros((0, 2)), axis=0), [[0] * 4] * 2)


def test_dot_with_an_int_is_a_multiple_of_the_sum() -> None:
    x = draw(RNS, (3,))
    check(pg.dot(RNS(x), -2), x.sum(axis=0) * -2 % RNS.modulus)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, np.int64(5)])
@every_ring
def test_powers(name: str, k: int) -> None:
    R = ring(name)
    x = draw(R, (2,))
    expected = np.zeros_like(x)
    expected[:, 0] = 1
    for _ in range(k):
        expected = times(R, expected, x)
    check(R(x) ** k, expected)
    if R.has_eval:
        check(R(x).ntt() ** k, expected, "eval")


def test_a_power_is_a_value_of_its_own() -> None:
    a = R17([1, 2])
    assert not np.shares_memory((a**1).data, a.data)


def test_large_powers() -> None:
    # The unit group of F_17[X]/(X^4 + 1) is (F_17*)^4, of exponent 16.
    a = R17([3, 1])
    assert a**16 == 1 and a ** (16 * 10**40 + 3) == a**3


# ---- comparison ----


@every_ring
def test_equality_of_values(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    y = x.copy()
    y[1, -1] = (y[1, -1] + 1) % R.modulus
    a = R(x)
    assert (a == R(x)) is True and (a != R(x)) is False
    assert (a == R(y)) is False and (a != R(y)) is True
    assert pg.equal(a, R(y)).tolist() == [True, False]
    if R.has_eval:
        assert a.ntt() == a and a == a.ntt() and a.ntt() != R(y)
        assert pg.equal(a.ntt(), R(y)).tolist() == [True, False]


@every_ring
def test_equality_looks_at_every_row_and_coefficient(name: str) -> None:
    R = ring(name)
    for row in range(R.rows):
        for j in {0, R.n // 2, R.n - 1}:
            data = np.zeros((R.rows, R.n), R.dtype)
            data[row, j] = 1
            a = R.from_residues(data)
            assert a != 0 and a != R.zeros() and not pg.equal(R.zeros(), a)


def test_equality_with_ints() -> None:
    assert R17(3) == 3 and R17([3, 1]) != 3 and R17(-14) == 3 and R17(3).ntt() == 20
    assert R17([[3], [3]]) == 3 and R17([[3], [4]]) != 3
    assert R17(3) == np.int8(3) and np.int8(3) == R17(3)


@pytest.mark.parametrize("other", [True, 1.0, "1", None, [1], (1, 0, 0, 0), 1j])
def test_no_other_type_is_equal(other: Any) -> None:
    assert R17(1) != other
    assert other != R17(1)


def test_other_rings_and_shapes_are_unequal() -> None:
    a = R17([1, 2])
    assert a != Ring(4, 97)([1, 2])
    assert a != Ring(4, 17, kind="cyclic")([1, 2])
    assert a != Ring(4, 17, root="generator")([1, 2])
    assert a != R17([[1, 2]])
    assert a == Ring(4, [17], root=2)([1, 2])


def test_equal_broadcasts() -> None:
    a, b = R17([[[1], [2]]]), R17([[1], [2], [1]])
    assert pg.equal(a.reshape(2, 1), b).tolist() == [[True, False, True], [False, True, False]]
    assert pg.equal(b, 1).tolist() == [True, False, True]
    assert pg.equal(R17(1), 1).shape == () and pg.equal(R17(1), 1).dtype == np.bool_
    assert pg.equal(R17.zeros((0, 2)), 0).shape == (0, 2)


def test_unhashable_and_without_truth() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(R17(1))
    for poly in (R17(0), R17(1), R17.zeros(0)):
        with pytest.raises(TypeError, match="poly == 0"):
            bool(poly)


# ---- automorphisms and monomials ----


def substituted(R: Ring, x: Any, g: int) -> list[int]:
    """The coefficients of a(X^g)."""
    out = [0] * R.n
    for j, c in enumerate(x):
        turns, at = divmod(g * j, R.n)
        out[at] += int(c) * sign_of(R) ** (turns % 2)
    return [c % R.modulus for c in out]


def units(R: Ring) -> list[int]:
    order = 2 * R.n if R.kind == "negacyclic" else R.n
    rng = random.Random(R.n)
    some = {1, 3, 5, 7, 11, order - 1, order + 1, -1, -3, 5**20, rng.randrange(order)}
    return [g for g in some if math.gcd(g, order) == 1]


@every_ring
def test_automorphisms(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    for g in units(R):
        expected = [substituted(R, row, g) for row in x]
        check(R(x).automorphism(g), expected)
        if R.has_eval:
            check(R(x).ntt().automorphism(g), expected, "eval")


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 12, 15])
def test_every_automorphism_of_small_rings(n: int, kind: Any) -> None:
    R = Ring(n, 97, kind=kind)
    order = 2 * n if kind == "negacyclic" else n
    x = draw(R)
    for g in range(-order, 2 * order + 1):
        if math.gcd(g, order) == 1:
            check(R(x).automorphism(g), substituted(R, x, g))
            if R.has_eval:
                check(R(x).ntt().automorphism(g), substituted(R, x, g), "eval")


@pytest.mark.parametrize("domain", ["coef", "eval"])
@few_transforms
def test_automorphisms_compose(name: str, domain: str) -> None:
    R = ring(name)
    a = in_domain(R(draw(R)), domain)
    for g in units(R):
        for h in units(R):
            assert a.automorphism(g).automorphism(h) == a.automorphism(g * h)


@few_rings
def test_an_automorphism_respects_products(name: str) -> None:
    R = ring(name)
    a, b, g = R(draw(R, (), 1)), R(draw(R, (), 2)), 2 * R.n - 1
    assert (a * b).automorphism(g) == a.automorphism(g) * b.automorphism(g)


@every_ring
def test_mul_monomial(name: str) -> None:
    R = ring(name)
    n, x = R.n, draw(R, (2,))
    for k in (0, 1, -1, 3, n - 1, n, n + 1, -n, 2 * n - 1, 2 * n, -2 * n - 1, 5**30, -(5**30)):
        turns, at = divmod(k, n)
        expected = [fold(R, [*[0] * at, *(row * sign_of(R) ** (turns % 2))]) for row in x]
        check(R(x).mul_monomial(k), expected)
        if R.has_eval:
            check(R(x).ntt().mul_monomial(k), expected, "eval")


# ---- values at points ----


@every_ring
def test_value_at_one_point(name: str) -> None:
    R = ring(name)
    x = draw(R)
    for point in (0, 1, -1, 5, R.modulus - 1, -(2**100), np.int64(-5), np.uint8(200)):
        got = R(x)(point)
        assert type(got) is int
        assert got == value_at(x, int(point) % R.modulus, R.modulus)


POINTS = [[], [3], [0, -1, 2**100], [[1, 2], [3, 4]], np.array([-1, 2], np.int8), (5, 6), range(3)]


@pytest.mark.parametrize("points", POINTS, ids=repr)
@pytest.mark.parametrize("batch", [(), (2,), (0,)])
@few_rings
def test_values_at_points(name: str, batch: tuple[int, ...], points: Any) -> None:
    R = ring(name)
    x = draw(R, batch)
    got = R(x)(points)
    at = np.array(points, dtype=object)
    assert got.dtype == object and got.shape == (*batch, *at.shape)
    for i in np.ndindex(batch):
        for j in np.ndindex(at.shape):
            point = int(at[j]) % R.modulus
            assert type(got[(*i, *j)]) is int
            assert got[(*i, *j)] == value_at(x[i], point, R.modulus)


@pytest.mark.parametrize("batch", [(2,), (2, 3), (0,)])
def test_values_of_a_batch_at_one_point(batch: tuple[int, ...]) -> None:
    x = draw(RNS, batch)
    got = RNS(x)(7)
    assert got.shape == batch
    for i in np.ndindex(batch):
        assert got[i] == value_at(x[i], 7, RNS.modulus)


def test_values_of_an_evaluated_poly() -> None:
    x = draw(R17, (2,))
    assert R17(x).ntt()([3, 5]).tolist() == R17(x)([3, 5]).tolist()


@every_transform
def test_evaluation_order_is_the_contract(name: str) -> None:
    """Leaf k of a limb is a mod X^base - x_k, x_k = psi^(2 br(k) + 1) or omega^br(k)."""
    R = ring(name)
    x = draw(R, (2,))
    base = R.leaf_size
    data = R(x).ntt().to_residue_ints()
    for i in range(2):
        for limb, q in enumerate(R.moduli):
            row = data[i] if len(R.moduli) != R.rows else data[i, limb]
            expected = [
                value_at(x[i][r::base], point, q) for point in leaf_points(R, limb) for r in range(base)
            ]
            assert row.tolist() == expected


@every_transform
def test_eval_points_and_natural_order(name: str) -> None:
    R = ring(name)
    points = R.n // R.leaf_size
    order = R.natural_order()
    assert sorted(order.tolist()) == list(range(points))
    for limb in range(len(R.moduli)):
        assert R.eval_points(limb).tolist() == leaf_points(R, limb)
        assert R.eval_points(limb)[order].tolist() == leaf_points(R, limb, natural=True)


@every_transform
def test_natural_order_of_residues(name: str) -> None:
    """Entry k is a(psi^(2k+1)) or a(omega^k); leaves of several coefficients stay together."""
    R = ring(name)
    x = draw(R, (2,))
    base = R.leaf_size
    natural = R(x).natural_order()
    assert natural.shape == (2, R.rows, R.n)
    rows = R.from_residues(natural).to_residue_ints().reshape(2, len(R.moduli), R.n)
    for i in range(2):
        for limb, q in enumerate(R.moduli):
            assert rows[i, limb].tolist() == [
                value_at(x[i][r::base], point, q)
                for point in leaf_points(R, limb, natural=True)
                for r in range(base)
            ]


def test_natural_order_is_a_copy() -> None:
    a = Ring(1, 17)([5]).ntt()
    assert not np.shares_memory(a.natural_order(), a.data)


def test_to_residue_ints() -> None:
    assert RNS([[2**70, 1]]).to_residue_ints().tolist() == residues(
        RNS, np.array([[2**70, 1, 0, 0]], dtype=object)
    )
    wide = Ring(2, 2**100)([[2**99 + 1, -1]])
    assert wide.to_residue_ints().tolist() == [[2**99 + 1, 2**100 - 1]]


# ---- inverse ----


def is_unit(R: Ring, x: Any) -> bool:
    """Whether the determinant of multiplication by x is a unit mod Q."""
    n = R.n
    rows = [product(R, x, [0] * i + [1] + [0] * (n - 1 - i)) for i in range(n)]
    return math.gcd(int(flint.fmpz_mat(rows).det()), R.modulus) == 1


INVERTIBLE_KINDS = [
    name
    for name in RINGS
    if name != "ML-KEM"  # below: its determinant takes a while
    and all(pg.is_prime(q) or q & (q - 1) == 0 for q in ring(name).moduli)
]


@pytest.mark.parametrize("name", INVERTIBLE_KINDS)
def test_inverse_of_every_kind(name: str) -> None:
    R = ring(name)
    one = [1] + [0] * (R.n - 1)
    found = 0
    for seed in range(40):
        x = draw(R, (), seed)
        if is_unit(R, x):
            found += 1
            y = R(x).inverse()
            assert y.domain == "coef"
            assert product(R, x, y.to_bigints()) == one
            if R.has_eval:
                check(R(x).ntt().inverse(), y.to_bigints(), "eval")
            assert R(x) ** -1 == y and R(x) ** -3 == y * y * y
        else:
            with pytest.raises(pg.NotInvertible):
                R(x).inverse()
        if found == 3:
            break
    assert found


@pytest.mark.parametrize(
    ("n", "moduli", "kind"),
    [
        (1, 8, "negacyclic"),
        (1, 7, "cyclic"),
        (2, 3, "negacyclic"),
        (2, 4, "negacyclic"),
        (2, 5, "negacyclic"),
        (2, 7, "cyclic"),
        (3, 2, "cyclic"),
        (3, 4, "negacyclic"),
        (4, 3, "cyclic"),
        (4, 3, "negacyclic"),
        (5, 2, "negacyclic"),
        (2, [3, 4], "negacyclic"),
        (2, [2, 5], "cyclic"),
    ],
)
def test_every_element_of_small_rings(n: int, moduli: Any, kind: Any) -> None:
    R = Ring(n, moduli, kind=kind)
    q, one = R.modulus, [1] + [0] * (n - 1)
    for number in range(q**n):
        x = [number // q**i % q for i in range(n)]
        if is_unit(R, x):
            assert product(R, x, R(x).inverse().to_bigints()) == one
        else:
            with pytest.raises(pg.NotInvertible):
                R(x).inverse()


def test_inverse_of_ml_kem_batches() -> None:
    R = ring("ML-KEM")
    x = draw(R, (2,), 3)
    y = R(x).inverse()
    check(y * R(x), [[1] + [0] * 255] * 2)
    check(R.from_residues(y.data), y.to_bigints())
    assert [product(R, *pair) for pair in zip(x, y.to_bigints(), strict=True)] == [[1] + [0] * 255] * 2


@pytest.mark.parametrize("name", ["30 bits", "RNS of 3", "degree 12", "2^64", "2^128", "ML-KEM"])
@pytest.mark.parametrize("batch", [(0,), (1,), (2, 2)])
def test_inverse_of_batches(name: str, batch: tuple[int, ...]) -> None:
    R = ring(name)
    x = np.zeros((*batch, R.n), dtype=object)
    x[..., 1] = np.arange(1, math.prod(batch) + 1).reshape(batch) * 2 - 1
    y = R(x).inverse()
    expected = np.zeros_like(x)
    expected[..., 0] = 1
    check(y, y.to_bigints(), batch=batch)
    assert times(R, x, y.to_bigints()).tolist() == expected.tolist()


def message_of_inverse(poly: Poly) -> str:
    with pytest.raises(pg.NotInvertible) as caught:
        poly.inverse()
    return str(caught.value)


@pytest.mark.parametrize("limb", range(3))
@pytest.mark.parametrize("k", range(4))
def test_not_invertible_names_limb_and_index(limb: int, k: int) -> None:
    data = np.ones((2, 3, 4), np.uint32)
    data[1, limb, k] = 0
    message = message_of_inverse(RNS.from_residues(data, "eval").intt())
    assert f"index {k} of limb {limb}" in message and f"q = {RNS.moduli[limb]}" in message
    assert "(1,)" in message


@pytest.mark.parametrize(
    ("moduli", "value", "limb"),
    [([8, 17], [17], 1), ([17, 8], [17], 0), ([8, 17], [2], 0), ([17, 13], [13], 1)],
)
def test_not_invertible_names_the_limb_of_an_rns_without_a_transform(
    moduli: list[int], value: list[int], limb: int
) -> None:
    R = Ring(4, moduli)
    assert R.leaf_size != 1
    message = message_of_inverse(R(value))
    assert f"limb {limb}" in message and f"limb {1 - limb}" not in message


@pytest.mark.parametrize("moduli", [13, 8, [9 * 0 + 13, 4]])
def test_not_invertible_names_the_batch_element(moduli: Any) -> None:
    R = Ring(6, moduli)
    x = np.zeros((2, 3, 6), dtype=object)
    x[..., 0] = 1
    x[1, 2] = 0
    assert "(1, 2)" in message_of_inverse(R(x))


@pytest.mark.parametrize("name", ["composite", "2^64 - 1", "wide composite", "RNS of mixed moduli"])
def test_not_invertible_says_what_to_do_for_a_composite_modulus(name: str) -> None:
    message = message_of_inverse(ring(name).ones())
    assert "neither prime nor a power of two" in message and "coprime factors as moduli" in message


def test_not_invertible_is_both_built_ins() -> None:
    for error in (ValueError, ZeroDivisionError):
        with pytest.raises(error):
            R17(0).inverse()


# ---- norms and integers ----


@every_ring
def test_norms(name: str) -> None:
    R = ring(name)
    x = draw(R, (2, 3))
    q = R.modulus
    sizes = np.minimum(x, q - x)
    assert R(x).norm(1).tolist() == sizes.sum(axis=-1).tolist()
    assert R(x).norm(math.inf).tolist() == sizes.max(axis=-1).tolist()
    euclid = R(x).norm()
    assert euclid.dtype == np.float64 and euclid.shape == (2, 3)
    with localcontext() as context:
        context.prec = 400
        for i in np.ndindex(2, 3):
            exact = Decimal(int((sizes[i] ** 2).sum())).sqrt()
            assert euclid[i] == pytest.approx(float(exact), rel=3e-16)


@few_rings
def test_norms_of_one_are_numbers(name: str) -> None:
    R = ring(name)
    a = R([3, -4])
    for poly in (a, a.ntt()) if R.has_eval else (a,):
        norms = poly.norm(), poly.norm(1), poly.norm(float("inf")), poly.norm(np.inf)
        assert norms == (5.0, 7, 4, 4)
        assert [type(v) for v in norms] == [float, int, int, int]


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64, 2**200, 10**120])
def test_norms_of_huge_values_are_exact(size: int) -> None:
    R = Ring(4, 10**130)
    a = R([size, -size, 0, 1])
    assert a.norm(1) == 2 * size + 1 and a.norm(math.inf) == size
    assert type(a.norm(1)) is int and type(a.norm(math.inf)) is int
    many = R([[size, -size, 0, 1]] * 2)
    assert many.norm(1).tolist() == [2 * size + 1] * 2
    assert many.norm(math.inf).tolist() == [size] * 2


@pytest.mark.parametrize("k", [100, 499, 500, 600, 1000])
def test_the_euclidean_norm_of_huge_values(k: int) -> None:
    R = Ring(4, 2**1100)
    assert R([2**k]).norm() == 2.0**k
    assert R([3 * 2**k, 0, 4 * 2**k]).norm() == 5 * 2.0**k


def test_a_euclidean_norm_above_all_floats_says_what_to_do() -> None:
    a = Ring(4, 2**1100)([2**1099])
    assert a.norm(math.inf) == 2**1099
    with pytest.raises(pg.PolyGPUError, match="inf"):
        a.norm()


def test_norms_of_an_empty_batch() -> None:
    for p in (1, 2, math.inf):
        assert R17.zeros((0, 2)).norm(p).shape == (0, 2)


@every_ring
def test_centred_integers_at_the_edges(name: str) -> None:
    """In (-Q/2, Q/2]: Q even keeps + Q/2, Q odd splits evenly."""
    R = ring(name)
    q = R.modulus
    for v in {0, 1, q // 2, (q // 2 + 1) % q, q - 1, (q - 1) // 2}:
        low, centred = R(v).to_bigints()[0], R(v).to_bigints(centered=True)[0]
        assert type(low) is int and type(centred) is int
        assert low == v
        assert (centred - v) % q == 0 and -q < 2 * centred <= q


@every_transform
def test_integers_of_an_evaluated_poly(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    got = R(x).ntt().to_bigints(centered=True)
    assert got.dtype == object and got.shape == x.shape
    assert (got % R.modulus).tolist() == x.tolist()
    assert all(-R.modulus < 2 * v <= R.modulus for v in got.ravel())


@pytest.mark.parametrize("centered", [False, True])
def test_integers_of_an_empty_batch(centered: bool) -> None:
    for R in (R17, RNS, ring("2^128")):
        assert R.zeros((0, 2)).to_bigints(centered).shape == (0, 2, 4)


# ---- the batch ----

KEYS = {
    "0": 0,
    "-1": -1,
    "NumPy int": np.int64(1),
    "1, 2": np.s_[1, 2],
    ":": np.s_[:],
    "1:": np.s_[1:],
    "::-1": np.s_[::-1],
    ":, ::2": np.s_[:, ::2],
    "5:": np.s_[5:],
    "...": ...,
    "..., 0": np.s_[..., 0],
    "0, ...": np.s_[0, ...],
    "()": (),
    "None": None,
    ":, None": np.s_[:, None],
    "..., None": np.s_[..., None],
    "list": [1, 0, 1],
    "array": np.array([[0, 1], [1, 1]]),
    "empty list": np.s_[np.zeros(0, int)],
    "two lists": np.s_[[0, 1], [2, 0]],
    ":, list": np.s_[:, [2, 0]],
    "list, None": np.s_[[1, 0], None],
    "mask": np.array([False, True]),
    "mask of 2 axes": np.array([[True, False, True], [False, True, False]]),
    ":, mask": np.s_[:, np.array([True, False, True])],
    "True": True,
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["RNS of 3 words", "2^128", "degree 1"])
def test_indexing_follows_numpy_on_the_batch(name: str, key: str) -> None:
    R = ring(name)
    x = draw(R, (2, 3))
    labels = np.arange(6).reshape(2, 3)[KEYS[key]]
    got = R(x)[KEYS[key]]
    check(got, x.reshape(6, R.n)[labels], batch=labels.shape)
    if R.has_eval:
        check(R(x).ntt()[KEYS[key]], x.reshape(6, R.n)[labels], "eval", batch=labels.shape)


@pytest.mark.parametrize("key", [2, -3, np.s_[0, 0, 0], np.s_[0, 0, 0, 0], np.ones((2, 3, 1), bool)])
def test_indices_never_reach_coefficients(key: Any) -> None:
    with pytest.raises(IndexError, match=r"batch shape is \(2, 3\).*poly\.data"):
        R17.zeros((2, 3))[key]


def test_iteration_and_len() -> None:
    x = draw(RNS, (3, 2))
    a = RNS(x)
    assert len(a) == 3 and len(RNS.zeros(0)) == 0 and list(RNS.zeros(0)) == []
    parts = list(a)
    assert len(parts) == 3
    for part, row in zip(parts, x, strict=True):
        check(part, row)
    for call in (len, iter, list):
        with pytest.raises(TypeError, match="single polynomial"):
            call(a[0, 0])


@pytest.mark.parametrize(
    "shape", [(6,), (3, 2), (-1,), (2, -1), (1, 6, 1), ((3, 2),), ((2, -1, 1),), (np.int64(6),)]
)
def test_reshape(shape: Any) -> None:
    x = draw(RNS, (2, 3))
    a = RNS(x)
    sizes = shape[0] if isinstance(shape[0], tuple) else shape
    got = a.reshape(*shape)
    check(got, x.reshape(6, 4).reshape(*np.zeros(6).reshape(sizes).shape, 4))
    assert np.shares_memory(got.data, a.data)


def test_reshape_to_and_from_a_single_polynomial() -> None:
    a = RNS([1, 2])
    assert a.reshape(1, 1).shape == (1, 1) and a.reshape(1).reshape().shape == ()
    assert a.reshape(1).reshape(()) == a


def test_copy_owns_its_memory() -> None:
    a = RNS(draw(RNS, (2,)))
    b = a.copy()
    assert b == a and not np.shares_memory(a.data, b.data) and b.ring is a.ring


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -3, (0, 1), (0, -1), (2, 0), (0, 1, 2), ()])
@few_rings
def test_sum(name: str, axis: Any) -> None:
    R = ring(name)
    x = draw(R, (2, 5, 3))
    axes = range(3) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    expected = x.sum(axis=tuple(a % 3 for a in axes)) % R.modulus if axes != () else x
    check(R(x).sum(axis), expected)


def test_sum_into_memory_that_is_given() -> None:
    R = ring("RNS of 3 words")
    a = R.random((2, 3), seed=1)
    out = R.zeros(3).ntt()
    assert a.sum(0, out=out) is out and out == a[0] + a[1] and out.domain == "coef"
    single = R.zeros()
    assert a.sum(out=single) is single and single == a.sum()
    same = a.copy()
    assert a.sum((), out=same) is same and same == a
    with pytest.raises(pg.OutputError, match=r"batch shape \(3,\), the result has \(2,\)"):
        a.sum(1, out=out)
    with pytest.raises(pg.OutputError, match="overlaps"):
        a.sum(0, out=a[0])


def test_numpys_sum() -> None:
    a = ring("RNS of 3 words").random((2, 3), seed=1)
    assert np.sum(a) == a.sum() and np.sum(a, axis=1) == a.sum(1)
    out = a[0].copy()
    assert np.sum(a, 0, out=out) is out and out == a.sum(0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 1000])
@every_ring
def test_long_sums_do_not_overflow(name: str, count: int) -> None:
    R = ring(name)
    if R.n * count > 20_000:
        count = 20_000 // R.n
    a = R([R.modulus - 1] * R.n)
    got = a.reshape(1)[np.zeros(count, int)].sum()
    check(got, [-count % R.modulus] * R.n)


@pytest.mark.parametrize(
    ("batch", "axis", "result"),
    [((0,), None, ()), ((0, 2), 0, (2,)), ((0, 2), 1, (0,)), ((2, 0), 1, (2,)), ((0, 0), None, ())],
)
@few_rings
def test_an_empty_sum_is_zero(name: str, batch: tuple[int, ...], axis: Any, result: tuple[int, ...]) -> None:
    R = ring(name)
    check(R.zeros(batch).sum(axis), np.zeros((*result, R.n), dtype=object), batch=result)


def test_a_sum_is_never_shared() -> None:
    a = RNS(draw(RNS, (1,)))
    for poly in (a.sum(), a.sum(()), a[0].sum(), a.sum(0)):
        assert not np.shares_memory(poly.data, a.data)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3, np.int64(1)])
@pytest.mark.parametrize("name", ["RNS of 3 words", "2^128", "degree 1"])
def test_stack(name: str, axis: int) -> None:
    R = ring(name)
    x, y = draw(R, (2, 3), 1), draw(R, (2, 3), 2)
    at = axis % 3
    check(pg.stack([R(x), R(y)], axis), np.stack([x, y], at))
    check(pg.stack((p for p in (R(x), R(y))), axis), np.stack([x, y], at))


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("name", ["RNS of 3 words", "2^128", "degree 1"])
def test_concatenate(name: str, axis: int) -> None:
    R = ring(name)
    at = axis % 2
    x, y = draw(R, (2, 3), 1), draw(R, ((4, 3), (2, 5))[at], 2)
    check(pg.concatenate([R(x), R(y), R(x)], axis), np.concatenate([x, y, x], at))


def test_a_batch_is_a_sequence_of_polys() -> None:
    x = draw(RNS, (3, 2))
    check(pg.stack(RNS(x)), x)
    check(pg.concatenate(RNS(x)), x.reshape(6, 4))


@few_transforms
def test_joining_mixed_domains_gives_eval(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    for a, b, domain in (
        (R(x), R(y).ntt(), "eval"),
        (R(x).ntt(), R(y), "eval"),
        (R(x).ntt(), R(y).ntt(), "eval"),
        (R(x), R(y), "coef"),
    ):
        check(pg.stack([a, b]), np.stack([x, y]), domain)
        check(pg.concatenate([a, b]), np.concatenate([x, y]), domain)


def test_joining_copies() -> None:
    a = RNS(draw(RNS, (2,)))
    assert not np.shares_memory(pg.stack([a]).data, a.data)
    assert not np.shares_memory(pg.concatenate([a]).data, a.data)


# ---- devices, copies, exchange ----


def test_host_devices() -> None:
    a = RNS(draw(RNS, (2,)))
    assert a.cpu() is a and a.to("cpu") is a and a.device == "cpu"


@few_rings
def test_the_reference_device_agrees(name: str) -> None:
    R = ring(name)
    a, b = R(draw(R, (), 1)), R(draw(R, (), 2))
    expected = (a * b).data.tolist()
    with pg.device("reference"):
        assert (a * b).data.tolist() == expected


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@few_rings
def test_pickle(name: str, protocol: int) -> None:
    R = ring(name)
    x = draw(R, (2,))
    for poly in (R(x), R(x).ntt()) if R.has_eval else (R(x),):
        again = pickle.loads(pickle.dumps(poly, protocol))
        assert type(again) is Poly and again.ring == R
        check(again, x, poly.domain)
        assert again.data.tolist() == poly.data.tolist()


def test_pickle_out_of_band_moves_no_residues() -> None:
    a = RNS(draw(RNS, (100,)))
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(a, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1 and len(stream) < 1000
    assert np.shares_memory(np.frombuffer(buffers[0].raw(), np.uint8), a.data)
    again = pickle.loads(stream, buffers=buffers)
    assert again == a and np.shares_memory(again.data, a.data)
    raw = bytes(buffers[0].raw())
    for buffer in (raw, memoryview(b"?" + raw)[1:]):  # read-only, and in the middle of a message
        frozen = pickle.loads(stream, buffers=[buffer])
        assert frozen == a and frozen * frozen == a * a and frozen.ntt() == a.ntt()


def test_copy_module() -> None:
    a = RNS(draw(RNS, (2,))).ntt()
    deep = copy.deepcopy(a)
    assert deep == a and deep.domain == "eval" and not np.shares_memory(deep.data, a.data)
    assert copy.copy(a) == a


@few_rings
def test_asarray_is_data(name: str) -> None:
    R = ring(name)
    a = R(draw(R, (2,)))
    assert np.asarray(a) is a.data
    assert np.asarray(a, dtype=R.dtype) is a.data
    assert np.array(a, copy=False) is a.data
    assert not np.shares_memory(np.array(a), a.data) and np.array_equal(np.array(a), a.data)


def test_array_of_another_dtype() -> None:
    a = RNS(draw(RNS, (2,)))
    for dtype in (np.int64, np.float64, object, ">u8"):
        got = np.asarray(a, dtype=dtype)
        assert got.dtype == dtype and got.tolist() == a.data.tolist()
        with pytest.raises(ValueError, match="copy"):
            np.array(a, dtype=dtype, copy=False)


@few_rings
def test_dlpack(name: str) -> None:
    R = ring(name)
    a = R(draw(R, (2,)))
    array = np.from_dlpack(a)
    assert np.shares_memory(array, a.data) and np.array_equal(array, a.data)
    assert a.__dlpack_device__() == (1, 0)
    check(R.from_residues(array), draw(R, (2,)))
    copied = np.from_dlpack(a, copy=True)
    assert not np.shares_memory(copied, a.data) and np.array_equal(copied, a.data)


def test_dlpack_of_read_only_residues() -> None:
    a = R17([1, 2])
    a.data.flags.writeable = False
    assert np.from_dlpack(a).tolist() == a.data.tolist()


def test_a_poly_has_no_writable_attributes() -> None:
    a = R17([1, 2])
    for name in ("ring", "data", "domain", "shape", "ndim", "device", "other"):
        with pytest.raises(AttributeError):
            setattr(a, name, None)


@pytest.mark.parametrize(
    ("poly", "parts"),
    [
        (R17([1, 2]), ["n=4", "q=17", "coef", "shape=()", "cpu"]),
        (Ring(8, 17, kind="cyclic").zeros((2, 3)).ntt(), ["cyclic", "eval", "shape=(2, 3)"]),
        (RNS.zeros(0), ["limbs=3", "bits=19", "shape=(0,)"]),
        (Ring(4, 2**128)([1]), [f"q={2**128}"]),
    ],
)
def test_repr_is_one_line(poly: Poly, parts: list[str]) -> None:
    text = repr(poly)
    assert text.startswith("Poly(") and "\n" not in text
    for part in parts:
        assert part in text


def test_reprs_of_a_huge_modulus() -> None:
    R = Ring(2, 2**20_000)
    assert "\n" not in repr(R(1)) and len(repr(R(1))) < 10_000
    assert R(1)._repr_html_()


def test_reprs_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    a = RNS(draw(RNS, (2,))).ntt()

    def expensive(*_: Any, **__: Any) -> Any:
        raise AssertionError("a repr computed something")

    for name in ("to_bigints", "intt", "ntt", "_in_domain", "__array__"):
        monkeypatch.setattr(Poly, name, expensive)
    assert "eval" in repr(a)
    html = a._repr_html_()
    assert html.startswith("<table>") and html.endswith("</table>") and "\n" not in html
    assert ", ".join(map(str, a.data[0, 0].tolist())) in html


def test_html_of_a_wide_residue_shows_the_residue() -> None:
    assert str(2**100 + 3) in Ring(2, 2**128)([2**100 + 3])._repr_html_()


def test_html_of_an_empty_batch() -> None:
    assert "(0, 2)" in R17.zeros((0, 2))._repr_html_()


def test_several_threads_may_share_a_poly() -> None:
    R = ring("50 bits")
    x, y = draw(R, (4,), 1), draw(R, (4,), 2)
    a, b, expected = R(x), R(y), times(R, x, y).tolist()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: (a * b).to_bigints().tolist(), range(16)))
    assert results == [expected] * 16
