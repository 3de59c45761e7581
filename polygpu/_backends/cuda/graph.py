"""Recorded work whose arrays can be exchanged: pointers in the launches of a CUDA graph.

A recorded launch of this library is known byte for byte: the kernel, its parameters, and that they begin with
pointers. So the launch is found among the nodes of the graph, and its pointers into an argument's array can
be set to the same place in another array. Other libraries' work in the graph must not touch these arrays, or
the recording is refused. Source: the CUDA driver API, "Graph Management".
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._core.locks import new_lock
from ...errors import DeviceError, ParameterError
from .. import Array

ALIGNMENT = 16  # bytes that a thread moves at once, at most

_KERNEL, _MEMCPY, _MEMSET, _EMPTY = 0, 1, 2, 5  # of CUgraphNodeType
_OF_DEVICE, _OF_EITHER = 2, 4  # of CUmemorytype: device, and unified, where the address tells which memory
_NO_CONTEXT = 201  # of CUresult: the thread has not worked on the GPU before
_WAY_OUT = "record again for other values, or copy them into the recorded ones"


class KernelParams(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),  # where function is null
        ("context", ctypes.c_void_p),
    )


class MemsetParams(ctypes.Structure):
    """`CUDA_MEMSET_NODE_PARAMS`."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class _CopyEnd(ctypes.Structure):
    """One half of `CUDA_MEMCPY3D`."""

    _fields_ = (
        ("place", ctypes.c_size_t * 4),
        ("memory_type", ctypes.c_uint),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("sizes", ctypes.c_size_t * 2),
    )


class MemcpyParams(ctypes.Structure):
    """`CUDA_MEMCPY3D`."""

    _fields_ = (("source", _CopyEnd), ("target", _CopyEnd), ("extent", ctypes.c_size_t * 3))


class Launched(NamedTuple):
    """Launches that were made while work was recorded: a prepared call, and its operands' addresses."""

    steps: Sequence[Any]  # as the native core takes them (cpu/bindings/launches.hpp)
    addresses: Sequence[int]

    def blocks(self) -> Iterator[tuple[int, bytes, int]]:
        """For each launch the kernel's handle, its parameters, and the number of pointers they begin with."""
        for step in self.steps:
            function, parameters = step[1], step[-1]
            operands, offsets = step[-3], step[-2]
            pointers = [
                self.addresses[number] + offset for number, offset in zip(operands, offsets, strict=True)
            ]
            count = len(pointers)
            yield function, struct.pack(f"<{count}Q", *pointers) + parameters[8 * count :], count


class _Place(NamedTuple):
    """A pointer in a node's parameters, `distance` bytes behind the beginning of an argument's array."""

    at: int
    argument: int
    distance: int


class _Node(NamedTuple):
    handle: int
    params: KernelParams
    block: bytes
    places: list[_Place]


class _Range(NamedTuple):
    begin: int
    end: int

    def meets(self, other: _Range) -> bool:
        return self.begin < other.end and other.begin < self.end


def _words(block: bytes) -> Iterator[int]:
    """All 64-bit words of a parameter block that may be pointers, in order."""
    return (word for (word,) in struct.iter_unpack("<Q", block[: len(block) & ~7]))


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


