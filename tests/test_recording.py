"""Recorded calls on other arguments: the pointers of a graph's launches, and all that refuses."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from devices import CARDS, agree, backend, host, in_threads, on, over, same, there
from oracle import drawn
from test_poly import CAPTURED

import polygpu as pg
from polygpu import Poly, Ring
from polygpu.backends.cuda import graph

PLACES = ("cpu", *CARDS)
R = Ring(64, pg.ntt_primes(64, 50, 2))
BY_CUPY = "a kernel of CuPy's reads or writes|copies or fills an argument's memory"  # whichever CuPy takes


def pairs(ring: Ring = R, batch: tuple[int, ...] = (3,), count: int = 4) -> tuple[list[Poly], list[Poly]]:
    """Values on the host, and the same on the device."""
    with pg.device("cpu"):
        values = [drawn(ring, batch, seed).cpu() for seed in range(1, count + 1)]
    return values, [x.to(pg.backends.current_device()).copy() for x in values]


def equals(found: Poly, expected: Poly) -> None:
    assert (found.ring, found.domain, found.shape) == (expected.ring, expected.domain, expected.shape)
    np.testing.assert_array_equal(host(found.data), expected.data)


@over(CAPTURED, ["30 bits", "50 bits, RNS", "incomplete", "auxiliary primes", "by FFT"], devices=PLACES)
def test_a_recording_takes_other_values(name: str) -> None:
    ring = CAPTURED[name]

    def compute(x: Poly, y: Poly) -> Any:
        both = x * y, x * x - y, -(x + y), x * 5
        return (*both, x.ntt(), x.ntt() * y.ntt(), y.ntt().intt()) if ring.has_eval else both

    (a, b, c, d), (x, y, z, w) = pairs(ring)
    recorded = pg.capture(compute, x, y, rebind=True)
    for values, others in (((a, b), ()), ((c, d), (z, w)), ((c, d), ()), ((b, a), (y, x)), ((a, d), (x, w))):
        with pg.device("cpu"):
            expected = compute(*values)
        for found, right in zip(recorded(*others), expected, strict=True):
            equals(found, right)
    for value, kept in zip((x, y, z, w), (a, b, c, d), strict=True):
        equals(value, kept)
    z.neg(out=z)  # what they hold then
    with pg.device("cpu"):
        expected = compute(-c, b)
    for found, right in zip(recorded(z, y), expected, strict=True):
        equals(found, right)


@on(*PLACES)
def test_parts_and_places_within_an_argument(device: str) -> None:
    """Pointers behind the beginning of an array keep their distance from it."""

    def compute(x: Poly, y: Poly) -> Any:
        return {"dot": [x[1] * y[2]], "out": x[2].mul(y[0], out=y[1]), "n": 7, "none": None}

    (a, b, c, d), (x, y, z, w) = pairs()
    if device == "cpu":
        assert pg.capture(compute, x, y, rebind=True)(z, w)["dot"][0] == c[1] * d[2]
        return
    with pytest.raises(pg.ParameterError, match="f returns a part of argument 1"):
        pg.capture(compute, x, y, rebind=True)

    def without(x: Poly, y: Poly) -> Any:
        return {key: value for key, value in compute(x, y).items() if key != "out"}

    y.data[...] = there(b.data)
    recorded = pg.capture(without, x, y, rebind=True)
    found = recorded(z, w)
    equals(found["dot"][0], c[1] * d[2])
    assert found["n"] == 7 and found["none"] is None
    equals(w[1], c[2] * d[0])
    equals(y[1], a[2] * b[0])  # of the recording itself
    y.data[...] = there(b.data)
    recorded(w, z)
    equals(y, b)


@on(*PLACES)
def test_results_in_arguments(device: str) -> None:
    """out= of an argument: the new one is written and returned, the recorded one is left alone."""

    def compute(x: Poly, y: Poly, out: Poly, times: int) -> tuple[Poly, Poly]:
        return x.mul(y, out=out), out + times * x

    (a, b, c, d), (x, y, z, w) = pairs()
    first, second = x.copy(), x.copy()
    recorded = pg.capture(compute, x, y, first, 3, rebind=True)
    assert recorded()[0] is first
    equals(first, a * b)
    found = recorded(z, w, second, 3)
    assert found[0] is second
    equals(second, c * d)
    equals(found[1], c * d + 3 * c)
    equals(first, a * b)
    if device != "cpu":
        assert recorded(x, w, first, 3)[1] is found[1]  # overwritten
        equals(found[1], a * d + 3 * a)
    for times in (4, 3.0, True):
        with pytest.raises(pg.ParameterError, match="argument 3: only a Poly"):
            recorded(x, y, first, times)


@on(*PLACES)
def test_what_does_not_fit_is_refused(device: str) -> None:
    (a, b, *_), (x, y, *_) = pairs()
    recorded = pg.capture(lambda x, y: x * y, x, y, rebind=True)
    other = Ring(64, pg.ntt_primes(64, 49, 2)).zeros((3,)).to(x.device)
    for wrong, error, text in (
        ((x,), pg.ParameterError, "1 arguments, recorded with 2"),
        ((x, 3), pg.ParameterError, "argument 1: int, recorded with a Poly"),
        ((other, y), pg.RingMismatch, "argument 0: of .*, recorded with"),
        ((x, y[:2]), pg.ParameterError, r"argument 1: batch shape \(2,\), recorded with \(3,\)"),
        ((x, y.reshape(1, 3)), pg.ParameterError, "argument 1: batch shape"),
        ((x.ntt(), y), pg.ParameterError, r"argument 0: domain 'eval', recorded with 'coef'; use intt\(\)"),
    ):
        with pytest.raises(error, match=text):
            recorded(*wrong)
    if device != "cpu":
        with pytest.raises(pg.DeviceError, match="argument 1: on cpu, recorded on cuda"):
            recorded(x, b)
    equals(recorded(y, x), a * b)
    with pytest.raises(pg.ParameterError, match="no Poly"):
        pg.capture(lambda x: x, 3, rebind=True)


@on(*CARDS)
def test_memory_is_shared_as_it_was_recorded(device: str) -> None:
    (a, b, *_), (x, y, *_) = pairs()
    two = pg.capture(lambda x, y: x * y, x, y, rebind=True)
    same_twice = pg.capture(lambda x, y: x * y, x, x, rebind=True)
    equals(same_twice(y, y), b * b)
    for recorded, wrong in ((two, (x, x)), (same_twice, (x, y))):
        with pytest.raises(pg.ParameterError, match="share memory in another way"):
            recorded(*wrong)
    room = R.from_residues(there(np.zeros((4, 2, 64), np.uint64)), copy=False)
    with pytest.raises(pg.ParameterError, match="overlap in part"):
        two(room[:3], room[1:])
    for args in ((room[:3], x), (x, room[1:])):
        with pytest.raises(pg.ParameterError, match="a part of a larger array"):
            pg.capture(lambda x, y: x * y, *args, rebind=True)
    room.data[:3] = there(a.data)
    equals(two(room[:3], y), a * b)  # a part may take a place
    result = two(x, y)
    for args in ((result, y), (x, result.reshape(3))):
        with pytest.raises(pg.ParameterError, match="shares memory with the result"):
            two(*args)
    hidden: list[Poly] = []

    def leaks(x: Poly) -> Poly:
        hidden.clear()  # before there is no memory to be had
        hidden.append(x + x)
        return hidden[-1] * x

    recorded = pg.capture(leaks, x, rebind=True)
    with pytest.raises(pg.ParameterError, match="argument 0: lies in memory of the recording"):
        recorded(hidden[-1])
    equals(recorded(y), (b + b) * b)


@on(*CARDS)
def test_alignment_is_kept(device: str) -> None:
    (_, b, *_), (x, y, *_) = pairs()
    recorded = pg.capture(lambda x: x * x, x, rebind=True)
    data = backend().xp.empty(y.data.size + 1, y.data.dtype)[1:].reshape(y.data.shape)
    data[...] = y.data
    odd = R.from_residues(data, copy=False)
    with pytest.raises(
        pg.ParameterError, match=r"argument 0: its memory begins at .*, must be a multiple of 16"
    ):
        recorded(odd)
    equals(recorded(odd.copy()), b * b)


@on(*CARDS)
@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda x: x.data + x.data, "a kernel of CuPy's reads or writes an argument"),
        (lambda x: pg.stack([x, x]), BY_CUPY),
        (lambda x: x.copy(), BY_CUPY),
        (lambda x: (x.data.fill(0), x + x)[1], BY_CUPY),
        (lambda x: (x.data.__setitem__(0, x.data[1]), x + x)[1], BY_CUPY),
        (lambda x: (x.reshape(3, 1), x + x), "f returns a part of argument 0"),
        (lambda x: SimpleNamespace(y=x + x), "f returns a SimpleNamespace"),
    ],
)
def test_work_that_cannot_be_moved_is_refused(device: str, compute: Callable[..., Any], text: str) -> None:
    _, (x, *_) = pairs()
    with pytest.raises(pg.ParameterError, match=text):
        pg.capture(compute, x, rebind=True)
    pg.capture(compute, x.copy())


@on(*CARDS)
def test_an_error_of_f_ends_the_recording(device: str) -> None:
    (a, *_), (x, *_) = pairs()
    turns = iter(range(4))

    def fails(x: Poly) -> Poly:
        if next(turns) % 2:
            raise KeyError("the second time")
        return x + x

    for rebind in (False, True):
        with pytest.raises(KeyError, match="the second time"):
            pg.capture(fails, x, rebind=rebind)
    equals(pg.capture(lambda x: x + x, x, rebind=True)(), a + a)


@on(*CARDS)
def test_a_domain_that_changes_each_time(device: str) -> None:
    (_, *_), (x, y, *_) = pairs()
    turns = iter((True, False))

    def compute(x: Poly, y: Poly) -> Poly:
        return x.ntt(out=y) if next(turns) else x.neg(out=y)

    with pytest.raises(pg.ParameterError, match="f changes the domain of an argument"):
        pg.capture(compute, x, y, rebind=True)


@on(*CARDS)
def test_work_of_others_on_other_memory_stays(device: str) -> None:
    (a, b, c, d), (x, y, z, w) = pairs()
    recorded = pg.capture(lambda x: (x * x, z.data + w.data), x, rebind=True)
    for args, expected in (((), a * a), ((y,), b * b)):
        product, total = recorded(*args)
        equals(product, expected)
        np.testing.assert_array_equal(host(total), c.data + d.data)
    z.data[...] = there(a.data)
    np.testing.assert_array_equal(host(recorded(x)[1]), a.data + d.data)


@on("simulated")
def test_kinds_of_nodes(device: str) -> None:
    """Each kind that the driver knows is looked at in its own way."""
    xp = backend().xp
    _, (x, y, z, _) = pairs()
    for text, work in (
        ("a kernel of CuPy's reads or writes an argument", lambda: x.data + x.data),
        ("copies or fills an argument's memory", lambda: x.data.copy()),
        ("copies or fills an argument's memory", lambda: x.data.fill(0)),
        ("copies memory that may be the host.s", lambda: z.data.set(np.zeros(z.data.shape, z.data.dtype))),
    ):
        with pytest.raises(pg.ParameterError, match=text):
            pg.capture(lambda x, work=work: (work(), x + x)[1], x, rebind=True)
    for work in (lambda: z.data.copy(), lambda: z.data.fill(0), lambda: xp.abs(z.data)):
        recorded = pg.capture(lambda x, work=work: (work(), x + x)[1], x, rebind=True)
        same(recorded(y), (y + y).cpu())


class _Driver:
    """libcuda, but for some functions."""

    def __init__(self, real: Any, **changed: Any) -> None:
        self._real, self._changed = real, changed

    def __getattr__(self, name: str) -> Any:
        if name in self._changed:
            if self._changed[name] is None:
                raise AttributeError(name)
            return self._changed[name]
        return getattr(self._real, name)


@on(*CARDS)
def test_a_driver_that_refuses(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = backend()
    (a, *_), (x, y, z, w) = pairs()

    def changed(**functions: Any) -> None:
        monkeypatch.setattr(compute, "libcuda", _Driver(real, **functions))

    real = compute.libcuda
    changed(cuFuncGetParamInfo=None)
    pg.capture(lambda x: x * x, x, rebind=True)
    with pytest.raises(pg.ParameterError, match=r"CuPy's whose parameters the driver does not show .*12\.4"):
        pg.capture(lambda x: (x * x, z.data + w.data), x, rebind=True)
    changed(cuGraphGetNodes=None)
    with pytest.raises(pg.DeviceError, match=r"cuGraphGetNodes.*record again"):
        pg.capture(lambda x: x * x, x, rebind=True)
    changed(cuGraphExecKernelNodeSetParams_v2=lambda *args: 1)
    recorded = pg.capture(lambda x: x * x, x, rebind=True)
    equals(recorded(), a * a)
    with pytest.raises(pg.DeviceError, match="SetParams_v2: CUDA_ERROR_INVALID_VALUE; record again"):
        recorded(y)
    changed()
    for args in ((), (y,), (x,)):
        with pytest.raises(pg.DeviceError, match="left half set; record again"):
            recorded(*args)


@on(*CARDS)
def test_launches_that_are_not_in_the_graph(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the graph holds is compared byte for byte with what was launched."""
    (_, *_), (x, *_) = pairs()
    blocks = graph.Launched.blocks
    monkeypatch.setattr(
        graph.Launched, "blocks", lambda self: [(f, b[:-1] + b"\x5a", n) for f, b, n in blocks(self)]
    )
    with pytest.raises(pg.ParameterError, match=r"launches are not found|reads or writes an argument"):
        pg.capture(lambda x: x * x, x, rebind=True)
    monkeypatch.setattr(graph.Launched, "blocks", lambda self: [*blocks(self)] * 2)
    with pytest.raises(pg.ParameterError, match="1 launches are not found in the graph"):
        pg.capture(lambda x: x * x, x, rebind=True)


