"""Arrays that no element of a ring can hold, and every function that meets them.

`python malformed.py` gives them all to the constructors and to the native core, for a sanitizer to watch.
There an error is an answer, and so is a meaningless value; a crash or an access beyond an array is none.
tests/test_malformed.py asks for the errors.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from devices import product_plan
from numpy.lib.stride_tricks import as_strided

import polygpu as pg
from polygpu import _cpu

N = 8
NARROW = pg.Ring(N, [97, 193])  # uint32
WORDS = pg.Ring(N, pg.ntt_primes(N, bits=60, count=2))  # uint64
WIDE = pg.Ring(N, 2**100 + 7)  # uint64, a row for each word


class Subclass(np.ndarray):
    """A subclass, as np.matrix and np.memmap are."""


class Interface:
    """No array, but an object that shows the memory of one."""

    def __init__(self, name: str, x: np.ndarray) -> None:
        setattr(self, name, x.__array_interface__)
        self.owner = x


def moved(x: np.ndarray, offset: int) -> np.ndarray:
    """The array, `offset` bytes from where its numbers may lie."""
    buffer = np.zeros(x.nbytes + 64, np.uint8)
    start = -buffer.__array_interface__["data"][0] % 64 + offset
    return buffer[start : start + x.nbytes].view(x.dtype).reshape(x.shape)


def malformed(good: np.ndarray) -> dict[str, Any]:
    """By name: objects of which none is a C-contiguous, aligned (*batch, rows, n) of the dtype of `good`."""
    rows, n = good.shape
    word, size = good.dtype, good.dtype.itemsize
    dtypes: list[Any] = [*np.typecodes["All"], "S4", "V4", "V8"]
    dtypes += [word.newbyteorder(), np.dtypes.StringDType(), (word, (2,))]
    dtypes += [[("x", "u4"), ("y", "u4")], [("x", word)], [("x", "O")]]
    table: dict[str, Any] = {}
    for dtype in dtypes:
        x = np.zeros(good.shape, dtype)
        if x.dtype != word or x.shape != good.shape:
            table[f"dtype {dtype!r}"] = x
    for shape in (
        (),
        (1,),
        (n,),
        (rows * n,),
        (n, rows),
        (rows - 1, n),
        (rows + 1, n),
        (rows, n - 1),
        (rows, n + 1),
    ):
        table[f"shape {shape}"] = np.zeros(shape, word)
    for shape in ((0,), (rows, 0), (0, n), (0, 0), (1, 0, n), (3, rows, 0), (rows, n, 1), (1,) * 64):
        table[f"shape {shape}"] = np.zeros(shape, word)
    long = np.zeros((2 * rows, 2 * n), word)
    strided = {
        "0 over rows": (0, size),
        "0 over coefficients": (n * size, 0),
        "0": (0, 0),
        "2": (2 * n * size, 2 * size),
        "of rows apart": (2 * n * size, size),
        "Fortran": (size, rows * size),
        "no multiple of a word": (n * size + 2, size),
        "overlapping": (size, size),
    }
    for name, strides in strided.items():
        table[f"strides {name}"] = as_strided(long, good.shape, strides)
    table |= {
        "Fortran order": np.asfortranarray(good),
        "reversed coefficients": good[:, ::-1],
        "reversed rows": good[::-1],
        "transposed": good.T.copy().T,
        "broadcast": np.broadcast_to(good[:1, :1], good.shape),
        "broadcast batch": np.broadcast_to(good, (3, *good.shape)),
        "every second of a batch": np.zeros((4, *good.shape), word)[::2],
        "a field": np.zeros(good.shape, [("pad", "u1"), ("x", word)])["x"],
    }
    table |= {f"{offset} bytes off": moved(good, offset) for offset in (1, 2, size - 1)}
    table |= {
        "byte strings": np.zeros(good.shape, "S4"),
        "subclass": good.copy().view(Subclass),
        "recarray": good.copy().view(np.recarray),
        "masked": np.ma.masked_array(good.copy(), good == 0),
        "unmasked": np.ma.masked_array(good.copy()),
    }
    table |= {
        "None": None,
        "int": 3,
        "float": 1.5,
        "list": good.tolist(),
        "text": "coefficients",
        "bytes": good.tobytes(),
        "bytearray": bytearray(good.tobytes()),
        "memoryview": memoryview(good),
        "array.array": array.array("Q", range(n)),
        "ctypes": ((ctypes.c_uint64 * n) * rows)(),
        "generator": (x for x in range(n)),
        "ring": NARROW,
        "poly": NARROW.ones(),
        "scalar": good[0, 0],
        "dtype": word,
        "type": np.ndarray,
        "interface of NumPy": Interface("__array_interface__", good),
        "interface of CUDA": Interface("__cuda_array_interface__", good),
    }
    return table


def elements(ring: pg.Ring) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each malformed array as the data of an element."""
    for name, x in malformed(ring.ones().data).items():
        yield name, lambda x=x: pg.Poly(ring, x, "coef")  # type: ignore[misc]


