"""Conversion of integers, floats and residues to polynomials and back: constants, values, norms."""

from __future__ import annotations

import enum
import math
import random
import tracemalloc
import warnings
from array import array
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from devices import CARDS, host, on, over, shares_memory, there
from hypothesis import given
from hypothesis import strategies as st
from oracle import (
    FEW,
    LAYOUTS,
    R17,
    RNS,
    check,
    draw,
    every_ring,
    every_transform,
    everywhere,
    few_rings,
    fold,
    padded,
    product,
    residues,
    ring,
    times_monomial,
    value_at,
)

import polygpu as pg
from polygpu import Ring, ntt_primes


@every_ring
def test_integers_are_reduced_in_every_limb(name: str) -> None:
    R = ring(name)
    q = R.modulus
    x = draw(R, (2, 3))
    x[0, 0] += q * random.Random(name).choice([-(2**200), -1, 1, 2**200])
    x[1, 2] = -x[1, 2]
    poly = R(x)
    assert poly.data.tolist() == residues(R, x)
    assert poly.data.dtype == (np.uint32 if max(R.moduli) <= 2**32 else np.uint64)
    assert (poly.domain, poly.shape, poly.ndim, poly.ring) == ("coef", (2, 3), 2, R)
    assert poly.to_bigints().tolist() == (x % q).tolist()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
@over(["30 bits", "64 bits", "RNS of 3 words", "2^32", "2^128", "q = 2"], ["RNS of 3 words", "2^128"])
def test_integers_of_any_dtype(name: str, kind: str, order: str) -> None:
    R = ring(name)
    info = np.iinfo(kind)
    values = [info.min, info.max, 0, 1][: R.n]
    x = np.array(values, dtype=kind).astype(order + kind)
    assert R(x).data.tolist() == R(values).data.tolist() == residues(R, padded(R, values))


class Small(enum.IntEnum):
    TWO = 2


@everywhere
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


@everywhere
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


WORD_LIMITS = (2**64, 2**63 - 25, 2**62 - 57, 2**50 - 27, 2**32 - 5, 2**31 - 1, 3)


@on("cpu", "reference", "simulated", "cuda")
@pytest.mark.parametrize("moduli", [WORD_LIMITS, WORD_LIMITS[4:], (2**32, 3)], ids=["64", "32 bits", "2^32"])
@pytest.mark.parametrize("bits", [64, 65, 127, 128, 129, 1000, 4096])
def test_ints_of_several_words(moduli: Any, bits: int, device: str) -> None:
    """Ints lie at both ends of their words, modulo the limit of every word."""
    R, rng = Ring(4, list(moduli)), random.Random(bits)
    edges = [s * 2**bits + d for s in (-1, 1) for d in (-1, 0, 1)]
    x = [edges, [rng.getrandbits(bits) for _ in range(6)], [-rng.getrandbits(bits) for _ in range(6)]]
    rows = [x[i][j : j + 3] for i in range(3) for j in (0, 3)]
    found = R(rows)
    assert host(found.data).tolist() == [[[v % q for v in row] + [0] for q in R.moduli] for row in rows]


def test_memory_of_ints_of_very_different_sizes() -> None:
    """One int of a million bits must not widen the words of the other ints."""
    R = Ring(1 << 12, [2**61 - 1, 2**31 - 1])
    x = [*range(4000), 3**600000]
    tracemalloc.start()
    found = R(x)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 23
    assert found.data[:, :4001].tolist() == [[v % q for v in x] for q in R.moduli]


def nested(shape: tuple[int, ...], make: Any) -> Any:
    return (
        make(nested(shape[1:], make) for _ in range(shape[0])) if shape else random.randrange(-(2**63), 2**63)
    )


@pytest.mark.parametrize("make", [list, tuple])
@pytest.mark.parametrize("shape", [(0,), (4,), (3, 0), (3, 4), (2, 1, 3), (1, 1, 1, 1), (0, 3)])
def test_nested_lists_have_the_shape_of_numpy(make: Any, shape: tuple[int, ...]) -> None:
    x, R = nested(shape, make), Ring(4, [2**61 - 1, 97])
    expected = np.array(x, dtype=object)
    assert R(x) == R(expected) and R(x).shape == expected.shape[:-1]


WRONG_ENTRIES = [True, 1.0, None, "1", b"1", np.float64(1), np.True_, 1 + 0j, Decimal(1), [1], (), {}]


@pytest.mark.parametrize("wrong", WRONG_ENTRIES, ids=repr)
@pytest.mark.parametrize("at", [(0, 0), (0, 2), (1, 1), (2, 2)])
@pytest.mark.parametrize("other", [5, 2**70])
def test_invalid_entries_in_lists_raise(wrong: Any, at: tuple[int, int], other: int) -> None:
    x: list[list[Any]] = [[other] * 3 for _ in range(3)]
    x[at[0]][at[1]] = wrong
    for entries in (x, tuple(map(tuple, x)), x[at[0]]):
        with pytest.raises(pg.errors.CoefficientError):
            Ring(4, 97)(entries)
    for ragged in ([[1, 2], [3]], [[1], []], [1, [2]], [[1], 2], [[[1]], [[1], [2]]]):
        with pytest.raises(pg.errors.CoefficientError, match="ragged"):
            Ring(4, 97)(ragged)


