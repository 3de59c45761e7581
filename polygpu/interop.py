"""Values of SEAL, OpenFHE, Lattigo and JAX: read, computed on here, and given back.

For those who have ciphertexts or keys of one of these libraries and want arithmetic on their polynomials, or
who check an implementation of their own against one.

SEAL, OpenFHE and Lattigo hold a polynomial modulo X^n + 1 as residues, a row of n words of 64 bits for each
modulus. Evaluated values stand in polygpu's bit-reversed order, entry k at psi^(2 br(k) + 1). The three
differ in psi, the root of order 2n:

  SEAL      the smallest one, as Ring(n, moduli). Source: seal/util/ntt.cpp
  OpenFHE   the smallest one, as Ring(n, moduli); files name it. Source: math/nbtheory-impl.h, RootOfUnity
  Lattigo   g^((q-1)/2n) of the least primitive root g, as Ring(n, moduli, root="generator"). Its keys are in
            Montgomery form, x 2^64 mod q. Source: ring/subring.go, core/rlwe/keys.go

Words of SEAL and OpenFHE that a program has in memory need no function of this module:
ring.from_residues(words, "eval") takes them without a copy, and poly.data are the words. The functions here
read and write what these two libraries save. For Lattigo they change the form and the root.

PyTorch takes a value by torch.from_dlpack(poly), JAX by to_jax(poly); their arrays are taken by ring(x) and
ring.from_residues(x).
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
    DomainError,
    FileError,
    NotCanonical,
    NotNTTFriendly,
    ParameterError,
    RingMismatch,
)
from .lattice import SwitchKey
from .poly import Poly, checked_poly
from .ring import Ring

__all__ = [
    "SealParameters",
    "SealValue",
    "from_lattigo",
    "from_openfhe",
    "from_openfhe_keys",
    "from_seal",
    "from_seal_keys",
    "to_jax",
    "to_lattigo",
    "to_openfhe",
    "to_seal",
    "to_seal_keys",
]

Bytes = bytes | bytearray | memoryview


def _residues(ring: Ring, words: Any, domain: Domain) -> Poly:
    """Return the value of words from outside, in its own memory. Each word is checked to be a residue."""
    with debug():
        return ring.from_residues(words, domain=domain, copy=True)


def _complete(ring: Ring, library: str) -> Ring:
    """Return the ring; raise NotNTTFriendly unless its transform is complete and its moduli are words."""
    if ring.leaf_size != 1 or ring._plan.basis.wide:
        raise NotNTTFriendly(
            f"{ring!r}: the moduli of {library} are primes below 2**64 that are 1 mod 2n, n a power of two; "
            "ntt_primes(n, bits=...) gives such primes"
        )
    return ring


def _in_ring(poly: Poly, ring: Ring, name: str) -> Poly:
    """Return the value in a ring of the same moduli; raise RingMismatch if they differ.

    If the roots differ, evaluated values go through coefficients.
    """
    own = poly.ring
    if (own.n, own.kind, own.moduli) != (ring.n, ring.kind, ring.moduli):
        raise RingMismatch(
            f"{name}: of {own!r}, must be of {ring!r}; {name}.restrict(ring) leaves out limbs, "
            f"{name}.convert(ring) takes its integers to other moduli"
        )
    if own == ring or poly.domain == "coef" or own.roots == ring.roots:
        return ring.from_residues(poly.data, domain=poly.domain)
    return ring.from_residues(poly.intt().data).ntt()


# ---- SEAL ----

Scheme = Literal["bfv", "ckks", "bgv"]

_SCHEMES: tuple[Scheme, ...] = get_args(Scheme)  # SEAL numbers them from 1
_MAGIC, _HEADER_SIZE = 0xA15E, 16
_HEADER = Struct("<HBBBBHQ")  # magic, header's size, version (2 bytes), compression, reserved, size
_PARAMETERS = Struct("<BQQ")  # scheme, n, number of moduli
_PLAINTEXT = Struct("<32sQd")  # id of the parameters, number of words, scale
_CIPHERTEXT = Struct("<32sBQQQdQ")  # id, evaluated or not, polynomials, n, limbs, scale, correction factor
_KEYS = Struct("<32sQ")  # id, number of lists of keys
_COUNT = Struct("<Q")
_COEFFICIENTS = bytes(32)  # the id of a plaintext modulo t, in coefficients
_MOST_POLYNOMIALS = 16  # of a ciphertext
_MOST_MODULI = 64
_LARGEST_DEGREE = 1 << 17


@dataclass(frozen=True)
class SealParameters:
    """Encryption parameters of SEAL: which rings its values are of.

    Args:
        scheme: "bfv", "ckks" or "bgv".
        n: the degree, a power of two up to 2**17.
        moduli: all primes, in SEAL's order: of several the last is the one that key switching divides by.
        plain_modulus: t of BFV and BGV; 0 for CKKS.
        minor: x of the SEAL 4.x that shall load what is written. SEAL 4.0 to 4.3 load only data of their own
            version, later ones also earlier data. from_bytes sets the version of its data.

    `ring` is the ring of keys. Of several moduli a fresh ciphertext is of ring[:-1], and it has a limb less
    after each modulus switch; ring[-1:] is `special` of polygpu.lattice.key_switch. Of one modulus all values
    are of `ring`.

    Raises:
        ParameterError, NotNTTFriendly: outside the rules of SEAL. FileError: bytes that are not parameters.

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
            raise ParameterError(f"scheme: {self.scheme!r} must be 'bfv', 'ckks' or 'bgv'")
        if n & (n - 1) or n > _LARGEST_DEGREE:
            raise ParameterError(f"n: {shown(n)} must be a power of two up to {_LARGEST_DEGREE}, as in SEAL")
        if max(moduli) >= 1 << 61 or len(moduli) > _MOST_MODULI:
            raise ParameterError(
                f"moduli: {len(moduli)} up to {shown(max(moduli))}; SEAL takes {_MOST_MODULI} below 2**61"
            )
        if (plain != 0) != (self.scheme != "ckks") or not 0 <= plain < 1 << 61 or plain == 1:
            rule = "0 for CKKS" if self.scheme == "ckks" else f"from 2 to 2**61 - 1 for {self.scheme.upper()}"
            raise ParameterError(f"plain_modulus: {shown(plain)} must be {rule}")
        minor = integer(self.minor, "minor")
        if not 0 <= minor < 256:
            raise ParameterError(f"minor: {shown(minor)} must be x of SEAL 4.x, below 256")
        _complete(Ring(n, moduli), "SEAL")
        for name, value in (("n", n), ("moduli", moduli), ("plain_modulus", plain), ("minor", minor)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_bytes(cls, data: Bytes) -> SealParameters:
        """Return the parameters that EncryptionParameters::save wrote.

        TenSEAL: context.seal_context().data.key_context_data().parms().save(path).

        Args:
            data: the bytes, compressed or not.

        Raises:
            FileError: bytes that are not parameters, or are cut.

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
                f"data: scheme {number}, degree {n}, {count} moduli are no parameters of SEAL; "
                "give what EncryptionParameters::save wrote"
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
        """Return the ring of keys, of all moduli."""
        return Ring(self.n, self.moduli)

    @property
    def _number(self) -> int:
        return _SCHEMES.index(self.scheme) + 1

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Return the number of limbs of a value by SEAL's hash of its parameters (parms_id)."""
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
                f"data: made with other parameters than {self!r} (its parms_id is {identity.hex()[:16]}...); "
                "SealParameters.from_bytes reads the parameters that were saved beside it"
            )
        return self.ring[: self._ids[identity]]


