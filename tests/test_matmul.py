"""Matrix products on cards: integers, points, tensor cores, tile sizes, and the choice of method."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise, product
from math import gcd, prod

import matrices
import numpy as np
import pytest
from cudasim import check
from devices import CARDS, backend, needs_compiler, on, product_plan, simulated, there

from polygpu import Poly, Ring
from polygpu._backends import cuda, get_backend
from polygpu._backends.cuda import matmul_tiles
from polygpu._backends.cuda.matmul_tiles import integer_tile, part_of_sums, points_tile, staged_tile
from polygpu._backends.cuda.words import SUM_31, SUM_62, Card, sum_of_products
from polygpu._core.plans.basis import basis_of
from polygpu.errors import OutOfDeviceMemory

METHODS = ("by_digits", "by_residues")
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
    multiply = getattr(cuda.matmul, method)
    multiply(compute, basis, compute.from_host(a), compute.from_host(b), out)
    return out.get()


# ---- by integers and at points ----


@pytest.fixture
def card_with(device, monkeypatch):
    """Make a card of this many multiprocessors: few get large tiles, many get sums in parts."""

    def card_with(multiprocessors):
        compute = backend()
        monkeypatch.setattr(compute, "card", replace(compute.card, multiprocessors=multiprocessors))
        return compute

    return card_with


check_integers = partial(matrices.check_matmul, multiply=cuda.matmul.by_integer)


@on(*CARDS)
@pytest.mark.parametrize("values", ["random", "last", "words"])
@pytest.mark.parametrize("q", matrices.MODULI)
def test_integer_matmul_with_every_kernel(card_with, q, values):
    """Single entries, empty axes, odd sizes, sizes around tiles, and shared operands."""
    backend = card_with(132)
    for batch, m, k, n in (
        (1, 1, 1, 1),
        (2, 3, 0, 4),
        (0, 3, 2, 4),
        (2, 0, 3, 1),
        (2, 9, 5, 10),
        (1, 65, 17, 66),
    ):
        check_integers(backend, q, (batch, m, k), (batch, k, n), values)
    for m, n in ((10, 11), (9, 3), (3, 9)):
        check_integers(backend, q, (3, m, 5), (1, 5, n), values)
        check_integers(backend, q, (1, m, 5), (3, 5, n), values)


@on(*CARDS)
@pytest.mark.parametrize("q, side", [(2**31 - 1, 8), *product((2**31 - 1, 2**32 - 5, 2**62), (1, 2, 4))])
def test_integer_matmul_around_every_tile(card_with, q, side):
    """Sizes are just below, at and just above the edge and the depth of the tile."""
    backend, edge = card_with(1), 16 * side
    for m, k, n in ((edge - 1, 15, edge), (edge, 16, edge + 1), (edge + 1, 17, edge - 1)):
        tile = integer_tile(sum_of_products(basis_of((q,))), 2, edge, edge, backend.card)
        assert (tile.side, tile.grid) == (side, 2)
        check_integers(backend, q, (2, m, k), (2, k, n), "words")
    check_integers(backend, q, (2, edge, 16), (2, 16, edge))


@on(*CARDS)
@pytest.mark.parametrize("multiprocessors", [0, 132])
@pytest.mark.parametrize("q", [(1 << 31) - 1, (1 << 32) - 5, 1 << 62])
def test_integer_matmul_of_few_rows_or_columns(card_with, q, multiprocessors):
    """Reads are by chunk or word, and one thread up to a block computes each sum."""
    backend = card_with(multiprocessors)
    for narrow, wide, k in product((1, 2, 3, 5, 8), (3, 36), (1, 7, 64, 129)):
        for batch in (1, 2):
            check_integers(backend, q, (batch, wide, k), (batch, k, narrow), "last")
            check_integers(backend, q, (batch, narrow, k), (batch, k, wide))
    check_integers(backend, q, (1, 300, 4), (1, 4, 3))
    check_integers(backend, q, (1, 2, 2100), (2, 2100, 1), "last")


@on(*CARDS)
@pytest.mark.parametrize("q", [(1 << 31) - 1, (1 << 32) - 5, 1 << 62])
@pytest.mark.parametrize("m, n", [(1, 1), (20, 2), (2, 20), (20, 20)])
def test_integer_matmul_of_long_sums_in_parts(card_with, q, m, n):
    backend = card_with(5)
    for k in (1037, 1040):
        assert part_of_sums(sum_of_products(basis_of((q,))), 1, m, n, k, backend.card) < k
        check_integers(backend, q, (1, m, k), (1, k, n), "words")
        check_integers(backend, q, (1, m, k), (1, k, n))


@on(*CARDS)
@pytest.mark.parametrize("layout", matrices.LAYOUTS)
@pytest.mark.parametrize("moduli", matrices.POINT_MODULI)
def test_matmul_points_of_every_layout(device, card_with, moduli, layout):
    for multiprocessors in (0, 132):
        compute = card_with(multiprocessors)
        matrices.check_all_points(compute, moduli, layout)
        if device == "cuda:0":
            for size, values in product(((1, 17, 33, 18, 64), (1, 3, 3, 3, 1024)), ("random", "last")):
                matrices.check_points(compute, moduli, size, values, layout)


@on(*CARDS)
@pytest.mark.parametrize("layout", matrices.LAYOUTS)
@pytest.mark.parametrize(
    "moduli, side",
    [(matrices.MODULI[:4], 8), (matrices.MODULI[:4], 4), (matrices.MODULI[2:7], 4), (matrices.MODULI[5:], 4)],
)
def test_matmul_points_in_stages(card_with, moduli, side, layout):
    """Sums just fit one stage or all stages, or exceed them. Rows, columns and points end within a block."""
    backend, basis = card_with(0), basis_of(moduli)
    for batch, m, k, p, points in (
        (1, 2 * side, 2, 2 * side, 32),
        (2, 2 * side - 1, 3, 2 * side, 20),
        (1, side + 1, 4, 4 * side - 1, 36),
        (3, 2 * side, 5, side + 2 if side == 4 else 14, 24),
        (1, 2 * side, 11, 2 * side, 20),
        (1, 2 * side, 12, 2 * side, 20),
        (1, 2 * side, 27, 2 * side - 1, 20),
    ):
        tile = staged_tile(basis, batch, m, p, k, points, backend.card)
        assert tile is not None and tile.side == side
        for values in ("random", "last"):
            matrices.check_points(backend, moduli, (batch, m, k, p, points), values, layout)


def dot(q, a, b):
    """A sum of products, by the device."""
    basis, k = basis_of((q,)), len(a)
    x, y = (there(np.array(values, basis.dtype)) for values in (a, b))
    out = there(np.zeros((1, 1, 1, 1, 1), basis.dtype))
    backend().matmul_points(basis, x.reshape(1, 1, k, 1, 1), y.reshape(1, k, 1, 1, 1), out)
    return int(out.get().item())


@on(*CARDS)
def test_sum_with_a_carry_through_a_full_word():
    """(q - 1)^2 + 2^63 * 240 = 2^128 + 3600: the carry of the lowest word runs through the next."""
    q = 2**64 - 59
    assert dot(q, [q - 1, 1 << 63], [q - 1, 240]) == (2**128 + 3600) % q


@on(*CARDS)
def test_sum_that_exceeds_a_word_when_its_words_are_joined():
    """2^65 - 1 = 2^64 + (2^64 - 1), whose reduced parts add up to more than a word."""
    q = 3 * 10**9
    factor, last = divmod(2**65 - 1 - 4 * (q - 1) ** 2, q - 1)
    assert dot(q, [q - 1] * 5 + [1], [q - 1] * 4 + [factor, last]) == (2**65 - 1) % q


@on(*CARDS)
def test_matmul_points_of_unaligned_arrays(card_with):
    backend, basis = card_with(0), basis_of((17,))
    x = there(np.zeros(1 + 3 * 64, np.uint32))
    x[1:] = there(np.arange(192, dtype=np.uint32) % 17)
    a = x[1:].reshape(1, 1, 3, 1, 64)
    b, out = a.reshape(1, 3, 1, 1, 64), there(np.zeros((1, 1, 1, 1, 64), np.uint32))
    backend.matmul_points(basis, a, b, out)
    np.testing.assert_array_equal(out.get().ravel(), (a.get().astype(int) ** 2).sum(axis=2).ravel() % 17)


def test_integer_matmul_tiles_by_shape():
    """Tiles are large for large matrices and small for small ones. Few long sums are split."""
    card = Card((9, 0), 227 << 10, 50 << 20, 132)
    assert (
        integer_tile(SUM_31, 1, 4096, 4096, card).side == 8
        and integer_tile(SUM_62, 1, 4096, 4096, card).side == 4
    )
    assert integer_tile(SUM_31, 10**5, 16, 16, card).side == 1
    for shape in ((4096, 4096, 4096), (8192, 8192, 64), (4096, 1, 256), (1, 8192, 200)):
        assert part_of_sums(SUM_31, 1, *shape, card) == shape[2]
    for rows, columns in ((1, 1), (64, 64), (100, 1), (1, 5000), (512, 512)):
        part = part_of_sums(SUM_31, 1, rows, columns, 10**5, card)
        assert 128 <= part <= 10**5 // 4 and part % 16 == 0
        assert part_of_sums(SUM_31, 2, rows, columns, 10**5, card) == 10**5


def test_matmul_points_tiles_by_shape():
    """Tiles are large if all multiprocessors have work, else small. They cover all entries."""
    card = Card((9, 0), 227 << 10, 50 << 20, 132)
    four, wide = (basis_of(tuple(2**bits - 1 - 2 * i for i in range(4))) for bits in (30, 60))
    tile = points_tile(four, 1, 64, 64, 4096, True, card)
    assert (tile.rows, tile.columns, tile.width) == (8, 8, 1)
    assert tile.grid == 64 * 4 * 4096 // 128
    assert points_tile(wide, 1, 64, 64, 4096, True, card).rows == 4
    assert points_tile(four, 1, 8, 8, 256, True, card).rows == 1
    dots = points_tile(four, 64, 1, 1, 4096, True, card)
    assert (dots.width, dots.log_lanes, dots.grid) == (4, 7, 64 * 4096 // 128)
    for batch, rows, columns, points in product((1, 3, 1000), (1, 3, 7, 9, 64), (1, 5, 12, 33), (1, 6, 64)):
        tile = points_tile(four, batch, rows, columns, points, points % 4 == 0, card)
        assert tile.rows <= rows and tile.columns <= columns and tile.rows * tile.columns * tile.width <= 64
        held = tile.rows * tile.columns * tile.width * tile.grid << 7
        assert held >= batch * rows * columns * 4 * points


def test_matmul_points_stages_by_shape():
    """Stages serve matrices that fill the card, up to 62 bits. Small tiles waste less."""
    card = Card((9, 0), 227 << 10, 50 << 20, 132)

    def tile(bits, batch, rows, columns, points):
        basis = basis_of(tuple(2**bits - 1 - 2 * i for i in range(4)))
        found = staged_tile(basis, batch, rows, columns, 64, points, card)
        return found and (found.side, found.width, found.grid)

    assert tile(30, 1, 64, 64, 4096) == (8, 1, 4 * 4 * 512)
    assert tile(30, 16, 16, 16, 4096) == (8, 1, 16 * 512)
    assert tile(30, 16, 12, 9, 4096) == (4, 2, 16 * 2 * 2 * 256)
    assert tile(30, 1, 8, 8, 4096) is tile(30, 1, 8, 8, 256) is None
    assert tile(30, 16, 8, 8, 4096) == (4, 2, 16 * 256)
    assert tile(32, 1, 64, 64, 4096) == (4, 2, 8 * 8 * 256)
    assert tile(60, 1, 64, 64, 1024) == tile(62, 1, 64, 64, 1024) == (4, 1, 8 * 8 * 128)
    assert tile(64, 1, 64, 64, 4096) is None
    assert staged_tile(basis_of((17,)), 1, 64, 64, 1, 1 << 20, card) is None
    assert tile(30, 1000, 4, 64, 4096) is tile(60, 1000, 64, 1, 4096) is tile(30, 1000, 64, 64, 4) is None


@on("cuda")
@pytest.mark.parametrize("q", matrices.MODULI)
def test_tensor_core_matmul_of_large_matrices(card_with, q):
    """Sizes lie on both sides of every tile, with few rows or columns and long sums."""
    shapes = [(127, 130, 129), (300, 70, 200), (5, 5000, 1), (1, 5000, 3), (300, 129, 8), (8, 129, 300)]
    shapes += [(15, 17, 16), (33, 64, 31), (1, 64, 1001), (64, 3001, 64)]
    for multiprocessors, (m, k, n), values in product((1, 132), shapes, ("random", "last", "words")):
        check_integers(card_with(multiprocessors), q, (1, m, k), (1, k, n), values)


# ---- the small moduli ----


def test_coprimes_are_pairwise_coprime_and_descending():
    assert all(gcd(p, r) == 1 for p, r in combinations(matmul_tiles.COPRIMES, 2))
    assert all(p > r for p, r in pairwise(matmul_tiles.COPRIMES)) and matmul_tiles.COPRIMES[0] == 256


@pytest.mark.parametrize("q", MODULI)
@pytest.mark.parametrize("k", [1, 2, 64, 4096, 2**17, 2**31])
def test_coprimes_hold_the_largest_sum(q, k):
    """The product of the coprimes exceeds the largest sum by the rounding margin; one fewer does not."""
    primes, largest = matmul_tiles.coprimes(q, k), k * (q // 2) ** 2
    assert Fraction(largest, prod(primes)) < Fraction(1, 2) - Fraction(1, 2**12)
    assert len(primes) == 1 or 2 * largest > prod(primes[:-1]) * Fraction(2047, 2048)


def test_rounding_error_of_the_crt_shares():
    """The total error of y / p in units of 2^-26 is below the rounding margin."""
    shares = [round((1 << 26) / p) for p in matmul_tiles.COPRIMES]
    wrong = sum(
        abs(Fraction(s, 1 << 26) - Fraction(1, p)) * (p - 1)
        for s, p in zip(shares, matmul_tiles.COPRIMES, strict=True)
    )
    assert wrong < Fraction(1, 2**12)
    assert sum(s * (p - 1) for s, p in zip(shares, matmul_tiles.COPRIMES, strict=True)) + 2**25 < 2**32


@pytest.mark.parametrize("word_bytes", [4, 8])
def test_crt_digit_sums_fit_32_bits(word_bytes):
    """The largest and the smallest sum of digits times weights fit 32 bits."""
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


def test_digit_method_supports_moduli():
    """Shoup's product 2^8 x is below 2 q, or is 2^8 x for q = 2^32. It must fit a word."""
    assert all(matmul_tiles.has_digits(q, 4) for q in (2, 2**31 - 1, 2**31, 2**32))
    assert not any(matmul_tiles.has_digits(q, 4) for q in (2**31 + 1, 2**32 - 5, 2**32 - 1))
    assert all(matmul_tiles.has_digits(q, 8) for q in (2**32 + 1, 2**62))
    assert not any(matmul_tiles.has_digits(q, 8) for q in (2**62 + 1, 2**64 - 59))
    q, x = 2**32 - 5, 2**32 - 1
    assert 256 * x - ((256 << 32) // q * x >> 32) * q >= 2**32


def way(q, *shape, card=H100):
    """The way of a product (batch, m, k, n)."""
    return matmul_tiles.matmul_method(q, basis_of((q,)).dtype.itemsize, *shape, card)


@pytest.mark.parametrize("card", [H100, T4], ids=["H100", "T4"])
@pytest.mark.parametrize("q", MODULI)
def test_method_of_large_and_thin_products(card, q):
    for size in (4096, 8192, 1 << 15):
        assert way(q, 1, size, size, size, card=card) == "residues"
    for shape in ((1, 1, 1, 1), (1, 30, 30, 30), (1, 1, 4096, 4096), (1, 4096, 4096, 1)):
        assert way(q, *shape, card=card) == "integer"


@pytest.mark.parametrize("q", [3, 2**30 - 35, 2**31 - 1, 2**31, 2**32, 2**60 - 93, 2**62])
def test_method_of_medium_products(q):
    for shape in ((1, 256, 256, 256), (1, 512, 512, 512), (256, 128, 128, 128), (1024, 64, 64, 64)):
        assert way(q, *shape) == "digits"


def test_method_for_moduli_without_digits():
    sizes = [1 << i for i in range(0, 16, 3)]
    ways = {
        way(q, batch, m, k, n)
        for q in (2**31 + 1, 2**31 + 11, 2**32 - 5)
        for batch, m, k, n in product((1, 100), sizes, sizes, sizes)
    }
    assert ways == {"integer", "residues"}


# ---- by tensor cores ----

EDGES = (
    2**30 + 3,
    2**31,
    2**31 + 11,
    2**32 - 5,
    2**32,
    2**61 + 15,
)  # around the limits of words, of q and of its multiples


@on(*CARDS)
@pytest.mark.parametrize("q", sorted(MODULI + EDGES))
def test_matmul_by_every_method(q):
    compute = backend()
    for method in METHODS[not matmul_tiles.has_digits(q, basis_of((q,)).dtype.itemsize) :]:
        for left, right, m, k, n in SHAPES:
            matrices.check_matmul(
                compute, q, (left, m, k), (right, k, n), "random", getattr(cuda.matmul, method)
            )
        for values in ("last", "words", "half", "past half"):
            matrices.check_matmul(compute, q, (1, 9, 67), (2, 67, 13), values, getattr(cuda.matmul, method))


@on(*CARDS)
@pytest.mark.parametrize("q", [2**31 - 1, 2**32, 2**61 - 1, 2**62 - 57])
def test_matmul_by_digits_of_long_sums(q):
    """One call sums as many words as 32-bit sums allow. One word more takes a second call."""
    longest = (1 << 15) // basis_of((q,)).dtype.itemsize
    for k, values in product((longest, longest + 1), ("words", "half")):
        matrices.check_matmul(backend(), q, (1, 2, k), (1, k, 1), values, cuda.matmul.by_digits)


@on(*CARDS)
@pytest.mark.parametrize("value", [128, 127])
@pytest.mark.parametrize("q", [2**31 - 1, 2**61 - 1])
def test_matmul_by_residues_of_long_sums(q, value):
    """The largest residues (-128 and 127) fill the sums of one call, then exceed them."""
    compute, basis = backend(), basis_of((q,))
    for k in (matmul_tiles.RESIDUE_DEPTH, matmul_tiles.RESIDUE_DEPTH + 1):
        x, out = compute.xp.full((1, 1, k), value, basis.dtype), compute.xp.empty((1, 1, 1), basis.dtype)
        cuda.matmul.by_residues(compute, basis, x, x.reshape(1, k, 1), out)
        assert out.item() == k * value**2 % q


@on(*CARDS)
@pytest.mark.parametrize("lone", [matmul_tiles.LONE_PRODUCT, 1])
@pytest.mark.parametrize("size", [1 << 16, 1 << 10])
def test_matmul_by_residues_in_parts(lone, size, monkeypatch):
    """Batches and rows do not fit at once. Products take one call or many."""
    monkeypatch.setattr(cuda.matmul, "LONE_PRODUCT", lone)
    monkeypatch.setattr(cuda.matmul, "_SUM_BYTES", size)
    monkeypatch.setattr(cuda.matmul, "RESIDUE_DEPTH", 64)
    for left, right, m, k, n in ((5, 5, 20, 70, 9), (1, 4, 130, 130, 6), (3, 1, 140, 20, 7)):
        shapes = (left, m, k), (right, k, n)
        matrices.check_matmul(backend(), 2**60 - 93, *shapes, multiply=cuda.matmul.by_residues)


# ---- what is chosen, recorded and refused ----


@needs_compiler
@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5, 2**32, 2**62])
def test_captured_matmul_does_not_use_cublas(q, monkeypatch):
    """CuPy cannot capture cuBLAS, so products use digits if possible, otherwise integers."""
    monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: "residues")
    taken = []
    for name in (*METHODS, "by_integer"):
        method = getattr(cuda.matmul, name)
        monkeypatch.setattr(
            cuda.matmul,
            name,
            lambda *args, name=name, method=method: (taken.append(name), method(*args)),
        )
    with simulated():
        a, b = operands(q, (1, 1, 20, 70, 11), "words")
        for recorded, expected in (
            (None, "by_residues"),
            (
                cuda.device.Kept("cuda:0"),
                "by_digits" if matmul_tiles.has_digits(q, a.itemsize) else "by_integer",
            ),
        ):
            taken.clear()
            token = cuda.device.recording.set(recorded)
            try:
                np.testing.assert_array_equal(multiply("matmul", q, a, b), product_of(a, b, q))
            finally:
                cuda.device.recording.reset(token)
            assert taken[0] == expected and "by_residues" not in taken[1:]


