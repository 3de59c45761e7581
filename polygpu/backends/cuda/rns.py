"""Conversions between bases of moduli."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ...plans.ntt import part_of
from ...plans.rns import Conversion, Estimate, runs_of
from .. import Array, Done
from .launch import ALIGNMENT, POINTER, U32, U64, Launch, Recipe, Struct, cbool, entrywise, modulus_constants
from .transform import Transform
from .words import Card

_FILE = "rns.cu"
_WAYS: dict[Estimate, int] = {"none": 0, "floor": 1, "nearest": 2, "counted": 3}
_WORD = (1 << 64) - 1
_HALVES = 25, 30  # bits of SumHalves
_OWN_ROWS = 4  # that a thread adds up, where nothing is converted
_LOG_THREADS = 9  # log2 of the threads of a multiprocessor, at least, where rows of the target are shared out
_MOST_ROWS = 12  # of the source, with two coefficients a thread

Types = tuple[str, str, str]

CONVERT = Struct(
    _FILE,
    "ConvertParameters",
    ("x own out source target table", POINTER),
    ("n entries", U64),
    ("rows targets x_rows own_rows out_rows words fraction_words share shares part_words", U32),
)


def rows_held(rows: int) -> int:
    """The rows for which a thread has registers: kernels are compiled for few numbers of them."""
    step = next((s for s in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if rows <= s), 0)
    return step or 1 << (rows - 1).bit_length()


def sum_of(conversion: Conversion, types: Types, card: Card) -> str:
    """The sum of cuda/sum.cuh for the target's moduli, for x, own and out of these types."""
    largest = max(conversion.target.moduli)
    both = max((largest, *conversion.source.moduli))
    if types == ("u32",) * 3:
        return "Sum31" if both < 1 << 31 else "Sum32"
    if card.fast_doubles and both < 1 << 50 and min(conversion.target.moduli) >= 16:
        return "SumFloat64"
    for half in _HALVES:
        if both <= 1 << 2 * half:
            return f"SumHalves<{half}>"
    return "Sum62" if largest <= 1 << 62 else "Sum64"


