"""Conversions between bases of moduli, conversions of integers, and samplers.

    python -m benchmarks.cpu --only conversions
    python -m benchmarks.gpu --only conversions

Each is compared with the transforms that it needs, with another library or with a target. For an operation on
evaluated values, its transforms alone are another row of the same run: one batched inverse transform, then
one batched forward transform. On a GPU, operations and transforms run in a CUDA graph of several calls.
Before results are timed, they are compared with Python integers, and samples with those of the reference
backend.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends.reference import big_product, evaluate
from polygpu.examples.bfv import BFV

from .harness import Case, Row, in_passes
from .polynomials import bit_reversal, from_flint, to_flint
from .tables import Line, LineKind

Ints = NDArray[np.object_]  # an array (*batch, n) of Python ints
Params = dict[str, int | str]
Verb = Callable[[pg.Poly, pg.Poly | None], pg.Poly]  # an operation, called with a value and `out` or None

BITS = 50  # bit length of the primes on the CPU, and of the modulus of samples
GRAPH_CALLS = 5  # number of calls in one graph
WORDS = {30: "u32", 31: "u32", 50: "f64"}  # a GPU's arithmetic by bit length; u64 for all others
T = 65537  # modulus of BFV's plaintexts
ETA, B, SIGMAS = 21, 17, {"3.2": 3.2, "2^20": 2**20}  # parameters of samplers


@dataclass(frozen=True)
class Sizes:
    """Degrees and numbers of limbs that are measured on a device.

    limbs: limbs of a value. special: limbs of a digit, or limbs that are divided away. sources: limbs of a
    value that is converted to other moduli.
    """

    degree: int = 2**15
    limbs: int = 12
    special: int = 3
    sources: tuple[int, ...] = (3, 6, 12)
    read: int = 2**14
    written: int = 2**16
    samples: tuple[int, int] = (2**12, 16)  # degree and batch
    point: int = 2**20
    inverted: int = 701
    bfv: int = 2**13
    passes: int = 3  # number of passes on the CPU


FULL = Sizes()
QUICK = Sizes(degree=2**13, written=2**13, point=2**16, bfv=2**11, passes=1)
GPU = Sizes(degree=2**16, limbs=24, special=6, sources=(6,), samples=(2**16, 2**8))


# ---- definitions, in Python integers ----


def integers(a: pg.Poly) -> Ints:
    """Compute the coefficients in [0, Q) of a value on the host, from its residues."""
    x, Q = a.intt().data.astype(object), a.ring.modulus
    weights = np.array([Q // q * pow(Q // q, -1, q) for q in a.ring.moduli], object)
    total: Ints = (x * weights[:, None]).sum(axis=-2) % Q
    return total


def centred(x: Ints, m: int) -> Ints:
    """Return the representatives of x modulo m in [-m/2, m/2)."""
    x = x % m
    return np.where(2 * x >= m, x - m, x)


def fast(x: Ints, moduli: Sequence[int]) -> Ints:
    """Compute the sum of y_i Q/q_i, with centred y_i = x (Q/q_i)^-1 mod q_i and Q the product of all q_i."""
    Q = prod(moduli)
    parts = [centred(x * pow(Q // q, -1, q), q) * (Q // q) for q in moduli]
    total: Ints = np.sum(parts, axis=0)
    return total


def nearest(x: Ints, P: int) -> Ints:
    """Compute x / P, rounded to the nearest integer. Halves are rounded up."""
    return (2 * x + P) // (2 * P)


def words(x: Iterable[int], count: int) -> NDArray[np.uint64]:
    """Return non-negative ints as rows of 64-bit words, the lowest word first."""
    return np.frombuffer(b"".join(int(v).to_bytes(8 * count, "little") for v in x), "<u8").reshape(-1, count)


def is_of(S: pg.Ring, expected: Callable[[], Ints], values: NDArray[Any]) -> bool:
    """Return whether the residues `values` (*batch, limbs, n) are those of the integers expected()."""
    numbers = expected()
    return values.shape == (*numbers.shape[:-1], len(S.moduli), S.n) and all(
        np.array_equal(values[..., i, :].astype(object), numbers % q) for i, q in enumerate(S.moduli)
    )


def is_transform(values: NDArray[Any], a: pg.Poly) -> bool:
    """Return whether evaluated residues are the transform of a.

    One random entry of each row is compared with the value of the polynomial, then all entries by intt().
    """
    ring, order = a.ring, bit_reversal(a.ring.n)
    source, n = random.Random(ring.n), ring.n
    assert ring.roots is not None
    for at in np.ndindex(a.data.shape[:-1]):
        q, psi, k = ring.moduli[at[-1]], ring.roots[at[-1]], source.randrange(n)
        if int(values[at][k]) != evaluate(a.data[at].tolist(), pow(psi, 2 * int(order[k]) + 1, q), q):
            return False
    return np.array_equal(ring.from_residues(values, domain="eval").intt().data, a.data)


# ---- verbs between bases, on any device ----


def ring_of(n: int, bits: int, limbs: int) -> pg.Ring:
    return pg.Ring(n, pg.ntt_primes(n, bits=bits, count=limbs))


def params_of(R: pg.Ring, S: pg.Ring, device: str, batch: int = 1) -> Params:
    """Return the params of a row for an operation that takes values from the ring R to the ring S."""
    bits = R.moduli[0].bit_length()
    params: Params = {"n": R.n, "bits": bits, "limbs": R.rows, "to": S.rows, "batch": batch}
    return params | gpu_params(R, f"CUDA graph of {GRAPH_CALLS}") if device != "cpu" else params


def gpu_params(R: pg.Ring, launch: str) -> Params:
    word = WORDS.get(R.moduli[0].bit_length(), "u64")
    return {"word": word, "word_bytes": R.dtype.itemsize, "launch": launch}


def recorded(work: Callable[[], Any], x: pg.Poly, device: str) -> tuple[Callable[[], Any], int]:
    """Return a function that does the work, and how often one call of it does so.

    On a GPU the function launches a CUDA graph.
    """
    calls = 1 if device == "cpu" else GRAPH_CALLS
    return pg.capture(lambda _: [work() for _ in range(calls)][-1], x), calls


def poison(*polys: pg.Poly) -> None:
    """Fill polynomials with a number that is not a residue, to find entries that are never written."""
    for poly in polys:
        poly.data.fill(poly.data.dtype.type(np.iinfo(poly.data.dtype).max))


def residues(poly: pg.Poly) -> NDArray[Any]:
    data: NDArray[Any] = poly.cpu().intt().data
    return data


def verb_case(
    op: str, params: Params, device: str, a: pg.Poly, verb: Verb, expected: Callable[[], Ints]
) -> Case:
    """Return the case of an operation on a value `a`, which lies on the host.

    The memory for the result is allocated before the operation is timed.
    """
    x = a.to(device)
    out = verb(x, None)
    run, calls = recorded(lambda: verb(x, out), x, device)
    poison(out)
    verify = partial(is_of, out.ring, expected)
    return Case(op, "polygpu", params, run, verify, out.data.size, residues, calls)


def transforms_case(op: str, params: Params, device: str, down: pg.Poly, up: pg.Poly) -> Case:
    """Return the case of the transforms that an operation needs.

    `down` holds the results of the inverse transforms, and `up` the operands of the forward transforms. Both
    are given on the host, in coefficients.
    """
    evaluated = down.ntt()
    x, y = evaluated.to(device), up.to(device)
    back, forth = x.intt(), y.ntt()  # memory for the results, which this library allocates as for any result

    def work() -> tuple[pg.Poly, pg.Poly]:
        return x.intt(out=back), y.ntt(out=forth)

    def values(pair: tuple[pg.Poly, pg.Poly]) -> NDArray[Any]:
        return np.concatenate([poly.cpu().data.ravel() for poly in pair])

    def verify(found: NDArray[Any]) -> bool:
        first = down.data.size
        return (
            is_transform(evaluated.data, down)
            and np.array_equal(found[:first], down.data.ravel())
            and is_transform(found[first:].reshape(up.data.shape), up)
        )

    run, calls = recorded(work, x, device)
    poison(back, forth)
    size = down.data.size + up.data.size
    return Case(f"{op}: transforms", "polygpu", params, run, verify, size, values, calls)


def rescale_cases(device: str, Q: pg.Ring) -> Iterator[Case]:
    """Yield the cases of rescaling a ciphertext, two evaluated polynomials, by its last limb."""
    a, S = Q.random(2, seed=1), Q[:-1]
    where = ("rescale", params_of(Q, S, device, 2), device)

    def expected() -> Ints:
        return nearest(integers(a), Q.moduli[-1])

    yield verb_case(*where, a.ntt(), lambda x, out: x.rescale(out=out), expected)
    yield transforms_case(*where, Q[-1:].random(2, seed=2), S.random(2, seed=3))


def mod_up_cases(device: str, R: pg.Ring, S: pg.Ring) -> Iterator[Case]:
    """Yield the cases of extending an evaluated value from R to S, whose first limbs are those of R."""
    a, new = R.random(seed=1), S[R.rows :]
    where = ("mod_up", params_of(R, S, device), device)

    def expected() -> Ints:
        return centred(integers(a), R.modulus)

    yield verb_case(*where, a.ntt(), lambda x, out: x.mod_up(S, out=out), expected)
    yield transforms_case(*where, R.random(seed=2), new.random(seed=3))


def mod_down_cases(device: str, R: pg.Ring, Q: pg.Ring) -> Iterator[Case]:
    """Yield the cases of dividing an evaluated value by its last limbs, so that the first ones remain."""
    a, dropped = R.random(seed=1), R[Q.rows :]
    where = ("mod_down", params_of(R, Q, device), device)

    def expected() -> Ints:
        return nearest(integers(a), dropped.modulus)

    yield verb_case(*where, a.ntt(), lambda x, out: x.mod_down(Q, out=out), expected)
    yield transforms_case(*where, dropped.random(seed=2), Q.random(seed=3))


def digits_cases(device: str, Q: pg.Ring, R: pg.Ring, size: int) -> Iterator[Case]:
    """Yield the cases of splitting an evaluated value of Q into digits of `size` limbs each.

    The digits are values of R, a ring whose first limbs are those of Q.
    """
    a, new = Q.random(seed=1), R[size:]  # `new` has as many limbs as each digit lacks
    moduli = [prod(Q.moduli[i : i + size]) for i in range(0, Q.rows, size)]
    where = ("digits", params_of(Q, R, device) | {"size": size}, device)

    def expected() -> Ints:
        x = integers(a)
        return np.stack([centred(x, m) for m in moduli])

    yield verb_case(*where, a.ntt(), lambda x, out: x.digits(R, limbs_per_digit=size, out=out), expected)
    yield transforms_case(*where, Q.random(seed=2), new.random(len(moduli), seed=3))


def convert_cases(device: str, R: pg.Ring, S: pg.Ring, transforms: bool) -> Iterator[Case]:
    """Yield the cases of converting coefficients, and of the transforms that evaluated values also need."""
    a, params = R.random(seed=1), params_of(R, S, device)
    halves = random.Random(1).choices(
        (R.modulus // 2, R.modulus // 2 + 1), k=R.n
    )  # since Q is odd, both differ from Q/2 by 1/2
    near = R.from_residues(np.array([[x % q for x in halves] for q in R.moduli], R.dtype))

    def exact(x: pg.Poly, out: pg.Poly | None) -> pg.Poly:
        return x.convert(S, out=out)

    def estimated(x: pg.Poly, out: pg.Poly | None) -> pg.Poly:
        return x.convert(S, conversion="fast", out=out)

    def value(of: pg.Poly) -> Ints:
        return centred(integers(of), R.modulus)

    yield verb_case("convert exact", params, device, a, exact, partial(value, a))
    yield verb_case("convert fast", params, device, a, estimated, lambda: fast(integers(a), R.moduli))
    yield verb_case("convert undecided", params, device, near, exact, partial(value, near))
    if transforms:
        yield transforms_case("convert", params, device, R.random(seed=2), S.random(seed=3))


# ---- integers in and out ----


def integer_cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases of making values from machine integers, and of to_int64, norm and to_bigints."""
    rng = np.random.default_rng(1)
    R = ring_of(sizes.read, BITS, sizes.limbs)
    q = min(R.moduli)
    for op, end in (("ring(int64), |x| < q", q), ("ring(int64)", 2**63)):
        x = rng.integers(1 - end, end, R.n)
        verify = partial(is_of, R, partial(x.astype, object))
        yield Case(op, "polygpu", params_of(R, R, "cpu"), partial(R, x), verify, R.rows * R.n, residues)
    S = ring_of(sizes.written, BITS, sizes.limbs)
    params, size = params_of(S, S, "cpu"), S.rows * S.n
    x = rng.integers(-(2**63), 2**63, S.n)
    a, b = S(x), S.random(seed=1)
    yield Case("to_int64", "polygpu", params, a.to_int64, partial(np.array_equal, x), size)
    length = (S.modulus.bit_length() + 63) // 64

    def is_norm(values: NDArray[Any]) -> bool:
        return np.array_equal(values, words([max(abs(centred(integers(b), S.modulus)))], length))

    def is_value(values: NDArray[Any]) -> bool:
        return np.array_equal(values, words(integers(b), length))

    norm = partial(b.norm, float("inf"))
    yield Case("norm(inf)", "polygpu", params, norm, is_norm, size, lambda x: words([x], length))
    yield Case(
        "to_bigints", "polygpu", params, b.to_bigints, is_value, size, lambda x: words(x.tolist(), length)
    )


