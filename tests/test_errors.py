"""Every invalid input raises one clear error of the right class and changes nothing.

A message names the value, the rule and the way out: the tables below hold the words it must have.
"""

from __future__ import annotations

import array
import fractions
import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import product_plan

import polygpu as pg
from polygpu import Poly, Ring, _cpu, fft, linalg, ntt_primes
from polygpu import errors as errors_module
from polygpu._core import memory
from polygpu._core.exact import roots
from polygpu._core.plans import product

R = Ring(4, 17)
RNS = Ring(4, [17, 97, 193])
U = Ring(4, 15)  # no evaluation domain
W = Ring(4, 2**128)

Case = tuple[Callable[[], Any], type[Exception], list[str]]


def check(call: Callable[[], Any], cls: type[Exception], words: list[str]) -> None:
    """One error, of exactly this class (NotAnInteger passes for a ParameterError), with these words."""
    with pytest.raises(Exception) as caught:
        call()
    error = caught.value
    assert type(error) is cls or (cls is pg.ParameterError and type(error) is pg.errors.NotAnInteger), repr(
        error
    )
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    message = str(error)
    assert "\n" not in message and len(message) < 600
    for word in words:
        assert word in message, message


def cases(table: dict[str, Case]) -> Any:
    return pytest.mark.parametrize(("call", "cls", "words"), table.values(), ids=list(table))


# ---- the classes ----

