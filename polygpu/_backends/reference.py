"""The device "reference", against which tests compare: every operation by its definition, in Python integers.

This module imports nothing of polygpu but base.py, so a mistake in another module cannot repeat here. It
reads only the parameters of plans (degree, kind, leaf_size, roots, basis.moduli, rows and factors), never
their twiddles.
"""

from __future__ import annotations

import cmath
import math
import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from .base import HostBackend

Array = np.ndarray[Any, np.dtype[Any]]


def to_ints(basis: Any, x: Array) -> list[list[list[int]]]:
    """Return residues (*batch, rows, n) as nested lists, [item][modulus][coefficient]."""
    flat = x.reshape(-1, *x.shape[-2:]).tolist()
    if basis.words == 1:
        return flat  # type: ignore[no-any-return]
    return [
        [[sum(w << 64 * i for i, w in enumerate(column)) for column in zip(*item, strict=True)]]
        for item in flat
    ]


def write(basis: Any, values: list[list[list[int]]], out: Array) -> None:
    """Store nested lists, [item][modulus][coefficient], into out, (*batch, rows, n)."""
    if basis.words > 1:
        mask = (1 << 64) - 1
        values = [[[v >> 64 * i & mask for v in item[0]] for i in range(basis.words)] for item in values]
    out[...] = np.array(values, dtype=out.dtype).reshape(out.shape)


def part_of(basis: Any, x: Array, first: int) -> Array:
    """Return the `basis.rows` rows of an array that begin with row `first`.

    If the array has only `basis.rows` rows, return all of them.
    """
    return x if x.shape[-2] == basis.rows else x[..., first : first + basis.rows, :]