# ---- samplers ----


def sampler_cases(device: str, sizes: Sizes, few: bool = False) -> Iterator[Case]:
    """Yield the cases of samplers with one limb and a given seed.

    If `few` is True, only some samplers are measured. A GPU must draw the same samples as the CPU.
    """
    n, batch = sizes.samples
    R = ring_of(n, BITS, 1)
    draws: dict[str, Callable[..., pg.Poly]] = {"random": R.random, "ternary": R.ternary}
    if not few:
        draws |= {f"binomial {ETA}": partial(R.binomial, ETA), f"tuniform {B}": partial(R.tuniform, B)}
    for text in ("3.2",) if few else SIGMAS:
        draws[f"gaussian {text}"] = partial(R.gaussian, SIGMAS[text])
    params: Params = {"n": n, "bits": BITS, "limbs": 1, "batch": batch}
    if device != "cpu":
        params |= gpu_params(R, "plain")
    for op, draw in draws.items():

        def run(draw: Callable[..., pg.Poly] = draw) -> pg.Poly:
            with pg.device(device):
                return draw(batch=batch, seed=1)

        def verify(values: NDArray[Any], draw: Callable[..., pg.Poly] = draw) -> bool:
            if device == "cpu":
                return all(map(np.array_equal, values, by_definition(draw, range(batch))))
            with pg.device("cpu"):
                whole = draw(batch=batch, seed=1).data
            ends = by_definition(draw, (0, batch - 1))
            return np.array_equal(values, whole) and all(map(np.array_equal, values[[0, -1]], ends))

        yield Case(op, "polygpu", params, run, verify, batch * n, residues)


