"""Poly as an object: devices, copies, pickles, DLPack, NumPy functions and repr."""

from __future__ import annotations

import array
import copy
import pickle
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from devices import CARDS, HOST, OLD_NUMPY, agree, backend, on, over, same, shares_memory, there
from oracle import FEW, R17, RNS, check, draw, drawn, everywhere, few_rings, ring, times

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes


@everywhere
def test_device_transfers(device: str) -> None:
    x = draw(RNS, (2,))
    a = RNS(x)
    assert a.device == device and a.to() is a and a.to(device) is a
    back = a.cpu()
    with pg.device("cpu"):
        assert back.device == "cpu" and type(back.data) is np.ndarray
        check(back, x)
    assert f"device={device}" in repr(a) and device in a._repr_html_()


@on(*CARDS)
def test_operands_on_different_devices_raise() -> None:
    x = RNS(draw(RNS, (2,)))
    y = x.cpu()
    mixed: list[Any] = [
        lambda: x + y,
        lambda: y + x,
        lambda: x * y,
        lambda: x.ntt() * y.ntt(),
        lambda: pg.fma(x, x, y),
        lambda: pg.dot(y, x),
        lambda: x[:, None] @ y[None],
        lambda: pg.equal(x, y),
        lambda: pg.stack([x, y]),
        lambda: pg.concatenate([y, x]),
    ]
    for call in mixed:
        with pytest.raises(pg.DeviceError, match=r"poly\.to"):
            call()
    with pytest.raises(pg.errors.OutputError, match="on cpu"):
        x.add(x, out=y)
    with pytest.raises(pg.errors.OutputError, match=f"on {x.device}"):
        y.add(y, out=x)


@on(*CARDS)
def test_default_device_does_not_move_values(device: str) -> None:
    x = RNS(draw(RNS, (2,)))
    a = x.cpu()
    assert (a + a).device == "cpu" and (a * 3 + 1).device == "cpu"
    for other in ("cpu", "reference"):
        with pg.device(other):
            assert (x + x).device == device
    agree(lambda x: x * x + 1, a)
    agree(lambda x: 2 - x, a)
    agree(lambda x: x.ntt() + 5, a)


CAPTURED = {
    "30 bits": Ring(64, ntt_primes(64, bits=30)),
    "50 bits, RNS": Ring(64, ntt_primes(64, bits=50, count=3)),
    "60 bits": Ring(64, ntt_primes(64, bits=60)),
    "several passes": Ring(2**15, ntt_primes(2**15, bits=50)),
    "incomplete": Ring(256, 3329),
    "trinomial": Ring(64, ntt_primes(64, bits=50, kind="trinomial"), kind="trinomial"),
    "leaves of 3": Ring(48, ntt_primes(48, bits=30, kind="trinomial", count=2), kind="trinomial"),
    "auxiliary primes": Ring(20, 10**18, product="ntt"),
    "by FFT": Ring(20, 10**18, product="fft"),
    "trinomial, by FFT": Ring(20, 10**18, kind="trinomial", product="fft"),
}


@over(CAPTURED, devices=CARDS)
def test_captured_call_reads_arguments_at_each_replay(name: str) -> None:
    """Products and transforms can be captured, because they neither copy nor wait."""
    R = CAPTURED[name]

    def compute(x: Poly, y: Poly) -> Any:
        both = x * y, x * x - y, -(x + y)
        return (*both, x.ntt(), x.ntt() * y.ntt(), y.ntt().intt()) if R.has_eval else both

    a, b = drawn(R, (3,), 1), drawn(R, (3,), 2)
    x, y = a.to(), b.to()
    replay = pg.capture(compute, x, y)
    for seed in (3, 4):
        a = drawn(R, (3,), seed)
        x.data[...] = there(a.data)
        for got, expected in zip(replay(), compute(a, b), strict=True):
            same(got, expected)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@few_rings
def test_pickle(name: str, protocol: int) -> None:
    R = ring(name)
    x = draw(R, (2,))
    for poly in (R(x), R(x).ntt()) if R.has_eval else (R(x),):
        again = pickle.loads(pickle.dumps(poly, protocol))
        assert type(again) is Poly and again.ring == R
        check(again, x, poly.domain)
        assert again.data.tolist() == poly.data.tolist()


