"""Key switches, rotations, matrices times slots, external products and bootstraps.

    python -m benchmarks.lattice [--device cuda] [--quick] [--results DIR]

Each is compared with the least that it must do. The transforms alone are another row of the same run: one
batched call for all inverse transforms, another for all forward ones. Matrices times slots, rotations without
division and combinations are compared with a copy that moves as many bytes as their keys, diagonals or
operands have.

On a GPU key switches run in a CUDA graph of several calls, each with its own key. So keys are read from
memory and not from a cache, except for the smallest shape, all keys of which fit in the cache. External
products run in a graph of several calls with one matrix, and matrices times slots in a graph of one call.
Bootstraps and encoding are plain calls.

Results are verified before they are timed. On the CPU they are compared with Python integers; bootstraps are
decrypted, and three slots of an encoding are evaluated. On a GPU, transforms and the encoding are verified in
the same way, and all other results are compared with those of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import fft, lattice
from polygpu._backends import checked_device
from polygpu._backends.reference import big_product
from polygpu.examples.tfhe import TFHE, Keys

from .conversions import (
    GRAPH_CALLS,
    Ints,
    Params,
    centred,
    gpu_params,
    integers,
    is_of,
    is_transform,
    nearest,
    poison,
    residues,
    ring_of,
    transforms_case,
)
from .harness import Case, Unverified, command_line, measure, on_cores, record, release, timer_of
from .plots import Bar, bars
from .tables import Line, LineKind, Measured, figure
from .tables import shape as shape_text

KEY_BYTES = 2**27  # bytes that the keys of one graph should take together: twice the L2 cache of an H200
MOST_CALLS = 24  # largest number of calls in a graph
GALOIS = 5  # the Galois element of rotations: X -> X^5
BY_FFT, PRODUCT, RESCALE = "external product by FFT", "relinearised product", "rescaling"
TRANSFORM, UNDIVIDED, COMBINED = "matrix times slots", "rotations without division", "combinations"


@dataclass(frozen=True)
class Shape:
    """Parameters of a key switch: degree, numbers of limbs, and bit length of the primes.

    limbs: limbs of a value. special: special limbs. size: limbs of a digit.
    """

    n: int
    limbs: int
    special: int
    size: int
    bits: int


@dataclass(frozen=True)
class Sizes:
    """The shapes and sizes that are measured on a device."""

    rotation: tuple[Shape, ...]
    """Shapes of key switches that are measured with their hoisted rotations."""
    switches: tuple[Shape, ...]
    """Shapes of key switches and relinearisations."""
    products: tuple[int, ...]
    """Batch sizes of external products at N = 1024."""
    bootstraps: tuple[int, ...]
    """Batch sizes of bootstraps."""
    encoded: int
    """The degree of the encoded polynomials."""
    matrices: tuple[tuple[Shape, int, int], ...] = ()
    """Shapes of ciphertexts, numbers of diagonals and of baby steps of matrices that multiply slots."""
    passes: int = 3


CPU = Sizes(
    rotation=(Shape(2**15, 12, 3, 3, 50),),
    switches=(Shape(2**13, 4, 1, 1, 40), Shape(2**14, 6, 2, 2, 50), Shape(2**16, 24, 6, 6, 50)),
    products=(1, 16),
    bootstraps=(1, 16),
    encoded=2**15,
    matrices=((Shape(2**15, 12, 3, 3, 50), 16, 4),),
)
QUICK = Sizes(
    rotation=(Shape(2**13, 6, 2, 2, 50),),
    switches=(Shape(2**13, 4, 1, 1, 40),),
    products=(1,),
    bootstraps=(1,),
    encoded=2**13,
    matrices=((Shape(2**13, 6, 2, 2, 50), 16, 4),),
    passes=1,
)
GPU = Sizes(
    rotation=(Shape(2**16, 24, 6, 6, 50),),
    switches=(
        Shape(2**16, 48, 12, 12, 30),
        Shape(2**16, 12, 4, 4, 50),
        Shape(2**16, 24, 12, 12, 30),
        Shape(2**15, 24, 6, 6, 50),
        Shape(2**15, 12, 4, 4, 50),
        Shape(2**14, 12, 4, 4, 50),
        Shape(2**14, 6, 2, 2, 50),
        Shape(2**13, 12, 4, 4, 50),
        Shape(2**13, 3, 1, 1, 50),
    ),
    products=(1, 4096),
    bootstraps=(1, 4096),
    encoded=2**16,
    matrices=(
        (Shape(2**16, 24, 12, 12, 30), 16, 16),
        (Shape(2**16, 24, 12, 12, 30), 64, 8),
        (Shape(2**16, 48, 12, 12, 30), 64, 8),
        (Shape(2**16, 24, 6, 6, 50), 16, 16),
        (Shape(2**16, 24, 6, 6, 50), 64, 8),
        (Shape(2**16, 24, 6, 6, 50), 128, 16),
    ),
    passes=1,
)


# ---- definitions, in Python integers ----


def switched(a: pg.Poly, key: pg.Poly, special: pg.Ring, size: int, g: int = 1) -> Ints:
    """Compute the key switch of a(X^g), for an evaluated a on the host.

    The result is the coefficients (2, n) modulo Q, the modulus of a.
    """
    ring, T = a.ring, key.ring
    x = turned(integers(a), g)
    sums = np.zeros((2, T.rows, T.n), object)
    moduli = np.array(T.moduli, object)[:, None]
    for j, first in enumerate(range(0, ring.rows, size)):
        m = prod(ring.moduli[first : first + size])
        digit = centred(x, m)
        value = T.from_residues(np.stack([(digit % q).astype(T.dtype) for q in T.moduli]))
        evaluated = value.ntt()
        if not is_transform(evaluated.data, value):
            raise Unverified("a transform is wrong")
        sums = (sums + evaluated.data.astype(object) * key.data[j].astype(object)) % moduli
    total = T.from_residues(sums.astype(T.dtype), domain="eval").intt()
    if not is_transform(sums.astype(T.dtype), total):
        raise Unverified("a transform is wrong")
    found: Ints = nearest(integers(total), special.modulus)
    return found


def turned(x: Ints, g: int) -> Ints:
    """Return the coefficients of x(X^g) modulo X^n + 1."""
    n = x.shape[-1]
    places = np.arange(n) * g % (2 * n)
    found = np.empty_like(x)
    found[..., places % n] = np.where(places < n, x, -x)
    return found


def digits_of(x: Ints, q: int, bits: int, levels: int) -> list[Ints]:
    """Return the digits of x in base B = 2^bits, in [-B/2, B/2), the most significant digit first."""
    base = 1 << bits
    y = (2 * x * base**levels + q) // (2 * q)
    found = []
    for _ in range(levels):
        digit = centred(y, base)
        found.append(digit)
        y = (y - digit) // base
    return found[::-1]


def external(ggsw: pg.Poly, c: pg.Poly, bits: int) -> Ints:
    """Compute the external products of the first and the last ciphertext of a batch c, by the definition.

    An external product is the sum, over components and levels, of a digit of the ciphertext times a row of
    ggsw.
    """
    R = c.ring
    q, rows = R.modulus, integers(ggsw)
    found = []
    for x in (integers(c[i]) for i in sorted({0, len(c.data) - 1})):
        total = np.zeros((len(x), R.n), object)
        for i, component in enumerate(x):
            for level, digit in enumerate(digits_of(component, q, bits, rows.shape[1])):
                for j in range(len(x)):
                    product = big_product([int(d) % q for d in digit], rows[i, level, j].tolist(), q)
                    total[j] += np.array(product, object)
        found.append(total % q)
    return np.stack(found)


# ---- cases ----


def params_of(shape: Shape, device: str, calls: int) -> Params:
    params: Params = {
        "n": shape.n,
        "bits": shape.bits,
        "limbs": shape.limbs,
        "special": shape.special,
        "size": shape.size,
        "batch": 1,
    }
    if device != "cpu":
        params |= gpu_params(ring_of(shape.n, shape.bits, 1), f"CUDA graph of {calls}")
    return params


def key_case(
    op: str,
    shape: Shape,
    device: str,
    operand: pg.Poly,
    keys: Sequence[lattice.SwitchKey],
    verb: Callable[[pg.Poly, Sequence[lattice.SwitchKey]], pg.Poly],
    expected: Callable[[], Ints],
) -> Case:
    """Return the case of an operation on a value and keys, all of which are given on the host."""
    size = sum(key.nbytes for key in keys)
    copies = 1 if device == "cpu" else max(1, min(MOST_CALLS, -(-KEY_BYTES // size)))
    sets = [[key_of(key.value.to(device).copy(), key) for key in keys] for _ in range(copies)]
    x = operand.to(device)
    run = pg.capture(lambda x: [verb(x, own) for own in sets][-1], x)
    host = None if device == "cpu" else residues(verb(operand, keys))

    def verify(values: NDArray[Any]) -> bool:
        return is_of(operand.ring, expected, values) if host is None else np.array_equal(values, host)

    work = 2 * shape.limbs * shape.n
    return Case(op, "polygpu", params_of(shape, device, copies), run, verify, work, residues, copies)


def key_of(value: pg.Poly, like: lattice.SwitchKey, g: int | None = None) -> lattice.SwitchKey:
    """Return a switching key with the polynomials `value` and the parameters of the key `like`."""
    size, g = like.limbs_per_digit, like.galois_element if g is None else g
    return lattice.SwitchKey(
        value, ring=like.ring, special=like.special, limbs_per_digit=size, galois_element=g
    )


def switch_cases(device: str, shape: Shape, hoisted: bool) -> Iterator[Case]:
    """Yield the cases of a relinearisation and, if `hoisted`, of a rotation and of eight hoisted rotations.

    For each operation there is also a case of its transforms alone.
    """
    primes = pg.ntt_primes(shape.n, bits=shape.bits, count=shape.limbs + shape.special)
    R = pg.Ring(shape.n, primes)
    Q, special = R[: shape.limbs], R[shape.limbs :]
    digits = -(-shape.limbs // shape.size)
    c = Q.random(3, seed=1).ntt()
    value = R.random((digits, 2), seed=2).ntt()
    key = lattice.SwitchKey(value, ring=Q, special=special, limbs_per_digit=shape.size)
    where = shape, device, c

    def relinearised(c: pg.Poly, keys: Sequence[lattice.SwitchKey]) -> pg.Poly:
        return lattice.key_switch(c[2], keys[0], add=c[:2])

    def expected() -> Ints:
        return switched(c[2], value, special, shape.size) + integers(c[:2])

    yield key_case("relinearisation", *where, [key], relinearised, expected)
    # Each digit needs forward transforms for all limbs but its own. mod_down divides two components: it needs
    # inverse transforms of their special limbs, and forward transforms for their other limbs.
    back, forth = shape.limbs + 2 * special.rows, digits * (R.rows - shape.size) + 2 * shape.limbs
    yield rows_case("relinearisation", shape, device, back, forth)
    if not hoisted:
        return
    if device != "cpu":
        yield from product_of_ciphertexts(shape, device, key)
    pair = Q.random(2, seed=1).ntt()
    gs = [pow(GALOIS, k, 2 * shape.n) for k in range(1, 9)]

    def rotated(c: pg.Poly, keys: Sequence[lattice.SwitchKey]) -> pg.Poly:
        return lattice.rotate_many(c, keys)

    def expected_rotations(count: int) -> Ints:
        found = []
        for g in gs[:count]:
            total = switched(pair[1], value, special, shape.size, g)
            total[0] += turned(integers(pair[0]), g)
            found.append(total)
        result: Ints = np.stack(found)
        return result

    for op, count in (("rotation", 1), ("8 rotations", 8)):
        back = shape.limbs + 2 * count * special.rows
        forth = digits * (R.rows - shape.size) + 2 * count * shape.limbs
        keys = [key_of(value, key, g) for g in gs[:count]]
        yield key_case(op, shape, device, pair, keys, rotated, partial(expected_rotations, count))
        yield rows_case(op, shape, device, back, forth)


def product_of_ciphertexts(shape: Shape, device: str, key: lattice.SwitchKey) -> Iterator[Case]:
    """Yield the cases of a product of ciphertexts and of a rescaling.

    The product is relinearised and rescaled with one division. For both operations there is also a case of
    the transforms alone.
    """
    Q, special = key.ring, key.special
    x = Q.random((2, 2), seed=1).ntt()

    def product(x: pg.Poly, keys: Sequence[lattice.SwitchKey]) -> pg.Poly:
        return lattice.multiply(x[0], x[1], keys[0], rescale=1)

    def rescaled(x: pg.Poly, _: Sequence[lattice.SwitchKey]) -> pg.Poly:
        return x[0].rescale()

    def unseen() -> Ints:
        raise Unverified("compared with the CPU alone")

    digits = -(-shape.limbs // shape.size)
    forth = digits * (key.value.ring.rows - shape.size) + 2 * (shape.limbs - 1)
    yield key_case(PRODUCT, shape, device, x, [key], product, unseen)
    yield rows_case(PRODUCT, shape, device, shape.limbs + 2 * (special.rows + 1), forth)
    yield key_case(RESCALE, shape, device, x, [key], rescaled, unseen)
    yield rows_case(RESCALE, shape, device, 2, 2 * (shape.limbs - 1))


def rows_case(op: str, shape: Shape, device: str, back: int, forth: int) -> Case:
    """Return the case of an operation's transforms: `back` rows inverse, and `forth` rows forward."""
    R = ring_of(shape.n, shape.bits, 1)
    case = transforms_case(op, {}, device, R.random(back, seed=3), R.random(forth, seed=4))
    return replace(case, params=params_of(shape, device, case.calls))


