"""Private information retrieval: a record of a server's database, and the server does not learn which.

The database is a matrix of polynomials, one for each record. A client encrypts the unit vector of the
record's row. The server multiplies it by the matrix, which is one call, and returns the encrypted row.
Source: Kushilevitz & Ostrovsky 1997, with ciphertexts of bfv.py.

An example, not a product, like bfv.py.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np

import polygpu as pg
from polygpu.examples.bfv import BFV, Array, derive

# Q P of 108 bits, where the HE standard allows 109; a record is 4096 words of 16 bits.
SCHEME = BFV(n=4096, t=65537, bits=39, limbs=2)


def encode(scheme: BFV, records: Array) -> pg.Poly:
    """Encode records (rows, columns, N) of words below 2^16 and t, to be multiplied by ciphertexts."""
    slots = scheme.plain.from_slots(records)
    limit = min(1 << 16, scheme.t)
    if np.min(records, initial=0) < 0 or np.max(records, initial=0) >= limit:
        raise pg.ParameterError(f"records: a word is not in 0 ... {limit - 1}. Split it into shorter words.")
    return slots.convert(scheme.ring).ntt()  # centred: small factors add little noise


def query(scheme: BFV, public: pg.Poly, rows: int, row: int, seed: bytes) -> pg.Poly:
    """The encrypted unit vector of a row, shape (2, rows)."""
    if not 0 <= row < rows:
        raise pg.ParameterError(f"row: {row} is not in 0 ... {rows - 1}. Choose one of the {rows} rows.")
    unit = np.zeros((rows, scheme.n), np.int64)
    unit[row] = 1
    return scheme.encrypt(public, unit, seed).ntt()


def answer(database: pg.Poly, selection: pg.Poly) -> pg.Poly:
    """The encrypted row, shape (2, columns): sums over all rows of the selection times the records."""
    return selection @ database


def decode(scheme: BFV, secret: pg.Poly, ciphertext: pg.Poly) -> Array:
    """The records, uint16, of ciphertexts (2, *batch)."""
    words = scheme.plain(scheme.decrypt(secret, ciphertext)).cpu().data[..., 0, :]
    return np.asarray(words.astype(np.uint16))


class Result(NamedTuple):
    """What `run` found: the record's bytes, whether they are right, and the answer's noise budget in bits."""

    size: int
    ok: bool
    budget: float


def run(seed: bytes | None = None) -> Result:
    """Fetch one of 8 x 8 random records of 8 KiB, and compare it."""
    seed = secrets.token_bytes(32) if seed is None else seed
    rows, columns, row, column = 8, 8, 5, 2
    records = np.random.default_rng(1).integers(0, 1 << 16, (rows, columns, SCHEME.n), np.uint16)
    database = encode(SCHEME, records)

    keys = SCHEME.keygen(derive(seed, "keys"))
    row_of_records = answer(database, query(SCHEME, keys.public, rows, row, derive(seed, "query")))
    found = decode(SCHEME, keys.secret, row_of_records[:, column])
    return Result(
        size=found.nbytes,
        ok=np.array_equal(found, records[row, column]),
        budget=SCHEME.noise_budget(keys.secret, row_of_records[:, column]),
    )
