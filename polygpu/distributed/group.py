"""Several devices of one kind: running on each of them in turn, and moving arrays between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..arrays import empty
from ..backends import Array, Mark, backend_of, checked_device, device, get_backend
from ..errors import DeviceError


class Group:
    """The devices, by their full names. Work is queued on one after the other; GPUs do it side by side."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(checked_device(name) for name in names)
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
    def on(self, i: int) -> Iterator[Any]:
        """Inside a `with`, device i makes and computes new values; gives its backend."""
        with device(self.names[i]), self.backends[i].device_scope():
            yield self.backends[i]

    def each(self) -> Iterator[int]:
        """The numbers of the devices, each inside `on`."""
        for i in range(len(self)):
            with self.on(i):
                yield i

    def place(self, x: Array, i: int) -> Array:
        """A contiguous array of these values on device i; on the host x itself where it is one."""
        target = self.backends[i]
        if isinstance(x, np.ndarray):
            return target.from_host(np.ascontiguousarray(x))
        if target.xp is np:
            return np.ascontiguousarray(backend_of(x).to_host(x))
        with self.on(i):
            moved = empty(target, x.shape, x.dtype)
        send([(x, moved)])
        return moved


def send(pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy each first array into the second, of the same shape; later work on their devices waits for it."""
    copies = [(x, target, backend_of(x), backend_of(target)) for x, target in pairs]
    involved = {b.name: b for _, _, *ends in copies for b in ends}.values()
    ready = {b.name: b.mark() for b in involved}
    done = [
        sender.send(x, target, (ready[sender.name], ready[receiver.name]))
        for x, target, sender, receiver in copies
    ]
    await_all(involved, done)


def await_all(backends: Iterable[Any], marks: Iterable[Mark]) -> None:
    """Later work on all these devices waits for the moments."""
    moments = list(marks)
    for backend in backends:
        backend.await_marks(moments)
