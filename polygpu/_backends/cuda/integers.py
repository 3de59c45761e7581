"""Reduction of integers to residues, and composition of integers from residues, by cuda/integers.cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._core.plans.basis import Basis
from ..._core.plans.crt import composition_of, digits_of
from .. import Array
from .copies import filled
from .device import Shared
from .launch import INTEGER_TYPES, POINTER, U32, U64, Context, Launch, Recipe, Struct, ctype, entrywise
from .sources import enumeration

_FILE = "integers.cu"
# The allowed numbers of words of an integer in a kernel. Powers of two above 64 are allowed too.
_WORDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_NORM_THREADS, _NORM_SHARED, _NORM_PARTS = 128, 48 << 10, 64
_OUT = enumeration(_FILE, "Out")
_NORMS = {math.inf: "largest", 1: "sum", 2: "squares"}
_NORM_CODES = enumeration(_FILE, "Norm")

INTEGERS = Struct(
    _FILE,
    "IntegersParameters<u64>",
    ("x y moduli", POINTER),
    ("count n entries", U64),
    ("limbs", U32),
)
TABLES = Struct(
    _FILE,
    "Tables",
    ("moduli inverse terms bounds", POINTER),
    ("n", U64),
    ("limbs centered", U32),
    ("unsure", np.dtype(np.float64)),
)
OUT = Struct(
    _FILE,
    "OutParameters<u64>",
    ("x y wrong", POINTER),
    ("tables", TABLES),
    ("entries", U64),
    ("words", U32),
)
NORM = Struct(_FILE, "NormParameters<u64>", ("x y", POINTER), ("tables", TABLES), ("parts", U32))
JOIN = Struct(_FILE, "JoinParameters", ("x y", POINTER), ("parts words", U32))


def kernel_words(modulus: int) -> int:
    """Return the least allowed number of words (see _WORDS) for integers 3 bits longer than the modulus."""
    needed = -(-(modulus.bit_length() + 3) // 64)
    return next((w for w in _WORDS if w >= needed), 1 << (needed - 1).bit_length())


def integers_launch(basis: Basis, source: np.dtype[Any], entries: int, **values: int) -> Launch:
    """Return the launch that reduces integers of dtype `source` to residues."""
    parameters = INTEGERS(entries=entries, limbs=basis.rows, **values)
    kernel = f"reduce_integers<{ctype(basis)}, {INTEGER_TYPES[source.str[1:]]}>"
    return entrywise(_FILE, kernel, entries, parameters)


def out_launch(basis: Basis, size: int, to: str, entries: int, **values: Any) -> Launch:
    """Return the launch that composes integers from residues.

    size: words of an integer in the kernel. to: "words", "int64" or "float64", the form of the output.
    """
    kernel = f"compose_integers<{ctype(basis)}, {size}, {_OUT[f'to_{to}']}>"
    return entrywise(_FILE, kernel, entries, OUT(entries=entries, **values))


def norm_launches(
    basis: Basis, words: int, p: float, shape: tuple[int, int], tables: bytes, of_norm: int
) -> tuple[Launch, Launch, int]:
    """Return the launches of norm_parts and norm_rows, and the bytes of the workspace between them.

    The first launch writes norms of parts of rows. The second combines them to norms of rows. words:
    64-bit words of a composed integer. shape: (items, n). of_norm: words of a norm in the result.
    """
    items, n = shape
    code = _NORM_CODES[_NORMS[p]]
    length = {"largest": words, "sum": words + 1, "squares": 2 * words + 1}[_NORMS[p]]
    threads = _NORM_THREADS
    while threads > 1 and threads * length * 8 > _NORM_SHARED:
        threads //= 2
    parts = max(1, min(_NORM_PARTS, -(-n // (2 * threads))))
    kernel = f"norm_parts<{ctype(basis)}, {words}, {code}>"
    parameters = NORM(x=0, y=0, tables=tables, parts=parts)
    first = Launch(_FILE, kernel, (parts * items, 1), threads, parameters, threads * length * 8)
    threads = min(32, threads)
    joined = JOIN(x=0, y=0, parts=parts, words=of_norm)
    kernel = f"norm_rows<{length}, {code}>"
    second = Launch(_FILE, kernel, (items, 1), threads, joined, threads * length * 8)
    return first, second, items * parts * length * 8


def reduce_integers(gpu: Context, basis: Basis, x: Array, out: Array) -> None:

    def recipe() -> Recipe:
        moduli = gpu.moduli_of(basis)
        where = {"x": 0, "y": 0, "moduli": gpu.address(moduli.value)}
        sizes = {"count": x.shape[-1], "n": out.shape[-1]}
        made = Recipe(2, moduli)
        made.launch(integers_launch(basis, x.dtype, out.size, **where, **sizes), 0, 1)
        return made

    gpu.run(basis.handles, ("integers", x.shape, out.shape, x.dtype), recipe, x, out)


def to_words(gpu: Context, basis: Basis, x: Array, centered: bool, out: Array) -> None:
    _compose(gpu, basis, x, centered, "words", out)


def to_float64(gpu: Context, basis: Basis, x: Array, centered: bool, out: Array) -> None:
    _compose(gpu, basis, x, centered, "float64", out)


def to_int64(gpu: Context, basis: Basis, x: Array, centered: bool, out: Array) -> int:
    wrong = filled(gpu, (1,), U64, 0)
    _compose(gpu, basis, x, centered, "int64", out, wrong)
    found = int(gpu.to_host(wrong)[0])
    return (1 << 64) - 1 - found if found else -1


def _compose(gpu: Context, basis: Basis, x: Array, centered: bool, to: str, out: Array, *more: Array) -> None:
    def recipe() -> Recipe:
        words, n = kernel_words(composition_of(basis).modulus), x.shape[-1]
        used, tables = _tables(gpu, basis, words, n, centered)
        values = {"x": 0, "y": 0, "wrong": 0, "tables": tables, "words": out.shape[-1]}
        made = Recipe(2 + len(more), *used)
        launch = out_launch(basis, words, to, x.size // basis.rows, **values)
        made.launch(launch, *range(2 + len(more)))
        return made

    gpu.run(basis.handles, (to, centered, x.shape), recipe, x, out, *more)


def norm(gpu: Context, basis: Basis, x: Array, p: float, out: Array) -> None:

    def recipe() -> Recipe:
        words, n = kernel_words(composition_of(basis).modulus), x.shape[-1]
        used, tables = _tables(gpu, basis, words, n, True)
        shape = x.size // (basis.rows * n), n
        first, second, size = norm_launches(basis, words, p, shape, tables, out.shape[-1])
        made = Recipe(2, *used)
        parts = made.temporary(size)
        made.launch(first, 0, parts)
        made.launch(second, parts, 1)
        return made

    if x.size:
        gpu.run(basis.handles, ("norm", p, x.shape), recipe, x, out)


def _tables(
    gpu: Context, basis: Basis, words: int, n: int, centered: bool
) -> tuple[tuple[Shared, ...], bytes]:
    """Return arrays of constants for composing integers, and the packed struct Tables of their addresses."""
    moduli, limbs = gpu.moduli_of(basis), basis.rows

    def make() -> tuple[Array, tuple[()]]:
        plan = composition_of(basis)
        modulus = plan.modulus
        bounds = (modulus, 0, modulus), (modulus, modulus // 2, modulus - modulus // 2)
        table = [plan.inverse, plan.terms(64, words).T.ravel()]
        table += [digits_of(x, 64, words) for row in bounds for x in row]
        return gpu.from_host(np.concatenate(table)), ()

    table = gpu.kept(basis.handles, "composition", make)
    at = gpu.address(table.value)
    terms = at + 8 * limbs
    bounds = terms + 8 * words * (limbs + 1 + 3 * centered)
    # A bound on the rounding error of a sum of doubles (docs/math.md, "Integers").
    unsure = np.float64((limbs + 2) ** 2 * 2.0**-52).tobytes()
    where = {"moduli": gpu.address(moduli.value), "inverse": at, "terms": terms, "bounds": bounds}
    return (moduli, table), TABLES(**where, n=n, limbs=limbs, centered=centered, unsure=unsure)
