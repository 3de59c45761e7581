"""Records of calls on a card. A record holds the launches of a call (see polygpu/_backends/records.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ... import _cpu
from ...errors import DeviceError, OutOfDeviceMemory
from .. import Array, is_device_array
from ..records import MOST_STEPS, NEVER, Blocks, Record, Replay, placed
from .device import Launched, Shared, Taken, Tape, recording
from .launch import ALIGNMENT, Context, Prepared, bytes_of

_GRAPH_BYTES = 1 << 17  # an estimate of the device memory that a graph of a record's launches takes


def observe(
    gpu: Context, work: Callable[[], Array], operands: Sequence[Array], out: Array | None
) -> tuple[Array, Record | None]:
    """Call work(). Return its result and its record. The record may be None or NEVER (see _record).

    The record is None if an operand or `out` is empty, not dense, not aligned or not on this card, or if
    launches are already being recorded.
    """
    given = operands if out is None else (*operands, out)
    if recording.get() is not None or any(not x.size or not _is_here(gpu, x) for x in given):
        return work(), None
    tape = Tape(gpu.name)
    token = recording.set(tape)
    try:
        made = work()
    finally:
        recording.reset(token)
    return made, _record(gpu, tape, operands, out, made)


def _is_here(gpu: Context, x: Array) -> bool:
    """Return whether an array is on this card, dense, and begins at a multiple of ALIGNMENT."""
    here = is_device_array(x) and x.data.device_id == gpu.index  # type: ignore[attr-defined]
    return here and x.flags.c_contiguous and gpu.address(x) % ALIGNMENT == 0


def _record(
    gpu: Context, tape: Tape, operands: Sequence[Array], out: Array | None, result: Array
) -> Record | None:
    """Return the record of a call, made from its tape.

    Return NEVER if no call of this kind can be recorded. Return None if only these arrays prevent a
    record, for example an `out` that overlaps an operand.
    """
    if not result.size or (out is not None and result is not out) or not _is_here(gpu, result):
        return None
    arrays = {id(x): x for x in (*operands, result)}
    ranges = sorted((gpu.address(x), gpu.address(x) + x.nbytes) for x in arrays.values())
    if any(end > begin for (_, end), (begin, _) in pairwise(ranges)):
        return NEVER if out is None else None
    given = any(x is result for x in (*operands, out))
    steps = _steps(gpu, tape, operands, result, given) if tape.repeatable else None
    if steps is None:
        return NEVER
    ready, room = steps
    used = list({id(x): x for x in tape if not isinstance(x, (Taken, Launched))}.values())
    parts = {id(part) for x in used if isinstance(x, Shared) for part in x.parts()}
    used = [x for x in used if id(x) not in parts]  # waiting for a Shared includes waiting for its parts
    call = Prepared(_cpu.Launches(gpu.driver, ready), ready, used, [room] if room else [])
    more = _GRAPH_BYTES if len(ready) > 1 else 0
    return Record(_replay(gpu, call, result.shape, result.dtype), bytes_of(ready) + more)


def _steps(
    gpu: Context, tape: Tape, operands: Sequence[Array], result: Array, given: bool
) -> tuple[list[tuple[Any, ...]], int] | None:
    """Return the launches in the form of the native core, and the bytes of the workspace for temporaries.

    An operand of a launch becomes a number and an offset. The numbers are, in this order: one for each
    operand of the call, one for the result, one for all constants, one for the workspace. The offset of a
    constant is its address. Return None if a launch uses other memory, if the record has no launches, or if
    it has more than MOST_STEPS launches or MOST_STEPS / 4 temporaries.

    given: whether the result is an operand or `out`. Otherwise the call allocated the result.
    """
    never, room = len(operands) + 1, len(operands) + 2
    blocks, sizes, uses = Blocks(), list[int](), list[list[int]]()
    for number, x in enumerate((*operands, result) if given else operands):
        blocks.add(gpu.address(x), x.nbytes, number)
    own = None if given else _taken_for(gpu, result, tape)
    if not given and own is None:
        return None
    found: list[tuple[Any, list[tuple[int, int]]]] = []
    for note in tape:
        if isinstance(note, Taken):
            if note is own:
                blocks.add(note.address, note.size, len(operands))
                continue
            blocks.add(note.address, note.size, room + len(sizes))
            sizes.append(note.size)
            uses.append([])
        elif isinstance(note, Launched):
            for step in note.steps:
                places = []
                for operand, offset in zip(step[-3], step[-2], strict=True):
                    address = note.addresses[operand] + offset
                    place = blocks.find(address)
                    if place is None:
                        return None
                    number, distance = place
                    if number >= room:
                        uses[number - room].append(len(found))
                    places.append((number, address if number == never else distance))
                found.append((step, places))
        elif is_device_array(note):
            blocks.add(gpu.address(note), note.nbytes, never)
    if not found or len(found) > MOST_STEPS or len(sizes) > MOST_STEPS >> 2:
        return None
    begins, total = placed(sizes, [(min(u), max(u)) if u else (0, -1) for u in uses])
    total = max(total, int(any(uses)))  # at least 1 if a temporary is used, even an empty one
    ready = []
    for step, places in found:
        numbers = tuple(min(number, room) for number, _ in places)
        offsets = tuple(
            begins[number - room] + distance if number >= room else distance for number, distance in places
        )
        ready.append((*step[:-3], numbers, offsets, step[-1]))
    return ready, total


def _taken_for(gpu: Context, result: Array, tape: Tape) -> Taken | None:
    """Return the note of the allocation that `result` fills exactly, or None if there is none."""
    whole = Taken(gpu.address(result), result.nbytes)
    return next((x for x in reversed(tape) if isinstance(x, Taken) and x == whole), None)


def _replay(gpu: Context, call: Prepared, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Replay:
    """Return a function that repeats a record's launches on other operands.

    The returned function returns None if it cannot repeat the launches.
    """
    launch, streams, index, noting = call.launch.on, call.streams, gpu.index, recording.get
    stream_of, device, new = gpu.xp.cuda.get_current_stream, gpu.current_device, gpu.xp.ndarray
    card, alloc = gpu.card, gpu.xp.cuda.alloc
    room = sum(call.temporaries)

    def takes(out: Any, operands: Sequence[Any]) -> bool:
        """Return whether the result can be written to `out`.

        The shape, the dtype and the card must fit, `out` must be dense, and no operand may overlap
        `out`. An operand may be `out` itself.
        """
        if type(out) is not new or out.shape != shape or out.dtype != dtype:
            return False
        if out.data.device_id != index or not out.flags.c_contiguous:
            return False
        begin = out.data.ptr
        end = begin + out.nbytes
        return all(x is out or x.data.ptr >= end or begin >= x.data.ptr + x.nbytes for x in operands)

    def replay(operands: tuple[Any, ...], out: Any) -> Array | None:
        if device() != index or gpu.card is not card:
            return None
        stream, notes, fresh = stream_of(index).ptr, noting(), out is None
        try:
            if fresh:
                out = new(shape, dtype)
            elif not takes(out, operands):
                return None
            if notes is not None or stream not in streams:
                return _noted(gpu, call, operands, out, fresh)
            if room:
                memory = alloc(room)
                done = launch(stream, operands, out, memory.ptr)
            else:
                done = launch(stream, operands, out, 0)
        except (gpu.memory_error, OutOfDeviceMemory, _cpu.NoContext):
            return None  # without a record, the call may work in smaller pieces, or raise the right error
        except _cpu.DriverError as error:
            raise DeviceError(f"{gpu.name} failed with {error}.") from error
        return out if done else None

    return replay


def _noted(gpu: Context, call: Prepared, operands: Sequence[Array], out: Array, fresh: bool) -> Array | None:
    """Repeat the launches of `call`, and add them to the record that is being made, if any. Return `out`.

    If an array is not aligned, do nothing and return None. fresh: whether the caller just allocated
    `out`.
    """
    addresses = [gpu.address(x) for x in (*operands, out)]
    if any(x % ALIGNMENT for x in addresses):
        return None
    notes = recording.get()
    if notes is not None and fresh:
        notes.take(out.data, out.nbytes)
    gpu.launch_prepared(call, [*addresses, 0])
    return out