BUILT_IN = {
    "ParameterError": (ValueError,),
    "NotNTTFriendly": (ValueError, pg.ParameterError),
    "BadRoot": (ValueError, pg.ParameterError),
    "VerificationError": (RuntimeError,),
    "PrecisionError": (ValueError, pg.ParameterError),
    "DomainError": (ValueError, pg.ParameterError),
    "NotCanonical": (ValueError, pg.ParameterError),
    "FileError": (ValueError,),
    "CoefficientError": (TypeError,),
    "NotAnInteger": (pg.ParameterError, pg.errors.CoefficientError, ValueError, TypeError),
    "NotComplex": (TypeError,),
    "RingMismatch": (TypeError,),
    "OutputError": (ValueError,),
    "NotInvertible": (ZeroDivisionError, ValueError),
    "DeviceError": (RuntimeError,),
    "BackendUnavailable": (RuntimeError, ImportError, pg.DeviceError),
    "TablesTooLarge": (MemoryError,),
    "OutOfDeviceMemory": (MemoryError,),
    "OutOfHostMemory": (MemoryError,),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_error_classes(name: str) -> None:
    cls = getattr(pg.errors, name)
    assert cls.__doc__
    for base in (pg.PolyGPUError, *BUILT_IN[name]):
        assert issubclass(cls, base)


def test_errors_exported_at_the_top_level() -> None:
    top = ["ParameterError", "RingMismatch", "NotNTTFriendly", "NotInvertible", "DeviceError", "PolyGPUError"]
    assert all(getattr(pg, name) is getattr(pg.errors, name) for name in top)
    for name in BUILT_IN.keys() - set(top):
        with pytest.raises(AttributeError, match=rf"It is polygpu\.errors\.{name} since 0\.2"):
            getattr(pg, name)
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        pg.nothing  # noqa: B018


def test_every_error_class_is_listed() -> None:
    found = {
        name
        for name, value in vars(errors_module).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert found == {*BUILT_IN, "PolyGPUError"}


# ---- ints of any size: messages name long ones by their ends; batches may not exceed memory ----

DIGITS_6000 = 10**6000
ENDS = ["0x", "19932 bits"]
MASKED = np.ma.masked_array([1, 2, 3, 4], [False, True, False, False])


@cases(
    {
        "n": (lambda: Ring(DIGITS_6000, 17), pg.ParameterError, ["n=", *ENDS, "2**62"]),
        "n < 0": (lambda: Ring(-DIGITS_6000, 17), pg.ParameterError, ["n=-0x", "at least 1"]),
        "n in a list": (lambda: Ring([DIGITS_6000], 17), pg.ParameterError, ["n=[", *ENDS, "int"]),
        "q < 0": (lambda: Ring(4, -DIGITS_6000), pg.ParameterError, ["moduli contains -0x"]),
        "q in a list of lists": (lambda: Ring(4, [[DIGITS_6000]]), pg.ParameterError, ["moduli=[", *ENDS]),
        "root": (lambda: Ring(4, 17, root=DIGITS_6000), pg.errors.BadRoot, ["root=", *ENDS, "[1, q)"]),
        "roots": (lambda: Ring(4, 15, root=[DIGITS_6000]), pg.errors.BadRoot, ["root=[", *ENDS, "15"]),
        "g": (lambda: R([1]).automorphism(DIGITS_6000), pg.ParameterError, ["g=", *ENDS, "coprime"]),
        "limb": (lambda: RNS.eval_points(DIGITS_6000), pg.ParameterError, ["limb=", *ENDS]),
        "axis": (lambda: R.ones(2).sum(DIGITS_6000), pg.ParameterError, ["axis=", *ENDS]),
        "axis of a stack": (lambda: pg.stack([R.ones()], -DIGITS_6000), pg.ParameterError, ["axis=-0x"]),
        "p": (lambda: R([1]).norm(DIGITS_6000), pg.ParameterError, ["p=", *ENDS]),
        "shape": (lambda: R.ones(2).reshape(DIGITS_6000), pg.ParameterError, ["(2,)", *ENDS]),
        "shapes": (lambda: R.ones(2).reshape(DIGITS_6000, DIGITS_6000), pg.ParameterError, ["(2,)", *ENDS]),
        "batch": (
            lambda: R.zeros(DIGITS_6000),
            pg.errors.OutOfHostMemory,
            ["GiB", "available", "smaller batches"],
        ),
        "batch < 0": (lambda: R.ones(-DIGITS_6000), pg.ParameterError, ["batch=-0x", "negative"]),
        "random batch": (lambda: R.random((2, DIGITS_6000)), pg.errors.OutOfHostMemory, ["GiB", "available"]),
        "empty batch": (lambda: R.zeros((0, DIGITS_6000)), pg.errors.OutOfHostMemory, ["0 GiB", "available"]),
        "start": (lambda: R.random(start=DIGITS_6000), pg.ParameterError, ["start=", *ENDS, "2**48"]),
        "start < 0": (lambda: R.random(start=-DIGITS_6000), pg.ParameterError, ["start=-0x"]),
        "seed": (lambda: R.random(seed=[DIGITS_6000]), pg.ParameterError, ["seed=[", *ENDS]),
        "bits": (lambda: ntt_primes(4, bits=DIGITS_6000), pg.ParameterError, ["bits=", *ENDS, "65536"]),
        "count": (lambda: ntt_primes(4, bits=8, count=DIGITS_6000), pg.ParameterError, ["8", *ENDS]),
        "count < 0": (lambda: ntt_primes(4, bits=8, count=-DIGITS_6000), pg.ParameterError, ["count=-0x"]),
        "n of primes": (lambda: ntt_primes(DIGITS_6000, bits=8), pg.ParameterError, ["n=", *ENDS]),
        "preset's degree": (lambda: Ring.preset("ml-kem", DIGITS_6000), pg.ParameterError, ["n=", *ENDS]),
        "preset": (lambda: Ring.preset([]), pg.ParameterError, ["name=[]", "ml-kem"]),
        "preset of bytes": (lambda: Ring.preset(b"ml-kem"), pg.ParameterError, ["name=b'ml-kem'"]),
        "preset in a list": (
            lambda: Ring.preset(["ml-kem", DIGITS_6000]),
            pg.ParameterError,
            ["'ml-kem'", *ENDS],
        ),
        "q of a matrix product": (
            lambda: linalg.matmul([[1]], [[1]], q=DIGITS_6000),
            pg.ParameterError,
            ENDS,
        ),
        "fraction": (
            lambda: R([fractions.Fraction(DIGITS_6000, 3)]),
            pg.errors.CoefficientError,
            ["Fraction", "must be ints"],
        ),
    }
)
def test_long_ints_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


@cases(
    {
        "zeros": (lambda: R.zeros(2**40), pg.errors.OutOfHostMemory, ["1.64e+04 GiB", "available"]),
        "ones": (lambda: R.ones(2**40), pg.errors.OutOfHostMemory, ["1.64e+04 GiB", "available"]),
        "random": (lambda: R.random(2**40), pg.errors.OutOfHostMemory, ["1.64e+04 GiB", "available"]),
        "the largest degree": (lambda: Ring(2**62, 17).zeros(), pg.errors.OutOfHostMemory, ["1.72e+10 GiB"]),
        "a list": (lambda: Ring(2**62, 17)([1]), pg.errors.OutOfHostMemory, ["1.72e+10 GiB"]),
        "the degree beyond": (lambda: Ring(2**62 + 1, 17), pg.ParameterError, ["2**62"]),
        "end of the stream": (
            lambda: Ring(2**20, 17).random(start=2**48 - 1),
            pg.ParameterError,
            [f"start={2**48 - 1}", str(2**20), str(2**46)],
        ),
        "seed without UTF-8": (
            lambda: R.random(seed="\ud800"),
            pg.ParameterError,
            ["seed='\\ud800'", "bytes"],
        ),
    }
)
def test_sizes_beyond_memory_and_random_streams_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


def test_last_polynomial_of_a_random_stream() -> None:
    ring = Ring(2**20, 17)
    assert ring.random(start=2**46 - 1, seed=1).data.max() == 16
    check(lambda: ring.random(2, start=2**46 - 1), pg.ParameterError, ["2 polynomials"])


@cases(
    {
        "coefficients": (lambda: R(MASKED), pg.errors.CoefficientError, ["x is a masked array", "filled(0)"]),
        "nothing masked": (
            lambda: R(np.ma.ones(4, int)),
            pg.errors.CoefficientError,
            ["x is a masked array"],
        ),
        "residues": (
            lambda: R.from_residues(MASKED[None]),
            pg.errors.CoefficientError,
            ["data is a masked array"],
        ),
        "matrix": (
            lambda: linalg.matmul(MASKED[None], MASKED, q=17),
            pg.errors.CoefficientError,
            ["A is a masked"],
        ),
        "complex": (
            lambda: fft.fft(np.ma.ones((1, 4), complex)),
            pg.errors.CoefficientError,
            ["x is a masked array"],
        ),
        "out": (
            lambda: fft.fft(np.ones((1, 4), complex), out=np.ma.ones((1, 4), complex)),
            pg.errors.CoefficientError,
            ["out is a masked array"],
        ),
    }
)
def test_masked_arrays_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


# ---- memory that the system refuses ----


@pytest.mark.parametrize(
    ("prepare", "call", "words"),
    [
        (
            "r = pg.Ring(2**20, 2**64); a = r.random(seed=1); a * a",
            "a * a",
            ["MiB of scratch memory", "ulimit -v"],
        ),
        ("r = pg.Ring(2**17, 17); a = r.ones(4)", "pg.stack([a] * 16)", ["smaller batches"]),
        ("r = pg.Ring(2**17, 17)", "r.zeros(2**6)", ["GiB", "available"]),
        ("r = pg.Ring(2**17, 17)", "r.zeros(2**8)", ["0.125 GiB", "available"]),
        ("r = pg.Ring(2**17, 17); a = r.ones(2**6)", "a + a", ["GiB", "available"]),
        ("r = pg.Ring(2**17, 17); a = r.ones(2**6)", "a.copy()", ["smaller batches"]),
    ],
)
def test_address_space_limit_raises_out_of_memory(prepare: str, call: str, words: list[str]) -> None:
    """The library raises its own error, and small calls still work."""
    code = f"""
import resource
import numpy as np
import polygpu as pg
{prepare}
small = pg.Ring(8, 17).ones()
assert small * small == small ** 2
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
try:
    {call}
except pg.errors.OutOfHostMemory as error:
    print(error)
assert small * small == small ** 2
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "POLYGPU_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert all(word in done.stdout for word in words) and done.stdout.count("\n") == 1, done.stdout


# ---- the parameters of a ring ----

HUGE = 2**200 + 1


@cases(
    {
        "n = 0": (lambda: Ring(0, 17), pg.ParameterError, ["n=0", "at least 1"]),
        "n < 0": (lambda: Ring(-4, 17), pg.ParameterError, ["n=-4", "at least 1"]),
        "n float": (lambda: Ring(4.0, 17), pg.ParameterError, ["n=4.0", "int"]),
        "n bool": (lambda: Ring(True, 17), pg.ParameterError, ["n=True", "int"]),
        "n NumPy bool": (lambda: Ring(np.True_, 17), pg.ParameterError, ["n=", "True", "int"]),
        "n text": (lambda: Ring("4", 17), pg.ParameterError, ["n='4'", "int"]),
        "n None": (lambda: Ring(None, 17), pg.ParameterError, ["n=None", "int"]),
        "q = 1": (lambda: Ring(4, 1), pg.ParameterError, ["moduli contains 1", "at least 2"]),
        "q = 0": (lambda: Ring(4, 0), pg.ParameterError, ["moduli contains 0", "at least 2"]),
        "q < 0": (lambda: Ring(4, -17), pg.ParameterError, ["moduli contains -17", "at least 2"]),
        "q float": (lambda: Ring(4, 17.0), pg.ParameterError, ["moduli=17.0", "int"]),
        "q NaN": (lambda: Ring(4, math.nan), pg.ParameterError, ["moduli=nan", "int"]),
        "q bool": (lambda: Ring(4, True), pg.ParameterError, ["moduli=True", "int"]),
        "q text": (lambda: Ring(4, "17"), pg.ParameterError, ["moduli='17'", "int"]),
        "q bytes": (lambda: Ring(4, b"17"), pg.ParameterError, ["moduli=b'17'", "int"]),
        "q None": (lambda: Ring(4, None), pg.ParameterError, ["moduli=None", "int"]),
        "q 0-d float": (lambda: Ring(4, np.array(17.0)), pg.ParameterError, ["17.", "int"]),
        "float among moduli": (lambda: Ring(4, [17, 97.0]), pg.ParameterError, ["97.0", "int"]),
        "bool among moduli": (lambda: Ring(4, [17, True]), pg.ParameterError, ["True", "int"]),
        "1 among moduli": (lambda: Ring(4, [17, 1]), pg.ParameterError, ["moduli contains 1", "at least 2"]),
        "float array": (lambda: Ring(4, np.array([17.0])), pg.ParameterError, ["17.0", "int"]),
        "no moduli": (lambda: Ring(4, []), pg.ParameterError, ["empty", "at least one"]),
        "nested moduli": (lambda: Ring(4, [[17, 97]]), pg.ParameterError, ["[17, 97]", "int"]),
        "common factor": (
            lambda: Ring(4, [35, 6, 10]),
            pg.ParameterError,
            ["10", "share the factor", "coprime"],
        ),
        "twice the same": (lambda: Ring(4, [17, 17]), pg.ParameterError, ["17 and 17", "coprime"]),
        "above 2^64 in a list": (
            lambda: Ring(4, [3, 2**64 + 1]),
            pg.ParameterError,
            [str(2**64 + 1), "above 2**64", "must be the only one", "product"],
        ),
        "far above 2^64": (
            lambda: Ring(4, [3, HUGE]),
            pg.ParameterError,
            [str(HUGE), "must be the only one"],
        ),
        "kind": (lambda: Ring(4, 17, kind="skew"), pg.ParameterError, ["'skew'", "negacyclic", "cyclic"]),
        "kind None": (lambda: Ring(4, 17, kind=None), pg.ParameterError, ["kind=None", "cyclic"]),
        "root of order 4": (
            lambda: Ring(4, 17, root=4),
            pg.errors.BadRoot,
            ["root=4", "order 8", "modulo 17"],
        ),
        "root of order 16": (
            lambda: Ring(4, 17, root=3),
            pg.errors.BadRoot,
            ["root=3", "order 8", "minimal"],
        ),
        "root 0": (lambda: Ring(4, 17, root=0), pg.errors.BadRoot, ["root=0", "17"]),
        "root = q": (lambda: Ring(4, 17, root=17), pg.errors.BadRoot, ["root=17", "[1, q)"]),
        "root + q": (lambda: Ring(4, 17, root=19), pg.errors.BadRoot, ["root=19", "[1, q)"]),
        "root < 0": (lambda: Ring(4, 17, root=-15), pg.errors.BadRoot, ["root=-15", "[1, q)"]),
        "cyclic root for negacyclic": (lambda: Ring(4, 17, root=[4]), pg.errors.BadRoot, ["4", "order 8"]),
        "negacyclic root for cyclic": (
            lambda: Ring(4, 17, kind="cyclic", root=2),
            pg.errors.BadRoot,
            ["2", "order 4"],
        ),
        "second root": (
            lambda: Ring(4, [17, 97], root=[2, 2]),
            pg.errors.BadRoot,
            ["2", "order 8", "modulo 97"],
        ),
        "too few roots": (lambda: Ring(4, [17, 97], root=2), pg.errors.BadRoot, ["root is 1", "moduli is 2"]),
        "too many roots": (lambda: Ring(4, 17, root=[2, 8]), pg.errors.BadRoot, ["root is 2", "moduli is 1"]),
        "no roots": (lambda: Ring(4, 17, root=[]), pg.errors.BadRoot, ["root is 0"]),
        "product": (
            lambda: Ring(4, 17, product="karatsuba"),
            pg.ParameterError,
            ["product='karatsuba'", "'auto', 'fft', 'ntt'"],
        ),
        "product None": (lambda: Ring(4, 17, product=None), pg.ParameterError, ["product=None", "'auto'"]),
        "root, composite modulus": (
            lambda: Ring(4, 15, root=2),
            pg.errors.BadRoot,
            ["root=2", "15", "not prime"],
        ),
        "root, no power of two": (lambda: Ring(5, 11, root=3), pg.errors.BadRoot, ["n=5", "power of two"]),
        "root, unfriendly prime": (
            lambda: Ring(16, 19, root=18),
            pg.errors.BadRoot,
            ["q=19", "are 1 modulo 32"],
        ),
    }
)
def test_invalid_ring_parameters_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


@pytest.mark.parametrize("root", [2.0, None, True, "2", "max", "", b"minimal", [2.0], ["2"], 1j, {}, [[2]]])
def test_invalid_root_raises(root: Any) -> None:
    with pytest.raises(pg.ParameterError, match=r"\broot\b") as caught:
        Ring(4, 17, root=root)
    if root != {}:
        assert "int" in str(caught.value)
    if isinstance(root, str):
        assert "minimal" in str(caught.value) and "generator" in str(caught.value)


def test_positional_options_are_refused() -> None:
    with pytest.raises(TypeError):
        Ring(4, 17, "cyclic")


def test_generator_of_a_wide_prime_that_cannot_be_factored_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """q - 1 has two large prime factors besides small ones."""
    monkeypatch.setattr(roots, "_FACTOR_LIMIT", 1000)  # to fail sooner
    a, b = 2**127 - 1, 2**107 - 1
    q = next(k * a * b + 1 for k in range(2, 10**6, 2) if pg.is_prime(k * a * b + 1))
    check(
        lambda: Ring(1, q, root="generator")._plan.transform,
        pg.errors.BadRoot,
        ["generator", "factors of q - 1", str(q), "minimal"],
    )
    assert Ring(1, q).roots == (q - 1,)


# ---- coefficients ----

COEFFICIENTS: dict[str, Any] = {
    "float": 1.0,
    "float array": np.array([1.0, 2.0]),
    "float32": np.float32(1),
    "empty float array": np.zeros(0),
    "float in a list": [1, 2.0],
    "float in a nested list": [[1, 2], [3, 4.5]],
    "float in an object array": np.array([1, 2.0], dtype=object),
    "NaN": math.nan,
    "NaN in a list": [1, math.nan],
    "NaN array": np.array([np.nan]),
    "infinity": [math.inf],
    "bool": True,
    "bools": [True, False],
    "bool in a list": [True, 2],
    "bool at the end": [2, True],
    "bool array": np.array([True]),
    "NumPy bool": [np.True_, 2],
    "bool in an object array": np.array([True, 2], dtype=object),
    "complex": 1j,
    "complex in a list": [1, 2 + 0j],
    "complex array": np.array([1 + 0j]),
    "text": "12",
    "texts": ["1", "2"],
    "text array": np.array(["1"]),
    "bytes": b"12",
    "bytearray": bytearray(b"12"),
    "memoryview": memoryview(b"12"),
    "bytes in a list": [1, b"2"],
    "None": None,
    "None in a list": [1, None],
    "set": {1, 2},
    "dict": {1: 2},
    "generator": (i for i in range(3)),
    "Fraction": fractions.Fraction(1, 2),
    "Decimal": Decimal(1),
    "array.array of floats": array.array("d", [1.0]),
    "date": np.array(["2020-01-01"], "datetime64[D]"),
    "span": np.array([1], "timedelta64[s]"),
    "records": np.zeros(2, [("x", int)]),
    "ragged list": [[1, 2], [3]],
    "deeply ragged list": [[[1], [2, 3]], [[4], [5]]],
    "list beside an int": [1, [2]],
    "object": object(),
    "Poly": R([1]),
    "list of Polys": [R([1]), R([2])],
    "Poly in a nested list": [[R([1])]],
    "tuple of Polys": (R([1]),),
    "Poly in an object array": np.array([None, R], dtype=object),
}


@pytest.mark.parametrize("ring", [R, RNS, W], ids=repr)
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficients_that_are_not_integers_raise(name: str, ring: Ring) -> None:
    x = COEFFICIENTS[name]
    check(lambda: ring(x), pg.errors.CoefficientError, [])
    with pytest.raises(pg.errors.CoefficientError, match=r"(^|entry .* of )x\b"):
        ring(x)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([1, 2.5], ["2.5", "float", "int", "rounded"]),
        (np.array([1.5]), ["float64", "ring.from_floats"]),
        ([1, math.nan], ["nan", "float", "int", "rounded"]),
        ([math.inf, 1], ["inf", "float", "int", "rounded"]),
        (np.array([np.nan]), ["float64", "int", "rounded"]),
        ([True, 2], ["True", "bool"]),
        ([1, "2"], ["'2'", "str"]),
        ([1, None], ["None"]),
        ([[1, 2], [3]], ["x is a ragged", "Pad"]),
        ([1, [2]], ["ragged"]),
        (R([1]), ["Poly", "to_bigints"]),
        ([R([1])], ["Poly", "stack"]),
        (b"12", ["bytes"]),
    ],
)
def test_error_names_the_coefficient(x: Any, words: list[str]) -> None:
    check(lambda: R(x), pg.errors.CoefficientError, words)


class Tensor:
    """An array of a library that has neither astype nor __array__, as PyTorch's may be."""

    def __init__(self, *values: Any) -> None:
        self.values = np.array(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        (b"12", "list(x)"),
        (b"12", "int.from_bytes(x, 'little')"),
        (bytearray(b"12"), "list(x)"),
        (memoryview(b"12"), "list(x)"),
        ("12", "int(x)"),
        (True, "int(x)"),
        (1.5, "round(x)"),
        (1.5 + 1j, "round(x.real)"),
        (np.float32(1.5), "round(x)"),
        (np.True_, "int(x)"),
        (fractions.Fraction(3, 2), "round(x)"),
        (Decimal("1.5"), "round(x)"),
        ({1, 2}, "sorted(x)"),
        ({0: 1, 2: 3}, "[x.get(i, 0) for i in range(n)]"),
        (iter([1, 2]), "list(x)"),
        (map(int, "12"), "list(x)"),
        (np.array([1.5, 2]), "ring.from_floats(x)"),
        (np.array([1.5, 2], "f2"), "ring.from_floats(x)"),
        (np.array([1.5, 2], "g"), "ring.from_floats(x.astype(np.float64))"),
        (np.array([1 + 1j]), "ring.from_floats(x.real)"),
        (np.array([True]), "x.astype(np.int64)"),
        (np.array(["12"]), "x.astype(np.int64)"),
        (np.array(["2020-01-01"], "M8[D]"), "x.astype(np.int64)"),
        (np.zeros(2, [("part", int)]), "x['part']"),
        (np.zeros(2, "V2"), "x.view(np.uint8)"),
        (Tensor(1.5, 2), "ring.from_floats(np.from_dlpack(x))"),
        (Tensor(True), "np.from_dlpack(x).astype(np.int64)"),
        ([1.5, 2], "[round(v) for v in x]"),
        ([1.5, 2], "ring.from_floats(x)"),
        ((1, 2.5), "[round(v) for v in x]"),
        ([1, 1j], "[round(v.real) for v in x]"),
        ([True, 2], "[int(v) for v in x]"),
        (["1", "2"], "[int(v) for v in x]"),
        ([b"1"], "[int.from_bytes(v, 'little') for v in x]"),
        ([fractions.Fraction(3, 2)], "[round(v) for v in x]"),
        (array.array("d", [1.5]), "[round(v) for v in x]"),
    ],
)
def test_error_advice_can_be_evaluated(x: Any, advice: str) -> None:
    """The expression that an error suggests can be evaluated and gives coefficients."""
    check(lambda: R(x), pg.errors.CoefficientError, ["ints", advice])
    found = eval(advice, {"x": x, "n": 4, "np": np, "ring": R})
    assert isinstance(found if isinstance(found, pg.Poly) else R(found), pg.Poly)


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        (None, "0"),
        ([1, None], "0"),
        (math.nan, "NaN"),
        ([1, math.inf], "infinity"),
        ([[1.5, 2]], "round(v) for each entry v"),
        (np.array([1.5, 2], object), "round(v) for each entry v"),
        (object(), "a list of ints"),
        ([object()], "a list of ints"),
        (R, "a list of ints"),
        ("ab" * 1000, "str"),
        (dict.fromkeys(range(1000)), "dict"),
        ([np.array([1, 2]), np.array([1])], "Pad"),
    ],
)
def test_error_advice_in_words(x: Any, advice: str) -> None:
    check(lambda: R(x), pg.errors.CoefficientError, ["x", advice])
    with pytest.raises(pg.errors.CoefficientError, match=r"^(?!.*astype)"):
        R(x)


