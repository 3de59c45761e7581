"""LWE vectors: the body first, then the mask."""

from __future__ import annotations

from typing import Any

from .._backends import Array
from .._ops import gadget as ops
from ..poly import Poly, checked_poly


def decompose_integers(x: Any, *, q: int, bits: int, levels: int) -> Array:
    """The digits of integers modulo q to the base B = 2**bits, as of decompose: for LWE vectors.

    linalg.matmul of the digits switches the key of LWE vectors. With one level the modulus is switched to B:
    the digit is x B / q, rounded, modulo B.

    Args:
        x: integers of any dtype and size, of NumPy or CuPy, or nested lists; taken modulo q.
        q: a modulus from 2 to 2**64.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.

    Returns int64, (*x.shape, levels), in [-B/2, B/2), on x's device.

    Raises:
        ParameterError: q outside its range, or B**levels is above q. CoefficientError: no integers.

    Cost: a pass to reduce x, one for the digits, and a copy to int64.
    Source: as of decompose.

    >>> decompose_integers([0x12345678, -1], q=2**32, bits=8, levels=2).tolist()
    [[18, 52], [0, 0]]
    """
    return ops.decompose_integers(x, q, bits, levels)


def extract(c: Poly, i: int) -> Array:
    """LWE vectors that hide coefficient i of what the ciphertexts hide: the body first, then the mask.

    Their phase is body + <mask, s>, with s the coefficients of the secrets, one secret after the other. It is
    coefficient i of c's phase.

    Args:
        c: ciphertexts, (*batch, k), k at least 2, modulo one q of at most 2**64.
        i: the number of a coefficient.

    Returns residues (*batch, 1 + (k - 1) n) of the ring's dtype, on c's device.

    Raises:
        ParameterError: c is of another batch shape or has several moduli, or there is no such coefficient.

    Cost: a copy; an inverse transform of evaluated values. Source: Chillotti et al. 2018/421, SampleExtract.

    >>> import polygpu as pg
    >>> pg.lattice.extract(pg.Ring(4, 17)([[9, 8, 0, 0], [1, 2, 3, 4]]), 1).tolist()
    [8, 2, 1, 13, 14]
    """
    return ops.extract(checked_poly(c, "c"), i)
