"""Hypothesis strategies and oracles: for polygpu's own tests and for yours.

Needs Hypothesis: pip install "polygpu[test]".

>>> from hypothesis import given
>>> from polygpu.testing import polys, rings
>>> @given(rings(max_degree=64).flatmap(lambda ring: polys(ring)))
... def test_negation(a):
...     assert a + -a == 0
>>> test_negation()
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
def polys(draw: st.DrawFn, ring: Ring, batch: tuple[int, ...] | None = None, domain: Any = None) -> Poly:
    """Elements of a ring; batch None draws a small batch shape, odd sizes and empty ones included."""
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 1), (0,)])) if batch is None else batch
    rows = [draw(coefficients(ring)) for _ in range(prod(shape))]
    values = np.array(rows, dtype=object).reshape(*shape, ring.n)
    poly = ring(values)
    wanted = draw(st.sampled_from(("coef", "eval"))) if domain is None and ring.has_eval else domain
    return poly.ntt() if wanted == "eval" else poly
