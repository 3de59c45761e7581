"""Records of calls in host memory: which functions of the core a call used, and on which arrays."""

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
    """A note that the call allocated this array, for its result or for a temporary."""

    array: Array


class Constant(NamedTuple):
    """A note that the call reads this array, which is the same in every repetition."""

    array: Array


class Step(NamedTuple):
    """A note that the call called this function with these arguments.

    by_address: whether the function already knows the shapes and strides of its arrays, and uses only their
    addresses.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    by_address: bool = False


class Foreign(NamedTuple):
    """A note of work that cannot be recorded, such as a computation by NumPy. The call cannot be repeated."""


Note = Made | Constant | Step | Foreign

# The notes of the call that this thread is recording, in order; None if it is not recording a call.
noted: ContextVar[list[Note] | None] = ContextVar("polygpu_noted", default=None)


def note_made(array: Array, zero: bool = False) -> None:
    """Add the note that the call allocated this array; zero: whether the call also filled it with zeros."""
    notes = noted.get()
    if notes is not None:
        notes.append(Made(array))
        if zero:
            notes.append(Step(np.ndarray.fill, (array, 0)))


def note_foreign() -> None:
    """Add the note that the call did work that cannot be recorded."""
    notes = noted.get()
    if notes is not None:
        notes.append(Foreign())


def address(x: Array) -> int:
    """Return the memory address of the array's first entry."""
    return int(x.__array_interface__["data"][0])


def observe(
    work: Callable[[], Array], operands: Sequence[Array], out: Array | None, home: Any
) -> tuple[Array, Record | None]:
    """Do the work of a call. Return the call's result and its record.

    The record is None if this call is not recorded, and NEVER if the call can never be repeated.

    home: the backend that does the work.
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
    """Raised if a repetition could not find an array of the call, or if the call is too long."""


class _View(NamedTuple):
    """A view of an array of a record: a part of it, or all of it in another shape."""

    of: int  # the index of the array that is viewed
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]


class _Arguments:
    """The arguments of a record's steps, each with an index: operands, the result, then all others.

    The others (`later`) are temporaries, constants, views and objects that are not arrays. own: the note of
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
        """Add the array of a note. A constant is skipped if its memory belongs to an array added before."""
        if note is self._own:
            self._blocks.add(address(note.array), note.array.nbytes, self._first - 1)
        elif isinstance(note, Made):
            self._enter(note.array, self._append(note))
        elif self._blocks.find(address(note.array)) is None:
            self._enter(note.array, self._append(note.array))

    def number(self, x: Any, by_address: bool) -> int:
        """Return the index of an argument of a step. A new argument gets a new index.

        Raise _NotRepeatable for an array that a repetition could not find, such as one outside the memory of
        all arrays added before.
        """
        if not isinstance(x, np.ndarray):
            # Look the argument up by identity, since not every argument is hashable. `later` keeps it alive.
            key: Any = type(x), id(x)
            return self._known.get(key) or self._known.setdefault(key, self._append(x))
        found = self._blocks.find(address(x))
        if x.dtype.hasobject or found is None:  # a repetition could not find this array
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
    """Make the record of a call from its notes.

    Return NEVER if the call cannot be repeated. Return None if only these arrays prevent a record, for
    example because they overlap: a later call on other arrays may be recorded.
    """
    taken = [x for x in operands if x is not result]
    if not result.size or (out is not None and result is not out):
        return None
    pairs = ((x, y) for i, x in enumerate((*taken, result)) for y in (*taken, result)[:i] if x is not y)
    # A call without `out` chooses where its result lies. If this result overlaps an operand, the results of
    # all repetitions will too. Other overlaps depend on the arrays that the caller passes.
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
    """Return a function that repeats the steps on other operands.

    The function does nothing and returns None if it cannot repeat the steps on these operands. operands: the
    number of operands of the call.
    """
    # The core expects temporaries first, then constants and other objects, and last the views of all these.
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