def share_of(conversion: Conversion, threads: int, card: Card) -> int:
    """Rows of the target that a thread computes: few where there are few coefficients to fill the card with.

    Each thread finds the quotients anew, which costs as much as a row or two.
    """
    targets = len(conversion.target.moduli)
    if not conversion.source.moduli:
        return min(_OWN_ROWS, targets)
    parts = (card.multiprocessors << _LOG_THREADS) // max(threads, 1)
    return -(-targets // max(1, min(parts, targets)))


def width_of(conversion: Conversion, n: int, aligned: bool) -> int:
    """Neighbouring coefficients of a thread: two share factors, but of many rows registers hold one."""
    return 2 if aligned and n % 2 == 0 and len(conversion.source.moduli) <= _MOST_ROWS else 1


def convert_launch(
    conversion: Conversion,
    types: Types,
    items: int,
    n: int,
    aligned: bool,
    card: Card,
    parts: int = 1,
    **values: int,
) -> Launch:
    """The conversion of so many polynomials, of x, own and out of these types; or of so many like it."""
    rows, targets = len(conversion.source.moduli), len(conversion.target.moduli)
    width = width_of(conversion, n, aligned)
    threads = items * n // width
    share = share_of(conversion, parts * threads, card)
    shares = -(-targets // share)
    way, scale = _WAYS[conversion.estimate], _WAYS[conversion.fraction]
    flags = ", ".join(map(cbool, (conversion.accumulate, conversion.own is not None)))
    sums = sum_of(conversion, types, card)
    kernel = f"convert<{sums}, {', '.join(types)}, {rows_held(rows)}, {way}, {scale}, {flags}, {width}>"
    sizes = {
        "n": n,
        "entries": items * n,
        "rows": rows,
        "targets": targets,
        "x_rows": conversion.source.total,
        "own_rows": conversion.own.total if conversion.own else 0,
        "out_rows": conversion.target.total,
        "words": conversion.numbers.shape[1],
        "fraction_words": conversion.fraction_numbers.shape[1],
        "share": share,
        "shares": shares,
        "part_words": len(packed_table(conversion, sums)) if parts > 1 else 0,
    }
    return entrywise(_FILE, kernel, threads, CONVERT(**sizes, **values), parts * shares)


def alike(conversion: Conversion, types: Types, card: Card) -> tuple[object, ...]:
    """What conversions without own rows have in common that are parts of one launch."""
    sums = sum_of(conversion, types, card)
    sizes = len(conversion.source.moduli), len(conversion.target.moduli), conversion.numbers.shape
    plain = conversion.transform is None and not conversion.scales and not conversion.accumulate
    return sums, sizes, conversion.estimate, conversion.source.total, plain or id(conversion)


def packed_factor(factor: int, q: int, sums: str) -> int:
    """A factor of a row modulo q as a sum of cuda/sum.cuh takes it."""
    if sums == "SumFloat64":
        return _bits(factor - q if 2 * factor > q else factor)
    for half in _HALVES:
        if sums == f"SumHalves<{half}>":
            return factor >> half << 32 | factor & ((1 << half) - 1)
    return factor


def _bits(number: float) -> int:
    """The word that a double is."""
    return int(np.float64(number).view(np.uint64))


def packed_table(conversion: Conversion, sums: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The words that the kernel reads, in the order of cuda/rns.cu."""
    source, target = conversion.source, conversion.target
    rows = len(source.moduli)
    spare = [0] * (rows_held(rows) - rows)
    own = conversion.own.at if conversion.own else (0,) * len(target.at)

    def ratios(wanted: Sequence[bool]) -> list[int]:
        return [_bits(1 / q) if use else 0 for q, use in zip(source.moduli, wanted, strict=True)] + spare

    words = [*conversion.inverses, *spare, *ratios([True] * rows), *source.at, *spare]
    for q, place, own_place, factors in zip(
        target.moduli, target.at, own, conversion.table.tolist(), strict=True
    ):
        words += [place, own_place]
        if sums == "SumFloat64":  # what is multiplied is less 2^49
            words.append(packed_factor((sum(factors) << 49) % q, q, sums))
        packed = [packed_factor(factor, q, sums) for factor in factors]
        words += [*packed[:rows], *spare, *packed[rows:]]
    words += conversion.numbers.ravel().tolist()
    if conversion.scales:
        # A row that is not scaled has the remainder 0: neither whole parts nor fractions.
        remainders = dict(zip(conversion.divisors, conversion.remainders, strict=True))
        spread = np.zeros((1 + rows, conversion.fraction_numbers.shape[1]), np.uint64)
        spread[[0, *(1 + i for i in conversion.divisors)]] = conversion.fraction_numbers
        words += [remainders.get(i, 0) for i in range(rows)] + spare
        words += ratios([i in remainders for i in range(rows)]) + spread.ravel().tolist()
    return np.array([word & _WORD for word in words], np.uint64)


class Rns(Transform):
    """Kernels of rns.cu."""

    def convert(self, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> Done | None:
        """See Backend."""
        shape = out.shape
        if 0 in shape:
            return None
        if conversion.transform is not None and self.address(out) % ALIGNMENT:
            with self._scope:
                copy = out.copy()
            self.convert(conversion, x, own, copy)
            with self._scope:
                out[...] = copy
            return None
        operands = [a if a is None else self._broadcast(a, (*shape[:-2], *a.shape[-2:])) for a in (x, own)]
        given = [a for a in operands if a is not None]
        types = tuple(
            "u32" if (out if a is None else a).dtype == np.uint32 else "u64" for a in (*operands, out)
        )
        aligned = all(self.address(a) % ALIGNMENT == 0 for a in (*given, out))
        # Where x or own is not given, the kernel has the result's address instead, and reads nothing.
        x_number = 0 if operands[0] is not None else len(given)
        own_number = len(given) - 1 if operands[1] is not None else len(given)
        numbers = x_number, own_number, len(given)
        return self.run(
            conversion.handles,
            (shape, aligned, *types, *numbers),
            lambda: self._convert_recipe(conversion, types, shape, numbers, aligned),  # type: ignore[arg-type]
            *(*given, out),
        )

    def convert_all(self, conversions: Sequence[Conversion], x: Array, out: Array) -> None:
        """See Backend."""
        types = tuple("u32" if a.dtype == np.uint32 else "u64" for a in (x, out, out))
        of_x = self._broadcast(x, (*out.shape[:-2], *x.shape[-2:]))
        aligned = (self.address(of_x) | self.address(out)) % ALIGNMENT == 0
        for _, group in groupby(conversions, lambda c: alike(c, types, self.card)):  # type: ignore[arg-type]
            parts = tuple(group)
            if len(parts) == 1 or not out.size:
                self.convert(parts[0], x, None, out)
                continue

            def recipe(parts: tuple[Conversion, ...] = parts) -> Recipe:
                made = Recipe(2)
                self._add_launch(made, parts, types, out.shape, (0, 1, 1), aligned)  # type: ignore[arg-type]
                return made

            key = "all", len(parts), out.shape, aligned, *types
            self.run(parts[0].handles, key, recipe, of_x, out)

    def _convert_recipe(
        self,
        conversion: Conversion,
        types: Types,
        shape: tuple[int, ...],
        numbers: tuple[int, int, int],
        aligned: bool,
    ) -> Recipe:
        """Of x, own and the result, operands of these numbers: the conversion, the transforms, the sum."""
        recipe, out = Recipe(numbers[-1] + 1), numbers[-1]
        before, after = conversion.steps()
        self._add_launch(recipe, (before,), types, shape, numbers, aligned)
        plan = conversion.transform
        if plan is not None and plan.points > 1:
            done = 0
            for first, count in runs_of(conversion.target.at):
                part = part_of(plan, tuple(range(done, done + count)))
                recipe.add(self._transform_recipe(part, "forward", shape, first), out, out)
                done += count
        if after is not None:
            self._add_launch(recipe, (after,), types, shape, numbers, aligned)
        return recipe

    def _add_launch(
        self,
        recipe: Recipe,
        parts: tuple[Conversion, ...],
        types: Types,
        shape: tuple[int, ...],
        numbers: tuple[int, int, int],
        aligned: bool,
    ) -> None:
        """A launch for conversions that are alike; the first keeps their tables."""
        conversion, sums = parts[0], sum_of(parts[0], types, self.card)

        def make() -> tuple[Array, ...]:
            source = modulus_constants([q for c in parts for q in c.source.moduli])
            target = modulus_constants([q for c in parts for q in c.target.moduli])
            table = np.concatenate([packed_table(c, sums) for c in parts])
            return tuple(self.from_host(a) for a in (source, target, table))

        shared = self._kept(conversion.handles, f"tables {sums} {len(parts)}", lambda: (make(), ()))
        names = ("source", "target", "table")
        where = {name: self.address(a) for name, a in zip(names, shared.value, strict=True)}
        pointers = {"x": 0, "own": 0, "out": 0, **where}
        launch = convert_launch(
            conversion, types, prod(shape[:-2]), shape[-1], aligned, self.card, len(parts), **pointers
        )
        recipe.used.append(shared)
        recipe.launch(launch, *numbers)