@dataclass(frozen=True)
class SealValue:
    """A value of SEAL.

    `poly`: of batch shape (size,) a ciphertext or public key, whose phase is the sum of poly[i] s^i; of
    shape () a plaintext or secret key. `scale`: of CKKS, else 1. `correction_factor`: of BGV, else 1.

    SEAL's slot j is the value at the root's power 3^j (of BFV and BGV in the second row at -3^j), where
    polygpu.fft.to_slots and Poly.to_slots take 5^j.

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
        data: the whole object, as `save` wrote it in any compression. TenSEAL: what
            vector.ciphertext()[0].save(path) or context.secret_key().data.save(path) wrote.
        parameters: what it was made with; SEAL's hash of them, which stands in the data, is compared.

    Returns:
        A SealValue in memory of its own, whose ring has the moduli of the value's level: evaluated or in
        coefficients, as it was saved. A plaintext of BFV or BGV that was not transformed is of
        Ring(n, plain_modulus).

    Raises:
        FileError: cut, damaged or other data; saved with a seed in place of a polynomial; other parameters;
            zstd without the package zstandard (pip install "polygpu[interop]"; Python 3.14 needs none).
        NotCanonical: a word that is not a residue.

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
    """Serialise for SEAL 4: a value (size,) as a Ciphertext or PublicKey, others as Plaintext or SecretKey.

    Args:
        poly: a value of parameters.ring[:k]. A ciphertext is written in its domain: CKKS and BGV compute on
            evaluated ones, BFV on coefficients. A single value is written evaluated. Or a single value of
            Ring(n, plain_modulus): a plaintext of BFV or BGV, written as coefficients.
        parameters: of the context that loads it.
        scale: of CKKS; 1 otherwise.
        correction_factor: of BGV; 1 otherwise.

    Returns the bytes, without compression; write them to a file for `load`.

    Raises:
        RingMismatch: another ring. ParameterError: a batch shape, scale or factor that SEAL refuses.

    Cost: two passes over the words; transforms if the value's root is not the smallest.
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
        parameters: what they were made with.
        rotations: whether they are GaloisKeys. SEAL's files of both look the same.

    Returns:
        Keys for values of parameters.ring[:-1], with digits of one limb. Number k of relinearisation switches
        from s^(k + 2). Those of rotations stand under their g, and have it as galois_element.

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
        raise FileError(f"data: {count} lists of keys are no RelinKeys or GaloisKeys; from_seal reads others")
    keys: dict[int, SwitchKey] = {}
    for index in range(count):
        digits = stream.unpack(_COUNT)[0]
        if digits not in (0, len(parameters.moduli) - 1):
            raise FileError(f"data: a key of {digits} digits for {len(parameters.moduli) - 1} limbs; damaged")
        parts = [stream.inner(lambda: _read_value(stream, parameters).poly) for _ in range(digits)]
        if any(part.ring != parameters.ring or part.shape != (2,) for part in parts):
            raise FileError(f"data: the key {index} is of another level or size; damaged")
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
        keys: as from_seal_keys gives them: of relinearisation under 0, 1, ..., of rotations under their g.
        parameters: of the context that loads them.

    Raises:
        ParameterError: an index or a batch shape that SEAL refuses. RingMismatch: another ring.

    Cost: two passes over the words.

    >>> import polygpu as pg
    >>> p = SealParameters("ckks", 8, [97, 193])
    >>> s, Q, P = p.ring.ternary(seed=1), p.ring[:-1], p.ring[-1:]
    >>> keys = pg.lattice.rotation_keys(s, [3], ring=Q, special=P, limbs_per_digit=1)
    >>> len(to_seal_keys(keys, p))  # 256 bytes are words
    441
    """
    _check_parameters(parameters)
    numbered = {}
    for number, key in keys.items():
        if not isinstance(key, SwitchKey):
            raise ParameterError(f"keys: {type(key).__name__} under {number}, must be a SwitchKey")
        g = key.galois_element
        numbered[integer(number, "keys") if g is None else (g - 1) // 2] = key
    indices = sorted(numbered)
    digits = len(parameters.moduli) - 1
    if not digits:
        raise ParameterError("keys: parameters of one modulus have none; SEAL switches keys with two or more")
    if not indices or not 0 <= indices[0] <= indices[-1] < parameters.n:
        raise ParameterError(f"keys: indices {indices} must be one or more in [0, {parameters.n})")
    parts = [_KEYS.pack(parameters._id(digits + 1), indices[-1] + 1)]
    for index in range(indices[-1] + 1):
        parts.append(_COUNT.pack(digits if index in numbered else 0))
        if index not in numbered:
            continue
        value = _in_ring(numbered[index].value, parameters.ring, "keys")
        if value.shape != (digits, 2):
            raise ParameterError(
                f"keys: batch shape {value.shape} at {index}, must be ({digits}, 2): a digit for each limb "
                "of ring[:-1]"
            )
        parts += [_written(digit, parameters, 1.0, 1) for digit in value]
    return parameters._object(*parts)


def _check_parameters(parameters: object) -> None:
    if not isinstance(parameters, SealParameters):
        raise ParameterError(f"parameters: {type(parameters).__name__}, must be a SealParameters")


def _read_value(stream: _Stream, parameters: SealParameters) -> SealValue:
    """Read a Plaintext or a Ciphertext. The place of the inner header tells which of them it is."""
    start = stream.take(_PLAINTEXT.size + 3)
    if start[-3:] == _HEADER.pack(_MAGIC, _HEADER_SIZE, 0, 0, 0, 0, 0)[:3]:
        identity, count, scale = _PLAINTEXT.unpack(start[:-3])
        if identity == _COEFFICIENTS:
            if parameters.scheme == "ckks":
                raise FileError("data: a plaintext without a modulus, which CKKS has not; encode one in SEAL")
            ring, least = Ring(parameters.n, parameters.plain_modulus), 0
        else:
            ring = parameters._ring_of(identity)
            least = parameters.n * len(ring.moduli)
        most = parameters.n * len(ring.moduli)
        if not least <= count <= most:
            raise FileError(f"data: a plaintext of {count} words for {ring!r}; damaged")
        words = stream.inner(lambda: stream.words(count), begun=3)
        words = np.pad(words, (0, most - count)).reshape(-1, parameters.n)
        return SealValue(_residues(ring, words, "eval" if least else "coef"), scale=scale)
    fields = start + stream.take(_CIPHERTEXT.size - len(start))
    identity, evaluated, size, n, limbs, scale, correction = _CIPHERTEXT.unpack(fields)
    ring = parameters._ring_of(identity)
    if (n, limbs) != (parameters.n, len(ring.moduli)) or evaluated > 1:
        raise FileError(f"data: a ciphertext of {limbs} limbs of degree {n} for {ring!r}; damaged")
    if not 2 <= size <= _MOST_POLYNOMIALS:
        raise FileError(f"data: a ciphertext of {size} polynomials, must have 2 to 16; encrypt one in SEAL")
    words = stream.inner(lambda: stream.words(size * limbs * n, seeded=limbs * n))
    poly = _residues(ring, words.reshape(size, limbs, n), "eval" if evaluated else "coef")
    return SealValue(poly, scale=scale, correction_factor=correction)


def _written(poly: Poly, parameters: SealParameters, scale: float, correction_factor: int) -> bytes:
    correction = integer(correction_factor, "correction_factor")
    if not isinstance(scale, (int, float)):
        raise ParameterError(f"scale: {shown(scale)} of type {type(scale).__name__}, must be a float")
    if (scale != 1 and parameters.scheme != "ckks") or not 2.0**-1022 <= scale < math.inf:
        raise ParameterError(f"scale: {scale} must be positive and finite in CKKS, and 1 in BFV and BGV")
    if not 0 < correction < (parameters.plain_modulus if parameters.scheme == "bgv" else 2):
        raise ParameterError(
            f"correction_factor: {shown(correction)} must be in [1, plain_modulus) in BGV, and 1 otherwise"
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
            f"poly: batch shape {poly.shape}, must be () for a plaintext or (size,) for a ciphertext of 2 to "
            "16 polynomials; write those of a batch one by one"
        )
    fields = (identity, poly.domain == "eval", poly.shape[0], parameters.n, limbs, scale, correction)
    return parameters._object(_CIPHERTEXT.pack(*fields), parameters._array(poly.data))


_T = TypeVar("_T")


class _Stream:
    """What follows the header of an object of SEAL, read in order. Only bytes asked for are decompressed."""

    def __init__(self, data: Bytes) -> None:
        try:
            given = memoryview(data).cast("B")
        except TypeError:
            raise FileError(f"data: {type(data).__name__}, must be bytes: open(path, 'rb').read()") from None
        self._read: Callable[[int], bytes] = io.BytesIO(given).read
        self._at, self.minor = 0, 0
        compression, size = self._header(b"")
        if size != len(given):
            raise FileError(
                f"data: {len(given)} bytes, its header says {size}; cut, or several objects: give one, whole"
            )
        if compression:
            self._read = _Expanded(compression, given[_HEADER_SIZE:]).read

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        parts, missing = [], count
        while missing:
            try:
                part = self._read(missing)
            except EOFError:  # of compressed data that are cut
                part = b""
            except Exception as error:  # zlib and zstandard have error classes of their own
                raise FileError(f"data: its compression is damaged ({error}); save it again") from error
            if not part:
                raise FileError(f"data: ends {missing} bytes early; cut, or no object of the kind asked for")
            parts.append(part)
            missing -= len(part)
        self._at += count
        return b"".join(parts)

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Return the next fields."""
        return layout.unpack(self.take(layout.size))

    def words(self, count: int, seeded: int = -1) -> Array:
        """Return an array of `count` words, after its length. seeded: the length if SEAL saved a seed."""
        found = self.unpack(_COUNT)[0]
        if found == seeded != count:
            raise FileError(
                "data: saved with a seed in place of a polynomial, which SEAL alone expands; load it there "
                "and save it once more, or save no Serializable"
            )
        if found != count:
            raise FileError(f"data: {found} words, must be {count}; damaged")
        return np.frombuffer(self.take(8 * count), "<u8")

    def inner(self, read: Callable[[], _T], begun: int = 0) -> _T:
        """Return what `read` finds in an inner object. begun: how many bytes of its header were taken."""
        first = self._at - begun
        magic = _HEADER.pack(_MAGIC, _HEADER_SIZE, 0, 0, 0, 0, 0)[:begun]
        compression, size = self._header(magic)
        if compression:
            raise FileError("data: compressed inside, as SEAL never saves; damaged")
        found = read()
        if self._at - first != size:
            raise FileError(
                f"data: an inner object of {self._at - first} bytes, its header says {size}; damaged"
            )
        return found

    def end(self) -> None:
        """Raise FileError if more bytes follow."""
        try:
            more = self._read(1)
        except Exception as error:
            raise FileError(f"data: its compression is damaged ({error}); save it again") from error
        if more:
            raise FileError("data: more follows than the object asked for; give from_seal or from_seal_keys")

    def _header(self, begun: bytes) -> tuple[int, int]:
        """Return the compression and size, from a header whose first bytes may have been taken already."""
        fields = _HEADER.unpack(begun + self.take(_HEADER_SIZE - len(begun)))
        magic, length, major, self.minor, compression, _, size = fields
        if (magic, length) != (_MAGIC, _HEADER_SIZE):
            raise FileError("data: no header of SEAL at its start; give what `save` of an object of it wrote")
        if major != 4:
            raise FileError(
                f"data: of SEAL {major}.{self.minor}, must be of 4; load it and save it with SEAL 4"
            )
        return compression, size


