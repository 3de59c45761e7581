"""Key switching: digits of a value times a key, divided by the special moduli."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import TYPE_CHECKING

from ..arrays import empty
from ..backends import Array, backend_of
from ..checks import Domain, integer, shown
from ..errors import DomainError, NotNTTFriendly, ParameterError, RingMismatch
from ..plans.lattice import DigitProduct
from ..plans.permutation import automorphism as automorphism_order
from ..plans.rns import Residues
from .batch import assign, check_apart, index, result_array
from .permutation import automorphism, checked_automorphism
from .pointwise import pointwise
from .rns import (
    Precision,
    Value,
    check_words,
    checked_option,
    checked_ring,
    coefficients_of,
    digit_conversions,
    digits,
    groups,
    kept_plan,
    mod_down,
    restrict,
)
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring

_TOTALS = 1 << 23  # bytes of sums that are divided together, so that they are still in a cache


class KeySwitch:
    """The part of a key switch that does not depend on values: the ring T of the sums, digits, key rows."""

    def __init__(self, ring: Ring, special: Ring, key_ring: Ring, size: int, conversion: Precision) -> None:
        check_words(ring, "key_switch")
        checked_ring(ring, special, "special")
        if shared := [q for q in special.moduli if gcd(q, ring.modulus) > 1]:
            raise ParameterError(
                f"special: {shown(shared[0])} has a factor in common with the value's modulus; P must be "
                "coprime to Q"
            )
        self.ring, self.T, self.P = ring, ring.join(special), special
        self.key_ring = checked_ring(self.T, key_ring, "key")
        if self.T.leaf_size != 1:
            raise NotNTTFriendly(
                f"key_switch: {self.T!r} has no complete transform; ntt_primes gives moduli that have one"
            )
        self.parts, self.size = groups(ring, size), size
        self.exact = conversion == "exact"
        at = {q: i for i, q in enumerate(key_ring.moduli)}
        missing = [q for q in self.T.moduli if q not in at]
        if missing:
            raise RingMismatch(
                f"key: has no limb of {shown(missing[0])}; its ring is Q.join(special), Q with all limbs of "
                f"the value, which are {shown(list(ring.moduli))}"
            )
        self.rows = tuple(at[q] for q in self.T.moduli)
        self._check_groups(special)

    def _check_groups(self, special: Ring) -> None:
        """Count the key's digits; raise RingMismatch if a limb's digit differs between value and key."""
        whole = [q for q in self.key_ring.moduli if q not in special.moduli]
        self.key_digits = -(-len(whole) // self.size)
        for i, q in enumerate(self.ring.moduli):
            if i // self.size != whole.index(q) // self.size:
                raise RingMismatch(
                    f"key: limb {shown(q)} is of its digit {whole.index(q) // self.size}, and of the value's "
                    f"digit {i // self.size}; drop limbs from the end, or whole digits there"
                )

    def checked_key(self, key: Array, domain: Domain, name: str = "key") -> Array:
        """The key's array, in the dtype of T."""
        if domain != "eval":
            raise DomainError(f"{name}: in coefficients; keep it evaluated, as key.ntt()")
        if key.shape[:-2] != (self.key_digits, 2):
            raise ParameterError(
                f"{name}: batch shape {key.shape[:-2]}, must be {(self.key_digits, 2)}: for each digit "
                "(b_j, a_j)"
            )
        if self.key_ring.dtype != self.T.dtype:
            return restrict(self.key_ring, key, "eval", self.T)[0]
        return key

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

    def permuted_product(self, g: int) -> DigitProduct:
        """The plan of sums of evaluated digits, to which X -> X^g is applied."""
        ring = self.ring

        def build() -> DigitProduct:
            return self._plan(permutation=automorphism_order(ring.n, ring.kind, g, True))

        return kept_plan(ring, ("permuted product", self.T, self.key_ring, self.size, g), build)

    def _plan(self, **more: object) -> DigitProduct:
        narrowed = self.key_ring.dtype != self.T.dtype
        rows = tuple(range(self.T.rows)) if narrowed else self.rows
        total = self.T.rows if narrowed else self.key_ring.rows
        return DigitProduct(self.T.transform, len(self.parts), rows, total, **more)  # type: ignore[arg-type]


def _switch_of(ring: Ring, special: Ring, key_ring: Ring, size: int, conversion: Precision) -> KeySwitch:
    """The KeySwitch of these parameters, which the ring keeps."""
    checked_option(conversion, "conversion", Precision)
    number = integer(size, "size")
    key = "key switch", special, key_ring, number, conversion
    return kept_plan(ring, key, lambda: KeySwitch(ring, special, key_ring, number, conversion))


