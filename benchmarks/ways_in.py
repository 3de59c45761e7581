"""Ways into the library: values from lists and large ints, rings made again, and first calls, on one core.

    python -m benchmarks.cpu --only ways-in

Programs that hold their values in lists, or that make their ring inside a function, spend much time on these
operations. Every result is compared with Python integers before it is timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg

from .conversions import Params, params_of, residues, ring_of
from .harness import Case, Row, in_passes
from .tables import Line, LineKind

WIDE = 2**256 - 351 * 2**32 + 1  # a prime
NESTED = 8  # number of lists in a nested list
BITS = 25  # bit length of the primes in the ring of large ints


@dataclass(frozen=True)
class Sizes:
    """The sizes that are measured.

    lists: lengths of lists. large, large_bits, limbs: number and bits of large ints, and limbs of their ring.
    rings: limbs of rings that are made again. inverted: degree of inverses. passes: number of passes.
    """

    lists: tuple[int, ...] = (256, 1024)
    large: int = 256
    large_bits: int = 1000
    limbs: int = 41
    rings: tuple[int, ...] = (1, 8)
    inverted: int = 4096
    passes: int = 3


FULL = Sizes()
QUICK = Sizes(lists=(256,), inverted=256, passes=1)


def list_cases(n: int, batch: int) -> Iterator[Case]:
    """Yield the cases of making a value from a list of Python ints, and of making a NumPy array from it."""
    rng, R = random.Random(n), pg.Ring(n, 12289)
    x = [[rng.randrange(-6000, 6001) for _ in range(n)] for _ in range(batch)]
    given: Any = x if batch > 1 else x[0]
    params = params_of(R, R, "cpu", batch)

    def verify(values: NDArray[Any]) -> bool:
        return values.shape == np.shape(given) and values.reshape(batch, n).tolist() == x

    op = "ring(nested list)" if batch > 1 else "ring(list)"
    yield Case(op, "polygpu", params, partial(R, given), verify, batch * n, pg.Poly.to_int64)
    yield Case(op, "numpy", params, partial(np.array, given), verify, batch * n)


def large_case(sizes: Sizes) -> Case:
    """Return the case of making a value from ints that have many words."""
    rng, R = random.Random(1), ring_of(sizes.large, BITS, sizes.limbs)
    x = [rng.getrandbits(sizes.large_bits) - 2 ** (sizes.large_bits - 1) for _ in range(R.n)]

    def verify(values: NDArray[Any]) -> bool:
        return values.tolist() == [[v % q for v in x] for q in R.moduli]

    return Case(
        "ring(large ints)", "polygpu", params_of(R, R, "cpu"), partial(R, x), verify, R.rows * R.n, residues
    )


def ring_cases(limbs: int) -> Iterator[Case]:
    """Yield the cases of making a ring again from the same arguments, and of its first product.

    For comparison, the product is also measured in a ring that stays in memory.
    """
    n, moduli = 256, pg.ntt_primes(256, bits=50, count=limbs)
    held = pg.Ring(n, moduli)
    params, a = params_of(held, held, "cpu"), held.random(seed=1)
    expected = a.ntt()

    def verify(values: NDArray[Any]) -> bool:
        square = [[int(v) ** 2 % q for v in row] for row, q in zip(expected.data, moduli, strict=True)]
        return (held.from_residues(values).ntt().data == np.array(square, np.uint64)).all().item()

    def anew() -> pg.Poly:
        x = pg.Ring(n, moduli).from_residues(a.data)
        return x * x

    def product() -> pg.Poly:
        x = held.from_residues(a.data)
        return x * x

    def of_ring(values: NDArray[Any]) -> bool:
        return values.tolist() == moduli

    yield Case(
        "Ring again", "polygpu", params, lambda: pg.Ring(n, moduli), of_ring, 1, lambda R: np.array(R.moduli)
    )
    yield Case("product in a ring made again", "polygpu", params, anew, verify, n * limbs, residues)
    yield Case("product in a held ring", "polygpu", params, product, verify, n * limbs, residues)


def inverse_case(n: int) -> Case:
    """Return the case of inverting evaluated values modulo a prime of 256 bits."""
    R = pg.Ring(n, WIDE, kind="cyclic")
    a = R.random(seed=1).ntt()
    x = pg.Ring(n, WIDE).from_residues(a.data).to_bigints()

    def verify(values: NDArray[Any]) -> bool:
        y = pg.Ring(n, WIDE).from_residues(values).to_bigints()
        return bool((x * y % WIDE == 1).all())

    return Case(
        "wide inverse",
        "polygpu",
        params_of(R, R, "cpu") | {"limbs": 1, "to": 1, "bits": 256},
        a.inverse,
        verify,
        n,
        lambda y: y.data,
    )


def sum_cases() -> Iterator[Case]:
    """Yield the cases of sums of products in ML-KEM's ring, whose transform stops one layer early."""
    R = pg.Ring.preset("ml-kem")
    A, s, v, w = (R.random(shape, seed=seed) for seed, shape in enumerate(((3, 3), (3,), (2,), (2,))))

    def is_sum(pairs: Sequence[tuple[pg.Poly, pg.Poly]], values: NDArray[Any]) -> bool:
        """Return whether `values` is the sum of the products of the pairs, by the definition of a product."""
        n, q = R.n, R.modulus
        total = np.zeros(n, dtype=object)
        for a, b in pairs:
            for i, x in enumerate(a.data[0].tolist()):
                row = b.data[0].astype(object) * x
                total[i:] += row[: n - i]
                total[:i] -= row[n - i :]
        return values.tolist() == (total % q).tolist()

    def of_matrix(values: NDArray[Any]) -> bool:
        return all(is_sum([(A[i, j], s[j]) for j in range(3)], values[i]) for i in range(3))

    def coefficients(y: pg.Poly) -> NDArray[Any]:
        return y.intt().data[..., 0, :]

    dots = partial(is_sum, [(v[i], w[i]) for i in range(2)])
    params: Params = params_of(R, R, "cpu")
    operands = v.ntt(), w.ntt()
    yield Case("dot of 2", "polygpu", params, lambda: pg.dot(*operands), dots, R.n, coefficients)
    matrix, vector = A.ntt(), s.ntt()
    yield Case("3 x 3 @ 3", "polygpu", params, lambda: matrix @ vector, of_matrix, 3 * R.n, coefficients)


