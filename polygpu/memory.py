"""How much host memory there is, and errors for what does not fit."""

from __future__ import annotations

import os

from . import _cpu
from .errors import OutOfHostMemory, TablesTooLarge

SMALL_ARRAY = 1 << 26  # bytes; nobody asks the system whether so few are available


def check_memory(needed: int, n: int, moduli: tuple[int, ...]) -> None:
    """Raise TablesTooLarge where tables of so many bytes do not fit what memory is available."""
    if not _fits(needed):
        raise TablesTooLarge(
            f"tables for n = {n} and {len(moduli)} moduli take {_gib(needed)}, "
            f"{_gib(_available_memory())} are available; use a smaller n or fewer moduli at a time"
        )


def check_array(size: int) -> None:
    """Raise OutOfHostMemory where an array of so many bytes does not fit what memory is available."""
    if size > SMALL_ARRAY and not _fits(size):
        raise no_memory(size)


def no_memory(size: int) -> OutOfHostMemory:
    """The error of an array of so many bytes."""
    return OutOfHostMemory(
        f"an array of {_gib(size)} is needed, {_gib(_available_memory())} are available; take smaller batches"
    )


def _fits(size: int) -> bool:
    """Whether so many bytes are available; memory kept for results is given back before the answer is no."""
    if size <= _available_memory():
        return True
    _cpu.pool_release()
    return size <= _available_memory()


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >> 1000 == 0 else f"2^{size.bit_length() - 31} GiB"


def _available_memory() -> int:
    """Bytes the machine has left, or less where a container or a limit of this process allows less."""
    import resource  # here: the import of polygpu is to be light

    page = os.sysconf("SC_PAGE_SIZE")
    limits = [os.sysconf("SC_PHYS_PAGES") * page]
    for path, key in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        if words := _line(path, key):
            if key:
                limits.append(int(words[1]) * 1024)
            elif words[0].isdecimal():
                limits.append(max(0, int(words[0]) - _held_by_container()))
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY and (words := _line("/proc/self/statm")):
        limits.append(max(0, addresses - int(words[0]) * page))
    return min(limits)


def _held_by_container() -> int:
    """Bytes of this container that the system cannot take back at once: not pages of files."""
    held, files = (
        _line("/sys/fs/cgroup/memory.current"),
        _line("/sys/fs/cgroup/memory.stat", "inactive_file "),
    )
    return max(0, int(held[0]) - int(files[1])) if held and files else 0


def _line(path: str, key: str = "") -> list[str]:
    """The words of the first line that begins with key; none where there is no such file or line."""
    try:
        with open(path) as lines:
            return next(line for line in lines if line.startswith(key)).split()
    except (OSError, StopIteration):
        return []
