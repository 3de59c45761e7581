"""Products of matrices: of integers modulo q in one of three ways, and of polynomials point by point."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...errors import OutOfDeviceMemory
from ...plans.basis import Basis
from .. import Array
from .device import recording
from .launch import ALIGNMENT, THREADS, Launcher, cbool, ctype
from .matmul_tiles import (
    LIMBS_EDGE,
    LOG_POINTS_THREADS,
    LONE_PRODUCT,
    MOST_NARROW,
    RESIDUE_DEPTH,
    PointsTile,
    coprimes,
    has_limbs,
    integer_tile,
    limbs_rows,
    limbs_shared,
    limbs_stages,
    matmul_method,
    narrow_lanes,
    part_of_sums,
    points_tile,
    residue_table,
    staged_tile,
    sum_of,
    weight_table,
)

_SUM_BYTES = 1 << 30  # of 32-bit sums modulo small numbers held at a time
_CUDA_R_8I, _CUDA_R_32I = 3, 10  # cudaDataType


class Matmul(Launcher):
    """Kernels of matmul.cu and gemm.cu; cuBLAS."""

    def matmul(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """See Backend. CuPy records no call of cuBLAS in a graph: products take another way there."""
        (batch, m, n), k, (q,), size = out.shape, a.shape[2], basis.moduli, basis.dtype.itemsize
        if not out.size or not k:
            with self._here:
                out[...] = 0
            return
        method = matmul_method(q, size, batch, m, k, n, self.card)
        if method == "residues" and not self._stream().is_capturing() and recording.get() is None:
            try:
                self._matmul_residues(basis, a, b, out)
                return
            except OutOfDeviceMemory:  # the other ways need none
                pass
        if method == "integer" or not has_limbs(q, size):
            self._matmul_integer(basis, a, b, out)
        else:
            self._matmul_limbs(basis, a, b, out)

    # ---- on CUDA cores ----

    def _matmul_integer(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """By the integer arithmetic of CUDA cores. Few long sums are taken in parts."""
        (batch, rows, columns), length = out.shape, a.shape[2]
        part = part_of_sums(sum_of(basis), batch, rows, columns, length, self.card)
        if part == length:
            self._matmul_parts(basis, a, b, out, part)
            return
        parts = -(-length // part)
        with self._here:
            sums = self.xp.empty((parts, rows, columns), out.dtype)
            ones = self.xp.ones((1, 1, parts), out.dtype)
        self._matmul_parts(basis, a, b, sums, part)
        self._matmul_integer(basis, ones, sums.reshape(1, parts, -1), out.reshape(1, 1, -1))

    def _matmul_parts(self, basis: Basis, a: Array, b: Array, out: Array, part: int) -> None:
        """The products; or, where a part is shorter than the sums, those of all parts of one product."""
        if out.size == 0:
            return
        word, (batch, rows, columns), moduli = sum_of(basis), out.shape, self._moduli(basis)
        length, width = a.shape[2], ALIGNMENT // out.dtype.itemsize
        if part < length:
            total, a_batch, b_batch = length, part, part * columns
        else:
            total = batch * length
            a_batch, b_batch = (x.shape[1] * x.shape[2] if len(x) > 1 else 0 for x in (a, b))
        if columns <= MOST_NARROW:
            if columns > 1:
                with self._here:
                    b = self.xp.ascontiguousarray(b.swapaxes(1, 2))
            if part < length:
                b_batch = part
            if length % width or part % width or not self._aligned(a, b):
                width = 1
            log_lanes, grid = narrow_lanes(batch, rows, columns, -(-part // width), self.card)
            sizes = (a_batch, b_batch, length, rows, columns, total, part)
            args = [a, b, out, moduli, *map(np.uint64, sizes), np.uint32(log_lanes)]
            expression = f"matmul_narrow<{word}, {1 << (columns - 1).bit_length()}, {width}>"
            self._run("matmul.cu", expression, grid, THREADS, args)
        elif rows <= MOST_NARROW:
            chunks = columns % width == 0 and self._aligned(b, out)
            tile = points_tile(basis, batch, rows, 1, columns, chunks, self.card)
            steps = (a_batch, length, 1, b_batch, columns, 0, rows * columns, columns, 0)
            self._run_points(basis, a, b, out, steps, (batch, rows, 1, total, part, columns), tile, True)
        else:
            sizes = (a_batch, length, b_batch, rows, columns, total, part)
            args = [a, b, out, moduli, *map(np.uint64, sizes)]
            of_integers = integer_tile(word, batch, rows, columns, self.card)
            self._run(
                "matmul.cu", f"matmul_integer<{word}, {of_integers.side}>", of_integers.grid, THREADS, args
            )

    def matmul_points(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """See Backend."""
        if out.size == 0:
            return
        batch, rows, columns, _, points = out.shape
        item = out.dtype.itemsize
        arrays = [x for x in (a, b, out) if x.size]
        strides = [x.strides[i] for x in arrays for i in range(3) if x.shape[i] > 1]
        chunks = not any(size % ALIGNMENT for size in (points * item, *strides)) and self._aligned(*arrays)
        steps = [size // item for x in (a, b, out) for size in x.strides[:3]]
        length = a.shape[2]
        staged = chunks and staged_tile(basis, batch, rows, columns, length, points, self.card)
        if staged:
            args = [a, b, out, self._moduli(basis), *map(np.int64, steps)]
            args += map(np.uint64, (batch, rows, columns, points, basis.rows * points))
            args.append(np.uint32(length))
            expression = f"matmul_points_staged<{sum_of(basis)}, {staged.side}, {staged.width}>"
            self._run("matmul.cu", expression, staged.grid, 1 << LOG_POINTS_THREADS, args)
            return
        tile = points_tile(basis, batch, rows, columns, points, chunks, self.card)
        sizes = (batch, rows, columns, batch * length, length, points)
        self._run_points(basis, a, b, out, steps, sizes, tile, False)

    def _run_points(
        self,
        basis: Basis,
        a: Array,
        b: Array,
        out: Array,
        steps: Sequence[int],
        sizes: Sequence[int],
        tile: PointsTile,
        integers: bool,
    ) -> None:
        args = [a, b, out, self._moduli(basis), *map(np.int64, steps), *map(np.uint64, sizes)]
        args.append(np.uint64(basis.rows * sizes[-1]))
        args += map(np.uint32, (tile.log_lanes, tile.log_columns, tile.log_rows))
        shape = f"{tile.rows}, {tile.columns}, {tile.width}"
        expression = f"matmul_points<{sum_of(basis)}, {shape}, {cbool(integers)}>"
        self._run("matmul.cu", expression, tile.grid, 1 << LOG_POINTS_THREADS, args)

    # ---- on tensor cores ----

    def _matmul_limbs(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """By bytes of the words, where has_limbs."""
        (batch, m, n), k, size = out.shape, a.shape[2], basis.dtype.itemsize
        stages, rows = limbs_stages(size, self.card), limbs_rows(m)
        aligned = next(x for x in (16, 8, 4) if k * size % x == 0 and self.address(a) % x == 0)
        expression = f"gemm_limbs<{ctype(basis)}, {rows}, {LIMBS_EDGE}, 64, {stages}, {aligned}>"
        shared = limbs_shared(size, rows, self.card)
        grid = batch * -(-m // rows) * -(-n * size // LIMBS_EDGE)
        steps = [np.uint64(x.shape[1] * x.shape[2] if len(x) > 1 else 0) for x in (a, b)]
        longest = (1 << 15) // size
        for first in range(0, k, longest):
            operands = [a.reshape(-1)[first:], b.reshape(-1)[first * n :], out, self._moduli(basis)]
            sizes = [np.uint32(x) for x in (m, n, min(longest, k - first))]
            args = [*operands, *sizes, np.uint64(k), *steps, np.uint32(first > 0)]
            self._run("gemm.cu", expression, grid, rows, args, shared)

    def _matmul_residues(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """By residues modulo small numbers, multiplied by cuBLAS: q up to 2^62."""
        longest = RESIDUE_DEPTH
        for first in range(0, a.shape[2], longest):
            with self._here:
                left, right = (
                    self.xp.ascontiguousarray(x)
                    for x in (a[:, :, first : first + longest], b[:, first : first + longest])
                )
            self._add_residues(basis, left, right, out, first > 0)

    def _add_residues(self, basis: Basis, a: Array, b: Array, out: Array, add: bool) -> None:
        (batch, m, n), k, (q,) = out.shape, a.shape[2], basis.moduli
        primes = coprimes(q, k)
        count, depth, pitch = len(primes), -(-k // 64) * 64, -(-n // 4) * 4
        moduli, weights = self._moduli(basis), self.constant(weight_table(q, primes))
        tables = [self.constant(residue_table(primes, basis.dtype.itemsize, left)) for left in (True, False)]
        # Matrices, or rows of one, whose sums are held at a time.
        most = max(128, _SUM_BYTES // (4 * count * pitch))
        parts = -(-m // most)
        tall, matrices = (m, most // m) if parts == 1 else (-(-m // (128 * parts)) * 128, 1)
        for r in range(0, m, tall):
            height = min(tall, m - r)
            for s in range(0, batch, matrices):
                size = min(matrices, batch - s)
                if s == 0 or len(a) > 1:
                    left = self._residues(
                        basis, a[s : s + size, r : r + height], tables[0], height, depth, False
                    )
                if s == r == 0 or len(b) > 1:
                    right = self._residues(basis, b[s : s + size], tables[1], pitch, depth, True)
                with self._here:
                    sums = self.xp.empty((count, size, height, pitch), np.int32)
                self._multiply_bytes(left, right, sums)
                result = out[s : s + size, r : r + height]
                args = [sums, result, moduli, tables[0], weights, np.uint32(count), np.uint64(size * height)]
                args += [np.uint32(x) for x in (n, pitch, add)]
                self._entrywise("gemm.cu", f"gemm_compose<{ctype(basis)}>", sums[0].size // 4, args)

    def _residues(
        self, basis: Basis, x: Array, table: Array, rows: int, depth: int, transposed: bool
    ) -> Array:
        """Of (size, rows, k), or (size, k, rows), modulo each of a table: (count, size, rows, depth)."""
        count, size, k = len(table), len(x), x.shape[1 if transposed else 2]
        with self._here:
            residues: Array = self.xp.empty((count, size, rows, depth), np.int8)
        args = [x, residues, self._moduli(basis), table, np.uint32(count), np.uint64(size)]
        args += [np.uint32(v) for v in (x.shape[2] if transposed else rows, rows, k, depth)]
        groups = -(-rows // 8) * 8 if transposed else rows
        expression = f"gemm_split<{ctype(basis)}, {cbool(transposed)}>"
        self._entrywise("gemm.cu", expression, size * groups * depth // 8, args)
        return residues

    def _multiply_bytes(self, left: Array, right: Array, sums: Array) -> None:
        """sums[..., i, j] = left[..., i, :] . right[..., j, :] by cuBLAS; a second axis of 1 is shared."""
        cublas = self.xp.cuda.cublas
        (_, size, m, n), k = sums.shape, left.shape[3]
        left_step, right_step = (prod(x.shape[2:]) * (x.shape[1] == size) for x in (left, right))
        one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
        together = left_step and right_step and m * n * k < LONE_PRODUCT
        with self._here:
            handle = self.xp.cuda.device.get_cublas_handle()
            for x, y, z in [(left, right, sums)] if together else zip(left, right, sums, strict=True):
                # By columns: the transpose of sums is right times the transpose of left.
                cublas.gemmStridedBatchedEx(
                    *(handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, n, m, k),
                    *(one.ctypes.data, self.address(y), _CUDA_R_8I, k, right_step),
                    *(self.address(x), _CUDA_R_8I, k, left_step),
                    *(zero.ctypes.data, self.address(z), _CUDA_R_32I, n, m * n),
                    *(z.size // (m * n), cublas.CUBLAS_COMPUTE_32I, cublas.CUBLAS_GEMM_DEFAULT),
                )
