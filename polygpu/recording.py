"""Recorded calls: what polygpu.capture returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from ._backends import Array, backend_of, is_device_array, same_device
from ._core.checks import Domain
from ._ops.arrays import overlap
from .errors import DeviceError, DomainError, ParameterError, RingMismatch
from .poly import Poly


class _Place(NamedTuple):
    """Takes the place of an argument in a recorded result."""

    number: int


class Recording:
    """A recorded call f(*args), to be repeated on these arguments or, with rebind, on others."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], rebind: bool) -> None:
        self._f, self._args, self._rebind = f, args, rebind
        self._places = [i for i, x in enumerate(args) if isinstance(x, Poly)]
        self._bound: tuple[tuple[Any, ...], list[Poly]] = args, [args[i] for i in self._places]  # used last
        self._on_host = isinstance(args[self._places[0]].data, np.ndarray)
        for i in self._places:
            self._check_device(i, args[i])
        self._domains = [args[i].domain for i in self._places]
        if not self._on_host:
            self._record()

    def _record(self) -> None:
        """Run f twice, the second time for the graph. The arguments keep their values.

        With rebind, f runs on copies of the arguments. So a value that f reaches under another name, such as
        a global, is not an argument, even where it was given as one too.
        """
        f, places, domains = self._f, self._places, self._domains
        used = _copies(self._args, places) if self._rebind else list(self._args)
        polys = [used[i] for i in places]
        before = [] if self._rebind else [p.copy().data for p in polys]
        found: list[Any] = []  # the last result
        first = iter([True])

        def run() -> None:
            found.clear()  # frees the first run's result: a recording reuses its memory, and gets no other
            try:
                found.append(f(*used))
                _check_kept(places, polys, domains)
            finally:
                for p, domain in zip(polys, domains, strict=True):
                    p._domain = domain
                if next(first, False):
                    for p, data in zip(polys, before, strict=False):
                        backend_of(data).copy(data, p.data)

        compute = backend_of(polys[0].data)
        arrays = {i: used[i].data for i in places} if self._rebind else None
        self._replay: Any = compute.capture(run, arrays)
        before.clear()
        result = found.pop()
        at = {id(used[i]): i for i in places}
        # The polynomials that each replay writes, with their domains.
        self._written = [(x, x.domain) for x in _leaves(result) if isinstance(x, Poly) and id(x) not in at]
        self._arrays: list[Array] = []
        if self._rebind:
            self._arrays = list(_arrays(result, at))
            for x in self._arrays:
                for i in places:
                    if overlap(compute, x, used[i].data):
                        raise ParameterError(
                            f"capture: f returns a part of argument {i}; return the argument, or a copy"
                        )
            result = _changed(result, lambda x: _Place(at[id(x)]) if id(x) in at else x)
            used.clear()  # so that nothing here keeps the copies alive once other arguments are bound
            polys.clear()
        self._result = result

    @property
    def nbytes(self) -> int:
        """Bytes of a GPU's memory that the recording holds: results, temporaries, copies of arguments."""
        return 0 if self._on_host else int(self._replay.nbytes)

    @property
    def launches(self) -> int:
        """How many kernels of this library the recording launches; 0 on the CPU."""
        return 0 if self._on_host else int(self._replay.launches)

    def __call__(self, *args: Any) -> Any:
        """The result for these arguments; without any, for the arguments used last."""
        if args:
            self._check(args)
            used = args, [args[i] for i in self._places]
        else:
            used = self._bound
        polys = used[1]
        if [x.domain for x in polys] != self._domains:
            self._refuse_domains(polys)
        if self._on_host:
            self._bound = used
            result = self._f(*used[0])
            _check_kept(self._places, polys, self._domains)
            return result
        if not self._rebind:
            self._replay()
            for x, domain in self._written:
                x._domain = domain
            return self._result
        self._replay([x.data for x in polys])
        self._bound = used
        for x, domain in self._written:
            x._domain = domain
        return _changed(self._result, lambda x: used[0][x.number] if type(x) is _Place else x)

    def _refuse_domains(self, polys: Sequence[Poly]) -> None:
        for i, x, domain in zip(self._places, polys, self._domains, strict=True):
            if x.domain != domain:
                way = "intt" if domain == "coef" else "ntt"
                raise DomainError(
                    f"argument {i}: domain {x.domain!r}, recorded with {domain!r}; use {way}(), or, where f "
                    "only writes it, any value of that domain"
                )

    def _check_device(self, i: int, x: Poly) -> None:
        at = self._places[0]
        first: Poly = self._args[at]
        if not same_device(x.data, first.data):
            recorded = "recorded" if self._args[i] is not x else f"argument {at} is"
            raise DeviceError(
                f"argument {i}: on {x.device}, {recorded} on {first.device}; "
                f"poly.to({first.device!r}) moves it"
            )

    def _check(self, args: tuple[Any, ...]) -> None:
        """Raise where these cannot replace the recorded arguments. Domains are not checked here."""
        if not self._rebind:
            raise ParameterError(
                f"{len(args)} arguments, recorded without rebind; capture(f, *args, rebind=True) takes others"
            )
        if len(args) != len(self._args):
            raise ParameterError(f"{len(args)} arguments, recorded with {len(self._args)}; give all or none")
        for i, (new, old, bound) in enumerate(zip(args, self._args, self._bound[0], strict=True)):
            if new is bound:
                continue
            if not isinstance(old, Poly):
                if not _as_recorded(new, old):
                    raise ParameterError(
                        f"argument {i}: a {type(new).__name__}, not as recorded; only a Poly can be another, "
                        "numbers, strings and tuples must be equal, all else the same object; record again"
                    )
                continue
            if not isinstance(new, Poly):
                raise ParameterError(f"argument {i}: {type(new).__name__}, recorded with a Poly")
            if new.ring != old.ring:
                raise RingMismatch(f"argument {i}: of {new.ring!r}, recorded with {old.ring!r}")
            if new.shape != old.shape:
                raise ParameterError(f"argument {i}: batch shape {new.shape}, recorded with {old.shape}")
            self._check_device(i, new)
            if not self._on_host:
                for x in self._arrays:
                    if overlap(backend_of(x), x, new.data):
                        raise ParameterError(f"argument {i}: shares memory with the result; use poly.copy()")