@pytest.mark.parametrize(
    "x",
    [-3, np.int64(-3), np.int8(-3), np.array(-3), np.array(-3, ">i2"), np.array(-3, object), [-3]],
    ids=repr,
)
@few_rings
def test_one_int_is_a_constant(name: str, x: Any) -> None:
    R = ring(name)
    check(R(x), fold(R, [-3]), batch=())


TESTED_APART = ("read-only", "order of bytes by name", "subclass")


@over(FEW, devices=["cpu"])
def test_residues_with_an_explicit_byte_order_are_shared(name: str) -> None:
    """zarr names the byte order: the dtype equals that of residues, so memory is shared."""
    R = ring(name)
    a = R.random(2, seed=1)
    data = LAYOUTS["order of bytes by name"](a.data)
    assert data.dtype == a.data.dtype and data.dtype.byteorder != a.data.dtype.byteorder
    b = R.from_residues(data)
    assert np.shares_memory(b.data, data)
    assert b * b == a * a and b + 1 == a + 1 and (-b).to_bigints().tolist() == (-a).to_bigints().tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32, np.int8])
@over(FEW, devices=["cpu"])
def test_integers_of_any_memory_layout(name: str, dtype: type, layout: str) -> None:
    R = ring(name)
    x = np.random.default_rng(1).integers(0, 100, (3, R.n)).astype(dtype)
    view = LAYOUTS[layout](x)
    assert R(view).data.tolist() == residues(R, view.astype(object))


@pytest.mark.parametrize("size", [100, 2**80])
@pytest.mark.parametrize("layout", ["transposed", "Fortran", "every other", "backwards", "broadcast"])
@over(FEW, devices=["cpu"])
def test_python_ints_of_any_memory_layout(name: str, layout: str, size: int) -> None:
    R = ring(name)
    source = random.Random(1)
    x = np.array([[source.randrange(-size, size) for _ in range(R.n)] for _ in range(3)], dtype=object)
    view = LAYOUTS[layout](x)
    assert R(view).data.tolist() == residues(R, view)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (3, 0, 2)])
@few_rings
def test_empty_rows_and_empty_batches(name: str, shape: tuple[int, ...]) -> None:
    R = ring(name)
    for dtype in (np.int64, np.uint8, object):
        poly = R(np.zeros(shape, dtype))
        assert poly.shape == shape[:-1]
        assert not poly.data.any()


@everywhere
def test_short_rows_are_padded_with_zeros() -> None:
    check(R17([[1, 2], [3, 4]]), [[1, 2, 0, 0], [3, 4, 0, 0]])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, object])
@few_rings
def test_integers_are_copied(name: str, dtype: type) -> None:
    R = ring(name)
    x = np.full((2, R.n), 7, dtype)
    if dtype is not object:
        x = there(x)
    poly = R(x)
    assert (x == 7).all() and not shares_memory(x, poly.data)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
