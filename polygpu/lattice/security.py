"""Bounds on the modulus up to which ciphertexts are believed to be secure."""

from __future__ import annotations

from typing import Literal

from .._core.checks import integer, shown
from ..errors import ParameterError

# For each degree, the largest log2 of the modulus (special primes included) that gives 128 bits of security
# against classical attacks. Secrets are uniform ternary, and errors Gaussian of standard deviation 3.19.
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

# _SPARSE[weight][degree] is the largest log2 of the modulus (special primes included) that gives 128 bits of
# security for ternary secrets with `weight` nonzero coefficients, half of them 1 and half -1.
# Source: the lattice estimator at commit 27a581b of 2026-06-06, run on 2026-11-27 with its default cost model
# (MATZOV), n samples and a power of two as the modulus. The bounds hold against all of these attacks: usvp,
# bdd, bdd_hybrid, bdd_mitm_hybrid, dual, and the dual hybrid attack of `lwe_dual` with and without meet in
# the middle. The dual hybrid attack is nearly always the best attack. Control: for uniform ternary secrets
# and the bounds 868 and 1747 of _TERNARY, the estimator gave 128.0 bits. For the attack
# primal_hybrid(mitm=True, babai=False) the estimator gives 1 to 6 bits of security less. The estimator calls
# that estimate too optimistic for the attacker.
_SPARSE = {
    32: {1 << 15: 172, 1 << 16: 364, 1 << 17: 777},
    64: {1 << 15: 511, 1 << 16: 1052},
    128: {1 << 16: 1498},
    192: {1 << 13: 202, 1 << 14: 401, 1 << 15: 806, 1 << 16: 1627, 1 << 17: 3298},
    256: {1 << 16: 1680},
}


def max_log_q(n: int, *, secret: Literal["ternary"] | int = "ternary", bits: int = 128) -> int:
    """Return the largest log2 of the modulus for which ciphertexts and keys are believed to be secure.

    Keys for key switching are ciphertexts modulo the product of all primes, the special ones included. So
    compare `ring.join(special).modulus.bit_length()` with the bound. The bound assumes a negacyclic ring, and
    errors of standard deviation at least 3.19. A smaller modulus is more secure.

    Args:
        n: the degree, a power of two from 2**10 to 2**17.
        secret: the distribution of the secret. "ternary" is uniform in {-1, 0, 1}, as in `Ring.ternary()`. An
            int is the number of nonzero coefficients, as in `Ring.ternary(weight=...)`. Bounds are recorded
            for the numbers 32 (n from 2**15 to 2**17), 64 (n = 2**15 and 2**16), 128 (n = 2**16), 192 (n
            from 2**13 to 2**17) and 256 (n = 2**16).
        bits: the security level. Bounds are recorded only for 128: an attack with a classical computer takes
            2**128 operations.

    Raises:
        ParameterError: no bound is recorded for this n, secret and security level.

    Cost: none.
    Source: Bossuat et al., "Security Guidelines for Implementing Homomorphic Encryption", IACR
    Communications in Cryptology 1(4), 2024 (eprint 2024/463), for uniform secrets. Bounds for a weight were
    computed by the lattice estimator (https://github.com/malb/lattice-estimator, commit 27a581b) on
    2026-11-27. Attacks improve, so look for newer bounds before you protect real data.

    >>> import polygpu as pg
    >>> R = pg.Ring(2**14, pg.ntt_primes(2**14, bits=50, count=8))
    >>> R.modulus.bit_length() <= pg.lattice.max_log_q(2**14)
    True
    >>> pg.lattice.max_log_q(2**16), pg.lattice.max_log_q(2**16, secret=192)
    (1747, 1627)
    """
    degree, level = integer(n, "n"), integer(bits, "bits")
    if level != 128:
        raise ParameterError(f"bits={shown(level)} has no recorded bound. Use bits=128.")
    if isinstance(secret, str):
        bounds = _TERNARY if secret == "ternary" else {}
    else:
        bounds = _SPARSE.get(integer(secret, "secret"), {})
    if not bounds:
        raise ParameterError(
            f"secret={shown(secret)} has no recorded bound. Use 'ternary' or one of the weights {[*_SPARSE]}."
        )
    if degree not in bounds:
        degrees = ", ".join(f"2**{known.bit_length() - 1}" for known in bounds)
        raise ParameterError(
            f"n={shown(degree)} has no recorded bound for this secret. Use one of {degrees}."
        )
    return bounds[degree]
