"""The transform from coefficients to the evaluation domain and back, and the points of the transform."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from .._backends import Array, backend_for, backend_of, host
from .._core.checks import Domain, integer, shown
from .._core.plans.permutation import natural_order as order_of_points
from .._core.reporting import LONG, reporting
from .._core.ring_plan import RingPlan
from .._core.value import V, Value
from ..errors import ParameterError
from .arrays import empty
from .batch import in_pieces
from .calls import device_of, record, repeated
from .integers import monomial, to_residue_ints
from .results import result_array

_LONG_WIDE = 1 << 14  # words; for q > 2^64, transforms of this many take about 10 ms and report progress


def ntt(x: V, out: Array | None = None) -> V:
    """Return the value in the evaluation domain; x itself if it is evaluated already and `out` is None.

    Raises:
        NotNTTFriendly: the ring has no evaluation domain.
    """
    return to_domain(x, "eval", out)


def intt(x: V, out: Array | None = None) -> V:
    """Return the value in coefficients. If x is in coefficients and `out` is None, return x itself."""
    return to_domain(x, "coef", out)


def to_domain(x: V, domain: Domain, out: Array | None = None) -> V:
    """Return ntt(x, out) or intt(x, out)."""
    ring, data = x._plan, x._data
    if x._domain == domain:
        return x if out is None else copy(x, out=out)
    key = domain, None if type(data) is ndarray else device_of(data), data is out, data.shape
    if (replay := ring.calls.get(key)) and (made := replay((data,), out)) is not None:
        return x._with(made, domain)
    compute, plan = backend_for(ring.basis, data), ring.transform

    def work() -> Array:
        made = result_array(compute, data.shape, out, data)
        run = partial(compute.ntt if domain == "eval" else compute.intt, plan)
        long = compute.xp is np and data.size >= (_LONG_WIDE if ring.basis.wide else LONG)
        if long and reporting() is not None:
            what = "transform" if domain == "eval" else "inverse transform"
            in_pieces(what + " of {}", len(ring.moduli), run, made, data)
        else:
            run(data, made)
        return made

    return x._with(record(ring.calls, key, compute, work, (data,), out), domain)


@repeated
def copy(x: V, *, out: Array | None = None) -> V:
    """Return a copy of x, in `out` if it is given."""
    compute = backend_of(x._data)
    data = result_array(compute, x._data.shape, out, x._data)
    compute.copy(x._data, data)
    return x._with(data)


def aligned(*values: V) -> tuple[V, ...]:
    """Return values of one ring in one domain: unchanged if their domains agree, otherwise evaluated."""
    return values if len({x._domain for x in values}) == 1 else tuple(map(ntt, values))


@repeated
def natural_order(x: Value, *, out: None = None) -> Array:
    """Return a copy of evaluated residues in natural order: the exponents of the points ascend.

    The coefficients of a leaf stay together.
    """
    plan, data, compute = x._plan.transform, x._data, backend_of(x._data)
    natural = empty(compute, data.shape, data.dtype)
    compute.take(data, compute.constant(order_of_points(plan.leaves, plan.leaf_size)), natural)
    return natural


def eval_points(ring: RingPlan, limb: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return c for each leaf X^m - c of a limb. m is the leaf size.

    If the transform is complete, m is 1, and each c is an evaluation point. The result is computed as the
    transform of X^m.
    """
    if not 0 <= integer(limb, "limb") < len(ring.moduli):
        raise ParameterError(f"limb={shown(limb)} must be in [0, {len(ring.moduli)}).")
    basis, leaf_size = ring.basis, ring.transform.leaf_size
    power = monomial(basis, ring.n, 1, ring.quotient.power_of_x(leaf_size), host())
    data = ntt(Value(ring, power, "coef"))._data
    points = to_residue_ints(basis, data) if basis.wide else data[limb]
    return points[..., ::leaf_size].copy()
