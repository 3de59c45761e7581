"""TFHE with the parameter sets of its example: blind rotations, key switches and whole bootstraps.

    python -m benchmarks.tfhe [--device cuda] [--quick] [--results DIR]

A bootstrap switches the key, rounds to the new modulus, rotates the polynomial of a table and extracts a
coefficient. On a GPU it is one CUDA graph. Each result is decrypted before it is timed. For a rotation modulo
a power of two, the table also shows the time of the FMAs (fused multiply-adds in doubles) in its transforms
and products, which is the least that it must take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import lattice
from polygpu._backends import backend_of, checked_device, get_backend
from polygpu.examples.tfhe import SETS, TFHE, Keys

from .harness import Case, Row, command_line, measured, on_cores, release, timer_of
from .tables import Table, figure

Array = NDArray[Any]
ROTATION, SWITCH, WHOLE = "TFHE: blind rotation", "TFHE: LWE key switch", "TFHE: bootstrap"
NAMES = {ROTATION: "blind rotation", SWITCH: "key switch", WHOLE: "bootstrap"}
GROUPED = "2+2 bits, groups of 4"
BATCHES = {"cpu": (1, 16), "gpu": (1, 16, 128, 1024, 4096)}
QUICK = TFHE(
    n=16, N=64, bits=64, is_torus=True, noise=30, ring_noise=17, digits=(15, 2), switch_digits=(4, 5)
)
# Targets by device, operation, parameter set and batch: the greatest allowed ms, or the least number
# per second.
MUSTS = {
    ("gpu", ROTATION, "2+2 bits", 1): ("ms", 2.8),
    ("gpu", ROTATION, "2+2 bits", 4096): ("a second", 68_000),
    ("gpu", SWITCH, "2+2 bits", 4096): ("a second", 2_000_000),
    ("gpu", WHOLE, "2+2 bits", 4096): ("a second", 65_000),
    ("gpu", ROTATION, "2020", 4096): ("a second", 60_000),
    ("gpu", ROTATION, GROUPED, 1): ("ms", 0.75),
    ("gpu", ROTATION, GROUPED, 128): ("a second", 32_000),
    ("cpu", ROTATION, "2+2 bits", 1): ("ms", 8.5),
    ("cpu", ROTATION, "2+2 bits", 16): ("ms", 7.5),
}


def fmas(scheme: TFHE) -> int:
    """Return the number of FMAs in a rotation in doubles: those of butterflies, products and the twist.

    With groups of more than one key bit, sums of keys are transformed too.
    """
    points, (_, levels), k = scheme.N // 2, scheme.digits, scheme.k + 1
    transforms = k * (levels + 1) + (k * levels * k if scheme.group > 1 else 0)
    butterflies = transforms * points // 2 * (points.bit_length() - 1) * 6
    return -(-scheme.n // scheme.group) * (butterflies + 4 * points * (k * levels * k + k))


@cache
def keys_of(name: str) -> Keys:
    """Return the keys for a parameter set, on the CPU."""
    with pg.device("cpu"):
        return _scheme(name).keygen(b"benchmark")


def _scheme(name: str) -> TFHE:
    return QUICK if name == "quick" else SETS[name]


def cases(name: str, batch: int, device: str, cores: int) -> Iterator[Case]:
    """Yield the cases of the operations of a parameter set on a batch of LWE vectors."""
    scheme, keys = _scheme(name), keys_of(name)
    messages = np.random.default_rng(batch).integers(0, scheme.p, batch)
    vectors = scheme.encrypt(keys, messages, b"messages")
    own, there = keys.to(device), get_backend(device).from_host
    params: dict[str, Any] = {"set": name, "batch": batch, "lwe": scheme.n, "n": scheme.N, "k": scheme.k}
    params |= {"cores": cores} if device == "cpu" else {"launch": "CUDA graph"}
    x = there(vectors)
    table = [m * m % scheme.p for m in range(scheme.p)]
    with pg.device(device):
        acc = scheme.ring.zeros((batch, scheme.k + 1))
        acc[..., 0] = scheme.ring(scheme._table(lambda m: table[m]))
        powers = -scheme.rounded(own, x)
    bits, levels = scheme.switch_digits

    def switch(_: pg.Poly) -> Array:
        return lattice.lwe_switch(x, own.switch, q=scheme.q, bits=bits, levels=levels)

    def rotate(acc: pg.Poly) -> Array:
        return lattice.blind_rotate(acc, own.bootstrap, powers, bits=scheme.digits[0]).data

    def whole(acc: pg.Poly) -> Array:
        return scheme.turned(own, acc, x)

    def squares(found: Array) -> bool:
        return np.array_equal(scheme.decrypt(keys, found), np.array(table)[messages])

    def is_rotated(found: Array) -> bool:
        with pg.device("cpu"):
            return squares(lattice.extract(scheme.ring.from_residues(found), 0))

    def is_switched(found: Array) -> bool:
        return np.array_equal(scheme.decrypt(keys, found), messages)

    for op, function, verify in (
        (SWITCH, switch, is_switched),
        (ROTATION, rotate, is_rotated),
        (WHOLE, whole, squares),
    ):
        work: Any = pg.capture(function, acc)
        yield Case(op, "polygpu", params, work, verify, batch, _on_host, samples=5)


def _on_host(x: Array) -> Array:
    return np.asarray(backend_of(x).to_host(x))


# ---- the tables ----


@dataclass(frozen=True)
class TfheKind:
    """A table of the operations of one device, by parameter set and batch."""

    device: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows."""
        return [row for row in rows if row.op in NAMES and row.machine["kind"] == self.device]

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine."""
        order = list(NAMES)
        found = {
            (
                order.index(row.op),
                str(row.params["set"]),
                int(row.params.get("cores", 0)),
                int(row.params["batch"]),
            ): row
            for row in self.rows(rows)
            if row.params["set"] in SETS
        }
        body = tuple(self._line(found[key]) for key in sorted(found))
        cores = ("cores",) if self.device == "cpu" else ()
        header = "operation", "set", *cores, "batch", "time", "each", "a second", "FMAs, T/s", "must", "holds"
        yield Table("TFHE: rotations, key switches and bootstraps", header, body)

    def _line(self, row: Row) -> tuple[str, ...]:
        p = row.params
        name, batch, scheme = str(p["set"]), int(p["batch"]), SETS[str(p["set"])]
        each, rate = row.median / batch / 1e6, batch / row.median * 1e9
        in_doubles = row.op == ROTATION and scheme.is_torus
        wanted = holds = ""
        must = MUSTS.get((self.device, row.op, name, batch)) if p.get("cores", 1) == 1 else None
        if must is not None:
            wanted = f"{figure(must[1])} {must[0]}"
            holds = "yes" if (each <= must[1] if must[0] == "ms" else rate >= must[1]) else "no"
        return (
            NAMES[row.op],
            name,
            *((str(p["cores"]),) if self.device == "cpu" else ()),
            str(batch),
            f"{figure(row.median / 1e6)} ms",
            f"{figure(each)} ms",
            figure(rate),
            figure(fmas(scheme) * batch / row.median / 1000) if in_doubles else "",
            wanted,
            holds,
        )


KINDS = {"cpu-tfhe": TfheKind("cpu"), "gpu-tfhe": TfheKind("gpu")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("benchmarks.tfhe", __doc__, "a small set, which is not secure")
    options = parser.parse_args(arguments)
    device = checked_device(options.device)
    timer = timer_of(device)
    batches = BATCHES["cpu" if device == "cpu" else "gpu"]
    sizes = [(name, batch) for name in ("2+2 bits", GROUPED) for batch in batches]
    sizes += [(name, batches[-1]) for name in ("1+1 bits", "1+1 bits, groups of 4", "2020")]
    for name, batch in [("quick", 2)] if options.quick else sizes:
        for cores in (1, 2) if device == "cpu" and batch > 1 else (1,):
            with on_cores(cores):
                for case, row in measured(cases(name, batch, device, cores), timer, options.results):
                    print(
                        f"{case}: {figure(row.median / 1e6)} ms, {batch / row.median * 1e9:.0f} a second",
                        flush=True,
                    )
        if device != "cpu":
            release()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
