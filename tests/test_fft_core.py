"""The complex FFT of the native core: every instruction set, size and precision against the definition."""

import numpy as np
import pytest

from polygpu import _cpu

PRECISIONS = (np.complex64, np.complex128)
SIZES = [2**k for k in range(13)]
LARGEST = 2**12


def values(rows, n, dtype, seed=1):
    parts = np.random.default_rng(seed).standard_normal((2, rows, n))
    return (parts[0] + 1j * parts[1]).astype(dtype)


def fft(x, inverse=False):
    out = np.full_like(x, np.nan)
    _cpu.fft(x, out, inverse)
    return out


def convolve(a, b):
    out = np.full_like(a, np.nan)
    _cpu.convolve64(a, b, out)
    return out


def roots_of_unity(n):
    """exp(-2 pi i k / n), in long double, from angles of at most pi/4."""
    k = 8 * np.arange(n)
    octant, above = k // n, k % n
    angle = np.where(octant % 2, n - above, above).astype(np.longdouble) / n * (np.arctan(np.longdouble(1)))
    x, y = np.cos(angle), np.sin(angle)
    x, y = np.where(octant % 2, y, x), np.where(octant % 2, x, y)
    for turns in range(1, 4):  # quarters of a circle
        turned = octant // 2 >= turns
        x, y = np.where(turned, -y, x), np.where(turned, x, y)
    return x - np.clongdouble(1j) * y


