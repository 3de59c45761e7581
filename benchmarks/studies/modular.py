"""Exact products modulo q on the GPU: of matrices in each way, of matrices of polynomials, by Toeplitz ones.

The second half of the study of matrix products (docs/studies/gemm.md). Operands are random residues. Before a
result is timed, some of its entries are compared with Python integers, and all of it is checked by Freivalds'
test with the CPU core's products. Products of many polynomials by one are compared in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import linalg
from polygpu._backends import get_backend
from polygpu._backends.cuda import matmul
from polygpu._backends.cuda.matmul_tiles import coprimes, matmul_method
from polygpu._backends.reference import big_product
from polygpu._core.plans.basis import basis_of

from .. import harness
from ..harness import Case, CudaEvents, Row, Timer
from ..matrices import Product, residues
from ..tables import Table
from . import page
from .page import Rows, StudyKind, quotient, table, texts
from .runner import DEVICE, Figures, Part, Task, Tasks

REST_S = 0.05  # before a row that takes little power; large squares have the whole harness.REST_S

MODULI = {
    "2^31 - 1": 2**31 - 1,
    "2^30 - 35": 2**30 - 35,
    "2^60 - 93": 2**60 - 93,
    "2^32": 2**32,
    "30-bit NTT prime": pg.ntt_primes(1024, bits=30)[0],
    "60-bit NTT prime": pg.ntt_primes(1024, bits=60)[0],
}
WAYS = ("integer", "digits", "residues")
TAKEN = "matmul"  # what polygpu.linalg.matmul takes by itself
CUBLAS = "cuBLAS int8"
SQUARE_OP, SHAPE_OP, POINTS_OP, TOEPLITZ_OP = "matmul", "matmul shape", "matmul points", "toeplitz"


def task(
    case: tuple[str, str, dict[str, int | str]],
    run: Callable[[], Any],
    values: Callable[[Any], NDArray[Any]],
    right: Callable[[NDArray[Any]], bool],
    entries: int,
    figures: Callable[[float], Figures],
) -> Task:
    """case: op, library and parameters; entries: number in a result; figures: from a median in ns."""
    made = Case(*case, run, right, entries, values)
    return Task(made, lambda row, _: {"ms_median": round(row.median / 1e6, 5), **figures(row.median)})


def spoil(c: Any) -> None:
    """Overwrite a result that was read: all ways share the array, and none may find another's result."""
    c.fill(np.iinfo(c.dtype).max)


# ---- matrices of residues ----


# (batch, m, k, n) of products of matrices (batch, m, k) by (batch, k, n). For matrices of polynomials the
# degree, the number of limbs and their bits follow.
Shape = tuple[int, ...]
NAMES = ("batch", "m", "k", "n", "degree", "limbs", "bits")


def named(shape: Shape) -> dict[str, int | str]:
    return dict(zip(NAMES, shape, strict=False))


def shape_of(row: Row) -> Shape:
    return tuple(int(row.params[name]) for name in NAMES if name in row.params)


def described(shape: Shape) -> str:
    batch, m, k, n = shape[:4]
    if m == n == 1:
        return f"{batch} dot products of {k}"
    return f"{batch} of " * (batch > 1) + f"{m} x {k} by {k} x {n}"


def rate_of(shape: Shape, ns: float) -> Figures:
    """Products of two words, 10^12 a second."""
    return {"tmodmul": round(prod(shape[:6]) / ns / 1000, 4)}


