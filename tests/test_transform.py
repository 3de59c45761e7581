"""Transforms: every word, size and number of layers, their order, in place."""

from __future__ import annotations

import numpy as np
from devices import (
    shares_memory,
)
from oracle import check, draw, every_transform, everywhere, leaf_points, ring, value_at

from polygpu import Ring


@every_transform
def test_transforms_in_place_and_into_out(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a, out = R(x), R.ones(2)
    expected = a.ntt().data.tolist()
    assert a.ntt(out=out) is out
    assert out.domain == "eval" and out.data.tolist() == expected
    check(a, x)
    assert out.intt(out=out) is out
    check(out, x)
    assert a.ntt(out=a) is a
    assert a.domain == "eval" and a.data.tolist() == expected
    again = R.ones(2)
    assert a.ntt(out=again) is again  # there already: a copy
    assert again.domain == "eval" and again.data.tolist() == expected
    assert a.ntt() is a and R(x).intt().domain == "coef"


@every_transform
def test_evaluation_order_is_the_contract(name: str) -> None:
    """Leaf k of a limb is a mod X^base - x_k, x_k = psi^(2 br(k) + 1) or omega^br(k)."""
    R = ring(name)
    x = draw(R, (2,))
    base = R.leaf_size
    data = R(x).ntt().to_residue_ints()
    for i in range(2):
        for limb, q in enumerate(R.moduli):
            row = data[i] if len(R.moduli) != R.rows else data[i, limb]
            expected = [
                value_at(x[i][r::base], point, q) for point in leaf_points(R, limb) for r in range(base)
            ]
            assert row.tolist() == expected


@every_transform
def test_eval_points_and_natural_order(name: str) -> None:
    R = ring(name)
    points = R.n // R.leaf_size
    order = R.natural_order()
    assert sorted(order.tolist()) == list(range(points))
    for limb in range(len(R.moduli)):
        assert type(R.eval_points(limb)) is np.ndarray  # whatever the device is
        assert R.eval_points(limb).tolist() == leaf_points(R, limb)
        assert R.eval_points(limb)[order].tolist() == leaf_points(R, limb, natural=True)


@every_transform
def test_natural_order_of_residues(name: str) -> None:
    """Entry k is a(psi^(2k+1)) or a(omega^k); leaves of several coefficients stay together."""
    R = ring(name)
    x = draw(R, (2,))
    base = R.leaf_size
    natural = R(x).natural_order()
    assert natural.shape == (2, R.rows, R.n)
    rows = R.from_residues(natural).to_residue_ints().reshape(2, len(R.moduli), R.n)
    for i in range(2):
        for limb, q in enumerate(R.moduli):
            assert rows[i, limb].tolist() == [
                value_at(x[i][r::base], point, q)
                for point in leaf_points(R, limb, natural=True)
                for r in range(base)
            ]


@everywhere
def test_natural_order_is_a_copy() -> None:
    a = Ring(1, 17)([5]).ntt()
    assert not shares_memory(a.natural_order(), a.data)
