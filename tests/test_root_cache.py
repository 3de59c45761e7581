"""Primitive roots on disk: kept, bounded, shared by processes, mended when damaged, never trusted."""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import sympy

from polygpu import Ring, ntt_primes
from polygpu._core.exact import root_cache, roots
from polygpu._core.plans import cache as plan_cache

Q = 12289  # 11 is its least primitive root, 2 and 3 are the prime factors of Q - 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty cache folder; nothing is remembered in this process."""

    def forget() -> None:
        roots._primitive_root.cache_clear()
        roots.root_of_unity.cache_clear()
        plan_cache.forget_rings()
        monkeypatch.setattr(root_cache, "_paused_until", 0.0)

    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYGPU_CACHE_DIR", str(folder))
    forget()
    yield lambda: (forget(), folder / "primitive_roots.sqlite")[1]
    roots._primitive_root.cache_clear()
    roots.root_of_unity.cache_clear()


def resolved() -> tuple[Any, Any]:
    return Ring(512, Q).roots, Ring(512, Q, root="generator").roots


def kept(q: int) -> int | None:
    """The least primitive root that the file has for q, if it is proved."""
    found = root_cache.load(q)
    return found[0] if found and roots._is_least_primitive_root(*found, q) else None


RIGHT = ((49,), (pow(11, (Q - 1) // 1024, Q),))


@contextmanager
def no_sympy() -> Iterator[None]:
    def lost(_: int) -> int:
        raise AssertionError("SymPy was asked again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sympy, "primitive_root", lost)
        yield


def works_again(cache: Any) -> bool:
    """Whether the cache gives right roots, keeps them, and its folder holds nothing else."""
    file, found = cache(), resolved()
    cache()
    with no_sympy():
        again = resolved()
    root_cache.store(97, 5, [2, 3])
    kept = ("61", "5", "2 3") in rows(file)
    return kept and found == again == RIGHT and [p.name for p in file.parent.iterdir()] == [file.name]


def python(code: str, *args: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def output(process: subprocess.Popen[str], timeout: float = 60) -> tuple[str, str, int]:
    """What the process wrote to stdout and stderr, and its exit status."""
    with process:
        try:
            return *process.communicate(timeout=timeout), process.returncode
        finally:
            process.kill()


def test_primitive_roots_are_kept(cache: Any) -> None:
    assert resolved() == RIGHT
    file = cache()
    assert str(file) == root_cache.cache_file()
    assert file.is_file() and [p.name for p in file.parent.iterdir()] == [file.name]
    with no_sympy():
        assert resolved() == RIGHT
    assert roots._primitive_root.cache_info().maxsize is not None


def test_a_kept_root_saves_the_import_of_sympy(cache: Any) -> None:
    assert resolved() == RIGHT
    code = f"import sys, polygpu; polygpu.Ring(512, {Q})._plan.transform; print('sympy' in sys.modules)"
    assert output(python(code)) == ("False\n", "", 0)


def test_sqlite_is_imported_only_for_a_root(cache: Any) -> None:
    code = "import sys, polygpu; polygpu.Ring(512, 12289); print('sqlite3' in sys.modules)"
    assert output(python(code)) == ("False\n", "", 0)


@pytest.mark.parametrize("name", ["\udcff", "file:x?mode=memory#%20", "x" * 250, ":memory:", "a'b\n"])
def test_the_folder_may_have_any_name(
    cache: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (str(tmp_path / name), name):  # absolute and relative
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("POLYGPU_CACHE_DIR", folder)
        cache()
        assert resolved() == RIGHT
        cache()
        with no_sympy():
            assert resolved() == RIGHT
        assert (tmp_path / name / "primitive_roots.sqlite").stat().st_size
        shutil.rmtree(tmp_path / name)


def rows(file: Path) -> list[Any]:
    with closing(sqlite3.connect(file)) as db:
        return db.execute("SELECT q, root, factors FROM roots ORDER BY age").fetchall()


def test_roots_of_several_moduli_are_all_kept(cache: Any) -> None:
    for q in (97, 193, 257):
        assert Ring(4, q).roots is not None
    assert rows(cache()) == [("61", "5", "2 3"), ("c1", "5", "2 3"), ("101", "3", "2")]


def test_numbers_beyond_the_limit_on_digits_are_kept(cache: Any) -> None:
    q = 1 << 20000
    root_cache.store(q, 5, [q - 1])
    assert rows(cache()) == [(f"{q:x}", "5", f"{q - 1:x}")]
    assert kept(q) is None  # not proved


def test_processes_that_write_at_the_same_time_lose_nothing(cache: Any) -> None:
    primes = ntt_primes(4, 30, 200)
    code = (
        "import sys, sympy, polygpu; print('ready', flush=True); input()\n"
        "for q in map(int, sys.argv[1:]): polygpu.Ring(4, q).roots"
    )
    processes = [python(code, *primes[i::4]) for i in range(4)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [output(process) for process in processes] == [("", "", 0)] * 4
    assert {int(q, 16) for q, _, _ in rows(cache())} == set(primes)
    with no_sympy():
        assert all(Ring(4, q).roots for q in primes)


def test_processes_that_make_the_file_at_the_same_time_lose_nothing(cache: Any, tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from polygpu._core.exact import root_cache
        for number in range(40):
            os.environ["POLYGPU_CACHE_DIR"] = os.path.join(sys.argv[1], str(number))
            read, write = os.pipe()
            children = []
            for q in range(4):
                if (child := os.fork()) == 0:
                    os.close(write)
                    os.read(read, 1)  # until all are there
                    root_cache.store(q, 1, [2])
                    os._exit(0)
                children.append(child)
            os.close(read)
            os.close(write)
            if any(os.waitpid(child, 0)[1] for child in children):
                sys.exit("a child failed")"""
    assert output(python(code, tmp_path)) == ("", "", 0)
    files = [tmp_path / str(number) / "primitive_roots.sqlite" for number in range(40)]
    assert all(sorted(q for q, _, _ in rows(file)) == ["0", "1", "2", "3"] for file in files)


def test_threads_that_write_at_the_same_time_lose_nothing(cache: Any) -> None:
    primes = ntt_primes(4, 30, 100)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda q: Ring(4, q).roots, primes))
    assert {int(q, 16) for q, _, _ in rows(cache())} == set(primes)


def test_a_fork_finds_no_lock_held(cache: Any) -> None:
    """One thread is in the cache all the time, while another one forks."""
    code = """if True:
        import os, signal, threading, polygpu
        from polygpu._core.exact import root_cache
        root_cache.store(41, 6, [2, 5])
        stop, found = threading.Event(), []
        def use():
            while not stop.is_set():
                root_cache.store(97, 5, [2, 3])
        def look():
            for _ in range(3):  # the writer may be in the way for long
                root_cache._paused_until = 0
                found.append(root_cache.load(41))
        thread = threading.Thread(target=use)
        thread.start()
        wrong = 0
        for _ in range(100):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                thread = threading.Thread(target=look)
                thread.start()
                thread.join()
                os._exit((6, [2, 5]) not in found)
            wrong += os.waitpid(child, 0)[1] != 0
            if wrong > 2:
                break
        stop.set()
        thread.join()
        print(wrong)"""
    assert output(python(code))[0] == "0\n"


def test_the_time_of_an_entry_does_not_grow(cache: Any) -> None:
    times = []
    for q in range(10**9, 10**9 + 2000):
        began = time.perf_counter()
        root_cache.store(q, 5, [2, 3])
        kept(q)
        times.append(time.perf_counter() - began)
    assert len(rows(cache())) == 2000
    assert statistics.median(times[-200:]) < 3 * statistics.median(times[:200])


def test_the_newest_entries_stay(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_cache, "_ENTRIES", 20)
    primes = ntt_primes(4, 20, 50)
    for q in primes:
        assert Ring(4, q).roots
    assert [int(q, 16) for q, _, _ in rows(cache())] == primes[-20:]
    assert Ring(4, primes[0]).roots  # forgotten, found anew, the newest now
    assert [int(q, 16) for q, _, _ in rows(cache())] == [*primes[-19:], primes[0]]
    root_cache.store(primes[-19], 1, [])  # replaced, which also makes it the newest
    assert [int(q, 16) for q, _, _ in rows(cache())] == [*primes[-18:], primes[0], primes[-19]]


def test_a_full_cache_is_small(cache: Any) -> None:
    """As many entries of 64 bits as are kept, and more."""
    root_cache.store(41, 6, [2, 5])
    with closing(sqlite3.connect(cache(), isolation_level=None)) as db:
        entries = ((f"{q:x}", "ff", "2 3 5 7 b d " + "f" * 12) for q in range(2**63, 2**63 + 20000))
        db.execute("BEGIN")
        db.executemany("INSERT INTO roots VALUES (NULL, ?, ?, ?)", entries)
        db.execute("COMMIT")
    root_cache.store(43, 3, [2, 3, 7])
    assert len(rows(cache())) == root_cache._ENTRIES == 16384
    assert kept(43) == 3 and kept(41) is None
    assert cache().stat().st_size < 4e6 < root_cache._BYTES


def written(file: Path, *entries: Any, age: int | None = None) -> None:
    """A cache file with these entries of q, root and factors, whatever their types; text may be no UTF-8."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE roots (age INTEGER PRIMARY KEY, q UNIQUE, root, factors)")
        for entry in entries:
            marks = ", ".join("CAST(? AS TEXT)" if isinstance(x, str) else "?" for x in entry)
            values = [x.encode("utf-8", "surrogateescape") if isinstance(x, str) else x for x in entry]
            db.execute(f"INSERT INTO roots VALUES (?, {marks})", (age, *values))
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'roots'", (root_cache._TABLE,))


def sql(*statements: str) -> Any:
    def write(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return write


def patched(change: Any, entries: int = 300) -> Any:
    """Writes a good file of about 10 pages, whose bytes are then changed."""

    def write(file: Path) -> None:
        written(file, (f"{Q:x}", "b", "2 3"), *((f"x{i}", "b", "2 3") for i in range(entries)))
        data = bytearray(file.read_bytes())
        file.write_bytes(change(data) or data)

    return write


def put(at: int, data: bytes) -> Any:
    return patched(lambda file: file.__setitem__(slice(at, at + len(data)), data))


def noise(count: int) -> bytes:
    return random.Random(7).randbytes(count)


def sparse(file: Path) -> None:
    written(file, (f"{Q:x}", "b", "2 3"))
    os.truncate(file, 1 << 36)


def with_neighbour(suffix: str, data: bytes) -> Any:
    def write(file: Path) -> None:
        written(file, (f"{Q:x}", "b", "2 3"))
        file.with_name(file.name + suffix).write_bytes(data)

    return write


KEY = f"{Q:x}"
ENTRIES = {
    "null entry": (KEY, None, None),
    "number entry": (KEY, 43, 43),
    "text entry": (KEY, "43", "43"),
    "text root": (KEY, "x", "2 3"),
    "null root": (KEY, None, "2 3"),
    "float root": (KEY, 43.5, "2 3"),
    "infinite root": (KEY, math.inf, "2 3"),
    "blob root": (KEY, b"\xff\0", "2 3"),
    "root of no UTF-8": (KEY, "\udcff", "2 3"),
    "empty root": (KEY, "", "2 3"),
    "huge root": (KEY, "9" * 5000, "2 3"),
    "huge text": (KEY, "9" * 10_000_000, "2 3"),
    "zero": (KEY, "0", "2 3"),
    "one": (KEY, "1", "2 3"),
    "q": (KEY, KEY, "2 3"),
    "negative": (KEY, "-b", "2 3"),
    "a square": (KEY, "79", "2 3"),
    "a factor missing": (KEY, "5", "2"),
    "no factors": (KEY, "7", ""),
    "null factors": (KEY, "7", None),
    "number of factors": (KEY, "7", 2),
    "a factor 0": (KEY, "7", "0 2 3"),
    "a factor 1": (KEY, "7", "1 2 3"),
    "a composite factor": (KEY, "7", "3000"),
    "a negative factor": (KEY, "7", "-2 3"),
    "factors that are no numbers": (KEY, "7", "2 y"),
    "factors of no UTF-8": (KEY, "7", "2 \udcff"),
    "many factors": (KEY, "7", "2 " * 5_000_000),
    "a huge factor": (KEY, "7", "2 3 " + "1" * 10_000),
    "another key": ("x", "b", "2 3"),
    "a number as key": (Q, "b", "2 3"),
    "the key in capitals": (KEY.upper() + " ", "b", "2 3"),
}


def entry_of(entry: tuple[Any, ...]) -> Any:
    return lambda file: written(file, entry)


GOOD = f"INSERT INTO roots VALUES (1, '{KEY}', 'b', '2 3')"
DAMAGED: dict[str, Any] = {name: entry_of(entry) for name, entry in ENTRIES.items()} | {
    "nothing": lambda file: file.write_bytes(b""),
    "one byte": lambda file: file.write_bytes(b"S"),
    "JSON": lambda file: file.write_bytes(b'{"12289": [11, [2, 3]]}'),
    "no database": lambda file: file.write_bytes(b"\x00\xff\xfe garbage"),
    "noise": lambda file: file.write_bytes(noise(20_000)),
    "zeros": lambda file: file.write_bytes(bytes(20_000)),
    "half a header": patched(lambda file: file[:50]),
    "the header alone": patched(lambda file: file[:100]),
    "half a page": patched(lambda file: file[:2048]),
    "the first page": patched(lambda file: file[:4096]),
    "half a file": patched(lambda file: file[: len(file) // 2]),
    "half the last page": patched(lambda file: file[:-2048]),
    "too long": patched(lambda file: file + noise(5000)),
    "zeros after the header": patched(lambda file: file[:100] + bytes(len(file) - 100)),
    "zeros after the first page": patched(lambda file: file[:4096] + bytes(len(file) - 4096)),
    "noise after the header": patched(lambda file: file[:100] + noise(len(file) - 100)),
    "noise after the first page": patched(lambda file: file[:4096] + noise(len(file) - 4096)),
    "pages in reverse": patched(
        lambda file: b"".join(file[i : i + 4096] for i in (0, *range(len(file) - 4096, 0, -4096)))
    ),
    "unknown page size": put(16, b"\x00\x03"),
    "another page size": put(16, b"\x02\x00"),
    "a newer format to write": put(18, b"\x03"),
    "a newer format to read": put(19, b"\x03"),
    "a newer format of schemas": put(44, b"\x00\x00\x00\x09"),
    "another encoding": put(56, b"\x00\x00\x00\x02"),
    "no encoding": put(56, b"\x00\x00\x00\x09"),
    "a statement that is none": patched(lambda file: file.replace(b"CREATE TABLE", b"CREATE TUBLE")),
    "too large": sparse,
    "no table": sql("CREATE TABLE t (x)", "DROP TABLE t"),
    "another table": sql("CREATE TABLE t (x)", "INSERT INTO t VALUES (1)"),
    "a table too many": sql(root_cache._TABLE, GOOD, "CREATE TABLE t (x)"),
    "a column missing": sql("CREATE TABLE roots (age INTEGER PRIMARY KEY, q UNIQUE, root)"),
    "no key": sql("CREATE TABLE roots (age, q, root, factors)", GOOD.replace("'b'", "'5'"), GOOD),
    "other columns": sql("CREATE TABLE roots (a, b, c, d)", GOOD),
    "a view": sql("CREATE VIEW roots AS SELECT 1 AS age, 1 AS q, 1 AS root, 1 AS factors"),
    "a view without its table": sql("CREATE VIEW roots AS SELECT * FROM t"),
    "a trigger": sql(
        root_cache._TABLE, "CREATE TRIGGER t BEFORE INSERT ON roots BEGIN SELECT RAISE(ABORT, 'no'); END"
    ),
    "a trigger of an unknown function": sql(
        root_cache._TABLE, "CREATE TRIGGER t BEFORE INSERT ON roots BEGIN SELECT f(); END"
    ),
    "the last age": lambda file: written(file, ("x", "b", "2 3"), age=2**63 - 1),
    "negative ages": lambda file: written(file, ("x", "b", "2 3"), age=-(2**63)),
    "text in UTF-16": sql("PRAGMA encoding='UTF-16'", root_cache._TABLE, GOOD),
    "large pages": sql("PRAGMA page_size=65536", root_cache._TABLE, GOOD),
    "a write-ahead log": sql("PRAGMA journal_mode=WAL", root_cache._TABLE, GOOD),
    "a journal of noise": with_neighbour("-journal", noise(5000)),
    "a journal of nothing": with_neighbour("-journal", b""),
    "a journal that stops": with_neighbour("-journal", bytes.fromhex("d9d505f920a163d7ffffffff") + noise(4)),
    "a write-ahead log of noise": with_neighbour("-wal", noise(5000)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_cache_is_survived(cache: Any, damage: str) -> None:
    file = cache()
    file.parent.mkdir()
    DAMAGED[damage](file)
    began = time.process_time()
    assert works_again(cache)
    assert time.process_time() - began < 5


def test_a_file_too_large_is_made_anew(cache: Any) -> None:
    cache().parent.mkdir()
    sparse(cache())
    assert works_again(cache) and cache().stat().st_size < 100_000


@pytest.mark.parametrize("entry", ["huge text", "many factors", "a huge factor"])
def test_huge_entries_take_little_memory(cache: Any, entry: str) -> None:
    cache().parent.mkdir()
    DAMAGED[entry](cache())
    tracemalloc.start()
    try:
        assert kept(Q) is None
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


def test_a_cache_with_wrong_bytes_is_survived(cache: Any) -> None:
    file = cache()
    file.parent.mkdir()
    patched(lambda _: None, entries=100)(file)
    good, some = file.read_bytes(), random.Random(1)
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(some.choice([1, 10, 100])):
            at = some.choice([some.randrange(110), some.randrange(len(bad))])
            bad[at] = some.choice([0, 1, 255, some.randrange(256)])
        file.write_bytes(bad)
        cache()
        assert resolved() == RIGHT
        for stray in file.parent.iterdir():
            stray.unlink()


def test_a_damaged_cache_that_was_replaced_meanwhile_stays(cache: Any) -> None:
    """Two processes find the damage; the first one has made the file anew when the second would."""
    file, calls = cache(), []

    def work(_: Any) -> str:
        calls.append(1)
        if len(calls) == 1:
            written(new := file.with_name("new"), (KEY, "b", "2 3"))
            new.replace(file)
            raise sqlite3.DatabaseError("database disk image is malformed")
        return "done"

    root_cache.store(41, 6, [2, 5])
    assert root_cache._in_database(work) == "done"
    assert kept(Q) == 11


@pytest.mark.parametrize(
    "error", [sqlite3.DatabaseError("malformed"), UnicodeDecodeError("x", b"", 0, 0, "x")]
)
def test_a_cache_is_made_anew_once(cache: Any, error: Exception) -> None:
    calls = []

    def work(_: Any) -> None:
        calls.append(1)
        raise error

    assert root_cache._in_database(work) is None and len(calls) == 2


@pytest.mark.parametrize(
    "entry",
    [
        [3, [2]],  # the least non-residue: of the right order, but no primitive root
        [3, [2, 5]],
        [7, [2, 5]],  # a primitive root, not the least one
        [35, [2, 5]],
        [6, [2]],  # right, but not proven
        [6, [2, 5, 7]],
        [6, [2, 5, 5]],
        [6, [2, 2, 5]],
        [1, []],
        [1, [2, 5]],
        [6 + 41, [2, 5]],
        [6 - 41, [2, 5]],
    ],
)
def test_a_wrong_entry_of_the_cache_never_changes_a_root(cache: Any, entry: Any) -> None:
    """Any non-residue gives a root of the right order; only 6, the least primitive root, the right root."""
    file = cache()
    root, factors = entry
    root_cache.store(41, root, factors)
    assert len(rows(file)) == 1 and kept(41) is None
    assert Ring(4, 41, root="generator").roots == (pow(6, 5, 41),)
    assert Ring(4, 41).roots == (3,)
    assert rows(file) == [("29", "6", "2 5")]  # and is replaced


def test_a_right_entry_of_the_cache_is_believed(cache: Any) -> None:
    root_cache.store(41, 6, [5, 2])
    with no_sympy():
        assert Ring(4, 41, root="generator").roots == (pow(6, 5, 41),)


def irregular(kind: str, place: Path) -> None:
    """Put something at this place that is no regular file."""
    other = place.with_name("other")
    if "FIFO" in kind:
        os.mkfifo(other if "link" in kind else place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, pytest.MonkeyPatch.context() as patch:
            patch.chdir(place.parent)  # a socket's path has at most 107 bytes
            made.bind(place.name)
    if not os.path.lexists(place):
        place.symlink_to({"device": "/dev/zero", "loop of links": place}.get(kind, other))


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    """A FIFO would be read for ever, a device without end."""
    kinds = ("FIFO", "link to a FIFO", "socket", "folder", "device", "loop of links")
    places = list(itertools.product(kinds, ("", "-journal", "-wal", "-shm")))
    for number, (kind, suffix) in enumerate(places):
        file = tmp_path / str(number) / "primitive_roots.sqlite"
        file.parent.mkdir()
        if suffix:
            written(file, (KEY, "b", "2 3"))
        irregular(kind, file.with_name(file.name + suffix))
    before = {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")}
    code = """if True:
        import os, sys
        from polygpu._core.exact import root_cache
        for number in range(int(sys.argv[2])):
            os.environ["POLYGPU_CACHE_DIR"] = os.path.join(sys.argv[1], str(number))
            print(number, flush=True)
            root_cache.store(41, 6, [2, 5])
            if root_cache.load(41) or root_cache.load(12289):
                print("used")"""
    done = "".join(f"{number}\n" for number in range(len(places)))
    assert output(python(code, tmp_path, len(places)), timeout=30) == (done, "", 0), places
    assert before == {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")}


def test_a_root_is_found_beside_a_fifo(cache: Any) -> None:
    file = cache()
    file.parent.mkdir()
    os.mkfifo(file)
    code = f"import polygpu; print(polygpu.Ring(512, {Q}).roots)"
    assert output(python(code), timeout=30) == ("(49,)\n", "", 0)


def test_a_link_to_a_file_is_followed(cache: Any, tmp_path: Path) -> None:
    file = cache()
    file.parent.mkdir()
    file.symlink_to(tmp_path / "elsewhere" / "roots")
    assert works_again(cache)
    assert file.is_symlink() and rows(tmp_path / "elsewhere" / "roots")
    (tmp_path / "elsewhere" / "roots").write_bytes(noise(10_000))
    assert works_again(cache)
    assert file.is_symlink() and rows(tmp_path / "elsewhere" / "roots")


def test_a_process_killed_in_a_transaction_leaves_a_cache_that_works(cache: Any) -> None:
    """Its last pages are in the file already, and the journal tells what stood there."""
    root_cache.store(41, 6, [2, 5])
    before = rows(cache())
    code = """if True:
        import os, signal
        from polygpu._core.exact import root_cache
        def work(db):
            db.execute("PRAGMA cache_size=1")
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE roots SET root = 'ff'")
            for i in range(1000):
                db.execute("INSERT INTO roots VALUES (NULL, ?, 'b', '2 3')", (f"x{i}",))
            os.kill(os.getpid(), signal.SIGKILL)
        root_cache._in_database(work)"""
    assert output(python(code)) == ("", "", -signal.SIGKILL)
    file = cache()
    assert sorted(p.name for p in file.parent.iterdir()) == [file.name, file.name + "-journal"]
    assert file.stat().st_size > 20_000
    with no_sympy():
        assert Ring(4, 41).roots == (3,)
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert rows(file) == before
    assert works_again(cache)


def test_processes_killed_at_any_time_leave_a_cache_that_works(cache: Any) -> None:
    code = """if True:
        import itertools
        from polygpu._core.exact import root_cache
        print("ready", flush=True)
        for q in itertools.count(10**9):
            root_cache.store(q, 5, [2, 3])"""
    for delay in (0, 0.01, 0.02, 0.05):
        process = python(code)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.kill()
        assert output(process) == ("", "", -signal.SIGKILL)
        assert works_again(cache)
        root_cache.store(Q, 1, [])  # the next round computes it anew


@pytest.mark.parametrize("lock", ["SHARED", "RESERVED", "EXCLUSIVE"])
def test_a_cache_that_stays_locked_is_waited_for_once(
    cache: Any, lock: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    root_cache.store(41, 6, [2, 5])
    primes = ntt_primes(4, 20, 20)
    Ring(4, primes[0]).roots  # noqa: B018  (imports what is needed)
    cache()
    caplog.set_level(logging.DEBUG, "polygpu")
    with closing(sqlite3.connect(root_cache.cache_file(), isolation_level=None)) as other:
        other.execute(
            "BEGIN" if lock == "SHARED" else "BEGIN EXCLUSIVE" if lock[0] == "E" else "BEGIN IMMEDIATE"
        )
        other.execute("SELECT * FROM roots").fetchone()
        began = time.monotonic()
        assert all(Ring(4, q).roots for q in primes[1:])
        assert 0.5 < time.monotonic() - began < 3
    assert capfd.readouterr() == ("", "")
    assert [record.name for record in caplog.records] == ["polygpu"]
    assert "primitive roots are not cached: database is locked" in caplog.text
    root_cache.store(97, 5, [2, 3])
    assert len(rows(cache())) == 2  # the file is left alone for a while
    root_cache.store(97, 5, [2, 3])
    assert len(rows(cache())) == 3


def test_a_full_disk_is_no_error(cache: Any) -> None:
    """Every write fails, as beyond a limit on the size of files."""
    code = f"""if True:
        import resource, sys, polygpu
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
        print(polygpu.Ring(512, {Q}).roots)"""
    root_cache.store(41, 6, [2, 5])
    for limit in (0, 9000):
        assert output(python(code, limit)) == ("(49,)\n", "", 0)
        assert rows(cache())[0] == ("29", "6", "2 5")
        root_cache.store(Q, 1, [])
    assert works_again(cache)
    cache().unlink()
    for limit in (0, 9000):
        assert output(python(code, limit)) == ("(49,)\n", "", 0)
        assert works_again(cache)
        cache().unlink()


def test_a_python_without_sqlite_is_no_error(
    cache: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "polygpu")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sqlite3", None)
        assert resolved() == RIGHT
    assert "primitive roots are not cached" in caplog.text
    assert not cache().exists()
    assert works_again(cache)


def test_a_file_of_earlier_versions_is_ignored(cache: Any) -> None:
    old = cache().with_name("primitive_roots.json")
    old.parent.mkdir()
    old.write_text('{"12289": [7, [2, 3]]}')
    assert resolved() == RIGHT
    assert old.read_text() == '{"12289": [7, [2, 3]]}'


@pytest.mark.parametrize("variable", ["POLYGPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("place", ["a file", "below a file", "/proc/no/such", "/dev/null/x", "~nobody/x"])
def test_a_cache_that_cannot_be_written_is_no_error(
    variable: str, place: str, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for name in ("POLYGPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, {"a file": str(file), "below a file": str(file / "x")}.get(place, place))
    monkeypatch.chdir(tmp_path)
    cache()
    assert resolved() == RIGHT
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_home_is_no_error(cache: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert resolved() == RIGHT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everywhere")
@pytest.mark.parametrize("mode", [0o600, 0o400, 0])
def test_a_cache_without_permissions_is_no_error(cache: Any, mode: int) -> None:
    root_cache.store(Q, 11, [2, 3])
    file = cache()
    file.chmod(mode)
    file.parent.chmod(0o500)
    with no_sympy() if mode else nullcontext():
        assert resolved() == RIGHT  # what can be read is used
    assert Ring(4, 41).roots == (3,)
    file.parent.chmod(0o700)
    file.chmod(0o600)
    assert rows(file) == [(KEY, "b", "2 3")]


def test_a_folder_that_went_away_is_no_error(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("POLYGPU_CACHE_DIR", "relative")
    (tmp_path / "gone").rmdir()
    assert resolved() == RIGHT


def test_a_cache_is_used_once_it_can_be(cache: Any) -> None:
    """Only waiting for a lock keeps this process from another attempt."""
    cache().mkdir(parents=True)
    root_cache.store(41, 6, [2, 5])
    (place := Path(root_cache.cache_file())).rmdir()
    root_cache.store(41, 6, [2, 5])
    assert rows(place) == [("29", "6", "2 5")]


def test_an_empty_variable_means_the_default(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYGPU_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    cache()
    assert resolved() == RIGHT
    assert [p.name for p in tmp_path.iterdir()] == ["xdg"]
    assert (tmp_path / "xdg" / "polygpu" / "primitive_roots.sqlite").is_file()
