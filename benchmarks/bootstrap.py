"""A bootstrap of CKKS and its stages, compared with the transforms and the memory traffic that it needs.

    python -m benchmarks.bootstrap [--device cuda] [--quick] [--preset NAME] [--results DIR]

Two figures are compared with the bootstrap; they are estimates, not bounds. The first is the time of its
transforms alone. They are counted while a bootstrap runs, by the costs that the docstrings of the functions
give, and then as many rows modulo the same primes are transformed. The second is the time of a copy that
moves as many bytes as all keys and diagonals have that the functions read. Half of these bytes are read and
half written.

On the CPU two cores work. On a GPU the bootstrap is one CUDA graph, and so is each stage; another row shows
the bootstrap in plain calls. Results are decrypted before they are timed. On a GPU they are also compared
with the results of the CPU. BESIDE holds what another library printed in the same run. It is not among the
rows, because this program did not measure it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import lattice
from polygpu._backends import checked_device
from polygpu.examples.bootstrapping import PRESETS, Bootstrapper, Parameters, bits
from polygpu.examples.ckks_arithmetic import Arithmetic, Ciphertext

from .conversions import Params, is_transform, residues
from .harness import Case, Row, Unverified, command_line, measured, on_cores, release, timer_of
from .tables import Line, LineKind, Table, figure

CORES = 2
# Least precision of the worst slot in bits, by preset. Smaller rings are more precise.
LEAST_BITS = {"precise": 21.0, "wide": 17.0}
STAGES = ("ModRaise", "CoeffToSlot", "EvalMod", "SlotToCoeff")
WHOLE, PLAIN = "CKKS bootstrap", "CKKS bootstrap, plain calls"


@dataclass
class Work:
    """Rows of inverse (back) and forward (forth) transforms in a bootstrap, and the bytes it must read."""

    back: int = 0
    forth: int = 0
    nbytes: int = 0

    def switch(self, key: lattice.SwitchKey, ring: pg.Ring, count: int, rescale: int = 0) -> None:
        """Add `count` key switches with one key, each of which also divides by `rescale` limbs."""
        limbs, special = ring.rows, key.special.rows
        digits = -(-limbs // key.limbs_per_digit)
        self.back += count * (limbs + 2 * (special + rescale))
        self.forth += count * (digits * (limbs + special) - limbs + 2 * (limbs - rescale))
        self.read(key, ring)

    def read(self, key: lattice.SwitchKey, ring: pg.Ring) -> None:
        """Add the bytes of a key that a value of a ring needs."""
        digits, row = -(-ring.rows // key.limbs_per_digit), ring.n * key.value.ring.dtype.itemsize
        self.nbytes += 2 * digits * (ring.rows + key.special.rows) * row

    def matrix(self, c: pg.Poly, M: lattice.LinearTransform, keys: Any, rescale: int) -> None:
        """Add the product of a matrix and the slots of a ciphertext."""
        limbs, special, count = M.ring.rows, M.special.rows, prod(c.shape[:-1])
        digits = -(-limbs // keys[M.galois_elements[0]].limbs_per_digit)
        giants = sum(g != 0 for g in M._giants)
        self.back += count * (limbs + giants * (limbs + special) + 2 * (special + rescale))
        self.forth += count * ((1 + giants) * digits * (limbs + special) + limbs - 2 * rescale)
        self.nbytes += M.nbytes
        for k in {*M._babies, *M._giants} - {0}:
            self.read(keys[pow(5, k, 2 * M.ring.n)], M.ring)


@contextmanager
def counting() -> Iterator[Work]:
    """Count the work of the functions that the example's modules call inside the `with`."""
    work = Work()

    def watched(owner: Any, name: str, note: Callable[..., None]) -> Any:
        verb = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = verb(*arguments, **options)
            note(*arguments, result=result, **options)
            return result

        return patch.object(owner, name, call)

    def of_key_switch(a: pg.Poly, key: Any, *, rescale: int = 0, **_: Any) -> None:
        work.switch(key, a.ring, prod(a.shape), rescale)

    def of_rotate(c: pg.Poly, key: Any, **_: Any) -> None:
        work.switch(key, c.ring, prod(c.shape[:-1]))

    def of_multiply(
        a: Any, b: Any, relin: Any, *, ring: pg.Ring, result: pg.Poly, rescale: int, **_: Any
    ) -> None:
        work.switch(relin, ring, prod(result.shape[:-1]), rescale)

    def of_transform(c: pg.Poly, M: Any, keys: Any, *, rescale: int, **_: Any) -> None:
        work.matrix(c, M, keys, rescale)

    def of_rescale(a: pg.Poly, **_: Any) -> None:
        work.back += prod(a.shape)
        work.forth += prod(a.shape) * (a.ring.rows - 1)

    def of_mod_up(a: pg.Poly, S: pg.Ring, **_: Any) -> None:
        work.back += prod(a.shape) * a.ring.rows
        work.forth += prod(a.shape) * (S.rows - a.ring.rows)

    with (
        watched(lattice, "key_switch", of_key_switch),
        watched(lattice, "rotate", of_rotate),
        watched(lattice, "multiply", of_multiply),
        watched(lattice, "transform", of_transform),
        watched(pg.Poly, "rescale", of_rescale),
        watched(pg.Poly, "mod_up", of_mod_up),
    ):
        yield work


