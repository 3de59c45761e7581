"""Many messages in one ciphertext and back: LWE vectors in a ring, packing, traces, expansion of queries."""

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
    """Return LWE vectors as ciphertexts of a ring: the phase of each one is the phase of its vector at X^0.

    The first coefficients of the ring's secrets, one secret after the other, are the secret of the vectors,
    and those after them are of no influence. Other coefficients of the phase are of no use. With `q` an entry
    x becomes floor((2 x Q + q) / (2 q)): so phases are multiplied by Q / q. extract(embed(x, ring), 0) is x,
    for one modulus and 1 + n entries.

    Args:
        x: vectors (*batch, 1 + m), the body first: integers of any dtype, size and sign.
        ring: the ring of the result, of any moduli up to 2**64.
        q: the modulus of the vectors, from 2 to 2**64, such as 2**32. By default x are residues modulo Q.

    Returns a value in coefficients, (*batch, 1 + ceil(m / n)), at least 2 components; on the current device,
    or on the GPU where x lies.

    Raises:
        ParameterError: x has no axis, or one without entries; q outside its range; or a modulus of `ring`
            above 2**64.
        CoefficientError: x holds something other than integers.

    Cost: a pass; with q a conversion of 1 + ceil(m / n) polynomials.
    Source: Chen, Dai, Kim, Song 2020/015, section 3.2.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> pg.lattice.embed([9, 1, 2, 3, 4], R).to_bigints(centered=True).tolist()
    [[9, 0, 0, 0], [1, -4, -3, -2]]
    >>> pg.lattice.embed([2**31, 2**30], R, q=2**32).to_bigints()[:, 0].tolist()  # multiplied by 1649 / 2**32
    [825, 412]
    """
    plan, given = plan_of(ring, "ring"), as_integers(x, "x")
    if plan.basis.wide:
        raise ParameterError(f"ring: {ring!r} has a modulus above 2**64; LWE vectors have words as entries")
    if given.ndim < 1 or not given.shape[-1]:
        raise ParameterError(
            f"x: shape {given.shape}; the last axis must be that of a vector, the body first"
        )
    moduli = plan.moduli
    if q is not None:
        modulus = integer(q, "q")
        if not 2 <= modulus <= 1 << 64:
            raise ParameterError(f"q: {shown(modulus)} must be from 2 to 2**64")
        moduli = (modulus,)
    return as_poly(ring, ops.embed(ops.vectors(given, moduli), plan), None)


