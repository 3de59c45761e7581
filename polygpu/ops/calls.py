"""Calls that come again: one look-up finds what is ready for arrays of these shapes on this device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Array, Memory
from ..checks import verifying
from ..plans.basis import Calls
from ..plans.cache import keep

_KEPT = 256  # of a ring, and of a basis


def recall(calls: Calls, key: tuple[Any, ...], operands: Sequence[Array]) -> Array | None:
    """The new result of a call that has come before; None where it takes another way.

    The shortest calls (pointwise, to_domain, multiply) spell this out, which spares them a Python call.
    """
    call = calls.get(key)
    return None if call is None or verifying() else call(*operands)


def remember(
    calls: Calls, key: tuple[Any, ...], compute: Memory, done: Callable[..., None] | None, data: Array
) -> None:
    """Keep what a backend did for the next call with this key, whose result is like `data`.

    The key holds all on which the choice of a backend's operation and the result's shape depend.
    """
    call = None if key in calls else compute.again(done, data.shape, data.dtype)
    if call is not None:
        keep(calls, key, call, _KEPT)
