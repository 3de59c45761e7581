"""The studies: kernels on a simulated card, their references, profiler counters and complete runs."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import devices
import numpy as np
import nvrtc
import pytest
from cudasim import check, simulated_cuda
from test_benchmarks import Card

from benchmarks import harness
from benchmarks.matrices import Product
from benchmarks.studies import __main__ as command
from benchmarks.studies import (
    fft64,
    fourstep,
    gemm,
    kernel,
    modular,
    ncu,
    ntt64,
    ntt256,
    runner,
    transforms,
    transpose,
)
from benchmarks.studies.fourstep import Transforms
from benchmarks.studies.runner import POISON, Entry, Group
from polygpu import _backends as backends
from polygpu._backends.cuda.matmul_tiles import coprimes
from polygpu._backends.cuda.tiles import Pass, flow_lag, split_passes
from polygpu._backends.cuda.words import LAZY60
from polygpu._backends.cuda.words import Card as PassCard
from polygpu._backends.reference import evaluate, reverse_bits
from polygpu._bench import timing

pytestmark = pytest.mark.tools

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the CUDA simulator compiles with g++, which is not installed"
)
H100 = kernel.Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 * 1024)
TOOLKIT_HEADERS = kernel.toolkit_headers
ORDERS = ("forward", "reverse", "random")
PRODUCTS = (*gemm.STEPS, *gemm.SHAPES)
Q = transforms.modulus()


def alone(part: str, n1: int, n2: int) -> list[Group]:
    """The steps of one kind, for a transform of few values that has many columns or long rows."""
    t, groups = Transforms(n1, n2, 1), []
    for name, step in fourstep.steps(t).items():
        if step.part.startswith(part):
            modulus = Q if step.lazy else None
            entry = Entry(name, [step.work[0]], partial(getattr, t, step.gives), modulus=modulus)
            groups.append(Group("fourstep", {"n1": n1}, partial(getattr, t, step.takes), [entry]))
    return groups


# By study, groups that take little time and have every template branch of its kernels.
GROUPS: dict[str, Callable[[], list[Group]]] = {
    "fft64": lambda: fft64.groups((1, 64, 131)),  # of each shape a part of a block, whole ones, a ragged one
    "fourstep": lambda: [
        *fourstep.groups([Transforms(32, 1024, 2)]),
        *alone("columns", 512, 32),
        *alone("rows", 2, 2**15),
    ],
    "gemm": lambda: [
        *gemm.of_size(128, (k for k in PRODUCTS if max(k.tile) <= 64), peers=gemm.CUBLAS),
        *gemm.of_size(256, (k for k in PRODUCTS if max(k.tile) > 64)),
    ],
    "ntt64": lambda: ntt64.groups((1, 3), ((2, 5), (5, 8))),
    "ntt256": lambda: ntt256.groups((2,)),
    "transpose": lambda: transpose.groups((((32, 256), (64, 128)), ((64, 256), (256, 64)))),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Short periods, the simulator's mma.h, and no cached arrays: those of one card are not on the next."""
    cached = (fft64.first_period, fft64.exact_period, ntt256.period, gemm.matrices)
    monkeypatch.setattr(kernel, "toolkit_headers", lambda: ())
    for module, period in ((fft64, 37), (ntt64, 7), (ntt256, 2)):
        monkeypatch.setattr(module, "PERIOD", period)
    monkeypatch.setattr(transpose, "LEAST_BLOCKS", 1)  # so that blocks have several tiles

    def empty():
        devices.forget()
        for function in cached:
            function.cache_clear()

    empty()
    yield
    empty()


@pytest.fixture
def exact_products(monkeypatch):
    """Matrices of small integers, so that every sum is exact; all entries are compared."""

    def matrices(n: int) -> tuple[np.ndarray, ...]:
        a, b = np.random.default_rng(n).integers(-8, 9, (2, n, n)).astype(np.float32)
        return a, b, np.arange(n * n), (a.astype(np.float64) @ b).ravel()

    monkeypatch.setattr(gemm, "matrices", matrices)
    monkeypatch.setattr(gemm, "bounds", lambda n, exact: (1e-300, 1e-300))


# ---- kernels ----


def checked(group: Group, entry: Entry, ready: kernel.Ready) -> bool:
    """Whether all of y is right, also where nothing may be written; the operands must stay."""
    (arrays,) = group.sets(0)
    *operands, y = arrays
    before = [x.get() for x in operands]
    y.fill(np.nan if y.dtype.kind in "fc" else POISON)
    ready.run(*arrays)
    assert all(np.array_equal(x.get(), old) for x, old in zip(operands, before, strict=True))
    if entry.modulus:  # lazy values, below Lazy60's LIMIT
        assert entry.modulus <= int(y.max().get()) < 15 * entry.modulus
    return entry.right(group.values(y)) and group.whole(y)


PAIRS = (shape for shapes in transpose.SHAPES.values() for shape in shapes)
VARIANTS = {
    "fft64": {"copy", *fft64.STAGES, *fft64.TENSOR, "D", "fused"},  # cuFFT is not simulated
    "fourstep": {"copy", *fourstep.PARTS_OF, *fourstep.WHOLES, "D, pass 1 of 2", "D, pass 2 of 2"},
    "gemm": {*gemm.VARIANTS, *gemm.CUBLAS},
    "ntt64": {"copy", "polygpu", *ntt64.STAGES, *ntt64.REGISTERS}
    | {f"{ntt64.OWN}, {threads} a block" for threads in (32, 256)},
    "ntt256": {"copy", "polygpu", *ntt256.PIPELINES, *(stage.variant for stage in ntt256.STAGES)}
    | {f"polygpu, {values} values a thread" for values in (8, 16)},
    "transpose": {"copy", *transpose.NOTE, *(f"{r} x {c}, {threads} threads" for r, c, threads, _ in PAIRS)},
}


@needs_compiler
@pytest.mark.parametrize("study", GROUPS)
def test_kernels_match_their_references(study, exact_products, monkeypatch):
    """Every variant runs with several thread orders against the reference of its study."""
    monkeypatch.setattr(fft64, "BOUNDS", (3e-7, 1e-5))
    for order in ORDERS[: 1 if study == "gemm" else 3]:
        devices.forget()
        seen = set()
        with simulated_cuda(order=order, seed=5, concurrent_blocks=2):
            for group, plan in runner.plans(GROUPS[study]()):
                for entry, ready in plan:
                    assert checked(group, entry, ready), (order, group.params, entry)
                    seen.add((entry.variant, entry.params.get("tiles", 1)))
        assert {name for name, _ in seen} == VARIANTS[study]
        assert {tiles for _, tiles in seen} == ({1, 2, 4, 8} if study == "transpose" else {1})


def compiled_products() -> dict[str, Any]:
    return kernel.compiled(one for group in GROUPS["gemm"]() for e in group.entries for one in e.kernels)


