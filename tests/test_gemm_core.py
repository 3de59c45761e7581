"""Matrix products of the native core: every instruction set and kind of modulus against Python integers."""

import random
from functools import cache

import flint
import numpy as np
import pytest
from interrupts import seconds_to_answer

from polygpu import _cpu
from polygpu._backends import get_backend
from polygpu._core.plans.basis import basis_of

# Around the bounds of one digit, of the 52-bit multiplier and of two digits, of words and of digits' widths.
# Sums are folded by the largest multiple of q up to 2^63, which is small just above 2^63/3 and 2^63/5.
MODULI = [
    *(2, 3, 4, 257, 2**26 - 5, 2**26, 2**26 + 15, 2**30 - 35, 2**30 + 3, 2**31 - 1, 2**31, 2**31 + 11),
    *(2**32 - 5, 2**32, 2**32 + 15, 2**50 - 27, 2**50 + 55, 2**52 - 47, 2**52, 2**52 + 21),
    *(2**60 - 93, 2**60 + 33, 2**61 - 1, 2**61 + 15, 2**63 // 5 + 1, 2**63 // 3 + 1, 2**62 - 57, 2**62),
    *(2**62 + 135, 2**63 - 25, 2**63, 2**63 + 29, 2**64 - 59, 2**64),
]
# Around the depth of a block, 256; and around 2048 and 4096, the products between two folds for moduli of
# about 50 bits.
DEPTHS = [*range(1, 20), 31, 32, 33, 63, 65, 127, 129, 255, 256, 257, 511, 513]
LONG_DEPTHS = [2047, 2049, 4095, 4096, 4097, 6200]


def matmul(a, b, q):
    basis = basis_of((q,))
    out = np.full((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[2]), 7, basis.dtype)
    get_backend("cpu").matmul(basis, a, b, out)
    return out


def matmul_points(a, b, moduli):
    basis = basis_of(moduli)
    out = np.full((*a.shape[:2], b.shape[2], *a.shape[3:]), 7, basis.dtype)
    get_backend("cpu").matmul_points(basis, a, b, out)
    return out


def words(shape, q, seed=1):
    """Any words of the dtype of q, many of them at an edge."""
    dtype = basis_of((q,)).dtype
    last = np.iinfo(dtype).max
    source = np.random.default_rng(seed)
    x = source.integers(0, last, shape, dtype=dtype, endpoint=True)
    edges = np.array([0, 1, q - 1, min(q, last), last], dtype)
    return np.where(source.random(shape) < 0.3, source.choice(edges, shape), x)


def residues(shape, q, seed=1):
    values = words(shape, q, seed)
    return values if q == 2**64 or q == 2**32 else values % values.dtype.type(q)


def product(a, b, q):
    return (a.astype(object) @ b.astype(object)) % q


def product_points(a, b, moduli):
    left, right = (np.moveaxis(x.astype(object), (1, 2), (-2, -1)) for x in (a, b))
    q = np.array(moduli, dtype=object)[:, None, None, None]
    return np.moveaxis((left @ right) % q, (-2, -1), (1, 2))


def largest_residues(q):
    """q - 1, and the largest residue whose low digit is all ones."""
    width = ((q - 1).bit_length() + 1) // 2
    return {q - 1, max((q >> width << width) - 1, 1)}


@pytest.mark.parametrize("q", MODULI)
def test_matmul_of_the_largest_entries(q, each_isa):
    dtype = basis_of((q,)).dtype
    for value in (*largest_residues(q), int(np.iinfo(dtype).max)):
        for k in DEPTHS:
            for n in (1, 3):
                found = matmul(np.full((1, 5, k), value, dtype), np.full((1, k, n), value, dtype), q)
                assert (found == k * value * value % q).all(), (value, k)


@pytest.mark.parametrize("q", MODULI)
def test_matmul_points_of_the_largest_residues(q, each_isa):
    dtype = basis_of((q,)).dtype
    for value in largest_residues(q):
        for k in (*DEPTHS, *LONG_DEPTHS):
            for side in (1, 2, 9):  # read where they lie, by one column or two, or gathered for tiles
                a, b = (np.full((1, *shape, 1, 9), value, dtype) for shape in ((side, k), (k, side)))
                assert (matmul_points(a, b, (q,)) == k * value * value % q).all(), (value, k, side)


@pytest.mark.parametrize("q", MODULI)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (1, 1, 1),
        (1, 40, 1),
        (2, 3, 4),
        (3, 9, 8),
        (7, 33, 65),
        (37, 300, 5),
        (1, 17, 140),
        (5, 259, 31),
        (7, 530, 1),
        (3, 20, 129),
    ],
)
def test_matmul_of_any_words(q, m, k, n, each_isa):
    a, b = words((1, m, k), q, seed=m), words((1, k, n), q, seed=n + 1)
    assert (matmul(a, b, q) == product(a, b, q)).all()


