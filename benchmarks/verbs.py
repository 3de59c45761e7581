"""The host's time for one repeated call of every function (verb), while a GPU's stream is busy.

    python -m benchmarks.gpu --only verbs

A verb is a function or method that computes values or arrays on the device from others. Each call makes a new
result from the same operands. Three calls are made before the timing. The first does the work in the ordinary
way, and later calls only repeat its launches. All three results are compared with the CPU's; integers must be
equal bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import fft, lattice, linalg, rns, zk
from polygpu._backends import get_backend

from .calls import HOST
from .harness import Case, Row
from .tables import Table, figure, power

DEGREE, BITS, LIMBS, SPECIAL = 2**12, 49, 6, 2
ROTATED = 2**10, 30  # degree and bits of the ring of bootstraps
SQUARE, SQUARE_MODULUS = 64, 2**61 - 1  # size and modulus of matrices of integers
DIGIT, LEVELS = 9, 3  # bits of a digit of a ciphertext, and number of digits
TOLERANCE = 2.0**-46  # largest allowed error of doubles, relative to the largest value
MUST_US, MUST_US_A_LAUNCH = 12, 1.5  # a call must take at most max(MUST_US, launches * MUST_US_A_LAUNCH)

Call = Callable[[], Any]


# ---- what is called ----


def calls(device: str, n: int = DEGREE) -> dict[str, Call]:
    """Return a dict of calls. The key is the name of the verb, with a remark if the call is special.

    The operands are evaluated if the verb accepts both domains. They are the same on every device. Among them
    are a polynomial `a`, a ciphertext `c` and a vector `v`.
    """
    primes = pg.ntt_primes(2 * n, bits=BITS, count=LIMBS + SPECIAL)  # for transforms of degrees n and 2n
    Q, P = pg.Ring(n, primes[:LIMBS]), pg.Ring(n, primes[LIMBS:])
    T, fewer, q = Q.join(P), Q[: LIMBS - 2], Q[:1]
    degree, bits = ROTATED
    B = pg.Ring(min(n, degree), pg.ntt_primes(degree, bits=bits)[0])
    seeds = iter(range(100))

    def coefs(ring: pg.Ring, *batch: int) -> pg.Poly:
        with pg.device("cpu"):
            return ring.random(batch, seed=next(seeds)).to(device)

    def evals(ring: pg.Ring, *batch: int) -> pg.Poly:
        return ring.from_residues(coefs(ring, *batch).data, domain="eval")

    def integers(*shape: int) -> Any:
        rng = np.random.default_rng(next(seeds))
        return get_backend(device).from_host(rng.integers(0, 2**61 - 1, shape, np.uint64))

    def floats(*shape: int) -> Any:
        return get_backend(device).from_host(np.random.default_rng(next(seeds)).standard_normal(shape))

    def complexes(*shape: int) -> Any:
        return floats(*shape, 2).view(np.complex128)[..., 0]

    a, b, c, v, w, m = (evals(Q, *batch) for batch in ((), (), (2,), (3,), (3,), (3, 3)))
    a_coefs, b_coefs = coefs(Q), coefs(Q)
    joined, special = evals(T), evals(P)
    of: Any = {"ring": Q, "special": P, "limbs_per_digit": 2}
    key, other_key = (lattice.SwitchKey(evals(T, 3, 2), galois_element=g, **of) for g in (5, 25))
    relin, turned = (
        key._with(galois_element=None),
        {5: key._with(turned=True), 25: other_key._with(turned=True)},
    )
    with pg.device("cpu"):
        matrix = lattice.LinearTransform({k: [1] for k in range(4)}, ring=Q, special=P, scale=2**30, baby=2)
    matrix, low = matrix.to(device), evals(fewer)
    more, written = evals(Q, 2), evals(Q, 2)
    d, e, ggsw, ggsw_coefs = evals(q, 2), evals(q, 2), evals(q, 2, LEVELS, 2), coefs(q, 2, LEVELS, 2)
    slots = evals(q)
    acc, bsk, exponents = coefs(B, 8, 2), evals(B, 4, 2, LEVELS, 2), integers(8, 5).astype(np.int64)
    x, y, lwe = integers(SQUARE, SQUARE), integers(SQUARE, SQUARE), integers(n)
    short, lwe_key = integers(8, 257), integers(256 * LEVELS, 65)
    row, rows64, filter64 = complexes(4, 256), complexes(4, 64), complexes(64)
    reals, points = floats(n), complexes(n // 2)

    def assign() -> pg.Poly:
        written[0] = a
        return written

    pairs, of_limbs = evals(Q, 2, 2), evals(T, 2, 3, 2)
    steps = {
        g: key._with(galois_element=g)
        for j in range(n.bit_length() - 1)
        for g in ((2 << j) + 1, (n >> j) + 1)
    }
    return {
        "Poly.add": lambda: a.add(b),
        "Poly.sub": lambda: a.sub(b),
        "Poly.mul": lambda: a.mul(b),
        "Poly.mul, coefficients": lambda: a_coefs.mul(b_coefs),
        "Poly.neg": lambda: a.neg(),
        "Poly.ntt": lambda: a_coefs.ntt(),
        "Poly.intt": lambda: a.intt(),
        "Poly.scale_by": lambda: v.scale_by([1, 2, 3]),
        "Poly.sum": lambda: v.sum(),
        "Poly.natural_order": lambda: a.natural_order(),
        "Poly.to_slots": lambda: slots.to_slots(),
        "Poly.to_float64": lambda: a.to_float64(),
        "Poly.automorphism": lambda: a.automorphism(5),
        "Poly.automorphism, a list": lambda: v.automorphism([5, 25, -1]),
        "Poly.mul_monomial": lambda: a.mul_monomial(3),
        "Poly.mul_monomial, a list": lambda: v.mul_monomial([1, 2, 3]),
        "Poly.mul_monomial, coefficients": lambda: a_coefs.mul_monomial(3),
        "Poly.copy": lambda: a.copy(),
        "Poly.__copy__": lambda: copy.copy(a),
        "Poly.__deepcopy__": lambda: copy.deepcopy(a),
        "Poly.reshape": lambda: v.reshape(3, 1),
        "Poly.__iter__": lambda: list(v),
        "Poly.__getitem__": lambda: c[0],
        "Poly.__setitem__": assign,
        "Poly.__add__": lambda: a + b,
        "Poly.__radd__": lambda: 5 + a,
        "Poly.__sub__": lambda: a - b,
        "Poly.__rsub__": lambda: 5 - a,
        "Poly.__mul__": lambda: a * b,
        "Poly.__rmul__": lambda: 5 * a,
        "Poly.__neg__": lambda: -a,
        "Poly.__pos__": lambda: +a,
        "Poly.__pow__": lambda: a**3,
        "Poly.__matmul__": lambda: m @ v,
        "Poly.__rmatmul__": lambda: v.__rmatmul__(m),
        "Poly.__array_function__": lambda: np.sum(v),
        "Poly.restrict": lambda: a.restrict(fewer),
        "Poly.convert": lambda: a.convert(P),
        "Poly.mod_up": lambda: a.mod_up(T),
        "Poly.scale_up": lambda: low.scale_up(Q),
        "Poly.mod_down": lambda: joined.mod_down(Q),
        "Poly.rescale": lambda: a.rescale(),
        "Poly.digits": lambda: a.digits(T, limbs_per_digit=2),
        "pg.fma": lambda: pg.fma(a, b, a),
        "pg.fma, ints": lambda: pg.fma(a, 3, 5),
        "pg.combine": lambda: pg.combine([[1, 2], [3, 4]], [a, b]),
        "pg.dot": lambda: pg.dot(v, w),
        "pg.einsum": lambda: pg.einsum("ij,j->i", m, v),
        "pg.matmul": lambda: pg.matmul(m, v),
        "pg.stack": lambda: pg.stack([a, b]),
        "pg.concatenate": lambda: pg.concatenate([v, w]),
        "rns.join": lambda: rns.join(a, special),
        "rns.scale": lambda: rns.scale(a, 3, fewer),
        "lattice.decompose": lambda: lattice.decompose(d, bits=DIGIT, levels=LEVELS),
        "lattice.decompose_integers": lambda: lattice.decompose_integers(
            lwe, q=2**32, bits=DIGIT, levels=LEVELS
        ),
        "lattice.extract": lambda: lattice.extract(d, 3),
        "lattice.lwe_switch": lambda: lattice.lwe_switch(short, lwe_key, q=2**64, bits=4, levels=LEVELS),
        "lattice.lwe_modulus_switch": lambda: lattice.lwe_modulus_switch(short, q=2**64, to=4096),
        "lattice.prepare": lambda: lattice.prepare(ggsw_coefs, bits=DIGIT),
        "lattice.external_product": lambda: lattice.external_product(ggsw, d, bits=DIGIT),
        "lattice.external_product, groups of limbs": lambda: lattice.external_product(
            of_limbs, c, limbs_per_digit=2, special=P
        ),
        "lattice.cmux": lambda: lattice.cmux(ggsw, d, e, bits=DIGIT),
        "lattice.blind_rotate": lambda: lattice.blind_rotate(acc, bsk, exponents, bits=DIGIT),
        "lattice.key_switch": lambda: lattice.key_switch(a, key),
        "lattice.key_switch, added and rescaled": lambda: lattice.key_switch(a, key, add=more, rescale=1),
        "lattice.add_constant": lambda: lattice.add_constant(c, 3),
        "lattice.tensor": lambda: lattice.tensor(c, more),
        "lattice.multiply": lambda: lattice.multiply(c, more, relin, rescale=1),
        "lattice.inner_product": lambda: lattice.inner_product([c, more], [more, c], relin, rescale=1),
        "lattice.embed": lambda: lattice.embed(short, Q, q=2**64),
        "lattice.pack": lambda: lattice.pack(pairs, steps),
        "lattice.trace": lambda: lattice.trace(c, steps, n // 2),
        "lattice.expand": lambda: lattice.expand(c, steps, 2),
        "lattice.rgsw_from_rlwe": lambda: lattice.rgsw_from_rlwe(pairs, relin),
        "lattice.hoist": lambda: lattice.hoist(c, special=P, limbs_per_digit=2).digits,
        "lattice.transform": lambda: lattice.transform(c, matrix, turned, rescale=1),
        "lattice.rotate": lambda: lattice.rotate(c, key),
        "lattice.rotate_many": lambda: lattice.rotate_many(c, [key]),
        "lattice.rotate_many, two": lambda: lattice.rotate_many(c, [key, other_key]),
        "linalg.matmul": lambda: linalg.matmul(x, y, q=SQUARE_MODULUS),
        "fft.fft": lambda: fft.fft(row),
        "fft.fft64": lambda: fft.fft64(rows64),
        "fft.convolve64": lambda: fft.convolve64(rows64, filter64),
        "fft.to_slots": lambda: fft.to_slots(reals),
        "fft.from_slots": lambda: fft.from_slots(points),
        "zk.powers": lambda: zk.powers(Q, 3, count=64),
        "zk.hadamard": lambda: zk.hadamard(a, b),
        "zk.pad": lambda: zk.pad(a, 2 * n),
        "zk.coset_ntt": lambda: zk.coset_ntt(a, 3),
        "zk.coset_intt": lambda: zk.coset_intt(a, 3),
        "zk.low_degree_extension": lambda: zk.low_degree_extension(a, 2, shift=3),
    }


def cases(device: str, n: int = DEGREE) -> Iterator[Case]:
    """Yield a case for each call.

    The device is the current one while a case is measured, because some verbs compute on the current device.
    """
    with pg.device("cpu"):
        results = {name: call() for name, call in calls("cpu", n).items()}
    with pg.device(device):
        any_value = pg.Ring(4, 17).ones()
        for name, run in calls(device, n).items():
            params: dict[str, int | str] = {"verb": name, **shape_of(results[name]), "launch": HOST}
            launches = launches_of(run, any_value)
            if launches is not None:
                params["launches"] = launches

            right = seen(results[name])

            def verify(values: NDArray[Any], run: Call = run, right: NDArray[Any] = right) -> bool:
                return all(agree(found, right) for found in (values, seen(run()), seen(run())))

            yield Case("verb", "polygpu", params, run, verify, right.size, seen)


def launches_of(run: Call, any_value: pg.Poly) -> int | None:
    """Return the number of kernels that a call launches, or None if the call cannot be captured."""
    try:
        return pg.capture(lambda _: run(), any_value).launches
    except pg.PolyGPUError:
        return None


def seen(result: Any) -> NDArray[Any]:
    """Return a result as an array in host memory."""
    if isinstance(result, list):
        return np.stack([seen(x) for x in result])
    data = result.data if isinstance(result, pg.Poly) else result
    return data.copy() if isinstance(data, np.ndarray) else data.get()


def agree(found: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return whether a result equals the CPU's, bit for bit or, for doubles, within TOLERANCE."""
    if (found.dtype, found.shape) != (right.dtype, right.shape):
        return False
    if right.dtype.kind in "iu":
        return np.array_equal(found, right)
    return bool(np.abs(found - right).max() <= TOLERANCE * np.abs(right).max())


