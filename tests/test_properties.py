"""Laws that hold in every ring, on random rings and worst-case coefficients."""

from math import gcd

import flint
import numpy as np
import pytest
from devices import host, on
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import remainder

import polygpu as pg
from polygpu import _cpu
from polygpu.testing import chains, coefficients, edge_coefficients, multiply_integers, polys, rings


def flint_product(a, b, n, modulus, kind):
    """python-flint's integer product, reduced by hand."""
    return [c % modulus for c in remainder(kind, n, (flint.fmpz_poly(a) * flint.fmpz_poly(b)).coeffs())]


def ring_with(count, **options):
    """A ring and `count` coefficient lists of it."""
    return rings(**options).flatmap(lambda ring: st.tuples(st.just(ring), *[coefficients(ring)] * count))


@settings(max_examples=250)
@given(ring_with(2), st.sampled_from(_cpu.supported_isas()))
def test_product_equals_flint_in_every_ring(case, isa):
    ring, a, b = case
    before = _cpu.isa()
    _cpu.set_isa(isa)
    try:
        product = pg.Poly.mul(ring(a), ring(b))
    finally:
        _cpu.set_isa(before)
    assert product.to_bigints().tolist() == flint_product(a, b, ring.n, ring.modulus, ring.kind)


@given(ring_with(2, max_degree=200))
def test_oracle_equals_flint(case):
    ring, a, b = case
    assert multiply_integers(a, b, ring.modulus, ring.kind) == flint_product(
        a, b, ring.n, ring.modulus, ring.kind
    )


