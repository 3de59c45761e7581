"""Devices and their backends. A backend is the object that computes on one device (base.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import cast

import numpy as np

from .._core.checks import unusual
from .._core.plans.basis import Basis
from ..errors import BackendUnavailable, DeviceError
from .base import Arithmetic as Arithmetic
from .base import Backend as Backend
from .base import HostBackend
from .base import Mark as Mark
from .base import Memory as Memory
from .base import Op as Op
from .records import Array as Array

# ---- devices ----


def _make_cpu() -> Backend:
    from .cpu import CpuBackend

    return CpuBackend()


def _make_reference() -> Backend:
    from .reference import ReferenceBackend

    return ReferenceBackend()


# For each device that is not a GPU: the function that makes its backend.
MAKERS: dict[str, Callable[[], Backend]] = {"cpu": _make_cpu, "reference": _make_reference}

_device: ContextVar[str | None] = ContextVar("polygpu_device", default=None)


def current_device() -> str:
    """Return the device of new values: the innermost `with device(...)`, else $POLYGPU_DEVICE, else "cpu"."""
    return _device.get() or _default_device()


@cache
def _default_device() -> str:
    return checked_device(os.environ.get("POLYGPU_DEVICE") or "cpu", "POLYGPU_DEVICE")


@contextmanager
def device(name: str) -> Iterator[str]:
    """Make new values on the named device inside a `with`.

    An operation on existing values runs on the device that holds them; no value is copied to another device
    unless you ask for it. "reference" computes every result from its definition in Python integers. It is
    slow, and meant for checking.

    Args:
        name: "cpu", "reference", or a GPU with its index, such as "cuda:0". "cuda" means the first GPU.

    Raises:
        DeviceError: `name` is not the name of a device.
        BackendUnavailable: `name` is a GPU that is missing or cannot be used.

    Cost: the first use of a GPU in a process imports CuPy; any other use takes microseconds.

    >>> import polygpu as pg
    >>> with pg.device("reference"):
    ...     print(pg.Ring(4, 17)([1, 2]) ** 2)
    Poly(n=4, q=17, domain=coef, shape=(), device=reference, centered=[1, 4, 4, 0])
    """
    checked = checked_device(name)
    tokens = _device.set(checked), unusual.set(True)
    try:
        yield checked
    finally:
        _device.reset(tokens[0])
        unusual.reset(tokens[1])


def checked_device(name: object, source: str = "device") -> str:
    """Return the full name of a device ("cuda:0" for "cuda"), or raise an error if it cannot be used.

    source: where the name was given, for the error text: "device", or the name of an environment variable.
    """
    if isinstance(name, str):
        if name in MAKERS:
            return name
        kind, _, index = name.partition(":")
        if kind == "cuda" and (index.isdecimal() or name == "cuda"):
            try:
                check_gpu(int(index or 0))
            except BackendUnavailable as error:
                raise BackendUnavailable(f"{source}={name!r} does not answer. {error}") from None
            return f"cuda:{int(index or 0)}"
    raise DeviceError(
        f"{source}={name!r} must be 'cpu', 'reference', 'cuda', or a GPU by its number, such as 'cuda:1'."
    )


@cache  # the check takes a millisecond; only success is cached, because an exception leaves no entry
def check_gpu(index: int) -> None:
    """Raise BackendUnavailable if this GPU is missing or cannot be used."""
    from .cuda import absence

    if reason := absence(index):
        raise BackendUnavailable(reason)


def gpu_names() -> list[str]:
    """Return the names of all GPUs. Raise BackendUnavailable if the first one cannot be used."""
    from .cuda import count

    check_gpu(0)
    return [f"cuda:{i}" for i in range(count())]


@cache
def get_backend(name: str) -> Backend:
    """Return the backend of the device with this full name."""
    if name in MAKERS:
        return MAKERS[name]()
    from .cuda import CudaBackend

    return CudaBackend(int(name.partition(":")[2]))


def backend() -> Backend:
    """Return the backend of the device on which new values are made."""
    return get_backend(current_device())


def host() -> HostBackend:
    """Return the backend for operations that always run on the host: "reference" if chosen, else "cpu"."""
    found = host_of(_device.get())
    return found if isinstance(found, HostBackend) else cast(HostBackend, get_backend("cpu"))


chosen_device = _device.get  # the name given to the innermost `with device(...)`, or None if there is none


@cache
def host_of(device: str | None) -> Backend:
    """Return the backend that computes on NumPy arrays while `device` is chosen.

    For a GPU this is the backend of "cpu", for other devices their own backend.
    """
    chosen = device or _default_device()
    return get_backend(chosen if chosen in MAKERS else "cpu")


def backend_of(x: Array) -> Backend:
    """Return the backend of the device that holds the array."""
    return host_of(_device.get()) if isinstance(x, np.ndarray) else get_backend(_gpu_name(x.data.device_id))


@cache
def _gpu_name(index: int) -> str:
    return f"cuda:{index}"


def backend_for(basis: Basis, x: Array) -> Arithmetic:
    """Return the backend that computes on the array x modulo the moduli of a basis.

    For a modulus above 2^64 (a wide modulus), the returned backend computes in host memory, even if the array
    lies on a GPU.
    """
    return _wide(backend_of(x)) if basis.wide else backend_of(x)


@cache
def _wide(home: Backend) -> Arithmetic:
    if home.name == "reference":  # the reference backend handles moduli of any size itself
        return home
    from .wide import WideArithmetic

    return WideArithmetic(home)


def same_device(x: Array, y: Array) -> bool:
    """Return whether two arrays lie on the same device."""
    if type(x) is not type(y):
        return False
    return isinstance(x, np.ndarray) or x.data.device_id == y.data.device_id


def is_device_array(x: object) -> bool:
    """Return whether x is a CuPy array. Operations accept no other arrays in GPU memory."""
    return hasattr(x, "__cuda_array_interface__") and type(x).__module__.split(".")[0] == "cupy"


def cuda_sources() -> str:
    """Return the folder of the CUDA sources: inside an installed package, or beside an editable one."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (os.path.join(package, "cuda"), os.path.join(os.path.dirname(package), "cuda")):
        if os.path.isdir(folder):
            return folder
    raise BackendUnavailable(f"The CUDA sources are missing beside {package}. Reinstall polygpu.")
