"""Exact products modulo q on the GPU: of matrices by each way, of matrices of polynomials, by Toeplitz ones.

The second half of the study of matrix products (docs/studies/gemm.md). Operands are random residues. Before
it is timed, a result is compared with Python integers in some entries, and all of it by Freivalds' test with
the CPU core's products; products of polynomials are compared in full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import linalg
from polygpu.backends import get_backend
from polygpu.backends.cuda.matmul_tiles import coprimes, matmul_method
from polygpu.backends.reference import big_product
from polygpu.plans.basis import basis_of

from ..harness import Case, CudaEvents, Row, Timer, measure, record, release
from ..matrices import SAMPLED, Product, residues
from ..tables import Table, figure
from .page import StudyKind

DEVICE = "cuda:0"
REST_S = 0.05  # before a row that draws little; the largest squares have the whole rest

MODULI = {
    "2^31 - 1": 2**31 - 1,
    "2^30 - 35": 2**30 - 35,
    "2^60 - 93": 2**60 - 93,
    "2^32": 2**32,
    "30-bit NTT prime": pg.ntt_primes(1024, 30)[0],
    "60-bit NTT prime": pg.ntt_primes(1024, 60)[0],
}
WAYS = ("integer", "limbs", "residues")
TAKEN = "matmul"  # what polygpu.linalg.matmul takes by itself
CUBLAS = "cuBLAS int8"

SIZES = (512, 1024, 2048, 4096, 8192)
SQUARE_MODULI = ("2^31 - 1", "2^30 - 35", "2^60 - 93")
LARGE = 4096  # before products of this size and above, the card rests for long; cuBLAS alone is beside them
LONG = 8192  # from which on CUDA cores and limbs are left out
# Products of words, 10^12 a second, by modulus and size: must and moonshot.
GOALS = {("2^31 - 1", 4096): (25, 35), ("2^31 - 1", 8192): (30, 42), ("2^60 - 93", 4096): (10, 20)}

SQUARE_OP, SHAPE_OP, POINTS_OP, TOEPLITZ_OP = "matmul", "matmul shape", "matmul points", "toeplitz"

Figures = Callable[[float], Mapping[str, float]]
"""What the tables show, of a median in ns."""


def recorded(case: Case, figures: Figures, timer: Timer, out: Path) -> bool:
    """Whether the case's row could be measured."""
    name = f"{case.op}: {', '.join(map(str, case.params.values()))}"
    try:
        row = measure(case, timer)
    except Exception as error:
        print(f"{name}: FAILED, {type(error).__name__}: {error}", flush=True)
        return False
    row = dataclasses.replace(row, figures={"ms_median": round(row.median / 1e6, 5), **figures(row.median)})
    record(row, out)
    print(f"{name}: {row.figures['ms_median']:.4g} ms", flush=True)
    return True


def failures(cases: Iterable[tuple[Case, Figures]], timer: Timer, out: Path) -> int:
    return sum(not recorded(case, figures, timer, out) for case, figures in cases)


def spoil(c: Any) -> None:
    """An array that was read: what ways have in common is to hold no other one's result."""
    c.fill(np.iinfo(c.dtype).max)


def rate_of(work: int, ns: float) -> Mapping[str, float]:
    """Products of words, 10^12 a second."""
    return {"tmodmul": round(work / ns / 1000, 4)}


# ---- matrices of residues ----


