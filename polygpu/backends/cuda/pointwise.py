"""Residues one by one: sums and products, permutations."""

from __future__ import annotations

from math import prod
from typing import Any

from ...exact.primes import GOLDILOCKS
from ...plans.basis import Basis
from ...plans.permutation import Permutation
from .. import Array, Done, Op
from .launch import (
    ALIGNMENT,
    LAYOUT,
    POINTER,
    U32,
    U64,
    Launch,
    Launcher,
    Recipe,
    Struct,
    cbool,
    ctype,
    entrywise,
    layout_of,
)

_FILE = "pointwise.cu"
_CHUNKS = 4  # of 16 bytes, that a thread takes of a long row
_LOG_NEAR_POWERS = 8  # at most 2^8 powers of each row, beside those of step^(2^8) (cuda/pointwise.cu)
_OPS: dict[Op, int] = {"add": 0, "sub": 1, "neg": 2, "mul": 3, "mul_add": 4}

POINTWISE = Struct(
    _FILE,
    "PointwiseParameters<u64>",
    ("a b c y moduli", POINTER),
    ("n b_length entries", U64),
    ("limbs dense", U32),
    ("layout", LAYOUT),
)
FILL_POWERS = Struct(
    _FILE,
    "FillPowersParameters<u64>",
    ("first step powers moduli", POINTER),
    ("entries row", U64),
    ("log_near limbs", U32),
)
SCALE = Struct(
    _FILE,
    "ScaleParameters<u64>",
    ("x powers y moduli", POINTER),
    ("n entries rows row x_pitch y_pitch run_step", U64),
    ("limbs log_near log_run", U32),
)
PERMUTE = Struct(
    _FILE,
    "PermuteParameters<u64>",
    ("x y moduli", POINTER),
    ("n order multiplier offset entries", U64),
    ("limbs", U32),
)
TURN = Struct(
    _FILE,
    "TurnParameters<u64>",
    ("x exponents y moduli", POINTER),
    ("n order entries step", U64),
    ("rows limbs", U32),
)


