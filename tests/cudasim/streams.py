"""Streams, events and graphs. Work runs at once, in the order of its calls; a captured stream records it.

Copies between cards are the exception, on any stream but the default one: they run when work on one of the
two cards waits for them. So a missing wait shows: the target is read too early, or the source is overwritten.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from .memory import one_at_a_time

Action = Callable[[], None]  # a node, if it is part of a graph: graphs.py
_addresses = itertools.count(0x5700, 16)
_state = threading.local()
_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
graphs: dict[int, Graph] = {}  # made by functions of cupy.cuda.runtime; by handle


def _current_card() -> int:
    from .devices import current  # here: that module imports this one

    return current()


class CUDARuntimeError(RuntimeError):
    """Stands for `cupy.cuda.runtime.CUDARuntimeError`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Graph:
    """Recorded work."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self.nodes: list[Any] = []  # of a graph that the driver's functions make: graphs.py

    def launch(self, stream: Stream | None = None) -> None:
        target = stream or current_stream()
        target._run(self._replay)

    def _replay(self) -> None:
        for action in list(self._actions):
            action()


class Copy:
    """A copy between two cards that runs when work on one of them waits for it."""

    def __init__(self, action: Action, cards: tuple[int, int]) -> None:
        self._action: Action | None = action
        self.cards = cards

    @property
    def is_done(self) -> bool:
        return self._action is None

    def run(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class Stream:
    """A CUDA stream on which all work is done at once, except for copies between cards."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.ptr = 0 if null else next(_addresses)
        _streams[self.ptr] = self
        self.non_blocking = non_blocking
        self._capture: Graph | None = None
        self._outer: list[Stream] = []
        self._copies: list[Copy] = []
        self._home = 0 if null else _current_card()

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        """Make an object for the stream of another library, which tells its handle by CUDA's protocol."""
        made = cls()
        _, made.ptr = obj.__cuda_stream__()
        _streams[made.ptr] = made
        return made

    def copy(self, action: Action, cards: tuple[int, int]) -> None:
        """Copy from one card to another when something waits for it."""
        self._refuse_capture("cudaMemcpy2DAsync")
        self._copies.append(Copy(action, cards))
        if self.ptr == 0:
            self._run_copies()

    def _card(self) -> int:
        """The card that it belongs to; the default stream belongs to the current one."""
        return _current_card() if self.ptr == 0 else self._home

    def _run_copies(self) -> None:
        with one_at_a_time:
            for copy in self._copies:
                copy.run()
        self._copies.clear()

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        _state.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        _state.stream = self._outer.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def use(self) -> Stream:
        _state.stream = self
        return self

    @property
    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._refuse_capture("cudaStreamSynchronize")
        self._run_copies()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """A stream that waits for an event of a captured stream takes part in the capture."""
        event.run_copies(lambda copy: self._card() in copy.cards)
        if event._capture is not None:
            self._capture = event._capture

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default stream")
        if self._capture is not None:
            raise CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: the stream is being captured")
        self._capture = Graph()

    def is_capturing(self) -> bool:
        return self._capture is not None

    def end_capture(self) -> Graph:
        if self._capture is None:
            raise CUDARuntimeError(901, "cudaErrorIllegalState: the stream is not being captured")
        graph, self._capture = self._capture, None
        return graph

    def _run(self, action: Action) -> None:
        if self._capture is None:
            with one_at_a_time:
                action()
        else:
            self._capture._actions.append(action)

    def _refuse_capture(self, what: str) -> None:
        if self._capture is not None:
            raise CUDARuntimeError(
                900, f"cudaErrorStreamCaptureUnsupported: {what} while the stream is captured"
            )


Stream.null = Stream(null=True)


class Event:
    """A moment of a stream; times are those of the host."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = next(_addresses)
        self._time: float | None = None
        self._capture: Graph | None = None
        self._copies: tuple[Copy, ...] = ()

    def record(self, stream: Stream | None = None) -> None:
        self._capture = (stream or current_stream())._capture
        self._copies = tuple((stream or current_stream())._copies)
        self._time = time.perf_counter()

    @property
    def done(self) -> bool:
        current_stream()._refuse_capture("cudaEventQuery")
        return True

    def synchronize(self) -> None:
        current_stream()._refuse_capture("cudaEventSynchronize")
        self.run_copies()

    def run_copies(self, chosen: Callable[[Copy], bool] = lambda copy: True) -> None:
        """Run the copies that came before the event, or some of them."""
        with one_at_a_time:
            for copy in filter(chosen, self._copies):
                copy.run()


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds."""
    if start._time is None or end._time is None:
        raise CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: the event was not recorded")
    return (end._time - start._time) * 1e3


def new_graph() -> int:
    """cuGraphCreate."""
    return _keep(Graph())


def instantiate(graph: int) -> int:
    """cuGraphInstantiateWithFlags: the handle of a copy for launches, with nodes in the graph's order."""
    made = Graph()
    made._actions = list(graphs[graph]._actions)
    return _keep(made)


def _keep(graph: Graph) -> int:
    handle = next(_addresses)
    graphs[handle] = graph
    return handle


def graph_of(handle: int) -> Graph:
    return graphs[handle]


def launch_graph(exec_: int, stream: int) -> None:
    graphs[exec_].launch(of_pointer(stream))


def destroy_graph(handle: int) -> None:
    del graphs[handle]


def of_pointer(ptr: int) -> Stream:
    """The stream that the driver knows by a number."""
    return _streams[ptr]


def current_stream(device_id: int | None = None) -> Stream:
    return getattr(_state, "stream", Stream.null)


def submit(action: Action) -> None:
    """Run on the current stream, or record where it is captured."""
    current_stream()._run(action)


def require_no_capture() -> None:
    """Before a copy to the host; the error is CuPy's."""
    if current_stream().is_capturing():
        raise RuntimeError("the current stream is capturing, so D2H transfers are disallowed")