@few_rings
def test_integers_on_the_device(name: str, dtype: Any) -> None:
    R, limits = ring(name), np.iinfo(dtype)
    x = np.array([[limits.min, limits.max, 0], [1, limits.max // 2, limits.min + 1]], dtype=dtype)
    for view in (np.s_[:], np.s_[:, ::2], np.s_[0, 1], np.s_[:0]):
        found = np.array(x.astype(object)[view], dtype=object)
        rows = found if found.ndim else found[None]
        expected = np.zeros((*rows.shape[:-1], R.n), dtype=object)
        expected[..., : rows.shape[-1]] = rows
        check(R(there(x)[view]), expected % R.modulus)


# ---- real numbers in ----

SCALES = [
    *(1, -1, 0, 2, 0.5, 2.0**62, 2.0**63, -(2**64), 2**100, 2**1100, Fraction(1, 2**1100), 5e-324, -1.7e308),
    *(1000, 0.1, -3.5, 2**61 - 1, 10**40, Fraction(1, 3), Fraction(-(2**200), 10**9 + 7), Fraction(7, 4)),
    *(np.float32(0.1), np.float64(2**80), np.int64(-(2**63)), np.uint8(200), np.float16(1.5)),
]
REALS = [
    *(0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994, 2.0**52 + 0.5, 2.0**53 - 1, 2.0**53 + 2),
    *(
        2.0**62,
        2.0**63,
        -(2.0**63),
        2.0**64,
        1.7e308,
        -1.7976931348623157e308,
        5e-324,
        -2.2e-308,
        1e-3,
        1 / 3,
    ),
]


def nearest(x: Any, scale: Any) -> list[int]:
    """The products of Fractions, which `round` takes to the nearest int, halves to even."""
    exact = Fraction(
        scale if isinstance(scale, Fraction) else scale.item() if hasattr(scale, "item") else scale
    )
    return [round(Fraction(v) * exact) for v in x]


@few_rings
def test_from_floats_rounds_once(name: str) -> None:
    for scale in SCALES:
        check_floats(ring(name), scale)


def check_floats(R: Ring, scale: Any) -> None:
    rng = random.Random(repr(scale))
    wild = [math.ldexp(rng.uniform(-1, 1), rng.randrange(-1074, 1025)) for _ in range(R.n)]
    ties = [rng.randrange(-(2**52), 2**52) / 2 for _ in range(R.n)]
    mild = [rng.uniform(-1, 1) for _ in range(R.n)]
    rows = [wild, ties, mild, *(list(REALS[i : i + R.n]) for i in range(0, len(REALS), R.n))]
    for row in rows:
        check(R.from_floats(row, scale=scale), padded(R, nearest(row, scale)) % R.modulus)
    batch = np.array(rows[:3])
    expected = [[v % R.modulus for v in nearest(row, scale)] for row in rows[:3]]
    for same in (batch, there(batch), batch.astype(">f8"), np.asfortranarray(batch)):
        check(R.from_floats(same, scale=scale), expected)


@given(
    x=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    scale=st.fractions()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.sampled_from(SCALES),
)
def test_from_floats_matches_fractions(x: list[float], scale: Any) -> None:
    R = ring("2^128")
    check(R.from_floats(x, scale=scale), padded(R, nearest(x, scale)) % R.modulus)


@given(
    odd=st.integers(0, 2**63 - 1).map(lambda v: 2 * v + 1) | st.sampled_from([1, 3, 2**64 - 1]),
    shift=st.integers(1, 52),
    near=st.integers(-2, 2),
    more=st.integers(-60, 60),
    sign=st.sampled_from([1, -1]),
)
def test_from_floats_near_ties(odd: int, shift: int, near: int, more: int, sign: int) -> None:
    """Products of the mantissa x and an odd number end in the bits of one half, or next to it."""
    half = (pow(odd, -1, 2**shift) << shift - 1) % 2**shift
    x = [
        float(half + near),
        float(half + 2 ** min(shift, 51) + near),
        -float(half - near),
        math.ldexp(half, -more),
    ]
    R, scale = ring("2^128"), sign * Fraction(odd, 2**shift)
    check(R.from_floats(x, scale=scale), padded(R, nearest(x, scale)) % R.modulus)
    scale *= Fraction(2) ** more
    x = [math.ldexp(v, -more) for v in x]
    check(R.from_floats(x, scale=scale), padded(R, nearest(x, scale)) % R.modulus)


# Factors that are doubles, that are sums of two, and that are none; all sizes of products.
FACTORS: list[Any] = [
    *(
        1000,
        -0.1,
        1.1e12,
        3 * 2.0**-30,
        Fraction(7, 2**40),
        2**53 + 1,
        -(2**64) + 1,
        3**70,
        Fraction(5**40, 2**90),
    ),
    *(
        Fraction(1, 3),
        Fraction(-7, 6),
        Fraction(2**80, 2**50 - 27),
        Fraction(2**120, 3**60),
        Fraction(1, 10**50),
    ),
    *(1 + Fraction(1, 2**1200), Fraction(1, 3 * 2**899), Fraction(2**899, 3), Fraction(1, 5 * 2**950)),
    *(3 * 2**890, 3 * 2**1000, 2**40, 2.0**49, Fraction(1, 2**20), 0),
]


def around_ties(rng: random.Random, scale: Fraction, count: int) -> list[float]:
    """Doubles whose products are of all sizes, many next to halves of integers, on both sides and on them."""
    found: list[float] = []
    while len(found) < count:
        bits = rng.choice([0, 1, 5, 20, 40, 51, 52, 53, 54, 60, 62, 63, 64, 70])
        value = Fraction(rng.randrange(-(2**bits), 2**bits + 1)) + rng.choice(
            [Fraction(1, 2), Fraction(rng.random())]
        )
        try:
            x = float(value / scale if scale else value)
        except OverflowError:
            continue
        near = [x, math.nextafter(x, math.inf), math.nextafter(x, -math.inf), float(rng.randrange(-99, 99))]
        found += [v for v in near if math.isfinite(v)]
    return found[:count]


@pytest.mark.parametrize("scale", FACTORS, ids=lambda x: f"{float(x):.3g}")
def test_from_floats_of_many_values_matches_fractions(scale: Any) -> None:
    rng, R = random.Random(repr(scale)), Ring(600, 2**1100)
    exact = Fraction(scale)
    x = around_ties(rng, exact, R.n)
    fitting = [v for v in x if abs(Fraction(v) * exact) < 2**63 - 2**11]
    single = np.array([v for v in x if abs(v) < 1e38], np.float32)
    for row in (np.array(x), np.array(fitting), single, single[::-2]):
        found = R.from_floats(row, scale=scale).to_bigints(centered=True)
        assert found.tolist() == nearest(row.tolist(), exact) + [0] * (R.n - len(row))


@given(
    x=st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=4),
    factor=st.integers(-(2**53), 2**53),
    down=st.integers(1, 100),
)
def test_from_floats_near_ties_with_a_scale_that_is_a_double(x: list[int], factor: int, down: int) -> None:
    R, scale = ring("2^128"), Fraction(factor, 2**down)
    check(R.from_floats(np.array(x, float), scale=scale), padded(R, nearest(x, scale)) % R.modulus)


@pytest.mark.parametrize("scale", [Fraction(3, 2), Fraction(-5, 2), Fraction(7, 4), Fraction(3, 64)], ids=str)
def test_from_floats_near_ties_beyond_double_precision(scale: Fraction) -> None:
    """Products have 52 to 55 bits. Half of them are ties, seen only in double-double."""
    rng, R = random.Random(repr(scale)), Ring(256, 2**128)
    for low, high in ((2**50, 2**51), (2**51, 2**52), (2**52, 2**53)):
        x = [float(rng.randrange(low, high)) * rng.choice([1, -1]) for _ in range(R.n)]
        check(R.from_floats(x, scale=scale), np.array(nearest(x, scale), object) % R.modulus)


def test_from_floats_at_the_limit_of_64_bits() -> None:
    """Products lie on both sides of 2^63, where 64-bit integers end."""
    R = Ring(4, 2**128)
    for scale in (Fraction(3), Fraction(1, 3), Fraction(2**53 + 1), Fraction(2**63 - 1), 1):
        for bound in (2**63 - 2**12, 2**63 - 2**10, 2**63 - 1, 2**63, 2**64):
            x = float(bound / Fraction(scale))
            row = [x, -x, math.nextafter(x, 0), -math.nextafter(x, math.inf)]
            check(R.from_floats(row, scale=scale), np.array(nearest(row, scale), object) % R.modulus)


@over(["RNS of 3 words"])
def test_from_floats_of_any_container(name: str) -> None:
    R = ring(name)
    x = [0.5, -1.25, 3.0, 65504.0]
    expected = padded(R, nearest(x, 2**70)) % R.modulus
    arrays = [np.array(x, dtype) for dtype in ("f2", "f4", "f8", ">f2", ">f4", object)]
    for same in (x, tuple(x), array("d", x), *arrays, *map(there, arrays[:3]), [np.float32(v) for v in x]):
        check(R.from_floats(same, scale=2**70), expected)
    mixed = [0.25, 2**80 + 1, np.int64(-3), np.float16(0.5)]  # one list as doubles would round the large int
    for scale in (1, 8, Fraction(3, 8)):
        check(
            R.from_floats(mixed, scale=scale),
            padded(R, nearest(map(Fraction, (0.25, 2**80 + 1, -3, 0.5)), scale)) % R.modulus,
        )
    for dtype in (np.int8, np.uint64, np.int64, object):
        ints = np.array([[1, 2, 3], [100, 101, 127]], dtype)
        for scale in (1, 2.0**64, Fraction(1, 2)):
            expected_ints = [padded(R, nearest(row.tolist(), scale)) % R.modulus for row in ints]
            check(R.from_floats(ints, scale=scale), expected_ints)
    for one in (0.5, np.float32(0.5), np.array(0.5), np.array(0.5, object)):
        check(R.from_floats(one, scale=2**70), padded(R, [2**69]), batch=())
    for shape in ((0,), (3, 0), (0, 4), (2, 0, R.n)):
        for scale in (1, 2**100, 2**1100, 2**61 - 1, Fraction(1, 3)):
            found = R.from_floats(np.zeros(shape), scale=scale)
            assert found.shape == shape[:-1] and not found.data.any()
    check(R.from_floats([]), padded(R, []))


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (np.array([1.0, math.nan]), pg.errors.CoefficientError, ["nan", "(1,)", "finite"]),
        (
            np.array([[1.0], [-math.inf]], np.float32),
            pg.errors.CoefficientError,
            ["-inf", "(1, 0)", "finite"],
        ),
        ([1, math.inf], pg.errors.CoefficientError, ["inf", "(1,)", "finite"]),
        ([2**2000, math.nan], pg.errors.CoefficientError, ["nan", "(1,)", "finite"]),
        (np.array([1j]), pg.errors.CoefficientError, ["complex128", "from_slots"]),
        ([1.0, 1j], pg.errors.CoefficientError, ["1j", "complex", "from_slots"]),
        (np.ones(2, np.longdouble), pg.errors.CoefficientError, [np.dtype(np.longdouble).name]),
        ([1.0, np.longdouble(1)], pg.errors.CoefficientError, ["longdouble"]),
        (np.ones(2, bool), pg.errors.CoefficientError, ["bool"]),
        ([1.0, True], pg.errors.CoefficientError, ["True", "bool"]),
        ([1.0, np.True_], pg.errors.CoefficientError, ["True", "bool"]),
        ([1.0, "2"], pg.errors.CoefficientError, ["'2'", "str"]),
        ([1.0, None], pg.errors.CoefficientError, ["None"]),
        ([Fraction(1, 2)], pg.errors.CoefficientError, ["Fraction"]),
        (b"12", pg.errors.CoefficientError, ["bytes"]),
        ([[1.0], [1.0, 2.0]], pg.errors.CoefficientError, ["ragged"]),
        ([1.0, [2.0]], pg.errors.CoefficientError, ["ragged"]),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), pg.errors.CoefficientError, ["masked"]),
        (R17([1]), pg.errors.CoefficientError, ["a Poly", "to_float64"]),
        ([[0.0] * 5], pg.ParameterError, ["5 coefficients", "n=4"]),
    ],
    ids=str,
)
def test_from_floats_raises_for_invalid_values(x: Any, error: type[Exception], words: list[str]) -> None:
    if np.dtype(np.longdouble).itemsize == 8 and "longdouble" in str(words):
        pytest.skip("a long double is a double here")
    for scale in (1, 2**70, 2**1500, Fraction(1, 3), 0):
        with warnings.catch_warnings(), pytest.raises(error) as caught:
            warnings.simplefilter("error")
            R17.from_floats(x, scale=scale)
        assert all(word in str(caught.value) for word in words)


