"""TFHE: bootstrapping that applies a table to an encrypted message.

A message m in 0 ... p - 1 is encrypted as an LWE vector (b, a) modulo q under the secret of a ring. Its phase
b + <a, s> is m q / (2 p) plus noise, so the upper half of the circle stays free. `bootstrap` switches the
vector to a shorter secret, rounds it modulo 2N, turns the table's polynomial by it, and extracts an
encryption of f(m) for any table f, with noise that does not depend on the noise before. Ciphertexts add up
without a key, as long as messages stay below p, and the noise small enough: `failure` gives the
probability. Sources: Chillotti et al. 2018/421; Joye 2021/1402 is a guide.

SETS has named sets of parameters. Those of TFHE-rs 1.4 (tfhe/src/shortint/parameters/v1_4, noise
"TUNIFORM", failures below 2^-128, with groups below 2^-124) have 128 bits of security by Zama's use of the
lattice estimator. The set "2020" is that of the TFHE library, with a prime modulus: polynomials have 128
bits by the HE standard of 2018, which assumes ternary secrets where these are bits; newer estimates give its
vectors of 630 entries about 120 bits. An example, not a product: it is not constant time, and nobody has
reviewed it.
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
    """A key set: two secrets of bits, and what a server needs to bootstrap.

    large: the secrets of the ring, one after the other; vectors are encrypted under them. small: the bits s
    of the vectors that turn a table. ggsw: encryptions of the bits s, or of groups of them; bootstrap: the
    same, prepared. switch: the key that switches vectors from `large` to `small`.
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
    """Messages modulo p, secrets of n and k N bits, polynomials of degree N modulo a prime or 2^bits."""

    p: int = 4
    n: int = 630
    k: int = 1  # masks of a ciphertext of the ring
    N: int = 1024
    bits: int = 31  # of q
    is_torus: bool = False  # q is 2^bits, for bits = 32 and 64, and products are computed in doubles
    noise: int = 17  # b for short vectors: noise is nearly uniform on [-2^b, 2^b] (Ring.tuniform)
    ring_noise: int = 7  # b for polynomials
    digits: tuple[int, int] = (7, 3)  # bits and levels, for products with GGSW ciphertexts
    switch_digits: tuple[int, int] = (2, 8)  # for key switching
    centered_mean: bool = False  # of the rounding modulo 2N (lattice.lwe_modulus_switch)
    norm: float = math.sqrt(3)  # of the coefficients of the sums that a bootstrap takes
    group: int = 1  # bits of the short secret that a step of the rotation takes

    @cached_property
    def ring(self) -> pg.Ring:
        """Polynomials of degree N modulo q."""
        return pg.Ring(self.N, 1 << self.bits if self.is_torus else pg.ntt_primes(self.N, bits=self.bits))

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
        """Make a fresh key set. As every seed here, this one must be secret and used only once."""
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
        """Encrypt integers in 0 ... p - 1, of shape (*batch,), as vectors (*batch, k N + 1)."""
        given = np.asarray(messages)
        if given.size and given.dtype.kind not in "iu":
            raise pg.errors.CoefficientError(
                f"messages: dtype {given.dtype} must be an integer dtype. Round them first."
            )
        if np.min(given, initial=0) < 0 or np.max(given, initial=0) >= self.p:
            raise pg.ParameterError(
                f"messages: one is not in 0 ... {self.p - 1}. Reduce them modulo {self.p}."
            )
        numbers, size = pg.Ring(1, self.q), len(keys.large)
        mask = numbers.random(given.size * size, seed=derive(seed, "mask")).data.reshape(given.size, size)
        noise = numbers.tuniform(self.ring_noise, batch=given.size, seed=derive(seed, "noise"))
        product = linalg.matmul(mask, keys.large[:, None], q=self.q).reshape(given.size, 1, 1)
        hidden = (given.astype(np.uint64) * np.uint64(self.step)).reshape(-1, 1)
        body = (noise - numbers.from_residues(product) + numbers(hidden)).data[:, 0]
        return np.concatenate([body, mask], axis=1).reshape(*given.shape, size + 1)

    def decrypt(self, keys: Keys, vectors: Array) -> Array:
        """Return the message nearest to each phase."""
        nearest = np.rint(self.phase(keys, vectors) * 2 * self.p).astype(np.int64)
        return np.asarray(nearest % (2 * self.p))

    def phase(self, keys: Keys, vectors: Array) -> Array:
        """Return (b + <a, s>) / q, in [0, 1), on the host; of vectors under either secret."""
        own = backend_of(vectors).to_host(vectors)
        secret = keys.large if own.shape[-1] == len(keys.large) + 1 else keys.small
        whole = np.concatenate([np.ones(1, np.int64), secret])
        return np.asarray(linalg.matmul(own, whole[:, None], q=self.q)[..., 0] / self.q)

    def add(self, *terms: Array) -> Array:
        """Add encrypted messages, whose sum must stay below p."""
        return reduce(self._sum, terms)

    def _sum(self, x: Array, y: Array) -> Array:
        """Return the sum modulo q of residues. It is right even if the sum of the words exceeds 2^64."""
        rest = x.dtype.type(self.q % (1 << 8 * x.dtype.itemsize)) - y
        wraps = (x >= rest) & (y > 0)
        return backend_of(x).xp.where(wraps, x - rest, x + y)  # type: ignore[no-any-return]

    # ---- bootstrapping ----

    def bootstrap(self, keys: Keys, vectors: Array, *tables: Callable[[int], int]) -> Array:
        """Return f(m), encrypted, for each table f: (len(tables), *batch, k N + 1), from (*batch, k N + 1).

        It computes where the keys and the vectors are.
        """
        with pg.device(keys.bootstrap.device):
            acc = self.ring.zeros((len(tables), *vectors.shape[:-1], self.k + 1))
            for i, f in enumerate(tables):
                acc[i, ..., 0] = self.ring(self._table(f))
        return self.turned(keys, acc, vectors)

    def turned(self, keys: Keys, acc: pg.Poly, vectors: Array) -> Array:
        """Coefficient 0 of X^-phase acc as a vector: what of a bootstrap can be recorded."""
        exponents = -self.rounded(keys, vectors)
        return lattice.extract(lattice.blind_rotate(acc, keys.bootstrap, exponents, bits=self.digits[0]), 0)

    def rounded(self, keys: Keys, vectors: Array) -> Array:
        """Vectors under the short secret, modulo 2N: (*batch, n + 1)."""
        bits, levels = self.switch_digits
        short = lattice.lwe_switch(vectors, keys.switch, q=self.q, bits=bits, levels=levels)
        return lattice.lwe_modulus_switch(short, q=self.q, to=2 * self.N, centered_mean=self.centered_mean)

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

    # ---- theory ----

    def variances(self) -> dict[str, float]:
        """Return the variance of the phase over q^2 that each step adds, for independent noises.

        As in Chillotti et al. 2018/421, theorems 4.1 and 6.3. Digits to the base B are uniform, with squares
        of (B^2 + 2) / 12 on average. What l digits leave out has the variance 1 / (12 B^(2 l)). Half of a
        secret's bits are 1, and what a step leaves out counts only if its bit is. For a group of g bits it
        always counts, and the noise of 2^g matrices adds up. A rounding error of a product counts in each
        component, as what is left out does.
        """
        bits, levels = self.digits
        size, seen = self.k * self.N, 1 + self.k * self.N / 2  # seen: errors of a ciphertext in a phase
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
        """Return the standard deviation of a product's rounding error, in residues (Prepared.error)."""
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
        """Return the standard deviation of a bootstrapped phase over q, by theory."""
        return math.sqrt(self.variances()["rotation"])

    def _variance(self, b: int) -> float:
        """Return the variance of Ring.tuniform(b), over q^2."""
        return (2.0 ** (2 * b + 1) + 1) / 6 / self.q**2

    def failure(self, norm: float | None = None) -> float:
        """Return the probability that a table is read at a wrong place.

        norm: of the coefficients with which bootstrapped values are added up before, `self.norm` by default.
        """
        of = self.variances()
        size = self.norm if norm is None else norm
        variance = size**2 * of["rotation"] + of["switch"] + of["rounding"]
        return math.erfc(1 / (4 * self.p) / math.sqrt(2 * variance))


