"""Hypothesis profiles, and roots of unity cached away from the user's home."""

import gc
import os
import sys
from pathlib import Path

import pytest
from devices import ABSENT, DEVICES, MARKS, use
from hypothesis import HealthCheck, settings

from polygpu import _cpu
from polygpu._backends import get_backend
from polygpu._core.plans import cache as plan_cache

# For the benchmarks' tests; last, so that the installed polygpu is tested and not its sources.
sys.path.append(str(Path(__file__).resolve().parent.parent))

settings.register_profile(
    "ci", max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish():
    """Let garbage collection skip the thousands of tests: some tests wait for it, half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_folder(tmp_path_factory):
    """A cache of its own, and a working folder in which `python -c` finds the installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYGPU_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(tmp_path_factory.mktemp("work"))
        yield


@pytest.fixture(autouse=True)
def _rings_of_its_own():
    """No test finds a ring of another test, which has kept plans and calls."""
    plan_cache.forget_rings()


@pytest.fixture(autouse=True)
def _current_card():
    """Where there is a GPU: no test, and so no call, changes CuPy's current device."""
    if ABSENT is not None:
        yield
        return
    from cupy.cuda import runtime

    before = runtime.getDevice()
    yield
    assert runtime.getDevice() == before


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in DEVICES])
def device(request):
    """Runs a test on each device. New values are made there."""
    with use(request.param) as name:
        yield name


@pytest.fixture(params=_cpu.supported_isas())
def each_isa(request):
    """Runs a test on each instruction set."""
    before = _cpu.isa()
    _cpu.set_isa(request.param)
    yield request.param
    _cpu.set_isa(before)


@pytest.fixture
def isa():
    """Sets the instruction set, for which new rings choose their products, and restores it."""
    before = _cpu.isa()

    def choose(name):
        _cpu.set_isa(name)
        plan_cache.forget_rings()

    yield choose
    _cpu.set_isa(before)


@pytest.fixture
def threads():
    """Sets the number of threads for a test."""
    get_backend("cpu")  # its first use sets the number of threads
    before = _cpu.num_threads()
    yield _cpu.set_num_threads
    _cpu.set_num_threads(before)
