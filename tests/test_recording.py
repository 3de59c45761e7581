"""Recorded calls on other arguments: the pointers of a graph's launches, and all that refuses."""

import contextlib
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
from polygpu._backends.cuda import graph

PLACES = ("cpu", *CARDS)
R = Ring(64, pg.ntt_primes(64, 50, 2))
BY_CUPY = "(a kernel of CuPy's reads or writes|CuPy copies or fills) argument 0; work"  # whichever CuPy takes


def pairs(ring: Ring = R, batch: tuple[int, ...] = (3,), count: int = 4) -> tuple[list[Poly], list[Poly]]:
    """Values on the host, and the same on the device."""
    with pg.device("cpu"):
        values = [drawn(ring, batch, seed).cpu() for seed in range(1, count + 1)]
    return values, [x.to(pg._backends.current_device()).copy() for x in values]


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
    z.neg(out=z)  # a replay reads what its arguments hold then
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

    recorded = pg.capture(without, x, y, rebind=True)
    found = recorded(z, w)
    equals(found["dot"][0], c[1] * d[2])
    assert found["n"] == 7 and found["none"] is None
    equals(w[1], c[2] * d[0])
    equals(x, a)
    equals(y, b)
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
        assert recorded(x, w, first, 3)[1] is found[1]  # each replay overwrites it
        equals(found[1], a * d + 3 * a)
    for times in (4, 3.0, True):
        with pytest.raises(pg.ParameterError, match=r"argument 3: a .*, not as recorded; only a Poly"):
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
    with pytest.raises(pg.ParameterError, match="arguments 0 and 1 overlap in part"):
        two(room[:3], room[1:])
    with pytest.raises(pg.ParameterError, match="arguments 0 and 1 overlap in part"):
        pg.capture(lambda x, y: x * y, room[:3], room[1:], rebind=True)
    room.data[:3] = there(a.data)
    equals(two(room[:3], y), a * b)  # a part of an array may be an argument
    equals(pg.capture(lambda x, y: x * y, room[:3], y, rebind=True)(), a * b)
    result = two(x, y)
    for args in ((result, y), (x, result.reshape(3))):
        with pytest.raises(pg.ParameterError, match="shares memory with the result"):
            two(*args)
    hidden: list[Poly] = []

    def leaks(x: Poly) -> Poly:
        hidden.clear()  # frees its memory, since recording can make no new memory
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


def assigned(x: Poly) -> Poly:
    y = x.copy()
    y[1:] = x[0]
    return y


COPIES: dict[str, Callable[[Poly], Any]] = {
    "sum": lambda x: (x.sum(), x.reshape(1, 3).sum(axis=0), x.reshape(3, 1).sum(axis=0), x.sum(axis=())),
    "step": lambda x: x[::2] + 1,
    "backwards": lambda x: x[::-1],
    "broadcast": lambda x: x.reshape(1, 3) * x[:2].reshape(2, 1),
    "stack": lambda x: (pg.stack([x, x]), pg.stack([x, x], axis=1)),
    "concatenate": lambda x: pg.concatenate([x, x[1:]]),
    "copy": lambda x: x.copy(),
    "assignment": assigned,
    "+": lambda x: (x + 5, x.ntt() + 5),
    "power": lambda x: (x**0, x**1, x**2),
    "matmul": lambda x: x.reshape(3, 1) @ x.reshape(1, 3),
    "einsum": lambda x: (pg.einsum("i,j->ji", x, x), pg.einsum("i->", x), pg.einsum("i,i->i", x, x)),
    "restrict": lambda x: (
        x.restrict(x.ring[:1]),
        pg.rns.join(x.restrict(x.ring[1:]), x.restrict(x.ring[:1])),
    ),
    "7 axes": lambda x: x.reshape(1, 1, 3, 1, 1, 1, 1) + x.reshape(3, 1, 1, 1, 1, 1, 1),
}


