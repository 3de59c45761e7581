"""Key switching and gadgets: digits, their transforms and their products with keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..._core.plans.basis import basis_of
from ..._core.plans.gadget import Gadget
from ..._core.plans.rns import runs_of
from ..._core.plans.switch import DigitProduct, RotatedSums
from ..._core.plans.torus import TorusPlan
from .. import Array
from . import torus
from .device import Shared
from .launch import (
    ALIGNMENT,
    INTEGER_TYPES,
    POINTER,
    U32,
    U64,
    Context,
    Launch,
    Recipe,
    Struct,
    cbool,
    ctype,
    entrywise,
)
from .matmul import matmul_points
from .multiply import prepare_by_fft, sum_by_fft
from .pointwise import mul_monomial, pointwise
from .rns import Listed, convert, convert_all, listed, start_listed, table_pointers
from .sources import constant
from .tiles import Pass, table_offsets
from .transform import MAX_GRID_Y, intt, ntt, prime_tables, rows_of, transform_recipe
from .words import (
    BY_SHIFTS,
    STRICT64,
    Card,
    Word,
    limbs_by_word,
    transform_groups,
)

_FILE = "gadget.cu"
_WORD = (1 << 64) - 1
_MOST_RESULTS = 8  # the most weighted sums that a thread computes
_MOST_COMPONENTS = 3  # the most components of a ciphertext in the kernel gadget_product

DIGIT_ROWS = Struct(
    "keyswitch.cu",
    "DigitRowsParameters",
    ("digits own key more y moduli rows tables", POINTER),
    ("offset inverse_offset n", U64),
    ("limbs count own_rows key_total starts_next", U32),
)
LIMB_ROW = Struct("keyswitch.cu", "LimbRow", ("limb key_row digit own_row factor inverse", U64))
ROTATED_TERMS, ROTATED_THREADS = (
    constant("keyswitch.cu", name) for name in ("ROTATED_TERMS", "ROTATED_THREADS")
)
ROTATED = Struct(
    "keyswitch.cu",
    "RotatedParameters",
    ("digits more weights multipliers y", POINTER),
    ("keys", (POINTER, ROTATED_TERMS)),
    ("moduli rows terms key_rows places", POINTER),
    ("n order", U64),
    ("limbs count more_rows items terms_of_set term_count", U32),
    ("is_turned own_more first_result result_count adds", U32),
)
ROTATED_LIMB = Struct("keyswitch.cu", "RotatedLimb", ("limb more_row factor", U64))
ROTATED_TERM = Struct("keyswitch.cu", "RotatedTerm", ("has_key digits key_total", U64))
DIGITS = Struct(_FILE, "Digits", ("q power scale offset", U64), ("bits levels", U32))
DECOMPOSE = Struct(
    _FILE, "DecomposeParameters<u64>", ("x y", POINTER), ("n entries", U64), ("digits", DIGITS)
)
SIGNED_DIGITS = Struct(
    _FILE,
    "SignedDigitsParameters<u64>",
    ("x y", POINTER),
    ("n stride entries", U64),
    ("digits", DIGITS),
)
GADGET = Struct(
    _FILE,
    "GadgetParameters<u64>",
    ("x matrices y exponents modulus table", POINTER),
    ("forward inverse", U64),
    ("digits", DIGITS),
    ("count order", U32),
)


def digit_rows_launch(
    made: Listed, items: int, limbs: int, n: int, adds: bool, card: Card, /, **values: int
) -> Launch:
    """Return the launch of digit_rows: the second pass of the digits' transforms, then products with the key.

    limbs: the number of limbs of this launch. values["limbs"]: the number of all limbs. adds: whether to
    add a multiple of the operand `more` to the sums.
    """
    grid = items * n >> made.rows.log_block_values, limbs
    inverse = table_offsets(made.tables, made.word)[3]
    launch = made.pass_launch(
        made.rows,
        "digit_rows",
        DIGIT_ROWS,
        grid,
        card,
        cbool(adds),
        inverse_offset=inverse,
        n=n,
        **values,
    )
    copied = 3 << made.rows.log_block_values  # values in shared memory: a digit and two components of the key
    return launch._replace(shared=launch.shared + copied * made.word.bytes)


def limb_rows(plan: DigitProduct, limbs: Sequence[int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the struct LimbRow (cuda/keyswitch.cu) of each limb in `limbs`, as words."""

    def row(limb: int) -> tuple[int, ...]:
        own = plan.own.get(limb, (plan.digits, 0))
        return limb, plan.key_rows[limb], *own, plan.factors[limb], limb in plan.inverse

    return np.array([row(limb) for limb in limbs], LIMB_ROW.dtype).view(np.uint64)


