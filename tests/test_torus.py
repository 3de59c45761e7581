"""Products in doubles modulo 2^32 and 2^64: errors below their proven bound and close to their model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from devices import CARDS, backend, on, there

import polygpu as pg
from polygpu import Poly, Ring, _cpu, lattice
from polygpu._backends.cuda import torus
from polygpu._backends.cuda.tiles import Pass

# n, bits of the modulus, bits and levels of digits, components
SHAPES = [
    (32, 64, 23, 1, 2),
    (64, 32, 7, 3, 2),
    (64, 64, 11, 3, 2),  # digits of 33 bits together: words of 64 bits
    (128, 64, 31, 1, 1),
    (512, 64, 23, 1, 5),
    (1024, 32, 7, 3, 2),
    (1024, 64, 10, 2, 3),
    (2048, 64, 23, 1, 2),
]
FUSED = [shape for shape in SHAPES if shape[0] >= 512]  # that one kernel serves


def centred(x: Poly, y: Poly) -> np.ndarray[Any, Any]:
    """x - y as floats, of residues nearest to 0."""
    return np.asarray((x.cpu() - y.cpu()).to_float64())


def key_of(shape: tuple[int, int, int, int, int], count: int = 0, seed: int = 1) -> Poly:
    n, modulus_bits, _, levels, k = shape
    return Ring(n, 2**modulus_bits).random((count, k, levels, k) if count else (k, levels, k), seed=seed)


def doubled(key: Poly, bits: int) -> lattice.Prepared:
    made = lattice.prepare(key, bits=bits, precision="double")
    assert isinstance(made, lattice.Prepared)
    return made


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_external_product_error_with_largest_digits_and_keys(
    device: str, shape: tuple[int, int, int, int, int]
) -> None:
    """All digits are -B/2 and all residues q/2, so sums are largest and known."""
    n, modulus_bits, bits, levels, k = shape
    R, q, half = Ring(n, 2**modulus_bits), 2**modulus_bits, -(1 << bits - 1)
    largest = sum(half * g for g in lattice.gadget(R, bits=bits, levels=levels)) % q
    c = R(np.full((1, k, n), largest, object))
    for residue in (q // 2, q // 2 - 1, q // 2 + 1):
        prepared = doubled(R(np.full((k, levels, k, n), residue, object)), bits)
        signed = residue if residue < q // 2 else residue - q
        row = [k * levels * half * signed * (2 * i + 2 - n) % q for i in range(n)]
        found = lattice.external_product(prepared, c, bits=bits)
        error = centred(found, R([[row] * k]))
        assert np.abs(error).max() <= prepared.error.bound
        # A product with a constant moves no coefficient, so that rounding alone is left.
        one = np.zeros((k, levels, k, n), object)
        one[..., 0] = residue
        constant = doubled(R(one), bits)
        found = lattice.external_product(constant, c, bits=bits)
        assert np.abs(centred(found, R(np.full((1, k, n), k * levels * half * signed)))).max() <= (
            constant.error.bound
        )


@on("cpu", *CARDS)
@pytest.mark.parametrize("shape", [(32, 64, 23, 1, 2), (64, 32, 7, 3, 2), (512, 64, 22, 1, 2)])
def test_external_product_error_with_largest_digits_and_combined_keys(
    device: str, shape: tuple[int, int, int, int, int]
) -> None:
    """The summed matrices of a group have all residues near q/2."""
    n, modulus_bits, bits, levels, k = shape
    R, q, half = Ring(n, 2**modulus_bits), 2**modulus_bits, -(1 << bits - 1)
    largest = sum(half * g for g in lattice.gadget(R, bits=bits, levels=levels)) % q
    c = R(np.full((1, k, n), largest, object))
    for residue in (q // 2, q // 2 - 1, q // 2 + 1):
        parts = [np.full((k, levels, k, n), x % q, object) for x in (q - 5, residue + 5, 1, -1)]
        prepared = doubled(R(np.stack(parts)[None]), bits)
        signed = residue if residue < q // 2 else residue - q
        row = [k * levels * half * signed * (2 * i + 2 - n) % q for i in range(n)]
        error = centred(lattice.blind_rotate(c, prepared, [[0, 0, 0]], bits=bits), R([[row] * k]))
        assert np.abs(error).max() <= prepared.error.bound


@on("cpu")
@pytest.mark.parametrize(
    "shape", [(512, 64, 23, 1, 5), (1024, 32, 15, 2, 2), (1024, 64, 11, 2, 2), (2048, 64, 23, 1, 2)]
)
def test_error_deviation_of_a_million_coefficients(
    device: str, shape: tuple[int, int, int, int, int]
) -> None:
    n, modulus_bits, bits, _, k = shape
    key, R, count = key_of(shape, 1), Ring(n, 2**modulus_bits), -(-1_000_000 // (n * k))
    prepared, none = doubled(key, bits), np.zeros((count, 1), int)
    c = lattice.blind_rotate(R.random((count, k), seed=2), doubled(key[:0], bits), none, bits=bits)
    exponents = np.concatenate([none, np.random.default_rng(3).integers(1, 2 * n, (count, 1))], axis=1)
    found = lattice.blind_rotate(c, prepared, exponents, bits=bits)
    error = centred(found, lattice.blind_rotate(c, key, exponents, bits=bits))
    assert np.sqrt(np.mean(error**2)) == pytest.approx(prepared.error.std, rel=0.1)
    assert np.abs(error).max() < prepared.error.bound
    assert abs(np.mean(error)) < 4 * prepared.error.std / math.sqrt(error.size) + 1


@on("cpu")
@pytest.mark.parametrize("shape", [(1024, 32, 15, 2, 2), (2048, 64, 22, 1, 2)])
def test_error_deviation_with_combined_keys(device: str, shape: tuple[int, int, int, int, int]) -> None:
    n, modulus_bits, bits, levels, k = shape
    R, count = Ring(n, 2**modulus_bits), 100
    key = R.random((1, 4, k, levels, k), seed=1)
    prepared, none = doubled(key, bits), np.zeros((count, 1), int)
    c = lattice.blind_rotate(R.random((count, k), seed=2), doubled(key[:0], bits), none, bits=bits)
    exponents = np.concatenate([none, np.random.default_rng(3).integers(1, 2 * n, (count, 2))], axis=1)
    found = lattice.blind_rotate(c, prepared, exponents, bits=bits)
    error = centred(found, lattice.blind_rotate(c, key, exponents, bits=bits))
    assert np.sqrt(np.mean(error**2)) == pytest.approx(prepared.error.std, rel=0.1)
    assert np.abs(error).max() < prepared.error.bound


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_of_each_blind_rotation_step(device: str, shape: tuple[int, int, int, int, int]) -> None:
    """A rotation equals its steps in sequence, and each step is near the exact one."""
    n, modulus_bits, bits, levels, k = shape
    if device == "reference" and n > 64:
        pytest.skip("takes minutes")
    R, steps, items = Ring(n, 2**modulus_bits), 3, 3
    unit = 2**32 if modulus_bits == 64 and bits * levels < 32 else 1
    key, c = key_of(shape, steps), R.random((items, k), seed=2)
    exponents = np.random.default_rng(3).integers(-n, 3 * n, (items, 1 + steps))
    exponents[0, 1], exponents[1, 2] = 0, n
    whole = lattice.blind_rotate(c, doubled(key, bits), exponents, bits=bits)
    none = np.zeros((items, 1), int)
    state = lattice.blind_rotate(c, doubled(key[:0], bits), exponents[:, :1], bits=bits)
    rounding = centred(state, c.mul_monomial(exponents[:, :1]))
    assert np.abs(rounding).max() <= unit // 2
    for i in range(steps):
        own, powers = key[i : i + 1], np.concatenate([none, exponents[:, i + 1 : i + 2]], axis=1)
        after = lattice.blind_rotate(state, doubled(own, bits), powers, bits=bits)
        exact = lattice.blind_rotate(state, own, powers, bits=bits)
        assert np.abs(centred(after, exact)).max() <= doubled(own, bits).error.bound
        state = after
    assert state.cpu() == whole.cpu()


def noiseless(R: Ring, messages: np.ndarray[Any, Any], bits: int, levels: int) -> Poly:
    """GGSW ciphertexts of two components that hide messages exactly."""
    weights = np.array(lattice.gadget(R, bits=bits, levels=levels), object)
    exact = np.zeros((*messages.shape, 2, levels, 2, 1), object)
    for i in range(2):
        exact[..., i, :, i, 0] = messages[..., None] * weights
    return R(exact)


def grouped(
    shape: tuple[int, int, int, int, int], group: int, count: int, items: int
) -> tuple[Poly, Poly, np.ndarray[Any, Any]]:
    """A key of groups for `count` bits, ciphertexts, and exponents for them."""
    n, modulus_bits, _, levels, k = shape
    R, groups = Ring(n, 2**modulus_bits), -(-count // group)
    key = R.random((groups, 2**group, k, levels, k), seed=1)
    exponents = np.random.default_rng(3).integers(-n, 3 * n, (items, 1 + count))
    return key, R.random((items, k), seed=2), exponents


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_of_each_blind_rotation_step_by_groups(
    device: str, shape: tuple[int, int, int, int, int]
) -> None:
    """The same holds for groups of bits. The last group is shorter."""
    n, bits = shape[0], shape[2]
    if device == "reference" and n > 64:
        pytest.skip("takes minutes")
    key, c, exponents = grouped(shape, 2, 5, 3)
    exponents[0, 1], exponents[1, 2] = 0, n
    whole = lattice.blind_rotate(c, doubled(key, bits), exponents, bits=bits)
    none = np.zeros((3, 1), int)
    state = lattice.blind_rotate(c, doubled(key[:0], bits), exponents[:, :1], bits=bits)
    for i in range(3):
        own, powers = key[i : i + 1], np.concatenate([none, exponents[:, 1 + 2 * i : 3 + 2 * i]], axis=1)
        after = lattice.blind_rotate(state, doubled(own, bits), powers, bits=bits)
        exact = lattice.blind_rotate(state, own, powers, bits=bits)
        assert np.abs(centred(after, exact)).max() <= doubled(own, bits).error.bound
        state = after
    assert state.cpu() == whole.cpu()


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize(
    ("n", "q", "bits", "levels"), [(8, 2**12, 4, 3), (32, 2**32, 8, 4), (16, 12289, 4, 3)]
)
@pytest.mark.parametrize("group", [2, 3])
def test_blind_rotate_by_groups_without_noise(
    device: str, n: int, q: int, bits: int, levels: int, group: int
) -> None:
    """Matrices that encrypt bits without noise rotate by the sum of the chosen exponents."""
    R, secret = Ring(n, q), np.array([1, 0, 1, 1])
    key = lattice.multi_bit_key(secret, R.zeros(1), group=group, bits=bits, levels=levels, tuniform=0, seed=1)
    messages, size = np.zeros(key.shape[:2], int), -(-len(secret) // group) * group
    padded = np.concatenate([secret, np.zeros(size - len(secret), int)]).reshape(-1, group)
    messages[np.arange(len(messages)), padded @ (1 << np.arange(group))] = 1
    exact = noiseless(R, messages, bits, levels)
    exponents = np.random.default_rng(2).integers(-3 * n, 3 * n, (3, 5))
    c = R.random((3, 2), seed=3)
    wanted = c.mul_monomial((exponents[:, 0] + exponents[:, 1:] @ secret)[:, None])
    left_out = len(messages) * (q / 2 / 2 ** (bits * levels) + levels * 2**bits / 4) if q == 12289 else 0
    for own in (exact, exact.ntt() if q == 12289 else lattice.prepare(exact, bits=bits)):
        found = lattice.blind_rotate(c, own, exponents, bits=bits)
        assert np.abs(centred(found, wanted)).max() <= left_out
    # The key's own messages are these, under the secret 0 and noise of -1, 0 and 1.
    assert np.abs(centred(key, exact)[..., 0, :]).max() <= 1


@on("cpu", "reference", *CARDS)
@pytest.mark.parametrize(
    ("n", "q", "bits", "levels"), [(8, 2**12, 4, 3), (32, 2**32, 8, 4), (16, 12289, 4, 3)]
)
def test_blind_rotate_by_a_ternary_secret_without_noise(
    device: str, n: int, q: int, bits: int, levels: int
) -> None:
    R, secret = Ring(n, q), np.array([1, 0, -1, 1, -1])
    messages = np.stack([secret == 1, secret == -1], axis=1).astype(int)
    key = lattice.ggsw(messages, R.zeros(1), bits=bits, levels=levels, tuniform=0, seed=1)
    exact = noiseless(R, messages, bits, levels)
    exponents = np.random.default_rng(2).integers(-3 * n, 3 * n, (3, 6))
    c = R.random((3, 2), seed=3)
    wanted = c.mul_monomial((exponents[:, 0] + exponents[:, 1:] @ secret)[:, None])
    left_out = 5 * (q / 2 / 2 ** (bits * levels) + levels * 2**bits / 4) * 2 if q == 12289 else 0
    prepared = [lattice.prepare(exact, bits=bits)]
    if q == 2**32:
        prepared.append(doubled(exact, bits))
    for own in prepared:
        for given in (exponents, there(exponents)):
            found = lattice.blind_rotate(c, own, given, bits=bits)
            assert np.abs(centred(found, wanted)).max() <= left_out
    assert np.abs(centred(key, exact)[..., 0, :]).max() <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_batch_split_or_threads(shape: tuple[int, int, int, int, int]) -> None:
    n, modulus_bits, bits, _, k = shape
    c = Ring(n, 2**modulus_bits).random((11, k), seed=2)
    exponents = np.random.default_rng(3).integers(0, 2 * n, (11, 4))
    for key in (key_of(shape, 3), grouped(shape, 2, 3, 1)[0]):
        prepared = doubled(key, bits)
        assert_equal_for_all_splits(c, prepared, exponents, bits)


def assert_equal_for_all_splits(
    c: Poly, prepared: lattice.Prepared, exponents: np.ndarray[Any, Any], bits: int
) -> None:
    before = _cpu.num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            _cpu.set_num_threads(threads)
            found.append(lattice.blind_rotate(c, prepared, exponents, bits=bits))
        one = [lattice.blind_rotate(c[i], prepared, exponents[i], bits=bits) for i in range(11)]
    finally:
        _cpu.set_num_threads(before)
    assert all(x == found[0] for x in (*found, pg.stack(one)))


def test_instruction_sets_with_fma_give_the_same_bits() -> None:
    shape, before, found = (256, 64, 20, 1, 2), _cpu.isa(), {}
    c = Ring(256, 2**64).random((3, 2), seed=2)
    for key in (key_of(shape, 2), grouped(shape, 2, 2, 1)[0]):
        try:
            for isa in _cpu.supported_isas():
                _cpu.set_isa(isa)
                found[isa] = lattice.blind_rotate(c, doubled(key, 20), [[1, 5, 300]] * 3, bits=20)
        finally:
            _cpu.set_isa(before)
        fused = [x for isa, x in found.items() if isa != "portable"]
        assert all(x == fused[0] for x in fused)


@on(*CARDS)
@pytest.mark.parametrize("shape", FUSED)
@pytest.mark.parametrize("items", [1, 3])
def test_every_kernel_gives_the_bits_of_the_core(
    device: str, shape: tuple[int, int, int, int, int], items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels have few or many threads, with or without the key in shared memory."""
    n, modulus_bits, bits, levels, k = shape
    key, c = key_of(shape, 2).cpu(), Ring(n, 2**modulus_bits).random((items, k), seed=2).cpu()
    exponents, log_points = np.random.default_rng(3).integers(0, 2 * n, (items, 3)), n.bit_length() - 2
    with pg.device("cpu"):
        expected = lattice.blind_rotate(c, doubled(key, bits), exponents, bits=bits)
    kernels = [
        torus.Rotation(Pass(0, log_points, 0, 1, log_values), k, levels, together, is_staged)
        for log_values, together, is_staged in ((3, 1, True), (4, 2, False), (5, 2, True), (5, 1, False))
        if 32 << log_values <= n // 2 and (log_values < 5 or (k == 2 and levels == 1))
    ]
    for made in kernels:
        monkeypatch.setattr(torus, "rotation_of", lambda *_, made=made: made)
        card = backend().card
        if made.shared > card.shared_bytes or made.threads > 512:
            continue
        assert card.capability >= (9, 0)
        found = lattice.blind_rotate(c.to(device), doubled(key.to(device), bits), exponents, bits=bits)
        assert found.cpu() == expected, made
        R = c.ring  # forget the record, which has the kernel
        R._plan.calls.clear()
        torus_plans(R, bits, levels, k).handles.clear()


