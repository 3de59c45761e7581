"""One table of calls on Poly and on BlockedPoly: equal results, or errors of the same class."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices, integer_array_indices

import polygpu as pg
import polygpu.dask as pd
from polygpu import Poly, Ring


@pytest.fixture(autouse=True, scope="module")
def _synchronous() -> Any:
    """Dask computes in this thread."""
    with dask.config.set(scheduler="synchronous"):
        yield


RINGS = {
    "two limbs": Ring(16, [97, 193]),  # a complete transform: coefficients can be divided
    "generator": Ring(16, 97, root="generator"),
    "incomplete": Ring(8, 41),
    "no transform": Ring(6, [2**31, 3**20]),
    "wide": Ring(4, 2**100 + 1),
    "over 4300 digits": Ring(2, 2**14300 + 1),
}
SHAPES = ((), (1,), (3,), (0,), (2, 3), (3, 1), (0, 3), (2, 1, 3))
HUGE = 10**5000

# How values are cut. One polynomial: whole, or in four blocks of columns or of rows.
LAYOUTS = ("whole", "batch", "columns", "rows")


def cut(a: Poly, layout: str) -> pd.BlockedPoly:
    if layout == "whole":
        return pd.from_poly(a)
    parts = 4 if a.ring.n == 16 and a.ring.leaf_size == 1 and layout in ("columns", "rows") else 1
    chunks = (*((2,) * a.ndim), -1, a.ring.n // parts)
    if layout == "rows":
        return pd.from_array(da.from_array(a.data, chunks=-1), a.ring, domain=a.domain, chunks=chunks)
    return pd.from_poly(a, chunks=chunks)


POLY = SimpleNamespace(einsum=pg.einsum, equal=pg.equal)
BLOCKED = SimpleNamespace(einsum=pd.einsum, equal=pd.equal)


def outcome(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call gives: a Poly, an array, a list of them, or an exception."""
    try:
        found = f(*args, **options)
        found = list(found) if isinstance(found, (Iterator, reversed)) else found
        return dask.compute(found)[0]
    except Exception as error:
        return error


def agree(found: Any, expected: Any) -> None:
    """Bit for bit, in the ring of the left operand; or the same exception, told in the project's words."""
    if isinstance(expected, Exception):
        assert type(found) is type(expected), (found, expected)
        told = [str(error).partition(": ")[2] for error in (found, expected)]  # without the argument's name
        if told[0] != told[1] and isinstance(found, pg.PolyGPUError):
            assert len(str(found).replace(". ", "; ").split("; ")) > 1, found  # the rule, and a way out
            assert not any(word in str(found) for word in ("Chunks", "docs.dask.org", "ufunc", "nan")), found
    elif isinstance(expected, Poly):
        assert isinstance(found, Poly), found
        assert found.ring.__reduce__()[1] == expected.ring.__reduce__()[1]
        assert (found.domain, found.shape) == (expected.domain, expected.shape)
        assert found.data.dtype == expected.data.dtype and (found.data == expected.data).all()
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            agree(x, y)
    else:
        assert not isinstance(found, Exception), found
        assert np.asarray(found).tolist() == np.asarray(expected).tolist()