class _Expanded:
    """Compressed data, decompressed in order and no further than the next 64 KiB.

    SEAL writes many short fields. A reader of its own for each would move what is left of the input each
    time, so both ways are taken in pieces.
    """

    def __init__(self, compression: int, data: memoryview) -> None:
        self._more = _expander(compression, data)
        self._ready, self._at = memoryview(b""), 0

    def read(self, count: int) -> bytes:
        """Return the next bytes: at least one unless the data end, at most `count`."""
        if self._at == len(self._ready):
            self._ready, self._at = memoryview(self._more()), 0
        part = self._ready[self._at : self._at + count]
        self._at += len(part)
        return bytes(part)


_PIECE = 1 << 16  # bytes of compressed data, and of decompressed data, that are taken at a time


def _expander(compression: int, data: memoryview) -> Callable[[], bytes]:
    """Return a function that decompresses the next piece. compression: SEAL's number of the method."""
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
                    raise EOFError("it is cut")
            if not found and (expander.unused_data or next(pieces, b"")):
                raise ValueError("more follows it")
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
                f"data: compressed by zstd, and zstandard cannot be imported ({error}); pip install "
                '"polygpu[interop]" adds it, or save with compr_mode_type::none or zlib'
            ) from None
        return partial(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read, _PIECE)
    raise FileError(f"data: compression {compression}, must be 0 (none), 1 (zlib) or 2 (zstd)")


