"""Complex roots of unity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PI = np.longdouble("3.14159265358979323846264338327950288")


def unit_roots(
    k: NDArray[np.int64], order: int, dtype: type[np.complexfloating[Any, Any]] = np.complex128
) -> NDArray[Any]:
    """Return exp(2 pi i k / order), with a relative error below 1.01 * 2^-53.

    The order is a power of two of at least 8. Cosines and sines are computed for angles of at most pi/4, in
    extended precision, which has at least 11 more bits than a double. These bits leave room for errors of
    cosines and sines. With dtype=np.clongdouble, the results keep these bits.
    """
    octant, rest = np.divmod(k % order, order // 8)
    angle = 2 * _PI / order * np.where(octant % 2, order // 8 - rest, rest)
    c, s = np.cos(angle), np.sin(angle)
    swapped = (octant + 1) % 4 >= 2
    roots = np.empty(k.shape, dtype)
    roots.real = np.where(swapped, s, c) * np.where((octant + 2) % 8 >= 4, -1, 1)
    roots.imag = np.where(swapped, c, s) * np.where(octant >= 4, -1, 1)
    return roots