def dft(x, inverse=False):
    """The transform in long double: even and odd entries separately, down to rows of one point."""
    n = x.shape[1]
    if n == 1:
        return x.astype(np.clongdouble)
    w = roots_of_unity(n)[: n // 2]
    even, odd = np.split(dft(np.concatenate((x[:, ::2], x[:, 1::2])), inverse), 2)
    odd *= w.conj() if inverse else w
    return np.concatenate((even + odd, even - odd), axis=1) / (2 if inverse else 1)


def units(found, expected):
    """The largest relative L2 error of a row, in half units in the last place of 1."""
    error = np.linalg.norm((found - expected).astype(np.clongdouble), axis=1)
    return float(np.max(error / np.linalg.norm(expected, axis=1)) / (np.finfo(found.dtype).eps / 2))


def test_reference_dft_matches_the_definition():
    mpmath = pytest.importorskip("mpmath")
    x = values(2, 32, np.complex128)
    with mpmath.workdps(40):
        for inverse in (False, True):
            sign = 1 if inverse else -1
            expected = [
                [
                    sum(
                        mpmath.mpc(v) * mpmath.expjpi(mpmath.mpf(sign * j * k) / 16)
                        for j, v in enumerate(row)
                    )
                    / (32 if inverse else 1)
                    for k in range(32)
                ]
                for row in x
            ]
            found = dft(x, inverse)
            for row, wanted in zip(found, expected, strict=True):
                for value, exact in zip(row, wanted, strict=True):
                    real, imag = (mpmath.mpf(str(part)) for part in (value.real, value.imag))
                    assert abs(mpmath.mpc(real, imag) - exact) < 1e-17


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("n", SIZES)
def test_fft_matches_the_definition(n, dtype, each_isa):
    x = values(1 if n == LARGEST else 11, n, dtype)
    for inverse in (False, True):
        expected = dft(x, inverse)
        out = fft(x, inverse)
        assert units(out, expected) <= 4
        numpys = (np.fft.ifft if inverse else np.fft.fft)(x.astype(np.complex128))
        assert units(out, numpys) <= 6
        place = x.copy()
        _cpu.fft(place, place, inverse)
        assert np.array_equal(place, out)
        assert units(fft(out, not inverse), x) <= 6


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("n", SIZES)
def test_fft_of_unit_vectors(n, dtype, each_isa):
    """Unit vector k gives column k of the matrix. Sums with zeros are exact, so only products round."""
    x = np.eye(n, dtype=dtype)[:: max(1, n // 64)].copy()
    w = roots_of_unity(n)
    for inverse in (False, True):
        out = fft(x, inverse)
        places = np.arange(n)[:: max(1, n // 64), None] * np.arange(n)
        expected = (w.conj() / n if inverse else w)[places % n]
        assert units(out, expected) <= 2
        scale = 1 / n if inverse else 1
        assert (out[0] == scale).all()
        if n > 1:
            half = out[len(out) // 2] if n < 128 else fft(np.eye(1, n, n // 2, dtype=dtype), inverse)[0]
            assert (half == scale * (-1) ** np.arange(n)).all()
        constant = fft(np.full((1, n), 3 - 5j, dtype=dtype), inverse)
        assert constant[0, 0] == (3 - 5j) * (1 if inverse else n) and not constant[0, 1:].any()


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("n", SIZES)
def test_bits_of_a_row_do_not_depend_on_the_batch(n, dtype, each_isa):
    """A row's bits do not depend on its place, its neighbours, their number, or its address."""
    x = values(67, n, dtype)
    alone = np.concatenate([fft(row[None]) for row in x])
    assert np.array_equal(fft(x), alone)
    assert np.array_equal(fft(x[::-1].copy()), alone[::-1])
    for offset in range(1, 5):
        room = np.empty(x.size + offset, dtype=dtype)
        moved = room[offset:].reshape(x.shape)
        moved[...] = x
        assert np.array_equal(fft(moved), alone)
        _cpu.fft(moved, moved, False)
        assert np.array_equal(moved, alone)
    poisoned = x.copy()
    poisoned[5, 0], poisoned[40, n - 1], poisoned[66, n // 2] = np.nan, np.inf, 1j * np.nan
    out = fft(poisoned)
    bad = np.isin(np.arange(67), (5, 40, 66))
    assert np.array_equal(out[~bad], alone[~bad])
    assert not np.isfinite(out[bad]).any()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_fft_of_tiny_and_huge_values(dtype, each_isa):
    """Powers of two scale results exactly, and sums of the smallest denormal number are exact."""
    info = np.finfo(dtype)
    x = values(3, 64, dtype)
    out = fft(x)
    for scale in (2.0 ** (info.maxexp - 16), 2.0 ** (info.minexp + 40)):
        assert np.array_equal(fft(x * dtype(scale)), out * dtype(scale))
    least = float(info.smallest_subnormal)
    ones = np.full((1, 64), least, dtype=dtype)
    assert fft(ones)[0, 0] == 64 * least
    assert fft(ones, True)[0, 0] == least


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("rows", "n"), [(20_000, 16), (9_999, 64), (1001, 512), (130, 4096)])
def test_threads_do_not_change_bits(rows, n, dtype, each_isa, threads):
    x = values(rows, n, dtype)
    threads(1)
    expected = fft(x)
    for count in (2, 5):
        threads(count)
        assert np.array_equal(fft(x), expected)
        if n == 64:
            product = convolve(x, x[:1])
            assert np.array_equal(product[-3:], convolve(x[-3:].copy(), np.repeat(x[:1], 3, axis=0)))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 2, 7, 300])
def test_convolution(rows, dtype, each_isa):
    a, b = values(rows, 64, dtype, 2), values(rows, 64, dtype, 3)
    out = convolve(a, b)
    assert units(out, dft(dft(a) * dft(b), True)) <= 6  # three transforms round
    for row in {0, rows // 2, rows - 1}:  # by the definition of a cyclic convolution
        x, y = a[row].astype(np.clongdouble), b[row].astype(np.clongdouble)
        around = [(x * y[(k - np.arange(64)) % 64]).sum() for k in range(64)]
        assert units(out[row : row + 1], np.array([around])) <= 6
    shared = convolve(a, b[:1])
    assert np.array_equal(shared, convolve(a, np.repeat(b[:1], rows, axis=0)))
    for operand in (a, b):
        x, y = (v.copy() if v is not operand else v for v in (a.copy(), b.copy()))
        _cpu.convolve64(x, y, x if operand is a else y)
        assert np.array_equal(x if operand is a else y, out)
    unit = np.eye(1, 64, dtype=dtype)
    assert units(convolve(a, unit), a) <= 4
    poisoned = a.copy()
    poisoned[rows // 2, 3] = np.nan
    out_poisoned = convolve(poisoned, b)
    others = np.arange(rows) != rows // 2
    assert np.array_equal(out_poisoned[others], out[others])
    assert not np.isfinite(out_poisoned[~others]).any()


def test_fft_and_convolution_of_no_rows(each_isa):
    for dtype in PRECISIONS:
        empty = np.empty((0, 64), dtype=dtype)
        _cpu.fft(empty, empty, False)
        _cpu.convolve64(empty, np.ones((1, 64), dtype=dtype), empty)


def test_wrong_arguments_are_refused():
    x = np.zeros((2, 64), dtype=np.complex64)
    double, other = np.zeros((2, 64), dtype=np.complex128), np.zeros((3, 64), dtype=np.complex64)
    columns = np.zeros((64, 2), dtype=np.complex64).T
    every_other = np.zeros((4, 64), dtype=np.complex64)[::2]
    for n in (0, 3, 48, 2 * LARGEST):
        with pytest.raises(ValueError, match="power of two"):
            fft(np.zeros((1, n), dtype=np.complex64))
    for a, b, message in (
        (x, double, "dtype"),
        (double, x, "dtype"),
        (x.real.copy(), x, "dtype"),
        (x, x.real.copy(), "complex64 or complex128"),
        (x, other, "shapes"),
        (x[:, :32].copy(), x, "shapes"),
        (x[0], x, "rows"),
        (x, x[0], "rows"),
    ):
        with pytest.raises(ValueError, match=message):
            _cpu.fft(a, b, False)
    for a, b in ((columns, x), (x, columns), (every_other, x), (x, every_other)):  # not C-contiguous
        with pytest.raises(TypeError):
            _cpu.fft(a, b, False)
    for a, b, out, message in (
        (x, other, x, "shapes"),
        (other, x, x, "shapes"),
        (x, x, other, "shapes"),
        (x, double, x, "dtype"),
        (x, x[0], x, "rows"),
        (*3 * (np.zeros((2, 32), dtype=np.complex64),), "shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            _cpu.convolve64(a, b, out)
    with pytest.raises(TypeError):
        _cpu.convolve64(x, columns, x)
    assert not x.any() and not columns.any()
    constant = x.copy()
    constant.setflags(write=False)
    with pytest.raises(TypeError):
        _cpu.fft(x, constant, False)
