"""Primality, and primes that have transforms."""

from __future__ import annotations

from functools import lru_cache

from ..checks import Kind, check_kind, checked_degree, integer, shown
from ..errors import ParameterError

# The first 13 primes decide primality below this bound. Source: Sorenson & Webster 2015.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_WITNESSES_DECIDE = 3_317_044_064_679_887_385_961_981

MAX_BITS = 1 << 16  # of primes that are searched for: a single one takes an hour


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


def prime_power(q: int) -> tuple[int, int] | None:
    """The prime p and the exponent k of q = p^k; None where q is no such power.

    >>> prime_power(3**5), prime_power(12)
    ((3, 5), None)
    """
    if q % 2 == 0:
        return (2, q.bit_length() - 1) if q & (q - 1) == 0 else None
    k = 1
    while 3**k <= q:
        p = _root(q, k)
        if p**k == q and _is_prime(p):
            return p, k
        k += 1
    return None


def _root(q: int, k: int) -> int:
    """floor(q^(1/k)), by Newton's method from above."""
    x = 1 << -(-q.bit_length() // k)
    while (y := ((k - 1) * x + q // x ** (k - 1)) // k) < x:
        x = y
    return x


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