class Recorded:
    """A graph that is launched on the arrays it was recorded with, or on others in their place.

    Exchanged arrays hold for later launches; a launch under way goes on with the arrays that it was given.
    Errors name the arrays by their numbers in `arrays`.
    """

    def __init__(
        self,
        device: Any,
        graph: int,
        launched: Sequence[Launched],
        arrays: Mapping[int, Array],
        kept: tuple[Any, ...],
        nbytes: int,
    ) -> None:
        self.nbytes = nbytes  # of the memory that is the graph's alone
        self.launches = sum(len(x.steps) for x in launched)  # of kernels of this library
        self._device, self._runtime = device, device.xp.cuda.runtime
        self._graph, self._exec = graph, 0
        self._lock, self._broken = new_lock(), False
        self._kept = kept  # all that the graph reads and writes
        self._numbers, self._arrays = tuple(arrays), tuple(arrays.values())  # in use, so that memory stays
        self._recorded = self._set_to = self._ranges(self._arrays)
        self._partners = self._sharing(self._recorded)
        self._nodes, self._own = self._find(launched)
        self._exec = self._runtime.graphInstantiate(graph)

    def __call__(self, arrays: Sequence[Array]) -> None:
        """Launch on the current stream, on these arrays from now on."""
        self._device.note(self)
        with self._device.device_scope(), self._lock:
            if self._broken:
                raise DeviceError(f"{self._device.name}: the graph was left half set; {_WAY_OUT}")
            self._set(arrays)
            self._runtime.graphLaunch(self._exec, self._device.xp.cuda.get_current_stream().ptr)

    def __del__(self) -> None:
        try:  # at the end of the process CUDA may be gone
            if self._exec:
                self._runtime.graphExecDestroy(self._exec)
            self._runtime.graphDestroy(self._graph)
        except Exception:
            pass

    def _set(self, arrays: Sequence[Array]) -> None:
        ranges = self._ranges(arrays)
        if ranges == self._set_to:
            self._arrays = tuple(arrays)
            return
        whole = self._ranges([x if x.base is None else x.base for x in arrays])
        for i, new, room in zip(self._numbers, ranges, whole, strict=True):
            if new.begin % ALIGNMENT:
                raise ParameterError(
                    f"argument {i}: its memory begins at {new.begin:#x}, must be a multiple of {ALIGNMENT}; "
                    "poly.copy() begins at one"
                )
            # Launches may reach from there into the argument.
            if any(room.begin <= address < room.end for address in self._own):
                raise ParameterError(
                    f"argument {i}: lies in memory of the recording, or in what f reaches by another name; "
                    "copy it with poly.copy()"
                )
        if self._sharing(ranges) != self._partners:
            raise ParameterError(
                "arguments share memory in another way than the recorded ones do: the same value in the same "
                "places, or values that have no entry in common"
            )
        try:
            for node in self._nodes:
                block = ctypes.create_string_buffer(node.block, len(node.block))
                for at, argument, distance in node.places:
                    struct.pack_into("<Q", block, at, ranges[argument].begin + distance)
                pointer = ctypes.c_void_p(ctypes.addressof(block))
                node.params.parameters = ctypes.pointer(pointer)
                self._call(
                    "cuGraphExecKernelNodeSetParams_v2",
                    ctypes.c_void_p(self._exec),
                    ctypes.c_void_p(node.handle),
                    ctypes.byref(node.params),
                )
            self._arrays, self._set_to = tuple(arrays), ranges
        except BaseException:  # also Ctrl-C
            self._broken = True
            raise

    def _ranges(self, arrays: Sequence[Array]) -> list[_Range]:
        begins = [self._device.address(x) for x in arrays]
        return [_Range(begin, begin + x.nbytes) for begin, x in zip(begins, arrays, strict=True)]

    def _sharing(self, ranges: Sequence[_Range]) -> list[int]:
        """For each range the first one that equals it.

        Raises:
            ParameterError: two different ranges overlap.
        """
        for i, x in enumerate(ranges):
            for j, y in enumerate(ranges[:i]):
                if x != y and x.meets(y):
                    raise ParameterError(
                        f"arguments {self._numbers[j]} and {self._numbers[i]} overlap in part; "
                        "pass copies of them, poly.copy()"
                    )
        return [list(ranges).index(x) for x in ranges]

    # ---- what is in the graph ----

    def _find(self, launched: Sequence[Launched]) -> tuple[list[_Node], set[int]]:
        """The nodes with pointers into arguments, and this library's pointers to other memory.

        Raises:
            ParameterError: some of the graph's work cannot be given other arrays.
        """
        expected: Counter[tuple[int, bytes]] = Counter()
        pointers: dict[tuple[int, bytes], int] = {}
        for one in launched:
            for function, block, count in one.blocks():
                expected[function, block] += 1
                pointers[function, block] = count
        lengths = {function: len(block) for function, block in expected}
        nodes, own = [], set[int]()
        for handle in self._handles():
            kind = ctypes.c_int()
            self._call("cuGraphNodeGetType", ctypes.c_void_p(handle), ctypes.byref(kind))
            if kind.value != _KERNEL:
                self._check_other(handle, kind.value)
                continue
            params = KernelParams()
            self._call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(handle), ctypes.byref(params))
            function = self._function(params)
            length = lengths.get(function, 0)
            block = ctypes.string_at(params.parameters[0], length) if length else b""
            if not expected[function, block]:
                self._check_foreign(function, params)
                continue
            expected[function, block] -= 1
            count = pointers[function, block]
            places = []
            for i, word in enumerate(_words(block)):
                argument = self._argument_at(word)
                if argument is None:
                    if i < count:
                        own.add(word)
                elif i < count:
                    places.append(_Place(8 * i, argument, word - self._recorded[argument].begin))
                else:
                    raise ParameterError(
                        f"capture: a kernel holds an address beside its operands; {_WAY_OUT}"
                    )
            if places:
                nodes.append(_Node(handle, params, block, places))
        if +expected:
            raise ParameterError(
                f"capture: {sum(expected.values())} launches are not found in the graph; {_WAY_OUT}"
            )
        return nodes, own

    def _handles(self) -> list[int]:
        count, graph = ctypes.c_size_t(), ctypes.c_void_p(self._graph)
        self._call("cuGraphGetNodes", graph, None, ctypes.byref(count))
        handles = (ctypes.c_void_p * count.value)()
        self._call("cuGraphGetNodes", graph, handles, ctypes.byref(count))
        return [handle or 0 for handle in handles]

    def _function(self, params: KernelParams) -> int:
        if params.function:
            return int(params.function)
        function = ctypes.c_void_p()
        self._call("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(params.kernel))
        return function.value or 0

    def _argument_at(self, address: int) -> int | None:
        for i, (begin, end) in enumerate(self._recorded):
            if begin <= address < end:
                return i
        return None

    def _check_other(self, handle: int, kind: int) -> None:
        """Raise where a node that is no kernel may touch an argument."""
        node, touched, hosts = ctypes.c_void_p(handle), list[int](), False
        if kind == _MEMSET:
            memset = MemsetParams()
            self._call("cuGraphMemsetNodeGetParams", node, ctypes.byref(memset))
            touched = [memset.address]
        elif kind == _MEMCPY:
            copy = MemcpyParams()
            self._call("cuGraphMemcpyNodeGetParams", node, ctypes.byref(copy))
            ends = (copy.source, copy.target)
            touched = [end.address for end in ends if end.memory_type in (_OF_DEVICE, _OF_EITHER)]
            hosts = any(end.memory_type != _OF_DEVICE for end in ends)
        elif kind != _EMPTY:
            raise ParameterError(f"capture: the graph has a node of type {kind}; {_WAY_OUT}")
        self._check_touched("CuPy copies or fills", touched)
        if hosts:  # the copied bytes may be addresses for a kernel
            raise ParameterError(f"capture: f copies memory that may be the host's; {_WAY_OUT}")

    def _check_touched(self, what: str, addresses: Iterable[int]) -> None:
        """Raise where other libraries' work on these addresses touches an argument."""
        for i in map(self._argument_at, addresses):
            if i is not None:
                raise ParameterError(
                    f"capture: {what} argument {self._numbers[i]}; work on its data and indices that are "
                    "arrays are CuPy's: do that outside and pass the results, or record without rebind"
                )

    def _check_foreign(self, function: int, params: KernelParams) -> None:
        """Raise where another library's kernel has a pointer into an argument."""
        offset, size, number = ctypes.c_size_t(), ctypes.c_size_t(), 0
        ask: Callable[..., int] = getattr(self._device.libcuda, "cuFuncGetParamInfo", lambda *_: 1)
        shown = ctypes.c_void_p(function), ctypes.byref(offset), ctypes.byref(size)
        while ask(shown[0], ctypes.c_size_t(number), *shown[1:]) == 0:
            block = ctypes.string_at(params.parameters[number], size.value)
            self._check_touched("a kernel of CuPy's reads or writes", _words(block))
            number += 1
        if number == 0 or params.extra:
            raise ParameterError(
                "capture: f launches a kernel of CuPy's whose parameters the driver does not show (those for "
                f"CUDA 12.4 or later do); {_WAY_OUT}"
            )

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] | None = getattr(self._device.libcuda, name, None)
        if function is None:
            raise DeviceError(f"{self._device.name}: the driver has no {name}; {_WAY_OUT}")
        status = function(*arguments)
        if status == _NO_CONTEXT:
            self._runtime.free(0)  # makes the thread's context
            status = function(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._device.libcuda.cuGetErrorName(status, ctypes.byref(text))
            reason = text.value.decode() if text.value else f"CUDA error {status}"
            raise DeviceError(f"{self._device.name}: {name}: {reason}; {_WAY_OUT}")