KEYS: list[Any] = [
    (), 0, -1, 1, 5, -4, None, ..., (..., 0), (0, ...), (..., ...), (0, 0), (0, 0, 0, 0), (None, 0, None),
    [], [0], [-1, 0, 0], [7], [[0, 0], [0, 0]], (0,), (0, slice(None), [0]), ([0], slice(None), 0),
    ([0, 0], [0, 0]), (slice(None), [0, 0]), ([[0], [0]], [0, 0]), ([0, 0], [0, 0, 0]), ([], [9]), True,
    False, np.True_, (True, 0), [True, False, True], [False] * 3, [True],
    [[True, False, True], [False, True, True]], (slice(None), [True, False, True]),
    ([True, False, True], [0, 0]), np.array(0), np.array([0], np.uint64), np.int8(0), 0.0, 1.5, "a", [0.5],
    ["0"], object(), {0: 1}, slice(None), slice(1, None), slice(5, 2), slice(None, None, -1),
    slice(None, None, 2), slice(None, None, 0), slice(-2, 99), slice(0.5), slice(3, 3),
    (slice(None), slice(1, None), 0), (slice(0, 1), ..., None), range(1), np.s_[:, None, ::-1], 2**70,
    [2**70], np.ma.array([0], mask=[False]), np.zeros((3, 0), bool), np.ones((2, 1, 3), bool),
]  # fmt: skip
AXES: list[Any] = [None, 0, -1, 1, 2, 3, -3, (), (0,), (0, 0), (0, -1), (1, 0), (0, 9), np.int64(0)]
AXES += [0.0, "0", True, [0], (None,), 2**70]
INTS: list[Any] = [0, 1, -5, 2**70, HUGE, -HUGE, np.int64(3), np.uint64(2**63)]
NO_INTS: list[Any] = [
    1.5,
    True,
    "1",
    b"1",
    None,
    1j,
    [1],
    (1,),
    np.ones(3, np.int64),
    np.float64(1),
    np.True_,
]
NO_INTS += [object(), {}, Ring(16, 97), np.ma.array([1])]
FACTORS: list[Any] = [
    *INTS, *NO_INTS, [2, 3, 4], [[2], [3]], [[1, 2, 3], [4, 5, 6]], [], [[]], [HUGE, 1, -1], [1, 2],
    [[1], [2, 3]], np.zeros((2, 0), np.int64), np.zeros((1, 1, 1, 1), int), [1.5], [True], np.array(7),
]  # fmt: skip
LIMBS: list[Any] = [[1], [2, 3], [2, HUGE], [-1], 5, [], [1.5], "ab", [1, 2, 3], np.array([2, 3]), None]

# name: the arguments that a call takes beside the value, and the call
UNARY: dict[str, tuple[list[Any], Callable[..., Any]]] = {
    "a[key]": (KEYS, lambda m, a, key: a[key]),
    "sum(axis)": (AXES, lambda m, a, axis: a.sum(axis)),
    "sum(axis=)": ([None, 0], lambda m, a, axis: a.sum(axis=axis)),
    "a + x": (INTS + NO_INTS, lambda m, a, x: a + x),
    "x + a": (INTS + NO_INTS, lambda m, a, x: x + a),
    "a - x": (INTS + NO_INTS, lambda m, a, x: a - x),
    "x - a": (INTS + NO_INTS, lambda m, a, x: x - a),
    "a * x": (INTS + NO_INTS, lambda m, a, x: a * x),
    "x * a": (INTS + NO_INTS, lambda m, a, x: x * a),
    "a @ x": (INTS + NO_INTS, lambda m, a, x: a @ x),
    "x @ a": (INTS + NO_INTS, lambda m, a, x: x @ a),
    "equal(a, x)": (INTS + NO_INTS, lambda m, a, x: m.equal(a, x)),
    "equal(x, a)": (INTS, lambda m, a, x: m.equal(x, a)),
    "scale_by": (FACTORS, lambda m, a, x: a.scale_by(x)),
    "scale_by(limbs=)": (LIMBS, lambda m, a, x: a.scale_by(limbs=x)),
    "scale_by(both)": ([1], lambda m, a, x: a.scale_by(x, limbs=[1])),
    "no argument": (
        [
            lambda m, a: -a,
            lambda m, a: +a,
            lambda m, a: a.ntt(),
            lambda m, a: a.intt(),
            lambda m, a: a.ntt().intt(),
            lambda m, a: a.ntt() + 1,
            lambda m, a: 2 - a.ntt(),
            lambda m, a: a.ntt().sum(0),
            lambda m, a: a.ntt() * HUGE,
            lambda m, a: a.scale_by(),
            lambda m, a: len(a),
            lambda m, a: iter(a),
            lambda m, a: bool(a),
            lambda m, a: hash(a),
            lambda m, a: reversed(a),
            lambda m, a: [a.ndim, *a.shape],
            lambda m, a: a.domain == "coef" and a.data.shape == (*a.shape, a.ring.rows, a.ring.n),
            lambda m, a: m.einsum(),
            lambda m, a: m.einsum(""),
        ],
        lambda m, a, f: f(m, a),
    ),
}

