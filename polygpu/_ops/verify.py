"""Checks of results inside `with polygpu.verify()`.

Products are compared at random points or with random vectors, or are computed again in another way. A random
check accepts a wrong result with probability at most 2^-40. Proofs: docs/math.md, "Checked products".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from .._backends import Array, Backend, backend_for, backend_of, host
from .._core.checks import shown
from .._core.exact.crt import ints_to_words
from .._core.exact.primes import is_prime
from .._core.plans.basis import Basis
from .._core.plans.product import FftProductPlan, Plan, plan_fft
from .._core.quotient import Quotient
from .._core.ring_plan import RingPlan, ring_plan
from .._core.value import Value
from ..errors import ParameterError, TablesTooLarge, VerificationError
from .arrays import contiguous, empty, spread
from .pointwise import folded

_BITS = 40  # a wrong result passes a random check with probability at most 2^-_BITS

Multiply = Callable[[Value, Value], Value]  # multiplies values in coefficients, and does not check the result


def check_product(a: Value, b: Value, c: Value, plan: Plan, multiply: Multiply) -> None:
    """Raise VerificationError if c is not a*b. All three are in coefficients.

    plan: the plan by which c was computed. multiply: a function that multiplies without a check.
    """
    ring = a._plan
    if ring.quotient.is_binomial and all(q >= 4 * ring.n and is_prime(q) for q in ring.moduli):
        _check_at_points(a, b, c)
    else:
        check_again(a, b, c, multiply, not isinstance(plan, FftProductPlan))


def _check_at_points(a: Value, b: Value, c: Value) -> None:
    """Compare a*b with c at random points, in host memory.

    If a product is wrong, the values agree at all points with probability at most 2^-40; see _points_needed.
    """
    import secrets  # here and below, so that importing polygpu stays fast

    ring, basis = a._plan, a._plan.basis
    count = max(_points_needed(ring.n, q) for q in ring.moduli)
    at = np.array([[secrets.randbelow(q) for _ in range(count)] for q in ring.moduli], dtype=object)
    points = ints_to_words(at, basis.words)[0] if basis.wide else at.astype(basis.dtype)
    x, y, z = (contiguous(backend_of(v._data).to_host(v._data)) for v in (a, b, c))
    row = host().find_wrong_product(basis, x, y, z, np.ascontiguousarray(points), ring.quotient)
    if row >= 0:
        item, limb = divmod(row, len(ring.moduli))
        raise _wrong(c, item, f"limb {limb}, q={shown(ring.moduli[limb])}, at a random point")


def _points_needed(n: int, q: int) -> int:
    """Return the least count of points with ((n - 1) / q)^count <= 2^-40. It is at most 20 if q >= 4 * n."""
    count = 1
    while (n - 1) ** count << _BITS > q**count:
        count += 1
    return count


def check_again(a: Value, b: Value, c: Value, multiply: Multiply, by_fft: bool) -> None:
    """Compute a*b in another way, and raise VerificationError if c differs. a, b and c are in coefficients.

    For a random s, X^s * a is multiplied by b modulo X^m - 1, a multiple of the ring's polynomial. So the
    transform has another length, and coefficients have other indices. Usually the method differs too.

    by_fft: whether to use an FFT, if one is proven exact.
    """
    import secrets

    ring, n, compute = a._plan, a._plan.n, backend_for(a._plan.basis, c._data)
    multiple = _multiple(ring, by_fft)
    m, join = multiple.n, compute.xp.concatenate
    turn = secrets.choice([s for s in (secrets.randbelow(m) for _ in range(64)) if s % n] or [0])
    with compute.device_scope():
        zeros = [compute.xp.zeros((*x._data.shape[:-1], m - n), x._data.dtype) for x in (a, b)]
        wide_a, wide_b = (join([x._data, y], -1) for x, y in zip((a, b), zeros, strict=True))
        wide_a = join([wide_a[..., m - turn :], wide_a[..., : m - turn]], -1)
        product = multiply(Value(multiple, wide_a, "coef"), Value(multiple, wide_b, "coef"))._data
        product = join([product[..., turn:], product[..., :turn]], -1)
        reduced = folded(ring.basis, product, n, ring.quotient.folding(m))
        right = compute.to_host((reduced == c._data).all(axis=(-2, -1)))
    if not right.all():
        raise _wrong(c, int(np.argmin(right)), "a computation in another way gives another product")


@lru_cache(maxsize=64)
def _multiple(ring: RingPlan, by_fft: bool) -> RingPlan:
    """Return the ring modulo X^m - 1, a multiple of the polynomial of `ring`, with the moduli of `ring`."""
    degree, moduli = ring.quotient.multiple, ring.moduli
    if by_fft and not ring.basis.wide:
        try:
            plan_fft(Quotient("cyclic", degree), moduli)
            return ring_plan(degree, moduli, "cyclic", product="fft")
        except (ParameterError, TablesTooLarge):  # there is no FFT that is proven exact and fits in memory
            pass
    return ring_plan(degree, moduli, "cyclic", product="ntt")


def _wrong(c: Value, item: int, where: str) -> VerificationError:
    at = tuple(int(i) for i in np.unravel_index(item, c._batch)) if c._batch else ()
    return VerificationError(
        f"The product a * b in {c._plan!r} on {backend_of(c._data).name} is wrong"
        + (f" in batch element {at}" if at else "")
        + f" ({where}). The machine or the library erred. Compute the product again inside `with "
        "polygpu.device('reference')`, which multiplies from the definition."
    )


# ---- products of matrices: (a * b) * v = a * (b * v) for random vectors v. Source: Freivalds 1977 ----


def check_matrices(compute: Backend, basis: Basis, a: Array, b: Array, c: Array) -> None:
    """Raise VerificationError if c is not a*b modulo the modulus of `basis`. Shapes: see Backend.matmul."""
    count = _vectors_needed(basis)
    v = compute.from_host(_uniform(basis, (b.shape[2], count))[0][None])

    def times(x: Array, y: Array) -> Array:
        out = empty(compute, (max(len(x), len(y)), x.shape[1], count), basis.dtype)
        compute.matmul(basis, x, y, out)
        return out

    _compare(compute, basis, times(a, times(b, v)), times(c, v))


def check_matrices_of_points(compute: Backend, basis: Basis, a: Array, b: Array, c: Array) -> None:
    """Raise VerificationError if the matrices a*b and c differ at some point. All moduli are primes.

    The arrays have the shapes that Backend.matmul_points takes.
    """
    batch, m, columns, rows, points = c.shape
    count, inner = _vectors_needed(basis), a.shape[2]
    some = np.moveaxis(_uniform(basis, (columns, count, points)), 0, -2)
    v = spread(compute.from_host(np.ascontiguousarray(some))[None], (batch, columns, count, rows, points))

    def times(x: Array, y: Array, height: int) -> Array:
        out = empty(compute, (batch, height, count, rows, points), basis.dtype)
        compute.matmul_points(basis, x, y, out)
        return out

    _compare(compute, basis, times(a, times(b, v, inner), m), times(c, v, m))


def _vectors_needed(basis: Basis) -> int:
    """Return how many random vectors make a test accept a wrong product with probability at most 2^-40.

    A test with one vector accepts a wrong product with probability at most 1/q if q is prime, else at most
    1/2.
    """
    bits = min(q.bit_length() - 1 if is_prime(q) else 1 for q in basis.moduli)
    return -(-_BITS // bits)


def _uniform(basis: Basis, shape: tuple[int, ...]) -> Array:
    """Return uniform random residues (limbs, *shape)."""
    import secrets

    source = np.random.default_rng(secrets.randbits(128))
    rows: list[Any] = [source.integers(0, q - 1, shape, np.uint64, endpoint=True) for q in basis.moduli]
    return np.stack(rows).astype(basis.dtype)


def _compare(compute: Backend, basis: Basis, left: Array, right: Array) -> None:
    with compute.device_scope():
        same = bool((left == right).all())
    if not same:
        raise VerificationError(
            f"The product of matrices modulo {shown(list(basis.moduli))} on {compute.name} gives a wrong "
            "result for a random vector. The machine or the library erred. Compute the product again inside "
            "`with polygpu.device('reference')`, which multiplies from the definition."
        )
