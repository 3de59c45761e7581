"""Conversions between bases of moduli, and the transforms of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..._core.plans.basis import Handles
from ..._core.plans.ntt import NttPlan, PrimeTables, part_of
from ..._core.plans.rns import Conversion, runs_of
from .. import Array
from .copies import broadcast, copied, copy
from .device import Shared
from .launch import (
    ALIGNMENT,
    MODULUS_BYTES,
    POINTER,
    THREADS,
    U32,
    U64,
    Context,
    Launch,
    Recipe,
    Struct,
    cbool,
    entrywise,
    modulus_constants,
)
from .sources import constant, enumeration
from .tiles import Pass, table_offsets
from .transform import leaves_room, prime_tables, recipe_of
from .words import BY_SHIFTS, Card, Sum, Word, limbs_by_word, sum_of_conversion, word_of_tree

_FILE, _ROWS_FILE = "rns.cu", "ntt_rows.cu"
_WAYS = enumeration("rns.cu", "Way")
_WORD = (1 << 64) - 1
_OWN_ROWS = 4  # if the source has no rows, a thread computes at most this many rows of the target
_MOST_ROWS = 12  # with up to this many rows of the source, a thread processes two coefficients
_FEW_ROWS, _FEW_BYTES = (constant("rns.cu", name) for name in ("FEW_ROWS", "FEW_BYTES"))
_ROWS_BYTES = 12 << 10  # the most bytes of shared memory for a block of the kernel `convert`
_SHARE_BEGINS = 4  # start-up time of a thread, divided by its time for one row of the target
_LOG_FEW = 11  # log2 of values per multiprocessor; with fewer, a thread processes four values, not eight
_LOG_POINTS = range(10, 18)  # log2 of the numbers of points for which class Listed has kernels

Types = tuple[str, str, str]

CONVERT = Struct(
    _FILE,
    "ConvertParameters",
    ("x own out source target table", POINTER),
    ("n entries", U64),
    ("rows targets x_rows own_rows out_rows words fraction_words share shares part_words", U32),
)
START = Struct(
    _ROWS_FILE,
    "StartParameters",
    ("x moduli places tables", POINTER),
    ("offset n", U64),
    ("x_rows starts_next", U32),
)
FINISH = Struct(
    _ROWS_FILE,
    "FinishParameters",
    ("own x moduli places own_places own_factors tables", POINTER),
    ("offset n", U64),
    ("own_rows x_rows starts_next", U32),
)


def rows_held(rows: int) -> int:
    """Round `rows` up to one of the few numbers of source rows for which kernels are compiled."""
    step = next((s for s in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if rows <= s), 0)
    return step or 1 << (rows - 1).bit_length()


def sum_of(conversion: Conversion, types: Types, card: Card) -> Sum:
    """Return the Sum that a conversion uses. types: the C++ types of x, own and out."""
    moduli = conversion.source.moduli, conversion.target.moduli
    return sum_of_conversion(*moduli, types == ("u32",) * 3, card)


def row_words(conversion: Conversion, sums: Sum) -> int:
    """Return how many words of the table of constants belong to one row of the target."""
    terms = rows_held(len(conversion.source.moduli)) + (conversion.estimate != "none")
    terms += 2 * conversion.scales + conversion.accumulate + (conversion.own is not None)
    return 2 + sums.doubles + terms


def convert_blocks(conversion: Conversion, width: int, sums: Sum) -> int:
    """Estimate how many blocks of `convert` a multiprocessor holds: 4 if few registers are used, else 2."""
    rows = rows_held(len(conversion.source.moduli))
    held = width * rows * sums.bytes
    return 4 if not conversion.scales and rows <= _FEW_ROWS and held <= _FEW_BYTES else 2


def share_of(conversion: Conversion, blocks: int, held: int, most: int, card: Card) -> int:
    """Choose how many rows of the target a thread computes, at most `most`.

    Fewer rows give more blocks, but every thread repeats the work on the source. The choice has the least
    estimated time. blocks: the number of blocks if a thread computes all rows. held: blocks that a
    multiprocessor holds.
    """
    targets = len(conversion.target.moduli)
    if not conversion.source.moduli:
        return min(_OWN_ROWS, targets)
    slots = held * card.multiprocessors

    def turns(shares: int) -> int:
        return -(-blocks * shares // slots) * (-(-targets // shares) + _SHARE_BEGINS)

    return -(-targets // min(range(-(-targets // most), targets + 1), key=turns))


def width_of(conversion: Conversion, n: int, aligned: bool) -> int:
    """Return how many neighbouring coefficients a thread processes: 1 or 2.

    Two coefficients share the factors that a thread reads. With many rows, registers suffice for only one
    coefficient.
    """
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
    """Return the launch that converts `items` polynomials.

    types: the C++ types of x, own and out. parts: how many conversions share the launch (see alike).
    """
    rows, targets = len(conversion.source.moduli), len(conversion.target.moduli)
    width, sums = width_of(conversion, n, aligned), sum_of(conversion, types, card)
    threads = items * n // width
    row_bytes = MODULUS_BYTES + 8 * row_words(conversion, sums)
    blocks, held = parts * -(-threads // THREADS), convert_blocks(conversion, width, sums)
    share = share_of(conversion, blocks, held, max(1, _ROWS_BYTES // row_bytes), card)
    shares = -(-targets // share)
    way, scale = _WAYS[conversion.estimate], _WAYS[conversion.fraction]
    flags = ", ".join(map(cbool, (conversion.accumulate, conversion.own is not None)))
    kernel = f"convert<{sums.name}, {', '.join(types)}, {rows_held(rows)}, {way}, {scale}, {flags}, {width}>"
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
    launch = entrywise(_FILE, kernel, threads, CONVERT(**sizes, **values), parts * shares)
    return launch._replace(shared=share * row_bytes)


class Listed(NamedTuple):
    """The two passes that transform the rows in a list (cuda/ntt_rows.cu). These rows have the same Word."""

    word: Word
    columns: Pass
    rows: Pass

    @property
    def tables(self) -> tuple[Pass, Pass]:
        """Both passes, with 0 in the fields on which the tables of twiddles do not depend."""
        columns, rows = (
            replace(p, log_columns=0, log_rows=0, log_width=0) for p in (self.columns, self.rows)
        )
        return columns, rows

    def pass_launch(
        self,
        passed: Pass,
        kernel: str,
        struct: Struct,
        grid: tuple[int, int],
        card: Card,
        /,
        *flags: str,
        **values: Any,
    ) -> Launch:
        """Return the launch of `kernel` for one pass. grid: (blocks for each listed row, listed rows)."""
        offset = table_offsets(self.tables, self.word)[1 if passed.log_blocks else 0]
        starts = leaves_room(grid, passed.threads, card)
        parameters = struct(offset=offset, starts_next=starts, **values)
        name = f"{kernel}<{', '.join((self.word.argument, passed.shape, *flags))}>"
        shared = passed.shared_values * self.word.bytes
        return Launch(struct.file, name, grid, passed.threads, parameters, shared)


ListedGroups = tuple[tuple[Listed, tuple[int, ...]], ...]


def listed(plans: Sequence[NttPlan], n: int, count: int, card: Card) -> ListedGroups:
    """Return pairs (passes, indices of limbs), one for each Word of the limbs, or () if no kernel fits.

    The limbs of all plans are numbered one after another. count: the number of rows to transform.
    """
    sizes = {plan.basis.dtype.itemsize for plan in plans}
    if len(sizes) > 1 or any(plan.points < n for plan in plans):
        return ()
    moduli = tuple(q for plan in plans for q in plan.basis.moduli)
    groups = _listed(moduli, sizes.pop(), n, count, card)
    tree = plans[0].tables[0]
    return tuple((made._replace(word=word_of_tree(made.word, tree)), limbs) for made, limbs in groups)


@lru_cache(maxsize=256)
def _listed(moduli: tuple[int, ...], size: int, points: int, count: int, card: Card) -> ListedGroups:
    limbs_of = limbs_by_word(moduli, size, card)
    log_points = points.bit_length() - 1
    if any(word == BY_SHIFTS or word.bytes != size for word in limbs_of):
        return ()
    if log_points not in _LOG_POINTS:
        return ()
    length = min(8, log_points // 2)
    # If a column has 2^7 or 2^8 values, a thread processes 16 values: then two rounds are enough. Tiles are
    # 64 bytes wide.
    log_values, log_width = 4 if length in (7, 8) else 3, int(size == 4)
    columns = Pass(0, length, 3 + log_width, 0, log_values, log_width)
    below = log_points - length
    # If there are too few warps to fill the card, a thread processes fewer values, so a row has more threads.
    small = count << log_points < card.multiprocessors << _LOG_FEW
    log_values = 2 if small else 3
    blocks, log_lanes = count << log_points >> below, below - log_values
    log_rows = next((r for r in range(7 - log_lanes, 0, -1) if blocks >> r >= 2 * card.multiprocessors), 0)
    rows = Pass(length, below, 0, max(log_rows, 5 - log_lanes), log_values)
    return tuple((Listed(word, columns, rows), tuple(limbs)) for word, limbs in limbs_of.items())


def alike(conversion: Conversion, types: Types, card: Card) -> tuple[object, ...]:
    """Return a key. Conversions without `own` can share one launch if their keys are equal."""
    sums = sum_of(conversion, types, card)
    sizes = len(conversion.source.moduli), len(conversion.target.moduli), conversion.numbers.shape
    plain = not conversion.scales and not conversion.accumulate
    return sums, sizes, conversion.estimate, conversion.source.total, plain or id(conversion)


def packed_factor(factor: int, q: int, sums: Sum) -> int:
    """Return a factor modulo q as a word, in the form that the class `sums` of cuda/sum.cuh reads."""
    if sums.doubles:
        return _bits(factor - q if 2 * factor > q else factor)
    if sums.half:
        return factor >> sums.half << 32 | factor & ((1 << sums.half) - 1)
    return factor


def _bits(number: float) -> int:
    """Return the 64 bits of a double as an integer."""
    return int(np.float64(number).view(np.uint64))


def packed_table(conversion: Conversion, sums: Sum) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the words of a conversion's table, in the order in which cuda/rns.cu reads them."""
    source, target = conversion.source, conversion.target
    rows = len(source.moduli)
    spare = [0] * (rows_held(rows) - rows)
    own = conversion.own.at if conversion.own else (0,) * len(target.at)

    def ratios(wanted: Sequence[bool]) -> list[int]:
        return [_bits(1 / q) if use else 0 for q, use in zip(source.moduli, wanted, strict=True)] + spare

    inverses = list(conversion.inverses)
    if sums.quotients:
        inverses = [
            y | (y << 32) // q << 32 if y > 1 else y for y, q in zip(inverses, source.moduli, strict=True)
        ]
    words = [*inverses, *spare, *ratios([True] * rows), *source.at, *spare]
    for q, place, own_place, factors in zip(
        target.moduli, target.at, own, conversion.table.tolist(), strict=True
    ):
        words += [place, own_place]
        # The kernel multiplies factors by y - 2^49 instead of values y of the source. So the sum starts at
        # 2^49 * (sum of the factors).
        if sums.doubles:
            words.append(packed_factor((sum(factors) << 49) % q, q, sums))
        packed = [packed_factor(factor, q, sums) for factor in factors]
        words += [*packed[:rows], *spare, *packed[rows:]]
    words += conversion.numbers.ravel().tolist()
    if conversion.scales:
        # A row that is not among the divisors gets remainder 0 and fraction 0, so that it adds nothing.
        remainders = dict(zip(conversion.divisors, conversion.remainders, strict=True))
        spread = np.zeros((1 + rows, conversion.fraction_numbers.shape[1]), np.uint64)
        spread[[0, *(1 + i for i in conversion.divisors)]] = conversion.fraction_numbers
        words += [remainders.get(i, 0) for i in range(rows)] + spare
        words += ratios([i in remainders for i in range(rows)]) + spread.ravel().tolist()
    return np.array([word & _WORD for word in words], np.uint64)


