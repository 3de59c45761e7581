"""The definitions, in Python integers: the oracle of the tests, and the device "reference".

Nothing of polygpu is imported: one mistake cannot hide in both. Plans are read for their parameters
only (degree, kind, leaf_size, roots, basis.moduli, rows and factors, permutations), never for their
twiddles.
"""

from __future__ import annotations

import cmath
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def to_ints(basis: Any, x: Array) -> list[list[list[int]]]:
    """Residues (*batch, rows, n) as [item][modulus][coefficient]."""
    flat = x.reshape(-1, *x.shape[-2:]).tolist()
    if basis.words == 1:
        return flat  # type: ignore[no-any-return]
    return [
        [[sum(w << 64 * i for i, w in enumerate(column)) for column in zip(*item, strict=True)]]
        for item in flat
    ]


def write(basis: Any, values: list[list[list[int]]], out: Array) -> None:
    """Store [item][modulus][coefficient] into out (*batch, rows, n)."""
    if basis.words > 1:
        mask = (1 << 64) - 1
        values = [[[v >> 64 * i & mask for v in item[0]] for i in range(basis.words)] for item in values]
    out[...] = np.array(values, dtype=out.dtype).reshape(out.shape)


def part_of(basis: Any, x: Array, first: int) -> Array:
    """The rows of a basis, from `first` on, in an array that may have more."""
    return x if x.shape[-2] == basis.rows else x[..., first : first + basis.rows, :]


def product(a: list[int], b: list[int], q: int, constant: int) -> list[int]:
    """a * b mod X^n - constant, mod q: each pair of coefficients once."""
    n = len(a)
    c = [0] * n
    for i, x in enumerate(a):
        if x:
            for j, y in enumerate(b):
                if i + j < n:
                    c[i + j] += x * y
                else:
                    c[i + j - n] += x * y * constant
    return [x % q for x in c]


_SIGNS = {"negacyclic": -1, "cyclic": 1}  # what X^n is in a ring of each kind


def big_product(a: list[int], b: list[int], q: int, kind: str = "negacyclic") -> list[int]:
    """Return a product in a ring of this kind, by one product of big integers (Kronecker substitution)."""
    n, sign = len(a), _SIGNS[kind]
    size = (2 * q.bit_length() + n.bit_length()) // 8 + 1  # bytes that hold a coefficient of the product
    packed = (b"".join(v.to_bytes(size, "little") for v in x) for x in (a, b))
    x, y = (int.from_bytes(p, "little") for p in packed)
    flat = (x * y).to_bytes(2 * n * size, "little")
    c = [int.from_bytes(flat[i : i + size], "little") for i in range(0, 2 * n * size, size)]
    return [(c[j] + sign * c[j + n]) % q for j in range(n)]


def reverse_bits(k: int, points: int) -> int:
    """br(k) on log2(points) bits."""
    bits = points.bit_length() - 1
    return int(f"{k:0{bits}b}"[::-1], 2) if bits else 0


def sign_of(quotient: Any) -> int:
    """What X^n is in a ring: -1 or 1."""
    return _SIGNS[quotient.kind]


