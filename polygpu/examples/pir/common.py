"""Parts that the protocols share: layouts, error bounds, the encoding of keys, and a trial run."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu.examples.bfv import derive
from polygpu.lattice.keys import SwitchKey, expanded

Array = NDArray[Any]

SEED = 32  # length in bytes of the public seed of a mask


class Layout(Protocol):
    """Places of the records in the database, and the probability that a record is read wrong."""

    @property
    def size(self) -> int:
        """Length of a record in bytes."""

    @property
    def count(self) -> int:
        """The number of records."""

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is read wrong."""


@dataclass(frozen=True)
class ColumnLayout:
    """Layout of `count` records of `size` bytes in the columns of a matrix of bytes.

    Record i is in column i // in_column, and begins at row (i % in_column) * size.
    """

    size: int
    count: int

    @property
    def in_column(self) -> int:
        """The number of records in a column."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """The number of rows: the length of a column in bytes."""
        return self.size * self.in_column

    @property
    def columns(self) -> int:
        """The number of columns."""
        return -(-self.count // self.in_column)

    def record(self, index: int, column: Array) -> bytes:
        """Return a record from the bytes of its column."""
        first = index % self.in_column * self.size
        return bytes(column[first : first + self.size])


class Database(Protocol):
    """Interface of a protocol's server, as `Service` uses it."""

    together: int  # the largest number of queries in one call of `answers`

    @property
    def layout(self) -> Layout:
        """Layout of the records in the database."""

    @property
    def hint(self) -> Array | None:
        """32-bit words that every client fetches first, or None if the protocol does not need a hint."""

    @property
    def query_bytes(self) -> int:
        """Length of a query in bytes, the same for all queries."""

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that clients need, as a dict for JSON."""

    def read(self, body: bytes) -> Any:
        """Decode a query of `query_bytes` bytes; raise ParameterError if a number is out of range."""

    def answers(self, queries: Sequence[Any]) -> Sequence[Array]:
        """Return the answer to each query, an array of 32-bit words."""


class Reader(Protocol):
    """Interface of a protocol's client, as `fetch` uses it."""

    @property
    def answer_bytes(self) -> int:
        """Length of an answer in bytes."""

    def query(self, index: int, seed: bytes) -> tuple[Any, Any]:
        """Return a query for a record, and the secret that decrypts the answer."""

    def written(self, query: Any) -> bytes:
        """Encode a query as bytes."""

    def record(self, index: int, answer: Array, secret: Any) -> bytes:
        """Decrypt an answer, and return the record in it."""


def as_bytes(data: bytes | Array) -> Array:
    """Return data as an array of bytes with one axis."""
    given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data, np.uint8)
    return given.ravel()


def by_columns(data: Array, rows: int, columns: int) -> Array:
    """Return the data as an int8 matrix (rows, columns), filled column by column and padded with bytes 0.

    An entry is a byte minus 128. Its absolute value is at most 128 instead of 255, which halves the errors of
    an answer.
    """
    found = np.zeros(rows * columns, np.uint8)
    found[: data.size] = data
    found ^= 128
    return np.ascontiguousarray(found.view(np.int8).reshape(columns, rows).T)


