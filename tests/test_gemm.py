"""Products of matrices by tensor cores: constants, and cuda/matmul_tensor.cu under the simulator."""

from fractions import Fraction
from itertools import combinations, pairwise, product
from math import gcd, prod

import numpy as np
import pytest
from cudasim import check
from test_cuda_simulated import needs_compiler, simulated

from polygpu import Poly, Ring
from polygpu.backends import cuda, get_backend
from polygpu.backends.cuda import matmul_tiles
from polygpu.backends.cuda.tiles import Card
from polygpu.errors import OutOfDeviceMemory
from polygpu.plans.basis import basis_of

METHODS = ("_matmul_digits", "_matmul_residues")
MODULI = (2, 3, 255, 256, 2**16, 2**31 - 1, 2**32 + 15, 2**50 - 27, 2**60 - 93, 2**61 - 1, 2**62)
# (batch of a, of b, m, k, n): ones, odd sizes, around the tiles of 64 and 128 rows, 32 or 16 columns of
# words and 16 words of depth, copies of 4, 8 and 16 bytes.
SHAPES = (
    *((1, 1, 1, 1, 1), (1, 1, 5, 7, 9), (2, 2, 3, 18, 17), (1, 3, 4, 16, 4), (3, 1, 4, 20, 5)),
    *((1, 1, 64, 64, 32), (2, 1, 65, 3, 9), (1, 1, 128, 64, 32), (1, 1, 129, 66, 33)),
)


def product_of(a, b, q):
    return np.matmul(a.astype(object), b.astype(object)) % q


def operands(q, shape, kind, seed=0):
    """Words of all sizes, or those whose sums are largest: q - 1, and about q / 2 where words are centred."""
    left, right, m, k, n = shape
    dtype, rng = basis_of((q,)).dtype, np.random.default_rng(seed)
    a, b = np.empty((left, m, k), dtype), np.empty((right, k, n), dtype)
    for x in (a, b):
        if kind == "words":
            x[...] = rng.integers(0, np.iinfo(dtype).max, x.shape, dtype, endpoint=True)
        else:
            x[...] = {
                "last": q - 1,
                "half": q // 2,
                "past half": q // 2 + 1,
                "all bits": -1 % 2 ** (8 * x.itemsize),
            }[kind]
    return a, b


def multiply(method, q, a, b):
    compute, basis = get_backend("cuda:0"), basis_of((q,))
    out = compute.xp.empty((max(len(a), len(b)), a.shape[1], b.shape[2]), basis.dtype)
    getattr(compute, method)(basis, compute.from_host(a), compute.from_host(b), out)
    return out.get()


# ---- the small moduli ----


def test_coprimes():
    assert all(gcd(p, r) == 1 for p, r in combinations(matmul_tiles.COPRIMES, 2))
    assert all(p > r for p, r in pairwise(matmul_tiles.COPRIMES)) and matmul_tiles.COPRIMES[0] == 256