def shape_of(result: Any) -> dict[str, int | str]:
    """Return the params that describe the result of a call: its word, bits, degree, limbs and batch."""
    many = len(result) if isinstance(result, list) else 1
    x = result[0] if isinstance(result, list) else result
    data = x.data if isinstance(x, pg.Poly) else x
    limbs, bits, word = 1, 8 * data.dtype.itemsize, data.dtype.name
    if isinstance(x, pg.Poly):
        limbs, bits = x.ring.rows, x.ring.moduli[0].bit_length()
        word = "u32" if data.dtype == np.uint32 else "f64"
    n = data.shape[-1]
    shape = {"n": n, "limbs": limbs, "batch": many * data.size // (limbs * n)}
    return {"word": word, "bits": bits, "word_bytes": data.dtype.itemsize, **shape}


# ---- the table ----


@dataclass(frozen=True)
class VerbKind:
    """A table with a line for each call."""

    title: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows, only the newest one for each line."""
        shown = {
            (row.machine["name"], row.params["verb"]): row
            for row in rows
            if (row.op, row.machine["kind"], row.library) == ("verb", "gpu", "polygpu")
        }
        return list(shown.values())

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine, if there are any."""
        body = tuple(map(self.line, sorted(self.rows(rows), key=lambda row: str(row.params["verb"]))))
        if body:
            heads = ("call", "result", "launches", "host", "must", "holds")
            yield Table(self.title, heads, body)

    def line(self, row: Row) -> tuple[str, ...]:
        p = row.params
        n, us = int(p["n"]), row.median / 1e3
        length = power(n) if n & (n - 1) == 0 else str(n)
        must = max(MUST_US, MUST_US_A_LAUNCH * int(p.get("launches", 0)))
        return (
            str(p["verb"]),
            f"{p['batch']} x {p['limbs']} x {length}",
            str(p.get("launches", "")),
            figure(us),
            f"{must:g}",
            "yes" if us <= must else "no",
        )


KINDS = {"gpu-verbs": VerbKind("Host time of a repeated call of each verb, us")}
