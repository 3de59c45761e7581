"""Products of polynomials: by the ring's own transform, by FFT, through auxiliary primes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...errors import ParameterError
from ...plans.basis import Basis
from ...plans.ntt import NttPlan, TransformSize
from ...plans.product import AuxiliaryPlan, AuxiliarySize, FftProductPlan, Plan
from .. import Array
from .elementwise import Elementwise
from .launch import LAYOUT, POINTER, U32, U64, Launch, Record, Struct, cbool, ctype, entrywise
from .tiles import (
    Card,
    Pass,
    Rows,
    fft_tile,
    groups_of,
    kernel_digits,
    split_passes,
    table_offsets,
    word_bytes_of,
    word_of,
)
from .transform import (
    PASS,
    TABLES,
    Transform,
    blocks_ahead,
    order_of,
    packed_pass,
    packed_tables,
    passes_over,
    tiles_and_grid,
)

_CHUNK_BYTES = 1 << 28  # of residues modulo auxiliary primes held at a time
_MAX_PRIMES = 6  # crt.cu

LEAVES = Struct(
    "pointwise.cu",
    "LeavesParameters<u64>",
    ("a b y constants moduli", POINTER),
    ("n entries", U64),
    ("limbs leaf_size dense", U32),
    ("layout", LAYOUT),
)
PRODUCT = Struct(
    "ntt.cu",
    "ProductParameters<u64>",
    ("a b y", POINTER),
    ("pass", PASS),
    ("inverse_offset", U64),
    ("rows_a rows_b ahead", U32),
    ("tables", TABLES),
)
FFT_PRODUCT = Struct(
    "fft_product.cu",
    "FftProductParameters<u64>",
    ("a b y moduli twiddles", POINTER),
    ("units rows_a rows_b", U64),
    ("limbs degree width sums negacyclic", U32),
)
FFT_SPLIT = Struct(
    "fft_product.cu",
    "SplitParameters<u64>",
    ("x y moduli", POINTER),
    ("degree points units first_unit", U64),
    ("limbs count width dense", U32),
    ("layout", LAYOUT),
)
FFT_MULTIPLY = Struct(
    "fft_product.cu",
    "FftMultiplyParameters",
    ("a b y", POINTER),
    ("points units", U64),
    ("count sums", U32),
)
FFT_COMPOSE = Struct(
    "fft_product.cu",
    "FftComposeParameters<u64>",
    ("x y moduli", POINTER),
    ("degree points units first_unit", U64),
    ("limbs width sums negacyclic", U32),
)
ARRANGE = Struct(
    "tables.cu",
    "ArrangeParameters",
    ("table nodes", POINTER),
    ("offset", U64),
    ("log_blocks log_length log_values", U32),
)
SPREAD = Struct(
    "crt.cu",
    "SpreadParameters<u64>",
    ("x y moduli primes", POINTER),
    ("n length units first_unit", U64),
    ("limbs count dense", U32),
    ("layout", LAYOUT),
)
COMPOSE = Struct(
    "crt.cu",
    "ComposeParameters<u64>",
    ("x y moduli primes constants", POINTER),
    ("n length units first_unit", U64),
    ("limbs count negacyclic", U32),
)


# ---- launches, pure functions of sizes, addresses and the card ----


def leaves_launch(plan: NttPlan, entries: int, **values: Any) -> Launch:
    """Products modulo the leaves of an incomplete transform."""
    parameters = LEAVES(
        n=plan.degree, entries=entries, limbs=plan.basis.rows, leaf_size=plan.leaf_size, **values
    )
    return entrywise("pointwise.cu", f"multiply_eval<{ctype(plan.basis)}>", entries, parameters)


def product_passes(
    points: int, leaf_size: int, word_bytes: int, card: Card, rows: int | None = None
) -> tuple[Pass, ...]:
    """The one pass of a product in one kernel; none where both operands do not fit one block of threads."""
    passes = passes_over(None, points, leaf_size, word_bytes, card) if points > 1 else ()
    if leaf_size > 1 or len(passes) != 1:
        return ()
    fits = 2 * passes[0].shared_values * word_bytes <= card.shared_bytes
    if not fits or word_bytes << passes[0].log_values > 128:
        return ()
    of_few = passes_over(rows, points, leaf_size, word_bytes, card)
    return of_few if len(of_few) == 1 else passes  # one kernel is sooner done than two passes thrice


def product_launch(rows: Rows, passed: Pass, offsets: tuple[int, ...], card: Card, **values: int) -> Launch:
    """A product in one kernel; offsets of the forward and of the inverse pass in the primes' tables."""
    tiles, grid = tiles_and_grid(rows, passed, card)
    own = {"pass": packed_pass(rows, passed, offsets[0], tiles), "inverse_offset": offsets[1]}
    own["tables"] = rows.tables
    parameters = PRODUCT(**values, **own, ahead=blocks_ahead(rows, passed, card))
    shared = 2 * passed.shared_values * word_bytes_of(rows.word)
    kernel = f"ntt_product<{rows.word}, {passed.shape}>"
    return Launch("ntt.cu", kernel, grid, passed.threads, parameters, shared)


