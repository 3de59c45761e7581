"""A polynomial as an object: devices, copies, pickles, exchange, what it shows."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from devices import CARDS, HOST, agree, backend, on, over, same, shares_memory, there
from oracle import FEW, R17, RNS, check, draw, drawn, everywhere, few_rings, ring, times

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes


@everywhere
def test_a_value_on_its_device(device: str) -> None:
    x = draw(RNS, (2,))
    a = RNS(x)
    assert a.device == device and a.to() is a and a.to(device) is a
    back = a.cpu()
    with pg.device("cpu"):
        assert back.device == "cpu" and type(back.data) is np.ndarray
        check(back, x)
    assert f"device={device}" in repr(a) and device in a._repr_html_()


@on(*CARDS)
def test_a_card_is_left_on_demand_alone() -> None:
    a = RNS(draw(RNS, (2,)))
    with pytest.raises(TypeError, match=r"poly\.cpu"):
        np.asarray(a)


@on(*CARDS)
def test_devices_do_not_mix() -> None:
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
    with pytest.raises(pg.OutputError, match="on cpu"):
        x.add(x, out=y)
    with pytest.raises(pg.OutputError, match=f"on {x.device}"):
        y.add(y, out=x)


@on(*CARDS)
def test_the_default_device_does_not_move_values(device: str) -> None:
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
    "30 bits": Ring(64, ntt_primes(64, 30)),
    "50 bits, RNS": Ring(64, ntt_primes(64, 50, 3)),
    "60 bits": Ring(64, ntt_primes(64, 60)),
    "several passes": Ring(2**15, ntt_primes(2**15, 50)),
    "incomplete": Ring(256, 3329),
    "auxiliary primes": Ring(20, 10**18, product="ntt"),
    "by FFT": Ring(20, 10**18, product="fft"),
}


@over(CAPTURED, devices=CARDS)
def test_a_captured_call_reads_its_arguments_at_each_replay(name: str) -> None:
    """Products and transforms can be recorded: no copy, no wait."""
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


def test_pickle_out_of_band_moves_no_residues() -> None:
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
def test_copy_module() -> None:
    a = RNS(draw(RNS, (2,))).ntt()
    deep = copy.deepcopy(a)
    assert deep == a and deep.domain == "eval" and not shares_memory(deep.data, a.data)
    assert copy.copy(a) == a


@over(FEW, devices=HOST)
def test_asarray_is_data(name: str) -> None:
    R = ring(name)
    a = R(draw(R, (2,)))
    assert np.asarray(a) is a.data
    assert np.asarray(a, dtype=R.dtype) is a.data
    assert np.array(a, copy=False) is a.data
    assert not np.shares_memory(np.array(a), a.data) and np.array_equal(np.array(a), a.data)


def test_array_of_another_dtype() -> None:
    a = RNS(draw(RNS, (2,)))
    for dtype in (np.int64, np.float64, object, ">u8"):
        got = np.asarray(a, dtype=dtype)
        assert got.dtype == dtype and got.tolist() == a.data.tolist()
        with pytest.raises(ValueError, match="copy"):
            np.array(a, dtype=dtype, copy=False)


@over(FEW, devices=HOST)
def test_dlpack(name: str) -> None:
    R = ring(name)
    a = R(draw(R, (2,)))
    array = np.from_dlpack(a)
    assert np.shares_memory(array, a.data) and np.array_equal(array, a.data)
    assert a.__dlpack_device__() == (1, 0)
    check(R.from_residues(array), draw(R, (2,)))
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


def test_dlpack_of_read_only_residues() -> None:
    a = R17([1, 2])
    a.data.flags.writeable = False
    assert np.from_dlpack(a).tolist() == a.data.tolist()


def test_a_poly_has_no_writable_attributes() -> None:
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


def test_reprs_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    a = RNS(draw(RNS, (2,))).ntt()

    def expensive(*_: Any, **__: Any) -> Any:
        raise AssertionError("a repr computed something")

    for name in ("to_bigints", "intt", "ntt", "_in_domain", "__array__"):
        monkeypatch.setattr(Poly, name, expensive)
    assert "eval" in repr(a)
    html = a._repr_html_()
    assert html.startswith("<div>") and html.endswith("</table>") and "\n" not in html
    assert all(f">{x}</td>" in html for x in a.data[:, :, -1].ravel().tolist())


def test_html_of_a_wide_residue_shows_the_residue() -> None:
    assert str(2**100 + 3) in Ring(2, 2**128)([2**100 + 3])._repr_html_()


def test_html_of_an_empty_batch() -> None:
    assert "(0, 2)" in R17.zeros((0, 2))._repr_html_()


def test_several_threads_may_share_a_poly() -> None:
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
def test_the_numbers_of_a_small_batch_are_shown(poly: Poly, end: str) -> None:
    assert repr(poly).endswith(end)


@on(*CARDS)
def test_a_repr_moves_nothing_from_a_card(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = R17([1, 2])
    monkeypatch.setattr(type(backend()), "to_host", None)
    assert repr(a) == f"Poly(n=4, q=17, domain=coef, shape=(), device={device})"
