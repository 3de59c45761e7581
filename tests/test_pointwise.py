"""Operations on each residue: sums, differences, scaling, fma and comparisons; also products."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from devices import HOST, backend, host, over, shares_memory, there
from oracle import (
    DOMAINS,
    FEW,
    R17,
    RINGS,
    RNS,
    check,
    draw,
    every_ring,
    every_transform,
    everywhere,
    few_rings,
    few_transforms,
    in_domain,
    padded,
    ring,
    times,
)

import polygpu as pg
from polygpu import Poly, Ring
from polygpu._core.exact.primes import GOLDILOCKS
from polygpu._core.plans.basis import basis_of
from polygpu._ops.arrays import empty
from polygpu._ops.pointwise import pointwise

OPERATIONS = {
    "add": (Poly.add, lambda R, x, y: (x + y) % R.modulus),
    "sub": (Poly.sub, lambda R, x, y: (x - y) % R.modulus),
    "mul": (Poly.mul, times),
}


every_operation = pytest.mark.parametrize("operation", OPERATIONS)


@every_ring
def test_sums_differences_products(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (3,), 2)
    x[0], y[0] = R.modulus - 1, R.modulus - 1  # the largest accumulators
    a, b = R(x), R(y)
    check(a + b, (x + y) % R.modulus)
    check(a - b, (x - y) % R.modulus)
    check(-a, -x % R.modulus)
    check(+a, x)
    check(a * b, times(R, x, y))
    check(a * a, times(R, x, x))
    check(Poly.mul(a, b), times(R, x, y))


@pytest.mark.parametrize(("left", "right", "result"), DOMAINS)
@every_operation
@every_transform
def test_operations_in_every_pair_of_domains(
    name: str, operation: str, left: str, right: str, result: str
) -> None:
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    method, oracle = OPERATIONS[operation]
    poly = method(in_domain(R(x), left), in_domain(R(y), right))
    check(poly, oracle(R, x, y), result)


@pytest.mark.parametrize("domain", ["coef", "eval"])
@few_transforms
def test_unary_operations_keep_the_domain(name: str, domain: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a = in_domain(R(x), domain)
    check(-a, -x % R.modulus, domain)
    check(a.neg(), -x % R.modulus, domain)
    check(a.copy(), x, domain)
    check(a.sum(), x.sum(axis=0) % R.modulus, domain)


SCALARS = [0, 1, -1, 5, 2**31, -(2**63), 2**64, -(3**100), np.int8(-7), np.uint64(2**64 - 1)]


@pytest.mark.parametrize("c", SCALARS, ids=repr)
@pytest.mark.parametrize("domain", ["coef", "eval"])
@over([*FEW, "RNS with 2^64", "2^32", "2^64", "64 bits", "q = 2", "2^65"], FEW)
def test_ints_are_constants_of_the_ring(name: str, domain: str, c: Any) -> None:
    R = ring(name)
    if domain == "eval" and not R.has_eval:
        return
    x, q, k = draw(R, (2,)), R.modulus, int(c)
    constant = padded(R, [k])
    a = in_domain(R(x), domain)
    check(a + c, (x + constant) % q, domain)
    check(c + a, (x + constant) % q, domain)
    check(a - c, (x - constant) % q, domain)
    check(c - a, (constant - x) % q, domain)
    check(a * c, x * k % q, domain)
    check(c * a, x * k % q, domain)
    check(Poly.mul(a, c), x * k % q, domain)


@everywhere
def test_sum_builtin() -> None:
    x = draw(RNS, (5,))
    check(sum(RNS(x)), x.sum(axis=0) % RNS.modulus)


@pytest.mark.parametrize(
    "expression",
    [
        lambda x, a: x * a,
        lambda x, a: a * x,
        lambda x, a: x + a,
        lambda x, a: a - x,
        lambda x, a: x - a,
    ],
)
@pytest.mark.parametrize("x", [np.arange(4), np.array(3), np.ones((1, 4)), np.zeros(0, int)])
def test_arrays_as_operands_raise(x: np.ndarray, expression: Any) -> None:
    with pytest.raises(TypeError, match=r"ring\(array"):
        expression(x, R17([1, 2]))


@pytest.mark.parametrize("other", [1.5, "1", None, True, np.True_, np.float64(2), 1j, [1], b"1"])
def test_operands_of_other_types_raise(other: Any) -> None:
    a = R17([1, 2])
    for expression in (
        lambda: a + other,
        lambda: other + a,
        lambda: a - other,
        lambda: a * other,
        lambda: other * a,
    ):
        with pytest.raises(TypeError):
            expression()


@everywhere
def test_augmented_assignment_rebinds() -> None:
    x = draw(RNS, (2,))
    a = first = RNS(x)
    a += 1
    a -= 2
    a *= a
    check(first, x)
    shifted = x.copy()
    shifted[:, 0] -= 1
    check(a, times(RNS, shifted, shifted))


BATCHES = [
    ((), (3,)),
    ((3,), ()),
    ((1,), (4,)),
    ((2, 1), (3,)),
    ((2, 1, 3), (4, 1)),
    ((0,), ()),
    ((0, 1), (5,)),
    ((1, 1), ()),
    ((1, 1, 2, 1, 1, 2), (2, 1, 1, 3, 1, 1)),
]


@pytest.mark.parametrize("domain", ["coef", "eval"])
@pytest.mark.parametrize(("left", "right"), BATCHES)
@every_operation
@few_rings
def test_operations_broadcast_batch_axes(
    name: str, operation: str, left: tuple[int, ...], right: tuple[int, ...], domain: str
) -> None:
    R = ring(name)
    if domain == "eval" and not R.has_eval:
        return
    x, y = draw(R, left, 1), draw(R, right, 2)
    method, oracle = OPERATIONS[operation]
    expected = oracle(R, x, y)
    check(method(in_domain(R(x), domain), in_domain(R(y), domain)), expected, domain)


@everywhere
def test_operations_on_more_axes_than_a_kernel_broadcasts() -> None:
    x, y = draw(R17, (1, 2) * 4, 1), draw(R17, (2, 1) * 4, 2)
    a, b = R17(x), R17(y)
    check(a + a, (x + x) % 17)  # nothing broadcasts
    check(a + b, (x + y) % 17)
    check(a * b, times(R17, x, y))
    check(a * 7, x * 7 % 17)


# ---- out= ----


SHARING = {
    "other memory": lambda a, b: (a, b, a.ring.ones(a.shape)),
    "the first operand": lambda a, b: (a, b, a),
    "the second operand": lambda a, b: (a, b, b),
    "both operands": lambda a, b: (a, a, a),
    "two views of one array": lambda a, b: (a, a.ring.from_residues(a.data[:], domain=a.domain), a),
}


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize(("left", "right", "result"), DOMAINS)
@every_operation
@few_rings
def test_operations_into_out(
    name: str, operation: str, left: str, right: str, result: str, sharing: str
) -> None:
    R = ring(name)
    if "eval" in (left, right) and not R.has_eval:
        return
    x, y = draw(R, (3,), 1), draw(R, (3,), 2)
    a, b, out = SHARING[sharing](in_domain(R(x), left), in_domain(R(y), right))
    method, oracle = OPERATIONS[operation]
    if b is not a and sharing != "two views of one array":
        expected = oracle(R, x, y)
    else:
        expected, result = oracle(R, x, x), left
    untouched = [(p, p.data.copy(), p.domain) for p in (a, b) if p is not out]
    memory = out.data
    assert method(a, b, out=out) is out
    assert out.data is memory
    check(out, expected, result)
    for p, data, domain in untouched:
        if not shares_memory(p.data, memory):
            assert bool((p.data == data).all()) and p.domain == domain


@pytest.mark.parametrize("c", [-3, 2**70])
@few_rings
def test_out_with_an_int(name: str, c: int) -> None:
    R = ring(name)
    x = draw(R, (2,))
    a = R(x)
    assert a.mul(c, out=a) is a
    check(a, x * c % R.modulus)
    assert a.sub(c, out=a) is a
    check(a, (x * c - padded(R, [c])) % R.modulus)
    assert a.neg(out=a) is a
    check(a, (padded(R, [c]) - x * c) % R.modulus)


@everywhere
def test_invalid_out_raises() -> None:
    a, b = RNS(draw(RNS, (2, 3))), RNS(draw(RNS, (3,)))
    with pytest.raises(pg.errors.OutputError, match="batch shape"):
        a.add(b, out=b)
    with pytest.raises(pg.errors.OutputError, match="overlaps"):
        a[0].add(a[1], out=Poly(RNS, a.data.reshape(6, 3, 4)[1:4], "coef"))
    with pytest.raises(pg.ParameterError, match="broadcast"):
        a + RNS(draw(RNS, (2,)))


@few_rings
def test_out_with_a_batch_that_broadcasts(name: str) -> None:
    R = ring(name)
    x, y = draw(R, (3,), 1), draw(R, (), 2)
    a, b = R(x), R(y)
    check(a.mul(b, out=a), times(R, x, y))
    check(b, y)


@over(RINGS, FEW, HOST)
def test_operands_are_not_changed(name: str) -> None:
    """Operands are read-only, every operation succeeds, and their bytes do not change."""
    R = ring(name)
    x, y = draw(R, (2,), 1), draw(R, (2,), 2)
    operands = [in_domain(R(v), d) for v in (x, y) for d in ("coef", "eval")[: 1 + R.has_eval]]
    for p in operands:
        p.data.flags.writeable = False
    before = [p.data.tobytes() for p in operands]
    domains = [p.domain for p in operands]
    g = max(R.n * {"cyclic": 1, "negacyclic": 2, "trinomial": 3}[R.kind] - 1, 1)
    for a in operands:
        for b in operands:
            for result in (a + b, a - b, a * b, pg.fma(a, b, a), pg.dot(a, b), pg.stack([a, b])):
                assert result.data.flags.writeable
            pg.equal(a, b)
        for result in (-a, a * 3, a + 3, a**2, a.automorphism(g), a.mul_monomial(3), a.sum()):
            assert result.data.flags.writeable
        a.intt(), a.to_bigints(centered=True), a.norm(1), a([2]), a.copy(), a[0], repr(a), a._repr_html_()
    assert [p.data.tobytes() for p in operands] == before
    assert [p.domain for p in operands] == domains


# ---- fma ----


@pytest.mark.parametrize("domains", ["ccc", "eee", "cce", "ece", "eec", "cee"])
@every_transform
def test_fma_of_any_domains(name: str, domains: str) -> None:
    R = ring(name)
    x, y, z = (draw(R, (2,), seed) for seed in range(3))
    a, b, c = (
        in_domain(R(v), {"c": "coef", "e": "eval"}[d]) for v, d in zip((x, y, z), domains, strict=True)
    )
    expected = (times(R, x, y) + z) % R.modulus
    domain = "eval" if "e" in domains else "coef"
    check(pg.fma(a, b, c), expected, domain)
    out = R.ones(2)
    assert pg.fma(a, b, c, out=out) is out
    check(out, expected, domain)


@every_ring
def test_fma(name: str) -> None:
    R = ring(name)
    x, y, z = draw(R, (2, 1), 1), draw(R, (3,), 2), draw(R, (), 3)
    check(pg.fma(R(x), R(y), R(z)), (times(R, x, y) + z) % R.modulus)
    check(pg.fma(R(x), -5, 2**70), (x * -5 + padded(R, [2**70])) % R.modulus)


@pytest.mark.parametrize("domain", ["coef", "eval"])
@pytest.mark.parametrize("which", [0, 1, 2])
@few_rings
def test_fma_in_place(name: str, which: int, domain: str) -> None:
    R = ring(name)
    if domain == "eval" and not R.has_eval:
        return
    values = [draw(R, (2,), seed) for seed in range(3)]
    operands = [in_domain(R(v), domain) for v in values]
    pg.fma(*operands, out=operands[which])
    check(operands[which], (times(R, values[0], values[1]) + values[2]) % R.modulus, domain)
    for i in {0, 1, 2} - {which}:
        check(operands[i], values[i], domain)


# ---- comparison ----


@every_ring
def test_equality_of_values(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    y = x.copy()
    y[1, -1] = (y[1, -1] + 1) % R.modulus
    a = R(x)
    assert (a == R(x)) is True and (a != R(x)) is False
    assert (a == R(y)) is False and (a != R(y)) is True
    assert pg.equal(a, R(y)).tolist() == [True, False]
    if R.has_eval:
        assert a.ntt() == a and a == a.ntt() and a.ntt() != R(y)
        assert pg.equal(a.ntt(), R(y)).tolist() == [True, False]


@every_ring
def test_equality_compares_every_row_and_coefficient(name: str) -> None:
    R = ring(name)
    for row in range(R.rows):
        for j in {0, R.n // 2, R.n - 1}:
            data = np.zeros((R.rows, R.n), R.dtype)
            data[row, j] = 1
            a = R.from_residues(there(data))
            assert a != 0 and a != R.zeros() and not pg.equal(R.zeros(), a)


@everywhere
def test_equality_with_ints() -> None:
    assert R17(3) == 3 and R17([3, 1]) != 3 and R17(-14) == 3 and R17(3).ntt() == 20
    assert R17([[3], [3]]) == 3 and R17([[3], [4]]) != 3
    assert R17(3) == np.int8(3) and np.int8(3) == R17(3)


@pytest.mark.parametrize("other", [True, 1.0, "1", None, 1j])
def test_equality_with_other_types(other: Any) -> None:
    assert R17(1) != other
    assert other != R17(1)


@everywhere
def test_other_rings_and_shapes_are_unequal() -> None:
    a = R17([1, 2])
    assert a != Ring(4, 97)([1, 2])
    assert a != Ring(4, 17, kind="cyclic")([1, 2])
    assert a != Ring(4, 17, root="generator")([1, 2])
    assert a != R17([[1, 2]])
    assert a == Ring(4, [17], root=2)([1, 2])


@everywhere
def test_equal_broadcasts_batches() -> None:
    a, b = R17([[[1], [2]]]), R17([[1], [2], [1]])
    assert pg.equal(a.reshape(2, 1), b).tolist() == [[True, False, True], [False, True, False]]
    assert pg.equal(b, 1).tolist() == [True, False, True]
    assert pg.equal(R17(1), 1).shape == () and pg.equal(R17(1), 1).dtype == np.bool_
    assert pg.equal(R17.zeros((0, 2)), 0).shape == (0, 2)


def test_hash_and_bool_raise() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(R17(1))
    for poly in (R17(0), R17(1), R17.zeros(0)):
        with pytest.raises(TypeError, match="poly == 0"):
            bool(poly)


# ---- integers as operands ----

constants = pytest.mark.parametrize("constant", [0, 1, -1, 5, 2**64, -(2**200) - 1, np.int8(-3)], ids=repr)


@pytest.mark.parametrize("moduli", [97, [97, 113], 2**64, 2**89 - 1], ids=repr)
def test_addition_of_a_constant_does_not_change_its_operand(device: str, moduli: Any) -> None:
    """With one limb and no batch, the constant coefficient is a single entry."""
    R = Ring(8, moduli)
    a = R([5, 1])
    before = host(a.data).copy()
    for domain in ("coef", "eval") if R.has_eval else ("coef",):
        x = a if domain == "coef" else a.ntt()
        kept = host(x.data).copy()
        assert x + 7 == R([12, 1]) and x - 7 == R([-2, 1]) and 7 - x == R([2, -1])
        assert (host(x.data) == kept).all()
    assert (host(a.data) == before).all()


def test_products_modulo_goldilocks_carry(device: str) -> None:
    """Pairs of words at which the halves of a product borrow or carry, and random words."""
    q = GOLDILOCKS
    near = [0, 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**63, q // 2, q - 2**32, q - 2, q - 1]
    drawn = random.Random(4)
    words = near + [drawn.randrange(q) for _ in range(20)]
    R = Ring(len(words), q)
    a = R.from_residues(there(np.array([[[x] * len(words)] for x in words], np.uint64)))
    b = R.from_residues(there(np.array([words], np.uint64)))
    found = host(pointwise(R._plan.basis, "mul", a.data, b.data))
    assert found[:, 0].tolist() == [[x * y % q for y in words] for x in words]


@constants
@pytest.mark.parametrize("domain", ["coef", "eval"])
@few_transforms
def test_operations_with_constants_do_not_transform(
    monkeypatch: pytest.MonkeyPatch, name: str, domain: str, constant: Any
) -> None:
    R = ring(name)
    x, q, c = draw(R, (2, 3)), R.modulus, int(constant)
    a = in_domain(R(x), domain)
    kept = a.copy()
    one = np.zeros(R.n, dtype=object)
    one[0] = c

    def refused(*_: Any) -> Any:
        raise AssertionError("transformed")

    with monkeypatch.context() as patch:
        R._plan.calls.clear()
        patch.setattr("polygpu._ops.transform.result_array", refused)
        sums = a + constant, constant + a, a - constant, constant - a, a.add(constant), a.sub(constant)
        same_constant = R(0).add(constant) if domain == "coef" else a - a + constant
        assert same_constant == constant and (a + constant == a) == (c % q == 0)
    plus, minus = (x + one) % q, (x - one) % q
    for got, expected in zip(sums, (plus, plus, minus, (one - x) % q, plus, minus), strict=True):
        check(got, expected, domain)
    assert a == kept
    out = R.zeros((2, 3))
    assert a.sub(constant, out=out) is out
    check(out, minus, domain)
    assert a.add(constant, out=a) is a
    check(a, plus, domain)


@pytest.mark.parametrize("domain", ["coef", "eval"])
@few_transforms
def test_scale_by_factors_of_the_batch(name: str, domain: str) -> None:
    R = ring(name)
    x = draw(R, (2, 3))
    a = in_domain(R(x), domain)
    for ints in (
        -3,
        2**100,
        [1, -2, 2**300],
        [[5], [-(2**70)]],
        np.array([[1, -128, 127]], np.int8),
        np.arange(6, dtype=np.uint64).reshape(2, 3) + np.uint64(2**64 - 6),
        np.array([[R.modulus - 1, R.modulus, R.modulus // 2]] * 2, dtype=object),
        there(np.array([-1, 2, 3], np.int64)),
    ):
        values = np.array(host(ints) if hasattr(ints, "shape") else ints, dtype=object)
        expected = x * values[..., None] % R.modulus
        check(a.scale_by(ints), expected, domain)
    out = R.zeros((2, 3))
    assert a.scale_by([3, 4, 5], out=out) is out
    check(out, x * np.array([3, 4, 5], dtype=object)[:, None] % R.modulus, domain)
    assert a.scale_by([3, 4, 5], out=a) is a and a == out
    check(R(x[0, 0]).scale_by(7), x[0, 0] * 7 % R.modulus)


@over(
    ["30 bits", "RNS of 3 words", "RNS of mixed moduli", "RNS with 2^64", "2^128"],
    ["RNS of 3 words", "2^128"],
)
def test_scale_by_factors_of_limbs(name: str) -> None:
    R = ring(name)
    x = draw(R, (2,))
    limbs = [-1, 2**90, 5][: len(R.moduli)]
    got = R(x).scale_by(limbs=limbs).to_residue_ints().reshape(2, len(limbs), R.n)
    for i, (f, q) in enumerate(zip(limbs, R.moduli, strict=True)):
        assert got[:, i].tolist() == (x * f % q).tolist()
    for wrong in (limbs[1:], [*limbs, 1], 3 if len(limbs) > 1 else [1, 2]):
        with pytest.raises(pg.ParameterError, match="one factor for each limb"):
            R(x).scale_by(limbs=wrong)


@everywhere
def test_scale_by_invalid_factors_raises() -> None:
    a = RNS(draw(RNS, (2, 3)))
    for ints in ([1, 2], np.ones((3, 2, 3), int), np.ones((2, 1, 1), int)):
        with pytest.raises(pg.ParameterError, match="batch shape"):
            a.scale_by(ints)
    for ints in (1.5, [1.0, 2, 3], [True, 2, 3], "3", RNS(1)):
        with pytest.raises(pg.errors.CoefficientError):
            a.scale_by(ints)
    for arguments in ({}, {"ints": 3, "limbs": [1, 2, 3]}):
        with pytest.raises(pg.ParameterError, match="limbs, one for each modulus"):
            a.scale_by(**arguments)


@over(RINGS, devices=["cpu"])
def test_scale_by_on_every_instruction_set(each_isa: str, name: str) -> None:
    R = ring(name)
    x, q = draw(R, (3,)), R.modulus
    for factor in (q - 1, 1, 0, q // 2, 12345678901234567890):
        check(R(x).scale_by(factor), x * factor % q)


@everywhere
def test_equality_with_an_array_raises() -> None:
    a = R17([[1, 2], [3, 4]])
    for array in (np.zeros((2, 4), int), np.array(1), there(np.zeros(2, np.int64))):
        for compare in (lambda x, y: x == y, lambda x, y: x != y):
            with pytest.raises(TypeError, match=r"ring\(values\)"):
                compare(a, array)


@pytest.mark.parametrize(
    ("q", "x", "y"),
    [
        (4444593245997215678, 4444593245997215676, 4444593245060916203),
        (4532982764519036401, 4532982763539923269, 4532982764291586572),
    ],
)
def test_barrett_quotient_that_is_2_too_small(q: int, x: int, y: int, device: str) -> None:
    """Fewer than one product in 200 has such a quotient, modulo numbers of 62 bits."""
    assert x * y // q - ((x * y >> 60) * (2**124 // q) >> 64) == 2
    basis = basis_of((q,))
    a, b = (there(np.full((1, 8), value, np.uint64)) for value in (x, y))
    out = empty(backend(), a.shape, a.dtype)
    backend().pointwise(basis, "mul", a, b, None, out)
    assert host(out).tolist() == [[x * y % q] * 8]
