"""Retrieval by one short ciphertext: the server expands it, multiplies polynomials, and folds the rows.

The N = 4096 coefficients of a polynomial are bytes. A record is a part of a polynomial, or takes several
polynomials. The polynomials form a matrix (2^b, columns). The matrix is stored evaluated modulo Q, in eight
bytes for each byte of the database.

The query is one ciphertext. It encrypts one coefficient for each column, which is Q / 256 for the column of
the record and 0 for the others. The query also encrypts m_t * g_l for each bit m_t of the row's index and
each weight g_l of a gadget. Here the gadget has one weight. Let 2^v be the number of values, rounded up to a
power of two. The client divides each value by 2^v, because expansion multiplies by 2^v.

The server expands the query to one ciphertext for each value. It makes GGSW ciphertexts from the ciphertexts
for the bits. It multiplies the matrix by the ciphertexts for the columns, which leaves one ciphertext for
each row. Then each bit selects one half of the rows (a fold), until one ciphertext is left. This ciphertext
is sent modulo the first prime of Q.

Each query has a fresh mask, so one secret and its keys can be used for many queries. The keys are sent with
each query, so that the server needs no sessions.

Sources: Menon, Wu 2022/368 (Spiral); Angel, Chen, Laine, Setty 2018 (IEEE S&P) for the expansion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import polygpu as pg
from polygpu import lattice
from polygpu.examples.bfv import derive

from .common import (
    SEED,
    Array,
    KeyFormat,
    Result,
    as_bytes,
    as_index,
    log2_failure,
    nearest_bytes,
    residues,
    rounding_variance,
    switch_variance,
    trial,
    words_of,
)

N, SIGMA = 4096, 3.2
BITS, LEVELS = 20, 1  # bits of a digit, and number of digits, in products with GGSW ciphertexts
MOST_FOLDS = 10  # the largest number b of folds: the matrix of polynomials has 2^b rows
BLOCK = 1 << 9  # number of polynomials that are transformed in one call


class Rings(NamedTuple):
    """The rings of degree N.

    ring: the ring modulo Q. special: the ring modulo P. answer: the ring modulo the first prime of Q.
    """

    ring: pg.Ring
    special: pg.Ring
    answer: pg.Ring


@cache
def rings() -> Rings:
    """Return the rings. Q * P has 28 + 28 + 30 = 86 bits; at most 106 bits are secure (lattice.max_log_q)."""
    ring = pg.Ring(N, pg.ntt_primes(N, bits=28, count=2))
    return Rings(ring, pg.Ring(N, pg.ntt_primes(N, bits=30)), ring[:1])


@dataclass(frozen=True)
class Layout:
    """Layout of `count` records of `size` bytes in an array (parts, 2^folds, columns) of polynomials.

    A cell, given by its row and column, has `parts` polynomials: one, unless a record is longer than N bytes.
    Record i is in cell i // in_cell. Cell c is at row c // columns and column c % columns.
    """

    size: int
    count: int

    def __post_init__(self) -> None:
        """Raise ParameterError if `size` or `count` is below 1, or if the records need too many cells."""
        if self.size < 1 or self.count < 1 or not self._sizes():
            raise pg.ParameterError(
                f"The number of records is {self.count}, of {self.size} bytes each. There must be at least "
                f"one, and at most {(N - MOST_FOLDS * LEVELS) << MOST_FOLDS}, where shorter records count as "
                f"one if they fit in {N} bytes. Use several databases for more."
            )

    @property
    def in_cell(self) -> int:
        """The number of records in a cell."""
        return max(1, N // self.size)

    @property
    def parts(self) -> int:
        """The number of polynomials in a cell."""
        return -(-self.size // N)

    @property
    def cells(self) -> int:
        """The number of cells with records."""
        return -(-self.count // self.in_cell)

    def _sizes(self) -> list[tuple[int, int, int]]:
        """Return (cost, folds, columns) for each number of folds for which a query has at most N values.

        cost: the number of key switches and external products. Both take about the same time.
        """
        found = []
        for folds in range(MOST_FOLDS + 1):
            columns = -(-self.cells >> folds)
            values = columns + folds * LEVELS
            if values <= N:
                found.append((_power(values) + (self.parts << folds) + folds * LEVELS, folds, columns))
        return found

    @property
    def folds(self) -> int:
        """The number of folds for which an answer costs least. Each bit of a row's index has one fold."""
        return min(self._sizes())[1]

    @property
    def columns(self) -> int:
        """The number of columns of the matrix."""
        return min(self._sizes())[2]

    @property
    def values(self) -> int:
        """The number of ciphertexts to which a query is expanded, a power of two."""
        return _power(self.columns + self.folds * LEVELS)

    def variance(self, entry: float = 128) -> float:
        """Return the variance of the error of an answer modulo Q.

        On average, each step of the expansion doubles the variance of a coefficient's error, and adds the
        variance of a key switch. The errors of the query itself reach only few coefficients and are left out.
        All bits of the row's index are assumed to be 1. A bit 0 gives a smaller error, because it multiplies
        the rounding errors of digits by 0.

        entry: the root mean square of the coefficients in the database, which are bytes minus 128.
        """
        Q, step = rings().ring.modulus, switch_variance(rings().ring, rings().special, SIGMA)
        expanded = (self.values - 1) * step
        chosen = self.columns * N * entry**2 * expanded
        # Half of the rows of a GGSW ciphertext have the error e of the expansion. The others have e * s plus
        # the error of a key switch. `rows` is the sum of both variances.
        rows = expanded * (1 + 2 * N / 3) + step
        digits = LEVELS * N * (1 << 2 * BITS) / 12 * rows
        rounded = (Q / (1 << BITS * LEVELS)) ** 2 * rounding_variance(N)
        return chosen + self.folds * (digits + rounded)

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is wrong."""
        Q, q = rings().ring.modulus, rings().answer.modulus
        deviation = math.sqrt(self.variance() * (q / Q) ** 2 + rounding_variance(N))
        return log2_failure(self.size, q / 512, deviation)

    @property
    def key_format(self) -> KeyFormat:
        """The encoding of the keys in a query: those for `lattice.expand`, then one from s^2 to s."""
        return KeyFormat(rings().ring, rings().special, (*self.elements, None))

    @property
    def elements(self) -> tuple[int, ...]:
        """The Galois elements of the keys that lattice.expand needs."""
        return tuple((N >> j) + 1 for j in range(self.values.bit_length() - 1))


def _power(x: int) -> int:
    """Return the least power of two that is at least x."""
    return 1 << (x - 1).bit_length()


class Query(NamedTuple):
    """A query: the client's keys, and a ciphertext, stored as its body and the public seed of its mask."""

    seed: bytes
    body: pg.Poly
    keys: Sequence[lattice.SwitchKey]


