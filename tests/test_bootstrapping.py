"""CKKS bootstrapping: matrices and sine series against NumPy, each step, every variant, repeated runs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from devices import CARDS, on

import polygpu as pg
from polygpu.examples import bootstrapping
from polygpu.examples.bootstrapping import PRESETS, Bootstrapper, Keys, Parameters, bits
from polygpu.examples.ckks_arithmetic import Arithmetic, Ciphertext, phase

# Small, and so not secure.
SMALL = {name: replace(p, log_n=10) for name, p in PRESETS.items()}
VARIANTS: dict[str, dict[str, Any]] = {
    "complex": {},
    "real": {"real": True},
    "few complex slots": {"log_slots": 5},
    "few real slots": {"log_slots": 5, "real": True},
    "half of the slots": {"log_slots": 8},
    "two slots": {"log_slots": 1},
}


@cache
def made(p: Parameters) -> tuple[Bootstrapper, pg.Poly, Keys]:
    boot = Bootstrapper(p)
    return boot, *boot.keygen(b"keys")


def drawn(p: Parameters, seed: int, batch: tuple[int, ...] = ()) -> Any:
    rng = np.random.default_rng(seed)
    real, imaginary = rng.uniform(-1, 1, (2, *batch, p.slots))
    return real if p.real else real + 1j * imaginary


def encrypted(p: Parameters, z: Any, seed: int = 0) -> Ciphertext:
    boot, secret, _ = made(p)
    return boot.encrypt(secret, z, seed.to_bytes(4, "little"))


# ---- matrices and the series ----


def dense(matrix: bootstrapping.Diagonals, slots: int) -> Any:
    """The matrix by its entries: row j of diagonal k has its entry in column j + k."""
    j = np.arange(slots)
    whole = np.zeros((slots, slots), complex)
    for k, d in matrix.items():
        whole[j, (j + k) % slots] += d
    return whole


@pytest.mark.parametrize("slots", [1, 2, 4, 32])
def test_butterfly_matrices_map_coefficients_to_slots(slots: int) -> None:
    layers = bootstrapping.butterflies(slots)
    depth = len(layers)
    order = [int(format(i, "b").zfill(depth)[::-1], 2) for i in range(slots)]
    whole = np.eye(slots)
    for layer in layers:
        whole = dense(layer, slots) @ whole
    real, imaginary = np.random.default_rng(1).normal(size=(2, slots))
    t, coefficients = real + 1j * imaginary, np.concatenate([real, imaginary])
    assert np.allclose(whole @ t[order], pg.fft.to_slots(coefficients))
    for layer in layers:
        inverse = bootstrapping.inverse_butterfly(layer, slots)
        assert np.allclose(dense(inverse, slots) @ dense(layer, slots), np.eye(slots))
    for count in range(1, depth + 2):
        groups = bootstrapping.grouped(layers, count, slots)
        product = np.eye(slots)
        for group in groups:
            product = dense(group, slots) @ product
        assert len(groups) == count and np.allclose(product, whole)


@pytest.mark.parametrize("preset", PRESETS)
def test_sine_series_approximates_the_sine_near_integers(preset: str) -> None:
    p = PRESETS[preset]
    series = bootstrapping.sine_series(p)
    integers = np.arange(-p.bound, p.bound + 1)
    x = integers[:, None] + np.linspace(-1, 1, 21) * 2.0 ** (p.scale - p.first)
    y = np.polynomial.chebyshev.chebval(x / p.bound, series)
    for _ in range(p.doublings):
        y = 2 * y * y - 1
    error = abs(y - np.sin(2 * np.pi * x)).max(axis=1)
    assert len(series) == p.degree + 1
    assert error.max() < 2.0**-28 and error[abs(integers) < 5].max() < 2.0**-38


@pytest.mark.parametrize(
    ("weight", "bound", "tail"),
    [(1, 1, 0.0), (3, 1, 0.0), (4, 1, 1 / 192), (5, 1, 2 / 120), (32, 16, 0.0), (2, 1, 0.0)],
)
def test_probability_of_failure(weight: int, bound: int, tail: float) -> None:
    """Tails of sums of `weight` uniform numbers beyond K + 1/2 are computed from their densities."""
    p = replace(SMALL["precise"], sparse_weight=weight, bound=bound)
    expected = math.log2(tail * p.n) if tail else -math.inf
    assert p.failure == pytest.approx(expected)


def test_overflow_frequency_matches_the_failure_probability() -> None:
    p = SMALL["precise"]
    _, secret, keys = made(p)
    c = encrypted(p, np.array([drawn(p, seed) for seed in range(100)]))
    low = pg.lattice.key_switch(c.value[..., 1], keys.to_sparse, add=c.value[..., 0]).mod_up(p.ring)
    raised = pg.lattice.key_switch(low[..., 1], keys.from_sparse, add=low[..., 0])
    q = p.ring.moduli[0]
    phases = phase(secret, Ciphertext(raised, q)).to_float64() / q
    for bound in (3, 4):
        expected = 2.0 ** replace(p, bound=bound).failure / p.n
        assert 0.8 < np.mean(abs(np.round(phases)) > bound) / expected < 1.25


def test_presets_are_secure_by_the_recorded_bounds() -> None:
    for p in PRESETS.values():
        assert p.is_secure and p.failure < -60
        assert p.log_qp == math.prod([*p.ring.moduli, *p.special.moduli]).bit_length()
        # Digits are below 4 P, so key switches add little noise.
        largest = max(math.prod(p.ring.moduli[i : i + p.size]) for i in range(0, p.ring.rows, p.size))
        assert largest < 4 * p.special.modulus
    assert not SMALL["wide"].is_secure


# ---- steps ----


def test_mod_raise_adds_multiples_of_the_first_prime() -> None:
    p = SMALL["precise"]
    boot, secret, keys = made(p)
    c = encrypted(p, drawn(p, 1))
    q = p.ring.moduli[0]
    m = phase(secret, c).to_bigints(centered=True)
    raised = boot.mod_raise(keys, c)
    t = phase(secret, raised).to_bigints(centered=True)
    multiples = (t - m + q // 2) // q
    noise = abs(t - m - multiples * q).max()
    assert raised.value.ring == p.ring and raised.scale == float(q)
    assert 1 < abs(multiples).max() < p.bound and noise < 2**12


def test_coeff_to_slot_and_back() -> None:
    p = SMALL["precise"]
    boot, secret, keys = made(p)
    raised = boot.mod_raise(keys, encrypted(p, drawn(p, 2)))
    t = phase(secret, raised).to_bigints(centered=True) / (p.ring.moduli[0] * p.bound)
    c = boot.coeff_to_slot(keys, raised)
    order = [int(format(i, f"0{p.log_n - 1}b")[::-1], 2) for i in range(p.slots)]
    expected = t.astype(float).reshape(2, p.slots)[:, order]
    assert bits(boot.decrypt(secret, c), expected)[0] > 30
    y = boot.eval_mod(Arithmetic(p.ring, keys.relin), c)
    wave = np.sin(2 * np.pi * p.bound * expected)
    assert bits(boot.decrypt(secret, y), wave)[0] > 28


# ---- whole bootstraps ----

# The bits of the worst slot, of slots uniform in the square, in a ring of 2^10. Sparse slots have larger
# coefficients, of which a sine is off by the cube.
STATED = {"precise": 19, "wide": 14}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_bootstrap_keeps_slots_and_restores_levels(preset: str, variant: str) -> None:
    p = replace(SMALL[preset], **VARIANTS[variant])
    boot, secret, keys = made(p)
    z = drawn(p, 3)
    c = boot.bootstrap(keys, encrypted(p, z))
    assert c.limbs == p.levels + 1 and c.scale == pytest.approx(2.0**p.scale, rel=1e-6)
    limit = STATED[preset] - (5 if p.log_slots in (1, 5) else 0)
    assert bits(boot.decrypt(secret, c), z)[0] > limit


@pytest.mark.parametrize("preset", PRESETS)
def test_bootstrap_of_twenty_messages(preset: str) -> None:
    p = SMALL[preset]
    boot, secret, keys = made(p)
    z = np.array([drawn(p, seed) for seed in range(20)])
    c = boot.bootstrap(keys, encrypted(p, z))
    assert c.value.shape == (20, 2)
    assert bits(boot.decrypt(secret, c), z)[0] > STATED[preset]


def test_five_successive_bootstraps_keep_their_precision() -> None:
    p = SMALL["precise"]
    boot, secret, keys = made(p)
    z = drawn(p, 4)
    c, found = encrypted(p, z), []
    for _ in range(5):
        c = boot.bootstrap(keys, c)
        found.append(bits(boot.decrypt(secret, c), z)[0])
    assert found[-1] > STATED["precise"] - 2 and c.scale == pytest.approx(2.0**p.scale, rel=1e-6)


@pytest.mark.parametrize(("arcsine", "least"), [(0, 17), (3, 25), (5, 25)])
def test_bootstrap_of_all_ones_with_and_without_arcsine(arcsine: int, least: float) -> None:
    """If all slots equal 1, one coefficient holds everything, and the sine's cubic term is largest."""
    p = replace(SMALL["precise"], arcsine=arcsine)
    boot, secret, keys = made(p)
    c = boot.bootstrap(keys, encrypted(p, np.ones(p.slots)))
    found = bits(boot.decrypt(secret, c), np.ones(p.slots))[0]
    assert least < found < least + 8