def mul_monomial_row(row: list[int], e: int, sign: int, q: int) -> list[int]:
    """X^e times a row, with X^n = sign."""
    n, placed = len(row), [0] * len(row)
    for i, v in enumerate(row):
        placed[(i + e) % n] = v * sign ** ((i + e) // n) % q
    return placed


def moved_index(n: int, multiplier: int, sign: int, evaluated: bool) -> list[tuple[int, int]]:
    """Which entry each entry of a row after an automorphism is, and its sign, with X^n = sign."""
    index = []
    for j in range(n):
        if not evaluated:
            turns, k = divmod(j * multiplier, n)
            index.append((k, sign**turns))
        elif sign == 1:
            index.append((reverse_bits(reverse_bits(j, n) * multiplier % n, n), 1))
        else:
            exponent = (2 * reverse_bits(j, n) + 1) * multiplier % (2 * n)
            index.append((reverse_bits(exponent // 2, n), 1))
    return index


def leaf_constants(plan: Any, limb: int) -> list[int]:
    """c_k of the leaves X^leaf_size - c_k, in their order: psi^(2 br(k) + 1) or omega^br(k)."""
    q, root, points = plan.basis.moduli[limb], plan.tables[limb].root, plan.degree // plan.leaf_size
    exponents = (reverse_bits(k, points) for k in range(points))
    if plan.quotient.kind == "negacyclic":
        exponents = (2 * e + 1 for e in exponents)
    return [pow(root, e, q) for e in exponents]


def evaluate(coefficients: Sequence[int], x: int, q: int) -> int:
    """The polynomial's value at x mod q, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % q
    return value


def inverse(a: list[int], q: int, constant: int) -> list[int] | int:
    """1 / a mod X^n - constant, q prime, by the extended Euclidean algorithm.

    Where there is no inverse, the degree of the common factor.
    """

    def trimmed(x: list[int]) -> list[int]:
        while x and not x[-1]:
            x = x[:-1]
        return x

    n = len(a)
    # Invariant: x = s (X^n - constant) + u a with some s that is not kept; y and v likewise.
    x, y = trimmed([-constant % q, *[0] * (n - 1), 1]), trimmed(list(a))
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
    """The sum, each part rounded once; with infinities or overflow, the ordinary sum of floats."""
    try:
        return complex(math.fsum(t.real for t in terms), math.fsum(t.imag for t in terms))
    except (OverflowError, ValueError):
        return sum(terms)


def value_of(conversion: Any, residues: Sequence[int]) -> int:
    """The value w of one coefficient in a conversion (_core/plans/rns.py), from its residues."""
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
    """`count` blocks from number `first` on of the stream of a key and a limb, computed side by side."""
    counters = [first + i for i in range(count)]
    state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), 0, 0, limb, 0]
    start = np.repeat(np.array(state, np.uint32)[:, None], count, axis=1)
    start[12] = [c % 2**32 for c in counters]
    start[13] = [c >> 32 for c in counters]
    x = start.copy()
    for turn in range(20):
        for i in range(4):
            shift = turn % 2  # columns, then diagonals
            a, b, c, d = i, 4 + (i + shift) % 4, 8 + (i + 2 * shift) % 4, 12 + (i + 3 * shift) % 4
            for u, v, w, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[u] += x[v]
                mixed = x[w] ^ x[u]
                x[w] = mixed << bits | mixed >> (32 - bits)
    return (x + start).T.astype("<u4").tobytes()


def numbers_of(key: bytes, limb: int, first: int, count: int, size: int) -> list[int]:
    """`count` little-endian numbers from number `first` on, of `size` bytes each, of a limb's stream."""
    block, skip = divmod(first * size, 64)
    text = chacha20(key, limb, block, -(-(skip + count * size) // 64))[skip:]
    return [int.from_bytes(text[i * size : (i + 1) * size], "little") for i in range(count)]


@cache
def gaussian_thresholds(variance: Any) -> list[int]:
    """round(2^63 P(|z| <= j)) while below 2^63, P(z) in proportion to exp(-z^2 / (2 variance))."""
    import decimal  # here, so that importing polygpu stays fast

    with decimal.localcontext(decimal.Context(prec=90, Emin=-(10**9), Emax=10**9)):
        half = decimal.Decimal(variance.denominator) / decimal.Decimal(2 * variance.numerator)
        sums, density, j = [decimal.Decimal(1)], decimal.Decimal(1), 0
        while density > decimal.Decimal("1e-50"):
            j += 1
            density = (-j * j * half).exp()
            sums.append(sums[-1] + 2 * density)
        rounded = [math.floor(2**63 * x / sums[-1] + decimal.Decimal("0.5")) for x in sums]
    return [x for x in rounded if x < 2**63]


def small_integers(sampler: Any, numbers: list[int]) -> list[int]:
    """The coefficients of one polynomial from its numbers of the stream (_core/plans/sampling.py)."""
    p = sampler.parameter
    if sampler.shape == "ternary":
        return [3 * w // 2**64 - 1 for w in numbers]
    if sampler.shape == "sparse":
        chosen = set(sorted(range(len(numbers)), key=lambda j: (numbers[j] // 2, j))[:p])
        return [1 - 2 * (w % 2) if j in chosen else 0 for j, w in enumerate(numbers)]
    if sampler.shape == "binomial":
        return [(w % 2**p).bit_count() - (w // 2**p % 2**p).bit_count() for w in numbers]
    if sampler.shape == "tuniform":
        return [(w % 2 ** (p + 2) + 1) // 2 - 2**p for w in numbers]
    thresholds, values = gaussian_thresholds(sampler.variance), []
    for w in numbers:
        total = 0
        for weight in sampler.weights:
            w, word = divmod(w, 2**64)
            size = sum(word // 2 >= t for t in thresholds)
            total += weight * (-size if word % 2 else size)
        values.append(total)
    return values


class HostMemory:
    """The methods that backends of NumPy arrays share: nothing is moved, nothing recorded."""

    xp: Any = np

    def to_host(self, x: Array) -> Array:
        return x

    def from_host(self, x: Array) -> Array:
        return x

    constant = from_host

    def capture(self, f: Callable[[], Any], arrays: Any = None) -> Callable[..., Any]:
        return f

    def is_recording(self) -> bool:
        return False

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def observe(
        self, work: Callable[[], Array], operands: Sequence[Array], out: Array | None
    ) -> tuple[Array, Any]:
        return work(), None

    def take(self, x: Array, index: Array, out: Array) -> None:
        np.take(x, index, axis=-1, out=out, mode="clip")  # the mode that writes to out without a copy

    def gather(self, x: Array, index: Array, out: Array) -> None:
        np.take(x, index, axis=0, out=out, mode="clip")  # the mode that writes to out without a copy

    def scatter(self, x: Array, index: Array, out: Array) -> None:
        out[index] = x

    def copy(self, x: Array, out: Array) -> None:
        out[...] = x

    def address(self, x: Array) -> int:
        return int(x.__array_interface__["data"][0])

    def device_scope(self, views: bool = False) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self) -> None:
        pass  # work here is done when its call returns

    def await_marks(self, marks: Iterable[Any]) -> None:
        pass

    def send(self, x: Array, target: Array, after: Iterable[Any]) -> None:
        target[...] = x


class ReferenceBackend(HostMemory):
    """The protocol of _backends/__init__.py, each method its definition."""

    name = "reference"

    def pointwise(self, basis: Any, op: str, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """Entry by entry."""
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
        """Coefficients: by X^n = -1 or 1. Values: the power of a point is another point, by its exponent."""
        sign, numbers = sign_of(quotient), np.broadcast_to(multipliers, x.shape[:-2]).ravel().tolist()
        values = []
        for item, multiplier in zip(to_ints(basis, x), numbers, strict=True):
            index = moved_index(out.shape[-1], multiplier, sign, evaluated)
            values.append(
                [
                    [row[k] if s > 0 else -row[k] % q for k, s in index]
                    for q, row in zip(basis.moduli, item, strict=True)
                ]
            )
        write(basis, values, out)

    def mul_monomial(self, basis: Any, quotient: Any, x: Array, exponents: Array, out: Array) -> None:
        """Coefficient i goes to place i + e, and changes its sign where it passes n and X^n = -1."""
        sign, numbers = sign_of(quotient), np.broadcast_to(exponents, x.shape[:-2]).ravel().tolist()
        values = [
            [mul_monomial_row(row, e, sign, q) for q, row in zip(basis.moduli, item, strict=True)]
            for item, e in zip(to_ints(basis, x), numbers, strict=True)
        ]
        write(basis, values, out)

    def prefers_tables(self, residues: int, itemsize: int) -> bool:
        """No: there are no tables."""
        return False

    def scale_by_powers(self, basis: Any, x: Array, first: Array, step: Array, out: Array) -> None:
        """x_j first step^j."""
        pairs = list(zip(to_ints(basis, first), to_ints(basis, step), strict=True))
        values = [
            [
                [v * a[0] * pow(b[0], j, q) % q for j, v in enumerate(row)]
                for q, row, a, b in zip(basis.moduli, item, *pairs[i % len(pairs)], strict=True)
            ]
            for i, item in enumerate(to_ints(basis, x))
        ]
        write(basis, values, out)

    def reduce_integers(self, basis: Any, x: Array, out: Array) -> None:
        """x mod q."""
        n = out.shape[-1]
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1]).tolist()
        write(
            basis,
            [[[v % q for v in row] + [0] * (n - len(row)) for q in basis.moduli] for row in rows],
            out,
        )

    def uniform(self, basis: Any, key: bytes, start: int, out: Array) -> None:
        """Numbers of each limb's stream, one word longer than a residue, mod q."""
        n, size = out.shape[-1], 8 * (basis.words + 1)
        count = prod(out.shape[:-2]) * n
        rows = []
        for limb, q in enumerate(basis.moduli):
            numbers = numbers_of(key, limb, start * n, count, size)
            rows.append([[w % q for w in numbers[i : i + n]] for i in range(0, count, n)])
        write(basis, [list(item) for item in zip(*rows, strict=True)], out)

    def _integers(self, basis: Any, x: Array, centered: bool) -> list[list[int]]:
        """Coefficients by item, from all residues."""
        modulus = prod(basis.moduli)
        factors = [modulus // q * pow(modulus // q, -1, q) for q in basis.moduli]
        values = [
            [
                sum(f * v for f, v in zip(factors, column, strict=True)) % modulus
                for column in zip(*item, strict=True)
            ]
            for item in to_ints(basis, x)
        ]
        if centered:
            values = [[v - modulus if 2 * v >= modulus else v for v in row] for row in values]
        return values

    def to_words(self, basis: Any, x: Array, centered: bool, out: Array) -> None:
        """Two's complement."""
        mask, words = (1 << 64) - 1, out.shape[-1]
        values = [
            [[v >> 64 * i & mask for i in range(words)] for v in row]
            for row in self._integers(basis, x, centered)
        ]
        out[...] = np.array(values, dtype=np.uint64).reshape(out.shape)

    def to_int64(self, basis: Any, x: Array, centered: bool, out: Array) -> int:
        """The first that does not fit, or -1."""
        flat = [v for row in self._integers(basis, x, centered) for v in row]
        for i, v in enumerate(flat):
            if not -(1 << 63) <= v < 1 << 63:
                return i
        out[...] = np.array(flat, dtype=np.int64).reshape(out.shape)
        return -1

    def to_float64(self, basis: Any, x: Array, centered: bool, out: Array) -> None:
        """As Python rounds."""

        def rounded(v: int) -> float:
            try:
                return float(v)
            except OverflowError:
                return math.copysign(math.inf, v)

        values = [rounded(v) for row in self._integers(basis, x, centered) for v in row]
        out[...] = np.array(values, dtype=np.float64).reshape(out.shape)

    def norm(self, basis: Any, x: Array, p: float, out: Array) -> None:
        """The largest size, or the sum of sizes or squares."""
        rows = [[abs(v) for v in row] for row in self._integers(basis, x, True)]
        norms = [max(row) if p == math.inf else sum(v ** int(p) for v in row) for row in rows]
        mask = (1 << 64) - 1
        values = [[v >> 64 * i & mask for i in range(out.shape[-1])] for v in norms]
        out[...] = np.array(values, dtype=np.uint64).reshape(out.shape)

    def sample(self, basis: Any, sampler: Any, key: bytes, start: int, out: Array) -> None:
        """As _core/plans/sampling.py defines each distribution."""
        n = out.shape[-1]
        count = prod(out.shape[:-2]) * n
        numbers = numbers_of(key, 0, start * n, count, sampler.size)
        values = [small_integers(sampler, numbers[i : i + n]) for i in range(0, count, n)]
        write(basis, [[[v % q for v in item] for q in basis.moduli] for item in values], out)

    def ntt(self, plan: Any, x: Array, out: Array, first: int = 0) -> None:
        """The residue modulo each leaf: coefficient r is the sum over i of a[i leaf_size + r] c^i."""
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
        """a[i leaf_size + r] = 1/points times the sum over the leaves of residue r times c^-i."""
        x, out = part_of(plan.basis, x, first), part_of(plan.basis, out, first)
        values = []
        for item in to_ints(plan.basis, np.broadcast_to(x, out.shape)):
            rows = []
            for limb, row in enumerate(item):
                q, leaf_size = plan.basis.moduli[limb], plan.leaf_size
                points = plan.degree // leaf_size
                inverses = [pow(c, -1, q) for c in leaf_constants(plan, limb)]
                powers = [pow(points, -1, q)] * points
                coefficients = [0] * plan.degree
                for i in range(points):
                    for r in range(leaf_size):
                        total = sum(p * v for p, v in zip(powers, row[r::leaf_size], strict=True))
                        coefficients[i * leaf_size + r] = total % q
                    powers = [p * c % q for p, c in zip(powers, inverses, strict=True)]
                rows.append(coefficients)
            values.append(rows)
        write(plan.basis, values, out)

    def convert_all(self, conversions: Any, x: Array, out: Array) -> None:
        """One after the other."""
        for conversion in conversions:
            self.convert(conversion, x, None, out)

    def convert(self, conversion: Any, x: Array | None, own: Array | None, out: Array) -> None:
        """The value that the source's rows hold, then each row of the target from it."""
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

    def digit_product(
        self,
        plan: Any,
        value: tuple[Array, Array] | None,
        digits: Array,
        key: Array,
        out: Array,
        more: Array | None = None,
        multiplier: Array | None = None,
    ) -> None:
        """Each digit evaluated, or read from the value, and permuted; then the sums."""
        n, limbs = out.shape[-1], plan.transform.basis.moduli
        items = out.reshape(-1, 2, len(limbs), n)
        made = digits.reshape(len(items), plan.digits, len(limbs), n)
        own = None
        if value is not None:
            count = plan.digits * len(limbs)
            self.convert_all(plan.conversions, value[0], digits.reshape(*out.shape[:-3], count, n))
            own = value[1].reshape(len(items), plan.own_total, n)
        index = list(range(n))
        if multiplier is not None:
            moved = moved_index(n, int(multiplier), sign_of(plan.transform.quotient), True)
            index = [k for k, _ in moved]
        for s, item in enumerate(items):
            rows = made[s] if own is None else self._evaluated(plan.transform, made[s])
            for i, q in enumerate(limbs):
                digit, place = plan.own.get(i, (plan.digits, 0))
                for c in range(2):
                    total = [0] * n
                    for j in range(plan.digits):
                        row = own[s, place] if j == digit and own is not None else rows[j, i]
                        factors = key[j, c, plan.key_rows[i]].tolist()
                        for x, k in enumerate(index):
                            total[x] += int(row[k]) * factors[x]
                    item[c, i] = np.array([v % q for v in total], out.dtype)
        if more is not None:
            self.convert(plan.adding, None, more, out)
        if plan.inverse:
            self.intt(plan.inverse_transform, out, out, plan.inverse[0])

    def decompose(self, gadget: Any, x: Array, out: Array) -> None:
        """The digits of y (_core/plans/gadget.py), from the least significant one up."""
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

    def prepare(self, gadget: Any, matrices: Array, out: Array) -> None:
        """The matrices unchanged, in the first words of each row of `out`."""
        n = matrices.shape[-1]
        out.view(np.uint64).reshape(*out.shape[:-2], -1)[..., :n] = matrices[..., 0, :]

    def gadget_product(self, gadget: Any, ggsw: Array, c: Array, out: Array) -> None:
        """Products of polynomials, added up."""
        k, n = c.shape[-3], c.shape[-1]
        plan, q = gadget.transform, gadget.basis.moduli[0]
        digits = np.empty((*c.shape[:-2], gadget.levels, 1, n), c.dtype)
        self.decompose(gadget, c, digits)
        if plan is None:
            made = digits.reshape(-1, k * gadget.levels, n)
            matrix = ggsw.view(np.uint64).reshape(k * gadget.levels, k, -1)[..., :n]
            sign = sign_of(gadget.product.quotient)
            for item, result in zip(made.tolist(), out.reshape(-1, k, n), strict=True):
                for j in range(k):
                    pairs = zip(item, matrix[:, j].tolist(), strict=True)
                    terms = [product(d, f, q, sign) for d, f in pairs]
                    result[j] = np.array([sum(column) % q for column in zip(*terms, strict=True)], c.dtype)
            return
        items = self._evaluated(plan, digits).reshape(-1, k * gadget.levels, n).tolist()
        factors = ggsw.reshape(k * gadget.levels, k, n).tolist()
        values = np.empty((len(items), k, 1, n), c.dtype)
        for item, result in zip(items, values, strict=True):
            for j in range(k):
                rows = zip(item, factors, strict=True)
                terms = [[x * y for x, y in zip(d, f[j], strict=True)] for d, f in rows]
                result[j, 0] = np.array([sum(column) % q for column in zip(*terms, strict=True)], c.dtype)
        self.intt(plan, values, out.reshape(values.shape))

    def gadget_rotation(self, gadget: Any, ggsws: Array, c: Array, exponents: Array, out: Array) -> None:
        """One step after the other."""
        (k, _, n), q = c.shape[-3:], gadget.basis.moduli[0]
        plan = gadget.transform or gadget.product
        sign = sign_of(plan.quotient)
        items = zip(c.reshape(-1, k, n).tolist(), exponents.reshape(-1, exponents.shape[-1]), strict=True)
        for place, (rows, powers) in zip(np.ndindex(c.shape[:-3]), items, strict=True):
            total = [mul_monomial_row(row, int(powers[0]), sign, q) for row in rows]
            for e, ggsw in zip(powers[1:].tolist(), ggsws, strict=True):
                pairs = [zip(mul_monomial_row(row, e, sign, q), row, strict=True) for row in total]
                moved = np.array([[[(x - y) % q for x, y in pair]] for pair in pairs], c.dtype)
                self.gadget_product(gadget, ggsw, moved, moved)
                sums = zip(total, moved[:, 0].tolist(), strict=True)
                total = [[(x + y) % q for x, y in zip(a, b, strict=True)] for a, b in sums]
            out[place] = np.array(total, c.dtype)[:, None]

    def _evaluated(self, plan: Any, x: Array) -> Array:
        out = np.empty_like(x)
        self.ntt(plan, x, out)
        return out

    def product_ns(self, basis: Any, way: Any) -> float:
        """Every product is computed from its definition, whatever the plan."""
        return 1.0

    def prefers_matrix(self, plan: Any, count: int) -> bool:
        return False

    def multiply(self, plan: Any, a: Array, b: Array, out: Array) -> None:
        """Schoolbook, mod X^n + 1 or X^n - 1."""
        constant = sign_of(plan.quotient)
        x, y = (to_ints(plan.basis, np.broadcast_to(v, out.shape)) for v in (a, b))
        values = [
            [product(u, v, q, constant) for u, v, q in zip(left, right, plan.basis.moduli, strict=True)]
            for left, right in zip(x, y, strict=True)
        ]
        write(plan.basis, values, out)

    def multiply_eval(self, plan: Any, a: Array, b: Array, out: Array) -> None:
        """Schoolbook modulo each leaf."""
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
                    row += product(u[at], v[at], q, c)
                rows.append(row)
            values.append(rows)
        write(plan.basis, values, out)

    def matmul(self, basis: Any, a: Array, b: Array, out: Array) -> None:
        """Rows by columns."""
        q = basis.moduli[0]
        shapes = ((out.shape[0], *x.shape[1:]) for x in (a, b))
        left, right = (np.broadcast_to(x, shape).tolist() for x, shape in zip((a, b), shapes, strict=True))
        for s, i, j in np.ndindex(out.shape):
            out[s, i, j] = sum(x * row[j] for x, row in zip(left[s][i], right[s], strict=True)) % q

    def matmul_points(self, basis: Any, a: Array, b: Array, out: Array) -> None:
        """Rows by columns, at each point."""
        left, right = a.tolist(), b.tolist()
        for s, i, j, r, x in np.ndindex(out.shape):
            terms = (u[r][x] * row[j][r][x] for u, row in zip(left[s][i], right[s], strict=True))
            out[s, i, j, r, x] = sum(terms) % basis.moduli[r]

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """The sum of x_j w^(jk), of rounded products."""
        n, sign = x.shape[-1], 1 if inverse else -1
        roots = [cmath.exp(sign * 2j * math.pi * k / n) for k in range(n)]
        for row, result in zip(x.tolist(), out, strict=True):
            for k in range(n):
                value = exact_sum([v * roots[j * k % n] for j, v in enumerate(row)])
                result[k] = value / n if inverse else value

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """The sum of a_i b_(k - i), indices modulo the length."""
        n = a.shape[-1]
        for left, right, result in zip(a.tolist(), np.broadcast_to(b, a.shape).tolist(), out, strict=True):
            for k in range(n):
                result[k] = exact_sum([v * right[(k - i) % n] for i, v in enumerate(left)])

    def invert(self, basis: Any, x: Array, quotient: Any, out: Array) -> Array:
        """By the extended Euclidean algorithm, on lists of Python integers."""
        q, n, values, degrees = basis.moduli[0], out.shape[-1], [], []
        for item in to_ints(basis, x):
            found = inverse(item[0], q, sign_of(quotient))
            degrees.append(found if isinstance(found, int) else 0)
            values.append([[0] * n if isinstance(found, int) else found])
        write(basis, values, out)
        return np.array(degrees, np.int64)

    def find_wrong_product(
        self, basis: Any, a: Array, b: Array, c: Array, points: Array, quotient: Any
    ) -> int:
        """Values of X^j a at each point, added up with the coefficients of b."""
        at, row, sign = to_ints(basis, points)[0], 0, sign_of(quotient)
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
