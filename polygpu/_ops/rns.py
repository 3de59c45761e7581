"""Operations between bases of moduli: selecting and joining limbs, conversion, rounded division, digits.

A verb is a function that takes a value to another ring S, such as `convert`. The caller of a verb must have
checked S with check_target().
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import gcd, prod
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from .._backends import Array, Backend, backend_of
from .._core.checks import Domain, integer, shown
from .._core.plans.cache import keep
from .._core.plans.ntt import NttPlan, part_of
from .._core.plans.rns import Conversion, Residues, multiples, runs_of
from .._core.ring_plan import RingPlan
from .._core.value import V, Value
from ..errors import BadRoot, ParameterError, RingMismatch
from .arrays import empty, fill, overlap
from .calls import repeated
from .integers import from_integers, to_bigints
from .results import result_array, result_shape
from .transform import intt, ntt, to_domain

Precision = Literal["exact", "fast"]
Rounding = Literal["nearest", "floor"]
Kept = TypeVar("Kept")

_KEPT = 256  # the most plans that a ring keeps


# ---- checks ----


def check_target(ring: RingPlan, target: RingPlan, name: str) -> None:
    """Raise an error unless values of `ring` can be taken to the ring `target`, for instance by `convert`.

    name: the name of `target` in error texts.

    Raises:
        RingMismatch: the rings differ in degree or kind.
        BadRoot: the rings have a modulus in common, but their transforms use different roots modulo it.
    """
    if target.quotient is not ring.quotient and target.quotient != ring.quotient:
        raise RingMismatch(
            f"{name} is {target!r}, which differs from {ring!r} in degree or kind. Use "
            f"Ring({ring.n}, moduli, kind={ring.quotient.kind!r})."
        )
    if _same_leaves(ring, target) and (ring.root != target.root or not isinstance(ring.root, str)):
        roots = dict(zip(ring.moduli, ring.roots or (), strict=True))
        for q, root in zip(target.moduli, target.roots or (), strict=True):
            if roots.get(q, root) != root:
                raise BadRoot(
                    f"{name} has root {shown(root)} modulo {shown(q)}, and {ring!r} has {shown(roots[q])}. "
                    "These roots must be equal, because the order of evaluated values depends on the root. "
                    "Use ring[...] and ring.join, which make rings with the same roots."
                )


def check_words(ring: RingPlan, verb: str) -> None:
    """Raise ParameterError if the ring has a modulus above 2^64, which only `convert` accepts."""
    if ring.basis.wide:
        raise ParameterError(
            f"{verb} does not accept q={shown(ring.moduli[0])}, which is above 2**64. Only convert() "
            "accepts such a modulus."
        )


def checked_option(value: object, name: str, options: Any) -> Any:
    """Return `value` if it is one of the strings of the Literal `options`. Otherwise raise ParameterError."""
    if not isinstance(value, str) or value not in get_args(options):
        raise ParameterError(
            f"{name}={shown(value)} must be one of {', '.join(map(repr, get_args(options)))}."
        )
    return value


def _same_leaves(ring: RingPlan, other: RingPlan) -> bool:
    """Return whether both rings have a transform, with leaves of the same size."""
    return ring.leaf_size is not None and ring.leaf_size == other.leaf_size


def _places(ring: RingPlan, moduli: Iterable[int], verb: str, way_out: str) -> tuple[int, ...]:
    """Return, for each of `moduli`, the index of the ring's limb with this modulus.

    Raise RingMismatch if the ring lacks a modulus. verb, way_out: parts of the error text.
    """
    at = {q: i for i, q in enumerate(ring.moduli)}
    places = tuple(at.get(q, -1) for q in moduli)
    if -1 in places:
        missing = list(moduli)[places.index(-1)]
        raise RingMismatch(f"{verb} cannot find {shown(missing)} among the moduli of {ring!r}. {way_out}.")
    return places


# ---- rows ----


def copy_rows(x: Array, from_rows: Iterable[int], out: Array, to_rows: Iterable[int]) -> None:
    """Copy rows of x into rows of `out`. The dtypes may differ if both can hold the residues."""
    pairs = list(zip(from_rows, to_rows, strict=True))
    compute = backend_of(out)
    # Rows that are neighbours both in x and in `out` are copied by one call.
    for _, run in groupby(enumerate(pairs), key=lambda p: (p[1][0] - p[0], p[1][1] - p[0])):
        members = [pair for _, pair in run]
        (source, target), count = members[0], len(members)
        compute.copy(x[..., source : source + count, :], out[..., target : target + count, :])


def _evaluate_rows(ring: RingPlan, data: Array, limbs: tuple[int, ...], places: Iterable[int]) -> None:
    """Transform rows of `data` in place.

    places: the indices of the rows, ascending. Row places[i] has the modulus of the ring's limb limbs[i].
    """
    compute, done = backend_of(data), 0
    for first, count in runs_of(places):
        compute.ntt(part_of(ring.transform, limbs[done : done + count]), data, data, first)
        done += count


def coefficients_of(
    x: Value, limbs: tuple[int, ...] | None = None, scratch: bool = False
) -> tuple[Array, Residues]:
    """Return an array that holds some limbs of x in coefficients, and the rows of these limbs in the array.

    The array may be that of x.

    limbs: the indices of the limbs; by default all.
    scratch: whether x may be overwritten. If True, neighbouring limbs are transformed in place.
    """
    ring, data = x._plan, x._data
    if limbs is None:
        limbs = tuple(range(ring.rows))
    moduli = tuple(ring.moduli[i] for i in limbs)
    if x._domain == "coef":
        return data, Residues(moduli, limbs, ring.rows)
    compute, plan = backend_of(data), part_of(ring.transform, limbs)
    if scratch and len(runs_of(limbs)) == 1:
        compute.intt(plan, data, data, limbs[0])
        return data, Residues(moduli, limbs, ring.rows)
    made = empty(compute, (*x._batch, len(limbs), ring.n), ring.dtype)
    (first, count), *others = runs_of(limbs)
    if not others and (count == ring.rows or prod(x._batch) == 1):  # neighbours in memory
        compute.intt(plan, data[..., first : first + count, :], made)
    else:
        copy_rows(data, limbs, made, range(len(limbs)))
        compute.intt(plan, made, made)
    return made, Residues(moduli, tuple(range(len(limbs))), len(limbs))


def _transform(ring: RingPlan, limbs: tuple[int, ...], domain: Domain) -> NttPlan | None:
    """Return the plan of the transform of `limbs` (indices) if `domain` is "eval", else None."""
    return part_of(ring.transform, limbs) if domain == "eval" else None


def kept_plan(ring: RingPlan, key: tuple[Any, ...], build: Callable[[], Kept]) -> Kept:
    """Return the plan that the ring caches under `key`. Call build() if the cache lacks the plan."""
    plan: Kept | None = ring.plans.get(key)
    return keep(ring.plans, key, build(), _KEPT) if plan is None else plan


class _Result:
    """The array of a result modulo S: `out`, or a new array if `out` is None or overlaps x.

    axes: the lengths of batch axes that follow those of x.
    """

    def __init__(self, S: RingPlan, x: Value, out: Array | None, *axes: int) -> None:
        self.compute: Backend = backend_of(x._data)
        self.plan = S
        shape = (*x._batch, *axes, S.rows, S.n)
        checked = None if out is None else result_array(self.compute, shape, out, x._data)
        overlaps = checked is not None and overlap(self.compute, checked, x._data)
        self.data = empty(self.compute, shape, S.dtype) if checked is None or overlaps else checked
        self.out = checked

    def finish(self, domain: Domain) -> Value:
        """Return the result as a value. If `out` was given and overlaps x, first copy the result to `out`."""
        if self.out is not None and self.out is not self.data:
            self.compute.copy(self.data, self.out)
        return Value(self.plan, self.data if self.out is None else self.out, domain)


def _in_domain(x: V, domain: Domain) -> V:
    """Return x, which must be in coefficients.

    If `domain` is "eval" and the ring of x has a transform, first transform x in place.
    """
    return ntt(x, x._data) if domain == "eval" and x._plan.has_eval else x


def _through_coefficients(
    verb: Callable[..., Value], x: Value, S: RingPlan, *options: Any, out: Array | None
) -> Value:
    """Return what `verb` returns for evaluated x, computed from the coefficients of x.

    Call this if x is evaluated, and S does not have a transform with leaves of the same size.
    """
    return _in_domain(verb(intt(x), S, *options, out=out), "eval")


# ---- verbs ----


@repeated
def restrict(x: Value, S: RingPlan, *, out: Array | None = None) -> Value:
    """Return x modulo S, whose moduli are among those of x's ring."""
    ring = x._plan
    places = _places(ring, S.moduli, "restrict", "Use convert() for other moduli")
    if x._domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(restrict, x, S, out=out)
    result = _Result(S, x, out)
    if S.basis.wide:  # its one modulus has several rows, one for each word of a residue
        places = tuple(range(S.rows))
    copy_rows(x._data, places, result.data, range(len(places)))
    return result.finish(x._domain)


