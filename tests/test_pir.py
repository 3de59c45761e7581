"""Private information retrieval: correctness, uniform queries, and isolation of requests."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import polygpu as pg
from polygpu.examples import pir
from polygpu.examples.pir import Service, common, folded, packed, simple
from polygpu.examples.pir.__main__ import main
from polygpu.examples.pir.simple import Client, Layout, Server

Protocol = Any  # one of the modules of the protocols


def data_of(count: int, size: int) -> bytes:
    """Random bytes with the ends among them."""
    found = np.random.default_rng(count * size).integers(0, 256, count * size, np.uint8)
    found[:: max(1, len(found) // 7)] = 255
    found[1 :: max(1, len(found) // 7)] = 0
    return found.tobytes()


def client_of(server: Server) -> Client:
    return Client(server.layout, server.seed, server.hint)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 300), (1000, 1), (97, 3), (64, 32), (7, 5000)])
def test_every_record_is_retrieved(count: int, size: int) -> None:
    data = data_of(count, size)
    server = Server(data, size, b"public")
    client, layout = client_of(server), server.layout
    assert (layout.rows, layout.columns * layout.in_column >= count) == (size * layout.in_column, True)
    asked = [client.query(i, bytes([i % 256, i // 256])) for i in range(count)]
    answers = server.answer(np.stack([query for query, _ in asked], axis=1))
    for i, (_, secret) in enumerate(asked):
        assert client.record(i, answers[:, i], secret) == data[i * size : (i + 1) * size]


def test_last_record_is_padded_with_zeros() -> None:
    server = Server(b"abcde", 3)
    client = client_of(server)
    query, secret = client.query(1, b"seed")
    assert client.record(1, server.answer(query[:, None])[:, 0], secret) == b"de\0"


def test_answers_match_python_ints() -> None:
    server = Server(data_of(50, 4), 4, b"public")
    D = server.database.astype(object)
    queries = np.random.default_rng(1).integers(0, 1 << 32, (server.layout.columns, 3)).astype(np.uint32)
    assert np.array_equal(server.answer(queries), D @ queries.astype(object) % (1 << 32))
    assert np.array_equal(server.hint, D @ server.layout.matrix(b"public").astype(object) % (1 << 32))


def test_noise_matches_the_bound() -> None:
    """All bytes are 0, stored as -128, so errors have the deviation 128 sigma sqrt(columns)."""
    server = Server(bytes(2**16), 1, b"public")
    client, errors = client_of(server), []
    for i in range(200):
        query, secret = client.query(i, bytes([i]))
        words = server.answer(query[:, None])[:, 0] - pg.linalg.matmul(server.hint, secret, q=1 << 32)
        errors.append((words - np.uint32(128 << 24)).view(np.int32)[0])
    deviation = 128 * simple.SIGMA * math.sqrt(server.layout.columns)
    assert 0.8 < np.std(errors) / deviation < 1.2
    layout = Layout(1, 2**36)
    x = 2**23 / (128 * simple.SIGMA * math.sqrt(layout.columns))
    assert layout.failure == pytest.approx(math.log2(math.erfc(x / math.sqrt(2))), abs=0.1)


def test_failure_probability_of_the_largest_layout() -> None:
    assert Layout(1 << 20, 1 << 20).failure < -40
    with pytest.raises(pg.ParameterError, match="Use longer records"):
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
        with pytest.raises(pg.ParameterError, match=f"index={index} must be from 0 to"):
            client.query(index, b"seed")


def test_decryption_with_another_secret_fails() -> None:
    server = Server(data_of(256, 64), 64, b"public")
    client = client_of(server)
    query, secret = client.query(3, b"seed")
    found = client.record(3, server.answer(query[:, None])[:, 0], secret[::-1])
    assert np.mean(np.frombuffer(found, np.uint8) == np.frombuffer(data_of(256, 64)[192:256], np.uint8)) < 0.2


@pytest.mark.parametrize(("protocol", "size"), [(simple, 4096), (packed, 1024), (folded, 1024)])
def test_run_of_the_example(protocol: Protocol, size: int) -> None:
    result = protocol.run(b"seed")
    assert result.ok and result.size == size and result.failure < -1000


# ---- packed and folded ----


def reader_of(server: Any) -> Any:
    """Return a client by the parameters that a server tells, as over HTTP."""
    return pir.service._CLIENTS[server.parameters()["protocol"]](server.parameters(), bytes, b"client")


@pytest.mark.parametrize(
    ("protocol", "count", "size"),
    [
        *((packed, 1, 1), (packed, 1, 3000), (packed, 97, 3), (packed, 40, 200), (packed, 12, 1025)),
        *((folded, 1, 1), (folded, 1, 4096), (folded, 97, 3), (folded, 60, 1500), (folded, 11, 5000)),
    ],
)
def test_every_record_is_retrieved_without_a_hint(protocol: Protocol, count: int, size: int) -> None:
    data = data_of(count, size)
    server = protocol.Server(data, size)
    client = reader_of(server)
    for i in range(count):
        query, secret = client.query(i, bytes([i]))
        answer = server.answers([query])[0]
        assert answer.dtype == np.uint32 and 4 * answer.size == client.answer_bytes
        assert client.record(i, answer, secret) == data[i * size : (i + 1) * size]


def test_records_of_several_groups_and_columns() -> None:
    """5000 columns form three groups of N, and the last group is incomplete."""
    data = data_of(5000, 600)
    server = packed.Server(data, 600)
    client, layout = reader_of(server), server.layout
    assert (layout.rows, layout.columns, layout.groups, layout.packed) == (600, 5000, 3, 1024)
    indices = (0, 2047, 2048, 4999)
    asked = [client.query(i, bytes([i % 256, i // 256])) for i in indices]
    answers = server.answers([query for query, _ in asked])
    for i, answer, (_, secret) in zip(indices, answers, asked, strict=True):
        assert client.record(i, answer, secret) == data[i * 600 : (i + 1) * 600]


@pytest.mark.parametrize("protocol", [packed, folded])
def test_last_record_is_padded_with_zeros_without_a_hint(protocol: Protocol) -> None:
    server = protocol.Server(b"abcde", 3)
    client = reader_of(server)
    query, secret = client.query(1, b"seed")
    assert client.record(1, server.answers([query])[0], secret) == b"de\0"
    for index in (-1, 2):
        with pytest.raises(pg.ParameterError, match=f"index={index} must be from 0 to"):
            client.query(index, b"seed")


def test_product_of_groups_matches_python_ints() -> None:
    server = packed.Server(data_of(2100, 1500), 1500, b"public")
    assert server.database.shape == (2, 1500, packed.N)
    words = np.random.default_rng(1).integers(0, 1 << 32, (2100, 3)).astype(np.uint32)
    D = np.frombuffer(data_of(2100, 1500), np.uint8).reshape(2100, -1).T[:5].astype(object) - 128
    assert np.array_equal(server.multiply(words)[:5], D @ words.astype(object) % (1 << 32))


def test_packed_masks_match_python_ints() -> None:
    """Masks are -h_r Q / (2^32 N); h_r is the sum of (D_0 - sum of D_i X^(N - i)) a_j."""
    columns, N, Q = 2060, packed.N, packed.rings().ring.modulus
    server = packed.Server(data_of(columns, 1024), 1024, b"public")
    assert np.array_equal(server.database[1, :, columns - N :], np.zeros((1024, 2 * N - columns)))
    row = server.database[:, 5].astype(object)
    found = (server.masks[0, 5, 1] * N).intt().to_bigints()
    expected = np.zeros(N, object)
    for a, d in zip(server.layout.public(b"public").to_bigints(), row, strict=True):
        for i in np.flatnonzero(d):
            expected += d[i] * np.concatenate([a[i:], -a[:i]])  # X^-i a
    scaled = (2 * (-expected % 2**32) * Q + 2**32) // 2**33 % Q
    assert np.array_equal(found, scaled) and not server.masks[..., 0].norm().any()


def packed_errors(server: Any, client: Any, index: int) -> Any:
    """Return the errors of all rows of an answer, modulo Q."""
    query, secret = client.query(index, bytes([index]))
    at, layout = packed.rings(), server.layout
    c = server.pack(server.multiply(query.words[:, None])[:, 0], query.keys)
    phase = (c[:, 0] + c[:, 1] * secret.convert(at.ring)).to_bigints()[:, :: packed.N // layout.packed]
    group, column = divmod(index // layout.in_column, packed.N)
    right = server.database[group, :, column].astype(object) * at.ring.modulus // 256
    half = at.ring.modulus // 2
    return ((phase.reshape(-1)[: layout.rows] - right + half) % at.ring.modulus - half).astype(float)


@pytest.mark.parametrize(("count", "size"), [(64, 256), (4096, 1024)])
def test_noise_of_packing_matches_theory(count: int, size: int) -> None:
    """Packing dominates the noise with 16 columns, the product with 4096."""
    server = packed.Server(data_of(count, size), size, b"public")
    client, layout = reader_of(server), server.layout
    errors = np.concatenate([packed_errors(server, client, i) for i in range(3)])
    entry = math.sqrt(np.sum(server.database.astype(float) ** 2) / layout.rows / layout.columns)
    assert 0.85 < np.std(errors) / math.sqrt(layout.variance(entry)) < 1.15
    assert layout.variance() > layout.variance(entry)


@pytest.mark.parametrize(("bits", "count"), [(20, 64), (26, 64), (20, 3)])
def test_noise_of_folding_matches_theory(monkeypatch: Any, bits: int, count: int) -> None:
    """Rounding dominates with 20 bits, digits with 26 bits, expansion with 3 polynomials."""
    monkeypatch.setattr(folded, "BITS", bits)
    server = folded.Server(data_of(count, 4096), 4096)
    client, layout, ring = reader_of(server), server.layout, folded.rings().ring
    row, column = divmod(count - 1, layout.columns)
    assert row == (1 << layout.folds) - 1  # all bits are 1
    right = server.database[:, row, column].intt() * ((ring.modulus + 128) // 256)
    errors = []
    for i in range(3):
        c = server.answer(client.query(count - 1, bytes([i]))[0])
        error = c[:, 0] + c[:, 1] * client._secret.restrict(ring) - right
        errors.append(error.intt().to_bigints(centered=True).astype(float))
    assert 0.85 < np.std(errors) / math.sqrt(layout.variance(74)) < 1.15


def test_failure_probability_of_the_largest_layouts_without_a_hint() -> None:
    assert packed.Layout(1 << 20, 1 << 20).failure < -40 and packed.Layout(1024, 1 << 20).failure < -60
    assert folded.Layout(1 << 20, 1 << 20).failure < -300 and folded.Layout(1, 1 << 33).failure < -300
    layout = packed.Layout(1, 2**34)
    assert (layout.columns, layout.rows, layout.packed, layout.ciphertexts) == (2**20, 2**14, 2048, 8)
    with pytest.raises(pg.ParameterError, match="Use several databases"):
        folded.Layout(1, 1 << 36)
    for protocol in (packed, folded):
        with pytest.raises(pg.ParameterError, match="at least"):
            protocol.Layout(0, 5)
        with pytest.raises(pg.ParameterError, match="at least"):
            protocol.Server(b"", 3)


def test_parameters_are_secure() -> None:
    for protocol, moduli in ((packed, 3), (folded, 3)):
        at = protocol.rings()
        whole = at.ring.join(at.special)
        assert len(whole.moduli) == moduli
        assert whole.modulus.bit_length() <= pg.lattice.max_log_q(protocol.N)
    assert packed.KEY_SIGMA >= 3.19 and folded.SIGMA >= 3.19
    assert pg.lattice.max_log_q(packed.N) >= 32 and packed.SIGMA >= 3.19


@pytest.mark.parametrize("protocol", [packed, folded])
def test_queries_without_a_hint_differ_and_look_uniform(protocol: Protocol) -> None:
    server = protocol.Server(data_of(3000, 1024), 1024)
    client, parts = reader_of(server), []
    for index, seed in ((0, b"a"), (0, b"b"), (2999, b"c")):
        query, _ = client.query(index, seed)
        parts.append(np.asarray(query.words if protocol is packed else query.body.data[0]))
    most = 2**32 if protocol is packed else folded.rings().answer.modulus
    for i, a in enumerate(parts):
        assert 0.4 < (a > most // 2).mean() < 0.6
        assert all((a != b).mean() > 0.99 for b in parts[:i])
    written = [client.written(client.query(5, b"same")[0]) for _ in range(2)]
    assert written[0] == written[1] and len(written[0]) == server.query_bytes


@pytest.mark.parametrize("protocol", [packed, folded])
def test_decryption_with_another_secret_fails_without_a_hint(protocol: Protocol) -> None:
    data = data_of(1, 1000)
    server = protocol.Server(data, 1000)
    client = reader_of(server)
    query, _ = client.query(0, b"seed")
    other = protocol.rings().answer.ternary(seed=b"other")
    found = client.record(0, server.answers([query])[0], other.ntt())
    assert np.mean(np.frombuffer(found, np.uint8) == np.frombuffer(data, np.uint8)) < 0.2


@pytest.mark.parametrize("protocol", [packed, folded])
def test_serialised_keys_round_trip(protocol: Protocol) -> None:
    server = protocol.Server(data_of(40, 500), 500)
    query, _ = reader_of(server).query(7, b"seed")
    found = server.read(reader_of(server).written(query))
    assert list(found.keys) == list(query.keys)
    layout = packed.key_format() if protocol is packed else server.layout.key_format
    assert layout.size == len(layout.written(query.keys))


@pytest.mark.parametrize("protocol", [packed, folded])
def test_residues_above_their_modulus_raise(protocol: Protocol) -> None:
    server = protocol.Server(data_of(40, 500), 500)
    client = reader_of(server)
    query, secret = client.query(7, b"seed")
    body = client.written(query)
    for place in (len(body) - 4, len(body) - 4 * protocol.N):  # of the last key
        with pytest.raises(pg.errors.NotCanonical):
            server.read(body[:place] + b"\xff" * 4 + body[place + 4 :])
    if protocol is folded:
        with pytest.raises(pg.errors.NotCanonical):
            server.read(body[: common.SEED] + b"\xff" * 4 + body[common.SEED + 4 :])
    answer = server.answers([query])[0].copy()
    answer.flat[3] = 2**32 - 1
    with pytest.raises(pg.errors.NotCanonical):
        client.record(7, answer, secret)


# ---- over HTTP ----

COUNT, SIZE = 500, 20


@contextmanager
def serving(server: Any) -> Iterator[Service]:
    with Service(server, port=0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving(Server(data_of(COUNT, SIZE), SIZE)) as made:
        yield made


def record(index: int) -> bytes:
    return data_of(COUNT, SIZE)[index * SIZE : (index + 1) * SIZE]


def test_service_with_many_clients(service: Service) -> None:
    assert service.url.startswith("http://127.0.0.1:")
    wanted = [[i, COUNT - 1 - i] for i in range(12)]
    with ThreadPoolExecutor(12) as clients:
        found = list(clients.map(lambda some: pir.fetch(service.url, some), wanted))
    assert found == [[record(i) for i in some] for some in wanted]


def test_waiting_queries_are_answered_by_one_product(service: Service, monkeypatch: Any) -> None:
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
def test_malformed_request_gets_an_error(service: Service, request_of: bytes) -> None:
    with socket.create_connection(service.server_address[:2], timeout=10) as connection:
        connection.sendall(request_of)
        connection.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert not reply or b"200 OK" not in reply
    assert pir.fetch(service.url, [7]) == [record(7)]


def test_incomplete_query_gets_no_answer(service: Service) -> None:
    columns = service.pir.layout.columns
    with socket.create_connection(service.server_address[:2], timeout=10) as connection:
        connection.sendall(
            b"POST /answer HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (4 * columns) + bytes(columns)
        )
        assert pir.fetch(service.url, [8]) == [record(8)]  # another client does not wait
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def test_too_many_clients_are_rejected(service: Service, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "places", threading.Semaphore(0))
    with pytest.raises(OSError):
        pir.fetch(service.url, [1])
    monkeypatch.undo()
    assert pir.fetch(service.url, [1]) == [record(1)]


def test_failed_product_affects_only_its_clients(service: Service, monkeypatch: Any) -> None:
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
        *(b'{"protocol": "other", "size": 1, "count": 1, "seed": ""}', b'{"protocol": [], "size": 1}'),
        *(b'{"protocol": "packed", "size": 1, "count": 1}', b'{"protocol": "folded", "size": 0, "count": 1}'),
        b'{"protocol": "folded", "size": 1, "count": 1125899906842624}',
    ],
)
def test_fetch_with_other_parameters_raises(parameters: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pir.service, "_ask", lambda *_, **__: parameters)
    with pytest.raises(pg.ParameterError):
        pir.fetch("http://127.0.0.1:1", [0])


def test_answers_of_another_length_raise(service: Service) -> None:
    for most in (10, 10**9):
        with pytest.raises(OSError, match="another length"):
            pir.service._ask(f"{service.url}/hint", most, exact=True)
    with pytest.raises(HTTPError, match="404"):
        urlopen(Request(f"{service.url}/"), timeout=10)


def test_command_line(tmp_path: Path, service: Service, capfdbinary: Any) -> None:
    assert main(["get", "3", "--url", service.url + "/"]) == 0
    assert capfdbinary.readouterr().out == record(3)
    for arguments in (
        ["get", "500", "--url", service.url],
        ["get", "1", "--url", "http://127.0.0.1:1"],
        ["serve", str(tmp_path / "missing")],
        ["serve", str(tmp_path / "empty")],
        ["serve", str(tmp_path / "file"), "--record-size", "0"],
        ["serve", str(tmp_path / "file"), "--record-size", "0", "--protocol", "packed"],
        ["serve", str(tmp_path / "file"), "--protocol", "other"],
        [],
    ):
        (tmp_path / "empty").touch()
        (tmp_path / "file").write_bytes(b"abc")
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


@pytest.fixture(scope="module", params=["packed", "folded"])
def hintless(request: pytest.FixtureRequest) -> Iterator[Service]:
    with serving(pir.PROTOCOLS[request.param](data_of(COUNT, SIZE), SIZE)) as made:
        yield made


def test_service_without_a_hint_with_many_clients(hintless: Service) -> None:
    wanted = [[i, COUNT - 1 - i] for i in range(4)]
    with ThreadPoolExecutor(4) as clients:
        found = list(clients.map(lambda some: pir.fetch(hintless.url, some), wanted))
    assert found == [[record(i) for i in some] for some in wanted]


def test_service_without_a_hint_rejects_invalid_requests(hintless: Service) -> None:
    size = hintless.pir.query_bytes
    for length in (0, size - 1, size + 1):
        with socket.create_connection(hintless.server_address[:2], timeout=10) as connection:
            connection.sendall(b"POST /answer HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % length)
            assert b" 400 " in connection.recv(100)
    with pytest.raises(HTTPError, match="400") as caught:
        urlopen(Request(f"{hintless.url}/answer", b"\xff" * size), timeout=10)
    assert b"is not a residue" in caught.value.read()
    with pytest.raises(HTTPError, match="404"):
        urlopen(Request(f"{hintless.url}/hint"), timeout=10)
    assert pir.fetch(hintless.url, [9]) == [record(9)]
