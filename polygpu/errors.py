"""The errors that polygpu defines: each message names the value, the rule and the way out.

Each is a PolyGPUError and also one of Python's errors: `except ValueError` catches a ParameterError too.
A key in brackets that asks for a limb or an index that is not there raises IndexError, as in NumPy.
"""

from __future__ import annotations


class PolyGPUError(Exception):
    """Base of all errors of polygpu.

    >>> import polygpu as pg
    >>> try:
    ...     pg.Ring(0, 17)
    ... except pg.PolyGPUError as error:
    ...     print(error)
    n: 0 must be at least 1, the degree of the ring, and at most 2**62
    """


class ParameterError(PolyGPUError, ValueError):
    """A parameter of a ring or a call is outside its rule, or shapes do not fit.

    >>> import polygpu as pg
    >>> pg.Ring(4, [6, 9])
    Traceback (most recent call last):
        ...
    polygpu.errors.ParameterError: moduli: 6 and 9 share the factor 3; they must be coprime
    """


class NotNTTFriendly(ParameterError):
    """The ring has no evaluation domain: a modulus has no root of unity of the needed order.

    Products of coefficients need none. polygpu.ntt_primes lists moduli that have one.

    >>> import polygpu as pg
    >>> pg.Ring(4, 2**32)([1, 2]).ntt()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotNTTFriendly: 4294967296 is not prime, so there is no evaluation domain; ...
    """


class BadRoot(ParameterError):
    """A root of unity of the wrong order, or one that was given for a ring which it does not serve.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17, root=3)
    Traceback (most recent call last):
        ...
    polygpu.errors.BadRoot: root: 3 has not the order 8 mod 17; root='minimal' finds one that does
    """


class PrecisionError(ParameterError):
    """product="fft" was asked for, and no transform in doubles is proven to give exact products.

    product="auto" multiplies every ring exactly.

    >>> import polygpu as pg
    >>> pg.Ring(2**50, 2**64, product="fft").zeros(0) ** 2  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.PrecisionError: n = 1125899906842624 with moduli of 64 bits: ...
    """


class DomainError(ParameterError):
    """A domain other than "coef" and "eval", or a value in the domain that a call does not take.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17).from_residues([[1, 2, 3, 4]], domain="ntt")
    Traceback (most recent call last):
        ...
    polygpu.errors.DomainError: domain: 'ntt' must be 'coef' or 'eval'
    """


class NotCanonical(ParameterError):
    """A residue outside [0, q), in an array whose values were looked at (see Ring.from_residues).

    >>> import polygpu as pg
    >>> with pg.debug():
    ...     pg.Ring(2, 17).from_residues([[16, 17]])
    Traceback (most recent call last):
        ...
    polygpu.errors.NotCanonical: data: 17 at (0, 1) is not a residue mod 17; ring(x) takes any integers
    """


class FileError(PolyGPUError, ValueError):
    """A file that polygpu.load does not take: it is cut, damaged, or none that polygpu.save wrote.

    >>> import tempfile
    >>> import polygpu as pg
    >>> with tempfile.NamedTemporaryFile() as file:  # empty
    ...     pg.load(file.name)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.FileError: ...: cut after 0 bytes; fetch the file again, or write it anew with ...
    """


class CoefficientError(PolyGPUError, TypeError):
    """Numbers other than integers where integers are needed: floats are not rounded.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([0.5])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.CoefficientError: x: 0.5 is of type float, and values must be ints. Nothing is ...
    """


class NotAnInteger(ParameterError, CoefficientError):
    """A single value that must be an int and is not one; it is a ValueError and a TypeError.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17).monomial(1.0)
    Traceback (most recent call last):
        ...
    polygpu.errors.NotAnInteger: k: 1.0 of type float must be an int; nothing is rounded or guessed
    """


class NotComplex(PolyGPUError, TypeError):
    """Something other than an array of floating-point numbers of the dtype that polygpu.fft needs.

    >>> import polygpu as pg
    >>> pg.fft.fft([1, 2])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotComplex: x: list, must be an array of complex64 or complex128; ...
    """


class RingMismatch(PolyGPUError, TypeError):
    """Operands of different rings, or an operand that is not a Poly; the message names the verb that helps.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([1]) + pg.Ring(4, [17, 97])([1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.RingMismatch: operands of different rings: ...; a.mod_up(b.ring) extends a to ...
    """


class OutputError(PolyGPUError, ValueError):
    """An `out` that cannot take the result: of another ring, shape or device, read-only, or overlapping.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 17)
    >>> R([1]).mul(R([2]), out=R.zeros(3))
    Traceback (most recent call last):
        ...
    polygpu.errors.OutputError: out: batch shape (3,), the result has ()
    """


class NotInvertible(PolyGPUError, ZeroDivisionError, ValueError):
    """A polynomial without an inverse in its ring, or one whose inverse no method here finds.

    >>> import polygpu as pg
    >>> pg.Ring(2, 17)([4, 1]).inverse()  # X^2 + 1 = (X + 4)(X - 4) modulo 17
    Traceback (most recent call last):
        ...
    polygpu.errors.NotInvertible: inverse: the value is 0 at evaluation index 1, q = 17
    """


class VerificationError(PolyGPUError, RuntimeError):
    """A product that a check inside `with polygpu.verify()` found to be wrong.

    The machine erred, or the library. The same call inside `with polygpu.device("reference")` multiplies from
    the definition and tells what is right.
    """


class DeviceError(PolyGPUError, RuntimeError):
    """A device that does not exist, operands on two devices, or a call that a device cannot do.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([1]).to("tpu")
    Traceback (most recent call last):
        ...
    polygpu.errors.DeviceError: device: 'tpu' must be 'cpu', 'cuda', 'cuda:1' ... or 'reference'
    """


class BackendUnavailable(DeviceError, ImportError):
    """A GPU that was asked for by name and does not answer; the message says why.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([1]).to("cuda:99")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.BackendUnavailable: device: 'cuda:99' does not answer: ...
    """


class TablesTooLarge(PolyGPUError, MemoryError):
    """Tables of a ring that do not fit in this machine's memory; nothing of them was made.

    >>> import polygpu as pg
    >>> pg.Ring(2**50, pg.ntt_primes(2**50, bits=62)).roots  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.TablesTooLarge: tables for n = 1125899906842624 and 1 moduli take ... GiB, ...
    """


class OutOfHostMemory(PolyGPUError, MemoryError):
    """A result or temporary array that does not fit in this machine's memory; smaller batches take less.

    >>> import polygpu as pg
    >>> pg.Ring(2**50, 17).zeros()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.OutOfHostMemory: an array of 4.19e+06 GiB is needed, ... are available; ...
    """


class OutOfDeviceMemory(PolyGPUError, MemoryError):
    """A result or temporary array that does not fit in a GPU's memory; operands are as they were.

    Smaller batches take less; `out=` spares the memory of a result.
    """