@pytest.mark.parametrize("q", [2**30 - 35, 2**32 - 5, 2**50 - 27, 2**60 - 93, 2**62])
def test_matmul_of_several_blocks_matches_flint(q, each_isa, threads):
    m, k, n = 131, 530, 261
    a, b = residues((1, m, k), q), residues((1, k, n), q, seed=2)
    left, right = flint.nmod_mat(m, k, a.ravel().tolist(), q), flint.nmod_mat(k, n, b.ravel().tolist(), q)
    expected = [int(x) for x in (left * right).entries()]
    for count in (1, 2):
        threads(count)
        assert matmul(a, b, q).ravel().tolist() == expected


@pytest.mark.parametrize("q", [2**31 - 1, 2**61 - 1])
def test_matmul_of_a_batch_and_one_matrix(q, each_isa, threads):
    a, b = words((3, 40, 70), q), words((3, 70, 50), q, seed=2)
    for left, right in ((a, b), (a[:1], b), (a, b[1:2])):
        expected = product(left, right, q)
        for count in (1, 2):
            threads(count)
            assert (matmul(left, right, q) == expected).all()


@pytest.mark.parametrize("q", [65537, 2**61 - 1])
def test_matmul_of_empty_matrices(q, each_isa):
    dtype = basis_of((q,)).dtype
    for m, k, n in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)):
        for batch in (0, 2):
            shape = (batch, m, n)
            found = matmul(np.ones((batch, m, k), dtype), np.ones((batch, k, n), dtype), q)
            assert found.shape == shape and not found.any()
            a, b = np.ones((batch, m, k, 1, 5), dtype), np.ones((batch, k, n, 1, 5), dtype)
            found = matmul_points(a, b, (q,))
            assert found.shape == (*shape, 1, 5) and not found.any()


@pytest.mark.parametrize("q", MODULI)
@pytest.mark.parametrize(
    ("m", "k", "p", "points"),
    [
        *((1, 1, 1, 1), (1, 17, 1, 40), (2, 2, 2, 7), (3, 5, 7, 16), (4, 6, 2, 531), (8, 3, 9, 150)),
        *((9, 4, 9, 7), (11, 3, 13, 40), (9, 5, 12, 531)),  # gathered for tiles
    ],
)
def test_matmul_points(q, m, k, p, points, each_isa):
    a, b = residues((1, m, k, 1, points), q, seed=k), residues((1, k, p, 1, points), q, seed=p + 7)
    assert (matmul_points(a, b, (q,)) == product_points(a, b, (q,))).all()


@cache
def in_steps(moduli, m, p, points):
    """By what is done to the axes: two operands and their product."""
    batch, k = 2, 4
    source = random.Random(3)
    dtype = basis_of(moduli).dtype

    def entries(*shape):
        values = [
            [[source.randrange(q) for _ in range(points)] for q in moduli] for _ in range(np.prod(shape))
        ]
        return np.array(values, dtype).reshape(*shape, len(moduli), points)

    a, b = entries(batch, m, k), entries(batch, k, p)
    steps = {
        "dense": (a, b),
        "transposed": (
            entries(k, m, batch).transpose(2, 1, 0, 3, 4),
            entries(p, k, batch).transpose(2, 1, 0, 3, 4),
        ),
        "repeated": (np.broadcast_to(entries(1, 1, k), a.shape), np.broadcast_to(entries(1, k, 1), b.shape)),
        "backwards": (a[:, ::-1, ::-1], b[::-1, :, ::-1]),
        "parts": (entries(2 * batch, m, 2 * k)[::2, :, 1::2], entries(batch, k + 1, 2 * p)[:, 1:, ::2]),
    }
    return {name: (*operands, product_points(*operands, moduli)) for name, operands in steps.items()}


@pytest.mark.parametrize(
    "moduli", [(3, 65537, 2**30 - 35, 2**32), (257, 2**31, 2**52, 2**62 - 57, 2**64 - 59)]
)
@pytest.mark.parametrize(("m", "p", "points"), [(3, 5, 700), (9, 10, 150), (40, 9, 20)])
def test_matmul_points_of_limbs_with_any_strides(moduli, m, p, points, each_isa, threads):
    steps = in_steps(moduli, m, p, points)
    for name, (left, right, expected) in steps.items():
        for count in (1, 2):
            threads(count)
            assert (matmul_points(left, right, moduli) == expected).all(), name
    a, b, expected = steps["dense"]
    whole = np.zeros((p, len(a), 2 * m, len(moduli), points), a.dtype)
    out = whole.transpose(1, 2, 0, 3, 4)[:, 1::2]
    get_backend("cpu").matmul_points(basis_of(moduli), a, b, out)
    assert (out == expected).all() and not whole[:, :, ::2].any()


