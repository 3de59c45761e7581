"""Key switching, and rotations of ciphertexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._backends import backend_of
from .._core.checks import shown
from .._ops import switch as ops
from .._ops.arrays import empty
from .._ops.rns import Precision
from ..errors import DomainError, ParameterError, RingMismatch
from ..poly import Poly, as_poly, check_one_device, checked_poly, memory_of, plan_of, without_last
from ..ring import Ring
from .keys import SwitchKey


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Hoisted:
    """A value together with its digits, for several key switches. Made by `hoist`.

    `value` is a value, or ciphertexts of batch shape (*batch, 2). `digits` are the digits of the value, or of
    the masks c_1 of the ciphertexts. `digits` is evaluated, of batch shape (*batch, number of digits).
    `special`, `limbs_per_digit` and `conversion` are the arguments of `hoist`.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> pg.lattice.hoist(T[:2].random(seed=1), special=T[2:], limbs_per_digit=1)
    Hoisted(shape=(), n=8, limbs=2, special=1, limbs_per_digit=1, device=cpu)
    """

    value: Poly
    digits: Poly
    special: Ring
    limbs_per_digit: int
    conversion: Precision

    @property
    def ring(self) -> Ring:
        """The ring of the value."""
        return self.value.ring

    @property
    def nbytes(self) -> int:
        """Number of bytes of the value and of its digits."""
        return int(self.value.data.nbytes + self.digits.data.nbytes)

    def __repr__(self) -> str:
        return (
            f"Hoisted(shape={self.value.shape}, n={self.ring.n}, limbs={self.ring.rows}, "
            f"special={self.special.rows}, limbs_per_digit={self.limbs_per_digit}, "
            f"device={self.value.device})"
        )

    def _check_key(self, key: SwitchKey, name: str) -> None:
        """Raise ParameterError unless `key` has the special primes and limbs_per_digit of this Hoisted."""
        for of, own in (("special", self.special), ("limbs_per_digit", self.limbs_per_digit)):
            if getattr(key, of) != own:
                raise ParameterError(
                    f"{name}.{of} differs from that of the hoisted value. Hoist the value with "
                    f"special={name}.special and limbs_per_digit={name}.limbs_per_digit."
                )


def hoist(x: Poly, *, special: Ring, limbs_per_digit: int, conversion: Precision = "exact") -> Hoisted:
    """Compute the digits of a value once, for many key switches.

    If the last batch axis of x has length 2, x is taken as ciphertexts: their masks c_1 are decomposed, and
    `rotate`, `rotate_many` and `transform` accept the result in place of x. Otherwise x itself is decomposed,
    and `key_switch` accepts the result in place of x. If x is a batch of two values and not a ciphertext,
    hoist `x[..., None]`, whose last batch axis has length 1.

    Args:
        x: a value, or ciphertexts of batch shape (*batch, 2), in either domain.
        special: the ring of the special primes of the keys.
        limbs_per_digit: how many limbs form a digit, the same as for the keys.
        conversion: "exact" or "fast", as in `Poly.convert`, for the digits.

    Returns a Hoisted on x's device.

    Raises:
        NotNTTFriendly: x.ring.join(special) has no complete transform.
        RingMismatch: `special` differs from x's ring in degree or kind.
        BadRoot: `special` and x's ring have different roots for the same prime.
        ParameterError: a modulus of `special` and one of x's ring have a common factor, limbs_per_digit < 1,
            or conversion is neither "exact" nor "fast".

    Cost: with d digits, l limbs of x and p special primes, an evaluated value takes l inverse and
    d * (l + p) - l forward transforms. The digits take the memory of d * (l + p) limbs.
    Source: Halevi, Shoup 2018/244, section 4.2.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> key = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)
    >>> a = Q.random(seed=2)
    >>> h = pg.lattice.hoist(a, special=P, limbs_per_digit=1)
    >>> pg.lattice.key_switch(h, key) == pg.lattice.key_switch(a, key), h.nbytes
    (True, 256)
    """
    x = checked_poly(x, "x")
    plan = plan_of(special, "special")
    T = x.ring.join(special)
    switch = ops.key_switch_plan(x._plan, plan, T._plan, limbs_per_digit, conversion)
    is_ciphertext = x.shape[-1:] == (2,)
    made = ops.mask_digits(x, switch) if is_ciphertext else ops.value_digits(x, switch)
    return Hoisted(x, as_poly(T, made, None), special, switch.size, conversion)


def key_switch(
    a: Poly | Hoisted,
    key: SwitchKey,
    *,
    add: Poly | None = None,
    rescale: int = 0,
    divide: bool = True,
    conversion: Precision = "exact",
    out: Poly | None = None,
) -> Poly:
    """Switch a value to another secret (hybrid key switching).

    For a key that switches from s' to s, the result is a ciphertext (d_0, d_1) under s that hides a * s':
    d_0 + d_1 * s is a * s' plus noise.

    To relinearise ciphertexts c of batch shape (*batch, 3), whose phase is c_0 + c_1 * s + c_2 * s^2, call
    key_switch(c[..., 2], key, add=c[..., :2]) with a key that switches from s' = s^2 to s.

    The result is, bit for bit, that of four steps in the ring T = a.ring.join(key.special). First,
    a.digits(T, limbs_per_digit=...) makes the digits. Second, the products digit_j * key.value[j] are summed
    over j. Third, if `add` is given, P * add is added, where P is the product of the special primes. Fourth,
    unless `divide` is False, mod_down divides by P.

    Args:
        a: a value of any batch shape, whose ring has the first limbs of the key's Q (see SwitchKey) or all of
            them; or the result of `hoist` for such a value.
        key: a key that switches from s' to s, on a's device.
        add: a value in a's domain that is added to the result. Its batch shape is (*batch, 2), or (*batch) if
            it is added to d_0 only. `add` costs less than a separate sum after the call. The ring of
            `add` may have more limbs than a's; the extra ones are ignored.
        rescale: how many of a's last limbs the result drops. The sum, `add` included, is divided only once,
            by P times the moduli of these limbs, and then rounded. Calling `.rescale()` on the result instead
            takes one more division and rounds twice.
        divide: whether to divide by P. If False, the result is in T and P times as large. Then the results of
            several key switches can be added and divided together, by `mod_down(ring)`.
        conversion: "exact" or "fast", as in `Poly.convert`, for the digits and for the division by P. If
            `a` was hoisted, its digits are already made, and `conversion` affects only the division.
        out: a Poly of the result's ring with batch shape (*batch, 2) to write into.

    Returns:
        A value of batch shape (*batch, 2) in a's domain, of a.ring or, with `rescale`, of a.ring[:-rescale].
        Its noise is the sum over j of digit_j * e_j, divided by P, plus a rounding error, where e_j is the
        noise of entry j of the key. If `divide` is False, the result is an evaluated value of T.

    Raises:
        RingMismatch: a's ring does not have the first limbs of the key's Q, or `add` lacks a limb of `a`.
        BadRoot: two of the rings have different roots for the same prime.
        ParameterError: `key` is not a SwitchKey; `a` was hoisted as ciphertexts, or with other special primes
            or limbs_per_digit than the key's; the batch shape of `add` is neither (*batch, 2) nor (*batch);
            rescale is outside its range, or is not 0 although `divide` is False; or conversion is neither
            "exact" nor "fast".
        DomainError: `add` is not in a's domain.
        DeviceError: the operands are on two devices. OutputError: `out` cannot hold the result.

    Cost: with d digits, l limbs of `a` and p special primes, an evaluated value takes l + 2p inverse and
    d * (l + p) + l forward transforms. The key is read once; it has 2 * d * (l + p) limbs.
    Source: Han, Ki 2019/688, section 3; docs/math.md, "Noise of key switches".

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P = T[:2], T[2:]
    >>> s, t = T.ternary(seed=1), T.ternary(seed=2)
    >>> key = pg.lattice.switch_key(s, t, ring=Q, special=P, limbs_per_digit=1)
    >>> a = Q.random(seed=5)
    >>> d = pg.lattice.key_switch(a, key)
    >>> (d[0] + d[1] * s.restrict(Q) - a * t.restrict(Q)).norm(float("inf")) < 100
    True
    >>> pg.lattice.key_switch(a, key, divide=False).mod_down(Q) == d
    True
    """
    hoisted = a if isinstance(a, Hoisted) else None
    a, key = checked_poly(a if hoisted is None else hoisted.value, "a"), checked_key(key, "key")
    if hoisted is not None:
        hoisted._check_key(key, "key")
        if a.shape != hoisted.digits.shape[:-1]:
            raise ParameterError(
                f"a has batch shape {a.shape} and was hoisted as a ciphertext, whose parts lie along the "
                "last axis. A hoisted ciphertext can only be rotated. If the last axis holds two values to "
                "switch, hoist x[..., None] instead, where x is the Poly from which a was made."
            )
    check_one_device(a, key.value)
    if isinstance(add, Poly):
        check_one_device(a, add)
    switch = key._switch(a.ring, conversion)
    ring = without_last(a.ring, rescale, "rescale", least=0) if divide else a.ring.join(key.special)
    if not divide and rescale != 0:
        raise ParameterError(
            f"rescale={shown(rescale)} must be 0 if divide=False. Use the method rescale or mod_down of "
            "the result instead."
        )
    memory, more = (
        memory_of(ring._plan, out),
        None if add is None else checked_addend(a.ring, a.domain, (*a.shape, 2), add),
    )
    # One operation for each case: `a` is hoisted or not, and the result is divided or not.
    if hoisted is None and divide:
        value = ops.key_switch(
            a, key.value, switch, None if more is None else more._data, ring._plan, out=memory
        )
    elif hoisted is None:
        value = ops.key_switch_sums(a, key.value, switch, more, out=memory)
    elif divide:
        value = ops.key_switch_hoisted(a, hoisted.digits, key.value, switch, more, ring._plan, out=memory)
    else:
        value = ops.key_switch_digits(hoisted.digits, key.value, switch, more, out=memory)
    return as_poly(ring, value, out)


def rotate(
    c: Poly | Hoisted, key: SwitchKey, *, divide: bool = True, conversion: Precision = "exact"
) -> Poly:
    """Apply to ciphertexts the automorphism X -> X^g for which a key was made.

    If key.turned is False, the result is, bit for bit, (c_0(X^g), 0) + key_switch(c_1(X^g), key). If
    key.turned is True, the automorphism is applied to (c_0, 0) + key_switch(c_1, key).

    Args:
        c: ciphertexts of batch shape (*batch, 2), or the result of `hoist` for them.
        key: a key made by rotation_keys.
        divide: whether to divide by P, the product of the special primes; see `key_switch`.
        conversion: see `key_switch`.

    Returns a value of c's ring, batch shape and domain. If `divide` is False, the result is a value of
    c.ring.join(key.special), evaluated, and P times as large.

    Raises:
        ParameterError: the last batch axis of c does not have length 2, or the key has no galois_element. For
            other errors, see key_switch.

    Cost: one key_switch, two permutations and a sum.
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
    return rotate_many(c, [key], divide=divide, conversion=conversion)[0]