def fft_product_launch(plan: FftProductPlan, tile: Pass, units: int, **values: int) -> Launch:
    """A product by FFT in one kernel."""
    digits, negacyclic = kernel_digits(plan), plan.kind == "negacyclic"
    width, sums = plan.split(digits)
    fold = plan.length != plan.degree or not negacyclic
    sizes = {"limbs": plan.basis.rows, "degree": plan.degree, "width": width, "sums": sums}
    parameters = FFT_PRODUCT(units=units, negacyclic=negacyclic, **sizes, **values)
    kernel = f"fft_product<{ctype(plan.basis)}, {tile.shape}, {digits}, {cbool(fold)}>"
    shared = tile.shared_values * word_bytes_of("Complex128")
    grid = -(-units * 2 * digits >> tile.log_rows), 1
    return Launch("fft_product.cu", kernel, grid, tile.threads, parameters, shared)


def fft_split_launch(plan: FftProductPlan, units: int, **values: Any) -> Launch:
    """The digits of an operand."""
    sizes = {"degree": plan.degree, "points": plan.points, "units": units, "limbs": plan.basis.rows}
    parameters = FFT_SPLIT(count=plan.digits, width=plan.width, **sizes, **values)
    return entrywise("fft_product.cu", f"fft_split<{ctype(plan.basis)}>", units * plan.points, parameters)


def fft_multiply_launch(plan: FftProductPlan, units: int, **values: int) -> Launch:
    """The sums of products of transformed digits."""
    sizes = {"points": plan.points, "units": units, "count": plan.digits, "sums": plan.sums}
    return entrywise("fft_product.cu", "fft_multiply", units * plan.points, FFT_MULTIPLY(**sizes, **values))


def fft_compose_launch(plan: FftProductPlan, units: int, **values: int) -> Launch:
    """Residues of the sums."""
    sizes = {"degree": plan.degree, "points": plan.points, "units": units, "limbs": plan.basis.rows}
    sizes |= {"width": plan.width, "sums": plan.sums, "negacyclic": plan.kind == "negacyclic"}
    kernel = f"fft_compose<{ctype(plan.basis)}>"
    return entrywise("fft_product.cu", kernel, units * plan.degree, FFT_COMPOSE(**sizes, **values))


def arrange_launch(passed: Pass, **values: int) -> Launch:
    """Complex twiddles in the order of a pass."""
    parameters = ARRANGE(**order_of(passed), **values)
    return entrywise("tables.cu", "arrange_twiddles<Complex128>", passed.entries, parameters)


def _sizes(plan: AuxiliaryPlan, units: int) -> dict[str, int]:
    length, count = plan.transform.degree, len(plan.transform.basis.moduli)
    return {"n": plan.degree, "length": length, "units": units, "limbs": plan.basis.rows, "count": count}


def spread_launch(plan: AuxiliaryPlan, units: int, **values: Any) -> Launch:
    """Residues modulo the auxiliary primes."""
    parameters = SPREAD(**_sizes(plan, units), **values)
    return entrywise("crt.cu", f"crt_spread<{ctype(plan.basis)}>", units * plan.transform.degree, parameters)


def compose_launch(plan: AuxiliaryPlan, units: int, **values: int) -> Launch:
    """Residues of the integers that have these residues modulo the auxiliary primes."""
    parameters = COMPOSE(**_sizes(plan, units), negacyclic=plan.kind == "negacyclic", **values)
    return entrywise("crt.cu", f"crt_compose<{ctype(plan.basis)}>", units * plan.degree, parameters)


# ---- on a device ----


