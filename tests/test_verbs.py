"""Every public operation on every device: repeated calls, other values and constants, CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cache, partial
from typing import Any

import numpy as np
from devices import CARDS, backend, host, in_threads, over
from verbs import OTHERS, VERBS, Case, Unprepared, is_constant, placed, public_names

import polygpu as pg
from polygpu import Poly, Ring
from polygpu._backends import is_device_array
from polygpu._core.plans import cache as plan_cache
from polygpu._core.plans.basis import basis_of
from polygpu.lattice import Prepared

TOLERANCES = {"c8": 2.0**-18, "c16": 2.0**-46, "f8": 2.0**-46}  # of the largest number, by dtype


def test_every_public_name_is_listed() -> None:
    assert sorted([*VERBS, *OTHERS]) == public_names()
    for name, cases in VERBS.items():
        assert cases and all(case.graph or case.error for case in cases), name
        assert [label for label, n in Counter(x.label for x in cases).items() if n > 1] == [], name


def test_seeds_of_a_case_change_only_values() -> None:
    def check(case: Case) -> None:
        for x, y in zip(case.args(1), case.args(2), strict=True):
            assert type(x) is type(y)
            if isinstance(x, Poly):
                assert (x.ring, x.domain, x.device) == (y.ring, y.domain, "cpu")
            if not is_constant(x):
                x, y = memory_of(x), memory_of(y)
                assert (x.shape, x.dtype) == (y.shape, y.dtype) and (x != y).any()

    for name in VERBS:
        each_case(name, check)


def seen(x: Any) -> Any:
    """What a result or an argument is, in host memory."""
    if isinstance(x, (tuple, list)):
        return [seen(value) for value in x]
    if isinstance(x, Poly):
        return x.ring, x.domain, x.shape, seen(x.data)
    if isinstance(x, Prepared):
        return x.ring, x.shape, x.bits, seen(x._data)
    return host(x).copy() if isinstance(x, np.ndarray) or is_device_array(x) else x


def memory_of(x: Any) -> Any:
    """Return the array of an argument that is not a constant."""
    if isinstance(x, Unprepared):
        return x.ggsw.data
    return x.data if isinstance(x, Poly) else x._data if isinstance(x, Prepared) else x


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        for x, y in zip(found, expected, strict=True):
            compare(x, y)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        bound = TOLERANCES.get(expected.dtype.str[1:], 0) * np.abs(expected).max(initial=0)
        if bound:
            np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
        else:
            np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


def arguments(case: Case, constants: int, values: int) -> list[Any]:
    """Arguments with the constants of one seed, and the values and arrays of another, in host memory."""
    pairs = zip(case.args(constants), case.args(values), strict=True)
    return [x if is_constant(x) else y for x, y in pairs]


def forget_calls() -> None:
    """Drop all that rings, plans and bases keep of earlier calls: the next call is a first one."""
    plan_cache.forget()
    basis_of.cache_clear()


@cache
def by_definition(case: Case, constants: int, values: int) -> Any:
    """What a call gives, computed in Python ints, as a first call: one that repeats another may be wrong."""
    forget_calls()
    with pg.device("reference"):
        return seen(case.f(*map(placed, arguments(case, constants, values))))


def expect(name: str, *seeds: tuple[int, int]) -> None:
    """Compute what the cases of a verb give before any of them is called: by_definition() forgets calls."""

    def compute(case: Case) -> None:
        for constants, values in seeds:
            by_definition(case, constants, values)

    each_case(name, compute)
    forget_calls()


def call(case: Case, seed: int) -> Any:
    """Return the result of a call, which has to be right, and to leave all but `out` as it was."""
    args = list(map(placed, case.args(seed)))
    before = seen(args)
    found = case.f(*args)
    compare(seen(found), by_definition(case, seed, seed))
    check_kept(case, args, before)
    assert case.out is None or found is args[case.out]
    return found


def check_kept(case: Case, args: list[Any], before: list[Any]) -> None:
    for number, (x, y) in enumerate(zip(args, before, strict=True)):
        if number != case.out:
            compare(seen(x), y)


def three(cases: Sequence[Case]) -> list[Case]:
    """The first case, one in the middle and the last."""
    return list(dict.fromkeys((cases[0], cases[len(cases) // 2], cases[-1]))) if cases else []


def cases_of(name: str) -> Sequence[Case]:
    """All cases of a verb; on the simulated card, which is slow, three, and all that no graph can hold."""
    cases = VERBS[name]
    if pg._backends.current_device() != "cuda:1":
        return cases
    return list(dict.fromkeys((*three(cases), *(case for case in cases if not case.graph))))


def each_case(name: str, check: Callable[[Case], None]) -> None:
    """Check the cases of a verb, and raise one error that names those that fail."""
    failed: dict[str, Exception] = {}
    for case in cases_of(name):
        try:
            check(case)
        except Exception as error:
            failed[case.label] = error
    if failed:
        text = "\n".join(f"{label}: {type(error).__name__}: {error}" for label, error in failed.items())
        raise AssertionError(f"{name}:\n{text}") from next(iter(failed.values()))


@over(VERBS, devices=("cpu", *CARDS))
def test_repeated_calls_follow_their_arguments(name: str) -> None:
    """Each call uses its own arguments and constants, whatever was called before it."""
    expect(name, (1, 1), (2, 2))
    results: list[tuple[Any, Any]] = []

    def calls(*seeds: int) -> Callable[[Case], None]:
        def check(case: Case) -> None:
            for seed in seeds:
                results.append((call(case, seed), by_definition(case, seed, seed)))

        return check

    each_case(name, calls(1, 1, 2))
    each_case(name, calls(1))
    for found, expected in results:  # no call has written to the result of another
        compare(seen(found), expected)


def replays(case: Case) -> None:
    """Record a call and replay it on what its arguments' memory holds then; constants stay."""
    args = list(map(placed, case.args(1)))
    if any(isinstance(x, Poly) for x in args):
        replay = pg.capture(case.f, *args)
    else:
        value = Ring(4, 17).ones()
        replay = pg.capture(lambda _, *args: case.f(*args), value, *args)
    for seed in (1, 2):
        for x, new in zip(args, arguments(case, 1, seed), strict=True):
            if not is_constant(new):
                memory_of(x)[...] = memory_of(placed(new))
        before = seen(args)
        found = replay()
        compare(seen(found), by_definition(case, 1, seed))
        check_kept(case, args, before)
        assert case.out is None or found is args[case.out]


