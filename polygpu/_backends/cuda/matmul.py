"""Products of matrices. Entries are integers modulo q, or evaluated polynomials."""

from __future__ import annotations

from math import prod

import numpy as np

from ..._core.plans.basis import Basis
from ...errors import OutOfDeviceMemory
from .. import Array
from .copies import copied, copy, dense, filled
from .integers import reduce_integers
from .launch import (
    ALIGNMENT,
    I64,
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
)
from .matmul_tiles import (
    BYTES_DEPTH,
    DIGITS_EDGE,
    LOG_POINTS_THREADS,
    LONE_PRODUCT,
    MAX_INTEGER,
    MOST_NARROW,
    RESIDUE_DEPTH,
    BytesTile,
    PointsTile,
    StagedTile,
    bytes_part,
    bytes_tile,
    coprimes,
    digits_rows,
    digits_shared,
    digits_stages,
    has_digits,
    integer_tile,
    matmul_method,
    narrow_lanes,
    part_of_sums,
    points_tile,
    residue_table,
    staged_tile,
    weight_table,
)
from .pointwise import combine
from .words import Card, sum_of_products

_SUM_BYTES = 1 << 30  # the most bytes of 32-bit sums that by_residues holds at a time
_CUDA_R_8I, _CUDA_R_32I = 3, 10  # values of the enum cudaDataType: int8 and int32

_STEPS = "a_batch a_row a_column b_batch b_row b_column out_batch out_row out_column"
POINTS = Struct(
    "matmul_scalar.cu",
    "PointsParameters<u64>",
    ("a b out moduli", POINTER),
    (_STEPS, I64),
    ("batch rows columns total length points entries", U64),
    ("log_lanes log_columns log_rows", U32),
)
STAGED = Struct(
    "matmul_scalar.cu",
    "StagedParameters<u64>",
    ("a b out moduli", POINTER),
    (_STEPS, I64),
    ("batch rows columns points entries", U64),
    ("length", U32),
)
INTEGER = Struct(
    "matmul_scalar.cu",
    "IntegerParameters<u64>",
    ("a b out moduli", POINTER),
    ("a_batch a_row b_batch rows columns total length", U64),
)
NARROW = Struct(
    "matmul_scalar.cu",
    "NarrowParameters<u64>",
    ("a b out moduli", POINTER),
    ("a_batch b_batch pitch rows columns total length", U64),
    ("log_lanes", U32),
)
DIGITS = Struct(
    "matmul_tensor.cu",
    "DigitsParameters<u64>",
    ("left right out moduli", POINTER),
    ("left_stride left_step right_step", U64),
    ("m n k add", U32),
)
SUM_ROWS = Struct(
    "matmul_bytes.cu",
    "SumRowsParameters<u64>",
    ("x y moduli", POINTER),
    ("rows n part", U32),
)
CUT = Struct(
    "matmul_bytes.cu",
    "CutParameters<u64>",
    ("x out moduli", POINTER),
    ("pitch", U64),
    ("k n", U32),
)
BYTES = Struct(
    "matmul_bytes.cu",
    "BytesParameters<u64>",
    ("left right sums out moduli", POINTER),
    ("stride pitch half", U64),
    ("m n k part flip", U32),
)
SPLIT = Struct(
    "matmul_tensor.cu",
    "SplitParameters<u64>",
    ("x out moduli residues", POINTER),
    ("matrices", U64),
    ("count width rows k depth", U32),
)
COMPOSE = Struct(
    "matmul_tensor.cu",
    "ComposeParameters<u64>",
    ("sums out moduli residues weights", POINTER),
    ("rows", U64),
    ("count n pitch add", U32),
)


# ---- launches, pure functions of sizes, addresses and the card ----