class Multiply(Elementwise, Transform):
    """Chooses how a plan multiplies; kernels of ntt.cu, fft_product.cu and crt.cu."""

    def product_ns(self, basis: Basis, way: FftProductPlan | TransformSize | AuxiliarySize) -> float:
        """See Backend; fitted to measurements on an H200 (docs/performance.md, "How a ring multiplies")."""
        if isinstance(way, FftProductPlan):
            one_kernel = fft_tile(way, self.card) is not None
            ps = 3.5 * way.work(kernel_digits(way)) if one_kernel else 9 * way.work(way.digits)
        elif isinstance(way, AuxiliarySize):
            ps = 35.0 * way.points * way.primes
        elif way.leaf_size > 1:
            ps = 35.0 * way.points * way.leaf_size
        else:
            size = basis.dtype.itemsize
            slow = sum(word_of(q, size, self.card) == "Strict64" for q in basis.moduli)
            slow = slow if way.points >= 256 else 0
            return (90.0 * slow + 20.0 * (len(basis.moduli) - slow)) * way.points / 1000
        return len(basis.moduli) * ps / 1000

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """See Backend; by measurement (docs/studies/gemm.md)."""
        complete = isinstance(plan, NttPlan) and plan.leaf_size == 1
        return not complete and plan.degree <= 128 and count * plan.degree >= 1 << 22

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        if isinstance(plan, AuxiliaryPlan):
            self._multiply_auxiliary(plan, a, b, out)
        elif isinstance(plan, FftProductPlan):
            self._multiply_fft(plan, a, b, out)
        elif product_passes(plan.points, plan.leaf_size, plan.basis.dtype.itemsize, self.card):
            self._multiply_fused(plan, a, b, out)
        else:
            with self._scope:
                x = self.xp.empty(a.shape, a.dtype)
                y = x if b is a else self.xp.empty(b.shape, b.dtype)
            self.ntt(plan, a, x)
            if b is not a:
                self.ntt(plan, b, y)
            self.multiply_eval(plan, x, y, out)
            self.intt(plan, out, out)

    def multiply_eval(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        basis = plan.basis
        if plan.leaf_size == 1:
            self.pointwise(basis, "mul", a, b, None, out)
        else:
            # Every coefficient of a leaf reads all of both operands' leaf.
            with self._scope:
                a, b = (x.copy() if self.xp.may_share_memory(x, out) else x for x in (a, b))
            operands, where = self._spread(out.shape, a, b)
            where |= dict(zip("aby", map(self.address, (*operands, out)), strict=True))
            where |= {"constants": self._leaves(plan), "moduli": self._moduli(basis)}
            self.launch(leaves_launch(plan, out.size, **where))

    # ---- in one kernel ----

    def _multiply_fused(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        count = prod(out.shape[:-2])
        a, b = (self._repeated(x, out.shape) for x in (a, b))
        sizes = {"rows_a": prod(a.shape[:-1]), "rows_b": prod(b.shape[:-1])}
        key = ("product", count, *sizes.values())
        for record in self._recorded(plan.handles, key, lambda: self._product_records(plan, count, **sizes)):
            self._use(record.used)
            self.launch(record.launches[0], *(self.address(x) + record.offset for x in (a, b, out)))

    def _product_records(self, plan: NttPlan, count: int, **sizes: int) -> list[Record]:
        """Of each group of limbs."""
        rows, size = count * len(plan.basis.moduli), plan.basis.dtype.itemsize
        passes = product_passes(plan.points, plan.leaf_size, size, self.card, rows)
        records = []
        for group in groups_of(plan.basis, self.card):
            own, offset, offsets, used = self._rows(plan, group, count, passes)
            launch = product_launch(own, passes[0], offsets, self.card, **dict.fromkeys("aby", 0), **sizes)
            records.append(Record((launch,), used, offset))
        return records

    # ---- by FFT ----

    def _multiply_fft(self, plan: FftProductPlan, a: Array, b: Array, out: Array) -> None:
        tile = fft_tile(plan, self.card)
        if tile is None:
            self._multiply_fft_in_passes(plan, a, b, out)
            return
        a, b = (self._repeated(x, out.shape) for x in (a, b))
        where = {name: self.address(x) for name, x in (("a", a), ("b", b), ("y", out))}
        where |= {"moduli": self._moduli(plan.basis), "twiddles": self._fft_tables(plan, (tile,))}
        where |= {"rows_a": prod(a.shape[:-1]), "rows_b": prod(b.shape[:-1])}
        self.launch(fft_product_launch(plan, tile, prod(out.shape[:-1]), **where))

    def _multiply_fft_in_passes(self, plan: FftProductPlan, a: Array, b: Array, out: Array) -> None:
        moduli, points = self._moduli(plan.basis), plan.points
        passes = split_passes(points, 1, word_bytes_of("Complex128"), self.card)
        tables, offsets = packed_tables([self._fft_tables(plan, passes)]), table_offsets(passes, "Complex128")
        units, log_points = prod(out.shape[:-1]), points.bit_length() - 1
        step = max(1, _CHUNK_BYTES // (16 * points * (2 * plan.digits + plan.sums)))
        for first in range(0, units, step):
            size = min(step, units - first)

            def transform(x: Array, direction: str) -> None:
                rows = Rows(prod(x.shape[:2]), 1, 0, log_points, "Complex128", moduli, tables)
                record = self._record(rows, passes, offsets, direction)
                self._replay(record, self.address(x), self.address(x))

            spectra: list[Array] = []
            for x in (a,) if b is a else (a, b):
                with self._scope:
                    y = self.xp.empty((size, plan.digits, points), np.complex128)
                (source,), where = self._spread(out.shape, x)
                where |= {"x": self.address(source), "y": self.address(y), "moduli": moduli}
                self.launch(fft_split_launch(plan, size, first_unit=first, **where))
                transform(y, "forward")
                spectra.append(y)
            with self._scope:
                c = self.xp.empty((size, plan.sums, points), np.complex128)
            where = dict(zip("aby", map(self.address, (spectra[0], spectra[-1], c)), strict=True))
            self.launch(fft_multiply_launch(plan, size, **where))
            transform(c, "inverse")
            where = {"x": self.address(c), "y": self.address(out), "moduli": moduli}
            self.launch(fft_compose_launch(plan, size, first_unit=first, **where))

    def _fft_tables(self, plan: FftProductPlan, passes: tuple[Pass, ...]) -> int:
        """The address of the twiddles of each pass, in its order, at table_offsets."""

        def make() -> Array:
            nodes, offsets = self.from_host(plan.twiddles), table_offsets(passes, "Complex128")
            table: Array = self.xp.empty(offsets[len(passes)], np.uint8)
            where = {"table": self.address(table), "nodes": self.address(nodes)}
            for passed, offset in zip(passes, offsets, strict=False):
                self.launch(arrange_launch(passed, offset=offset, **where))
            return table

        return self.address(self._shared(plan.handles, f"tables {passes}", make))

    # ---- through auxiliary primes ----

    def _multiply_auxiliary(self, plan: AuxiliaryPlan, a: Array, b: Array, out: Array) -> None:
        basis, transform, n = plan.basis, plan.transform, plan.degree
        count, length = len(transform.basis.moduli), transform.degree
        if count > _MAX_PRIMES:
            raise ParameterError(
                f"product: n = {n} takes {count} auxiliary primes, at most {_MAX_PRIMES} fit a kernel; "
                "multiply on the host with poly.cpu()"
            )
        constants = self._shared(
            plan.handles, "digits", lambda: self.from_host(_mixed_radix(transform.basis.moduli))
        )
        common = {"moduli": self._moduli(basis), "primes": self._moduli(transform.basis)}
        units = prod(out.shape[:-1])
        step = max(1, _CHUNK_BYTES // (8 * count * length))
        for first in range(0, units, step):
            size = min(step, units - first)
            common["first_unit"] = first
            residues = []
            for x in (a, b):
                with self._scope:
                    residues.append(self.xp.empty((size, count, length), np.uint64))
                (source,), where = self._spread(out.shape, x)
                where |= {"x": self.address(source), "y": self.address(residues[-1])}
                self.launch(spread_launch(plan, size, **where, **common))
            self.multiply(transform, residues[0], residues[1], residues[0])
            where = {"x": self.address(residues[0]), "y": self.address(out)}
            where["constants"] = self.address(constants)
            self.launch(compose_launch(plan, size, **where, **common))


def _mixed_radix(primes: tuple[int, ...]) -> Array:
    """1/p_j mod p_i, row by row, then the mixed-radix digits of (P - 1) / 2 (crt.cu)."""
    count = len(primes)
    table = np.zeros(count * count + count, np.uint64)
    for i, p in enumerate(primes):
        for j in range(i):
            table[i * count + j] = pow(primes[j], -1, p)
    rest = (prod(primes) - 1) // 2
    for i, p in enumerate(primes):
        rest, table[count * count + i] = divmod(rest, p)
    return table
