"""Backends: who computes. One protocol, and the choice of the device.

Every argument a backend gets was checked before: arrays (*batch, rows, degree) of the limbs' dtype,
canonical residues, an `out` of the result's shape that may be an operand itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np

from ..errors import BackendUnavailable, DeviceError
from ..plan import Limbs, NttPlan, Plan

Array = np.ndarray[Any, np.dtype[Any]]
Op = Literal["add", "sub", "neg", "mul", "mul_add"]


class Backend(Protocol):
    """What a device can do. All methods write into `out`."""

    name: str

    def pointwise(self, limbs: Limbs, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """out = a + b, a - b, -a, a * b or a * b + c, entry by entry; b may be (*batch, rows, 1)."""

    def permute(self, limbs: Limbs, x: Array, index: Array, out: Array) -> None:
        """out[..., j] = x[..., index[j]], or the negative of x[..., index[j] - n] where index[j] >= n."""

    def reduce_integers(self, limbs: Limbs, x: Array, out: Array) -> None:
        """Residues of int64 or uint64 integers (*batch, count <= n); the rest of each row is 0."""

    def reduce_words(self, limbs: Limbs, words: Array, limb: int, out: Array) -> None:
        """Residues of numbers of k uint64 words (items, n, k) into row `limb` of (items, rows, n)."""

    def ntt(self, plan: NttPlan, x: Array, out: Array) -> None:
        """Coefficients to the evaluation domain, in its bit-reversed order."""

    def intt(self, plan: NttPlan, x: Array, out: Array) -> None:
        """The evaluation domain to coefficients."""

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """Product in the ring, coefficients to coefficients."""

    def multiply_leaves(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """Product in the evaluation domain, complete or not."""


# ---- devices ----

_HOST_DEVICES = ("cpu", "reference")
_device: ContextVar[str | None] = ContextVar("polygpu_device", default=None)

CUDA_HELP = 'pip install "polygpu[cuda13]" (CUDA 13) or pip install "polygpu[cuda12]" (CUDA 12) adds CuPy'


def current_device() -> str:
    """The device of new values: of the innermost `device(...)`, else $POLYGPU_DEVICE, else "cpu"."""
    return _device.get() or _default_device()


@cache
def _default_device() -> str:
    return checked_device(os.environ.get("POLYGPU_DEVICE", "cpu"), "POLYGPU_DEVICE")


@contextmanager
def device(name: str) -> Iterator[str]:
    """Compute on the named device inside a `with`: "cpu" or "reference".

    "reference" computes every result from its definition in Python integers: slow, for checking.

    Raises:
        DeviceError: no such device.
        BackendUnavailable: a GPU was asked for and none answers.

    >>> import polygpu as pg
    >>> with pg.device("reference"):
    ...     print(pg.Ring(4, 17)([1, 2]) ** 2)
    Poly(n=4, q=17, domain=coef, shape=(), device=reference)
    """
    token = _device.set(checked_device(name))
    try:
        yield name
    finally:
        _device.reset(token)


def checked_device(name: object, source: str = "device") -> str:
    """The name of a device that answers; raises otherwise, naming where it came from."""
    if isinstance(name, str):
        if name in _HOST_DEVICES:
            return name
        if name == "cuda" or name.startswith("cuda:"):
            raise BackendUnavailable(f"{source}: {name!r} does not answer: {cuda_absence()}")
    raise DeviceError(f"{source}: {name!r} must be 'cpu' or 'reference'")


def cuda_absence() -> str:
    """Why no GPU can be used, and what to do."""
    from importlib.util import find_spec

    version = "this version of polygpu computes on the CPU only"
    if find_spec("cupy") is None:
        return f"CuPy is not installed ({CUDA_HELP}), and {version}; use device 'cpu'"
    return f"{version}; use device 'cpu'"


def require_host(x: object, name: str) -> None:
    """Raise if x is an array on a GPU: nothing is copied from device to device unasked."""
    if hasattr(x, "__cuda_array_interface__"):
        raise DeviceError(f"{name}: an array on a GPU; {cuda_absence()}. Copy it with cupy.asnumpy(x)")


@cache
def _load(name: str) -> Backend:
    if name == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend()
    from .cpu import CpuBackend

    return CpuBackend()


def backend() -> Backend:
    """The backend that computes on host arrays."""
    return _load(current_device())


def cuda_sources() -> str:
    """The folder of the CUDA sources, in an installed and in an editable package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (os.path.join(package, "cuda"), os.path.join(os.path.dirname(package), "cuda")):
        if os.path.isdir(folder):
            return folder
    raise BackendUnavailable(f"the CUDA sources are missing beside {package}; reinstall polygpu")
