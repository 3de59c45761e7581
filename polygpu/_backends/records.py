"""Records of calls. A record repeats a call on other operands, without the Python code of the call.

While a call runs, the backend lists each launch of a kernel or each call to the native core, with its arrays.
An array has one of four roles: operand, result, temporary, or constant. A record stores the roles, not the
arrays. So the same work can be done on other operands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# A function of (operands, out) that repeats a call. The operands have the shapes of the recorded operands.
# The function returns the result: `out`, or a new array if `out` is None. If it cannot use the given arrays,
# it does nothing and returns None.
Replay = Callable[[tuple[Array, ...], Array | None], Array | None]

MOST_STEPS = 4096  # a call of more steps is not recorded
ROOM_ALIGNMENT = 256  # bytes; in their shared allocation, temporaries begin at multiples of this


class Record(NamedTuple):
    """A function that repeats a call, and the number of bytes that the function keeps allocated."""

    replay: Replay
    nbytes: int


def _never(operands: tuple[Array, ...], out: Array | None) -> Array | None:
    """Return None: this record cannot repeat any call."""
    return None


NEVER = Record(_never, 0)  # stored for a call that can never be repeated, so that it is not observed again


class Blocks:
    """The blocks of memory that a call uses: disjoint ranges of addresses, each with an index.

    A new block replaces all older blocks that overlap it, because their memory must have been freed.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []  # the first address of each block, ascending
        self._blocks: list[tuple[int, int, int]] = []  # first address, end, index, in the same order

    def add(self, begin: int, size: int, number: int) -> None:
        """Add a block of `size` bytes at address `begin`, and drop the blocks that it overlaps."""
        end = begin + max(size, 1)
        first = bisect_right(self._begins, begin)
        if first and self._blocks[first - 1][1] > begin:
            first -= 1
        after = bisect_left(self._begins, end)
        self._begins[first:after] = [begin]
        self._blocks[first:after] = [(begin, end, number)]

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the index of the block that contains an address, and the offset in bytes.

        If no block contains the address, return None.
        """
        at = bisect_right(self._begins, address) - 1
        if at < 0:
            return None
        begin, end, number = self._blocks[at]
        return (number, address - begin) if address < end else None


def placed(sizes: Sequence[int], uses: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Place temporaries in one shared allocation: return the offset of each, and the size of the allocation.

    sizes: the bytes of each temporary. uses: the first and the last step that use each temporary. Two
    temporaries share bytes only if the last use of one comes before the first use of the other.
    """
    begins: list[int] = []
    # First fit: give each temporary the lowest offset at which it overlaps none of the earlier temporaries
    # that are in use at the same time.
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
