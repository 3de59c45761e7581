"""Records of calls on the host. A record lists the functions of the native core that a call used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import _cpu
from .._core.checks import unusual
from .._core.memory import SMALL_ARRAY
from .._core.reporting import reporting
from . import chosen_device, host_of
from .records import MOST_STEPS, NEVER, Array, Blocks, Record, Replay

_STEP_BYTES = 256  # an estimate of the memory that one step of a record takes
_MOST_ARGUMENTS = 64  # the most arguments of a step (cpu/bindings/replay.hpp)


class Made(NamedTuple):
    """An entry of `noted`: an array was allocated."""

    array: Array


class Constant(NamedTuple):
    """An entry of `noted`: a constant was read. All repetitions of the call read the same array."""

    array: Array


class Step(NamedTuple):
    """An entry of `noted`: a function was called.

    by_address: whether the function reads only the addresses of its array arguments, not shapes and strides.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    by_address: bool = False


class Foreign(NamedTuple):
    """An entry of `noted`: work was done that cannot be recorded, such as a computation by NumPy."""


Note = Made | Constant | Step | Foreign

# What the call that is being recorded has done so far, in time order. None if no call is being recorded. Each
# thread has its own value.
noted: ContextVar[list[Note] | None] = ContextVar("polygpu_noted", default=None)


def note_made(array: Array, zero: bool = False) -> None:
    """Note the allocation of `array` if a call is being recorded. zero: whether it was filled with zeros."""
    notes = noted.get()
    if notes is not None:
        notes.append(Made(array))
        if zero:
            notes.append(Step(np.ndarray.fill, (array, 0)))


def note_foreign() -> None:
    """Note work that cannot be recorded, if a call is being recorded."""
    notes = noted.get()
    if notes is not None:
        notes.append(Foreign())


def address(x: Array) -> int:
    """Return the memory address of the array's first entry."""
    return int(x.__array_interface__["data"][0])


def observe(
    work: Callable[[], Array], operands: Sequence[Array], out: Array | None, home: Any
) -> tuple[Array, Record | None]:
    """Run `work`, the computation of one call. Return the result, and a record that can repeat the call.

    The record is None if this call cannot be repeated, but an equal later call may be. The record is NEVER
    if no equal call can be repeated. home: the backend that does the work.
    """
    if noted.get() is not None or reporting() is not None or not all(x.size for x in operands):
        return work(), None
    notes: list[Note] = []
    tokens = noted.set(notes), unusual.set(True)
    try:
        made = work()
    finally:
        noted.reset(tokens[0])
        unusual.reset(tokens[1])
    return made, _record(notes, operands, out, made, home)


class _NotRepeatable(Exception):
    """Raised if a call cannot be repeated."""


class _View(NamedTuple):
    """A NumPy view of the array with index `of`. offset and strides: bytes."""

    of: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]


class _Arguments:
    """The arguments of a record's steps, numbered in this order: operands, result, entries of `later`.

    `later` has temporaries, constants, views and objects that are not arrays. own: the entry of `noted` for
    the result's allocation, or None if the result is an operand or the given `out`.
    """

    def __init__(self, operands: Sequence[Array], result: Array, own: Made | None) -> None:
        self._blocks, self._own = Blocks(), own
        self._arrays: dict[int, Array] = {}  # the arrays of the recorded call, by index
        self._known: dict[Any, int] = {}
        self.later: list[_View | Made | Any] = []  # entry i has the index self._first + i
        self._first = len(operands) + 1
        self._arrays[len(operands)] = result
        for number, x in enumerate(operands if own else (*operands, result)):
            self._enter(x, number)

    def _enter(self, x: Array, number: int) -> None:
        self._blocks.add(address(x), x.nbytes, number)
        self._arrays[number] = x

    def _append(self, entry: Any) -> int:
        self.later.append(entry)
        return self._first + len(self.later) - 1

    def add(self, note: Made | Constant) -> None:
        """Add the array of `note`. Skip a constant that lies in the memory of an earlier array."""
        if note is self._own:
            self._blocks.add(address(note.array), note.array.nbytes, self._first - 1)
        elif isinstance(note, Made):
            self._enter(note.array, self._append(note))
        elif self._blocks.find(address(note.array)) is None:
            self._enter(note.array, self._append(note.array))

    def number(self, x: Any, by_address: bool) -> int:
        """Return the index of an argument of a step. A new argument gets a new index.

        Raise _NotRepeatable if x is an array of objects, or if x lies outside all known arrays, or if x is a
        view of a known array and this known array is not C-contiguous.
        """
        if not isinstance(x, np.ndarray):
            # Look the argument up by identity, since not every argument is hashable. `later` keeps it alive.
            key: Any = type(x), id(x)
            return self._known.get(key) or self._known.setdefault(key, self._append(x))
        found = self._blocks.find(address(x))
        if x.dtype.hasobject or found is None:
            raise _NotRepeatable
        of, offset = found
        base = self._arrays[of]
        same = (x.shape, x.dtype, x.strides) == (base.shape, base.dtype, base.strides)
        if offset == 0 and (same or (by_address and base.flags.c_contiguous)):
            return of
        if not base.flags.c_contiguous:
            raise _NotRepeatable
        view = _View(of, x.shape, x.dtype, offset, x.strides)
        return self._known.get(view) or self._known.setdefault(view, self._append(view))


