"""Kernels of the studies on the simulated card, and what a study makes of its measurements."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import nvrtc
import pytest
from cudasim import check, simulated_cuda
from test_benchmarks import Card, row, squares

from benchmarks import harness, report
from benchmarks.studies import __main__ as command
from benchmarks.studies import fft64, gemm, kernel, modular, ncu
from polygpu import backends
from polygpu.backends.cuda.matmul_tiles import coprimes

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the CUDA simulator compiles with g++, which is not installed"
)
ORDERS = ("forward", "reverse", "random")
TOOLKIT_HEADERS = kernel.toolkit_headers


@pytest.fixture(autouse=True)
def _own_headers(monkeypatch):
    """Kernels compiled under one simulation are not those of the next; mma.h is the simulator's."""
    monkeypatch.setattr(kernel, "toolkit_headers", lambda: ())
    for cached in (fft64.kernels, gemm.kernels, backends.get_backend):
        cached.cache_clear()
    yield
    for cached in (fft64.kernels, gemm.kernels, backends.get_backend):
        cached.cache_clear()


def normal(ffts, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((ffts, 2 * fft64.N), dtype=np.float32).view(np.complex64)


def transform(cupy, shape, x):
    y = cupy.full(x.shape, np.nan, np.complex64)
    fft64.own(shape, len(x)).run(cupy.asarray(x), y)
    return y.get()


# ---- kernels ----


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", fft64.SHAPES, ids=lambda shape: shape.expression)
def test_transforms(shape, order):
    """One FFT, a part of a block, whole blocks and a ragged one; what lies beside the output stays."""
    with simulated_cuda(order=order, seed=5, concurrent_blocks=2) as cupy:
        for ffts in (1, shape.ffts, 2 * shape.ffts + 3):
            x = normal(ffts)
            got, expected = transform(cupy, shape, x), np.fft.fft(x.astype(np.complex128))
            assert fft64.errors(got, expected)[0] < 1.3e-7
            impulse = np.zeros_like(x)
            impulse[:, 5] = 1
            ones = np.broadcast_to(fft64.roots()[5 * np.arange(fft64.N) % fft64.N], x.shape)
            assert fft64.errors(transform(cupy, shape, impulse), ones)[0] < 5e-8


@needs_compiler
@pytest.mark.parametrize("shape", fft64.SHAPES[-2:], ids=lambda shape: shape.expression)
def test_split_floats_of_any_size(shape):
    """FFTs of one tile that differ by many powers of ten are as accurate as alone."""
    x = normal(40) * (10.0 ** np.resize([-25, 0, 30, -3, 18], (40, 1))).astype(np.float32)
    x[7] = 0
    with simulated_cuda() as cupy:
        got = transform(cupy, shape, x)
    assert not got[7].any()
    for y, expected in zip(got, np.fft.fft(x.astype(np.complex128)), strict=True):
        assert not expected.any() or fft64.errors(y, expected)[0] < 2e-7


@needs_compiler
def test_a_persistent_block_goes_on(monkeypatch):
    """Three blocks for more tiles than they hold at once."""
    monkeypatch.setattr(kernel.Multiprocessor, "resident", lambda *_: 3)
    x = normal(3 * 3 * 16 + 5)
    for shape in fft64.SHAPES[-2:]:
        with simulated_cuda() as cupy:
            one = cupy.cuda.Device().attributes | {"MultiProcessorCount": 1}
            monkeypatch.setattr(cupy.cuda.Device, "attributes", one)
            assert fft64.own(shape, len(x)).facts["blocks"] == 3
            assert fft64.errors(transform(cupy, shape, x), fft64.exact(x))[0] < 1.3e-7
        fft64.kernels.cache_clear()


KERNELS = (*gemm.STEPS, *gemm.SHAPES)


def sizes_of(k: gemm.Kernel) -> list[int]:
    """Of small matrices that its tiles divide: of one more and more columns of tiles than it has stages."""
    return [n for n in (256, 320) if n % k.tile[0] == n % k.tile[1] == 0]


def multiply(cupy, k, a, b):
    n = len(a)
    c = cupy.full((n, n), np.nan, np.float32)
    gemm.own(k, n).run(cupy.asarray(a.astype(k.dtype)), cupy.asarray(b.astype(k.dtype)), c)
    return c.get()


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", KERNELS, ids=lambda k: k.expression)
def test_matrix_products(k, order):
    """Of integers, where every sum is exact: the product itself, entry by entry."""
    assert sizes_of(k)
    with simulated_cuda(order=order, seed=5, concurrent_blocks=2) as cupy:
        for n in sizes_of(k):
            rng = np.random.default_rng(n)
            a, b = rng.integers(-8, 9, (2, n, n))
            assert np.array_equal(multiply(cupy, k, a, b), a @ b)


@needs_compiler
@pytest.mark.parametrize("k", KERNELS, ids=lambda k: k.expression)
def test_errors_of_matrix_products(k):
    """As small as those of sums of floats, or of halves; with split floats for numbers of any size."""
    n = 256
    a, b = np.random.default_rng(1).standard_normal((2, n, n), dtype=np.float32)
    with simulated_cuda() as cupy:
        l2, most = gemm.errors(multiply(cupy, k, a, b), a.astype(np.float64) @ b)
        assert l2 < 4e-7 and most < 4e-6 if k.exact else 2e-4 < l2 < 4e-4 and most < 2e-3
        if k.exact:
            a *= (10.0 ** np.resize([-12, 0, 12], (n, 1))).astype(np.float32)
            b *= (10.0 ** np.resize([-5, 10, 0, -20], n)).astype(np.float32)
            expected = a.astype(np.float64) @ b
            got = multiply(cupy, k, a, b)
            assert max(np.abs(got / expected - 1)[np.abs(expected) > np.abs(a) @ np.abs(b) / 16]) < 2e-5


CHECKED = """
import numpy as np
from cudasim import simulated_cuda
from benchmarks.studies import fft64, gemm, kernel
kernel.toolkit_headers = lambda: ()
"""


def checked(**codes):
    """Pieces of Python under the thread sanitizer, at once."""
    if reason := check.missing("thread"):
        pytest.skip(f"thread sanitizer: {reason}")
    runs = {name: ("thread", CHECKED + code) for name, code in codes.items()}
    started = check.run_together(runs, environment={"PYTHONPATH": str(harness.ROOT)})
    return (run.result() for run in started.values())


def test_races():
    """None in each shape, with either kind of loads; one in the note's, as drawn."""
    right, drawn = checked(
        right="""
loads = {"A": "coalesced", "B": "literal", "C": "coalesced", "E FP16": "coalesced", "E TF32": "coalesced"}
fft64.SHAPES = tuple(s for s in fft64.SHAPES if loads.get(s.variant) == s.loads)
for shape in fft64.SHAPES:
    with simulated_cuda() as cupy:
        x = np.ones((3, 64), np.complex64)
        y = cupy.empty_like(cupy.asarray(x))
        fft64.own(shape, 3).run(cupy.asarray(x), y)
        assert abs(y.get() - np.fft.fft(x)).max() < 1e-4
""",
        drawn="""
with simulated_cuda() as cupy:
    name = "fft64_stages<16, 64, false, true, false>"
    x = cupy.zeros((16, 64), np.complex64)
    kernel.load("fft64.cu", [name])[name]((1,), (16, 64), (x, x, np.int32(16)))
""",
    )
    assert right.clean, right
    assert drawn.returncode == 0, drawn
    assert any("data race" in text and "fft64_stages" in text for text in drawn.reports), drawn


def test_races_of_matrix_products():
    """None in any kernel; one where a block does not wait for the tiles of all its threads."""
    right, wrong = checked(
        right="""
gemm.SHAPES = tuple(k for k in gemm.SHAPES if k.tile == (64, 64))
for k in (*gemm.STEPS, *gemm.SHAPES):
    n = 320 if "64x64x64" in k.shape else 128
    with simulated_cuda() as cupy:
        a, b = np.random.default_rng(1).integers(-8, 9, (2, n, n))
        c = cupy.empty((n, n), np.float32)
        gemm.own(k, n).run(cupy.asarray(a.astype(k.dtype)), cupy.asarray(b.astype(k.dtype)), c)
        assert np.array_equal(c.get(), a @ b)
""",
        wrong="""
import pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as folder, simulated_cuda() as cupy:
    kernel.KERNELS = pathlib.Path(shutil.copytree(kernel.KERNELS, folder, dirs_exist_ok=True))
    header = kernel.KERNELS / "gemm_tiles.cuh"
    text = header.read_text()
    barrier = "await_copies<STAGES - 2>();\\n                __syncthreads();"
    assert text.count(barrier) == 1
    header.write_text(text.replace(barrier, "await_copies<STAGES - 2>();"))
    a = cupy.zeros((128, 128), np.float32)
    gemm.SHAPES = tuple(k for k in gemm.SHAPES if k.tile == (64, 64))
    gemm.own(gemm.SHAPES[0], 128).run(a, a, cupy.empty_like(a))
""",
    )
    assert right.clean, right
    assert wrong.returncode == 0, wrong
    assert any("data race" in text and "gemm_pipelined" in text for text in wrong.reports), wrong


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


@pytest.mark.parametrize("file", ["fft64.cu", "fft64_tensor.cu"])
def test_kernels_compile(file):
    """Without spills, and with all the blocks on a multiprocessor that their threads allow, or three."""
    shapes = [shape for shape in fft64.SHAPES if shape.file == file]
    usages = compiled(file, [shape.expression for shape in shapes])
    for shape in shapes:
        usage = usages[shape.expression]
        assert usage.spilled == 0
        assert H100.resident(shape.threads, usage.registers, 0) >= (2 if shape.threads == 1024 else 3)


@pytest.mark.parametrize("file", ["gemm.cu", "gemm_wmma.cu", "gemm_tensor.cu"])
def test_kernels_of_matrix_products_compile(file):
    """Without spills, and into the registers and the shared memory of a multiprocessor."""
    own = [k for k in KERNELS if k.file == file]
    usages = compiled(file, [k.expression for k in own])
    for k in own:
        assert usages[k.expression].spilled == 0
        assert H100.resident(k.threads, usages[k.expression].registers, k.dynamic_bytes) >= 1
        assert k.dynamic_bytes <= nvrtc.CARDS[90].shared_bytes


def test_two_stages_of_deep_tiles_are_too_much_shared_memory():
    """64 x 64 x 64 in floats, twice, is 64 KB; one stage fits, and so do two of half the depth."""
    assert 2 * 2 * 64 * 64 * 4 == 64 * 1024 > 48 * 1024
    compiled("gemm.cu", ["gemm_shared<64, 1, 8, 4>", "gemm_shared<32, 2, 8, 4>"])
    with pytest.raises(RuntimeError, match=r"too much shared data|69632 bytes smem"):
        compiled("gemm.cu", ["gemm_shared<64, 2, 8, 4>"])


# ---- what is worked out ----

H100 = kernel.Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 * 1024)


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks"),
    [
        (1024, 32, 33792, 2),  # by threads
        (1024, 33, 33792, 1),  # 40 registers, 51 warps
        (1024, 64, 8448, 1),
        (1024, 65, 8448, 0),
        (256, 32, 16640, 8),
        (256, 80, 0, 3),
        (256, 48, 24064, 5),
        (32, 16, 0, 32),
        (32, 16, 20 * 1024, 10),  # by shared memory, 21 KB with what is reserved
        (64, 255, 0, 4),
    ],
)
def test_occupancy(threads, registers, shared_bytes, blocks):
    assert H100.resident(threads, registers, shared_bytes) == blocks
    assert H100.occupancy(threads, registers, shared_bytes) == blocks * threads / 32 / 64