@on(*CARDS)
@pytest.mark.parametrize("shape", FUSED)
@pytest.mark.parametrize(("items", "group", "count"), [(1, 3, 4), (5, 2, 6)])
def test_every_group_kernel_gives_the_bits_of_the_core(
    device: str,
    shape: tuple[int, int, int, int, int],
    items: int,
    group: int,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All steps run at once, or one after the other if memory is short."""
    bits = shape[2]
    key, c, exponents = grouped(shape, group, count, items)
    with pg.device("cpu"):
        expected = lattice.blind_rotate(c.cpu(), doubled(key.cpu(), bits), exponents, bits=bits)
    for limit in (1 << 29, 1):
        monkeypatch.setattr(torus, "_COMBINED_BYTES", limit)
        found = lattice.blind_rotate(c.to(device), doubled(key.to(device), bits), exponents, bits=bits)
        assert found.cpu() == expected
        c.ring._plan.calls.clear()
        torus_plans(c.ring, bits, shape[3], shape[4]).handles.clear()


def torus_plans(R: Ring, bits: int, levels: int, k: int) -> Any:
    from polygpu._ops.gadget import gadget_of

    return gadget_of(R._plan, bits, levels, k, "double").product


@on("cpu", *CARDS)
def test_products_without_rounding_error(device: str) -> None:
    R = Ring(32, 2**32)
    key, c = R.random((2, 1, 2), seed=1), R.random((5, 2), seed=2)
    prepared = doubled(key, 2)
    assert prepared.error == (0, 0) and prepared.precision == "double"
    found = lattice.external_product(prepared, c, bits=2)
    assert found.cpu() == lattice.external_product(key, c, bits=2).cpu()
    assert lattice.prepare(key, bits=2).error == (0, 0)  # type: ignore[union-attr]


@on("cpu", *CARDS)
def test_cmux_by_an_encrypted_bit(device: str) -> None:
    R = Ring(64, 2**64)
    weights = lattice.gadget(R, bits=20, levels=2)
    one = R([[[[w], [0]] for w in weights], [[[0], [w]] for w in weights]])  # hides 1, no noise
    c0, c1 = R.random((3, 2), seed=1), R.random((3, 2), seed=2)
    prepared = doubled(one, 20)
    error = centred(lattice.cmux(prepared, c0, c1, bits=20), c1)
    assert np.abs(error).max() <= 2**64 / 2**41 + 2**18 + prepared.error.bound


def test_invalid_arguments_raise() -> None:
    R, prime, cyclic = Ring(32, 2**64), Ring(32, 12289), Ring(32, 2**64, kind="cyclic")
    wrong: list[tuple[Any, str]] = [
        (lambda: lattice.prepare(prime.zeros((2, 1, 2)), bits=4, precision="double"), "must be 2\\*\\*32"),
        (lambda: lattice.prepare(cyclic.zeros((2, 1, 2)), bits=4, precision="double"), "needs X\\^n"),
        (
            lambda: lattice.prepare(Ring(16, 2**64).zeros((2, 1, 2)), bits=4, precision="double"),
            "needs X\\^n",
        ),
        (
            lambda: lattice.prepare(Ring(48, 2**32).zeros((2, 1, 2)), bits=4, precision="double"),
            "needs X\\^n",
        ),
        (lambda: lattice.prepare(R.zeros((2, 1, 2)), bits=32, precision="double"), "at most 31"),
        (lambda: lattice.prepare(R.zeros((2, 1, 2)), bits=4, precision="float"), "'exact' or 'double'"),  # type: ignore[arg-type]
        (
            lambda: lattice.external_product(doubled(R.zeros((2, 1, 2)), 4), R.zeros((1, 2)), bits=5),
            "digits of 4 bits",
        ),
        (
            lambda: lattice.blind_rotate(
                R.zeros((1, 2)), doubled(R.zeros((2, 4, 2, 1, 2)), 4), [0, 1, 2], bits=4
            ),
            "must have 4 to 5 entries",
        ),
        (
            lambda: lattice.prepare(R.zeros((2, 3, 2, 1, 2)), bits=4, precision="double"),
            "2\\*\\*g for groups",
        ),
        (lambda: lattice.prepare(R.zeros((2, 2, 2, 2, 1, 2)), bits=4, precision="double"), "batch shape"),
    ]
    for call, text in wrong:
        with pytest.raises(pg.ParameterError, match=text):
            call()
