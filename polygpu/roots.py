"""Primes and roots of unity. SymPy is imported only when a root is asked for and not cached."""

from __future__ import annotations

import operator
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import _cpu
from .errors import BadRoot, NotAnInteger, ParameterError

if TYPE_CHECKING:
    import sqlite3

_T = TypeVar("_T")
Kind = Literal["negacyclic", "cyclic"]

# The first 13 primes decide primality below this bound. Source: Sorenson & Webster 2015.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_WITNESSES_DECIDE = 3_317_044_064_679_887_385_961_981
MAX_DEGREE = 1 << 62  # so that indices and sizes in bytes are machine integers
MAX_BITS = 1 << 16  # of primes that are searched for: a single one takes an hour

_FACTOR_LIMIT = 1 << 20  # q - 1 of more than 64 bits is factored by primes below this, one more may be left


def integer(x: Any, name: str) -> int:
    """Return x as an int; bools and anything inexact raise NotAnInteger."""
    if type(x) is int:
        return x
    try:
        if isinstance(x, bool) or type(x).__name__ == "bool":  # np.bool has that name too
            raise TypeError
        return operator.index(x)
    except TypeError:
        raise NotAnInteger(
            f"{name}: {shown(x)} of type {type(x).__name__} must be an int; nothing is rounded or guessed"
        ) from None


def shown(x: object) -> str:
    """A value for messages. A long int is given by its ends, which also passes Python's limit on digits."""
    if isinstance(x, (list, tuple)):
        text = ", ".join(map(shown, x[:8])) + ", ..." * (len(x) > 8)
        return f"[{text}]" if isinstance(x, list) else f"({text}{',' * (len(x) == 1)})"
    if type(x) is not int or x.bit_length() <= 256:
        try:
            return repr(x)
        except ValueError:  # of long ints within
            return type(x).__name__
    digits = f"{x:x}"
    return f"{'-' * (x < 0)}0x{digits.lstrip('-')[:8]}...{digits[-8:]} ({x.bit_length()} bits)"


def is_prime(n: int) -> bool:
    """Whether n is prime.

    Exact below 3.3e24 (Miller-Rabin with 13 bases); above, SymPy's test (Baillie-PSW), to which no
    counterexample is known.

    >>> is_prime(2**61 - 1), is_prime(2**62 - 1)
    (True, False)
    """
    return _is_prime(integer(n, "n"))


@lru_cache(maxsize=1 << 14)
def _is_prime(n: int) -> bool:
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in _WITNESSES:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    if n < _WITNESSES_DECIDE:
        return True
    import sympy

    return bool(sympy.isprime(n))


def root_order(points: int, kind: Kind) -> int:
    """Order of the root that a transform of `points` points needs: 2N negacyclic, N cyclic."""
    return 2 * points if kind == "negacyclic" else points


def ntt_primes(n: int, bits: int, count: int = 1, kind: Kind = "negacyclic") -> list[int]:
    """The `count` largest primes below 2**bits with a full transform of degree n, descending.

    Such a prime is 1 mod 2n (negacyclic) or 1 mod n (cyclic); n must be a power of two.

    Raises:
        ParameterError: n is no power of two, or there are fewer such primes of exactly `bits` bits.

    >>> ntt_primes(4096, bits=30, count=2)
    [1073692673, 1073668097]
    """
    n, bits, count = checked_degree(n), integer(bits, "bits"), integer(count, "count")
    if n & (n - 1):
        raise ParameterError(f"n: {n} is no power of two; a full transform needs one")
    if not 2 <= bits <= MAX_BITS or count < 0:
        raise ParameterError(
            f"bits: {shown(bits)} must be at least 2 and at most {MAX_BITS}, "
            f"and count: {shown(count)} at least 0"
        )
    check_kind(kind)
    order = root_order(n, kind)
    primes: list[int] = []
    candidate = ((1 << bits) - 2) // order * order + 1
    while len(primes) < count and candidate >> (bits - 1):
        if _is_prime(candidate):
            primes.append(candidate)
        candidate -= order
    if len(primes) < count:
        raise ParameterError(
            f"bits={bits}: only {len(primes)} primes of {bits} bits are 1 mod {order}, {shown(count)} were "
            f"asked for; use more bits or a smaller n than {n}"
        )
    return primes


def checked_degree(n: object) -> int:
    """Return n as an int of at least 1; raise ParameterError otherwise."""
    degree = integer(n, "n")
    if not 1 <= degree <= MAX_DEGREE:
        raise ParameterError(
            f"n: {shown(degree)} must be at least 1, the degree of X^n ± 1, and at most 2**62"
        )
    return degree