def _record(
    notes: Sequence[Note],
    operands: Sequence[Array],
    out: Array | None,
    result: Array,
    home: Any,
) -> Record | None:
    """Make the record of a call from `notes`, the entries of `noted`.

    Return NEVER if no call with such operands can be repeated. Return None if a later call on other arrays
    may be repeated, for example because operands overlap in this call.
    """
    taken = [x for x in operands if x is not result]
    if not result.size or (out is not None and result is not out):
        return None
    pairs = ((x, y) for i, x in enumerate((*taken, result)) for y in (*taken, result)[:i] if x is not y)
    # If `out` is None, the operation chooses the memory of its result. If the result overlaps an operand, it
    # does so in every call. Other overlaps depend on the arrays of this call, so later calls may have none.
    if any(np.may_share_memory(x, y) for x, y in pairs):
        return NEVER if out is None and any(np.may_share_memory(x, result) for x in operands) else None
    own = None
    if not any(x is result for x in (*operands, out)):
        at = address(result), result.nbytes
        made = (
            x for x in reversed(notes) if isinstance(x, Made) and (address(x.array), x.array.nbytes) == at
        )
        own = next(made, None)
        if own is None:  # the result is a view of a larger array
            return NEVER
    arguments, steps = _Arguments(operands, result, own), []
    try:
        if len(notes) > MOST_STEPS:
            raise _NotRepeatable
        for note in notes:
            if isinstance(note, Step):
                numbers = tuple(arguments.number(x, note.by_address) for x in note.arguments)
                steps.append((note.function, numbers))
                if len(numbers) > _MOST_ARGUMENTS:
                    raise _NotRepeatable
            elif isinstance(note, Foreign):
                raise _NotRepeatable
            else:
                arguments.add(note)
    except _NotRepeatable:
        return NEVER
    temporaries = [x.array for x in arguments.later if isinstance(x, Made)]
    if not steps or result.nbytes + sum(x.nbytes for x in temporaries) > SMALL_ARRAY:
        return NEVER
    replay = _replay(arguments.later, steps, len(operands), result, home)
    return Record(replay, _STEP_BYTES * len(steps))


def _replay(
    later: Sequence[Any],
    steps: Sequence[tuple[Callable[..., Any], tuple[int, ...]]],
    operands: int,
    result: Array,
    home: Any,
) -> Replay:
    """Return a function that repeats the steps on other operands; see Replay in records.py.

    operands: the number of operands.
    """
    # The core expects `later` in this order: first temporaries, then constants and other objects, then views.
    made = [i for i, x in enumerate(later) if isinstance(x, Made)]
    views = [i for i, x in enumerate(later) if isinstance(x, _View)]
    fixed = [i for i in range(len(later)) if i not in {*made, *views}]
    first = operands + 1
    numbers = {first + i: first + place for place, i in enumerate((*made, *fixed, *views))}
    return _cpu.Replay(
        result.shape,
        result.dtype,
        [(later[i].array.shape, later[i].array.dtype) for i in made],
        [later[i] for i in fixed],
        [(numbers.get(later[i].of, later[i].of), *later[i][1:]) for i in views],
        [(function, tuple(numbers.get(i, i) for i in taken)) for function, taken in steps],
        operands,
        SMALL_ARRAY,
        unusual.get if host_of(None) is home else lambda: True,
        partial(_serves, home),
    )


def _serves(home: Any) -> bool:
    """Return whether a record of the backend `home` may replace a call in the current context."""
    return host_of(chosen_device()) is home and noted.get() is None and reporting() is None
