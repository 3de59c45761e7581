"""Calls of the native core from several Python threads, while a sanitizer watches.

Several threads of the core compute each call.

`python threads.py` compares every value with that of one thread; interruption and fork are tried as well.
`python threads.py plant-race` and `plant-overrun` make the mistakes that a sanitizer must see.
"""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Timer

import numpy as np

import polygpu as pg
from polygpu import _cpu

THREADS = 4


def ring_calls(ring: pg.Ring, batch: int) -> Iterator[Callable[[], pg.Poly]]:
    """Yield calls of the core on elements of a ring."""
    a, b = ring.random((batch,), seed=1), ring.random((batch,), seed=2)
    yield from (lambda: a + b, lambda: -a, lambda: a * b, lambda: a * a, lambda: a.automorphism(3))
    yield lambda: a.mul_monomial(5)
    if ring.has_eval:
        x, y = a.ntt(), b.ntt()
        yield from (lambda: a.ntt(), lambda: x.intt(), lambda: x * y, lambda: pg.fma(x, y, x))
        left, right = x.reshape(8, -1), y.reshape(-1, 8)
        yield lambda: left @ right


def calls() -> Iterator[Callable[[], np.ndarray]]:
    """Yield one call of every kind, each with enough work for several threads."""
    for n, bits in ((1024, 30), (1024, 31), (512, 46), (512, 60)):
        for call in ring_calls(pg.Ring(n, pg.ntt_primes(n, bits=bits, count=2)), 64):
            yield lambda call=call: call().data
    for n, q in (
        (256, 3329),
        (256, 8380417),
        (256, 2**32),
        (256, 2**61 + 15),
        (256, 2**64),
        (64, 2**100 + 7),
    ):
        ring = pg.Ring(n, q)
        for call in ring_calls(ring, 64):
            yield lambda call=call: call().data
        for method in ("fft", "ntt"):
            a = ring.random((16,), seed=3)
            if not (method == "fft" and q > 2**64):
                yield lambda a=a, method=method: a.mul(a + 1, product=method).data
        integers = np.random.default_rng(1).integers(-(2**40), 2**40, (64, n))
        yield lambda ring=ring, integers=integers: ring(integers).data
        big = [[int(x) << 90 for x in row] for row in integers[:16]]
        yield lambda ring=ring, big=big: ring(big).data
    source = np.random.default_rng(2)
    for q in (2**31 - 1, 2**62):
        x, y = (source.integers(0, q, (96, 96), dtype=np.uint64) for _ in range(2))
        yield lambda x=x, y=y, q=q: pg.linalg.matmul(x, y, q=q)
    for dtype in (np.complex64, np.complex128):
        z = (source.standard_normal((2048, 64)) + 1j * source.standard_normal((2048, 64))).astype(dtype)
        yield lambda z=z: pg.fft.fft(z)
        yield lambda z=z: pg.fft.convolve64(z, z)


def check_values() -> None:
    """Compare the results of calls from several threads with those of calls on one thread.

    Each call is made twice. THREADS threads share these calls, in a random order, and the core computes each
    call on THREADS threads.
    """
    work = list(calls())
    _cpu.set_num_threads(1)
    expected = [call().tobytes() for call in work]
    _cpu.set_num_threads(THREADS)
    order = [i for i in range(len(work)) for _ in range(2)]
    random.Random(1).shuffle(order)
    with ThreadPoolExecutor(THREADS) as pool:
        for i, value in zip(order, pool.map(lambda i: work[i]().tobytes(), order), strict=True):
            assert value == expected[i], f"call {i} differs"
    print(f"{len(order)} calls of {len(work)} kinds from {THREADS} threads")


def check_plans() -> None:
    """Check results of threads that need the same new tables at the same time."""
    z = np.ones((4, 4096), np.complex64)
    ready = Barrier(THREADS)

    def first_call(_: int) -> bytes:
        ready.wait()
        ring = pg.Ring(2048, pg.ntt_primes(2048, bits=50))
        a = ring.random((4,), seed=1)
        return (a * a).data.tobytes() + pg.fft.fft(z).tobytes()

    with ThreadPoolExecutor(THREADS) as pool:
        assert len(set(pool.map(first_call, range(THREADS)))) == 1


def check_fork() -> None:
    """Compute in a child that is forked after threads were used."""
    ring = pg.Ring(1024, pg.ntt_primes(1024, bits=60))
    a = ring.random((64,), seed=1)
    before = (a * a).data.tobytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if (a * a).data.tobytes() == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def check_interrupts() -> None:
    """Interrupt products of many short rows, and of few rows so long that the calling thread only waits.

    Only the sanitizer watches: no value is compared.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for n, batch in ((1024, 4000), (1 << 21, 2)):
        a = pg.Ring(n, pg.ntt_primes(n, bits=60)).random(batch, seed=1)
        sender = Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        sender.start()
        try:
            while True:
                a * a
        except KeyboardInterrupt:
            sender.join()
            print(f"interrupted while products of {batch} rows were made")


def plant_race() -> None:
    """Write one array from two threads, in calls so long that they overlap, without a lock."""
    _cpu.set_isa("portable")
    basis = _cpu.Basis(np.array([[17]], np.uint64), 64)
    x, out = (np.zeros((1024, 1, 4096), np.uint64) for _ in range(2))
    ready = Barrier(2)

    def write(_: int) -> None:
        for _ in range(5):
            ready.wait()
            basis.pointwise(0, x, x, None, out)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))


def plant_overrun() -> None:
    """Pass an index beyond the end of a row."""
    basis = _cpu.Basis(np.array([[17]], np.uint64), 64)
    x, out = (np.zeros((1, 1, 4096), np.uint64) for _ in range(2))
    basis.permute(x, np.full(4096, 2 * 4096, np.int64), out)


if __name__ == "__main__":
    planted = {"plant-race": plant_race, "plant-overrun": plant_overrun}
    if len(sys.argv) > 1:
        planted[sys.argv[1]]()
    else:
        check_plans(), check_values(), check_fork(), check_interrupts()
