"""Devices for tests, among them a simulated GPU, and helpers that look at what a device does."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from cudasim import simulated_cuda
from toy import ToyBackend

import polygpu as pg
from polygpu import Poly, _cpu
from polygpu import _backends as backends
from polygpu._backends import cuda
from polygpu._backends.cuda import launch
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans import sampling as samplers
from polygpu._core.plans.basis import basis_of
from polygpu._core.ways import plan_of_product

with warnings.catch_warnings():  # CuPy may warn when it is imported
    warnings.simplefilter("ignore")
    ABSENT = cuda.absence(0)

# NumPy 2.0 has no options of from_dlpack, and does not share read-only arrays by DLPack.
OLD_NUMPY = np.lib.NumpyVersion(np.__version__) < "2.1.0"

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the CUDA simulator compiles with g++, which is not installed"
)
needs_card = pytest.mark.skipif(ABSENT is not None, reason=f"no GPU answers: {ABSENT}")

# The devices of tests by name, each with its name in polygpu.device. The simulated card is the second one of
# three, "cuda:1". So the tables that rings keep for it are never mistaken for those of a real card "cuda:0",
# and code that falls back to the first card is noticed. A test that needs another simulated card uses
# "cuda:2".
DEVICES = {"reference": "reference", "toy": "toy", "cpu": "cpu", "simulated": "cuda:1", "cuda": "cuda:0"}
HOST = ("reference", "toy", "cpu")
backends.MAKERS["toy"] = ToyBackend
CARDS = ("simulated", "cuda")
MARKS = {"simulated": [needs_compiler], "cuda": [pytest.mark.gpu, needs_card]}


def product_plan(ring: pg.Ring, product: Any = "auto", device: str | None = None) -> Any:
    """Return the plan by which a device multiplies coefficients. None means the current device."""
    return plan_of_product(ring._plan, product, backends.get_backend(device or backends.current_device()))


def on(*devices: str) -> Any:
    """Run a test on these devices. A test that only uses the fixture `device` runs on all devices."""
    return _cases(("device",), [(device,) for device in devices])


def over(names: Iterable[str], few: Iterable[str] = (), devices: Iterable[str] = DEVICES) -> Any:
    """Run a test for each name on each device. If `few` has names, slow devices run only those."""
    slow, few = ("reference", "toy", "simulated"), set(few)
    cases = [(d, name) for d in devices for name in names if d not in slow or not few or name in few]
    return _cases(("device", "name"), cases)


def sized(arguments: str, **cases: Iterable[Any]) -> Any:
    """Run a test on each device that is a keyword, with the cases that are given for this device."""
    names = ("device", *arguments.replace(" ", "").split(","))
    rows = [(d, *(c if len(names) > 2 else (c,))) for d, found in cases.items() for c in found]
    return _cases(names, rows)


def _cases(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    params = [pytest.param(*row, marks=MARKS.get(row[0], ())) for row in rows]
    parametrized = pytest.mark.parametrize(names, params, indirect=["device"])
    return lambda test: parametrized(pytest.mark.usefixtures("device")(test))


@contextmanager
def use(device: str) -> Iterator[str]:
    """Make this device the current one inside a `with`, and yield its name in polygpu.device."""
    name = DEVICES[device]
    if device == "simulated":
        options = {"order": "random", "seed": 7, "concurrent_blocks": 3}
        try:
            with (
                simulated_cuda("h100", devices_count=3, **options) as cupy,
                cupy.cuda.Device(1),
                pg.device(name),
            ):
                yield name
        finally:
            backends.check_gpu.cache_clear()
        return
    with pg.device(name):
        yield name
    if device == "cuda":
        pool = backends.get_backend(name).xp.get_default_memory_pool()  # type: ignore[attr-defined]
        if pool.total_bytes() > 1 << 30:  # every test starts with the card's memory free
            pool.free_all_blocks()


def forget() -> None:
    """Drop all backends and plans, with the tables in them, because they belong to one simulation."""
    backends.get_backend.cache_clear()
    backends.check_gpu.cache_clear()
    backends._default_device.cache_clear()
    plan_cache.forget()
    basis_of.cache_clear()
    for sampler in (samplers.sparse, samplers.binomial, samplers.tuniform, samplers.gaussian):
        sampler.cache_clear()  # samplers keep their tables of thresholds on each device
    threads = _cpu.num_threads()
    backends.get_backend("cpu")  # making this backend changes the number of threads, which is then restored
    _cpu.set_num_threads(threads)


@contextmanager
def simulated(card: Any = "h100", **options: Any) -> Iterator[Any]:
    """Simulate separate cards "cuda:0", "cuda:1", ... in a `with`; yield the module that replaces CuPy."""
    forget()
    try:
        with simulated_cuda(card, **options) as cupy:
            yield cupy
    finally:
        forget()


# ---- arrays on the device ----


def backend() -> Any:
    """Return the backend of the device that the test runs on."""
    return backends.backend()


def there(x: Any) -> Any:
    """Return a NumPy array as an array on the test's device. On the host it is the same array."""
    return backend().from_host(x)