def program_cases(device: str, shape: Shape, diagonals: int, baby: int) -> Iterator[Case]:
    """Yield the cases of a matrix times slots.

    If there are few diagonals, also yield cases of rotations without division and of combinations.
    """
    R = pg.Ring(shape.n, pg.ntt_primes(shape.n, bits=shape.bits, count=shape.limbs + shape.special))
    Q, special, half = R[: shape.limbs], R[shape.limbs :], shape.n // 2
    s, scale = R.ternary(seed=1), 2 ** (shape.bits - 2)
    of: dict[str, Any] = {"ring": Q, "special": special, "limbs_per_digit": shape.size, "seed": 2}
    rng = np.random.default_rng(3)
    rows = {k: np.exp(2j * np.pi * rng.random(half)) / diagonals for k in range(diagonals)}
    M = lattice.LinearTransform(rows, ring=Q, special=special, scale=scale, baby=baby)
    with pg.device(device):
        made = lattice.rotation_keys(s, M.galois_elements, turned=True, **of)
    slots, mask, full = np.exp(1j * np.arange(half)), Q.random(seed=4).ntt(), s.restrict(Q).ntt()
    message = Q.from_floats(fft.from_slots(slots), scale=scale).ntt()
    c = pg.stack([message - mask * full, mask])
    keys, on_device = {g: key.to("cpu") for g, key in made.items()}, M.to(device)
    rate = {"diagonals": diagonals, "baby": baby}

    def expected() -> pg.Poly:
        found = lattice.transform(c, M, keys, rescale=1)
        phase = (found[0] + found[1] * full.restrict(found.ring)).to_float64() / scale**2 * Q.moduli[-1]
        product = sum(row * np.roll(slots, -k) for k, row in rows.items())
        if np.abs(fft.to_slots(phase) - product).max() > 2.0**-8:
            raise Unverified("the slots of a product are wrong")
        return found

    used = sum(-(-shape.limbs // shape.size) * 2 * key.value[0, 0].data.nbytes for key in keys.values())
    yield from memory_bound(
        TRANSFORM,
        shape,
        rate,
        device,
        c,
        lambda c: lattice.transform(c, on_device, made, rescale=1),
        expected,
        used + M.nbytes,
    )
    if diagonals > 16:
        return
    many = list(made.values())
    hoist = {"special": special, "limbs_per_digit": shape.size}

    def rotated(c: pg.Poly, keys: Sequence[lattice.SwitchKey]) -> pg.Poly:
        return lattice.rotate_many(lattice.hoist(c, **hoist), keys, divide=False)

    yield from memory_bound(
        UNDIVIDED,
        shape,
        {"rotations": len(many)},
        device,
        c,
        lambda c: rotated(c, many),
        lambda: rotated(c, list(keys.values())),
        used,
    )
    ints = rng.integers(-(2**40), 2**40, (4, 8)).tolist()
    values = Q.random(8, seed=5).ntt()
    yield from memory_bound(
        COMBINED,
        shape,
        {"values": 8, "results": 4},
        device,
        values,
        lambda x: pg.combine(ints, list(x)),
        lambda: pg.combine(ints, list(values)),
        values.data.nbytes // 8 * 12,
    )


# Eight parameters, because they describe two cases and the verification: an operation, and a copy of its
# bytes.
def memory_bound(
    op: str,
    shape: Shape,
    more: Params,
    device: str,
    operand: pg.Poly,
    verb: Callable[[pg.Poly], pg.Poly],
    expected: Callable[[], pg.Poly],
    size: int,
) -> Iterator[Case]:
    """Yield the cases of an operation, and of a copy that moves `size` bytes, half read and half written."""
    params = params_of(shape, device, 1) | more
    x, host = operand.to(device), residues(expected())
    run = pg.capture(verb, x)
    work = 2 * shape.limbs * shape.n

    def verify(found: NDArray[Any]) -> bool:
        return np.array_equal(found, host)

    yield Case(op, "polygpu", params, run, verify, work, residues)
    R = ring_of(shape.n, shape.bits, 1)
    source = R.random(max(1, size // 2 // (shape.n * R.dtype.itemsize)), seed=6)
    copied, own = residues(source), source.to(device)
    again = pg.capture(lambda x: x.copy(), own)
    yield Case(
        f"{op}: bytes", "polygpu", params, again, lambda found: np.array_equal(found, copied), work, residues
    )


def product_cases(device: str, batch: int) -> Iterator[Case]:
    """Yield the cases of an external product with the gadget of the example, and of its transforms.

    The same product is also measured by FFT.
    """
    scheme = TFHE()
    R, levels = scheme.ring, scheme.digits[1]
    yield product_case("external product", device, batch, R, R.modulus.bit_length())
    down, up = R.random((batch, 2), seed=3), R.random((batch, 2 * levels), seed=4)
    params: Params = {"n": R.n, "bits": scheme.bits, "limbs": 1, "levels": levels, "batch": batch}
    if device != "cpu":
        params |= gpu_params(R, f"CUDA graph of {GRAPH_CALLS}")
    yield transforms_case("external product", params, device, down, up)
    for bits in (32, 64):
        yield product_case(BY_FFT, device, batch, pg.Ring(R.n, 2**bits), bits)


def product_case(op: str, device: str, batch: int, R: pg.Ring, log_q: int) -> Case:
    """Return the case of an external product by a prepared matrix, with digits as in the example."""
    bits, levels = TFHE().digits
    params: Params = {"n": R.n, "bits": log_q, "limbs": 1, "levels": levels, "batch": batch}
    ggsw, c = R.random((2, levels, 2), seed=1), R.random((batch, 2), seed=2)
    own, matrix, x = (
        lattice.prepare(ggsw, bits=bits),
        lattice.prepare(ggsw.to(device), bits=bits),
        c.to(device),
    )
    out = lattice.external_product(matrix, x, bits=bits)
    calls = 1 if device == "cpu" else MOST_CALLS

    def work(x: pg.Poly) -> pg.Poly:
        return [lattice.external_product(matrix, x, bits=bits, out=out) for _ in range(calls)][-1]

    def verify(values: NDArray[Any]) -> bool:  # on the CPU this checks the first and the last of a batch
        if device != "cpu":
            return np.array_equal(values, residues(lattice.external_product(own, c, bits=bits)))
        return is_of(R, partial(external, ggsw, c, bits), values[sorted({0, batch - 1})])

    if device != "cpu":
        params |= gpu_params(R, f"CUDA graph of {calls}")
        params |= {"word": "c128"} if op == BY_FFT else {}
    run = pg.capture(work, x)
    poison(out)
    return Case(op, "polygpu", params, run, verify, 2 * batch * R.n, residues, calls)


@cache
def bootstrapping_keys() -> Keys:
    with pg.device("cpu"):
        return TFHE().keygen(b"benchmark")


def bootstrap_cases(device: str, batch: int) -> Iterator[Case]:
    """Yield the case of bootstraps, whose table squares the messages."""
    scheme, keys = TFHE(), bootstrapping_keys()
    messages = np.arange(batch) % scheme.p
    vectors = scheme.encrypt(keys, messages, b"messages")
    params: Params = {"n": scheme.N, "bits": scheme.bits, "limbs": 1, "lwe": scheme.n, "batch": batch}
    own, x = keys, vectors
    if device != "cpu":
        params |= gpu_params(scheme.ring, "plain")
        own, x = keys.to(device), pg._backends.get_backend(device).from_host(vectors)

    def square(m: int) -> int:
        return m * m % scheme.p

    def run() -> Any:
        with pg.device(device):
            return scheme.bootstrap(own, x, square)[0]

    def values(found: Any) -> NDArray[Any]:
        return pg._backends.backend_of(found).to_host(found)

    def verify(found: NDArray[Any]) -> bool:
        if device != "cpu":
            return np.array_equal(found, scheme.bootstrap(keys, vectors, square)[0])
        return np.array_equal(scheme.decrypt(keys, found), messages**2 % scheme.p)

    yield Case("bootstrap", "polygpu", params, run, verify, batch, values, samples=5)


def encode_cases(device: str, n: int) -> Iterator[Case]:
    """Yield the cases of encoding slots as a scaled, rounded and evaluated polynomial modulo six limbs."""
    R, scale = ring_of(n, 50, 6), 2.0**40
    z = np.exp(1j * np.arange(n // 2))
    backend = pg._backends.get_backend(device)
    x = backend.from_host(z)
    params: Params = {"n": n, "bits": 50, "limbs": R.rows, "batch": 1}
    if device != "cpu":
        params |= gpu_params(R, "plain")

    def run() -> pg.Poly:
        with pg.device(device):
            return R.from_floats(fft.from_slots(x), scale=scale).ntt()

    def verify(values: NDArray[Any]) -> bool:
        found = centred(integers(R.from_residues(values)), R.modulus).astype(np.float64) / scale
        picked, turns = [0, 1, n // 2 - 1], np.arange(n)
        roots = [np.exp(1j * np.pi / n * (pow(5, j, 2 * n) * turns % (2 * n))) for j in picked]
        slots = [np.sum(found * powers) for powers in roots]
        return bool(np.allclose(slots, z[picked], atol=n * 2.0**-40, rtol=0))

    yield Case("encode", "polygpu", params, run, verify, R.rows * n, residues)


def cases(device: str, sizes: Sizes) -> Iterator[Callable[[], Iterator[Case]]]:
    for shape in (*sizes.rotation, *sizes.switches):
        yield partial(switch_cases, device, shape, shape in sizes.rotation)
    for batch in sizes.products:
        yield partial(product_cases, device, batch)
    for batch in sizes.bootstraps:
        yield partial(bootstrap_cases, device, batch)
    yield partial(encode_cases, device, sizes.encoded)
    for shape, diagonals, baby in sizes.matrices:
        yield partial(program_cases, device, shape, diagonals, baby)


# ---- the tables ----


def beside(
    work: str, op: str, unit: str, must: float | None, times: float | None, only: Mapping[str, int]
) -> Line:
    return Line(work, op, unit, must, f"{op}: transforms", "transforms alone", times, only)


def over_bytes(op: str, unit: str, must: float | None, only: Mapping[str, int]) -> Line:
    """Return a line of the table: an operation of program_cases beside the copy of its bytes."""
    work = f"{op}, {only['diagonals']} diagonals" if "diagonals" in only else op
    return Line(work, op, unit, must, f"{op}: bytes", "its bytes copied", None, only)


RELIN, EXTERNAL = "relinearisation", "external product"
# Greatest allowed time in us, by limbs, bits and diagonals.
PROGRAM_MUSTS = {(24, 30, 16): 700, (24, 30, 64): 1800, (48, 30, 64): 3300}
CPU_LINES = (
    beside("rotation", "rotation", "ms", 10, 1.75, {"n": 2**15}),
    beside("8 rotations, hoisted", "8 rotations", "ms", None, None, {}),
    beside(RELIN, RELIN, "ms", 0.6, 1.75, {"n": 2**13, "limbs": 4}),
    *(beside(RELIN, RELIN, "ms", None, 1.75, {"n": n}) for n in (2**14, 2**15, 2**16)),
    beside(EXTERNAL, EXTERNAL, "us", None, 2, {}),
    Line(BY_FFT, BY_FFT, "us"),
    Line("bootstrap of 2 bits", "bootstrap", "ms", 12, only={"batch": 1}),
    Line("bootstrap of 2 bits", "bootstrap", "ms", only={"batch": 16}),
    Line("encode", "encode", "ms"),
    *(over_bytes(op, "ms", None, {}) for op in (TRANSFORM, UNDIVIDED, COMBINED)),
)
# Greatest allowed time of a key switch in us, by degree, limbs and bits.
GPU_MUSTS = {(2**16, 24, 50): 170, (2**16, 48, 30): 190, (2**16, 12, 50): 90}
GPU_SHAPES = tuple((s.n, s.limbs, s.bits) for s in (*GPU.rotation, *GPU.switches))
GPU_LINES = (
    beside("rotation", "rotation", "us", 185, 1.95, {"n": 2**16}),
    beside("8 rotations, hoisted", "8 rotations", "us", None, None, {}),
    beside("product, relinearised and rescaled", PRODUCT, "us", 230, None, {}),
    beside(RESCALE, RESCALE, "us", 50, 1.8, {}),
    *(
        beside(RELIN, RELIN, "us", GPU_MUSTS.get(s), 1.95, dict(zip(("n", "limbs", "bits"), s, strict=True)))
        for s in GPU_SHAPES
    ),
    beside(EXTERNAL, EXTERNAL, "us", None, 2, {}),
    Line(BY_FFT, BY_FFT, "us"),
    Line("bootstrap of 2 bits", "bootstrap", "us", only={"batch": 1}),
    Line("bootstrap of 2 bits", "bootstrap", "us", 136_533, only={"batch": 4096}),  # 30,000 a second
    Line("encode", "encode", "us"),
    *(
        over_bytes(
            TRANSFORM,
            "us",
            PROGRAM_MUSTS.get((shape.limbs, shape.bits, diagonals)),
            {"limbs": shape.limbs, "bits": shape.bits, "diagonals": diagonals},
        )
        for shape, diagonals, _ in GPU.matrices
    ),
    *(
        over_bytes(op, "us", None, {"limbs": limbs, "bits": bits})
        for op in (UNDIVIDED, COMBINED)
        for limbs, bits in ((24, 30), (24, 50))
    ),
)
KINDS = {
    "cpu-lattice": LineKind("Key switches and gadgets on one core, medians over passes", "cpu", CPU_LINES),
    "gpu-lattice": LineKind(
        "Key switches and external products in CUDA graphs, bootstraps and encoding", "gpu", GPU_LINES
    ),
}


def draw(cells: Measured) -> str | None:
    """Draw a bar for each relinearisation: the time of its transforms, then the rest of its time."""
    lines = []
    names = ("n", "limbs", "bits")
    for (op, library, params), rows in sorted(cells.items(), key=lambda x: [dict(x[0][2])[k] for k in names]):
        alone = cells.get((f"{RELIN}: transforms", library, params))
        if op == RELIN and alone:
            whole, transforms = (median(row.median for row in x.values()) / 1000 for x in (rows, alone))
            parts = {"transforms alone": transforms, "all else": whole - transforms}
            lines.append(Bar(shape_text(next(iter(rows.values()))), parts))
    return bars("A relinearisation, us", lines)


FIGURES = {f"lattice-{name[:3]}.svg": (kind, draw) for name, kind in KINDS.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("benchmarks.lattice", __doc__, "small sizes, one pass")
    options = parser.parse_args(arguments)
    device = checked_device(options.device)
    sizes = QUICK if options.quick else CPU if device == "cpu" else GPU
    timer = timer_of(device)
    failures = 0
    for run in range(1, sizes.passes + 1):
        for group in cases(device, sizes):
            try:
                with pg.device("cpu"):  # for the values that results are compared with
                    for case in group():
                        case = replace(case, params={**case.params, "run": run})
                        if device == "cpu":
                            with on_cores(1):
                                row = measure(case)
                        else:
                            row = measure(case, timer)
                            release()
                        record(row, options.results)
                        print(f"{case}: {figure(row.median / 1000)} us", flush=True)
            except Exception as error:
                failures += 1
                print(f"FAILED, {type(error).__name__}: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
