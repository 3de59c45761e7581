"""Stands for `cupy.cuda.cublas`: products of matrices of signed bytes, floats and halves."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.lib.stride_tricks import as_strided

from . import memory, streams

CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32I, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 72, 77
CUBLAS_GEMM_DEFAULT = -1
_CUDA_R_32F, _CUDA_R_16F, _CUDA_R_8I, _CUDA_R_32I = 0, 2, 3, 10


class CUBLASError(RuntimeError):
    """Stands for CuPy's error of the same name."""


def gemmStridedBatchedEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    a: int,
    a_type: int,
    lda: int,
    a_stride: int,
    b: int,
    b_type: int,
    ldb: int,
    b_stride: int,
    beta: int,
    c: int,
    c_type: int,
    ldc: int,
    c_stride: int,
    batch: int,
    compute_type: int,
    algo: int,
) -> None:
    """C = A^T B, stored by columns, for each entry of a batch.

    Any other call is an error, and so is a sum that leaves 32 bits.
    """
    if (a_type, b_type, c_type, compute_type) != (_CUDA_R_8I, _CUDA_R_8I, _CUDA_R_32I, CUBLAS_COMPUTE_32I):
        raise NotImplementedError("the simulated cuBLAS multiplies signed bytes in sums of 32 bits")
    if (transa, transb, _int_at(alpha), _int_at(beta)) != (CUBLAS_OP_T, CUBLAS_OP_N, 1, 0):
        raise NotImplementedError("the simulated cuBLAS knows C = A^T B")
    strides = [a, lda, a_stride, b, ldb, b_stride, c, ldc]
    if any(x % 4 for x in strides) or min(lda, ldb) < k or ldc < m:
        raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE")

    def operand(address: int, rows: int, leading: int, step: int) -> np.ndarray:
        size = (batch - 1) * step + (rows - 1) * leading + k
        values = memory.bytes_at(address, size).view(np.int8)
        return as_strided(values, (batch, rows, k), (step, leading, 1))

    def run() -> None:
        left, right = operand(a, m, lda, a_stride), operand(b, n, ldb, b_stride)
        sums = right.astype(np.float64) @ left.astype(np.float64).swapaxes(1, 2)  # exact: below 2^53
        if np.abs(sums).max(initial=0) >= 1 << 31:
            raise CUBLASError("a sum leaves 32 bits, which a card does not tell")
        size = 4 * ((batch - 1) * c_stride + (n - 1) * ldc + m)
        out = memory.bytes_at(c, size).view(np.int32)
        as_strided(out, (batch, n, m), (4 * c_stride, 4 * ldc, 4))[...] = sums

    streams.submit(run)


def gemmEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    a: int,
    a_type: int,
    lda: int,
    b: int,
    b_type: int,
    ldb: int,
    beta: int,
    c: int,
    c_type: int,
    ldc: int,
    compute_type: int,
    algo: int,
) -> None:
    """C = A B, stored by columns, of dense halves or floats. Any other call is an error.

    Floats are rounded to tf32 where the type of the computation says so.
    """
    dtypes = {
        (_CUDA_R_32F, CUBLAS_COMPUTE_32F): np.float32,
        (_CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32): np.float32,
        (_CUDA_R_16F, CUBLAS_COMPUTE_32F): np.float16,
    }
    if a_type != b_type or c_type != _CUDA_R_32F or (a_type, compute_type) not in dtypes:
        raise NotImplementedError("the simulated cuBLAS multiplies floats or halves in sums of floats")
    if (transa, transb, _float_at(alpha), _float_at(beta)) != (CUBLAS_OP_N, CUBLAS_OP_N, 1, 0):
        raise NotImplementedError("the simulated cuBLAS knows C = A B of floats")
    if (lda, ldb, ldc) != (m, k, m):
        raise NotImplementedError("the simulated cuBLAS knows dense matrices of floats")
    dtype = np.dtype(dtypes[a_type, compute_type])

    def operand(address: int, rows: int, columns: int) -> np.ndarray:
        values = memory.bytes_at(address, rows * columns * dtype.itemsize).view(dtype)
        values = values.reshape(columns, rows).T.astype(np.float32)
        if compute_type == CUBLAS_COMPUTE_32F_FAST_TF32:
            values = ((values.view(np.uint32) + np.uint32(0x1000)) & ~np.uint32(0x1FFF)).view(np.float32)
        return values

    def run() -> None:
        out = memory.bytes_at(c, 4 * m * n).view(np.float32).reshape(n, m)
        out[...] = (operand(a, m, k) @ operand(b, k, n)).T

    streams.submit(run)


def _int_at(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _float_at(address: int) -> float:
    return ctypes.c_float.from_address(address).value
