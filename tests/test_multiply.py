"""Products of polynomials are exact in every ring, also by FFT near its proven bound; their plans."""

from __future__ import annotations

import itertools
import pickle
import re
from fractions import Fraction
from typing import Any

import flint
import mpmath
import numpy as np
import pytest
from devices import agree, host, noted_kernels, on, product_plan, same, sized
from hypothesis import given
from hypothesis import strategies as st
from oracle import KINDS, check_products_by_fft, check_ring, edges, everywhere, remainder

import polygpu as pg
from polygpu import Poly, Ring, _cpu
from polygpu._backends import cuda, get_backend
from polygpu._backends.cpu import CpuBackend
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.basis import Basis
from polygpu._core.plans.fft import unit_roots
from polygpu._core.plans.ntt import NttPlan
from polygpu._core.plans.product import (
    LEAST_LENGTH,
    MAX_DIGITS,
    AuxiliaryPlan,
    FftProductPlan,
    fft_error_bound,
    plan_fft,
    plan_fft_sums,
    sum_error_bound,
)
from polygpu._core.quotient import Quotient
from polygpu._core.ways import way_of_sums
from polygpu.testing import kinds

DEGREES = [1, 2, 3, 5, 16, 31, 32, 33, 64, 100, 256, 1000, 1024, 4096]
MODULI: list[Any] = [2, 3, 3329, 2**31 - 1, 2**32 - 5, 2**32, 2**61 - 1, 2**63, 2**64 - 59, 2**64]
MODULI += [[3, 2**32 - 5], [2**64, 3, 2**61 - 1], [5, 7, 2**40 - 87]]

of_both_kinds = pytest.mark.parametrize("kind", KINDS)


# ---- exact products ----


def expected(a: Poly, b: Poly) -> list[Any]:
    """Products over the integers by python-flint, folded and reduced: [item][limb][coefficient]."""
    ring, n = a.ring, a.ring.n
    left, right = (x.cpu().data.reshape(-1, ring.rows, n).tolist() for x in (a, b))
    items = []
    for x, y in zip(left, right, strict=True):
        rows = []
        for q, u, v in zip(ring.moduli, x, y, strict=True):
            c = remainder(ring.kind, n, (flint.fmpz_poly(u) * flint.fmpz_poly(v)).coeffs())
            rows.append([v % q for v in c])
        items.append(rows)
    return items


