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
    """A value with the digits that key switches take of it, made once for all of them; `hoist` makes it.

    `value` is the value, or the ciphertext (*batch, 2). `digits` are the evaluated digits of the value, or of
    the ciphertext's masks c_1, (*batch, digits). `special`, `limbs_per_digit` and `conversion` are those of
    `hoist`.

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
        """Bytes of the value and of its digits."""
        return int(self.value.data.nbytes + self.digits.data.nbytes)

    def __repr__(self) -> str:
        return (
            f"Hoisted(shape={self.value.shape}, n={self.ring.n}, limbs={self.ring.rows}, "
            f"special={self.special.rows}, limbs_per_digit={self.limbs_per_digit}, "
            f"device={self.value.device})"
        )

    def _check_key(self, key: SwitchKey, name: str) -> None:
        """Raise ParameterError unless a key has the special primes and the digits of this."""
        for of, own in (("special", self.special), ("limbs_per_digit", self.limbs_per_digit)):
            if getattr(key, of) != own:
                raise ParameterError(
                    f"{name}: has another {of} than the hoisted value. Hoist it with special={name}.special "
                    f"and limbs_per_digit={name}.limbs_per_digit"
                )


def hoist(x: Poly, *, special: Ring, limbs_per_digit: int, conversion: Precision = "exact") -> Hoisted:
    """Compute the digits of a value once, for many key switches.

    The result takes the place of `x` in `key_switch`; that of a ciphertext (*batch, 2) takes its place in
    `rotate`, `rotate_many` and `transform`, and has the digits of the mask c_1. So a batch of two values
    counts as a ciphertext: hoist `x[..., None]` to switch both.

    Args:
        x: a value, or ciphertexts (*batch, 2), in either domain.
        special: the ring of the special primes of the keys.
        limbs_per_digit: the limbs of a digit of the keys.
        conversion: "exact" or "fast", as in `Poly.convert`, for the digits.

    Returns a Hoisted on x's device.

    Raises:
        NotNTTFriendly: Q.join(special) has no complete transform.
        RingMismatch: `special` is of another degree or kind.
        BadRoot: `special` has another root for a prime of x's ring.
        ParameterError: moduli with a common factor, limbs_per_digit < 1, or another word for conversion.

    Cost: with d digits, l limbs and p special ones: l inverse and d (l + p) - l forward transforms of an
    evaluated value, and the memory of d (l + p) rows.
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
    """Switch keys (hybrid): return (d_0, d_1) under s that hides a s': d_0 + d_1 s is a s' plus noise.

    A ciphertext c_0 + c_1 s + c_2 s^2 is relinearised by key_switch(c_2, key, add=(c_0, c_1)) with a key from
    s' = s^2.

    The result is, bit for bit, that of these steps: a.digits(T, limbs_per_digit=...) with
    T = a.ring.join(key.special); the sum of digit_j key[j] in T; with `add`, P times that is added; mod_down
    to the ring of the result, unless `divide` is False.

    Args:
        a: a value of the key's ring, or of the first of its limbs, of any batch shape; or what `hoist` makes
            of it.
        key: from s' to s, on a's device.
        add: a value in a's domain to add to the result, (*batch, 2), or (*batch) to add to d_0 alone. It
            costs less than a sum afterwards. Its ring is a's, or has more limbs, which are ignored.
        rescale: how many limbs at the end of a's ring are divided away with P. The result, with what is
            added, is rounded once; `.rescale()` afterwards would round a second time and divide once more.
        divide: whether to divide by P. If not, the result is P times as large, in T, and results of several
            key switches can be added up before one division, by `mod_down(ring)`.
        conversion: "exact" or "fast", as in `Poly.convert`, for the digits and for the division by P. The
            digits of a hoisted value are there already.
        out: a Poly of the result's ring with batch shape (*batch, 2) to write into.

    Returns:
        A value of a.ring, or of a.ring[:-rescale], (*batch, 2), in a's domain. Its noise is (sum over j of
        digit_j e_j) / P and a rounding. Without division a value of T, evaluated.

    Raises:
        RingMismatch: a is of another ring, or a limb is missing before its last one.
        BadRoot: another root for a prime that two of the rings have.
        ParameterError: no SwitchKey, a hoisted value with other digits, `add` of another shape, rescale
            outside its range or without a division, or another word for conversion.
        DomainError: `add` in another domain than a.
        DeviceError, OutputError: operands on two devices; `out` cannot take the result.

    Cost: with d digits, l limbs and p special ones: l + 2p inverse and d (l + p) + l forward transforms of an
    evaluated value. The key, 2 d (l + p) rows, is read once.
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
                f"a: the hoisted ciphertext {a.shape} serves rotations. To switch two values, hoist "
                "a[..., None]"
            )
    check_one_device(a, key.value)
    if isinstance(add, Poly):
        check_one_device(a, add)
    switch = key._switch(a.ring, conversion)
    ring = without_last(a.ring, rescale, "rescale", least=0) if divide else a.ring.join(key.special)
    if not divide and rescale != 0:
        raise ParameterError(
            f"rescale: {shown(rescale)}, but divide is False. Divide later, by rescale or mod_down"
        )
    memory, more = (
        memory_of(ring._plan, out),
        None if add is None else checked_addend(a.ring, a.domain, (*a.shape, 2), add),
    )
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
    """Apply the automorphism X -> X^g of a key to ciphertexts.

    With an ordinary key the result is, bit for bit, (c_0(X^g), 0) + key_switch(c_1(X^g), key). With a turned
    one it is (c_0, 0) + key_switch(c_1, key), and then X -> X^g.

    Args:
        c: ciphertexts, (*batch, 2), or what `hoist` makes of them.
        key: of rotation_keys.
        divide: whether to divide by P, as in `key_switch`.
        conversion: as in `key_switch`.

    Returns a value of c's ring, shape and domain. Without division it is one of c.ring.join(key.special),
    evaluated, and P times as large.

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
    return rotate_many(c, [key], divide=divide, conversion=conversion)[0]


