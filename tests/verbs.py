"""Every public verb with the calls that tests and benchmarks make of it, and the public names that are none.

A verb computes values or arrays of a device from others. Tests call each case again and again, with the same
and with other values, and record it in a CUDA graph.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from oracle import BABYBEAR, as_key, as_keys, chain, draw

import polygpu as pg
from polygpu import Poly, Ring, fft, lattice, linalg, memory, ntt_primes, rns, zk
from polygpu import _backends as backends

Draw = Callable[[int, int], Any]  # makes an argument from a seed and the argument's number
Batch = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A call f(*args(seed)). Another seed gives other values and constants in the same shapes.

    Arguments are values and arrays in host memory, which placed() brings to a device, and constants: ints,
    lists and rings.
    """

    label: str
    f: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]]
    out: int | None = None  # the number of the argument that f writes
    host_only: bool = False  # computed by the host on every device, so that no graph can hold it
    graph: bool = True  # whether a CUDA graph can hold it
    error: str = ""  # where it cannot: what pg.capture, or the first replay, raises


@dataclass(frozen=True)
class Unprepared:
    """GGSW ciphertexts, of which placed() makes a lattice.Prepared: that one is of one device."""

    ggsw: Poly
    bits: int


def placed(x: Any) -> Any:
    """An argument of a case on the current device; constants as they are."""
    if isinstance(x, Poly):
        return x.to()
    if isinstance(x, Unprepared):
        return lattice.prepare(x.ggsw.to(), bits=x.bits)
    return backends.backend().from_host(x) if isinstance(x, np.ndarray) else x


def is_constant(x: Any) -> bool:
    """Whether an argument of a case is a constant. All others lie in memory that can be written in place."""
    return not isinstance(x, (Poly, Unprepared, np.ndarray))


# ---- rings ----

# Each call of a case's args makes the rings anew: a test meets none on which another test has called a verb.
RINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "30 bits": ((16, ntt_primes(16, bits=30)), {}),
    "50 bits": ((16, ntt_primes(16, bits=50)), {}),
    "50 bits, RNS": ((16, ntt_primes(16, bits=50, count=2)), {}),
    "40 bits, RNS": ((16, ntt_primes(16, bits=40, count=2)), {}),
    "mixed limbs": ((16, chain(16, (30, 50, 64)).moduli), {}),
    "incomplete": ((256, 3329), {}),
    "by FFT": ((20, 10**18), {"product": "fft"}),
    "by primes": ((20, 10**18), {"product": "ntt"}),
    "2^100": ((8, 2**100), {}),
    "2^32": ((32, 2**32), {}),
    "2^64": ((32, 2**64), {}),
    "30 bits, n = 256": ((256, ntt_primes(256, bits=30)), {}),  # such degrees are rotated in one kernel
    "2^32, n = 256": ((256, 2**32), {}),
    "2^32, by primes": ((16, 2**32), {"product": "ntt"}),
    "BabyBear": ((16, BABYBEAR), {"kind": "cyclic", "root": "generator"}),
    "BabyBear, n = 32": ((32, BABYBEAR), {"kind": "cyclic", "root": "generator"}),
    "chain of 30 bits": ((16, chain(16, (30,) * 5).moduli), {}),
    "chain of 50 bits": ((16, chain(16, (50,) * 5).moduli), {}),
    "chain with 60 bits": ((16, chain(16, (60, 46, 30, 50, 60)).moduli), {}),
}
COMPLETE = ("30 bits", "50 bits, RNS")
CHAINS = ("chain of 30 bits", "chain of 50 bits", "chain with 60 bits")
BOTH = ("coef", "eval")
BATCHES: tuple[Batch, ...] = ((), (3,))


def of(name: str, first: int | None = None, last: int | None = None) -> Draw:
    """A ring, or that of some of its limbs."""
    (n, moduli), options = RINGS[name]
    limbs = moduli if isinstance(moduli, int) else moduli[first:last]
    return lambda seed, number: Ring(n, limbs, **options)


# ---- arguments ----


def poly(ring: str | Draw, batch: Batch = (), domain: str = "coef") -> Draw:
    make = of(ring) if isinstance(ring, str) else ring

    def drawn(seed: int, number: int) -> Poly:
        R = make(seed, number)
        with pg.device("cpu"):
            residues = R(draw(R, batch, 100 * seed + number)).data
        return Poly(R, residues, domain)  # type: ignore[arg-type]

    return drawn


def each(*values: Any) -> Draw:
    """A constant, another one for each seed if several are given."""
    return lambda seed, number: values[seed % len(values)]


def unprepared(ring: str, batch: Batch, bits: int) -> Draw:
    ggsw = poly(ring, batch)
    return lambda seed, number: Unprepared(ggsw(seed, number), bits)


def integers(shape: Batch, dtype: Any, low: int, high: int) -> Draw:
    def drawn(seed: int, number: int) -> np.ndarray:
        return np.random.default_rng([seed, number]).integers(low, high, shape, dtype)

    return drawn


def floats(shape: Batch, dtype: Any) -> Draw:
    def drawn(seed: int, number: int) -> np.ndarray:
        real, imaginary = np.random.default_rng([seed, number]).standard_normal((2, *shape))
        complex_dtype = np.dtype(dtype).kind == "c"
        return (real + 1j * imaginary if complex_dtype else real).astype(dtype)

    return drawn


# ---- cases ----


def case(label: str, f: Callable[..., Any], *draws: Draw, **options: Any) -> Case:
    def args(seed: int) -> tuple[Any, ...]:
        return tuple(x(seed, number) for number, x in enumerate(draws))

    return Case(label, f, args, **options)


