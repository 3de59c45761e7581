"""Keys of TFHE: key-switching keys for LWE vectors, and GGSW ciphertexts of secret bits."""

from __future__ import annotations

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


# Eight parameters: two secrets; q, bits and levels for the digits; two for the noise; and the seed.
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
    """Make the key with which lwe_switch switches from the secret `other` to the secret `to`.

    Row i * levels + l of the key is an LWE vector under `to`, with phase other[i] * g[l] + e. Here g lists
    the weights that gadget() returns for the modulus q, bits and levels, and e is noise.

    Args:
        to: the secret of the results: n integers, usually bits.
        other: the secret of the vectors that are switched: m integers.
        q: a modulus from 2 to 2**64.
        bits: how many bits a digit has.
        levels: how many digits; 2**(bits * levels) is at most q.
        sigma: the standard deviation, if the noise is to be drawn by Ring.gaussian.
        tuniform: the parameter b, if the noise is to be drawn by Ring.tuniform. Give either sigma or
            tuniform.
        seed: a secret int, bytes or str; by default 32 bytes from the operating system. It is hashed with the
            parameters and the secrets by SHA-256 into two seeds, one for the masks and one for the noise.

    Returns residues of shape (m * levels, n + 1) on the current device, as uint32 if q <= 2**32, else as
    uint64.

    Raises:
        ParameterError: `to` or `other` is not a vector, or has an entry whose absolute value is not below
            2**31; q, bits, levels or the parameter of the noise is outside its range; or not exactly one of
            sigma and tuniform is given.
        CoefficientError: `to` or `other` holds something other than integers.

    Cost: m * levels * n uniform residues, and as many products.
    Source: Chillotti et al. 2018/421, section 2.4.

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


# Nine parameters: messages and secret, four for the digits, two for the noise, and the seed.
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
    """Make GGSW ciphertexts of small integers, for external_product, cmux and blind_rotate.

    Row (i, l) of the GGSW ciphertext of m is a ciphertext of 0 with m * g_l added to its component i. The
    weights g_l are those of gadget(). If `special` is given, the ciphertexts are values of
    T = secret.ring.join(special), and the weights are P times the factors of rns.gadget(), where P is the
    product of the special primes.

    Args:
        messages: integers of shape (*batch,), below 2**63 in absolute value. For the bootstrapping key of a
            secret of bits, give its bits. For a ternary secret s, give an array of shape (count, 2) with two
            bits for each s_i: whether s_i = 1, and whether s_i = -1.
        secret: the secrets s_1, ..., s_k, a Poly of batch shape (k,) in the ring of the ciphertexts. If
            `special` is given, the centred value of `secret` is converted to T.
        bits: how many bits a digit has.
        levels: how many digits. 2**(bits * levels) must be at most the product of the moduli, and at most
            2**64 if there are several moduli.
        limbs_per_digit: how many limbs form a digit; given instead of bits and levels.
        special: the ring of the special primes; given with limbs_per_digit.
        sigma: the standard deviation, if the noise is to be drawn by Ring.gaussian.
        tuniform: the parameter b, if the noise is to be drawn by Ring.tuniform. Give either sigma or
            tuniform.
        seed: see lwe_switch_key.

    Returns a Poly of batch shape (*batch, k + 1, levels, k + 1) on the current device, evaluated if the ring
    has a complete transform, else in coefficients. If `special` is given, the Poly is a value of T and
    needs no prepare(). Otherwise call prepare() before many products.

    Raises:
        ParameterError: a message is too large; the batch shape of secret is not (k,); bits, levels,
            limbs_per_digit or the parameter of the noise is outside its range; or the arguments do not give
            exactly one kind of digits and one kind of noise.
        CoefficientError: messages holds something other than integers.
        RingMismatch, NotNTTFriendly: `special` does not fit, see switch_key.

    Cost: for each message, (k + 1) * levels * k uniform polynomials, and as many products.
    Source: Chillotti et al. 2018/421, definition 3.9.

    >>> import polygpu as pg
    >>> R = pg.Ring(32, 2**32)
    >>> key = pg.lattice.ggsw([1, 0], R.ternary(1, seed=1), bits=7, levels=3, tuniform=3, seed=2)
    >>> key.shape
    (2, 2, 3, 2)
    """
    s = checked_poly(secret, "secret").to()
    if len(s.shape) != 1 or not len(s):
        raise ParameterError(
            f"The batch shape of secret is {s.shape}. It must be (k,) with k at least 1, one secret for each "
            "mask."
        )
    k, numbers = len(s), as_integers(messages, "messages")
    given = [x is not None for x in (bits, levels, limbs_per_digit, special)]
    if given not in ([True, True, False, False], [False, False, True, True]):
        raise ParameterError(
            "Give either bits and levels, for digits in base 2**bits, or limbs_per_digit and special, for "
            "digits that are groups of limbs."
        )
    parameters: tuple[Any, ...]
    if limbs_per_digit is not None:
        P, Q = plan_of(special, "special"), s.ring
        assert special is not None
        T = Q.join(special)
        key_switch_plan(Q._plan, P, T._plan, limbs_per_digit)  # raise now if no product could use the key
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
    # Encrypt 0: the body is the noise minus the sum of mask_i * s_i.
    made = noise.draw(R, shape) - (mask * s).sum(-1).to()
    rows = stack([made, *(mask[..., i] for i in range(k))], axis=-1)
    products = (values.astype(object)[..., None] * np.array(weights, object)).tolist()
    for i in range(k + 1):
        # rows[place] is component i of the rows (i, l). The last batch axis has length 1, because
        # add_constant adds to entry 0 of the last batch axis.
        place = (..., i, slice(None), slice(i, i + 1))
        rows[place] = add_constant(rows[place], products)
    return rows.ntt(out=rows) if R.leaf_size == 1 else rows


# Eight parameters: two secrets, three for groups and digits, two for the noise, and the seed.
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
    """Make a bootstrapping key with which one step of blind_rotate handles `group` bits of a secret.

    Entry [j, S], for group j and a number S from 0 to 2^group - 1, is a GGSW ciphertext. It hides 1 if the
    secret bits s_i of group j, read as a binary number with the first bit lowest, form S. Otherwise it hides
    0. So, for exponents e_i, the sum over S of X^(sum of e_i for bits i set in S) * entry [j, S] hides
    X^(sum of e_i * s_i for i in the group). If the last group has fewer bits, its missing bits count as 0.

    Args:
        small: the secret of the LWE vectors: n bits.
        secret: see ggsw.
        group: how many bits form a group, from 2 to 8. For single bits use ggsw.
        bits: how many bits a digit has.
        levels: how many digits.
        sigma: see ggsw.
        tuniform: see ggsw.
        seed: see ggsw.

    Returns a Poly of batch shape (ceil(n / group), 2^group, k + 1, levels, k + 1), in coefficients on the
    current device, where (k,) is the batch shape of `secret`. The key is 2^group / group times as large as
    a key of single bits, and blind_rotate takes 1 / group times as many steps.

    Raises:
        ParameterError: an entry of `small` is not 0 or 1, or group is outside its range. For other errors,
            see ggsw.

    Cost: for each group, one ggsw of 2^group messages.
    Source: Zhou et al. 2017/735; Joye, Paillier 2022 (CSCML).

    >>> import polygpu as pg
    >>> R = pg.Ring(32, 2**32)
    >>> s = R.ternary(1, seed=1)
    >>> pg.lattice.multi_bit_key([1, 0, 1], s, group=2, bits=7, levels=3, tuniform=3, seed=2).shape
    (2, 4, 2, 3, 2)
    """
    size, s = integer(group, "group"), _secret(small, "small")
    if not 2 <= size <= 8:
        raise ParameterError(f"group={shown(size)} must be from 2 to 8 bits. Use ggsw for single bits.")
    if not np.isin(s, (0, 1)).all():
        wrong = s[~np.isin(s, (0, 1))][0]
        raise ParameterError(
            f"small contains {wrong}, which is not 0 or 1. Use ggsw to encrypt such entries one by one."
        )
    groups = -(-len(s) // size)
    own = np.zeros(groups * size, np.int64)
    own[: len(s)] = s
    weights = 1 << np.arange(size)
    chosen = own.reshape(groups, size) @ weights  # for each group, the index of the entry that hides 1
    messages = (chosen[:, None] == np.arange(1 << size)).astype(np.int64)
    made = ggsw(messages, secret, bits=bits, levels=levels, sigma=sigma, tuniform=tuniform, seed=seed)
    return made.intt()


class _Noise:
    """Noise and seeds of one key. The seeds are hashes of the user's seed, the parameters and all secrets."""

    def __init__(
        self,
        sigma: float | None,
        tuniform: int | None,
        seed: Seed,
        parameters: tuple[Any, ...],
        *secrets: Any,
    ) -> None:
        import hashlib  # here, so that importing polygpu stays fast

        if (sigma is None) == (tuniform is None):
            raise ParameterError("Give exactly one of sigma and tuniform, for the noise.")
        self.sigma, self.b = sigma, tuniform
        self.state = hashlib.sha256(key_of(seed, "polygpu TFHE key 1"))
        self.state.update(repr((parameters, str(sigma), str(tuniform))).encode())
        for secret in secrets:
            self.state.update(repr(secret.shape).encode() + np.ascontiguousarray(secret).tobytes())

    def seed(self, label: str) -> bytes:
        """Return the seed of the masks if `label` is "mask", and of the noise if `label` is "noise"."""
        state = self.state.copy()
        state.update(label.encode())
        return state.digest()

    def draw(self, ring: Ring, batch: tuple[int, ...]) -> Poly:
        """Draw noise polynomials of batch shape `batch`: Gaussian if sigma was given, else TUniform."""
        if self.b is None:
            assert self.sigma is not None
            return ring.gaussian(self.sigma, batch=batch, seed=self.seed("noise"))
        return ring.tuniform(self.b, batch=batch, seed=self.seed("noise"))


def _secret(x: Any, name: str) -> NDArray[np.int64]:
    """Return the vector x as int64 on the host. Its entries must be below 2**31 in absolute value."""
    given = as_integers(x, name)
    values = backend_of(given).to_host(given)
    if values.ndim != 1 or not values.size:
        raise ParameterError(f"{name} has shape {values.shape}. It must be a vector of at least one integer.")
    return _as_int64(values, name, 31)


def _as_int64(values: Array, name: str, bits: int) -> NDArray[np.int64]:
    """Return `values` as int64. Raise ParameterError if an absolute value is 2**bits or more."""
    if values.size and max(map(abs, (int(values.min()), int(values.max())))) >= 1 << bits:
        raise ParameterError(
            f"{name} contains an entry that is not below 2**{bits} in absolute value. Give smaller integers."
        )
    return values.astype(np.int64)