def rotate_many(
    c: Poly | Hoisted, keys: Iterable[SwitchKey], *, divide: bool = True, conversion: Precision = "exact"
) -> Poly:
    """Apply the automorphisms of several keys to ciphertexts. The digits are made only once (hoisting).

    Result i is, bit for bit, that of rotate() with key i.

    Args:
        c: ciphertexts of batch shape (*batch, 2), or the result of `hoist` for them.
        keys: keys made by rotation_keys. All have the same special primes, limbs_per_digit and `turned`.
            Their rings may differ.
        divide: whether to divide by P, the product of the special primes; see `key_switch`.
        conversion: see `key_switch`.

    Returns:
        A value of batch shape (len(keys), *batch, 2), in c's ring and domain. It is empty if `keys` is empty.
        If `divide` is False, the result is a value of c.ring.join(special), where `special` is the ring of
        the keys' special primes. It is evaluated, and P times as large.

    Raises:
        ParameterError: the last batch axis of c does not have length 2, a key has no galois_element, keys
            differ in special primes, limbs_per_digit or `turned`, or `keys` is empty and `divide` is False.
            For other errors, see key_switch.

    Cost: with l limbs of c and p special primes, the digits are made and transformed once, as in key_switch.
    For each key, the key is read once, and the division takes 2p inverse and 2l forward transforms.
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
    if not isinstance(keys, Iterable) or isinstance(keys, Mapping):
        raise ParameterError(
            f"keys must be a sequence of keys, not {type(keys).__name__}. If it is a dict, give "
            "keys.values()."
        )
    c, digits, found = checked_rotations(c, dict(enumerate(keys)))
    all_keys = list(found.values())
    if not all_keys:
        if not divide:
            raise ParameterError(
                "keys is empty, so the ring of the result is not known. Give at least one key, or use "
                "divide=True."
            )
        return c[None][:0]
    first = all_keys[0]
    for i, key in enumerate(all_keys):
        if key.turned != first.turned:
            raise ParameterError(
                f"keys[{i}].turned differs from keys[0].turned. Rotate by keys[{i}] in a separate call."
            )
    switches = [key._switch(c.ring, conversion) for key in all_keys]
    elements = [key.galois_element or 0 for key in all_keys]
    values = [key.value for key in all_keys]
    if divide:
        return ops.rotate_many(c, elements, values, switches, first.turned, digits)
    made = ops.mask_digits(c, switches[0]) if digits is None else digits
    plan = ops.rotations(tuple(switches), first.turned)
    value = ops.rotated_sums(c, made, plan, ops.moves_of(c, elements), tuple(values))
    return as_poly(c.ring.join(first.special), value, None)


def checked_key(key: object, name: str) -> SwitchKey:
    """Return `key`. Raise ParameterError unless `key` is a SwitchKey."""
    if not isinstance(key, SwitchKey):
        raise ParameterError(
            f"{name} must be a SwitchKey, not {type(key).__name__}. Use SwitchKey(value, ring=Q, special=P, "
            "limbs_per_digit=...) to make one from a Poly."
        )
    return key


def checked_ciphertext(c: object) -> Poly:
    """Return c. Raise ParameterError unless c is a Poly of batch shape (*batch, 2)."""
    x = checked_poly(c, "c")
    if x.shape[-1:] != (2,):
        raise ParameterError(
            f"The batch shape of c is {x.shape}. Its last axis must have length 2, for the two "
            "components of a ciphertext."
        )
    return x


def checked_rotations(
    c: Poly | Hoisted,
    keys: Mapping[Any, SwitchKey],
    advice: str = "Give only keys with equal special and limbs_per_digit in one call.",
) -> tuple[Poly, Poly | None, dict[Any, SwitchKey]]:
    """Return (ciphertexts, digits of their masks, keys). The digits are None if c is not a Hoisted.

    Raise an error unless all keys are rotation keys on c's device, with equal special primes and equal
    limbs_per_digit. advice: the last sentence of the error message about unequal keys.
    """
    hoisted = c if isinstance(c, Hoisted) else None
    c = checked_ciphertext(c if hoisted is None else hoisted.value)
    found = {i: checked_key(key, f"keys[{i}]") for i, key in keys.items()}
    for i, key in found.items():
        if key.galois_element is None:
            raise ParameterError(
                f"keys[{i}].galois_element is None. Use rotation_keys to make keys that rotate."
            )
        check_one_device(c, key.value)
        if hoisted is not None:
            hoisted._check_key(key, f"keys[{i}]")
        first, one = next(iter(found.items()))
        for name in ("special", "limbs_per_digit"):
            if getattr(key, name) != getattr(one, name):
                raise ParameterError(f"keys[{i}].{name} differs from keys[{first}].{name}. {advice}")
    return c, None if hoisted is None else hoisted.digits, found


def checked_addend(ring: Ring, domain: str, shape: tuple[int, ...], add: object) -> Poly:
    """Return `add` restricted to `ring`, with the batch shape `shape`.

    The batch shape of `add` is `shape` or shape[:-1]. For shape[:-1], component 0 of the result is `add`, and
    component 1 is 0. Raise an error if `add` has another shape or is not in `domain`.
    """
    add = checked_poly(add, "add")
    if add.domain != domain:
        raise DomainError(
            f"add is in the domain {add.domain!r}, and the result is in {domain!r}. Use add.ntt() or "
            "add.intt() to change it."
        )
    if add.ring != ring:
        missing = [q for q in ring.moduli if q not in add.ring.moduli]
        if missing or add.ring.n != ring.n or add.ring.kind != ring.kind:
            raise RingMismatch(
                f"add is of {add.ring!r}, and the operands are of {ring!r}. The ring of add must have all "
                "limbs of the operands. Use x.restrict(ring) to drop limbs of an operand x."
            )
        add = add.restrict(ring)
    if add.shape == shape[:-1]:
        both = empty(backend_of(add._data), (*shape, ring.rows, ring.n), ring.dtype, zero=True)
        pair = add._with(both)
        pair[..., 0] = add
        return pair
    if add.shape != shape:
        raise ParameterError(
            f"The batch shape of add is {add.shape}. It must be {shape}, that of the result, or {shape[:-1]} "
            "to add to component 0 only."
        )
    return add
