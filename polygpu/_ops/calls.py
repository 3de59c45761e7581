"""Repeated calls: what a call did is recorded once, and done again for operands of the same shapes.

The key of a record holds all that decides what a call does and is no number in memory: the operation, plans,
domains, shapes and options. The numbers in memory are operands, constants too, such as the residues of an
int: another constant is another operand, not another record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast
from weakref import ref

import numpy as np
from numpy import ndarray

from .._backends import Array, Memory, backend_of, is_device_array
from .._backends.records import Record, Replay
from .._core.checks import Domain, verifying
from .._core.plans.basis import Basis
from .._core.plans.cache import Calls
from .._core.ring_plan import RingPlan
from .._core.value import Value
from .arrays import copied, overlap

_Operation = TypeVar("_Operation", bound=Callable[..., Any])
_Kind = TypeVar("_Kind")

_calls = Calls()  # of operations on arrays that belong to no ring
_is_observed: ContextVar[bool] = ContextVar("polygpu_is_observed", default=False)  # whether a call is
_PLANS: set[type] = set()  # further types of plans, which are equal only to themselves
_PLAIN = frozenset((int, str, bool, type(None)))  # types of options that a key holds by value
_ARRAYS: set[type] = {ndarray}  # types of arrays that were operands


class _Entry(NamedTuple):
    """What repeats a call, and what its result is."""

    replay: Replay
    plan: Any  # of the result: None for that of the first value, or the number of an argument
    domain: Domain | None  # None for a result that is an array
    watched: list[Any]  # references to plans with which the entry goes


def is_plan(kind: type[_Kind]) -> type[_Kind]:
    """Let keys hold objects of a class that are frozen, and equal only to themselves."""
    _PLANS.add(kind)
    return kind


def record(
    calls: Calls,
    key: tuple[Any, ...],
    compute: Memory,
    work: Callable[[], Array],
    operands: Sequence[Array],
    out: Array | None,
) -> Array:
    """Do the work of a call whose record is not there or does not serve; record it if it can be repeated.

    The key also tells which operands are one object, and which is `out`.
    """
    if key in calls or not _apart(compute, operands):
        return work()
    with _observing():
        made, found = compute.observe(work, operands, out)
    if found is not None:
        calls.store(key, found.replay, found.nbytes)
    return made


def device_of(x: Array) -> int | None:
    """Return the number of the card on which an array lies, or None in host memory: a part of keys."""
    return None if type(x) is np.ndarray else x.data.device_id  # type: ignore[attr-defined]


def repeated(operation: _Operation) -> _Operation:
    """Let an operation replay what its first call with such arguments did.

    Its arguments are values, arrays, plans, bases, and options: ints, texts, None, and tuples of them; with
    an option of another type it runs as it is. The plan of the first value keeps the record, else the first
    basis. A result in the ring of the first value is of that value's class. The memory for the result is
    given as `out=`.
    """

    @wraps(operation)
    def call(*arguments: Any, out: Array | None = None) -> Any:
        parts: list[Any] = [operation]
        operands: list[Array] = []
        first: Any = None
        known = True
        for x in arguments:  # as in _describe(), which takes longer
            kind = type(x)
            if kind in _PLAIN:
                parts.append(kind)
                parts.append(x)
            elif isinstance(x, Value):
                data = x._data
                if first is None:
                    first = x
                operands.append(data)
                device = None if type(data) is ndarray else data.data.device_id  # type: ignore[attr-defined]
                parts += (id(x._plan), x._domain, data.shape, device)
            else:
                known = known and _describe(x, parts, operands)
        if not known or not operands or verifying():
            return operation(*arguments, out=out)
        if len(operands) > 1:
            parts += [(i, j) for i, x in enumerate(operands) for j, y in enumerate(operands[:i]) if x is y]
        if out is not None:
            parts += [("out", i) for i, x in enumerate(operands) if x is out]
        key, owner = tuple(parts), _owner(arguments[0]) if first is None else first._plan
        calls: Calls = _calls if owner is None else owner.calls
        entry: _Entry | None = calls.get(key)
        if entry is None:
            made, found = _observed(operation, arguments, out, operands)
            if found is not None:
                calls.store(key, _entry(made, found, arguments, owner, calls, key), found.nbytes)
            return made
        result = entry.replay(tuple(operands), out)
        if result is None:
            return operation(*arguments, out=out)
        if entry.domain is None:
            return result
        plan = entry.plan
        if plan is None:
            return first._with(result, entry.domain)
        return Value(arguments[plan] if type(plan) is int else plan, result, entry.domain)

    return cast(_Operation, call)


def _owner(x: Any) -> Basis | None:
    return x if type(x) is Basis else None


def _entry(
    made: Any, found: Record, arguments: tuple[Any, ...], owner: Any, calls: Calls, key: tuple[Any, ...]
) -> _Entry:
    """Return what is stored of a call that can be repeated.

    It keeps no plan of its arguments alive: the entry goes when one of them does.
    """
    plan: Any = None
    if isinstance(made, Value) and made._plan is not owner:
        plan = next((i for i, x in enumerate(arguments) if x is made._plan), made._plan)
    gone = partial(_drop, ref(calls), key)
    watched = [ref(x, gone) for x in _plans_in(arguments) if x is not owner]
    return _Entry(found.replay, plan, made._domain if isinstance(made, Value) else None, watched)


def _drop(calls: Callable[[], Calls | None], key: tuple[Any, ...], _: Any) -> None:
    kept = calls()
    if kept is not None:
        kept.drop(key)


def _describe(x: Any, parts: list[Any], operands: list[Array]) -> bool:
    """Append what an argument adds to the key and to the operands; False for one that no key can hold.

    An array without axes may stand for a number that decides what the operation does.
    """
    kind = type(x)
    if kind in _PLAIN:
        parts += (kind, x)
    elif isinstance(x, Value):
        parts += (id(x._plan), x._domain, x._data.shape, device_of(x._data))
        operands.append(x._data)
    elif kind in _ARRAYS:
        if not x.ndim or x.dtype.hasobject:
            return False
        parts += (ndarray, x.dtype, x.shape, x.strides, device_of(x))
        operands.append(x)
    elif kind is RingPlan or kind is Basis:
        parts += (kind, id(x))
    elif kind in _PLANS:
        parts += (kind, x)
    elif isinstance(x, tuple):
        parts += (kind, len(x))
        for part in x:
            if not _describe(part, parts, operands):
                return False
    elif is_device_array(x):
        _ARRAYS.add(kind)
        return _describe(x, parts, operands)
    else:
        return False
    return True


def _plans_in(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the plans that a key names by their identity, which another one may have after them."""
    for x in arguments:
        if isinstance(x, Value):
            yield x._plan
        elif isinstance(x, (RingPlan, Basis)):
            yield x
        elif isinstance(x, tuple):
            yield from _plans_in(x)


