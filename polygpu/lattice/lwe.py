"""LWE vectors, the body first, then the mask: from ciphertexts, to another secret, to another modulus."""

from __future__ import annotations

from typing import Any

from .._backends import Array
from .._ops import lwe as ops
from ..poly import Poly, checked_poly


def decompose_integers(x: Any, *, q: int, bits: int, levels: int) -> Array:
    """Compute the digits of integers modulo q to the base B = 2**bits, as decompose does: for LWE vectors.

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
    Source: as in decompose.

    >>> decompose_integers([0x12345678, -1], q=2**32, bits=8, levels=2).tolist()
    [[18, 52], [0, 0]]
    """
    return ops.decompose_integers(x, q, bits, levels)


def extract(c: Poly, i: int) -> Array:
    """Extract LWE vectors that hide coefficient i of what ciphertexts hide: the body first, then the mask.

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


def lwe_switch(x: Any, key: Any, *, q: int, bits: int, levels: int, out: Any = None) -> Array:
    """Switch LWE vectors to another secret, by a key that lwe_switch_key made.

    It is (x_0, 0, ..., 0) plus the sum over i and l of digit_l(x_(i + 1)) key[i levels + l], modulo q.

    Args:
        x: vectors (*batch, m + 1): integers as in linalg.matmul.
        key: (m levels, n + 1), on x's device.
        q: a modulus from 2 to 2**64.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.
        out: a C-contiguous array of the result's shape and dtype to write into; may be x.

    Returns residues (*batch, n + 1) on x's device, uint32 for q <= 2**32, else uint64.

    Raises:
        ParameterError: shapes that do not fit, q outside its range, or B**levels above q.
        CoefficientError: no integers. DeviceError: x and key on two devices.
        OutputError: `out` cannot take the result, or overlaps the key.

    Cost: a pass for the digits, and m levels (n + 1) products for each vector: of bytes, if bits is at most
    8, else of pairs of bytes up to 16, else of words; on the CPU of words too for fewer than 48 vectors.
    Source: Chillotti et al. 2018/421, section 2.4; docs/math.md, "Gadget decomposition".

    >>> import numpy as np, polygpu as pg
    >>> old, new = [1, 0, 1, 1], [0, 1, 1]
    >>> key = pg.lattice.lwe_switch_key(new, old, q=2**32, bits=4, levels=5, tuniform=5, seed=1)
    >>> x = np.array([5 << 28, 1 << 20, 2**31, 123456, 99], np.uint32)
    >>> y = pg.lattice.lwe_switch(x, key, q=2**32, bits=4, levels=5)
    >>> phase = [int(v[0] + v[1:] @ np.array(s)) % 2**32 for v, s in ((x, old), (y, new))]
    >>> abs(phase[1] - phase[0]) < 2**14
    True
    """
    return ops.switch(x, key, q, bits, levels, out)


def lwe_modulus_switch(x: Any, *, q: int, to: int, centered_mean: bool = False) -> Array:
    """Round LWE vectors to a power of two as modulus: take for each entry the nearest multiple of q / to.

    An entry becomes floor((2 x to + q) / (2 q)) modulo `to`. With bits as the secret each mask's rounding
    error counts half of the time. So centered_mean adds half of the sum of these errors to the body before
    it is rounded, which halves their variance: from n / 24 to n / 48, beside 1 / 12 of the body itself,
    in units of the new modulus.

    Args:
        x: vectors (*batch, n + 1), as in lwe_switch; without centered_mean integers of any shape.
        q: a modulus from 2 to 2**64.
        to: a power of two of at most q and 2**32; 2N for blind_rotate.
        centered_mean: as above. The errors are added up in parts of 2**-20, or less if q is small.

    Returns int64 of x's shape in [0, to), on x's device.

    Raises:
        ParameterError: q or `to` outside its range. CoefficientError: no integers.

    Cost: some passes over the vectors.
    Source: Chillotti et al. 2018/421, algorithm 9; the mean of the errors: TFHE-rs, Zama, whose failure
    probabilities suppose it.

    >>> import polygpu as pg
    >>> pg.lattice.lwe_modulus_switch([0, 2**20, 2**31, 2**32 - 1], q=2**32, to=2048).tolist()
    [0, 1, 1024, 0]
    """
    return ops.modulus_switch(x, q, to, centered_mean)
