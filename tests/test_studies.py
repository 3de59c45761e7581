"""Kernels of the studies on the simulated card, and what a study makes of its measurements."""

from __future__ import annotations

import dataclasses
import shutil
import sys
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
from benchmarks.studies import fft64, kernel, ncu
from polygpu import backends

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the CUDA simulator compiles with g++, which is not installed"
)
ORDERS = ("forward", "reverse", "random")
TOOLKIT_HEADERS = kernel.toolkit_headers


@pytest.fixture(autouse=True)
def _own_headers(monkeypatch):
    """Kernels compiled under one simulation are not those of the next; mma.h is the simulator's."""
    monkeypatch.setattr(kernel, "toolkit_headers", lambda: ())
    for cached in (fft64.kernels, backends.load):
        cached.cache_clear()
    yield
    for cached in (fft64.kernels, backends.load):
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


CHECKED = """
import numpy as np
from cudasim import simulated_cuda
from benchmarks.studies import fft64, kernel
kernel.toolkit_headers = lambda: ()
"""


def test_races():
    """None in each shape, with either kind of loads; one in the note's, as drawn."""
    if reason := check.missing("thread"):
        pytest.skip(f"thread sanitizer: {reason}")
    root = str(harness.ROOT)
    environment = {"PYTHONPATH": root}
    right = check.run_code(
        "thread",
        CHECKED
        + """
loads = {"A": "coalesced", "B": "literal", "C": "coalesced", "E FP16": "coalesced", "E TF32": "coalesced"}
fft64.SHAPES = tuple(s for s in fft64.SHAPES if loads.get(s.variant) == s.loads)
for shape in fft64.SHAPES:
    with simulated_cuda() as cupy:
        x = np.ones((3, 64), np.complex64)
        y = cupy.empty_like(cupy.asarray(x))
        fft64.own(shape, 3).run(cupy.asarray(x), y)
        assert abs(y.get() - np.fft.fft(x)).max() < 1e-4
""",
        environment=environment,
    )
    assert right.clean, right
    drawn = check.run_code(
        "thread",
        CHECKED
        + """
with simulated_cuda() as cupy:
    name = "fft64_stages<16, 64, false, true, false>"
    x = cupy.zeros((16, 64), np.complex64)
    kernel.load("fft64.cu", [name])[name]((1,), (16, 64), (x, x, np.int32(16)))
""",
        environment=environment,
    )
    assert drawn.returncode == 0, drawn
    assert any("data race" in text and "fft64_stages" in text for text in drawn.reports), drawn


@pytest.mark.skipif(nvrtc.library_path() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize("file", ["fft64.cu", "fft64_tensor.cu"])
def test_kernels_compile(file):
    """Without spills, and with all the blocks on a multiprocessor that their threads allow, or three."""
    headers = nvrtc.library_path().parents[1] / "include"
    if file == "fft64_tensor.cu" and not (headers / "crt" / "mma.h").exists():
        pytest.skip("mma.h is not installed: pip install nvidia-cuda-runtime nvidia-cuda-crt")
    shapes = [shape for shape in fft64.SHAPES if shape.file == file]
    code = (kernel.KERNELS / file).read_text()
    usages = nvrtc.Compiler().compile_code(
        file, code, {}, [shape.expression for shape in shapes], 90, (kernel.KERNELS, headers)
    )
    for shape in shapes:
        usage = usages[shape.expression]
        assert usage.spilled == 0
        assert H100.resident(shape.threads, usage.registers, 0) >= (2 if shape.threads == 1024 else 3)


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