def _copies(args: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Copies of the arguments that are Polys, and the others as they are.

    Arguments that are one object, or that share one array, do so as copies too.
    """
    used, polys, arrays = list(args), dict[int, Poly](), dict[tuple[int, int], Array]()
    compute = backend_of(args[places[0]].data)
    for n, i in enumerate(places):
        x: Poly = args[i]
        if id(x) not in polys:
            where = compute.address(x.data), x.data.nbytes
            for j in places[:n]:
                y = args[j].data
                if where != (compute.address(y), y.nbytes) and overlap(compute, x.data, y):
                    raise ParameterError(
                        f"arguments {j} and {i} overlap in part; pass copies of them, poly.copy()"
                    )
            if where not in arrays:
                arrays[where] = x.copy().data
            polys[id(x)] = x._with(arrays[where].reshape(x.data.shape))
        used[i] = polys[id(x)]
    return used


def _check_kept(places: Sequence[int], polys: Sequence[Poly], domains: Sequence[Domain]) -> None:
    """Raise where f has left an argument in another domain."""
    for i, x, domain in zip(places, polys, domains, strict=True):
        if x.domain != domain:
            raise DomainError(
                f"capture: f changes the domain of argument {i} from {domain!r} to {x.domain!r}, and would "
                "find another at its next call; give one in the domain that f writes, or let f bring it back"
            )


def _as_recorded(new: Any, old: Any) -> bool:
    """Whether an argument that is no Poly fits the recorded one: it is the same, or equal and of its type."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if isinstance(old, tuple):
        return len(new) == len(old) and all(map(_as_recorded, new, old))
    if isinstance(old, (float, complex)):
        return repr(new) == repr(old)  # 0.0 == -0.0, but they are not the same
    return isinstance(old, (Number, str, bytes)) and bool(new == old)


def _leaves(result: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts: all that is none of these."""
    if isinstance(result, (tuple, list, dict)):
        for x in result.values() if isinstance(result, dict) else result:
            yield from _leaves(x)
    else:
        yield result


def _arrays(result: Any, at: dict[int, int]) -> Iterator[Array]:
    """The arrays of a result, without those of the arguments. at: the arguments' numbers by id()."""
    if isinstance(result, Poly):
        if id(result) not in at:
            yield result.data
    elif is_device_array(result):
        yield result
    elif type(result) in (tuple, list, dict):
        for x in result.values() if isinstance(result, dict) else result:
            yield from _arrays(x, at)
    elif not isinstance(result, (Number, str, type(None))):
        raise ParameterError(
            f"capture: f returns a {type(result).__name__}; with rebind, return values and arrays, or "
            "tuples, lists and dicts of them"
        )


def _changed(result: Any, change: Callable[[Any], Any]) -> Any:
    """The result with `change` applied to each leaf of tuples, lists and dicts."""
    if type(result) in (tuple, list):
        return type(result)([_changed(x, change) for x in result])
    if type(result) is dict:
        return {key: _changed(x, change) for key, x in result.items()}
    return change(result)
