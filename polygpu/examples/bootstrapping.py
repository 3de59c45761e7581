"""Bootstrapping of CKKS: a ciphertext without levels becomes one with levels, without being decrypted.

    python -m polygpu.examples.bootstrapping --logn 12 --insecure
    python -m polygpu.examples.bootstrapping --logn 16 --preset wide --device cuda

Let m be the phase c_0 + c_1 * s of the ciphertext (c_0, c_1) modulo the first prime q. Modulo a larger Q, the
phase is m + q * I, and the coefficients of I are small integers (ModRaise). CoeffToSlot moves the
coefficients to the slots. In each slot, a polynomial computes sin(2 pi x), which is nearly 2 pi m / q for
x = m / q + I (EvalMod). SlotToCoeff moves the results back to the coefficients.

Sources: Cheon, Han, Kim, Kim, Song 2018/153 (the idea); Bossuat, Troncoso-Pastoriza, Hubaux 2022/024 (a
sparse secret only in ModRaise); Bossuat, Mouchet, Troncoso-Pastoriza, Hubaux 2020/1203 (matrices, exact
scales); Chen, Chillotti, Song 2018/1043 (the matrices as an FFT); Han, Ki 2019/688 (double angles); Lee et
al. 2020/552 (arcsine).

This is an example, not a product: it is not constant time, nobody has reviewed it, and keys are not erased
from memory. It is meant to be secure against those who see only ciphertexts. Whoever also sees decrypted
slots to full precision can compute the secret key (Li, Micciancio 2020/1533). Keys encrypt functions of the
secrets under the secrets, which is believed to be safe (circular security). Small rings are not secure.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, TypedDict

import numpy as np

import polygpu as pg
from polygpu import lattice
from polygpu._core.locks import cached_property
from polygpu.examples.bfv import derive
from polygpu.examples.ckks_arithmetic import (
    Arithmetic,
    Array,
    Ciphertext,
    decrypt,
    encode,
    galois_element,
    transform,
)

# ---- parameters ----


@dataclass(frozen=True)
class Parameters:
    """Parameters of a bootstrap.

    The primes of Q are, in this order: the first prime, the primes of the levels, of SlotToCoeff, of EvalMod
    and of CoeffToSlot. A bootstrap uses up the primes from the end. Fields whose names end in `bits` are bit
    lengths of primes. The primes of EvalMod are near r = 2^mod_bits, and the scale in EvalMod is 2 r, because
    EvalMod computes terms of the form 2 * x * y - c. A ciphertext of x * y at the scale 4 r^2 is also a
    ciphertext of 2 * x * y at the scale 2 r^2. Rescaling divides this scale by r, so it is 2 r again.
    """

    log_n: int = 16
    first: int = 58  # bit length of the first prime
    scale: int = 48  # log2 of the scale of ciphertexts, and bit length of the primes of the levels
    levels: int = 3  # levels that are left after a bootstrap
    stc: int = 3  # number of matrices of SlotToCoeff, and of its primes
    stc_bits: int = 45
    mod_bits: int = 58
    cts: int = 4  # number of matrices of CoeffToSlot, and of its primes
    cts_bits: int = 56
    size: int = 4  # number of limbs in a digit, and number of special primes
    special_bits: int = 60
    weight: int = 192  # number of nonzero coefficients of the secret
    sparse_weight: int = 32  # number of nonzero coefficients of the sparse secret of ModRaise
    # ModRaise adds q * I to the phase. The coefficients of I are at most K = `bound` in absolute value,
    # except with the probability that `failure` gives.
    bound: int = 14
    degree: int = 31  # degree of the Chebyshev series that approximates the sine
    doublings: int = 3  # number of double-angle steps after the series
    arcsine: int = 0  # degree of the arcsine series that corrects the sine: 3, 5, or 0 for none
    giant: int = 2  # cost of a giant step / cost of a baby step; a larger value means more keys
    log_slots: int | None = None  # log2 of the number of different slots; None means that all N/2 differ
    real: bool = False  # whether all slots are real numbers; this halves the work of EvalMod

    def __post_init__(self) -> None:
        """Raise ParameterError if the parameters do not fit together."""
        least = {"log_n": 2, "levels": 0, "doublings": 0}
        ones = ("stc", "cts", "size", "weight", "sparse_weight", "bound", "degree", "giant")
        for name, smallest in (least | dict.fromkeys(ones, 1)).items():
            if getattr(self, name) < smallest:
                raise pg.ParameterError(f"{name}={getattr(self, name)} must be at least {smallest}.")
        if self.first <= self.scale:
            raise pg.ParameterError(f"first={self.first} bits must be more than scale={self.scale} bits.")
        longest = max(self.first, self.scale, self.stc_bits, self.mod_bits, self.cts_bits)
        if self.special_bits < longest:
            raise pg.ParameterError(
                f"special_bits={self.special_bits} must be at least {longest}, the bits of the largest other "
                "prime."
            )
        if self.arcsine not in _ARCSINE:
            raise pg.ParameterError(f"arcsine={self.arcsine} must be one of {[*_ARCSINE]}.")
        if max(self.weight, self.sparse_weight) > self.n:
            raise pg.ParameterError(
                f"weight={self.weight} and sparse_weight={self.sparse_weight} must be at most N={self.n}."
            )
        if self.log_slots is not None and not 1 <= self.log_slots < self.log_n:
            raise pg.ParameterError(f"log_slots={self.log_slots} must be from 1 to log_n - 1.")

    @property
    def n(self) -> int:
        """The degree N."""
        return 1 << self.log_n

    @property
    def slots(self) -> int:
        """The number of different slots. They repeat until all N/2 slots are full."""
        return self.n // 2 if self.log_slots is None else 1 << self.log_slots

    @property
    def mod_levels(self) -> int:
        """The number of primes of EvalMod."""
        return self.degree.bit_length() + self.doublings + _ARCSINE[self.arcsine][0]

    @cached_property
    def ring(self) -> pg.Ring:
        """Return the ring modulo Q, the product of the primes of ciphertexts."""
        return pg.Ring(self.n, self._primes[: -self.size])

    @cached_property
    def special(self) -> pg.Ring:
        """Return the ring modulo P, the product of the special primes."""
        return pg.Ring(self.n, self._primes[-self.size :])

    @cached_property
    def _primes(self) -> list[int]:
        chain = (
            (self.special_bits, self.size),
            (self.first, 1),
            (self.scale, self.levels),
            (self.stc_bits, self.stc),
            (self.mod_bits, self.mod_levels),
            (self.cts_bits, self.cts),
        )
        found: list[int] = []
        for bits, count in chain:  # the largest primes below 2^bits, so that scales stay near powers of two
            found += pg.ntt_primes(self.n, bits=bits, count=count, exclude=found) if count else []
        return found[self.size :] + found[: self.size]

    @property
    def log_qp(self) -> int:
        """The bit length of Q * P."""
        return self.ring.join(self.special).modulus.bit_length()

    @property
    def log_sparse(self) -> int:
        """The bit length of the modulus of `Keys.to_sparse`, the only key under the sparse secret."""
        return (self.ring.moduli[0] * self.special.moduli[0]).bit_length()

    @property
    def log_qp_limits(self) -> tuple[int, int]:
        """The largest log_qp and log_sparse with 128 bits of security, each 0 if no estimate is known."""
        limits = []
        for weight in (self.weight, self.sparse_weight):
            try:
                limits.append(lattice.max_log_q(self.n, secret=weight))
            except pg.ParameterError:
                limits.append(0)
        return limits[0], limits[1]

    @property
    def is_secure(self) -> bool:
        """Whether both secrets have 128 bits of security and the probability of failure is below 2^-40."""
        limits = self.log_qp_limits
        return self.failure < -40 and self.log_qp <= limits[0] and self.log_sparse <= limits[1]

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a bootstrap fails. A failed bootstrap gives wrong slots.

        ModRaise adds q * I to the phase. A bootstrap fails if |x| > K for a coefficient x of I, where K is
        the field `bound`. I is c_1 * s / q, rounded, where c_1 is the second component of the ciphertext and
        s is the sparse secret. So each coefficient is near a sum of h independent uniform numbers in
        [-1/2, 1/2], where h is the weight of s. The probability is at most the expected number of
        coefficients with |sum| > K + 1/2.
        """
        count = self.sparse_weight
        x = Fraction(count, 2) - self.bound - Fraction(1, 2)
        terms = ((-1) ** j * math.comb(count, j) * (x - j) ** count for j in range(math.floor(x) + 1))
        tail = 2 * sum(terms, Fraction(0)) / math.factorial(count)
        if not tail:
            return -math.inf
        return math.log2(tail.numerator) - math.log2(tail.denominator) + math.log2(2 * self.slots)