def check_kind(kind: object) -> None:
    """Raise unless kind is one of the two."""
    if kind not in ("negacyclic", "cyclic"):
        raise ParameterError(f"kind: {kind!r} must be 'negacyclic' (mod X^n + 1) or 'cyclic' (mod X^n - 1)")


def has_order(x: int, order: int, q: int) -> bool:
    """Whether x has exactly this order mod the prime q; order is a power of two."""
    if order == 1:
        return x % q == 1 % q
    return pow(x, order // 2, q) == q - 1 and q > 2


def two_power_root(q: int, order: int) -> int:
    """A root of the given power-of-two order mod the prime q, from its least non-residue."""
    if order == 1:
        return 1
    x = next(x for x in range(2, q) if pow(x, (q - 1) // 2, q) == q - 1) if q > 3 else q - 1
    root = pow(x, (q - 1) // order, q)
    assert has_order(root, order, q)
    return root


@lru_cache(maxsize=1 << 12)
def root_of_unity(q: int, order: int, rule: Literal["minimal", "generator"]) -> int:
    """A primitive root of unity mod the prime q, of a power-of-two order that divides q - 1.

    "minimal": the smallest one; "generator": g**((q-1)/order), g the least primitive root.
    Both come from SymPy's primitive root and are checked by their exact order.

    >>> root_of_unity(3329, 256, "minimal"), root_of_unity(8380417, 512, "minimal")
    (17, 1753)
    """
    if (q - 1) % order:
        raise BadRoot(f"root: q = {shown(q)} has no element of order {order}: q mod {order} must be 1")
    if order == 1:
        return 1
    if rule == "generator" or q >> 64 == 0:
        root = pow(_primitive_root(q), (q - 1) // order, q)
    else:  # factoring q - 1, which a primitive root takes, may be out of reach
        root = two_power_root(q, order)
    if not has_order(root, order, q):
        raise AssertionError(f"{root} has not the order {order} mod {q}")
    return root if rule == "generator" else _smallest_generator(q, root, order)


def _smallest_generator(q: int, root: int, order: int) -> int:
    """The least of the odd powers of root."""
    if q >> 64 == 0:
        return _cpu.smallest_generator(q, root, order)
    square, x, least = root * root % q, root, root
    for _ in range(order // 2 - 1):
        x = x * square % q
        least = min(least, x)
    return least


# ---- primitive roots, kept on disk: SymPy takes a second to import ----

_CACHE_ENTRIES = 1 << 14  # the newest ones stay: 2 MB of 60-bit primes
_CACHE_BYTES = 1 << 26  # no file of ours is larger
_CACHE_WAIT = 1.0  # seconds for the lock of another process, which takes a millisecond
_CACHE_PAUSE = 60.0  # seconds without a cache after such a wait in vain
# The prime factors of q - 1 prove the root. All are hexadecimal: Python limits the digits of decimal numbers.
_TABLE = (
    "CREATE TABLE roots"
    " (age INTEGER PRIMARY KEY, q TEXT NOT NULL UNIQUE, root TEXT NOT NULL, factors TEXT NOT NULL)"
)
_cache_paused_until = 0.0
# A fork waits for the operation under way: the child would find locks inside SQLite held for ever.
_cache_lock = threading.RLock()
os.register_at_fork(
    before=_cache_lock.acquire, after_in_parent=_cache_lock.release, after_in_child=_cache_lock.release
)


def cache_file() -> str:
    """Where primitive roots are kept: in $POLYGPU_CACHE_DIR, $XDG_CACHE_HOME/polygpu or ~/.cache/polygpu."""
    folder = os.environ.get("POLYGPU_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "polygpu"
    )
    return os.path.join(os.path.expanduser(folder), "primitive_roots.sqlite")


def _in_cache(work: Callable[[sqlite3.Connection], _T]) -> _T | None:
    """What work returns on the open database; None where no cache can be had, which is no error."""
    global _cache_paused_until
    problem: Exception
    try:
        import sqlite3
    except ImportError as error:  # Python can be built without it
        problem = error
    else:
        with _cache_lock:
            began = time.monotonic()
            if began < _cache_paused_until:
                return None
            try:
                path = os.path.realpath(cache_file())
                os.makedirs(os.path.dirname(path), exist_ok=True)
                return _in_file(path, work)
            except (OSError, UnicodeDecodeError, sqlite3.Error) as error:
                problem = error
            if time.monotonic() - began > _CACHE_WAIT / 2:
                _cache_paused_until = time.monotonic() + _CACHE_PAUSE
    import logging

    logging.getLogger("polygpu").debug("primitive roots are not cached: %s", problem)
    return None


def _in_file(path: str, work: Callable[[sqlite3.Connection], _T], *, mend: bool = True) -> _T:
    """What work returns on a connection of its own, which no thread shares; a damaged file is made anew."""
    import sqlite3

    seen = _cache_status(path)
    try:
        if seen and seen.st_size > _CACHE_BYTES:
            raise sqlite3.DatabaseError("too large")
        with closing(sqlite3.connect(path, timeout=_CACHE_WAIT, isolation_level=None)) as db:
            db.text_factory = bytes  # text need not be UTF-8
            db.execute("PRAGMA synchronous=OFF")  # a lost cache is no loss
            schema = db.execute("SELECT group_concat(sql) FROM sqlite_master").fetchone()[0]
            if schema is None:
                db.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
            elif schema != _TABLE.encode():
                raise sqlite3.DatabaseError("not the table of roots")
            return work(db)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # messages, too, quote what is in the file
        # A lock, missing rights or a full disk are an OperationalError. All else is damage, and so are two of
        # those: a file whose header forbids reading, or writing although the rights to write are there.
        text = str(error)
        header = "unsupported file format" in text or ("readonly" in text and os.access(path, os.W_OK))
        if not mend or (isinstance(error, sqlite3.OperationalError) and not header):
            raise
    _remove_cache(path, seen)
    return _in_file(path, work, mend=False)


def _cache_status(path: str) -> os.stat_result | None:
    """The file's status, None without one; OSError where SQLite would open what is no regular file."""
    found = None
    for suffix in ("-journal", "-wal", "-shm", ""):
        try:
            found = os.stat(path + suffix)
        except FileNotFoundError:
            found = None
        if found and not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path}{suffix} is no regular file")
    return found


def _remove_cache(path: str, seen: os.stat_result | None) -> None:
    """Remove the damaged file, unless another process has put a new one in its place since it was seen."""
    now = _cache_status(path)
    if now and seen and (now.st_ino, now.st_mtime_ns) == (seen.st_ino, seen.st_mtime_ns):
        for suffix in ("-journal", "-wal", "-shm", ""):  # the file last, so that no new one meets its journal
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)


def _kept_root(q: int) -> int | None:
    """The least primitive root mod q that the cache knows and proves."""
    query = "SELECT root, factors FROM roots WHERE q = ?"
    row: Any = _in_cache(lambda db: db.execute(query, (f"{q:x}",)).fetchone())
    try:
        root, factors = row
        root, factors = int(root, 16), [int(f, 16) for f in factors.split(None, q.bit_length())]
    except (AttributeError, TypeError, ValueError):  # no entry, or one that we have not written
        return None
    return root if _is_least_primitive_root(root, factors, q) else None


def _keep_root(q: int, root: int, factors: list[int]) -> None:
    """Add an entry, or replace it."""
    entry = f"{q:x}", f"{root:x}", " ".join(f"{f:x}" for f in factors)

    def add(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT OR REPLACE INTO roots VALUES ((SELECT max(age) + 1 FROM roots), ?, ?, ?)", entry)
        db.execute("DELETE FROM roots WHERE age <= (SELECT max(age) FROM roots) - ?", (_CACHE_ENTRIES,))
        db.execute("COMMIT")

    _in_cache(add)


def _is_least_primitive_root(g: int, factors: list[int], q: int) -> bool:
    """Whether the prime factors of q - 1 prove it."""
    rest = q - 1
    for f in factors:
        if f < 2 or rest % f or not _is_prime(f):  # no number beyond q is tested for primality
            return False
        while rest % f == 0:
            rest //= f
    if rest != 1 or not 0 < g < q:
        return False

    def generates(x: int) -> bool:
        return all(pow(x, (q - 1) // f, q) != 1 for f in factors)

    return generates(g) and not any(map(generates, range(1, g)))


@lru_cache(maxsize=1 << 12)  # for the other orders and the other rule of the same q
def _primitive_root(q: int) -> int:
    """The least primitive root mod the prime q, by SymPy."""
    known = _kept_root(q)
    if known is not None:
        return known
    import sympy

    # Beyond 64 bits only by small primes: anything more may take for ever.
    small = {"limit": _FACTOR_LIMIT, "use_rho": False, "use_pm1": False, "use_ecm": False}
    factors = [int(f) for f in sympy.factorint(q - 1, **(small if q >> 64 else {}))]
    if not all(map(_is_prime, factors)):
        raise BadRoot(
            f"root: 'generator' needs the factors of q - 1, out of reach for q = {shown(q)}; "
            "use root='minimal' or give the root as an int"
        )
    root = int(sympy.primitive_root(q))
    _keep_root(q, root, factors)
    return root
