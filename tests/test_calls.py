"""Repeated calls: a cached call is not used for another shape, alignment, device, stream, thread or card."""

import gc
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from fractions import Fraction
from functools import partial
from threading import Barrier
from typing import Any
from weakref import ref

import numpy as np
import pytest
from devices import (
    CARDS,
    HOST,
    agree,
    backend,
    host,
    in_threads,
    noted_kernels,
    on,
    product_plan,
    same,
    there,
)
from oracle import as_key, drawn

import polygpu as pg
from polygpu import Poly, Ring, lattice, linalg
from polygpu._backends.cuda import launch, multiply
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.basis import basis_of
from polygpu._core.plans.cache import Calls
from polygpu._ops import calls, pointwise, transform
from polygpu._ops import multiply as multiplication

N = 16


def ring() -> Ring:
    """A ring of its own: none of its calls has come before."""
    return Ring(N, [97, 193])


def binary() -> list[Callable[[Poly, Poly], Poly]]:
    return [
        Poly.add,
        Poly.sub,
        Poly.mul,
        lambda a, b: a.ntt() * b.ntt(),
        lambda a, b: pg.dot(a.ntt(), b.ntt()),
    ]


def test_repeated_calls_with_other_shapes(device: str) -> None:
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
def test_repeated_calls_match_the_cpu(device: str) -> None:
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
    return x.ring.from_residues(moved, domain=x.domain, copy=False)


@on(*CARDS)
def test_repeated_calls_with_unaligned_operands(device: str) -> None:
    R = ring()
    a, b = (drawn(R, (3,), seed).to(pg._backends.current_device()) for seed in (1, 2))
    for compute in binary():
        expected = compute(a, b)
        for x, y in ((unaligned(a), b), (a, unaligned(b)), (unaligned(a), unaligned(b)), (a, b)):
            same(compute(x, y), expected.cpu())


# ---- with out= ----

INTO: dict[str, Callable[..., Poly]] = {
    "add": lambda a, b, out: a.add(b, out=out),
    "sub": lambda a, b, out: a.sub(b, out=out),
    "neg": lambda a, b, out: a.neg(out=out),
    "mul": lambda a, b, out: a.mul(b, out=out),
    "mul eval": lambda a, b, out: a.ntt().mul(b.ntt(), out=out),
    "ntt": lambda a, b, out: a.ntt(out=out),
    "intt": lambda a, b, out: a.ntt().intt(out=out),
}
SLOW = ("cpu", *CARDS)


def expected_of(name: str, a: Poly, b: Poly) -> Poly:
    """The result in Python integers, by the reference, which keeps no calls."""
    with pg.device("reference"):
        a, b = (Ring(N, x.ring.moduli).from_residues(x.cpu().data) for x in (a, b))
        return INTO[name](a, b, (a + b).copy())


def filled(R: Ring, batch: tuple[int, ...], domain: Any = "coef") -> Poly:
    return R.from_residues(there(np.full((*batch, R.rows, N), 96, R.dtype)), domain=domain, copy=False)


def holds(found: Poly, out: Poly, expected: Poly) -> None:
    assert found is out and found.domain == expected.domain
    np.testing.assert_array_equal(host(found.data), expected.data)