def test_encrypt_raises_for_invalid_messages() -> None:
    p = replace(SMALL["precise"], real=True)
    boot, secret, _ = made(p)
    with pytest.raises(pg.ParameterError, match=r"shape of z is \(511,\). It must end in 512 slots"):
        boot.encrypt(secret, np.ones(511), b"seed")
    with pytest.raises(pg.ParameterError, match="Use real=False"):
        boot.encrypt(secret, np.full(512, 1j), b"seed")


def test_keygen_for_additional_linear_transforms() -> None:
    p = replace(SMALL["precise"], log_n=8)
    boot = Bootstrapper(p)
    k = pow(5, -1, 1 << p.log_n)  # any step of a small matrix
    ring = p.ring[:15]
    M = pg.lattice.LinearTransform({0: [1], 1: [1], k: [1]}, ring=ring, special=p.special, scale=2**40)
    secret, keys = boot.keygen(b"keys", [M])
    c = boot.encrypt(secret, drawn(p, 1), b"c", limbs=15)
    assert pg.lattice.transform(c.value, M, keys.rotations, rescale=1).ring == ring[:-1]
    assert {key.ring.rows for key in keys.rotations.values()} >= {15}


def test_products_after_a_bootstrap() -> None:
    p = SMALL["precise"]
    boot, secret, keys = made(p)
    x, y = (boot.bootstrap(keys, encrypted(p, drawn(p, seed), seed)) for seed in (5, 6))
    arithmetic = Arithmetic(p.ring, keys.relin)
    c = arithmetic.product(x, y)
    assert bits(boot.decrypt(secret, c), drawn(p, 5) * drawn(p, 6))[0] > STATED["precise"] - 2


