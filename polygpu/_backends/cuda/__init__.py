"""The CUDA backend: kernels of cuda/, compiled at run time and launched on CuPy's current stream.

Operations do not wait for the GPU, except those that return values to the host. Temporaries come from CuPy's
memory pool. Other packages import only the names in `__all__`.
"""

from ..base import Backend
from . import copies, fft, integers, lattice, matmul, multiply, pointwise, records, rns, sampling, transform
from .device import absence, count, describe
from .launch import Context

__all__ = ["CudaBackend", "absence", "count", "describe"]


class CudaBackend(Context, Backend):
    """The operations of one GPU, each taken from the module that implements it."""

    divided_bytes = 1 << 30  # bytes; large, because launches cost more time than cache misses
    observe = records.observe
    copy, gather, scatter = copies.copy, copies.gather, copies.scatter
    uniform, sample = sampling.uniform, sampling.sample
    ntt, intt, prefers_tables = transform.ntt, transform.intt, transform.prefers_tables
    convert, convert_all = rns.convert, rns.convert_all
    fft, convolve = fft.fft, fft.convolve
    matmul, matmul_points = matmul.matmul, matmul.matmul_points
    multiplies_bytes = True
    reduce_integers, to_words, to_int64, to_float64, norm = (
        integers.reduce_integers,
        integers.to_words,
        integers.to_int64,
        integers.to_float64,
        integers.norm,
    )
    take, combine, pointwise, tensor, scale_by_powers, automorphism, mul_monomial = (
        pointwise.take,
        pointwise.combine,
        pointwise.pointwise,
        pointwise.tensor,
        pointwise.scale_by_powers,
        pointwise.automorphism,
        pointwise.mul_monomial,
    )
    multiply, multiply_eval, product_ns, prefers_matrix = (
        multiply.multiply,
        multiply.multiply_eval,
        multiply.product_ns,
        multiply.prefers_matrix,
    )
    digit_product, rotated_sums, decompose, signed_digits = (
        lattice.digit_product,
        lattice.rotated_sums,
        lattice.decompose,
        lattice.signed_digits,
    )
    prepare, gadget_product, gadget_rotation, rotate_by_groups = (
        lattice.prepare,
        lattice.gadget_product,
        lattice.gadget_rotation,
        lattice.rotate_by_groups,
    )
