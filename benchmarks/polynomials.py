"""Polynomials to multiply and to transform, and the definitions that verify the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg

from .harness import Case

Residues = NDArray[np.uint64]
Evaluations = NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Workload:
    """Two polynomials of a ring, and their transform and product by the definition."""

    n: int
    bits: int

    @cached_property
    def ring(self) -> pg.Ring:
        return pg.Ring(self.n, pg.ntt_primes(self.n, bits=self.bits, count=1))

    @cached_property
    def q(self) -> int:
        return self.ring.modulus

    @cached_property
    def psi(self) -> int:
        """The root of X^N + 1 at whose odd powers the transform evaluates."""
        assert self.ring.roots is not None
        (psi,) = self.ring.roots
        assert pow(psi, self.n, self.q) == self.q - 1
        return psi

    @cached_property
    def a(self) -> Residues:
        return np.random.default_rng(1).integers(self.q, size=self.n, dtype=np.uint64)

    @cached_property
    def b(self) -> Residues:
        return np.random.default_rng(2).integers(self.q, size=self.n, dtype=np.uint64)

    @cached_property
    def a_evaluated(self) -> Evaluations:
        return evaluations(self.a, self.psi, self.q)

    @cached_property
    def product_evaluated(self) -> Evaluations:
        product: Evaluations = self.a_evaluated * evaluations(self.b, self.psi, self.q) % self.q
        return product

    @property
    def params(self) -> dict[str, int | str]:
        return {"n": self.n, "bits": self.bits, "limbs": 1, "batch": 1, "q": self.q}

    def case(
        self,
        op: str,
        library: str,
        run: Callable[[], Any],
        values: Callable[[Any], NDArray[Any]] = np.asarray,
    ) -> Case:
        verify = {
            "product": self.is_product,
            "Poly.mul": self.is_product,
            "nmod_poly.mul": self.is_product,
            "ntt": self.is_transform,
            "intt": self.is_input,
        }[op]
        return Case(op, library, self.params, run, verify, work=self.n, values=values)

    def is_product(self, c: NDArray[Any]) -> bool:
        """Return whether c is the product, by its values at all N roots of X^N + 1, which determine c."""
        return (
            c.shape == (self.n,)
            and int(c.max()) < self.q
            and np.array_equal(evaluations(c, self.psi, self.q), self.product_evaluated)
        )

    def is_transform(self, values: NDArray[Any]) -> bool:
        return np.array_equal(values, self.a_evaluated)

    def is_input(self, values: NDArray[Any]) -> bool:
        return np.array_equal(values, self.a)


def evaluations(a: NDArray[Any], psi: int, q: int) -> Evaluations:
    """Compute a(psi^(2 br(k) + 1)) mod q for k = 0, ..., N - 1 in Python ints.

    br is bit reversal, and psi^N = -1. The function computes remainders of a modulo polynomials X^m - psi^e
    and halves m in each step: X^2m - psi^2e is the product of X^m - psi^e and X^m - psi^(e+N). At the end,
    the remainder modulo X - x is the value at x.
    """
    n = a.size
    remainders, exponents = a.astype(object).reshape(1, n), [n]
    while (m := remainders.shape[1] // 2) > 0:
        x_to_m = np.array([pow(psi, e // 2, q) for e in exponents], dtype=object)
        low, high = remainders[:, :m], remainders[:, m:] * x_to_m[:, None]
        remainders = np.stack((low + high, low - high), axis=1).reshape(-1, m) % q
        exponents = [half for e in exponents for half in (e // 2, e // 2 + n)]
    values: Evaluations = remainders.ravel()
    return values


def bit_reversal(n: int) -> NDArray[np.intp]:
    """Return the bit reversal of k for k = 0, ..., n - 1. n is a power of two."""
    order = np.zeros(1, dtype=np.intp)
    while order.size < n:
        order = np.concatenate((2 * order, 2 * order + 1))
    return order


# python-flint's polynomials


def to_flint(a: Residues, q: int) -> Any:
    from flint import nmod_poly

    return nmod_poly(a.tolist(), q)


def folded(c: Any, n: int) -> Any:
    """Reduce a product of FLINT's polynomials modulo X^n + 1. FLINT has no negacyclic product."""
    return c.truncate(n) - c.right_shift(n)


def from_flint(c: Any, n: int) -> Residues:
    short = np.array([int(x) for x in c.coeffs()], dtype=np.uint64)
    return np.pad(short, (0, n - short.size))  # FLINT drops leading zeros
