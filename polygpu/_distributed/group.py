"""Several devices of one kind: calling a function on each of them, and moving arrays between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from .._backends import Array, Backend, Mark, backend_of, checked_device, device, get_backend
from .._ops.arrays import empty
from ..errors import DeviceError

_T = TypeVar("_T")


class Group:
    """Devices of one kind, given by their full names: either all are GPUs, or all are the host.

    `each` calls a function for one device after the other. On GPUs a call only queues work, so all GPUs work
    at the same time. On the host each call finishes before the next begins.

    Raises:
        DeviceError: no name is given, a name is not that of a device, or GPUs and the host are mixed.
        BackendUnavailable: a GPU does not answer.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(checked_device(name, "devices") for name in names)
        if not self.names:
            raise DeviceError(
                "devices has no names. Name at least one device, as in devices('cuda:0', 'cuda:1')."
            )
        if len({name.startswith("cuda") for name in self.names}) > 1:
            raise DeviceError(f"devices has GPUs and the host, {list(self.names)}. Use devices of one kind.")
        self.backends = tuple(get_backend(name) for name in self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    @contextmanager
    def on(self, i: int) -> Iterator[Backend]:
        """Make device i the current device inside a `with`, and yield the backend of device i."""
        with device(self.names[i]), self.backends[i].device_scope():
            yield self.backends[i]

    def each(self, f: Callable[[int], _T]) -> list[_T]:
        """Return [f(0), f(1), ...]. During f(i), device i is the current device."""
        found = []
        for i in range(len(self)):
            with self.on(i):
                found.append(f(i))
        return found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
        """Allocate an array of this shape on each device, with undefined values."""
        return self.each(lambda i: empty(self.backends[i], shape, dtype))

    def place(self, x: Array, i: int) -> Array:
        """Return a C-contiguous array with x's values on device i.

        The result is x itself if device i is the host and x is a C-contiguous array on the host.
        """
        target = self.backends[i]
        if isinstance(x, np.ndarray):
            return target.from_host(np.ascontiguousarray(x))
        if target.xp is np:
            return np.ascontiguousarray(backend_of(x).to_host(x))
        with self.on(i):
            moved = empty(target, x.shape, x.dtype)
        copy([(x, moved)])
        return moved


class Transfers:
    """Asynchronous copies between arrays of devices of one kind, inside a `with`.

    A copy begins after the work that both devices had queued before the `with`, and after the marks that
    are given to send(). A mark is a point in a device's queue of work. At the end of the `with`, also after
    an error, the queue of every device waits for all copies. So later work can use the memory of both arrays.
    """

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._backends = {backend.name: backend for backend in backends}
        self._ready: dict[str, Mark] = {}
        self._last: dict[tuple[str, str], Mark] = {}  # (source, target) -> end of the last copy between them

    def __enter__(self) -> Transfers:
        self._ready = {name: backend.mark() for name, backend in self._backends.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for backend in self._backends.values():
            backend.await_marks(self._last.values())

    def send(self, x: Array, target: Array, after: Iterable[Mark] = ()) -> Mark:
        """Copy x into `target`, which has the same shape, and return a mark for the end of the copy.

        The copy begins after all marks of `after`.
        """
        if not x.size:  # there is nothing to copy, and backend_of may be wrong for an empty array
            return next(iter(self._ready.values()))
        source, to = backend_of(x), backend_of(target)
        done = source.send(x, target, (self._ready[source.name], self._ready[to.name], *after))
        self._last[source.name, to.name] = done
        return done


def copy(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy the first array of each pair into the second. Arrays of a pair have the same shape."""
    moves = []
    for x, target in pairs:
        if not x.size:
            continue
        source, to = backend_of(x), backend_of(target)
        if source.xp is to.xp:
            moves.append((x, target))
            continue
        values = source.to_host(x)
        with to.device_scope():
            target[...] = values if to.xp is np else to.from_host(np.ascontiguousarray(values))
    with Transfers(backend_of(end) for move in moves for end in move) as transfers:
        for x, target in moves:
            transfers.send(x, target)