def cases(sizes: Sizes) -> Iterator[Case]:
    """Yield all cases for one core. Values are made on the current device, which must be the CPU."""
    for n in sizes.lists:
        yield from list_cases(n, 1)
    yield from list_cases(sizes.lists[0], NESTED)
    yield large_case(sizes)
    for limbs in sizes.rings:
        yield from ring_cases(limbs)
    yield inverse_case(sizes.inverted)
    yield from sum_cases()


def measured(sizes: Sizes, packages: Sequence[str]) -> Iterator[Row]:
    """Return the rows that are measured on one core."""
    return in_passes(cases(sizes), sizes.passes, packages)


def of_list(work: str, op: str) -> Line:
    return Line(work, op, "us", None, op, "np.array of it", 2, library="numpy")


LINES = (
    of_list("R(list of ints)", "ring(list)"),
    of_list("R(list of lists of ints)", "ring(nested list)"),
    Line("R(list of ints of 1000 bits)", "ring(large ints)", "us", 500),
    Line("Ring(n, moduli) of arguments that were given before", "Ring again", "us", 5),
    Line(
        "product in a ring that is made again",
        "product in a ring made again",
        "us",
        None,
        "product in a held ring",
        "in a held ring",
    ),
    Line("inverse of an evaluated value", "wide inverse", "ms", 10),
    Line("dot of 2 in ML-KEM's ring, evaluated", "dot of 2", "us", 12),
    Line("3 x 3 @ 3 in ML-KEM's ring, evaluated", "3 x 3 @ 3", "us", 25),
)
KINDS = {"cpu-ways-in": LineKind("The ways in, on one core, medians over passes", "cpu", LINES)}
