"""Products and transforms on the CPU, beside other Python libraries, in one process.

    python -m benchmarks.cpu [--quick] [--only SECTION] [--peer NAME=PATH] [--out DIR]

For products and transforms of polynomials, every library works on the same two polynomials of
Z_q[X]/(X^N + 1), with coefficients drawn uniformly from [0, q) for a prime q. For complex transforms it works
on the same batch of rows, and for products of matrices on the same random residues. docs/performance.md says
which conversions the time of a row includes.

SECTION is one of: libraries (other Python libraries); conversions (bases of moduli, integers and samplers,
see conversions.py); ways-in (values from lists and large ints, rings made again, see ways_in.py); peers (C
libraries that --peer names, see peers.py).
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg

from . import conversions, peers, ways_in
from .harness import RESULTS, Case, Row, measure, on_cores, print_table, record
from .matrices import Product, multiply_integers
from .polynomials import Residues, Workload, bit_reversal, folded, from_flint, to_flint
from .report import KINDS

DEGREES = (2**10, 2**12, 2**14, 2**16)
QUICK = DEGREES[:-1]
PRIME_BITS = (30, 46, 50, 60)
PRECISIONS = ("complex64", "complex128")
ROWS, POINTS = 1024, 64  # numbers of rows and points in a batch of complex transforms
MATRICES = (128, 512, 1024)  # numbers of rows and columns of the square matrices
QUICK_MATRICES = MATRICES[:-1]
MATRIX_PRIMES = {30: 2**30 - 35, 60: 2**60 - 93}
PACKAGES = ("python-flint", "galois", "numba", "scipy")
SECTIONS = ("libraries", "conversions", "ways-in", "peers")


def polygpu_cases(w: Workload) -> Iterator[Case]:
    a, b = w.ring.from_residues(w.a[None]), w.ring.from_residues(w.b[None])
    evaluated = w.ring.from_residues(w.a_evaluated.astype(w.ring.dtype)[None], domain="eval")

    def values(poly: pg.Poly) -> NDArray[Any]:
        limb: NDArray[Any] = poly.data[0]
        return limb

    yield w.case("product", "polygpu", lambda: pg.Poly.mul(a, b), values)
    yield w.case("ntt", "polygpu", a.ntt, values)
    yield w.case("intt", "polygpu", evaluated.intt, values)


def flint_cases(w: Workload) -> Iterator[Case]:
    """Yield the cases of FLINT's polynomial product, reduced mod X^N + 1 by two copies and a subtraction."""
    n, q = w.n, w.q

    def to_numpy(c: Any) -> Residues:
        return from_flint(c, n)

    a, b = to_flint(w.a, q), to_flint(w.b, q)
    yield w.case("product", "python-flint", lambda: folded(a * b, n), to_numpy)
    yield w.case(
        "product",
        "python-flint, NumPy in and out",
        lambda: to_numpy(folded(to_flint(w.a, q) * to_flint(w.b, q), n)),
    )


def galois_cases(w: Workload) -> Iterator[Case]:
    """Yield the cases of galois: its cyclic transforms, made negacyclic by multiplying by powers of psi."""
    import galois

    if w.q >= 2**31:  # galois would compute in Python ints
        return
    field = galois.GF(w.q, verify=False)
    n, psi = w.n, field(w.psi)
    twist = psi ** np.arange(n)
    untwist = twist**-1
    a, b = field(w.a.astype(np.int64)), field(w.b.astype(np.int64))

    # galois chooses omega, an even power of psi. Entry i of its output is the value at psi omega^i. To make
    # the values comparable, `where` puts them into the ring's bit-reversed order.
    omega = int(field.primitive_root_of_unity(n))
    place = {pow(w.psi, 2 * k + 1, w.q): k for k in range(n)}
    natural = np.array([place[w.psi * pow(omega, i, w.q) % w.q] for i in range(n)])
    where = np.empty(n, dtype=np.intp)
    where[natural] = np.arange(n)
    where = where[bit_reversal(n)]

    def forward(x: Any) -> Any:
        return np.fft.fft(x * twist)  # calls galois's own NTT, by NumPy's protocol for array functions

    def inverse(x: Any) -> Any:
        return np.fft.ifft(x) * untwist

    evaluated = forward(a)
    yield w.case("product", "galois", lambda: inverse(forward(a) * forward(b)))
    yield w.case("ntt", "galois", lambda: forward(a), lambda x: np.asarray(x)[where])
    yield w.case("intt", "galois", lambda: inverse(evaluated))


