"""A neural network on encrypted images, with a bootstrap between its layers.

    pip install "polygpu[examples]"
    python -m polygpu.examples.network
    python -m polygpu.examples.network --logn 12 --samples 64 --insecure --device cuda

The images are scikit-learn's handwritten digits, 8 x 8 pixels. The network has 64 inputs, a hidden layer of
32 neurons, whose activation is the square, and 10 scores. It is trained on 1,297 images without encryption.
The owner of the other images encrypts them, many in one ciphertext of CKKS. The server multiplies by the
first weights, squares, bootstraps, and multiplies by the second weights. It sees neither images nor scores.
The owner decrypts the scores; the largest one gives the class.

This is an example, not a product: it is not constant time, nobody has reviewed it, and keys are not erased
from memory. Scores must not be shown to others without additional noise, because they reveal the secret key
(Li, Micciancio 2020/1533). The server knows the weights, and the owner learns something about them from the
scores.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

import polygpu as pg
from polygpu import lattice
from polygpu.examples import bootstrapping
from polygpu.examples.bfv import derive
from polygpu.examples.bootstrapping import Bootstrapper, Keys, Parameters
from polygpu.examples.ckks_arithmetic import Arithmetic, Array, Ciphertext, encode, transform

PIXELS, SQUARES, CLASSES = 64, 32, 10
TRAINED = 1297  # training images; the others are test images

# ---- the network, without encryption ----


class Digits(NamedTuple):
    """Images of digits. images (count, 64): pixels from 0 to 1. labels (count,): the digit in each image."""

    images: Array
    labels: Array


@dataclass(frozen=True)
class Network:
    """Weights of a network that computes scores = second @ (first @ x + first_bias)^2 + second_bias.

    `train` scales the weights so that the numbers that are squared are in [-1, 1].
    """

    first: Array  # shape (32, 64)
    first_bias: Array  # shape (32,)
    second: Array  # shape (10, 32)
    second_bias: Array  # shape (10,)

    def scores(self, images: Array) -> Array:
        """Return the scores of images, an array of shape (count, 10)."""
        squares = (images @ self.first.T + self.first_bias) ** 2
        return np.asarray(squares @ self.second.T + self.second_bias)


def load() -> tuple[Digits, Digits]:
    """Return the training images and the test images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise pg.errors.BackendUnavailable(
            'The images come from scikit-learn, which is not installed. Run pip install "polygpu[examples]".'
        ) from None
    found = load_digits()
    # Only a few people wrote the last images, so the images are shuffled.
    mixed = np.random.default_rng(0).permutation(len(found.target))
    images, labels = found.data[mixed] / 16, found.target[mixed]
    return Digits(images[:TRAINED], labels[:TRAINED]), Digits(images[TRAINED:], labels[TRAINED:])