def by_definition(draw: Callable[..., pg.Poly], numbers: Iterable[int]) -> Iterator[NDArray[Any]]:
    """Yield the polynomials with the indices `numbers` in the stream of seed 1, by the reference backend."""
    with pg.device("reference"):
        yield from [draw(seed=1, start=i).data for i in numbers]


# ---- single operations ----


def point_case(n: int) -> Case:
    """Return the case of evaluating one polynomial at one point."""
    R = ring_of(n, BITS, 1)
    a, x = R.random(seed=1), R.modulus // 3

    def verify(values: NDArray[Any]) -> bool:
        return int(values) == evaluate(a.data[0].tolist(), x, R.modulus)

    params = params_of(R, R, "cpu")
    return Case("poly(x)", "polygpu", params, lambda: a(x), verify, n, lambda v: np.array(v, np.uint64))


def inverse_cases(n: int) -> Iterator[Case]:
    """Yield the cases of an inverse modulo X^n - 1 and 3, as in NTRU.

    FLINT's extended Euclidean algorithm, on objects of FLINT, is measured too.
    """
    q = 3
    R = pg.Ring(n, q, kind="cyclic")
    modulus = to_flint(np.array([q - 1, *[0] * (n - 1), 1]), q)
    drawn = (R.random(seed=seed) for seed in count())
    a = next(a for a in drawn if to_flint(a.data[0], q).gcd(modulus).degree() == 0)
    params: Params = {"n": n, "bits": 2, "limbs": 1, "to": 1, "batch": 1, "q": q}

    def verify(found: NDArray[Any]) -> bool:
        product = big_product(a.data[0].tolist(), found.tolist(), q, "cyclic")
        return found.shape == (n,) and product == [1, *[0] * (n - 1)]

    run = partial(to_flint(a.data[0], q).xgcd, modulus)
    yield Case("poly.inverse", "polygpu", params, a.inverse, verify, n, lambda x: x.data[0])
    yield Case("poly.inverse", "python-flint", params, run, verify, n, lambda found: from_flint(found[1], n))


