"""Hypothesis strategies and a reference product, for polygpu's own tests and for yours.

This module needs Hypothesis: pip install "polygpu[test]". A strategy draws rings, coefficients or values.
Hypothesis runs a test on many drawn examples. If one fails, Hypothesis makes it as small as possible.

>>> from hypothesis import given
>>> from polygpu.testing import polys, rings
>>> @given(rings(max_degree=64).flatmap(lambda ring: polys(ring)))
... def test_negation(a):
...     assert a + -a == 0
>>> test_negation()

For tests of conversions between RNS bases, chains() draws two rings that can be joined, and
edge_coefficients() draws coefficients near the points at which the rounded result of a division changes:

>>> from polygpu.testing import chains, edge_coefficients
>>> from hypothesis.strategies import data
>>> @given(chains(max_degree=8), data())
... def test_division(rings, data):
...     Q, P = rings
...     a = data.draw(polys(Q, values=edge_coefficients(Q, P.modulus)))
...     assert (a.mod_up(Q.join(P)) * P.modulus).mod_down(Q) == a
>>> test_division()
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, islice
from math import gcd, prod

import numpy as np
from hypothesis import strategies as st

from ._backends.reference import big_product
from ._core.checks import MAX_DEGREE, Domain, checked_batch, integer, shown
from ._core.exact.primes import MAX_BITS, _primes
from ._core.quotient import KINDS, Kind, Quotient, check_degree, check_kind
from .errors import ParameterError
from .poly import Poly
from .ring import Ring

# Bit lengths of moduli at which some kernel of polygpu changes its word size, or the range to which it
# reduces intermediate values.
WORD_LIMITS = (29, 30, 31, 32, 46, 49, 50, 51, 52, 59, 60, 61, 62, 63, 64)


def multiply_integers(a: Sequence[int], b: Sequence[int], modulus: int, kind: Kind) -> list[int]:
    """Multiply two polynomials in the ring of this kind and modulus, with Python ints only.

    Compare other products with this one in tests: it shares no code with the transforms.

    Args:
        a: the n coefficients of a polynomial: integers of any size and sign, constant term first.
        b: the n coefficients of the other polynomial, as for a.
        modulus: any int, at least 2.
        kind: "negacyclic" for X^n + 1, "cyclic" for X^n - 1, or "trinomial" for X^n - X^(n/2) + 1, where n
            is even.

    Returns n ints in [0, modulus).

    Raises:
        ParameterError: a and b have different lengths or are empty, their length is odd although kind is
            "trinomial", modulus is less than 2, or kind is not one of these words.
        NotAnInteger: an entry or the modulus is not an int.

    Cost: one product of two big integers (Kronecker substitution). Each big integer holds n
    coefficients, with about 2 * log2(modulus) + log2(n) bits per coefficient.

    >>> multiply_integers([1, 2], [3, 4], 100, "negacyclic")
    [95, 10]
    """
    check_kind(kind)
    q = _at_least(2, modulus, "modulus")
    left, right = ([integer(v, name) % q for v in x] for name, x in (("a", a), ("b", b)))
    if len(left) != len(right) or not left:
        raise ParameterError(
            f"a has length {len(left)} and b has length {len(right)}. The lengths must be equal and at least "
            "1. Pad the shorter one with zeros."
        )
    check_degree(kind, len(left))
    return big_product(left, right, q, kind)


# ---- argument checks, made when a strategy is created ----


def _at_least(least: int, x: object, name: str, most: int | None = None) -> int:
    """Return x as an int. Raise ParameterError if it is below `least` or above `most` (None: no limit)."""
    value = integer(x, name)
    if value < least or (most is not None and value > most):
        end = "" if most is None else f" and at most {shown(most)}"
        raise ParameterError(f"{name}={shown(value)} must be at least {least}{end}.")
    return value


def _check_ring(ring: object) -> None:
    if not isinstance(ring, Ring):
        raise ParameterError(
            f"ring must be a Ring, not {type(ring).__name__}. Use rings().flatmap(...) to draw one."
        )


def _check_transform(transform: object) -> None:
    if transform is not None and not isinstance(transform, bool):
        raise ParameterError(
            f"transform={shown(transform)} must be True, False or None. True draws only rings with a "
            "complete transform. False draws rings without this condition."
        )


# ---- strategies ----


def kinds() -> st.SearchStrategy[Kind]:
    """Draw "negacyclic", "cyclic" or "trinomial".

    >>> from hypothesis import find
    >>> find(kinds(), lambda kind: kind != "negacyclic")
    'cyclic'
    """
    return st.sampled_from(KINDS)


def _kinds_of(max_degree: int) -> st.SearchStrategy[Kind]:
    """Draw a kind of ring. "trinomial" is left out if max_degree is 1, since it needs degree 2 or more."""
    return kinds() if max_degree > 1 else kinds().filter(lambda kind: kind != "trinomial")


def _degrees_of(kind: Kind, max_degree: int) -> st.SearchStrategy[int]:
    """Draw degrees from 1 to max_degree. If kind is "trinomial", draw only even degrees."""
    if kind == "trinomial":
        return degrees(max_degree // 2).map(lambda half: 2 * half)
    return degrees(max_degree)


def degrees(max_degree: int = 4096) -> st.SearchStrategy[int]:
    """Draw degrees from 1 to max_degree. At least about half of the draws are powers of two.

    Args:
        max_degree: the largest degree, from 1 to 2**62.

    Raises:
        ParameterError: max_degree is outside this range. NotAnInteger: max_degree is not an int.

    >>> from hypothesis import find
    >>> find(degrees(64), lambda n: n > 1 and n % 2 == 1)
    3
    """
    most = _at_least(1, max_degree, "max_degree", MAX_DEGREE)
    powers = st.integers(0, most.bit_length() - 1).map(lambda e: 1 << e)
    return st.one_of(powers, st.integers(1, most))


def friendly_moduli(n: int, kind: Kind, max_limbs: int = 5) -> st.SearchStrategy[list[int]]:
    """Draw distinct primes modulo which a ring of degree n has a complete transform.

    All primes of a draw have the same bit length, which is drawn from WORD_LIMITS of this module. If too few
    primes have the drawn bit length, a larger bit length may be used.

    Args:
        n: degree, a power of two up to 2**56. If kind is "trinomial", n is at least 2.
        kind: "negacyclic", "cyclic" or "trinomial".
        max_limbs: the largest number of primes to draw, at least 1.

    Draws a list of primes, in any order. If n is so large that too few such primes exist, the list has fewer
    primes.

    Raises:
        ParameterError: an argument is outside its range. NotAnInteger: n or max_limbs is not an int.

    >>> from hypothesis import find
    >>> q, p = find(friendly_moduli(64, "negacyclic"), lambda moduli: len(moduli) == 2)
    >>> q % 128, p % 128, q.bit_length() == p.bit_length()
    (1, 1, True)
    """
    degree = _at_least(1, n, "n", 1 << 56)
    if degree & (degree - 1):
        raise ParameterError(f"n={degree} is not a power of two, which a complete transform needs.")
    check_kind(kind)
    check_degree(kind, degree)
    return _friendly_moduli(degree, kind, _at_least(1, max_limbs, "max_limbs"), 64)


@st.composite
def _friendly_moduli(draw: st.DrawFn, n: int, kind: Kind, max_limbs: int, max_bits: int) -> list[int]:
    """Draw primes as friendly_moduli does, but only primes of at most max_bits bits.

    Call this only if max_bits exceeds the bit length of n by at least _SPARE.
    """
    least = Quotient(kind, n).order.bit_length() + 4
    bits = draw(st.sampled_from([b for b in WORD_LIMITS if least <= b <= max_bits] or [max_bits]))
    primes = _friendly_primes(n, bits, kind, draw(st.integers(1, max_limbs)), max_bits)
    return draw(st.permutations(primes)) if len(primes) > 1 else primes


# For each m <= 57 and each b from m + 7 to 64 there is a prime p of b bits with p = 1 modulo 2^m.
_SPARE = 7


def _largest_degree(max_degree: int, kind: Kind, max_bits: int) -> int:
    """Return log2 of the largest degree, a power of two up to max_degree, that has suitable primes.

    A prime is suitable if it has at most max_bits bits and a complete transform of this degree. Call this
    only if max_bits is at most 64.
    """
    return min(max_degree.bit_length() - 1, max_bits - _SPARE - Quotient(kind, 1).order.bit_length() + 1)


def _friendly_primes(
    n: int, bits: int, kind: Kind, count: int, max_bits: int = 64, exclude: Iterable[int] = ()
) -> list[int]:
    """Return the `count` largest primes of `bits` bits that have a complete transform of degree n.

    exclude: primes to leave out. If there are fewer than `count` primes of `bits` bits, try bits + 1, ...,
    max_bits. If no bit length has `count` primes, use the one with the most primes.
    """
    skipped = set(exclude)

    def of_size(b: int) -> list[int]:
        found = _primes((1 << b) - 1, Quotient(kind, n).order, -1, (1 << (b - 1)) - 1, skipped)
        return list(islice(found, count))

    most: list[int] = []
    for size in range(bits, max_bits + 1):
        primes = of_size(size)
        if len(primes) == count:
            return primes
        most = max(most, primes, key=len)
    return most


def moduli(max_bits: int = 200, max_limbs: int = 5) -> st.SearchStrategy[list[int]]:
    """Draw the moduli of a ring, prime or not: a single modulus, or several that are pairwise coprime.

    A single modulus is from 2 to 2**max_bits. If there are several, each is also at most 2**64.

    Args:
        max_bits: an int from 1 to 65536. No modulus is above 2**max_bits.
        max_limbs: the largest number of moduli, at least 1.

    Draws a list of ints.

    Raises:
        ParameterError: an argument is outside its range. NotAnInteger: an argument is not an int.

    >>> from hypothesis import find
    >>> find(moduli(), lambda q: len(q) == 1 and q[0] > 2**64)[0] > 2**64
    True
    """
    bits, limbs = _at_least(1, max_bits, "max_bits", MAX_BITS), _at_least(1, max_limbs, "max_limbs")
    word = 1 << min(bits, 64)
    words = [st.integers(2, min(word, 1 << 16)), st.integers(2, word)]
    if limits := [b for b in WORD_LIMITS if b <= bits]:
        near = st.sampled_from(limits).flatmap(lambda b: st.integers((1 << b) - 64, (1 << b) + 64))
        words.insert(1, near.map(lambda q: min(q, word)))
    powers = st.integers(1, bits).map(lambda b: 1 << b)
    single = st.one_of(*words, powers, st.integers(2, 1 << bits)).map(lambda q: [q])
    if limbs == 1:
        return single
    return st.one_of(single, st.lists(st.one_of(words), min_size=2, max_size=limbs).map(_coprime))


def _coprime(values: list[int]) -> list[int]:
    """Keep each value that is coprime to all values kept before it. Return the kept values."""
    kept: list[int] = []
    for q in values:
        if all(gcd(q, p) == 1 for p in kept):
            kept.append(q)
    return kept


def rings(
    max_degree: int = 4096, transform: bool | None = None, max_bits: int = 200
) -> st.SearchStrategy[Ring]:
    """Draw rings of all kinds, of any degree and moduli.

    Args:
        max_degree: the largest degree, from 1 to 2**62. For rings with a transform, degrees that have too few
            primes are not drawn.
        transform: True draws only rings with a complete transform. False draws any degrees and moduli. None
            mixes both.
        max_bits: an int from 1 to 65536, or from 8 if `transform` is True. No modulus is above 2**max_bits.
            If a ring has several limbs, its moduli are also at most 2**64.

    Raises:
        ParameterError: an argument is outside its range, or transform is not True, False or None.
        NotAnInteger: max_degree or max_bits is not an int.

    >>> from hypothesis import find
    >>> find(rings(max_degree=64, transform=True), lambda ring: ring.n == 4).leaf_size
    1
    """
    _check_transform(transform)
    degree = _at_least(1, max_degree, "max_degree", MAX_DEGREE)
    bits = _at_least(8 if transform else 1, max_bits, "max_bits", MAX_BITS)
    return _rings(degree, False if bits < 8 else transform, bits)


@st.composite
def _rings(draw: st.DrawFn, max_degree: int, transform: bool | None, max_bits: int) -> Ring:
    kind = draw(_kinds_of(max_degree))
    friendly = transform if transform is not None else draw(st.booleans())
    if friendly:
        bits = min(max_bits, 64)
        least = int(kind == "trinomial")
        points = 1 << draw(st.integers(least, max(least, _largest_degree(max_degree, kind, bits))))
        has_thirds = transform is None and kind == "trinomial" and 3 * points <= max_degree
        n = 3 * points if has_thirds and draw(st.booleans()) else points
        return Ring(n, draw(_friendly_moduli(points, kind, 5, bits)), kind=kind)
    return Ring(draw(_degrees_of(kind, max_degree)), draw(moduli(max_bits)), kind=kind)


def chains(
    max_degree: int = 32, max_limbs: int = 8, transform: bool | None = None
) -> st.SearchStrategy[tuple[Ring, Ring]]:
    """Draw two rings that can be joined: Q for the limbs of values, and P for special moduli.

    The moduli are from 2 to 2**64, in any order. The size of each modulus is drawn independently.

    Args:
        max_degree: the largest degree, from 1 to 2**62. For rings with a transform, degrees that have too few
            primes are not drawn.
        max_limbs: the largest number of limbs of Q, at least 1. P has at least one limb, and at most
            max_limbs / 2 if max_limbs is 2 or more.
        transform: True draws only rings with a complete transform. False draws any coprime moduli. None draws
            both, and also primes with an incomplete transform. The roots of these primes may have different
            orders.

    Draws a pair of rings (Q, P).

    Raises:
        ParameterError: an argument is outside its range, or transform is not True, False or None.
        NotAnInteger: max_degree or max_limbs is not an int.

    >>> from hypothesis import given
    >>> @given(chains(transform=True))
    ... def test_limbs(rings):
    ...     Q, P = rings
    ...     assert Q.join(P)[: len(Q.moduli)] == Q and Q.leaf_size == 1
    >>> test_limbs()
    """
    _check_transform(transform)
    degree = _at_least(1, max_degree, "max_degree", MAX_DEGREE)
    return _chains(degree, _at_least(1, max_limbs, "max_limbs"), transform)


@st.composite
def _chains(draw: st.DrawFn, max_degree: int, max_limbs: int, transform: bool | None) -> tuple[Ring, Ring]:
    kind, bits_of = draw(_kinds_of(max_degree)), st.one_of(st.integers(2, 64), st.sampled_from(WORD_LIMITS))
    own, other = draw(st.integers(1, max_limbs)), draw(st.integers(1, max(1, max_limbs // 2)))
    sizes = draw(st.lists(bits_of, min_size=own + other, max_size=own + other))
    ways = {True: ("complete",), False: ("none",), None: ("complete", "incomplete", "none")}
    way = draw(st.sampled_from(ways[transform]))
    found: list[int] = []
    if way == "none":
        n = draw(_degrees_of(kind, max_degree))
        for bits in sizes:
            least, most = 1 << (bits - 1), 1 << bits
            start = draw(st.one_of(st.sampled_from((least, most)), st.integers(least, most)))
            found.append(_coprime_near(start, found))
    else:
        # Choose n so that there is a suitable prime of at most `enough` bits. Then there are enough distinct
        # primes of up to 64 bits.
        enough = 64 - len(sizes).bit_length()
        least = int(kind == "trinomial")
        n = 1 << draw(st.integers(least, max(least, _largest_degree(max_degree, kind, enough))))
        if way == "incomplete" and kind == "trinomial":
            n = 3 * n if 3 * n <= max_degree else n
        for bits in sizes:
            leaf = 3 if n % 3 == 0 else 1
            if way == "incomplete" and kind != "trinomial":
                leaf = 1 << draw(st.integers(0, min(3, n.bit_length() - 1)))
            found += _friendly_primes(n // leaf, bits, kind, 1, exclude=found)
    return Ring(n, found[:own], kind=kind), Ring(n, found[own:], kind=kind)


def _coprime_near(start: int, others: Iterable[int]) -> int:
    """Return the first of start, start - 1, ..., 2, start + 1, ... that is coprime to all of `others`."""
    product = prod(others)
    return next(q for q in chain(range(start, 1, -1), count(start)) if gcd(q, product) == 1)


def coefficients(ring: Ring) -> st.SearchStrategy[list[int]]:
    """Draw the n coefficients of a polynomial, integers in [0, Q): uniform ones or worst cases.

    There are four kinds of draws: uniform coefficients; coefficients from the set of 0, 1, Q - 1, and Q/2
    rounded up or down; all n coefficients equal to Q - 1; and at most four coefficients that are not 0.

    Args:
        ring: the ring of the polynomial.

    Raises:
        ParameterError: ring is not a Ring.

    >>> from hypothesis import find
    >>> from polygpu import Ring
    >>> find(coefficients(Ring(4, 17)), lambda x: sum(x) == 64)
    [16, 16, 16, 16]
    """
    _check_ring(ring)
    return _coefficients(ring)


@st.composite
def _coefficients(draw: st.DrawFn, ring: Ring) -> list[int]:
    n, modulus = ring.n, ring.modulus
    style = draw(st.sampled_from(("uniform", "extreme", "largest", "sparse")))
    source = random.Random(draw(st.integers(0, 2**32)))
    if style == "uniform":
        return [source.randrange(modulus) for _ in range(n)]
    if style == "extreme":
        choices = [0, 1 % modulus, modulus - 1, modulus // 2, (modulus + 1) // 2 % modulus]
        return source.choices(choices, k=n)
    if style == "largest":
        return [modulus - 1] * n
    values = [0] * n
    few = st.dictionaries(st.integers(0, n - 1), st.integers(0, modulus - 1), max_size=4)
    for at, value in draw(few).items():
        values[at] = value
    return values


def edge_coefficients(ring: Ring, divisor: int = 1) -> st.SearchStrategy[list[int]]:
    """Draw n integers in [0, Q) near points at which results of division, rounding and conversion change.

    There are four kinds of points: multiples of Q/2; multiples of divisor/2; multiples of (Q/q)/2 for a
    modulus q; and integers whose residue modulo every modulus q is 0, q/2 or q - 1. Points that are not
    integers are rounded down. A draw takes points of one kind, or of all kinds mixed, and adds to each a
    random integer from -2 to 2.

    Args:
        ring: the ring of the polynomial.
        divisor: the int by which your test divides, at least 1, for example the product of special moduli.
            Omit it if your test does not divide.

    Raises:
        ParameterError: ring is not a Ring, or divisor is less than 1. NotAnInteger: divisor is not an int.

    >>> from hypothesis import given
    >>> from polygpu import Ring
    >>> @given(edge_coefficients(Ring(8, [97, 193]), divisor=193))
    ... def test_range(values):
    ...     assert len(values) == 8 and all(0 <= x < 97 * 193 for x in values)
    >>> test_range()
    """
    _check_ring(ring)
    return _edge_coefficients(ring, _at_least(1, divisor, "divisor"))


@st.composite
def _edge_coefficients(draw: st.DrawFn, ring: Ring, divisor: int) -> list[int]:
    Q, source = ring.modulus, random.Random(draw(st.integers(0, 2**32)))
    weights = {q: Q // q * pow(Q // q, -1, q) for q in ring.moduli}

    def halves_of(step: int) -> int:
        return source.randrange(2 * Q // step + 1) * step // 2

    ways: dict[str, Callable[[], int]] = {
        "middle": lambda: halves_of(Q),
        "multiples": lambda: halves_of(divisor),
        "ratios": lambda: halves_of(Q // source.choice(ring.moduli)),
        "residues": lambda: sum(w * source.choice((0, q // 2, q - 1)) for q, w in weights.items()),
    }
    way = draw(st.sampled_from((*ways, "all")))
    chosen = [*ways] if way == "all" else [way]
    return [(ways[source.choice(chosen)]() + source.randrange(-2, 3)) % Q for _ in range(ring.n)]


def polys(
    ring: Ring,
    batch: int | tuple[int, ...] | None = None,
    domain: Domain | None = None,
    values: st.SearchStrategy[list[int]] | None = None,
) -> st.SearchStrategy[Poly]:
    """Draw elements of a ring.

    Args:
        ring: the ring.
        batch: batch shape. None draws a small batch shape, which may have an axis of odd length or of length
            0.
        domain: "coef" or "eval". None draws one of the domains that the ring has.
        values: a strategy for the n coefficients of one polynomial, coefficients(ring) by default.

    Raises:
        ParameterError: ring is not a Ring, a size in batch is negative, or values is not a strategy.
        NotAnInteger: a size in batch is not an int.
        DomainError: domain is not "coef", "eval" or None.
        NotNTTFriendly: domain is "eval", and the ring has no transform.

    >>> from hypothesis import find
    >>> from polygpu import Ring
    >>> find(polys(Ring(4, 17), batch=(), domain="eval"), lambda a: a != 0).domain
    'eval'
    """
    _check_ring(ring)
    shape = None if batch is None else checked_batch(batch)
    domains = [ring._checked_domain(domain)] if domain is not None else ["coef", "eval"][: 1 + ring.has_eval]
    if values is not None and not isinstance(values, st.SearchStrategy):
        raise ParameterError(
            f"values must be a strategy such as coefficients(ring), not {type(values).__name__}."
        )
    return _polys(ring, shape, domains, coefficients(ring) if values is None else values)


@st.composite
def _polys(
    draw: st.DrawFn,
    ring: Ring,
    batch: tuple[int, ...] | None,
    domains: Sequence[str],
    values: st.SearchStrategy[list[int]],
) -> Poly:
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 1), (0,)])) if batch is None else batch
    rows = [draw(values) for _ in range(prod(shape))]
    poly = ring(np.array(rows, dtype=object).reshape(*shape, ring.n))
    return poly.ntt() if draw(st.sampled_from(domains)) == "eval" else poly
