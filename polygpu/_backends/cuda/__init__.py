"""The CUDA backend: kernels of cuda/ compiled at run time, launched through CuPy on its current stream.

Nothing here synchronises, and temporaries come from CuPy's pool. Other packages import what `__all__` names.
"""

from ..base import Backend
from .device import absence, count, describe
from .fft import Fft
from .integers import Integers
from .lattice import Lattice
from .records import Records
from .sampling import Sampling

__all__ = ["CudaBackend", "absence", "count", "describe"]


class CudaBackend(Lattice, Fft, Integers, Sampling, Records, Backend):
    """The kernels behind the protocol, on one GPU."""