def limbs_of(x: Value, S: RingPlan) -> tuple[Array, Domain]:
    """Return the residues of x modulo S, and their domain. The caller must not write to the residues.

    The residues are a view of x if a slice of x's rows equals them (see `_neighbours`). The view may have
    gaps between batch elements. Otherwise the residues are a copy.

    Raises:
        RingMismatch: the rings differ in degree or kind, or x's ring does not have all moduli of S.
        BadRoot: see check_target.
    """
    ring, domain = x._plan, x._domain
    if ring is S:
        return x._data, domain
    rows: dict[Domain, slice | None] | None = ring.plans.get(("limbs", S))
    if rows is None:
        rows = kept_plan(ring, ("limbs", S), lambda: _neighbours(ring, S))
    at = rows[domain]
    if at is None:
        copied = restrict(x, S)
        return copied._data, copied._domain
    return (x._data if at == _ALL else x._data[..., at, :]), domain


_ALL = slice(None)


def _neighbours(ring: RingPlan, S: RingPlan) -> dict[Domain, slice | None]:
    """Return, for each domain, the slice of the ring's rows that equals the limbs of S.

    An entry is None if no slice equals them. The order and the dtype of the limbs must be those of S.
    """
    check_target(ring, S, "ring")
    missing = [q for q in S.moduli if q not in ring.moduli]
    if missing:
        raise RingMismatch(
            f"ring has the modulus {shown(missing[0])}, which an operand in {ring!r} does not have. Choose "
            "a ring of moduli that every operand has, or extend this operand with mod_up(ring)."
        )
    first, count = ring.moduli.index(S.moduli[0]), len(S.moduli)
    rows = None
    if ring.dtype == S.dtype and ring.moduli[first : first + count] == S.moduli:
        rows = _ALL if count == len(ring.moduli) else slice(first, first + count)
    return {"coef": rows, "eval": rows if _same_leaves(ring, S) else None}


