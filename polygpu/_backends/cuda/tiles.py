"""How transforms are divided into passes and tiles on a card. All functions are pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from ..._core.locks import cached_property
from ..._core.plans.product import FftProductPlan
from .words import COMPLEX, Card, Word

_MAX_DIGITS = 4  # the most digits of an operand in the kernel fft_product


@dataclass(frozen=True)
class Pass:
    """A launch that does log_length stages of the transforms of all rows, beginning with stage log_blocks.

    The launch does short transforms of 2^log_length values. If log_columns is 0, the values of a short
    transform are neighbours in memory. Otherwise they are a column of a tile. See cuda/tile.cuh.
    """

    log_blocks: int  # number of earlier stages; they divide a row into 2^log_blocks blocks
    log_length: int  # log2 of the number of values of a short transform; also the number of stages
    log_columns: int  # log2 of the number of neighbouring columns in a tile
    log_rows: int  # log2 of the number of tiles of a block of threads
    log_values: int  # log2 of how many values of a transform a thread has; also the most stages of a round
    log_width: int = 0  # log2 of the number of neighbouring columns of one thread

    @cached_property  # cached, because every call reads it
    def shape(self) -> str:
        """Return the C++ type Shape<...> of this pass, a template argument of kernels."""
        sizes = (self.log_length, self.log_columns, self.log_rows, self.log_values, self.log_width)
        return f"Shape<{', '.join(map(str, sizes))}>"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 1 << (self.log_block_values - self.log_values - self.log_width)

    @property
    def log_block_values(self) -> int:
        """log2 of the number of values on which a block of threads works."""
        return self.log_length + self.log_columns + self.log_rows

    @property
    def entries(self) -> int:
        """Number of entries in the table of twiddles of this pass."""
        return 1 << (self.log_blocks + self.log_length)

    @property
    def shared_values(self) -> int:
        """Number of values for which a block needs shared memory."""
        return (1 << self.log_block_values) + (self.threads << self.log_width)


@dataclass(frozen=True)
class Rows:
    """The rows that the passes of a transform work on: the rows of a group of limbs in all polynomials."""

    count: int  # number of rows of the group in all polynomials together
    at: tuple[int, ...]  # for each limb of the group: the index of its row in a polynomial
    total: int  # rows of a polynomial, including those of other limbs
    log_degree: int  # log2 of the number of values of a row
    word: Word
    moduli: int  # address of the group's moduli
    tables: bytes  # the packed struct Tables
    first: int = 0  # bytes from the start of the array to row 0, from which `at` counts

    @property
    def limbs(self) -> int:
        """Number of limbs of the group."""
        return len(self.at)

    @property
    def spanned(self) -> int:
        """Number of rows from row 0 through the group's last row, including rows of other limbs."""
        return (self.count // self.limbs - 1) * self.total + self.at[-1] + 1


def table_offsets(passes: tuple[Pass, ...], word: Word) -> tuple[int, ...]:
    """Return the offset of each pass's twiddles in a prime's table, then the size of the table, in bytes.

    The forward passes come first, then the inverse passes in the same order.
    """
    sizes = [p.entries * word.twiddle_bytes for p in passes] * 2
    return tuple(accumulate(sizes, initial=0))


@lru_cache(maxsize=256)
def split_passes(
    points: int, leaf_size: int, word_bytes: int, card: Card, few: bool = False
) -> tuple[Pass, ...]:
    """Return the passes of a forward transform, in order. The inverse transform runs them in reverse order.

    few: whether there are too few rows to fill the card. If so, tiles or blocks of threads are smaller.
    Their sizes were chosen by measurements (docs/experiments.md).
    """
    log_points, log_base = points.bit_length() - 1, leaf_size.bit_length() - 1
    log_line, log_least = (128 // word_bytes).bit_length() - 1, (32 // word_bytes).bit_length() - 1

    def tile(log_blocks: int, log_length: int, log_columns: int, small: bool = False) -> Pass | None:
        """Return the pass with tiles of 2^log_columns columns, or None if such a tile is too large.

        Tiles are added to a block up to 256 threads, or up to 64 threads if `small`. Fewer are added
        if shared memory is short. If `small`, a thread has at most 8 values of a transform, or at
        most 4 if log_length <= 4 and log_columns = 0.
        """
        large = word_bytes < 16 and log_length > 10 and log_length + log_columns >= 13
        shortest = log_length <= 4 and log_columns == 0
        log_values = min(log_length, (2 if shortest else 3) if small else 5 if large else 4)
        # If values have 32 bits, a thread processes two columns, so that one instruction moves 8 bytes.
        log_width = int(word_bytes == 4 and log_columns > 0 and log_values < 5)
        log_threads = log_length - log_values + log_columns - log_width
        for log_rows in range(max(0, (6 if small else 8) - log_threads), -1, -1):
            made = Pass(log_blocks, log_length, log_columns, log_rows, log_values, log_width)
            if made.shared_values * word_bytes <= card.shared_bytes and made.threads <= 512:
                return made
        return None

    if few and leaf_size == 1 and (13 if word_bytes == 4 else 12) <= log_points <= 18:
        rows = log_points // 2
        above = log_points - rows
        return Pass(0, above, log_least, 0, 3), Pass(above, rows, 0, max(0, 8 - rows), 3)
    log_values = {4: 13, 8: 12, 16: 11}[word_bytes]  # log2 of the most values of a tile of columns

    def columns(lengths: list[int]) -> list[Pass]:
        """Return passes over columns. Each entry of `lengths` is the number of stages of one pass.

        Tiles are 128 bytes wide, or narrower if columns are long. They are narrower than 32 bytes only if
        tiles of 32 bytes are too large (see `tile`).
        """
        made: list[Pass] = []
        for length in lengths:
            done = sum(p.log_length for p in made)
            widths = range(max(min(log_line, log_values - length), log_least), -1, -1)
            made.append(next(p for width in widths if (p := tile(done, length, width))))
        return made

    def even(stages: int) -> list[int]:
        """Divide stages evenly among the least number of passes with at most 10 stages each."""
        count = -(-stages // 10)
        return [(stages + i) // count for i in range(count)]

    if log_base >= log_line:  # a leaf is at least as wide as a tile, so all stages work on columns
        return tuple(columns(even(log_points)))
    whole = tile(0, log_points, log_base, small=log_points <= 6 or (few and log_points + log_base <= 11))
    if whole:
        return (whole,)
    # The last pass works on runs of up to 2^12 neighbouring values. If columns would then have more than 2^14
    # points, runs have up to 2^14 values. Columns have at least 16 points. Columns of more than 2^10 points
    # take several passes.
    rows = min(12 - log_base, log_points - 4)
    while not tile(0, rows, log_base):
        rows -= 1
    above = log_points - rows
    if above <= 10:
        lengths = [above]
    elif above <= 14:
        lengths = [above - 4, 4]
    else:
        rows = 14 - log_base
        while not tile(0, rows, log_base):
            rows -= 1
        above = log_points - rows
        lengths = even(above)
    last = tile(log_points - rows, rows, log_base)
    assert last is not None
    return (*columns(lengths), last)


def flow_lag(columns: Pass, rows: Pass, log_degree: int, units: int, word: Word, card: Card) -> int:
    """Return the lag of two passes in one launch (cuda/flow.cuh), or 0 if they should take two launches.

    The second pass works `lag` units behind the first pass. A unit is a block of values that both passes
    transform independently of other values. The lag is at least one unit. `lag` units take about an eighth of
    the L2 cache: with fewer, the second pass waits; with more, values leave the cache.

    Two launches are better if a unit takes more than a fifth of the cache. They are also better for
    64-bit integers with long columns: the code of both passes does not fit the instruction cache.
    """
    log_unit = log_degree - columns.log_blocks
    unit_bytes = word.bytes << log_unit
    lag = max(1, round(card.l2_bytes / 8 / unit_bytes))
    if word.many_instructions and columns.log_length > 5:
        return 0
    to_leaves = rows.log_blocks + rows.log_length + rows.log_columns == log_degree
    fits = (
        to_leaves
        and log_unit >= max(columns.log_block_values, rows.log_block_values)
        and columns.threads == rows.threads
    )
    return lag if fits and 5 * unit_bytes <= card.l2_bytes and units >= 4 * lag else 0


def kernel_digits(plan: FftProductPlan) -> int:
    """Return how many digits the kernel fft_product uses: plan.digits, rounded up to a power of two.

    More digits have fewer bits each, so the error bound of the plan still holds.
    """
    return 1 << (plan.digits - 1).bit_length()


def fft_tile(plan: FftProductPlan, card: Card) -> Pass | None:
    """Return the tile of a product by FFT in one kernel, or None if it is too large."""
    digits = kernel_digits(plan)
    log_points, log_parts = plan.points.bit_length() - 1, digits.bit_length()
    if digits > _MAX_DIGITS:
        return None
    log_values = 4
    log_rows = max(log_parts, 7 - (log_points - log_values))
    tile = Pass(0, log_points, 0, log_rows, log_values)
    fits = tile.threads <= 512 and tile.shared_values * COMPLEX.bytes <= card.shared_bytes
    return tile if fits else None


def prefetch_distance(one: Pass, word_bytes: int, card: Card) -> int:
    """Return how many blocks ahead a block prefetches into the L2 cache.

    This many blocks hold 16 KB for each multiprocessor. The 16 KB were chosen by measurements
    (docs/experiments.md). Return 0 below compute capability 9.0, which lacks the prefetch instruction.
    """
    block_bytes = word_bytes << one.log_block_values
    return (card.multiprocessors << 14) // block_bytes if card.capability >= (9, 0) else 0
