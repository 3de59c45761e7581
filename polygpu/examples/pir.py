"""SimplePIR: a record of a server's database, and the server does not learn which.

    python -m polygpu.examples.pir serve FILE --record-size 256 [--port 8000]
    python -m polygpu.examples.pir get INDEX [--url http://127.0.0.1:8000]

The database is a matrix D of bytes, and a record is a part of a column. A client hides the unit vector u of
the column in LWE samples: A s + e + 2^24 u modulo 2^32, with a public matrix A. The server multiplies D by
that vector. One product, which reads D once, serves all clients that ask at the time. To read its answer a
client needs the hint D A. It does not depend on the query, so it is fetched once.
Source: Henzinger, Hong, Corrigan-Gibbs, Meiklejohn, Vaikuntanathan 2022/949.

An example, not a product: it is not constant time, nobody has reviewed it, and nothing proves that an answer
belongs to the database. Lengths and times show how many records a client asks for.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu.examples.bfv import derive
from polygpu.linalg import matmul

Array = NDArray[Any]

# LWE with these numbers has 128 bits of security for up to 2^20 samples, the columns (2022/949, section 4.2)
Q, SECRETS, SIGMA, MOST_COLUMNS = 1 << 32, 1024, 6.4, 1 << 20
SCALE = Q // 256  # of a byte in an answer
TOGETHER = 32  # queries that one product answers


@dataclass(frozen=True)
class Layout:
    """`count` records of `size` bytes in a matrix (rows, columns); record i is in column i // in_column."""

    size: int
    count: int

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
    def rows(self) -> int:
        """Bytes of a column."""
        return self.size * self.in_column

    @property
    def columns(self) -> int:
        """The number of columns."""
        return -(-self.count // self.in_column)

    @property
    def failure(self) -> float:
        """Log2 of a bound on the probability that a record is wrong.

        A byte is wrong if a sum of `columns` Gaussian errors times entries, up to 128, is 2^23 or more.
        """
        x = SCALE / 2 / (SIGMA * 128 * math.sqrt(2 * self.columns))
        return math.log2(self.size) - (x * x + math.log(x * math.sqrt(math.pi))) / math.log(2)

    def matrix(self, seed: bytes) -> Array:
        """Return the public matrix A, (columns, 1024)."""
        return np.asarray(pg.Ring(SECRETS, Q).random(self.columns, seed=seed).cpu().data[:, 0])


class Server:
    """A database and its hint, D A; `answer` multiplies D by queries."""

    def __init__(self, data: bytes | Array, size: int, seed: bytes | None = None) -> None:
        given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data, np.uint8)
        self.layout = Layout(size, -(-given.size // max(size, 1)))
        rows, columns = self.layout.rows, self.layout.columns
        by_column = np.zeros(rows * columns, np.uint8)
        by_column[: given.size] = given.ravel()
        by_column ^= 128  # as signed numbers the bytes less 128: the errors of an answer are half as large
        self.database = np.ascontiguousarray(by_column.view(np.int8).reshape(columns, rows).T)
        self.seed = secrets.token_bytes(32) if seed is None else seed
        self.hint = matmul(self.database, self.layout.matrix(self.seed), q=Q)

    def answer(self, queries: Array) -> Array:
        """Return D times queries (columns, k): words (rows, k)."""
        return np.asarray(matmul(self.database, queries, q=Q))


class Client:
    """Makes queries, and reads answers by the hint."""

    def __init__(self, layout: Layout, seed: bytes, hint: Array) -> None:
        self.layout, self.hint, self._matrix = layout, hint, layout.matrix(seed)

    def query(self, index: int, seed: bytes) -> tuple[Array, Array]:
        """Return a query for a record, (columns,), and the secret that reads its answer.

        The seed must be secret and used only once.
        """
        if not 0 <= index < self.layout.count:
            raise pg.ParameterError(f"index: {index} is not in 0 ... {self.layout.count - 1}.")
        columns = self.layout.columns
        secret = pg.Ring(SECRETS, Q).random(seed=derive(seed, "secret")).cpu().data[0]
        noise = pg.Ring(columns, Q).gaussian(SIGMA, seed=derive(seed, "noise")).cpu().data[0]
        unit = np.zeros(columns, np.uint32)
        unit[index // self.layout.in_column] = SCALE
        return matmul(self._matrix, secret, q=Q) + noise + unit, secret  # words wrap

    def record(self, index: int, answer: Array, secret: Array) -> bytes:
        """Return the record from an answer, (rows,)."""
        words = np.asarray(answer - matmul(self.hint, secret, q=Q))
        column = ((words + np.uint32(SCALE // 2)) // np.uint32(SCALE)).astype(np.uint8) ^ 128
        first = index % self.layout.in_column * self.layout.size
        return bytes(column[first : first + self.layout.size])


# ---- over HTTP ----

LONGEST_WAIT = 30.0  # seconds for a query to come, and for each read
LONGEST_REPLY = 600.0  # seconds after which a connection ends
MOST_CLIENTS = 64  # connections at once


class Service(ThreadingHTTPServer):
    """Serves GET /parameters, GET /hint and POST /answer: one product for all queries that wait."""

    daemon_threads = True

    def __init__(self, server: Server, host: str = "127.0.0.1", port: int = 8000) -> None:
        super().__init__((host, port), _Handler)
        self.pir, self.places = server, threading.Semaphore(MOST_CLIENTS)
        self._waiting: SimpleQueue[tuple[Array, Future[Array]]] = SimpleQueue()
        threading.Thread(target=self._multiply, daemon=True).start()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def submit(self, query: Array) -> Array:
        """Return the answer of one query when the next product is done."""
        answer: Future[Array] = Future()
        self._waiting.put((query, answer))
        return answer.result(LONGEST_WAIT)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a thread of its own, or close the connection if there are too many."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, for a limited time."""
        end = threading.Timer(LONGEST_REPLY, self.shutdown_request, (request,))
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that broke."""

    def _multiply(self) -> None:
        while True:
            some = [self._waiting.get()]
            while len(some) < TOGETHER:
                try:
                    some.append(self._waiting.get_nowait())
                except Empty:
                    break
            try:
                answers = self.pir.answer(np.stack([query for query, _ in some], axis=1))
            except Exception as error:
                for _, future in some:
                    future.set_exception(error)
            else:
                for i, (_, future) in enumerate(some):
                    future.set_result(np.ascontiguousarray(answers[:, i]))


class _Handler(BaseHTTPRequestHandler):
    """A request of a client, of whose bytes nothing is made but numbers of a known count."""

    server: Service
    timeout = LONGEST_WAIT

    def do_GET(self) -> None:
        """Send the parameters or the hint."""
        pir = self.server.pir
        if self.path == "/parameters":
            layout = pir.layout
            text = json.dumps({"size": layout.size, "count": layout.count, "seed": pir.seed.hex()})
            self._reply(200, text.encode(), "application/json")
        elif self.path == "/hint":
            self._reply(200, pir.hint.astype("<u4").tobytes())
        else:
            self._reply(404, b"ask for /parameters or /hint, or post a query to /answer\n", "text/plain")

    def do_POST(self) -> None:
        """Answer a query."""
        expected = 4 * self.server.pir.layout.columns
        if self.path != "/answer" or self.headers.get("Content-Length") != str(expected):
            self._reply(400, f"post {expected} bytes to /answer\n".encode(), "text/plain")
        elif body := self._read(expected):
            answer = self.server.submit(np.frombuffer(body, "<u4").astype(np.uint32))
            self._reply(200, answer.astype("<u4").tobytes())

    def _read(self, count: int) -> bytes | None:
        """Return so many bytes; None if they do not come in time."""
        parts, end = bytearray(), monotonic() + LONGEST_WAIT
        while len(parts) < count and monotonic() < end:
            part = self.rfile.read1(min(1 << 16, count - len(parts)))
            if not part:
                break
            parts += part
        return bytes(parts) if len(parts) == count else None

    def _reply(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing: a log of requests tells who asks when."""


def fetch(url: str, indices: Sequence[int], seed: bytes | None = None) -> list[bytes]:
    """Return records of a service, each by a query of its own; parameters and hint are fetched once.

    Raises:
        ParameterError: an index is outside the database, or the service has parameters that are not accepted.
        OSError: the service does not answer as it should.
    """
    seed = secrets.token_bytes(32) if seed is None else seed
    try:
        found = json.loads(_ask(f"{url}/parameters", 4096))
        layout, public = Layout(int(found["size"]), int(found["count"])), bytes.fromhex(found["seed"])
    except (ValueError, KeyError, TypeError) as error:
        raise pg.ParameterError(f"{url}: its parameters are not those of a database: {error}") from None
    hint = np.frombuffer(_ask(f"{url}/hint", 4 * layout.rows * SECRETS, exact=True), "<u4").astype(np.uint32)
    client, records = Client(layout, public, hint.reshape(layout.rows, SECRETS)), []
    for i, index in enumerate(indices):
        query, secret = client.query(index, derive(seed, f"query {i}"))
        answer = _ask(f"{url}/answer", 4 * layout.rows, query.astype("<u4").tobytes(), exact=True)
        records.append(client.record(index, np.frombuffer(answer, "<u4").astype(np.uint32), secret))
    return records


def _ask(url: str, most: int, body: bytes | None = None, exact: bool = False) -> bytes:
    """Return what a service answers, of a bounded length."""
    with urlopen(Request(url, body), timeout=LONGEST_WAIT) as reply:
        data: bytes = reply.read(most + 1)
    if len(data) > most or (exact and len(data) < most):
        raise OSError(f"{url}: the answer has another length than its database")
    return data


# ---- the command ----


class Result(NamedTuple):
    """What `run` found: bytes of the records, whether they are right, and log2 of the failure bound."""

    size: int
    ok: bool
    failure: float


def run(seed: bytes | None = None) -> Result:
    """Fetch 16 of 4096 random records of 256 bytes, in one product, and compare them."""
    seed = secrets.token_bytes(32) if seed is None else seed
    data = np.random.default_rng(1).integers(0, 256, (4096, 256), np.uint8)
    server = Server(data, 256)
    client = Client(server.layout, server.seed, server.hint)
    wanted = list(range(0, 4096, 256))
    asked = [client.query(index, derive(seed, f"query {index}")) for index in wanted]
    answers = server.answer(np.stack([query for query, _ in asked], axis=1))
    found = [
        client.record(index, answers[:, i], secret)
        for i, (index, (_, secret)) in enumerate(zip(wanted, asked, strict=True))
    ]
    right = [data[index].tobytes() for index in wanted]
    return Result(sum(map(len, found)), found == right, server.layout.failure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a file, or get records of a service."""
    parser = argparse.ArgumentParser(prog="python -m polygpu.examples.pir", description="Private retrieval.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the records of a file until Ctrl-C")
    serve.add_argument("file", type=Path)
    serve.add_argument("--record-size", type=int, default=256, help="bytes of a record (256)")
    serve.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000)
    get = commands.add_parser("get", help="write a record to standard output")
    get.add_argument("index", type=int)
    get.add_argument("--url", default="http://127.0.0.1:8000")
    options = parser.parse_args(arguments)
    try:
        if options.command == "get":
            sys.stdout.buffer.write(fetch(options.url.rstrip("/"), [options.index])[0])
            return 0
        data = np.memmap(options.file, np.uint8, "r")
        with Service(Server(data, options.record_size), options.host, options.port) as service:
            layout = service.pir.layout
            print(f"{layout.count} records of {layout.size} bytes at {service.url}", end="; ")
            print(f"a record is wrong with a probability below 2^{layout.failure:.0f}", flush=True)
            service.serve_forever()
    except KeyboardInterrupt:
        return 130
    except (pg.PolyGPUError, OSError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