def forged(ring: Any, data: Any, domain: Any) -> bytes:
    """The pickle of an element with parts that its constructors refuse."""
    make, _ = ring.ones().__reduce__()

    class Forged:
        def __reduce__(self) -> Any:
            return make, (ring, data, domain, None)

    return pickle.dumps(Forged())


def core_calls(ring: pg.Ring) -> Iterator[tuple[str, Callable[..., object], list[Any]]]:
    """Functions of the core, with arguments that they take."""
    a, b = (ring.random(seed=i).data for i in (1, 2))
    out, q, quotient = np.empty_like(a), ring.modulus, ring._plan.quotient.native
    from polygpu._backends.cpu import CpuBackend
    from polygpu._core.plans.product import plan_fft_sums

    backend = CpuBackend()
    basis = backend._native_basis(ring._plan.basis)
    for op in range(5):
        yield f"pointwise {op}", basis.pointwise, [op, a, b, a, out]
    yield "pointwise with a scalar", basis.pointwise, [3, a, b, None, out]
    points = np.ones((len(a), 5), a.dtype)
    yield "find_wrong_product", basis.find_wrong_product, [a, b, out, points, quotient]
    alone = basis if ring is WIDE else backend._native_basis(pg.Ring(N, ring.moduli[0])._plan.basis)
    x, y = (np.ascontiguousarray(v if ring is WIDE else v[:1]) for v in (a, out))
    yield "invert", alone.invert, [x, quotient, y, np.zeros(1, np.int64)]
    index = np.arange(N)[::-1].copy()
    yield "permute", lambda x, y: basis.permute(x, index, y), [a, out]
    yield "reduce_integers", basis.reduce_integers, [np.arange(-4, 4), out]
    words = np.ones(N * (ring._plan.basis.words + 1), np.uint64)
    yield "reduce_words", basis.reduce_words, [words, 0, 0, out]
    thresholds = np.array([2**62, 2**63 - 1], np.uint64)
    gaussian = _cpu.Sampler(3, 16, 0, 6, np.array([1, 2]), thresholds)
    yield "Sampler", _cpu.Sampler, [3, 16, 0, 6, np.array([1, 2]), thresholds]
    for name, sampler in (
        ("sparse", _cpu.Sampler(1, 8, 2, 1, np.zeros(0, np.int64), thresholds[:0])),
        ("gaussian", gaussian),
    ):
        stream = np.ones(2 * N, np.uint64)
        yield name, lambda x, y, of=sampler: of.draw(basis, x, 0, N, y), [stream, out]  # type: ignore[misc]
    composition = backend._composition(ring._plan.basis)
    words = np.empty((*a.shape[:-2], N, ring.modulus.bit_length() // 64 + 1), np.uint64)
    yield "to_words", composition.to_words, [a, True, words]
    yield "to_int64", composition.to_int64, [a * 0, True, np.empty((*a.shape[:-2], N), np.int64)]
    yield "to_float64", composition.to_float64, [a, True, np.empty((*a.shape[:-2], N))]
    if ring is not WIDE:
        exponents = np.full(a[..., 0, 0].size, 3, np.int64)
        yield "mul_monomial", lambda x, e, y: basis.mul_monomial(x, e, quotient, y), [a, exponents, out]
        transform = backend._native(ring._plan.transform)
        yield "ntt", transform.ntt, [a, out]
        yield "intt", transform.intt, [a, out]
        yield "multiply", transform.multiply, [a, b, out]
        yield "multiply_eval", transform.multiply_eval, [a, b, out]
        digits, key = np.ones((2, 3, *a.shape[-2:]), a.dtype), np.ones((3, 2, *a.shape[-2:]), a.dtype)
        plan = transform, 3, [0, 3], [1, 0], 2, [0, 1], 2, False
        arrays = [digits, digits[:, 0].copy(), key, digits[:, :2].copy()]
        yield "digits times a key", _cpu.DigitProduct(*plan).run, arrays
        evaluated = _cpu.DigitProduct(transform, 3, [3, 3], [0, 0], 0, [0, 1], 2, True)
        yield "evaluated digits times a key", evaluated.run, [digits, None, key, arrays[3]]
        order = _cpu.Order(np.arange(N)[::-1].copy())
        yield "Order", _cpu.Order, [np.arange(N)[::-1].copy()]
        c, outs = np.ones((2, 2, *a.shape[-2:]), a.dtype), np.ones((3, 2, 2, *a.shape[-2:]), a.dtype)
        weights, places = np.ones((5, *a.shape[-2:]), a.dtype), [[0, 1], [-1, 2], [3, 4]]
        rows = transform, 3, (order, order), [[], [0, 1]], [0, 2], [1, 0], [1, 0], 2
        for turned in (True, False):
            sums = _cpu.RotatedSums(*rows, turned, False, places)
            yield f"rotated sums, {turned}", sums.run, [digits, c, weights, outs, key]
        sums = _cpu.RotatedSums(*rows, True, True, places)
        yield "rotated sums of their own digits", sums.run, [digits, np.stack([c, c]), None, outs, key]
        limb = ring[:1]
        one = backend._native_basis(limb._plan.basis)
        gadget = _cpu.GadgetProduct(one, backend._native(limb._plan.transform), None, 2, 2)
        x, ggsw, c = (np.ones(shape, a.dtype) for shape in ((5, 1, N), (4, 2, 2, 2, 1, N), (5, 2, 1, N)))
        yield "digits to a base", gadget.decompose, [x, np.ones((5, 2, 1, N), a.dtype)]
        yield "GGSW", gadget.multiply, [ggsw[0], c, c.copy()]
        yield "rotation", gadget.rotate, [ggsw, c, np.ones((5, 5), np.int64), c.copy()]
        sums = plan_fft_sums(ring._plan.quotient, limb.modulus, 4, 2)
        assert sums is not None
        gadget = _cpu.GadgetProduct(one, None, backend._native(sums), 2, 2)
        prepared = np.ones((4, 2, 2, 2, sums.digits, sums.points), np.complex128)
        yield "prepared", gadget.prepare, [ggsw, prepared]
        yield "GGSW by FFT", gadget.multiply, [prepared[0], c, c.copy()]
        yield "rotation by FFT", gadget.rotate, [prepared, c, np.ones((5, 5), np.int64), c.copy()]
        fft = backend._native(product_plan(ring, "fft"))
        yield "by FFT", fft.multiply, [a, b, out]
        x, y, z = (np.ones((1, 3, 3, *v.shape), v.dtype) for v in (a, b, out))
        yield "matmul_points", basis.matmul_points, [x, y, z]
        yield "matmul_points again", basis.matmul_points(x, y, z).run, [x, y, z]
        one = backend._native_basis(pg.Ring(N, ring.moduli[0])._plan.basis)
        x, y, z = (np.ones((1, 8, 8), v.dtype) for v in (a, b, out))
        yield "matmul", one.matmul, [x, y, z]
        forward, inverse = (np.zeros((2, N), a.dtype) for _ in range(2))
        yield "fill_twiddles", _cpu.fill_twiddles, [q % 2**32, 3, quotient, forward, inverse]
        table = ring._plan.transform.tables[0]
        yield "PrimeTables", _cpu.PrimeTables, [table.modulus, table.forward, table.inverse]
    auxiliary = backend._native(product_plan(pg.Ring(7, q), "ntt"))
    x, y, z = (np.ascontiguousarray(v[:1, :7] if ring is not WIDE else v[:, :7]) for v in (a, b, out))
    if ring is WIDE:
        yield "auxiliary primes", auxiliary.multiply, [x, y, z]
    yield "Basis", _cpu.Basis, [np.array([[97], [193]], np.uint64), 64]
    rows = np.ones((2, 64), np.complex64)
    yield "fft", _cpu.fft, [rows, rows.copy(), False]
    yield "convolve64", _cpu.convolve64, [rows, rows, rows.copy()]


def attack(call: Callable[..., object], arguments: list[Any]) -> Iterator[tuple[str, str]]:
    """Each array among the arguments replaced by each malformed one; what came of it."""
    call(*arguments)
    for place, good in enumerate(arguments):
        if not isinstance(good, np.ndarray):
            continue
        shape = good.shape[-2:] if good.ndim > 1 else (1, *good.shape)
        table = malformed(np.ones(shape, good.dtype if good.dtype.kind == "u" else np.uint64))
        if good.ndim > 1:  # in its own shape too
            table |= {
                f"{name}, all axes": np.zeros(good.shape, name) for name in ("?", "f8", "O", "i8", "V8", "D")
            }
            table |= {"one axis more": good[None], "one less": good[0], "longer": np.repeat(good, 2, 0)}
            table |= {"without the first": good[:0], "without the last": good[..., :0]}
        for name, x in table.items():
            taken = list(arguments)
            taken[place] = x
            try:
                call(*taken)
            except (TypeError, ValueError, BufferError) as error:
                yield f"argument {place}, {name}", type(error).__name__
            else:
                yield f"argument {place}, {name}", "taken"


def main() -> None:
    """Everything, for a sanitizer."""
    refused = 0
    for ring in (NARROW, WORDS, WIDE):
        for _, make in elements(ring):
            try:
                make()
            except (pg.PolyGPUError, TypeError):
                refused += 1
        for domain in ("xyz", "", None, 0, b"coef", ["coef"], "EVAL", np.array(["coef"])):
            try:
                pg.Poly(ring, ring.ones().data, domain)  # type: ignore[arg-type]
            except pg.PolyGPUError:
                refused += 1
    outcomes: dict[str, int] = {}
    for ring in (NARROW, WORDS, WIDE):
        for _, call, arguments in core_calls(ring):
            for _, outcome in attack(call, arguments):
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{refused} elements refused; calls of the core: {counted}")
    # Memory that a call overwrote may show only when it is used again.
    for ring, k in itertools.product((NARROW, WORDS, WIDE), (2, 3)):
        assert ring([1, 1]) ** k == ring([1, 2, 1] if k == 2 else [1, 3, 3, 1])


if __name__ == "__main__":
    main()
