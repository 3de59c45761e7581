"""Keys of TFHE: to switch LWE vectors, and gadget ciphertexts of secret bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import linalg, rns
from .._backends import Array, backend_of
from .._core.checks import integer, shown
from .._ops.arrays import as_integers
from .._ops.sampling import Seed, key_of
from .._ops.switch import key_switch_plan
from ..errors import ParameterError
from ..functions import stack
from ..poly import Poly, checked_poly, plan_of
from ..ring import Ring
from .gadget import gadget
from .products import add_constant


# Eight parameters: two secrets, the four of the digits and their modulus, the noise and the seed.
def lwe_switch_key(
    to: Any,
    other: Any,
    *,
    q: int,
    bits: int,
    levels: int,
    sigma: float | None = None,
    tuniform: int | None = None,
    seed: Seed = None,
) -> Array:
    """Make a key for lwe_switch from the secret `other` to the secret `to`.

    Row i levels + l is a vector under `to` whose phase is other_i g_l + e, with the weights g of gadget().

    Args:
        to: the secret of the results: n integers, usually bits.
        other: the secret of the vectors that are switched: m integers.
        q: a modulus from 2 to 2**64.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.
        sigma: standard deviation of the noise e, as of Ring.gaussian.
        tuniform: b, for noise as of Ring.tuniform instead; one of both must be given.
        seed: a secret int, bytes or str; by default 32 bytes from the operating system. Masks and noise have
            seeds of their own, which are SHA-256 of it, of the parameters and of the secrets.

    Returns residues (m levels, n + 1) on the current device, uint32 for q <= 2**32, else uint64.

    Raises:
        ParameterError: no vector of integers, a modulus or digits outside their range, or a noise that is
            given twice or not at all.

    Cost: m levels n uniform residues and products. Source: Chillotti et al. 2018/421, section 2.4.

    >>> import polygpu as pg
    >>> pg.lattice.lwe_switch_key([0, 1, 1], [1, 0], q=2**32, bits=4, levels=3, tuniform=5, seed=1).shape
    (6, 4)
    """
    target, source = _secret(to, "to"), _secret(other, "other")
    numbers = Ring(1, q)
    weights = gadget(numbers, bits=bits, levels=levels)
    rows = len(source) * len(weights)
    noise = _Noise(sigma, tuniform, seed, ("lwe", q, bits, levels), target, source)
    mask = numbers.random(rows * len(target), seed=noise.seed("mask"))
    masks = mask.data.reshape(rows, len(target))
    there = backend_of(masks)
    product = linalg.matmul(masks, there.from_host(target.reshape(-1, 1)), q=q).reshape(rows, 1, 1)
    hidden = [int(s) * g % numbers.modulus for s in source for g in weights]
    body = noise.draw(numbers, (rows,)) + numbers([[x] for x in hidden]) - numbers.from_residues(product)
    with there.device_scope():
        made: Array = there.xp.concatenate([body.data[:, 0], masks], axis=1)
    return made


# Nine parameters: the messages and their secret, the four of digits, the noise and the seed.
def ggsw(
    messages: Any,
    secret: Poly,
    *,
    bits: int | None = None,
    levels: int | None = None,
    limbs_per_digit: int | None = None,
    special: Ring | None = None,
    sigma: float | None = None,
    tuniform: int | None = None,
    seed: Seed = None,
) -> Poly:
    """Make GGSW ciphertexts of small integers: what external_product, cmux and blind_rotate multiply by.

    Row (i, l) is a ciphertext of 0 with m g_l added to its component i. The weights are those of gadget(), or
    with `special` P times those of rns.gadget(), modulo T = secret.ring.join(special).

    Args:
        messages: integers (*batch) below 2**63 in size, such as the bits of a secret, which make a
            bootstrapping key; for a ternary secret s they are [s_i = 1] and [s_i = -1], (count, 2).
        secret: s_1, ..., s_k of the ring of the ciphertexts: a Poly of batch shape (k,). With `special` its
            centred value counts.
        bits: of a digit.
        levels: how many digits; B**levels is at most q, and 2**64 in a ring of several moduli.
        limbs_per_digit: limbs of a digit, instead of bits and levels.
        special: the ring of P, with limbs_per_digit.
        sigma: standard deviation of the noise, as of Ring.gaussian.
        tuniform: b, for noise as of Ring.tuniform instead; one of both must be given.
        seed: as in lwe_switch_key.

    Returns a Poly (*batch, k + 1, levels, k + 1) on the current device, evaluated if the ring has a complete
    transform, else in coefficients. With `special` it is of T and ready as it is. Otherwise prepare() makes
    it ready for many products.

    Raises:
        ParameterError: messages that are too large, another batch shape of the secret, digits outside their
            range, or digits or a noise that are given twice or not at all. CoefficientError: no integers.
        RingMismatch, NotNTTFriendly: `special` does not fit, as in switch_key.

    Cost: for each message (k + 1) levels k uniform polynomials and as many products.
    Source: Chillotti et al. 2018/421, definition 3.9.

    >>> import polygpu as pg
    >>> R = pg.Ring(32, 2**32)
    >>> key = pg.lattice.ggsw([1, 0], R.ternary(1, seed=1), bits=7, levels=3, tuniform=3, seed=2)
    >>> key.shape
    (2, 2, 3, 2)
    """
    s = checked_poly(secret, "secret").to()
    if len(s.shape) != 1 or not len(s):
        raise ParameterError(f"secret: batch shape {s.shape}, must be (k,), one secret for each mask")
    k, numbers = len(s), as_integers(messages, "messages")
    given = [x is not None for x in (bits, levels, limbs_per_digit, special)]
    if given not in ([True, True, False, False], [False, False, True, True]):
        raise ParameterError(
            "bits, levels, limbs_per_digit, special: give the first two, for digits to a base, or the last "
            "two, for digits that are groups of limbs"
        )
    parameters: tuple[Any, ...]
    if limbs_per_digit is not None:
        P, Q = plan_of(special, "special"), s.ring
        assert special is not None
        T = Q.join(special)
        key_switch_plan(Q._plan, P, T._plan, limbs_per_digit)  # refused now if no product can take the key
        weights = tuple(x * special.modulus for x in rns.gadget(Q, limbs_per_digit=limbs_per_digit))
        s = s.intt().convert(T)
        parameters = "ggsw of limbs", T.__reduce__()[1], weights
    else:
        assert bits is not None and levels is not None
        weights = gadget(s.ring, bits=bits, levels=levels)
        parameters = "ggsw", s.ring.__reduce__()[1], bits, levels
    R = s.ring
    values = _as_int64(backend_of(numbers).to_host(numbers), "messages", 63)
    batch = values.shape
    noise = _Noise(sigma, tuniform, seed, parameters, s.intt().cpu().data, values)
    shape = (*batch, k + 1, len(weights))
    mask = R.random((*shape, k), seed=noise.seed("mask"))
    made = noise.draw(R, shape) - (mask * s).sum(-1).to()
    rows = stack([made, *(mask[..., i] for i in range(k))], axis=-1)
    products = (values.astype(object)[..., None] * np.array(weights, object)).tolist()
    for i in range(k + 1):
        place = (..., i, slice(None), slice(i, i + 1))
        rows[place] = add_constant(rows[place], products)
    return rows.ntt(out=rows) if R.leaf_size == 1 else rows


# Eight parameters: those of ggsw, and the number of bits in a group.
def multi_bit_key(
    small: Any,
    secret: Poly,
    *,
    group: int,
    bits: int,
    levels: int,
    sigma: float | None = None,
    tuniform: int | None = None,
    seed: Seed = None,
) -> Poly:
    """Make a bootstrapping key that takes `group` bits of a secret in one step of blind_rotate.

    Entry [j, S] is a GGSW ciphertext of 1 if the bits of group j are those of the number S, the first bit
    being the lowest, and of 0 for the other S. So the sum over S of [j, S] times X to the power of the sum of
    those e_i whose bits are set in S is a ciphertext of X^(sum of e_i s_i). Bits that the last group lacks
    count as 0.

    Args:
        small: bits, n of them.
        secret: as in ggsw.
        group: how many bits a step takes, from 2 to 8; single bits are messages of ggsw.
        bits: of a digit.
        levels: how many digits.
        sigma: as in ggsw.
        tuniform: as in ggsw.
        seed: as in ggsw.

    Returns a Poly (ceil(n / group), 2^group, k + 1, levels, k + 1) in coefficients on the current device:
    2^group / group times the key of single bits, for a rotation of 1 / group times the steps.

    Raises:
        ParameterError: entries that are not bits, or a group outside its range; all else as ggsw.

    Cost: that of ggsw for 2^group messages a group.
    Source: Zhou et al. 2017/735; Joye, Paillier 2022 (CSCML).

    >>> import polygpu as pg
    >>> R = pg.Ring(32, 2**32)
    >>> s = R.ternary(1, seed=1)
    >>> pg.lattice.multi_bit_key([1, 0, 1], s, group=2, bits=7, levels=3, tuniform=3, seed=2).shape
    (2, 4, 2, 3, 2)
    """
    size, s = integer(group, "group"), _secret(small, "small")
    if not 2 <= size <= 8:
        raise ParameterError(f"group: {shown(size)} must be from 2 to 8 bits")
    if not np.isin(s, (0, 1)).all():
        wrong = s[~np.isin(s, (0, 1))][0]
        raise ParameterError(f"small: {wrong} is not 0 or 1; encrypt such entries one by one with ggsw")
    groups = -(-len(s) // size)
    own = np.zeros(groups * size, np.int64)
    own[: len(s)] = s
    weights = 1 << np.arange(size)
    chosen = own.reshape(groups, size) @ weights  # the S that is right
    messages = (chosen[:, None] == np.arange(1 << size)).astype(np.int64)
    made = ggsw(messages, secret, bits=bits, levels=levels, sigma=sigma, tuniform=tuniform, seed=seed)
    return made.intt()


class _Noise:
    """Noise of one kind, and seeds of masks and noise that no two keys share."""

    def __init__(
        self,
        sigma: float | None,
        tuniform: int | None,
        seed: Seed,
        parameters: tuple[Any, ...],
        *secrets: Any,
    ) -> None:
        if (sigma is None) == (tuniform is None):
            raise ParameterError("sigma, tuniform: give one of both, for the noise")
        self.sigma, self.b = sigma, tuniform
        self.state = hashlib.sha256(key_of(seed, "polygpu TFHE key 1"))
        self.state.update(repr((parameters, str(sigma), str(tuniform))).encode())
        for secret in secrets:
            self.state.update(repr(secret.shape).encode() + np.ascontiguousarray(secret).tobytes())

    def seed(self, label: str) -> bytes:
        """Return the seed of a part of the key."""
        state = self.state.copy()
        state.update(label.encode())
        return state.digest()

    def draw(self, ring: Ring, batch: tuple[int, ...]) -> Poly:
        """Draw noise in a ring."""
        if self.b is None:
            assert self.sigma is not None
            return ring.gaussian(self.sigma, batch=batch, seed=self.seed("noise"))
        return ring.tuniform(self.b, batch=batch, seed=self.seed("noise"))


def _secret(x: Any, name: str) -> NDArray[np.int64]:
    """Return a secret as int64 on the host."""
    given = as_integers(x, name)
    values = backend_of(given).to_host(given)
    if values.ndim != 1 or not values.size:
        raise ParameterError(f"{name}: shape {values.shape}, must be a vector of integers")
    return _as_int64(values, name, 31)


def _as_int64(values: Array, name: str, bits: int) -> NDArray[np.int64]:
    """Return integers as int64; raise ParameterError for one that is not below 2**bits in size."""
    if values.size and max(map(abs, (int(values.min()), int(values.max())))) >= 1 << bits:
        raise ParameterError(f"{name}: an entry is not below 2**{bits} in size; give smaller integers")
    return values.astype(np.int64)
