"""Products of polynomials: by the ring's own transform, by FFT, through auxiliary primes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...errors import ParameterError
from ...plans.basis import Basis
from ...plans.ntt import NttPlan, TransformSize
from ...plans.product import AuxiliaryPlan, AuxiliarySize, FftPlan, Plan
from .. import Array
from .elementwise import Elementwise
from .launch import cbool, ctype
from .tiles import (
    Pass,
    Rows,
    fft_tile,
    kernel_digits,
    prefetch_distance,
    split_passes,
    word_bytes_of,
    word_of,
)
from .transform import Transform

_CHUNK_BYTES = 1 << 28  # of residues modulo auxiliary primes held at a time
_MAX_PRIMES = 6  # crt.cu


class Multiply(Elementwise, Transform):
    """Chooses how a plan multiplies; kernels of ntt.cu, fft_product.cu and crt.cu."""

    def product_ns(self, basis: Basis, way: FftPlan | TransformSize | AuxiliarySize) -> float:
        """See Backend; fitted to measurements on an H200 (docs/performance.md, "How a ring multiplies")."""
        if isinstance(way, FftPlan):
            one_kernel = fft_tile(way, self.card) is not None
            ps = 3.5 * way.work(kernel_digits(way)) if one_kernel else 9 * way.work(way.digits)
        elif isinstance(way, AuxiliarySize):
            ps = 35.0 * way.points * way.primes
        elif way.base > 1:
            ps = 35.0 * way.points * way.base
        else:
            strict = word_of(basis, self.card) == "Strict64" and way.points >= 256
            ps = (90.0 if strict else 20.0) * way.points
        return len(basis.moduli) * ps / 1000

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """See Backend; by measurement (docs/studies/gemm.md)."""
        complete = isinstance(plan, NttPlan) and plan.base == 1
        return not complete and plan.degree <= 128 and count * plan.degree >= 1 << 22

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        if plan.basis.wide:
            self._on_host("multiply", plan, a, b, out)
        elif isinstance(plan, AuxiliaryPlan):
            self._multiply_auxiliary(plan, a, b, out)
        elif isinstance(plan, FftPlan):
            self._multiply_fft(plan, a, b, out)
        elif self._fuses(plan):
            self._multiply_fused(plan, a, b, out)
        else:
            with self._here:
                x = self.xp.empty(a.shape, a.dtype)
                y = x if b is a else self.xp.empty(b.shape, b.dtype)
            self.ntt(plan, a, x)
            if b is not a:
                self.ntt(plan, b, y)
            self.multiply_leaves(plan, x, y, out)
            self.intt(plan, out, out)

    def multiply_leaves(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        basis = plan.basis
        if basis.wide:
            self._on_host("multiply_leaves", plan, a, b, out)
        elif plan.base == 1:
            self.pointwise(basis, "mul", a, b, None, out)
        else:
            # Every coefficient of a leaf reads all of both operands' leaf.
            with self._here:
                a, b = (x.copy() if self.xp.may_share_memory(x, out) else x for x in (a, b))
            operands, layout, dense = self._spread(out.shape, a, b)
            tables = self._tables(plan, self._passes(plan, prod(out.shape[:-1])))
            args: list[Any] = [*operands, out, tables["leaves"], self._moduli(basis), layout]
            args += [np.uint64(plan.degree), np.uint64(out.size), np.uint32(basis.rows)]
            args += [np.uint32(plan.base), dense]
            self._entrywise("pointwise.cu", f"multiply_leaves<{ctype(basis)}>", out.size, args)

    # ---- in one kernel ----

    def _fuses(self, plan: NttPlan) -> bool:
        """Whether both operands fit the registers of one block's threads."""
        passes = self._passes(plan)
        if plan.base > 1 or len(passes) != 1:
            return False
        word_bytes = plan.basis.dtype.itemsize
        fits = 2 * passes[0].shared_values * word_bytes <= self.card.shared_bytes
        return fits and word_bytes << passes[0].log_values <= 128

    def _multiply_fused(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        count = prod(out.shape[:-1])
        passes = self._passes(plan, count)
        if len(passes) > 1:  # of few rows, which one kernel does sooner than two passes thrice
            passes = self._passes(plan)
        (passed,) = passes
        tables = self._tables(plan, passes)
        word, log_degree = word_of(plan.basis, self.card), plan.degree.bit_length() - 1
        rows = Rows(count, len(plan.basis.moduli), log_degree, word, self._moduli(plan.basis))
        grid, grid_y, args = self._pass(rows, passed, tables["forward"][passed])
        shared = 2 * passed.shared_values * plan.basis.dtype.itemsize
        a, b = (self._repeated(x, out.shape) for x in (a, b))
        args = [
            a,
            b,
            out,
            *args,
            tables["inverse"][passed],
            np.uint64(prod(a.shape[:-1])),
            np.uint64(prod(b.shape[:-1])),
            np.uint32(prefetch_distance(passed, plan.basis.dtype.itemsize, self.card)),
        ]
        expression = f"ntt_product<{word}, {passed.shape}>"
        self._run("ntt.cu", expression, grid, passed.threads, args, shared, grid_y)

    # ---- by FFT ----

    def _multiply_fft(self, plan: FftPlan, a: Array, b: Array, out: Array) -> None:
        tile = fft_tile(plan, self.card)
        if tile is None:
            self._multiply_fft_in_passes(plan, a, b, out)
            return
        digits = kernel_digits(plan)
        width, sums = plan.split(digits)
        fold = plan.length != plan.degree or plan.kind == "cyclic"
        units, basis = prod(out.shape[:-1]), plan.basis
        operands = [self._repeated(x, out.shape) for x in (a, b)]
        args = [*operands, out, self._moduli(basis), self._fft_tables(plan, (tile,))[tile], np.uint64(units)]
        args += [np.uint64(prod(x.shape[:-1])) for x in operands]
        args += [np.uint32(x) for x in (basis.rows, plan.degree, width, sums, plan.kind == "negacyclic")]
        expression = f"fft_product<{ctype(basis)}, {tile.shape}, {digits}, {cbool(fold)}>"
        shared = tile.shared_values * word_bytes_of("Complex128")
        grid = -(-units * 2 * digits >> tile.log_rows)
        self._run("fft_product.cu", expression, grid, tile.threads, args, shared)

    def _multiply_fft_in_passes(self, plan: FftPlan, a: Array, b: Array, out: Array) -> None:
        basis, points, (width, sums) = plan.basis, plan.points, plan.split(plan.digits)
        moduli, log_points = self._moduli(basis), points.bit_length() - 1
        passes = split_passes(points, 1, word_bytes_of("Complex128"), self.card)
        tables = self._fft_tables(plan, passes)
        units = prod(out.shape[:-1])
        step = max(1, _CHUNK_BYTES // (16 * points * (2 * plan.digits + sums)))
        for first in range(0, units, step):
            size = min(step, units - first)

            def rows(count: int, size: int = size) -> Rows:
                return Rows(size * count, 1, log_points, "Complex128", moduli)

            spectra: list[Array] = []
            for x in (a,) if b is a else (a, b):
                with self._here:
                    y = self.xp.empty((size, plan.digits, points), np.complex128)
                (source,), layout, dense = self._spread(out.shape, x)
                args = [source, y, moduli, layout, *map(np.uint64, (plan.degree, points, size, first))]
                args += [*map(np.uint32, (basis.rows, plan.digits, width)), dense]
                self._entrywise("fft_product.cu", f"fft_split<{ctype(basis)}>", size * points, args)
                self._run_passes(rows(plan.digits), passes, tables, y, y, "forward")
                spectra.append(y)
            with self._here:
                c = self.xp.empty((size, sums, points), np.complex128)
            args = [spectra[0], spectra[-1], c, *map(np.uint64, (points, size))]
            args += map(np.uint32, (plan.digits, sums))
            self._entrywise("fft_product.cu", "fft_multiply", size * points, args)
            self._run_passes(rows(sums), passes, tables, c, c, "inverse")
            args = [c, out, moduli, *map(np.uint64, (plan.degree, points, size, first))]
            args += map(np.uint32, (basis.rows, width, sums, plan.kind == "negacyclic"))
            self._entrywise("fft_product.cu", f"fft_compose<{ctype(basis)}>", size * plan.degree, args)

    def _fft_tables(self, plan: FftPlan, passes: tuple[Pass, ...]) -> dict[Pass, Array]:
        """Twiddles by pass, in its order."""

        def make() -> dict[Pass, Array]:
            nodes = self.from_host(plan.twiddles)
            tables = {}
            for p in passes:
                entries = 1 << (p.log_blocks + p.log_length)
                tables[p] = self.xp.empty(entries, np.complex128)
                starts = self.from_host(np.array(p.starts, np.uint32))
                args = [tables[p], nodes, starts, np.uint32(p.log_blocks), np.uint32(p.log_length)]
                self._entrywise("tables.cu", "arrange_twiddles<Complex128>", entries, args)
            return tables

        return self._shared(plan.handles, f"tables {passes}", make)  # type: ignore[no-any-return]

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
        moduli, primes = self._moduli(basis), self._moduli(transform.basis)
        spread = [self._spread(out.shape, x) for x in (a, b)]
        units, sizes = prod(out.shape[:-1]), [np.uint64(n), np.uint64(length)]
        step = max(1, _CHUNK_BYTES // (8 * count * length))
        for first in range(0, units, step):
            size = min(step, units - first)
            where = [np.uint64(size), np.uint64(first), np.uint32(basis.rows), np.uint32(count)]
            residues = []
            for (x,), layout, dense in spread:
                with self._here:
                    residues.append(self.xp.empty((size, count, length), np.uint64))
                args: list[Any] = [x, residues[-1], moduli, primes, layout, *sizes, *where, dense]
                self._entrywise("crt.cu", f"crt_spread<{ctype(basis)}>", size * length, args)
            self.multiply(transform, residues[0], residues[1], residues[0])
            args = [residues[0], out, moduli, primes, constants, *sizes, *where]
            args.append(np.uint32(plan.kind == "negacyclic"))
            self._entrywise("crt.cu", f"crt_compose<{ctype(basis)}>", size * n, args)


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
