"""Compiles the CUDA kernels without a GPU, by NVRTC through ctypes, and reads what ptxas says of them.

`pip install nvidia-cuda-nvrtc` is all it needs: no CuPy, no driver. What is compiled is what the launch code
of polygpu._backends.cuda asks for on a card of each architecture: its launches are pure functions of sizes.

    python tests/nvrtc.py                  a representative part for 9.0, and what differs most for the others
    python tests/nvrtc.py --arch 80        the part for one architecture: some minutes
    python tests/nvrtc.py --arch 90 --all  every instantiation, for one: some minutes too

Exits with 1 where a kernel does not compile, does not fit a multiprocessor or spills more than it is allowed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import math
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from polygpu._backends import cuda_sources
from polygpu._backends.cuda import (
    copies,
    fft,
    integers,
    lattice,
    matmul,
    multiply,
    pointwise,
    rns,
    sampling,
    torus,
    transform,
)
from polygpu._backends.cuda.launch import ALIGNMENT, Launch, Struct
from polygpu._backends.cuda.matmul_tiles import bytes_tile, has_digits, points_tile, staged_tile
from polygpu._backends.cuda.tiles import Rows, fft_tile, split_passes
from polygpu._backends.cuda.words import BY_SHIFTS, COMPLEX, WORDS, Card, Word, word_of
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans.basis import Basis, basis_of
from polygpu._core.plans.gadget import Gadget
from polygpu._core.plans.ntt import NttPlan, PrimeTables
from polygpu._core.plans.product import AuxiliaryPlan, FftProductPlan, plan_fft_sums
from polygpu._core.plans.rns import Conversion, Residues
from polygpu._core.plans.sampling import TERNARY, binomial, gaussian, tuniform
from polygpu._core.plans.torus import plan_torus
from polygpu._core.quotient import Quotient

# A card of each architecture: what one block may hold in shared memory, the L2 cache, the multiprocessors.
CARDS = {
    75: Card((7, 5), 64 << 10, 4 << 20, 40),
    80: Card((8, 0), 163 << 10, 40 << 20, 108),
    86: Card((8, 6), 99 << 10, 6 << 20, 82),
    89: Card((8, 9), 99 << 10, 72 << 20, 128),
    90: Card((9, 0), 227 << 10, 50 << 20, 132),
    100: Card((10, 0), 227 << 10, 126 << 20, 148),
    120: Card((12, 0), 99 << 10, 96 << 20, 170),
}

# One modulus for each word, by its bits: launches depend on sizes only.


def last_below(bits: int) -> int:
    """Return the largest modulus of `bits` bits."""
    return (1 << bits) - 1


MODULI = tuple(map(last_below, sorted({(word.moduli[1] - 2).bit_length() for word in WORDS})))
SMALL, LARGE = (1 << 32) - 1, (1 << 64) - 1  # for kernels that depend on the type of residues alone
# log2 of the points, and the coefficients of a leaf. ALL has every transform. PART has one of each kind of
# tile: leaves (7), short ones of 4 and 8 values a thread (2, 5), few rows and many (9), 32 values a thread
# (13, 14), few rows in two passes (12 to 18), and one, two and three passes.
ALL = tuple((size, base) for size in range(1, 27) for base in (1, 2, 4, 8))
WHOLE = 90  # without options, the other architectures compile the ends of PART
PART = ((7, 2), *((size, 1) for size in (2, 5, 9, 12, 13, 14, 15, 18, 20, 25)))


# ---- which kernels ----


@dataclass(frozen=True)
class Kernel:
    """An instance of a kernel template, and the block it is launched with."""

    file: str
    expression: str
    threads: int
    shared: int

    @property
    def template(self) -> str:
        """Its name without arguments."""
        return self.expression.partition("<")[0]

    @property
    def word(self) -> str:
        """The first template argument: a word of cuda/word.cuh, a type or a number; empty without one."""
        found = re.match(r"\w+<(\w+(<(\w+<[^>]*>)?[^>]*>)?)", self.expression)
        return found[1] if found else ""


@cache
def sources(suffix: str) -> dict[str, str]:
    """The CUDA sources of a suffix by name, as they were when first asked for."""
    return {path.name: path.read_text() for path in sorted(Path(cuda_sources()).glob(f"*{suffix}"))}


def blank(struct: Struct, named: str = "") -> dict[str, Any]:
    """Zeros for the fields of a struct, without those that a launch fills itself."""
    fields = struct.dtype.fields or {}
    return {
        name: bytes(dtype.itemsize) if dtype.kind == "V" else 0
        for name, (dtype, *_) in fields.items()
        if name not in named.split()
    }


NO_TABLES = transform.packed_tables([])


def entrywise_launches() -> Iterator[Launch]:
    """Launches of kernels that depend on the type of residues alone."""
    for modulus in (SMALL, LARGE):
        basis = basis_of((modulus,))
        values = blank(pointwise.POINTWISE, "entries limbs")
        for op, width in product(
            ("add", "sub", "neg", "mul", "mul_add"), (1, ALIGNMENT // basis.dtype.itemsize)
        ):
            yield pointwise.pointwise_launch(basis, op, width, 64, **values)  # type: ignore[arg-type]
        kinds = (basis,)
        if basis.dtype == np.uint64:
            kinds = basis, basis_of((last_below(62),)), basis_of((GOLDILOCKS,))
        widths = 1, ALIGNMENT // basis.dtype.itemsize
        values = blank(pointwise.COMBINE, "n entries limbs terms")
        for moduli, terms, width, n in product(kinds, (2, 4, 8), widths, (64, 1 << 14)):
            yield pointwise.combine_launch(moduli, terms, width, n, n=n, **values)
        values = blank(pointwise.TENSOR, "entries limbs component") | {"component": bytes(24)}
        for moduli, width, is_square in product(kinds, widths, (False, True)):
            yield pointwise.tensor_launch(moduli, is_square, width, 64, **values)
        values = blank(pointwise.REORDER, "entries limbs")
        for kernel, flag, width in product(
            ("permute", "mul_monomial"), (False, True), (1, ALIGNMENT // basis.dtype.itemsize)
        ):
            yield pointwise.reorder_launch(basis, kernel, flag, width, 64, **values)
        yield pointwise.take_launch(basis.dtype.itemsize, 64, **blank(pointwise.TAKE, "entries"))
        values = blank(pointwise.FILL_POWERS, "entries limbs")
        yield pointwise.fill_powers_launch(basis, 64, **values)
        values = blank(pointwise.SCALE, "n entries limbs")
        for moduli, n in product(kinds, (64, 1 << 14)):
            for width in (1, ALIGNMENT // basis.dtype.itemsize):
                yield pointwise.scale_launch(moduli, width, n, n=n, **values)
        gadget = Gadget(basis, None, 4, 2)
        named = "n entries digits"
        yield lattice.decompose_launch(gadget, 64, 64, **blank(lattice.DECOMPOSE, named))
        values = blank(integers.INTEGERS, "entries limbs")
        for source in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
            yield integers.integers_launch(basis, np.dtype(source), 64, **values)
        for words in (1, 2, 12):  # squares of more words spill a little
            values = blank(integers.OUT, "entries")
            for to in ("words", "int64", "float64"):
                yield integers.out_launch(basis, words, to, 64, **values)
            for p in (1, 2, math.inf):
                tables = bytes(integers.TABLES.dtype.itemsize)
                yield from integers.norm_launches(basis, words, p, (1, 64), tables, words)[:2]
        quotient = Quotient("negacyclic", 64)
        leaves = NttPlan(basis, quotient, 2, ())
        yield multiply.leaves_launch(leaves, 64, **blank(multiply.LEAVES, "n entries limbs leaf_size"))
        auxiliary = NttPlan(basis_of((last_below(50),)), quotient, 1, ())
        plan, filled = (
            AuxiliaryPlan(basis, quotient, auxiliary),
            "n length units limbs count",
        )
        yield multiply.spread_launch(plan, 1, **blank(multiply.SPREAD, filled))
        yield multiply.compose_launch(plan, 1, **blank(multiply.COMPOSE, f"{filled} quotient"))


def copy_launches() -> Iterator[Launch]:
    """Copies of entries of every size, by an index too, and conversions between types of integers."""
    residues = ("u32", "u64")
    narrow = ("signed char", "unsigned char", "short", "unsigned short", "i32", "i64")
    pairs = [(unit, unit) for unit in copies.UNITS.values()]
    pairs += [("u32", "u64"), ("u64", "u32"), *product(narrow, residues)]
    for source, target in pairs:
        yield copies.copy_launch([(64, 1, 1)], source, target, x=0, y=0)
    for unit, scatters in product(copies.UNITS, (False, True)):
        yield copies.items_launch(64, 1, unit, scatters, x=0, index=0, y=0)


def gadget_launches(card: Card) -> Iterator[Launch]:
    """Products with gadget ciphertexts, rotations, and sums over digits, of each word."""
    for size in (4, 8):
        values = blank(lattice.ROTATED, "n items") | {"n": 64, "items": 1}
        for word in {word_of(q, size, card) for q in MODULI if size == 8 or q >> 32 == 0}:
            for results, wide in product((0, 1, 2, 4, 8) if word != BY_SHIFTS else (), (False, True)):
                yield lattice.rotated_launch(word, size, 1, 1, results, wide, **values)
    for q, dtype in product((SMALL, LARGE), (np.int8, np.int16, np.int64)):
        digits = Gadget(basis_of((q,)), None, 4, 2)
        values = blank(lattice.SIGNED_DIGITS, "n stride entries digits")
        yield lattice.signed_digits_launch(digits, 64, 65, 64, np.dtype(dtype), **values)
    values = blank(lattice.GADGET, "forward inverse digits order")
    words = {word_of(q, size, card): q for q in MODULI for size in (4 if q >> 32 == 0 else 8,)}
    words[_shifts("NEGACYCLIC")] = GOLDILOCKS
    sizes = (*product(words.items(), ((8, 1), (10, 2), (11, 2), (12, 2), (11, 3))),)
    trinomial = (
        ((_trinomial(word), q), (10, 2))
        for word, q in words.items()
        if not word.name.startswith(BY_SHIFTS.name)
    )
    for (word, q), (log_n, components) in (*sizes, *trinomial):
        transform = NttPlan(basis_of((q,)), Quotient("negacyclic", 1 << log_n), 1, ())
        gadget = Gadget(transform.basis, transform, 4, 2)
        for items, rotates in product((1, 1 << 12), (False, True)):
            tile = lattice.gadget_tile(1 << log_n, components, items, word, card)
            if tile:
                yield lattice.gadget_launch(gadget, word, tile, components, rotates, items, **values)


def torus_launches(card: Card) -> Iterator[Launch]:
    """Blind rotations in doubles: of few ciphertexts and of many, of each size; narrow words of one size."""
    values = blank(torus.TORUS, "first last items bits offset")
    of_keys = blank(torus.COMBINE, "first items") | {"count": 1, "k": 2, "levels": 1}
    sizes = ((2, 1), (2, 2), (2, 3), (3, 1), (5, 1), (5, 3))
    for log_n, (k, levels), items in product(range(9, 13), sizes, (1, 1 << 12)):
        for bits, q in ((9, 1 << 64), (7, 1 << 32))[: 2 if (k, levels) == sizes[0] else 1]:
            plan = plan_torus(Quotient("negacyclic", 1 << log_n), q, k * levels, bits, levels)
            made = torus.rotation_of(plan, levels, items, card)
            if made:
                yield torus.rotation_launch(plan, made, items, **values)
            own = torus.rotation_of(plan, levels, items, card, is_own=True)
            if own and sizes.index((k, levels)) < 2:
                yield torus.rotation_launch(plan, own, items, **values)
                combined = torus.combination_of(plan, items, card)
                yield torus.combination_launch(plan, combined, items, **of_keys)


def convert_launches(card: Card) -> Iterator[Launch]:
    """Conversions from few rows and from many, of narrow and wide words: in every way, and scaled."""
    for bits, rows in product((30, 32, 50, 60, 62, 64), (1, 3, 8, 24)):
        moduli = tuple((1 << bits) - 1 - 2 * i for i in range(rows + 1))  # launches depend on sizes only
        source, target = Residues(moduli[:-1], tuple(range(rows)), rows), Residues(moduli[-1:], (0,), 1)
        for rounding, exact, scaled in product(("nearest", "floor"), (True, False), (False, True)):
            conversion = Conversion(source, target, (1,), rounding, exact)
            if scaled:
                conversion = replace(conversion, divisors=tuple(range(rows)))
            yield from _convert_launches(conversion, bits, card)
        added = replace(
            conversion, accumulate=True, own=target, own_factors=(1,), transform=None, divisors=()
        )
        yield from _convert_launches(added, bits, card)
        nothing = Residues((), (), 0)
        yield from _convert_launches(replace(added, source=nothing), bits, card)


def listed_launches(card: Card) -> Iterator[Launch]:
    """Transforms of listed rows, sums with others and over digits: of each word, of few rows and of many."""
    sizes = [*product(("negacyclic",), (10, 13, 16, 17), (1, 99)), ("trinomial", 13, 1)]
    for modulus, (kind, log_n, count) in product(MODULI, sizes):
        tree = Quotient(kind, 1 << log_n)
        tables = PrimeTables(modulus, 1, tree, np.dtype(np.uint64), tree.degree)
        plan = NttPlan(basis_of((modulus,)), tree, 1, (tables,))
        groups = rns.listed((plan,), 1 << log_n, count, card)
        if not groups:
            continue
        ((made, _),) = groups
        start, finish = (blank(x, "offset starts_next") for x in (rns.START, rns.FINISH))
        yield made.pass_launch(made.columns, "start_rows", rns.START, (1, 1), card, **start)
        for own in ("false", "true"):
            yield made.pass_launch(made.rows, "finish_rows", rns.FINISH, (1, 1), card, own, **finish)
        values = blank(lattice.DIGIT_ROWS, "offset inverse_offset starts_next n")
        for adds in (False, True):
            yield lattice.digit_rows_launch(made, 1, 1, 1 << log_n, adds, card, **values)
        # The sums' way to coefficients, among rows of other limbs.
        word = made.word.grouped(plan.basis.dtype.itemsize)
        among = Rows(count, (0,), 2, log_n, word, 0, NO_TABLES)
        columns = transform.transform_recipe(among, (made.columns, made.rows), (0, 0), "inverse", card, 1)
        yield from (step.launch for step in columns.steps)


def _convert_launches(conversion: Conversion, bits: int, card: Card) -> Iterator[Launch]:
    """With one coefficient a thread and with two."""
    conversion.__dict__["inverses"] = (1,) * len(conversion.source.moduli)  # they are not coprime
    types = ("u32",) * 3 if bits <= 32 else ("u64",) * 3
    values = blank(rns.CONVERT)
    addresses = {name: values[name] for name in ("source", "target", "table", "x", "own", "out")}
    for aligned in (True, False):
        yield rns.convert_launch(conversion, types, 1, 64, aligned, card, **addresses)


def sampling_launches() -> Iterator[Launch]:
    """Every shape of small integers, with every number of bytes."""
    samplers = [TERNARY, *map(binomial, (4, 8, 16, 32)), *map(tuniform, (6, 14, 30, 62))]
    samplers += [gaussian(Fraction(sigma)) for sigma in (3, 100, 10000)]
    yield sampling.keystream_launch(64, **blank(sampling.KEYS, "blocks"))
    for modulus in (SMALL, LARGE):
        basis = basis_of((modulus,))
        for whole in (False, True):
            yield sampling.uniform_launch(basis, whole, 64, **blank(sampling.UNIFORM, "blocks limbs"))
        filled = "blocks bound weights limbs parameter count"
        for sampler in samplers:
            yield sampling.small_launch(basis, sampler, 64, **blank(sampling.SMALL, filled))
        yield sampling.sparse_launch(basis, 1, **blank(sampling.SPARSE, "limbs"))


def _shifts(quotient: str) -> Word:
    """The word of a root of unity modulo the Goldilocks prime."""
    return replace(BY_SHIFTS, name=f"{BY_SHIFTS.name}<5, {quotient}>")


def _trinomial(word: Word) -> Word:
    """The word in the tree of X^n - X^(n/2) + 1."""
    return replace(word, name=f"Trinomial<{word.name}>")


def transform_launches(card: Card, transforms: tuple[tuple[int, int], ...]) -> Iterator[Launch]:
    """Yield launches for each word that a card uses: few rows, as many as fill it, enough for a flow."""
    words = {word_of(q, size, card): size for q in MODULI for size in (4 if q >> 32 == 0 else 8,)}
    words |= {word.grouped(8): 8 for word in words if word.name != "Strict32"}
    trinomial = {_trinomial(w): size for w, size in words.items() if not w.among and w != BY_SHIFTS}
    few = {word for word in (*words, *trinomial) if word.among} | {_shifts("CYCLIC"), *trinomial}
    words |= trinomial
    words |= {_shifts("NEGACYCLIC"): 8, _shifts("CYCLIC"): 8}
    # A grouped word differs in addresses alone, X^n - 1 and X^n - X^(n/2) + 1 only at node 1: a third of the
    # transforms is enough.
    pairs = [(word, pair) for word in words for pair in transforms[:: 3 if word in few else 1]]
    for word, (size, base) in pairs:
        word_bytes = words[word]
        for count in (1, (card.multiprocessors << 12 >> size) + 1, 1 << 20):
            passes = transform.passes_over(count, 1 << size, base, word_bytes, card)
            rows = Rows(count, (0,), 1, size + base.bit_length() - 1, word, 0, NO_TABLES)
            for direction in ("forward", "inverse"):
                recipe = transform.transform_recipe(rows, passes, (0,) * 9, direction, card)
                yield from (step.launch for step in recipe.steps)
            for passed in passes:
                values = blank(transform.FILL, "log_blocks log_length log_values")
                yield transform.fill_launch(word, passed, 1, **values)
            for passed in multiply.product_passes(1 << size, base, word_bytes, card, count):
                values = blank(multiply.PRODUCT, "pass inverse_offset ahead tables")
                yield multiply.product_launch(rows, passed, (0, 0), card, **values)
    for word in (word for word in words if not word.among):
        for size, base in ((5, 64), (9, 64), (12, 1)):  # parts of a transform
            passes = transform.passes_over(None, 1 << size, base, words[word], card)
            passes = tuple(replace(p, log_blocks=9 + p.log_blocks) for p in passes)
            rows = Rows(1, (0,), 1, 9 + size + base.bit_length() - 1, word, 0, NO_TABLES)
            for direction, is_open in product(("forward", "inverse"), {base > 1, False}):
                pitch = base if is_open and direction == "forward" else 0
                ends = transform.Ends(True, is_open, pitch)
                recipe = transform.transform_recipe(rows, passes, (0,) * 9, direction, card, ends=ends)
                yield from (step.launch for step in recipe.steps)


def fft_product_launches(card: Card, transforms: tuple[tuple[int, int], ...]) -> Iterator[Launch]:
    """Products by FFT: linear ones, which are folded, and negacyclic ones; in one kernel, and in passes."""
    for modulus, digits, (size, base) in product((SMALL, LARGE), (1, 2, 3, 5), transforms):
        if base > 1 or size < 4:
            continue
        for degree in (1 << size, 2 << size):
            quotient = Quotient("negacyclic", degree)
            plan = FftProductPlan(basis_of((modulus,)), quotient, 2 << size, digits, 0)
            tile = fft_tile(plan, card)
            passes = split_passes(plan.points, 1, COMPLEX.bytes, card)
            for passed in passes if tile is None else (tile, *passes):
                values = blank(multiply.ARRANGE, "log_blocks log_length log_values")
                yield multiply.arrange_launch(passed, **values)
            for count, direction in product((1, 1 << 16), ("forward", "inverse")):
                rows = Rows(count, (0,), 1, size, COMPLEX, 0, NO_TABLES)
                recipe = transform.transform_recipe(rows, passes, (0,) * 9, direction, card)
                yield from (step.launch for step in recipe.steps)
            sizes = "degree points units limbs count width sums quotient"
            yield multiply.fft_split_launch(plan, 1, digits, **blank(multiply.FFT_SPLIT, sizes))
            yield multiply.fft_compose_launch(plan, 1, **blank(multiply.FFT_COMPOSE, sizes))
            if modulus == LARGE and digits == 1 and plan.points == degree // 2:
                for q in (1 << 32, 1 << 64):
                    rounded = plan_torus(quotient, q, 2, 7, 1)
                    named = blank(multiply.FFT_ROUND, "degree points units")
                    yield multiply.fft_round_launch(rounded, 1, **named)
            sums, named = (
                plan_fft_sums(quotient, modulus, 4, 4),
                "points entries terms columns",
            )
            assert sums is not None
            yield multiply.fft_matrix_launch(sums, 1, 2, **blank(multiply.FFT_MATRIX, named))
            if tile:
                values = blank(multiply.FFT_PRODUCT, "units limbs degree width sums quotient")
                yield multiply.fft_product_launch(plan, tile, 1, **values)
            else:
                yield multiply.fft_multiply_launch(plan, 1, **blank(multiply.FFT_MULTIPLY, sizes))


def fft_launches() -> Iterator[Launch]:
    """Complex transforms of rows, and convolutions."""
    for name, log_n in product((np.complex64, np.complex128), range(1, 13)):
        dtype: np.dtype[Any] = np.dtype(name)
        for inverse in (False, True):
            yield fft.fft_launch(1 << log_n, dtype, 1, inverse, **blank(fft.FFT, "rows"))
        if log_n == 6:
            yield fft.convolve_launch(64, dtype, 1, **blank(fft.CONVOLVE, "rows"))


def matmul_launches(card: Card) -> Iterator[Launch]:
    """Products of matrices modulo one modulus for each kind of sum."""
    sizes, batch = (1, 2, 4, 8), 1 << 16
    for modulus in map(last_below, (31, 32, 60, 64)):
        basis = basis_of((modulus,))
        size, chunk = basis.dtype.itemsize, ALIGNMENT // basis.dtype.itemsize
        names = "entries log_lanes log_columns log_rows"
        for rows, columns, points in (*product(sizes, sizes, (63, 64)), (16, 16, 64)):
            tile = points_tile(basis, batch, rows, columns, points, points == 64, card)
            yield matmul.points_launch(basis, tile, False, **blank(matmul.POINTS, names))
            staged = points == 64 and staged_tile(basis, batch, rows, columns, 3, points, card)
            if staged:
                yield matmul.staged_launch(basis, staged, **blank(matmul.STAGED, "entries"))
        if modulus > 1 << 62:
            continue
        for rows, columns in product(sizes, (63, 64)):
            tile = points_tile(basis, batch, rows, 1, columns, columns == 64, card)
            yield matmul.points_launch(basis, tile, True, **blank(matmul.POINTS, names))
        values = blank(matmul.INTEGER, "rows columns")
        for side in (16, 32, 64, 128):
            yield matmul.integer_launch(basis, batch, side, side, card, **values)
        values = blank(matmul.NARROW, "rows columns length log_lanes")
        for columns, width in product(sizes, (1, chunk)):
            yield matmul.narrow_launch(basis, 1, 64, columns, 64, width, card, **values)
        yield from _tensor_launches(basis, has_digits(modulus, size), card)
    for basis, size in product((basis_of((SMALL,)), basis_of((LARGE,))), (1, 2)):
        yield matmul.cut_launch(basis, size, 64, 128, **blank(matmul.CUT, "n pitch"))
        yield matmul.sum_rows_launch(basis, 64, 64, 64, **blank(matmul.SUM_ROWS, "rows n part"))
        values = blank(matmul.BYTES, "m n k part")
        for m, n, turned in product((128, 1 << 16), (1, 8, 16, 32, 64), (0, size)):
            tile = bytes_tile(basis.dtype.itemsize, m, n, turned > 0, card)
            for aligned in (4, 8, 16) if n == 1 else (16,):
                yield matmul.bytes_launch(basis, tile, m, n, 128, 128, aligned, turned, **values)


def _tensor_launches(basis: Basis, digits: bool, card: Card) -> Iterator[Launch]:
    """Both blocks; copies of 4, 8 and 16 bytes; more than 65535 blocks along each axis."""
    values = blank(matmul.DIGITS, "m n")
    shapes = ((1, 64, 64), (1, 65, 64), (1 << 17, 1, 1), (1, 1 << 24, 1), (1, 1, 1 << 24))
    for (batch, m, n), aligned in product(shapes if digits else (), (4, 8, 16)):
        if aligned >= basis.dtype.itemsize:
            yield matmul.digits_launch(basis, batch, m, n, aligned, card, **values)
    for transposed in (False, True):
        values = blank(matmul.SPLIT, "matrices rows depth")
        yield matmul.split_launch(basis, 1, 64, 64, transposed, **values)
    yield matmul.gemm_compose_launch(basis, 64, 64, **blank(matmul.COMPOSE, "rows pitch"))


@cache
@patch("polygpu._core.memory._available_memory", lambda: 1 << 62)  # plans are made here, no tables
def kernels_of(card: Card, transforms: tuple[tuple[int, int], ...] = ALL) -> tuple[Kernel, ...]:
    """Every kernel that a card is asked to run for transforms (size, base) of 2^size points; each once."""
    # One that is launched with several sizes of shared memory counts with the largest.
    largest: dict[str, Kernel] = {}
    for launch in (
        *entrywise_launches(),
        *copy_launches(),
        *gadget_launches(card),
        *torus_launches(card),
        *convert_launches(card),
        *listed_launches(card),
        *sampling_launches(),
        *transform_launches(card, transforms),
        *fft_product_launches(card, transforms),
        *fft_launches(),
        *matmul_launches(card),
    ):
        assert launch.grid[1] <= 65535, launch
        known = largest.get(launch.kernel)
        if known is None or known.shared < launch.shared:
            largest[launch.kernel] = Kernel(launch.file, launch.kernel, launch.threads, launch.shared)
    return tuple(largest.values())


def ends(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The first and the last kernel of each template and word: the launches come by size."""
    groups = defaultdict(list)
    for kernel in kernels:
        groups[kernel.template, kernel.word].append(kernel)
    return tuple(kernel for group in groups.values() for kernel in dict.fromkeys((group[0], group[-1])))


