"""Random streams: their definitions word by word, fixed test vectors, and batches in pieces."""

import decimal
import hashlib
import math
import struct
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from devices import backend, host, on, there
from oracle import everywhere

import polygpu as pg
from polygpu import _cpu
from polygpu._backends.cipher import Keystream
from polygpu._core.plans import sampling as plans


def chacha20_block(key, counter, nonce):
    """One block by Bernstein's definition, 64-bit counter and 64-bit nonce."""
    state = list(struct.unpack("<4I", b"expand 32-byte k")) + list(struct.unpack("<8I", key))
    state += [counter & 0xFFFFFFFF, counter >> 32, *struct.unpack("<2I", nonce)]
    x = list(state)

    def quarter(a, b, c, d):
        for i, j, k, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) & 0xFFFFFFFF
            v = x[k] ^ x[i]
            x[k] = (v << turn | v >> (32 - turn)) & 0xFFFFFFFF

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return struct.pack("<16I", *((u + v) & 0xFFFFFFFF for u, v in zip(x, state, strict=True)))


def expected_residue(tagged_seed, q, words, n, limb, poly, coefficient):
    key = hashlib.sha256(b"polygpu uniform 1" + tagged_seed).digest()
    size = 8 * (words + 1)
    position = size * (poly * n + coefficient)
    nonce = struct.pack("<2I", limb, 0)
    block = position // 64
    text = b"".join(chacha20_block(key, block + i, nonce) for i in range(size // 64 + 2))
    return int.from_bytes(text[position % 64 : position % 64 + size], "little") % q


@everywhere
@pytest.mark.parametrize(
    "moduli", [[97], [2**32], [2**64], [pg.ntt_primes(8, bits=60)[0], 5, 2**20], [2**200 - 75], [2**128]]
)
@pytest.mark.parametrize(
    ("seed", "tagged"), [(7, b"int:0x7"), (-1, b"int:-0x1"), (b"ab", b"bytes:ab"), ("ab", b"str:ab")]
)
def test_random_matches_its_definition(moduli, seed, tagged):
    n, ring = 5, pg.Ring(5, moduli)
    poly = ring.random((3,), seed=seed, start=2)
    values = poly.to_residue_ints()
    for limb, q in enumerate(moduli):
        for i in range(3):
            row = values[i] if ring._plan.basis.wide else values[i, limb]
            expected = [
                expected_residue(tagged, q, ring._plan.basis.words, n, limb, 2 + i, j) for j in range(n)
            ]
            assert row.tolist() == expected


def keystream(key, limb, offset, size):
    out = np.empty(size, np.uint8)
    Keystream(key, limb, offset).fill(out, np.zeros(size, np.uint8))
    return out.tobytes()


def test_block_counter_beyond_32_bits():
    key = bytes(range(32))
    for block in (2**32 - 1, 2**32, 2**40 + 3):
        nonce = struct.pack("<2I", 5, 0)
        expected = chacha20_block(key, block, nonce) + chacha20_block(key, block + 1, nonce)
        assert keystream(key, 5, 64 * block, 128) == expected
        assert keystream(key, 5, 64 * block + 24, 77) == expected[24:101]


@everywhere
def test_fixed_test_vectors():
    assert pg.Ring(4, 97).random(seed=1).to_bigints().tolist() == VECTOR_97
    assert pg.Ring(2, pg.ntt_primes(2, bits=60)).random(seed="polygpu").to_bigints().tolist() == VECTOR_60
    assert pg.Ring(2, 2**130).random(seed=b"wide").to_bigints().tolist() == VECTOR_WIDE
    for name, vector in SMALL_VECTORS:
        assert DRAWS[name](pg.Ring(8, 2**63), seed=1).to_bigints(centered=True).tolist() == vector, name


UNIFORM_RINGS = [
    pg.Ring(64, pg.ntt_primes(64, bits=40, count=2)),
    pg.Ring(12, [3, 2**30 - 35, 2**31 - 1, 2**32]),
    pg.Ring(7, [2, 2**62 - 57, 2**62 + 135, 2**63 - 25, 2**63 + 29, 2**64 - 59]),
    pg.Ring(20, 2**64),
    pg.Ring(3, 2**90 + 1),
]


@everywhere
@pytest.mark.parametrize("ring", UNIFORM_RINGS, ids=repr)
def test_random_does_not_depend_on_batch_split_or_device(ring):
    found = ring.random((6, 2), seed=3)
    with pg.device("cpu"):
        whole = ring.random((6, 2), seed=3)
    assert np.array_equal(host(found.data), whole.data) and found.device == backend().name
    assert found == pg.concatenate([ring.random((2, 2), seed=3, start=4 * i) for i in range(3)])
    assert found[1, 1] == ring.random(seed=3, start=np.uint8(3))
    assert ring.random((0, 2), seed=3).shape == (0, 2)


EVALUATED_RINGS = [
    pg.Ring(1, 17),
    pg.Ring(64, pg.ntt_primes(64, bits=40, count=2)),
    pg.Ring(256, 3329),
    pg.Ring(16, [97, 2**31 - 1, 17], kind="cyclic"),
    pg.Ring(8, pg.ntt_primes(8, bits=100)),
]


@everywhere
@pytest.mark.parametrize("ring", EVALUATED_RINGS, ids=repr)
def test_random_in_the_evaluation_domain_has_the_same_residues(ring):
    for batch in ((), 3, (0, 2)):
        a, b = ring.random(batch, seed=5, start=2), ring.random(batch, domain="eval", seed=5, start=2)
        assert (a.domain, b.domain, b.ring, b.shape) == ("coef", "eval", ring, a.shape)
        assert np.array_equal(host(a.data), host(b.data))
        assert a != b or ring.n == 1 or not a.data.size
        assert ring.from_residues(a.data, domain="eval") == b
    assert ring.random(2, domain="eval", seed=3)[1] == ring.random(domain="eval", seed=3, start=1)


@pytest.mark.parametrize("ring", [pg.Ring(1000, r.moduli) for r in UNIFORM_RINGS], ids=repr)
def test_random_on_every_instruction_set(ring, each_isa):
    key, n, words = hashlib.sha256(b"polygpu uniform 1int:0x4").digest(), ring.n, ring._plan.basis.words
    values = ring.random(2, seed=4, start=1).to_residue_ints()
    for limb, q in enumerate(ring.moduli):
        text = keystream(key, limb, 8 * (words + 1) * n, 16 * (words + 1) * n)
        size = 8 * (words + 1)
        numbers = [int.from_bytes(text[i : i + size], "little") % q for i in range(0, len(text), size)]
        row = values if ring._plan.basis.wide else values[:, limb]
        assert row.ravel().tolist() == numbers


@pytest.mark.parametrize(
    "q", [2, 3, 2**31 - 1, 2**32, 2**62 - 57, 2**62, 2**63 - 25, 2**63, 2**64 - 59, 2**64]
)
def test_reduction_of_two_words_at_its_edges(q, each_isa):
    """The estimated quotient is worst next to multiples of q, so the numbers lie there."""
    edges = {0, 1, 2**64 - 1, 2**64, 2**128 - 1, 2**128 - 2**64, 2**127}
    for k in (1, 2, 3, 2**63, 2**64 - 1, 2**64, (2**128 - 1) // q):
        edges |= {x for x in (k * q - 1, k * q, k * q + 1, (k * q << 64) - 1, k * q << 64) if 0 <= x < 2**128}
    numbers = sorted(edges)
    words = np.array([[x % 2**64, x >> 64] for x in numbers], np.uint64).ravel()
    ring = pg.Ring(len(numbers), q)
    out = np.empty((1, 1, ring.n), ring.dtype)
    pg._backends.get_backend("cpu")._native_basis(ring._plan.basis).reduce_words(words, 0, 0, out)
    assert out.ravel().tolist() == [x % q for x in numbers]


def test_long_batches_in_pieces(monkeypatch):
    ring = pg.Ring(100, [2**61 - 1, 97])
    draws = [lambda: ring.random(50, seed=9), *(lambda d=d: d(ring, 50, seed=9) for d in DRAWS.values())]
    whole = [draw() for draw in draws]
    monkeypatch.setattr("polygpu._backends.cpu._PIECE", 1000)
    assert [draw() for draw in draws] == whole


def test_different_seeds_give_different_values():
    ring = pg.Ring(16, 2**61 - 1)
    values = [ring.random(seed=s) for s in (0, 1, "0", b"0", None, None)]
    assert all(values[i] != values[j] for i in range(6) for j in range(i))


def test_uniform_frequencies_within_five_sigma():
    q, count = 5, 1 << 17
    values = pg.Ring(count, q).random(seed=11).data[0]
    expected, sigma = count / q, (count * (1 / q) * (1 - 1 / q)) ** 0.5
    assert all(abs(c - expected) < 5 * sigma for c in np.bincount(values, minlength=q))


@pytest.mark.parametrize("seed", [1.5, True, [1], np.array([1])])
def test_invalid_seeds_raise(seed):
    for draw in (pg.Ring.random, *DRAWS.values()):
        with pytest.raises(pg.ParameterError, match="seed"):
            draw(pg.Ring(4, 17), seed=seed)


# ---- small integers ----

# One draw for each number of bytes, each number of terms and each distribution.
DRAWS = {
    "ternary": lambda R, batch=(), **k: R.ternary(batch, **k),
    "weight 3": lambda R, batch=(), **k: R.ternary(batch, weight=3, **k),
    "binomial 2": lambda R, batch=(), **k: R.binomial(2, batch=batch, **k),
    "binomial 5": lambda R, batch=(), **k: R.binomial(5, batch=batch, **k),
    "binomial 16": lambda R, batch=(), **k: R.binomial(16, batch=batch, **k),
    "binomial 32": lambda R, batch=(), **k: R.binomial(32, batch=batch, **k),
    "gaussian 0.5": lambda R, batch=(), **k: R.gaussian(0.5, batch=batch, **k),
    "gaussian 3.2": lambda R, batch=(), **k: R.gaussian(3.2, batch=batch, **k),
    "gaussian 16": lambda R, batch=(), **k: R.gaussian(16, batch=batch, **k),
    "gaussian 100": lambda R, batch=(), **k: R.gaussian(100, batch=batch, **k),
    "gaussian 2^20": lambda R, batch=(), **k: R.gaussian(2**20, batch=batch, **k),
    "tuniform 0": lambda R, batch=(), **k: R.tuniform(0, batch=batch, **k),
    "tuniform 10": lambda R, batch=(), **k: R.tuniform(10, batch=batch, **k),
    "tuniform 30": lambda R, batch=(), **k: R.tuniform(30, batch=batch, **k),
    "tuniform 62": lambda R, batch=(), **k: R.tuniform(62, batch=batch, **k),
}
every_draw = pytest.mark.parametrize("name", DRAWS)
LABELS = {  # the label in the key, and the bytes of a coefficient
    "ternary": ("ternary 1 n={n} weight=None", 8),
    "weight 3": ("ternary 1 n={n} weight=3", 8),
    "binomial 2": ("binomial 1 n={n} eta=2", 1),
    "binomial 5": ("binomial 1 n={n} eta=5", 2),
    "binomial 16": ("binomial 1 n={n} eta=16", 4),
    "binomial 32": ("binomial 1 n={n} eta=32", 8),
    "gaussian 0.5": ("gaussian 1 n={n} sigma=1/2", 8),
    "gaussian 3.2": ("gaussian 1 n={n} sigma=3602879701896397/1125899906842624", 8),
    "gaussian 16": ("gaussian 1 n={n} sigma=16", 8),
    "gaussian 100": ("gaussian 1 n={n} sigma=100", 16),
    "gaussian 2^20": ("gaussian 1 n={n} sigma=1048576", 32),
    "tuniform 0": ("tuniform 1 n={n} b=0", 1),
    "tuniform 10": ("tuniform 1 n={n} b=10", 2),
    "tuniform 30": ("tuniform 1 n={n} b=30", 4),
    "tuniform 62": ("tuniform 1 n={n} b=62", 8),
}


@cache
def densities(variance):
    """exp(-j^2 / (2 variance)) for j = 0, 1, ..., to 80 digits, while above 1e-60."""
    with decimal.localcontext(decimal.Context(prec=80)):
        rate, found = Decimal(variance.denominator) / Decimal(2 * variance.numerator), []
        while not found or found[-1] > Decimal("1e-60"):
            found.append((-rate * len(found) ** 2).exp())
    return found


@cache
def thresholds(variance):
    """2^63 P(|z| <= j), rounded, of a discrete Gaussian."""
    with decimal.localcontext(decimal.Context(prec=80)):
        rho = densities(variance)
        total = 2 * sum(rho) - 1
        sums = [2 * sum(rho[: j + 1]) - 1 for j in range(len(rho))]
        rounded = [int((2**63 * x / total).to_integral_value(decimal.ROUND_HALF_UP)) for x in sums]
    return [x for x in rounded if x < 2**63]


def expected_integers(name, n, numbers):
    """One polynomial's coefficients, from the definition."""
    kind, _, parameter = name.partition(" ")
    if kind == "ternary":
        return [3 * w // 2**64 - 1 for w in numbers]
    if kind == "weight":
        order = sorted((w >> 1, j) for j, w in enumerate(numbers))[: int(parameter)]
        return [(-1) ** (w & 1) * ((w >> 1, j) in order) for j, w in enumerate(numbers)]
    if kind == "binomial":
        bits, eta = [f"{w:064b}"[::-1] for w in numbers], int(parameter)
        return [b[:eta].count("1") - b[eta : 2 * eta].count("1") for b in bits]
    if kind == "tuniform":
        b = int(parameter)
        return [-(2**b) + (w % 2 ** (b + 2) + 1) // 2 for w in numbers]
    factors, variance = {
        "0.5": ((1,), Fraction(1, 4)),
        "3.2": ((1,), Fraction(3.2) ** 2),
        "16": ((1,), Fraction(256)),
        "100": ((1, 7), Fraction(10000, 50)),
        "2^20": ((1, 28, 809, 28 * 809), Fraction(2**40, (1 + 28**2) * (1 + 809**2))),
    }[parameter]
    table, values = thresholds(variance), []
    for w in numbers:
        words = [w >> 64 * i & 2**64 - 1 for i in range(len(factors))]
        sizes = [sum(t <= x >> 1 for t in table) for x in words]
        values.append(sum(f * s * (-1) ** (x & 1) for f, s, x in zip(factors, sizes, words, strict=True)))
    return values


@everywhere
@every_draw
def test_small_integers_match_their_definition(name):
    n, ring = 13, pg.Ring(13, 2**80 + 1)
    label, size = LABELS[name]
    key = hashlib.sha256(f"polygpu {label.format(n=n)} ".encode() + b"str:k").digest()
    start = 2**46 + 1 if size == 8 else 5
    values = DRAWS[name](ring, 3, seed="k", start=start).to_bigints(centered=True).tolist()
    for i in range(3):
        position = size * n * (start + i)
        block, skip = divmod(position, 64)
        blocks = range((skip + size * n) // 64 + 1)
        text = b"".join(chacha20_block(key, block + k, bytes(8)) for k in blocks)[skip:]
        numbers = [int.from_bytes(text[size * j : size * (j + 1)], "little") for j in range(n)]
        assert values[i] == expected_integers(name, n, numbers)


SMALL_RINGS = [
    pg.Ring(8, 97),
    pg.Ring(12, [3, 2, 5, 7]),  # moduli below the integers
    pg.Ring(5, [2**32, 2**31 - 1, 3]),
    pg.Ring(16, [2**62 - 57, 2**62, 2**61 - 1, 3]),  # about the bound of tuniform(62)
    pg.Ring(7, [2**63 - 25, 2**64, 2**64 - 59, 17]),
    pg.Ring(9, 2**65 + 131),
    pg.Ring(4, 2**128),
]


@everywhere
@every_draw
def test_limbs_hold_the_same_integer_on_every_device(name):
    for ring in SMALL_RINGS:
        found = DRAWS[name](ring, (3, 2), seed=8, start=1)
        with pg.device("cpu"):
            integers = DRAWS[name](pg.Ring(ring.n, 2**100), (3, 2), seed=8, start=1).to_bigints(centered=True)
        assert found.device == backend().name and found.domain == "coef" and found.shape == (3, 2)
        values = found.to_residue_ints()
        for limb, q in enumerate(ring.moduli):
            row = values if ring._plan.basis.wide else values[:, :, limb]
            assert np.array_equal(row, integers % q)
        assert DRAWS[name](ring, (0,), seed=8).shape == (0,)


@everywhere
@every_draw
def test_small_integers_in_several_pieces(name):
    ring = pg.Ring(11, [2**40 + 15, 97])
    whole = DRAWS[name](ring, (6,), seed=1, start=2)
    for cuts in ((0, 1, 6), (0, 4, 5, 6)):
        pieces = [DRAWS[name](ring, (b - a,), seed=1, start=2 + a) for a, b in pairwise(cuts)]
        assert pg.concatenate(pieces) == whole


@on("simulated", "cuda")
@pytest.mark.parametrize("n", [300, 299])
@pytest.mark.parametrize(
    "draw", [pg.Ring.random, DRAWS["gaussian 2^20"], DRAWS["ternary"], DRAWS["weight 3"]]
)
def test_draws_of_many_blocks_of_threads(n, draw):
    """Blocks of 256 threads produce 1024 residues, 512 Gaussians or 2048 ternary values."""
    for moduli in ([97, 2**31 - 1], [2**61 - 1, 5]):
        ring = pg.Ring(n, moduli)
        found = draw(ring, 9, seed=3, start=1)
        with pg.device("cpu"):
            assert np.array_equal(host(found.data), draw(ring, 9, seed=3, start=1).data)
    ring = pg.Ring(1500 + n, 17)
    found = draw(ring, 2, seed=4)
    with pg.device("cpu"):
        assert np.array_equal(host(found.data), draw(ring, 2, seed=4).data)


@every_draw
@pytest.mark.parametrize("moduli", [[2**20 + 7, 3], [2**50 + 55, 2**64 - 59]])
def test_small_integers_on_every_instruction_set(name, moduli, each_isa):
    ring = pg.Ring(777, moduli)
    found = DRAWS[name](ring, 3, seed=2).data
    with pg.device("reference"):
        assert np.array_equal(DRAWS[name](ring, 3, seed=2).data, found)


@pytest.mark.parametrize("sigma", [1, 2, 5.5, 13, 20, 333, 1024, 1025, 54321, 2**20, Fraction(7, 3), 0.75])
def test_gaussian_widths_on_every_instruction_set(sigma, each_isa):
    ring = pg.Ring(100, 2**63)
    found = ring.gaussian(sigma, batch=2, seed=2).data
    with pg.device("reference"):
        assert np.array_equal(ring.gaussian(sigma, batch=2, seed=2).data, found)


def test_different_draws_use_different_streams():
    """Degree, distribution and seed change the key; polynomials use other parts of a stream."""
    ring, big, seen = pg.Ring(64, 2**62), pg.Ring(128, 2**62), []
    for R in (ring, big):
        for draw in DRAWS.values():
            seen += [
                draw(R, seed=s, start=i).to_bigints(centered=True)[:64] for s in (1, "1") for i in (0, 1)
            ]
    signs = [np.sign(x.astype(object)).astype(int) for x in seen]
    found = {x.tobytes() for x in signs if np.count_nonzero(x) > 3}
    assert len(found) == sum(np.count_nonzero(x) > 3 for x in signs) > 90


def test_distributions_have_distinct_keys(monkeypatch):
    labels = []
    original = pg._ops.sampling.key_of
    monkeypatch.setattr(
        "polygpu._ops.sampling.key_of", lambda seed, *label: labels.append(label) or original(seed, *label)
    )
    for n in (4, 8):
        for draw in (pg.Ring.random, *DRAWS.values()):
            draw(pg.Ring(n, 97), seed=1)
    assert len(set(labels)) == 1 + 2 * len(DRAWS)
    assert labels[0] == () and all(label[0].endswith(" ") for label in set(labels) - {()})


def test_small_integers_do_not_depend_on_moduli_and_kind():
    for draw in DRAWS.values():
        a = draw(pg.Ring(8, 2**63), seed=1).to_bigints(centered=True).tolist()
        b = draw(pg.Ring(8, [2**61 - 1, 97], kind="cyclic"), seed=1).to_bigints(centered=True).tolist()
        assert a == b


def test_equal_sigmas_give_equal_values():
    ring = pg.Ring(32, 2**40)
    values = [ring.gaussian(s, seed=1) for s in (2, 2.0, Fraction(2), np.float32(2), np.int8(2))]
    assert all(v == values[0] for v in values) and ring.gaussian(np.nextafter(2, 3), seed=1) != values[0]


def test_small_draws_without_a_seed_differ():
    ring = pg.Ring(64, 97)
    assert all(draw(ring) != draw(ring) for draw in DRAWS.values())


@everywhere
@pytest.mark.parametrize("weight", [0, 1, 5, 15, 16])
def test_ternary_weight_is_exact(weight):
    values = pg.Ring(16, [97, 2]).ternary((4, 5), weight=weight, seed=3).data[..., 0, :]
    assert (np.count_nonzero(host(values), axis=-1) == weight).all()


TIES = [
    ([8, 8, 8, 8, 8], 2),  # the first two
    ([9, 8, 3, 9, 8], 3),
    ([2**64 - 1, 2**64 - 2, 2**64 - 1], 2),
    ([0, 1, 0, 1], 3),
    ([5, 4, 5, 4, 7, 6, 1, 0], 5),
    ([8, 8, 8], 3),
    ([2 * x for x in range(600, 0, -1)], 600),
    ([2 * (x // 3) for x in range(900)], 500),
]


@pytest.mark.parametrize(("words", "weight"), TIES)
def test_ternary_weight_with_equal_sorting_keys(words, weight):
    ring = pg.Ring(len(words), [97, 3])
    chosen = sorted(range(len(words)), key=lambda j: (words[j] // 2, j))[:weight]
    expected = [0 if j not in chosen else -1 if w % 2 else 1 for j, w in enumerate(words)]
    native = pg._backends.get_backend("cpu")._native_basis(ring._plan.basis)
    none = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    out = np.empty((1, 2, ring.n), ring.dtype)
    _cpu.Sampler(1, 8, weight, 1, *none).draw(native, np.array(words, np.uint64), 0, ring.n, out)
    assert ring.from_residues(out[0]).to_bigints(centered=True).tolist() == expected


@on("simulated", "cuda")
@pytest.mark.parametrize(("words", "weight"), TIES)
def test_ternary_weight_with_equal_sorting_keys_on_a_card(words, weight):
    from polygpu._backends.cuda import launch, sampling

    ring, compute = pg.Ring(len(words), [97, 3]), backend()
    out, keys = there(np.zeros((1, 2, ring.n), ring.dtype)), there(np.array([7, 7, *words], np.uint64))
    moduli = compute.moduli_of(ring._plan.basis)
    recipe = launch.Recipe(2, moduli)
    values = {
        "x": 0,
        "y": 0,
        "moduli": compute.address(moduli.value),
        "n": ring.n,
        "skip": 2,
        "weight": weight,
    }
    recipe.launch(sampling.sparse_launch(ring._plan.basis, 1, **values), 0, 1)
    compute.run_once(recipe, compute.address(keys), compute.address(out))
    chosen = sorted(range(len(words)), key=lambda j: (words[j] // 2, j))[:weight]
    expected = [0 if j not in chosen else -1 if w % 2 else 1 for j, w in enumerate(words)]
    assert ring.from_residues(host(out)[0]).to_bigints(centered=True).tolist() == expected


# ---- distributions ----

FALSE_ALARM = (
    1e-9  # a right sampler with a random seed fails a test below with at most this probability, about
)


def check_frequencies(counts, probabilities):
    """Pearson's chi-square; cells of fewer than 25 expected are joined."""
    total, cells, seen, expected = sum(counts), [], 0, 0.0
    for count, probability in zip(counts, probabilities, strict=True):
        seen, expected = seen + count, expected + float(probability) * total
        if expected >= 25:
            cells.append((seen, expected))
            seen, expected = 0, 0.0
    if cells:
        cells[-1] = (cells[-1][0] + seen, cells[-1][1] + expected)
    freedom = len(cells) - 1
    assert freedom > 0 and math.isclose(sum(e for _, e in cells), total, rel_tol=1e-9)
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    # P(chi^2 >= z k) <= (z exp(1 - z))^(k/2), Chernoff's bound
    z = statistic / freedom
    bound = 1.0 if z <= 1 else math.exp(freedom / 2 * (math.log(z) + 1 - z))
    assert bound > FALSE_ALARM, (statistic, freedom)


def integers_of(draw, count=1 << 18, n=1 << 10):
    values = draw(pg.Ring(n, 2**63), count // n).data[:, 0].ravel()
    return (values ^ (values & np.uint64(2**62)) << np.uint64(1)).view(np.int64)  # sign-extended


def probabilities_of(name):
    """The least value, and the exact probabilities of it and of all values above."""
    kind, parameter = name.split()
    if kind == "binomial":
        eta = int(parameter)
        return -eta, [Fraction(math.comb(2 * eta, eta + k), 4**eta) for k in range(-eta, eta + 1)]
    if kind == "tuniform":
        b = int(parameter)
        inner = [Fraction(1, 2 ** (b + 1))] * (2 ** (b + 1) - 1)
        return -(2**b), [Fraction(1, 2 ** (b + 2)), *inner, Fraction(1, 2 ** (b + 2))]
    if kind == "ternary":
        return -1, [Fraction(1, 3)] * 3
    rho = densities(Fraction(parameter) ** 2)
    total = 2 * sum(rho) - 1
    return 1 - len(rho), [x / total for x in (*rho[:0:-1], *rho)]


@pytest.mark.parametrize(
    "name",
    ["ternary 1", *(f"binomial {x}" for x in (1, 2, 4, 5, 8, 21, 32)),
     *(f"tuniform {x}" for x in (0, 1, 6, 7)),
     *(f"gaussian {x}" for x in ("1/2", "1", "16/5", "8", "16", "17", "50"))],
)  # fmt: skip
def test_frequencies_of_small_integers(name):
    least, probabilities = probabilities_of(name)
    kind, parameter = name.split()
    values = integers_of(
        lambda R, batch: (
            R.ternary(batch, seed=6)
            if kind == "ternary"
            else getattr(R, kind)(
                Fraction(parameter) if kind == "gaussian" else int(parameter), batch=batch, seed=6
            )
        )
    )
    counts = np.bincount(values - least, minlength=len(probabilities))
    check_frequencies(counts.tolist(), probabilities)


@pytest.mark.parametrize("sigma", [300, 1000, 1100, 50000, 2**20])
def test_frequencies_of_wide_gaussians(sigma):
    values = integers_of(lambda R, batch: R.gaussian(sigma, batch=batch, seed=6))
    check_frequencies(
        np.bincount(values % 64, minlength=64).tolist(), [1 / 64] * 64
    )  # uniform, to 1e-16 and less
    edges = [round(sigma * x / 8) for x in range(-32, 33)]
    # Of so wide a Gaussian the sum over integers is the integral, to 1e-16 and less (Poisson).
    below = [0.0, *(math.erfc(-(x - 0.5) / sigma / 2**0.5) / 2 for x in edges), 1.0]
    cells = np.searchsorted(edges, values, side="right")
    check_frequencies(
        np.bincount(cells, minlength=len(edges) + 1).tolist(),
        [b - a for a, b in pairwise(below)],
    )


@pytest.mark.parametrize("weight", [1, 7, 32, 63])
def test_frequencies_of_sparse_polynomials(weight):
    n, count = 64, 1 << 14
    values = pg.Ring(n, 3).ternary(count, weight=weight, seed=5).data[:, 0]
    places = np.count_nonzero(values, axis=0)
    # Places of one polynomial are not independent: (n - 1) / (n - weight) times the statistic is chi-square.
    statistic = ((places - count * weight / n) ** 2).sum() / (count * weight / n) * (n - 1) / (n - weight)
    z = statistic / (n - 1)
    assert z <= 1 or math.exp((n - 1) / 2 * (math.log(z) + 1 - z)) > FALSE_ALARM
    signs = np.bincount(values[values != 0], minlength=3)[1:]
    check_frequencies(signs.tolist(), [0.5, 0.5])


SIGMAS = [
    Fraction(1, 2),
    Fraction(3, 4),
    Fraction(3.2),
    Fraction(4),
    Fraction(16),
    Fraction(17),
    Fraction(1024),
]


@pytest.mark.parametrize("sigma", [*SIGMAS, Fraction(1025), Fraction(5 * 10**4), Fraction(2**20)], ids=str)
def test_statistical_distance_of_gaussian_tables(sigma):
    """One term is exact, as half the sum of differences; sums use smoothing (docs/math.md)."""
    sampler = plans.gaussian(sigma)
    with decimal.localcontext(decimal.Context(prec=80)):
        rho = densities(sampler.variance)
        total = 2 * sum(rho) - 1
        ideal = [rho[0] / total, *(2 * x / total for x in rho[1:])]
        cells = [b - a for a, b in pairwise([0, *sampler.thresholds, 2**63])]
        cells += [0] * (len(ideal) - len(cells))
        wrong = sum(abs(Decimal(a) / 2**63 - b) for a, b in zip(cells, ideal, strict=True)) / 2
    weights, smooth = sampler.weights, Fraction(0)
    if len(weights) > 1:
        k, outer = weights[1], weights[2] if len(weights) > 2 else None
        squares = [(sampler.variance / (k * k + 1), len(weights) // 2)]
        if outer:
            squares.append((sampler.variance * (k * k + 1) / (outer**2 + 1), 1))
        assert sampler.variance * math.prod(f * f + 1 for f in (k, outer) if f) == sigma**2
        for square, times in squares:
            assert square >= Fraction(64, 25)  # 1.6^2
            smooth += times * Fraction(3 * math.exp(-2 * math.pi**2 * float(square)))
    distance = len(weights) * Fraction(wrong) + smooth
    assert distance <= sampler.distance <= Fraction(1, 2**53)
    assert sigma > 16 or sampler.distance <= Fraction(1, 2**56)
    assert sigma > 4 or sampler.distance <= Fraction(1, 2**58)
    assert sampler.bound == len(sampler.thresholds) * sum(weights) and len(sampler.thresholds) < 512
    assert len(weights) * 8 == sampler.size == (8 if sigma <= 16 else 16 if sigma <= 1024 else 32)


@pytest.mark.parametrize("sigma", range(1, 1 << 20, 9973))
def test_size_of_gaussian_tables_of_all_widths(sigma):
    sampler = plans.gaussian(Fraction(sigma))
    assert len(sampler.thresholds) < 512 and sampler.distance <= Fraction(1, 2**53)


def test_size_of_gaussian_tables_where_the_number_of_terms_changes():
    for sigma in (16, 1024):
        for more in (Fraction(0), Fraction(1, 10**9), Fraction(1, 2), Fraction(1)):
            assert len(plans.gaussian(sigma + more).thresholds) < 512


# ---- errors ----

WRONG = [
    (lambda R: R.ternary(weight=9), "weight=9 .*0, n.*Omit weight"),
    (lambda R: R.ternary(weight=-1), "weight=-1 "),
    (lambda R: R.ternary(weight=1.0), "weight=1.0 "),
    (lambda R: R.binomial(0), r"eta=0 .*\[1, 32\].*gaussian"),
    (lambda R: R.binomial(33), "eta=33 "),
    (lambda R: R.binomial(True), "eta=True "),
    *((lambda R, s=s: R.gaussian(s), "sigma=.*0.5 to 2.*ternary") for s in (
        0, 0.49, 2**20 + 1, -3.2, math.nan, math.inf, "3", None, True, 1j, np.bool_(True), [3.2], 10**400)),
    (lambda R: R.tuniform(-1), r"b=-1 .*\[0, 62\].*random"),
    (lambda R: R.tuniform(63), "b=63 "),
    (lambda R: R.tuniform(2.0), "b=2.0 "),
    (lambda R: R.ternary(start=-1), "start=-1 "),
    (lambda R: R.gaussian(3, start=2**48), r"start=.*2\*\*48"),
    (lambda R: R.binomial(2, start=1.5), "start=1.5 "),
    (lambda R: R.tuniform(2, batch=(2, -1)), r"batch=\(2, -1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_invalid_parameters_raise(call, text):
    with pytest.raises(pg.ParameterError, match=text):
        call(pg.Ring(8, 97))


def test_start_beyond_the_stream_raises():
    ring = pg.Ring(2**40, 97)
    with pytest.raises(pg.ParameterError, match=r"start=.*the stream, which has"):
        ring.gaussian(2**20, batch=0, seed=1, start=2**47)


# Written once; a change of these values breaks what users stored.
SMALL_VECTORS = [
    ("ternary", [1, -1, 1, -1, 0, 0, 1, 1]),
    ("weight 3", [0, 1, 0, 1, 0, 0, -1, 0]),
    ("binomial 2", [1, 1, -1, 1, -1, 1, 1, -1]),
    ("binomial 5", [-3, 0, -2, 0, 1, 4, 1, -2]),
    ("binomial 16", [1, 3, -2, -7, 1, 1, 0, -2]),
    ("gaussian 3.2", [-2, -3, 4, -2, 4, 6, -2, 1]),
    ("gaussian 100", [69, -19, -64, 104, 143, 11, 4, 115]),
    ("gaussian 2^20", [854976, 1437840, 3057116, -468495, 1104014, 1509016, 278534, -548571]),
    ("tuniform 0", [0, 0, 0, 0, 0, 1, 0, 1]),
    ("tuniform 10", [-743, -936, 122, -883, -762, 571, 240, -88]),
]
VECTOR_97 = [25, 64, 24, 20]
VECTOR_60 = [506098983141776237, 613216136142840060]
VECTOR_WIDE = [1268621741508298999607502452925608211057, 769644458608208929120327236752827337144]