@repeated
def join(a: Value, b: Value, *, out: None = None) -> Value:
    """Return the value that has the limbs of a and the limbs of b."""
    for x in (a, b):
        check_words(x._plan, "join")
    joined = a._plan.join(b._plan)
    domain: Domain = "eval" if "eval" in (a._domain, b._domain) and joined.has_eval else "coef"
    batch = result_shape(a._data[..., :1, :], b._data[..., :1, :])[:-2]
    data = empty(backend_of(a._data), (*batch, joined.rows, joined.n), joined.dtype)
    first = 0
    for x in (a, b):
        rows = x._plan.rows
        wanted: Domain = domain if _same_leaves(x._plan, joined) else "coef"
        places = range(first, first + rows)
        copy_rows(to_domain(x, wanted)._data, range(rows), data, places)
        if wanted != domain:
            _evaluate_rows(joined, data, tuple(places), places)
        first += rows
    return Value(joined, data, domain)


@repeated
def convert(x: Value, S: RingPlan, conversion: Precision = "exact", *, out: Array | None = None) -> Value:
    """Return the centred value of x modulo the moduli of S."""
    ring, domain = x._plan, x._domain
    exact = checked_option(conversion, "conversion", Precision) == "exact"
    if ring.basis.wide or S.basis.wide:
        return _convert_wide(x, S, out)
    if domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(convert, x, S, conversion, out=out)
    result = _Result(S, x, out)
    at = {q: i for i, q in enumerate(ring.moduli)}
    own = [(at[q], j) for j, q in enumerate(S.moduli) if q in at]
    rest = tuple(j for j, q in enumerate(S.moduli) if q not in at)
    copy_rows(x._data, (i for i, _ in own), result.data, (j for _, j in own))
    if not rest:
        return result.finish(domain)
    data, rows = coefficients_of(x)

    def build() -> Conversion:
        target = Residues(tuple(S.moduli[j] for j in rest), rest, S.rows)
        return Conversion(rows, target, (1,) * len(rest), exact=exact, transform=_transform(S, rest, domain))

    plan = kept_plan(ring, ("convert", S, exact, domain), build)
    result.compute.convert(plan, data, None, result.data)
    return result.finish(domain)