def test_error_advice_names_the_argument() -> None:
    check(
        lambda: R([[1]]).scale_by([1.5]),
        pg.errors.CoefficientError,
        ["1.5 of ints", "[round(v) for v in ints]"],
    )
    check(lambda: linalg.matmul([[1.5]], [[1]], q=17), pg.errors.CoefficientError, ["1.5 of A", "each entry"])
    check(lambda: fft.fft(R([1])), pg.errors.NotComplex, ["x must be an array", "not Poly", "to_bigints"])
    check(lambda: fft.fft(Tensor(1, 2)), pg.errors.NotComplex, ["np.from_dlpack(x).astype('complex128')"])


@pytest.mark.parametrize(
    "x", [range(5), [[1] * 5], np.zeros((0, 5), int), np.zeros((2, 5), object), [2**70] * 5]
)
def test_too_many_coefficients_raise(x: Any) -> None:
    check(lambda: R(x), pg.ParameterError, ["5 coefficients", "n=4", "polynomial", "(*batch, n)"])


# ---- residues ----


@cases(
    {
        "rows": (
            lambda: RNS.from_residues(np.zeros((2, 4), np.uint32)),
            pg.ParameterError,
            ["(2, 4)", "(3, 4)", "ring(x)"],
        ),
        "one axis": (lambda: R.from_residues([1, 2, 3, 4]), pg.ParameterError, ["(4,)", "(1, 4)"]),
        "columns": (lambda: R.from_residues([[1, 2, 3]]), pg.ParameterError, ["(1, 3)", "(1, 4)"]),
        "float": (
            lambda: R.from_residues(np.zeros((1, 4))),
            pg.errors.CoefficientError,
            ["float64", "uint32"],
        ),
        "bool": (lambda: R.from_residues(np.zeros((1, 4), bool)), pg.errors.CoefficientError, ["bool"]),
        "list of floats": (
            lambda: R.from_residues([[0.0] * 4]),
            pg.errors.CoefficientError,
            ["0.0 of data"],
        ),
        "list with a bool": (
            lambda: R.from_residues([[0, 1, 2, True]]),
            pg.errors.CoefficientError,
            ["True"],
        ),
        "text": (lambda: R.from_residues("abcd"), pg.errors.CoefficientError, ["data='abcd'"]),
        "Poly": (
            lambda: R.from_residues(R([1])),
            pg.errors.CoefficientError,
            ["data must hold integers", "Poly"],
        ),
        "negative": (
            lambda: R.from_residues([[0, -1, 2, 3]]),
            pg.errors.NotCanonical,
            ["-1 at (0, 1)", "17", "ring(x)"],
        ),
        "too large": (
            lambda: RNS.from_residues([[16] * 4, [96] * 4, [0, 0, 193, 0]]),
            pg.errors.NotCanonical,
            ["193 at (2, 2)", "modulo 193"],
        ),
        "too large in a batch": (
            lambda: R.from_residues([[[0] * 4], [[0, 0, 0, 2**40]]]),
            pg.errors.NotCanonical,
            [f"{2**40} at (1, 0, 3)", "modulo 17"],
        ),
        "copy forbidden": (
            lambda: R.from_residues(np.zeros((1, 4), np.int64), copy=False),
            pg.ParameterError,
            ["copy=False", "uint32"],
        ),
        "domain": (
            lambda: R.from_residues([[0] * 4], domain="ntt"),
            pg.errors.DomainError,
            ["'ntt'", "coef", "eval"],
        ),
        "domain None": (
            lambda: R.from_residues([[0] * 4], domain=None),
            pg.errors.DomainError,
            ["None", "coef"],
        ),
        "no eval": (
            lambda: U.from_residues([[0] * 4], domain="eval"),
            pg.NotNTTFriendly,
            ["15", "not prime"],
        ),
    }
)
def test_invalid_residues_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


@pytest.mark.parametrize("ring", [R, RNS, Ring(4, 2**100)], ids=repr)
def test_from_residues_with_check(ring: Ring) -> None:
    good = ring([[-1, 2, 3, -4], [5, 6, 7, 8]]).data
    wrong = good.copy()
    wrong[1, -1, 2] = ring.moduli[-1] >> 64 * (ring.rows - len(ring.moduli))  # of 2**100 the upper word
    for copy in (None, True, False):
        call = functools.partial(ring.from_residues, wrong, copy=copy)
        assert ring.from_residues(good, copy=copy, check=True) == ring.from_residues(good)
        assert np.array_equal(call().data, wrong) and np.array_equal(call(check=False).data, wrong)
        check(lambda call=call: call(check=True), pg.errors.NotCanonical, ["at (1, ", "ring(x)"])
        with pg.debug():
            check(lambda call=call: call(check=False), pg.errors.NotCanonical, ["at (1, "])
    if ring.has_eval:
        check(
            lambda: ring.from_residues(wrong, domain="eval", check=True), pg.errors.NotCanonical, ["at (1, "]
        )


def test_debug_error_names_the_residue() -> None:
    data = np.array([[0, 99, 2, 3]], np.uint32)
    with pg.debug():
        check(lambda: R.from_residues(data), pg.errors.NotCanonical, ["99 at (0, 1)", "modulo 17", "ring(x)"])
    with pytest.raises(ZeroDivisionError), pg.debug():
        raise ZeroDivisionError
    assert R.from_residues(data).data is data  # debug ended with the error


# ---- keys of the batch ----


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (3, "index 3 is out of bounds"),
        (-4, "index -4 is out of bounds"),
        ([0, 3], "index 3 is out of bounds"),
        ((0, 3), "2 indices are given"),
        ((slice(None), 0), "2 indices are given"),
        ((..., 0, 0), "2 indices are given"),
        ((None, 0, 0), "2 indices are given"),
        ((0, [1, 2]), "2 indices are given"),
        (np.ones((3, 1, 4), bool), "3 indices are given"),
        ([[True] * 4] * 3, "2 indices are given"),
        (np.ones(4, bool), "boolean index did not match"),
        (1.5, "integers"),
        ("data", "integers"),
    ],
)
def test_invalid_index_raises(key: Any, reason: str) -> None:
    words = ["indexes batch axes only", "poly.data[..., limb, i]", "poly.tolist()", "to_bigints()"]
    batch, single = R([[1], [2], [3]]), R([1, 2, 3, 4])

    def write(a: Poly) -> None:
        a[key] = 1

    for call in (lambda: batch[key], lambda: write(batch)):
        check(call, IndexError, [*words, "shape is (3,)", reason])
    for call in (lambda: single[key], lambda: write(single)):
        check(call, IndexError, [*words, "shape is ()", "given for 0 axes"])


# ---- constructors and other calls on a ring ----


