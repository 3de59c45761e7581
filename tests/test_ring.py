"""Rings: identity, roots of unity, primes, plans and tables, against definitions in Python ints."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import math
import pickle
import random
import re
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sympy
from devices import product_plan

import polygpu as pg
from polygpu import ParameterError, Ring, RingMismatch, is_prime, ntt_primes
from polygpu._core.exact.roots import root_of_unity, same_root
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.ntt import NttPlan
from polygpu._core.plans.permutation import automorphism_index, bit_reversal, multiplier_of
from polygpu._core.plans.product import AuxiliaryPlan, FftProductPlan
from polygpu._core.quotient import Quotient
from polygpu.errors import BadRoot

GOLDILOCKS = 2**64 - 2**32 + 1
BABYBEAR = 15 * 2**27 + 1
KOALABEAR = 127 * 2**24 + 1
KINDS: Any = pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])

SMALL_PRIMES = list(sympy.primerange(2, 200))


def root_order(points: int, kind: str) -> int:
    return 2 * points if kind == "negacyclic" else points


def order_of(x: int, q: int) -> int:
    """The multiplicative order of x mod q, by trying."""
    power, k = x % q, 1
    while power != 1 % q:
        power, k = power * x % q, k + 1
    return k


# ---- identity ----

SAME = [
    ((8, 17), {}, (8, [17]), {}),
    ((8, 17), {}, (np.int32(8), np.uint64(17)), {}),
    ((8, 17), {}, (8, np.array(17)), {}),
    ((8, [17, 97]), {}, (8, (17, 97)), {}),
    ((8, [17, 97]), {}, (8, np.array([17, 97])), {}),
    ((8, [17, 97]), {}, (8, (q for q in (17, 97))), {}),
    ((8, 17), {}, (8, 17), {"kind": "negacyclic", "root": "minimal"}),
    ((8, 17), {}, (8, 17), {"root": 3}),
    ((8, 17), {}, (8, 17), {"root": [3]}),
    ((8, [17, 97]), {}, (8, [17, 97]), {"root": np.array([3, 8])}),
    ((4, 97), {"root": "generator"}, (4, 97), {"root": pow(5, 12, 97)}),
    ((4, 15), {"root": "generator"}, (4, 15), {}),  # no transform: the root means nothing
    ((5, 17), {"root": "generator"}, (5, 17), {}),
]
OTHER = [
    ((8, 17), {}, (4, 17), {}),
    ((8, 17), {}, (8, 97), {}),
    ((8, [17, 97]), {}, (8, [97, 17]), {}),
    ((8, [17, 97]), {}, (8, 17 * 97), {}),
    ((8, 17), {}, (8, 17), {"kind": "cyclic"}),
    ((8, 17), {}, (8, 17), {"root": 5}),
    ((64, 7681), {}, (64, 7681), {"root": "generator"}),
]


@pytest.mark.parametrize(("a", "a_options", "b", "b_options"), SAME)
def test_equal_parameters_are_the_same_ring(a: Any, a_options: Any, b: Any, b_options: Any) -> None:
    x, y = Ring(*a, **a_options), Ring(*b, **b_options)
    assert (x == y) is True and (x != y) is False and hash(x) == hash(y) and {x: 1}[y] == 1
    assert x.roots == y.roots
    assert x(3) + y(4) == 7


@pytest.mark.parametrize(("a", "a_options", "b", "b_options"), OTHER)
def test_other_parameters_are_other_rings(a: Any, a_options: Any, b: Any, b_options: Any) -> None:
    x, y = Ring(*a, **a_options), Ring(*b, **b_options)
    assert (x != y) is True and (x == y) is False and len({x, y}) == 2
    with pytest.raises(pg.RingMismatch):
        x(1) + y(1)


def test_ring_is_not_equal_to_other_objects() -> None:
    for other in (None, 8, "Ring(8, 17)", (8, 17)):
        assert Ring(8, 17) != other


PICKLED = [
    Ring(8, 17),
    Ring(8, 17, root=5),
    Ring(8, [17, 97], root="generator"),
    Ring(6, [2**64, 3], kind="cyclic"),
    Ring(4, 2**200),
]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("ring", PICKLED, ids=repr)
def test_pickle_contains_only_parameters(ring: Ring, protocol: int) -> None:
    if ring.has_eval:
        assert ring._plan.transform is not None  # built tables do not travel
    stream = pickle.dumps(ring, protocol)
    again = pickle.loads(stream)
    assert again == ring and again.roots == ring.roots and hash(again) == hash(ring)
    assert len(stream) < 300
    assert copy.deepcopy(ring) == copy.copy(ring) == ring


PROPERTIES = [k for k, v in vars(Ring).items() if isinstance(v, (property, functools.cached_property))]


@pytest.mark.parametrize("name", [*PROPERTIES, "_n", "_moduli", "other"])
def test_attributes_are_read_only(name: str) -> None:
    ring = Ring(8, 17)
    before = getattr(ring, name, None)
    with pytest.raises(AttributeError):
        setattr(ring, name, 3)
    assert getattr(ring, name, None) is before or getattr(ring, name) == before


def test_parameters_are_converted_to_ints() -> None:
    ring = Ring(np.int64(8), np.array([17, 97], np.uint8), root=np.array([3, 8]))
    for value in (ring.n, ring.modulus, *ring.moduli, *(ring.roots or ())):
        assert type(value) is int
    assert type(ring.moduli) is tuple


@pytest.mark.parametrize(
    ("moduli", "dtype", "rows"),
    [
        (2, np.uint32, 1),
        (2**32, np.uint32, 1),
        (2**32 + 1, np.uint64, 1),
        ([3, 2**32], np.uint32, 2),
        ([3, 2**32 + 1], np.uint64, 2),
        (2**64, np.uint64, 1),
        ([2**64, 3], np.uint64, 2),
        (2**64 + 1, np.uint64, 2),
        (2**128, np.uint64, 2),
        (2**128 + 1, np.uint64, 3),
        ([2**300], np.uint64, 5),
    ],
)
def test_storage_follows_the_widest_modulus(moduli: Any, dtype: type, rows: int) -> None:
    ring = Ring(3, moduli)
    assert ring.dtype == dtype and ring.rows == rows
    assert ring.modulus == math.prod(ring.moduli)
    assert ring.zeros(2).data.shape == (2, rows, 3) and ring.zeros().data.dtype == dtype


@pytest.mark.parametrize("ring", PICKLED, ids=repr)
def test_repr_can_be_evaluated(ring: Ring) -> None:
    assert eval(repr(ring), {"Ring": Ring}) == ring


def test_repr_and_latex_are_short() -> None:
    many, huge = Ring(8, ntt_primes(8, bits=30, count=20)), Ring(2, 2**20_000)
    for ring in (many, huge):
        assert len(repr(ring)) < 200 and "\n" not in repr(ring)
        assert len(ring._repr_latex_()) < 200
    assert "20 moduli" in repr(many)
    assert "X^{2} + 1" in huge._repr_latex_()


# ---- presets ----


@pytest.mark.parametrize(
    ("name", "n", "q", "root", "base"),
    [
        ("ml-kem", 256, 3329, 17, 2),
        ("ml-dsa", 256, 8380417, 1753, 1),
        ("falcon-512", 512, 12289, 49, 1),
        ("falcon-1024", 1024, 12289, 7, 1),
    ],
)
def test_presets_of_schemes(name: str, n: int, q: int, root: int, base: int) -> None:
    ring = Ring.preset(name)
    assert ring == Ring(n, q) == Ring.preset(name, n)
    assert (ring.kind, ring.roots, ring.leaf_size) == ("negacyclic", (root,), base)
    assert [x for x in range(1, root + 1) if pow(x, n // base, q) == q - 1] == [root]


@pytest.mark.parametrize(
    ("name", "q", "generator"),
    [("babybear", BABYBEAR, 31), ("koalabear", KOALABEAR, 3), ("goldilocks", GOLDILOCKS, 7)],
)
@pytest.mark.parametrize("n", [None, 1, 2, 1024])
def test_presets_of_fields(name: str, q: int, generator: int, n: int | None) -> None:
    ring = Ring.preset(name, n)
    size = 2**16 if n is None else n
    assert (ring.n, ring.moduli, ring.kind, ring.leaf_size) == (size, (q,), "cyclic", 1)
    assert ring.roots == (pow(generator, (q - 1) // size, q),)
    assert generator == sympy.primitive_root(q)


# ---- roots of unity ----


@KINDS
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
def test_minimal_root_is_the_least_of_its_order(n: int, kind: Any) -> None:
    order = root_order(n, kind)
    for q in SMALL_PRIMES:
        if (q - 1) % order == 0:
            least = next(x for x in range(1, q) if order_of(x, q) == order)
            assert Ring(n, q, kind=kind).roots == (least,)


@KINDS
@pytest.mark.parametrize("rule", ["minimal", "generator"])
@pytest.mark.parametrize("bits", [20, 30, 31, 32, 50, 62, 63, 64, 100, 200])
@pytest.mark.parametrize("n", [1, 2, 256])
def test_roots_of_large_primes(n: int, bits: int, rule: Any, kind: Any) -> None:
    order = root_order(n, kind)
    q = ntt_primes(n, bits=bits, kind=kind)[0]
    if rule == "generator" and bits > 64:
        return  # needs the factors of q - 1
    (root,) = Ring(n, q, kind=kind, root=rule).roots or ()
    assert pow(root, order, q) == 1 and (order == 1 or pow(root, order // 2, q) == q - 1)
    if rule == "minimal":
        assert root == min(pow(root, k, q) for k in range(1, order + 1, 2))
    else:
        assert root == pow(int(sympy.primitive_root(q)), (q - 1) // order, q)


def test_roots_of_an_rns_ring_are_the_roots_of_its_limbs() -> None:
    moduli = [97, 12289, *ntt_primes(16, bits=50, count=2)]
    for rule in ("minimal", "generator"):
        limbs = [Ring(16, q, root=rule).roots for q in moduli]
        assert Ring(16, moduli, root=rule).roots == tuple(r for (r,) in limbs)


@pytest.mark.parametrize("q", [5, 17, 97, 193])
@KINDS
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_given_root_must_have_the_right_order(n: int, q: int, kind: Any) -> None:
    base = Ring(n, q, kind=kind).leaf_size
    if base is None:
        return
    order = root_order(n // base, kind)
    for x in range(1, q):
        if order_of(x, q) == order:
            ring = Ring(n, q, kind=kind, root=x)
            assert ring.roots == (x,)
            assert ring.eval_points()[0] == (x if kind == "negacyclic" else 1)
        else:
            with pytest.raises(pg.errors.BadRoot, match=f"order {order}"):
                Ring(n, q, kind=kind, root=x)


def test_generator_root_of_a_wide_prime() -> None:
    q = 2**89 - 1
    (root,) = Ring(4, q, root="generator").roots or ()
    assert root == q - 1  # of order 2, for one leaf of 4: q = 3 mod 4 has no root of order 4


def test_another_root_permutes_the_evaluation_domain() -> None:
    a = list(range(8))
    for root in (x for x in range(1, 97) if order_of(x, 97) == 16):
        ring = Ring(8, 97, root=root)
        values = dict(zip(ring.eval_points().tolist(), ring(a).ntt().data[0].tolist(), strict=True))
        assert values == {
            x: sum(c * pow(x, j, 97) for j, c in enumerate(a)) % 97 for x in range(97) if pow(x, 8, 97) == 96
        }


# ---- where a transform exists ----


def expected_base(n: int, moduli: tuple[int, ...], kind: str) -> int | None:
    """The rule of the contract: stop k <= 3 layers early, the least such k, every q prime."""
    if n & (n - 1) or not all(sympy.isprime(q) for q in moduli):
        return None
    for k in range(4):
        if n >> k and all((q - 1) % root_order(n >> k, kind) == 0 for q in moduli):
            return 2**k
    return None


@KINDS
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 96])
def test_leaf_size_of_small_rings(n: int, kind: Any) -> None:
    for q in range(2, 200):
        ring = Ring(n, q, kind=kind)
        base = expected_base(n, (q,), kind)
        assert (ring.leaf_size, ring.has_eval) == (base, base is not None)
        assert (ring.roots is None) == (base is None)


@KINDS
@pytest.mark.parametrize("moduli", list(itertools.permutations([5, 17, 97, 41, 4], 2)), ids=str)
def test_leaf_size_of_rns_rings(moduli: Any, kind: Any) -> None:
    for n in (1, 2, 4, 8, 16, 32):
        assert Ring(n, moduli, kind=kind).leaf_size == expected_base(n, moduli, kind)


@pytest.mark.parametrize(
    ("n", "q", "kind", "base"),
    [
        (256, 3329, "negacyclic", 2),
        (512, 3329, "negacyclic", 4),
        (1024, 3329, "negacyclic", 8),
        (2048, 3329, "negacyclic", None),
        (256, 3329, "cyclic", 1),
        (1, 2, "negacyclic", None),
        (1, 2, "cyclic", 1),
        (2, 2, "cyclic", 2),
        (8, 2, "cyclic", 8),
        (16, 2, "cyclic", None),
        (1, 3, "negacyclic", 1),
        (2, 3, "negacyclic", 2),
        (4, 3, "cyclic", 2),
        (2**40, GOLDILOCKS, "cyclic", None),
        (2**35, GOLDILOCKS, "cyclic", 8),
        (2**26, BABYBEAR, "negacyclic", 1),
        (2**27, BABYBEAR, "negacyclic", 2),
        (4, 2**89 - 1, "negacyclic", 4),
    ],
)
def test_leaf_size_examples(n: int, q: int, kind: Any, base: int | None) -> None:
    assert Ring(n, q, kind=kind).leaf_size == base


# ---- explain ----

EXPLAINED = [
    (Ring(8, 97), ["Ring(8, 97)", "X^8 + 1", "7 bits", "uint32", "transform of 8 points", "order 16"]),
    (Ring(8, 97, kind="cyclic"), ["X^8 - 1", "transform of 8 points", "33, of order 8"]),
    (Ring(256, 3329), ["1 layer early", "128 leaves of 2", "17, of order 256", "1.0 KiB", "4.0 KiB"]),
    (Ring(512, 3329), ["2 layers early", "128 leaves of 4"]),
    (Ring(1024, 3329), ["3 layers early", "128 leaves of 8"]),
    (Ring(8, 7), ["3 layers early", "of 8 coefficients", "6, of order 2"]),
    (Ring(8, [17, 97, 193]), ["[17, 97, 193]", "19 bits", "(*batch, 3, 8)", "3, 8, 3", "order 16"]),
    (Ring(8, ntt_primes(8, bits=50, count=5)), ["5 moduli", "250 bits", "(*batch, 5, 8)", "uint64", "..."]),
    (Ring(12, 97), ["FFT of 16 complex points, 1 digit of 7 bits", "none", "n=12 is not a power of two"]),
    (
        Ring(12, 97, product="ntt"),
        ["auxiliary", "none", "n=12 is not a power of two", "transforms of 32 points"],
    ),
    (Ring(16, 15, product="ntt"), ["auxiliary", "none", "15 is not prime", "transforms of 16 points"]),
    (Ring(16, 1_000_003), ["FFT", "1000003", "is 3 modulo 32", "are 1 modulo 32", "ntt_primes(16, bits=20"]),
    (Ring(16, 2**64), ["uint64", "4 digits of 16 bits", "error below", "by proof", "not prime"]),
    (Ring(1024, 12289, product="fft"), ["FFT of 512 complex points, 1 digit of 14 bits", "of order 2048"]),
    (Ring(16, 2**64, product="ntt"), ["uint64", "3 auxiliary primes", "not prime"]),
    (Ring(8, 2**128), ["(*batch, 2, 8)", "2 words", "auxiliary", "129 bits", "not prime"]),
    (Ring(8, ntt_primes(8, bits=100)), ["(*batch, 2, 8)", "2 words", "auxiliary", "of order 16"]),
    (Ring(1, 2, kind="cyclic"), ["X^1 - 1", "transform of 1 point", "1, of order 1"]),
]


@pytest.mark.parametrize(("ring", "parts"), EXPLAINED, ids=lambda x: repr(x) if isinstance(x, Ring) else "")
def test_explain_names_the_path(ring: Ring, parts: list[str]) -> None:
    text = ring.explain()
    for part in parts:
        assert part in text


def _table_bytes(transform: NttPlan) -> int:
    return sum(t.forward.nbytes + t.inverse.nbytes for t in transform.tables)


@pytest.mark.parametrize("ring", [ring for ring, _ in EXPLAINED], ids=repr)
def test_explain_matches_the_plan(ring: Ring) -> None:
    text, how = ring.explain(), product_plan(ring)
    found = re.search(r"(\d+) auxiliary primes? of (\d+) bits, transforms of (\d+) points", text)
    assert (found is not None) == isinstance(how, AuxiliaryPlan)
    if isinstance(how, FftProductPlan):
        digits = f"{how.digits} digit{'s' * (how.digits > 1)} of {how.width} bits"
        assert f"FFT of {how.points} complex points, {digits}, error below {how.error_bound:.2g}" in text
        size = how.twiddles.nbytes + (_table_bytes(ring._plan.transform) if ring.has_eval else 0)
    else:
        transform = getattr(how, "transform", how)
        size = _table_bytes(transform)
        if found is not None:
            primes = transform.basis.moduli
            assert tuple(map(int, found.groups())) == (len(primes), primes[0].bit_length(), transform.degree)
    assert f"tables    {size / 1024:.1f} KiB" in text
    assert f"{ring.zeros().data.nbytes / 1024:.1f} KiB a polynomial" in text


WORDS = [(2**30 - 1, "q < 2^30"), (2**30, "q < 2^31"), (2**31, "q <= 2^32"), (2**32, "q <= 2^32")]
WORDS += [(2**32 + 1, "q < 2^50"), (2**50, "q < 2^62"), (2**62, "q <= 2^64"), (2**64, "q <= 2^64")]


@pytest.mark.parametrize(("q", "word"), WORDS)
def test_explain_names_the_word(q: int, word: str) -> None:
    assert f" {word}\n" in Ring(3, q).explain()


@KINDS
@pytest.mark.parametrize("q", [2, 3, 7, 23, 1_000_003, 2**31 - 1, 2**61 - 1, 2**89 - 1])
def test_suggested_ntt_primes_give_a_ring_with_a_transform(q: int, kind: Any) -> None:
    """The message contains a call of ntt_primes, which is run here."""
    for k in range(21):
        ring = Ring(2**k, q, kind=kind)
        if ring.has_eval:
            continue
        with pytest.raises(pg.NotNTTFriendly) as caught:
            ring.zeros(0).ntt()
        assert f"needs moduli that are 1 modulo {root_order(2**k, kind)}." in str(caught.value)
        call = re.search(r"ntt_primes\(.*?\)", str(caught.value))
        assert call is not None
        for p in eval(call.group(), {"ntt_primes": ntt_primes}):
            assert Ring(2**k, p, kind=kind).leaf_size == 1


# ---- equal rings of different rules for roots ----

# X^2 - 1 over BabyBear: both rules find -1, but not for larger degrees.
RULES: dict[str, Any] = {"minimal": "minimal", "generator": "generator", "given": [BABYBEAR - 1, 256]}
RULE_MODULI = [BABYBEAR, 257]
JOINED = 12289


def of_rule(name: str, moduli: Any = RULE_MODULI, n: int = 2) -> Ring:
    root = RULES[name]
    if name == "given":
        root = [q - 1 for q in moduli]
    return Ring(n, list(moduli), kind="cyclic", root=root)


def described(x: Any) -> Any:
    """What distinguishes a result: its ring as it is written, and its values."""
    if isinstance(x, pg.PolyGPUError):
        return type(x), str(x)
    if isinstance(x, Ring):
        return repr(x), x.roots
    return repr(x.ring), x.ring.roots, x.domain, x.data.tolist()


def attempt(call: Any, *rings: Ring) -> Any:
    try:
        return described(call(*rings))
    except pg.PolyGPUError as error:
        return described(error)


# Functions of two equal rings. Each must give what it gives when nothing was computed before it.
OF_RULES: dict[str, Any] = {
    "ring[:1]": lambda R, S: R[:1].join(R[1:]),
    "join": lambda R, S: R.join(Ring(2, JOINED, kind="cyclic", root="generator")),
    "join of the other": lambda R, S: Ring(2, JOINED, kind="cyclic", root="generator").join(S),
    "join of both limbs": lambda R, S: R[:1].join(S[1:]),
    "zk.pad": lambda R, S: pg.zk.pad(R([3, 5]), 8).ntt(),
    "zk.pad to the other": lambda R, S: pg.zk.pad(R([3, 5]), S),
    "zk.low_degree_extension": lambda R, S: pg.zk.low_degree_extension(R([3, 5]), 4),
    "zk.interpolate": lambda R, S: pg.zk.interpolate(pg.zk.pad(R([3, 5]), 8).ntt(), 2),
    "sum": lambda R, S: R([3, 5]) + S([1, 2]),
    "difference of domains": lambda R, S: R([3, 5]).ntt() - S([1, 2]),
    "product": lambda R, S: R([3, 5]) * S([1, 2]),
    "product of domains": lambda R, S: R([3, 5]) * S([1, 2]).ntt(),
    "matmul": lambda R, S: R([[3, 5]]) @ S([[1, 2]]),
    "dot": lambda R, S: pg.dot(R([[3, 5]]), S([[1, 2]])),
    "einsum": lambda R, S: pg.einsum("i,i", R([[3, 5]]), S([[1, 2]])),
    "fma": lambda R, S: pg.fma(R([3, 5]), S([1, 2]), R([7])),
    "stack": lambda R, S: pg.stack([R([3, 5]), S([1, 2])]),
    "concatenate": lambda R, S: pg.concatenate([R([[3, 5]]), S([[1, 2]])]),
    "hadamard": lambda R, S: pg.zk.hadamard(R([3, 5]), S([1, 2])),
    "restrict": lambda R, S: R([3, 5]).restrict(S),
    "restrict to a part": lambda R, S: R([3, 5]).ntt().restrict(S[:1]),
    "convert": lambda R, S: R([3, 5]).ntt().convert(S),
    "mod_up": lambda R, S: R[:1]([3, 5]).ntt().mod_up(S),
    "mod_down": lambda R, S: R([3000, 5]).ntt().mod_down(S[:1]),
    "digits": lambda R, S: R([3, 5]).ntt().digits(S, limbs_per_digit=1),
    "rns.scale": lambda R, S: pg.rns.scale(R([3, 5]), 7, S),
    "rns.join": lambda R, S: pg.rns.join(R[:1]([3, 5]), S[1:]([1, 2])),
}


@pytest.mark.parametrize("name", OF_RULES)
def test_equal_rings_with_other_root_rules_share_no_results(name: str) -> None:
    """Caches never return results of an equal ring that has another rule for roots."""
    call = OF_RULES[name]
    pairs = list(itertools.product(RULES, repeat=2))
    alone = {}
    for pair in pairs:
        plan_cache.forget()
        alone[pair] = attempt(call, *map(of_rule, pair))
    assert len({result[0] for result in alone.values()}) > 1, "the results do not depend on the rule"
    for order in (pairs, pairs[::-1]):
        plan_cache.forget()
        kept = {rule: of_rule(rule) for rule in RULES}  # one ring for all calls, with all that it has kept
        assert kept["minimal"] == kept["generator"] == kept["given"]
        for pair in order:
            assert attempt(call, *(kept[rule] for rule in pair)) == alone[pair], pair
            assert attempt(call, *map(of_rule, pair)) == alone[pair], pair


@pytest.mark.parametrize("rule", RULES)
def test_results_of_equal_rings_have_the_left_ring(rule: str) -> None:
    for other in RULES:
        a, b = of_rule(rule)([3, 5]), of_rule(other)([1, 2])
        for c in (a + b, a - b, a * b, a.ntt() + b, a * b.ntt(), pg.fma(a, b, b), pg.stack([a, b])):
            assert c.ring is a.ring and c._plan is a._plan


def test_rings_of_the_same_arguments_share_one_plan() -> None:
    ring = Ring(8, [17, 97])
    same = [Ring(8, (17, 97)), Ring(np.int64(8), np.array([17, 97]))]
    same += [Ring(8, iter([17, 97]), kind="negacyclic", root="minimal", product="auto")]
    same += [pickle.loads(pickle.dumps(ring)), copy.copy(ring), copy.deepcopy(ring)]
    same += [Ring(8, [17, 97, 113])[:2], ring(1).ring, ring[:]]
    assert all(x._plan is ring._plan and x == ring for x in same)
    given = Ring(8, [17, 97], root=ring.roots or ())
    assert given._plan is not ring._plan and given == ring
    assert Ring(8, [17, 97], product="ntt") != ring


@pytest.mark.parametrize("wrong", [True, 8.0, "8", None, [8]])
def test_arguments_that_only_equal_ints_raise(wrong: Any) -> None:
    """Rings with n = 1 and 8 are cached, but True and 8.0 do not find them."""
    for n in (1, 8):
        Ring(n, [17, 97]), Ring(n, 2)
    with pytest.raises(pg.errors.NotAnInteger):
        Ring(wrong, [17, 97])
    for moduli in (True + 0.0, [17.0, 97], [17, 97.0], [np.True_, 17]):
        with pytest.raises(pg.errors.NotAnInteger):
            Ring(8, moduli)  # type: ignore[arg-type]


def test_rings_of_huge_degree_are_compared_without_tables() -> None:
    """`==` never raises and takes no longer than finding the roots of small degrees."""
    n = 1 << 31
    cyclic = Ring(n, GOLDILOCKS, kind="cyclic")
    generator = Ring(n, GOLDILOCKS, kind="cyclic", root="generator")
    root = generator.roots
    given = Ring(n, GOLDILOCKS, kind="cyclic", root=root)
    began = time.perf_counter()
    assert cyclic != generator and generator != cyclic and given == generator and given != cyclic
    assert {cyclic: 1, generator: 2}[given] == 2
    wide = 3 * 2**189 + 1  # a prime
    assert Ring(1 << 60, wide) != Ring(1 << 60, wide, root="generator")
    assert Ring(1 << 60, 15) == Ring(1 << 60, 15, root="generator")  # no transform, so no roots
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("q", [5, 17, 97, 257, 12289, 65537])
def test_comparison_of_root_rules_matches_their_roots(q: int) -> None:
    for bits in range((q - 1 & 1 - q).bit_length()):
        order = 1 << bits
        minimal, generator = (root_of_unity(q, order, rule) for rule in ("minimal", "generator"))
        for x in range(1, min(q, 600)):
            if x == 1 if order == 1 else pow(x, order // 2, q) == q - 1:
                assert (
                    same_root(q, order, x, "minimal") == same_root(q, order, "minimal", x) == (x == minimal)
                )
                assert same_root(q, order, x, "generator") == (x == generator)
        assert same_root(q, order, "minimal", "generator") == (minimal == generator)


# ---- plans and tables ----


def test_equal_rings_share_their_tables() -> None:
    x, y = Ring(64, 7681), Ring(64, [7681], root=Ring(64, 7681).roots or ())
    assert x._plan is not y._plan
    assert x._plan.transform is y._plan.transform and product_plan(x) is product_plan(y) is x._plan.transform
    a, b = Ring(12, 97), Ring(12, 97)
    assert product_plan(a) is product_plan(b)
    assert Ring(64, 7681, root="generator")._plan.transform is not x._plan.transform
    assert Ring(64, 7681, kind="cyclic")._plan.transform is not x._plan.transform


def test_plans_are_cached_after_their_ring_is_freed() -> None:
    alive = weakref.ref(Ring(4, 97)._plan.transform)
    gc.collect()
    assert alive() is not None and Ring(4, 97)._plan.transform is alive()
    for n in range(3, 140):
        assert product_plan(Ring(n, 15))
    gc.collect()
    assert alive() is None


def test_threads_build_one_plan() -> None:
    q = ntt_primes(2048, bits=50, count=3)[2]
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: Ring(2048, q)._plan.transform, range(16)))
    assert all(p is plans[0] for p in plans)


@KINDS
@pytest.mark.parametrize(
    ("n", "moduli"),
    [
        (1, 17),
        (2, 17),
        (16, 97),
        (16, [97, 193]),
        (64, BABYBEAR),
        (16, ntt_primes(16, bits=32)),
        (32, ntt_primes(32, bits=62)),
        (8, GOLDILOCKS),
        (16, 41),
        (16, 5),
        (8, 7),
        (8, ntt_primes(8, bits=100)),
        (2, ntt_primes(2, bits=300)),
    ],
)
def test_tables_match_their_definition(n: int, moduli: Any, kind: Any) -> None:
    """Node 1 is X^n ± 1; the twiddle w of node i splits X^2m - w^2 into nodes 2i and 2i + 1,
    X^m - w and X^m + w; leaf k is X^base - x_k. The inverse table holds 1/w, the first two
    entries times 1/points, and beside each entry stands its Shoup quotient."""
    ring = Ring(n, moduli, kind=kind)
    points, word = ring._plan.transform.points, 8 * ring.dtype.itemsize
    for i, (q, tables) in enumerate(zip(ring.moduli, ring._plan.transform.tables, strict=True)):
        constants = [0] * points + [int(x) for x in ring.eval_points(i)]
        for node in reversed(range(1, points)):
            assert constants[2 * node + 1] == -constants[2 * node] % q
            constants[node] = constants[2 * node] ** 2 % q
        assert constants[1] % q == (-1 if kind == "negacyclic" else 1) % q
        forward = [1] + [constants[2 * node] for node in range(1, points)]
        scale = pow(points, -1, q)
        inverse = [pow(w, -1, q) * (scale if node < 2 else 1) % q for node, w in enumerate(forward)]
        if points == 1:
            continue  # nothing is transformed
        assert tables.forward[0].tolist() == forward
        assert tables.inverse[0].tolist() == inverse
        if ring.rows == len(ring.moduli):
            assert tables.forward[1].tolist() == [(w << word) // q for w in forward]
            assert tables.inverse[1].tolist() == [(w << word) // q for w in inverse]


@pytest.mark.parametrize("ring", [Ring(16, 97), Ring(8, ntt_primes(8, bits=100)), Ring(256, 3329)], ids=repr)
def test_tables_are_read_only(ring: Ring) -> None:
    (tables,) = ring._plan.transform.tables
    for array in (tables.forward, tables.inverse, bit_reversal(16), ring.natural_order()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for name in ("tables", "leaf_size", "degree"):
        with pytest.raises(AttributeError):
            setattr(ring._plan.transform, name, None)


def test_eval_points_are_a_copy() -> None:
    ring = Ring(4, 17)
    ring.eval_points()[:] = 0
    assert ring.eval_points().tolist() == [2, 15, 8, 9]


BIG = ntt_primes(2**40, bits=62)[0]


@pytest.mark.parametrize(
    "compute",
    [
        lambda: Ring(2**40, BIG)._plan.transform,
        lambda: product_plan(Ring(2**40, BIG)),
        lambda: Ring(2**40, BIG, kind="cyclic")._plan.transform,
        lambda: product_plan(Ring(2**40, [BIG, 2**64])),
        lambda: product_plan(Ring(2**40, 15)),
        lambda: product_plan(Ring(2**40 + 1, 2**100)),
        lambda: product_plan(Ring(2**45, 15)),
        lambda: product_plan(Ring(2**60 + 1, 15)),
    ],
    ids=["transform", "product", "cyclic", "RNS", "composite", "wide", "2^45", "2^60"],
)
def test_tables_too_large_raise_before_allocation(compute: Any) -> None:
    start = time.perf_counter()
    with pytest.raises(pg.errors.TablesTooLarge, match=r"n=\d{13,}.*GiB.*smaller n") as caught:
        compute()
    assert time.perf_counter() - start < 2
    assert isinstance(caught.value, MemoryError)


def test_explain_of_a_ring_too_large_for_tables() -> None:
    """The call runs in its own process, which can be stopped."""
    code = f"import polygpu; print(polygpu.Ring(2**40, {BIG}).explain())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 0 or "TablesTooLarge" in done.stderr


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 12, 15, 16])
def test_automorphism_index_of_coefficients(n: int, kind: Any) -> None:
    """Entry j of a(X^g) is entry k of a where g k = j, negated (n + k) where X^(gk) = -X^j."""
    period = 2 * n if kind == "negacyclic" else n
    for g in (g for g in range(period) if math.gcd(g, period) == 1):
        expected = [0] * n
        for k in range(n):
            turns, j = divmod(g * k, n)
            expected[j] = k + n * (turns % 2) if kind == "negacyclic" else k
        quotient = Quotient(kind, n)
        index = automorphism_index(quotient, multiplier_of(quotient, g, False), False)
        assert index.tolist() == expected


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 32])
def test_automorphism_index_of_values(n: int, kind: Any) -> None:
    """a(X^g) at x_k is a at x_k^g."""
    ring = Ring(n, 193, kind=kind)
    points = ring.eval_points().tolist()
    period = 2 * n if kind == "negacyclic" else n
    for g in (g for g in range(period) if math.gcd(g, period) == 1):
        quotient = Quotient(kind, n)
        index = automorphism_index(quotient, multiplier_of(quotient, g, True), True)
        assert index.tolist() == [points.index(pow(x, g, 193)) for x in points]
        assert not index.flags.writeable


@pytest.mark.parametrize("points", [1, 2, 4, 64])
def test_bit_reversal(points: int) -> None:
    bits = points.bit_length() - 1
    expected = [int(f"{k:0{bits}b}"[::-1], 2) if bits else 0 for k in range(points)]
    assert bit_reversal(points).tolist() == expected


# ---- primes ----

CARMICHAEL = [561, 1105, 1729, 2465, 2821, 6601, 8911, 10585, 41041, 825265, 321197185, 5394826801]
STRONG_PSEUDOPRIMES = [  # the least ones to the first 1, 2, 3 ... 13 prime bases
    2047,
    1373653,
    25326001,
    3215031751,
    2152302898747,
    3474749660383,
    341550071728321,
    3825123056546413051,
    318665857834031151167461,
    3317044064679887385961981,
]
SPECIAL = [
    *CARMICHAEL,
    *STRONG_PSEUDOPRIMES,
    *(2**p - 1 for p in (2, 11, 31, 61, 67, 89, 107, 127, 521)),
    *(2 ** (2**k) + 1 for k in range(8)),
    *(2**k + d for k in (31, 32, 62, 63, 64, 65, 128) for d in range(-40, 41)),
    *(p * p for p in (2, 3, 41, 43, 65537, 2**31 - 1, 2**61 - 1)),
    (2**31 - 1) * (2**61 - 1),
    (2**89 - 1) * (2**107 - 1),
    GOLDILOCKS,
    BABYBEAR,
    KOALABEAR,
]


def test_is_prime_of_small_numbers() -> None:
    assert [n for n in range(-50, 5000) if is_prime(n)] == list(sympy.primerange(5000))


@pytest.mark.parametrize("n", SPECIAL)
def test_is_prime_of_special_numbers(n: int) -> None:
    assert is_prime(n) is sympy.isprime(n)


def test_is_prime_of_random_numbers() -> None:
    rng = random.Random(1)
    for bits in (16, 20, 32, 40, 63, 64, 81, 82, 90, 128, 200):
        for _ in range(60):
            n = rng.getrandbits(bits) | 1
            assert is_prime(n) is sympy.isprime(n)
        assert is_prime(int(sympy.nextprime(2**bits)))


def test_is_prime_takes_numpy_ints() -> None:
    assert is_prime(np.int64(2**61 - 1)) and not is_prime(np.uint64(2**64 - 1))
    assert is_prime(np.uint8(251)) and not is_prime(np.int8(-7))


@KINDS
@pytest.mark.parametrize("bits", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_ntt_primes_are_the_largest_ones(n: int, bits: int, kind: Any) -> None:
    order = root_order(n, kind)
    expected = [p for p in sympy.primerange(2 ** (bits - 1), 2**bits) if (p - 1) % order == 0][::-1]
    for count in range(len(expected) + 1):
        assert ntt_primes(n, bits=bits, count=count, kind=kind) == expected[:count]
    with pytest.raises(
        pg.ParameterError, match=rf"count=.* must be at most {len(expected)}, .* primes of {bits} bits"
    ):
        ntt_primes(n, bits=bits, count=len(expected) + 1, kind=kind)


@KINDS
@pytest.mark.parametrize("bits", [6, 8, 11])
@pytest.mark.parametrize("n", [1, 4, 16])
def test_ntt_primes_near_a_number(n: int, bits: int, kind: Any) -> None:
    """Primes alternate above and below the number, nearest first, as in the list of all primes."""
    order = root_order(n, kind)
    for middle in (
        2 ** (bits - 1),
        2**bits - 3,
        2**bits,
        next(p for p in primes_of(2**bits) if p > 2 ** (bits - 1)),
    ):
        every = [p for p in primes_of(2 * middle) if p > middle // 2 and (p - 1) % order == 0]
        above, below = [p for p in every if p >= middle], [p for p in every[::-1] if p < middle]
        turns = [p for pair in zip(above, below, strict=False) for p in pair]
        turns += above[len(below) : len(below) + 1]
        for count in range(len(turns) + 1):
            near = True if middle == 2**bits else middle
            assert ntt_primes(n, bits=bits, count=count, kind=kind, near=near) == turns[:count]
        with pytest.raises(pg.ParameterError, match=f"count=.* must be at most {len(turns)}, .* primes near"):
            ntt_primes(n, bits=bits, count=len(turns) + 1, kind=kind, near=middle)


def primes_of(end: int) -> list[int]:
    return list(sympy.primerange(end))


def test_ntt_primes_with_exclude() -> None:
    every = ntt_primes(64, bits=30, count=8)
    R = Ring(64, every[1:3])
    for exclude in (R, [R], R.moduli, (R, every[1]), np.array(R.moduli), iter(R.moduli)):
        assert ntt_primes(64, bits=30, count=4, exclude=exclude) == [every[0], *every[3:6]]
    assert ntt_primes(64, bits=30, count=3, exclude=[R, every[0], 17, Ring(4, 2**100)]) == every[3:6]
    assert ntt_primes(64, bits=30, count=2, exclude=[]) == every[:2]
    near = ntt_primes(64, bits=30, count=5, near=True)
    assert ntt_primes(64, bits=30, count=3, near=True, exclude=near[0]) == [near[2], near[1], near[4]]
    assert abs(math.prod(near[:4]) / 2**120 - 1) < 1e-4


@KINDS
@pytest.mark.parametrize("bits", [30, 31, 32, 50, 60, 62, 63, 64, 65, 100, 256])
def test_large_ntt_primes(bits: int, kind: Any) -> None:
    order = root_order(1024, kind)
    primes = ntt_primes(1024, bits=bits, count=4, kind=kind)
    assert primes == sorted(set(primes), reverse=True) and len(primes) == 4
    between = range(primes[-1], 2**bits, order)
    assert between[0] % order == 1
    assert [p for p in reversed(between) if sympy.isprime(p)] == primes
    assert all(type(p) is int and p.bit_length() == bits for p in primes)
    assert Ring(1024, primes[0], kind=kind).leaf_size == 1


def test_ntt_primes_takes_numpy_ints() -> None:
    primes = ntt_primes(np.int64(8), bits=np.uint8(30), count=np.int32(2))
    assert primes == ntt_primes(8, bits=30, count=2) and all(type(p) is int for p in primes)


# ---- rings of some limbs, and joined ones ----

CHAIN = ntt_primes(64, bits=30, count=3) + ntt_primes(64, bits=50, count=2)


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        (slice(2), [0, 1]),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -2), [4, 2, 0]),
        ([3, 0], [3, 0]),
        ((-1,), [4]),
        (np.array([1, 2]), [1, 2]),
        (range(5), [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "parameters", [{}, {"kind": "cyclic", "root": "generator"}, {"product": "ntt"}], ids=str
)
def test_indexing_gives_the_ring_of_the_chosen_moduli(key: Any, chosen: Any, parameters: Any) -> None:
    ring = Ring(64, CHAIN, **parameters)
    part, moduli = ring[key], [CHAIN[i] for i in chosen]
    same = Ring(64, moduli, **parameters)
    assert part == same and hash(part) == hash(same) and repr(part) == repr(same)
    assert (part.moduli, part.roots, part.leaf_size) == (same.moduli, same.roots, same.leaf_size)
    assert part.dtype == same.dtype and part.product == same.product
    assert ring[key]._plan is part._plan and pickle.loads(pickle.dumps(part)) == part
    values = [[5, -7, 11], [0, 1 << 40, 3]]
    assert (part(values) * part(values)) == same(values) ** 2


def test_indexing_all_limbs_shares_the_plan() -> None:
    for ring in (Ring(64, CHAIN), Ring(8, 3**100)):
        assert ring[:]._plan is ring[list(range(len(ring.moduli)))]._plan is ring._plan


def test_indexing_and_join_keep_given_roots() -> None:
    roots = [pow(r, 3, q) for r, q in zip(Ring(64, CHAIN).roots or (), CHAIN, strict=True)]
    ring = Ring(64, CHAIN, root=roots)
    assert ring[[4, 1]].roots == (roots[4], roots[1])
    assert ring[:2].join(ring[2:]) == ring
    assert ring[:2].join(Ring(64, CHAIN[2:])).roots == (*roots[:2], *(Ring(64, CHAIN[2:]).roots or ()))


def test_leaf_size_of_indexed_rings() -> None:
    ring = Ring(8, [17, 41])  # X^8 + 1 splits into factors of degree 1 mod 17, of degree 2 mod 41
    assert (ring.leaf_size, ring[:1].leaf_size, ring[1:].leaf_size) == (2, 1, 2)
    given = Ring(8, [17, 41], root=ring.roots)
    assert given[1:].roots == given.roots[1:]  # type: ignore[index]
    with pytest.raises(BadRoot, match=r"leaves of size 2, but .* ends at leaves of size 1"):
        given[:1]
    with pytest.raises(BadRoot, match="join cannot combine the roots"):
        given[1:].join(Ring(8, 17, root=3))
    assert given[1:].join(Ring(8, 15)).roots is None  # without a transform roots mean nothing


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (slice(0), ParameterError, "none of the 5"),
        ([], ParameterError, "none of the 5"),
        ([1, 1], ParameterError, "twice"),
        ([0, -5], ParameterError, "twice"),
        ([5], IndexError, "must be in"),
        ([-6], IndexError, "must be in"),
        (0, ParameterError, r"ring\[:1\]"),
        ("ab", ParameterError, "slice"),
        ({0, 1}, ParameterError, "slice"),  # without an order
        (np.array(1), ParameterError, "slice"),
        (None, ParameterError, "slice"),
        ([1.0], ParameterError, "limbs"),
        ([True], ParameterError, "limbs"),
        ([[0, 1]], ParameterError, "limbs"),
    ],
    ids=str,
)
def test_invalid_limb_index_raises(key: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        Ring(64, CHAIN)[key]
    with pytest.raises(TypeError):
        iter(Ring(64, CHAIN))  # type: ignore[call-overload]


def test_join_of_rings() -> None:
    ring, special = Ring(64, CHAIN[:3]), Ring(64, CHAIN[3:])
    joined = ring.join(special)
    assert joined == Ring(64, CHAIN) and ring.join(special)._plan is joined._plan
    assert joined[:3] == ring and joined[3:] == special
    assert Ring(64, CHAIN[:1], product="ntt").join(special).product == "ntt"
    assert special.join(Ring(64, CHAIN[0], product="ntt")).product == "ntt"
    assert ring.join(Ring(64, 15)).leaf_size is None


@pytest.mark.parametrize(
    ("other", "error", "text"),
    [
        (CHAIN[0], ParameterError, "must be a Ring"),
        (Ring(32, CHAIN[3]), RingMismatch, "degree or kind"),
        (Ring(64, CHAIN[3], kind="cyclic"), RingMismatch, "degree or kind"),
        (Ring(64, CHAIN[:2]), ParameterError, "share the factor"),
        (Ring(64, 3**100), ParameterError, "must be the only one"),
        (Ring(64, CHAIN[3], product="fft"), ParameterError, "Make one of them with product='auto'"),
    ],
    ids=str,
)
def test_invalid_join_raises(other: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        Ring(64, CHAIN[:3], product="ntt").join(other)


def test_tables_are_shared_per_prime() -> None:
    """Parts, joined and single rings share them. Another word, leaf size, kind or root does not."""
    ring = Ring(64, CHAIN)
    tables = ring._plan.transform.tables
    assert ring[1:]._plan.transform.tables == tables[1:]  # they compare by identity
    assert ring[:3][::-1].dtype == np.uint32 and ring[:3]._plan.transform.tables[0] is not tables[0]
    assert Ring(64, CHAIN[4]).join(Ring(64, CHAIN[0]))._plan.transform.tables == (tables[4], tables[0])
    assert Ring(64, CHAIN[4], kind="cyclic")._plan.transform.tables[0] is not tables[4]
    assert Ring(64, CHAIN[4], root="generator")._plan.transform.tables[0].points == 64


def test_indexing_builds_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is built or read, and 30 limbs take less than 50 us."""
    moduli = ntt_primes(1 << 12, bits=50, count=30)
    ring = Ring(1 << 12, moduli)
    (ring.random(seed=1) * 1).ntt()

    def made(*_: Any) -> None:
        raise AssertionError("a table was made")

    seconds = []
    monkeypatch.setattr("polygpu._cpu.fill_twiddles", made)
    for k in range(1, 30):
        began = time.perf_counter()
        part = ring[:k]
        seconds.append(time.perf_counter() - began)
        assert part.random(seed=2).ntt().intt() == part.random(seed=2)
    assert min(seconds) < 50e-6


def test_number_of_cached_parts_is_bounded() -> None:
    ring = Ring(4, ntt_primes(4, bits=20, count=13))
    parts = [weakref.ref(ring[list(pair)]._plan) for pair in itertools.permutations(range(13), 2)]
    gc.collect()
    assert len(parts) == 156 and sum(part() is not None for part in parts) == 128
    assert parts[-1]() is ring[[12, 11]]._plan
