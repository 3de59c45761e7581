"""Retrieval without a hint: SimplePIR's product, and its answer packed in ciphertexts of a ring.

As in SimplePIR the database is a matrix D of bytes, and a record is a part of a column. Columns are in groups
of N = 2048. Group j has a public uniform polynomial a_j modulo 2^32. A client sends the coefficients of
a_j s + e_j + 2^24 u_j, where s is a fresh ternary secret, e_j is Gaussian and u is the unit vector of the
column. The server multiplies D by that vector. Row r of the result is coefficient 0 of a polynomial. Its mask
h_r is the sum of D_rj(1/X) a_j over the groups, which does not depend on the query and is computed once. The
server scales these ciphertexts from 2^32 to Q, and `lattice.pack` puts up to N of them in one, by key
switches with keys of the client. Packing is linear, and automorphisms leave constants as they are. So the
server packs the masks alone, and adds the words of the product to the result.

Q has two primes, each of which is a digit, so that P Q stays below the bound of 53 bits for N = 2048, and the
errors of packing, which grow by a factor of N, stay small. An answer is sent modulo the first prime.

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

# A ternary secret with N, a modulus of 2^32 and this error is above 128 bits (lattice.max_log_q).
N, SIGMA, KEY_SIGMA, MOST_COLUMNS = 2048, 6.4, 3.2, 1 << 20
ROWS = 1024  # of a matrix if records and columns allow it: each row costs a key switch, each column a word
SCALE = 1 << 24  # of a byte in a query
ELEMENTS = tuple(2**j + 1 for j in range(1, N.bit_length()))
BLOCK = 1 << 22  # entries of D that are transformed at a time


class Rings(NamedTuple):
    """The rings of degree N: modulo 2^32, for sums of products, modulo Q, P, and the first prime of Q."""

    words: pg.Ring
    sums: pg.Ring
    ring: pg.Ring
    special: pg.Ring
    answer: pg.Ring


@cache
def rings() -> Rings:
    """Return the rings: Q has 18 + 17 bits, P 18, and sums 60, where 2^20 products are below 2^58."""
    (first, special), second = pg.ntt_primes(N, bits=18, count=2), pg.ntt_primes(N, bits=17)
    ring, sums = pg.Ring(N, [first, *second]), pg.Ring(N, pg.ntt_primes(N, bits=30, count=2))
    return Rings(pg.Ring(N, 1 << 32), sums, ring, pg.Ring(N, special), ring[:1])


@cache
def key_format() -> KeyFormat:
    """Return the form of the keys of a query."""
    return KeyFormat(rings().ring, rings().special, ELEMENTS)


@dataclass(frozen=True)
class Layout(ColumnLayout):
    """A matrix that is wide: 1024 rows if records and columns allow it. Columns are in groups of N."""

    def __post_init__(self) -> None:
        """Check that there are records."""
        if self.size < 1 or self.count < 1:
            raise pg.ParameterError(
                f"records: {self.count} of {self.size} bytes; there must be one at least. Give a longer file."
            )

    @property
    def in_column(self) -> int:
        """Records of a column: as many as fit in 1024 rows, or more so that the columns are at most 2^20."""
        return max(1, min(self.count, ROWS // self.size), -(-self.count // MOST_COLUMNS))

    @property
    def groups(self) -> int:
        """The number of groups of N columns; the last one may have fewer."""
        return -(-self.columns // N)

    @property
    def packed(self) -> int:
        """Rows of a ciphertext: N, or the least power of two that is enough."""
        return min(N, 1 << (self.rows - 1).bit_length())

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts in an answer."""
        return -(-self.rows // self.packed)

    def variance(self, entry: float = 128) -> float:
        """Return the variance of the error of an answer modulo Q, for entries of that root mean square.

        It is that of the product, of rounding to Q, and of packing. Each of the log2 N steps of packing
        doubles the errors of those before it: so it has (N^2 - 1) / 3 times the variance of one key switch.
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
        """Return the public polynomials a_j, (groups,)."""
        return rings().words.random(self.groups, seed=seed)


class Query(NamedTuple):
    """The words of a query, (columns,), and keys for the elements 2^j + 1, j = 1, ..., log2 N."""

    words: Array
    keys: Sequence[lattice.SwitchKey]


class Server:
    """A database, (groups, rows, N), and the masks of its rows, prepared for packing.

    Columns of the last group that are not there are 0. A group is a matrix of its own, since the part of a
    query that it is multiplied by stays in the first cache.
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
        """Return the matrix whose columns are the data, filled with zeros, as signed numbers."""
        rows, columns = self.layout.rows, self.layout.columns
        found = np.zeros((self.layout.groups, rows, N), np.int8)
        for i, group in enumerate(found):
            width = min(N, columns - i * N)
            part = data[i * N * rows : (i * N + width) * rows]
            group[:, :width] = by_columns(part, rows, width)
        return found

    def _masks(self) -> pg.Poly:
        """Return ciphertexts (ciphertexts, packed, 2) of body 0, with minus the masks of the rows.

        They are scaled to Q and divided by N, since packing multiplies by N.
        """
        at, layout = rings(), self.layout
        padded = layout.ciphertexts * layout.packed
        found = at.ring.zeros((padded, 2), domain="eval")
        # h_r(1/X) is the sum of D_rj(X) a_j(1/X): so D's polynomials are transformed as they are.
        public = layout.public(self.seed).convert(at.sums).automorphism(-1).ntt()
        step = max(1, BLOCK // (layout.groups * N))
        for i in range(0, layout.rows, step):
            rows = np.ascontiguousarray(self.database[:, i : i + step].swapaxes(0, 1))
            sums = pg.dot(at.sums(rows).ntt(), public)
            words = sums.intt().automorphism(-1).to_int64().astype(np.uint32)[:, None]  # modulo 2^32
            scaled = pg.rns.scale(-at.words.from_residues(words), at.ring.modulus, at.ring)
            found[i : i + len(rows), 1] = scaled.ntt() * pow(N, -1, at.ring.modulus)
        return found.reshape(layout.ciphertexts, layout.packed, 2)

    def multiply(self, words: Array) -> Array:
        """Return the product of the matrix and words (columns, k), modulo 2^32: (rows, k)."""
        padded = np.zeros((self.layout.groups * N, words.shape[1]), np.uint32)
        padded[: len(words)] = words
        total = np.zeros((self.layout.rows, words.shape[1]), np.uint32)
        for group, part in zip(self.database, padded.reshape(-1, N, words.shape[1]), strict=True):
            total += matmul(group, part, q=1 << 32)  # words wrap
        return total

    @pg.device("cpu")
    def pack(self, words: Array, keys: Sequence[lattice.SwitchKey]) -> pg.Poly:
        """Return ciphertexts modulo Q, (ciphertexts, 2), that hide the phases of words (rows,)."""
        at, layout = rings(), self.layout
        places = np.zeros((layout.ciphertexts, 1, N), np.uint32)
        padded = np.zeros(layout.ciphertexts * layout.packed, np.uint32)
        padded[: layout.rows] = words
        places[..., :: N // layout.packed] = padded.reshape(layout.ciphertexts, 1, layout.packed)
        bodies = pg.rns.scale(at.words.from_residues(places), at.ring.modulus, at.ring)
        c = lattice.pack(self.masks, dict(zip(ELEMENTS, keys, strict=True))).intt()
        c[..., 0] = c[..., 0] + bodies
        return c

    # ---- for a service ----

    @property
    def query_bytes(self) -> int:
        """Bytes of a query with its keys."""
        return 4 * self.layout.columns + key_format().size

    def parameters(self) -> dict[str, Any]:
        """Return what clients must know."""
        layout = self.layout
        return {"protocol": "packed", "size": layout.size, "count": layout.count, "seed": self.seed.hex()}

    @pg.device("cpu")
    def read(self, body: bytes) -> Query:
        """Return a query from bytes; raise NotCanonical if a residue is not below its modulus."""
        end = 4 * self.layout.columns
        return Query(words_of(body[:end]), key_format().read(body[end:]))

    def answers(self, queries: Sequence[Query]) -> Sequence[Array]:
        """Return the answers of queries by one product: words (ciphertexts, 2, N), modulo the first prime."""
        words = self.multiply(np.stack([query.words for query in queries], axis=1))
        found = [self.pack(words[:, i], query.keys) for i, query in enumerate(queries)]
        return [np.asarray(c.mod_down(rings().answer).data[..., 0, :]) for c in found]


class Client:
    """Makes queries, and reads answers."""

    @pg.device("cpu")
    def __init__(self, layout: Layout, seed: bytes) -> None:
        self.layout, self._public = layout, layout.public(seed)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], hint: Callable[[int], bytes], seed: bytes) -> Client:
        """Return a client for the parameters of a service, whose hint is not read."""
        layout = Layout(int(parameters["size"]), int(parameters["count"]))
        return cls(layout, bytes.fromhex(parameters["seed"]))

    @property
    def answer_bytes(self) -> int:
        """Bytes of an answer."""
        return self.layout.ciphertexts * 2 * N * 4

    @pg.device("cpu")
    def query(self, index: int, seed: bytes) -> tuple[Query, pg.Poly]:
        """Return a query for a record, and the secret that reads its answer.

        The seed must be secret and used only once.
        """
        at, column = rings(), as_index(index, self.layout) // self.layout.in_column
        secret = at.ring.join(at.special).ternary(seed=derive(seed, "secret"))
        noise = at.words.gaussian(SIGMA, batch=self.layout.groups, seed=derive(seed, "noise"))
        hidden = self._public * secret.convert(at.words) + noise
        words = np.array(hidden.data).reshape(-1)[: self.layout.columns]
        words[column : column + 1] += np.uint32(SCALE)  # an array of words wraps
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
        """Return a query as bytes."""
        return query.words.astype("<u4").tobytes() + key_format().written(query.keys)

    @pg.device("cpu")
    def record(self, index: int, answer: Array, secret: pg.Poly) -> bytes:
        """Return the record from an answer; raise NotCanonical if a residue is not below its modulus."""
        layout, q = self.layout, rings().answer.modulus
        c = residues(answer, rings().answer).reshape(-1, 2)
        phase = (c[:, 0] + c[:, 1] * secret).data[:, 0, :: N // layout.packed]
        return layout.record(index, nearest_bytes(phase, q).reshape(-1))


def run(seed: bytes | None = None) -> Result:
    """Fetch 4 of 4096 random records of 256 bytes, in one product, and compare them."""
    return trial(Server, lambda server, _: Client(server.layout, server.seed), 1024, seed)
