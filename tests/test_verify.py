"""Products inside `with pg.verify()`: right ones pass, and planted errors are found everywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from devices import HOST, on, there
from hypothesis import given
from hypothesis import strategies as st
from oracle import DOMAINS, FEW, RINGS, check, draw, every_ring, in_domain, ring, times

import polygpu as pg
from polygpu import Poly, Ring, linalg, ntt_primes
from polygpu import _backends as backends
from polygpu._backends import Array
from polygpu._core.plans import cache as plan_cache
from polygpu._ops import verify
from polygpu.testing import polys, rings

# ---- right products pass, and are those computed without a check ----


@every_ring
def test_right_products_pass(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (), 2)
    with pg.verify():
        check(R(x) * R(y), times(R, x, y))
        check(R(y) * R(x), times(R, x, y))
        check(R(x) * R(x), times(R, x, x))
        if R.has_eval:
            check(R(x).ntt() * R(y), times(R, x, y), "eval")
        check(R(x) ** 3, times(R, x, times(R, x, x)))
        check(pg.fma(R(x), R(y), 1), R(times(R, x, y)).add(1).to_bigints())
        check(pg.dot(R(x), R(y)), R(times(R, x, y)).sum().to_bigints())


@given(data=st.data())
def test_right_products_of_random_rings_pass(data: Any) -> None:
    R = data.draw(rings(max_degree=300))
    a, b = data.draw(polys(R)), data.draw(polys(R, batch=()))
    expected, product = a * b, data.draw(st.sampled_from(["auto", "ntt"]))
    with pg.verify():
        assert a * b == expected
        assert a.intt().mul(b.intt(), product=product) == expected


@on(*HOST, "simulated", "cuda")
@pytest.mark.parametrize("domains", DOMAINS)
def test_right_products_in_place_pass(device: str, domains: tuple[str, str, str]) -> None:
    R = Ring(16, ntt_primes(16, bits=30, count=2))
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    with pg.verify():
        a, b = in_domain(R(x), domains[0]), in_domain(R(y), domains[1])
        a.mul(b, out=a)
        check(a, times(R, x, y), domains[2])
        a, b = in_domain(R(x), domains[0]), in_domain(R(y), domains[1])
        pg.fma(a, b, a, out=b)
        check(b, R(times(R, x, y)).add(R(x)).to_bigints(), domains[2])


@on(*HOST, "simulated", "cuda")
@pytest.mark.parametrize("q", [2, 97, 2**31, 2**32, 10**9, 2**61 - 1, 2**62])
def test_right_matrix_products_pass(device: str, q: int) -> None:
    rng = np.random.default_rng(q)
    a, b = rng.integers(0, 2**62, (3, 4, 5)), rng.integers(0, 2**62, (5, 6))
    c = (a.astype(object) @ b.astype(object)) % q
    with pg.verify():
        found = linalg.matmul(there(a), there(b), q=q)
        assert backends.backend().to_host(found).tolist() == c.tolist()
        assert linalg.matmul(there(a[:, :, :0]), there(b[:0]), q=q).any() == False  # noqa: E712
        assert linalg.matmul([1, 2], [3, 4], q=q) == 11 % q


# ---- planted errors ----


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes one number of what a method of the device's backend writes."""

    def plant(method: str, index: int, above: int = 0) -> None:
        compute = type(backends.backend())
        right = getattr(compute, method)

        def wrong(self: Any, parameters: Any, *arrays: Any) -> None:  # and gives no call to repeat
            right(self, parameters, *arrays)
            out = arrays[-1]
            if out.size > above:
                flat = self.to_host(out).copy().reshape(-1)
                flat[index % flat.size] ^= 1
                out[...] = self.from_host(flat.reshape(out.shape))

        monkeypatch.setattr(compute, method, wrong)

    return plant


def fresh(name: str) -> Ring:
    """The ring anew, which keeps no calls to repeat."""
    R = ring(name)
    plan_cache.forget()
    return Ring(R.n, R.moduli, kind=R.kind)


CORRUPT = [
    "30 bits",
    "60 bits",
    "RNS of 3 words",
    "64 bits",
    "ML-KEM",
    "wide prime, 100 bits",
    "composite",
    "q = 3",
    "degree 12",
    "2^64",
    "2^128",
    "wide composite",
    "RNS of mixed moduli",
]


@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize("name", CORRUPT)
@on("cpu", "reference", "simulated", "cuda")
def test_wrong_products_of_coefficients_raise(
    device: str, name: str, index: int, planted: Callable[..., None]
) -> None:
    R = fresh(name)
    if R._plan.basis.wide and device.startswith("cuda"):
        pytest.skip("computed on the host")
    a, b = R(draw(R, (2,), 1)), R(draw(R, (2,), 2))
    planted("multiply", index)
    a * b  # outside of verify() nothing is checked
    with pg.verify(), pytest.raises(pg.errors.VerificationError, match=r"product a \* b .*reference"):
        a * b


