"""fork() while other threads work: the child finds no lock held and no object half built."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from polygpu._core.locks import _PACKAGES, cached_property

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, CORE = ROOT / "polygpu", ROOT / "cpu"


def run_python(code: str, **environment: str) -> str:
    """What code prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


# ---- every lock is one of polygpu._core.locks


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(str(path.relative_to(PACKAGE)), ast.parse(path.read_text())) for path in paths]


KINDS = ("Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Timer")
LOCKING = {f"{module}.{kind}" for module in ("threading", "_thread", "multiprocessing") for kind in KINDS}
LOCKING |= {f"queue.{kind}" for kind in ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue")}
LOCKING |= {"functools.cached_property", "_thread.allocate_lock"}


def test_only_one_module_makes_locks() -> None:
    found = set()
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                taken = {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                taken = {f"{node.value.id}.{node.attr}"}
            else:
                continue
            found |= {(name, x) for x in taken & LOCKING}
    # The server of an example has threads and locks of its own, and forks no process.
    assert {name for name, _ in found} == {"_core/locks.py", "examples/pir/service.py"}, found


def test_the_core_has_locks_in_one_file() -> None:
    """Only threads.cpp has locks, and a child rebuilds its pool. No function has a lazy static object."""
    locks = re.compile(r"\b(mutex|once_flag|call_once|condition_variable|pthread_once|future)\b")
    # The object `python` is made while the module is imported.
    static = re.compile(r"^\s+static (?!constexpr|inline|const Python python)[^()]*[={]", re.MULTILINE)
    sources = sorted(CORE.rglob("*.[ch]pp"))
    assert [path.name for path in sources if locks.search(path.read_text())] == ["threads.cpp"]
    assert not [(path.name, found[0]) for path in sources for found in static.finditer(path.read_text())]


def test_fork_waits_for_imports_of_every_package() -> None:
    packages = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            names = [x.name for x in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            packages |= {name.partition(".")[0] for name in names}
    assert packages - sys.stdlib_module_names - {"PyInstaller"} <= _PACKAGES


# ---- cached properties


class Counted:
    def __init__(self) -> None:
        self.calls = 0
        self.ready = Barrier(4)

    @cached_property
    def value(self) -> object:
        """A value."""
        self.calls += 1
        self.ready.wait(20)
        return object()


def test_threads_get_one_value_of_a_cached_property() -> None:
    """All four threads compute it at the same time, which a lock would prevent."""
    x = Counted()
    with ThreadPoolExecutor(4) as pool:
        values = set(pool.map(lambda _: x.value, range(4)))
    assert values == {x.value} and x.calls == 4


def test_cached_property_is_a_functools_cached_property() -> None:
    """inspect, Sphinx and the tests of frozen classes recognise it by its type."""
    own: Any = vars(Counted)["value"]
    assert isinstance(own, functools.cached_property) and own.__doc__ == "A value." and Counted.value is own


# ---- one thread is inside, another one forks

CASES = """
import gc, importlib.abc, importlib.util, json, os, signal, sys, threading, time, traceback
import polygpu as pg
from polygpu._core import locks, reporting
from polygpu._backends.cuda import device
from polygpu._core.plans import cache

parent, seconds = os.getpid(), {}

def fork(hold, use, *, ends_after=None):
    '''The child's exit status: one thread is inside hold(block), another one forks, the child calls use().'''
    inside = threading.Event()
    def block():
        if os.getpid() == parent:
            inside.set()
            time.sleep(1000 if ends_after is None else ends_after)
    threading.Thread(target=hold, args=(block,), daemon=True).start()
    assert inside.wait(20)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(8)
        try:
            use(block)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    seconds[hold.__name__] = time.monotonic() - began
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

class Watch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    '''Calls `block` when SymPy imports a part of it, and while the module own_program is executed.'''
    def __init__(self, block):
        self.block = block
    def find_spec(self, name, *_):
        if name == "sympy.core":
            self.block()
        return importlib.util.spec_from_loader(name, self) if name == "own_program" else None
    def exec_module(self, module):
        self.block()

def transform(_):
    R = pg.Ring(128, 12289)
    assert R([0, 1]).ntt().intt() == R([0, 1])

def import_of_sympy(block):
    sys.meta_path.insert(0, Watch(block))
    import sympy

def a_root_of_sympy(block):
    import sympy
    assert sympy.primitive_root(41) == 6
    transform(block)

def import_of_a_program(block):
    sys.meta_path.insert(0, Watch(block))
    import own_program

def a_plan(block):
    cache.cached(("key",), block)

def plans(block):
    transform(block)
    assert cache.cached(("key",), lambda: pg) is pg and cache.cached(("key",), list) is pg

class Value:
    @locks.cached_property
    def square(self):
        self.block()
        return 49
value = Value()

def a_cached_property(block):
    value.block = block
    value.square

def the_same_property(_):
    assert value.square == 49

def the_first_cipher(block):
    from cryptography.hazmat.primitives.ciphers import Cipher
    encryptor = Cipher.encryptor
    Cipher.encryptor = lambda self: (block(), encryptor(self))[1]
    pg.Ring(64, 97).random(seed=1)

def random_values(_):
    pg.Ring(64, 97).random(seed=1)

display = reporting._Display()

def a_drawing(block):
    with display._lock:
        block()

def progress_again(_):
    display(reporting.Progress("work", 1, 1, 9.0, True))
    display.close()
    with pg.progress(), reporting.Work(1, "work"):
        pass

def a_recording(block):
    with device._recordings:
        block()

def collects_cycles(_):
    assert gc.isenabled() and not device._recordings._threads

def every_lock(block):
    for lock in locks._locks:
        if lock is not locks.no_fork:
            lock.acquire(blocking=False)  # other cases hold some
    block()

def lock_each(_):
    for _ in range(2):
        for lock in locks._locks:
            assert lock.acquire(timeout=1)
            lock.release()
        thread = threading.Thread(target=lambda: None)
        thread.start(), thread.join()

def own_lock():
    '''The forking thread leaves its own `with` in the child too.'''
    lock, codes = locks.new_lock(), []
    with lock, lock:
        child = os.fork()
    if child == 0:
        signal.alarm(8)
        thread = threading.Thread(target=lambda: codes.append(lock.acquire(timeout=1)))
        thread.start(), thread.join()
        os._exit(codes != [True])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

codes = {
    "import of SymPy": fork(import_of_sympy, a_root_of_sympy, ends_after=0),
    "first cipher": fork(the_first_cipher, random_values, ends_after=0.2),
    "lock of the forking thread": own_lock(),
    "import of a program": fork(import_of_a_program, transform),
    "plan": fork(a_plan, plans),
    "property": fork(a_cached_property, the_same_property),
    "drawing": fork(a_drawing, progress_again),
    "recording": fork(a_recording, collects_cycles),
    "every lock": fork(every_lock, lock_each),
}
print(json.dumps({"codes": codes, "seconds": seconds}), flush=True)
os._exit(0)
"""


def test_child_process_finds_no_lock_of_another_thread() -> None:
    """At the fork a thread holds each kind of lock, and the child repeats the same work."""
    found = json.loads(run_python(CASES))
    assert found["codes"] == dict.fromkeys(found["codes"], 0)
    waited = found["seconds"]
    assert waited["import_of_sympy"] > 0.05  # then the thread is done
    assert waited["the_first_cipher"] > 0.15
    assert waited["import_of_a_program"] < 5


def test_fork_during_ring_creation_and_first_transforms() -> None:
    """Another thread creates plans, and tables of the core without holding the GIL."""
    code = """
        import os, signal, threading, time, zlib
        import polygpu as pg
        primes = pg.ntt_primes(1 << 15, bits=50, count=40)
        values = [pg.Ring(1 << 15, q).random(4, seed=1) for q in primes]
        at, stop = 0, False
        def build():
            global at
            for at, a in enumerate(values):
                a.ntt()
                if stop:
                    return
        thread = threading.Thread(target=build)
        thread.start()
        codes = []
        while thread.is_alive() and len(codes) < 12:
            time.sleep(0.003)
            now = at
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                assert pg.Ring(128, 12289)([0, 1]).ntt().intt().to_int64().tolist()[1] == 1
                os._exit(zlib.crc32(values[now].ntt().data) & 127)
            codes.append((now, child))
        stop = True
        thread.join()
        for now, child in codes:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code == zlib.crc32(values[now].ntt().data) & 127, (now, code)
        print(len(codes) > 3)
        """
    assert run_python(code, POLYGPU_NUM_THREADS="2") == "True\n"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_fork_in_a_signal_handler_during_a_call(threads: str) -> None:
    """Other threads have part of the rows; the child has no such threads, and says so.

    A signal that comes when the core asks no more is handled after the call. So there are several trials.
    """
    code = """
        import os, signal, threading, time, zlib
        import polygpu as pg
        ring = pg.Ring(4096, pg.ntt_primes(4096, bits=60))
        for rows in (2000, 4000, 8000, 16000):  # until a call outlasts several questions
            a = ring.random(rows, seed=1)
            a * a
            began = time.perf_counter()
            a * a
            if time.perf_counter() - began > 0.1:
                break
        expected = zlib.crc32((a[:8] * a[:8]).data)
        trials, most = set(), 1 if os.environ["POLYGPU_NUM_THREADS"] == "1" else 100
        def forks(*_):
            if not children:
                children.append(os.fork())
                if children == [0]:
                    signal.alarm(20)
        signal.signal(signal.SIGUSR1, forks)
        for trial in range(most):
            children = []
            threading.Timer(0.01 + trial % 8 * 0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            try:
                while not children:
                    b = a * a
                told = ""
            except RuntimeError as error:
                told = str(error)
            right = zlib.crc32((a * a)[:8].data) == expected
            if children == [0]:
                os._exit((not right) + 2 * ("signal handler forked" in told))
            code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
            trials.add((right, told, code))
            if code:
                break
        print(sorted(trials))
        """
    lacks_threads, whole = (True, "", 2), (True, "", 0)
    trials = ast.literal_eval(run_python(code, POLYGPU_NUM_THREADS=threads))
    if threads == "1":
        assert trials == [whole]
    else:
        assert lacks_threads in trials and set(trials) <= {lacks_threads, whole}