def tile(cupy: Any, functions: Any, k: gemm.Product, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What one block writes: the first tile of the product, and nothing else."""
    c = cupy.full(a.shape, np.nan, np.float32)
    one = kernel.ready(dataclasses.replace(k.kernel(len(a)), grid=(1, 1)), functions)
    one.run(*(cupy.asarray(x.astype(k.dtype)) for x in (a, b)), c)
    rows, columns = k.tile
    assert np.isfinite(c.get()).sum() == rows * columns
    return c.get()[:rows, :columns]


@needs_compiler
@pytest.mark.parametrize("order", ORDERS[1:])
def test_tiled_products_with_other_thread_orders(order, exact_products):
    """Sums cover more tiles than a kernel has stages."""
    with simulated_cuda(order=order, seed=5) as cupy:
        functions = compiled_products()
        for k in PRODUCTS:
            a, b, *_ = gemm.matrices(320 if k.tile == (64, 64) else 256)
            assert np.array_equal(tile(cupy, functions, k, a, b), a[: k.tile[0]] @ b[:, : k.tile[1]]), k


@needs_compiler
def test_errors_of_products():
    """Errors are those of float or half sums. Exact kernels keep them for numbers of any size."""
    a, b = np.random.default_rng(1).standard_normal((2, 256, 256), dtype=np.float32)
    large = a * (10.0 ** np.resize([-12, 0, 12], (256, 1))).astype(np.float32)
    wide = b * (10.0 ** np.resize([-5, 10, 0, -20], 256)).astype(np.float32)
    exact, of_any = a.astype(np.float64) @ b, large.astype(np.float64) @ wide
    counts = np.abs(of_any) > np.abs(large) @ np.abs(wide) / 16
    with simulated_cuda() as cupy:
        functions = compiled_products()
        for k in PRODUCTS:
            own = np.s_[: k.tile[0], : k.tile[1]]
            l2, most = runner.errors(tile(cupy, functions, k, a, b), exact[own])
            assert l2 < 4e-7 and most < 4e-6 if k.exact else 2e-4 < l2 < 4e-4 and most < 2e-3, k
            if k.exact:
                off = np.abs(tile(cupy, functions, k, large, wide) / of_any[own] - 1)
                assert max(off[counts[own]]) < 2e-5, k


@needs_compiler
def test_ffts_of_any_size():
    """FFTs of one tile that differ by powers of ten are as accurate as alone. Impulses are nearly exact."""
    x = fft64.first_period() * (10.0 ** np.resize([-25, 0, 30, -3, 18], (37, 1))).astype(np.float32)
    x[7] = x[8] = 0
    x[8, 5] = 1
    bounds = np.where(np.arange(37) == 8, 5e-8, 2e-7)
    with simulated_cuda() as cupy:
        ((_, plan),) = runner.plans(fft64.groups((37,)))
        for ready in (ready for entry, ready in plan if entry.library == "study"):
            y = cupy.empty(x.shape, np.complex64)
            ready.run(cupy.asarray(x), y)
            others = np.arange(37) != 7
            pairs = zip(y.get()[others], fft64.exact(x)[others], strict=True)
            off = [runner.errors(*pair)[0] for pair in pairs]
            assert (np.array(off) < bounds[others]).all() and not y.get()[7].any()


@needs_compiler
def test_persistent_block_computes_several_tiles(monkeypatch):
    """Three blocks compute more tiles than they hold at once."""
    monkeypatch.setattr(kernel.Multiprocessor, "resident", lambda *_: 3)
    with simulated_cuda() as cupy:
        one = cupy.cuda.Device().attributes | {"MultiProcessorCount": 1}
        monkeypatch.setattr(cupy.cuda.Device, "attributes", one)
        ((group, plan),) = runner.plans(fft64.groups((3 * 3 * 16 + 5,)))
        tensor = [(entry, ready) for entry, ready in plan if entry.variant in fft64.TENSOR]
        assert [ready.facts["blocks"] for _, ready in tensor] == [3, 3]
        assert all(checked(group, *one) for one in tensor)


@needs_compiler
def test_transforms_of_the_largest_residues():
    """Each step's input is q - 1. The last result is a geometric series."""
    t = Transforms(32, 1024, 1)
    largest = np.full((1, t.degree), Q - 1, np.uint64)
    with simulated_cuda() as cupy:
        functions = kernel.compiled(step.work[0] for step in fourstep.steps(t).values())
        for name, step in fourstep.steps(t).items():
            given, y = Transforms(32, 1024, 1), cupy.empty(largest.shape, np.uint64)
            given.__dict__[step.takes] = largest
            if step.takes == "turned":
                given.__dict__["x"] = largest
            if step.takes == "across":
                given.__dict__["whole"] = rows_of_the_largest(t)
            kernel.ready(step.work[0], functions).run(cupy.asarray(largest), y)
            got = y.get() % np.uint64(Q) if step.lazy else y.get()
            assert np.array_equal(got, getattr(given, step.gives)), name


def rows_of_the_largest(t: Transforms) -> np.ndarray:
    """Values of sum (q - 1) X^i, i < 512, at the roots of X^512 - z of each part of a row."""
    omega, parts, row = pow(t.psi, 2 * t.n1, Q), t.n2 // 512, []
    for part in range(parts):
        for i in range(512):
            root = pow(omega, reverse_bits(part, parts) + parts * reverse_bits(i, 512), Q)
            total = 512 if root == 1 else (pow(root, 512, Q) - 1) * pow(root - 1, -1, Q)
            row.append(-total % Q)
    return np.resize(np.array(row, np.uint64), (1, t.degree))


# ---- races: the thread sanitizer's, in processes of their own ----

CHECKED = """
import dataclasses, pathlib, shutil, tempfile
import numpy as np
from cudasim import simulated_cuda
from benchmarks.studies import fft64, fourstep, gemm, kernel, ntt64, ntt256, transpose
from benchmarks.studies.fourstep import Transforms
kernel.toolkit_headers = lambda: ()
fft64.PERIOD, ntt64.PERIOD, ntt256.PERIOD, transpose.LEAST_BLOCKS = 3, 7, 1, 1
transpose.SHAPES = {transpose.ONE: ((32, 32, 128, 2),), transpose.MANY: ((64, 64, 256, 2),)}

def kernels_of(*groups):
    return [kernel for group in groups for entry in group.entries for kernel in entry.kernels]

def launch(*work):
    # Of each instance one block, on arrays of a shape, from a dtype to a dtype.
    work = [({k.expression: k for k in kernels}.values(), *arrays) for kernels, *arrays in work]
    functions = kernel.compiled(k for kernels, *_ in work for k in kernels)
    for kernels, shape, source, target in work:
        x, y = cupy.zeros(shape, source), cupy.zeros(shape, target)
        for one in kernels:
            first = dataclasses.replace(one, grid=(1,) * len(one.grid))
            arrays = (x, x, y) if one.file.startswith("gemm") else (x, y)
            kernel.ready(first, functions).run(*arrays)
"""
RIGHT = """
loads = {"A": "coalesced", "B": "literal", "C": "coalesced", "E FP16": "coalesced", "E TF32": "coalesced"}
products = [k for k in (*gemm.STEPS, *gemm.SHAPES) if max(k.tile) <= 64]
floats = [k.kernel(128) for k in products if k.dtype == "float32" and k.variant != "naive"]
halves = [k.kernel(320) for k in products if k.dtype == "float16"]
few, many = Transforms(32, 1024, 1), Transforms(512, 32, 1)
with simulated_cuda() as cupy:
    (ffts,) = fft64.groups((3,))
    wanted = [e for e in ffts.entries if e.kernels and loads.get(e.variant) == e.params["loads"]]
    columns = [step.work[0] for step in fourstep.steps(many).values() if step.part == "columns"]
    launch(
        (kernels_of(dataclasses.replace(ffts, entries=wanted)), (3, 64), np.complex64, np.complex64),
        (floats, (128, 128), "f4", "f4"),
        (halves, (320, 320), "f2", "f4"),
        ([step.work[0] for step in fourstep.steps(few).values()], few.degree, "u8", "u8"),
        (columns, many.degree, "u8", "u8"),
        (kernels_of(*ntt64.groups((1,), (), ())), 2**8, "u8", "u8"),
        ([stage.kernel(1) for stage in ntt256.STAGES], 2**16, "u8", "u8"),
        (kernels_of(*transpose.groups((((32, 128), (64, 64)),))), 2**12, "u8", "u8"),
    )
"""
WRONG = """
name = "fft64_stages<16, 64, false, true, false>"
drawn = kernel.Kernel("fft64.cu", name, (1,), (16, 64), lambda: (np.int32(16),))
(pipelined,) = (k for k in gemm.SHAPES if k.tile == (64, 64) and k.variant == "pipeline")
t = Transforms(32, 32, 1)
with simulated_cuda() as cupy, tempfile.TemporaryDirectory() as folder:
    kernel.KERNELS = pathlib.Path(shutil.copytree(kernel.KERNELS, folder, dirs_exist_ok=True))
    for file, barrier in (
        ("gemm_tiles.cuh", "                await_copies<STAGES - 2>();\\n                __syncthreads();"),
        ("stages.cuh", "synchronise<1 << LOG_THREADS>();"),
        ("transpose.cu", "if (done) __syncthreads();"),
    ):
        text = (kernel.KERNELS / file).read_text()
        assert text.count(barrier) == 1, barrier
        (kernel.KERNELS / file).write_text(text.replace(barrier, barrier.rpartition("\\n")[0]))
    launch(
        ([drawn], (16, 64), np.complex64, np.complex64),
        ([pipelined.kernel(128)], (128, 128), "f4", "f4"),
        ([fourstep.steps(t)["columns in place"].work[0]], t.degree, "u8", "u8"),
        (kernels_of(*transpose.groups((((32, 128), (64, 64)),)))[-4:-3], 2**12, "u8", "u8"),
    )
"""


@pytest.mark.sanitized
def test_kernels_have_no_races():
    """The note's FFT as drawn has a race, and so does each kernel without its barriers."""
    if reason := check.missing("thread"):
        pytest.skip(f"thread sanitizer: {reason}")
    runs = {name: ("thread", CHECKED + code) for name, code in {"right": RIGHT, "wrong": WRONG}.items()}
    started = check.run_together(runs, environment={"PYTHONPATH": str(harness.ROOT)})
    right, wrong = (run.result() for run in started.values())
    assert right.clean, right
    assert wrong.returncode == 0, wrong
    for name in ("fft64_stages", "gemm_pipelined", "columns_in_place", "transpose_pairs"):
        assert any("data race" in text and name in text for text in wrong.reports), (name, wrong)


# ---- kernels, compiled by NVRTC ----


def compiled(file: str, expressions: list[str]) -> dict[str, nvrtc.Usage]:
    library = nvrtc.library_path()
    if library is None:
        pytest.skip("NVRTC is not installed")
    headers = library.parents[1] / "include"
    if file in ("fft64_tensor.cu", "gemm_wmma.cu") and not (headers / "crt" / "mma.h").exists():
        pytest.skip("mma.h is not installed: pip install nvidia-cuda-runtime nvidia-cuda-crt")
    folders = (kernel.KERNELS, Path(backends.cuda_sources()), headers)
    code = (kernel.KERNELS / file).read_text()
    return nvrtc.Compiler().compile_code(file, code, {}, expressions, 90, folders)


# By template: the least occupancy that registers and shared memory leave; bytes of static shared memory, by
# the number of threads.
LEAST: dict[str, tuple[float, Callable[[int], int]]] = {
    "fft64_stages": (1, lambda _: 0),
    "fft64_tensor": (3 / 8, lambda _: 0),
    "transpose_batch": (1 / 4, lambda _: 0),
    "transpose_small": (1 / 2, lambda threads: 64 * 8 * (33 if threads == 1024 else 65)),
    "transpose_pairs": (1 / 4, lambda _: 0),
    "ntt64_shared": (1, lambda _: 2048),
    "ntt64_registers": (21 / 64, lambda _: 0),
    "ntt256": (1, lambda threads: 8 * (2 * threads + 16)),
    **dict.fromkeys(("columns_in_turn", "columns_in_place"), (1 / 2, lambda _: 0)),
    **dict.fromkeys(("rows_across", "rows_within"), (1 / 2, lambda _: 0)),
}


@pytest.mark.parametrize("file", sorted(path.name for path in kernel.KERNELS.glob("*.cu")))
def test_kernels_compile(file):
    """Kernels of real sizes do not spill, and as many blocks fit as the pages state."""
    with simulated_cuda():
        studies = (fft64, fourstep, ntt64, ntt256, transpose)
        launched = [k for study in studies for g in study.groups() for e in g.entries for k in e.kernels]
    launched = [k for k in (*launched, *(k.kernel(1024) for k in PRODUCTS)) if k.file == file]
    usages = compiled(file, list(dict.fromkeys(k.expression for k in launched)))
    judged = nvrtc.judges_spills(nvrtc.Compiler().version)
    found: dict[str, list[float]] = {}
    for k in dict.fromkeys((k.template, k.expression, k.threads, k.dynamic_bytes) for k in launched):
        template, expression, threads, dynamic_bytes = k
        usage, (least, static) = usages[expression], LEAST.get(template, (threads / 2048, lambda *_: 0))
        shared_bytes = dynamic_bytes + static(threads)
        found.setdefault(template, []).append(H100.occupancy(threads, usage.registers, shared_bytes))
        assert not (judged and usage.spilled) and dynamic_bytes <= nvrtc.CARDS[90].shared_bytes, k
        assert found[template][-1] >= least, k
    # Without bank conflicts 4, 4, 6, 4 and 2 blocks; then one kernel with less and with more shared memory.
    assert found.get("transpose_small", [])[1::2] in ([], [0.5, 0.5, 0.75, 1, 1])
    assert found.get("ntt64_registers", []) in ([], [1 / 2, 21 / 64])


def test_two_stages_of_deep_tiles_exceed_shared_memory():
    """Two stages take 64 KB. One stage fits, and so do two of half the depth."""
    compiled("gemm.cu", ["gemm_shared<64, 1, 8, 4>", "gemm_shared<32, 2, 8, 4>"])
    with pytest.raises(RuntimeError, match=r"too much shared data|69632 bytes smem"):
        compiled("gemm.cu", ["gemm_shared<64, 2, 8, 4>"])


def test_shapes_of_the_sweep_compile():
    """The smallest and largest blocks compile, and the sweep includes polygpu's own shape."""
    shapes = [Pass(0, 6, 0, threads + values - 6, values) for values, threads in ntt64.SWEEP]
    assert {one.threads for one in shapes} == {32, 64, 128, 256} and len(shapes) == 16
    assert transforms.taken(64) in shapes
    if nvrtc.library_path() is None:
        pytest.skip("NVRTC is not installed")
    shapes = [one for one in shapes if one.threads in (32, 256)]
    chosen = {f"ntt_forward<Lazy60, {one.shape}, false, false>": one for one in shapes}
    for name, usage in nvrtc.Compiler().compile("ntt.cu", list(chosen), 90).items():
        assert H100.resident(chosen[name].threads, usage.registers, 8 * chosen[name].shared_values) >= 2


# ---- what is worked out ----


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "limits"),
    [
        (1024, 32, 33792, (2, 6, 2, 32)),
        (1024, 33, 33792, (1, 6, 2, 32)),  # 40 registers, 51 warps
        (1024, 65, 8448, (0, 24, 2, 32)),
        (256, 80, 0, (3, 228, 8, 32)),
        (256, 40, 33280, (6, 6, 8, 32)),
        (256, 64, 33280, (4, 6, 8, 32)),
        (1024, 18, 16896, (2, 13, 2, 32)),
        (32, 16, 0, (128, 228, 64, 32)),
        (32, 16, 20 * 1024, (128, 10, 64, 32)),  # 21 KB with what is reserved
        (64, 255, 0, (4, 228, 32, 32)),
    ],
)
def test_limits_of_resident_blocks(threads, registers, shared_bytes, limits):
    """Limits are registers, shared memory, warps and blocks. The least one applies."""
    assert tuple(H100.limits(threads, registers, shared_bytes).values()) == limits
    assert H100.resident(threads, registers, shared_bytes) == min(limits)
    assert H100.occupancy(threads, registers, shared_bytes) == min(limits) * threads / 32 / 64


