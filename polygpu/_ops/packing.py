"""Packing many ciphertexts of constants into one, and expansion of one into many, by automorphisms.

Inside this module, ciphertexts are evaluated arrays (count, items, 2, rows, n). `items` is the product of the
batch axes. `count` is the first axis, so that each half of the ciphertexts is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from .._backends import Array, backend, backend_of
from .._core.ring_plan import RingPlan, ring_plan
from .._core.value import V, Value
from .arrays import contiguous, copied, empty
from .batch import index
from .calls import is_plan, repeated
from .integers import from_integers, ones
from .permutation import mul_monomial, multipliers
from .pointwise import multiply_add, neg, pointwise
from .rns import kept_plan, scale
from .switch import KeySwitch, key_switch
from .transform import intt, ntt


@is_plan
class Steps:
    """The steps of packing or expansion.

    Each step has an automorphism X -> X^g and a KeySwitch. Some steps also have a monomial X^s.
    """

    def __init__(
        self, ring: RingPlan, switches: tuple[KeySwitch, ...], gs: tuple[int, ...], shifts: tuple[int, ...]
    ) -> None:
        """Plan a step for each g of `gs`.

        shifts: the exponents s. The first len(shifts) steps have a monomial X^s.
        """
        self.switches, self.moves = switches, multipliers(ring.quotient, gs, True)
        self.shifts = np.array(shifts, np.int64)


def steps_of(
    ring: RingPlan, switches: tuple[KeySwitch, ...], gs: tuple[int, ...], shifts: tuple[int, ...]
) -> Steps:
    """Return the Steps for these arguments."""
    key = "steps", switches, gs, shifts
    return kept_plan(ring, key, lambda: Steps(ring, switches, gs, shifts))


@repeated
def pack(c: V, plan: Steps, keys: tuple[Value, ...], *, out: None = None) -> V:
    """Pack the ciphertexts c, (*batch, count, 2), into one, (*batch, 2), in c's domain.

    Each step has an automorphism X -> X^g. A step with a shift s merges each ciphertext x of the first half
    with a ciphertext y of the second half. The step computes x + X^s * y + z(X^g), where z = x - X^s * y. A
    step without a shift computes x + x(X^g), a part of a trace.
    """
    if not keys:  # there is one ciphertext; its ring may have no transform
        return c._with(copied(c._data[..., 0, :, :, :]))
    basis, state = c._plan.basis, _by_number(c, 2)
    compute, monomials, negatives = backend_of(state), *_monomials(c, plan)
    for step in range(len(plan.shifts)):
        half = len(state) // 2
        made = empty(compute, (half, *state.shape[1:]), state.dtype)
        for piece in _pieces(made):
            even, odd = state[:half][piece], state[half:][piece]
            total = multiply_add(basis, odd, monomials[step], even)
            difference = multiply_add(basis, odd, negatives[step], even)
            _add_rotated(c, total, difference, plan, step, keys, made[piece])
        state = made
    for step in range(len(plan.shifts), len(keys)):
        made = empty(compute, state.shape, state.dtype)
        _add_rotated(c, state, state, plan, step, keys, made)
        state = made
    made_of_one = state[0].reshape(*c._batch[:-2], 2, *state.shape[-2:])
    packed = c._with(made_of_one, "eval")
    return packed if c._domain == "eval" else intt(packed, packed._data)


@repeated
def expand(c: V, plan: Steps, keys: tuple[Value, ...], *, out: None = None) -> V:
    """Expand the ciphertext c, (*batch, 2), into 2^steps ciphertexts, (*batch, 2^steps, 2), in c's domain.

    A step with the automorphism X -> X^g and the shift s replaces each ciphertext x by two: x + x(X^g) and
    X^s * (x - x(X^g)).
    """
    if not keys:
        return c._with(copied(c._data[..., None, :, :, :]))
    basis, state = c._plan.basis, _by_number(c, 1)
    compute, monomials, negatives = backend_of(state), *_monomials(c, plan)
    for step in range(len(keys)):
        count = len(state)
        made = empty(compute, (2 * count, *state.shape[1:]), state.dtype)
        for piece in _pieces(state):
            given, low, high = state[piece], made[:count][piece], made[count:][piece]
            _add_rotated(c, given, given, plan, step, keys, low)
            # `low` is x + x(X^g), so x - x(X^g) is 2 * x - low.
            pointwise(basis, "mul", given, monomials[step], high)
            pointwise(basis, "add", high, high, high)
            multiply_add(basis, low, negatives[step], high, high)
        state = made
    order = state.swapaxes(0, 1)  # (items, count, 2, rows, n)
    expanded = c._with(contiguous(order).reshape(*c._batch[:-1], len(state), 2, *state.shape[-2:]), "eval")
    return expanded if c._domain == "eval" else intt(expanded, expanded._data)


def _by_number(c: Value, axes: int) -> Array:
    """Transform the ciphertexts c if they are in coefficients; return an array (count, items, 2, rows, n).

    axes: 2 for the batch shape (*batch, count, 2), or 1 for (*batch, 2). If `axes` is 1, `count` is 1.
    """
    data = ntt(c)._data
    batch, rest = c._batch[:-axes], data.shape[-2:]
    count = 1 if axes == 1 else c._batch[-2]
    return contiguous(data.reshape(prod(batch), count, 2, *rest).swapaxes(0, 1))


def _monomials(c: Value, plan: Steps) -> tuple[Array, Array]:
    """Return two evaluated arrays: X^s for each shift s of the plan, and -X^s for each shift s."""
    compute = backend_of(c._data)
    one = c._with(ones(c._plan, "coef", (), compute), "coef")
    powers = mul_monomial(one, compute.constant(plan.shifts))
    made = ntt(powers, powers._data)._data
    return made, neg(c._plan.basis, made)


def _pieces(x: Array) -> Iterator[slice]:
    """Yield slices of the first axis, so short that the temporary arrays for one slice fit a cache."""
    most = backend_of(x).divided_bytes >> 3
    size = max(1, most * len(x) // max(1, x.nbytes))
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def _add_rotated(
    c: Value, y: Array, x: Array, plan: Steps, step: int, keys: tuple[Value, ...], out: Array
) -> None:
    """Write y + x(X^g) to `out`, where X -> X^g is the automorphism of the step.

    Before the addition, the key of the step switches x(X^g) back to the secret of x.

    x, y and `out` are evaluated ciphertexts, (*batch, 2).
    """
    basis, compute = c._plan.basis, backend_of(x)
    moved = empty(compute, x.shape, x.dtype)
    move = compute.constant(plan.moves)[step, ...]
    compute.automorphism(basis, c._plan.quotient, x, move, True, moved)
    mask = c._with(copied(moved[..., 1, :, :]), "eval")
    body = pointwise(basis, "add", index(moved, (..., 0)), index(y, (..., 0)))
    # key_switch adds `moved` to the switched mask. So `moved` becomes y, with the body of x(X^g) added to
    # component 0.
    compute.copy(y, moved)
    compute.copy(body, moved[..., 0, :, :])
    key_switch(mask, keys[step], plan.switches[step], moved, out=out)


@repeated
def embed(x: Value, ring: RingPlan, *, out: None = None) -> Value:
    """Return a ciphertext in `ring` for each LWE vector.

    The constant coefficient of the ciphertext's phase is the phase of the LWE vector.

    x: the LWE vectors, made by `vectors`. q is the product of the moduli of x.
    ring: the ring of the ciphertexts. Q is the product of the moduli of `ring`.

    If `ring` and x have different moduli, the entries of x are multiplied by Q / q and rounded.
    """
    ring.check_binomial("ring")
    home, n, compute = x._plan, ring.n, backend_of(x._data)
    m = home.n - 1
    count = max(1, -(-m // n))
    data = empty(compute, (*x._batch, 1 + count, home.rows, n), home.dtype, zero=True)
    compute.copy(x._data[..., :1], data[..., 0, :, :1])
    # The constant coefficient of a*s is a_0 * s_0 plus, for each i > 0, a_(n - i) * s_i times X^n. So entry i
    # of the vector becomes coefficient n - i of a. The coefficient is negated below if X^n = -1.
    for k in range(count):
        first, last = 1 + k * n, min(1 + (k + 1) * n, 1 + m)
        if last > first:
            compute.copy(x._data[..., first : first + 1], data[..., 1 + k, :, :1])
        if last > first + 1:
            compute.copy(x._data[..., first + 1 : last][..., ::-1], data[..., 1 + k, :, first - last + 1 :])
    made = Value(ring, data, "coef")
    if home.moduli != ring.moduli:
        source = ring_plan(n, home.moduli, ring.quotient.kind)
        made = scale(Value(source, data, "coef"), ring, ring.modulus)
    if ring.quotient.wrap == -1:
        masks = copied(made._data[..., 1:, :, :])
        compute.copy(neg(ring.basis, masks)[..., 1:], made._data[..., 1:, :, 1:])
    return made


def vectors(x: Array, moduli: tuple[int, ...]) -> Value:
    """Return LWE vectors x, (*batch, m + 1), as coefficients in the ring of degree m + 1 with `moduli`."""
    ring = ring_plan(x.shape[-1], moduli)
    return Value(ring, from_integers(ring.basis, ring.n, x, backend()), "coef")
