"""Batch axes: indices, shapes, sums, joining, powers and sums of products along them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import CARDS, on, over, shares_memory
from oracle import (
    DOMAINS,
    R17,
    RNS,
    check,
    draw,
    every_ring,
    everywhere,
    few_rings,
    few_transforms,
    in_domain,
    ring,
    times,
)

import polygpu as pg

KEYS = {
    "0": 0,
    "-1": -1,
    "NumPy int": np.int64(1),
    "1, 2": np.s_[1, 2],
    ":": np.s_[:],
    "1:": np.s_[1:],
    "::-1": np.s_[::-1],
    ":, ::2": np.s_[:, ::2],
    "5:": np.s_[5:],
    "...": ...,
    "..., 0": np.s_[..., 0],
    "0, ...": np.s_[0, ...],
    "()": (),
    "None": None,
    ":, None": np.s_[:, None],
    "..., None": np.s_[..., None],
    "list": [1, 0, 1],
    "array": np.array([[0, 1], [1, 1]]),
    "empty list": np.s_[np.zeros(0, int)],
    "two lists": np.s_[[0, 1], [2, 0]],
    ":, list": np.s_[:, [2, 0]],
    "list, None": np.s_[[1, 0], None],
    "mask": np.array([False, True]),
    "mask of 2 axes": np.array([[True, False, True], [False, True, False]]),
    ":, mask": np.s_[:, np.array([True, False, True])],
    "True": True,
}


@pytest.mark.parametrize("key", KEYS)
@over(["RNS of 3 words", "2^128", "degree 1"])
def test_indexing_follows_numpy_on_the_batch(name: str, key: str) -> None:
    R = ring(name)
    x = draw(R, (2, 3))
    labels = np.arange(6).reshape(2, 3)[KEYS[key]]
    got = R(x)[KEYS[key]]
    check(got, x.reshape(6, R.n)[labels], batch=labels.shape)
    if R.has_eval:
        check(R(x).ntt()[KEYS[key]], x.reshape(6, R.n)[labels], "eval", batch=labels.shape)


@everywhere
@pytest.mark.parametrize("key", [2, -3, np.s_[0, 0, 0], np.s_[0, 0, 0, 0], np.ones((2, 3, 1), bool)])
def test_indexing_of_coefficient_axes_raises(key: Any) -> None:
    with pytest.raises(IndexError, match=r"batch shape is \(2, 3\).*poly\.data"):
        R17.zeros((2, 3))[key]


@everywhere
def test_iteration_and_len() -> None:
    x = draw(RNS, (3, 2))
    a = RNS(x)
    assert len(a) == 3 and len(RNS.zeros(0)) == 0 and list(RNS.zeros(0)) == []
    parts = list(a)
    assert len(parts) == 3
    for part, row in zip(parts, x, strict=True):
        check(part, row)
    for call in (len, iter, list):
        with pytest.raises(TypeError, match="single polynomial"):
            call(a[0, 0])


@everywhere
@pytest.mark.parametrize(
    "shape", [(6,), (3, 2), (-1,), (2, -1), (1, 6, 1), ((3, 2),), ((2, -1, 1),), (np.int64(6),)]
)
def test_reshape(shape: Any) -> None:
    x = draw(RNS, (2, 3))
    a = RNS(x)
    sizes = shape[0] if isinstance(shape[0], tuple) else shape
    got = a.reshape(*shape)
    check(got, x.reshape(6, 4).reshape(*np.zeros(6).reshape(sizes).shape, 4))
    assert shares_memory(got.data, a.data)


@everywhere
def test_reshape_to_and_from_a_single_polynomial() -> None:
    a = RNS([1, 2])
    assert a.reshape(1, 1).shape == (1, 1) and a.reshape(1).reshape().shape == ()
    assert a.reshape(1).reshape(()) == a


@everywhere
def test_copy_owns_its_memory() -> None:
    a = RNS(draw(RNS, (2,)))
    b = a.copy()
    assert b == a and not shares_memory(a.data, b.data) and b.ring is a.ring


# ---- sums ----


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -3, (0, 1), (0, -1), (2, 0), (0, 1, 2), ()])
@few_rings
def test_sum(name: str, axis: Any) -> None:
    R = ring(name)
    x = draw(R, (2, 5, 3))
    axes = range(3) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    expected = x.sum(axis=tuple(a % 3 for a in axes)) % R.modulus if axes != () else x
    check(R(x).sum(axis), expected)


@everywhere
def test_sum_into_out() -> None:
    R = ring("RNS of 3 words")
    a = R.random((2, 3), seed=1)
    out = R.zeros(3).ntt()
    assert a.sum(0, out=out) is out and out == a[0] + a[1] and out.domain == "coef"
    single = R.zeros()
    assert a.sum(out=single) is single and single == a.sum()
    same = a.copy()
    assert a.sum((), out=same) is same and same == a
    with pytest.raises(pg.errors.OutputError, match=r"batch shape \(3,\) and the result has \(2,\)"):
        a.sum(1, out=out)
    with pytest.raises(pg.errors.OutputError, match="overlaps"):
        a.sum(0, out=a[0])


@everywhere
def test_np_sum() -> None:
    a = ring("RNS of 3 words").random((2, 3), seed=1)
    assert np.sum(a) == a.sum() and np.sum(a, axis=1) == a.sum(1)
    out = a[0].copy()
    assert np.sum(a, 0, out=out) is out and out == a.sum(0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 1000])
@every_ring
def test_long_sums_do_not_overflow(name: str, count: int) -> None:
    R = ring(name)
    if R.n * count > 20_000:
        count = 20_000 // R.n
    a = R([R.modulus - 1] * R.n)
    got = a.reshape(1)[np.zeros(count, int)].sum()
    check(got, [-count % R.modulus] * R.n)


@pytest.mark.parametrize(
    ("batch", "axis", "result"),
    [((0,), None, ()), ((0, 2), 0, (2,)), ((0, 2), 1, (0,)), ((2, 0), 1, (2,)), ((0, 0), None, ())],
)
@few_rings
def test_sum_of_an_empty_batch_is_zero(
    name: str, batch: tuple[int, ...], axis: Any, result: tuple[int, ...]
) -> None:
    R = ring(name)
    check(R.zeros(batch).sum(axis), np.zeros((*result, R.n), dtype=object), batch=result)


@everywhere
def test_sum_does_not_share_memory_with_its_operand() -> None:
    a = RNS(draw(RNS, (1,)))
    for poly in (a.sum(), a.sum(()), a[0].sum(), a.sum(0)):
        assert not shares_memory(poly.data, a.data)


# ---- joining ----


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3, np.int64(1)])
@over(["RNS of 3 words", "2^128", "degree 1"])
def test_stack(name: str, axis: int) -> None:
    R = ring(name)
    x, y = draw(R, (2, 3), 1), draw(R, (2, 3), 2)
    at = axis % 3
    check(pg.stack([R(x), R(y)], axis), np.stack([x, y], at))
    check(pg.stack((p for p in (R(x), R(y))), axis), np.stack([x, y], at))


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@over(["RNS of 3 words", "2^128", "degree 1"])
def test_concatenate(name: str, axis: int) -> None:
    R = ring(name)
    at = axis % 2
    x, y = draw(R, (2, 3), 1), draw(R, ((4, 3), (2, 5))[at], 2)
    check(pg.concatenate([R(x), R(y), R(x)], axis), np.concatenate([x, y, x], at))


@everywhere
def test_stack_and_concatenate_of_one_batch() -> None:
    x = draw(RNS, (3, 2))
    check(pg.stack(RNS(x)), x)
    check(pg.concatenate(RNS(x)), x.reshape(6, 4))


@few_transforms
def test_stack_and_concatenate_of_mixed_domains_give_eval(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    for a, b, domain in (
        (R(x), R(y).ntt(), "eval"),
        (R(x).ntt(), R(y), "eval"),
        (R(x).ntt(), R(y).ntt(), "eval"),
        (R(x), R(y), "coef"),
    ):
        check(pg.stack([a, b]), np.stack([x, y]), domain)
        check(pg.concatenate([a, b]), np.concatenate([x, y]), domain)


@everywhere
def test_stack_and_concatenate_copy() -> None:
    a = RNS(draw(RNS, (2,)))
    assert not shares_memory(pg.stack([a]).data, a.data)
    assert not shares_memory(pg.concatenate([a]).data, a.data)


# ---- powers and dot ----


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, np.int64(5)])
@every_ring
def test_powers(name: str, k: int) -> None:
    R = ring(name)
    x = draw(R, (2,))
    expected = np.zeros_like(x)
    expected[:, 0] = 1
    for _ in range(k):
        expected = times(R, expected, x)
    check(R(x) ** k, expected)
    if R.has_eval:
        check(R(x).ntt() ** k, expected, "eval")


@everywhere
def test_first_power_does_not_share_memory() -> None:
    a = R17([1, 2])
    assert not shares_memory((a**1).data, a.data)


@everywhere
def test_power_with_a_large_exponent() -> None:
    # The unit group of F_17[X]/(X^4 + 1) is (F_17*)^4, of exponent 16.
    a = R17([3, 1])
    assert a**16 == 1 and a ** (16 * 10**40 + 3) == a**3


@every_ring
def test_dot(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (3,), 2)
    check(pg.dot(R(x), R(y)), times(R, x, y).sum(axis=0) % R.modulus)


@over(["30 bits", "RNS of 3 words", "3 layers early"], devices=["cpu", *CARDS])
def test_dot_of_1001_terms(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (1001,), 1), draw(R, (1001,), 2)
    check(pg.dot(R(x), R(y)), times(R, x, y).sum(axis=0) % R.modulus)
    check(pg.dot(R(x).ntt(), R(y).ntt()), times(R, x, y).sum(axis=0) % R.modulus, "eval")


@pytest.mark.parametrize("axis", [0, 1, -1, -2, np.int64(1)])
@pytest.mark.parametrize(("left", "right", "result"), DOMAINS)
@few_transforms
def test_dot_axes_and_domains(name: str, left: str, right: str, result: str, axis: int) -> None:
    R = ring(name)
    x, y = draw(R, (2, 3), 1), draw(R, (3,), 2)
    expected = times(R, x, y).sum(axis=axis if axis >= 0 else axis - 1) % R.modulus
    check(pg.dot(in_domain(R(x), left), in_domain(R(y), right), axis=axis), expected, result)


@everywhere
def test_dot_over_an_axis_of_one_operand_only() -> None:
    x, y = draw(RNS, (3,), 1), draw(RNS, (2, 3), 2)
    for a, b in ((x, y), (y, x)):
        check(pg.dot(RNS(a), RNS(b), axis=1), times(RNS, x, y).sum(axis=1) % RNS.modulus)
        check(pg.dot(RNS(a), RNS(b), axis=0), times(RNS, x, y).sum(axis=0) % RNS.modulus)


@everywhere
def test_dot_over_an_empty_axis_is_zero() -> None:
    check(pg.dot(R17.zeros((0, 2)), R17.zeros((0, 2)), axis=0), [[0] * 4] * 2)


@everywhere
def test_dot_with_an_int_is_a_multiple_of_the_sum() -> None:
    x = draw(RNS, (3,))
    check(pg.dot(RNS(x), -2), x.sum(axis=0) * -2 % RNS.modulus)


# ---- writing in place ----

PLACES: list[Any] = [
    0,
    -1,
    (1, 2),
    np.s_[1:],
    np.s_[:, 1],
    np.s_[::-1, ::2],
    np.s_[None, 0],
    [1, 0],
    np.array([[True, False, True], [False, True, False]]),
    (),
    ...,
    (slice(0, 0),),
]


@pytest.mark.parametrize("place", PLACES, ids=repr)
@few_rings
def test_assignment_writes_in_place(name: str, place: Any) -> None:
    R = ring(name)
    x, y = draw(R, (2, 3), 1), draw(R, (2, 3), 2)
    for domain in ("coef", "eval") if R.has_eval else ("coef",):
        a, b = in_domain(R(x), domain), R(y)
        data, expected = a.data, x.copy()
        for value, ints in ((b[place], y[place]), (b[0, 0].ntt() if R.has_eval else b[0, 0], y[0, 0])):
            a[place] = value
            expected[place] = ints
            assert a.data is data
            check(a, expected, domain)
        a[place] = -2
        expected[place] = [(R.modulus - 2) % R.modulus, *[0] * (R.n - 1)]
        check(a, expected, domain)


@everywhere
def test_assignment_with_ellipsis_and_slices() -> None:
    x, y = draw(RNS, (2, 3), 1), draw(RNS, (2,), 2)
    a = RNS(x)
    a[..., 0] = RNS(y)
    x[:, 0] = y
    check(a, x)


@everywhere
def test_assignment_of_overlapping_values() -> None:
    x = draw(RNS, (4,))
    a = RNS(x)
    a[1:] = a[:-1]
    check(a, [x[0], x[0], x[1], x[2]])
    a = RNS(x)
    a[::-1] = a
    check(a, x[::-1])
    a[:] = a[2]
    check(a, [x[1]] * 4)


@everywhere
def test_assignment_raises_for_values_that_do_not_fit() -> None:
    a = RNS(draw(RNS, (2, 3)))
    kept = a.copy()
    with pytest.raises(pg.ParameterError, match=r"batch shape \(2,\), which does not broadcast to \(3,\)"):
        a[0] = RNS.zeros(2)
    with pytest.raises(pg.ParameterError, match="does not broadcast"):
        a[0] = RNS.zeros((2, 3))
    with pytest.raises(IndexError, match=r"batch shape is \(2, 3\)"):
        a[2] = RNS(1)
    with pytest.raises(IndexError, match=r"batch shape is \(2, 3\)"):
        a[0, 0, 0] = RNS(1)
    with pytest.raises(pg.RingMismatch):
        a[0] = R17(1)
    for wrong in (1.5, True, "1", [1, 2]):
        with pytest.raises(TypeError):
            a[0] = wrong
    assert a == kept


@on("cpu")
def test_assignment_to_read_only_memory_raises() -> None:
    a = R17([[1, 2], [3, 4]])
    a.data.flags.writeable = False
    with pytest.raises(pg.errors.OutputError, match=r"read-only.*copy"):
        a[0] = a[1]


@everywhere
def test_np_sum_over_every_axis() -> None:
    x = draw(RNS, (2, 3))
    for axis in (None, 0, -1, (0, 1)):
        summed = x.sum(axis=(0, 1) if axis is None else axis if axis != -1 else 1)
        check(np.sum(RNS(x), axis=axis), summed % RNS.modulus)


def test_assignment_with_repeated_indices_keeps_the_last_value(device: str) -> None:
    """If an index occurs twice in an assignment, the last value stays, as in NumPy, for every kind of key."""
    R = pg.Ring(4, [17, 97])
    for key in ([2, 0, 2], [[0, 1], [1, 0]], np.array([-1, 3, 0]), (slice(None), [1, 1])):
        a, places = R(np.arange(64).reshape(4, 4, 4)), np.arange(16).reshape(4, 4)
        values = R(np.arange(1000, 1000 + places[key].size * 4).reshape(*places[key].shape, 4))
        expected = a.copy().cpu()
        expected.data.reshape(16, -1)[places[key].ravel()] = values.cpu().data.reshape(places[key].size, -1)
        a[key] = values
        assert a.cpu() == expected
        found = a[key].cpu().data
        np.testing.assert_array_equal(found, expected.data[key])
