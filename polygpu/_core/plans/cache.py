"""The caches of plans, of the tables of primes, and of rings, by their parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ..locks import new_lock

_K = TypeVar("_K")
_P = TypeVar("_P")

# Plans live while a ring uses them; the most recent also without one. Tables live while a plan uses them.
_plans: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_recent: deque[Any] = deque(maxlen=8)
_lock = new_lock()  # a plan that another thread was building is built again in a child of fork()


def cached(key: tuple[Any, ...], build: Callable[[], _P], *, recent: bool = True) -> _P:
    """Return the plan of this key, built once while it lives. recent: it may live on without a ring."""
    with _lock:
        plan: _P | None = _plans.get(key)
        if plan is None:
            plan = _plans[key] = build()
            if recent:
                _recent.append(plan)
        return plan


def keep(known: dict[_K, _P], key: _K, value: _P, most: int) -> _P:
    """Store the value under its key and return it; beyond `most` entries the oldest are dropped.

    Threads may store values under one key at the same time: the first stays, and is returned.
    """
    for old in list(known)[: max(0, len(known) - most + 1)]:
        known.pop(old, None)
    return known.setdefault(key, value)


class Calls(dict[tuple[Any, ...], Any]):
    """What is needed to repeat calls, such as records or constants, by all that decides it (_ops/calls.py).

    Where the entries keep too many bytes together, the oldest go. Any thread may store at any time, and
    looking up takes no lock.
    """

    _MOST_BYTES = 1 << 26
    _LEAST_BYTES = 1 << 10  # that an entry is taken to keep

    def __init__(self, most_bytes: int | None = None) -> None:
        super().__init__()
        self._most, self._total = most_bytes or self._MOST_BYTES, 0
        self._sizes: dict[tuple[Any, ...], int] = {}
        self._one_at_a_time = new_lock()

    def store(self, key: tuple[Any, ...], entry: Any, nbytes: int = 0) -> None:
        """Store an entry, if the key has none; nbytes: of memory that only the entry keeps."""
        size = max(nbytes, self._LEAST_BYTES)
        with self._one_at_a_time:
            if key in self:
                return
            while self._sizes and self._total + size > self._most:
                self.drop(next(iter(self._sizes)))
            self._sizes[key], self[key] = size, entry
            self._total += size

    def drop(self, key: tuple[Any, ...]) -> None:
        """Remove an entry, if it is there."""
        with self._one_at_a_time:
            if self.pop(key, None) is not None:
                self._total -= self._sizes.pop(key)


# Rings by the arguments that they were made from. The most recent ones live on without a user, so that a
# function that makes its ring anew finds the plans of its last call; rings with large tables do not.
_rings: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_recent_rings: deque[tuple[int, Any]] = deque()
_RECENT_RESIDUES = 1 << 21  # of one element of each recent ring together: about 64 MiB of tables
_RECENT_RINGS = 128


def known_ring(arguments: tuple[Any, ...]) -> Any:
    """Return the ring that was made from these arguments, or None if there is none."""
    return _rings.get(arguments)


def keep_ring(arguments: tuple[Any, ...], ring: _P, residues: int | None = None) -> _P:
    """Store a ring under its arguments and return it, or return the ring that another thread stored first.

    residues: the number in one of its elements. Without it the ring does not live on without a user.
    """
    kept: _P = _rings.setdefault(arguments, ring)
    if residues is not None and residues <= _RECENT_RESIDUES:
        _recent_rings.append((residues, kept))
        total = sum(size for size, _ in tuple(_recent_rings))
        with suppress(IndexError):  # another thread has dropped the rest
            while total > _RECENT_RESIDUES or len(_recent_rings) > _RECENT_RINGS:
                total -= _recent_rings.popleft()[0]
    return kept


def forget() -> None:
    """Drop all plans and rings; a ring that is in use keeps the plans that it has."""
    with _lock:
        _plans.clear()
        _recent.clear()
    forget_rings()


def forget_rings() -> None:
    """Make rings anew, with what they keep, even from the arguments of rings that exist."""
    _rings.clear()
    _recent_rings.clear()