@needs_compiler
def test_limits_are_read_from_the_card():
    with simulated_cuda("h100"):
        assert kernel.Multiprocessor.of_device() == H100


def test_search_for_toolkit_headers(tmp_path, monkeypatch):
    """The first folder that has both parts of mma.h is chosen."""
    for folder, parts in (("half", ["mma.h"]), ("whole", ["mma.h", "crt/mma.h"])):
        for part in parts:
            path = tmp_path / folder / "include" / part
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "half"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "whole"))
    assert TOOLKIT_HEADERS.__wrapped__() == (tmp_path / "whole" / "include",)


def test_shapes_of_two_passes():
    """The library's shape comes first, then about a dozen others that fit the card, each once."""
    card = nvrtc.CARDS[90]
    for log_points in fourstep.LOG_POINTS:
        shapes = fourstep.shapes(log_points, card)
        assert 12 <= len(shapes) == len(set(shapes)) <= 16
        assert shapes[0] == split_passes(1 << log_points, 1, 8, card)
        for columns, rows in shapes:
            assert columns.log_length + rows.log_length == log_points
            assert (columns.log_blocks, rows.log_blocks) == (0, columns.log_length)
            assert all(32 <= p.threads <= 512 for p in (columns, rows))
        assert {columns.log_columns for columns, _ in shapes} == {2, 3, 4}
        assert len({columns.log_length for columns, _ in shapes}) >= 3


