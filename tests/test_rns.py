"""Conversion between RNS bases: every operation against Python ints, on every device, at rounding edges."""

import math
import random
from functools import partial

import numpy as np
import pytest
from devices import CARDS, DEVICES, backend, on, over, shares_memory, there, use
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import centred, chain, draw, everywhere, in_domain, padded, times

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes
from polygpu._ops.rns import limbs_of
from polygpu.testing import chains, coefficients, edge_coefficients, polys

# ---- definitions, in Python ints ----


def ints(a: Poly) -> np.ndarray:
    """The coefficients of a, composed here from residues: (*batch, n) in [0, Q)."""
    data, Q = a.intt().cpu().data.astype(object), a.ring.modulus
    total = np.zeros((*a.shape, a.ring.n), object)
    for i, q in enumerate(a.ring.moduli):
        total = total + data[..., i, :] * (Q // q * pow(Q // q, -1, q))
    return total % Q


def each(f, values: np.ndarray) -> np.ndarray:
    return np.array([f(int(x)) for x in values.ravel()], object).reshape(values.shape)


def fast(x: int, moduli) -> int:
    """The sum of y_i Q/q_i, y_i centred."""
    Q = math.prod(moduli)
    return sum(centred(x * pow(Q // q, -1, q), q) * (Q // q) for q in moduli)


def fast_down(x: int, moduli) -> int:
    """The sum of y_i Q/q_i, y_i in [0, q_i)."""
    Q = math.prod(moduli)
    return sum(x * pow(Q // q, -1, q) % q * (Q // q) for q in moduli)


def nearest(x: int, P: int) -> int:
    return (2 * x + P) // (2 * P)


# What a division by the product of some moduli takes away.
TAKEN = {
    ("nearest", "exact"): lambda x, moduli: centred(x, math.prod(moduli)),
    ("nearest", "fast"): fast,
    ("floor", "exact"): lambda x, moduli: x % math.prod(moduli),
    ("floor", "fast"): fast_down,
}


def divided(x: int, moduli, rounding: str, conversion: str = "exact", t: int = 1) -> int:
    """x less what is taken away, over P, plus what keeps the value modulo t."""
    P, taken = math.prod(moduli), TAKEN[rounding, conversion](x, moduli)
    return (x - taken) // P + centred(taken * pow(P, -1, t), t)


def holds(a: Poly, values: np.ndarray) -> None:
    """Every residue of a is that of the values."""
    data = a.intt().cpu().data
    for i, q in enumerate(a.ring.moduli):
        np.testing.assert_array_equal(data[..., i, :].astype(object), values % q)
    assert data.dtype == a.ring.dtype and data.flags.c_contiguous


# ---- values at the edges ----


def around(*numbers: int) -> list[int]:
    return [x + d for x in numbers for d in (-2, -1, 0, 1, 2)]


def edges(R: Ring, dropped: int = 1, t: int = 1) -> list[int]:
    """Values next to where the roundings turn: multiples and halves of Q, of P, of D / t, of each Q/q_i."""
    Q, P = R.modulus, dropped
    values = around(0, Q // 2, Q, P // 2, P, 5 * P, 5 * P + P // 2, Q // P * P, Q - P // 2)
    values += around(*(k * P + P // 2 for k in (1, 3, Q // P // 2)))
    values += around(*(Q // q * (q // 2) for q in R.moduli), *(Q // q for q in R.moduli))
    if t:
        values += around(*((2 * j + 1) * Q // (2 * abs(t)) for j in (0, 1, abs(t) // 2, abs(t) - 1)))
    return [v % Q for v in values]


def value(R: Ring, batch=(), seed=0, dropped: int = 1, t: int = 1) -> Poly:
    """Random coefficients, and as many of the edges as there is room for."""
    rng = random.Random(f"{R!r} {batch} {seed}")
    values = draw(R, batch, seed).ravel()
    special = edges(R, dropped, t)
    rng.shuffle(special)
    for i, v in zip(rng.sample(range(len(values)), len(values) // 2), special, strict=False):
        values[i] = v
    values = values.reshape(*batch, R.n)
    data = np.empty((*batch, len(R.moduli), R.n), R.dtype)
    for i, q in enumerate(R.moduli):
        data[..., i, :] = values % q
    return R.from_residues(pg._backends.backend().from_host(data))


RINGS = {
    "30 bits": chain(16, (30,) * 4),
    "31 and 20 bits": chain(16, (31, 20, 31)),
    "50 bits": chain(16, (50,) * 5),
    "46 to 60 bits": chain(16, (60, 46, 50, 58, 60)),
    "62 bits": chain(8, (62, 62, 61)),
    "64, 63 and 40 bits": chain(16, (64, 63, 40, 64)),
    "small words among large ones": chain(32, (30, 60, 28, 50)),
    "cyclic": chain(16, (50, 30, 60), "cyclic"),
    "trinomial": chain(16, (50, 30, 60, 64), "trinomial"),
    "leaves of 3": chain(12, (60, 50, 58, 60), "trinomial"),
    "no transform": Ring(12, [2**31 - 1, 1_000_003, 97, 2**61 - 1]),
    "composite": Ring(6, [2**20, 3**7, 5**9 * 7, 11]),
    "with 2^64": Ring(5, [2**64, 3, 2**64 - 59], kind="cyclic"),
    "2 bits": Ring(8, [2, 3, 5, 7]),
    "incomplete": Ring(16, [97, 17, 193]),
    "32 bits": Ring(16, [2**32, 2**32 - 5, 3]),
}
FEW = ["30 bits", "46 to 60 bits", "small words among large ones", "64, 63 and 40 bits", "composite"]
FEW += ["trinomial", "leaves of 3"]
every_chain = over(RINGS, FEW)
few_chains = over(FEW, FEW)


def others(R: Ring) -> list[Ring]:
    """Rings to which values of R may go: narrower words, wider ones, moduli in common."""
    taken, found = R.modulus, []
    for bits in (20, 40, 60, 64):
        q = next(p for p in range(2**bits - 1, 0, -2) if math.gcd(p, taken) == 1)
        found.append(q)
        taken *= q
    return [
        Ring(R.n, found[0], kind=R.kind),
        Ring(R.n, found[:3], kind=R.kind),
        Ring(R.n, [found[3], R.moduli[0]], kind=R.kind),
        Ring(R.n, [found[1], *R.moduli[::-1], found[2]], kind=R.kind),
    ]


def domains(R: Ring):
    return ("coef", "eval") if R.has_eval else ("coef",)


def entered(a: Poly, domain: str) -> Poly:
    return a.ntt() if domain == "eval" else a


# ---- every verb ----


@every_chain
def test_restrict_keeps_residues(name):
    R = RINGS[name]
    a = value(R, (2, 3))
    for S in (R[:1], R[1:], R[[2, 0]], R):
        for domain in domains(R):
            b = entered(a, domain).restrict(S)
            assert (b.ring, b.domain, b.shape) == (S, domain if S.has_eval else "coef", (2, 3))
            holds(b, ints(a))


# Of a ring with more limbs than an operation reads: some of them, in an order that needs a copy or does not.
PARTS = {"first": [0, 1], "all": [0, 1, 2, 3], "last": [2, 3], "middle": [1, 2], "apart": [3, 0], "one": [2]}
PARTS |= {"narrow": [1, 3]}  # as a ring of its own, which may store 32-bit words where the operands store 64


def _operations(S: Ring):
    """(name, call of operands modulo some limbs, the same in Python ints) for two operands."""
    Q = S.modulus

    def product(x, y):
        return times(S, *np.broadcast_arrays(x % Q, y % Q))

    def dot(x, y):
        return product(x, y).sum(0) % Q

    one = padded(S, [7])
    return {
        "add": (lambda a, b, **o: a.add(b, **o), lambda x, y: (x + y) % Q),
        "sub": (lambda a, b, **o: a.sub(b, **o), lambda x, y: (x - y) % Q),
        "mul": (lambda a, b, **o: a.mul(b, **o), product),
        "mul by NTT": (lambda a, b, **o: a.intt().mul(b.intt(), product="ntt", **o), product),
        "add an int": (lambda a, b, **o: a.add(7, **o), lambda x, y: (x + one) % Q),
        "sub an int": (lambda a, b, **o: a.sub(7, **o), lambda x, y: (x - one) % Q),
        "mul an int": (lambda a, b, **o: a.mul(2**70, **o), lambda x, y: x * 2**70 % Q),
        "mul of an int": (lambda a, b, **o: Poly.mul(-3, a, **o), lambda x, y: x * -3 % Q),
        "add to itself": (lambda a, b, **o: a.add(a, **o), lambda x, y: 2 * x % Q),
        "fma": (lambda a, b, **o: pg.fma(a, b, a, **o), lambda x, y: (product(x, y) + x) % Q),
        "fma of ints": (lambda a, b, **o: pg.fma(a, 3, 7, **o), lambda x, y: (3 * x + one) % Q),
        "fma of an int": (lambda a, b, **o: pg.fma(a, 3, b, **o), lambda x, y: (3 * x + y) % Q),
        "dot": (lambda a, b, **o: pg.dot(a, b, -1, **o), dot),
        "dot with an int": (lambda a, b, **o: pg.dot(a, 5, -1, **o), lambda x, y: 5 * x.sum(0) % Q),
        "einsum": (lambda a, b, **o: pg.einsum("i,...->...", a, b, **o), lambda x, y: product(x.sum(0), y)),
        "einsum of one": (lambda a, b, **o: pg.einsum("i->i", a, **o), lambda x, y: x % Q),
        "combine": (lambda a, b, **o: pg.combine([3, -4], [a, b], **o), lambda x, y: (3 * x - 4 * y) % Q),
    }


RINGS_OF_PARTS = {
    "30 bits": chain(16, (30, 20, 29, 30)),
    "mixed": chain(16, (50, 30, 60, 20)),
    "cyclic": chain(8, (30, 50, 30, 64), "cyclic"),
    "by primes": Ring(12, [10**6, 97, 2**31 - 1, 10**9 + 7]),
    "incomplete": Ring(16, [17, 97, 193, 449]),
}


@pytest.mark.parametrize("part", PARTS)
@over(RINGS_OF_PARTS, ["30 bits", "incomplete"], devices=["reference", "cpu", "simulated", "cuda"])
def test_operations_modulo_some_limbs(name, part):
    """The second operand has additional limbs, another order, or 32-bit words."""
    R = RINGS_OF_PARTS[name]
    S = R[PARTS[part]]
    if part == "narrow":
        S = Ring(R.n, S.moduli, kind=R.kind)
    own = Ring(R.n, [*S.moduli[::-1], 101, 7], kind=R.kind)
    batch = (2,) if pg._backends.current_device() == "cuda:1" else (3,)
    x, y = draw(R, batch, 1), draw(own, batch, 2)
    pairs = [(d, e) for d in ("coef", "eval") for e in ("coef", "eval") if R.has_eval or d == e == "coef"]
    for d, e in pairs:
        a, b = in_domain(R(x), d), (own if own.has_eval else S)(y % S.modulus)
        b = in_domain(b, e)
        for label, (call, expected) in _operations(S).items():
            for _ in range(2):
                found = call(a, b, ring=S)
                assert found.ring == S, label
                holds(found, np.asarray(expected(x, y), object))
            out = S.zeros(found.shape)
            assert call(a, b, ring=S, out=out) is out and out.domain == found.domain
            holds(out, np.asarray(expected(x, y), object))


@on("cpu", "simulated")
@pytest.mark.usefixtures("device")
def test_operations_modulo_the_first_limbs_copy_nothing(monkeypatch):
    """Nothing is copied, even for batches, whose items are then not contiguous."""
    R = chain(16, (50,) * 4)
    S, compute = R[:2], backend()
    for batch in ((), (3,), (2, 1)):
        for domain in ("coef", "eval"):
            a = in_domain(R(draw(R, batch)), domain)
            view, _ = limbs_of(a, S._plan)
            assert shares_memory(view, a.data) and view.shape == (*batch, 2, 16)
    a, b = (R(draw(R, (3,), i)).ntt() for i in (1, 2))
    copies = []
    monkeypatch.setattr(type(compute), "copy", lambda *args: copies.append(args))
    a.add(b, ring=S), a.sub(b, ring=S), a.mul(b, ring=S), pg.fma(a, b, a, ring=S), a.mul(3, ring=S)
    pg.dot(a, b, ring=S), pg.einsum("i,j->ij", a, b, ring=S)
    assert not copies
    if compute.name == "cpu":
        pg.combine([[1, 2], [3, 4]], [a, b], ring=S)
        assert not copies


@on("cpu", "simulated")
@pytest.mark.usefixtures("device")
def test_repeated_calls_with_dense_and_strided_operands():
    """Calls of one shape alternate between dense operands and operands with gaps."""
    rings = [chain(16, (30,) * k) for k in (2, 3, 5)]
    S = rings[0]
    for _ in range(3):
        for R in rings:
            x, y = draw(R, (2,), 1), draw(R, (2,), 2)
            a, b = R(x).ntt(), R(y).ntt()
            for label, (call, expected) in _operations(S).items():
                if label != "mul by NTT":
                    holds(call(a, b, ring=S), np.asarray(expected(x, y), object))


@every_chain
def test_join_holds_residues_of_both_values(name):
    R = RINGS[name]
    S, T = R[:2], R[2:]
    a = value(R, (3,))
    for first in domains(S):
        for second in domains(T):
            joined = pg.rns.join(entered(a.restrict(S), first), entered(a[0].restrict(T), second))
            assert joined.ring == R and joined.shape == (3,)
            both = "eval" in (first, second)
            assert joined.domain == ("eval" if both and R.has_eval else "coef")
            np.testing.assert_array_equal(joined.restrict(S).intt().cpu().data, a.restrict(S).cpu().data)
            holds(joined.restrict(T)[1], ints(a)[0])
    assert pg.rns.join(a.restrict(S), a.restrict(T)) == a


@every_chain
def test_convert_matches_centred_values(name):
    R = RINGS[name]
    a = value(R, (2,))
    expected = each(lambda x: centred(x, R.modulus), ints(a))
    for S in (*others(R), R):
        for domain in domains(R):
            b = entered(a, domain).convert(S)
            assert (b.ring, b.domain) == (S, domain if S.has_eval else "coef")
            holds(b, expected)


@every_chain
def test_fast_convert_is_off_by_few_multiples_of_the_modulus(name):
    R = RINGS[name]
    a, k = value(R, (2,)), len(R.moduli)
    sums = each(lambda x: fast(x, R.moduli), ints(a))
    for x, y in zip(ints(a).ravel(), sums.ravel(), strict=True):
        turns, rest = divmod(y - centred(x, R.modulus), R.modulus)
        assert rest == 0 and abs(turns) <= k // 2
    for S in others(R):
        for domain in domains(R):
            holds(entered(a, domain).convert(S, conversion="fast"), sums)


@every_chain
def test_mod_up_matches_centred_values(name):
    R = RINGS[name]
    for S in (R[:1], R[[2, 0]], R):
        a = value(S, (2,))
        expected = each(lambda x, m=S.modulus: centred(x, m), ints(a))
        for domain in domains(S):
            holds(entered(a, domain).mod_up(R), expected)
            sums = each(lambda x, S=S: fast(x, S.moduli), ints(a))
            holds(entered(a, domain).mod_up(R, conversion="fast"), sums)


@every_chain
def test_scale_up_multiplies_by_the_new_moduli(name):
    R = RINGS[name]
    for S in (R[:1], R[[1]], R[[2, 0]], R):
        P = math.prod(q for q in R.moduli if q not in S.moduli)
        a = value(S, (2,))
        for domain in domains(S):
            b = entered(a, domain).scale_up(R)
            assert (b.ring, b.domain, b.shape) == (R, domain if R.has_eval else "coef", (2,))
            holds(b, ints(a) * P)
            assert b.mod_down(S) == a


@everywhere
def test_scale_up_of_the_largest_residues():
    """Residues are q - 1, and factors P are 1 and -1 modulo q, with one or two word sizes."""
    for moduli, others in [((7, 2**31 - 1), (8,)), ((2**50 - 1,), (2**50,)), ((2**64,), (2**64 - 1, 7))]:
        for n, kind in ((1, "negacyclic"), (5, "cyclic")):
            S = Ring(n, moduli, kind=kind)
            T = Ring(n, [*others, *moduli], kind=kind)
            a = S.from_residues(there(np.array([[q - 1] * n for q in moduli], S.dtype)))
            P = math.prod(others)
            b = a.scale_up(T)
            found = b.to_residue_ints()
            assert not found[: len(others)].any()
            assert found[len(others) :].tolist() == [[-P % q] * n for q in moduli]
            assert b.mod_down(S) == a


def parts(R: Ring):
    """Rings that values of R come down to, and the product of the moduli that fall away."""
    for S in (R[:-1], R[1:], R[[1]], R[[2, 0]]):
        yield S, math.prod(q for q in R.moduli if q not in S.moduli)


@every_chain
def test_mod_down_rounds_to_nearest_or_down(name):
    R = RINGS[name]
    for S, P in parts(R):
        a = value(R, (2,), dropped=P)
        for domain in domains(R):
            x = entered(a, domain)
            holds(x.mod_down(S), each(partial(nearest, P=P), ints(a)))
            holds(x.mod_down(S, rounding="floor"), each(lambda v, P=P: v // P, ints(a)))


@every_chain
def test_fast_mod_down_is_within_its_error_bound(name):
    R = RINGS[name]
    for S, P in parts(R):
        dropped = [q for q in R.moduli if q not in S.moduli]
        a = value(R, (2,), dropped=P)

        for domain in domains(R):
            x = entered(a, domain)
            near = each(lambda v, d=dropped, P=P: (v - fast(v, d)) // P, ints(a))
            holds(x.mod_down(S, conversion="fast"), near)
            lower = each(lambda v, d=dropped, P=P: (v - fast_down(v, d)) // P, ints(a))
            holds(x.mod_down(S, rounding="floor", conversion="fast"), lower)
            exact = each(partial(nearest, P=P), ints(a))
            assert max(abs(near - exact).ravel()) <= len(dropped) // 2
            assert all(0 <= u < len(dropped) for u in (each(lambda v, P=P: v // P, ints(a)) - lower).ravel())


@few_chains
def test_mod_down_keeps_the_plaintext(name):
    R = RINGS[name]
    for t in (2**16 + 1, 1_000_003, 2**61 - 1):
        if math.gcd(t, R.modulus) > 1:
            continue
        for S, P in parts(R):
            a = value(R, (2,), dropped=P)
            dropped = [q for q in R.moduli if q not in S.moduli]
            for domain in domains(R):
                for rounding in ("nearest", "floor"):
                    b = entered(a, domain).mod_down(S, rounding=rounding, plaintext=t)
                    values = each(partial(divided, moduli=dropped, rounding=rounding, t=t), ints(a))
                    assert all(
                        (P * y - x) % t == 0 for x, y in zip(ints(a).ravel(), values.ravel(), strict=True)
                    )
                    holds(b, values)


@every_chain
def test_rescale_drops_the_last_limbs(name):
    R = RINGS[name]
    a = value(R, (2,), dropped=R.moduli[-1])
    holds(a.rescale(), each(partial(nearest, P=R.moduli[-1]), ints(a)))
    P = math.prod(R.moduli[-2:])
    holds(entered(a, domains(R)[-1]).rescale(2), each(partial(nearest, P=P), ints(a)))


def test_convert_from_32_bit_words_to_smaller_moduli(device):
    """Factors exceed the modulus of their product."""
    for moduli in (ntt_primes(8, bits=32, count=4), [2**32 - 5, 2**32 - 6, 2**32 - 7, 2**32 - 9]):
        R = Ring(8, moduli)
        for S in (Ring(8, ntt_primes(8, bits=31, count=3)), Ring(8, [2**31 - 1, 2**29 - 3])):
            a = value(R, (32,))
            holds(a.convert(S), each(partial(centred, m=R.modulus), ints(a)))
            holds(a.convert(S, conversion="fast"), each(partial(fast, moduli=R.moduli), ints(a)))


@on(*CARDS)
@pytest.mark.parametrize("moduli", [(2**50 - 1, 2**50 - 2, 17), (2**50, 15), (2**50 - 35,)])
def test_convert_of_the_largest_sums_below_2_to_the_50(device, moduli):
    """64 rows of largest words and factors of one sign need nine intermediate reductions."""
    R, S = Ring(8, ntt_primes(8, bits=50, count=66)[2:]), Ring(8, list(moduli))
    Q, s = R.modulus, moduli[0]
    data = np.empty((2, R.rows, 8), np.uint64)
    for i, q in enumerate(R.moduli):
        positive = centred(Q // q, s) > 0
        for row, chosen in enumerate((positive, not positive)):
            data[row, i] = (q - 1 if chosen else 0) * (Q // q) % q
    a = R.from_residues(there(data))
    holds(a.convert(S), each(partial(centred, m=Q), ints(a)))
    holds(a.convert(S, conversion="fast"), each(lambda v: fast(v, R.moduli), ints(a)))


@on(*CARDS)
@pytest.mark.parametrize("count", [1, 2, 5, 8, 9, 13])
def test_convert_with_sums_in_doubles_at_their_limits(device, count):
    """Moduli are just below 2^50, residues are extreme, and there are more terms than fit."""
    every = chain(8, (50,) * 15)
    R, S = every[:count], every[13:].join(Ring(8, [16, 17, 2**40 - 87]))
    rng = random.Random(count)
    data = np.empty((3, R.rows, 8), np.uint64)
    for i, q in enumerate(R.moduli):
        ends = (0, 1, q - 2, q - 1, q // 2, q // 2 + 1, 2**49 - 1, 2**49, 2**49 + 1)
        data[0, i], data[1, i] = [q - 1] * 8, [2**49] * 8
        data[2, i] = [rng.choice(ends) for _ in range(8)]
    a = R.from_residues(there(data))
    room = backend().xp.empty(a.data.size + 1, np.uint64)
    moved = room[1:].reshape(a.data.shape)
    moved[...] = a.data
    for x in (a, R.from_residues(moved, copy=False)):
        holds(x.convert(S), each(partial(centred, m=R.modulus), ints(a)))
        holds(x.convert(S, conversion="fast"), each(lambda v: fast(v, R.moduli), ints(a)))
    joined = R.join(S)
    both = pg.rns.join(a, a.convert(S) * 0 + (S.modulus // 2 - 1))
    values = ints(both)
    assert both.ring == joined
    holds(both.mod_down(S), each(lambda v: nearest(v, R.modulus), values))
    for domain in domains(R):
        b = pg.rns.join(entered(a, domain), entered(every[13:].zeros(3) + 5, domain))
        holds(b.mod_down(every[13:]), each(lambda v: nearest(v, R.modulus), ints(b)))


@every_chain
def test_scale_rounds_before_reduction(name):
    R = RINGS[name]
    for t in (1, 2, 65537, -3, R.modulus // 3, 10**30, 0):
        for divisor in (None, R[:1], R[1:], R[[2, 0]]):
            D = (divisor or R).modulus
            a = value(R, (2,), seed=t % 1000, t=t)
            expected = each(lambda x, t=t, D=D: (2 * t * centred(x, R.modulus) + D) // (2 * D), ints(a))
            for S in (others(R)[1], others(R)[3]):
                domain = random.Random(f"{t} {D}").choice(domains(R))
                holds(pg.rns.scale(entered(a, domain), t, S, divisor=divisor), expected)


@every_chain
def test_digits_times_the_gadget_equal_the_value(name):
    R = RINGS[name]
    a = value(R, (2,))
    for size in (1, 2, 3, len(R.moduli)):
        g = pg.rns.gadget(R, limbs_per_digit=size)
        groups = [R.moduli[i : i + size] for i in range(0, len(R.moduli), size)]
        for S in (R, others(R)[3], others(R)[1]):
            for domain in domains(R):
                d = entered(a, domain).digits(S, limbs_per_digit=size)
                assert (d.ring, d.shape) == (S, (2, len(groups)))
                for j, group in enumerate(groups):
                    holds(d[:, j], each(partial(centred, m=math.prod(group)), ints(a)))
                if S == R:
                    assert sum((d[:, j] * g[j] for j in range(1, len(g))), d[:, 0] * g[0]) == a
        fast_digits = a.digits(others(R)[3], limbs_per_digit=size, conversion="fast")
        for j, group in enumerate(groups):
            holds(fast_digits[:, j], each(lambda x, group=group: fast(x, group), ints(a)))


def test_gadget_is_one_in_its_group_and_zero_elsewhere():
    R = RINGS["46 to 60 bits"]
    for j, g in enumerate(pg.rns.gadget(R, limbs_per_digit=2)):
        assert 0 <= g < R.modulus
        assert [g % q for q in R.moduli] == [int(i // 2 == j) for i in range(5)]


# ---- one modulus above 2^64 ----


@on("reference", "cpu", "simulated")
@pytest.mark.usefixtures("device")
def test_convert_to_and_from_wide_moduli():
    wide, R = Ring(8, 2**127 - 1), Ring(8, [2**61 - 1, 97, 2**64 - 59])
    a = wide(draw(wide, (2,)))
    values = each(lambda x: centred(x, wide.modulus), a.to_bigints())
    holds(a.convert(R), values)
    even = Ring(8, 2**128)
    half = even([2**127, 2**127 - 1])
    assert half.convert(R).to_bigints(centered=True)[:2].tolist() == [
        -(2**127) % R.modulus - R.modulus,
        2**127 - 1,
    ]
    b = value(R, (2,))
    found = b.convert(wide).to_bigints()
    assert (found == each(lambda x: centred(x, R.modulus) % wide.modulus, ints(b))).all()
    for verb in (
        partial(a.mod_up, wide),
        partial(a.scale_up, wide),
        partial(Ring(8, 97).ones().scale_up, wide),
        partial(a.mod_down, wide),
        partial(a.digits, wide, limbs_per_digit=1),
    ):
        with pytest.raises(pg.ParameterError, match=r"above 2\*\*64. Only convert"):
            verb()


# ---- coefficients that doubles cannot decide ----


@every_chain
def test_convert_of_values_that_need_exact_rounding(name):
    """Coefficients lie next to Q/2, which makes the estimate a half, or to multiples of P."""
    R = RINGS[name]
    Q = R.modulus
    for S, P in parts(R):
        for numbers in (around(Q // 2), around(P // 2, 3 * P + P // 2), around(0, P, 7 * P)):
            values = np.array([numbers[i % len(numbers)] % Q for i in range(R.n)], object)
            a = R(values)
            holds(a.convert(others(R)[1]), each(lambda x: centred(x, Q), values))
            holds(a.mod_down(S), each(partial(nearest, P=P), values))
            holds(a.mod_down(S, rounding="floor"), each(lambda v, P=P: v // P, values))
            holds(
                pg.rns.scale(a, 1, others(R)[1]), each(lambda x: (2 * centred(x, Q) + Q) // (2 * Q), values)
            )


@pytest.mark.parametrize("k", [2, 7, 24, 64])
def test_convert_near_half_the_modulus_with_many_limbs(k):
    """With up to 64 limbs, the sum of ratios is too close to a half for doubles."""
    R = Ring(64, ntt_primes(64, bits=60, count=k))
    S = Ring(64, ntt_primes(64, bits=30))
    values = np.array([(R.modulus // 2 + d) % R.modulus for d in range(-32, 32)], object)
    holds(R(values).convert(S), each(lambda x: centred(x, R.modulus), values))
    P = math.prod(R.moduli[1:])
    values = np.array([(R.moduli[0] // 3 * P + P // 2 + d) % R.modulus for d in range(-32, 32)], object)
    holds(R(values).mod_down(R[:1]), each(partial(nearest, P=P), values))


# ---- every verb on drawn chains: any sizes of limbs, both domains, values where roundings turn ----


def drawn(choose, R: Ring, divisor: int = 1, batch=None) -> Poly:
    values = choose(st.sampled_from((coefficients(R), edge_coefficients(R, divisor))))
    return choose(polys(R, batch=batch, values=values))


def some_of(choose, R: Ring) -> Ring:
    """Limbs of R, in any order."""
    order = choose(st.permutations(range(len(R.moduli))))
    chosen = order[: choose(st.integers(1, len(order)))]
    S = R[chosen]
    assert S.moduli == tuple(R.moduli[i] for i in chosen)
    return S


def some_order(choose, R: Ring) -> Ring:
    """All limbs of R, in any order."""
    return R[choose(st.permutations(range(len(R.moduli))))]


def told(b: Poly, S: Ring, domain: str, values: np.ndarray) -> None:
    """b has the values, in the ring S, and the operand's domain if S has it."""
    assert (b.ring, b.domain) == (S, domain if S.has_eval else "coef")
    holds(b, values)


def check_restrict(choose, Q: Ring, P: Ring) -> None:
    R = Q.join(P)
    assert R.moduli == Q.moduli + P.moduli
    a, S = drawn(choose, R), some_of(choose, R)
    told(a.restrict(S), S, a.domain, ints(a))


def check_join(choose, Q: Ring, P: Ring) -> None:
    a, b = drawn(choose, Q, batch=(2, 1)), drawn(choose, P, batch=(3,))
    joined, domain = Q.join(P), "eval" if "eval" in (a.domain, b.domain) else "coef"
    q, p = Q.modulus, P.modulus
    told(pg.rns.join(a, b), joined, domain, ints(a) * p * pow(p, -1, q) + ints(b) * q * pow(q, -1, p))


def check_convert(choose, Q: Ring, P: Ring) -> None:
    a, S = drawn(choose, Q), choose(st.sampled_from((P, P.join(some_of(choose, Q)), Q)))
    told(a.convert(S), S, a.domain, each(partial(centred, m=Q.modulus), ints(a)))
    told(a.convert(S, conversion="fast"), S, a.domain, each(partial(fast, moduli=Q.moduli), ints(a)))


def check_mod_up(choose, Q: Ring, P: Ring) -> None:
    a, S = drawn(choose, Q), choose(st.sampled_from((Q.join(P), P.join(Q))))
    told(a.mod_up(S), S, a.domain, each(partial(centred, m=Q.modulus), ints(a)))
    told(a.mod_up(S, conversion="fast"), S, a.domain, each(partial(fast, moduli=Q.moduli), ints(a)))


def check_scale_up(choose, Q: Ring, P: Ring) -> None:
    T = some_order(choose, Q.join(P))
    S = some_of(choose, T)
    a = drawn(choose, S)
    b = a.scale_up(T)
    told(b, T, a.domain, ints(a) * (T.modulus // S.modulus))
    assert b.mod_down(S) == a


def check_mod_down(choose, Q: Ring, P: Ring) -> None:
    R, S = choose(st.sampled_from((Q.join(P), P.join(Q)))), some_of(choose, Q)
    dropped = [q for q in R.moduli if q not in S.moduli]
    a, t = drawn(choose, R, math.prod(dropped)), choose(st.sampled_from((2, 3, 65537, 2**61 - 1, 2**64)))
    for rounding, conversion in TAKEN:
        expected = each(partial(divided, moduli=dropped, rounding=rounding, conversion=conversion), ints(a))
        told(a.mod_down(S, rounding=rounding, conversion=conversion), S, a.domain, expected)
        if math.gcd(t, math.prod(dropped)) == 1:
            b = a.mod_down(S, rounding=rounding, conversion=conversion, plaintext=t)
            expected = each(
                partial(divided, moduli=dropped, rounding=rounding, conversion=conversion, t=t), ints(a)
            )
            told(b, S, a.domain, expected)


def check_rescale(choose, Q: Ring, P: Ring) -> None:
    R = Q.join(P)
    k = choose(st.integers(1, len(R.moduli) - 1))
    a = drawn(choose, R, math.prod(R.moduli[-k:]))
    expected = each(partial(nearest, P=math.prod(R.moduli[-k:])), ints(a))
    told(a.rescale(k), R[:-k], a.domain, expected)


def check_scale(choose, Q: Ring, P: Ring) -> None:
    divisor = choose(st.sampled_from((None, some_of(choose, Q))))
    S = choose(st.sampled_from((P, Q, P.join(some_of(choose, Q)))))
    D = (divisor or Q).modulus
    a, t = (
        drawn(choose, Q, D),
        choose(st.one_of(st.integers(-(10**25), 10**25), st.sampled_from((1, D, 2**64)))),
    )
    expected = each(lambda x: nearest(t * centred(x, Q.modulus), D), ints(a))
    told(pg.rns.scale(a, t, S, divisor=divisor), S, a.domain, expected)


def check_digits(choose, Q: Ring, P: Ring) -> None:
    a, size = drawn(choose, Q), choose(st.integers(1, len(Q.moduli)))
    S = choose(st.sampled_from((Q, P, Q.join(P), P.join(some_of(choose, Q)))))
    groups = [Q.moduli[i : i + size] for i in range(0, len(Q.moduli), size)]
    numbers = pg.rns.gadget(Q, limbs_per_digit=size)
    exact, estimated = a.digits(S, limbs_per_digit=size), a.digits(S, limbs_per_digit=size, conversion="fast")
    assert exact.shape == estimated.shape == (*a.shape, len(groups)) and len(numbers) == len(groups)
    for j, group in enumerate(groups):
        assert 0 <= numbers[j] < Q.modulus
        assert [numbers[j] % q for q in Q.moduli] == [int(q in group) for q in Q.moduli]
        told(exact[..., j], S, a.domain, each(partial(centred, m=math.prod(group)), ints(a)))
        told(estimated[..., j], S, a.domain, each(partial(fast, moduli=group), ints(a)))


def check_scale_by(choose, Q: Ring, P: Ring) -> None:
    R = Q.join(P)
    a, factor = drawn(choose, R, batch=(2,)), st.integers(-R.modulus, R.modulus)
    x, y = choose(factor), choose(factor)
    told(a.scale_by([x, y]), R, a.domain, ints(a) * np.array([[x], [y]], object))
    b = a.scale_by(limbs=[*[x] * len(Q.moduli), *[y] * len(P.moduli)])
    told(b.restrict(Q), Q, b.domain, ints(a) * x)
    told(b.restrict(P), P, b.domain, ints(a) * y)


CHECKS = {
    "restrict": check_restrict,
    "join": check_join,
    "convert": check_convert,
    "mod_up": check_mod_up,
    "scale_up": check_scale_up,
    "mod_down": check_mod_down,
    "rescale": check_rescale,
    "scale": check_scale,
    "digits": check_digits,
    "scale_by": check_scale_by,
}
SLOWER = {DEVICES["reference"]: 2, DEVICES["simulated"]: 15}  # what the number of examples is divided by


@over(CHECKS)
def test_every_operation_on_random_chains(device, name):
    sizes = {"max_degree": 4, "max_limbs": 4} if device == DEVICES["simulated"] else {}
    examples = max(2, settings.default.max_examples // SLOWER.get(device, 1))

    @settings(max_examples=examples)
    @given(chains(**sizes), st.data())
    def check(rings, data):
        CHECKS[name](data.draw, *rings)

    check()


# ---- laws ----


@pytest.mark.usefixtures("each_isa")
@pytest.mark.parametrize("name", RINGS)
def test_convert_on_every_instruction_set(name):
    R = RINGS[name]
    a = value(Ring(1000 + R.n, R.moduli, kind=R.kind), (3,))
    S = Ring(a.ring.n, others(R)[3].moduli, kind=R.kind)
    with use("reference"):
        expected = a.convert(S)
        scaled = pg.rns.scale(a, 65537, S, divisor=a.ring[1:])
    assert a.convert(S) == expected
    assert pg.rns.scale(a, 65537, S, divisor=a.ring[1:]) == scaled


@everywhere
def test_mod_up_then_mod_down_round_trip():
    R = RINGS["46 to 60 bits"]
    S = R[:3]
    P = math.prod(R.moduli[3:])
    a = value(S, (2,))
    assert (a.mod_up(R) * P).mod_down(S) == a
    assert (a.ntt().mod_up(R) * P).mod_down(S, rounding="floor") == a


@everywhere
def test_rescale_of_a_sum_is_near_the_sum_of_rescales():
    R = RINGS["30 bits"]
    a, b = value(R, (4,), 1), value(R, (4,), 2)
    difference = ((a + b).rescale() - (a.rescale() + b.rescale())).to_bigints(centered=True)
    assert max(abs(difference).ravel()) <= 1


# ---- results in memory that is given, and errors ----


CALLS = {
    "restrict": lambda a, S, out: a.restrict(S, out=out),
    "convert": lambda a, S, out: a.convert(S, out=out),
    "mod_up": lambda a, S, out: a.restrict(S).mod_up(a.ring, out=out),
    "scale_up": lambda a, S, out: a.restrict(S).scale_up(a.ring, out=out),
    "mod_down": lambda a, S, out: a.mod_down(S, out=out),
    "rescale": lambda a, S, out: a.rescale(3, out=out),
    "scale": lambda a, S, out: pg.rns.scale(a, 3, S, out=out),
    "digits": lambda a, S, out: a.digits(S, limbs_per_digit=2, out=out),
}


@everywhere
@pytest.mark.parametrize("call", CALLS)
def test_every_operation_into_out(call):
    R = RINGS["46 to 60 bits"]
    for domain in domains(R):
        a = entered(value(R, (2,)), domain)
        expected = CALLS[call](a, R[:2], None)
        out = expected.ring.zeros(expected.shape)
        assert CALLS[call](a, R[:2], out) is out
        assert out == expected and out.domain == domain


@everywhere
@pytest.mark.parametrize("call", CALLS)
def test_every_operation_of_an_empty_batch(call):
    R = RINGS["46 to 60 bits"]
    for domain in domains(R):
        a = entered(R.zeros((3, 2)), domain)
        found = CALLS[call](a[:, :0], R[:2], None)
        assert found.shape == (3, 0, *CALLS[call](a, R[:2], None).shape[2:]) and found.domain == domain


@everywhere
def test_convert_into_the_memory_of_the_operand():
    R = RINGS["30 bits"]
    S = Ring(R.n, ntt_primes(R.n, bits=29, count=4))
    for domain in domains(R):
        a = entered(value(R, (2,)), domain)
        expected = a.convert(S)
        out = S.from_residues(a.data, domain=domain)
        assert a.convert(S, out=out) is out and out == expected


def test_operands_are_not_changed():
    R = RINGS["46 to 60 bits"]
    for domain in domains(R):
        a = entered(value(R, (2,)), domain)
        kept = a.copy()
        (
            a.convert(others(R)[3]),
            a.mod_down(R[:2]),
            a.digits(R, limbs_per_digit=2),
            a.restrict(R[1:]),
            a.scale_up(R.join(others(R)[0])),
            a.rescale(),
        )
        pg.rns.scale(a, 5, R)
        same_bits = np.array_equal(a.data, kept.data)
        assert same_bits


BAD = {
    "another degree": (lambda a: a.convert(Ring(32, 97)), pg.RingMismatch, "degree or kind"),
    "no ring": (lambda a: a.convert(97), pg.ParameterError, "must be a Ring"),
    "unknown precision": (
        lambda a: a.convert(a.ring, conversion="near"),
        pg.ParameterError,
        "'exact', 'fast'",
    ),
    "unknown rounding": (
        lambda a: a.mod_down(a.ring[:1], rounding="up"),
        pg.ParameterError,
        "'nearest', 'floor'",
    ),
    "a modulus too many": (lambda a: a.restrict(Ring(16, 97)), pg.RingMismatch, "convert()"),
    "down to another": (lambda a: a.mod_down(Ring(16, 97)), pg.RingMismatch, "mod_down cannot find 97 among"),
    "up without own": (lambda a: a.mod_up(a.ring[:2]), pg.RingMismatch, "convert()"),
    "scaled up without own": (lambda a: a.scale_up(a.ring[:2]), pg.RingMismatch, "scale_up cannot find 1073"),
    "scaled up to others": (lambda a: a.scale_up(Ring(16, 97)), pg.RingMismatch, "Use ring.join()"),
    "scaled up to another degree": (lambda a: a.scale_up(Ring(8, 97)), pg.RingMismatch, "degree or kind"),
    "scaled up to another kind": (
        lambda a: a.scale_up(Ring(16, a.ring.moduli, kind="cyclic")),
        pg.RingMismatch,
        "degree or kind",
    ),
    "scaled up to an int": (lambda a: a.scale_up(3), pg.ParameterError, "ring must be a Ring, not int"),
    "scaled up to a list": (lambda a: a.scale_up([97]), pg.ParameterError, "ring must be a Ring, not list"),
    "scaled up to a Poly": (lambda a: a.scale_up(a), pg.ParameterError, "ring must be a Ring, not Poly"),
    "scaled up into an array": (
        lambda a: a.scale_up(a.ring, out=a.data),
        pg.errors.OutputError,
        "must be a Poly",
    ),
    "scaled up into another ring": (
        lambda a: a.scale_up(a.ring, out=a.ring[:1].zeros()),
        pg.errors.OutputError,
        "the result is in",
    ),
    "scaled up into another shape": (
        lambda a: a.scale_up(a.ring, out=a.ring.zeros(3)),
        pg.errors.OutputError,
        "batch shape (3,)",
    ),
    "no limb left": (lambda a: a.rescale(4), pg.ParameterError, "at least one limb must stay"),
    "no limb dropped": (lambda a: a.rescale(0), pg.ParameterError, "from 1 to 3"),
    "half a limb": (lambda a: a.rescale(1.5), pg.errors.NotAnInteger, "must be an int"),
    "empty digits": (lambda a: a.digits(a.ring, limbs_per_digit=0), pg.ParameterError, "at least 1"),
    "plaintext with a factor": (
        lambda a: a.mod_down(a.ring[:1], plaintext=a.ring.moduli[1]),
        pg.ParameterError,
        "coprime",
    ),
    "out of another ring": (
        lambda a: a.convert(a.ring[:1], out=a.ring.zeros()),
        pg.errors.OutputError,
        "the result is in",
    ),
    "out of another shape": (
        lambda a: a.restrict(a.ring[:1], out=a.ring[:1].zeros(3)),
        pg.errors.OutputError,
        "batch",
    ),
    "another divisor": (
        lambda a: pg.rns.scale(a, 1, a.ring, divisor=Ring(16, 97)),
        pg.RingMismatch,
        "Use a divisor of some of the value's moduli",
    ),
    "scale by a float": (lambda a: pg.rns.scale(a, 0.5, a.ring), pg.errors.NotAnInteger, "must be an int"),
    "no Poly": (lambda a: pg.rns.scale(3, 1, a.ring), pg.RingMismatch, "must be a Poly"),
    "joined twice": (lambda a: pg.rns.join(a, a), pg.ParameterError, "coprime"),
    "gadget of no ring": (lambda a: pg.rns.gadget(3, limbs_per_digit=1), pg.ParameterError, "must be a Ring"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    call, error, text = BAD[case]
    with pytest.raises(error, match=text.replace("(", r"\(").replace(")", r"\)")):
        call(RINGS["30 bits"].ones())


def test_another_root_of_a_shared_prime_raises():
    q = ntt_primes(16, bits=30)[0]
    R = Ring(16, q)
    S = Ring(16, q, root=pow(R.roots[0], 3, q))
    for verb in (Poly.convert, Poly.scale_up):
        with pytest.raises(pg.errors.BadRoot, match="the same roots"):
            verb(R.ones(), S)


def test_restrict_and_join_with_different_leaf_sizes():
    complete = Ring(16, 97)
    both = Ring(16, [97, 17])
    assert (complete.leaf_size, both.leaf_size) == (1, 2)
    a = value(both, (2,))
    holds(a.ntt().restrict(complete), ints(a))
    assert a.ntt().restrict(complete).domain == "eval"
    b = value(complete, (2,))
    holds(b.ntt().mod_up(both), each(lambda x: centred(x, 97), ints(b)))
    holds(b.ntt().scale_up(both), ints(b) * 17)
    assert b.ntt().scale_up(both).domain == "eval"
    same_value = b.ntt().mod_up(both)
    assert same_value.domain == "eval"
