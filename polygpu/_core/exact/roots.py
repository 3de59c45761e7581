"""Roots of unity modulo primes. SymPy is imported only if a primitive root is needed and not cached."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Literal

from ... import _cpu
from ...errors import BadRoot
from ..checks import shown
from ..reporting import Work
from .primes import is_prime

# Orders for which the search for the least root takes about 10 ms: _LONG if q < 2^64, else _LONG_WIDE.
_LONG, _LONG_WIDE = 1 << 22, 1 << 16
_FACTOR_LIMIT = 1 << 20  # if q > 2^64, q - 1 is divided by primes below this; the rest must be 1 or a prime

_POWERS_A_STEP = 1 << 12  # has_order() takes as long as _smallest_generator() for this many powers

Rule = Literal["minimal", "generator"]


def has_order(x: int, order: int, q: int) -> bool:
    """Return whether x has exactly this order modulo the prime q."""
    return pow(x, order, q) == 1 % q and all(pow(x, order // p, q) != 1 for p in _factors(order))


def any_root(q: int, order: int) -> int:
    """Return a root of unity of the given order modulo the prime q.

    The root is x^((q - 1) / order), for the least x >= 2 that gives a root of exactly this order.
    """
    if order == 1:
        return 1
    factors = _factors(order)
    x = next(x for x in range(2, q) if all(pow(x, (q - 1) // p, q) != 1 for p in factors)) if q > 3 else q - 1
    root = pow(x, (q - 1) // order, q)
    assert has_order(root, order, q)
    return root


@lru_cache(maxsize=256)
def _factors(order: int) -> tuple[int, ...]:
    """Return the prime factors of an order by trial division, because an order has only small factors."""
    found, rest, p = [], order, 2
    while rest > 1:
        if rest % p == 0:
            found.append(p)
        while rest % p == 0:
            rest //= p
        p += 1
    return tuple(found)


@lru_cache(maxsize=1 << 12)
def root_of_unity(q: int, order: int, rule: Rule) -> int:
    """Return a root of unity modulo the prime q that has exactly the given order.

    rule: "minimal" gives the smallest such root; "generator" gives g**((q-1)/order), where g is the least
    primitive root modulo q. The search starts from a primitive root that SymPy finds. For "minimal" with q
    above 2^64 it starts from any_root, which needs no factors of q - 1. The order of the result is checked.

    >>> root_of_unity(3329, 256, "minimal"), root_of_unity(8380417, 512, "minimal")
    (17, 1753)
    """
    if (q - 1) % order:
        raise BadRoot(
            f"There is no root of order {order} modulo q={shown(q)}, because q must be 1 modulo {order}. Use "
            "a prime from ntt_primes."
        )
    if order == 1:
        return 1
    if rule == "generator" or q >> 64 == 0:
        root = pow(_primitive_root(q), (q - 1) // order, q)
    else:  # a primitive root would need the factors of q - 1, which may be out of reach
        root = any_root(q, order)
    if not has_order(root, order, q):
        raise AssertionError(f"{root} does not have order {order} modulo {q}.")
    return root if rule == "generator" else _smallest_generator(q, root, order)


def same_root(q: int, order: int, a: Rule | int, b: Rule | int) -> bool:
    """Return whether a and b, each a rule or a root of exactly this order, give the same root modulo prime q.

    If q - 1 cannot be factored, "generator" finds no root. The result is then True only if a == b.
    """
    if a == b:
        return True
    try:
        known = [root_of_unity(q, order, x) if x == "generator" else x for x in (a, b)]
    except BadRoot:
        return False
    x, y = known
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    return _is_least(q, y if isinstance(y, int) else x, order)  # type: ignore[arg-type]


def _is_least(q: int, root: int, order: int) -> bool:
    """Return whether a root is the least one of its order."""
    if root < order // _POWERS_A_STEP:  # few numbers are smaller: test the order of each
        return not any(has_order(x, order, q) for x in range(1, root))
    # Look for a smaller root of this order among the powers of `root`. Begin with a few powers, because about
    # half of the powers of a random root are smaller.
    some = (order // (order & -order)) << 8
    while some < order:
        if _smallest_generator(q, root, some) < root:
            return False
        some <<= 4
    return _smallest_generator(q, root, order) == root


def _smallest_generator(q: int, root: int, order: int) -> int:
    """Return the least root^e modulo q, over all e below `order` that are coprime to `order`."""
    wide = q >> 64 > 0
    power, is_long = order.bit_length() - 1, order >= (_LONG_WIDE if wide else _LONG)
    with Work(1, "smallest root of order 2^{} modulo {}", power, shown(q), when=is_long):
        if not wide:
            return _cpu.smallest_generator(q, root, order)
        square, x, least, odd = root * root % q, root, root, order // (order & -order)
        for exponent in range(3, order, 2):
            x = x * square % q
            if odd == 1 or gcd(exponent, odd) == 1:
                least = min(least, x)
        return least


@lru_cache(maxsize=1 << 12)  # the same q may be asked for again with another order or rule
def _primitive_root(q: int) -> int:
    """Return the least primitive root mod the prime q, from the cache on disk or by SymPy."""
    from . import root_cache  # here, so that importing polygpu stays fast

    known = root_cache.load(q)
    if known is not None and _is_least_primitive_root(*known, q):
        return known[0]
    with Work(1, "primitive root modulo {}", shown(q)):
        root, factors = _found_by_sympy(q)
    root_cache.store(q, root, factors)
    return root


def _found_by_sympy(q: int) -> tuple[int, list[int]]:
    """Return the least primitive root mod the prime q, and the prime factors of q - 1."""
    import sympy  # here, because the import takes a third of a second

    # For q above 2^64, only division by small primes is tried, because other methods may take for ever.
    small = {"limit": _FACTOR_LIMIT, "use_rho": False, "use_pm1": False, "use_ecm": False}
    factors = [int(f) for f in sympy.factorint(q - 1, **(small if q >> 64 else {}))]
    if not all(map(is_prime, factors)):
        raise BadRoot(
            "root='generator' needs the prime factors of q - 1, and polygpu cannot compute them for "
            f"q={shown(q)}. Use root='minimal', or give the root as an int."
        )
    return int(sympy.primitive_root(q)), factors


def _is_least_primitive_root(g: int, factors: list[int], q: int) -> bool:
    """Return whether g is proven to be the least primitive root mod q.

    factors: the claimed prime factors of q - 1. If they are wrong, the result is False.
    """
    rest = q - 1
    for f in factors:
        if f < 2 or rest % f or not is_prime(f):  # is_prime comes last, so that it tests only divisors
            return False
        while rest % f == 0:
            rest //= f
    if rest != 1 or not 0 < g < q:
        return False

    def generates(x: int) -> bool:
        return all(pow(x, (q - 1) // f, q) != 1 for f in factors)

    return generates(g) and not any(map(generates, range(1, g)))
