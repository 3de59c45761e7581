"""Comparison of encrypted numbers by CKKS and TFHE: results against NumPy, noise, products and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from devices import CARDS, on

import polygpu as pg
from polygpu.examples import comparison
from polygpu.examples.ckks_arithmetic import Ciphertext
from polygpu.examples.comparison import SETS, Comparator, Keys, Parameters, Secrets, Vectors

SMALL = SETS["small"]  # not secure


@cache
def made(p: Parameters = SMALL) -> tuple[Comparator, Secrets, Keys]:
    comparator = Comparator(p)
    return comparator, *comparator.keygen(b"keys")


def drawn(p: Parameters, seed: int, batch: tuple[int, ...] = ()) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, (*batch, p.slots))


def compared(p: Parameters, z: Any, threshold: Any) -> Any:
    comparator, secret, keys = made(p)
    c = comparator.greater(keys, comparator.encrypt(secret, z, b"z"), threshold)
    assert c.limbs == p.levels + 1 and c.scale == 2.0**p.scale
    return comparator.decrypt(secret, c)


def near(found: Any, expected: Any, deviation: float) -> None:
    assert found.shape == expected.shape
    assert abs(found - expected).max() < 6 * deviation


# ---- matrices ----


@pytest.mark.parametrize("slots", [2, 4, 16])
def test_to_coefficients_matrix_maps_slots_to_coefficients(slots: int) -> None:
    x, n = np.arange(1, slots + 1), 2 * slots
    matrix = comparison.to_coefficients(slots)
    polynomial = pg.fft.from_slots(sum(d * np.roll(x, -k) for k, d in matrix.items()))
    assert polynomial.shape == (n,) and np.allclose(polynomial, [*x, *(0 * x)])


@pytest.mark.parametrize("slots", [2, 4, 16])
def test_from_packed_matrix_maps_packed_coefficients_to_slots(slots: int) -> None:
    x = np.arange(1, slots + 1)
    polynomial = np.zeros(2 * slots)
    polynomial[::2] = x
    packed = pg.fft.to_slots(polynomial)
    half = sum(d * np.roll(packed, -k) for k, d in comparison.from_packed(slots).items())
    assert np.allclose(2 * half.real, x)


# ---- results ----


@pytest.mark.parametrize("threshold", [-1, -0.7, 0, 0.25, 0.9, 1.0])
def test_greater_on_both_sides_of_a_threshold(threshold: float) -> None:
    z = comparison.samples(SMALL, threshold)
    z[-2:] = -1, 1
    is_far = abs(z - threshold) > 0.99 * SMALL.distance
    found = compared(SMALL, z, threshold)
    near(found[is_far], (z > threshold)[is_far].astype(float), SMALL.deviations()["slots"])


def test_greater_with_a_threshold_per_slot() -> None:
    z, t = drawn(SMALL, 1, (2, 3)), drawn(SMALL, 2, (3,))
    is_far = abs(z - t) > SMALL.distance
    assert is_far.mean() > 0.9
    near(compared(SMALL, z, t)[is_far], (z > t)[is_far].astype(float), SMALL.deviations()["slots"])


@pytest.mark.parametrize(
    "changes",
    [
        {"log_slots": 1},
        {"log_slots": 9, "short": 8},
        {"levels": 0},
        {"levels": 2},
        {"turns": 0.125},
        {"log_n": 3, "log_slots": 2, "short": 4, "noise": -31},
    ],
)
def test_greater_with_other_parameters(changes: dict[str, Any]) -> None:
    p = replace(SMALL, **changes)
    z = drawn(p, 1)
    is_far = abs(z - 0.1) > p.distance
    near(compared(p, z, 0.1)[is_far], (z > 0.1)[is_far].astype(float), p.deviations()["slots"])


def test_results_near_the_threshold_match_the_deviation() -> None:
    """Half of the results are 1 at the threshold, 84 % one deviation above it, and none six below."""
    p = replace(SMALL, log_slots=8)
    for offset in (-6, 0, 1):
        found = compared(p, np.full(p.slots, 0.5 + offset * p.deviation), 0.5)
        expected = (1 + math.erf(offset / math.sqrt(2))) / 2
        assert np.mean(found > 0.5) == pytest.approx(expected, abs=5 * math.sqrt(0.25 / p.slots))


# ---- noise ----


def test_noise_of_each_step_matches_theory() -> None:
    """Several keys are used, because results of one key share a part of their noise."""
    p = replace(SMALL, log_slots=6)
    squares: dict[str, list[float]] = {}
    for seed in range(4):
        comparator = Comparator(p)
        secret, keys = comparator.keygen(bytes([seed]))
        result = comparison.measure(comparator, secret, keys, drawn(p, seed, (2,)), 0.25, b"z")
        assert result.wrong == 0
        for step in result.steps:
            squares.setdefault(step.name, []).append((step.found / step.theory) ** 2)
    assert [*squares] == [*p.deviations()]
    for name, found in squares.items():
        least = 0.3 if name == "product" else 0.7  # x is smaller than 1, and many results are 0
        assert least < math.sqrt(np.mean(found)) < 1.3, name


# ---- products ----


def test_product_with_a_comparison_masks_slots() -> None:
    comparator, secret, keys = made()
    z = comparison.samples(SMALL, 0.25)
    x = comparator.encrypt(secret, z, b"z")
    masked = comparator.multiply(keys, x, comparator.greater(keys, x, 0.25))
    assert masked.limbs == 1
    near(comparator.decrypt(secret, masked), z * (z > 0.25), SMALL.deviations()["product"])


def test_two_products_after_a_comparison() -> None:
    p = replace(SMALL, levels=2)
    comparator, secret, keys = made(p)
    x, y = drawn(p, 1), drawn(p, 2)
    x[abs(x) < p.distance] = 0.5
    cx, cy = comparator.encrypt(secret, x, b"x"), comparator.encrypt(secret, y, b"y")
    masked = comparator.multiply(keys, comparator.greater(keys, cx), cy)  # of the slots of y
    result = comparator.multiply(keys, masked, cx)
    assert result.limbs == 1
    near(comparator.decrypt(secret, result), x * y * (x > 0), 2 * p.deviations()["product"])


def test_a_comparison_of_a_product() -> None:
    """A product has another scale than a fresh ciphertext, and one limb less."""
    comparator, secret, keys = made()
    x, y = drawn(SMALL, 1), drawn(SMALL, 2)
    c = comparator.multiply(keys, comparator.encrypt(secret, x, b"x"), comparator.encrypt(secret, y, b"y"))
    assert c.limbs == 2 and c.scale != 2.0**SMALL.scale
    found = comparator.decrypt(secret, comparator.greater(keys, c, -0.1))
    z = x * y
    # The phase is smaller by the ratio of the scales, so the distance is larger.
    is_far = abs(z + 0.1) > SMALL.distance * 2.0**SMALL.scale / c.scale
    near(found[is_far], (z > -0.1)[is_far].astype(float), SMALL.deviations()["slots"])


# ---- full size ----


def test_comparison_with_secure_parameters() -> None:
    p = replace(SETS["128 bits"], log_slots=4)
    assert p.is_secure
    comparator = Comparator(p)
    secret, keys = comparator.keygen(b"keys")
    z = comparison.samples(p, 0.25)
    result = comparison.measure(comparator, secret, keys, z, 0.25, b"z")
    assert result.slots == 16 and result.wrong == 0 and result.close <= 4
    assert result.relu < 6 * p.deviations()["product"]
    for step in result.steps:  # of 16 slots and one key
        assert step.found < 1.8 * step.theory, step.name


def test_run_of_the_example() -> None:
    result = comparison.run(b"run")
    assert result.slots == 16 and result.wrong == 0
    assert [step.name for step in result.steps] == [*SMALL.deviations()]
    assert all(step.seconds > 0 for step in result.steps)


def test_security_of_parameter_sets() -> None:
    p = SETS["128 bits"]
    assert p.is_secure and p.log_qp == 184 and p.log_qp_limit == 214
    assert max(p.ring.moduli + p.special.moduli) < 2**31
    assert p.ring.modulus < p.special.modulus
    assert p.distance < 0.02
    for changes in ({"log_n": 12}, {"log_n": 9}, {"short": 917}, {"noise": -20}, {"levels": 3}):
        assert not replace(p, **changes).is_secure  # type: ignore[arg-type]
    assert not SMALL.is_secure


# ---- refusals ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_n": 2}, "log_n=2 must be at least 3"),
        ({"log_slots": 0}, "log_slots=0 must be from 1 to"),
        ({"log_slots": 10}, "log_slots=10 must be from 1 to"),
        ({"levels": -1}, "levels=-1 must be at least 0"),
        ({"short": 0}, "short=0 must be at least 1"),
        ({"turns": 0.25}, "turns=0.25 must be above 0 and below 1/4"),
        ({"turns": 0.0}, "turns=0.0"),
        ({"bits": 32}, "at least the 32 bits of other primes"),
        ({"scale": 30}, "two more than scale=30"),
        ({"noise": -32}, "noise=-32 is too small, .* below 1. Use a larger noise"),
    ],
)
def test_invalid_parameters_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(pg.ParameterError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (np.zeros(15), r"shape \(15,\) .* must end in 16 slots"),
        (np.zeros(()), r"shape \(\) .* must end in 16 slots"),
        (np.zeros(16, complex), "dtype complex128.* must be real"),
        (np.full(16, 1.001), "not from -1 to 1"),
        (np.full(16, math.nan), "not from -1 to 1"),
    ],
)
def test_encrypt_raises_for_invalid_numbers(z: Any, message: str) -> None:
    comparator, secret, _ = made()
    with pytest.raises(pg.ParameterError, match=message):
        comparator.encrypt(secret, z, b"z")


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        (1.001, "not from -1 to 1"),
        (math.nan, "not from -1 to 1"),
        ([-2] * 16, "not from -1 to 1"),
        (1j, "not real"),
        ("0", "not real"),
        (np.zeros(15), r"shape of threshold is \(15,\)"),
        (np.zeros((2, 16)), r"or one for each slot with shape \(16,\)"),
    ],
)
def test_invalid_thresholds_raise(threshold: Any, message: str) -> None:
    comparator, _, keys = made()
    vectors = Vectors(np.zeros((16, SMALL.short + 1), np.uint32), 0.2)
    for step in (
        lambda: comparator.rotate(keys, vectors, threshold),
        lambda: comparator.round(vectors, threshold),
    ):
        with pytest.raises(pg.ParameterError, match=message):
            step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: Ciphertext(c.value.rescale(2), c.scale), "c has 1 limb, but it must have at least two"),
        (lambda c: Ciphertext(c.value, 1.25 * c.scale), "makes 0.250 turns"),
    ],
)
def test_greater_raises_for_invalid_ciphertexts(
    change: Callable[[Ciphertext], Ciphertext], message: str
) -> None:
    comparator, secret, keys = made()
    c = comparator.encrypt(secret, drawn(SMALL, 1), b"z")
    with pytest.raises(pg.ParameterError, match=message):
        comparator.greater(keys, change(c))


# ---- devices and the command ----


@on(*CARDS)
def test_results_on_a_card_have_the_same_bits(device: str) -> None:
    p = replace(SMALL, log_n=6, log_slots=2, short=8)
    with pg.device("cpu"):
        comparator, secret, keys = made(p)
        c = comparator.encrypt(secret, drawn(p, 1), b"z")
        expected = comparator.greater(keys, c, 0.25)
    assert keys.to().nbytes == keys.nbytes
    found = comparator.to().greater(keys.to(), c._replace(value=c.value.to()), 0.25)
    assert found.value.cpu() == expected.value and found.scale == expected.scale


def test_command_line_output(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--logn", "10", "--log-slots", "3", "--threshold", "-0.5", "--insecure"]
    assert comparison.main(arguments) == 0
    text = capsys.readouterr().out
    for part in (
        "N = 2^10, 8 slots",
        "benchmark only, not secure",
        "rotated",
        " 0 wrong; x [x > t] right to 2^-",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logn", "10"], "not secure. Use --insecure to run them"),
        (["--logn", "2", "--insecure"], "log_n=2 must be at least 3, and log_slots=5"),
        (
            ["--logn", "10", "--insecure", "--threshold", "2"],
            "threshold contains a number that is not real or not from",
        ),
        (["--logn", "10", "--insecure", "--device", "tpu"], "tpu"),
        (["--logn", "x"], "invalid int value"),
    ],
)
def test_command_line_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        comparison.main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err