def packed_digits(gadget: Gadget) -> bytes:
    """Return the struct Digits of a gadget, packed into bytes."""
    q, power = gadget.basis.moduli[0], 1 << gadget.bits * gadget.levels
    scale = (power << 8 * gadget.basis.dtype.itemsize) // q
    if power == q:
        power = scale = 0
    return DIGITS(
        q=q & _WORD,
        power=power,
        scale=scale,
        offset=gadget.offset & _WORD,
        bits=gadget.bits,
        levels=gadget.levels,
    )


def decompose_launch(gadget: Gadget, n: int, entries: int, **values: int) -> Launch:
    """Return the launch that decomposes `entries` coefficients into digits."""
    parameters = DECOMPOSE(n=n, entries=entries, digits=packed_digits(gadget), **values)
    return entrywise(_FILE, f"decompose<{ctype(gadget.basis)}>", entries, parameters)


def signed_digits_launch(
    gadget: Gadget, n: int, stride: int, entries: int, dtype: np.dtype[Any], **values: int
) -> Launch:
    """Return the launch that decomposes `entries` coefficients into digits, as signed integers of a dtype."""
    parameters = SIGNED_DIGITS(n=n, stride=stride, entries=entries, digits=packed_digits(gadget), **values)
    kernel = f"signed_digits<{ctype(gadget.basis)}, {INTEGER_TYPES[dtype.str[1:]]}>"
    return entrywise(_FILE, kernel, entries, parameters)


def gadget_tile(points: int, components: int, items: int, word: Word, card: Card) -> Pass | None:
    """Return the tile of an external product in one kernel, or None if the kernel cannot compute it.

    The kernel needs at least 2^8 points, at most _MOST_COMPONENTS components, and a tile that fits a
    block. A thread works on 4 coefficients if `word` has 64-bit integers (for lack of registers). It also
    works on 4 if there are fewer items than multiprocessors and at most 2^11 points (to fill the card).
    Otherwise a thread works on 8 coefficients.
    """
    log_points = points.bit_length() - 1
    if log_points < 8 or components > _MOST_COMPONENTS:
        return None
    few = items < card.multiprocessors and log_points <= 11
    integers = word.bytes == 8 and not word.needs_doubles
    tile = Pass(0, log_points, 0, 0, 2 if few or integers else 3)
    held = (tile.shared_values + components * points) * word.bytes
    return tile if tile.threads <= 512 and held <= card.shared_bytes else None


def gadget_launch(
    gadget: Gadget, word: Word, tile: Pass, components: int, rotates: bool, items: int, **values: int
) -> Launch:
    """Return the launch that multiplies `items` ciphertexts by a GGSW matrix.

    rotates: whether the launch does a blind rotation instead (Backend.gadget_rotation).
    """
    size, n = word.bytes, 1 << tile.log_length
    forward, inverse, _ = table_offsets((tile,), word)
    assert gadget.transform is not None
    order = gadget.quotient.order
    sizes = {"forward": forward, "inverse": inverse, "order": order}
    parameters = GADGET(digits=packed_digits(gadget), **sizes, **values)
    kernel = f"gadget_product<{word.argument}, {tile.shape}, {components}, {cbool(rotates)}>"
    shared = (tile.shared_values + components * n) * size
    return Launch(_FILE, kernel, (items, 1), tile.threads, parameters, shared)


