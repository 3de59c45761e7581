"""One modulus above 2^64: computed in host memory, wherever its values lie.

The core has pointwise operations, permutations, reductions and products of polynomials modulo a wide modulus.
It has no transforms, which are done in Python integers here. A value on a GPU is copied to the host and the
result back, which waits for the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from .._core.exact.crt import ints_to_words, reduce_ints, words_to_ints
from .._core.plans.basis import Basis
from .._core.plans.ntt import NttPlan
from .._core.plans.product import Plan
from .._core.plans.sampling import Sampler
from .._core.quotient import Quotient
from . import Array, Memory, Op, get_backend
from .host_records import note_foreign

# Methods that work in Python, at least for some plans: a call that calls them has no record.
_IN_PYTHON = frozenset(("ntt", "intt", "multiply_eval", "reduce_integers"))

Method = TypeVar("Method", bound=Callable[..., Any])


def _on_host(method: Method) -> Method:
    """A method whose arrays are in host memory, copied there if need be; the last one is the result."""

    @wraps(method)
    def call(self: WideArithmetic, *args: Any) -> Any:
        if self.xp is np:
            if method.__name__ in _IN_PYTHON:
                note_foreign()
            return method(self, *args)
        *operands, out = args
        result = np.empty(out.shape, out.dtype)
        copies = (self.to_host(x) if isinstance(x, self.xp.ndarray) else x for x in operands)
        returned = method(self, *copies, result)
        out.set(result)
        return returned

    return cast(Method, call)


class WideArithmetic:
    """The operations modulo wide moduli, on the arrays of a device."""

    def __init__(self, home: Memory) -> None:
        self.name, self.xp = home.name, home.xp
        self.to_host, self.from_host, self.constant = home.to_host, home.from_host, home.constant
        self.address, self.device_scope, self.capture = home.address, home.device_scope, home.capture
        self.empty, self.copy, self.take = home.empty, home.copy, home.take
        self.observe, self.gather, self.scatter = home.observe, home.gather, home.scatter
        self.is_recording = home.is_recording
        self.mark, self.await_marks, self.send = home.mark, home.await_marks, home.send
        self._core = get_backend("cpu")

    @_on_host
    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """See Arithmetic."""
        self._core.pointwise(basis, op, a, b, c, out)

    @_on_host
    def automorphism(
        self, basis: Basis, quotient: Quotient, x: Array, multipliers: Array, evaluated: bool, out: Array
    ) -> None:
        """See Arithmetic."""
        self._core.automorphism(basis, quotient, x, multipliers, evaluated, out)

    @_on_host
    def mul_monomial(self, basis: Basis, quotient: Quotient, x: Array, exponents: Array, out: Array) -> None:
        """See Arithmetic."""
        self._core.mul_monomial(basis, quotient, x, exponents, out)

    @_on_host
    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        """See Arithmetic."""
        if x.dtype == object:
            reduce_ints(basis.moduli, x, out)
        else:
            self._core.reduce_integers(basis, x, out)

    @_on_host
    def uniform(self, basis: Basis, key: bytes, start: int, out: Array) -> None:
        """See Arithmetic."""
        self._core.uniform(basis, key, start, out)

    @_on_host
    def sample(self, basis: Basis, sampler: Sampler, key: bytes, start: int, out: Array) -> None:
        """See Arithmetic."""
        self._core.sample(basis, sampler, key, start, out)

    @_on_host
    def to_words(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """See Arithmetic."""
        self._core.to_words(basis, x, centered, out)

    @_on_host
    def to_int64(self, basis: Basis, x: Array, centered: bool, out: Array) -> int:
        """See Arithmetic."""
        return self._core.to_int64(basis, x, centered, out)

    @_on_host
    def to_float64(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """See Arithmetic."""
        self._core.to_float64(basis, x, centered, out)

    @_on_host
    def norm(self, basis: Basis, x: Array, p: float, out: Array) -> None:
        """See Arithmetic."""
        self._core.norm(basis, x, p, out)

    @_on_host
    def ntt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """See Arithmetic."""
        out[...] = ints_to_words(_forward(plan, words_to_ints(x)), plan.basis.words)

    @_on_host
    def intt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """See Arithmetic."""
        out[...] = ints_to_words(_inverse(plan, words_to_ints(x)), plan.basis.words)

    @_on_host
    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """See Arithmetic; through auxiliary primes."""
        self._core.multiply(plan, a, b, out)

    @_on_host
    def multiply_eval(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """See Arithmetic."""
        if plan.leaf_size == 1:
            self._core.pointwise(plan.basis, "mul", a, b, None, out)
            return
        product = _multiply_leaves(plan, words_to_ints(a), words_to_ints(b))
        out[...] = ints_to_words(product, plan.basis.words)


# ---- transforms, vectorised over the row ----


def _forward(plan: NttPlan, x: Array) -> Array:
    q, w, batch, n = plan.basis.moduli[0], plan.tables[0].forward[0], x.shape[:-1], plan.degree
    nodes = 1
    while nodes < plan.points:
        halves = x.reshape(*batch, nodes, 2, n // (2 * nodes))
        u, t = halves[..., 0, :], halves[..., 1, :] * w[nodes : 2 * nodes, None]
        x = np.stack([u + t, u - t], axis=-2) % q
        nodes *= 2
    return x.reshape(*batch, n)


def _inverse(plan: NttPlan, x: Array) -> Array:
    q, w, batch, n = plan.basis.moduli[0], plan.tables[0].inverse[0], x.shape[:-1], plan.degree
    nodes = plan.points // 2
    while nodes:
        halves = x.reshape(*batch, nodes, 2, n // (2 * nodes))
        u, v = halves[..., 0, :], halves[..., 1, :]
        scale = w[0] if nodes == 1 else 1  # 1/points; the twiddle of node 1 contains it already
        x = np.stack([(u + v) * scale, (u - v) * w[nodes : 2 * nodes, None]], axis=-2) % q
        nodes //= 2
    return x.reshape(*batch, n)


def _multiply_leaves(plan: NttPlan, a: Array, b: Array) -> Array:
    q, leaf_size = plan.basis.moduli[0], plan.leaf_size
    (prime,) = plan.tables
    constants = prime.quotient.leaf_constants(prime.forward[0], q).reshape(-1, 1)
    left = a.reshape(*a.shape[:-1], plan.points, leaf_size)
    right = b.reshape(*b.shape[:-1], plan.points, leaf_size)
    shape = np.broadcast_shapes(left.shape, right.shape)
    product = np.zeros(shape, dtype=object)
    for i in range(leaf_size):
        row = left[..., i : i + 1] * right
        product[..., i:] += row[..., : leaf_size - i]
        product[..., :i] += row[..., leaf_size - i :] * constants
    return (product % q).reshape(*shape[:-2], plan.degree)
