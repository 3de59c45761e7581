"""A cache of primitive roots on disk, one file for each prime. A hit avoids the import of SymPy (0.3 s)."""

from __future__ import annotations

import os
from contextlib import suppress

_FILES = 1 << 14  # the most files that are kept; each takes a block of the disk, 4 KiB
_BYTES = 1 << 12  # the most bytes that are read from a file


def cache_folder() -> str:
    """Return the folder of the cache.

    It is in $POLYGPU_CACHE_DIR if this is set, else in $XDG_CACHE_HOME/polygpu, else in ~/.cache/polygpu.
    """
    folder = os.environ.get("POLYGPU_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "polygpu"
    )
    return os.path.join(os.path.expanduser(folder), "primitive_roots")


def load(q: int) -> tuple[int, list[int]] | None:
    """Return the root and the factors of q - 1 from the file of q, or None if they cannot be read.

    The caller must check the root and the factors.
    """
    with suppress(OSError, ValueError):  # there is no such file, or it was not written by store()
        # O_NONBLOCK: if the file is a pipe, open() must not wait for a writer.
        handle = os.open(os.path.join(cache_folder(), f"{q:x}"), os.O_RDONLY | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            root, *factors = (int(x, 16) for x in (file.read(_BYTES) or b"").split())
        return root, factors
    return None


def store(q: int, root: int, factors: list[int]) -> None:
    """Write or replace the file of q. If that fails, or the folder is full, do nothing and raise nothing."""
    with suppress(OSError, ValueError):
        folder = cache_folder()
        os.makedirs(folder, exist_ok=True)
        if len(os.listdir(folder)) >= _FILES:
            return
        temporary = os.path.join(folder, f".{os.urandom(8).hex()}")
        try:
            with open(temporary, "x") as file:
                file.write(" ".join(f"{x:x}" for x in (root, *factors)))
            os.replace(temporary, os.path.join(folder, f"{q:x}"))  # atomic: readers never see part of a file
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
