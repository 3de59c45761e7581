"""Comparison of CKKS slots with a threshold: from CKKS to TFHE, and back.

    python -m polygpu.examples.comparison
    python -m polygpu.examples.comparison --logn 10 --threshold 0.25 --insecure

CKKS adds and multiplies, so a comparison would need a polynomial of high degree. TFHE compares by one blind
rotation, whose result depends on the sign of a phase. So each slot x moves to TFHE, and the result, 1 if x is
above the threshold and 0 otherwise, comes back as a slot. The steps are:

1. A matrix moves the slots to coefficients, modulo the first prime q. A slot x becomes the coefficient
   x * turns * q, where `turns` is a field of `Parameters`.
2. Each coefficient is extracted as an LWE vector with a mask of N entries, modulo q. The vector is switched
   to a short binary secret.
3. The threshold is subtracted from the body, and the vector is rounded modulo 2N. A blind rotation takes the
   polynomial whose coefficients are all 1/2, and multiplies it by X^-phase. Coefficient 0 of the result is
   1/2 or -1/2, and 1/2 is added.
4. The results of all slots are packed into one ciphertext, and a second matrix moves them to the slots.

Step 3 uses the ring of CKKS, modulo all primes of Q. The TFHE library uses a smaller ring and one modulus, of
32 or 64 bits. But a result modulo 2^64 has noise of about 2^49, so the 1 must be encoded as a number near
2^64. Scaled from 2^64 to Q, it is near Q, which leaves no room for products. Modulo Q, the noise of a blind
rotation is about 2^10 and does not grow with Q. So with a Q of 91 bits, a 1 that is encoded as 2^35 is
precise and leaves room. The result is encrypted under the secret of CKKS, so no key has to switch it back.

If a slot is closer to the threshold than `Parameters.distance`, its result may be 0 or 1. Every other result
is wrong with a probability below 2^-29.

Sources: Boura, Gama, Georgieva, Jetchev 2018/758 (CHIMERA) and Lu, Huang, Hong, Ma, Qu 2020/1606 (PEGASUS)
for the conversion between the schemes; Kim, Deryabin, Eom, Choi, Lee, Ghang, Yoo 2021/691 for blind rotations
modulo the primes of CKKS; Chen, Dai, Kim, Song 2020/015 for packing.

This is an example, not a product: it is not constant time, nobody has reviewed it, and keys are not erased
from memory. Keys encrypt functions of the secrets under the secrets, which is believed to be safe (circular
security). Whoever sees a ciphertext and its decrypted slots to full precision can compute the secret key (Li,
Micciancio 2020/1533). Small rings are not secure.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import polygpu as pg
from polygpu import lattice, linalg
from polygpu._backends import backend_of, get_backend
from polygpu._core.locks import cached_property
from polygpu.examples.bfv import derive
from polygpu.examples.ckks_arithmetic import (
    Arithmetic,
    Array,
    Ciphertext,
    decrypt,
    encode,
    phase,
    transform,
)
from polygpu.examples.tfhe import FOUR_BITS

SIGMA = 3.2  # the standard deviation of noise in the ring

# ---- parameters ----


@dataclass(frozen=True)
class Parameters:
    """Parameters of a comparison.

    The primes of Q are, in this order: the first prime, the primes of the levels, and one prime for the
    matrix that moves results to the slots. There are as many special primes as primes of Q, and the special
    primes are larger. So a key switch treats a value modulo Q as one digit. If all primes are below 2^31,
    residues take four bytes.
    """

    log_n: int = 13
    log_slots: int = 5  # log2 of the number of different slots; they repeat until N/2 slots are full
    first: int = 31  # bit length of the first prime and of each special prime
    bits: int = 30  # bit length of each of the other primes
    levels: int = 1  # levels that are left after a comparison
    scale: int = 29  # log2 of the scale of slots
    packed: int = 35  # log2 of the scale of packed results
    turns: float = 0.2  # phase / q of a slot that is 1; below 1/4, because |slot - threshold| <= 2
    short: int = FOUR_BITS.n  # number of bits of the short secret
    noise: int = FOUR_BITS.noise - 64  # log2 of (largest noise of LWE vectors / their modulus)
    switch_digits: tuple[int, int] = (3, 6)  # bits of a digit, and number of digits, in LWE key switching

    def __post_init__(self) -> None:
        """Raise ParameterError if the parameters do not fit together."""
        if self.log_n < 3 or not 1 <= self.log_slots < self.log_n:
            raise pg.ParameterError(
                f"log_n={self.log_n} must be at least 3, and log_slots={self.log_slots} must be from 1 to "
                "log_n - 1."
            )
        if self.levels < 0 or self.short < 1:
            raise pg.ParameterError(
                f"levels={self.levels} must be at least 0, and short={self.short} must be at least 1."
            )
        if not 0 < self.turns < 0.25:
            raise pg.ParameterError(
                f"turns={self.turns} must be above 0 and below 1/4, so that no difference passes half of the "
                "circle."
            )
        if self.bits > self.first or self.scale > self.first - 2:
            raise pg.ParameterError(
                f"first={self.first} bits must be at least the {self.bits} bits of other primes, and at "
                f"least two more than scale={self.scale} bits."
            )
        if self.lwe_noise < 0:
            raise pg.ParameterError(
                f"noise={self.noise} is too small, because 2^{self.noise} of a modulus of {self.first} bits "
                "is below 1. Use a larger noise."
            )

    @property
    def n(self) -> int:
        """The degree N."""
        return 1 << self.log_n

    @property
    def slots(self) -> int:
        """The number of different slots. They repeat until all N/2 slots are full."""
        return 1 << self.log_slots

    @cached_property
    def ring(self) -> pg.Ring:
        """Return the ring of ciphertexts, modulo Q."""
        return pg.Ring(self.n, self._primes[: self.levels + 2])

    @cached_property
    def special(self) -> pg.Ring:
        """Return the ring modulo P, the product of the special primes."""
        return pg.Ring(self.n, self._primes[self.levels + 2 :])

    @cached_property
    def _primes(self) -> list[int]:
        count = self.levels + 2
        long = pg.ntt_primes(self.n, bits=self.first, count=count + 1)
        others = pg.ntt_primes(self.n, bits=self.bits, count=count - 1, exclude=long)
        return [long[-1], *others, *long[:-1]]

    @property
    def lwe_noise(self) -> int:
        """The number b such that LWE vectors modulo the first prime have the noise Ring.tuniform(b)."""
        return self.first + self.noise

    # ---- security ----

    @property
    def log_qp(self) -> int:
        """The bit length of Q * P, the modulus of all keys of the ring."""
        return self.ring.join(self.special).modulus.bit_length()

    @property
    def log_qp_limit(self) -> int:
        """The largest log_qp with an estimated security of 128 bits, or 0 if no estimate is known."""
        try:
            return lattice.max_log_q(self.n)
        except pg.ParameterError:
            return 0

    @property
    def is_secure(self) -> bool:
        """Whether the ring and the LWE vectors have an estimated security of 128 bits.

        Q * P is compared with `lattice.max_log_q`. LWE vectors must be at least as long as those of the set
        "2+2 bits" of the TFHE example, and have at least as much noise relative to the modulus. The source of
        that set estimates 128 bits.
        """
        is_long = self.short >= FOUR_BITS.n and self.noise >= FOUR_BITS.noise - 64
        return is_long and self.log_qp <= self.log_qp_limit

    # ---- theory ----

    def deviations(self) -> dict[str, float]:
        """Return the theoretical standard deviation of the error of each step.

        The error of each of the steps "coefficients", "short" and "rounded" is what the step adds to a phase,
        divided by the modulus. The error of a later step is the total error of a result, which would be 0 or
        1 without errors. The error of "product" is that of x times a result, if |x| is 1.

        A key switch multiplies a digit, uniform modulo Q, by noise, and divides by P. The division rounds
        both components, and the rounding errors of the second one are multiplied by the ternary secret, whose
        coefficients have the variance 2/3. An external product does the same with two digits. In packing,
        every step doubles the noise of all key switches before it. Entries of a matrix are rounded when the
        matrix is encoded. The error from this is computed as if half of the results were 1.
        """
        n, slots, variance = self.n, self.slots, SIGMA**2
        q, ratio = self.ring.moduli, self.ring.modulus / self.special.modulus
        rounding = (1 + 2 * n / 3) / 12
        product = n * variance * ratio**2 / 12  # variance of a digit times noise, after division by P

        # Slots repeat in a ciphertext, and the matrix takes the average over the repeats. So only the noise
        # of 2 * slots coefficients counts. Half of this noise is in the real part.
        fresh = slots * variance * 4.0**-self.scale * self.turns**2
        step = self.turns * q[0] * q[1] * 2.0**-self.scale  # the scale of the matrix
        # In each diagonal of the matrix, 2 * slots coefficients are rounded. The square of a slot is 1/3 on
        # average.
        encoded = slots**2 / 6 / 3 / step**2 * self.turns**2 * (2 * slots / n)
        coefficients = fresh + encoded + rounding / q[0] ** 2
        bits, levels = self.switch_digits
        noise = (2.0 ** (2 * self.lwe_noise + 1) + 1) / 6 / q[0] ** 2
        switch = n * levels * (4**bits + 2) / 12 * noise + n * 2 / 3 / (12 * 4 ** (bits * levels))
        rounded = (1 + self.short / 4) / 12 / (2 * n) ** 2

        rotated = self.short * (2 * product + rounding)
        packed = rotated + (product + rounding) * (n**2 - 1) / 3
        # Adding the conjugate doubles the real part, and computing the conjugate takes a key switch.
        matrix = 2.0 ** (self.scale - self.packed) * q[self.levels + 1]
        encoded = slots**3 / 12 / matrix**2
        in_slots = packed * 4.0**-self.packed + encoded + 2.5 * n * rounding * 4.0**-self.scale
        scale = 4.0**self.scale / q[1]  # the scale of a product
        multiplied = in_slots + n / 2 * (variance * 4.0**-self.scale + 2 * rounding / scale**2)
        variances = {
            "coefficients": coefficients,
            "short": switch,
            "rounded": rounded,
            "rotated": rotated * 4.0**-self.packed,
            "packed": packed * 4.0**-self.packed,
            "slots": in_slots,
            "product": multiplied,
        }
        return {name: math.sqrt(x) for name, x in variances.items()}

    @property
    def deviation(self) -> float:
        """The theoretical standard deviation of the slot's value at which a result changes from 0 to 1."""
        of = self.deviations()
        return math.hypot(of["coefficients"], of["short"], of["rounded"]) / self.turns

    @property
    def distance(self) -> float:
        """The result for a slot may be wrong if the slot is closer to the threshold than this distance.

        The distance is six standard deviations. A Gaussian error exceeds it in one direction with a
        probability below 2^-29.
        """
        return 6 * self.deviation


