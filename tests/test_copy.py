"""Copies on every device match NumPy's assignment in every memory layout."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from devices import CARDS, backend, host, on, sized, there

from polygpu._backends.cuda import copies

PLACES = ("cpu", "reference", *CARDS)
U32, U64, I64 = np.uint32, np.uint64, np.int64
REVERSED = np.s_[..., ::-1]

# The shape of x, a key that takes a part of it, its order of axes; the same of out. None: the whole.
LAYOUTS: dict[str, tuple[Any, ...]] = {
    "dense": ((3, 5, 8), None, None, (3, 5, 8), None, None),
    "one entry": ((1,), None, None, (1,), None, None),
    "no axes": ((), None, None, (), None, None),
    "rows of x apart": ((3, 9, 8), np.s_[:, 2:7], None, (3, 5, 8), None, None),
    "rows of out apart": ((3, 5, 8), None, None, (3, 9, 8), np.s_[:, 2:7], None),
    "parts of rows": ((4, 12), np.s_[:, 4:12], None, (4, 16), np.s_[:, 4:12], None),
    "odd parts of rows": ((4, 12), np.s_[:, 1:8], None, (4, 16), np.s_[:, 2:9], None),
    "steps": ((4, 15), np.s_[:, ::3], None, (4, 10), np.s_[:, ::2], None),
    "backwards": ((4, 7), REVERSED, None, (4, 7), None, None),
    "backwards in out": ((4, 7), np.s_[::-1, 1:5], None, (4, 7), np.s_[:, 5:1:-1], None),
    "transposed": ((6, 300), None, (1, 0), (300, 6), None, None),
    "transposed out": ((300, 6), None, None, (6, 300), None, (1, 0)),
    "axes in another order": ((2, 3, 4, 5), None, (2, 0, 3, 1), (4, 2, 5, 3), None, None),
    "one number": ((), None, None, (3, 70), None, None),
    "one number, rows apart": ((1, 1), None, None, (5, 3, 9), np.s_[:, :2, ::4], None),
    "one row": ((7,), None, None, (3, 2, 7), None, None),
    "one column": ((3, 1), None, None, (4, 3, 5), None, None),
    "axes of length 1": ((2, 1, 3, 1), None, None, (2, 1, 3, 4), None, None),
    "rows longer than a block": ((3, 2000), np.s_[:, :1101], None, (3, 1101), None, None),
    "7 axes": ((3,) * 7, np.s_[:, :2, :, :2, :, :2, :2], None, (3, 2) * 3 + (2,), None, None),
    "8 axes": (
        (2, 3) * 4,
        np.s_[:, :2, :, :2, :, :2, :, :2],
        None,
        (2,) * 8,
        None,
        (7, 5, 3, 1, 0, 2, 4, 6),
    ),
    "9 axes, broadcast": (
        (2, 1, 2, 1, 2, 1, 2, 1, 2),
        None,
        None,
        (3,) * 9,
        np.s_[:2, :2, :2, :2, :2, :2, :2, :2, :2],
        None,
    ),
    "empty": ((3, 0, 5), None, None, (3, 0, 5), None, None),
    "empty, broadcast": ((1, 5), None, None, (0, 5), None, None),
}
DTYPES = [(U32, U32), (U64, U64), (np.complex128, np.complex128), (U32, U64), (U64, U32), (U64, I64)]
OTHERS = [
    (np.uint8, np.uint8),
    (np.int16, np.int16),
    (np.complex64, np.complex64),
    (np.float64, np.float64),
    (np.uint8, U64),
    (np.uint16, U32),
    (np.int8, I64),
    (np.int32, I64),
    (I64, np.int32),
]


def drawn(shape: tuple[int, ...], dtype: Any, least: int = 0) -> Any:
    """Values that every dtype of the tests holds, if it has as many signs as `least`."""
    source = np.random.default_rng(len(shape))
    if np.dtype(dtype).kind == "c":
        return (source.normal(size=shape) + 1j * source.normal(size=shape)).astype(dtype)
    return np.asarray(source.integers(least, 100, shape), dtype)


def viewed(x: Any, key: Any, order: Any) -> Any:
    """A part of an array, with its axes in another order."""
    x = x if key is None else x[key]
    return x if order is None else x.transpose(order)


def moved(x: Any, offset: int) -> Any:
    """Copy an array to the device, `offset` bytes behind the beginning of its memory."""
    room = backend().empty((x.nbytes + 32,), np.dtype(np.uint8))
    place = room[offset : offset + x.nbytes]
    if x.size:
        with backend().device_scope():  # as bytes: CuPy does not copy larger entries to any place
            place[...] = there(np.frombuffer(x.tobytes(), np.uint8))
    return place.view(x.dtype).reshape(x.shape)


def check(x: Any, out: Any, x_view: Any, out_view: Any, offsets: tuple[int, int] = (0, 0)) -> None:
    """A copy between parts of two arrays: as NumPy's, and nothing else of `out` is written."""
    source, target = moved(x, offsets[0]), moved(out, offsets[1])
    backend().copy(x_view(source), out_view(target))
    expected = out.copy()
    out_view(expected)[...] = x_view(x)
    np.testing.assert_array_equal(host(target), expected)
    np.testing.assert_array_equal(host(source), x)


