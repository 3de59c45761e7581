"""Hypothesis strategies and oracles: for polygpu's own tests and for yours.

Needs Hypothesis: pip install "polygpu[test]".

>>> from hypothesis import given
>>> from polygpu.testing import polys, rings
>>> @given(rings(max_degree=64).flatmap(lambda ring: polys(ring)))
... def test_negation(a):
...     assert a + -a == 0
>>> test_negation()

Of values between bases of moduli, rings that can be joined and coefficients where divisions turn:

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

# Where an implementation changes its word or its lazy range, in bits of the modulus.
WORD_LIMITS = (29, 30, 31, 32, 46, 49, 50, 51, 52, 59, 60, 61, 62, 63, 64)


def multiply_integers(a: Sequence[int], b: Sequence[int], modulus: int, kind: Kind) -> list[int]:
    """The product of n and n integer coefficients mod X^n ± 1 and a modulus, in Python ints alone.

    One product of big integers; operands are reduced first. Shares nothing with the transforms.

    >>> multiply_integers([1, 2], [3, 4], 100, "negacyclic")
    [95, 10]
    """
    constant = -1 if kind == "negacyclic" else 1
    return big_product([v % modulus for v in a], [v % modulus for v in b], modulus, constant)


def kinds() -> st.SearchStrategy[Kind]:
    """ "negacyclic" or "cyclic"."""
    return st.sampled_from(("negacyclic", "cyclic"))


def degrees(max_degree: int = 4096) -> st.SearchStrategy[int]:
    """From 1 to max_degree, of any parity; half of them powers of two."""
    powers = st.integers(0, max_degree.bit_length() - 1).map(lambda e: 1 << e)
    return st.one_of(powers, st.integers(1, max_degree))


@st.composite
def friendly_moduli(draw: st.DrawFn, n: int, kind: Kind, max_limbs: int = 5) -> list[int]:
    """Primes with a full transform of the power-of-two degree n, near the limits of the words."""
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
    """One modulus from 2 to 2**max_bits, or up to max_limbs coprime ones of at most 64 bits."""
    near_limits = st.sampled_from(WORD_LIMITS).flatmap(lambda b: st.integers((1 << b) - 64, (1 << b) + 64))
    words = st.one_of(
        st.integers(2, 1 << 16), near_limits.map(lambda q: min(q, 1 << 64)), st.integers(2, 1 << 64)
    )
    powers = st.integers(1, max_bits).map(lambda b: 1 << b)
    single = st.one_of(words, powers, st.integers(2, 1 << max_bits))
    several = st.lists(words, min_size=2, max_size=max_limbs).map(_coprime)
    return st.one_of(single.map(lambda q: [q]), several)


def _coprime(values: list[int]) -> list[int]:
    """Those of the values that are coprime to all before them."""
    kept: list[int] = []
    for q in values:
        if all(gcd(q, p) == 1 for p in kept):
            kept.append(q)
    return kept


@st.composite
def rings(
    draw: st.DrawFn, max_degree: int = 4096, transform: bool | None = None, max_bits: int = 200
) -> Ring:
    """Rings of both kinds; transform: True draws only those with a complete transform, None any."""
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
    """Two rings Q and P that can be joined: the limbs of an RNS value, and others.

    Limbs have 2 to 64 bits, each a size of its own, in any order; Q has 1 to max_limbs of them, P half as
    many at most. transform: True draws only chains with a complete transform, False coprime moduli of any
    kind, None both, and transforms that stop early at some limbs or all.

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
    """The first number from start on, downwards and then upwards, that is coprime to the others."""
    product = prod(others)
    return next(q for q in chain(range(start, 1, -1), count(start)) if gcd(q, product) == 1)


def _friendly_prime(n: int, bits: int, kind: Kind, others: Sequence[int]) -> int:
    """The largest prime of this size with a full transform, not among the others; else of the next size."""
    while True:
        try:
            return ntt_primes(n, bits, 1, kind, exclude=others)[0]
        except ParameterError:
            bits += 1


@st.composite
def coefficients(draw: st.DrawFn, ring: Ring) -> list[int]:
    """n integers in [0, Q): uniform, extreme (0, 1, Q-1, the middle), all Q-1, or a few."""
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
    """n integers in [0, Q) where divisions and conversions turn: in one way, or in all of them mixed.

    Next to multiples of Q/2, of divisor/2 and of half of Q/q, q a modulus; and integers whose residues are
    next to 0, q/2 and q in all limbs. Next to means up to 2 away.

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
    """Elements of a ring; batch None draws a small batch shape, odd sizes and empty ones included.

    values: n integers of one polynomial, coefficients(ring) by default.
    """
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 1), (0,)])) if batch is None else batch
    rows = [draw(coefficients(ring) if values is None else values) for _ in range(prod(shape))]
    array = np.array(rows, dtype=object).reshape(*shape, ring.n)
    poly = ring(array)
    wanted = draw(st.sampled_from(("coef", "eval"))) if domain is None and ring.has_eval else domain
    return poly.ntt() if wanted == "eval" else poly
