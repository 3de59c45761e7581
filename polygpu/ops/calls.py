"""Repeated calls: one look-up finds what was prepared for operands of these shapes on this kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Array, Memory
from ..checks import verifying
from ..plans.basis import Calls
from ..plans.cache import keep

_KEPT = 256  # prepared calls of each ring and of each basis


def recall(calls: Calls, key: tuple[Any, ...], operands: Sequence[Array]) -> Array | None:
    """The new result of a call that was prepared; None where the call must take its ordinary way.

    The shortest calls (pointwise, to_domain, multiply) spell this out, which spares them a Python call.
    """
    call = calls.get(key)
    return None if call is None or verifying() else call(*operands)


def remember(
    calls: Calls, key: tuple[Any, ...], compute: Memory, done: Callable[..., None] | None, data: Array
) -> None:
    """Prepare later calls with this key from what a backend did; their results are like `data`.

    The key holds everything that decides the backend's operation and the result's shape.
    """
    call = None if key in calls else compute.again(done, data.shape, data.dtype)
    if call is not None:
        keep(calls, key, call, _KEPT)
