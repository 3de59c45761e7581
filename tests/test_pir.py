"""Private retrieval: every record comes back, queries show nothing, and no request disturbs another."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import polygpu as pg
from polygpu.examples import pir
from polygpu.examples.pir import Client, Layout, Server, Service


def data_of(count: int, size: int) -> bytes:
    """Random bytes with the ends among them."""
    found = np.random.default_rng(count * size).integers(0, 256, count * size, np.uint8)
    found[:: max(1, len(found) // 7)] = 255
    found[1 :: max(1, len(found) // 7)] = 0
    return found.tobytes()


def client_of(server: Server) -> Client:
    return Client(server.layout, server.seed, server.hint)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 300), (1000, 1), (97, 3), (64, 32), (7, 5000)])
def test_every_record_comes_back(count: int, size: int) -> None:
    data = data_of(count, size)
    server = Server(data, size, b"public")
    client, layout = client_of(server), server.layout
    assert (layout.rows, layout.columns * layout.in_column >= count) == (size * layout.in_column, True)
    asked = [client.query(i, bytes([i % 256, i // 256])) for i in range(count)]
    answers = server.answer(np.stack([query for query, _ in asked], axis=1))
    for i, (_, secret) in enumerate(asked):
        assert client.record(i, answers[:, i], secret) == data[i * size : (i + 1) * size]


def test_the_last_record_is_filled_with_zeros() -> None:
    server = Server(b"abcde", 3)
    client = client_of(server)
    query, secret = client.query(1, b"seed")
    assert client.record(1, server.answer(query[:, None])[:, 0], secret) == b"de\0"


def test_answers_are_products_of_the_database_by_python_ints() -> None:
    server = Server(data_of(50, 4), 4, b"public")
    D = server.database.astype(object)
    queries = np.random.default_rng(1).integers(0, 1 << 32, (server.layout.columns, 3)).astype(np.uint32)
    assert np.array_equal(server.answer(queries), D @ queries.astype(object) % (1 << 32))
    assert np.array_equal(server.hint, D @ server.layout.matrix(b"public").astype(object) % (1 << 32))


def test_noise_is_that_of_the_bound() -> None:
    """All bytes 0, which are -128: the errors of an answer have the deviation 128 sigma sqrt(columns)."""
    server = Server(bytes(2**16), 1, b"public")
    client, errors = client_of(server), []
    for i in range(200):
        query, secret = client.query(i, bytes([i]))
        words = server.answer(query[:, None])[:, 0] - pg.linalg.matmul(server.hint, secret, q=1 << 32)
        errors.append((words - np.uint32(128 << 24)).view(np.int32)[0])
    deviation = 128 * pir.SIGMA * math.sqrt(server.layout.columns)
    assert 0.8 < np.std(errors) / deviation < 1.2
    layout = Layout(1, 2**36)
    x = 2**23 / (128 * pir.SIGMA * math.sqrt(layout.columns))
    assert layout.failure == pytest.approx(math.log2(math.erfc(x / math.sqrt(2))), abs=0.1)


def test_failure_at_the_largest_size() -> None:
    assert Layout(1 << 20, 1 << 20).failure < -40
    with pytest.raises(pg.ParameterError, match="Take longer records"):
        Layout(1, 1 << 42)
    with pytest.raises(pg.ParameterError, match="at least"):
        Layout(0, 5)
    with pytest.raises(pg.ParameterError, match="at least"):
        Server(b"", 3)


def test_queries_differ_and_look_uniform() -> None:
    client = client_of(Server(data_of(4096, 16), 16, b"public"))
    queries = [client.query(i, seed)[0] for i, seed in ((0, b"a"), (0, b"b"), (4000, b"c"))]
    for i, a in enumerate(queries):
        assert 0.4 < (a >> 31).mean() < 0.6
        assert all((a != b).mean() > 0.99 for b in queries[:i])
    other = Client(client.layout, b"public", client.hint)
    assert np.array_equal(other.query(5, b"same")[0], client.query(5, b"same")[0])
    for index in (-1, 4096):
        with pytest.raises(pg.ParameterError, match=f"index: {index} is not in"):
            client.query(index, b"seed")


def test_another_secret_reads_nothing() -> None:
    server = Server(data_of(256, 64), 64, b"public")
    client = client_of(server)
    query, secret = client.query(3, b"seed")
    found = client.record(3, server.answer(query[:, None])[:, 0], secret[::-1])
    assert np.mean(np.frombuffer(found, np.uint8) == np.frombuffer(data_of(256, 64)[192:256], np.uint8)) < 0.2


def test_the_example_is_right() -> None:
    result = pir.run(b"seed")
    assert result.ok and result.size == 4096 and result.failure < -1000


# ---- over HTTP ----

COUNT, SIZE = 500, 20


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(Server(data_of(COUNT, SIZE), SIZE), port=0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def record(index: int) -> bytes:
    return data_of(COUNT, SIZE)[index * SIZE : (index + 1) * SIZE]


def test_many_clients_at_once(service: Service) -> None:
    assert service.url.startswith("http://127.0.0.1:")
    wanted = [[i, COUNT - 1 - i] for i in range(12)]
    with ThreadPoolExecutor(12) as clients:
        found = list(clients.map(lambda some: pir.fetch(service.url, some), wanted))
    assert found == [[record(i) for i in some] for some in wanted]


def test_queries_that_wait_are_answered_by_one_product(service: Service, monkeypatch: Any) -> None:
    columns, widths, whole = service.pir.layout.columns, [], service.pir.answer
    first, go = threading.Event(), threading.Event()

    def answer(queries: Any) -> Any:
        widths.append(queries.shape[1])
        first.set()
        go.wait(10)
        return whole(queries)

    monkeypatch.setattr(service.pir, "answer", answer)
    queries = np.random.default_rng(1).integers(0, 1 << 32, (50, columns)).astype(np.uint32)
    with ThreadPoolExecutor(50) as clients:
        answers = [clients.submit(service.submit, queries[0])]
        first.wait(10)
        answers += [clients.submit(service.submit, query) for query in queries[1:]]
        while service._waiting.qsize() < 49:
            pass
        go.set()
        found = np.stack([answer.result() for answer in answers], axis=1)
    assert widths == [1, 32, 17] and np.array_equal(found, whole(queries.T.copy()))


@pytest.mark.parametrize(
    "request_of",
    [
        b"POST /answer HTTP/1.0\r\n\r\n",
        b"POST /answer HTTP/1.0\r\nContent-Length: -1\r\n\r\n",
        b"POST /answer HTTP/1.0\r\nContent-Length: 99999999999999\r\n\r\n",
        b"POST /answer HTTP/1.0\r\nContent-Length: abc\r\n\r\n",
        b"POST /hint HTTP/1.0\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET /etc/passwd HTTP/1.0\r\n\r\n",
        b"GET /../parameters HTTP/1.0\r\n\r\n",
        b"DELETE /hint HTTP/1.0\r\n\r\n",
        b"\x80\x04\x95 pickles\r\n\r\n",
        b"GET " + b"a" * 70000 + b" HTTP/1.0\r\n\r\n",
        b"\r\n",
        b"",
    ],
)
def test_a_malformed_request_gets_an_error(service: Service, request_of: bytes) -> None:
    with socket.create_connection(service.server_address[:2], timeout=10) as connection:
        connection.sendall(request_of)
        connection.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert not reply or b"200 OK" not in reply
    assert pir.fetch(service.url, [7]) == [record(7)]


def test_half_a_query_ends_without_an_answer(service: Service) -> None:
    columns = service.pir.layout.columns
    with socket.create_connection(service.server_address[:2], timeout=10) as connection:
        connection.sendall(
            b"POST /answer HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (4 * columns) + bytes(columns)
        )
        assert pir.fetch(service.url, [8]) == [record(8)]  # another client does not wait
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def test_too_many_clients_are_turned_away(service: Service, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "places", threading.Semaphore(0))
    with pytest.raises(OSError):
        pir.fetch(service.url, [1])
    monkeypatch.undo()
    assert pir.fetch(service.url, [1]) == [record(1)]


def test_an_error_in_a_product_reaches_its_clients_alone(service: Service, monkeypatch: Any) -> None:
    def fail(_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(service.pir, "answer", fail)
        with pytest.raises(OSError):
            pir.fetch(service.url, [2])
    assert pir.fetch(service.url, [2]) == [record(2)]


@pytest.mark.parametrize(
    "parameters",
    [
        *(b"no json", b"[]", b"{}", b'{"size": 0, "count": 5, "seed": ""}'),
        *(b'{"size": 1, "count": 1125899906842624, "seed": ""}', b'{"size": 1, "count": 1, "seed": "x"}'),
    ],
)
def test_a_client_refuses_other_parameters(parameters: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pir, "_ask", lambda *_, **__: parameters)
    with pytest.raises(pg.ParameterError):
        pir.fetch("http://127.0.0.1:1", [0])


def test_answers_of_another_length_are_refused(service: Service) -> None:
    for most in (10, 10**9):
        with pytest.raises(OSError, match="another length"):
            pir._ask(f"{service.url}/hint", most, exact=True)
    with pytest.raises(HTTPError, match="404"):
        urlopen(Request(f"{service.url}/"), timeout=10)


def test_the_command(tmp_path: Path, service: Service, capfdbinary: Any) -> None:
    assert pir.main(["get", "3", "--url", service.url + "/"]) == 0
    assert capfdbinary.readouterr().out == record(3)
    for arguments in (
        ["get", "500", "--url", service.url],
        ["get", "1", "--url", "http://127.0.0.1:1"],
        ["serve", str(tmp_path / "missing")],
        ["serve", str(tmp_path / "empty")],
        ["serve", str(tmp_path / "file"), "--record-size", "0"],
        [],
    ):
        (tmp_path / "empty").touch()
        (tmp_path / "file").write_bytes(b"abc")
        with pytest.raises(SystemExit) as caught:
            pir.main(arguments)
        assert caught.value.code == 2
