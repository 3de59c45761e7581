"""Slots of real polynomials against their definition in long double; products and rotations of slots."""

from __future__ import annotations

import numpy as np
import pytest
from devices import CARDS, Work, backend, host, on, there

import polygpu as pg
from polygpu import fft

EPSILON = 2.0**-48


def slots(x: np.ndarray) -> np.ndarray:
    """The slots by definition, in long double."""
    n = x.shape[-1]
    powers = [pow(5, j, 2 * n) for j in range(n // 2)]
    exponents = np.outer(powers, np.arange(n)) % (2 * n)
    angles = exponents.astype(np.longdouble) * (np.arctan(np.longdouble(1)) * 4 / n)
    return x.astype(np.longdouble) @ (np.cos(angles) + 1j * np.sin(angles)).T


def near(found: np.ndarray, expected: np.ndarray) -> None:
    norms = np.linalg.norm(expected.astype(complex), axis=-1)
    assert (np.linalg.norm((found - expected).astype(complex), axis=-1) <= EPSILON * norms).all()


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize("n", [2, 4, 8, 64])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1), (0,)])
def test_to_slots_evaluates_at_the_roots(device: str, n: int, batch: tuple[int, ...]) -> None:
    x = np.random.default_rng(n).normal(size=(*batch, n))
    given = there(x)
    found = fft.to_slots(given)
    assert type(found) is type(given) and found.dtype == np.complex128 and found.shape == (*batch, n // 2)
    near(host(found), slots(x))
    back = fft.from_slots(found)
    assert back.dtype == np.float64 and back.shape == x.shape
    near(host(back), x)


@pytest.mark.parametrize("n", [256, 4096, 8192, 16384])
def test_to_slots_of_long_polynomials(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    found = fft.to_slots(x)
    some = np.random.default_rng(1).integers(0, n // 2, 20)
    exponents = np.outer([pow(5, int(j), 2 * n) for j in some], np.arange(n)) % (2 * n)
    angles = exponents.astype(np.longdouble) * (np.arctan(np.longdouble(1)) * 4 / n)
    expected = ((np.cos(angles) + 1j * np.sin(angles)) * x).sum(axis=-1)
    assert abs(found[some] - expected).max() <= EPSILON * np.linalg.norm(found) / np.sqrt(n / 2) * 4
    near(fft.from_slots(found), x)


def test_to_slots_of_the_largest_degree() -> None:
    x = np.zeros((2, fft.MAX_DEGREE))
    x[0, 1], x[1] = 1, np.random.default_rng(0).normal(size=fft.MAX_DEGREE)
    found = fft.to_slots(x)
    j = np.array([0, 1, 2, 12345, 65535])
    exponents = np.array([pow(5, int(i), 2 * fft.MAX_DEGREE) for i in j])
    assert abs(found[0, j] - np.exp(1j * np.pi * exponents / fft.MAX_DEGREE)).max() < 1e-15
    near(fft.from_slots(found), x)


@pytest.mark.parametrize("n", [8, 2048])
def test_products_and_rotations_act_on_slots(n: int) -> None:
    R = pg.Ring(n, pg.ntt_primes(n, bits=50, count=2))
    rng = np.random.default_rng(n)
    a, b = (R(rng.integers(-(2**15), 2**15, n)) for _ in range(2))
    x, y = (fft.to_slots(v.to_float64()) for v in (a, b))
    near(fft.to_slots((a * b).to_float64()), x * y)
    near(fft.to_slots(a.automorphism(5).to_float64()), np.roll(x, -1))
    near(fft.to_slots(a.automorphism(-1).to_float64()), x.conj())


def test_invalid_arguments_raise() -> None:
    for x, error, text in [
        ([1.0, 2.0], pg.errors.NotComplex, "x must be an array of float64, not list"),
        (np.ones(4, np.float32), pg.errors.NotComplex, "must be float64"),
        (np.ones(4, complex), pg.errors.NotComplex, "must be float64"),
        (np.ones(3), pg.ParameterError, "3 entries"),
        (np.ones(1), pg.ParameterError, "1 entries"),
        (np.float64(1), pg.errors.NotComplex, "x must be an array of float64, not float64"),
        (np.ones(0), pg.ParameterError, "0 entries"),
        (np.ones((1, 2 * fft.MAX_DEGREE)), pg.ParameterError, "to 131072"),
    ]:
        with pytest.raises(error, match=text):
            fft.to_slots(x)
    for z, error, text in [
        ([1j], pg.errors.NotComplex, "z must be an array of complex128, not list"),
        (np.ones(4), pg.errors.NotComplex, "z has dtype float64"),
        (np.ones(4, np.complex64), pg.errors.NotComplex, "must be complex128"),
        (np.ones(3, complex), pg.ParameterError, "3 slots"),
        (np.ones(0, complex), pg.ParameterError, "0 slots"),
        (np.ones(fft.MAX_DEGREE, complex), pg.ParameterError, "of at most 65536"),
    ]:
        with pytest.raises(error, match=text):
            fft.from_slots(z)


def test_results_share_no_memory() -> None:
    x = np.ones(8)
    assert not np.shares_memory(fft.from_slots(fft.to_slots(x)), x) and backend() is not None


# ---- slots modulo a prime ----


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize(
    ("n", "q"),
    [(2, 5), (4, 17), (64, 257), *((64, pg.ntt_primes(64, bits=bits)[0]) for bits in (32, 60, 64))],
)
def test_slots_modulo_a_prime_round_trip(device: str, n: int, q: int) -> None:
    """Slots are values at powers of the root; automorphism(5) rotates both rows to the left."""
    R = pg.Ring(n, q)
    a = R.random((2, 3), seed=1)
    (psi,) = R.roots
    exponents = [pow(5, j, 2 * n) for j in range(n // 2)]
    points = [pow(psi, e, q) for e in (*exponents, *(-e for e in exponents))]
    powers = np.array([[pow(x, i, q) for x in points] for i in range(n)], object)
    values = (a.to_bigints() @ powers % q).astype(np.uint64)
    for value in (a, a.ntt()):
        slots = value.to_slots()
        assert slots.shape == (2, 3, n) and slots.dtype == R.dtype and np.array_equal(host(slots), values)
        turned = np.roll(values.reshape(2, 3, 2, -1), -1, axis=-1).reshape(values.shape)
        assert np.array_equal(host(value.automorphism(5).to_slots()), turned)
        exchanged = np.roll(values, n // 2, axis=-1)
        assert np.array_equal(host(value.automorphism(-1).to_slots()), exchanged)
    for given in (values, values.tolist(), there(values), values.astype(object) - 3 * q):
        back = R.from_slots(given)
        assert back.domain == "eval" and back == a
    assert R.from_slots(np.zeros((0, n), int)).shape == R.zeros(0).to_slots().shape[:1] == (0,)


@on(*CARDS)
@pytest.mark.parametrize("n", [4, 1024])
def test_permutation_to_slots_is_one_launch(device: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index stays on the card, and the call can be captured."""
    work = Work(monkeypatch)
    R, Q = pg.Ring(n, pg.ntt_primes(n, bits=50)[0]), pg.Ring(n, pg.ntt_primes(n // 4, bits=30)[0])
    a, b = R.random((2, 3), seed=1).ntt(), Q.random(2, seed=1).ntt()
    values = a.to_slots()
    calls = (a.to_slots, a.natural_order, b.natural_order, lambda: R.from_slots(values))
    for call in calls:
        call()
        kernels, prepared, copies = work.of(call)
        assert kernels.count("take") == 1 and (prepared, copies) == (0, 0)
    assert pg.capture(lambda x: R.from_slots(x.automorphism(5).to_slots()), a)() == a.automorphism(5)


def test_rings_without_slots_raise() -> None:
    for R in (
        pg.Ring(4, [17, 41]),
        pg.Ring(4, 15),
        pg.Ring(4, 17, kind="cyclic"),
        pg.Ring(8, 41),
        pg.Ring(1, 17),
        pg.Ring(6, 37),
        pg.Ring(4, pg.ntt_primes(4, bits=80)),
    ):
        with pytest.raises(pg.NotNTTFriendly, match="which has no slots"):
            R.zeros().to_slots()
        with pytest.raises(pg.NotNTTFriendly, match="which has no slots"):
            R.from_slots([0] * R.n)
    R = pg.Ring(4, 17)
    for values, error in (
        ([1, 2, 3], pg.ParameterError),
        (3, pg.ParameterError),
        ([1.5, 2, 3, 4], pg.errors.CoefficientError),
        (R.zeros(), pg.errors.CoefficientError),
        ("1234", pg.errors.CoefficientError),
    ):
        with pytest.raises(error, match="values"):
            R.from_slots(values)
