"""The CPU backend: the native core, its threads and its instruction set."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy as np

from .. import _cpu
from .._core.exact.crt import ints_to_words, reduce_ints, signed_words
from .._core.memory import new_array
from .._core.plans.basis import Basis
from .._core.plans.cache import keep
from .._core.plans.crt import composition_of, words_of
from .._core.plans.gadget import Gadget
from .._core.plans.ntt import NttPlan, PrimeTables, TransformSize
from .._core.plans.permutation import automorphism_index
from .._core.plans.product import AuxiliaryPlan, AuxiliarySize, FftProductPlan, FftSumPlan, Plan
from .._core.plans.rns import Conversion, Residues
from .._core.plans.sampling import Sampler
from .._core.plans.switch import DigitProduct, RotatedSums
from .._core.plans.torus import TorusPlan
from .._core.processors import available_processors
from .._core.quotient import Quotient
from .._core.reporting import Work, counted
from ..errors import DeviceError, OutOfHostMemory, ParameterError
from .base import HostBackend, Op
from .cipher import Keystream
from .host_records import Constant, Step, note_foreign, note_made, noted, observe
from .records import Array, Record

_PIECE = 1 << 17  # bytes of a piece of random stream; the piece and as many zero bytes fit the L2 cache
_OPS = {name: code for code, name in enumerate(_cpu.OPS)}

_LONG_TABLES = 1 << 17  # points; tables of at least this many take about 10 ms and report progress
_ORDERS = 256  # the most permutations of points (one for each automorphism) kept for one transform
_SUMS = 32  # the most native objects kept for a plan of rotated sums; each is for one tuple of automorphisms
_MOST_KEPT = 1 << 62  # bytes; no real bound, because the core bounds the pool by a share of the free memory
_DIGIT_BITS = 52  # bits of a digit in the core's sums of words (kernels.hpp, SumWords)


def configure() -> None:
    """Set up the core by environment variables.

    POLYGPU_CPU_ISA chooses the instruction set, POLYGPU_NUM_THREADS the number of threads, and
    POLYGPU_POOL_BYTES how many bytes of freed results are kept for new results. An empty variable counts as
    not set.
    """
    isa = os.environ.get("POLYGPU_CPU_ISA")
    if isa:
        supported = _cpu.supported_isas()
        if isa not in supported:
            raise DeviceError(
                f"POLYGPU_CPU_ISA={isa!r} is not an instruction set of this CPU. Use one of "
                f"{', '.join(supported)}."
            )
        _cpu.set_isa(isa)
    threads = os.environ.get("POLYGPU_NUM_THREADS")
    if not threads:
        _cpu.set_num_threads(available_processors())
    elif threads.isdecimal() and 1 <= int(threads) <= 4096:
        _cpu.set_num_threads(int(threads))
    else:
        raise ParameterError(f"POLYGPU_NUM_THREADS={threads!r} must be an integer from 1 to 4096.")
    kept = os.environ.get("POLYGPU_POOL_BYTES")
    if not kept:
        _cpu.pool_set_bounds(_MOST_KEPT)
    elif kept.isdecimal() and len(kept) <= 18:
        _cpu.pool_set_bounds(int(kept))
    else:
        raise ParameterError(
            f"POLYGPU_POOL_BYTES={kept!r} must be an integer number of bytes from 0 to 10^18 - 1. Use 0 to "
            "keep no freed memory for later results."
        )


def _words(moduli: Iterable[int]) -> list[int]:
    """Return moduli as 64-bit words for the core; 0 stands for 2^64."""
    return [q % (1 << 64) for q in moduli]


def _coefficients(out: Array) -> int:
    """Return batch size * n for an array (*batch, rows, n)."""
    return int(prod(out.shape[:-2]) * out.shape[-1])


def _pieces(
    key: bytes, limb: int, start: int, count: int, size: int, unit: int = 1
) -> Iterator[tuple[int, int, Array]]:
    """Yield the random bytes of coefficients start to start + count - 1, in pieces that stay in the cache.

    A piece is a tuple (first, some, words): `some` coefficients from index start + first, and their bytes as
    64-bit words. The next piece overwrites the words. size: bytes of one coefficient. If `count` is a
    multiple of `unit`, each `some` is a multiple of `unit` too.
    """
    if not count:
        return
    step = min(count, max(1, _PIECE // (size * unit)) * unit)
    words = np.empty(-(-step * size // 8), np.uint64)
    stream, zeros = Keystream(key, limb, start * size), np.zeros(step * size, np.uint8)
    for first in range(0, count, step):
        some = min(step, count - first)
        stream.fill(words.view(np.uint8)[: some * size], zeros)
        yield first, some, words


class _Scope:
    """A `with` block in which NumPy allocates from the pool of results.

    A MemoryError in the block becomes OutOfHostMemory.
    """

    __slots__ = ("_before", "_views")

    def __init__(self, views: bool) -> None:
        self._views = views

    def __enter__(self) -> None:
        self._before = _cpu.set_memory_handler(_cpu.RESULTS)
        if not self._views:
            note_foreign()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        _cpu.set_memory_handler(self._before)
        if isinstance(error, MemoryError) and not isinstance(error, OutOfHostMemory):
            raise OutOfHostMemory(f"There is not enough memory ({error}). Use smaller batches.") from None


class CpuBackend(HostBackend):
    """The backend whose operations the native core computes."""

    name = "cpu"

    def __init__(self) -> None:
        configure()

    def device_scope(self, views: bool = False) -> AbstractContextManager[Any]:
        return _Scope(views)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Take memory from the pool of results (_core/memory.py)."""
        array = new_array(shape, dtype)
        note_made(array)
        return array

    def _native_basis(self, basis: Basis) -> _cpu.Basis:
        native: _cpu.Basis | None = basis.handles.get("cpu")
        if native is None:
            # A modulus of 2^(64 * words) does not fit into `words` words, so 0 stands for it.
            moduli = np.array(basis.moduli, dtype=object) % (1 << 64 * basis.words)
            words = np.ascontiguousarray(ints_to_words(moduli, basis.words).T)
            native = _cpu.Basis(words, 8 * basis.dtype.itemsize)
            basis.handles["cpu"] = native
        return native

    def _native_tables(self, tables: PrimeTables) -> _cpu.PrimeTables:
        native: _cpu.PrimeTables | None = tables.handles.get("cpu")
        if native is None:
            native = _cpu.PrimeTables(tables.modulus, tables.forward, tables.inverse)
            tables.handles["cpu"] = native
        return native

    def _native(self, plan: Plan | FftSumPlan) -> Any:
        """Return the core's object for a plan: Transform, Auxiliary or FftProduct."""
        native = plan.handles.get("cpu")
        if native is None:
            native = plan.handles["cpu"] = self._make_native(plan)
        return native

    def _make_native(self, plan: Plan | FftSumPlan) -> _cpu.Transform | _cpu.Auxiliary | _cpu.FftProduct:
        basis, degree, quotient = self._native_basis(plan.basis), plan.degree, plan.quotient.native
        if isinstance(plan, NttPlan):
            missing = [table for table in plan.tables if "cpu" not in table.handles]
            count, log2 = len(missing), plan.points.bit_length() - 1
            primes, is_long = counted(count, "prime"), count * plan.points >= _LONG_TABLES
            with Work(count, "tables of 2^{} points modulo {}", log2, primes, when=is_long) as work:
                for table in missing:
                    self._native_tables(table)
                    work.step()
            tables = tuple(self._native_tables(table) for table in plan.tables)
            return _cpu.Transform(basis, degree, plan.leaf_size, plan.block, quotient, tables)
        if isinstance(plan, AuxiliaryPlan):
            return _cpu.Auxiliary(basis, self._native(plan.transform), degree, quotient)
        small = (plan.terms, plan.bits) if isinstance(plan, FftSumPlan) else ()
        sizes = plan.digits, plan.width, plan.sums
        return _cpu.FftProduct(basis, degree, plan.length, quotient, *sizes, plan.twiddles, *small)

    # ---- records ----

    @staticmethod
    def _do(function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function. If a record is being made, note the function and its arguments as one step."""
        notes = noted.get()
        if notes is None:
            return function(*arguments)
        token = noted.set(None)  # calls inside the function are parts of this step
        try:
            returned = function(*arguments)
        finally:
            noted.reset(token)
        notes.append(Step(function, arguments))
        return returned

    def to_host(self, x: Array) -> Array:
        note_foreign()  # the caller may compute with the values, and a record cannot repeat that
        return x

    def from_host(self, x: Array) -> Array:
        note_foreign()
        return x

    def constant(self, x: Array) -> Array:
        """Return the array itself. If a record is being made, note the array as a constant."""
        notes = noted.get()
        if notes is not None:
            notes.append(Constant(x))
        return x

    def copy(self, x: Array, out: Array) -> None:
        self._do(np.copyto, out, x, "unsafe")

    # With mode="clip", np.take writes directly to `out`; with the default, "raise", it uses a buffer. Both
    # give the same result, because all indices are in range.

    def take(self, x: Array, index: Array, out: Array) -> None:
        self._do(np.take, x, index, -1, out, "clip")

    def gather(self, x: Array, index: Array, out: Array) -> None:
        self._do(np.take, x, index, 0, out, "clip")

    def scatter(self, x: Array, index: Array, out: Array) -> None:
        self._do(super().scatter, x, index, out)

    def observe(
        self, work: Callable[[], Array], operands: Sequence[Array], out: Array | None
    ) -> tuple[Array, Record | None]:
        """Do the work, and record each call to the core as a step."""
        return observe(work, operands, out, self)

    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        native, code = self._native_basis(basis), _OPS[op]
        self._do(native.pointwise, code, a, b, c, out)

    def combine(
        self,
        basis: Basis,
        operands: Sequence[Array],
        factors: Array,
        constant: Array | None,
        step: int,
        out: Array,
    ) -> None:
        self._do(self._native_basis(basis).combine, factors, constant, step, out, *operands)

    def automorphism(
        self, basis: Basis, quotient: Quotient, x: Array, multipliers: Array, evaluated: bool, out: Array
    ) -> None:
        self._do(super().automorphism, basis, quotient, x, multipliers, evaluated, out)

    def mul_monomial(self, basis: Basis, quotient: Quotient, x: Array, exponents: Array, out: Array) -> None:
        if basis.words > 1:
            self._do(super().mul_monomial, basis, quotient, x, exponents, out)
        else:  # the core moves runs of coefficients, which is faster than one index per coefficient
            self._do(self._mul_monomial, basis, x, exponents, quotient.native, out)

    def _mul_monomial(self, basis: Basis, x: Array, exponents: Array, quotient: Any, out: Array) -> None:
        each = np.full(x.shape[:-2], exponents, np.int64)
        self._native_basis(basis).mul_monomial(x, each, quotient, out)

    def _permute(
        self, basis: Basis, x: Array, numbers: Array, index_of: Callable[[int], Array], out: Array
    ) -> None:
        native = self._native_basis(basis)
        if numbers.size == 1:
            native.permute(x, index_of(numbers.item()), out)
            return
        each = np.broadcast_to(numbers, x.shape[:-2])
        for number in set(numbers.ravel().tolist()):
            items = x[each == number]
            moved = np.empty_like(items)
            native.permute(items, index_of(number), moved)
            out[each == number] = moved

    def scale_by_powers(self, basis: Basis, x: Array, first: Array, step: Array, out: Array) -> None:
        dense = out if out.flags.c_contiguous and out.shape == x.shape else self.empty(x.shape, x.dtype)
        given = x
        if not x.flags.c_contiguous:
            given = self.empty(x.shape, x.dtype)
            self.copy(x, given)
        self._do(self._native_basis(basis).scale_by_powers, given, first, step, dense)
        if dense is not out:
            self.copy(dense.reshape(out.shape), out)

    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        native = self._native_basis(basis)
        if x.dtype != object:
            self._do(native.reduce_integers, x, out)
            return
        words = signed_words(x.ravel().tolist())
        if words is not None:
            self._do(native.reduce_large_integers, words.reshape(*x.shape, words.shape[-1]), out)
        else:
            self._do(reduce_ints, basis.moduli, x, out)

    def _composition(self, basis: Basis) -> _cpu.Composition:
        native: _cpu.Composition | None = basis.handles.get("cpu composition")
        if native is None:
            plan = composition_of(basis)
            tables = plan.tables(_DIGIT_BITS)
            native = _cpu.Composition(self._native_basis(basis), words_of(plan.modulus), *tables)
            basis.handles["cpu composition"] = native
        return native

    def to_words(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        self._do(self._composition(basis).to_words, x, centered, out)

    def to_int64(self, basis: Basis, x: Array, centered: bool, out: Array) -> int:
        first: int = self._do(self._composition(basis).to_int64, x, centered, out)
        return first

    def to_float64(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        self._do(self._composition(basis).to_float64, x, centered, out)

    def norm(self, basis: Basis, x: Array, p: float, out: Array) -> None:
        self._do(self._composition(basis).norm, x, 0 if p == math.inf else int(p), out)

    def uniform(self, basis: Basis, key: bytes, start: int, out: Array) -> None:
        native, n, size = self._native_basis(basis), out.shape[-1], 8 * (basis.words + 1)
        for limb in range(len(basis.moduli)):
            for first, some, words in _pieces(key, limb, start * n, _coefficients(out), size):
                self._do(native.reduce_words, words[: some * size // 8], limb, first, out)

    def sample(self, basis: Basis, sampler: Sampler, key: bytes, start: int, out: Array) -> None:
        native, n = self._native_basis(basis), out.shape[-1]
        drawn = self._native_sampler(sampler)
        unit = n if sampler.shape == "sparse" else 1
        for first, some, words in _pieces(key, 0, start * n, _coefficients(out), sampler.size, unit):
            self._do(drawn.draw, native, words, first, some, out)

    def _native_sampler(self, sampler: Sampler) -> _cpu.Sampler:
        native: _cpu.Sampler | None = sampler.handles.get("cpu")
        if native is None:
            weights = np.array(sampler.weights, np.int64)
            thresholds = np.array(sampler.thresholds, np.uint64)
            shape = _cpu.SHAPES.index(sampler.shape)
            native = _cpu.Sampler(shape, sampler.size, sampler.parameter, sampler.bound, weights, thresholds)
            sampler.handles["cpu"] = native
        return native

    def invert(self, basis: Basis, x: Array, quotient: Quotient, out: Array) -> Array:
        degrees = np.zeros(prod(out.shape[:-2]), np.int64)
        self._do(self._native_basis(basis).invert, x, quotient.native, out, degrees)
        return degrees

    def find_wrong_product(
        self, basis: Basis, a: Array, b: Array, c: Array, points: Array, quotient: Quotient
    ) -> int:
        return self._native_basis(basis).find_wrong_product(a, b, c, points, quotient.native)

    def ntt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        self._do(self._native(plan).ntt, x, out, first)

    def intt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        self._do(self._native(plan).intt, x, out, first)

    def convert(self, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> None:
        native = conversion.handles.get("cpu")
        if native is None:
            native = conversion.handles["cpu"] = self._native_conversion(conversion)
        self._do(native.run, x, own, out)

    def _native_conversion(self, conversion: Conversion) -> _cpu.Conversion:
        moduli = conversion.source.moduli

        def rows(of: Residues | None) -> _cpu.Residues:
            return _cpu.Residues(_words(of.moduli), list(of.at), of.total) if of else _cpu.Residues([], [], 0)

        native = _cpu.Conversion(
            rows(conversion.source),
            list(conversion.inverses),
            _cpu.Quotients(conversion.estimate, _words(moduli), conversion.numbers),
            rows(conversion.target),
            conversion.accumulate,
            None if conversion.transform is None else self._native(conversion.transform),
            rows(conversion.own),
            conversion.table,
        )
        if conversion.scales:
            divisors = _words(moduli[i] for i in conversion.divisors)
            fractions = _cpu.Quotients(conversion.fraction, divisors, conversion.fraction_numbers)
            native.scale(list(conversion.divisors), list(conversion.remainders), fractions)
        return native

    def product_ns(self, basis: Basis, way: FftProductPlan | TransformSize | AuxiliarySize) -> float:
        native = self._native_basis(basis)
        if isinstance(way, FftProductPlan):
            return native.ns_by_fft(way.work(way.digits))
        if isinstance(way, AuxiliarySize):
            return native.ns_by_primes(way.points, way.primes)
        return native.ns_by_transform(way.points, way.leaf_size)

    multiplies_bytes = True

    def prefers_bytes(self, basis: Basis, rows: int) -> bool:
        """Return whether matmul was faster with bytes in measurements (docs/experiments.md)."""
        q = basis.moduli[0]
        return rows >= 48 and q & (q - 1) != 0

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """Decide by measured thresholds (docs/performance.md)."""
        return plan.degree <= _cpu.most_matrix_degree() and count * plan.degree >= 1 << 15

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        self._do(self._native(plan).multiply, a, b, out)

    def multiply_eval(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        self._do(self._native(plan).multiply_eval, a, b, out)

    def matmul(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        if a.dtype.itemsize <= 2:
            self._do(self._native_basis(basis).matmul_bytes, a, a.dtype.kind == "i", b, out)
        else:
            self._do(self._native_basis(basis).matmul, a, b, out)

    def matmul_points(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        done = self._native_basis(basis).matmul_points(a, b, out)
        notes = noted.get()
        if notes is not None:
            notes.append(Step(done.run, (a, b, out), by_address=True))

    def digit_product(
        self,
        plan: DigitProduct,
        value: tuple[Array, Array] | None,
        digits: Array,
        key: Array,
        out: Array,
        more: Array | None = None,
    ) -> None:
        own = None
        if value is not None:
            x, own = value
            *batch, count, limbs, n = digits.shape
            self.convert_all(plan.conversions, x, digits.reshape(*batch, count * limbs, n))
        self._do(self._native_digits(plan).run, digits, own, key, out)
        if more is not None:
            self.convert(plan.adding, None, more, out)
        if plan.inverse:
            self.intt(plan.inverse_transform, out, out, plan.inverse[0])

    def _native_digits(self, plan: DigitProduct) -> _cpu.DigitProduct:
        native: _cpu.DigitProduct | None = plan.handles.get("cpu")
        if native is None:
            limbs, none = range(len(plan.key_rows)), (plan.digits, 0)
            native = _cpu.DigitProduct(
                self._native(plan.transform),
                plan.digits,
                [plan.own.get(i, none)[0] for i in limbs],
                [plan.own.get(i, none)[1] for i in limbs],
                plan.own_total,
                list(plan.key_rows),
                plan.key_total,
                not plan.conversions,
            )
            native = plan.handles.setdefault("cpu", native)  # if another thread was faster, use its object
        return native

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
        given = [key for key in keys if key is not None]
        self._do(self._run_rotated, plan, digits, multipliers, more, weights, out, *given)

    def _run_rotated(
        self,
        plan: RotatedSums,
        digits: Array | None,
        multipliers: Array,
        more: Array,
        weights: Array | None,
        out: Array,
        *keys: Array,
    ) -> None:
        native = self._native_rotated(plan, tuple(multipliers.tolist()))
        native.run(digits, more, weights, out, *keys)

    def _native_rotated(self, plan: RotatedSums, multipliers: tuple[int, ...]) -> _cpu.RotatedSums:
        known: dict[tuple[int, ...], _cpu.RotatedSums] = plan.handles.setdefault("cpu", {})
        native = known.get(multipliers)
        if native is None:
            products = plan.products
            native = _cpu.RotatedSums(
                self._native(plan.transform),
                max(1 if product is None else product.digits for product in products),
                tuple(self._native_order(plan.transform, multiplier) for multiplier in multipliers),
                [[] if product is None else list(product.key_rows) for product in products],
                [0 if product is None else product.key_total for product in products],
                list(plan.factors),
                list(plan.more_rows),
                plan.more_total,
                plan.is_turned,
                plan.is_split,
                [list(places) for places in plan.places],
            )
            native = keep(known, multipliers, native, _SUMS)
        return native

    def _native_order(self, transform: NttPlan, multiplier: int) -> _cpu.Order:
        known: dict[int, _cpu.Order] = transform.handles.setdefault("cpu orders", {})
        native = known.get(multiplier)
        if native is None:
            native = _cpu.Order(automorphism_index(transform.quotient, multiplier, True))
            native = keep(known, multiplier, native, _ORDERS)
        return native

    def _native_gadget(self, gadget: Gadget) -> _cpu.GadgetProduct | _cpu.TorusProduct:
        """Return the native object that splits values into digits and multiplies the digits."""
        if isinstance(gadget.product, TorusPlan):
            return self._native_torus(gadget.product)
        native: _cpu.GadgetProduct | None = gadget.handles.get("cpu")
        if native is None:
            transform = None if gadget.transform is None else self._native(gadget.transform)
            product = None if gadget.product is None else self._native(gadget.product)
            basis = self._native_basis(gadget.basis)
            native = _cpu.GadgetProduct(basis, transform, product, gadget.bits, gadget.levels)
            gadget.handles["cpu"] = native
        return native

    @staticmethod
    def _native_torus(plan: TorusPlan) -> _cpu.TorusProduct:
        native: _cpu.TorusProduct | None = plan.handles.get("cpu")
        if native is None:
            sizes = plan.modulus_bits, plan.bits, plan.levels
            native = plan.handles["cpu"] = _cpu.TorusProduct(*sizes, plan.twiddles, plan.roots)
        return native

    def decompose(self, gadget: Gadget, x: Array, out: Array) -> None:
        native = self._native_gadget(gadget)
        assert isinstance(native, _cpu.GadgetProduct)
        self._do(native.decompose, x, out)

    def prepare(self, gadget: Gadget, matrices: Array, out: Array) -> None:
        native = self._native_gadget(gadget)
        if isinstance(native, _cpu.TorusProduct):
            assert isinstance(gadget.product, TorusPlan)
            self._do(native.arrange, gadget.product.spectra(matrices[..., 0, :]), out)
        else:
            self._do(native.prepare, matrices, out)

    def gadget_product(self, gadget: Gadget, ggsw: Array, c: Array, out: Array) -> None:
        self._do(self._native_gadget(gadget).multiply, ggsw, c, out)

    def gadget_rotation(self, gadget: Gadget, ggsws: Array, c: Array, exponents: Array, out: Array) -> None:
        self._do(self._native_gadget(gadget).rotate, ggsws, c, exponents, out)

    def rotate_by_groups(self, gadget: Gadget, keys: Array, c: Array, exponents: Array, out: Array) -> bool:
        assert isinstance(gadget.product, TorusPlan)
        self._do(self._native_torus(gadget.product).rotate_by_groups, keys, c, exponents, out)
        return True

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        self._do(_cpu.fft, x, out, inverse)

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        self._do(_cpu.convolve64, a, b, out)
