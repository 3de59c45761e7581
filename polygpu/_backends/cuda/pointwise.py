"""Operations on single residues: sums, products, linear combinations, permutations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import or_
from typing import Any

import numpy as np

from ..._core.exact.primes import GOLDILOCKS
from ..._core.plans.basis import Basis
from ..._core.quotient import Quotient
from .. import Arithmetic, Array, Backend, Op
from .copies import fitted
from .launch import (
    ALIGNMENT,
    LAYOUT,
    MAX_AXES,
    POINTER,
    THREADS,
    U32,
    U64,
    Context,
    Launch,
    Recipe,
    Struct,
    cbool,
    ctype,
    entrywise,
    layout_of,
    layout_struct,
    layout_table,
)
from .sources import constant as constant_of
from .sources import enumeration

_FILE = "pointwise.cu"
_CHUNKS = 4  # one thread processes this many chunks of 16 bytes of a long row
_LOG_NEAR_POWERS = 8  # log2 of the most powers of `step` in the first part of a row's table
_OPS = enumeration(_FILE, "Op")
COMBINE_TERMS = constant_of(_FILE, "COMBINE_TERMS")  # the most operands of a launch of `combine`

POINTWISE = Struct(
    _FILE,
    "PointwiseParameters<u64>",
    ("a b c y moduli", POINTER),
    ("n b_length entries", U64),
    ("limbs dense", U32),
    ("layout", LAYOUT),
)
COMBINE = Struct(
    _FILE,
    "CombineParameters<u64>",
    ("x", (POINTER, COMBINE_TERMS)),
    ("factors constant y moduli", POINTER),
    ("n entries count factors_each step", U64),
    ("limbs terms adds has_constant dense", U32),
    ("layout", layout_struct(COMBINE_TERMS + 1)),
)
TENSOR = Struct(
    _FILE,
    "TensorParameters<u64>",
    ("x y more pair square moduli", POINTER),
    ("n entries", U64),
    ("component", (U64, 3)),
    ("pair_rows square_rows", U64),
    ("limbs adds has_more", U32),
    ("layout", LAYOUT),
)
FILL_POWERS = Struct(
    _FILE,
    "FillPowersParameters<u64>",
    ("first step powers moduli", POINTER),
    ("entries row", U64),
    ("log_near limbs", U32),
)
SCALE = Struct(
    _FILE,
    "ScaleParameters<u64>",
    ("x powers y moduli", POINTER),
    ("n entries rows row x_pitch y_pitch run_step", U64),
    ("limbs log_near log_run", U32),
)
REORDER = Struct(
    _FILE,
    "ReorderParameters<u64>",
    ("x numbers y moduli", POINTER),
    ("n order entries count step", U64),
    ("rows limbs", U32),
)
TAKE = Struct(_FILE, "TakeParameters<u64>", ("x index y", POINTER), ("n entries", U64))


def pointwise_launch(basis: Basis, op: Op, width: int, entries: int, **values: Any) -> Launch:
    """Return the launch of `op` on all entries. width: how many neighbouring entries a thread processes."""
    parameters = POINTWISE(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"pointwise<{ctype(basis)}, {_OPS[op]}, {width}>", entries // width, parameters)


def _moduli(basis: Basis) -> str:
    """Return the name in pointwise.cu for the kind of the moduli: SHORT, ONLY_GOLDILOCKS or ANY."""
    if max(basis.moduli).bit_length() <= 62:
        return "SHORT"
    return "ONLY_GOLDILOCKS" if set(basis.moduli) == {GOLDILOCKS} else "ANY"


def _chunks(n: int, width: int, most: int) -> int:
    """Return how many chunks of `width` entries a thread processes.

    The result is `most` if n is a multiple of THREADS * width * most, otherwise 1.
    """
    return most if n % (THREADS * width * most) == 0 else 1


def combine_launch(basis: Basis, terms: int, width: int, entries: int, *, n: int, **values: Any) -> Launch:
    """Return the launch that computes linear combinations of `terms` operands.

    entries: the entries of one combination. width: the number of neighbouring entries in a chunk.
    n: entries of a row.
    """
    parameters = COMBINE(entries=entries, limbs=basis.rows, terms=terms, n=n, **values)
    held = next(size for size in (2, 4, COMBINE_TERMS) if terms <= size)
    chunks = _chunks(n, width, COMBINE_TERMS // held)
    kernel = f"combine<{ctype(basis)}, {held}, {width}, {chunks}, {_moduli(basis)}>"
    return entrywise(_FILE, kernel, entries // (width * chunks), parameters)


def tensor_launch(basis: Basis, is_square: bool, width: int, entries: int, **values: Any) -> Launch:
    """Return the launch that multiplies ciphertexts.

    entries: the entries of one component. width: how many neighbouring entries a thread processes.
    """
    parameters = TENSOR(entries=entries, limbs=basis.rows, **values)
    kernel = f"tensor<{ctype(basis)}, {cbool(is_square)}, {width}, {_moduli(basis)}>"
    return entrywise(_FILE, kernel, entries // width, parameters)


def fill_powers_launch(basis: Basis, entries: int, **values: int) -> Launch:
    """Return the launch that fills the tables of powers that scale_launch reads."""
    parameters = FILL_POWERS(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"fill_powers<{ctype(basis)}>", entries, parameters)


def scale_launch(basis: Basis, width: int, entries: int, *, n: int, **values: int) -> Launch:
    """Return the launch that multiplies entry j of each row by first * step^j.

    The kernel computes first * step^j as a product of two entries of the tables of fill_powers_launch.

    width: the number of neighbouring entries in a chunk. n: entries of a row.
    """
    chunks = _chunks(n, width, _CHUNKS)
    parameters = SCALE(entries=entries, limbs=basis.rows, n=n, **values)
    kernel = f"scale_by_powers<{ctype(basis)}, {width}, {chunks}, {_moduli(basis)}>"
    return entrywise(_FILE, kernel, entries // (width * chunks), parameters)


def reorder_launch(basis: Basis, kernel: str, flag: bool, width: int, entries: int, **values: int) -> Launch:
    """Return the launch that permutes the entries of each row.

    kernel: "permute" for automorphisms, or "mul_monomial". flag: for "permute", whether rows are evaluated;
    for "mul_monomial", whether x itself is subtracted from the product. width: how many neighbouring entries
    of the result a thread writes.
    """
    parameters = REORDER(entries=entries, limbs=basis.rows, **values)
    name = f"{kernel}<{ctype(basis)}, {cbool(flag)}, {width}>"
    return entrywise(_FILE, name, entries // width, parameters)


def take_launch(itemsize: int, entries: int, **values: int) -> Launch:
    """Return the launch that permutes the entries of rows by an index array. itemsize: bytes of an entry."""
    return entrywise(_FILE, f"take<u{8 * itemsize}>", entries, TAKE(entries=entries, **values))


def _width(basis: Basis, n: int, aligned: bool) -> int:
    """Return how many neighbouring entries a thread moves at once, in rows of n entries."""
    width = ALIGNMENT // basis.dtype.itemsize
    return width if aligned and n % width == 0 else 1


def take(gpu: Context, x: Array, index: Array, out: Array) -> None:
    if not out.size:
        return

    def recipe() -> Recipe:
        made = Recipe(3)
        made.launch(take_launch(x.dtype.itemsize, out.size, n=len(index), x=0, index=0, y=0), 0, 1, 2)
        return made

    gpu.run(gpu.handles, ("take", x.dtype.itemsize, out.size, len(index)), recipe, x, index, out)


def pointwise(
    gpu: Context, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array
) -> None:
    shape, operands = out.shape, tuple(x for x in (a, b, c) if x is not None)
    spread = fitted(gpu, shape, *operands)
    shapes, bits = tuple(x.shape for x in spread), gpu.address(out)
    steps = tuple(map(_steps, spread))
    for x, own in zip(spread, shapes, strict=True):
        if own[-1] > 1:  # an operand with one entry per row may have any alignment: it is read word by word
            bits |= gpu.address(x)
    aligned = bits % ALIGNMENT == 0
    gpu.run(
        basis.handles,
        (op, aligned, shape, *shapes, *steps),
        lambda: pointwise_recipe(gpu, basis, op, aligned, shape, *shapes, steps=steps),
        *(*spread, out),
    )


def _steps(x: Array) -> tuple[int, ...] | None:
    """Return the strides of the batch axes of x, counted in rows, or None if x is dense."""
    row = x.shape[-1] * x.dtype.itemsize
    return None if x.flags.c_contiguous else tuple(stride // row for stride in x.strides[:-2])


def pointwise_recipe(
    gpu: Context,
    basis: Basis,
    op: Op,
    aligned: bool,
    shape: tuple[int, ...],
    *operands: tuple[int, ...],
    steps: Sequence[tuple[int, ...] | None] = (None, None, None),
) -> Recipe:
    """Return the recipe of `op`. shape: the shape of the result. operands: the shape of each operand.

    steps: see layout_of. The kernel always gets three addresses and ignores those that `op` does not
    need.
    """
    count, n = len(operands), shape[-1]
    numbers = (0, min(1, count - 1), 2 if count > 2 else 0)
    moduli = gpu.moduli_of(basis)
    layout = layout_of(shape, *(operands[i] for i in numbers), steps=[steps[i] for i in numbers])
    where = layout | dict.fromkeys("abcy", 0)
    where["moduli"] = gpu.address(moduli.value)
    width = _width(basis, n, aligned)
    length = operands[numbers[1]][-1]
    launch = pointwise_launch(basis, op, width, prod(shape), n=n, b_length=length, **where)
    recipe = Recipe(count + 1, moduli)
    recipe.launch(launch, *numbers, count)
    return recipe


def combine(
    gpu: Context,
    basis: Basis,
    operands: Sequence[Array],
    factors: Array,
    constant: Array | None,
    step: int,
    out: Array,
) -> None:
    if not out.size:
        return
    if out.ndim - 2 > MAX_AXES:
        Arithmetic.combine(gpu, basis, operands, factors, constant, step, out)  # type: ignore[arg-type]
        return
    given = (*operands,) if constant is None else (*operands, constant)
    shapes, steps, places = tuple(x.shape for x in given), tuple(map(_steps, given)), gpu.address(out)
    for x in operands:
        places |= gpu.address(x)
    width = _width(basis, out.shape[-1], places % ALIGNMENT == 0)
    terms, count = len(operands), prod(factors.shape[:-3])
    same = all(x.shape == out.shape[factors.ndim - 3 :] for x in operands)
    dense = same and not any(steps[:terms])

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        made = Recipe(len(given) + 2, moduli)
        where = {"factors": 0, "constant": 0, "y": 0, "moduli": gpu.address(moduli.value), "n": out.shape[-1]}
        where |= {"count": count, "factors_each": terms, "step": step, "x": bytes(8 * COMBINE_TERMS)}
        for first in range(0, terms, COMBINE_TERMS):
            chosen = list(range(first, min(first + COMBINE_TERMS, terms)))
            adds_constant = constant is not None and not first
            # The kernel always takes COMBINE_TERMS operands. Unused ones get the address of the first.
            places = [chosen[i] if i < len(chosen) else chosen[0] for i in range(COMBINE_TERMS)]
            places.append(terms if adds_constant else chosen[0])
            table = [shapes[i] for i in places], [steps[i] for i in places]
            layout = layout_table(out.shape, *table, COMBINE_TERMS + 1)
            launch = combine_launch(
                basis,
                len(chosen),
                width,
                out.size // count,
                layout=layout,
                adds=first > 0,
                has_constant=adds_constant,
                dense=dense,
                **where,
            )
            offsets = (0,) * COMBINE_TERMS, first * basis.rows * out.itemsize
            numbers = (*places[:-1], len(given), places[-1], len(given) + 1)
            made.launch(launch, *numbers, offsets=(*offsets[0], offsets[1], 0, 0))
        return made

    key = "combine", width, out.shape, factors.shape, shapes, steps, constant is None, step
    gpu.run(basis.handles, key, recipe, *given, factors, out)


def tensor(
    gpu: Context,
    basis: Basis,
    x: Array,
    y: Array,
    more: Array | None,
    pair: Array,
    square: Array,
    adds: bool,
) -> None:
    if not square.size:
        return
    if square.ndim - 2 > MAX_AXES:
        Backend.tensor(gpu, basis, x, y, more, pair, square, adds)  # type: ignore[arg-type]
        return
    operands = [x, y, x if more is None else more]
    given = [*operands, pair, square]
    n, size = square.shape[-1], square.itemsize
    row = n * size
    width = _width(basis, n, reduce(or_, map(gpu.address, given)) % ALIGNMENT == 0)
    shapes = tuple((*v.shape[:-3], *v.shape[-2:]) for v in operands)
    steps = tuple(tuple(stride // row for stride in v.strides[:-3]) for v in operands)
    component = tuple(v.strides[-3] // row for v in operands)
    items = tuple(v.strides[-axes] // row if v.ndim >= axes else 0 for v, axes in ((pair, 4), (square, 3)))

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        made = Recipe(len(given), moduli)
        where = dict.fromkeys(("x", "y", "more", "pair", "square"), 0) | {"moduli": gpu.address(moduli.value)}
        where |= {"pair_rows": items[0], "square_rows": items[1], "n": n}
        launch = tensor_launch(
            basis,
            x is y,
            width,
            square.size,
            component=np.array(component, np.uint64).tobytes(),
            layout=layout_table(square.shape, shapes, steps, 3),
            adds=adds,
            has_more=more is not None,
            **where,
        )
        made.launch(launch, *range(len(given)))
        return made

    key = "tensor", width, square.shape, shapes, steps, component, items, adds, more is None, x is y
    gpu.run(basis.handles, key, recipe, *given)


def scale_by_powers(gpu: Context, basis: Basis, x: Array, first: Array, step: Array, out: Array) -> None:
    if not out.size:
        return
    n, size = x.shape[-1], x.dtype.itemsize
    # If x or out is not dense, each item has only one row (see Backend.scale_by_powers).
    pitches = x_pitch, y_pitch = [n * size if a.flags.c_contiguous else a.strides[0] for a in (x, out)]
    runs = out.ndim > x.ndim
    run, run_step = (out.shape[-1], out.strides[-2]) if runs else (n, n * size)
    places = gpu.address(x) | gpu.address(out) | x_pitch | y_pitch | run_step
    width = _width(basis, run, places % ALIGNMENT == 0)
    # The table holds 2^log_near powers of `step`, then powers of step^(2^log_near). If n is small, both parts
    # have about the same length.
    log_near = min(_LOG_NEAR_POWERS, ((n - 1).bit_length() + 1) >> 1)
    row = (1 << log_near) + -(-n >> log_near)

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        where = {"powers": 0, "moduli": gpu.address(moduli.value), "row": row, "log_near": log_near}
        made = Recipe(4, moduli)
        powers = made.temporary(first.size * row * size)
        fill = fill_powers_launch(basis, first.size * row, first=0, step=0, **where)
        made.launch(fill, 1, 2, powers)
        log_run = run.bit_length() - 1 if runs else 63
        steps = {"x_pitch": x_pitch // size, "y_pitch": y_pitch // size, "run_step": run_step // size}
        steps |= {"log_run": log_run}
        scale = scale_launch(basis, width, x.size, n=n, rows=first.size, x=0, y=0, **steps, **where)
        made.launch(scale, 0, powers, 3)
        return made

    key = "powers", width, x.shape, first.shape, *pitches, run, run_step
    gpu.run(basis.handles, key, recipe, x, first, step, out)


def automorphism(
    gpu: Context, basis: Basis, quotient: Quotient, x: Array, multipliers: Array, evaluated: bool, out: Array
) -> None:
    _reorder(gpu, "permute", evaluated, basis, quotient, x, multipliers, out)


def mul_monomial(
    gpu: Context, basis: Basis, quotient: Quotient, x: Array, exponents: Array, out: Array, less: bool = False
) -> None:
    """Compute X^e * x, or X^e * x - x if `less` is True. The array of exponents may have any stride.

    All rows of an item x[i] are multiplied by the same power of X. An item has one row for each limb. If
    there is a single limb, an item may have any number of rows, such as the components of a ciphertext.
    """
    _reorder(gpu, "mul_monomial", less, basis, quotient, x, exponents, out)


def _reorder(
    gpu: Context,
    kernel: str,
    flag: bool,
    basis: Basis,
    quotient: Quotient,
    x: Array,
    numbers: Array,
    out: Array,
) -> None:
    if not out.size:
        return
    width = _width(basis, x.shape[-1], gpu.address(out) % ALIGNMENT == 0)
    numbers = numbers.reshape(-1)  # the stride of a single entry is arbitrary; the next line takes 1 instead
    count, step = numbers.size, numbers.strides[0] // numbers.itemsize if numbers.size > 1 else 1

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        sizes = {"n": x.shape[-1], "rows": x.shape[-2], "order": quotient.order}
        where = {"x": 0, "numbers": 0, "y": 0, "moduli": gpu.address(moduli.value)}
        made = Recipe(3, moduli)
        launch = reorder_launch(basis, kernel, flag, width, x.size, count=count, step=step, **sizes, **where)
        made.launch(launch, 0, 1, 2)
        return made

    key = kernel, flag, width, quotient.order, x.shape, count, step
    gpu.run(basis.handles, key, recipe, x, numbers, out)