@over(COPIES, devices=PLACES)
def test_copies_are_recorded(name: str) -> None:
    """Operations that move entries of an argument: their launches take other arguments too."""
    compute = COPIES[name]
    (a, b, *_), (x, y, *_) = pairs()
    recorded = pg.capture(compute, x, rebind=True)
    for given, value in ((y, b), (x, a)):
        with pg.device("cpu"):
            expected = compute(value)
        results = recorded(given)
        for found, right in zip(
            *((r if isinstance(r, tuple) else (r,)) for r in (results, expected)), strict=True
        ):
            equals(found, right)
    equals(y, b)


@on(*CARDS)
@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda x: x.data + x.data, "a kernel of CuPy's reads or writes argument 0; work"),
        (lambda x: x.data.copy(), BY_CUPY),
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
        ("a kernel of CuPy's reads or writes argument 0", lambda x: x.data + x.data),
        ("CuPy copies or fills argument 0", lambda x: x.data.copy()),
        ("CuPy copies or fills argument 0", lambda x: x.data.fill(0)),
        ("copies memory that may be the host.s", lambda x: z.data.set(np.zeros(z.data.shape, z.data.dtype))),
    ):
        with pytest.raises(pg.ParameterError, match=text):
            pg.capture(lambda x, work=work: (work(x), x + x)[1], x, rebind=True)
    for work in (lambda: z.data.copy(), lambda: z.data.fill(0), lambda: xp.abs(z.data)):
        recorded = pg.capture(lambda x, work=work: (work(), x + x)[1], x, rebind=True)
        same(recorded(y), (y + y).cpu())


class _Driver:
    """libcuda with some functions changed, or missing where they are None."""

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
    changed()
    recorded = pg.capture(lambda x: x * x, x, rebind=True)
    equals(recorded(), a * a)
    changed(cuGraphExecKernelNodeSetParams_v2=lambda *args: 1)
    equals(recorded(x), a * a)  # nothing is set
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
    with pytest.raises(pg.ParameterError, match=r"launches are not found|reads or writes argument 0"):
        pg.capture(lambda x: x * x, x, rebind=True)
    monkeypatch.setattr(graph.Launched, "blocks", lambda self: [*blocks(self)] * 2)
    with pytest.raises(pg.ParameterError, match="1 launches are not found in the graph"):
        pg.capture(lambda x: x * x, x, rebind=True)


@on(*CARDS)
def test_streams_and_threads_replay(device: str) -> None:
    """Each call launches on the stream of its thread, on the arguments it was given."""
    xp, name = backend().xp, pg._backends.current_device()
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
    assert kept() is not None  # recorded() without arguments would use it
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
    """While a graph is recorded no memory can be made: the result takes that of the run before."""
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


# ---- what a recording has in common with a call ----

BOTH = pytest.mark.parametrize("rebind", [False, True])


@on(*PLACES)
@BOTH
def test_recording_changes_no_argument(device: str, rebind: bool) -> None:
    """A recording runs f on a card, and yet leaves the arguments as they were; only its calls change them."""
    (a, b, *_), (x, total, *_) = pairs()
    add = pg.capture(lambda x, out: out.add(x, out=out), x, total, rebind=rebind)
    equals(total.cpu(), b)
    for n in (1, 2):
        assert add() is total
        equals(total.cpu(), b + n * a)


@on(*PLACES)
@BOTH
def test_other_names_in_a_recording(device: str, rebind: bool) -> None:
    """What f writes by another name than an argument's is written already by the run that is recorded."""
    (a, b, *_), (x, total, *_) = pairs()
    add = pg.capture(lambda x: total.add(x, out=total), x, rebind=rebind)
    times = 0 if device == "cpu" else 1
    equals(total.cpu(), b + times * a)
    add()
    equals(total.cpu(), b + (times + 1) * a)