# ---- OpenFHE ----

_FORMATS: tuple[Domain, ...] = ("eval", "coef")  # OpenFHE's Format, EVALUATION = 0
_NEW = 1 << 31  # set in cereal's number of an object that follows here; without it the object stood earlier


def from_openfhe(text: str | bytes) -> Poly:
    """Read the polynomials of a ciphertext or key that OpenFHE serialised to JSON.

    Args:
        text: what Serial::SerializeToFile or Serialize wrote with SerType::JSON: a Ciphertext, PrivateKey,
            PublicKey, or keys for switching, which from_openfhe_keys reads as such.

    Returns:
        A value of the ring that the text names, in its domain; batch axes are the lists of the text, in its
        order. A ciphertext or public key has shape (size,), and its phase is the sum of poly[i] s^i; a secret
        key has (); keys for switching have (tags, keys, 2, digits), the a_j of each before its b_j.

    Raises:
        FileError: no JSON, no polynomials, or polynomials that make no one batch of one ring.
        NotNTTFriendly, BadRoot: parameters that have no transform.
        NotCanonical: a number that is not a residue.

    Cost: about 0.5 us a coefficient and limb, most of it for JSON.
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
            tag. The context has KeySwitchTechnique HYBRID, OpenFHE's default.
        special: the number of special primes, the last moduli of the keys. OpenFHE does not write it; it is
            GetParamsP()->GetParams().size() of the context's parameters.

    Returns:
        Keys for values of the other moduli. Number k of EvalMultKey switches from s^(k + 2). The keys of
        rotations stand under their g. They are turned: OpenFHE applies the automorphism after the switch.

    Raises:
        FileError: as from_openfhe, or text without keys, or with keys of several tags.
        ParameterError: `special` does not leave one modulus for the values.

    Cost: as from_openfhe, and a copy.
    Source: scheme/rns/rns-leveledshe.cpp and keyswitch/keyswitch-hybrid.cpp of OpenFHE 1.

    >>> import polygpu as pg
    >>> from_openfhe_keys('{"value0": []}', special=1)
    Traceback (most recent call last):
        ...
    polygpu.errors.FileError: text: no polynomials in it; serialise a ciphertext or a key of OpenFHE
    """
    source = _Serialised.of(text, "text")
    ring, domain, rows = _openfhe_ring(source, "text")
    tags = source.tree.get("value0") if isinstance(source.tree, dict) else None
    if len(source.shape) != 4 or not isinstance(tags, list) or len(tags) != 1:
        raise FileError(
            f"text: polynomials of shape {source.shape} are not the keys of one tag. Serialise them by "
            "SerializeEvalMultKey or SerializeEvalAutomorphismKey with a key tag, or read it by from_openfhe"
        )
    _, count, _, digits = source.shape
    limbs = ring.rows - integer(special, "special")
    if not 0 < limbs < ring.rows:
        raise ParameterError(
            f"special: {shown(special)} must be from 1 to {ring.rows - 1}, of {ring.rows} moduli"
        )
    words = np.stack(rows).reshape(count, 2, digits, ring.rows, ring.n)
    keys = {}
    for (g, index), halves in zip(_galois_elements(tags[0], count), words, strict=True):
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
    """Return the Galois element of each key, None for EvalMultKeys, and what the key stands under."""
    keys = tag.get("value") if isinstance(tag, dict) else None
    if isinstance(keys, list):
        return [(None, index) for index in range(count)]
    try:
        elements = [key["key"] for key in keys["ptr_wrapper"]["data"]]  # type: ignore[index]
    except (KeyError, TypeError) as error:
        raise FileError(f"text: keys without {error}. The text is damaged, or not of OpenFHE 1") from None
    if len(elements) != count or any(type(g) is not int for g in elements):
        raise FileError(f"text: {count} keys with Galois elements {shown(elements)}. The text is damaged")
    return [(g, g) for g in elements]


