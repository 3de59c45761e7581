"""Hypothesis strategies keep their bounds, and reject invalid bounds and names when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polygpu as pg
from polygpu import Ring, testing
from polygpu._core.exact.primes import is_prime
from polygpu._core.quotient import Quotient
from polygpu.testing import (
    chains,
    coefficients,
    degrees,
    edge_coefficients,
    friendly_moduli,
    kinds,
    moduli,
    multiply_integers,
    polys,
    rings,
)

few = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))

BITS = st.one_of(st.integers(1, 70), st.sampled_from([1, 2, 3, 7, 8, 9, 29, 30, 63, 64, 65, 200, 1000]))
LIMBS = st.integers(1, 6)
DEGREES = st.one_of(st.integers(1, 300), st.sampled_from([1, 2, 3, 2**32, 2**61 + 1, 2**62]))
TRANSFORMS = st.sampled_from([True, False, None])
R = Ring(4, 17)
U = Ring(4, 15)  # no evaluation domain


@few
@given(st.data(), DEGREES)
def test_degrees_strategy(data: Any, most: int) -> None:
    assert 1 <= data.draw(degrees(most)) <= most


@few
@given(st.data(), BITS, LIMBS)
def test_moduli_strategy(data: Any, bits: int, limbs: int) -> None:
    drawn = data.draw(moduli(bits, limbs))
    assert 1 <= len(drawn) <= limbs
    assert all(2 <= q <= 2**bits for q in drawn) and (len(drawn) == 1 or max(drawn) <= 2**64)
    assert Ring(1, drawn).moduli == tuple(drawn)


@few
@given(st.data(), st.integers(0, 56), kinds(), LIMBS)
def test_friendly_moduli_strategy(data: Any, log_n: int, kind: Any, limbs: int) -> None:
    drawn = data.draw(friendly_moduli(2**log_n, kind, limbs))
    assert 1 <= len(drawn) <= limbs and len(set(drawn)) == len(drawn)
    assert len({q.bit_length() for q in drawn}) == 1 and max(drawn) < 2**64
    assert all((q - 1) % Quotient(kind, 2**log_n).order == 0 and is_prime(q) for q in drawn)


@few
@given(st.data(), DEGREES, TRANSFORMS, BITS)
def test_rings_strategy(data: Any, degree: int, transform: Any, bits: int) -> None:
    if transform and bits < 8:
        bits += 8
    ring = data.draw(rings(degree, transform, bits))
    assert 1 <= ring.n <= degree and max(ring.moduli) <= 2**bits
    assert transform is not True or ring.leaf_size == 1


@few
@given(st.data(), DEGREES, LIMBS, TRANSFORMS)
def test_chains_strategy(data: Any, degree: int, limbs: int, transform: Any) -> None:
    Q, P = data.draw(chains(degree, limbs, transform))
    assert 1 <= Q.n == P.n <= degree and Q.kind == P.kind
    assert 1 <= len(Q.moduli) <= limbs and 1 <= len(P.moduli) <= max(1, limbs // 2)
    assert max(Q.moduli + P.moduli) <= 2**64 and len(Q.join(P).moduli) == len(Q.moduli) + len(P.moduli)
    assert transform is not True or Q.leaf_size == P.leaf_size == 1


@few
@given(st.data(), rings(max_degree=9, max_bits=70), st.integers(1, 2**80))
def test_coefficients_strategies(data: Any, ring: Ring, divisor: int) -> None:
    for strategy in (coefficients(ring), edge_coefficients(ring), edge_coefficients(ring, divisor)):
        x = data.draw(strategy)
        assert len(x) == ring.n and all(type(v) is int and 0 <= v < ring.modulus for v in x)


@few
@given(st.data(), rings(max_degree=9, max_bits=70), st.sampled_from([None, (), 0, 2, (2, 0), (1, 2)]))
def test_polys_strategy(data: Any, ring: Ring, batch: Any) -> None:
    domain = data.draw(st.sampled_from([None, "coef", "eval"] if ring.has_eval else [None, "coef"]))
    a = data.draw(polys(ring, batch, domain))
    assert a.ring == ring and (domain is None or a.domain == domain)
    assert batch is None or a.shape == (batch if isinstance(batch, tuple) else (batch,))
    zero = data.draw(polys(ring, (), domain, st.just([0] * ring.n)))
    assert zero == 0


# Arguments of each strategy that are at least 1; those with another least value, or with a largest one, too.
COUNTS: dict[str, Callable[[Any], Any]] = {
    "max_degree of degrees": degrees,
    "max_degree of rings": lambda x: rings(max_degree=x),
    "max_degree of chains": lambda x: chains(max_degree=x),
    "max_bits of moduli": moduli,
    "max_bits of rings": lambda x: rings(max_bits=x),
    "max_limbs of moduli": lambda x: moduli(max_limbs=x),
    "max_limbs of chains": lambda x: chains(max_limbs=x),
    "max_limbs of friendly_moduli": lambda x: friendly_moduli(4, "cyclic", x),
    "n of friendly_moduli": lambda x: friendly_moduli(x, "cyclic"),
    "divisor of edge_coefficients": lambda x: edge_coefficients(R, x),
    "modulus of multiply_integers": lambda x: multiply_integers([1], [1], x, "cyclic"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_out_of_range_raise(name: str) -> None:
    argument = name.partition(" ")[0]
    too_large = [2**70] if argument in ("max_degree", "max_bits", "n") else []
    for x in (0, -1, -(2**70), *too_large):
        with pytest.raises(pg.ParameterError, match=f"^{argument}=.* must be at least "):
            COUNTS[name](x)
    for x in (1.0, "8", None, True, [4], np.float64(4)):
        with pytest.raises(pg.errors.NotAnInteger, match=f"^{argument}=.* must be an int"):
            COUNTS[name](x)
    COUNTS[name](np.int64(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: friendly_moduli(12, "cyclic"), "n=12 is not a power of two"),
        (lambda: friendly_moduli(8, "negacylic"), "kind='negacylic' must be 'negacyclic'"),
        (lambda: friendly_moduli(8, None), "kind=None"),
        (lambda: rings(transform="yes"), "transform='yes' must be True, False or None"),
        (lambda: rings(transform=1), "transform=1 must"),
        (lambda: chains(transform="incomplete"), "transform='incomplete' must"),
        (lambda: rings(transform=True, max_bits=7), "max_bits=7 must be at least 8"),
        (lambda: polys(R, domain="Eval"), "domain='Eval' must be 'coef' or 'eval'"),
        (lambda: polys(R, domain="ntt"), "domain='ntt'"),
        (lambda: polys(U, domain="eval"), "15 is not prime"),
        (lambda: polys(R, batch=-1), "batch=-1"),
        (lambda: polys(R, batch=(2, -3)), "batch=.*negative"),
        (lambda: polys(R, batch=1.5), "batch=1.5"),
        (lambda: polys(R, values=[1, 2, 3, 4]), "values must be a strategy .*not list"),
        (lambda: polys(17), "ring must be a Ring, not int"),
        (lambda: polys(rings()), "ring must be a Ring, not .*Use rings\\(\\).flatmap"),
        (lambda: coefficients([17]), "ring must be a Ring, not list"),
        (lambda: edge_coefficients(None), "ring must be a Ring, not NoneType"),
        (lambda: multiply_integers([1], [1], 17, "cylcic"), "kind='cylcic'"),
        (lambda: multiply_integers([1], [1], 1, "cyclic"), "modulus=1 must be at least 2"),
        (lambda: multiply_integers([1], [1, 2], 17, "cyclic"), "a has length 1 and b has length 2"),
        (lambda: multiply_integers([], [], 17, "cyclic"), "a has length 0 and b has length 0"),
        (lambda: multiply_integers([1.5], [1], 17, "cyclic"), "a=1.5"),
        (lambda: multiply_integers([1], [True], 17, "cyclic"), "b=True"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(pg.ParameterError, match=words):
        call()


def test_misspelled_argument_names_raise() -> None:
    for name in ("kinds", "degrees", "friendly_moduli", "moduli", "rings", "chains", "coefficients", "polys"):
        with pytest.raises(TypeError, match="max_degre"):
            getattr(testing, name)(max_degre=4)
