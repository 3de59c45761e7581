"""TFHE: bootstrapping that applies a table to an encrypted message.

A message m in 0 ... p - 1 is encrypted as an LWE vector (b, a) modulo q. Its phase b + <a, s> is m q / (2 p)
plus noise, so the upper half of the circle stays free. `bootstrap` gives an encryption of f(m) for any table
f, with noise that does not depend on the noise before. Ciphertexts add up without a key, as long as messages
stay below p and noise below q / (4 p). Sources: Chillotti et al. 2018/421; Joye 2021/1402 is a guide.

Polynomials have 128 bits of security by the HE standard of 2018: log2(q / sigma) is at most 25.3 for N = 1024
and 52.3 for N = 2048. The standard assumes ternary secrets; here they are bits, which is a little weaker.
Vectors of 630 entries are those of the TFHE library of 2020; newer estimates of attacks give them about 120
bits. Vectors of 742 entries, for messages of four bits, have less noise. An example, not a product: it is not
constant time, and nobody has reviewed it.
"""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import lattice, linalg
from polygpu._backends import backend_of, current_device, get_backend
from polygpu._core.locks import cached_property
from polygpu.examples.bfv import derive

Array = NDArray[Any]


class Keys(NamedTuple):
    """small: the bits of s. bootstrap: GGSW encryptions of them under the ring's secret, (n, 2, levels, 2).

    switch: a matrix (N levels, n + 1). The digits of a mask under the ring's secret, times this matrix, give
    a vector under s.
    """

    small: Array
    bootstrap: pg.Poly
    switch: Array

    def to(self, device: str) -> Keys:
        """The keys on a device, to bootstrap vectors that lie there. `small` stays on the host."""
        bootstrap = self.bootstrap.to(device)
        return Keys(self.small, bootstrap, get_backend(bootstrap.device).from_host(self.switch))


