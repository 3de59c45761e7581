"""Tests for primes, and the search for primes modulo which a ring has a complete transform."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any

from ...errors import ParameterError
from ..checks import MAX_DEGREE, checked_degree, integer, sequence, shown
from ..quotient import Kind, Quotient, check_kind
from ..reporting import Work, counted

# Below _WITNESSES_DECIDE, Miller-Rabin with the first 13 primes as bases is a proof. Source: Sorenson &
# Webster 2015.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
_WITNESSES_DECIDE = 3_317_044_064_679_887_385_961_981

_LONG = 1 << 19  # if count * bits^2 is at least this, a search takes about 10 ms and reports progress

GOLDILOCKS = 2**64 - 2**32 + 1
MAX_BITS = 1 << 16  # the largest `bits` of ntt_primes; a search takes minutes at 2^13 bits, weeks at 2^16


def is_prime(n: int) -> bool:
    """Return whether n is prime.

    The answer is proven for n below 3.3e24. For larger n, no composite number is known that passes the test.

    Args:
        n: any int.

    Raises:
        NotAnInteger: n is not an int.

    Cost: a prime takes at most 13 powers modulo n (0.2 ms at 61 bits), and above 3.3e24 also SymPy's test. A
    composite number nearly always takes a few divisions or one power. The 16384 latest answers are kept.
    Source: Miller 1976 and Rabin 1980 with the bases of Sorenson & Webster 2015; above 3.3e24, Baillie &
    Wagstaff 1980.

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
    """Return (p, k) with p prime and q = p^k, or None if q is not a power of a prime.

    Args:
        q: an int of at least 2.

    Cost: an integer k-th root and a power for each k <= log3 q, and is_prime for each exact root.

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
    """Return floor(q^(1/k)), by Newton's method from above."""
    x = 1 << -(-q.bit_length() // k)
    while (y := ((k - 1) * x + q // x ** (k - 1)) // k) < x:
        x = y
    return x


def ntt_primes(
    n: int,
    *,
    bits: int,
    count: int = 1,
    kind: Kind = "negacyclic",
    exclude: Any = (),
    near: bool | int = False,
) -> list[int]:
    """Return the `count` largest primes below 2**bits with a complete transform of degree n, descending.

    These primes are 1 mod 2n (negacyclic), 1 mod n (cyclic) or 1 mod 3n (trinomial). For a trinomial of
    degree n = 3 * 2**a they are 1 mod n, and the transform ends at leaves of 3 coefficients.

    Args:
        n: degree of the ring, a power of two; for a trinomial 2**a or 3 * 2**a with a > 0.
        bits: bit length of the primes, from 2 to 65536: each prime is in [2**(bits - 1), 2**bits).
        count: number of primes, 1 by default.
        kind: "negacyclic", "cyclic" or "trinomial".
        exclude: moduli to skip: an int, a ring (which stands for all its moduli), or a sequence of these.
        near: a number m in [2**(bits - 1), 2**bits], or True for 2**bits. Then the result has the primes
            closest to m, alternately from both sides: the least p >= m, the largest p < m, the second least
            above, the second largest below, and so on. So the product of the first k primes stays close to
            m**k. CKKS needs such limbs; there m is the scale. All primes are above m/2 and below 2m. A prime
            above 2**bits has bit length bits + 1.

    Raises:
        ParameterError: no ring of degree n has such a transform, or bits, count or near is outside its range,
            or there are fewer than `count` such primes, or kind is not one of the three words.

    Cost: one is_prime for each number that is 1 mod 2n, n or 3n, until enough primes are found. Of these
    numbers, about one in 0.35 * bits is prime: at 50 bits, one in 18.

    >>> ntt_primes(4096, bits=30, count=2)
    [1073692673, 1073668097]
    >>> ntt_primes(4096, bits=30, count=2, exclude=1073692673)
    [1073668097, 1073651713]
    >>> [p - 2**30 for p in ntt_primes(4096, bits=30, count=4, near=True)]
    [8193, -49151, 73729, -73727]
    """
    n, bits, count = checked_degree(n), integer(bits, "bits"), integer(count, "count")
    check_kind(kind)
    quotient = Quotient(kind, n)
    if not quotient.leaf_sizes:
        raise ParameterError(
            f"n={n} is {quotient.why_no_tree}, so there is no complete transform for kind={kind!r}. Use "
            "another n."
        )
    if not 2 <= bits <= MAX_BITS or count < 0:
        raise ParameterError(
            f"bits={shown(bits)} must be at least 2 and at most {MAX_BITS}, and count={shown(count)} must be "
            "at least 0."
        )
    skipped, order = _moduli(exclude), quotient.with_degree(n // quotient.leaf_sizes[0]).order
    if near is False:
        found = _primes((1 << bits) - 1, order, -1, (1 << (bits - 1)) - 1, skipped)
        where = f"primes of {bits} bits"
    else:
        middle = 1 << bits if near is True else integer(near, "near")
        if not 1 << (bits - 1) <= middle <= 1 << bits:
            raise ParameterError(
                f"near={shown(middle)} must be in [2**{bits - 1}, 2**{bits}] for bits={bits}. Use "
                f"bits={max(2, (middle - 1).bit_length())} for this value of near."
            )
        above = _primes(middle, order, 1, 2 * middle, skipped)
        below = _primes(middle - 1, order, -1, middle // 2, skipped)
        # Primes are taken alternately from both sides. So the list ends when one side has no more primes.
        found = _alternating(above, below)
        where = f"primes near {shown(middle)}"
    primes: list[int] = []
    most = min(count, MAX_DEGREE)  # islice accepts only counts that fit a machine word
    with Work(most, "{} of {} bits", counted(most, "prime"), bits, when=most * bits**2 >= _LONG) as work:
        for p in islice(found, most):
            primes.append(p)
            work.step()
    if len(primes) < count:
        kept = f" and are not among the {len(skipped)} excluded" if skipped else ""
        raise ParameterError(
            f"count={shown(count)} must be at most {len(primes)}, because ntt_primes found no more {where} "
            f"that are 1 modulo {order}{kept}. Use more bits than {bits}, or a smaller n than {n}."
        )
    return primes


def _primes(start: int, order: int, step: int, end: int, skipped: Set[int]) -> Iterator[int]:
    """Yield the primes from `start` to `end` that are 1 modulo `order` and not in `skipped`.

    `end` is excluded. step: 1 if `end` is above `start`, -1 if it is below.
    """
    candidate = start - (start - 1) % order if step < 0 else start + (1 - start) % order
    while (end - candidate) * step > 0:
        if candidate not in skipped and _is_prime(candidate):
            yield candidate
        candidate += step * order


def _alternating(first: Iterator[int], second: Iterator[int]) -> Iterator[int]:
    for pair in zip_longest(first, second):
        for x in pair:
            if x is None:
                return
            yield x


def _moduli(exclude: Any) -> set[int]:
    """Return all moduli in `exclude`, which is an int, a ring (all its moduli), or a sequence of these."""
    found: set[int] = set()
    for x in (exclude,) if hasattr(exclude, "moduli") else sequence(exclude):
        found.update(x.moduli if hasattr(x, "moduli") else [integer(x, "exclude")])
    return found
