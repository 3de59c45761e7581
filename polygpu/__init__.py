"""Polynomial-ring and NTT arithmetic in Z_Q[X]/(X^N ± 1): exact for every modulus, batched, in RNS."""

import importlib as _importlib

try:
    _importlib.import_module("polygpu._cpu")
except ImportError as error:
    raise ImportError(
        f"polygpu at {__path__[0]} has no native core ({error}). In a source folder without an editable "
        "install, leave the folder or run: pip install -e ."
    ) from None

from . import fft as fft
from . import linalg as linalg
from .backends import device
from .contract import dot, einsum, matmul
from .errors import (
    BackendUnavailable,
    BadRoot,
    CoefficientError,
    DeviceError,
    DomainError,
    NotAnInteger,
    NotCanonical,
    NotComplex,
    NotInvertible,
    NotNTTFriendly,
    OutOfDeviceMemory,
    OutOfHostMemory,
    OutputError,
    ParameterError,
    PolyGPUError,
    PrecisionError,
    RingMismatch,
    TablesTooLarge,
)
from .poly import Poly, capture, concatenate, equal, fma, stack
from .ring import Ring, debug
from .roots import is_prime, ntt_primes

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "BadRoot",
    "CoefficientError",
    "DeviceError",
    "DomainError",
    "NotAnInteger",
    "NotCanonical",
    "NotComplex",
    "NotInvertible",
    "NotNTTFriendly",
    "OutOfDeviceMemory",
    "OutOfHostMemory",
    "OutputError",
    "ParameterError",
    "Poly",
    "PolyGPUError",
    "PrecisionError",
    "Ring",
    "RingMismatch",
    "TablesTooLarge",
    "capture",
    "concatenate",
    "debug",
    "device",
    "dot",
    "einsum",
    "equal",
    "fma",
    "is_prime",
    "matmul",
    "ntt_primes",
    "stack",
]
