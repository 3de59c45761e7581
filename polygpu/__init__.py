"""Exact arithmetic in polynomial rings Z_Q[X]/(X^N ± 1) by NTTs: for every modulus, batched, and in RNS."""

import importlib as _importlib

import numpy as _numpy  # first, because a Ctrl-C is lost if the compiled core imports NumPy

if int(_numpy.__version__.partition(".")[0]) < 2:  # the core would fail to load, and not say why
    raise ImportError(
        f"polygpu needs NumPy 2.0 or later, and NumPy {_numpy.__version__} is installed at "
        f"{_numpy.__file__}. Run `pip install 'numpy>=2'`."
    )

__version__ = "0.2.0"

try:
    _importlib.import_module("polygpu._cpu")
except ImportError as error:
    # This is a folder of sources, which has no compiled core. Use the core of an installed polygpu of the
    # same version.
    from importlib.metadata import distributions as _distributions

    _installed = (d for d in _distributions(name="polygpu") if d.version == __version__)
    __path__ += [folder for d in _installed if (folder := str(d.locate_file("polygpu"))) not in __path__]
    try:
        _importlib.import_module("polygpu._cpu")
    except ImportError:
        raise ImportError(
            f"polygpu at {__path__[0]} has no compiled core ({error}), and no polygpu {__version__} is "
            "installed. Run `pip install .` in the folder of the sources."
        ) from None

from . import errors as errors
from . import fft as fft
from . import lattice as lattice
from . import linalg as linalg
from . import memory as memory
from . import rns as rns
from . import zk as zk
from ._backends import device
from ._core.checks import debug, verify
from ._core.exact.primes import is_prime, ntt_primes
from ._core.reporting import progress
from ._distributed import devices
from .errors import (
    DeviceError,
    NotInvertible,
    NotNTTFriendly,
    ParameterError,
    PolyGPUError,
    RingMismatch,
)
from .files import Seeded, load, save
from .functions import capture, combine, concatenate, dot, einsum, equal, fma, matmul, stack
from .poly import Poly
from .ring import Ring


def __getattr__(name: str) -> object:
    """Import polygpu.interop when it is first used, since few programs need it and the import takes 8 ms."""
    if name == "interop":
        return _importlib.import_module("polygpu.interop")
    moved = f". It is polygpu.errors.{name} since 0.2." if name in vars(errors) else ""
    raise AttributeError(f"module 'polygpu' has no attribute {name!r}{moved}")


def __dir__() -> list[str]:
    """Return all names of the module, including `interop`, which is imported when it is first used."""
    return [*globals(), "interop"]


__all__ = [
    "DeviceError",
    "NotInvertible",
    "NotNTTFriendly",
    "ParameterError",
    "Poly",
    "PolyGPUError",
    "Ring",
    "RingMismatch",
    "Seeded",
    "capture",
    "combine",
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
