"""Primes and roots of unity. SymPy is imported only when a root is asked for and not cached."""

from __future__ import annotations

import operator
import os
import threading
from functools import lru_cache
from typing import Any, Literal

from . import _cpu
from .errors import BadRoot, NotAnInteger, ParameterError

Kind = Literal["negacyclic", "cyclic"]

# The first 13 primes decide primality below this bound. Source: Sorenson & Webster 2015.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_WITNESSES_DECIDE = 3_317_044_064_679_887_385_961_981
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
            f"{name}: {x!r} of type {type(x).__name__} must be an int; nothing is rounded or guessed"
        ) from None


def shown(q: int) -> str:
    """A number for messages: a long one by its ends, which also passes Python's limit on digits."""
    if q.bit_length() <= 256:
        return str(q)
    digits = f"{q:x}"
    return f"0x{digits[:8]}...{digits[-8:]} ({q.bit_length()} bits)"


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
    if bits < 2 or count < 0:
        raise ParameterError(f"bits: {bits} must be at least 2, and count: {count} at least 0")
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
            f"bits={bits}: only {len(primes)} primes of {bits} bits are 1 mod {order}, {count} were "
            f"asked for; use more bits or a smaller n than {n}"
        )
    return primes


def checked_degree(n: object) -> int:
    """Return n as an int of at least 1; raise ParameterError otherwise."""
    degree = integer(n, "n")
    if degree < 1:
        raise ParameterError(f"n: {degree} must be at least 1, the degree of X^n ± 1")
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

# q -> (least primitive root of q, prime factors of q - 1, which prove it)
_Entry = tuple[int, list[int]]
_cache: dict[str, _Entry] = {}
_cache_lock = threading.Lock()


def cache_file() -> str:
    """Where primitive roots are kept: in $POLYGPU_CACHE_DIR, $XDG_CACHE_HOME/polygpu or ~/.cache/polygpu."""
    folder = os.environ.get("POLYGPU_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "polygpu"
    )
    return os.path.join(os.path.expanduser(folder), "primitive_roots.json")


def _read_cache() -> dict[str, _Entry]:
    import json

    try:
        with open(cache_file()) as file:
            stored = json.load(file)
        return {str(q): (int(g), [int(f) for f in factors]) for q, (g, factors) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return {}  # absent or damaged: it will be written anew


def _write_cache(entries: dict[str, _Entry]) -> None:
    """Replace the file in one step; a place that cannot be written is no error."""
    import json
    import tempfile

    path = cache_file()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".roots-")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(entries, file)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        import logging

        logging.getLogger("polygpu").debug("primitive roots are not cached: %s", error)


def _is_least_primitive_root(g: int, factors: list[int], q: int) -> bool:
    """Whether the prime factors of q - 1 prove it."""
    rest = q - 1
    for f in factors:
        if not _is_prime(f):
            return False
        while rest % f == 0:
            rest //= f
    if rest != 1 or not 0 < g < q:
        return False

    def generates(x: int) -> bool:
        return all(pow(x, (q - 1) // f, q) != 1 for f in factors)

    return generates(g) and not any(map(generates, range(1, g)))


def _primitive_root(q: int) -> int:
    """The least primitive root mod the prime q, by SymPy."""
    key = str(q)
    with _cache_lock:
        if key not in _cache:
            _cache.update(_read_cache())
        known = _cache.get(key)
    if known is not None and _is_least_primitive_root(*known, q):
        return known[0]
    import sympy

    # Beyond 64 bits only by small primes: anything more may take for ever.
    small = {"limit": _FACTOR_LIMIT, "use_rho": False, "use_pm1": False, "use_ecm": False}
    factors = list(sympy.factorint(q - 1, **(small if q >> 64 else {})))
    if not all(map(_is_prime, factors)):
        raise BadRoot(
            f"root: 'generator' needs the factors of q - 1, out of reach for q = {shown(q)}; "
            "use root='minimal' or give the root as an int"
        )
    root = int(sympy.primitive_root(q))
    with _cache_lock:
        _cache[key] = (root, [int(f) for f in factors])
        _write_cache({**_read_cache(), key: _cache[key]})
    return root
