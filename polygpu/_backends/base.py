"""The interface of backends: thirteen primitives, and operations composed of the primitives.

A backend implements the primitives, and overrides composed operations for which it has a faster method.
Callers have checked all arguments. Arrays contain residues in [0, q), with shape (*batch, rows, degree) and
the dtype of the limbs. `out` has the shape of the result and may be one of the operands. Docstrings state
exceptions from these rules.
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
Mark = Any  # a point in the queue of a device's work, such as a CUDA event


class Memory(ABC):
    """Operations on the arrays of a device: allocation, copies, and records of calls.

    The default methods do not record calls. They assume that work is done when a call returns.
    """

    name: str  # "cpu", "reference", "cuda:0"
    xp: Any  # the module that defines the arrays: numpy or cupy

    # ---- primitives ----

    @abstractmethod
    def to_host(self, x: Array) -> Array:
        """Return a copy of x in host memory, or x itself if x lies in host memory."""

    @abstractmethod
    def from_host(self, x: Array) -> Array:
        """Return a copy of the NumPy array x on the device, or x itself if the device is the host."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array of undefined values, in the device's memory."""

    @abstractmethod
    def copy(self, x: Array, out: Array) -> None:
        """Do what out[...] = x does; both arrays lie on this device and may have any strides.

        x broadcasts to the shape of out. The integer dtypes of x and out may differ if the values fit. x and
        out must not overlap, except that each entry of x may have the address of the same entry of out.
        """

    # ---- composed ----

    def require(self, nbytes: int, hint: str) -> None:
        """Raise OutOfDeviceMemory if the device has fewer than `nbytes` bytes free.

        hint: a sentence of the error text that says what would help. On the host nothing is checked, because
        the system provides memory only at the first use of a page.
        """
        return

    def constant(self, x: Array) -> Array:
        """Return a copy of the NumPy array x on the device. A backend may keep the copy for later calls."""
        return self.from_host(x)

    def take(self, x: Array, index: Array, out: Array) -> None:
        """Permute the entries of each row: out[..., j] = x[..., index[j]]. `out` must not be x.

        x and out: C-contiguous arrays of words. index: int64, (row length of x,), on the device of x.
        """
        self.copy(self.xp.take(x, index, axis=-1), out)

    def gather(self, x: Array, index: Array, out: Array) -> None:
        """Compute out[i] = x[index[i]] for C-contiguous arrays. `out` must not be x.

        index: int64, on the device of x.
        """
        self.copy(self.xp.take(x, index, axis=0), out)

    def scatter(self, x: Array, index: Array, out: Array) -> None:
        """Compute out[index[i]] = x[i]. The entries of index are distinct. For conditions see gather()."""
        out[index] = x

    def address(self, x: Array) -> int:
        """Return the memory address of the array's first entry."""
        return int(x.__array_interface__["data"][0])

    def device_scope(self, views: bool = False) -> AbstractContextManager[Any]:
        """Let functions of `xp` (NumPy or CuPy) work on this device inside a `with`.

        views: whether the functions only make views. If False, a call that enters the `with` cannot be
        repeated from a record.
        """
        return nullcontext()

    def guest(
        self, stream: int, allocate: Callable[[int, int, int], int], free: Callable[[int], None]
    ) -> AbstractContextManager[Any]:
        """Work on another library's stream inside a `with`, with memory from that library's allocator.

        stream: the handle of the stream. allocate(size, device's index, stream) returns an address, or raises
        MemoryError. free(address) frees the memory, and may be called after the `with`. On the host, guest()
        does nothing.
        """
        return nullcontext()

    def observe(
        self, work: Callable[[], Array], operands: Sequence[Array], out: Array | None
    ) -> tuple[Array, Record | None]:
        """Run `work`, the computation of one call. Return its result and a record that can repeat the call.

        If the record is None, the caller stores nothing. operands: the arrays that `work` reads and that may
        differ in a repetition. If two operands are one object, they are one object in each repetition too.
        out: the array for the result, or None.
        """
        return work(), None

    def capture(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """Run f, record its work, and return a function that repeats this work.

        On the host, return f, and do not run it.
        """
        return f

    def mark(self) -> Mark:
        """Return a mark that is reached when the work queued so far on the current stream is done."""
        return None

    def await_marks(self, marks: Iterable[Mark]) -> None:
        """Make later work of the current stream wait for marks of any devices of this kind."""
        return None

    def send(self, x: Array, target: Array, after: Iterable[Mark]) -> Mark:
        """Copy x, which lies on this device, to `target`, which lies on any device of this kind.

        The copy waits for the marks in `after` and runs concurrently with the current stream. Returns a mark
        at the end of the copy. Until this mark is reached, the caller keeps both arrays alive and unchanged.
        Both arrays have the same shape and a dense last axis. Copies to the same device run one after
        another.
        """
        self.copy(x, target)

    def is_recording(self) -> bool:
        """Return whether `capture` is recording. Recordings do not contain work on the host."""
        return False

    def _dense(self, x: Array) -> Array:
        """Return a C-contiguous copy."""
        out = self.empty(x.shape, x.dtype)
        self.copy(x, out)
        return out

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        out = self.empty(shape, dtype)
        self.copy(self.constant(np.zeros((), dtype)), out)
        return out


class Arithmetic(Memory):
    """The operations that also work for moduli above 2^64. Each one writes its result to `out`."""

    # ---- primitives ----

    @abstractmethod
    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """Compute a + b, a - b, -a, a * b or a * b + c, entry by entry; b may have shape (*batch, rows, 1).

        Batch axes of a, b and c broadcast to batch axes of out. Batch axes may have any strides.
        """

    @abstractmethod
    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        """Reduce integers of any dtype by each modulus of the basis.

        x: (*batch, count), with count at most the degree. The rest of each row of out is set to 0.
        In host memory x may also be an object array of Python ints of any size.
        """

    @abstractmethod
    def to_words(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """Compose integers from residues by the Chinese remainder theorem.

        The integers are in [-Q/2, Q/2) if centered, otherwise in [0, Q), where Q is the product of the
        moduli. out: (*batch, n, words), uint64 words of each integer in two's complement, the least
        significant word first (_core/plans/crt.py).
        """

    @abstractmethod
    def ntt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """Transform coefficients to the evaluation domain, in bit-reversed order.

        The plan transforms rows `first`, `first` + 1, ... of x, one row for each limb of the plan. The other
        rows of out stay unchanged.
        """

    @abstractmethod
    def intt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """Transform evaluated rows back to coefficients; `first` is as in ntt()."""

    @abstractmethod
    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """Multiply in the ring; operands and result are coefficients.

        The plan's basis, degree and quotient define the ring. Other fields of the plan are for fast methods.
        """

    # ---- composed ----

    # `multipliers` and `exponents` are arrays of int64 on the device of x. They broadcast to the batch shape
    # of x: each item (polynomial) has its own integer, or shares it with other items.

    def automorphism(
        self, basis: Basis, quotient: Quotient, x: Array, multipliers: Array, evaluated: bool, out: Array
    ) -> None:
        """Apply X -> X^g to each item (polynomial) of x. `out` must not be x.

        multipliers: multiplier_of(quotient, g, evaluated) of each item (_core/plans/permutation.py).
        """
        from .._core.plans.permutation import automorphism_index

        self._permute(basis, x, multipliers, lambda g: automorphism_index(quotient, g, evaluated), out)

    def mul_monomial(self, basis: Basis, quotient: Quotient, x: Array, exponents: Array, out: Array) -> None:
        """Multiply each item (polynomial) of x by X^e, in coefficients. `out` must not be x.

        exponents: e for each item, int64 in [0, order of X). On a GPU any int64 is allowed if the order is a
            power of two.
        """
        from .._core.plans.permutation import monomial_index

        self._permute(basis, x, exponents, lambda e: monomial_index(quotient, e % quotient.order), out)

    def _permute(
        self, basis: Basis, x: Array, numbers: Array, index_of: Callable[[int], Array], out: Array
    ) -> None:
        """Permute the entries of each item: entry j of the result is entry index_of(number)[j] of the item.

        numbers: one integer for each item (polynomial). n is the degree. An index n + k stands for minus
        entry k.
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
        """Compose int64 integers from residues. Return the flat index of the first overflow, or -1.

        out: (*batch, n), undefined if an integer overflows int64. The call waits until the integers are
        computed.
        """
        values = self._integers(basis, x, centered)
        wrong = [i for i, v in enumerate(values.flat) if not -(1 << 63) <= v < 1 << 63]
        if not wrong:
            self.copy(self.from_host(values.astype(np.int64)), out)
        return wrong[0] if wrong else -1

    def to_float64(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """Compose float64 numbers from residues, rounded half to even; overflow gives infinity.

        out: (*batch, n).
        """
        values = self._integers(basis, x, centered)
        rounded = np.array([_rounded(v) for v in values.flat], np.float64).reshape(values.shape)
        self.copy(self.from_host(rounded), out)

    def norm(self, basis: Basis, x: Array, p: float, out: Array) -> None:
        """Compute a norm of the centered integers v: max |v| (p = inf), sum of |v| (p = 1) or of v^2 (p = 2).

        out: (*batch, words), the uint64 words of each norm (_core/plans/crt.py).
        """
        sizes = abs(self._integers(basis, x, True))
        norms = sizes.max(-1) if p == math.inf else (sizes ** int(p)).sum(-1)
        words = [np.asarray(norms >> 64 * i & _WORD).astype(np.uint64) for i in range(out.shape[-1])]
        self.copy(self.from_host(np.stack(words, axis=-1)), out)

    def _integers(self, basis: Basis, x: Array, centered: bool) -> Array:
        """Return the integers that to_words() composes, as Python ints, (*batch, n), in host memory."""
        count = prod(basis.moduli).bit_length() // 64 + 1
        words = self.empty((*x.shape[:-2], x.shape[-1], count), np.dtype(np.uint64))
        self.to_words(basis, x, centered, words)
        digits = self.to_host(words).astype(object)
        whole = sum(digits[..., i] << 64 * i for i in range(count))
        negative = whole >> 64 * count - 1
        return np.asarray(whole - (negative << 64 * count), object)

    def draw(self, key: bytes, limb: int, first: int, count: int) -> Array:
        """Return `count` bytes, from byte `first`, of the random stream of a key and a limb, on the host."""
        from .cipher import Keystream

        out = np.empty(count, np.uint8)
        Keystream(key, limb, first).fill(out, np.zeros(count, np.uint8))
        return out

    def uniform(self, basis: Basis, key: bytes, start: int, out: Array) -> None:
        """Draw uniform polynomials with the indices start, start + 1, ... in the random stream of the key.

        _ops/sampling.py defines which bytes of the stream become a residue.
        """
        shape, size = (*out.shape[:-2], out.shape[-1]), 8 * (basis.words + 1)
        first, host = start * out.shape[-1], np.empty(out.shape, out.dtype)
        for limb, q in enumerate(basis.moduli):
            residues = self._numbers(key, limb, first, prod(shape), size) % q
            for i in range(basis.words):
                word = (residues >> 64 * i & _WORD).astype(out.dtype)
                host[..., limb * basis.words + i, :] = word.reshape(shape)
        self.copy(self.from_host(host), out)

    def sample(self, basis: Basis, sampler: Sampler, key: bytes, start: int, out: Array) -> None:
        """Draw polynomials with small coefficients.

        The polynomials have the indices start, start + 1, ... in the random stream of the key.
        The sampler defines how bytes of the stream become an integer (_core/plans/sampling.py).
        """
        shape, n = (*out.shape[:-2], out.shape[-1]), out.shape[-1]
        numbers = self._numbers(key, 0, start * n, prod(shape), sampler.size).reshape(-1, n)
        values = np.array([_small_integers(sampler, row) for row in numbers.tolist()], np.int64)
        self.reduce_integers(basis, self.from_host(values.reshape(shape)), out)

    def _numbers(self, key: bytes, limb: int, first: int, count: int, size: int) -> Array:
        """Return integers `first` to `first` + `count` - 1 of a stream. An integer has `size` bytes."""
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
        """Compute linear combinations: out[m] = constant + sum over i of factors[m, i] * operands[i].

        operands: each broadcasts to (*batch, rows, n). Batch axes of operands may have any strides.
        factors: (*first, len(operands), rows, 1). m is an index into the axes *first.
        constant: None, or an array (*batch, rows, 1) that broadcasts to out. The constant is added to entries
        0, step, 2 * step, ... of each row.
        out: (*first, *batch, rows, n), not an operand.
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
        """Multiply evaluated polynomials, for complete and incomplete transforms (leaf_size > 1)."""
        if plan.leaf_size == 1:
            self.pointwise(plan.basis, "mul", a, b, None, out)
            return
        # A leaf is a polynomial modulo X^size - c. Coefficient r of the product of leaves a and b is the sum
        # over i of a_i * b_((r - i) mod size); terms with r < i have the additional factor c.
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
    """All operations of a device. Methods defined in this class require moduli of at most 2^64."""

    # Bytes. Key switching divides its sums by the special primes in chunks of about this size, which fits a
    # cache. The batch size in packing LWE ciphertexts depends on this number.
    divided_bytes = 1 << 23

    # ---- primitives ----

    @abstractmethod
    def convert(self, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> None:
        """Convert residues x to other moduli. If the conversion has own_factors, add multiples of `own`.

        Conversion in _core/plans/rns.py gives the formula and the rows. out is not an operand. Batch axes of
        x and `own` broadcast to batch axes of out. The dtype of an array is wide enough for the moduli of its
        rows.
        """

    @abstractmethod
    def decompose(self, gadget: Gadget, x: Array, out: Array) -> None:
        """Split x, (*batch, 1, n), into digits, and write their residues to out, (*batch, levels, 1, n)."""

    @abstractmethod
    def matmul(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """Multiply matrices modulo the one modulus of the basis, at most 2^64.

        a: (batch or 1, m, k), C-contiguous, of the limbs' dtype, not necessarily reduced. If the backend's
        `multiplies_bytes` is True, a may also be one matrix of 1-byte or 2-byte integers with dense rows or
        columns.
        b: (batch or 1, k, n), C-contiguous, of the limbs' dtype, not necessarily reduced.
        out: (batch, m, n), C-contiguous, reduced, not an operand.
        """

    multiplies_bytes = False

    def prefers_bytes(self, basis: Basis, rows: int) -> bool:
        """Return whether matmul is faster if `a`, a matrix of small integers, is stored in bytes.

        rows: the number of rows of `a`.
        """
        return self.multiplies_bytes

    # ---- composed ----

    def scale_by_powers(self, basis: Basis, x: Array, first: Array, step: Array, out: Array) -> None:
        """Multiply entry j of each row by first * step^j; out may be x.

        first, step: residues, (*batch, rows, 1). An array has one item for each index of the batch axes.
        `first` and `step` have m items, and m divides the number of items of x. Item i of x uses item i mod m
        of `first` and of `step`.
        If rows is 1, the items of x may have any distance in memory, and out may have the shape (items, 1,
        pieces, length). The pieces are dense and begin at equal distances. `length` is a power of two.
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
        """Return whether each row of a four-step transform should have its own table of twiddles.

        If True, ntt() and intt() can also compute a part of a transform (_core/plans/ntt.py). Moreover, ntt()
        of one polynomial can write to an array (points, leaf_size) with any distance between rows. If False,
        scale_by_powers() multiplies each row by twiddles, and one table serves the transforms of all rows.

        residues: the number of residues in all rows together.
        """
        return False

    def product_ns(self, basis: Basis, way: FftProductPlan | TransformSize | AuxiliarySize) -> float:
        """Estimate the nanoseconds of one product in a large batch of products, on one core or a GPU.

        way: the plan of an FFT, or the size of number-theoretic transforms. A backend that does not
        override this method returns the same time for every `way`.
        """
        return 1.0

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """Return whether matmul is the faster way to multiply `count` polynomials by one polynomial."""
        return False

    def matmul_points(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """Multiply matrices of evaluated polynomials, point by point.

        out[s, i, j, r, x] = sum over k of a[s, i, k, r, x] * b[s, k, j, r, x] mod q_r.
        a: (batch, m, k, rows, points). b: (batch, k, p, rows, points). out: (batch, m, p, rows, points), not
        an operand. Residues are in [0, q_r). The last two axes are dense. The first three axes may have any
        strides; in a and b, strides may also be 0. Moduli are at most 2^64.
        """
        sums = self._zeros(out.shape, out.dtype)
        for k in range(a.shape[2]):
            left, right = self._dense(a[:, :, k, None]), self._dense(b[:, k, None])
            self.pointwise(basis, "mul_add", left, right, sums, sums)
        self.copy(sums, out)

    def convert_all(self, conversions: Sequence[Conversion], x: Array, out: Array) -> None:
        """Run several conversions of x. The conversions write disjoint rows of out and do not read `own`."""
        for conversion in conversions:
            self.convert(conversion, x, None, out)

    def tensor(
        self, basis: Basis, x: Array, y: Array, more: Array | None, pair: Array, square: Array, adds: bool
    ) -> None:
        """Multiply evaluated ciphertexts: pair = (x_0*y_0, x_0*y_1 + x_1*y_0) + more, square = x_1*y_1.

        x, y, more: (*batch, 2, rows, n). Batch axes broadcast to batch axes of pair. All axes but the last
        two may have any strides.
        pair: (*batch, 2, rows, n). square: (*batch, rows, n). Neither may be x, y or `more`. At each batch
        index, pair and square are dense. In each of the two arrays, the distance from one dense part to the
        next is constant.
        adds: if True, the products are added to pair and square, and `more` is None.
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
        """Compute sums of products of digits and a key (DigitProduct in _core/plans/switch.py).

        value: the polynomial to split, as a pair of arrays (coefficients, evaluated), or None.
        digits: (*batch, digits, limbs, n), workspace; if `value` is None, the evaluated digits.
        more: (*batch, 2, rows, n), evaluated, or None. `more` times `plan.factors` is added to the sums.
        out: (*batch, 2, limbs, n). Limbs of `plan.inverse` are in coefficients, other limbs are evaluated.
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
        """Compute sums of rotated ciphertexts after key switching (RotatedSums in _core/plans/switch.py).

        All polynomials are evaluated.
        digits: (*batch, digits, limbs, n), or None if no term has a key. If `plan.is_split`, the array has
        one more axis, the first: the terms that have a key.
        keys: for each term, an array (d, 2, rows, n) with d at least the number of digits, or None if the
        term has no key.
        multipliers: (terms,), as in automorphism().
        more: (*batch, 2, rows, n). If `plan.is_split`: (terms, *batch, 2, rows, n).
        weights: (count, limbs, n), or None if all weights are 1. `plan.places` chooses the weight of each
        term in each sum.
        out: (sums, *batch, 2, limbs, n).
        """
        basis, quotient, shape = plan.transform.basis, plan.transform.quotient, out.shape[1:]
        keyed = 0  # the number of earlier terms that have a key

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
        """Add x * weight to out; if is_first, overwrite out. weight: (rows, n), or None for 1."""
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
        """Split residues (rows, n) into signed digits (rows, n, levels), in the dtype of `out`.

        Rows of x are dense. They may have any distance in memory.
        """
        words, q, (rows, n) = self._dense(x), gadget.basis.moduli[0], x.shape
        digits = self.empty((rows, gadget.levels, 1, n), x.dtype)
        self.decompose(gadget, words[:, None], digits)
        values = digits[:, :, 0]
        if q < 1 << 8 * x.dtype.itemsize:
            # A residue above (q - 1) / 2 stands for the negative digit residue - q. Subtraction wraps around.
            word = x.dtype.type
            self.xp.subtract(values, word(q), out=values, where=values > word((q - 1) // 2))
        out[...] = self.xp.moveaxis(values.view(f"i{x.dtype.itemsize}"), 1, 2)

    def prepare(self, gadget: Gadget, matrices: Array, out: Array) -> None:
        """Convert the polynomials of GGSW matrices to the form that gadget_product() of this device needs.

        matrices: coefficients, (*batch, 1, n). out: complex128, (*batch, digits, points); the gadget's
        product plan gives digits and points. By default, the n coefficients are copied unchanged to the first
        words of each item of out.
        """
        n = matrices.shape[-1]
        self.copy(matrices[..., 0, :], out.reshape(*out.shape[:-2], -1).view(np.uint64)[..., :n])

    def gadget_product(self, gadget: Gadget, ggsw: Array, c: Array, out: Array) -> None:
        """Compute external products: out_j = sum over i and l of digit_l(c_i) * ggsw[i, l, j].

        c and out: (*batch, k, 1, n), in coefficients; out may be c. ggsw: (k, levels, k, 1, n), evaluated if
        the gadget has a transform; otherwise an array of prepare(), (k, levels, k, digits, points).
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
        product: Any = gadget.product  # multiply() needs only a basis and a quotient, and this plan has both
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
        """Rotate blindly: y = X^e_0 * c, then for i = 1, 2, ... y = y + ggsws[i - 1] * (X^e_i * y - y).

        The product with a GGSW matrix is that of gadget_product(). out: the array for the last y. It must not
        be c. exponents: e_0, e_1, ... as in mul_monomial(), (*batch, 1 + count), on the host or on the
        device of c.
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
        """Rotate blindly with one key for each group of g secret bits; return False if unsupported.

        Multiply c by X^e_0, then for each group j by the GGSW matrix M_j. M_j is the sum of X^(e_S) * keys[j,
        S] over the subsets S of the group, and e_S is the sum of e_i over i in S. keys: (groups, 2^g, k,
        levels, k, 1, n), in coefficients. The last group may have fewer bits. Call this only if
        `gadget.product` is a TorusPlan.
        """
        return False

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """Transform rows of complex numbers, (rows, n), by FFT; the inverse includes the factor 1/n."""
        fft = self.xp.fft
        out[...] = (fft.ifft if inverse else fft.fft)(x).astype(x.dtype)

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """Compute the cyclic convolution of each row of a with a row of b; a row is 64 complex numbers.

        b: as many rows as a, or one row for all rows of a.
        """
        fft = self.xp.fft
        out[...] = fft.ifft(fft.fft(a) * fft.fft(b)).astype(a.dtype)


class HostBackend(Backend):
    """A backend that computes on NumPy arrays, and has the operations that always run on the host."""

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
        """Invert polynomials modulo the quotient and the one modulus of `basis`, a prime.

        Returns an int64 for each item (polynomial): 0 if the item has an inverse, otherwise the degree of its
        greatest common divisor with the quotient. If x has an item without an inverse, this item of `out` is
        undefined.
        """

    @abstractmethod
    def find_wrong_product(
        self, basis: Basis, a: Array, b: Array, c: Array, points: Array, quotient: Quotient
    ) -> int:
        """Return the index of the first row of c that differs from a * b at one of the points, or -1.

        The index counts the rows of all items in C order. a, b, c: coefficients modulo primes of any size.
        Batch axes of a and b broadcast to batch axes of c. points: (rows, count), residues modulo each limb.
        """


_WORD = (1 << 64) - 1


def _rounded(v: int) -> float:
    """Return the double nearest to the integer v, or an infinity if v is too large."""
    try:
        return float(v)
    except OverflowError:
        return math.copysign(math.inf, v)


def _small_integers(sampler: Sampler, numbers: list[int]) -> list[int]:
    """Return the coefficients that the sampler's rule computes from the random integers of one polynomial."""
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