def test_headers_of_the_toolkit(tmp_path, monkeypatch):
    """The first folder that has both parts of mma.h."""
    for folder, parts in (("half", ["mma.h"]), ("whole", ["mma.h", "crt/mma.h"])):
        for part in parts:
            path = tmp_path / folder / "include" / part
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "half"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "whole"))
    assert TOOLKIT_HEADERS.__wrapped__() == (tmp_path / "whole" / "include",)


@needs_compiler
def test_limits_come_from_the_card():
    with simulated_cuda("h100"):
        assert kernel.Multiprocessor.of_device() == H100


def test_the_oracle_is_the_definition():
    x = normal(5)
    assert np.abs(fft64.exact(x) - np.fft.fft(x.astype(np.complex128))).max() < 1e-13
    w = fft64.roots()
    assert w.dtype == np.clongdouble and w[[0, 16, 32, 48]].tolist() == [1, -1j, -1, 1j]
    assert np.abs(w**64 - 1).max() < 1e-17
    expected = fft64.exact(x)
    off = expected.copy()
    off[0, 0] += 1
    l2, most = fft64.errors(off, expected)
    rms = float(np.sqrt(np.mean(np.abs(expected) ** 2)))
    assert (l2, most) == (pytest.approx(1 / rms / np.sqrt(320)), pytest.approx(1 / rms))


