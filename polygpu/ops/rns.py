"""Between bases of moduli: chosen and joined limbs, conversions, rounded divisions, digits.

A function that takes a value to a ring S is called a verb. Its caller has checked S by checked_ring().
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import gcd, prod
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np

from ..arrays import empty, overlap
from ..backends import Array, Backend, backend_of
from ..checks import Domain, integer, shown
from ..errors import BadRoot, ParameterError, RingMismatch
from ..plans.cache import keep
from ..plans.ntt import NttPlan, part_of
from ..plans.rns import Conversion, Residues, runs_of
from .batch import result_array, result_shape
from .integers import big_integers, from_integers
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring

Precision = Literal["exact", "fast"]
Rounding = Literal["nearest", "floor"]
Value = tuple[Array, Domain]
Kept = TypeVar("Kept")

_KEPT = 256  # plans that a ring keeps


# ---- checks ----


def checked_ring(ring: Ring, other: object, name: str) -> Ring:
    """The other ring, if it has the same degree and kind, and the same roots of moduli that both have."""
    if not hasattr(other, "from_residues"):
        raise ParameterError(f"{name}: {type(other).__name__}, must be a Ring")
    target: Any = other
    if (target.n, target.kind) != (ring.n, ring.kind):
        raise RingMismatch(
            f"{name}: {target!r} differs from {ring!r} in degree or kind; "
            f"Ring({ring.n}, moduli, kind={ring.kind!r}) fits"
        )
    if _same_leaves(ring, target) and (ring._root != target._root or not isinstance(ring._root, str)):
        roots = dict(zip(ring.moduli, ring.roots or (), strict=True))
        for q, root in zip(target.moduli, target.roots or (), strict=True):
            if roots.get(q, root) != root:
                raise BadRoot(
                    f"{name}: root {shown(root)} mod {shown(q)}, {ring!r} has {shown(roots[q])}; evaluated "
                    "values would change their order: ring[...] and ring.join make rings with the same roots"
                )
    return target  # type: ignore[no-any-return]


def check_words(ring: Ring, verb: str) -> None:
    """Raise ParameterError for a modulus above 2^64, which only `convert` takes."""
    if ring.basis.wide:
        raise ParameterError(
            f"{verb}: q = {shown(ring.moduli[0])} is above 2**64; only convert() takes such a modulus"
        )


def checked_option(value: object, name: str, options: Any) -> Any:
    """The value, if it is one of the words of a Literal."""
    if not isinstance(value, str) or value not in get_args(options):
        raise ParameterError(
            f"{name}: {shown(value)} must be one of {', '.join(map(repr, get_args(options)))}"
        )
    return value


def _same_leaves(ring: Ring, other: Ring) -> bool:
    """Whether evaluated residues of a limb that both rings have are the same in both."""
    return ring.leaf_size is not None and ring.leaf_size == other.leaf_size


def _places(ring: Ring, moduli: Iterable[int], verb: str, way_out: str) -> tuple[int, ...]:
    """The numbers of the ring's limbs with these moduli."""
    at = {q: i for i, q in enumerate(ring.moduli)}
    places = tuple(at.get(q, -1) for q in moduli)
    if -1 in places:
        missing = list(moduli)[places.index(-1)]
        raise RingMismatch(f"{verb}: {shown(missing)} is no modulus of {ring!r}; {way_out}")
    return places


# ---- rows ----


def copy_rows(x: Array, from_rows: Iterable[int], out: Array, to_rows: Iterable[int]) -> None:
    """Copy rows of x into rows of out. Their dtypes may differ, if both hold the residues."""
    pairs = list(zip(from_rows, to_rows, strict=True))
    with backend_of(out).device_scope():
        for _, run in groupby(enumerate(pairs), key=lambda p: (p[1][0] - p[0], p[1][1] - p[0])):
            members = [pair for _, pair in run]
            (source, target), count = members[0], len(members)
            out[..., target : target + count, :] = x[..., source : source + count, :]


def _evaluate_rows(ring: Ring, data: Array, limbs: tuple[int, ...], places: Iterable[int]) -> None:
    """Transform rows at rising places in place; the i-th of them is modulo the ring's limb limbs[i]."""
    compute, done = backend_of(data), 0
    for first, count in runs_of(places):
        compute.ntt(part_of(ring.transform, limbs[done : done + count]), data, data, first)
        done += count