@pytest.mark.parametrize("q", MODULI)
@pytest.mark.parametrize("k", [1, 2, 64, 4096, 2**17, 2**31])
def test_enough_coprimes(q, k):
    """They hold the largest sum with the margin that its quotient is rounded with, and one fewer do not."""
    primes, largest = matmul_tiles.coprimes(q, k), k * (q // 2) ** 2
    assert Fraction(largest, prod(primes)) < Fraction(1, 2) - Fraction(1, 2**12)
    assert len(primes) == 1 or 2 * largest > prod(primes[:-1]) * Fraction(2047, 2048)


def test_errors_of_shares():
    """y / p in units of 2^-26 is wrong, for all p together, by less than the margin of rounding."""
    shares = [round((1 << 26) / p) for p in matmul_tiles.COPRIMES]
    wrong = sum(
        abs(Fraction(s, 1 << 26) - Fraction(1, p)) * (p - 1)
        for s, p in zip(shares, matmul_tiles.COPRIMES, strict=True)
    )
    assert wrong < Fraction(1, 2**12)
    assert sum(s * (p - 1) for s, p in zip(shares, matmul_tiles.COPRIMES, strict=True)) + 2**25 < 2**32


@pytest.mark.parametrize("word_bytes", [4, 8])
def test_residues_stay_in_their_words(word_bytes):
    """The largest sum of digits times weights, and the least, are words of 32 bits."""
    width = 16 if word_bytes == 4 else 21
    digits, top = (1, 2**15) if word_bytes == 4 else (2, 2**19)
    for left in (True, False):
        primes = matmul_tiles.COPRIMES
        for row in matmul_tiles.residue_table(primes, word_bytes, left).astype(object):
            p, inverse, offset, multiple = row[0], row[1], row[5], row[6]
            most = sum((2**width - 1) * w for w in row[2 : 2 + digits]) + top * row[2 + digits] + offset
            assert most < 2**32 and offset - top * row[2 + digits] >= 0
            assert offset % p == 128 % p and multiple % p == 0 and 2**31 - 2**8 < multiple <= 2**31
            # reduce(): the quotient of the largest word is at most 1 too small.
            assert (2**32 - 1) // p - (2**32 - 1) * inverse // 2**32 in (0, 1)


# ---- which way ----

H100 = Card((9, 0), 227 << 10, 50 << 20, 132)
T4 = Card((7, 5), 64 << 10, 4 << 20, 40)


def test_moduli_of_digits():
    """Shoup's 2^8 x is below 2 q, or 2^8 x itself modulo 2^32; where 2 q is no word it can be too large."""
    assert all(matmul_tiles.has_digits(q, 4) for q in (2, 2**31 - 1, 2**31, 2**32))
    assert not any(matmul_tiles.has_digits(q, 4) for q in (2**31 + 1, 2**32 - 5, 2**32 - 1))
    assert all(matmul_tiles.has_digits(q, 8) for q in (2**32 + 1, 2**62))
    assert not any(matmul_tiles.has_digits(q, 8) for q in (2**62 + 1, 2**64 - 59))
    q, x = 2**32 - 5, 2**32 - 1
    assert 256 * x - ((256 << 32) // q * x >> 32) * q >= 2**32


def way(q, *shape, card=H100):
    """Of a product (batch, m, k, n)."""
    return matmul_tiles.matmul_method(q, basis_of((q,)).dtype.itemsize, *shape, card)


@pytest.mark.parametrize("card", [H100, T4], ids=["H100", "T4"])
@pytest.mark.parametrize("q", MODULI)
def test_ways_of_large_and_thin_products(card, q):
    for size in (4096, 8192, 1 << 15):
        assert way(q, 1, size, size, size, card=card) == "residues"
    for shape in ((1, 1, 1, 1), (1, 30, 30, 30), (1, 1, 4096, 4096), (1, 4096, 4096, 1)):
        assert way(q, *shape, card=card) == "integer"


@pytest.mark.parametrize("q", [3, 2**30 - 35, 2**31 - 1, 2**31, 2**32, 2**60 - 93, 2**62])
def test_ways_of_medium_products(q):
    for shape in ((1, 256, 256, 256), (1, 512, 512, 512), (256, 128, 128, 128), (1024, 64, 64, 64)):
        assert way(q, *shape) == "digits"


def test_ways_where_digits_do_not_work():
    sizes = [1 << i for i in range(0, 16, 3)]
    ways = {
        way(q, batch, m, k, n)
        for q in (2**31 + 1, 2**31 + 11, 2**32 - 5)
        for batch, m, k, n in product((1, 100), sizes, sizes, sizes)
    }
    assert ways == {"integer", "residues"}


# ---- kernels ----


@needs_compiler
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("q", MODULI)
def test_products(method, q):
    with simulated(order="random", seed=3):
        for shape in SHAPES:
            a, b = operands(q, shape, "words")
            np.testing.assert_array_equal(multiply(method, q, a, b), product_of(a, b, q), f"{shape}")
        for kind in ("last", "half", "past half", "all bits"):
            a, b = operands(q, (1, 2, 9, 67, 13), kind)
            np.testing.assert_array_equal(multiply(method, q, a, b), product_of(a, b, q), kind)


@needs_compiler
@pytest.mark.parametrize("q", [2**31, 2**31 + 11, 2**32 - 5, 2**32])
def test_residues_of_words_of_32_bits(q):
    with simulated():
        for kind in ("words", "last", "half", "past half", "all bits"):
            a, b = operands(q, (1, 1, 6, 70, 11), kind)
            np.testing.assert_array_equal(multiply("_matmul_residues", q, a, b), product_of(a, b, q), kind)


@needs_compiler
@pytest.mark.parametrize("q", [2**30 + 3, 2**31 - 1, 2**31, 2**32, 2**61 + 15])
def test_digits_at_the_edges_of_words(q):
    """2^8 x modulo q where 2 q is the first that is no word, and where q is."""
    with simulated():
        for kind in ("words", "last", "half", "past half", "all bits"):
            a, b = operands(q, (1, 1, 6, 70, 11), kind)
            np.testing.assert_array_equal(multiply("_matmul_digits", q, a, b), product_of(a, b, q), kind)


@needs_compiler
@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5, 2**32, 2**62])
def test_recorded_products_take_no_cublas(q, monkeypatch):
    """CuPy does not record it: by digits where they work, else by integers."""
    monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: "residues")
    taken = []
    for name in (*METHODS, "_matmul_integer"):
        method = getattr(cuda.CudaBackend, name)
        monkeypatch.setattr(
            cuda.CudaBackend,
            name,
            lambda *args, name=name, method=method: (taken.append(name), method(*args)),
        )
    with simulated():
        a, b = operands(q, (1, 1, 20, 70, 11), "words")
        for recorded, expected in (
            (None, "_matmul_residues"),
            ([], "_matmul_digits" if matmul_tiles.has_digits(q, a.itemsize) else "_matmul_integer"),
        ):
            taken.clear()
            token = cuda.device.recording.set(recorded)
            try:
                np.testing.assert_array_equal(multiply("matmul", q, a, b), product_of(a, b, q))
            finally:
                cuda.device.recording.reset(token)
            assert taken[0] == expected and "_matmul_residues" not in taken[1:]


