"""SimplePIR: one product of a matrix of bytes and the query, and a hint for the clients.

The database is a matrix D of bytes, and a record is a part of a column. A client hides the unit vector u of
the column in LWE samples: A s + e + 2^24 u modulo 2^32, with a public matrix A. The server multiplies D by
that vector. One product, which reads D once, serves all clients that ask at the time. To read its answer a
client needs the hint D A. It does not depend on the query, so it is fetched once.
Source: Henzinger, Hong, Corrigan-Gibbs, Meiklejohn, Vaikuntanathan 2022/949.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import polygpu as pg
from polygpu.examples.bfv import derive
from polygpu.linalg import matmul

from .common import Array, ColumnLayout, Result, as_bytes, as_index, by_columns, log2_failure, trial, words_of

# LWE with these numbers has 128 bits of security for up to 2^20 samples, the columns (2022/949, section 4.2)
Q, SECRETS, SIGMA, MOST_COLUMNS = 1 << 32, 1024, 6.4, 1 << 20
SCALE = Q // 256  # of a byte in an answer


@dataclass(frozen=True)
class Layout(ColumnLayout):
    """A matrix that is nearly a square, with at most 2^20 columns."""

    def __post_init__(self) -> None:
        """Check that the records fit."""
        if self.size < 1 or self.count < 1 or self.columns > MOST_COLUMNS:
            raise pg.ParameterError(
                f"records: {self.count} of {self.size} bytes; there must be one at least, and at most "
                f"{MOST_COLUMNS} columns. Take longer records or several databases."
            )

    @property
    def in_column(self) -> int:
        """Records of a column: as many as make the matrix a square, nearly."""
        return max(1, math.isqrt(self.count // self.size))

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is wrong.

        A byte is wrong if a sum of `columns` Gaussian errors times entries, up to 128, is 2^23 or more.
        """
        return log2_failure(self.size, SCALE / 2, SIGMA * 128 * math.sqrt(self.columns))

    def matrix(self, seed: bytes) -> Array:
        """Return the public matrix A, (columns, 1024)."""
        return np.asarray(pg.Ring(SECRETS, Q).random(self.columns, seed=seed).cpu().data[:, 0])


class Server:
    """A database and its hint, D A; `answer` multiplies D by queries."""

    together = 32

    def __init__(self, data: bytes | Array, size: int, seed: bytes | None = None) -> None:
        given = as_bytes(data)
        self.layout = Layout(size, -(-given.size // max(size, 1)))
        self.database = by_columns(given, self.layout.rows, self.layout.columns)
        self.seed = secrets.token_bytes(32) if seed is None else seed
        self.hint = matmul(self.database, self.layout.matrix(self.seed), q=Q)

    def answer(self, queries: Array) -> Array:
        """Return D times queries (columns, k): words (rows, k)."""
        return np.asarray(matmul(self.database, queries, q=Q))

    # ---- for a service ----

    @property
    def query_bytes(self) -> int:
        """Bytes of a query."""
        return 4 * self.layout.columns

    def parameters(self) -> dict[str, Any]:
        """Return what clients must know."""
        layout = self.layout
        return {"protocol": "simple", "size": layout.size, "count": layout.count, "seed": self.seed.hex()}

    def read(self, body: bytes) -> Array:
        """Return a query from bytes."""
        return words_of(body)

    def answers(self, queries: Sequence[Array]) -> Sequence[Array]:
        """Return the answers of queries by one product, each (rows,)."""
        return list(np.ascontiguousarray(self.answer(np.stack(queries, axis=1)).T))


class Client:
    """Makes queries, and reads answers by the hint."""

    def __init__(self, layout: Layout, seed: bytes, hint: Array) -> None:
        self.layout, self.hint, self._matrix = layout, hint, layout.matrix(seed)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], hint: Callable[[int], bytes], _: bytes) -> Client:
        """Return a client for the parameters of a service; `hint` reads a hint of given length."""
        layout = Layout(int(parameters["size"]), int(parameters["count"]))
        seed = bytes.fromhex(parameters["seed"])
        return cls(layout, seed, words_of(hint(4 * layout.rows * SECRETS)).reshape(layout.rows, SECRETS))

    @property
    def answer_bytes(self) -> int:
        """Bytes of an answer."""
        return 4 * self.layout.rows

    def query(self, index: int, seed: bytes) -> tuple[Array, Array]:
        """Return a query for a record, (columns,), and the secret that reads its answer.

        The seed must be secret and used only once.
        """
        column, columns = as_index(index, self.layout) // self.layout.in_column, self.layout.columns
        secret = pg.Ring(SECRETS, Q).random(seed=derive(seed, "secret")).cpu().data[0]
        noise = pg.Ring(columns, Q).gaussian(SIGMA, seed=derive(seed, "noise")).cpu().data[0]
        unit = np.zeros(columns, np.uint32)
        unit[column] = SCALE
        return matmul(self._matrix, secret, q=Q) + noise + unit, secret  # words wrap

    def written(self, query: Array) -> bytes:
        """Return a query as bytes."""
        return query.astype("<u4").tobytes()

    def record(self, index: int, answer: Array, secret: Array) -> bytes:
        """Return the record from an answer, (rows,)."""
        words = np.asarray(answer - matmul(self.hint, secret, q=Q))
        column = ((words + np.uint32(SCALE // 2)) // np.uint32(SCALE)).astype(np.uint8) ^ 128
        return self.layout.record(index, column)


def run(seed: bytes | None = None) -> Result:
    """Fetch 16 of 4096 random records of 256 bytes, in one product, and compare them."""
    return trial(Server, lambda server, _: Client(server.layout, server.seed, server.hint), 256, seed)
