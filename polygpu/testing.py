"""Hypothesis strategies and an oracle for products: for polygpu's own tests and for yours.

Needs Hypothesis: pip install "polygpu[test]". A strategy draws rings, coefficients or values. Hypothesis runs
a test on many of them, and makes a failing example as small as it can.

>>> from hypothesis import given
>>> from polygpu.testing import polys, rings
>>> @given(rings(max_degree=64).flatmap(lambda ring: polys(ring)))
... def test_negation(a):
...     assert a + -a == 0
>>> test_negation()

For conversions between bases of moduli there are rings that can be joined (chains), and coefficients near the
points where a division's result changes (edge_coefficients):

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
from itertools import chain, count
from math import gcd, prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .backends.reference import big_product
from .checks import Kind
from .errors import ParameterError
from .exact.primes import ntt_primes
from .poly import Poly
from .ring import Ring

# Bits of moduli at which an implementation changes its word or its lazy range.
WORD_LIMITS = (29, 30, 31, 32, 46, 49, 50, 51, 52, 59, 60, 61, 62, 63, 64)


def multiply_integers(a: Sequence[int], b: Sequence[int], modulus: int, kind: Kind) -> list[int]:
    """The product of two polynomials modulo X^n ± 1 and a modulus: an oracle in Python ints alone.

    It shares nothing with the transforms.

    Args:
        a: n integers of any size and sign, the coefficient of X^0 first.
        b: as a.
        modulus: any int of at least 2.
        kind: "negacyclic" for X^n + 1, "cyclic" for X^n - 1.

    Returns n ints in [0, modulus).

    Cost: one product of two big integers (Kronecker substitution), each of n numbers of 2 log2(modulus) +
    log2(n) bits.

    >>> multiply_integers([1, 2], [3, 4], 100, "negacyclic")
    [95, 10]
    """
    constant = -1 if kind == "negacyclic" else 1
    return big_product([v % modulus for v in a], [v % modulus for v in b], modulus, constant)


def kinds() -> st.SearchStrategy[Kind]:
    """ "negacyclic" or "cyclic".

    >>> from hypothesis import find
    >>> find(kinds(), lambda kind: kind != "negacyclic")
    'cyclic'
    """
    return st.sampled_from(("negacyclic", "cyclic"))


def degrees(max_degree: int = 4096) -> st.SearchStrategy[int]:
    """Degrees from 1 to max_degree, half of them powers of two.

    Args:
        max_degree: the largest degree, 4096 by default.

    >>> from hypothesis import find
    >>> find(degrees(64), lambda n: n > 1 and n % 2 == 1)
    3
    """
    powers = st.integers(0, max_degree.bit_length() - 1).map(lambda e: 1 << e)
    return st.one_of(powers, st.integers(1, max_degree))


@st.composite
def friendly_moduli(draw: st.DrawFn, n: int, kind: Kind, max_limbs: int = 5) -> list[int]:
    """Primes with a complete transform of degree n, near the limits of the words (WORD_LIMITS).

    Args:
        draw: passed by Hypothesis; leave it out.
        n: degree, a power of two.
        kind: "negacyclic" or "cyclic".
        max_limbs: the largest number of primes, which are all different.

    Draws a list of primes of one size, in any order.

    >>> from hypothesis import find
    >>> q, p = find(friendly_moduli(64, "negacyclic"), lambda moduli: len(moduli) == 2)
    >>> q % 128, p % 128, q.bit_length() == p.bit_length()
    (1, 1, True)
    """
    least = (2 * n if kind == "negacyclic" else n).bit_length() + 4
    bits = draw(st.sampled_from([b for b in WORD_LIMITS if b >= least]))
    count = draw(st.integers(1, max_limbs))
    while True:
        try:
            primes = ntt_primes(n, bits, count, kind)
        except ParameterError:
            bits += 1
        else:
            return draw(st.permutations(primes)) if count > 1 else primes


def moduli(max_bits: int = 200, max_limbs: int = 5) -> st.SearchStrategy[list[int]]:
    """Moduli of any kind: one from 2 to 2**max_bits, or several coprime ones of at most 2**64.

    Args:
        max_bits: of a single modulus, 200 by default.
        max_limbs: the largest number of moduli.

    Draws a list of ints.

    >>> from hypothesis import find
    >>> find(moduli(), lambda q: len(q) == 1 and q[0] > 2**64)[0] > 2**64
    True
    """
    near_limits = st.sampled_from(WORD_LIMITS).flatmap(lambda b: st.integers((1 << b) - 64, (1 << b) + 64))
    words = st.one_of(
        st.integers(2, 1 << 16), near_limits.map(lambda q: min(q, 1 << 64)), st.integers(2, 1 << 64)
    )
    powers = st.integers(1, max_bits).map(lambda b: 1 << b)
    single = st.one_of(words, powers, st.integers(2, 1 << max_bits))
    several = st.lists(words, min_size=2, max_size=max_limbs).map(_coprime)
    return st.one_of(single.map(lambda q: [q]), several)


def _coprime(values: list[int]) -> list[int]:
    """The values that are coprime to all values kept before them."""
    kept: list[int] = []
    for q in values:
        if all(gcd(q, p) == 1 for p in kept):
            kept.append(q)
    return kept


@st.composite
def rings(
    draw: st.DrawFn, max_degree: int = 4096, transform: bool | None = None, max_bits: int = 200
) -> Ring:
    """Rings of both kinds, of any degree and moduli.

    Args:
        draw: passed by Hypothesis; leave it out.
        max_degree: the largest degree.
        transform: True draws only rings with a complete transform, False takes degrees and moduli of any
            kind, None mixes both.
        max_bits: of a single modulus without a transform.

    >>> from hypothesis import find
    >>> find(rings(max_degree=64, transform=True), lambda ring: ring.n == 4).leaf_size
    1
    """
    kind = draw(kinds())
    friendly = transform if transform is not None else draw(st.booleans())
    if friendly:
        n = 1 << draw(st.integers(0, max_degree.bit_length() - 1))
        return Ring(n, draw(friendly_moduli(n, kind)), kind=kind)
    return Ring(draw(degrees(max_degree)), draw(moduli(max_bits)), kind=kind)


@st.composite
def chains(
    draw: st.DrawFn, max_degree: int = 32, max_limbs: int = 8, transform: bool | None = None
) -> tuple[Ring, Ring]:
    """Two rings Q and P that can be joined: the limbs of an RNS value, and special or auxiliary limbs.

    Limbs have 2 to 64 bits, each a size of its own, in any order.

    Args:
        draw: passed by Hypothesis; leave it out.
        max_degree: the largest degree.
        max_limbs: Q has from 1 to so many limbs, P at most half as many (at least 1).
        transform: True draws only rings with a complete transform, False coprime moduli of any kind. None
            mixes both with incomplete transforms, whose primes may have roots of different orders.

    Draws a pair of rings (Q, P).

    >>> from hypothesis import given
    >>> @given(chains(transform=True))
    ... def test_limbs(rings):
    ...     Q, P = rings
    ...     assert Q.join(P)[: len(Q.moduli)] == Q and Q.leaf_size == 1
    >>> test_limbs()
    """
    kind, bits_of = draw(kinds()), st.one_of(st.integers(2, 64), st.sampled_from(WORD_LIMITS))
    own, other = draw(st.integers(1, max_limbs)), draw(st.integers(1, max(1, max_limbs // 2)))
    sizes = draw(st.lists(bits_of, min_size=own + other, max_size=own + other))
    ways = {True: ("complete",), False: ("none",), None: ("complete", "incomplete", "none")}
    way = draw(st.sampled_from(ways[transform]))
    found: list[int] = []
    if way == "none":
        n = draw(degrees(max_degree))
        for bits in sizes:
            least, most = 1 << (bits - 1), 1 << bits
            start = draw(st.one_of(st.sampled_from((least, most)), st.integers(least, most)))
            found.append(_coprime_near(start, found))
    else:
        n = 1 << draw(st.integers(0, max_degree.bit_length() - 1))
        for bits in sizes:
            layers = draw(st.integers(0, min(3, n.bit_length() - 1))) if way == "incomplete" else 0
            found.append(_friendly_prime(n >> layers, bits, kind, found))
    return Ring(n, found[:own], kind=kind), Ring(n, found[own:], kind=kind)


def _coprime_near(start: int, others: Iterable[int]) -> int:
    """The first number coprime to the others: searched from start down to 2, then from start up."""
    product = prod(others)
    return next(q for q in chain(range(start, 1, -1), count(start)) if gcd(q, product) == 1)


def _friendly_prime(n: int, bits: int, kind: Kind, others: Sequence[int]) -> int:
    """The largest prime of `bits` bits that has a complete transform and is not among the others.

    Where there is none, `bits` is raised until there is one.
    """
    while True:
        try:
            return ntt_primes(n, bits, 1, kind, exclude=others)[0]
        except ParameterError:
            bits += 1


@st.composite
def coefficients(draw: st.DrawFn, ring: Ring) -> list[int]:
    """n integers in [0, Q), the coefficients of a polynomial: ordinary ones and worst cases.

    They are uniform; or each is 0, 1, Q - 1 or next to Q/2; or all are Q - 1; or all but at most four are 0.

    Args:
        draw: passed by Hypothesis; leave it out.
        ring: the ring of the polynomial.

    >>> from hypothesis import find
    >>> from polygpu import Ring
    >>> find(coefficients(Ring(4, 17)), lambda x: sum(x) == 64)
    [16, 16, 16, 16]
    """
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


@st.composite
def edge_coefficients(draw: st.DrawFn, ring: Ring, divisor: int = 1) -> list[int]:
    """n integers in [0, Q) near the points where divisions, roundings and conversions change their result.

    The points are the multiples of Q/2, of divisor/2 and of half of Q/q for a modulus q, and the integers
    whose residue is 0, q/2 or q - 1 modulo each q. The drawn integers are up to 2 away from points of one of
    these kinds, or of all kinds mixed.

    Args:
        draw: passed by Hypothesis; leave it out.
        ring: the ring of the polynomial.
        divisor: an int by which the test divides, such as the product of special moduli; 1 for none.

    >>> from hypothesis import given
    >>> from polygpu import Ring
    >>> @given(edge_coefficients(Ring(8, [97, 193]), divisor=193))
    ... def test_range(values):
    ...     assert len(values) == 8 and all(0 <= x < 97 * 193 for x in values)
    >>> test_range()
    """
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


@st.composite
def polys(
    draw: st.DrawFn,
    ring: Ring,
    batch: tuple[int, ...] | None = None,
    domain: Any = None,
    values: st.SearchStrategy[list[int]] | None = None,
) -> Poly:
    """Elements of a ring.

    Args:
        draw: passed by Hypothesis; leave it out.
        ring: the ring.
        batch: batch shape; None draws a small one, with odd sizes and empty axes among them.
        domain: "coef" or "eval"; None draws one that the ring has.
        values: a strategy for the n coefficients of one polynomial, coefficients(ring) by default.

    >>> from hypothesis import find
    >>> from polygpu import Ring
    >>> find(polys(Ring(4, 17), batch=(), domain="eval"), lambda a: a != 0).domain
    'eval'
    """
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 1), (0,)])) if batch is None else batch
    rows = [draw(coefficients(ring) if values is None else values) for _ in range(prod(shape))]
    array = np.array(rows, dtype=object).reshape(*shape, ring.n)
    poly = ring(array)
    wanted = draw(st.sampled_from(("coef", "eval"))) if domain is None and ring.has_eval else domain
    return poly.ntt() if wanted == "eval" else poly
