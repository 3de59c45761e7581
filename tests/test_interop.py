"""Values of other libraries: files of SEAL and OpenFHE, words of Lattigo, arrays through DLPack.

tests/data says how the files were made and what is encrypted in them. Tests that ask a library itself are
skipped where it is not installed.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import struct
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import ABSENT, OLD_NUMPY, backend, host, needs_compiler, on, simulated
from hypothesis import given
from hypothesis import strategies as st
from oracle import as_key, bit_reversed, value_at

import polygpu as pg
from polygpu import Ring, fft, interop, linalg
from polygpu.interop import SealParameters
from polygpu.testing import polys, rings

DATA = Path(__file__).parent / "data"
CKKS = ([0.5, -1.25, 3.0, 2.0], [4.0, 0.25, -1.0, 1.5])  # encrypted in both libraries' files
T, BFV = 12289, [1, 2, 3, 4, -5]
INF = float("inf")


def library(name: str) -> Any:
    """A library of the host; the test is skipped where it is not installed."""
    with warnings.catch_warnings():  # those of the library, at import
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


def size(x: Any) -> int:
    """The largest centred coefficient, of all polynomials."""
    return int(np.max(x.norm(INF)))


def at_powers(coefficients: Any, base: int, count: int) -> np.ndarray:
    """Values of a real polynomial at exp(i pi base^j / n), j < count, from the definition."""
    x = np.asarray(coefficients, np.float64)
    n = len(x)
    exponents = np.array([pow(base, j, 2 * n) for j in range(count)])
    return np.exp(1j * np.pi * np.outer(exponents, np.arange(n)) / n) @ x


# ---- SEAL ----


@cache
def seal(name: str) -> bytes:
    if sys.version_info < (3, 14):
        pytest.importorskip("zstandard")
    return (DATA / "seal" / f"{name}.seal").read_bytes()


def plain_seal(name: str) -> bytes:
    """A file as SEAL 4.3 would have written it without compression, made without polygpu."""
    zstandard = pytest.importorskip("zstandard")
    body = zstandard.ZstdDecompressor().stream_reader(seal(name)[16:]).read()
    return struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, 0, 0, 16 + len(body)) + body


def parameters(scheme: str) -> SealParameters:
    return SealParameters.from_bytes(seal(f"{scheme}_parameters"))


def value(name: str) -> interop.SealValue:
    return interop.from_seal(seal(name), parameters(name.partition("_")[0]))


def keys(name: str, **options: Any) -> dict[int, pg.lattice.SwitchKey]:
    return interop.from_seal_keys(seal(name), parameters("ckks"), **options)


def zero_key(ring: Ring, size: int = 1) -> pg.lattice.SwitchKey:
    """A key of zeros, of whose limbs the last one is special."""
    return as_key(ring.zeros((-(-(ring.rows - 1) // size), 2)).ntt(), size, ring[-1:])


def phase(c: pg.Poly, s: pg.Poly) -> pg.Poly:
    """The sum of c_i s^i."""
    s, total, power = s.restrict(c.ring), c[0], c.ring.ones()
    for part in c[1:]:
        power = power * s
        total = total + part * power
    return total


def tensor(a: pg.Poly, b: pg.Poly) -> pg.Poly:
    return pg.stack([a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[1] * b[1]])


def test_seal_parameters() -> None:
    for scheme, n, bits, plain in (
        ("ckks", 256, [40, 40, 41], 0),
        ("bfv", 2048, [27, 27], T),
        ("bgv", 256, [40, 40, 41], 7681),
    ):
        found = parameters(scheme)
        assert (found.scheme, found.n, found.plain_modulus) == (scheme, n, plain)
        assert [q.bit_length() for q in found.moduli] == bits and found.ring == Ring(n, found.moduli)
        assert all(pg.is_prime(q) and q % (2 * n) == 1 for q in found.moduli)
        assert found.to_bytes() == plain_seal(f"{scheme}_parameters")
        assert (
            SealParameters(scheme, n, list(found.moduli), plain_modulus=plain) == found and found.minor == 3
        )


@pytest.mark.parametrize(
    "name",
    [
        *("ckks_secret", "ckks_public", "ckks_plain", "ckks_a", "ckks_product", "ckks_rescaled"),
        *("bfv_secret", "bfv_vector", "bgv_secret", "bgv_switched"),
    ],
)
def test_seal_round_trip(name: str) -> None:
    found = value(name)
    written = interop.to_seal(
        found.poly,
        parameters(name[:4].rstrip("_")),
        scale=found.scale,
        correction_factor=found.correction_factor,
    )
    assert written == plain_seal(name)


def test_seal_keys_round_trip() -> None:
    assert interop.to_seal_keys(keys("ckks_relin"), parameters("ckks")) == plain_seal("ckks_relin")
    ours, theirs = interop.to_seal_keys(keys("ckks_galois"), parameters("ckks")), plain_seal("ckks_galois")
    empty = 256 - 2  # SEAL has an empty list for each rotation without a key, but needs none at the end
    assert theirs[56:] == ours[56:] + bytes(8 * empty) and theirs[16:48] == ours[16:48]


def test_seal_secret_keys_are_ternary() -> None:
    # Any other order or root would give random coefficients.
    for scheme in ("ckks", "bfv", "bgv"):
        s = value(f"{scheme}_secret").poly
        assert s.ring == parameters(scheme).ring and s.shape == () and size(s) == 1
        assert set(s.to_int64().tolist()) == {-1, 0, 1}


def test_seal_ckks_ciphertexts() -> None:
    s, plain = value("ckks_secret").poly, value("ckks_plain")
    for name, values in zip("ab", CKKS, strict=True):
        c = value(f"ckks_{name}")
        assert c.poly.shape == (2,) and c.poly.domain == "eval" and c.scale == 2.0**30
        assert c.poly.ring == parameters("ckks").ring[:-1]
        found = at_powers(phase(c.poly, s).to_float64(), 3, 5) / c.scale  # SEAL's slot j is at 3^j
        np.testing.assert_allclose(found, [*values, 0], atol=1e-5)
    assert 0 < size(phase(value("ckks_a").poly, s) - plain.poly) < 1 << 10
    np.testing.assert_allclose(at_powers(plain.poly.to_float64(), 3, 4) / plain.scale, CKKS[0], atol=1e-7)
    assert 0 < size(phase(value("ckks_public").poly, s)) < 64


def test_seal_products_have_the_same_bits() -> None:
    a, b, product = (value(f"ckks_{name}") for name in ("a", "b", "product"))
    assert tensor(a.poly, b.poly) == product.poly and product.scale == a.scale * b.scale
    rescaled = value("ckks_rescaled")
    assert rescaled.poly.ring == product.poly.ring[:1] and rescaled.poly == product.poly.rescale()
    assert rescaled.scale == product.scale / product.poly.ring.moduli[-1]


def test_seal_relinearisation_key() -> None:
    p, s = parameters("ckks"), value("ckks_secret").poly
    key, g = keys("ckks_relin")[0], pg.rns.gadget(p.ring[:-1], limbs_per_digit=1)
    for j, (b, a) in enumerate(key.value):
        assert 0 < size(b + a * s - s * s * (g[j] * p.moduli[-1])) < 64
    product = value("ckks_product").poly
    ours = pg.lattice.key_switch(product[2], key, add=product[:2])
    exact, theirs = phase(product, s), value("ckks_relinearised").poly
    assert size(phase(ours, s) - exact) < 1 << 12 and size(phase(theirs, s) - exact) < 1 << 12


def test_seal_rotation_key() -> None:
    s = value("ckks_secret").poly
    galois = keys("ckks_galois", rotations=True)
    assert list(galois) == [3] and galois[3].galois_element == 3
    a, rotated = value("ckks_a").poly, value("ckks_rotated").poly
    ours = pg.lattice.rotate(a, galois[3])
    exact = phase(a, s).automorphism(3)
    assert size(phase(ours, s) - exact) < 1 << 12 and size(phase(rotated, s) - exact) < 1 << 12


def test_tenseal_bfv_vector() -> None:
    c, s = value("bfv_vector").poly, value("bfv_secret").poly
    assert c.domain == "coef" and c.ring == parameters("bfv").ring[:1]
    plain = Ring(2048, T)
    m = pg.rns.scale(phase(c, s), T, plain)
    assert plain.roots is not None
    row, psi = m.to_bigints().tolist(), plain.roots[0]
    slots = [value_at(row, pow(psi, pow(3, j, 4096), T), T) for j in range(5)]
    assert slots == [x % T for x in BFV]


def test_seal_bgv_ciphertexts() -> None:
    p, s = parameters("bgv"), value("bgv_secret").poly
    t, c, plain = p.plain_modulus, value("bgv_switched"), value("bgv_plain").poly
    assert plain.ring == Ring(256, t) and plain.to_bigints()[:4].tolist() == [5, 1, 0, 7]
    assert c.poly.ring == p.ring[:1] and 1 < c.correction_factor < t
    found = phase(c.poly, s).to_bigints(centered=True) * pow(c.correction_factor, -1, t) % t
    assert found.tolist() == plain.to_bigints().tolist()


def test_seal_compression_methods() -> None:
    p, expected = parameters("ckks"), value("ckks_a")
    whole = plain_seal("ckks_a")
    packed = zlib.compress(whole[16:])
    deflated = struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, 1, 0, 16 + len(packed)) + packed
    for data in (whole, bytearray(whole), memoryview(whole), deflated):
        assert interop.from_seal(data, p) == expected
    for data in (deflated, whole):
        cut = data[:8] + struct.pack("<Q", len(data) - 40) + data[16:-40]
        refused(lambda cut=cut: interop.from_seal(cut, p), pg.errors.FileError, ["data ends", "early"])
    wrong = deflated[:40] + bytes([deflated[40] ^ 255]) + deflated[41:]
    refused(lambda: interop.from_seal(wrong, p), pg.errors.FileError, ["data", "Save the object again"])
    wrong = seal("ckks_a")[:60] + bytes(40) + seal("ckks_a")[100:]
    refused(lambda: interop.from_seal(wrong, p), pg.errors.FileError, ["data", "Save the object again"])


def compressed(plain: bytes, method: int) -> bytes:
    """A saved object of SEAL as it is with compr_mode_type::zlib (1) or zstd (2)."""
    if method == 1:
        packed = zlib.compress(plain[16:], 1)
    else:
        packed = pytest.importorskip("zstandard").ZstdCompressor(level=1).compress(plain[16:])
    return resized(plain[:5] + bytes([method]) + plain[6:16] + packed)


def resized(data: bytes) -> bytes:
    """The same object, with a header that tells the size that it has."""
    return data[:8] + struct.pack("<Q", len(data)) + data[16:]


@pytest.mark.parametrize("method", [1, 2])
def test_seal_decompression_of_keys_is_linear_in_their_size(
    method: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes given to the decompressor and bytes that it returns are counted."""
    p = SealParameters("ckks", 2048, pg.ntt_primes(2048, bits=50, count=3))
    keys = {g: as_key(p.ring.random((2, 2), seed=g).ntt(), 1, p.ring[-1:]) for g in range(1, 12)}
    plain = interop.to_seal_keys(keys, p)
    data = compressed(plain, method)
    assert len(plain) > 1 << 21
    given, most, make = 0, 0, zlib.decompressobj

    class Counted:
        def __init__(self) -> None:
            self.real = make()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def decompress(self, piece: bytes, length: int) -> bytes:
            nonlocal given, most
            found = self.real.decompress(piece, length)
            given, most = given + len(piece) + len(self.real.unconsumed_tail), max(most, len(found))
            return found

    monkeypatch.setattr("zlib.decompressobj", Counted)
    tracemalloc.start()
    try:
        assert interop.from_seal_keys(data, p) == keys
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert given < 4 * len(plain) and most <= 1 << 16 and peak < 6 * len(plain)
    assert (given > 0) == (method == 1)


