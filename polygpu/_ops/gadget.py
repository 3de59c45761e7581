"""Gadget decomposition: digits of a value in a base, and products of the digits with GGSW ciphertexts."""

from __future__ import annotations

from math import prod
from typing import Literal, NamedTuple

import numpy as np

from .. import _cpu
from .._backends import Array, Backend, backend_of
from .._core.checks import Domain, integer, shown
from .._core.plans.basis import Basis, basis_of
from .._core.plans.cache import cached
from .._core.plans.gadget import Gadget
from .._core.plans.ntt import NttPlan
from .._core.plans.product import FftSumPlan
from .._core.plans.rns import Conversion, Residues
from .._core.plans.torus import ProductError, TorusPlan, plan_torus
from .._core.reporting import LONG, Work, counted, reporting
from .._core.ring_plan import RingPlan
from .._core.value import V, Value
from .._core.ways import way_of_gadget
from ..errors import ParameterError
from .arrays import broadcasts, contiguous, copied, empty, spread
from .batch import ROWS
from .calls import is_plan, repeated
from .einsum import matmul
from .permutation import exponents_of, mul_monomial
from .pointwise import pointwise
from .results import check_apart, result_array, result_shape
from .rns import digits, divided, kept_plan
from .switch import KeySwitch
from .transform import intt, ntt, to_domain

Precision = Literal["exact", "double"]


class Matrices(NamedTuple):
    """GGSW ciphertexts. If the domain is "prepared", the data were made by prepare().

    shape: the batch shape (..., k, levels, k), where k is the number of components of a ciphertext.
    """

    data: Array
    domain: Domain | Literal["prepared"]
    shape: tuple[int, ...]
    precision: Precision = "exact"


def gadget_of(
    ring: RingPlan, bits: object, levels: object, components: int = 0, precision: Precision = "exact"
) -> Gadget:
    """Return the plan for splitting values into `levels` digits of `bits` bits. The ring has one modulus.

    If `components` is not 0, the plan can also multiply ciphertexts of this many components by GGSW
    ciphertexts.
    """
    _check_words(ring)
    b, count = _checked_digits(ring.basis.moduli[0], bits, levels)
    if not components:
        return _plan(ring.basis, None, b, count)
    if precision == "double":
        torus = plan_torus(ring.quotient, ring.basis.moduli[0], components * count, b, count)
        return _plan(ring.basis, None, b, count, torus)
    way, sums = way_of_gadget(ring, components * count, b)
    return _plan(ring.basis, ring.transform if way == "transform" else None, b, count, sums)


class RnsGadget:
    """The base class of plans for digits in rings of several limbs. External products use matmul."""

    by_polynomials = True
    ring: RingPlan  # the ring of the ciphertexts
    T: RingPlan  # the ring of the digits and matrices
    levels: int  # the number of digits

    def digits_of(self, c: Value) -> Value:
        """Return the digits of c, (*batch, levels), in the ring self.T.

        The domain of the digits is "eval" if self.T has a complete transform, else "coef".
        """
        raise NotImplementedError


@is_plan
class ComposedGadget(RnsGadget):
    """Digits in base B = 2^bits of x / Q, where x is the integer modulo Q whose residues are the limbs.

    These are the digits of the integer y = floor((2 * x * B^levels + Q) / (2 * Q)) modulo B^levels.
    """

    def __init__(self, ring: RingPlan, bits: int, levels: int) -> None:
        self.ring = self.T = ring
        self.levels, limbs = levels, tuple(range(ring.rows))
        # This conversion takes x to y * 2^64 / B^levels modulo 2^64, where y is x * B^levels / Q, rounded.
        # The leading digits of the result are those of y. exact=False may add a multiple of Q to x. This
        # adds a multiple of 2^64 to the result, and does not change the result modulo 2^64.
        self.rounding = Conversion(
            Residues(ring.moduli, limbs, ring.rows),
            Residues((1 << 64,), (0,), 1),
            (1 << 64 - bits * levels,),
            "floor",
            exact=False,
            factor=1 << bits * levels,
            divisors=limbs,
        )
        self.gadget = _plan(basis_of((1 << 64,)), None, bits, levels)

    def digits_of(self, c: Value) -> Value:
        """Return the digits, (*batch, levels), evaluated if the ring has a complete transform."""
        made = Value(self.ring, self.in_coefficients(c), "coef")
        return ntt(made, made._data) if self.ring.leaf_size == 1 else made

    def in_coefficients(self, c: Value, out: Array | None = None) -> Array:
        """Return the digits, (*batch, levels), in coefficients."""
        ring, compute, x = self.ring, backend_of(c._data), intt(c)._data
        word = np.dtype(np.uint64)
        y = empty(compute, (*c._batch, 1, ring.n), word)
        compute.convert(self.rounding, x, None, y)
        found = empty(compute, (*c._batch, self.levels, 1, ring.n), word)
        compute.decompose(self.gadget, y, found)
        data = result_array(compute, (*c._batch, self.levels, ring.rows, ring.n), out, x)
        signed = found.view(np.int64).reshape(*c._batch, self.levels, ring.n)
        compute.reduce_integers(ring.basis, signed, data)
        return data