# ---- the compiler ----


@dataclass(frozen=True)
class Usage:
    """What ptxas reports of a kernel."""

    registers: int
    spilled: int  # bytes of spill stores and loads
    stack: int


def library_path() -> Path | None:
    """Where a wheel has put NVRTC: nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12; None if nowhere."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    found = [p for root in roots or () for p in sorted(Path(root).glob("*/lib/libnvrtc.so.*"))]
    return found[0] if found else None


class Compiler:
    """One NVRTC, loaded."""

    def __init__(self) -> None:
        path = library_path()
        if path is None:
            raise RuntimeError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
        self._library = ctypes.CDLL(str(path))

    @cached_property
    def version(self) -> tuple[int, int]:
        """Of CUDA."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, text)
        return text.value.decode(errors="replace")

    def compile(self, file: str, expressions: Sequence[str], arch: int) -> dict[str, Usage]:
        """Compile instances of the templates of one file of cuda/ to machine code."""
        return self.compile_code(file, sources(".cu")[file], sources(".cuh"), expressions, arch)

    def compile_code(
        self,
        file: str,
        code: str,
        headers: Mapping[str, str],
        expressions: Sequence[str],
        arch: int,
        folders: Sequence[Path] = (),
    ) -> dict[str, Usage]:
        """Compile instances of the templates of a source to machine code; `folders` have further headers.

        Raises:
            RuntimeError: with the compiler's text.
        """
        library, program = self._library, ctypes.c_void_p()

        def check(status: int) -> None:
            if status:
                raise RuntimeError(f"{file}, sm_{arch}: {self._text(program, 'ProgramLog') or status}")

        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        check(
            library.nvrtcCreateProgram(
                ctypes.byref(program), code.encode(), file.encode(), len(headers), texts, names
            )
        )
        try:
            for expression in expressions:
                check(library.nvrtcAddNameExpression(program, expression.encode()))
            options = [f"-arch=sm_{arch}", "-std=c++17", "--ptxas-options=-v"]
            options += [f"-I{folder}" for folder in folders]
            encoded = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            check(library.nvrtcCompileProgram(program, len(options), encoded))
            usages = _read_log(self._text(program, "ProgramLog"))
            lowered = {}
            for expression in expressions:
                name = ctypes.c_char_p()
                check(library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name)))
                lowered[expression] = (name.value or b"").decode()
            return {expression: usages[name] for expression, name in lowered.items()}
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


