"""Polynomial-ring and NTT arithmetic in Z_Q[X]/(X^N ± 1): exact for every modulus, batched, in RNS."""

import importlib as _importlib
import sys as _sys

# While the command line is being imported, Ctrl-C ends it without a traceback; cli.main then restores
# Python's handler. A program that imports polygpu keeps its handlers. A job in the background goes on
# ignoring Ctrl-C.
if _sys.argv[:1] == ["-m"]:  # python -m, before the module is found; its name precedes its arguments
    _program = "".join(_sys.orig_argv[-len(_sys.argv) :][:1]).removeprefix("-m")
else:
    _program = "".join(_sys.argv[:1]).rpartition("/")[2]
if _program == "polygpu":
    _signal = _importlib.import_module("signal")
    _interrupts_end = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if _interrupts_end:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
else:
    _interrupts_end = False

import numpy as _numpy  # noqa: F401  (here, because an import of NumPy by the core would hide Ctrl-C)

try:
    _importlib.import_module("polygpu._cpu")
except ImportError as error:
    raise ImportError(
        f"polygpu at {__path__[0]} has no native core ({error}). In a source folder without an editable "
        "install, leave the folder or run: pip install -e ."
    ) from None

from . import fft as fft
from . import lattice as lattice
from . import linalg as linalg
from . import rns as rns
from . import zk as zk
from .backends import device
from .checks import debug, verify
from .distributed import devices
from .errors import (
    BackendUnavailable,
    BadRoot,
    CoefficientError,
    DeviceError,
    DomainError,
    FileError,
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
    VerificationError,
)
from .exact.primes import is_prime, ntt_primes
from .files import Seeded, load, save
from .functions import capture, concatenate, dot, einsum, equal, fma, matmul, stack
from .poly import Poly
from .reporting import progress
from .ring import Ring

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`polygpu.interop`, imported at its first use: few programs need it, and the import takes 8 ms."""
    if name == "interop":
        return _importlib.import_module("polygpu.interop")
    raise AttributeError(f"module 'polygpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All names, also those that are imported at their first use."""
    return [*globals(), "interop"]


__all__ = [
    "BackendUnavailable",
    "BadRoot",
    "CoefficientError",
    "DeviceError",
    "DomainError",
    "FileError",
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
    "Seeded",
    "TablesTooLarge",
    "VerificationError",
    "capture",
    "concatenate",
    "debug",
    "device",
    "devices",
    "dot",
    "einsum",
    "equal",
    "fma",
    "is_prime",
    "load",
    "matmul",
    "ntt_primes",
    "progress",
    "save",
    "stack",
    "verify",
]
