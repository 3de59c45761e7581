"""CKKS: approximate arithmetic on encrypted complex vectors (Cheon et al. 2017), with the public API.

A ciphertext is a Poly of batch shape (*batch, 2) in a ring of degree N, modulo Q. Its phase c_0 + c_1 * s,
where s is the secret, is `scale` times the polynomial that encodes its N/2 slots, plus noise. The scale of a
product is the product of the scales. Rescaling divides phase and scale by the last prime of Q, and drops that
prime. Products and rotations need keys (hybrid key switching, Han & Ki 2019/688). By the HE standard, the
default parameters have 128 bits of security.

This is an example, not a product: it is not constant time, nobody has reviewed it, and decrypted values must
not be shown to others without additional noise (Li & Micciancio 2020/1533).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

import polygpu as pg
from polygpu import lattice
from polygpu._core.locks import cached_property
from polygpu.examples.bfv import MAX_LOG_Q, derive, zeros
from polygpu.examples.ckks_arithmetic import (
    Arithmetic,
    Array,
    Ciphertext,
    add,
    decrypt,
    encode,
    galois_element,
    transform,
)


class Keys(NamedTuple):
    """A key set.

    secret: the secret polynomial s. public: an encryption of 0, of batch shape (2,). relin: a key that
    switches from s^2 to s. rotations: a dict from Galois elements to keys that lattice.rotation_keys made
    with turned=True, as `lattice.transform` needs them.
    """

    secret: pg.Poly
    public: pg.Poly
    relin: lattice.SwitchKey
    rotations: dict[int, lattice.SwitchKey]


@dataclass(frozen=True)
class CKKS:
    """The CKKS scheme in a ring of degree n. Q is the product of a first prime and of `depth` others.

    A digit has `size` limbs, and there are `size` special primes. The special primes have as many bits as the
    first prime, and are larger than all primes of Q. So their product exceeds the product of the primes of
    any digit.
    """

    n: int = 16384
    first: int = 50  # bit length of the first prime, which is left after all rescaling
    bits: int = 40  # log2 of the scale; all primes but the first are near 2^bits
    depth: int = 5
    size: int = 2  # number of limbs in a digit, and number of special primes

    @cached_property
    def ring(self) -> pg.Ring:
        """Return the ring of ciphertexts, modulo Q."""
        return pg.Ring(self.n, self._primes[: self.depth + 1])

    @cached_property
    def extra(self) -> pg.Ring:
        """Return the ring of the special primes, whose product is P."""
        return pg.Ring(self.n, self._primes[self.depth + 1 :])

    @cached_property
    def whole(self) -> pg.Ring:
        """Return the ring of keys, modulo Q * P."""
        return self.ring.join(self.extra)

    @cached_property
    def _primes(self) -> list[int]:
        long = pg.ntt_primes(self.n, bits=self.first, count=self.size + 1)
        near = pg.ntt_primes(self.n, bits=self.bits, count=self.depth, exclude=long, near=True)
        return [long[-1], *near, *long[:-1]]

    @property
    def secure(self) -> bool:
        """Whether the HE standard gives these parameters 128 bits of security."""
        return self.whole.modulus.bit_length() <= MAX_LOG_Q.get(self.n, 0)

    @property
    def scale(self) -> float:
        """The scale of fresh ciphertexts and of the results of `polynomial`, 2^bits."""
        return 2.0**self.bits

    # ---- keys and ciphertexts ----

    def keygen(self, seed: bytes, rotations: Iterable[int] = ()) -> Keys:
        """Return a new key set with keys for rotations by these amounts.

        Amounts are taken modulo N/2. The seed must be secret and used only once.
        """
        s = self.whole.ternary(seed=derive(seed, "secret")).ntt()
        of: Any = {"ring": self.ring, "special": self.extra, "limbs_per_digit": self.size}
        elements = sorted({galois_element(self.n, k) for k in rotations} - {1})
        return Keys(
            secret=s,
            public=zeros(s.restrict(self.ring), derive(seed, "public")),
            relin=lattice.switch_key(s, s * s, seed=derive(seed, "relin"), **of),
            rotations=lattice.rotation_keys(s, elements, turned=True, seed=derive(seed, "rotations"), **of),
        )

    def encode(self, z: Any, ring: pg.Ring, scale: float | Fraction) -> pg.Poly:
        """Encode vectors (*batch, N/2) as evaluated plaintexts of the ring; a single number fills all slots.

        Raises:
            ParameterError: the length of z is neither N/2 nor 1, or scale times a coefficient is too large
                for the ring.
            CoefficientError: z is not finite.
        """
        given, slots = np.asarray(z, np.complex128), self.n // 2
        if given.shape[-1:] not in ((), (1,), (slots,)):
            raise pg.ParameterError(
                f"The shape of z is {given.shape}. It must end in N/2 = {slots} slots. Fill shorter vectors "
                "with zeros."
            )
        return encode(np.broadcast_to(given, (*given.shape[:-1], slots)), ring, scale)

    def encrypt(self, public: pg.Poly, z: Any, seed: bytes) -> Ciphertext:
        """Encrypt vectors (*batch, N/2) of complex numbers, with scale 2^bits."""
        m = self.encode(z, self.ring, self.scale)
        u = self.ring.ternary(m.shape, seed=derive(seed, "u")).ntt()
        e = self.ring.binomial(21, batch=(*m.shape, 2), seed=derive(seed, "e")).ntt()
        return Ciphertext(pg.fma(public, u[..., None], e + _first(m)), self.scale)

    def decrypt(self, secret: pg.Poly, c: Ciphertext) -> Array:
        """Decrypt c to its slots, an array of shape (*batch, N/2)."""
        return decrypt(secret, c)

    # ---- arithmetic; batches broadcast ----

    def add(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return x + y modulo the limbs that both have; see `ckks_arithmetic.add`.

        Raises:
            ParameterError: the scales differ by more than a factor 1 + 2^-20 and cannot be made equal. Scales
                cannot be made equal if x and y have the same number of limbs, or if no integer factor is
                close enough.
        """
        return add(x, y)

    def add_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """Return x + z. z is not encrypted and is a number or vectors. For errors see `encode`."""
        return x._replace(value=x.value + _first(self.encode(z, x.value.ring, x.scale)))

    def multiply(self, keys: Keys, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return x * y, relinearised and rescaled. Limbs that only one operand has are ignored."""
        return self._arithmetic(keys).product(x, y)

    def multiply_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """Return x * z, rescaled, with the scale of x.

        z is not encrypted and is a number or vectors. For errors see `encode`.
        """
        ring = x.value.ring
        m = self.encode(z, ring, ring.moduli[-1])
        return x._replace(value=(x.value * m[..., None]).rescale())

    def rotate(self, keys: Keys, x: Ciphertext, amounts: Sequence[int]) -> list[Ciphertext]:
        """Return one rotation of the slots of x to the left for each amount.

        The digits of x are made only once (hoisting). Amounts are taken modulo N/2. An amount of 0 does not
        need a key, and gives x itself.

        Raises:
            ParameterError: `keys` has no key for an amount.
        """
        elements = self._elements(keys, amounts)
        needed = sorted(set(elements) - {1})
        values = lattice.rotate_many(x.value, [keys.rotations[g] for g in needed])
        found = {1: x} | {g: x._replace(value=value) for g, value in zip(needed, values, strict=True)}
        return [found[g] for g in elements]

    def matrix_vector(self, keys: Keys, matrix: Array, x: Ciphertext) -> Ciphertext:
        """Return the product of a matrix of shape (d, d) and the vector in the slots of x.

        The slots of x are a vector of d numbers, repeated, so d divides N/2. The result is the sum over k of
        diagonal k times x rotated left by k (Halevi & Shoup 2014/106). It has one limb less than x. Keys for
        rotations by 1 ... d - 1 are enough. About 2 sqrt(d) of them are used (baby-step giant-step method).

        Raises:
            ParameterError: the matrix is not square, d does not divide N/2, or a key is missing.
        """
        matrix, slots = np.asarray(matrix), self.n // 2
        d = max(1, len(matrix)) if matrix.ndim else 1
        if matrix.shape != (d, d) or slots % d:
            raise pg.ParameterError(
                f"The shape of matrix is {matrix.shape}. It must be (d, d) with d a divisor of N/2 = "
                f"{slots}. Fill the matrix with zeros up to a power of two."
            )
        ring, rows = x.value.ring, np.arange(d)
        diagonals = {k: matrix[rows, (rows + k) % d] for k in range(d)}
        M = lattice.LinearTransform(diagonals, ring=ring, special=self.extra, scale=ring.moduli[-1])
        self._elements(keys, [k for k in range(d) if galois_element(self.n, k) in M.galois_elements])
        return transform(x, M.to(x.value.device), keys.rotations)

    def polynomial(self, keys: Keys, coefficients: Sequence[float], x: Ciphertext) -> Ciphertext:
        """Return c_0 + c_1 * x + ... + c_d * x^d.

        The scale of the result is 2^bits, and it has bit_length(d) limbs less than x.

        Raises:
            ParameterError: the list of coefficients is empty, or x has too few limbs.
            CoefficientError: a coefficient is not finite.
        """
        return self._arithmetic(keys).polynomial(x, coefficients, self.scale)

    def _arithmetic(self, keys: Keys) -> Arithmetic:
        return Arithmetic(self.ring, keys.relin)

    def _elements(self, keys: Keys, amounts: Sequence[int]) -> list[int]:
        """Return the Galois elements of rotations by `amounts`. Raise ParameterError if a key is missing."""
        elements = {k: galois_element(self.n, k) for k in amounts}
        missing = sorted(k for k, g in elements.items() if g != 1 and g not in keys.rotations)
        if missing:
            raise pg.ParameterError(
                f"keys has no keys of rotations by {[*map(int, missing)]}. Pass these numbers to keygen."
            )
        return [elements[k] for k in amounts]

    def fresh_deviation(self) -> float:
        """Return the theoretical standard deviation of the error in a slot of a fresh ciphertext.

        The error of the phase is u * e + e_0 + e_1 * s plus the rounding error, where u is the random ternary
        factor of the encryption, and e, e_0 and e_1 have the variance sigma^2 = 10.5. The variance of the sum
        is sigma^2 * (4 N / 3 + 1) + 1/12, because u and s are ternary. The error of a slot is the sum of N
        such errors times roots of unity.
        """
        sigma2 = 10.5
        return math.sqrt(self.n * (sigma2 * (4 * self.n / 3 + 1) + 1 / 12)) / self.scale


def _first(m: pg.Poly) -> pg.Poly:
    """Return the trivial ciphertexts (m, 0) of plaintexts m."""
    return pg.stack([m, 0 * m], axis=-1)


class Result(NamedTuple):
    """Result of `run`: the number of slots, and the root mean square of the error in them for each operation.

    fresh: the error of a fresh ciphertext. theory: the theoretical value of `fresh`.
    """

    slots: int
    fresh: float
    theory: float
    product: float
    matrix: float
    polynomial: float


def run(seed: bytes | None = None) -> Result:
    """Encrypt two vectors, multiply them, multiply one by a matrix, evaluate a polynomial at the other."""
    seed = secrets.token_bytes(32) if seed is None else seed
    scheme, d = CKKS(), 8
    keys = scheme.keygen(derive(seed, "keys"), range(1, d))
    rng = np.random.default_rng(1)
    x = np.resize(rng.uniform(-1, 1, d), scheme.n // 2)
    y = rng.uniform(-1, 1, scheme.n // 2)
    matrix = rng.uniform(-1, 1, (d, d))
    cx, cy = (scheme.encrypt(keys.public, v, derive(seed, name)) for v, name in ((x, "x"), (y, "y")))
    sigmoid = [0.5, 0.2500, 0, -0.0208]  # 1 / (1 + exp(-y)) near 0
    values = np.polynomial.polynomial.polyval(y, sigmoid)

    def error(c: Ciphertext, expected: Array) -> float:
        return float(np.sqrt(np.mean(abs(scheme.decrypt(keys.secret, c) - expected) ** 2)))

    return Result(
        slots=scheme.n // 2,
        fresh=error(cx, x),
        theory=scheme.fresh_deviation(),
        product=error(scheme.multiply(keys, cx, cy), x * y),
        matrix=error(scheme.matrix_vector(keys, matrix, cx), np.resize(matrix @ x[:d], scheme.n // 2)),
        polynomial=error(scheme.polynomial(keys, sigmoid, cy), values),
    )
