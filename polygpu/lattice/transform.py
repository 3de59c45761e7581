"""Products of matrices with the slots of ciphertexts, computed as sums of diagonals times rotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import fft
from .._backends import Array
from .._core.checks import integer, shown
from .._core.locks import cached_property
from .._ops import switch as ops
from ..errors import NotComplex, ParameterError, RingMismatch
from ..poly import Poly, as_poly, check_one_device, plan_of, without_last
from ..ring import Ring
from .keys import SwitchKey
from .switch import Hoisted, checked_rotations

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True, eq=False, repr=False)
class LinearTransform:
    """A matrix that acts on the n/2 slots of CKKS ciphertexts, given by its diagonals.

    The product of the matrix with a vector v is the sum over k of d_k * numpy.roll(v, -k), where d_k is
    diagonal k. The diagonals are multiplied by `scale` and encoded once, modulo all limbs of `ring` and
    `special`. `transform` multiplies ciphertexts by the diagonals in baby steps i and giant steps g.
    Diagonal k belongs to the steps with g + i = k, where 0 <= i < baby and g is a multiple of baby. All baby
    steps share the digits of the ciphertext. Each giant step other than 0 takes one more key switch.

    Args:
        diagonals: a dict from k, taken modulo n/2, to d_k. Each d_k is a vector of n/2 complex numbers, or a
            shorter one whose length is a power of two and which is then repeated. Diagonals that the dict
            lacks are 0.
        ring: the ring Q of the ciphertexts.
        special: the ring of the keys' special primes.
        scale: a number by which the diagonals are multiplied before they are rounded.
        baby: the largest number of baby steps for a giant step, a power of two up to n/2. By default it is
            the power of two for which the total number of steps is smallest. If there are several, it is the
            smallest of these.

    Raises:
        NotNTTFriendly: Q.join(special) has no complete transform.
        RingMismatch: `special` differs from `ring` in degree or kind.
        BadRoot: `special` and `ring` have different roots for the same prime.
        NotComplex: a diagonal holds something other than finite numbers.
        ParameterError: `diagonals` is empty or has two entries for one k modulo n/2; `baby` or the length of
            a diagonal is not a power of two up to n/2; or `ring` is not negacyclic with n at least 2.

    Cost: for each diagonal an FFT and rounding on the host, and a forward transform of all limbs. Each
    encoded diagonal takes the memory of one value of Q.join(special).
    Source: Halevi, Shoup 2018/244, section 5; Bossuat, Mouchet, Troncoso-Pastoriza, Hubaux 2020/1203,
    section 4.

    >>> import polygpu as pg
    >>> T = pg.Ring(16, pg.ntt_primes(16, bits=40, count=3))
    >>> M = pg.lattice.LinearTransform({0: [1], 1: [0.5], 5: [2j]}, ring=T[:2], special=T[2:], scale=2**20)
    >>> M
    LinearTransform(n=16, limbs=2, special=1, diagonals=3, baby=1, giants=3)
    >>> M.galois_elements
    (5, 21)
    """

    diagonals: Poly = field(init=False)
    ring: Ring
    special: Ring
    scale: int | float | Fraction
    baby: int
    _steps: tuple[int, ...] = field(init=False)  # the index k of each diagonal, in [0, n/2)

    def __init__(
        self,
        diagonals: Mapping[int, Any],
        *,
        ring: Ring,
        special: Ring,
        scale: int | float | Fraction,
        baby: int | None = None,
    ) -> None:
        plan_of(ring, "ring"), plan_of(special, "special")
        T = ring.join(special)
        ops.key_switch_plan(ring._plan, special._plan, T._plan, ring.rows)
        if ring.kind != "negacyclic" or ring.n < 2:
            raise ParameterError(
                f"ring is {ring!r}, which has no slots. Use a ring with kind='negacyclic' and n >= 2."
            )
        rows, half = _checked_diagonals(diagonals, ring.n // 2), ring.n // 2
        size = _best_baby(rows, half) if baby is None else _checked_baby(baby, half)
        # Diagonal k belongs to giant step g = k - k % size. Diagonal k is stored rolled by g, because giant
        # step g rolls its sum by -g.
        slots = fft.from_slots(np.stack([np.roll(row, k - k % size) for k, row in rows.items()]))
        encoded = T.from_floats(slots, scale=scale)
        encoded.ntt(out=encoded)
        values = {
            "diagonals": encoded.to(),
            "ring": ring,
            "special": special,
            "scale": scale,
            "baby": size,
            "_steps": tuple(rows),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def galois_elements(self) -> tuple[int, ...]:
        """The Galois elements of the keys that `transform` needs, ascending. The element 1 needs no key."""
        n = self.ring.n
        return tuple(sorted({pow(5, k, 2 * n) for k in (*self._babies, *self._giants)} - {1}))

    @property
    def nbytes(self) -> int:
        """Number of bytes of the encoded diagonals."""
        return int(self.diagonals.data.nbytes)

    @property
    def device(self) -> str:
        """The device that holds the diagonals, see `Poly.device`."""
        return self.diagonals.device

    def to(self, device: str | None = None) -> LinearTransform:
        """Return the matrix with its diagonals on a device, by default the current one.

        Args:
            device: see `Poly.to`.

        Raises:
            BackendUnavailable, OutOfHostMemory, OutOfDeviceMemory: see `Poly.to`.

        Cost: a copy of the diagonals, unless they are on the device already.

        >>> import polygpu as pg
        >>> T = pg.Ring(16, pg.ntt_primes(16, bits=40, count=2))
        >>> pg.lattice.LinearTransform({0: [1]}, ring=T[:1], special=T[1:], scale=1).to("cpu").device
        'cpu'
        """
        return self._with(self.diagonals.to(device))

    def _with(self, diagonals: Poly) -> LinearTransform:
        """Return a copy of self with other encoded diagonals."""
        new = copy(self)
        object.__setattr__(new, "diagonals", diagonals)
        return new

    @cached_property
    def _babies(self) -> list[int]:
        return sorted({k % self.baby for k in self._steps})

    @cached_property
    def _giants(self) -> list[int]:
        return sorted({k - k % self.baby for k in self._steps})

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        """Table with a row for each giant step g and a column for each baby step i.

        The entry is the index of diagonal g + i in `diagonals`, or -1 if diagonal g + i is 0.
        """
        at = {k: i for i, k in enumerate(self._steps)}
        return tuple(tuple(at.get(g + i, -1) for i in self._babies) for g in self._giants)

    def explain(self) -> str:
        """Return a text about products with the matrix: their steps, keys and memory, one fact per line.

        Cost: none.

        >>> import polygpu as pg
        >>> T = pg.Ring(16, pg.ntt_primes(16, bits=40, count=3))
        >>> M = pg.lattice.LinearTransform({0: [1], 5: [2]}, ring=T[:2], special=T[2:], scale=2**20, baby=4)
        >>> print(M.explain())
        LinearTransform(n=16, limbs=2, special=1, diagonals=2, baby=4, giants=2)
        babies    0 1
        giants    0 4
        keys      2, of the Galois elements 5 17
        bytes     768 of diagonals
        """
        babies, giants, elements = self._babies, self._giants, self.galois_elements

        def named(numbers: Iterable[int]) -> str:
            return " ".join(map(str, numbers))

        lines = [
            repr(self),
            f"babies    {named(babies)}",
            f"giants    {named(giants)}",
            f"keys      {len(elements)}, of the Galois elements {named(elements)}",
            f"bytes     {self.nbytes} of diagonals",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"LinearTransform(n={self.ring.n}, limbs={self.ring.rows}, special={self.special.rows}, "
            f"diagonals={len(self._steps)}, baby={self.baby}, giants={len(self._giants)})"
        )


def transform(
    c: Poly | Hoisted, M: LinearTransform, keys: Mapping[int, SwitchKey], *, rescale: int = 0
) -> Poly:
    """Multiply the slots of ciphertexts by a matrix: slots v become M @ v.

    The phase of the result is multiplied by M.scale, and divided by the moduli of the limbs that `rescale`
    drops. Baby steps are summed before any division (double hoisting). For each giant step g and each baby
    step i, the ciphertexts rotated by i places are multiplied by diagonal g + i. These products are summed
    over i, modulo T = M.ring.join(M.special). The mask of each sum is divided by P, the product of the
    special primes, rounded to the nearest, and switched with the key for g. The sum over all giant steps is
    divided once, by P times the moduli of the dropped limbs, and rounded to the nearest.

    Args:
        c: ciphertexts of batch shape (*batch, 2). Their ring is M.ring, or has more limbs, which are ignored.
            Or the result of `hoist` for ciphertexts of M.ring.
        M: the matrix.
        keys: a dict from Galois elements to keys, made by rotation_keys with turned=True. It must have a key
            for each of M.galois_elements.
        rescale: how many of M.ring's last limbs the result drops. The result is divided by the product of
            their moduli.

    Returns a value of batch shape (*batch, 2) in c's domain, of M.ring or, with `rescale`, of
    M.ring[:-rescale].

    Raises:
        ParameterError: the last batch axis of c does not have length 2; a key is missing, is not turned, or
            has other special primes than M; keys differ in limbs_per_digit; rescale is outside its range; or
            M is not a LinearTransform.
        RingMismatch: c lacks a limb of M.ring, or was hoisted in another ring than M.ring.
        DeviceError: the operands are on two devices.

    Cost: with d digits, l limbs of M.ring, p special primes, and h giant steps other than 0, an evaluated
    value takes l + h * (l + p) + 2 * (p + rescale) inverse transforms and
    (1 + h) * d * (l + p) + l - 2 * rescale forward transforms. Each diagonal and each key is read once.
    Source: Bossuat, Mouchet, Troncoso-Pastoriza, Hubaux 2020/1203, section 4.

    >>> import numpy as np
    >>> import polygpu as pg
    >>> T = pg.Ring(16, pg.ntt_primes(16, bits=40, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> M = pg.lattice.LinearTransform({0: [1], 1: [0.5]}, ring=Q, special=P, scale=2**20)
    >>> of = {"ring": Q, "special": P, "limbs_per_digit": 1}
    >>> keys = pg.lattice.rotation_keys(s, M.galois_elements, turned=True, **of)
    >>> v, mask = np.arange(8) + 0j, Q.random(seed=2)
    >>> m = Q.from_floats(pg.fft.from_slots(v), scale=2**30)
    >>> c = pg.stack([m - mask * s.restrict(Q), mask])
    >>> d = pg.lattice.transform(c, M, keys)
    >>> phase = d[0] + d[1] * s.restrict(Q)
    >>> np.round(pg.fft.to_slots(phase.to_float64() / 2**50).real, 3)
    array([0.5, 2. , 3.5, 5. , 6.5, 8. , 9.5, 7. ])
    """
    if not isinstance(M, LinearTransform):
        raise ParameterError(f"M must be a LinearTransform, not {type(M).__name__}.")
    if not isinstance(keys, Mapping):
        raise ParameterError(f"keys must be a dict from Galois elements to keys, not {type(keys).__name__}.")
    n, steps_of_both, elements = M.ring.n, (M._babies, M._giants), M.galois_elements
    missing = [g for g in elements if g not in keys]
    if missing:
        raise ParameterError(
            f"keys has no key for the Galois elements {missing}. Use rotation_keys(secret, "
            "M.galois_elements, turned=True, ...) to make them."
        )
    c, made, found = checked_rotations(c, {g: keys[g] for g in elements})
    if c.ring != M.ring:
        if made is not None:
            raise RingMismatch(
                f"c was hoisted in {c.ring!r}, and M is of {M.ring!r}. Use restrict(M.ring) on the "
                "ciphertext before you hoist it."
            )
        c = c.restrict(M.ring)
    for g, key in found.items():
        if key.special != M.special:
            raise ParameterError(
                f"keys[{g}] has special primes other than those of M, {list(M.special.moduli)}. Use keys "
                "that were made with special=M.special."
            )
        if not key.turned or key.galois_element != g:
            raise ParameterError(
                f"keys[{g}] must be a turned key of X -> X^{g}. Use rotation_keys with turned=True to make "
                "it."
            )
    check_one_device(c, M.diagonals)
    ring = without_last(M.ring, rescale, "rescale", least=0)
    chosen = [[None if k == 0 else found[pow(5, k, 2 * n)] for k in steps] for steps in steps_of_both]
    plan = _plan(M, chosen)
    moves = [ops.moves_of(c, [pow(5, k, 2 * n) for k in steps]) for steps in steps_of_both]
    values = [tuple(None if key is None else key.value for key in some) for some in chosen]
    value = ops.slot_product(c, M.diagonals, plan, moves[0], values[0], moves[1], values[1], ring._plan, made)
    return as_poly(ring, value, None)


def _plan(M: LinearTransform, chosen: list[list[SwitchKey | None]]) -> ops.SlotProduct:
    """Return the plan of a product with M.

    chosen: two lists, the keys of the baby steps and the keys of the giant steps. Step 0 has the key None.
    """
    # Without keys nothing is split into digits. Then the number of limbs in a digit does not matter.
    size = next((key.limbs_per_digit for some in chosen for key in some if key is not None), M.ring.rows)
    T = M.diagonals._plan
    switch = ops.key_switch_plan(M.ring._plan, M.special._plan, T, size)
    switches = [tuple(None if key is None else key._switch(M.ring) for key in some) for some in chosen]
    return ops.slot_product_plan(switch, switches[0], switches[1], M._places)


# ---- diagonals ----


def _checked_diagonals(diagonals: object, half: int) -> dict[int, Array]:
    """Return a dict from k to diagonal k, an array of `half` complex numbers.

    The k are in [0, half), ascending. Raise an error if `diagonals` is not valid.
    """
    if not isinstance(diagonals, Mapping):
        raise ParameterError(
            f"diagonals must be a dict from the index of a diagonal to its entries, such as "
            f"{{0: [1], 1: [0.5]}}, not {type(diagonals).__name__}."
        )
    if not diagonals:
        raise ParameterError("diagonals is empty. Give at least one diagonal, such as {0: [0]}.")
    rows: dict[int, Array] = {}
    for given, row in diagonals.items():
        k = integer(given, "diagonals") % half
        if k in rows:
            raise ParameterError(
                f"The key {shown(given)} of diagonals is {k} modulo n/2 = {half}, and so is another key. "
                "Give each diagonal once."
            )
        try:
            numbers = np.asarray(row)
            is_wrong = numbers.dtype.kind not in "biufc"
        except (TypeError, ValueError):
            is_wrong = True
        values = np.zeros(1, np.complex128) if is_wrong else numbers.astype(np.complex128)
        if is_wrong or not np.isfinite(values).all():
            raise NotComplex(f"diagonals[{shown(given)}] must hold finite complex numbers.")
        count = len(values) if values.ndim == 1 else 0
        if not count or count > half or half % count:
            raise ParameterError(
                f"The shape of diagonals[{shown(given)}] is {values.shape}. It must have one axis, of "
                f"length n/2 = {half} or of a smaller power of two."
            )
        rows[k] = np.tile(values, half // count)
    return dict(sorted(rows.items()))


def _checked_baby(baby: object, half: int) -> int:
    size = integer(baby, "baby")
    if not 1 <= size <= half or size & (size - 1):
        raise ParameterError(f"baby={shown(size)} must be a power of two from 1 to n/2 = {half}.")
    return size


def _best_baby(steps: Any, half: int) -> int:
    """Return the smallest power of two that, used as `baby`, gives the fewest baby and giant steps in total.

    steps: the indices k of the diagonals.
    """

    def work(size: int) -> int:
        return len({k % size for k in steps}) + len({k // size for k in steps})

    return min((1 << i for i in range(half.bit_length())), key=work)
