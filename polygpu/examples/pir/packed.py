"""Retrieval without a hint: the product of SimplePIR, and its result packed into RLWE ciphertexts.

As in `simple`, the database is a matrix D of bytes, and a record is a part of a column. The columns form
groups of N = 2048, and group j has a public uniform polynomial a_j modulo 2^32. For each group, a client
sends the coefficients of a_j * s + e_j + 2^24 * u_j. Here s is a fresh ternary secret, and e_j is a Gaussian
error. The u_j of all groups are together the unit vector that selects the column of the record. The server
multiplies D by the vector of all these coefficients.

Entry r of the product is the constant coefficient of the body of an RLWE ciphertext. The mask of this
ciphertext is -h_r, where h_r is the sum over j of D_rj(1/X) * a_j. The coefficients of D_rj are the
entries of row r of D in the columns of group j. Masks do not depend on the query, so the server computes them
once. It scales the ciphertexts from 2^32 to Q, and `lattice.pack` packs up to N of them into one, by key
switches with keys of the client. Packing is linear, and automorphisms leave constants as they are. So the
server packs ciphertexts that have the masks and the body 0, and adds the product to the packed body.

Q has two primes, and each is a digit of key switching. So a P of 18 bits is enough, and P * Q has at most 53
bits, the bound for security with N = 2048. The errors of packing, which grow by a factor of about N, stay
small too. An answer is sent modulo the first prime of Q.

Sources: Menon, Wu 2024/270 (YPIR); Chen, Dai, Kim, Song 2020/015 for the packing.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import polygpu as pg
from polygpu import lattice
from polygpu.examples.bfv import derive
from polygpu.linalg import matmul

from .common import (
    Array,
    ColumnLayout,
    KeyFormat,
    Result,
    as_bytes,
    as_index,
    by_columns,
    log2_failure,
    nearest_bytes,
    residues,
    rounding_variance,
    switch_variance,
    trial,
    words_of,
)

# RLWE of degree N, with a ternary secret, a modulus of 2^32 and errors of deviation SIGMA, has more than 128
# bits of security (lattice.max_log_q). Errors of keys have the deviation KEY_SIGMA.
N, SIGMA, KEY_SIGMA, MOST_COLUMNS = 2048, 6.4, 3.2, 1 << 20
ROWS = 1024  # rows of the matrix, if possible; a row costs a key switch, and a column a word of the query
SCALE = 1 << 24  # the factor of the unit vector in a query
# The Galois elements of the keys that lattice.pack needs.
ELEMENTS = tuple(2**j + 1 for j in range(1, N.bit_length()))
BLOCK = 1 << 22  # number of entries of the database matrix that are transformed in one call


class Rings(NamedTuple):
    """The rings of degree N.

    words: the ring modulo 2^32. sums: a ring for sums of products of integers. ring: the ring modulo Q.
    special: the ring modulo P. answer: the ring modulo the first prime of Q.
    """

    words: pg.Ring
    sums: pg.Ring
    ring: pg.Ring
    special: pg.Ring
    answer: pg.Ring


@cache
def rings() -> Rings:
    """Return the rings: Q has primes of 18 and 17 bits, P has 18 bits, and the modulus of `sums` has 60.

    `sums` must hold sums of 2^20 products of an entry of the database matrix and a centred 32-bit word. Such
    a sum is at most 2^58 in absolute value.
    """
    (first, special), second = pg.ntt_primes(N, bits=18, count=2), pg.ntt_primes(N, bits=17)
    ring, sums = pg.Ring(N, [first, *second]), pg.Ring(N, pg.ntt_primes(N, bits=30, count=2))
    return Rings(pg.Ring(N, 1 << 32), sums, ring, pg.Ring(N, special), ring[:1])


@cache
def key_format() -> KeyFormat:
    """Return the encoding of the keys in a query."""
    return KeyFormat(rings().ring, rings().special, ELEMENTS)


@dataclass(frozen=True)
class Layout(ColumnLayout):
    """Layout of the records in a matrix. It has at most 1024 rows if possible. Columns form groups of N."""

    def __post_init__(self) -> None:
        """Check that there are records."""
        if self.size < 1 or self.count < 1:
            raise pg.ParameterError(
                f"The number of records is {self.count}, of {self.size} bytes each. There must be at least "
                "one. Give a longer file."
            )

    @property
    def in_column(self) -> int:
        """The number of records in a column.

        A column has as many records as fit in 1024 rows, or more if there would be more than 2^20 columns.
        """
        return max(1, min(self.count, ROWS // self.size), -(-self.count // MOST_COLUMNS))

    @property
    def groups(self) -> int:
        """The number of groups of N columns. The last group may have fewer columns."""
        return -(-self.columns // N)

    @property
    def packed(self) -> int:
        """The number of rows that one ciphertext packs: N, or the least power of two that holds all rows."""
        return min(N, 1 << (self.rows - 1).bit_length())

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts in an answer."""
        return -(-self.rows // self.packed)

    def variance(self, entry: float = 128) -> float:
        """Return the variance of the error of an answer modulo Q.

        It is the sum of the variances of the product, of rounding to Q, and of packing. Packing takes log2 N
        steps. Each step doubles the error so far, and adds the error of one key switch. So the variance of
        packing is (N^2 - 1) / 3 times the variance of a key switch.

        entry: the root mean square of the entries of the database matrix.
        """
        product = self.columns * (SIGMA * entry * rings().ring.modulus / 2**32) ** 2
        step = switch_variance(rings().ring, rings().special, KEY_SIGMA)
        return product + rounding_variance(N) + (N * N - 1) / 3 * step

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is wrong."""
        Q, q = rings().ring.modulus, rings().answer.modulus
        deviation = math.sqrt(self.variance() * (q / Q) ** 2 + rounding_variance(N))
        return log2_failure(self.size, q / 512, deviation)

    def public(self, seed: bytes) -> pg.Poly:
        """Return the public polynomials a_j, one for each group of columns, expanded from a public seed."""
        return rings().words.random(self.groups, seed=seed)


class Query(NamedTuple):
    """A query: a word for each column, and a key for each Galois element 2^j + 1, j = 1, ..., log2 N."""

    words: Array
    keys: Sequence[lattice.SwitchKey]


class Server:
    """A server. It stores the matrix D, (groups, rows, N), and a mask for each row, which packing needs.

    The last group is filled up with columns of zeros. Each group is stored as one matrix, so that the part of
    a query for this group stays in the first-level cache.
    """

    together, hint = 32, None

    @pg.device("cpu")
    def __init__(self, data: bytes | Array, size: int, seed: bytes | None = None) -> None:
        given = as_bytes(data)
        self.layout = Layout(size, -(-given.size // max(size, 1)))
        self.database = self._groups(given)
        self.seed = secrets.token_bytes(32) if seed is None else seed
        self.masks = self._masks()

    def _groups(self, data: Array) -> Array:
        """Return the database matrix as an array (groups, rows, N), with N columns in each group."""
        rows, columns = self.layout.rows, self.layout.columns
        found = np.zeros((self.layout.groups, rows, N), np.int8)
        for i, group in enumerate(found):
            width = min(N, columns - i * N)
            part = data[i * N * rows : (i * N + width) * rows]
            group[:, :width] = by_columns(part, rows, width)
        return found

    def _masks(self) -> pg.Poly:
        """Return one ciphertext for each row r of the database, in batch shape (ciphertexts, packed, 2).

        The body is 0, and the mask is -h_r. h_r is the sum over groups j of D_rj(1/X) * a_j. The coefficients
        of D_rj are the entries of row r in group j. The polynomials a_j are public. The masks are scaled from
        2^32 to Q, and divided by N modulo Q, because packing multiplies by N.
        """
        at, layout = rings(), self.layout
        padded = layout.ciphertexts * layout.packed
        found = at.ring.zeros((padded, 2), domain="eval")
        # h_r(1/X) is the sum over j of D_rj(X) * a_j(1/X). So the automorphism X -> 1/X is applied only to
        # the a_j and to the sums, not to the many polynomials D_rj.
        public = layout.public(self.seed).convert(at.sums).automorphism(-1).ntt()
        step = max(1, BLOCK // (layout.groups * N))
        for i in range(0, layout.rows, step):
            rows = np.ascontiguousarray(self.database[:, i : i + step].swapaxes(0, 1))
            sums = pg.dot(at.sums(rows).ntt(), public)
            words = sums.intt().automorphism(-1).to_int64().astype(np.uint32)[:, None]  # reduced modulo 2^32
            scaled = pg.rns.scale(-at.words.from_residues(words), at.ring.modulus, at.ring)
            found[i : i + len(rows), 1] = scaled.ntt() * pow(N, -1, at.ring.modulus)
        return found.reshape(layout.ciphertexts, layout.packed, 2)

    def multiply(self, words: Array) -> Array:
        """Return the database matrix times `words` (columns, k), modulo 2^32, as an array (rows, k)."""
        padded = np.zeros((self.layout.groups * N, words.shape[1]), np.uint32)
        padded[: len(words)] = words
        total = np.zeros((self.layout.rows, words.shape[1]), np.uint32)
        for group, part in zip(self.database, padded.reshape(-1, N, words.shape[1]), strict=True):
            total += matmul(group, part, q=1 << 32)  # uint32 wraps modulo 2^32
        return total

    @pg.device("cpu")
    def pack(self, words: Array, keys: Sequence[lattice.SwitchKey]) -> pg.Poly:
        """Pack `words` (rows,), a result of `multiply`, into ciphertexts (ciphertexts, 2) modulo Q."""
        at, layout = rings(), self.layout
        places = np.zeros((layout.ciphertexts, 1, N), np.uint32)
        padded = np.zeros(layout.ciphertexts * layout.packed, np.uint32)
        padded[: layout.rows] = words
        places[..., :: N // layout.packed] = padded.reshape(layout.ciphertexts, 1, layout.packed)
        bodies = pg.rns.scale(at.words.from_residues(places), at.ring.modulus, at.ring)
        c = lattice.pack(self.masks, dict(zip(ELEMENTS, keys, strict=True))).intt()
        c[..., 0] = c[..., 0] + bodies
        return c

    # ---- for `Service` ----

    @property
    def query_bytes(self) -> int:
        """Length of a query with its keys, in bytes."""
        return 4 * self.layout.columns + key_format().size

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that clients need, as a dict for JSON."""
        layout = self.layout
        return {"protocol": "packed", "size": layout.size, "count": layout.count, "seed": self.seed.hex()}

    @pg.device("cpu")
    def read(self, body: bytes) -> Query:
        """Decode a query; raise NotCanonical if a residue is not below its modulus."""
        end = 4 * self.layout.columns
        return Query(words_of(body[:end]), key_format().read(body[end:]))

    def answers(self, queries: Sequence[Query]) -> Sequence[Array]:
        """Return an array (ciphertexts, 2, N) for each query, with residues modulo the first prime of Q."""
        words = self.multiply(np.stack([query.words for query in queries], axis=1))
        found = [self.pack(words[:, i], query.keys) for i, query in enumerate(queries)]
        return [np.asarray(c.mod_down(rings().answer).data[..., 0, :]) for c in found]


class Client:
    """A client. It makes queries and decrypts answers."""

    @pg.device("cpu")
    def __init__(self, layout: Layout, seed: bytes) -> None:
        self.layout, self._public = layout, layout.public(seed)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], hint: Callable[[int], bytes], seed: bytes) -> Client:
        """Return a client for the parameters of a service; `hint` and `seed` are not used."""
        layout = Layout(int(parameters["size"]), int(parameters["count"]))
        return cls(layout, bytes.fromhex(parameters["seed"]))

    @property
    def answer_bytes(self) -> int:
        """Length of an answer in bytes."""
        return self.layout.ciphertexts * 2 * N * 4

    @pg.device("cpu")
    def query(self, index: int, seed: bytes) -> tuple[Query, pg.Poly]:
        """Return a query for a record, and the secret that decrypts the answer.

        The seed must be secret and used only once.
        """
        at, column = rings(), as_index(index, self.layout) // self.layout.in_column
        secret = at.ring.join(at.special).ternary(seed=derive(seed, "secret"))
        noise = at.words.gaussian(SIGMA, batch=self.layout.groups, seed=derive(seed, "noise"))
        hidden = self._public * secret.convert(at.words) + noise
        words = np.array(hidden.data).reshape(-1)[: self.layout.columns]
        words[column : column + 1] += np.uint32(SCALE)  # unlike a scalar, a slice wraps without a warning
        keys = lattice.rotation_keys(
            secret,
            ELEMENTS,
            ring=at.ring,
            special=at.special,
            limbs_per_digit=1,
            sigma=KEY_SIGMA,
            seed=derive(seed, "keys"),
        )
        return Query(words, list(keys.values())), secret.restrict(at.answer)

    def written(self, query: Query) -> bytes:
        """Encode a query as bytes."""
        return query.words.astype("<u4").tobytes() + key_format().written(query.keys)

    @pg.device("cpu")
    def record(self, index: int, answer: Array, secret: pg.Poly) -> bytes:
        """Return the record in an answer; raise NotCanonical if a residue is not below its modulus."""
        layout, q = self.layout, rings().answer.modulus
        c = residues(answer, rings().answer).reshape(-1, 2)
        phase = (c[:, 0] + c[:, 1] * secret).data[:, 0, :: N // layout.packed]
        return layout.record(index, nearest_bytes(phase, q).reshape(-1))


def run(seed: bytes | None = None) -> Result:
    """Fetch 4 of 4096 random records of 256 bytes with one product, and check them."""
    return trial(Server, lambda server, _: Client(server.layout, server.seed), 1024, seed)
