"""Repeated calls: what a call did is recorded once, and replayed for operands of the same shapes.

A record is found by a key. The key holds the operation, plans, domains, shapes and options: everything that
decides what the call does, except the contents of arrays. Constants, such as the residues of an int, are
arrays too. So a call with another constant is replayed from the same record.
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

_calls = Calls()  # records of calls that neither a ring nor a basis keeps
# Whether a call is being recorded.
_is_observed: ContextVar[bool] = ContextVar("polygpu_is_observed", default=False)
_PLANS: set[type] = set()  # classes registered by is_plan
_PLAIN = frozenset((int, str, bool, type(None)))  # types of options that a key holds by value
_ARRAYS: set[type] = {ndarray}  # types of arrays that have been operands


class _Entry(NamedTuple):
    """A recorded call: the function that replays it, and what its result is."""

    replay: Replay
    # The plan of the result. None: it is the plan of the first value. An int i: it is argument i.
    plan: Any
    domain: Domain | None  # the result's domain; None if the result is an array
    watched: list[Any]  # weak references to plans; the entry is dropped when one of them is gone


def is_plan(kind: type[_Kind]) -> type[_Kind]:
    """Register a class of plans. Its objects can then be part of the keys of calls.

    The objects must be frozen and compared by identity.
    """
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
    """Call `work` and return its result. Record the call under `key` if it can be repeated.

    If `calls` has a record with this key already, the old record stays. The key must tell which operands are
    the same object, and which operand is `out`.
    """
    if key in calls or not _apart(compute, operands):
        return work()
    with _observing():
        made, found = compute.observe(work, operands, out)
    if found is not None:
        calls.store(key, found.replay, found.nbytes)
    return made


def device_of(x: Array) -> int | None:
    """Return the index of the GPU whose memory x is in, or None if x is in host memory."""
    return None if type(x) is np.ndarray else x.data.device_id  # type: ignore[attr-defined]


def repeated(operation: _Operation) -> _Operation:
    """Wrap an operation. The first call with a key is recorded, and later calls with an equal key replay it.

    The key of a call holds the operation and its arguments, without the contents of arrays.

    A call is recorded only if each argument is a value, array, plan, basis, option (int, str, bool, None), or
    a tuple of such arguments. The ring of the first value keeps the record. If no argument is a value, the
    first argument keeps the record if it is a basis. Otherwise this module keeps the record.

    A result in the ring of the first value has the class of the first value. Pass the array for the result as
    `out=`.
    """

    @wraps(operation)
    def call(*arguments: Any, out: Array | None = None) -> Any:
        parts: list[Any] = [operation]
        operands: list[Array] = []
        first: Any = None
        known = True
        for x in arguments:  # the frequent cases of _describe(), inline to save the time of a call
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
    """Return the entry to store for a call. The entry is dropped when a plan in `arguments` is freed."""
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
    """Append the key of the argument x to `parts`, and the arrays of x to `operands`.

    Return False if x cannot be part of a key. An array without axes cannot, because the operation may depend
    on its value.
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
    """Yield the plans whose id() is part of a call's key.

    When one of these plans is freed, the entry of the key must be dropped: a new plan may get the same id().
    """
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
    """Return whether no two operands share memory, except operands that are the same object."""
    pairs = ((x, y) for i, x in enumerate(operands) for y in operands[:i] if x is not y)
    return not any(x.size and y.size and overlap(compute, x, y) for x, y in pairs)


def _moved_apart(x: Any, copies: dict[int, Array]) -> Any:
    """Return the argument x with its arrays copied. copies: the copy of each array, by the array's id()."""
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
    """Return the result of an operation, and the record of the call.

    The record is None if the call cannot be repeated.

    If different operands share memory, a record cannot tell to which operand an address belongs. In this
    case, the operation works on copies of the operands, unless `out` is given or an outer call is being
    recorded.
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
