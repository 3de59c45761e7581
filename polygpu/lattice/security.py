"""Bounds on parameters that keep ciphertexts secure."""

from __future__ import annotations

from typing import Literal

from .._core.checks import integer, shown
from ..errors import ParameterError

# The largest log2 of Q P with 128 bits of security against classical attacks. The error is Gaussian with
# standard deviation 3.19.
_TERNARY = {
    1 << 10: 26,
    1 << 11: 53,
    1 << 12: 106,
    1 << 13: 214,
    1 << 14: 430,
    1 << 15: 868,
    1 << 16: 1747,
    1 << 17: 3523,
}


def max_log_q(n: int, *, secret: Literal["ternary"] = "ternary", bits: int = 128) -> int:
    """Return the largest log2 of the modulus Q P for which ciphertexts and keys are believed to be secure.

    Keys for key switching are ciphertexts modulo Q P, so the special primes count: compare
    `ring.join(special).modulus.bit_length()` with the bound. It assumes a negacyclic ring, and errors of
    standard deviation 3.19 at least. A smaller modulus is more secure.

    Args:
        n: the degree, a power of two from 2**10 to 2**17.
        secret: the distribution of the secret. "ternary": uniform in {-1, 0, 1}, as `Ring.ternary`.
        bits: the security level. Only 128 is recorded: 2**128 operations for a classical computer.

    Raises:
        ParameterError: a degree, secret or level without a recorded bound.

    Cost: none.
    Source: Bossuat et al., "Security Guidelines for Implementing Homomorphic Encryption", IACR
    Communications in Cryptology 1(4), 2024 (eprint 2024/463). The bounds come from the lattice estimator.
    Attacks improve, so ask for newer bounds before you protect real data.

    >>> import polygpu as pg
    >>> R = pg.Ring(2**14, pg.ntt_primes(2**14, bits=50, count=8))
    >>> R.modulus.bit_length() <= pg.lattice.max_log_q(2**14)
    True
    """
    degree, level = integer(n, "n"), integer(bits, "bits")
    if secret != "ternary":
        raise ParameterError(f"secret: {shown(secret)} has no recorded bound. Use 'ternary'")
    if level != 128:
        raise ParameterError(f"bits: {level} has no recorded bound. Use 128")
    if degree not in _TERNARY:
        raise ParameterError(
            f"n: {shown(degree)} has no recorded bound. Use a power of two from 2**10 to 2**17"
        )
    return _TERNARY[degree]