# For each degree of the arcsine series: (levels used up, factor by which the scale is multiplied).
_ARCSINE = {0: (0, 1.0), 3: (2, 4 * 6.0), 5: (3, 16 * 40 / 3)}

PRESETS = {
    "precise": Parameters(),
    "wide": Parameters(
        first=50, scale=44, levels=7, stc_bits=40, mod_bits=50, cts_bits=50, special_bits=50, size=6
    ),
}

# ---- matrices, given by their diagonals ----

Diagonals = dict[int, Array]  # from k to d_k: the matrix maps v to the sum over k of d_k * roll(v, -k)


def butterflies(slots: int) -> list[Diagonals]:
    """Return the layers of the map from bit-reversed coefficients to slots, in the order of application.

    The map takes complex numbers t_k, for k below `slots`, in bit-reversed order. Slot j is the sum over k of
    t_k * exp(i pi 5^j k / n) with n = 2 * slots. These are the slots of the polynomial whose coefficients k
    and k + n/2 are the real and the imaginary part of t_k.
    """
    found, order = [], 4 * slots
    powers = np.array([pow(5, j, order) for j in range(slots)])
    length = 2
    while length <= slots:
        half, j = length // 2, np.arange(slots) % length
        is_low = j < half
        w = np.exp(2j * np.pi * (powers[j % half] % (4 * length)) / (4 * length))
        # A layer maps v[j] to v[j] + w * v[j + half] if j is in the lower half of its block, and to
        # v[j - half] - w * v[j] if j is in the upper half.
        layer = {0: np.where(is_low, 1, -w)}
        _add(layer, half % slots, np.where(is_low, w, 0))
        _add(layer, -half % slots, np.where(is_low, 0, 1))
        found.append(layer)
        length *= 2
    return found


