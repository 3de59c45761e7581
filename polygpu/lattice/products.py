"""Sums and products of ciphertexts with numbers and with each other."""

from __future__ import annotations

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
    """Return ciphertexts plus integers: each is added to component 0 of its ciphertext, at X^0.

    The phase of the result is that of c plus the constant polynomial x. Evaluated ciphertexts stay so: x is
    added at every point, or to the constant of every leaf if the transform is incomplete.

    Args:
        c: ciphertexts, (*batch, k), in either domain.
        x: ints of any size and sign, taken modulo Q: one int, or a nested list or an array of integers or
            Python ints whose shape broadcasts to (*batch,).

    Returns a new value of c's ring, shape and domain.

    Raises:
        RingMismatch: c is no Poly.
        ParameterError: c has no axis of components, or the shape of x does not broadcast to (*batch,).
        CoefficientError: x holds something other than integers. Nothing is rounded.
        DeviceError: x is an array on another device than c.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a copy of c, and one sum for each ciphertext and limb; n / leaf_size sums for evaluated ones.

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
            f"c: batch shape {c.shape}; its last axis must be that of a ciphertext's components, at least "
            "one. Add an int to a plain value with +"
        )
    plan = c._plan
    return c._with(add_to_first(plan.basis, c._data, x, plan.constant_step(c._domain)))


def tensor(a: Poly, b: Poly, *, ring: Ring | None = None) -> Poly:
    """Multiply ciphertexts of two components, and leave three: the phase is c_0 + c_1 s + c_2 s^2.

    Args:
        a: ciphertexts, (*batch, 2).
        b: ciphertexts of a's ring and device; batch axes broadcast.
        ring: the ring of the result, if operands have more limbs than it; see Poly.mul.

    Returns:
        (a_0 b_0, a_0 b_1 + a_1 b_0, a_1 b_1), (*batch, 3): in coefficients if both operands are, else
        evaluated.

    Raises:
        ParameterError: an operand without an axis of two components, or batch shapes that do not broadcast.
        NotNTTFriendly: the ring has no complete transform.
        RingMismatch: operands of different rings, or one that lacks a limb of `ring`.
        BadRoot: an operand has another root for a modulus of `ring`.
        DeviceError: operands on two devices.

    Cost: four products and a sum for each point and limb; of the same object three products. Operands in
    coefficients are transformed.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> a, b = R([[1], [2]]), R([[3], [4]])
    >>> pg.lattice.tensor(a, b).to_bigints()[:, 0].tolist()
    [3, 10, 8]
    """
    ring, x, y, is_evaluated = _checked_operands(a, b, ring)
    found = Poly._make(ring, ops.tensor(ring._plan.basis, x, y), "eval")
    return found if is_evaluated else found.intt()


def multiply(
    a: Poly, b: Poly, relin: SwitchKey, *, add: Poly | None = None, rescale: int = 0, ring: Ring | None = None
) -> Poly:
    """Multiply ciphertexts, relinearise and rescale, with one division.

    The result is, bit for bit, key_switch(t[..., 2], relin, add=t[..., :2] + add, rescale=rescale) with
    t = tensor(a, b).

    Args:
        a: ciphertexts, (*batch, 2).
        b: ciphertexts of a's ring and device; batch axes broadcast.
        relin: a key of `switch_key` that switches from s^2 to s.
        add: ciphertexts in the result's shape and domain to add before the division. Its ring is the
            operands', or has more limbs.
        rescale: how many limbs at the end of the ring are divided away.
        ring: the ring of the product, if operands have more limbs than it.

    Returns:
        A value of the operands' ring without the last `rescale` limbs, (*batch, 2): in coefficients if both
        operands are, else evaluated.

    Raises:
        ParameterError: no SwitchKey, operands or `add` of other shapes, or rescale outside its range.
        DomainError: `add` in another domain than the result. All else as tensor and key_switch.

    Cost: that of tensor and of key_switch.
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
    relin = checked_key(relin, "relin")
    ring, x, y, is_evaluated = _checked_operands(a, b, ring)
    switch, target = relin._switch(ring), without_last(ring, rescale, "rescale", least=0)
    check_one_device(a, relin.value)
    more = None
    if add is not None:
        batch = np.broadcast_shapes(x.shape[:-3], y.shape[:-3])
        domain = "eval" if is_evaluated else "coef"
        more = ntt(checked_addend(ring, domain, (*batch, 2), add))._data
    value = ops.multiply(ring._plan, x, y, relin.value, switch, more, target._plan)
    return as_poly(target, value if is_evaluated else intt(value, value._data), None)


def _checked_operands(a: Poly, b: Poly, ring: Ring | None) -> tuple[Ring, Any, Any, bool]:
    """Return the ring of a product, evaluated operands as arrays, and whether one was evaluated before."""
    a, b = checked_poly(a, "a"), checked_poly(b, "b")
    for name, x in (("a", a), ("b", b)):
        if x.shape[-1:] != (2,):
            raise ParameterError(
                f"{name}: batch shape {x.shape}; the last axis must be of length 2, a ciphertext's components"
            )
    if ring is not None:
        a, b = limbs_in(ring, a, b)
    elif b is not a:
        b = a._operand(b)
    if a._plan.leaf_size != 1:
        raise NotNTTFriendly(
            f"tensor: {a.ring!r} has no complete transform; ntt_primes gives moduli that have one"
        )
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ParameterError(f"batch shapes {a.shape} and {b.shape} do not broadcast") from None
    is_evaluated = "eval" in (a.domain, b.domain)
    x = _evaluated(a)
    return a.ring, x, x if b is a else _evaluated(b), is_evaluated


def _evaluated(a: Poly) -> Any:
    """Return the evaluated residues, which may have gaps between items."""
    return a._data if a.domain == "eval" else ntt(a._with(contiguous(a._data)))._data