@on(*PLACES)
def test_another_name_is_another_value(device: str) -> None:
    """A closure that names an argument goes on naming that value."""
    (a, b, *_), (x, y, *_) = pairs()
    product = pg.capture(lambda v: v * x, x, rebind=True)
    if device == "cpu":
        assert product() == a * a and product(y) == a * b
        return
    for args in ((), (x,)):
        with pytest.raises(pg.ParameterError, match=r"argument 0: lies in .* f reaches by another name"):
            product(*args)
    equals(product(x.copy()), a * a)
    equals(product(y), a * b)


@on(*PLACES)
@BOTH
def test_domains_are_recorded(device: str, rebind: bool) -> None:
    """Data and domains belong together, whatever is done with them between calls."""
    (a, *_), (x, *_) = pairs()
    recorded = pg.capture(lambda x: {"sum": x + x, "all": [x * x, x.ntt()]}, x, rebind=rebind)
    for _ in range(2):
        found = recorded()
        for value, expected in zip((found["sum"], *found["all"]), (a + a, a * a, a.ntt()), strict=True):
            equals(value.cpu(), expected)
            (value.ntt if value.domain == "coef" else value.intt)(out=value)
    x.ntt(out=x)
    with pytest.raises(
        pg.DomainError, match=r"argument 0: domain 'eval', recorded with 'coef'; use intt\(\), or"
    ):
        recorded()
    x.intt(out=x)
    equals(recorded()["sum"].cpu(), a + a)


@on(*PLACES)
@BOTH
def test_arguments_keep_their_domains(device: str, rebind: bool) -> None:
    (a, b, *_), (x, out, *_) = pairs()
    for compute, args, number in (
        (lambda x: x.ntt(out=x), (x,), 0),
        (lambda x, out: x.ntt(out=out), (x, out), 1),
        (lambda n, x: x.ntt(out=x), (3, x), 1),
    ):
        with pytest.raises(
            pg.DomainError, match=rf"f changes the domain of argument {number} from 'coef' to 'eval'"
        ):
            pg.capture(compute, *args, rebind=rebind)()
        if device == "cpu":  # the call has run f
            x.intt(out=x)
            out = b.copy()
        equals(x.cpu(), a)
        equals(out.cpu(), b)
    evaluated = out.ntt()
    transform = pg.capture(lambda x, out: x.ntt(out=out), x, evaluated, rebind=rebind)
    assert transform() is evaluated
    equals(evaluated.cpu(), a.ntt())
    with pytest.raises(
        pg.ParameterError, match=r"argument 1: domain 'coef', .* where f only writes it, any value"
    ):
        pg.capture(lambda x, out: x.ntt(out=out), x, evaluated, rebind=True)(x, out)


@on(*CARDS)
def test_a_domain_that_changes_in_the_second_run(device: str) -> None:
    (_, b, *_), (x, y, *_) = pairs()
    for rebind in (False, True):
        turns = iter((False, True))

        def compute(x: Poly, y: Poly, turns: Any = turns) -> Poly:
            value = x.ntt()
            return value.neg(out=y) if next(turns) else x.neg(out=y)

        with pytest.raises(pg.DomainError, match="f changes the domain of argument 1 from 'coef' to 'eval'"):
            pg.capture(compute, x, y, rebind=rebind)
        equals(y, b)


@on(*CARDS)
@BOTH
def test_random_values_in_a_recording(device: str, rebind: bool) -> None:
    (a, *_), (x, *_) = pairs()
    for draw in (
        R.random,
        R.ternary,
        partial(R.ternary, weight=3),
        partial(R.binomial, eta=2),
        partial(R.gaussian, sigma=3.2),
        partial(R.tuniform, b=3),
    ):
        with pytest.raises(
            pg.ParameterError, match=r"the same at each replay; draw them outside .*give a seed"
        ):
            pg.capture(lambda x, draw=draw: x + draw(batch=(3,)), x, rebind=rebind)
    recorded = pg.capture(lambda x: x + R.random((3,), seed=5), x, rebind=rebind)
    with pg.device("cpu"):
        equals(recorded().cpu(), a + R.random((3,), seed=5))


