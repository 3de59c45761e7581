"""Progress reports of long calls, and interruption at any point."""

import gc
import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from devices import needs_compiler, simulated
from test_cpu import run_python

import polygpu as pg
from polygpu import _cpu, linalg
from polygpu._core import reporting
from polygpu._core.exact import primes, roots
from polygpu._core.plans import cache
from polygpu._core.reporting import Work
from polygpu._ops import batch, gadget
from polygpu._ops import inverse as inverses

MANY, LIMBS = 1024, pg.ntt_primes(2048, bits=50, count=2)  # 2^22 residues of 2048 coefficients


@pytest.fixture(scope="module")
def operands():
    """Two batches of 32 MiB, and their product, which is computed outside of any `with`."""
    ring = pg.Ring(2048, LIMBS)
    a, b = ring.random(MANY, seed=1), ring.random(MANY, seed=2)
    return a, b, a * b


@pytest.fixture
def fine(monkeypatch):
    """Reports after every piece, however short, and pieces as small as they may be."""
    monkeypatch.setattr(reporting, "_PIECE", 1e-12)
    for module in (batch, gadget, inverses):
        monkeypatch.setattr(module, "ROWS", 8)


def forget():
    """As in a fresh process: no tables, no roots but those on disk."""
    cache.forget()
    for known in (roots.root_of_unity, roots._primitive_root, primes._is_prime):
        known.cache_clear()
    gc.collect()


def tables():
    forget()
    return pg.Ring(1 << 17, pg.ntt_primes(1 << 17, bits=50, count=3))([1, 2, 3]).ntt()


def searched_roots():
    forget()
    return pg.Ring(1 << 22, pg.ntt_primes(1 << 22, bits=60), kind="cyclic").roots


def wide_tables():
    forget()
    q = pg.ntt_primes(1 << 13, bits=100)[0]
    return pg.Ring(1 << 13, q)([1, 2]).ntt()


def wide_roots():
    forget()
    return pg.Ring(1 << 15, pg.ntt_primes(1 << 15, bits=80)[0]).roots


def searched_primes():
    forget()
    return pg.ntt_primes(1024, bits=300, count=6)


def by_fft():
    forget()
    ring = pg.Ring(1 << 17, 1 << 32, product="fft")
    return ring.random(seed=1) * ring.random(seed=2)


def auxiliary():
    forget()
    ring = pg.Ring(1 << 14, (1 << 127) - 1)
    return ring.random(64, seed=1) * ring.random(64, seed=2)


def inverse():
    return pg.Ring(257, 2**61 - 1).random(300, seed=1).inverse()


def blind_rotation():
    ring = pg.Ring(256, pg.ntt_primes(256, bits=31)[0])
    c = ring.random((64, 2), seed=1)
    bsk = ring.random((160, 2, 2, 2), seed=2).ntt()
    exponents = np.arange(64 * 161).reshape(64, 161) % 512
    return pg.lattice.blind_rotate(c, bsk, exponents, bits=8)


def matrices():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 97, (900, 900), np.uint32) for _ in range(2))
    return linalg.matmul(a, b, q=97)


# A call, the names of its works, and whether the last of them goes in steps.
CALLS = {
    "tables": (tables, ["tables of 2^17 points modulo 3 primes"], True),
    "roots": (searched_roots, ["smallest root of order 2^22 modulo .*"], False),
    "wide tables": (wide_tables, ["transform of 1 polynomial", "tables of 8192 points modulo .*"], False),
    "wide roots": (wide_roots, ["smallest root of order 2^16 modulo .*"], False),
    "primes": (searched_primes, ["6 primes of 300 bits"], True),
    "FFT": (by_fft, ["roots of unity of 65536 points"], False),
    "auxiliary primes": (auxiliary, ["product of 64 polynomials"], True),
    "inverse": (inverse, ["inverse of 300 polynomials modulo 2305843009213693951"], True),
    "blind rotation": (blind_rotation, ["blind rotation of 64 ciphertexts"], True),
    "matrices": (matrices, ["product of matrices, 900 x 900 x 900"], False),
}


