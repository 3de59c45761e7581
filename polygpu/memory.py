"""Host memory that polygpu keeps for the next results.

Memory of a result that is gone is kept for results of its size. The system would have to map its pages anew
at each call, which takes longer than most of the arithmetic. At most a quarter of the memory that is free or
kept is kept, and no more bytes than the environment variable `POLYGPU_POOL_BYTES` says. Memory that was not
used for ten seconds is given back: at the next call, or by a thread of the core that waits for work, which a
program with one thread does not have. If the system refuses memory, all that is kept is given back before an
error is raised.
"""

from __future__ import annotations

from . import _cpu

__all__ = ["held", "release"]


def held() -> int:
    """Return the bytes of host memory that are kept for the next results, and that no value uses.

    Cost: less than a microsecond.

    >>> import polygpu as pg
    >>> pg.memory.release()
    >>> pg.memory.held()
    0
    """
    return _cpu.pool_kept()


def release() -> None:
    """Give all host memory that is kept for the next results back to the system.

    Values and their views keep theirs. Call it after a computation with large results if the process goes on
    and other processes need the memory. What CuPy keeps on a GPU is not touched:
    `cupy.get_default_memory_pool().free_all_blocks()` gives that back.

    Cost: 0.3 ms for each MiB in pages of 4 KiB, 3 us for each MiB in huge pages.

    >>> import polygpu as pg
    >>> R = pg.Ring(4096, 12289)
    >>> a = R.ones(100)
    >>> b = a + a  # takes memory
    >>> del b  # the memory is kept
    >>> pg.memory.release()
    >>> pg.memory.held()
    0
    """
    _cpu.pool_release()