@needs_compiler
@pytest.mark.parametrize("method", ["integer", "digits", "residues"])
def test_products_without_terms_or_results(method, monkeypatch):
    monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: method)
    with simulated():
        for shape in ((2, 2, 3, 0, 4), (1, 3, 0, 5, 4), (3, 1, 5, 4, 0), (0, 0, 3, 4, 5)):
            a, b = operands(97, shape, "words")
            np.testing.assert_array_equal(multiply("matmul", 97, a, b), product_of(a, b, 97))


@needs_compiler
@pytest.mark.parametrize("q", [2**31 - 1, 2**62 - 57])
def test_long_sums_of_digits(q):
    """The sums of 32 bits of so many words are the largest, and go on in another call."""
    longest = (1 << 15) // basis_of((q,)).dtype.itemsize
    with simulated():
        for k in (longest, longest + 1):
            a, b = operands(q, (1, 1, 2, k, 1), "all bits")
            np.testing.assert_array_equal(multiply("_matmul_digits", q, a, b), product_of(a, b, q))


@needs_compiler
@pytest.mark.parametrize("value", [128, 127])
def test_long_sums_of_residues(value):
    """Residues -128 modulo 256, as large as they get, as many as one call sums, and one more."""
    q = 2**31 - 1
    with simulated():
        for k in (matmul_tiles.RESIDUE_DEPTH, matmul_tiles.RESIDUE_DEPTH + 1):
            a, b = np.full((1, 1, k), value, np.uint32), np.full((1, k, 1), value, np.uint32)
            assert multiply("_matmul_residues", q, a, b).item() == k * value**2 % q