@pytest.mark.parametrize("method", [1, 2])
def test_seal_damaged_compressed_data_raises(method: int) -> None:
    p = SealParameters("ckks", 8, [97, 113, 193])
    plain = interop.to_seal(p.ring[:2].random(2, seed=1).ntt(), p)
    data = compressed(plain, method)
    assert interop.from_seal(data, p) == interop.from_seal(plain, p)
    for cut in range(17, len(data) - (0 if method == 1 else 4)):
        refused(
            lambda cut=cut: interop.from_seal(resized(data[:cut]), p),
            pg.errors.FileError,
            ["data", "the object again"],
        )
    more = compressed(plain + bytes(1 << 26), method)  # of 64 MiB that nobody asked for
    tracemalloc.start()
    try:
        refused(
            lambda: interop.from_seal(more, p), pg.errors.FileError, ["data has more bytes", "from_seal_keys"]
        )
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    if method == 1:
        refused(
            lambda: interop.from_seal(resized(data + b"x"), p),
            pg.errors.FileError,
            ["more bytes follow the end of the compressed data"],
        )
        wrong = data[:-1] + bytes([data[-1] ^ 1])
        refused(lambda: interop.from_seal(wrong, p), pg.errors.FileError, ["damaged", "incorrect data check"])


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has zstd")
def test_seal_zstd_without_zstandard_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    data = seal("ckks_parameters")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    refused(
        lambda: SealParameters.from_bytes(data),
        pg.errors.FileError,
        ["zstd", 'pip install "polygpu[interop]"', "compr_mode_type::none"],
    )


def refused(call: Any, cls: type[Exception], words: list[str]) -> None:
    with pytest.raises(cls) as caught:
        call()
    for word in words:
        assert word in str(caught.value), caught.value


def test_from_seal_raises_for_invalid_data() -> None:
    p = SealParameters("ckks", 8, [97, 113, 193])
    good = interop.to_seal(p.ring[:2].random(2, seed=1).ntt(), p)
    other = SealParameters("ckks", 8, [97, 113, 241])
    third = SealParameters("ckks", 8, [97, 241, 193])
    assert interop.from_seal(good, other).poly.ring == other.ring[:2]  # the same parameters at that level
    from_seal = interop.from_seal

    def changed(at: int, new: bytes) -> bytes:
        return good[:at] + new + good[at + len(new) :]

    for data, cls, words in (
        ("text", pg.errors.FileError, ["data must be bytes, not str", "open(path, 'rb')"]),
        (b"", pg.errors.FileError, ["ends 16 bytes early"]),
        (b"PK\x03\x04" + bytes(60), pg.errors.FileError, ["does not begin with a header of SEAL"]),
        (good[:-8], pg.errors.FileError, [f"{len(good) - 8} bytes, but its header says {len(good)}", "cut"]),
        (good + b"\0", pg.errors.FileError, ["several objects"]),
        (changed(8, struct.pack("<Q", len(good) + 1)) + b"\0", pg.errors.FileError, ["data has more bytes"]),
        (changed(3, b"\x03"), pg.errors.FileError, ["SEAL 3.3", "SEAL 4"]),
        (changed(5, b"\x07"), pg.errors.FileError, ["compression 7"]),
        (changed(16, b"\xff"), pg.errors.FileError, ["other parameters than", "SealParameters.from_bytes"]),
        (
            changed(16 + 32, b"\x02"),
            pg.errors.FileError,
            ["2 limbs and degree 8", "is_ntt_form=2", "damaged"],
        ),
        (changed(16 + 33, b"\x01"), pg.errors.FileError, ["1 polynomials", "2 to 16"]),
        (changed(16 + 33, b"\x11"), pg.errors.FileError, ["17 polynomials"]),
        (changed(16 + 41, b"\x10"), pg.errors.FileError, ["degree 16"]),
        (changed(16 + 73 + 5, b"\x01"), pg.errors.FileError, ["compressed object inside"]),
        (changed(16 + 73 + 8, b"\x00"), pg.errors.FileError, ["an inner object of", "header says"]),
        (changed(16 + 89, b"\x21"), pg.errors.FileError, ["33 words, but it must have 32"]),
        (changed(16 + 97, struct.pack("<Q", 97)), pg.errors.NotCanonical, ["97 at (0, 0, 0)", "97"]),
        (interop.to_seal_keys({0: zero_key(p.ring)}, p), pg.errors.FileError, ["data"]),
        (p.to_bytes(), pg.errors.FileError, ["data"]),
    ):
        refused(lambda data=data: from_seal(data, p), cls, words)
    refused(lambda: from_seal(good, third), pg.errors.FileError, ["other parameters"])
    refused(
        lambda: from_seal(good, p.ring), pg.ParameterError, ["parameters must be a SealParameters, not Ring"]
    )
    refused(lambda: interop.from_seal_keys(good, p), pg.errors.FileError, ["data", "from_seal"])
    refused(lambda: SealParameters.from_bytes(good), pg.errors.FileError, ["no parameters of SEAL"])
    refused(lambda: value("ckks_seeded"), pg.errors.FileError, ["saved with a seed", "Serializable"])
    plain = interop.to_seal(Ring(8, 17)([1]), SealParameters("bfv", 8, [97, 113], plain_modulus=17))
    refused(lambda: from_seal(plain, p), pg.errors.FileError, ["without a modulus", "CKKS"])