@on(*CARDS)
def test_streams_and_threads_replay(device: str) -> None:
    """Each call launches on the stream of its thread, on the arguments it was given."""
    xp, name = backend().xp, pg.backends.current_device()
    values, moved = pairs(count=6)
    recorded = pg.capture(lambda x, out: x.mul(x, out=out), moved[0], moved[1], rebind=True)

    def work(i: int) -> None:
        with xp.cuda.Device(int(name[5:])), pg.device(name), xp.cuda.Stream(non_blocking=True) as stream:
            for j in (i, 2, i):
                out = moved[j].copy()
                stream.synchronize()
                found = recorded(moved[j], out)
                stream.synchronize()
                assert found is out
                same(found, values[j] * values[j])

    in_threads([partial(work, i) for i in (3, 4, 5)])


@on("simulated")
def test_a_recording_lets_its_memory_go(device: str) -> None:
    (_, *_), (x, y, *_) = pairs()
    recorded = pg.capture(lambda x: x * x + 1, x, rebind=True)
    recorded(y)
    kept = weakref.ref(y)
    del y
    gc.collect()
    assert kept() is not None  # for recorded()
    recorded(x)
    gc.collect()
    assert kept() is None
    kept = weakref.ref(x)
    del x, recorded
    gc.collect()
    assert kept() is None