def narrow_launch(
    basis: Basis, batch: int, rows: int, columns: int, part: int, width: int, card: Card, **values: int
) -> Launch:
    """Return the launch for products whose right matrix has few columns and is stored transposed.

    part: how many terms of each sum the launch adds up. width: words that a thread reads at once.
    """
    log_lanes, grid = narrow_lanes(batch, rows, columns, -(-part // width), card)
    parameters = NARROW(rows=rows, columns=columns, length=part, log_lanes=log_lanes, **values)
    kernel = f"matmul_narrow<{sum_of_products(basis).name}, {1 << (columns - 1).bit_length()}, {width}>"
    return Launch("matmul_scalar.cu", kernel, (grid, 1), THREADS, parameters)


def integer_launch(basis: Basis, batch: int, rows: int, columns: int, card: Card, **values: int) -> Launch:
    """Return the launch that multiplies matrices of integers on CUDA cores."""
    tile = integer_tile(sum_of_products(basis), batch, rows, columns, card)
    parameters = INTEGER(rows=rows, columns=columns, **values)
    kernel = f"matmul_integer<{sum_of_products(basis).name}, {tile.side}>"
    return Launch("matmul_scalar.cu", kernel, (tile.grid, 1), THREADS, parameters)


def points_launch(basis: Basis, tile: PointsTile, integers: bool, **values: int) -> Launch:
    """Return the launch that multiplies matrices of evaluated polynomials, point by point.

    integers: whether the matrices have integers as entries instead of polynomials. If so, the left matrix
    must have few rows, and the kernel treats the columns of the right matrix as points.
    """
    sizes = {"log_lanes": tile.log_lanes, "log_columns": tile.log_columns, "log_rows": tile.log_rows}
    parameters = POINTS(entries=basis.rows * values["points"], **sizes, **values)
    shape = f"{tile.rows}, {tile.columns}, {tile.width}"
    kernel = f"matmul_points<{sum_of_products(basis).name}, {shape}, {cbool(integers)}>"
    return Launch("matmul_scalar.cu", kernel, (tile.grid, 1), 1 << LOG_POINTS_THREADS, parameters)


def staged_launch(basis: Basis, tile: StagedTile, **values: int) -> Launch:
    """Return the launch that multiplies matrices point by point, with operands staged in shared memory."""
    parameters = STAGED(entries=basis.rows * values["points"], **values)
    kernel = f"matmul_points_staged<{sum_of_products(basis).name}, {tile.side}, {tile.width}>"
    return Launch("matmul_scalar.cu", kernel, (tile.grid, 1), 1 << LOG_POINTS_THREADS, parameters)


def digits_launch(
    basis: Basis, batch: int, m: int, n: int, aligned: int, card: Card, **values: int
) -> Launch:
    """Return the launch of gemm_digits: it cuts words into bytes and multiplies on tensor cores.

    aligned: bytes that one instruction copies from the left matrix.
    """
    size = basis.dtype.itemsize
    stages, rows = digits_stages(size, card), digits_rows(m)
    kernel = f"gemm_digits<{ctype(basis)}, {rows}, {DIGITS_EDGE}, 64, {stages}, {aligned}>"
    grid = batch * -(-m // rows) * -(-n * size // DIGITS_EDGE)
    return Launch(
        "matmul_tensor.cu",
        kernel,
        (grid, 1),
        rows,
        DIGITS(m=m, n=n, **values),
        digits_shared(size, rows, card),
    )


def cut_launch(basis: Basis, size: int, n: int, pitch: int, **values: int) -> Launch:
    """Return the launch that cuts words into bytes, for a product with a matrix of small integers.

    size: bytes of a small integer. pitch: bytes of a row of the result.
    """
    parameters = CUT(n=n, pitch=pitch, **values)
    return entrywise("matmul_bytes.cu", f"cut_words<{ctype(basis)}, {size}>", n * pitch // 16, parameters)


def sum_rows_launch(basis: Basis, rows: int, n: int, part: int, **values: int) -> Launch:
    """Return the launch that adds up each group of `part` neighbouring rows."""
    grid = -(-n // 32), -(-rows // part)
    parameters = SUM_ROWS(rows=rows, n=n, part=part, **values)
    return Launch("matmul_bytes.cu", f"sum_rows<{ctype(basis)}>", grid, THREADS, parameters)


# Eight parameters are needed: the sizes of a product, and how its left operand lies in memory.
def bytes_launch(
    basis: Basis, tile: BytesTile, m: int, n: int, k: int, part: int, aligned: int, turned: int, **values: int
) -> Launch:
    """Return the launch that multiplies a matrix of bytes by words cut into bytes.

    k: bytes of a row of the left matrix. part: bytes of a row that one block multiplies. aligned: bytes
    that one instruction copies. turned: 0 if the rows of the left matrix are dense. If its columns are
    dense, turned is the size of an entry in bytes.
    """
    grid = -(-m // tile.rows) * -(-n * basis.dtype.itemsize // tile.columns), -(-k // part)
    shape = f"{tile.rows}, {tile.columns}, {tile.warp_rows}, {tile.warp_columns}, {tile.stages}"
    kernel = f"gemm_bytes<{ctype(basis)}, {shape}, {aligned}, {turned}>"
    parameters = BYTES(m=m, n=n, k=k, part=part, **values)
    return Launch("matmul_bytes.cu", kernel, grid, tile.threads, parameters, tile.shared)


def split_launch(
    basis: Basis, matrices: int, rows: int, depth: int, transposed: bool, **values: int
) -> Launch:
    """Return the launch that reduces matrices modulo several small moduli (COPRIMES)."""
    groups = -(-rows // 8) * 8 if transposed else rows
    parameters = SPLIT(matrices=matrices, rows=rows, depth=depth, **values)
    kernel = f"gemm_split<{ctype(basis)}, {cbool(transposed)}>"
    return entrywise("matmul_tensor.cu", kernel, matrices * groups * depth // 8, parameters)


def gemm_compose_launch(basis: Basis, rows: int, pitch: int, **values: int) -> Launch:
    """Return the launch that computes results modulo q from sums modulo the small moduli (COPRIMES)."""
    parameters = COMPOSE(rows=rows, pitch=pitch, **values)
    return entrywise("matmul_tensor.cu", f"gemm_compose<{ctype(basis)}>", rows * pitch // 4, parameters)


# ---- on a device ----


def matmul(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    """Multiply by the fastest method.

    While a graph is recorded, cuBLAS is not used, because CuPy cannot record it.
    """
    (batch, m, n), k, (q,), size = out.shape, a.shape[2], basis.moduli, basis.dtype.itemsize
    if not out.size or not k:
        copy(gpu, gpu.constant(np.zeros((), out.dtype)), out)
        return
    if a.itemsize <= 2:
        by_bytes(gpu, basis, a, b, out)
        return
    if q > MAX_INTEGER:
        by_words(gpu, basis, a, b, out)
        return
    method = matmul_method(q, size, batch, m, k, n, gpu.card)
    if method == "residues" and not gpu.is_recording():
        try:
            by_residues(gpu, basis, a, b, out)
            return
        except OutOfDeviceMemory:  # the other methods need no temporary memory
            pass
    if method == "integer" or not has_digits(q, size):
        by_integer(gpu, basis, a, b, out)
    else:
        by_digits(gpu, basis, a, b, out)


# ---- on CUDA cores ----


def by_words(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    """Multiply modulo any q: reduce the words, then use the kernels for polynomials, with one point."""
    batch, copies = len(out), []
    for x in (a, b):
        words = gpu.empty((*x.shape[:2], 1, x.shape[2]), x.dtype)
        reduce_integers(gpu, basis, x, words)
        with gpu.scope:
            copies.append(gpu.xp.broadcast_to(words.reshape(x.shape), (batch, *x.shape[1:])))
    left, right, sums = (x[..., None, None] for x in (*copies, out))
    matmul_points(gpu, basis, left, right, sums)


def by_integer(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    """Multiply by integer arithmetic on CUDA cores. If sums are few and long, cut them into parts."""
    (batch, rows, columns), length = out.shape, a.shape[2]
    part = part_of_sums(sum_of_products(basis), batch, rows, columns, length, gpu.card)
    if part == length:
        _matmul_parts(gpu, basis, a, b, out, part)
        return
    parts = -(-length // part)
    sums = gpu.empty((parts, rows, columns), out.dtype)
    ones = filled(gpu, (1, 1, parts), out.dtype, 1)
    _matmul_parts(gpu, basis, a, b, sums, part)
    by_integer(gpu, basis, ones, sums.reshape(1, parts, -1), out.reshape(1, 1, -1))


def _matmul_parts(gpu: Context, basis: Basis, a: Array, b: Array, out: Array, part: int) -> None:
    """Multiply a by b. Sums of more than `part` terms are split into parts of `part` terms each.

    If sums are split, out[i] gets the sums over the terms of part i, and a and b must be one matrix each.
    """
    if out.size == 0:
        return
    turned = 1 < out.shape[2] <= MOST_NARROW
    if turned:
        b = copied(gpu, b.swapaxes(1, 2))
    aligned = [gpu.aligned(x) for x in (a, b, out)]
    gpu.run(
        basis.handles,
        ("integers", part, a.shape, b.shape, out.shape, *aligned),
        lambda: _parts_recipe(gpu, basis, a, b, out, part, aligned),
        *(a, b, out),
    )


def _parts_recipe(
    gpu: Context, basis: Basis, a: Array, b: Array, out: Array, part: int, aligned: list[bool]
) -> Recipe:
    batch, rows, columns = out.shape
    length, width = a.shape[2], ALIGNMENT // out.dtype.itemsize
    if part < length:
        total, a_batch, b_batch = length, part, part * columns
    else:
        total = batch * length
        a_batch, b_batch = (x.shape[1] * x.shape[2] if len(x) > 1 else 0 for x in (a, b))
    sizes = {"a_batch": a_batch, "b_batch": b_batch, "total": total}
    recipe, values = _of_three(gpu, basis)
    if columns <= MOST_NARROW:
        if part < length:
            sizes["b_batch"] = part
        if length % width or part % width or not (aligned[0] and aligned[1]):
            width = 1
        sizes |= {"pitch": length}
        launch = narrow_launch(basis, batch, rows, columns, part, width, gpu.card, **sizes, **values)
    elif rows <= MOST_NARROW:
        chunks = columns % width == 0 and aligned[1] and aligned[2]
        tile = points_tile(basis, batch, rows, 1, columns, chunks, gpu.card)
        steps = (a_batch, length, 1, b_batch, columns, 0, rows * columns, columns, 0)
        sizes = {"batch": batch, "rows": rows, "columns": 1, "total": total, "length": part}
        values |= dict(zip(_STEPS.split(), steps, strict=True))
        launch = points_launch(basis, tile, True, points=columns, **sizes, **values)
    else:
        sizes |= {"a_row": length, "length": part}
        launch = integer_launch(basis, batch, rows, columns, gpu.card, **sizes, **values)
    recipe.launch(launch, 0, 1, 2)
    return recipe


def _of_three(gpu: Context, basis: Basis) -> tuple[Recipe, dict[str, int]]:
    """Return a recipe without launches for the operands a, b and out, and a dict of kernel parameters."""
    moduli = gpu.moduli_of(basis)
    return Recipe(3, moduli), dict.fromkeys(("a", "b", "out"), 0) | {"moduli": gpu.address(moduli.value)}


def matmul_points(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    if out.size == 0:
        return
    arrays = [x for x in (a, b, out) if x.size]
    aligned = gpu.aligned(*arrays)
    gpu.run(
        basis.handles,
        ("points", aligned, out.shape, a.shape[2], a.strides, b.strides, out.strides),
        lambda: _points_recipe(gpu, basis, a, b, out, aligned),
        *(a, b, out),
    )


def _points_recipe(gpu: Context, basis: Basis, a: Array, b: Array, out: Array, aligned: bool) -> Recipe:
    batch, rows, columns, _, points = out.shape
    item, length = out.dtype.itemsize, a.shape[2]
    strides = [x.strides[i] for x in (a, b, out) if x.size for i in range(3) if x.shape[i] > 1]
    chunks = aligned and not any(size % ALIGNMENT for size in (points * item, *strides))
    recipe, values = _of_three(gpu, basis)
    steps = [size // item for x in (a, b, out) for size in x.strides[:3]]
    values |= dict(zip(_STEPS.split(), steps, strict=True))
    values |= {"batch": batch, "rows": rows, "columns": columns, "points": points, "length": length}
    staged = chunks and staged_tile(basis, batch, rows, columns, length, points, gpu.card)
    if staged:
        launch = staged_launch(basis, staged, **values)
    else:
        tile = points_tile(basis, batch, rows, columns, points, chunks, gpu.card)
        launch = points_launch(basis, tile, False, total=batch * length, **values)
    recipe.launch(launch, 0, 1, 2)
    return recipe


# ---- on tensor cores ----


def by_digits(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    """Multiply words, cut into bytes, on tensor cores. Call this only if has_digits() returns True."""
    (batch, m, n), k, size = out.shape, a.shape[2], basis.dtype.itemsize
    aligned = next(x for x in (16, 8, 4) if k * size % x == 0 and gpu.address(a) % x == 0)

    def recipe() -> Recipe:
        left_step, right_step = (x.shape[1] * x.shape[2] if len(x) > 1 else 0 for x in (a, b))
        moduli = gpu.moduli_of(basis)
        values = {"left_stride": k, "left_step": left_step, "right_step": right_step}
        values |= dict.fromkeys(("left", "right", "out"), 0) | {"moduli": gpu.address(moduli.value)}
        # A launch sums at most 2^15 products of bytes, so sums stay below 2^31.
        made, longest = Recipe(3, moduli), (1 << 15) // size
        for first in range(0, k, longest):
            values |= {"k": min(longest, k - first), "add": first > 0}
            launch = digits_launch(basis, batch, m, n, aligned, gpu.card, **values)
            made.launch(launch, 0, 1, 2, offsets=(first * size, first * n * size, 0))
        return made

    gpu.run(basis.handles, ("digits", aligned, a.shape, b.shape), recipe, a, b, out)


def by_bytes(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    """Multiply one matrix of small integers by words, modulo any q.

    a: (1, m, k), integers of 1 or 2 bytes, with dense rows or dense columns.
    """
    (_, m, n), k, size = out.shape, a.shape[2], a.itemsize
    turned = size if a.strides[2] != size else 0
    stride = a.strides[2 if turned else 1] if (k if turned else m) > 1 else ALIGNMENT
    places = stride | gpu.address(a)
    if places % 4 or stride < 0:  # the kernel copies at least four bytes at once
        x = a.swapaxes(1, 2) if turned else a
        pitch = -(-x.shape[2] * size // ALIGNMENT) * ALIGNMENT // size
        padded = gpu.empty((*x.shape[:2], pitch), a.dtype)[..., : x.shape[2]]
        copy(gpu, x, padded)
        by_bytes(gpu, basis, padded.swapaxes(1, 2) if turned else padded, b, out)
        return
    aligned = next(x for x in (16, 8, 4) if places % x == 0)
    depth, word_bytes = k * size, out.itemsize
    tile = bytes_tile(word_bytes, m, n, turned > 0, gpu.card)
    part = bytes_part(m, depth, n, word_bytes, tile, gpu.card)
    pitch, parts = -(-depth // BYTES_DEPTH) * BYTES_DEPTH, -(-depth // part)
    digits = gpu.empty((n * word_bytes, pitch), np.dtype(np.uint8))
    sums = _sums_of_parts(gpu, basis, b, part // size) if a.dtype.kind == "i" else out
    partial = out if parts == 1 else gpu.empty((parts, m, n), out.dtype)

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        made, where = Recipe(5, moduli), {"moduli": gpu.address(moduli.value)}
        words = dict.fromkeys(("x", "out"), 0) | where
        made.launch(cut_launch(basis, size, n, pitch, k=k, **words), 1, 2)
        half = 1 << 8 * size - 1
        values = dict.fromkeys(("left", "right", "sums", "out"), 0) | where
        values |= {"stride": stride, "pitch": pitch, "half": half % basis.moduli[0]}
        values |= {"flip": half * (0x01010101 if size == 1 else 0x00010001) if a.dtype.kind == "i" else 0}
        launch = bytes_launch(basis, tile, m, n, depth, part, aligned, turned, **values)
        made.launch(launch, 0, 2, 3, 4)
        return made

    key = "bytes", a.dtype, turned, stride, aligned, m, k, n
    gpu.run(basis.handles, key, recipe, a, b, digits, sums, partial)
    if parts > 1:
        ones = gpu.constant(np.ones((parts, 1, 1), out.dtype))
        combine(gpu, basis, list(partial.reshape(parts, 1, m * n)), ones, None, 1, out.reshape(1, m * n))


def _sums_of_parts(gpu: Context, basis: Basis, b: Array, part: int) -> Array:
    """Return the sum of each group of `part` neighbouring rows of b: (parts, 1, n). b: (1, k, n)."""
    _, k, n = b.shape
    parts = -(-k // part)
    # First add up groups of `few` rows, so that there are enough blocks of threads. `few` divides `part`.
    few = BYTES_DEPTH // 2
    chunks = -(-k // few)
    between, sums = gpu.empty((chunks, n), b.dtype), gpu.empty((parts, 1, n), b.dtype)

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        made, where = Recipe(3, moduli), {"moduli": gpu.address(moduli.value), "x": 0, "y": 0}
        made.launch(sum_rows_launch(basis, k, n, few, **where), 0, 1)
        made.launch(sum_rows_launch(basis, chunks, n, -(-part // few), **where), 1, 2)
        return made

    gpu.run(basis.handles, ("sums of parts", k, n, part), recipe, b, between, sums)
    return sums


def by_residues(gpu: Context, basis: Basis, a: Array, b: Array, out: Array) -> None:
    """Multiply modulo q <= 2^62: reduce modulo small moduli, multiply by cuBLAS, compose the results."""
    longest = RESIDUE_DEPTH
    for first in range(0, a.shape[2], longest):
        parts = a[:, :, first : first + longest], b[:, first : first + longest]
        left, right = (dense(gpu, x) for x in parts)
        _add_residues(gpu, basis, left, right, out, first > 0)


def _add_residues(gpu: Context, basis: Basis, a: Array, b: Array, out: Array, add: bool) -> None:
    (batch, m, n), k, (q,) = out.shape, a.shape[2], basis.moduli
    primes = coprimes(q, k)
    count, depth, pitch = len(primes), -(-k // 64) * 64, -(-n // 4) * 4
    moduli, weights = gpu.moduli(basis), gpu.constant(weight_table(q, primes))
    tables = [gpu.constant(residue_table(primes, basis.dtype.itemsize, left)) for left in (True, False)]
    # At most `most` rows of sums are in memory at a time: several whole matrices, or a part of one matrix.
    most = max(128, _SUM_BYTES // (4 * count * pitch))
    parts = -(-m // most)
    tall, matrices = (m, most // m) if parts == 1 else (-(-m // (128 * parts)) * 128, 1)
    for r in range(0, m, tall):
        height = min(tall, m - r)
        for s in range(0, batch, matrices):
            size = min(matrices, batch - s)
            if s == 0 or len(a) > 1:
                left = _residues(gpu, basis, a[s : s + size, r : r + height], tables[0], height, depth, False)
            if s == r == 0 or len(b) > 1:
                right = _residues(gpu, basis, b[s : s + size], tables[1], pitch, depth, True)
            sums = gpu.empty((count, size, height, pitch), np.dtype(np.int32))
            multiply_bytes(gpu, left, right, sums)
            result = out[s : s + size, r : r + height]
            where = {"sums": gpu.address(sums), "out": gpu.address(result), "moduli": moduli}
            where |= {"residues": gpu.address(tables[0]), "weights": gpu.address(weights)}
            sizes = {"count": count, "n": n, "add": add}
            gpu.launch(gemm_compose_launch(basis, size * height, pitch, **sizes, **where))


def _residues(
    gpu: Context, basis: Basis, x: Array, table: Array, rows: int, depth: int, transposed: bool
) -> Array:
    """Return x modulo each small modulus in `table`: int8, (moduli, size, rows, depth), padded.

    x: (size, m, k), or (size, k, m) if `transposed`. m <= rows and k <= depth.
    """
    count, size, k = len(table), len(x), x.shape[1 if transposed else 2]
    residues = gpu.empty((count, size, rows, depth), np.dtype(np.int8))
    where = {"x": gpu.address(x), "out": gpu.address(residues), "residues": gpu.address(table)}
    where |= {"moduli": gpu.moduli(basis), "count": count, "k": k}
    where["width"] = x.shape[2] if transposed else rows
    gpu.launch(split_launch(basis, size, rows, depth, transposed, **where))
    return residues


def multiply_bytes(gpu: Context, left: Array, right: Array, sums: Array) -> None:
    """Set sums[..., i, j] to the inner product of left[..., i, :] and right[..., j, :], by cuBLAS.

    sums: (count, size, m, n). left: (count, size or 1, m, k). right: (count, size or 1, n, k).
    """
    cublas = gpu.xp.cuda.cublas
    (_, size, m, n), k = sums.shape, left.shape[3]
    left_step, right_step = (prod(x.shape[2:]) * (x.shape[1] == size) for x in (left, right))
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    together = left_step and right_step and m * n * k < LONE_PRODUCT
    with gpu.scope:
        handle = gpu.xp.cuda.device.get_cublas_handle()
        for x, y, z in [(left, right, sums)] if together else zip(left, right, sums, strict=True):
            # cuBLAS is column-major: the transpose of sums is right times the transpose of left.
            cublas.gemmStridedBatchedEx(
                *(handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, n, m, k),
                *(one.ctypes.data, gpu.address(y), _CUDA_R_8I, k, right_step),
                *(gpu.address(x), _CUDA_R_8I, k, left_step),
                *(zero.ctypes.data, gpu.address(z), _CUDA_R_32I, n, m * n),
                *(z.size // (m * n), cublas.CUBLAS_COMPUTE_32I, cublas.CUBLAS_GEMM_DEFAULT),
            )
