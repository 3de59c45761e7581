"""CKKS: approximate arithmetic on encrypted complex vectors (Cheon et al. 2017), on the public API.

A ciphertext is a Poly (2, *batch). Its phase c0 + c1 s is `scale` times the polynomial of its N/2 slots, plus
noise. Products multiply scales; `rescale` drops the last prime of Q, and divides phase and scale by it.
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
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import fft, lattice
from polygpu.examples.bfv import MAX_LOG_Q, derive, switch_key, zeros

Array = NDArray[Any]


class Ciphertext(NamedTuple):
    """value: (2, *batch), evaluated, modulo the first limbs of Q. scale: of the phase over the slots."""

    value: pg.Poly
    scale: float


class Keys(NamedTuple):
    """secret: s. public: (2,), encrypts 0. relin: from s^2 to s. rotations[k]: from s(X^(5^k)) to s."""

    secret: pg.Poly
    public: pg.Poly
    relin: pg.Poly
    rotations: dict[int, pg.Poly]


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
        long = pg.ntt_primes(self.n, self.first, self.size + 1)
        return [long[-1], *pg.ntt_primes(self.n, self.bits, self.depth, exclude=long), *long[:-1]]

    @property
    def secure(self) -> bool:
        """Whether the HE standard gives these parameters 128 bits of security."""
        return self.whole.modulus.bit_length() <= MAX_LOG_Q.get(self.n, 0)

    # ---- keys ----

    def keygen(self, seed: bytes, rotations: Iterable[int] = ()) -> Keys:
        """A fresh key set, with keys of rotations.

        As every seed here, this one must be secret and used only once.
        """
        s = self.whole.ternary(seed=derive(seed, "secret")).ntt()
        keys = {
            k: self._switch_key(s, s.automorphism(self._power(k)), derive(seed, f"rotation {k}"))
            for k in rotations
        }
        public = zeros(s.restrict(self.ring), derive(seed, "public"))
        return Keys(s, public, self._switch_key(s, s * s, derive(seed, "relin")), keys)

    def _power(self, k: int) -> int:
        """The g for which X -> X^g turns slots left by k."""
        return pow(5, k % (self.n // 2), 2 * self.n)

    def _switch_key(self, s: pg.Poly, other: pg.Poly, seed: bytes) -> pg.Poly:
        """The key from another secret to s."""
        return switch_key(s, other, self.ring, self.extra, self.size, seed)

    # ---- values ----

    def encode(self, z: Any, ring: pg.Ring, scale: float) -> pg.Poly:
        """Vectors (*batch, N/2) as an evaluated plaintext of the ring; a number fills all slots."""
        slots = np.broadcast_to(np.asarray(z, np.complex128), (*np.shape(z)[:-1], self.n // 2))
        return ring(np.rint(fft.from_slots(np.ascontiguousarray(slots)) * scale).astype(np.int64)).ntt()

    def encrypt(self, public: pg.Poly, z: Any, seed: bytes) -> Ciphertext:
        """Encrypt vectors (*batch, N/2) of complex numbers, with scale 2^bits."""
        scale = 2.0**self.bits
        m = self.encode(z, self.ring, scale)
        u = self.ring.ternary(m.shape, seed=derive(seed, "u")).ntt()
        e = self.ring.binomial(21, (2, *m.shape), seed=derive(seed, "e")).ntt()
        return Ciphertext(pg.stack([public[0] * u + e[0] + m, public[1] * u + e[1]]), scale)

    def decrypt(self, secret: pg.Poly, c: Ciphertext) -> Array:
        """The slots, (*batch, N/2)."""
        phase = c.value[0] + c.value[1] * secret.restrict(c.value.ring)
        return np.asarray(fft.to_slots(phase.cpu().to_float64()) / c.scale)

    # ---- arithmetic ----

    def add(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """The sum. The operand with more limbs loses the surplus; scales must agree to 2^-20."""
        if not math.isclose(x.scale, y.scale, rel_tol=2.0**-20):
            raise ValueError(f"scales {x.scale} and {y.scale}: rescale both, or encode with the other's")
        a, b = self._level(x, y)
        return Ciphertext(a + b, x.scale)

    def multiply(self, keys: Keys, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """The product, relinearised and rescaled."""
        a, b = self._level(x, y)
        kept = pg.stack([a[0] * b[0], a[0] * b[1] + a[1] * b[0]], axis=-1)
        value = lattice.key_switch(a[1] * b[1], keys.relin, self.size, self.extra, add=kept, rescale=1)
        parts = pg.stack([value[..., 0], value[..., 1]])
        return Ciphertext(parts, x.scale * y.scale / a.ring.moduli[-1])

    def multiply_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """The product with plain vectors or a number, rescaled; the scale stays that of x."""
        ring = x.value.ring
        product = x.value * self.encode(z, ring, ring.moduli[-1])
        return self.rescale(Ciphertext(product, x.scale * ring.moduli[-1]))

    def rescale(self, x: Ciphertext) -> Ciphertext:
        """Phase and scale divided by the last prime."""
        return Ciphertext(x.value.rescale(), x.scale / x.value.ring.moduli[-1])

    def rotate(self, keys: Keys, x: Ciphertext, amounts: Sequence[int]) -> list[Ciphertext]:
        """Slots turned left by each amount; keys has a key for each. Digits are made once (hoisting)."""
        c = pg.stack([x.value[0], x.value[1]], axis=-1)
        gs, chosen = [self._power(k) for k in amounts], [keys.rotations[k] for k in amounts]
        turned = lattice.rotate_many(c, gs, chosen, self.size, self.extra)
        return [Ciphertext(pg.stack([t[..., 0], t[..., 1]]), x.scale) for t in turned]

    def matrix_vector(self, keys: Keys, matrix: Array, x: Ciphertext) -> Ciphertext:
        """The product of a small matrix (d, d) with x, whose slots repeat d numbers; takes keys 1 ... d - 1.

        The sum over k of diagonal k times x turned by k (Halevi & Shoup 2014/106).
        """
        d = len(matrix)
        terms = [x, *self.rotate(keys, x, range(1, d))]
        rows = np.arange(d)
        total = None
        for k, term in enumerate(terms):
            diagonal = np.resize(matrix[rows, (rows + k) % d], self.n // 2)
            product = self.multiply_plain(term, diagonal)
            total = product if total is None else self.add(total, product)
        assert total is not None
        return total

    def polynomial(self, keys: Keys, coefficients: Sequence[float], x: Ciphertext) -> Ciphertext:
        """c_0 + c_1 x + ... by Horner's rule: a product and a plain sum for each coefficient but the last.

        It takes at least two coefficients, and uses up a limb for each but c_0.
        """
        *lower, top = coefficients
        total = self.add_plain(self.multiply_plain(x, top), lower[-1])
        for c in reversed(lower[:-1]):
            total = self.add_plain(self.multiply(keys, total, x), c)
        return total

    def add_plain(self, x: Ciphertext, z: Any) -> Ciphertext:
        """The sum with plain vectors or a number."""
        value = x.value.copy()
        value[0] = value[0] + self.encode(z, value.ring, x.scale)
        return Ciphertext(value, x.scale)

    def _level(self, x: Ciphertext, y: Ciphertext) -> tuple[pg.Poly, pg.Poly]:
        """Both values modulo the limbs of the one that has fewer."""
        a, b = x.value, y.value
        shorter = min((a.ring, b.ring), key=lambda ring: len(ring.moduli))
        return a.restrict(shorter), b.restrict(shorter)

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