def test_to_seal_raises_for_invalid_values() -> None:
    p, bfv = SealParameters("ckks", 8, [97, 113, 193]), SealParameters("bfv", 8, [97, 113], plain_modulus=17)
    bgv = SealParameters("bgv", 8, [97, 113], plain_modulus=17)
    c = p.ring[:2].random(2, seed=1)
    to_seal, to_keys = interop.to_seal, interop.to_seal_keys
    key, longer, other = zero_key(p.ring), zero_key(p.ring, 2), zero_key(p.ring[:2])
    for call, cls, words in (
        (lambda: to_seal(c.data, p), pg.RingMismatch, ["poly must be a Poly, not ndarray"]),
        (lambda: to_seal(c, 5), pg.ParameterError, ["parameters must be a SealParameters, not int"]),
        (lambda: to_seal(c[:1], p), pg.ParameterError, ["batch shape of poly is (1,)", "2 to 16"]),
        (
            lambda: to_seal(c.reshape(1, 2), p),
            pg.ParameterError,
            ["batch shape of poly is (1, 2)", "one by one"],
        ),
        (lambda: to_seal(p.ring[1:].zeros(2), p), pg.RingMismatch, ["[113, 193]", "[97, 113]", "convert"]),
        (lambda: to_seal(Ring(8, 17)([1]), p), pg.RingMismatch, ["poly is of Ring(8, 17)"]),
        (lambda: to_seal(Ring(8, 17).zeros(2), bfv), pg.RingMismatch, ["poly is of Ring(8, 17)"]),
        (lambda: to_seal(c, p, scale=0.0), pg.ParameterError, ["scale=0.0", "positive"]),
        (lambda: to_seal(c, p, scale=INF), pg.ParameterError, ["scale=inf"]),
        (lambda: to_seal(c, p, scale="2"), pg.ParameterError, ["scale='2' must be a float, not str"]),
        (lambda: to_seal(bfv.ring[:1].zeros(2), bfv, scale=2.0), pg.ParameterError, ["scale=2.0", "BFV"]),
        (lambda: to_seal(c, p, correction_factor=2), pg.ParameterError, ["correction_factor=2", "BGV"]),
        (
            lambda: to_seal(bgv.ring.zeros(2), bgv, correction_factor=17),
            pg.ParameterError,
            ["correction_factor=17"],
        ),
        (lambda: to_keys({}, p), pg.ParameterError, ["indices of keys are []"]),
        (lambda: to_keys({8: key}, p), pg.ParameterError, ["indices of keys are [8]", "[0, 8)"]),
        (lambda: to_keys({0: longer}, p), pg.ParameterError, ["key 0 in keys is (1, 2)", "(2, 2)"]),
        (lambda: to_keys({0: other}, p), pg.RingMismatch, ["keys is of "]),
        (lambda: to_keys({0: key.value}, p), pg.ParameterError, ["keys[0] must be a SwitchKey, not Poly"]),
        (
            lambda: to_keys({0: key}, SealParameters("ckks", 8, [97])),
            pg.ParameterError,
            ["one modulus", "at least two"],
        ),
        (lambda: SealParameters("bfe", 8, [97]), pg.ParameterError, ["scheme='bfe'"]),
        (lambda: SealParameters("ckks", 12, [97]), pg.ParameterError, ["n=12", "power of two"]),
        (lambda: SealParameters("ckks", 8, [2**61 + 1]), pg.ParameterError, ["2**61"]),
        (lambda: SealParameters("ckks", 8, [101]), pg.NotNTTFriendly, ["SEAL", "1 modulo 2n"]),
        (
            lambda: SealParameters("ckks", 8, [97], plain_modulus=5),
            pg.ParameterError,
            ["plain_modulus=5", "0 for CKKS"],
        ),
        (lambda: SealParameters("ckks", 8, [97], minor=-1), pg.ParameterError, ["minor=-1"]),
        (lambda: SealParameters("bgv", 8, [97]), pg.ParameterError, ["plain_modulus=0", "BGV"]),
    ):
        refused(call, cls, words)


def test_to_seal_of_a_ring_with_another_root() -> None:
    p = SealParameters("ckks", 16, pg.ntt_primes(16, bits=50, count=2))
    other = Ring(16, p.moduli, root="generator")
    assert other.roots != p.ring.roots
    x = p.ring.random(2, seed=3)
    c = other.from_residues(x.data).ntt()
    back = interop.from_seal(interop.to_seal(c, p), p).poly
    assert back.domain == "eval" and back.ring == p.ring and back == x


TOY = SealParameters("bgv", 8, [97, 113, 193], plain_modulus=17)
TOY_FILES = (
    interop.to_seal(TOY.ring[:-1].random(2, seed=1).ntt(), TOY, correction_factor=3),
    interop.to_seal(Ring(8, 17).random(seed=2), TOY),
    interop.to_seal(TOY.ring.random(seed=3), TOY),
    interop.to_seal_keys({1: as_key(TOY.ring.random((2, 2), seed=4).ntt(), 1, TOY.ring[-1:])}, TOY),
    TOY.to_bytes(),
)
READERS = (
    lambda data: interop.from_seal(data, TOY),
    lambda data: interop.from_seal_keys(data, TOY),
    SealParameters.from_bytes,
)


@given(
    st.sampled_from(TOY_FILES),
    st.sampled_from(READERS),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.integers(0, 500),
)
def test_from_seal_of_damaged_data_raises_or_is_canonical(
    data: bytes, read: Any, edits: Any, length: int
) -> None:
    damaged = bytearray(data)
    for at, byte in edits:
        damaged[at % len(damaged)] = byte
    if length < len(damaged) - 16:
        damaged[8:16] = struct.pack("<Q", length + 16)
        del damaged[length + 16 :]
    try:
        found = read(bytes(damaged))
    except pg.PolyGPUError:
        return
    for poly in (
        [found.poly] if isinstance(found, interop.SealValue) else list(getattr(found, "values", list)())
    ):
        assert (poly.data < np.array(poly.ring.moduli)[:, None]).all()