def host(x: Any) -> Any:
    """Return an array of any device as an array in host memory."""
    return x if isinstance(x, np.ndarray) else x.get()


def shares_memory(x: Any, y: Any) -> bool:
    """Return whether two arrays on any devices overlap in memory."""
    return type(x) is type(y) and bool(backend().xp.shares_memory(x, y))


# ---- comparisons with the host ----


def same(found: Poly, expected: Poly) -> None:
    """Assert that a value on a card has the same bits as the CPU's value."""
    assert found.device.startswith("cuda:") and expected.device == "cpu"
    assert (found.ring, found.domain, found.shape) == (expected.ring, expected.domain, expected.shape)
    assert found.data.flags.c_contiguous and found.data.dtype == expected.data.dtype
    np.testing.assert_array_equal(host(found.data), expected.data)


def card_name() -> str:
    """Return the name of the card that the test runs on, or "cuda:0" if the current device is not a card.

    The latter is the first card of a simulation by `simulated`.
    """
    name = backends.current_device()
    return name if name.startswith("cuda") else "cuda:0"


def agree(compute: Callable[..., Any], *operands: Poly) -> None:
    """Assert that a call gives the same bits on a card as on the CPU, and does not change its operands."""
    moved = [x.to(card_name()) for x in operands]
    with pg.device("cpu"):
        expected = compute(*operands)
    same(compute(*moved), expected)
    for x, kept in zip(moved, operands, strict=True):
        same(x, kept)


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run each function in its own thread, all at the same time. An exception in a thread is raised here."""
    together = Barrier(len(works))

    def begin(work: Callable[[], None]) -> None:
        together.wait()
        work()

    with ThreadPoolExecutor(len(works)) as workers:
        list(workers.map(begin, works))


# ---- kernels that are launched ----


def noted_kernels(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that collects the names of all kernels launched later.

    A name with template arguments is also added without them.
    """
    names: set[str] = set()
    kernel = cuda.CudaBackend._kernel

    def noted(self: Any, launch: Any) -> Any:
        names.update((launch.kernel, launch.kernel.partition("<")[0]))
        return kernel(self, launch)

    monkeypatch.setattr(cuda.CudaBackend, "_kernel", noted)
    return names


class Work:
    """A record of a card's work: kernels launched, in order, prepared calls, and copies from the host.

    Making a Work drops all plans. So rings that are made later have no prepared calls from before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan_cache.forget()
        basis_of.cache_clear()
        self.launches: list[str] = []
        self.prepared: list[Any] = []
        self.copies: list[Any] = []
        keep, copy = (getattr(cuda.CudaBackend, x) for x in ("_keep", "_uploaded"))
        init = launch.Prepared.__init__

        def made(prepared: Any, call: Any, steps: Any, *rest: Any) -> None:
            def counted(launch: Any) -> Any:
                def launched(*arguments: Any) -> Any:
                    self.launches += (step[0].partition("<")[0] for step in steps)
                    return launch(*arguments)

                return launched

            counting = counted(call)
            counting.on = counted(call.on)
            init(prepared, counting, steps, *rest)

        def kept(card: Any, handles: Any, key: Any, recipe: Any) -> Any:
            self.prepared.append(key)
            return keep(card, handles, key, recipe)

        def copied(card: Any, x: Any) -> Any:
            self.copies.append(x)
            return copy(card, x)

        monkeypatch.setattr(launch.Prepared, "__init__", made)
        for name, f in (("_keep", kept), ("_uploaded", copied)):
            monkeypatch.setattr(cuda.CudaBackend, name, f)

    def of(self, call: Callable[[], Any]) -> tuple[list[str], int, int]:
        """Return the kernels that a call launches, and how many calls it prepares and arrays it copies."""
        before = len(self.launches), len(self.prepared), len(self.copies)
        call()
        return self.launches[before[0] :], len(self.prepared) - before[1], len(self.copies) - before[2]


@contextmanager
def card_of(multiprocessors: int, **changes: Any) -> Iterator[Any]:
    """Yield the backend of a card as if the card had this many multiprocessors.

    With few multiprocessors, few rows fill the card. With 0, the planner chooses large tiles.
    """
    compute: Any = backends.get_backend(card_name())
    card = compute.card
    compute.card = replace(card, multiprocessors=multiprocessors, **changes)
    try:
        yield compute
    finally:
        compute.card = card
