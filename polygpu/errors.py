"""The errors that polygpu defines. Each message names a wrong value, the rule broken, and a remedy.

Each error is a PolyGPUError and also one of Python's errors, so `except ValueError` catches a ParameterError
too. If an index in brackets is out of range, as in ring[[i]] or poly[i], IndexError is raised, as in NumPy.
"""

from __future__ import annotations


class PolyGPUError(Exception):
    """Base of all errors of polygpu.

    >>> import polygpu as pg
    >>> try:
    ...     pg.Ring(0, 17)
    ... except pg.PolyGPUError as error:
    ...     print(error)
    n=0 must be at least 1 and at most 2**62. It is the degree of the ring.
    """


class ParameterError(PolyGPUError, ValueError):
    """A parameter of a ring or of a call has a value that is not allowed, or shapes do not fit.

    >>> import polygpu as pg
    >>> pg.Ring(4, [6, 9])
    Traceback (most recent call last):
        ...
    polygpu.errors.ParameterError: The moduli 6 and 9 share the factor 3. All moduli must be coprime.
    """


class NotNTTFriendly(ParameterError):
    """The ring has no evaluation domain: a modulus has no root of unity of the needed order.

    Products in coefficients work in every ring. polygpu.ntt_primes lists moduli that have such roots.

    >>> import polygpu as pg
    >>> pg.Ring(4, 2**32)([1, 2]).ntt()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotNTTFriendly: q=4294967296 is not prime, so the ring has no evaluation domain. ...
    """


class BadRoot(ParameterError):
    """A given root of unity has the wrong order, or an operation needs roots that its operands do not have.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17, root=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.BadRoot: root=3 does not have order 8 modulo 17. Use root='minimal' to ...
    """


class PrecisionError(ParameterError):
    """A product was requested with product="fft", but no FFT in doubles is proven to give the exact result.

    product="auto" works in every ring, and its results are exact. lattice.prepare with precision="double"
    raises this error too, if NumPy has no extended precision on this machine.

    >>> import polygpu as pg
    >>> pg.Ring(2**50, 2**64, product="fft").zeros(0) ** 2  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.PrecisionError: A product by FFT for n=1125899906842624 and ...
    """


class DomainError(ParameterError):
    """A domain is neither "coef" nor "eval", or a value is in the wrong domain for a call.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17).from_residues([[1, 2, 3, 4]], domain="ntt")
    Traceback (most recent call last):
        ...
    polygpu.errors.DomainError: domain='ntt' must be 'coef' or 'eval'.
    """


class NotCanonical(ParameterError):
    """A residue is outside [0, q). Ring.from_residues says when residues are checked.

    >>> import polygpu as pg
    >>> with pg.debug():
    ...     pg.Ring(2, 17).from_residues([[16, 17]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotCanonical: data has 17 at (0, 1), which is not a residue modulo 17. ...
    """


class FileError(PolyGPUError, ValueError):
    """polygpu.load cannot read a file: it is truncated or damaged, or polygpu.save did not write it.

    >>> import tempfile
    >>> import polygpu as pg
    >>> with tempfile.NamedTemporaryFile() as file:  # empty
    ...     pg.load(file.name)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.FileError: ...: it is cut after 0 bytes. Fetch the file again, or write it ...
    """


class CoefficientError(PolyGPUError, TypeError):
    """Something other than integers is given where integers are needed. Floats are not rounded.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([0.5])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.CoefficientError: The entry 0.5 of x is of type float, and values must be ints. ...
    """


class NotAnInteger(ParameterError, CoefficientError):
    """An argument must be an int, but it has another type. This error is a ValueError and a TypeError.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17).monomial(1.0)
    Traceback (most recent call last):
        ...
    polygpu.errors.NotAnInteger: k=1.0 must be an int, not float. Nothing is rounded or guessed.
    """


class NotComplex(PolyGPUError, TypeError):
    """An argument of a function of polygpu.fft is not an array of a floating-point dtype that it accepts.

    >>> import polygpu as pg
    >>> pg.fft.fft([1, 2])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotComplex: x must be an array of complex64 or complex128, not list. ...
    """


class RingMismatch(PolyGPUError, TypeError):
    """Operands are in different rings, or one is not a Poly. The message says how to convert an operand.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([1]) + pg.Ring(4, [17, 97])([1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.RingMismatch: The operands are in different rings: ... Use a.mod_up(b.ring) to extend a ...
    """


class OutputError(PolyGPUError, ValueError):
    """The argument `out` cannot hold the result of a call.

    `out` has another ring, batch shape or device than the result, is read-only, or shares only a part of its
    memory with an operand.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 17)
    >>> R([1]).mul(R([2]), out=R.zeros(3))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.OutputError: out has batch shape (3,) and the result has (). ...
    """


class NotInvertible(PolyGPUError, ZeroDivisionError, ValueError):
    """A polynomial has no inverse in its ring, or polygpu has no method to find the inverse.

    >>> import polygpu as pg
    >>> a = pg.Ring(2, 17)([4, 1])  # X^2 + 1 = (X + 4)(X - 4) modulo 17
    >>> a.inverse()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.NotInvertible: The value has no inverse: it is 0 modulo 17 at evaluation index 1. ...
    """


class VerificationError(PolyGPUError, RuntimeError):
    """A check inside `with polygpu.verify()` found that a product is wrong.

    The cause is an error of the machine or of the library. Repeat the call inside
    `with polygpu.device("reference")`, which computes products by their definition, to get the right result.
    """


class DeviceError(PolyGPUError, RuntimeError):
    """A device does not exist, operands are on different devices, or a device does not support a call.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([1]).to("tpu")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.DeviceError: device='tpu' must be 'cpu', 'reference', 'cuda', or a GPU ...
    """


class BackendUnavailable(DeviceError, ImportError):
    """The GPU that a call names cannot be used. The message says why.

    >>> import polygpu as pg
    >>> pg.Ring(4, 17)([1]).to("cuda:99")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.BackendUnavailable: device='cuda:99' does not answer. ...
    """


class TablesTooLarge(PolyGPUError, MemoryError):
    """The tables of a ring would not fit in this machine's memory. None of them has been made.

    >>> import polygpu as pg
    >>> pg.Ring(2**50, pg.ntt_primes(2**50, bits=62)).roots  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.TablesTooLarge: Tables for n=1125899906842624 and len(moduli)=1 need ... GiB ...
    """


class OutOfHostMemory(PolyGPUError, MemoryError):
    """A result or a temporary array does not fit in this machine's memory. Smaller batches need less memory.

    >>> import polygpu as pg
    >>> pg.Ring(2**50, 17).zeros()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polygpu.errors.OutOfHostMemory: An array of 4.19e+06 GiB is needed, and only ... GiB are ...
    """


class OutOfDeviceMemory(PolyGPUError, MemoryError):
    """A result or a temporary array does not fit in a GPU's memory. The operands are unchanged.

    Smaller batches need less memory. With `out=`, the result needs no new memory.
    """