@contextmanager
def _observing() -> Iterator[None]:
    token = _is_observed.set(True)
    try:
        yield
    finally:
        _is_observed.reset(token)


def _apart(compute: Memory, operands: Sequence[Array]) -> bool:
    """Whether no two operands share memory, but for those that are one object."""
    pairs = ((x, y) for i, x in enumerate(operands) for y in operands[:i] if x is not y)
    return not any(x.size and y.size and overlap(compute, x, y) for x, y in pairs)


def _moved_apart(x: Any, copies: dict[int, Array]) -> Any:
    """Return an argument with copies of its arrays, which are the same for the same array."""
    if isinstance(x, Value):
        return x._with(_moved_apart(x._data, copies))
    if isinstance(x, tuple):
        parts = [_moved_apart(part, copies) for part in x]
        return x._make(parts) if hasattr(x, "_make") else tuple(parts)
    if type(x) in _ARRAYS:
        return copies[id(x)] if id(x) in copies else copies.setdefault(id(x), copied(x))
    return x


def _observed(
    operation: Callable[..., Any], arguments: tuple[Any, ...], out: Array | None, operands: list[Array]
) -> tuple[Any, Record | None]:
    """Return what an operation returns, and the record where the call can be repeated.

    Of memory that operands share, a record could not tell whose it is: then the call works on copies, if it
    is not a part of another one that is observed.
    """
    if out is None and not _is_observed.get() and not _apart(backend_of(operands[0]), operands):
        copies: dict[int, Array] = {}
        arguments = tuple(_moved_apart(x, copies) for x in arguments)
        operands = [copies[id(x)] for x in operands]
    results = []

    def work() -> Array:
        made = operation(*arguments, out=out)
        results.append(made)
        data: Array = made._data if isinstance(made, Value) else made
        return data

    with _observing():
        _, found = backend_of(operands[0]).observe(work, operands, out)
    return results[0], found