# Sets of parameters by name. "small" is for tests and is not secure.
SETS = {
    "128 bits": Parameters(),
    "small": Parameters(log_n=10, log_slots=4, short=64, noise=-28),
}

# ---- the comparison ----


class Secrets(NamedTuple):
    """The secrets of a client.

    ring: the secret polynomial s, evaluated, modulo Q * P. short: the bits of the short secret of LWE
    vectors, on the host.
    """

    ring: pg.Poly
    short: Array


class Keys(NamedTuple):
    """The public keys.

    rotations: a dict from Galois elements to keys that lattice.rotation_keys made with turned=True, for the
    matrices and the conjugation. packing: the dict of keys for `lattice.pack`. relin: a key that switches
    from s^2 to s, for products. switch: a key that switches LWE vectors from s to the short secret. ggsw:
    GGSW ciphertexts that encrypt the bits of the short secret under s.
    """

    rotations: dict[int, lattice.SwitchKey]
    packing: dict[int, lattice.SwitchKey]
    relin: lattice.SwitchKey
    switch: Array
    ggsw: pg.Poly

    @property
    def nbytes(self) -> int:
        """Size of all keys in bytes."""
        keys = [*self.rotations.values(), *self.packing.values(), self.relin]
        return sum(key.nbytes for key in keys) + int(self.switch.nbytes + self.ggsw.data.nbytes)

    def to(self, device: str | None = None) -> Keys:
        """Return the keys on a device, by default the current one."""
        ggsw = self.ggsw.to(device)
        switch = get_backend(ggsw.device).from_host(backend_of(self.switch).to_host(self.switch))
        rotations, packing = (
            {g: key.to(device) for g, key in keys.items()} for keys in (self.rotations, self.packing)
        )
        return Keys(rotations, packing, self.relin.to(device), switch, ggsw)