class Server:
    """Server whose database is a Poly of batch shape (parts, 2^folds, columns), evaluated."""

    together, hint = 8, None

    @pg.device("cpu")
    def __init__(self, data: bytes | Array, size: int) -> None:
        given = as_bytes(data)
        self.layout = layout = Layout(size, -(-given.size // max(size, 1)))
        cells, ring = layout.columns << layout.folds, rings().ring
        found = ring.zeros((layout.parts, cells), domain="eval").data
        in_cell = layout.in_cell * size  # bytes of a cell
        for part in range(layout.parts):
            width = min(N, in_cell - part * N)
            for i in range(0, cells, BLOCK):
                block = np.zeros((min(BLOCK, cells - i), in_cell), np.uint8)
                some = given[i * in_cell : (i + len(block)) * in_cell]
                block.reshape(-1)[: some.size] = some
                bytes_of = np.zeros((len(block), N), np.uint8)
                bytes_of[:, :width] = block[:, part * N : part * N + width]
                # Coefficients are bytes minus 128, as int8, which halves the errors of an answer.
                found[part, i : i + BLOCK] = ring((bytes_of ^ 128).view(np.int8)).ntt().data
        value = ring.from_residues(found, domain="eval", copy=False)
        self.database = value.reshape(layout.parts, 1 << layout.folds, layout.columns)

    @pg.device("cpu")
    def answer(self, query: Query) -> pg.Poly:
        """Return the ciphertexts of the record, modulo Q, as a Poly of batch shape (parts, 2)."""
        layout, ring = self.layout, rings().ring
        *rotations, relin = query.keys
        mask = ring.random(domain="eval", seed=query.seed)
        keys = dict(zip(layout.elements, rotations, strict=True))
        expanded = lattice.expand(pg.stack([query.body.ntt(), mask]), keys, layout.values)
        state = pg.matmul(self.database, expanded[: layout.columns])  # (parts, rows, 2)
        for t in range(layout.folds):
            # Keep the even rows of `state` if bit t of the row's index is 0, or the odd rows if bit t is 1.
            # The lowest bit has t = 0.
            first = layout.columns + t * LEVELS
            bit = lattice.rgsw_from_rlwe(expanded[first : first + LEVELS], relin)
            state = lattice.cmux(bit, state[:, 0::2], state[:, 1::2], bits=BITS)
        return state[:, 0]

    # ---- for `Service` ----

    @property
    def query_bytes(self) -> int:
        """Length of a query with its keys, in bytes."""
        return SEED + 4 * rings().ring.rows * N + self.layout.key_format.size

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that clients need, as a dict for JSON."""
        return {"protocol": "folded", "size": self.layout.size, "count": self.layout.count}

    @pg.device("cpu")
    def read(self, body: bytes) -> Query:
        """Decode a query; raise NotCanonical if a residue is not below its modulus."""
        end = SEED + 4 * rings().ring.rows * N
        value = residues(words_of(body[SEED:end]), rings().ring)[0]
        return Query(body[:SEED], value, self.layout.key_format.read(body[end:]))

    def answers(self, queries: Sequence[Query]) -> Sequence[Array]:
        """Return an array (parts, 2, N) for each query, with residues modulo the first prime of Q."""
        found = [self.answer(query) for query in queries]
        return [np.asarray(c.mod_down(rings().answer).intt().data[..., 0, :]) for c in found]


class Client:
    """A client. It makes queries with the keys of one secret, and decrypts answers."""

    @pg.device("cpu")
    def __init__(self, layout: Layout, seed: bytes) -> None:
        """Make the secret and its keys from a secret seed."""
        at = rings()
        self.layout = layout
        self._secret = secret = at.ring.join(at.special).ternary(seed=derive(seed, "secret")).ntt()
        of: Any = {"ring": at.ring, "special": at.special, "limbs_per_digit": 1, "sigma": SIGMA}
        rotations = lattice.rotation_keys(secret, layout.elements, **of, seed=derive(seed, "rotations"))
        relin = lattice.switch_key(secret, secret * secret, **of, seed=derive(seed, "relin"))
        self.keys = [*rotations.values(), relin]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], hint: Callable[[int], bytes], seed: bytes) -> Client:
        """Return a client for the parameters of a service; `hint` is not used."""
        return cls(Layout(int(parameters["size"]), int(parameters["count"])), seed)

    @property
    def answer_bytes(self) -> int:
        """Length of an answer in bytes."""
        return self.layout.parts * 2 * N * 4

    @pg.device("cpu")
    def query(self, index: int, seed: bytes) -> tuple[Query, pg.Poly]:
        """Return a query for a record, and the secret that decrypts the answer.

        The seed must be secret and used only once.
        """
        layout, ring = self.layout, rings().ring
        Q = ring.modulus
        row, column = divmod(as_index(index, layout) // layout.in_cell, layout.columns)
        hidden = [0] * N
        hidden[column] = (Q + 128) // 256
        weights = lattice.gadget(ring, bits=BITS, levels=LEVELS)
        for t in range(layout.folds):
            first = layout.columns + t * LEVELS
            hidden[first : first + LEVELS] = [(row >> t & 1) * weight for weight in weights]
        public, secret = derive(seed, "mask"), self._secret.restrict(ring)
        noisy = ring(hidden) + ring.gaussian(SIGMA, seed=derive(seed, "noise"))
        mask = ring.random(domain="eval", seed=public)
        body = noisy * pow(layout.values, -1, Q) - (mask * secret).intt()
        return Query(public, body, self.keys), self._secret.restrict(rings().answer)

    def written(self, query: Query) -> bytes:
        """Encode a query as bytes."""
        body = query.body.data.astype("<u4").tobytes()
        return query.seed + body + self.layout.key_format.written(query.keys)

    @pg.device("cpu")
    def record(self, index: int, answer: Array, secret: pg.Poly) -> bytes:
        """Return the record in an answer; raise NotCanonical if a residue is not below its modulus."""
        layout, ring = self.layout, rings().answer
        c = residues(answer, ring).reshape(layout.parts, 2)
        phase = (c[:, 0] + (c[:, 1].ntt() * secret).intt()).data[:, 0]
        found = nearest_bytes(phase, ring.modulus)
        first = index % layout.in_cell * layout.size
        return bytes(found.reshape(-1)[first : first + layout.size])


def run(seed: bytes | None = None) -> Result:
    """Fetch 4 of 4096 random records of 256 bytes, with one query for each, and check them."""
    return trial(Server, lambda server, seed: Client(server.layout, seed), 1024, seed)
