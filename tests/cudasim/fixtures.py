"""The pytest fixture; a conftest.py imports it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from . import fake_cupy


@pytest.fixture
def simulated_cuda(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The simulated `cupy`, also for `import cupy`; indirect parameters are keywords of simulated_cuda()."""
    with fake_cupy.simulated_cuda(**getattr(request, "param", {})) as cupy:
        yield cupy