SIZES = (512, 1024, 2048, 4096, 8192)  # of squares
SQUARE_MODULI = ("2^31 - 1", "2^30 - 35", "2^60 - 93")
LARGE = 4096  # from this size on the card rests for long before a product, and cuBLAS's own product has a row
LONG = 8192  # from this size on the ways "integer" and "digits" are left out
# Products of two words, 10^12 a second, by modulus and size: must and moonshot.
GOALS = {("2^31 - 1", 4096): (25, 35), ("2^31 - 1", 8192): (30, 42), ("2^60 - 93", 4096): (10, 20)}
SHAPES: tuple[Shape, ...] = (
    *((1024, 64, 64, 64), (256, 128, 128, 128), (16, 512, 512, 512), (1, 1, 4096, 4096), (1, 4096, 4096, 1)),
    *((1, 64, 4096, 4096), (1, 65536, 64, 64), (1, 65536, 256, 256)),
)
SHAPE_MODULI = ("2^31 - 1", "2^60 - 93")


def products(op: str, modulus: str, shape: Shape, ways: Iterable[str]) -> Iterator[Task]:
    """Products of random matrices modulo q."""
    import cupy

    q, backend = MODULI[modulus], get_backend(DEVICE)
    product, basis = Product.random(q, *shape, partial(linalg.matmul, q=q)), basis_of((q,))
    a, b = cupy.asarray(product.a), cupy.asarray(product.b)
    c = cupy.zeros(product.shape, a.dtype)
    taken = matmul_method(q, a.itemsize, *shape, backend.card)  # type: ignore[attr-defined]
    # Products of bytes for one product of words.
    of_bytes = {"digits": a.itemsize**2, "residues": len(coprimes(q, shape[2]))}

    def run(way: str) -> Any:
        if way == TAKEN:
            return linalg.matmul(a, b, q=q, out=c)
        getattr(matmul, f"by_{way}")(backend, basis, a, b, c)
        return c

    def values(c: Any) -> NDArray[Any]:
        found = product.values(c.get())
        spoil(c)
        return found

    def figures(way: str, ns: float) -> Figures:
        found = {**rate_of(shape, ns), "taken": float(way == taken)}
        if way in of_bytes:
            found["int8_tops"] = round(2 * of_bytes[way] * prod(shape) / ns / 1000, 2)
        return found

    for way in ways:
        case = op, "polygpu", {"q": modulus, **named(shape), "way": way}
        rates = partial(figures, taken if way == TAKEN else way)
        yield task(case, partial(run, way), values, product.holds, c.size, rates)


def products_of_bytes(n: int) -> Iterator[Task]:
    """Square matrices of signed bytes, by the call of cuBLAS that residues take; sums are below 2^31."""
    import cupy

    rng = np.random.default_rng(n)
    a, b = (rng.integers(-128, 128, (1, n, n), np.int8) for _ in range(2))
    words = (x.astype(np.int32).view(np.uint32) for x in (a, b))
    product = Product(2**32, *words, partial(linalg.matmul, q=2**32))
    columns = np.ascontiguousarray(b.swapaxes(1, 2))
    arrays = cupy.asarray(a[None]), cupy.asarray(columns[None]), cupy.zeros((1, 1, n, n), np.int32)

    def run() -> Any:
        matmul.multiply_bytes(get_backend(DEVICE), *arrays)  # type: ignore[arg-type]
        return arrays[2]

    def values(c: Any) -> NDArray[Any]:
        return product.values(c.get().view(np.uint32))

    case = SQUARE_OP, "cuBLAS", {**named((1, n, n, n)), "way": CUBLAS}
    yield task(
        case, run, values, product.holds, n * n, lambda ns: {"int8_tops": round(2 * n**3 / ns / 1000, 2)}
    )


def squares(out: Path, timer: Timer | None) -> Iterator[Tasks]:
    """Each way at each size."""
    for n in SIZES:
        rested = timer or CudaEvents(harness.REST_S if n >= LARGE else REST_S)
        ways = (*(() if n >= LONG else ("integer", "digits")), "residues", TAKEN)
        for modulus in SQUARE_MODULI:
            yield products(SQUARE_OP, modulus, (1, n, n, n), ways), rested
        if n >= LARGE:
            yield products_of_bytes(n), rested