@on(*CARDS)
def test_from_floats_of_infinity_on_a_card_raises(device: str) -> None:
    for scale in (1, 2**1500, 3):
        with pytest.raises(pg.errors.CoefficientError, match=r"inf at \(0,\)"):
            R17.from_floats(there(np.array([-math.inf, 1.0])), scale=scale)


@pytest.mark.parametrize(
    "scale", [math.nan, -math.inf, np.float32("inf"), True, np.True_, 1j, "2", None, Decimal(2)]
)
def test_from_floats_raises_for_invalid_scales(scale: Any) -> None:
    with pytest.raises(pg.ParameterError, match=r"scale=.*(Give an int|Convert it)"):
        R17.from_floats([1.0], scale=scale)


# ---- residues in ----


@every_ring
def test_from_residues_shares_plain_arrays(name: str) -> None:
    R = ring(name)
    data = R(draw(R, (2,))).data
    poly = R.from_residues(data)
    assert shares_memory(poly.data, data) and (poly.domain, poly.shape) == ("coef", (2,))
    assert shares_memory(R.from_residues(data, copy=False).data, data)
    assert not shares_memory(R.from_residues(data, copy=True).data, data)
    check(R.from_residues(data, copy=True), draw(R, (2,)))


@every_transform
def test_from_residues_in_the_evaluation_domain(name: str) -> None:
    R = ring(name)
    data = R(draw(R)).ntt().data.copy()
    check(R.from_residues(data, domain="eval"), draw(R), "eval")


