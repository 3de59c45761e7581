"""Retrieval by one short ciphertext: the server expands it, multiplies polynomials, and folds the rest.

A record is a part of a polynomial whose N = 4096 coefficients are bytes, or several polynomials. They form a
matrix (2^b, columns), held evaluated modulo Q, which takes eight times their bytes. The query is one
ciphertext. Its coefficients hide Q / 256 at the column of the record and 0 at the others, and m_t g_l for
the bits m_t of the row, where g_l are the weights of a gadget; here there is one. All are divided by their
number, rounded up to a power of two, since expansion multiplies by it. The server expands the query to a
ciphertext for each coefficient, and makes GGSW ciphertexts of those of the bits. It multiplies the matrix by
the ciphertexts of the columns. Then each bit chooses a half of the rows, until one ciphertext is left, which
is sent modulo the first prime of Q.

Masks of queries are fresh, so that a secret and its keys may serve many queries. The keys are sent with each
of them, so that a server has no sessions.

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
BITS, LEVELS = 20, 1  # of the digits that GGSW ciphertexts multiply
MOST_FOLDS = 10
BLOCK = 1 << 9  # polynomials that are transformed at a time


class Rings(NamedTuple):
    """The rings of degree N: modulo Q, P, and the first prime of Q."""

    ring: pg.Ring
    special: pg.Ring
    answer: pg.Ring


@cache
def rings() -> Rings:
    """Return the rings: Q has two primes of 28 bits, P has 30; 106 would be secure (lattice.max_log_q)."""
    ring = pg.Ring(N, pg.ntt_primes(N, bits=28, count=2))
    return Rings(ring, pg.Ring(N, pg.ntt_primes(N, bits=30)), ring[:1])


@dataclass(frozen=True)
class Layout:
    """`count` records of `size` bytes in polynomials, a matrix (parts, 2^folds, columns) of them.

    Record i is in cell i // in_cell, and cell c at row c // columns and column c % columns.
    """

    size: int
    count: int

    def __post_init__(self) -> None:
        """Check that the records fit."""
        if self.size < 1 or self.count < 1 or not self._sizes():
            raise pg.ParameterError(
                f"records: {self.count} of {self.size} bytes; there must be one at least, and at most "
                f"{(N - MOST_FOLDS * LEVELS) << MOST_FOLDS} records, or {N} bytes of shorter ones for each. "
                "Take several databases."
            )

    @property
    def in_cell(self) -> int:
        """Records of a polynomial."""
        return max(1, N // self.size)

    @property
    def parts(self) -> int:
        """Polynomials of a record."""
        return -(-self.size // N)

    @property
    def cells(self) -> int:
        """The number of polynomials, or of groups of polynomials for longer records."""
        return -(-self.count // self.in_cell)

    def _sizes(self) -> list[tuple[int, int, int]]:
        """Return (cost, folds, columns) for each number of folds that a query has room for.

        The cost counts key switches and external products, which take about the same time.
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
        """Bits of a row; of all that a query has room for, those that take the least time."""
        return min(self._sizes())[1]

    @property
    def columns(self) -> int:
        """Columns of the matrix."""
        return min(self._sizes())[2]

    @property
    def values(self) -> int:
        """Ciphertexts that a query is expanded to, a power of two."""
        return _power(self.columns + self.folds * LEVELS)

    def variance(self, entry: float = 128) -> float:
        """Return the variance of the error of an answer modulo Q, for bytes of that root mean square.

        Each step of the expansion doubles the mean variance of its ciphertexts' coefficients and adds that of
        a key switch. The errors of a query itself end at few coefficients and are left out. A record whose
        row has bits 0 has a smaller error, since an external product with 0 rounds nothing.
        """
        Q, step = rings().ring.modulus, switch_variance(rings().ring, rings().special, SIGMA)
        expanded = (self.values - 1) * step
        chosen = self.columns * N * entry**2 * expanded
        # A GGSW ciphertext has rows with the errors e of the expansion, and rows with e s and a key switch's.
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
        """The form of the keys of a query: those of the expansion, and one from s^2 to s."""
        return KeyFormat(rings().ring, rings().special, (*self.elements, None))

    @property
    def elements(self) -> tuple[int, ...]:
        """The Galois elements of the expansion."""
        return tuple((N >> j) + 1 for j in range(self.values.bit_length() - 1))


def _power(x: int) -> int:
    """Return the least power of two that is at least x."""
    return 1 << (x - 1).bit_length()


class Query(NamedTuple):
    """A ciphertext, as the seed of its mask and its body, and the keys to expand it."""

    seed: bytes
    body: pg.Poly
    keys: Sequence[lattice.SwitchKey]


