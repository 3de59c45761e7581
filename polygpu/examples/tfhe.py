"""TFHE: bootstrapping that applies a table to an encrypted message.

A message m in 0 ... p - 1 is encrypted as an LWE vector (b, a) modulo q. The entries of the secret s are the
coefficients of secret polynomials of degree below N. The phase b + <a, s> is m * q / (2 * p) plus noise, so
the upper half of 0 ... q - 1 stays free. For any table f, `bootstrap` returns an encryption of f(m). It
switches the vector to a shorter secret, rounds it modulo 2N, multiplies the table's polynomial by X^-phase
(blind rotation), and extracts coefficient 0. The noise of the result does not depend on that of the vector.
Ciphertexts are added without a key, as long as the sum of the messages stays below p and the noise stays
small. `failure` gives the probability that the noise is too large for a bootstrap.

Sources: Chillotti et al. 2018/421; Joye 2021/1402 is a guide.

SETS has named sets of parameters. The sets with "bits" in their names are those of TFHE-rs 1.4
(tfhe/src/shortint/parameters/v1_4, noise "TUNIFORM"). Zama estimates 128 bits of security for them, with the
lattice estimator. The probability of a failure is below 2^-128, or below 2^-124 for the sets with `group`
above 1. The set "2020" is that of the TFHE library, with a prime modulus. By the HE standard of 2018, the
polynomials of this set have 128 bits of security, but the standard assumes ternary secrets, and the secrets
here are binary. By newer estimates, the short vectors of this set, with 630 entries, have about
120 bits of security.

This is an example, not a product: it is not constant time, and nobody has reviewed it.
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
    """A key set: two binary secrets, and the keys that a server needs to bootstrap.

    large: the secret of encrypted messages. It consists of the coefficients of the secret polynomials, one
    polynomial after the other. small: the shorter secret, to which vectors are switched before a blind
    rotation. ggsw: GGSW ciphertexts of the bits of `small`, or of groups of these bits. bootstrap: `ggsw`
    after lattice.prepare. switch: the key that switches vectors from `large` to `small`.
    """

    large: Array
    small: Array
    ggsw: pg.Poly
    bootstrap: pg.Poly | lattice.Prepared
    switch: Array

    def to(self, device: str) -> Keys:
        """Return the keys on a device, to bootstrap vectors that lie there. The secrets stay on the host."""
        ggsw, own = self.ggsw.to(device), self.bootstrap
        ready: pg.Poly | lattice.Prepared = ggsw
        if isinstance(own, lattice.Prepared):
            ready = lattice.prepare(ggsw, bits=own.bits, precision=own.precision)
        return Keys(self.large, self.small, ggsw, ready, get_backend(ggsw.device).from_host(self.switch))


@dataclass(frozen=True)
class TFHE:
    """The TFHE scheme for messages below p, in a ring of degree N modulo q; secrets have n and k * N bits."""

    p: int = 4
    n: int = 630  # number of bits of the short secret
    k: int = 1  # number of masks in a ciphertext of the ring
    N: int = 1024
    bits: int = 31  # bit length of q if q is a prime, else q = 2^bits
    is_torus: bool = False  # whether q is 2^bits, with bits = 32 or 64; products are then computed in doubles
    noise: int = 17  # b of Ring.tuniform for short vectors: noise nearly uniform on [-2^b, 2^b]
    ring_noise: int = 7  # b of Ring.tuniform for the noise of polynomials
    digits: tuple[int, int] = (7, 3)  # bits of a digit, and number of digits, in external products
    switch_digits: tuple[int, int] = (2, 8)  # bits of a digit, and number of digits, in key switching
    centered_mean: bool = False  # an option of the rounding modulo 2N (lattice.lwe_modulus_switch)
    norm: float = math.sqrt(3)  # largest 2-norm of the coefficients of a sum that is bootstrapped
    group: int = 1  # number of bits of the short secret that one step of the blind rotation handles

    @cached_property
    def ring(self) -> pg.Ring:
        """Return the ring of degree N modulo q."""
        return pg.Ring(self.N, 1 << self.bits if self.is_torus else pg.ntt_primes(self.N, bits=self.bits))

    @property
    def q(self) -> int:
        """The modulus of vectors and polynomials."""
        return self.ring.modulus

    @property
    def step(self) -> int:
        """The phase of message 1: q / (2 * p), rounded."""
        return (self.q + self.p) // (2 * self.p)

    # ---- keys ----

    @pg.device("cpu")
    def keygen(self, seed: bytes) -> Keys:
        """Make a key set. The seed must be secret and used only once."""
        small, large = (
            pg.Ring(size, 2).random(seed=derive(seed, label)).data[0].astype(np.int64)
            for size, label in ((self.n, "small"), (self.k * self.N, "large"))
        )
        secret, (bits, levels) = self.ring(large.reshape(self.k, self.N)), self.digits
        of = {"bits": bits, "levels": levels, "tuniform": self.ring_noise, "seed": derive(seed, "bootstrap")}
        if self.group > 1:
            ggsw = lattice.multi_bit_key(small, secret, group=self.group, **of)  # type: ignore[arg-type]
        else:
            ggsw = lattice.ggsw(small, secret, **of)  # type: ignore[arg-type]
        precision = "double" if self.is_torus else "exact"
        bootstrap = lattice.prepare(ggsw, bits=bits, precision=precision)  # type: ignore[arg-type]
        (bits, levels), hidden = self.switch_digits, derive(seed, "switch")
        of = {"q": self.q, "bits": bits, "levels": levels, "tuniform": self.noise, "seed": hidden}
        switch = lattice.lwe_switch_key(small, large, **of)  # type: ignore[arg-type]
        return Keys(large, small, ggsw, bootstrap, switch)

    # ---- messages ----

    @pg.device("cpu")
    def encrypt(self, keys: Keys, messages: Array, seed: bytes) -> Array:
        """Encrypt integers in 0 ... p - 1, of shape (*batch,), as vectors (*batch, k * N + 1)."""
        given = np.asarray(messages)
        if given.size and given.dtype.kind not in "iu":
            raise pg.errors.CoefficientError(
                f"The dtype of messages is {given.dtype}. It must be an integer dtype. Round the messages "
                "first."
            )
        if np.min(given, initial=0) < 0 or np.max(given, initial=0) >= self.p:
            raise pg.ParameterError(
                f"messages contains a number that is not from 0 to {self.p - 1}. Reduce the messages modulo "
                f"{self.p}."
            )
        numbers, size = pg.Ring(1, self.q), len(keys.large)
        mask = numbers.random(given.size * size, seed=derive(seed, "mask")).data.reshape(given.size, size)
        noise = numbers.tuniform(self.ring_noise, batch=given.size, seed=derive(seed, "noise"))
        product = linalg.matmul(mask, keys.large[:, None], q=self.q).reshape(given.size, 1, 1)
        hidden = (given.astype(np.uint64) * np.uint64(self.step)).reshape(-1, 1)
        body = (noise - numbers.from_residues(product) + numbers(hidden)).data[:, 0]
        return np.concatenate([body, mask], axis=1).reshape(*given.shape, size + 1)

    def decrypt(self, keys: Keys, vectors: Array) -> Array:
        """Return, for each vector, the message whose phase is nearest to the phase of the vector."""
        nearest = np.rint(self.phase(keys, vectors) * 2 * self.p).astype(np.int64)
        return np.asarray(nearest % (2 * self.p))

    def phase(self, keys: Keys, vectors: Array) -> Array:
        """Return the phases (b + <a, s>) / q, in [0, 1), on the host. Vectors may be under either secret."""
        own = backend_of(vectors).to_host(vectors)
        secret = keys.large if own.shape[-1] == len(keys.large) + 1 else keys.small
        whole = np.concatenate([np.ones(1, np.int64), secret])
        return np.asarray(linalg.matmul(own, whole[:, None], q=self.q)[..., 0] / self.q)

    def add(self, *terms: Array) -> Array:
        """Add encrypted messages, whose sum must stay below p."""
        return reduce(self._sum, terms)

    def _sum(self, x: Array, y: Array) -> Array:
        """Return x + y modulo q. Before the reduction, x + y may be too large for the dtype."""
        rest = x.dtype.type(self.q % (1 << 8 * x.dtype.itemsize)) - y
        wraps = (x >= rest) & (y > 0)
        return backend_of(x).xp.where(wraps, x - rest, x + y)  # type: ignore[no-any-return]

    # ---- bootstrapping ----

    def bootstrap(self, keys: Keys, vectors: Array, *tables: Callable[[int], int]) -> Array:
        """Return encryptions of f(m) for each function f of `tables`, (len(tables), *batch, k * N + 1).

        vectors: encryptions of messages m, (*batch, k * N + 1), on the device of the keys.
        """
        with pg.device(keys.bootstrap.device):
            acc = self.ring.zeros((len(tables), *vectors.shape[:-1], self.k + 1))
            for i, f in enumerate(tables):
                acc[i, ..., 0] = self.ring(self._table(f))
        return self.turned(keys, acc, vectors)

    def turned(self, keys: Keys, acc: pg.Poly, vectors: Array) -> Array:
        """Multiply acc by X^-phase of each vector. Return coefficient 0 of each product as an LWE vector.

        `polygpu.capture` can record this part of a bootstrap.
        """
        exponents = -self.rounded(keys, vectors)
        return lattice.extract(lattice.blind_rotate(acc, keys.bootstrap, exponents, bits=self.digits[0]), 0)

    def rounded(self, keys: Keys, vectors: Array) -> Array:
        """Return `vectors`, switched to the short secret and rounded modulo 2N, as (*batch, n + 1)."""
        bits, levels = self.switch_digits
        short = lattice.lwe_switch(vectors, keys.switch, q=self.q, bits=bits, levels=levels)
        return lattice.lwe_modulus_switch(short, q=self.q, to=2 * self.N, centered_mean=self.centered_mean)

    def _table(self, f: Callable[[int], int]) -> list[int]:
        """Return the coefficients of the polynomial of a table f.

        The coefficients at exponents around m * N / p are the phase of f(m). For m = 0, half of these
        exponents are negative. At exponent -j the coefficient has the opposite sign and is stored at N - j,
        because X^N = -1.
        """
        if 2 * self.p > self.N:
            raise pg.ParameterError(f"N={self.N} must be at least 2 p = {2 * self.p}. Use a larger N.")
        results = [operator.index(f(m)) for m in range(self.p)]
        if wrong := [x for x in results if not 0 <= x < self.p]:
            raise pg.ParameterError(
                f"tables has the value {wrong[0]}, which is not from 0 to {self.p - 1}. Reduce it modulo "
                f"{self.p}."
            )
        half, values = self.N // (2 * self.p), [x * self.step for x in results]
        around = [values[(j + half) * self.p // self.N] for j in range(self.N - half)]
        return around + [-values[0]] * half

    # ---- theory ----

    def variances(self) -> dict[str, float]:
        """Return the variance that each step adds to the phase, divided by q^2, for independent noises.

        The formulas are those of Chillotti et al. 2018/421, theorems 4.1 and 6.3. Digits to the base B are
        assumed to be uniform, and their squares are (B^2 + 2) / 12 on average. l digits leave out the low
        bits of a coefficient. The variance of this error is 1 / (12 * B^(2 l)). A step for one bit multiplies
        the error by a bit of the secret, and half of these bits are 1. A step for a group of g bits
        multiplies the error by a power of X instead, so the error always counts. In such a step the noises of
        2^g matrices add up. Each component of a product has a rounding error too.
        """
        bits, levels = self.digits
        # The phase is a sum of 1 + k * N / 2 coefficients with errors, because half of the secret bits are 1.
        size, seen = self.k * self.N, 1 + self.k * self.N / 2
        steps = -(-self.n // self.group)
        matrices, counts = (2**self.group, 1.0) if self.group > 1 else (1, 0.5)
        products = (self.k + 1) * levels * self.N * (4**bits + 2) / 12 * self._variance(self.ring_noise)
        left_out = seen / (12 * 4 ** (bits * levels)) * counts
        rotation = steps * (matrices * products + left_out + seen * (self.error / self.q) ** 2)
        bits, levels = self.switch_digits
        switch = size * levels * (4**bits + 2) / 12 * self._variance(self.noise)
        switch += size / 2 / (12 * 4 ** (bits * levels))
        errors = self.n / 4 if self.centered_mean else self.n / 2
        return {
            "fresh": self._variance(self.ring_noise),
            "rotation": rotation,
            "switch": switch,
            "rounding": (1 + errors) / 12 / (2 * self.N) ** 2,
        }

    @cached_property
    def error(self) -> float:
        """Return the standard deviation of the rounding error of a product, or 0 if q is a prime."""
        if not self.is_torus:
            return 0.0
        bits, levels = self.digits
        batch = (1, 1 << self.group) if self.group > 1 else ()
        with pg.device("cpu"):
            one = self.ring.zeros((*batch, self.k + 1, levels, self.k + 1))
        prepared = lattice.prepare(one, bits=bits, precision="double")
        assert isinstance(prepared, lattice.Prepared)
        return prepared.error.std

    def deviation(self) -> float:
        """Return the theoretical standard deviation of the phase of a bootstrapped vector, divided by q."""
        return math.sqrt(self.variances()["rotation"])

    def _variance(self, b: int) -> float:
        """Return the variance of Ring.tuniform(b), divided by q^2."""
        return (2.0 ** (2 * b + 1) + 1) / 6 / self.q**2

    def failure(self, norm: float | None = None) -> float:
        """Return the probability that a bootstrap looks up a wrong message in the table.

        The LWE vector that is bootstrapped is a sum of earlier results, each times a coefficient.
        norm: the 2-norm of these coefficients, by default `self.norm`.
        """
        of = self.variances()
        size = self.norm if norm is None else norm
        variance = size**2 * of["rotation"] + of["switch"] + of["rounding"]
        return math.erfc(1 / (4 * self.p) / math.sqrt(2 * variance))


_TFHE_RS: dict[str, Any] = {"bits": 64, "is_torus": True, "ring_noise": 17, "centered_mean": True}
SETS = {
    "2020": TFHE(),
    # Set "a+b bits" is for messages of a bits and carries of b bits. For the next three sets, TFHE-rs gives
    # -144.3, -129.6 and -129.0 as log2 of the probability of failure. TFHE.failure gives -143.8, -129.1 and
    # -128.6.
    "1+1 bits": TFHE(
        p=4, n=879, k=4, N=512, noise=46, digits=(23, 1), switch_digits=(5, 3), norm=3, **_TFHE_RS
    ),
    "2+2 bits": TFHE(p=16, n=918, N=2048, noise=45, digits=(23, 1), switch_digits=(4, 4), norm=5, **_TFHE_RS),
    "3+3 bits": TFHE(
        p=64,
        n=1077,
        N=8192,
        noise=41,
        digits=(15, 2),
        switch_digits=(4, 5),
        norm=9,
        **_TFHE_RS | {"ring_noise": 3},
    ),
    # For the next three sets, TFHE-rs gives -145.0, -134.3 and -131.0 as log2 of the probability of failure.
    # TFHE.failure gives -144.8, -139.2 and -124.7. There are two reasons for the differences. TFHE-rs rounds
    # the sum of a group modulo 2N, which counts as n * 15/64 rounding errors. Here each entry is rounded and
    # the mean error is subtracted, which counts as n * 16/64. And TFHE-rs assumes a larger error of products.
    "1+1 bits, groups of 4": TFHE(
        p=4, n=760, N=2048, noise=49, digits=(22, 1), switch_digits=(3, 4), norm=3, group=4, **_TFHE_RS
    ),
    "2+2 bits, groups of 4": TFHE(
        p=16, n=904, N=2048, noise=46, digits=(22, 1), switch_digits=(2, 8), norm=5, group=4, **_TFHE_RS
    ),
    "3+3 bits, groups of 4": TFHE(
        p=64,
        n=1040,
        N=8192,
        noise=42,
        digits=(14, 2),
        switch_digits=(3, 6),
        norm=9,
        group=4,
        **_TFHE_RS | {"ring_noise": 3},
    ),
}
FOUR_BITS = SETS["2+2 bits"]


def add_numbers(scheme: TFHE, keys: Keys, x: Array, y: Array) -> Array:
    """Add numbers whose encrypted bits are on the first axis, lowest first. The sum has one bit more."""
    with backend_of(x).device_scope():
        carry, bits = backend_of(x).xp.zeros(x.shape[1:], x.dtype), []
    for a, b in zip(x, y, strict=True):
        bit, carry = scheme.bootstrap(keys, scheme.add(a, b, carry), lambda m: m % 2, lambda m: m // 2)
        bits.append(bit)
    total: Array = backend_of(carry).xp.stack([*bits, carry])
    return total


class Integers:
    """Arithmetic with encrypted integers, for p = 16.

    An integer is encrypted as blocks of two bits, lowest first: (count, *batch, k * N + 1). A block or carry
    that a bootstrap made is at most 3. So a sum of five blocks and carries is below 16. For two blocks x and
    y, the message 4 * x + y is below 16 too, and holds both.
    """

    def __init__(self, scheme: TFHE, keys: Keys) -> None:
        self.scheme, self.keys = scheme, keys

    def encrypt(self, numbers: Array, count: int, seed: bytes) -> Array:
        """Encrypt integers below 4^count, of shape (*batch,)."""
        blocks = np.stack([np.asarray(numbers) >> 2 * i & 3 for i in range(count)])
        own = self.scheme.encrypt(self.keys, blocks, seed)
        return get_backend(self.keys.bootstrap.device).from_host(own)

    def decrypt(self, blocks: Array) -> Array:
        """Return the integers that blocks encrypt."""
        digits = self.scheme.decrypt(self.keys, blocks)
        return np.asarray(sum(digit << 2 * i for i, digit in enumerate(digits)))

    def add(self, x: Array, y: Array) -> Array:
        """Return x + y modulo 4^count. Each block takes one bootstrap, which applies two tables."""
        return self._carried([[a, b] for a, b in zip(x, y, strict=True)])

    def multiply(self, x: Array, y: Array) -> Array:
        """Return x * y modulo 4^count: first all products of two blocks in one batch, then their sums."""
        count = len(x)
        places = [(i, j) for i in range(count) for j in range(count - i)]
        pairs = self._stack([self._pair(x[i], y[j]) for i, j in places])
        low, high = self._tables(pairs, lambda m: m // 4 * (m % 4) % 4, lambda m: m // 4 * (m % 4) // 4)
        columns: list[list[Array]] = [[] for _ in range(count + 1)]
        for (i, j), below, above in zip(places, low, high, strict=True):
            columns[i + j].append(below)
            columns[i + j + 1].append(above)
        return self._carried(columns[:count])

    def less(self, x: Array, y: Array) -> Array:
        """Return a block that encrypts 1 if x < y, else 0. The highest blocks that differ decide."""
        # For each pair of blocks: 0 if they are equal, 1 if the block of x is less, 2 if it is greater.
        orders = self._tables(
            self._stack([self._pair(a, b) for a, b in zip(x, y, strict=True)]),
            lambda m: 0 if m // 4 == m % 4 else 1 if m // 4 < m % 4 else 2,
        )[0]
        found = orders[-1]
        for order in orders[-2::-1]:
            (found,) = self._tables(self._pair(found, order), lambda m: m // 4 or m % 4)
        return self._tables(found, lambda m: int(m == 1))[0]

    def apply(self, x: Array, f: Callable[[int], int]) -> Array:
        """Apply f to each block, in one batch."""
        return self._tables(x, f)[0]

    def _carried(self, columns: list[list[Array]]) -> Array:
        """Return one block for each column: the sum of its blocks and of incoming carries, modulo 4.

        Carries go to the next column. Carries of the last column are dropped. Blocks and carries are below 4.
        """
        waiting, blocks = [list(column) for column in columns], []
        for i, column in enumerate(waiting):
            while len(column) > 1:
                some = [column.pop() for _ in range(min(5, len(column)))]  # their sum is at most 15
                low, carry = self._tables(self.scheme.add(*some), lambda m: m % 4, lambda m: m // 4)
                column.append(low)
                if i + 1 < len(waiting):
                    waiting[i + 1].append(carry)
            blocks.append(column[0])
        return self._stack(blocks)

    def _pair(self, x: Array, y: Array) -> Array:
        """Return an encryption of 4 * x + y."""
        return self.scheme.add(x, x, x, x, y)

    def _tables(self, vectors: Array, *tables: Callable[[int], int]) -> list[Array]:
        return list(self.scheme.bootstrap(self.keys, vectors, *tables))

    def _stack(self, vectors: Sequence[Array]) -> Array:
        stacked: Array = backend_of(vectors[0]).xp.stack(list(vectors))
        return stacked


class Result(NamedTuple):
    """Result of `run`: the number of bootstraps, and whether the results are right.

    deviation: the measured standard deviation of phases, divided by q. theory: its theoretical value.
    """

    bootstraps: int
    table_ok: bool
    sum_ok: bool
    deviation: float
    theory: float


def run(seed: bytes | None = None, numbers: Sequence[int] = (201, 118)) -> Result:
    """Square encrypted messages by a table, and add two encrypted 8-bit numbers, on the current device."""
    seed = secrets.token_bytes(32) if seed is None else seed
    scheme = SETS["2020"]
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
