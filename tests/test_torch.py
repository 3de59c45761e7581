"""polygpu.torch: operators of PyTorch give what the methods of Poly give, and PyTorch's own checks pass.

The tests run if PyTorch is installed; `.ci/run` has an environment of their own for them.
"""

from __future__ import annotations

import doctest
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import needs_card
from hypothesis import given
from hypothesis import strategies as st
from test_tutorials import BLOCK

import polygpu as pg
from polygpu import Ring, lattice

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch: Any = pytest.importorskip("torch", exc_type=ImportError)
    import polygpu.torch as pt

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorials" / "pytorch.md"
N = 16
WIDE = Ring(N, pg.ntt_primes(N, bits=50, count=4))
NARROW = Ring(N, pg.ntt_primes(N, bits=30, count=3))
RINGS = {
    "50 bits": WIDE,
    "30 bits": NARROW,
    "64 bits": Ring(N, pg.ntt_primes(N, bits=64)),
    "leaves": Ring(256, 3329),
    "cyclic": Ring(N, 97, kind="cyclic"),
    "trinomial": Ring(12, pg.ntt_primes(12, bits=40, kind="trinomial"), kind="trinomial"),
    "no transform": Ring(9, 2**64 - 2),
    "words": Ring(4, 2**80),
    "a long modulus": Ring(4, 2**20000),
}
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=[pytest.mark.gpu, needs_card])]
on_devices = pytest.mark.parametrize("device", DEVICES)


