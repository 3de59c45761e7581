"""Tiles, small moduli and the choice of the method for products of matrices on a card.

All functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

import numpy as np

from ..._core.plans.basis import Basis
from .. import Array
from .sources import constant
from .words import Card, Sum, sum_of_products

# ---- on CUDA cores: cuda/matmul_scalar.cu ----

MAX_INTEGER = 1 << 62  # the largest modulus for kernels of integers; above it, by_words multiplies
LOG_POINTS_THREADS = constant("matmul_scalar.cu", "POINTS_THREADS").bit_length() - 1  # for one block
MOST_NARROW = 8  # the most columns or rows of a narrow matrix
_LEAST_PART = 128  # the fewest terms of a part, if a sum is cut into parts


@dataclass(frozen=True)
class PointsTile:
    """How products of matrices of polynomials are divided among threads (cuda/matmul_scalar.cu)."""

    rows: int  # rows of the tile of sums that a thread computes
    columns: int
    width: int  # how many neighbouring points a thread processes
    log_lanes: int  # log2 of a block's threads along the points
    log_columns: int  # log2 of the number of tiles of a block along the columns
    log_rows: int  # log2 of the number of tiles of a block along the rows
    grid: int  # number of blocks


def points_tile(
    basis: Basis, batch: int, rows: int, columns: int, points: int, chunks: bool, card: Card
) -> PointsTile:
    """Choose the tile for `batch` products of shape (rows, columns), at `points` points of each limb.

    Large tiles read operands less often. If large tiles would leave multiprocessors idle, choose a
    smaller tile. chunks: whether a thread may move 16 bytes at once.
    """
    most = sum_of_products(basis).most_side
    entries = basis.rows * points
    while True:
        tile_rows, tile_columns = _side(rows, most), _side(columns, most)
        width = 16 // basis.dtype.itemsize if chunks else 1
        width = max(1, min(width, 16 // (tile_rows * tile_columns)))
        row_tiles, column_tiles, lanes = (
            -(-rows // tile_rows),
            -(-columns // tile_columns),
            -(-entries // width),
        )
        if most == 1 or batch * row_tiles * column_tiles * lanes >= card.multiprocessors << 8:
            break
        most //= 2
    # Distribute the threads of a block: first up to a warp along the points, then as many as possible along
    # the columns and rows, because threads along columns and rows share operands. Threads that are left go
    # along the points.
    logs = [(size - 1).bit_length() for size in (lanes, column_tiles, row_tiles)]
    log_lanes = min(5, logs[0])
    spare = LOG_POINTS_THREADS - log_lanes
    log_rows = min(logs[2], max(spare // 2, spare - logs[1]))
    log_columns = min(logs[1], spare - log_rows)
    log_lanes = min(logs[0], LOG_POINTS_THREADS - log_rows - log_columns)
    log_batch = LOG_POINTS_THREADS - log_lanes - log_rows - log_columns
    grid = 1
    for size, log in (
        (lanes, log_lanes),
        (column_tiles, log_columns),
        (row_tiles, log_rows),
        (batch, log_batch),
    ):
        grid *= -(-size >> log)
    return PointsTile(tile_rows, tile_columns, width, log_lanes, log_columns, log_rows, grid)


@dataclass(frozen=True)
class StagedTile:
    """How products of large matrices are divided if blocks first copy operands to shared memory."""

    side: int  # rows and columns of a thread's tile of sums; a block has two tiles along each axis
    width: int  # how many neighbouring points a thread processes
    grid: int  # number of blocks


def staged_tile(
    basis: Basis, batch: int, rows: int, columns: int, length: int, points: int, card: Card
) -> StagedTile | None:
    """Return the tile for `batch` products of shape (rows, columns), or None if a PointsTile is faster.

    Threads move 16 bytes at once, so all arrays must be aligned to 16 bytes.
    """
    tiles, entries = [], basis.rows * points
    for side, width in sum_of_products(basis).tiles:
        tiles_of_axes = -(-rows // side), -(-columns // side)
        blocks = prod(-(-tiles // 2) for tiles in tiles_of_axes)
        tile = StagedTile(side, width, batch * blocks * -(-entries // (32 * width)))
        filled = tile.grid >= 2 * card.multiprocessors and entries >= 32 * width
        if filled and min(tiles_of_axes) > 1 and 1 < length < 1 << 31:
            tiles.append((prod(tiles_of_axes) * (side + 2) ** 2, tile))
    return min(tiles, key=lambda cost: cost[0])[1] if tiles else None


def _side(size: int, most: int) -> int:
    """Choose the side of a tile for `size` rows or columns: the power of two with the least work.

    The side is at most `most`. The work is estimated as the number of tiles times (side + 2).
    """
    sides = [1 << i for i in range(min(size, most).bit_length())]
    return min(reversed(sides), key=lambda side: -(-size // side) * (side + 2))


@dataclass(frozen=True)
class IntegerTile:
    """How a product of matrices of integers is divided among blocks (cuda/matmul_scalar.cu)."""

    side: int  # a thread computes side * side sums
    grid: int  # number of blocks
    cost: int  # relative time on a multiprocessor: the products, plus half the reads of shared memory


@lru_cache(maxsize=256)
def integer_tile(sums: Sum, batch: int, rows: int, columns: int, card: Card) -> IntegerTile:
    """Choose the tile with the least estimated time for `batch` products of shape (rows, columns)."""
    tiles = []
    for side in (side for side in (8, 4, 2, 1) if side <= sums.most_side):
        grid = batch * -(-rows // (16 * side)) * -(-columns // (16 * side))
        rounds = -(-grid // max(1, card.multiprocessors))
        tiles.append(IntegerTile(side, grid, rounds * side * (side + 1)))
    return min(tiles, key=lambda tile: tile.cost)


@lru_cache(maxsize=256)
def part_of_sums(sums: Sum, batch: int, rows: int, columns: int, length: int, card: Card) -> int:
    """Choose how many terms of a sum one block adds up: all, or fewer to get enough blocks for the card."""
    most = length // _LEAST_PART
    if batch != 1 or most < 2:
        return length
    if columns <= MOST_NARROW:
        parts = 2 * card.multiprocessors // max(1, -(-rows // 8))
    elif rows <= MOST_NARROW:
        parts = 2 * card.multiprocessors // -(-columns // 2048)
    else:

        def cost(parts: int) -> float:
            """Estimate the time, in an arbitrary unit, if each sum is computed in `parts` parts."""
            products = integer_tile(sums, parts, rows, columns, card).cost / parts
            return products * (1 if parts == 1 else 1 + 16 * parts / length)

        parts = min((1 << i for i in range(min(most, 256).bit_length())), key=cost)
    parts = min(parts, most)
    return length if parts < 2 else -(-length // (parts * 16)) * 16


def narrow_lanes(batch: int, rows: int, columns: int, steps: int, card: Card) -> tuple[int, int]:
    """Return two numbers for a product with few columns: log2 of the threads for one sum, and the blocks.

    steps: the number of reads for one sum. Each thread of the sum does a part of these reads.
    """
    rows_of_thread = 2 if columns > 4 else 4
    groups = batch * -(-rows // rows_of_thread)
    log_lanes = min(8, max(0, steps - 1).bit_length())
    while log_lanes > 3 and groups << (log_lanes - 1) >= card.multiprocessors << 10:
        log_lanes -= 1
    return log_lanes, batch * -(-rows // (rows_of_thread << (8 - log_lanes)))


# ---- on tensor cores: cuda/matmul_tensor.cu ----

# Small moduli: the largest pairwise coprime numbers, chosen one by one from 256 down.
COPRIMES = (
    *(256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181, 179),
    *(173, 167, 163, 157),
)

# The most terms of a sum of products of signed bytes. Each product is at most 2^14 in size, so the sum is at
# most 2^31 - 2^20.
RESIDUE_DEPTH = (1 << 17) - 64

# A product of at least this many multiplications is faster by one cuBLAS call for each small modulus than by
# one batched call for all small moduli.
LONE_PRODUCT = 1 << 34

# For gemm_digits. A block has DIGITS_EDGE columns of bytes, and at most DIGITS_EDGE rows. DIGITS_DEPTH: bytes
# of a row in a stage. DIGITS_STAGES: the largest number of stages of the left operand in shared memory. Both
# dicts have the bytes of a word as keys.
DIGITS_EDGE = 128
DIGITS_DEPTH = {4: 64, 8: 128}
DIGITS_STAGES = {4: 4, 8: 3}


def coprimes(q: int, k: int) -> tuple[int, ...]:
    """Return the fewest of COPRIMES that determine sums of k products of centred residues modulo q.

    Let P be the product of the returned moduli. A sum X has |X| <= k * (q // 2)^2, and the kernel
    gemm_compose needs |X| < P/2 * (1 - 2^-11).
    """
    needed, count = 2 * max(k, 1) * (q // 2) ** 2, 1
    while prod(COPRIMES[:count]) * ((1 << 11) - 1) >> 11 <= needed:
        count += 1
    return COPRIMES[:count]


@lru_cache(maxsize=64)
def residue_table(primes: tuple[int, ...], word_bytes: int, left: bool) -> Array:
    """Return an array with a row for each small modulus: the struct Residue (cuda/matmul_tensor.cu).

    primes: the small moduli p; P is their product. left: whether the table is for the left operand. Only
    residues of the left operand get the factor (P/p)^-1 mod p.
    """
    table = np.zeros((len(primes), 8), np.uint32)
    product, width = prod(primes), 16 if word_bytes == 4 else 21
    for row, p in zip(table, primes, strict=True):
        factor = pow(product // p, -1, p) if left else 1
        row[0], row[1] = p, (1 << 32) // p
        row[2:5] = [(factor << width * i) % p for i in range(3)]
        row[5] = 128 + -(-(255 << 20) // p) * p
        row[6] = (1 << 31) // p * p
    table.setflags(write=False)
    return table


@lru_cache(maxsize=64)
def weight_table(q: int, primes: tuple[int, ...]) -> Array:
    """Return an array with the struct Weight (cuda/matmul_tensor.cu) of one small modulus in each row.

    primes: the small moduli; P is their product. The last row is for -P.
    """
    table, product = np.zeros((len(primes) + 1, 2), np.uint64), prod(primes)
    for row, p in zip(table, primes, strict=False):
        row[0], row[1] = product // p % q, round((1 << 26) / p)
    table[-1, 0] = -product % q
    table.setflags(write=False)
    return table


def digits_stages(word_bytes: int, card: Card) -> int:
    """Return how many stages of the left operand the kernel gemm_digits keeps in shared memory.

    Two stages of the right operand are in shared memory too.
    """
    stage_bytes = DIGITS_EDGE * DIGITS_DEPTH[word_bytes]
    return min(DIGITS_STAGES[word_bytes], card.shared_bytes // stage_bytes - 2)


def digits_shared(word_bytes: int, rows: int, card: Card) -> int:
    """Return the bytes of shared memory for a block of gemm_digits with `rows` rows."""
    return (digits_stages(word_bytes, card) * rows + 2 * DIGITS_EDGE) * DIGITS_DEPTH[word_bytes]


def digits_rows(m: int) -> int:
    """Return the number of rows of a block of gemm_digits. A block has one thread for each row."""
    return DIGITS_EDGE // 2 if m <= DIGITS_EDGE // 2 else DIGITS_EDGE


def has_digits(q: int, word_bytes: int) -> bool:
    """Return whether gemm_digits can compute modulo q.

    The kernel multiplies partial sums by 2^8 and reduces them to [0, 2q), which must fit a word. With
    32-bit words, q = 2^32 is allowed too: arithmetic wraps modulo q.
    """
    return q <= 1 << (31 if word_bytes == 4 else 62) or (word_bytes == 4 and q == 1 << 32)


# ---- matrices of bytes, on tensor cores: cuda/matmul_bytes.cu ----

BYTES_DEPTH = 128  # bytes of a row that are copied to shared memory in one stage
BYTES_PART = 1 << 15  # up to this many bytes of a row, a sum of products of bytes stays below 2^31
_LEAST_BYTES_PART = 1 << 10  # if rows are divided only to fill the card, a part has at least this many bytes


@dataclass(frozen=True)
class BytesTile:
    """How the product of two matrices of bytes is divided among blocks and their warps."""

    rows: int  # rows of a block
    columns: int  # columns of bytes of a block; a word has several columns
    warp_rows: int
    warp_columns: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages * (self.rows + self.columns) * BYTES_DEPTH


def bytes_tile(word_bytes: int, m: int, n: int, turned: bool, card: Card) -> BytesTile:
    """Choose the tile for m rows and n columns of words.

    turned: True if a column of the matrix of bytes is contiguous in memory, False if a row is.
    """
    rows, columns, most = 128, 4 * word_bytes, 128 if turned else 256
    while columns < min(most, n * word_bytes) and 2 * (rows + 2 * columns) * BYTES_DEPTH <= card.shared_bytes:
        columns *= 2
    warp_rows = 64 if columns >= 128 and not turned else 32
    stages = 8 if columns <= 32 else 4 if columns == 64 else 3  # with fewer columns, copy more stages ahead
    has_room = 4 * (256 + columns) * BYTES_DEPTH <= card.shared_bytes
    if columns == 128 and not turned and has_room and m >= 256 * card.multiprocessors:
        rows, stages = 256, 4  # with more rows in a block, the right matrix is read less often
    stages = min(stages, card.shared_bytes // ((rows + columns) * BYTES_DEPTH))
    return BytesTile(rows, columns, warp_rows, min(64, columns), stages)


def bytes_part(m: int, k: int, n: int, word_bytes: int, tile: BytesTile, card: Card) -> int:
    """Choose how many of the k bytes of a row one block multiplies: a multiple of BYTES_DEPTH.

    The choice is at most BYTES_PART. If possible, it gives enough blocks to fill the card.
    """
    blocks = -(-m // tile.rows) * -(-n * word_bytes // tile.columns)
    held = card.multiprocessors * min(2, card.shared_bytes // tile.shared)  # blocks that work at once
    parts = max(-(-k // BYTES_PART), min(k // _LEAST_BYTES_PART, held // blocks))
    return -(-k // (max(1, parts) * BYTES_DEPTH)) * BYTES_DEPTH


# ---- choice of the method ----

Method = Literal["integer", "digits", "residues"]


def matmul_method(q: int, word_bytes: int, batch: int, m: int, k: int, n: int, card: Card) -> Method:
    """Choose the method with the least estimated time. Estimates are in microseconds, fitted to an H100."""
    share = 132 / card.multiprocessors
    costs: dict[Method, float] = {
        "integer": 16 + share * _integer_work(word_bytes, batch, m, k, n),
        "residues": max(150, 40 + share * _residue_work(q, word_bytes, batch, m, k, n)),
    }
    if has_digits(q, word_bytes):
        costs["digits"] = 16 + _digits_work(word_bytes, batch, m, k, n, card)
    return min(costs, key=lambda method: costs[method])


def _digits_work(word_bytes: int, batch: int, m: int, k: int, n: int, card: Card) -> float:
    rows, depth = digits_rows(m), DIGITS_DEPTH[word_bytes]
    most, alone, together = _STAGES_OF_BLOCKS[word_bytes, rows]
    held = min(most, card.shared_bytes // digits_shared(word_bytes, rows, card))
    tiles = batch * -(-m // rows) * -(-n * word_bytes // DIGITS_EDGE)
    rounds = -(-tiles // (held * card.multiprocessors))
    return rounds * (4 + -(-k * word_bytes // depth) * (alone if tiles <= card.multiprocessors else together))


# For gemm_digits on an H100. Key: (bytes of a word, rows of a block). Value: (b, s, t). At most b blocks run
# on a multiprocessor at the same time. A stage takes s microseconds if one block runs there, and t
# microseconds if b blocks run there.
_STAGES_OF_BLOCKS = {
    (4, 64): (4, 0.77, 1.1),
    (4, 128): (2, 0.68, 0.9),
    (8, 64): (3, 2.0, 2.4),
    (8, 128): (2, 1.4, 2.05),
}


def _residue_work(q: int, word_bytes: int, batch: int, m: int, k: int, n: int) -> float:
    count, depth = len(coprimes(q, k)), -(-k // 64) * 64
    results, words = batch * m * n, batch * (m + n) * k
    products = count * results * depth / 6e8
    return products + count * 8 * results / 2.6e6 + words * word_bytes / 2e6 + count * words / 1.1e6


def _integer_work(word_bytes: int, batch: int, m: int, k: int, n: int) -> float:
    words = batch * (m * k + k * n) * word_bytes / 2e6
    if min(m, n) <= MOST_NARROW:  # the kernels for narrow matrices read the large matrix once
        return words + batch * m * n * k / (1.6e6 if word_bytes == 4 else 5e5)
    step = 32 if batch > 1 else 64  # rows and columns are padded to a multiple of this, with the usual tiles
    rows, columns = (16 if side <= 16 else -(-side // step) * step for side in (m, n))
    parts = 40 if batch == 1 and k >= 256 and m * n <= 1 << 16 else 0  # microseconds to add partial sums
    return words + parts + batch * rows * columns * k / (4.6e6 if word_bytes == 4 else 1.45e6)