@is_plan
class LimbGadget(RnsGadget):
    """Digits that are groups of limbs, as in key switching.

    P is the product of the special moduli. The ring T has the moduli of `ring` and the special moduli.
    The GGSW ciphertexts encrypt multiples of P * g_j modulo T. `rns.gadget` returns the integers g_j. Sums of
    products are divided by P.
    """

    def __init__(self, switch: KeySwitch) -> None:
        self.switch, self.ring, self.T, self.levels = switch, switch.ring, switch.T, len(switch.parts)

    def digits_of(self, c: Value) -> Value:
        """Return the evaluated digits of c, of batch shape (*batch, levels), in the ring self.T."""
        made = digits(c, self.T, self.switch.size, self.switch.conversion)
        return ntt(made, made._data)

    def divided(self, total: Value, out: Array | None) -> Value:
        """Return `total` divided by the product of the special moduli, and rounded. Overwrite `total`."""
        return divided(total, self.ring, "nearest", self.switch.conversion, out=out, scratch=total._domain)


def _limb_gadget(way: KeySwitch, levels: int, name: str) -> LimbGadget:
    """Return the LimbGadget of the key switch `way`.

    levels: the number of levels of the matrices. name: the name of the matrices in error texts.
    """
    count = len(way.parts)
    if levels != count:
        raise ParameterError(
            f"{name} has {levels} levels and must have {count}. The ciphertexts have {way.ring.rows} limbs, "
            f"and each group of {way.size} limbs needs one level. If {name} has more levels, {name}[..., :, "
            f":{count}, :] keeps the right ones."
        )
    return kept_plan(way.ring, ("limb gadget", way), lambda: LimbGadget(way))


def _composed_gadget(ring: RingPlan, bits: object, levels: object) -> ComposedGadget:
    """Return the ComposedGadget for these parameters."""
    b, count = _checked_composed(ring, bits, levels)
    return kept_plan(ring, ("composed gadget", b, count), lambda: ComposedGadget(ring, b, count))


def _checked_composed(ring: RingPlan, bits: object, levels: object) -> tuple[int, int]:
    """Check bits and levels for a ring with any number of limbs, and return them as ints."""
    _check_words(ring)
    b, count = _checked_digits(ring.modulus, bits, levels)
    if len(ring.moduli) > 1 and b * count > 64:
        raise ParameterError(
            f"bits={b} times levels={count} must be at most 64 in a ring of several moduli. Use fewer "
            "levels, or give limbs_per_digit and special instead."
        )
    return b, count


def digits_plan(basis: Basis, bits: object, levels: object) -> Gadget:
    """Return the plan for splitting integers modulo q into digits. The basis has one modulus q <= 2^64."""
    return _plan(basis, None, *_checked_digits(basis.moduli[0], bits, levels))


def _checked_digits(q: int, bits: object, levels: object) -> tuple[int, int]:
    b, count = integer(bits, "bits"), integer(levels, "levels")
    if b < 1 or count < 1 or b * count >= q.bit_length():
        raise ParameterError(
            f"bits={shown(b)} and levels={shown(count)} must be at least 1, and 2**(bits * levels) must be "
            f"at most q={q}."
        )
    return b, count


def _plan(
    basis: Basis,
    transform: NttPlan | None,
    bits: int,
    levels: int,
    product: FftSumPlan | TorusPlan | None = None,
) -> Gadget:
    key = "gadget", basis, transform, bits, levels, product
    return cached(key, lambda: Gadget(basis, transform, bits, levels, product))


