"""Primitive roots on disk. SymPy, which finds them, takes a third of a second to import."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ..locks import no_fork

if TYPE_CHECKING:
    import sqlite3

_T = TypeVar("_T")

_ENTRIES = 1 << 14  # the newest ones stay: 2 MB of 60-bit primes
_BYTES = 1 << 26  # no file of this cache is larger
_WAIT = 1.0  # seconds to wait for the lock of another process, which holds it for a millisecond
_PAUSE = 60.0  # seconds without a cache after a wait that was in vain
# The prime factors of q - 1 prove the root. Numbers are hexadecimal: Python limits the digits of decimals.
_TABLE = (
    "CREATE TABLE roots"
    " (age INTEGER PRIMARY KEY, q TEXT NOT NULL UNIQUE, root TEXT NOT NULL, factors TEXT NOT NULL)"
)
_paused_until = 0.0


def cache_file() -> str:
    """Where primitive roots are kept: in $POLYGPU_CACHE_DIR, $XDG_CACHE_HOME/polygpu or ~/.cache/polygpu."""
    folder = os.environ.get("POLYGPU_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "polygpu"
    )
    return os.path.join(os.path.expanduser(folder), "primitive_roots.sqlite")


def _in_database(work: Callable[[sqlite3.Connection], _T]) -> _T | None:
    """What work returns on the open database; None where there can be no cache, which is no error."""
    global _paused_until
    problem: Exception
    try:
        import sqlite3
    except ImportError as error:  # Python can be built without it
        problem = error
    else:
        with no_fork:  # else the child of a fork would find locks inside SQLite held for ever
            began = time.monotonic()
            if began < _paused_until:
                return None
            try:
                path = os.path.realpath(cache_file())
                os.makedirs(os.path.dirname(path), exist_ok=True)
                return _in_file(path, work)
            except (OSError, UnicodeDecodeError, sqlite3.Error) as error:
                problem = error
            if time.monotonic() - began > _WAIT / 2:
                _paused_until = time.monotonic() + _PAUSE
    import logging

    logging.getLogger("polygpu").debug("primitive roots are not cached: %s", problem)
    return None


def _in_file(path: str, work: Callable[[sqlite3.Connection], _T], *, mend: bool = True) -> _T:
    """What work returns on a connection of its own, which no thread shares; a damaged file is made anew."""
    import sqlite3

    seen = _status(path)
    try:
        if seen and seen.st_size > _BYTES:
            raise sqlite3.DatabaseError("too large")
        with closing(sqlite3.connect(path, timeout=_WAIT, isolation_level=None)) as db:
            db.text_factory = bytes  # text need not be UTF-8
            db.execute("PRAGMA synchronous=OFF")  # a lost cache is no loss
            schema = db.execute("SELECT group_concat(sql) FROM sqlite_master").fetchone()[0]
            if schema is None:
                db.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
            elif schema != _TABLE.encode():
                raise sqlite3.DatabaseError("not the table of roots")
            return work(db)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # a message can quote the file's bytes
        # A lock, missing rights or a full disk raise OperationalError. Every other error means damage. So do
        # two kinds of OperationalError: the file's header forbids reading, or it forbids writing that the
        # file's rights allow.
        text = str(error)
        header = "unsupported file format" in text or ("readonly" in text and os.access(path, os.W_OK))
        if not mend or (isinstance(error, sqlite3.OperationalError) and not header):
            raise
    _remove(path, seen)
    return _in_file(path, work, mend=False)


def _status(path: str) -> os.stat_result | None:
    """The file's status, or None without a file. OSError if SQLite would open another kind of file."""
    found = None
    for suffix in ("-journal", "-wal", "-shm", ""):
        try:
            found = os.stat(path + suffix)
        except FileNotFoundError:
            found = None
        if found and not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path}{suffix} is no regular file")
    return found


def _remove(path: str, seen: os.stat_result | None) -> None:
    """Remove the damaged file, unless another process has put a new one in its place since it was seen."""
    now = _status(path)
    if now and seen and (now.st_ino, now.st_mtime_ns) == (seen.st_ino, seen.st_mtime_ns):
        for suffix in ("-journal", "-wal", "-shm", ""):  # the file last: no new one meets its journal
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)


def load(q: int) -> tuple[int, list[int]] | None:
    """Root and factors that the file has for q, for the caller to prove; None where it has none."""
    query = "SELECT root, factors FROM roots WHERE q = ?"
    row: Any = _in_database(lambda db: db.execute(query, (f"{q:x}",)).fetchone())
    try:
        root, factors = row
        return int(root, 16), [int(f, 16) for f in factors.split(None, q.bit_length())]
    except (AttributeError, TypeError, ValueError):  # no entry, or one that store() did not write
        return None


def store(q: int, root: int, factors: list[int]) -> None:
    """Add an entry, or replace it."""
    entry = f"{q:x}", f"{root:x}", " ".join(f"{f:x}" for f in factors)

    def add(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT OR REPLACE INTO roots VALUES ((SELECT max(age) + 1 FROM roots), ?, ?, ?)", entry)
        db.execute("DELETE FROM roots WHERE age <= (SELECT max(age) FROM roots) - ?", (_ENTRIES,))
        db.execute("COMMIT")

    _in_database(add)