def digit_product(
    gpu: Context,
    plan: DigitProduct,
    value: tuple[Array, Array] | None,
    digits: Array,
    key: Array,
    out: Array,
    more: Array | None = None,
) -> None:
    if not out.size:
        return
    if value is not None:
        if _in_two_passes(gpu, plan, value, digits, key, out, more):
            return
        _make_digits(gpu, plan, value, digits)
    n, limbs, items = out.shape[-1], len(plan.key_rows), prod(out.shape[:-3])
    made, sums = digits.reshape(items, plan.digits, limbs, n), out.reshape(1, items, 2, limbs, n)
    done = 0
    for first, count in runs_of(plan.key_rows):
        limb = slice(done, done + count)
        basis = basis_of(plan.transform.basis.moduli[limb], out.dtype.itemsize == 8)
        rows = key[None, : plan.digits, :, first : first + count]
        matmul_points(gpu, basis, made[None, :, :, limb], rows, sums[..., limb, :])
        done += count
    if more is not None:
        convert(gpu, plan.adding, None, more, out)
    if plan.inverse:
        intt(gpu, plan.inverse_transform, out, out, plan.inverse[0])


def _in_two_passes(
    gpu: Context,
    plan: DigitProduct,
    value: tuple[Array, Array],
    digits: Array,
    key: Array,
    out: Array,
    more: Array | None,
) -> bool:
    """Compute digits, transform them in two passes, and multiply by the key in the second pass.

    Return True. If the kernels do not support the plan or the arrays, do nothing and return False.
    """
    (x, own), (*batch, _, limbs, n) = value, out.shape
    items, rows = prod(batch), plan.digits * limbs
    groups = listed((plan.transform,), n, items * limbs, gpu.card)
    given = (digits, own, key, out) if more is None else (digits, own, key, more, out)
    if not groups or len(plan.made_rows) > MAX_GRID_Y or not gpu.aligned(x, *given):
        return False
    convert_all(gpu, plan.conversions, x, digits.reshape(*batch, rows, n))

    def recipe() -> Recipe:
        both = Recipe(len(given))
        for made, chosen in groups:
            _multiply_listed(gpu, both, plan, made, chosen, out.shape, more is not None)
        if plan.inverse:
            _end_inverse(gpu, both, plan, groups[0][0], items, len(given) - 1)
        return both

    gpu.run(plan.handles, ("two passes", out.shape, more is None), recipe, *given)
    return True


def _multiply_listed(
    gpu: Context,
    recipe: Recipe,
    plan: DigitProduct,
    made: Listed,
    chosen: Sequence[int],
    shape: tuple[int, ...],
    adds: bool,
) -> None:
    """Add the launches of both passes to `recipe`, for the limbs in `chosen`.

    All limbs in `chosen` compute with the Word made.word.
    """
    (*batch, _, limbs, n), tables = shape, plan.transform.tables
    items, moduli = prod(batch), gpu.moduli_of(plan.transform.basis)

    def make() -> tuple[tuple[Array, Array], list[Shared]]:
        both = [i for i in chosen if i in plan.inverse]  # limbs with an inverse transform come last
        forward = [tables[i] for i in chosen[: len(chosen) - len(both)]]
        pointers, shared = table_pointers(gpu, forward, made, [tables[i] for i in both])
        return (gpu.from_host(limb_rows(plan, chosen)), pointers), shared

    listing = gpu.kept(plan.handles, f"limbs {made.word.name} {made.rows.shape}", make)
    recipe.used += [moduli, listing]
    where = dict(zip(("rows", "tables"), map(gpu.address, listing.value), strict=True))
    where |= {"moduli": gpu.address(moduli.value), "key_total": plan.key_total, "limbs": limbs}
    where |= {"count": plan.digits, "own_rows": plan.own_total}
    where |= dict.fromkeys(("digits", "own", "key", "more", "y"), 0)
    # Sort the rows by limb: the second pass reads them in this order.
    places = sorted((at for at in plan.made_rows if at % limbs in chosen), key=lambda at: at % limbs)
    primes, rows = [tables[at % limbs] for at in places], plan.digits * limbs
    if places:
        start_listed(gpu, recipe, plan.handles, made, primes, places, (items, rows, n), 0)
    launch = digit_rows_launch(made, items, len(chosen), n, adds, gpu.card, **where)
    recipe.launch(launch, 0, 1, 2, 3, 4 if adds else 3)


