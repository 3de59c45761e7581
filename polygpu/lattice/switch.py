"""Key switching, and rotations of ciphertexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._backends import Array
from .._ops import switch as ops
from .._ops.rns import Precision
from ..errors import DomainError, ParameterError
from ..functions import concatenate
from ..poly import Poly, as_poly, check_one_device, checked_poly, memory_of, without_last
from ..ring import Ring
from .keys import SwitchKey


def key_switch(
    a: Poly,
    key: SwitchKey,
    *,
    add: Poly | None = None,
    rescale: int = 0,
    conversion: Precision = "exact",
    out: Poly | None = None,
) -> Poly:
    """A ciphertext (d_0, d_1) under s that hides a s': d_0 + d_1 s is a s' plus noise. Hybrid key switching.

    A ciphertext c_0 + c_1 s + c_2 s^2 is relinearised by key_switch(c_2, key, add=(c_0, c_1)) with a key from
    s' = s^2.

    The result is, bit for bit, that of these steps: a.digits(T, limbs_per_digit=...) with
    T = a.ring.join(key.special); the sum of digit_j key[j] in T; with `add`, P times that is added; mod_down
    to the ring of the result.

    Args:
        a: a value of the key's ring, or of the first of its limbs, of any batch shape.
        key: from s' to s, on a's device.
        add: a value of a's ring and domain, (*batch, 2), to add to the result; it costs less than a sum
            afterwards.
        rescale: how many limbs at the end of a's ring are divided away with P. The result, with what is
            added, is rounded once; `.rescale()` afterwards would round a second time and divide once more.
        conversion: "exact" or "fast", as of Poly.convert, for the digits and for the division by P.
        out: a Poly of the result's ring with batch shape (*batch, 2) to write into.

    Returns:
        A value of a.ring, or of a.ring[:-rescale], (*batch, 2), in a's domain. Its noise is about (sum over j
        of digit_j e_j) / P in size.

    Raises:
        RingMismatch: a is of another ring, or a limb is missing before its last one.
        BadRoot: another root for a prime that two of the rings have.
        ParameterError: no SwitchKey, `add` of another shape, rescale outside its range, or another word for
            conversion.
        DomainError: `add` in another domain than a.
        DeviceError, OutputError: operands on two devices; `out` cannot take the result.

    Cost: with d digits, l limbs and p special ones: l + 2p inverse and d (l + p) + l forward transforms of an
    evaluated value. The key, 2 d (l + p) rows, is read once.
    Source: Han, Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P = T[:2], T[2:]
    >>> s, t = T.ternary(seed=1), T.ternary(seed=2)
    >>> key = pg.lattice.switch_key(s, t, ring=Q, special=P, limbs_per_digit=1)
    >>> a = Q.random(seed=5)
    >>> d = pg.lattice.key_switch(a, key)
    >>> (d[0] + d[1] * s.restrict(Q) - a * t.restrict(Q)).norm(float("inf")) < 100
    True
    """
    a, key = checked_poly(a, "a"), _checked_key(key, "key")
    check_one_device(a, key.value)
    ring = without_last(a.ring, rescale, "rescale", least=0)
    target, memory = ring._plan, memory_of(ring._plan, out)
    more = None if add is None else _addend(a, add)
    value = ops.key_switch(a, key.value, key._switch(a.ring, conversion), more, target, out=memory)
    return as_poly(ring, value, out)


def rotate(c: Poly, key: SwitchKey, *, conversion: Precision = "exact") -> Poly:
    """A ciphertext under the automorphism X -> X^g of a key.

    With an ordinary key the result is, bit for bit, (c_0(X^g), 0) + key_switch(c_1(X^g), key). With a turned
    one it is (c_0, 0) + key_switch(c_1, key), and then X -> X^g.

    Args:
        c: ciphertexts, (*batch, 2).
        key: of rotation_keys.
        conversion: as of key_switch.

    Returns a value of c's ring, shape and domain.

    Raises:
        ParameterError: c is of another batch shape, or the key has no galois_element. All else as key_switch.

    Cost: that of key_switch, two permutations and a sum.
    Source: Halevi, Shoup 2018/244, section 4.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> key = pg.lattice.rotation_keys(s, [5], ring=Q, special=P, limbs_per_digit=1)[5]
    >>> message, mask = Q([0, 10**6]), Q.random(seed=2)
    >>> d = pg.lattice.rotate(pg.stack([message - mask * s.restrict(Q), mask]), key)
    >>> (d[0] + d[1] * s.restrict(Q) - message.automorphism(5)).norm(float("inf")) < 100
    True
    """
    c, (key,) = _checked_rotations(c, [key])
    if not key.turned:
        return rotate_many(c, [key], conversion=conversion)[0]
    check_one_device(c, key.value)
    switched = ops.key_switch(c[..., 1], key.value, key._switch(c.ring, conversion))
    total = as_poly(c.ring, switched, None)
    total[..., 0] = total[..., 0] + c[..., 0]
    assert key.galois_element is not None
    return total.automorphism(key.galois_element)


def rotate_many(c: Poly, keys: Iterable[SwitchKey], *, conversion: Precision = "exact") -> Poly:
    """A ciphertext under the automorphisms X -> X^g of several keys, from digits made once (hoisting).

    For each key the result is, bit for bit, that of rotate().

    Args:
        c: ciphertexts, (*batch, 2).
        keys: of rotation_keys, with the same special primes and digits.
        conversion: as of key_switch.

    Returns:
        A value of c's ring, (len(keys), *batch, 2), in c's domain; of no keys an empty one.

    Raises:
        ParameterError: c is of another batch shape, a key has no galois_element, or keys differ in their
            parameters. All else as key_switch.

    Cost: with d digits, l limbs and p special ones: digits and their transforms once, as in key_switch. For
    each key, which is read once, there are 2p inverse and 2l forward transforms. Turned keys are rotated one
    by one.
    Source: Halevi, Shoup 2018/244, section 4.2.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> keys = pg.lattice.rotation_keys(s, [3, 5], ring=Q, special=P, limbs_per_digit=1)
    >>> message, mask = Q([0, 10**6]), Q.random(seed=2)
    >>> c = pg.stack([message - mask * s.restrict(Q), mask])
    >>> rotated = pg.lattice.rotate_many(c, keys.values())
    >>> phases = rotated[:, 0] + rotated[:, 1] * s.restrict(Q)
    >>> (phases - message.automorphism([3, 5])).norm(float("inf")).max() < 100
    True
    """
    c, all_keys = _checked_rotations(c, keys)
    if not all_keys:
        return c[None][:0]
    first = all_keys[0]
    for i, key in enumerate(all_keys):
        check_one_device(c, key.value)
        for name in ("special", "limbs_per_digit", "turned"):
            if getattr(key, name) != getattr(first, name):
                raise ParameterError(
                    f"keys[{i}]: has another {name} than keys[0]; rotate by it in its own call"
                )
    if first.turned:
        return concatenate([rotate(c, key, conversion=conversion)[None] for key in all_keys])
    elements = [key.galois_element or 0 for key in all_keys]
    groups: dict[Ring, list[int]] = {}
    for i, key in enumerate(all_keys):
        groups.setdefault(key.value.ring, []).append(i)
    if len(groups) > 1:  # keys of several levels: digits are made for each
        parts = [rotate_many(c, [all_keys[i] for i in at], conversion=conversion) for at in groups.values()]
        order = [i for at in groups.values() for i in at]
        return concatenate(parts)[[order.index(i) for i in range(len(order))]]
    return ops.rotate_many(c, elements, [key.value for key in all_keys], first._switch(c.ring, conversion))


def _checked_key(key: object, name: str) -> SwitchKey:
    if not isinstance(key, SwitchKey):
        raise ParameterError(
            f"{name}: {type(key).__name__}, must be a SwitchKey; "
            "SwitchKey(value, ring=Q, special=P, limbs_per_digit=...) makes one of a Poly"
        )
    return key


def _checked_rotations(c: Poly, keys: Iterable[SwitchKey]) -> tuple[Poly, list[SwitchKey]]:
    c = checked_poly(c, "c")
    if not isinstance(keys, Iterable) or isinstance(keys, Mapping):
        raise ParameterError(f"keys: {type(keys).__name__}, must be a sequence; of a dict give keys.values()")
    if c.shape[-1:] != (2,):
        raise ParameterError(
            f"c: batch shape {c.shape}; the last axis must be of length 2, a ciphertext's components"
        )
    found = [_checked_key(key, f"keys[{i}]") for i, key in enumerate(keys)]
    for i, key in enumerate(found):
        if key.galois_element is None:
            raise ParameterError(f"keys[{i}]: galois_element is None; rotation_keys makes keys that rotate")
    return c, found


def _addend(a: Poly, add: object) -> Array:
    """The array of `add`, checked against a: of its ring and domain, with batch shape (*batch, 2)."""
    add = a._operand(checked_poly(add, "add"))
    if add.domain != a.domain:
        raise DomainError(f"add: in {add.domain!r}, a in {a.domain!r}; evaluate one by .ntt()")
    if add.shape != (*a.shape, 2):
        raise ParameterError(f"add: batch shape {add.shape}, must be {(*a.shape, 2)}, as the result")
    return add.data
