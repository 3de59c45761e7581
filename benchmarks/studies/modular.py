"""Exact products modulo q on the GPU: of matrices by each way, of matrices of polynomials, by Toeplitz ones.

The second half of the study of matrix products (docs/studies/gemm.md). Operands are random residues. Before
it is timed, a result is compared with Python integers in some entries, and all of it by Freivalds' test with
the CPU core's products; products of polynomials are compared in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
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

from .. import harness
from ..harness import Case, CudaEvents, Row, Timer
from ..matrices import Product, residues
from ..tables import Table
from . import page
from .page import Rows, StudyKind, quotient, table, texts
from .runner import DEVICE, Figures, Part, Task

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


def task(case: Case, figures: Callable[[float], Figures]) -> Task:
    """figures: what the tables show, of a median in ns."""
    return Task(case, lambda row, _: {"ms_median": round(row.median / 1e6, 5), **figures(row.median)})


def spoil(c: Any) -> None:
    """An array that was read: what ways have in common is to hold no other one's result."""
    c.fill(np.iinfo(c.dtype).max)


def rate_of(work: int, ns: float) -> Figures:
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
    def of(cls, row: Row) -> Any:
        return cls(*(int(row.params[field.name]) for field in fields(cls)))

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
        s, backend = self.shape, get_backend(DEVICE)
        size = basis_of((self.q,)).dtype.itemsize
        return matmul_method(self.q, size, s.batch, s.m, s.k, s.n, backend.card)  # type: ignore[attr-defined]

    def run(self, way: str) -> Any:
        a, b, c = self.arrays
        if way == TAKEN:
            return linalg.matmul(a, b, self.q, out=c)
        getattr(get_backend(DEVICE), f"_matmul_{way}")(basis_of((self.q,)), a, b, c)
        return c

    def values(self, c: Any) -> NDArray[Any]:
        found = self.product.values(c.get())
        spoil(c)
        return found

    def figures(self, way: str, ns: float) -> Figures:
        taken = self.method
        way = taken if way == TAKEN else way
        figures = {**rate_of(self.shape.work, ns), "taken": float(way == taken)}
        if (of_bytes := products_of_bytes(way, self.q, self.shape.k)) > 0:
            figures["int8_tops"] = round(2 * of_bytes * self.shape.work / ns / 1000, 2)
        return figures

    def tasks(self, op: str, ways: Iterable[str]) -> Iterator[Task]:
        s = self.shape
        for way in ways:
            params = {"q": self.modulus, **asdict(s), "way": way}
            run, right, work = partial(self.run, way), self.product.holds, s.batch * s.m * s.n
            case = Case(op, "polygpu", params, run, right, work, self.values)
            yield task(case, partial(self.figures, way))


def products_of_bytes(way: str, q: int, k: int) -> int:
    """How many tensor cores make for one of words; 0 on CUDA cores."""
    if way == "limbs":
        return int(basis_of((q,)).dtype.itemsize ** 2)
    return len(coprimes(q, k)) if way == "residues" else 0


def of_bytes(n: int) -> Iterator[Task]:
    """Square matrices of signed bytes, multiplied by cuBLAS alone as residues are; sums are below 2^31."""
    import cupy

    rng = np.random.default_rng(n)
    operands = [rng.integers(-128, 128, (1, n, n), np.int8) for _ in range(2)]
    words = (x.astype(np.int32).view(np.uint32) for x in operands)
    product = Product(2**32, *words, partial(linalg.matmul, q=2**32))
    left, right = operands[0], np.ascontiguousarray(operands[1].swapaxes(1, 2))  # cuBLAS reads columns
    arrays = cupy.asarray(left[None]), cupy.asarray(right[None]), cupy.zeros((1, 1, n, n), np.int32)

    def run() -> Any:
        get_backend(DEVICE)._multiply_bytes(*arrays)  # type: ignore[attr-defined]
        return arrays[2]

    def values(c: Any) -> NDArray[Any]:
        return product.values(c.get().view(np.uint32))

    params = {**asdict(Shape(1, n, n, n)), "way": CUBLAS}
    case = Case(SQUARE_OP, "cuBLAS", params, run, product.holds, n * n, values)
    yield task(case, lambda ns: {"int8_tops": round(2 * n**3 / ns / 1000, 2)})


