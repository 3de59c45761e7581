"""Checks of single arguments, and the text of arguments in error messages."""

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
    """Return x as an int. Raise NotAnInteger if x is a bool or is not of an integer type."""
    if type(x) is int:
        return x
    try:
        if isinstance(x, bool) or type(x).__name__ == "bool":  # np.bool has that name too
            raise TypeError
        return operator.index(x)
    except TypeError:
        raise NotAnInteger(
            f"{name}={shown(x)} must be an int, not {type(x).__name__}. Nothing is rounded or guessed."
        ) from None


def exact_number(x: Any) -> Fraction | None:
    """Return the exact value of an int, float or Fraction, or None for NaN, infinities and other types."""
    from fractions import Fraction  # imported only here, because it imports decimal, which takes long
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
    """Return the text of a value for error messages.

    An int of more than 256 bits is shown by its first and last hexadecimal digits. So ints of any length can
    be shown, although Python refuses to print an int of more than 4300 decimal digits.

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
            f"n={shown(degree)} must be at least 1 and at most 2**62. It is the degree of the ring."
        )
    return degree


def sequence(x: Any) -> tuple[Any, ...]:
    """Return the entries of a list or array as a tuple.

    A single value, a 0-d array or a text becomes a tuple with one entry.
    """
    single = isinstance(x, (str, bytes)) or not isinstance(x, Iterable) or getattr(x, "ndim", 1) == 0
    return (x,) if single else tuple(x)


def checked_moduli(moduli: object) -> tuple[int, ...]:
    """Return the moduli of a ring as ints; raise ParameterError if they break the rules of Ring."""
    values = tuple(integer(q, "moduli") for q in sequence(moduli))
    if not values:
        raise ParameterError("moduli is empty. Give at least one modulus.")
    product = 1
    for q in values:
        if q < 2:
            raise ParameterError(f"moduli contains {shown(q)}. Every modulus must be at least 2.")
        if len(values) > 1 and q > 1 << 64:
            raise ParameterError(
                f"moduli contains {shown(q)}. A modulus above 2**64 must be the only one. Pass the product "
                "of all moduli as one modulus."
            )
        if gcd(q, product) > 1:
            other = next(p for p in values if gcd(p, q) > 1)
            raise ParameterError(
                f"The moduli {other} and {q} share the factor {gcd(other, q)}. All moduli must be coprime."
            )
        product *= q
    return values


def checked_limbs(key: Any, count: int) -> tuple[int, ...]:
    """Return the indices of the limbs that ring[key] chooses, for a ring of `count` limbs.

    Raises:
        ParameterError: the key is not a slice or list, or it chooses no limb, or it chooses a limb twice.
        IndexError: the key has an index of a limb that does not exist.
    """
    if isinstance(key, slice):
        chosen = tuple(range(count)[key])
    elif isinstance(key, (str, bytes, Set)) or not isinstance(key, Iterable) or getattr(key, "ndim", 1) == 0:
        raise ParameterError(
            f"limbs={shown(key)} must be a slice or a list of limbs, as in ring[:1] or ring[[0]]."
        )
    else:
        chosen = tuple(integer(i, "limbs") for i in key)
        for i in chosen:
            if not -count <= i < count:
                raise IndexError(
                    f"limbs contains {shown(i)}, which must be in [{-count}, {count}). The number of limbs "
                    f"of the ring is {count}."
                )
        chosen = tuple(i % count for i in chosen)
        if len(set(chosen)) < len(chosen):
            raise ParameterError(
                f"limbs chooses {list(chosen)}, which has a limb twice. Choose each limb once, because the "
                "moduli of a ring must be coprime."
            )
    if not chosen:
        raise ParameterError(
            f"limbs chooses none of the {count} limbs of the ring. Choose at least one limb, because a ring "
            "needs a modulus."
        )
    return chosen


def checked_batch(batch: object) -> tuple[int, ...]:
    """Return a batch shape (an int or several) as a tuple; raise ParameterError for negative sizes."""
    shape = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    sizes = tuple(integer(size, "batch") for size in shape)
    if any(size < 0 for size in sizes):
        raise ParameterError(f"batch={shown(batch)} must not have negative sizes.")
    return sizes


def check_product(product: object) -> None:
    """Raise ParameterError if product is not "auto", "fft" or "ntt"."""
    if not isinstance(product, str) or product not in _PRODUCTS:
        raise ParameterError(f"product={shown(product)} must be one of {', '.join(map(repr, _PRODUCTS))}.")


# ---- checks of values, which are off by default ----

_debug: ContextVar[bool] = ContextVar("polygpu_debug", default=False)


@contextmanager
def debug() -> Iterator[None]:
    """Check inside a `with` that residues given to Ring.from_residues are canonical, 0 <= x < q.

    The data of Poly(ring, data, domain) are checked too. Outside the `with`, from_residues does not check an
    array of the ring's dtype, unless it is called with check=True. Each thread has its own setting.

    Raises:
        NotCanonical: a residue is outside [0, q). The message says which residue.

    Cost: one pass over the residues. Residues on a GPU are copied to the host first.

    >>> import polygpu as pg
    >>> with pg.debug():
    ...     pg.Ring(2, 17).from_residues([[16, 17]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotCanonical: data has 17 at (0, 1), which is not a residue modulo 17. ...
    """
    token = _debug.set(True)
    try:
        yield
    finally:
        _debug.reset(token)


def debugging() -> bool:
    """Return whether the call is inside `with debug()`."""
    return _debug.get()


# True inside a `with` that records calls, reports progress or chooses a device. A repeated call looks at
# these settings one by one only if this variable is True.
unusual: ContextVar[bool] = ContextVar("polygpu_unusual", default=False)

_verify: ContextVar[bool] = ContextVar("polygpu_verify", default=False)


@contextmanager
def verify() -> Iterator[None]:
    """Check every product of polynomials or matrices that is computed inside a `with`, on any device.

    The checks cover a * b, powers, fma, matmul, dot, einsum, inverses, and linalg.matmul. Each thread has its
    own setting. The checks do not work inside polygpu.capture, because they copy values to the host.

    - If the operands are in coefficients, every modulus is a prime of at least 4 * n (n is the degree), and
      the ring is not trinomial, the value of the product at random points is compared with the value that
      follows from the operands. A wrong product passes with probability at most 2^-40.
    - Otherwise, a product of polynomials is computed a second time by another method.
    - Products of matrices are multiplied by random vectors (Freivalds 1977). A wrong product passes with
      probability at most 2^-40, too.

    Raises:
        VerificationError: a result is wrong. The call that computed the result raises it.

    Cost: a check at random points takes about 8 ns on the host for each coefficient, limb and point. Values
    on a GPU are copied to the host first. At n = 4096 there is 1 point for moduli of 60 bits, and there
    are 3 points for moduli of 30 bits. There are never more than 20 points. A second computation takes 5 to
    50 times as long as the product. For large matrices, the products with vectors take less time than the
    product itself.
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


verifying = _verify.get  # returns whether products are checked; False while a check computes its own products


@contextmanager
def unverified() -> Iterator[None]:
    """Turn verify() off inside a `with`, so that a check can compute products that are not checked."""
    token = _verify.set(False)
    try:
        yield
    finally:
        _verify.reset(token)
