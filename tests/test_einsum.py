"""Sums of products over batch axes, against NumPy on big integers that hold whole polynomials."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import numpy as np
import pytest
from devices import backend, over
from hypothesis import given
from hypothesis import strategies as st
from oracle import everywhere, remainder

import polygpu as pg
from polygpu import Poly, Ring, _cpu, ntt_primes
from polygpu import _backends as backends
from polygpu._ops import einsum as operations
from polygpu.testing import coefficients, rings

GOLDILOCKS = 2**64 - 2**32 + 1
RINGS = {
    "30 bits": Ring(8, ntt_primes(8, bits=30)),
    "31 bits, cyclic": Ring(8, 15 * 2**27 + 1, kind="cyclic"),
    "32 bits": Ring(16, ntt_primes(16, bits=32)),
    "50 bits": Ring(4, ntt_primes(4, bits=50)),
    "62 bits": Ring(4, ntt_primes(4, bits=62)),
    "64 bits": Ring(4, GOLDILOCKS),
    "RNS": Ring(8, [q for b in (20, 50, 64) for q in ntt_primes(8, bits=b)]),
    "degree 1": Ring(1, 17),
    "by FFT": Ring(8, ntt_primes(8, bits=30), product="fft"),
    "ML-KEM's primes": Ring(8, 41),  # one layer early
    "composite": Ring(6, 10**9),
    "RNS without a transform": Ring(5, [2**64, 3, 2**64 - 59], kind="cyclic"),
    "2^128": Ring(4, 2**128),
    "wide prime": Ring(4, ntt_primes(4, bits=100)),
}
# One ring for each way to compute a sum.
FEW = ["RNS", "ML-KEM's primes", "composite", "wide prime"]
few_rings = over(FEW)


# ---- the oracle ----


def draw(R: Ring, batch: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random coefficients (*batch, n), many of them edges; the same at each call."""
    rng, q = random.Random(f"{R!r} {batch} {seed}"), R.modulus
    edges = [0, 1, q - 1, q // 2]
    values = np.empty(math.prod(batch) * R.n, dtype=object)
    for i in range(len(values)):
        values[i] = rng.choice(edges) if rng.random() < 0.3 else rng.randrange(q)
    return values.reshape(*batch, R.n)


def by_numpy(R: Ring, function: Any, *arrays: np.ndarray) -> np.ndarray:
    """What `function`, which sums products, gives for polynomials, each as one big integer (Kronecker)."""
    terms = math.prod(max(1, x.size) for x in arrays)
    bits = (terms * R.modulus ** len(arrays)).bit_length()
    powers = np.array([1 << bits * i for i in range(R.n)], dtype=object)
    sums = np.asarray(function(*[np.asarray((x * powers).sum(axis=-1), object) for x in arrays]), object)
    out = np.zeros((*sums.shape, R.n), dtype=object)
    for at in np.ndindex(*sums.shape):
        rest, coefficients = int(sums[at] or 0), []
        while rest:
            coefficients.append(rest & (1 << bits) - 1)
            rest >>= bits
        out[at] = remainder(R.kind, R.n, coefficients)
    return out % R.modulus


def check(value: Poly, expected: np.ndarray, domain: str = "coef") -> None:
    assert value.domain == domain and value.shape == expected.shape[:-1]
    assert value.data.flags.c_contiguous and value.data.dtype == value.ring.dtype
    assert type(value.data) is backend().xp.ndarray and np.array_equal(value.to_bigints(), expected)


def test_the_oracle_on_known_products() -> None:
    R, x = Ring(2, 100), np.array([[1, 2], [3, 4]], dtype=object)
    assert by_numpy(R, np.multiply, x, x).tolist() == [[97, 4], [93, 24]]
    assert by_numpy(R, np.dot, x, x).tolist() == [90, 28]
    assert by_numpy(Ring(2, 100, kind="cyclic"), np.dot, x, x).tolist() == [30, 28]


# ---- matmul ----

SHAPES = [
    ((2, 3), (3, 4)),
    ((1, 1), (1, 1)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((1, 4), (4, 1)),
    ((4, 1), (1, 4)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((0,), (0,)),
    ((2, 3), (3, 0)),
    ((5, 2, 3), (3, 2)),
    ((2, 3), (5, 3, 2)),
    ((5, 2, 3), (5, 3, 2)),
    ((3,), (5, 3, 2)),
    ((5, 2, 3), (3,)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((4, 2, 3), (2, 1, 3, 2)),
    ((1, 3, 2, 2), (2, 1, 2, 1)),
    ((0, 2, 3), (3, 2)),
]


@over(["ML-KEM's primes", "RNS"])
def test_repeated_calls_follow_new_operands(name: str) -> None:
    """A repeated call with other values, in either domain, gives the sum of the new values."""
    R = RINGS[name]
    calls: list[tuple[Any, Any, Any, Any]] = [(pg.matmul, np.matmul, *shapes) for shapes in SHAPES]
    calls += [(pg.dot, lambda x, y: (x * y).sum(-1), left, (3,)) for left in ((3,), (2, 3))]
    for subscripts in ("ij,ji->", "ij,ij->j", "abc,cb->a", "i,j->ji", "ij,k->"):
        batch = {letter: 2 + "abcijk".index(letter) % 3 for letter in subscripts if letter.isalpha()}
        left, right = (tuple(batch[x] for x in term) for term in subscripts.partition("->")[0].split(","))
        f = functools.partial(pg.einsum, subscripts)
        calls.append((f, functools.partial(np.einsum, subscripts), left, right))
    for f, by, left, right in calls:
        for seed in range(3):
            x, y = draw(R, left, seed), draw(R, right, seed + 10)
            expected = by_numpy(R, by, x, y)
            check(f(R(x), R(y)), expected)
            check(f(R(x).ntt(), R(y).ntt()).intt(), expected)
            check(f(R(x).ntt(), R(y)).intt(), expected)


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@few_rings
def test_matmul_shapes(name: str, left: Any, right: Any) -> None:
    R = RINGS[name]
    x, y = draw(R, left, 1), draw(R, right, 2)
    a, b = R(x), R(y)
    expected = by_numpy(R, np.matmul, x, y)
    check(pg.matmul(a, b), expected)
    check(a @ b, expected)


@over(RINGS)
def test_matmul_in_every_ring(name: str) -> None:
    R = RINGS[name]
    x, y = draw(R, (2, 3), 1), draw(R, (3, 2), 2)
    expected = by_numpy(R, np.matmul, x, y)
    check(R(x) @ R(y), expected)
    if R.has_eval:
        for a, b in ((R(x).ntt(), R(y)), (R(x), R(y).ntt()), (R(x).ntt(), R(y).ntt())):
            check(a @ b, expected, "eval")


@pytest.mark.parametrize("name", RINGS)
def test_matmul_of_largest_entries(name: str, each_isa: str) -> None:
    """All coefficients and all evaluated residues are q - 1."""
    R = RINGS[name]
    largest = np.full((2, 9, R.n), R.modulus - 1, dtype=object)
    check(R(largest) @ R(largest.transpose(1, 0, 2)), by_numpy(R, lambda x, y: x @ y.T, largest, largest))
    if R.leaf_size == 1 and not R._plan.basis.wide:
        residues = np.broadcast_to(np.array(R.moduli, dtype=object)[:, None] - 1, (2, 9, R.rows, R.n))
        a = R.from_residues(residues.astype(R.dtype), domain="eval")
        # Nine times the square of -1, at each point.
        assert pg.equal(pg.einsum("ij,kj->ik", a, a), R([9])).all()


def _values(name: str) -> tuple[Poly, Poly]:
    R = RINGS[name]
    return R(draw(R, (3, 3), 1)), R(draw(R, (3, 3), 2))


@few_rings
def test_matmul_satisfies_ring_laws(name: str) -> None:
    a, b = _values(name)
    one = RINGS[name].zeros((3, 3)) + 0
    for i in range(3):
        one.data[i, i] = RINGS[name].ones().data
    assert a @ one == one @ a == a
    assert (a @ b) @ a == a @ (b @ a) and a @ (a + b) == a @ a + a @ b


# ---- dot ----


@pytest.mark.parametrize(
    ("left", "right", "axis"),
    [
        ((3,), (3,), -1),
        ((2, 3), (3,), -1),
        ((2, 3), (3,), 0),
        ((3,), (2, 3), 0),
        ((2, 1, 3), (4, 1), 1),
        ((2, 1, 3), (4, 1), 2),
        ((1,), (1,), 0),
        ((0, 2), (2,), 0),
        ((3, 1), (1, 4), 0),
        ((3,), (), 0),
    ],
)
@few_rings
def test_dot_shapes_and_axes(name: str, left: Any, right: Any, axis: int) -> None:
    R = RINGS[name]
    x, y = draw(R, left, 1), draw(R, right, 2)
    expected = by_numpy(R, lambda a, b: (a * b).sum(axis=axis), x, y)
    check(pg.dot(R(x), R(y), axis), expected)
    out = R.random(expected.shape[:-1], seed=1)
    assert pg.dot(R(x), R(y), axis=axis, out=out) is out
    check(out, expected)


# ---- einsum ----

EINSUMS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk->ki", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ji,kj", [(3, 2), (4, 3)]),
    ("ba", [(2, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("i->i", [(3,)]),
    ("->", [()]),
    ("", [()]),
    (",->", [(), ()]),
    (",i", [(), (3,)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iji->ji", [(3, 2, 3)]),
    ("iii->i", [(2, 2, 2)]),
    ("iij,jk->k", [(2, 2, 3), (3, 2)]),
    ("i,i->i", [(3,), (3,)]),
    ("i,i", [(3,), (3,)]),
    ("i,j->ij", [(3,), (2,)]),
    ("i,j->ji", [(3,), (2,)]),
    ("i,j->", [(3,), (2,)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("ij,ji->", [(2, 3), (3, 2)]),
    ("ij,j->i", [(2, 3), (1,)]),
    ("ij,j->ij", [(2, 1), (3,)]),
    ("bij,bjk->bik", [(2, 3, 2), (2, 2, 3)]),
    ("bij,jk->ibk", [(2, 3, 2), (2, 3)]),
    ("ij,bjk->bik", [(2, 3), (4, 3, 2)]),
    ("abij,bjk->aibk", [(2, 3, 2, 2), (3, 2, 2)]),
    ("abcd,cbe->aed", [(2, 3, 2, 2), (2, 3, 2)]),
    ("aibj,cjbk->ackib", [(2, 2, 3, 2), (2, 2, 3, 2)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    ("...ij,jk", [(4, 2, 3), (3, 2)]),
    ("i...,i...->...", [(3, 2), (3, 1)]),
    ("...,...", [(2, 1), (3,)]),
    ("...i->i...", [(2, 3)]),
    ("i,...", [(2,), ()]),
    ("ij , jk -> ik", [(2, 3), (3, 2)]),
    ("iJ,Jk", [(2, 3), (3, 2)]),
    ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 2)]),
    ("ij,jk,kl", [(2, 3), (3, 2), (2, 2)]),
    ("i,ij,j->", [(2,), (2, 3), (3,)]),
    ("i,j,k->kji", [(2,), (3,), (2,)]),
    ("ab,bc,ac->b", [(2, 3), (3, 2), (2, 2)]),
    ("a,a,a,a->a", [(2,), (2,), (2,), (2,)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("ij,jk->ik", [(0, 2), (2, 4)]),
    ("ij->i", [(2, 0)]),
]


def id_of(case: Any) -> str:
    return case if isinstance(case, str) else "x".join("".join(map(str, s)) or "-" for s in case)


@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS, ids=id_of)
@few_rings
def test_einsum(name: str, subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    R = RINGS[name]
    arrays = [draw(R, shape, i) for i, shape in enumerate(shapes)]
    expected = by_numpy(R, lambda *x: np.einsum(subscripts, *x), *arrays)
    polys = [R(x) for x in arrays]
    kept = [p.data.copy() for p in polys]
    check(pg.einsum(subscripts, *polys), expected)
    assert all(bool((p.data == x).all()) for p, x in zip(polys, kept, strict=True))
    if R.has_eval:
        polys[-1] = polys[-1].ntt()
        check(pg.einsum(subscripts, *polys), expected, "eval")
    out = R.random(expected.shape[:-1], seed=1)
    assert pg.einsum(subscripts, *polys, out=out) is out
    check(out, expected, "eval" if R.has_eval else "coef")


@st.composite
def contractions(drawn: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Subscripts of up to three operands, and shapes that fit."""
    sizes = {x: drawn(st.integers(0, 3)) for x in "abcd"}
    terms = drawn(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    shapes = []
    for term in terms:
        broadcasts = [term.count(x) == 1 and drawn(st.integers(0, 3)) == 0 for x in term]
        shapes.append(tuple(1 if one else sizes[x] for x, one in zip(term, broadcasts, strict=True)))
    used = sorted(set("".join(terms)))
    output = "".join(drawn(st.permutations(used))[: drawn(st.integers(0, len(used)))])
    arrow = drawn(st.booleans())
    return ",".join(terms) + ("->" + output if arrow else ""), shapes


@given(contractions(), rings(max_degree=8), st.data())
def test_any_einsum_in_any_ring(case: Any, R: Ring, data: st.DataObject) -> None:
    subscripts, shapes = case
    arrays = []
    for shape in shapes:
        rows = [data.draw(coefficients(R)) for _ in range(math.prod(shape))]
        arrays.append(np.array(rows, dtype=object).reshape(*shape, R.n))
    evaluated = R.has_eval and data.draw(st.booleans())
    polys = [R(x) for x in arrays]
    if evaluated:
        polys = [p.ntt() for p in polys]
    expected = by_numpy(R, lambda *x: np.einsum(subscripts, *x), *arrays)
    check(pg.einsum(subscripts, *polys), expected, "eval" if evaluated else "coef")


# ---- sums that come again ----


@over(["30 bits", "RNS", "by FFT", "ML-KEM's primes"], devices=["cpu"])
@pytest.mark.parametrize(
    "subscripts", ["ij,jk->ik", "ij,ij->", "ji,jk->ik", "ij,j->ij", "ij,k->ki", "ii,ij->j"]
)
def test_repeated_einsum(name: str, subscripts: str) -> None:
    """Repeated calls have other values, other domains, or an `out`."""
    R = Ring(RINGS[name].n, RINGS[name].moduli, product=RINGS[name].product)  # without calls of other tests
    left, right = subscripts.partition("->")[0].split(",")
    for seed in range(3):
        x, y = draw(R, (3,) * len(left), seed), draw(R, (3,) * len(right), seed + 9)
        expected = by_numpy(R, lambda x, y: np.einsum(subscripts, x, y), x, y)
        for a, b in ((R(x), R(y)), (R(x).ntt(), R(y).ntt()), (R(x), R(y).ntt()), (R(x).ntt(), R(y))):
            domain = "eval" if "eval" in (a.domain, b.domain) else "coef"
            check(pg.einsum(subscripts, a, b), expected, domain)
            out = R.random(expected.shape[:-1], seed=seed)
            assert pg.einsum(subscripts, a, b, out=out) is out
            check(out, expected, domain)
            assert a == R(x) and b == R(y)
    a = R(draw(R, (3, 3))).ntt()
    squared = (a @ a).to_bigints()
    for again in (lambda b: b, lambda b: b.reshape(3, 3)):  # `out` has the memory of the operand
        b = a.copy()
        out = again(b)
        assert pg.matmul(b, b, out=out) is out and np.array_equal(out.to_bigints(), squared)


def test_repeated_matmul_uses_the_cached_call(monkeypatch: pytest.MonkeyPatch) -> None:
    R = Ring(8, RINGS["30 bits"].moduli)
    a, b, out = R.random((2, 3), seed=1), R.random(3, seed=2), R.zeros(2)
    first = a @ b
    pairs = (a, b), (a.ntt(), b), (a, b.ntt()), (a.ntt(), b.ntt())
    assert all(x @ y == first for x, y in pairs)
    monkeypatch.delattr(operations, "_contract")
    for x, y in pairs:
        assert x @ y == first and pg.matmul(x, y, out=out) == first
    with pg.verify(), pytest.raises(NameError):
        a @ b
    with pg.device("reference"), pytest.raises(NameError):
        a @ b
    with pytest.raises(NameError):
        a[:, :2] @ b[:2]


# ---- memory ----


@everywhere
@pytest.mark.parametrize("domain", ["coef", "eval"])
def test_matmul_and_einsum_in_place(domain: str) -> None:
    R = RINGS["RNS"]
    x = draw(R, (3, 3))
    for call, expected in (
        (lambda a: pg.matmul(a, a, out=a), by_numpy(R, np.matmul, x, x)),
        (lambda a: pg.einsum("ij->ji", a, out=a), x.transpose(1, 0, 2)),
        (lambda a: pg.einsum("ij,ij->ji", a, a, out=a), by_numpy(R, lambda x, y: (x * y).T, x, x)),
    ):
        a = R(x).ntt() if domain == "eval" else R(x)
        assert call(a) is a
        check(a, expected, domain)


def test_einsum_results_share_no_memory() -> None:
    a = RINGS["30 bits"].random((2, 2), seed=1)
    for subscripts in ("ij->ij", "ij->ji", "ii->i", "ij->i"):
        assert not np.shares_memory(pg.einsum(subscripts, a).data, a.data)


def test_domain_of_out_follows_the_result() -> None:
    R = RINGS["30 bits"]
    a = R.random((2, 2), seed=1)
    out = R.zeros((2, 2))
    assert pg.matmul(a.ntt(), a, out=out).domain == "eval" and out == a @ a
    assert pg.matmul(a, a, out=out).domain == "coef" and out == a @ a


@over(FEW, devices=["cpu"])
def test_matmul_in_several_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings without a complete transform hold few products of polynomials at a time."""
    R = RINGS[name]
    x, y = draw(R, (2, 7), 1), draw(R, (7, 3), 2)
    expected = by_numpy(R, np.matmul, x, y)
    for products in (1, 2, 3, 7, 8):
        monkeypatch.setattr(operations, "_CHUNK_BYTES", products * R.zeros((2, 3)).data.nbytes)
        check(R(x) @ R(y), expected)


@pytest.mark.parametrize(
    "subscripts", ["ij,jk->ik", "ij,bjk->bik", "bij,jk->bik", "ij,j->i", "i,i->", "ji,jk->ki"]
)
def test_einsum_does_not_copy_operands(subscripts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one backend call, on views of the operands and of the result."""
    R = RINGS["30 bits"]
    sizes = {"i": 2, "j": 3, "k": 4, "b": 5}
    inputs = subscripts.partition("->")[0].split(",")
    a, b = (R.random(tuple(sizes[x] for x in term), seed=term).ntt() for term in inputs)
    compute, calls = backends.backend_of(a.data), []
    whole = type(compute).matmul_points

    def spy(self: Any, basis: Any, x: Any, y: Any, out: Any) -> None:
        calls.append((x, y, out))
        whole(self, basis, x, y, out)

    monkeypatch.setattr(type(compute), "matmul_points", spy)
    c = pg.einsum(subscripts, a, b)
    ((x, y, out),) = calls
    assert all(np.shares_memory(u, v.data) for u, v in ((x, a), (y, b), (out, c)))


def test_threads_and_instruction_sets_give_the_same_bits(each_isa: str, threads: Any) -> None:
    R = RINGS["RNS"]
    a, b = R.random((3, 4, 5), seed=1), R.random((5, 6), seed=2)
    threads(1)
    one = a @ b
    threads(2)
    assert np.array_equal((a @ b).data, one.data)
    assert _cpu.isa() == each_isa
    check(one, by_numpy(R, np.matmul, a.to_bigints(), b.to_bigints()))


def test_matmul_operator_defers_to_other_types() -> None:
    class Other:
        def __matmul__(self, x: Any) -> str:
            return "left"

        def __rmatmul__(self, x: Any) -> str:
            return "right"

    a = RINGS["30 bits"].ones((1, 1))
    assert Other() @ a == "left" and a @ Other() == "right"
    with pytest.raises(TypeError):
        a @ object()
