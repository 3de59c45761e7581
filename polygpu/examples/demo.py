"""The demo: ML-KEM-768 on NIST's known answers, BFV, private retrieval, CKKS and TFHE, checked and timed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from time import perf_counter
from typing import ParamSpec, TypeVar

from polygpu.examples import bfv, bootstrapping, ckks, ml_kem, tfhe
from polygpu.examples.pir import Result, folded, packed, simple

P = ParamSpec("P")
T = TypeVar("T")

KNOWN_ANSWERS = files("polygpu.examples") / "kat_ml_kem_768.json"


@dataclass(frozen=True)
class Row:
    """One line of the demo's output.

    name: the scheme. what: the computation. count: the number of cases, slots, bytes or bootstraps. seconds:
    the time of the computation. ok: whether all results are right. note: for homomorphic computations, the
    noise budget, the error, the noise or the probability of an error.
    """

    name: str
    what: str
    count: int
    seconds: float
    ok: bool
    note: str = ""


class CheckFailed(RuntimeError):
    """Raised if results of the demo are wrong. `rows` has the rows of all results, right or wrong."""

    def __init__(self, rows: list[Row]) -> None:
        """Name the wrong rows in the message."""
        wrong = ", ".join(f"{row.name} {row.what}" for row in rows if not row.ok)
        super().__init__(f"These results are wrong: {wrong}.")
        self.rows = rows


def run(progress: Callable[[str], None] | None = None) -> list[Row]:
    """Run and check everything; `progress` is called with the name of each step as it begins.

    Raises:
        CheckFailed: a result differs from the known answer or from NumPy's, or has too much noise.
    """
    tell = progress or (lambda step: None)
    rows = [*_ml_kem(tell), _bfv(tell), *_pir(tell), _ckks(tell), _bootstrap(tell), _tfhe(tell)]
    if not all(row.ok for row in rows):
        raise CheckFailed(rows)
    return rows


def _ml_kem(tell: Callable[[str], None]) -> Iterator[Row]:
    """Compute NIST's known answers for ML-KEM-768 as one batch. Each step uses earlier results."""
    cases = json.loads(KNOWN_ANSWERS.read_text("ascii"))["cases"]
    known = {field: [bytes.fromhex(case[field]) for case in cases] for field in cases[0]}
    name, p, count = "ML-KEM-768", ml_kem.ML_KEM_768, len(cases)
    ml_kem.keygen(p, known["d"][:1], known["z"][:1])  # so that imports and tables are not timed

    tell(f"{name} key generation")
    (ek, dk), seconds = _timed(ml_kem.keygen, p, known["d"], known["z"])
    ok = _digests(ek) == known["sha256_pk"] and _digests(dk) == known["sha256_sk"]
    yield Row(name, "key generation", count, seconds, ok)

    tell(f"{name} encapsulation")
    (key, ciphertext), seconds = _timed(ml_kem.encaps, p, ek, known["msg"])
    ok = key == known["ss"] and _digests(ciphertext) == known["sha256_ct"]
    yield Row(name, "encapsulation", count, seconds, ok)

    tell(f"{name} decapsulation")
    key, seconds = _timed(ml_kem.decaps, p, dk, ciphertext)
    yield Row(name, "decapsulation", count, seconds, key == known["ss"])

    tell(f"{name} implicit rejection")
    key, seconds = _timed(ml_kem.decaps, p, dk, known["ct_n"])
    yield Row(name, "implicit rejection", count, seconds, key == known["ss_n"])


def _bfv(tell: Callable[[str], None]) -> Row:
    """Add and multiply two encrypted vectors."""
    name = f"BFV N={bfv.BFV().n}"
    tell(f"{name} encrypted sum and product")
    result, seconds = _timed(bfv.run)
    ok = result.sum_ok and result.product_ok
    note = f"{result.product_budget:.0f} of {result.fresh_budget:.0f} bits of noise budget left"
    return Row(name, "encrypted sum and product", result.slots, seconds, ok, note)


def _pir(tell: Callable[[str], None]) -> Iterator[Row]:
    """Fetch records of a database by encrypted queries, with each of three protocols."""
    what = "bytes of private records"
    protocols: tuple[tuple[str, Callable[[], Result]], ...] = (
        (f"SimplePIR n={simple.SECRETS}", simple.run),
        (f"packed PIR N={packed.N}", packed.run),
        (f"folded PIR N={folded.N}", folded.run),
    )
    for name, function in protocols:
        tell(f"{name} {what}")
        result, seconds = _timed(function)
        note = f"wrong with probability 2^{result.failure:.0f}"
        yield Row(name, what, result.size, seconds, result.ok, note)


def _ckks(tell: Callable[[str], None]) -> Row:
    """Multiply two encrypted vectors, multiply one by a matrix, and evaluate a polynomial at the other."""
    name = f"CKKS N={ckks.CKKS().n}"
    tell(f"{name} product, matrix, polynomial")
    result, seconds = _timed(ckks.run)
    errors = result.product, result.matrix, result.polynomial
    ok = max(errors) < 2.0**-20 and result.fresh < 2 * result.theory
    note = f"errors of {max(errors):.1e} at most"
    return Row(name, "product, matrix, polynomial", result.slots, seconds, ok, note)


def _bootstrap(tell: Callable[[str], None]) -> Row:
    """Bootstrap a ciphertext that has no levels left."""
    name, what = "CKKS N=2048", "slots of a bootstrap, not secure"
    tell(f"{name} {what}")
    result, seconds = _timed(bootstrapping.run)
    note = f"{result.levels} levels more, {result.bits:.0f} bits right"
    return Row(name, what, result.slots, seconds, result.levels == 3 and result.bits > 15, note)


def _tfhe(tell: Callable[[str], None]) -> Row:
    """Apply a table to encrypted messages, and add two encrypted numbers."""
    name = f"TFHE N={tfhe.TFHE().N}"
    tell(f"{name} bootstraps: a table, an adder")
    result, seconds = _timed(tfhe.run)
    note = f"noise of {result.deviation:.4f} of the circle, {result.theory:.4f} by theory"
    ok = result.table_ok and result.sum_ok
    return Row(name, "bootstraps: a table, an adder", result.bootstraps, seconds, ok, note)


def _timed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """Return the result of a call, and its time in seconds."""
    start = perf_counter()
    result = function(*args, **kwargs)
    return result, perf_counter() - start


def _digests(values: list[bytes]) -> list[bytes]:
    return [hashlib.sha256(value).digest() for value in values]
