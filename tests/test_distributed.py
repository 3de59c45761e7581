"""Values on several devices: divided batches, limbs and coefficients match values on one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from devices import needs_card, needs_compiler, simulated

import polygpu as pg
from polygpu import Ring
from polygpu._backends.cuda import CudaBackend
from polygpu._backends.cuda import device as cuda_device
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans import four_step as plans_four_step
from polygpu._distributed import Devices, divided
from polygpu._distributed.divided import layout_of
from polygpu._ops import four_step

MODULI = {
    "30 bits": [998244353],
    "60 bits": [1152921504577486849],
    "Goldilocks": [GOLDILOCKS],
    "three limbs": [1152921504577486849, 998244353, 1125899846025217],
}
ORDERS = ("natural", "transposed")


def host_devices(count: int) -> Devices:
    return pg.devices(*["cpu"] * count)


# ---- coefficients ----


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small polynomials are computed and copied in many slices, as otherwise only large ones are."""
    monkeypatch.setattr(divided, "_SLICE", 1)


def check_divided(gpus: Devices, ring: Ring, batch: tuple[int, ...], order: Any) -> None:
    """All that a divided value can do, beside the same on the host."""
    with pg.device("cpu"):
        a, b = ring.random(batch, seed=1), ring.random(batch, seed=2)
        product, evaluated = a * b, a.ntt()
        x, y = gpus.divide(a, order=order), gpus.divide(b, order=order)
        assert (x.order, x.domain, x.shape, x.devices) == (order, "coef", batch, gpus.names)
        assert x.gather() == a
        values = x.ntt()
        assert (values.order, values.domain, values.shape) == ("natural", "eval", batch)
        assert (values.gather().data == evaluated.data).all()
        runs = [np.asarray(part if isinstance(part, np.ndarray) else part.get()) for part in values.data]
        assert (np.concatenate(runs, -1) == evaluated.data).all()  # each device has a run of the ring's order
        for back in ORDERS:
            assert values.intt(order=back).order == back and values.intt(order=back).gather() == a
            assert x.reorder(back).gather() == a
        assert (x * y).gather() == product and (x * y).order == order
        assert (values * y).gather() == product and (values * y).domain == "eval"
        assert (x + y - 3 * x + 5).gather() == a + b - 3 * a + 5 and (7 - x).gather() == 7 - a
        assert (values + 7).gather() == a + 7 and (-x).gather() == -a and (x - y).gather() == a - b
        other = "transposed" if order == "natural" else "natural"
        assert x == gpus.divide(a, order=other) and x == values and x != y
        assert gpus.divide(evaluated).gather() == evaluated
        assert x.gather() == a, "an operand was changed"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("name", MODULI)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_divided_coefficients_on_the_host(
    count: int, name: str, kind: Any, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for coefficients in (1, divided._SLICE):  # sixteen slices, one slice
        monkeypatch.setattr(divided, "_SLICE", coefficients)
        for n, batch in ((16, ()), (512, (3,)), (2048, ())):
            check_divided(host_devices(count), Ring(n, MODULI[name], kind=kind), batch, order)


def test_ntt_entries_match_horner() -> None:
    """Entry k of the runs is a(psi^(2 br(k) + 1)), by Horner's rule in Python ints."""
    ring = Ring(64, 257)
    assert ring.roots is not None
    a = ring.random(seed=3)
    runs = host_devices(4).divide(a).ntt().data
    coefficients = a.data[0].tolist()
    for k in range(64):
        x, expected = pow(ring.roots[0], 2 * int(f"{k:06b}"[::-1], 2) + 1, 257), 0
        for c in reversed(coefficients):
            expected = (expected * x + c) % 257
        assert int(runs[k // 16][0, k % 16]) == expected


@contextmanager
def simulated_devices(count: int) -> Iterator[Devices]:
    """Cards of which none is the current one, so that a wait on the wrong card's stream shows."""
    with simulated(devices_count=count + 1):
        yield pg.devices(*(f"cuda:{i + 1}" for i in range(count)))


def without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on cards whose memory does not hold tables of all rows: twiddles are then computed as powers."""
    monkeypatch.setattr(CudaBackend, "prefers_tables", lambda *_: False)


@needs_compiler
@pytest.mark.usefixtures("in_slices")
@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [2, 4])
def test_divided_coefficients_on_simulated_cards(
    count: int, order: Any, tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not tables:
        without_tables(monkeypatch)
    with simulated_devices(count) as gpus:
        check_divided(gpus, Ring(1024, MODULI["60 bits"]), (), order)
        if count == 2:
            check_divided(gpus, Ring(256, MODULI["three limbs"], kind="cyclic"), (2,), order)


@needs_compiler
@pytest.mark.usefixtures("in_slices")
@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("name", MODULI)
def test_columns_and_rows_with_their_own_tables(
    name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns and rows take one or two launches, with one or several rows below a node."""
    heights = (
        (64, 1, 10),
        (64, 5, 10),
        (64, 4, 2),
        (2**10, 5, 2),
        (2**12, 1, 10),
        (2**12, 11, 10),
    )
    with simulated_devices(2) as gpus, pg.device("cpu"):
        for n, log_height, levels in heights:
            monkeypatch.setattr(plans_four_step, "_LAUNCH_LEVELS", levels)
            ring = Ring(n, MODULI[name], kind=kind)
            a = ring.random(seed=n)
            x = gpus.divide(a, log_height=log_height)
            assert x.ntt().gather() == a.ntt() and x.ntt().intt().gather() == a


@needs_compiler
def test_cards_without_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver copies through host memory, and access between the cards is not enabled."""
    with simulated_devices(2) as gpus:
        runtime = gpus.backends[0].xp.cuda.runtime  # type: ignore[attr-defined]
        monkeypatch.setattr(runtime, "deviceCanAccessPeer", lambda device, peer: 0)
        monkeypatch.setattr(runtime, "deviceEnablePeerAccess", None)
        check_divided(gpus, Ring(256, MODULI["30 bits"]), (), "natural")


@pytest.mark.gpu
@needs_card
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MODULI)
def test_divided_coefficients_on_cards(name: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cards are used, or one card twice."""
    gpus = pg.devices() if len(pg.devices()) in (2, 4, 8) else pg.devices("cuda:0", "cuda:0")
    check_divided(gpus, Ring(2**14, MODULI[name]), (2,), order)
    monkeypatch.setattr(divided, "_SLICE", 1)  # sixteen slices
    check_divided(gpus, Ring(2**14, MODULI[name]), (2,), order)
    check_divided(gpus, Ring(2**20, MODULI[name]), (), order)


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("order", ORDERS)
def test_empty_batches(order: Any, batch: tuple[int, ...]) -> None:
    check_empty(host_devices(2), order, batch)


@needs_compiler
def test_empty_batches_on_simulated_cards() -> None:
    with simulated_devices(2) as gpus:
        check_empty(gpus, "natural", (0,))


def check_empty(gpus: Devices, order: Any, batch: tuple[int, ...]) -> None:
    ring = Ring(64, 257)
    with pg.device("cpu"):
        a = ring.random(batch, seed=1)
        x = gpus.divide(a, order=order)
        for value in (x, x.ntt(), x.ntt().intt(order=order), x * x, x + 1, -x, x.reorder("natural")):
            assert value.shape == batch and value.gather().shape == batch
        assert x == x.ntt()


@needs_compiler
@pytest.mark.usefixtures("in_slices")
@pytest.mark.parametrize("way", ["natural", "transposed", "back"])
def test_error_during_an_exchange_leaves_no_pending_copy(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pending copy reads or writes memory that was returned to its pool."""
    with simulated_devices(2) as gpus:
        ring = Ring(256, MODULI["30 bits"])
        x = gpus.random(ring, seed=1, order="natural" if way == "natural" else "transposed")
        call = x.ntt().intt if way == "back" else x.ntt
        step = "transform_below" if way == "back" else "transform_columns"
        transform, left = getattr(four_step, step), [4]

        def failing(*arguments: Any) -> None:
            left[0] -= 1
            if not left[0]:
                raise pg.errors.OutOfDeviceMemory("no more")
            transform(*arguments)

        monkeypatch.setattr(four_step, step, failing)
        with pytest.raises(pg.errors.OutOfDeviceMemory):
            call()
        lanes = [lane for b in gpus.backends for lane in b._lanes.values()]  # type: ignore[attr-defined]
        copies = [copy for lane in lanes for copy in lane._copies]
        assert copies and all(copy.is_done for copy in copies)


@needs_compiler
def test_capture_raises_for_values_on_several_cards() -> None:
    with simulated_devices(2) as gpus:
        ring = Ring(64, 257)
        a = ring.random(4, seed=1)
        x, y, on_first = gpus.spread(a), gpus.divide(a), a.to(gpus.names[0])
        for work in (lambda: x + x, lambda: y + y, lambda: y.ntt(), lambda: y.gather()):
            with pytest.raises(
                pg.DeviceError, match=r"Call capture once for each|cannot record a copy|read values back"
            ):
                pg.capture(lambda p, work=work: (work(), p)[1], on_first)
        alone = pg.capture(lambda p: p * p, x.parts[0])
        assert alone().cpu() == (a[:2] * a[:2]).cpu()


@needs_compiler
def test_exchange_between_cards_uses_few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense arrays and equally spaced rows take one copy. Rows too far apart are copied one by one."""
    with simulated_devices(2) as gpus:
        runtime, made = gpus.backends[0].xp.cuda.runtime, []  # type: ignore[attr-defined]
        for name in ("memcpyAsync", "memcpy2DAsync"):
            original = getattr(runtime, name)
            noted = lambda *x, name=name, original=original: (made.append(name), original(*x))  # noqa: E731
            monkeypatch.setattr(runtime, name, noted)
        a = Ring(64, 257).random((6, 2), seed=1).to(gpus.names[0]).data
        for x, copies in (
            (a, ["memcpyAsync"]),
            (a[..., 8:24], ["memcpy2DAsync"]),
            (a[::2], ["memcpy2DAsync"]),
            (a[::2, :, :, :8], ["memcpy2DAsync"] * 3),
            (a[:1, 0, 0, :5], ["memcpyAsync"]),
        ):
            made.clear()
            assert gpus.place(x, 1).get().tolist() == x.get().tolist() and made == copies
        monkeypatch.setattr(cuda_device, "_LONGEST_STEP", 256)
        made.clear()
        assert gpus.place(a[..., :8], 1).get().tolist() == a[..., :8].get().tolist()
        assert made == ["memcpyAsync"] * 12


def test_random_values_do_not_depend_on_the_devices() -> None:
    ring = Ring(256, MODULI["three limbs"])
    for count in (1, 2, 4):
        for order in ORDERS:
            drawn = host_devices(count).random(ring, seed=5, start=3, order=order)
            assert drawn.order == order and drawn.gather() == ring.random(seed=5, start=3)
    two = host_devices(2)
    assert two.random(ring) != two.random(ring)
    unseeded = two.random(ring, order="natural")
    assert (unseeded.data[0] != unseeded.data[1]).any(), "devices drew the same numbers"


def test_layout_of_divided_coefficients() -> None:
    """Every coefficient has one place, and columns are long enough for all devices."""
    for log_n in range(2, 34):
        for count in (1, 2, 4, 8):
            if 1 << log_n < count**2:
                continue
            layout = layout_of(1 << log_n, count)
            assert layout.height * layout.width == 1 << log_n
            assert layout.rows * count == layout.height and layout.rows >= 1
            assert layout.count * layout.slices * count == layout.width and layout.count >= 1
            columns = [layout.column(d, s) for d in range(count) for s in range(layout.slices)]
            assert columns == list(range(0, layout.width, layout.count))
            assert layout.slices == min(16, max(1, (1 << log_n) // (2**24 * count**2)))
            assert layout.row_slices == min(4, layout.slices, layout.rows)
    assert [layout_of(2**24, 2, limbs=limbs).slices for limbs in (1, 7, 8, 40)] == [1, 1, 2, 8]
    assert layout_of(2**40, 2, log_height=38).slices == 2, "a device has two columns"


def test_invalid_uses_of_divided_coefficients_raise() -> None:
    two, four = host_devices(2), host_devices(4)
    ring = Ring(64, 257)
    a = ring.random(seed=1)
    x = two.divide(a)
    with pytest.raises(pg.ParameterError, match="power of two"):
        host_devices(3).divide(a)
    with pytest.raises(pg.ParameterError, match="at least 16"):
        four.divide(Ring(8, 17).random(seed=1))
    with pytest.raises(pg.NotNTTFriendly, match=r"devices\.spread"):
        two.divide(Ring(64, 2**64).random(seed=1))
    with pytest.raises(pg.NotNTTFriendly):
        two.divide(Ring.preset("ml-kem").random(seed=1))
    with pytest.raises(pg.ParameterError, match="'natural' or 'transposed'"):
        two.divide(a, order="columns")  # type: ignore[arg-type]
    with pytest.raises(pg.errors.DomainError, match="intt"):
        x.ntt().reorder("natural")
    for wrong in (
        lambda: x + a,
        lambda: x == a,
        lambda: a == x,
        lambda: x + two.spread(a, "copies"),  # type: ignore[operator]
        lambda: two.spread(a, "copies") == x,
    ):
        with pytest.raises(pg.DeviceError, match=r"devices\.divide"):
            wrong()
    with pytest.raises(pg.DeviceError, match=r"One operand is on .* both operands"):
        x + four.divide(a)
    with pytest.raises(pg.ParameterError, match="log_height"):
        x + two.divide(a, log_height=2)
    for height in (0, 6, -1):
        with pytest.raises(pg.ParameterError, match="from 1 to 5"):
            two.divide(a, log_height=height)
    for height in ("3", 2.5, True):
        with pytest.raises(pg.errors.NotAnInteger):
            two.divide(a, log_height=height)  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match=r"\(3,\), \(2,\)|do not broadcast"):
        two.divide(ring.random(3, seed=1)) + two.divide(ring.random(2, seed=1))
    with pytest.raises(pg.ParameterError, match="same number of axes"):
        x + two.divide(ring.random(3, seed=1))
    other = two.divide(Ring(64, 641).random(seed=1))
    with pytest.raises(pg.RingMismatch):
        x * other
    assert x != other and x != two.divide(ring.random(3, seed=1)) and x != "x"
    assert x != 5 and two.divide(ring(5)) == 5 and two.divide(ring(5)).ntt() == 5
    with pytest.raises(pg.ParameterError, match="must be a Ring"):
        two.random("abc")  # type: ignore[arg-type]
    with pytest.raises(pg.errors.NotAnInteger):
        x + 1.5  # type: ignore[operator]
    with pytest.raises(pg.ParameterError, match="start"):
        two.random(ring, seed=1, start=-1)
    with pytest.raises(pg.RingMismatch):
        two.divide([1, 2])  # type: ignore[arg-type]


# ---- batches and limbs ----


@contextmanager
def some_devices(kind: str, count: int) -> Iterator[Devices]:
    if kind == "cpu":
        yield host_devices(count)
    else:
        with simulated_devices(count) as gpus:
            yield gpus


kinds = pytest.mark.parametrize("kind", ["cpu", pytest.param("simulated", marks=needs_compiler)])


@kinds
def test_operations_on_divided_batches(kind: str) -> None:
    ring = Ring(64, MODULI["three limbs"])
    a, b, c = (ring.random(batch, seed=i) for i, batch in enumerate([(5, 2), (5, 1), ()]))
    with some_devices(kind, 3) as gpus:
        x, y, z = gpus.spread(a), gpus.spread(b), gpus.spread(c, "copies")
        assert [part.shape for part in x.parts] == [(1, 2), (2, 2), (2, 2)]
        assert [part.device for part in x.parts] == list(gpus.names)
        assert x.shape == (5, 2) and x.axis == "batch" and x.devices == gpus.names
        with pg.device("cpu"):
            assert (x * y).gather() == a * b and (x + z).gather() == a + c and (z - x).gather() == c - a
            assert (x.ntt() * y).gather() == a * b and (x.ntt() * y).domain == "eval"
            assert (3 - x * 2).gather() == 3 - a * 2 and (-x).ntt().intt().gather() == -a
            assert x.map(lambda p: p.rescale()).gather() == a.rescale()
            assert x.map(lambda p, q: p.automorphism(5) * q, z).gather() == a.automorphism(5) * c
            assert z.gather() == c and gpus.spread(a[:1]).gather() == a[:1]
            assert x == x.ntt() and x != x + 1


@kinds
def test_operations_on_divided_limbs(kind: str) -> None:
    ring = Ring(64, pg.ntt_primes(64, bits=30, count=4) + pg.ntt_primes(64, bits=60, count=1))
    a, b = ring.random(seed=1), ring.random(3, seed=2)
    with some_devices(kind, 2) as gpus:
        x, y = gpus.spread(a), gpus.spread(b, "limbs")
        assert [len(part.ring.moduli) for part in x.parts] == [2, 3] and x.ring == ring
        with pg.device("cpu"):
            assert (x * y).gather() == a * b and (x.ntt() + y).gather() == a + b
            assert x.ntt().gather() == a and x.ntt().gather().domain == "eval"
            assert (x - 2**80).gather() == a - 2**80


def test_invalid_uses_of_divided_batches_and_limbs_raise() -> None:
    two = host_devices(2)
    ring = Ring(64, [257, 641])
    a, single = ring.random((4, 3), seed=1), ring.random(seed=2)
    x = two.spread(a)
    with pytest.raises(pg.DeviceError, match="copies"):
        x + single  # type: ignore[operator]
    with pytest.raises(pg.ParameterError, match=r"made by devices\.divide"):
        x + two.divide(single)  # type: ignore[operator]
    with pytest.raises(pg.DeviceError, match="to divide x among the devices first"):
        _ = x == single
    with pytest.raises(pg.ParameterError, match="must be a function"):
        x.map("f")  # type: ignore[arg-type]
    copies = two.spread(single, "copies")
    with pytest.raises(pg.ParameterError, match="first axis"):
        copies.map(lambda c, p, q: p * q * c, two.spread(a), two.spread(a[:2]))
    assert copies.map(lambda c, p: p * c, x).gather() == a * single
    for wrong in (1.5, single):
        with pytest.raises((pg.errors.NotAnInteger, pg.DeviceError)):
            x.map(lambda p, q: p, wrong)  # type: ignore[arg-type]
    assert x != two.spread(a[:3]) and x != two.spread(Ring(64, 257).random((4, 3), seed=1)) and x != "x"
    with pytest.raises(pg.ParameterError, match=r"devices\.divide"):
        host_devices(3).spread(single)
    with pytest.raises(pg.ParameterError, match="x has none"):
        two.spread(single, "batch")
    with pytest.raises(pg.ParameterError, match="'batch', 'limbs' or 'copies'"):
        two.spread(a, "rows")  # type: ignore[arg-type]
    with pytest.raises(pg.ParameterError, match="Spread both operands with the same axis"):
        x + two.spread(a, "limbs")
    for other in (a[0], a[:1], a[:3]):
        with pytest.raises(pg.ParameterError, match="first axis"):
            x + two.spread(other)
    with pytest.raises(pg.ParameterError, match="first axis"):
        x + two.spread(a[None], "copies")
    with pytest.raises(pg.DeviceError, match=r"One operand is on .* both operands"):
        x + host_devices(4).spread(a)
    with pytest.raises(pg.RingMismatch):
        x + two.spread(Ring(64, 257).random((4, 3), seed=1))
    with pytest.raises(pg.ParameterError, match="keep the length of the first axis"):
        x.map(lambda p: p.sum(0))
    with pytest.raises(pg.ParameterError, match="other limbs"):
        two.spread(single).map(lambda p: p.restrict(p.ring[:1]) if len(p.ring.moduli) > 1 else ring(1))
    with pytest.raises(pg.RingMismatch):
        x.map(lambda p: 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(pg.errors.NotAnInteger):
        x * 0.5  # type: ignore[operator]


def test_devices_with_valid_and_invalid_names() -> None:
    with pytest.raises(pg.DeviceError, match="GPUs and the host"), simulated(devices_count=1):
        pg.devices("cuda:0", "cpu")
    for names in (("tpu",), (["cpu", "cpu"],), (2,)):
        with pytest.raises(pg.DeviceError, match="must be"):
            pg.devices(*names)  # type: ignore[arg-type]
    assert host_devices(2) == host_devices(2) != host_devices(3) and len(host_devices(2)) == 2
    assert repr(host_devices(2)) == "devices('cpu', 'cpu')"
    with simulated(devices_count=2):
        assert pg.devices().names == ("cuda:0", "cuda:1")


def test_root_of_a_ring_too_large_for_tables() -> None:
    """The four-step transform needs only the root."""
    q = pg.ntt_primes(2**40, bits=60)[0]
    ring = Ring(2**40, q, root="generator")
    assert ring.roots is not None and pow(ring.roots[0], 2**40, q) == q - 1
    with pytest.raises(pg.errors.TablesTooLarge):
        _ = ring._plan.transform
    with pytest.raises(pg.errors.TablesTooLarge):
        _ = Ring(2**40, q).roots
