"""Exact products by complex FFTs of digits in the native core, against python-flint."""

from functools import lru_cache

import flint
import numpy as np
import pytest

from polygpu import _cpu
from polygpu._core.plans.basis import basis_of

MODULI = [2, 3, 3329, 2**31 - 1, 2**32 - 5, 2**32, 2**61 - 1, 2**63, 2**64 - 59, 2**64]


@lru_cache(maxsize=16)
def twiddles(points):
    """exp(2 pi i t_k) of each node k: t_k = c_k / 2, c_1 = 1/4; its children have c = t_k and t_k + 1/2."""
    constant = np.zeros(points, np.longdouble)
    turn = np.zeros(points, np.longdouble)
    if points > 1:
        constant[1] = 0.25
    for k in range(1, points):
        turn[k] = constant[k] / 2
        if 2 * k < points:
            constant[2 * k], constant[2 * k + 1] = turn[k], turn[k] + 0.5
    octant = np.rint(turn * 8)
    angle = (turn - octant / 8) * 8 * np.arctan(np.longdouble(1))
    cos, sin, half = np.cos(angle), np.sin(angle), np.sqrt(np.longdouble(0.5))
    directions = np.array(
        [(1, 0), (half, half), (0, 1), (-half, half), (-1, 0), (-half, -half), (0, -1), (half, -half)]
    )
    c, s = directions[octant.astype(int) % 8].T
    return (c * cos - s * sin).astype(float) + 1j * (c * sin + s * cos).astype(float)


def digits_of(n, q):
    """How many digits, of how many bits, so that products of n coefficients are exact."""
    bits = (q - 1).bit_length()
    if bits <= 12:
        return 1, 12
    if bits <= 32:
        return (2, 16) if n <= 8192 else (3, 11)
    return (4, 16) if n <= 4096 else (5, 13)


def native(n, kind, moduli, digits=None, width=None, sums=None):
    """The core's product for these moduli and the dtype of their arrays."""
    basis = basis_of(moduli)
    words = np.array([[q % 2**64] for q in moduli], np.uint64)
    if digits is None:
        digits, width = digits_of(n, max(moduli))
    in_place = kind == "negacyclic" and n > 1 and n & (n - 1) == 0
    length = n if in_place else max(2, 1 << (2 * n - 2).bit_length())
    core = _cpu.FftProduct(
        _cpu.Basis(words, 8 * basis.dtype.itemsize),
        n,
        length,
        getattr(_cpu.Quotient, kind),
        digits,
        width,
        sums or 2 * digits - 1,
        twiddles(length // 2),
    )
    return core, basis.dtype


def product(a, b, q, kind):
    """The product of one row, folded and reduced from the product over the integers."""
    n = len(a)
    c = [int(x) for x in (flint.fmpz_poly(a.tolist()) * flint.fmpz_poly(b.tolist())).coeffs()]
    c += [0] * (2 * n - len(c))
    sign = -1 if kind == "negacyclic" else 1
    return [(x + sign * y) % q for x, y in zip(c[:n], c[n:], strict=True)]


def random_rows(rng, shape, q):
    return rng.integers(0, q - 1, shape, dtype=np.uint64, endpoint=True)


def operands(n, q, rng):
    """Pairs of rows: random, one coefficient, ±q/2 with equal and with alternating signs, extreme digits."""
    half, other = q // 2, (q // 2 + 1) % q
    alternating = [half if j % 2 else other for j in range(n)]
    impulse = [0] * n
    impulse[-1] = other
    digits = [0x8000800080008000 % q] * n
    rows = {
        "random": random_rows(rng, (n,), q),
        "q - 1": [q - 1] * n,
        "half": [half] * n,
        "minus half": [other] * n,
        "alternating": alternating,
        "impulse": impulse,
        "digits": digits,
    }
    rows = {name: np.array(row, np.uint64) for name, row in rows.items()}
    pairs = [("random", "half"), ("q - 1", "q - 1"), ("half", "half"), ("minus half", "minus half")]
    pairs += [
        ("half", "minus half"),
        ("alternating", "alternating"),
        ("alternating", "half"),
        ("digits", "digits"),
    ]
    pairs += [("impulse", "random"), ("impulse", "impulse"), ("random", "random")]
    return [(rows[x], rows[y]) for x, y in pairs]


@pytest.mark.parametrize("q", MODULI)
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17, 32, 63, 64, 100, 1000, 1024])
def test_products_are_exact(n, kind, q, each_isa):
    core, dtype = native(n, kind, (q,))
    for a, b in operands(n, q, np.random.default_rng(n)):
        x, y = (v.astype(dtype).reshape(1, n) for v in (a, b))
        out = np.empty_like(x)
        core.multiply(x, y, out)
        assert out[0].tolist() == product(a, b, q, kind)


@pytest.mark.parametrize("q", [3329, 2**31 - 1, 2**32, 2**61 - 1, 2**64 - 59, 2**64])
@pytest.mark.parametrize(("n", "kind"), [(4096, "negacyclic"), (2**15, "negacyclic"), (20000, "cyclic")])
def test_long_products_are_exact(n, kind, q, each_isa):
    core, dtype = native(n, kind, (q,))
    pairs = operands(n, q, np.random.default_rng(n))
    for a, b in (pairs[2], pairs[5], pairs[-1]):  # q/2, alternating, random
        x, y = (v.astype(dtype).reshape(1, n) for v in (a, b))
        out = np.empty_like(x)
        core.multiply(x, y, out)
        assert out[0].tolist() == product(a, b, q, kind)