def test_pickle_out_of_band_copies_no_residues() -> None:
    a = RNS(draw(RNS, (100,)))
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(a, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1 and len(stream) < 1000
    assert np.shares_memory(np.frombuffer(buffers[0].raw(), np.uint8), a.data)
    again = pickle.loads(stream, buffers=buffers)
    assert again == a and np.shares_memory(again.data, a.data)
    raw = bytes(buffers[0].raw())
    for buffer in (raw, memoryview(b"?" + raw)[1:]):  # read-only, and in the middle of a message
        frozen = pickle.loads(stream, buffers=[buffer])
        assert frozen == a and frozen * frozen == a * a and frozen.ntt() == a.ntt()


@everywhere
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, Poly.copy])
def test_copies_own_their_memory_on_the_same_device(copied: Any) -> None:
    x = draw(RNS, (2,))
    for a in (RNS(x), RNS(x).ntt(), RNS(x)[0]):
        b = copied(a)
        assert b == a and (b.ring, b.domain, b.device) == (a.ring, a.domain, a.device)
        assert b.ring is a.ring and not shares_memory(b.data, a.data)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_of_divided_values_own_their_memory(copied: Any) -> None:
    two, R = pg.devices("cpu", "cpu"), ring("50 bits")
    for x in (two.spread(drawn(R, (3,), 1)), two.spread(drawn(R, (3,), 1), "copies")):
        y = copied(x)
        assert y == x and y.axis == x.axis and y.devices == x.devices
        for part, other in zip(x.parts, y.parts, strict=True):
            assert not np.shares_memory(part.data, other.data)
    for order in ("natural", "transposed"):
        a = two.divide(drawn(R, (), 1), order=order)
        b = copied(a)
        assert b == a and b.order == a.order
        for run, other_run in zip(a.data, b.data, strict=True):
            assert not np.shares_memory(run, other_run)


# ---- NumPy's functions ----

SQUARE = Ring(64, 257).random((4, 4), seed=1)
NUMPY = {
    f"{module.__name__}.{name}": function
    for module in (np, np.linalg, np.fft)
    for name, function in vars(module).items()
    if hasattr(function, "_implementation")  # those that ask __array_function__
    and function not in (np.sum, np.shape, np.ndim)
}


def values_of_a_ring() -> dict[str, Any]:
    """Values of each class that could be given to NumPy."""
    two = pg.devices("cpu", "cpu")
    values = {"Poly": SQUARE, "single Poly": SQUARE[0, 0], "Spread": two.spread(SQUARE)}
    values["Divided"] = two.divide(SQUARE)
    if find_spec("dask"):
        import polygpu.dask

        values["BlockedPoly"] = polygpu.dask.from_poly(SQUARE)
    return values


@pytest.mark.parametrize("name", ["Poly", "single Poly", "Spread", "Divided", "BlockedPoly"])
def test_numpy_functions_raise_for_polys(name: str) -> None:
    if name not in (values := values_of_a_ring()):
        pytest.skip("needs Dask")
    x = values[name]
    assert len(NUMPY) > 200
    for function in NUMPY.values():
        for arguments in ((x,), (x, x), ([x, x],)):
            with pytest.raises((TypeError, ValueError, AttributeError)):
                function(*arguments)
    exits = {"Poly": "to_bigints", "single Poly": "data", "BlockedPoly": "compute"}.get(name, "gather")
    one, numbers = x, np.ones((4, 4, 1, 64))
    calls: list[Any] = [
        *(lambda f=f: f(x) for f in (np.mean, np.prod, np.copy, np.sort, np.std, np.linalg.norm, np.fft.fft)),
        *(lambda f=f: f(x, x) for f in (np.inner, np.dot, np.array_equal, np.allclose, np.convolve)),
        *(lambda f=f: f([x, x]) for f in (np.stack, np.concatenate, np.vstack, np.array, np.asarray)),
        *(lambda f=f: f(x) for f in (np.asarray, np.array, np.ascontiguousarray, np.asanyarray, np.float64)),
        lambda: np.einsum("ij,jk->ik", x, x),
        lambda: np.array([[x], [x]], dtype=object),
        lambda: np.asarray(x, dtype=np.int64),
        lambda: np.array(x, copy=False),
        lambda: numbers.dot(one),
        lambda: numbers.__setitem__(slice(None), x),
        lambda: np.arange(9)[x],
        lambda: np.testing.assert_array_equal(x, x),
        lambda: np.random.default_rng(1).permutation(x),
    ]
    for call in calls:
        with pytest.raises(pg.errors.CoefficientError, match=exits):
            call()
    for ufunc in (np.add, np.matmul, np.equal, np.multiply):
        with pytest.raises(TypeError):
            ufunc(x, x)