@dataclass(frozen=True)
class Shape:
    """(batch, m, k) by (batch, k, n)."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def work(self) -> int:
        """Products of words."""
        return self.batch * self.m * self.k * self.n

    @classmethod
    def of(cls, row: Row) -> Shape:
        return cls(*(int(row.params[name]) for name in ("batch", "m", "k", "n")))

    def __str__(self) -> str:
        return f"{self.batch} of " * (self.batch > 1) + f"{self.m} x {self.k} by {self.k} x {self.n}"


SHAPES = (
    *(Shape(1024, 64, 64, 64), Shape(256, 128, 128, 128), Shape(16, 512, 512, 512)),
    *(Shape(1, 1, 4096, 4096), Shape(1, 4096, 4096, 1), Shape(1, 64, 4096, 4096)),
    *(Shape(1, 65536, 64, 64), Shape(1, 65536, 256, 256)),
)
SHAPE_MODULI = ("2^31 - 1", "2^60 - 93")


@dataclass(frozen=True, eq=False)
class Problem:
    """A product of random matrices modulo q."""

    modulus: str
    shape: Shape

    @property
    def q(self) -> int:
        return MODULI[self.modulus]

    @cached_property
    def product(self) -> Product:
        s = self.shape
        return Product.random(self.q, s.batch, s.m, s.k, s.n, partial(linalg.matmul, q=self.q))

    @cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Operands and result on the device."""
        import cupy

        a, b = (cupy.asarray(x) for x in (self.product.a, self.product.b))
        return a, b, cupy.zeros(self.product.shape, a.dtype)

    @property
    def method(self) -> str:
        """The way that linalg.matmul takes."""
        s, compute = self.shape, get_backend(DEVICE)
        size = basis_of((self.q,)).dtype.itemsize
        return matmul_method(self.q, size, s.batch, s.m, s.k, s.n, compute.card)  # type: ignore[attr-defined]

    def case(self, op: str, way: str) -> Case:
        limbs = basis_of((self.q,))

        def run() -> Any:
            a, b, c = self.arrays
            if way == TAKEN:
                return linalg.matmul(a, b, self.q, out=c)
            getattr(get_backend(DEVICE), f"_matmul_{way}")(limbs, a, b, c)
            return c

        params: dict[str, int | str] = {"q": self.modulus, **dataclasses.asdict(self.shape), "way": way}
        s = self.shape
        return Case(op, "polygpu", params, run, self.holds, s.batch * s.m * s.n, self.values)

    def values(self, c: Any) -> NDArray[Any]:
        found = self.product.values(c.get())
        spoil(c)
        return found

    def holds(self, values: NDArray[Any]) -> bool:
        return self.product.holds(values)

    def figures(self, way: str, ns: float) -> Mapping[str, float]:
        taken = self.method
        way = taken if way == TAKEN else way
        figures = {**rate_of(self.shape.work, ns), "taken": float(way == taken)}
        if (of_bytes := products_of_bytes(way, self.q, self.shape.k)) > 0:
            figures["int8_tops"] = round(2 * of_bytes * self.shape.work / ns / 1000, 2)
        return figures

    def cases(self, op: str, ways: Iterable[str]) -> Iterator[tuple[Case, Figures]]:
        return ((self.case(op, way), partial(self.figures, way)) for way in ways)


def products_of_bytes(way: str, q: int, k: int) -> int:
    """How many tensor cores make for one of words; 0 on CUDA cores."""
    if way == "limbs":
        return int(basis_of((q,)).dtype.itemsize ** 2)
    return len(coprimes(q, k)) if way == "residues" else 0


