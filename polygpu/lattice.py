"""Lattice cryptography above the ring: key switching of ciphertexts.

A ciphertext (RLWE) is a value of batch shape (*batch, 2) whose phase c_0 + c_1 s is a message and noise,
s the secret. A key that switches from s' to s hides multiples of s' under s.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import DeviceError, ParameterError
from .ops import lattice as ops
from .ops.rns import Precision
from .poly import Poly, _memory_of, checked_poly
from .ring import Ring

__all__ = ["key_switch", "rotate_many"]


def key_switch(
    a: Poly,
    key: Poly,
    size: int,
    special: Ring,
    conversion: Precision = "exact",
    out: Poly | None = None,
) -> Poly:
    """(d_0, d_1) with d_0 + d_1 s = a s' and a little noise: hybrid key switching.

    Relinearises c_0 + c_1 s + c_2 s^2 as (c_0, c_1) + key_switch(c_2, ...) with s' = s^2, and rotates with
    s' = s(X^g). It is a.digits(T, size) with T = a.ring.join(special), the sum of digit_j key[j] in T, and
    mod_down to a.ring, bit for bit.

    Args:
        a: a value modulo q_0 ... q_(l-1), of any batch shape; its moduli and the special ones are primes
            1 mod 2n (cyclic: 1 mod n).
        key: of batch shape (ceil(k / size), 2), evaluated, of the ring Q.join(special). Q has k limbs: a's,
            and perhaps more after them. key[j] = (b_j, a_j) with b_j + a_j s = P g_j s' + e_j, where
            P = special.modulus, g = polygpu.rns.gadget(Q, size), e_j small. Limbs and digits that a has not
            are skipped.
        size: limbs of a digit.
        special: the ring of P, coprime to Q; P about as large as the largest digit keeps the noise small.
        conversion: as Poly.convert's, of digits and of what is divided away.
        out: a Poly of a's ring with batch shape (*batch, 2) to write into.

    Returns:
        A value of a.ring, (*batch, 2), in a's domain. Noise: the size of (sum over j of digit_j e_j) / P.

    Raises:
        NotNTTFriendly: the joined ring has no complete transform.
        RingMismatch, BadRoot: rings that do not fit, or digits of a that are not those of the key.
        ParameterError, DomainError, DeviceError, OutputError: a key of another shape, in coefficients or on
            another device; an `out` that does not fit.

    Cost: with d digits, l limbs and p special ones: l + 2p inverse and d (l + p) + l forward transforms of
    an evaluated value, and the key, 2 d (l + p) rows, is read once.
    Source: Han, Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> primes = pg.ntt_primes(8, 30, 3)
    >>> Q, P = pg.Ring(8, primes[:2]), pg.Ring(8, primes[2:])
    >>> T = Q.join(P)
    >>> s, t = T.ternary(seed=1).ntt(), T.ternary(seed=2).ntt()  # from t to s
    >>> mask, noise = T.random(2, seed=3).ntt(), T.binomial(4, 2, seed=4).ntt()
    >>> hidden = pg.stack([t.scale_by(g * P.modulus) for g in pg.rns.gadget(Q, 1)])
    >>> key = pg.stack([noise - mask * s + hidden, mask], axis=1)
    >>> a = Q.random(seed=5).ntt()
    >>> d = pg.lattice.key_switch(a, key, 1, P)
    >>> (d[0] + d[1] * s.restrict(Q) - a * t.restrict(Q)).norm(float("inf")) < 50
    True
    """
    a, key = _operands(a, key)
    memory = None if out is None else _memory_of(a.ring, out)
    data, domain = ops.key_switch(
        a.ring, a.data, a.domain, _ring(special), key.ring, key.data, key.domain, size, conversion, memory
    )
    return a._result(data, domain, out)


def rotate_many(
    c: Poly,
    gs: Sequence[int],
    keys: Sequence[Poly] | Poly,
    size: int,
    special: Ring,
    conversion: Precision = "exact",
) -> Poly:
    """A ciphertext under several automorphisms X -> X^g, with digits that are made once (hoisting).

    For each g it is (c_0(X^g), 0) + key_switch(c_1(X^g), keys[i], ...), bit for bit.

    Args:
        c: ciphertexts, (*batch, 2).
        gs: integers coprime to 2n (cyclic: to n). 5^k rotates the slots of CKKS and BFV by k.
        keys: for each g one as of key_switch, with s' = s(X^g).
        size: as of key_switch.
        special: as of key_switch.
        conversion: as of key_switch.

    Returns:
        A value of c's ring, (len(gs), *batch, 2), in c's domain.

    Raises:
        ParameterError: no ciphertexts, or no key for a g; all else as key_switch.

    Cost: digits and their transforms once; for each g the key is read once, and 2p inverse and 2l forward
    transforms.
    Source: Halevi, Shoup 2018/244, section 4.2.
    """
    c = checked_poly(c, "c")
    pairs = [_operands(c, key)[1] for key in keys]
    if not pairs:
        raise ParameterError("keys: none; give a key for each of gs")
    rings = {key.ring for key in pairs}
    if len(rings) != 1:
        raise ParameterError(f"keys: of {len(rings)} rings; restrict them to one")
    arrays = [(key.data, key.domain) for key in pairs]
    data, domain = ops.rotate_many(
        c.ring, c.data, c.domain, list(gs), _ring(special), pairs[0].ring, arrays, size, conversion
    )
    return c._result(data, domain)


def _operands(a: Poly, key: Poly) -> tuple[Poly, Poly]:
    a, key = checked_poly(a, "a"), checked_poly(key, "key")
    if a.device != key.device:
        raise DeviceError(f"key: on {key.device}, the value is on {a.device}; key.to({a.device!r}) moves it")
    return a, key


def _ring(special: object) -> Ring:
    if not isinstance(special, Ring):
        raise ParameterError(f"special: {type(special).__name__}, must be a Ring")
    return special