def squares(out: Path, timer: Timer | None) -> Iterator[tuple[Iterable[Task], Timer]]:
    """Each way at each size."""
    for n in SIZES:
        rested = timer or CudaEvents(harness.REST_S if n >= LARGE else REST_S)
        ways = (*(() if n >= LONG else ("integer", "limbs")), "residues", TAKEN)
        for modulus in SQUARE_MODULI:
            yield Problem(modulus, Shape(1, n, n, n)).tasks(SQUARE_OP, ways), rested
        if n >= LARGE:
            yield of_bytes(n), rested


def shapes(out: Path, timer: Timer | None) -> Iterator[tuple[Iterable[Task], Timer]]:
    """Each way, for batches and for matrices that are no squares."""
    timer = timer or CudaEvents(REST_S)
    for modulus in SHAPE_MODULI:
        for shape in SHAPES:
            yield Problem(modulus, shape).tasks(SHAPE_OP, WAYS), timer


# ---- matrices of polynomials ----


@dataclass(frozen=True)
class PolyShape(Shape):
    """Of polynomials, so many limbs of so many bits; a dot product has m = n = 1."""

    degree: int
    limbs: int
    bits: int

    @property
    def work(self) -> int:
        return super().work * self.limbs * self.degree

    def __str__(self) -> str:
        return f"{self.batch} dot products of {self.k}" if self.m == self.n == 1 else super().__str__()


POLY_SHAPES = (
    PolyShape(1, 64, 64, 64, 4096, 4, 30),
    PolyShape(16, 16, 16, 16, 4096, 4, 30),
    PolyShape(256, 4, 4, 4, 4096, 4, 30),
    PolyShape(8, 16, 16, 16, 4096, 4, 60),
    PolyShape(64, 1, 64, 1, 4096, 4, 30),
)
POLY_MUSTS = {POLY_SHAPES[0]: 5}  # how many times as fast as the sum of products it is to be
POLY_WAYS = EVALUATED, COEFFICIENTS, SUM = "evaluated", "coefficients", "sum of products"


@dataclass(frozen=True, eq=False)
class PolyProblem:
    """A product of random matrices of polynomials."""

    shape: PolyShape

    @cached_property
    def ring(self) -> pg.Ring:
        s = self.shape
        return pg.Ring(s.degree, pg.ntt_primes(s.degree, s.bits, s.limbs))

    @cached_property
    def host(self) -> list[pg.Poly]:
        """The operands, evaluated."""
        s, ring, made = self.shape, self.ring, []
        rng = np.random.default_rng(s.batch * s.m * s.k * s.n)
        for batch in ((s.batch, s.m, s.k), (s.batch, s.k, s.n)):
            rows = [residues(rng, q, (*batch, ring.n)).astype(ring.dtype) for q in ring.moduli]
            made.append(ring.from_residues(np.stack(rows, axis=-2), domain="eval"))
        return made

    @cached_property
    def products(self) -> list[Product]:
        """Of each limb: matrices of residues, one at each point."""
        limbs = zip(self.ring.moduli, *map(self.points, self.host), strict=True)
        return [Product(q, a, b, partial(linalg.matmul, q=q)) for q, a, b in limbs]

    def points(self, poly: pg.Poly) -> list[NDArray[Any]]:
        by_limb = poly.cpu().ntt().data.transpose(3, 0, 4, 1, 2)
        return [np.ascontiguousarray(limb).reshape(-1, *limb.shape[2:]) for limb in by_limb]

    def values(self, c: pg.Poly) -> NDArray[Any]:
        return np.concatenate([p.values(x) for p, x in zip(self.products, self.points(c), strict=True)])

    def right(self, values: NDArray[Any]) -> bool:
        found = np.split(values, self.shape.limbs)
        return all(product.holds(x) for product, x in zip(self.products, found, strict=True))

    @cached_property
    def evaluated(self) -> list[pg.Poly]:
        """The operands on the device."""
        return [x.to(DEVICE) for x in self.host]

    @cached_property
    def coefficients(self) -> list[pg.Poly]:
        return [x.intt() for x in self.evaluated]

    @cached_property
    def terms(self) -> tuple[Any, Any]:
        """The operands' data, the terms of the sums first, so that each is dense."""
        import cupy

        a, b = (x.data for x in self.evaluated)
        a, b = a[:, :, None].transpose(3, 0, 1, 2, 4, 5), b[:, None].transpose(2, 0, 1, 3, 4, 5)
        return cupy.ascontiguousarray(a), cupy.ascontiguousarray(b)

    def run(self, way: str, out: pg.Poly) -> pg.Poly:
        if way == SUM:
            basis, backend = self.ring.basis, get_backend(DEVICE)
            for k, (x, y) in enumerate(zip(*self.terms, strict=True)):
                c = out.data if k else None
                backend.pointwise(basis, "mul_add" if k else "mul", x, y, c, out.data)
            return out
        a, b = self.evaluated if way == EVALUATED else self.coefficients
        if self.shape.m == self.shape.n == 1:
            pg.dot(a[:, 0], b[:, :, 0], out=out[:, 0, 0])
            return out
        return pg.matmul(a, b, out=out)

    def task(self, way: str) -> Task:
        s, ring = self.shape, self.ring
        shape = (s.batch, s.m, s.n, ring.rows, ring.n)

        @cache
        def out() -> pg.Poly:
            import cupy

            domain: Any = "coef" if way == COEFFICIENTS else "eval"
            return ring.from_residues(cupy.zeros(shape, ring.dtype), domain=domain, copy=False)

        run, params = lambda: self.run(way, out()), {**asdict(s), "way": way}
        case = Case(POINTS_OP, "polygpu", params, run, self.right, int(np.prod(shape)), self.values)
        return task(case, partial(rate_of, s.work))


