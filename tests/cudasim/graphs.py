"""The nodes of a recorded graph, as the driver's functions show and change them."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import devices, launch, memory, settings, streams

ON_HOST, ON_DEVICE = 1, 2  # of CUmemorytype
_handles = itertools.count(0x60DE0, 16)
nodes: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()  # by handle


class KernelParams(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class Work:
    """A kernel's launch through the driver, with the bytes of each of its parameters."""

    def __init__(
        self, function: Any, sizes: dict[str, Any], blocks: Sequence[bytes], chosen: settings.Settings
    ) -> None:
        self.function, self.sizes, self.blocks, self.chosen = function, sizes, list(blocks), chosen
        self._prepared = launch.Launch(
            entry=function.entry,
            card=devices.card(function.device),
            device=function.device,
            arguments=[np.frombuffer(block, np.uint8) for block in self.blocks],
            max_dynamic_shared=function.kernel.max_dynamic_shared_size_bytes,
            cooperative=False,
            **sizes,
        )

    def __call__(self) -> None:
        self._prepared.run(self.chosen)

    def changed(self, params: KernelParams) -> Work:
        """The same kernel with other parameters."""
        blocks = [ctypes.string_at(params.parameters[i], len(block)) for i, block in enumerate(self.blocks)]
        sizes = {"grid": tuple(params.grid), "block": tuple(params.block), "shared_mem": params.shared}
        return Work(self.function, self.sizes | sizes, blocks, self.chosen)


class Node:
    """One node. CuPy's own work has as parameters a pointer to each array that it touches."""

    def __init__(self, index: int, action: streams.Action) -> None:
        self.index, self.action, self.handle = index, action, next(_handles)
        self.kind: int = getattr(action, "kind", streams.KERNEL)
        if isinstance(action, Work):
            self.function, self.blocks = action.function.ptr, action.blocks
        else:
            self.function = self.handle + 1
            self.blocks = [place.to_bytes(8, "little") for place in _touched(action)]
        nodes[self.handle] = self

    def params(self) -> ctypes.Structure:
        """What the driver's function for this kind of node gives."""
        if self.kind == streams.FILL:
            return _Fill(int.from_bytes(self.blocks[0], "little"))
        if self.kind == streams.COPY:
            ends = [int.from_bytes(block, "little") for block in self.blocks]
            device = [ON_DEVICE if memory.is_device_address(x) else ON_HOST for x in ends]
            return _Copy(*(_End(kind, x) for kind, x in zip(device, ends, strict=True)))
        self._buffers = [ctypes.create_string_buffer(block, len(block)) for block in self.blocks]
        self._pointers = (ctypes.c_void_p * max(1, len(self.blocks)))(*map(ctypes.addressof, self._buffers))
        params = KernelParams(function=self.function)
        params.parameters = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_void_p))
        if isinstance(self.action, Work):
            params.grid[:], params.block[:] = self.action.sizes["grid"], self.action.sizes["block"]
            params.shared = self.action.sizes["shared_mem"]
        return params


class _Fill(ctypes.Structure):
    """The beginning of `CUDA_MEMSET_NODE_PARAMS`."""

    _fields_ = (("address", ctypes.c_uint64),)


class _End(ctypes.Structure):
    """One half of `CUDA_MEMCPY3D`."""

    _fields_ = (("place", ctypes.c_size_t * 4), ("kind", ctypes.c_uint), ("host", ctypes.c_void_p),
                ("address", ctypes.c_uint64), ("rest", ctypes.c_size_t * 4))  # fmt: skip

    def __init__(self, kind: int, address: int) -> None:
        super().__init__(kind=kind, **{"address" if kind == ON_DEVICE else "host": address})


class _Copy(ctypes.Structure):
    """`CUDA_MEMCPY3D`."""

    _fields_ = (("source", _End), ("target", _End), ("extent", ctypes.c_size_t * 3))


def nodes_of(graph: streams.Graph) -> list[Node]:
    """In the order in which the work was recorded."""
    if graph.nodes is None:
        graph.nodes = [Node(i, action) for i, action in enumerate(graph._actions)]
    return graph.nodes


def append(graph: streams.Graph, work: Work) -> int:
    """Add a node to a graph that is being made; returns its handle."""
    made = nodes_of(graph)
    made.append(Node(len(made), work))
    graph._actions.append(work)
    return made[-1].handle


def start_early(graph: streams.Graph, index: int) -> None:
    """Let a node start before the one before it has ended."""
    node = nodes_of(graph)[index]
    work = node.action
    node.action = Work(work.function, work.sizes | {"dependent": True}, work.blocks, work.chosen)
    graph._actions[index] = node.action


def _touched(action: Any) -> list[int]:
    """The addresses of the arrays that a function works on: those in its closure."""
    if getattr(action, "address", None) is not None:
        return [action.address]
    cells = [cell.cell_contents for cell in getattr(action, "__closure__", None) or ()]
    return list(dict.fromkeys(place for value in cells for place in _places(value)))


def _places(value: Any) -> Iterator[int]:
    if isinstance(value, np.ndarray):
        yield int(value.__array_interface__["data"][0])
    elif hasattr(value, "_host"):  # an array of the device
        yield value._address()
    elif isinstance(value, launch.Launch):
        for data in value._values:
            yield from np.frombuffer(data.tobytes()[: data.nbytes & ~7], np.uint64).tolist()
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _places(part)
    elif callable(value):
        yield from _touched(value)
