"""Exchange of values with SEAL, OpenFHE, Lattigo, JAX, python-flint and SymPy, in both directions.

Use it to compute on the polynomials of ciphertexts and keys that one of these libraries made, or to check an
implementation of yours against one of them.

SEAL, OpenFHE and Lattigo hold a polynomial modulo X^n + 1 as residues: for each modulus a row of n words of
64 bits. Their evaluated values have the bit-reversed order of polygpu: entry k is the value at
psi^(2 br(k) + 1), where br reverses the bits of k. The libraries differ in psi, a root of unity of order 2n:

  SEAL      the smallest root, as in Ring(n, moduli). Source: seal/util/ntt.cpp
  OpenFHE   the smallest root, as in Ring(n, moduli); its files state the root. Source: math/nbtheory-impl.h,
            RootOfUnity
  Lattigo   g^((q-1)/2n), where g is the least primitive root modulo q, as in Ring(n, moduli,
            root="generator"). Keys are in Montgomery form: a residue x is stored as x * 2^64 mod q.
            Source: ring/subring.go, core/rlwe/keys.go

If a program holds the words of SEAL or OpenFHE in memory, it needs no function of this module:
ring.from_residues(words, domain="eval") makes a value of them without a copy, and poly.data is an array of
the same words. The functions here read and write what these two libraries save. For Lattigo they convert
words in memory: to and from Montgomery form, and to another root.

torch.from_dlpack(poly) passes a value to PyTorch, and to_jax(poly) to JAX. ring(x) and ring.from_residues(x)
take arrays of both. polygpu.torch has operators on tensors.

Polynomials of python-flint and SymPy are converted coefficient by coefficient, through Python ints.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from ._backends import Array, backend_of
from ._core.checks import Domain, checked_degree, checked_moduli, debug, integer, shown
from ._core.locks import cached_property
from ._ops.arrays import as_integers
from .errors import (
    BackendUnavailable,
    CoefficientError,
    DomainError,
    FileError,
    NotCanonical,
    NotNTTFriendly,
    ParameterError,
    RingMismatch,
)
from .lattice import SwitchKey
from .poly import Poly, checked_poly, plan_of
from .ring import Ring

__all__ = [
    "SealParameters",
    "SealValue",
    "from_flint",
    "from_lattigo",
    "from_openfhe",
    "from_openfhe_keys",
    "from_seal",
    "from_seal_keys",
    "from_sympy",
    "to_flint",
    "to_jax",
    "to_lattigo",
    "to_openfhe",
    "to_seal",
    "to_seal_keys",
    "to_sympy",
]

Bytes = bytes | bytearray | memoryview


def _residues(ring: Ring, words: Any, domain: Domain) -> Poly:
    """Return a Poly with a copy of `words`. Raise NotCanonical if a word is not a residue."""
    with debug():
        return ring.from_residues(words, domain=domain, copy=True)


def _complete(ring: Ring, library: str) -> Ring:
    """Return `ring`. Raise NotNTTFriendly unless it has a complete transform and moduli of one word."""
    if ring.leaf_size != 1 or ring._plan.basis.wide:
        raise NotNTTFriendly(
            f"{ring!r} does not fit {library}, whose moduli are primes below 2**64 that are 1 modulo 2n, "
            "with n a power of two. Use ntt_primes(n, bits=...) to find such primes."
        )
    return ring


def _in_ring(poly: Poly, ring: Ring, name: str) -> Poly:
    """Return `poly` in `ring`. Raise RingMismatch if degree, kind or moduli differ; roots may differ.

    If the roots differ, an evaluated value is transformed to coefficients and back.
    """
    own = poly.ring
    if (own.n, own.kind, own.moduli) != (ring.n, ring.kind, ring.moduli):
        raise RingMismatch(
            f"{name} is of {own!r}, but it must be of {ring!r}. Use Poly.restrict(ring) to drop limbs, or "
            "Poly.convert(ring) to convert the values to other moduli."
        )
    if own == ring or poly.domain == "coef" or own.roots == ring.roots:
        return ring.from_residues(poly.data, domain=poly.domain)
    return ring.from_residues(poly.intt().data).ntt()


# ---- SEAL ----

Scheme = Literal["bfv", "ckks", "bgv"]

_SCHEMES: tuple[Scheme, ...] = get_args(Scheme)  # SEAL numbers them 1, 2, 3 in this order
_MAGIC, _HEADER_SIZE = 0xA15E, 16
_HEADER = Struct("<HBBBBHQ")  # magic, header's size, version (2 bytes), compression, reserved, whole size
_PARAMETERS = Struct("<BQQ")  # scheme, n, number of moduli
_PLAINTEXT = Struct("<32sQd")  # the fields: id of the parameters, number of words, scale
_CIPHERTEXT = Struct("<32sBQQQdQ")  # id, 1 if evaluated, polynomials, n, limbs, scale, correction factor
_KEYS = Struct("<32sQ")  # id, number of lists of keys
_COUNT = Struct("<Q")
_COEFFICIENTS = bytes(32)  # the id of a plaintext modulo t in coefficients: zeros instead of a hash
_MOST_POLYNOMIALS = 16  # the most polynomials in a ciphertext
_MOST_MODULI = 64
_LARGEST_DEGREE = 1 << 17
_DAMAGED = "The data is damaged. Save it again in SEAL."


@dataclass(frozen=True)
class SealParameters:
    """Encryption parameters of SEAL, which determine the rings of its values.

    Args:
        scheme: "bfv", "ckks" or "bgv".
        n: the degree, a power of two up to 2**17.
        moduli: all primes, in SEAL's order. If there are several, the last one is the special prime, by which
            key switching divides.
        plain_modulus: the plaintext modulus t of BFV and BGV; 0 for CKKS.
        minor: the minor version of the SEAL that is to load the written data: x for SEAL 4.x. SEAL 4.0 to 4.3
            load only data of their own version; later versions also load earlier data. from_bytes takes x
            from the data.

    `ring` is the ring of keys. If there are several moduli, a fresh ciphertext is in ring[:-1], and each
    modulus switch drops one more limb. To make keys for these values by polygpu.lattice, give ring[-1:] as
    `special`. If there is one modulus, all values are in `ring`.

    Raises:
        ParameterError: an argument is outside the rules of SEAL.
        NotNTTFriendly: a modulus is not a prime that is 1 mod 2n.
        FileError: from_bytes was given bytes that are not parameters.

    Source: seal/encryptionparams.cpp of SEAL 4.

    >>> p = SealParameters("ckks", 8, [97, 113, 193])
    >>> SealParameters.from_bytes(p.to_bytes()) == p
    True
    >>> p.ring[:-1]
    Ring(8, [97, 113])
    """

    scheme: Scheme
    n: int
    moduli: Sequence[int]
    plain_modulus: int = field(default=0, kw_only=True)
    minor: int = field(default=3, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        moduli, n = checked_moduli(self.moduli), checked_degree(self.n)
        plain = integer(self.plain_modulus, "plain_modulus")
        if self.scheme not in _SCHEMES:
            raise ParameterError(f"scheme={self.scheme!r} must be 'bfv', 'ckks' or 'bgv'.")
        if n & (n - 1) or n > _LARGEST_DEGREE:
            raise ParameterError(
                f"n={shown(n)} must be a power of two of at most {_LARGEST_DEGREE}, as in SEAL."
            )
        if max(moduli) >= 1 << 61 or len(moduli) > _MOST_MODULI:
            raise ParameterError(
                f"The number of moduli is {len(moduli)}, and the largest is {shown(max(moduli))}. SEAL needs "
                f"at most {_MOST_MODULI} moduli, and all of them below 2**61."
            )
        if (plain != 0) != (self.scheme != "ckks") or not 0 <= plain < 1 << 61 or plain == 1:
            rule = "0 for CKKS" if self.scheme == "ckks" else f"from 2 to 2**61 - 1 for {self.scheme.upper()}"
            raise ParameterError(f"plain_modulus={shown(plain)} must be {rule}.")
        minor = integer(self.minor, "minor")
        if not 0 <= minor < 256:
            raise ParameterError(f"minor={shown(minor)} must be from 0 to 255. It is the x of SEAL 4.x.")
        _complete(Ring(n, moduli), "SEAL")
        for name, value in (("n", n), ("moduli", moduli), ("plain_modulus", plain), ("minor", minor)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_bytes(cls, data: Bytes) -> SealParameters:
        """Return the parameters that EncryptionParameters::save wrote.

        In TenSEAL, context.seal_context().data.key_context_data().parms().save(path) writes them.

        Args:
            data: the bytes, compressed or not.

        Raises:
            FileError: the bytes are not parameters of SEAL, or some are missing.

        Cost: one pass over the bytes.

        >>> import polygpu as pg
        >>> known = pg.interop.SealParameters("ckks", 1024, pg.ntt_primes(1024, bits=30, count=2))
        >>> pg.interop.SealParameters.from_bytes(known.to_bytes()) == known
        True
        """
        stream = _Stream(data)
        number, n, count = stream.unpack(_PARAMETERS)
        if not 1 <= number <= len(_SCHEMES) or n > _LARGEST_DEGREE or count > _MOST_MODULI:
            raise FileError(
                f"data has scheme {number}, degree {n} and {count} moduli, and no parameters of SEAL have "
                "these. Give the bytes that EncryptionParameters::save wrote."
            )
        moduli = [stream.inner(lambda: stream.unpack(_COUNT)[0]) for _ in range(count)]
        plain = stream.inner(lambda: stream.unpack(_COUNT)[0])
        stream.end()
        return cls(_SCHEMES[number - 1], n, moduli, plain_modulus=plain, minor=stream.minor)

    def to_bytes(self) -> bytes:
        """Return the bytes that EncryptionParameters::load reads, not compressed.

        Cost: one pass over the bytes.

        >>> import polygpu as pg
        >>> data = pg.interop.SealParameters("ckks", 1024, pg.ntt_primes(1024, bits=30, count=2)).to_bytes()
        >>> data[:2] == (0xA15E).to_bytes(2, "little")  # SEAL's mark
        True
        """
        values = [self._object(_COUNT.pack(q)) for q in (*self.moduli, self.plain_modulus)]
        return self._object(_PARAMETERS.pack(self._number, self.n, len(self.moduli)), *values)

    @cached_property
    def ring(self) -> Ring:
        """Return the ring of keys, which has all moduli."""
        return Ring(self.n, self.moduli)

    @property
    def _number(self) -> int:
        return _SCHEMES.index(self.scheme) + 1

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Return a dict from parms_id (SEAL's hash of a level's parameters) to the number of limbs."""
        return {self._id(k): k for k in range(1, len(self.moduli) + 1)}

    def _id(self, limbs: int) -> bytes:
        words = [self._number, self.n, *self.moduli[:limbs], self.plain_modulus]
        return blake2b(np.array(words, "<u8").tobytes(), digest_size=32).digest()

    def _object(self, *parts: bytes) -> bytes:
        """Return an object as SEAL saves it without compression: the header, then the parts."""
        size = _HEADER_SIZE + sum(map(len, parts))
        return b"".join((_HEADER.pack(_MAGIC, _HEADER_SIZE, 4, self.minor, 0, 0, size), *parts))

    def _array(self, words: Array) -> bytes:
        return self._object(_COUNT.pack(words.size), words.astype("<u8", copy=False).tobytes())

    def _ring_of(self, identity: bytes) -> Ring:
        if identity not in self._ids:
            raise FileError(
                f"data was made with other parameters than {self!r} (its parms_id is "
                f"{identity.hex()[:16]}...). Use SealParameters.from_bytes to read the parameters that were "
                "saved beside it."
            )
        return self.ring[: self._ids[identity]]


