"""LWE vectors (body first, then mask): extraction from ciphertexts, switching of secrets and of moduli."""

from __future__ import annotations

from typing import Any

from .._backends import Array
from .._ops import lwe as ops
from ..poly import Poly, checked_poly


def decompose_integers(x: Any, *, q: int, bits: int, levels: int) -> Array:
    """Compute the digits of integers modulo q to the base B = 2**bits, as `decompose` does for polynomials.

    To switch LWE vectors to another secret, multiply the digits by a key with linalg.matmul. If levels is 1,
    the only digit is x * B / q, rounded and reduced modulo B, so the call switches the modulus from q to B.

    Args:
        x: integers, taken modulo q: an array of NumPy or CuPy of any integer dtype, or a nested list.
        q: a modulus from 2 to 2**64.
        bits: how many bits a digit has.
        levels: how many digits; B**levels is at most q.

    Returns an int64 array of shape (*x.shape, levels), with entries in [-B/2, B/2), on x's device.

    Raises:
        ParameterError: q is outside its range, bits or levels is below 1, or B**levels is above q.
        CoefficientError: x holds something other than integers.

    Cost: a pass to reduce x, and a pass for the digits.
    Source: see decompose.

    >>> decompose_integers([0x12345678, -1], q=2**32, bits=8, levels=2).tolist()
    [[18, 52], [0, 0]]
    """
    return ops.decompose_integers(x, q, bits, levels)


def extract(c: Poly, i: int) -> Array:
    """Extract from each ciphertext an LWE vector that hides coefficient i of its message.

    A vector is the body followed by the mask. Its phase is body + <mask, s>, where s lists the coefficients
    of the secrets, one secret after the other. This phase equals coefficient i of c's phase.

    Args:
        c: ciphertexts of batch shape (*batch, k), k at least 2, in a ring of degree n with one modulus
            q <= 2**64.
        i: the index of a coefficient, in [0, n).

    Returns residues of shape (*batch, 1 + (k - 1) * n) and of the ring's dtype, on c's device.

    Raises:
        ParameterError: c does not have at least two components, its ring has several moduli or is not modulo
            X^n + 1 or X^n - 1, or i is outside [0, n).

    Cost: a copy; evaluated values also take an inverse transform.
    Source: Chillotti et al. 2018/421, SampleExtract.

    >>> import polygpu as pg
    >>> pg.lattice.extract(pg.Ring(4, 17)([[9, 8, 0, 0], [1, 2, 3, 4]]), 1).tolist()
    [8, 2, 1, 13, 14]
    """
    return ops.extract(checked_poly(c, "c"), i)


def lwe_switch(x: Any, key: Any, *, q: int, bits: int, levels: int, out: Any = None) -> Array:
    """Switch LWE vectors to another secret, by a key that lwe_switch_key made.

    The result is (x_0, 0, ..., 0) plus the sum over i < m and l < levels of digit_l(x_(i + 1)) *
    key[i * levels + l], modulo q. Digits are to the base B = 2**bits, as in decompose_integers.

    Args:
        x: LWE vectors of shape (*batch, m + 1), with the body first. Their entries are integers of any dtype
            that linalg.matmul takes.
        key: the key, of shape (m * levels, n + 1), on x's device; n is the length of the new secret.
        q: a modulus from 2 to 2**64.
        bits: how many bits a digit has.
        levels: how many digits; B**levels is at most q.
        out: a C-contiguous array of the result's shape and dtype to write into; may be x.

    Returns residues of shape (*batch, n + 1) on x's device, as uint32 if q <= 2**32, else as uint64.

    Raises:
        ParameterError: the shapes of x and key do not fit, q is outside its range, or B**levels is above q.
        CoefficientError: x or key holds something other than integers. DeviceError: x and key are on two
            devices.
        OutputError: `out` cannot hold the result, or overlaps the key.

    Cost: a pass for the digits, and m * levels * (n + 1) products for each vector. Digits are multiplied as
    bytes if bits is at most 8, as pairs of bytes if bits is at most 16, else as words. The CPU always
    multiplies words if there are fewer than 48 vectors or q is a power of two.
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
    """Switch LWE vectors from the modulus q to the modulus `to`, a power of two, by rounding.

    An entry v becomes floor((2 * v * to + q) / (2 * q)) modulo `to`, which is v * to / q rounded. If the
    secret consists of random bits, the rounding error of a mask entry enters the phase only if the secret
    bit for this entry is 1, that is half of the time. centered_mean=True adds half of the sum of the errors
    of all mask entries (each error is the exact value minus the rounded one) to the body before the body is
    rounded. This halves the variance that these errors cause in the phase of the result, from n / 24 to
    n / 48 for n mask entries. Rounding the body itself adds 1 / 12 to the variance in both cases.

    Args:
        x: LWE vectors of shape (*batch, n + 1), with the body first. If centered_mean is False, x may have
            any shape.
        q: a modulus from 2 to 2**64.
        to: a power of two from 2 to 2**32, at most q. For blind_rotate it is twice the degree of the ring.
        centered_mean: whether to correct the body as above. The errors are summed with 20 bits after the
            binary point, or fewer if q is small.

    Returns an int64 array of x's shape, with entries in [0, to), on x's device.

    Raises:
        ParameterError: q or `to` is outside its range, centered_mean is not a bool, or it is True and x is a
            single number.
        CoefficientError: x holds something other than integers.

    Cost: a few passes over the vectors.
    Source: Chillotti et al. 2018/421, algorithm 9. centered_mean is from TFHE-rs (Zama). The failure
    probabilities that TFHE-rs states assume centered_mean=True.

    >>> import polygpu as pg
    >>> pg.lattice.lwe_modulus_switch([0, 2**20, 2**31, 2**32 - 1], q=2**32, to=2048).tolist()
    [0, 1, 1024, 0]
    """
    return ops.modulus_switch(x, q, to, centered_mean)