SUBSCRIPTS: list[Any] = [
    "i", "i->", "ij->ji", "ii", "ii->i", "i...->...i", "...", "...->...", "ij", "ijk->kij", "...i->i",
    "i,i", "i,j", "ij,jk", "ij,kj->ik", "ij,ij->i", "...,...", "...i,...i->...", "i,ij->j", "ij,j",
    "ii,i->i", "iij->ij", "i...i", "i..i", "i->ii", "i->j", "1", "i,,i", "->", "", " i , i -> i ",
    "...ij,...jk->...ik", "i...,j->ij...", 3, None, b"i", "i,i,i", "ij,jk,k->i",
]  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "a + b": lambda m, a, b: a + b,
    "a - b": lambda m, a, b: a - b,
    "a * b": lambda m, a, b: a * b,
    "a @ b": lambda m, a, b: a @ b,
    "equal": lambda m, a, b: m.equal(a, b),
    "a + b evaluated": lambda m, a, b: a + b.ntt(),
    "a evaluated * b": lambda m, a, b: a.ntt() * b,
    "evaluated *": lambda m, a, b: a.ntt() * b.ntt(),
    "a @ b evaluated": lambda m, a, b: a @ b.ntt(),
    "equal evaluated": lambda m, a, b: m.equal(a.ntt(), b),
}


FEW = [(RINGS["two limbs"], shape) for shape in SHAPES]
FEW += [(ring, shape) for ring in RINGS.values() for shape in ((2, 0), (3,))]


def some(items: list[Any], place: int, step: int = 4) -> list[Any]:
    """Return one in `step` items, others at each place; all of them if HYPOTHESIS_PROFILE=thorough."""
    return items if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else items[place % step :: step]


class TestOneTable:
    @pytest.mark.parametrize("call", UNARY)
    def test_unary_calls_match_poly(self, call: str) -> None:
        arguments, f = UNARY[call]
        for place, (ring, shape) in enumerate(FEW):
            a, layout = ring.random(shape, seed=1), LAYOUTS[place % 4]
            x = cut(a, layout)
            for argument in some(arguments, place):
                agree(outcome(f, BLOCKED, x, argument), outcome(f, POLY, a, argument))

    @pytest.mark.parametrize("call", BINARY)
    def test_binary_calls_match_poly(self, call: str) -> None:
        f, layouts = BINARY[call], itertools.cycle(itertools.product(LAYOUTS, (*LAYOUTS, "Poly")))
        place = list(BINARY).index(call)
        pairs = [(RINGS["two limbs"], *pair) for pair in itertools.product(SHAPES, repeat=2)]
        pairs = some(pairs, place, 2 if "@" in call else 5)
        ends: list[Any] = [((3,), (3,)), ((2, 3), (3,)), ((1, 3), ())]
        pairs += [(ring, *pair) for i, ring in enumerate(RINGS.values()) for pair in some(ends, place + i)]
        for ring, left, right in pairs:
            a, b = ring.random(left, seed=1), ring.random(right, seed=2)
            first, second = next(layouts)
            y = b if second == "Poly" else cut(b, second)
            agree(outcome(f, BLOCKED, cut(a, first), y), outcome(f, POLY, a, b))
            if second == "Poly":
                agree(outcome(f, BLOCKED, y, cut(a, first)), outcome(f, POLY, b, a))

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_einsum_matches_poly(self, count: int) -> None:
        layouts = itertools.cycle((*LAYOUTS, "Poly"))
        shapes: tuple[tuple[int, ...], ...] = ((3,), (2, 2), (2, 3), (3, 1), (0, 2), (2, 2, 1), (1, 1))
        groups = list(itertools.product(shapes[: 5 if count == 3 else None], repeat=count))
        steps = {1: 3, 2: 12, 3: 45}
        for place, subscripts in enumerate(SUBSCRIPTS):
            for group in some(groups, place, steps[count]):
                ring = RINGS["no transform" if place % 5 == 4 else "two limbs"]
                values = [ring.random(shape, seed=i) for i, shape in enumerate(group)]
                cuts = [
                    v if layout == "Poly" else cut(v, layout)
                    for v, layout in zip(values, layouts, strict=False)
                ]
                found = outcome(BLOCKED.einsum, subscripts, *cuts)
                agree(found, outcome(POLY.einsum, subscripts, *values))

    def test_operations_between_two_rings(self) -> None:
        """Different rings raise. For equal rings the result has the left operand's ring."""
        R = Ring(16, 97)
        equal_ring, others = Ring(16, 97, root=R.roots), (Ring(16, 193), Ring(8, 97), RINGS["generator"])
        for S in (equal_ring, *others):
            a, b = R.random(3, seed=1), S.random(3, seed=2)
            for f in (*BINARY.values(), lambda m, a, b: m.einsum("i,i", a, b)):
                for x, y in (
                    (cut(a, "batch"), cut(b, "columns")),
                    (cut(a, "batch"), b),
                    (a, cut(b, "batch")),
                ):
                    agree(outcome(f, BLOCKED, x, y), outcome(f, POLY, a, b))

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_indexing_with_any_key(self, data: Any) -> None:
        shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
        array = integer_array_indices(shape)
        key = data.draw(basic_indices(shape, allow_newaxis=True, allow_ellipsis=True) | array)
        if isinstance(key, tuple) and data.draw(st.booleans()):  # arrays among slices and ints
            key = tuple(k if data.draw(st.booleans()) else 0 for k in key)
        a = RINGS["two limbs"].random(shape, seed=1)
        x = cut(a, data.draw(st.sampled_from(LAYOUTS)))
        agree(outcome(lambda: x[key]), outcome(lambda: a[key]))


