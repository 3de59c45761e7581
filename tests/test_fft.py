"""Fourier transforms and convolutions of complex rows: values, layouts, laws and errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from devices import CARDS, backend, host, on, shares_memory, sized, there
from hypothesis import given
from hypothesis import strategies as st
from oracle import BYTE_ORDER, everywhere

import polygpu as pg
from polygpu import fft

# Relative errors in the 2-norm, as the docstrings state them.
SHORT = {np.complex64: 4 * 2.0**-24, np.complex128: 4 * 2.0**-53}
LONG = {np.complex64: 2.0**-21, np.complex128: 2.0**-50}
# A convolution of 64 points is at most 8 |a| |b| in size.
GROWTH = 8

on_every_type = pytest.mark.parametrize("dtype", SHORT, ids=lambda dtype: dtype.__name__)
in_both_directions = pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
fast_devices = on("cpu", *CARDS)


def values(shape: tuple[int, ...], dtype: Any, seed: int = 1) -> Any:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(dtype)


def exact(x: Any, inverse: bool = False) -> Any:
    """NumPy's transform in long doubles."""
    return (np.fft.ifft if inverse else np.fft.fft)(x.astype(np.clongdouble))


def exact_convolution(a: Any, b: Any) -> Any:
    """By the definition, in long doubles."""
    a, b = a.astype(np.clongdouble), b.astype(np.clongdouble)
    k = np.arange(64)
    return np.einsum("...i,...ki->...k", a, b[..., (k[:, None] - k) % 64])


def norm(x: Any) -> Any:
    """The Euclidean length of each row."""
    return np.linalg.norm(host(x).astype(np.clongdouble), axis=-1)


def error(found: Any, expected: Any) -> float:
    """The largest relative error of a row."""
    return float(np.max(norm(host(found) - expected) / norm(expected)))


def same_bits(found: Any, expected: Any) -> None:
    assert type(found) is type(expected) and found.flags.c_contiguous
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


# ---- values ----


def definition(row: Any, inverse: bool) -> list[Any]:
    """The sum of x_j exp(-+ 2 pi i j k / n), in the working precision of mpmath."""
    n, sign = len(row), 1 if inverse else -1
    roots = [mpmath.expjpi(mpmath.mpf(sign * 2 * k) / n) for k in range(n)]
    x = [mpmath.mpc(v) for v in row.tolist()]
    scale = mpmath.mpf(1) / (n if inverse else 1)
    return [scale * mpmath.fsum(v * roots[j * k % n] for j, v in enumerate(x)) for k in range(n)]


def rows_of_64(dtype: Any) -> Any:
    """Two random rows, one of equal values, one of sizes 2^-20 to 2^20, a tone between two frequencies."""
    k = np.arange(64)
    scale = 2.0 ** np.random.default_rng(2).integers(-20, 21, 64)
    tone = np.exp(2j * np.pi * 5.5 * k / 64) * (0.3 - 0.7j)
    rows = [*values((2, 64), dtype), np.full(64, 0.1 + 0.7j), values((64,), dtype) * scale, tone]
    return np.array(rows).astype(dtype)


def errors_by_definition(x: Any, found: Any, inverse: bool = False) -> list[float]:
    """Relative errors of transformed rows, by the definition in 40 digits."""
    wrong = []
    with mpmath.workdps(40):
        for row, result in zip(x, found, strict=True):
            expected = definition(row, inverse)
            off = mpmath.norm([mpmath.mpc(v) - w for v, w in zip(result.tolist(), expected, strict=True)])
            wrong.append(float(off / mpmath.norm(expected)))
    return wrong


@on_every_type
@in_both_directions
@fast_devices
def test_fft64_matches_the_definition(dtype: Any, inverse: bool) -> None:
    x = rows_of_64(dtype)
    found = host(fft.fft64(there(x), inverse=inverse))
    assert max(errors_by_definition(x, found, inverse)) <= SHORT[dtype]