def test_passes_that_polygpu_uses():
    """One transform of 2^16 takes two passes of 8 stages, and the measured batch one launch for both."""
    card = nvrtc.CARDS[90]
    assert [one.log_length for one in split_passes(2**16, 1, 8, card, True)] == [8, 8]
    assert flow_lag(*split_passes(2**16, 1, 8, card), 16, 256, LAZY60, card) > 0
    for few, shape in ((False, (4, 256)), (True, (3, 64))):
        assert (transforms.taken(256, few).log_values, transforms.taken(256, few).threads) == shape
        assert split_passes(256, 1, 8, PassCard((7, 5), 64 << 10), few) == (transforms.taken(256, few),)


def test_tile_pairs_cover_the_matrix(monkeypatch):
    """Tiles of all blocks cover the matrix. Blocks have several tiles if enough blocks remain."""
    monkeypatch.undo()
    for batch, square in transpose.SIZES:
        n = square[0] * square[1]
        assert batch[0] * batch[1] == n and n in transpose.NOTE[transpose.BATCH]
        for of, shapes in transpose.SHAPES.items():
            for rows, columns, _, most in shapes:
                sides = square if of == transpose.ONE else (64, 64)
                across, down, tiles = transpose.grid((rows, columns), most, n, sides)
                assert across * down * tiles * rows * columns == n
                assert tiles == (most if n == 2**24 else 1)
                assert tiles == 1 or across * down >= transpose.LEAST_BLOCKS
    assert [len(list(transpose.entries(*size))) for size in transpose.SIZES] == [12 + 16, 12 + 24]


# ---- what results are compared with, by definition ----


def value_at(x: np.ndarray, k: int, psi: int) -> int:
    """Value k, in natural order, of a negacyclic transform."""
    return evaluate(x.tolist(), pow(psi, 2 * k + 1, Q), Q)


def test_intermediate_values_of_the_four_steps():
    """Values after columns, twiddles, the first row stages and the whole match Python ints."""
    t = Transforms(32, 1024, 2)
    psi, shape = t.psi, (t.batch, t.n1, t.n2)
    assert pow(psi, t.degree, Q) == Q - 1
    names = ("x", "columns", "weighted", "across")
    x, columns, weighted, across = (getattr(t, name).reshape(shape) for name in names)
    for b, j in ((0, 0), (1, 7), (1, t.n2 - 1)):
        assert t.turned.reshape(t.batch, t.n2, t.n1)[b, j].tolist() == x[b, :, j].tolist()
        for row in range(t.n1):
            k = reverse_bits(row, t.n1)
            assert columns[b, row, j] == value_at(x[b, :, j], k, pow(psi, t.n2, Q))
            assert weighted[b, row, j] == int(columns[b, row, j]) * pow(psi, (2 * k + 1) * j, Q) % Q
    for b, r, offset in ((0, 3, 0), (1, 31, 511)):  # modulo X^512 - z for both z with z^2 = 1
        values = weighted[b, r, offset::512].tolist()
        assert across[b, r, offset::512].tolist() == [evaluate(values, z, Q) for z in (1, Q - 1)]
    for b, k in ((0, 0), (1, 12345), (1, t.degree - 1)):
        assert t.whole[b, reverse_bits(k, t.degree)] == value_at(t.x[b], k, psi)


def test_intermediate_values_of_256_points():
    x, turned, columns, again = map(ntt256.after, ("", "transpose", "columns", "second transpose"))
    assert np.array_equal(turned, x.swapaxes(1, 2)) and np.array_equal(again, columns.swapaxes(1, 2))
    psi = transforms.root(2**16)
    for k in (0, 201):
        assert columns[1, 7, reverse_bits(k, 256)] == value_at(turned[1, 7], k, pow(psi, 256, Q))
        own = value_at(turned[1, 7], k, transforms.root(256))
        assert ntt256.own_rows()[1, 7, reverse_bits(k, 256)] == own
    whole = ntt256.after("whole")[1].ravel()
    assert whole[reverse_bits(54321, 2**16)] == value_at(x[1].ravel(), 54321, psi)
    assert np.array_equal(ntt256.after("rows")[1].ravel(), whole)