def rotate_many(
    c: Poly | Hoisted, keys: Iterable[SwitchKey], *, divide: bool = True, conversion: Precision = "exact"
) -> Poly:
    """Apply the automorphisms X -> X^g of several keys to ciphertexts, with digits made once (hoisting).

    For each key the result is, bit for bit, that of rotate().

    Args:
        c: ciphertexts, (*batch, 2), or what `hoist` makes of them.
        keys: of rotation_keys, with the same special primes and digits, and all turned or none. Their rings
            may differ.
        divide: whether to divide by P, as in `key_switch`.
        conversion: as in `key_switch`.

    Returns:
        A value of c's ring, (len(keys), *batch, 2), in c's domain; of no keys an empty one. Without division
        it is one of c.ring.join(special), evaluated, and P times as large.

    Raises:
        ParameterError: c is of another batch shape, a key has no galois_element, keys differ in their
            parameters, or `keys` is empty and `divide` is False. For all else, see key_switch.

    Cost: with d digits, l limbs and p special ones: digits and their transforms once, as in key_switch. Each
    key is read once, and takes 2p inverse and 2l forward transforms for the division.
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
        raise ParameterError(f"keys: {type(keys).__name__}, must be a sequence; of a dict give keys.values()")
    c, digits, found = checked_rotations(c, dict(enumerate(keys)))
    all_keys = list(found.values())
    if not all_keys:
        if not divide:
            raise ParameterError("keys: none, so that the ring of the result is not known. Give a key")
        return c[None][:0]
    first = all_keys[0]
    for i, key in enumerate(all_keys):
        if key.turned != first.turned:
            raise ParameterError(f"keys[{i}]: has another turned than keys[0]; rotate by it in its own call")
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
    """Return the key; raise ParameterError unless it is a SwitchKey."""
    if not isinstance(key, SwitchKey):
        raise ParameterError(
            f"{name}: {type(key).__name__}, must be a SwitchKey; "
            "SwitchKey(value, ring=Q, special=P, limbs_per_digit=...) makes one of a Poly"
        )
    return key


def checked_ciphertext(c: object) -> Poly:
    """Return ciphertexts; raise ParameterError unless they have two components."""
    x = checked_poly(c, "c")
    if x.shape[-1:] != (2,):
        raise ParameterError(
            f"c: batch shape {x.shape}; the last axis must be of length 2, a ciphertext's components"
        )
    return x


def checked_rotations(
    c: Poly | Hoisted, keys: Mapping[Any, SwitchKey], advice: str = "rotate by it in its own call"
) -> tuple[Poly, Poly | None, dict[Any, SwitchKey]]:
    """Return a ciphertext, the digits of its mask if it is hoisted, and the checked keys.

    Keys are rotation keys on the ciphertext's device, with the same special primes and digits. advice: what
    to do with a key of others.
    """
    hoisted = c if isinstance(c, Hoisted) else None
    c = checked_ciphertext(c if hoisted is None else hoisted.value)
    found = {i: checked_key(key, f"keys[{i}]") for i, key in keys.items()}
    for i, key in found.items():
        if key.galois_element is None:
            raise ParameterError(f"keys[{i}]: galois_element is None; rotation_keys makes keys that rotate")
        check_one_device(c, key.value)
        if hoisted is not None:
            hoisted._check_key(key, f"keys[{i}]")
        first, one = next(iter(found.items()))
        for name in ("special", "limbs_per_digit"):
            if getattr(key, name) != getattr(one, name):
                raise ParameterError(f"keys[{i}]: has another {name} than keys[{first}]; {advice}")
    return c, None if hoisted is None else hoisted.digits, found


def checked_addend(ring: Ring, domain: str, shape: tuple[int, ...], add: object) -> Poly:
    """Return `add` as a value of a ring, after checks of its domain and batch shape (*batch, 2).

    Of the shape (*batch) it is what is added to component 0.
    """
    add = checked_poly(add, "add")
    if add.domain != domain:
        raise DomainError(f"add: in {add.domain!r}, the result in {domain!r}; evaluate one by .ntt()")
    if add.ring != ring:
        missing = [q for q in ring.moduli if q not in add.ring.moduli]
        if missing or add.ring.n != ring.n or add.ring.kind != ring.kind:
            raise RingMismatch(
                f"add: of {add.ring!r}, the operands of {ring!r}. Its ring must have all limbs of theirs. "
                "x.restrict(ring) drops limbs"
            )
        add = add.restrict(ring)
    if add.shape == shape[:-1]:
        both = empty(backend_of(add._data), (*shape, ring.rows, ring.n), ring.dtype, zero=True)
        pair = add._with(both)
        pair[..., 0] = add
        return pair
    if add.shape != shape:
        raise ParameterError(
            f"add: batch shape {add.shape}, must be {shape}, as the result, or {shape[:-1]}, which is added "
            "to component 0"
        )
    return add