def convert(gpu: Context, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> None:
    shape = out.shape
    if 0 in shape:
        return
    if conversion.transform is not None and gpu.address(out) % ALIGNMENT:
        aligned_out = copied(gpu, out)
        convert(gpu, conversion, x, own, aligned_out)
        copy(gpu, aligned_out, out)
        return
    operands = [a if a is None else broadcast(gpu, a, (*shape[:-2], *a.shape[-2:])) for a in (x, own)]
    given = [a for a in operands if a is not None]
    types = tuple("u32" if (out if a is None else a).dtype == np.uint32 else "u64" for a in (*operands, out))
    aligned = all(gpu.address(a) % ALIGNMENT == 0 for a in (*given, out))
    # If x or own is None, the kernel gets the address of `out` for this operand, and does not use it.
    x_number = 0 if operands[0] is not None else len(given)
    own_number = len(given) - 1 if operands[1] is not None else len(given)
    numbers = x_number, own_number, len(given)
    gpu.run(
        conversion.handles,
        (shape, aligned, *types, *numbers),
        lambda: _convert_recipe(gpu, (conversion,), types, shape, numbers, aligned),  # type: ignore[arg-type]
        *(*given, out),
    )


def convert_all(gpu: Context, conversions: Sequence[Conversion], x: Array, out: Array) -> None:
    types = tuple("u32" if a.dtype == np.uint32 else "u64" for a in (x, out, out))
    of_x = broadcast(gpu, x, (*out.shape[:-2], *x.shape[-2:]))
    aligned = (gpu.address(of_x) | gpu.address(out)) % ALIGNMENT == 0
    for _, group in groupby(conversions, lambda c: alike(c, types, gpu.card)):  # type: ignore[arg-type]
        parts = tuple(group)
        if len(parts) == 1 or not aligned or not out.size:
            for part in parts:
                convert(gpu, part, x, None, out)
            continue

        def recipe(parts: tuple[Conversion, ...] = parts) -> Recipe:
            return _convert_recipe(gpu, parts, types, out.shape, (0, 1, 1), aligned)  # type: ignore[arg-type]

        key = "all", len(parts), out.shape, *types
        gpu.run(parts[0].handles, key, recipe, of_x, out)


def _convert_recipe(
    gpu: Context,
    parts: tuple[Conversion, ...],
    types: Types,
    shape: tuple[int, ...],
    numbers: tuple[int, int, int],
    aligned: bool,
) -> Recipe:
    """Return the recipe that converts, transforms the results, and adds multiples of rows of `own`.

    parts: one conversion, or several without `own` for which alike() returns the same key.
    numbers: the indices of the operands x, own and out.
    """
    recipe, out = Recipe(numbers[-1] + 1), numbers[-1]
    befores, after = tuple(c.steps()[0] for c in parts), parts[0].steps()[1]
    _add_launch(gpu, recipe, befores, types, shape, numbers, aligned)
    if _add_listed(gpu, recipe, parts, types[1:], shape, numbers[1:], aligned):
        return recipe
    for conversion in parts:
        plan = conversion.transform
        if plan is not None and plan.points > 1:
            done = 0
            for first, count in runs_of(conversion.target.at):
                part = part_of(plan, tuple(range(done, done + count)))
                recipe.add(recipe_of(gpu, part, "forward", shape, first), out, out)
                done += count
    if after is not None:
        _add_launch(gpu, recipe, (after,), types, shape, numbers, aligned)
    return recipe


def _add_launch(
    gpu: Context,
    recipe: Recipe,
    parts: tuple[Conversion, ...],
    types: Types,
    shape: tuple[int, ...],
    numbers: tuple[int, int, int],
    aligned: bool,
) -> None:
    """Add one launch for conversions whose keys are equal (`alike` returns the key of a conversion).

    parts[0].handles stores the tables of all conversions.
    """
    conversion, sums = parts[0], sum_of(parts[0], types, gpu.card)

    def make() -> tuple[Array, ...]:
        source = modulus_constants([q for c in parts for q in c.source.moduli])
        target = modulus_constants([q for c in parts for q in c.target.moduli])
        table = np.concatenate([packed_table(c, sums) for c in parts])
        return tuple(gpu.from_host(a) for a in (source, target, table))

    shared = gpu.kept(conversion.handles, f"tables {sums.name} {len(parts)}", lambda: (make(), ()))
    names = ("source", "target", "table")
    where = {name: gpu.address(a) for name, a in zip(names, shared.value, strict=True)}
    pointers = {"x": 0, "own": 0, "out": 0, **where}
    launch = convert_launch(
        conversion, types, prod(shape[:-2]), shape[-1], aligned, gpu.card, len(parts), **pointers
    )
    recipe.used.append(shared)
    recipe.launch(launch, *numbers)


# ---- transforms of listed rows ----


def table_pointers(
    gpu: Context, primes: Sequence[PrimeTables], made: Listed, both: Sequence[PrimeTables] = ()
) -> tuple[Array, list[Shared]]:
    """Return a device array of addresses of twiddle tables, and a list of the tables.

    primes: primes whose tables are for the forward transform. both: more primes, whose tables are for the
    forward and the inverse transform.
    """
    tables = prime_tables(gpu, primes, made.word, made.tables, 1)
    tables += prime_tables(gpu, both, made.word, made.tables)
    return gpu.from_host(np.array([gpu.address(table.value) for table in tables], np.uint64)), tables


def start_listed(
    gpu: Context,
    recipe: Recipe,
    handles: Handles,
    made: Listed,
    primes: Sequence[PrimeTables],
    places: Sequence[int],
    shape: tuple[int, ...],
    number: int,
) -> dict[str, int]:
    """Add the first pass over listed rows. Return the addresses of the arrays moduli, places and tables.

    places: the index of each listed row in its polynomial. primes: the prime of each listed row. shape: the
    shape of the operand. number: the index of the operand.

    handles: keeps the arrays for later calls. It tells lists of rows apart only by places[0] and len(places).
    So two different lists with the same `handles` must differ in places[0] or in len(places).
    """
    *batch, total, n = shape

    def make() -> tuple[tuple[Array, ...], list[Shared]]:
        pointers, tables = table_pointers(gpu, primes, made)
        lists = modulus_constants([p.modulus for p in primes]), np.array(places, np.uint64)
        return (*map(gpu.from_host, lists), pointers), tables

    key = f"listed {made.word.name} {[p.shape for p in made.tables]} {places[0]} {len(places)}"
    shared = gpu.kept(handles, key, make)
    names = ("moduli", "places", "tables")
    where = dict(zip(names, map(gpu.address, shared.value), strict=True))
    blocks = prod(batch) * n >> made.columns.log_block_values
    launch = made.pass_launch(
        made.columns,
        "start_rows",
        START,
        (blocks, len(places)),
        gpu.card,
        x=0,
        n=n,
        x_rows=total,
        **where,
    )
    recipe.used.append(shared)
    recipe.launch(launch, number)
    return where


def _add_listed(
    gpu: Context,
    recipe: Recipe,
    parts: tuple[Conversion, ...],
    types: tuple[str, str],
    shape: tuple[int, ...],
    numbers: tuple[int, int],
    aligned: bool,
) -> bool:
    """Add the transforms of the target's rows in two passes (see Listed).

    The second pass adds multiples of rows of `own`. Return True. If no kernels fit, or if other
    transforms are faster, add nothing and return False.
    """
    first, (*batch, total, n) = parts[0], shape
    plans = [c.transform for c in parts if c.transform is not None]
    if len(plans) < len(parts) or not aligned or types[0] != types[1]:
        return False
    places = [at for c in parts for at in c.target.at]
    count = prod(batch) * len(places)
    groups = listed(plans, n, count, gpu.card)
    if not groups or count * n * plans[0].basis.dtype.itemsize > gpu.card.l2_bytes:
        return False  # two passes are faster only if the first pass's result stays in the L2 cache
    primes = [prime for plan in plans for prime in plan.tables]
    for made, chosen in groups:
        where = start_listed(
            gpu,
            recipe,
            first.handles,
            made,
            [primes[i] for i in chosen],
            [places[i] for i in chosen],
            shape,
            numbers[1],
        )
        where |= {"own": 0, "x": 0, "n": n, "x_rows": total}
        where |= {"own_places": 0, "own_factors": 0, "own_rows": 0}
        if first.own is not None:
            where |= _own_rows(gpu, recipe, first, made.word, chosen)
        blocks, flag = prod(batch) * n >> made.rows.log_block_values, cbool(first.own is not None)
        grid = blocks, len(chosen)
        launch = made.pass_launch(made.rows, "finish_rows", FINISH, grid, gpu.card, flag, **where)
        recipe.launch(launch, *numbers)
    return True


def _own_rows(
    gpu: Context, recipe: Recipe, conversion: Conversion, word: Word, chosen: Sequence[int]
) -> dict[str, int]:
    """Return the fields own_places, own_factors and own_rows of FINISH for the limbs in `chosen`."""
    assert conversion.own is not None
    lists = conversion.own.at, conversion.own_factors

    def make() -> tuple[Array, ...]:
        return tuple(gpu.from_host(np.array([x[i] for i in chosen], np.uint64)) for x in lists)

    own = gpu.kept(conversion.handles, f"own rows {word.name}", lambda: (make(), ()))
    recipe.used.append(own)
    where = dict(zip(("own_places", "own_factors"), map(gpu.address, own.value), strict=True))
    return where | {"own_rows": conversion.own.total}