@on_every_type
def test_fft_of_256_points_matches_the_definition(dtype: Any) -> None:
    x = values((1, 256), dtype)
    assert max(errors_by_definition(x, fft.fft(x))) < LONG[dtype]


@sized(
    "log_n, dtype, inverse",
    cpu=itertools.product(range(13), SHORT, [False, True]),
    # Each length has one of the directions, in turn; 64 points have both.
    simulated=[(i, d, bool(i % 2)) for i in range(13) for d in SHORT] + [(6, d, True) for d in SHORT],
    cuda=itertools.product(range(13), SHORT, [False, True]),
)
def test_fft_of_every_length(device: str, log_n: int, dtype: Any, inverse: bool) -> None:
    """A row has the same bits in every batch and in place, whether or not the batch fills blocks."""
    n, rows = 1 << log_n, 1027 if device == "cuda:0" else 33
    x = values((rows, n), dtype)
    y = there(x)
    found = fft.fft(y, inverse=inverse)
    assert type(found) is type(y) and found.dtype == dtype
    assert error(found, exact(x, inverse)) < (SHORT if n == 64 and device != "cpu" else LONG)[dtype]
    for count in (1, 5, 33, rows):
        part = there(x[:count].copy())
        same_bits(fft.fft(part, inverse=inverse), found[:count])
        assert fft.fft(part, inverse=inverse, out=part) is part
        same_bits(part, found[:count])
    same_bits(y, there(x))


@on_every_type
@in_both_directions
@everywhere
@pytest.mark.parametrize("n", [1, 2, 4, 8, 32, 64])
def test_fft_of_unit_vectors_in_natural_order(n: int, dtype: Any, inverse: bool) -> None:
    """The transform of unit vector j is column j of the transform's matrix."""
    turns = np.outer(np.arange(n), np.arange(n)) % n / n
    expected = np.exp((2j if inverse else -2j) * np.pi * turns) / (n if inverse else 1)
    found = fft.fft(there(np.eye(n, dtype=dtype)), inverse=inverse)
    assert found.dtype == dtype
    np.testing.assert_allclose(host(found), expected, rtol=0, atol=16 * np.finfo(dtype).eps)


@on_every_type
@in_both_directions
def test_fft_on_the_reference_device(dtype: Any, inverse: bool) -> None:
    x, b = values((3, 64), dtype), values((64,), dtype, 2)
    with pg.device("reference"):
        assert error(fft.fft64(x, inverse=inverse), exact(x, inverse)) < LONG[dtype]
        convolved = fft.convolve64(x, b)
    assert np.all(norm(convolved - exact_convolution(x, b)) < LONG[dtype] * norm(x) * norm(b))


@on_every_type
@in_both_directions
def test_fft64_equals_fft(dtype: Any, inverse: bool) -> None:
    x = values((7, 64), dtype)
    same_bits(fft.fft64(x, inverse=inverse), fft.fft(x, inverse=inverse))