class TestMakers:
    R = RINGS["two limbs"]

    def test_from_array_matches_from_residues(self) -> None:
        """from_array accepts and rejects the same arrays as Ring.from_residues."""
        R, good = self.R, self.R.random(3, seed=1).data
        masked = np.ma.array(good, mask=good == good[0, 0, 0])
        arrays: list[Any] = [
            good, good.tolist(), good.astype(np.int64), good.astype(object), good.astype(">u4"), good[::-1],
            np.asfortranarray(good), good[:0], good[0], masked, np.ma.array(good), np.ma.masked,
            good.view(np.ma.MaskedArray), good.astype(float), good.astype(bool), good.astype(complex),
            good[..., :8], good[:, :1], good[0, 0], "abc", None, 3, [], [[1, 2], [3]], [[True] * 16] * 2,
            R.zeros(3), R, object(), good.astype(np.int64) - 200, good.astype(object) + HUGE,
            good.astype("M8[s]"), good.astype("S4"),
        ]  # fmt: skip
        domains = ("coef", "eval", "values", None, 3)
        for x, domain in [*((x, "coef") for x in arrays), *((good[:1], domain) for domain in domains)]:
            agree(outcome(pd.from_array, x, R, domain), outcome(R.from_residues, x, domain))
        for domain in ("coef", "eval"):
            f = RINGS["no transform"].from_residues
            agree(
                outcome(pd.from_array, [[1] * 6] * 2, RINGS["no transform"], domain),
                outcome(f, [[1] * 6] * 2, domain),
            )
        for ring in ("R", None, 3, Ring):
            assert type(outcome(pd.from_array, good, ring)) is pg.ParameterError
            assert type(outcome(pd.random, ring)) is pg.ParameterError
        assert type(outcome(pd.from_array, cut(R.zeros(3), "whole"), R)) is pg.errors.CoefficientError

    @pytest.mark.parametrize("parts", [1, 4])
    def test_from_array_of_masked_arrays_raises(self, parts: int) -> None:
        """A mask is rejected at once if it is visible, or when the blocks are computed."""
        R, good = self.R, self.R.random(3, seed=1).data
        masked = np.ma.array(good, mask=good == good[0, 0, 0])
        hidden = da.from_delayed(dask.delayed(lambda: masked)(), good.shape, good.dtype)  # type: ignore[attr-defined]
        chunks = (2, -1, 16 // parts)
        for x in (masked, da.from_array(masked, chunks=2), hidden, hidden.astype(np.int64)):
            found = outcome(lambda x=x: pd.from_array(x, R, chunks=chunks))
            assert type(found) is pg.errors.CoefficientError and "masked" in str(found)

    def test_random_with_valid_and_invalid_arguments(self) -> None:
        R = self.R
        batches: list[Any] = [(), 3, (2, 0), [2, 2], -1, (2, -1), 1.5, "3", None, True, np.int64(2)]
        seeds: list[Any] = [0, -1, HUGE, "1", b"1", "", np.int64(1), 1.0, True, [1], "\ud800"]
        starts: list[Any] = [0, 5, 2**46, 2**47, 2**48 - 1, 2**48, -1, 1.0, None, True]
        cases = [(b, 1, 0) for b in batches] + [(2, s, 0) for s in seeds] + [(2, 1, s) for s in starts]
        for batch, seed, start in cases:
            for chunks in ("auto", "64B"):
                found = outcome(
                    lambda b, s, c, t: pd.random(R, b, seed=s, chunks=c, start=t), batch, seed, chunks, start
                )
                agree(found, outcome(lambda b, s, t: R.random(b, seed=s, start=t), batch, seed, start))

    def test_valid_and_invalid_chunks(self) -> None:
        R = self.R
        good: list[Any] = [
            "auto", "64B", "0B", "1TiB", -1, (2, -1, -1), (2, 2, 4), {0: 1}, (None, -1, -1),
            ("auto", -1, -1), ("64B", -1, 4), {0: "auto"}, [1, -1, -1],
        ]  # fmt: skip
        bad: list[Any] = [
            "abc", "1e400", "nan", None, 0, 1.5, (2,), (2, -1), (2, -1, -1, -1), 10**30, ("abc", -1, -1),
            ((), -1, -1), ((9, 9), -1, -1), ((5, -2), -1, -1), object(), math.nan, (2, 1, -1), (2, -1, 5),
            (2, -1, 1), (2, -1, (8, 4, 4)),
        ]  # fmt: skip
        for shape in ((3,), (0,), (2, 0), ()):
            a = R.random(shape, seed=1)
            for chunks in good if shape else good[:5]:
                if isinstance(chunks, (tuple, list)):
                    chunks = (*[chunks[0]] * len(shape), *chunks[-2:])
                agree(outcome(pd.from_poly, a, chunks=chunks), a)
                agree(outcome(cut(a, "batch").rechunk, chunks), a)
        for chunks in bad:
            found = outcome(pd.from_poly, R.zeros(3), chunks=chunks)
            assert type(found) is pg.ParameterError and "chunks" in str(found) and "docs" not in str(found)


class TestUnknownLengths:
    """After a mask of Dask's: a right value, or ParameterError."""

    R = RINGS["two limbs"]
    KNOWN: tuple[Callable[..., Any], ...] = (
        lambda m, a, b: a,
        lambda m, a, b: -a + 1,
        lambda m, a, b: 3 - a.ntt(),
        lambda m, a, b: a.sum(),
        lambda m, a, b: a.sum(0),
        lambda m, a, b: a.sum(-1),
        lambda m, a, b: a.ntt().intt(),
        lambda m, a, b: a * a,
        lambda m, a, b: a.ntt() * a,
        lambda m, a, b: a * b[0, 0],
        lambda m, a, b: b[:1] - a,
        lambda m, a, b: m.equal(a, a + 1),
        lambda m, a, b: m.equal(a, 3),
        lambda m, a, b: a.scale_by(7),
        lambda m, a, b: a.scale_by([2, 3]),
        lambda m, a, b: a.scale_by(limbs=[2, 3]),
        lambda m, a, b: a.sum(9),
        lambda m, a, b: a + 1.5,
        lambda m, a, b: a * Ring(16, 97)([1]),
    )
    UNKNOWN: tuple[Callable[..., Any], ...] = (
        lambda m, a, b: a[0],
        lambda m, a, b: a[:],
        lambda m, a, b: len(a),
        lambda m, a, b: list(a),
        lambda m, a, b: a + b,
        lambda m, a, b: b * a,
        lambda m, a, b: a - b[:2],
        lambda m, a, b: m.equal(a, b),
        lambda m, a, b: a @ b,
        lambda m, a, b: a @ a,
        lambda m, a, b: m.einsum("ij->j", a),
        lambda m, a, b: a.scale_by([[1], [2]]),
        lambda m, a, b: a.rechunk(-1),
        lambda m, a, b: a.save("a.npy"),
        lambda m, a, b: a.save("a.zarr"),
        lambda m, a, b: pd.from_array(a.data, a.ring),
    )

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_operations_after_indexing_with_a_mask(self, layout: str) -> None:
        a = self.R.random((5, 2), seed=1)
        x = cut(a, layout)
        for mask in ([True, False, True, True, False], [False] * 5)[
            : 2 if layout in ("whole", "rows") else 1
        ]:
            chosen, b = x[da.from_array(np.array(mask), chunks=3)], a[np.array(mask)]
            for f in self.KNOWN:
                agree(outcome(f, BLOCKED, chosen, x), outcome(f, POLY, b, a))
            for f in self.UNKNOWN:
                found = outcome(f, BLOCKED, chosen, x)
                assert type(found) is pg.ParameterError and "unknown" in str(found)
            agree(outcome(lambda c=chosen: c.data), b.data)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_operations_after_two_different_masks(self, layout: str) -> None:
        """Blocks of different lengths do not broadcast, even if one has length 1."""
        x = cut(self.R.random((4,), seed=1), layout)
        first, second = (
            da.from_array(np.array(m), chunks=2)
            for m in ([1, 0, 1, 1], [1, 1, 1, 0])
            for m in [[bool(v) for v in m]]
        )
        for f in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a.ntt() * b, pd.equal):
            found = outcome(f, x[first], x[second])
            assert type(found) is pg.ParameterError and "unknown" in str(found)
        uncut = x[da.from_array(np.array([True, False, True, False]), chunks=-1).rechunk(4)]
        if layout != "whole":
            assert type(outcome(lambda: x[first] + uncut.rechunk(1))) is pg.ParameterError

    def test_indexing_with_dask_arrays(self) -> None:
        a = self.R.random((3, 2), seed=1)
        x = cut(a, "batch")
        mask, numbers = np.array([True, False, True]), np.array([2, 0, 0, -1])
        for key in ((mask,), (numbers,), (slice(1, 3), mask[:2]), (..., numbers[1:3])):
            lazy = tuple(da.from_array(k, chunks=1) if isinstance(k, np.ndarray) else k for k in key)
            agree(outcome(lambda k=lazy: x[k]), a[key])
        array = da.from_array
        for bad in (
            (array(mask), 0),
            (array(mask), array(mask[:2])),
            (array(mask), [0]),
            (None, array(mask)),
        ):
            found = outcome(lambda k=bad: x[k])
            assert type(found) is pg.ParameterError and "compute" in str(found)
        for many in (
            array(np.ones((3, 2), bool)),
            array(np.array(0)),
            array(np.ones(3)),
            x.data[0, 0, 0] > 3,
        ):
            assert type(outcome(lambda k=many: x[k])) in (pg.ParameterError, IndexError)
        for outside in (array(mask[:2]), array(np.array([3]))):
            assert type(outcome(lambda k=outside: x[k])) is IndexError


