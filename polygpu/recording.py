"""Recorded calls that take other arguments: capture(..., rebind=True)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any

import numpy as np

from .arrays import overlap
from .backends import Array, backend_of, is_device_array, same_device
from .errors import DeviceError, ParameterError, RingMismatch
from .poly import Poly


class Recording:
    """What f(*args) did, on these arguments or on others in their place."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._f, self._args, self._bound = f, args, args
        self._places = [i for i, x in enumerate(args) if isinstance(x, Poly)]
        first: Poly = args[self._places[0]]
        self._on_host = isinstance(first._data, np.ndarray)
        for i in self._places:
            self._check_device(i, args[i])
        if self._on_host:
            self._domains = [args[i]._domain for i in self._places]
            return
        found: list[Any] = []  # what the last run found: the domains before it and after it, its result
        polys = [args[i] for i in self._places]

        def run() -> None:
            found.clear()  # gives the memory of the run before back: no other can be made in a recording
            before = [p._domain for p in polys]
            result = f(*args)
            found[:] = before, [p._domain for p in polys], result

        self._replay = backend_of(first._data).capture(run, [p._data for p in polys])
        self._domains, after, self._result = found
        if after != self._domains:
            raise ParameterError("capture: f changes the domain of an argument; use out= of that domain")
        for x in _arrays(self._result, self._recorded()):
            for i in self._places:
                if overlap(backend_of(first._data), x, args[i]._data):
                    raise ParameterError(
                        f"capture: f returns a part of argument {i}; return the argument, or a copy"
                    )

    def __call__(self, *args: Any) -> Any:
        """The result for other arguments; without any, for those used last."""
        if args:
            self._check(args)
        else:
            args = self._bound
        if self._on_host:
            self._bound = args
            return self._f(*args)
        self._replay([args[i]._data for i in self._places])
        self._bound = args
        return _exchanged(self._result, self._recorded(), args)

    def _recorded(self) -> dict[int, int]:
        """The place of each Poly among the recorded arguments, by identity."""
        return {id(self._args[i]): i for i in self._places}

    def _check_device(self, i: int, x: Poly) -> None:
        first: Poly = self._args[self._places[0]]
        if not same_device(x._data, first._data):
            raise DeviceError(
                f"argument {i}: on {x.device}, recorded on {first.device}; poly.to({first.device!r}) moves it"
            )

    def _check(self, args: tuple[Any, ...]) -> None:
        """Raise where these cannot take the place of the recorded arguments."""
        if len(args) != len(self._args):
            raise ParameterError(f"{len(args)} arguments, recorded with {len(self._args)}; give all or none")
        for i, (new, old) in enumerate(zip(args, self._args, strict=True)):
            if not isinstance(old, Poly):
                if new is not old and not (
                    isinstance(old, (int, str)) and type(new) is type(old) and new == old
                ):
                    raise ParameterError(
                        f"argument {i}: only a Poly can be another than the recorded one; record again"
                    )
            elif not isinstance(new, Poly):
                raise ParameterError(f"argument {i}: {type(new).__name__}, recorded with a Poly")
            elif new._ring is not old._ring and new._ring != old._ring:
                raise RingMismatch(f"argument {i}: of {new._ring!r}, recorded with {old._ring!r}")
        for i, domain in zip(self._places, self._domains, strict=True):
            new, old = args[i], self._args[i]
            if new.shape != old.shape:
                raise ParameterError(f"argument {i}: batch shape {new.shape}, recorded with {old.shape}")
            if new._domain != domain:
                way = "intt" if domain == "coef" else "ntt"
                raise ParameterError(
                    f"argument {i}: domain {new._domain!r}, recorded with {domain!r}; use {way}() first"
                )
            self._check_device(i, new)
            if not self._on_host:
                for x in _arrays(self._result, self._recorded()):
                    if overlap(backend_of(x), x, new._data):
                        raise ParameterError(f"argument {i}: shares memory with the result; use poly.copy()")


def _arrays(result: Any, recorded: dict[int, int]) -> Iterator[Array]:
    """The arrays of a result, but for those of recorded arguments themselves."""
    if isinstance(result, Poly):
        if id(result) not in recorded:
            yield result._data
    elif is_device_array(result):
        yield result
    elif type(result) in (tuple, list, dict):
        for x in result.values() if isinstance(result, dict) else result:
            yield from _arrays(x, recorded)
    elif not isinstance(result, (Number, str, type(None))):
        raise ParameterError(
            f"capture: f returns a {type(result).__name__}; with rebind, return values and arrays, or "
            "tuples, lists and dicts of them"
        )


def _exchanged(result: Any, recorded: dict[int, int], args: tuple[Any, ...]) -> Any:
    """The result, with the arguments in use in the place of the recorded ones."""
    if isinstance(result, Poly):
        return args[recorded[id(result)]] if id(result) in recorded else result
    if type(result) in (tuple, list):
        return type(result)(_exchanged(x, recorded, args) for x in result)
    if type(result) is dict:
        return {key: _exchanged(x, recorded, args) for key, x in result.items()}
    return result
