"""A third backend, as small as possible: only the primitives, on NumPy arrays of Python integers.

The tests that run on all devices also run on this backend. So they show which primitives a backend must have,
and that the operations which polygpu/_backends/base.py composes of primitives are right.
"""

from __future__ import annotations

from math import prod
from typing import Any

import flint
import numpy as np

from polygpu._backends.base import Backend


def columns(moduli: Any) -> Any:
    """Return the moduli as a column of Python ints, which broadcasts over the entries of each row."""
    return np.array(moduli, object)[:, None]


def leaf_powers(plan: Any, limb: int, inverse: bool = False) -> Any:
    """Return the matrix with the entries c_k^i modulo a limb's prime, or its inverse.

    c_k is the constant of leaf X^leaf_size - c_k of the transform. The matrix is the transform's definition.
    """
    q, table = plan.basis.moduli[limb], plan.tables[limb]
    constants = [int(c) for c in table.quotient.leaf_constants(table.forward[0], q)]
    powers = flint.nmod_mat([[pow(c, i, q) for i in range(len(constants))] for c in constants], q)
    return np.array([[int(v) for v in row] for row in (powers.inv() if inverse else powers).tolist()], object)


class ToyBackend(Backend):
    """A backend with every primitive, and nothing else."""

    name, xp = "toy", np

    def to_host(self, x: Any) -> Any:
        return x

    def from_host(self, x: Any) -> Any:
        return x

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype)

    def copy(self, x: Any, out: Any) -> None:
        out[...] = x

    def pointwise(self, basis: Any, op: str, a: Any, b: Any, c: Any, out: Any) -> None:
        x, y, z = (None if v is None else v.astype(object) for v in (a, b, c))
        value = {
            "add": lambda: x + y,
            "sub": lambda: x - y,
            "neg": lambda: -x,
            "mul": lambda: x * y,
            "mul_add": lambda: x * y + z,
        }[op]()
        out[...] = value % columns(basis.moduli)

    def reduce_integers(self, basis: Any, x: Any, out: Any) -> None:
        out[..., x.shape[-1] :] = 0
        out[..., : x.shape[-1]] = x.astype(object)[..., None, :] % columns(basis.moduli)

    def to_words(self, basis: Any, x: Any, centered: bool, out: Any) -> None:
        modulus = prod(basis.moduli)
        factors = [modulus // q * pow(modulus // q, -1, q) for q in basis.moduli]
        value = (x.astype(object) * columns(factors)).sum(-2) % modulus
        if centered:
            value = np.where(2 * value >= modulus, value - modulus, value)
        for i in range(out.shape[-1]):
            out[..., i] = value >> 64 * i & (1 << 64) - 1

    def ntt(self, plan: Any, x: Any, out: Any, first: int = 0) -> None:
        for limb, q in enumerate(plan.basis.moduli):
            row = limb if out.shape[-2] == plan.basis.rows else first + limb
            a = x[..., row, :].astype(object).reshape(*x.shape[:-2], plan.points, plan.leaf_size)
            out[..., row, :] = (leaf_powers(plan, limb) @ a % q).reshape(*x.shape[:-2], plan.degree)

    def intt(self, plan: Any, x: Any, out: Any, first: int = 0) -> None:
        for limb, q in enumerate(plan.basis.moduli):
            row = limb if out.shape[-2] == plan.basis.rows else first + limb
            a = x[..., row, :].astype(object).reshape(*x.shape[:-2], plan.points, plan.leaf_size)
            values = leaf_powers(plan, limb, inverse=True) @ a
            out[..., row, :] = (values % q).reshape(*x.shape[:-2], plan.degree)

    def multiply(self, plan: Any, a: Any, b: Any, out: Any) -> None:
        n, x, y = plan.degree, a.astype(object), b.astype(object)
        whole = np.zeros((*out.shape[:-1], 2 * n), object)
        for i in range(n):
            whole[..., i : i + n] += x[..., i, None] * y
        for k in reversed(range(n, 2 * n)):
            for exponent, sign in plan.quotient.terms[1:]:
                whole[..., k - n + exponent] -= sign * whole[..., k]
        out[...] = whole[..., :n] % columns(plan.basis.moduli)

    def convert(self, conversion: Any, x: Any, own: Any, out: Any) -> None:
        source, target = conversion.source, conversion.target
        modulus, value = prod(source.moduli), np.zeros((*out.shape[:-2], out.shape[-1]), object)
        for q, at in zip(source.moduli, source.at, strict=True):
            y = x[..., at, :].astype(object) * pow(modulus // q, -1, q) % q
            if not conversion.exact and conversion.rounding == "nearest":
                y = np.where(2 * y >= q, y - q, y)
            value = value + y * (modulus // q)
        if conversion.exact:
            value = value % modulus
            if conversion.rounding == "nearest":
                value = np.where(2 * value >= modulus, value - modulus, value)
        if conversion.divisors:
            divisor = prod(source.moduli[i] for i in conversion.divisors)
            value = (2 * conversion.factor * value + divisor) // (2 * divisor)
        for j, (s, at) in enumerate(zip(target.moduli, target.at, strict=True)):
            before = out[..., at, :].astype(object) if conversion.accumulate else 0
            out[..., at, :] = (conversion.multipliers[j] * value + before) % s
        if conversion.transform is not None:
            rows = np.ascontiguousarray(out[..., list(target.at), :])
            self.ntt(conversion.transform, rows, rows)
            out[..., list(target.at), :] = rows
        if conversion.own is not None:
            terms = zip(target.at, target.moduli, conversion.own.at, conversion.own_factors, strict=True)
            for at, s, row, factor in terms:
                out[..., at, :] = (
                    out[..., at, :].astype(object) + factor * own[..., row, :].astype(object)
                ) % s

    def decompose(self, gadget: Any, x: Any, out: Any) -> None:
        (q,), base = gadget.basis.moduli, 1 << gadget.bits
        rest = (2 * x.astype(object) * base**gadget.levels + q) // (2 * q)
        for i in reversed(range(gadget.levels)):
            digit = (rest + base // 2) % base - base // 2
            rest = (rest - digit) // base
            out[..., i, :, :] = digit % q

    def matmul(self, basis: Any, a: Any, b: Any, out: Any) -> None:
        out[...] = a.astype(object) @ b.astype(object) % basis.moduli[0]
