"""The retrieval example: every record can be fetched, and queries show nothing of their row."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import polygpu as pg
from polygpu.examples import bfv, pir

# Small, and so not secure: every record is fetched. `pir.run` tries the default set once.
SCHEME = bfv.BFV(n=1024, t=65537, bits=50, limbs=2)
ROWS, COLUMNS = 3, 2


@pytest.fixture(scope="module")
def keys() -> bfv.Keys:
    return SCHEME.keygen(b"keys")


@pytest.fixture(scope="module")
def records() -> bfv.Array:
    """Random words with the ends among them."""
    words = np.random.default_rng(1).integers(0, 1 << 16, (ROWS, COLUMNS, SCHEME.n), np.uint16)
    words[..., :2] = 0, 65535
    words[0, 0] = 65535
    return words


@pytest.mark.parametrize("row", range(ROWS))
def test_a_row_comes_back(keys: bfv.Keys, records: bfv.Array, row: int) -> None:
    database = pir.encode(SCHEME, records)
    selection = pir.query(SCHEME, keys.public, ROWS, row, b"query")
    assert database.shape == (ROWS, COLUMNS) and selection.shape == (2, ROWS)
    answer = pir.answer(database, selection)
    assert answer.shape == (2, COLUMNS)
    assert np.array_equal(pir.decode(SCHEME, keys.secret, answer), records[row])
    assert SCHEME.noise_budget(keys.secret, answer) > 30


def test_the_answer_is_a_sum_of_products(keys: bfv.Keys, records: bfv.Array) -> None:
    database = pir.encode(SCHEME, records)
    selection = pir.query(SCHEME, keys.public, ROWS, 1, b"query")
    terms = [selection[:, i, np.newaxis] * database[i] for i in range(ROWS)]
    assert pir.answer(database, selection) == terms[0] + terms[1] + terms[2]


def test_another_key_reads_nothing(keys: bfv.Keys, records: bfv.Array) -> None:
    answer = pir.answer(pir.encode(SCHEME, records), pir.query(SCHEME, keys.public, ROWS, 0, b"query"))
    other = SCHEME.keygen(b"other").secret
    assert (pir.decode(SCHEME, other, answer) != records[0]).mean() > 0.99


def test_queries_differ_in_every_entry(keys: bfv.Keys) -> None:
    """Of two rows, and of one row asked for twice."""
    first = pir.query(SCHEME, keys.public, ROWS, 0, b"a")
    for row in (0, 1):
        assert not pg.equal(first, pir.query(SCHEME, keys.public, ROWS, row, b"b")).any()


def test_the_example_is_secure_short_and_right() -> None:
    assert pir.SCHEME.secure
    assert len(inspect.getsource(pir).splitlines()) < 100
    result = pir.run(b"seed")
    assert result.ok and result.size == 8192 and result.budget > 24