# ---- cases ----


def cases(name: str, log_n: int, device: str) -> Iterator[Case]:
    """Yield the cases of a preset: the bootstrap, its stages, and its transforms and bytes alone."""
    p = replace(PRESETS[name], log_n=log_n)
    own = Bootstrapper(p)
    secret, own_keys = own.keygen(b"benchmark")
    boot, keys = own.to(device), own_keys.to(device)
    rng = np.random.default_rng(1)
    z = rng.uniform(-1, 1, p.slots) + 1j * rng.uniform(-1, 1, p.slots)
    c = own.encrypt(secret, z, b"z")
    params: Params = {"n": p.n, "bits": p.mod_bits, "limbs": p.ring.rows, "special": p.size, "size": p.size}
    params |= {"preset": name}
    params |= {"cores": CORES} if device == "cpu" else {"launch": "CUDA graph"}
    arithmetic = Arithmetic(p.ring, keys.relin)
    stages = {
        "ModRaise": lambda c: boot.mod_raise(keys, c),
        "CoeffToSlot": lambda c: boot.coeff_to_slot(keys, c),
        "EvalMod": lambda c: boot.eval_mod(arithmetic, c),
        "SlotToCoeff": lambda c: boot.slot_to_coeff(keys, c),
    }

    def whole(value: pg.Poly) -> pg.Poly:
        return boot.bootstrap(keys, Ciphertext(value, c.scale)).value

    x = c.value.to(device)
    expected = own.bootstrap(own_keys, c)
    worst, _ = bits(own.decrypt(secret, expected), z)
    if worst < LEAST_BITS[name]:
        raise Unverified(f"{worst:.1f} bits of the worst slot")
    left = round(math.log2(p.ring[: p.levels + 1].modulus) - p.first)
    params |= {"left": f"{left} bits of log2 Q left, {worst:.1f} bits of the worst slot"}
    right = residues(expected.value)
    yield _case(WHOLE, params, _recorded(whole, x), right)
    if device != "cpu":
        yield _case(PLAIN, params | {"launch": "plain"}, lambda: whole(x), right)
    given = Ciphertext(x, c.scale)
    for stage, step in stages.items():

        def run(value: pg.Poly, step: Any = step, scale: float = given.scale) -> pg.Poly:
            result: pg.Poly = step(Ciphertext(value, scale)).value
            return result

        after = step(given)
        yield _case(f"{WHOLE}: {stage}", params, _recorded(run, given.value), residues(after.value))
        given = after
    with counting() as work:
        whole(x)
    yield _transforms(p, device, work, params)
    yield _bytes(p, device, work, params)


def _case(op: str, params: Params, run: Callable[[], pg.Poly], right: NDArray[Any], work: int = 1) -> Case:
    def verify(found: NDArray[Any]) -> bool:
        return np.array_equal(found, right)

    return Case(op, "polygpu", params, run, verify, work, residues, samples=5)


def _recorded(f: Callable[[pg.Poly], pg.Poly], x: pg.Poly) -> Callable[[], pg.Poly]:
    """Return f(x) as a function without arguments. On a GPU it replays a CUDA graph."""
    return (lambda: f(x)) if x.device == "cpu" else pg.capture(f, x)


def _transforms(p: Parameters, device: str, work: Work, params: Params) -> Case:
    """Return the case of transforms of as many rows as a bootstrap transforms."""
    T = p.ring.join(p.special)
    rows = T.random(4, seed=3)
    evaluated = rows.ntt()
    if not is_transform(evaluated.data, rows):
        raise Unverified("a transform is wrong")
    x, y = evaluated.to(device), rows.to(device)
    back, forth = x.intt(), y.ntt()
    each = 4 * T.rows

    def run(x: pg.Poly) -> pg.Poly:
        for _ in range(round(work.back / each)):
            x.intt(out=back)
        for _ in range(round(work.forth / each)):
            y.ntt(out=forth)
        return forth

    count = (work.back + work.forth) * T.n
    return _case(f"{WHOLE}: transforms", params, _recorded(run, x), residues(rows), count)


