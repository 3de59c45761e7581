"""Plans of key switching: which rows of digits, values and keys are multiplied with each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..locks import cached_property
from .basis import Handles
from .ntt import NttPlan, part_of
from .rns import Conversion, Residues, multiples, runs_of


@dataclass(frozen=True, eq=False)
class DigitProduct:
    """The plan that computes the sums of digit_j * key[j, c] over all digits j, for c = 0 and 1.

    The sums are evaluated values, modulo all limbs.

    `conversions` has one conversion for each digit. It computes rows of digits, (*batch, digits * limbs, n),
    from the coefficients of a value. Each digit belongs to a group of limbs. Modulo a limb of this group, the
    digit equals the value, so the row is copied from the evaluated value, (*batch, own_total, n). Such rows
    are called own rows. If `conversions` is empty, the caller gives evaluated digits.

    The caller may give another evaluated value, `more`, (*batch, 2, own_total, n). If factors[i] is not 0,
    row own[i][1] of `more`, times factors[i], is added to row i of the sums. The limbs of `inverse` are
    consecutive. Modulo the limbs of `inverse`, the sums are transformed back to coefficients.
    """

    transform: NttPlan  # complete; its limbs are those of the digits and the result
    digits: int
    key_rows: tuple[int, ...]  # for each limb, its row in a key (d, 2, key_total, n), d >= digits
    key_total: int
    conversions: tuple[Conversion, ...] = ()
    # For each limb in the group of a digit: index of the digit, and index of the limb's row in the value.
    own: dict[int, tuple[int, int]] = field(default_factory=dict)
    own_total: int = 0  # the number of rows of the value
    factors: tuple[int, ...] = ()  # for each limb, the factor of `more`; 0 adds nothing
    inverse: tuple[int, ...] = ()
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def made_rows(self) -> list[int]:
        """Return the indices of the rows of digits that `conversions` compute: all rows not in `own`."""
        limbs = len(self.key_rows)
        own = {j * limbs + limb for limb, (j, _) in self.own.items()}
        return [i for i in range(self.digits * limbs) if i not in own]

    @cached_property
    def inverse_transform(self) -> NttPlan:
        """Return the transform modulo the limbs of `inverse`."""
        return part_of(self.transform, self.inverse)

    @cached_property
    def runs(self) -> list[tuple[int, NttPlan]]:
        """Return the runs of consecutive rows in made_rows, each as (first row, transform of the rows)."""
        limbs = len(self.key_rows)
        return [
            (first, part_of(self.transform, tuple(i % limbs for i in range(first, first + count))))
            for first, count in runs_of(self.made_rows)
        ]

    @cached_property
    def adding(self) -> Conversion:
        """Return the conversion that adds `more`, times `factors`, to the sums."""
        rows = tuple(self.own[i][1] if f else 0 for i, f in enumerate(self.factors))
        return _adding(self.transform, self.factors, rows, self.own_total)

    @cached_property
    def own_copy(self) -> Conversion:
        """Return the conversion that copies the rows in `own` from the evaluated value to the digits."""
        limbs, moduli = len(self.key_rows), self.transform.basis.moduli
        places = sorted((j * limbs + limb, limb, row) for limb, (j, row) in self.own.items())
        own = tuple(moduli[limb] for _, limb, _ in places)
        target = Residues(own, tuple(place for place, _, _ in places), self.digits * limbs)
        value = Residues(own, tuple(row for _, _, row in places), self.own_total)
        return multiples(value, (1,) * len(own), target)


@dataclass(frozen=True, eq=False)
class RotatedSums:
    """Weighted sums of rotated ciphertexts after key switching, evaluated.

    Result r is the sum over its terms t of weight_(r, t) * term_t. Let `more` be a ciphertext (more_0,
    more_1), digit_j the digits of more_1, rho_t an automorphism X -> X^g, and f a factor for each limb. Then
    term_t is

      without a key                rho_t(f * more_0, f * more_1)
      with a key, is_turned        rho_t(sum_j digit_j * key_t[j] + (f * more_0, 0))
      with a key, not is_turned    sum_j rho_t(digit_j) * key_t[j] + rho_t(f * more_0, 0)

    In the last case, key_t is a key for the rotated secret. If the results have more limbs than `more`, then
    f is the product of the additional moduli, which is 0 modulo the additional limbs.
    """

    products: tuple[DigitProduct | None, ...]  # one for each term; None if the term has no key
    transform: NttPlan  # complete; its limbs are those of the digits and the result
    factors: tuple[int, ...]  # for each limb, the factor f of `more`
    more_rows: tuple[int, ...]  # for each limb, the index of its row in `more`; any index if the factor is 0
    more_total: int  # the number of rows of `more`
    is_turned: bool  # whether rho_t is applied after the key switch
    # places[r][t]: the index of weight_(r, t), or -1 if result r does not have term t. If no weights are
    # given, all weights are 1.
    places: tuple[tuple[int, ...], ...]
    # Whether `more` and the digits differ from term to term. If True, the first axis of `more` has all terms,
    # and the first axis of the digits has the terms with a key.
    is_split: bool = False
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def adding(self) -> Conversion:
        """Return the conversion that adds `more`, times `factors`, to the sums."""
        return _adding(self.transform, self.factors, self.more_rows, self.more_total)


def _adding(transform: NttPlan, factors: tuple[int, ...], rows: tuple[int, ...], total: int) -> Conversion:
    """Return the conversion that adds factors[i] * (row rows[i] of another value) to each limb i.

    A limb with factor 0 is left out. total: the number of rows of the other value.
    """
    limbs, moduli = tuple(i for i, f in enumerate(factors) if f), transform.basis.moduli
    chosen = tuple(moduli[i] for i in limbs)
    target = Residues(chosen, limbs, len(moduli))
    own, own_factors = (
        Residues(chosen, tuple(rows[i] for i in limbs), total),
        tuple(factors[i] for i in limbs),
    )
    nothing, zeros = Residues((), (), 0), (0,) * len(limbs)
    return Conversion(nothing, target, zeros, accumulate=True, own=own, own_factors=own_factors)
