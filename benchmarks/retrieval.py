"""A matrix of bytes times vectors of words, as in private retrieval, compared with reading the bytes.

    python -m benchmarks.retrieval [--device cuda] [--quick | --answers] [--results DIR]

The matrix is a square of 256 MiB in memory, or of 4 GiB in a memory-mapped file whose pages are already
cached. It is multiplied by 1, 8 or 32 vectors modulo 2^32 and 2^64. The comparison reads all bytes of the
matrix once: on the CPU, NumPy sums them as uint64 on one core; on a GPU, a kernel does nothing else.

On the CPU, one query to a database of 1 GiB is answered by two protocols: by SimplePIR, whose answer is one
product of a square matrix, and by the packed protocol of polygpu.examples.pir, which multiplies a wide matrix
and packs the result.

Before a product is timed, some of its rows are compared with sums in 64-bit integers. A packed answer is
decrypted and compared with the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polygpu import linalg
from polygpu._backends import checked_device
from polygpu.examples.pir import packed

from .harness import ROOT, Case, Row, command_line, measured, on_cores, release, timer_of
from .tables import Table, figure, power

Array = NDArray[Any]
PRODUCT, READING = "bytes times words", "bytes read"
ANSWER = "private retrieval"
DATABASE, QUICK_DATABASE, RECORD = 2**30, 2**20, 1024  # bytes; the first two are powers of 4
SHARE = 0.5  # the part of SimplePIR's GB/s that a packed answer must reach
SIDES, QUICK, MAPPED = (2**14, 2**16), (2**10,), 2**16  # sides of the squares; MAPPED lies in a file
QUERIES, MODULI = (1, 8, 32), (2**32, 2**64)
SAMPLED = 8  # number of rows that are verified
ROWS = 1 << 10  # number of rows that are written to the file at once

# The least speed that must be reached, by device, number of queries and bits of the modulus. Units: "share"
# of the speed of reading; "G products/s", each of a byte and a word; "GB/s" of the matrix; "TMAC/s", products
# of two bytes on tensor cores.
MUSTS = {
    ("cpu", 1, 32): ("share", 0.8),
    ("cpu", 1, 64): ("share", 0.5),
    ("cpu", 32, 32): ("G products/s", 40),
    ("gpu", 1, 32): ("GB/s", 2400),
    ("gpu", 32, 32): ("share", 0.8),
    ("gpu", 32, 64): ("TMAC/s", 495),  # half of an H100's rate
}


def product_case(left: Array, x: Any, queries: int, q: int, params: dict[str, int]) -> Case:
    """Return the case of a matrix times random words.

    left: the matrix on the host. x: the same matrix on the device that multiplies it.
    """
    dtype = np.dtype(np.uint32 if q == 2**32 else np.uint64)
    rng = np.random.default_rng(queries)
    words = rng.integers(0, q - 1, (left.shape[1], queries), dtype, endpoint=True)
    rows = np.linspace(0, len(left) - 1, SAMPLED).astype(int)
    parts = [
        (words >> dtype.type(16 * i) & dtype.type(0xFFFF)).astype(np.uint64)
        for i in range(dtype.itemsize // 2)
    ]
    expected = sum((left[rows].astype(np.uint64) @ part << np.uint64(16 * i)) for i, part in enumerate(parts))
    right = words if isinstance(x, np.ndarray) else _on_card(words)

    def verify(found: Array) -> bool:
        return np.array_equal(found, expected.astype(dtype))

    return Case(
        PRODUCT,
        "polygpu",
        params | {"queries": queries, "bits": q.bit_length() - 1},
        lambda: linalg.matmul(x, right, q=q),
        verify,
        left.size * queries,
        lambda c: (c if isinstance(c, np.ndarray) else c.get())[rows],
    )


def reading_case(left: Array, x: Any, params: dict[str, int]) -> Case:
    """Return the case of reading all bytes of the matrix once."""
    if isinstance(x, np.ndarray):
        words = x.view(np.uint64)

        def is_sum(found: Array) -> bool:
            low = sum(int((row & np.uint64(2**32 - 1)).sum()) for row in words)
            high = sum(int((row >> np.uint64(32)).sum()) for row in words)
            return int(found) == (low + (high << 32)) % 2**64

        return Case(READING, "NumPy", params, lambda: words.sum(), is_sum, left.size)
    import cupy

    right = np.bitwise_xor.reduce(left.view(np.uint32), axis=None)
    kernel = cupy.RawKernel((ROOT / "benchmarks" / "kernels" / "read.cu").read_text(), "read_all")
    found = cupy.zeros(1, np.uint32)

    def run() -> Any:
        kernel((132 * 8,), (512,), (x, np.uint64(left.size // 16), found))
        return found

    def verify(_: Array) -> bool:
        found[...] = 0
        return bool(run().get()[0] == right)

    # Each run adds to `found`. So its value after timed runs means nothing; the case gives 0 instead.
    return Case(READING, "polygpu", params, run, verify, left.size, lambda _: np.zeros(1))


def _on_card(x: Array) -> Any:
    import cupy

    return cupy.asarray(x)


def cases(left: Array, device: str, cores: int) -> Iterator[Case]:
    """Yield the cases of products with a matrix of bytes, and of reading its bytes."""
    params = {"mib": left.size >> 20} | ({"cores": cores} if device == "cpu" else {})
    x = left if device == "cpu" else _on_card(left)
    yield reading_case(left, x, params)
    for q in MODULI:
        for queries in QUERIES:
            yield product_case(left, x, queries, q, params)


def answer_cases(size: int) -> Iterator[Case]:
    """Yield the cases of answering one query to a database of `size` bytes, on one core, by two protocols.

    The server of the packed protocol is made before the timing; how long this takes is printed.
    """
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    params = {"mib": size >> 20, "cores": 1}
    square = (data ^ 128).view(np.int8).reshape(isqrt(size), -1)
    words = np.random.default_rng(2).integers(0, 2**32, (len(square), 1), np.uint32)
    rows = np.linspace(0, len(square) - 1, SAMPLED).astype(int)
    expected = square[rows].astype(np.int64) @ words.astype(np.int64) % 2**32
    yield Case(
        ANSWER,
        "polygpu",
        params | {"protocol": "simple"},
        lambda: linalg.matmul(square, words, q=2**32),
        lambda found: np.array_equal(found[rows], expected),
        size,
    )
    start = perf_counter()
    server = packed.Server(data, RECORD, b"public")
    print(f"{ANSWER}, packed: {size >> 20} MiB prepared in {figure(perf_counter() - start)} s", flush=True)
    index, client = size // RECORD // 3, packed.Client(server.layout, b"public")
    query, secret = client.query(index, b"query")
    record = data.reshape(-1, RECORD)[index].tobytes()
    yield Case(
        ANSWER,
        "polygpu",
        params | {"protocol": "packed"},
        lambda: server.answers([query])[0],
        lambda found: client.record(index, found, secret) == record,
        size,
    )


def matrices(sides: Sequence[int]) -> Iterator[Array]:
    """Yield random square matrices of bytes. The largest is in a memory-mapped file."""
    rng = np.random.default_rng(1)
    for side in sides:
        if side < MAPPED:
            yield rng.integers(0, 256, (side, side), np.uint8)
            continue
        with TemporaryDirectory() as folder:
            path = Path(folder) / "matrix.npy"
            stored = np.lib.format.open_memmap(path, "w+", np.uint8, (side, side))
            for rows in np.split(stored, side // ROWS):
                rows[...] = rng.integers(0, 256, rows.shape, np.uint8)
            stored.flush()
            yield np.load(path, mmap_mode="r")


# ---- the tables ----


def answer_table(rows: Iterable[Row]) -> Table:
    """Return the table of answers by other protocols compared with those by SimplePIR."""
    found = {(int(row.params["mib"]), str(row.params["protocol"])): row for row in rows}
    body = []
    for (mib, protocol), row in sorted(found.items()):
        simple, must, share, holds = found.get((mib, "simple")), "", "", ""
        if simple is not None:
            share = f"{simple.median / row.median:.0%}"
            if protocol == "packed":
                must, holds = f"{SHARE:.0%}", "yes" if simple.median / row.median >= SHARE else "no"
        speed = figure((mib << 20) / row.median)
        body.append((f"{mib} MiB", protocol, f"{row.median / 1e6:.1f}", speed, share, must, holds))
    header = "database", "protocol", "ms", "GB/s", "share of simple", "must", "holds"
    return Table("One answer of private retrieval, one core", header, tuple(body))


@dataclass(frozen=True)
class ByteKind:
    """Tables of products on one device, beside reading the matrix, and of answers of private retrieval."""

    device: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the tables show."""
        return [
            row for row in rows if row.op in (PRODUCT, READING, ANSWER) and row.machine["kind"] == self.device
        ]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the tables of the rows of one machine."""
        own = self.rows(rows)
        reading = {(row.params["mib"], row.params.get("cores")): row for row in own if row.op == READING}
        found = {
            tuple(int(row.params.get(name, 0)) for name in ("cores", "mib", "bits", "queries")): row
            for row in own
            if row.op == PRODUCT
        }
        body = tuple(self._line(found[key], reading) for key in sorted(found))
        cores = ("cores",) if self.device == "cpu" else ()
        speeds = "matrix, GB/s", "share of reading", "products, G/s"
        header = "matrix", *cores, "q", "vectors", *speeds, "must", "holds"
        if body:
            yield Table("Matrix of bytes times words modulo q", header, body)
        if answers := [row for row in own if row.op == ANSWER]:
            yield answer_table(answers)

    def _line(self, row: Row, reading: Any) -> tuple[str, ...]:
        p = row.params
        size, queries, bits = int(p["mib"]) << 20, int(p["queries"]), int(p["bits"])
        beside = reading.get((p["mib"], p.get("cores")))
        rates = {"GB/s": size / row.median, "G products/s": size * queries / row.median}
        rates["TMAC/s"] = rates["G products/s"] * bits / 8 / 1000
        if beside is not None:
            rates["share"] = beside.median / row.median
        must = MUSTS.get((self.device, queries, bits)) if p.get("cores", 1) == 1 else None
        share = f"{rates['share']:.0%} of {figure(size / beside.median)}" if beside is not None else ""
        wanted = holds = ""
        if must is not None and must[0] in rates:
            wanted = f"{must[1]:.0%} of reading" if must[0] == "share" else f"{must[1]:g} {must[0]}"
            holds = "yes" if rates[must[0]] >= must[1] else "no"
        matrix = f"{int(p['mib']) >> 10} GiB" if int(p["mib"]) >= 1024 else f"{p['mib']} MiB"
        cores = (str(p["cores"]),) if self.device == "cpu" else ()
        speeds = figure(rates["GB/s"]), share, figure(rates["G products/s"])
        return (matrix, *cores, power(1 << bits), str(queries), *speeds, wanted, holds)


KINDS = {"cpu-bytes": ByteKind("cpu"), "gpu-bytes": ByteKind("gpu")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("benchmarks.retrieval", __doc__, "a matrix of 1 MiB")
    parser.add_argument(
        "--answers", action="store_true", help="only answers of private retrieval, on the CPU"
    )
    options = parser.parse_args(arguments)
    device = checked_device(options.device)
    timer = timer_of(device)
    if device == "cpu":
        with on_cores(1):
            for case, row in measured(
                answer_cases(QUICK_DATABASE if options.quick else DATABASE), None, options.results
            ):
                speed = figure(row.work / row.median)
                print(f"{case}: {figure(row.median / 1e6)} ms, {speed} GB/s", flush=True)
    if options.answers:
        return 0
    for left in matrices(QUICK if options.quick else SIDES):
        for cores in (1, 2) if device == "cpu" else (1,):
            with on_cores(cores):
                for case, row in measured(cases(left, device, cores), timer, options.results):
                    print(f"{case}: {figure(left.size / row.median)} GB/s", flush=True)
        if device != "cpu":
            release()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