@dataclass(frozen=True, eq=False)
class Bytes:
    """Square matrices of signed bytes, multiplied by cuBLAS alone as residues are."""

    n: int

    @cached_property
    def product(self) -> Product:
        """The same modulo 2^32: sums are below 2^31."""
        rng = np.random.default_rng(self.n)
        a, b = (rng.integers(-128, 128, (1, self.n, self.n), np.int8).astype(np.int32) for _ in range(2))
        return Product(2**32, a.view(np.uint32), b.view(np.uint32), partial(linalg.matmul, q=2**32))

    @cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """The left operand, the transposed right one and the sums on the device."""
        import cupy

        operands = self.product.a, self.product.b.swapaxes(1, 2)
        a, b = (cupy.asarray(np.ascontiguousarray(x.astype(np.int8))[None]) for x in operands)
        return a, b, cupy.zeros((1, 1, self.n, self.n), np.int32)

    def run(self) -> Any:
        get_backend(DEVICE)._multiply_bytes(*self.arrays)  # type: ignore[attr-defined]
        return self.arrays[2]

    def values(self, c: Any) -> NDArray[Any]:
        return self.product.values(c.get().view(np.uint32))

    def holds(self, values: NDArray[Any]) -> bool:
        return self.product.holds(values)

    def cases(self) -> Iterator[tuple[Case, Figures]]:
        n = self.n
        params: dict[str, int | str] = {**dataclasses.asdict(Shape(1, n, n, n)), "way": CUBLAS}
        yield Case(SQUARE_OP, "cuBLAS", params, self.run, self.holds, n * n, self.values), self.figures

    def figures(self, ns: float) -> Mapping[str, float]:
        return {"int8_tops": round(2 * self.n**3 / ns / 1000, 2)}


def squares(out: Path, timer: Timer | None = None) -> int:
    """Each way at each size; how many failed."""
    failed = 0
    for n in SIZES:
        rested = timer or (CudaEvents() if n >= LARGE else CudaEvents(REST_S))
        ways = (*(() if n >= LONG else ("integer", "limbs")), "residues", TAKEN)
        for modulus in SQUARE_MODULI:
            failed += failures(Problem(modulus, Shape(1, n, n, n)).cases(SQUARE_OP, ways), rested, out)
            release()
        if n >= LARGE:
            failed += failures(Bytes(n).cases(), rested, out)
            release()
    return failed


def shapes(out: Path, timer: Timer | None = None) -> int:
    """Each way, for batches and for matrices that are no squares; how many failed."""
    timer, failed = timer or CudaEvents(REST_S), 0
    for modulus in SHAPE_MODULI:
        for shape in SHAPES:
            failed += failures(Problem(modulus, shape).cases(SHAPE_OP, WAYS), timer, out)
            release()
    return failed


# ---- matrices of polynomials ----


@dataclass(frozen=True)
class PolyShape:
    """Matrices (batch, m, k) by (batch, k, n) of polynomials; a dot product has m = n = 1."""

    matrices: Shape
    degree: int
    limbs: int
    bits: int

    @property
    def work(self) -> int:
        return self.matrices.work * self.limbs * self.degree

    @classmethod
    def of(cls, row: Row) -> PolyShape:
        return cls(Shape.of(row), *(int(row.params[name]) for name in ("degree", "limbs", "bits")))

    def __str__(self) -> str:
        s = self.matrices
        if s.m == s.n == 1:
            return f"{s.batch} dot products of {s.k}"
        return str(s)


POLY_SHAPES = (
    PolyShape(Shape(1, 64, 64, 64), 4096, 4, 30),
    PolyShape(Shape(16, 16, 16, 16), 4096, 4, 30),
    PolyShape(Shape(256, 4, 4, 4), 4096, 4, 30),
    PolyShape(Shape(8, 16, 16, 16), 4096, 4, 60),
    PolyShape(Shape(64, 1, 64, 1), 4096, 4, 30),
)
POLY_MUSTS = {POLY_SHAPES[0]: 5}  # how many times as fast as the sum of products it is to be
EVALUATED, COEFFICIENTS, SUM = "evaluated", "coefficients", "sum of products"