def _read_log(log: str) -> dict[str, Usage]:
    """ptxas's report, by mangled name."""
    usages = {}
    for part in log.split("Compiling entry function '")[1:]:
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if frame is None or registers is None:
            raise RuntimeError(f"ptxas's report is not understood:\n{part}")
        stack, stores, loads = map(int, frame.groups())
        usages[part.partition("'")[0]] = Usage(int(registers[1]), stores + loads, stack)
    return usages


# ---- what is allowed ----

REGISTERS = 65536  # of a multiprocessor

# Bytes that a thread may spill, by kernel and word; all others spill nothing. The reason is always the same:
# launch bounds, or for rotated_sums the compiler, ask for one block of threads more on a multiprocessor than
# registers alone would allow. This holds from version SPILLED_BY of NVRTC on. Older versions allocate
# registers differently and are not judged.
SPILLED_BY = (13, 5)
SPILLED = {
    ("norm_parts", "u32"): 48,  # long integers, on architectures 8.0, 10.0 and 12.0
    ("norm_parts", "u64"): 48,
    ("norm_rows", "25"): 144,
    ("convert", "Sum30"): 64,  # on architecture 12.0
    ("convert", "Sum32"): 64,
    ("digit_rows", "Strict64"): 16,  # on architecture 12.0
    ("fft_product", "u32"): 64,
    ("fft_product", "u64"): 64,
    ("gadget_product", "Float64"): 160,  # twiddles that all steps share
    ("gadget_product", "Lazy32"): 128,
    ("gadget_product", "Strict32"): 416,
    ("gadget_product", "Strict64"): 32,
    ("gadget_product", "Tight32"): 144,
    ("gemm_bytes", "u32"): 432,  # on architectures 10.0 and 12.0; 64 before 9.0
    ("gemm_bytes", "u64"): 288,
    ("gemm_compose", "u64"): 32,
    ("gemm_digits", "u32"): 416,
    ("gemm_digits", "u64"): 432,
    ("matmul_narrow", "Sum31"): 32,
    ("matmul_narrow", "Sum32"): 80,
    ("matmul_narrow", "Sum62"): 16,
    ("matmul_points", "Sum31"): 96,
    ("matmul_points", "Sum32"): 16,
    ("matmul_points", "Sum62"): 32,
    ("matmul_points", "Sum64"): 16,
    ("matmul_points_staged", "Sum31"): 128,
    ("ntt_forward", "Goldilocks<5, CYCLIC>"): 48,
    ("ntt_forward", "Goldilocks<5, NEGACYCLIC>"): 32,
    ("ntt_forward", "Grouped<Lazy60, u64>"): 96,
    ("ntt_forward", "Grouped<Lazy64, u64>"): 176,  # tiles of 2^14 on architecture 10.0; elsewhere 80
    ("ntt_forward", "Grouped<Strict64, u64>"): 32,
    ("ntt_forward", "Lazy32"): 16,
    ("ntt_forward", "Lazy60"): 96,
    ("ntt_forward", "Lazy64"): 128,
    ("ntt_forward", "Strict64"): 16,
    ("ntt_forward", "Tight32"): 32,
    ("ntt_forward_flow", "Complex128"): 16,
    ("ntt_forward_flow", "Grouped<Lazy60, u64>"): 32,
    ("ntt_forward_flow", "Grouped<Lazy64, u64>"): 32,
    ("ntt_forward_flow", "Lazy32"): 64,
    ("ntt_forward_flow", "Lazy60"): 64,
    ("ntt_forward_flow", "Lazy64"): 128,
    ("ntt_forward_flow", "Tight32"): 32,
    ("ntt_forward_flow", "Trinomial<Tight32>"): 176,  # on architectures 8.0, 8.9 and 12.0
    ("ntt_inverse", "Complex128"): 16,
    ("ntt_inverse", "Goldilocks<5, CYCLIC>"): 32,
    ("ntt_inverse", "Goldilocks<5, NEGACYCLIC>"): 32,
    ("ntt_inverse", "Grouped<Lazy32, u32>"): 16,
    ("ntt_inverse", "Grouped<Lazy32, u64>"): 64,
    ("ntt_inverse", "Grouped<Lazy60, u64>"): 176,
    ("ntt_inverse", "Grouped<Lazy64, u64>"): 48,
    ("ntt_inverse", "Lazy32"): 16,
    ("ntt_inverse", "Lazy60"): 256,
    ("ntt_inverse", "Lazy64"): 80,
    ("ntt_inverse", "Tight32"): 144,
    ("ntt_inverse_flow", "Complex128"): 16,
    ("ntt_inverse_flow", "Goldilocks<5, CYCLIC>"): 16,
    ("ntt_inverse_flow", "Goldilocks<5, NEGACYCLIC>"): 48,
    ("ntt_inverse_flow", "Grouped<Lazy32, u64>"): 64,
    ("ntt_inverse_flow", "Grouped<Lazy60, u64>"): 32,
    ("ntt_inverse_flow", "Grouped<Lazy64, u64>"): 48,
    ("ntt_inverse_flow", "Lazy32"): 32,
    ("ntt_inverse_flow", "Lazy60"): 32,
    ("ntt_inverse_flow", "Lazy64"): 48,
    ("ntt_inverse_flow", "Tight32"): 16,
    ("ntt_product", "Grouped<Lazy60, u64>"): 32,
    ("ntt_product", "Lazy32"): 16,
    ("ntt_product", "Lazy60"): 64,
    ("ntt_product", "Lazy64"): 16,
    ("ntt_product", "Strict64"): 16,
    ("ntt_product", "Trinomial<Float64>"): 16,
    ("ntt_product", "Trinomial<Strict32>"): 352,  # of 2^14 points on architecture 8.0
    ("rotated_sums", "Grouped<Tight32, u64>"): 16,  # on architecture 12.0
    ("rotated_sums", "Lazy32"): 8,
    ("rotated_sums", "Lazy60"): 8,  # on architecture 7.5
    ("rotated_sums", "Lazy64"): 8,
    ("rotated_sums", "Strict64"): 8,
    # Several levels or more than two components: of 16 values a thread 224, of a key in global memory more.
    ("torus_rotation", "u32"): 528,
    ("torus_rotation", "u64"): 528,
    ("start_rows", "Lazy60"): 32,
    ("start_rows", "Lazy64"): 32,
    ("start_rows", "Strict64"): 64,
}