class Server:
    """A database of polynomials (parts, 2^folds, columns), evaluated."""

    together, hint = 8, None

    @pg.device("cpu")
    def __init__(self, data: bytes | Array, size: int) -> None:
        given = as_bytes(data)
        self.layout = layout = Layout(size, -(-given.size // max(size, 1)))
        cells, ring = layout.columns << layout.folds, rings().ring
        found = ring.zeros((layout.parts, cells), domain="eval").data
        in_cell = layout.in_cell * size  # bytes
        for part in range(layout.parts):
            width = min(N, in_cell - part * N)
            for i in range(0, cells, BLOCK):
                block = np.zeros((min(BLOCK, cells - i), in_cell), np.uint8)
                some = given[i * in_cell : (i + len(block)) * in_cell]
                block.reshape(-1)[: some.size] = some
                bytes_of = np.zeros((len(block), N), np.uint8)
                bytes_of[:, :width] = block[:, part * N : part * N + width]
                # Signed numbers, the bytes less 128, have errors half as large.
                found[part, i : i + BLOCK] = ring((bytes_of ^ 128).view(np.int8)).ntt().data
        value = ring.from_residues(found, domain="eval", copy=False)
        self.database = value.reshape(layout.parts, 1 << layout.folds, layout.columns)

    @pg.device("cpu")
    def answer(self, query: Query) -> pg.Poly:
        """Return the ciphertexts that hide a record, (parts, 2), modulo Q."""
        layout, ring = self.layout, rings().ring
        *rotations, relin = query.keys
        mask = ring.random(domain="eval", seed=query.seed)
        keys = dict(zip(layout.elements, rotations, strict=True))
        expanded = lattice.expand(pg.stack([query.body.ntt(), mask]), keys, layout.values)
        state = pg.matmul(self.database, expanded[: layout.columns])  # (parts, rows, 2)
        for t in range(layout.folds):
            first = layout.columns + t * LEVELS
            bit = lattice.rgsw_from_rlwe(expanded[first : first + LEVELS], relin)
            state = lattice.cmux(bit, state[:, 0::2], state[:, 1::2], bits=BITS)
        return state[:, 0]

    # ---- for a service ----

    @property
    def query_bytes(self) -> int:
        """Bytes of a query with its keys."""
        return SEED + 4 * rings().ring.rows * N + self.layout.key_format.size

    def parameters(self) -> dict[str, Any]:
        """Return what clients must know."""
        return {"protocol": "folded", "size": self.layout.size, "count": self.layout.count}

    @pg.device("cpu")
    def read(self, body: bytes) -> Query:
        """Return a query from bytes; raise NotCanonical if a residue is not below its modulus."""
        end = SEED + 4 * rings().ring.rows * N
        value = residues(words_of(body[SEED:end]), rings().ring)[0]
        return Query(body[:SEED], value, self.layout.key_format.read(body[end:]))

    def answers(self, queries: Sequence[Query]) -> Sequence[Array]:
        """Return the answers of queries: words (parts, 2, N), modulo the first prime."""
        found = [self.answer(query) for query in queries]
        return [np.asarray(c.mod_down(rings().answer).intt().data[..., 0, :]) for c in found]


class Client:
    """Makes queries with keys of one secret, and reads answers."""

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
        """Return a client for the parameters of a service, whose hint is not read."""
        return cls(Layout(int(parameters["size"]), int(parameters["count"])), seed)

    @property
    def answer_bytes(self) -> int:
        """Bytes of an answer."""
        return self.layout.parts * 2 * N * 4

    @pg.device("cpu")
    def query(self, index: int, seed: bytes) -> tuple[Query, pg.Poly]:
        """Return a query for a record, and the secret that reads its answer.

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
        """Return a query as bytes."""
        body = query.body.data.astype("<u4").tobytes()
        return query.seed + body + self.layout.key_format.written(query.keys)

    @pg.device("cpu")
    def record(self, index: int, answer: Array, secret: pg.Poly) -> bytes:
        """Return the record from an answer; raise NotCanonical if a residue is not below its modulus."""
        layout, ring = self.layout, rings().answer
        c = residues(answer, ring).reshape(layout.parts, 2)
        phase = (c[:, 0] + (c[:, 1].ntt() * secret).intt()).data[:, 0]
        found = nearest_bytes(phase, ring.modulus)
        first = index % layout.in_cell * layout.size
        return bytes(found.reshape(-1)[first : first + layout.size])


def run(seed: bytes | None = None) -> Result:
    """Fetch 4 of 4096 random records of 256 bytes, each by a query of its own, and compare them."""
    return trial(Server, lambda server, seed: Client(server.layout, seed), 1024, seed)