def _end_inverse(
    gpu: Context, recipe: Recipe, plan: DigitProduct, made: Listed, items: int, number: int
) -> None:
    """Add the second pass of the inverse transforms of the sums.

    The kernel digit_rows does the first pass. number: the operand index of the sums.
    """
    limbs, part = len(plan.key_rows), plan.inverse_transform
    for group in transform_groups(part, gpu.card, len(plan.inverse) < limbs):
        between = limbs - len(plan.inverse)
        rows = rows_of(gpu, part, group, 2 * items, made.tables, recipe, between, plan.inverse[0])
        offsets = table_offsets(made.tables, group.word)[2:4]
        passes = made.columns, made.rows
        recipe.add(transform_recipe(rows, passes, offsets, "inverse", gpu.card, 1), number, number)


def _make_digits(gpu: Context, plan: DigitProduct, value: tuple[Array, Array], digits: Array) -> None:
    """Write all digits, evaluated, to `digits`. value: the pair (coefficients, evaluated).

    Rows in which a digit equals the value are copied from value[1], and are not transformed.
    """
    x, own = value
    *batch, count, limbs, n = digits.shape
    rows = digits.reshape(*batch, count * limbs, n)
    convert_all(gpu, plan.conversions, x, rows)
    convert(gpu, plan.own_copy, None, own, rows)
    for first, transform in plan.runs:
        ntt(gpu, transform, rows, rows, first)


# ---- rotations ----