def power_of_x(kind: str, n: int) -> dict[int, int]:
    """Return the polynomial that equals X^n in a ring of this kind, as {exponent: coefficient}."""
    return {"negacyclic": {0: -1}, "cyclic": {0: 1}, "trinomial": {n // 2: 1, 0: -1}}[kind]


def remainder(c: list[int], n: int, power: dict[int, int]) -> list[int]:
    """Return the remainder of c modulo X^n - power, by long division.

    power: a polynomial of degree below n, as {exponent: coefficient}.
    """
    c = list(c)
    for k in reversed(range(n, len(c))):
        for exponent, factor in power.items():
            c[k - n + exponent] += factor * c[k]
    return c[:n] + [0] * (n - len(c))


def product(a: list[int], b: list[int], q: int, power: dict[int, int]) -> list[int]:
    """Return a * b modulo q and X^n - power, by the schoolbook method.

    power: a polynomial of degree below n, as {exponent: coefficient}.
    """
    c = [0] * (2 * len(a))
    for i, x in enumerate(a):
        if x:
            for j, y in enumerate(b):
                c[i + j] += x * y
    return [x % q for x in remainder(c, len(a), power)]


def big_product(a: list[int], b: list[int], q: int, kind: str = "negacyclic") -> list[int]:
    """Return a * b in a ring of this kind, by one product of big integers (Kronecker substitution)."""
    n = len(a)
    size = (2 * q.bit_length() + n.bit_length()) // 8 + 1  # bytes that hold a coefficient of the product
    packed = (b"".join(v.to_bytes(size, "little") for v in x) for x in (a, b))
    x, y = (int.from_bytes(p, "little") for p in packed)
    flat = (x * y).to_bytes(2 * n * size, "little")
    c = [int.from_bytes(flat[i : i + size], "little") for i in range(0, 2 * n * size, size)]
    return [v % q for v in remainder(c, n, power_of_x(kind, n))]


def reverse_bits(k: int, points: int) -> int:
    """Return br(k), the reversal of the log2(points) bits of k."""
    bits = points.bit_length() - 1
    return int(f"{k:0{bits}b}"[::-1], 2) if bits else 0


def power_of(quotient: Any) -> dict[int, int]:
    """Return the polynomial that equals X^n in a ring with this quotient, as {exponent: coefficient}."""
    return power_of_x(quotient.kind, quotient.degree)


def leaf_exponents(kind: str, points: int) -> list[int]:
    """Return e_k for each leaf k = 0 ... points - 1. The constant of leaf k is root^(e_k).

    br(k) is the reversal of the log2(points) bits of k. In a cyclic ring, e_k is br(k). In a negacyclic ring,
    e_k is 2 * br(k) + 1. For a trinomial, br reverses log2(points) - 1 bits; e_k is 1 + 6 * br(k) if k <
    points/2, else -1 + 6 * br(k - points/2).
    """
    if kind == "trinomial":
        half = [6 * reverse_bits(k, points // 2) for k in range(points // 2)]
        return [e + 1 for e in half] + [(e - 1) % (3 * points) for e in half]
    reversed_bits = [reverse_bits(k, points) for k in range(points)]
    return [2 * e + 1 for e in reversed_bits] if kind == "negacyclic" else reversed_bits


def substituted(row: list[int], multiplier: int, power: dict[int, int]) -> list[int]:
    """Return a(X^g) for the polynomial a with the coefficients `row`, in a ring where X^n is 1 or -1.

    multiplier: the inverse of g modulo the order of X.
    """
    n, (sign,) = len(row), power.values()
    moved = []
    for j in range(n):
        turns, k = divmod(j * multiplier, n)
        moved.append(row[k] * sign**turns)
    return moved


def leaf_constants(plan: Any, limb: int) -> list[int]:
    """Return the constants c_k of the leaves X^leaf_size - c_k, in the order of the leaves."""
    q, root, points = plan.basis.moduli[limb], plan.tables[limb].root, plan.degree // plan.leaf_size
    return [pow(root, e, q) for e in leaf_exponents(plan.quotient.kind, points)]


def evaluate(coefficients: Sequence[int], x: int, q: int) -> int:
    """Return the value of a polynomial at the point x, modulo q, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % q
    return value


def inverse(a: list[int], q: int, power: dict[int, int]) -> list[int] | int:
    """Return the inverse of a modulo X^n - power and the prime q, by the extended Euclidean algorithm.

    If a has no inverse, return the degree of the greatest common divisor of a and X^n - power.
    """

    def trimmed(x: list[int]) -> list[int]:
        while x and not x[-1]:
            x = x[:-1]
        return x

    n = len(a)
    # Invariant: x = s * (X^n - power) + u * a for some polynomial s, which is not computed. In the same way,
    # y is v * a plus a multiple of X^n - power.
    x, y = trimmed([*(-power.get(k, 0) % q for k in range(n)), 1]), trimmed(list(a))
    u, v = [0] * (n + 1), [1, *[0] * n]
    while len(y) > 1:
        lead = pow(y[-1], -1, q)
        while len(x) >= len(y):
            factor, shift = x[-1] * lead % q, len(x) - len(y)
            x = trimmed([(c - factor * (y[i - shift] if i >= shift else 0)) % q for i, c in enumerate(x)])
            u = [(c - factor * (v[i - shift] if i >= shift else 0)) % q for i, c in enumerate(u)]
        x, y, u, v = y, x, v, u
    return [c * pow(y[0], -1, q) % q for c in v[:n]] if y else len(x) - 1


def exact_sum(terms: list[complex]) -> complex:
    """Return the sum of complex numbers; its real and its imaginary part are each rounded once.

    If a term is not finite or the sum overflows, return the ordinary sum of floats.
    """
    try:
        return complex(math.fsum(t.real for t in terms), math.fsum(t.imag for t in terms))
    except (OverflowError, ValueError):
        return sum(terms)


def value_of(conversion: Any, residues: Sequence[int]) -> int:
    """Return the integer w that Conversion (_core/plans/rns.py) defines for a coefficient's residues."""
    moduli = conversion.source.moduli
    whole, nearest = math.prod(moduli), conversion.rounding == "nearest"
    value = 0
    for x, q in zip(residues, moduli, strict=True):
        y = x * pow(whole // q, -1, q) % q
        if not conversion.exact and nearest and 2 * y >= q:
            y -= q
        value += y * (whole // q)
    if conversion.exact:
        value %= whole
        if nearest and 2 * value >= whole:
            value -= whole
    if conversion.divisors:
        divisor = math.prod(moduli[i] for i in conversion.divisors)
        value = (2 * conversion.factor * value + divisor) // (2 * divisor)
    return value


def chacha20(key: bytes, limb: int, first: int, count: int) -> bytes:
    """Return blocks `first` to `first` + `count` - 1 of the ChaCha20 stream of a key and a limb.

    A block is a column of an array. So NumPy computes all blocks at once.
    """
    counters = [first + i for i in range(count)]
    state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), 0, 0, limb, 0]
    start = np.repeat(np.array(state, np.uint32)[:, None], count, axis=1)
    start[12] = [c % 2**32 for c in counters]
    start[13] = [c >> 32 for c in counters]
    x = start.copy()
    for turn in range(20):
        for i in range(4):
            shift = turn % 2  # 0: mix the columns; 1: mix the diagonals
            a, b, c, d = i, 4 + (i + shift) % 4, 8 + (i + 2 * shift) % 4, 12 + (i + 3 * shift) % 4
            for u, v, w, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[u] += x[v]
                mixed = x[w] ^ x[u]
                x[w] = mixed << bits | mixed >> (32 - bits)
    return (x + start).T.astype("<u4").tobytes()


class ReferenceBackend(HostBackend):
    """The primitives by their definitions.

    For some operations, base.py uses tables that other modules make, or sums of rounded numbers. This class
    overrides them too.
    """

    name = "reference"

    def pointwise(self, basis: Any, op: str, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """Compute entry by entry."""
        operands = []
        for x in (a, b, c):
            if x is None:
                operands.append(to_ints(basis, np.zeros_like(out)))
            else:
                operands.append(to_ints(basis, np.broadcast_to(x, out.shape)))
        result: Callable[[int, int, int], int] = {
            "add": lambda x, y, z: x + y,
            "sub": lambda x, y, z: x - y,
            "neg": lambda x, y, z: -x,
            "mul": lambda x, y, z: x * y,
            "mul_add": lambda x, y, z: x * y + z,
        }[op]
        values = [
            [
                [result(x, y, z) % q for x, y, z in zip(*rows, strict=True)]
                for q, *rows in zip(basis.moduli, *items, strict=True)
            ]
            for items in zip(*operands, strict=True)
        ]
        write(basis, values, out)

    def automorphism(
        self, basis: Any, quotient: Any, x: Array, multipliers: Array, evaluated: bool, out: Array
    ) -> None:
        """Substitute X^g for X in coefficients (X^n is 1 or -1), or permute evaluations.

        The value of a(X^g) at root^e is the value of a at another point, root^(e * g). The multiplier is g
        for evaluations, and the inverse of g for coefficients.
        """
        n, numbers = out.shape[-1], np.broadcast_to(multipliers, x.shape[:-2]).ravel().tolist()
        exponents = leaf_exponents(quotient.kind, n) if evaluated else []
        values = []
        for item, multiplier in zip(to_ints(basis, x), numbers, strict=True):
            if evaluated:
                index = [exponents.index(e * multiplier % quotient.order) for e in exponents]
                rows = [[row[k] for k in index] for row in item]
            else:
                rows = [substituted(row, multiplier, power_of(quotient)) for row in item]
            values.append([[v % q for v in row] for q, row in zip(basis.moduli, rows, strict=True)])
        write(basis, values, out)

    def mul_monomial(self, basis: Any, quotient: Any, x: Array, exponents: Array, out: Array) -> None:
        """Multiply by X^e and reduce, by long division."""
        n, numbers = out.shape[-1], np.broadcast_to(exponents, x.shape[:-2]).ravel().tolist()
        values = [
            [
                [v % q for v in remainder([0] * e + row, n, power_of(quotient))]
                for q, row in zip(basis.moduli, item, strict=True)
            ]
            for item, e in zip(to_ints(basis, x), numbers, strict=True)
        ]
        write(basis, values, out)

    def reduce_integers(self, basis: Any, x: Array, out: Array) -> None:
        """Reduce with Python's operator %."""
        n = out.shape[-1]
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1]).tolist()
        write(
            basis,
            [[[v % q for v in row] + [0] * (n - len(row)) for q in basis.moduli] for row in rows],
            out,
        )

    def to_words(self, basis: Any, x: Array, centered: bool, out: Array) -> None:
        """Write the sum over i of residue_i * Q/q_i * ((Q/q_i)^-1 mod q_i), mod Q, in two's complement."""
        modulus, words = prod(basis.moduli), out.shape[-1]
        factors = [modulus // q * pow(modulus // q, -1, q) for q in basis.moduli]
        values = []
        for item in to_ints(basis, x):
            for column in zip(*item, strict=True):
                v = sum(f * r for f, r in zip(factors, column, strict=True)) % modulus
                if centered and 2 * v >= modulus:
                    v -= modulus
                values.append([v >> 64 * i & (1 << 64) - 1 for i in range(words)])
        out[...] = np.array(values, dtype=np.uint64).reshape(out.shape)

    def draw(self, key: bytes, limb: int, first: int, count: int) -> Array:
        """Compute whole blocks, and return the `count` bytes from byte `first` of the stream."""
        block, skip = divmod(first, 64)
        text = chacha20(key, limb, block, -(-(skip + count) // 64))
        return np.frombuffer(text, np.uint8)[skip : skip + count]

    def ntt(self, plan: Any, x: Array, out: Array, first: int = 0) -> None:
        """Write the remainder of x modulo each leaf X^leaf_size - c.

        Coefficient r of the remainder is the sum over i of x[i * leaf_size + r] * c^i.
        """
        x, out = part_of(plan.basis, x, first), part_of(plan.basis, out, first)
        values = []
        for item in to_ints(plan.basis, np.broadcast_to(x, out.shape)):
            rows = []
            for limb, row in enumerate(item):
                q, leaf_size = plan.basis.moduli[limb], plan.leaf_size
                residues = []
                for c in leaf_constants(plan, limb):
                    for r in range(leaf_size):
                        residues.append(evaluate(row[r::leaf_size], c, q))
                rows.append(residues)
            values.append(rows)
        write(plan.basis, values, out)

    def intt(self, plan: Any, x: Array, out: Array, first: int = 0) -> None:
        """Interpolate: sum over the leaves of value * P(Y) / (Y - c) / P'(c), with Y = X^leaf_size.

        P(Y) is the ring's quotient polynomial, and c the constant of a leaf.
        """
        x, out = part_of(plan.basis, x, first), part_of(plan.basis, out, first)
        leaf_size, points = plan.leaf_size, plan.degree // plan.leaf_size
        power = power_of_x(plan.quotient.kind, points)
        polynomial = [-power.get(k, 0) for k in range(points)] + [1]
        values = []
        for item in to_ints(plan.basis, np.broadcast_to(x, out.shape)):
            rows = []
            for limb, row in enumerate(item):
                q, coefficients = plan.basis.moduli[limb], [0] * plan.degree
                for k, c in enumerate(leaf_constants(plan, limb)):
                    others = [0] * points  # coefficients of P / (Y - c), by Horner's rule
                    carry = 0
                    for i in reversed(range(points)):
                        others[i] = carry = (carry * c + polynomial[i + 1]) % q
                    scale = pow(evaluate(others, c, q), -1, q)  # P / (Y - c) has the value P'(c) at c
                    for r in range(leaf_size):
                        factor = row[k * leaf_size + r] * scale
                        for i in range(points):
                            coefficients[i * leaf_size + r] += factor * others[i]
                rows.append([v % q for v in coefficients])
            values.append(rows)
        write(plan.basis, values, out)

    def convert(self, conversion: Any, x: Array | None, own: Array | None, out: Array) -> None:
        """Compute the integer that the source's residues represent, then each row of the target from it."""
        source, target, n = conversion.source, conversion.target, out.shape[-1]
        batch, none = out.shape[:-2], np.zeros((0, n), out.dtype)
        items = out.reshape(prod(batch), target.total, n)
        left, right = (
            np.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(prod(batch), *a.shape[-2:]).tolist()
            for a in (none if x is None else x, none if own is None else own)
        )
        for item, rows, others in zip(items, left, right, strict=True):
            columns = zip(*(rows[i] for i in source.at), strict=True) if source.at else [()] * n
            values = [value_of(conversion, column) for column in columns]
            for j, (s, place) in enumerate(zip(target.moduli, target.at, strict=True)):
                row = [conversion.multipliers[j] * v for v in values]
                if conversion.accumulate:
                    row = [v + w for v, w in zip(row, item[place].tolist(), strict=True)]
                item[place] = np.array([v % s for v in row], out.dtype)
            if conversion.transform is not None:
                item[list(target.at)] = self._evaluated(conversion.transform, item[list(target.at)])
            if conversion.own is not None:
                for place, s, at, factor in zip(
                    target.at, target.moduli, conversion.own.at, conversion.own_factors, strict=True
                ):
                    row = [v + factor * w for v, w in zip(item[place].tolist(), others[at], strict=True)]
                    item[place] = np.array([v % s for v in row], out.dtype)

    def decompose(self, gadget: Any, x: Array, out: Array) -> None:
        """Compute the digits of the integer y that _core/plans/gadget.py defines for each coefficient.

        The least significant digit is computed first and stored last.
        """
        q, bits, levels = gadget.basis.moduli[0], gadget.bits, gadget.levels
        base, n = 1 << bits, x.shape[-1]
        items = prod(x.shape[:-1])
        rows = zip(x.reshape(items, n).tolist(), out.reshape(items, levels, n), strict=True)
        for row, result in rows:
            rest = [(2 * v * base**levels + q) // (2 * q) % base**levels for v in row]
            for i in reversed(range(levels)):
                digits = [(v + base // 2) % base - base // 2 for v in rest]
                rest = [(v - d) // base for v, d in zip(rest, digits, strict=True)]
                result[i] = np.array([d % q for d in digits], out.dtype)

    def _evaluated(self, plan: Any, x: Array) -> Array:
        out = np.empty_like(x)
        self.ntt(plan, x, out)
        return out

    def multiply(self, plan: Any, a: Array, b: Array, out: Array) -> None:
        """Multiply by the schoolbook method, then divide with remainder."""
        power = power_of(plan.quotient)
        x, y = (to_ints(plan.basis, np.broadcast_to(v, out.shape)) for v in (a, b))
        values = [
            [product(u, v, q, power) for u, v, q in zip(left, right, plan.basis.moduli, strict=True)]
            for left, right in zip(x, y, strict=True)
        ]
        write(plan.basis, values, out)

    def multiply_eval(self, plan: Any, a: Array, b: Array, out: Array) -> None:
        """Multiply by the schoolbook method modulo each leaf."""
        leaf_size = plan.leaf_size
        x, y = (to_ints(plan.basis, np.broadcast_to(v, out.shape)) for v in (a, b))
        values = []
        for left, right in zip(x, y, strict=True):
            rows = []
            for limb, (u, v) in enumerate(zip(left, right, strict=True)):
                q = plan.basis.moduli[limb]
                row: list[int] = []
                for k, c in enumerate(leaf_constants(plan, limb)):
                    at = slice(k * leaf_size, (k + 1) * leaf_size)
                    row += product(u[at], v[at], q, {0: c})
                rows.append(row)
            values.append(rows)
        write(plan.basis, values, out)

    def matmul(self, basis: Any, a: Array, b: Array, out: Array) -> None:
        """Multiply rows by columns, in Python integers."""
        q = basis.moduli[0]
        shapes = ((out.shape[0], *x.shape[1:]) for x in (a, b))
        left, right = (np.broadcast_to(x, shape).tolist() for x, shape in zip((a, b), shapes, strict=True))
        for s, i, j in np.ndindex(out.shape):
            out[s, i, j] = sum(x * row[j] for x, row in zip(left[s][i], right[s], strict=True)) % q

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """Write entry k: the sum over j of x_j * w^(j*k), with w = exp(-2 pi i / n).

        n is the length of a row. For the inverse, w is exp(2 pi i / n), and the sum is divided by n. Each
        product is rounded, and each sum is rounded once.
        """
        n, sign = x.shape[-1], 1 if inverse else -1
        roots = [cmath.exp(sign * 2j * math.pi * k / n) for k in range(n)]
        for row, result in zip(x.tolist(), out, strict=True):
            for k in range(n):
                value = exact_sum([v * roots[j * k % n] for j, v in enumerate(row)])
                result[k] = value / n if inverse else value

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """Write entry k: the sum over i of a_i * b_(k - i), with indices modulo the length."""
        n = a.shape[-1]
        for left, right, result in zip(a.tolist(), np.broadcast_to(b, a.shape).tolist(), out, strict=True):
            for k in range(n):
                result[k] = exact_sum([v * right[(k - i) % n] for i, v in enumerate(left)])

    def invert(self, basis: Any, x: Array, quotient: Any, out: Array) -> Array:
        """Invert by the extended Euclidean algorithm, on lists of Python integers."""
        q, n, values, degrees = basis.moduli[0], out.shape[-1], [], []
        for item in to_ints(basis, x):
            found = inverse(item[0], q, power_of(quotient))
            degrees.append(found if isinstance(found, int) else 0)
            values.append([[0] * n if isinstance(found, int) else found])
        write(basis, values, out)
        return np.array(degrees, np.int64)

    def find_wrong_product(
        self, basis: Any, a: Array, b: Array, c: Array, points: Array, quotient: Any
    ) -> int:
        """Compare c with a * b at each point r, in a ring where X^n is the constant `sign`.

        Let a_j be X^j * a, reduced modulo X^n - sign. Then (a * b)(r) is the sum over j of b_j * a_j(r).
        """
        at, row, (sign,) = to_ints(basis, points)[0], 0, power_of(quotient).values()
        operands = (to_ints(basis, np.broadcast_to(x, c.shape)) for x in (a, b, c))
        for left, right, claimed in zip(*operands, strict=True):
            for u, v, w, q, some in zip(left, right, claimed, basis.moduli, at, strict=True):
                for r in some:
                    value, total, wrap = evaluate(u, r, q), 0, pow(r, len(u), q) - sign
                    for j, y in enumerate(v):
                        total += y * value
                        value = (r * value - u[len(u) - 1 - j] * wrap) % q
                    if total % q != evaluate(w, r, q):
                        return row
                row += 1
        return -1