@on("simulated")
@pytest.mark.parametrize(
    ("bits", "second"),
    [
        (41, lambda x: x.ntt()),  # tables
        (42, lambda x: x.scale_by([-17, -18, -19])),  # constants
        (43, lambda x: x * x),
        (44, lambda x: x + x.cpu().to("cuda:1")),
    ],
)
def test_what_the_second_run_makes_anew(device: str, bits: int, second: Callable[[Poly], Any]) -> None:
    """What only the second run makes is refused, and nothing of the ring is left half made."""
    ring = Ring(64, pg.ntt_primes(64, bits, 2))
    (a, *_), (x, *_) = pairs(ring)
    turns = iter((False, True))
    with pytest.raises(pg.DeviceError, match=r"second run|read values back"):
        pg.capture(lambda x: second(x) if next(turns) else x + x, x)
    assert not backend().xp.cuda.get_current_stream().is_capturing()
    for compute in (Poly.ntt, lambda x: x * x, lambda x: x.scale_by([-17, -18, -19])):
        agree(compute, a)
    equals(pg.capture(lambda x: x.ntt(), x)(), a.ntt())


@on("simulated")
def test_an_interrupted_exchange(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (a, b, *_), (x, y, z, w) = pairs()
    recorded = pg.capture(lambda x, y: (x + y, x - y), x, y, rebind=True)
    equals(recorded()[0], a + b)
    compute, turns = backend(), iter(range(9))
    real = compute.libcuda

    def interrupted(*args: Any) -> int:
        if next(turns):
            raise KeyboardInterrupt
        return int(real.cuGraphExecKernelNodeSetParams_v2(*args))

    changed = _Driver(real, cuGraphExecKernelNodeSetParams_v2=interrupted)
    monkeypatch.setattr(compute, "libcuda", changed)
    with pytest.raises(KeyboardInterrupt):
        recorded(z, w)
    monkeypatch.undo()
    for args in ((), (x, y), (z, w)):
        with pytest.raises(pg.DeviceError, match="left half set"):
            recorded(*args)


@on(*CARDS)
def test_a_part_of_what_the_graph_writes(device: str) -> None:
    """The part may begin after the pointer that the graph has."""
    with pg.device("cpu"):
        values = drawn(R, (2, 3), 9).cpu()
    _, (x, *_) = pairs()
    big = values.to(pg._backends.current_device()).copy()

    def scale(v: Poly) -> None:
        big.mul(v, out=big)

    recorded = pg.capture(scale, x, rebind=True)
    for i in (0, 1):
        with pytest.raises(pg.ParameterError, match="argument 0: lies in memory"):
            recorded(big[i])
    big.data[...] = there(values.data)
    recorded(big[1].copy())
    equals(big, values * values[1])


@on(*CARDS)
@BOTH
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.norm(),
        lambda x: x if x == x else -x,
        lambda x: x(3),
        lambda x: x.cpu(),
        lambda x: Ring(4, 2**89 - 1).ones() * 3,
    ],
)
def test_values_that_f_reads(device: str, rebind: bool, compute: Callable[[Poly], Any]) -> None:
    (a, *_), (x, *_) = pairs()
    with pytest.raises(
        pg.DeviceError, match=r"read values back while .*with its result|copied from the host"
    ):
        pg.capture(compute, x, rebind=rebind)
    equals(pg.capture(lambda x: x + x, x, rebind=rebind)(), a + a)


@on(*CARDS)
def test_checked_products_in_a_recording(device: str) -> None:
    _, (x, *_) = pairs()
    with pg.verify(), pytest.raises(pg.DeviceError, match=r"values back|copied from the host"):
        pg.capture(lambda x: x * x, x)