def coefficients_of(
    ring: Ring, x: Array, domain: Domain, limbs: tuple[int, ...], scratch: bool = False
) -> tuple[Array, Residues]:
    """Some limbs in coefficients, and where they lie: in x itself, or in a transformed copy.

    scratch: x may be overwritten; limbs that are neighbours are then transformed in place.
    """
    moduli = tuple(ring.moduli[i] for i in limbs)
    if domain == "coef":
        return x, Residues(moduli, limbs, ring.rows)
    compute, plan = backend_of(x), part_of(ring.transform, limbs)
    if scratch and len(runs_of(limbs)) == 1:
        compute.intt(plan, x, x, limbs[0])
        return x, Residues(moduli, limbs, ring.rows)
    data = empty(compute, (*x.shape[:-2], len(limbs), ring.n), ring.dtype)
    (first, count), *others = runs_of(limbs)
    if not others and (count == ring.rows or prod(x.shape[:-2]) == 1):  # neighbours in memory
        compute.intt(plan, x[..., first : first + count, :], data)
    else:
        copy_rows(x, limbs, data, range(len(limbs)))
        compute.intt(plan, data, data)
    return data, Residues(moduli, tuple(range(len(limbs))), len(limbs))


def _transform(ring: Ring, limbs: tuple[int, ...], domain: Domain) -> NttPlan | None:
    """The transform of some limbs if their values are wanted evaluated, else None."""
    return part_of(ring.transform, limbs) if domain == "eval" else None


def kept_plan(ring: Ring, key: tuple[Any, ...], build: Callable[[], Kept]) -> Kept:
    """The plan, such as a conversion, that the ring keeps under this key; built on first use."""
    plan: Kept | None = ring.conversions.get(key)
    return keep(ring.conversions, key, build(), _KEPT) if plan is None else plan


class _Result:
    """The array of a result modulo S: `out`, or new memory where there is none or where it overlaps x."""

    def __init__(self, S: Ring, x: Array, out: Array | None, batch: tuple[int, ...]) -> None:
        self.compute: Backend = backend_of(x)
        shape = (*batch, S.rows, S.n)
        checked = None if out is None else result_array(self.compute, shape, out, x)
        overlaps = checked is not None and overlap(self.compute, checked, x)
        self.data = empty(self.compute, shape, S.dtype) if checked is None or overlaps else checked
        self.out = checked

    def finish(self) -> Array:
        """The array, or `out` with its values."""
        if self.out is None or self.out is self.data:
            return self.data
        with self.compute.device_scope():
            self.out[...] = self.data
        return self.out


def _in_domain(S: Ring, data: Array, domain: Domain) -> Value:
    """Coefficients modulo S as a value in the domain if S has it, else in "coef"; transformed in place."""
    if domain == "eval" and S.has_eval:
        return to_domain(S, data, "coef", "eval", data), "eval"
    return data, "coef"


def _through_coefficients(
    verb: Callable[..., Value], ring: Ring, x: Array, S: Ring, *options: Any, out: Array | None
) -> Value:
    """What a verb gives for an evaluated value, if the ring's evaluated residues are of no use in S."""
    data, _ = verb(ring, to_domain(ring, x, "eval", "coef"), "coef", S, *options, out=out)
    return _in_domain(S, data, "eval")


# ---- verbs ----


def restrict(ring: Ring, x: Array, domain: Domain, S: Ring, out: Array | None = None) -> Value:
    """The value modulo the moduli of S, which are among the ring's."""
    places = _places(ring, S.moduli, "restrict", "convert() gives the value modulo other moduli")
    if domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(restrict, ring, x, S, out=out)
    result = _Result(S, x, out, x.shape[:-2])
    if S.basis.wide:
        places = tuple(range(S.rows))
    copy_rows(x, places, result.data, range(len(places)))
    return result.finish(), domain


def join(
    rings: tuple[Ring, Ring], joined: Ring, arrays: tuple[Array, Array], domains: tuple[Domain, Domain]
) -> Value:
    """The value whose residues both operands hold."""
    domain: Domain = "eval" if "eval" in domains and joined.has_eval else "coef"
    batch = result_shape(*(x[..., :1, :] for x in arrays))[:-2]
    data = empty(backend_of(arrays[0]), (*batch, joined.rows, joined.n), joined.dtype)
    first = 0
    for ring, x, own in zip(rings, arrays, domains, strict=True):
        wanted: Domain = domain if _same_leaves(ring, joined) else "coef"
        places = range(first, first + ring.rows)
        copy_rows(to_domain(ring, x, own, wanted), range(ring.rows), data, places)
        if wanted != domain:
            _evaluate_rows(joined, data, tuple(places), places)
        first += ring.rows
    return data, domain


