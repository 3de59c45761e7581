"""A product of 2^26 coefficients by several processes of one machine, compared with one process.

    python -m benchmarks.dask [--log2n 26] [--parts 8] [--runs 5] [--kills 20] [--only times|kills]

Each printed line says where operands and result are: on the workers, in .npy files (which the system's cache
holds), or in the process that asks for the product. The memory figure is the most that a worker holds above
what it holds at rest. It is read every 20 ms and includes operands, but not pages of files. The section
`kills` sends SIGKILL to a worker at a random moment of a product; its nanny then starts another worker. Every
result is compared with that of one process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dask.distributed import Client, LocalCluster, wait

import polygpu as pg
import polygpu.dask as pd
from polygpu import _cpu

GIB = 2**30
WORKERS = 2


def held(pid: int) -> int:
    """Return the bytes of memory that a process holds, without pages of files."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


@contextmanager
def peaks(pids: list[int], rest: list[int]) -> Iterator[list[int]]:
    """Measure inside a `with` the most bytes that each process holds above `rest`.

    The list that the `with` yields is updated every 20 ms. rest: bytes that each process holds at rest.
    """
    most, stop = [0] * len(pids), threading.Event()

    def look() -> None:
        while not stop.wait(0.02):
            for i, pid in enumerate(pids):
                most[i] = max(most[i], held(pid) - rest[i])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def timed(run: Callable[[], Any], runs: int) -> tuple[list[float], Any]:
    """Call `run` once untimed, then `runs` times; return the seconds of each call, and the last result."""
    seconds, result = [], run()
    for _ in range(runs):
        del result
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return seconds, result


def show(name: str, seconds: list[float], reference: float | None = None, more: str = "") -> None:
    median = statistics.median(seconds)
    share = "" if reference is None else f", {median / reference:.2f} of one process"
    print(f"{name}: {median:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}){share}{more}", flush=True)


@contextmanager
def cluster_of(count: int) -> Iterator[Client]:
    """Start `count` workers inside a `with`, each a process with one thread; yield a client of them."""
    with (
        # Workers are killed again and again. Dask must not give up on one that starts again.
        dask.config.set(
            {
                "distributed.deploy.lost-worker-timeout": "1h",
                "distributed.admin.large-graph-warning-threshold": "1TB",
            }
        ),
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            dashboard_address=":0",
            env={"POLYGPU_NUM_THREADS": "1"},
            silence_logs=60,
        ) as cluster,
        Client(cluster, direct_to_workers=True) as client,
    ):
        yield client


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dask", description=__doc__.partition("\n")[0])
    parser.add_argument("--log2n", type=int, default=26)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=["times", "kills"])
    options = parser.parse_args(arguments)
    n = 1 << options.log2n
    R = pg.Ring(n, pg.ntt_primes(n, bits=60))
    chunks = (-1, n // options.parts)
    a, b = R.random(seed=1), R.random(seed=2)

    one, expected = 0.0, None
    for threads in (1, 2):
        _cpu.set_num_threads(threads)
        if options.only == "kills":
            expected = a * b
            continue
        seconds, expected = timed(lambda: a * b, options.runs)
        show(f"one process, {threads} threads, a * b", seconds)
        one = min(one or seconds[0], statistics.median(seconds))
        seconds, _ = timed(lambda: (a.ntt() * b.ntt()).intt(), options.runs)
        show(f"one process, {threads} threads, (a.ntt() * b.ntt()).intt()", seconds)

    with tempfile.TemporaryDirectory() as folder, cluster_of(WORKERS) as client:
        np.save(f"{folder}/a.npy", a.data)
        np.save(f"{folder}/b.npy", b.data)
        if options.only != "kills":
            times(client, Path(folder), (a, b, expected), chunks, options.runs, one)
        if options.only != "times":
            kills(client, Path(folder), expected, chunks, options.kills)


def times(
    client: Client, folder: Path, values: tuple[pg.Poly, ...], chunks: Any, runs: int, one: float
) -> None:
    """Time products with operands and result on the workers, in files, and in this process."""
    a, b, expected = values
    R = a.ring
    limit = 2 * 3 * R.n * 8 / WORKERS
    pids = list(client.run(os.getpid).values())
    rest = [held(pid) for pid in pids]

    seconds, most = [], [0]
    for _ in range(runs + 1):
        x, y = dask.persist(*(pd.random(R, (), seed=seed, chunks=chunks) for seed in (1, 2)))
        wait([x, y])
        with peaks(pids, rest) as found:
            start = time.perf_counter()
            c = (x * y).persist()
            wait(c)
            seconds.append(time.perf_counter() - start)
        most = max(most, found)
        assert c.compute() == expected
        del x, y, c
    show("on the workers", seconds[1:], one, memory(most, limit))

    target = folder / "c.npy"

    def through_files() -> None:
        target.unlink(missing_ok=True)
        product_of_files(R, folder, chunks).save(target)

    with peaks(pids, rest) as most:
        seconds, _ = timed(through_files, runs)
    assert (np.load(target, mmap_mode="r") == expected.data).all()
    show("from files into a file", seconds, one, memory(most, limit))

    with peaks(pids, rest) as most:
        seconds, c = timed(
            lambda: (pd.from_poly(a, chunks=chunks) * pd.from_poly(b, chunks=chunks)).compute(), min(runs, 3)
        )
    assert c == expected
    show("from this process and back", seconds, one, memory(most, limit))


def product_of_files(R: pg.Ring, folder: Path, chunks: Any) -> pd.BlockedPoly:
    return pd.load(folder / "a.npy", R, chunks=chunks) * pd.load(folder / "b.npy", R, chunks=chunks)


def kills(client: Client, folder: Path, expected: pg.Poly, chunks: Any, count: int) -> None:
    """Compute products, and kill the process of a worker during each; print how many results are right."""
    right = 0
    for i in range(count):
        client.wait_for_workers(WORKERS, timeout=60)
        source = random.Random(i)
        c = product_of_files(expected.ring, folder, chunks).persist()
        time.sleep(source.uniform(0.2, 2.2))
        os.kill(source.choice(list(worker_pids(client))), signal.SIGKILL)
        right += c.compute() == expected
        del c
    print(f"a worker killed in the middle: right {right} of {count} times")


def memory(most: list[int], limit: float) -> str:
    return f"; a worker holds {max(most) / GIB:.2f} GiB more than at rest (must: at most {limit / GIB:.2f})"


def worker_pids(client: Client) -> Iterator[int]:
    """Yield the process ids of the workers without sending them a message."""
    for nanny in client.cluster.workers.values():
        if nanny.process is not None and nanny.process.pid is not None:
            yield nanny.process.pid


if __name__ == "__main__":
    main()
