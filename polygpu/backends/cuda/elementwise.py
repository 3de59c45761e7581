"""Residues one by one: sums and products, permutations, residues of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...plans.basis import Basis
from ...plans.permutation import Permutation
from .. import Array, Op
from .launch import ALIGNMENT, Launcher, cbool, ctype

_OPS: dict[Op, int] = {"add": 0, "sub": 1, "neg": 2, "mul": 3, "mul_add": 4}


class Elementwise(Launcher):
    """Kernels of pointwise.cu."""

    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """See Backend."""
        if basis.wide:
            self._on_host("pointwise", basis, op, a, b, c, out)
            return
        operands, layout, dense = self._spread(out.shape, a, a if b is None else b, a if c is None else c)
        args = [*operands, out, self._moduli(basis), layout, np.uint64(out.shape[-1])]
        args += [np.uint64(operands[1].shape[-1]), np.uint64(out.size), np.uint32(basis.rows), dense]
        width = ALIGNMENT // out.dtype.itemsize
        if out.shape[-1] % width or not self._aligned(*(x for x in (*operands, out) if x.shape[-1] > 1)):
            width = 1
        expression = f"pointwise<{ctype(basis)}, {_OPS[op]}, {width}>"
        self._entrywise("pointwise.cu", expression, out.size // width, args)

    def permute(self, basis: Basis, x: Array, permutation: Permutation, out: Array) -> None:
        """See Backend."""
        if basis.wide:
            self._on_host("permute", basis, x, permutation, out)
            return
        p = permutation
        args = [x, out, self._moduli(basis), *map(np.uint64, (p.n, p.order, p.multiplier, p.offset))]
        args += [np.uint64(out.size), np.uint32(basis.rows)]
        expression = f"permute<{ctype(basis)}, {cbool(p.evaluated)}>"
        self._entrywise("pointwise.cu", expression, out.size, args)

    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        """See Backend."""
        if basis.wide:
            self._on_host("reduce_integers", basis, x, out)
            return
        args: list[Any] = [x, out, self._moduli(basis), np.uint64(x.shape[-1]), np.uint64(out.shape[-1])]
        args += [np.uint64(out.size), np.uint32(basis.rows), np.uint32(x.dtype.kind == "i")]
        self._entrywise("pointwise.cu", f"reduce_integers<{ctype(basis)}>", out.size, args)
