"""Conversions between bases of moduli: the constants by which residues follow from other residues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from ..locks import cached_property
from .basis import Handles
from .ntt import NttPlan

Estimate = Literal["nearest", "floor", "counted", "none"]


def runs_of(places: Iterable[int]) -> list[tuple[int, int]]:
    """Return runs of neighbours among ascending places, each as (first, how many)."""
    runs = []
    for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        members = [place for _, place in run]
        runs.append((members[0], len(members)))
    return runs


class Residues(NamedTuple):
    """Rows of residues in an array (*batch, total, n)."""

    moduli: tuple[int, ...]  # of each row
    at: tuple[int, ...]  # where each row lies on the limb axis
    total: int  # length of the limb axis


@dataclass(frozen=True, eq=False)
class Conversion:
    """Rows `target` of residues that follow from rows `source`, coefficient by coefficient.

    Let Q be the product of the k moduli q_i of the source, and x the number in [0, Q) that the residues hold.
    The value v is, by `rounding` and `exact`:

        nearest, exact   x, centred: in [-Q/2, Q/2)
        floor, exact     x
        nearest, fast    sum of y_i Q/q_i, y_i = x (Q/q_i)^-1 mod q_i centred: x + uQ, |u| <= floor(k/2)
        floor, fast      the same with y_i in [0, q_i): x + uQ, 0 <= u < k

    Row j of the target is  T(multiplier_j w (+ what is there)) + own_j x_j  mod s_j. There w is v, or with a
    `factor` t and a divisor D the scaled value floor((2 t v + D) / (2 D)); T is the transform, if there is
    one; x_j is a row of an array `own`.
    Source: Halevi, Polyakov, Shoup 2018/117; docs/math.md, "Conversion between bases".
    """

    source: Residues
    target: Residues
    multipliers: tuple[int, ...]
    rounding: Literal["nearest", "floor"] = "nearest"
    exact: bool = True
    factor: int = 1
    divisors: tuple[int, ...] = ()  # indices of the source's rows whose moduli are the factors of D
    accumulate: bool = False
    transform: NttPlan | None = None  # of each row of the target
    own: Residues | None = None  # one row for each row of the target
    own_factors: tuple[int, ...] = ()
    handles: Handles = field(default_factory=dict, repr=False)

    def steps(self) -> tuple[Conversion, Conversion | None]:
        """Return the conversion up to its transform, and the sum with the own rows after it.

        The second is None if the conversion has no transform or no own rows.
        """
        if self.transform is None:
            return self, None
        before = replace(self, transform=None, own=None, own_factors=(), handles={})
        if self.own is None:
            return before, None
        nothing, zeros = Residues((), (), 0), (0,) * len(self.target.moduli)
        after = Conversion(
            nothing, self.target, zeros, accumulate=True, own=self.own, own_factors=self.own_factors
        )
        return before, after

    @property
    def scales(self) -> bool:
        """Whether the value is multiplied by t / D."""
        return bool(self.divisors)

    @cached_property
    def modulus(self) -> int:
        """Q."""
        return prod(self.source.moduli)

    @cached_property
    def divisor(self) -> int:
        """D."""
        return prod(self.source.moduli[i] for i in self.divisors)

    # ---- the same as a small product of matrices ----
    #
    # y_i = x_i (Q/q_i)^-1 mod q_i, and v = sum of y_i Q/q_i, less c Q. Times t / D, with E = Q/D, that is the
    # sum of y_i t E/q_i, less c t E. In the rows of D, y_i t E/q_i = y_i floor(t E/q_i) + y_i r_i/q_i with
    # r_i = t E mod q_i. The whole parts of the last terms are added; `fraction` says how the sum of their
    # remainders is rounded to the nearest integer.

    @cached_property
    def estimate(self) -> Estimate:
        """How c is found: "nearest" and "floor" round the sum of y_i / q_i, "counted" counts y_i >= q_i / 2.

        "none": c is 0.
        """
        if not self.source.moduli:
            return "none"
        if self.rounding == "floor":
            return "floor" if self.exact and len(self.source.moduli) > 1 else "none"
        return "nearest" if self.exact and len(self.source.moduli) > 1 else "counted"

    @property
    def fraction(self) -> Estimate:
        """How the sum of the remainders of the rows of D is rounded; "none" without D."""
        return "none" if not self.scales else "nearest" if len(self.divisors) > 1 else "counted"

    @cached_property
    def inverses(self) -> tuple[int, ...]:
        """(Q/q_i)^-1 mod q_i."""
        return tuple(pow(self.modulus // q, -1, q) for q in self.source.moduli)

    @cached_property
    def remainders(self) -> tuple[int, ...]:
        """r_i, of the rows of D."""
        times = self.factor * (self.modulus // self.divisor)
        return tuple(times % self.source.moduli[i] for i in self.divisors)

    @cached_property
    def table(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the factors of the terms in each row of the target, (target, terms).

        The terms are y_i of each row of the source; c, unless it is always 0; if the value is scaled, the
        sum of the low 16 bits of the whole parts and of the fraction, and the sum of the other bits, in units
        of 2^16; the target's row, if it accumulates; the own row, if there is one.
        """
        times = (
            self.factor * (self.modulus // self.divisor) if self.scales else self.modulus
        )  # the factor of c; divided by q_i, that of y_i
        rows = []
        for j, (s, multiplier) in enumerate(zip(self.target.moduli, self.multipliers, strict=True)):
            row = [multiplier * (times // q) for q in self.source.moduli]
            if self.estimate != "none":
                row.append(-multiplier * times)
            if self.scales:
                row += [multiplier, multiplier << 16]
            row += [1] * self.accumulate
            if self.own is not None:
                row.append(self.own_factors[j])
            rows.append([factor % s for factor in row])
        return np.array(rows, np.uint64).reshape(len(rows), -1)

    @cached_property
    def numbers(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Constants that decide c exactly where doubles cannot: see _numbers."""
        wanted = self.estimate in ("nearest", "floor")
        return _numbers(self.source.moduli if wanted else ())

    @cached_property
    def fraction_numbers(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the same constants for the fraction, of the rows of D."""
        wanted = self.fraction == "nearest"
        return _numbers(tuple(self.source.moduli[i] for i in self.divisors) if wanted else ())


def multiples(
    own: Residues, factors: tuple[int, ...], target: Residues, accumulate: bool = False
) -> Conversion:
    """Return the conversion of own rows, times these factors, to rows of the target, or onto them."""
    nothing, zeros = Residues((), (), 0), (0,) * len(target.moduli)
    return Conversion(nothing, target, zeros, accumulate=accumulate, own=own, own_factors=factors)


def _numbers(moduli: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the product P of k moduli and each P/q_i, (1 + k, words).

    There are as many words as 2 k P takes with a bit for its sign.
    """
    whole = prod(moduli)
    count = (2 * len(moduli) * whole).bit_length() // 64 + 1 if moduli else 0
    mask = (1 << 64) - 1
    rows = [[x >> 64 * w & mask for w in range(count)] for x in (whole, *(whole // q for q in moduli))]
    return np.array(rows, np.uint64).reshape(len(rows), count)