def test_seal_loads_written_objects(tmp_path: Path) -> None:
    api = library("tenseal.sealapi")
    p, path = parameters("ckks"), str(tmp_path / "object")
    own = api.EncryptionParameters(api.SCHEME_TYPE.CKKS)
    (tmp_path / "object").write_bytes(p.to_bytes())
    own.load(path)
    ctx = api.SEALContext(own, True, api.SEC_LEVEL_TYPE.NONE)
    assert ctx.parameters_set()

    def loaded(kind: Any, data: bytes) -> Any:
        (tmp_path / "object").write_bytes(data)
        found = kind()
        found.load(ctx, path)
        return found

    def decrypted(c: Any) -> Any:
        plain = api.Plaintext()
        decryptor.decrypt(c, plain)
        return np.array(api.CKKSEncoder(ctx).decode_double(plain)[:4])

    secret = loaded(api.SecretKey, interop.to_seal(value("ckks_secret").poly, p))
    decryptor, evaluator = api.Decryptor(ctx, secret), api.Evaluator(ctx)
    a, b = (value(f"ckks_{name}") for name in "ab")
    expected = np.array(CKKS[0]) * np.array(CKKS[1])
    product = interop.to_seal(tensor(a.poly, b.poly), p, scale=a.scale * b.scale)
    c = loaded(api.Ciphertext, product)
    np.testing.assert_allclose(decrypted(c), expected, atol=1e-4)
    relin = loaded(api.RelinKeys, interop.to_seal_keys(keys("ckks_relin"), p))
    evaluator.relinearize_inplace(c, relin)
    assert c.size() == 2
    np.testing.assert_allclose(decrypted(c), expected, atol=1e-4)
    galois = loaded(api.GaloisKeys, interop.to_seal_keys(keys("ckks_galois"), p))
    turned = loaded(api.Ciphertext, interop.to_seal(a.poly + b.poly, p, scale=a.scale))
    evaluator.rotate_vector_inplace(turned, 1, galois)
    np.testing.assert_allclose(decrypted(turned)[:3], np.add(*CKKS)[1:], atol=1e-4)
    s, Q, P = value("ckks_secret").poly, p.ring[:-1], p.ring[-1:]
    key = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=1)  # made here
    c = loaded(api.Ciphertext, product)
    evaluator.relinearize_inplace(c, loaded(api.RelinKeys, interop.to_seal_keys({0: key}, p)))
    np.testing.assert_allclose(decrypted(c), expected, atol=1e-4)


def test_seal_loads_written_bfv_and_bgv(tmp_path: Path) -> None:
    api = library("tenseal.sealapi")
    path = str(tmp_path / "object")
    for number, name in ((1, "bfv"), (3, "bgv")):
        p = SealParameters(name, 256, parameters("ckks").moduli, plain_modulus=7681)
        own = api.EncryptionParameters(api.SCHEME_TYPE(number))
        (tmp_path / "object").write_bytes(p.to_bytes())
        own.load(path)
        ctx = api.SEALContext(own, True, api.SEC_LEVEL_TYPE.NONE)
        secret, Q, plain = p.ring.ternary(seed=1), p.ring[:-1], Ring(256, 7681)
        m, mask = plain.random(seed=2), Q.random(seed=3)
        lifted, noise = Q(m.to_bigints(centered=True)), Q.gaussian(3.2, seed=4)
        if name == "bfv":
            message = pg.rns.scale(m, Q.modulus, Q) + noise
        else:
            message = lifted + noise * 7681
        c = pg.stack([message - mask * Q(secret.to_int64()), mask])
        (tmp_path / "object").write_bytes(interop.to_seal(c.ntt() if name == "bgv" else c, p))
        found = api.Ciphertext()
        found.load(ctx, path)
        (tmp_path / "object").write_bytes(interop.to_seal(secret, p))
        key = api.SecretKey()
        key.load(ctx, path)
        shown = api.Plaintext()
        api.Decryptor(ctx, key).decrypt(found, shown)
        shown.save(path)
        assert interop.from_seal((tmp_path / "object").read_bytes(), p).poly == m
        (tmp_path / "object").write_bytes(interop.to_seal(m, p))
        ours = api.Plaintext()
        ours.load(ctx, path)
        assert ours.to_string() == shown.to_string()


# ---- OpenFHE ----


@cache
def openfhe(name: str) -> str:
    return gzip.decompress((DATA / "openfhe" / f"{name}.json.gz").read_bytes()).decode()


def element(name: str) -> pg.Poly:
    return interop.from_openfhe(openfhe(name))


def test_openfhe_secret_keys_are_ternary() -> None:
    for name in ("ckks_secret", "bfv_secret"):
        s = element(name)
        assert s.shape == () and s.domain == "eval" and size(s) == 1
        assert set(s.to_int64().tolist()) == {-1, 0, 1}


def test_openfhe_ckks_ciphertexts() -> None:
    s = element("ckks_secret")
    assert s.ring.n == 128 and [round(math.log2(q)) for q in s.ring.moduli] == [60, 50, 50]
    assert s.ring.roots == Ring(128, s.ring.moduli).roots  # the smallest ones
    for name, values in zip("ab", CKKS, strict=True):
        c = element(f"ckks_{name}")
        assert c.shape == (2,) and c.ring == s.ring
        found = fft.to_slots(phase(c, s).to_float64())[:8] / 2.0**50
        np.testing.assert_allclose(found, [*values, 0, 0, 0, 0], atol=1e-9)
    assert 0 < size(phase(element("ckks_public"), s)) < 64


def test_openfhe_products_have_the_same_bits() -> None:
    a, b, product = (element(f"ckks_{name}") for name in ("a", "b", "product"))
    assert product.shape == (3,) and tensor(a, b) == product


def test_openfhe_relinearisation_key() -> None:
    s, product = element("ckks_secret"), element("ckks_product")
    (key,) = interop.from_openfhe_keys(openfhe("ckks_relin"), special=2).values()
    assert key.ring == s.ring and key.limbs_per_digit == 2 and key.galois_element is None
    full = key.value.ring(s.to_int64())
    for (b, a), g in zip(key.value, pg.rns.gadget(s.ring, limbs_per_digit=2), strict=True):
        assert 0 < size(b + a * full - full * full * (g * key.special.modulus)) < 64
    ours = pg.lattice.key_switch(product[2], key, add=product[:2])
    exact, theirs = phase(product, s), element("ckks_relinearised")
    assert size(phase(ours, s) - exact) < 64 and size(phase(theirs, s) - exact) < 64


def test_openfhe_rotation_key() -> None:
    s, a = element("ckks_secret"), element("ckks_a")
    keys = interop.from_openfhe_keys(openfhe("ckks_rotations"), special=2)
    assert keys.keys() == {5, pow(5, -2, 256)} and all(key.turned for key in keys.values())
    for g, key in keys.items():
        assert size(phase(pg.lattice.rotate(a, key), s) - phase(a, s).automorphism(g)) < 64
    assert size(phase(element("ckks_turned"), s) - phase(a, s).automorphism(5)) < 64


def test_from_openfhe_keys_raises_for_invalid_keys() -> None:
    text = openfhe("ckks_rotations")

    def edited_keys(edit: Any) -> str:
        tree = json.loads(text)
        edit(tree["value0"])
        return json.dumps(tree)

    inner = lambda tags: tags[0]["value"]["ptr_wrapper"]["data"]  # noqa: E731
    for given_text, special, cls, words in (
        (openfhe("ckks_a"), 2, pg.errors.FileError, ["shape (2,)", "from_openfhe"]),
        (text, 0, pg.ParameterError, ["special=0", "1 to 4"]),
        (text, 5, pg.ParameterError, ["special=5", "1 to 4"]),
        (text, "2", pg.errors.CoefficientError, ["special"]),
        (edited_keys(lambda t: inner(t)[0].update(key="5")), 2, pg.errors.FileError, ["Galois", "damaged"]),
        (edited_keys(lambda t: inner(t)[0].update(key=4)), 2, pg.ParameterError, ["4"]),
        (edited_keys(lambda t: t[0].update(value={"x": inner(t)})), 2, pg.errors.FileError, ["ptr_wrapper"]),
        (edited_keys(lambda t: t.append(t[0])), 2, pg.errors.FileError, ["one key tag"]),
        ("{", 2, pg.errors.FileError, ["text is not JSON"]),
    ):
        refused(lambda x=given_text, y=special: interop.from_openfhe_keys(x, special=y), cls, words)


