"""Checks of single arguments, and how messages show them."""

from __future__ import annotations

import operator
from typing import Any, Literal, get_args

from .errors import NotAnInteger, ParameterError

Kind = Literal["negacyclic", "cyclic"]
Product = Literal["auto", "fft", "ntt"]

MAX_DEGREE = 1 << 62  # so that indices and sizes in bytes are machine integers


def integer(x: Any, name: str) -> int:
    """Return x as an int; bools and anything inexact raise NotAnInteger."""
    if type(x) is int:
        return x
    try:
        if isinstance(x, bool) or type(x).__name__ == "bool":  # np.bool has that name too
            raise TypeError
        return operator.index(x)
    except TypeError:
        raise NotAnInteger(
            f"{name}: {shown(x)} of type {type(x).__name__} must be an int; nothing is rounded or guessed"
        ) from None


def shown(x: object) -> str:
    """A value for messages. A long int is given by its ends, which also passes Python's limit on digits."""
    if isinstance(x, (list, tuple)):
        text = ", ".join(map(shown, x[:8])) + ", ..." * (len(x) > 8)
        return f"[{text}]" if isinstance(x, list) else f"({text}{',' * (len(x) == 1)})"
    if type(x) is not int or x.bit_length() <= 256:
        try:
            return repr(x)
        except ValueError:  # of long ints within
            return type(x).__name__
    digits = f"{x:x}"
    return f"{'-' * (x < 0)}0x{digits.lstrip('-')[:8]}...{digits[-8:]} ({x.bit_length()} bits)"


def checked_degree(n: object) -> int:
    """Return n as an int of at least 1; raise ParameterError otherwise."""
    degree = integer(n, "n")
    if not 1 <= degree <= MAX_DEGREE:
        raise ParameterError(
            f"n: {shown(degree)} must be at least 1, the degree of X^n ± 1, and at most 2**62"
        )
    return degree


def check_kind(kind: object) -> None:
    """Raise unless kind is one of the two."""
    if kind not in ("negacyclic", "cyclic"):
        raise ParameterError(f"kind: {kind!r} must be 'negacyclic' (mod X^n + 1) or 'cyclic' (mod X^n - 1)")


def check_product(product: object) -> None:
    """Raise ParameterError unless it is a way to multiply."""
    ways = get_args(Product)
    if not isinstance(product, str) or product not in ways:
        raise ParameterError(f"product: {shown(product)} must be one of {', '.join(map(repr, ways))}")
