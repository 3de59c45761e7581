"""Checks of single arguments, and how messages show them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import NotAnInteger, ParameterError

if TYPE_CHECKING:
    from fractions import Fraction

Domain = Literal["coef", "eval"]
Product = Literal["auto", "fft", "ntt"]

_PRODUCTS = get_args(Product)

MAX_DEGREE = 1 << 62  # so that indices, and the order 2n of a root, are machine integers


def integer(x: Any, name: str) -> int:
    """Return x as an int. Bools, floats and everything else that is not an integer raise NotAnInteger."""
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


def exact_number(x: Any) -> Fraction | None:
    """Return the rational that an int, a float or a Fraction is; None for all else, NaN and infinities."""
    from fractions import Fraction  # here, so that importing polygpu stays fast: it imports decimal
    from numbers import Rational

    if isinstance(x, bool) or type(x).__name__ == "bool":
        return None
    try:
        if isinstance(x, Rational):
            return Fraction(int(x.numerator), int(x.denominator))
        if isinstance(x, float) or type(x).__name__ in ("float16", "float32"):
            return Fraction(float(x)) if math.isfinite(x) else None
        return Fraction(integer(x, "x"))
    except NotAnInteger:
        return None


def shown(x: object) -> str:
    """Return the text of a value for messages.

    An int of more than 256 bits is shown by its first and last hexadecimal digits.
    Python refuses to print an int of more than 4300 decimal digits; this shows an int of any length.

    >>> shown(2**300), shown([1, "x"])
    ('0x10000000...00000000 (301 bits)', "[1, 'x']")
    """
    if isinstance(x, (list, tuple)):
        text = ", ".join(map(shown, x[:8])) + ", ..." * (len(x) > 8)
        return f"[{text}]" if isinstance(x, list) else f"({text}{',' * (len(x) == 1)})"
    if type(x) is not int or x.bit_length() <= 256:
        try:
            return repr(x)
        except ValueError:  # x contains ints of too many digits
            return type(x).__name__
    digits = f"{x:x}"
    return f"{'-' * (x < 0)}0x{digits.lstrip('-')[:8]}...{digits[-8:]} ({x.bit_length()} bits)"


def checked_degree(n: object) -> int:
    """Return n as an int from 1 to MAX_DEGREE; raise ParameterError otherwise."""
    degree = integer(n, "n")
    if not 1 <= degree <= MAX_DEGREE:
        raise ParameterError(
            f"n: {shown(degree)} must be at least 1, the degree of the ring, and at most 2**62"
        )
    return degree


def sequence(x: Any) -> tuple[Any, ...]:
    """Return the entries of a list or array as a tuple.

    A single value, a 0-d array or a text becomes a tuple of one.
    """
    single = isinstance(x, (str, bytes)) or not isinstance(x, Iterable) or getattr(x, "ndim", 1) == 0
    return (x,) if single else tuple(x)


def checked_moduli(moduli: object) -> tuple[int, ...]:
    """Return the moduli of a ring as ints; raise ParameterError where they break Ring's rules."""
    values = tuple(integer(q, "moduli") for q in sequence(moduli))
    if not values:
        raise ParameterError("moduli: an empty list; give at least one modulus")
    product = 1
    for q in values:
        if q < 2:
            raise ParameterError(f"moduli: {shown(q)} must be at least 2")
        if len(values) > 1 and q > 1 << 64:
            raise ParameterError(
                f"moduli: {shown(q)} is above 2**64 and must stand alone; pass the product as one modulus"
            )
        if gcd(q, product) > 1:
            other = next(p for p in values if gcd(p, q) > 1)
            raise ParameterError(
                f"moduli: {other} and {q} share the factor {gcd(other, q)}; they must be coprime"
            )
        product *= q
    return values


def checked_limbs(key: Any, count: int) -> tuple[int, ...]:
    """Return the indices of the limbs that ring[key] chooses, for a ring of `count` limbs.

    Raises:
        ParameterError: the key is not a slice or list, or it chooses no limb, or one twice.
        IndexError: there is no such limb.
    """
    if isinstance(key, slice):
        chosen = tuple(range(count)[key])
    elif isinstance(key, (str, bytes, Set)) or not isinstance(key, Iterable) or getattr(key, "ndim", 1) == 0:
        raise ParameterError(f"limbs: {shown(key)} must be a slice or a list of limbs: ring[:1], ring[[0]]")
    else:
        chosen = tuple(integer(i, "limbs") for i in key)
        for i in chosen:
            if not -count <= i < count:
                raise IndexError(f"limbs: {shown(i)} must be in [{-count}, {count}), there are {count}")
        chosen = tuple(i % count for i in chosen)
        if len(set(chosen)) < len(chosen):
            raise ParameterError(f"limbs: {list(chosen)} has a limb twice; moduli must be coprime")
    if not chosen:
        raise ParameterError(f"limbs: none of {count} chosen; a ring has at least one")
    return chosen


