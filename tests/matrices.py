"""Products of matrices by Python integers, against which the tests of the backends compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from polygpu._core.plans.basis import basis_of

# "last": q - 1; "words": all bits 1; "half", "past half": q // 2 and the next, about where centred residues
# change their sign
Values = Literal["random", "last", "words", "half", "past half"]
Layout = Literal["dense", "transposed", "broadcast"]
Array = np.ndarray[Any, np.dtype[Any]]

# The least and the largest moduli of each sum of cuda/sum.cuh, and of 30 and 60 bits.
MODULI = (2, 3, (1 << 30) - 35, (1 << 31) - 1, 1 << 31, (1 << 32) - 5, 1 << 32)
MODULI += ((1 << 32) + 15, (1 << 60) - 93, (1 << 62) - 57, 1 << 62)
WIDE_MODULI = ((1 << 63) - 25, 1 << 63, (1 << 64) - 59, 1 << 64)  # of products at points only

# Of products at points: the moduli of one limb and of several, for each sum, and every layout.
POINT_MODULI = ((2,), MODULI[:4], MODULI[2:7], WIDE_MODULI)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
# Batch, m, k, p, points: every size of tile, rows of odd lengths, long sums of one point.
POINT_SIZES = (
    (2, 3, 5, 7, 4),
    (2, 2, 3, 2, 5),
    (3, 9, 4, 8, 8),
    (1, 8, 3, 16, 36),
    (5, 1, 6, 1, 64),
    (2, 4, 131, 1, 1),
)
# Sizes of 1 and 0, and more tiles than one block of threads takes: for dense operands only.
POINT_EDGES = ((1, 1, 1, 1, 1), (1, 2, 0, 2, 4), (0, 1, 1, 1, 4), (1, 0, 2, 2, 4), (150, 1, 2, 1, 2))


def drawn(shape: tuple[int, ...], bound: int, seed: int) -> Array:
    """Python integers below a bound of at most 2^64."""
    words = np.random.default_rng(seed).integers(0, 1 << 64, shape, np.uint64, endpoint=False)
    return words.astype(object) % bound


def check_matmul(
    backend: Any,
    q: int,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    values: Values = "random",
    multiply: Callable[..., None] | None = None,
) -> None:
    """One product (batch or 1, m, k) by (batch or 1, k, n): of words, most of them no residues.

    multiply: one of the functions between which the backend's matmul chooses, instead of it.
    """
    basis = basis_of((q,))
    bound = 1 << 8 * basis.dtype.itemsize
    a, b = (drawn(shape, bound, seed) for seed, shape in enumerate((a_shape, b_shape)))
    if values != "random":
        a[...] = b[...] = {"last": q - 1, "words": bound - 1, "half": q // 2, "past half": q // 2 + 1}[values]
    shape = max(len(a), len(b)) if len(a) and len(b) else 0, a.shape[1], b.shape[2]
    expected = np.zeros(shape, object)
    for k in range(a.shape[2]):
        expected += a[:, :, k, None] * b[:, k, None, :]
    out = backend.xp.full(shape, 1, basis.dtype)
    x, y = (backend.from_host(operand.astype(basis.dtype)) for operand in (a, b))
    (multiply or type(backend).matmul)(backend, basis, x, y, out)
    np.testing.assert_array_equal(backend.to_host(out), (expected % q).astype(basis.dtype))


def check_points(
    backend: Any,
    moduli: tuple[int, ...],
    sizes: tuple[int, int, int, int, int],
    values: Values = "random",
    layout: Layout = "dense",
) -> None:
    """One product of matrices of polynomials; sizes: batch, m, k, p, points."""
    batch, m, k, p, points = sizes
    basis, rows = basis_of(moduli), len(moduli)
    shapes = (batch, m, k, rows, points), (batch, k, p, rows, points)
    q = np.array(moduli, object)[:, None]
    a, b = (drawn(shape, 1 << 64, seed) % q for seed, shape in enumerate(shapes))
    if values != "random":
        a[...] = b[...] = q - 1
    x, y = (backend.from_host(operand.astype(basis.dtype)) for operand in (a, b))
    out = backend.xp.full((batch, m, p, rows, points), 1, basis.dtype)
    if layout == "transposed":
        axes = 2, 1, 0, 3, 4
        x, y = (
            backend.from_host(np.ascontiguousarray(operand.transpose(axes).astype(basis.dtype))).transpose(
                axes
            )
            for operand in (a, b)
        )
        out = backend.xp.full((p, batch, m, rows, points), 1, basis.dtype).transpose(1, 2, 0, 3, 4)
    elif layout == "broadcast":
        a, b = np.broadcast_to(a[:1], a.shape), np.broadcast_to(b[:, :, :1], b.shape)
        x, y = backend.xp.broadcast_to(x[:1], x.shape), backend.xp.broadcast_to(y[:, :, :1], y.shape)
    expected = np.zeros(out.shape, object)
    for i in range(k):
        expected += a[:, :, i, None] * b[:, i, None]
    backend.matmul_points(basis, x, y, out)
    np.testing.assert_array_equal(backend.to_host(out), (expected % q).astype(basis.dtype))


def check_all_points(backend: Any, moduli: tuple[int, ...], layout: Layout) -> None:
    """Products of every size, of random residues and of the largest."""
    for sizes in POINT_SIZES + (POINT_EDGES if layout == "dense" else ()):
        check_points(backend, moduli, sizes, "random", layout)
        check_points(backend, moduli, sizes, "last", layout)