def pack(c: Any, keys: Mapping[int, SwitchKey]) -> Poly:
    """Pack ciphertexts into one, which has at X^(i n / count) n times what ciphertext i has at X^0.

    All other coefficients of its phase are noise. To remove the factor n, multiply the ciphertexts by the
    inverse of n modulo Q before. Afterwards it would also multiply the noise of the key switches, which is no
    multiple of n.

    Args:
        c: ciphertexts, (*batch, count, 2), count a power of two from 1 to n. Or LWE vectors as in embed,
            (*batch, count, 1 + n), modulo the Q of the ring that all keys have, on their device.
        keys: ordinary keys of rotation_keys for the Galois elements 2**j + 1, j = 1, ..., log2 n: a dict from
            each to its key. All have the same special primes and digits.

    Returns a value (*batch, 2) in c's domain; of LWE vectors in coefficients.

    Raises:
        ParameterError: c has another batch shape, or count is not a power of two up to n; a key is missing,
            turned or has other parameters; or the ring is not that of X^n + 1, n a power of two.
        RingMismatch: c's ring has limbs that a key has not. DeviceError: operands on two devices.
        NotNTTFriendly: a ring without a complete transform.

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
        raise ParameterError(f"c: batch shape {given.shape}, must be (*batch, count, 2)")
    n, count = _checked_ring(given, "c"), _checked_count(given.shape[-2], given.ring.n, "c")
    levels, packing = n.bit_length() - 1, count.bit_length() - 1
    gs = [2**j + 1 for j in range(1, levels + 1)]
    shifts = tuple(n >> j for j in range(1, packing + 1))
    return _stepped(ops.pack, given, keys, gs, shifts)


def trace(c: Poly, keys: Mapping[int, SwitchKey], count: int) -> Poly:
    """Keep every (n / count)-th coefficient of the phase, times n / count; the others become noise.

    It is the sum over the automorphisms that leave X^(n / count) as it is. For the factor see pack.

    Args:
        c: ciphertexts, (*batch, 2).
        keys: as in pack, for 2**j + 1, j = log2(count) + 1, ..., log2 n.
        count: how many coefficients stay: a power of two from 1 to n.

    Returns a value of c's ring, shape and domain.

    Raises:
        ParameterError: another batch shape, count, key or ring; all else as pack.

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
    """Return `count` ciphertexts: ciphertext i has at X^0 `count` times what c has at X^i.

    Its coefficient at X^(j count) is `count` times that of c at X^(j count + i), and its other coefficients
    are noise. For the factor see pack.

    Args:
        c: ciphertexts, (*batch, 2).
        keys: ordinary keys of rotation_keys for n / 2**j + 1, j = 0, ..., log2(count) - 1: those of pack
            include them.
        count: a power of two from 1 to n.

    Returns a value of c's ring and domain, (*batch, count, 2).

    Raises:
        ParameterError: another batch shape, count, key or ring; all else as pack.

    Cost: count - 1 key switches.
    Source: Angel, Chen, Laine, Setty 2018 (IEEE S&P), figure 3, with one automorphism for each pair.

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
    # X to the power -2**j is -X^(n - 2**j).
    return _stepped(ops.expand, c, keys, gs, tuple(2 * n - (1 << j) for j in range(levels)))


def rgsw_from_rlwe(c: Poly, relin: SwitchKey) -> Poly:
    """Return GGSW ciphertexts of m, made of ciphertexts that hide m g_l.

    Row (0, l) is ciphertext l as it is. Row (1, l) hides m g_l s: it is (0, b) plus the key switch of a from
    s^2 to s, where (b, a) is ciphertext l. Only row 1 gains noise, that of a key switch.

    Args:
        c: ciphertexts, (*batch, levels, 2), of m times the weights of gadget(), such as expand makes them.
        relin: a key of switch_key that switches from s^2 to s.

    Returns a value of c's ring, (*batch, 2, levels, 2), evaluated, for external_product with `bits`.

    Raises:
        ParameterError: another batch shape, or no SwitchKey; all else as key_switch.

    Cost: a key switch for each ciphertext.
    Source: Menon, Wu 2022/368 (Spiral), section 3.3.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=30, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> relin = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)
    >>> weights, mask = pg.lattice.gadget(Q, bits=12, levels=4), Q.random(4, seed=2)
    >>> c = pg.stack([Q([[w] for w in weights]) - mask * s.restrict(Q), mask], axis=-1)  # of m = 1
    >>> one = pg.lattice.rgsw_from_rlwe(c, relin)
    >>> d = pg.lattice.external_product(one, c, bits=12)
    >>> phases = [x[:, 0] + x[:, 1] * s.restrict(Q) for x in (c, d)]
    >>> bool((phases[0] - phases[1]).norm(float("inf")).max() < 2**20)
    True
    """
    c, relin = checked_poly(c, "c"), checked_key(relin, "relin")
    if relin.galois_element is not None:
        raise ParameterError("relin: a rotation key; switch_key(s, s * s, ...) makes the key of s^2")
    if c.ndim < 2 or c.shape[-1] != 2:
        raise ParameterError(f"c: batch shape {c.shape}, must be (*batch, levels, 2)")
    x = c.ntt()
    moved = key_switch(x[..., 1], relin)
    moved[..., 1] = moved[..., 1] + x[..., 0]
    return stack([x, moved], axis=-3)


def _embedded(x: Any, keys: Mapping[int, SwitchKey]) -> Poly:
    """Return LWE vectors as ciphertexts of the ring of all keys, on their device."""
    if not keys:
        raise ParameterError("keys: none, so that the ring of the LWE vectors is not known. Use embed")
    first, *others = keys.values()
    if any(key.ring != first.ring for key in others):
        raise ParameterError("keys: of several rings, so that of the LWE vectors is not known. Use embed")
    integers = as_integers(x, "c")
    with device(first.device):
        given = embed(integers, first.ring)
    if given.shape[-1] != 2:
        raise ParameterError(
            f"c: vectors of {integers.shape[-1]} entries, at most n + 1 = {first.ring.n + 1} fit"
        )
    return given


def _stepped(
    operation: Any, c: Poly, keys: Mapping[int, SwitchKey], gs: list[int], shifts: tuple[int, ...]
) -> Poly:
    """Return what an operation makes of ciphertexts by automorphisms of these elements, one a step."""
    given = _checked_keys(keys)
    missing = [g for g in gs if g not in given]
    if missing:
        raise ParameterError(
            f"keys: no key for the Galois elements {missing}. rotation_keys(secret, {gs}, ...) makes all"
        )
    c, _, found = checked_rotations(c, {g: given[g] for g in gs}, "give keys of one kind")
    for g, key in found.items():
        if key.turned or key.galois_element != g:
            raise ParameterError(
                f"keys[{g}]: must be an ordinary key of X -> X^{g}; make it by rotation_keys"
            )
    switches = tuple(key._switch(c.ring) for key in found.values())
    plan = ops.steps_of(c._plan, switches, tuple(gs), shifts)
    made: Poly = operation(c, plan, tuple(key.value for key in found.values()))
    return made


def _checked_keys(keys: object) -> Mapping[int, SwitchKey]:
    if not isinstance(keys, Mapping):
        raise ParameterError(f"keys: {type(keys).__name__}, must be a dict from Galois elements to keys")
    for g, key in keys.items():
        checked_key(key, f"keys[{shown(g)}]")
    return keys


def _checked_ring(c: Poly, name: str) -> int:
    """Return n; raise ParameterError unless the quotient is X^n + 1 with n a power of two."""
    n = c.ring.n
    if c.ring.kind != "negacyclic" or n & (n - 1):
        raise ParameterError(f"{name}: of {c.ring!r}; packing needs X^n + 1 with n a power of two")
    return n


def _checked_count(count: object, n: int, name: str) -> int:
    number = integer(count, name)
    if not 1 <= number <= n or number & (number - 1):
        raise ParameterError(f"{name}: {shown(number)} must be a power of two from 1 to n = {n}")
    return number