def nearest_bytes(phase: Array, q: int) -> Array:
    """Return x for each phase (x - 128) * q / 256 + noise modulo q, where x is a byte and q < 2^56."""
    words = phase.astype(np.uint64)
    return ((words * np.uint64(256) + np.uint64(q // 2)) // np.uint64(q)).astype(np.uint8) ^ 128


def as_index(index: int, layout: Layout) -> int:
    """Return the index as an int; raise ParameterError if there is no such record."""
    if not 0 <= index < layout.count:
        raise pg.ParameterError(f"index={index} must be from 0 to {layout.count - 1}.")
    return int(index)


def log2_failure(size: int, limit: float, deviation: float) -> float:
    """Return log2 of a bound on the probability that at least one of `size` errors e has |e| > limit.

    The errors are Gaussian. Their standard deviation is `deviation`.
    """
    # |e| > limit has the probability erfc(x) < exp(-x^2) / (x sqrt(pi)).
    x = limit / (deviation * math.sqrt(2))
    return math.log2(size) - (x * x + math.log(x * math.sqrt(math.pi))) / math.log(2)


def switch_variance(ring: pg.Ring, special: pg.Ring, sigma: float) -> float:
    """Return the variance of the error of a key switch. The secret is ternary, and each limb is a digit.

    A digit is uniform modulo its limb q_i, so its variance is q_i^2 / 12. Digits are multiplied by key errors
    of deviation sigma. The sum of the products is divided by the modulus of `special`, and rounded.
    """
    parts = sum((q / special.modulus) ** 2 for q in ring.moduli)
    return ring.n / 12 * parts * sigma**2 + rounding_variance(ring.n)


def rounding_variance(n: int) -> float:
    """Return the variance of the phase's error if both components are rounded and the secret is ternary."""
    return (1 + 2 * n / 3) / 12


# ---- words and keys on the network ----


def words_of(data: bytes) -> Array:
    """Decode bytes as little-endian words of 32 bits."""
    return np.frombuffer(data, "<u4").astype(np.uint32)


def residues(words: Array, ring: pg.Ring, domain: Any = "coef") -> pg.Poly:
    """Return received words as values of a ring, of batch shape (count,).

    Raises:
        NotCanonical: a word is not below its modulus.
    """
    return ring.from_residues(words.reshape(-1, ring.rows, ring.n), domain=domain, check=True)


@dataclass(frozen=True)
class KeyFormat:
    """Encoding of key switching keys as bytes: first the public seeds of all masks, then all bodies.

    A body is written as 32-bit words. ring, special: the rings of each key, see SwitchKey. Each digit of
    a key has one limb. elements: the Galois element of each key, or None if the key is not for an
    automorphism.
    """

    ring: pg.Ring
    special: pg.Ring
    elements: tuple[int | None, ...]

    @property
    def masks(self) -> int:
        """The number of masks: one for each key and digit."""
        return len(self.elements) * self.ring.rows

    @property
    def size(self) -> int:
        """Length of all keys in bytes."""
        return self.masks * (SEED + 4 * (self.ring.rows + self.special.rows) * self.ring.n)

    def written(self, keys: Sequence[SwitchKey]) -> bytes:
        """Encode keys as bytes."""
        seeds = [seed for key in keys for seed in key._masks or ()]
        bodies = [key.value[:, 0].cpu().data.astype("<u4").tobytes() for key in keys]
        return b"".join([*seeds, *bodies])

    def read(self, data: bytes) -> list[SwitchKey]:
        """Decode keys from `size` bytes.

        Raises:
            NotCanonical: a word is not below its modulus.
        """
        seeds = [data[i : i + SEED] for i in range(0, self.masks * SEED, SEED)]
        bodies = residues(words_of(data[self.masks * SEED :]), self.ring.join(self.special), "eval")
        digits, found = self.ring.rows, []
        for i, g in enumerate(self.elements):
            part = slice(i * digits, (i + 1) * digits)
            key = expanded(
                bodies[part],
                tuple(seeds[part]),
                ring=self.ring,
                special=self.special,
                limbs_per_digit=1,
                galois_element=g,
            )
            found.append(key)
        return found


# ---- a trial run ----


class Result(NamedTuple):
    """Result of `run`.

    size: the number of bytes that were fetched. ok: whether all of them are right. failure: log2 of a bound
    on the probability that a record is wrong.
    """

    size: int
    ok: bool
    failure: float


def trial(
    server_of: Callable[[Array, int], Any],
    client_of: Callable[[Any, bytes], Reader],
    step: int,
    seed: bytes | None,
) -> Result:
    """Fetch every step-th of 4096 random records of 256 bytes, and compare them with the database.

    server_of(data, size) makes a server for records of `size` bytes. client_of(server, seed) makes a client
    with a secret seed. seed: the seed of all secrets; by default it is random.
    """
    data, wanted = np.random.default_rng(1).integers(0, 256, (4096, 256), np.uint8), range(0, 4096, step)
    seed = secrets.token_bytes(32) if seed is None else seed
    server = server_of(data, 256)
    client = client_of(server, derive(seed, "client"))
    asked = [client.query(index, derive(seed, f"query {index}")) for index in wanted]
    answers = server.answers([query for query, _ in asked])
    found = [
        client.record(index, answer, secret)
        for index, answer, (_, secret) in zip(wanted, answers, asked, strict=True)
    ]
    right = [data[index].tobytes() for index in wanted]
    return Result(sum(map(len, found)), found == right, server.layout.failure)