def to_openfhe(poly: Poly, like: str | bytes) -> str:
    """Return JSON for OpenFHE: a serialised object with the polynomials of a value in place of its own.

    Args:
        poly: a value with the moduli and the domain of `like`, of the batch shape that from_openfhe gives for
            that.
        like: an object that OpenFHE serialised to JSON, of which all else is kept: context, level, scale and
            tag. For a ciphertext one of the same level with as many polynomials.

    Raises:
        FileError: see from_openfhe, for `like`. RingMismatch: other moduli. ParameterError: another batch
            shape. DomainError: another domain.

    Cost: twice that of from_openfhe; transforms if the value's root is not that of `like`.

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
            f"poly: batch shape {poly.shape}, `like` has {target.shape}; serialise an object of the shape"
        )
    if poly.domain != domain:
        raise DomainError(f"poly: in {poly.domain!r}, `like` is in {domain!r}; ntt() and intt() change it")
    polynomials = poly.data.reshape(-1, len(ring.moduli), ring.n).tolist()
    for tower, rows in zip(target.towers, polynomials, strict=True):
        for element, row in zip(tower["v"], rows, strict=True):
            element["v"]["ptr_wrapper"]["data"]["v"] = row
    return json.dumps(target.tree, separators=(",", ":"))


@dataclass
class _Serialised:
    """What a text of OpenFHE holds: its tree of JSON, and the polynomials in that tree."""

    tree: Any
    shape: tuple[int, ...]  # of the lists that hold the polynomials
    towers: list[Any]  # the polynomials, in the text's order
    objects: dict[int, Any]  # the targets of shared pointers, by cereal's number

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
            raise FileError(f"{name}: {type(text).__name__}, must be JSON: open(path).read()") from None
        except (ValueError, RecursionError) as error:
            raise FileError(f"{name}: no JSON ({error}); serialise with SerType::JSON") from None
        if shape is None:
            raise FileError(f"{name}: no polynomials in it; serialise a ciphertext or a key of OpenFHE")
        found.shape = shape
        return found

    def _collect(self, node: Any, name: str) -> tuple[int, ...] | None:
        """Collect polynomials and shared objects below a node. Returns the polynomials' shape, or None."""
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
        shapes = []
        for child in children:
            if (shape := self._collect(child, name)) is not None:
                shapes.append(shape)
        if not shapes or (isinstance(node, dict) and len(shapes) == 1):
            return shapes[0] if shapes else None
        if len(set(shapes)) > 1:
            raise FileError(f"{name}: lists of polynomials of shapes {set(shapes)}; serialise one object")
        return (len(shapes), *shapes[0])


