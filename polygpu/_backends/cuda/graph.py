"""What a CUDA graph of recorded work keeps, and what is noted of launches while work is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Launched(NamedTuple):
    """Launches that were made while work was recorded: a prepared call, and its operands' addresses."""

    steps: Sequence[Any]  # as the native core takes them (cpu/bindings/launches.hpp)
    addresses: Sequence[int]


@dataclass(frozen=True)
class Replay:
    """A graph that is launched on the arrays it was recorded with."""

    device: Any
    graph: Any
    kept: tuple[Any, ...]  # all that the graph reads and writes
    result: Any
    nbytes: int  # of the memory that is the graph's alone
    launches: int  # of kernels of this library

    def __call__(self) -> Any:
        """Launch on the current stream; returns the result of the recorded f, overwritten."""
        self.device.note(self)
        with self.device.device_scope():
            self.graph.launch()
        return self.result