def _add(matrix: Diagonals, k: int, diagonal: Array) -> None:
    """Add `diagonal` to diagonal k of `matrix`, in place."""
    matrix[k] = matrix[k] + diagonal if k in matrix else diagonal


def inverse_butterfly(layer: Diagonals, slots: int) -> Diagonals:
    """Return the inverse of `layer`: half of the conjugate transpose of `layer`."""
    result: Diagonals = {}
    for k, d in layer.items():  # the entry (j, j + k) moves to (j + k, j)
        _add(result, -k % slots, np.conj(np.roll(d, k)) / 2)
    return result


def product(A: Diagonals, B: Diagonals, slots: int) -> Diagonals:
    """Return the matrix A @ B, which applies B first."""
    result: Diagonals = {}
    for a, da in A.items():
        for b, db in B.items():
            _add(result, (a + b) % slots, da * np.roll(db, -a))
    return result


def grouped(layers: Sequence[Diagonals], count: int, slots: int) -> list[Diagonals]:
    """Multiply neighbouring layers so that `count` matrices remain, in the order of application."""
    result, at = [], 0
    for i in range(count):
        size = len(range(i, len(layers), count))
        total: Diagonals = {0: np.ones(slots, np.complex128)}
        for layer in layers[at : at + size]:
            total = product(layer, total, slots)
        result.append(total)
        at += size
    return result


