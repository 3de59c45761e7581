"""Keys for key switching, each stored with the rings and limbs_per_digit that it was made for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .._backends import Array, backend, backend_of
from .._core.checks import integer, shown
from .._ops import switch as ops
from .._ops.arrays import empty
from .._ops.permutation import multipliers
from .._ops.sampling import Seed, key_of
from ..errors import DomainError, ParameterError
from ..functions import fma
from ..poly import Poly, checked_poly, plan_of
from ..ring import Ring


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class SwitchKey:
    """A key that switches from a secret s' to a secret s, with the parameters that it was made for.

    Entry j of `value` is a pair (b_j, a_j) with b_j + a_j * s = P * w_j * s' + e_j. P is the product of the
    special primes, w_j is entry j of polygpu.rns.gadget(Q, limbs_per_digit=...), and e_j is a small noise.
    Make such keys with switch_key and rotation_keys. The constructor is for keys that other libraries made.

    Args:
        value: the whole key, of batch shape (digits, 2), evaluated. Q is the largest ring whose values the
            key can switch. The ring of `value` has the moduli of Q, in the order of Q, and the special
            primes, at any positions among them.
        ring: the ring of the values to switch. It has the first limbs of Q, or all of them.
        special: the ring of the special primes.
        limbs_per_digit: how many neighbouring limbs of Q form a digit; the last digit may have fewer.
        galois_element: g, if the key is for the automorphism X -> X^g, so that s' = s(X^g).
        turned: whether the automorphism is applied after the switch. If False, it is applied before the
            switch, and the ciphertexts are encrypted under s. If True, they are encrypted under s'.

    Raises:
        RingMismatch: `value` lacks a limb of `ring` or `special`, or `ring` does not have the first limbs of
            Q; or the rings differ in degree or kind.
        ParameterError: the batch shape of `value` is not (digits, 2); `ring` and `special` have moduli with a
            common factor; limbs_per_digit < 1; galois_element is not coprime to the order of X (2n, or n in
            cyclic rings); or `turned` is True without a galois_element.
        NotNTTFriendly: ring.join(special) has no complete transform.
        BadRoot: two of the rings have different roots for the same prime.
        DomainError: `value` is in coefficients.

    Cost: some checks; the value is not copied.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> key = pg.lattice.switch_key(
    ...     T.ternary(seed=1), T.ternary(seed=2), ring=T[:2], special=T[2:], limbs_per_digit=1
    ... )
    >>> key
    SwitchKey(n=8, limbs=2, special=1, limbs_per_digit=1, galois_element=None, device=cpu)
    >>> key.at(T[:1]).ring == T[:1], key.at(T[:1]).value is key.value
    (True, True)
    """

    value: Poly
    ring: Ring = field(kw_only=True)
    special: Ring = field(kw_only=True)
    limbs_per_digit: int = field(kw_only=True)
    galois_element: int | None = field(default=None, kw_only=True)
    turned: bool = field(default=False, kw_only=True)
    _masks: tuple[bytes, ...] | None = field(default=None, init=False)  # the public seed of each mask a_j

    def __post_init__(self) -> None:
        value = checked_poly(self.value, "value")
        switch = self._switch(self.ring)
        if value.domain != "eval":
            raise DomainError("value is in coefficients and must be evaluated. Use value.ntt().")
        switch.checked_key(value, "value")
        _set(self, "limbs_per_digit", switch.size)
        if not isinstance(self.turned, bool):
            raise ParameterError(f"turned={shown(self.turned)} must be True or False.")
        if self.galois_element is not None:
            _set(self, "galois_element", _checked_element(self.ring, self.galois_element))
        elif self.turned:
            raise ParameterError(
                "turned=True needs a galois_element, but galois_element is None. Give the g of the "
                "automorphism X -> X^g as galois_element."
            )

    def _switch(self, ring: Ring, conversion: Any = "exact") -> ops.KeySwitch:
        """Return the plan of key switches of values in `ring`."""
        special, whole = plan_of(self.special, "special"), self.value._plan
        return ops.key_switch_plan(plan_of(ring, "ring"), special, whole, self.limbs_per_digit, conversion)

    @property
    def device(self) -> str:
        """The device that holds the key, see `Poly.device`."""
        return self.value.device

    @property
    def nbytes(self) -> int:
        """Number of bytes of `value`. Keys that at() returns share this memory."""
        return int(self.value.data.nbytes)

    def at(self, ring: Ring) -> SwitchKey:
        """Return a key for values of another ring, usually with fewer limbs. It shares `value` with this key.

        Args:
            ring: the ring of these values. Its limbs are the first limbs of Q, the largest ring that the key
                can switch. Their number need not be a multiple of limbs_per_digit.

        Raises:
            RingMismatch: `ring` does not have the first limbs of Q.

        Cost: a few microseconds; nothing is copied.

        >>> import polygpu as pg
        >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=4))
        >>> s, t = T.ternary(seed=1), T.ternary(seed=2)
        >>> key = pg.lattice.switch_key(s, t, ring=T[:3], special=T[3:], limbs_per_digit=2)
        >>> a = T[:2].random(seed=3)
        >>> pg.lattice.key_switch(a, key.at(T[:2])).ring == T[:2]
        True
        """
        self._switch(ring)
        return self._with(ring=ring)

    def to(self, device: str | None = None) -> SwitchKey:
        """Return the key on a device, by default the current one. If it is there already, return self.

        Args:
            device: see `Poly.to`.

        Raises:
            BackendUnavailable, OutOfHostMemory, OutOfDeviceMemory: see `Poly.to`.

        Cost: a copy of the value. If two keys share a value (see `at`), each of them gets its own copy.

        >>> import polygpu as pg
        >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=2))
        >>> of = {"ring": T[:1], "special": T[1:], "limbs_per_digit": 1}
        >>> pg.lattice.rotation_keys(T.ternary(), [5], **of)[5].to("cpu").device
        'cpu'
        """
        value = self.value.to(device)
        return self if value is self.value else self._with(value=value)

    def cpu(self) -> SwitchKey:
        """Return the key in host memory. If it is there already, return self.

        Cost: a copy of the key, unless it is in host memory already.

        >>> import polygpu as pg
        >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=2))
        >>> of = {"ring": T[:1], "special": T[1:], "limbs_per_digit": 1}
        >>> pg.lattice.rotation_keys(T.ternary(), [5], **of)[5].cpu().device
        'cpu'
        """
        return self.to("cpu")

    def _stored(self) -> Poly:
        """Return what a file stores: the bodies b_j if the seeds of the masks a_j are known, else `value`."""
        return self.value if self._masks is None else self.value[:, 0]

    def _with(self, **changes: Any) -> SwitchKey:
        """Return a copy of the key with the new values in `changes`, which are not checked."""
        new = object.__new__(SwitchKey)
        for name in _FIELDS:
            _set(new, name, changes[name] if name in changes else getattr(self, name))
        return new

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SwitchKey):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS if name != "_masks")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        turned = ", turned=True" if self.turned else ""
        return (
            f"SwitchKey(n={self.ring.n}, limbs={self.ring.rows}, special={self.special.rows}, "
            f"limbs_per_digit={self.limbs_per_digit}, galois_element={self.galois_element}{turned}, "
            f"device={self.device})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, tuple(getattr(self, name) for name in _FIELDS)


_FIELDS = tuple(x.name for x in fields(SwitchKey))
_set = object.__setattr__


def _restored(*values: Any) -> SwitchKey:
    """Return the SwitchKey of a pickle. A pickle may come from anywhere, so the fields are checked."""
    given = dict(zip(_FIELDS, values, strict=True))
    masks = given.pop("_masks")
    key = SwitchKey(given.pop("value"), **given)
    return key if masks is None else key._with(_masks=masks)


def expanded(bodies: Poly, masks: tuple[bytes, ...], **options: Any) -> SwitchKey:
    """Return the SwitchKey with the given bodies b_j and with masks a_j drawn from public seeds.

    bodies: batch shape (digits,), evaluated. masks: the seed of each a_j. options: other arguments of
    SwitchKey.
    """
    T = bodies.ring
    data = empty(backend(), (len(masks), 2, T.rows, T.n), T.dtype)
    data[:, 0] = bodies.data
    for place, seed in zip(data[:, 1], masks, strict=True):
        place[:] = T.random(domain="eval", seed=seed).data
    return SwitchKey(_evaluated(T, data), **options)._with(_masks=masks)


# ---- making keys ----


def switch_key(
    to: Poly,
    other: Poly,
    *,
    ring: Ring,
    special: Ring,
    limbs_per_digit: int,
    sigma: float = 3.2,
    seed: Seed = None,
) -> SwitchKey:
    """Make a key that switches from the secret `other` to the secret `to`.

    Entry j of the key is a pair (b_j, a_j) with b_j + a_j * to = P * w_j * other + e_j. Here e_j is noise,
    and w_j is entry j of rns.gadget(Q, limbs_per_digit=...). A key with other = to * to relinearises products
    of ciphertexts.

    Args:
        to: the secret of the results, in either domain. If its ring is not Q.join(special), its centred
            value is converted to that ring.
        other: the secret of the values that are switched. It may have either domain and another ring, as
            `to` may.
        ring: the ring Q of the values that are switched.
        special: the ring of the special primes. They are coprime to Q, and their product is P. The noise
            stays small if P is about as large as a digit.
        limbs_per_digit: how many neighbouring limbs of Q form a digit; the last digit may have fewer.
        sigma: standard deviation of the noise, see Ring.gaussian.
        seed: a secret int, bytes or str; by default 32 bytes from the operating system. It is not stored. For
            each digit j it is hashed with the secrets and j by SHA-256 into two seeds: a public seed for
            the mask a_j and a secret seed for the noise e_j. The key stores the public seeds.

    Returns:
        A SwitchKey on the current device.

    Raises:
        NotNTTFriendly: Q.join(special) has no complete transform.
        RingMismatch: `special` or the ring of a secret differs from `ring` in degree or kind.
        BadRoot: two of the rings have different roots for the same prime.
        ParameterError: a modulus of `ring` and one of `special` have a common factor, limbs_per_digit < 1, or
            Ring.gaussian does not accept sigma or seed.

    Cost: with d digits and k limbs of Q.join(special): d * k limbs of uniform residues, and d * k forward
    transforms.
    Source: Han, Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> relin = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)
    >>> a, d = Q.random(seed=2), pg.lattice.key_switch(Q.random(seed=2), relin)
    >>> (d[0] + d[1] * s.restrict(Q) - a * (s * s).restrict(Q)).norm(float("inf")) < 100
    True
    """
    maker = _Maker(to, ring, special, limbs_per_digit, sigma, seed)
    return maker.key(maker.to, maker.secret(other, "other"), "switch")


# Eight parameters are needed: the six of switch_key (without `other`), galois_elements and turned.
def rotation_keys(
    secret: Poly,
    galois_elements: Iterable[int],
    *,
    ring: Ring | Mapping[int, Ring],
    special: Ring,
    limbs_per_digit: int,
    turned: bool = False,
    sigma: float = 3.2,
    seed: Seed = None,
) -> dict[int, SwitchKey]:
    """Make keys that rotate ciphertexts: for each g, a key that switches from s(X^g) to s.

    Args:
        secret: the secret s. Its domain and ring are as for `to` in switch_key.
        galois_elements: the exponents g of the automorphisms X -> X^g, taken modulo the order of X (2n, or n
            in cyclic rings), so that -1 stands for 2n - 1. g = 5^k rotates the slots of CKKS and BFV to the
            left by k places.
        ring: see switch_key; or a dict from each g to the largest ring in which the key of g is needed.
        special: see switch_key.
        limbs_per_digit: see switch_key.
        turned: if True, each key switches from s to s(X^(1/g)), and the automorphism is applied after the
            switch. 1/g is the inverse of g modulo the order of X.
        sigma: see switch_key.
        seed: see switch_key. Keys of different g have different masks and noise.

    Returns:
        A dict from each Galois element to its SwitchKey, which is on the current device. In the dict the
        Galois elements are reduced to [0, 2n), or to [0, n) in cyclic rings.

    Raises:
        ParameterError: a Galois element is not coprime to the order of X, or `ring` is a dict that lacks one.
            For other errors, see switch_key.

    Cost: for each Galois element, one switch_key and a permutation.
    Source: Halevi, Shoup 2018/244, section 4.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> keys = pg.lattice.rotation_keys(s, [5, -1], ring=Q, special=P, limbs_per_digit=1)
    >>> sorted(keys)
    [5, 15]
    >>> message, mask = Q([0, 10**6]), Q.random(seed=2)
    >>> c = pg.stack([message - mask * s.restrict(Q), mask])
    >>> d = pg.lattice.rotate(c, keys[5])
    >>> (d[0] + d[1] * s.restrict(Q) - message.automorphism(5)).norm(float("inf")) < 100
    True
    """
    elements = [integer(g, "galois_elements") for g in galois_elements]
    makers: dict[Ring, _Maker] = {}
    keys: dict[int, SwitchKey] = {}
    base = key_of(seed)
    for given in elements:
        of = ring.get(given) if isinstance(ring, Mapping) else ring
        if of is None:
            raise ParameterError(
                f"The dict given as ring has no entry for the Galois element {shown(given)}. Add an entry "
                "that gives the ring of the key for this element."
            )
        plan_of(of, "ring")
        g = _checked_element(of, given)
        if g in keys:
            continue
        if of not in makers:
            makers[of] = _Maker(secret, of, special, limbs_per_digit, sigma, base)
        maker = makers[of]
        order = of._plan.quotient.order
        if turned:
            to, other = maker.to.automorphism(pow(g, -1, order)), maker.to
        else:
            to, other = maker.to, maker.to.automorphism(g)
        keys[g] = maker.key(to, other, "turned" if turned else "rotation", galois_element=g, turned=turned)
    return keys


class _Maker:
    """A maker of keys for one ring. Each key has its own masks and noise."""

    def __init__(
        self, to: Poly, ring: Ring, special: Ring, limbs_per_digit: int, sigma: float, seed: Seed
    ) -> None:
        import hashlib  # here, so that importing polygpu stays fast

        plan_of(ring, "ring")
        plan_of(special, "special")
        self.ring, self.special, self.sigma = ring, special, sigma
        self.T = ring.join(special)
        self.switch = ops.key_switch_plan(ring._plan, special._plan, self.T._plan, limbs_per_digit)
        self.to = self.secret(to, "to")
        self.state = hashlib.sha256(key_of(seed, "polygpu switch key 2"))
        parameters = self.T.__reduce__()[1], ring.rows, self.switch.size, str(sigma)
        self.state.update(repr(parameters).encode())
        self.state.update(_limb(self.to))

    def secret(self, x: Poly, name: str) -> Poly:
        """Return the secret x as an evaluated value of the ring `self.T`, on the current device."""
        x = checked_poly(x, name).to()
        return (x if x.ring == self.T else x.convert(self.T)).ntt()

    def seeds(self, label: str, g: int | None, other: Poly) -> list[tuple[bytes, bytes]]:
        """Return, for each digit, the public seed of its mask and the secret seed of its noise.

        Each seed is a hash of the user's seed, the parameters, `label`, g, the digit, and one limb of each
        secret. So keys for different secrets have different masks even if the user gives the same seed. If g
        is given, `other` is not hashed, because g determines `other`.
        """
        state = self.state.copy()
        state.update(repr((label, g)).encode())
        if g is None:
            state.update(_limb(other))
        made = []
        for j in range(self.switch.key_digits):
            digests = []
            for part in (b"mask", b"noise"):
                digit = state.copy()
                digit.update(part + j.to_bytes(4, "little"))
                digests.append(digit.digest())
            made.append((digests[0], digests[1]))
        return made

    def key(self, to: Poly, other: Poly, label: str, **options: Any) -> SwitchKey:
        """Make the key that switches from `other` to `to`. Both secrets are evaluated, in the ring T.

        label: see `seeds`. options: for a rotation, galois_element and `turned`.
        """
        seeds = self.seeds(label, options.get("galois_element"), other)
        P, own = self.special.modulus, self.ring.rows
        # Entry j of the key hides P * w_j * other. The integer P * w_j is P modulo the limbs of digit j, and
        # 0 modulo all other moduli. So the loop adds to body j only the rows of `scaled` that belong to the
        # limbs of digit j.
        scaled = other.scale_by(limbs=[P % q if i < own else 0 for i, q in enumerate(self.T.moduli)])
        minus = -to
        data = empty(backend(), (len(seeds), 2, self.T.rows, self.T.n), self.T.dtype)
        for j, (part, (public, hidden)) in enumerate(zip(self.switch.parts, seeds, strict=True)):
            mask = self.T.random(domain="eval", seed=public)
            data[j, 1] = mask.data
            noise = self.T.gaussian(self.sigma, seed=hidden)
            fma(mask, minus, noise.ntt(out=noise), out=_evaluated(self.T, data[j, 0]))
            rows = slice(part[0], part[-1] + 1)
            limbs = self.T[rows]  # the dtype of this ring may be narrower than that of T
            body, more = (limbs.from_residues(x[rows], domain="eval") for x in (data[j, 0], scaled.data))
            data[j, 0, rows] = (body + more).data
        value, size = _evaluated(self.T, data), self.switch.size
        key = SwitchKey(value, ring=self.ring, special=self.special, limbs_per_digit=size, **options)
        return key._with(_masks=tuple(seed for seed, _ in seeds))


def _limb(x: Poly) -> bytes:
    """Return the residues of x modulo the first modulus of its ring, as bytes."""
    return backend_of(x.data).to_host(x.data[0]).tobytes()


def _evaluated(ring: Ring, data: Array) -> Poly:
    return ring.from_residues(data, domain="eval", copy=False)


def _checked_element(ring: Ring, g: object) -> int:
    """Return g modulo the order of X. Raise ParameterError unless g is coprime to the order of X."""
    number, quotient = integer(g, "galois_element"), ring._plan.quotient
    multipliers(quotient, (number,), True)
    return number % quotient.order
