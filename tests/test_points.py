"""Values at points, against Python ints and python-flint."""

from __future__ import annotations

from typing import Any

import flint
import numpy as np
import pytest
from devices import HOST, backend, on, sized, there
from hypothesis import given
from hypothesis import strategies as st
from oracle import draw, every_ring, ring, value_at

import polygpu as pg
from polygpu import Ring, ntt_primes
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans.basis import basis_of
from polygpu._ops import points
from polygpu.testing import polys, rings


@every_ring
def test_values_at_edge_points(name: str) -> None:
    R, batch = ring(name), (2,)
    q, x = R.modulus, draw(ring(name), (2,), 5)
    at = [0, 1, -1, q - 1, q, q + 2, -(q**2) - 3, 2**64 - 1, R.moduli[-1], 5]
    a = R(x)
    for value in (a, a.ntt()) if R.has_eval else (a,):
        got = value(at)
        assert got.shape == (*batch, len(at)) and got.dtype == object
        assert [[value_at(row, p, q) for p in at] for row in x] == got.tolist()
        assert all(type(v) is int for v in got.flat)


@on(*HOST, "simulated", "cuda")
def test_shapes_of_points_and_batches(device: str) -> None:
    R = Ring(6, [17, 97])
    x = draw(R, (2, 3))
    a = R(x)
    at = np.array([[3, -4], [5, 2**40]])
    got = a(at)
    assert got.shape == (2, 3, 2, 2)
    for i in np.ndindex(2, 3):
        assert got[i].tolist() == [[value_at(x[i], int(p), R.modulus) for p in row] for row in at]
    single = a[0, 0]
    assert type(single(7)) is int and single(7) == value_at(x[0, 0], 7, R.modulus)
    assert single(np.uint8(7)) == single(7) == single(np.array(7, dtype=object))
    assert a([]).shape == (2, 3, 0) and a[:0](3).shape == (0, 3)
    assert a(there(at)).tolist() == got.tolist()


@sized(
    "n",
    cpu=[1, 2, 3, 63, 64, 65, 1000, 4096],
    reference=[1, 17],
    simulated=[1, 5, 64],
    cuda=[1, 1000, 4096],
)
@pytest.mark.parametrize(
    "moduli", [97, 2**32 - 5, 2**62, 2**62 + 135, 2**64, 2**64 - 59, [97, 2**40 - 87, 2**63 - 25], 2**100 + 7]
)
def test_values_in_rings_of_every_degree(device: str, n: int, moduli: Any) -> None:
    """Moduli up to 2^64 use matrices, wider ones divide and conquer, against python-flint."""
    R = Ring(n, moduli, kind="cyclic")
    x = draw(R, (2,), 1)
    at = [2, R.modulus - 2, 12345678901234567890]
    context = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(R.modulus))
    expected = [[int(context([int(v) for v in row])(p % R.modulus)) for p in at] for row in x]
    assert R(x)(at).tolist() == expected


@pytest.mark.parametrize("q", [ntt_primes(64, bits=30)[0], 2**63 - 25])
def test_values_at_many_points_in_chunks(q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "_CHUNK", 1000)
    R = Ring(64, q)
    a, at = R.random(3, seed=1), list(range(200))
    context = flint.nmod_poly
    expected = [[int(context([int(v) for v in row], q)(p)) for p in at] for row in a.to_bigints()]
    assert a(at).tolist() == expected


@given(data=st.data())
def test_evaluation_at_roots_is_a_homomorphism(data: Any) -> None:
    """At a root of X^n ± 1, the value of a product is the product of values."""
    R = data.draw(rings(max_degree=64, transform=True, max_bits=64))
    a, b = (data.draw(polys(R, batch=())) for _ in range(2))
    limb = data.draw(st.integers(0, len(R.moduli) - 1))
    q, r = R.moduli[limb], int(R.eval_points(limb)[data.draw(st.integers(0, R.n - 1))])
    assert a(r) * b(r) % q == (a * b)(r) % q
    assert (a + b)(r) == (a(r) + b(r)) % R.modulus


def test_evaluation_does_not_change_operands() -> None:
    a, at = Ring(8, 97)(range(8)), np.arange(5)
    before = a.data.copy()
    a(at)
    assert (a.data == before).all() and at.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [np.array([1.5]), np.array([True]), [None], "7", np.array([1j])])
def test_points_that_are_not_integers_raise(at: Any) -> None:
    with pytest.raises(pg.ParameterError, match=r"x=.* must be an int"):
        Ring(4, 17)([1, 2])(at)