@on(*CARDS)
def test_numpy_functions_raise_for_polys_on_a_card() -> None:
    a = RNS(draw(RNS, (2,)))
    for function in (np.asarray, np.mean, np.array_equal, np.copy):
        with pytest.raises(pg.errors.CoefficientError, match=r"poly\.cpu"):
            function(*(a, a) if function is np.array_equal else (a,))


def test_numpy_functions_that_are_supported() -> None:
    for x in values_of_a_ring().values():
        assert np.shape(x) == x.shape
        if hasattr(x, "ndim"):
            assert np.ndim(x) == x.ndim
    assert np.sum(SQUARE, axis=1) == SQUARE.sum(1)
    with pytest.raises(TypeError):
        np.sum(SQUARE, keepdims=True)
    with pytest.raises(TypeError):
        np.sum(np.ones(3), out=SQUARE)


def test_numpy_arrays_of_rings() -> None:
    rings = np.array([R17, RNS])
    assert rings.dtype == object and rings.tolist() == [R17, RNS]
    assert np.array_equal(rings, rings) and np.asarray(R17).shape == ()


LISTS: dict[str, Any] = {
    "list": [1, 2, 3],
    "equal list": [1, 2, 0, 0],
    "nested list": [[1, 2], [3, 4]],
    "empty list": [],
    "tuple": (1, 2),
    "tuple of lists": ([1], [2]),
    "range": range(3),
    "array.array": array.array("i", [1, 2]),
    "deque": deque([1, 2]),
    "array": np.array([1, 2]),
    "array without axes": np.array(1),
    "list of Polys": [SQUARE],
}


@pytest.mark.parametrize("name", LISTS)
def test_comparison_with_a_list_or_array_raises(name: str) -> None:
    x, two = LISTS[name], pg.devices("cpu", "cpu")
    for a in (R17([1, 2]), R17([[1], [2]]), two.spread(R17([[1], [2]])), two.divide(SQUARE)):
        for call in (lambda a=a: a == x, lambda a=a: a != x, lambda a=a: x == a, lambda a=a: x != a):
            with pytest.raises(pg.errors.CoefficientError, match=r"ring\(values\)"):
                call()
    for call in (lambda: R17([1]) + x, lambda: x * R17([1]), lambda: R17([1]) - x):
        with pytest.raises(pg.errors.CoefficientError, match=r"ring\(values\)"):
            call()


@pytest.mark.parametrize(
    "x", [None, "1", b"1", 1.0, True, {1}, {1: 2}, object(), np.float64(1), R17, Ellipsis]
)
def test_poly_is_not_equal_to_other_objects(x: Any) -> None:
    two = pg.devices("cpu", "cpu")
    for a in (R17(1), two.spread(R17([[1], [1]])), two.divide(Ring(64, 257)(1))):
        assert a != x and x != a and (a == x) is False
        assert a == 1 and a == np.int64(1) and np.int64(1) == a and a != np.uint8(2)


# ---- lists of ints ----


@over(FEW)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (0,), (2, 0)])
def test_tolist(name: str, shape: tuple[int, ...]) -> None:
    R = ring(name)
    x = draw(R, shape)
    for a in (R(x), R(x).ntt()) if R.has_eval else (R(x),):
        values = a.tolist()
        assert values == np.broadcast_to(np.asarray(x, object) % R.modulus, (*shape, R.n)).tolist()
        flat = values
        for _ in range(len(shape)):
            flat = [v for inner in flat for v in inner]
        assert {type(v) for v in flat} <= {int} and type(values) is list
        assert R(values) == R(x) or not flat


@over(FEW, devices=HOST)
def test_dlpack(name: str) -> None:
    R = ring(name)
    a = R(draw(R, (2,)))
    array = np.from_dlpack(a)
    assert np.shares_memory(array, a.data) and np.array_equal(array, a.data)
    assert a.__dlpack_device__() == (1, 0)
    check(R.from_residues(array), draw(R, (2,)))
    if OLD_NUMPY:
        return
    copied = np.from_dlpack(a, copy=True)
    assert not np.shares_memory(copied, a.data) and np.array_equal(copied, a.data)