def numba_cases(w: Workload) -> Iterator[Case]:
    """Yield the cases of code that a user would write with numba: radix 2 and Shoup's products."""
    word = np.uint32 if w.q < 2**31 else np.uint64
    forward, inverse, pointwise = compiled_transforms(word)
    n, q, radix = w.n, w.q, 2 ** (8 * word().itemsize)

    def table(factors: list[int]) -> NDArray[Any]:
        """Return rows of the factors x and of floor(x radix / q), which Shoup's products need."""
        return np.array([factors, [x * radix // q for x in factors]], dtype=word)

    def powers(x: int) -> NDArray[Any]:
        return table([pow(x, e, q) for e in bit_reversal(n).tolist()])

    down, up = powers(w.psi), powers(pow(w.psi, -1, q))
    # 1/n, and for products radix/n, because `pointwise` divides by the radix (Montgomery).
    by_n = table([pow(n, -1, q), radix * pow(n, -1, q) % q])
    negative = word(pow(-q, -1, radix))
    a, b = w.a.astype(word), w.b.astype(word)
    evaluated = w.a_evaluated.astype(word)

    def transform(x: NDArray[Any]) -> NDArray[Any]:
        y = x.copy()
        forward(y, down, q)
        return y

    def back(x: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
        y = x.copy()
        inverse(y, up, scale, q)
        return y

    def product() -> NDArray[Any]:
        c = transform(a)
        pointwise(c, transform(b), q, negative)
        inverse(c, up, by_n[:, 1], q)
        return c

    yield w.case("product", "numba", product)
    yield w.case("ntt", "numba", lambda: transform(a))
    yield w.case("intt", "numba", lambda: back(evaluated, by_n[:, 0]))


@functools.cache
def compiled_transforms(word: Any) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """Return functions for the forward transform, the inverse transform and the pointwise product, in place.

    `word` is the dtype of the arrays: uint32 for q < 2^31, or uint64 for q < 2^63. Pointwise products are
    divided by 2^32 or 2^64 modulo q, as in Montgomery's method.
    """
    from numba import njit

    bits, half, low = np.uint64(8 * word().itemsize), np.uint64(32), np.uint64(2**32 - 1)
    least = np.uint64(np.iinfo(word).max)

    def high_of_32(x: Any, y: Any) -> Any:
        return x * y >> half

    def high_of_64(x: Any, y: Any) -> Any:
        middle = (x >> half) * (y & low) + ((x & low) * (y & low) >> half)
        other = (x & low) * (y >> half) + (middle & low)
        return (x >> half) * (y >> half) + (middle >> half) + (other >> half)

    high = njit(inline="always")(high_of_32 if bits == 32 else high_of_64)

    @njit(inline="always")
    def reduced(x: Any, q: Any) -> Any:
        return x - q if x >= q else x

    @njit(inline="always")
    def times(x: Any, factor: Any, quotient: Any, q: Any) -> Any:
        return reduced(x * factor - high(x, quotient) * q, q)

    @njit
    def forward(x: Any, table: Any, q: Any) -> None:
        q = np.uint64(q)
        nodes, size = 1, len(x) // 2
        while size:
            for node in range(nodes):
                w, quotient = np.uint64(table[0, nodes + node]), np.uint64(table[1, nodes + node])
                u, v = x[2 * node * size :][:size], x[(2 * node + 1) * size :][:size]
                for j in range(size):
                    s, t = np.uint64(u[j]), times(np.uint64(v[j]), w, quotient, q)
                    u[j], v[j] = reduced(s + t, q), reduced(s - t + q, q)
            nodes, size = 2 * nodes, size // 2

    @njit
    def inverse(x: Any, table: Any, scale: Any, q: Any) -> None:
        q = np.uint64(q)
        nodes, size = len(x) // 2, 1
        while nodes:
            for node in range(nodes):
                w, quotient = np.uint64(table[0, nodes + node]), np.uint64(table[1, nodes + node])
                u, v = x[2 * node * size :][:size], x[(2 * node + 1) * size :][:size]
                for j in range(size):
                    s, t = np.uint64(u[j]), np.uint64(v[j])
                    u[j], v[j] = reduced(s + t, q), times(s - t + q, w, quotient, q)
            nodes, size = nodes // 2, 2 * size
        w, quotient = np.uint64(scale[0]), np.uint64(scale[1])
        for j in range(len(x)):
            x[j] = times(np.uint64(x[j]), w, quotient, q)

    @njit
    def pointwise(x: Any, y: Any, q: Any, negative: Any) -> None:
        q, negative = np.uint64(q), np.uint64(negative)
        for j in range(len(x)):
            s, t = np.uint64(x[j]), np.uint64(y[j])
            # Montgomery's reduction: a multiple of q is added that makes the low word of the product zero.
            lower = s * t & least
            multiple = lower * negative & least
            x[j] = reduced(high(s, t) + high(multiple, q) + np.uint64(lower != 0), q)

    return forward, inverse, pointwise


def fft_cases(w: Workload) -> Iterator[Case]:
    yield w.case("product", "NumPy FFT", lambda: fft_product(w.a, w.b, w.q))


def fft_product(a: Residues, b: Residues, q: int) -> Residues:
    """Compute the product modulo X^N + 1 and q by complex FFTs of N/2 points.

    Coefficients are cut into pieces of at most 15 bits. Sums of products of pieces are below 4 N 2^30, which
    is 2^48 for N = 2^16. So the rounding errors of the transforms are far below 1/2, and rounding to the
    nearest integer gives the exact sums.
    """
    pieces = -(-q.bit_length() // 15)
    width = -(-q.bit_length() // pieces)
    half = a.size // 2
    twist = powers_of_root_of_i(half)

    def transform(x: Residues) -> NDArray[np.complex128]:
        shifts = np.arange(pieces, dtype=np.uint64)[:, None] * np.uint64(width)
        digits = ((x >> shifts) & np.uint64(2**width - 1)).astype(np.float64)
        # For X^(N/2) = i, the real product modulo X^N + 1 becomes a complex product modulo X^(N/2) - i. The
        # twist makes this product cyclic, so that an FFT computes it.
        return np.fft.fft((digits[:, :half] + 1j * digits[:, half:]) * twist)

    x, y = transform(a), transform(b)
    sums = np.zeros((2 * pieces - 1, half), dtype=np.complex128)
    for i in range(pieces):
        sums[i : i + pieces] += x[i] * y
    sums = np.fft.ifft(sums) * twist.conj()
    c = np.zeros(a.size, dtype=np.int64)
    for weight in reversed(np.rint(np.concatenate((sums.real, sums.imag), axis=1))):
        # c becomes c 2^width + weight modulo q, in about [-q/2, q/2]. Both products may overflow, but the
        # result is right modulo 2^64, and it is small.
        quotient = np.rint((c * float(2**width) + weight) / q).astype(np.int64)
        c = (c << width) + weight.astype(np.int64) - quotient * q
    return np.where(c < 0, c + q, c).astype(np.uint64)


@functools.cache
def powers_of_root_of_i(n: int) -> NDArray[np.complex128]:
    """Return exp(i pi j / 2n) for j = 0, ..., n - 1, the powers of an n-th root of i."""
    powers: NDArray[np.complex128] = np.exp(0.5j * np.pi / n * np.arange(n))
    return powers


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of normally distributed complex values, and their transforms by the definition in long double."""

    dtype: str

    @cached_property
    def x(self) -> NDArray[Any]:
        parts = np.random.default_rng(1).standard_normal((2, ROWS, POINTS))
        return (parts[0] + 1j * parts[1]).astype(self.dtype)

    @cached_property
    def transformed(self) -> NDArray[np.clongdouble]:
        angle = np.arange(POINTS, dtype=np.longdouble) * (-8 * np.arctan(np.longdouble(1)) / POINTS)
        roots = np.cos(angle) + 1j * np.sin(angle)
        matrix = roots[np.outer(np.arange(POINTS), np.arange(POINTS)) % POINTS]
        values: NDArray[np.clongdouble] = self.x.astype(np.clongdouble) @ matrix
        return values

    def is_transform(self, values: NDArray[Any]) -> bool:
        """Return whether each row's relative L2 error is at most 2 epsilon, and the dtype is the input's."""
        error = np.linalg.norm(values - self.transformed, axis=1) / np.linalg.norm(self.transformed, axis=1)
        return values.dtype == self.dtype and bool((error <= 2 * np.finfo(self.dtype).eps).all())

    def case(self, library: str, run: Callable[[], Any]) -> Case:
        params = {"n": POINTS, "batch": ROWS, "dtype": self.dtype}
        return Case("fft64", library, params, run, self.is_transform, work=self.x.size)


def polygpu_batch_cases(w: Batch) -> Iterator[Case]:
    yield w.case("polygpu", lambda: pg.fft.fft64(w.x))


def numpy_batch_cases(w: Batch) -> Iterator[Case]:
    yield w.case("numpy.fft", lambda: np.fft.fft(w.x))


def scipy_batch_cases(w: Batch) -> Iterator[Case]:
    import scipy.fft

    yield w.case("scipy.fft", lambda: scipy.fft.fft(w.x, workers=1))


@dataclass(frozen=True, eq=False)
class Square:
    """A product of square matrices modulo a prime."""

    n: int
    bits: int

    @property
    def q(self) -> int:
        return MATRIX_PRIMES[self.bits]

    @cached_property
    def product(self) -> Product:
        n = self.n
        return Product.random(self.q, 1, n, n, n, functools.partial(multiply_integers, self.q))

    def case(
        self, library: str, run: Callable[[], Any], values: Callable[[Any], NDArray[Any]] = np.asarray
    ) -> Case:
        params = {"n": self.n, "bits": self.bits, "limbs": 1, "batch": 1, "q": self.q}

        def told(c: Any) -> NDArray[Any]:
            return self.product.values(values(c))

        return Case("matmul", library, params, run, self.product.holds, self.n**2, told)


def polygpu_square_cases(w: Square) -> Iterator[Case]:
    a, b = w.product.a[0], w.product.b[0]
    yield w.case("polygpu", lambda: pg.linalg.matmul(a, b, q=w.q))


def flint_square_cases(w: Square) -> Iterator[Case]:
    from flint import nmod_mat

    a, b = (nmod_mat(w.n, w.n, x.ravel().tolist(), w.q) for x in (w.product.a, w.product.b))

    def to_numpy(c: nmod_mat) -> Residues:
        return np.array([int(x) for x in c.entries()], np.uint64)

    yield w.case("python-flint", lambda: a * b, to_numpy)


# Each library with the module that it needs and a function that yields its cases. Without the module the
# library is skipped.
LIBRARIES: tuple[tuple[str, Callable[[Workload], Iterator[Case]]], ...] = (
    ("polygpu", polygpu_cases),
    ("flint", flint_cases),
    ("galois", galois_cases),
    ("numba", numba_cases),
    ("numpy", fft_cases),
)
BATCH_LIBRARIES: tuple[tuple[str, Callable[[Batch], Iterator[Case]]], ...] = (
    ("polygpu", polygpu_batch_cases),
    ("numpy", numpy_batch_cases),
    ("scipy", scipy_batch_cases),
)
SQUARE_LIBRARIES: tuple[tuple[str, Callable[[Square], Iterator[Case]]], ...] = (
    ("polygpu", polygpu_square_cases),
    ("flint", flint_square_cases),
)


def cases(degrees: Sequence[int], matrices: Sequence[int]) -> Iterator[Case]:
    """Yield all cases. For each library that is not installed, print a line."""
    present = {}
    for module in dict.fromkeys(module for module, _ in (*LIBRARIES, *BATCH_LIBRARIES, *SQUARE_LIBRARIES)):
        present[module] = importlib.util.find_spec(module) is not None
        if not present[module]:
            print(f"{module}: not installed, skipped")
    for workload in (Workload(n, bits) for bits in PRIME_BITS for n in degrees):
        for module, of_library in LIBRARIES:
            if present[module]:
                yield from of_library(workload)
    for batch in map(Batch, PRECISIONS):
        for module, of_batch in BATCH_LIBRARIES:
            if present[module]:
                yield from of_batch(batch)
    for square in (Square(n, bits) for bits in MATRIX_PRIMES for n in matrices):
        for module, of_square in SQUARE_LIBRARIES:
            if present[module]:
                yield from of_square(square)


def measured(
    quick: bool, sections: Sequence[str] = SECTIONS, others: Sequence[peers.Peer] = ()
) -> Iterator[Row]:
    """Yield the rows of the sections as they are measured."""
    if "libraries" in sections:
        for case in cases(*((QUICK, QUICK_MATRICES) if quick else (DEGREES, MATRICES))):
            with on_cores(1):
                row = measure(case, packages=PACKAGES)
            yield row
    if "conversions" in sections:
        yield from conversions.measured(conversions.QUICK if quick else conversions.FULL, PACKAGES)
    if "ways-in" in sections:
        yield from ways_in.measured(ways_in.QUICK if quick else ways_in.FULL, PACKAGES)
    if "peers" in sections:
        yield from peers.measured(others, quick, PACKAGES)


def describe(row: Row) -> str:
    params = " ".join(f"{name}={value}" for name, value in row.params.items())
    median, q1, q3 = (ns / 1000 for ns in (row.median, row.q1, row.q3))
    return f"{row.op} {params} [{row.library}]: {median:.2f} us ({q1:.2f} - {q3:.2f}), digest {row.digest}"


@pg.device("cpu")  # even if the environment names another device
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"up to N = {QUICK[-1]}, matrices of {QUICK_MATRICES[-1]}",
    )
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section, or several")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help="another library")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    options = parser.parse_args(arguments)

    try:
        others = [peers.Peer(named) for named in options.peer]
        peers.check_names(others)
    except peers.PeerError as error:
        parser.error(str(error))
    sections = options.only or [name for name in SECTIONS if name != "peers" or others]
    rows = []
    for row in measured(options.quick, sections, others):
        rows.append(row)
        record(row, options.out)
        print(describe(row), flush=True)
    for table in (table for kind in KINDS.values() for table in kind.tables(rows)):
        print_table(table.title, table.header, table.body)


if __name__ == "__main__":
    main()