def _bytes(p: Parameters, device: str, work: Work, params: Params) -> Case:
    """Return the case of copies that move as many bytes as keys and diagonals have."""
    T = p.ring.join(p.special)
    source = T.random(max(1, (64 << 20) // (T.rows * T.n * T.dtype.itemsize)), seed=6)
    x, right = source.to(device), residues(source)
    times = max(1, round(work.nbytes / (2 * x.data.nbytes)))
    target = x.copy()

    def run(x: pg.Poly) -> pg.Poly:
        for _ in range(times):
            target[...] = x
        return target

    return _case(f"{WHOLE}: bytes", params, _recorded(run, x), right, work.nbytes)


# ---- the tables ----


# Greatest allowed time of a bootstrap in ms, by device, degree, and bit length of the primes of EvalMod.
MUSTS = {
    "cpu": {(2**16, 58): 3000, (2**15, 58): 1300},
    "gpu": {(2**16, 58): 20, (2**16, 50): 18},
}


def lines(device: str) -> tuple[Line, ...]:
    found = [
        Line(
            WHOLE,
            WHOLE,
            "ms",
            MUSTS[device].get(key),
            f"{WHOLE}: {floor}",
            name,
            None,
            dict(zip(("n", "bits"), key, strict=True)),
        )
        for floor, name in (("transforms", "its transforms alone"), ("bytes", "keys and matrices copied"))
        for key in sorted({*MUSTS[device], (2**15, 50), (2**16, 50)})
    ]
    return (
        *found,
        Line("the same in plain calls", PLAIN, "ms"),
        *(Line(x, f"{WHOLE}: {x}", "ms") for x in STAGES),
    )


# Results of another library: name, primes, ms, precision of the worst slot in bits, and bits of log2 Q that
# are left. Our rows of the same run have the commit BESIDE_COMMIT. The times are medians of 21 calls by the
# host's clock, as the library's own test printed them; quartiles were not kept. The bits left are the number
# of levels times the bits of a level in its parameter files.
BESIDE_COMMIT = "0261c375aeb39efa62be44f4490319285e8fb3f1"
BESIDE = (
    ("Cheddar 8df8b26, 40", "47 + 12 of at most 31 bits", 23.5849, "20.0", "520"),
    ("Cheddar 8df8b26, 35", "48 + 12 of at most 31 bits", 24.4099, "16.8", "560"),
)


@dataclass(frozen=True)
class BesideKind:
    """A table of whole bootstraps on a GPU beside those of another library in the same run."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows."""
        own = [row for row in rows if row.op == WHOLE and row.machine["kind"] == "gpu"]
        return [row for row in own if row.commit == BESIDE_COMMIT]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of this run. The fastest bootstrap is on its first line."""
        lines = list(BESIDE)
        for row in self.rows(rows):
            p = row.params
            left, worst = (text.split()[0] for text in str(p["left"]).split(", "))
            primes = f"{p['limbs']} + {p['special']} of at most {p['bits']} bits"
            lines.append((f"polygpu, {p['preset']}", primes, row.median / 1e6, worst, left))
        body = tuple(
            (name, primes, f"{figure(ms)} ms", worst, left)
            for name, primes, ms, worst, left in sorted(lines, key=lambda line: line[2])
        )
        header = "library and parameters", "primes", "time", "bits of the worst slot", "bits of log2 Q left"
        yield Table("CKKS bootstrap, N = 2^16, 2^15 complex slots", header, body)


MAIN = next(line for line in lines("cpu") if line.must and line.only["n"] == 2**16)
KINDS = {
    "cpu-bootstrap": LineKind(f"CKKS bootstrapping on {CORES} cores", "cpu", lines("cpu")),
    "gpu-bootstrap": LineKind("CKKS bootstrapping in one CUDA graph", "gpu", lines("gpu")),
    "gpu-bootstrap-summary": BesideKind(),
    "cpu-bootstrap-summary": LineKind(f"Programs on {CORES} cores", "cpu", (MAIN,)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("benchmarks.bootstrap", __doc__, "a small ring")
    parser.add_argument("--preset", choices=PRESETS, help="one of them, instead of all")
    options = parser.parse_args(arguments)
    device = checked_device(options.device)
    timer = timer_of(device)
    sizes = (10,) if options.quick else (16,) if device != "cpu" else (15, 16)
    for name in [options.preset] if options.preset else PRESETS:
        for log_n in sizes:
            with pg.device("cpu"), on_cores(CORES):
                for case, row in measured(cases(name, log_n, device), timer, options.results):
                    print(f"{case}: {figure(row.median / 1e6)} ms", flush=True)
            if device != "cpu":
                release()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
