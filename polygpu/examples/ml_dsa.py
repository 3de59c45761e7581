"""ML-DSA (FIPS 204) on batches: key generation from 32-byte seeds.

As in `ml_kem`, whose packing functions are used here, hashlib hashes, NumPy samples and packs, and
polygpu does the arithmetic of Z_8380417[X]/(X^256 + 1). Numbers of algorithms, tables and sections are those
of FIPS 204.

This is an example. It is checked against NIST's known answers, but it is not constant time, so it does
not protect secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_128, shake_256

import numpy as np

import polygpu as pg
from polygpu.examples.ml_kem import (
    Array,
    Batch,
    as_array,
    byte_decode,
    byte_encode,
    check_lengths,
    columns,
    evaluations,
    first_accepted,
    join,
    residues,
)

RING = pg.Ring.preset("ml-dsa")
N, Q = RING.n, RING.modulus
D = 13  # the public key leaves out the low D bits of each coefficient of the vector t
T1_BITS = (Q - 1).bit_length() - D

# For 256 coefficients, RejNTTPoly takes at most 298 rounds of three bytes, and RejBoundedPoly takes at most
# 481 rounds of one byte. Each bound fails with a probability below 2^-256 (FIPS 204, appendix C).
MATRIX_BYTES = 3 * 298
SECRET_BYTES = 481


@dataclass(frozen=True)
class ParameterSet:
    """The parameters of key generation, from a column of FIPS 204, table 1."""

    k: int
    l: int  # noqa: E741 - the standard's name
    eta: int


ML_DSA_44 = ParameterSet(k=4, l=4, eta=2)
ML_DSA_65 = ParameterSet(k=6, l=5, eta=4)
ML_DSA_87 = ParameterSet(k=8, l=7, eta=2)


def keygen(p: ParameterSet, xi: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return public keys and secret keys made from seeds xi (ML-DSA.KeyGen_internal, algorithm 6)."""
    check_lengths(xi, 32)
    rho, rho_prime, key = columns([_h(x + bytes([p.k, p.l]), 128) for x in xi], 32, 64, 32)
    s1 = _expand_s(rho_prime, p.eta, range(p.l))
    s2 = _expand_s(rho_prime, p.eta, range(p.l, p.l + p.k))
    t = pg.dot(_expand_a(rho, p), RING(s1).ntt()[:, np.newaxis]).intt() + RING(s2)
    t1, t0 = _power2round(residues(t))

    pk = join(rho, byte_encode(t1, T1_BITS))  # pkEncode (algorithm 22)
    tr = [_h(pki, 64) for pki in pk]
    s1_packed, s2_packed = _bit_pack(s1, p.eta, p.eta), _bit_pack(s2, p.eta, p.eta)
    t0_packed = _bit_pack(t0, 2 ** (D - 1) - 1, 2 ** (D - 1))
    return pk, join(rho, key, tr, s1_packed, s2_packed, t0_packed)  # skEncode (algorithm 24)


def _expand_a(rho: Batch, p: ParameterSet) -> pg.Poly:
    """Return the matrices of ExpandA (FIPS 204, algorithm 32), of shape (batch, k, l).

    Entry [r, s] of a matrix is RejNTTPoly(rho || s || r) (algorithm 30).
    """
    seeds = [seed + bytes([s, r]) for seed in rho for r in range(p.k) for s in range(p.l)]
    stream = [shake_128(seed).digest(MATRIX_BYTES) for seed in seeds]
    triples = as_array(stream, MATRIX_BYTES // 3, 3).astype(np.uint32)
    candidates = triples @ np.array([1, 1 << 8, 1 << 16], np.uint32) % (1 << 23)
    values = first_accepted(candidates, below=Q)
    return evaluations(RING, values.reshape(len(rho), p.k, p.l, N))


def _expand_s(rho_prime: Batch, eta: int, nonces: Sequence[int]) -> Array:
    """Return the vectors of ExpandS (FIPS 204, algorithm 33), of shape (batch, len(nonces), N).

    The entries are integers in [-eta, eta].
    """
    seeds = [seed + nonce.to_bytes(2, "little") for seed in rho_prime for nonce in nonces]
    stream = as_array([_h(seed, SECRET_BYTES) for seed in seeds], SECRET_BYTES)
    # RejBoundedPoly (FIPS 204, algorithm 31) accepts a half-byte if it is less than the largest multiple of
    # 2 * eta + 1 in [0, 16]. So the remainders modulo 2 * eta + 1 are uniform.
    width = 2 * eta + 1
    values = first_accepted(byte_decode(stream, 4), below=16 // width * width) % width
    return (eta - values.astype(np.int64)).reshape(len(rho_prime), len(nonces), N)


def _power2round(r: Array) -> tuple[Array, Array]:
    """Return (r1, r0) with r = r1 * 2^D + r0 and r0 in (-2^(D-1), 2^(D-1)]: Power2Round (algorithm 35)."""
    r = r.astype(np.int64)
    r1 = (r + 2 ** (D - 1) - 1) >> D
    return r1, r - (r1 << D)


def _bit_pack(w: Array, a: int, b: int) -> list[bytes]:
    """Encode each w in [-a, b] as b - w: BitPack (algorithm 17)."""
    return byte_encode(b - w, (a + b).bit_length())


def _h(data: bytes, length: int) -> bytes:
    """Return H(data), which is SHAKE256 (section 3.7)."""
    return shake_256(data).digest(length)