def baby_steps(diagonals: Diagonals, half: int, giant: int) -> int:
    """Return the number of baby steps for which a product of a matrix and slots takes the least work.

    Baby steps and giant steps are the two kinds of rotations in such a product. Both multiply by a key. A
    giant step also divides by P and makes digits, so it is assumed to cost as much as `giant` baby steps.
    `half` is N/2, half of the degree of the ring.
    """

    def work(baby: int) -> int:
        return len({k % baby for k in diagonals}) + giant * len({k // baby for k in diagonals})

    return min((1 << i for i in range(half.bit_length())), key=work)


def sine_series(p: Parameters) -> Array:
    """Return Chebyshev coefficients of cos(2 pi (K x - 1/4) / 2^doublings), a function of x.

    The double-angle steps turn that function into cos(2 pi K x - pi / 2) = sin(2 pi K x). K is p.bound. K x
    is an integer I plus a small fraction m / q, and integers near 0 are the most likely. So the coefficients
    are a least-squares fit near the integers, weighted by the probability of I. Near likely integers, the
    series is 5 to 10 bits more precise than an interpolation of the same degree on all of [-1, 1].
    """
    # Six points around each integer I, in the range of I + m / q.
    integers = np.arange(-p.bound, p.bound + 1)
    near = math.sqrt(2) * 2.0 ** (p.scale - p.first) * np.cos(np.pi * (np.arange(6) + 0.5) / 6)
    x = np.clip((integers[:, None] + near) / p.bound, -1, 1).ravel()
    # I is the rounded sum of h = p.sparse_weight uniform numbers in [-1/2, 1/2]. The probability of an
    # integer I is the density of a sum of h + 1 such numbers at I. The density is nearly Gaussian.
    density = np.exp(-(integers**2) * 6 / (p.sparse_weight + 1))
    weights = np.repeat(np.sqrt(np.maximum(density, 1e-9)), len(near))
    values = np.cos(2 * np.pi * (p.bound * x - 0.25) / 2**p.doublings)
    powers = np.polynomial.chebyshev.chebvander(x, p.degree)
    return np.asarray(np.linalg.lstsq(powers * weights[:, None], values * weights, rcond=1e-17)[0])


# ---- the bootstrap ----


class Keys(NamedTuple):
    """The public keys. They switch to the sparse secret and back, relinearise, and rotate.

    rotations: a dict from Galois elements to keys that lattice.rotation_keys made with turned=True. The
    elements are those of the matrices, those that ModRaise needs if slots repeat, and -1 for the conjugation.
    """

    to_sparse: lattice.SwitchKey
    from_sparse: lattice.SwitchKey
    relin: lattice.SwitchKey
    rotations: dict[int, lattice.SwitchKey]

    @property
    def nbytes(self) -> int:
        """Size of all keys in bytes."""
        return sum(key.nbytes for key in (*self[:3], *self.rotations.values()))

    def to(self, device: str | None = None) -> Keys:
        """Return the keys on a device, by default the current one."""
        rotations = {g: key.to(device) for g, key in self.rotations.items()}
        return Keys(self.to_sparse.to(device), self.from_sparse.to(device), self.relin.to(device), rotations)


class _Of(TypedDict):
    special: pg.Ring
    limbs_per_digit: int


class Bootstrapper:
    """The matrices and the polynomial of a parameter set; `bootstrap` refreshes ciphertexts with them."""

    def __init__(self, p: Parameters) -> None:
        self.p = p
        Q, slots, total = p.ring, p.slots, p.ring.rows
        self.mod_scale = 2.0 * 2**p.mod_bits
        self.repeats = p.n // 2 // slots  # number of copies of each slot in a ciphertext
        is_packed = self.repeats > 1 and not p.real  # real and imaginary parts share one vector of slots
        layers = butterflies(slots)

        # `factor` is the product of three factors: 1/2, because a number and its conjugate are added; 1/K,
        # which brings their sum into [-1, 1]; and 1/repeats, because ModRaise multiplies slots by `repeats`.
        to_slots = grouped([inverse_butterfly(layer, slots) for layer in reversed(layers)], p.cts, slots)
        if is_packed:
            to_slots[-1] = {k: np.concatenate([d, -1j * d]) for k, d in to_slots[-1].items()}
        factor = 1 / (2 * p.bound * self.repeats)
        self.to_slots = self._matrices(to_slots, total, factor, self.mod_scale / Q.moduli[0])

        self.series = sine_series(p)

        end, scale = total - p.cts - p.mod_levels, 2.0**p.scale
        to_coefficients = grouped(layers, p.stc, slots)
        if is_packed:  # the matrix `both` maps v to the sum v[:slots] + i * v[slots:], written twice
            one, i = np.ones(slots), 1j * np.ones(slots)
            both = {0: np.concatenate([one, i]), slots: np.concatenate([i, one])}
            first = {k: np.tile(d, 2) for k, d in to_coefficients[0].items()}
            to_coefficients[0] = product(first, both, 2 * slots)
        elif p.real:  # slot_to_coeff adds f(1/X) to the result f, which doubles f's constant coefficient
            half = {0: np.where(np.arange(slots), 1, 0.5)}
            to_coefficients[0] = product(to_coefficients[0], half, slots)
        last = self.mod_scale * _ARCSINE[p.arcsine][1]
        factor = Q.moduli[0] / (2 * np.pi * scale)
        self.to_coefficients = self._matrices(to_coefficients, end, factor, scale / last)

    def _matrices(
        self, matrices: Sequence[Diagonals], limbs: int, factor: float, gain: float
    ) -> list[lattice.LinearTransform]:
        """Return the encoded matrices. Matrix i has `limbs` - i limbs.

        All l matrices together multiply the slots by `factor` and the scale by `gain`. Each matrix
        multiplies the slots by the l-th root of `factor`, and the scale by the l-th root of `gain`.
        """
        p, found = self.p, []
        share, gain = factor ** (1 / len(matrices)), gain ** (1 / len(matrices))
        for i, matrix in enumerate(matrices):
            ring = p.ring[: limbs - i]
            rows = {k: share * d for k, d in matrix.items()}
            baby, scale = baby_steps(rows, p.n // 2, p.giant), ring.moduli[-1] * gain
            found.append(lattice.LinearTransform(rows, ring=ring, special=p.special, scale=scale, baby=baby))
        return found

    @property
    def matrices(self) -> list[lattice.LinearTransform]:
        """The list of the matrices of CoeffToSlot and then of SlotToCoeff."""
        return self.to_slots + self.to_coefficients

    @property
    def nbytes(self) -> int:
        """Size of the matrices in bytes."""
        return sum(matrix.nbytes for matrix in self.matrices)

    def to(self, device: str | None = None) -> Bootstrapper:
        """Return the bootstrapper with its matrices on a device, by default the current one."""
        moved = copy(self)
        moved.to_slots = [matrix.to(device) for matrix in self.to_slots]
        moved.to_coefficients = [matrix.to(device) for matrix in self.to_coefficients]
        return moved

    def keygen(self, seed: bytes, matrices: Sequence[lattice.LinearTransform] = ()) -> tuple[pg.Poly, Keys]:
        """Return a new secret and its public keys.

        The seed must be secret and used only once. `matrices` are further matrices by which the owner of the
        keys wants to multiply. They must have the same special primes as the bootstrapper.
        """
        p = self.p
        Q, P, top = p.ring, p.special, self.to_slots[-1].ring[:-1]
        whole, of = Q.join(P), _Of(special=P, limbs_per_digit=p.size)
        s = whole.ternary(weight=p.weight, seed=derive(seed, "secret")).ntt()
        sparse = whole.ternary(weight=p.sparse_weight, seed=derive(seed, "sparse")).ntt()
        used = [(g, Q) for g in self._trace] + [(2 * p.n - 1, top)]
        used += [(g, matrix.ring) for matrix in (*self.matrices, *matrices) for g in matrix.galois_elements]
        rings: dict[int, pg.Ring] = {}  # from a Galois element g to the largest ring that needs a key for g
        for g, ring in used:
            rings[g] = max(rings.get(g, ring), ring, key=lambda ring: ring.rows)

        def switch(to: pg.Poly, other: pg.Poly, name: str, ring: pg.Ring) -> lattice.SwitchKey:
            return lattice.switch_key(to, other, ring=ring, seed=derive(seed, name), **of)

        return s, Keys(
            to_sparse=lattice.switch_key(
                sparse, s, ring=Q[:1], special=P[:1], limbs_per_digit=1, seed=derive(seed, "to sparse")
            ),
            from_sparse=switch(s, sparse, "from sparse", Q),
            relin=switch(s, s * s, "relin", top),
            rotations=lattice.rotation_keys(
                s, rings, ring=rings, turned=True, seed=derive(seed, "rotations"), **of
            ),
        )

    @property
    def _trace(self) -> list[int]:
        """Galois elements of rotations by p.slots, 2 * p.slots, ..., n/4; empty if slots do not repeat."""
        return [galois_element(self.p.n, self.p.slots << i) for i in range(self.repeats.bit_length() - 1)]

    def encrypt(self, secret: pg.Poly, z: Any, seed: bytes, limbs: int = 1) -> Ciphertext:
        """Encrypt vectors (*batch, slots) under the secret key, modulo the first `limbs` limbs.

        The seed must be secret and used only once: two messages that are encrypted with one seed reveal their
        difference.
        """
        ring, scale, given = self.p.ring[:limbs], 2.0**self.p.scale, np.asarray(z, np.complex128)
        if given.shape[-1:] != (self.p.slots,):
            raise pg.ParameterError(f"The shape of z is {given.shape}. It must end in {self.p.slots} slots.")
        if self.p.real and given.imag.any():
            raise pg.ParameterError("z is complex, but the parameters are for real slots. Use real=False.")
        values = np.tile(given, self.repeats)
        m = encode(values, ring, scale)
        mask = ring.random(m.shape, seed=derive(seed, "mask"), domain="eval")
        e = ring.gaussian(3.2, batch=m.shape, seed=derive(seed, "noise")).ntt()
        return Ciphertext(pg.stack([m + e - mask * secret.restrict(ring), mask], axis=-1), scale)

    def decrypt(self, secret: pg.Poly, c: Ciphertext) -> Array:
        """Decrypt c to its slots, an array of shape (*batch, slots)."""
        return decrypt(secret, c)[..., : self.p.slots]

    # ---- steps ----

    def bootstrap(
        self, keys: Keys, c: Ciphertext, stage: Callable[[str], None] = lambda name: None
    ) -> Ciphertext:
        """Return a ciphertext of the same slots with `levels` levels. Only the first limb of c is read.

        The scale of c should be near 2^scale. With a larger scale the error of the sine is larger, and with a
        smaller scale the error from noise is larger.

        stage: a function that is called with the name of each step as it begins, and with "" at the end.
        """
        arithmetic, given = Arithmetic(self.p.ring, keys.relin), c.scale
        stage("ModRaise")
        c = self.mod_raise(keys, c)
        stage("CoeffToSlot")
        c = self.coeff_to_slot(keys, c)
        stage("EvalMod")
        c = self.eval_mod(arithmetic, c)
        stage("SlotToCoeff")
        c = self.slot_to_coeff(keys, c)
        stage("")
        return Ciphertext(c.value, c.scale * (given / 2.0**self.p.scale))

    def mod_raise(self, keys: Keys, c: Ciphertext) -> Ciphertext:
        """Turn the phase m modulo the first prime q into m + q * I modulo Q. The new scale is q.

        The coefficients of I are small integers.
        """
        Q = self.p.ring
        low = c.value.restrict(Q[:1])
        pair = lattice.key_switch(low[..., 1], keys.to_sparse, add=low[..., 0]).mod_up(Q)
        value = lattice.key_switch(pair[..., 1], keys.from_sparse, add=pair[..., 0])
        # This loop multiplies the coefficients at powers of X^repeats by `repeats`, and removes all others.
        for g in self._trace:
            value = value + lattice.rotate(value, keys.rotations[g])
        return Ciphertext(value, float(Q.moduli[0]))

    def coeff_to_slot(self, keys: Keys, c: Ciphertext) -> Ciphertext:
        """Move the coefficients, divided by q * K, to the slots, in bit-reversed order.

        q is the first prime, and K is p.bound.

        If there are N/2 complex slots, the result has two ciphertexts on the first axis: one for coefficients
        0 ... N/2 - 1, and one for the others.
        """
        for matrix in self.to_slots:
            c = transform(c, matrix, keys.rotations)
        other = self._conjugated(keys, c)
        total = c.value + other
        if self.repeats > 1 or self.p.real:
            return Ciphertext(total, c.scale)
        imaginary = (c.value - other).mul_monomial(-(self.p.n // 2))  # divides all slots by the complex i
        return Ciphertext(pg.stack([total, imaginary]), c.scale)

    def eval_mod(self, arithmetic: Arithmetic, c: Ciphertext) -> Ciphertext:
        """Compute sin(2 pi K x) for each slot x.

        K is p.bound. K * x is m / q plus an integer, so the sine is nearly 2 pi m / q. Here m is the phase
        before ModRaise, modulo the first prime q.
        """
        p = self.p
        c = arithmetic.polynomial(c, self.series, self.mod_scale, basis="chebyshev")
        for _ in range(p.doublings):
            c = arithmetic.doubled_product(c, c, 1.0)
        if not p.arcsine:
            return c
        square = arithmetic.product(c, c)
        if p.arcsine == 3:  # 6 arcsin(y) is nearly 6 y + y^3
            inner = arithmetic.plus(square, 6.0)
        else:
            # (40/3) arcsin(y) is nearly (40/3) y + (20/9) y^3 + y^5 = y ((y^2 + 10/9)^2 + 40/3 - 100/81).
            shifted = arithmetic.plus(square, 10 / 9)
            inner = arithmetic.plus(arithmetic.product(shifted, shifted), 40 / 3 - 100 / 81)
        c = arithmetic.product(c, inner)
        return Ciphertext(c.value, c.scale * (6.0 if p.arcsine == 3 else 40 / 3))

    def slot_to_coeff(self, keys: Keys, c: Ciphertext) -> Ciphertext:
        """Move the slots of c to the coefficients of the result."""
        if self.repeats == 1 and not self.p.real:
            real, imaginary = c.value
            c = Ciphertext(real + imaginary.mul_monomial(self.p.n // 2), c.scale)
        for matrix in self.to_coefficients:
            c = transform(c, matrix, keys.rotations)
        return Ciphertext(c.value + self._conjugated(keys, c), c.scale) if self.p.real else c

    def _conjugated(self, keys: Keys, c: Ciphertext) -> pg.Poly:
        return lattice.rotate(c.value, keys.rotations[2 * self.p.n - 1])


# ---- the command ----


class Result(NamedTuple):
    """Result of `run`: number of slots, number of levels, and -log2 of the largest error of a slot."""

    slots: int
    levels: int
    bits: float


def run(seed: bytes | None = None) -> Result:
    """Bootstrap random slots in a ring of degree 2^11, which is fast and not secure."""
    seed = secrets.token_bytes(32) if seed is None else seed
    p = Parameters(log_n=11)
    boot = Bootstrapper(p)
    secret, keys = boot.keygen(derive(seed, "keys"))
    z = np.exp(2j * np.pi * np.random.default_rng(1).random(p.slots))
    c = boot.bootstrap(keys, boot.encrypt(secret, z, derive(seed, "z")))
    return Result(p.slots, c.limbs - 1, bits(boot.decrypt(secret, c), z)[0])


def bits(found: Array, expected: Array) -> tuple[float, float]:
    """Return -log2 of the largest error of a slot, and -log2 of the mean error."""
    error = abs(found - expected)
    return -math.log2(error.max()), -math.log2(error.mean())


def parser_of(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all programs with a bootstrap have."""
    parser = argparse.ArgumentParser(prog=f"python -m polygpu.examples.{module}", description=description)
    parser.add_argument("--logn", type=int, default=16, help="log2 of the degree N (16)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--insecure", action="store_true", help="allow parameters below 128 bits of security")
    return parser


def refuse_insecure(parser: argparse.ArgumentParser, p: Parameters, is_allowed: bool) -> None:
    """End the program unless the parameters are secure or `is_allowed` is True."""
    if not p.is_secure and not is_allowed:
        parser.error("These parameters are not secure. Use --insecure to run them for a benchmark.")


def describe(p: Parameters) -> None:
    """Print sizes, security, the probability of failure, and the levels that a bootstrap leaves."""
    limits = [limit or "not recorded" for limit in p.log_qp_limits]
    kind = "real" if p.real else "complex"
    print(f"N = 2^{p.log_n}, {p.slots} {kind} slots; {p.ring.rows} + {p.size} limbs, digits of {p.size}")
    print(f"secret of weight {p.weight}: log2 Q P {p.log_qp}, limit for 128 bits {limits[0]}")
    print(f"secret of weight {p.sparse_weight}: log2 {p.log_sparse}, limit {limits[1]}")
    if not p.is_secure:
        print("benchmark only, not secure")
    print(f"P(some |I| > {p.bound}) < 2^{p.failure:.0f}")
    print(
        f"left: {p.levels} levels, {math.log2(p.ring[: p.levels + 1].modulus) - p.first:.0f} bits of log2 Q"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make keys, bootstrap, print times and precision, and return the exit status."""
    parser = parser_of("bootstrapping", "Bootstrap a ciphertext of CKKS.")
    parser.add_argument("--preset", choices=PRESETS, default="precise")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="FIELD=INT", help="other parameters of the preset"
    )
    parser.add_argument("--repeat", type=int, default=1, help="bootstraps in a row")
    options = parser.parse_args(arguments)
    known = {f.name for f in fields(Parameters)}
    changes: dict[str, Any] = {"log_n": options.logn}
    for text in options.set:
        name, _, number = text.partition("=")
        if name not in known or not number.lstrip("-").isdigit():
            parser.error(f"--set {text} must be FIELD=INT with one of the fields {', '.join(sorted(known))}.")
        changes[name] = int(number)
    try:
        p = replace(PRESETS[options.preset], **changes)
        describe(p)
        refuse_insecure(parser, p, options.insecure)
        _measure(p, options.device, options.repeat)
    except pg.PolyGPUError as error:
        parser.error(str(error))
    return 0


def _measure(p: Parameters, device: str, repeat: int) -> None:
    """Make keys, bootstrap random slots and slots that are all 1, and print times and precision."""
    start, seed = perf_counter(), secrets.token_bytes(32)
    with pg.device(device):
        boot = Bootstrapper(p).to()
        secret, keys = boot.keygen(derive(seed, "keys"))
        pg.memory.release()  # frees cached memory, because a bootstrap needs blocks of other sizes
        print(f"set-up {perf_counter() - start:.1f} s", end="; ")
        print(f"matrices {boot.nbytes / 1e9:.2f} GB, keys {keys.nbytes / 1e9:.2f} GB")
        rng = np.random.default_rng()
        z = rng.uniform(-1, 1, p.slots) + (0 if p.real else 1j * rng.uniform(-1, 1, p.slots))
        for name, values in (("random slots", z), ("all slots 1", np.ones(p.slots))):
            c = boot.encrypt(secret, values, derive(seed, name))
            print(f"{name}: fresh {_shown(boot, secret, c, values)}")
            for _ in range(repeat):
                watch = _Watch()
                c = boot.bootstrap(keys, c, watch)
                print(f"{watch}; {_shown(boot, secret, c, values)}")


class _Watch:
    """A stopwatch for the stages of a bootstrap. Each call waits for the device, then reads the clock."""

    def __init__(self) -> None:
        self._last = pg.Ring(2, 5).zeros()
        self._began: list[tuple[str, float]] = []

    def __call__(self, name: str) -> None:
        self._last.cpu()  # a copy to the host waits for all earlier work of the device
        self._began.append((name, perf_counter()))

    def __str__(self) -> str:
        parts = [f"{name} {end - start:.3f}" for (name, start), (_, end) in pairwise(self._began)]
        return f"bootstrap {self._began[-1][1] - self._began[0][1]:.3f} s ({', '.join(parts)})"


def _shown(boot: Bootstrapper, secret: pg.Poly, c: Ciphertext, expected: Array) -> str:
    worst, mean = bits(boot.decrypt(secret, c), expected)
    return f"bits of the worst slot {worst:.1f}, of the mean {mean:.1f}"


if __name__ == "__main__":
    sys.exit(main())