def convert(
    ring: Ring, x: Array, domain: Domain, S: Ring, conversion: Precision = "exact", out: Array | None = None
) -> Value:
    """The centred value modulo the moduli of S."""
    exact = checked_option(conversion, "conversion", Precision) == "exact"
    if ring.basis.wide or S.basis.wide:
        return _convert_wide(ring, x, domain, S, out)
    if domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(convert, ring, x, S, conversion, out=out)
    result = _Result(S, x, out, x.shape[:-2])
    at = {q: i for i, q in enumerate(ring.moduli)}
    own = [(at[q], j) for j, q in enumerate(S.moduli) if q in at]
    rest = tuple(j for j, q in enumerate(S.moduli) if q not in at)
    copy_rows(x, (i for i, _ in own), result.data, (j for _, j in own))
    if not rest:
        return result.finish(), domain
    data, rows = coefficients_of(ring, x, domain, tuple(range(ring.rows)))

    def build() -> Conversion:
        target = Residues(tuple(S.moduli[j] for j in rest), rest, S.rows)
        return Conversion(rows, target, (1,) * len(rest), exact=exact, transform=_transform(S, rest, domain))

    plan = kept_plan(ring, ("convert", S, exact, domain), build)
    result.compute.convert(plan, data, None, result.data)
    return result.finish(), domain


def _convert_wide(ring: Ring, x: Array, domain: Domain, S: Ring, out: Array | None) -> Value:
    """convert() by Python ints, as a modulus of one ring is above 2^64; always exact."""
    compute = backend_of(x)
    values = big_integers(ring.basis, to_domain(ring, x, domain, "coef"), True)
    result = _Result(S, x, out, x.shape[:-2])
    with compute.device_scope():
        result.data[...] = from_integers(S.basis, S.n, values, compute)
    return _in_domain(S, result.finish(), domain)


def mod_up(
    ring: Ring, x: Array, domain: Domain, S: Ring, conversion: Precision = "exact", out: Array | None = None
) -> Value:
    """The centred value modulo S, which has all of the ring's moduli."""
    for r in (ring, S):
        check_words(r, "mod_up")
    _places(S, ring.moduli, "mod_up", "convert() needs no modulus in common")
    return convert(ring, x, domain, S, conversion, out)


def mod_down(
    ring: Ring,
    x: Array,
    domain: Domain,
    S: Ring,
    rounding: Rounding = "nearest",
    conversion: Precision = "exact",
    plaintext: int | None = None,
    out: Array | None = None,
    scratch: bool = False,
    in_coefficients: bool = False,
) -> Value:
    """The value divided by the product P of the moduli that S lacks, rounded.

    scratch: x may be overwritten. in_coefficients: the rows of x modulo the moduli of P are in coefficients,
    even where its domain is "eval".
    """
    check_words(ring, "mod_down")
    checked_option(rounding, "rounding", Rounding)
    exact = checked_option(conversion, "conversion", Precision) == "exact"
    kept = _places(ring, S.moduli, "mod_down", "its moduli must be among those of the value")
    dropped = tuple(i for i in range(ring.rows) if i not in kept)
    P = prod(ring.moduli[i] for i in dropped)
    t = None if plaintext is None else _checked_plaintext(plaintext, P)
    if not dropped:
        return restrict(ring, x, domain, S, out)
    if domain == "eval" and not _same_leaves(ring, S):
        assert not in_coefficients
        return _through_coefficients(mod_down, ring, x, S, rounding, conversion, plaintext, out=out)
    result = _Result(S, x, out, x.shape[:-2])
    data, rows = coefficients_of(ring, x, "coef" if in_coefficients else domain, dropped, scratch)
    places = tuple(range(S.rows))
    target = Residues(S.moduli, places, S.rows)

    def inverses() -> tuple[int, ...]:
        return tuple(pow(P, -1, s) for s in S.moduli)

    def taken_away(**last: Any) -> Conversion:
        multipliers = tuple(-i % s for i, s in zip(inverses(), S.moduli, strict=True))
        return Conversion(rows, target, multipliers, rounding, exact, **last)

    def last() -> dict[str, Any]:
        """What the last conversion does besides: it transforms its part, then adds x times 1 / P."""
        own = Residues(S.moduli, kept, ring.rows)
        return {"transform": _transform(S, places, domain), "own": own, "own_factors": inverses()}

    key, compute = (S, rounding, exact, domain, rows.total), result.compute
    if t is None:
        plan = kept_plan(ring, ("mod_down", *key), lambda: taken_away(**last()))
        compute.convert(plan, data, x, result.data)
        return result.finish(), domain
    # Let v be a mod P, centred for "nearest", and u = v / P mod t, centred. The result is (a - v) / P + u.
    # P times the result is a - v + P u, which is a modulo t.
    # Source: Brakerski, Gentry, Vaikuntanathan 2011/277, section 4.
    one = Residues((t,), (0,), 1)
    u = empty(compute, (*x.shape[:-2], 1, ring.n), np.dtype(np.uint64))
    compute.convert(kept_plan(ring, ("value", *key), taken_away), data, None, result.data)
    plan = kept_plan(
        ring, ("modulo t", t, *key), lambda: Conversion(rows, one, (pow(P, -1, t),), rounding, exact)
    )
    compute.convert(plan, data, None, u)
    plan = kept_plan(
        ring, ("sum", t, *key), lambda: Conversion(one, target, (1,) * S.rows, accumulate=True, **last())
    )
    compute.convert(plan, u, x, result.data)
    return result.finish(), domain


