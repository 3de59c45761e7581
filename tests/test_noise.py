"""Measured noise of key switches against the formulas of docs/math.md, "Noise of key switches"."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import on
from numpy.typing import NDArray
from oracle import chain

import polygpu as pg
from polygpu import Poly, Ring, lattice
from polygpu.lattice import LinearTransform, rotation_keys, switch_key

PAGE = Path(__file__).resolve().parent.parent / "docs" / "math.md"
SIGMA = 3.2
CIPHERTEXTS = 8  # for each secret

Diagonals = Mapping[int, Any]


@dataclass(frozen=True)
class Case:
    """A verb with the parameters that its noise depends on: a line of the table."""

    verb: str
    n: int
    limbs: tuple[int, ...]  # bits of the moduli of Q
    special: tuple[int, ...]  # bits of the moduli of P
    size: int = 1  # limbs of a digit
    level: int | None = None  # limbs of the ciphertexts, of all limbs of the keys
    rescale: int = 0
    conversion: Any = "exact"
    weight: int | None = None  # of the secret
    summed: int = 1  # results that are added before one division
    matrix: str = ""  # a name in MATRICES
    baby: int = 2
    scale: int = 1

    @property
    def secrets(self) -> int:
        return 8192 // self.n

    @property
    def deviation(self) -> float:
        """One standard deviation of the measured standard deviation, as a part of it.

        The variance for one key is proportional to the squared norm of its noise, which deviates from its
        mean by a factor of 1 + sqrt(2/n). The n errors of a ciphertext count as n/2 independent ones, because
        they are the coefficients of a product with that noise. The norm of a secret deviates less.
        """
        return math.sqrt((1 + 2 / CIPHERTEXTS) / (2 * self.n * self.secrets))

    def rings(self) -> tuple[Ring, Ring, Ring]:
        """Return Q, P and the ring of the keys."""
        whole, kept = chain(self.n, (*self.limbs, *self.special)), self.level or len(self.limbs)
        return whole[:kept], whole[len(self.limbs) :], whole

    def diagonals(self) -> Diagonals:
        return MATRICES[self.matrix](self.n // 2)

    def options(self) -> str:
        """Return what the table says beside moduli and digits."""
        words = [
            f"{self.level} limbs left" if self.level else "",
            f"rescale={self.rescale}" if self.rescale else "",
            self.conversion if self.conversion != "exact" else "",
            f"weight {self.weight}" if self.weight else "",
            f"{self.summed} results, divided once" if self.summed > 1 else "",
            f"{self.matrix}, baby={self.baby}" if self.matrix else "",
            f"scale=2^{self.scale.bit_length() - 1}" if self.scale > 1 else "",
        ]
        return ", ".join(filter(None, words))


def random_diagonals(half: int, steps: int = 6) -> Diagonals:
    """Diagonals 0 to 5; every entry is of mean square 2."""
    rng = np.random.default_rng(1)
    return {k: rng.normal(size=half) + 1j * rng.normal(size=half) for k in range(steps)}


def far_diagonals(half: int) -> Diagonals:
    """Diagonals of giants whose automorphisms leave many coefficients in place."""
    return {1 + i * half // 4: [1] for i in range(4)}


MATRICES: dict[str, Callable[[int], Diagonals]] = {
    "6 random": random_diagonals,
    "6 ones": lambda half: {k: [1] for k in range(6)},
    "4 far": far_diagonals,
}

SMALL: dict[str, Any] = {"n": 1024, "limbs": (30,) * 4}
LARGE: dict[str, Any] = {"n": 4096, "limbs": (49,) * 4}
CASES = [
    Case("key_switch", **SMALL, special=(30,)),
    Case("key_switch", **SMALL, special=(30,), size=2),
    Case("key_switch", **SMALL, special=(33,)),
    Case("key_switch", **SMALL, special=(45,)),
    Case("key_switch", **SMALL, special=(45,), weight=64),
    Case("key_switch", **SMALL, special=(30,), size=2, level=3),
    Case("key_switch", **SMALL, special=(30,), size=2, conversion="fast"),
    Case("key_switch", **SMALL, special=(30,) * 3, size=2, conversion="fast"),
    Case("key_switch", **LARGE, special=(49,), size=2),
    Case("key_switch", **LARGE, special=(49, 49), size=2),
    Case("key_switch", **LARGE, special=(49, 49), size=2, rescale=1),
    Case("key_switch", **LARGE, special=(49, 49), size=2, rescale=1, conversion="fast"),
    Case("rotate", **SMALL, special=(30,)),
    Case("rotate", **SMALL, special=(30,) * 3, size=2, conversion="fast"),
    Case("rotate", **LARGE, special=(49, 49), size=2),
    Case("rotate_many", **SMALL, special=(33,)),
    Case("rotate_many", **LARGE, special=(49, 49), size=2),
    Case("rotate_many", **LARGE, special=(49, 49), size=2, conversion="fast"),
    Case("rotate_many", **SMALL, special=(34,), summed=2),
    Case("multiply", **SMALL, special=(30,)),
    Case("multiply", **SMALL, special=(30,), size=2, rescale=1),
    Case("multiply", **LARGE, special=(49, 49), size=2),
    Case("multiply", **LARGE, special=(49, 49), size=2, rescale=1),
    Case("transform", **SMALL, special=(30,), matrix="6 ones"),
    Case("transform", **SMALL, special=(30,), size=2, matrix="6 random", scale=2**20, rescale=1),
    Case("transform", **SMALL, special=(40,), matrix="6 random", scale=2**6),
    Case("transform", **SMALL, special=(50,), matrix="6 random", scale=2**6),
    Case("transform", **SMALL, special=(50,), matrix="6 ones", baby=1),
    Case("transform", **SMALL, special=(30,), matrix="4 far"),
    Case("transform", **SMALL, special=(50,), matrix="4 far"),
    Case("transform", **LARGE, special=(49, 49), size=2, matrix="6 random", scale=2**40, rescale=1),
]


# ---- theory ----


def theory(case: Case) -> float:
    """Return the standard deviation of the noise by the formulas of the page."""
    Q, special, _ = case.rings()
    n, P, fast = case.n, special.modulus, case.conversion == "fast"
    variance = 2 / 3 if case.weight is None else case.weight / n
    digits = [Q.moduli[i : i + case.size] for i in range(0, Q.rows, case.size)]
    terms = [(len(part) if fast else 1) * math.prod(part) ** 2 for part in digits]
    K = n * SIGMA**2 * sum(terms) / 12
    rounding = (1 + n * variance) / 12 * (special.rows + case.rescale if fast else 1)
    whole = case.summed * K
    if case.verb == "transform":
        whole = sum(giant_terms(case, K, n * variance * P**2 / 12))
    q = math.prod(Q.moduli[Q.rows - case.rescale :])
    return math.sqrt(whole / (P * q) ** 2 + rounding)


def giant_terms(case: Case, K: float, mask: float) -> Iterator[float]:
    """Yield the noise of each giant modulo Q P, before the last division; mask: of a rounded mask."""
    norms = {}
    for k, row in case.diagonals().items():
        is_rounded = len(row) > 1
        norms[k] = case.scale**2 * float(np.mean(np.abs(row) ** 2)) + (case.n / 12 if is_rounded else 0)
    for g in {k - k % case.baby for k in norms}:
        switched = [norms[k] for k in norms if g < k < g + case.baby]
        yield sum(switched) * K
        if g:
            yield K + (mask if switched else 0)


# ---- measurement ----


def errors(d: Poly, s: Poly, expected: Poly) -> NDArray[np.float64]:
    """Return the phases d_0 + d_1 s, minus what they should be: the expected value over the dropped limbs."""
    Q, ring = expected.ring, d.ring
    dropped = Q.modulus // ring.modulus
    phase = (d[..., 0] + d[..., 1] * s.restrict(ring).ntt()).intt().to_bigints()
    excess = dropped * phase - expected.intt().to_bigints()
    centred = (excess + Q.modulus // 2) % Q.modulus - Q.modulus // 2
    return np.asarray(centred, np.float64) / dropped


def encrypted(m: Poly, s: Poly, seed: int) -> Poly:
    """Return ciphertexts without noise: the phase is exactly m."""
    mask = m.ring.random(m.shape, domain="eval", seed=seed)
    return pg.stack([m - mask * s, mask], axis=-1)


def expected_product(m: Poly, M: LinearTransform) -> Poly:
    """Return the encoded matrix times the phases m."""
    n, steps = m.ring.n, M._steps
    total = m.ring.zeros(m.shape).ntt()
    for g in {k - k % M.baby for k in steps}:
        inner = m.ring.zeros(m.shape).ntt()
        for at, k in enumerate(steps):
            if g <= k < g + M.baby:
                inner += M.diagonals[at].restrict(m.ring) * m.automorphism(pow(5, k - g, 2 * n))
        total += inner.automorphism(pow(5, g, 2 * n))
    return total


def measured_of_one_secret(case: Case, number: int) -> NDArray[np.float64]:
    """Return the errors of all coefficients of the ciphertexts of one secret."""
    Q, special, whole = case.rings()
    secret = whole.ternary(weight=case.weight, seed=number)
    s, seed = secret.restrict(Q).ntt(), 1000 * number
    of: dict[str, Any] = {"ring": whole[: len(case.limbs)], "special": special}
    of |= {"limbs_per_digit": case.size, "sigma": SIGMA, "seed": number}
    m, other = (Q.random(CIPHERTEXTS, domain="eval", seed=seed + i) for i in (1, 2))
    c = encrypted(m, s, seed + 3)
    if case.verb in ("key_switch", "multiply"):
        key = switch_key(secret, secret * secret, **of).at(Q)
        if case.verb == "key_switch":
            d = lattice.key_switch(m, key, rescale=case.rescale, conversion=case.conversion)
            return errors(d, s, m * s * s)
        d = lattice.multiply(c, encrypted(other, s, seed + 4), key, rescale=case.rescale)
        return errors(d, s, m * other)
    if case.verb == "transform":
        M = LinearTransform(case.diagonals(), ring=Q, special=special, scale=case.scale, baby=case.baby)
        keys = rotation_keys(secret, M.galois_elements, turned=True, **of)
        return errors(lattice.transform(c, M, keys, rescale=case.rescale), s, expected_product(m, M))
    elements = [5] if case.verb == "rotate" else [5, -1]
    keys = rotation_keys(secret, elements, turned=case.verb == "rotate_many", **of)
    if case.verb == "rotate":
        d = lattice.rotate(c, keys[5], conversion=case.conversion)[None]
    elif case.summed == len(elements):
        sums = lattice.rotate_many(c, keys.values(), divide=False, conversion=case.conversion)
        return errors((sums[0] + sums[1]).mod_down(Q), s, m.automorphism(5) + m.automorphism(-1))
    else:
        d = lattice.rotate_many(c, keys.values(), conversion=case.conversion)
    return np.concatenate([errors(d[i], s, m.automorphism(g)) for i, g in enumerate(elements)])


@cache
def measured(case: Case) -> tuple[float, float]:
    """Return the standard deviation of the errors, and their mean."""
    with pg.device("cpu"):
        found = np.concatenate([measured_of_one_secret(case, number) for number in range(case.secrets)])
    return math.sqrt(np.mean(found**2)), float(found.mean())


@on("cpu")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.verb} {CASES.index(case)}")
def test_noise_matches_the_formulas(device: str, case: Case) -> None:
    deviation, mean = measured(case)
    expected = theory(case)
    assert abs(deviation / expected - 1) < 4 * case.deviation + 0.002 < 0.05
    # The errors are uncorrelated, so their mean deviates as that of independent ones.
    assert abs(mean) < 4 * expected / math.sqrt(case.n * CIPHERTEXTS * case.secrets)


# ---- the table of the page ----


def sizes(bits: tuple[int, ...]) -> str:
    return f"{len(bits)} x {bits[0]}"


def table() -> str:
    lines = [
        "| verb | n | bits of Q | limbs of a digit | bits of P | options | measured | theory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        figures = (f"{math.log2(x):.2f}" for x in (measured(case)[0], theory(case)))
        cells = (
            case.verb,
            str(case.n),
            sizes(case.limbs),
            str(case.size),
            sizes(case.special),
            case.options(),
        )
        lines.append(f"| {' | '.join((*cells, *figures))} |".replace("|  |", "| |"))
    return "\n".join(lines)


@on("cpu")
def test_noise_table_in_the_docs_is_current(device: str) -> None:
    """Seeds are fixed, so the measured figures are the same on every machine."""
    found = re.search(r"<!-- table: noise -->\n\n(.*?)\n\n<!-- end: noise -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == table()
