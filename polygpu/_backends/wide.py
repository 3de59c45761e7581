"""Arithmetic modulo one modulus above 2^64 (a wide modulus), in host memory for values on any device.

The native core has pointwise operations, permutations, reductions and products of polynomials modulo a wide
modulus. This module has the transforms, in Python integers. Values on a GPU are copied to the host, and the
result is copied back. The call waits for the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from .._core.exact.crt import ints_to_words, reduce_ints, words_to_ints
from .._core.plans.basis import Basis
from .._core.plans.ntt import NttPlan
from . import get_backend
from .base import Arithmetic, Memory
from .host_records import note_foreign
from .records import Array

# Methods that may compute in Python. A call that uses them is not recorded.
_IN_PYTHON = frozenset(("ntt", "intt", "multiply_eval", "reduce_integers"))

Method = TypeVar("Method", bound=Callable[..., Any])


def _on_host(method: Method) -> Method:
    """Wrap a method on host arrays: the wrapper accepts arrays of a GPU too.

    The wrapper copies operands to the host, and the result to the last argument, `out`.
    """

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


def _of_core(name: str) -> Any:
    """Return a method that calls the CPU backend's method of this name on arrays in host memory."""

    def call(self: WideArithmetic, *args: Any) -> Any:
        return getattr(self.core, name)(*args)

    call.__name__ = name
    return _on_host(call)


def _of_home(name: str) -> Any:
    """Return a method that calls the method `name` of `self.home`."""

    def call(self: WideArithmetic, *args: Any, **options: Any) -> Any:
        return getattr(self.home, name)(*args, **options)

    return call


class WideArithmetic(Arithmetic):
    """The operations modulo wide moduli, for arrays of the device `home`."""

    def __init__(self, home: Memory) -> None:
        self.home, self.core = home, get_backend("cpu")
        self.name, self.xp = home.name, home.xp

    to_host, from_host, empty, copy = map(_of_home, ("to_host", "from_host", "empty", "copy"))
    constant, take, gather, scatter = map(_of_home, ("constant", "take", "gather", "scatter"))
    address, device_scope, observe = map(_of_home, ("address", "device_scope", "observe"))
    capture, is_recording = map(_of_home, ("capture", "is_recording"))
    mark, await_marks, send = map(_of_home, ("mark", "await_marks", "send"))

    pointwise, automorphism, mul_monomial = map(_of_core, ("pointwise", "automorphism", "mul_monomial"))
    to_words, to_int64, to_float64, norm = map(_of_core, ("to_words", "to_int64", "to_float64", "norm"))
    uniform, sample, multiply = map(_of_core, ("uniform", "sample", "multiply"))

    @_on_host
    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        if x.dtype == object:
            reduce_ints(basis.moduli, x, out)
        else:
            self.core.reduce_integers(basis, x, out)

    @_on_host
    def ntt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        out[...] = ints_to_words(_forward(plan, words_to_ints(x)), plan.basis.words)

    @_on_host
    def intt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        out[...] = ints_to_words(_inverse(plan, words_to_ints(x)), plan.basis.words)

    @_on_host
    def multiply_eval(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        if plan.leaf_size == 1:
            self.core.pointwise(plan.basis, "mul", a, b, None, out)
            return
        product = _multiply_leaves(plan, words_to_ints(a), words_to_ints(b))
        out[...] = ints_to_words(product, plan.basis.words)


# ---- transforms by NumPy object arrays of Python ints ----


def _forward(plan: NttPlan, x: Array) -> Array:
    q, w, batch, n = plan.basis.moduli[0], plan.tables[0].forward[0], x.shape[:-1], plan.degree
    nodes = 1
    while nodes < plan.points:
        halves = x.reshape(*batch, nodes, 2, n // (2 * nodes))
        u, v = halves[..., 0, :], halves[..., 1, :]
        t = v * w[nodes : 2 * nodes, None]
        right = u - t if nodes > 1 or plan.quotient.is_binomial else u + v - t
        x = np.stack([u + t, right], axis=-2) % q
        nodes *= 2
    return x.reshape(*batch, n)


def _inverse(plan: NttPlan, x: Array) -> Array:
    q, w, batch, n = plan.basis.moduli[0], plan.tables[0].inverse[0], x.shape[:-1], plan.degree
    nodes = plan.points // 2
    while nodes:
        halves = x.reshape(*batch, nodes, 2, n // (2 * nodes))
        u, v = halves[..., 0, :], halves[..., 1, :]
        scale = w[0] if nodes == 1 else 1  # w[0] is 1/points; the twiddle w[1] already contains this factor
        s, d = (u + v) * scale, (u - v) * w[nodes : 2 * nodes, None]
        if nodes == 1 and not plan.quotient.is_binomial:
            s, d = s - d, 2 * d
        x = np.stack([s, d], axis=-2) % q
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
