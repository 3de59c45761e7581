"""pg.capture: results of replays with other values, and the calls that it rejects."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from devices import CARDS, agree, backend, host, on, over, same, there
from oracle import drawn
from test_poly import CAPTURED

import polygpu as pg
from polygpu import Poly, Ring

PLACES = ("cpu", *CARDS)
R = Ring(64, pg.ntt_primes(64, bits=50, count=2))


def pairs(ring: Ring = R, batch: tuple[int, ...] = (3,), count: int = 4) -> tuple[list[Poly], list[Poly]]:
    """Values on the host, and the same on the device."""
    with pg.device("cpu"):
        values = [drawn(ring, batch, seed).cpu() for seed in range(1, count + 1)]
    return values, [x.to(pg._backends.current_device()).copy() for x in values]


def equals(found: Poly, expected: Poly) -> None:
    assert (found.ring, found.domain, found.shape) == (expected.ring, expected.domain, expected.shape)
    np.testing.assert_array_equal(host(found.data), expected.data)


@over(CAPTURED, ["30 bits", "50 bits, RNS", "incomplete", "auxiliary primes", "by FFT"], devices=PLACES)
def test_capture_replays_with_other_values(name: str) -> None:
    ring = CAPTURED[name]

    def compute(x: Poly, y: Poly) -> Any:
        both = x * y, x * x - y, -(x + y), x * 5
        return (*both, x.ntt(), x.ntt() * y.ntt(), y.ntt().intt()) if ring.has_eval else both

    (a, b, c, d), (x, y, z, w) = pairs(ring)
    recorded = pg.capture(compute, x, y)
    swapped = (y, x)  # each is read before the other is written
    for values, given in (
        ((a, b), ()),
        ((c, d), (z, w)),
        ((c, d), ()),
        ((d, c), swapped),
        ((c, d), (y, w)),
    ):
        with pg.device("cpu"):
            expected = compute(*values)
        for found, right in zip(recorded(*given), expected, strict=True):
            equals(found, right)
    for value, kept in zip((z, w), (c, d), strict=True):
        equals(value, kept)
    z.neg(out=x)  # a replay reads what its arguments hold then
    with pg.device("cpu"):
        expected = compute(-c, d)
    for found, right in zip(recorded(), expected, strict=True):
        equals(found, right)


@on(*PLACES)
def test_capture_with_out_in_an_argument(device: str) -> None:
    """The argument that is `out` is written and returned at every replay."""

    def compute(x: Poly, y: Poly, out: Poly, times: int) -> tuple[Poly, Poly]:
        return x.mul(y, out=out), out + times * x

    (a, b, c, d), (x, y, z, w) = pairs()
    first, second = x.copy(), x.copy()
    recorded = pg.capture(compute, x, y, first, 3)
    assert recorded()[0] is first
    equals(first, a * b)
    found = recorded(z, w, second, 3)
    assert found[0] is first
    equals(first, c * d)
    equals(second, a)
    equals(found[1], c * d + 3 * c)
    if device != "cpu":
        assert recorded(x, w, first, 3)[1] is found[1]  # each replay overwrites it
    for times in (4, 3.0, True):
        with pytest.raises(
            pg.ParameterError, match=r"Argument 3 is a .* other than the recorded one\. Only a Poly"
        ):
            recorded(x, y, first, times)


@on(*PLACES)
def test_replay_raises_for_arguments_that_do_not_fit(device: str) -> None:
    (a, b, *_), (x, y, *_) = pairs()
    recorded = pg.capture(lambda x, y: x * y, x, y)
    other = Ring(64, pg.ntt_primes(64, bits=49, count=2)).zeros((3,)).to(x.device)
    for wrong, error, text in (
        ((y,), pg.ParameterError, "recorded with 2 arguments, but 1 were given"),
        ((y, 3), pg.ParameterError, "Argument 1 must be a Poly, .* not int"),
        ((other, y), pg.RingMismatch, "Argument 0 is of .*, but it was recorded with"),
        (
            (y, x[:2]),
            pg.ParameterError,
            r"Argument 1 has batch shape \(2,\), but it was recorded with \(3,\)",
        ),
        ((y, x.reshape(1, 3)), pg.ParameterError, "Argument 1 has batch shape"),
        (
            (y, x.ntt()),
            pg.ParameterError,
            r"Argument 1 is in domain 'eval', .* recorded in 'coef'\. Use intt\(\)",
        ),
    ):
        with pytest.raises(error, match=text):
            recorded(*wrong)
    if device != "cpu":
        with pytest.raises(pg.DeviceError, match="Argument 1 is on cpu, but it was recorded on cuda"):
            recorded(y, b)
    equals(x, a)  # nothing is written where something does not fit
    equals(recorded(), a * b)
    with pytest.raises(pg.ParameterError, match="no Poly"):
        pg.capture(lambda x: x, 3)


@on(*PLACES)
def test_replay_with_arguments_that_share_memory(device: str) -> None:
    (_, b, *_), (x, y, *_) = pairs()
    same_twice = pg.capture(lambda x, y: x * y, x, x)
    equals(same_twice(y, y), b * b)
    with pytest.raises(pg.ParameterError, match=r"Arguments 0 and 1 shared memory"):
        same_twice(y, x)
    equals(x, b)
    room = R.from_residues(there(np.zeros((4, 2, 64), np.uint64)), copy=False)
    two = pg.capture(lambda x, y: x + y, room[:3], room[1:])
    equals(two(), R.zeros(3).cpu())
    with pytest.raises(pg.ParameterError, match=r"Arguments 0 and 1 shared memory"):
        two(x, y)
    square = pg.capture(lambda x: x * x, x)
    equals(square(room[:3]), R.zeros(3).cpu())
    first = square(y)
    with pg.device("cpu"):
        expected = b * b
    equals(square(first), expected * expected)  # its result is read before it is overwritten


@on("cpu")
def test_capture_of_read_only_arguments(device: str) -> None:
    _, (x, y, *_) = pairs()
    x.data.flags.writeable = False
    recorded = pg.capture(lambda x: x + x, x)
    assert recorded(x) == recorded() == x + x
    with pytest.raises(pg.errors.OutputError, match="Argument 0 was recorded with a read-only value"):
        recorded(y)


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
def test_capture_of_copying_operations(name: str) -> None:
    """These operations move entries of an argument."""
    compute = COPIES[name]
    (_, b, c, _), (x, y, z, _) = pairs()
    recorded = pg.capture(compute, x)
    for given, value in ((y, b), (z, c)):
        with pg.device("cpu"):
            expected = compute(value)
        results = recorded(given)
        for found, right in zip(
            *((r if isinstance(r, tuple) else (r,)) for r in (results, expected)), strict=True
        ):
            equals(found, right)
    equals(y, b)


@on(*CARDS)
def test_error_in_f_ends_the_capture(device: str) -> None:
    (a, *_), (x, *_) = pairs()
    turns = iter(range(2))

    def fails(x: Poly) -> Poly:
        if next(turns) % 2:
            raise KeyError("the second time")
        return x + x

    with pytest.raises(KeyError, match="the second time"):
        pg.capture(fails, x)
    equals(pg.capture(lambda x: x + x, x)(), a + a)


@on(*CARDS)
def test_replay_keeps_arrays_that_f_reads(device: str) -> None:
    (a, b, c, d), (x, y, z, w) = pairs()
    recorded = pg.capture(lambda x: (x * x, z.data + w.data), x)
    for args, expected in (((), a * a), ((y,), b * b)):
        product, total = recorded(*args)
        equals(product, expected)
        np.testing.assert_array_equal(host(total), c.data + d.data)
    z.data[...] = there(a.data)
    np.testing.assert_array_equal(host(recorded(x)[1]), a.data + d.data)


@on(*CARDS)
def test_capture_of_matrix_products(device: str) -> None:
    (a, _, c, d), (x, y, z, w) = pairs(batch=(2, 2))
    recorded = pg.capture(lambda x, y: (x @ y, pg.dot(x, y)), x.ntt(), y.ntt())
    with pg.device("cpu"):
        expected = c.ntt() @ d.ntt(), pg.dot(c.ntt(), d.ntt())
    for found, right in zip(recorded(z.ntt(), w.ntt()), expected, strict=True):
        same(found, right)
    agree(lambda x: x @ x, a)


@on(*CARDS)
def test_capture_frees_the_result_of_the_first_run(device: str) -> None:
    """A capture cannot allocate, so its result takes the memory of the run before it."""
    _, (x, *_) = pairs()
    made: list[weakref.ref[Poly]] = []

    def double(a: Poly) -> Poly:
        assert all(result() is None for result in made)
        result = a + a
        made.append(weakref.ref(result))
        return result

    recorded = pg.capture(double, x)
    assert len(made) == 2
    assert recorded().cpu() == (x + x).cpu()


# ---- what a recording has in common with a call ----


@on(*PLACES)
def test_capture_does_not_change_arguments(device: str) -> None:
    """Capture runs f on the card, but only later calls change the arguments."""
    (a, b, *_), (x, total, *_) = pairs()
    add = pg.capture(lambda x, out: out.add(x, out=out), x, total)
    equals(total.cpu(), b)
    for n in (1, 2):
        assert add() is total
        equals(total.cpu(), b + n * a)


@on(*PLACES)
def test_capture_of_writes_to_values_that_are_not_arguments(device: str) -> None:
    """On a card, the run that is captured already writes them."""
    (a, b, *_), (x, total, *_) = pairs()
    add = pg.capture(lambda x: total.add(x, out=total), x)
    times = 0 if device == "cpu" else 1
    equals(total.cpu(), b + times * a)
    add()
    equals(total.cpu(), b + (times + 1) * a)


@on(*PLACES)
def test_replay_restores_domains_of_results(device: str) -> None:
    """Data and domain stay consistent, whatever is done between replays."""
    (a, *_), (x, *_) = pairs()
    recorded = pg.capture(lambda x: {"sum": x + x, "all": [x * x, x.ntt()]}, x)
    for _ in range(2):
        found = recorded()
        for value, expected in zip((found["sum"], *found["all"]), (a + a, a * a, a.ntt()), strict=True):
            equals(value.cpu(), expected)
            (value.ntt if value.domain == "coef" else value.intt)(out=value)
    x.ntt(out=x)
    with pytest.raises(
        pg.errors.DomainError, match=r"Argument 0 is in domain 'eval', .* recorded in 'coef'\. Use intt\(\)"
    ):
        recorded()
    x.intt(out=x)
    equals(recorded()["sum"].cpu(), a + a)


@on(*PLACES)
def test_capture_raises_if_arguments_change_domain(device: str) -> None:
    (a, b, *_), (x, out, *_) = pairs()
    for compute, args, number in (
        (lambda x: x.ntt(out=x), (x,), 0),
        (lambda x, out: x.ntt(out=out), (x, out), 1),
        (lambda n, x: x.ntt(out=x), (3, x), 1),
    ):
        with pytest.raises(
            pg.errors.DomainError, match=rf"f must not .* argument {number} from 'coef' to 'eval'"
        ):
            pg.capture(compute, *args)()
        if device == "cpu":  # the call has run f
            x.intt(out=x)
            out = b.copy()
        equals(x.cpu(), a)
        equals(out.cpu(), b)
    evaluated = out.ntt()
    transform = pg.capture(lambda x, out: x.ntt(out=out), x, evaluated)
    assert transform() is evaluated
    equals(evaluated.cpu(), a.ntt())
    with pytest.raises(
        pg.ParameterError,
        match=r"Argument 1 is in domain 'coef', .* If f only writes this argument, give any value",
    ):
        pg.capture(lambda x, out: x.ntt(out=out), x, evaluated)(x, out)


@on(*CARDS)
def test_capture_raises_if_a_domain_changes_in_the_second_run(device: str) -> None:
    (_, b, *_), (x, y, *_) = pairs()
    turns = iter((False, True))

    def compute(x: Poly, y: Poly) -> Poly:
        value = x.ntt()
        return value.neg(out=y) if next(turns) else x.neg(out=y)

    with pytest.raises(pg.errors.DomainError, match=r"f must not .* argument 1 from 'coef' to 'eval'"):
        pg.capture(compute, x, y)
    equals(y, b)


@on(*CARDS)
def test_capture_keeps_tables_between_its_two_runs(device: str) -> None:
    """f uses more rings than the cache of unused plans holds."""
    whole = Ring(16, pg.ntt_primes(16, bits=45, count=16))
    rings = [whole[:count] for count in range(4, 17)]

    def compute(x: Poly) -> list[Poly]:
        return [x.restrict(ring).mod_down(ring[:-2]) for ring in rings]

    (a, *_), (x, *_) = pairs(whole)
    found = pg.capture(compute, x.ntt(out=x))()
    with pg.device("cpu"):
        for got, expected in zip(found, compute(a.ntt()), strict=True):
            equals(got, expected)


@on(*CARDS)
def test_capture_of_random_values(device: str) -> None:
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
            pg.ParameterError, match=r"each replay would give the same .*Draw the values before .*give a seed"
        ):
            pg.capture(lambda x, draw=draw: x + draw(batch=(3,)), x)
    recorded = pg.capture(lambda x: x + R.random((3,), seed=5), x)
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
def test_capture_raises_if_the_second_run_builds_tables(
    device: str, bits: int, second: Callable[[Poly], Any]
) -> None:
    """The ring is not left with partly built tables."""
    ring = Ring(64, pg.ntt_primes(64, bits=bits, count=2))
    (a, *_), (x, *_) = pairs(ring)
    turns = iter((False, True))
    with pytest.raises(pg.DeviceError, match=r"Make every call of f do the same work|read values back"):
        pg.capture(lambda x: second(x) if next(turns) else x + x, x)
    assert not backend().xp.cuda.get_current_stream().is_capturing()
    for compute in (Poly.ntt, lambda x: x * x, lambda x: x.scale_by([-17, -18, -19])):
        agree(compute, a)
    equals(pg.capture(lambda x: x.ntt(), x)(), a.ntt())


@on(*CARDS)
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
def test_capture_raises_if_f_reads_values(device: str, compute: Callable[[Poly], Any]) -> None:
    (a, *_), (x, *_) = pairs()
    with pytest.raises(
        pg.DeviceError,
        match=r"must not wait for the GPU or read values back.*with the result of f|copied from the host",
    ):
        pg.capture(compute, x)
    equals(pg.capture(lambda x: x + x, x)(), a + a)


@on(*CARDS)
def test_capture_with_verify_raises(device: str) -> None:
    _, (x, *_) = pairs()
    with pg.verify(), pytest.raises(pg.DeviceError, match=r"values back|copied from the host"):
        pg.capture(lambda x: x * x, x)


@on(*CARDS)
def test_nested_capture_raises(device: str) -> None:
    _, (x, *_) = pairs()
    with pytest.raises(pg.DeviceError, match=r"capture cannot begin\..*Call f itself"):
        pg.capture(lambda x: pg.capture(lambda y: y + y, x)(), x)


@on(*CARDS)
def test_garbage_collection_is_paused_during_capture(device: str) -> None:
    """A collection would free older graphs, which the driver forbids during a capture."""
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
def test_end_of_a_capture_hides_no_error(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of f is raised, even if f made the driver end the capture."""
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
def test_capture_of_arguments_on_several_devices_raises(device: str) -> None:
    (a, *_), (x, *_) = pairs()
    for args in ((a, x), (x, a)):
        with pytest.raises(pg.DeviceError, match=r"Argument 1 is on .*, but argument 0 is on"):
            pg.capture(lambda x, y: y + y, *args)


