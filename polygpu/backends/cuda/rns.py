"""Conversions between bases of moduli."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from ...plans.ntt import part_of
from ...plans.rns import Conversion, Estimate, runs_of
from .. import Array, Done
from .launch import ALIGNMENT, POINTER, U32, U64, Launch, Recipe, Struct, entrywise, modulus_constants
from .transform import Transform
from .words import Card

_FILE = "rns.cu"
_WAYS: dict[Estimate, int] = {"none": 0, "floor": 1, "nearest": 2, "counted": 3}
_WORD = (1 << 64) - 1
_HALVES = 25, 30  # bits of SumHalves

Types = tuple[str, str, str]

CONVERT = Struct(
    _FILE,
    "ConvertParameters",
    ("x own out source target table", POINTER),
    ("n entries", U64),
    ("rows targets terms x_rows own_rows out_rows words fraction_words share has_own accumulates", U32),
)


def rows_held(rows: int) -> int:
    """The rows for which a thread has registers: kernels are compiled for few numbers of them."""
    step = next((s for s in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if rows <= s), 0)
    return step or 1 << (rows - 1).bit_length()


def sum_of(conversion: Conversion, types: Types) -> str:
    """The sum of cuda/sum.cuh for the target's moduli, for x, own and out of these types."""
    largest = max(conversion.target.moduli)
    if types == ("u32",) * 3:
        return "Sum31" if largest < 1 << 31 else "Sum32"
    both = max(largest, *conversion.source.moduli) if conversion.source.moduli else largest
    for half in _HALVES:
        if both <= 1 << 2 * half:
            return f"SumHalves<{half}>"
    return "Sum62" if largest <= 1 << 62 else "Sum64"