@pytest.mark.parametrize("q", [97, 2**31 - 1, 2**32 - 5, 2**62])
def test_reference_matmul_matches_the_core(q):
    basis = basis_of((q,))
    for a, b in ((words((2, 3, 5), q), words((1, 5, 4), q)), (words((1, 3, 5), q), words((2, 5, 4), q))):
        out = np.empty((2, 3, 4), basis.dtype)
        get_backend("reference").matmul(basis, a, b, out)
        assert (out == matmul(a, b, q)).all()
    a, b = residues((2, 3, 5, 1, 6), q), residues((2, 5, 4, 1, 6), q)
    out = np.empty((2, 3, 4, 1, 6), basis.dtype)
    get_backend("reference").matmul_points(basis, a, b, out)
    assert (out == matmul_points(a, b, (q,))).all()


def test_invalid_arguments_raise():
    a, b = np.ones((1, 2, 3), np.uint32), np.ones((1, 3, 4), np.uint32)
    basis = _cpu.Basis(np.array([[17]], np.uint64), 32)
    good = np.empty((1, 2, 4), np.uint32)
    basis.matmul(a, b, good)
    for left, right, out in (
        (a, b, np.empty((1, 2, 3), np.uint32)),
        (a, b, np.empty((2, 2, 4), np.uint64)),
        (a, b[:, :2], good),
        (a.astype(np.uint64), b, good),
        (np.repeat(a, 2, axis=0), b, good),
    ):
        with pytest.raises(ValueError, match="matmul"):
            basis.matmul(left, right, out)
    with pytest.raises(ValueError, match=r"2\^64"):
        big = np.ones((1, 1, 1), np.uint64)
        _cpu.Basis(np.array([[1, 1]], np.uint64), 64).matmul(big, big, big.copy())
    x = np.ones((1, 2, 2, 1, 8), np.uint32)
    for left, right, out in (
        (x, x, np.empty((1, 2, 2, 1, 7), np.uint32)),
        (x, x[:, :1], np.empty_like(x)),
        (np.ones((1, 2, 2, 1, 16), np.uint32)[..., ::2], x, np.empty_like(x)),
        (x, x, np.empty(x.shape, np.uint64)),
    ):
        with pytest.raises(ValueError, match="matmul_points"):
            basis.matmul_points(left, right, out)
    again = basis.matmul_points(x, x.swapaxes(1, 2), np.empty_like(x)).run
    again(x, x.ravel(), np.empty_like(x))
    for left, right, out in (
        (x[:, :1], x, np.empty_like(x)),
        (x, x[:, :1], np.empty_like(x)),
        (x, x, np.empty_like(x)[:, :1]),
        (x.astype(np.uint64), x, np.empty_like(x)),
        (x, x, np.empty(x.shape, np.uint64)),
    ):
        with pytest.raises(ValueError, match="again"):
            again(left, right, out)
    with pytest.raises(ValueError, match="again"):  # a call with a negative step cannot be repeated
        basis.matmul_points(x[:, ::-1], x, np.empty_like(x)).run(x, x, np.empty_like(x))


def test_repeated_matmul_points(each_isa):
    """A repeated call has new values of the same layout: broadcast operands, one of them transposed."""
    for q in (97, 2**61 - 1):
        basis, shape = basis_of((q,)), (1, 2, 3, 1, 24)
        a, b, x, y = (residues(shape, q, seed) for seed in range(4))
        out = np.empty((2, 2, 2, 1, 24), basis.dtype)
        repeated = [np.broadcast_to(v, (2, *v.shape[1:])) for v in (a, b.swapaxes(1, 2))]
        again = get_backend("cpu")._native_basis(basis).matmul_points(*repeated, out)
        again.run(x, y, out)
        expected = product_points(x, y.swapaxes(1, 2), (q,))
        assert (out[0] == expected[0]).all() and (out[1] == expected[0]).all()


@pytest.mark.parametrize("call", ["matmul", "matmul_points"])
def test_interrupt_during_a_long_product(call):
    """The product is a single piece of work that takes longer than the response time."""
    shapes = {"matmul": ((1, 128, 1 << 18), (1, 1 << 18, 128)), "matmul_points": ((1, 600, 600, 1, 16),) * 2}
    prepare = f"""
        import numpy as np
        from polygpu import _cpu
        _cpu.set_isa("portable")
        basis = _cpu.Basis(np.array([[2**32 - 5]], np.uint64), 32)
        a, b = (np.ones(shape, np.uint32) for shape in {shapes[call]})
        out = np.empty((*a.shape[:2], b.shape[2], *a.shape[3:]), np.uint32)
    """
    assert seconds_to_answer(prepare, f"basis.{call}(a, b, out)") < 1.2
