"""Key switching: which rows of digits, values and keys belong together."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..locks import cached_property
from .basis import Handles
from .ntt import NttPlan, part_of
from .rns import Conversion, Residues, multiples, runs_of


@dataclass(frozen=True, eq=False)
class DigitProduct:
    """out_c = sum over the digits of digit_j key[j, c] modulo each limb of a transform, evaluated.

    A multiple of another value, (*batch, 2, own_total, n), evaluated, may be added to the sums: where a
    limb's entry of `factors` is not 0, that factor times the limb's own row.

    Digits follow from a value's coefficients by `conversions`, one for each digit, into rows (*batch, digits
    * limbs, n). Modulo a limb of its own group a digit is the value itself: that "own" row is read from the
    evaluated value, (*batch, own_total, n). Without conversions all rows of digits are given evaluated.
    Modulo the limbs of `inverse`, which are neighbours, the sums are left in coefficients.
    """

    transform: NttPlan  # of the limbs of digits and result, complete
    digits: int
    key_rows: tuple[int, ...]  # of each limb: its row in a key, (digits or more, 2, key_total, n)
    key_total: int
    conversions: tuple[Conversion, ...] = ()
    own: dict[int, tuple[int, int]] = field(default_factory=dict)  # by limb: the digit, its row of the value
    own_total: int = 0  # rows of the value
    factors: tuple[int, ...] = ()  # of each limb, of the value added to the sums; 0 where nothing is added
    inverse: tuple[int, ...] = ()
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def made_rows(self) -> list[int]:
        """Return the rows of digits and limbs that are not own rows: conversions make them."""
        limbs = len(self.key_rows)
        own = {j * limbs + limb for limb, (j, _) in self.own.items()}
        return [i for i in range(self.digits * limbs) if i not in own]

    @cached_property
    def inverse_transform(self) -> NttPlan:
        """Return the transform of the limbs whose sums are left in coefficients."""
        return part_of(self.transform, self.inverse)

    @cached_property
    def runs(self) -> list[tuple[int, NttPlan]]:
        """Return runs of neighbours among made_rows: the first row, and the transform of the run."""
        limbs = len(self.key_rows)
        return [
            (first, part_of(self.transform, tuple(i % limbs for i in range(first, first + count))))
            for first, count in runs_of(self.made_rows)
        ]

    @cached_property
    def adding(self) -> Conversion:
        """Return the conversion that adds the multiple of another value to the sums."""
        rows = tuple(self.own[i][1] if f else 0 for i, f in enumerate(self.factors))
        return _adding(self.transform, self.factors, rows, self.own_total)

    @cached_property
    def own_copy(self) -> Conversion:
        """Return the conversion that copies rows of the evaluated value to their places.

        The places are among digits and limbs.
        """
        limbs, moduli = len(self.key_rows), self.transform.basis.moduli
        places = sorted((j * limbs + limb, limb, row) for limb, (j, row) in self.own.items())
        own = tuple(moduli[limb] for _, limb, _ in places)
        target = Residues(own, tuple(place for place, _, _ in places), self.digits * limbs)
        value = Residues(own, tuple(row for _, _, row in places), self.own_total)
        return multiples(value, (1,) * len(own), target)


@dataclass(frozen=True, eq=False)
class RotatedSums:
    """out_g = sum over terms t of weight_(g, t) rho_t(sum_j digit_j key_t[j] + (f more_0, 0)), evaluated.

    rho_t is an automorphism X -> X^g. A term without a key is rho_t(f more_0, f more_1). The factor f depends
    on the limb: a value of fewer limbs that is multiplied by the product of the others has the factor 0
    modulo these. Turned keys are rotated themselves; of other keys, which encrypt under the secret after the
    rotation, only the digits are: rho_t(digit_j) key_t[j].
    """

    products: tuple[DigitProduct | None, ...]  # of each term; None for a term without a key
    transform: NttPlan  # of the limbs of digits and result, complete
    factors: tuple[int, ...]  # of each limb, of its row of `more`
    more_rows: tuple[int, ...]  # of each limb: its row of `more`; any one where the factor is 0
    more_total: int  # rows of `more`
    is_turned: bool
    # For each result and term the number of the weight, or -1 where the result has no such term. Without
    # weights all other numbers stand for 1.
    places: tuple[tuple[int, ...], ...]
    # Whether each term has digits and `more` of its own, along a first axis. Terms without a key have no
    # digits there.
    is_split: bool = False
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def adding(self) -> Conversion:
        """Return the conversion that adds f times `more`."""
        return _adding(self.transform, self.factors, self.more_rows, self.more_total)


def _adding(transform: NttPlan, factors: tuple[int, ...], rows: tuple[int, ...], total: int) -> Conversion:
    """Return the conversion that adds multiples of rows of another value, of `total` rows, to limbs."""
    limbs, moduli = tuple(i for i, f in enumerate(factors) if f), transform.basis.moduli
    chosen = tuple(moduli[i] for i in limbs)
    target = Residues(chosen, limbs, len(moduli))
    own, own_factors = (
        Residues(chosen, tuple(rows[i] for i in limbs), total),
        tuple(factors[i] for i in limbs),
    )
    nothing, zeros = Residues((), (), 0), (0,) * len(limbs)
    return Conversion(nothing, target, zeros, accumulate=True, own=own, own_factors=own_factors)