def judges_spills(version: tuple[int, int]) -> bool:
    """Whether what is known of spills holds for a version of NVRTC."""
    return version >= SPILLED_BY


def violations(kernel: Kernel, usage: Usage, version: tuple[int, int] = SPILLED_BY) -> list[str]:
    """What a kernel takes beyond its allowance."""
    of_binomials = re.sub(r"Trinomial<(\w+)>", r"\1", kernel.word)  # of X^n + 1
    spilled = SPILLED.get((kernel.template, kernel.word), SPILLED.get((kernel.template, of_binomials), 0))
    found = []
    if usage.registers * kernel.threads > REGISTERS:
        found.append(f"{usage.registers} registers of {kernel.threads} threads, a card has {REGISTERS}")
    if judges_spills(version) and usage.spilled > spilled:
        found.append(f"{usage.spilled} bytes spilled, allowed {spilled}")
    return found


# ---- the command line ----


@dataclass(frozen=True)
class _Job:
    arch: int
    kernels: tuple[Kernel, ...]  # of one file


def _compile(job: _Job) -> tuple[_Job, dict[str, Usage] | str]:
    try:
        return job, Compiler().compile(
            job.kernels[0].file, [kernel.expression for kernel in job.kernels], job.arch
        )
    except RuntimeError as error:
        return job, str(error)