@sized(
    "n, items, pairs",
    cpu=[(1, 1, 1), (3, 2, 1), (511, 4, 2), (513, 3, 3), (4096, 2, 1), (0, 1, 1), (8, 0, 1)],
    reference=[(5, 4, 2)],
    simulated=[(1, 1, 1), (7, 6, 3), (256, 2, 1), (1028, 4, 2), (8192, 2, 2), (0, 1, 1), (8, 0, 1)],
    cuda=[(1, 1, 1), (513, 3, 3), (4096, 64, 2), (2**16, 2, 1)],
)
@pytest.mark.parametrize(
    "moduli",
    [
        (2,),
        (97,),
        (2**31 - 1, 2**32 - 5),
        (2**50 - 27, 2**62 - 57),
        (GOLDILOCKS,),
        (GOLDILOCKS, 3),
        (2**64,),
        (2**64 - 59, 3),
    ],
)
def test_scale_by_powers(device: str, n: int, items: int, pairs: int, moduli: tuple[int, ...]) -> None:
    """Entry j is multiplied by first step^j. Items use the pairs in turn, also in place."""
    basis = basis_of(moduli)
    rng = np.random.default_rng(n + items)

    def residues(*shape: int) -> Any:
        rows = [
            [[int(v) % q for v in rng.integers(0, 2**63, shape[-1]) * 2 + 1] for q in moduli]
            for _ in range(shape[0])
        ]
        return np.array(rows, object).reshape(*shape[:1], len(moduli), shape[-1])

    x, first, step = residues(items, n), residues(pairs, 1), residues(pairs, 1)
    for limb, q in enumerate(moduli):
        x[:1, limb, :1], first[0, limb], step[0, limb] = q - 1, q - 1, q - 1
    expected = [
        [
            [
                int(v) * int(first[i % pairs, k, 0]) * pow(int(step[i % pairs, k, 0]), j, q) % q
                for j, v in enumerate(row)
            ]
            for k, (q, row) in enumerate(zip(moduli, item, strict=True))
        ]
        for i, item in enumerate(x)
    ]
    arrays = [there(v.astype(basis.dtype)) for v in (x, first, step)]
    out = there(np.zeros(x.shape, basis.dtype))
    backend().scale_by_powers(basis, *arrays, out)
    assert backend().to_host(out).tolist() == expected
    backend().scale_by_powers(basis, *arrays, arrays[0])
    assert backend().to_host(arrays[0]).tolist() == expected


@sized(
    "rows, n, runs",
    cpu=[(4, 16, 4), (3, 64, 1)],
    reference=[(2, 8, 4)],
    simulated=[(4, 16, 4), (3, 64, 1), (2, 4096, 8), (2, 12, 3)],
    cuda=[(4, 16, 4), (512, 4096, 8)],
)
@pytest.mark.parametrize("q", [97, GOLDILOCKS, 2**60 - 93])
def test_scale_by_powers_of_strided_rows(device: str, rows: int, n: int, runs: int, q: int) -> None:
    """Source rows, target rows and runs have gaps, and results may be in place."""
    basis = basis_of((q,))
    rng = np.random.default_rng(n)

    def residues(*shape: int) -> Any:
        return there(rng.integers(0, q, shape, np.uint64).astype(basis.dtype))

    wide, first, step = residues(rows, 1, n + 16), residues(rows, 1, 1), residues(rows, 1, 1)
    x, before = wide[..., 8 : n + 8], backend().to_host(wide).copy()
    factors = zip(
        backend().to_host(first).ravel().tolist(), backend().to_host(step).ravel().tolist(), strict=True
    )
    expected = [
        [v * a * pow(b, j, q) % q for j, v in enumerate(row)]
        for row, (a, b) in zip(before[:, 0, 8 : n + 8].tolist(), factors, strict=True)
    ]
    apart = there(np.zeros((rows, 1, n + 4), basis.dtype))
    backend().scale_by_powers(basis, x, first, step, apart[..., :n])
    found = backend().to_host(apart)
    assert found[:, 0, :n].tolist() == expected and not found[..., n:].any()
    if n % runs == 0 and n // runs & (n // runs - 1) == 0:
        slices = there(np.zeros((runs, rows, n // runs), basis.dtype))
        backend().scale_by_powers(basis, x, first, step, slices.transpose(1, 0, 2)[:, None])
        assert np.concatenate(list(backend().to_host(slices)), -1).tolist() == expected
    assert (backend().to_host(wide) == before).all()
    backend().scale_by_powers(basis, x, first, step, x)
    found = backend().to_host(wide)
    assert found[:, 0, 8 : n + 8].tolist() == expected
    assert (found[..., :8] == before[..., :8]).all() and (found[..., n + 8 :] == before[..., n + 8 :]).all()