@on(*PLACES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_copy_between_layouts(device: str, name: str) -> None:
    shape, key, order, out_shape, out_key, out_order = LAYOUTS[name]
    for source, target in DTYPES:
        x, out = drawn(shape, source), np.asarray(drawn(out_shape, target) + target(1))
        check(x, out, lambda a: viewed(a, key, order), lambda a: viewed(a, out_key, out_order))


@on(*PLACES)
@pytest.mark.parametrize(("source", "target"), OTHERS)
def test_copy_between_dtypes(device: str, source: Any, target: Any) -> None:
    least = -100 if np.dtype(source).kind in "if" else 0
    for key in (np.s_[:, :], np.s_[::2, ::3]):
        x = drawn((4, 9), source, least)
        out = np.zeros_like(x[key], dtype=target)
        check(x, out, lambda a, key=key: a[key], lambda a: a)


@on(*PLACES)
def test_copy_at_every_alignment(device: str) -> None:
    """Both arrays begin at every offset that their dtype allows."""
    for dtype in (U32, U64, np.complex64, np.complex128):
        size = min(8, np.dtype(dtype).itemsize)
        for offsets in product(range(0, 17, size), (0, size, 16)):
            for length in (16, 7):
                x = drawn((3, length), dtype)
                check(x, np.zeros_like(x), lambda a: a, lambda a: a, offsets)


@sized(
    "rows, length, blocks",
    simulated=[(1000, 130, 7), (5000, 3, 7), (66000, 130, 65535)],
    cuda=[(66000, 130, 65535), (70000, 1000, 65535)],
)
def test_copy_of_more_rows_than_blocks(
    device: str, rows: int, length: int, blocks: int, monkeypatch: Any
) -> None:
    """If there are more rows than blocks in the grid, one block copies several rows."""
    monkeypatch.setattr(copies, "_MAX_BLOCKS", blocks)
    x = drawn((rows, length + 1), np.uint8)
    check(x, np.zeros((rows, length), np.uint8), lambda a: a[:, 1:], lambda a: a)


@on(*PLACES)
def test_copy_of_an_array_onto_itself(device: str) -> None:
    x = there(drawn((3, 8), U64))
    backend().copy(x, x)
    np.testing.assert_array_equal(host(x), drawn((3, 8), U64))


def test_copy_merges_dense_axes() -> None:
    """Dense arrays are copied as one axis, in the largest units that the alignment allows."""
    x = np.zeros((4, 6, 10, 8), U64)
    for a, b, places, axes, kind in (
        (x, x, 0, [(960, 1, 1)], "ulonglong2"),
        (x, x, 8, [(1920, 1, 1)], "u64"),
        (x[:, :, :, :6], x[:, :, :, :6], 0, [(240, 4, 4), (3, 1, 1)], "ulonglong2"),
        (x[:, :, :, :5], x[:, :, :, :5], 0, [(240, 8, 8), (5, 1, 1)], "u64"),
        (x[..., ::2], x[..., ::2], 0, [(960, 2, 2)], "u64"),
        (x[0, 0, 0, 0], x, 0, [(1920, 0, 1)], "u64"),
        (x[:1], x, 0, [(4, 0, 240), (240, 1, 1)], "ulonglong2"),
        (x.T, x.T, 0, [(960, 1, 1)], "ulonglong2"),
    ):
        assert copies.axes_of(a, b, places) == (axes, kind, kind)
    assert copies.axes_of(x, x.astype(U32), 0) == ([(1920, 1, 1)], "u64", "u32")


@on(*PLACES)
@pytest.mark.parametrize("size", [1, 3, 8, 12, 32, 1040, 9000])
def test_copy_of_items_by_index(device: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items have every size and alignment, and there are more of them than blocks in the grid."""
    monkeypatch.setattr(copies, "_MAX_BLOCKS", 3)
    items, rng = 7, np.random.default_rng(size)
    for offset in (0, 1, 4, 8):
        x = drawn((items * size + offset,), np.uint8)
        given = there(x)[offset:].reshape(items, size)
        for index in (np.arange(items), np.array([6, 0, 3]), rng.permutation(items), np.zeros(0, np.int64)):
            found = there(np.zeros((len(index), size), np.uint8))
            backend().gather(given, there(index), found)
            np.testing.assert_array_equal(host(found), x[offset:].reshape(items, size)[index])
            target = np.zeros((items + 1, size), np.uint8)
            scattered = there(target.copy())
            backend().scatter(given[: len(index)], there(index), scattered)
            target[index] = x[offset:].reshape(items, size)[: len(index)]
            np.testing.assert_array_equal(host(scattered), target)