class Vectors(NamedTuple):
    """LWE vectors of slots, modulo q.

    value: an array (*batch, slots, 1 + m), where m is the length of the secret. turns: phase / q for a slot
    with the value 1.
    """

    value: Array
    turns: float


class Comparator:
    """The matrices of a parameter set, and the steps of a comparison."""

    def __init__(self, p: Parameters) -> None:
        self.p, q = p, p.ring.moduli
        self.to_coefficients = lattice.LinearTransform(
            to_coefficients(p.slots),
            ring=p.ring[:2],
            special=p.special,
            scale=Fraction(p.turns) * q[0] * q[1] / 2**p.scale,
        )
        self.from_packed = lattice.LinearTransform(
            from_packed(p.slots),
            ring=p.ring,
            special=p.special,
            scale=Fraction(2**p.scale * q[-1], 2**p.packed),
        )

    def to(self, device: str | None = None) -> Comparator:
        """Return the comparator with its matrices on a device, by default the current one."""
        moved = copy(self)
        moved.to_coefficients = self.to_coefficients.to(device)
        moved.from_packed = self.from_packed.to(device)
        return moved

    def keygen(self, seed: bytes) -> tuple[Secrets, Keys]:
        """Return fresh secrets and their public keys. The seed must be secret and used only once."""
        p = self.p
        Q, P = p.ring, p.special
        s = Q.join(P).ternary(seed=derive(seed, "ring")).ntt()
        with pg.device("cpu"):
            small = pg.Ring(p.short, 2).random(seed=derive(seed, "short")).data[0].astype(np.int64)
        of: Any = {"ring": Q, "special": P, "limbs_per_digit": Q.rows, "sigma": SIGMA}
        elements = {*self.to_coefficients.galois_elements, *self.from_packed.galois_elements, 2 * p.n - 1}
        merges = [2**j + 1 for j in range(1, p.log_n + 1)]
        bits, levels = p.switch_digits
        return Secrets(s, small), Keys(
            rotations=lattice.rotation_keys(
                s, sorted(elements), turned=True, seed=derive(seed, "rotations"), **of
            ),
            packing=lattice.rotation_keys(s, merges, seed=derive(seed, "packing"), **of),
            relin=lattice.switch_key(s, s * s, seed=derive(seed, "relin"), **of),
            switch=lattice.lwe_switch_key(
                small,
                _coefficients(s, Q),
                q=Q.moduli[0],
                bits=bits,
                levels=levels,
                tuniform=p.lwe_noise,
                seed=derive(seed, "switch"),
            ),
            ggsw=lattice.ggsw(
                small,
                s.restrict(Q).reshape(1),
                limbs_per_digit=Q.rows,
                special=P,
                sigma=SIGMA,
                seed=derive(seed, "ggsw"),
            ),
        )

    def encrypt(self, secret: Secrets, z: Any, seed: bytes) -> Ciphertext:
        """Encrypt real vectors (*batch, slots) with numbers from -1 to 1 under the secret key.

        The seed must be secret and used only once: two messages that are encrypted with one seed reveal their
        difference.

        Raises:
            ParameterError: the last axis of z does not have `slots` entries, or z has a number that is not
                real or is outside -1 to 1.
        """
        p, given = self.p, np.asarray(z)
        if given.shape[-1:] != (p.slots,) or given.dtype.kind not in "biuf":
            raise pg.ParameterError(
                f"z has shape {given.shape} and dtype {given.dtype}. Its shape must end in {p.slots} slots, "
                "and its numbers must be real."
            )
        if not np.all(abs(given) <= 1):  # true also if `given` contains NaN
            raise pg.ParameterError(
                "z contains a number that is not from -1 to 1. Divide z by a bound on all its numbers."
            )
        m = encode(np.tile(given, p.n // 2 // p.slots), p.ring, 2.0**p.scale)
        mask = p.ring.random(m.shape, seed=derive(seed, "mask"), domain="eval")
        e = p.ring.gaussian(SIGMA, batch=m.shape, seed=derive(seed, "noise")).ntt()
        value = pg.stack([m + e - mask * secret.ring.restrict(p.ring), mask], axis=-1)
        return Ciphertext(value, 2.0**p.scale)

    def decrypt(self, secret: Secrets, c: Ciphertext) -> Array:
        """Decrypt c to the real parts of its slots, an array of shape (*batch, slots)."""
        return np.asarray(decrypt(secret.ring, c)[..., : self.p.slots].real)

    def multiply(self, keys: Keys, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return x * y, relinearised and rescaled."""
        return Arithmetic(self.p.ring, keys.relin).product(x, y)

    # ---- steps ----

    def greater(self, keys: Keys, c: Ciphertext, threshold: Any = 0.0) -> Ciphertext:
        """Return ciphertexts with 1 in each slot above the threshold and 0 in the others.

        Slots of c are real numbers from -1 to 1. Only the first two limbs of c are read. The result has the
        scale 2^scale and `levels` + 1 limbs.

        Args:
            keys: the keys that `keygen` made, on the device of c.
            c: ciphertexts, (*batch, 2), with at least two limbs, whose scale is near 2^scale.
            threshold: a number from -1 to 1, or one for each slot, (*batch, slots).

        Raises:
            ParameterError: a threshold is outside -1 to 1, the shape of `threshold` does not broadcast to
                (*batch, slots), c has fewer than two limbs, or the scale of c is too large.
        """
        vectors = self.shorten(keys, self.extract(keys, c))
        return self.to_slots(keys, self.pack(keys, self.rotate(keys, vectors, threshold)))

    def extract(self, keys: Keys, c: Ciphertext) -> Vectors:
        """Move the slots to coefficients. Return an LWE vector for each slot, under the ring's secret."""
        p, q = self.p, self.p.ring.moduli[0]
        if c.limbs < 2:
            raise pg.ParameterError(
                f"c has {c.limbs} limb, but it must have at least two, because the matrix uses one. Compare "
                "before the last product."
            )
        c = transform(c, self.to_coefficients, keys.rotations)
        turns = c.scale / q
        if turns >= 0.25:
            raise pg.ParameterError(
                f"A slot of 1 makes {turns:.3f} turns of the circle at the scale of c, but it must make less "
                "than 1/4. Rescale c."
            )
        value, step = c.value.intt(), p.n // (2 * p.slots)
        vectors = [lattice.extract(value, i * step) for i in range(p.slots)]
        there = backend_of(vectors[0])
        with there.device_scope():
            together = there.xp.stack(vectors, axis=-2)
        return Vectors(together, turns)

    def shorten(self, keys: Keys, vectors: Vectors) -> Vectors:
        """Switch the vectors from the ring's secret to the short secret."""
        q, (bits, levels) = self.p.ring.moduli[0], self.p.switch_digits
        value = lattice.lwe_switch(vectors.value, keys.switch, q=q, bits=bits, levels=levels)
        return vectors._replace(value=value)

    def round(self, vectors: Vectors, threshold: Any = 0.0) -> Array:
        """Subtract the threshold from the vectors, and round them modulo 2N.

        Phases are rounded to the nearest multiple of q / (2N). So a phase just below 0 would be rounded to 0,
        and count as above the threshold. To prevent this, half of q / (2N) is subtracted too.
        """
        q, size = self.p.ring.moduli[0], 2 * self.p.n
        t = self._checked_threshold(threshold, vectors.value.shape[:-1])
        steps = np.rint((t * vectors.turns + 0.5 / size) * q).astype(np.int64)
        there = backend_of(vectors.value)
        steps = there.from_host(steps)
        with there.device_scope():
            moved = vectors.value.astype(np.int64)
            moved[..., 0] -= steps  # may become negative; lwe_modulus_switch reduces its input modulo q
        return lattice.lwe_modulus_switch(moved, q=q, to=size, centered_mean=True)

    def rotate(self, keys: Keys, vectors: Vectors, threshold: Any = 0.0) -> pg.Poly:
        """Compare by a blind rotation for each vector: return ciphertexts (*batch, slots, 2).

        The constant coefficient of a phase is 2^packed if the slot is above the threshold, and 0 otherwise.
        """
        p, exponents = self.p, -self.round(vectors, threshold)
        Q, half = p.ring, 1 << (p.packed - 1)
        with pg.device(keys.ggsw.device):
            value = Q.zeros((*exponents.shape[:-1], 2))
            value[..., 0] = Q([half] * p.n)
            value = lattice.blind_rotate(
                value, keys.ggsw, exponents, limbs_per_digit=Q.rows, special=p.special
            )
            value[..., 0] = value[..., 0] + Q([half])
        return value

    def pack(self, keys: Keys, c: pg.Poly) -> Ciphertext:
        """Pack the ciphertexts of all slots into one. Return ciphertexts of batch shape (*batch, 2).

        The result for slot k becomes coefficient k * N / slots. Packing multiplies phases by N. So c is first
        multiplied by 1 / N modulo Q. Thus the size of results and of their noise stays the same.
        """
        ring = self.p.ring
        packed = lattice.pack(c * pow(ring.n, -1, ring.modulus), keys.packing)
        return Ciphertext(packed.ntt(), 2.0**self.p.packed)

    def to_slots(self, keys: Keys, packed: Ciphertext) -> Ciphertext:
        """Move the packed results from coefficients to slots."""
        half = transform(packed, self.from_packed, keys.rotations)
        conjugate = lattice.rotate(half.value, keys.rotations[2 * self.p.n - 1])
        return Ciphertext(half.value + conjugate, half.scale)

    def _checked_threshold(self, threshold: Any, shape: tuple[int, ...]) -> Array:
        """Return `threshold` as floats, broadcast to `shape`.

        Raise ParameterError if a number is not from -1 to 1, or the shape does not broadcast.
        """
        t = np.asarray(threshold)
        if t.dtype.kind not in "biuf" or not np.all(abs(t) <= 1):
            raise pg.ParameterError(
                "threshold contains a number that is not real or not from -1 to 1. Use a threshold in this "
                "range, in which all slots lie."
            )
        try:
            return np.broadcast_to(t.astype(np.float64), shape)
        except ValueError:
            raise pg.ParameterError(
                f"The shape of threshold is {t.shape}. Give one number, or one for each slot with shape "
                f"{shape}."
            ) from None


# ---- matrices, given by their diagonals ----


def to_coefficients(slots: int) -> dict[int, Array]:
    """Return the matrix that moves x_k, the number in slot k, to coefficient k * N / (2 * slots).

    Slot j of the polynomial with these coefficients is the sum over k of
    x_k * exp(i pi 5^j k / (2 slots)).
    """
    matrix = _roots(slots)
    j = np.arange(slots)
    return {k: matrix[j, (j + k) % slots] for k in range(slots)}


def from_packed(slots: int) -> dict[int, Array]:
    """Return a matrix for moving x_k, coefficient k * N / slots, to slot k.

    The matrix maps the slots to a vector. This vector plus its conjugate has x_k in slot k.

    Let h = slots / 2. The polynomial with these coefficients has h different slots. These slots are
    `_roots(h)` times the vector t of the numbers t_k = x_k + i * x_(k + h), so the inverse of `_roots(h)`
    gives t. The matrix puts t / 2 in the first h slots and -i * t / 2 in the others. Adding the conjugate
    gives the real parts of t and of -i * t, which are the numbers x_k.
    """
    h = slots // 2
    inverse = _roots(h).conj().T / (2 * h)
    matrix = np.concatenate([inverse, -1j * inverse])
    j = np.arange(slots)
    return {k: matrix[j, (j + k) % h] for k in range(h)}


def _roots(slots: int) -> Array:
    """Return the matrix with the entry exp(i pi 5^j k / (2 slots)) in row j and column k."""
    powers = np.array([pow(5, j, 4 * slots) for j in range(slots)])
    return np.asarray(np.exp(2j * np.pi * (np.outer(powers, np.arange(slots)) % (4 * slots)) / (4 * slots)))


def _coefficients(s: pg.Poly, ring: pg.Ring) -> Array:
    """Return the centred coefficients of the secret s modulo the first prime of `ring`, on the host."""
    return s.restrict(ring[:1]).intt().cpu().to_int64()


# ---- measuring ----


class Step(NamedTuple):
    """Measurement of a step.

    found: the measured standard deviation of the error. theory: the standard deviation that
    `Parameters.deviations` gives.
    """

    name: str
    seconds: float
    found: float
    theory: float


class Result(NamedTuple):
    """Result of `run`.

    slots: the number of slots. close: the number of slots that are closer to the threshold than
    `Parameters.distance`. wrong: the number of the other slots whose results are wrong. relu: the largest
    error of the product of a slot and its result, over the slots whose results are right. steps: the
    measurements.
    """

    slots: int
    close: int
    wrong: int
    relu: float
    steps: list[Step]


def measure(
    comparator: Comparator, secret: Secrets, keys: Keys, z: Array, threshold: Any, seed: bytes
) -> Result:
    """Compare vectors (*batch, slots) with a threshold, and measure time and error of each step."""
    p, theory = comparator.p, comparator.p.deviations()
    steps: list[Step] = []
    start = perf_counter()

    def began() -> None:
        nonlocal start
        start = perf_counter()

    def ended(name: str, error: Array, end: float) -> None:
        steps.append(Step(name, end - start, float(np.sqrt(np.mean(error**2))), theory[name]))
        began()

    c = comparator.encrypt(secret, z, seed)
    began()
    vectors = comparator.extract(keys, c)
    own = _host(vectors.value)
    end = perf_counter()
    long = _turns(own, _coefficients(secret.ring, p.ring), p.ring.moduli[0])
    ended("coefficients", _centred(long - vectors.turns * z), end)

    short = comparator.shorten(keys, vectors)
    own = _host(short.value)
    end = perf_counter()
    phases = _turns(own, secret.short, p.ring.moduli[0])
    ended("short", _centred(phases - long), end)

    own = _host(comparator.round(short, threshold))
    end = perf_counter()
    turned = _turns(own, secret.short, 2 * p.n)
    moved = phases - threshold * vectors.turns - 0.25 / p.n
    ended("rounded", _centred(turned - moved), end)

    rotated = comparator.rotate(keys, short, threshold).cpu()
    end = perf_counter()
    bits = (turned < 0.5).astype(np.float64)  # the results that the rounded vectors give without noise
    at_zero = phase(secret.ring.cpu(), Ciphertext(rotated.ntt(), 1.0)).to_float64()[..., 0]
    ended("rotated", at_zero * 2.0**-p.packed - bits, end)

    there = rotated.to(keys.ggsw.device)
    began()
    packed = comparator.pack(keys, there)
    value = packed.value.cpu()
    end = perf_counter()
    coefficients = phase(secret.ring.cpu(), packed._replace(value=value)).to_float64()
    ended("packed", coefficients[..., :: p.n // p.slots] / packed.scale - bits, end)

    result = comparator.to_slots(keys, packed)
    result.value.cpu()
    end = perf_counter()
    ended("slots", comparator.decrypt(secret, result) - bits, end)

    relu = comparator.multiply(keys, c, result)
    relu.value.cpu()
    end = perf_counter()
    ended("product", comparator.decrypt(secret, relu) - bits * z, end)

    expected, is_close = z > threshold, abs(z - threshold) < p.distance
    wrong = (comparator.decrypt(secret, result) > 0.5) != expected
    error = abs(comparator.decrypt(secret, relu) - expected * z)
    return Result(
        slots=z.size,
        close=int(is_close.sum()),
        wrong=int((wrong & ~is_close).sum()),
        relu=float(np.max(error[~wrong], initial=0)),
        steps=steps,
    )


def _host(x: Array) -> Array:
    return backend_of(x).to_host(x)


def _turns(vectors: Array, secret: Array, q: int) -> Array:
    """Return phase / q of LWE vectors, in [0, 1). All arrays are on the host."""
    whole = np.concatenate([np.ones(1, np.int64), secret])
    return np.asarray(linalg.matmul(vectors, whole[:, None], q=q)[..., 0] / q)


def _centred(turns: Array) -> Array:
    """Reduce `turns`, differences of two values of phase / q, modulo 1 to [-1/2, 1/2]."""
    return np.asarray(turns - np.rint(turns))


def run(seed: bytes | None = None, name: str = "small", threshold: float = 0.25) -> Result:
    """Compare numbers with the threshold: random numbers, and numbers near it. name: a key of SETS."""
    seed = secrets.token_bytes(32) if seed is None else seed
    comparator = Comparator(SETS[name]).to()
    secret, keys = comparator.keygen(derive(seed, "keys"))
    z = samples(comparator.p, threshold)
    return measure(comparator, secret, keys, z, threshold, derive(seed, "z"))


def samples(p: Parameters, threshold: float) -> Array:
    """Return numbers to compare: random ones, and four at p.distance or 2 * p.distance from the threshold."""
    z = np.random.default_rng(1).uniform(-1, 1, p.slots)
    near = threshold + p.distance * np.array([-2, -1, 1, 2])[: p.slots]
    z[: len(near)] = np.clip(near, -1, 1)
    return np.asarray(z)


# ---- the command ----


def main(arguments: Sequence[str] | None = None) -> int:
    """Make keys, compare, print times and errors, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m polygpu.examples.comparison", description="Compare slots of CKKS with a threshold."
    )
    parser.add_argument("--logn", type=int, default=13, help="log2 of the degree N (13)")
    parser.add_argument("--log-slots", type=int, default=5, help="log2 of the number of slots (5)")
    parser.add_argument("--threshold", type=float, default=0.25, help="from -1 to 1 (0.25)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--insecure", action="store_true", help="allow parameters below 128 bits of security")
    options = parser.parse_args(arguments)
    try:
        p = replace(SETS["128 bits"], log_n=options.logn, log_slots=options.log_slots)
        describe(p)
        if not p.is_secure and not options.insecure:
            parser.error("These parameters are not secure. Use --insecure to run them for a benchmark.")
        with pg.device(options.device):
            _print_result(p, options.threshold)
    except pg.PolyGPUError as error:
        parser.error(str(error))
    return 0


def describe(p: Parameters) -> None:
    """Print sizes, security, scales, and how far from the threshold a value must be for a right result."""
    print(f"N = 2^{p.log_n}, {p.slots} slots; {p.ring.rows} + {p.special.rows} limbs")
    limit = p.log_qp_limit or "not recorded"
    print(f"ternary secret: log2 Q P {p.log_qp}, limit for 128 bits {limit}")
    print(f"short secret: {p.short} bits, noise of 2^{p.noise} of the modulus")
    if not p.is_secure:
        print("benchmark only, not secure")
    print(
        f"scales: 2^{p.scale} of slots, {p.turns} turns of the circle of TFHE, 2^{p.packed} of packed results"
    )
    print(f"right beyond {p.distance:.4f} from the threshold: 6 deviations of {p.deviation:.2g}")


def _print_result(p: Parameters, threshold: float) -> None:
    seed, start = secrets.token_bytes(32), perf_counter()
    comparator = Comparator(p).to()
    secret, keys = comparator.keygen(derive(seed, "keys"))
    print(f"set-up {perf_counter() - start:.1f} s, keys {keys.nbytes / 1e9:.2f} GB")
    result = measure(comparator, secret, keys, samples(p, threshold), threshold, derive(seed, "z"))
    print(f"{'step':14}{'seconds':>8}{'error':>10}{'theory':>10}")
    for step in result.steps:
        unit = "turns" if step.name in ("coefficients", "short", "rounded") else "of 1"
        print(f"{step.name:14}{step.seconds:8.3f}{step.found:10.2g}{step.theory:10.2g} {unit}")
    print(f"{result.slots - result.close} slots beyond the distance, {result.wrong} wrong; ", end="")
    print(f"x [x > t] right to 2^{math.log2(result.relu):.1f}")


if __name__ == "__main__":
    sys.exit(main())
