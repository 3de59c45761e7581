"""The memory pool of results on the CPU: alignment, reuse, and how much is kept."""

import copy
import gc
import pickle
import queue
import resource
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cpu import run_python

import polygpu as pg
from polygpu import _cpu
from polygpu._backends import host
from polygpu._ops.arrays import empty

handler_name = np._core.multiarray.get_handler_name
USERS = handler_name(np.empty(1))
MIB = 1 << 20
WORD = np.dtype(np.uint64)


@pytest.fixture(autouse=True)
def _nothing_kept():
    host()
    gc.collect()
    _cpu.pool_release()
    yield
    _cpu.pool_set_bounds(1 << 62)
    _cpu.pool_release()


def address(x):
    return x.__array_interface__["data"][0]


def owner(x):
    """The array whose memory x shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def pages():
    """How many pages of this process are mapped, how many lie in memory, and other numbers."""
    return [int(word) for word in Path("/proc/self/statm").read_text().split()]


def block(size):
    """A result of `size` bytes."""
    return empty(host(), (size // 8,), WORD)


# ---- where results begin ----

RINGS = {
    "one word of 32 bits": pg.Ring(8, 97),
    "limbs of 64 bits": pg.Ring(64, pg.ntt_primes(64, bits=50, count=3)),
    "several words": pg.Ring(16, pg.ntt_primes(16, bits=70)),
    "no transform": pg.Ring(12, 2**61),
    "incomplete transform": pg.Ring.preset("ml-kem"),
    "degree 1": pg.Ring(1, 17),
}


def results(ring):
    """What each operation of a ring returns, by its name."""
    a, b = ring.random(3, seed=1), ring.random(3, seed=2)
    unit = ring.monomial(1)
    yield "ring(ints)", ring([[1], [2]])
    yield "ring(large ints)", ring([2**70, -(2**90)][: ring.n])
    yield "ring(array)", ring(np.arange(ring.n))
    for flawed in (a.data.astype(object), np.asfortranarray(a.data), a.data.tolist()):
        yield f"from_residues({type(flawed).__name__})", ring.from_residues(flawed)
    yield "from_residues(copy)", ring.from_residues(a.data, copy=True)
    yield "zeros", ring.zeros(2)
    yield "ones", ring.ones((2, 2))
    yield "monomial", unit
    yield "random", a
    yield "a[0]", a[0]
    yield "a[::2]", a[::2]
    yield "a[[2, 0]]", a[[2, 0]]
    yield "a[mask]", a[np.array([True, False, True])]
    yield "a[True]", a[True]
    yield "a[np.int64]", a[np.int64(1)]
    yield "iteration", next(iter(a))
    yield "reshape", a.reshape(3, 1)
    yield "copy", a.copy()
    yield "sum", a.sum()
    yield "sum of one", a[:1].sum()
    yield "sum of none", a[:0].sum()
    yield "sum over no axis", a.sum(())
    yield "add", a + b
    yield "add a constant", a + 1
    yield "sub", 1 - a
    yield "neg", -a
    yield "mul", a * b
    yield "mul by one", a * unit
    yield "mul by a constant", a * 3
    yield "fma", pg.fma(a, b, a)
    yield "pow", a**3
    yield "first power", a**1
    yield "power 0", a**0
    yield "monomial's inverse", unit.inverse()
    yield "automorphism", a.automorphism(2 * ring.n - 1)
    yield "mul_monomial", a.mul_monomial(3)
    yield "stack", pg.stack([a, b])
    yield "concatenate", pg.concatenate([a, b])
    yield "matmul", a.reshape(1, 3) @ b.reshape(3, 1)
    yield "dot", pg.dot(a, b)
    yield "einsum", pg.einsum("i,j->ij", a, b)
    yield "unpickled copy", copy.deepcopy(a).copy()
    yield "to", a.to("cpu")
    if ring.has_eval:
        yield "ntt", a.ntt()
        yield "intt", a.ntt().intt()
        yield "eval mul", a.ntt() * b.ntt()
        yield "eval fma", pg.fma(a.ntt(), b.ntt(), a.ntt())
        yield "eval pow", a.ntt() ** 2
        yield "natural_order", a.natural_order()
        yield "eval automorphism", a.ntt().automorphism(2 * ring.n - 1)


@pytest.mark.parametrize("name", RINGS)
def test_results_are_aligned_to_64_bytes(name):
    kept = []  # so that no two have the same memory
    for operation, value in results(RINGS[name]):
        data = value.data if isinstance(value, pg.Poly) else value
        at = owner(data)
        assert handler_name(at) == "polygpu", operation
        assert address(at) % 64 == 0, operation
        assert data.flags.writeable, operation
        kept.append(value)


def test_matmul_and_fft_results_are_aligned_to_64_bytes():
    integers, z = np.arange(12).reshape(3, 4), np.ones((3, 64), np.complex64)
    for made in (
        pg.linalg.matmul(integers, integers.T, q=97),
        pg.linalg.matmul(integers, integers.T, q=2**61),
        pg.linalg.matmul(integers[0], integers[0], q=97),
        pg.fft.fft(z),
        pg.fft.fft(z, inverse=True),
        pg.fft.convolve64(z, z[0]),
    ):
        assert handler_name(made) == "polygpu" and address(made) % 64 == 0


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 0, 4), (2, 3), (3, 1), (1,) * 32, (2, 3, 4)])
@pytest.mark.parametrize("zero", [False, True])
def test_pool_arrays_match_numpy_arrays(shape, zero):
    for dtype in (np.uint32, np.uint64, np.complex128):
        x, y = empty(host(), shape, np.dtype(dtype), zero=zero), np.zeros(shape, dtype)
        assert type(x) is np.ndarray and x.base is None
        assert (x.shape, x.dtype, str(x.flags)) == (y.shape, y.dtype, str(y.flags))
        assert x.strides == y.strides or not x.size
        assert not zero or (x == y).all()
        x.flags.writeable = False
        x.flags.writeable = True
        x[...] = 3
        assert (pickle.loads(pickle.dumps(x)) == 3).all()
        assert handler_name(x) == "polygpu"


@pytest.mark.parametrize("size", [8, 800, 16 << 10, 100_000, 3 * MIB, 40 * MIB])
def test_results_can_be_resized(size):
    """NumPy asks polygpu's memory handler for the new memory."""
    for other in (size, 2 * size, size // 2):
        x = block(size)
        x[:] = np.arange(len(x))
        x.resize(other // 8 or 1)
        same = min(len(x), size // 8)
        assert (x[:same] == np.arange(same)).all() and not x[same:].any()
        assert handler_name(x) == "polygpu" and address(x) % 64 == 0


def test_wrong_arguments_are_refused():
    for dtype in (np.dtype(object), np.dtype([("x", object)]), np.uint64, "u8", None):
        with pytest.raises(TypeError, match="dtype"):
            _cpu.empty((2,), dtype, False, 100)
    with pytest.raises(TypeError, match="handler"):
        _cpu.set_memory_handler(3)
    for shape in ((-1,), (1 << 70,), (1 << 40, 1 << 40), (0, 1 << 62, 1 << 62), (101,)):
        assert _cpu.empty(shape, np.dtype(np.uint8), False, 100) is None


# ---- users' own arrays ----


def test_numpy_arrays_of_users_do_not_use_the_pool():
    assert USERS != "polygpu"
    for name, ring in RINGS.items():
        for operation, _ in results(ring):
            assert handler_name(np.empty(100)) == USERS, (name, operation)
    a = RINGS["limbs of 64 bits"].random(3)
    for wrong in (lambda: a[7], lambda: a[[7]], lambda: a.copy()[None, [9]], lambda: pg.stack([a, 3])):
        with pytest.raises((IndexError, pg.PolyGPUError)):
            wrong()
        assert handler_name(np.empty(100)) == USERS
    assert handler_name(a.data + a.data) == USERS
    assert handler_name(a.data.copy()) == USERS


def test_memory_handler_is_restored_after_scopes():
    """Scopes may be nested, and the program may have set a handler itself."""
    with host().device_scope():
        assert handler_name(np.empty(1)) == "polygpu"
        with host().device_scope():
            pass
        assert handler_name(np.empty(1)) == "polygpu"
    assert handler_name(np.empty(1)) == USERS
    before = _cpu.set_memory_handler(_cpu.RESULTS)  # as the program's own
    pg.stack([RINGS["degree 1"].ones()])
    assert handler_name(np.empty(1)) == "polygpu"
    _cpu.set_memory_handler(before)
    assert handler_name(np.empty(1)) == USERS
    seen = []
    thread = threading.Thread(target=lambda: seen.append(handler_name(np.empty(1))))
    with host().device_scope():
        thread.start(), thread.join()
    assert seen == [USERS]


# ---- used again ----


def test_freed_memory_is_reused():
    ring = pg.Ring(8192, pg.ntt_primes(8192, bits=50, count=7))
    a, b = ring.random(seed=1), ring.random(seed=2)
    x = a + b
    at = address(x.data)
    del x
    assert _cpu.pool_kept() >= a.data.nbytes
    x = a - b
    assert address(x.data) == at and x + b == a


def test_view_keeps_its_memory():
    x = block(MIB)
    x[:] = 7
    at, view = address(x), x[5:9].reshape(2, 2)[1:]
    del x
    assert not _cpu.pool_kept()
    others = [block(MIB) for _ in range(3)]
    assert at not in [address(other) for other in others]
    for other in others:
        other[:] = 9
    assert (view == 7).all()
    del view
    assert address(block(MIB)) == at


@pytest.mark.parametrize("size", [8, 4096, 16 << 10, 16392, 100_000, 458_752, 5 * MIB, 32 * MIB, 33 * MIB])
def test_zeros_in_reused_memory(size):
    for _ in range(3):
        x = block(size)
        x[:] = 2**64 - 1
        del x
        assert not empty(host(), (size // 8,), WORD, zero=True).any()
    ring = pg.Ring(size // 8, 2**61)
    x = ring.zeros()
    x.data[...] = 5
    del x
    assert ring.zeros() == 0 and ring.ones().data.sum() == 1


def test_expression_maps_no_new_pages():
    """New pages cost several times as much as the arithmetic, which is why the pool exists."""
    done = run_python(
        """
        import resource
        import polygpu as pg
        ring = pg.Ring(2**13, pg.ntt_primes(2**13, bits=50, count=7))
        a, c = ring.random(seed=1).ntt(), ring.random(seed=2).ntt()
        x, y = a.intt(), c.intt()
        def calls():
            a * a + a * c - a
            x * x + x * y - x
            pg.stack([a, c]).sum()
        for _ in range(3):
            calls()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(50):
            calls()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        """
    )
    assert int(done.stdout) < 200, done


def test_large_results_are_reused():
    """Kept blocks are used before the system is asked, however much memory it has."""
    for size in (33 * MIB, 65 * MIB, 512 * MIB):
        x = block(size)
        at = address(x)
        del x
        assert size <= _cpu.pool_kept() <= size * 9 / 8
        x = empty(host(), (size // 8,), WORD, zero=True)
        assert address(x) == at and not _cpu.pool_kept() and x[-1] == x[0] == 0
        del x
        _cpu.pool_release()


@pytest.mark.parametrize(("size", "count"), [(24 * MIB, 20), (80 * MIB, 3), (100_000, 1000)])
def test_loop_maps_no_new_pages(size, count):
    def loop():
        live = [block(size) for _ in range(count)]
        for x in live:
            x[:: 4096 // 8] = 1

    for _ in range(2):
        loop()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        loop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 200


# ---- what is kept ----


def test_kept_memory_is_bounded():
    _cpu.pool_set_bounds(64 * MIB)
    blocks = [block(size) for size in (MIB, 3 * MIB, 5 * MIB, 500_000) for _ in range(30)]
    while blocks:
        blocks.pop()
        assert _cpu.pool_kept() <= 64 * MIB
    assert _cpu.pool_kept() > 50 * MIB
    block(65 * MIB)
    assert 50 * MIB < _cpu.pool_kept() <= 64 * MIB
    _cpu.pool_set_bounds(10 * MIB)
    assert 4 * MIB < _cpu.pool_kept() <= 10 * MIB
    _cpu.pool_release()
    assert _cpu.pool_kept() == 0


def test_kept_memory_is_a_share_of_free_memory():
    """Pages that are never written take no memory, so any machine can run this test."""
    free = _cpu.available_memory()
    blocks = [block(free // 16) for _ in range(16)]
    while blocks:
        blocks.pop()
        kept = _cpu.pool_kept()
        assert kept <= max(1.05 * (free + kept) / 4, 64 * MIB)
    assert kept > free / 8


def test_kept_memory_shrinks_while_results_live():
    """Kept blocks of other sizes must not exhaust memory while a program keeps results."""
    free = _cpu.available_memory()
    blocks = [block(free // 16) for _ in range(8)]
    del blocks
    before = _cpu.pool_kept()
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = pages()[0] * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 400 * MIB, limit[1]))
        live = [block(50 * MIB) for _ in range(4)]
        assert _cpu.pool_kept() < before / 2
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    del live


def test_many_blocks_are_kept():
    blocks = [block(16 << 10) for _ in range(3000)]
    del blocks
    assert _cpu.pool_kept() == 3000 * (16 << 10)


def test_oldest_blocks_are_freed_first():
    """Memory of a ring that is no longer used is freed for another ring."""
    _cpu.pool_set_bounds(64 * MIB)
    old = [block(6 * MIB) for _ in range(20)]
    del old
    for _ in range(3):
        new = [block(MIB) for _ in range(40)]
        places = sorted(map(address, new))
        del new
        assert 40 * MIB <= _cpu.pool_kept() <= 64 * MIB
    new = [block(MIB) for _ in range(40)]
    assert sorted(map(address, new)) == places


@pytest.mark.parametrize(("size", "kept"), [(8, 0), (16376, 0), (16384, 16384), (32 * MIB, 32 * MIB)])
def test_small_blocks_are_not_kept(size, kept):
    block(size)
    assert _cpu.pool_kept() == kept


def test_blocks_are_at_most_an_eighth_too_large():
    for size in [*range(16 << 10, 200_000, 5000), 33 * MIB, 63 * MIB, 65 * MIB]:
        block(size)
        assert size <= _cpu.pool_kept() <= size * 9 / 8
        _cpu.pool_release()


SIZES = st.one_of(
    st.integers(8, 1 << 17), st.integers(1, 8 * MIB), st.sampled_from([1 << k for k in range(3, 24)])
)
STEPS = st.one_of(
    st.tuples(st.just("make"), SIZES),
    st.tuples(st.just("drop"), st.integers(0, 99)),
    st.tuples(st.just("bound"), st.integers(0, 32 * MIB)),
    st.just(("release", 0)),
)


def capacity(size):
    """The size of the block, from its definition: eight steps for each power of two from 16 KiB on."""
    if size < 16 << 10:
        return size
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_kept_blocks_follow_the_model(steps):
    """The newest block of a size is reused first, the oldest is freed first, and bytes are counted."""
    _cpu.pool_release()
    _cpu.pool_set_bounds(bound := 16 * MIB, 1000)
    live, kept = [], []  # (capacity, address), in the order in which blocks came

    def cut(most):
        while sum(size for size, _ in kept) > most:
            kept.pop(0)

    for step, x in steps:
        if step == "make":
            made = block(8 * (x // 8 or 1))
            size = capacity(made.nbytes)
            alike = [own for own in kept if own[0] == size]
            if alike:
                assert address(made) == alike[-1][1]
                kept.remove(alike[-1])
            live.append(made)
        elif step == "drop" and live:
            made = live.pop(x % len(live))
            own = capacity(made.nbytes), address(made)
            del made
            if 16 << 10 <= own[0] <= bound:
                cut(bound - own[0])
                kept.append(own)
        elif step == "bound":
            _cpu.pool_set_bounds(bound := x, 1000)
            cut(bound)
        elif step == "release":
            _cpu.pool_release()
            kept.clear()
        assert _cpu.pool_kept() == sum(size for size, _ in kept)


# ---- given back ----


def test_release_frees_unused_blocks():
    ring = pg.Ring(1 << 16, pg.ntt_primes(1 << 16, bits=50))
    a = ring.random(64, seed=1)
    x, view = a + a, (a - 1)[5:7]
    expected = x.data[-1, -1].copy(), view.data.copy()
    del a
    assert pg.memory.held() >= 64 * MIB // 2
    before = pages()[1]
    pg.memory.release()
    assert pg.memory.held() == 0
    assert (before - pages()[1]) * resource.getpagesize() > 24 * MIB
    others = [block(32 * MIB) for _ in range(4)]
    for other in others:
        other[:] = 9
    assert (x.data[-1, -1] == expected[0]).all() and (view.data == expected[1]).all()


def test_blocks_unused_for_a_while_are_freed():
    """They are freed at the next call that frees memory; the others stay."""
    _cpu.pool_set_bounds(1 << 62, 0.2)
    block(5 * MIB)
    time.sleep(0.1)
    block(3 * MIB)
    assert _cpu.pool_kept() == 8 * MIB
    time.sleep(0.15)
    block(MIB)
    assert _cpu.pool_kept() == 4 * MIB


@pytest.mark.parametrize("threads", [1, 2])
def test_idle_program_frees_kept_memory(threads):
    """A waiting thread of the core frees it. Without such threads the next call does."""
    done = run_python(
        """
        import time
        import polygpu as pg
        from polygpu import _cpu
        ring = pg.Ring(1 << 14, pg.ntt_primes(1 << 14, bits=50))
        a = ring.random(64, seed=1)
        _cpu.pool_set_bounds(1 << 62, 0.2)
        for _ in range(20):
            a * a
        held = pg.memory.held()
        time.sleep(1)
        print(held > 0, pg.memory.held() > 0)
        """,
        POLYGPU_NUM_THREADS=str(threads),
    )
    assert done.stdout.split() == ["True", str(threads == 1)], done


@pytest.mark.parametrize(("value", "most"), [("0", 0), ("1000000", 1_000_000), ("", 1 << 62)])
def test_bound_from_the_environment(value, most):
    done = run_python(
        """
        import polygpu as pg
        ring = pg.Ring(1 << 14, pg.ntt_primes(1 << 14, bits=50))
        a = ring.random(6, seed=1)
        b = [a + a[i] for i in range(6)] + [a[0] + 1 for i in range(20)]
        del b
        print(pg.memory.held())
        """,
        POLYGPU_POOL_BYTES=value,
    )
    assert bool(most) == (int(done.stdout) > 100_000) and int(done.stdout) <= most, done


# ---- no memory ----


def test_kept_memory_is_freed_before_allocation_fails():
    """Under the limit of address space, the array fits only if kept blocks are freed."""
    code = """
    import resource
    import numpy as np
    import polygpu as pg
    from polygpu import _cpu
    r = pg.Ring(2**17, 17)
    wide = pg.Ring(2**17, 2**64)
    blocks = [r.ones(16) for _ in range(8)]
    x = r.ones(8)
    y = wide.random(seed=1)
    del blocks
    assert _cpu.pool_kept() > 40 << 20, _cpu.pool_kept()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
    {call}
    assert _cpu.pool_kept() < 40 << 20, _cpu.pool_kept()
    try:
        r.zeros(256)
    except pg.errors.OutOfHostMemory as error:
        print(error)
    """
    for call in ("r.zeros(48)", "r.ones(129)", "pg.stack([x] * 5)", "x[[0] * 40]", "y * y"):
        done = run_python(
            textwrap.dedent(code).format(call=call), POLYGPU_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"
        )
        assert "smaller batches" in done.stdout, (call, done)


# ---- threads, forks, the end ----


def test_threads_share_the_pool():
    """Blocks are allocated in one thread and freed in another while all compute."""
    ring = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=2))
    a, b = ring.random(seed=1), ring.random(seed=2)
    expected = (a + b).data.tobytes()
    passed, wrong = queue.Queue(8), []

    def make():
        for _ in range(200):
            passed.put(a + b)
        passed.put(None)

    def use():
        while (x := passed.get()) is not None:
            if x.data.tobytes() != expected or ((x - b) - a) != 0:
                wrong.append(x)

    threads = [threading.Thread(target=f) for f in (make, use) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fork_during_calls():
    done = run_python(
        """
        import os, threading, polygpu as pg
        from polygpu import _cpu
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=2))
        a, b = ring.random(4, seed=1), ring.random(4, seed=2)
        kept, stop = a + b, False
        expected = kept.data.tobytes()
        def compute():
            while not stop:
                a + b
        threads = [threading.Thread(target=compute) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = set()
        for _ in range(40):
            child = os.fork()
            if child == 0:
                right = all((a + b).data.tobytes() == expected for _ in range(5))
                del kept
                os._exit(0 if right else 1)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop = True
        for thread in threads:
            thread.join()
        print(codes, kept.data.tobytes() == expected)
        """
    )
    assert done.stdout.strip() == "{0} True", done


def test_exit_while_threads_allocate_results():
    """Threads are daemons, and some values outlive the globals of the module."""
    done = run_python(
        """
        import sys, threading, time, polygpu as pg
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=60))
        a = ring.random(16)
        sys.late = [a + a, a[[1, 0]], ring.zeros()]
        def forever():
            while True:
                a + a
                pg.stack([a, a])
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.3)
        print("end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads by /proc")
def test_long_rows_use_all_threads() -> None:
    """With long rows the calling thread only handles signals, so the pool needs one thread more."""
    done = run_python(
        """
        import os
        import polygpu as pg
        before = len(os.listdir("/proc/self/task"))
        a = pg.Ring(1 << 22, 1152921504589938689).zeros(2)
        a * a
        print(len(os.listdir("/proc/self/task")) - before)
        """,
        POLYGPU_NUM_THREADS="2",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