# ---- counters ----

CSV = """==PROF== Connected to process 4711
==PROF== Profiling "fft64_stages" - 0: 0%....50%....100% - 3 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",\
"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","python","host","void fft64_stages<(int)64, (int)16>(const float2 *, float2 *, int)","1","7",\
"(64, 16, 1)","(157, 1, 1)","0","9.0","Command line profiler metrics",\
"smsp__inst_executed.sum","inst","12,345"
"0","4711","python","host","void fft64_stages<(int)64, (int)16>(const float2 *, float2 *, int)","1","7",\
"(64, 16, 1)","(157, 1, 1)","0","9.0","Command line profiler metrics",\
"sm__warps_active.avg.pct_of_peak_sustained_active","%","48.50"
"1","4711","python","host","void vector_fft<64>()","1","7","(64, 16, 1)","(157, 1, 1)","0","9.0",\
"Command line profiler metrics","smsp__inst_executed.sum","inst","n/a"
"""


def test_counters_are_read():
    first, second = ncu.parse(CSV)
    assert first.kernel.startswith("void fft64_stages<")
    assert first.counters == {
        "smsp__inst_executed.sum": 12345,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 48.5,
    }
    assert second == ncu.Counted("void vector_fft<64>()")
    assert ncu.parse("==ERROR== ERR_NVGPUCTRPERM\n") == []
    assert ncu.figures(first) == {"warp_instructions": 12345, "achieved_occupancy": 0.485}
    assert len(set(ncu.METRICS)) == len(ncu.FIGURES) and set(ncu.SHARES) < set(ncu.FIGURES)


def fake_ncu(folder, script):
    program = folder / "ncu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_counting(tmp_path, monkeypatch):
    """Launches and what the tool saw belong together only if they are as many, by the same names."""
    (tmp_path / "csv").write_text(CSV)
    # The log file's name is the argument after --log-file.
    script = (
        'while [ "$1" != --log-file ]; do shift; done; '
        f'cp {tmp_path}/csv "$2"; '
        'case "$*" in *"-m benchmarks.studies fft64 --counted") exit 0;; esac; exit 9'
    )
    monkeypatch.setattr(ncu, "find", lambda: fake_ncu(tmp_path, script))
    assert [c.kernel for c in ncu.count("fft64", ["fft64_stages", ""])] == [c.kernel for c in ncu.parse(CSV)]
    for others in (["fft64_stages"], ["fft64_tensor", ""]):
        with pytest.raises(ncu.Uncounted, match="ncu saw the kernels void fft64_stages"):
            ncu.count("fft64", others)
    monkeypatch.setattr(ncu, "find", lambda: fake_ncu(tmp_path, "echo ERR_NVGPUCTRPERM >&2; exit 1"))
    with pytest.raises(ncu.Uncounted, match="exit status 1: ERR_NVGPUCTRPERM"):
        ncu.count("fft64", ["fft64_stages"])
    monkeypatch.setattr(ncu, "find", lambda: None)
    with pytest.raises(ncu.Uncounted, match="there is no ncu"):
        ncu.count("fft64", ["fft64_stages"])


