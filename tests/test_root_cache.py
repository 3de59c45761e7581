"""The cache of primitive roots on disk: bounded, shared by processes, repaired when damaged, verified."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sympy
from test_cpu import run_python

from polygpu import Ring, ntt_primes
from polygpu._core.exact import root_cache, roots
from polygpu._core.plans import cache as plan_cache

Q = 12289  # 11 is its least primitive root, 2 and 3 are the prime factors of Q - 1
RIGHT = ((49,), (pow(11, (Q - 1) // 1024, Q),))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """An empty cache; each call forgets what this process remembers, and returns the folder."""

    def forget() -> Path:
        roots._primitive_root.cache_clear()
        roots.root_of_unity.cache_clear()
        plan_cache.forget_rings()
        return Path(root_cache.cache_folder())

    monkeypatch.setenv("POLYGPU_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield forget
    forget()


def resolved() -> tuple[Any, Any]:
    return Ring(512, Q).roots, Ring(512, Q, root="generator").roots


@contextmanager
def no_sympy() -> Iterator[None]:
    def lost(_: int) -> int:
        raise AssertionError("SymPy was asked again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sympy, "primitive_root", lost)
        yield


def works_again(cache: Callable[[], Path]) -> bool:
    """Whether the cache gives right roots and keeps them."""
    cache()
    found = resolved()
    folder = cache()
    with no_sympy():
        again = resolved()
    return found == again == RIGHT and (folder / f"{Q:x}").read_text() == "b 2 3"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def output(code: str) -> str:
    """What code writes in a fresh interpreter, which must end well and soon."""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def test_primitive_roots_are_cached_in_files(cache: Any) -> None:
    assert works_again(cache) and names(cache()) == [f"{Q:x}"]
    for q in (97, 193, 257):
        assert Ring(4, q).roots is not None
    assert {name: (cache() / name).read_text() for name in names(cache())} == {
        "3001": "b 2 3",
        "61": "5 2 3",
        "c1": "5 2 3",
        "101": "3 2",
    }
    assert roots._primitive_root.cache_info().maxsize is not None


def test_cached_root_avoids_the_import_of_sympy(cache: Any) -> None:
    assert resolved() == RIGHT
    code = f"import sys, polygpu; polygpu.Ring(512, {Q})._plan.transform; print('sympy' in sys.modules)"
    assert output(code) == "False\n"


@pytest.mark.parametrize("name", ["\udcff", "a b/c", "~nobody/x", "a'b\n"])
def test_cache_folder_of_any_name(
    cache: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (str(tmp_path / name), name):  # absolute and relative
        monkeypatch.setenv("POLYGPU_CACHE_DIR", folder)
        assert works_again(cache)
        shutil.rmtree(cache())


def test_empty_environment_variable_selects_the_default_folder(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYGPU_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert works_again(cache) and names(tmp_path / "xdg" / "polygpu" / "primitive_roots") == [f"{Q:x}"]


def test_concurrent_writers_lose_no_entries(cache: Any) -> None:
    """Threads of several processes find the same primes."""
    primes = ntt_primes(4, bits=30, count=60)

    def work(i: int) -> str:
        return output(
            f"""
            import concurrent.futures, polygpu
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda q: polygpu.Ring(4, q).roots, {primes[20 * i : 20 * i + 40]}))
            """
        )

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [""] * 3
    assert {int(name, 16) for name in names(cache())} == set(primes)
    with no_sympy():
        assert all(Ring(4, q).roots for q in primes)


def test_number_of_cached_files_is_bounded(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_cache, "_FILES", 20)
    primes = ntt_primes(4, bits=20, count=30)
    assert all(Ring(4, q).roots for q in primes)
    assert names(cache()) == sorted(f"{q:x}" for q in primes[:20])


def test_prime_too_long_for_a_file_name_is_not_cached(cache: Any) -> None:
    root_cache.store(1 << 20000, 5, [2])
    assert root_cache.load(1 << 20000) is None and names(cache()) == []


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: path.touch(),
    "half": lambda path: path.write_text("b 2"),
    "noise": lambda path: path.write_bytes(random.Random(7).randbytes(10_000)),
    "zeros": lambda path: path.write_bytes(bytes(10_000)),
    "many factors": lambda path: path.write_text("b" + " 2" * 10**6),
    "a huge factor": lambda path: path.write_text("b 2 3 " + "f" * 10**6),
    "a huge file": lambda path: (path.touch(), os.truncate(path, 1 << 36)),
    "a FIFO": os.mkfifo,
    "a device": link_to("/dev/zero"),
    "a loop of links": link_to(f"{Q:x}"),
    "a link to nothing": link_to("absent"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file_is_replaced(cache: Any, damage: str) -> None:
    folder = cache()
    folder.mkdir(parents=True)
    DAMAGED[damage](folder / f"{Q:x}")
    assert works_again(cache) and names(folder) == [f"{Q:x}"]


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
        [6, [20]],
        [1, []],
        [1, [2, 5]],
        [6 + 41, [2, 5]],
        [6 - 41, [2, 5]],
    ],
)
def test_wrong_entry_does_not_change_roots(cache: Any, entry: Any) -> None:
    """Any non-residue has the right order, but only 6, the least primitive root, is correct."""
    root_cache.store(41, *entry)
    assert Ring(4, 41, root="generator").roots == (pow(6, 5, 41),)
    assert Ring(4, 41).roots == (3,)
    assert root_cache.load(41) == (6, [2, 5])  # it is replaced


def test_valid_entry_is_used(cache: Any) -> None:
    root_cache.store(41, 6, [5, 2])
    with no_sympy():
        assert Ring(4, 41, root="generator").roots == (pow(6, 5, 41),)


@pytest.mark.parametrize("step", ["os.replace", "os.listdir", "os.makedirs"])
def test_system_errors_do_not_propagate(cache: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """With a full disk or missing permissions, roots are right and no file is left."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        assert resolved() == RIGHT
    assert not cache().exists() or names(cache()) == []
    assert works_again(cache)


@pytest.mark.parametrize("variable", ["POLYGPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("place", ["a file", "below a file", "/proc/no/such", "/dev/null/x", "\ud800"])
def test_unwritable_cache_folder_is_ignored(
    variable: str, place: str, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for name in ("POLYGPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    place = {"a file": str(file), "below a file": str(file / "x")}.get(place, place)
    if place == "\ud800":  # no environment can hold it
        monkeypatch.setattr(root_cache, "cache_folder", lambda: place)
    else:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv(variable, place)
    cache()
    assert resolved() == RIGHT
    assert file.read_text() == "mine"