def gadget(ring: RingPlan, bits: object, levels: object) -> tuple[int, ...]:
    """Return the integers nearest to Q / 2^(bits * i) for i = 1 ... levels, where Q is the modulus.

    Halves are rounded up.
    """
    b, count = _checked_composed(ring, bits, levels)
    powers = [1 << b * (i + 1) for i in range(count)]
    return tuple((2 * ring.modulus + p) // (2 * p) for p in powers)


def _check_words(ring: RingPlan) -> None:
    if ring.basis.wide:
        raise ParameterError(
            f"The modulus of {ring!r} is above 2**64, and digits need moduli of at most 2**64. Use a ring of "
            "several moduli, whose product may be larger."
        )


@repeated
def decompose(x: V, bits: object, levels: object, *, out: Array | None = None) -> V:
    """Return the digits of x, (*batch, levels), in coefficients."""
    if len(x._plan.moduli) > 1:
        return x._with(_composed_gadget(x._plan, bits, levels).in_coefficients(x, out), "coef")
    plan, x = gadget_of(x._plan, bits, levels), intt(x)
    compute, (rows, n) = backend_of(x._data), x._data.shape[-2:]
    data = result_array(compute, (*x._batch, plan.levels, rows, n), out, x._data)
    compute.decompose(plan, x._data, data)
    return x._with(data)


_AXES = "", "count, ", "groups, 2**g, "  # _AXES[i]: names of i axes before (k, levels, k)


def _checked_product(matrices: Matrices, c: Value, way: object, count: int) -> Gadget | RnsGadget:
    """Check `matrices` and the ciphertexts c, and return the plan for their products.

    way: the number of bits of a digit, or a KeySwitch if digits are groups of limbs.
    count: the number of axes of `matrices` before (k, levels, k). If `count` is 2, `matrices` is a key for
    groups of bits, and need not be evaluated.
    """
    k = c._batch[-1] if c._batch else 0
    shape, name = matrices.shape[count:], "bsk" if count else "ggsw"
    if len(shape) != 3 or shape[0] != shape[2] or shape[2] != k or k < 1:
        raise ParameterError(
            f"{name} has batch shape {matrices.shape}, and the ciphertexts have {c._batch}. {name} must "
            f"have ({_AXES[count]}k, levels, k), where k >= 1 is the number of components of a ciphertext, "
            "the length of the last axis of the ciphertexts."
            + (" Use blind_rotate for keys of several bits." if len(shape) > 3 and not count else "")
        )
    plan = _product_plan(c._plan, way, shape[1], k, name, matrices.precision)
    is_complete = plan.T.leaf_size == 1 if isinstance(plan, RnsGadget) else plan.transform is not None
    if count < 2 and is_complete and matrices.domain != "eval":
        raise ParameterError(f"{name} is in coefficients and must be evaluated. Use {name}.ntt().")
    return plan


def _product_plan(
    ring: RingPlan, way: object, levels: int, components: int, name: str, precision: Precision = "exact"
) -> Gadget | RnsGadget:
    if isinstance(way, KeySwitch) or len(ring.moduli) > 1:
        if precision != "exact":
            raise ParameterError(
                f"precision='double' needs a ring modulo 2**32 or 2**64, not {ring!r}. Use precision='exact'."
            )
        return (
            _limb_gadget(way, levels, name)
            if isinstance(way, KeySwitch)
            else _composed_gadget(ring, way, levels)
        )
    return gadget_of(ring, way, levels, components, precision)


def prepare(matrices: Value, bits: object, precision: Precision) -> tuple[Array | None, ProductError]:
    """Return the array that products read in place of `matrices`, and the error of a product.

    The array is None if products read `matrices` itself. If `matrices` is a key for groups of bits, the array
    is None or in coefficients. The error is 0 if products are exact.

    matrices: the GGSW ciphertexts, (..., k, levels, k), for ciphertexts of k components.
    """
    if precision not in ("exact", "double"):
        raise ParameterError(f"precision={shown(precision)} must be 'exact' or 'double'.")
    batch = matrices._batch
    if len(batch) not in (3, 4, 5) or not batch[-3] == batch[-1] > 0:
        raise ParameterError(
            f"ggsw has batch shape {batch}, and must have one of the shapes (k, levels, k), (count, k, "
            "levels, k), (count, 2, k, levels, k) or (groups, 2**g, k, levels, k), with k at least 1."
        )
    plan = _product_plan(matrices._plan, bits, batch[-2], batch[-3], "ggsw", precision)
    if isinstance(plan, RnsGadget):
        return None, ProductError(0.0, 0.0)
    torus = plan.product if isinstance(plan.product, TorusPlan) else None
    if len(batch) == 5 and _group_of(batch, "ggsw") > 1:
        if torus is None:
            return None, ProductError(0.0, 0.0)
        return copied(intt(matrices)._data), torus.combined_error
    error = ProductError(0.0, 0.0) if torus is None else torus.error
    return None if plan.product is None else _prepared(plan, matrices), error


def _group_of(batch: tuple[int, ...], name: str = "bsk") -> int:
    """Return g if `batch` is (groups, 2**g, k, levels, k), the batch shape of a key for groups of g bits.

    Return 1 if it is (count, 2, k, levels, k), the batch shape of the key of a ternary secret.
    """
    sets = batch[1]
    if sets < 2 or sets & (sets - 1):
        raise ParameterError(
            f"{name} has batch shape {batch}. The second axis must have length 2 for a ternary secret, or "
            "length 2**g for groups of g bits. Use multi_bit_key to make a key for groups of bits."
        )
    return sets.bit_length() - 1


def is_grouped(batch: tuple[int, ...]) -> bool:
    """Return whether matrices of this batch shape are a key for groups of bits."""
    return len(batch) == 5 and batch[1] > 2


def _prepared(plan: Gadget, matrices: Value) -> Array:
    assert plan.product is not None
    compute = backend_of(matrices._data)
    data, shape = intt(matrices)._data, matrices._batch
    if len(shape) == 5:
        shape = (prod(shape[:2]), *shape[2:])
        data = data.reshape(*shape, *data.shape[-2:])
    out = empty(compute, (*shape, plan.product.digits, plan.product.points), np.dtype(np.complex128))
    if out.size:
        compute.prepare(plan, data, out)
    return out


def _factors(ring: RingPlan, plan: Gadget, matrices: Matrices) -> Array:
    """Return the data of `matrices` for the backend's products, transformed if the products use an FFT."""
    if matrices.domain == "prepared" or plan.product is None:
        return matrices.data
    return _prepared(plan, Value(ring, matrices.data, matrices.domain))


@repeated
def external_product(ggsw: Matrices, c: V, way: object, *, out: Array | None = None) -> V:
    """Return the sum over components i and levels l of digit_l(c_i) * ggsw[i, l], in c's domain.

    way: see `_checked_product`.
    """
    plan = _checked_product(ggsw, c, way, 0)
    compute = backend_of(c._data)
    check_apart(out, ggsw.data)
    if plan.by_polynomials:
        if out is not None:
            result_array(compute, c._data.shape, out, c._data)  # raises if `out` is wrong
        return _matrix_product(ggsw, c, plan, out)
    assert isinstance(plan, Gadget)
    data = result_array(compute, c._data.shape, out, c._data)
    compute.gadget_product(plan, _factors(c._plan, plan, ggsw), intt(c)._data, data)
    made = c._with(data, "coef")
    return made if c._domain == "coef" else ntt(made, data)


def _matrix_product(ggsw: Matrices, c: V, plan: Gadget | RnsGadget, out: Array | None = None) -> V:
    """Return the external product of `ggsw` and c, computed by `matmul`."""
    k, levels = c._batch[-1], plan.levels
    made = plan.digits_of(c) if isinstance(plan, RnsGadget) else decompose(c, plan.bits, levels)
    T, shape = made._plan, made._data.shape[-2:]
    rows = made._data.reshape(*c._batch[:-1], 1, k * levels, *shape)
    matrix = ggsw.data.reshape(*ggsw.data.shape[:-5], k * levels, k, *shape)
    assert ggsw.domain != "prepared"
    found = matmul(made._with(rows), Value(T, matrix, ggsw.domain))
    total = found._with(found._data.reshape(*c._batch, *shape))
    if isinstance(plan, LimbGadget):
        return c._with(plan.divided(to_domain(total, c._domain, total._data), out)._data)
    return c._with(to_domain(total, c._domain, out)._data)


@repeated
def cmux(ggsw: Matrices, c0: V, c1: V, way: object, *, out: None = None) -> V:
    """Return c0 plus the external product of ggsw and c1 - c0. c0 and c1 are in the same domain."""
    basis = c0._plan.basis
    result_shape(c0._data, c1._data)
    difference = c0._with(pointwise(basis, "sub", c1._data, c0._data))
    product = external_product(ggsw, difference, way, out=difference._data)
    return product._with(pointwise(basis, "add", product._data, c0._data, product._data))


def blind_rotate(c: V, ggsws: Matrices, exponents: object, way: object, out: Array | None = None) -> V:
    """Return c * X^(e_0 + sum e_i s_i) in coefficients.

    The rotation takes one cmux for each entry s_i of the secret, or one external product for each group of
    entries.

    ggsws: the key that encrypts s_1, s_2, ...
    exponents: e_0, e_1, ..., (*batch, 1 + count), where count is the number of entries of the secret.
    """
    c._plan.check_binomial("The ring of acc")
    has_sets = len(ggsws.shape) == 5
    group = _group_of(ggsws.shape) if has_sets else 1
    by_groups, is_ternary = group > 1, has_sets and group == 1
    if is_ternary:
        data = ggsws.data if ggsws.domain == "prepared" else ggsws.data.reshape(-1, *ggsws.data.shape[2:])
        ggsws = ggsws._replace(data=data, shape=(2 * ggsws.shape[0], *ggsws.shape[2:]))
    plan = _checked_product(ggsws, c, way, 2 if by_groups else 1)
    compute, most = backend_of(c._data), ggsws.shape[0] * group // (2 if is_ternary else 1)
    counts = max(0, most - group + 1), most  # least and largest count; the last group may be shorter
    powers = _checked_exponents(c._plan, exponents, c._batch[:-1], counts, compute)
    if is_ternary:
        powers = _of_both_signs(c._plan, powers)
    if isinstance(powers, np.ndarray):
        powers = compute.constant(powers)
    if not by_groups:
        rotate = _rotated_in_steps if plan.by_polynomials else _rotated
        return rotate(c, ggsws, powers, way, out=out)
    if ggsws.domain == "eval":
        T = way.T if isinstance(way, KeySwitch) else c._plan
        ggsws = ggsws._replace(data=intt(Value(T, ggsws.data, "eval"))._data, domain="coef")
    return _rotated_by_groups(c, ggsws, powers, way, out)


@repeated
def _rotated(c: V, ggsws: Matrices, powers: Array, way: object, *, out: Array | None = None) -> V:
    """Return c * X^(e_0 + sum e_i s_i), where `ggsws` encrypts s_1, s_2, ...

    powers: e_0, e_1, ..., (*batch, 1 + count), on c's device.
    """
    ring, plan, compute = c._plan, _checked_product(ggsws, c, way, 1), backend_of(c._data)
    check_apart(out, c._data, ggsws.data)
    data = result_array(compute, c._data.shape, out, c._data)
    x = intt(c)
    assert isinstance(plan, Gadget)
    rotated, factors, items = x._with(data), _factors(ring, plan, ggsws), prod(c._batch[:-1])
    if compute.xp is not np or powers.shape[-1] * c._data.size < LONG or reporting() is None:
        compute.gadget_rotation(plan, factors, x._data, powers, data)
        return rotated
    batch = len(c._batch) - 1
    given, powers, rows = (y.reshape(items, *y.shape[batch:]) for y in (x._data, powers, data))
    with Work(items, "blind rotation of {}", counted(items, "ciphertext")) as work:
        for piece in work.pieces(least=ROWS * _cpu.num_threads()):
            compute.gadget_rotation(plan, factors, given[piece], powers[piece], rows[piece])
    return rotated


def _rotated_in_steps(c: V, ggsws: Matrices, powers: Array, way: object, *, out: Array | None = None) -> V:
    """Return what `_rotated` returns, computed by products of polynomials.

    Each step is a call of `_turned`. So memory holds the temporary arrays of only one step.
    """
    check_apart(out, c._data, ggsws.data)
    data = result_array(backend_of(c._data), c._data.shape, out, c._data)
    total = mul_monomial(intt(c), powers[..., :1], data)
    for i, matrix in enumerate(ggsws.data, 1):
        ggsw = ggsws._replace(data=matrix, shape=ggsws.shape[1:])
        total = _turned(total, ggsw, powers[..., i : i + 1], way, out=total._data)
    return total


@repeated
def _turned(c: V, ggsw: Matrices, power: Array, way: object, *, out: Array | None = None) -> V:
    """Return c plus the external product of ggsw and (X^power - 1) * c, in coefficients."""
    plan, basis = _checked_product(ggsw, c, way, 0), c._plan.basis
    moved = mul_monomial(c, power)
    pointwise(basis, "sub", moved._data, c._data, moved._data)
    product = _matrix_product(ggsw, moved, plan)
    return c._with(pointwise(basis, "add", c._data, product._data, out))


def _rotated_by_groups(c: V, keys: Matrices, powers: Array, way: object, out: Array | None) -> V:
    """Return c * X^(e_0 + sum e_i s_i).

    keys: a key, in coefficients, for each group of the s_i. powers: see `_rotated`.
    """
    ring, plan, compute = c._plan, _checked_product(keys, c, way, 2), backend_of(c._data)
    check_apart(out, c._data, keys.data)
    data = result_array(compute, c._data.shape, out, c._data)
    x = intt(c)
    T = ring
    if isinstance(plan, RnsGadget):
        T = plan.T
    elif isinstance(plan.product, TorusPlan) and compute.rotate_by_groups(
        plan, keys.data, x._data, powers, data
    ):
        return x._with(data)
    total, group = mul_monomial(x, powers[..., :1], data), _group_of(keys.shape)
    for j, of_group in enumerate(keys.data):
        # The group's matrix is the sum of X^sums[k] * of_group[k] over all k. The bits of k that are 1 stand
        # for a subset of the group, and sums[k] is the sum of the e_i of the subset.
        some = powers[..., 1 + j * group : 1 + (j + 1) * group, None, None, None]
        sums = [some[..., 0, :, :, :] * 0]  # sums[0], for the empty subset
        for i in range(some.shape[-4]):
            sums += [e + some[..., i, :, :, :] for e in sums]
        terms = (mul_monomial(Value(T, m, "coef"), e) for m, e in zip(of_group, sums, strict=False))
        matrix = next(terms)
        for term in terms:
            pointwise(T.basis, "add", matrix._data, term._data, matrix._data)
        product = _matrix_product(keys._replace(data=matrix._data, domain="coef"), total, plan)
        compute.copy(product._data, data)
    return total


def _of_both_signs(ring: RingPlan, powers: Array) -> Array:
    """Return exponents for a ternary secret, (*batch, 1 + 2 * count): e_0, then e_i and -e_i for each i."""
    home = backend_of(powers)
    with home.device_scope():
        pairs = home.xp.stack([powers[..., 1:], -powers[..., 1:] % ring.quotient.order], axis=-1)
        rest = pairs.reshape(*powers.shape[:-1], -1)
        made: Array = home.xp.concatenate([powers[..., :1], rest], axis=-1)
    return made


def _checked_exponents(
    ring: RingPlan, exponents: object, batch: tuple[int, ...], counts: tuple[int, int], near: Backend
) -> Array:
    """Check exponents of shape (..., 1 + count). Return them as int64, broadcast to (*batch, 1 + count).

    counts: the least and the largest allowed count.
    near: see `exponents_of`, which also defines when exponents are reduced.
    """
    powers = exponents_of(ring, exponents, "exponents", near)
    count = powers.shape[-1] - 1 if powers.shape else -1
    if not counts[0] <= count <= counts[1]:
        most = "" if counts[0] == counts[1] else f" to {counts[1] + 1}"
        raise ParameterError(
            f"exponents has shape {powers.shape}. Its last axis must have {counts[0] + 1}{most} entries: "
            "first e_0, by which every ciphertext is rotated, and then one for each entry of the secret."
        )
    if not broadcasts(powers.shape[:-1], batch):
        raise ParameterError(
            f"exponents has batch shape {powers.shape[:-1]}, which does not broadcast to {batch}, the batch "
            "shape of the ciphertexts. Reshape or index exponents."
        )
    return contiguous(spread(powers, (*batch, count + 1)))