def test_only_second_launches_are_exposed(monkeypatch):
    log: list[str] = []
    runtime = SimpleNamespace(
        deviceSynchronize=lambda: log.append("wait"),
        profilerStart=lambda: log.append("start"),
        profilerStop=lambda: log.append("stop"),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    ncu.expose([lambda: log.append("a"), lambda: log.append("b")])
    seen = ["wait", "start"]
    assert log == ["a", *seen, "a", "wait", "stop", "b", *seen, "b", "wait", "stop"]


# ---- the run ----


class Clock(Card):
    """A card without a cache to speak of."""

    def machine(self) -> harness.Machine:
        return {**super().machine(), "l2_bytes": 2_000, "driver": "580", "cuda": "13.0", "cupy": "14.0"}


@needs_compiler
def test_a_whole_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fft64, "PERIOD", 37)
    monkeypatch.setattr(harness, "SAMPLE_NS", 1000)
    monkeypatch.setattr(Clock, "total_ns", 0)
    monkeypatch.setattr(Clock, "warm_up_ns", 0)
    for cached in (fft64.first_period, fft64.exact_period, fft64.exact_convolutions):
        cached.cache_clear()
    chosen = [s for s in fft64.SHAPES if s.variant in ("A", "B", "E FP16", "E TF32")]
    monkeypatch.setattr(fft64, "SHAPES", chosen)

    monkeypatch.setattr(fft64, "BATCHES", (5, 80))

    def counted(study: str, kernels: list[str]) -> list[ncu.Counted]:
        assert len(kernels) == len(list(fft64.launches())) >= 2 * len(chosen)  # and D, where it is there
        counters = {"smsp__thread_inst_executed.sum": 1e6, "smsp__inst_executed.sum": 4e4}
        return [ncu.Counted(k, counters) for k in kernels]

    monkeypatch.setattr(ncu, "count", counted)
    try:
        with simulated_cuda():
            assert fft64.main(tmp_path, Clock()) == 0
    finally:
        for cached in (fft64.first_period, fft64.exact_period, fft64.exact_convolutions):
            cached.cache_clear()
    rows = harness.rows(tmp_path)
    said = capsys.readouterr().out
    assert "80 FFTs, cuFFT: skipped, ModuleNotFoundError" in said
    for ffts in (5, 80):
        own = [r for r in rows if r.params["ffts"] == ffts and r.op == "fft64"]
        assert {r.params["variant"] for r in own} >= {"copy", "A", "B", "E FP16", "E TF32"}
        for r in own:
            if r.library == "study":
                assert r.figures["instructions_per_fft"] == 1e6 / ffts
                threads = r.figures["blocks"] * r.figures["threads"]
                assert r.figures["instructions_per_thread"] == pytest.approx(1e6 / threads, abs=0.01)
                assert 0 < r.figures["error_l2"] < 1.3e-7 < r.figures["error_max"] < 1e-6
                assert r.figures["copy_share"] == 1  # of a clock that always says the same
                copies = -(-8_000 // (1024 * ffts))
                launch = f"CUDA graph of {copies}" if ffts == 5 else "plain"
                assert r.params["launch"] == launch and r.loops % copies == 0
    assert {r.figures["blocks"] for r in rows if r.params["variant"] == "B"} == {1, 5}
    convolved = [r for r in rows if r.op == "convolve64"]
    assert [r.params["loads"] for r in convolved] == [fft64.EACH, fft64.ONE]
    assert all(0 < r.figures["error_l2"] < 3e-7 and r.params["ffts"] == 80 for r in convolved)


@pytest.fixture
def small_products(monkeypatch):
    """One small size, verified in part, and two shapes of each kernel."""
    monkeypatch.setattr(gemm, "SIZES", (128,))
    monkeypatch.setattr(gemm, "FULL", 64)
    variants = dict.fromkeys(k.variant for k in gemm.SHAPES)
    chosen = ([k for k in gemm.SHAPES if k.variant == variant][-2:] for variant in variants)
    monkeypatch.setattr(gemm, "SHAPES", tuple(chain.from_iterable(chosen)))
    monkeypatch.setattr(harness, "SAMPLE_NS", 1000)
    monkeypatch.setattr(harness, "SAMPLES", 3)
    monkeypatch.setattr(Clock, "total_ns", 0)
    monkeypatch.setattr(Clock, "warm_up_ns", 0)


@needs_compiler
def test_a_whole_run_of_matrix_products(tmp_path, small_products, capsys):
    """The first run tunes, the second takes what was chosen, --tune measures the shapes anew."""
    with simulated_cuda():
        assert gemm.ladder(tmp_path, Clock()) == 0
    assert "FAILED" not in (said := capsys.readouterr().out) and "skipped" not in said
    rows = harness.rows(tmp_path)
    shapes = [(r.params["variant"], r.params["shape"]) for r in rows if r.op == "gemm shape"]
    assert shapes == [(k.variant, k.shape) for k in gemm.SHAPES]
    ladder = [r for r in rows if r.op == "gemm"]
    variants = [k.variant for k in gemm.STEPS] + list(dict.fromkeys(k.variant for k in gemm.SHAPES))
    assert [r.params["variant"] for r in ladder] == [*variants, *gemm.CUBLAS]
    for r in ladder:
        f = r.figures
        assert r.verified and r.work == 128**2 and set(r.params) == {"variant", "n"}
        assert f["ms_median"] == 0.001 and 0.001 <= f["ms_mean"] <= 0.004  # of a clock that says so
        assert f["tflops"] == pytest.approx(2 * 128**3 / 1e6, abs=0.001)
        halves = r.params["variant"] in ("WMMA", "mma.sync", "FP16")
        coarse = halves or r.params["variant"] == "TF32"
        assert f["gbps"] == pytest.approx(128**2 * (8 if halves else 12) / 1e3, abs=0.01)
        assert f["peak_share"] == pytest.approx(f["tflops"] / (132 * 128 * 2 * 1.98e-3), abs=1e-4)
        assert (1e-4 < f["error_l2"] < 1e-3) if coarse else (0 < f["error_l2"] < 1e-6)
    # All shapes take as long here: the first is taken.
    for variant in variants[len(gemm.STEPS) :]:
        first = next(k for k in gemm.SHAPES if k.variant == variant)
        (row_,) = (r for r in ladder if r.params["variant"] == variant)
        assert gemm.choice(rows, "A Card, 80 GB", 128, variant) == first
        assert row_.figures["blocks"] == 128 // first.tile[0] * (128 // first.tile[1])
    with simulated_cuda():
        assert gemm.ladder(tmp_path, Clock()) == 0
        assert len(harness.rows(tmp_path)) == len(rows) + len(ladder)
        assert gemm.tune(tmp_path, Clock()) == 0
    assert [r.op for r in harness.rows(tmp_path)][len(rows) + len(ladder) :] == ["gemm shape"] * len(shapes)


@needs_compiler
@pytest.mark.parametrize("n", [64, 256])
def test_wrong_matrix_products_are_not_timed(n, monkeypatch):
    """Without a term, a column or an entry, whether all entries are looked at or some."""
    monkeypatch.setattr(gemm, "FULL", 64)
    with simulated_cuda():
        problem = gemm.Problem.make(n)
        entries = problem.entries.get()
        assert len(entries) == (n * n if n == 64 else 128)
        a, b = (x.get().astype(np.float64) for x in problem.operands["float32"])
        assert np.allclose((a @ b).ravel()[entries], problem.expected, rtol=1e-9, atol=1e-9)
        unseen = min({*range(n * n)} - {*entries.tolist()}, default=5)

        def case(product: Any, exact: bool) -> harness.Case:
            def run(x: Any, y: Any, c: Any) -> None:
                c.set(product.astype(np.float32))

            return problem.case(gemm.Launch("naive", "study", run, "float32", exact))

        no_column, no_entry = a @ b, a @ b
        no_column[:, entries[0] % n] = 0
        no_entry.ravel()[unseen] = np.nan
        halves = a.astype(np.float16) @ b
        for exact in (True, False):
            assert harness.measure(case(a @ b, exact), Clock()).verified
            for wrong in (a[:, 1:] @ b[1:], no_column, no_entry):
                with pytest.raises(harness.Unverified):
                    harness.measure(case(wrong, exact), Clock())
        assert harness.measure(case(halves, False), Clock()).verified
        with pytest.raises(harness.Unverified):
            harness.measure(case(halves, True), Clock())


@pytest.fixture
def small_modular(monkeypatch):
    """Some sizes of each part."""
    monkeypatch.setattr(modular, "SIZES", (24, 64, 96))
    monkeypatch.setattr(modular, "LARGE", 64)
    monkeypatch.setattr(modular, "LONG", 96)
    matrices = modular.Shape
    monkeypatch.setattr(modular, "SHAPES", (matrices(3, 8, 8, 8), matrices(1, 1, 40, 24)))
    polynomials = tuple(
        modular.PolyShape(matrices(*sizes), 16, 2, bits)
        for sizes, bits in (((2, 3, 4, 2), 30), ((1, 2, 2, 2), 60), ((5, 1, 6, 1), 30))
    )
    monkeypatch.setattr(modular, "POLY_SHAPES", polynomials)
    monkeypatch.setattr(modular, "DEGREES", (16,))
    monkeypatch.setattr(modular, "BATCH_BYTES", 1 << 11)
    monkeypatch.setattr(harness, "SAMPLE_NS", 1000)
    monkeypatch.setattr(harness, "SAMPLES", 3)
    monkeypatch.setattr(Clock, "total_ns", 0)
    monkeypatch.setattr(Clock, "warm_up_ns", 0)


@needs_compiler
def test_a_whole_run_of_modular_products(tmp_path, small_modular, monkeypatch, capsys):
    """Each part has its rows, and they are of the ways that the page shows."""
    monkeypatch.setitem(gemm.PARTS, "ladder", lambda out, timer: 0)
    with simulated_cuda():
        assert gemm.main(tmp_path, Clock()) == 0
    assert "FAILED" not in capsys.readouterr().out
    rows = harness.rows(tmp_path)
    assert all(r.verified and r.figures["ms_median"] == 0.001 for r in rows)
    squares = [r for r in rows if r.op == "matmul"]
    small = ["integer", "limbs", "residues", "matmul"] * 3
    assert [r.params["way"] for r in squares] == [
        *(*small, *small, modular.CUBLAS),
        *(*["residues", "matmul"] * 3, modular.CUBLAS),
    ]
    of_bytes = {"limbs": (16, 64), "residues": (len(coprimes(2**30 - 35, 64)), len(coprimes(2**60 - 93, 64)))}
    for r in squares:
        n, way, f = int(r.params["n"]), str(r.params["way"]), r.figures
        assert r.work == n * n
        if way == modular.CUBLAS:
            assert "q" not in r.params and set(f) == {"ms_median", "int8_tops"}
            assert f["int8_tops"] == pytest.approx(2 * n**3 / 1e6, abs=0.01)
            continue
        assert f["tmodmul"] == pytest.approx(n**3 / 1e6, abs=1e-4)
        if n == 64 and way in of_bytes and r.params["q"] != "2^31 - 1":
            products = of_bytes[way][r.params["q"] == "2^60 - 93"]
            assert f["int8_tops"] == pytest.approx(2 * products * n**3 / 1e6, abs=0.01)
        assert ("int8_tops" in f) == (way in of_bytes)  # what is taken is integer at these sizes
    taken = {r.params["way"]: r.figures["taken"] for r in squares if r.params["n"] == 64 and "q" in r.params}
    assert taken == {"integer": 1, "limbs": 0, "residues": 0, "matmul": 1}
    others = [(r.params["q"], modular.Shape.of(r), r.params["way"]) for r in rows if r.op == "matmul shape"]
    assert others == [
        (q, s, way) for q in modular.SHAPE_MODULI for s in modular.SHAPES for way in modular.WAYS
    ]
    points = [r for r in rows if r.op == "matmul points"]
    assert [modular.points_cell(r) for r in points] == [
        (s, way)
        for s in modular.POLY_SHAPES
        for way in (modular.EVALUATED, modular.COEFFICIENTS, modular.SUM)
    ]
    assert points[0].work == 2 * 3 * 2 * 16 * 2
    assert points[0].figures["tmodmul"] == pytest.approx(2 * 3 * 4 * 2 * 16 * 2 / 1e6, abs=1e-4)
    factors = [r for r in rows if r.op == "toeplitz"]
    assert [modular.toeplitz_cell(r) for r in factors] == [
        (q, 16, way) for q in modular.TOEPLITZ_MODULI for way in modular.TOEPLITZ_WAYS
    ]
    assert {(r.params["batch"], r.figures["ps"]) for r in factors} == {(32, 1953.125), (16, 3906.25)}


def verdicts(case: harness.Case, wrongs: list[Any]) -> list[bool]:
    """Whether each result is taken for right."""
    return [case.verify(case.values(c)) for c in wrongs]


@needs_compiler
def test_wrong_modular_products_are_not_timed(small_modular):
    """One entry off where no entry is looked at, one not canonical, and those of the way before."""
    with simulated_cuda() as cupy:
        for problem in (
            modular.Problem("2^31 - 1", modular.Shape(2, 9, 12, 10)),
            modular.Problem("2^60 - 93", modular.Shape(1, 1, 40, 24)),
            modular.Problem("2^31 - 1", modular.Shape(1, 40, 16, 1)),
        ):
            case = problem.case(modular.SQUARE_OP, modular.TAKEN)
            right = case.run().get()
            a, b, q = problem.product.a, problem.product.b, problem.q
            assert np.array_equal(right, a.astype(object) @ b.astype(object) % q)
            seen = set(zip(*(x.tolist() for x in problem.product.places), strict=True))
            at = next((i for i in np.ndindex(right.shape) if i not in seen), (0, 0, 0))
            off, above = right.copy(), right.copy()
            off[at] = (int(off[at]) + 1) % q
            above[at] = right[at] + right.dtype.type(q)
            assert verdicts(case, list(map(cupy.asarray, (right, off, above)))) == [True, False, False]
            told = case.values(case.run())
            assert case.verify(told) and not case.verify(case.values(problem.arrays[2]))


@needs_compiler
def test_wrong_sums_of_bytes_are_not_timed():
    with simulated_cuda():
        (case, _), *_ = modular.Bytes(16).cases()
        c = case.run()
        assert case.verify(case.values(c))
        c[0, 0, 3, 5] += 1
        assert not case.verify(case.values(c))


@needs_compiler
@pytest.mark.parametrize("way", [modular.EVALUATED, modular.COEFFICIENTS, modular.SUM])
def test_wrong_matrices_of_polynomials_are_not_timed(way, small_modular):
    with simulated_cuda():
        problem = modular.PolyProblem(modular.POLY_SHAPES[0])
        case = problem.case(way)
        c = case.run()
        assert case.verify(case.values(c))
        seen = set(zip(*(x.tolist() for x in problem.places), strict=True))
        at = next(i for i in np.ndindex(c.data.shape) if i not in seen)
        q = problem.ring.moduli[at[3]]
        value = int(c.data[at].get())
        c.data[at] = (value + 1) % q
        assert not case.verify(case.values(c))
        c.data[at] = value + q
        assert way == modular.COEFFICIENTS or not case.verify(case.values(c))  # transforms reduce
        c.data[at] = value
        assert case.verify(case.values(c))


@needs_compiler
@pytest.mark.parametrize("modulus", modular.TOEPLITZ_MODULI)
def test_wrong_products_by_one_factor_are_not_timed(modulus, small_modular):
    with simulated_cuda():
        w = modular.SharedFactor(modulus, 16)
        for case, _ in w.cases():
            assert case.verify(case.values(case.run())), case
            assert not case.verify(case.values(w.out))  # which was read, and is no other way's result
            for at in ((0, 0, 3), (w.batch - 1, 0, 15)):
                c = case.run()
                c.data[at] = (int(c.data[at].get()) + 1) % w.ring.modulus
                assert not case.verify(case.values(c))


def test_the_choice_of_a_shape():
    """The first that is within 2 % of the best, of the newest rows of one card and size."""
    own = [k for k in gemm.SHAPES if k.variant == "pipeline"]

    def rows_of(*times: float, n: int = 1024, card: str = "A") -> list[harness.Row]:
        return [gemm_row(k.variant, t, n, k.shape, card) for k, t in zip(own, times, strict=False)]

    def taken(rows: list[harness.Row]) -> gemm.Kernel | None:
        return gemm.choice(rows, "A", 1024, "pipeline")

    assert taken([]) is None
    assert taken(rows_of(100, 99, 98.1)) == own[0]
    assert taken(rows_of(100, 97, 96)) == own[1]
    assert taken(list(reversed(rows_of(100, 97, 96)))) == own[1]  # in the order of the shapes
    assert taken(rows_of(100, 90) + rows_of(100, 90, 50, n=2048) + rows_of(1, card="B")) == own[1]
    assert taken(rows_of(100, 90) + rows_of(80)) == own[0]
    assert taken([*rows_of(100), dataclasses.replace(rows_of(100, 5)[1], verified=False)]) == own[0]


@needs_compiler
def test_the_librarys_own_transform(monkeypatch):
    """Its kernel's figures are those of the one that its first call compiled."""
    with simulated_cuda() as cupy:
        launch = fft64.library(100)
        x = cupy.asarray(normal(100))
        y = cupy.empty_like(x)
        launch.run(x, y)
        assert fft64.errors(y.get(), fft64.exact(x.get()))[0] < 1.5e-7
    assert (launch.variant, launch.kernel) == ("D", "fft")
    assert launch.facts == {
        "blocks": 7,
        "threads": 128,
        "registers": 32,  # the simulator's
        "shared_bytes": 8192,
        "spilled_bytes": 0,
        "occupancy": 1,
    }


@needs_compiler
def test_wrong_results_are_not_timed(tmp_path, monkeypatch, capsys):
    """An FFT beyond the first period that differs, and one within it."""
    monkeypatch.setattr(fft64, "PERIOD", 7)
    for cached in (fft64.first_period, fft64.exact_period, fft64.exact_convolutions):
        cached.cache_clear()
    try:
        with simulated_cuda() as cupy:
            batch = fft64.Batch.make(20, 0)
            x = batch.sets[0][0].get()
            assert np.array_equal(x[7:14], x[:7]) and np.array_equal(x[14:], x[:6])

            def transform_but(at: tuple[int, int] | None, by: float) -> Any:
                def run(x: Any, y: Any) -> None:
                    cupy.copyto(y, cupy.fft.fft(x).astype(np.complex64))
                    if at:
                        y[at] += np.complex64(by)

                return batch.case(fft64.Launch("D", "polygpu", run), fft64.exact_period())

            assert harness.measure(transform_but(None, 0), Clock()).verified
            for at, by in (((3, 5), 0.1), ((19, 63), 1e-5), ((3, 5), np.nan)):
                with pytest.raises(harness.Unverified):
                    harness.measure(transform_but(at, by), Clock())
    finally:
        for cached in (fft64.first_period, fft64.exact_period, fft64.exact_convolutions):
            cached.cache_clear()


def test_the_command_without_a_gpu(tmp_path, monkeypatch, capsys):
    assert command.main(["--list"]) == 0
    assert "fft64: " in capsys.readouterr().out
    monkeypatch.setattr(command, "absence", lambda index: "no GPU answers here")
    assert command.main(["fft64", "--out", str(tmp_path)]) == 1
    assert "cuda:0: no GPU answers here" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_only_what_can_be_tuned_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "absence", lambda index: None)
    with pytest.raises(SystemExit):
        command.main(["fft64", "--tune", "--out", str(tmp_path)])
    assert "fft64 has nothing to tune" in capsys.readouterr().err
    calls: list[tuple[str, Path]] = []
    monkeypatch.setattr(gemm, "tune", lambda out: calls.append(("tune", out)) or 3)
    monkeypatch.setattr(gemm, "main", lambda out: calls.append(("main", out)) or 0)
    assert command.main(["gemm", "--tune", "--out", str(tmp_path)]) == 3
    assert command.main(["gemm", "--out", str(tmp_path)]) == 0
    assert calls == [("tune", tmp_path), ("main", tmp_path)]


