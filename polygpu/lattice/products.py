"""Sums of ciphertexts and integers, and products of ciphertexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._ops import tensor as ops
from .._ops.arrays import contiguous
from .._ops.pointwise import add_to_first
from .._ops.transform import intt, ntt
from ..errors import NotNTTFriendly, ParameterError
from ..poly import Poly, as_poly, check_one_device, checked_poly, limbs_in, without_last
from ..ring import Ring
from .keys import SwitchKey
from .switch import checked_addend, checked_key


def add_constant(c: Poly, x: Any) -> Poly:
    """Return ciphertexts plus integers: x is added to coefficient 0 of component 0 of each ciphertext.

    The phase of the result is the phase of c plus the constant polynomial x. Evaluated ciphertexts stay
    evaluated: x is added at every point. An incomplete transform ends with polynomials of leaf_size
    coefficients instead of values at points, and x is added to the constant coefficient of each.

    Args:
        c: ciphertexts of batch shape (*batch, k), in either domain.
        x: one int, a nested list of ints, or an array of integers or Python ints. Its shape broadcasts to
            (*batch,). The ints have any size and sign, and are taken modulo the modulus of c's ring.

    Returns a new value of c's ring, batch shape and domain.

    Raises:
        RingMismatch: c is not a Poly.
        ParameterError: c has no batch axis for components, or the shape of x does not broadcast to (*batch,).
        CoefficientError: x holds something other than integers. Nothing is rounded.
        DeviceError: x is an array on another device than c.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a copy of c, and for each ciphertext and limb one sum, or n / leaf_size sums if c is evaluated.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> c = R([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])  # two ciphertexts of two components
    >>> pg.lattice.add_constant(c, [10, -1]).to_bigints(centered=True)[..., :2].tolist()
    [[[11, 2], [3, 4]], [[4, 6], [7, 8]]]
    >>> pg.lattice.add_constant(c.ntt(), 2**100) == pg.lattice.add_constant(c, 2**100)
    True
    """
    c = checked_poly(c, "c")
    if not c.ndim or not c.shape[-1]:
        raise ParameterError(
            f"The batch shape of c is {c.shape}. Its last axis must hold the components of a ciphertext, at "
            "least one. If c is not encrypted, use c + x instead."
        )
    plan = c._plan
    return c._with(add_to_first(plan.basis, c._data, x, plan.constant_step(c._domain)))


def tensor(a: Poly, b: Poly, *, ring: Ring | None = None) -> Poly:
    """Multiply ciphertexts of two components into ciphertexts of three components.

    The phase of a product (c_0, c_1, c_2) is c_0 + c_1 * s + c_2 * s^2. It is the product of the phases of
    the operands.

    Args:
        a: ciphertexts of batch shape (*batch, 2).
        b: ciphertexts of a's ring, on a's device; batch axes broadcast.
        ring: the ring of the result, by default that of the operands. The operands may have more limbs; the
            extra ones are ignored, see Poly.mul.

    Returns:
        A value of batch shape (*batch, 3), with components a_0 * b_0, a_0 * b_1 + a_1 * b_0 and a_1 * b_1. It
        is in coefficients if both operands are, else evaluated.

    Raises:
        ParameterError: the last batch axis of an operand does not have length 2, or the batch shapes do not
            broadcast.
        NotNTTFriendly: the ring has no complete transform.
        RingMismatch: the operands have different rings, or one of them lacks a limb of `ring`.
        BadRoot: an operand and `ring` have different roots for the same prime.
        DeviceError: the operands are on two devices.

    Cost: four products and a sum for each point and limb, or three products if a and b are the same object.
    Operands in coefficients are transformed.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> a, b = R([[1], [2]]), R([[3], [4]])
    >>> pg.lattice.tensor(a, b).to_bigints()[:, 0].tolist()
    [3, 10, 8]
    """
    ring, (x,), (y,), is_evaluated = _checked_operands([a], [b], ring)
    found = Poly._make(ring, ops.tensor(ring._plan.basis, x, y), "eval")
    return found if is_evaluated else found.intt()


def multiply(
    a: Poly, b: Poly, relin: SwitchKey, *, add: Poly | None = None, rescale: int = 0, ring: Ring | None = None
) -> Poly:
    """Multiply ciphertexts, relinearise the products and rescale them, with one division for both.

    The result is, bit for bit, key_switch(t[..., 2], relin, add=t[..., :2] + add, rescale=rescale) with
    t = tensor(a, b).

    Args:
        a: ciphertexts of batch shape (*batch, 2).
        b: ciphertexts of a's ring, on a's device; batch axes broadcast.
        relin: a key made by switch_key that switches from s^2 to s.
        add: ciphertexts of the result's batch shape and domain, which are added before the division. Their
            ring may have more limbs than the operands'; the extra ones are ignored.
        rescale: how many of the last limbs of `ring` the result drops. The result is divided by the product
            of their moduli.
        ring: the ring of the product before limbs are dropped, see tensor.

    Returns:
        A value of batch shape (*batch, 2), of `ring` without its last `rescale` limbs. It is in coefficients
        if both operands are, else evaluated.

    Raises:
        ParameterError: relin is not a SwitchKey, the batch shape of an operand or of `add` does not fit, or
            rescale is outside its range.
        DomainError: `add` is not in the domain of the result. For other errors, see tensor and key_switch.

    Cost: one tensor and one key_switch.
    Source: Han, Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=40, count=4))
    >>> Q, P, s = T[:3], T[3:], T.ternary(seed=1)
    >>> relin = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)
    >>> mask = Q.random(seed=2)
    >>> c = pg.stack([3 * 2**40 - mask * s.restrict(Q), mask])
    >>> d = pg.lattice.multiply(c, c, relin, rescale=1)
    >>> phase = d[0] + d[1] * s.restrict(d.ring)
    >>> round(int(phase.to_bigints()[0]) / (2**80 / Q.moduli[-1]))
    9
    """
    return inner_product([a], [b], relin, add=add, rescale=rescale, ring=ring)


def inner_product(
    a: Sequence[Poly],
    b: Sequence[Poly],
    relin: SwitchKey,
    *,
    add: Poly | None = None,
    rescale: int = 0,
    ring: Ring | None = None,
) -> Poly:
    """Multiply pairs of ciphertexts and add the products, with one relinearisation and one division.

    The result is, bit for bit, key_switch(t[..., 2], relin, add=t[..., :2] + add, rescale=rescale), where t
    is the sum of tensor(a[i], b[i]) over i. `multiply` does the same for one pair.

    Args:
        a: a sequence of at least one Poly. Each holds ciphertexts of batch shape (*batch, 2).
        b: a sequence of Polys like a, and as long as a. The Polys in a and b have the same ring and device,
            and their batch axes broadcast.
        relin: a key made by switch_key that switches from s^2 to s.
        add: ciphertexts of the result's batch shape and domain, which are added before the division. Their
            ring may have more limbs than the operands'; the extra ones are ignored.
        rescale: how many of the last limbs of `ring` the result drops. The result is divided by the product
            of their moduli.
        ring: the ring of the products before limbs are dropped, see tensor.

    Returns:
        A value of batch shape (*batch, 2), of `ring` without its last `rescale` limbs. It is in coefficients
        if all operands are, else evaluated.

    Raises:
        ParameterError: relin is not a SwitchKey, a or b is empty, a and b differ in length, the batch shape
            of an operand or of `add` does not fit, or rescale is outside its range.
        DomainError: `add` is not in the domain of the result. For other errors, see tensor and key_switch.

    Cost: one tensor for each pair, and one key_switch.
    Source: Bossuat, Mouchet, Troncoso-Pastoriza, Hubaux 2020/1203, section 5.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=40, count=4))
    >>> Q, P, s = T[:3], T[3:], T.ternary(seed=1)
    >>> relin = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)
    >>> mask = Q.random(seed=2)
    >>> x, y = (pg.stack([m * 2**40 - mask * s.restrict(Q), mask]) for m in (3, 5))
    >>> d = pg.lattice.inner_product([x, y], [x, y], relin, rescale=1)
    >>> phase = d[0] + d[1] * s.restrict(d.ring)
    >>> round(int(phase.to_bigints()[0]) / (2**80 / Q.moduli[-1]))
    34
    """
    relin = checked_key(relin, "relin")
    ring, xs, ys, is_evaluated = _checked_operands(a, b, ring)
    switch, target = relin._switch(ring), without_last(ring, rescale, "rescale", least=0)
    check_one_device(a[0], relin.value)
    more = None
    if add is not None:
        batch = np.broadcast_shapes(*(x.shape[:-3] for x in (*xs, *ys)))
        domain = "eval" if is_evaluated else "coef"
        more = ntt(checked_addend(ring, domain, (*batch, 2), add))._data
    value = ops.inner_product(ring._plan, xs, ys, relin.value, switch, more, target._plan)
    return as_poly(target, value if is_evaluated else intt(value, value._data), None)


def _checked_operands(
    a: Sequence[Poly], b: Sequence[Poly], ring: Ring | None
) -> tuple[Ring, tuple[Any, ...], tuple[Any, ...], bool]:
    """Return (ring of the products, evaluated arrays of a, evaluated arrays of b, is_evaluated).

    is_evaluated: whether at least one Poly of a or b was given in "eval".
    """
    for name, operands in (("a", a), ("b", b)):
        if isinstance(operands, Poly) or not isinstance(operands, Sequence) or not operands:
            kind = "an empty sequence" if isinstance(operands, Sequence) else type(operands).__name__
            raise ParameterError(f"{name} must be a list of at least one ciphertext, not {kind}.")
        for x in operands:
            if checked_poly(x, name).shape[-1:] != (2,):
                raise ParameterError(
                    f"The batch shape of {name} is {x.shape}. Its last axis must have length 2, for the two "
                    "components of a ciphertext."
                )
    if len(a) != len(b):
        raise ParameterError(
            f"The number of ciphertexts is {len(a)} in a and {len(b)} in b. Give the same number in both."
        )
    given = [*a, *b]
    if ring is not None:
        given = limbs_in(ring, *given)
    else:
        given = [given[0], *(x if x is given[0] else given[0]._operand(x) for x in given[1:])]
    ring = given[0].ring
    if ring._plan.leaf_size != 1:
        raise NotNTTFriendly(
            f"{ring!r} has no complete transform, and `tensor` needs one. {ring._plan.where_complete()}"
        )
    try:
        np.broadcast_shapes(*(x.shape for x in given))
    except ValueError:
        shapes = " and ".join(str(x.shape) for x in given)
        raise ParameterError(
            f"The batch shapes {shapes} do not broadcast. Counted from the last axis, two lengths must be "
            "equal, or one of them must be 1."
        ) from None
    is_evaluated = any(x.domain == "eval" for x in given)
    made: dict[int, Any] = {}  # from id(Poly) to its array: a Poly that occurs twice is transformed once
    arrays = tuple(made[id(x)] if id(x) in made else made.setdefault(id(x), _evaluated(x)) for x in given)
    return ring, arrays[: len(a)], arrays[len(a) :], is_evaluated


def _evaluated(a: Poly) -> Any:
    """Return the evaluated residues of a. The array can be non-contiguous."""
    return a._data if a.domain == "eval" else ntt(a._with(contiguous(a._data)))._data
