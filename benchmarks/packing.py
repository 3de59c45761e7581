"""Packing of LWE vectors, expansion of queries and external products, compared with their transforms alone.

    python -m benchmarks.packing [--device cuda] [--quick] [--results DIR]

Ciphertexts are evaluated. On a GPU each call is one CUDA graph. Each result is decrypted before it is timed.
The transforms of the same work are a separate row: one batched call for all inverse transforms and one for
all forward transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import lattice
from polygpu._backends import checked_device

from .conversions import transforms_case
from .harness import Case, Row, command_line, measured, on_cores, release, timer_of
from .tables import Table, figure

Array = NDArray[Any]
PACKING, EXPANSION = "packing of LWE vectors", "expansion"
BY_LIMBS, BY_BASE = "external product, groups of limbs", "external product, base 2^18"
OPS = (PACKING, EXPANSION, BY_LIMBS, BY_BASE)
SIGMA, LEVELS, BITS = 3.2, 3, 18
# Greatest allowed time of a packing on one core, in ms. Greatest allowed ratio of the time of an external
# product, with groups of limbs as digits, to the time of its transforms. On a GPU, a packing in a batch of 64
# must be 20 times as fast as on a core.
MUST_MS, MUST_RATIO = 20.0, 2.2


@dataclass(frozen=True)
class Shape:
    """Degree, limbs of Q, number of special limbs, bit length of the primes, and ciphertexts per call."""

    n: int
    limbs: int
    special: int
    bits: int
    batch: int


@dataclass(frozen=True)
class Sizes:
    """The shapes that are measured on a device.

    packed: shapes for packing and expansion, each with the number of messages. products: shapes for external
    products.
    """

    packed: tuple[tuple[Shape, int], ...]
    products: tuple[Shape, ...]


CPU = Sizes(
    ((Shape(2048, 1, 1, 28, 1), 1024), (Shape(2048, 1, 1, 31, 1), 1024), (Shape(4096, 2, 1, 28, 1), 256)),
    (Shape(4096, 2, 1, 28, 8), Shape(4096, 2, 1, 50, 8), Shape(8192, 4, 1, 50, 8)),
)
GPU = Sizes(
    ((Shape(2048, 1, 1, 28, 1), 1024), (Shape(2048, 1, 1, 28, 64), 1024), (Shape(4096, 2, 1, 28, 64), 256)),
    (Shape(4096, 2, 1, 28, 1024), Shape(4096, 2, 1, 50, 1024), Shape(8192, 4, 1, 50, 1024)),
)
QUICK = Sizes(((Shape(64, 1, 1, 28, 2), 16),), (Shape(64, 2, 1, 28, 2),))


@cache
def keys_of(
    n: int, limbs: int, special: int, bits: int
) -> tuple[pg.Ring, pg.Poly, Any, Any, dict[str, pg.Poly]]:
    """Make the ring T, a secret, keys for packing and expansion, and GGSW ciphertexts of 1, on the CPU."""
    with pg.device("cpu"):
        T = pg.Ring(n, pg.ntt_primes(n, bits=bits, count=limbs + special))
        Q, P, s = T[:limbs], T[limbs:], T.ternary(seed=1)
        of: dict[str, Any] = {"ring": Q, "special": P, "limbs_per_digit": 1, "seed": 2}
        steps = range(n.bit_length() - 1)
        packing = lattice.rotation_keys(s, [(2 << j) + 1 for j in steps], **of)
        expansion = lattice.rotation_keys(s, [(n >> j) + 1 for j in steps], **of)
        secret, ones = s.restrict(Q)[None], {}
        if limbs > 1:
            ones[BY_LIMBS] = lattice.ggsw([1], secret, limbs_per_digit=1, special=P, sigma=SIGMA, seed=3)[0]
            ones[BY_BASE] = lattice.ggsw([1], secret, bits=BITS, levels=LEVELS, sigma=SIGMA, seed=3)[0]
        return T, s, packing, expansion, ones


def phase(c: pg.Poly, s: pg.Poly) -> pg.Poly:
    """Return the phases (decryptions with noise) of ciphertexts c under the secret s, on the CPU."""
    return c[..., 0] + c[..., 1] * s.restrict(c.ring)


def is_small(noise: pg.Poly, bound: float) -> bool:
    """Return whether all coefficients are at most `bound` in absolute value."""
    return float(np.max(noise.norm(float("inf")))) <= bound


def packing_cases(shape: Shape, count: int, device: str, cores: int) -> Iterator[Case]:
    """Yield the cases of packing and expanding `count` messages, and of the transforms alone."""
    n, limbs, special, bits = shape.n, shape.limbs, shape.special, shape.bits
    T, s, packing, expansion, _ = keys_of(n, limbs, special, bits)
    Q, params = T[:limbs], params_of(shape, device, cores) | {"count": count}
    for op, keys, batch, f in (
        (PACKING, packing, (shape.batch, count, 2), lattice.pack),
        (EXPANSION, expansion, (shape.batch, 2), lambda c, keys: lattice.expand(c, keys, count)),
    ):
        with pg.device("cpu"):
            c = Q.random(batch, domain="eval", seed=4)
        there = {g: key.to(device) for g, key in keys.items()}

        def verify(found: Array, op: str = op, c: pg.Poly = c) -> bool:
            with pg.device("cpu"):  # the first item and the last
                got = phase(Q.from_residues(found, domain="eval")[[0, -1]], s).intt()
                given = phase(c[[0, -1]], s).intt()
                wanted = np.zeros((*got.shape, n), object)
                numbers = given.to_bigints()
                if op == PACKING:
                    wanted[..., :: n // count] = n * numbers[..., 0]
                else:
                    for i in range(count):
                        wanted[:, i, ::count] = count * numbers[..., i::count]
                return is_small(got - Q(wanted), 2.0**24 if n > 64 else 2.0**16)

        work = recorded(f, c.to(device), there)
        rotations = (count - 1) * shape.batch
        yield Case(op, "polygpu", params, work, verify, rotations, on_host, samples=5)
        if shape.batch > 1 and device != "cpu":
            continue
        # Each rotation needs l + 2 p inverse and d (l + p) - l + 2 l forward transforms, for l limbs of Q, p
        # special limbs and d digits.
        with pg.device("cpu"):
            one = T[:1]
            down = one.random(rotations * (limbs + 2 * special), seed=5)
            up = one.random(rotations * (limbs * (limbs + special) + limbs), seed=6)
        yield transforms_case(op, params, device, down, up)


def product_cases(shape: Shape, device: str, cores: int) -> Iterator[Case]:
    """Yield the cases of external products with both kinds of digits, and of their transforms alone.

    The ciphertexts are given in coefficients.
    """
    T, s, _, _, ones = keys_of(shape.n, shape.limbs, shape.special, shape.bits)
    Q, P, params = T[: shape.limbs], T[shape.limbs :], params_of(shape, device, cores)
    for op, one in ones.items():
        way: dict[str, Any] = {"limbs_per_digit": 1, "special": P} if op == BY_LIMBS else {"bits": BITS}
        with pg.device("cpu"):
            c = Q.random((shape.batch, 2), seed=7)
            error = Q.modulus / 2 ** (BITS * LEVELS) * shape.n if op == BY_BASE else 0.0

        def verify(found: Array, c: pg.Poly = c, error: float = error) -> bool:
            with pg.device("cpu"):
                return is_small(phase(Q.from_residues(found), s) - phase(c, s), error + 2.0**28)

        def product(c: pg.Poly, one: pg.Poly, way: dict[str, Any] = way) -> pg.Poly:
            return lattice.external_product(one, c, **way)

        yield Case(
            op,
            "polygpu",
            params,
            recorded(product, c.to(device), one.to(device)),
            verify,
            shape.batch,
            on_host,
            samples=5,
        )
        digits, ring = (shape.limbs, T) if op == BY_LIMBS else (LEVELS, Q)
        with pg.device("cpu"):
            down = ring.random((shape.batch, 2), seed=8)
            up = ring.random((shape.batch, 2, digits), seed=9)
        yield transforms_case(op, params, device, down, up)


def params_of(shape: Shape, device: str, cores: int) -> dict[str, Any]:
    """Return the parameters of a row."""
    return asdict(shape) | ({"cores": cores} if device == "cpu" else {"launch": "CUDA graph"})


def recorded(f: Callable[..., pg.Poly], c: pg.Poly, *more: Any) -> Callable[[], Any]:
    """Return f(c, *more) as a function without arguments. On a GPU it replays a CUDA graph."""
    if c.device == "cpu":
        return lambda: f(c, *more)
    return pg.capture(lambda c: f(c, *more), c)


def on_host(x: pg.Poly) -> Array:
    """Return the residues in host memory."""
    return np.asarray(x.cpu().data)


def cases(sizes: Sizes, device: str, cores: int) -> Iterator[Case]:
    """Yield all cases for a device."""
    for shape, count in sizes.packed:
        yield from packing_cases(shape, count, device, cores)
    for shape in sizes.products:
        yield from product_cases(shape, device, cores)


# ---- the tables ----


@dataclass(frozen=True)
class PackingKind:
    """A table of the operations of one device beside their transforms."""

    device: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows."""
        names = {*OPS, *(f"{op}: transforms" for op in OPS)}
        return [row for row in rows if row.op in names and row.machine["kind"] == self.device]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine."""
        of: dict[tuple[Any, ...], Row] = {}
        for row in self.rows(rows):
            op, is_floor, _ = row.op.partition(": transforms")
            p = row.params
            key = tuple(
                int(p.get(name, 0)) for name in ("n", "limbs", "bits", "count", "batch", "cores", "special")
            )
            of[(OPS.index(op), *key, bool(is_floor))] = row
        body = tuple(self._line(of[key], of.get((*key[:-1], True))) for key in sorted(of) if not key[-1])
        header = "operation", "shape", "batch", "time", "each", "transforms", "ratio", "must", "holds"
        yield Table("Packing, expansion and external products in several limbs", header, body)

    def _line(self, row: Row, floor: Row | None) -> tuple[str, ...]:
        p, each = row.params, row.median / int(row.params["batch"]) / 1e6
        shape = f"N = {p['n']}, {p['limbs']} + {p['special']} limbs of {p['bits']} bits"
        ratio = None if floor is None else row.median / floor.median
        must = holds = ""
        if self.device == "cpu" and row.op == PACKING and (p["n"], p["count"]) == (2048, 1024):
            must, holds = f"{figure(MUST_MS)} ms", "yes" if each <= MUST_MS else "no"
        if self.device == "cpu" and row.op == BY_LIMBS and ratio is not None:
            must, holds = f"ratio {MUST_RATIO}", "yes" if ratio <= MUST_RATIO else "no"
        count = f", {p['count']} of them" if "count" in p else ""
        return (
            row.op,
            shape + count,
            str(p["batch"]),
            f"{figure(row.median / 1e6)} ms",
            f"{figure(each)} ms",
            "" if floor is None else f"{figure(floor.median / 1e6)} ms",
            "" if ratio is None else figure(ratio),
            must,
            holds,
        )


KINDS = {"cpu-packing": PackingKind("cpu"), "gpu-packing": PackingKind("gpu")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("benchmarks.packing", __doc__, "small sizes, which are not secure")
    options = parser.parse_args(arguments)
    device = checked_device(options.device)
    timer = timer_of(device)
    sizes = QUICK if options.quick else CPU if device == "cpu" else GPU
    with on_cores(1):
        for case, row in measured(cases(sizes, device, 1), timer, options.results):
            print(f"{case}: {figure(row.median / 1e6)} ms", flush=True)
            if device != "cpu":
                release()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
