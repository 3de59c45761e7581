"""Every error polygpu raises of its own: each names the value, the rule and the way out."""

from __future__ import annotations


class PolyGPUError(Exception):
    """Base of all errors of polygpu."""


class ParameterError(PolyGPUError, ValueError):
    """A parameter of a ring or a call is outside its rule."""


class NotNTTFriendly(ParameterError):
    """The ring has no evaluation domain: a modulus has no root of unity of the needed order."""


class BadRoot(ParameterError):
    """A root of unity of the wrong order, or one asked for where it means nothing."""


class PrecisionError(ParameterError):
    """An exact product that floating-point transforms cannot be proven to give."""


class DomainError(ParameterError):
    """A domain other than "coef" and "eval", or one that does not fit."""


class NotCanonical(ParameterError):
    """A residue outside [0, q)."""


class CoefficientError(PolyGPUError, TypeError):
    """Coefficients that are no integers."""


class NotAnInteger(ParameterError, CoefficientError):
    """A value that must be an int and is none: a TypeError and a ValueError."""


class NotComplex(PolyGPUError, TypeError):
    """An array of other than complex numbers where those are needed."""


class RingMismatch(PolyGPUError, TypeError):
    """Operands of different rings."""


class OutputError(PolyGPUError, ValueError):
    """An `out` that cannot take the result."""


class NotInvertible(PolyGPUError, ZeroDivisionError, ValueError):
    """A polynomial without an inverse in its ring, or one that no method here can find."""


class VerificationError(PolyGPUError, RuntimeError):
    """A result that a check inside `with polygpu.verify()` found to be wrong."""


class DeviceError(PolyGPUError, RuntimeError):
    """Operands or a call on a device that does not fit."""


class BackendUnavailable(DeviceError, ImportError):
    """A device asked for by name that does not answer here."""


class TablesTooLarge(PolyGPUError, MemoryError):
    """Tables of a ring that this machine's memory cannot hold."""


class OutOfHostMemory(PolyGPUError, MemoryError):
    """A result, or what a call needs meanwhile, that this machine's memory cannot hold."""


class OutOfDeviceMemory(PolyGPUError, MemoryError):
    """A GPU without memory for the result or for what a call needs meanwhile; operands are as they were."""