def share_of(conversion: Conversion, entries: int, card: Card) -> int:
    """Rows of the target that a thread computes: few where there are few coefficients to fill the card with.

    Each thread finds the quotients anew, which costs as much as a row or two.
    """
    targets = len(conversion.target.moduli)
    parts = (card.multiprocessors << 11) // max(entries, 1)
    return -(-targets // max(1, min(parts, targets)))


def convert_launch(
    conversion: Conversion, types: Types, items: int, n: int, card: Card, **values: int
) -> Launch:
    """The conversion of so many polynomials, of x, own and out of these types."""
    rows, targets = len(conversion.source.moduli), len(conversion.target.moduli)
    share = share_of(conversion, items * n, card)
    way, scale = _WAYS[conversion.estimate], _WAYS[conversion.fraction]
    kernel = f"convert<{sum_of(conversion, types)}, {', '.join(types)}, {rows_held(rows)}, {way}, {scale}>"
    sizes = {
        "n": n,
        "entries": items * n,
        "rows": rows,
        "targets": targets,
        "terms": conversion.table.shape[1],
        "x_rows": conversion.source.total,
        "own_rows": conversion.own.total if conversion.own else 0,
        "out_rows": conversion.target.total,
        "words": conversion.numbers.shape[1],
        "fraction_words": conversion.fraction_numbers.shape[1],
        "share": share,
        "has_own": conversion.own is not None,
        "accumulates": conversion.accumulate,
    }
    return entrywise(_FILE, kernel, items * n, CONVERT(**sizes, **values), -(-targets // share))


def packed_factors(factors: np.ndarray[Any, np.dtype[np.uint64]], sums: str) -> Any:
    """Factors as a sum of cuda/sum.cuh takes them."""
    for half in _HALVES:
        if sums == f"SumHalves<{half}>":
            return factors >> np.uint64(half) << np.uint64(32) | factors & np.uint64((1 << half) - 1)
    return factors


def packed_table(conversion: Conversion, sums: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The words that the kernel reads, in the order of cuda/rns.cu."""
    source, target = conversion.source, conversion.target
    own = conversion.own.at if conversion.own else (0,) * len(target.at)

    def ratios(chosen: Iterable[bool]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        values = [1 / q if wanted else 0.0 for q, wanted in zip(source.moduli, chosen, strict=True)]
        return np.array(values, np.float64).view(np.uint64)

    def words(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array([x & _WORD for x in values], np.uint64)

    rows = range(len(source.moduli))
    parts = [
        words(conversion.inverses),
        ratios(True for _ in rows),
        words(source.at),
        words(target.at),
        words(own),
    ]
    parts += [packed_factors(conversion.table, sums).ravel(), conversion.numbers.ravel()]
    if conversion.scales:
        # A row that is not scaled has the remainder 0: neither whole parts nor fractions.
        remainders = dict(zip(conversion.divisors, conversion.remainders, strict=True))
        spread = np.zeros((1 + len(rows), conversion.fraction_numbers.shape[1]), np.uint64)
        spread[[0, *(1 + i for i in conversion.divisors)]] = conversion.fraction_numbers
        parts += [
            words(remainders.get(i, 0) for i in rows),
            ratios(i in remainders for i in rows),
            spread.ravel(),
        ]
    return np.concatenate(parts)


class Rns(Transform):
    """Kernels of rns.cu."""

    def convert(self, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> Done | None:
        """See Backend."""
        shape = out.shape
        if 0 in shape:
            return None
        if conversion.transform is not None and self.address(out) % ALIGNMENT:
            with self._scope:
                aligned = out.copy()
            self.convert(conversion, x, own, aligned)
            with self._scope:
                out[...] = aligned
            return None
        operands = [a if a is None else self._broadcast(a, (*shape[:-2], *a.shape[-2:])) for a in (x, own)]
        given = [a for a in operands if a is not None]
        types = tuple(
            "u32" if (out if a is None else a).dtype == np.uint32 else "u64" for a in (*operands, out)
        )
        # Where x or own is not given, the kernel has the result's address instead, and reads nothing.
        x_number = 0 if operands[0] is not None else len(given)
        own_number = len(given) - 1 if operands[1] is not None else len(given)
        numbers = x_number, own_number, len(given)
        return self.run(
            conversion.handles,
            (shape, *types, *numbers),
            lambda: self._convert_recipe(conversion, types, shape, numbers),  # type: ignore[arg-type]
            *(*given, out),
        )

    def _convert_recipe(
        self,
        conversion: Conversion,
        types: Types,
        shape: tuple[int, ...],
        numbers: tuple[int, int, int],
    ) -> Recipe:
        """Of x, own and the result, operands of these numbers: the conversion, the transforms, the sum."""
        recipe, out = Recipe(numbers[-1] + 1), numbers[-1]
        before, after = conversion.steps()
        self._add_launch(recipe, before, types, shape, numbers)
        plan = conversion.transform
        if plan is not None and plan.points > 1:
            done = 0
            for first, count in runs_of(conversion.target.at):
                part = part_of(plan, tuple(range(done, done + count)))
                recipe.add(self._transform_recipe(part, "forward", shape, first), out, out)
                done += count
        if after is not None:
            self._add_launch(recipe, after, types, shape, numbers)
        return recipe

    def _add_launch(
        self,
        recipe: Recipe,
        conversion: Conversion,
        types: Types,
        shape: tuple[int, ...],
        numbers: tuple[int, int, int],
    ) -> None:
        sums = sum_of(conversion, types)

        def make() -> tuple[Array, ...]:
            constants = [modulus_constants(rows.moduli) for rows in (conversion.source, conversion.target)]
            return tuple(self.from_host(a) for a in (*constants, packed_table(conversion, sums)))

        shared = self._kept(conversion.handles, f"tables {sums}", lambda: (make(), ()))
        names = ("source", "target", "table")
        where = {name: self.address(a) for name, a in zip(names, shared.value, strict=True)}
        pointers = {"x": 0, "own": 0, "out": 0, **where}
        launch = convert_launch(conversion, types, prod(shape[:-2]), shape[-1], self.card, **pointers)
        recipe.used.append(shared)
        recipe.launch(launch, *numbers)
