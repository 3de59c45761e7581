"""The nodes of graphs that the driver's functions make and change."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import devices, launch, settings, streams

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
    """One node of a graph that the driver's functions make: its place among the graph's work."""

    def __init__(self, index: int) -> None:
        self.index, self.handle = index, next(_handles)
        nodes[self.handle] = self


def append(graph: streams.Graph, work: Work) -> int:
    """Add a node to a graph that is being made; returns its handle."""
    node = Node(len(graph.nodes))
    graph.nodes.append(node)
    graph._actions.append(work)
    return node.handle


def start_early(graph: streams.Graph, index: int) -> None:
    """Let a node start before the one before it has ended."""
    work: Any = graph._actions[index]
    graph._actions[index] = Work(work.function, work.sizes | {"dependent": True}, work.blocks, work.chosen)
