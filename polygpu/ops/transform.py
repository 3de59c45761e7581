"""The transform: from coefficients to the evaluation domain and back, its points and orders."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends import Array, backend_for, backend_of, host
from ..checks import Domain, integer, shown
from ..errors import ParameterError
from ..plans.permutation import bit_reversal
from ..reporting import LONG, reporting
from .batch import in_pieces, result_array
from .calls import remember
from .integers import from_integers, residue_ints

if TYPE_CHECKING:
    from ..ring import Ring

_LONG_WIDE = 1 << 14  # words from which on a transform of a wide modulus, in Python, is long work: some 10 ms


def to_domain(ring: Ring, x: Array, source: Domain, target: Domain, out: Array | None = None) -> Array:
    """Elements in the target domain; x itself if that is its domain and `out` is None.

    Raises:
        NotNTTFriendly: the ring has no evaluation domain.
    """
    if source == target and out is None:
        return x
    key = target, type(x), x.shape
    if source != target and (call := ring.calls.get(key)) and (data := call(x, None, out)) is not None:
        return data  # type: ignore[no-any-return]
    compute = backend_for(ring.basis, x)
    if source == target:
        data = result_array(compute, x.shape, out, x)
        with compute.device_scope():
            data[...] = x
        return data
    plan = ring.transform
    data = result_array(compute, x.shape, out, x)
    run = partial(compute.ntt if target == "eval" else compute.intt, plan)
    if compute.xp is np and x.size >= (_LONG_WIDE if ring.basis.wide else LONG):
        if reporting() is None:
            run(x, data)
        else:
            what = "transform" if target == "eval" else "inverse transform"
            in_pieces(what + " of {}", len(ring.moduli), run, data, x)
        return data
    remember(ring.calls, key, compute, run(x, data), data)
    return data


def natural_order(ring: Ring, x: Array) -> Array:
    """A copy of evaluated residues in natural order; the coefficients of a leaf stay together."""
    plan, compute = ring.transform, backend_of(x)
    leaves = x.reshape(*x.shape[:-1], plan.points, plan.leaf_size)
    order = compute.constant(bit_reversal(plan.points))
    with compute.device_scope():
        return leaves[..., order, :].reshape(x.shape)


def eval_points(ring: Ring, limb: int) -> np.ndarray[Any, np.dtype[Any]]:
    """The point of each entry of a limb, or c of each leaf X^m - c, by a transform of X^m, m = leaf size."""
    if not 0 <= integer(limb, "limb") < len(ring.moduli):
        raise ParameterError(f"limb: {shown(limb)} must be in [0, {len(ring.moduli)})")
    basis, n, leaf_size = ring.basis, ring.n, ring.transform.leaf_size
    wrapped = 1 if ring.kind == "cyclic" else -1  # X^n as a number
    power = [0] * leaf_size + [1] if leaf_size < n else [wrapped]
    x = to_domain(ring, from_integers(basis, n, power, host()), "coef", "eval")
    points = residue_ints(basis, x) if basis.wide else x[limb]
    return points[..., ::leaf_size].copy()