@cases(
    {
        "negative batch": (lambda: R.zeros(-1), pg.ParameterError, ["batch=-1", "negative"]),
        "negative in a batch": (lambda: R.ones((2, -3)), pg.ParameterError, ["(2, -3)", "negative"]),
        "float batch": (lambda: R.zeros(1.5), pg.ParameterError, ["batch=1.5", "int"]),
        "bool batch": (lambda: R.ones((True,)), pg.ParameterError, ["True", "int"]),
        "None batch": (lambda: R.random(None), pg.ParameterError, ["None", "int"]),
        "float exponent": (lambda: R.monomial(1.0), pg.ParameterError, ["k=1.0", "int"]),
        "float coefficient": (
            lambda: R.monomial(1, coefficient=2.0),
            pg.ParameterError,
            ["coefficient=2.0", "int"],
        ),
        "start": (lambda: R.random(start=-1), pg.ParameterError, ["start=-1", "at least 0"]),
        "start float": (lambda: R.random(start=0.0), pg.ParameterError, ["start=0.0", "int"]),
        "seed float": (lambda: R.random(seed=1.5), pg.ParameterError, ["seed=1.5", "int", "bytes"]),
        "seed bool": (lambda: R.random(seed=True), pg.ParameterError, ["seed=True"]),
        "limb": (lambda: RNS.eval_points(3), pg.ParameterError, ["limb=3", "[0, 3)"]),
        "limb < 0": (lambda: RNS.eval_points(-1), pg.ParameterError, ["limb=-1", "[0, 3)"]),
        "limb float": (lambda: RNS.eval_points(0.0), pg.ParameterError, ["limb=0.0", "int"]),
        "points without a transform": (lambda: U.eval_points(), pg.NotNTTFriendly, ["15"]),
        "order without a transform": (lambda: U.natural_order(), pg.NotNTTFriendly, ["15"]),
        "rescale of one limb": (lambda: U([1]).rescale(), pg.ParameterError, ["k=1", "one limb must stay"]),
        "stack of no sequence": (
            lambda: pg.stack(5),
            pg.ParameterError,
            ["polys must be", "int", "list or tuple"],
        ),
        "preset": (
            lambda: Ring.preset("kyber"),
            pg.ParameterError,
            ["'kyber'", "goldilocks", "mean 'ml-kem'?"],
        ),
        **{
            f"preset {name}": (
                lambda name=name: Ring.preset(name),
                pg.ParameterError,
                [repr(name), f"mean {meant!r}?"],
            )
            for name, meant in {
                "Kyber768": "ml-kem",
                "ML_KEM": "ml-kem",
                "ml-kem-512": "ml-kem",
                "mlkem": "ml-kem",
                "dilithium": "ml-dsa",
                "ml-dsa-65": "ml-dsa",
                "falcon": "falcon-512",
                "falcon512": "falcon-512",
                "falcon-1204": "falcon-1024",
                "Baby Bear": "babybear",
                "goldilock": "goldilocks",
            }.items()
        },
        "preset's degree": (
            lambda: Ring.preset("ml-kem", 512),
            pg.ParameterError,
            ["n=512", "'ml-kem'", "256"],
        ),
    }
)
def test_invalid_calls_on_a_ring_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


@cases(
    {
        "n = 12": (lambda: Ring(12, 97), pg.NotNTTFriendly, ["n=12", "power of two", "Products still work"]),
        "composite": (lambda: U, pg.NotNTTFriendly, ["15", "not prime", "Products still work"]),
        "power of two": (lambda: Ring(4, 2**64), pg.NotNTTFriendly, [str(2**64), "not prime"]),
        "a limb": (lambda: Ring(4, [17, 15]), pg.NotNTTFriendly, ["15", "not prime"]),
        "unfriendly": (
            lambda: Ring(64, 1_000_003),
            pg.NotNTTFriendly,
            ["q=1000003", "is 67 modulo 128", "are 1 modulo 128", "ntt_primes(64"],
        ),
        "unfriendly, cyclic": (
            lambda: Ring(64, 1_000_003, kind="cyclic"),
            pg.NotNTTFriendly,
            ["is 3 modulo 64", "kind='cyclic'"],
        ),
    }
)
def test_ntt_of_a_ring_without_a_transform_raises(call: Any, cls: Any, words: Any) -> None:
    ring = call()
    a = ring([1, 2])
    before = a.data.copy()
    for compute in (a.ntt, lambda: a.ntt(out=ring.zeros()), a.natural_order, lambda: ring._plan.transform):
        check(compute, cls, words)
    assert np.array_equal(a.data, before) and a.domain == "coef"
    assert a.intt() is a and (a * a).domain == "coef"


# ---- primes ----


@cases(
    {
        "n = 3": (lambda: ntt_primes(3, bits=30), pg.ParameterError, ["n=3", "power of two"]),
        "n = 0": (lambda: ntt_primes(0, bits=30), pg.ParameterError, ["n=0", "at least 1"]),
        "n float": (lambda: ntt_primes(4.0, bits=30), pg.ParameterError, ["n=4.0", "int"]),
        "bits = 1": (lambda: ntt_primes(4, bits=1), pg.ParameterError, ["bits=1", "at least 2"]),
        "bits < 0": (lambda: ntt_primes(4, bits=-30), pg.ParameterError, ["bits=-30", "at least 2"]),
        "bits float": (lambda: ntt_primes(4, bits=30.0), pg.ParameterError, ["bits=30.0", "int"]),
        "bits bool": (lambda: ntt_primes(4, bits=True), pg.ParameterError, ["bits=True", "int"]),
        "count < 0": (
            lambda: ntt_primes(4, bits=30, count=-1),
            pg.ParameterError,
            ["count=-1", "at least 0"],
        ),
        "count float": (lambda: ntt_primes(4, bits=30, count=2.0), pg.ParameterError, ["count=2.0", "int"]),
        "kind": (lambda: ntt_primes(4, bits=30, kind="x"), pg.ParameterError, ["'x'", "cyclic"]),
        "exclude float": (
            lambda: ntt_primes(4, bits=30, exclude=2.0),
            pg.ParameterError,
            ["exclude=2.0", "int"],
        ),
        "exclude text": (
            lambda: ntt_primes(4, bits=30, exclude="7"),
            pg.ParameterError,
            ["exclude='7'", "int"],
        ),
        "near float": (
            lambda: ntt_primes(4, bits=30, near=2.0**30),
            pg.ParameterError,
            ["near=1073741824.0", "int"],
        ),
        "near below": (
            lambda: ntt_primes(4, bits=30, near=2**29 - 1),
            pg.ParameterError,
            ["near=536870911", "[2**29, 2**30]", "bits=29"],
        ),
        "near above": (
            lambda: ntt_primes(4, bits=30, near=2**30 + 1),
            pg.ParameterError,
            ["near=1073741825", "[2**29, 2**30]", "bits=31"],
        ),
        "too few near": (
            lambda: ntt_primes(2**20, bits=22, count=5, near=True, exclude=R),
            pg.ParameterError,
            ["more bits than 22", "primes near 4194304", "not among the 1 excluded", "count=5"],
        ),
        "too few bits": (
            lambda: ntt_primes(2**20, bits=10),
            pg.ParameterError,
            ["more bits than 10", "count=1 must be at most 0", f"1 modulo {2**21}", "more bits", "smaller n"],
        ),
        "too many primes": (
            lambda: ntt_primes(2**20, bits=25, count=5),
            pg.ParameterError,
            ["more bits than 25", "must be at most 1", "count=5", "more bits"],
        ),
        "BabyBear stands alone": (
            lambda: ntt_primes(2**26, bits=31, count=2),
            pg.ParameterError,
            ["count=2 must be at most 1", "primes", f"1 modulo {2**27}"],
        ),
        "is_prime of a float": (lambda: pg.is_prime(7.0), pg.ParameterError, ["7.0", "int"]),
        "is_prime of text": (lambda: pg.is_prime("7"), pg.ParameterError, ["'7'", "int"]),
        "is_prime of a bool": (lambda: pg.is_prime(True), pg.ParameterError, ["True", "int"]),
        "is_prime of None": (lambda: pg.is_prime(None), pg.ParameterError, ["None", "int"]),
    }
)
def test_invalid_prime_arguments_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


# ---- operands ----

FOREIGN = {  # other rings, and the call that brings one operand to the other
    "n": (Ring(8, 17), "ring(poly.to_bigints("),
    "kind": (Ring(4, 17, kind="cyclic"), "ring(poly.to_bigints("),
    "root": (Ring(4, 17, root=8), "from_residues(poly.intt().data)"),
    "moduli": (
        Ring(4, 97),
        "Use a.convert(b.ring) for a's centred value modulo b's moduli, or pg.rns.join(a, b)",
    ),
    "more moduli": (
        Ring(4, [17, 97]),
        "Use a.mod_up(b.ring) to extend a to all of b's moduli, or b.restrict(a.ring)",
    ),
}
JOINS: dict[str, Callable[[Poly, Poly], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "mul": Poly.mul,
    "fma's b": lambda a, b: pg.fma(a, b, a),
    "fma's c": lambda a, b: pg.fma(a, a, b),
    "dot": lambda a, b: pg.dot(a.reshape(1), b.reshape(1)),
    "matmul": lambda a, b: a.reshape(1, 1) @ b.reshape(1, 1),
    "einsum": lambda a, b: pg.einsum("i,j,k->ijk", a.reshape(1), a.reshape(1), b.reshape(1)),
    "equal": pg.equal,
    "stack": lambda a, b: pg.stack([a, b]),
    "concatenate": lambda a, b: pg.concatenate([a.reshape(1), b.reshape(1)]),
    "combine": lambda a, b: pg.combine([1, 2], [a, b]),
}


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("name", FOREIGN)
def test_operations_between_rings_raise(name: str, join: str) -> None:
    ring, verb = FOREIGN[name]
    a, b = R([1, 2]), ring([3])
    check(lambda: JOINS[join](a, b), pg.RingMismatch, ["Ring(4, 17)", repr(b.ring), verb])


@cases(
    {
        "fewer moduli": (
            lambda: RNS.ones() + R.ones(),
            pg.RingMismatch,
            ["Use a.restrict(b.ring) to take a modulo b's moduli, or b.mod_up(a.ring) to extend b"],
        ),
        "another order": (
            lambda: RNS.ones() + Ring(4, [193, 97, 17]).ones(),
            pg.RingMismatch,
            ["different orders", "a.restrict(b.ring)"],
        ),
        "some in common": (
            lambda: RNS.ones() * Ring(4, [97, 113]).ones(),
            pg.RingMismatch,
            ["a.convert(b.ring)"],
        ),
    }
)
def test_operations_between_rings_with_other_limbs_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)
    with pytest.raises(cls) as caught:
        call()
    assert "to_bigints" not in str(caught.value)


IN_A_RING: dict[str, Callable[[Poly, Poly, Any], Any]] = {
    "add": lambda a, b, ring: a.add(b, ring=ring),
    "sub": lambda a, b, ring: a.sub(b, ring=ring),
    "mul": lambda a, b, ring: a.mul(b, ring=ring),
    "fma's b": lambda a, b, ring: pg.fma(a, b, 1, ring=ring),
    "fma's c": lambda a, b, ring: pg.fma(a, a, b, ring=ring),
    "dot": lambda a, b, ring: pg.dot(a.reshape(1), b.reshape(1), ring=ring),
    "einsum": lambda a, b, ring: pg.einsum("i,i", a.reshape(1), b.reshape(1), ring=ring),
    "combine": lambda a, b, ring: pg.combine([1, 2], [a, b], ring=ring),
}


@pytest.mark.parametrize("call", IN_A_RING)
def test_ring_argument_that_does_not_match_the_operands_raises(call: str) -> None:
    def calls(a: Poly, b: Poly, ring: Any) -> Callable[[], Any]:
        return lambda: IN_A_RING[call](a, b, ring)

    missing = [
        "ring has the modulus 193, which an operand in Ring(4, [17, 97]) does not have",
        "mod_up(ring)",
    ]
    check(calls(RNS.ones(), RNS[:2].ones(), RNS), pg.RingMismatch, missing)
    check(calls(RNS[:2].ones(), RNS.ones(), RNS[2:]), pg.RingMismatch, missing)
    check(
        calls(RNS.ones(), RNS.ones(), Ring(4, 17, root=8)), pg.errors.BadRoot, ["root 8 modulo 17", "has 2"]
    )
    cyclic = Ring(4, 17, kind="cyclic")
    check(calls(RNS.ones(), RNS.ones(), cyclic), pg.RingMismatch, ["ring is Ring(", "degree or kind"])
    check(calls(RNS.ones(), RNS.ones(), 17), pg.ParameterError, ["ring must be", "int", "must be a Ring"])
    out = RNS.ones()
    wrong = (lambda: RNS.ones().add(1, ring=R, out=out)), (lambda: RNS.ones().mul(1, ring=R, out=out))
    for call_ in wrong:
        check(
            call_, pg.errors.OutputError, ["out is in Ring(4, [17, 97, 193])", "the result is in Ring(4, 17)"]
        )


