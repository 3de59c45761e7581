"""CKKS: approximate arithmetic on encrypted complex vectors (Cheon et al. 2017), on the public API.

A ciphertext is a Poly (*batch, 2). Its phase c_0 + c_1 s is `scale` times the polynomial of its N/2 slots,
plus noise. Products multiply scales; rescaling drops the last prime of Q, and divides phase and scale by it.
Products and rotations take keys (hybrid key switching, Han & Ki 2019/688). By the HE standard the default
parameters have 128 bits of security.

An example, not a product: it is not constant time, nobody has reviewed it, and decrypted values must not be
shown to others without additional noise (Li & Micciancio 2020/1533).
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
    """secret: s. public: (2,), encrypts 0. relin: from s^2 to s.

    rotations: turned keys by their Galois elements, as `lattice.transform` takes them.
    """

    secret: pg.Poly
    public: pg.Poly
    relin: lattice.SwitchKey
    rotations: dict[int, lattice.SwitchKey]


@dataclass(frozen=True)
class CKKS:
    """Degree n; Q of a first prime and `depth` others; digits of `size` limbs, as many special primes.

    Special primes are as long as the first one and larger, so that their product is above that of any digit.
    """

    n: int = 16384
    first: int = 50  # bits of the first prime, which is left after all products
    bits: int = 40  # of scales; the other primes are near 2^bits
    depth: int = 5
    size: int = 2

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
        """Return the ring of keys, modulo Q P."""
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
        """The scale of fresh ciphertexts and of polynomials, 2^bits."""
        return 2.0**self.bits

    # ---- keys and ciphertexts ----

    def keygen(self, seed: bytes, rotations: Iterable[int] = ()) -> Keys:
        """Return a fresh key set with keys of rotations, which count modulo N/2.

        As every seed here, this one must be secret and used only once.
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
        """Encode vectors (*batch, N/2) as an evaluated plaintext of the ring; a number fills all slots.

        Raises:
            ParameterError: z has another length, or scale times a coefficient is too large for the ring.
            CoefficientError: z is not finite.
        """
        given, slots = np.asarray(z, np.complex128), self.n // 2
        if given.shape[-1:] not in ((), (1,), (slots,)):
            raise pg.ParameterError(
                f"z: shape {given.shape} does not end in N/2 = {slots}. Fill shorter vectors with zeros."
            )
        return encode(np.broadcast_to(given, (*given.shape[:-1], slots)), ring, scale)

    def encrypt(self, public: pg.Poly, z: Any, seed: bytes) -> Ciphertext:
        """Encrypt vectors (*batch, N/2) of complex numbers, with scale 2^bits."""
        m = self.encode(z, self.ring, self.scale)
        u = self.ring.ternary(m.shape, seed=derive(seed, "u")).ntt()
        e = self.ring.binomial(21, batch=(*m.shape, 2), seed=derive(seed, "e")).ntt()
        return Ciphertext(pg.fma(public, u[..., None], e + _first(m)), self.scale)

    def decrypt(self, secret: pg.Poly, c: Ciphertext) -> Array:
        """Return the slots, (*batch, N/2)."""
        return decrypt(secret, c)

    # ---- arithmetic; batches broadcast ----

    def add(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return the sum. The operand with more limbs loses the surplus.

        Raises:
            ParameterError: x and y have as many limbs, and scales that differ by more than 2^-20.
        """
        return add(x, y)

    def add_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """Return the sum with plain vectors or a number. `encode` says what it refuses."""
        return x._replace(value=x.value + _first(self.encode(z, x.value.ring, x.scale)))

    def multiply(self, keys: Keys, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return the product, relinearised and rescaled. The operand with more limbs loses the surplus."""
        return self._arithmetic(keys).product(x, y)

    def multiply_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """Return the product with plain vectors or a number, rescaled; the scale stays that of x.

        `encode` says what it refuses.
        """
        ring = x.value.ring
        m = self.encode(z, ring, ring.moduli[-1])
        return x._replace(value=(x.value * m[..., None]).rescale())

    def rotate(self, keys: Keys, x: Ciphertext, amounts: Sequence[int]) -> list[Ciphertext]:
        """Return x with its slots turned left by each amount. Digits are made once (hoisting).

        Amounts count modulo N/2. An amount of 0 takes no key and gives x itself.

        Raises:
            ParameterError: A key is missing.
        """
        elements = self._elements(keys, amounts)
        needed = sorted(set(elements) - {1})
        values = lattice.rotate_many(x.value, [keys.rotations[g] for g in needed])
        found = {1: x} | {g: x._replace(value=value) for g, value in zip(needed, values, strict=True)}
        return [found[g] for g in elements]

    def matrix_vector(self, keys: Keys, matrix: Array, x: Ciphertext) -> Ciphertext:
        """Return the product of a small matrix (d, d) with x, whose slots repeat d numbers. d divides N/2.

        It is the sum over k of diagonal k times x turned by k (Halevi & Shoup 2014/106), and takes one limb.
        Keys of rotations by 1 ... d - 1 suffice; about 2 sqrt(d) of them are used (baby and giant steps).

        Raises:
            ParameterError: The matrix has another shape, or a key is missing.
        """
        matrix, slots = np.asarray(matrix), self.n // 2
        d = max(1, len(matrix)) if matrix.ndim else 1
        if matrix.shape != (d, d) or slots % d:
            raise pg.ParameterError(
                f"matrix: shape {matrix.shape} is not (d, d) with d a divisor of N/2 = {slots}. Fill it with "
                "zeros to a power of two."
            )
        ring, rows = x.value.ring, np.arange(d)
        diagonals = {k: matrix[rows, (rows + k) % d] for k in range(d)}
        M = lattice.LinearTransform(diagonals, ring=ring, special=self.extra, scale=ring.moduli[-1])
        self._elements(keys, [k for k in range(d) if galois_element(self.n, k) in M.galois_elements])
        return transform(x, M.to(x.value.device), keys.rotations)

    def polynomial(self, keys: Keys, coefficients: Sequence[float], x: Ciphertext) -> Ciphertext:
        """Return c_0 + c_1 x + ... + c_d x^d with scale 2^bits. It takes bit_length(d) limbs.

        Raises:
            ParameterError: The list of coefficients is empty, or x has too few limbs.
            CoefficientError: A coefficient is not finite.
        """
        return self._arithmetic(keys).polynomial(x, coefficients, self.scale)

    def _arithmetic(self, keys: Keys) -> Arithmetic:
        return Arithmetic(self.ring, keys.relin)

    def _elements(self, keys: Keys, amounts: Sequence[int]) -> list[int]:
        """Return the Galois elements of rotations; raise ParameterError if a key is missing."""
        elements = {k: galois_element(self.n, k) for k in amounts}
        missing = sorted(k for k, g in elements.items() if g != 1 and g not in keys.rotations)
        if missing:
            raise pg.ParameterError(
                f"keys: there is no key of rotations by {[*map(int, missing)]}. Pass them to keygen."
            )
        return [elements[k] for k in amounts]

    def fresh_deviation(self) -> float:
        """Return the standard deviation of a slot of a fresh ciphertext, by theory.

        The noise of the phase is u e + e_0 + e_1 s and a rounding. Its variance is sigma^2 (4 N / 3 + 1)
        + 1/12, because u and s are ternary. A slot is a sum of N coefficients times roots of size 1.
        """
        sigma2 = 10.5
        return math.sqrt(self.n * (sigma2 * (4 * self.n / 3 + 1) + 1 / 12)) / self.scale


def _first(m: pg.Poly) -> pg.Poly:
    """Return the trivial ciphertexts (m, 0) of plaintexts."""
    return pg.stack([m, 0 * m], axis=-1)


class Result(NamedTuple):
    """What `run` found: root mean squares of the errors in the slots. theory: what `fresh` should be."""

    slots: int
    fresh: float
    theory: float
    product: float
    matrix: float
    polynomial: float


def run(seed: bytes | None = None) -> Result:
    """Encrypt two vectors; multiply them, multiply one by a matrix, evaluate a polynomial at the other."""
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
