"""CKKS: approximate arithmetic on encrypted complex vectors (Cheon et al. 2017), on the public API.

A ciphertext is a Poly (*batch, 2). Its phase c0 + c1 s is `scale` times the polynomial of its N/2 slots, plus
noise. Products multiply scales; `rescale` drops the last prime of Q, and divides phase and scale by it.
Products and rotations take keys (hybrid key switching, Han & Ki 2019/688). By the HE standard the default
parameters have 128 bits of security.

An example, not a product: it is not constant time, nobody has reviewed it, and decrypted values must not be
shown to others without additional noise (Li & Micciancio 2020/1533).
"""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

import polygpu as pg
from polygpu import lattice
from polygpu._core.locks import cached_property
from polygpu.examples import ckks_arithmetic
from polygpu.examples.bfv import MAX_LOG_Q, derive, zeros
from polygpu.examples.ckks_arithmetic import Arithmetic, Array, Ciphertext, decrypt


class Keys(NamedTuple):
    """secret: s. public: (2,), encrypts 0. relin: from s^2 to s.

    rotations[k], 0 < k < N/2: turns slots left by k, a turned key.
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
    bits: int = 40  # bits of the other primes, and of scales
    depth: int = 5
    size: int = 2

    @cached_property
    def ring(self) -> pg.Ring:
        """The ring of ciphertexts, modulo Q."""
        return pg.Ring(self.n, self._primes[: self.depth + 1])

    @cached_property
    def extra(self) -> pg.Ring:
        """The ring of the special primes, whose product is P."""
        return pg.Ring(self.n, self._primes[self.depth + 1 :])

    @cached_property
    def whole(self) -> pg.Ring:
        """The ring of keys, modulo Q P."""
        return self.ring.join(self.extra)

    @cached_property
    def _primes(self) -> list[int]:
        long = pg.ntt_primes(self.n, bits=self.first, count=self.size + 1)
        return [long[-1], *pg.ntt_primes(self.n, bits=self.bits, count=self.depth, exclude=long), *long[:-1]]

    @property
    def secure(self) -> bool:
        """Whether the HE standard gives these parameters 128 bits of security."""
        return self.whole.modulus.bit_length() <= MAX_LOG_Q.get(self.n, 0)

    # ---- keys ----

    def keygen(self, seed: bytes, rotations: Iterable[int] = ()) -> Keys:
        """A fresh key set, with keys of rotations, which count modulo N/2.

        As every seed here, this one must be secret and used only once.
        """
        s = self.whole.ternary(seed=derive(seed, "secret")).ntt()
        digits: Any = {"ring": self.ring, "special": self.extra, "limbs_per_digit": self.size}
        elements = {k: self._power(k) for k in sorted(set(map(self._turn, rotations)) - {0})}
        by_element = lattice.rotation_keys(
            s, elements.values(), turned=True, seed=derive(seed, "rotations"), **digits
        )
        relin = lattice.switch_key(s, s * s, seed=derive(seed, "relin"), **digits)
        public = zeros(s.restrict(self.ring), derive(seed, "public"))
        return Keys(s, public, relin, {k: by_element[g] for k, g in elements.items()})

    def _turn(self, k: int) -> int:
        """Return the rotation k modulo N/2."""
        return operator.index(k) % (self.n // 2)

    def _power(self, k: int) -> int:
        """The g for which X -> X^g turns slots left by k."""
        return pow(5, k, 2 * self.n)

    # ---- values ----

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
        return ckks_arithmetic.encode(np.broadcast_to(given, (*given.shape[:-1], slots)), ring, scale)

    def encrypt(self, public: pg.Poly, z: Any, seed: bytes) -> Ciphertext:
        """Encrypt vectors (*batch, N/2) of complex numbers, with scale 2^bits."""
        scale = 2.0**self.bits
        m = self.encode(z, self.ring, scale)
        u = self.ring.ternary(m.shape, seed=derive(seed, "u")).ntt()
        e = self.ring.binomial(21, batch=(2, *m.shape), seed=derive(seed, "e")).ntt()
        return Ciphertext(pg.stack([public[0] * u + e[0] + m, public[1] * u + e[1]], axis=-1), scale)

    def decrypt(self, secret: pg.Poly, c: Ciphertext) -> Array:
        """Return the slots, (*batch, N/2)."""
        return decrypt(secret, c)

    # ---- arithmetic ----

    def add(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """The sum. The operand with more limbs loses the surplus; scales must agree to 2^-20."""
        if not math.isclose(x.scale, y.scale, rel_tol=2.0**-20):
            raise pg.ParameterError(
                f"scales {x.scale} and {y.scale} differ. Rescale both, or encode with the other's."
            )
        ring = min((x.value.ring, y.value.ring), key=lambda ring: ring.rows)
        return Ciphertext(x.value.add(y.value, ring=ring), x.scale)

    def multiply(self, keys: Keys, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """The product, relinearised and rescaled."""
        return Arithmetic(self.ring, keys.relin).product(x, y)

    def multiply_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """The product with plain vectors or a number, rescaled; the scale stays that of x."""
        ring = x.value.ring
        m = self.encode(z, ring, ring.moduli[-1])
        return self.rescale(Ciphertext(x.value * m[..., None], x.scale * ring.moduli[-1]))

    def rescale(self, x: Ciphertext) -> Ciphertext:
        """Phase and scale divided by the last prime."""
        return Ciphertext(x.value.rescale(), x.scale / x.value.ring.moduli[-1])

    def rotate(self, keys: Keys, x: Ciphertext, amounts: Sequence[int]) -> list[Ciphertext]:
        """Slots turned left by each amount; keys has a key for each. Digits are made once (hoisting).

        Amounts count modulo N/2. An amount of 0 takes no key and gives x itself.
        """
        turns = [self._turn(k) for k in amounts]
        needed = sorted(set(turns) - {0})
        if missing := [k for k in needed if k not in keys.rotations]:
            raise pg.ParameterError(
                f"amounts: there is no key of rotations by {missing}. Pass them to keygen."
            )
        found = {0: x}
        if needed:
            turned = lattice.rotate_many(x.value, [keys.rotations[k] for k in needed])
            found |= {k: Ciphertext(value, x.scale) for k, value in zip(needed, turned, strict=True)}
        return [found[k] for k in turns]

    def matrix_vector(self, keys: Keys, matrix: Array, x: Ciphertext) -> Ciphertext:
        """The product of a small matrix (d, d) with x, whose slots repeat d numbers; takes keys 1 ... d - 1.

        The sum over k of diagonal k times x turned by k (Halevi & Shoup 2014/106), rescaled. d divides N/2.
        """
        matrix, slots = np.asarray(matrix), self.n // 2
        d = max(1, len(matrix)) if matrix.ndim else 1
        if matrix.shape != (d, d) or slots % d:
            raise pg.ParameterError(
                f"matrix: shape {matrix.shape} is not (d, d) with d a divisor of N/2 = {slots}. Fill it with "
                "zeros to a power of two."
            )
        rows, ring = np.arange(d), x.value.ring
        diagonals = {k: matrix[rows, (rows + k) % d] for k in range(d)}
        M = lattice.LinearTransform(diagonals, ring=ring, special=self.extra, scale=ring.moduli[-1])
        by_element = {self._power(k): key for k, key in keys.rotations.items()}
        value = lattice.transform(x.value, M.to(x.value.device), by_element, rescale=1)
        return Ciphertext(value, x.scale)

    def polynomial(self, keys: Keys, coefficients: Sequence[float], x: Ciphertext) -> Ciphertext:
        """c_0 + c_1 x + ... + c_d x^d, of the same scale; it uses up bit_length(d) limbs."""
        if not len(coefficients):
            raise pg.ParameterError("coefficients: there are none. Pass [0] for the polynomial 0.")
        return Arithmetic(self.ring, keys.relin).polynomial(x, coefficients, x.scale)

    def add_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """The sum with plain vectors or a number."""
        m = self.encode(z, x.value.ring, x.scale)
        parts = [x.value[..., 0] + m, x.value[..., 1] + 0 * m]  # batches may broadcast
        return Ciphertext(pg.stack(parts, axis=-1), x.scale)

    def fresh_deviation(self) -> float:
        """The standard deviation of a slot of a fresh ciphertext, by theory.

        The noise of the phase is u e + e_0 + e_1 s and a rounding. Its variance is sigma^2 (4 N / 3 + 1)
        + 1/12, because u and s are ternary. A slot is a sum of N coefficients times roots of size 1.
        """
        sigma2 = 10.5
        return math.sqrt(self.n * (sigma2 * (4 * self.n / 3 + 1) + 1 / 12)) / 2.0**self.bits


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