def _jobs(arch: int, kernels: Sequence[Kernel]) -> Iterator[_Job]:
    """A dozen kernels a job, some of them cheap and some not, since each program parses its file anew."""
    by_file = defaultdict(list)
    for kernel in kernels:
        by_file[kernel.file].append(kernel)
    for group in by_file.values():
        parts = -(-len(group) // 12)
        for i in range(parts):
            yield _Job(arch, tuple(group[i::parts]))


def _row(kernels: Sequence[tuple[Kernel, Usage]]) -> str:
    registers = [usage.registers for _, usage in kernels]
    spilled = max(usage.spilled for _, usage in kernels)
    first = kernels[0][0]
    least, most = min(registers), max(registers)
    spread = f"{least}-{most}" if least < most else f"{most}"
    line = f"  {first.template:16s} {first.word:9s} {first.threads:4d} threads  {spread:>7s} registers"
    return line + (f"  {spilled} bytes spilled" if spilled else "") + f"  ({len(kernels)})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print a table, and say what is not allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", type=int, choices=CARDS, action="append", help="instead of all")
    parser.add_argument("--all", action="store_true", help="every instantiation, not a part")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    version = Compiler().version
    print("NVRTC {}.{}".format(*version))
    sources(".cuh")  # before the other processes start
    found: list[str] = []
    jobs: list[_Job] = []
    total = 0
    for arch in options.arch or CARDS:
        kernels = kernels_of(CARDS[arch], ALL if options.all else PART)
        if not (options.arch or options.all or arch == WHOLE):
            kernels = ends(kernels)
        total += len(kernels)
        jobs += list(_jobs(arch, kernels))
    rows: dict[int, dict[tuple[str, str, int], list[tuple[Kernel, Usage]]]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for job, result in pool.map(_compile, jobs):
            if isinstance(result, str):
                found.append(result)
                continue
            groups = rows.setdefault(job.arch, defaultdict(list))
            for kernel in job.kernels:
                usage = result[kernel.expression]
                groups[kernel.template, kernel.word, kernel.threads].append((kernel, usage))
                wrong = violations(kernel, usage, version)
                found += [f"sm_{job.arch} {kernel.expression}: {text}" for text in wrong]
    for arch, groups in rows.items():
        print(f"sm_{arch}")
        for key in sorted(groups):
            print(_row(groups[key]))
    print(f"{total} kernels in {time.monotonic() - began:.0f} s")
    for text in found:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