@needs_compiler
def test_residues_in_parts(monkeypatch):
    """Batches, and rows of one matrix, whose sums do not fit at once; products in one call and in many."""
    q = 2**60 - 93
    with simulated():
        for lone in (matmul_tiles.LONE_PRODUCT, 1):
            monkeypatch.setattr(cuda.matmul, "LONE_PRODUCT", lone)
            for size in (1 << 16, 1 << 10):
                monkeypatch.setattr(cuda.matmul, "_SUM_BYTES", size)
                monkeypatch.setattr(cuda.matmul, "RESIDUE_DEPTH", 64)
                for shape in ((5, 5, 20, 70, 9), (1, 4, 130, 130, 6), (3, 1, 140, 20, 7)):
                    a, b = operands(q, shape, "words")
                    np.testing.assert_array_equal(multiply("_matmul_residues", q, a, b), product_of(a, b, q))


@needs_compiler
@pytest.mark.parametrize("method", METHODS)
def test_small_cards(method):
    with simulated("t4"):
        for q in (2**31 - 1, 2**62):
            a, b = operands(q, (1, 1, 130, 40, 35), "words")
            np.testing.assert_array_equal(multiply(method, q, a, b), product_of(a, b, q))


@needs_compiler
@pytest.mark.parametrize(("n", "q"), [(16, 2**32), (24, 2**31 - 1), (128, 2**60 - 93)])
def test_many_polynomials_times_one(monkeypatch, n, q):
    """By the matrix of the one, which few are not worth."""
    ring = Ring(n, q)
    a, b = ring.random((5,), seed=1), ring.random(seed=2)
    with simulated():
        compute, used = get_backend("cuda:0"), []
        plan = ring.product_plan("auto", "cuda:0")
        assert compute.prefers_matrix(plan, (1 << 22) // n + 1) and not compute.prefers_matrix(plan, 5)
        assert not compute.prefers_matrix(Ring(256, q).product_plan("auto", "cuda:0"), 1 << 22)
        assert not compute.prefers_matrix(Ring(16, 257).transform, 1 << 22)
        monkeypatch.setattr(cuda.CudaBackend, "prefers_matrix", lambda *_: used.append(1) or True)
        product = a.to("cuda") * b.to("cuda")
        assert used
        np.testing.assert_array_equal(product.cpu().data, Poly.mul(a, b, product="ntt").data)


@needs_compiler
@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5])
def test_residues_that_do_not_fit(monkeypatch, q):
    """Another way is taken where there is no memory for them."""

    def refuse(*args):
        raise OutOfDeviceMemory("none left")

    a, b = operands(q, (1, 1, 20, 30, 40), "words")
    with simulated():
        monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: "residues")
        monkeypatch.setattr(cuda.CudaBackend, "_matmul_residues", refuse)
        np.testing.assert_array_equal(multiply("matmul", q, a, b), product_of(a, b, q))


CHECKED = """
import sys
sys.path.insert(0, "tests")
import numpy as np
import test_gemm
for q, m, k in ((2**31 - 1, 130, 100), (2**31 - 1, 60, 99), (2**62, 130, 67)):  # copies of 16, 4 and 8 bytes
    for method in test_gemm.METHODS:
        with test_gemm.simulated(order="random", seed=1, concurrent_blocks=2):
            a, b = test_gemm.operands(q, (1, 1, m, k, 20), "words")
            got = test_gemm.multiply(method, q, a, b)
            assert (got == test_gemm.product_of(a, b, q)).all()
"""


SANITIZERS = ("thread", "address")


@pytest.fixture(scope="module")
def checked():
    """Under both sanitizers at once."""
    return check.run_together({name: (name, CHECKED) for name in SANITIZERS if not check.missing(name)})


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_races_and_no_bad_addresses(sanitizer, checked):
    if reason := check.missing(sanitizer):
        pytest.skip(f"{sanitizer} sanitizer: {reason}")
    result = checked[sanitizer].result()
    assert result.returncode == 0, result.output
    assert not result.reports, result.reports[0]
