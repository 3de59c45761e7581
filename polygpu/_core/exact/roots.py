"""Roots of unity modulo primes. SymPy is imported only when a root is asked for and not cached."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Literal

from ... import _cpu
from ...errors import BadRoot
from ..checks import shown
from ..reporting import Work
from .primes import is_prime

_LONG, _LONG_WIDE = 1 << 22, 1 << 16  # orders; from there the search for a least root is long: about 10 ms
_FACTOR_LIMIT = 1 << 20  # q - 1 above 2^64 is divided by primes below this; the rest must be 1 or prime

_POWERS_A_STEP = 1 << 12  # steps of the search for a least root that take as long as one test of an order

Rule = Literal["minimal", "generator"]


def has_order(x: int, order: int, q: int) -> bool:
    """Return whether x has exactly this order modulo the prime q."""
    return pow(x, order, q) == 1 % q and all(pow(x, order // p, q) != 1 for p in _factors(order))


def any_root(q: int, order: int) -> int:
    """Return a root of unity of the given order modulo the prime q, from the least number that gives one."""
    if order == 1:
        return 1
    factors = _factors(order)
    x = next(x for x in range(2, q) if all(pow(x, (q - 1) // p, q) != 1 for p in factors)) if q > 3 else q - 1
    root = pow(x, (q - 1) // order, q)
    assert has_order(root, order, q)
    return root


@lru_cache(maxsize=256)
def _factors(order: int) -> tuple[int, ...]:
    """Return the prime factors of the order of a root of unity: 2, and few and small ones besides."""
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
    """Return a primitive root of unity modulo the prime q, of an order that divides q - 1.

    "minimal": the smallest one; "generator": g**((q-1)/order), g the least primitive root.
    Both come from SymPy's primitive root; "minimal" modulo q above 2^64 comes from the least number that
    gives one. The exact order is checked.

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
        root = any_root(q, order)
    if not has_order(root, order, q):
        raise AssertionError(f"{root} has not the order {order} mod {q}")
    return root if rule == "generator" else _smallest_generator(q, root, order)


def same_root(q: int, order: int, a: Rule | int, b: Rule | int) -> bool:
    """Return whether two rules, or roots of exactly this order, give the same root modulo the prime q.

    A rule that finds no root (q - 1 is out of reach of factoring) gives the same as nothing else.
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
    """Return whether a root is the least one of its order; search all of them only if that is needed."""
    if root < order // _POWERS_A_STEP:  # few numbers are smaller, so each of them is tried
        return not any(has_order(x, order, q) for x in range(1, root))
    some = (order // (order & -order)) << 8  # orders with the same prime factors
    while some < order:  # one smaller power is enough, and of a random root half of them are
        if _smallest_generator(q, root, some) < root:
            return False
        some <<= 4
    return _smallest_generator(q, root, order) == root


def _smallest_generator(q: int, root: int, order: int) -> int:
    """Return the least of the powers of root whose exponents are below the order and coprime to it."""
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


@lru_cache(maxsize=1 << 12)  # other orders and the other rule of the same q use it again
def _primitive_root(q: int) -> int:
    """Return the least primitive root mod the prime q, from the cache of roots or by SymPy."""
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
    import sympy  # which takes a third of a second

    # Above 2^64 only small primes are tried: anything more may take for ever.
    small = {"limit": _FACTOR_LIMIT, "use_rho": False, "use_pm1": False, "use_ecm": False}
    factors = [int(f) for f in sympy.factorint(q - 1, **(small if q >> 64 else {}))]
    if not all(map(is_prime, factors)):
        raise BadRoot(
            f"root: 'generator' needs the factors of q - 1, out of reach for q = {shown(q)}; "
            "use root='minimal' or give the root as an int"
        )
    return int(sympy.primitive_root(q)), factors


def _is_least_primitive_root(g: int, factors: list[int], q: int) -> bool:
    """Whether g is proven to be the least primitive root mod q, by factors that must be those of q - 1."""
    rest = q - 1
    for f in factors:
        if f < 2 or rest % f or not is_prime(f):  # no number beyond q is tested for primality
            return False
        while rest % f == 0:
            rest //= f
    if rest != 1 or not 0 < g < q:
        return False

    def generates(x: int) -> bool:
        return all(pow(x, (q - 1) // f, q) != 1 for f in factors)

    return generates(g) and not any(map(generates, range(1, g)))