def test_out_between_the_limbs_of_an_operand_raises() -> None:
    """`out` has the address and shape of an operand's first limbs, but other strides."""
    a = RNS.ones(2).ntt()
    out = RNS[:2].from_residues(a.data.reshape(-1)[:16].reshape(2, 2, 4), copy=False)
    before = a.data.copy()
    for call in (lambda: a.add(a, ring=RNS[:2], out=out), lambda: a.add(1, ring=RNS[:2], out=out)):
        check(call, pg.errors.OutputError, ["overlaps an operand in part"])
    assert np.array_equal(a.data, before)


def batch(*shape: int) -> Poly:
    return R.ones(shape)


@cases(
    {
        "add": (lambda: batch(3) + batch(2), pg.ParameterError, ["(3,)", "(2,)", "broadcast"]),
        "mul": (lambda: batch(2, 3) * batch(2), pg.ParameterError, ["(2, 3)", "(2,)", "broadcast"]),
        "eval": (lambda: batch(3).ntt() * batch(2).ntt(), pg.ParameterError, ["(3,)", "(2,)"]),
        "mixed": (lambda: batch(3).ntt() - batch(2), pg.ParameterError, ["(3,)", "(2,)"]),
        "nothing and many": (lambda: batch(0) * batch(2), pg.ParameterError, ["(0,)", "(2,)"]),
        "fma": (
            lambda: pg.fma(batch(3), batch(3), batch(2)),
            pg.ParameterError,
            ["(3,)", "(2,)", "broadcast"],
        ),
        "fma eval": (
            lambda: pg.fma(batch(3).ntt(), batch(2), batch(3)),
            pg.ParameterError,
            ["(3,)", "(2,)", "broadcast"],
        ),
        "dot": (lambda: pg.dot(batch(3), batch(2)), pg.ParameterError, ["(3,)", "(2,)", "broadcast"]),
        "equal": (lambda: pg.equal(batch(3), batch(2)), pg.ParameterError, ["(3,)", "(2,)"]),
        "stack": (lambda: pg.stack([batch(3), batch(2)]), pg.ParameterError, ["(3,)", "(2,)"]),
        "stack, broadcastable": (lambda: pg.stack([batch(3), batch()]), pg.ParameterError, ["(3,)", "()"]),
        "concatenate": (
            lambda: pg.concatenate([batch(2, 3), batch(2, 2)]),
            pg.ParameterError,
            ["(2, 3)", "(2, 2)", "axis 0"],
        ),
        "concatenate, other axes": (
            lambda: pg.concatenate([batch(2, 3), batch(2)]),
            pg.ParameterError,
            ["(2, 3)", "(2,)"],
        ),
        "reshape": (lambda: batch(6).reshape(4), pg.ParameterError, ["(6,)", "4"]),
        "reshape with two -1": (lambda: batch(6).reshape(-1, -1), pg.ParameterError, ["(6,)", "-1"]),
        "reshape float": (lambda: batch(6).reshape(2.0, 3), pg.ParameterError, ["2.0"]),
    }
)
def test_invalid_batch_shapes_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


@cases(
    {
        "sum": (lambda: batch(2, 3).sum(2), pg.ParameterError, ["axis=2", "2 batch axes"]),
        "sum < 0": (lambda: batch(2, 3).sum(-3), pg.ParameterError, ["axis=-3", "2 batch axes"]),
        "sum in a tuple": (lambda: batch(2).sum((0, 1)), pg.ParameterError, ["axis=1", "batch axes"]),
        "sum of one": (lambda: batch().sum(0), pg.ParameterError, ["axis=0", "0 batch axes"]),
        "sum float": (lambda: batch(2).sum(0.0), pg.ParameterError, ["axis=0.0", "int"]),
        "sum text": (lambda: batch(2).sum("0"), pg.ParameterError, ["axis='0'", "int"]),
        "dot": (lambda: pg.dot(batch(2), batch(2), 1), pg.ParameterError, ["axis=1", "batch axes"]),
        "dot of single ones": (lambda: pg.dot(batch(), batch()), pg.ParameterError, ["single", "a * b"]),
        "stack": (lambda: pg.stack([batch(2)], 2), pg.ParameterError, ["axis=2", "axes"]),
        "stack < 0": (lambda: pg.stack([batch(2)], -3), pg.ParameterError, ["axis=-3", "axes"]),
        "concatenate": (lambda: pg.concatenate([batch(2)], 1), pg.ParameterError, ["axis=1", "batch axes"]),
        "concatenate single": (lambda: pg.concatenate([batch()]), pg.ParameterError, ["axis=0", "0 batch"]),
        "stack of nothing": (lambda: pg.stack([]), pg.ParameterError, ["0 values", "at least one Poly"]),
        "concatenate nothing": (lambda: pg.concatenate([]), pg.ParameterError, ["0 values", "Poly"]),
        "stack with an int": (lambda: pg.stack([batch(), 3]), pg.ParameterError, ["Poly"]),
        "stack of arrays": (lambda: pg.stack([np.zeros(4, int)]), pg.ParameterError, ["Poly"]),
        "combine nothing": (lambda: pg.combine([], []), pg.ParameterError, ["0 values", "at least one Poly"]),
        "combine an int": (lambda: pg.combine([1], [3]), pg.ParameterError, ["Poly"]),
        "combine an int, 2": (
            lambda: pg.combine([1], 3),
            pg.ParameterError,
            ["int", "list or tuple of Poly"],
        ),
        "combine a float": (
            lambda: pg.combine([1.0], [batch()]),
            pg.errors.CoefficientError,
            ["1.0 of ints", "must be ints", "round(v)"],
        ),
        "combine floats": (
            lambda: pg.combine(np.ones(1), [batch()]),
            pg.errors.CoefficientError,
            ["ints has dtype float64", "must be ints"],
        ),
        "combine a Poly": (
            lambda: pg.combine(batch(1), [batch()]),
            pg.errors.CoefficientError,
            ["ints", "Poly"],
        ),
        "combine one int": (
            lambda: pg.combine(3, [batch()]),
            pg.ParameterError,
            ["ints is a single", "a list"],
        ),
        "combine too many": (
            lambda: pg.combine([[1, 2, 3]], [batch(), batch()]),
            pg.ParameterError,
            ["ints has shape (1, 3)", "2, the number of polys", "last axis"],
        ),
        "combine batches": (
            lambda: pg.combine([1, 2], [batch(2), batch(3)]),
            pg.ParameterError,
            ["(2,)", "(3,)", "broadcast"],
        ),
        "a constant for each of another batch": (
            lambda: pg.combine([[1], [2]], [batch(3)], constant=[1, 2]),
            pg.ParameterError,
            ["constant has shape (2,)", "(2, 3), the batch shape of the result", "one integer"],
        ),
        "a constant with more axes": (
            lambda: pg.combine([1], [batch()], constant=[1]),
            pg.ParameterError,
            ["constant has shape (1,)", "()"],
        ),
        "a constant float": (
            lambda: pg.combine([1], [batch()], constant=0.0),
            pg.errors.CoefficientError,
            ["constant=0.0", "must be ints"],
        ),
        "a constant bool": (
            lambda: pg.combine([1], [batch()], constant=False),
            pg.errors.CoefficientError,
            ["constant=False", "must be ints"],
        ),
    }
)
def test_invalid_axes_and_sequences_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


@cases(
    {
        "g even": (
            lambda: R([1]).automorphism(2),
            pg.ParameterError,
            ["g=2", "common factor with 8", "coprime"],
        ),
        "g = 0": (lambda: R([1]).automorphism(0), pg.ParameterError, ["g=0", "8"]),
        "g, n = 15": (
            lambda: Ring(15, 97, kind="cyclic")([1]).automorphism(-5),
            pg.ParameterError,
            ["g=-5", "common factor with 15"],
        ),
        "g, n = 12": (lambda: Ring(12, 97)([1]).automorphism(9), pg.ParameterError, ["g=9", "24"]),
        "g in eval": (lambda: R([1]).ntt().automorphism(4), pg.ParameterError, ["g=4", "8"]),
        "g float": (lambda: R([1]).automorphism(3.0), pg.ParameterError, ["g=3.0", "int"]),
        "g bool": (lambda: R([1]).automorphism(True), pg.ParameterError, ["g=True", "int"]),
        "k float": (lambda: R([1]).mul_monomial(1.0), pg.ParameterError, ["k=1.0", "int"]),
        "k float in eval": (lambda: R([1]).ntt().mul_monomial(1.0), pg.ParameterError, ["k=1.0", "int"]),
        "exponent float": (lambda: R([1]) ** 2.0, pg.ParameterError, ["exponent=2.0", "int"]),
        "exponent bool": (lambda: R([1]) ** True, pg.ParameterError, ["exponent=True", "int"]),
        "norm 3": (lambda: R([1]).norm(3), pg.ParameterError, ["p=3", "1, 2 or inf"]),
        "norm NaN": (lambda: R([1]).norm(math.nan), pg.ParameterError, ["p=nan", "inf"]),
        "norm text": (lambda: R([1]).norm("inf"), pg.ParameterError, ["p='inf'"]),
        "point float": (lambda: R([1])(1.5), pg.ParameterError, ["x=1.5", "int"]),
        "points float": (lambda: R([1])([1, 2.0]), pg.ParameterError, ["x=2.0", "int"]),
        "point bool": (lambda: R([1])(True), pg.ParameterError, ["x=True", "int"]),
        "point text": (lambda: R([1])("1"), pg.ParameterError, ["x='1'", "int"]),
        "point Poly": (lambda: R([1])(R([1])), pg.ParameterError, ["Poly", "integers"]),
        "points Polys": (lambda: R([1])([R([1])]), pg.ParameterError, ["Poly"]),
        "add text": (lambda: R([1]).add("1"), pg.ParameterError, ["'1'", "int"]),
        "mul float": (lambda: R([1]).mul(1.5), pg.ParameterError, ["1.5", "int"]),
        "mul float, wide": (lambda: W([1]).mul(1.5), pg.ParameterError, ["1.5", "int"]),
        "sub None": (lambda: R([1]).sub(None), pg.ParameterError, ["None", "int"]),
        "mul bool": (lambda: R([1]).mul(True), pg.ParameterError, ["True", "int"]),
        "fma float": (lambda: pg.fma(R([1]), 1.5, 0), pg.ParameterError, ["1.5", "int"]),
        "fma first": (
            lambda: pg.fma(1, R([1]), R([1])),
            pg.RingMismatch,
            ["a must be", "int", "Poly", "ring(x)"],
        ),
        "dot first": (lambda: pg.dot([1], R([1])), pg.RingMismatch, ["a must be", "list", "Poly", "ring(x)"]),
        "equal of ints": (lambda: pg.equal(1, 1), pg.RingMismatch, ["int", "Poly"]),
    }
)
def test_invalid_calls_on_a_poly_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


def test_mul_with_an_int_on_either_side() -> None:
    assert Poly.mul(3, R([1, 2])) == Poly.mul(R([1, 2]), 3) == R([3, 6])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "first"), [("add", 3), ("sub", 3), ("mul", None), ("add", None), ("mul", "1")]
)
def test_poly_functions_without_a_poly_raise(name: str, first: Any) -> None:
    """For example Poly.add(3, p). The error names the rule, not an inner attribute."""
    with pytest.raises((pg.PolyGPUError, TypeError), match=r"Poly|int"):
        getattr(Poly, name)(first, R([1]))


# ---- out ----


