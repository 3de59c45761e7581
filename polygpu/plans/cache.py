"""The cache of plans and of the tables of primes, by their parameters."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

_K = TypeVar("_K")
_P = TypeVar("_P")

# Plans live while a ring uses them; the most recent also without one. Tables live while a plan uses them.
_plans: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_recent: deque[Any] = deque(maxlen=8)
_lock = threading.RLock()


def cached(key: tuple[Any, ...], build: Callable[[], _P], *, recent: bool = True) -> _P:
    """The plan of this key, built once while it lives; recent: it may live on without a ring."""
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


def forget() -> None:
    """Drop all plans; rings keep those that they have."""
    with _lock:
        _plans.clear()
        _recent.clear()