_TFHE_RS: dict[str, Any] = {"bits": 64, "is_torus": True, "ring_noise": 17, "centered_mean": True}
SETS = {
    "2020": TFHE(),
    # Messages and carries of 1, 2 and 3 bits each. By TFHE-rs log2 of the failure is -144.3, -129.6, -129.0,
    # here -143.8, -129.1, -128.6.
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
    # By TFHE-rs -145.0, -134.3, -131.0, here -144.8, -139.2, -124.7. TFHE-rs rounds the sum of a group
    # modulo 2N, 15/64 n errors, where these round each entry and take the mean out, 16/64 n errors; and its
    # formula has a larger error of products.
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
    """Add two encrypted numbers of `count` bits, lowest first; the sum has count + 1 bits."""
    with backend_of(x).device_scope():
        carry, bits = backend_of(x).xp.zeros(x.shape[1:], x.dtype), []
    for a, b in zip(x, y, strict=True):
        bit, carry = scheme.bootstrap(keys, scheme.add(a, b, carry), lambda m: m % 2, lambda m: m // 2)
        bits.append(bit)
    total: Array = backend_of(carry).xp.stack([*bits, carry])
    return total


class Integers:
    """Encrypted integers as blocks of two bits, lowest first: (count, *batch, k N + 1), for p = 16.

    A block that a bootstrap made is below 4. So two of them and a carry add up to less than 16, and 4 x + y
    holds a pair.
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
        """Return x + y modulo 4^count: a bootstrap with two tables for each block."""
        return self._carried([[a, b] for a, b in zip(x, y, strict=True)])

    def multiply(self, x: Array, y: Array) -> Array:
        """Return x y modulo 4^count: all products of two blocks by one batch, then sums."""
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
        """Return a block that hides 1 if x < y, else 0: by the highest blocks that differ."""
        orders = self._tables(
            self._stack([self._pair(a, b) for a, b in zip(x, y, strict=True)]),
            lambda m: 0 if m // 4 == m % 4 else 1 if m // 4 < m % 4 else 2,
        )[0]
        found = orders[-1]
        for order in orders[-2::-1]:
            (found,) = self._tables(self._pair(found, order), lambda m: m // 4 or m % 4)
        return self._tables(found, lambda m: int(m == 1))[0]

    def apply(self, x: Array, f: Callable[[int], int]) -> Array:
        """Apply f to each block, by one batch."""
        return self._tables(x, f)[0]

    def _carried(self, columns: list[list[Array]]) -> Array:
        """Blocks of the sums of columns, of entries below 4, with carries; the last carry falls away."""
        waiting, blocks = [list(column) for column in columns], []
        for i, column in enumerate(waiting):
            while len(column) > 1:
                some = [column.pop() for _ in range(min(5, len(column)))]  # at most 15
                low, carry = self._tables(self.scheme.add(*some), lambda m: m % 4, lambda m: m // 4)
                column.append(low)
                if i + 1 < len(waiting):
                    waiting[i + 1].append(carry)
            blocks.append(column[0])
        return self._stack(blocks)

    def _pair(self, x: Array, y: Array) -> Array:
        return self.scheme.add(x, x, x, x, y)

    def _tables(self, vectors: Array, *tables: Callable[[int], int]) -> list[Array]:
        return list(self.scheme.bootstrap(self.keys, vectors, *tables))

    def _stack(self, vectors: Sequence[Array]) -> Array:
        stacked: Array = backend_of(vectors[0]).xp.stack(list(vectors))
        return stacked


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
