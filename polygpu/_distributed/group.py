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
    """Devices of one kind by their full names.

    A function is called for one device after the other. GPUs only queue the work and do it at the same time;
    the host finishes each call before the next.

    Raises:
        DeviceError: no names, names of no device, or GPUs and the host together.
        BackendUnavailable: a GPU that does not answer.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(checked_device(name, "devices") for name in names)
        if not self.names:
            raise DeviceError("devices: none; name some: devices('cuda:0', 'cuda:1')")
        if len({name.startswith("cuda") for name in self.names}) > 1:
            raise DeviceError(f"devices: {list(self.names)} are GPUs and the host; take devices of one kind")
        self.backends = tuple(get_backend(name) for name in self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    @contextmanager
    def on(self, i: int) -> Iterator[Backend]:
        """Inside a `with`, new values are made and computed on device i; the `with` yields its backend."""
        with device(self.names[i]), self.backends[i].device_scope():
            yield self.backends[i]

    def each(self, f: Callable[[int], _T]) -> list[_T]:
        """[f(0), f(1), ...], each f(i) called with device i as the current one."""
        found = []
        for i in range(len(self)):
            with self.on(i):
                found.append(f(i))
        return found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
        """Make a new array of this shape on each device, its values undefined."""
        return self.each(lambda i: empty(self.backends[i], shape, dtype))

    def place(self, x: Array, i: int) -> Array:
        """Return a C-contiguous array with x's values on device i.

        If that is the host and x is a C-contiguous array there, it is x itself.
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

    A copy begins after the work that its two devices had queued before the `with`, and after the moments
    given to send(). At the end of the `with`, also when an error ends it, every device is told to wait for
    all copies before its later work. So no memory that a copy reads or writes is used for anything else
    before the copy is done.
    """

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._backends = {backend.name: backend for backend in backends}
        self._ready: dict[str, Mark] = {}
        self._last: dict[tuple[str, str], Mark] = {}  # end of the last copy from one device to another

    def __enter__(self) -> Transfers:
        self._ready = {name: backend.mark() for name, backend in self._backends.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for backend in self._backends.values():
            backend.await_marks(self._last.values())

    def send(self, x: Array, target: Array, after: Iterable[Mark] = ()) -> Mark:
        """Copy x into target, of the same shape; returns the moment at which the copy is done."""
        if not x.size:  # an empty array may belong to any device
            return next(iter(self._ready.values()))
        source, to = backend_of(x), backend_of(target)
        done = source.send(x, target, (self._ready[source.name], self._ready[to.name], *after))
        self._last[source.name, to.name] = done
        return done


def copy(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy the first array of each pair into the second, of the same shape; both may lie on any device."""
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