def test_openfhe_bfv_ciphertexts() -> None:
    s, c = element("bfv_secret"), element("bfv_a")
    m = pg.rns.scale(phase(c, s), 65537, Ring(128, 65537))
    assert m.to_bigints(centered=True).tolist() == [1, 2, -3, 4, 5, -6, 7, 8, *[0] * 120]


def test_openfhe_round_trip() -> None:
    for name in ("ckks_secret", "ckks_a", "ckks_product", "ckks_relin", "bfv_a"):
        text = openfhe(name)
        written = interop.to_openfhe(element(name), text)
        assert json.loads(written) == json.loads(text)
    a, b, text = element("ckks_a"), element("ckks_b"), openfhe("ckks_a")
    changed = interop.to_openfhe(a + b, text)
    assert interop.from_openfhe(changed.encode()) == a + b and changed != text


def coefficients_of(name: str) -> str:
    """A file in coefficients: only the words and the format fields of another one are changed."""
    tree, poly = json.loads(openfhe(name)), element(name).intt()
    inner = tree["value0"]["ptr_wrapper"]["data"]["v"]
    for tower, rows in zip(inner, poly.data.tolist(), strict=True):
        tower["f"] = 1
        for part, row in zip(tower["v"], rows, strict=True):
            part["f"], part["v"]["ptr_wrapper"]["data"]["v"] = 1, row
    return json.dumps(tree)


def test_openfhe_coefficients() -> None:
    text = coefficients_of("ckks_a")
    found = interop.from_openfhe(text)
    assert found.domain == "coef" and found == element("ckks_a")
    assert json.loads(interop.to_openfhe(found, text)) == json.loads(text)


def edited(name: str, edit: Any) -> str:
    """A file with its first polynomials or parameters changed."""
    tree = json.loads(openfhe(name))
    data = tree["value0"]["ptr_wrapper"]["data"]
    chain = data["value0"]["cc"]["ptr_wrapper"]["data"]["cc"]["ptr_wrapper"]["data"]["value0"]["value0"]
    elements = chain["value0"]["elp"]["ptr_wrapper"]["data"]["p"]
    edit(data["v"], [part["ptr_wrapper"]["data"]["value0"] for part in elements])
    return json.dumps(tree)


def test_openfhe_with_other_roots() -> None:
    R = element("ckks_a").ring
    other = Ring(128, R.moduli, root="generator")
    assert R.roots is not None and other.roots is not None and R.roots[0] != other.roots[0]

    def name_others(towers: Any, primes: Any) -> None:
        for prime, root in zip(primes, other.roots or (), strict=True):
            prime["ru"]["v"] = root

    found = interop.from_openfhe(edited("ckks_a", name_others))
    assert found.ring == other and np.array_equal(found.data, element("ckks_a").data)
    back = interop.from_openfhe(interop.to_openfhe(found, openfhe("ckks_a")))
    assert back.ring == R and np.array_equal(back.intt().data, found.intt().data)


def test_from_openfhe_raises_for_invalid_data() -> None:
    text, a, b = openfhe("ckks_a"), element("ckks_a"), element("bfv_a")
    values = lambda towers, i=0: towers[i]["v"][0]["v"]["ptr_wrapper"]["data"]  # noqa: E731

    def word(x: Any) -> str:
        return edited("ckks_a", lambda towers, primes: values(towers)["v"].__setitem__(3, x))

    q = a.ring.moduli[0]
    for given_text, cls, words in (
        (5, pg.errors.FileError, ["text must be JSON as str or bytes, not int"]),
        (b"\x00\xff", pg.errors.FileError, ["text is not JSON", "SerType::JSON"]),
        ("{", pg.errors.FileError, ["text is not JSON"]),
        ("[" * 100_000, pg.errors.FileError, ["text is not JSON"]),
        ('{"a":' * 900 + "1" + "}" * 900, pg.errors.FileError, ["text "]),
        ("[1, 2]", pg.errors.FileError, ["no polynomials"]),
        ('{"v": [], "f": 0, "p": 1}', pg.errors.FileError, ["no polynomials"]),
        (f"[{text}, {openfhe('ckks_product')}]", pg.errors.FileError, ["of the shapes", "(3,)", "(2,)"]),
        (word(q), pg.errors.NotCanonical, [f"{q} at (0, 0, 3)"]),
        (word(-1), pg.errors.NotCanonical, ["-1, which is not a residue"]),
        (word(2**64), pg.errors.NotCanonical, [f"{2**64}, which is not a residue"]),
        (word(1.5), pg.errors.FileError, ["not ints"]),
        (word(True), pg.errors.FileError, ["not ints"]),
        (
            edited("ckks_a", lambda t, p: values(t)["v"].pop()),
            pg.errors.FileError,
            ["without a field", "'a modulus'"],
        ),
        (edited("ckks_a", lambda t, p: values(t).pop("m")), pg.errors.FileError, ["without a field", "'m'"]),
        (edited("ckks_a", lambda t, p: t[0]["v"][0].update(f=2)), pg.errors.FileError, ["rings or formats"]),
        (
            edited("ckks_a", lambda t, p: p[0].update(co=254)),
            pg.errors.FileError,
            ["cyclotomic order 254", "2n"],
        ),
        (edited("ckks_a", lambda t, p: p[0]["ru"].update(v="7")), pg.errors.FileError, ["not ints"]),
        (edited("ckks_a", lambda t, p: p[0]["ru"].update(v=7)), pg.errors.BadRoot, ["7", "order 256"]),
    ):
        refused(lambda given_text=given_text: interop.from_openfhe(given_text), cls, words)
    to_openfhe = interop.to_openfhe
    refused(lambda: to_openfhe(a, "{"), pg.errors.FileError, ["like is not JSON"])
    refused(lambda: to_openfhe(a[0], text), pg.ParameterError, ["batch shape of poly is ()", "(2,)"])
    refused(lambda: to_openfhe(a.intt(), text), pg.errors.DomainError, ["'coef'", "'eval'"])
    refused(lambda: to_openfhe(b, text), pg.RingMismatch, ["poly is of ", "restrict", "convert"])
    refused(lambda: to_openfhe(a.data, text), pg.RingMismatch, ["poly must be a Poly, not ndarray"])


def test_openfhe_decrypts_written_ciphertexts() -> None:
    lib = library("openfhe")
    secret = lib.DeserializePrivateKeyString(openfhe("ckks_secret"), lib.JSON)
    cc = secret.GetCryptoContext()

    def decrypted(text: str) -> Any:
        plain = cc.Decrypt(lib.DeserializeCiphertextString(text, lib.JSON), secret)
        plain.SetLength(4)
        return np.array(plain.GetRealPackedValue()[:4])

    a, b = element("ckks_a"), element("ckks_b")
    found = decrypted(interop.to_openfhe(a + b * 3, openfhe("ckks_a")))
    np.testing.assert_allclose(found, np.array(CKKS[0]) + 3 * np.array(CKKS[1]), atol=1e-8)
    product = interop.to_openfhe(tensor(a, b), openfhe("ckks_product"))
    np.testing.assert_allclose(decrypted(product), np.multiply(*CKKS), atol=1e-8)
    s = element("ckks_secret")  # a ciphertext made here
    mask = s.ring.random(seed=7).ntt()
    message = s.ring.from_floats(fft.from_slots(np.tile([1.5, -2, 0.25, 4], 16) + 0j), scale=2**50)
    c = pg.stack([message - mask * s, mask.copy()])
    found = decrypted(interop.to_openfhe(c.ntt(), openfhe("ckks_a")))
    np.testing.assert_allclose(found, [1.5, -2, 0.25, 4], atol=1e-8)


