"""ML-KEM (FIPS 203) on batches: key generation, encapsulation and decapsulation.

Each function takes lists with one entry per key pair, and works on all entries at once. hashlib hashes,
NumPy samples and packs, and polygpu does the arithmetic of Z_3329[X]/(X^256 + 1), most of it in the
evaluation domain, where values are in the order of the standard. Numbers of algorithms and equations are
those of FIPS 203.

This is an example. It is checked against NIST's known answers, but it is not constant time, so it does not
protect secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha3_256, sha3_512, shake_128, shake_256
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg

Array = NDArray[Any]
Batch = Sequence[bytes]  # one entry per key pair

RING = pg.Ring.preset("ml-kem")
N, Q = RING.n, RING.modulus
XOF_BYTES = 840  # 280 rounds of SampleNTT; more are needed with probability 2^-261 (appendix B)


@dataclass(frozen=True)
class ParameterSet:
    """A row of FIPS 203, table 2."""

    k: int
    eta1: int
    eta2: int
    du: int
    dv: int


ML_KEM_512 = ParameterSet(k=2, eta1=3, eta2=2, du=10, dv=4)
ML_KEM_768 = ParameterSet(k=3, eta1=2, eta2=2, du=10, dv=4)
ML_KEM_1024 = ParameterSet(k=4, eta1=2, eta2=2, du=11, dv=5)


def keygen(p: ParameterSet, d: Batch, z: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return encapsulation and decapsulation keys from seeds d, z (ML-KEM.KeyGen_internal, algorithm 16)."""
    check_lengths(z, 32)
    ek, s = _pke_keygen(p, d)
    return ek, join(s, ek, [_h(eki) for eki in ek], z)


def encaps(p: ParameterSet, ek: Batch, m: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return shared keys and ciphertexts for keys and messages (ML-KEM.Encaps_internal, algorithm 17)."""
    packed, _ = columns(ek, 384 * p.k, 32)
    if byte_encode(residues(_unpack(packed, p.k)), 12) != packed:
        raise ValueError(
            f"ek contains a value of at least {Q} (FIPS 203, 7.2). ek is damaged, so do not use it."
        )
    key, r = columns([_g(mi + _h(eki)) for mi, eki in zip(m, ek, strict=True)], 32, 32)
    return key, _pke_encrypt(p, ek, m, r)


def decaps(p: ParameterSet, dk: Batch, c: Batch) -> list[bytes]:
    """Return the shared keys of ciphertexts c for keys dk (ML-KEM.Decaps_internal, algorithm 18).

    If encrypting the decrypted message again does not reproduce the ciphertext, the shared key is J(z || c),
    where z is a secret seed in dk (implicit rejection).
    """
    s, ek, h, z = columns(dk, 384 * p.k, 384 * p.k + 32, 32, 32)
    if h != [_h(eki) for eki in ek]:
        raise ValueError(
            "The hash in dk is not the hash of the encapsulation key in dk (FIPS 203, 7.3). dk is damaged, "
            "so do not use it."
        )
    m = _pke_decrypt(p, s, c)
    key, r = columns([_g(mi + hi) for mi, hi in zip(m, h, strict=True)], 32, 32)
    expected = _pke_encrypt(p, ek, m, r)
    return [
        accepted if ci == ei else _j(zi + ci)
        for accepted, ci, ei, zi in zip(key, c, expected, z, strict=True)
    ]


def _pke_keygen(p: ParameterSet, d: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return the encoded keys (t || rho, s) with t = A * s + e, evaluated (K-PKE.KeyGen, algorithm 13)."""
    check_lengths(d, 32)
    rho, sigma = columns([_g(di + bytes([p.k])) for di in d], 32, 32)
    s = _noise(sigma, p.eta1, range(p.k)).ntt()
    e = _noise(sigma, p.eta1, range(p.k, 2 * p.k)).ntt()
    t = pg.dot(_matrix(rho, p.k), s[:, np.newaxis]) + e
    return join(byte_encode(residues(t), 12), rho), byte_encode(residues(s), 12)


def _pke_encrypt(p: ParameterSet, ek: Batch, m: Batch, r: Batch) -> list[bytes]:
    """Return u || v, compressed: u = A^T * y + e1, v = t * y + e2 + m (K-PKE.Encrypt, algorithm 14)."""
    packed, rho = columns(ek, 384 * p.k, 32)
    t = _unpack(packed, p.k)
    y = _noise(r, p.eta1, range(p.k)).ntt()
    e1 = _noise(r, p.eta2, range(p.k, 2 * p.k))
    e2 = _noise(r, p.eta2, [2 * p.k])[:, 0]
    u = pg.dot(_matrix(rho, p.k), y[:, :, np.newaxis], axis=1).intt() + e1
    v = pg.dot(t, y).intt() + e2 + _decompress(byte_decode(as_array(m, 32), 1), 1)
    c1 = byte_encode(_compress(u, p.du), p.du)
    c2 = byte_encode(_compress(v, p.dv), p.dv)
    return join(c1, c2)


def _pke_decrypt(p: ParameterSet, s: Batch, c: Batch) -> list[bytes]:
    """Return m = v - s * u, with coefficients rounded to one bit (K-PKE.Decrypt, algorithm 15)."""
    c1, c2 = columns(c, 32 * p.du * p.k, 32 * p.dv)
    u = _decompress(byte_decode(as_array(c1, p.k, 32 * p.du), p.du), p.du)
    v = _decompress(byte_decode(as_array(c2, 32 * p.dv), p.dv), p.dv)
    w = v - pg.dot(_unpack(s, p.k), u.ntt()).intt()
    return byte_encode(_compress(w, 1), 1)


def _matrix(rho: Batch, k: int) -> pg.Poly:
    """Return the matrices A, of shape (batch, k, k). Entry [i, j] is SampleNTT(rho || j || i)."""
    seeds = [ri + bytes([j, i]) for ri in rho for i in range(k) for j in range(k)]
    stream = as_array([shake_128(seed).digest(XOF_BYTES) for seed in seeds], XOF_BYTES)
    values = first_accepted(byte_decode(stream, 12), below=Q)  # SampleNTT (algorithm 7)
    return evaluations(RING, values.reshape(len(rho), k, k, N))


def _noise(seeds: Batch, eta: int, nonces: Sequence[int]) -> pg.Poly:
    """Return SamplePolyCBD_eta(PRF_eta(seed, nonce)) (algorithm 8), shape (batch, len(nonces))."""
    stream = [shake_256(si + bytes([n])).digest(64 * eta) for si in seeds for n in nonces]
    bits = np.unpackbits(as_array(stream, 64 * eta), axis=-1, bitorder="little")
    x, y = np.moveaxis(bits.reshape(len(seeds), len(nonces), N, 2, eta).sum(-1, np.int8), -1, 0)
    return RING(x - y)


def _unpack(packed: Batch, k: int) -> pg.Poly:
    """Decode vectors of k polynomials in the evaluation domain, by ByteDecode_12."""
    return evaluations(RING, byte_decode(as_array(packed, k, 384), 12) % Q)


def _compress(x: pg.Poly, d: int) -> Array:
    """Return Compress_d(x) (equation 4.7): round(2^d * x / q) mod 2^d."""
    return residues(pg.rns.scale(x, 1 << d, pg.Ring(N, 1 << d)))


def _decompress(y: Array, d: int) -> pg.Poly:
    """Return Decompress_d(y) (equation 4.8): q * y / 2^d, rounded to the nearest, with halves rounded up."""
    return pg.rns.scale(pg.Ring(N, 1 << d)(y), Q, RING)


def _g(data: bytes) -> bytes:
    """Return G(data), which is SHA3-512 (equation 4.5)."""
    return sha3_512(data).digest()


def _h(data: bytes) -> bytes:
    """Return H(data), which is SHA3-256 (equation 4.4)."""
    return sha3_256(data).digest()


def _j(data: bytes) -> bytes:
    """Return J(data), which is SHAKE256 (equation 4.4)."""
    return shake_256(data).digest(32)


def byte_encode(values: Array, d: int) -> list[bytes]:
    """Encode each row values[i] by ByteEncode_d (algorithm 5). Values have d <= 16 bits."""
    if values.dtype.kind not in "iu":
        raise pg.errors.CoefficientError(
            f"The dtype of values is {values.dtype}. It must be an integer dtype. Round the values first."
        )
    if np.min(values, initial=0) < 0 or np.max(values, initial=0) >> d:
        raise pg.ParameterError(
            f"values contains a number that is not from 0 to {2**d - 1}, which {d} bits hold. Reduce it "
            "first."
        )
    octets = values.astype("<u2")[..., np.newaxis].view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, count=d, bitorder="little")
    return [np.packbits(row, bitorder="little").tobytes() for row in bits]


