"""Host memory that polygpu keeps for the next results.

The memory of a result that is no longer used is kept for later results of the same size. Otherwise the system
would have to map new pages in each call, which takes longer than most of the arithmetic. polygpu keeps at
most a quarter of the sum of free and kept memory, or 64 MiB if that is more. It never keeps more bytes than
the environment variable `POLYGPU_POOL_BYTES` says. Kept memory that was not used for ten seconds is given
back to the system in the next call of polygpu. If polygpu has several threads, an idle thread may give it
back earlier. If the system refuses memory, all kept memory is given back before an error is raised.
"""

from __future__ import annotations

from . import _cpu

__all__ = ["held", "release"]


def held() -> int:
    """Return the number of bytes of host memory that are kept for later results and that no value uses.

    Cost: less than a microsecond.

    >>> import polygpu as pg
    >>> pg.memory.release()
    >>> pg.memory.held()
    0
    """
    return _cpu.pool_kept()


def release() -> None:
    """Give back to the system all host memory that is kept for later results.

    The memory of values and of their views is not touched. Call this function after a computation with large
    results, if the process goes on and other processes need the memory. Memory that CuPy keeps on a GPU is
    not given back; use `cupy.get_default_memory_pool().free_all_blocks()` for that.

    Cost: for each MiB, 0.3 ms if it is in pages of 4 KiB, and 3 us if it is in huge pages.

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