OTHER_DATA = {
    **{name: layout for name, layout in LAYOUTS.items() if name not in TESTED_APART},
    "other dtype": lambda x: x.astype(np.int64) if x.dtype == np.uint32 else x.astype(object),
    "object": lambda x: x.astype(object),
    "lists": lambda x: x.tolist(),
}


@pytest.mark.parametrize("layout", OTHER_DATA)
@over(FEW, devices=["cpu"])
def test_from_residues_copies_other_layouts(name: str, layout: str) -> None:
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


@on(*CARDS)
def test_from_residues_on_a_card() -> None:
    x = draw(RNS, (2,))
    data = there(np.array(residues(RNS, x), RNS.dtype))
    shared = RNS.from_residues(data)
    assert shared.data is data
    assert not shares_memory(RNS.from_residues(data, copy=True).data, data)
    check(RNS.from_residues(data.astype(np.int64)), x)
    check(RNS.from_residues(there(np.array(residues(RNS, x), RNS.dtype).T.copy()).T), x)
    with pytest.raises(pg.ParameterError, match="copy"):
        RNS.from_residues(data[:, :, ::-1], copy=False)
    data[1, 2, 3] = RNS.moduli[2]
    with pg.debug(), pytest.raises(pg.errors.NotCanonical, match=r"\(1, 2, 3\)"):
        RNS.from_residues(data)
    with pytest.raises(pg.errors.CoefficientError, match="float64"):
        RNS(there(np.zeros(3)))


def test_from_residues_keeps_read_only_arrays() -> None:
    data = np.array([[1, 2, 3, 16]], np.uint32)
    data.flags.writeable = False
    poly = R17.from_residues(data)
    assert np.shares_memory(poly.data, data) and not poly.data.flags.writeable
    check(poly * poly, product(R17, [1, 2, 3, 16], [1, 2, 3, 16]))


def test_from_residues_of_an_array_subclass() -> None:
    data = np.array([[1, 2, 3, 16]], np.uint32).view(np.recarray)
    assert type(R17.from_residues(data).data) is np.ndarray


@everywhere
@pytest.mark.parametrize("wrong", [17, 2**32 - 1])
def test_debug_checks_shared_residues(wrong: int) -> None:
    data = there(np.array([[1, 2, wrong, 16]], np.uint32))
    R17.from_residues(data)  # nothing looks at the values of plain arrays
    with pg.debug():
        with pytest.raises(pg.errors.NotCanonical, match=rf"{wrong} at \(0, 2\).*17"):
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
def test_debug_checks_wide_residues(q: int, value: int) -> None:
    R = Ring(2, q)
    data = np.array([[0, value % 2**64], [0, value >> 64]], np.uint64)
    with pg.debug():
        with pytest.raises(pg.errors.NotCanonical, match=f"{value} at .*1.* is not a residue modulo {q}"):
            R.from_residues(data)
        data[:, 1] = (q - 1) % 2**64, (q - 1) >> 64
        check(R.from_residues(data), [0, q - 1])


@pytest.mark.parametrize("word", [-1, 2**64, -(2**64)])
@pytest.mark.parametrize("row", [0, 1])
def test_from_residues_checks_words_of_wide_residues(row: int, word: int) -> None:
    words = [[0, 3], [0, 2**30]]
    words[row][1] = word
    for data in (words, np.array(words, object), np.array(words, np.int64) if word == -1 else words):
        with pytest.raises(pg.errors.NotCanonical, match=str(2**100)):
            Ring(2, 2**100).from_residues(data)


@pytest.mark.parametrize("data", [[[1, 2, 3, 17]], [[-1, 2, 3, 4]], [[1, 2, 3, 2**32]]])
@pytest.mark.parametrize("dtype", [np.int64, object, ">i8", None])
def test_from_residues_checks_converted_residues(data: Any, dtype: Any) -> None:
    with pytest.raises(pg.errors.NotCanonical, match="17"):
        R17.from_residues(data if dtype is None else np.array(data, dtype))