def byte_decode(data: Array, d: int) -> Array:
    """Decode the last axis by ByteDecode_d (algorithm 6) to values of d <= 16 bits, not reduced modulo q."""
    bits = np.unpackbits(data, axis=-1, bitorder="little")
    groups = bits.reshape(*data.shape[:-1], 8 * data.shape[-1] // d, d)
    values = np.zeros((*groups.shape[:-1], 2), np.uint8)
    values[..., : -(-d // 8)] = np.packbits(groups, axis=-1, bitorder="little")
    return values.view("<u2")[..., 0]


def first_accepted(candidates: Array, below: int) -> Array:
    """Return the first N candidates of each row that are less than `below` (rejection sampling)."""
    accepted = candidates < below
    rank = accepted.cumsum(axis=-1, dtype=np.int32)
    if rank.size and rank[:, -1].min() < N:
        raise RuntimeError("A sampling stream is too short, which happens with a probability below 2^-250.")
    return candidates[accepted & (rank <= N)].reshape(-1, N)


def columns(rows: Batch, *widths: int) -> list[list[bytes]]:
    """Cut every row into fields of the given widths in bytes, and return one list per field."""
    check_lengths(rows, sum(widths))
    return [[row[i:j] for row in rows] for i, j in pairwise(accumulate(widths, initial=0))]


def join(*fields: Batch) -> list[bytes]:
    """Concatenate the fields of each row. This is the inverse of `columns`."""
    return [b"".join(row) for row in zip(*fields, strict=True)]


def check_lengths(rows: Batch, length: int) -> None:
    """Raise ParameterError unless every row has `length` bytes (the type checks of FIPS 203, 7.2 and 7.3)."""
    for i, row in enumerate(rows):
        if len(row) != length:
            raise pg.ParameterError(f"Entry {i} has {len(row)} bytes, but it must have {length}.")


def as_array(rows: Batch, *shape: int) -> Array:
    """Return byte strings as a uint8 array of shape (len(rows), *shape)."""
    check_lengths(rows, prod(shape))
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), *shape)


def evaluations(ring: pg.Ring, values: Array) -> pg.Poly:
    """Return an evaluated Poly of a ring with a single limb, made from residues (*batch, N)."""
    return ring.from_residues(values[..., np.newaxis, :], domain="eval").to()


def residues(a: pg.Poly) -> Array:
    """Return the residues (*batch, N) of a Poly with a single limb, on the host."""
    return np.asarray(a.cpu().data)[..., 0, :]
