"""BFV homomorphic encryption (Fan and Vercauteren 2012, eprint 2012/144), written with the public API.

Plaintexts are polynomials modulo X^N + 1 and a prime t. Ciphertexts are polynomials modulo X^N + 1 and Q. A
ciphertext is one Poly of batch shape (components, *batch), with components c0, c1 and, after a product, c2.
Its phase c0 + c1 * s + c2 * s^2, where s is the secret, is Q/t times the plaintext, plus noise. The N slots
of a plaintext are its values at the roots of X^N + 1, which are integers mod t. Ciphertexts with the same
number of components are added by `+`. Products are relinearised by hybrid key switching (Han & Ki 2019/688),
with one special prime. By the HE standard, the default parameters have 128 bits of security.

This is an example, not a product: it is not constant time, nobody has reviewed it, and, like every
homomorphic scheme, BFV does not withstand chosen-ciphertext attacks.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import lattice
from polygpu._core.locks import cached_property

Array = NDArray[Any]

# For each ring degree, the largest bit length of the modulus of keys with 128 bits of security, for ternary
# secrets and noise of standard deviation 3.2 (HE standard 2018, table 1).
MAX_LOG_Q = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}


class Keys(NamedTuple):
    """A key set.

    secret: the secret polynomial s. public: an encryption of 0, of batch shape (2,). relin: a key that
    switches from s^2 to s.
    """

    secret: pg.Poly
    public: pg.Poly
    relin: lattice.SwitchKey


@dataclass(frozen=True)
class BFV:
    """The BFV scheme in rings of degree n.

    Plaintexts are modulo t, a prime that is 1 modulo 2n. Ciphertexts are modulo Q, the product of `limbs`
    primes. Keys are modulo Q * P, where P is a special prime.
    """

    n: int = 8192
    t: int = 65537
    bits: int = 47  # bit length of each prime of Q
    limbs: int = 4
    special_bits: int = 30  # bits of P; with 30, relinearisation adds less noise than multiplication

    @cached_property
    def ring(self) -> pg.Ring:
        """Return the ring of ciphertexts, mod Q."""
        return pg.Ring(self.n, pg.ntt_primes(self.n, bits=self.bits, count=self.limbs))

    @cached_property
    def special(self) -> pg.Ring:
        """Return the ring modulo P, the special prime."""
        return pg.Ring(self.n, pg.ntt_primes(self.n, bits=self.special_bits, exclude=self.ring))

    @cached_property
    def whole(self) -> pg.Ring:
        """Return the ring of keys, mod Q * P."""
        return self.ring.join(self.special)

    @cached_property
    def plain(self) -> pg.Ring:
        """Return the ring of plaintexts, mod t."""
        return pg.Ring(self.n, self.t)

    @cached_property
    def wide(self) -> pg.Ring:
        """Return the ring modulo Q times auxiliary primes. Integers from -N * Q^2 / 2 to N * Q^2 / 2 fit."""
        needed = (self.n * self.q**2).bit_length()
        # The list of ntt_primes begins with the primes of Q, which are left out here.
        auxiliary = pg.ntt_primes(self.n, bits=self.bits, count=-(-needed // (self.bits - 1)))[self.limbs :]
        return self.ring.join(pg.Ring(self.n, auxiliary))

    @property
    def q(self) -> int:
        """Q, the ciphertext modulus."""
        return self.ring.modulus

    @property
    def secure(self) -> bool:
        """Whether the HE standard gives these parameters 128 bits of security."""
        return self.whole.modulus.bit_length() <= MAX_LOG_Q.get(self.n, 0)

    def keygen(self, seed: bytes) -> Keys:
        """Make a key set. The seed must be secret and used only once."""
        s = self.whole.ternary(seed=derive(seed, "secret")).ntt()
        relin = lattice.switch_key(
            s, s * s, ring=self.ring, special=self.special, limbs_per_digit=1, seed=derive(seed, "relin")
        )
        secret = s.restrict(self.ring)
        return Keys(secret, zeros(secret, derive(seed, "public")), relin)

    def encrypt(self, public: pg.Poly, values: Array, seed: bytes) -> pg.Poly:
        """Encrypt integers of shape (*batch, N), taken mod t, as ciphertexts of batch shape (2, *batch)."""
        message = self.plain.from_slots(values)
        m = pg.rns.scale(message, self.q, self.ring)  # round(Q/t * message)
        u = self.ring.ternary(m.shape, seed=derive(seed, "u"))
        e = self.ring.binomial(21, batch=(2, *m.shape), seed=derive(seed, "e"))
        return pg.stack([public[0] * u + e[0] + m, public[1] * u + e[1]])

    def decrypt(self, secret: pg.Poly, ciphertext: pg.Poly) -> Array:
        """Decrypt to the slots, an int64 array (*batch, N) with entries in (-t/2, t/2)."""
        message = pg.rns.scale(self._phase(secret, ciphertext), self.t, self.plain)  # round(t/Q * phase)
        return np.asarray(self.plain(message.to_slots()).cpu().to_int64())  # integers in (-t/2, t/2)

    def noise_budget(self, secret: pg.Poly, ciphertext: pg.Poly) -> float:
        """Return log2 of (Q/2) / (t * the largest noise in the batch). If it is near 0, decryption fails."""
        noise = (self._phase(secret, ciphertext) * self.t).norm(math.inf)
        return math.log2(self.q) - 1 - math.log2(np.max(noise, initial=1))

    def multiply(self, x: pg.Poly, y: pg.Poly) -> pg.Poly:
        """Multiply ciphertexts of two components. The result is scaled by t/Q, and has three components."""
        x0, x1 = x.mod_up(self.wide).ntt()
        y0, y1 = y.mod_up(self.wide).ntt()
        product = pg.stack([x0 * y0, x0 * y1 + x1 * y0, x1 * y1])
        return pg.rns.scale(product, self.t, self.ring, divisor=self.ring)

    def relinearise(self, relin: lattice.SwitchKey, c: pg.Poly) -> pg.Poly:
        """Reduce three components to two: replace c2 by two components whose phase is c2 * s^2 plus noise."""
        square = lattice.key_switch(c[2], relin)
        return c[:2] + pg.stack([square[..., 0], square[..., 1]])

    def _phase(self, secret: pg.Poly, ciphertext: pg.Poly) -> pg.Poly:
        """Return the phase c0 + c1 * s + c2 * s^2 + ..., which is Q/t times the plaintext plus noise."""
        phase, *rest = reversed(list(ciphertext))
        for component in rest:
            phase = phase * secret + component
        return phase


def zeros(s: pg.Poly, seed: bytes, batch: tuple[int, ...] = ()) -> pg.Poly:
    """Return encryptions (e - a * s, a) of 0 under s, of batch shape (2, *batch).

    a is uniform, and e is centred binomial with standard deviation 3.24.
    """
    a = s.ring.random(batch, seed=derive(seed, "a")).ntt()
    return pg.stack([s.ring.binomial(21, batch=batch, seed=derive(seed, "e")) - a * s, a])


def derive(seed: bytes, label: str) -> bytes:
    """Derive a 32-byte seed from a seed and a label. Seeds with different labels are independent."""
    return hashlib.shake_256(label.encode() + b"\0" + seed).digest(32)


class Result(NamedTuple):
    """Result of `run`.

    slots: the number of slots. sum_ok, product_ok: whether all slots of the sum and of the product equal
    NumPy's results. fresh_budget, product_budget: noise budgets in bits, of a fresh ciphertext and of the
    product.
    """

    slots: int
    sum_ok: bool
    product_ok: bool
    fresh_budget: float
    product_budget: float


def run(seed: bytes | None = None) -> Result:
    """Encrypt two real vectors as fixed-point numbers, add and multiply them, and compare with NumPy."""
    seed = secrets.token_bytes(32) if seed is None else seed
    scheme = BFV()
    keys = scheme.keygen(derive(seed, "keys"))

    # Numbers in [-1, 1] are multiplied by 2^7 and rounded. So the absolute values of sums are at most 2^8 and
    # those of products at most 2^14, and both are below t/2.
    angle = np.arange(scheme.n)
    x, y = (np.array([round(128 * v) for v in f(angle)]) for f in (np.cos, np.sin))
    cx, cy = (scheme.encrypt(keys.public, v, derive(seed, label)) for v, label in ((x, "x"), (y, "y")))
    product = scheme.relinearise(keys.relin, scheme.multiply(cx, cy))
    return Result(
        slots=scheme.n,
        sum_ok=np.array_equal(scheme.decrypt(keys.secret, cx + cy), x + y),
        product_ok=np.array_equal(scheme.decrypt(keys.secret, product), x * y),
        fresh_budget=scheme.noise_budget(keys.secret, cx),
        product_budget=scheme.noise_budget(keys.secret, product),
    )