@on("cuda")
def test_dlpack_on_a_card() -> None:
    for name in ("30 bits", "60 bits"):
        R, xp = ring(name), backend().xp
        x = draw(R, (2,))
        a = R(x)
        shared = xp.from_dlpack(a)
        assert backend().address(shared) == backend().address(a.data) and shared.dtype == a.data.dtype
        assert a.__dlpack_device__() == a.data.__dlpack_device__()
        check(R.from_residues(xp.from_dlpack(a)), x)


@pytest.mark.skipif(OLD_NUMPY, reason="NumPy 2.0 does not share read-only arrays by DLPack")
def test_dlpack_of_read_only_residues() -> None:
    a = R17([1, 2])
    a.data.flags.writeable = False
    assert np.from_dlpack(a).tolist() == a.data.tolist()


def test_attributes_are_read_only() -> None:
    a = R17([1, 2])
    for name in ("ring", "data", "domain", "shape", "ndim", "device", "other"):
        with pytest.raises(AttributeError):
            setattr(a, name, None)


@pytest.mark.parametrize(
    ("poly", "parts"),
    [
        (R17([1, 2]), ["n=4", "q=17", "coef", "shape=()", "cpu"]),
        (Ring(8, 17, kind="cyclic").zeros((2, 3)).ntt(), ["cyclic", "eval", "shape=(2, 3)"]),
        (RNS.zeros(0), ["limbs=3", "bits=19", "shape=(0,)"]),
        (Ring(4, 2**128)([1]), [f"q={2**128}"]),
    ],
)
def test_repr_is_one_line(poly: Poly, parts: list[str]) -> None:
    text = repr(poly)
    assert text.startswith("Poly(") and "\n" not in text
    for part in parts:
        assert part in text


def test_reprs_of_a_huge_modulus() -> None:
    R = Ring(2, 2**20_000)
    assert "\n" not in repr(R(1)) and len(repr(R(1))) < 10_000
    assert R(1)._repr_html_()


def test_repr_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = RNS(draw(RNS, (2,))).ntt()

    def expensive(*_: Any, **__: Any) -> Any:
        raise AssertionError("a repr computed something")

    for name in ("to_bigints", "intt", "ntt", "__array__"):
        monkeypatch.setattr(Poly, name, expensive)
    assert "eval" in repr(a)
    html = a._repr_html_()
    assert html.startswith("<div>") and html.endswith("</table>") and "\n" not in html
    assert all(f">{x}</td>" in html for x in a.data[:, :, -1].ravel().tolist())


def test_html_of_a_wide_residue_shows_the_residue() -> None:
    assert str(2**100 + 3) in Ring(2, 2**128)([2**100 + 3])._repr_html_()


def test_html_of_an_empty_batch() -> None:
    assert "(0, 2)" in R17.zeros((0, 2))._repr_html_()


def test_several_threads_share_a_poly() -> None:
    R = ring("50 bits")
    x, y = draw(R, (4,), 1), draw(R, (4,), 2)
    a, b, expected = R(x), R(y), times(R, x, y).tolist()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: (a * b).to_bigints().tolist(), range(16)))
    assert results == [expected] * 16


@pytest.mark.parametrize(
    ("poly", "end"),
    [
        (R17([1, -2]), "centered=[1, -2, 0, 0])"),
        (R17([[1], [2]]), "centered=[[1, 0, 0, 0], [2, 0, 0, 0]])"),
        (RNS([0, 1]).ntt(), f"values mod 17=[{', '.join(map(str, RNS([0, 1]).ntt().data[0].tolist()))}])"),
        (R17([0, 1]).ntt(), "values=[2, 15, 8, 9])"),
        (Ring(8, [17, 97])(range(-4, 4)), "centered=[-4, -3, -2, ..., 2, 3])"),
        (Ring(7, 2**100)([2**99, 1]), f"centered=[{-(2**99)}, 1, 0, ..., 0, 0])"),
        (R17.zeros(5), "device=cpu)"),
        (R17.zeros((0, 2)), "device=cpu)"),
    ],
)
def test_repr_shows_the_numbers_of_a_small_batch(poly: Poly, end: str) -> None:
    assert repr(poly).endswith(end)


@on(*CARDS)
def test_repr_does_not_copy_from_a_card(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = R17([1, 2])
    monkeypatch.setattr(type(backend()), "to_host", None)
    assert repr(a) == f"Poly(n=4, q=17, domain=coef, shape=(), device={device})"
