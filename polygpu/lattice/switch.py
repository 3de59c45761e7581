"""Key switching, and rotations of ciphertexts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._backends import Array
from .._ops import switch as ops
from .._ops.rns import Precision
from ..errors import DomainError, ParameterError
from ..poly import Poly, as_poly, check_one_device, checked_poly, memory_of, plan_of, without_last
from ..ring import Ring


# Eight parameters: a key does not know its own size, special primes and conversion.
def key_switch(
    a: Poly,
    key: Poly,
    size: int,
    special: Ring,
    conversion: Precision = "exact",
    out: Poly | None = None,
    add: Poly | None = None,
    rescale: int = 0,
) -> Poly:
    """A ciphertext (d_0, d_1) under s that hides a s': d_0 + d_1 s is a s' plus noise. Hybrid key switching.

    A ciphertext c_0 + c_1 s + c_2 s^2 is relinearised by key_switch(c_2, ..., add=(c_0, c_1)) with s' = s^2.
    A rotation X -> X^g takes s' = s(X^g).

    The result is, bit for bit, that of these steps: a.digits(T, size) with T = a.ring.join(special); the sum
    of digit_j key[j] in T; with `add`, P times that is added; mod_down to the ring of the result.

    Args:
        a: a value modulo q_0 ... q_(l-1), of any batch shape. Its moduli and the special ones are primes
            1 mod 2n (cyclic: 1 mod n).
        key: of batch shape (ceil(k / size), 2), evaluated, of the ring Q.join(special). Q has k limbs: those
            of a, and perhaps more after them. key[j] = (b_j, a_j) with b_j + a_j s = P g_j s' + e_j, where
            P = special.modulus, g = polygpu.rns.gadget(Q, size) and e_j is small. Limbs and digits of the key
            that a has not are skipped.
        size: limbs of a digit.
        special: the ring of P, coprime to Q. The noise stays small if P is about as large as the largest
            digit.
        conversion: "exact" or "fast", as of Poly.convert, for the digits and for the division by P.
        out: a Poly of the result's ring with batch shape (*batch, 2) to write into.
        add: a value of a's ring and domain, (*batch, 2), to add to the result; it costs less than a sum
            afterwards.
        rescale: how many limbs at the end of a's ring are divided away with P. The result, with what is
            added, is rounded once; `.rescale()` afterwards would round a second time and divide once more.

    Returns:
        A value of a.ring, or of a.ring[:-rescale], (*batch, 2), in a's domain. Its noise is about (sum over j
        of digit_j e_j) / P in size.

    Raises:
        NotNTTFriendly: the joined ring has no complete transform.
        RingMismatch: rings that do not fit, or digits of a that are not digits of the key.
        BadRoot: another root for a prime that two of the rings have.
        ParameterError: a key or `add` of another shape, moduli with a common factor, size < 1, rescale
            outside its range, or another word for conversion.
        DomainError: a key in coefficients, or `add` in another domain than a.
        DeviceError, OutputError: operands on two devices; `out` cannot take the result.

    Cost: with d digits, l limbs and p special ones: l + 2p inverse and d (l + p) + l forward transforms of an
    evaluated value. The key, 2 d (l + p) rows, is read once.
    Source: Han, Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> primes = pg.ntt_primes(8, bits=30, count=3)
    >>> Q, P = pg.Ring(8, primes[:2]), pg.Ring(8, primes[2:])
    >>> T = Q.join(P)
    >>> s, t = T.ternary(seed=1).ntt(), T.ternary(seed=2).ntt()  # from t to s
    >>> mask, noise = T.random(2, seed=3).ntt(), T.binomial(4, batch=2, seed=4).ntt()
    >>> hidden = pg.stack([t.scale_by(g * P.modulus) for g in pg.rns.gadget(Q, limbs_per_digit=1)])
    >>> key = pg.stack([noise - mask * s + hidden, mask], axis=1)
    >>> a = Q.random(seed=5).ntt()
    >>> d = pg.lattice.key_switch(a, key, 1, P)
    >>> (d[0] + d[1] * s.restrict(Q) - a * t.restrict(Q)).norm(float("inf")) < 50
    True
    """
    a, key = checked_poly(a, "a"), checked_poly(key, "key")
    check_one_device(a, key)
    ring = without_last(a.ring, rescale, "rescale", least=0)
    target, memory = ring._plan, memory_of(ring._plan, out)
    more = None if add is None else _addend(a, add)
    P = plan_of(special, "special")
    switch = ops.key_switch_plan(a._plan, P, key._plan, size, conversion)
    value = ops.key_switch(a, key, switch, more, target, out=memory)
    return as_poly(ring, value, out)


def rotate_many(
    c: Poly,
    gs: Sequence[int],
    keys: Sequence[Poly] | Poly,
    size: int,
    special: Ring,
    conversion: Precision = "exact",
) -> Poly:
    """A ciphertext under several automorphisms X -> X^g, from digits that are computed once (hoisting).

    For each g the result is (c_0(X^g), 0) + key_switch(c_1(X^g), keys[i], ...), bit for bit.

    Args:
        c: ciphertexts, (*batch, 2).
        gs: integers coprime to 2n (cyclic: to n). 5^k turns the slots of CKKS and BFV left by k.
        keys: for each g a key as of key_switch, with s' = s(X^g); all of one ring.
        size: as of key_switch.
        special: as of key_switch.
        conversion: as of key_switch.

    Returns:
        A value of c's ring, (len(gs), *batch, 2), in c's domain; of no automorphisms an empty one.

    Raises:
        ParameterError: c is of another batch shape, a g is not coprime, or there is not one key for each g.
            All else as key_switch.

    Cost: with d digits, l limbs and p special ones: digits and their transforms once, as in key_switch. For
    each g the key is read once, and there are 2p inverse and 2l forward transforms.
    Source: Halevi, Shoup 2018/244, section 4.2.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> def key(g):  # from s(X^g) to s
    ...     mask, noise = T.random(2, seed=g).ntt(), T.binomial(4, batch=2, seed=g)
    ...     hidden = [s.automorphism(g).scale_by(x * P.modulus) for x in pg.rns.gadget(Q, limbs_per_digit=1)]
    ...     return pg.stack([noise - mask * s + pg.stack(hidden), mask], axis=1)
    >>> message, mask = Q([0, 10**6]), Q.random(seed=2)
    >>> c = pg.stack([message - mask * s.restrict(Q), mask])
    >>> rotated = pg.lattice.rotate_many(c, [3, 5], [key(3), key(5)], 1, P)
    >>> phases = rotated[:, 0] + rotated[:, 1] * s.restrict(Q)
    >>> (phases - message.automorphism([3, 5])).norm(float("inf")).max() < 50
    True
    """
    c = checked_poly(c, "c")
    for name, of in (("gs", gs), ("keys", keys)):
        if not (isinstance(of, (Sequence, np.ndarray)) or (isinstance(of, Poly) and of.shape)):
            raise ParameterError(
                f"{name}: {type(of).__name__}, must be a sequence, one for each automorphism"
            )
    pairs = [checked_poly(key, f"keys[{i}]") for i, key in enumerate(keys)]
    for key in pairs:
        check_one_device(c, key)
    P = plan_of(special, "special")
    rings = {key._plan for key in pairs} or {c._plan.join(P)}
    if len(rings) != 1:
        raise ParameterError(f"keys: of {len(rings)} rings; restrict them to one")
    switch = ops.key_switch_plan(c._plan, P, rings.pop(), size, conversion)
    return ops.rotate_many(c, list(gs), pairs, switch)


def _addend(a: Poly, add: object) -> Array:
    """The array of `add`, checked against a: of its ring and domain, with batch shape (*batch, 2)."""
    add = a._operand(checked_poly(add, "add"))
    if add.domain != a.domain:
        raise DomainError(f"add: in {add.domain!r}, a in {a.domain!r}; evaluate one by .ntt()")
    if add.shape != (*a.shape, 2):
        raise ParameterError(f"add: batch shape {add.shape}, must be {(*a.shape, 2)}, as the result")
    return add.data