def _is_element(node: Any) -> bool:
    """Return whether a node is a polynomial, by its values, format and pointer to parameters."""
    return isinstance(node, dict) and {"v", "f", "p"} <= node.keys()


def _row(values: list[Any], name: str) -> Array:
    """Return the residues of a list of JSON, as words."""
    if set(map(type, values)) != {int}:
        raise FileError(f"{name}: residues that are no ints; damaged")
    try:
        return np.array(values, np.uint64)
    except OverflowError:
        worst = max(values) if min(values) >= 0 else min(values)
        raise NotCanonical(f"{name}: {shown(worst)} is no residue modulo a word; damaged") from None


def _openfhe_ring(source: _Serialised, name: str) -> tuple[Ring, Domain, list[Any]]:
    """Return the ring and domain of all polynomials, and the residues of each."""
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
        raise FileError(f"{name}: a polynomial lacks {error}; damaged, or not of OpenFHE 1") from None
    if len(found) != 1:
        raise FileError(f"{name}: polynomials of {len(found)} rings or formats; serialise one object")
    orders, degrees, moduli, roots, formats = zip(*found.pop(), strict=True)
    n = degrees[0]
    if any(type(x) is not int for x in (*orders, *degrees, *moduli, *roots, *formats)):
        raise FileError(f"{name}: parameters that are no ints; damaged")
    if {*orders, *(2 * d for d in degrees)} != {2 * n} or n & (n - 1):
        raise FileError(
            f"{name}: cyclotomic order {shown(orders[0])} with degree {shown(n)}; must be 2n and n, a power "
            "of two, of a ring modulo X^n + 1"
        )
    if len(set(formats)) != 1 or formats[0] not in (0, 1):
        raise FileError(f"{name}: formats {formats}, must be all 0 (EVALUATION) or all 1 (COEFFICIENT)")
    ring = _complete(Ring(n, moduli), "OpenFHE")
    if formats[0] == 0 and ring.roots != roots:
        ring = Ring(n, moduli, root=roots)
    return ring, _FORMATS[formats[0]], rows