@dataclass(frozen=True, eq=False)
class PolyProblem:
    """A product of random matrices of polynomials."""

    shape: PolyShape

    @cached_property
    def ring(self) -> pg.Ring:
        s = self.shape
        return pg.Ring(s.degree, pg.ntt_primes(s.degree, s.bits, s.limbs))

    @cached_property
    def host(self) -> tuple[pg.Poly, pg.Poly, pg.Poly]:
        """Evaluated operands, and a column by which the whole product is multiplied."""
        s, ring = self.shape.matrices, self.ring
        rng = np.random.default_rng(s.work)
        made = []
        for batch in ((s.batch, s.m, s.k), (s.batch, s.k, s.n), (s.n, 1)):
            data = np.empty((*batch, ring.rows, ring.n), ring.dtype)
            for row, q in enumerate(ring.moduli):
                data[..., row, :] = residues(rng, q, (*batch, ring.n))
            made.append(ring.from_residues(data, domain="eval"))
        a, b, column = made
        return a, b, column

    @cached_property
    def evaluated(self) -> tuple[pg.Poly, pg.Poly]:
        """The operands on the device."""
        a, b, _ = self.host
        return a.to(DEVICE), b.to(DEVICE)

    @cached_property
    def coefficients(self) -> tuple[pg.Poly, pg.Poly]:
        a, b = self.evaluated
        return a.intt(), b.intt()

    @cached_property
    def terms(self) -> tuple[Any, Any]:
        """The operands' data, the terms of the sums first, so that each is dense."""
        import cupy

        a, b = (x.data for x in self.evaluated)
        a, b = a[:, :, None].transpose(3, 0, 1, 2, 4, 5), b[:, None].transpose(2, 0, 1, 3, 4, 5)
        return cupy.ascontiguousarray(a), cupy.ascontiguousarray(b)

    @cached_property
    def places(self) -> tuple[NDArray[np.intp], ...]:
        """Of the residues that are looked at one by one."""
        s = self.shape.matrices
        shape = (s.batch, s.m, s.n, self.ring.rows, self.ring.n)
        return np.unravel_index(np.random.default_rng(1).integers(int(np.prod(shape)), size=SAMPLED), shape)

    @cached_property
    def expected(self) -> tuple[NDArray[Any], pg.Poly]:
        """Residues by Python integers, and A (B x)."""
        a, b, column = self.host
        batch, i, j, row, x = self.places
        moduli = np.array(self.ring.moduli, object)[row]
        left, right = (
            data.astype(object) for data in (a.data[batch, i, :, row, x], b.data[batch, :, j, row, x])
        )
        return (left * right).sum(1) % moduli, a @ (b @ column)

    def run(self, way: str, out: pg.Poly) -> pg.Poly:
        if way == SUM:
            limbs, compute = self.ring.basis, get_backend(DEVICE)
            for k, (x, y) in enumerate(zip(*self.terms, strict=True)):
                c = out.data if k else None
                compute.pointwise(limbs, "mul_add" if k else "mul", x, y, c, out.data)
            return out
        a, b = self.evaluated if way == EVALUATED else self.coefficients
        s = self.shape.matrices
        if s.m == s.n == 1:
            pg.dot(a[:, 0], b[:, :, 0], out=out[:, 0, 0])
            return out
        return pg.matmul(a, b, out=out)

    def case(self, way: str) -> Case:
        s, ring = self.shape, self.ring
        domain: Any = "coef" if way == COEFFICIENTS else "eval"

        @cache
        def out() -> pg.Poly:
            import cupy

            shape = (s.matrices.batch, s.matrices.m, s.matrices.n, ring.rows, ring.n)
            return ring.from_residues(cupy.zeros(shape, ring.dtype), domain=domain, copy=False)

        def values(c: pg.Poly) -> NDArray[Any]:
            """The largest residue of each limb, those at the places, C x."""
            host = c.cpu().ntt()
            most = host.data.max((0, 1, 2, 4))
            image = (host @ self.host[2]).data.ravel()
            return np.concatenate([np.asarray(x, np.uint64) for x in (most, host.data[self.places], image)])

        def verify(values: NDArray[Any]) -> bool:
            most, found = values[: ring.rows], values[ring.rows :]
            entries, image = self.expected
            below = all(int(x) < q for x, q in zip(most, ring.moduli, strict=True))
            return (
                below
                and np.array_equal(found[:SAMPLED], entries)
                and np.array_equal(found[SAMPLED:], image.data.ravel())
            )

        params: dict[str, int | str] = dataclasses.asdict(s.matrices)
        params |= {"degree": s.degree, "limbs": s.limbs, "bits": s.bits, "way": way}
        work = s.matrices.batch * s.matrices.m * s.matrices.n * s.degree * s.limbs
        return Case(POINTS_OP, "polygpu", params, lambda: self.run(way, out()), verify, work, values)

    def cases(self) -> Iterator[tuple[Case, Figures]]:
        for way in (EVALUATED, COEFFICIENTS, SUM):
            yield self.case(way), partial(rate_of, self.shape.work)


