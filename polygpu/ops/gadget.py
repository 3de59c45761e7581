"""Gadgets: digits of a value to a base, and products with ciphertexts that hide multiples of weights."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np

from .. import _cpu
from ..arrays import as_integers, empty
from ..backends import Array, Backend, backend_of
from ..checks import Domain, integer, shown
from ..errors import ParameterError
from ..plans.basis import Basis, basis_of
from ..plans.cache import cached
from ..plans.lattice import Gadget
from ..plans.ntt import NttPlan
from ..plans.product import FftSumPlan, plan_fft_sums
from ..reporting import LONG, Work, counted, reporting
from .batch import ROWS, check_apart, result_array, result_shape
from .einsum import matmul
from .integers import from_integers
from .permutation import exponents_of, multiply_by_monomial
from .pointwise import negate, pointwise
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring


class Matrices(NamedTuple):
    """GGSW ciphertexts of batch shape (k, levels, k), or (count, k, levels, k); prepared: see prepare()."""

    data: Array
    domain: Domain | Literal["prepared"]
    shape: tuple[int, ...]


def gadget_of(ring: Ring, bits: object, levels: object, components: int = 0) -> Gadget:
    """The plan of digits modulo a ring's one modulus; if components > 0, of products of ciphertexts too."""
    if len(ring.moduli) != 1 or ring.basis.wide:
        raise ParameterError(
            f"{ring!r}: digits to a base need one modulus of at most 2**64; ring[:1] is the ring of one limb"
        )
    b, count = _checked_digits(ring.basis.moduli[0], bits, levels)
    transform, product = None, None
    if components and ring.leaf_size == 1:
        transform = ring.transform
    elif components and ring.product != "ntt":
        product = plan_fft_sums(ring.n, ring.moduli[0], ring.kind, components * count, b)
    return _plan(ring.basis, transform, b, count, product)


def _checked_digits(q: int, bits: object, levels: object) -> tuple[int, int]:
    b, count = integer(bits, "bits"), integer(levels, "levels")
    if b < 1 or count < 1 or 1 << min(b, 65) * min(count, 65) > q:
        raise ParameterError(
            f"bits, levels: {shown(b)} and {shown(count)} must be at least 1, and 2**(bits * levels) at most "
            f"q = {q}"
        )
    return b, count


def _plan(
    basis: Basis, transform: NttPlan | None, bits: int, levels: int, product: FftSumPlan | None = None
) -> Gadget:
    key = "gadget", basis, transform, bits, levels, product
    return cached(key, lambda: Gadget(basis, transform, bits, levels, product))