def _convert_wide(x: Value, S: RingPlan, out: Array | None) -> Value:
    """Convert through Python ints, because one ring has a modulus above 2^64. The result is exact."""
    compute = backend_of(x._data)
    values = to_bigints(x._plan.basis, intt(x)._data, True)
    result = _Result(S, x, out)
    compute.copy(from_integers(S.basis, S.n, values, compute), result.data)
    return _in_domain(result.finish("coef"), x._domain)


def mod_up(x: Value, S: RingPlan, conversion: Precision = "exact", *, out: Array | None = None) -> Value:
    """Return the centred value of x modulo S, which has all moduli of x's ring."""
    for r in (x._plan, S):
        check_words(r, "mod_up")
    _places(S, x._plan.moduli, "mod_up", "Use convert(), which needs no modulus in common")
    return convert(x, S, conversion, out=out)


@repeated
def scale_up(x: Value, S: RingPlan, *, out: Array | None = None) -> Value:
    """Return P times x modulo S, which has all moduli of x's ring. P is the product of S's other moduli."""
    ring, domain = x._plan, x._domain
    for r in (ring, S):
        check_words(r, "scale_up")
    places = _places(
        S, ring.moduli, "scale_up", "Use ring.join(), which makes a ring with the moduli of both"
    )
    if domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(scale_up, x, S, out=out)
    result = _Result(S, x, out)

    def build() -> Conversion:
        P = S.modulus // ring.modulus
        own = Residues(ring.moduli, tuple(range(ring.rows)), ring.rows)
        return multiples(own, tuple(P % q for q in ring.moduli), Residues(ring.moduli, places, S.rows))

    plan = kept_plan(ring, ("scale_up", S), build)
    result.compute.convert(plan, None, x._data, result.data)
    for first, count in runs_of(j for j in range(S.rows) if j not in places):  # P is 0 modulo these limbs
        fill(result.compute, result.data[..., first : first + count, :], 0)
    return result.finish(domain)


@repeated
def mod_down(
    x: Value,
    S: RingPlan,
    rounding: Rounding = "nearest",
    conversion: Precision = "exact",
    plaintext: int | None = None,
    *,
    out: Array | None = None,
) -> Value:
    """Return x / P, rounded, modulo S. P is the product of the moduli of x's ring that S does not have."""
    return divided(x, S, rounding, conversion, plaintext, out=out)


