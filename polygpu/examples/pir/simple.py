"""SimplePIR: one product of a matrix of bytes and a query, and a hint for the clients.

The database is a matrix D of bytes, and a record is a part of a column. A client encrypts the unit vector u
that selects the column: it sends the vector A * s + e + 2^24 * u modulo 2^32, where A is a public matrix, s
the secret and e the error of LWE. The server multiplies D by this vector. One product, which reads D once,
answers all queries that wait at the time. To decrypt an answer, a client subtracts (D * A) * s, so it needs
the hint D * A. The hint does not depend on the query, so a client fetches it once.
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

# LWE with modulus Q, secrets of 1024 entries and errors of standard deviation 6.4 has 128 bits of security
# for up to 2^20 samples. Each column uses one sample (2022/949, section 4.2).
Q, SECRETS, SIGMA, MOST_COLUMNS = 1 << 32, 1024, 6.4, 1 << 20
SCALE = Q // 256  # the factor of a byte in an answer


@dataclass(frozen=True)
class Layout(ColumnLayout):
    """Layout of the records in a matrix that is nearly square and has at most 2^20 columns."""

    def __post_init__(self) -> None:
        """Check that the layout has a record and at most MOST_COLUMNS columns."""
        if self.size < 1 or self.count < 1 or self.columns > MOST_COLUMNS:
            raise pg.ParameterError(
                f"The number of records is {self.count}, of {self.size} bytes each. There must be at least "
                f"one, and they must fit in {MOST_COLUMNS} columns. Use longer records or several databases."
            )

    @property
    def in_column(self) -> int:
        """The number of records in a column, chosen to make the matrix nearly square."""
        return max(1, math.isqrt(self.count // self.size))

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is wrong.

        The error of a byte is the sum over the columns of a Gaussian error times an entry. The absolute value
        of an entry is at most 128. A byte is wrong if the absolute value of its error is at least 2^23.
        """
        return log2_failure(self.size, SCALE / 2, SIGMA * 128 * math.sqrt(self.columns))

    def matrix(self, seed: bytes) -> Array:
        """Return the public matrix A, (columns, 1024), expanded from a public seed."""
        return np.asarray(pg.Ring(SECRETS, Q).random(self.columns, seed=seed).cpu().data[:, 0])


class Server:
    """Server with the database matrix D and the hint D * A. `answer` multiplies D by queries."""

    together = 32

    def __init__(self, data: bytes | Array, size: int, seed: bytes | None = None) -> None:
        given = as_bytes(data)
        self.layout = Layout(size, -(-given.size // max(size, 1)))
        self.database = by_columns(given, self.layout.rows, self.layout.columns)
        self.seed = secrets.token_bytes(32) if seed is None else seed
        self.hint = matmul(self.database, self.layout.matrix(self.seed), q=Q)

    def answer(self, queries: Array) -> Array:
        """Return the database matrix times `queries` (columns, k), modulo 2^32, as an array (rows, k)."""
        return np.asarray(matmul(self.database, queries, q=Q))

    # ---- for `Service` ----

    @property
    def query_bytes(self) -> int:
        """Length of a query in bytes."""
        return 4 * self.layout.columns

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that clients need, as a dict for JSON."""
        layout = self.layout
        return {"protocol": "simple", "size": layout.size, "count": layout.count, "seed": self.seed.hex()}

    def read(self, body: bytes) -> Array:
        """Decode a query."""
        return words_of(body)

    def answers(self, queries: Sequence[Array]) -> Sequence[Array]:
        """Return one answer of shape (rows,) for each query. One product computes all answers."""
        return list(np.ascontiguousarray(self.answer(np.stack(queries, axis=1)).T))


class Client:
    """A client. It makes queries, and decrypts answers with the hint."""

    def __init__(self, layout: Layout, seed: bytes, hint: Array) -> None:
        self.layout, self.hint, self._matrix = layout, hint, layout.matrix(seed)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], hint: Callable[[int], bytes], _: bytes) -> Client:
        """Return a client for the parameters of a service; `hint` is a function that fetches the hint."""
        layout = Layout(int(parameters["size"]), int(parameters["count"]))
        seed = bytes.fromhex(parameters["seed"])
        return cls(layout, seed, words_of(hint(4 * layout.rows * SECRETS)).reshape(layout.rows, SECRETS))

    @property
    def answer_bytes(self) -> int:
        """Length of an answer in bytes."""
        return 4 * self.layout.rows

    def query(self, index: int, seed: bytes) -> tuple[Array, Array]:
        """Return a query (columns,) for a record, and the secret that decrypts the answer.

        The seed must be secret and used only once.
        """
        column, columns = as_index(index, self.layout) // self.layout.in_column, self.layout.columns
        secret = pg.Ring(SECRETS, Q).random(seed=derive(seed, "secret")).cpu().data[0]
        noise = pg.Ring(columns, Q).gaussian(SIGMA, seed=derive(seed, "noise")).cpu().data[0]
        unit = np.zeros(columns, np.uint32)
        unit[column] = SCALE
        return matmul(self._matrix, secret, q=Q) + noise + unit, secret  # uint32 wraps modulo Q

    def written(self, query: Array) -> bytes:
        """Encode a query as bytes."""
        return query.astype("<u4").tobytes()

    def record(self, index: int, answer: Array, secret: Array) -> bytes:
        """Decrypt `answer` (rows,), and return the record in it."""
        words = np.asarray(answer - matmul(self.hint, secret, q=Q))
        column = ((words + np.uint32(SCALE // 2)) // np.uint32(SCALE)).astype(np.uint8) ^ 128
        return self.layout.record(index, column)


def run(seed: bytes | None = None) -> Result:
    """Fetch 16 of 4096 random records of 256 bytes with one product, and check them."""
    return trial(Server, lambda server, _: Client(server.layout, server.seed, server.hint), 256, seed)