@dataclass(frozen=True)
class TFHE:
    """Messages modulo p, LWE vectors of n entries, polynomials of degree N modulo a prime of `bits` bits."""

    p: int = 4
    n: int = 630
    N: int = 1024
    bits: int = 31
    noise: int = 17  # b for vectors: their noise is nearly uniform on [-2^b, 2^b] (Ring.tuniform)
    ring_noise: int = 7  # b for polynomials
    digits: tuple[int, int] = (7, 3)  # bits and levels, for products with GGSW ciphertexts
    switch_digits: tuple[int, int] = (2, 8)  # for key switching

    @cached_property
    def ring(self) -> pg.Ring:
        """Polynomials of degree N modulo q."""
        return pg.Ring(self.N, pg.ntt_primes(self.N, bits=self.bits))

    @property
    def q(self) -> int:
        """The modulus of everything."""
        return self.ring.modulus

    @property
    def step(self) -> int:
        """The phase of message 1."""
        return (self.q + self.p) // (2 * self.p)

    # ---- keys ----

    @pg.device("cpu")
    def keygen(self, seed: bytes) -> Keys:
        """A fresh key set. As every seed here, this one must be secret and used only once."""
        small, large = (
            pg.Ring(size, 2).random(seed=derive(seed, label)).data[0].astype(np.uint64)
            for size, label in ((self.n, "small"), (self.N, "large"))
        )
        bits, levels = self.digits
        weights = np.array(lattice.gadget(self.ring, bits=bits, levels=levels), np.uint64)
        hidden = np.zeros((self.n, 2, levels, 2, 1, self.N), self.ring.dtype)
        for component in range(2):  # row (component, l) has s_i g_l in that component
            hidden[:, component, :, component, 0, 0] = small[:, None] * weights
        zeros = self._ring_zeros(large, hidden.shape[:3], derive(seed, "bootstrap"))
        bits, levels = self.switch_digits
        weights = np.array(lattice.gadget(self.ring, bits=bits, levels=levels), np.uint64)
        switch = self._lwe_zeros(small, (self.N, levels), derive(seed, "switch"))
        switch[..., 0] = self._sum(switch[..., 0], large[:, None] * weights)
        rows = switch.reshape(self.N * levels, self.n + 1).astype(self.ring.dtype)
        return Keys(small, (zeros + self.ring.from_residues(hidden)).ntt(), rows)

    def _ring_zeros(self, s: Array, batch: tuple[int, ...], seed: bytes) -> pg.Poly:
        """RLWE encryptions of zero, (*batch, 2), in coefficients."""
        secret, mask = self.ring(s).ntt(), self.ring.random(batch, seed=derive(seed, "mask"))
        noise = self.ring.tuniform(self.ring_noise, batch=batch, seed=derive(seed, "noise"))
        return pg.stack([noise - (mask.ntt() * secret).intt(), mask], axis=-1)

    def _lwe_zeros(self, s: Array, batch: tuple[int, ...], seed: bytes) -> Array:
        """LWE encryptions of zero, uint64 (*batch, n + 1): the body, then the mask."""
        numbers, count = pg.Ring(1, self.q), math.prod(batch)
        mask = numbers.random(count * self.n, seed=derive(seed, "mask")).data.reshape(count, self.n)
        noise = numbers.tuniform(self.noise, batch=count, seed=derive(seed, "noise"))
        product = linalg.matmul(mask, s[:, None], q=self.q).reshape(count, 1, 1)
        body = (noise - numbers.from_residues(product)).data[:, 0]
        return np.concatenate([body, mask], axis=1).astype(np.uint64).reshape(*batch, self.n + 1)

    # ---- messages ----

    @pg.device("cpu")
    def encrypt(self, keys: Keys, messages: Array, seed: bytes) -> Array:
        """Encrypt integers in 0 ... p - 1, of shape (*batch,), as vectors (*batch, n + 1)."""
        given = np.asarray(messages)
        if given.size and given.dtype.kind not in "iu":
            raise pg.errors.CoefficientError(
                f"messages: dtype {given.dtype} must be an integer dtype. Round them first."
            )
        if np.min(given, initial=0) < 0 or np.max(given, initial=0) >= self.p:
            raise pg.ParameterError(
                f"messages: one is not in 0 ... {self.p - 1}. Reduce them modulo {self.p}."
            )
        vectors = self._lwe_zeros(keys.small, given.shape, seed)
        vectors[..., 0] = self._sum(vectors[..., 0], given.astype(np.uint64) * np.uint64(self.step))
        return vectors

    def decrypt(self, keys: Keys, vectors: Array) -> Array:
        """The message nearest to each phase."""
        nearest = np.rint(self.phase(keys, vectors) * 2 * self.p).astype(np.int64)
        return np.asarray(nearest % (2 * self.p))

    def phase(self, keys: Keys, vectors: Array) -> Array:
        """(b + <a, s>) / q, in [0, 1), on the host."""
        secret = np.concatenate([np.ones(1, np.uint64), keys.small])
        own = backend_of(vectors).to_host(vectors)
        return np.asarray(linalg.matmul(own, secret[:, None], q=self.q)[..., 0] / self.q)

    def add(self, *terms: Array) -> Array:
        """The sum of the messages, which must stay below p."""
        return reduce(self._sum, terms)

    def _sum(self, x: Array, y: Array) -> Array:
        """Return the sum modulo q of residues. It is right even if the sum of the words exceeds 2^64."""
        rest = np.uint64(self.q) - y
        return backend_of(x).xp.where(x >= rest, x - rest, x + y)  # type: ignore[no-any-return]

    # ---- bootstrapping ----

    def bootstrap(self, keys: Keys, vectors: Array, *tables: Callable[[int], int]) -> Array:
        """Encryptions of f(m) for each table f: (len(tables), *batch, n + 1), from (*batch, n + 1).

        It computes where the keys and the vectors are.
        """
        # Minus the phase, rounded modulo 2N: X^-phase times the table's polynomial has f(m) as coefficient 0.
        bits = (2 * self.N).bit_length() - 1
        exponents = -lattice.decompose_integers(vectors, q=self.q, bits=bits, levels=1)[..., 0]
        with pg.device(keys.bootstrap.device):
            acc = self.ring.zeros((len(tables), *vectors.shape[:-1], 2))
            for i, f in enumerate(tables):
                acc[i, ..., 0] = self.ring(self._table(f))
        turned = lattice.blind_rotate(acc, keys.bootstrap, exponents, bits=self.digits[0])
        return self._switched(keys, lattice.extract(turned, 0))

    def _table(self, f: Callable[[int], int]) -> list[int]:
        """Coefficients that are f(m) around m N / p. Those just below 0 come last, with the other sign."""
        if 2 * self.p > self.N:
            raise pg.ParameterError(f"N = {self.N} is less than 2 p = {2 * self.p}. Take a larger N.")
        results = [operator.index(f(m)) for m in range(self.p)]
        if wrong := [x for x in results if not 0 <= x < self.p]:
            raise pg.ParameterError(
                f"tables: {wrong[0]} is not in 0 ... {self.p - 1}. Reduce it modulo {self.p}."
            )
        half, values = self.N // (2 * self.p), [x * self.step for x in results]
        around = [values[(j + half) * self.p // self.N] for j in range(self.N - half)]
        return around + [-values[0]] * half

    def _switched(self, keys: Keys, vectors: Array) -> Array:
        """Switch vectors from the ring's secret to s."""
        bits, levels = self.switch_digits
        digits = lattice.decompose_integers(vectors[..., 1:], q=self.q, bits=bits, levels=levels)
        digits = digits.reshape(*vectors.shape[:-1], self.N * levels)
        switched: Array = linalg.matmul(digits, keys.switch, q=self.q).astype(np.uint64)
        switched[..., 0] = self._sum(switched[..., 0], vectors[..., 0])
        return switched

    def deviation(self) -> float:
        """The standard deviation of a bootstrapped phase over q, by theory, for independent noises.

        It adds up variances as in Chillotti et al. 2018/421, theorems 4.1 and 6.3. Digits to the base B are
        uniform, with squares of (B^2 + 2) / 12 on average. What l digits leave out has the variance
        1 / (12 B^(2 l)). Half of a secret's bits are 1.
        """
        bits, levels = self.digits
        products = 2 * levels * self.N * (4**bits + 2) / 12 * self._variance(self.ring_noise)
        left_out = (1 + self.N / 2) / (12 * 4 ** (bits * levels)) / 2  # only where the bit of s is 1
        bits, levels = self.switch_digits
        switched = self.N * levels * (4**bits + 2) / 12 * self._variance(self.noise)
        switched += self.N / 2 / (12 * 4 ** (bits * levels))
        return math.sqrt(self.n * (products + left_out) + switched)

    def _variance(self, b: int) -> float:
        """The variance of Ring.tuniform(b), over q^2."""
        return (2.0 ** (2 * b + 1) + 1) / 6 / self.q**2

    def failure(self, terms: int = 1) -> float:
        """The probability that a table is read at a wrong place for a sum of `terms` bootstrapped values."""
        rounding = (1 + self.n / 2) / 12 / (2 * self.N) ** 2
        return math.erfc(1 / (4 * self.p) / math.sqrt(2 * (terms * self.deviation() ** 2 + rounding)))


# Messages of four bits need longer polynomials and finer digits.
FOUR_BITS = TFHE(p=16, n=742, N=2048, bits=50, noise=34, ring_noise=5, digits=(12, 3), switch_digits=(3, 5))


def add_numbers(scheme: TFHE, keys: Keys, x: Array, y: Array) -> Array:
    """The sum of two encrypted numbers of `count` bits, (count, n + 1), lowest first: count + 1 bits."""
    with backend_of(x).device_scope():
        carry, bits = backend_of(x).xp.zeros(x.shape[1:], x.dtype), []
    for a, b in zip(x, y, strict=True):
        bit, carry = scheme.bootstrap(keys, scheme.add(a, b, carry), lambda m: m % 2, lambda m: m // 2)
        bits.append(bit)
    total: Array = backend_of(carry).xp.stack([*bits, carry])
    return total


class Result(NamedTuple):
    """What `run` found: whether messages are right, and their phases' deviation, measured and by theory."""

    bootstraps: int
    table_ok: bool
    sum_ok: bool
    deviation: float
    theory: float


def run(seed: bytes | None = None, numbers: Sequence[int] = (201, 118)) -> Result:
    """Square encrypted messages by a table, add two encrypted numbers of 8 bits; on the current device."""
    seed = secrets.token_bytes(32) if seed is None else seed
    scheme = TFHE()
    keys = scheme.keygen(derive(seed, "keys"))
    own, there = keys.to(current_device()), get_backend(current_device()).from_host
    messages = np.arange(scheme.p).repeat(8)
    squares = messages**2 % scheme.p
    vectors = scheme.encrypt(keys, messages, derive(seed, "messages"))
    (found,) = scheme.bootstrap(own, there(vectors), lambda m: m * m % scheme.p)
    error = scheme.phase(keys, found) - squares / (2 * scheme.p)
    bits = [np.array([x >> i & 1 for i in range(8)]) for x in numbers]
    x, y = (scheme.encrypt(keys, b, derive(seed, name)) for b, name in zip(bits, "xy", strict=True))
    total = scheme.decrypt(keys, add_numbers(scheme, own, there(x), there(y)))
    return Result(
        bootstraps=len(messages) + 2 * 8,
        table_ok=np.array_equal(scheme.decrypt(keys, found), squares),
        sum_ok=sum(int(bit) << i for i, bit in enumerate(total)) == sum(numbers),
        deviation=float(np.sqrt(np.mean((error - np.rint(error)) ** 2))),
        theory=scheme.deviation(),
    )