def test_a_part_of_a_study(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "absence", lambda index: None)
    calls: list[tuple[Path, object]] = []
    monkeypatch.setitem(gemm.PARTS, "shapes", lambda out, timer: calls.append((out, timer)) or 2)
    assert command.main(["gemm", "--part", "shapes", "--out", str(tmp_path)]) == 1
    assert calls == [(tmp_path, None)]
    for study, said in (("gemm", "parts: ladder, squares, shapes"), ("fft64", "parts: none")):
        with pytest.raises(SystemExit):
            command.main([study, "--part", "edges", "--out", str(tmp_path)])
        assert f"{study} has no part 'edges'; its {said}" in capsys.readouterr().err


# ---- the page ----

PAGE = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in fft64.KINDS)


def study_row(variant: str, us: float, ffts: int = 10_000, loads: str = "", **figures: float) -> harness.Row:
    machine = Clock().machine()
    op = "convolve64" if variant == "fused" else "fft64"
    library = {"D": "polygpu", "fused": "polygpu", "cuFFT": "cuFFT", "copy": "CuPy"}.get(variant, "study")
    params: dict[str, int | str] = {"variant": variant, "ffts": ffts}
    params |= {"loads": loads} if loads else {}
    measured = harness.measure(squares(op=op, library=library, params=params), Card())
    figures = {"us_median": us, "gbps": 1000.0, "copy_share": 0.5, "copy_gbps": 2900.0} | figures
    return dataclasses.replace(
        measured,
        machine={**machine, "kind": "gpu"},
        commit="c0ffee",
        dirty=False,
        median=1000 * us,
        figures=figures,
    )