def rotated_launch(
    word: Word, size: int, sets: int, rows: int, together: int, wide: bool, /, **values: Any
) -> Launch:
    """Return the launch of Backend.rotated_sums for limbs with the same Word.

    size: bytes of a residue. sets: the number of sets of terms; each set gets its own sum. rows: the
    number of limbs. together: how many weighted sums a block computes, or 0 without weights. With
    weights, sets is 1. wide: whether a thread works on several neighbouring points.
    """
    argument = word.argument if word.bytes == size else word.grouped(size).argument
    points = max(1, (16 if together <= 4 else 8) // size) if wide else 1
    grid = -(-values["n"] // (points * ROTATED_THREADS)) * values["items"] * sets, rows
    kernel = f"rotated_sums<{argument}, {together}, {points}>"
    return Launch("keyswitch.cu", kernel, grid, ROTATED_THREADS, ROTATED(**values))


def rotated_sums(
    gpu: Context,
    plan: RotatedSums,
    digits: Array | None,
    keys: Sequence[Array | None],
    multipliers: Array,
    more: Array,
    weights: Array | None,
    out: Array,
) -> None:
    if not out.size:
        return
    given = [more if x is None else x for x in (digits, weights)]
    operands = [given[0], more, given[1], multipliers, out, *(more if key is None else key for key in keys)]
    totals = tuple(0 if key is None else key.shape[-2] for key in keys)
    wide = out.shape[-1] >= 8 and gpu.aligned(*operands[:3], *operands[4:])

    def recipe() -> Recipe:
        made = Recipe(len(operands))
        for start in range(0, len(keys), ROTATED_TERMS):
            _rotated_terms(gpu, made, plan, totals, start, weights is not None, wide, out)
        return made

    gpu.run(plan.handles, ("rotated", out.shape, totals, weights is not None, wide), recipe, *operands)


def _rotated_terms(
    gpu: Context,
    recipe: Recipe,
    plan: RotatedSums,
    totals: tuple[int, ...],
    start: int,
    is_weighted: bool,
    wide: bool,
    out: Array,
) -> None:
    """Add the launches for at most ROTATED_TERMS terms, beginning with term `start`.

    If start > 0, the launches add to the values in `out`, unless each term is a separate result.
    """
    basis, quotient = plan.transform.basis, plan.transform.quotient
    results, *batch, _, limbs, n = out.shape
    some = range(start, min(start + ROTATED_TERMS, len(totals)))
    is_apart = not is_weighted and results > 1  # each term is a separate result
    items, moduli = prod(batch), gpu.moduli_of(basis)

    def make() -> tuple[tuple[Array, ...], tuple[()]]:
        terms = [(totals[t] > 0, sum(x > 0 for x in totals[:t]) * plan.is_split, totals[t]) for t in some]
        rows = [plan.products[t] for t in some]
        key_rows = [[0] * limbs if product is None else product.key_rows for product in rows]
        places = [[places[t] for places in plan.places] for t in some]
        tables = (
            np.array(terms, ROTATED_TERM.dtype).view(np.uint64),
            np.array(key_rows, np.uint64),
            np.array(places, np.int64).view(np.uint64),
        )
        return tuple(map(gpu.from_host, tables)), ()

    tables = gpu.kept(plan.handles, f"rotated terms {start} {totals}", make)
    recipe.used += [moduli, tables]
    where: dict[str, Any] = dict(
        zip(("terms", "key_rows", "places"), map(gpu.address, tables.value), strict=True)
    )
    where |= {"moduli": gpu.address(moduli.value), "keys": bytes(8 * ROTATED_TERMS), "n": n}
    where |= dict.fromkeys(("digits", "more", "weights", "multipliers", "y"), 0)
    where |= {"order": quotient.order, "limbs": limbs, "more_rows": plan.more_total, "items": items}
    where |= {"count": next((x.digits for x in plan.products if x is not None), 0)}
    where |= {"terms_of_set": 1 if is_apart else len(some), "term_count": len(some)}
    where |= {"is_turned": plan.is_turned, "own_more": plan.is_split, "result_count": results}
    where |= {"adds": start > 0 and not is_apart}
    size = out.dtype.itemsize
    more_bytes = start * items * 2 * plan.more_total * n * size if plan.is_split else 0
    out_bytes = start * items * 2 * limbs * n * size if is_apart else 0
    numbers = 0, 1, 2, 3, 4, *(5 + t for t in some)
    offsets = 0, more_bytes, 0, 8 * start, out_bytes, *(0 for _ in some)
    for word, chosen in limbs_by_word(basis.moduli, size, gpu.card).items():
        rows = gpu.kept(plan.handles, f"rotated limbs {word.name}", partial(_limbs, gpu, plan, chosen))
        recipe.used.append(rows)
        where |= {"rows": gpu.address(rows.value)}
        served = STRICT64 if word == BY_SHIFTS else word
        together = 0 if not is_weighted else min(_MOST_RESULTS, 1 << (results - 1).bit_length())
        for first in range(0, results, together) if together else (0,):
            launch = rotated_launch(
                served,
                size,
                len(some) if is_apart else 1,
                len(chosen),
                together,
                wide,
                first_result=first,
                **where,
            )
            recipe.launch(launch, *numbers, offsets=offsets)


def _limbs(gpu: Context, plan: RotatedSums, chosen: Sequence[int]) -> tuple[Array, tuple[()]]:
    """Return an array of the structs RotatedLimb of the limbs in `chosen`, and (), as Device.kept expects."""
    rows = [(limb, plan.more_rows[limb], plan.factors[limb]) for limb in chosen]
    return gpu.from_host(np.array(rows, ROTATED_LIMB.dtype).view(np.uint64)), ()


# ---- gadgets ----


def decompose(gpu: Context, gadget: Gadget, x: Array, out: Array) -> None:
    if not out.size:
        return

    def recipe() -> Recipe:
        made = Recipe(2)
        made.launch(decompose_launch(gadget, x.shape[-1], x.size, x=0, y=0), 0, 1)
        return made

    gpu.run(gadget.handles, ("decompose", x.size, x.shape[-1]), recipe, x, out)


def signed_digits(gpu: Context, gadget: Gadget, x: Array, out: Array) -> None:
    rows, n = x.shape
    if not out.size:
        return
    stride = x.strides[0] // x.itemsize if rows > 1 else n

    def recipe() -> Recipe:
        made = Recipe(2)
        made.launch(signed_digits_launch(gadget, n, stride, rows * n, out.dtype, x=0, y=0), 0, 1)
        return made

    gpu.run(gadget.handles, ("signed digits", rows, n, stride, out.dtype), recipe, x, out)


def prepare(gpu: Context, gadget: Gadget, matrices: Array, out: Array) -> None:
    assert gadget.product is not None
    if isinstance(gadget.product, TorusPlan):
        torus.prepare(gpu, gadget, matrices, out)
    else:
        prepare_by_fft(gpu, gadget.product, matrices, out)


def gadget_product(gpu: Context, gadget: Gadget, ggsw: Array, c: Array, out: Array) -> None:
    if not out.size:
        return
    if gadget.transform is not None and _by_one_kernel(gpu, gadget, ggsw, c, None, out):
        return
    (k, n), items = (c.shape[-3], c.shape[-1]), prod(c.shape[:-3])
    digits = gpu.empty((items, k * gadget.levels, 1, n), c.dtype)
    decompose(gpu, gadget, c, digits)
    if gadget.product is not None:
        sum_by_fft(gpu, gadget.product, digits, ggsw, out.reshape(items, k, 1, n))
        return
    plan = gadget.transform
    assert plan is not None
    ntt(gpu, plan, digits, digits)
    sums, matrix = out.reshape(1, items, k, 1, n), ggsw.reshape(1, k * gadget.levels, k, 1, n)
    matmul_points(gpu, gadget.basis, digits[None], matrix, sums)
    intt(gpu, plan, out, out)


def gadget_rotation(
    gpu: Context, gadget: Gadget, ggsws: Array, c: Array, exponents: Array, out: Array
) -> None:
    if not out.size:
        return
    if gadget.transform is not None and _by_one_kernel(gpu, gadget, ggsws, c, exponents, out):
        return
    powers = _here(gpu, exponents.reshape(-1, exponents.shape[-1]))
    if isinstance(gadget.product, TorusPlan) and torus.rotate(gpu, gadget, ggsws, c, powers, out):
        return
    moved = gpu.empty(out.shape, out.dtype)
    # For mul_monomial, a ciphertext of k components is an item of k rows.
    rows = [x.reshape(-1, *x.shape[-3::2]) for x in (c, out, moved)]
    mul_monomial(gpu, gadget.basis, gadget.quotient, rows[0], powers[:, 0], rows[1])
    for i, ggsw in enumerate(ggsws, 1):
        mul_monomial(gpu, gadget.basis, gadget.quotient, rows[1], powers[:, i], rows[2], less=True)
        gadget_product(gpu, gadget, ggsw, moved, moved)
        pointwise(gpu, gadget.basis, "add", out, moved, None, out)


def rotate_by_groups(
    gpu: Context, gadget: Gadget, keys: Array, c: Array, exponents: Array, out: Array
) -> bool:
    if not out.size:
        return True
    powers = _here(gpu, exponents.reshape(-1, exponents.shape[-1]))
    return torus.rotate_by_groups(gpu, gadget, keys, c, powers, out)


def _here(gpu: Context, x: Array) -> Array:
    """Return x, or a copy of x on this device if x is in host memory."""
    return gpu.from_host(x) if isinstance(x, np.ndarray) else x


def _by_one_kernel(
    gpu: Context, gadget: Gadget, ggsws: Array, c: Array, exponents: Array | None, out: Array
) -> bool:
    """Multiply c by a GGSW matrix in one kernel. If `exponents` are given, do a blind rotation instead.

    Return True. If the kernel does not support the sizes or the arrays, do nothing and return False.
    """
    plan, (k, n) = gadget.transform, (c.shape[-3], c.shape[-1])
    assert plan is not None
    items, count = prod(c.shape[:-3]), 1 if exponents is None else exponents.shape[-1] - 1
    key = f"{gpu.name} tile {n} {k} {items < gpu.card.multiprocessors}"
    if key not in gadget.handles:
        (group,) = transform_groups(plan, gpu.card)
        gadget.handles[key] = group.word, gadget_tile(n, k, items, group.word, gpu.card)
    word, tile = gadget.handles[key]
    if tile is None or (gpu.address(ggsws) | gpu.address(c) | gpu.address(out)) % ALIGNMENT:
        return False
    operands = [c, ggsws, out]
    if exponents is not None:
        operands.append(_here(gpu, exponents))

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(gadget.basis)
        (table,) = prime_tables(gpu, plan.tables, word, (tile,))
        where = {"modulus": gpu.address(moduli.value), "table": gpu.address(table.value)}
        where |= dict.fromkeys(("x", "matrices", "y", "exponents"), 0) | {"count": count}
        made = Recipe(len(operands), moduli, table)
        launch = gadget_launch(gadget, word, tile, k, exponents is not None, items, **where)
        made.launch(launch, *range(len(operands)))
        return made

    gpu.run(gadget.handles, ("one kernel", exponents is None, items, k, count), recipe, *operands)
    return True