@on(*PLACES)
def test_capture_of_arguments_that_are_not_polys(device: str) -> None:
    """A replay takes equal arguments or the same object."""
    _, (x, y, *_) = pairs()
    listed = [3]
    recorded = pg.capture(lambda *args: args[0] + args[0], x, 0.5, (1, "2"), listed, None)
    equals(recorded(y, float("0.5"), (int("1"), str(2)), listed, None).cpu(), (y + y).cpu())
    for wrong, number in (
        ((1.5, (1, "2"), listed, None), 1),
        ((0.5, (True, "2"), listed, None), 2),
        ((0.5, (1, "2", 3), listed, None), 2),
        ((0.5, (1, "2"), [3], None), 3),
        ((0.5, (1, "2"), listed, 0), 4),
    ):
        with pytest.raises(
            pg.ParameterError, match=rf"Argument {number} is a .* Only a Poly may be replaced"
        ):
            recorded(x, *wrong)


@on("simulated")
def test_replay_within_a_capture_keeps_its_graph(device: str) -> None:
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
def test_captured_call_reports_its_bytes(device: str) -> None:
    (a, *_), (x, *_) = pairs()
    recorded = pg.capture(lambda x: x * x + x, x)
    equals(recorded(), a * a + a)
    assert recorded.launches == (0 if device == "cpu" else 2)
    assert (recorded.nbytes >= a.data.nbytes) if device != "cpu" else recorded.nbytes == 0


@on("simulated")
@pytest.mark.parametrize("run", [1, 2])
def test_failed_capture_leaves_no_memory(device: str, run: int) -> None:
    """Memory allocated before the error is freed with it, and arguments do not change."""
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