@pytest.mark.parametrize("name", ["30 bits", "RNS of 3 words", "ML-KEM", "Goldilocks cyclic"])
@on("cpu", "reference", "simulated", "cuda")
def test_wrong_products_of_evaluated_operands_raise(
    device: str, name: str, planted: Callable[..., None]
) -> None:
    R = fresh(name)
    a, b = (R(draw(R, (2,), seed)).ntt() for seed in (1, 2))
    planted("multiply_eval", 3)
    with pg.verify(), pytest.raises(pg.errors.VerificationError):
        a * b
    with pg.verify(), pytest.raises(pg.errors.VerificationError):
        pg.fma(a, b, a)
    with pg.verify(), pytest.raises(pg.errors.VerificationError):
        a**3


@on("cpu", "reference", "simulated", "cuda")
def test_wrong_sums_of_products_raise(device: str, planted: Callable[..., None]) -> None:
    R = Ring(8, ntt_primes(8, bits=30, count=2))
    a, b = (R(draw(R, (2, 2), seed)) for seed in (1, 2))
    pg.matmul(a, b)  # a repeated call is checked too
    with pg.verify():
        assert pg.matmul(a, b) == pg.matmul(a, b)
    planted("matmul_points", 5)
    for compute in (lambda: a @ b, lambda: pg.dot(a, b), lambda: pg.einsum("ij,kj->ik", a, b)):
        with (
            pg.verify(),
            pytest.raises(pg.errors.VerificationError, match=r"product of matrices .*reference"),
        ):
            compute()


@pytest.mark.parametrize("q", [2, 97, 2**32, 10**9 + 7, 2**62])
@on("cpu", "reference", "simulated", "cuda")
def test_wrong_matrix_products_raise(device: str, q: int, planted: Callable[..., None]) -> None:
    rng = np.random.default_rng(q)
    a, b = rng.integers(0, q, (60, 5)), rng.integers(0, q, (5, 60))
    planted("matmul", 1234, above=60 * 40)  # the product, and not the check
    with pg.verify(), pytest.raises(pg.errors.VerificationError, match=f"modulo \\[{q}\\]"):
        linalg.matmul(there(a), there(b), q=q)


def test_wrong_result_of_a_repeated_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    R = Ring(64, ntt_primes(64, bits=30)[0])
    a = R.random(seed=1)
    for _ in range(3):
        a * a
    wrong = {key: lambda operands, out: np.ones_like(operands[0]) for key in R._plan.calls}
    monkeypatch.setitem(R._plan.__dict__, "calls", wrong)
    assert (a * a).data.tolist() == [[1] * 64]
    with pg.verify(), pytest.raises(pg.errors.VerificationError):
        a * a


# ---- the check itself ----


def test_number_of_random_points() -> None:
    for n, q in ((2, 11), (256, 3329), (4096, 2**30), (4096, 2**60), (2**20, 2**22 + 1), (1, 5)):
        t = verify._points_needed(n, q)
        assert (n - 1) ** t * 2**40 <= q**t and (t == 1 or (n - 1) ** (t - 1) * 2**40 > q ** (t - 1))
        assert t <= 20


@pytest.mark.parametrize("name", ["30 bits", "50 bits cyclic", "RNS of 3", "wide prime, 100 bits", "64 bits"])
def test_check_finds_the_first_wrong_row(name: str) -> None:
    """The core and the reference agree on right, wrong and broadcast products."""
    R, rng = ring(name), np.random.default_rng(1)
    a, b = R(draw(R, (3, 2), 1)), R(draw(R, (2,), 2))
    c: Array = (a * b).data
    limbs = len(R.moduli)
    points = np.stack([rng.integers(1, min(q, 2**63), 5) for q in R.moduli]).astype(R.dtype)
    if R._plan.basis.wide:
        points = np.concatenate([points, np.zeros((R.rows - 1, 5), R.dtype)])
    for row in (None, 0, 3 * limbs, 6 * limbs - 1):
        wrong = c.copy()
        if row is not None:
            wrong.reshape(6, limbs, -1, R.n)[row // limbs, row % limbs, 0, 2] ^= 1
            wrong.reshape(6, limbs, -1, R.n)[5, limbs - 1, 0, 0] ^= 1
        for device in ("reference", "cpu"):
            found = backends.get_backend(device).find_wrong_product(  # type: ignore[attr-defined]
                R._plan.basis, a.data, b.data, wrong, points, R._plan.quotient
            )
            assert found == (-1 if row is None else row)


def test_verify_applies_to_one_thread(planted: Callable[..., None]) -> None:
    R = Ring(64, ntt_primes(64, bits=50)[0])
    a = R.random(seed=1)
    found: list[Any] = []
    planted("multiply", 0)

    def other() -> None:
        found.append(a * a)

    with pg.verify():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(pg.errors.VerificationError):
            a * a
    assert isinstance(found[0], Poly)
    a * a  # the setting ends with the block, after an error too


def test_error_names_the_batch_element(planted: Callable[..., None]) -> None:
    planted("multiply", 4 * 64 + 7)
    for R in (Ring(64, ntt_primes(64, bits=50)[0]), Ring(64, ntt_primes(64, bits=60)[0], kind="cyclic")):
        a = R.random((2, 3), seed=1)
        with pg.verify(), pytest.raises(pg.errors.VerificationError, match=r"batch element \(1, 1\)"):
            a * a


def test_corrupted_rings_cover_the_tested_rings() -> None:
    assert set(CORRUPT) <= set(RINGS) and len(set(FEW) & set(CORRUPT)) >= 5
