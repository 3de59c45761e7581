"""Batches of operands on a GPU, and the verification of results that are computed from them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends import get_backend
from polygpu._backends.cuda.words import groups_of
from polygpu._backends.reference import evaluate, reverse_bits
from polygpu._core.exact.primes import GOLDILOCKS

from .harness import Case

DEVICE = "cuda:0"
COMPARED = 2**17  # largest degree for which rows are compared with the CPU backend
BABYBEAR = 15 * 2**27 + 1  # no 30-bit prime has a negacyclic transform of 2^24 points

Run = Callable[[], pg.Poly]


def turns(runs: Sequence[Run]) -> Run:
    """Return a function that calls runs[0] when first called, then runs[1], and so on in a circle."""
    if len(runs) == 1:
        return runs[0]
    cycle = itertools.cycle(runs)
    return lambda: next(cycle)()


def fill(array: Any, moduli: Sequence[int], seed: int) -> None:
    """Fill an array (batch, limbs, n) with hashes of a counter (splitmix64), reduced modulo each limb.

    The residues are the same on every card.
    """
    import cupy

    kernel = cupy.ElementwiseKernel(
        "uint64 seed, raw uint64 moduli, uint64 n, uint64 limbs",
        "T x",
        """
        unsigned long long z = seed + ((unsigned long long)i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        x = (T)((z ^ (z >> 31)) % moduli[(unsigned long long)i / n % limbs]);
        """,
        "benchmark_fill",
    )
    q = cupy.asarray(np.array(moduli, dtype=np.uint64))
    kernel(np.uint64(seed << 40), q, np.uint64(array.shape[-1]), np.uint64(len(moduli)), array)


@dataclass(frozen=True, eq=False)
class Buffers:
    """Two operands, each a polynomial or a batch, and memory for the transform of one and for the result."""

    a: pg.Poly
    b: pg.Poly
    transform: pg.Poly
    result: pg.Poly


@dataclass(frozen=True)
class Point:
    """An entry of a transform that is verified: entry k of a transformed row is the row's value at x."""

    row: int
    limb: int
    k: int
    x: int
    value: int  # value of operand `a` at x


@dataclass(frozen=True, eq=False)
class Workload:
    """A batch of operands, with the verification of its results.

    The operands are copied so often that all copies together do not fit in a cache.
    """

    ring: pg.Ring
    batch: int
    copies: int = 1

    @cached_property
    def sets(self) -> list[Buffers]:
        import cupy

        ring = self.ring
        shape = (self.batch, ring.rows, ring.n)

        def operand(seed: int) -> pg.Poly:
            data = cupy.empty(shape, ring.dtype)
            fill(data, ring.moduli, seed)
            return ring.from_residues(data)

        def target() -> pg.Poly:
            return ring.from_residues(cupy.empty(shape, ring.dtype))

        return [Buffers(operand(1), operand(2), target(), target()) for _ in range(self.copies)]

    @property
    def first(self) -> Buffers:
        return self.sets[0]

    @cached_property
    def picked(self) -> list[int]:
        """Indices of the polynomials of the batch that are verified one by one."""
        return sorted({0, self.batch // 2, self.batch - 1})

    def rows(self, poly: pg.Poly) -> NDArray[Any]:
        """Return the residues of the picked polynomials, in host memory."""
        return np.stack([get_backend(DEVICE).to_host(poly.data[i]) for i in self.picked])

    @cached_property
    def host_a(self) -> pg.Poly:
        return self.ring.from_residues(self.rows(self.first.a))

    @cached_property
    def host_b(self) -> pg.Poly:
        return self.ring.from_residues(self.rows(self.first.b))

    @cached_property
    def points(self) -> list[Point]:
        """Random entries of transforms that are verified, fewer if rows are longer."""
        n, rng = self.ring.n, random.Random(self.ring.n)
        rows = range(len(self.picked)) if n <= 2**20 else [len(self.picked) - 1]
        limbs = rng.sample(range(self.ring.rows), min(self.ring.rows, 3))
        found = []
        assert self.ring.roots is not None
        for row, limb in itertools.product(rows, limbs):
            q, root = self.ring.moduli[limb], self.ring.roots[limb]
            turns = int(self.ring.kind == "negacyclic")
            assert pow(root, n, q) == (q - 1 if turns else 1)
            for _ in range(3 if n <= 2**14 else 1):
                k = rng.randrange(n)
                x = pow(root, (reverse_bits(k, n) << turns) + turns, q)
                found.append(Point(row, limb, k, x, evaluate(self.host_a.data[row, limb].tolist(), x, q)))
        return found

    def case(
        self,
        op: str,
        order: str,
        runs: Sequence[Run],
        verify: Callable[[NDArray[Any]], bool],
        launch: str = "plain",
        calls: int = 1,
        load_s: float = 0,
    ) -> Case:
        ring = self.ring
        params: dict[str, int | str] = {
            "n": ring.n,
            "word": self.word,
            "bits": ring.moduli[0].bit_length(),
            "word_bytes": ring.dtype.itemsize,
            "limbs": ring.rows,
            "batch": self.batch,
            "order": order,
            "launch": launch,
            "buffers": self.copies,
            "q": ring.moduli[0],
        }
        if load_s:
            params["load_s"] = str(load_s)
        work = self.batch * ring.rows * ring.n
        return Case(op, "polygpu", params, turns(runs), verify, work, self.rows, calls, 1e9 * load_s)

    @property
    def word(self) -> str:
        """Name of the arithmetic: for 32-bit integers, doubles, 64-bit integers or Goldilocks."""
        if self.ring.moduli == (GOLDILOCKS,):
            return f"Goldilocks, X^N {'+' if self.ring.kind == 'negacyclic' else '-'} 1"
        if self.ring.dtype == np.uint32:
            return "u32 BabyBear" if self.ring.moduli == (BABYBEAR,) else "u32"
        groups = groups_of(self.ring._plan.basis, get_backend(DEVICE).card)  # type: ignore[attr-defined]
        return "f64" if {group.word.name for group in groups} == {"Float64"} else "u64"

    # The following methods verify a result. `values` are the result's `rows`. Before a run, results are
    # filled with numbers that are not residues, so that entries which are not written are found.

    def poison(self, *polys: pg.Poly) -> None:
        for poly in polys:
            poly.data.fill(poly.data.dtype.type(np.iinfo(poly.data.dtype).max))

    def is_canonical(self, values: NDArray[Any]) -> bool:
        last = np.array([q - 1 for q in self.ring.moduli], dtype=np.uint64)
        return bool((values <= last[:, None]).all())

    def is_forward(self, values: NDArray[Any]) -> bool:
        return (
            self.is_canonical(values)
            and (self.ring.n > COMPARED or np.array_equal(values, self.host_a.ntt().data))
            and all(int(values[p.row, p.limb, p.k]) == p.value for p in self.points)
            and self.first.transform.intt() == self.first.a
        )

    def is_inverse(self, values: NDArray[Any]) -> bool:
        """Return whether a result is the operand whose transform is_forward() verified."""
        return np.array_equal(values, self.host_a.data) and self.first.result == self.first.a

    def is_product(self, values: NDArray[Any]) -> bool:
        def holds(p: Point) -> bool:
            q = self.ring.moduli[p.limb]
            a_times_b = p.value * evaluate(self.host_b.data[p.row, p.limb].tolist(), p.x, q) % q
            return evaluate(values[p.row, p.limb].tolist(), p.x, q) == a_times_b

        return (
            self.is_canonical(values)
            and (self.ring.n > COMPARED or np.array_equal(values, (self.host_a * self.host_b).data))
            and all(map(holds, self.points))
            and self.first.result == (self.first.a.ntt() * self.first.b.ntt()).intt()
        )