def bfv_case(n: int) -> Case:
    """Return the case of the BFV example's product of two ciphertexts, whose result has three components."""
    scheme = BFV(n, T, BITS, 4)
    Q, M = scheme.ring, scheme.wide.modulus
    x, y = (Q.random(2, seed=seed) for seed in (1, 2))

    def expected() -> Ints:
        (x0, x1), (y0, y1) = (centred(integers(c), Q.modulus) for c in (x, y))

        def product(a: Ints, b: Ints) -> Ints:
            return np.array(big_product([v % M for v in a], [v % M for v in b], M), object)

        sums = np.stack([product(x0, y0), product(x0, y1) + product(x1, y0), product(x1, y1)])
        return nearest(T * centred(sums, M), Q.modulus)

    params = params_of(Q, Q, "cpu", 2)
    run, verify = partial(scheme.multiply, x, y), partial(is_of, Q, expected)
    return Case("BFV product", "polygpu", params, run, verify, 3 * Q.rows * n, residues)


# ---- what is measured ----


def cpu_cases(sizes: Sizes) -> Iterator[Case]:
    """Yield the cases for one core. Values are made on the current device, which must be the CPU."""
    R = ring_of(sizes.degree, BITS, sizes.limbs + max(sizes.sources))
    Q, special = R[: sizes.limbs], sizes.special
    yield from rescale_cases("cpu", Q)
    yield from mod_up_cases("cpu", Q[:special], Q)
    yield from mod_down_cases("cpu", R[: sizes.limbs + special], Q)
    for limbs in sizes.sources:
        yield from convert_cases("cpu", R[sizes.limbs : sizes.limbs + limbs], Q, limbs == special)
    yield from integer_cases(sizes)
    yield from sampler_cases("cpu", sizes)
    yield point_case(sizes.point)
    if find_spec("flint"):
        yield from inverse_cases(sizes.inverted)
    yield bfv_case(sizes.bfv)


