"""What a backend is: thirteen primitives that each one implements, and all other operations composed of them.

A backend overrides an operation that it computes faster than its composition. Callers have checked every
argument: arrays are (*batch, rows, degree) of the limbs' dtype, with canonical residues, and `out` has the
result's shape and may be an operand itself, unless the operation says otherwise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .records import Array, Record

if TYPE_CHECKING:
    from .._core.plans.basis import Basis
    from .._core.plans.gadget import Gadget
    from .._core.plans.ntt import NttPlan, TransformSize
    from .._core.plans.product import AuxiliarySize, FftProductPlan, Plan
    from .._core.plans.rns import Conversion
    from .._core.plans.sampling import Sampler
    from .._core.plans.switch import DigitProduct, RotatedSums
    from .._core.quotient import Quotient

Op = Literal["add", "sub", "neg", "mul", "mul_add"]
Mark = Any  # a moment in the work of a device


class Memory(ABC):
    """The arrays of a device. Without overrides its work is done when a call returns, and has no record."""

    name: str  # "cpu", "reference", "cuda:0"
    xp: Any  # the module of its arrays: numpy or cupy

    # ---- primitives ----

    @abstractmethod
    def to_host(self, x: Array) -> Array:
        """Return the values in host memory, or the array itself if it is there already."""

    @abstractmethod
    def from_host(self, x: Array) -> Array:
        """Return the values of a NumPy array on the device, or the array itself on the host."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array of undefined values, in the device's memory."""

    @abstractmethod
    def copy(self, x: Array, out: Array) -> None:
        """out[...] = x, for arrays of this device with any strides; axes of x broadcast to those of out.

        Their dtypes may be different ones of integers, if the values fit. They have no entries in common,
        unless they are the same entries.
        """

    # ---- composed ----

    def require(self, nbytes: int, hint: str) -> None:
        """Raise OutOfDeviceMemory if a device has fewer bytes left; the hint says what would help.

        Memory of the host is given page by page, so nothing is known before it is used.
        """
        return

    def constant(self, x: Array) -> Array:
        """As from_host, for operands that are used again: kept on the device where that saves time."""
        return self.from_host(x)

    def take(self, x: Array, index: Array, out: Array) -> None:
        """Entry j of each row of out is entry index[j] of the row of x; out is not x.

        x and out: words in C order. index: int64 where x lies, as long as the rows.
        """
        self.copy(self.xp.take(x, index, axis=-1), out)

    def gather(self, x: Array, index: Array, out: Array) -> None:
        """Item i of out is item index[i] of x, along the first axes of arrays in C order; out is not x.

        index: int64 where x lies.
        """
        self.copy(self.xp.take(x, index, axis=0), out)

    def scatter(self, x: Array, index: Array, out: Array) -> None:
        """Item index[i] of out becomes item i of x, as in gather(); no number occurs twice."""
        out[index] = x

    def address(self, x: Array) -> int:
        """Where the array's first entry lies."""
        return int(x.__array_interface__["data"][0])

    def device_scope(self, views: bool = False) -> AbstractContextManager[Any]:
        """Inside a `with`, functions of xp work on this device; a call that does so has no record.

        views: they only make views, which is not work.
        """
        return nullcontext()

    def observe(
        self, work: Callable[[], Array], operands: Sequence[Array], out: Array | None
    ) -> tuple[Array, Record | None]:
        """Do the work of a call. Return its result and, if it can be repeated, its record.

        operands: all arrays that the work reads and that may be others in another call. Of those that are one
        object here, the others are one object too. out: the memory for the result, if it is given.
        """
        return work(), None

    def capture(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that repeats f, whose work is recorded once, or f itself if nothing is gained."""
        return f

    def mark(self) -> Mark:
        """Return the moment at which all work queued so far on the current stream is done."""
        return None

    def await_marks(self, marks: Iterable[Mark]) -> None:
        """Let work that is queued from now on begin after these moments, of any devices of this kind."""
        return None

    def send(self, x: Array, target: Array, after: Iterable[Mark]) -> Mark:
        """Copy x, which lies on this device, into an array of its shape on any device of this kind.

        The copy begins after the given moments and runs beside the current stream's work. Returns the moment
        at which it is done; until then the caller keeps both arrays alive and unchanged. Their last axis is
        dense. Copies to one device follow each other.
        """
        self.copy(x, target)

    def is_recording(self) -> bool:
        """Whether work is being recorded, or about to be: repetitions leave out the host's work."""
        return False

    def _dense(self, x: Array) -> Array:
        """Return a copy in C order."""
        out = self.empty(x.shape, x.dtype)
        self.copy(x, out)
        return out

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        out = self.empty(shape, dtype)
        self.copy(self.constant(np.zeros((), dtype)), out)
        return out


class Arithmetic(Memory):
    """The operations that exist modulo every basis, wide ones too. They write into `out`."""

    # ---- primitives ----

    @abstractmethod
    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """out = a + b, a - b, -a, a * b or a * b + c, entry by entry; b may be (*batch, rows, 1).

        Batch axes of a, b and c broadcast to those of out, and may have any strides.
        """

    @abstractmethod
    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        """Residues of machine integers of any dtype (*batch, count <= n); the rest of each row is 0.

        In host memory x may be an object array of Python ints of any size too.
        """

    @abstractmethod
    def to_words(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """Integers composed of residues by the Chinese remainder theorem: in [0, Q), or in [-Q/2, Q/2).

        Each as uint64 words in two's complement, (*batch, n, words); see _core/plans/crt.py.
        """

    @abstractmethod
    def ntt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """Transform coefficients to the evaluation domain, in its bit-reversed order.

        If the arrays have more rows than the plan has limbs, the plan's limbs are the rows that begin with
        `first`. The other rows stay as they are.
        """

    @abstractmethod
    def intt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """Transform the evaluation domain to coefficients, in rows as in ntt()."""

    @abstractmethod
    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """Product in the ring, coefficients to coefficients.

        The plan's basis, degree and quotient say which product is meant, and all else how to compute it fast.
        """

    # ---- composed ----

    # Numbers for items are int64, in an array where x lies, whose axes are the last ones of the batch. It is
    # repeated over the others, so that one number, an array without axes, serves all items.

    def automorphism(
        self, basis: Basis, quotient: Quotient, x: Array, multipliers: Array, evaluated: bool, out: Array
    ) -> None:
        """Each item of x after X -> X^g, in coefficients or evaluated; out is not x.

        multipliers: multiplier_of g, for each item (_core/plans/permutation.py).
        """
        from .._core.plans.permutation import automorphism_index

        self._permute(basis, x, multipliers, lambda g: automorphism_index(quotient, g, evaluated), out)

    def mul_monomial(self, basis: Basis, quotient: Quotient, x: Array, exponents: Array, out: Array) -> None:
        """X^e times each item of x, in coefficients; out is not x.

        exponents: for each item, int64 in [0, order of X); on a card of any size if the order is a power
            of two.
        """
        from .._core.plans.permutation import monomial_index

        self._permute(basis, x, exponents, lambda e: monomial_index(quotient, e % quotient.order), out)

    def _permute(
        self, basis: Basis, x: Array, numbers: Array, index_of: Callable[[int], Array], out: Array
    ) -> None:
        """Write each item in the order of its number's index, where n + k stands for minus entry k.

        There is one call of take() for each number that occurs.
        """
        batch, n = x.shape[:-2], x.shape[-1]
        each = np.broadcast_to(self.to_host(numbers), batch).ravel()
        items, target = (v.reshape(len(each), *x.shape[-2:]) for v in (x, out))
        for number in np.unique(each).tolist():
            chosen = self.from_host(np.flatnonzero(each == number))
            index = index_of(number)
            some, moved = (self.empty((len(chosen), *x.shape[-2:]), x.dtype) for _ in range(2))
            self.gather(items, chosen, some)
            self.take(some, self.constant(np.ascontiguousarray(index % n)), moved)
            if index.max() >= n:
                signs = self.empty(x.shape[-2:], x.dtype)
                self.reduce_integers(basis, self.from_host(np.where(index < n, 1, -1)), signs)
                self.pointwise(basis, "mul", moved, signs, None, moved)
            self.scatter(moved, chosen, target)

    def to_int64(self, basis: Basis, x: Array, centered: bool, out: Array) -> int:
        """Each integer as int64, (*batch, n); returns the flat index of the first that does not fit, or -1.

        Waits for the result. Where one does not fit, out holds nothing of use.
        """
        values = self._integers(basis, x, centered)
        wrong = [i for i, v in enumerate(values.flat) if not -(1 << 63) <= v < 1 << 63]
        if not wrong:
            self.copy(self.from_host(values.astype(np.int64)), out)
        return wrong[0] if wrong else -1

    def to_float64(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """Each integer as the nearest double, halves to even, (*batch, n); infinite beyond all doubles."""
        values = self._integers(basis, x, centered)
        rounded = np.array([_rounded(v) for v in values.flat], np.float64).reshape(values.shape)
        self.copy(self.from_host(rounded), out)

    def norm(self, basis: Basis, x: Array, p: float, out: Array) -> None:
        """Compute the largest size (p = inf), sum of sizes (1) or of squares (2) of the centered integers.

        Results are uint64 words (*batch, words); see _core/plans/crt.py.
        """
        sizes = abs(self._integers(basis, x, True))
        norms = sizes.max(-1) if p == math.inf else (sizes ** int(p)).sum(-1)
        words = [np.asarray(norms >> 64 * i & _WORD).astype(np.uint64) for i in range(out.shape[-1])]
        self.copy(self.from_host(np.stack(words, axis=-1)), out)

    def _integers(self, basis: Basis, x: Array, centered: bool) -> Array:
        """Python ints (*batch, n) in host memory."""
        count = prod(basis.moduli).bit_length() // 64 + 1
        words = self.empty((*x.shape[:-2], x.shape[-1], count), np.dtype(np.uint64))
        self.to_words(basis, x, centered, words)
        digits = self.to_host(words).astype(object)
        whole = sum(digits[..., i] << 64 * i for i in range(count))
        negative = whole >> 64 * count - 1
        return np.asarray(whole - (negative << 64 * count), object)

    def draw(self, key: bytes, limb: int, first: int, count: int) -> Array:
        """`count` bytes, from number `first` on, of the stream of a key and a limb, in host memory."""
        from .cipher import Keystream

        out = np.empty(count, np.uint8)
        Keystream(key, limb, first).fill(out, np.zeros(count, np.uint8))
        return out

    def uniform(self, basis: Basis, key: bytes, start: int, out: Array) -> None:
        """Uniform residues of the polynomials start, start + 1, ... of a key's stream (_ops/sampling.py)."""
        shape, size = (*out.shape[:-2], out.shape[-1]), 8 * (basis.words + 1)
        first, host = start * out.shape[-1], np.empty(out.shape, out.dtype)
        for limb, q in enumerate(basis.moduli):
            residues = self._numbers(key, limb, first, prod(shape), size) % q
            for i in range(basis.words):
                word = (residues >> 64 * i & _WORD).astype(out.dtype)
                host[..., limb * basis.words + i, :] = word.reshape(shape)
        self.copy(self.from_host(host), out)

    def sample(self, basis: Basis, sampler: Sampler, key: bytes, start: int, out: Array) -> None:
        """Residues of small integers, of the polynomials start, start + 1, ... of a key's stream."""
        shape, n = (*out.shape[:-2], out.shape[-1]), out.shape[-1]
        numbers = self._numbers(key, 0, start * n, prod(shape), sampler.size).reshape(-1, n)
        values = np.array([_small_integers(sampler, row) for row in numbers.tolist()], np.int64)
        self.reduce_integers(basis, self.from_host(values.reshape(shape)), out)

    def _numbers(self, key: bytes, limb: int, first: int, count: int, size: int) -> Array:
        """Numbers of a stream, of `size` bytes each, little-endian, as Python ints."""
        text = self.draw(key, limb, first * size, count * size).tobytes()
        numbers = np.empty(count, object)
        numbers[:] = [int.from_bytes(text[i : i + size], "little") for i in range(0, count * size, size)]
        return numbers

    def combine(
        self,
        basis: Basis,
        operands: Sequence[Array],
        factors: Array,
        constant: Array | None,
        step: int,
        out: Array,
    ) -> None:
        """out[m] = constant + sum over i of factors[m, i] operands[i], for each index m of the first axes.

        factors: (*first axes, operands, rows, 1). Operands broadcast to the other axes of out; their batch
        axes may have any strides. constant: None, or (*batch, rows, 1), which broadcasts to out and is added
        to every step-th entry. out is not an operand.
        """
        lead = factors.ndim - 3
        ones = (1,) * (out.ndim - 2 - lead)
        for i, x in enumerate(operands):
            factor = self._dense(factors[..., i, :, :]).reshape(*factors.shape[:lead], *ones, basis.rows, 1)
            if i:
                self.pointwise(basis, "mul_add", x, factor, out, out)
            else:
                self.pointwise(basis, "mul", x, factor, None, out)
        if constant is not None:
            entries = out if step == 1 else self._dense(out[..., ::step])
            self.pointwise(basis, "add", entries, constant, None, entries)
            if entries is not out:
                self.copy(entries, out[..., ::step])

    def multiply_eval(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """Product in the evaluation domain, complete or not."""
        if plan.leaf_size == 1:
            self.pointwise(plan.basis, "mul", a, b, None, out)
            return
        # Coefficient r of a leaf of the product is the sum over i of a_i b_(r - i), times the leaf's constant
        # where r < i.
        size = plan.leaf_size
        r = np.arange(plan.degree) % size
        constants = np.ones((plan.basis.rows, plan.degree), out.dtype)
        for row, q, table in zip(constants, plan.basis.moduli, plan.tables, strict=True):
            row[:] = np.repeat(table.quotient.leaf_constants(table.forward[0], q), size)
        sums = self._zeros(out.shape, out.dtype)
        for i in range(size):
            at = np.arange(plan.degree) - r
            left, right = self.empty(a.shape, a.dtype), self.empty(b.shape, b.dtype)
            self.take(a, self.constant(at + i), left)
            self.take(b, self.constant(at + (r - i) % size), right)
            twist = self.constant(np.where(r < i, constants, out.dtype.type(1)))
            self.pointwise(plan.basis, "mul", right, twist, None, right)
            self.pointwise(plan.basis, "mul_add", left, right, sums, sums)
        self.copy(sums, out)


class Backend(Arithmetic):
    """The operations of a device; arithmetic modulo moduli up to 2^64."""

    divided_bytes = 1 << 23  # of sums that are divided together, so that they are still in a cache

    # ---- primitives ----

    @abstractmethod
    def convert(self, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> None:
        """Rows of out from rows of x and own (_core/plans/rns.py).

        Words hold the moduli of their rows. out may be neither operand. Batch axes broadcast to out's.
        """

    @abstractmethod
    def decompose(self, gadget: Gadget, x: Array, out: Array) -> None:
        """Residues of the digits of (*batch, 1, n), (*batch, levels, 1, n)."""

    @abstractmethod
    def matmul(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """Products of matrices modulo the one modulus of limbs, at most 2^64.

        (batch or 1, m, k) by (batch or 1, k, n), C-contiguous. Entries are any words of the limbs' dtype,
        canonical or not; out is canonical, C-contiguous and not an operand. If `multiplies_bytes`, a may be
        one matrix of integers of 1 or 2 bytes, whose rows or columns are dense.
        """

    multiplies_bytes = False

    def prefers_bytes(self, basis: Basis, rows: int) -> bool:
        """Whether `rows` rows of small integers multiply faster as bytes than as words."""
        return self.multiplies_bytes

    # ---- composed ----

    def scale_by_powers(self, basis: Basis, x: Array, first: Array, step: Array, out: Array) -> None:
        """Entry j of each row times first step^j; out may be x.

        first, step: arrays (*, rows, 1) of residues, whose number of items divides that of x: item i of x
        takes item i modulo that number. Where items have one row, the items need not be contiguous, and out
        may be (items, 1, runs, n / runs), whose runs, of a power of two of entries, need not be either.
        """
        rows, n = x.shape[-2:]
        moduli = np.array(basis.moduli, object)
        power, ratio = (self.to_host(v).astype(object).reshape(-1, rows) for v in (first, step))
        table = np.empty((len(power), rows, n), x.dtype)
        for j in range(n):
            table[..., j] = power.astype(x.dtype)
            power = power * ratio % moduli
        product = self._dense(x).reshape(-1, len(table), rows, n)
        self.pointwise(basis, "mul", product, self.from_host(table), None, product)
        self.copy(product.reshape(out.shape), out)

    def prefers_tables(self, residues: int, itemsize: int) -> bool:
        """Whether the rows of a transform in steps are to have tables of their own.

        residues: the number of residues in these rows. With such tables ntt() and intt() take parts of a
        transform (_core/plans/ntt.py), and ntt() of one polynomial writes rows that lie apart, (points,
        leaf_size). Without them rows are multiplied by powers.
        """
        return False

    def product_ns(self, basis: Basis, way: FftProductPlan | TransformSize | AuxiliarySize) -> float:
        """Estimated nanoseconds of a product of two polynomials in a large batch, on one core or a GPU.

        Without measurements all ways are alike.
        """
        return 1.0

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """Whether products of `count` polynomials with one are faster by matmul than by the plan."""
        return False

    def matmul_points(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """Products of matrices, point by point.

        out[s, i, j, r, x] = sum over k of a[s, i, k, r, x] b[s, k, j, r, x] mod q_r.
        Arrays (batch, m, k, rows, points), (batch, k, p, rows, points) and (batch, m, p, rows, points) of
        canonical residues; the last two axes are dense, the first three may be strided (transposed or
        broadcast views, with step 0), out's too but without step 0. out is not an operand. Moduli are at
        most 2^64.
        """
        sums = self._zeros(out.shape, out.dtype)
        for k in range(a.shape[2]):
            left, right = self._dense(a[:, :, k, None]), self._dense(b[:, k, None])
            self.pointwise(basis, "mul_add", left, right, sums, sums)
        self.copy(sums, out)

    def convert_all(self, conversions: Sequence[Conversion], x: Array, out: Array) -> None:
        """Conversions of x into one array, each into rows of its own; no conversion has own rows."""
        for conversion in conversions:
            self.convert(conversion, x, None, out)

    def tensor(
        self, basis: Basis, x: Array, y: Array, more: Array | None, pair: Array, square: Array, adds: bool
    ) -> None:
        """Products of evaluated ciphertexts: pair = (x_0 y_0, x_0 y_1 + x_1 y_0) + more, square = x_1 y_1.

        x, y, more, pair: (*batch, 2, rows, n). square: (*batch, rows, n). Batch axes of x, y and more
        broadcast to those of the results. Operands may have any strides between components and items; items
        of the results, which are not operands, are dense and evenly spaced. adds: the products are added
        to what the results hold, and `more` is None.
        """
        (x0, x1), (y0, y1) = ((v[..., 0, :, :], v[..., 1, :, :]) for v in (x, y))
        held = pair if adds else more
        first = second = None
        if held is not None:
            first, second = held[..., 0, :, :], held[..., 1, :, :]
        mixed = self.empty(square.shape, square.dtype)

        def write(place: Array, op: Op, a: Array, b: Array, c: Array | None = None) -> None:
            made = place if place.flags.c_contiguous else self.empty(place.shape, place.dtype)
            self.pointwise(basis, op, a, b, c, made)
            if made is not place:
                self.copy(made, place)

        def multiply(place: Array, a: Array, b: Array, c: Array | None) -> None:
            write(place, "mul" if c is None else "mul_add", a, b, c)

        multiply(pair[..., 0, :, :], x0, y0, first)
        multiply(square, x1, y1, square if adds else None)
        multiply(mixed, x0, y1, second)
        if x is y and second is None:
            write(pair[..., 1, :, :], "add", mixed, mixed)
        else:
            multiply(pair[..., 1, :, :], x1, y0, mixed)

    def digit_product(
        self,
        plan: DigitProduct,
        value: tuple[Array, Array] | None,
        digits: Array,
        key: Array,
        out: Array,
        more: Array | None = None,
    ) -> None:
        """Compute sums of products of digits and a key (_core/plans/switch.py).

        out: (*batch, 2, limbs, n), evaluated. value: in coefficients, and evaluated. digits: (*batch, digits,
        limbs, n), scratch memory for the digits of the value; without a value, the evaluated digits
        themselves. more: another value, whose multiple is added to the sums. Rows of the limbs of
        `plan.inverse` are left in coefficients.
        """
        *batch, count, limbs, n = digits.shape
        basis, items = plan.transform.basis, prod(batch)
        if value is not None:
            x, own = value
            rows = digits.reshape(*batch, count * limbs, n)
            self.convert_all(plan.conversions, x, rows)
            for first, transform in plan.runs:
                self.ntt(transform, rows, rows, first)
            for limb, (j, row) in plan.own.items():
                self.copy(own[..., row, :], digits[..., j, limb, :])
        used = self.empty((count, 2, limbs, n), key.dtype)
        for limb, row in enumerate(plan.key_rows):
            self.copy(key[:count, :, row], used[:, :, limb])
        left = digits.reshape(items, 1, count, limbs, n)
        right = self.xp.broadcast_to(used, (items, *used.shape))
        self.matmul_points(basis, left, right, out.reshape(items, 1, 2, limbs, n))
        if more is not None:
            self.convert(plan.adding, None, more, out)
        if plan.inverse:
            self.intt(plan.inverse_transform, out, out, plan.inverse[0])

    def rotated_sums(
        self,
        plan: RotatedSums,
        digits: Array | None,
        keys: Sequence[Array | None],
        multipliers: Array,
        more: Array,
        weights: Array | None,
        out: Array,
    ) -> None:
        """Compute sums over rotations of products of digits and keys (_core/plans/switch.py).

        out: (results, *batch, 2, limbs, n), evaluated. digits: (*batch, digits, limbs, n), evaluated, or with
        a first axis of terms; None if no term has a key. keys: for each term, (digits or more, 2, rows, n) or
        None. multipliers: of the automorphisms, (terms,), as in automorphism(). more: (*batch, 2, rows, n),
        evaluated, or with a first axis of terms. weights: (count, limbs, n), evaluated.
        """
        basis, quotient, shape = plan.transform.basis, plan.transform.quotient, out.shape[1:]
        keyed = 0  # terms so far that have a key

        def rotated(x: Array, term: int) -> Array:
            moved = self.empty(x.shape, x.dtype)
            self.automorphism(basis, quotient, x, multipliers[term, ...], True, moved)
            return moved

        for term, key in enumerate(keys):
            total = self._zeros(shape, out.dtype)
            self.convert(plan.adding, None, more[term] if plan.is_split else more, total)
            if key is not None:
                self.copy(self.constant(np.zeros((), out.dtype)), total[..., 1, :, :])
                product = plan.products[term]
                assert product is not None and digits is not None
                chosen, sums = digits[keyed] if plan.is_split else digits, self.empty(shape, out.dtype)
                keyed += 1
                self.digit_product(
                    product, None, chosen if plan.is_turned else rotated(chosen, term), key, sums
                )
                if plan.is_turned:
                    self.pointwise(basis, "add", total, sums, None, total)
            moved = rotated(total, term)
            if key is not None and not plan.is_turned:
                self.pointwise(basis, "add", moved, sums, None, moved)
            for result, places in zip(out, plan.places, strict=True):
                place, is_first = places[term], all(p < 0 for p in places[:term])
                if place >= 0:
                    self._add_weighted(
                        basis, moved, None if weights is None else weights[place], is_first, result
                    )

    def _add_weighted(self, basis: Basis, x: Array, weight: Array | None, is_first: bool, out: Array) -> None:
        """out = x times a weight (rows, n), None for 1, plus out unless this is the first term."""
        if weight is None:
            if is_first:
                self.copy(x, out)
            else:
                self.pointwise(basis, "add", out, x, None, out)
            return
        factors = self._dense(self.xp.broadcast_to(weight, x.shape))
        if is_first:
            self.pointwise(basis, "mul", x, factors, None, out)
        else:
            self.pointwise(basis, "mul_add", x, factors, out, out)

    def signed_digits(self, gadget: Gadget, x: Array, out: Array) -> None:
        """Digits (rows, n, levels) of rows of residues (rows, n), as signed integers of out's dtype.

        Entries of a row are neighbours; rows may be any steps apart.
        """
        words, q, (rows, n) = self._dense(x), gadget.basis.moduli[0], x.shape
        digits = self.empty((rows, gadget.levels, 1, n), x.dtype)
        self.decompose(gadget, words[:, None], digits)
        values = digits[:, :, 0]
        if q < 1 << 8 * x.dtype.itemsize:
            # Those of the upper half are negative, in two's complement.
            word = x.dtype.type
            self.xp.subtract(values, word(q), out=values, where=values > word((q - 1) // 2))
        out[...] = self.xp.moveaxis(values.view(f"i{x.dtype.itemsize}"), 1, 2)

    def prepare(self, gadget: Gadget, matrices: Array, out: Array) -> None:
        """Matrices (*batch, 1, n) in coefficients, in the form that products by FFT take on this device.

        out: complex128, (*batch, digits, points) of the product's plan. Without an override the form is the
        coefficients themselves, in the first words of each item.
        """
        n = matrices.shape[-1]
        self.copy(matrices[..., 0, :], out.reshape(*out.shape[:-2], -1).view(np.uint64)[..., :n])

    def gadget_product(self, gadget: Gadget, ggsw: Array, c: Array, out: Array) -> None:
        """out_j = sum of digit_l(c_i) ggsw[i, l, j] of coefficients c and out, (*batch, k, 1, n).

        ggsw (k, levels, k, 1, n) is evaluated, or without a transform prepared; out may be c.
        """
        k, n = c.shape[-3], c.shape[-1]
        items, count = prod(c.shape[:-3]), k * gadget.levels
        digits = self.empty((*c.shape[:-2], gadget.levels, 1, n), c.dtype)
        self.decompose(gadget, c, digits)
        plan, sums = gadget.transform, self.empty((items, 1, k, 1, n), c.dtype)
        if plan is not None:
            self.ntt(plan, digits, digits)
            matrix = self.xp.broadcast_to(ggsw.reshape(count, k, 1, n), (items, count, k, 1, n))
            self.matmul_points(gadget.basis, digits.reshape(items, 1, count, 1, n), matrix, sums)
            self.intt(plan, sums, out.reshape(sums.shape))
            return
        words = ggsw.reshape(count, k, -1).view(np.uint64)[..., :n]
        product: Any = gadget.product  # not a plan of products, but its basis and quotient say which is meant
        digits, terms = digits.reshape(items, count, 1, n), self.empty((items, count, 1, n), c.dtype)
        for j in range(k):
            column = self.empty((count, 1, n), c.dtype)
            self.copy(words[:, j, None], column)
            self.multiply(product, digits, column, terms)
            total = self._zeros((items, 1, n), c.dtype)
            for i in range(count):
                self.pointwise(gadget.basis, "add", total, self._dense(terms[:, i]), None, total)
            self.copy(total, sums[:, 0, j])
        self.copy(sums.reshape(out.shape), out)

    def gadget_rotation(self, gadget: Gadget, ggsws: Array, c: Array, exponents: Array, out: Array) -> None:
        """Compute c times X^e_0, then for i = 1, 2, ... c + ggsws[i - 1] (X^e_i c - c); out is not c.

        Exponents are as in mul_monomial, (*batch, 1 + count), on the host or where c is.
        """
        basis, items = gadget.basis, c.shape[:-2]
        powers = self.from_host(exponents) if isinstance(exponents, np.ndarray) else exponents

        def turn(x: Array, i: int, to: Array) -> None:
            each = self._dense(self.xp.broadcast_to(powers[..., i, None], items))
            self.mul_monomial(basis, gadget.quotient, x, each, to)

        turn(c, 0, out)
        moved = self.empty(c.shape, c.dtype)
        for i, ggsw in enumerate(ggsws, 1):
            turn(out, i, moved)
            self.pointwise(basis, "sub", moved, out, None, moved)
            self.gadget_product(gadget, ggsw, moved, moved)
            self.pointwise(basis, "add", out, moved, None, out)

    def rotate_by_groups(self, gadget: Gadget, keys: Array, c: Array, exponents: Array, out: Array) -> bool:
        """c times X^e_0, then for each group the product with a combined key; False if it cannot.

        keys: (groups, 2^g, k, levels, k, 1, n) in coefficients. That of a group is the sum over S of
        X^(sum of e_i, i in S) keys[j, S]; the last group may be shorter. The gadget's product is a TorusPlan.
        """
        return False

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """Fourier transforms of rows of complex numbers, (rows, n); the inverse is 1/n times the sums."""
        fft = self.xp.fft
        out[...] = (fft.ifft if inverse else fft.fft)(x).astype(x.dtype)

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """Cyclic convolutions of rows of 64 complex numbers; b may be one row for all."""
        fft = self.xp.fft
        out[...] = fft.ifft(fft.fft(a) * fft.fft(b)).astype(a.dtype)


class HostBackend(Backend):
    """A backend of NumPy arrays, with the operations that always run on the host."""

    xp: Any = np

    def to_host(self, x: Array) -> Array:
        return x

    def from_host(self, x: Array) -> Array:
        return x

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype)

    def copy(self, x: Array, out: Array) -> None:
        out[...] = x

    @abstractmethod
    def invert(self, basis: Basis, x: Array, quotient: Quotient, out: Array) -> Array:
        """Compute inverses modulo the quotient and the one modulus of a basis, a prime of any size.

        Returns an int64 for each item: the degree of the factor that it shares with the quotient, or 0 if it
        has an inverse. For an item without an inverse, `out` holds any values.
        """

    @abstractmethod
    def find_wrong_product(
        self, basis: Basis, a: Array, b: Array, c: Array, points: Array, quotient: Quotient
    ) -> int:
        """Return the first row of c that differs from a b at one of the points (rows, count), or -1.

        Rows are counted over all items and limbs. Coefficients of any basis of primes; batch axes of a and b
        broadcast to c's.
        """


_WORD = (1 << 64) - 1


def _rounded(v: int) -> float:
    """Return the nearest double, or an infinity."""
    try:
        return float(v)
    except OverflowError:
        return math.copysign(math.inf, v)


def _small_integers(sampler: Sampler, numbers: list[int]) -> list[int]:
    """Return the coefficients of one polynomial from its numbers of the stream, as Sampler defines them."""
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
    values = []
    for w in numbers:
        total = 0
        for weight in sampler.weights:
            w, word = divmod(w, 2**64)
            size = sum(word // 2 >= t for t in sampler.thresholds)
            total += weight * (-size if word % 2 else size)
        values.append(total)
    return values