def shapes(out: Path, timer: Timer | None) -> Iterator[Tasks]:
    """Yield the tasks of each way, for batches and for matrices that are not square."""
    for modulus in SHAPE_MODULI:
        for shape in SHAPES:
            yield products(SHAPE_OP, modulus, shape, WAYS), timer or CudaEvents(REST_S)


# ---- matrices of polynomials ----


POLY_SHAPES: tuple[Shape, ...] = (
    (1, 64, 64, 64, 4096, 4, 30),
    (16, 16, 16, 16, 4096, 4, 30),
    (256, 4, 4, 4, 4096, 4, 30),
    (8, 16, 16, 16, 4096, 4, 60),
    (64, 1, 64, 1, 4096, 4, 30),
)
POLY_MUSTS = {POLY_SHAPES[0]: 5}  # by shape, must: how many times as fast as the sum of products
POLY_WAYS = EVALUATED, COEFFICIENTS, SUM = "evaluated", "coefficients", "sum of products"


def poly_products(shape: Shape) -> Iterator[Task]:
    """Products of random matrices of polynomials."""
    import cupy

    batch, m, k, n, degree, limbs, bits = shape
    ring, rng = (
        pg.Ring(degree, pg.ntt_primes(degree, bits=bits, count=limbs)),
        np.random.default_rng(prod(shape[:6])),
    )

    def drawn(*sizes: int) -> pg.Poly:
        rows = [residues(rng, q, (*sizes, degree)).astype(ring.dtype) for q in ring.moduli]
        return ring.from_residues(np.stack(rows, axis=-2), domain="eval")

    def points(poly: pg.Poly) -> list[NDArray[Any]]:
        """For each limb: matrices of residues, one for each point."""
        rows = poly.cpu().ntt().data.transpose(3, 0, 4, 1, 2)
        return [np.ascontiguousarray(row).reshape(-1, *row.shape[2:]) for row in rows]

    host = drawn(batch, m, k), drawn(batch, k, n)
    moduli = zip(ring.moduli, *map(points, host), strict=True)
    products = [Product(q, a, b, partial(linalg.matmul, q=q)) for q, a, b in moduli]
    a, b = (x.to(DEVICE) for x in host)
    backend, out_shape = get_backend(DEVICE), (batch, m, n, limbs, degree)

    def values(c: pg.Poly) -> NDArray[Any]:
        return np.concatenate([p.values(x) for p, x in zip(products, points(c), strict=True)])

    def right(values: NDArray[Any]) -> bool:
        return all(p.holds(x) for p, x in zip(products, np.split(values, limbs), strict=True))

    def multiplied(a: pg.Poly, b: pg.Poly, out: pg.Poly) -> pg.Poly:
        if m == n == 1:
            pg.dot(a[:, 0], b[:, :, 0], out=out[:, 0, 0])
            return out
        return pg.matmul(a, b, out=out)

    def summed(left: Any, right: Any, out: pg.Poly) -> pg.Poly:
        for k, (x, y) in enumerate(zip(left, right, strict=True)):
            backend.pointwise(
                ring._plan.basis, "mul_add" if k else "mul", x, y, out.data if k else None, out.data
            )
        return out

    for way in POLY_WAYS:
        domain: Any = "coef" if way == COEFFICIENTS else "eval"
        out = ring.from_residues(cupy.zeros(out_shape, ring.dtype), domain=domain, copy=False)
        run = partial(multiplied, *((a.intt(), b.intt()) if way == COEFFICIENTS else (a, b)), out)
        if way == SUM:  # the axis of the sums comes first, so that each term is contiguous
            left = a.data[:, :, None].transpose(3, 0, 1, 2, 4, 5)
            right_ = b.data[:, None].transpose(2, 0, 1, 3, 4, 5)
            run = partial(summed, cupy.ascontiguousarray(left), cupy.ascontiguousarray(right_), out)
        case = POINTS_OP, "polygpu", {**named(shape), "way": way}
        yield task(case, run, values, right, prod(out_shape), partial(rate_of, shape))


