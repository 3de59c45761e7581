"""Records of calls: on which arrays a call worked, and room for those that it made between.

A backend notes what a call does while it does it: each launch of a kernel, or each call of the native core,
with the arrays it works on. An array is an operand of the call, its result, a temporary that the call made,
or a constant that outlives it. A record names arrays by these places. So the same work can be done again on
other operands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Does what a call did on other operands of the same shapes, into `out`, or into a new array without it. It
# returns None, with nothing done, if it does not serve these arrays: the call must take its ordinary way.
Replay = Callable[[tuple[Array, ...], Array | None], Array | None]

MOST_STEPS = 4096  # of a record; longer calls are not recorded
ROOM_ALIGNMENT = 256  # bytes, at multiples of which temporaries begin in the room that they share


class Record(NamedTuple):
    """A call that can be repeated, and the bytes that it keeps."""

    replay: Replay
    nbytes: int


def _never(operands: tuple[Array, ...], out: Array | None) -> Array | None:
    """Leave every call to its ordinary way."""
    return None


NEVER = Record(_never, 0)  # of a call that cannot be repeated


class Blocks:
    """The memory that a call knows, by address: disjoint blocks, each with a number.

    A block that overlaps older ones takes their place: their memory was freed and given out again.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []  # ascending
        self._blocks: list[tuple[int, int, int]] = []  # begin, end, number

    def add(self, begin: int, size: int, number: int) -> None:
        """Enter a block."""
        end = begin + max(size, 1)
        first = bisect_right(self._begins, begin)
        if first and self._blocks[first - 1][1] > begin:
            first -= 1
        after = bisect_left(self._begins, end)
        self._begins[first:after] = [begin]
        self._blocks[first:after] = [(begin, end, number)]

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the number of the block in which an address lies, and the distance from its beginning."""
        at = bisect_right(self._begins, address) - 1
        if at < 0:
            return None
        begin, end, number = self._blocks[at]
        return (number, address - begin) if address < end else None


def placed(sizes: Sequence[int], uses: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Return where each temporary begins in a room that they share, and the bytes of the room.

    uses: the first and the last step that works on each. Two temporaries share bytes only if one is last used
    before the other is first used.
    """
    begins: list[int] = []
    for i, (size, (first, last)) in enumerate(zip(sizes, uses, strict=True)):
        taken = sorted(
            (begins[j], begins[j] + sizes[j]) for j in range(i) if first <= uses[j][1] and uses[j][0] <= last
        )
        at = 0
        for begin, end in taken:
            if begin >= at + size:
                break
            at = max(at, -(-end // ROOM_ALIGNMENT) * ROOM_ALIGNMENT)
        begins.append(at)
    return begins, max((at + size for at, size in zip(begins, sizes, strict=True)), default=0)