def gpu_cases(device: str, bits: int, sizes: Sizes = GPU) -> Iterator[Case]:
    """Yield the cases of operations in CUDA graphs, with primes of one bit length.

    Values are made and compared on the host.
    """
    R = ring_of(sizes.degree, bits, sizes.limbs + sizes.special)
    Q, special = R[: sizes.limbs], sizes.special
    yield from mod_down_cases(device, R, Q)
    yield from rescale_cases(device, Q)
    yield from digits_cases(device, Q, R, special)
    yield from convert_cases(device, R[sizes.limbs :], Q, True)


def measured(sizes: Sizes, packages: Sequence[str]) -> Iterator[Row]:
    """Return the rows that are measured on one core."""
    return in_passes(cpu_cases(sizes), sizes.passes, packages)


# ---- the tables ----


TRANSFORMS, EXACT = "transforms alone", "convert exact"


def of_transforms(
    work: str, op: str, unit: str, must: float | None = None, times: float | None = None
) -> Line:
    return Line(work, op, unit, must, f"{op}: transforms", TRANSFORMS, times)


def exact_beside_fast(unit: str, limbs: int, times: float) -> Line:
    return Line("convert, exact", EXACT, unit, None, "convert fast", '"fast"', times, {"limbs": limbs})


def undecided(unit: str) -> Line:
    return Line(
        "convert, exact, all coefficients undecided", "convert undecided", unit, None, EXACT, '"exact"', 20
    )


