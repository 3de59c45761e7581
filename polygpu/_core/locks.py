"""Locks and cached properties that a child of fork() never finds held.

A child has only the thread that forked. What another thread of the parent held at that moment stays held in
the child for ever. So every lock of this library comes from here, and a test looks for others. The caches of
functools are allowed: CPython's have no lock.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from contextlib import suppress
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def new_lock() -> RLock:
    """Return a reentrant lock, which is free in a child of fork() unless the thread that forked holds it.

    What it protects must be right at every moment, or be dropped in the child by its owner.
    """
    lock = RLock()
    _locks.add(lock)
    return lock


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without its lock, which Python 3.10 and 3.11 hold while they compute.

        Threads that ask at the same time may each compute the value. All get the one that is stored first.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            values = instance.__dict__
            if self.attrname not in values:
                values.setdefault(self.attrname, self.func(instance))
            return values[self.attrname]


# ---- what a fork waits for ----

# While another thread holds this lock, a fork waits. It is for calls into libraries whose own locks nobody
# can free in the child. Whoever holds it takes no other lock of this library, so that the wait ends.
no_fork = new_lock()

# The child cannot finish an import that another thread has begun: Python's lock of the module stays held. So
# a fork waits for imports of Python's own modules and of these packages, which functions of this library and
# of its dependencies import when first called. It does not wait for other modules: the import of a program's
# own module may last as long as the program.
_PACKAGES = {
    *("polygpu", "numpy", "sympy", "mpmath", "cryptography", "cupy", "cupyx", "cupy_backends", "cuda"),
    *("dask", "distributed", "zarr", "zstandard", "compression", "jax", "jaxlib", "rich", "hypothesis"),
    "sklearn",
}
_LONGEST_IMPORT = 10.0  # seconds that a fork waits: the other thread may wait for a lock of the forking one


def _importing() -> bool:
    """Whether another thread imports one of those modules. CPython has no public way to ask."""
    held = getattr(importlib._bootstrap, "_module_locks", {})
    for name, reference in list(held.items()):
        lock, package = reference(), name.partition(".")[0]
        if lock is None or lock.owner == get_ident():  # an owner of None: a thread is about to take it
            continue
        if package in _PACKAGES or package in sys.stdlib_module_names:
            return True
    return False


def _before_fork() -> None:
    began = time.monotonic()
    while True:  # never waits for an import while it holds the lock, which the imported module may need
        no_fork.acquire()
        if not _importing() or time.monotonic() - began > _LONGEST_IMPORT:
            return
        no_fork.release()
        time.sleep(1e-3)


def _release() -> None:
    with suppress(RuntimeError):  # Ctrl-C ended the wait for it
        no_fork.release()


def _in_child() -> None:
    _release()
    for lock in _locks:
        if lock.acquire(blocking=False):  # free, or held by this thread
            lock.release()
        else:
            lock._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_release, after_in_child=_in_child)
