"""The values that operations take and return."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from .checks import Domain
from .ring_plan import RingPlan

_new = object.__new__
V = TypeVar("V", bound="Value")


class Value:
    """A batch of elements of a ring: the ring's plan, residues (*batch, rows, n), and the residues' domain.

    A result in the ring of the first operand has the class of the first operand. For example, the sum of two
    Polys is a Poly. Other results are plain Values.
    """

    __slots__ = ("_data", "_domain", "_plan")

    _plan: RingPlan
    _data: np.ndarray[Any, np.dtype[Any]]
    _domain: Domain

    def __init__(self, plan: RingPlan, data: np.ndarray[Any, np.dtype[Any]], domain: Domain) -> None:
        self._plan, self._data, self._domain = plan, data, domain

    @property
    def _batch(self) -> tuple[int, ...]:
        """The batch shape."""
        shape: tuple[int, ...] = self._data.shape[:-2]
        return shape

    def _with(self: V, data: np.ndarray[Any, np.dtype[Any]], domain: Domain | None = None) -> V:
        """Return a value of the same class and ring with other residues, by default in the same domain."""
        value = _new(type(self))
        value._plan, value._data, value._domain = self._plan, data, domain or self._domain
        return value