def pointwise_launch(basis: Basis, op: Op, width: int, entries: int, **values: Any) -> Launch:
    """An operation on entries; width: neighbouring entries a thread."""
    parameters = POINTWISE(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"pointwise<{ctype(basis)}, {_OPS[op]}, {width}>", entries // width, parameters)


def fill_powers_launch(basis: Basis, entries: int, **values: int) -> Launch:
    """The powers whose products are the factors of each row."""
    parameters = FILL_POWERS(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"fill_powers<{ctype(basis)}>", entries, parameters)


def scale_launch(basis: Basis, width: int, entries: int, *, n: int, **values: int) -> Launch:
    """Products with these powers; width: neighbours of a chunk; long rows: several chunks a thread."""
    chunks = _CHUNKS if n % (256 * width * _CHUNKS) == 0 else 1
    moduli = "ANY"
    if max(basis.moduli).bit_length() <= 62:
        moduli = "SHORT"
    elif set(basis.moduli) == {GOLDILOCKS}:
        moduli = "ONLY_GOLDILOCKS"
    parameters = SCALE(entries=entries, limbs=basis.rows, n=n, **values)
    kernel = f"scale_by_powers<{ctype(basis)}, {width}, {chunks}, {moduli}>"
    return entrywise(_FILE, kernel, entries // (width * chunks), parameters)


def permute_launch(basis: Basis, p: Permutation, width: int, entries: int, **values: int) -> Launch:
    """Another order of each row; width: neighbours of the result a thread."""
    order = {"n": p.n, "order": p.order, "multiplier": p.multiplier, "offset": p.offset}
    parameters = PERMUTE(entries=entries, limbs=basis.rows, **order, **values)
    kernel = f"permute<{ctype(basis)}, {cbool(p.evaluated)}, {width}>"
    return entrywise(_FILE, kernel, entries // width, parameters)


def turn_launch(basis: Basis, less: bool, entries: int, **values: int) -> Launch:
    """Products of items with powers of X; less: minus the items themselves."""
    parameters = TURN(entries=entries, limbs=basis.rows, **values)
    return entrywise(_FILE, f"turn<{ctype(basis)}, {cbool(less)}>", entries, parameters)


def _width(basis: Basis, n: int, aligned: bool) -> int:
    """Neighbouring entries of a row of n that a thread moves at once."""
    width = ALIGNMENT // basis.dtype.itemsize
    return width if aligned and n % width == 0 else 1


class Pointwise(Launcher):
    """Kernels of pointwise.cu."""

    def pointwise(
        self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array
    ) -> Done | None:
        """See Backend."""
        shape, operands = out.shape, tuple(x for x in (a, b, c) if x is not None)
        spread = self._spread(shape, *operands)
        shapes, bits = tuple(x.shape for x in spread), self.address(out)
        for x, own in zip(spread, shapes, strict=True):
            if own[-1] > 1:  # a scalar is read by itself and needs no alignment
                bits |= self.address(x)
        aligned = bits % ALIGNMENT == 0
        prepared = self.run(
            basis.handles,
            (op, aligned, shape, *shapes),
            lambda: self._pointwise_recipe(basis, op, aligned, shape, *shapes),
            *(*spread, out),
        )
        copied = any(x is not y for x, y in zip(spread, operands, strict=True))
        return prepared if aligned and not copied else None

    def _pointwise_recipe(
        self, basis: Basis, op: Op, aligned: bool, shape: tuple[int, ...], *operands: tuple[int, ...]
    ) -> Recipe:
        """A recipe for operands of these shapes and the result; the kernel ignores those that `op` lacks."""
        count, n = len(operands), shape[-1]
        numbers = (0, min(1, count - 1), 2 if count > 2 else 0)
        moduli = self._moduli_of(basis)
        where = layout_of(shape, *(operands[i] for i in numbers)) | dict.fromkeys("abcy", 0)
        where["moduli"] = self.address(moduli.value)
        width = _width(basis, n, aligned)
        length = operands[numbers[1]][-1]
        launch = pointwise_launch(basis, op, width, prod(shape), n=n, b_length=length, **where)
        recipe = Recipe(count + 1, moduli)
        recipe.launch(launch, *numbers, count)
        return recipe

    def scale_by_powers(self, basis: Basis, x: Array, first: Array, step: Array, out: Array) -> None:
        """See Backend."""
        if not out.size:
            return
        n, size = x.shape[-1], x.dtype.itemsize
        # Arrays that are not dense have one row for each item.
        pitches = x_pitch, y_pitch = [n * size if a.flags.c_contiguous else a.strides[0] for a in (x, out)]
        runs = out.ndim > x.ndim
        run, run_step = (out.shape[-1], out.strides[-2]) if runs else (n, n * size)
        places = self.address(x) | self.address(out) | x_pitch | y_pitch | run_step
        width = _width(basis, run, places % ALIGNMENT == 0)
        # Where n is small, about as many powers of step as of step^(2^log_near).
        log_near = min(_LOG_NEAR_POWERS, ((n - 1).bit_length() + 1) >> 1)
        row = (1 << log_near) + -(-n >> log_near)

        def recipe() -> Recipe:
            moduli = self._moduli_of(basis)
            where = {"powers": 0, "moduli": self.address(moduli.value), "row": row, "log_near": log_near}
            made = Recipe(4, moduli)
            powers = made.temporary(first.size * row * size)
            fill = fill_powers_launch(basis, first.size * row, first=0, step=0, **where)
            made.launch(fill, 1, 2, powers)
            log_run = run.bit_length() - 1 if runs else 63
            steps = {"x_pitch": x_pitch // size, "y_pitch": y_pitch // size, "run_step": run_step // size}
            steps |= {"log_run": log_run}
            scale = scale_launch(basis, width, x.size, n=n, rows=first.size, x=0, y=0, **steps, **where)
            made.launch(scale, 0, powers, 3)
            return made

        key = "powers", width, x.shape, first.shape, *pitches, run, run_step
        self.run(basis.handles, key, recipe, x, first, step, out)

    def permute(self, basis: Basis, x: Array, permutation: Permutation, out: Array) -> None:
        """See Backend."""
        width = _width(basis, permutation.n, self.address(out) % ALIGNMENT == 0)

        def recipe() -> Recipe:
            moduli = self._moduli_of(basis)
            where = {"x": 0, "y": 0, "moduli": self.address(moduli.value)}
            made = Recipe(2, moduli)
            made.launch(permute_launch(basis, permutation, width, out.size, **where), 0, 1)
            return made

        self.run(basis.handles, (permutation, width, out.size), recipe, x, out)

    def turn(self, basis: Basis, order: int, x: Array, exponents: Array, out: Array) -> None:
        """See Backend."""
        self.turn_items(basis, order, x, self.from_host(exponents.reshape(-1)), out)

    def turn_items(
        self, basis: Basis, order: int, x: Array, exponents: Array, out: Array, less: bool = False
    ) -> None:
        """X^e x, or X^e x - x (less), for each item; exponents: (items,) on the device, with any stride."""
        if not out.size:
            return
        n, step = x.shape[-1], exponents.strides[0] // exponents.dtype.itemsize
        rows = x.size // (exponents.size * n)

        def recipe() -> Recipe:
            moduli = self._moduli_of(basis)
            sizes = {"n": n, "order": order, "step": step, "rows": rows}
            where = {"x": 0, "exponents": 0, "y": 0, "moduli": self.address(moduli.value)}
            made = Recipe(3, moduli)
            made.launch(turn_launch(basis, less, x.size, **sizes, **where), 0, 1, 2)
            return made

        self.run(basis.handles, ("turn", less, order, x.shape, rows, step), recipe, x, exponents, out)
