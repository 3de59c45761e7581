"""Key switching: digits of a value times a key, divided by the special moduli."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from .._backends import Array, backend_of
from .._core.checks import integer, shown
from .._core.plans.rns import Residues
from .._core.plans.switch import DigitProduct
from .._core.ring_plan import RingPlan
from .._core.value import V, Value
from ..errors import DomainError, NotNTTFriendly, ParameterError, RingMismatch
from .arrays import empty, in_dtype
from .batch import assign, index
from .calls import is_plan, repeated
from .permutation import multipliers
from .pointwise import pointwise
from .results import check_apart, result_array
from .rns import (
    Precision,
    check_target,
    check_words,
    checked_option,
    coefficients_of,
    digit_conversions,
    digits,
    divided,
    groups,
    kept_plan,
    restrict,
)
from .transform import intt, ntt

_TOTALS = 1 << 23  # bytes of sums that are divided together, so that they are still in a cache


@is_plan
class KeySwitch:
    """The part of a key switch that does not depend on values: the ring T of the sums, digits, key rows."""

    def __init__(
        self, ring: RingPlan, special: RingPlan, key_ring: RingPlan, size: int, conversion: Precision
    ) -> None:
        check_words(ring, "key_switch")
        check_target(ring, special, "special")
        if shared := [q for q in special.moduli if gcd(q, ring.modulus) > 1]:
            raise ParameterError(
                f"special: {shown(shared[0])} has a factor in common with the value's modulus; P must be "
                "coprime to Q"
            )
        self.ring, self.T, self.P, self.key_ring = ring, ring.join(special), special, key_ring
        check_target(self.T, key_ring, "key")
        if self.T.leaf_size != 1:
            raise NotNTTFriendly(
                f"key_switch: {self.T!r} has no complete transform; ntt_primes gives moduli that have one"
            )
        self.parts, self.size = groups(ring, size), size
        self.conversion, self.exact = conversion, conversion == "exact"
        at = {q: i for i, q in enumerate(key_ring.moduli)}
        missing = [q for q in self.T.moduli if q not in at]
        if missing:
            raise RingMismatch(
                f"key: has no limb of {shown(missing[0])}; its ring is Q.join(special), Q with all limbs of "
                f"the value, which are {shown(list(ring.moduli))}"
            )
        self.rows = tuple(at[q] for q in self.T.moduli)
        self._check_groups(special)

    def _check_groups(self, special: RingPlan) -> None:
        """Count the key's digits; raise RingMismatch unless the value has the first limbs of the key."""
        whole = [q for q in self.key_ring.moduli if q not in special.moduli]
        self.key_digits = -(-len(whole) // self.size)
        for i, q in enumerate(self.ring.moduli):
            if whole[i] != q:
                raise RingMismatch(
                    f"ring: its limb {i} is {shown(q)}, the key's is {shown(whole[i])}; drop last ones"
                )

    def checked_key(self, key: Value, name: str = "key") -> Array:
        """Return the key's array, in the dtype of T."""
        if key._domain != "eval":
            raise DomainError(f"{name}: in coefficients; keep it evaluated, as key.ntt()")
        if key._batch != (self.key_digits, 2):
            raise ParameterError(
                f"{name}: batch shape {key._batch}, must be {(self.key_digits, 2)}: for each digit (b_j, a_j)"
            )
        return key._data if self.key_ring.dtype == self.T.dtype else restrict(key, self.T)._data

    def product(self, kept: int) -> DigitProduct:
        """The plan of sums from a value's coefficients; rows from `kept` on are left in coefficients."""

        def build() -> DigitProduct:
            rows = Residues(self.ring.moduli, tuple(range(self.ring.rows)), self.ring.rows)
            own = {i: (j, i) for j, part in enumerate(self.parts) for i in part}
            made = digit_conversions(self.ring, rows, self.T, self.parts, self.exact, "coef")
            P = self.P.modulus
            factors = tuple(P % q if i in own else 0 for i, q in enumerate(self.T.moduli))
            return self._plan(
                conversions=tuple(made),
                own=own,
                own_total=self.ring.rows,
                factors=factors,
                inverse=tuple(range(kept, self.T.rows)),
            )

        key = "product", kept, self.T, self.key_ring, self.size, self.exact
        return kept_plan(self.ring, key, build)

    def product_of_digits(self) -> DigitProduct:
        """The plan of sums of digits that are evaluated already."""
        return kept_plan(self.ring, ("product of digits", self.T, self.key_ring, self.size), self._plan)

    def _plan(self, **more: object) -> DigitProduct:
        narrowed = self.key_ring.dtype != self.T.dtype
        rows = tuple(range(self.T.rows)) if narrowed else self.rows
        total = self.T.rows if narrowed else self.key_ring.rows
        return DigitProduct(self.T.transform, len(self.parts), rows, total, **more)  # type: ignore[arg-type]


def key_switch_plan(
    ring: RingPlan, special: RingPlan, key_ring: RingPlan, size: int, conversion: Precision = "exact"
) -> KeySwitch:
    """Return the KeySwitch of these parameters, which the ring keeps."""
    checked_option(conversion, "conversion", Precision)
    number = integer(size, "limbs_per_digit")
    # The rule for roots of `special` is that of T too.
    key = "key switch", special.arguments, key_ring, number, conversion
    return kept_plan(ring, key, lambda: KeySwitch(ring, special, key_ring, number, conversion))


@repeated
def key_switch(
    x: Value,
    key: Value,
    switch: KeySwitch,
    add: Array | None = None,
    target: RingPlan | None = None,
    *,
    out: Array | None = None,
) -> Value:
    """Return the sum of digit_j key[j], divided by the special moduli: (*batch, 2), in x's domain.

    add: (*batch, 2), in x's domain, is added to that. target: a ring of fewer limbs; the sum is also divided
    by the product of the limbs that this ring lacks.
    """
    factors = switch.checked_key(key)
    ring, T, compute = x._plan, switch.T, backend_of(x._data)
    S, evaluated = target or ring, x._domain == "eval"
    if out is not None:
        result_array(compute, (*x._batch, 2, S.rows, ring.n), out, x._data, *(() if add is None else (add,)))
        check_apart(out, factors)
    data, _ = coefficients_of(x)
    own = ntt(x)._data
    # `add` joins the sums multiplied by P: the division by P then gives it back exactly.
    own = in_dtype(own, T.dtype)
    more = None if add is None else in_dtype(add, T.dtype)
    total = Value(T, empty(compute, (*x._batch, 2, T.rows, ring.n), T.dtype), "eval")
    made = empty(compute, (*x._batch, len(switch.parts), T.rows, ring.n), T.dtype)
    plan = switch.product(S.rows if evaluated else T.rows)
    compute.digit_product(plan, (data, own), made, factors, total._data, more if evaluated else None)
    if not evaluated:
        total = intt(total, total._data)
        if more is not None:
            compute.convert(plan.adding, None, more, total._data)
    # The rows of the sums that fall away are in coefficients.
    return divided(total, S, "nearest", switch.conversion, out=out, scratch="coef")


def rotate_many(c: V, gs: Sequence[int], keys: Sequence[Value], switch: KeySwitch) -> V:
    """Return for each g the ciphertext (c_0(X^g), 0) + key_switch(c_1(X^g)), in c's domain.

    The result has the batch shape (len(gs), *batch, 2).
    """
    if c._batch[-1:] != (2,):
        raise ParameterError(
            f"c: batch shape {c._batch}; the last axis must be of length 2, a ciphertext's components"
        )
    if len(gs) != len(keys):
        raise ParameterError(
            f"keys: {len(keys)} for {len(gs)} automorphisms; give one for each of gs, [key] for one"
        )
    ring = c._plan
    numbers = tuple(integer(g, "g") for g in gs)
    moves = multipliers(ring.quotient, numbers, True)
    for i, key in enumerate(keys):
        switch.checked_key(key, f"keys[{i}]")
    if not numbers:
        return c._with(empty(backend_of(c._data), (0, *c._data.shape), c._data.dtype))
    return _rotated(c, backend_of(c._data).constant(moves), switch, *keys)


@repeated
def _rotated(c: V, moves: Array, switch: KeySwitch, *keys: Value, out: None = None) -> V:
    """Return rotate_many(c, gs, keys, switch); moves: the multipliers of the g, on the device."""
    ring, basis, compute = c._plan, c._plan.basis, backend_of(c._data)
    evaluated, count = ntt(c), len(keys)
    if count == 1:  # nothing is shared: digits need not be kept or permuted
        moved = empty(compute, c._data.shape, ring.dtype)
        compute.automorphism(basis, ring.quotient, evaluated._data, moves[0, ...], True, moved)
        bodies, mask = index(moved, (None, ..., 0)), evaluated._with(index(moved, (..., 1)))
        data = key_switch(mask, keys[0], switch)._data[None]
    else:
        body, mask = (evaluated._with(index(evaluated._data, (..., i))) for i in (0, 1))
        bodies = empty(compute, (count, *body._data.shape), ring.dtype)
        for i in range(count):
            compute.automorphism(basis, ring.quotient, body._data, moves[i, ...], True, bodies[i])
        factors = [switch.checked_key(key) for key in keys]
        data = _switched_by_each(switch, mask, moves, factors)
    for i in range(count):
        place = data[i, ..., 0, :, :]
        if place.flags.c_contiguous:
            pointwise(basis, "add", place, bodies[i], place)
        else:
            assign(data, (i, ..., 0), pointwise(basis, "add", index(data, (i, ..., 0)), bodies[i]))
    rotated = c._with(data, "eval")
    return rotated if c._domain == "eval" else intt(rotated, data)


def _switched_by_each(switch: KeySwitch, x: Value, moves: Array, keys: Sequence[Array]) -> Array:
    """Return key_switch of x(X^g) for each g, (len(gs), *batch, 2), evaluated, from digits made once."""
    ring, T, compute = switch.ring, switch.T, backend_of(x._data)
    made = digits(x, T, switch.size, switch.conversion)._data
    count = len(keys)
    data = empty(compute, (count, *x._batch, 2, ring.rows, ring.n), ring.dtype)
    bytes_of_one = 2 * prod(x._batch) * T.rows * T.n * T.dtype.itemsize
    plan = switch.product_of_digits()
    together = max(1, min(count, _TOTALS // max(1, bytes_of_one)))
    totals = empty(compute, (together, *x._batch, 2, T.rows, T.n), T.dtype)
    for start in range(0, count, together):
        some = range(start, min(start + together, count))
        for total, i in zip(totals, some, strict=False):
            compute.digit_product(plan, None, made, keys[i], total, multiplier=moves[i, ...])
        sums = Value(T, totals[: len(some)], "eval")
        divided(sums, ring, "nearest", switch.conversion, out=data[start : some.stop], scratch="eval")
    return data