def polynomials(out: Path, timer: Timer | None = None) -> int:
    """Matrices of polynomials in either domain, and the same sums point by point; how many failed."""
    timer, failed = timer or CudaEvents(REST_S), 0
    for shape in POLY_SHAPES:
        with pg.device("cpu"):
            failed += failures(PolyProblem(shape).cases(), timer, out)
        release()
    return failed


# ---- many polynomials by one: Toeplitz matrices ----

DEGREES = (16, 32, 64, 128, 256, 512, 1024)
TOEPLITZ_MODULI = ("30-bit NTT prime", "60-bit NTT prime", "2^32", "2^31 - 1", "2^60 - 93")
TOEPLITZ_WAYS = ("ntt", "fft", "matrix", "auto")
BATCH_BYTES = 1 << 27  # more than twice an H100's second cache
DISTINCT = 8  # polynomials of a batch


def toeplitz(b: NDArray[Any], q: int) -> NDArray[Any]:
    """The matrix by which a row of coefficients is multiplied by b mod X^n + 1 and q."""
    n = len(b)
    i, j = np.indices((n, n))
    entries = b.astype(np.uint64)[(j - i) % n]
    return np.where(j >= i, entries, (q - entries) % q).astype(b.dtype)


def ps_of(coefficients: int, ns: float) -> Mapping[str, float]:
    return {"ps": round(1000 * ns / coefficients, 3)}