def polynomials(out: Path, timer: Timer | None) -> Iterator[Tasks]:
    """Products of matrices of polynomials in either domain, and the same sums by pointwise products."""
    for shape in POLY_SHAPES:
        with pg.device("cpu"):
            yield poly_products(shape), timer or CudaEvents(REST_S)


# ---- many polynomials by one: Toeplitz matrices ----

DEGREES = (16, 32, 64, 128, 256, 512, 1024)
TOEPLITZ_MODULI = ("30-bit NTT prime", "60-bit NTT prime", "2^32", "2^31 - 1", "2^60 - 93")
TOEPLITZ_WAYS = ("ntt", "fft", "matrix", "auto")
BATCH_BYTES = 1 << 27  # more than twice an H100's second cache
DISTINCT = 8  # polynomials of a batch


def toeplitz(b: NDArray[Any], q: int) -> NDArray[Any]:
    """Return the matrix M for which the row of a's coefficients times M is a b mod X^n + 1 and q."""
    n = len(b)
    i, j = np.indices((n, n))
    entries = b.astype(np.uint64)[(j - i) % n]
    return np.where(j >= i, entries, (q - entries) % q).astype(b.dtype)


def products_by_one(modulus: str, degree: int) -> Iterator[Task]:
    """Products of a batch of polynomials by one. Few of the batch are distinct."""
    import cupy

    ring = pg.Ring(degree, MODULI[modulus])
    batch, q = max(DISTINCT, BATCH_BYTES // (ring.dtype.itemsize * degree)), ring.modulus
    few, one = ring.random((DISTINCT,), seed=1), ring.random(seed=2)
    # Which of the distinct polynomials each one of the batch is. The batch begins with all of them, in order.
    drawn = np.random.default_rng(3).integers(DISTINCT, size=batch)
    drawn[:DISTINCT] = range(DISTINCT)
    which, matrix = cupy.asarray(drawn), cupy.asarray(toeplitz(one.data[0], q))
    a, b = few.to(DEVICE)[which], one.to(DEVICE)
    out = a.copy()
    exact = [big_product(x, one.to_bigints().tolist(), q) for x in few.to_bigints().tolist()]
    expected = np.append(np.array(exact, np.uint64), np.uint64(0))

    def run(way: str) -> pg.Poly:
        if way == "matrix":
            linalg.matmul(a.data[:, 0], matrix, q=q, out=out.data[:, 0])
            return out
        return a.mul(b, out=out, product=way)  # type: ignore[arg-type]

    def values(c: pg.Poly) -> NDArray[Any]:
        """Return the distinct products, then how many entries of the batch differ from them.

        The batch is spoiled afterwards.
        """
        found = c.data[:, 0]
        differ = int((found != found[:DISTINCT][which]).sum())
        seen = np.append(found[:DISTINCT].get().astype(np.uint64), np.uint64(differ))
        spoil(found)
        return seen

    def figures(ns: float) -> Figures:
        return {"ps": round(1000 * ns / (batch * degree), 3)}

    for way in TOEPLITZ_WAYS:
        case = TOEPLITZ_OP, "polygpu", {"q": modulus, "degree": degree, "batch": batch, "way": way}
        yield task(case, partial(run, way), values, partial(np.array_equal, expected), a.data.size, figures)


def factors(out: Path, timer: Timer | None) -> Iterator[Tasks]:
    """Products of many polynomials by one, by transforms and by matrices."""
    for modulus in TOEPLITZ_MODULI:
        for degree in DEGREES:
            with pg.device("cpu"):
                yield products_by_one(modulus, degree), timer or CudaEvents(REST_S)


PARTS: dict[str, Part] = {
    "squares": squares,
    "shapes": shapes,
    "polynomials": polynomials,
    "toeplitz": factors,
}

# ---- the page ----


def square_table(rows: Rows) -> Iterator[Table]:
    """Yield a table for each modulus, with the rows of cuBLAS."""
    columns = (
        "N = $n | way = way | ms | Tmodmul/s = tmodmul | int8 TOPS = int8_tops | "
        "of CUDA cores' best = of_best | must / moonshot = goal"
    )
    for modulus in (x for x in MODULI if rows.where(q=x)):
        own = rows.where(q=modulus)
        best = max((row.figures["tmodmul"] for row in own.where(way="integer")), default=None)
        taken = {
            r.params["n"]: r.params["way"] for r in own if r.params["way"] in WAYS and r.figures["taken"]
        }

        def way(row: Row, taken: Any = taken) -> str:
            own, way = taken.get(row.params["n"]), str(row.params["way"])
            return f"{way} ({own})" if own and way == TAKEN else way

        def of_best(row: Row, best: float | None = best) -> str:
            return times(row.figures.get("tmodmul"), best)

        def goal(row: Row, modulus: str = modulus) -> str:
            found = GOALS.get((modulus, int(row.params["n"]))) if row.params["way"] == TAKEN else None
            return f"{found[0]:g} / {found[1]:g}" if found else ""

        ways = (
            (n, x, None if x == CUBLAS else modulus) for n in own.values("n") for x in (*WAYS, TAKEN, CUBLAS)
        )
        found = [row for n, x, q in ways if (row := rows.one(n=n, way=x, q=q))]
        yield table(f"q = {modulus}, N x N by N x N", columns, found, way=way, of_best=of_best, goal=goal)


def times(a: float | None, b: float | None) -> str:
    """Return a / b as text: how many times b it is."""
    return quotient(a, b) + "x" * bool(quotient(a, b))


def shape_table(rows: Rows) -> Iterator[Table]:
    """Yield the table with a line for each shape and modulus."""
    body = []
    for shape in dict.fromkeys(map(shape_of, rows)):
        found = rows.where(**named(shape))
        for modulus in dict.fromkeys(str(row.params["q"]) for row in found):
            own = {way: row for way in WAYS if (row := found.one(q=modulus, way=way))}
            fastest = min(own, key=lambda way: own[way].median)
            taken = next((way for way, row in own.items() if row.figures["taken"]), "")
            by_fastest = quotient(page.median(own.get(taken)), own[fastest].median, ".2f")
            ms = (text for way in WAYS for text in texts(own.get(way), "ms"))
            best = texts(own[fastest], "Tmodmul/s = tmodmul")
            body.append((described(shape), modulus, *ms, *best, fastest, taken, by_fastest))
    names = ("shape", "q", *WAYS, "best: Tmodmul/s", "fastest", "taken", "taken: time by the fastest's")
    yield Table("Other shapes: ms by each way", names, tuple(body))


def points_table(rows: Rows) -> Iterator[Table]:
    columns = (
        f"product | N, limbs | {EVALUATED} | {COEFFICIENTS} | sum of pointwise products | "
        "evaluated: Tmodmul/s | times as fast as the sum | must"
    )
    body = []
    for shape in dict.fromkeys(map(shape_of, rows)):
        evaluated, _, summed = found = [rows.where(**named(shape)).one(way=way) for way in POLY_WAYS]
        ms, rate = (text for row in found for text in texts(row, "ms")), texts(evaluated, "rate = tmodmul")
        ring, must = f"{shape[4]}, {shape[5]} of {shape[6]} bits", POLY_MUSTS.get(shape)
        by_sum = times(page.median(summed), page.median(evaluated))
        body.append((described(shape), ring, *ms, *rate, by_sum, f"{must:g}x" if must else ""))
    yield Table("Matrices of polynomials, ms", page.heads(columns), tuple(body))


def toeplitz_table(rows: Rows) -> Iterator[Table]:
    """Yield a table for each modulus."""
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
