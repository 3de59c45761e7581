"""Residue number systems: joining two values, scaling one by t / D, and the gadget of Poly.digits.

A value modulo Q = q_0 ... q_(k-1) is held as its residues modulo each q_i, the limbs. ring[:k] and
ring.join(other) make rings of other limbs. Poly's methods restrict, convert, mod_up, mod_down, rescale and
digits take values to such rings.
"""

from __future__ import annotations

from ._ops import rns as ops
from .poly import Poly, as_poly, check_one_device, checked_poly, plan_of
from .ring import Ring

__all__ = ["gadget", "join", "scale"]


def join(a: Poly, b: Poly) -> Poly:
    """Return the value modulo the moduli of both operands that is a modulo a's moduli and b modulo b's.

    By the Chinese remainder theorem there is one. restrict undoes it.

    Args:
        a: a value of one ring.
        b: a value of another, of the same degree and kind, with moduli coprime to a's; batch axes broadcast.

    Returns a value of a.ring.join(b.ring): in "eval" if an operand is evaluated and that ring has an
    evaluation domain, else in coefficients.

    Raises:
        RingMismatch: rings of another degree or kind, or an operand that is not a Poly.
        ParameterError: moduli with a common factor or above 2**64, or batch axes that do not broadcast.
        BadRoot: see Ring.join. DeviceError: operands on two devices.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: a copy; a transform of an operand in the other domain.

    >>> import polygpu as pg
    >>> R, S = pg.Ring(4, 17), pg.Ring(4, 97)
    >>> c = pg.rns.join(R([3]), S([20]))  # 20 is 3 modulo 17
    >>> c.to_bigints().tolist(), c.restrict(S) == S([20])
    ([20, 0, 0, 0], True)
    """
    a, b = checked_poly(a, "a"), checked_poly(b, "b")
    check_one_device(a, b)
    value = ops.join(a, b)
    return as_poly(Ring._of(value._plan), value, None)


def scale(a: Poly, t: int, ring: Ring, *, divisor: Ring | None = None, out: Poly | None = None) -> Poly:
    """Return t x / D rounded to the nearest, modulo `ring`, where x is the centred value of a.

    Exactly, it is floor((2 t x + D) / (2 D)). BFV takes it twice: it decrypts with D = Q to the ring of
    plaintexts, and it multiplies with D = Q a product that is held modulo Q and auxiliary primes.

    Args:
        a: a value in a ring of k limbs.
        t: any int; t x is not reduced before the division.
        ring: a ring of the same degree and kind, of any moduli up to 2**64.
        divisor: a ring of some of a's moduli, whose product is D; by default all of them.
        out: a Poly of `ring` with a's batch shape to write into.

    Returns a value in a's domain if `ring` has it, else in coefficients.

    Raises:
        RingMismatch: `ring` or divisor is of another degree or kind, or divisor has a modulus that a lacks.
        ParameterError: a modulus above 2**64. NotAnInteger: t is not an int.
        BadRoot: another root for a prime that both have. OutputError: `out` cannot take the result.

    Cost: k + 3 products for each coefficient and limb of `ring`. An evaluated value takes inverse transforms
    of its k limbs, and transforms of those of `ring`.
    Source: Halevi, Polyakov, Shoup 2018/117, sections 2.2 to 2.4, made exact; docs/math.md, "Conversion
    between bases".

    >>> import polygpu as pg
    >>> R, S = pg.Ring(4, [97, 193]), pg.Ring(4, 17)
    >>> pg.rns.scale(R([9360, 9361, 1101]), 2, S).to_bigints().tolist()
    [1, 16, 0, 0]
    """
    D = None if divisor is None else plan_of(divisor, "divisor")
    return checked_poly(a, "a")._moved(ops.scale, ring, t, D, out=out)


def gadget(ring: Ring, *, limbs_per_digit: int) -> tuple[int, ...]:
    """Return the factors g_j by which digits give the value back: it is the sum of digit_j g_j modulo Q.

    g_j is 1 modulo the limbs of digit j and 0 modulo the others.

    Args:
        ring: the ring of the values that Poly.digits decomposes.
        limbs_per_digit: limbs of a digit, as in Poly.digits.

    Returns one int in [0, Q) for each of the ceil(k / limbs_per_digit) digits of k limbs.

    Raises:
        ParameterError: `ring` is not a Ring, limbs_per_digit < 1, or a modulus is above 2**64.

    Cost: an inverse modulo the product of each group, in Python ints.
    Source: Han, Ki 2019/688.

    >>> import polygpu as pg
    >>> g = pg.rns.gadget(pg.Ring(4, [17, 97, 193]), limbs_per_digit=2)
    >>> g, [x % 17 for x in g], [x % 193 for x in g]
    ((112133, 206125), [1, 0], [0, 1])
    """
    return ops.gadget(plan_of(ring, "ring"), limbs_per_digit)