# ---- Lattigo ----

_LEAST_DEGREE = 8  # of Lattigo. It searches primitive roots upwards from 3: 2 is not one if q is 1 mod 8


def from_lattigo(
    words: Any, moduli: Ring | Sequence[int], *, domain: Domain = "eval", montgomery: bool = False
) -> Poly:
    """Return the value of Lattigo's words, ring.Poly.Coeffs, of a standard ring.

    Args:
        words: unsigned integers (*batch, limbs, n) in [0, q), of NumPy or CuPy: a row for each modulus.
        moduli: the moduli, one a limb; or a Ring that has them, of which the result is to be.
        domain: "eval" if Lattigo says IsNTT, as it does for keys and for ciphertexts of CKKS and BGV, else
            "coef".
        montgomery: whether the words are x 2^64 mod q, which Lattigo calls IsMontgomery: those of keys are,
            those of ciphertexts are not.

    Returns a value of Ring(n, moduli, root="generator"), or of the ring given, in the domain of the words and
    in memory of its own.

    Raises:
        ParameterError: another shape; n below 8. NotCanonical: a word that is not a residue.
        NotNTTFriendly: moduli other than primes 1 mod 2n. RingMismatch: a ring of degree other than n.

    Cost: two passes over the words, and a product for each word in Montgomery form. To a ring of another root
    an inverse transform and a transform.
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
        montgomery: whether to give x 2^64 mod q, as Lattigo holds keys.

    Returns an array in memory of its own; in Go each row is a []uint64 of ring.Poly.Coeffs.

    Raises:
        ParameterError: n below 8, or a cyclic ring. NotNTTFriendly: moduli other than primes 1 mod 2n.

    Cost and source: see from_lattigo.

    >>> to_lattigo(Ring(8, 97)([1, 3]), montgomery=True)[0, :2].tolist() == [2**64 % 97, 3 * 2**64 % 97]
    True
    """
    poly = checked_poly(poly, "poly")
    ring = poly.ring
    if ring.kind != "negacyclic":
        raise ParameterError(f"poly: of {ring!r}; Lattigo's standard rings are modulo X^n + 1")
    poly = _in_ring(poly, _lattigo_ring(ring.n, ring.moduli), "poly")
    if montgomery:
        poly = poly.scale_by(limbs=[pow(2, 64, q) for q in ring.moduli])
    with backend_of(poly.data).device_scope():
        return poly.data.astype(np.uint64)