@dataclass(frozen=True)
class SealValue:
    """A ciphertext, plaintext or key of SEAL.

    If `poly` has batch shape (size,), it is a ciphertext or public key, and its phase is the sum of
    poly[i] * s^i for the secret key s. If the batch shape is (), it is a plaintext or secret key. `scale` is
    the scale of CKKS, and 1 in other schemes. `correction_factor` is that of BGV, and 1 in other schemes.

    SEAL and polygpu number slots differently. Let psi be the root of unity of order 2n. SEAL's slot j is the
    value at psi^(3^j). In BFV and BGV there is a second row of slots, whose slot j is the value at
    psi^(-3^j). polygpu.fft.to_slots and Poly.to_slots use 5^j instead of 3^j.

    >>> R = Ring(8, 97)
    >>> c, key = SealValue(R([[3], [4]])), SealValue(R([1, 1]))
    >>> (c.poly[0] + c.poly[1] * key.poly).to_bigints()[:3].tolist()  # the phase
    [7, 4, 0]
    """

    poly: Poly
    scale: float = field(default=1.0, kw_only=True)
    correction_factor: int = field(default=1, kw_only=True)


def from_seal(data: Bytes, parameters: SealParameters) -> SealValue:
    """Read a Ciphertext, Plaintext, SecretKey or PublicKey that SEAL 4 saved.

    Args:
        data: the whole object, as `save` wrote it with any compression. In TenSEAL, call
            vector.ciphertext()[0].save(path) or context.secret_key().data.save(path).
        parameters: the parameters that the object was made with. The data contain SEAL's hash of their
            parameters, which must be the hash of `parameters`.

    Returns:
        A SealValue in memory of its own, in the domain in which it was saved. Its ring has the moduli of the
        value's level. The ring of a plaintext of BFV or BGV in coefficients is Ring(n, plain_modulus).

    Raises:
        FileError: the data are cut, damaged or not one of these objects; SEAL saved a seed in place of a
            polynomial; the object was made with other parameters; or the data are compressed by zstd and the
            package zstandard is missing (pip install "polygpu[interop]"; Python 3.14 does not need it).
        NotCanonical: a word is not a residue.

    Cost: two passes over the words. Source: seal/ciphertext.cpp, plaintext.cpp and serialization.h of SEAL 4.

    >>> p = SealParameters("ckks", 8, [97, 113, 193])
    >>> c = p.ring[:-1].random(2, seed=1).ntt()
    >>> value = from_seal(to_seal(c, p, scale=2.0**20), p)
    >>> value.poly == c, value.scale
    (True, 1048576.0)
    """
    _check_parameters(parameters)
    stream = _Stream(data)
    value = _read_value(stream, parameters)
    stream.end()
    return value