@needs_compiler
@pytest.mark.parametrize("method", ["integer", "digits", "residues"])
def test_matmul_of_empty_matrices(method, monkeypatch):
    monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: method)
    with simulated():
        for shape in ((2, 2, 3, 0, 4), (1, 3, 0, 5, 4), (3, 1, 5, 4, 0), (0, 0, 3, 4, 5)):
            a, b = operands(97, shape, "words")
            np.testing.assert_array_equal(multiply("matmul", 97, a, b), product_of(a, b, 97))


@needs_compiler
@pytest.mark.parametrize("method", METHODS)
def test_matmul_on_a_small_card(method):
    with simulated("t4"):
        for q in (2**31 - 1, 2**62):
            a, b = operands(q, (1, 1, 130, 40, 35), "words")
            np.testing.assert_array_equal(multiply(method, q, a, b), product_of(a, b, q))


@needs_compiler
@pytest.mark.parametrize(("n", "q"), [(16, 2**32), (24, 2**31 - 1), (128, 2**60 - 93)])
def test_product_of_many_polynomials_and_one(monkeypatch, n, q):
    """The one polynomial becomes a matrix, which pays only for many others."""
    ring = Ring(n, q)
    a, b = ring.random((5,), seed=1), ring.random(seed=2)
    with simulated():
        compute, used = get_backend("cuda:0"), []
        plan = product_plan(ring, "auto", "cuda:0")
        assert compute.prefers_matrix(plan, (1 << 22) // n + 1) and not compute.prefers_matrix(plan, 5)
        assert not compute.prefers_matrix(product_plan(Ring(256, q), "auto", "cuda:0"), 1 << 22)
        assert not compute.prefers_matrix(Ring(16, 257)._plan.transform, 1 << 22)
        monkeypatch.setattr(cuda.CudaBackend, "prefers_matrix", lambda *_: used.append(1) or True)
        product = a.to("cuda") * b.to("cuda")
        assert used
        np.testing.assert_array_equal(product.cpu().data, Poly.mul(a, b, product="ntt").data)


@needs_compiler
@pytest.mark.parametrize("q", [2**31 - 1, 2**32 - 5])
def test_matmul_without_memory_for_residues(monkeypatch, q):
    """Another method is used if residues do not fit in memory."""

    def refuse(*args):
        raise OutOfDeviceMemory("none left")

    a, b = operands(q, (1, 1, 20, 30, 40), "words")
    with simulated():
        monkeypatch.setattr(cuda.matmul, "matmul_method", lambda *args: "residues")
        monkeypatch.setattr(cuda.matmul, "by_residues", refuse)
        np.testing.assert_array_equal(multiply("matmul", q, a, b), product_of(a, b, q))


CHECKED = """
import sys
sys.path.insert(0, "tests")
import numpy as np
import devices
import test_matmul
for q, m, k in ((2**31 - 1, 130, 100), (2**31 - 1, 60, 99), (2**62, 130, 67)):  # copies of 16, 4 and 8 bytes
    for method in test_matmul.METHODS:
        with devices.simulated(order="random", seed=1, concurrent_blocks=2):
            a, b = test_matmul.operands(q, (1, 1, m, k, 20), "words")
            got = test_matmul.multiply(method, q, a, b)
            assert (got == test_matmul.product_of(a, b, q)).all()
"""


SANITIZERS = ("thread", "address")


@pytest.fixture(scope="module")
def checked():
    """CHECKED under both sanitizers, which run at the same time."""
    return check.run_together({name: (name, CHECKED) for name in SANITIZERS if not check.missing(name)})


@pytest.mark.sanitized
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_races_and_no_bad_addresses(sanitizer, checked):
    if reason := check.missing(sanitizer):
        pytest.skip(f"{sanitizer} sanitizer: {reason}")
    result = checked[sanitizer].result()
    assert result.returncode == 0, result.output
    assert not result.reports, result.reports[0]
