"""Primitive roots on disk, a file for each prime. SymPy, which finds them, takes 0.3 s to import."""

from __future__ import annotations

import os
from contextlib import suppress

_FILES = 1 << 14  # no more are kept; each takes a block of the disk, 4 KiB
_BYTES = 1 << 12  # of which no more are read


def cache_folder() -> str:
    """Where primitive roots are kept: in $POLYGPU_CACHE_DIR, $XDG_CACHE_HOME/polygpu or ~/.cache/polygpu."""
    folder = os.environ.get("POLYGPU_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "polygpu"
    )
    return os.path.join(os.path.expanduser(folder), "primitive_roots")


def load(q: int) -> tuple[int, list[int]] | None:
    """Return the root and factors in the file of q, for the caller to prove, or None if there are none."""
    with suppress(OSError, ValueError):  # no such file, or not one that store() wrote
        # O_NONBLOCK: a pipe with this name would wait for a writer.
        handle = os.open(os.path.join(cache_folder(), f"{q:x}"), os.O_RDONLY | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            root, *factors = (int(x, 16) for x in (file.read(_BYTES) or b"").split())
        return root, factors
    return None


def store(q: int, root: int, factors: list[int]) -> None:
    """Write the file of q, or replace it. If that is not possible, nothing is kept, and nothing is raised."""
    with suppress(OSError, ValueError):
        folder = cache_folder()
        os.makedirs(folder, exist_ok=True)
        if len(os.listdir(folder)) >= _FILES:
            return
        temporary = os.path.join(folder, f".{os.urandom(8).hex()}")
        try:
            with open(temporary, "x") as file:
                file.write(" ".join(f"{x:x}" for x in (root, *factors)))
            os.replace(temporary, os.path.join(folder, f"{q:x}"))  # readers find a whole file
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