@on("cuda")
def test_launches_under_way_keep_their_arguments(device: str) -> None:
    from test_gpu import spin

    cupy = backend().xp
    (a, b, *_), (x, y, first, second) = pairs()
    recorded = pg.capture(lambda x, out: x.mul(x, out=out), x, first, rebind=True)
    recorded(y, second)
    cupy.cuda.Device().synchronize()
    first.data.fill(0)
    second.data.fill(0)
    slow, quick = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with slow:
        spin(200)
        recorded(x, first)
    with quick:
        recorded(y, second)
    assert not slow.done
    cupy.cuda.Device().synchronize()
    same(first, a * a)
    same(second, b * b)


@on(*CARDS)
def test_products_of_matrices_are_recorded(device: str) -> None:
    (a, _, c, d), (x, y, z, w) = pairs(batch=(2, 2))
    recorded = pg.capture(lambda x, y: (x @ y, pg.dot(x, y)), x.ntt(), y.ntt(), rebind=True)
    with pg.device("cpu"):
        expected = c.ntt() @ d.ntt(), pg.dot(c.ntt(), d.ntt())
    for found, right in zip(recorded(z.ntt(), w.ntt()), expected, strict=True):
        same(found, right)
    agree(lambda x: x @ x, a)


@on(*CARDS)
def test_the_result_of_the_first_run_is_let_go(device: str) -> None:
    """While a graph is recorded no memory can be made: it is that of the run before."""
    _, (x, *_) = pairs()
    made: list[weakref.ref[Poly]] = []

    def double(a: Poly) -> Poly:
        assert all(result() is None for result in made)
        result = a + a
        made.append(weakref.ref(result))
        return result

    recorded = pg.capture(double, x, rebind=True)
    assert len(made) == 2
    assert recorded().cpu() == (x + x).cpu()
