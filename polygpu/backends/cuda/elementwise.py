"""Residues one by one: sums and products, permutations, residues of integers."""

from __future__ import annotations

from typing import Any

from ...plans.basis import Basis
from ...plans.permutation import Permutation
from .. import Array, Op
from .launch import (
    ALIGNMENT,
    LAYOUT,
    MAX_AXES,
    POINTER,
    U32,
    U64,
    Launch,
    Launcher,
    Record,
    Struct,
    cbool,
    ctype,
    entrywise,
)

_FILE = "pointwise.cu"
_OPS: dict[Op, int] = {"add": 0, "sub": 1, "neg": 2, "mul": 3, "mul_add": 4}

POINTWISE = Struct(
    _FILE,
    "PointwiseParameters<u64>",
    ("a b c y moduli", POINTER),
    ("n b_length entries", U64),
    ("limbs dense", U32),
    ("layout", LAYOUT),
)
PERMUTE = Struct(
    _FILE,
    "PermuteParameters<u64>",
    ("x y moduli", POINTER),
    ("n order multiplier offset entries", U64),
    ("limbs", U32),
)
INTEGERS = Struct(
    _FILE,
    "IntegersParameters<u64>",
    ("x y moduli", POINTER),
    ("count n entries", U64),
    ("limbs is_signed", U32),
)


def pointwise_launch(basis: Basis, op: Op, width: int, entries: int, **values: Any) -> Launch:
    """An operation on entries, so many neighbours a thread."""
    parameters = POINTWISE(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"pointwise<{ctype(basis)}, {_OPS[op]}, {width}>", entries // width, parameters)


def permute_launch(basis: Basis, p: Permutation, entries: int, **values: int) -> Launch:
    """Another order of each row."""
    order = {"n": p.n, "order": p.order, "multiplier": p.multiplier, "offset": p.offset}
    parameters = PERMUTE(entries=entries, limbs=basis.rows, **order, **values)
    return entrywise(_FILE, f"permute<{ctype(basis)}, {cbool(p.evaluated)}>", entries, parameters)


def integers_launch(basis: Basis, entries: int, **values: int) -> Launch:
    """Residues of machine integers."""
    parameters = INTEGERS(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"reduce_integers<{ctype(basis)}>", entries, parameters)


class Elementwise(Launcher):
    """Kernels of pointwise.cu."""

    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """See Backend."""
        operands = [a, a if b is None else b, a if c is None else c]
        if out.ndim - 2 > MAX_AXES:
            operands = [self._broadcast(x, out.shape) for x in operands]
        addresses = [self.address(x) for x in (*operands, out)]
        n, length = out.shape[-1], operands[1].shape[-1]
        width = ALIGNMENT // out.dtype.itemsize
        moved = addresses if length > 1 else (addresses[0], *addresses[2:])  # a scalar is read alone
        if n % width or any(at % ALIGNMENT for at in moved):
            width = 1

        def record() -> Record:
            moduli, (_, where) = self._moduli_of(basis), self._spread(out.shape, *operands)
            where |= dict.fromkeys("abcy", 0) | {"moduli": self.address(moduli.value)}
            launch = pointwise_launch(basis, op, width, out.size, n=n, b_length=length, **where)
            return Record((launch,), (moduli,))

        key = (op, width, out.shape, *(x.shape for x in operands))
        ready = self._recorded(basis.handles, key, record)
        self._use(ready.used)
        self.launch(ready.launches[0], *addresses)

    def permute(self, basis: Basis, x: Array, permutation: Permutation, out: Array) -> None:
        """See Backend."""
        where = {"x": self.address(x), "y": self.address(out), "moduli": self._moduli(basis)}
        self.launch(permute_launch(basis, permutation, out.size, **where))

    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        """See Backend."""
        where = {"x": self.address(x), "y": self.address(out), "moduli": self._moduli(basis)}
        sizes = {"count": x.shape[-1], "n": out.shape[-1], "is_signed": x.dtype.kind == "i"}
        self.launch(integers_launch(basis, out.size, **where, **sizes))