@on(*CARDS)
def test_recordings_in_recordings(device: str) -> None:
    (a, *_), (x, y, *_) = pairs()
    with pytest.raises(pg.DeviceError, match="capture inside a recording; call f itself"):
        pg.capture(lambda x: pg.capture(lambda y: y + y, x)(), x)
    for rebind in (False, True):
        inner = pg.capture(lambda x: x + x, x, rebind=rebind)
        inner()
        with pytest.raises(pg.ParameterError, match="f calls what another capture returned"):
            pg.capture(lambda y, inner=inner: inner() + y, y, rebind=True)
    equals(inner(), a + a)


@on(*CARDS)
def test_the_cycle_collector_rests(device: str) -> None:
    """It would free memory of earlier recordings, which the driver refuses while a graph is recorded."""
    _, (x, *_) = pairs()
    living, freed = [], []

    class Cycle:
        def __init__(self) -> None:
            self.itself = self
            self.recorded = pg.capture(lambda x: x + x, x)

    def compute(x: Poly) -> Poly:
        for _ in range(2 * gc.get_threshold()[0]):
            living.append([])
        freed.append(cycle() is None)
        if len(freed) == 4:
            raise pg.ParameterError("the last of them")
        return x + x

    gc.collect()
    for _ in range(2):
        cycle = weakref.ref(Cycle())
        with contextlib.suppress(pg.ParameterError):
            pg.capture(compute, x)
        assert gc.isenabled()
        gc.collect()
        assert cycle() is None
    assert freed == [False] * 4


