"""Basis conversion: the constants by which residues modulo other moduli are computed from given residues."""

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
    """Return the runs of consecutive numbers in an ascending sequence, each as (first, length)."""
    runs = []
    for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        members = [place for _, place in run]
        runs.append((members[0], len(members)))
    return runs


class Residues(NamedTuple):
    """Some rows of residues in an array (*batch, total, n)."""

    moduli: tuple[int, ...]  # the modulus of each of these rows
    at: tuple[int, ...]  # the index of each of these rows on the limb axis
    total: int  # length of the limb axis


@dataclass(frozen=True, eq=False)
class Conversion:
    """The computation of rows `target` of residues from rows `source`, coefficient by coefficient.

    Let Q be the product of the k moduli q_i of the source, and x the number in [0, Q) with residues x_i. A
    value v, equal to x modulo Q, is chosen by `rounding` (nearest or floor) and `exact` (exact or fast):

        nearest, exact   v = x centred, in [-Q/2, Q/2)
        floor, exact     v = x
        nearest, fast    v = sum of y_i * Q/q_i with y_i = x_i * (Q/q_i)^-1 mod q_i in [-q_i/2, q_i/2). It is
                         x centred, plus u * Q with |u| <= floor(k/2).
        floor, fast      the same sum with y_i in [0, q_i). It is x + u * Q with 0 <= u < k.

    If there are `divisors`, with product D, then w = floor((2 * t * v + D) / (2 * D)) with t = `factor`; this
    w is t * v / D, rounded. Otherwise w = v. Row j of the target, modulo its modulus s_j, becomes

        T(multipliers[j] * w + (old content of the row, if `accumulate`)) + own_factors[j] * (row j of `own`)

    where T is the transform, or the identity if `transform` is None. The last term needs an array `own`.
    Source: Halevi, Polyakov, Shoup 2018/117; docs/math.md, "Conversion between bases".
    """

    source: Residues
    target: Residues
    multipliers: tuple[int, ...]
    rounding: Literal["nearest", "floor"] = "nearest"
    exact: bool = True
    factor: int = 1
    divisors: tuple[int, ...] = ()  # indices of those rows of the source whose moduli have the product D
    accumulate: bool = False
    transform: NttPlan | None = None  # its limbs are the rows of the target
    own: Residues | None = None  # has one row for each row of the target
    own_factors: tuple[int, ...] = ()
    handles: Handles = field(default_factory=dict, repr=False)

    def steps(self) -> tuple[Conversion, Conversion | None]:
        """Split the conversion: return the steps before and after the transform.

        The step after the transform adds the rows of `own`. This step is None if `transform` or `own` is
        None.
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
        """Whether `divisors` is not empty."""
        return bool(self.divisors)

    @cached_property
    def modulus(self) -> int:
        """Return Q, the product of the moduli of the source."""
        return prod(self.source.moduli)

    @cached_property
    def divisor(self) -> int:
        """Return D, the product of the moduli with indices `divisors`."""
        return prod(self.source.moduli[i] for i in self.divisors)

    # ---- the conversion as a small product of matrices ----
    #
    # The docstring of the class defines Q, q_i, x_i, v, t and D.
    # Let y_i = x_i * (Q/q_i)^-1 mod q_i in [0, q_i). Then v = (sum of y_i * Q/q_i) - c * Q for an integer c.
    # With E = Q/D, t * v / D = (sum of y_i * t * E/q_i) - c * t * E. If q_i does not divide D, then t * E/q_i
    # is an integer. If q_i divides D, then y_i * t * E/q_i = y_i * floor(t * E/q_i) + y_i * r_i/q_i, where
    # r_i = t * E mod q_i. The terms y_i * r_i/q_i are split into whole parts, which are added, and fractions
    # below 1, whose sum is rounded to the nearest integer. `estimate` says how c is found. `fraction` says
    # how the sum of the fractions is rounded.

    @cached_property
    def estimate(self) -> Estimate:
        """Return how the integer c in v = (sum of y_i * Q/q_i) - c * Q is found (see the comment above).

        "nearest": c is the sum of y_i / q_i, rounded to the nearest integer. "floor": c is this sum, rounded
        down. "counted": c is the number of i with y_i >= q_i / 2. "none": c is 0.
        """
        if not self.source.moduli:
            return "none"
        if self.rounding == "floor":
            return "floor" if self.exact and len(self.source.moduli) > 1 else "none"
        return "nearest" if self.exact and len(self.source.moduli) > 1 else "counted"

    @property
    def fraction(self) -> Estimate:
        """How the sum of the fractions (see the comment above `estimate`) is rounded.

        "nearest": to the nearest integer. "counted": there is one fraction, which is rounded to 1 if it is at
        least 1/2, else to 0. "none": `divisors` is empty.
        """
        return "none" if not self.scales else "nearest" if len(self.divisors) > 1 else "counted"

    @cached_property
    def inverses(self) -> tuple[int, ...]:
        """Return (Q/q_i)^-1 mod q_i for each modulus q_i of the source, where Q is their product."""
        return tuple(pow(self.modulus // q, -1, q) for q in self.source.moduli)

    @cached_property
    def remainders(self) -> tuple[int, ...]:
        """Return r_i = t * Q/D mod q_i for each modulus q_i that divides D, where t is `factor`."""
        times = self.factor * (self.modulus // self.divisor)
        return tuple(times % self.source.moduli[i] for i in self.divisors)

    @cached_property
    def table(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return factors (target rows, terms). Row j of the target is the sum of factors[j, k] * term k.

        The comment above `estimate` defines y_i, c, whole parts and fractions. The terms are, in this order:
        - y_i for each row i of the source;
        - c, unless `estimate` is "none";
        - if `divisors` is not empty: a term that is the sum of the low 16 bits of all whole parts, plus the
        rounded sum of the fractions; then a term that is the sum of the other bits of all whole parts, in
        units of 2^16;
        - the old row j of the target, if `accumulate`;
        - row j of `own`, if `own` is not None.
        """
        times = (
            self.factor * (self.modulus // self.divisor) if self.scales else self.modulus
        )  # c has the factor -multiplier * `times`; y_i has the factor multiplier * floor(`times` / q_i)
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
        """Return the words from which c (see `estimate`) is computed if doubles are too inexact."""
        wanted = self.estimate in ("nearest", "floor")
        return _numbers(self.source.moduli if wanted else ())

    @cached_property
    def fraction_numbers(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the constants that decide how the sum of the fractions is rounded; see _numbers."""
        wanted = self.fraction == "nearest"
        return _numbers(tuple(self.source.moduli[i] for i in self.divisors) if wanted else ())


def multiples(
    own: Residues, factors: tuple[int, ...], target: Residues, accumulate: bool = False
) -> Conversion:
    """Return the conversion that writes rows of `own`, times `factors`, to rows of `target`.

    accumulate: whether the products are added to the old rows.
    """
    nothing, zeros = Residues((), (), 0), (0,) * len(target.moduli)
    return Conversion(nothing, target, zeros, accumulate=accumulate, own=own, own_factors=factors)


def _numbers(moduli: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the product P of k moduli, then each P/q_i, in words with the lowest first, (1 + k, words).

    Words have 64 bits. There are enough words for 2 * k * P and a sign.
    """
    whole = prod(moduli)
    count = (2 * len(moduli) * whole).bit_length() // 64 + 1 if moduli else 0
    mask = (1 << 64) - 1
    rows = [[x >> 64 * w & mask for w in range(count)] for x in (whole, *(whole // q for q in moduli))]
    return np.array(rows, np.uint64).reshape(len(rows), count)
