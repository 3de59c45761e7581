"""What the protocols share: bytes as signed numbers, a bound on failures, keys as bytes, a trial."""

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

SEED = 32  # bytes of the seed of a mask


class Layout(Protocol):
    """Where the records are, and how likely it is that one is read wrong."""

    @property
    def size(self) -> int:
        """Bytes of a record."""

    @property
    def count(self) -> int:
        """The number of records."""

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is wrong."""


@dataclass(frozen=True)
class ColumnLayout:
    """`count` records of `size` bytes in a matrix (rows, columns); record i is in column i // in_column."""

    size: int
    count: int

    @property
    def in_column(self) -> int:
        """Records of a column."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """Bytes of a column."""
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
    """What a service needs of the server of a protocol."""

    together: int  # queries that are answered together

    @property
    def layout(self) -> Layout:
        """Where the records are."""

    @property
    def hint(self) -> Array | None:
        """Words that every client needs, if there are any."""

    @property
    def query_bytes(self) -> int:
        """Bytes of a query, all of the same length."""

    def parameters(self) -> dict[str, Any]:
        """Return what clients must know, for JSON."""

    def read(self, body: bytes) -> Any:
        """Return a query from `query_bytes` bytes; raise ParameterError if a number is out of range."""

    def answers(self, queries: Sequence[Any]) -> Sequence[Array]:
        """Return the answers of queries, words of 32 bits."""


class Reader(Protocol):
    """What is needed of the client of a protocol."""

    @property
    def answer_bytes(self) -> int:
        """Bytes of an answer."""

    def query(self, index: int, seed: bytes) -> tuple[Any, Any]:
        """Return a query for a record, and the secret that reads its answer."""

    def written(self, query: Any) -> bytes:
        """Return a query as bytes."""

    def record(self, index: int, answer: Array, secret: Any) -> bytes:
        """Return the record from an answer."""


def as_bytes(data: bytes | Array) -> Array:
    """Return data as an array of bytes, of one axis."""
    given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data, np.uint8)
    return given.ravel()


def by_columns(data: Array, rows: int, columns: int) -> Array:
    """Return the matrix whose columns are the data, filled with zeros, as signed numbers.

    They are the bytes less 128, so that the errors of an answer are half as large.
    """
    found = np.zeros(rows * columns, np.uint8)
    found[: data.size] = data
    found ^= 128
    return np.ascontiguousarray(found.view(np.int8).reshape(columns, rows).T)


def nearest_bytes(phase: Array, q: int) -> Array:
    """Return the bytes that phases modulo q < 2^56 hide, each less 128 and times q / 256."""
    words = phase.astype(np.uint64)
    return ((words * np.uint64(256) + np.uint64(q // 2)) // np.uint64(q)).astype(np.uint8) ^ 128


def as_index(index: int, layout: Layout) -> int:
    """Return the index of a record, checked."""
    if not 0 <= index < layout.count:
        raise pg.ParameterError(f"index: {index} is not in 0 ... {layout.count - 1}.")
    return int(index)


def log2_failure(size: int, limit: float, deviation: float) -> float:
    """Return log2 of a bound on the probability that one of `size` Gaussian errors reaches the limit."""
    x = limit / (deviation * math.sqrt(2))
    return math.log2(size) - (x * x + math.log(x * math.sqrt(math.pi))) / math.log(2)


def switch_variance(ring: pg.Ring, special: pg.Ring, sigma: float) -> float:
    """Return the variance of the error of a key switch with a ternary secret, if each limb is a digit.

    The digits, uniform in a limb's range, multiply the errors of the key. Then the result is rounded.
    """
    parts = sum((q / special.modulus) ** 2 for q in ring.moduli)
    return ring.n / 12 * parts * sigma**2 + rounding_variance(ring.n)


def rounding_variance(n: int) -> float:
    """Return the variance of the error of the phase if both components are rounded."""
    return (1 + 2 * n / 3) / 12


# ---- numbers from and for the network ----


def words_of(data: bytes) -> Array:
    """Return little-endian words of 32 bits."""
    return np.frombuffer(data, "<u4").astype(np.uint32)


def residues(words: Array, ring: pg.Ring, domain: Any = "coef") -> pg.Poly:
    """Return words that come from elsewhere as values of a ring.

    Raises:
        NotCanonical: a word is not below its modulus.
    """
    return ring.from_residues(words.reshape(-1, ring.rows, ring.n), domain=domain, check=True)


@dataclass(frozen=True)
class KeyFormat:
    """Keys of key switching as bytes: the public seeds of all masks, then all bodies as words of 32 bits.

    elements: the Galois element of each key, None if it has none. Each limb of the ring is a digit.
    """

    ring: pg.Ring
    special: pg.Ring
    elements: tuple[int | None, ...]

    @property
    def masks(self) -> int:
        """The number of masks."""
        return len(self.elements) * self.ring.rows

    @property
    def size(self) -> int:
        """Bytes of all keys."""
        return self.masks * (SEED + 4 * (self.ring.rows + self.special.rows) * self.ring.n)

    def written(self, keys: Sequence[SwitchKey]) -> bytes:
        """Return keys as bytes."""
        seeds = [seed for key in keys for seed in key._masks or ()]
        bodies = [key.value[:, 0].cpu().data.astype("<u4").tobytes() for key in keys]
        return b"".join([*seeds, *bodies])

    def read(self, data: bytes) -> list[SwitchKey]:
        """Return the keys that are written in `size` bytes.

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


# ---- a trial ----


class Result(NamedTuple):
    """What `run` found: bytes of the records, whether they are right, and log2 of the failure bound."""

    size: int
    ok: bool
    failure: float


def trial(
    server_of: Callable[[Array, int], Any],
    client_of: Callable[[Any, bytes], Reader],
    step: int,
    seed: bytes | None,
) -> Result:
    """Fetch every step-th of 4096 random records of 256 bytes, and compare them.

    server_of: makes a server of data and the size of a record. client_of: makes its client of a secret seed.
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