def to_seal(
    poly: Poly, parameters: SealParameters, *, scale: float = 1.0, correction_factor: int = 1
) -> bytes:
    """Serialise a value for SEAL 4, as a Ciphertext or PublicKey, or as a Plaintext or SecretKey.

    Args:
        poly: a value in parameters.ring[:k], for some k. If its batch shape is (size,), it becomes a
            Ciphertext or PublicKey in the value's domain: CKKS and BGV compute on evaluated values, BFV on
            coefficients. If its batch shape is (), it becomes an evaluated Plaintext or SecretKey. A value of
            batch shape () in Ring(n, plain_modulus) becomes a Plaintext of BFV or BGV in coefficients.
        parameters: the parameters of the context that will load the bytes.
        scale: the scale in CKKS; 1 in other schemes.
        correction_factor: the correction factor in BGV; 1 in other schemes.

    Returns the bytes, without compression. Write them to a file, for SEAL's `load`.

    Raises:
        RingMismatch: the ring of poly is neither parameters.ring[:k] nor Ring(n, plain_modulus).
        ParameterError: SEAL refuses this batch shape, scale or correction factor.

    Cost: two passes over the words. If the root is not the smallest, evaluated values also take an inverse
    and a forward transform.
    Source: see from_seal; seal/valcheck.cpp.

    >>> p = SealParameters("bfv", 8, [97, 113], plain_modulus=17)
    >>> from_seal(to_seal(Ring(8, 17)([1, 2]), p), p).poly.to_bigints().tolist()
    [1, 2, 0, 0, 0, 0, 0, 0]
    """
    _check_parameters(parameters)
    return _written(checked_poly(poly, "poly"), parameters, scale, correction_factor)


def from_seal_keys(
    data: Bytes, parameters: SealParameters, *, rotations: bool = False
) -> dict[int, SwitchKey]:
    """Read the keys of RelinKeys or GaloisKeys that SEAL 4 saved, for polygpu.lattice.key_switch.

    Args:
        data: see from_seal.
        parameters: the parameters that the keys were made with.
        rotations: True if the keys are GaloisKeys, False if they are RelinKeys. SEAL's files do not say.

    Returns:
        A dict of keys for values of parameters.ring[:-1], with digits of one limb. For RelinKeys, entry k
        switches from s^(k + 2) to s. For GaloisKeys, entry g is the key for X -> X^g, and its galois_element
        is g.

    Raises:
        FileError, NotCanonical: see from_seal.

    Cost: two passes over the words. Source: seal/kswitchkeys.cpp, keygenerator.cpp.

    >>> import polygpu as pg
    >>> p = SealParameters("ckks", 8, [97, 113, 193])
    >>> s, Q, P = p.ring.ternary(seed=1), p.ring[:-1], p.ring[-1:]
    >>> keys = pg.lattice.rotation_keys(s, [3], ring=Q, special=P, limbs_per_digit=1)
    >>> from_seal_keys(to_seal_keys(keys, p), p, rotations=True) == keys
    True
    """
    _check_parameters(parameters)
    stream = _Stream(data)
    identity, count = stream.unpack(_KEYS)
    if parameters._ring_of(identity) != parameters.ring or count > parameters.n:
        raise FileError(
            f"data does not hold RelinKeys or GaloisKeys (read as keys, data would have {count} lists). Use "
            "from_seal for other objects."
        )
    keys: dict[int, SwitchKey] = {}
    for index in range(count):
        digits = stream.unpack(_COUNT)[0]
        if digits not in (0, len(parameters.moduli) - 1):
            raise FileError(
                f"data has a key of {digits} digits for {len(parameters.moduli) - 1} limbs, and a key needs "
                f"one digit for each limb. {_DAMAGED}"
            )
        parts = [stream.inner(lambda: _read_value(stream, parameters).poly) for _ in range(digits)]
        if any(part.ring != parameters.ring or part.shape != (2,) for part in parts):
            raise FileError(
                f"The key {index} in data does not have the level and size that the parameters require. "
                f"{_DAMAGED}"
            )
        if parts:
            words = np.stack([part.ntt().data for part in parts])
            g = 2 * index + 1 if rotations else None
            value, Q, P = Poly(parameters.ring, words, "eval"), parameters.ring[:-1], parameters.ring[-1:]
            key = SwitchKey(value, ring=Q, special=P, limbs_per_digit=1, galois_element=g)
            keys[index if g is None else g] = key
    stream.end()
    return keys