def test_the_page_follows_the_rows():
    facts = {"blocks": 157, "loop_turns": 24, "shared_bytes": 33792, "registers": 23}
    rows = [
        study_row("A", 20, loads="coalesced", **facts, instructions_per_thread=310, bank_conflicts=20_000),
        study_row("A", 40, loads="literal", **facts),
        study_row("B", 8, loads="coalesced", blocks=625, registers=22, error_l2=1e-7, error_max=5e-7),
        study_row("B", 40, loads="literal"),
        study_row("cuFFT", 6, cufft_ratio=1.0, error_l2=9e-8, error_max=4e-7),
        study_row("copy", 5.5),
        study_row("fused", 500, 2**20, fft64.ONE, times_separate=2.5, error_l2=2e-7),
        study_row("D", 300, 2**20, cufft_ratio=1.02, occupancy=0.5, achieved_occupancy=0.47),
        row(op="ntt"),
    ]
    text = report.rewrite(PAGE, rows)
    for line in (
        "| A | blocks | 157 | 157 | 157 | yes |",
        "| A | shared memory, KB | 33 | 33 | 33 | yes |",
        "| A | registers a thread | 40 | 23 | 23 | no |",
        "| A | instructions a thread | 200 or 396 | 310 |  | yes, ? |",
        "| B | registers a thread | 20 | 22 |  | yes, ? |",
        "| C | loop turns a thread | 12 |  |  |  |",
        "| B | times as fast as A, 10,000 FFTs | 2 to 3 | 2.50 | 1.00 | yes, no |",
        "| B | times as fast as A, 2^20 FFTs | 2 to 3 |  |  |  |",
        "| D |  | 300 | 1000 | 50% | 1.02 |  |  |  |  |  | 50% | 47% |  |  |  |",
        "| A | coalesced | 20.0 | 1000 | 50% |  | 157 |  | 24 | 33.0 | 23 |  |  | 310 |  | 2.0 |",
        "| cuFFT | 9.00e-08 | 4.00e-07 |",
        "| one filter | polygpu, fused | 500 |",
        "2.50x | 2.00e-07 |",
    ):
        assert line in text, line
    assert (
        text.index("| copy |  | 5.50")
        < text.index("| cuFFT |  | 6.00")
        < text.index("| B | coalesced | 8.00")
    )
    assert text.count("A Card, 80 GB, copy 2900 GB/s, driver 580, CUDA 13.0, CuPy 14.0; ") == 4
    assert report.rewrite(text, rows) == text
    assert report.rewrite(PAGE, [row(op="ntt")]).count("Nothing has been measured yet.") == 4