def checked_batch(batch: object) -> tuple[int, ...]:
    """Return a batch shape (an int or several) as a tuple; raise ParameterError for negative sizes."""
    shape = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    sizes = tuple(integer(size, "batch") for size in shape)
    if any(size < 0 for size in sizes):
        raise ParameterError(f"batch: {shown(batch)} must not have negative sizes")
    return sizes


def check_product(product: object) -> None:
    """Raise ParameterError unless product is "auto", "fft" or "ntt"."""
    if not isinstance(product, str) or product not in _PRODUCTS:
        raise ParameterError(f"product: {shown(product)} must be one of {', '.join(map(repr, _PRODUCTS))}")


# ---- checks that are made only when asked for ----

_debug: ContextVar[bool] = ContextVar("polygpu_debug", default=False)


@contextmanager
def debug() -> Iterator[None]:
    """Check inside a `with` that residues given to Ring.from_residues are canonical, 0 <= x < q.

    Without it an array of the ring's dtype is taken as it is, unless the call says check=True.
    Poly(ring, data, domain) is checked too. Each thread has its own setting.

    Raises:
        NotCanonical: a residue is outside [0, q); the message says which.

    Cost: one pass over the residues; from a GPU they are copied to the host first.

    >>> import polygpu as pg
    >>> with pg.debug():
    ...     pg.Ring(2, 17).from_residues([[16, 17]])
    Traceback (most recent call last):
        ...
    polygpu.errors.NotCanonical: data: 17 at (0, 1) is not a residue mod 17; ring(x) takes any integers
    """
    token = _debug.set(True)
    try:
        yield
    finally:
        _debug.reset(token)


def debugging() -> bool:
    """Whether the call is inside `with debug()`."""
    return _debug.get()


# Whether this context does something else than to compute by itself on the usual device: it records a call,
# reports progress, or has chosen a device. Calls that are repeated look closer only then.
unusual: ContextVar[bool] = ContextVar("polygpu_unusual", default=False)

_verify: ContextVar[bool] = ContextVar("polygpu_verify", default=False)


@contextmanager
def verify() -> Iterator[None]:
    """Check every product that is made inside a `with`, of polynomials and of matrices, on every device.

    Covers a * b, powers, fma, matmul, dot, einsum, inverses, and linalg.matmul. Each thread has its own
    setting. It does not work inside polygpu.capture, because values are read back.

    - Products of coefficients modulo primes q >= 4 n are compared with their operands at random points. Their
      number is chosen so that a wrong product passes with probability 2^-40 at most.
    - Where q is smaller or composite, and for evaluated operands, the product is computed a second time, in
      another way.
    - Products of matrices are multiplied with random vectors (Freivalds 1977), with the same bound.

    Raises:
        VerificationError: a result is wrong; inside the `with`, by the call that computed it.

    Cost: at random points about 8 ns a coefficient, limb and point on the host (at n = 4096 1 point for 60
    bits, 3 for 30 bits; at most 20), and the copy from a GPU. The second computation takes 5 to 50 times as
    long as the product. The products with vectors take less time than that of large matrices.
    Source: docs/math.md, "Checked products".

    >>> import polygpu as pg
    >>> R = pg.Ring(4096, pg.ntt_primes(4096, bits=50, count=2))
    >>> a = R.random(seed=1)
    >>> with pg.verify():
    ...     b = a * a
    """
    token = _verify.set(True)
    try:
        yield
    finally:
        _verify.reset(token)


verifying = _verify.get  # whether results are checked: inside `with verify()`, and not inside a check itself


@contextmanager
def unverified() -> Iterator[None]:
    """Turn verify() off inside a `with`: for the products that a check itself computes."""
    token = _verify.set(False)
    try:
        yield
    finally:
        _verify.reset(token)