def _checked_plaintext(plaintext: object, P: int) -> int:
    t = integer(plaintext, "plaintext")
    if not 2 <= t <= 1 << 64 or gcd(t, P) != 1:
        raise ParameterError(
            f"plaintext: {shown(t)} must be from 2 to 2**64 and coprime to the moduli that fall away"
        )
    return t


def scale(
    ring: Ring,
    x: Array,
    domain: Domain,
    S: Ring,
    t: int,
    divisor: Ring | None = None,
    out: Array | None = None,
) -> Value:
    """floor((2 t v + D) / (2 D)) modulo S, of the centred value v."""
    for r in (ring, S):
        check_words(r, "scale")
    factor = integer(t, "t")
    D = ring if divisor is None else checked_ring(ring, divisor, "divisor")
    divisors = tuple(
        sorted(_places(ring, D.moduli, "scale", "the divisor's moduli must be among the value's"))
    )
    result = _Result(S, x, out, x.shape[:-2])
    data, rows = coefficients_of(ring, x, domain, tuple(range(ring.rows)))

    wanted: Domain = domain if S.has_eval else "coef"
    places = tuple(range(S.rows))

    def build() -> Conversion:
        target, plan = Residues(S.moduli, places, S.rows), _transform(S, places, wanted)
        return Conversion(rows, target, (1,) * S.rows, factor=factor, divisors=divisors, transform=plan)

    plan = kept_plan(ring, ("scale", factor, divisors, S, wanted), build)
    result.compute.convert(plan, data, None, result.data)
    return result.finish(), wanted


def groups(ring: Ring, size: int) -> list[tuple[int, ...]]:
    """The limbs of each digit: `size` neighbours, of the last one perhaps fewer."""
    count = integer(size, "size")
    if count < 1:
        raise ParameterError(f"size: {shown(count)} must be at least 1, the limbs of a digit")
    return [tuple(range(i, min(i + count, ring.rows))) for i in range(0, ring.rows, count)]


def digits(
    ring: Ring,
    x: Array,
    domain: Domain,
    S: Ring,
    size: int,
    conversion: Precision = "exact",
    out: Array | None = None,
) -> Value:
    """The centred value of each group of limbs modulo S, along a new last batch axis."""
    for r in (ring, S):
        check_words(r, "digits")
    exact = checked_option(conversion, "conversion", Precision) == "exact"
    parts = groups(ring, size)
    if domain == "eval" and not _same_leaves(ring, S):
        return _through_coefficients(digits, ring, x, S, size, conversion, out=out)
    result = _Result(S, x, out, (*x.shape[:-2], len(parts)))
    at = {q: i for i, q in enumerate(ring.moduli)}
    own = [(at[q], j * S.rows + r) for j, part in enumerate(parts) for r, q in _own(ring, S, part)]
    flat = result.data.reshape(*x.shape[:-2], len(parts) * S.rows, ring.n)
    copy_rows(x, (i for i, _ in own), flat, (place for _, place in own))
    data, rows = coefficients_of(ring, x, domain, tuple(range(ring.rows)))
    result.compute.convert_all(digit_conversions(ring, rows, S, parts, exact, domain), data, flat)
    return result.finish(), domain


def digit_conversions(
    ring: Ring, rows: Residues, S: Ring, parts: Sequence[tuple[int, ...]], exact: bool, domain: Domain
) -> list[Conversion]:
    """The conversions of a value's coefficients, in these rows, to its digits in a domain.

    A digit is made modulo all limbs of S except those of its own group. Digit j is written to the rows from
    j S.rows on of an array (*batch, digits * S.rows, n).
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


def _own(ring: Ring, S: Ring, part: Iterable[int]) -> list[tuple[int, int]]:
    """The limbs of S whose moduli are in a group of the ring's limbs: (number, modulus) of each."""
    moduli = {ring.moduli[i] for i in part}
    return [(r, q) for r, q in enumerate(S.moduli) if q in moduli]