def outs() -> dict[str, tuple[Callable[[Poly], Any], list[str]]]:
    """What cannot take a result of batch shape (2,), made from an operand."""

    def frozen(a: Poly) -> Poly:
        data = np.zeros_like(a.data)
        data.flags.writeable = False
        return a.ring.from_residues(data)

    def behind(a: Poly) -> Poly:
        """Memory that begins one polynomial after the operand's."""
        buffer = np.zeros((3, *a.data.shape[1:]), a.data.dtype)
        buffer[:2] = a.data
        a._data = buffer[:2]
        return a.ring.from_residues(buffer[1:])

    return {
        "array": (lambda a: a.data.copy(), ["ndarray", "Poly", "from_residues"]),
        "list": (lambda a: [a], ["list", "Poly"]),
        "other modulus": (lambda a: Ring(a.ring.n, 97).ones(2), ["Ring(", "97"]),
        "other kind": (lambda a: Ring(a.ring.n, a.ring.moduli, kind="cyclic").ones(2), ["cyclic"]),
        "shorter batch": (lambda a: a.ring.ones(1), ["(1,)", "(2,)"]),
        "longer batch": (lambda a: a.ring.ones((1, 2)), ["(1, 2)", "(2,)"]),
        "single": (lambda a: a.ring.ones(), ["()", "(2,)"]),
        "read-only": (frozen, ["read-only"]),
        "overlapping": (behind, ["overlaps", "operand"]),
    }


