"""Bounds on parameters that keep ciphertexts secure."""

from __future__ import annotations

from typing import Literal

from .._core.checks import integer, shown
from ..errors import ParameterError

# The largest log2 of Q P with 128 bits of security against classical attacks, by degree. The error is
# Gaussian with standard deviation 3.19.
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

# The same by weight and degree, for secrets of which half of the nonzero coefficients are 1 and half -1.
# Source: the lattice estimator at commit 27a581b of 2026-06-06, run on 2026-11-27 with its default costs
# (MATZOV), n samples and q a power of two. Each is the least of the attacks usvp, bdd, bdd_hybrid,
# bdd_mitm_hybrid and dual, and of the dual hybrid attack of `lwe_dual` with and without meet in the middle,
# which binds nearly always. As a control, 868 and 1747 gave 128.0 bits for uniform ternary secrets. For
# primal_hybrid(mitm=True, babai=False) the estimator gives 1 to 6 bits less, and calls it too optimistic.
_SPARSE = {
    32: {1 << 15: 172, 1 << 16: 364, 1 << 17: 777},
    64: {1 << 15: 511, 1 << 16: 1052},
    128: {1 << 16: 1498},
    192: {1 << 13: 202, 1 << 14: 401, 1 << 15: 806, 1 << 16: 1627, 1 << 17: 3298},
    256: {1 << 16: 1680},
}


def max_log_q(n: int, *, secret: Literal["ternary"] | int = "ternary", bits: int = 128) -> int:
    """Return the largest log2 of the modulus Q P for which ciphertexts and keys are believed to be secure.

    Keys for key switching are ciphertexts modulo Q P, so the special primes count: compare
    `ring.join(special).modulus.bit_length()` with the bound. It assumes a negacyclic ring, and errors of
    standard deviation 3.19 at least. A smaller modulus is more secure.

    Args:
        n: the degree, a power of two from 2**10 to 2**17.
        secret: the distribution of the secret. "ternary": uniform in {-1, 0, 1}, as `Ring.ternary()`. An
            int: that many nonzero coefficients, as `Ring.ternary(weight=...)`. Recorded are 192 for 2**13 to
            2**17, 32 for 2**15 to 2**17, 64 for 2**15 and 2**16, and 128 and 256 for 2**16.
        bits: the security level. Only 128 is recorded: 2**128 operations for a classical computer.

    Raises:
        ParameterError: a degree, secret or level without a recorded bound.

    Cost: none.
    Source: Bossuat et al., "Security Guidelines for Implementing Homomorphic Encryption", IACR
    Communications in Cryptology 1(4), 2024 (eprint 2024/463), for uniform secrets. Bounds for a weight are of
    the lattice estimator (https://github.com/malb/lattice-estimator, commit 27a581b) on 2026-11-27. Attacks
    improve, so ask for newer bounds before you protect real data.

    >>> import polygpu as pg
    >>> R = pg.Ring(2**14, pg.ntt_primes(2**14, bits=50, count=8))
    >>> R.modulus.bit_length() <= pg.lattice.max_log_q(2**14)
    True
    >>> pg.lattice.max_log_q(2**16), pg.lattice.max_log_q(2**16, secret=192)
    (1747, 1627)
    """
    degree, level = integer(n, "n"), integer(bits, "bits")
    if level != 128:
        raise ParameterError(f"bits: {shown(level)} has no recorded bound. Use 128")
    if isinstance(secret, str):
        bounds = _TERNARY if secret == "ternary" else {}
    else:
        bounds = _SPARSE.get(integer(secret, "secret"), {})
    if not bounds:
        raise ParameterError(
            f"secret: {shown(secret)} has no recorded bound. Use 'ternary' or a weight of {[*_SPARSE]}"
        )
    if degree not in bounds:
        degrees = ", ".join(f"2**{known.bit_length() - 1}" for known in bounds)
        raise ParameterError(f"n: {shown(degree)} has no recorded bound. Use one of {degrees}")
    return bounds[degree]