@dataclass(frozen=True, eq=False)
class SharedFactor:
    """A batch of polynomials, and one by which all are multiplied."""

    modulus: str
    degree: int

    @cached_property
    def ring(self) -> pg.Ring:
        return pg.Ring(self.degree, MODULI[self.modulus])

    @property
    def batch(self) -> int:
        return max(DISTINCT, BATCH_BYTES // (self.ring.dtype.itemsize * self.degree))

    @cached_property
    def host(self) -> tuple[pg.Poly, pg.Poly]:
        """The distinct polynomials, and their factor."""
        return self.ring.random((DISTINCT,), seed=1), self.ring.random(seed=2)

    @cached_property
    def which(self) -> Any:
        """Which of the distinct polynomials each of the batch is; the first are those in order."""
        import cupy

        drawn = np.random.default_rng(3).integers(DISTINCT, size=self.batch)
        drawn[:DISTINCT] = range(DISTINCT)
        return cupy.asarray(drawn)

    @cached_property
    def operands(self) -> tuple[pg.Poly, pg.Poly]:
        few, b = (x.to(DEVICE) for x in self.host)
        return few[self.which], b

    @cached_property
    def matrix(self) -> Any:
        import cupy

        return cupy.asarray(toeplitz(self.host[1].data[0], self.ring.modulus))

    @cached_property
    def out(self) -> pg.Poly:
        return self.operands[0].copy()

    @cached_property
    def expected(self) -> NDArray[Any]:
        """Of the distinct polynomials, by Python integers."""
        few, b = (x.to_bigints().tolist() for x in self.host)
        return np.array([big_product(a, b, self.ring.modulus, -1) for a in few], self.ring.dtype)

    def run(self, way: str) -> pg.Poly:
        a, b = self.operands
        if way == "matrix":
            linalg.matmul(a.data[:, 0], self.matrix, self.ring.modulus, out=self.out.data[:, 0])
            return self.out
        return a.mul(b, out=self.out, product=way)  # type: ignore[arg-type]

    def values(self, c: pg.Poly) -> NDArray[Any]:
        """The products of the distinct polynomials, and how many entries of the others differ from them."""
        products = c.data[:, 0]
        few = products[:DISTINCT]
        differ = int((products != few[self.which]).sum())
        found = np.append(few.get().astype(np.uint64), np.uint64(differ))
        spoil(products)
        return found

    def holds(self, values: NDArray[Any]) -> bool:
        return np.array_equal(values, np.append(self.expected.astype(np.uint64), np.uint64(0)))

    def cases(self) -> Iterator[tuple[Case, Figures]]:
        for way in TOEPLITZ_WAYS:
            params: dict[str, int | str] = {"q": self.modulus, "degree": self.degree, "batch": self.batch}
            params["way"] = way
            work, run = self.batch * self.degree, partial(self.run, way)
            yield (
                Case(TOEPLITZ_OP, "polygpu", params, run, self.holds, work, self.values),
                partial(ps_of, work),
            )


def shared_factors(out: Path, timer: Timer | None = None) -> int:
    """Products by transforms and by matrices; how many failed."""
    timer, failed = timer or CudaEvents(REST_S), 0
    for modulus in TOEPLITZ_MODULI:
        for degree in DEGREES:
            with pg.device("cpu"):
                failed += failures(SharedFactor(modulus, degree).cases(), timer, out)
            release()
    return failed


PARTS: Mapping[str, Callable[[Path, Timer | None], int]] = {
    "squares": squares,
    "shapes": shapes,
    "polynomials": polynomials,
    "toeplitz": shared_factors,
}

# ---- the page's tables ----


def ms(row: Row | None) -> str:
    return figure(row.median / 1e6) if row else ""


def rate(row: Row | None) -> str:
    return figure(row.figures["tmodmul"]) if row else ""


def goal_text(goal: tuple[float, float] | None) -> str:
    return f"{goal[0]:g} / {goal[1]:g}" if goal else ""


Squares = Mapping[tuple[str, int, str], Row]  # by modulus, size and way


def square_cell(row: Row) -> tuple[str, int, str]:
    return str(row.params.get("q", "")), int(row.params["n"]), str(row.params["way"])


def square_table(cells: Squares) -> Iterator[Table]:
    """A table for each modulus, cuBLAS beside it."""
    for modulus in (x for x in MODULI if any(q == x for q, _, _ in cells)):
        own = {(n, way): row for (q, n, way), row in cells.items() if q == modulus}
        best = max(
            (row.figures["tmodmul"] for (_, way), row in own.items() if way == "integer"), default=None
        )
        body = []
        for n in sorted({n for n, _ in own}):
            for way in (*WAYS, TAKEN, CUBLAS):
                row = cells.get(("", n, CUBLAS)) if way == CUBLAS else own.get((n, way))
                if row is None:
                    continue
                f = row.figures
                body.append(
                    (
                        str(n),
                        way + taken_by(own, n) if way == TAKEN else way,
                        ms(row),
                        "" if way == CUBLAS else rate(row),
                        figure(f["int8_tops"]) if "int8_tops" in f else "",
                        f"{figure(f['tmodmul'] / best)}x" if best and "tmodmul" in f else "",
                        goal_text(GOALS.get((modulus, n))) if way == TAKEN else "",
                    )
                )
        yield Table(
            f"q = {modulus}, N x N by N x N",
            ("N", "way", "ms", "Tmodmul/s", "int8 TOPS", "of CUDA cores' best", "must / moonshot"),
            tuple(body),
        )


def taken_by(own: Mapping[tuple[int, str], Row], n: int) -> str:
    taken = [way for way in WAYS if (n, way) in own and own[n, way].figures["taken"]]
    return f" ({taken[0]})" if taken else ""


def shape_cell(row: Row) -> tuple[str, Shape, str]:
    return str(row.params["q"]), Shape.of(row), str(row.params["way"])


def shape_table(cells: Mapping[tuple[str, Shape, str], Row]) -> Iterator[Table]:
    """A line for each shape and modulus."""
    body = []
    for shape in dict.fromkeys(shape for _, shape, _ in cells):
        for modulus in dict.fromkeys(q for q, s, _ in cells if s == shape):
            own = {way: row for way in WAYS if (row := cells.get((modulus, shape, way)))}
            fastest = min(own, key=lambda way: own[way].median)
            taken = next((way for way, row in own.items() if row.figures["taken"]), None)
            body.append(
                (
                    str(shape),
                    modulus,
                    *(ms(own.get(way)) for way in WAYS),
                    rate(own[fastest]),
                    fastest,
                    taken or "",
                    f"{own[taken].median / own[fastest].median:.2f}" if taken else "",
                )
            )
    yield Table(
        "Other shapes: ms by each way",
        ("shape", "q", *WAYS, "best: Tmodmul/s", "fastest", "taken", "taken: time by the fastest's"),
        tuple(body),
    )


def points_cell(row: Row) -> tuple[PolyShape, str]:
    return PolyShape.of(row), str(row.params["way"])


def points_table(cells: Mapping[tuple[PolyShape, str], Row]) -> Iterator[Table]:
    body = []
    for shape in dict.fromkeys(shape for shape, _ in cells):
        evaluated, coefficients, summed = (cells.get((shape, way)) for way in (EVALUATED, COEFFICIENTS, SUM))
        times = figure(summed.median / evaluated.median) + "x" if summed and evaluated else ""
        body.append(
            (
                str(shape),
                f"{shape.degree}, {shape.limbs} of {shape.bits} bits",
                ms(evaluated),
                ms(coefficients),
                ms(summed),
                rate(evaluated),
                times,
                f"{POLY_MUSTS[shape]:g}x" if shape in POLY_MUSTS else "",
            )
        )
    yield Table(
        "Matrices of polynomials, ms",
        (
            "product",
            "N, limbs",
            EVALUATED,
            COEFFICIENTS,
            "sum of pointwise products",
            "evaluated: Tmodmul/s",
            "times as fast as the sum",
            "must",
        ),
        tuple(body),
    )


def toeplitz_cell(row: Row) -> tuple[str, int, str]:
    return str(row.params["q"]), int(row.params["degree"]), str(row.params["way"])


def toeplitz_table(cells: Mapping[tuple[str, int, str], Row]) -> Iterator[Table]:
    """A table for each modulus."""
    for modulus in (x for x in TOEPLITZ_MODULI if any(q == x for q, _, _ in cells)):
        body = []
        for degree in sorted({n for q, n, _ in cells if q == modulus}):
            own = {way: row for way in TOEPLITZ_WAYS if (row := cells.get((modulus, degree, way)))}
            texts = [figure(own[way].figures["ps"]) if way in own else "" for way in TOEPLITZ_WAYS]
            ways = [way for way in own if way != "auto"]
            fastest = min(ways, key=lambda way: own[way].figures["ps"], default="")
            body.append((str(degree), *texts, fastest))
        yield Table(
            f"q: {modulus}, ps per coefficient",
            ("N", *TOEPLITZ_WAYS[:-1], "Poly.mul", "fastest"),
            tuple(body),
        )


KINDS = {
    "modular-squares": StudyKind(square_table, SQUARE_OP, square_cell),
    "modular-shapes": StudyKind(shape_table, SHAPE_OP, shape_cell),
    "modular-polynomials": StudyKind(points_table, POINTS_OP, points_cell),
    "modular-toeplitz": StudyKind(toeplitz_table, TOEPLITZ_OP, toeplitz_cell),
}