def named(f: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """f with its last arguments given by name."""

    def call(*args: Any, **options: Any) -> Any:
        at = len(args) - len(names)
        return f(*args[:at], **dict(zip(names, args[at:], strict=True)), **options)

    return call


def into(label: str, f: Callable[..., Any], *draws: Draw, **options: Any) -> Case:
    """A call whose last argument is `out`."""
    return case(label, lambda *args: f(*args[:-1], out=args[-1]), *draws, out=len(draws) - 1, **options)


def onto(label: str, f: Callable[..., Any], *draws: Draw, at: int = 0, **options: Any) -> Case:
    """A call whose argument of this number is `out` too."""
    return case(label, lambda *args: f(*args, out=args[at]), *draws, out=at, **options)


def with_values(
    f: Callable[..., Any],
    *more: Draw,
    rings: Iterable[str] = COMPLETE,
    domains: Iterable[str] = BOTH,
    batches: Iterable[Batch] = BATCHES,
    values: int = 1,
    label: str = "",
    **options: Any,
) -> list[Case]:
    """Return cases of a call with `values` values, and more, for each ring, domain and batch shape."""
    return [
        case(f"{R}, {d}, {b}{label}", f, *(poly(R, b, d) for _ in range(values)), *more, **options)
        for R in rings
        for d in domains
        for b in batches
    ]


def in_place(f: Callable[..., Any]) -> Callable[..., Any]:
    """f on a copy of its first operand, written over it: f may change the domain, which no argument may."""

    def call(a: Poly, *args: Any) -> Any:
        a = a.copy()
        return f(a, *args, out=a)

    return call


def arithmetic(f: Callable[..., Any]) -> list[Case]:
    """Cases of Poly.add, sub and mul."""
    pairs: list[tuple[Batch, Batch]] = [((3,), (1,)), ((2, 1), (3,)), ((), (3,)), ((2, 3), (3,))]
    numbers = {"small": each(3, -5), "negative": each(-7, 11), "many words": each(2**200 + 1, -(3**90))}
    R = "50 bits, RNS"
    return [
        *with_values(f, values=2),
        *with_values(f, values=2, rings=["mixed limbs"], batches=[(3,)]),
        *with_values(f, values=2, rings=["incomplete"], batches=[()]),
        *with_values(f, values=2, rings=["by FFT", "by primes"], domains=["coef"]),
        *(case(f"{x} and {y}, {d}", f, poly(R, x, d), poly(R, y, d)) for x, y in pairs for d in BOTH),
        case("coef and eval", f, poly(R, (3,)), poly(R, (3,), "eval")),
        case("eval and coef", f, poly(R, (3,), "eval"), poly(R, (3,))),
        *(case(f"a value and itself, {d}", lambda a: f(a, a), poly(R, (3,), d)) for d in BOTH),
        *(
            into(f"into other memory, {R}, {d}, {b}", f, *(poly(R, b, d) for _ in range(3)))
            for R in COMPLETE
            for d in BOTH
            for b in BATCHES
        ),
        *(
            onto(f"over operand {at}, {d}", f, poly(R, (3,), d), poly(R, (3,), d), at=at)
            for at in (0, 1)
            for d in BOTH
        ),
        *(onto(f"over itself, {d}, (1,)", f, poly(R, (3,), d), poly(R, (1,), d)) for d in BOTH),
        into("into other memory, by FFT", f, *(poly("by FFT", (3,)) for _ in range(3))),
        into("into other memory, incomplete", f, *(poly("incomplete", (), "eval") for _ in range(3))),
        into("into other memory, (2, 1) and (3,)", f, *(poly(R, b, "eval") for b in ((2, 1), (3,), (2, 3)))),
        *(
            case(f"a {size} int, {R}, {d}, {b}", f, poly(R, b, d), number)
            for size, number in numbers.items()
            for R, b in ((COMPLETE[0], (3,)), (COMPLETE[1], (3,)), (COMPLETE[1], ()), ("incomplete", ()))
            for d in BOTH
        ),
        case("an int, mixed limbs", f, poly("mixed limbs", (3,), "eval"), each(2**70, -3)),
        case("an int, by FFT", f, poly("by FFT", (3,)), each(2**70, -3)),
        *(into(f"an int, into, {d}", f, poly(R, (3,), d), each(3, -5), poly(R, (3,), d)) for d in BOTH),
        *(onto(f"an int, over itself, {d}", f, poly(R, (3,), d), each(3, -5)) for d in BOTH),
        case("2^100", f, poly("2^100", (3,)), poly("2^100", (3,)), host_only=True),
        *modulo_limbs(named(f, "ring")),
        *(
            case(
                f"modulo the first limbs, an int, {d}",
                named(f, "ring"),
                first,
                each(3, -5),
                of(CHAINS[1], 0, 2),
            )
            for d in BOTH
            for first in [poly(CHAINS[1], (3,), d)]
        ),
    ]


def modulo_limbs(f: Callable[..., Any], values: int = 2) -> list[Case]:
    """Cases of a verb (values, ring) of values that have more limbs than the ring."""
    R = CHAINS[1]
    batches = [(3,)] if values > 1 else BATCHES
    first, shuffled = of(R, 0, 2), lambda seed, number: of(R)(seed, number)[[3, 0]]
    return [
        *(
            case(f"modulo the {label} limbs, {d}, {b}", f, *(poly(R, b, d) for _ in range(values)), ring)
            for label, ring in (("first", first), ("other", shuffled))
            for d in BOTH
            for b in batches
        ),
        *(
            case(
                f"modulo limbs of two rings, {d}",
                f,
                poly(CHAINS[2], (3,), d),
                *(poly(of(CHAINS[2], 0, 3), (3,), d) for _ in range(values - 1)),
                of(CHAINS[2], 0, 2),
            )
            for d in BOTH
        ),
    ]


def with_two_values(f: Callable[..., Any]) -> list[Case]:
    """Cases of an operator of two values."""
    return [*with_values(f, values=2), case("by FFT", f, poly("by FFT", (3,)), poly("by FFT", (3,)))]


def with_ints(f: Callable[..., Any]) -> list[Case]:
    """Cases of an operator of a value and an int."""
    return [
        *with_values(f, each(3, -5), label=", an int"),
        *with_values(f, each(2**200 + 1, 7), label=", long"),
    ]


def changed(f: Callable[..., Any], to: tuple[str, str] = BOTH) -> list[Case]:
    """Cases of a verb (a, out). to: the domains of its results of coefficients and of evaluated values."""
    return [
        *with_values(f),
        *with_values(f, rings=["mixed limbs"], batches=[(2, 3)]),
        *with_values(f, rings=["incomplete"], batches=[()]),
        *(
            into(f"into other memory, {R}, {d}, {b}", f, poly(R, b, d), poly(R, b, made))
            for R in (*COMPLETE, "incomplete")
            for d, made in zip(BOTH, to, strict=True)
            for b in BATCHES
        ),
        *(case(f"over itself, {R}, {d}", in_place(f), poly(R, (3,), d)) for R in COMPLETE for d in BOTH),
    ]


def moved(f: Callable[..., Any], small: Any, other: Any, many: Any, others: Any) -> list[Case]:
    """Cases of automorphism and mul_monomial: for each seed a number, or a list of three."""
    R = "50 bits, RNS"
    one, several, table = each(small, other), each(many, others), each([many, others], [others, many])
    cases = []
    for d in BOTH:
        at, listed = poly(R, (3,), d), {"label": ", a list"}
        cases += [
            *with_values(f, one, domains=[d]),
            *with_values(f, one, rings=["mixed limbs"], domains=[d], batches=[(3,)]),
            *with_values(f, one, rings=["incomplete"], domains=[d], batches=[()]),
            *with_values(f, several, domains=[d], **listed),
            *with_values(f, several, rings=["incomplete"], domains=[d], batches=[(3,)], **listed),
            *with_values(f, table, domains=[d], batches=[(3,), (2, 1)], label=", to (2, 3)"),
            into(f"into other memory, {d}", f, at, one, at),
            onto(f"over itself, {d}", f, at, one),
            into(f"a list, into other memory, {d}", f, poly(R, (), d), several, at),
            onto(f"a list, over itself, {d}", f, at, several),
        ]
    return [
        *cases,
        *with_values(f, one, rings=["by FFT"], domains=["coef"]),
        *with_values(f, several, rings=["by FFT"], domains=["coef"], **listed),
    ]


def copied(f: Callable[..., Any]) -> list[Case]:
    """Cases of a verb (a) of any batch shape."""
    return with_values(f, batches=[(), (2, 3)])


def indexed() -> list[Case]:
    """Cases of a[key]."""
    keys: dict[str, Any] = {
        "an int": each(1, 0),
        "a negative int": each(-1, -2),
        "a slice": each(slice(1, 3), slice(0, 2)),
        "a slice with a step": each(slice(0, None, 2), slice(1, None, 2)),
        "backwards": each(slice(None, None, -1)),
        "a column": each((slice(None), 1), (slice(None), 2)),
        "a new axis": each((None, Ellipsis)),
        "a list": each([3, 0, 2], [1, 1, 3]),
        "bools": each([True, False, True, False], [False, True, True, False]),
        "a row and a list": each((slice(1, 3), [2, 0]), (slice(0, 2), [0, 1])),
    }
    cases = [
        case(f"{name}, {d}", operator.getitem, poly("50 bits, RNS", (4, 3), d), key)
        for name, key in keys.items()
        for d in BOTH
    ]
    return [
        *cases,
        case(
            "indices on the device", operator.getitem, poly("30 bits", (4,)), integers((3,), np.int64, 0, 4)
        ),
    ]


def assigned() -> list[Case]:
    """Cases of a[key] = value."""

    def assign(a: Poly, key: Any, value: Any) -> Poly:
        a[key] = value
        return a

    keys = {
        "an int": (each(1, 0), (3,)),
        "a slice": (each(slice(1, 3), slice(0, 2)), (2, 3)),
        "a column": (each((slice(None), 1), (slice(None), 2)), (4,)),
        "a list": (each([3, 0], [1, 3]), (2, 3)),
        "broadcast": (each(slice(0, 2), slice(1, 3)), (3,)),
    }
    R, batch = "50 bits, RNS", (4, 3)
    return [
        *(
            case(f"{name}, {d}", assign, poly(R, batch, d), key, poly(R, b, d), out=0)
            for name, (key, b) in keys.items()
            for d in BOTH
        ),
        *(
            case(f"from {d} to {to}", assign, poly(R, batch, to), each(1, 2), poly(R, (3,), d), out=0)
            for d, to in (BOTH, BOTH[::-1])
        ),
        *(case(f"a constant, {d}", assign, poly(R, batch, d), each(1, 2), each(3, -5), out=0) for d in BOTH),
    ]


def converted(
    f: Callable[..., Any], source: slice, target: slice, *more: Draw, batch: Batch = (), label: str = ""
) -> list[Case]:
    """Cases of a verb (a, S, ...) between limbs of the chains. batch: axes that the result has besides."""

    def limbs(name: str, part: slice) -> Draw:
        return of(name, part.start, part.stop)

    written = [
        into(
            f"into other memory, {name}, {d}{label}",
            f,
            poly(limbs(name, source), (3,), d),
            limbs(name, target),
            *more,
            poly(limbs(name, target), (3, *batch), d),
        )
        for name in CHAINS
        for d in BOTH
    ]
    return [
        *(
            case(f"{name}, {d}, {b}{label}", f, poly(limbs(name, source), b, d), limbs(name, target), *more)
            for name in CHAINS
            for d in BOTH
            for b in BATCHES
        ),
        *written,
    ]


def matrices(f: Callable[..., Any]) -> list[Case]:
    """Cases of products of matrices a @ b."""
    shapes: list[tuple[Batch, Batch]] = [
        ((2, 3), (3, 2)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((2, 1, 2, 3), (2, 3, 1)),
    ]
    R = "50 bits, RNS"
    return [
        *(case(f"{x} @ {y}, {R}, {d}", f, poly(R, x, d), poly(R, y, d)) for x, y in shapes for d in BOTH),
        *(case(f"30 bits, {d}", f, poly("30 bits", (2, 3), d), poly("30 bits", (3, 2), d)) for d in BOTH),
        *(
            case(f"mixed limbs, {d}", f, poly("mixed limbs", (2, 2), d), poly("mixed limbs", (2,), d))
            for d in BOTH
        ),
        *(
            case(f"incomplete, {d}", f, poly("incomplete", (1, 2), d), poly("incomplete", (2,), d))
            for d in BOTH
        ),
        case("by FFT", f, poly("by FFT", (2, 2)), poly("by FFT", (2,))),
        case("coef and eval", f, poly(R, (2, 2)), poly(R, (2, 2), "eval")),
    ]


def joined(f: Callable[..., Any]) -> list[Case]:
    """Cases of stack and concatenate."""

    def join(*polys: Poly) -> Poly:
        return f(polys)

    def join_last(*polys: Poly) -> Poly:
        return f(list(polys), axis=-1)

    return [
        *with_values(join, values=2, batches=[(3,)]),
        *with_values(join_last, values=3, batches=[(2, 3)], label=", last axis"),
        *with_values(join, values=2, rings=["incomplete"], batches=[(1,)]),
        case("coef and eval", join, poly("50 bits, RNS", (3,)), poly("50 bits, RNS", (3,), "eval")),
    ]


def _scaled_limbs(a: Poly, limbs: list[int]) -> Poly:
    return a.scale_by(limbs=limbs)


def _for_bgv(a: Poly, S: Ring, plaintext: int) -> Poly:
    return a.mod_down(S, plaintext=plaintext)


def _prepared_product(ggsw: Poly, c: Poly, bits: int) -> Poly:
    return lattice.external_product(lattice.prepare(ggsw, bits=bits), c, bits=bits)


# ---- ciphertexts ----

CIPHERTEXTS: tuple[Batch, ...] = ((2,), (3, 2))


def external(f: Callable[..., Any], count: int = 1) -> list[Case]:
    """Return the cases of a verb (ggsw, ..., bits) with `count` ciphertexts."""

    def of_ring(label: str, R: str, ggsw: Draw, batch: Batch, domain: str, bits: Draw) -> Case:
        return case(label, f, ggsw, *(poly(R, batch, domain) for _ in range(count)), bits)

    bits, R = each(7, 6), "2^32, by primes"
    return [
        *(
            of_ring(f"{R}, {d}, {b}", R, poly(R, (2, 3, 2), "eval"), b, d, bits)
            for R in ("30 bits", "50 bits")
            for d in BOTH
            for b in CIPHERTEXTS
        ),
        *(
            of_ring(f"{R}, {b}, {name}", R, ggsw, b, "coef", each(7))
            for R in ("2^32", "2^64")
            for name, ggsw in (
                ("prepared", unprepared(R, (2, 3, 2), 7)),
                ("not prepared", poly(R, (2, 3, 2))),
            )
            for b in CIPHERTEXTS
        ),
        of_ring(R, R, poly(R, (2, 3, 2)), (3, 2), "coef", bits),
    ]


def rotations() -> list[Case]:
    """Cases of blind_rotate, with exponents in a list or in an array on the device."""
    f, many = named(lattice.blind_rotate, "bits"), each([3, 1, 0, -2], [-1, 5, 2, 0])
    cases = []
    for R, batches, matrix in (
        ("30 bits", CIPHERTEXTS, poly("30 bits", (3, 2, 3, 2), "eval")),
        ("50 bits", CIPHERTEXTS, poly("50 bits", (3, 2, 3, 2), "eval")),
        ("2^32", CIPHERTEXTS, unprepared("2^32", (3, 2, 3, 2), 7)),
        ("2^64", CIPHERTEXTS, unprepared("2^64", (3, 2, 3, 2), 7)),
        ("2^32, by primes", CIPHERTEXTS, poly("2^32, by primes", (3, 2, 3, 2))),
        ("30 bits, n = 256", CIPHERTEXTS[:1], poly("30 bits, n = 256", (3, 2, 2, 2), "eval")),
        ("2^32, n = 256", CIPHERTEXTS[:1], unprepared("2^32, n = 256", (3, 2, 2, 2), 7)),
    ):
        acc, powers = poly(R, batches[-1]), integers((*batches[-1][:-1], 4), np.int64, -40, 40)
        cases += [
            *(case(f"{R}, {b}", f, poly(R, b), matrix, many, each(7)) for b in batches),
            case(f"{R}, an array", f, acc, matrix, powers, each(7)),
        ]
    R, matrix, acc = "30 bits", poly("30 bits", (3, 2, 3, 2), "eval"), poly("30 bits", (3, 2))
    return [
        *cases,
        into("into other memory", f, acc, matrix, many, each(7), acc),
        into(
            "into other memory, an array", f, acc, matrix, integers((3, 4), np.int64, -40, 40), each(7), acc
        ),
        case("evaluated", f, poly(R, (3, 2), "eval"), matrix, many, each(7)),
        case("not prepared", f, poly("2^32", (3, 2)), poly("2^32", (3, 2, 3, 2)), many, each(7)),
    ]


def switched() -> list[Case]:
    """Cases of key_switch, of three limbs with two special ones, and of others."""
    cases = []

    def f(a: Poly, key: Poly, size: int, special: Ring, *, hoisted: bool = False, **options: Any) -> Poly:
        x = lattice.hoist(a, special=special, limbs_per_digit=size) if hoisted else a
        return lattice.key_switch(x, as_key(key, size, special), **options)

    def adding(a: Poly, key: Poly, size: int, special: Ring, add: Poly, **options: Any) -> Poly:
        return lattice.key_switch(a, as_key(key, size, special), add=add, **options)

    for name in CHAINS:
        Q, special = of(name, 0, 3), of(name, 3)
        key = poly(of(name), (2, 2), "eval")
        for d in BOTH:
            cases += [case(f"{name}, {d}, {b}", f, poly(Q, b, d), key, each(2), special) for b in BATCHES]
            given = poly(Q, (3,), d), key, each(2), special
            more = poly(Q, (3, 2), d)
            cases += [
                case(f"fast, {name}, {d}", partial(f, conversion="fast"), *given),
                case(f"rescaled, {name}, {d}", partial(f, rescale=1), *given),
                case(f"not divided, {name}, {d}", partial(f, divide=False), *given),
                case(f"hoisted, {name}, {d}", partial(f, hoisted=True), *given),
                into(f"into other memory, {name}, {d}", f, *given, more),
                case(f"added, {name}, {d}", adding, *given, more),
                onto(f"added, over it, {name}, {d}", adding, *given, more, at=4),
                case(f"fewer limbs, {name}, {d}", f, poly(of(name, 0, 2), (3,), d), *given[1:]),
            ]
    name = CHAINS[1]
    single = poly(of(name, 0, 3), (3,), "eval"), poly(of(name, 0, 4), (3, 2), "eval"), each(1), of(name, 3, 4)
    return [*cases, case("digits of one limb", f, *single)]


def by_limbs(f: Callable[..., Any], ggsw: Batch, *more: Draw, count: int = 1) -> list[Case]:
    """Cases of a verb (ggsw, ciphertexts, ...) with digits that are groups of two limbs."""

    def call(matrix: Poly, *args: Any) -> Any:
        *operands, special = args
        return f(matrix, *operands, limbs_per_digit=2, special=special)

    return [
        case(
            f"groups of limbs, {name}, {d}, {b}",
            call,
            poly(of(name), ggsw, "eval"),
            *(poly(of(name, 0, 3), b, d) for _ in range(count)),
            *more,
            of(name, 3),
        )
        for name in CHAINS
        for d in BOTH
        for b in CIPHERTEXTS
    ]


def composed(f: Callable[..., Any], ggsw: Batch, *more: Draw, count: int = 1) -> list[Case]:
    """Cases of a verb (ggsw, ciphertexts, ..., bits) in rings of several limbs."""
    return [
        case(
            f"base 2^bits, {name}, {d}, {b}",
            f,
            poly(of(name, 0, 3), ggsw, "eval"),
            *(poly(of(name, 0, 3), b, d) for _ in range(count)),
            *more,
            each(9, 8),
        )
        for name in CHAINS
        for d in BOTH
        for b in CIPHERTEXTS
    ]


def rotated_in_limbs() -> list[Case]:
    """Cases of blind_rotate in rings of several limbs, with exponents in a list or in an array."""

    def f(acc: Poly, bsk: Poly, exponents: Any, special: Ring) -> Poly:
        return lattice.blind_rotate(acc, bsk, exponents, limbs_per_digit=2, special=special)

    name, many = CHAINS[0], each([3, 1, -2], [-1, 5, 0])
    Q, T, P = of(name, 0, 3), of(name), of(name, 3)
    array = integers((3, 3), np.int64, -40, 40)
    base = named(lattice.blind_rotate, "bits")
    return [
        *(
            case(f"groups of limbs, {label}", f, poly(Q, (3, 2)), poly(T, (2, 2, 2, 2), "eval"), powers, P)
            for label, powers in (("a list", many), ("an array", array))
        ),
        *(
            case(
                f"base 2^bits, {label}", base, poly(Q, (3, 2)), poly(Q, (2, 2, 3, 2), "eval"), powers, each(9)
            )
            for label, powers in (("a list", many), ("an array", array))
        ),
    ]


def stepped(f: Callable[..., Any], gs: list[int], batches: Iterable[Batch], *more: Draw) -> list[Case]:
    """Cases of a verb (ciphertexts, keys, ...) that takes a key for each of these automorphisms."""

    def call(c: Poly, keys: Poly, special: Ring, *args: Any) -> Poly:
        found = {g: as_key(keys[i], 2, special, g) for i, g in enumerate(gs)}
        return f(c, found, *args)

    return [
        case(
            f"{name}, {d}, {b}",
            call,
            poly(of(name, 0, 3), b, d),
            poly(of(name), (len(gs), 2, 2), "eval"),
            of(name, 3),
            *more,
        )
        for name in CHAINS
        for d in BOTH
        for b in batches
    ]


def embedded() -> list[Case]:
    """Cases of embed: residues modulo Q, and words modulo a power of two or a prime."""
    numbers = integers((3, 9), np.int64, -(2**62), 2**62)
    return [
        *(case(f"{name}, modulo Q", lattice.embed, numbers, of(name, 0, 3)) for name in CHAINS),
        *(
            case(f"{name}, {label}", named(lattice.embed, "q"), numbers, of(name, 0, 3), each(q))
            for name in CHAINS
            for label, q in (("2^32", 2**32), ("2^64", 2**64), ("a prime", 12289))
        ),
    ]


def of_rows() -> list[Case]:
    """Cases of rgsw_from_rlwe."""

    def f(c: Poly, key: Poly, special: Ring) -> Poly:
        return lattice.rgsw_from_rlwe(c, as_key(key, 2, special))

    return [
        case(f"{R}, {d}, {b}", f, poly(of(R, 0, 3), b, d), poly(of(R), (2, 2), "eval"), of(R, 3))
        for R in CHAINS
        for d in BOTH
        for b in ((4, 2), (3, 4, 2))
    ]


def hoisted(c: Poly, special: Ring) -> Poly:
    """The digits that hoist makes."""
    return lattice.hoist(c, special=special, limbs_per_digit=2).digits


def twice(draw: Draw) -> tuple[Draw, Draw]:
    """Two arguments of one kind."""
    return draw, draw


def relinearised() -> list[Case]:
    """Cases of multiply."""

    def f(a: Poly, b: Poly, key: Poly, special: Ring, add: Poly | None = None, **options: Any) -> Poly:
        return lattice.multiply(a, b, as_key(key, 2, special), add=add, **options)

    def given(name: str, batch: Batch, domain: str) -> list[Draw]:
        a = poly(of(name, 0, 3), batch, domain)
        return [a, a, poly(of(name), (2, 2), "eval"), of(name, 3)]

    one = CHAINS[1]
    return [
        *(case(f"{R}, {d}, {b}", f, *given(R, b, d)) for R in CHAINS for d in BOTH for b in CIPHERTEXTS),
        case("rescaled", partial(f, rescale=1), *given(one, (3, 2), "eval")),
        case("added", f, *given(one, (3, 2), "eval"), poly(of(one, 0, 3), (3, 2), "eval")),
    ]


def summed_products() -> list[Case]:
    """Cases of inner_product: pairs of different batch shapes, and of one object."""

    def f(a: Poly, b: Poly, c: Poly, key: Poly, special: Ring, **options: Any) -> Poly:
        return lattice.inner_product([a, b, c], [c, b, c], as_key(key, 2, special), **options)

    def given(name: str, domain: str) -> list[Draw]:
        Q = of(name, 0, 3)
        operands = [poly(Q, batch, domain) for batch in ((3, 2), (2,), (3, 2))]
        return [*operands, poly(of(name), (2, 2), "eval"), of(name, 3)]

    def fewer(a: Poly, b: Poly, c: Poly, key: Poly, special: Ring, R: Ring) -> Poly:
        return f(a, b, c, key, special, ring=R, rescale=1)

    one = CHAINS[1]
    return [
        *(case(f"{R}, {d}", f, *given(R, d)) for R in CHAINS for d in BOTH),
        case("fewer limbs", fewer, *given(one, "eval"), of(one, 0, 2)),
    ]


def rotated_once() -> list[Case]:
    """Cases of rotate, by ordinary keys and by turned ones."""

    def f(c: Poly, g: int, value: Poly, special: Ring, *, turned: bool = False, **options: Any) -> Poly:
        key = as_key(value, 2, special, g)
        return lattice.rotate(c, key._with(turned=turned), **options)

    def given(name: str, batch: Batch, domain: str) -> list[Draw]:
        return [poly(of(name, 0, 3), batch, domain), each(3, -1), poly(of(name), (2, 2), "eval"), of(name, 3)]

    return [
        *(case(f"{R}, {d}, {b}", f, *given(R, b, d)) for R in CHAINS for d in BOTH for b in CIPHERTEXTS),
        *(
            case(f"{label}, {d}", partial(f, **options), *given(CHAINS[1], (3, 2), d))
            for label, options in (
                ("fast", {"conversion": "fast"}),
                ("turned", {"turned": True}),
                ("not divided", {"divide": False}),
            )
            for d in BOTH
        ),
    ]


def multiplied() -> list[Case]:
    """Cases of transform, with diagonals that are given as encoded ones."""

    @cache
    def matrix(ring: Ring, special: Ring) -> lattice.LinearTransform:
        diagonals = {0: [1], 1: [1j], 3: [2]}
        return lattice.LinearTransform(diagonals, ring=ring, special=special, scale=1, baby=2)

    def f(
        c: Poly,
        encoded: Poly,
        first: Poly,
        second: Poly,
        special: Ring,
        *,
        hoisted: bool = False,
        **options: Any,
    ) -> Poly:
        M = matrix(c.ring, special)._with(encoded)
        keys = as_keys(M.galois_elements, [first, second], 2, special)
        turned = {key.galois_element: key._with(turned=True) for key in keys}
        return lattice.transform(
            lattice.hoist(c, special=special, limbs_per_digit=2) if hoisted else c, M, turned, **options
        )

    def given(name: str, batch: Batch, domain: str) -> list[Draw]:
        keys = [poly(of(name), (2, 2), "eval") for _ in range(2)]
        return [poly(of(name, 0, 3), batch, domain), poly(of(name), (3,), "eval"), *keys, of(name, 3)]

    return [
        *(case(f"{R}, {d}, {b}", f, *given(R, b, d)) for R in CHAINS for d in BOTH for b in CIPHERTEXTS),
        case("hoisted", partial(f, hoisted=True), *given(CHAINS[1], (3, 2), "eval")),
        case("rescaled", partial(f, rescale=1), *given(CHAINS[1], (3, 2), "eval")),
    ]


def rotated() -> list[Case]:
    """Cases of rotate_many."""

    def f(
        c: Poly, gs: list[int], first: Poly, second: Poly, size: int, special: Ring, **options: Any
    ) -> Poly:
        return lattice.rotate_many(c, as_keys(gs, [first, second], size, special), **options)

    def given(name: str, batch: Batch, domain: str) -> list[Draw]:
        keys = [poly(of(name), (2, 2), "eval") for _ in range(2)]
        return [poly(of(name, 0, 3), batch, domain), each([3, 5], [7, -1]), *keys, each(2), of(name, 3)]

    return [
        *(case(f"{R}, {d}, {b}", f, *given(R, b, d)) for R in CHAINS for d in BOTH for b in CIPHERTEXTS),
        *(
            case(f"{label}, {d}", partial(f, **options), *given(CHAINS[1], (3, 2), d))
            for label, options in (("fast", {"conversion": "fast"}), ("not divided", {"divide": False}))
            for d in BOTH
        ),
    ]


# ---- arrays ----

WORDS = {"uint32": (np.uint32, 3329, 2**32), "uint64": (np.uint64, 2**61 - 1, 2**64)}


def integer_matrices() -> list[Case]:
    """Cases of linalg.matmul."""
    f = named(linalg.matmul, "q")
    cases = []
    for name, (dtype, q, high) in WORDS.items():

        def words(*shape: int, dtype: Any = dtype, high: int = high) -> Draw:
            return integers(shape, dtype, 0, high)

        modulus = each(q, q - 2)
        cases += [
            case(f"{name}, {x} @ {y}", f, words(*x), words(*y), modulus)
            for x, y in (((5, 7), (7, 3)), ((7,), (7, 3)), ((5, 7), (7,)), ((2, 1, 5, 7), (4, 7, 3)))
        ]
        cases += [
            into(f"{name}, into other memory", f, words(5, 7), words(7, 3), modulus, words(5, 3)),
            onto(f"{name}, over an operand", f, words(4, 4), words(4, 4), modulus),
            case(f"{name}, signed", f, integers((5, 7), np.int64, -99, 99), words(7, 3), modulus),
        ]
    lists = each([[1, 2], [3, 2**90]], [[5, -6], [7, 8]])
    return [*cases, case("lists", f, lists, lists, each(97, 101))]


def transforms(f: Callable[..., Any], *sizes: int) -> list[Case]:
    """Cases of fft and fft64."""
    return [
        made(
            f"{name}, {n} points, {shape}{label}",
            partial(f, inverse=inverse),
            *(floats((*shape, n), dtype),) * times,
        )
        for name, dtype in (("complex64", np.complex64), ("complex128", np.complex128))
        for n in sizes
        for made, shape, inverse, label, times in (
            (case, (), False, "", 1),
            (case, (3,), False, "", 1),
            (case, (3,), True, ", inverse", 1),
            (into, (2, 3), False, ", into other memory", 2),
            (onto, (3,), False, ", over itself", 1),
        )
    ]


def convolutions() -> list[Case]:
    """Cases of convolve64."""
    f = fft.convolve64
    rows, row = floats((3, 64), np.complex128), floats((64,), np.complex128)
    return [
        case("rows", f, rows, rows),
        case("complex64", f, floats((2, 64), np.complex64), floats((2, 64), np.complex64)),
        case("rows and a filter", f, rows, row),
        case("a filter and rows", f, row, rows),
        case("broadcast", f, floats((2, 1, 64), np.complex128), rows),
        into("into other memory", f, rows, row, rows),
        onto("over itself", f, rows, row),
    ]


def combinations() -> list[Case]:
    """Cases of combine."""

    def combined(ints: Any, *polys: Poly, **options: Any) -> Poly:
        return pg.combine(ints, polys, **options)

    def plus(ints: Any, a: Poly, b: Poly, constant: Any) -> Poly:
        return pg.combine(ints, [a, b], constant=constant)

    one, two = each([3, -(2**80)], [1, 7]), each([[1, -2], [3, 2**70]], [[0, 1], [5, -1]])
    three = [poly(R50, (3,)), poly(R50, (1,)), poly(R50)]
    return [
        *(
            case(f"{R}, {d}, {b}, {name}", combined, ints, poly(R, b, d), poly(R, b, d))
            for name, ints in (("one", one), ("two", two))
            for R in (*COMPLETE, "mixed limbs")
            for d in BOTH
            for b in BATCHES
        ),
        *(case(f"incomplete, {d}", combined, two, *(poly("incomplete", (2,), d),) * 2) for d in BOTH),
        case("by FFT", combined, two, poly("by FFT", (3,)), poly("by FFT")),
        case("broadcast", combined, each([[1, 2, 3]], [[4, 5, 6]]), *three),
        case("coef and eval", combined, one, poly(R50, (3,)), poly(R50, (3,), "eval")),
        case("an array", combined, integers((2, 2), np.int64, -99, 99), poly(R50, (3,)), poly(R50, (3,))),
        *(
            case(f"a constant, {R}, {d}", plus, two, poly(R, (3,), d), poly(R, (3,), d), each(5, -(2**90)))
            for R in (*COMPLETE, "incomplete")
            for d in BOTH
        ),
        *(
            case(
                f"constants, {d}",
                plus,
                two,
                poly(R50, (2,), d),
                poly(R50, (2,), d),
                each([[1, 0]], [[-1, 0]]),
            )
            for d in BOTH
        ),
        *(
            into(f"into other memory, {d}", combined, one, *(poly(R50, (3,), d) for _ in range(3)))
            for d in BOTH
        ),
        *(
            onto(f"over an operand, {d}", combined, one, *(poly(R50, (3,), d) for _ in range(2)), at=2)
            for d in BOTH
        ),
        *modulo_limbs(named(partial(combined, [3, -4]), "ring")),
        case("2^100", combined, two, poly("2^100", (3,)), poly("2^100", (3,)), host_only=True),
    ]


# ---- the verbs ----

R30, R50 = COMPLETE
LISTED = each([3, -5, 2**80], [1, 0, 7])  # a factor for each of three polynomials

VERBS: dict[str, list[Case]] = {
    "Poly.add": arithmetic(Poly.add),
    "Poly.sub": arithmetic(Poly.sub),
    "Poly.mul": [
        *arithmetic(Poly.mul),
        *with_values(partial(Poly.mul, product="ntt"), values=2, domains=["coef"], label=", by NTT"),
        *with_values(partial(Poly.mul, product="fft"), values=2, domains=["coef"], label=", by FFT"),
        case("many and one, by FFT", Poly.mul, poly("by FFT", (8,)), poly("by FFT")),
        case("many and one, by primes", Poly.mul, poly("by primes", (8,)), poly("by primes")),
    ],
    "Poly.neg": changed(Poly.neg),
    "Poly.ntt": changed(Poly.ntt, ("eval", "eval")),
    "Poly.intt": changed(Poly.intt, ("coef", "coef")),
    "Poly.scale_by": [
        *with_values(Poly.scale_by, each(3, -(2**80))),
        *with_values(Poly.scale_by, LISTED, batches=[(3,), (2, 3)], label=", a list"),
        *with_values(Poly.scale_by, each([[3], [5]], [[7], [1]]), batches=[(2, 3)], label=", nested"),
        *with_values(_scaled_limbs, each([3, 5], [7, -1]), rings=[R50], label=", limbs"),
        *with_values(Poly.scale_by, each([3], [5]), rings=["incomplete"], batches=[(1,)]),
        *with_values(Poly.scale_by, LISTED, rings=["by FFT"], domains=["coef"], batches=[(3,)]),
        case("an array", Poly.scale_by, poly(R50, (3,)), integers((3,), np.int64, -99, 99)),
        *(
            made(f"{label}, {d}", Poly.scale_by, poly(R50, (3,), d), LISTED, *out)
            for d in BOTH
            for made, label, out in (
                (into, "into other memory", (poly(R50, (3,), d),)),
                (onto, "over itself", ()),
            )
        ),
    ],
    "Poly.sum": [
        *with_values(Poly.sum),
        *with_values(Poly.sum, rings=["mixed limbs"], batches=[(2, 5)]),
        *with_values(partial(Poly.sum, axis=0), batches=[(2, 3), (5,)], label=", axis 0"),
        *with_values(partial(Poly.sum, axis=-1), batches=[(2, 3)], label=", axis -1"),
        *with_values(partial(Poly.sum, axis=(0, 2)), rings=[R30], batches=[(2, 1, 4)], label=", two axes"),
        *with_values(partial(Poly.sum, axis=0), rings=["incomplete"], batches=[(2,)]),
        into("into other memory", partial(Poly.sum, axis=0), poly(R50, (4, 3)), poly(R50, (3,))),
    ],
    "Poly.natural_order": [
        *with_values(Poly.natural_order),
        *with_values(Poly.natural_order, rings=["incomplete"], batches=[()]),
    ],
    "Poly.to_slots": with_values(Poly.to_slots, rings=["30 bits", "50 bits"]),
    "Poly.to_float64": [
        *with_values(Poly.to_float64),
        *with_values(Poly.to_float64, rings=["mixed limbs"], batches=[(3,)]),
        *with_values(partial(Poly.to_float64, centered=False), label=", not centred"),
        *with_values(Poly.to_float64, rings=["by FFT"], domains=["coef"]),
    ],
    "Poly.automorphism": moved(Poly.automorphism, 3, -7, [3, 7, -1], [9, 3, 11]),
    "Poly.mul_monomial": moved(Poly.mul_monomial, 3, -(2**70) - 5, [1, 0, -2], [40, 5, 3]),
    "Poly.copy": copied(Poly.copy),
    "Poly.__copy__": copied(copy.copy),
    "Poly.__deepcopy__": copied(copy.deepcopy),
    "Poly.reshape": copied(lambda a: a.reshape(-1, 1)),
    "Poly.__iter__": with_values(list, batches=[(3,), (2, 2)]),
    "Poly.__getitem__": indexed(),
    "Poly.__setitem__": assigned(),
    "Poly.__add__": [*with_two_values(operator.add), *with_ints(operator.add)],
    "Poly.__radd__": with_ints(lambda a, k: k + a),
    "Poly.__sub__": [*with_two_values(operator.sub), *with_ints(operator.sub)],
    "Poly.__rsub__": with_ints(lambda a, k: k - a),
    "Poly.__mul__": [*with_two_values(operator.mul), *with_ints(operator.mul)],
    "Poly.__rmul__": with_ints(lambda a, k: k * a),
    "Poly.__neg__": with_values(operator.neg),
    "Poly.__pos__": with_values(operator.pos),
    "Poly.__pow__": [
        *with_values(operator.pow, each(3, 6)),
        *with_values(operator.pow, each(0, 1), batches=[(3,)], label=", 0 and 1"),
        *with_values(operator.pow, each(2, 3), rings=["incomplete"], batches=[()]),
        *with_values(operator.pow, each(3, 5), rings=["by FFT"], domains=["coef"]),
    ],
    "Poly.__matmul__": matrices(operator.matmul),
    "Poly.__rmatmul__": matrices(lambda a, b: b.__rmatmul__(a)),
    "Poly.__array_function__": with_values(np.sum, batches=[(3,), (2, 3)]),
    "Poly.restrict": [
        *converted(Poly.restrict, slice(0, 5), slice(0, 2)),
        *with_values(lambda a, S: a.restrict(S[[1, 0]]), of(R50), rings=[R50], label=", another order"),
    ],
    "Poly.convert": [
        *converted(Poly.convert, slice(0, 3), slice(3, 5)),
        *converted(partial(Poly.convert, conversion="fast"), slice(0, 2), slice(1, 4), label=", fast"),
    ],
    "Poly.mod_up": converted(Poly.mod_up, slice(0, 2), slice(0, 4)),
    "Poly.scale_up": [
        *converted(Poly.scale_up, slice(0, 2), slice(0, 4)),
        *converted(Poly.scale_up, slice(1, 4), slice(0, 5), label=", limbs on both sides"),
    ],
    "Poly.mod_down": [
        *converted(Poly.mod_down, slice(0, 5), slice(0, 3)),
        *converted(
            partial(Poly.mod_down, rounding="floor", conversion="fast"),
            slice(0, 4),
            slice(0, 2),
            label=", floor",
        ),
        *(
            case(
                f"plaintext, {name}, {d}", _for_bgv, poly(of(name), (3,), d), of(name, 0, 3), each(257, 12289)
            )
            for name in CHAINS
            for d in BOTH
        ),
    ],
    "Poly.rescale": [
        *(
            case(f"{R}, {d}, {b}", Poly.rescale, poly(of(R), b, d))
            for R in CHAINS
            for d in BOTH
            for b in BATCHES
        ),
        *(case(f"two limbs, {d}", Poly.rescale, poly(of(CHAINS[1]), (3,), d), each(2)) for d in BOTH),
        *(
            into(f"into other memory, {d}", Poly.rescale, poly(R50, (3,), d), poly(of(R50, 0, 1), (3,), d))
            for d in BOTH
        ),
    ],
    "Poly.digits": [
        *converted(named(Poly.digits, "limbs_per_digit"), slice(0, 3), slice(0, 5), each(2), batch=(2,)),
        *converted(
            named(partial(Poly.digits, conversion="fast"), "limbs_per_digit"),
            slice(0, 2),
            slice(0, 4),
            each(1),
            batch=(2,),
            label=", fast",
        ),
    ],
    "pg.fma": [
        *with_values(pg.fma, values=3),
        *with_values(pg.fma, values=3, rings=["mixed limbs"], batches=[(3,)]),
        *with_values(pg.fma, values=3, rings=["incomplete"], batches=[()]),
        *with_values(pg.fma, values=3, rings=["by FFT"], domains=["coef"], batches=[(3,)]),
        *with_values(pg.fma, each(3, -5), each(2**80, 7), batches=[(3,)], label=", ints"),
        *with_values(
            lambda a, k, c: pg.fma(a, k, c), each(3, -5), poly(R50, (3,)), rings=[R50], label=", an int"
        ),
        *(
            case(f"broadcast, {d}", pg.fma, poly(R50, (3,), d), poly(R50, (1,), d), poly(R50, (2, 1), d))
            for d in BOTH
        ),
        case("three domains", pg.fma, poly(R50, (3,)), poly(R50, (3,), "eval"), poly(R50, (3,))),
        *(into(f"into other memory, {d}", pg.fma, *(poly(R50, (3,), d) for _ in range(4))) for d in BOTH),
        *modulo_limbs(named(pg.fma, "ring"), 3),
        *(
            onto(f"over operand {at}, {d}", pg.fma, *(poly(R50, (3,), d) for _ in range(3)), at=at)
            for at in (0, 1, 2)
            for d in BOTH
        ),
    ],
    "pg.combine": combinations(),
    "pg.dot": [
        *with_values(pg.dot, values=2, batches=[(3,), (2, 3)]),
        *with_values(partial(pg.dot, axis=0), values=2, batches=[(2, 3)], label=", axis 0"),
        *with_values(pg.dot, values=2, rings=["mixed limbs"], batches=[(3,)]),
        *with_values(pg.dot, values=2, rings=["incomplete"], batches=[(2,)]),
        *with_values(pg.dot, values=2, rings=["by FFT"], domains=["coef"], batches=[(3,)]),
        *with_values(pg.dot, each(3, -5), batches=[(3,)], label=", an int"),
        *(case(f"broadcast, {d}", pg.dot, poly(R50, (2, 1, 3), d), poly(R50, (4, 1), d)) for d in BOTH),
        case("coef and eval", pg.dot, poly(R50, (3,)), poly(R50, (3,), "eval")),
        *modulo_limbs(named(pg.dot, "ring")),
        *(
            into(f"into other memory, {d}", pg.dot, *(poly(R50, b, d) for b in ((2, 3), (3,), (2,))))
            for d in BOTH
        ),
    ],
    "pg.einsum": [
        case(f"{text}, {d}", partial(pg.einsum, text), *(poly(R50, b, d) for b in shapes))
        for text, shapes in {
            "ij,jk->ik": ((2, 3), (3, 2)),
            "ii": ((3, 3),),
            "ij->ji": ((2, 3),),
            "ij->i": ((2, 3),),
            "i,j->ij": ((2,), (3,)),
            "...i,i": ((2, 2), (2,)),
            "bi,bi->b": ((2, 3), (2, 3)),
            "ij,jk,k->i": ((2, 2), (2, 3), (3,)),
        }.items()
        for d in BOTH
    ]
    + [
        case("coef and eval", partial(pg.einsum, "i,i"), poly(R30, (3,)), poly(R30, (3,), "eval")),
        case("incomplete", partial(pg.einsum, "i,i"), poly("incomplete", (2,)), poly("incomplete", (2,))),
        case("by FFT", partial(pg.einsum, "i,i"), poly("by FFT", (2,)), poly("by FFT", (2,))),
        *modulo_limbs(named(partial(pg.einsum, "i,j->ij"), "ring")),
        *(
            into(
                f"into other memory, {d}",
                partial(pg.einsum, "ij,j->i"),
                *(poly(R50, b, d) for b in ((2, 3), (3,), (2,))),
            )
            for d in BOTH
        ),
    ],
    "pg.matmul": [
        *matrices(pg.matmul),
        *(
            into(f"into other memory, {d}", pg.matmul, *(poly(R50, b, d) for b in ((2, 3), (3,), (2,))))
            for d in BOTH
        ),
        *(onto(f"over an operand, {d}", pg.matmul, poly(R50, (2, 2), d), poly(R50, (2, 2), d)) for d in BOTH),
    ],
    "pg.stack": joined(pg.stack),
    "pg.concatenate": joined(pg.concatenate),
    "rns.join": [
        *(
            case(f"{name}, {d}, {b}", rns.join, poly(of(name, 0, 2), b, d), poly(of(name, 2, 5), b, d))
            for name in CHAINS
            for d in BOTH
            for b in BATCHES
        ),
        case("coef and eval", rns.join, poly(R50, (3,)), poly("40 bits, RNS", (3,), "eval")),
        case("broadcast", rns.join, poly(R50, (3,)), poly("40 bits, RNS", (2, 1))),
    ],
    "rns.scale": [
        *(
            case(
                f"{name}, {d}, {b}",
                rns.scale,
                poly(of(name, 0, 3), b, d),
                each(257, -(2**70)),
                of(name, 3, 5),
            )
            for name in CHAINS
            for d in BOTH
            for b in BATCHES
        ),
        *(
            case(
                f"divided by some limbs, {name}, {d}",
                named(rns.scale, "divisor"),
                poly(of(name), (3,), d),
                each(257, 3),
                of(name, 3, 5),
                of(name, 0, 3),
            )
            for name in CHAINS
            for d in BOTH
        ),
        *(
            into(
                f"into other memory, {d}",
                rns.scale,
                poly(R50, (3,), d),
                each(2, 3),
                of("40 bits, RNS"),
                poly("40 bits, RNS", (3,), d),
            )
            for d in BOTH
        ),
        case(
            "to a ring without a transform",
            rns.scale,
            poly(R50, (3,), "eval"),
            each(3, 5),
            of("2^32, by primes"),
        ),
    ],
    "lattice.add_constant": [
        *with_values(lattice.add_constant, each(3, -(2**80)), batches=CIPHERTEXTS),
        *with_values(lattice.add_constant, LISTED, batches=[(3, 2), (2, 3, 2)], label=", a list"),
        *with_values(
            lattice.add_constant, each([[3], [2**70]], [[-7], [1]]), batches=[(2, 3, 2)], label=", nested"
        ),
        *with_values(lattice.add_constant, each([3], [5]), rings=["incomplete"], batches=[(1, 3)]),
        *with_values(
            lattice.add_constant, LISTED, rings=["by FFT", "2^32"], domains=["coef"], batches=[(3, 2)]
        ),
        *(
            case(
                f"an array, {d}",
                lattice.add_constant,
                poly(R50, (3, 2), d),
                integers((3,), np.int64, -99, 99),
            )
            for d in BOTH
        ),
        case("2^100", lattice.add_constant, poly("2^100", (3, 2)), LISTED, host_only=True),
    ],
    "lattice.decompose": [
        *with_values(
            named(lattice.decompose, "bits", "levels"),
            each(7, 5),
            each(3),
            rings=["30 bits", "50 bits"],
            batches=[(), *CIPHERTEXTS],
        ),
        *with_values(
            named(lattice.decompose, "bits", "levels"),
            each(7, 5),
            each(3),
            rings=["2^32", "2^64"],
            domains=["coef"],
            batches=CIPHERTEXTS,
        ),
        *(
            into(
                f"into other memory, {d}",
                named(lattice.decompose, "bits", "levels"),
                poly(R30, (2,), d),
                each(7, 5),
                each(3),
                poly(R30, (2, 3)),
            )
            for d in BOTH
        ),
    ],
    "lattice.decompose_integers": [
        case(
            "int64",
            named(lattice.decompose_integers, "q", "bits", "levels"),
            integers((5,), np.int64, -(2**40), 2**40),
            each(2**32),
            each(8, 7),
            each(3),
        ),
        case(
            "uint64",
            named(lattice.decompose_integers, "q", "bits", "levels"),
            integers((2, 3), np.uint64, 0, 2**64),
            each(2**64),
            each(8, 7),
            each(3),
        ),
        case(
            "an odd modulus",
            named(lattice.decompose_integers, "q", "bits", "levels"),
            integers((5,), np.int64, 0, 12289),
            each(12289, 12287),
            each(4),
            each(2),
        ),
    ],
    "lattice.extract": [
        *with_values(
            lattice.extract, each(3, 7), rings=["30 bits", "50 bits"], batches=[*CIPHERTEXTS, (2, 3)]
        ),
        *with_values(
            lattice.extract, each(0, 31), rings=["2^32", "2^64"], domains=["coef"], batches=CIPHERTEXTS
        ),
    ],
    "lattice.lwe_switch": [
        case(
            name,
            named(lattice.lwe_switch, "q", "bits", "levels"),
            integers((3, 9), dtype, 0, min(q, 2**63)),
            integers((8 * levels, 5), dtype, 0, min(q, 2**63)),
            each(q),
            each(bits),
            each(levels),
        )
        for name, dtype, q, bits, levels in (
            ("bytes", np.uint64, 2**64, 4, 4),
            ("pairs of bytes", np.uint32, 2**32, 9, 2),
            ("words", np.uint64, 2**64, 20, 3),
            ("an odd modulus", np.uint32, 12289, 3, 4),
        )
    ],
    "lattice.lwe_modulus_switch": [
        case(
            f"{name}, {mean}",
            named(lattice.lwe_modulus_switch, "q", "to", "centered_mean"),
            integers((3, 9), dtype, 0, min(q, 2**63)),
            each(q),
            each(4096),
            each(mean),
        )
        for name, dtype, q in (("2^64", np.uint64, 2**64), ("an odd modulus", np.uint32, 12289))
        for mean in (False, True)
    ],
    "lattice.prepare": [
        *with_values(
            named(lattice.prepare, "bits"),
            each(7),
            rings=["30 bits", "50 bits"],
            batches=[(2, 3, 2), (2, 2, 3, 2)],
        ),
        *(
            case(f"{R}, and a product", _prepared_product, poly(R, (2, 3, 2)), poly(R, (3, 2)), each(7))
            for R in ("2^32", "2^64")
        ),
    ],
    "lattice.embed": embedded(),
    "lattice.pack": stepped(lattice.pack, [3, 5, 9, 17], [(4, 2), (3, 8, 2), (1, 2)]),
    "lattice.trace": stepped(lattice.trace, [9, 17], CIPHERTEXTS, each(4)),
    "lattice.expand": stepped(lattice.expand, [17, 9], CIPHERTEXTS, each(4)),
    "lattice.rgsw_from_rlwe": of_rows(),
    "lattice.external_product": [
        *external(named(lattice.external_product, "bits")),
        *by_limbs(lattice.external_product, (2, 2, 2)),
        *composed(named(lattice.external_product, "bits"), (2, 3, 2)),
        *(
            into(
                f"into other memory, {d}",
                named(lattice.external_product, "bits"),
                poly(R30, (2, 3, 2), "eval"),
                poly(R30, (3, 2), d),
                each(7),
                poly(R30, (3, 2), d),
            )
            for d in BOTH
        ),
        *(
            onto(
                f"over the ciphertexts, {d}",
                named(lattice.external_product, "bits"),
                poly(R30, (2, 3, 2), "eval"),
                poly(R30, (3, 2), d),
                each(7),
                at=1,
            )
            for d in BOTH
        ),
        onto(
            "over the ciphertexts, 2^32",
            named(lattice.external_product, "bits"),
            unprepared("2^32", (2, 3, 2), 7),
            poly("2^32", (3, 2)),
            each(7),
            at=1,
        ),
    ],
    "lattice.cmux": [
        *external(named(lattice.cmux, "bits"), count=2),
        *by_limbs(lattice.cmux, (2, 2, 2), count=2),
        *composed(named(lattice.cmux, "bits"), (2, 3, 2), count=2),
        case(
            "coef and eval",
            named(lattice.cmux, "bits"),
            poly(R30, (2, 3, 2), "eval"),
            poly(R30, (3, 2)),
            poly(R30, (3, 2), "eval"),
            each(7),
        ),
    ],
    "lattice.blind_rotate": [*rotations(), *rotated_in_limbs()],
    "lattice.key_switch": switched(),
    "lattice.hoist": [
        case(f"{R}, {d}", hoisted, poly(of(R, 0, 3), (3, 2), d), of(R, 3)) for R in CHAINS for d in BOTH
    ],
    "lattice.tensor": [
        *(
            case(f"{R}, {d}, {b}", lattice.tensor, *twice(poly(of(R, 0, 3), b, d)))
            for R in CHAINS
            for d in BOTH
            for b in CIPHERTEXTS
        ),
        case("a square", lambda a: lattice.tensor(a, a), poly(of(CHAINS[1]), (3, 2), "eval")),
        case(
            "of more limbs",
            lambda a, R: lattice.tensor(a, a, ring=R),
            poly(of(CHAINS[1]), (3, 2), "eval"),
            of(CHAINS[1], 0, 3),
        ),
    ],
    "lattice.inner_product": summed_products(),
    "lattice.multiply": relinearised(),
    "lattice.rotate": rotated_once(),
    "lattice.rotate_many": rotated(),
    "lattice.transform": multiplied(),
    "linalg.matmul": integer_matrices(),
    "fft.fft": transforms(fft.fft, 16, 128),
    "fft.fft64": transforms(fft.fft64, 64),
    "fft.convolve64": convolutions(),
    "fft.to_slots": [case(f"{shape}", fft.to_slots, floats(shape, np.float64)) for shape in ((32,), (3, 32))],
    "fft.from_slots": [
        case(f"{shape}", fft.from_slots, floats(shape, np.complex128)) for shape in ((16,), (3, 16))
    ],
    "zk.powers": [
        case(f"{R}, {name}", named(zk.powers, "count"), of(R), x, each(5))
        for R in (*COMPLETE, "by FFT")
        for name, x in (("an int", each(3, -(2**70))), ("a list", each([3, 5], [-7, 2**70])))
    ],
    "zk.hadamard": [
        *with_values(zk.hadamard, values=2),
        *with_values(zk.hadamard, values=2, rings=["by FFT"], domains=["coef"], batches=[(3,)]),
        case("broadcast", zk.hadamard, poly(R50, (3,)), poly(R50, (2, 1))),
        case("coef and eval", zk.hadamard, poly(R50, (3,)), poly(R50, (3,), "eval")),
        into("into other memory", zk.hadamard, *(poly(R50, (3,)) for _ in range(3))),
        onto("over itself", zk.hadamard, poly(R50, (3,)), poly(R50, (3,))),
    ],
    "zk.pad": [
        *with_values(zk.pad, each(32), rings=["30 bits", "BabyBear"]),
        *with_values(zk.pad, each(16), rings=["30 bits"], label=", the same degree"),
        case("a ring", zk.pad, poly("BabyBear", (3,)), of("BabyBear, n = 32")),
    ],
    "zk.coset_ntt": with_values(zk.coset_ntt, each(3, 31), rings=["BabyBear", R50]),
    "zk.coset_intt": with_values(zk.coset_intt, each(3, 31), rings=["BabyBear", R50]),
    "zk.low_degree_extension": [
        *with_values(lambda a, k: zk.low_degree_extension(a, 2, shift=k), each(3, 31), rings=["BabyBear"]),
        *with_values(zk.low_degree_extension, each(4), rings=["BabyBear"], label=", no shift"),
    ],
}

# ---- the public names that are not verbs ----

_REASONS = {
    "returns host values": """
        Poly.__call__ Poly.__eq__ Poly.norm Poly.to_bigints Poly.to_residue_ints Poly.tolist Poly.try_inverse
        Ring.eval_points Ring.natural_order lattice.gadget lattice.max_log_q pg.equal pg.is_prime
        pg.ntt_primes rns.gadget
    """,
    "raises where the values themselves do not fit, and so waits for them": """
        Poly.inverse Poly.to_int64 zk.interpolate
    """,
    "draws random values": """
        Ring.binomial Ring.gaussian Ring.random Ring.ternary Ring.tuniform lattice.ggsw
        lattice.lwe_switch_key lattice.multi_bit_key lattice.rotation_keys lattice.switch_key
    """,
    "is made from host values": """
        Ring.__call__ Ring.from_floats Ring.from_residues Ring.from_slots Ring.monomial Ring.ones Ring.zeros
    """,
    "moves between devices, processes and libraries": """
        Poly.__dlpack__ Poly.__dlpack_device__ Poly.__reduce__ Poly.cpu Poly.to Ring.__reduce__ pg.devices
    """,
    "asks": """
        Poly.__len__ Poly.__repr__ Poly.data Poly.device Poly.domain Poly.ndim Poly.ring Poly.shape
        Ring.__eq__ Ring.__hash__ Ring.__repr__ Ring.dtype Ring.explain Ring.has_eval Ring.kind
        Ring.leaf_size Ring.moduli Ring.modulus Ring.n Ring.product Ring.roots Ring.rows
    """,
    "makes a ring": "Ring.__getitem__ Ring.join Ring.preset",
    "refuses": "Poly.__array__ Poly.__bool__ Ring.__delattr__ Ring.__setattr__",
    "is a context, a file or a recording": """
        pg.capture pg.debug pg.device pg.load pg.progress pg.save pg.verify
    """,
    "is about memory, which holds no values": "memory.held memory.release",
    "is an error, a type or a number": """
        fft.MAX_DEGREE fft.MAX_LENGTH lattice.Hoisted lattice.LinearTransform lattice.Prepared
        lattice.SwitchKey linalg.MAX_MODULUS pg.DeviceError pg.NotInvertible pg.NotNTTFriendly
        pg.ParameterError pg.Poly pg.PolyGPUError pg.Ring pg.RingMismatch pg.Seeded
    """,
}
OTHERS: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def public_names() -> list[str]:
    """All public names: members of Poly and Ring, operators and protocols among them, and all functions."""
    names = [
        f"{kind.__name__}.{name}"
        for kind in (Poly, Ring)
        for base in kind.__mro__
        if base.__module__.partition(".")[0] == "polygpu"
        for name, member in vars(base).items()
        if _is_public(name, member)
    ]
    modules = {
        "pg": pg,
        "rns": rns,
        "lattice": lattice,
        "linalg": linalg,
        "fft": fft,
        "memory": memory,
        "zk": zk,
    }
    names += [f"{short}.{name}" for short, module in modules.items() for name in module.__all__]
    return sorted(set(names))


def _is_public(name: str, member: object) -> bool:
    """Whether a class gives this member to its users; constructors stand under the name of the class."""
    if name in ("__init__", "__new__") or name.startswith("__annotate"):
        return False
    special = name.startswith("__") and name.endswith("__")
    kinds = property, classmethod, staticmethod
    return (special or not name.startswith("_")) and (inspect.isroutine(member) or isinstance(member, kinds))