@on_every_type
@fast_devices
@pytest.mark.parametrize("n", [1, 8, 64, 512])
def test_infinities_and_nan_stay_in_their_row(n: int, dtype: Any) -> None:
    """The other rows have the same bits as in a batch of one."""
    x = values((37, n), dtype)
    bad = {5: np.inf, 6: -np.inf * 1j, 20: np.nan, 36: complex(0, np.nan)}
    for row, value in bad.items():
        x[row, n // 3] = value
    good = [row for row in range(37) if row not in bad]
    for inverse in (False, True):
        found = host(fft.fft(there(x), inverse=inverse))
        assert not np.isfinite(found[list(bad)]).any()
        for row in good:
            same_bits(found[row], host(fft.fft(there(x[row]), inverse=inverse)))
    if n == 64:
        shared, own = values((64,), dtype, 2), values((37, 64), dtype, 3)
        for b in (shared, own):
            found = host(fft.convolve64(there(x), there(b)))
            assert not np.isfinite(found[list(bad)]).any()
            alone = fft.convolve64(there(x[good]), there(b if b.ndim == 1 else b[good]))
            same_bits(found[good], host(alone))
        shared[1] = np.nan
        assert not np.isfinite(host(fft.convolve64(there(own), there(shared)))).any()


# ---- convolutions ----


@on_every_type
@everywhere
def test_convolutions_of_integers(dtype: Any) -> None:
    """The operands are small integers, so the results round to the exact ones."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 10, (2, 5, 64, 2))
    k = np.arange(64)
    expected = np.zeros((5, 64), complex)
    for row in range(5):
        x, y = (v[row, :, 0] + 1j * v[row, :, 1] for v in (a, b))
        expected[row] = [(x * y[(i - k) % 64]).sum() for i in k]
    x, y = ((v[..., 0] + 1j * v[..., 1]).astype(dtype) for v in (a, b))
    found = host(fft.convolve64(there(x), there(y)))
    assert np.array_equal(np.round(found), expected)
    assert np.all(norm(found - expected) < LONG[dtype] * norm(x) * norm(y))


@on_every_type
@sized("rows", cpu=[50], simulated=[1, 5, 33], cuda=[1, 5, 33, 16384, 100003])
def test_convolutions_of_random_rows(rows: int, dtype: Any) -> None:
    a, b = values((rows, 64), dtype, 1), values((rows, 64), dtype, 2)
    found = host(fft.convolve64(there(a), there(b)))
    a, b, found = a[-5000:], b[-5000:], found[-5000:]
    expected = exact(exact(a) * exact(b), inverse=True)
    assert np.all(norm(found - expected) < LONG[dtype] * norm(a) * norm(b))


@on_every_type
@fast_devices
def test_convolutions_of_equal_tones(dtype: Any) -> None:
    """For two tones of one frequency, a single value of the spectrum holds the whole result."""
    rng = np.random.default_rng(3)
    frequencies, factors = rng.integers(64, size=(100, 1)), values((2, 100, 1), np.complex128, 4)
    tones = np.exp(2j * np.pi * frequencies * np.arange(64) / 64)
    a, b = ((factor * tones).astype(dtype) for factor in factors)
    expected = exact_convolution(a, b)
    assert np.all(norm(expected) > 0.999 * GROWTH * norm(a) * norm(b))
    assert error(fft.convolve64(there(a), there(b)), expected) < LONG[dtype]


SHAPES = [
    ((64,), (64,)),
    ((64,), (1, 64)),
    ((5, 64), (64,)),
    ((5, 64), (1, 64)),
    ((64,), (5, 64)),
    ((1, 64), (5, 64)),
    ((1, 1, 64), (5, 64)),
    ((3, 1, 64), (1, 4, 64)),
    ((3, 1, 64), (4, 64)),
    ((3, 1, 64), (1, 64)),
    ((2, 1, 3, 64), (4, 1, 64)),
    ((0, 64), (64,)),
    ((1, 64), (0, 64)),
    ((2, 0, 64), (1, 64)),
    ((0, 64), (3, 1, 64)),
]


@on_every_type
@fast_devices
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_convolution_broadcasts_batches(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a, b = there(values(left, dtype, 1)), there(values(right, dtype, 2))
    kept = a.copy(), b.copy()
    found = fft.convolve64(a, b)
    shape = np.broadcast_shapes(left, right)
    assert found.shape == shape and found.dtype == dtype
    x, y = (np.broadcast_to(host(v), shape).reshape(-1, 64) for v in (a, b))
    for row, u, v in zip(host(found).reshape(-1, 64), x, y, strict=True):
        assert error(row, exact_convolution(u, v)) < 2 * LONG[dtype]
    out = there(np.full(shape, np.nan, dtype))
    assert fft.convolve64(a, b, out=out) is out
    same_bits(out, found)
    same_bits(a, kept[0])
    same_bits(b, kept[1])


@on_every_type
@fast_devices
def test_convolution_with_a_shared_filter(dtype: Any) -> None:
    a, b = there(values((9, 64), dtype, 1)), values((64,), dtype, 2)
    found = fft.convolve64(a, there(b))
    same_bits(fft.convolve64(there(b), a), found)
    same_bits(fft.convolve64(a, there(b.reshape(1, 64))), found)
    same_bits(fft.convolve64(a, there(np.tile(b, (9, 1)))), found)


@on_every_type
@fast_devices
def test_convolution_bits_do_not_depend_on_the_batch(dtype: Any) -> None:
    a, b = there(values((20, 64), dtype, 1)), there(values((20, 64), dtype, 2))
    found = fft.convolve64(a, b)
    for row in range(20):
        same_bits(fft.convolve64(a[row], b[row]), found[row])


@on_every_type
@fast_devices
def test_convolutions_in_place(dtype: Any) -> None:
    a, b, f = (there(values((rows, 64), dtype, seed)) for seed, rows in enumerate((33, 33, 1)))
    expected, filtered, square = fft.convolve64(a, b), fft.convolve64(a, f), fft.convolve64(a, a)
    one = fft.convolve64(f, f)
    for left, right, result in ((a, b, expected), (a, f, filtered), (f, a, filtered), (a, a, square)):
        for which in (0, 1):
            operands = [left.copy(), right.copy()]
            if left is right:
                operands[1] = operands[0]
            if operands[which].shape != result.shape:
                continue
            assert fft.convolve64(*operands, out=operands[which]) is operands[which]
            same_bits(operands[which], result)
    assert fft.convolve64(f, f, out=f) is f
    same_bits(f, one)


# ---- arrays ----


def _unaligned(x: Any) -> Any:
    room = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    room[...] = x
    return room


def _read_only(x: Any) -> Any:
    x = x.copy()
    x.setflags(write=False)
    return x


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": lambda x: x.copy(),
    "Fortran": lambda x: np.asfortranarray(x),
    "moved axis": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1),
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every other value": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "part of longer rows": lambda x: np.pad(x, [(0, 0), (0, 0), (3, 2)])[..., 3:-2],
    "unaligned": _unaligned,
    "read-only": _read_only,
    "order of bytes by name": lambda x: x.view(x.dtype.newbyteorder(BYTE_ORDER)),
    "subclass": lambda x: x.copy().view(type("Array", (np.ndarray,), {})),
}


@on_every_type
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fft_of_any_memory_layout(layout: str, dtype: Any) -> None:
    x = values((2, 3, 64), dtype)
    forward, inverse = fft.fft(x), fft.fft(x, inverse=True)
    filtered = fft.convolve64(x, x[0])
    laid_out = LAYOUTS[layout](x)
    assert np.array_equal(laid_out, x)
    same_bits(fft.fft64(laid_out), forward)
    same_bits(fft.fft(laid_out, inverse=True), inverse)
    same_bits(fft.convolve64(laid_out, laid_out[0]), filtered)
    assert np.array_equal(laid_out, x)


@on_every_type
@on(*CARDS)
def test_fft_of_any_memory_layout_on_a_card(dtype: Any) -> None:
    x, xp = values((6, 64), dtype), backend().xp
    kept = there(x)
    expected, filtered = fft.fft64(kept), fft.convolve64(kept, kept[0])
    padded, off = (
        xp.zeros((6, 70), dtype),
        xp.zeros((x.nbytes + 8,), np.uint8)[8:].view(dtype).reshape(x.shape),
    )
    padded[:, 3:67], off[...] = kept, kept
    for y in (padded[:, 3:67], off, xp.repeat(kept, 2, axis=0)[::2], there(x.T.copy()).T):
        same_bits(fft.fft64(y), expected)
        same_bits(fft.convolve64(y, y[0]), filtered)
        # CuPy compares aligned complex numbers only
        same_bits(xp.ascontiguousarray(y).view(np.uint8), kept.view(np.uint8))


@on(*CARDS)
def test_operands_on_different_devices_raise(device: str) -> None:
    x = values((3, 64), np.complex64)
    y = there(x)
    for call, wrong, words in (
        (lambda: fft.convolve64(y, x), pg.DeviceError, f"a is on {device} and b is on cpu"),
        (lambda: fft.convolve64(x, y), pg.DeviceError, f"a is on cpu and b is on {device}"),
        (lambda: fft.fft64(y, out=x), pg.DeviceError, f"out is on cpu and the operands are on {device}"),
        (lambda: fft.fft64(x, out=y), pg.DeviceError, f"out is on {device} and the operands are on cpu"),
        (lambda: fft.fft64(y, out=y.T), pg.errors.OutputError, "the result is an array of complex64"),
        (lambda: fft.fft64(y, out=y[:2]), pg.errors.OutputError, "the result is an array of complex64"),
        (lambda: fft.fft64(y[:2], out=y[1:]), pg.errors.OutputError, "overlaps an operand in part"),
        (lambda: fft.fft64(y, out=y.astype(np.complex128)), pg.errors.OutputError, "complex128"),
        (lambda: fft.fft64(y.view(np.float32)), pg.errors.NotComplex, "float32"),
        (lambda: fft.fft(y[:, :48]), pg.ParameterError, "48 points"),
    ):
        with pytest.raises(wrong, match=words):
            call()
    same_bits(y, there(x))


@on_every_type
def test_fft_of_a_broadcast_row(dtype: Any) -> None:
    row = values((64,), dtype)
    same_bits(fft.fft64(np.broadcast_to(row, (4, 64))), np.tile(fft.fft64(row), (4, 1)))


@on_every_type
@everywhere
@pytest.mark.parametrize(
    "shape", [(64,), (1, 64), (2, 3, 64), (0, 64), (2, 0, 64), (1, 1, 1, 1, 1, 1, 1, 64)]
)
def test_fft_with_batch_axes(shape: tuple[int, ...], dtype: Any) -> None:
    x = there(values(shape, dtype))
    kept = x.copy()
    found = fft.fft64(x)
    assert found.shape == shape and found.dtype == dtype and not shares_memory(found, x)
    same_bits(x, kept)
    out = there(np.full(shape, np.nan, dtype))
    assert fft.fft64(x, out=out) is out
    same_bits(out, found)
    assert fft.fft64(x, out=x) is x
    same_bits(x, found)
    assert fft.fft(x, inverse=True, out=x) is x
    if x.size:
        assert error(x, host(kept)) < 2 * LONG[dtype]


@on_every_type
def test_fft_into_an_out_that_overlaps_its_operand(dtype: Any) -> None:
    """An operand that is not contiguous is copied first, so `out` may overlap it."""
    x = values((64, 64), dtype)
    expected = fft.fft64(x.T)
    assert fft.fft64(x.T, out=x) is x
    same_bits(x, expected)


def test_inverse_that_is_not_a_bool_raises() -> None:
    """The second argument of numpy.fft.fft is a length; here a length or an array raises."""
    x = values((64,), np.complex128)
    for wrong in (64, None, 1, x):
        with pytest.raises(pg.ParameterError, match="must be True or False"):
            fft.fft(x, inverse=wrong)
    same_bits(fft.fft(x, inverse=np.True_), fft.fft(x, inverse=True))


def test_reference_fft_of_infinities_nan_and_overflow() -> None:
    """Rows with infinities, NaN or an overflow are not finite on "reference" either."""
    rows = np.full((3, 64), 1e307 + 0j)
    rows[0, :2], rows[1, 0] = (np.inf, -np.inf), np.nan
    with pg.device("reference"), np.errstate(all="ignore"):
        found, convolved = fft.fft64(rows), fft.convolve64(rows, rows)
    assert not np.isfinite(found).all(axis=-1).any() and not np.isfinite(convolved).all(axis=-1).any()


def test_fft_of_memory_mapped_arrays(tmp_path: Any) -> None:
    x = values((3, 64), np.complex64)
    mapped = np.memmap(tmp_path / "rows", np.complex64, "w+", shape=x.shape)
    mapped[...] = x
    same_bits(fft.fft64(mapped), fft.fft64(x))
    same_bits(fft.convolve64(mapped, x), fft.convolve64(x, x))
    assert fft.fft64(x, out=mapped) is mapped
    same_bits(np.array(mapped), fft.fft64(x))


# ---- laws ----


@st.composite
def rows(draw: st.DrawFn, count: int, n: int | None = None) -> tuple[Any, ...]:
    """Batches of one shape and type: random, sparse, of equal values, or of many magnitudes."""
    dtype = draw(st.sampled_from(list(SHORT)))
    n = n or 1 << draw(st.integers(0, 9))
    shape = (draw(st.integers(1, 4)), n)
    made = []
    for _ in range(count):
        style = draw(st.sampled_from(("random", "sparse", "alike", "magnitudes")))
        x = values(shape, np.complex128, draw(st.integers(0, 2**32)))
        if style == "sparse":
            at = draw(st.integers(0, n - 1))
            x[:, :at], x[:, at + 1 :] = 0, 0
        elif style == "alike":
            x[:] = x[:, :1]
        elif style == "magnitudes":
            x *= 2.0 ** np.linspace(-30, 30, n)
        made.append(x.astype(dtype))
    return tuple(made)


@given(rows(2), st.sampled_from([1, -2, 0.5j, 4 - 4j]), st.booleans())
def test_transforms_are_linear(case: tuple[Any, ...], c: complex, inverse: bool) -> None:
    x, y = case
    factor, bound = x.dtype.type(c), LONG[x.dtype.type]
    found = fft.fft(x * factor + y, inverse=inverse).astype(np.clongdouble)
    expected = fft.fft(x, inverse=inverse).astype(np.clongdouble) * c + fft.fft(y, inverse=inverse)
    size = np.sqrt(np.longdouble(x.shape[-1])) ** (-1 if inverse else 1) * (abs(c) * norm(x) + norm(y))
    assert np.all(norm(found - expected) <= 3 * bound * size)


@given(rows(1), st.booleans())
def test_fft_inverse_round_trip(case: tuple[Any, ...], inverse: bool) -> None:
    (x,) = case
    back = fft.fft(fft.fft(x, inverse=inverse), inverse=not inverse)
    assert np.all(norm(back - x) <= 2.01 * LONG[x.dtype.type] * norm(x))


@given(rows(1), st.booleans())
def test_parseval_identity(case: tuple[Any, ...], inverse: bool) -> None:
    """The norm grows by sqrt(n) in the forward transform and shrinks by it in the inverse."""
    (x,) = case
    expected = np.sqrt(np.longdouble(x.shape[-1])) ** (-1 if inverse else 1) * norm(x)
    assert np.all(abs(norm(fft.fft(x, inverse=inverse)) - expected) <= LONG[x.dtype.type] * expected)


@given(rows(1), st.integers(0, 511))
def test_shift_theorem(case: tuple[Any, ...], shift: int) -> None:
    (x,) = case
    n = x.shape[-1]
    turns = (np.arange(n) * shift % n).astype(np.longdouble) / n
    found = fft.fft(np.roll(x, shift, axis=-1)).astype(np.clongdouble)
    expected = fft.fft(x) * np.exp(-8j * np.arctan(np.longdouble(1)) * turns)
    assert np.all(norm(found - expected) <= 2.01 * LONG[x.dtype.type] * np.sqrt(np.longdouble(n)) * norm(x))


@given(rows(2, n=64))
def test_convolution_theorem(case: tuple[Any, ...]) -> None:
    a, b = case
    bound, size = LONG[a.dtype.type], GROWTH * norm(a) * norm(b)
    found = fft.convolve64(a, b)
    assert np.all(norm(found - exact_convolution(a, b)) <= bound * size)
    spectra = fft.fft64(a).astype(np.clongdouble) * fft.fft64(b)
    assert np.all(norm(fft.fft64(found) - spectra) <= 4.01 * bound * 8 * size)
    assert np.all(norm(fft.convolve64(b, a) - found) <= 2 * bound * size)
