"""Calls that come again: another shape, alignment, device, stream, thread or card meets no wrong record."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from devices import CARDS, HOST, agree, backend, noted_kernels, on, same, there
from oracle import drawn

import polygpu as pg
from polygpu import Poly, Ring, linalg
from polygpu.backends.cuda import launch, multiply

N = 16


def ring() -> Ring:
    """One of its own, whose calls have not come before."""
    return Ring(N, [97, 193])


def binary() -> list[Callable[[Poly, Poly], Poly]]:
    return [
        Poly.add,
        Poly.sub,
        Poly.mul,
        lambda a, b: a.ntt() * b.ntt(),
        lambda a, b: pg.dot(a.ntt(), b.ntt()),
    ]


def test_another_shape_is_another_call(device: str) -> None:
    R = ring()
    for batch in ((2,), (3,), (2,), (1, 3), (0,), (2, 1)):
        a, b = drawn(R, batch, 1), drawn(R, batch, 2)
        for c in (a, b):
            assert c.ntt().intt() == c and c.neg().neg() == c
        for other in (b, b[:1] if batch[0] else b):
            for compute in binary():
                found = [compute(a, other) for _ in range(3)]
                assert found[0] == found[1] == found[2]


@on(*CARDS)
def test_calls_that_come_again_are_those_of_the_cpu(device: str) -> None:
    R = ring()
    for batch in ((2,), (3,), (2,)):
        pair = drawn(R, batch, 1), drawn(R, batch, 2)
        for compute in binary():
            for _ in range(2):
                agree(compute, *pair)
                agree(compute, *pair[::-1])
        for unary in (Poly.neg, Poly.ntt, lambda a: a.ntt().intt(), lambda a: a * a):
            for _ in range(2):
                agree(unary, pair[0])


def unaligned(x: Poly) -> Poly:
    """The value one word after a multiple of 16 bytes."""
    xp = backend().xp
    room = xp.empty(x.data.size + 1, x.data.dtype)
    moved = room[1:].reshape(x.data.shape)
    moved[...] = x.data
    return x.ring.from_residues(moved, x.domain, copy=False)


@on(*CARDS)
def test_unaligned_operands_take_their_own_way(device: str) -> None:
    R = ring()
    a, b = (drawn(R, (3,), seed).to(pg.backends.current_device()) for seed in (1, 2))
    for compute in binary():
        expected = compute(a, b)
        for x, y in ((unaligned(a), b), (a, unaligned(b)), (unaligned(a), unaligned(b)), (a, b)):
            same(compute(x, y), expected.cpu())


@on(*CARDS)
def test_another_card_is_another_record(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R, compute = Ring(64, pg.ntt_primes(64, 50)), backend()
    a = drawn(R, (3,), 1)
    agree(Poly.ntt, a)
    names = noted_kernels(monkeypatch)
    monkeypatch.setattr(compute, "card", replace(compute.card, capability=(8, 9)))
    agree(Poly.ntt, a)
    assert any(name.startswith("ntt_forward<Lazy60") for name in names)  # no fast doubles


@on(*CARDS)
def test_streams_and_threads_share_records(device: str) -> None:
    R, xp, name = ring(), backend().xp, pg.backends.current_device()
    a, b = (drawn(R, (2,), seed).to(name) for seed in (1, 2))
    expected = {c: c(a, b).cpu() for c in binary()}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with xp.cuda.Device(int(name[5:])), xp.cuda.Stream(non_blocking=True) as stream:
                for compute, result in expected.items():
                    found = compute(a, b)
                    stream.synchronize()
                    same(found, result)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@on(*CARDS)
def test_records_are_bounded(device: str) -> None:
    R, compute = ring(), backend()
    for size in range(launch._RECORDS + 20):
        x = drawn(R, (size,), 1)
        agree(Poly.neg, x)
    assert len(R.basis.handles[compute._records_key]) <= launch._RECORDS
    assert len(R.basis.calls) <= 64


@on(*HOST)
def test_the_device_of_the_host_is_asked_each_time(device: str) -> None:
    R = ring()
    a = drawn(R, (2,), 1)
    for name in ("cpu", "reference", "cpu", "reference"):
        with pg.device(name):
            assert (a * a).device == name and (a + a).device == name
            assert (a * a).intt() == a * a


@on(*CARDS)
@pytest.mark.parametrize("q", [97, 2**31 - 1, 2**62 - 57])
def test_matrices_that_come_again(device: str, q: int) -> None:
    rng = np.random.default_rng(q)
    dtype = np.uint32 if q <= 1 << 32 else np.uint64
    for shape in ((5, 7, 6), (6, 7, 5), (5, 7, 6), (40, 33, 48)):
        for _ in range(3):
            a = rng.integers(0, q, shape[:2], dtype=dtype)
            b = rng.integers(0, q, shape[1:], dtype=dtype)
            expected = (a.astype(object) @ b.astype(object)) % q
            x, y = there(a), there(b)
            assert np.array_equal(linalg.matmul(x, y, q).get().astype(object), expected)
            transposed = linalg.matmul(y.T, x.T, q)  # of other strides
            assert np.array_equal(transposed.get().astype(object), expected.T)


@on("simulated")
def test_a_refused_launch_names_the_kernel(device: str) -> None:
    compute: Any = backend()
    one = launch.Launch("pointwise.cu", "permute<u32, false>", (1, 1), 2048, bytes(72))
    with pytest.raises(
        pg.DeviceError, match=r"cuda:1: permute<u32, false>: CUDA_ERROR_INVALID_VALUE, .*block"
    ):
        compute.launch(one)


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from devices import simulated

    with simulated():
        monkeypatch.setenv("POLYGPU_LIBCUDA", "/nowhere/libcuda.so.1")
        x = drawn(ring(), (2,), 1).to("cuda")
        with pytest.raises(pg.DeviceError, match=r"/nowhere/libcuda.so.1 does not load.*POLYGPU_LIBCUDA="):
            x.ntt()


@on(*CARDS)
@pytest.mark.parametrize("options", [{"product": "ntt"}, {"product": "fft"}])
def test_products_in_many_chunks_take_the_memory_of_one(
    device: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    R = Ring(20, 2**32, **options)
    a, b = drawn(R, (30,), 1), drawn(R, (30,), 2)
    monkeypatch.setattr(multiply, "_CHUNK_BYTES", 1 << 11)
    monkeypatch.setattr(multiply, "fft_tile", lambda plan, card: None)
    monkeypatch.setattr(multiply, "product_passes", lambda *sizes: ())  # of several launches
    agree(Poly.mul, a, b)
    plan = R.product_plan("auto", pg.backends.current_device())
    records = plan.handles[backend()._records_key]
    (prepared,) = [record for key, record in records.items() if key[0] == "product"]
    assert len(prepared.temporaries) <= 8 and sum(prepared.temporaries) <= 8 << 11