GEMM_PAGE = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in gemm.KINDS)


def gemm_row(
    variant: str, us: float, n: int, shape: str = "", card: str = "A", **figures: float
) -> harness.Row:
    """A row as if measured; TFLOPS and the rest follow from the time."""
    params: dict[str, int | str] = {"variant": variant, "n": n}
    params |= {"shape": shape} if shape else {}
    library = "cuBLAS" if variant in gemm.CUBLAS else "study"
    op = "gemm shape" if shape else "gemm"
    measured = harness.measure(squares(op=op, library=library, params=params), Card())
    tflops = 2e-6 * n**3 / us
    figures = {
        "ms_mean": us / 900,
        "ms_median": us / 1000,
        "tflops": tflops,
        "gbps": 12e-3 * n**2 / us,
        "peak_share": tflops / 50,
        "error_l2": 3e-7,
        "error_max": 2e-6,
    } | figures
    machine = {**Clock().machine(), "kind": "gpu", "name": card}
    return dataclasses.replace(
        measured, machine=machine, commit="c0ffee", dirty=False, median=1000 * us, figures=figures
    )


def test_the_page_of_matrix_products_follows_the_rows():
    first, second = [k.shape for k in gemm.SHAPES if k.variant == "pipeline"][:2]
    facts = {"blocks": 64, "threads": 256, "registers": 128, "shared_bytes": 33792, "occupancy": 0.25}
    rows = [
        gemm_row("FP32", 50, 1024),
        gemm_row("TF32", 10, 1024, error_l2=3e-4),
        gemm_row("8 x 4 entries", 200, 1024),
        gemm_row("pipeline", 80, 1024, **facts),
        gemm_row("WMMA", 400, 2048, error_l2=3e-4, error_max=1e-3),
        gemm_row("FP16", 25, 2048),
        gemm_row("mma.sync", 50, 2048),
        gemm_row("pipeline", 82, 1024, first),
        gemm_row("pipeline", 80, 1024, second),
        gemm_row("pipeline", 500, 2048, first),
        gemm_row("pipeline", 400, 2048, second),
        row(op="ntt"),
    ]
    text = report.rewrite(GEMM_PAGE, rows)
    for line in (
        "| 1024 | Shared-memory | 0.77 | 2.78 | 2.79 | 16.3 | 16.3 | 15% | 0.222 | 10.7 | 26.8 | 42.9 |",
        "| 2048 | Shared-memory | 3.43 | 5.01 | 5.01 | 14.7 | 14.7 | 27% |  |  |  |  |",
        "| 2048 | Tensor Core (FP16) | 3.35 | 5.12 | 5.13 | 10 | 10.0 | 28% | 0.444 | 42.9 | 344 | 687 |",
        "| 4096 | Shared-memory | 21.23 | 6.47 | 6.47 | 9.48 | 9.48 | 35% |  |  |  |  |",
        "| 4096 | Tensor Core (FP16) | 18.18 | 7.56 | 7.56 | 7.38 | 7.38 | 41% |  |  |  |  |",
        "| pipeline | 0.08889 | 0.08 | 26.8 | 157 | 54% | 62% | 64 | 256 | 128 | 33.0 | 25% |",
        "| cuBLAS TF32 | 0.01111 | 0.01 | 215 | 1258 | 429% | 100% |  |  |  |  |  |",
        "| mma.sync | 0.05556 | 0.05 | 344 | 1007 | 687% | 50% |  |  |  |  |  |",
        f"| pipeline | {first} | 26.2 | 34.4 |",
        f"| pipeline | {second} | 26.8* | 42.9* |",
        "| cuBLAS TF32 | 3.00e-04 | 2.00e-06 |",
    ):
        assert line in text, line
    assert text.index("| 8 x 4 entries | 0.2222") < text.index("| pipeline | 0.08889")
    assert "WMMA" not in text[text.index("Errors against") :]  # not of the size that is verified in full
    assert report.rewrite(text, rows) == text
    assert report.rewrite(GEMM_PAGE, [row(op="ntt")]).count("Nothing has been measured yet.") == 8