@pytest.mark.parametrize("wrong", [1.5, True, None, "3", 2j])
def test_from_residues_of_objects_that_are_not_ints_raises(wrong: Any) -> None:
    with pytest.raises(pg.errors.CoefficientError):
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


@pytest.mark.parametrize("batch", [(), 0, 3, (2, 3)])
@every_transform
def test_evaluated_zeros_and_ones(name: str, batch: Any) -> None:
    """Each leaf is 0 or 1. Leaves of a complete transform have one coefficient."""
    R = ring(name)
    shape = batch if isinstance(batch, tuple) else (batch,)
    zero, one = R.zeros(batch, domain="eval"), R.ones(batch, domain="eval")
    assert zero.domain == one.domain == "eval" and not host(zero.data).any()
    assert R.leaf_size is not None and zero.shape == one.shape == shape
    expected = np.zeros((*shape, R.n), object)
    expected[..., :: R.leaf_size] = 1
    assert host(one.data).tolist() == residues(R, expected)
    assert np.array_equal(host(one.data), host(R.ones(batch).ntt().data))
    check(zero, np.zeros((*shape, R.n), object), "eval", shape)
    check(one, np.broadcast_to(padded(R, [1]), (*shape, R.n)), "eval", shape)


NO_DOMAINS: list[Any] = [
    *("", "ntt", "EVAL", "coefficients", b"eval", None, True, 1, 0.5, ["eval"], ("eval",), {"eval"}),
    np.array(["eval"]),
]


@pytest.mark.parametrize("make", [Ring.zeros, Ring.ones, Ring.random], ids=lambda f: f.__name__)
def test_invalid_domains_raise(make: Any) -> None:
    for wrong in NO_DOMAINS:
        with pytest.raises(pg.errors.DomainError, match=r"domain=.* must be 'coef' or 'eval'"):
            make(R17, domain=wrong)
    with pytest.raises(TypeError, match="positional"):
        make(R17, 2, "eval")
    for R, why in [
        (Ring(4, 15), "15 is not prime"),
        (Ring(4, 2**32), "4294967296 is not prime"),
        (Ring(12, 97), "not a power of two"),
        (Ring(4, [17, 9]), "9 is not prime"),
        (Ring(4, 2**100), "is not prime"),
    ]:
        for batch in ((), 0, (2, 3)):
            with pytest.raises(pg.NotNTTFriendly, match=why):
                make(R, batch, domain="eval")
        assert make(R, domain="coef").domain == "coef"
    with pytest.raises(pg.ParameterError, match="batch=-1"):
        make(R17, -1, domain="eval")


def test_domain_given_as_a_numpy_str() -> None:
    made = R17.ones(domain=np.str_("eval"))  # type: ignore[arg-type]
    assert made == R17.ones().ntt() and type(made.domain) is str