def polynomials(out: Path, timer: Timer | None) -> Iterator[tuple[Iterable[Task], Timer]]:
    """Matrices of polynomials in either domain, and the same sums point by point."""
    for shape in POLY_SHAPES:
        with pg.device("cpu"):
            yield map(PolyProblem(shape).task, POLY_WAYS), timer or CudaEvents(REST_S)


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
        """Of the distinct polynomials, by Python integers; no others differ."""
        few, b = (x.to_bigints().tolist() for x in self.host)
        products = np.array([big_product(a, b, self.ring.modulus, -1) for a in few], np.uint64)
        return np.append(products, np.uint64(0))

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

    def right(self, values: NDArray[Any]) -> bool:
        return np.array_equal(values, self.expected)

    def task(self, way: str) -> Task:
        params: dict[str, int | str] = {"q": self.modulus, "degree": self.degree, "batch": self.batch}
        work, run = self.batch * self.degree, partial(self.run, way)
        case = Case(TOEPLITZ_OP, "polygpu", {**params, "way": way}, run, self.right, work, self.values)
        return task(case, lambda ns: {"ps": round(1000 * ns / work, 3)})


def shared_factors(out: Path, timer: Timer | None) -> Iterator[tuple[Iterable[Task], Timer]]:
    """Products by transforms and by matrices."""
    timer = timer or CudaEvents(REST_S)
    for modulus in TOEPLITZ_MODULI:
        for degree in DEGREES:
            with pg.device("cpu"):
                yield map(SharedFactor(modulus, degree).task, TOEPLITZ_WAYS), timer


PARTS: dict[str, Part] = {
    "squares": squares,
    "shapes": shapes,
    "polynomials": polynomials,
    "toeplitz": shared_factors,
}

# ---- the page ----


