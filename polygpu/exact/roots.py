"""Roots of unity modulo primes. SymPy is imported only when a root is asked for and not cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from .. import _cpu
from ..checks import shown
from ..errors import BadRoot
from ..reporting import Work
from .primes import is_prime

_LONG, _LONG_WIDE = 1 << 22, 1 << 16  # orders from which on the search for a least root is long: some 10 ms
_FACTOR_LIMIT = 1 << 20  # q - 1 above 2^64 is divided by primes below this; the rest must be 1 or prime


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
    Both come from SymPy's primitive root; "minimal" modulo q above 2^64 comes from the least non-residue. The
    exact order is checked.

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
    wide = q >> 64 > 0
    power, is_long = order.bit_length() - 1, order >= (_LONG_WIDE if wide else _LONG)
    with Work(1, "smallest root of order 2^{} modulo {}", power, shown(q), when=is_long):
        if not wide:
            return _cpu.smallest_generator(q, root, order)
        square, x, least = root * root % q, root, root
        for _ in range(order // 2 - 1):
            x = x * square % q
            least = min(least, x)
        return least


@lru_cache(maxsize=1 << 12)  # other orders and the other rule of the same q use it again
def _primitive_root(q: int) -> int:
    """The least primitive root mod the prime q, by SymPy."""
    from . import root_cache  # here, so that importing polygpu stays fast

    known = root_cache.load(q)
    if known is not None and _is_least_primitive_root(*known, q):
        return known[0]
    with Work(1, "primitive root modulo {}", shown(q)):
        root, factors = _found_by_sympy(q)
    root_cache.store(q, root, factors)
    return root


def _found_by_sympy(q: int) -> tuple[int, list[int]]:
    """The least primitive root mod the prime q, and the prime factors of q - 1."""
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
