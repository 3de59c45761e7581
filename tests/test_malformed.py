"""Constructors, pickles and `out` reject arrays that are not valid residues, and the core never crashes."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import malformed
import numpy as np
import pytest

import polygpu as pg

RINGS = {"uint32": malformed.NARROW, "uint64": malformed.WORDS, "a wide modulus": malformed.WIDE}
CASES = [(kind, name) for kind, ring in RINGS.items() for name in malformed.malformed(ring.ones().data)]


def test_table_of_malformed_arrays_is_long():
    assert len(CASES) >= 3 * 60


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_poly_of_malformed_arrays_raises(kind, name):
    ring = RINGS[kind]
    x = malformed.malformed(ring.ones().data)[name]
    with pytest.raises(pg.PolyGPUError) as caught:
        pg.Poly(ring, x, "coef")
    message = str(caught.value)
    assert (
        re.match(r"(data|entry .* of data)\b", message.removeprefix("The "))
        and "\n" not in message
        and len(message) < 400
    )


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
def test_poly_shares_valid_arrays(ring):
    data = np.stack([ring.random(seed=i).data for i in range(3)])
    for x in (data, data[1], data[:0], data[::1], data.view()):
        value = pg.Poly(ring, x, "coef")
        assert value.data is x and value.domain == "coef" and value.ring is ring
    data.flags.writeable = False
    value = pg.Poly(ring, data, "coef")
    assert (value + 1 - 1) == value
    with pytest.raises(pg.errors.OutputError, match="read-only"):
        value.add(1, out=value)


def test_values_are_checked_only_in_debug():
    data = np.full((2, 8), 200, np.uint32)
    assert pg.Poly(malformed.NARROW, data, "coef").data is data
    with pg.debug(), pytest.raises(pg.errors.NotCanonical, match="200 at"):
        pg.Poly(malformed.NARROW, data, "coef")


@pytest.mark.parametrize(
    "domain", ["xyz", "", None, 0, b"coef", ["coef"], "EVAL", np.array(["coef"]), np.nan]
)
def test_invalid_domains_raise(domain):
    ring = malformed.NARROW
    with pytest.raises(pg.errors.DomainError, match="'coef' or 'eval'"):
        pg.Poly(ring, ring.ones().data, domain)
    with pytest.raises(pg.errors.DomainError, match="'coef' or 'eval'"):
        pickle.loads(malformed.forged(ring, ring.ones().data, domain))


def test_evaluation_domain_of_a_ring_without_transform_raises():
    with pytest.raises(pg.NotNTTFriendly):
        pg.Poly(malformed.WIDE, malformed.WIDE.ones().data, "eval")


@pytest.mark.parametrize("ring", [None, 17, "ring", pg.Ring, (8, 17)])
def test_invalid_rings_raise(ring):
    with pytest.raises(pg.ParameterError, match=r"ring must be a Ring, not "):
        pg.Poly(ring, malformed.NARROW.ones().data, "coef")


def test_unpickling_checks_values():
    ring = malformed.NARROW
    for wrong, error in {
        "values": (np.full((2, 8), 2**32 - 1, np.uint32), pg.errors.NotCanonical),
        "negative": (np.full((2, 8), -1, np.int32), pg.errors.NotCanonical),
        "float": (np.ones((2, 8), np.float32), pg.errors.CoefficientError),
        "object": (np.full((2, 8), None), pg.errors.CoefficientError),
        "0-d": (np.uint32(3), pg.ParameterError),
        "shape": (np.ones((2, 7), np.uint32), pg.ParameterError),
    }.values():
        with pytest.raises(error):
            pickle.loads(malformed.forged(ring, wrong, "coef"))
    swapped = ring.random(seed=1)
    again = pickle.loads(malformed.forged(ring, swapped.data.astype(">u4"), "coef"))
    assert again == swapped and again.data.dtype == np.uint32


def test_malformed_arrays_do_not_crash_the_core():
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", Path(malformed.__file__)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "calls of the core" in done.stdout, done.stderr