def weights(ring: Ring, bits: object, levels: object) -> tuple[int, ...]:
    """g_i, the integer nearest to q / B^i, halves up."""
    gadget, q = gadget_of(ring, bits, levels), ring.moduli[0]
    powers = [1 << gadget.bits * (i + 1) for i in range(gadget.levels)]
    return tuple((2 * q + p) // (2 * p) for p in powers)


def decompose(
    ring: Ring, x: Array, domain: Domain, bits: object, levels: object, out: Array | None = None
) -> Array:
    """The digits, (*batch, levels), in coefficients."""
    gadget = gadget_of(ring, bits, levels)
    x = to_domain(ring, x, domain, "coef")
    compute, (*batch, rows, n) = backend_of(x), x.shape
    data = result_array(compute, (*batch, gadget.levels, rows, n), out, x)
    compute.decompose(gadget, x, data)
    return data


def _checked_product(ring: Ring, matrices: Matrices, c: Array, bits: object, count: int) -> Gadget:
    """The plan of products of ciphertexts with matrices; count: 1 if a batch of matrices is given, else 0."""
    k = c.shape[-3] if c.ndim > 2 else 0
    shape, name = matrices.shape[count:], "bsk" if count else "ggsw"
    if len(shape) != 3 or shape[0] != shape[2] or shape[2] != k or k < 1:
        axes = "(count, k, levels, k)" if count else "(k, levels, k)"
        raise ParameterError(
            f"{name}: batch shape {matrices.shape}, of ciphertexts {c.shape[:-2]}; the first must be "
            f"{axes}, and the last axis of the second k, the components, at least one"
        )
    gadget = gadget_of(ring, bits, shape[1], components=k)
    if gadget.transform is not None and matrices.domain != "eval":
        raise ParameterError(f"{name}: in coefficients; keep it evaluated, as {name}.ntt()")
    return gadget


def prepare(ring: Ring, matrices: Array, domain: Domain, bits: object) -> Array | None:
    """Matrices (..., k, levels, k) as products by FFT take them; None where the ring has other products."""
    batch = matrices.shape[:-2]
    if len(batch) not in (3, 4) or not batch[-3] == batch[-1] > 0:
        raise ParameterError(f"ggsw: batch shape {batch}, must be (k, levels, k) or (count, k, levels, k)")
    gadget = gadget_of(ring, bits, matrices.shape[-4], components=matrices.shape[-3])
    return None if gadget.product is None else _prepared(ring, gadget, matrices, domain)


def _prepared(ring: Ring, gadget: Gadget, matrices: Array, domain: Domain) -> Array:
    assert gadget.product is not None
    compute, plan = backend_of(matrices), gadget.product
    shape = (*matrices.shape[:-2], plan.digits, plan.points)
    out = empty(compute, shape, np.dtype(np.complex128))
    if prod(shape):
        compute.prepare(gadget, to_domain(ring, matrices, domain, "coef"), out)
    return out


def _factors(ring: Ring, gadget: Gadget, matrices: Matrices) -> Array:
    """Matrices as the backend's products take them."""
    if matrices.domain == "prepared" or gadget.product is None:
        return matrices.data
    return _prepared(ring, gadget, matrices.data, matrices.domain)


def external_product(
    ring: Ring,
    ggsw: Matrices,
    c: Array,
    domain: Domain,
    bits: object,
    out: Array | None = None,
) -> Array:
    """The sum over components and levels of digit_l(c_i) ggsw[i, l], in c's domain."""
    gadget = _checked_product(ring, ggsw, c, bits, 0)
    compute = backend_of(c)
    check_apart(out, ggsw.data)
    if gadget.by_polynomials:
        if out is not None:
            result_array(compute, c.shape, out, c)  # refused before anything is computed
        return _matrix_product(ring, ggsw, c, domain, gadget, out)
    data = result_array(compute, c.shape, out, c)
    compute.gadget_product(gadget, _factors(ring, gadget, ggsw), to_domain(ring, c, domain, "coef"), data)
    return to_domain(ring, data, "coef", domain, data if domain == "eval" else None)


def _matrix_product(
    ring: Ring, ggsw: Matrices, c: Array, domain: Domain, gadget: Gadget, out: Array | None = None
) -> Array:
    """The external product where the plan has no transform and no FFT: digits times rows, as polynomials."""
    k, n = c.shape[-3], ring.n
    digits = decompose(ring, c, domain, gadget.bits, gadget.levels)
    rows = digits.reshape(*c.shape[:-3], 1, k * gadget.levels, ring.rows, n)
    matrix = ggsw.data.reshape(k * gadget.levels, k, ring.rows, n)
    found, found_domain = matmul(ring, (rows, matrix), ("coef", cast(Domain, ggsw.domain)), None)
    return to_domain(ring, found.reshape(c.shape), found_domain, domain, out)


def cmux(ring: Ring, ggsw: Matrices, arrays: tuple[Array, Array], domain: Domain, bits: object) -> Array:
    """c0 + ggsw x (c1 - c0), of operands in one domain."""
    first, second = arrays
    result_shape(first, second)
    difference = pointwise(ring.basis, "sub", second, first)
    product = external_product(ring, ggsw, difference, domain, bits, difference)
    return pointwise(ring.basis, "add", product, first, product)


def blind_rotate(
    ring: Ring,
    c: Array,
    domain: Domain,
    ggsws: Matrices,
    exponents: object,
    bits: object,
    out: Array | None = None,
) -> Array:
    """c X^(e_0 + sum e_i s_i), by one cmux for each i, in coefficients."""
    gadget = _checked_product(ring, ggsws, c, bits, 1)
    compute = backend_of(c)
    near = None if gadget.by_polynomials else compute
    powers = _checked_exponents(ring, exponents, c.shape[:-3], ggsws.shape[0], near)
    check_apart(out, c, ggsws.data)
    data = result_array(compute, c.shape, out, c)
    x = to_domain(ring, c, domain, "coef")
    if gadget.by_polynomials:
        total = multiply_by_monomial(ring, x, "coef", powers[..., :1], data)
        for i, matrix in enumerate(ggsws.data, 1):
            ggsw = Matrices(matrix, ggsws.domain, ggsws.shape[1:])
            moved = multiply_by_monomial(ring, total, "coef", powers[..., i : i + 1])
            pointwise(ring.basis, "sub", moved, total, moved)
            product = _matrix_product(ring, ggsw, moved, "coef", gadget)
            pointwise(ring.basis, "add", total, product, total)
        return total
    factors, items = _factors(ring, gadget, ggsws), prod(c.shape[:-3])
    if compute.xp is not np or powers.shape[-1] * c.size < LONG or reporting() is None:
        compute.gadget_rotation(gadget, factors, x, powers, data)
        return data
    x, powers, rows = (y.reshape(items, *y.shape[c.ndim - 3 :]) for y in (x, powers, data))
    with Work(items, "blind rotation of {}", counted(items, "ciphertext")) as work:
        for piece in work.pieces(least=ROWS * _cpu.num_threads()):
            compute.gadget_rotation(gadget, factors, x[piece], powers[piece], rows[piece])
    return data


def _checked_exponents(
    ring: Ring, exponents: object, batch: tuple[int, ...], count: int, near: Backend | None
) -> Array:
    """The exponents as exponents_of gives them, broadcast to (*batch, 1 + count)."""
    powers = exponents_of(ring, exponents, "exponents", near)
    if powers.shape[-1:] != (count + 1,):
        raise ParameterError(
            f"exponents: shape {powers.shape}; the last axis must be 1 + {count}: e_0, then one a matrix"
        )
    home = backend_of(powers)
    try:
        with home.device_scope():
            wide: Array = home.xp.ascontiguousarray(home.xp.broadcast_to(powers, (*batch, count + 1)))
        return wide
    except ValueError:
        raise ParameterError(
            f"exponents: batch shape {powers.shape[:-1]} does not broadcast to the ciphertexts' {batch}"
        ) from None


def extract(ring: Ring, c: Array, domain: Domain, index: object) -> Array:
    """The LWE vectors of one coefficient of the phase: (*batch, 1 + (k - 1) n), the body first.

    Coefficient i of a s is the sum over j of a_(i - j) s_j. For j > i that is a_(n + i - j) X^n, X^n = ±1.
    """
    i = integer(index, "i")
    if not 0 <= i < ring.n:
        raise ParameterError(f"i: {shown(i)} must be in [0, {ring.n}), the number of a coefficient")
    if len(ring.moduli) != 1 or ring.basis.wide:
        raise ParameterError(f"{ring!r}: LWE vectors are of one modulus of at most 2**64")
    if c.ndim < 3 or c.shape[-3] < 2:
        raise ParameterError(f"c: batch shape {c.shape[:-2]}; the last axis must be that of a ciphertext")
    x, compute = to_domain(ring, c, domain, "coef"), backend_of(c)
    wrapped = negate(ring.basis, x) if ring.kind == "negacyclic" else x
    with compute.device_scope():
        masks = [x[..., 1:, 0, : i + 1][..., ::-1], wrapped[..., 1:, 0, i + 1 :][..., ::-1]]
        joined = compute.xp.concatenate(masks, axis=-1).reshape(*x.shape[:-3], (x.shape[-3] - 1) * ring.n)
        return compute.xp.concatenate([x[..., 0, 0, i : i + 1], joined], axis=-1)  # type: ignore[no-any-return]


def decompose_integers(x: object, q: object, bits: object, levels: object) -> Array:
    """The digits of integers modulo q as int64, along a new last axis."""
    modulus = integer(q, "q")
    if not 2 <= modulus <= 1 << 64:
        raise ParameterError(f"q: {shown(modulus)} must be from 2 to 2**64")
    basis = basis_of((modulus,))
    gadget = _plan(basis, None, *_checked_digits(modulus, bits, levels))
    integers = as_integers(x, "x")
    compute, shape = backend_of(integers), integers.shape
    words = from_integers(basis, integers.size, integers.reshape(-1), compute)
    digits = empty(compute, (gadget.levels, 1, integers.size), basis.dtype)
    compute.decompose(gadget, words, digits)
    with compute.device_scope():
        xp = compute.xp
        values = digits.reshape(gadget.levels, integers.size).astype(np.uint64)
        signed = xp.where(values >= (modulus + 1) // 2, values - np.uint64(modulus % 2**64), values)
        return xp.ascontiguousarray(signed.view(np.int64).T).reshape(*shape, gadget.levels)  # type: ignore[no-any-return]
