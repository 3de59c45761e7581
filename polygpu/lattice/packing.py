"""Packing of the messages of many ciphertexts into one, and expansion of one ciphertext into many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._backends import device
from .._core.checks import integer, shown
from .._ops import packing as ops
from .._ops.arrays import as_integers
from ..errors import ParameterError
from ..functions import stack
from ..poly import Poly, as_poly, checked_poly, plan_of
from ..ring import Ring
from .keys import SwitchKey
from .switch import checked_ciphertext, checked_key, checked_rotations, key_switch


def embed(x: Any, ring: Ring, *, q: int | None = None) -> Poly:
    """Return LWE vectors as ciphertexts: the phase of a vector becomes coefficient 0 of a ciphertext's phase.

    The other coefficients of the phase are meaningless. The secret of the vectors has m entries, one for each
    mask entry. The coefficients of the ciphertexts' secrets, listed one secret after the other, must begin
    with these m entries; what follows them does not matter. If `q` is given, each entry v of a vector becomes
    floor((2 * v * Q + q) / (2 * q)), where Q is the product of the ring's moduli. This multiplies phases by
    Q / q. If the ring has one modulus and vectors have 1 + n entries, extract(embed(x, ring), 0) is x.

    Args:
        x: LWE vectors of shape (*batch, 1 + m), with the body first: integers of any dtype, size and sign.
        ring: the ring of the result, of degree n and with any moduli up to 2**64.
        q: the modulus of the vectors, from 2 to 2**64, such as 2**32. By default the modulus is Q.

    Returns a value in coefficients, of batch shape (*batch, 1 + max(1, ceil(m / n))). If x is on a GPU, the
    result is on the same GPU, else on the current device.

    Raises:
        ParameterError: x has no axis, or its last axis is empty; q is outside its range; or `ring` has a
            modulus above 2**64, or is not modulo X^n + 1 or X^n - 1.
        CoefficientError: x holds something other than integers.

    Cost: a pass over x. If `q` is given, 1 + ceil(m / n) polynomials for each vector are converted.
    Source: Chen, Dai, Kim, Song 2020/015, section 3.2.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> pg.lattice.embed([9, 1, 2, 3, 4], R).to_bigints(centered=True).tolist()
    [[9, 0, 0, 0], [1, -4, -3, -2]]
    >>> pg.lattice.embed([2**31, 2**30], R, q=2**32).to_bigints()[:, 0].tolist()  # times 17 * 97 / 2**32
    [825, 412]
    """
    plan, given = plan_of(ring, "ring"), as_integers(x, "x")
    if plan.basis.wide:
        raise ParameterError(
            f"ring is {ring!r}, which has a modulus above 2**64. Use smaller moduli, because the entries of "
            "LWE vectors are words."
        )
    if given.ndim < 1 or not given.shape[-1]:
        raise ParameterError(
            f"The shape of x is {given.shape}. Its last axis must hold the entries of a vector, the body "
            "first."
        )
    moduli = plan.moduli
    if q is not None:
        modulus = integer(q, "q")
        if not 2 <= modulus <= 1 << 64:
            raise ParameterError(f"q={shown(modulus)} must be from 2 to 2**64.")
        moduli = (modulus,)
    return as_poly(ring, ops.embed(ops.vectors(given, moduli), plan), None)


def pack(c: Any, keys: Mapping[int, SwitchKey]) -> Poly:
    """Pack `count` ciphertexts into one, which hides n times coefficient 0 of each of their messages.

    Coefficient i * n / count of the result's phase is n times coefficient 0 of the phase of ciphertext i,
    where n is the degree of the ring. All other coefficients of the result's phase are noise. To avoid the
    factor n, multiply the ciphertexts by the inverse of n modulo Q, the modulus of the ring, before you pack
    them. If you multiplied the result instead, the noise of the key switches would become large, because it
    is not a multiple of n.

    Args:
        c: ciphertexts of batch shape (*batch, count, 2), where count is a power of two from 1 to n. c can
            also be LWE vectors modulo Q of shape (*batch, count, 1 + m) with m <= n, see `embed`. They are in
            host memory or on the keys' device. For LWE vectors, all keys must have the same ring.
        keys: a dict from the Galois elements 2**j + 1, j = 1, ..., log2 n, to their keys, made by
            rotation_keys with turned=False. All keys have the same special primes and limbs_per_digit.

    Returns a value of batch shape (*batch, 2), in c's domain, or in coefficients if c holds LWE vectors.

    Raises:
        ParameterError: the batch shape of c is not (*batch, count, 2); count is not a power of two from 1 to
            n; a key is missing, is turned, or differs from the others in special primes or limbs_per_digit;
            or the ring is not modulo X^n + 1 with n a power of two.
        RingMismatch: c's ring does not have the first limbs of a key's ring.
        DeviceError: the operands are on two devices.
        NotNTTFriendly: the ring has no complete transform.

    Cost: count - 1 + log2(n / count) key switches.
    Source: Chen, Dai, Kim, Song 2020/015, algorithms 1 to 3.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=2))
    >>> Q, P, s = T[:1], T[1:], T.ternary(seed=1)
    >>> keys = pg.lattice.rotation_keys(s, [3, 5, 9], ring=Q, special=P, limbs_per_digit=1)
    >>> messages, mask = Q([[10**5], [2 * 10**5]]), Q.random(2, seed=2)
    >>> c = pg.stack([messages - mask * s.restrict(Q), mask], axis=-1)
    >>> d = pg.lattice.pack(c, keys)
    >>> phase = d[0] + d[1] * s.restrict(Q)
    >>> (phase - Q([8 * 10**5, 0, 0, 0, 16 * 10**5])).norm(2) < 2000
    True
    """
    given = c if isinstance(c, Poly) else _embedded(c, _checked_keys(keys))
    if given.ndim < 2 or given.shape[-1] != 2:
        raise ParameterError(f"The batch shape of c is {given.shape}. It must be (*batch, count, 2).")
    n, count = _checked_ring(given, "c"), _checked_count(given.shape[-2], given.ring.n, "c.shape[-2]")
    levels, packing = n.bit_length() - 1, count.bit_length() - 1
    gs = [2**j + 1 for j in range(1, levels + 1)]
    shifts = tuple(n >> j for j in range(1, packing + 1))
    return _stepped(ops.pack, given, keys, gs, shifts)


def trace(c: Poly, keys: Mapping[int, SwitchKey], count: int) -> Poly:
    """Multiply every (n / count)-th coefficient of the phase by n / count. The others become noise.

    Each automorphism X -> X^g that leaves X^(n / count) unchanged is applied to c, and the result is switched
    back to the secret of c. The trace is the sum of these ciphertexts. n is the degree of the ring, and Q its
    modulus. To avoid the factor n / count, first multiply c by the inverse of n / count modulo Q.

    Args:
        c: ciphertexts of batch shape (*batch, 2).
        keys: see pack. Only the keys for 2**j + 1 with j = log2(count) + 1, ..., log2 n are needed.
        count: how many coefficients stay: a power of two from 1 to n.

    Returns a value of c's ring, batch shape and domain.

    Raises:
        ParameterError: the last batch axis of c does not have length 2, or count is not a power of two from 1
            to n. For other errors, see pack.

    Cost: log2(n / count) key switches.
    Source: Chen, Dai, Kim, Song 2020/015, algorithm 1.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=2))
    >>> Q, P, s = T[:1], T[1:], T.ternary(seed=1)
    >>> keys = pg.lattice.rotation_keys(s, [5, 9], ring=Q, special=P, limbs_per_digit=1)
    >>> message, mask = Q([10**5] * 8), Q.random(seed=2)
    >>> d = pg.lattice.trace(pg.stack([message - mask * s.restrict(Q), mask]), keys, 2)
    >>> phase = d[0] + d[1] * s.restrict(Q)
    >>> (phase - Q([4 * 10**5, 0, 0, 0, 4 * 10**5])).norm(2) < 1000
    True
    """
    c = checked_ciphertext(c)
    n = _checked_ring(c, "c")
    first = _checked_count(count, n, "count").bit_length()
    gs = [2**j + 1 for j in range(first, n.bit_length())]
    return _stepped(ops.pack, c[..., None, :], keys, gs, ())


def expand(c: Poly, keys: Mapping[int, SwitchKey], count: int) -> Poly:
    """Expand a ciphertext into `count` ciphertexts, which hide different coefficients of its message.

    Coefficient 0 of the phase of ciphertext i is `count` times coefficient i of c's phase. More generally,
    coefficient j * count of the phase of ciphertext i is `count` times coefficient j * count + i of c's
    phase. All other coefficients are noise. To avoid the factor `count`, first multiply c by the inverse of
    `count` modulo Q, the modulus of the ring.

    Args:
        c: ciphertexts of batch shape (*batch, 2).
        keys: a dict from the Galois elements n / 2**j + 1, j = 0, ..., log2(count) - 1, to their keys, made
            by rotation_keys with turned=False. The keys for pack include these.
        count: a power of two from 1 to n.

    Returns a value of batch shape (*batch, count, 2), in c's ring and domain.

    Raises:
        ParameterError: the last batch axis of c does not have length 2, or count is not a power of two from 1
            to n. For other errors, see pack.

    Cost: count - 1 key switches.
    Source: Angel, Chen, Laine, Setty 2018 (IEEE S&P), figure 3. Here each automorphism is computed
    once for two results.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=2))
    >>> Q, P, s = T[:1], T[1:], T.ternary(seed=1)
    >>> keys = pg.lattice.rotation_keys(s, [9, 5], ring=Q, special=P, limbs_per_digit=1)
    >>> message, mask = Q([10**5, 2 * 10**5, 0, 3 * 10**5]), Q.random(seed=2)
    >>> d = pg.lattice.expand(pg.stack([message - mask * s.restrict(Q), mask]), keys, 4)
    >>> phases = d[:, 0] + d[:, 1] * s.restrict(Q)
    >>> bool((phases - Q([[4 * 10**5], [8 * 10**5], [0], [12 * 10**5]])).norm(2).max() < 1000)
    True
    """
    c = checked_ciphertext(c)
    n = _checked_ring(c, "c")
    levels = _checked_count(count, n, "count").bit_length() - 1
    gs = [(n >> j) + 1 for j in range(levels)]
    # Step j multiplies by X^(-2**j) = X^(2 * n - 2**j).
    return _stepped(ops.expand, c, keys, gs, tuple(2 * n - (1 << j) for j in range(levels)))


def rgsw_from_rlwe(c: Poly, relin: SwitchKey) -> Poly:
    """Make GGSW ciphertexts of m from ciphertexts that hide m * g_l, where g_l are the weights of gadget().

    Let (b, a) be the ciphertext that hides m * g_l, and s the secret. Row (0, l) of the result is (b, a). Row
    (1, l) is (0, b) + key_switch(a, relin), which hides m * g_l * s. So rows (0, l) keep their noise, and
    rows (1, l) gain the noise of one key switch.

    Args:
        c: ciphertexts of batch shape (*batch, levels, 2), of which ciphertext l hides m * g_l. expand() makes
            such ciphertexts.
        relin: a key made by switch_key that switches from s^2 to s.

    Returns a value of c's ring, of batch shape (*batch, 2, levels, 2), evaluated. Pass it to external_product
    with `bits`.

    Raises:
        ParameterError: the batch shape of c is not (*batch, levels, 2), relin is not a SwitchKey, or relin is
            a rotation key. For other errors, see key_switch.

    Cost: a key switch for each ciphertext.
    Source: Menon, Wu 2022/368 (Spiral), section 3.3.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> relin = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)
    >>> weights, mask = pg.lattice.gadget(Q, bits=12, levels=4), Q.random(4, seed=2)
    >>> c = pg.stack([Q([[w] for w in weights]) - mask * s.restrict(Q), mask], axis=-1)  # for m = 1
    >>> one = pg.lattice.rgsw_from_rlwe(c, relin)
    >>> d = pg.lattice.external_product(one, c, bits=12)
    >>> phases = [x[:, 0] + x[:, 1] * s.restrict(Q) for x in (c, d)]
    >>> bool((phases[0] - phases[1]).norm(float("inf")).max() < 2**20)
    True
    """
    c, relin = checked_poly(c, "c"), checked_key(relin, "relin")
    if relin.galois_element is not None:
        raise ParameterError(
            "relin is a rotation key, but it must be a key for s^2. Use switch_key(s, s * s, ...) to make "
            "this key."
        )
    if c.ndim < 2 or c.shape[-1] != 2:
        raise ParameterError(f"The batch shape of c is {c.shape}. It must be (*batch, levels, 2).")
    x = c.ntt()
    moved = key_switch(x[..., 1], relin)
    moved[..., 1] = moved[..., 1] + x[..., 0]
    return stack([x, moved], axis=-3)


def _embedded(x: Any, keys: Mapping[int, SwitchKey]) -> Poly:
    """Return LWE vectors x as ciphertexts, in the ring and on the device of the keys."""
    if not keys:
        raise ParameterError(
            "keys is empty, so the ring of the LWE vectors is not known. Use embed to make ciphertexts of "
            "the vectors."
        )
    first, *others = keys.values()
    if any(key.ring != first.ring for key in others):
        raise ParameterError(
            "The entries of keys have different rings, so the ring of the LWE vectors is not known. Use "
            "embed to make ciphertexts of the vectors."
        )
    integers = as_integers(x, "c")
    with device(first.device):
        given = embed(integers, first.ring)
    if given.shape[-1] != 2:
        raise ParameterError(
            f"c holds LWE vectors of {integers.shape[-1]} entries, and at most n + 1 = {first.ring.n + 1} "
            "fit. Use keys of a larger n."
        )
    return given


def _stepped(
    operation: Any, c: Poly, keys: Mapping[int, SwitchKey], gs: list[int], shifts: tuple[int, ...]
) -> Poly:
    """Check the keys, and run `operation` on ciphertexts.

    operation: `pack` or `expand` of polygpu/_ops/packing.py. The function trace() uses `pack` too.
    gs: the Galois element of each step.
    shifts: step j multiplies by X^shifts[j] if j < len(shifts).
    """
    given = _checked_keys(keys)
    missing = [g for g in gs if g not in given]
    if missing:
        raise ParameterError(
            f"keys has no key for the Galois elements {missing}. Use rotation_keys(secret, {gs}, ...) to "
            "make all of them."
        )
    c, _, found = checked_rotations(
        c, {g: given[g] for g in gs}, "Give only keys with equal special and limbs_per_digit in one call."
    )
    for g, key in found.items():
        if key.turned or key.galois_element != g:
            raise ParameterError(
                f"keys[{g}] must be a key of X -> X^{g} that is not turned. Use rotation_keys with "
                "turned=False to make it."
            )
    switches = tuple(key._switch(c.ring) for key in found.values())
    plan = ops.steps_of(c._plan, switches, tuple(gs), shifts)
    made: Poly = operation(c, plan, tuple(key.value for key in found.values()))
    return made


def _checked_keys(keys: object) -> Mapping[int, SwitchKey]:
    if not isinstance(keys, Mapping):
        raise ParameterError(f"keys must be a dict from Galois elements to keys, not {type(keys).__name__}.")
    for g, key in keys.items():
        checked_key(key, f"keys[{shown(g)}]")
    return keys


def _checked_ring(c: Poly, name: str) -> int:
    """Return the degree n of c's ring. Raise ParameterError unless c's ring is modulo X^n + 1 and n = 2^k."""
    n = c.ring.n
    if c.ring.kind != "negacyclic" or n & (n - 1):
        raise ParameterError(
            f"{name} is of {c.ring!r}, but packing needs X^n + 1 with n a power of two. Use a ring with "
            "kind='negacyclic' and such an n."
        )
    return n


def _checked_count(count: object, n: int, name: str) -> int:
    number = integer(count, name)
    if not 1 <= number <= n or number & (number - 1):
        raise ParameterError(f"{name}={shown(number)} must be a power of two from 1 to n={n}.")
    return number