@over(VERBS, devices=CARDS)
def test_calls_in_a_cuda_graph(name: str) -> None:
    expect(name, (1, 1), (1, 2))

    def check(case: Case) -> None:
        if case.host_only:
            return
        if case.graph:
            replays(case)
            return
        try:
            replays(case)
        except Exception as error:
            if case.error not in f"{type(error).__name__}: {error}":
                raise
        else:
            raise AssertionError("stands in a graph: the mark graph=False is no longer right")

    each_case(name, check)


def unaligned(x: Any) -> Any:
    """The argument in memory one word behind a multiple of 16 bytes; constants as they are."""
    if is_constant(x) or not isinstance(memory_of(x), (np.ndarray, backend().xp.ndarray)):
        return x
    data = memory_of(x)
    room = backend().xp.empty(data.size + 1, data.dtype)
    room[1:] = data.reshape(-1)
    moved = room[1:].reshape(data.shape)
    return x.ring.from_residues(moved, domain=x.domain, copy=False) if isinstance(x, Poly) else moved


@over(VERBS, devices=("cpu", *CARDS))
def test_repeated_calls_with_other_memory_streams_cards_and_threads(name: str) -> None:
    """Calls use another alignment, stream, card or thread."""
    chosen = three([case for case in VERBS[name] if not case.host_only])
    device = pg._backends.current_device()
    expect(name, (1, 1), (2, 2))

    def moved(case: Case) -> None:
        args = [x if i == case.out else unaligned(x) for i, x in enumerate(map(placed, case.args(2)))]
        compare(seen(case.f(*args)), by_definition(case, 2, 2))

    for case in chosen:
        call(case, 1)
        call(case, 1)
        if case.out is None:
            moved(case)
        if device != "cpu":
            stream = backend().xp.cuda.Stream(non_blocking=True)
            with stream:
                call(case, 2)
                call(case, 1)
                stream.synchronize()
        if device == "cuda:1":  # the simulated cards
            with backend().xp.cuda.Device(2), pg.device("cuda:2"):
                call(case, 2)
                call(case, 1)
        in_threads([partial(copy_context().run, on_card, case, seed) for seed in (1, 2)])
        call(case, 1)


def on_card(case: Case, seed: int) -> None:
    """Call a case in a thread, which has no current card of its own."""
    if pg._backends.current_device() == "cpu":
        call(case, seed)
        return
    with backend().xp.cuda.Device(int(pg._backends.current_device().partition(":")[2])):
        call(case, seed)
