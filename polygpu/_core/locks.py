"""Locks and cached properties that cannot block a child of fork().

A child has only the thread that forked. A lock that another thread of the parent held during the fork stays
held in the child for ever. Locks of new_lock are free in the child. So every lock of this library is made by
new_lock, and a test looks for other locks. The caches of functools are allowed, because in CPython they have
no lock.
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

    A fork may happen while another thread is in a protected section. So protected data must be consistent at
    every moment, or their owner must drop them in the child.
    """
    lock = RLock()
    _locks.add(lock)
    return lock


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without the lock that Python 3.10 and 3.11 hold during the computation.

        Threads that read the property at the same time may each compute the value. All of them get the value
        that is stored first.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            values = instance.__dict__
            if self.attrname not in values:
                values.setdefault(self.attrname, self.func(instance))
            return values[self.attrname]


# ---- what a fork waits for ----

# While another thread holds `no_fork`, a fork waits. Threads hold `no_fork` during calls into libraries whose
# own locks cannot be freed in the child. A thread with `no_fork` takes no other lock of this library. So the
# wait ends.
no_fork = new_lock()

# If another thread is importing a module during a fork, the child can never import this module, because
# Python's lock of the module stays held. So a fork waits until imports of the standard library and of these
# packages have ended. A fork does not wait for other modules, because a program may run for its whole life
# inside the import of a module.
_PACKAGES = {
    *("polygpu", "numpy", "sympy", "mpmath", "cryptography", "cupy", "cupyx", "cupy_backends", "cuda"),
    *("dask", "distributed", "zarr", "zstandard", "compression", "jax", "jaxlib", "rich", "hypothesis"),
    *("flint", "sklearn", "torch"),
}
_LONGEST_IMPORT = 10.0  # seconds; a fork waits no longer, since an import may wait for the thread that forks


def _importing() -> bool:
    """Return whether another thread is importing a module of _PACKAGES or of the standard library.

    The answer is read from private data of CPython.
    """
    held = getattr(importlib._bootstrap, "_module_locks", {})
    for name, reference in list(held.items()):
        lock, package = reference(), name.partition(".")[0]
        if lock is None or lock.owner == get_ident():  # owner None: a thread is about to take the lock
            continue
        if package in _PACKAGES or package in sys.stdlib_module_names:
            return True
    return False


def _before_fork() -> None:
    began = time.monotonic()
    while True:  # release no_fork before each wait, because the imported module may need it
        no_fork.acquire()
        if not _importing() or time.monotonic() - began > _LONGEST_IMPORT:
            return
        no_fork.release()
        time.sleep(1e-3)


def _release() -> None:
    with suppress(RuntimeError):  # no_fork is not held if Ctrl-C ended the wait in _before_fork
        no_fork.release()


def _in_child() -> None:
    _release()
    for lock in _locks:
        if lock.acquire(blocking=False):  # free, or held by this thread
            lock.release()
        else:
            lock._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_release, after_in_child=_in_child)
