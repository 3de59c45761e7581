"""Device memory: host buffers that are poisoned when fresh and have guard zones around them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .compiler import sanitizer

ALIGNMENT = 512  # as CuPy's pool
GUARD = 512
POISON = 0xA5
_GUARD_BYTE = 0xC3

# Whoever works on device memory holds this lock: most of that memory is hidden while a dependent kernel runs.
# A launch holds it too, since the launches of all threads share the runtime's one set of fibers.
# No memory is freed meanwhile: a launch writes hidden values back.
one_at_a_time = threading.RLock()

_live: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()
_runtime: ctypes.CDLL | None = None
_state = threading.local()  # .pool: what the current pool keeps


class GuardError(RuntimeError):
    """A kernel wrote outside of the device arrays it was given."""


class Allocation:
    """Some bytes of device memory, between two guard zones."""

    def __init__(self, size: int, device: int) -> None:
        self.size = size
        self.device = device
        room = np.empty(max(size, 1) + 2 * GUARD + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        self._zone = room[start : start + size + 2 * GUARD]
        self._zone[:GUARD] = self._zone[GUARD + size :] = _GUARD_BYTE
        self.bytes = self._zone[GUARD : GUARD + size]
        self.bytes[:] = POISON
        self.ptr = int(self._zone.ctypes.data) + GUARD
        self._of_host = False
        _live[self.ptr] = self
        pool: Any = getattr(_state, "pool", None)
        if pool is not None:
            pool.append(self)
        if _runtime is not None:
            self._register(_runtime)

    def _register(self, runtime: ctypes.CDLL) -> None:
        runtime.sim_register_memory(
            ctypes.c_size_t(self.ptr), ctypes.c_size_t(self.size), ctypes.c_size_t(GUARD)
        )
        if self._of_host:
            runtime.sim_written_by_host(ctypes.c_size_t(self.ptr))
        # Before the buffer goes back to the host's allocator its guard zones must be open again.
        weakref.finalize(self, _forget, runtime, self.ptr, self._zone).atexit = False

    def written_by_host(self) -> None:
        """Mark the values as the host's: a dependent kernel may read them before it waits."""
        self._of_host = True
        if _runtime is not None:
            _runtime.sim_written_by_host(ctypes.c_size_t(self.ptr))


def _forget(runtime: ctypes.CDLL, ptr: int, zone: np.ndarray) -> None:
    with one_at_a_time:
        runtime.sim_forget_memory(ctypes.c_size_t(ptr))
    del zone


@contextmanager
def kept_in(pool: Any) -> Iterator[None]:
    """Append memory that is allocated inside to `pool`, a list that keeps it alive, unless pool is None."""
    before = getattr(_state, "pool", None)
    _state.pool = pool
    try:
        yield
    finally:
        _state.pool = before


def attach_runtime(runtime: ctypes.CDLL) -> None:
    """Tell the runtime about all device memory, so that it can check addresses."""
    global _runtime
    if _runtime is None:
        _runtime = runtime
        for allocation in list(_live.values()):
            allocation._register(runtime)


def is_device_address(address: int) -> bool:
    return any(a.ptr <= address <= a.ptr + a.size for a in list(_live.values()))


def bytes_at(address: int, size: int) -> np.ndarray:
    """The bytes from a device address on; they must lie in one allocation."""
    for allocation in list(_live.values()):
        offset = address - allocation.ptr
        if offset >= 0 and offset + size <= allocation.size:
            return allocation.bytes[offset : offset + size]
    raise GuardError(f"{size} bytes at {address:#x} are not within one allocation of device memory")


def card_of(address: int) -> int:
    """The card in whose memory an address is."""
    return next(a.device for a in list(_live.values()) if a.ptr <= address < a.ptr + a.size)


def live_bytes(device: int) -> int:
    return sum(a.size for a in list(_live.values()) if a.device == device)


def check_guards(what: str) -> None:
    """Raise if a guard zone was written to; repairs it, so that one overrun is reported once."""
    if sanitizer() == "address":
        return  # the zones are off limits, for this code too: an overrun was reported where it happened
    assert _runtime is not None
    _runtime.sim_find_damage.restype = ctypes.c_size_t
    damaged = _live.get(_runtime.sim_find_damage(ctypes.c_ubyte(_GUARD_BYTE)))
    if damaged is None:
        return
    zone, size = damaged._zone, damaged.size
    before = np.flatnonzero(zone[:GUARD] != _GUARD_BYTE) - GUARD
    after = np.flatnonzero(zone[GUARD + size :] != _GUARD_BYTE) + size
    offsets = np.concatenate([before, after])
    zone[:GUARD] = zone[GUARD + size :] = _GUARD_BYTE
    raise GuardError(
        f"{what} wrote outside of an allocation of {size} bytes: "
        f"at byte offsets {offsets[0]} to {offsets[-1]}"
    )
