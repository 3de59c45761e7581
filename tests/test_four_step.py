"""Parts of the four-step transform, against whole transforms and values at points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import backend, sized, there

import polygpu as pg
from polygpu import Ring
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans.four_step import plan_four_step
from polygpu._ops import four_step

MODULI = {
    "30 bits": (998244353,),
    "31 bits": (2013265921,),
    "32 bits": (3221225473,),
    "50 bits": (1125899846025217,),
    "three limbs": (1152921504577486849, 998244353, 1125899846025217),
    "60 and 63 bits": (1152921504577486849, 9223372036752015361),
    "Goldilocks": (GOLDILOCKS,),
}


def parts(x: Any, axis: int, size: int) -> list[Any]:
    """Copies of `size` neighbours each along an axis."""
    return [there(p.copy()) for p in np.split(x, range(size, x.shape[axis], size), axis)]


def joined(pieces: list[Any], axis: int) -> Any:
    return np.concatenate([backend().to_host(p) for p in pieces], axis)


@sized(
    "height, width, columns, rows",
    cpu=[(1, 8, 2, 1), (8, 1, 1, 3), (2, 4, 4, 2), (16, 64, 16, 5), (64, 32, 32, 64), (128, 128, 8, 16)],
    reference=[(4, 8, 2, 3)],
    simulated=[(1, 8, 2, 1), (8, 1, 1, 3), (16, 64, 16, 5), (64, 32, 32, 16)],
    cuda=[(16, 64, 32, 5), (1024, 1024, 256, 128), (2048, 512, 512, 2048)],
)
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("name", MODULI)
def test_parts_of_a_transform_match_the_whole(
    device: str, name: str, kind: Any, height: int, width: int, columns: int, rows: int
) -> None:
    ring = Ring(height * width, MODULI[name], kind=kind, root="generator")
    assert ring.roots is not None and ring.leaf_size == 1
    a = ring.random((2,), seed=height)
    plan = plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, height)
    matrix = (2, ring.rows, height, width)
    coefficients = a.cpu().data.reshape(matrix)
    evaluated = a.ntt().cpu().data.reshape(matrix)

    pieces = parts(coefficients, -1, columns)
    for i, x in enumerate(pieces):
        four_step.forward_columns(plan, x, i * columns)
    between = joined(pieces, -1)
    pieces = parts(between, -2, rows)
    for x in pieces:
        four_step.forward_rows(plan, x)
    assert (joined(pieces, -2) == evaluated).all()

    for x in pieces:
        four_step.inverse_rows(plan, x)
    assert (joined(pieces, -2) == between).all()
    pieces = parts(between, -1, columns)
    for i, x in enumerate(pieces):
        four_step.inverse_columns(plan, x, i * columns)
    assert (joined(pieces, -1) == coefficients).all()


def test_entries_match_horner() -> None:
    """Entry (i, k) is a(psi^(2 br(i width + k) + 1)), by Horner's rule in Python ints."""
    q, height, width = 114689, 8, 16
    ring = Ring(height * width, q)
    assert ring.roots is not None
    a = ring.random(seed=1)
    plan = plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, height)
    x = a.data.reshape(1, height, width).copy()
    four_step.forward_columns(plan, x, 0)
    four_step.forward_rows(plan, x)
    bits = ring.n.bit_length() - 1
    for k, value in enumerate(x.ravel().tolist()):
        point = pow(ring.roots[0], 2 * int(f"{k:0{bits}b}"[::-1], 2) + 1, q)
        expected = 0
        for c in reversed(a.data[0].tolist()):
            expected = (expected * point + c) % q
        assert value == expected


def test_plans_are_shared() -> None:
    ring = pg.Ring(64, 114689)
    assert ring.roots is not None
    one = plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, 8)
    assert one is plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, 8) and one.degree == 64
    assert one.rows(0) is one.rows(0) and one.columns(0, 4) is one.columns(0, 4)