INVERSE = Line(
    work="inverse modulo 3 and X^N - 1",
    op="poly.inverse",
    unit="ms",
    beside="poly.inverse",
    name="FLINT",
    times=2,
    library="python-flint",
)


def digit(unit: str, limbs: int) -> Line:
    name, only = "transforms if evaluated", {"limbs": limbs}
    return Line("convert, exact, of a digit", EXACT, unit, None, "convert: transforms", name, 0.35, only)


CPU_LINES = (
    of_transforms("rescale of a ciphertext", "rescale", "ms", 2.4, 1.8),
    of_transforms("mod_up, evaluated", "mod_up", "ms"),
    of_transforms("mod_down, evaluated", "mod_down", "ms"),
    digit("ms", 3),
    *(exact_beside_fast("ms", limbs, times) for limbs, times in ((3, 1.4), (6, 1.25), (12, 1.25))),
    undecided("ms"),
    Line("R(int64), between -q and q", "ring(int64), |x| < q", "ns a residue", 0.25),
    Line("R(int64), any x", "ring(int64)", "ns a residue", 0.45),
    Line("to_int64", "to_int64", "ns a residue", 0.5),
    Line("norm(inf)", "norm(inf)", "ns a residue", 2),
    Line("to_bigints", "to_bigints", "ms", 25),
    Line("random", "random", "ns a value", 5),
    Line("ternary", "ternary", "ns a value", 2),
    Line(f"binomial({ETA})", f"binomial {ETA}", "ns a value", 2),
    Line(f"tuniform({B})", f"tuniform {B}", "ns a value", 2),
    *(Line(f"gaussian({s})", f"gaussian {s}", "ns a value", 8) for s in SIGMAS),
    Line("a(x), one point", "poly(x)", "ms", 2),
    INVERSE,
    Line("BFV product, not relinearised", "BFV product", "ms", 1.5),
)
GPU_LINES = (
    of_transforms("mod_down, evaluated", "mod_down", "us", times=1.8),
    of_transforms("rescale of a ciphertext", "rescale", "us", times=1.8),
    of_transforms("digits, evaluated", "digits", "us"),
    digit("us", 6),
    exact_beside_fast("us", 6, 1.25),
    undecided("us"),
    Line("random", "random", "ns a value", 0.03),
    Line("ternary", "ternary", "ns a value"),
    Line("gaussian(3.2)", "gaussian 3.2", "ns a value"),
)
OPS = frozenset(op for line in (*CPU_LINES, *GPU_LINES) for op in (line.op, line.beside) if op)


KINDS = {
    "cpu-conversions": LineKind(
        "Between bases of moduli, integers and samples, on one core, medians over passes", "cpu", CPU_LINES
    ),
    "gpu-conversions": LineKind(
        f"Between bases of moduli in a CUDA graph of {GRAPH_CALLS} calls, and samples", "gpu", GPU_LINES
    ),
}
