"""Products of polynomials: by the ring's transform, by FFT, or by transforms modulo auxiliary primes."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..._core.plans.basis import Basis
from ..._core.plans.ntt import NttPlan, TransformSize
from ..._core.plans.product import AuxiliaryPlan, AuxiliarySize, FftPlan, FftProductPlan, FftSumPlan, Plan
from ..._core.plans.torus import TorusPlan
from ...errors import ParameterError
from .. import Array
from .copies import copied, copy, fitted, repeated
from .device import Shared
from .launch import (
    ALIGNMENT,
    LAYOUT,
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
    layout_of,
)
from .pointwise import pointwise, pointwise_recipe
from .sources import constant
from .tiles import Pass, Rows, fft_tile, kernel_digits, split_passes, table_offsets
from .transform import (
    PASS,
    TABLES,
    blocks_ahead,
    leaf_constants,
    leaves_room,
    order_of,
    packed_pass,
    packed_tables,
    passes_over,
    recipe_of,
    rows_of,
    tiles_and_grid,
    transform_recipe,
)
from .words import COMPLEX, Card, transform_groups, word_of

# The most bytes of temporaries for one chunk of a product: transformed digits and their sums, or an operand
# modulo the auxiliary primes.
_CHUNK_BYTES = 1 << 28
_MAX_PRIMES = constant("auxiliary.cu", "MAX_PRIMES")

Shape = tuple[int, ...]

LEAVES = Struct(
    "pointwise.cu",
    "LeavesParameters<u64>",
    ("a b y constants moduli", POINTER),
    ("n entries", U64),
    ("limbs leaf_size dense", U32),
    ("layout", LAYOUT),
)
PRODUCT = Struct(
    "ntt.cu",
    "ProductParameters<u64>",
    ("a b y", POINTER),
    ("pass", PASS),
    ("inverse_offset", U64),
    ("rows_a rows_b ahead", U32),
    ("tables", TABLES),
)
FFT_PRODUCT = Struct(
    "fft_product.cu",
    "FftProductParameters<u64>",
    ("a b y moduli twiddles", POINTER),
    ("units rows_a rows_b", U64),
    ("limbs degree width sums quotient", U32),
)
FFT_SPLIT = Struct(
    "fft_product.cu",
    "SplitParameters<u64>",
    ("x y moduli", POINTER),
    ("degree points units first_unit", U64),
    ("limbs count width dense", U32),
    ("layout", LAYOUT),
)
FFT_MULTIPLY = Struct(
    "fft_product.cu",
    "FftMultiplyParameters",
    ("a b y", POINTER),
    ("points units", U64),
    ("count sums", U32),
)
FFT_MATRIX = Struct(
    "fft_product.cu",
    "FftMatrixParameters",
    ("x matrix y", POINTER),
    ("points entries", U64),
    ("terms columns", U32),
)
FFT_ROUND = Struct(
    "fft_product.cu", "FftRoundParameters<u64>", ("x y", POINTER), ("degree points units", U64)
)
FFT_COMPOSE = Struct(
    "fft_product.cu",
    "FftComposeParameters<u64>",
    ("x y moduli", POINTER),
    ("degree points units first_unit", U64),
    ("limbs width sums quotient", U32),
)
ARRANGE = Struct(
    "tables.cu",
    "ArrangeParameters",
    ("table nodes", POINTER),
    ("offset", U64),
    ("log_blocks log_length log_values", U32),
)
SPREAD = Struct(
    "auxiliary.cu",
    "SpreadParameters<u64>",
    ("x y moduli primes", POINTER),
    ("n length units first_unit", U64),
    ("limbs count dense", U32),
    ("layout", LAYOUT),
)
COMPOSE = Struct(
    "auxiliary.cu",
    "ComposeParameters<u64>",
    ("x y moduli primes constants", POINTER),
    ("n length units first_unit", U64),
    ("limbs count quotient", U32),
)


# ---- launches, pure functions of sizes, addresses and the card ----


def leaves_launch(plan: NttPlan, entries: int, **values: Any) -> Launch:
    """Return the launch that multiplies modulo the leaves of an incomplete transform."""
    parameters = LEAVES(
        n=plan.degree, entries=entries, limbs=plan.basis.rows, leaf_size=plan.leaf_size, **values
    )
    return entrywise("pointwise.cu", f"multiply_eval<{ctype(plan.basis)}>", entries, parameters)


def product_passes(
    points: int, leaf_size: int, word_bytes: int, card: Card, rows: int | None = None
) -> tuple[Pass, ...]:
    """Return (pass,) if one kernel can compute the product, otherwise ().

    The kernel needs a complete transform of at least two points, and both operands must fit a block.
    """
    passes = passes_over(None, points, leaf_size, word_bytes, card) if points > 1 else ()
    if leaf_size > 1 or len(passes) != 1:
        return ()
    fits = 2 * passes[0].shared_values * word_bytes <= card.shared_bytes
    if not fits or word_bytes << passes[0].log_values > 128:
        return ()
    of_few = passes_over(rows, points, leaf_size, word_bytes, card)
    return of_few if len(of_few) == 1 else passes  # one kernel beats three transforms of two passes each


def product_launch(rows: Rows, passed: Pass, offsets: tuple[int, ...], card: Card, **values: int) -> Launch:
    """Return the launch of a product in one kernel.

    offsets: where the twiddles of the forward pass and of the inverse pass begin in a prime's table, in
    bytes.
    """
    tiles, grid = tiles_and_grid(rows, passed, card)
    room = leaves_room(grid, passed.threads, card)
    own = {"pass": packed_pass(rows, passed, offsets[0], tiles, room), "inverse_offset": offsets[1]}
    own["tables"] = rows.tables
    parameters = PRODUCT(**values, **own, ahead=blocks_ahead(rows, passed, card))
    shared = 2 * passed.shared_values * rows.word.bytes
    kernel = f"ntt_product<{rows.word.argument}, {passed.shape}>"
    return Launch("ntt.cu", kernel, grid, passed.threads, parameters, shared)


def fft_product_launch(plan: FftProductPlan, tile: Pass, units: int, **values: int) -> Launch:
    """Return the launch of a product by FFT in one kernel. units: rows of the result."""
    digits = kernel_digits(plan)
    width, sums = plan.split(digits)
    fold = plan.length != plan.degree or plan.quotient.wrap != -1
    sizes = {"limbs": plan.basis.rows, "degree": plan.degree, "width": width, "sums": sums}
    parameters = FFT_PRODUCT(units=units, quotient=plan.quotient.number, **sizes, **values)
    kernel = f"fft_product<{ctype(plan.basis)}, {tile.shape}, {digits}, {cbool(fold)}>"
    shared = tile.shared_values * COMPLEX.bytes
    grid = -(-units * 2 * digits >> tile.log_rows), 1
    return Launch("fft_product.cu", kernel, grid, tile.threads, parameters, shared)


def fft_split_launch(plan: FftPlan, units: int, digits: int, **values: Any) -> Launch:
    """Return the launch that splits `units` rows of an operand into `digits` digits each."""
    sizes = {"degree": plan.degree, "points": plan.points, "units": units, "limbs": plan.basis.rows}
    parameters = FFT_SPLIT(count=digits, width=plan.width, **sizes, **values)
    return entrywise("fft_product.cu", f"fft_split<{ctype(plan.basis)}>", units * plan.points, parameters)


def fft_multiply_launch(plan: FftProductPlan, units: int, **values: int) -> Launch:
    """Return the launch that computes sums of products of transformed digits, for `units` rows."""
    sizes = {"points": plan.points, "units": units, "count": plan.digits, "sums": plan.sums}
    return entrywise("fft_product.cu", "fft_multiply", units * plan.points, FFT_MULTIPLY(**sizes, **values))


def fft_matrix_launch(plan: FftSumPlan | TorusPlan, items: int, components: int, **values: int) -> Launch:
    """Return the launch that multiplies vectors of transformed polynomials by a prepared matrix."""
    columns = components * plan.sums
    entries = items * columns * plan.points
    sizes = {"points": plan.points, "entries": entries, "terms": plan.terms, "columns": columns}
    return entrywise("fft_product.cu", "fft_matrix", entries, FFT_MATRIX(**sizes, **values))


def fft_compose_launch(plan: FftProductPlan | FftSumPlan, units: int, **values: int) -> Launch:
    """Return the launch that composes `units` rows of residues from sums of products of digits."""
    sizes = {"degree": plan.degree, "points": plan.points, "units": units, "limbs": plan.basis.rows}
    sizes |= {"width": plan.width, "sums": plan.sums, "quotient": plan.quotient.number}
    kernel = f"fft_compose<{ctype(plan.basis)}>"
    return entrywise("fft_product.cu", kernel, units * plan.degree, FFT_COMPOSE(**sizes, **values))


def fft_round_launch(plan: TorusPlan, units: int, **values: int) -> Launch:
    """Return the launch that rounds `units` rows of sums of products to integers modulo 2^32 or 2^64."""
    parameters = FFT_ROUND(degree=plan.degree, points=plan.points, units=units, **values)
    return entrywise("fft_product.cu", f"fft_round<{ctype(plan.basis)}>", units * plan.degree, parameters)


def arrange_launch(passed: Pass, **values: int) -> Launch:
    """Return the launch that arranges complex twiddles in the order in which a pass reads them."""
    parameters = ARRANGE(**order_of(passed), **values)
    return entrywise("tables.cu", "arrange_twiddles<Complex128>", passed.entries, parameters)


def _sizes(plan: AuxiliaryPlan, units: int) -> dict[str, int]:
    length, count = plan.transform.degree, len(plan.transform.basis.moduli)
    return {"n": plan.degree, "length": length, "units": units, "limbs": plan.basis.rows, "count": count}


def spread_launch(plan: AuxiliaryPlan, units: int, **values: Any) -> Launch:
    """Return the launch that converts `units` rows of an operand to residues modulo the auxiliary primes."""
    parameters = SPREAD(**_sizes(plan, units), **values)
    return entrywise(
        "auxiliary.cu", f"auxiliary_spread<{ctype(plan.basis)}>", units * plan.transform.degree, parameters
    )


def compose_launch(plan: AuxiliaryPlan, units: int, **values: int) -> Launch:
    """Return the launch that converts `units` rows of a product from the auxiliary primes to the basis."""
    parameters = COMPOSE(**_sizes(plan, units), quotient=plan.quotient.number, **values)
    return entrywise(
        "auxiliary.cu", f"auxiliary_compose<{ctype(plan.basis)}>", units * plan.degree, parameters
    )


# ---- on a device ----


def product_ns(gpu: Context, basis: Basis, way: FftProductPlan | TransformSize | AuxiliarySize) -> float:
    """Estimate the nanoseconds of a product, by constants measured on an H200 (docs/performance.md)."""
    if isinstance(way, FftProductPlan):
        one_kernel = fft_tile(way, gpu.card) is not None
        ps = 3.5 * way.work(kernel_digits(way)) if one_kernel else 9 * way.work(way.digits)
    elif isinstance(way, AuxiliarySize):
        ps = 35.0 * way.points * way.primes
    elif way.leaf_size > 1:
        ps = 35.0 * way.points * way.leaf_size
    else:
        words = [word_of(q, basis.dtype.itemsize, gpu.card) for q in basis.moduli]
        long = way.points >= 256
        return sum(x.product_ps_long if long else x.product_ps for x in words) * way.points / 1000
    return len(basis.moduli) * ps / 1000


def prefers_matrix(gpu: Context, plan: Plan, count: int) -> bool:
    """Return whether to use a product of matrices to multiply `count` polynomials by one polynomial.

    The thresholds were measured (docs/studies/gemm.md).
    """
    complete = isinstance(plan, NttPlan) and plan.leaf_size == 1
    return not complete and plan.degree <= 128 and count * plan.degree >= 1 << 22


def multiply(gpu: Context, plan: Plan, a: Array, b: Array, out: Array) -> None:
    if isinstance(plan, NttPlan) and plan.points == 1:
        multiply_eval(gpu, plan, a, b, out)
        return
    shape = out.shape
    x, y = _product_operands(gpu, plan, a, b, shape)
    if (gpu.address(x) | gpu.address(y) | gpu.address(out)) % ALIGNMENT:
        x, result = copied(gpu, x), gpu.empty(shape, out.dtype)
        y = x if b is a else copied(gpu, y)
        multiply(gpu, plan, x, y, result)
        copy(gpu, result, out)
        return
    same, shapes = x is y, (x.shape, y.shape, shape)
    gpu.run(
        plan.handles,
        ("product", same, *shapes),
        lambda: _product_recipe(gpu, plan, *shapes, same),
        *(x, y, out),
    )


def multiply_eval(gpu: Context, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
    if plan.leaf_size == 1:
        pointwise(gpu, plan.basis, "mul", a, b, None, out)
        return
    # Each coefficient of `out` depends on a whole leaf of a and of b, so `out` must not overlap a or b.
    with gpu.scope:
        a, b = (copied(gpu, x) if gpu.xp.may_share_memory(x, out) else x for x in (a, b))
    shape = out.shape
    a, b = fitted(gpu, shape, a, b)
    shapes = a.shape, b.shape, shape
    gpu.run(plan.handles, ("leaves", *shapes), lambda: _eval_recipe(gpu, plan, *shapes), *(a, b, out))


def _eval_recipe(gpu: Context, plan: NttPlan, a: Shape, b: Shape, out: Shape) -> Recipe:
    """Return the recipe for products of evaluated polynomials.

    The shapes must have at most MAX_AXES batch axes (see `fitted` in copies.py).
    """
    if plan.leaf_size == 1:
        recipe = Recipe(3)
        recipe.add(pointwise_recipe(gpu, plan.basis, "mul", True, out, a, b), 0, 1, 2)
        return recipe
    leaves, moduli = leaf_constants(gpu, plan), gpu.moduli_of(plan.basis)
    where = layout_of(out, a, b) | dict.fromkeys("aby", 0)
    where |= {"constants": gpu.address(leaves.value[0]), "moduli": gpu.address(moduli.value)}
    recipe = Recipe(3, leaves, moduli)
    recipe.launch(leaves_launch(plan, prod(out), **where), 0, 1, 2)
    return recipe


def _product_operands(gpu: Context, plan: Plan, a: Array, b: Array, shape: Shape) -> tuple[Array, ...]:
    """Return a and b, copied to `shape` if the kernels cannot broadcast them."""
    if a.shape == b.shape == shape:
        return a, b
    if _in_one_kernel(gpu, plan):
        return tuple(repeated(gpu, x, shape) for x in (a, b))
    return fitted(gpu, shape, a, b)


def _in_one_kernel(gpu: Context, plan: Plan) -> bool:
    if isinstance(plan, FftProductPlan):
        return fft_tile(plan, gpu.card) is not None
    if isinstance(plan, AuxiliaryPlan):
        return False
    return bool(product_passes(plan.points, plan.leaf_size, plan.basis.dtype.itemsize, gpu.card))


def _product_recipe(gpu: Context, plan: Plan, a: Shape, b: Shape, out: Shape, same: bool = False) -> Recipe:
    """Return the recipe for a product of operands 0 and 1 into operand 2.

    a, b, out: the shapes of operands 0, 1 and 2. same: whether operands 0 and 1 are the same array.
    """
    if isinstance(plan, AuxiliaryPlan):
        return _auxiliary_recipe(gpu, plan, a, b, out)
    if isinstance(plan, FftProductPlan):
        tile = fft_tile(plan, gpu.card)
        return _fft_recipe(gpu, plan, tile, a, b, out) if tile else _digits_recipe(gpu, plan, a, b, out, same)
    if plan.points == 1:
        return _eval_recipe(gpu, plan, a, b, out)
    if _in_one_kernel(gpu, plan):
        return _fused_recipe(gpu, plan, a, b, out)
    return _transforms_recipe(gpu, plan, a, b, out, same)


# ---- products by the transform of the ring ----


def _fused_recipe(gpu: Context, plan: NttPlan, a: Shape, b: Shape, out: Shape) -> Recipe:
    """Return the recipe for a product with one kernel for each group of limbs."""
    count, size = prod(out[:-2]), plan.basis.dtype.itemsize
    rows_of_all = count * len(plan.basis.moduli)
    passes = product_passes(plan.points, plan.leaf_size, size, gpu.card, rows_of_all)
    sizes = {"rows_a": prod(a[:-1]), "rows_b": prod(b[:-1])} | dict.fromkeys("aby", 0)
    recipe = Recipe(3)
    for group in transform_groups(plan, gpu.card):
        rows = rows_of(gpu, plan, group, count, passes, recipe)
        offsets = table_offsets(passes, group.word)
        launch = product_launch(rows, passes[0], offsets, gpu.card, **sizes)
        recipe.launch(launch, 0, 1, 2, offsets=rows.first)
    return recipe


def _transforms_recipe(gpu: Context, plan: NttPlan, a: Shape, b: Shape, out: Shape, same: bool) -> Recipe:
    """Return the recipe that transforms both operands, multiplies point by point, and transforms back."""
    recipe, size = Recipe(3), plan.basis.dtype.itemsize
    evaluated: list[int] = []
    for operand, shape in ((0, a),) if same else ((0, a), (1, b)):
        evaluated.append(recipe.temporary(size * prod(shape)))
        recipe.add(recipe_of(gpu, plan, "forward", shape), operand, evaluated[-1])
    recipe.add(_eval_recipe(gpu, plan, a, b, out), evaluated[0], evaluated[-1], 2)
    recipe.add(recipe_of(gpu, plan, "inverse", out), 2, 2)
    return recipe


# ---- products by FFT ----


def _fft_recipe(gpu: Context, plan: FftProductPlan, tile: Pass, a: Shape, b: Shape, out: Shape) -> Recipe:
    moduli, twiddles = gpu.moduli_of(plan.basis), _fft_tables(gpu, plan, (tile,))
    where = dict.fromkeys("aby", 0) | {"rows_a": prod(a[:-1]), "rows_b": prod(b[:-1])}
    where |= {"moduli": gpu.address(moduli.value), "twiddles": gpu.address(twiddles.value)}
    recipe = Recipe(3, moduli, twiddles)
    recipe.launch(fft_product_launch(plan, tile, prod(out[:-1]), **where), 0, 1, 2)
    return recipe


def _digits_recipe(gpu: Context, plan: FftProductPlan, a: Shape, b: Shape, out: Shape, same: bool) -> Recipe:
    """Return the recipe for a product by FFT in several launches, a chunk of rows at a time."""
    recipe, units, points = Recipe(3), prod(out[:-1]), plan.points
    step = min(units, max(1, _CHUNK_BYTES // (16 * points * (2 * plan.digits + plan.sums))))
    spectra = [recipe.temporary(16 * step * plan.digits * points) for _ in range(1 if same else 2)]
    sums = recipe.temporary(16 * step * plan.sums * points)
    for first in range(0, units, max(1, step)):
        size = min(step, units - first)
        for operand, (shape, spectrum) in enumerate(zip((a, b), spectra, strict=False)):
            where = layout_of(out, shape) | {"first_unit": first}
            _split_digits(gpu, recipe, plan, plan.digits, size, operand, spectrum, **where)
        launch = fft_multiply_launch(plan, size, **dict.fromkeys("aby", 0))
        recipe.launch(launch, spectra[0], spectra[-1], sums)
        _compose_sums(gpu, recipe, plan, size, sums, 2, first_unit=first)
    return recipe


def prepare_by_fft(gpu: Context, plan: FftSumPlan, matrices: Array, out: Array) -> None:
    """Split polynomials into digits, and write the Fourier transforms of the digits.

    matrices: polynomials, (*batch, 1, n). out: (*batch, digits, points).
    """
    units = prod(matrices.shape[:-2])

    def recipe() -> Recipe:
        made = Recipe(2)
        where = layout_of((units, 1, plan.degree)) | {"first_unit": 0}
        _split_digits(gpu, made, plan, plan.digits, units, 0, 1, **where)
        return made

    gpu.run(plan.handles, ("prepare", units), recipe, matrices, out)


def sum_by_fft(gpu: Context, plan: FftSumPlan | TorusPlan, x: Array, matrix: Array, out: Array) -> None:
    """Multiply vectors of small polynomials by a prepared matrix.

    x: (items, terms, 1, n). matrix: made by Backend.prepare(). out: (items, k, 1, n). Items are processed
    in chunks. The temporaries of a chunk take at most _CHUNK_BYTES.
    """
    points, k = plan.points, out.shape[1]
    step = max(1, _CHUNK_BYTES // (16 * points * (plan.terms + k * plan.sums)))

    def recipe(items: int) -> Recipe:
        made, units = Recipe(3), items * plan.terms
        spectra = made.temporary(16 * units * points)
        sums = made.temporary(16 * items * k * plan.sums * points)
        where = layout_of((units, 1, plan.degree)) | {"first_unit": 0}
        _split_digits(gpu, made, plan, 1, units, 0, spectra, **where)
        launch = fft_matrix_launch(plan, items, k, **dict.fromkeys(("x", "matrix", "y"), 0))
        made.launch(launch, spectra, 1, sums)
        _compose_sums(gpu, made, plan, items * k, sums, 2, first_unit=0)
        return made

    for first in range(0, len(out), step):
        some, y = (a[first : first + step] for a in (x, out))
        gpu.run(plan.handles, ("sum", len(y), k), partial(recipe, len(y)), some, matrix, y)


# The next functions add launches to a recipe. Their arguments x and y are indices of the recipe's operands.


def _split_digits(
    gpu: Context, recipe: Recipe, plan: FftPlan, digits: int, units: int, x: int, y: int, **where: Any
) -> None:
    """Split `units` rows of x into `digits` digits each, and write the transforms of the digits to y."""
    where |= {"x": 0, "y": 0, "moduli": _moduli_for(gpu, recipe, plan)}
    recipe.launch(fft_split_launch(plan, units, digits, **where), x, y)
    _add_fft(gpu, recipe, plan, units * digits, y, "forward")


def _compose_sums(
    gpu: Context,
    recipe: Recipe,
    plan: FftProductPlan | FftSumPlan | TorusPlan,
    units: int,
    x: int,
    y: int,
    **where: Any,
) -> None:
    """Transform the sums in x back, in place, and write the residues of `units` rows to y."""
    _add_fft(gpu, recipe, plan, units * plan.sums, x, "inverse")
    if isinstance(plan, TorusPlan):
        recipe.launch(fft_round_launch(plan, units, x=0, y=0), x, y)
        return
    where |= {"x": 0, "y": 0, "moduli": _moduli_for(gpu, recipe, plan)}
    recipe.launch(fft_compose_launch(plan, units, **where), x, y)


def _add_fft(gpu: Context, recipe: Recipe, plan: FftPlan, rows: int, x: int, direction: str) -> None:
    """Transform the rows of complex numbers in x, in place."""
    passes = split_passes(plan.points, 1, COMPLEX.bytes, gpu.card)
    twiddles, moduli = _fft_tables(gpu, plan, passes), _moduli_for(gpu, recipe, plan)
    recipe.used.append(twiddles)
    tables, offsets = packed_tables([gpu.address(twiddles.value)]), table_offsets(passes, COMPLEX)
    of_all = Rows(rows, (0,), 1, plan.points.bit_length() - 1, COMPLEX, moduli, tables)
    recipe.add(transform_recipe(of_all, passes, offsets, direction, gpu.card), x, x)


def _moduli_for(gpu: Context, recipe: Recipe, plan: FftPlan) -> int:
    """Add the array of the plan's moduli to recipe.used. Return its address."""
    moduli = gpu.moduli_of(plan.basis)
    recipe.used.append(moduli)
    return gpu.address(moduli.value)


