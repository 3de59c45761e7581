"""Residue number systems: what concerns two values, or a scaled one, over several bases of moduli.

A value modulo Q = q_0 ... q_(k-1) is held as its residues, the limbs. ring[:k] and ring.join(other) make
rings of other limbs; poly.restrict, convert, mod_up, mod_down, rescale and digits take values to them.
"""

from __future__ import annotations

from math import prod

from .checks import integer, shown
from .errors import ParameterError
from .ops import rns as ops
from .poly import Poly, check_one_device, checked_poly
from .ring import Ring

__all__ = ["gadget", "join", "scale"]


def join(a: Poly, b: Poly) -> Poly:
    """The value modulo the moduli of both, whose residues a and b hold: a.restrict undoes it.

    Args:
        a: a value of one ring.
        b: a value of another, of the same degree and kind, with moduli coprime to a's; batch axes broadcast.

    Returns a value of a.ring.join(b.ring), in the operands' domain; of mixed domains evaluated where that
    ring has an evaluation domain.

    Raises:
        RingMismatch, ParameterError, BadRoot: as Ring.join. DeviceError: two devices.

    Cost: a copy; transforms of operands in another domain.

    >>> import polygpu as pg
    >>> R, S = pg.Ring(4, 17), pg.Ring(4, 97)
    >>> pg.rns.join(R([3]), S([3])).to_bigints().tolist()
    [3, 0, 0, 0]
    """
    a, b = checked_poly(a, "a"), checked_poly(b, "b")
    for poly in (a, b):
        ops.check_words(poly.ring, "join")
    check_one_device(a, b)
    ring = a.ring.join(b.ring)
    return Poly._wrap(ring, *ops.join((a.ring, b.ring), ring, (a.data, b.data), (a.domain, b.domain)))


def scale(a: Poly, t: int, S: Ring, divisor: Ring | None = None, out: Poly | None = None) -> Poly:
    """floor((2 t x + D) / (2 D)) modulo S, of the centred value x of a: t x / D, rounded to the nearest.

    BFV decrypts with D = Q, S the plaintext's ring, and multiplies with D = Q, of a product held modulo Q and
    auxiliary primes.

    Args:
        a: a value modulo Q.
        t: any int; t x is not reduced before the division.
        S: a ring of the same degree and kind, of any moduli up to 2**64.
        divisor: the ring of the moduli whose product is D, among a's; all of them by default.
        out: a Poly of S with a's batch shape to write into.

    Returns a's domain where S has it, else coefficients.

    Raises:
        RingMismatch: another degree or kind, or a divisor that a has not. ParameterError: a modulus above
            2**64.

    Cost: inverse transforms of all limbs, k + 3 products for each coefficient and limb of S, transforms of S.
    Source: Halevi, Polyakov, Shoup 2018/117, sections 2.2 to 2.4, made exact; docs/math.md.

    >>> import polygpu as pg
    >>> R, S = pg.Ring(4, [97, 193]), pg.Ring(4, 17)
    >>> pg.rns.scale(R([9360, 9361, 1101]), 2, S).to_bigints().tolist()
    [1, 16, 0, 0]
    """
    return checked_poly(a, "a")._moved(ops.scale, S, t, divisor, out=out)


def gadget(R: Ring, size: int) -> tuple[int, ...]:
    """g_j in [0, Q), 1 modulo the limbs of digit j and 0 modulo the others: sum digit_j g_j is the value.

    Args:
        R: the ring of the values that Poly.digits takes apart.
        size: limbs of a digit; ceil(k / size) digits.

    Raises:
        ParameterError: size < 1, or a modulus above 2**64.

    >>> import polygpu as pg
    >>> pg.rns.gadget(pg.Ring(4, [17, 97, 193]), 2)
    (112133, 206125)
    """
    if not isinstance(R, Ring):
        raise ParameterError(f"R: {shown(R)}, must be a Ring")
    ops.check_words(R, "gadget")
    parts = ops.groups(R, integer(size, "size"))
    numbers = []
    for part in parts:
        own = prod(R.moduli[i] for i in part)
        rest = R.modulus // own
        numbers.append(rest * pow(rest, -1, own))
    return tuple(numbers)
