"""Tiles and passes of transforms on a card, as pure functions of sizes and of the card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from ..._core.locks import cached_property
from ..._core.plans.product import FftProductPlan
from .words import COMPLEX, Card, Word

_MAX_DIGITS = 4  # of an operand of a product in one kernel; a thread has a value for each


@dataclass(frozen=True)
class Pass:
    """One launch over all rows: stages log_blocks ... log_blocks + log_length - 1 (cuda/tile.cuh)."""

    log_blocks: int
    log_length: int
    log_columns: int
    log_rows: int
    log_values: int  # log2 of the values of one transform in one thread: the stages of a round
    log_width: int = 0  # log2 of the neighbouring columns of one thread

    @cached_property  # cached, since every call reads it
    def shape(self) -> str:
        """Return the template argument of the kernels."""
        sizes = (self.log_length, self.log_columns, self.log_rows, self.log_values, self.log_width)
        return f"Shape<{', '.join(map(str, sizes))}>"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 1 << (self.log_block_values - self.log_values - self.log_width)

    @property
    def log_block_values(self) -> int:
        """log2 of the values of a block of threads."""
        return self.log_length + self.log_columns + self.log_rows

    @property
    def entries(self) -> int:
        """Twiddles of its stages."""
        return 1 << (self.log_blocks + self.log_length)

    @property
    def shared_values(self) -> int:
        """Values in shared memory."""
        return (1 << self.log_block_values) + (self.threads << self.log_width)


@dataclass(frozen=True)
class Rows:
    """The rows that the passes of a transform work on: the limbs of a group, in a batch of polynomials."""

    count: int
    at: tuple[int, ...]  # the rows of a polynomial: one for each limb of the group
    total: int  # rows of a polynomial, with those of other limbs
    log_degree: int  # log2 of the values of a row
    word: Word
    moduli: int  # address of the group's moduli
    tables: bytes  # the C struct Tables
    first: int = 0  # bytes before the first polynomial

    @property
    def limbs(self) -> int:
        """Number of limbs."""
        return len(self.at)

    @property
    def spanned(self) -> int:
        """Number of rows up to the last one, with those of other limbs."""
        return (self.count // self.limbs - 1) * self.total + self.at[-1] + 1


def table_offsets(passes: tuple[Pass, ...], word: Word) -> tuple[int, ...]:
    """Where the twiddles of each pass begin in a prime's table, in bytes; then the table's size.

    First all passes of the forward transform, then all of the inverse one.
    """
    sizes = [p.entries * word.twiddle_bytes for p in passes] * 2
    return tuple(accumulate(sizes, initial=0))


@lru_cache(maxsize=256)
def split_passes(
    points: int, leaf_size: int, word_bytes: int, card: Card, few: bool = False
) -> tuple[Pass, ...]:
    """Return the passes of a forward transform, in their order; the inverse runs them backwards.

    few: whether there are too few rows to fill the card. Then long rows take two passes of small tiles, and
    short rows small blocks of threads, so that every multiprocessor has work.

    The numbers of values a thread and of threads a block were chosen by measurement (docs/experiments.md).
    """
    log_points, log_base = points.bit_length() - 1, leaf_size.bit_length() - 1
    log_line, log_least = (128 // word_bytes).bit_length() - 1, (32 // word_bytes).bit_length() - 1

    def tile(log_blocks: int, log_length: int, log_columns: int, small: bool = False) -> Pass | None:
        """Return a tile of 2^log_columns columns, or None if it is too large.

        It has enough transforms for 256 threads, or fewer if more do not fit. small: it has enough for 64
        threads, each with up to 4 or 8 values of a transform.
        """
        large = word_bytes < 16 and log_length > 10 and log_length + log_columns >= 13
        shortest = log_length <= 4 and log_columns == 0
        log_values = min(log_length, (2 if shortest else 3) if small else 5 if large else 4)
        # Two 32-bit columns are the 8 bytes of one instruction.
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
    log_values = {4: 13, 8: 12, 16: 11}[word_bytes]  # of a whole tile of columns

    def columns(lengths: list[int]) -> list[Pass]:
        """Return one pass for each entry of `lengths`, its number of stages.

        Tiles are 128 bytes wide, with long columns at least 32 bytes, and narrower only if those do not fit.
        """
        made: list[Pass] = []
        for length in lengths:
            done = sum(p.log_length for p in made)
            widths = range(max(min(log_line, log_values - length), log_least), -1, -1)
            made.append(next(p for width in widths if (p := tile(done, length, width))))
        return made

    def even(stages: int) -> list[int]:
        """Stages divided evenly among passes of at most 10 each."""
        count = -(-stages // 10)
        return [(stages + i) // count for i in range(count)]

    if log_base >= log_line:  # leaves as wide as tiles
        return tuple(columns(even(log_points)))
    whole = tile(0, log_points, log_base, small=log_points <= 6 or (few and log_points + log_base <= 11))
    if whole:
        return (whole,)
    # The last pass takes rows of 2^12, or shorter ones so that columns have 16 points. Instead of columns
    # longer than 2^10 there are two passes of columns.
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
    """How many units the second of two passes runs behind the first in one launch; 0: two launches.

    Units are blocks of the tree (cuda/flow.cuh). The lag is about an eighth of the cache, and at least one
    unit: with less the second pass waits, with more its values are no longer in the cache. Units of more than
    a fifth of the cache take two launches. So do words of 64-bit integers with long columns: the code of both
    passes outgrows the instruction cache.
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
    """Digits in the kernel of a whole product: a power of two. More are shorter, with smaller errors."""
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
    """How many blocks of threads ahead a block prefetches into the cache: 16 KB for each multiprocessor.

    By measurement (docs/experiments.md); cards before 9.0 lack the instruction.
    """
    block_bytes = word_bytes << one.log_block_values
    return (card.multiprocessors << 14) // block_bytes if card.capability >= (9, 0) else 0
