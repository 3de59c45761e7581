"""Linear combinations of values with integers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from devices import Work, on, over
from oracle import (
    DOMAINS,
    FEW,
    RINGS,
    RNS,
    chain,
    check,
    draw,
    every_ring,
    everywhere,
    few_rings,
    few_transforms,
    in_domain,
    padded,
    ring,
)

import polygpu as pg
from polygpu import Ring

EDGES = [0, 1, -1, 2**63, -(2**63), 2**64, -(3**100), 2**200 + 1]


def combined(R: Ring, ints: Any, values: list[np.ndarray], constant: Any = 0) -> np.ndarray:
    """Sum the multiples in Python ints."""
    ints = np.array(ints, object)
    values = np.broadcast_arrays(*values)
    out = np.zeros((*ints.shape[:-1], *values[0].shape), object)
    for at in np.ndindex(ints.shape[:-1]):
        for k, x in zip(ints[at], values, strict=True):
            out[at] += int(k) * x
    out[..., 0] += np.broadcast_to(np.array(constant, object), out.shape[:-1])
    return out % R.modulus


def drawn_ints(rng: random.Random, R: Ring, shape: tuple[int, ...]) -> np.ndarray:
    """Draw ints of any size, many of them at edges."""
    ints = np.empty(int(np.prod(shape)), object)
    for i in range(len(ints)):
        edges = [*EDGES, R.modulus - 1, R.modulus, R.modulus // 2]
        ints[i] = rng.choice(edges) if rng.random() < 0.3 else rng.randrange(-(2**130), 2**130)
    return ints.reshape(shape)


SHAPES: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = [
    ((), [()]),
    ((), [(), ()]),
    ((3,), [(), (), ()]),
    ((), [(2,), (1,), ()]),
    ((2,), [(3,), (2, 1)]),
    ((2, 3), [(2,), (2,)]),
    ((1,), [(1, 1)]),
    ((0,), [(2,), ()]),
    ((2,), [(0,), (1,)]),
    ((2, 0), [(3, 0, 1), (1, 1, 2)]),
]


@pytest.mark.parametrize(("lead", "batches"), SHAPES, ids=str)
@few_rings
def test_combine_of_batches(name: str, lead: Any, batches: Any) -> None:
    R, rng = ring(name), random.Random(f"{name} {lead} {batches}")
    values = [draw(R, batch, i) for i, batch in enumerate(batches)]
    ints = drawn_ints(rng, R, (*lead, len(batches)))
    batch = (*lead, *np.broadcast_shapes(*batches))
    for domain in ("coef", "eval") if R.has_eval else ("coef",):
        polys = [in_domain(R(x), domain) for x in values]
        check(pg.combine(ints, polys), combined(R, ints, values), domain)
        check(pg.combine(ints, tuple(polys), constant=-5), combined(R, ints, values, -5), domain)
        constant = drawn_ints(rng, R, batch)
        check(pg.combine(ints, polys, constant=constant), combined(R, ints, values, constant), domain)


@over(RINGS, devices=["cpu"])
def test_combine_of_random_values(name: str) -> None:
    """There are 10,120 calls, 220 in each ring."""
    R, rng = ring(name), random.Random(name)
    largest = R.from_residues(np.broadcast_to(R([-1]).data[..., :1], (R.rows, R.n)).copy())
    pool = [draw(R, batch, i) for i, batch in enumerate([(), (), (2,), (1,), (2, 1), (3, 1, 1)])]
    pool.append(largest.to_bigints())
    domains = ["coef", "eval"] if R.has_eval else ["coef"]
    polys = {d: [in_domain(R(x), d) for x in pool] for d in domains}
    for _ in range(220):
        chosen = [rng.randrange(len(pool)) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
        domain, lead = rng.choice(domains), rng.choice([(), (), (1,), (2,), (2, 1)])
        ints, constant = drawn_ints(rng, R, (*lead, len(chosen))), rng.choice([0, 7, -(2**90)])
        values = [polys[domain][i] for i in chosen]
        if domain == "eval" and rng.random() < 0.2:
            values[0] = polys["coef"][chosen[0]]
            domain = "eval" if len(values) > 1 else "coef"
        expected = combined(R, ints, [pool[i] for i in chosen], constant)
        check(pg.combine(ints, values, constant=constant), expected, domain)


@pytest.mark.parametrize("terms", [1, 2, 6, 7, 8, 9, 14, 15, 16, 17, 40])
@pytest.mark.parametrize("bits", [5, 20, 30, 31, 32, 46, 49, 50, 51, 60, 62, 63, 64])
def test_combine_of_the_longest_sums_of_largest_values(bits: int, terms: int, each_isa: str) -> None:
    """All residues and factors are q - 1, or next to q / 2, where centred factors are largest."""
    n = 37
    moduli = [2**bits - 1, 2**bits, 2 ** (bits - 1) + 1]
    for q in moduli:
        R = Ring(n, q) if bits < 33 else Ring(n, [q, 2**33 - 9 if q % (2**33 - 9) else 3])
        for x in (q - 1, q // 2, q // 2 + 1, 0):
            values = [np.full(n, x, object)] * terms
            for k in (q - 1, q // 2, q // 2 + 1):
                check(pg.combine([k] * terms, [R(values[0])] * terms), combined(R, [k] * terms, values))


@pytest.mark.parametrize("q", [2, 3, 4, 5, 15, 16, 17, 31])
def test_combine_with_small_and_large_moduli(q: int, each_isa: str) -> None:
    """Moduli below 16 are not summed in doubles."""
    R = Ring(40, [q, 2**50 - 27])
    values = [draw(R, (), i) for i in range(9)]
    ints = [[R.modulus - 1 - i for i in range(9)], list(range(9))]
    check(pg.combine(ints, [R(x) for x in values]), combined(R, ints, values))


def test_combine_of_long_rows(threads: Any, each_isa: str) -> None:
    R = Ring(5000, [2**50 - 27, 97, 2**63])
    values = [draw(R, batch, i) for i, batch in enumerate([(2,), (), (1,)])]
    ints = [[1, -2, 3], [2**100, 5, -6]]
    for count in (1, 3):
        threads(count)
        polys = [R(x) for x in values]
        check(pg.combine(ints, polys, constant=[[1], [2]]), combined(R, ints, values, [[1], [2]]))


@pytest.mark.parametrize(("left", "right", "domain"), DOMAINS)
@few_transforms
def test_combine_of_domains(name: str, left: str, right: str, domain: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (), 2)
    polys = [in_domain(R(x), left), in_domain(R(y), right)]
    check(pg.combine([3, -(2**70)], polys, constant=11), combined(R, [3, -(2**70)], [x, y], 11), domain)


@every_ring
def test_combine_in_every_ring(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (), 2)
    x[0] = R.modulus - 1
    ints = [[R.modulus - 1, 2**64], [-1, R.modulus // 2]]
    check(pg.combine(ints, [R(x), R(y)], constant=R.modulus - 1), combined(R, ints, [x, y], R.modulus - 1))


@over([*FEW, "1 layer early, RNS", "Goldilocks", "2^64"], FEW)
def test_combine_with_constants_per_result(name: str) -> None:
    """Constants are added in either domain, in rings with incomplete transforms, and to ciphertexts."""
    R = ring(name)
    x = draw(R, (3, 2))
    constant = np.array([[[5, 0]], [[-(2**99), 0]]], object)
    for domain in ("coef", "eval") if R.has_eval else ("coef",):
        a = in_domain(R(x), domain)
        found = pg.combine([[2], [3]], [a], constant=constant)
        check(found, combined(R, [[2], [3]], [x], constant), domain)
        check(pg.combine([1], [a], constant=9), (x + padded(R, [9])) % R.modulus, domain)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64, object])
@everywhere
def test_combine_with_ints_of_every_dtype(dtype: Any) -> None:
    x = draw(RNS, (2,))
    info = np.iinfo(np.int64 if dtype is object else dtype)
    ints = np.array([[info.max, info.min]], dtype)
    check(pg.combine(ints, [RNS(x)] * 2), combined(RNS, ints, [x, x]))
    check(pg.combine(ints.T[::-1].T, [RNS(x)] * 2), combined(RNS, ints[:, ::-1], [x, x]))


@everywhere
def test_combine_of_the_entries_of_one_poly() -> None:
    x = draw(RNS, (3, 2))
    check(pg.combine([1, -2, 3], RNS(x)), combined(RNS, [1, -2, 3], list(x)))


@few_rings
def test_combine_into_out_and_in_place(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    expected = combined(R, [5, -(2**80)], [x, y], 3)
    for domain in ("coef", "eval") if R.has_eval else ("coef",):
        for _ in range(3):
            out = R.zeros(2)
            a, b = in_domain(R(x), domain), in_domain(R(y), domain)
            assert pg.combine([5, -(2**80)], [a, b], constant=3, out=out) is out
            check(out, expected, domain)
            for over_ in (a, b):
                a, b = in_domain(R(x), domain), in_domain(R(y), domain)
                over_ = a if over_ is a else b
                pg.combine([5, -(2**80)], [a, b], constant=3, out=over_)
                check(over_, expected, domain)
            both = in_domain(R(x), domain)
            pg.combine([[5, 6]], [both, both], out=(out := R.zeros((1, 2))))
            check(out, combined(R, [[5, 6]], [x, x]), domain)
            pg.combine([5, 6], [both, both], out=both)
            check(both, combined(R, [5, 6], [x, x]), domain)


@on("cpu", "simulated")
def test_combine_with_many_batch_axes() -> None:
    R = ring("30 bits")
    x, y = draw(R, (1, 2, 1, 2, 1, 2, 1), 1), draw(R, (2,), 2)
    ints = [[1, 2], [3, -4]]
    check(pg.combine(ints, [R(x), R(y)], constant=1), combined(R, ints, [x, y], 1))


@on("cpu", "simulated")
def test_combine_of_many_values() -> None:
    """Calls with more than 12 values are not cached, and more than 8 values take several launches."""
    R = ring("50 bits")
    values = [draw(R, (), i) for i in range(20)]
    for count in (1, 12, 13, 20):
        for k in (1, 2, 3):
            ints = [[k * i for i in range(count)], [-i for i in range(count)]]
            found = pg.combine(ints, [R(x) for x in values[:count]], constant=[k, 2])
            check(found, combined(R, ints, values[:count], [k, 2]))


@on("simulated")
def test_combine_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    R = chain(16, (50, 30, 60))
    a, b = (R(draw(R, (2,), i)).ntt() for i in (1, 2))
    for k in (1, 2, 3):
        kernels, *_ = work.of(lambda k=k: pg.combine([[k, 2], [3, 4]], [a, b], constant=k))  # type: ignore[misc]
        assert kernels == ["combine"]
    kernels, *_ = work.of(lambda: pg.combine([[1, 2], [3, 4]], [a, b], ring=R[:2]))
    assert kernels == ["combine"]


# ---- modulo some limbs ----


@everywhere
def test_combine_modulo_some_limbs() -> None:
    W = chain(16, (30, 20, 29, 60))
    N = W[:3]
    narrow = Ring(16, N.moduli)
    x, y = draw(W, (2,), 1), draw(narrow, (), 2)
    for S in (W[:2], W[[1, 0]], W[1:3], narrow[:2], narrow[[2, 0]]):
        expected = combined(S, [[3, -(2**70)], [1, 1]], [x, y], 4)
        for domain in ("coef", "eval"):
            polys = [in_domain(W(x), domain), in_domain(narrow(y), domain)]
            for _ in range(3):
                found = pg.combine([[3, -(2**70)], [1, 1]], polys, constant=4, ring=S)
                assert found.ring == S
                check(found, expected, domain)