def divided(
    x: Value,
    S: RingPlan,
    rounding: Rounding = "nearest",
    conversion: Precision = "exact",
    plaintext: int | None = None,
    *,
    out: Array | None = None,
    scratch: Domain | None = None,
) -> Value:
    """Return what mod_down returns. Unlike mod_down, this function can overwrite x.

    The dropped moduli are those of x's ring that S does not have. P is their product.

    plaintext: None, or an integer t. With t, P times the result is congruent to x modulo t.
    scratch: None if x must not change. Otherwise x may be overwritten, the dropped limbs must be the last
    rows of x, and `scratch` is the domain of the dropped limbs. `scratch` may be "coef" even if the other
    limbs of x are evaluated.
    """
    ring, domain = x._plan, x._domain
    check_words(ring, "mod_down")
    checked_option(rounding, "rounding", Rounding)
    exact = checked_option(conversion, "conversion", Precision) == "exact"
    kept = _places(ring, S.moduli, "mod_down", "Use a ring of some of the value's moduli")
    dropped = tuple(i for i in range(ring.rows) if i not in kept)
    P = prod(ring.moduli[i] for i in dropped)
    t = None if plaintext is None else _checked_plaintext(plaintext, P)
    if not dropped:
        return restrict(x, S, out=out)
    if domain == "eval" and not _same_leaves(ring, S):
        assert scratch != "coef"
        return _through_coefficients(divided, x, S, rounding, conversion, plaintext, out=out)
    result = _Result(S, x, out)
    falling = Value(ring, x._data, scratch or domain)
    data, rows = coefficients_of(falling, dropped, scratch is not None)
    places = tuple(range(S.rows))
    target = Residues(S.moduli, places, S.rows)

    def inverses() -> tuple[int, ...]:
        return tuple(pow(P, -1, s) for s in S.moduli)

    def taken_away(**last: Any) -> Conversion:
        """Return the conversion to -(x mod P) / P modulo S, for the product P of the dropped moduli."""
        multipliers = tuple(-i % s for i, s in zip(inverses(), S.moduli, strict=True))
        return Conversion(rows, target, multipliers, rounding, exact, **last)

    def last() -> dict[str, Any]:
        """Return arguments for a Conversion that transforms its result and then adds x / P modulo S."""
        own = Residues(S.moduli, kept, ring.rows)
        return {"transform": _transform(S, places, domain), "own": own, "own_factors": inverses()}

    key, compute = (S, rounding, exact, domain, rows.total), result.compute
    if t is None:
        plan = kept_plan(ring, ("mod_down", *key), lambda: taken_away(**last()))
        compute.convert(plan, data, x._data, result.data)
        return result.finish(domain)
    # Let v be x mod P, centred if the rounding is "nearest", and u = v / P mod t, centred. The result is
    # (x - v) / P + u. Then P times the result is x - v + P * u, which is congruent to x modulo t.
    # Source: Brakerski, Gentry, Vaikuntanathan 2011/277, section 4.
    one = Residues((t,), (0,), 1)
    u = empty(compute, (*x._batch, 1, ring.n), np.dtype(np.uint64))
    compute.convert(kept_plan(ring, ("value", *key), taken_away), data, None, result.data)
    plan = kept_plan(
        ring, ("modulo t", t, *key), lambda: Conversion(rows, one, (pow(P, -1, t),), rounding, exact)
    )
    compute.convert(plan, data, None, u)
    plan = kept_plan(
        ring, ("sum", t, *key), lambda: Conversion(one, target, (1,) * S.rows, accumulate=True, **last())
    )
    compute.convert(plan, u, x._data, result.data)
    return result.finish(domain)


def _checked_plaintext(plaintext: object, P: int) -> int:
    t = integer(plaintext, "plaintext")
    if not 2 <= t <= 1 << 64 or gcd(t, P) != 1:
        raise ParameterError(
            f"plaintext={shown(t)} must be from 2 to 2**64 and coprime to the moduli that are dropped."
        )
    return t


@repeated
def scale(
    x: Value, S: RingPlan, t: int, divisor: RingPlan | None = None, *, out: Array | None = None
) -> Value:
    """Return t * v / D, rounded, modulo S, where v is the centred value of x.

    The exact result is floor((2 * t * v + D) / (2 * D)).

    divisor: the ring whose modulus is D; by default x's ring.
    """
    ring = x._plan
    for r in (ring, S):
        check_words(r, "scale")
    factor = integer(t, "t")
    D = ring if divisor is None else divisor
    check_target(ring, D, "divisor")
    divisors = tuple(sorted(_places(ring, D.moduli, "scale", "Use a divisor of some of the value's moduli")))
    result = _Result(S, x, out)
    data, rows = coefficients_of(x)

    wanted: Domain = x._domain if S.has_eval else "coef"
    places = tuple(range(S.rows))

    def build() -> Conversion:
        target, plan = Residues(S.moduli, places, S.rows), _transform(S, places, wanted)
        return Conversion(rows, target, (1,) * S.rows, factor=factor, divisors=divisors, transform=plan)

    plan = kept_plan(ring, ("scale", factor, divisors, S, wanted), build)
    result.compute.convert(plan, data, None, result.data)
    return result.finish(wanted)