def to_seal_keys(keys: Mapping[int, SwitchKey], parameters: SealParameters) -> bytes:
    """Serialise keys as RelinKeys or GaloisKeys of SEAL 4: the inverse of from_seal_keys.

    Args:
        keys: a dict as from_seal_keys returns it: from 0, 1, ... to relinearisation keys, or from Galois
            elements to rotation keys.
        parameters: the parameters of the context that will load the keys.

    Returns the bytes, without compression.

    Raises:
        ParameterError: an entry of keys is not a SwitchKey, or SEAL refuses an index or batch shape.
        RingMismatch: a key does not have the moduli of parameters.ring.

    Cost: two passes over the words.

    >>> import polygpu as pg
    >>> p = SealParameters("ckks", 8, [97, 193])
    >>> s, Q, P = p.ring.ternary(seed=1), p.ring[:-1], p.ring[-1:]
    >>> keys = pg.lattice.rotation_keys(s, [3], ring=Q, special=P, limbs_per_digit=1)
    >>> len(to_seal_keys(keys, p))  # 256 of the bytes are words
    441
    """
    _check_parameters(parameters)
    numbered = {}
    for number, key in keys.items():
        if not isinstance(key, SwitchKey):
            raise ParameterError(f"keys[{number}] must be a SwitchKey, not {type(key).__name__}.")
        g = key.galois_element  # SEAL's index of a rotation key is (g - 1) / 2
        numbered[integer(number, "keys") if g is None else (g - 1) // 2] = key
    indices = sorted(numbered)
    digits = len(parameters.moduli) - 1
    if not digits:
        raise ParameterError(
            "keys cannot be written for parameters of one modulus, because key switching in SEAL "
            "needs at least two moduli. Use parameters with more moduli."
        )
    if not indices or not 0 <= indices[0] <= indices[-1] < parameters.n:
        raise ParameterError(
            f"The indices of keys are {indices}. There must be at least one, and each must be in "
            f"[0, {parameters.n})."
        )
    parts = [_KEYS.pack(parameters._id(digits + 1), indices[-1] + 1)]
    for index in range(indices[-1] + 1):
        parts.append(_COUNT.pack(digits if index in numbered else 0))
        if index not in numbered:
            continue
        value = _in_ring(numbered[index].value, parameters.ring, "keys")
        if value.shape != (digits, 2):
            raise ParameterError(
                f"The batch shape of the key {index} in keys is {value.shape}. It must be ({digits}, 2), "
                "with one digit for each limb of ring[:-1]. Make the key with limbs_per_digit=1."
            )
        parts += [_written(digit, parameters, 1.0, 1) for digit in value]
    return parameters._object(*parts)


def _check_parameters(parameters: object) -> None:
    if not isinstance(parameters, SealParameters):
        raise ParameterError(f"parameters must be a SealParameters, not {type(parameters).__name__}.")


def _read_value(stream: _Stream, parameters: SealParameters) -> SealValue:
    """Read a Plaintext or a Ciphertext, whichever comes next."""
    # Both kinds have fields, then a header, then an array of words. If a header begins right after the fields
    # of a Plaintext, the object is a Plaintext.
    start = stream.take(_PLAINTEXT.size + 3)
    if start[-3:] == _HEADER.pack(_MAGIC, _HEADER_SIZE, 0, 0, 0, 0, 0)[:3]:
        identity, count, scale = _PLAINTEXT.unpack(start[:-3])
        if identity == _COEFFICIENTS:
            if parameters.scheme == "ckks":
                raise FileError(
                    "data is a plaintext without a modulus, but plaintexts of CKKS have one. Use CKKSEncoder "
                    "of SEAL to encode it before you save it."
                )
            ring, least = Ring(parameters.n, parameters.plain_modulus), 0
        else:
            ring = parameters._ring_of(identity)
            least = parameters.n * len(ring.moduli)
        most = parameters.n * len(ring.moduli)
        if not least <= count <= most:
            raise FileError(f"data is a plaintext of {count} words, which does not fit {ring!r}. {_DAMAGED}")
        words = stream.inner(lambda: stream.words(count), begun=3)
        words = np.pad(words, (0, most - count)).reshape(-1, parameters.n)
        return SealValue(_residues(ring, words, "eval" if least else "coef"), scale=scale)
    fields = start + stream.take(_CIPHERTEXT.size - len(start))
    identity, evaluated, size, n, limbs, scale, correction = _CIPHERTEXT.unpack(fields)
    ring = parameters._ring_of(identity)
    if (n, limbs) != (parameters.n, len(ring.moduli)) or evaluated > 1:
        raise FileError(
            f"data is a ciphertext of {limbs} limbs and degree {n} with is_ntt_form={evaluated}, which does "
            f"not fit {ring!r}. {_DAMAGED}"
        )
    if not 2 <= size <= _MOST_POLYNOMIALS:
        raise FileError(
            f"data is a ciphertext of {size} polynomials, but it must have 2 to 16. Encrypt a value in SEAL "
            "before you save it."
        )
    words = stream.inner(lambda: stream.words(size * limbs * n, seeded=limbs * n))
    poly = _residues(ring, words.reshape(size, limbs, n), "eval" if evaluated else "coef")
    return SealValue(poly, scale=scale, correction_factor=correction)


def _written(poly: Poly, parameters: SealParameters, scale: float, correction_factor: int) -> bytes:
    correction = integer(correction_factor, "correction_factor")
    if not isinstance(scale, (int, float)):
        raise ParameterError(f"scale={shown(scale)} must be a float, not {type(scale).__name__}.")
    if (scale != 1 and parameters.scheme != "ckks") or not 2.0**-1022 <= scale < math.inf:
        raise ParameterError(f"scale={scale} must be positive and finite for CKKS, and 1 for BFV and BGV.")
    if not 0 < correction < (parameters.plain_modulus if parameters.scheme == "bgv" else 2):
        raise ParameterError(
            f"correction_factor={shown(correction)} must be in [1, plain_modulus) for BGV, and 1 for BFV and "
            "CKKS."
        )
    poly = poly.cpu()
    if poly.ring.moduli == (parameters.plain_modulus,) and not poly.ndim:
        poly = _in_ring(poly, Ring(parameters.n, parameters.plain_modulus), "poly").intt()
        return parameters._object(
            _PLAINTEXT.pack(_COEFFICIENTS, parameters.n, scale), parameters._array(poly.data)
        )
    limbs = len(poly.ring.moduli)
    poly = _in_ring(poly, parameters.ring[: min(limbs, len(parameters.moduli))], "poly")
    identity = parameters._id(limbs)
    if not poly.ndim:
        words = poly.ntt().data
        return parameters._object(_PLAINTEXT.pack(identity, words.size, scale), parameters._array(words))
    if poly.ndim != 1 or not 2 <= poly.shape[0] <= _MOST_POLYNOMIALS:
        raise ParameterError(
            f"The batch shape of poly is {poly.shape}. It must be () for a plaintext, or (size,) for a "
            "ciphertext of 2 to 16 polynomials. Write the elements of a batch one by one."
        )
    fields = (identity, poly.domain == "eval", poly.shape[0], parameters.n, limbs, scale, correction)
    return parameters._object(_CIPHERTEXT.pack(*fields), parameters._array(poly.data))


_T = TypeVar("_T")


class _Stream:
    """The bytes after the header of an object of SEAL, read in order and decompressed as they are read."""

    def __init__(self, data: Bytes) -> None:
        try:
            given = memoryview(data).cast("B")
        except TypeError:
            raise FileError(
                f"data must be bytes, not {type(data).__name__}. Use open(path, 'rb').read() to read a file."
            ) from None
        self._read: Callable[[int], bytes] = io.BytesIO(given).read
        self._at, self.minor = 0, 0
        compression, size = self._header(b"")
        if size != len(given):
            raise FileError(
                f"data has {len(given)} bytes, but its header says {size}. The data is cut, or it holds "
                "several objects. Give one whole object."
            )
        if compression:
            self._read = _Expanded(compression, given[_HEADER_SIZE:]).read

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; raise FileError if fewer bytes are left."""
        parts, missing = [], count
        while missing:
            try:
                part = self._read(missing)
            except EOFError:  # the compressed data are cut
                part = b""
            except Exception as error:  # zlib and zstandard have error classes of their own
                raise FileError(
                    f"The compression of data is damaged ({error}). Save the object again."
                ) from error
            if not part:
                raise FileError(
                    f"data ends {missing} bytes early. If data is cut, save the object again. If the object "
                    "is of another kind, use from_seal for ciphertexts, plaintexts and secret and public "
                    "keys, from_seal_keys for RelinKeys and GaloisKeys, and SealParameters.from_bytes for "
                    "parameters."
                )
            parts.append(part)
            missing -= len(part)
        self._at += count
        return b"".join(parts)

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Return the next fields, unpacked by `layout`."""
        return layout.unpack(self.take(layout.size))

    def words(self, count: int, seeded: int = -1) -> Array:
        """Read a length and the array of words after it. Raise FileError if the length is not `count`.

        seeded: the length that SEAL writes if it saved a seed instead of a polynomial. This length has its
        own error text.
        """
        found = self.unpack(_COUNT)[0]
        if found == seeded != count:
            raise FileError(
                "data was saved with a seed in place of a polynomial, and only SEAL can expand this seed. "
                "Load data in SEAL and save the object again, or save an object that is not a Serializable."
            )
        if found != count:
            raise FileError(f"data has an array of {found} words, but it must have {count}. {_DAMAGED}")
        return np.frombuffer(self.take(8 * count), "<u8")

    def inner(self, read: Callable[[], _T], begun: int = 0) -> _T:
        """Read the header of an object inside another one. Then call read(), and return its result.

        begun: number of header bytes already read.
        """
        first = self._at - begun
        magic = _HEADER.pack(_MAGIC, _HEADER_SIZE, 0, 0, 0, 0, 0)[:begun]
        compression, size = self._header(magic)
        if compression:
            raise FileError(f"data has a compressed object inside, which SEAL never writes. {_DAMAGED}")
        found = read()
        if self._at - first != size:
            raise FileError(
                f"data has an inner object of {self._at - first} bytes, but its header says {size} bytes. "
                f"{_DAMAGED}"
            )
        return found

    def end(self) -> None:
        """Raise FileError if more bytes follow."""
        try:
            more = self._read(1)
        except Exception as error:
            raise FileError(
                f"The compression of data is damaged ({error}). Save the object again."
            ) from error
        if more:
            raise FileError(
                "data has more bytes than the object that was asked for. Use from_seal for ciphertexts, "
                "plaintexts and secret and public keys, and from_seal_keys for RelinKeys and GaloisKeys."
            )

    def _header(self, begun: bytes) -> tuple[int, int]:
        """Read a header. Return its compression and size. begun: the first bytes, if already read."""
        fields = _HEADER.unpack(begun + self.take(_HEADER_SIZE - len(begun)))
        magic, length, major, self.minor, compression, _, size = fields
        if (magic, length) != (_MAGIC, _HEADER_SIZE):
            raise FileError(
                "data does not begin with a header of SEAL. Give the bytes that `save` of an object of SEAL "
                "wrote."
            )
        if major != 4:
            raise FileError(
                f"data was saved by SEAL {major}.{self.minor}, but it must be of SEAL 4. Load it and save it "
                "again with SEAL 4."
            )
        return compression, size


class _Expanded:
    """Compressed data, decompressed in order, in pieces of 64 KiB.

    SEAL writes many short fields. If read() decompressed a field alone, zlib would copy the whole rest of its
    input.
    """

    def __init__(self, compression: int, data: memoryview) -> None:
        self._more = _expander(compression, data)
        self._ready, self._at = memoryview(b""), 0

    def read(self, count: int) -> bytes:
        """Return the next bytes: at least 1 and at most `count`, or b"" at the end of the data."""
        if self._at == len(self._ready):
            self._ready, self._at = memoryview(self._more()), 0
        part = self._ready[self._at : self._at + count]
        self._at += len(part)
        return bytes(part)


_PIECE = 1 << 16  # the most bytes of input, and of output, in one call of a decompressor


def _expander(compression: int, data: memoryview) -> Callable[[], bytes]:
    """Return a function that returns the next decompressed piece. compression: SEAL's compr_mode_type."""
    if compression == 1:
        import zlib

        expander = zlib.decompressobj()
        pieces = (data[i : i + _PIECE] for i in range(0, len(data), _PIECE))

        def more() -> bytes:
            found = b""
            while not found and not expander.eof:
                rest: bytes | memoryview = expander.unconsumed_tail or next(pieces, b"")
                found = expander.decompress(rest, _PIECE)
                if not found and not rest:
                    raise EOFError("the compressed data are cut")
            if not found and (expander.unused_data or next(pieces, b"")):
                raise ValueError("more bytes follow the end of the compressed data")
            return found

        return more
    if compression == 2:
        if sys.version_info >= (3, 14):
            from compression import zstd

            return partial(zstd.ZstdFile(io.BytesIO(data)).read, _PIECE)
        try:
            import zstandard
        except ImportError as error:
            raise FileError(
                f"data is compressed by zstd, and zstandard cannot be imported ({error}). Run pip install "
                '"polygpu[interop]", or save with compr_mode_type::none or compr_mode_type::zlib.'
            ) from None
        return partial(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read, _PIECE)
    raise FileError(
        f"data has compression {compression}, but it must have 0 (none), 1 (zlib) or 2 (zstd). Save it with "
        "one of these."
    )


# ---- OpenFHE ----

_FORMATS: tuple[Domain, ...] = ("eval", "coef")  # OpenFHE's Format is the index: EVALUATION is 0
_DAMAGED_JSON = "The JSON is damaged. Serialise the object again."
_NEW = 1 << 31  # bit of cereal's object numbers: set if the object follows here, clear if it came earlier


def from_openfhe(text: str | bytes) -> Poly:
    """Read the polynomials of a ciphertext or key that OpenFHE serialised to JSON.

    Args:
        text: what Serial::SerializeToFile or Serialize wrote with SerType::JSON: a Ciphertext, PrivateKey,
            PublicKey or key-switching keys. from_openfhe_keys reads key-switching keys as SwitchKeys.

    Returns:
        A value in the ring and domain that the text states. Its batch axes are the nested lists of the text.
        The batch shape of a ciphertext or public key is (size,), and its phase is the sum of poly[i] * s^i
        for the secret key s. The batch shape of a secret key is (), and that of key-switching keys is (tags,
        keys, 2, digits), where index 0 of the axis of length 2 has the masks a_j, and index 1 the bodies b_j.

    Raises:
        FileError: the text is not JSON; it has no polynomials; its polynomials have different rings or
            domains; or lists of polynomials have different lengths.
        NotNTTFriendly, BadRoot: the ring that the text states has no transform with its root.
        NotCanonical: a number is not a residue.

    Cost: about 0.5 us for each coefficient and limb, most of it for JSON.
    Source: lattice/hal/default/dcrtpoly.h of OpenFHE 1, and cereal 1.3, which serialises.

    >>> import json
    >>> prime = {"value0": {"co": 4, "rd": 2, "cm": {"v": 5}, "ru": {"v": 2}}}
    >>> limb = {"v": {"ptr_wrapper": {"data": {"v": [3, 4], "m": {"v": 5}}}}, "f": 0}
    >>> limb["p"] = {"ptr_wrapper": {"id": 2**31 + 1, "data": prime}}
    >>> from_openfhe(json.dumps({"v": [limb], "f": 0, "p": 0}))
    Poly(n=2, q=5, domain=eval, shape=(), device=cpu, values=[3, 4])
    """
    source = _Serialised.of(text, "text")
    ring, domain, rows = _openfhe_ring(source, "text")
    words = np.stack(rows).reshape(*source.shape, len(ring.moduli), ring.n)
    return _residues(ring, words, domain)


def from_openfhe_keys(text: str | bytes, *, special: int) -> dict[int, SwitchKey]:
    """Read keys of hybrid key switching that OpenFHE serialised to JSON, for polygpu.lattice.

    Args:
        text: what SerializeEvalMultKey or SerializeEvalAutomorphismKey wrote with SerType::JSON, for one key
            tag. The context must have KeySwitchTechnique HYBRID, OpenFHE's default.
        special: the number of special primes, which are the last moduli of the keys. OpenFHE does not write
            this number. Get it by GetParamsP()->GetParams().size() from the context's parameters.

    Returns:
        A dict of SwitchKeys. They switch polynomials modulo the moduli before the special primes. For an
        EvalMultKey, entry k switches from s^(k + 2) to s. For an EvalAutomorphismKey, entry g is the key for
        X -> X^g. The attribute `turned` of this key is True, because OpenFHE applies the automorphism after
        the switch.

    Raises:
        FileError: the text has no keys, or has keys of several tags. For other errors, see from_openfhe.
        ParameterError: `special` is below 1, or leaves no modulus for the values.

    Cost: that of from_openfhe, and a copy.
    Source: scheme/rns/rns-leveledshe.cpp and keyswitch/keyswitch-hybrid.cpp of OpenFHE 1.

    >>> import polygpu as pg
    >>> from_openfhe_keys('{"value0": []}', special=1)
    Traceback (most recent call last):
        ...
    polygpu.errors.FileError: text holds no polynomials. Serialise a ciphertext or a key of OpenFHE.
    """
    source = _Serialised.of(text, "text")
    ring, domain, rows = _openfhe_ring(source, "text")
    tags = source.tree.get("value0") if isinstance(source.tree, dict) else None
    if len(source.shape) != 4 or not isinstance(tags, list) or len(tags) != 1:
        raise FileError(
            f"text holds polynomials of shape {source.shape}, but it must hold the keys of one key tag. "
            "Serialise keys by SerializeEvalMultKey or SerializeEvalAutomorphismKey with a key tag, and "
            "use from_openfhe for other objects."
        )
    _, count, _, digits = source.shape
    limbs = ring.rows - integer(special, "special")
    if not 0 < limbs < ring.rows:
        raise ParameterError(
            f"special={shown(special)} must be from 1 to {ring.rows - 1}, because the keys have "
            f"{ring.rows} moduli."
        )
    words = np.stack(rows).reshape(count, 2, digits, ring.rows, ring.n)
    keys = {}
    for (g, index), halves in zip(_galois_elements(tags[0], count), words, strict=True):
        # Change the shape (2, digits), masks first, to (digits, 2), bodies first.
        value = _residues(ring, np.ascontiguousarray(halves[::-1].swapaxes(0, 1)), domain)
        keys[index] = SwitchKey(
            value,
            ring=ring[:limbs],
            special=ring[limbs:],
            limbs_per_digit=-(-limbs // digits),
            galois_element=g,
            turned=g is not None,
        )
    return keys


def _galois_elements(tag: Any, count: int) -> list[tuple[int | None, int]]:
    """Return (Galois element, index) for each key. The element is None for keys of an EvalMultKey.

    index: the key's place in the dict of from_openfhe_keys. tag: the JSON of all keys with one key tag.
    count: the number of keys.
    """
    keys = tag.get("value") if isinstance(tag, dict) else None
    if isinstance(keys, list):
        return [(None, index) for index in range(count)]
    try:
        elements = [key["key"] for key in keys["ptr_wrapper"]["data"]]  # type: ignore[index]
    except (KeyError, TypeError) as error:
        missing = f" (field {error} is missing)" if isinstance(error, KeyError) else ""
        raise FileError(
            f"text has keys without Galois elements{missing}. text is damaged, or OpenFHE 1 did not write "
            "it. Serialise the keys again with OpenFHE 1."
        ) from None
    if len(elements) != count or any(type(g) is not int for g in elements):
        raise FileError(
            f"text has {count} keys, but their Galois elements are {shown(elements)}, not {count} ints. text "
            "is damaged. Serialise the keys again."
        )
    return [(g, g) for g in elements]


def to_openfhe(poly: Poly, like: str | bytes) -> str:
    """Return JSON for OpenFHE: the serialised object `like`, whose polynomials are replaced by those of poly.

    Args:
        poly: the value. Moduli, domain and batch shape are those of from_openfhe(like).
        like: an object that OpenFHE serialised to JSON. Everything but its polynomials is kept: context,
            level, scale and tag. To write a ciphertext, give a ciphertext with the same level and number of
            polynomials.

    Raises:
        FileError: `like` is wrong, see from_openfhe. RingMismatch: the moduli differ.
        ParameterError: the batch shapes differ. DomainError: the domains differ.

    Cost: twice that of from_openfhe. If the roots of poly and `like` differ, evaluated values also take an
    inverse and a forward transform.

    >>> import json
    >>> prime = {"value0": {"co": 4, "rd": 2, "cm": {"v": 5}, "ru": {"v": 2}}}
    >>> limb = {"v": {"ptr_wrapper": {"data": {"v": [3, 4], "m": {"v": 5}}}}, "f": 0}
    >>> limb["p"] = {"ptr_wrapper": {"id": 2**31 + 1, "data": prime}}
    >>> text = json.dumps({"v": [limb], "f": 0, "p": 0})
    >>> twice = to_openfhe(from_openfhe(text) * 2, text)
    >>> from_openfhe(twice).data.tolist()
    [[1, 3]]
    """
    import json

    target = _Serialised.of(like, "like")
    ring, domain, _ = _openfhe_ring(target, "like")
    poly = _in_ring(checked_poly(poly, "poly").cpu(), ring, "poly")
    if poly.shape != target.shape:
        raise ParameterError(
            f"The batch shape of poly is {poly.shape}, and that of `like` is {target.shape}. Serialise an "
            "object with the shape of poly, and give it as `like`."
        )
    if poly.domain != domain:
        raise DomainError(
            f"poly is in domain {poly.domain!r}, and `like` is in domain {domain!r}. Use poly.ntt() or "
            "poly.intt() to change the domain of poly."
        )
    polynomials = poly.data.reshape(-1, len(ring.moduli), ring.n).tolist()
    for tower, rows in zip(target.towers, polynomials, strict=True):
        for element, row in zip(tower["v"], rows, strict=True):
            element["v"]["ptr_wrapper"]["data"]["v"] = row
    return json.dumps(target.tree, separators=(",", ":"))


@dataclass
class _Serialised:
    """A parsed text of OpenFHE: the tree of JSON, and the polynomials in this tree."""

    tree: Any
    shape: tuple[int, ...]  # the shape of the nested lists that hold the polynomials
    towers: list[Any]  # the polynomials, in the text's order
    objects: dict[int, Any]  # from cereal's number of a shared object to the object

    @staticmethod
    def of(text: str | bytes, name: str) -> _Serialised:
        import json

        found = _Serialised(None, (), [], {})
        try:
            found.tree = json.loads(text)
            shape = found._collect(found.tree, name)
        except FileError:
            raise
        except TypeError:
            raise FileError(
                f"{name} must be JSON as str or bytes, not {type(text).__name__}. Use open(path).read() to "
                "read a file."
            ) from None
        except (ValueError, RecursionError) as error:
            raise FileError(f"{name} is not JSON ({error}). Serialise with SerType::JSON.") from None
        if shape is None:
            raise FileError(f"{name} holds no polynomials. Serialise a ciphertext or a key of OpenFHE.")
        found.shape = shape
        return found

    def _collect(self, node: Any, name: str) -> tuple[int, ...] | None:
        """Add the polynomials below `node` to self.towers, and the shared objects to self.objects.

        Return the shape of the nested lists of polynomials. Return None if polynomials are missing.
        """
        children = node
        if isinstance(node, dict):
            limbs = node["v"] if _is_element(node) else None
            if isinstance(limbs, list) and limbs and all(map(_is_element, limbs)):
                self.towers.append(node)
                for element in (node, *limbs):
                    self._collect(element["p"], name)
                return ()
            number = node.get("id")
            if type(number) is int and number & _NEW and "data" in node:
                self.objects[number ^ _NEW] = node["data"]
            children = list(node.values())
        elif not isinstance(node, list) or not node or not isinstance(node[0], (dict, list)):
            return None
        # A list adds an axis to the shape. A dict adds one only if several of its values hold polynomials.
        shapes = []
        for child in children:
            if (shape := self._collect(child, name)) is not None:
                shapes.append(shape)
        if not shapes or (isinstance(node, dict) and len(shapes) == 1):
            return shapes[0] if shapes else None
        if len(set(shapes)) > 1:
            raise FileError(
                f"{name} holds lists of polynomials of the shapes {set(shapes)}. Serialise each object alone."
            )
        return (len(shapes), *shapes[0])


def _is_element(node: Any) -> bool:
    """Return whether a node is a polynomial or a limb: it has values, a format and parameters."""
    return isinstance(node, dict) and {"v", "f", "p"} <= node.keys()


def _row(values: list[Any], name: str) -> Array:
    """Return `values`, a list from JSON, as an array of words."""
    if set(map(type, values)) != {int}:
        raise FileError(f"{name} has residues that are not ints. {_DAMAGED_JSON}")
    try:
        return np.array(values, np.uint64)
    except OverflowError:
        worst = max(values) if min(values) >= 0 else min(values)
        raise NotCanonical(
            f"{name} has {shown(worst)}, which is not a residue modulo a prime below 2**64. {_DAMAGED_JSON}"
        ) from None


def _openfhe_ring(source: _Serialised, name: str) -> tuple[Ring, Domain, list[Any]]:
    """Return ring and domain of all polynomials of `source`, and an array of residues for each limb."""
    found, rows = set(), []
    try:
        for tower in source.towers:
            limbs = []
            for element in tower["v"]:
                own = element["p"]["ptr_wrapper"]
                prime = source.objects[own["id"] & ~_NEW]["value0"]
                vector = element["v"]["ptr_wrapper"]["data"]
                fields = (prime["co"], prime["rd"], prime["cm"]["v"], prime["ru"]["v"])
                if vector["m"]["v"] != fields[2] or len(vector["v"]) != fields[1]:
                    raise KeyError("a modulus")
                limbs.append((*fields, element["f"]))
                rows.append(_row(vector["v"], name))
            found.add(tuple(limbs))
    except (KeyError, TypeError) as error:
        raise FileError(
            f"{name} has a polynomial without a field that it needs ({error}). {name} is damaged, or "
            "OpenFHE 1 did not write it. Serialise the object again with OpenFHE 1."
        ) from None
    if len(found) != 1:
        raise FileError(
            f"{name} holds polynomials of {len(found)} different rings or formats. Serialise one object "
            "alone."
        )
    orders, degrees, moduli, roots, formats = zip(*found.pop(), strict=True)
    n = degrees[0]
    if any(type(x) is not int for x in (*orders, *degrees, *moduli, *roots, *formats)):
        raise FileError(f"{name} has parameters that are not ints. {_DAMAGED_JSON}")
    if {*orders, *(2 * d for d in degrees)} != {2 * n} or n & (n - 1):
        raise FileError(
            f"{name} has cyclotomic order {shown(orders[0])} and degree {shown(n)}. They must be 2n and n, "
            "with n a power of two, for a ring modulo X^n + 1."
        )
    if len(set(formats)) != 1 or formats[0] not in (0, 1):
        raise FileError(
            f"{name} has a polynomial with the formats {formats}. They must be all 0 (EVALUATION) or all 1 "
            "(COEFFICIENT)."
        )
    ring = _complete(Ring(n, moduli), "OpenFHE")
    if formats[0] == 0 and ring.roots != roots:
        ring = Ring(n, moduli, root=roots)
    return ring, _FORMATS[formats[0]], rows


# ---- Lattigo ----

# The least n of Lattigo. Lattigo searches for primitive roots from 3 upwards, and polygpu from 2. If n is at
# least 8, q is 1 mod 16, so 2 is not a primitive root modulo q, and both searches find the same root.
_LEAST_DEGREE = 8


def from_lattigo(
    words: Any, moduli: Ring | Sequence[int], *, domain: Domain = "eval", montgomery: bool = False
) -> Poly:
    """Return the value of Lattigo's words (ring.Poly.Coeffs), modulo X^n + 1.

    Args:
        words: unsigned integers of shape (*batch, limbs, n) in [0, q), in an array of NumPy or CuPy.
        moduli: the moduli, one for each limb; or the Ring of the result, which has these moduli.
        domain: "eval" if IsNTT is true in Lattigo, as for keys and for ciphertexts of CKKS and BGV, else
            "coef".
        montgomery: whether the words are in Montgomery form, x * 2^64 mod q for a residue x. In Lattigo this
            is IsMontgomery, which is true for keys and false for ciphertexts.

    Returns a value of Ring(n, moduli, root="generator"), or of the Ring given, in the domain of the words and
    in memory of its own.

    Raises:
        ParameterError: the shape of words is not (*batch, limbs, n), or n is below 8.
        NotCanonical: a word is not a residue. NotNTTFriendly: a modulus is not a prime that is 1 mod 2n.
        RingMismatch: the Ring given differs in degree or kind.

    Cost: two passes over the words. Words in Montgomery form also take one product each. If the Ring given
    has another root than "generator", evaluated words also take an inverse and a forward transform.
    Source: ring/subring.go, ring/ntt.go, ring/modular_reduction.go and core/rlwe/keys.go of Lattigo 6.

    >>> import numpy as np
    >>> words = np.array([[2**64 % 97, 3 * 2**64 % 97, 0, 0, 0, 0, 0, 0]], np.uint64)
    >>> from_lattigo(words, [97], domain="coef", montgomery=True).to_bigints().tolist()
    [1, 3, 0, 0, 0, 0, 0, 0]
    """
    words = as_integers(words, "words")
    given = moduli if isinstance(moduli, Ring) else None
    primes = moduli.moduli if isinstance(moduli, Ring) else moduli
    own = _lattigo_ring(words.shape[-1] if words.ndim else 0, primes)
    poly = _residues(own, words, domain)
    if montgomery:
        poly.scale_by(limbs=[pow(2, -64, q) for q in own.moduli], out=poly)
    return poly if given is None else _in_ring(poly, given, "words")


def to_lattigo(poly: Poly, *, montgomery: bool = False) -> Array:
    """Return Lattigo's words of a value: uint64 (*batch, limbs, n), in the value's domain, on its device.

    Args:
        poly: a value modulo X^n + 1, n at least 8.
        montgomery: whether to return words in Montgomery form, x * 2^64 mod q, as Lattigo holds keys.

    Returns an array in memory of its own. In Go each row is a []uint64 of ring.Poly.Coeffs.

    Raises:
        ParameterError: n is below 8, or the ring is not modulo X^n + 1.
        NotNTTFriendly: a modulus is not a prime that is 1 mod 2n.

    Cost and source: see from_lattigo.

    >>> to_lattigo(Ring(8, 97)([1, 3]), montgomery=True)[0, :2].tolist() == [2**64 % 97, 3 * 2**64 % 97]
    True
    """
    poly = checked_poly(poly, "poly")
    ring = poly.ring
    if ring.kind != "negacyclic":
        raise ParameterError(
            f"poly is of {ring!r}, but the standard rings of Lattigo are modulo X^n + 1. Use a ring with "
            "kind='negacyclic'."
        )
    poly = _in_ring(poly, _lattigo_ring(ring.n, ring.moduli), "poly")
    if montgomery:
        poly = poly.scale_by(limbs=[pow(2, 64, q) for q in ring.moduli])
    with backend_of(poly.data).device_scope():
        return poly.data.astype(np.uint64)


def _lattigo_ring(n: int, moduli: Sequence[int]) -> Ring:
    if n < _LEAST_DEGREE:
        raise ParameterError(
            f"n={n} must be at least {_LEAST_DEGREE}, as in Lattigo. It is the length of the last axis."
        )
    return Ring(n, _complete(Ring(n, moduli), "Lattigo").moduli, root="generator")


# ---- JAX ----


def to_jax(poly: Poly, *, copy: bool | None = None) -> Any:
    """Return the residues as an array of JAX, (*batch, rows, n), on the value's device.

    jax.numpy.from_dlpack(poly) gives the same if jax_enable_x64 is on. If it is off, JAX silently cuts
    residues of 64 bits to their lowest 32 bits; this function raises ParameterError instead.

    Args:
        poly: the value.
        copy: None or False shares the memory if JAX can. Then do not write into the value afterwards, because
            JAX assumes that its arrays never change. True always copies.

    Raises:
        ParameterError: residues have 64 bits and jax_enable_x64 is off.
        BackendUnavailable: JAX is not installed.

    Cost: nothing if the memory is shared, else a copy.

    >>> to_jax(Ring(4, 97)([1, 2])).tolist()  # doctest: +SKIP
    [[1, 2, 0, 0]]
    """
    poly = checked_poly(poly, "poly")
    try:
        import jax
    except ImportError as error:
        raise BackendUnavailable(f"JAX cannot be imported ({error}). Run pip install jax.") from None
    if poly.ring.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise ParameterError(
            f"The residues of poly are {poly.ring.dtype}, but jax_enable_x64 is off, so JAX would cut them "
            "to 32 bits. Use jax.config.update('jax_enable_x64', True) at the start of the program."
        )
    data = poly.data
    locked = isinstance(data, np.ndarray) and not data.flags.writeable  # JAX takes no read-only array
    if copy or locked:
        with backend_of(data).device_scope():
            data = data.copy()
    return jax.numpy.from_dlpack(data)


# ---- python-flint and SymPy: conversions through Python ints ----

Polynomials = Any  # one polynomial of another library, or a nested list of such polynomials


def from_flint(x: Polynomials, ring: Ring) -> Poly:
    """Return the value of polynomials of python-flint.

    Args:
        x: an fmpz_poly, nmod_poly or fmpz_mod_poly, or a nested list of them, which becomes a batch. Their
            degrees are below ring.n.
        ring: the ring of the value. The modulus of a polynomial, if it has one, is a multiple of
            ring.modulus.

    Returns a value in coefficients, on the current device.

    Raises:
        CoefficientError: x holds something else, such as an fmpq_poly.
        ParameterError: a polynomial has a degree of at least ring.n, or the nested lists are ragged.
        RingMismatch: the modulus of a polynomial is not a multiple of ring.modulus.

    Cost: about 0.2 us for each coefficient, and that of ring(ints).

    >>> import flint
    >>> from_flint([flint.fmpz_poly([1, -2]), flint.nmod_poly([3], 34)], Ring(4, 17))[0].to_bigints().tolist()
    [1, 15, 0, 0]
    """

    def coefficients(f: Any) -> list[int]:
        kind = type(f).__name__
        if type(f).__module__.partition(".")[0] != "flint" or kind not in _FLINT_KINDS:
            raise CoefficientError(
                f"x holds a {kind}, but it must hold polynomials of python-flint of the types "
                f"{', '.join(_FLINT_KINDS)}. Use ring(ints) for lists of coefficients."
            )
        if kind != "fmpz_poly":
            _check_multiple(int(f.modulus()), ring)
        return list(map(int, f.coeffs()))

    return _from_polynomials(x, ring, coefficients)


_FLINT_KINDS = ("fmpz_poly", "nmod_poly", "fmpz_mod_poly")


def to_flint(poly: Poly, *, centered: bool | None = None) -> Polynomials:
    """Return the coefficients of a value as polynomials of python-flint.

    Args:
        poly: the value, in either domain, on any device.
        centered: None for polynomials modulo Q: an nmod_poly if Q is below 2**64, else an fmpz_mod_poly. True
            for an fmpz_poly with coefficients in [-Q/2, Q/2), and False for one with coefficients in [0, Q).

    Returns one polynomial, or a nested list of the batch shape.

    Raises:
        RingMismatch: poly is not a Poly. ParameterError: centered is neither None nor a bool.
        BackendUnavailable: python-flint is not installed.

    Cost: about 0.2 us for each coefficient, plus the cost of to_bigints.

    >>> to_flint(Ring(4, 17)([1, -2])), to_flint(Ring(4, 17)([[1, -2]]), centered=True)
    (15*x + 1, [(-2)*x + 1])
    """
    poly = checked_poly(poly, "poly")
    try:
        import flint
    except ImportError as error:
        raise BackendUnavailable(
            f"python-flint cannot be imported ({error}). Run pip install python-flint."
        ) from None
    q = poly.ring.modulus
    if centered is not None and not isinstance(centered, bool):
        raise ParameterError(f"centered={shown(centered)} must be None, True or False.")
    if centered is not None:
        return _to_polynomials(poly, centered, flint.fmpz_poly)
    if q < 1 << 64:
        return _to_polynomials(poly, False, lambda ints: flint.nmod_poly(ints, q))
    polynomials: Any = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(q))
    return _to_polynomials(poly, False, lambda ints: polynomials(ints))


def from_sympy(x: Polynomials, ring: Ring) -> Poly:
    """Return the value of polynomials of SymPy.

    Args:
        x: a sympy.Poly in one generator, with integer coefficients or coefficients modulo an integer; or a
            nested list of them, which becomes a batch. Their degrees are below ring.n.
        ring: the ring of the value. The modulus of a Poly(..., modulus=m) is a multiple of ring.modulus.

    Returns a value in coefficients, on the current device.

    Raises:
        CoefficientError: x holds a Poly in several generators or with fractions, or is of another type.
        ParameterError: a polynomial has a degree of at least ring.n, or the nested lists are ragged.
        RingMismatch: the modulus of a polynomial is not a multiple of ring.modulus.

    Cost: about 1 us for each coefficient, and that of ring(ints).

    >>> from sympy import Poly, symbols
    >>> X = symbols("X")
    >>> from_sympy(Poly(X**3 - 2, X), Ring(4, 17)).to_bigints(centered=True).tolist()
    [-2, 0, 0, 1]
    """
    import sympy

    def coefficients(f: Any) -> list[int]:
        if not isinstance(f, sympy.Poly):
            raise CoefficientError(
                f"x holds a {type(f).__name__}, but it must hold objects of sympy.Poly. Use "
                "sympy.Poly(expression, X) for an expression in X."
            )
        if len(f.gens) != 1 or not (f.domain.is_ZZ or f.domain.is_FiniteField):
            raise CoefficientError(
                f"x holds {shown(f)}, but its polynomials must have one generator and integer coefficients. "
                "Multiply fractions by their denominators."
            )
        if f.domain.is_FiniteField:
            _check_multiple(int(f.get_modulus()), ring)
        return [int(c) for c in reversed(f.all_coeffs())]

    return _from_polynomials(x, ring, coefficients)


def to_sympy(poly: Poly, gen: Any = "X", *, centered: bool = True) -> Polynomials:
    """Return the coefficients of a value as polynomials of SymPy, over the integers.

    If f is the result, f.set_modulus(q) is the same polynomial modulo q.

    Args:
        poly: the value, in either domain, on any device.
        gen: the generator, a symbol or its name.
        centered: True for coefficients in [-Q/2, Q/2), or False for [0, Q).

    Returns one sympy.Poly, or a nested list of the batch shape.

    Raises:
        RingMismatch: poly is not a Poly. ParameterError: gen is neither a symbol nor a name.

    Cost: about 1 us for each coefficient, plus the cost of to_bigints.

    >>> to_sympy(Ring(4, 17)([1, -2]))
    Poly(-2*X + 1, X, domain='ZZ')
    """
    import sympy

    symbol = sympy.Symbol(gen) if isinstance(gen, str) and gen else gen
    if not isinstance(symbol, sympy.Symbol):
        raise ParameterError(f"gen={shown(gen)} must be a symbol of SymPy or its name, such as 'X'.")
    poly = checked_poly(poly, "poly")
    return _to_polynomials(
        poly, centered, lambda ints: sympy.Poly.from_list(ints[::-1], symbol, domain=sympy.ZZ)
    )


def _check_multiple(modulus: int, ring: Ring) -> None:
    """Raise RingMismatch unless residues modulo `modulus` determine residues modulo the ring's Q."""
    if modulus % ring.modulus:
        raise RingMismatch(
            f"x holds a polynomial modulo {shown(modulus)}, which is not a multiple of the ring's modulus "
            f"{shown(ring.modulus)}. Use a ring with modulus {shown(modulus)}."
        )


def _from_polynomials(x: Polynomials, ring: Ring, coefficients: Callable[[Any], list[int]]) -> Poly:
    """Return the value of polynomials. coefficients(f): the coefficients of f, constant term first."""
    plan_of(ring, "ring")
    flat: list[list[int]] = []

    def shape_of(node: Any) -> tuple[int, ...]:
        if not isinstance(node, (list, tuple)):
            flat.append(coefficients(node))
            return ()
        shapes = {shape_of(child) for child in node}
        if len(shapes) > 1:
            raise ParameterError("x is a ragged nested list. Give nested lists of one shape.")
        return (len(node), *(shapes.pop() if shapes else ()))

    shape = shape_of(x)
    ints = np.zeros((len(flat), ring.n), object)
    for row, values in zip(ints, flat, strict=True):
        if len(values) > ring.n:
            raise ParameterError(
                f"x holds a polynomial of degree {len(values) - 1}, but the degree must be below n={ring.n}. "
                "Reduce it modulo the ring's polynomial first."
            )
        row[: len(values)] = values
    return ring(ints.reshape(*shape, ring.n))


def _to_polynomials(poly: Poly, centered: bool, make: Callable[[list[int]], Any]) -> Polynomials:
    """Return make(coefficients) for each polynomial, in a nested list of the batch shape."""

    def nested(rows: Any, depth: int) -> Any:
        return make(rows) if depth == 0 else [nested(row, depth - 1) for row in rows]

    return nested(poly.to_bigints(centered=centered).tolist(), poly.ndim)
