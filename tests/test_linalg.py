"""Matrix products modulo q, against Python ints and python-flint."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flint
import numpy as np
import pytest
from devices import CARDS, HOST, backend, host, on, there
from hypothesis import given
from hypothesis import strategies as st

import polygpu as pg
from polygpu import _cpu, linalg
from polygpu._core.plans.basis import basis_of
from polygpu.linalg import MAX_MODULUS, matmul
from polygpu.testing import WORD_LIMITS

# Around each limit of words and kernels: odd and even, prime and composite.
MODULI = sorted(
    {2, 3, 10, 2**16, 2**31 - 1, 3 * 2**30, *(2**b + d for b in WORD_LIMITS if b < 64 for d in (-1, 0, 1))}
    | {2**62 - 57, 2**64 - 59, 2**64 - 1, 2**64}
)
FEW = [2, 97, 2**32, 2**32 + 1, 2**62, 2**64 - 59, 2**64]


def draw(q: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Residues with the edges among them, Python ints."""
    rng = random.Random(f"{q} {shape} {seed}")
    values = np.empty(math.prod(shape), dtype=object)
    for i in range(len(values)):
        values[i] = rng.choice([0, 1, q - 1, q // 2]) if rng.random() < 0.3 else rng.randrange(q)
    return values.reshape(shape)


def exact(a: Any, b: Any, q: int) -> np.ndarray:
    """The product by Python ints; an empty sum is 0."""
    product = np.asarray(np.matmul(np.asarray(a, object), np.asarray(b, object)), object)
    return np.array([int(x or 0) % q for x in product.flat], dtype=object).reshape(product.shape)


def check(c: Any, expected: np.ndarray, q: int) -> None:
    assert c.flags.c_contiguous and c.dtype == dtype_of(q) and c.shape == expected.shape
    assert np.array_equal(host(c).astype(object), expected)


def multiply(a: Any, b: Any, q: int, out: Any = None) -> Any:
    """The product of arrays on the device, which must lie there too."""
    c = matmul(a, b, q=q, out=out)
    assert type(c) is type(a)
    return c


@contextmanager
def instructions(isa: str) -> Iterator[None]:
    """Compute with an instruction set, inside a test of Hypothesis, which takes no fixture."""
    before = _cpu.isa()
    _cpu.set_isa(isa)
    try:
        yield
    finally:
        _cpu.set_isa(before)


def dtype_of(q: int) -> Any:
    return np.uint32 if q <= 2**32 else np.uint64


# ---- values ----


@pytest.mark.parametrize("q", MODULI[:-1])  # python-flint has no 2^64
def test_matmul_matches_flint_for_every_modulus(q: int, each_isa: str) -> None:
    m, k, n = 5, 33, 7
    x, y = draw(q, (m, k), 1), draw(q, (k, n), 2)
    product = flint.nmod_mat(m, k, x.ravel().tolist(), q) * flint.nmod_mat(k, n, y.ravel().tolist(), q)
    expected = np.array([int(v) for v in product.entries()], dtype=object).reshape(m, n)
    check(matmul(x.astype(dtype_of(q)), y.astype(dtype_of(q)), q=q), expected, q)


@pytest.mark.parametrize("q", MODULI)
def test_matmul_of_largest_entries(q: int, each_isa: str) -> None:
    """(q - 1)^2 is 1 modulo q, so the sum is k. Entries need not be reduced."""
    k, dtype = 70, dtype_of(q)
    a = np.full((3, k), q - 1, dtype)
    check(matmul(a, a.T, q=q), np.full((3, 3), k % q, dtype=object), q)
    word = np.iinfo(dtype).max
    a = np.full((3, k), word, dtype)
    check(matmul(a, a.T, q=q), np.full((3, 3), k * word**2 % q, dtype=object), q)


@given(
    st.sampled_from(MODULI) | st.integers(2, MAX_MODULUS),
    st.tuples(*[st.integers(0, 9)] * 3),
    st.lists(st.sampled_from([(1, 1), (3, 1), (1, 3), (3, 3), (0, 1)]), max_size=2),
    st.integers(0, 2**32),
    st.sampled_from(_cpu.supported_isas()),
)
def test_matmul_of_any_shape_and_modulus(q: int, sizes: Any, batch: Any, seed: int, isa: str) -> None:
    m, k, n = sizes
    a = draw(q, (*(x for x, _ in batch), m, k), seed)
    b = draw(q, (*(y for _, y in batch), k, n), seed + 1)
    with instructions(isa):
        check(matmul(a, b, q=q), exact(a, b, q), q)


SHAPES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((1, 1), (1, 1)),
    ((1, 5), (5, 1)),
    ((5, 1), (1, 5)),
    ((2, 0), (0, 3)),
    ((0,), (0,)),
    ((0,), (0, 2)),
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((4, 2, 0), (0, 3)),
    ((4, 2, 0), (4, 0, 3)),
    ((2, 0), (4, 0, 3)),
    ((4, 2, 3), (3, 2)),
    ((2, 3), (4, 3, 2)),
    ((4, 2, 3), (4, 3, 2)),
    ((4, 2, 3), (1, 3, 2)),
    ((1, 2, 3), (4, 3, 2)),
    ((3,), (4, 3, 2)),
    ((4, 2, 3), (3,)),
    ((4, 1, 2, 3), (5, 3, 2)),
    ((5, 2, 3), (4, 1, 3, 2)),
    ((4, 5, 2, 3), (1, 5, 3, 2)),
    ((1, 1, 2, 3), (4, 5, 3, 2)),
    ((0, 2, 3), (3, 2)),
    ((17, 33), (33, 19)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("q", FEW)
def test_matmul_shapes(q: int, left: Any, right: Any, device: str) -> None:
    a, b = draw(q, left, 1), draw(q, right, 2)
    expected = exact(a, b, q)
    assert expected.shape == np.matmul(np.zeros(left), np.zeros(right)).shape
    if device in HOST:
        check(matmul(a, b, q=q), expected, q)
    x, y = there(a.astype(dtype_of(q))), there(b.astype(dtype_of(q)))
    check(multiply(x, y, q), expected, q)
    out = there(np.full(expected.shape, 99, dtype_of(q)))
    assert multiply(x, y, q, out=out) is out
    check(out, expected, q)


def test_matmul_sizes_around_tiles_and_threads(threads: Any, each_isa: str) -> None:
    rng = np.random.default_rng(1)
    for q in (2**30 - 35, 2**60 - 93):
        for m, k, n in ((31, 65, 127), (129, 64, 33), (1, 1000, 1), (257, 3, 1), (1, 3, 257)):
            a, b = (rng.integers(0, q, shape, dtype=dtype_of(q)) for shape in ((m, k), (k, n)))
            expected = exact(a, b, q)
            for count in (1, 2):
                threads(count)
                check(matmul(a, b, q=q), expected, q)


# ---- types ----


@pytest.mark.parametrize("q", FEW)
@pytest.mark.parametrize(
    "dtype", [np.dtype(x) for x in "bBhHiIlL"] + [np.dtype(x) for x in (">i4", ">u8")], ids=str
)
def test_matmul_of_every_integer_type(dtype: Any, q: int, device: str) -> None:
    """Signed integers are reduced correctly up to the ends of their range."""
    info, rng = np.iinfo(dtype), random.Random(str(dtype))
    values = [info.min, info.max, 0, 1] + [rng.randint(info.min, info.max) for _ in range(8)]
    a = np.array(values, dtype).reshape(3, 4)
    expected = exact(a, a.T, q)
    if device in HOST:
        check(matmul(a, a.T.astype(object), q=q), expected, q)
    elif not dtype.isnative:
        return
    a = there(a)
    check(multiply(a, a.T, q), expected, q)


@on(*HOST)
@pytest.mark.parametrize("q", FEW)
def test_matmul_of_python_ints_of_any_size(q: int) -> None:
    a = [[-1, 2**100], [-(2**70), 3]]
    b = [[2**64, 1], [-5, 2**63]]
    check(matmul(a, b, q=q), exact(a, b, q), q)
    check(matmul(a, np.array([1, 2], np.int8), q=q), exact(a, [1, 2], q), q)
    check(matmul([1, 2], b, q=q), exact([1, 2], b, q), q)
    check(matmul([], [], q=q), exact([], [], q), q)
    if q < 2**63:
        check(matmul(a, b, q=np.int64(q)), exact(a, b, q), q)


@pytest.mark.parametrize("q", FEW)
def test_matmul_of_every_memory_layout(q: int, device: str) -> None:
    a = draw(q, (6, 6), 1).astype(dtype_of(q))
    b = there(a)
    for view in (
        lambda x: x.T,
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x[2::2, ::3].T,
        lambda x: np.broadcast_to(x[0], (2, 6)) if x is a else backend().xp.broadcast_to(x[0], (2, 6)),
    ):
        x, y = view(a), view(b)
        if x.shape[-1] == 6:
            check(multiply(y, b, q), exact(x, a, q), q)
        check(multiply(y, y.T, q), exact(x, x.T, q), q)


@on(*HOST)
@pytest.mark.parametrize("q", FEW)
def test_matmul_of_unaligned_signed_and_read_only_arrays(q: int) -> None:
    a = draw(q, (6, 6), 1).astype(dtype_of(q))
    raw = np.zeros(a.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(a.dtype).reshape(a.shape)
    unaligned[...] = a
    signed = raw.copy()[1:].view(np.int64 if q > 2**32 else np.int32).reshape(a.shape)
    constant = a.copy()
    constant.setflags(write=False)
    for x in (np.asfortranarray(a), unaligned, signed, constant):
        check(matmul(x, a, q=q), exact(x, a, q), q)
        check(matmul(a, x.T, q=q), exact(a, x.T, q), q)


@pytest.mark.parametrize("q", FEW)
def test_matmul_in_place_and_unchanged_operands(q: int, device: str) -> None:
    a, b = (draw(q, (2, 4, 4), i).astype(dtype_of(q)) for i in (1, 2))
    expected, square = exact(a, b, q), exact(a[0], a[0], q)
    x, y = there(a.copy()), there(b.copy())
    check(multiply(x, y, q), expected, q)
    assert np.array_equal(host(x), a) and np.array_equal(host(y), b)
    for which in (0, 1):
        operands = there(a.copy()), there(b.copy())
        assert multiply(*operands, q, out=operands[which]) is operands[which]
        check(operands[which], expected, q)
    matmul(x[0], x[0], q=q, out=x[0])
    check(x[0], square, q)


@on(*CARDS)
def test_operands_on_different_devices_raise(device: str) -> None:
    a = there(np.ones((3, 3), np.uint32))
    with pytest.raises(pg.DeviceError, match=f"A is on {device} and B is on cpu"):
        matmul(a, host(a), q=97)
    with pytest.raises(pg.DeviceError, match=f"out is on cpu and the operands are on {device}"):
        matmul(a, a, q=97, out=host(a))
    with pytest.raises(pg.errors.CoefficientError, match="A has dtype float64"):
        matmul(a * 1.0, a, q=97)


def test_matmul_does_not_copy_arrays_of_the_result_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared operand is passed once, and a batch times one B is a single product."""
    from polygpu._backends.cpu import CpuBackend

    basis_of.cache_clear()  # with the calls that it repeats
    calls: list[Any] = []
    whole = CpuBackend.matmul
    monkeypatch.setattr(CpuBackend, "matmul", lambda self, *x: calls.append(x[1:]) or whole(self, *x))
    for left, right, shapes in (
        ((2, 3), (3, 4), [(1, 2, 3), (1, 3, 4), (1, 2, 4)]),
        ((5, 2, 3), (3, 4), [(1, 10, 3), (1, 3, 4), (1, 10, 4)]),
        ((2, 3), (5, 3, 4), [(1, 2, 3), (5, 3, 4), (5, 2, 4)]),
        ((5, 2, 3), (5, 3, 4), [(5, 2, 3), (5, 3, 4), (5, 2, 4)]),
    ):
        a, b = np.ones(left, np.uint32), np.ones(right, np.uint32)
        c = matmul(a, b, q=97)
        x, y, z = calls.pop()
        assert [v.shape for v in (x, y, z)] == shapes
        assert all(np.shares_memory(u, v) for u, v in ((a, x), (b, y), (c, z)))


# ---- matrices of bytes ----

BYTES = [np.dtype(x) for x in "bBhH"]
# Primes whose largest residue just fits 4 and 8 digits of 8 bits, and just does not; words; small ones.
BYTE_MODULI = [2, 3, 97, 2**13, 2139062143, 2139062147, 2**31 - 1, 2**32 - 5, 2**32, 2**32 + 1]
BYTE_MODULI += [2**61 - 1, 9187201950435737471, 9187201950435737473, 2**64 - 59, 2**64]


def bytes_of(dtype: np.dtype, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Integers of a dtype; every third matrix has only the least, every third only the largest."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    if seed % 3:
        return np.full(shape, info.min if seed % 3 == 1 else info.max, dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("q", BYTE_MODULI)
def test_matmul_of_byte_matrices(q: int, each_isa: str) -> None:
    """Sizes lie around tiles, row blocks, parts of a row, and the columns processed together."""
    shapes = [
        (1, 4097, 1),
        (4096, 1, 2),
        (70, 67, 3),
        (33, 129, 33),
        (16, 8193, 1),
        (5, 4100, 4),
        (65, 64, 65),
    ]
    for i, (m, k, n) in enumerate(shapes):
        for dtype in BYTES:
            a = bytes_of(dtype, (m, k), i)
            b = np.random.default_rng(i).integers(0, q, (k, n), dtype=np.uint64)
            b[:: i % 2 + 1] = q - 1
            b = b.astype(dtype_of(q))
            expected = exact(a, b, q)
            check(matmul(a, b, q=q), expected, q)
            check(matmul(np.asfortranarray(a), b, q=q), expected, q)


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("q", [97, 2**32, 2**64])
def test_matmul_of_byte_matrices_of_every_layout(
    q: int, dtype: np.dtype, threads: Any, tmp_path: Any
) -> None:
    whole = bytes_of(dtype, (160, 150), 3)
    b = draw(q, (150, 2), 1).astype(dtype_of(q))
    stored = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", dtype, whole.shape)
    stored[...] = whole
    frozen = whole.copy()
    frozen.setflags(write=False)
    raw = np.zeros(whole.nbytes + 1, np.uint8)
    odd = raw[1:].view(dtype).reshape(whole.shape)
    odd[...] = whole
    matrices = [
        *(whole[::2], whole[::-1], whole[:, ::-1], whole[5:, :149], whole.T[3:, 15:], whole[::3, ::2]),
        *(np.broadcast_to(whole[0], whole.shape), np.load(tmp_path / "a.npy", mmap_mode="r"), frozen, odd),
        whole.astype(dtype.newbyteorder()),
    ]
    for count in (1, 2):
        threads(count)
        for a in matrices:
            right = b[: a.shape[1]]
            check(matmul(a, right, q=q), exact(a, right, q), q)
            check(matmul(a, right[:, 0], q=q), exact(a, right[:, 0], q), q)
    out = np.empty((160, 2), dtype_of(q))
    assert matmul(whole, b, q=q, out=out) is out
    check(out, exact(whole, b, q), q)
    words = np.full_like(b, np.iinfo(b.dtype).max)  # no residues
    check(matmul(whole, words, q=q), exact(whole, words, q), q)
    check(matmul(whole, whole.T, q=q), exact(whole, whole.T, q), q)
    check(matmul(whole[None], b, q=q), exact(whole, b, q)[None], q)
    check(matmul(whole, np.stack([b, b]), q=q), np.stack([exact(whole, b, q)] * 2), q)
    with pg.verify():
        check(matmul(whole, b, q=q), exact(whole, b, q), q)
    with pytest.raises(pg.errors.CoefficientError, match="mask"):
        matmul(np.ma.masked_less(whole, 3), b, q=q)
    with pytest.raises(pg.ParameterError, match="must be as long"):
        matmul(whole, b[1:], q=q)


def test_matmul_does_not_convert_byte_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    words = linalg._words
    monkeypatch.setattr(linalg, "_words", lambda x, name, basis: seen.append(name) or words(x, name, basis))
    for dtype in BYTES:
        for a in (np.ones((64, 65), dtype), np.ones((65, 64), dtype).T):
            assert (matmul(a, np.ones(65, np.uint32), q=2**32) == 65).all()
    assert set(seen) == {"B"}
    matmul(np.ones((2, 2), np.int8), np.ones(2, np.uint32), q=97)  # few are copied
    assert set(seen) == {"A", "B"}


@on(*CARDS)
@pytest.mark.parametrize("q", BYTE_MODULI)
def test_matmul_of_byte_matrices_on_a_card(q: int, device: str) -> None:
    """Sizes lie around tiles, stages, row parts and column blocks. Rows have any alignment."""
    shapes = [(1, 4097, 1), (129, 132, 3), (4096, 1, 2), (33, 257, 9), (4, 2**15 + 130, 2), (130, 64, 70)]
    for i, (m, k, n) in enumerate(shapes):
        b = np.random.default_rng(i).integers(0, q, (k, n), dtype=np.uint64)
        b[:: i % 2 + 1] = q - 1
        b = b.astype(dtype_of(q))
        for dtype in BYTES if i < 2 else BYTES[i % 4 :][:1]:
            a = bytes_of(dtype, (m, k), i)
            expected, right = exact(a, b, q), there(b)
            check(matmul(there(a), right, q=q), expected, q)
            check(matmul(there(a.T.copy()).T, right, q=q), expected, q)
    a = bytes_of(np.dtype(np.int16), (70, 90), 3)
    x, words = there(a), draw(q, (90, 2), 4).astype(dtype_of(q))
    for cut in (np.s_[:, 1:], np.s_[1:], np.s_[::2, ::3], np.s_[::-1], np.s_[:, ::-1]):
        for left, of_x in ((a[cut], x[cut]), (a[cut].T, x[cut].T)):
            right = words[: left.shape[1]]
            check(matmul(of_x, there(right), q=q), exact(left, right, q), q)


@given(
    st.sampled_from(BYTE_MODULI) | st.integers(2, MAX_MODULUS),
    st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(1, 5)),
    st.sampled_from(BYTES),
    st.integers(0, 2**32),
    st.sampled_from(_cpu.supported_isas()),
)
def test_matmul_of_any_byte_matrix(q: int, sizes: Any, dtype: np.dtype, seed: int, isa_name: str) -> None:
    m, k, n = sizes
    m += 4096 // k
    a, b = bytes_of(dtype, (m, k), seed), draw(q, (k, n), seed).astype(dtype_of(q))
    with instructions(isa_name):
        check(matmul(a, b, q=q), exact(a, b, q), q)
