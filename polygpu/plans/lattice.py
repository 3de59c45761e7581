"""Key switching and gadgets: which rows of digits, values and keys belong together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from .basis import Basis, Handles
from .ntt import NttPlan, part_of
from .permutation import Permutation
from .rns import Conversion, Residues, runs_of


@dataclass(frozen=True, eq=False)
class DigitProduct:
    """out_c = sum over the digits of digit_j key[j, c] modulo each limb of a transform, evaluated.

    Digits lie in coefficients, (*batch, digits, limbs, n). Modulo a limb of its own group a digit is the
    value itself: with `own`, that row is read from the evaluated value, (*batch, own_total, n). Or digits
    are evaluated, all rows: `transformed`, and then perhaps permuted.
    """

    transform: NttPlan  # of the limbs of digits and result, complete
    digits: int
    key_rows: tuple[int, ...]  # of each limb: its row in a key, (digits or more, 2, key_total, n)
    key_total: int
    own: dict[int, tuple[int, int]] = field(default_factory=dict)  # by limb: the digit, its row of the value
    own_total: int = 0
    transformed: bool = False
    permutation: Permutation | None = None
    handles: Handles = field(default_factory=dict, repr=False)

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """Neighbours among the rows of digits and limbs that are not own ones: the first, how many."""
        limbs = len(self.key_rows)
        own = {j * limbs + limb for limb, (j, _) in self.own.items()}
        return runs_of(i for i in range(self.digits * limbs) if i not in own)

    @cached_property
    def run_transforms(self) -> list[NttPlan]:
        """Of the rows of each run."""
        return [self._transform_of([run]) for run in self.runs]

    @cached_property
    def regular(self) -> NttPlan | None:
        """The transform of all runs, if they are alike in length and distance; the last may be shorter."""
        if len(self.runs) < 2:
            return None
        (first, run), (second, _), *_ = self.runs
        starts = [first + i * (second - first) for i in range(len(self.runs))]
        lengths = [count for _, count in self.runs]
        if [start for start, _ in self.runs] != starts or set(lengths[:-1]) != {run} or lengths[-1] > run:
            return None
        return self._transform_of(self.runs)

    def _transform_of(self, runs: list[tuple[int, int]]) -> NttPlan:
        limbs = len(self.key_rows)
        return part_of(self.transform, tuple(i % limbs for start, n in runs for i in range(start, start + n)))

    @cached_property
    def own_copy(self) -> Conversion:
        """The rows of the evaluated value, to their places among digits and limbs."""
        limbs, moduli = len(self.key_rows), self.transform.basis.moduli
        places = sorted((j * limbs + limb, limb, row) for limb, (j, row) in self.own.items())
        own = tuple(moduli[limb] for _, limb, _ in places)
        target = Residues(own, tuple(place for place, _, _ in places), self.digits * limbs)
        value = Residues(own, tuple(row for _, _, row in places), self.own_total)
        ones, nothing = (1,) * len(own), Residues((), (), 0)
        return Conversion(nothing, target, ones, own=value, own_factors=ones)


@dataclass(frozen=True, eq=False)
class Gadget:
    """Digits to a base B = 2^bits, `levels` of them, modulo the one modulus q of a basis, B^levels <= q.

    Of x in [0, q) they are those of y = floor((2 x B^levels + q) / (2 q)) mod B^levels, in [-B/2, B/2), the
    most significant first.
    """

    basis: Basis
    transform: NttPlan | None  # complete; of products
    bits: int
    levels: int
    handles: Handles = field(default_factory=dict, repr=False)

    @property
    def offset(self) -> int:
        """Of y more this, digits to the base B are the wanted ones more B/2."""
        return sum(1 << (self.bits * (i + 1) - 1) for i in range(self.levels))