@on(*CARDS)
def test_results_on_a_card_have_the_same_bits(device: str) -> None:
    p = SMALL["wide"] if device == "cuda" else replace(SMALL["wide"], log_n=8)
    with pg.device("cpu"):
        boot, _, keys = made(p)
        c = encrypted(p, drawn(p, 7))
        expected = boot.bootstrap(keys, c)
    there, its = boot.to(), keys.to()
    value, scale = c.value.to(), c.scale
    found = there.bootstrap(its, Ciphertext(value, scale))
    assert found.value.cpu() == expected.value and found.scale == expected.scale
    if device == "cuda":
        run = pg.capture(lambda v: there.bootstrap(its, Ciphertext(v, scale)).value, value)
        assert run(value).cpu() == expected.value


# ---- the command ----


def test_command_line_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrapping.main(["--logn", "8", "--insecure", "--repeat", "2"]) == 0
    text = capsys.readouterr().out
    assert "benchmark only, not secure" in text and text.count("bootstrap ") == 4
    assert "left: 3 levels, 144 bits" in text and "P(some |I| > 14) < 2^-9" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logn", "10"], "not secure. Use --insecure to run them"),
        (["--logn", "-1", "--insecure"], "log_n=-1 must be at least 2"),
        (["--logn", "7", "--insecure"], "weight=192 and sparse_weight=32 must be at most N=128"),
        (["--set", "arcsine=4"], r"arcsine=4 must be one of \[0, 3, 5\]"),
        (["--set", "log_slots=16"], "log_slots=16 must be from 1 to log_n - 1"),
        (["--set", "colour=1"], "FIELD=INT with one of the fields arcsine"),
        (["--set", "size=x"], "FIELD=INT"),
        (["--preset", "fast"], "invalid choice"),
        (["--set", "bound=0"], "bound=0 must be at least 1"),
        (["--set", "doublings=-1"], "doublings=-1 must be at least 0"),
        (["--set", "cts=0"], "cts=0 must be at least 1"),
        (["--set", "special_bits=45"], "special_bits=45 must be at least 58"),
        (["--set", "first=48"], "first=48 bits must be more than scale=48 bits"),
        (["--set", "bound=8"], "not secure. Use --insecure to run them"),
    ],
)
def test_command_line_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        bootstrapping.main(arguments)
    assert caught.value.code == 2
    assert re.search(message, capsys.readouterr().err.replace("\n", " "))