def test_results_of_64_points():
    """Values include the largest residue. Kernels without a part follow formulas."""
    x, right = ntt64.first_period(), ntt64.expected(ntt64.WHOLE)
    assert x.max() == Q - 1 and x.shape == right.shape == (7, 64)
    for i in range(64):
        assert right[5, i] == value_at(x[5], reverse_bits(i, 64), transforms.root(64))
        assert (ntt64.expected(ntt64.BUTTERFLIES)[:, i] == x[:, i ^ 63]).all()
        assert (ntt64.expected(ntt64.SHARED)[:, i] == x[:, i ^ 32]).all()
    # Result i with one twiddle w: a sum of the values n, times w for each bit of n, and -1 for each bit that
    # n and i share.
    w = ntt64.one_twiddle()
    for values, found in zip(x.tolist(), ntt64.expected(ntt64.TWIDDLES).tolist(), strict=True):
        for i in (0, 1, 38, 63):
            terms = (v * w ** bin(n).count("1") * (-1) ** bin(n & i).count("1") for n, v in enumerate(values))
            assert sum(terms) % Q == found[i]
    # Without global memory, one number is written: result 37 of transform 2. It repeats as the values do.
    right = ntt64.expected(ntt64.GLOBAL)
    assert np.argwhere(right != POISON).tolist() == [[2, 37]] and right[2, 37] < Q
    assert right.shape == (2**16 // 64, 64)
    assert (2**16 - 1) * 0x5851F42D4C9 < 2**59 < Q


@pytest.mark.parametrize("sides", [(64, 64), (256, 64), (4, 4096)])
def test_transposes_with_and_without_twiddles(sides):
    """Python ints are compared without twiddles and with those of equal or other sides."""
    n, (rows, columns) = 2**14, sides
    x = transforms.residues(n).tolist()
    for factors in (None, sides, (128, 32)):
        y = [0] * n
        for i, v in enumerate(x):
            if factors:
                a, b = factors
                v = v * pow(transforms.root(a * b, "cyclic"), i // b % a * (i % b), Q) % Q
            matrix, at = divmod(i, rows * columns)
            y[matrix * rows * columns + at % columns * rows + at // columns] = v
        assert transpose.expected(n, sides, factors).tolist() == y


@pytest.mark.parametrize("n", [2**12, 2**17, 2**24])
def test_two_tables_give_all_powers(n):
    log_low, low, high = transpose.halves(n)
    w = transforms.root(n, "cyclic")
    assert len(low) * len(high) == n and len(low) == 1 << log_low and len(low) / len(high) in (1, 2)
    for exponent in (0, 1, len(low) - 1, len(low), n // 2 + 5, n - 1):
        a, b = low[exponent % len(low)], high[exponent >> log_low]
        assert int(a[0]) * int(b[0]) % Q == pow(w, exponent, Q)
        assert all(int(t[1]) == (int(t[0]) << 64) // Q for t in (a, b))


def test_exact_fft_references():
    x = fft64.first_period()[:5]
    assert np.abs(fft64.exact(x) - np.fft.fft(x.astype(np.complex128))).max() < 1e-13
    w = fft64.roots()
    assert w.dtype == np.clongdouble and w[[0, 16, 32, 48]].tolist() == [1, -1j, -1, 1j]
    assert np.abs(w**64 - 1).max() < 1e-17
    for loads, filters in ((fft64.EACH, slice(None, None, -1)), (fft64.ONE, slice(-1, None))):
        x = fft64.first_period().astype(np.complex128)
        right = np.fft.ifft(np.fft.fft(x) * np.fft.fft(x)[filters])
        assert np.abs(fft64.exact_convolutions(loads, 3) - 3 * right).max() < 1e-12
    expected, off = fft64.exact(x[:5]), fft64.exact(x[:5])
    off[0, 0] += 1
    rms = float(np.sqrt(np.mean(np.abs(expected) ** 2)))
    assert runner.errors(off, expected) == (pytest.approx(1 / rms / np.sqrt(320)), pytest.approx(1 / rms))


# ---- counters ----

CSV = """==PROF== Connected to process 4711
"ID","Process ID","Kernel Name","Block Size","Metric Name","Metric Unit","Metric Value"
"0","4711","void fft64_stages<(int)64>(int)","(64, 1, 1)","smsp__inst_executed.sum","inst","12,345"
"0","4711","...","(64, 1, 1)","sm__warps_active.avg.pct_of_peak_sustained_active","%","48.50"
"1","4711","void vector_fft<64>()","(64, 1, 1)","smsp__inst_executed.sum","inst","n/a"
"""


def test_parsing_of_profiler_counters():
    first, second = ncu.parse(CSV)
    assert first.kernel.startswith("void fft64_stages<") and second == ncu.Counted("void vector_fft<64>()")
    active = "sm__warps_active.avg.pct_of_peak_sustained_active"
    assert first.counters == {"smsp__inst_executed.sum": 12345, active: 48.5}
    assert ncu.parse("==ERROR== ERR_NVGPUCTRPERM\n") == []
    assert ncu.figures(first) == {"warp_instructions": 12345, "achieved_occupancy": 0.485}
    assert len(set(ncu.METRICS)) == len(ncu.FIGURES) and set(ncu.SHARES) < set(ncu.FIGURES)


def test_counters_require_matching_kernels(tmp_path, monkeypatch):
    """The profiler must have seen as many kernels as were launched, with the same names."""

    def tool(script: str) -> None:
        (tmp_path / "ncu").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ncu").chmod(0o755)
        monkeypatch.setattr(ncu, "find", lambda: str(tmp_path / "ncu"))

    (tmp_path / "csv").write_text(CSV)
    # The log file's name is the argument after --log-file.
    tool(
        'while [ "$1" != --log-file ]; do shift; done; '
        f'cp {tmp_path}/csv "$2"; '
        'case "$*" in *"-m benchmarks.studies fft64 --counted") exit 0;; esac; exit 9'
    )
    assert ncu.count("fft64", ["fft64_stages", ""]) == ncu.parse(CSV)
    for others in (["fft64_stages"], ["fft64_tensor", ""]):
        with pytest.raises(ncu.Uncounted, match="ncu saw the kernels void fft64_stages"):
            ncu.count("fft64", others)
    tool("echo ERR_NVGPUCTRPERM >&2; exit 1")
    with pytest.raises(ncu.Uncounted, match="exit status 1: ERR_NVGPUCTRPERM"):
        ncu.count("fft64", ["fft64_stages"])
    monkeypatch.setattr(ncu, "find", lambda: None)
    with pytest.raises(ncu.Uncounted, match="there is no ncu"):
        ncu.count("fft64", ["fft64_stages"])


def test_profiler_sees_only_second_launches(monkeypatch):
    log: list[str] = []
    names = {"deviceSynchronize": "wait", "profilerStart": "start", "profilerStop": "stop"}
    runtime = SimpleNamespace(**{name: partial(log.append, word) for name, word in names.items()})
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    ncu.expose([partial(log.append, "a"), partial(log.append, "b")])
    seen = ["wait", "start"]
    assert log == ["a", *seen, "a", "wait", "stop", "b", *seen, "b", "wait", "stop"]


# ---- runs ----


class Clock(Card):
    """Every call takes a microsecond, and a function that is timed again is not called; 2 KB of cache."""

    warm_up_ns, total_ns = 0, 0
    made: Callable[[], Any] | None = None

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        if run is not self.made:
            run()
            self.made = run
        return 1000.0 * loops

    def machine(self) -> harness.Machine:
        return {**super().machine(), "l2_bytes": 2_000, "driver": "580", "cuda": "13.0", "cupy": "14.0"}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(timing, "SAMPLE_NS", 1000)
    monkeypatch.setattr(timing, "SAMPLES", 2)


def few(group: Group) -> Group:
    return dataclasses.replace(group, entries=group.entries[:3])


# By study, groups of the least sizes.
LEAST_GROUPS: dict[str, Callable[[], list[Group]]] = {
    "fft64": lambda: fft64.groups((5, 80)),
    "fourstep": lambda: [*fourstep.groups([Transforms(32, 1024, 2)]), few(fourstep.shape_group(16, 2**19))],
    "ntt64": lambda: ntt64.groups((1, 2), ((4, 8),), (2,)),
    "ntt256": lambda: ntt256.groups((1,)),
    "transpose": lambda: transpose.groups((((32, 128), (64, 64)),)),
}


def check_fft64(row: harness.Row, f: dict[str, float]) -> None:
    n = int(row.params["ffts"])
    copies = -(-8_000 // (1024 * n))  # four times the cache
    assert row.params["launch"] == f"CUDA graph of {copies}" and row.loops % copies == 0
    if row.library == "study":
        assert 0 < f["error_l2"] < 1.3e-7 < f["error_max"] < 1e-6 and f["instructions_per_fft"] == 1e6 / n
        assert f["instructions_per_thread"] == pytest.approx(1e6 / (f["blocks"] * f["threads"]), abs=0.01)
        assert f["copy_share"] == 1 and (f["loop_turns"] > 0) == (row.params["variant"] in "AC")
    assert row.params.get("variant") != "B" or f["blocks"] == {5: 1, 80: 5}[n]
    assert row.op == "fft64" or ((row.op, n) == ("convolve64", 80) and f["error_l2"] < 3e-7)


def check_fourstep(row: harness.Row, f: dict[str, float]) -> None:
    variant = row.params["variant"]
    if row.op == fourstep.PASSES_OP and row.library == "polygpu":
        assert row.work == 2**16 and f["taken"] == (row.params["columns"] == "2^4 x 16, 16 a thread")
    elif variant != "copy":
        assert f["copy_share"] == pytest.approx(f["words_a_point"] / 2, rel=1e-3)
        # W is read once for both transforms of the batch; small tables are read besides.
        wholes = {"A": (8.5, 0.25, 4), "B": (6.5, 0.25, 3), "C": (6, 0.25, 3), "D": (5, 0.25, 2)}
        least, more, launches = wholes.get(variant, (2, 1.1, None))
        assert launches == f.get("launches") and least <= f["words_a_point"] < least + more


def check_transpose(row: harness.Row, f: dict[str, float]) -> None:
    if row.library == "study":
        words = 3 if row.params["variant"] == "small_transpose_4096_W" else 2
        assert f["copy_share"] == words / 2 and f["blocks"] * f["threads"] <= row.work == row.params["n"]
        assert f["least_read_bytes"] == 8 * row.work * (words - 1)
        assert f["least_written_bytes"] == 8 * row.work
        assert {f"calculated_limit_{name}" for name in ncu.LIMITS} < set(f)


def check_ntt(row: harness.Row, f: dict[str, float]) -> None:
    moved = {ntt64.GLOBAL: 0, ntt256.ROWS: 1.5}.get(str(row.params.get("stage", row.params["variant"])), 1)
    assert f["copy_share"] == (1 if row.params["variant"] == "copy" else moved)


CHECKS = {"fft64": check_fft64, "fourstep": check_fourstep, "transpose": check_transpose}
# Variants of several kernels, or of none, which the profiler does not count.
SEVERAL = {"fft64": {"fused"}, "fourstep": {"passes", *fourstep.WHOLES}, "ntt256": {*ntt256.PIPELINES}}


@needs_compiler
@pytest.mark.parametrize("study", LEAST_GROUPS)
def test_run_of_each_study(study, quick, tmp_path, monkeypatch, capsys):
    """Each entry has a row, and counters if it is a single kernel. A copy takes as long here."""
    groups = LEAST_GROUPS[study]

    def count(name: str, kernels: list[str]) -> list[ncu.Counted]:
        assert name == study and len(kernels) == launched
        counters = {"smsp__thread_inst_executed.sum": 1e6, ncu.STALLED.format("wait"): 2.5}
        return [ncu.Counted(k, counters) for k in kernels]

    monkeypatch.setattr(ncu, "count", count)
    with simulated_cuda():
        expected = sum(1 + len(group.entries) for group in groups())
        launched = len(list(runner.launches(groups())))
        capsys.readouterr()
        assert runner.run([runner.counted(study, groups)], tmp_path, Clock()) == 0
    said, rows = capsys.readouterr().out, harness.rows(tmp_path)
    skipped = said.count("skipped, ModuleNotFoundError: No module named 'cupy.cuda.cufft'")
    assert "FAILED" not in said and said.count("skipped") == skipped == 4 * (study == "fft64")
    assert len(rows) == expected - skipped
    assert len({(row.op, *sorted(map(str, row.params.items()))) for row in rows}) == len(rows)
    for row in rows:
        several = {"copy", *SEVERAL.get(study, ())}
        one = row.params["variant"] not in several and row.params.get("stage") != ntt256.WHOLE
        assert row.verified and row.figures["us_median"] > 0
        assert ("blocks" in row.figures) == ("stall_wait" in row.figures) == one
        CHECKS.get(study, check_ntt)(row, row.figures)


@needs_compiler
@pytest.mark.parametrize("study", [*LEAST_GROUPS, "gemm"])
def test_run_does_not_time_wrong_results(study, quick, tmp_path, monkeypatch, capsys):
    """The last word is wrong, for kernels, sequences of kernels and copies."""
    ready = Entry.ready

    def spoilt(self: Entry, *args: Any) -> kernel.Ready:
        right = ready(self, *args)

        def run(*arrays: Any) -> None:
            right.run(*arrays)
            y = arrays[-1].reshape(-1)
            y[-1:] = np.nan if y.dtype.kind in "fc" else 5

        return dataclasses.replace(right, run=run)

    monkeypatch.setattr(Entry, "ready", spoilt)
    monkeypatch.setattr(ncu, "find", lambda: None)
    groups = LEAST_GROUPS.get(study, lambda: gemm.of_size(128, gemm.STEPS, peers=gemm.CUBLAS))
    with simulated_cuda():
        expected = sum(group.copied + len(group.entries) for group in groups())
        assert runner.run([runner.counted(study, groups)], tmp_path, Clock()) == 1
    said = capsys.readouterr().out
    assert harness.rows(tmp_path) == [] and "no counters: there is no ncu" in said
    assert said.count("FAILED, Unverified") == expected - said.count("skipped")


@needs_compiler
def test_run_skips_kernels_that_do_not_compile(quick, tmp_path, monkeypatch, capsys):
    """The other kernels of the same file are measured."""
    broken = kernel.Kernel("transpose.cu", "transpose_batch<7, 7>", (1,), (1,))
    (own,) = LEAST_GROUPS["transpose"]()
    group = dataclasses.replace(own, entries=[Entry("broken", [broken], own.x), *own.entries[:2]])
    with simulated_cuda():
        assert runner.run([lambda out, timer: runner.tasks_of([group], timer)], tmp_path, Clock()) == 0
    assert "{'n': 4096}, broken: skipped, CompileException: " in capsys.readouterr().out
    assert [row.params["variant"] for row in harness.rows(tmp_path)] == ["copy", *2 * [transpose.BATCH]]


@needs_compiler
def test_run_of_products(quick, tmp_path, monkeypatch, capsys):
    """The first run tunes, the second uses its choice, and --tune measures the shapes again."""
    monkeypatch.setattr(gemm, "SIZES", (128,))
    monkeypatch.setattr(gemm, "FULL", 64)
    shapes = tuple(k for k in gemm.SHAPES if k.tile in ((64, 64), (128, 64)))
    monkeypatch.setattr(gemm, "SHAPES", shapes)
    with simulated_cuda():
        assert runner.run([gemm.ladder], tmp_path, Clock()) == 0
        rows = harness.rows(tmp_path)
        assert runner.run([gemm.ladder], tmp_path, Clock()) == 0
        again = harness.rows(tmp_path)[len(rows) :]
        assert runner.run([gemm.tune], tmp_path, Clock()) == 0
        tuned = harness.rows(tmp_path)[len(rows) + len(again) :]
    assert "FAILED" not in (said := capsys.readouterr().out) and "skipped" not in said
    of_shapes = [r for r in rows if r.op == "gemm shape"]
    assert sorted(str(r.params["shape"]) for r in of_shapes) == sorted(k.shape for k in shapes)
    ladder, every = [r for r in rows if r.op == "gemm"], {*gemm.VARIANTS, *gemm.CUBLAS}
    assert len(ladder) == len(again) and {r.params["variant"] for r in ladder} == every
    assert [r.op for r in tuned] == ["gemm shape"] * len(of_shapes)
    for r in ladder:
        f, variant = r.figures, r.params["variant"]
        halves = variant in ("WMMA", "mma.sync", "FP16")
        assert r.verified and r.work == 128**2 and set(r.params) == {"variant", "n"}
        assert f["ms_median"] == f["ms_mean"] == 0.001
        assert f["tflops"] == pytest.approx(2 * 128**3 / 1e6, abs=0.001)
        assert f["gbps"] == pytest.approx(128**2 * (8 if halves else 12) / 1e3, abs=0.01)
        assert f["peak_share"] == pytest.approx(f["tflops"] / (132 * 128 * 2 * 1.98e-3), abs=1e-4)
        assert (1e-4 < f["error_l2"] < 1e-3) if halves or variant == "TF32" else (0 < f["error_l2"] < 1e-6)
        if variant in gemm.TUNED:  # all shapes take as long here: the first is taken
            first = next(k for k in shapes if k.variant == variant)
            assert gemm.choice(rows, "A Card, 80 GB", 128, str(variant)) == first
            assert f["blocks"] == 128 // first.tile[0] * (128 // first.tile[1])


def test_choice_of_a_tile_shape():
    """The first shape within 2 % of the best is chosen, from the newest rows of one card and size."""
    own = [k for k in gemm.SHAPES if k.variant == "pipeline"]

    def rows(*times: float, n: int = 1024, card: str = "A", **more: Any) -> list[Any]:
        def row(k: gemm.Product, time: float) -> Any:
            params = {"n": n, "variant": k.variant, "shape": k.shape}
            found = {"op": gemm.SHAPE_OP, "params": params, "median": time, "verified": True, **more}
            return SimpleNamespace(machine={"name": card}, **found)

        return [row(*pair) for pair in zip(own, times, strict=False)]

    def taken(rows: list[Any]) -> gemm.Product | None:
        return gemm.choice(rows, "A", 1024, "pipeline")

    assert taken([]) is None
    assert taken(rows(100, 99, 98.1)) == own[0]
    assert taken(rows(100, 97, 96)) == own[1] == taken(rows(100, 97, 96)[::-1])  # in the order of the shapes
    assert taken(rows(100, 90) + rows(100, 90, 50, n=2048) + rows(1, card="B")) == own[1]
    assert taken(rows(100, 90) + rows(80)) == own[0]
    assert taken([*rows(100), *rows(100, 5, verified=False)[1:]]) == own[0]


@needs_compiler
@pytest.mark.parametrize("n", [64, 256])
def test_verification_rejects_wrong_products(n, monkeypatch):
    """A term, a column or an entry is missing, and all entries or some are verified."""
    monkeypatch.setattr(gemm, "FULL", 64)
    with simulated_cuda():
        group, _ = gemm.of_size(n, [])
        sets, (a, b, places, expected) = group.sets(0), gemm.matrices(n)
        assert len(places) == (n * n if n == 64 else 128)
        a, b = a.astype(np.float64), b.astype(np.float64)
        assert np.allclose((a @ b).ravel()[places], expected, rtol=1e-9, atol=1e-9)
        unseen = min({*range(n * n)} - {*places.tolist()}, default=5)
        no_column, no_entry, halves = a @ b, a @ b, a.astype(np.float16) @ b
        no_column[:, places[0] % n] = 0
        no_entry.ravel()[unseen] = np.nan

        def holds(product: np.ndarray, exact: bool) -> bool:
            entry = Entry("naive", [], lambda: expected, bounds=gemm.bounds(n, exact))
            case = group.case(entry, kernel.Ready(lambda a, b, c: c.set(product.astype(np.float32))), sets)
            return case.verify(case.values(case.run()))

        for exact in (True, False):
            wrong = [holds(x, exact) for x in (a[:, 1:] @ b[1:], no_column, no_entry)]
            assert holds(a @ b, exact) and not any(wrong) and holds(halves, exact) != exact


# ---- products modulo q ----


@pytest.fixture
def small_modular(monkeypatch, quick):
    """A few small sizes for each part."""
    sizes = {"SIZES": (24, 64, 96), "LARGE": 64, "LONG": 96, "SQUARE_MODULI": ("2^31 - 1", "2^60 - 93")}
    sizes |= {"SHAPES": ((3, 8, 8, 8), (1, 1, 40, 24)), "DEGREES": (16,), "BATCH_BYTES": 1 << 11}
    sizes |= {"TOEPLITZ_MODULI": ("60-bit NTT prime", "2^31 - 1")}
    sizes |= {"POLY_SHAPES": ((2, 3, 4, 2, 16, 2, 30), (5, 1, 6, 1, 16, 2, 60))}
    for name, value in sizes.items():
        monkeypatch.setattr(modular, name, value)


@needs_compiler
def test_run_of_modular_products(small_modular, tmp_path, capsys):
    """Each part has rows of the methods that the page shows."""
    with simulated_cuda():
        assert runner.run(modular.PARTS.values(), tmp_path, Clock()) == 0
    assert "FAILED" not in capsys.readouterr().out
    rows, every = harness.rows(tmp_path), ["integer", "digits", "residues", "matmul"] * 2
    ops = ("matmul", "matmul shape", "matmul points", "toeplitz")
    squares, shapes, points, factors = ([r for r in rows if r.op == op] for op in ops)
    assert all(r.verified and r.figures["ms_median"] == 0.001 for r in rows)
    large = [*every, modular.CUBLAS, *2 * ["residues", "matmul"], modular.CUBLAS]
    assert [r.params["way"] for r in squares] == [*every, *large]
    for r in squares:
        n, way, f, q = int(r.params["n"]), str(r.params["way"]), r.figures, r.params.get("q")
        of_bytes = {"digits": 64, "residues": len(coprimes(2**60 - 93, n)), modular.CUBLAS: 1}.get(way, 0)
        assert r.work == n * n and (q is None) == (way == modular.CUBLAS)
        assert q == "2^31 - 1" or f.get("int8_tops", 0) == pytest.approx(2 * of_bytes * n**3 / 1e6, abs=0.01)
        if q is not None:  # at these sizes "integer" is taken
            assert f["tmodmul"] == pytest.approx(n**3 / 1e6, abs=1e-4)
            assert f["taken"] == (way in ("integer", "matmul")) and ("int8_tops" in f) == (of_bytes > 0)
    seen = [(r.params["q"], modular.shape_of(r), r.params["way"]) for r in shapes]
    assert seen == [(q, s, way) for q in modular.SHAPE_MODULI for s in modular.SHAPES for way in modular.WAYS]
    seen = [(modular.shape_of(r), r.params["way"]) for r in points]
    assert seen == [(s, way) for s in modular.POLY_SHAPES for way in modular.POLY_WAYS]
    assert points[0].work == 2 * 3 * 2 * 16 * 2
    assert points[0].figures["tmodmul"] == pytest.approx(2 * 3 * 4 * 2 * 16 * 2 / 1e6, abs=1e-4)
    seen = [(r.params["q"], r.params["degree"], r.params["way"]) for r in factors]
    assert seen == [(q, 16, way) for q in modular.TOEPLITZ_MODULI for way in modular.TOEPLITZ_WAYS]
    assert {(r.params["batch"], r.figures["ps"]) for r in factors} == {(32, 1953.125), (16, 3906.25)}


def taken_for_right(case: harness.Case, c: Any) -> bool:
    return case.verify(case.values(c))


@needs_compiler
@pytest.mark.parametrize(
    ("q", "shape"),
    [("2^31 - 1", (2, 9, 12, 10)), ("2^60 - 93", (1, 1, 40, 24)), ("2^31 - 1", (1, 40, 16, 1))],
)
def test_verification_rejects_wrong_modular_products(q, shape):
    """An unsampled entry is wrong, an entry is not canonical, or the result is an old one."""
    with simulated_cuda():
        ((case, _),) = modular.products(modular.SQUARE_OP, q, shape, [modular.TAKEN])
        product = Product.random(modular.MODULI[q], *shape, lambda *_: None)
        exact = product.a.astype(object) @ product.b.astype(object) % product.q
        places = set(zip(*(x.tolist() for x in product.places), strict=True))
        at = next((i for i in np.ndindex(exact.shape) if i not in places), (0, 0, 0))
        value = int(exact[at])
        for wrong in (value, (value + 1) % product.q, value + product.q):
            c = case.run()
            assert np.array_equal(c.get(), exact)
            c[at] = wrong
            assert taken_for_right(case, c) == (wrong == value)
            assert not taken_for_right(case, c)  # reading spoils c


@needs_compiler
def test_verification_rejects_wrong_byte_products():
    with simulated_cuda():
        ((case, _),) = modular.products_of_bytes(16)
        c = case.run()
        assert taken_for_right(case, c)
        c[0, 0, 3, 5] += 1
        assert not taken_for_right(case, c)


@needs_compiler
def test_verification_rejects_wrong_polynomial_matrices():
    """A residue is wrong, or is not canonical."""
    with simulated_cuda():
        for case, _ in modular.poly_products((2, 3, 4, 2, 16, 2, 30)):
            c, at = case.run(), (1, 2, 1, 1, 9)
            value, q = int(c.data[at].get()), c.ring.moduli[1]
            reduces = case.params["way"] == modular.COEFFICIENTS
            for wrong, right in ((value, True), ((value + 1) % q, False), (value + q, reduces)):
                c.data[at] = wrong
                assert taken_for_right(case, c) == right, (case, wrong)


@needs_compiler
@pytest.mark.parametrize("modulus", ["30-bit NTT prime", "2^60 - 93"])
def test_verification_rejects_wrong_products_by_one_factor(modulus, small_modular):
    """A distinct or repeated polynomial has a wrong entry, or the result is an old one."""
    with simulated_cuda():
        for case, _ in modular.products_by_one(modulus, 16):
            c = case.run()
            assert taken_for_right(case, c) and not taken_for_right(case, c)
            for at in ((0, 0, 3), (len(c) - 1, 0, 15)):
                c = case.run()
                c.data[at] = (int(c.data[at].get()) + 1) % c.ring.modulus
                assert not taken_for_right(case, c)


# ---- the command ----


def test_command_without_a_gpu(tmp_path, monkeypatch, capsys):
    assert command.main(["--list"]) == 0
    assert "fft64: " in capsys.readouterr().out
    monkeypatch.setattr(command, "absence", lambda index: "no GPU answers here")
    assert command.main(["fft64", "--out", str(tmp_path)]) == 1
    assert "cuda:0: no GPU answers here" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_command_runs_the_named_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "absence", lambda index: None)
    ran: list[tuple[list[Any], Path]] = []
    monkeypatch.setattr(runner, "run", lambda parts, out: ran.append((list(parts), out)) or 3)
    for arguments, parts in (
        (["gemm", "--tune"], [gemm.tune]),
        (["gemm", "--part", "shapes"], [modular.shapes]),
        (["gemm"], [gemm.ladder, *modular.PARTS.values()]),
        (["fft64"], list(fft64.PARTS.values())),
    ):
        assert command.main([*arguments, "--out", str(tmp_path)]) == 3 and ran.pop() == (parts, tmp_path)
    for arguments, said in (
        (["fft64", "--tune"], "fft64 has nothing to tune"),
        (["gemm", "--part", "edges"], "gemm has no part 'edges'; its parts: ladder, squares, shapes"),
        (["--part", "shapes"], "which study? fft64, fourstep"),
    ):
        with pytest.raises(SystemExit):
            command.main([*arguments, "--out", str(tmp_path)])
        assert said in capsys.readouterr().err


@needs_compiler
def test_command_exposes_every_kernel_to_the_profiler(monkeypatch):
    """The command runs as a child process of the profiler."""
    exposed: list[Any] = []
    monkeypatch.setattr(command, "absence", lambda index: None)
    monkeypatch.setattr(ncu, "expose", lambda launches: exposed.extend(launches))
    made = LEAST_GROUPS["transpose"]()
    monkeypatch.setattr(transpose, "groups", lambda: made)
    with simulated_cuda():
        assert command.main(["transpose", "--counted"]) == 0
        assert len(exposed) == sum(len(group.entries) for group in made)