def needs_cuda(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")


def keys_of(ring: Ring) -> tuple[Ring, Any, Any]:
    """Return the ring of ciphertexts, a key that relinearises and one that rotates."""
    Q, P, s = ring[:-1], ring[-1:], ring.ternary(seed=1)
    of: dict[str, Any] = {"ring": Q, "special": P, "limbs_per_digit": 1}
    return Q, lattice.switch_key(s, s * s, seed=2, **of), lattice.rotation_keys(s, [5], seed=3, **of)[5]


def operators(device: str) -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    """Return, by name: an operator of torch.ops.polygpu, its arguments, and the value that it must return."""
    Q, relin, turn = keys_of(WIDE)
    a, b = WIDE.random((3,), seed=4).to(device), WIDE.random((2, 1), seed=5).to(device)
    c = Q.random((4, 2), seed=6).to(device).ntt()
    relin, turn = relin.to(device), turn.to(device)
    x, y, z = map(pt.from_poly, (a, b, c))
    whole, part = pt._spec(WIDE), pt._spec(Q)
    k, r, ops = pt.from_key(relin), pt.from_key(turn), torch.ops.polygpu
    u, v, w = pt.from_poly(a.ntt()), pt.from_poly(b.ntt()), pt.from_poly(c[:, 0])
    return {
        "ntt": (ops.ntt, (x, whole), a.ntt()),
        "intt": (ops.intt, (u, whole), a),
        "neg": (ops.neg, (x, whole), -a),
        "add": (ops.add, (x, y, whole, "coef"), a + b),
        "sub": (ops.sub, (u, v, whole, "eval"), a.ntt() - b.ntt()),
        "mul": (ops.mul, (x, y, whole, "coef"), a * b),
        "mul, evaluated": (ops.mul, (u, v, whole, "eval"), a.ntt() * b.ntt()),
        "dot": (ops.dot, (u, v, whole, 0, "eval"), pg.dot(a.ntt(), b.ntt(), 0)),
        "mod_down": (ops.mod_down, (u, whole, part, "nearest", "exact", "eval"), a.ntt().mod_down(Q)),
        "key_switch": (
            ops.key_switch,
            (w, k.value, z, part, k.spec, 1, "exact", "eval"),
            lattice.key_switch(c[:, 0], relin, add=c, rescale=1),
        ),
        "rotate": (
            ops.rotate,
            (z, r.value, part, r.spec, "fast", "eval"),
            lattice.rotate(c, turn, conversion="fast"),
        ),
    }


NAMES = tuple(operators("cpu"))


@on_devices
@pytest.mark.parametrize("name", NAMES)
def test_operator_returns_what_the_method_returns(name: str, device: str) -> None:
    needs_cuda(device)
    op, arguments, value = operators(device)[name]
    found = op(*arguments)
    assert found.device == arguments[0].device and found.dtype == arguments[0].dtype
    assert pt.to_poly(found, value.ring, domain=value.domain) == value


@on_devices
@pytest.mark.parametrize("name", NAMES)
def test_operator_passes_pytorchs_own_checks(name: str, device: str) -> None:
    """Check the schema, the shape rule, the registration for autograd, and tracing with dynamic shapes."""
    needs_cuda(device)
    op, arguments, _ = operators(device)[name]
    results = torch.library.opcheck(op.default, arguments)
    assert set(results.values()) == {"SUCCESS"}, results


def test_every_operator_is_checked() -> None:
    ops = {name.partition(",")[0] for name in NAMES}
    functions = {name for name in pt.__all__ if not name.startswith(("from_", "to_", "Key"))}
    assert functions == ops


@pytest.mark.parametrize("name", RINGS)
def test_products_in_rings_of_every_kind(name: str) -> None:
    ring = RINGS[name]
    a, b = ring.random(2, seed=1), ring.random(2, seed=2)
    x, y = pt.from_poly(a), pt.from_poly(b)
    assert pt.to_poly(x, ring, domain="coef") == a
    assert pt.to_poly(pt.mul(x, y, ring, domain="coef"), ring, domain="coef") == a * b
    if ring.has_eval:
        product = pt.mul(pt.ntt(x, ring), pt.ntt(y, ring), ring)
        assert pt.to_poly(pt.intt(product, ring), ring, domain="coef") == a * b


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_dtypes_of_a_narrow_ring(dtype: str) -> None:
    a = NARROW.random(3, seed=1)
    x = pt.from_poly(a, dtype=getattr(torch, dtype))
    assert x.dtype == getattr(torch, dtype) and x.to(torch.int64).tolist() == a.data.tolist()
    y = pt.ntt(x, NARROW)
    assert y.dtype == x.dtype and pt.to_poly(y, NARROW) == a.ntt()
    assert pt.to_poly(pt.mul(x, pt.from_poly(a), NARROW, domain="coef"), NARROW, domain="coef") == a * a


def test_memory_is_shared_if_entries_have_the_size_of_residues() -> None:
    a = WIDE.random(2, seed=1)
    x = pt.from_poly(a)
    assert x.dtype == torch.int64 and x.data_ptr() == a.data.ctypes.data
    back = pt.to_poly(x, WIDE, domain="coef")
    assert back.data.ctypes.data == x.data_ptr()
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)  # not contiguous
    assert pt.to_poly(pt.ntt(turned, WIDE), WIDE) == a.ntt()
    assert pt.from_poly(RINGS["64 bits"].random(seed=1)).dtype == torch.uint64


def test_results_do_not_share_memory_with_operands() -> None:
    x = pt.from_poly(WIDE.random(2, seed=1))
    before = x.clone()
    pt.ntt(x, WIDE).zero_()
    pt.neg(x, WIDE).zero_()
    assert torch.equal(x, before)


@given(st.data())
def test_sums_of_products_with_any_batch_shape(data: st.DataObject) -> None:
    """dot, add and sub against Poly, with batch axes that broadcast."""
    sizes = st.integers(1, 3)
    shape = tuple(data.draw(st.lists(sizes, min_size=1, max_size=3)))
    other = tuple(data.draw(st.sampled_from((1, size))) for size in shape)
    a, b = WIDE.random(shape, seed=1), WIDE.random(other, seed=2)
    x, y = pt.from_poly(a), pt.from_poly(b)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    assert pt.to_poly(pt.dot(x, y, WIDE, dim=dim, domain="coef"), WIDE, domain="coef") == pg.dot(a, b, dim)
    assert pt.to_poly(pt.sub(x, y, WIDE, domain="coef"), WIDE, domain="coef") == a - b