def train(digits: Digits, passes: int = 60, seed: int = 1) -> Network:
    """Train by Adam (Kingma, Ba 2014) on the cross entropy, in batches of 64 images."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, 1 / 8, (SQUARES, PIXELS)), np.zeros(SQUARES)]
    weights += [rng.normal(0, 1 / 6, (CLASSES, SQUARES)), np.zeros(CLASSES)]
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    wanted, step = np.eye(CLASSES)[digits.labels], 0
    for _ in range(passes):
        for some in np.array_split(rng.permutation(len(digits.images)), len(digits.images) // 64):
            x, step = digits.images[some], step + 1
            inner = x @ weights[0].T + weights[1]
            scores = inner**2 @ weights[2].T + weights[3]
            exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (exponentials / exponentials.sum(axis=1, keepdims=True) - wanted[some]) / len(some)
            back = error @ weights[2] * 2 * inner
            gradients = (back.T @ x, back.sum(axis=0), error.T @ inner**2, error.sum(axis=0))
            for w, g, mean, square in zip(weights, gradients, means, squares, strict=True):
                g = g + 1e-4 * w
                mean += 0.1 * (g - mean)
                square += 0.001 * (g**2 - square)
                w -= 0.005 * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    first, first_bias, second, second_bias = weights
    # The bootstrap needs slots in [-1, 1]. The factor 1.25 leaves room for images that are not training
    # images.
    largest = 1.25 * abs(digits.images @ first.T + first_bias).max()
    return Network(first / largest, first_bias / largest, second * largest**2, second_bias)


# ---- the network, on ciphertexts ----


class EncryptedNetwork:
    """The server's part: two matrices of weights that act on slots, and a bootstrap between them.

    A sample has 64 neighbouring slots. They hold the pixels of the sample at first, the squares of its
    neurons after the first layer, and its scores at the end.
    """

    def __init__(self, network: Network, boot: Bootstrapper) -> None:
        self.network, self.boot, p = network, boot, boot.p
        if p.slots < PIXELS or p.levels < 2:
            raise pg.ParameterError(
                f"boot has {p.slots} slots and {p.levels} levels. Use at least {PIXELS} slots and 2 levels."
            )
        ring = p.ring[: p.levels + 1]
        self.first = _matrix(network.first, ring, p.special)
        self.second = _matrix(network.second, ring, p.special)

    @property
    def samples(self) -> int:
        """The number of samples that a ciphertext holds."""
        return self.boot.p.slots // PIXELS

    def keygen(self, seed: bytes) -> tuple[pg.Poly, Keys]:
        """Return the owner's secret, and the public keys for the bootstrap and the two matrices."""
        return self.boot.keygen(seed, (self.first, self.second))

    def to(self, device: str | None = None) -> EncryptedNetwork:
        """Return the network on a device, by default the current one."""
        moved = copy(self)
        moved.boot, moved.first, moved.second = (
            self.boot.to(device),
            self.first.to(device),
            self.second.to(device),
        )
        return moved

    def encrypt(self, secret: pg.Poly, images: Array, seed: bytes) -> Ciphertext:
        """Encrypt images (count, 64) in as few ciphertexts as possible, of batch shape (ciphertexts, 2)."""
        if images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
            raise pg.ParameterError(
                f"The shape of images is {images.shape}. It must be (count, {PIXELS}) with at least one "
                "image."
            )
        count = -(-len(images) // self.samples)
        slots = np.zeros((count * self.samples, PIXELS))
        slots[: len(images)] = images
        return self.boot.encrypt(secret, slots.reshape(count, -1), seed, limbs=self.boot.p.levels + 1)

    def decrypt(self, secret: pg.Poly, c: Ciphertext, count: int) -> Array:
        """Return the scores of the first `count` samples, an array of shape (count, 10)."""
        return self.boot.decrypt(secret, c).real.reshape(-1, PIXELS)[:count, :CLASSES]

    def __call__(self, keys: Keys, c: Ciphertext) -> Ciphertext:
        """Return the encrypted scores of encrypted images."""
        inner = self._layer(keys, c, self.first, self.network.first_bias)
        squares = Arithmetic(self.boot.p.ring, keys.relin).product(inner, inner)
        fresh = self.boot.bootstrap(keys, squares)
        return self._layer(keys, fresh, self.second, self.network.second_bias)

    def _layer(self, keys: Keys, c: Ciphertext, M: lattice.LinearTransform, bias: Array) -> Ciphertext:
        """Return M times the slots, plus the bias, rescaled."""
        value, scale = transform(c, M, keys.rotations)
        place = np.pad(bias, (0, PIXELS - len(bias)))
        constant = encode(np.tile(place, self.boot.p.n // 2 // PIXELS), value.ring, scale)
        value[..., 0] = value[..., 0] + constant.to(value.device)
        return Ciphertext(value, scale)


def _matrix(weights: Array, ring: pg.Ring, special: pg.Ring) -> lattice.LinearTransform:
    """Return the matrix that multiplies each block of 64 slots by `weights` (rows, columns)."""
    rows, columns = weights.shape
    diagonals = {}
    for k in range(1 - rows, columns):  # entry j of diagonal k is weights[j, j + k]
        j = np.arange(max(0, -k), min(rows, columns - k))
        diagonals[k] = np.zeros(PIXELS)
        diagonals[k][j] = weights[j, j + k]
    return lattice.LinearTransform(diagonals, ring=ring, special=special, scale=ring.moduli[-1])


# ---- the command ----


class Result(NamedTuple):
    """Result of `run`.

    plain, encrypted: the accuracies without and with encryption. different: the number of samples that get
    another class with encryption. bits: -log2 of (largest difference of a score / largest score). seconds:
    the time for all samples. keys: bytes of the public keys. matrices: bytes of the encoded matrices of
    network and bootstrap.
    """

    plain: float
    encrypted: float
    different: int
    bits: float
    seconds: float
    keys: int
    matrices: int


def run(p: Parameters, samples: int, device: str = "cpu", seed: bytes | None = None) -> Result:
    """Classify the first `samples` test images without and with encryption.

    Raises:
        ParameterError: `samples` is not from 1 to the number of test images.
        BackendUnavailable: scikit-learn is not installed, or the device is not available.
    """
    seed = secrets.token_bytes(32) if seed is None else seed
    training, test = load()
    if not 1 <= samples <= len(test.images):
        raise pg.ParameterError(f"samples={samples} must be from 1 to {len(test.images)}.")
    network = train(training)
    images, labels = test.images[:samples], test.labels[:samples]
    with pg.device(device):
        server = EncryptedNetwork(network, Bootstrapper(p)).to()
        secret, keys = server.keygen(derive(seed, "keys"))
        pg.memory.release()  # frees cached memory, because a bootstrap needs blocks of other sizes
        c = server.encrypt(secret, images, derive(seed, "images"))
        server(keys, c)  # this first call makes tables and kernels, so it is not timed
        start = perf_counter()
        found = server.decrypt(secret, server(keys, c), samples)
        seconds = perf_counter() - start
    expected = network.scores(images)
    classes, right = found.argmax(axis=1), expected.argmax(axis=1)
    return Result(
        plain=float(np.mean(right == labels)),
        encrypted=float(np.mean(classes == labels)),
        different=int(np.sum(classes != right)),
        bits=-math.log2(abs(found - expected).max() / abs(expected).max()),
        seconds=seconds,
        keys=keys.nbytes,
        matrices=server.boot.nbytes + server.first.nbytes + server.second.nbytes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Classify test images, print accuracies and times, and return the exit status."""
    parser = bootstrapping.parser_of("network", "Classify encrypted images.")
    parser.add_argument("--samples", type=int, default=500, help="test images (500)")
    options = parser.parse_args(arguments)
    try:
        p = Parameters(log_n=options.logn, real=True)
        bootstrapping.describe(p)
        bootstrapping.refuse_insecure(parser, p, options.insecure)
        result = run(p, options.samples, options.device)
    except pg.PolyGPUError as error:
        parser.error(str(error))
    print(f"{options.samples} images: {result.plain:.1%} right in the open, {result.encrypted:.1%} encrypted")
    print(f"{result.different} classes differ, scores differ by 2^-{result.bits:.1f} of the largest one")
    print(f"{result.seconds:.2f} s, {1000 * result.seconds / options.samples:.1f} ms an image", end="; ")
    print(f"keys {result.keys / 1e9:.2f} GB, matrices {result.matrices / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