CALLS: dict[str, Callable[[Poly, Poly, Any], Any]] = {
    "add": lambda a, b, out: a.add(b, out=out),
    "sub with an int": lambda a, b, out: a.sub(3, out=out),
    "neg": lambda a, b, out: a.neg(out=out),
    "mul": lambda a, b, out: a.mul(b, out=out),
    "mul by an int": lambda a, b, out: a.mul(3, out=out),
    "fma": lambda a, b, out: pg.fma(a, b, b, out=out),
    "combine": lambda a, b, out: pg.combine([1, 2], [a, b], out=out),
    "intt": lambda a, b, out: a.intt(out=out),
    "ntt": lambda a, b, out: a.ntt(out=out),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", outs())
@pytest.mark.parametrize("ring", [R, RNS, U, W, Ring(16, 17)], ids=repr)
def test_invalid_out_raises(ring: Ring, wrong: str, call: str) -> None:
    if call == "ntt" and not ring.has_eval:
        return
    make, words = outs()[wrong]
    a, b = ring(np.arange(1, 2 * ring.n + 1).reshape(2, -1)), ring([[5, 0], [7, 1]])
    out = make(a)
    target = out[0] if isinstance(out, list) else out
    everything = [a.data, b.data, np.asarray(target.data if isinstance(target, Poly) else target)]
    before = [x.copy() for x in everything]
    check(lambda: CALLS[call](a, b, out), pg.errors.OutputError, ["out ", *words])
    assert all(np.array_equal(x, y) for x, y in zip(everything, before, strict=True))
    assert a.domain == b.domain == "coef" and getattr(out, "domain", "coef") == "coef"


@pytest.mark.parametrize("call", ["add", "mul", "fma"])
def test_out_is_unchanged_after_other_errors(call: str) -> None:
    a, out = R.ones(2), R([[1, 2], [3, 4]])
    before = out.data.copy()
    for b in (R.ones(3), Ring(4, 97).ones(2)):
        with pytest.raises((pg.ParameterError, pg.RingMismatch)):
            CALLS[call](a, b, out)
    assert np.array_equal(out.data, before) and out.domain == "coef"


def test_in_place_mul_that_broadcasts_raises() -> None:
    a, b = R([1, 2]), R([[1], [2]])
    check(lambda: a.mul(b, out=a), pg.errors.OutputError, ["batch shape ()", "(2,)"])
    check(lambda: b[0].mul(b, out=b), pg.errors.OutputError, ["overlaps"])
    assert a == R([1, 2]) and b == R([[1], [2]])


# ---- products by FFT ----

BY_FFT = Ring(4, 17, product="fft")


@cases(
    {
        "method": (
            lambda: R.ones().mul(R.ones(), product="fast"),
            pg.ParameterError,
            ["product='fast'", "'fft'"],
        ),
        "method None": (
            lambda: R.ones().mul(R.ones(), product=None),
            pg.ParameterError,
            ["product=None", "'ntt'"],
        ),
        "method of an int": (lambda: R.ones().mul(3, product="fast"), pg.ParameterError, ["product='fast'"]),
        "evaluated": (
            lambda: R.ones().ntt().mul(R.ones(), product="fft"),
            pg.errors.DomainError,
            ["product='fft'", "coefficients", "intt()"],
        ),
        "the other evaluated": (
            lambda: R.ones().mul(R.ones().ntt(), product="fft"),
            pg.errors.DomainError,
            ["product='fft'", "coefficients", "intt()"],
        ),
        "wide": (
            lambda: W.ones().mul(W.ones(), product="fft"),
            pg.ParameterError,
            [str(2**128), "above 2**64", "auxiliary primes", "product='auto'"],
        ),
        "wide ring": (
            lambda: Ring(4, 2**128, product="fft"),
            pg.ParameterError,
            [str(2**128), "product='fft'", "at most 2**64", "product='auto'"],
        ),
        "too long": (
            lambda: product_plan(Ring(2**28, 2**64, product="fft")),
            pg.errors.PrecisionError,
            [
                "n=268435456",
                "64 bits",
                "8 digits of 8 bits",
                "wrong by 1.4",
                "below 1/2",
                "product='auto'",
            ],
        ),
        "too long, by method": (
            lambda: product_plan(Ring(2**28 - 1, [2**61 - 1, 3]), "fft"),
            pg.errors.PrecisionError,
            [f"n={2**28 - 1}", "61 bits", "below 1/2", "product='auto', which is exact"],
        ),
        "no such product": (
            lambda: R([1]).mul(R([1]), product="nonsense"),  # type: ignore[arg-type]
            pg.ParameterError,
            ["product='nonsense'", "'fft'"],
        ),
        "no name": (
            lambda: R.ones().mul(R.ones(), product=np.array(["fft"])),  # type: ignore[arg-type]
            pg.ParameterError,
            ["product=", "'fft'"],
        ),
        "another product": (lambda: R.ones() * BY_FFT.ones(), pg.RingMismatch, ["product='fft'"]),
    }
)
def test_invalid_products_by_fft_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


def test_available_memory_in_a_container(tmp_path: Path) -> None:
    """The test writes Linux's control group files as they are in a container."""
    machine = _cpu.available_memory(str(tmp_path), str(tmp_path))  # without files: all of its memory
    assert machine == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def available(**files: str) -> int:
        for name, text in files.items():
            (tmp_path / name.replace("_", ".", 1)).write_text(text)
        return _cpu.available_memory(str(tmp_path), str(tmp_path))

    assert available(meminfo=f"MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:  {1 << 16} kB\n") == 1 << 26
    assert available(memory_max=f"{8 << 20}\n") == 8 << 20
    assert available(memory_current=f"{7 << 20}\n") == 8 << 20  # the container says no more
    stat = f"anon 1\nfile 5\ninactive_file {2 << 20}\nactive_file 9\n"
    assert available(memory_stat=stat) == 3 << 20
    assert available(memory_current=f"{12 << 20}\n") == 0
    assert available(memory_max="max\n") == 1 << 26
    assert available(meminfo="") == machine


def test_fft_product_of_a_huge_length_raises_precision_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory sets no limit, precision does, and nothing is allocated."""
    monkeypatch.setattr(memory, "_available_memory", lambda: 1 << 80)
    check(
        functools.partial(product_plan, Ring(2**40, 2**64, product="fft")),
        pg.errors.PrecisionError,
        [f"n={2**40}", "below 1/2"],
    )
    check(
        functools.partial(product_plan, Ring(2**60, 2, product="fft")),
        pg.errors.PrecisionError,
        [f"n={2**60}", "1 bits"],
    )


def test_explain_of_a_ring_without_a_product() -> None:
    assert "product   none" in Ring(2**40, 2**64, product="fft").explain()


def test_fft_product_without_long_doubles_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "LONG_DOUBLE", False)
    ring = Ring(24, 2**32 - 17)
    check(
        functools.partial(product_plan, ring, "fft"),
        pg.errors.PrecisionError,
        ["longdouble", "auxiliary primes"],
    )
    assert isinstance(product_plan(ring), product.AuxiliaryPlan)


def test_product_beyond_memory_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate includes the scratch memory of a product, not only its tables."""
    monkeypatch.setattr(memory, "_available_memory", lambda: 1 << 24)
    ring = Ring(2**18, 2**64)
    for method in ("auto", "fft", "ntt"):
        check(
            functools.partial(product_plan, ring, method),
            pg.errors.TablesTooLarge,
            [f"n={2**18}", "GiB", "smaller n"],
        )


# ---- Fourier transforms ----

X = np.arange(128).reshape(2, 64) + 0j
HALF = X.astype(np.complex64)
CONSTANT = X.copy()
CONSTANT.setflags(write=False)
LONG = np.zeros(3 * 64, complex)
NOT_COMPLEX: dict[str, Any] = {
    "int64": X.real.astype(int),
    "float64": X.real.copy(),
    "bool": np.ones((2, 64), bool),
    "object": X.astype(object),
    "longdouble": X.astype(np.clongdouble),
    "text": np.full((2, 64), "1j"),
    "records": np.zeros((2, 64), [("re", "f8"), ("im", "f8")]),
    "big-endian complex128": X.astype(">c16"),
    "big-endian complex64": X.astype(">c8"),
    "list": X.tolist(),
    "tuple": (1j, 2j),
    "number": 1j,
    "NumPy number": np.complex128(1),
    "None": None,
    "Poly": R.ones(),
    "array.array": array.array("d", [1.0] * 64),
}


@pytest.mark.parametrize("name", NOT_COMPLEX)
def test_fft_of_operands_that_are_not_complex_raises(name: str) -> None:
    x = NOT_COMPLEX[name]
    words = ["complex64 or complex128"]
    words += (
        [f"has dtype {x.dtype}", "astype('complex128')"] if isinstance(x, np.ndarray) else [type(x).__name__]
    )
    start = "{} has dtype" if isinstance(x, np.ndarray) else "{} must be an array"
    for call in (fft.fft, fft.fft64):
        check(lambda call=call: call(x), pg.errors.NotComplex, [start.format("x"), *words])
    check(lambda: fft.convolve64(x, X), pg.errors.NotComplex, [start.format("a"), *words])
    check(lambda: fft.convolve64(X, x), pg.errors.NotComplex, [start.format("b"), *words])


@pytest.mark.parametrize("n", [0, 3, 48, 63, 4095, 8192])
def test_fft_of_unsupported_lengths_raises(n: int) -> None:
    x = np.zeros((2, n), complex)
    check(
        lambda: fft.fft(x),
        pg.ParameterError,
        [f"last axis of x has {n} points", "power of two of at most 4096", "numpy.fft"],
    )


@pytest.mark.parametrize("n", [0, 1, 32, 63, 128])
def test_fft64_of_other_lengths_raises(n: int) -> None:
    x = np.zeros((2, n), complex)
    words = [f"has {n} points", "must have 64"]
    check(lambda: fft.fft64(x), pg.ParameterError, ["last axis of x", *words, "fft for other lengths"])
    check(lambda: fft.convolve64(x, X), pg.ParameterError, ["last axis of a", *words])
    check(lambda: fft.convolve64(X, x), pg.ParameterError, ["last axis of b", *words])


@cases(
    {
        "a number": (lambda: fft.fft(np.array(1j)), pg.ParameterError, ["x is a single number", "last axis"]),
        "a number, 64": (
            lambda: fft.fft64(np.array(1j)),
            pg.ParameterError,
            ["x is a single number", "last axis"],
        ),
        "a is a number": (
            lambda: fft.convolve64(np.array(1j), X),
            pg.ParameterError,
            ["a is a single number"],
        ),
        "b is a number": (
            lambda: fft.convolve64(X, np.array(1j)),
            pg.ParameterError,
            ["b is a single number"],
        ),
        "two types": (
            lambda: fft.convolve64(HALF, X),
            pg.errors.NotComplex,
            ["a is complex64", "b is complex128", "astype"],
        ),
        "batches": (
            lambda: fft.convolve64(np.zeros((3, 64), complex), X),
            pg.ParameterError,
            ["(3,)", "(2,)", "broadcast"],
        ),
        "batch axes": (
            lambda: fft.convolve64(np.zeros((2, 3, 64), complex), np.zeros((3, 1, 64), complex)),
            pg.ParameterError,
            ["(2, 3)", "(3, 1)", "broadcast"],
        ),
    }
)
def test_invalid_fft_operands_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


OUTS: dict[str, tuple[Any, list[str]]] = {
    "shape": (np.zeros((3, 64), complex), ["(3, 64)", "complex128 (2, 64)"]),
    "fewer axes": (np.zeros(128, complex), ["(128,)", "(2, 64)"]),
    "more axes": (np.zeros((1, 2, 64), complex), ["(1, 2, 64)", "(2, 64)"]),
    "dtype": (HALF.copy(), ["complex64 (2, 64)", "complex128 (2, 64)"]),
    "float": (np.zeros((2, 64)), ["float64"]),
    "byte order": (X.astype(">c16"), [">c16"]),
    "columns": (np.zeros((64, 2), complex).T, ["C-contiguous"]),
    "every other row": (np.zeros((4, 64), complex)[::2], ["C-contiguous"]),
    "unaligned": (np.zeros(2049, np.uint8)[1:].view(complex).reshape(2, 64), ["aligned"]),
    "read-only": (CONSTANT, ["read-only", "can be written"]),
    "list": (X.tolist(), ["list", "array of complex128"]),
    "text": ("out", ["str", "array of complex128"]),
}


@pytest.mark.parametrize("name", OUTS)
def test_invalid_fft_out_raises(name: str) -> None:
    out, words = OUTS[name]
    kept = np.array(out, copy=True)
    for call in (
        lambda: fft.fft64(X, out=out),
        lambda: fft.fft(X, inverse=True, out=out),
        lambda: fft.convolve64(X, X[0], out=out),
    ):
        check(call, pg.errors.OutputError, ["out ", *words])
    assert np.array_equal(out, kept)


@cases(
    {
        "in part": (
            lambda: fft.fft64(LONG[:128].reshape(2, 64), out=LONG[64:].reshape(2, 64)),
            pg.errors.OutputError,
            [],
        ),
        "a in part": (
            lambda: fft.convolve64(LONG[:128].reshape(2, 64), X, out=LONG[64:].reshape(2, 64)),
            pg.errors.OutputError,
            [],
        ),
        "b in part": (
            lambda: fft.convolve64(X, LONG[:128].reshape(2, 64), out=LONG[64:].reshape(2, 64)),
            pg.errors.OutputError,
            [],
        ),
        "filter": (
            lambda: fft.convolve64(X, LONG[:64], out=LONG[:128].reshape(2, 64)),
            pg.errors.OutputError,
            [],
        ),
    }
)
def test_fft_out_overlapping_an_operand_in_part_raises(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, ["out overlaps an operand in part", "other memory"])
    assert not LONG.any()


def test_fft_of_gpu_arrays_of_other_libraries_raises() -> None:
    for call, name in (
        (lambda: fft.fft(OnGPU()), "x"),
        (lambda: fft.fft64(OnGPU()), "x"),
        (lambda: fft.convolve64(OnGPU(), X), "a"),
        (lambda: fft.convolve64(X, OnGPU()), "b"),
    ):
        check(call, pg.DeviceError, [f"{name} is a GPU array", "cupy.asarray"])
    check(
        lambda: fft.fft64(X, out=OnGPU()),
        pg.errors.OutputError,
        ["out must be an array of complex128", "OnGPU"],
    )


# ---- sums of products ----


class OnGPU:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<u4", "data": (1, False), "version": 3}  # noqa: RUF012


@cases(
    {
        "inner": (
            lambda: batch(2, 3) @ batch(2, 3),
            pg.ParameterError,
            ["a has batch shape (2, 3)", "last axis of a, of length 3", "second last axis of b, of length 2"],
        ),
        "inner of 1": (lambda: batch(2, 1) @ batch(3, 2), pg.ParameterError, ["(2, 1)", "(3, 2)"]),
        "row": (
            lambda: batch(3) @ batch(2),
            pg.ParameterError,
            ["last axis of a, of length 3", "only axis of b, of length 2"],
        ),
        "single left": (lambda: batch() @ batch(2), pg.ParameterError, ["a is a single", "a * b"]),
        "single right": (lambda: pg.matmul(batch(2), batch()), pg.ParameterError, ["b is a single", "a * b"]),
        "batches": (
            lambda: batch(2, 1, 3) @ batch(3, 3, 1),
            pg.ParameterError,
            [
                "Operand 1 has batch shape (3, 3, 1)",
                "length 3 in axis -1 of those",
                "has length 2",
                "must be equal, or one of them must be 1",
            ],
        ),
        "an int": (lambda: batch(2) @ 3, pg.RingMismatch, ["b must be", "int", "Poly"]),
        "an int on the left": (lambda: 3 @ batch(2), pg.RingMismatch, ["a must be", "int", "Poly"]),
        "an array": (
            lambda: batch(2, 2) @ np.eye(2, dtype=int),
            pg.errors.CoefficientError,
            ["ring(array[..., None])"],
        ),
        "an array first": (
            lambda: np.eye(2, dtype=int) @ batch(2),
            pg.errors.CoefficientError,
            ["ring(values)"],
        ),
        "an array, called": (
            lambda: pg.matmul(batch(2, 2), np.eye(2)),
            pg.RingMismatch,
            ["b must be", "ndarray", "ring(x)"],
        ),
        "a list in einsum": (
            lambda: pg.einsum("i,i", batch(2), [1, 2]),
            pg.RingMismatch,
            ["Operand 1 must be", "list"],
        ),
        "a float": (lambda: batch(2) @ 1.5, pg.ParameterError, ["1.5", "int"]),
        "dot with a float": (lambda: pg.dot(batch(2), 1.5), pg.ParameterError, ["1.5", "int"]),
        "out of another shape": (
            lambda: pg.matmul(batch(2, 3), batch(3, 2), out=batch(2, 3)),
            pg.errors.OutputError,
            ["out has batch shape (2, 3)", "the result has (2, 2)"],
        ),
        "out of another ring": (
            lambda: pg.einsum("i->i", batch(2), out=RNS.ones(2)),
            pg.errors.OutputError,
            ["out is in", repr(RNS), repr(R)],
        ),
        "out no Poly": (
            lambda: pg.dot(batch(2), batch(2), out=np.zeros(4)),
            pg.errors.OutputError,
            ["out must be a Poly", "ndarray"],
        ),
    }
)
def test_invalid_sums_of_products_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


def test_einsum_out_overlapping_an_operand_in_part_raises() -> None:
    a = batch(3, 2)
    words = ["out overlaps an operand in part"]
    check(lambda: pg.einsum("ij,ij->ij", a[:2], a[:2], out=a[1:]), pg.errors.OutputError, words)
    check(lambda: pg.matmul(a[:2], a[:2], out=a[1:]), pg.errors.OutputError, words)
    assert a == batch(3, 2)


@cases(
    {
        "no text": (
            lambda: pg.einsum(["i"], batch(2)),
            pg.ParameterError,
            ["subscripts must be a str", "'ij,jk->ik', not list"],
        ),
        "lists of labels": (lambda: pg.einsum(batch(2), [0]), pg.RingMismatch, ["Operand 0 must be", "list"]),
        "no operands": (lambda: pg.einsum("i"), pg.ParameterError, ["no operands"]),
        "digit": (lambda: pg.einsum("i1", batch(2, 2)), pg.ParameterError, ["'i1'", "letters"]),
        "no ASCII": (lambda: pg.einsum("é", batch(2)), pg.ParameterError, ["'é'", "letters"]),
        "two dots": (lambda: pg.einsum("..i", batch(2)), pg.ParameterError, ["'..i'", "'...'"]),
        "dots twice": (lambda: pg.einsum("...i...", batch(2)), pg.ParameterError, ["'...i...'", "once"]),
        "two arrows": (lambda: pg.einsum("i->i->i", batch(2)), pg.ParameterError, ["'i->i'", "letters"]),
        "half an arrow": (lambda: pg.einsum("i-i", batch(2)), pg.ParameterError, ["'i-i'", "letters"]),
        "comma in the result": (lambda: pg.einsum("i->i,i", batch(2)), pg.ParameterError, ["'i,i'"]),
        "fewer terms": (
            lambda: pg.einsum("i", batch(2), batch(2)),
            pg.ParameterError,
            ["1 operands", "the number of operands is 2"],
        ),
        "more terms": (
            lambda: pg.einsum("i,i", batch(2)),
            pg.ParameterError,
            ["2 operands", "the number of operands is 1"],
        ),
        "unknown result": (
            lambda: pg.einsum("i->j", batch(2)),
            pg.ParameterError,
            ["'j'", "no operand has this label"],
        ),
        "twice in the result": (
            lambda: pg.einsum("i->ii", batch(2)),
            pg.ParameterError,
            ["'i'", "twice", "'ii'"],
        ),
        "dots not in the result": (
            lambda: pg.einsum("...i->i", batch(2, 2)),
            pg.ParameterError,
            ["'i'", "must have '...'"],
        ),
        "fewer labels": (
            lambda: pg.einsum("i,ij", batch(2), batch(2)),
            pg.ParameterError,
            ["'ij' has 2 labels", "operand 1 has 1 batch axes"],
        ),
        "more axes": (lambda: pg.einsum("i", batch(2, 2)), pg.ParameterError, ["1 labels", "2 batch axes"]),
        "coefficients": (
            lambda: pg.einsum("irx->i", batch(2)),
            pg.ParameterError,
            ["'irx' has 3 labels", "1 batch axes", "Coefficients and limbs are not batch axes"],
        ),
        "more labels than dots hold": (
            lambda: pg.einsum("...ij", batch(2)),
            pg.ParameterError,
            ["2 labels", "1 batch axes"],
        ),
        "lengths": (
            lambda: pg.einsum("ij,jk", batch(2, 3), batch(2, 3)),
            pg.ParameterError,
            [
                "Operand 1 has batch shape (2, 3)",
                "length 2 in axis 'j'",
                "an earlier operand has length 3",
                "must be equal, or one of them must be 1",
            ],
        ),
        "lengths of dots": (
            lambda: pg.einsum("...,...", batch(2), batch(3)),
            pg.ParameterError,
            ["length 3 in axis -1 of those that broadcast", "an earlier operand has length 2"],
        ),
        "diagonal": (
            lambda: pg.einsum("ii", batch(2, 3)),
            pg.ParameterError,
            ["occurs twice in an operand", "'i'", "2 and 3"],
        ),
        "diagonal of 1": (lambda: pg.einsum("ii", batch(1, 3)), pg.ParameterError, ["'i'", "1 and 3"]),
    }
)
def test_invalid_einsum_subscripts_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


M = np.ones((2, 2), np.uint32)


@cases(
    {
        "q = 1": (lambda: linalg.matmul(M, M, q=1), pg.ParameterError, ["q=1 ", "2 to 2**64"]),
        "q = 0": (lambda: linalg.matmul(M, M, q=0), pg.ParameterError, ["q=0", "2 to 2**64"]),
        "q < 0": (lambda: linalg.matmul(M, M, q=-7), pg.ParameterError, ["q=-7"]),
        "q > 2^64": (
            lambda: linalg.matmul(M, M, q=2**64 + 1),
            pg.ParameterError,
            [str(2**64 + 1), "2**64", "pg.Ring(1, q)"],
        ),
        "q huge": (lambda: linalg.matmul(M, M, q=2**1000), pg.ParameterError, ["q=", "2**64"]),
        "q float": (lambda: linalg.matmul(M, M, q=17.0), pg.ParameterError, ["q=17.0", "int"]),
        "q list": (lambda: linalg.matmul(M, M, q=[17]), pg.ParameterError, ["q=[17]", "int"]),
        "inner": (
            lambda: linalg.matmul(M, np.ones((3, 2), int), q=17),
            pg.ParameterError,
            ["(2, 2)", "(3, 2)", "last axis of A, of length 2", "second last axis of B, of length 3"],
        ),
        "column": (
            lambda: linalg.matmul(M, [1, 2, 3], q=17),
            pg.ParameterError,
            ["(3,)", "only axis of B, of length 3"],
        ),
        "batches": (
            lambda: linalg.matmul(np.ones((2, 2, 2), int), np.ones((3, 2, 2), int), q=17),
            pg.ParameterError,
            ["(2,)", "(3,)", "do not broadcast"],
        ),
        "single A": (
            lambda: linalg.matmul(3, M, q=17),
            pg.ParameterError,
            ["A is a single number", "matrix"],
        ),
        "single B": (
            lambda: linalg.matmul(M, np.uint32(3), q=17),
            pg.ParameterError,
            ["B is a single number"],
        ),
        "float array": (
            lambda: linalg.matmul(M * 1.0, M, q=17),
            pg.errors.CoefficientError,
            ["A has dtype float64", "int"],
        ),
        "floats": (
            lambda: linalg.matmul(M, [[1.0, 2], [3, 4]], q=17),
            pg.errors.CoefficientError,
            ["1.0 of B", "ints"],
        ),
        "bools": (lambda: linalg.matmul(M, M > 0, q=17), pg.errors.CoefficientError, ["B has dtype bool"]),
        "None": (lambda: linalg.matmul(None, M, q=17), pg.errors.CoefficientError, ["A=None"]),
        "text": (lambda: linalg.matmul("12", M, q=17), pg.errors.CoefficientError, ["A='12'"]),
        "ragged": (
            lambda: linalg.matmul([[1], [2, 3]], M, q=17),
            pg.errors.CoefficientError,
            ["A is a ragged"],
        ),
        "Poly": (
            lambda: linalg.matmul(batch(2, 2), M, q=17),
            pg.errors.CoefficientError,
            ["A must hold integers, not a Poly", "pg.matmul"],
        ),
        "Polys": (
            lambda: linalg.matmul(M, [R([1]), R([2])], q=17),
            pg.errors.CoefficientError,
            ["B must hold integers, not a Poly"],
        ),
        "out's shape": (
            lambda: linalg.matmul(M, M, q=17, out=np.zeros((2, 3), np.uint32)),
            pg.errors.OutputError,
            ["out is an array of uint32 (2, 3)", "uint32 (2, 2)"],
        ),
        "out's type": (
            lambda: linalg.matmul(M, M, q=2**40, out=np.zeros((2, 2), np.uint32)),
            pg.errors.OutputError,
            ["out is an array of uint32", "uint64 (2, 2)"],
        ),
        "out a list": (
            lambda: linalg.matmul(M, M, q=17, out=[[0]]),
            pg.errors.OutputError,
            ["out must be", "list", "uint32"],
        ),
        "out's order": (
            lambda: linalg.matmul(M, M, q=17, out=np.zeros((2, 2), np.uint32).T[::-1]),
            pg.errors.OutputError,
            ["out must be C-contiguous"],
        ),
        "a foreign GPU array": (
            lambda: linalg.matmul(OnGPU(), M, q=17),
            pg.DeviceError,
            ["A is a GPU array", "cupy.as"],
        ),
        "a foreign GPU array as B": (
            lambda: linalg.matmul(M, OnGPU(), q=17),
            pg.DeviceError,
            ["B is a GPU array"],
        ),
        "a foreign GPU array as out": (
            lambda: linalg.matmul(M, M, q=17, out=OnGPU()),
            pg.errors.OutputError,
            ["out must be an array of uint32", "OnGPU"],
        ),
    }
)
def test_invalid_matrix_products_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


def test_linalg_matmul_out_overlapping_an_operand_in_part_raises() -> None:
    a = np.ones((3, 2), np.uint32)
    a.setflags(write=True)
    words = ["out overlaps an operand in part", "other memory"]
    check(lambda: linalg.matmul(a[:2], M, q=17, out=a[1:]), pg.errors.OutputError, words)
    check(lambda: linalg.matmul(M, a[:2], q=17, out=a[1:]), pg.errors.OutputError, words)
    constant = M.copy()
    constant.setflags(write=False)
    check(lambda: linalg.matmul(M, M, q=17, out=constant), pg.errors.OutputError, ["out is read-only"])
    assert (a == 1).all()


@cases(
    {
        "matrix": (
            lambda: linalg.matmul(np.ones((2**21, 1), np.uint32), np.ones((1, 2**21), np.uint32), q=17),
            pg.errors.OutOfHostMemory,
            ["1.64e+04 GiB", "available", "smaller batches"],
        ),
        "batch": (
            lambda: linalg.matmul(
                np.ones((2**14, 1, 1, 2**8), np.uint8), np.ones((2**14, 2**8, 1), np.uint8), q=2**40
            ),
            pg.errors.OutOfHostMemory,
            ["GiB", "available"],
        ),
        "polynomials": (
            lambda: pg.einsum("i,j->ij", R.ones(2**20), R.ones(2**20)),
            pg.errors.OutOfHostMemory,
            ["1.64e+04 GiB", "available", "smaller batches"],
        ),
        "a product": (
            lambda: R.ones((2**20, 1)) * R.ones(2**20),
            pg.errors.OutOfHostMemory,
            ["1.64e+04 GiB"],
        ),
    }
)
def test_results_beyond_memory_raise(call: Any, cls: Any, words: Any) -> None:
    check(call, cls, words)


# ---- devices ----

without_cupy = pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
PIP = 'pip install "polygpu[cuda13]"', 'pip install "polygpu[cuda12]"'


def enter(name: Any) -> None:
    with pg.device(name):
        pass


@pytest.mark.parametrize("name", ["gpu", "", "CPU", "cud", "cpu:0", 0, b"cpu", ["cpu"]])
def test_unknown_devices_raise(name: Any) -> None:
    for call in (lambda: enter(name), lambda: R([1]).to(name)):
        check(call, pg.DeviceError, [f"device={name!r}", "'cpu'"])
    assert R([1]).device == "cpu"


@without_cupy
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_without_a_gpu_raises(name: str) -> None:
    for call in (lambda: enter(name), lambda: R([1]).to(name)):
        check(call, pg.errors.BackendUnavailable, [repr(name), *PIP])
    assert R([1]).device == "cpu"


def test_gpu_arrays_as_coefficients_raise() -> None:
    for call, name in ((lambda: R(OnGPU()), "x"), (lambda: R.from_residues(OnGPU()), "data")):
        check(call, pg.DeviceError, [f"{name} is a GPU array", f"cupy.asarray({name})"])
    with pytest.raises(TypeError):
        R([1]) * OnGPU()


def last_line(code: str, **environment: str) -> str:
    """The error that ends a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert "During handling" not in done.stderr and "direct cause" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


USE = "import polygpu as pg; print(pg.Ring(4, 17)([1, 2]) * 2)"


@pytest.mark.parametrize(
    ("variable", "value", "cls", "words"),
    [
        ("POLYGPU_DEVICE", "gpu", "DeviceError", ["POLYGPU_DEVICE", "'gpu'", "cpu"]),
        ("POLYGPU_CPU_ISA", "neon512", "DeviceError", ["POLYGPU_CPU_ISA", "'neon512'", "portable"]),
        ("POLYGPU_NUM_THREADS", "0", "ParameterError", ["POLYGPU_NUM_THREADS", "'0'", "from 1 to 4096"]),
        ("POLYGPU_NUM_THREADS", "two", "ParameterError", ["POLYGPU_NUM_THREADS", "'two'", "4096"]),
        ("POLYGPU_NUM_THREADS", "-1", "ParameterError", ["POLYGPU_NUM_THREADS", "'-1'", "4096"]),
        ("POLYGPU_POOL_BYTES", "1 GiB", "ParameterError", ["POLYGPU_POOL_BYTES", "'1 GiB'", "Use 0"]),
        ("POLYGPU_POOL_BYTES", "-1", "ParameterError", ["POLYGPU_POOL_BYTES", "'-1'", "10^18"]),
        ("POLYGPU_POOL_BYTES", "9" * 5000, "ParameterError", ["POLYGPU_POOL_BYTES", "10^18"]),
    ],
)
def test_invalid_environment_variables_raise(variable: str, value: str, cls: str, words: list[str]) -> None:
    line = last_line(USE, **{variable: value})
    assert line.startswith(f"polygpu.errors.{cls}: "), line
    for word in words:
        assert word in line, line


@without_cupy
def test_cuda_in_the_environment_without_a_gpu_raises() -> None:
    line = last_line(USE, POLYGPU_DEVICE="cuda")
    assert line.startswith("polygpu.errors.BackendUnavailable: ")
    for word in ("POLYGPU_DEVICE", "'cuda'", *PIP):
        assert word in line, line


@pytest.mark.parametrize("version", ["1.23.5", "1.26.4", "0.9"])
def test_import_with_an_old_numpy_raises(tmp_path: Path, version: str) -> None:
    """A stub stands for the older NumPy, with which the core cannot be loaded."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    path = os.pathsep.join([str(tmp_path), str(Path(pg.__file__).parent.parent)])
    code = "import polygpu"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: polygpu needs NumPy 2.0 or later")
    assert f"NumPy {version} is installed" in last and str(tmp_path) in last and "numpy>=2" in last


def test_unsupported_instruction_set_raises() -> None:
    """avx512 is requested on a CPU that reports only avx2."""
    code = (
        "from polygpu import _cpu; from polygpu._backends import cpu\n"
        "class Old:\n"
        "    def __getattr__(self, name): return getattr(_cpu, name)\n"
        "    def supported_isas(self): return ['avx2', 'portable']\n"
        "cpu._cpu = Old()\n" + USE
    )
    line = last_line(code, POLYGPU_CPU_ISA="avx512")
    for word in ("DeviceError", "POLYGPU_CPU_ISA", "'avx512'", "avx2, portable"):
        assert word in line, line


def test_valid_environment_variables() -> None:
    environment = {"POLYGPU_DEVICE": "cpu", "POLYGPU_CPU_ISA": "portable", "POLYGPU_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", USE], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Poly(") and not done.stderr