def test_empty_batches() -> None:
    x = pt.from_poly(WIDE.random((0, 2), seed=1))
    assert pt.ntt(x, WIDE).shape == (0, 2, 4, N)
    assert pt.dot(x, x, WIDE, dim=0).shape == (2, 4, N)
    assert not pt.dot(x, x, WIDE, dim=0).any()


# ---- torch.compile ----

Q, RELIN, TURN = keys_of(WIDE)
TOP, TURN_KEY, RELIN_KEY = Q[:-1], pt.from_key(TURN), pt.from_key(RELIN)


def program(c: Any, key: Any, relin: Any) -> Any:
    """Return a rotation, a product with relinearisation and a sum, in PyTorch's words."""
    turned = pt.rotate(c, pt.Key(key, TURN_KEY.spec), Q)
    both = pt.add(pt.mul(c, turned, Q), torch.where(c > turned, c, turned), Q)
    return pt.key_switch(both[:, 1], pt.Key(relin, RELIN_KEY.spec), Q, add=both, rescale=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor uses what PyTorch has deprecated
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_programs_return_the_same(backend: str) -> None:
    c = pt.from_poly(Q.random((3, 2), seed=7).ntt())
    compiled = torch.compile(program, backend=backend, fullgraph=True)
    for batch in (c, c[:2].clone()):
        expected = program(batch, TURN_KEY.value, RELIN_KEY.value)
        assert torch.equal(compiled(batch, TURN_KEY.value, RELIN_KEY.value), expected)


def test_compiled_function_of_a_ring_is_compiled_anew_for_another_ring() -> None:
    compiled = torch.compile(lambda x, ring: pt.ntt(x, ring), backend="aot_eager", fullgraph=True)
    other = Ring(N, pg.ntt_primes(N, bits=45, count=4))
    for ring in (WIDE, other, WIDE):
        a = ring.random(seed=1)
        assert pt.to_poly(compiled(pt.from_poly(a), ring), ring) == a.ntt()


def test_exported_programs_name_their_rings() -> None:
    class Transform(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return pt.ntt(x, WIDE)

    x = pt.from_poly(WIDE.random(seed=1))
    exported = torch.export.export(Transform(), (x,))
    assert "polygpu.ntt" in str(exported.graph) and torch.equal(exported.module()(x), pt.ntt(x, WIDE))


# ---- keys ----


def test_keys_are_buffers_that_can_be_saved() -> None:
    class Rotation(torch.nn.Module):
        def __init__(self, key: Any) -> None:
            super().__init__()
            self.spec = key.spec
            self.register_buffer("key", key.value)

        def forward(self, c: Any) -> Any:
            return pt.rotate(c, pt.Key(self.key, self.spec), Q)

    module, file = Rotation(TURN_KEY), io.BytesIO()
    torch.save((module.state_dict(), TURN_KEY.spec), file)
    file.seek(0)
    state, spec = torch.load(file)
    c = Q.random((2,), seed=1).ntt()
    loaded = Rotation(pt.Key(torch.zeros_like(TURN_KEY.value), spec))
    loaded.load_state_dict(state)
    assert pt.to_poly(loaded(pt.from_poly(c)), Q) == lattice.rotate(c, TURN)


def test_key_round_trip() -> None:
    back = pt.to_key(TURN_KEY)
    assert back.value == TURN.value and (back.ring, back.special) == (TURN.ring, TURN.special)
    names = ("limbs_per_digit", "galois_element", "turned")
    assert [getattr(back, name) for name in names] == [getattr(TURN, name) for name in names]


# ---- errors ----

X = pt.from_poly(WIDE.random((3,), seed=1))
PARAMETER, COEFFICIENT = pg.ParameterError, pg.errors.CoefficientError


@pytest.mark.parametrize(
    ("call", "cls", "words"),
    [
        (lambda: pt.ntt(X.double(), WIDE), COEFFICIENT, ["x has dtype torch.float64", "x.detach()"]),
        (lambda: pt.ntt(X.double().requires_grad_(), WIDE), COEFFICIENT, ["without gradients", "detach()"]),
        (lambda: pt.mul(X, X.to(torch.int32), WIDE), COEFFICIENT, ["b has dtype torch.int32"]),
        (lambda: pt.ntt(X[..., :4], WIDE), PARAMETER, ["x has shape (3, 4, 4)", "(4, 16)"]),
        (lambda: pt.add(X, X[:2], WIDE), PARAMETER, ["(3,)", "(2,)", "do not broadcast"]),
        (lambda: pt.dot(X[0], X[0], WIDE), PARAMETER, ["single polynomials", "axis to sum over"]),
        (lambda: pt.dot(X, X, WIDE, dim=1), PARAMETER, ["dim=1", "(3,)", "-1 to 0"]),
        (lambda: pt.ntt(X, 17), PARAMETER, ["ring must be a Ring, not int"]),
        (lambda: pt.ntt(WIDE.zeros(), WIDE), PARAMETER, ["x must be a tensor, not Poly", "from_poly"]),
        (lambda: pt.to_poly(np.zeros(3), WIDE), PARAMETER, ["x must be a tensor, not ndarray"]),
        (lambda: pt.from_poly(X), pg.RingMismatch, ["poly must be a Poly, not Tensor"]),
        (lambda: pt.from_poly(WIDE.zeros(), dtype=torch.int32), PARAMETER, ["dtype=torch.int32", "uint64"]),
        (lambda: pt.mul(X, X, WIDE, domain="x"), pg.errors.DomainError, ["domain='x'"]),
        (lambda: pt.ntt(torch.zeros(1, 9, dtype=torch.int64), RINGS["no transform"]), pg.NotNTTFriendly, []),
        (lambda: pt.rotate(X, TURN, Q), PARAMETER, ["key must be a Key, not SwitchKey", "from_key"]),
        (lambda: pt.from_key(X), PARAMETER, ["key must be a SwitchKey, not Tensor"]),
        (lambda: pt.to_key(TURN), PARAMETER, ["key must be a Key, not SwitchKey"]),
        (
            lambda: pt.rotate(X[:2, :3], pt.Key(TURN_KEY.value, "no"), Q),
            PARAMETER,
            ["key.spec='no'", "from_key"],
        ),
        (
            lambda: pt.key_switch(X[:, :3], pt.Key(TURN_KEY.value.double(), TURN_KEY.spec), Q),
            COEFFICIENT,
            ["key has dtype torch.float64"],
        ),
        (lambda: pt.key_switch(X[:, :3], RELIN_KEY, Q, rescale=3), PARAMETER, ["rescale=3", "0 to 2"]),
        (lambda: pt.mod_down(X, WIDE, NARROW), pg.RingMismatch, []),
        (lambda: pt.add(X, X.to("meta"), WIDE), pg.DeviceError, ["b is on meta, and a is on cpu"]),
        (lambda: pt.to_poly(X.to("meta"), WIDE), pg.DeviceError, ["meta"]),
        (lambda: pt.neg(X.to_sparse(), WIDE), COEFFICIENT, ["torch.sparse_coo", "to_dense()"]),
        (lambda: pt.mul(X, X, WIDE, domain=None), pg.errors.DomainError, ["domain=None"]),
        (lambda: pt.dot(X, X, WIDE, dim=0.5), pg.errors.NotAnInteger, ["dim"]),
        (lambda: pt.key_switch(X[:, :3], RELIN_KEY, Q, rescale=True), pg.errors.NotAnInteger, ["rescale"]),
        (lambda: pt.key_switch(X[:, :3], RELIN_KEY, Q, conversion=1), PARAMETER, ["conversion=1"]),
        (lambda: pt.key_switch(X[:, :3], RELIN_KEY, Q, add=Q.zeros()), PARAMETER, ["add must be a tensor"]),
        (lambda: pt.to_key(pt.Key(None, "")), PARAMETER, ["key.value must be a Tensor, not NoneType"]),
        (lambda: pt.to_key(pt.Key(TURN_KEY.value, 5)), PARAMETER, ["key.spec must be a str, not int"]),
        (
            lambda: pt.to_key(pt.Key(TURN_KEY.value, "-" * 200000 + "1")),
            PARAMETER,
            ["was not made by from_key"],
        ),
        (lambda: pt.from_poly(WIDE.zeros(), dtype=np.int64), PARAMETER, ["must be a dtype of PyTorch"]),
    ],
)
def test_wrong_arguments_raise(call: Any, cls: Any, words: list[str]) -> None:
    with pytest.raises(cls) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_residues_are_checked_inside_debug() -> None:
    bad = X.clone()
    bad[0, 0, 0] = -1
    pt.ntt(bad, WIDE)
    with pg.debug(), pytest.raises(pg.errors.NotCanonical):
        pt.ntt(bad, WIDE)
    large = pt.from_poly(NARROW.random(seed=1), dtype=torch.int64)
    large[0, 0] = 2**40
    with pg.debug(), pytest.raises(pg.errors.NotCanonical, match=str(2**40)):
        pt.ntt(large, NARROW)


# ---- GPUs ----


@pytest.mark.gpu
@needs_card
def test_work_is_on_the_current_stream_with_memory_of_pytorch() -> None:
    needs_cuda("cuda")
    ring = Ring(1 << 14, pg.ntt_primes(1 << 14, bits=50, count=8))
    a = ring.random(8, seed=1)
    x = torch.zeros_like(pt.from_poly(a)).cuda()
    pt.mul(x, x, ring, domain="coef")  # makes tables
    import cupy

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    pool = cupy.get_default_memory_pool().total_bytes()
    with torch.cuda.stream(stream):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.cuda._sleep(100_000_000)  # work on another stream would read x before it is written
        x.copy_(pt.from_poly(a), non_blocking=True)
        y = pt.mul(x, x, ring, domain="coef")
        result = y.element_size() * y.numel()
        assert torch.cuda.max_memory_allocated() - before > result  # the result, and workspace
        assert cupy.get_default_memory_pool().total_bytes() == pool
        value = pt.to_poly(y, ring, domain="coef")  # on CuPy's stream, which waits
    assert (value * 1).cpu() == a * a
    stream.synchronize()
    assert pt.to_poly(y.cpu(), ring, domain="coef") == a * a


@pytest.mark.gpu
@needs_card
def test_operators_in_a_graph_of_pytorch() -> None:
    needs_cuda("cuda")
    x = pt.from_poly(WIDE.random(8, seed=1)).cuda()
    for _ in range(3):  # makes tables before the graph is recorded
        y = pt.mul(x, x, WIDE, domain="coef")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = pt.mul(x, x, WIDE, domain="coef")
    a = WIDE.random(8, seed=2)
    x.copy_(pt.from_poly(a))
    graph.replay()
    torch.cuda.synchronize()
    assert pt.to_poly(y.cpu(), WIDE, domain="coef") == a * a


# ---- documentation ----


def test_docstring_examples_run() -> None:
    result = doctest.testmod(pt)
    assert result.failed == 0 and result.attempted > 50


def test_tutorial_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """The page's blocks run in order, and each prints what the block of text after it shows."""
    text, names = PAGE.read_text(), {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block["code"], str(PAGE), "exec"), names)
        shown = text[block.end() :].lstrip("\n")
        expected = (
            shown.removeprefix("```text\n").partition("```")[0] if shown.startswith("```text\n") else ""
        )
        assert capsys.readouterr().out == expected