class TestFiles:
    def test_files_with_any_modulus_and_root(self, tmp_path: Path) -> None:
        rings = [
            *RINGS.values(),
            Ring(16, 2**64),
            Ring(16, 2**64 - 59),
            Ring(4, pg.ntt_primes(4, bits=100)[0], root="generator"),
        ]
        rings += [
            Ring(16, 97, kind="cyclic"),
            Ring(16, 97, product="fft"),
            Ring(16, 97, root=Ring(16, 97).roots),
        ]
        wide = Ring(4, pg.ntt_primes(4, bits=100)[0])
        rings.append(Ring(4, wide.moduli[0], root=wide.roots))
        for i, R in enumerate(rings):
            for shape, domain in itertools.product(((3,), (), (2, 0)), ("coef", "eval")):
                if (domain == "eval" and not R.has_eval) or (shape != (3,) and i % 4):
                    continue
                a = R.random(shape, seed=1)
                a = a.ntt() if domain == "eval" else a
                name = tmp_path / f"{i}{shape}{domain}"
                cut(a, "columns").save(f"{name}.zarr")
                cut(a, "batch").save(f"{name}.npy")
                agree(outcome(pd.load, f"{name}.zarr"), a)
                agree(outcome(pd.load, f"{name}.npy", R, domain=domain), a)

    def test_load_in_another_domain(self, tmp_path: Path) -> None:
        """A file cannot be loaded in a domain that it does not name."""
        R = Ring(16, 97)
        a, path = R.random(3, seed=1), tmp_path / "a.zarr"
        cut(a.ntt(), "columns").save(path)
        for domain, kind in (
            ("coef", pg.errors.DomainError),
            ("values", pg.errors.DomainError),
            (3, pg.errors.DomainError),
        ):
            assert type(outcome(pd.load, path, R, domain=domain)) is kind
        agree(outcome(pd.load, path, R, domain="eval"), a.ntt())
        assert type(outcome(pd.load, path, Ring(16, 193))) is pg.RingMismatch
        assert type(outcome(pd.load, path, "R")) is pg.ParameterError
        equal_ring = Ring(16, 97, root=R.roots)
        assert pd.load(path, equal_ring).ring is equal_ring

    def test_load_of_files_of_older_versions(self, tmp_path: Path) -> None:
        """Files without a format omit chunks of zeros and write all moduli as decimals."""
        R = RINGS["wide"]
        told = {
            "n": 4,
            "moduli": [str(R.moduli[0])],
            "kind": "negacyclic",
            "root": "minimal",
            "product": "auto",
        }
        x = zarr.create_array(tmp_path / "a.zarr", data=R.zeros(2).data, chunks=(1, 2, 4), fill_value=0)
        x.attrs["polygpu"] = {**told, "domain": "coef"}
        assert zarr.open_array(tmp_path / "a.zarr").nchunks_initialized == 0
        agree(outcome(pd.load, tmp_path / "a.zarr"), R.zeros(2))

    def test_save_raises_for_what_load_would_refuse(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pg.files, "_LONGEST_PRIME", 6)
        found = outcome(cut(Ring(16, 97).random(3, seed=1).ntt(), "batch").save, tmp_path / "a.zarr")
        assert type(found) is pg.ParameterError and not list(tmp_path.iterdir())

    def test_load_of_damaged_folders(self, tmp_path: Path) -> None:
        R = Ring(16, 97)
        good = tmp_path / "good.zarr"
        cut(R.random(3, seed=1), "batch").save(good)
        cut(R.zeros(3), "batch").save(tmp_path / "zeros.zarr")
        agree(outcome(pd.load, tmp_path / "zeros.zarr"), R.zeros(3))
        text = (good / "zarr.json").read_text()
        told = json.loads(text)
        own = told["attributes"]["polygpu"]

        def with_own(**changed: Any) -> str:
            fields = {k: v for k, v in {**own, **changed}.items() if v != "gone"}
            return json.dumps({**told, "attributes": {"polygpu": fields}})

        values = [
            *({k: "gone"} for k in own if k != "format"),
            *({k: v} for k in own for v in (None, [], {}, "x", 1.5, True)),
        ]
        values += [
            {"moduli": v} for v in ([97], ["0"], ["97", "97"], ["9" * 5000], ["0x61"], ["-1"], ["1e3"])
        ]
        values += [{"n": v} for v in (0, -1, 8, 2**70)] + [
            {"root": ["3"]},
            {"format": 2},
            {"more": 1},
            {"moduli": ["256"], "domain": "eval"},
        ]
        damaged = [with_own(**changed) for changed in values]
        damaged += [json.dumps({**told, "attributes": v}) for v in ({"polygpu": 3}, {"polygpu": []})]
        damaged += [
            json.dumps({**told, k: v}) for k in told if k != "attributes" for v in (None, [], "x", -1, {})
        ]
        damaged += [
            json.dumps({k: v for k, v in told.items() if k != gone})
            for gone in ("shape", "codecs", "data_type")
        ]
        damaged += [json.dumps({**told, "data_type": v}) for v in ("int32", "uint64", "float32", "bool")]
        damaged += [
            text[: len(text) // 2],
            "",
            "{}",
            "[]",
            "nonsense",
            text.replace("97", "9" * 5000),
            "\0" * 40,
        ]
        still_whole = 0
        for i, content in enumerate(damaged):
            path = tmp_path / f"{i}.zarr"
            shutil.copytree(good, path)
            (path / "zarr.json").write_text(content)
            found = outcome(pd.load, path)
            if isinstance(found, Poly):  # a field without meaning to an array, such as dimension_names
                still_whole += 1
                assert found == R.random(3, seed=1)
                continue
            allowed = (
                (pg.errors.FileError, pg.ParameterError)
                if '"polygpu"' not in content
                else (pg.errors.FileError,)
            )
            assert type(found) in allowed and str(path) in str(found), (content, found)
        assert still_whole < 8

    @pytest.mark.parametrize("damage", ["missing", "cut", "long", "wrong"])
    def test_load_of_damaged_chunks(self, tmp_path: Path, damage: str) -> None:
        R, path = Ring(16, [97, 193]), tmp_path / "a.zarr"
        cut(R.random(5, seed=1), "columns").save(path)
        chunk = path / "c" / "1" / "0" / "0"
        data = chunk.read_bytes()
        if damage == "missing":
            chunk.unlink()
        else:
            chunk.write_bytes({"cut": data[:-1], "long": data + b"\0", "wrong": b"\xff" * len(data)}[damage])
        for chunks in (None, "auto", (1, -1, 4)):
            found = outcome(pd.load, path, chunks=chunks)
            assert type(found) is pg.errors.FileError and str(path) in str(found)
            if damage != "missing":
                assert pd.load(path, chunks=chunks)[:2].ring == R  # found when the block is read

    def test_load_of_damaged_arrays(self, tmp_path: Path) -> None:
        R = Ring(16, 97)
        path = tmp_path / "a.npy"
        np.save(path, R.random(3, seed=1).data)
        data = path.read_bytes()
        np.savez(tmp_path / "b.npz", R.zeros(3).data)
        damaged = [
            b"",
            b"nonsense",
            data[:-1],
            data[:64],
            data[:20],
            data.replace(b"(3, 1, 16)", b"(9, 1, 16)"),
        ]
        damaged += [
            data.replace(b"<u4", b"|O4"),
            data.replace(b"<u4", b"xyz"),
            data.replace(b"{", b"["),
            b"\x93NUMPY\x09" + data[7:],
        ]
        damaged += [
            (tmp_path / "b.npz").read_bytes(),
            data.replace(b"(3, 1, 16)", b"(-3,1,-16)"),
            b"\x80\x04N.",
        ]
        for i in range(128):
            damaged.append(data[:i] + bytes([data[i] ^ 0x81]) + data[i + 1 :])
        for content in damaged:
            path.write_bytes(content)
            found = outcome(pd.load, path, R)
            if not isinstance(found, Poly):  # another shape or dtype is no damage that shows
                assert isinstance(
                    found, (pg.errors.FileError, pg.ParameterError, pg.errors.CoefficientError)
                ), (
                    content,
                    found,
                )
        for content in damaged[:13]:
            path.write_bytes(content)
            assert type(outcome(pd.load, path, R)) is pg.errors.FileError, content
        path.write_bytes(data)
        x = pd.load(path, R)
        path.write_bytes(data[:-4])
        assert type(outcome(lambda: x)) is pg.errors.FileError

    def test_load_of_other_kinds_of_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.npy").mkdir()
        (tmp_path / "a.zarr").write_text("{}")
        (tmp_path / "b.zarr").mkdir()
        zarr.create_group(tmp_path / "c.zarr")
        for name in ("a.npy", "a.zarr", "b.zarr", "c.zarr"):
            assert type(outcome(pd.load, tmp_path / name, Ring(16, 97))) is pg.errors.FileError
        for name in ("d.npy", "d.zarr", "none/d.zarr"):
            assert type(outcome(pd.load, tmp_path / name, Ring(16, 97))) is FileNotFoundError
