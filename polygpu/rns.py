"""Residue number systems: joining two values, scaling a value by a fraction, and factors for Poly.digits.

A value modulo Q = q_0 * ... * q_(k-1) is held as k limbs, its residues modulo each q_i. ring[:m] makes a ring
of the first m limbs, and ring.join(other) makes a ring with the limbs of both rings. The methods restrict,
convert, mod_up, mod_down, rescale and digits of Poly convert values to such rings.
"""

from __future__ import annotations

from ._ops import rns as ops
from .poly import Poly, as_poly, check_one_device, checked_poly, plan_of
from .ring import Ring

__all__ = ["gadget", "join", "scale"]


def join(a: Poly, b: Poly) -> Poly:
    """Return the value in the joined ring that is `a` modulo a's moduli, and `b` modulo b's moduli.

    By the Chinese remainder theorem there is exactly one such value. `Poly.restrict` gives each operand back.

    Args:
        a: a value.
        b: a value of the same degree and kind, whose moduli are coprime to a's. Batch axes broadcast.

    Returns a value of a.ring.join(b.ring). It is evaluated if an operand is evaluated and the joined ring has
    an evaluation domain, else it is in coefficients.

    Raises:
        RingMismatch: the operands differ in degree or kind, or one of them is not a Poly.
        ParameterError: a modulus of `a` and one of `b` have a common factor, a modulus is above 2**64, or the
            batch axes do not broadcast.
        BadRoot: see Ring.join. DeviceError: the operands are on two devices.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a copy, and a transform of an operand that is not in the domain of the result.

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
    """Return t * x / D rounded to the nearest, modulo `ring`, where x is the centred value of `a`.

    The result is exactly floor((2 * t * x + D) / (2 * D)), where D is the product of the moduli of `divisor`.
    BFV uses `scale` for two operations, with D = Q, the modulus of its ciphertexts. Decryption scales the
    phase of a ciphertext to the ring of plaintexts. Multiplication scales the product of two ciphertexts,
    which is held modulo Q and auxiliary primes.

    Args:
        a: a value in a ring of k limbs.
        t: any int. The product t * x is not reduced before the division.
        ring: a ring of the same degree and kind, of any moduli up to 2**64.
        divisor: a ring of some of a's moduli; D is their product. By default it is a's ring.
        out: a Poly of `ring` with a's batch shape to write into.

    Returns a value in a's domain if `ring` has that domain, else in coefficients.

    Raises:
        RingMismatch: `ring` or `divisor` differs from a's ring in degree or kind, or `divisor` has a modulus
            that a's ring does not have.
        ParameterError: a modulus is above 2**64. NotAnInteger: t is not an int.
        BadRoot: two of the rings have different roots for the same prime.
        OutputError: `out` cannot hold the result.

    Cost: k + 3 products for each coefficient and limb of `ring`. An evaluated value also takes k inverse
    transforms, and a forward transform for each limb of `ring`.
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
    """Return the factors g_j that restore a value from its digits, as the sum of digit_j * g_j modulo Q.

    Q is the product of the ring's moduli. g_j is 1 modulo the limbs of digit j and 0 modulo all other limbs.

    Args:
        ring: the ring of the values that Poly.digits decomposes.
        limbs_per_digit: see Poly.digits.

    Returns one int in [0, Q) for each digit; a ring of k limbs has ceil(k / limbs_per_digit) digits.

    Raises:
        ParameterError: `ring` is not a Ring, limbs_per_digit < 1, or a modulus is above 2**64.

    Cost: for each digit, one modular inverse of Python ints.
    Source: Han, Ki 2019/688.

    >>> import polygpu as pg
    >>> g = pg.rns.gadget(pg.Ring(4, [17, 97, 193]), limbs_per_digit=2)
    >>> g, [x % 17 for x in g], [x % 193 for x in g]
    ((112133, 206125), [1, 0], [0, 1])
    """
    return ops.gadget(plan_of(ring, "ring"), limbs_per_digit)