@on("simulated")
def test_errors_of_the_runtime(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = backend().xp.cuda.runtime
    (a, *_), (x, *_) = pairs()
    recorded = pg.capture(lambda x: x + x, x, rebind=True)

    def fails(status: int, text: str) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            raise runtime.CUDARuntimeError(status, text)

        return call

    for name, call in (
        ("graphInstantiate", lambda: pg.capture(lambda x: x + x, x, rebind=True)),
        ("graphLaunch", recorded),
    ):
        for status, error in ((2, pg.OutOfDeviceMemory), (719, pg.DeviceError)):
            with monkeypatch.context() as patch:
                patch.setattr(runtime, name, fails(status, "the text"))
                with pytest.raises(error, match="cuda:1: the text"):
                    call()
    equals(recorded(), a + a)


@on("simulated")
def test_the_end_of_a_recording_hides_no_error(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of f is raised, also where what f did made the driver end the recording."""
    stream = backend().xp.cuda.Stream
    (a, *_), (x, *_) = pairs()
    turns, end = iter((False, True)), stream.end_capture

    def fails(x: Poly) -> Poly:
        if next(turns):
            raise KeyError("of f")
        return x + x

    def invalid(self: Any) -> None:
        end(self)
        raise backend().xp.cuda.runtime.CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "end_capture", invalid)
        with pytest.raises(KeyError, match="of f"):
            pg.capture(fails, x)
    equals(pg.capture(lambda x: x + x, x)(), a + a)


@on(*CARDS)
def test_arguments_on_several_devices(device: str) -> None:
    (a, *_), (x, *_) = pairs()
    for rebind in (False, True):
        for args in ((a, x), (x, a)):
            with pytest.raises(pg.DeviceError, match=r"argument 1: on .*, argument 0 is on"):
                pg.capture(lambda x, y: y + y, *args, rebind=rebind)


@on(*PLACES)
def test_arguments_that_are_no_polynomials(device: str) -> None:
    """A replay takes equal arguments, or the same object."""
    _, (x, y, *_) = pairs()
    listed = [3]
    recorded = pg.capture(lambda *args: args[0] + args[0], x, 0.5, (1, "2"), listed, None, rebind=True)
    equals(recorded(y, float("0.5"), (int("1"), str(2)), listed, None).cpu(), (y + y).cpu())
    for wrong, number in (
        ((1.5, (1, "2"), listed, None), 1),
        ((0.5, (True, "2"), listed, None), 2),
        ((0.5, (1, "2", 3), listed, None), 2),
        ((0.5, (1, "2"), [3], None), 3),
        ((0.5, (1, "2"), listed, 0), 4),
    ):
        with pytest.raises(pg.ParameterError, match=rf"argument {number}: a .* only a Poly can be another"):
            recorded(x, *wrong)
    with pytest.raises(
        pg.ParameterError, match=r"1 arguments, recorded without rebind; capture\(f, \*args, rebind"
    ):
        pg.capture(lambda x: x + x, x)(y)


@on(*CARDS)
def test_numbers_in_errors_count_all_arguments(device: str) -> None:
    _, (x, y, *_) = pairs()
    recorded = pg.capture(lambda n, x, y: x * y, 3, x, y, rebind=True)
    room = R.from_residues(there(np.zeros((4, 2, 64), np.uint64)), copy=False)
    with pytest.raises(pg.ParameterError, match="arguments 1 and 2 overlap in part"):
        recorded(3, room[:3], room[1:])
    data = backend().xp.empty(y.data.size + 1, y.data.dtype)[1:].reshape(y.data.shape)
    with pytest.raises(pg.ParameterError, match="argument 2: its memory begins"):
        recorded(3, x, R.from_residues(data, copy=False))
    with pytest.raises(pg.ParameterError, match="argument 2; work on its data"):
        pg.capture(lambda n, x, y: (x * x, y.data + y.data), 3, x, y, rebind=True)


@on(*CARDS)
def test_alignment_of_every_argument(device: str) -> None:
    """Memory that is not aligned to 16 bytes fits no recorded launch, wherever the recorded values lay."""
    small = Ring(64, pg.ntt_primes(64, 30))
    (a, *_), (x, *_) = pairs(small)
    xp = backend().xp
    two, one = (xp.empty(x.data.size + 8, x.data.dtype)[i : i + x.data.size] for i in (2, 1))
    for data in (two, one):
        data[...] = x.data.reshape(-1)
    at = [small.from_residues(data.reshape(x.data.shape), copy=False) for data in (two, one)]
    recorded = pg.capture(lambda x: x + x, at[0], rebind=True)
    for value in at:
        with pytest.raises(pg.ParameterError, match="must be a multiple of 16"):
            recorded(value)
    equals(recorded(at[1].copy()), a + a)


@on("simulated")
def test_a_replay_in_a_recording_keeps_the_graph(device: str) -> None:
    (_, b, *_), (x, y, *_) = pairs()
    inner = [pg.capture(lambda x: x + x, x)]
    kept = weakref.ref(inner[0]._replay)
    outer = pg.capture(lambda y: (inner[0](), y + y) if inner else None, y)
    inner.clear()
    gc.collect()
    assert kept() is not None
    x.data[...] = there(b.data)
    equals(outer()[0], b + b)
    del outer
    gc.collect()
    assert kept() is None


@on(*PLACES)
def test_a_recording_reports_its_bytes(device: str) -> None:
    (a, *_), (x, *_) = pairs()
    for rebind in (False, True):
        recorded = pg.capture(lambda x: x * x + x, x, rebind=rebind)
        equals(recorded(), a * a + a)
        assert recorded.launches == (0 if device == "cpu" else 2)
        assert (recorded.nbytes >= a.data.nbytes) if device != "cpu" else recorded.nbytes == 0


@on("simulated")
@pytest.mark.parametrize("run", [1, 2])
def test_an_error_leaves_no_memory_behind(device: str, run: int) -> None:
    """What the function made before its error is freed with the error, and the arguments are as before."""
    (a, *_), (x, *_) = pairs()
    pool, runs = backend().xp.get_default_memory_pool(), iter(range(1, 9))
    x * x + x  # its tables stay

    def broken(x: Poly) -> Poly:
        made = x * x + x
        x.neg(out=x)
        if next(runs) == run:
            raise ZeroDivisionError
        return made

    gc.collect()
    before = pool.used_bytes()
    with pytest.raises(ZeroDivisionError):
        pg.capture(broken, x)
    gc.collect()
    assert pool.used_bytes() == before
    equals(x, a)
    equals(pg.capture(lambda x: x * x, x)(), a * a)
