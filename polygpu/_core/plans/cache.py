"""The caches of plans, tables of primes, and rings, with their parameters as keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ..locks import new_lock

_K = TypeVar("_K")
_P = TypeVar("_P")

# Plans and tables by their keys. A plan is dropped when nothing else refers to it. `_recent` refers to the
# plans that were built last, so these stay.
_plans: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_recent: deque[Any] = deque(maxlen=8)
_lock = new_lock()  # if another thread was building a plan during a fork, the child builds it again


def cached(key: tuple[Any, ...], build: Callable[[], _P], *, recent: bool = True) -> _P:
    """Return the plan with this key, and build it if it does not exist.

    recent: whether the plan stays in memory, even unused, while it is among the last few that were built.
    """
    with _lock:
        plan: _P | None = _plans.get(key)
        if plan is None:
            plan = _plans[key] = build()
            if recent:
                _recent.append(plan)
        return plan


def keep(known: dict[_K, _P], key: _K, value: _P, most: int) -> _P:
    """Store the value under its key and return it. If there are more than `most` entries, drop the oldest.

    If another thread has stored a value under this key, that value stays and is returned.
    """
    for old in list(known)[: max(0, len(known) - most + 1)]:
        known.pop(old, None)
    return known.setdefault(key, value)


class Calls(dict[tuple[Any, ...], Any]):
    """A cache of records of calls (_ops/calls.py), or of residues of constants.

    A key contains everything that the entry depends on. If all entries together keep too many bytes, the
    oldest entries are dropped. All threads may use the cache. A look-up takes no lock.
    """

    _MOST_BYTES = 1 << 26
    _LEAST_BYTES = 1 << 10  # each entry counts as at least this many bytes

    def __init__(self, most_bytes: int | None = None) -> None:
        super().__init__()
        self._most, self._total = most_bytes or self._MOST_BYTES, 0
        self._sizes: dict[tuple[Any, ...], int] = {}
        self._one_at_a_time = new_lock()

    def store(self, key: tuple[Any, ...], entry: Any, nbytes: int = 0) -> None:
        """Store an entry if the key has none. nbytes: the bytes in use only because of this entry."""
        size = max(nbytes, self._LEAST_BYTES)
        with self._one_at_a_time:
            if key in self:
                return
            while self._sizes and self._total + size > self._most:
                self.drop(next(iter(self._sizes)))
            self._sizes[key], self[key] = size, entry
            self._total += size

    def drop(self, key: tuple[Any, ...]) -> None:
        """Remove an entry, if the key has one."""
        with self._one_at_a_time:
            if self.pop(key, None) is not None:
                self._total -= self._sizes.pop(key)


# The keys of `_rings` are the arguments that rings were made from. The most recent rings, except those with
# large tables, stay in memory when nothing uses them. So a function that makes its ring in every call finds
# the plans of its previous call.
_rings: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_recent_rings: deque[tuple[int, Any]] = deque()
_RECENT_RESIDUES = 1 << 21  # degree times limbs, summed over the recent rings: about 64 MiB of tables
_RECENT_RINGS = 128


def known_ring(arguments: tuple[Any, ...]) -> Any:
    """Return the ring that was made from these arguments, or None if there is none."""
    return _rings.get(arguments)


def keep_ring(arguments: tuple[Any, ...], ring: _P, residues: int | None = None) -> _P:
    """Store a ring under its arguments and return it, or return the ring that another thread stored first.

    residues: the number of residues of one element of the ring. If it is None, the ring is dropped as soon as
    nothing uses it.
    """
    kept: _P = _rings.setdefault(arguments, ring)
    if residues is not None and residues <= _RECENT_RESIDUES:
        _recent_rings.append((residues, kept))
        total = sum(size for size, _ in tuple(_recent_rings))
        with suppress(IndexError):  # another thread may have emptied the queue
            while total > _RECENT_RESIDUES or len(_recent_rings) > _RECENT_RINGS:
                total -= _recent_rings.popleft()[0]
    return kept


def forget() -> None:
    """Drop all plans and rings from the caches. A ring that is in use keeps the plans that it has."""
    with _lock:
        _plans.clear()
        _recent.clear()
    forget_rings()


def forget_rings() -> None:
    """Drop all rings from the cache, so that the same arguments give a new ring with new plans."""
    _rings.clear()
    _recent_rings.clear()
