"""Retrieval over HTTP: a server for any protocol, which answers waiting queries together, and a client."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

import polygpu as pg
from polygpu.examples.bfv import derive

from . import folded, packed, simple
from .common import Array, Database, Reader, words_of

# PROTOCOLS[name] makes a server. The arguments are the data and the size of a record.
# _CLIENTS[name] makes a client. The arguments are the server's parameters, a function that fetches a hint of
# a given length, and a secret seed.
PROTOCOLS: Mapping[str, Callable[[Any, int], Database]] = {
    "simple": simple.Server,
    "packed": packed.Server,
    "folded": folded.Server,
}
_CLIENTS: Mapping[str, Callable[[Mapping[str, Any], Callable[[int], bytes], bytes], Reader]] = {
    "simple": simple.Client.of,
    "packed": packed.Client.of,
    "folded": folded.Client.of,
}

LONGEST_WAIT = 30.0  # seconds that a client waits for data, or the server for the rest of a query
LONGEST_REPLY = 600.0  # seconds after which a connection is closed
MOST_CLIENTS = 64  # largest number of open connections


class Service(ThreadingHTTPServer):
    """HTTP server for GET /parameters, GET /hint and POST /answer; waiting queries are answered together."""

    daemon_threads = True

    def __init__(self, server: Database, host: str = "127.0.0.1", port: int = 8000) -> None:
        super().__init__((host, port), _Handler)
        self.pir, self.places = server, threading.Semaphore(MOST_CLIENTS)
        self._waiting: SimpleQueue[tuple[Any, Future[Array]]] = SimpleQueue()
        threading.Thread(target=self._answer, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL at which clients reach the service."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def submit(self, query: Any) -> Array:
        """Return the answer to a query. Queries are answered in the order in which they are submitted."""
        answer: Future[Array] = Future()
        self._waiting.put((query, answer))
        return answer.result(LONGEST_WAIT)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a new thread, or close the connection if MOST_CLIENTS are being served."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, but close the connection after LONGEST_REPLY seconds."""
        end = threading.Timer(LONGEST_REPLY, self.shutdown_request, (request,))
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection, which the base class would print."""

    def _answer(self) -> None:
        """Answer queries for ever. One call of `answers` takes the waiting queries, at most `together`."""
        while True:
            some = [self._waiting.get()]
            while len(some) < self.pir.together:
                try:
                    some.append(self._waiting.get_nowait())
                except Empty:
                    break
            try:
                answers = self.pir.answers([query for query, _ in some])
            except Exception as error:
                for _, future in some:
                    future.set_exception(error)
            else:
                for answer, (_, future) in zip(answers, some, strict=True):
                    future.set_result(answer)


class _Handler(BaseHTTPRequestHandler):
    """Handler of a client's requests. Queries have `query_bytes` bytes and are read as integers."""

    server: Service
    timeout = LONGEST_WAIT

    def do_GET(self) -> None:
        """Send the parameters or the hint."""
        pir = self.server.pir
        if self.path == "/parameters":
            self._reply(200, json.dumps(pir.parameters()).encode(), "application/json")
        elif self.path == "/hint" and pir.hint is not None:
            self._reply(200, pir.hint.astype("<u4").tobytes())
        else:
            self._reply(404, b"ask for /parameters or /hint, or post a query to /answer\n", "text/plain")

    def do_POST(self) -> None:
        """Answer a query."""
        expected = self.server.pir.query_bytes
        if self.path != "/answer" or self.headers.get("Content-Length") != str(expected):
            self._reply(400, f"post {expected} bytes to /answer\n".encode(), "text/plain")
        elif body := self._read(expected):
            try:
                query = self.server.pir.read(body)
            except pg.PolyGPUError as error:
                self._reply(400, f"{error}\n".encode(), "text/plain")
                return
            self._reply(200, self.server.submit(query).astype("<u4").tobytes())

    def _read(self, count: int) -> bytes | None:
        """Return the next `count` bytes of the request, or None if fewer arrive in LONGEST_WAIT seconds."""
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
        """Do not write a log, because a log would tell who asks, and when."""


def fetch(url: str, indices: Sequence[int], seed: bytes | None = None) -> list[bytes]:
    """Fetch records from a service: the parameters and the hint once, then each record with one query.

    seed: a secret from which all secrets of the client are derived. It must be used only once. By default it
    is random.

    Raises:
        ParameterError: an index is outside the database, or the parameters of the service are not valid.
        NotCanonical: an answer has a number that is not below its modulus.
        OSError: the service is unreachable, reports an error, or sends an answer of an unexpected length.
    """
    seed = secrets.token_bytes(32) if seed is None else seed
    try:
        found = json.loads(_ask(f"{url}/parameters", 4096))
        make = _CLIENTS[found.get("protocol", "simple")]
        client = make(found, lambda size: _ask(f"{url}/hint", size, exact=True), derive(seed, "client"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise pg.ParameterError(
            f"{url} gives parameters that are not those of a database ({error}). Give the address of a "
            "service of polygpu.examples.pir."
        ) from None
    records = []
    for i, index in enumerate(indices):
        query, secret = client.query(index, derive(seed, f"query {i}"))
        answer = _ask(f"{url}/answer", client.answer_bytes, client.written(query), exact=True)
        records.append(client.record(index, words_of(answer), secret))
    return records


def _ask(url: str, most: int, body: bytes | None = None, exact: bool = False) -> bytes:
    """Send a request and return the reply. The request is a POST if `body` is given, else a GET.

    Raise OSError if the reply has more than `most` bytes. If `exact`, also raise it for fewer bytes.
    """
    with urlopen(Request(url, body), timeout=LONGEST_WAIT) as reply:
        data: bytes = reply.read(most + 1)
    if len(data) > most or (exact and len(data) < most):
        raise OSError(
            f"{url} gives an answer of another length than its database needs. Ask again, or update the "
            "service."
        )
    return data