# ---- Lattigo ----


def least_primitive_root(q: int) -> int:
    rest, factors, p = q - 1, set(), 2
    while rest > 1:
        while rest % p == 0:
            factors.add(p)
            rest //= p
        p += 1
        if p * p > rest:
            factors |= {rest} - {1}
            break
    return next(g for g in range(3, q) if all(pow(g, (q - 1) // f, q) != 1 for f in factors))


PRIMES = (97, 40961, 65537)  # 1 mod 32


def words_of_lattigo(coefficients: list[int], q: int, montgomery: bool) -> list[int]:
    """Entry k is a(psi^(2 br(k) + 1)), psi = g^((q - 1) / 2n), times 2^64 in Montgomery form."""
    n = len(coefficients)
    psi = pow(least_primitive_root(q), (q - 1) // (2 * n), q)
    points = [pow(psi, 2 * bit_reversed(k, n) + 1, q) for k in range(n)]
    return [value_at(coefficients, x, q) * (2**64 if montgomery else 1) % q for x in points]


@pytest.mark.parametrize("montgomery", [False, True])
def test_lattigo_words_round_trip(device: str, montgomery: bool) -> None:
    rng = random.Random(8)
    rows = [[rng.randrange(-(2**40), 2**40) for _ in range(16)] for _ in range(3)]
    words = np.array([[words_of_lattigo(row, q, montgomery) for q in PRIMES] for row in rows], np.uint64)
    given_words = backend().from_host(words)
    found = interop.from_lattigo(given_words, PRIMES, montgomery=montgomery)
    Q = found.ring.modulus
    assert found.domain == "eval" and found.shape == (3,) and found.device == device
    assert found.ring == Ring(16, PRIMES, root="generator")
    assert found.to_bigints().tolist() == [[x % Q for x in row] for row in rows]
    back = interop.to_lattigo(found, montgomery=montgomery)
    assert back.dtype == np.uint64 and type(back) is type(given_words)
    assert np.array_equal(host(back), words) and np.array_equal(host(given_words), words)
    R = Ring(16, PRIMES)  # the smallest roots
    assert R.roots != found.ring.roots
    ours = interop.from_lattigo(given_words, R, montgomery=montgomery)
    assert ours.ring == R and ours.domain == "eval" and ours == R(rows)
    assert np.array_equal(host(interop.to_lattigo(ours, montgomery=montgomery)), words)


def test_lattigo_coefficients() -> None:
    big = pg.ntt_primes(16, bits=60, count=2)
    x = Ring(16, big).random(2, seed=1)
    mont = np.array(
        [[[w * 2**64 % q for w in row] for row, q in zip(p, big, strict=True)] for p in x.data.tolist()]
    )
    found = interop.from_lattigo(mont.astype(np.uint64), big, domain="coef", montgomery=True)
    assert found.domain == "coef" and np.array_equal(found.data, x.data)
    assert np.array_equal(interop.to_lattigo(x, montgomery=True), mont)
    plain = interop.to_lattigo(x)
    assert np.array_equal(plain, x.data) and not np.shares_memory(plain, x.data)


def test_lattigo_raises_for_invalid_words() -> None:
    words = np.zeros((2, 16), np.uint64)
    words[1, 3] = 40961
    from_lattigo, to_lattigo = interop.from_lattigo, interop.to_lattigo
    for call, cls, more in (
        (lambda: from_lattigo(words, PRIMES[:2]), pg.errors.NotCanonical, ["40961 at (1, 3)"]),
        (lambda: from_lattigo(words[:1], PRIMES), pg.ParameterError, ["shape (1, 16)", "(3, 16)"]),
        (lambda: from_lattigo(words[:, :4], PRIMES[:2]), pg.ParameterError, ["n=4", "at least 8"]),
        (lambda: from_lattigo(5, PRIMES), pg.ParameterError, ["n=0"]),
        (lambda: from_lattigo([1.5], PRIMES), pg.errors.CoefficientError, ["1.5 of words"]),
        (lambda: from_lattigo(words, [97, 101]), pg.NotNTTFriendly, ["Lattigo", "1 modulo 2n"]),
        (lambda: from_lattigo(words, [97, 17]), pg.NotNTTFriendly, ["Lattigo", "1 modulo 2n"]),
        (lambda: from_lattigo(words, PRIMES[:2], domain="ntt"), pg.errors.DomainError, ["'ntt'"]),
        (lambda: from_lattigo(words * 0, Ring(32, PRIMES[:2])), pg.RingMismatch, ["Ring(32"]),
        (lambda: to_lattigo(Ring(8, 97, kind="cyclic")([1])), pg.ParameterError, ["X^n + 1"]),
        (lambda: to_lattigo(Ring(4, 97)([1])), pg.ParameterError, ["n=4"]),
        (lambda: to_lattigo(Ring(8, 2**32)([1])), pg.NotNTTFriendly, ["Lattigo"]),
        (lambda: to_lattigo(words), pg.RingMismatch, ["poly must be a Poly, not ndarray"]),
    ):
        refused(call, cls, more)


# ---- arrays through DLPack ----


class Exporter:
    """An array of another library, which has only DLPack's two methods."""

    def __init__(self, array: Any, device: Any = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if isinstance(self.array, Exception):
            raise self.array
        return self.array.__dlpack__(**({} if self.device[0] == 2 else options))

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, Exception):
            raise self.device
        return self.device


R17, WORDS = Ring(4, 17), Ring(8, pg.ntt_primes(8, bits=60, count=2))


def test_integers_from_arrays_of_other_libraries() -> None:
    x = np.array([[1, -2, 300], [4, 5, -600]])
    for dtype in (np.int16, np.int64):
        assert R17(Exporter(x.astype(dtype))) == R17(x)
    assert R17(Exporter(x.T)) == R17(x.T)
    assert R17(Exporter(x[:, ::-1])) == R17(x[:, ::-1])
    a = R17.random(2, seed=1)
    assert a.scale_by(Exporter(x[:, 0])) == a.scale_by(x[:, 0])
    M = np.arange(6).reshape(2, 3)
    assert linalg.matmul(Exporter(M), Exporter(M.T), q=17).tolist() == (M @ M.T % 17).tolist()
    assert np.array_equal(
        pg.lattice.decompose_integers(Exporter(x), q=2**32, bits=4, levels=3),
        pg.lattice.decompose_integers(x, q=2**32, bits=4, levels=3),
    )


def test_residues_from_arrays_of_other_libraries_are_shared() -> None:
    x = WORDS.random(3, seed=1)
    for copy in (None, False):
        found = WORDS.from_residues(Exporter(x.data), copy=copy)
        assert np.shares_memory(found.data, x.data) and found == x and type(found.data) is np.ndarray
    copied = WORDS.from_residues(Exporter(x.data), domain="eval", copy=True)
    assert not np.shares_memory(copied.data, x.data) and np.array_equal(copied.data, x.data)
    for other in (x.data.astype(np.int64), np.asfortranarray(x.data)):
        assert WORDS.from_residues(Exporter(other)) == x
        refused(
            lambda other=other: WORDS.from_residues(Exporter(other), copy=False),
            pg.ParameterError,
            ["data ", "copy=False"],
        )
    minus = Exporter(-x.data.astype(np.int64))
    refused(lambda: WORDS.from_residues(minus), pg.errors.NotCanonical, ["is not a residue"])


def test_fft_of_arrays_of_other_libraries() -> None:
    x = np.exp(2j * np.pi * np.arange(128).reshape(2, 64) / 64)
    for call in (fft.fft, fft.fft64, lambda x: fft.convolve64(x, x), fft.from_slots):
        assert np.array_equal(call(Exporter(x)), call(x))
    real = np.arange(8.0)
    assert np.array_equal(fft.to_slots(Exporter(real)), fft.to_slots(real))
    refused(lambda: fft.fft(Exporter(real)), pg.errors.NotComplex, ["float64"])
    refused(lambda: fft.fft(Exporter(BufferError("no"))), pg.errors.NotComplex, ["x is a ", "(no)"])


@pytest.mark.skipif(OLD_NUMPY, reason="NumPy 2.0 does not share read-only arrays by DLPack")
def test_read_only_arrays_stay_read_only() -> None:
    x = WORDS.random(seed=1).data
    x.flags.writeable = False
    found = WORDS.from_residues(Exporter(x))
    assert np.shares_memory(found.data, x) and not found.data.flags.writeable
    refused(lambda: found.add(1, out=found), pg.errors.OutputError, ["read-only"])


def test_arrays_on_unsupported_devices_raise() -> None:
    for device, words in (
        ((8, 0), ["Metal", "Copy the array to one of these"]),
        ((10, 0), ["ROCm"]),
        ((77, 0), ["DLPack kind 77"]),
        (
            ValueError("Unknown device type meta\nand more"),
            ["does not say on which device it is (Unknown device type meta)."],
        ),
        (None, ["does not say on which device"]),
    ):
        for call in (R17, R17.from_residues, fft.fft):
            refused(lambda c=call, d=device: c(Exporter(np.zeros((1, 4), int), d)), pg.DeviceError, words)
    locked = Exporter(BufferError("Can't export tensors that require gradient\ntwo"))
    words = ["Exporter of no dtype", "(Can't export tensors that require gradient)", "lie in memory"]
    for call in (R17, R17.from_residues):
        refused(lambda c=call: c(locked), pg.errors.CoefficientError, words)
    for bad in (np.ones(3), np.ones(3, bool), np.ones(3, complex)):
        refused(lambda b=bad: R17(Exporter(b)), pg.errors.CoefficientError, [str(bad.dtype), "must be ints"])

    class Copied(Exporter):
        """DLPack refuses this array, as it does for dtypes that it lacks; NumPy may still copy it."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array([1, 2])

    assert R17(Copied(BufferError("no"))) == R17([1, 2])


@needs_compiler
def test_gpu_arrays_of_other_libraries() -> None:
    """Arrays are on both cards of a simulation. The first has the name of a real card."""
    integers = np.array([[1, -2, 300], [4, 5, -600]])
    rows = np.exp(2j * np.pi * np.arange(128).reshape(2, 64) / 64)
    with simulated(devices_count=2):
        rings = pg.Ring(4, 17), pg.Ring(8, WORDS.moduli)  # their tables end with the simulation
        for kind, index in ((2, 1), (13, 1), (2, 0)):  # 2 is CUDA, 13 its managed memory
            for R in rings:
                x = R.random(2, seed=1)
                found = R.from_residues(Exporter(x.data, (kind, index)))
                assert found.device == f"cuda:{index}" and np.array_equal(host(found.data), x.data)
                found = R(Exporter(integers, (kind, index)))
                assert found.device == f"cuda:{index}" and found.cpu() == R(integers)
            a, b = (Exporter(x, (kind, index)) for x in (integers, integers.T.copy()))
            assert host(linalg.matmul(a, b, q=17)).tolist() == (integers @ integers.T % 17).tolist()
            found_fft = host(fft.fft(Exporter(rows, (kind, index))))
            np.testing.assert_allclose(found_fft, np.fft.fft(rows), atol=1e-12)


def test_gpu_arrays_without_a_card() -> None:
    far = Exporter(np.zeros((1, 4), np.uint32), (2, 63))
    for call, name in ((R17, "x"), (R17.from_residues, "data")):
        refused(lambda c=call: c(far), pg.errors.BackendUnavailable, [f"{name}='cuda:63' does not answer"])


# ---- PyTorch ----


def test_tensors_of_torch() -> None:
    torch = library("torch")
    x = torch.tensor([[1, -2, 300], [4, 5, -600]])
    assert R17(x) == R17(x.tolist()) and R17(x.T) == R17(x.T.tolist()) and R17(x[0, 0]) == 1
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        assert R17(torch.tensor([1, 2, 3], dtype=dtype)) == R17([1, 2, 3])
    a = WORDS.random(2, seed=1)
    t = torch.from_dlpack(a)
    assert t.dtype == torch.uint64 and t.data_ptr() == a.data.ctypes.data and tuple(t.shape) == a.data.shape
    back = WORDS.from_residues(t, copy=False)
    assert np.shares_memory(back.data, a.data) and back == a
    assert torch.from_dlpack(a.data).data_ptr() == t.data_ptr()
    signed = t.view(torch.int64)  # torch computes on this dtype; residues fit, as q < 2^63
    assert (signed + signed).tolist() == (2 * a.data.astype(np.int64)).tolist()
    assert WORDS.from_residues(signed) == a
    small = torch.from_dlpack(R17([1, 2]))
    assert small.dtype == torch.uint32 and R17.from_residues(small) == R17([1, 2])
    locked = a.data.copy()
    locked.flags.writeable = False
    assert torch.from_dlpack(WORDS.from_residues(locked)).tolist() == locked.tolist()


def test_invalid_tensors_of_torch_raise() -> None:
    torch = library("torch")
    for tensor_, cls, words in (
        (torch.ones(3), pg.errors.CoefficientError, ["float32", "must be ints"]),
        (
            torch.ones(3, requires_grad=True),
            pg.errors.CoefficientError,
            ["torch.Tensor of torch.float32", "detach()"],
        ),
        (torch.ones(3, dtype=torch.bfloat16), pg.errors.CoefficientError, ["torch.bfloat16"]),
        (torch.tensor([True]), pg.errors.CoefficientError, ["bool"]),
        (torch.arange(4).to_sparse(), pg.errors.CoefficientError, ["torch.int64", "to_dense()"]),
        (torch.empty(4, dtype=torch.int64, device="meta"), pg.DeviceError, ["meta", "lie in memory"]),
    ):
        refused(lambda x=tensor_: R17(x), cls, words)
    rows = torch.ones(2, 64, dtype=torch.complex128)
    np.testing.assert_allclose(fft.fft64(rows), np.fft.fft(np.ones((2, 64))), atol=1e-12)
    refused(lambda: fft.to_slots(torch.ones(4, requires_grad=True)), pg.errors.NotComplex, ["detach()"])


@on("cuda")
def test_tensors_of_torch_on_a_card() -> None:
    torch = library("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no card")
    for R in (R17, WORDS):
        x = R.random(2, seed=1)
        t = torch.from_dlpack(x)
        assert t.is_cuda and t.data_ptr() == x.data.data.ptr
        back = R.from_residues(t, copy=False)
        assert back.device == x.device and back.data.data.ptr == x.data.data.ptr and back == x
        integers = torch.arange(-6, 6, device="cuda").reshape(3, 4)
        assert R(integers) == R(integers.cpu().numpy()).to(x.device) and R(integers).device == x.device
        assert R.from_residues(t.view(torch.int32 if R is R17 else torch.int64)) == x


# ---- python-flint and SymPy ----

FLINT_RINGS = (Ring(4, 17), Ring(8, 2**64 - 59, kind="cyclic"), Ring(6, [97, 2**61 - 1]), Ring(3, 2**100))


def test_flint_round_trip() -> None:
    """Values of any batch shape come back, through polynomials modulo Q and over the integers."""
    flint = library("flint")
    for ring in FLINT_RINGS:
        kind = "nmod_poly" if ring.modulus < 2**64 else "fmpz_mod_poly"
        for batch in ((), (3,), (2, 0), (2, 2)):
            a = ring.random(batch, seed=1)
            for centered, name in ((None, kind), (True, "fmpz_poly"), (False, "fmpz_poly")):
                x = interop.to_flint(a, centered=centered)
                assert batch or type(x).__name__ == name
                assert interop.from_flint(x, ring) == a
    assert interop.to_flint(R17([1, -2]), centered=True) == flint.fmpz_poly([1, -2])
    assert interop.to_flint(R17([1, -2]).ntt()) == flint.nmod_poly([1, 15], 17)


@given(rings(max_degree=64).flatmap(polys))
def test_round_trips_of_any_value(a: pg.Poly) -> None:
    """Any value comes back from python-flint and from SymPy, in coefficients."""
    library("flint")
    assert interop.from_flint(interop.to_flint(a), a.ring) == a
    assert interop.from_sympy(interop.to_sympy(a), a.ring) == a


@given(st.lists(st.integers(-(2**70), 2**70), max_size=4), st.sampled_from(FLINT_RINGS[:2]))
def test_coefficients_of_any_integers(ints: list[int], ring: Ring) -> None:
    flint, sympy = library("flint"), library("sympy")
    assert interop.from_flint(flint.fmpz_poly(ints), ring) == ring(ints or [0])
    p = sympy.Poly.from_list(ints[::-1] or [0], sympy.Symbol("X"), domain=sympy.ZZ)
    assert interop.from_sympy(p, ring) == ring(ints or [0])


def test_products_of_flint_and_sympy_agree() -> None:
    """Products modulo X^n + 1 by python-flint and by SymPy are those of the ring."""
    flint, sympy = library("flint"), library("sympy")
    a, b = R17.random(seed=1), R17.random(seed=2)
    x, y = interop.to_flint(a), interop.to_flint(b)
    modulus = flint.nmod_poly([1, 0, 0, 0, 1], 17)
    assert interop.from_flint(x * y % modulus, R17) == a * b
    X = sympy.Symbol("X")
    p, q = (interop.to_sympy(v, X).set_modulus(17) for v in (a, b))
    assert interop.from_sympy((p * q).rem(sympy.Poly(X**4 + 1, X, modulus=17)), R17) == a * b


def test_polynomials_that_do_not_fit_raise() -> None:
    flint, sympy = library("flint"), library("sympy")
    X, Y = sympy.symbols("X Y")
    coefficient, parameter, mismatch = pg.errors.CoefficientError, pg.ParameterError, pg.RingMismatch
    cases: list[tuple[Any, Any, list[str]]] = [
        (lambda: interop.from_flint(flint.fmpq_poly([1, 2]), R17), coefficient, ["fmpq_poly", "fmpz_poly"]),
        (lambda: interop.from_flint([[1, 2]], R17), coefficient, ["int", "ring(ints)"]),
        (lambda: interop.from_flint(flint.nmod_poly([1], 7), R17), mismatch, ["modulo 7", "modulus 17"]),
        (lambda: interop.from_flint(flint.fmpz_poly([0] * 4 + [1]), R17), parameter, ["degree 4", "n=4"]),
        (lambda: interop.from_flint([flint.fmpz_poly([1]), []], R17), parameter, ["ragged"]),
        (lambda: interop.from_flint(flint.fmpz_poly([1]), 17), parameter, ["ring must be a Ring"]),
        (lambda: interop.to_flint(17), mismatch, ["poly must be a Poly"]),
        (lambda: interop.from_sympy(X + 1, R17), coefficient, ["Add", "sympy.Poly(expression, X)"]),
        (lambda: interop.from_sympy(sympy.Poly(X * Y), R17), coefficient, ["one generator"]),
        (lambda: interop.from_sympy(sympy.Poly(X / 2), R17), coefficient, ["integer coefficients"]),
        (lambda: interop.from_sympy(sympy.Poly(X, X, modulus=7), R17), mismatch, ["modulo 7"]),
        (lambda: interop.from_sympy(sympy.Poly(X**4, X), R17), parameter, ["degree 4"]),
        (lambda: interop.to_sympy(17), mismatch, ["poly must be a Poly"]),
    ]
    for call, cls, words in cases:
        refused(call, cls, words)
    assert interop.from_flint(flint.nmod_poly([20], 34), R17) == R17([3])  # a multiple of 17


# ---- JAX ----


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def jax(request: pytest.FixtureRequest) -> Iterator[Any]:
    """JAX on the host, with jax_enable_x64 off and on."""
    found, card = library("jax"), None
    if ABSENT is None:
        import cupy

        card = cupy.cuda.Device()
    before = found.config.jax_enable_x64
    found.config.update("jax_enable_x64", request.param)
    with found.default_device(found.devices("cpu")[0]):
        yield found
    found.config.update("jax_enable_x64", before)
    if card is not None:
        card.use()  # when JAX starts, it makes the last of the GPUs current


def test_arrays_of_jax(jax: Any) -> None:
    whole = jax.config.jax_enable_x64
    x = jax.numpy.asarray([[1, -2, 300], [4, 5, -600]])
    assert x.dtype == (np.int64 if whole else np.int32)
    assert R17(x) == R17(x.tolist()) and WORDS(x) == WORDS(x.tolist())
    small = R17.random(2, seed=1)
    theirs = interop.to_jax(small)
    assert theirs.dtype == np.uint32 and np.array_equal(np.asarray(theirs), small.data)
    back = R17.from_residues(theirs)
    assert back == small and not back.data.flags.writeable
    assert not np.shares_memory(np.asarray(interop.to_jax(small, copy=True)), small.data)
    refused(lambda: R17(jax.numpy.ones(3)), pg.errors.CoefficientError, ["must be ints"])
    refused(lambda: R17(jax.numpy.ones(3, jax.numpy.bfloat16)), pg.errors.CoefficientError, ["bfloat16"])
    inside = jax.jit(lambda x: R17(x).data)
    refused(lambda: inside(x), pg.DeviceError, ["x is a jax.", "does not say on which device"])


def test_words_of_jax_need_x64(jax: Any) -> None:
    a = WORDS.random(2, seed=1)
    cut = jax.numpy.asarray(a.data)
    if not jax.config.jax_enable_x64:
        assert cut.dtype == np.uint32
        words = [
            "data is a JAX array of uint32",
            "residues are uint64",
            "jax_enable_x64",
            "numpy.asarray(data)",
        ]
        refused(lambda: WORDS.from_residues(cut), pg.errors.CoefficientError, words)
        refused(
            lambda: interop.to_jax(a), pg.ParameterError, ["residues of poly are uint64", "jax_enable_x64"]
        )
        short = jax.numpy.asarray(WORDS([1, 2]).data)
        assert WORDS.from_residues(np.asarray(short)) == WORDS([1, 2])
        return
    theirs = interop.to_jax(a)
    assert theirs.dtype == np.uint64 and np.array_equal(np.asarray(theirs), a.data)
    assert np.shares_memory(np.asarray(theirs), a.data)
    assert WORDS.from_residues(theirs) == a and WORDS.from_residues(cut) == a
    a.data.flags.writeable = False
    assert np.array_equal(np.asarray(interop.to_jax(a)), a.data)
    assert np.array_equal(np.asarray(jax.numpy.from_dlpack(WORDS.from_residues(a.data, copy=True))), a.data)


def test_to_jax_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    refused(lambda: interop.to_jax(R17([1])), pg.errors.BackendUnavailable, ["pip install jax"])
    refused(lambda: interop.to_jax(R17([1]).data), pg.RingMismatch, ["poly must be a Poly, not ndarray"])


# ---- the array API standard ----


def test_arrays_of_array_api_strict() -> None:
    xp = library("array_api_strict")
    x = xp.asarray([[1, -2, 300], [4, 5, -600]])
    assert R17(x) == R17([[1, -2, 300], [4, 5, -600]])
    a = WORDS.random(2, seed=1)
    assert WORDS.from_residues(xp.asarray(a.data), copy=False) == a
    assert np.array_equal(np.from_dlpack(xp.from_dlpack(a)), a.data)
    refused(lambda: R17(xp.asarray([1.0])), pg.errors.CoefficientError, ["float64", "must be ints"])