def on_operands(name, operands):
    a, b, _ = operands
    few, one = a[:64], pg.Ring(1 << 17, LIMBS).random(seed=4)
    calls = {
        "product": lambda: a * b,
        "product by one": lambda: a * b[5],
        "product of two batch shapes": lambda: a.reshape(32, 32) * b[:32].reshape(32, 1),
        "product in place": lambda: pg.Poly.mul(x := a.copy(), b, out=x),
        "transform": lambda: a.ntt(),
        "inverse transform": lambda: a.ring.from_residues(a.data, domain="eval").intt(),
        "random": lambda: a.ring.random((4, MANY // 4), seed=3),
        "ternary": lambda: a.ring.ternary(MANY, weight=64, seed=3),
        "to_bigints": lambda: few.to_bigints(),
        "to_bigints of one": lambda: one.to_bigints(centered=True),
        "ring(bigints)": lambda: few.ring(few.to_bigints() * 2**100),
    }
    return calls[name]


ON_OPERANDS = {
    "product": "product of 1024 polynomials",
    "product by one": "product of 1024 polynomials",
    "product of two batch shapes": "product of 1024 polynomials",
    "product in place": "product of 1024 polynomials",
    "transform": "transform of 1024 polynomials",
    "inverse transform": "inverse transform of 1024 polynomials",
    "random": "random values of 1024 polynomials",
    "ternary": "random values of 1024 polynomials",
    "to_bigints": "to_bigints of 131072 x 2",
    "to_bigints of one": "to_bigints of 131072 x 2",
    "ring(bigints)": "residues of 131072 Python ints modulo 2 moduli",
}


def plain(x):
    """A result as something that == compares."""
    if isinstance(x, pg.Poly):
        return x.domain, x.data.tobytes(), x.data.shape
    return (x.dtype, x.tolist()) if isinstance(x, np.ndarray) else x


def told_of(call):
    """The result of a call, and all that a callback is told meanwhile."""
    seen = []
    with pg.progress(seen.append):
        result = call()
    return result, seen


def check(seen):
    """Works begin at nothing, go on, and end when all is done; one lies wholly inside another."""
    running = []
    for x in seen:
        if not running or running[-1].what != x.what:
            assert x.done == 0 and not x.ended and x.what not in [other.what for other in running]
            running.append(x)
        before = running[-1]
        assert before.done <= x.done <= x.total == before.total and before.seconds <= x.seconds
        running[-1] = x
        if x.ended:
            assert x.done == x.total
            running.pop()
    assert not running


@pytest.mark.parametrize("name", CALLS)
def test_progress_reports_do_not_change_results(name, fine, threads):
    threads(2)  # steps grow with the threads
    call, works, in_steps = CALLS[name]
    expected = call()
    found, seen = told_of(call)
    assert plain(found) == plain(expected)
    check(seen)
    ended = [x.what for x in seen if x.ended]
    for work in works:
        pattern = work.replace("^", r"\^")
        assert any(re.fullmatch(pattern, what) for what in ended), (work, ended)
    if in_steps:
        assert len({x.done for x in seen if re.fullmatch(works[-1].replace("^", r"\^"), x.what)}) > 2


@pytest.mark.parametrize("name", ON_OPERANDS)
def test_work_in_pieces_gives_the_same_result(name, fine, operands, threads):
    threads(2)
    call = on_operands(name, operands)
    expected = call()
    found, seen = told_of(call)
    assert plain(found) == plain(expected)
    check(seen)
    steps = [x.done for x in seen if x.what == ON_OPERANDS[name]]
    assert len(steps) > 4 and steps == sorted(steps), seen


def test_pieces_keep_all_threads_busy(fine, operands, threads):
    """The number of rows in a piece is large and a multiple of the number of threads."""
    threads(6)
    _, seen = told_of(on_operands("transform", operands))
    done = [x.done for x in seen if x.what == ON_OPERANDS["transform"] and x.done < x.total]
    sizes = set(np.diff(done).tolist())
    assert sizes and all(2 * size % 6 == 0 and 2 * size >= 6 * batch.ROWS for size in sizes)


@pytest.mark.parametrize(
    "total, unit, least", [(1, 1, 1), (7, 1, 1), (999, 1, 1), (999, 6, 50), (100, 8, 101), (96, 8, 96)]
)
def test_pieces_cover_all_items(total, unit, least, fine):
    for told in (False, True):
        seen = []
        with pg.progress(seen.append) if told else Work(1, "nothing"), Work(total, "some") as work:
            slices = list(work.pieces(unit, least))
        assert [i for piece in slices for i in range(piece.start, piece.stop)] == list(range(total))
        lengths = [piece.stop - piece.start for piece in slices]
        assert all(length % unit == 0 and length >= least for length in lengths[:-1])
        assert told or len(slices) == 1
        assert not told or total < least or lengths[-1] >= min(least, total)


def test_length_of_pieces_follows_the_clock(monkeypatch):
    """Items take 10 ms each, and pieces take a quarter of a second."""
    now = [0.0]
    monkeypatch.setattr(reporting, "perf_counter", lambda: now[0])
    with pg.progress(lambda x: None), Work(1000, "some") as work:
        lengths = []
        for piece in work.pieces():
            lengths.append(piece.stop - piece.start)
            now[0] += 0.01 * lengths[-1]
    assert lengths[0] == 1 and set(lengths[1:-1]) <= {24, 25, 26}


# ---- nobody is told ----


def test_nothing_is_printed_without_progress(capfd, operands):
    for name in ON_OPERANDS:
        on_operands(name, operands)()
    tables()
    assert capfd.readouterr() == ("", "")


def test_short_calls_do_not_query_progress(monkeypatch):
    """They do not even read the context variable."""
    ring = pg.Ring(256, pg.ntt_primes(256, bits=50, count=2))
    wide = pg.Ring(16, 2**100 + 277)
    a, w = ring.random(4, seed=1), wide.random(seed=1)
    integers = np.arange(64).reshape(8, 8)

    def calls():
        c = pg.Ring(256, ring.moduli)
        b = c.random(4, seed=2)
        b * b, b.ntt().intt(), b.to_bigints(), c(b.to_bigints()), c.ternary(3), b + 1, a * a, a.ntt()
        w * w, w.to_bigints(), wide([2**200])
        linalg.matmul(integers, integers, q=97), pg.ntt_primes(256, bits=50, count=2)
        pg.Ring(7, 2**61 - 1)([1, 2]).inverse()

    calls()
    looks = []

    class Noted:
        def get(self):
            looks.append(1)

    monkeypatch.setattr(reporting, "_report", Noted())
    for name, module in list(sys.modules.items()):
        if name.startswith("polygpu.") and getattr(module, "reporting", None) is reporting.reporting:
            monkeypatch.setattr(module, "reporting", Noted().get)
    calls()
    assert not looks
    pg.Ring(2048, LIMBS).random(MANY)
    assert looks


def test_progress_is_limited_to_its_thread_and_block():
    """Other threads, later work and outer `with` blocks get no reports."""
    outer, inner = [], []
    with pg.progress(outer.append):
        with pg.progress(inner.append), Work(1, "inside"):
            pass
        thread = threading.Thread(target=matrices)
        thread.start(), thread.join()
    matrices()
    assert outer == [] and [x.what for x in inner] == ["inside"] * 2


def test_callback_that_is_not_callable_raises():
    told = pg.progress(3)
    with (
        pytest.raises(
            pg.ParameterError, match="callback must be a function of one argument or None, not int"
        ),
        told,
    ):
        pass


def test_failed_work_is_reported_as_ended():
    ring = pg.Ring(257, 2**61 - 1)
    values = ring.random(300, seed=1)
    values[299] = 0
    seen = []
    with pg.progress(seen.append), pytest.raises(pg.NotInvertible, match=r"element \(299,\)"):
        values.inverse()
    check(seen)
    with pg.progress(seen.append), pytest.raises(ZeroDivisionError), Work(3, "some") as work:
        work.step()
        raise ZeroDivisionError
    assert seen[-1][:3] == ("some", 1, 3) and seen[-1].ended


# ---- drawing ----


@pytest.fixture
def quick(monkeypatch):
    """Draws ten times as often."""
    for name in ("_SHOWN", "_TICK", "_LINE"):
        monkeypatch.setattr(reporting, name, getattr(reporting, name) / 10)


def work_for(seconds, steps, what="some work"):
    with Work(steps, what) as work:
        for _ in range(steps):
            time.sleep(seconds / steps)
            work.step()


def test_plain_output_lines(quick, capsys):
    with pg.progress():
        work_for(0.02, 2, "short work")
        began = time.perf_counter()
        work_for(0.65, 13)
        lasted = time.perf_counter() - began
        lines = capsys.readouterr().err.splitlines()
        work_for(0.02, 2, "short work")
    assert capsys.readouterr() == ("", "")
    assert 2 <= len(lines) <= lasted / 0.1 + 1
    counts = [re.fullmatch(r"polygpu: some work: (\d+) of 13, \d\.\d s", line) for line in lines]
    numbers = [int(count[1]) for count in counts]
    assert numbers == sorted(numbers) and numbers[-1] == 13 and 0 < numbers[0] < 13


def test_plain_output_of_stalled_work_becomes_rarer(quick, capsys):
    with pg.progress(), Work(1, "one step"):
        time.sleep(1.6)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 6  # after 0.1, 0.3, 0.7 and 1.5 s, and at its end
    assert all(re.fullmatch(r"polygpu: one step, \d\.\d s", line) for line in lines)


def test_innermost_long_work_is_shown(quick, capsys):
    with pg.progress(), Work(2, "outer"):
        for _ in range(20):
            work_for(0.01, 2, "short")
        work_for(0.4, 2, "inner")
    lines = capsys.readouterr().err.splitlines()
    assert {line.split()[1].rstrip(":") for line in lines} == {"outer", "inner"}
    assert "2 of 2" in lines[-1] and "outer" in lines[-1]


def test_interrupted_work_is_reported_as_not_completed(quick, capsys):
    with pg.progress(), pytest.raises(ZeroDivisionError), Work(3, "some") as work:
        work.step()
        time.sleep(0.3)
        raise ZeroDivisionError
    assert re.fullmatch(
        r"polygpu: some: 1 of 3, not completed, 0\.\d s", capsys.readouterr().err.splitlines()[-1]
    )


def test_progress_with_a_closed_stderr(quick, monkeypatch):
    with open(os.devnull, "w") as closed:
        pass
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        with pg.progress():
            work_for(0.3, 3)


def test_fork_during_progress_output():
    """The child has no drawing thread, and may inherit a lock that nobody releases."""
    done = run_python(
        """
        import os, time, polygpu as pg
        from polygpu._core import reporting
        from polygpu._core.reporting import Work
        reporting._SHOWN = reporting._TICK = reporting._LINE = 1e-4
        codes = set()
        with pg.progress(), Work(100, "parent") as work:
            for _ in range(100):
                time.sleep(1e-3)
                child = os.fork()
                if child == 0:
                    with Work(3, "child") as own:
                        own.step()
                    os._exit(0)
                codes.add(os.waitpid(child, 0)[1])
                work.step()
        print(codes)
        """
    )
    assert done.stdout == "{0}\n" and "polygpu: child" not in done.stderr, done


TERMINAL = """
import sys, time
{before}
import polygpu as pg
from polygpu._core.reporting import Work
with pg.progress():
    with Work(4, "some [bold]work[/bold]") as work:
        for _ in range(4):
            time.sleep(0.3)
            work.step()
    print("between", flush=True)
    with Work(1, "short work"):
        time.sleep(0.05)
    try:
        with Work(1, "other work"):
            time.sleep(0.9)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("rich" in sys.modules)
"""


def in_terminal(code):
    """What a program writes to a terminal."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(other)
    written = b""
    try:
        while part := os.read(main, 1 << 16):
            written += part
    except OSError:  # the program has ended
        pass
    os.close(main)
    assert process.wait(60) == 0, written
    return written.decode()


def test_bars_in_a_terminal():
    pytest.importorskip("rich")
    written = in_terminal(TERMINAL.format(before=""))
    assert re.search("some \\[bold\\]work\\[/bold\\].*━.*[123]/4", written), written
    assert "short work" not in written
    # The cursor is back, the bars are gone, a line of each work stays.
    assert written.count("\x1b[?25h") >= written.count("\x1b[?25l") > 0
    left = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", written).replace("\r", "\n").split("\n")
    lines = [line for line in left if line.startswith("polygpu:") or line in ("between", "True")]
    assert re.fullmatch(r"polygpu: some \[bold\]work\[/bold\]: 4 of 4, 1\.\d s", lines[0])
    assert lines[1] == "between"
    assert re.fullmatch(r"polygpu: other work, not completed, [01]\.\d s", lines[2]) and lines[3:] == ["True"]


def test_terminal_output_without_rich():
    written = in_terminal(TERMINAL.format(before="sys.modules['rich'] = None"))
    assert "\x1b" not in written and "━" not in written
    assert re.search(r"polygpu: some \[bold\]work\[/bold\]: 4 of 4, 1\.\d s", written)


# ---- interrupts ----


def interrupted_at(call, number):
    """Whether a call is interrupted by its report of this number."""
    count = [0]

    def interrupt(x):
        count[0] += 1
        if count[0] == number:
            raise KeyboardInterrupt

    try:
        with pg.progress(interrupt):
            call()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("name", CALLS)
def test_interrupt_between_steps(name, fine):
    call, *_ = CALLS[name]
    expected, number = plain(call()), 1
    while interrupted_at(call, number) and number < 16:
        assert plain(call()) == expected, number
        number *= 4
    assert number > 1


@pytest.mark.parametrize("name", ON_OPERANDS)
def test_interrupt_between_pieces(name, fine, operands):
    call = on_operands(name, operands)
    kept = [x.data.tobytes() for x in operands]
    expected, number = plain(call()), 1
    while interrupted_at(call, number) and number < 10:
        assert plain(call()) == expected, number
        number += 3
    assert number > 1 and kept == [x.data.tobytes() for x in operands]


@needs_compiler
def test_kernel_compilation_is_reported_and_interruptible():
    q = pg.ntt_primes(64, bits=30)[0]
    with pg.device("cpu"):
        expected = (pg.Ring(64, q).random(2, seed=1) ** 2).data.tobytes()

    def call():
        with pg.device("cuda:0"):
            return (pg.Ring(64, q).random(2, seed=1) ** 2).cpu().data.tobytes()

    with simulated():
        found, seen = told_of(call)
    assert found == expected
    check(seen)
    compiled = {x.what for x in seen}
    assert all(re.fullmatch(r"compiling (1 kernel|\d+ kernels) for cuda:0", what) for what in compiled)
    for number in range(1, len(seen) + 1, 2):
        with simulated():
            assert interrupted_at(call, number)
            assert call() == expected


SIGNALS = """
import gc, os, resource, signal, threading, time
import numpy as np
import polygpu as pg
from polygpu import _cpu
signal.signal(signal.SIGINT, signal.default_int_handler)
{prepare}
def resident():
    gc.collect()
    _cpu.pool_release()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
expected = call()
began = time.perf_counter()
call()
lasted = time.perf_counter() - began
before, most, stopped = resident(), 0, 0
for share in (0.2, 0.5, 0.8):
    for progress in (False, True):
        timer = threading.Timer(share * lasted, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            if progress:
                with pg.progress(lambda x: None):
                    call()
            else:
                call()
            timer.join()
            time.sleep(0.1)  # the signal comes after the end
        except KeyboardInterrupt:
            stopped += 1
        most = max(most, resident() - before)
        assert same(call(), expected)
print(stopped, most)
"""

LONG_CALLS = {
    "tables": """
        from polygpu._core.plans import cache
        def call():
            cache.forget()
            ring = pg.Ring(1 << 20, pg.ntt_primes(1 << 20, bits=50, count=4), root="generator")
            for table in ring._plan.transform.tables:
                table.forward
            return ring([1, 2, 3]).ntt().data.sum()
        same = lambda x, y: x == y
    """,
    "product": """
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=2))
        a, b = ring.random(1200, seed=1), ring.random(1200, seed=2)
        call, same = lambda: (a * b).sum(), lambda x, y: x == y
    """,
    "transform": """
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=2))
        a = ring.random(3000, seed=1)
        call, same = lambda: a.ntt().sum(), lambda x, y: x == y
    """,
    "to_bigints": """
        a = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=4)).random(100, seed=1)
        call, same = lambda: hash(tuple(a.to_bigints().flat)), lambda x, y: x == y
    """,
    "ring(bigints)": """
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=8))
        x = ring.random(10, seed=1).to_bigints()
        call, same = lambda: ring(x), lambda x, y: x == y
    """,
    "random": """
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=2))
        call, same = lambda: ring.random(1500, seed=1).sum(), lambda x, y: x == y
    """,
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_interrupt_by_a_signal(name):
    """Signals come at any time, with and without reports. The next call is right, and no memory leaks."""
    done = run_python(SIGNALS.format(prepare=textwrap.dedent(LONG_CALLS[name])), POLYGPU_NUM_THREADS="2")
    assert done.stderr == "", done.stderr
    stopped, most = map(int, done.stdout.split())
    assert stopped >= 3
    assert most < 40, f"{most} MiB are kept"


def test_threads_and_pool_survive_an_interrupt(operands):
    """After an interrupt, the pool keeps no more than its limit."""
    _cpu.pool_set_bounds(64 << 20)
    assert interrupted_at(on_operands("product", operands), 2)
    gc.collect()
    assert _cpu.pool_kept() <= 64 << 20
    _cpu.pool_set_bounds(1 << 62)
