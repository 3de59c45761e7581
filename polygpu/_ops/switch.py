"""Key switching: digits of a value times a key, divided by the product P of the special moduli."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from .._backends import Array, backend_of
from .._core.checks import integer, shown
from .._core.plans.rns import Residues
from .._core.plans.switch import DigitProduct, RotatedSums
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


@is_plan
class KeySwitch:
    """The plan of a key switch: the ring T of the sums, the limbs of each digit, and the rows of the key.

    T has the moduli of `ring` and of `special`. `ring` is the ring of the values. `key_ring`, the ring of the
    key, has all moduli of T and may have more.
    """

    def __init__(
        self, ring: RingPlan, special: RingPlan, key_ring: RingPlan, size: int, conversion: Precision
    ) -> None:
        check_words(ring, "key_switch")
        check_target(ring, special, "special")
        if shared := [q for q in special.moduli if gcd(q, ring.modulus) > 1]:
            raise ParameterError(
                f"special has the modulus {shown(shared[0])}, which shares a factor with a modulus of the "
                "value. Use special moduli that are coprime to all moduli of the value."
            )
        self.ring, self.T, self.P, self.key_ring = ring, ring.join(special), special, key_ring
        check_target(self.T, key_ring, "The ring of key")
        if self.T.leaf_size != 1:
            raise NotNTTFriendly(
                f"key_switch needs a complete transform, which {self.T!r} does not have. "
                f"{self.T.where_complete()}"
            )
        self.parts, self.size = groups(ring, size), size
        self.conversion, self.exact = conversion, conversion == "exact"
        at = {q: i for i, q in enumerate(key_ring.moduli)}
        missing = [q for q in self.T.moduli if q not in at]
        if missing:
            raise RingMismatch(
                f"key has no limb modulo {shown(missing[0])}. The ring of key must be Q.join(special), "
                f"where Q is a ring with all moduli of the value, which are {shown(list(ring.moduli))}."
            )
        self.rows = tuple(at[q] for q in self.T.moduli)
        self._check_groups(special)

    def _check_groups(self, special: RingPlan) -> None:
        """Set key_digits, the number of digits of a key.

        Raise RingMismatch unless the limbs of values are the first limbs of the key.
        """
        whole = [q for q in self.key_ring.moduli if q not in special.moduli]
        self.key_digits = -(-len(whole) // self.size)
        for i, q in enumerate(self.ring.moduli):
            if whole[i] != q:
                raise RingMismatch(
                    f"Limb {i} of ring is {shown(q)}, and limb {i} of the key is {shown(whole[i])}. The "
                    "limbs of ring must be the first limbs of the key. Drop limbs from the end only."
                )

    def checked_key(self, key: Value, name: str = "key") -> Array:
        """Check a key, and return its array in the dtype of self.T. name: name of the key in error texts."""
        if key._domain != "eval":
            raise DomainError(f"{name} is in coefficients and must be evaluated. Use {name}.ntt().")
        if key._batch != (self.key_digits, 2):
            raise ParameterError(
                f"{name} has batch shape {key._batch} and must have {(self.key_digits, 2)}, a pair (b_j, "
                "a_j) for each digit."
            )
        return key._data if self.key_ring.dtype == self.T.dtype else restrict(key, self.T)._data

    def product(self, kept: int) -> DigitProduct:
        """Return the plan that computes the sums of digits times key from a value's coefficients.

        The first `kept` rows of the sums are evaluated. The other rows are in coefficients.
        """

        def build() -> DigitProduct:
            rows = Residues(self.ring.moduli, tuple(range(self.ring.rows)), self.ring.rows)
            own = {i: (j, i) for j, part in enumerate(self.parts) for i in part}
            made = digit_conversions(self.ring, rows, self.T, self.parts, self.exact, "coef")
            P = self.P.modulus  # the added value is multiplied by P, which is 0 modulo the factors of P
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
        """Return the plan that multiplies evaluated digits by the key and sums the products."""
        return kept_plan(self.ring, ("product of digits", self.T, self.key_ring, self.size), self._plan)

    def _plan(self, **more: object) -> DigitProduct:
        narrowed = self.key_ring.dtype != self.T.dtype  # in this case checked_key returns only the rows of T
        rows = tuple(range(self.T.rows)) if narrowed else self.rows
        total = self.T.rows if narrowed else self.key_ring.rows
        return DigitProduct(self.T.transform, len(self.parts), rows, total, **more)  # type: ignore[arg-type]


def key_switch_plan(
    ring: RingPlan, special: RingPlan, key_ring: RingPlan, size: int, conversion: Precision = "exact"
) -> KeySwitch:
    """Return the KeySwitch of these parameters. size: number of limbs of a digit."""
    checked_option(conversion, "conversion", Precision)
    number = integer(size, "limbs_per_digit")
    # The next call may pass an equal `special` that is another object. So `key` holds special.arguments.
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
    """Return the sum over j of (digit j of x) * key[j], divided by P: (*batch, 2), in x's domain.

    add: a ciphertext (*batch, 2), in x's domain, to add to the quotient; None for no addition.
    target: the ring of the result; None for x's ring. If `target` lacks moduli of x's ring, the quotient plus
    `add` is also divided by these moduli.

    P is the product of the special moduli.
    """
    factors = switch.checked_key(key)
    ring, T, compute = x._plan, switch.T, backend_of(x._data)
    S, evaluated = target or ring, x._domain == "eval"
    if out is not None:
        result_array(compute, (*x._batch, 2, S.rows, ring.n), out, x._data, *(() if add is None else (add,)))
        check_apart(out, factors)
    # P times `add` is added to the sums before they are divided by P. This is exact.
    more = None if add is None else in_dtype(add, T.dtype)
    plan = switch.product(S.rows if evaluated else T.rows)
    total = _products(x, factors, switch, plan, more if evaluated else None)
    if not evaluated:
        total = intt(total, total._data)
        if more is not None:
            compute.convert(plan.adding, None, more, total._data)
    # scratch="coef" tells divided() that the rows to drop are in coefficients already.
    return divided(total, S, "nearest", switch.conversion, out=out, scratch="coef")


@repeated
def key_switch_sums(
    x: Value, key: Value, switch: KeySwitch, add: Value | None = None, *, out: Array | None = None
) -> Value:
    """Return the sum over j of digit_j * key[j], plus P times `add`, modulo T: (*batch, 2), evaluated.

    P is the product of the special moduli. T: see KeySwitch.
    """
    factors, T = switch.checked_key(key), switch.T
    more = None if add is None else in_dtype(ntt(add)._data, T.dtype)
    if out is not None:
        result_array(backend_of(x._data), (*x._batch, 2, T.rows, T.n), out, x._data)
        check_apart(out, factors)
    return _products(x, factors, switch, switch.product(T.rows), more, out)


def _products(
    x: Value,
    factors: Array,
    switch: KeySwitch,
    plan: DigitProduct,
    more: Array | None,
    out: Array | None = None,
) -> Value:
    """Return the sums that `plan` computes from x, plus P times the evaluated `more`.

    P is the product of the special moduli.
    """
    T, compute = switch.T, backend_of(x._data)
    data, _ = coefficients_of(x)
    own = in_dtype(ntt(x)._data, T.dtype)
    total = empty(compute, (*x._batch, 2, T.rows, T.n), T.dtype) if out is None else out
    made = empty(compute, (*x._batch, len(switch.parts), T.rows, T.n), T.dtype)
    compute.digit_product(plan, (data, own), made, factors, total, more)
    return Value(T, total, "eval")


@repeated
def key_switch_digits(
    made: Value, key: Value, switch: KeySwitch, add: Value | None = None, *, out: Array | None = None
) -> Value:
    """Return what key_switch_sums returns for a value.

    made: the evaluated digits of the value, (*batch, digits).
    """
    T, compute, factors = switch.T, backend_of(made._data), switch.checked_key(key)
    total = result_array(compute, (*made._batch[:-1], 2, T.rows, T.n), out, made._data)
    if out is not None:
        check_apart(out, factors)
    compute.digit_product(switch.product_of_digits(), None, made._data, factors, total)
    if add is not None:
        more = in_dtype(ntt(add)._data, T.dtype)
        compute.convert(switch.product(T.rows).adding, None, more, total)
    return Value(T, total, "eval")


@repeated
def key_switch_hoisted(
    x: Value,
    made: Value,
    key: Value,
    switch: KeySwitch,
    add: Value | None,
    target: RingPlan,
    *,
    out: Array | None = None,
) -> Value:
    """Return what key_switch returns for x. made: the evaluated digits of x, (*batch, digits)."""
    total = key_switch_digits(made, key, switch, add)
    result = divided(total, target, "nearest", switch.conversion, out=out, scratch="eval")
    return result if x._domain == "eval" else intt(result, result._data)


def value_digits(x: Value, switch: KeySwitch) -> Value:
    """Return the evaluated digits of a value, (*batch, digits)."""
    return digits(ntt(x), switch.T, switch.size, switch.conversion)


def mask_digits(c: Value, switch: KeySwitch) -> Value:
    """Return the evaluated digits, (*batch, digits), of the masks c_1 of ciphertexts c."""
    evaluated = ntt(c)
    return value_digits(evaluated._with(index(evaluated._data, (..., 1))), switch)


# ---- rotations ----


@is_plan
class Rotations:
    """The plan for rotating ciphertexts, or for weighted sums of rotations, from the digits of the masks."""

    def __init__(
        self,
        switch: KeySwitch,
        switches: Sequence[KeySwitch | None],
        is_turned: bool,
        places: tuple[tuple[int, ...], ...],
        is_split: bool = False,
    ) -> None:
        """Plan one term for each entry of `switches`. RotatedSums defines the terms.

        switch: any KeySwitch with the rings of `switches`.
        switches: the KeySwitch of each term, or None if the term has no key.
        is_turned, places: see RotatedSums.
        is_split: if True, `run` takes a ciphertext modulo T for each term. If False, `run` takes only one
        ciphertext, and multiplies it by P, the product of the special moduli.
        """
        ring, T = switch.ring, switch.T
        self.T, self.switches = T, tuple(switches)
        P, own = switch.P.modulus, ring.rows
        more = T.rows if is_split else own
        self.sums = RotatedSums(
            products=tuple(None if switch is None else switch.product_of_digits() for switch in switches),
            transform=T.transform,
            factors=(1,) * T.rows
            if is_split
            else tuple(P % q if i < own else 0 for i, q in enumerate(T.moduli)),
            more_rows=tuple(i if i < more else 0 for i in range(T.rows)),
            more_total=more,
            is_turned=is_turned,
            places=places,
            is_split=is_split,
        )

    def run(
        self,
        made: Array | None,
        keys: Sequence[Value | None],
        moves: Array,
        more: Array,
        weights: Array | None,
        out: Array,
    ) -> None:
        """Compute the weighted sums of rotations, and write them to `out`.

        made: the evaluated digits of the masks, or None if no term has a key.
        moves: the multipliers of the automorphisms, on the device; see `moves_of`.
        more: the evaluated ciphertext, or, if `is_split` is True, the ciphertext of each term.
        weights: the factors of the terms; None if all factors are 1.
        """
        factors = [
            None if key is None or switch is None else switch.checked_key(key, f"keys[{i}]")
            for i, (key, switch) in enumerate(zip(keys, self.switches, strict=True))
        ]
        addend = in_dtype(more, self.T.dtype)
        backend_of(out).rotated_sums(self.sums, made, factors, moves, addend, weights, out)


def rotations(switches: tuple[KeySwitch, ...], is_turned: bool) -> Rotations:
    """Return the plan for rotations by several keys. Its result i is the rotation by key i alone."""

    def build() -> Rotations:
        count = range(len(switches))  # result i is term i alone
        return Rotations(
            switches[0], switches, is_turned, tuple(tuple(0 if i == j else -1 for j in count) for i in count)
        )

    return kept_plan(switches[0].ring, ("rotations", switches, is_turned), build)


@repeated
def rotated_sums(
    c: Value, made: Value, plan: Rotations, moves: Array, keys: tuple[Value, ...], *, out: None = None
) -> Value:
    """Return P times the rotation of c by each key, modulo T, evaluated: (len(keys), *batch, 2).

    P is the product of the special moduli. T: see KeySwitch.

    made: the evaluated digits of c's masks, (*batch, digits).
    """
    T, compute = plan.T, backend_of(c._data)
    shape = (len(keys), *c._data.shape[:-2], T.rows, T.n)
    compute.require(prod(shape) * T.dtype.itemsize, f"Rotate by fewer than {len(keys)} keys in a call")
    data = empty(compute, shape, T.dtype)
    plan.run(made._data, keys, moves, ntt(c)._data, None, data)
    return Value(T, data, "eval")


def rotate_many(
    c: V,
    gs: Sequence[int],
    keys: Sequence[Value],
    switches: Sequence[KeySwitch],
    is_turned: bool,
    made: Value | None = None,
) -> V:
    """Return the rotation of c by each key, in c's domain: (len(keys), *batch, 2).

    gs: the Galois element of each key. is_turned: see RotatedSums.
    made: the evaluated digits of c's masks; None to compute them.
    """
    moves = moves_of(c, gs)
    if made is None and len(keys) == 1 and not is_turned:
        return _rotated_once(c, moves, switches[0], keys[0])
    if made is None:
        made = mask_digits(c, switches[0])
    return _rotated(c, made, rotations(tuple(switches), is_turned), moves, tuple(keys))


def moves_of(c: Value, gs: Sequence[int]) -> Array:
    """Return an array on c's device: for each g in `gs`, the multiplier for evaluated values.

    See the argument `multipliers` of Backend.automorphism.
    """
    return backend_of(c._data).constant(multipliers(c._plan.quotient, tuple(gs), True))


@repeated
def _rotated(
    c: V, made: Value, plan: Rotations, moves: Array, keys: tuple[Value, ...], *, out: None = None
) -> V:
    """Return the rotation of c by each key, in c's domain: (len(keys), *batch, 2).

    made: the evaluated digits of c's masks, (*batch, digits). moves: the result of `moves_of`.
    """
    ring, T, compute, count = c._plan, plan.T, backend_of(c._data), len(keys)
    # The loop takes `together` keys at a time, so that sums modulo T stay in a cache until they are divided.
    bytes_of_one = prod(c._data.shape[:-2]) * T.rows * T.n * T.dtype.itemsize
    together = max(1, min(count, compute.divided_bytes // max(1, bytes_of_one)))
    needed = count * prod(c._data.shape) * ring.dtype.itemsize + together * bytes_of_one
    compute.require(needed, f"Rotate by fewer than {count} keys in a call")
    data = empty(compute, (count, *c._data.shape), ring.dtype)
    body = ntt(c)._data
    for start in range(0, count, together):
        some = slice(start, min(start + together, count))
        chosen = tuple(switch for switch in plan.switches[some] if switch is not None)
        part = rotations(chosen, plan.sums.is_turned)
        total = empty(compute, (some.stop - start, *c._data.shape[:-2], T.rows, T.n), T.dtype)
        part.run(made._data, keys[some], moves[some], body, None, total)
        divided(
            Value(T, total, "eval"), ring, "nearest", chosen[0].conversion, out=data[some], scratch="eval"
        )
    rotated = c._with(data, "eval")
    return rotated if c._domain == "eval" else intt(rotated, data)


@repeated
def _rotated_once(c: V, moves: Array, switch: KeySwitch, key: Value, *, out: None = None) -> V:
    """Return (c_0(X^g), 0) + key_switch(c_1(X^g)), of batch shape (1, *batch, 2).

    The mask is permuted before it is split into digits. So no digits are permuted.
    """
    ring, basis, compute = c._plan, c._plan.basis, backend_of(c._data)
    evaluated = ntt(c)
    moved = empty(compute, c._data.shape, ring.dtype)
    compute.automorphism(basis, ring.quotient, evaluated._data, moves[0, ...], True, moved)
    body, mask = index(moved, (..., 0)), evaluated._with(index(moved, (..., 1)))
    data = key_switch(mask, key, switch)._data[None]
    place = data[0, ..., 0, :, :]
    if place.flags.c_contiguous:
        pointwise(basis, "add", place, body, place)
    else:
        assign(data, (0, ..., 0), pointwise(basis, "add", index(data, (0, ..., 0)), body))
    rotated = c._with(data, "eval")
    return rotated if c._domain == "eval" else intt(rotated, data)


# ---- matrices times slots ----


@is_plan
class SlotProduct:
    """The plan of a product of a matrix with the vector of slots, by baby steps and giant steps.

    Diagonal g + i belongs to giant step g and baby step i. The mask of the ciphertext is split into digits
    once, and the ciphertext is rotated by each i. For each g the rotated ciphertexts times their diagonals
    are summed over i, and the sum is rotated by g.
    """

    def __init__(
        self,
        switch: KeySwitch,
        babies: Sequence[KeySwitch | None],
        giants: Sequence[KeySwitch | None],
        places: tuple[tuple[int, ...], ...],
    ) -> None:
        """Plan the product.

        babies, giants: the KeySwitch of each baby step and of each giant step. Only the first entry of each
        list may be None. None stands for step 0.
        places: places[g][i] is the index, in the weights, of the diagonal of giant step g and baby step i, or
        -1 if this diagonal is 0.
        """
        self.switch, self.T = switch, switch.T
        self.babies = Rotations(switch, babies, True, places)
        self.takes_digits = any(baby is not None for baby in babies)
        self.first = sum(giant is None for giant in giants)  # index of the first giant step with a key
        self.giants = None
        if self.first < len(giants):
            self.giants = Rotations(switch, giants, True, ((0,) * len(giants),), is_split=True)


@repeated
# Ten parameters, because @repeated identifies a call by its arguments: the function may read nothing else.
def slot_product(
    c: V,
    weights: Value,
    plan: SlotProduct,
    baby_moves: Array,
    baby_keys: tuple[Value | None, ...],
    giant_moves: Array,
    giant_keys: tuple[Value | None, ...],
    target: RingPlan,
    made: Value | None = None,
    *,
    out: Array | None = None,
) -> Value:
    """Return the matrix times c, divided by the moduli of c's ring that `target` does not have.

    weights: the diagonals, evaluated modulo T.
    made: the evaluated digits of c's masks; None to compute them.
    """
    ring, T, compute = c._plan, plan.T, backend_of(c._data)
    shape = (*c._data.shape[:-2], T.rows, T.n)
    moved = len(giant_keys) - plan.first if plan.giants else 0
    digits_of_all = len(plan.switch.parts) * (moved + (made is None and plan.takes_digits))
    compute.require(
        (2 * (len(giant_keys) + 1) + digits_of_all) * prod(shape) // 2 * T.dtype.itemsize,
        f"Give LinearTransform a larger `baby`, for fewer than {len(giant_keys)} giants",
    )
    if made is None and plan.takes_digits:
        made = mask_digits(c, plan.switch)
    given = None if made is None else made._data
    inner = empty(compute, (len(giant_keys), *shape), T.dtype)  # sums over baby steps
    plan.babies.run(given, baby_keys, baby_moves, ntt(c)._data, weights._data, inner)
    if plan.giants is None:
        total = inner[0]
    else:
        masks = Value(T, index(inner, (slice(plan.first, None), ..., 1)), "eval")
        low = divided(masks, ring, "nearest", scratch="eval")
        own = digits(low, T, plan.switch.size)
        sums = empty(compute, (1, *shape), T.dtype)
        plan.giants.run(own._data, giant_keys, giant_moves, inner, None, sums)
        total = sums[0]
    result = divided(Value(T, total, "eval"), target, "nearest", out=out, scratch="eval")
    return result if c._domain == "eval" else intt(result, result._data)


def slot_product_plan(
    switch: KeySwitch,
    babies: tuple[KeySwitch | None, ...],
    giants: tuple[KeySwitch | None, ...],
    places: tuple[tuple[int, ...], ...],
) -> SlotProduct:
    """Return the SlotProduct for these arguments."""
    key = "slot product", switch, babies, giants, places
    return kept_plan(switch.ring, key, lambda: SlotProduct(switch, babies, giants, places))