def _fft_tables(gpu: Context, plan: FftPlan, passes: tuple[Pass, ...]) -> Shared:
    """Return a table of twiddles, pass by pass. See table_offsets for the start of each pass."""

    def make() -> tuple[Array, tuple[Shared, ...]]:
        nodes, offsets = gpu.from_host(plan.twiddles), table_offsets(passes, COMPLEX)
        table: Array = gpu.xp.empty(offsets[len(passes)], np.uint8)
        where = {"table": gpu.address(table), "nodes": gpu.address(nodes)}
        pairs = zip(passes, offsets, strict=False)
        launches = [arrange_launch(passed, offset=offset, **where) for passed, offset in pairs]
        return table, (gpu.filling(launches, table, nodes),)

    return gpu.kept(plan.handles, f"tables {passes}", make)


# ---- products by auxiliary primes ----


def _auxiliary_recipe(gpu: Context, plan: AuxiliaryPlan, a: Shape, b: Shape, out: Shape) -> Recipe:
    """Return the recipe for a product modulo auxiliary primes, a chunk of rows at a time."""
    basis, transform, n = plan.basis, plan.transform, plan.degree
    count, length = len(transform.basis.moduli), transform.degree
    if count > _MAX_PRIMES:
        raise ParameterError(
            f"A product for n={n} needs {count} auxiliary primes, and at most {_MAX_PRIMES} fit a GPU "
            "kernel. Use a.cpu() * b.cpu() to multiply on the host."
        )
    radix = gpu.kept(
        plan.handles, "digits", lambda: (gpu.from_host(_mixed_radix(transform.basis.moduli)), ())
    )
    moduli, primes = gpu.moduli_of(basis), gpu.moduli_of(transform.basis)
    common = {"moduli": gpu.address(moduli.value), "primes": gpu.address(primes.value), "x": 0, "y": 0}
    recipe, units = Recipe(3, radix, moduli, primes), prod(out[:-1])
    step = min(units, max(1, _CHUNK_BYTES // (8 * count * length)))
    residues = [recipe.temporary(8 * step * count * length) for _ in (a, b)]
    for first in range(0, units, max(1, step)):
        size = min(step, units - first)
        common["first_unit"] = first
        for operand, (shape, target) in enumerate(zip((a, b), residues, strict=True)):
            launch = spread_launch(plan, size, **layout_of(out, shape), **common)
            recipe.launch(launch, operand, target)
        inner = (size, count, length)
        recipe.add(_product_recipe(gpu, transform, inner, inner, inner), *residues, residues[0])
        launch = compose_launch(plan, size, constants=gpu.address(radix.value), **common)
        recipe.launch(launch, residues[0], 2)
    return recipe


def _mixed_radix(primes: tuple[int, ...]) -> Array:
    """Return constants for auxiliary.cu: 1/p_j mod p_i for j < i, then the mixed-radix digits of (P - 1) / 2.

    p_0, p_1, ... are the primes, `count` is their number, and P is their product. Entry i * count + j is
    1/p_j mod p_i.
    """
    count = len(primes)
    table = np.zeros(count * count + count, np.uint64)
    for i, p in enumerate(primes):
        for j in range(i):
            table[i * count + j] = pow(primes[j], -1, p)
    rest = (prod(primes) - 1) // 2
    for i, p in enumerate(primes):
        rest, table[count * count + i] = divmod(rest, p)
    return table