def square_table(rows: Rows) -> Iterator[Table]:
    """A table for each modulus, cuBLAS beside it."""
    columns = (
        "N = $n | way = way | ms | Tmodmul/s = tmodmul | int8 TOPS = int8_tops | "
        "of CUDA cores' best = of_best | must / moonshot = goal"
    )
    for modulus in (x for x in MODULI if rows.where(q=x)):
        own = rows.where(q=modulus)
        best = max((row.figures["tmodmul"] for row in own.where(way="integer")), default=None)
        ways = ((n, way) for n in own.values("n") for way in (*WAYS, TAKEN, CUBLAS))
        found = (rows.one(n=n, way=way, q=None if way == CUBLAS else modulus) for n, way in ways)

        def way(row: Row, own: Rows = own) -> str:
            found = (
                x for x in own.where(n=row.params["n"]) if x.params["way"] in WAYS and x.figures["taken"]
            )
            taken = next(found, None) if row.params["way"] == TAKEN else None
            return f"{row.params['way']}" + (f" ({taken.params['way']})" if taken else "")

        def of_best(row: Row, best: float | None = best) -> str:
            text = quotient(row.figures.get("tmodmul"), best)
            return text + "x" * bool(text)

        def goal(row: Row, modulus: str = modulus) -> str:
            found = GOALS.get((modulus, int(row.params["n"]))) if row.params["way"] == TAKEN else None
            return f"{found[0]:g} / {found[1]:g}" if found else ""

        title = f"q = {modulus}, N x N by N x N"
        yield table(title, columns, (row for row in found if row), way=way, of_best=of_best, goal=goal)


def shape_table(rows: Rows) -> Iterator[Table]:
    """A line for each shape and modulus."""
    body = []
    for shape in dict.fromkeys(map(Shape.of, rows)):
        found = rows.where(**asdict(shape))
        for modulus in dict.fromkeys(str(row.params["q"]) for row in found):
            own = {way: row for way in WAYS if (row := found.one(q=modulus, way=way))}
            fastest = min(own, key=lambda way: own[way].median)
            taken = next((way for way, row in own.items() if row.figures["taken"]), "")
            by_fastest = quotient(page.median(own.get(taken)), own[fastest].median, ".2f")
            times = (text for way in WAYS for text in texts(own.get(way), "ms"))
            best = texts(own[fastest], "Tmodmul/s = tmodmul")
            body.append((str(shape), modulus, *times, *best, fastest, taken, by_fastest))
    names = ("shape", "q", *WAYS, "best: Tmodmul/s", "fastest", "taken", "taken: time by the fastest's")
    yield Table("Other shapes: ms by each way", names, tuple(body))


def points_table(rows: Rows) -> Iterator[Table]:
    columns = (
        f"product | N, limbs | {EVALUATED} | {COEFFICIENTS} | sum of pointwise products | "
        "evaluated: Tmodmul/s | times as fast as the sum | must"
    )
    body = []
    for shape in dict.fromkeys(map(PolyShape.of, rows)):
        own = Rows(row for row in rows if PolyShape.of(row) == shape)
        evaluated, _, summed = found = [own.one(way=way) for way in POLY_WAYS]
        ms = (text for row in found for text in texts(row, "ms"))
        times, must = quotient(page.median(summed), page.median(evaluated)), POLY_MUSTS.get(shape)
        line = (
            *texts(evaluated, "Tmodmul/s = tmodmul"),
            times + "x" * bool(times),
            f"{must:g}x" if must else "",
        )
        body.append((str(shape), f"{shape.degree}, {shape.limbs} of {shape.bits} bits", *ms, *line))
    yield Table("Matrices of polynomials, ms", page.heads(columns), tuple(body))


def toeplitz_table(rows: Rows) -> Iterator[Table]:
    """A table for each modulus."""
    for modulus in (x for x in TOEPLITZ_MODULI if rows.where(q=x)):
        body = []
        for degree in rows.where(q=modulus).values("degree"):
            found = {way: rows.one(q=modulus, degree=degree, way=way) for way in TOEPLITZ_WAYS}
            ps = {way: row.figures["ps"] for way, row in found.items() if row and way != "auto"}
            line = (text for row in found.values() for text in texts(row, "ps = ps"))
            body.append((str(degree), *line, min(ps, key=ps.__getitem__, default="")))
        names = ("N", *TOEPLITZ_WAYS[:-1], "Poly.mul", "fastest")
        yield Table(f"q: {modulus}, ps per coefficient", names, tuple(body))


KINDS = {
    "modular-squares": StudyKind(square_table, SQUARE_OP),
    "modular-shapes": StudyKind(shape_table, SHAPE_OP),
    "modular-polynomials": StudyKind(points_table, POINTS_OP),
    "modular-toeplitz": StudyKind(toeplitz_table, TOEPLITZ_OP),
}