@pytest.mark.parametrize(
    "q", [16, 251, 2**16, 2**24 - 3, 2**32, 2**40 + 15, 2**56, 2**62 - 57, 2**62 + 135, 2**64]
)
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
def test_products_with_any_number_of_digits(kind, q, each_isa):
    n, bits = 64, (q - 1).bit_length()
    rng = np.random.default_rng(bits)
    for digits in range(-(-bits // 20), 9):  # 64 coefficients are exact with digits of at most 20 bits
        width = max(2, -(-bits // digits))
        core, dtype = native(n, kind, (q,), digits, width)
        for a, b in operands(n, q, rng):
            x, y = (v.astype(dtype).reshape(1, n) for v in (a, b))
            out = np.empty_like(x)
            core.multiply(x, y, out)
            assert out[0].tolist() == product(a, b, q, kind)


@pytest.mark.parametrize("q", [2**32, 2**48, 2**64])
def test_digit_sums_of_zero_weight_are_skipped(q, each_isa):
    n = 128
    digits = (q - 1).bit_length() // 16
    a, b = random_rows(np.random.default_rng(0), (2, 1, n), q)
    core, dtype = native(n, "negacyclic", (q,), digits, 16, sums=digits)
    out = np.empty((1, n), dtype)
    core.multiply(a.astype(dtype), b.astype(dtype), out)
    assert out[0].tolist() == product(a[0], b[0], q, "negacyclic")


@pytest.mark.parametrize("moduli", [(3329, 2**31 - 1, 2**32), (257, 2**32, 2**61 - 1, 2**64 - 59, 2**64)])
@pytest.mark.parametrize(("n", "kind"), [(64, "negacyclic"), (64, "cyclic"), (33, "negacyclic")])
def test_products_of_limbs_and_batches_in_place(n, kind, moduli, each_isa):
    core, dtype = native(n, kind, moduli)
    rng = np.random.default_rng(n)

    def residues(*batch):
        return np.stack([random_rows(rng, (*batch, n), q) for q in moduli], axis=-2).astype(dtype)

    a, b = residues(3, 1), residues(4)
    expected = np.array(
        [
            [[product(a[i, 0, k], b[j, k], q, kind) for k, q in enumerate(moduli)] for j in range(4)]
            for i in range(3)
        ],
        dtype,
    )
    out = np.empty((3, 4, len(moduli), n), dtype)
    core.multiply(a, b, out)
    assert np.array_equal(out, expected)

    x = np.ascontiguousarray(np.broadcast_to(a, out.shape))
    core.multiply(x, b, x)
    assert np.array_equal(x, expected)
    y = np.ascontiguousarray(np.broadcast_to(b, out.shape))
    core.multiply(a, y, y)
    assert np.array_equal(y, expected)
    square = b.copy()
    core.multiply(square, square, square)
    core.multiply(b, b.copy(), y[0])
    assert np.array_equal(square, y[0])


def test_threads_do_not_change_values(each_isa, threads):
    core, dtype = native(1024, "negacyclic", (2**32, 2**32 - 5))
    a, b = np.random.default_rng(1).integers(0, 2**32 - 5, (2, 40, 2, 1024)).astype(dtype)
    results = []
    for count in (1, 2, 5):
        threads(count)
        out = np.empty_like(a)
        core.multiply(a, b, out)
        results.append(out.tobytes())
    assert results[0] == results[1] == results[2]


def test_invalid_arguments_raise():
    basis = _cpu.Basis(np.array([[2**32]], np.uint64), 32)
    wide = _cpu.Basis(np.array([[1, 1]], np.uint64), 64)
    good = {"basis": basis, "degree": 8, "length": 8, "quotient": _cpu.Quotient.negacyclic}
    good |= {"digits": 2, "width": 16, "sums": 3, "table": twiddles(4)}
    core = _cpu.FftProduct(**good)
    for wrong in (
        {"basis": wide},
        {"degree": 0},
        {"quotient": _cpu.Quotient.cyclic},
        {"degree": 5},
        {"length": 12, "table": twiddles(8)[:6]},
        {"digits": 0},
        {"digits": 9, "width": 4},
        {"width": 1},
        {"width": 31},
        {"width": 15},
        {"digits": 2, "width": 25},  # sums of 8 * 2 products of two digits of 24 bits
        {"terms": 2, "bits": 30, "width": 25},
        {"terms": 2},
        {"sums": 0},
        {"sums": 4},
        {"table": twiddles(8)},
    ):
        with pytest.raises(ValueError):
            _cpu.FftProduct(**{**good, **wrong})
    x = np.zeros((1, 8), np.uint32)
    for a, out in (
        (x[:, :4].copy(), x),
        (x, x[:, :4].copy()),
        (x.astype(np.uint64), x),
        (np.zeros((2, 8), np.uint32), x),
    ):
        with pytest.raises(ValueError):
            core.multiply(a, x, out)
