"""A neural network on encrypted images: training, layers against NumPy, classes, errors."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from devices import CARDS, on

import polygpu as pg
from polygpu.examples import network
from polygpu.examples.bootstrapping import Bootstrapper, Keys, Parameters
from polygpu.examples.network import EncryptedNetwork, Network

pytest.importorskip("sklearn", reason="scikit-learn has the images")

SMALL = Parameters(log_n=10, real=True)  # not secure


@cache
def trained() -> Network:
    return network.train(network.load()[0])


@cache
def server(p: Parameters = SMALL) -> tuple[EncryptedNetwork, pg.Poly, Keys]:
    made = EncryptedNetwork(trained(), Bootstrapper(p))
    return made, *made.keygen(b"keys")


def test_training_is_deterministic_and_accurate() -> None:
    own, again = trained(), network.train(network.load()[0])
    assert all(np.array_equal(value, getattr(again, name)) for name, value in vars(own).items())
    training, test = network.load()
    assert len(training.images) == 1297 and len(test.images) == 500
    assert np.mean(own.scores(test.images).argmax(axis=1) == test.labels) > 0.95
    for digits in (training, test):
        assert abs(digits.images @ own.first.T + own.first_bias).max() < 1


@pytest.mark.parametrize("shape", [(32, 64), (10, 32), (1, 1), (64, 64), (1, 64), (64, 1)])
def test_matrix_acts_on_each_block_separately(shape: tuple[int, int]) -> None:
    made, *_ = server()
    p, rng = SMALL, np.random.default_rng(1)
    weights = rng.uniform(-1, 1, shape)
    ring = p.ring[: p.levels + 1]
    M = network._matrix(weights, ring, p.special)
    secret, keys = made.boot.keygen(b"keys", [M])
    slots = rng.uniform(-1, 1, (made.samples, 64))
    c = made.boot.encrypt(secret, slots.reshape(-1), b"slots", limbs=4)
    value = pg.lattice.transform(c.value, M, keys.rotations, rescale=1)
    found = made.boot.decrypt(secret, c._replace(value=value)).real.reshape(slots.shape)
    expected = np.zeros_like(slots)
    expected[:, : shape[0]] = slots[:, : shape[1]] @ weights.T
    assert abs(found - expected).max() < 2.0**-25


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_encrypted_scores_match_plain_scores(count: int) -> None:
    made, secret, keys = server()
    assert made.samples == 8
    images = network.load()[1].images[:count]
    c = made.encrypt(secret, images, b"images")
    assert c.value.shape == (-(-count // 8), 2)
    found = made.decrypt(secret, made(keys, c), count)
    expected = trained().scores(images)
    assert found.shape == expected.shape
    assert abs(found - expected).max() < 2.0**-12 * abs(expected).max()


def test_encrypted_classes_match_plain_classes() -> None:
    result = network.run(replace(SMALL, log_n=12), 200, seed=b"run")
    assert result.different <= 1 and result.plain > 0.95 and result.bits > 12
    assert abs(result.plain - result.encrypted) <= 0.005 and result.seconds > 0
    assert result.keys > 0 and result.matrices > 0


def test_one_sample_in_64_slots() -> None:
    made, secret, keys = server(replace(SMALL, log_slots=6))
    images = network.load()[1].images[:2]
    c = made.encrypt(secret, images, b"images")
    expected = trained().scores(images)
    assert made.samples == 1
    assert abs(made.decrypt(secret, made(keys, c), 2) - expected).max() < 2.0**-12 * abs(expected).max()


@pytest.mark.parametrize("changes", [{"log_slots": 5}, {"levels": 1}])
def test_too_few_slots_or_levels_raise(changes: dict[str, int]) -> None:
    with pytest.raises(pg.ParameterError, match=r"boot has .* Use at least 64 slots and 2 levels"):
        EncryptedNetwork(trained(), Bootstrapper(replace(SMALL, **changes)))


@pytest.mark.parametrize("shape", [(0, 64), (8, 1), (8, 65), (64,), (1, 1, 64)])
def test_images_of_another_shape_raise(shape: tuple[int, ...]) -> None:
    made, secret, _ = server()
    with pytest.raises(pg.ParameterError, match=r"shape of images is .* must be \(count, 64\)"):
        made.encrypt(secret, np.zeros(shape), b"images")


@on(*CARDS)
def test_results_on_a_card_have_the_same_bits(device: str) -> None:
    p = SMALL if device == "cuda" else replace(SMALL, log_n=8)
    with pg.device("cpu"):
        made, secret, keys = server(p)
        c = made.encrypt(secret, network.load()[1].images[:2], b"images")
        expected = made(keys, c)
    found = made.to()(keys.to(), c._replace(value=c.value.to()))
    assert found.value.cpu() == expected.value and found.scale == expected.scale


def test_command_line_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert network.main(["--logn", "10", "--samples", "8", "--insecure"]) == 0
    text = capsys.readouterr().out
    for part in ("8 images: ", "0 classes differ", "ms an image; keys 0.03 GB, matrices 0."):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logn", "10"], "not secure. Use --insecure to run them"),
        (["--logn", "-1", "--insecure"], "log_n=-1 must be at least 2"),
        (["--logn", "10", "--insecure", "--samples", "0"], "samples=0 must be from 1 to 500"),
        (["--logn", "10", "--insecure", "--samples", "501"], "samples=501 must be from 1 to 500"),
        (["--logn", "10", "--insecure", "--device", "tpu"], "tpu"),
        (["--samples", "x"], "invalid int value"),
    ],
)
def test_command_line_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        network.main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_load_without_scikit_learn_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(pg.errors.BackendUnavailable, match=r"pip install"):
        network.load()