def _lattigo_ring(n: int, moduli: Sequence[int]) -> Ring:
    if n < _LEAST_DEGREE:
        raise ParameterError(f"n: {n}, the last axis, must be at least {_LEAST_DEGREE}, as in Lattigo")
    return Ring(n, _complete(Ring(n, moduli), "Lattigo").moduli, root="generator")


# ---- JAX ----


def to_jax(poly: Poly, *, copy: bool | None = None) -> Any:
    """Return the residues as an array of JAX, (*batch, rows, n), on the value's device.

    jax.numpy.from_dlpack(poly) gives the same if jax_enable_x64 is on. If it is off, JAX cuts residues
    of 64 bits to their lowest 32 and says nothing; this function raises.

    Args:
        poly: the value.
        copy: None shares memory if JAX can; write nothing into the value afterwards, since arrays of JAX
            never change. True always copies.

    Raises:
        ParameterError: residues of 64 bits without jax_enable_x64. BackendUnavailable: JAX is not installed.

    Cost: nothing, or a copy.

    >>> to_jax(Ring(4, 97)([1, 2])).tolist()  # doctest: +SKIP
    [[1, 2, 0, 0]]
    """
    poly = checked_poly(poly, "poly")
    try:
        import jax
    except ImportError as error:
        raise BackendUnavailable(f"jax: cannot be imported ({error}); pip install jax") from None
    if poly.ring.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise ParameterError(
            f"poly: residues are {poly.ring.dtype}, and jax_enable_x64 is off, with which JAX cuts them to "
            "32 bits; jax.config.update('jax_enable_x64', True) at the start of the program"
        )
    data = poly.data
    locked = isinstance(data, np.ndarray) and not data.flags.writeable  # JAX takes no read-only array
    if copy or locked:
        with backend_of(data).device_scope():
            data = data.copy()
    return jax.numpy.from_dlpack(data)
