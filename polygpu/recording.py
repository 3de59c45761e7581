"""Recordings, the functions that polygpu.capture returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from numbers import Number
from typing import Any

import numpy as np

from ._backends import Array, backend_of, same_device
from ._core.checks import Domain
from ._ops.arrays import overlap
from .errors import DeviceError, DomainError, OutputError, ParameterError, RingMismatch
from .poly import Poly


class Recording:
    """A recorded call f(*args), which can be repeated on its arguments or on values copied into them."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._f, self._args = f, args
        self._places = [i for i, x in enumerate(args) if isinstance(x, Poly)]
        self._polys: list[Poly] = [args[i] for i in self._places]
        self._on_host = isinstance(self._polys[0].data, np.ndarray)
        for i in self._places:
            self._check_device(i, args[i])
        self._domains = [x.domain for x in self._polys]
        self._sharing = list(self._shared_pairs())
        if not self._on_host:
            self._record()

    def _record(self) -> None:
        """Run f twice, restore the arguments after the first run, and record the second run as a graph."""
        before = [p.copy().data for p in self._polys]
        found: list[Any] = []  # the result of the last run of f
        first = iter([True])

        def run() -> None:
            # Free the result of the first run. The second run needs this memory for its own result, because f
            # cannot allocate new memory while it is recorded.
            found.clear()
            try:
                found.append(self._f(*self._args))
                _check_kept(self._places, self._polys, self._domains)
            finally:
                for p, domain in zip(self._polys, self._domains, strict=True):
                    p._domain = domain
                if next(first, False):
                    for p, data in zip(self._polys, before, strict=True):
                        backend_of(data).copy(data, p.data)

        self._replay: Any = backend_of(self._polys[0].data).capture(run)
        before.clear()
        self._result = found.pop()
        own = set(map(id, self._polys))
        # Keep each Poly of the result that is not an argument, with its domain after a replay.
        self._written = [
            (x, x.domain) for x in _leaves(self._result) if isinstance(x, Poly) and id(x) not in own
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory that the recording holds, for results and temporaries; 0 on the CPU."""
        return 0 if self._on_host else int(self._replay.nbytes)

    @property
    def launches(self) -> int:
        """Number of polygpu's kernels that the recording launches; 0 on the CPU."""
        return 0 if self._on_host else int(self._replay.launches)

    def __call__(self, *values: Any) -> Any:
        """Repeat the call. If values are given, copy them into the recorded arguments first."""
        if values:
            self._check(values)
            self._write([values[i] for i in self._places])
        else:
            self._check_domains(self._polys)
        if self._on_host:
            result = self._f(*self._args)
            _check_kept(self._places, self._polys, self._domains)
            return result
        self._replay()
        for x, domain in self._written:
            x._domain = domain
        return self._result

    def _write(self, values: Sequence[Poly]) -> None:
        """Copy `values` into the arguments. Before that, copy each value that overlaps an argument."""
        compute = backend_of(self._polys[0].data)

        def read(x: Poly) -> Array:
            shares = any(overlap(compute, x.data, own.data) for own in self._polys)
            return x.copy().data if shares else x.data

        moved = [
            (read(x), own.data) for x, own in zip(values, self._polys, strict=True) if x.data is not own.data
        ]
        for data, place in moved:
            compute.copy(data, place)
        for own, domain in zip(self._polys, self._domains, strict=True):
            own._domain = domain

    def _check(self, values: tuple[Any, ...]) -> None:
        """Raise an error if `values` cannot replace the recorded arguments."""
        if len(values) != len(self._args):
            raise ParameterError(
                f"The call was recorded with {len(self._args)} arguments, but {len(values)} were given. "
                "Give as many arguments as were recorded, or none."
            )
        for i, (new, own) in enumerate(zip(values, self._args, strict=True)):
            if not isinstance(own, Poly):
                if not _as_recorded(new, own):
                    raise ParameterError(
                        f"Argument {i} is a {type(new).__name__} other than the recorded one. Only a Poly "
                        "may be replaced. Numbers, strings and tuples must be equal, and anything else must "
                        "be the same object. Use capture again for other arguments."
                    )
                continue
            if not isinstance(new, Poly):
                raise ParameterError(
                    f"Argument {i} must be a Poly, as it was recorded, not {type(new).__name__}."
                )
            if new.ring != own.ring:
                raise RingMismatch(
                    f"Argument {i} is of {new.ring!r}, but it was recorded with {own.ring!r}. Give a value "
                    "of that ring, or use capture again."
                )
            if self._on_host and not own.data.flags.writeable and new is not own:
                raise OutputError(
                    f"Argument {i} was recorded with a read-only value, which cannot be overwritten. Use "
                    "capture again, with poly.copy() for this argument."
                )
            if new.shape != own.shape:
                raise ParameterError(
                    f"Argument {i} has batch shape {new.shape}, but it was recorded with {own.shape}. Give a "
                    "value of that shape, or use capture again."
                )
            self._check_device(i, new)
        polys = [values[i] for i in self._places]
        self._check_domains(polys)
        for m, n, are_same in self._sharing:
            if not (are_same and polys[m].data is polys[n].data):
                raise ParameterError(
                    f"Arguments {self._places[m]} and {self._places[n]} shared memory when they were "
                    "recorded, so two different values cannot be written there. If both arguments were the "
                    "same Poly, give one Poly for both. Otherwise use capture again with copies of the two "
                    "arguments."
                )

    def _shared_pairs(self) -> Iterator[tuple[int, int, bool]]:
        """Yield (m, n, begin_together) for all m < n for which _polys[m] and _polys[n] share memory.

        begin_together: whether the arrays of both begin at the same address.
        """
        compute = backend_of(self._polys[0].data)
        for (m, x), (n, y) in combinations(enumerate(p.data for p in self._polys), 2):
            if overlap(compute, x, y):
                yield m, n, compute.address(x) == compute.address(y)

    def _check_domains(self, polys: Sequence[Poly]) -> None:
        for i, x, domain in zip(self._places, polys, self._domains, strict=True):
            if x.domain != domain:
                way = "intt" if domain == "coef" else "ntt"
                raise DomainError(
                    f"Argument {i} is in domain {x.domain!r}, but it was recorded in {domain!r}. Use "
                    f"{way}() to change the domain. If f only writes this argument, give any value in "
                    f"domain {domain!r}."
                )

    def _check_device(self, i: int, x: Poly) -> None:
        at, first = self._places[0], self._polys[0]
        if not same_device(x.data, first.data):
            recorded = "it was recorded" if self._args[i] is not x else f"argument {at} is"
            raise DeviceError(
                f"Argument {i} is on {x.device}, but {recorded} on {first.device}. Use "
                f"poly.to({first.device!r}) to copy argument {i} there."
            )


def _check_kept(places: Sequence[int], polys: Sequence[Poly], domains: Sequence[Domain]) -> None:
    """Raise DomainError if f changed the domain of an argument. domains[i]: domain of polys[i] before f.

    places[i]: position of polys[i] among the arguments of f.
    """
    for i, x, domain in zip(places, polys, domains, strict=True):
        if x.domain != domain:
            raise DomainError(
                f"f must not change the domain of its arguments for capture, but it changes argument {i} "
                f"from {domain!r} to {x.domain!r}. Give capture a value in domain {x.domain!r}, or let f "
                "change the domain back."
            )


def _as_recorded(new: Any, own: Any) -> bool:
    """Return whether `new` is `own`, or has the type of `own` and is equal to it. `own` is not a Poly."""
    if new is own:
        return True
    if type(new) is not type(own):
        return False
    if isinstance(own, tuple):
        return len(new) == len(own) and all(map(_as_recorded, new, own))
    if isinstance(own, (float, complex)):
        return repr(new) == repr(own)  # repr distinguishes 0.0 from -0.0, == does not
    return isinstance(own, (Number, str, bytes)) and bool(new == own)


def _leaves(result: Any) -> Iterator[Any]:
    """Yield all objects inside nested tuples, lists and dicts, but not these containers themselves."""
    if isinstance(result, (tuple, list, dict)):
        for x in result.values() if isinstance(result, dict) else result:
            yield from _leaves(x)
    else:
        yield result