def worst_digits(q: int, plan: FftProductPlan) -> int:
    """The residue whose balanced digits are all the largest in size that fit."""
    value = 0
    for i in range(plan.digits):
        step = 1 << (plan.width * (i + 1) - 1)
        value -= step if value - step >= -(q // 2) else 0
    return value % q


def patterns(ring: Ring) -> Poly:
    """A batch of rows at the edges: of centred residues, of their digits, of signs; the last is random."""
    n, plan = ring.n, product_plan(ring, "fft")
    assert isinstance(plan, FftProductPlan)
    signs = np.where(np.random.default_rng(n).integers(2, size=n) == 0, 1, -1)
    data = np.empty((8, ring.rows, n), ring.dtype)
    for limb, q in enumerate(ring.moduli):
        half, other = q // 2, (q // 2 + 1) % q
        rows: list[Any] = [half, other, q - 1, worst_digits(q, plan)]
        rows += [[(half, other)[j % 2] for j in range(n)], [half if s > 0 else (-half) % q for s in signs]]
        rows.append([(0, q - 1)[j == n - 1] for j in range(n)])
        for i, row in enumerate(rows):
            data[i, limb] = np.array(row, np.uint64)
    data[7] = host(ring.random(seed=n).data)
    return ring.from_residues(data)


def check_products(ring: Ring) -> None:
    """Squares of all rows, and each row with the next but one."""
    a = patterns(ring).to()
    for b in (a, a[np.arange(2, 10) % 8]):
        product = a.mul(b, product="fft")
        assert product.domain == "coef" and product.shape == (8,)
        assert product.data.tolist() == expected(a, b)


# Of 1, 2 and more digits, in words of 32 and 64 bits.
DIGITS: list[Any] = [3329, 2**31 - 1, [3, 2**32 - 5], 2**40 - 87, [2**64, 3, 2**61 - 1], 2**64 - 59]
# Named by the digits of an operand, and by whether the product is folded.
BY_FFT: dict[str, tuple[int, Any, Any]] = {
    "1 digit": (64, 3329, "negacyclic"),
    "1 digit, folded": (20, 3329, "negacyclic"),
    "2 digits": (64, 2**32 - 5, "negacyclic"),
    "2 digits of 2^32": (64, 2**32, "negacyclic"),
    "2 digits, folded": (31, [3, 2**32 - 5], "cyclic"),
    "2 digits of 64 bits": (64, 2**40 - 87, "negacyclic"),
    "2 digits of 64 bits, folded": (33, [5, 7, 2**40 - 87], "negacyclic"),
    "3 digits": (64, 2**56 - 5, "negacyclic"),
    "4 digits": (64, [2**64, 3, 2**61 - 1], "negacyclic"),
    "4 digits, folded": (64, 2**64 - 59, "cyclic"),
    "4 digits of 2^64, folded": (100, 2**64, "negacyclic"),
    "n = 1": (1, 2**64, "cyclic"),
    "n = 2": (2, 2, "negacyclic"),
    "1000 coefficients": (1000, 2**32 - 5, "cyclic"),
}
SIZES = sorted({*(1 << i for i in range(13)), *((1 << i) + 3 for i in range(3, 12))})


@sized(
    "n, moduli, kind",
    cpu=itertools.product(DEGREES, MODULI, KINDS),
    reference=itertools.product([1, 12, 64], [[2**64, 3]], KINDS),
    simulated=BY_FFT.values(),
    cuda=itertools.product(SIZES, DIGITS, KINDS),
)
def test_products_are_exact(n: int, moduli: Any, kind: Any) -> None:
    check_products(Ring(n, moduli, kind=kind))


@of_both_kinds
@pytest.mark.parametrize("moduli", MODULI, ids=str)
@pytest.mark.parametrize("n", [1, 5, 64, 1000, 1024])
def test_products_by_fft_equal_products_by_ntt(n: int, moduli: Any, kind: Any) -> None:
    ring = Ring(n, moduli, kind=kind)
    a, b = ring.random((2, 3), seed=1), ring.random((3,), seed=2)
    by_ntt = a.mul(b, product="ntt")
    for product in (a.mul(b, product="fft"), Poly.mul(b, a, product="fft"), a * b):
        assert product.shape == (2, 3) and np.array_equal(product.data, by_ntt.data)


# Plans whose proven error bound is above 0.2; 0.5 is allowed.
NEAR = sorted(
    {
        (plan.error_bound, n, bits, kind)
        for n in (32, 128, 1000, 1024, 4096, 8192)
        for bits in range(2, 65)
        for kind in KINDS
        if (plan := plan_fft(Quotient(kind, n), (1 << bits,))).error_bound > 0.2  # type: ignore[arg-type]
    }
)


@pytest.mark.parametrize(("bound", "n", "bits", "kind"), NEAR)
def test_products_near_the_bound_are_exact(bound: float, n: int, bits: int, kind: Any) -> None:
    for q in (1 << bits, (1 << bits) - 1):
        check_products(Ring(n, q, kind=kind))


@st.composite
def rings_and_rows(draw: st.DrawFn) -> tuple[Poly, Poly]:
    """Rings of one limb, and operands of few values that are the largest in size."""
    n, kind = draw(st.integers(1, 600)), draw(kinds())
    n += kind == "trinomial" and n % 2
    bits = draw(st.integers(1, 64))
    q = draw(st.one_of(st.just(1 << bits), st.integers(max(2, 1 << (bits - 1)), 1 << bits)))
    ring = Ring(n, max(q, 2), kind=kind)
    q, plan = ring.moduli[0], product_plan(ring, "fft")
    assert isinstance(plan, FftProductPlan)
    edges = [q // 2, (q // 2 + 1) % q, q - 1, worst_digits(q, plan), (1 << plan.width - 1) % q, 0]
    operands = []
    for _ in range(2):
        chosen = draw(st.lists(st.sampled_from(edges), min_size=1, max_size=4))
        order = np.random.default_rng(draw(st.integers(0, 2**32))).integers(len(chosen), size=n)
        row = np.array(chosen, np.uint64)[order].astype(ring.dtype)
        operands.append(ring.from_residues(row[None]))
    return operands[0], operands[1]


@on("cpu", "cuda")
@given(rings_and_rows())
def test_products_of_largest_coefficients_are_exact(case: tuple[Poly, Poly]) -> None:
    a, b = case
    assert [a.to().mul(b.to(), product="fft").data.tolist()] == expected(a, b)


SHAPES = [
    ((), ()),
    ((), (3,)),
    ((3, 1), (1, 4)),
    ((2, 1, 3), (4, 1)),
    ((0,), (1,)),
    ((1,), (5,)),
    ((2, 0), ()),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("n", [12, 64])
@everywhere
def test_products_of_broadcast_batches(n: int, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    ring = Ring(n, [2**64, 3, 2**61 - 1])
    a, b = ring.random(left, seed=1), ring.random(right, seed=2)
    kept = a.copy(), b.copy()
    product = a.mul(b, product="fft")
    shape = np.broadcast_shapes(left, right)
    x, y = (ring.from_residues(np.broadcast_to(host(v.data), (*shape, 3, n)).copy()) for v in (a, b))
    assert product.shape == shape
    assert product.data.reshape(-1, 3, n).tolist() == expected(x, y)
    assert a == kept[0] and b == kept[1]


@everywhere
@pytest.mark.parametrize("moduli", [2**32, 2**64 - 59, [5, 7, 2**40 - 87]], ids=str)
@pytest.mark.parametrize("n", [1, 20, 64])
def test_products_into_out_and_in_place(n: int, moduli: Any) -> None:
    ring = Ring(n, moduli)
    a, b = ring.random((3,), seed=1), ring.random((3,), seed=2)
    product, square = a.mul(b, product="ntt"), a.mul(a, product="ntt")
    out = ring.zeros(3)
    assert a.mul(b, out=out, product="fft") is out and out == product
    x, y = a.copy(), b.copy()
    assert x.mul(y, out=x, product="fft") is x and x == product and y == b
    x = a.copy()
    assert x.mul(y, out=y, product="fft") is y and y == product and x == a
    assert x.mul(x, out=x, product="fft") is x and x == square


@everywhere
def test_products_by_ints_with_every_method() -> None:
    ring = Ring(8, 2**40)
    a = ring.random(seed=1)
    for method in ("auto", "ntt", "fft"):
        assert a.mul(3, product=method) == Poly.mul(3, a, product=method) == a + a + a  # type: ignore[arg-type]


ANYTHING: dict[str, tuple[int, Any, Any]] = {
    "2^64, n = 256": (256, 2**64, "negacyclic"),
    "2^32, n = 256, cyclic": (256, 2**32, "cyclic"),
    "2": (32, 2, "negacyclic"),
    "composite, n = 257": (257, 10**18 + 2, "negacyclic"),
    "RNS of Mersenne primes, n = 255": (255, [2**31 - 1, 2**61 - 1], "negacyclic"),
    "RNS of small ones, n = 12": (12, [7, 9, 10], "cyclic"),
    "2^64, n = 1": (1, 2**64, "cyclic"),
    "2^128": (61, 2**128, "negacyclic"),
    "200 bits": (64, 2**200 - 75, "cyclic"),
}
AUXILIARY: dict[str, tuple[int, Any, Any]] = {
    "2^32": (64, 2**32, "negacyclic"),
    "2^32 cyclic": (64, 2**32, "cyclic"),
    "2^64": (64, 2**64, "negacyclic"),
    "2^64, n = 12, cyclic": (12, 2**64, "cyclic"),
    "2^64 - 1, n = 9": (9, 2**64 - 1, "negacyclic"),
    "2^32 - 1, n = 5": (5, 2**32 - 1, "cyclic"),
    "3, n = 4": (4, 3, "cyclic"),
    "composite": (64, 10**9, "negacyclic"),
    "unfriendly prime": (64, 1_000_003, "negacyclic"),
    "unfriendly prime, 61 bits, n = 6": (6, 2**61 - 1, "cyclic"),
    "n = 31": (31, 2**31 - 1, "negacyclic"),
    "n = 33": (33, 10**18 + 2, "negacyclic"),
    "RNS with 2^64": (6, [2**64, 3, 2**64 - 59], "cyclic"),
    "RNS of small ones": (8, [2**20, 97, 3**5], "negacyclic"),
    "long": (2**15, 2**60, "negacyclic"),
    "long, n = 3 * 2^13": (3 * 2**13, 2**64, "negacyclic"),
    "2^65": (8, 2**65, "negacyclic"),
    "wide composite": (6, 10**40, "cyclic"),
    "wide prime": (8, pg.ntt_primes(8, bits=100)[0], "negacyclic"),
    "wide prime, cyclic": (16, pg.ntt_primes(16, bits=128, kind="cyclic")[0], "cyclic"),
}


@sized("name", simulated=ANYTHING, cuda=[*ANYTHING, *AUXILIARY])
def test_products_modulo_any_number(name: str) -> None:
    """Products use FFTs or auxiliary primes. Moduli above 2^64 are computed on the host."""
    n, moduli, kind = (ANYTHING | AUXILIARY)[name]
    check_ring(Ring(n, moduli, kind=kind), (2, 3) if n < 1000 else (2,))


@sized(
    "n, moduli, kind",
    simulated=[BY_FFT[name] for name in BY_FFT if "folded" in name or "n =" in name],
    cuda=itertools.product([20, 512, 1000, 2**13], DIGITS, ["negacyclic"]),
)
def test_products_by_fft_in_passes(n: int, moduli: Any, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.multiply, "fft_tile", lambda *_: None)
    names = noted_kernels(monkeypatch)
    check_products_by_fft(Ring(n, moduli, kind=kind), (2, 3))
    assert {"fft_split", "fft_multiply", "fft_compose"} <= names and "fft_product" not in names


@sized("method, n", simulated=itertools.product(["ntt", "fft"], [20, 64]), cuda=[("ntt", 33), ("fft", 33)])
def test_products_in_chunks(method: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands broadcast, a few rows are processed at a time, and results may be in place."""
    monkeypatch.setattr(cuda.multiply, "fft_tile", lambda *_: None)
    for moduli in ([10**9, 10**9 + 7, 2**64 - 59], 2**64):
        ring = Ring(n, moduli, product=method)
        plan: Any = product_plan(ring)
        if method == "fft":
            unit = 16 * plan.points * (2 * plan.digits + plan.sums)
        else:
            unit = 8 * len(plan.transform.basis.moduli) * plan.transform.degree
        for units in (1, 4, 5, 18, 19):
            monkeypatch.setattr(cuda.multiply, "_CHUNK_BYTES", units * unit)
            for left, right in (((3, 1), (2,)), ((2, 3), (3,)), ((2, 1), (1, 4))):
                agree(lambda x, y: x.mul(y), edges(ring, left, 1), edges(ring, right, 2))
            a = edges(ring, (3,), 1)
            agree(lambda x: x.mul(x, out=x.copy()), a)
            c = a.to()
            same(c.mul(c, out=c), a.mul(a, product="ntt"))


# ---- many polynomials times one ----


@pytest.fixture
def matrices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the matrices that multiply; here they are preferred wherever they are possible."""
    shapes: list[tuple[int, ...]] = []
    multiply = CpuBackend.matmul

    def noted(self: CpuBackend, basis: Basis, a: Any, b: Any, out: Any) -> None:
        shapes.append(b.shape)
        multiply(self, basis, a, b, out)

    monkeypatch.setattr(CpuBackend, "matmul", noted)
    monkeypatch.setattr(CpuBackend, "prefers_matrix", lambda self, plan, count: True)
    return shapes


@of_both_kinds
@pytest.mark.parametrize("q", [2, 3329, 12289, 2**31 - 1, 2**32, 2**61 - 1, 2**62])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_products_of_many_polynomials_and_one_by_a_matrix(
    matrices: list[tuple[int, ...]], kind: Any, q: int, n: int
) -> None:
    plan_cache.forget()
    ring = Ring(n, q, kind=kind)
    many, one = ring.random((2, 3), seed=1), ring.random(seed=2)
    last = ring.from_residues(np.full((2, 3, 1, n), q - 1, ring.dtype))
    for a, b in ((many, one), (one, many), (last, last[0, 0]), (many, one.reshape(1, 1))):
        spread = [ring.from_residues(np.broadcast_to(x.data, (2, 3, 1, n)).copy()) for x in (a, b)]
        assert (a * b).data.reshape(-1, 1, n).tolist() == expected(*spread)
    assert matrices == [(1, n, n)] * 3  # the third product repeats the first


def test_when_products_are_computed_by_a_matrix(matrices: list[tuple[int, ...]]) -> None:
    ring = Ring(16, 2**32)
    many, one = ring.random((3,), seed=1), ring.random(seed=2)
    product = Poly.mul(many, one, product="ntt")
    for method in ("ntt", "fft"):
        assert Poly.mul(many, one, product=method) == product
    assert (many * many).shape == (3,) and (one * one).shape == () and not matrices
    wide, two = (Ring(16, q) for q in (2**64, [3, 5]))
    assert (wide.random((3,), seed=1) * wide.random(seed=2)).shape == (3,) and not matrices
    assert (two.random((3,), seed=1) * two.random(seed=2)).shape == (3,) and not matrices
    place = many.copy()
    assert (
        Poly.mul(place, one, out=place) == product and not matrices
    )  # a matrix product is not done in place
    assert Poly.mul(many, one, out=ring.random((3,), seed=3)) == product and len(matrices) == 1


def test_matrix_products_need_many_short_polynomials() -> None:
    """A matrix is used only if enough short polynomials amortise it."""
    backend, ring = get_backend("cpu"), Ring(16, 2**32)
    plan = product_plan(ring)
    assert backend.prefers_matrix(plan, 2**11) and not backend.prefers_matrix(plan, 2**11 - 1)
    assert not backend.prefers_matrix(product_plan(Ring(64, 2**32)), 2**20)
    assert not get_backend("reference").prefers_matrix(plan, 2**20)
    many, one = ring.random((2**11,), seed=1), ring.random(seed=2)
    assert many * one == Poly.mul(many, one, product="ntt")


# ---- rings that multiply by FFT ----


@everywhere
@pytest.mark.parametrize("moduli", [97, 3329, 2**32, [17, 97], [2**64, 3]], ids=str)
@pytest.mark.parametrize("n", [8, 12])
def test_every_operation_in_a_ring_with_fft_products(n: int, moduli: Any) -> None:
    own, other = Ring(n, moduli, product="fft"), Ring(n, moduli)
    assert isinstance(product_plan(own), FftProductPlan) and way_of_sums(own._plan) != "transform"
    values = [ring.random((3,), seed=seed) for seed in (1, 2, 3) for ring in (own, other)]
    (a, b, c), (x, y, z) = values[::2], values[1::2]
    for got, wanted in (
        (a * b, x * y),
        (a**3, x**3),
        (pg.fma(a, b, c), pg.fma(x, y, z)),
        (pg.dot(a, b), pg.dot(x, y)),
        (a * 5 - b, x * 5 - y),
        (a.mul(b, product="ntt"), x * y),
    ):
        assert got.ring == own and np.array_equal(host(got.data), host(wanted.data))
    if own.has_eval:
        assert np.array_equal(host(a.ntt().data), host(x.ntt().data))
        assert (a.ntt() * b.ntt()).intt() == (a.ntt() * b).intt() == a * b
        if other.leaf_size == 1:
            u = own.ones() + own.monomial(1, coefficient=2)
            assert u * u.inverse() == 1


def test_rings_with_different_product_options_are_unequal() -> None:
    auto, by_fft, by_ntt = (Ring(8, 97, product=method) for method in ("auto", "fft", "ntt"))  # type: ignore[arg-type]
    assert auto == Ring(8, 97) and by_fft == Ring(8, 97, product="fft")
    assert auto != by_fft and by_fft != by_ntt and auto != by_ntt
    assert len({auto, by_fft, by_ntt, Ring(8, 97, product="fft")}) == 3
    assert [ring.product for ring in (auto, by_fft, by_ntt)] == ["auto", "fft", "ntt"]
    assert repr(auto) == "Ring(8, 97)" and repr(by_fft) == "Ring(8, 97, product='fft')"
    for ring in (by_fft, by_ntt, Ring(8, [17, 97], kind="cyclic", root="generator", product="fft")):
        assert eval(repr(ring), {"Ring": Ring}) == ring
        again = pickle.loads(pickle.dumps(ring))
        assert again == ring and again.product == ring.product
        value = ring.random(seed=1)
        assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(AttributeError):
        by_fft.product = "ntt"  # type: ignore[misc]


def test_product_plans_are_cached() -> None:
    friendly, other = Ring(64, 7681), Ring(64, 2**40)
    assert product_plan(friendly, "ntt") is friendly._plan.transform is product_plan(friendly)
    assert isinstance(product_plan(friendly, "fft"), FftProductPlan)
    assert product_plan(friendly, "fft") is product_plan(Ring(64, 7681, product="fft"))
    assert (
        product_plan(other, "fft") is product_plan(Ring(64, 2**40), "fft") is not product_plan(other, "ntt")
    )
    assert isinstance(product_plan(Ring(64, 7681, product="ntt")), NttPlan)


@pytest.mark.parametrize(
    ("ring", "tables"),
    [
        (Ring(1024, 2**32, product="fft"), 16 * 512),
        (Ring(100, [3, 2**32 - 5], kind="cyclic", product="fft"), 16 * 128),
        (Ring(4096, 2**64, product="fft"), 16 * 2048),
        (Ring(64, 7681, product="fft"), 16 * 32 + 4 * 4 * 64),
    ],
    ids=repr,
)
def test_explain_shows_bound_and_split(ring: Ring, tables: int) -> None:
    text, plan = ring.explain(), product_plan(ring)
    assert isinstance(plan, FftProductPlan)
    found = re.search(
        r"FFT of (\d+) complex points, (\d+) digits? of (\d+) bits, error below (\S+) by proof, 0\.5 allowed",
        text,
    )
    assert found is not None
    assert [int(x) for x in found.groups()[:3]] == [plan.points, plan.digits, plan.width]
    assert float(found[4]) == pytest.approx(plan.error_bound, rel=0.06) and float(found[4]) < 0.5
    assert ("1 digits" in text) is False and f"tables    {tables / 1024:.1f} KiB" in text


def test_explain_of_a_ring_too_long_for_products() -> None:
    assert "product   none: " in Ring(2**28, 2**64, product="fft").explain()


# ---- which way is taken ----


def early(n: int, bits: int, kind: str) -> Ring:
    """A ring whose transform stops one layer early."""
    order = (2 * n if kind == "negacyclic" else n) // 2
    q = next(q for q in pg.ntt_primes(order // 2, bits=bits, count=60) if (q - 1) % (2 * order))
    return Ring(n, q, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ring", "plan"),
    [
        (Ring(4096, pg.ntt_primes(4096, bits=30)), NttPlan),
        (Ring(4096, pg.ntt_primes(4096, bits=62)), NttPlan),
        (Ring(4096, pg.ntt_primes(4096, bits=32)), NttPlan),
        (Ring(4096, pg.ntt_primes(4096, bits=63)), NttPlan),
        (Ring(4096, 2**64 - 2**32 + 1), NttPlan),
        (Ring(4096, [*pg.ntt_primes(4096, bits=50), *pg.ntt_primes(4096, bits=64)]), NttPlan),
        (
            Ring(4096, pg.ntt_primes(4096, bits=64)),
            {"avx512": NttPlan, "avx2": NttPlan, "portable": FftProductPlan},
        ),
        (Ring(4096, pg.ntt_primes(4096, bits=64), product="ntt"), NttPlan),
        (Ring(8, pg.ntt_primes(8, bits=64)), NttPlan),
        (Ring.preset("ml-kem"), FftProductPlan),
        (early(1024, 62, "cyclic"), NttPlan),
        (Ring(1024, 2**64), FftProductPlan),
        (Ring(1000, 3329), FftProductPlan),
        (Ring(64, 2**65), AuxiliaryPlan),
        (Ring(2**17, 2**64 - 59, kind="cyclic"), FftProductPlan),
    ],
    ids=lambda x: repr(x) if isinstance(x, Ring) else "",
)
def test_plan_is_the_fastest_measured_algorithm(ring: Ring, plan: type | dict[str, type], isa: Any) -> None:
    plans = plan if isinstance(plan, dict) else {"avx512": plan, "avx2": plan}
    for name in plans.keys() & set(_cpu.supported_isas()):
        isa(name)
        fresh = Ring(ring.n, ring.moduli, kind=ring.kind, product=ring.product)
        assert isinstance(product_plan(fresh), plans[name]), name


@pytest.mark.parametrize(
    ("ring", "because"),
    [
        (Ring(64, 7681), r"estimates on cpu: FFT \S+ us, transform \S+ us"),
        (Ring(64, 7681, product="ntt"), "as asked for"),
        (Ring(64, 7681, product="fft"), "as asked for"),
        (Ring(64, 15), r"estimates on cpu: FFT \S+ us, auxiliary primes \S+ us"),
        (Ring(64, 2**65), r"the one way above 2\*\*64"),
        (Ring(2**28, 2**64), "no FFT is proven to be exact and fits in memory"),
    ],
    ids=repr,
)
def test_explain_shows_the_reason(ring: Ring, because: str) -> None:
    assert re.search(rf"^because   {because}$", ring.explain(), re.MULTILINE)


# ---- plans ----


@of_both_kinds
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1000, 1024, 4096, 2**14, 2**15 + 1, 2**20, 3 * 2**20, 2**25])
def test_plan_uses_the_coarsest_proven_split(n: int, kind: Any) -> None:
    """The bound is below 1/2, and with one digit fewer it is not. Digits and sums fit their types."""
    in_place = kind == "negacyclic" and n >= LEAST_LENGTH and n & (n - 1) == 0
    for bits in range(1, 65):
        for q in {1 << bits, max((1 << bits) - 1, 2)}:
            plan = plan_fft(Quotient(kind, n), (q,))
            digits, width, length = plan.digits, plan.width, plan.length
            used = max(q - 1, 1).bit_length()
            assert length == n if in_place else length >= max(2 * n - 1, LEAST_LENGTH)
            assert length & (length - 1) == 0 and plan.points == length // 2
            assert 1 <= digits <= MAX_DIGITS and digits * width >= used
            assert plan.error_bound == float(fft_error_bound(n, plan.points, digits, width)) < 0.5
            if digits > 1:
                assert fft_error_bound(n, plan.points, digits - 1, -(-used // (digits - 1))) >= Fraction(1, 2)
            # Sums that are left out have weights of at least q.
            assert plan.sums == 2 * digits - 1 or (q == 1 << bits and plan.sums * width >= bits)
            assert plan.sums <= digits or (plan.sums - 1) * width < bits or q != 1 << bits
            assert width <= 26  # a digit fits 32 bits
            assert digits * n << 2 * (width - 1) <= 1 << 51  # a sum, what rounding to integers allows


@pytest.mark.parametrize("n", [1, 33, 1024, 2**15])
def test_plan_of_sums_uses_the_coarsest_proven_split(n: int) -> None:
    """This is the same for sums of products. Small polynomials have one digit."""
    for q, terms, bits in itertools.product(
        (3, 2**9, 2**31 - 1, 2**32, 2**64 - 59, 2**64), (1, 6), (1, 7, 23, 30)
    ):
        plan = plan_fft_sums(Quotient("negacyclic", n), q, terms, bits)
        used, length = (q - 1).bit_length(), n if n > 33 else (32 if n == 1 else 128)

        def bound(digits: int, used: int = used, length: int = length, **of: int) -> Fraction:
            return sum_error_bound(n, length // 2, of["terms"], of["bits"], max(2, -(-used // digits)))

        if plan is None:
            assert bound(MAX_DIGITS, terms=terms, bits=bits) >= Fraction(1, 2)
            continue
        assert (plan.length, plan.terms, plan.bits, plan.sums) == (length, terms, bits, plan.digits)
        exact = float(sum_error_bound(n, length // 2, terms, bits, plan.width))
        assert plan.error_bound == exact < 0.5 and plan.width <= 30
        assert (plan.digits - 1) * plan.width < max(used, 2) <= plan.digits * plan.width
        assert (terms * n - 1).bit_length() + bits + plan.width - 2 <= 51  # a sum, rounded to a power of two
        if plan.digits > 1 and -(-used // (plan.digits - 1)) <= 30:
            assert bound(plan.digits - 1, terms=terms, bits=bits) >= Fraction(1, 2)
    quotient = Quotient("negacyclic", n)
    assert plan_fft_sums(quotient, 2**32, 0, 7) is plan_fft_sums(quotient, 2**32, 2, 31) is None


def test_error_bound_grows_with_every_parameter() -> None:
    for n, points, digits, width in (
        (1, 16, 1, 1),
        (100, 128, 2, 10),
        (4096, 2048, 4, 16),
        (2**20, 2**19, 8, 8),
    ):
        bound = fft_error_bound(n, points, digits, width)
        assert bound > 0
        for larger in (
            (n + 1, points, digits, width),
            (n, 2 * points, digits, width),
            (n, points, digits + 1, width),
            (n, points, digits, width + 1),
        ):
            assert fft_error_bound(*larger) > bound


@pytest.mark.parametrize("n", [64, 100, 1024])
def test_error_bound_holds_for_numpy(n: int) -> None:
    """NumPy's transforms of the same digits also stay below the bound."""
    plan = plan_fft(Quotient("negacyclic", n), (2**32,))
    rng = np.random.default_rng(n)
    for x in (
        np.full(n, -(1 << plan.width - 1)),
        rng.integers(-(1 << plan.width - 1), 1 << plan.width - 1, n),
    ):
        exact = [int(c) for c in (flint.fmpz_poly(x.tolist()) * flint.fmpz_poly(x.tolist())).coeffs()]
        found = np.fft.irfft(np.fft.rfft(x, 2 * n) ** 2, 2 * n)[: 2 * n - 1]
        wrong = max(abs(Fraction(float(c)) - e) for c, e in zip(found, exact, strict=True))
        assert 0 < wrong < plan.error_bound < 0.5


@pytest.mark.parametrize("log_order", range(3, 17))
def test_roots_of_unity_are_within_the_proven_error(log_order: int) -> None:
    order = 1 << log_order
    k = np.arange(order) if order <= 512 else np.random.default_rng(order).integers(-order, 2 * order, 300)
    k = np.concatenate([k, np.arange(8) * (order // 8), np.arange(8) * (order // 8) + 1])
    roots = unit_roots(k, order)
    assert roots.dtype == np.complex128
    with mpmath.workprec(200):
        for at, root in zip(k.tolist(), roots.tolist(), strict=True):
            angle = mpmath.mpf(2 * (at % order)) / order
            for part, exact in ((root.real, mpmath.cospi(angle)), (root.imag, mpmath.sinpi(angle))):
                assert abs(mpmath.mpf(part) - exact) <= abs(exact) * mpmath.mpf("1.01") / 2**53


@pytest.mark.parametrize("n", [1, 32, 64, 100, 1024, 2**15])
def test_twiddles_form_the_factor_tree(n: int) -> None:
    """Node k splits X^2t - c into X^t - w and X^t + w with w w = c; its children have c = w and -w."""
    plan = plan_fft(Quotient("negacyclic", n), (2**32,))
    w = plan.twiddles
    assert w.shape == (plan.points,) and w.dtype == np.complex128 and not w.flags.writeable and w[0] == 1
    constants = np.empty(2 * plan.points, complex)
    constants[1] = 1j
    for k in range(1, plan.points):
        constants[2 * k], constants[2 * k + 1] = w[k], -w[k]
    np.testing.assert_allclose(w[1:] * w[1:], constants[1 : plan.points], rtol=0, atol=4 * 2.0**-53)
    leaves = constants[plan.points :].astype(np.clongdouble)
    turns = (
        np.angle(leaves) / (2 * np.pi) * 4 * plan.points
    )  # (4 j + 1) / (4 points) of a turn: a points-th root of i
    assert sorted(np.round(turns).astype(int) % (4 * plan.points)) == list(range(1, 4 * plan.points, 4))
    np.testing.assert_allclose(np.abs(leaves), 1, rtol=0, atol=2 * 2.0**-53)