def modular_row(op: str, ms: float, figures: dict[str, float], **params: int | str) -> harness.Row:
    """A row as if measured."""
    measured = harness.measure(squares(op=op, library="polygpu", params=params), Card())
    machine = {**Clock().machine(), "kind": "gpu"}
    return dataclasses.replace(
        measured, machine=machine, commit="c0ffee", dirty=False, median=1e6 * ms, figures=figures
    )


def product_row(
    op: str, q: str, sizes: tuple[int, ...], way: str, ms: float, **figures: float
) -> harness.Row:
    batch, m, k, n = sizes
    named = {"q": q} if q else {}
    rate = {"tmodmul": batch * m * k * n / ms / 1e9} if q else {}
    return modular_row(op, ms, rate | figures, **named, batch=batch, m=m, k=k, n=n, way=way)


def test_the_page_of_modular_products_follows_the_rows():
    large, thin, poly = (1, 4096, 4096, 4096), (1, 64, 4096, 4096), (1, 64, 64, 64)
    sizes = {"degree": 4096, "limbs": 4, "bits": 30, **dict(zip(("batch", "m", "k", "n"), poly, strict=True))}
    rows = [
        product_row("matmul", "2^31 - 1", (1, 1024, 1024, 1024), "integer", 0.25, taken=0),
        product_row("matmul", "2^31 - 1", large, "integer", 20, taken=0),
        product_row("matmul", "2^31 - 1", large, "residues", 2, taken=1, int8_tops=619.0),
        product_row("matmul", "2^31 - 1", large, "matmul", 2.1, taken=1, int8_tops=589.0),
        product_row("matmul", "2^60 - 93", large, "matmul", 6.5, taken=1),
        product_row("matmul", "", large, modular.CUBLAS, 0.1, int8_tops=1374.0),
        product_row("matmul shape", "2^60 - 93", thin, "integer", 2, taken=0),
        product_row("matmul shape", "2^60 - 93", thin, "residues", 1, taken=0),
        product_row("matmul shape", "2^60 - 93", thin, "limbs", 1.3, taken=1),
        product_row("matmul shape", "2^31 - 1", thin, "integer", 2, taken=1),
        modular_row("matmul points", 1, {"tmodmul": 4.3}, **sizes, way=modular.EVALUATED),
        modular_row("matmul points", 12, {"tmodmul": 0.4}, **sizes, way=modular.SUM),
        modular_row(
            "matmul points", 3, {"tmodmul": 1.4}, **(sizes | {"m": 1, "n": 1}), way=modular.EVALUATED
        ),
        *(
            modular_row("toeplitz", 1, {"ps": ps}, q=q, degree=64, batch=1000, way=way)
            for q, way, ps in (
                ("2^31 - 1", "ntt", 90.0),
                ("2^31 - 1", "fft", 24.0),
                ("2^31 - 1", "matrix", 10.6),
                ("2^31 - 1", "auto", 10.7),
                ("2^32", "fft", 30.0),
            )
        ),
        row(op="ntt"),
    ]
    text = report.rewrite(GEMM_PAGE, rows)
    for line in (
        "| 4096 | integer | 20.0 | 3.44 |  | 0.800x |  |",
        "| 4096 | residues | 2.00 | 34.4 | 619 | 8.00x |  |",
        "| 4096 | matmul (residues) | 2.10 | 32.7 | 589 | 7.62x | 25 / 35 |",
        "| 4096 | cuBLAS int8 | 0.100 |  | 1374 |  |  |",
        "| 4096 | matmul | 6.50 | 10.6 |  |  | 10 / 20 |",
        "| 64 x 4096 by 4096 x 4096 | 2^60 - 93 | 2.00 | 1.30 | 1.00 | 1.07 | residues | limbs | 1.30 |",
        "| 64 x 4096 by 4096 x 4096 | 2^31 - 1 | 2.00 |  |  | 0.537 | integer | integer | 1.00 |",
        "| 64 x 64 by 64 x 64 | 4096, 4 of 30 bits | 1.00 |  | 12.0 | 4.30 | 12.0x | 5x |",
        "| 1 dot products of 64 | 4096, 4 of 30 bits | 3.00 |  |  | 1.40 |  |  |",
        "| 64 | 90.0 | 24.0 | 10.6 | 10.7 | matrix |",
        "| 64 |  | 30.0 |  |  | fft |",
    ):
        assert line in text, line
    assert text.index("q = 2^31 - 1, N x N") < text.index("q = 2^60 - 93, N x N")
    assert text.index("q: 2^32, ps") < text.index("q: 2^31 - 1, ps")  # in the order of the study
    assert report.rewrite(text, rows) == text
    assert text.count("Nothing has been measured yet.") == 4  # the ladder's


def test_held():
    assert fft64.held(30, [(40, 40)]) and fft64.held(50, [(40, 40)])
    assert not fft64.held(29.9, [(40, 40)]) and not fft64.held(50.1, [(40, 40)])
    assert fft64.held(1.5, [(2, 3)]) and fft64.held(3.75, [(2, 3)]) and not fft64.held(1.4, [(2, 3)])
    assert fft64.held(0, [(0, 0)]) and not fft64.held(1, [(0, 0)])
    assert fft64.held(396, [(200, 200), (396, 396)])


def test_every_study_has_its_page():
    assert {path.stem for path in report.PAGES if path.parent.name == "studies"} == set(command.STUDIES)
    for path in report.PAGES:
        assert Path(path).exists()