def key_switch(
    ring: Ring,
    x: Array,
    domain: Domain,
    special: Ring,
    key_ring: Ring,
    key: Array,
    key_domain: Domain,
    size: int,
    conversion: Precision = "exact",
    out: Array | None = None,
    add: Array | None = None,
    target: Ring | None = None,
) -> Value:
    """sum of digit_j key[j], divided by the product of the special moduli: (*batch, 2), in x's domain.

    add: (*batch, 2), in x's domain, is added to that. target: a ring of fewer limbs; the sum is also divided
    by the product of the limbs that this ring lacks.
    """
    switch = _switch_of(ring, special, key_ring, size, conversion)
    key = switch.checked_key(key, key_domain)
    T, S, compute, batch = switch.T, target or ring, backend_of(x), x.shape[:-2]
    if out is not None:
        result_array(compute, (*batch, 2, S.rows, ring.n), out, x, *(() if add is None else (add,)))
        check_apart(out, key)
    data, _ = coefficients_of(ring, x, domain, tuple(range(ring.rows)))
    own = to_domain(ring, x, domain, "eval")
    # `add` joins the sums multiplied by P: the division by P then gives it back exactly.
    with compute.device_scope():
        own = own.astype(T.dtype, copy=False)
        more = None if add is None else add.astype(T.dtype, copy=False)
    total = empty(compute, (*batch, 2, T.rows, ring.n), T.dtype)
    made = empty(compute, (*batch, len(switch.parts), T.rows, ring.n), T.dtype)
    evaluated = domain == "eval"
    plan = switch.product(S.rows if evaluated else T.rows)
    compute.digit_product(plan, (data, own), made, key, total, more if evaluated else None)
    if not evaluated:
        to_domain(T, total, "eval", "coef", total)
        if more is not None:
            compute.convert(plan.adding, None, more, total)
    return mod_down(
        T, total, domain, S, "nearest", conversion, out=out, scratch=True, in_coefficients=evaluated
    )


def rotate_many(
    ring: Ring,
    c: Array,
    domain: Domain,
    gs: Sequence[int],
    special: Ring,
    key_ring: Ring,
    keys: Sequence[tuple[Array, Domain]],
    size: int,
    conversion: Precision = "exact",
) -> Value:
    """For each g the ciphertext (c_0(X^g), 0) + key_switch(c_1(X^g)): (len(gs), *batch, 2), in c's domain."""
    if c.ndim < 3 or c.shape[-3] != 2:
        raise ParameterError(
            f"c: batch shape {c.shape[:-2]}; the last axis must be of length 2, a ciphertext's components"
        )
    if len(gs) != len(keys):
        raise ParameterError(
            f"keys: {len(keys)} for {len(gs)} automorphisms; give one for each of gs, [key] for one"
        )
    switch = _switch_of(ring, special, key_ring, size, conversion)
    orders = [checked_automorphism(ring, g) for g in gs]
    checked = [switch.checked_key(*key, f"keys[{i}]") for i, key in enumerate(keys)]
    evaluated = to_domain(ring, c, domain, "eval")
    if len(gs) == 1:  # nothing is shared: digits need not be kept or permuted
        moved = automorphism(ring, evaluated, "eval", orders[0])
        bodies, mask = [index(moved, (..., 0))], index(moved, (..., 1))
        data, _ = key_switch(ring, mask, "eval", special, key_ring, *keys[0], size, conversion)
        data = data[None]
    else:
        body, mask = (index(evaluated, (..., i)) for i in (0, 1))
        bodies = [automorphism(ring, body, "eval", g) for g in orders]
        data = _switched_by_each(switch, mask, orders, checked)
    for i, body in enumerate(bodies):
        place = data[i, ..., 0, :, :]
        if place.flags.c_contiguous:
            pointwise(ring.basis, "add", place, body, place)
        else:
            assign(data, (i, ..., 0), pointwise(ring.basis, "add", index(data, (i, ..., 0)), body))
    return to_domain(ring, data, "eval", domain, data if domain == "coef" else None), domain


def _switched_by_each(switch: KeySwitch, x: Array, gs: Sequence[int], keys: Sequence[Array]) -> Array:
    """key_switch of x(X^g) for each g, from digits that are made once: (len(gs), *batch, 2), evaluated."""
    ring, T, compute, batch = switch.ring, switch.T, backend_of(x), x.shape[:-2]
    conversion: Precision = "exact" if switch.exact else "fast"
    made, _ = digits(ring, x, "eval", T, switch.size, conversion)
    data = empty(compute, (len(gs), *batch, 2, ring.rows, ring.n), ring.dtype)
    bytes_of_one = 2 * prod(batch) * T.rows * T.n * T.dtype.itemsize
    together = max(1, min(len(gs), _TOTALS // max(1, bytes_of_one)))
    totals = empty(compute, (together, *batch, 2, T.rows, T.n), T.dtype)
    for start in range(0, len(gs), together):
        some = range(start, min(start + together, len(gs)))
        for total, i in zip(totals, some, strict=False):
            compute.digit_product(switch.permuted_product(gs[i]), None, made, keys[i], total)
        result = data[start : some.stop]
        mod_down(T, totals[: len(some)], "eval", ring, "nearest", conversion, out=result, scratch=True)
    return data