def gadget(ring: RingPlan, size: int) -> tuple[int, ...]:
    """Return an integer in [0, Q) for each digit: 1 modulo the digit's limbs, 0 modulo all other limbs.

    size: the number of limbs of a digit.
    """
    check_words(ring, "gadget")
    numbers = []
    for part in groups(ring, size):
        own = prod(ring.moduli[i] for i in part)
        rest = ring.modulus // own
        numbers.append(rest * pow(rest, -1, own))
    return tuple(numbers)


def groups(ring: RingPlan, size: int) -> list[tuple[int, ...]]:
    """Return the indices of each digit's limbs: `size` neighbouring limbs, or fewer for the last digit."""
    count = integer(size, "limbs_per_digit")
    if count < 1:
        raise ParameterError(f"limbs_per_digit={shown(count)} must be at least 1.")
    return [tuple(range(i, min(i + count, ring.rows))) for i in range(0, ring.rows, count)]


@repeated
def digits(
    x: Value, S: RingPlan, size: int, conversion: Precision = "exact", *, out: Array | None = None
) -> Value:
    """Return the digits of x modulo S, (*batch, digits).

    Digit j is the centred value of x modulo the limbs of group j. size: number of limbs in a group.
    """
    ring, domain = x._plan, x._domain
    for r in (ring, S):
        check_words(r, "digits")
    exact = checked_option(conversion, "conversion", Precision) == "exact"
    parts = groups(ring, size)
    if domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(digits, x, S, size, conversion, out=out)
    result = _Result(S, x, out, len(parts))
    # Row r of digit j is row j * S.rows + r of `flat`. Modulo the limbs of its own group a digit equals x, so
    # these rows are copied from x. digit_conversions computes the rows of all other limbs.
    at = {q: i for i, q in enumerate(ring.moduli)}
    own = [(at[q], j * S.rows + r) for j, part in enumerate(parts) for r, q in _own(ring, S, part)]
    flat = result.data.reshape(*x._batch, len(parts) * S.rows, ring.n)
    copy_rows(x._data, (i for i, _ in own), flat, (place for _, place in own))
    data, rows = coefficients_of(x)
    result.compute.convert_all(digit_conversions(ring, rows, S, parts, exact, domain), data, flat)
    return result.finish(domain)


def digit_conversions(
    ring: RingPlan, rows: Residues, S: RingPlan, parts: Sequence[tuple[int, ...]], exact: bool, domain: Domain
) -> list[Conversion]:
    """Return the conversions that compute the digits of a value from its coefficients.

    A digit is computed modulo all limbs of S except those of its own group. Row r of digit j is written to
    row j * S.rows + r of an array (*batch, digits * S.rows, n).

    rows: the rows of the coefficients. parts: see `groups`. domain: the domain of the digits.
    """
    count, plans = len(parts) * S.rows, []
    for j, part in enumerate(parts):

        def build(part: tuple[int, ...] = part, j: int = j) -> Conversion:
            own = {r for r, _ in _own(ring, S, part)}
            limbs = tuple(r for r in range(S.rows) if r not in own)
            source = Residues(tuple(ring.moduli[i] for i in part), part, rows.total)
            places = tuple(j * S.rows + r for r in limbs)
            target = Residues(tuple(S.moduli[r] for r in limbs), places, count)
            evaluated = _transform(S, limbs, domain) if limbs else None
            return Conversion(source, target, (1,) * len(limbs), exact=exact, transform=evaluated)

        plan = kept_plan(ring, ("digit", j, len(parts[0]), S, exact, domain), build)
        if plan.target.at:
            plans.append(plan)
    return plans


def _own(ring: RingPlan, S: RingPlan, part: Iterable[int]) -> list[tuple[int, int]]:
    """Return (r, S.moduli[r]) for each limb r of S whose modulus is ring.moduli[i] for an i in `part`."""
    moduli = {ring.moduli[i] for i in part}
    return [(r, q) for r, q in enumerate(S.moduli) if q in moduli]