@given(ring_with(1, transform=True))
def test_ntt_is_evaluation_and_intt_its_inverse(case):
    ring, a = case
    value = ring(a).ntt()
    assert value.intt().to_bigints().tolist() == a
    limb = len(ring.moduli) - 1
    q, points = ring.moduli[limb], ring.eval_points(limb)
    for k in {0, ring.n // 3, ring.n - 1}:
        x, total = int(points[k]), 0
        middle = pow(x, ring.n // 2, q) if ring.kind == "trinomial" else 0
        assert (pow(x, ring.n, q) - middle + (-1 if ring.kind == "cyclic" else 1)) % q == 0
        for coefficient in reversed(a):
            total = (total * x + coefficient) % q
        assert int(value.data[limb, k]) == total


@given(ring_with(2, transform=True))
def test_convolution_theorem(case):
    ring, a, b = case
    product = (ring(a).ntt() * ring(b).ntt()).intt()
    assert product.to_bigints().tolist() == multiply_integers(a, b, ring.modulus, ring.kind)


@on("cpu", "cuda")
@given(rings(max_degree=48, max_bits=100), st.data())
def test_operations_equal_the_reference(ring, data):
    a = data.draw(polys(ring, batch=(2,), domain="coef"))
    b = data.draw(polys(ring, batch=(), domain="coef"))
    g = data.draw(st.integers(1, 4 * ring.n))
    assume(gcd(g, 6 * ring.n) == 1)

    def results(a, b):
        yield from (a + b, a - b, -a, a * b, a * 5, a.automorphism(g), a.mul_monomial(g))
        if ring.has_eval:
            x, y = a.ntt(), b.ntt()
            yield from (x, x.intt(), x * y, x + y, pg.fma(x, y, x), x.automorphism(g))

    fast = [(p.domain, host(p.data)) for p in results(a.to(), b.to())]
    with pg.device("reference"):
        slow = [(p.domain, p.data) for p in results(a.cpu(), b.cpu())]
    for (domain, left), (other, right) in zip(fast, slow, strict=True):
        assert domain == other and left.dtype == right.dtype and np.array_equal(left, right)


@given(rings(max_degree=512), st.data())
def test_ring_laws(ring, data):
    a, b, c = (data.draw(polys(ring, batch=())) for _ in range(3))
    assert (a + b) + c == a + (b + c) and a + b == b + a
    assert (a * b) * c == a * (b * c) and a * b == b * a
    assert a * (b + c) == a * b + a * c
    assert a + 0 == a and a * 1 == a and a - a == 0 and a * 0 == 0
    assert a - b == a + -b and 2 * a == a + a and a**2 == a * a
    assert pg.fma(a, b, c) == a * b + c


@given(rings(max_degree=256), st.data())
def test_automorphisms_compose_and_respect_products(ring, data):
    a, b = (data.draw(polys(ring, batch=())) for _ in range(2))
    order = ring.n * {"cyclic": 1, "negacyclic": 2, "trinomial": 3}[ring.kind]
    units = st.integers(1, max(1, order)).filter(lambda g: gcd(g, order) == 1)
    g, h = data.draw(units), data.draw(units)
    assert a.automorphism(g).automorphism(h) == a.automorphism(g * h)
    assert (a * b).automorphism(g) == a.automorphism(g) * b.automorphism(g)
    moved = [0] * order  # the definition: X^j goes to X^(gj), and X^order is 1
    for j, value in enumerate(a.to_bigints().tolist()):
        moved[g * j % order] += value
    assert a.automorphism(g) == ring(remainder(ring.kind, ring.n, moved))


@given(rings(max_degree=128), st.data())
def test_batches_equal_single_polynomials(ring, data):
    a = data.draw(polys(ring, batch=(3, 1), domain="coef"))
    b = data.draw(polys(ring, batch=(2,), domain="coef"))
    product = a * b
    assert product.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert product[i, j] == a[i, 0] * b[j]


@given(rings(max_degree=300), st.data())
def test_integers_round_trip(ring, data):
    values = data.draw(st.lists(st.integers(-(1 << 210), 1 << 210), max_size=min(ring.n, 5)))
    poly = ring(values)
    expected = [v % ring.modulus for v in values] + [0] * (ring.n - len(values))
    assert poly.to_bigints().tolist() == expected
    centred = poly.to_bigints(centered=True).tolist()
    assert all(-ring.modulus <= 2 * v < ring.modulus for v in centred)
    assert ring(centred) == poly


# ---- between bases of moduli ----

CONVERSIONS = st.sampled_from(("exact", "fast"))


def edge_polys(ring, divisor=1, batch=(2,)):
    return polys(ring, batch, values=edge_coefficients(ring, divisor))


def assert_between(a, low, high):
    """The coefficients are numbers from low to high, modulo Q."""
    assert ((a.to_bigints() - low) % a.ring.modulus <= high - low).all()


@on("cpu", "cuda")
@given(chains(), CONVERSIONS, CONVERSIONS, st.data())
def test_mod_up_then_mod_down_round_trip(rings, up, down, data):
    Q, P = rings
    R, a = Q.join(P), data.draw(edge_polys(Q))
    raised = a.mod_up(R, conversion=up)
    assert raised.restrict(Q) == a
    for rounding in ("nearest", "floor"):
        assert (raised * P.modulus).mod_down(Q, rounding=rounding, conversion=down) == a
    assert pg.rns.scale(raised * P.modulus, 1, Q, divisor=P) == a
    assert pg.rns.scale(a, Q.modulus, P) == a.convert(P)


@on("cpu", "cuda")
@given(chains(), st.data())
def test_convert_round_trip(rings, data):
    small, large = sorted(rings, key=lambda ring: ring.modulus)
    a = data.draw(edge_polys(small))
    assert a.convert(large).convert(small) == a


@on("cpu", "cuda")
@given(chains(), CONVERSIONS, st.data())
def test_mod_up_adds_multiples_of_the_modulus(rings, conversion, data):
    Q, P = rings
    R, (a, b) = Q.join(P), data.draw(edge_polys(Q))
    turns = 1 + (3 * (len(Q.moduli) // 2) if conversion == "fast" else 0)
    difference = (
        (a + b).mod_up(R, conversion=conversion)
        - a.mod_up(R, conversion=conversion)
        - b.mod_up(R, conversion=conversion)
    )
    assert difference.restrict(Q) == 0
    assert_between(difference.mod_down(P), -turns, turns)


@on("cpu", "cuda")
@given(chains(), st.data())
def test_restrict_then_join_round_trip(rings, data):
    R = rings[0].join(rings[1])
    order = data.draw(st.permutations(range(len(R.moduli))))
    cut, a = data.draw(st.integers(1, len(order) - 1)), data.draw(edge_polys(R))
    parts = [a.restrict(R[chosen]) for chosen in (order[:cut], order[cut:])]
    assert pg.rns.join(*parts).restrict(R) == a
    assert pg.rns.join(parts[0].intt(), parts[1]) == a.restrict(R[order])


@on("cpu", "cuda")
@given(chains(), CONVERSIONS, st.data())
def test_digits_times_the_gadget_equal_the_value(rings, conversion, data):
    Q, P = rings
    a, size = data.draw(edge_polys(Q)), data.draw(st.integers(1, len(Q.moduli)))
    numbers = pg.rns.gadget(Q, limbs_per_digit=size)
    for S in (Q, Q.join(P)):
        digits = a.digits(S, limbs_per_digit=size, conversion=conversion)
        assert digits.scale_by(numbers).sum(axis=-1).restrict(Q) == a


@on("cpu", "cuda")
@given(chains(), st.integers(2, 5), CONVERSIONS, st.data())
def test_mod_down_of_a_sum_is_near_the_sum_of_mod_downs(rings, count, conversion, data):
    """Rounding is off by 1/2 or, downwards, by 1; fast conversion by a few units more."""
    Q, P = rings
    a = data.draw(edge_polys(Q.join(P), P.modulus, (count,)))
    dropped, fast = len(P.moduli), conversion == "fast"

    def difference(rounding):
        return (
            a.sum().mod_down(Q, rounding=rounding, conversion=conversion)
            - a.mod_down(Q, rounding=rounding, conversion=conversion).sum()
        )

    far = (count + 1) // 2 + fast * (count + 1) * (dropped // 2)
    assert_between(difference("nearest"), -far, far)
    more = fast * (dropped - 1)
    assert_between(difference("floor"), -more, count - 1 + count * more)


@on("cpu", "cuda")
@given(chains(), st.data())
def test_rescale_in_steps_is_off_by_one_at_most(rings, data):
    R = rings[0].join(rings[1])
    assume(len(R.moduli) > 2)
    a = data.draw(edge_polys(R, R.moduli[-1] * R.moduli[-2]))
    assert_between(a.rescale().rescale() - a.rescale(2), -1, 1)


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("bits", [12, 30, 31, 32, 46, 47, 50, 51, 60, 61, 62, 63, 64])
@pytest.mark.parametrize("log_n", range(11))
def test_products_of_largest_coefficients_at_each_word_limit(bits, kind, log_n):
    """Primes are next to each word's limit, on every instruction set and row shape."""
    n = 1 << log_n
    try:
        q = pg.ntt_primes(n, bits=bits, kind=kind)[0]
    except pg.ParameterError:
        pytest.skip("no such prime")
    ring, largest = pg.Ring(n, q, kind=kind), [q - 1] * n
    expected = multiply_integers(largest, largest, q, kind)
    before = _cpu.isa()
    try:
        for isa in _cpu.supported_isas():
            _cpu.set_isa(isa)
            a, b = ring(largest), ring(largest)
            assert (a * b).to_bigints().tolist() == expected
            assert (a.ntt() * b.ntt()).intt().to_bigints().tolist() == expected
            assert pg.fma(a.ntt(), b.ntt(), a.ntt()).intt() == ring(expected) + ring(largest)
    finally:
        _cpu.set_isa(before)