@every_ring
def test_monomials_of_any_exponent(name: str) -> None:
    R = ring(name)
    for k in (*range(-2 * R.n - 1, 2 * R.n + 2, max(1, R.n // 5)), 10**30, -(10**30)):
        check(R.monomial(k), times_monomial(R, [1], k))


@everywhere
def test_monomial_times_a_coefficient() -> None:
    check(RNS.monomial(-3, coefficient=2**100), [0, -(2**100) % RNS.modulus, 0, 0])
    check(RNS.monomial(np.int64(2), coefficient=np.int8(-5)), [0, 0, -5 % RNS.modulus, 0])


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


@everywhere
@pytest.mark.parametrize("batch", [(2,), (2, 3), (0,)])
def test_values_of_a_batch_at_one_point(batch: tuple[int, ...]) -> None:
    x = draw(RNS, batch)
    got = RNS(x)(7)
    assert got.shape == batch
    for i in np.ndindex(batch):
        assert got[i] == value_at(x[i], 7, RNS.modulus)


@everywhere
def test_values_of_an_evaluated_poly() -> None:
    x = draw(R17, (2,))
    assert R17(x).ntt()([3, 5]).tolist() == R17(x)([3, 5]).tolist()


# ---- norms and integers out ----


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
def test_norms_of_a_single_polynomial_are_numbers(name: str) -> None:
    R = ring(name)
    a = R([3, -4])
    for poly in (a, a.ntt()) if R.has_eval else (a,):
        norms = poly.norm(), poly.norm(1), poly.norm(float("inf")), poly.norm(np.inf)
        assert norms == (5.0, 7, 4, 4)
        assert [type(v) for v in norms] == [float, int, int, int]


@everywhere
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
def test_euclidean_norm_of_huge_values(k: int) -> None:
    R = Ring(4, 2**1100)
    assert R([2**k]).norm() == 2.0**k
    assert R([3 * 2**k, 0, 4 * 2**k]).norm() == 5 * 2.0**k


def test_euclidean_norm_above_all_floats_raises() -> None:
    a = Ring(4, 2**1100)([2**1099])
    assert a.norm(math.inf) == 2**1099
    with pytest.raises(pg.PolyGPUError, match="inf"):
        a.norm()


@everywhere
def test_norms_of_an_empty_batch() -> None:
    for p in (1, 2, math.inf):
        assert R17.zeros((0, 2)).norm(p).shape == (0, 2)


@every_ring
def test_centred_integers_at_the_edges(name: str) -> None:
    """Values lie in [-Q/2, Q/2). Even Q includes -Q/2; odd Q is symmetric."""
    R = ring(name)
    q = R.modulus
    for v in {0, 1, q // 2, (q // 2 + 1) % q, q - 1, (q - 1) // 2}:
        low, centred = R(v).to_bigints()[0], R(v).to_bigints(centered=True)[0]
        assert type(low) is int and type(centred) is int
        assert low == v
        assert (centred - v) % q == 0 and -q <= 2 * centred < q


@every_transform
def test_integers_of_an_evaluated_poly(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    got = R(x).ntt().to_bigints(centered=True)
    assert got.dtype == object and got.shape == x.shape
    assert (got % R.modulus).tolist() == x.tolist()
    assert all(-R.modulus <= 2 * v < R.modulus for v in got.ravel())


@everywhere
@pytest.mark.parametrize("centered", [False, True])
def test_integers_of_an_empty_batch(centered: bool) -> None:
    for R in (R17, RNS, ring("2^128")):
        assert R.zeros((0, 2)).to_bigints(centered=centered).shape == (0, 2, 4)


@everywhere
def test_to_residue_ints() -> None:
    assert RNS([[2**70, 1]]).to_residue_ints().tolist() == residues(
        RNS, np.array([[2**70, 1, 0, 0]], dtype=object)
    )
    wide = Ring(2, 2**100)([[2**99 + 1, -1]])
    assert wide.to_residue_ints().tolist() == [[2**99 + 1, 2**100 - 1]]


# ---- machine integers in and out ----

CHAINS = {
    "2 bits": [2, 3],
    "tiny": [5, 7, 9, 11, 13, 16, 17, 19],
    "30 bits": ntt_primes(64, bits=30, count=4),
    "50 bits": ntt_primes(64, bits=50, count=8),
    "60 bits": ntt_primes(64, bits=60, count=3),
    "64 bits": [2**64, 2**64 - 1, 2**64 - 59],
    "63 bits": [2**63],
    "just above 2^63": [2**63 + 1],
    "word": [2**64],
    "mixed": [3, 2**64 - 59, 97, 2**62 - 57, 2**32],
    "32 bits and more": [2**32, 2**32 - 5, 2**31 - 1],
    "65 bits": [2**64 + 13],
    "2^127": [2**127],
    "2^128": [2**128],
    "300 bits": [2**300 - 153],
}
chains = over(CHAINS, ["tiny", "50 bits", "64 bits", "mixed", "2^128"])


def chain_ring(name: str, n: int = 20) -> Ring:
    return Ring(n, CHAINS[name])


def edges(q: int) -> list[int]:
    """Integers next to the ends of the range, of half of it, and of machine words."""
    near = [0, q // 2, -(q // 2), q, -q, 2**63, -(2**63), 2**64, 2**53, -(2**53), q // 3]
    return [x + d for x in near for d in (-2, -1, 0, 1, 2)]


def in_range(x: int, q: int, centered: bool) -> int:
    x %= q
    return x - q if centered and 2 * x >= q else x


def rows_of(R: Ring, values: list[int]) -> list[list[int]]:
    return [padded(R, values[i : i + R.n]).tolist() for i in range(0, len(values), R.n)]


@pytest.mark.parametrize("centered", [False, True])
@chains
def test_to_bigints_and_to_int64_of_rns_values(name: str, centered: bool) -> None:
    R = chain_ring(name)
    source = random.Random(name)
    rows = rows_of(R, [*edges(R.modulus), *(source.randrange(R.modulus) for _ in range(45))])
    expected = [[in_range(x, R.modulus, centered) for x in row] for row in rows]
    a = R(rows)
    assert a.to_bigints(centered=centered).tolist() == expected
    assert a.reshape(1, -1, 1)[0].to_bigints(centered=centered)[:, 0].tolist() == expected
    found = host(a.to_float64(centered=centered))
    assert found.dtype == np.float64 and found.tolist() == [[float(x) for x in row] for row in expected]
    for row, values in zip(a, expected, strict=True):
        fits = [i for i, x in enumerate(values) if not -(2**63) <= x < 2**63]
        if fits:
            with pytest.raises(pg.ParameterError, match=rf"at \({fits[0]},\).*to_bigints"):
                row.to_int64(centered=centered)
        else:
            assert host(row.to_int64(centered=centered)).tolist() == values
    small = [
        [x if -(2**63) <= x < 2**63 else i - 5 * centered for i, x in enumerate(row)] for row in expected
    ]
    expected = [[in_range(x, R.modulus, centered) for x in row] for row in small]
    got = R(small).to_int64(centered=centered)
    if all(-(2**63) <= x < 2**63 for row in expected for x in row):
        assert type(got) is type(a.data) and got.dtype == np.int64 and host(got).tolist() == expected


@on("cpu")
@pytest.mark.parametrize("wrong", [0, 255, 256, 4095, 4096, 9999])
def test_to_int64_raises_if_one_value_does_not_fit(each_isa: str, wrong: int) -> None:
    R = Ring(10_000, ntt_primes(64, bits=50, count=4))
    x = np.zeros((2, R.n), dtype=object)
    x[0] = np.arange(-5000, 5000)
    assert R(x).to_int64().tolist() == x.tolist()
    for value in (2**63, -(2**63) - 1, 2**100, R.modulus // 2, CHAINS["50 bits"][0] * CHAINS["50 bits"][1]):
        x[1, wrong] = value
        with pytest.raises(pg.ParameterError, match=rf"at \(1, {wrong}\)"):
            R(x).to_int64()


@on("cpu")
@pytest.mark.parametrize("name", CHAINS)
def test_integers_by_every_instruction_set(each_isa: str, name: str) -> None:
    R = chain_ring(name, 300)
    q, source = R.modulus, random.Random(name)
    x = [*edges(q), *(source.randrange(-(q // 2), q // 2) >> source.choice([0, 9]) for _ in range(245))]
    a, expected = R(x), [in_range(v, q, True) for v in x]
    assert a.to_bigints(centered=True).tolist() == expected
    assert a.to_float64().tolist() == [float(v) for v in expected]
    assert (a.norm(1), a.norm(math.inf)) == (sum(map(abs, expected)), max(map(abs, expected)))
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
        limits = np.iinfo(dtype)
        for bound in (2**70, 40, 1):  # the largest in a block decides how it is reduced
            least, most = max(limits.min, -bound), min(limits.max, bound)
            y = np.array([least, most, 0, *(source.randint(least, most) for _ in range(290))], dtype=dtype)
            assert R(y).data.tolist() == residues(R, padded(R, y.tolist()))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 4095, 4097, 8192])
@on("cpu")
def test_rows_of_any_length(count: int) -> None:
    R = Ring(8192, ntt_primes(64, bits=40, count=2))
    x = np.arange(3 * count, dtype=np.int32).reshape(3, count) * 43210 - 5
    poly, wide = R(x), x.astype(np.int64)
    expected = np.stack([wide % q for q in R.moduli], axis=1).astype(np.uint64)
    assert np.array_equal(poly.data[..., :count], expected)
    assert not poly.data[..., count:].any()


@chains
def test_norms_are_exact(name: str) -> None:
    R = chain_ring(name)
    source = random.Random(name)
    rows = rows_of(R, [*edges(R.modulus), *(source.randrange(R.modulus) for _ in range(25))])
    sizes = [[abs(in_range(x, R.modulus, True)) for x in row] for row in rows]
    a = R(rows)
    assert a.norm(1).tolist() == [sum(row) for row in sizes]
    assert a.norm(math.inf).tolist() == [max(row) for row in sizes]
    with localcontext() as context:
        context.prec = 700
        expected = [float(Decimal(sum(x * x for x in row)).sqrt()) for row in sizes]
    assert a.norm().tolist() == expected  # the nearest doubles
    assert a[0].norm() == expected[0]


@on("cpu")
def test_norms_of_10000_coefficients() -> None:
    R = Ring(10_000, ntt_primes(64, bits=50, count=4))
    x = [pow(3, i, R.modulus) for i in range(R.n)]
    sizes = [abs(in_range(v, R.modulus, True)) for v in x]
    a = R([x, [5] + [0] * (R.n - 1)])
    assert a.norm(1).tolist() == [sum(sizes), 5] and a.norm(math.inf).tolist() == [max(sizes), 5]
    assert a.norm().tolist() == [float(math.isqrt(sum(v * v for v in sizes))), 5.0]


@pytest.mark.parametrize("square", [2**106 + 2**53, 2**110 + 1, 2**120 - 1, 3 * 2**200 + 5])
def test_euclidean_norm_is_rounded_once(square: int) -> None:
    """The sum under the root does not fit a double."""
    rest, terms = square, []
    while rest:
        terms.append(math.isqrt(rest))
        rest -= terms[-1] ** 2
    with localcontext() as context:
        context.prec = 200
        expected = float(Decimal(square).sqrt())
    assert Ring(len(terms), 2**200)(terms).norm() == expected


def test_to_float64_beyond_all_doubles_is_infinite() -> None:
    R = Ring(4, 2**1100)
    largest = 2**1024 - 2**970
    x = [2**1030, -(2**1030), largest - 1, -largest]
    assert R(x).to_float64().tolist() == [math.inf, -math.inf, float(largest - 1), -math.inf]
    assert Ring(4, [2**61 - 1, 2**64])(
        [2**53 + 1, 2**53 + 3, -(2**54) - 2, 2**60 + 129]
    ).to_float64().tolist() == [
        2.0**53,
        2.0**53 + 4,
        -(2.0**54),
        2.0**60 + 256,
    ]


@everywhere
def test_to_int64_and_to_float64_of_evaluated_and_empty_values() -> None:
    a = RNS([[1, -2], [3, 4]])
    assert host(a.ntt().to_int64()).tolist() == [[1, -2, 0, 0], [3, 4, 0, 0]]
    assert host(a.ntt().to_float64(centered=False)).tolist() == [[1, RNS.modulus - 2, 0, 0], [3, 4, 0, 0]]
    assert a.ntt().norm(1).tolist() == [3, 7]
    for R in (RNS, ring("2^128")):
        empty = R.zeros((0, 2))
        assert empty.to_int64().shape == empty.to_float64().shape == (0, 2, 4)


@over(["30 bits", "RNS of 3 words"], devices=["cpu", *CARDS])
def test_transposed_batches_of_machine_integers(name: str) -> None:
    R = ring(name)
    x = np.arange(-6, 6, dtype=np.int16).reshape(3, 2, 2)
    check(
        R(there(x).transpose(1, 0, 2)),
        [[padded(R, r.tolist()) % R.modulus for r in y] for y in x.transpose(1, 0, 2)],
    )