@on(*SLOW)
@pytest.mark.parametrize("name", INTO)
def test_repeated_calls_with_out(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call is right without the long path, and so are calls without `out` and calls in place."""
    R = ring()
    a, b, c, d = (drawn(R, (2,), seed).to() for seed in (1, 2, 3, 4))
    x, y = (c, d) if "eval" not in name and name != "intt" else (c.ntt(), d.ntt())
    expected = expected_of(name, c, d)
    compute = INTO[name]
    for _ in range(2):  # operands of their own: in place they change
        first = (a, b) if "eval" not in name and name != "intt" else (a.ntt(), b.ntt())
        u, v = (z.copy() for z in first)
        holds(compute(u, v, out := filled(R, (2,))), out, expected_of(name, a, b))
        compute(u, v, u)
        if name in ("add", "sub", "mul", "mul eval"):
            first[0] + first[1], first[0] - first[1], first[0] * first[1]

    def refused(*_: Any) -> Any:
        raise AssertionError("the long way")

    for module in (pointwise, transform, multiplication):
        monkeypatch.setattr(module, "backend_for", refused)
    holds(compute(x, y, out := filled(R, (2,))), out, expected)
    whole = {"add": Poly.add, "sub": Poly.sub, "mul": Poly.mul, "mul eval": Poly.mul}.get(name)
    if whole is not None:
        assert np.array_equal(host(whole(x, y).data), expected.data)
    holds(compute(x, y, x), x, expected)


@on(*SLOW)
@pytest.mark.parametrize("name", INTO)
def test_repeated_calls_with_an_invalid_out_raise(device: str, name: str) -> None:
    R, other, wider = ring(), Ring(N, [97, 257]), Ring(2 * N, [193, 257])
    compute = INTO[name]
    a, b = (drawn(R, (2,), seed).to() for seed in (1, 2))
    x, y = (a, b) if "eval" not in name and name != "intt" else (a.ntt(), b.ntt())
    expected = expected_of(name, a, b)
    for _ in range(2):
        holds(compute(x, y, out := filled(R, (2,))), out, expected)
    # another ring, shape, kind of array
    for wrong in (filled(other, (2,)), wider.from_residues(there(np.zeros((2, 2, 2 * N), wider.dtype)))):
        with pytest.raises(pg.errors.OutputError, match="the result is in"):
            compute(x, y, wrong)
    for batch in ((3,), (1,), (2, 1), (), (1, 2)):
        with pytest.raises(pg.errors.OutputError, match="batch shape"):
            compute(x, y, filled(R, batch))
    with pytest.raises(pg.errors.OutputError, match="must be a Poly"):
        compute(x, y, x.data)
    # memory that overlaps an operand in part
    room = there(np.zeros((3, R.rows, N), R.dtype))
    for place in (slice(0, 2), slice(1, 3)):
        for operands in ((x, y), (y, x)):
            room[...] = 0
            inside = R.from_residues(room[place], domain=operands[0].domain, copy=False)
            inside.data[...] = operands[0].data
            shifted = R.from_residues(room[slice(1, 3) if place.start == 0 else slice(0, 2)], copy=False)
            pair = (inside, operands[1]) if operands[0] is x else (operands[1], inside)
            if name in ("neg", "ntt", "intt") and pair[0] is not inside:
                continue
            kept = host(room).copy()
            if name == "intt":  # a.ntt() is a itself there
                with pytest.raises(pg.errors.OutputError, match="overlaps an operand in part"):
                    inside.intt(out=shifted)
            else:
                with pytest.raises(pg.errors.OutputError, match="overlaps an operand in part"):
                    compute(*pair, shifted)
            assert np.array_equal(host(room), kept)
    # the same memory under another name is the operand itself
    again = R.from_residues(x.data[:], domain=x.domain, copy=False)
    holds(compute(x.copy(), y, out := filled(R, (2,))), out, expected)
    holds(compute(x, y, again), again, expected)


@on("cpu")
@pytest.mark.parametrize("name", INTO)
def test_repeated_calls_with_a_read_only_out_raise(device: str, name: str) -> None:
    R = ring()
    a, b = drawn(R, (2,), 1), drawn(R, (2,), 2)
    for _ in range(2):
        INTO[name](a, b, filled(R, (2,)))
    frozen = filled(R, (2,))
    frozen.data.setflags(write=False)
    with pytest.raises(pg.errors.OutputError, match="read-only"):
        INTO[name](a, b, frozen)
    assert (frozen.data == 96).all()


@on(*CARDS)
@pytest.mark.parametrize("name", INTO)
def test_repeated_calls_with_out_in_other_memory(device: str, name: str) -> None:
    """`out` is unaligned, in host memory, or was written on another stream or by other threads."""
    R, xp, at = ring(), backend().xp, pg._backends.current_device()
    compute = INTO[name]
    a, b = (drawn(R, (2,), seed).to(at) for seed in (1, 2))
    expected = expected_of(name, a, b)
    for _ in range(2):
        holds(compute(a, b, out := filled(R, (2,))), out, expected)
    odd = unaligned(filled(R, (2,)))
    holds(compute(a, b, odd), odd, expected)
    holds(compute(unaligned(a), b, out := filled(R, (2,))), out, expected)
    with pytest.raises(pg.errors.OutputError, match="operands are on"):
        compute(a, b, drawn(R, (2,), 3).cpu())

    def work() -> None:
        with xp.cuda.Device(int(at[5:])), pg.device(at), xp.cuda.Stream(non_blocking=True) as stream:
            found = compute(a, b, out := filled(R, (2,)))
            stream.synchronize()
            holds(found, out, expected)

    in_threads([work] * 3)


@on(*SLOW)
def test_ntt_of_evaluated_values_copies_into_out(device: str) -> None:
    """ntt(out=) of evaluated values only copies, although a transform with the same key was cached."""
    R = ring()
    a = drawn(R, (2,), 1).to()
    e = a.ntt()
    for _ in range(2):
        a.ntt(out=filled(R, (2,)))
        e.intt(out=filled(R, (2,)))
    out = filled(R, (2,))
    assert np.array_equal(host(e.ntt(out=out).data), host(e.data)) and out.domain == "eval"
    assert np.array_equal(host(a.intt(out=out).data), host(a.data)) and out.domain == "coef"


@on("cpu")
def test_product_by_one_polynomial_in_place(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R, way, taken = Ring(8, 12289), multiplication._multiply_by_matrix, list[bool]()
    monkeypatch.setattr(
        multiplication, "_multiply_by_matrix", lambda *args: (taken.append(True), way(*args))[1]
    )
    many, one = drawn(R, (1 << 13,), 1), drawn(R, (), 2)
    expected = many * one
    for _ in range(2):
        in_place = many.copy()
        in_place.mul(one, out=in_place)
        assert in_place == expected == many * one
        assert len(taken) == 1


@on(*CARDS)
def test_cached_calls_depend_on_the_card(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R, compute = Ring(64, pg.ntt_primes(64, bits=50)), backend()
    a = drawn(R, (3,), 1)
    agree(Poly.ntt, a)
    names = noted_kernels(monkeypatch)
    monkeypatch.setattr(compute, "card", replace(compute.card, capability=(8, 9)))
    agree(Poly.ntt, a)
    assert any(name.startswith("ntt_forward<Lazy60") for name in names)  # no fast doubles


@on(*CARDS)
def test_streams_and_threads_share_cached_calls(device: str) -> None:
    R, xp, name = ring(), backend().xp, pg._backends.current_device()
    a, b = (drawn(R, (2,), seed).to(name) for seed in (1, 2))
    expected = {c: c(a, b).cpu() for c in binary()}

    def work() -> None:
        with xp.cuda.Device(int(name[5:])), xp.cuda.Stream(non_blocking=True) as stream:
            for compute, result in expected.items():
                found = compute(a, b)
                stream.synchronize()
                same(found, result)

    in_threads([work] * 4)


@on(*CARDS)
def test_cuda_graph_of_a_repeated_call_takes_new_addresses(device: str) -> None:
    """Launches became one graph on several streams; calls with and without `out` and in threads."""
    R, xp, at = Ring(N, [97, 193, 257]), backend().xp, pg._backends.current_device()
    values = [drawn(R, (2,), seed).to(at).ntt() for seed in range(3)]
    with pg.device("reference"):
        expected = [R.from_residues(host(a.data), domain="eval").rescale() for a in values]
    kept: list[tuple[Poly, Poly]] = []

    def work() -> None:
        with xp.cuda.Device(int(at[5:])), xp.cuda.Stream(non_blocking=True) as stream:
            for i in range(8):
                found = values[i % 3].rescale()
                kept.append((found, expected[i % 3]))
                if i % 2:
                    kept.append((values[i % 3].rescale(out=found.copy()), expected[i % 3]))
            stream.synchronize()

    def on_the_default_stream() -> None:
        kept.extend((a.rescale(), value) for a, value in zip(values, expected, strict=True))

    for _ in range(6):
        work()
    in_threads([work] * 3)
    on_the_default_stream()
    on_the_default_stream()
    for _ in range(3):  # threads that have not worked on the card before
        in_threads([partial(copy_context().run, on_the_default_stream) for _ in range(2)])
    for found, value in kept:
        same(found, value)


@on(*CARDS)
def test_repeated_calls_with_many_batch_axes(device: str) -> None:
    R = ring()
    deep, flat = drawn(R, (2, 1, 1, 1, 1, 1, 2), 1), drawn(R, (2,), 2)
    for _ in range(3):
        for compute in (Poly.add, Poly.sub, Poly.mul, lambda a, b: a.ntt() * b.ntt()):
            agree(compute, deep, flat)
            agree(compute, flat, deep)
        agree(lambda a: a.ntt() + 5, deep)
        agree(lambda a: a.scale_by(limbs=[3, 4]), deep)


@on(*CARDS)
def test_threads_compiling_one_kernel_share_it(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached call holds only a handle, so the kernel to which the handle belongs must stay alive."""
    R, module = Ring(2 * N, [193, 257]), backend().xp.RawModule
    a, together = drawn(R, (5,), 1).to(), Barrier(2)
    monkeypatch.setattr(backend(), "_kernels", {})

    def late(**source: Any) -> Any:
        together.wait(20)
        return module(**source)

    monkeypatch.setattr(backend().xp, "RawModule", late)
    in_threads([partial(copy_context().run, a.neg) for _ in range(2)])
    monkeypatch.setattr(backend().xp, "RawModule", module)
    gc.collect()
    agree(Poly.neg, a.cpu())


@on("simulated")
def test_device_properties_are_queried_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of the properties takes a millisecond."""
    name, runtime = pg._backends.current_device(), backend().xp.cuda.runtime
    x = drawn(ring(), (2,), 1).to(name)
    monkeypatch.delattr(runtime, "getDeviceProperties")
    for _ in range(2):
        with pg.device(name):
            assert (x.cpu().to(name) + x).device == name


@on(*CARDS)
def test_cached_calls_are_bounded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "_MOST_BYTES", 20 * Calls._LEAST_BYTES)
    R, compute = Ring(N, [97, 353]), backend()
    for size in range(40):
        x = drawn(R, (size,), 1)
        agree(Poly.neg, x)
    for known in (R._plan.basis.calls, R._plan.basis.handles[compute._records_key]):
        assert 0 < len(known) <= 20 and known.keys() == known._sizes.keys()


@on(*HOST)
def test_repeated_calls_follow_the_current_host_device(device: str) -> None:
    R = ring()
    a = drawn(R, (2,), 1)
    for name in ("cpu", "reference", "cpu", "reference"):
        with pg.device(name):
            assert (a * a).device == name and (a + a).device == name
            assert (a * a).intt() == a * a


@on(*CARDS)
@pytest.mark.parametrize("q", [97, 2**31 - 1, 2**62 - 57])
def test_repeated_matmul(device: str, q: int) -> None:
    rng = np.random.default_rng(q)
    dtype = np.uint32 if q <= 1 << 32 else np.uint64
    for shape in ((5, 7, 6), (6, 7, 5), (5, 7, 6), (40, 33, 48)):
        for _ in range(3):
            a = rng.integers(0, q, shape[:2], dtype=dtype)
            b = rng.integers(0, q, shape[1:], dtype=dtype)
            expected = (a.astype(object) @ b.astype(object)) % q
            x, y = there(a), there(b)
            assert np.array_equal(linalg.matmul(x, y, q=q).get().astype(object), expected)
            transposed = linalg.matmul(y.T, x.T, q=q)  # of other strides
            assert np.array_equal(transposed.get().astype(object), expected.T)


@on("simulated")
def test_failed_launch_names_the_kernel(device: str) -> None:
    compute: Any = backend()
    one = launch.Launch("pointwise.cu", "permute<u32, false, 1>", (1, 1), 2048, bytes(80))
    with pytest.raises(
        pg.DeviceError, match=r"cuda:1 failed with permute<u32, false, 1>: CUDA_ERROR_INVALID_VALUE, .*block"
    ):
        compute.launch(one)


def test_missing_cuda_driver_raises() -> None:
    from devices import simulated

    with simulated(), pytest.MonkeyPatch.context() as patch:  # undone before the simulation ends
        patch.setenv("POLYGPU_LIBCUDA", "/nowhere/libcuda.so.1")
        x = drawn(ring(), (2,), 1).to("cuda")
        with pytest.raises(pg.DeviceError, match=r"/nowhere/libcuda.so.1 does not load.*POLYGPU_LIBCUDA="):
            x.ntt()


@on(*CARDS)
@pytest.mark.parametrize("options", [{"product": "ntt"}, {"product": "fft"}])
def test_products_in_chunks_reuse_one_workspace(
    device: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    R = Ring(20, 2**32, **options)
    a, b = drawn(R, (30,), 1), drawn(R, (30,), 2)
    monkeypatch.setattr(multiply, "_CHUNK_BYTES", 1 << 11)
    monkeypatch.setattr(multiply, "fft_tile", lambda plan, card: None)
    monkeypatch.setattr(multiply, "product_passes", lambda *sizes: ())  # several launches a product
    agree(Poly.mul, a, b)
    plan = product_plan(R, "auto", pg._backends.current_device())
    records = plan.handles[backend()._records_key]
    (prepared,) = [record for key, record in records.items() if key[0] == "product"]
    assert len(prepared.temporaries) <= 8 and sum(prepared.temporaries) <= 8 << 11


# ---- what has no record, or no other call's ----


@pytest.mark.parametrize("step", [1, 10**20])
def test_repeated_calls_with_wide_moduli(step: int) -> None:
    """Calls modulo wide primes are computed in Python and are not cached."""
    wide, small, rns = Ring(8, (1 << 100) + 277), Ring(8, 97), Ring(8, pg.ntt_primes(8, bits=60, count=3))
    for i in (1, 2, 3):
        x = i * step
        assert wide([x]).convert(small).tolist()[0] == x % 97
        assert wide([x]).convert(rns).tolist()[0] == x
        assert rns([x, 5]).convert(wide).tolist()[:2] == [x, 5]
        assert wide([x]).convert(Ring(8, (1 << 90) + 1)).tolist()[0] == x


def test_repeated_dot_of_mixed_domains_modulo_a_wide_prime() -> None:
    q = next(q for q in range((1 << 70) + 1, 1 << 80, 16) if pg.is_prime(q))
    R = Ring(8, q)
    for i in (1, 2, 3):
        a, b = R([[i, 2], [3, i]]), R([[5, i], [i, 7]])
        expected = a[0] * b[0] + a[1] * b[1]
        for x, y in ((a.ntt(), b), (a, b.ntt()), (a.ntt(), b.ntt()), (a, b)):
            assert pg.dot(x, y) == pg.einsum("i,i->", x, y) == x @ y == expected


@on(*SLOW)
def test_calls_with_empty_operands_are_not_cached(device: str) -> None:
    """Empty operands may have the address of other operands."""
    R = Ring(N, pg.ntt_primes(N, bits=50, count=2))
    x, y = drawn(R, (3,), 1).to(), drawn(R, (3,), 2).to()
    for _ in range(2):
        assert pg.concatenate([x, x[:0]]) == x
        assert pg.einsum("k,i->k", x, x[:0]) == R.zeros((3,)).to(x.device)
    assert pg.concatenate([y, R.zeros((0,)).to(x.device)]) == y
    assert pg.einsum("k,i->k", y, y[:1]) == y * y[0]
    empty = x[:0]
    for _ in range(3):
        assert pg.dot(empty, empty) == 0 and (empty + empty).shape == (0,)
    assert pg.capture(lambda v: pg.dot(v, v), empty)() == 0


@on(*SLOW)
def test_repeated_matmul_with_an_out_that_does_not_fit(device: str) -> None:
    """The second call raises the same error as the first one."""
    xp, q = backend().xp, 2**61 - 1
    a = xp.arange(16, dtype=np.uint64).reshape(4, 4)
    for _ in range(3):
        linalg.matmul(a, a, q=q)
        room = xp.zeros((4, 8), np.uint64)
        for out in (room[:, ::2], room[:, :4], room.reshape(8, 4)[3::-1], room.reshape(8, 4)[:4].T):
            with pytest.raises(pg.errors.OutputError, match="C-contiguous"):
                linalg.matmul(a, a, q=q, out=out)
        assert not room.any()
        with pg.verify():
            linalg.matmul(a, a, q=q)


@on("cpu", "simulated")
def test_matmul_is_cached_after_a_verified_call(device: str) -> None:
    a, q = there(np.arange(9, dtype=np.uint64).reshape(3, 3)), 2**59 + 11 * int(device == "cpu")
    basis = basis_of((q,))
    with pg.verify():
        linalg.matmul(a, a, q=q)
    assert not basis.calls
    linalg.matmul(a, a, q=q)
    assert len(basis.calls) == 1


class Mutable:
    """An integer that may change."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_repeated_calls_with_options_of_every_integer_type() -> None:
    """Options of equal values are equal, whatever their type. Other types than integers raise."""
    R = Ring(8, [97, 193, 257, 353])
    q = Ring(8, 2**32)
    a, c, v = R.random((3, 2), seed=1), q.random((3, 2), seed=2), R.random((2, 3), seed=3)
    verbs: dict[str, tuple[Callable[[Any], Any], tuple[int, int]]] = {
        "decompose": (lambda k: pg.lattice.decompose(c, bits=k, levels=2).data, (8, 4)),
        "levels": (lambda k: pg.lattice.decompose(c, bits=4, levels=k).data, (2, 3)),
        "sum": (lambda k: v.sum(k).data, (0, 1)),
        "dot": (lambda k: pg.dot(v, v, k).data, (0, 1)),
        "extract": (lambda k: pg.lattice.extract(c, k), (1, 2)),
        "digits": (lambda k: a.digits(R, limbs_per_digit=k).data, (1, 2)),
        "plaintext": (lambda k: a.mod_down(R[:2], plaintext=k).data, (3, 5)),
        "scale": (lambda k: pg.rns.scale(a, k, R[:2]).data, (3, 5)),
        "rescale": (lambda k: a.rescale(k).data, (1, 2)),
        "power": (lambda k: (a**k).data, (2, 3)),
        "automorphism": (lambda k: a.automorphism(k).data, (3, 5)),
    }
    for name, (verb, numbers) in verbs.items():
        expected = [verb(k) for k in numbers]
        holder = Mutable(0)
        for _ in range(2):
            for k, right in zip(numbers, expected, strict=True):
                holder.value = k
                for number in (
                    k,
                    np.int64(k),
                    np.array(k),
                    np.array(k, np.uint8),
                    holder,
                    type("I", (int,), {})(k),
                ):
                    np.testing.assert_array_equal(verb(number), right, err_msg=f"{name} {number!r}")
            for wrong in (
                True,
                float(numbers[0]),
                np.float64(numbers[0]),
                Fraction(numbers[0]),
                np.array(1.0),
            ):
                with pytest.raises(pg.PolyGPUError):
                    verb(wrong)


def test_cached_calls_do_not_keep_rings_alive() -> None:
    """A cached call does not keep its ring alive, and a new ring does not find calls of the old one."""
    R = ring()
    a = drawn(R, (2,), 1)
    before = len(R._plan.calls)
    for q in pg.ntt_primes(N, bits=40, count=30):
        S = Ring(N, q)
        with pg.device("reference"):
            expected = a.convert(S).tolist()
        for _ in range(2):
            assert a.convert(S).tolist() == expected
    plans = [ref(Ring(N, q)._plan) for q in pg.ntt_primes(N, bits=40, count=30)]
    assert len(R._plan.calls) > before
    del S
    R._plan.plans.clear()
    plan_cache.forget()
    gc.collect()
    assert not any(plan() for plan in plans) and len(R._plan.calls) == before


def test_cached_constants_are_bounded() -> None:
    """The memory of cached constants is bounded, and its size is not recounted for each new one."""
    known = Calls(100 * Calls._LEAST_BYTES)
    for i in range(1000):
        known.store(("number", i), i)
        assert len(known) == min(i + 1, 100) and known._total == sum(known._sizes.values())
    assert list(known.values()) == list(range(900, 1000)) and known.keys() == known._sizes.keys()
    known.drop(("number", 950))
    known.drop(("number", 1))
    assert len(known) == 99 and known._total == 99 * Calls._LEAST_BYTES


@on("cpu", *CARDS)
@pytest.mark.parametrize("shared_first", [True, False])
def test_repeated_calls_with_operands_that_share_memory(
    device: str, shared_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example c[1] and c. The cached call also serves operands that lie apart, and vice versa."""
    Q, P, observed, way = ring(), Ring(N, [257]), list[Any](), calls._observed
    monkeypatch.setattr(calls, "_observed", lambda *args: (observed.append(args[0]), way(*args))[1])
    verbs: list[Callable[[Poly, Poly, Poly], Poly]] = [
        lambda a, c, key: lattice.key_switch(a, as_key(key, 1, P), add=c),
        lambda a, c, key: pg.dot(c, c[::-1]),
        lambda a, c, key: pg.stack([a, c[1], c[0]]),
        lambda a, c, key: pg.fma(c, a, c[:1]),
    ]
    given = [drawn(Q, (2,), 2).ntt(), drawn(Q.join(P), (2, 2), 1).ntt()]
    c, key = (x.to() for x in given)
    for verb in verbs:
        with pg.device("reference"):
            c_host, key_host = (x.ring.from_residues(x.cpu().data, domain="eval") for x in given)
            expected = verb(c_host[1], c_host, key_host)
        observed.clear()
        for shared in (shared_first, not shared_first, shared_first, not shared_first):
            found = verb(c[1] if shared else c[1].copy(), c, key)
            np.testing.assert_array_equal(host(found.data), expected.data)
        assert len(observed) == len(set(observed))
