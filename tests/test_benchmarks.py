"""The benchmarks do not time wrong results, their rows are complete, and the tables match the rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from devices import needs_compiler, simulated, use
from verbs import VERBS

import polygpu as pg
from benchmarks import (
    batches,
    bootstrap,
    calls,
    compare,
    conversions,
    cpu,
    distributed,
    first,
    gpu,
    harness,
    kinds,
    lattice,
    packing,
    peers,
    polynomials,
    products,
    report,
    retrieval,
    tfhe,
    verbs,
    ways_in,
)
from benchmarks.harness import Case, Machine, Row, Unverified, measure, record
from benchmarks.matrices import residues
from polygpu import _cpu
from polygpu._bench import timing
from polygpu._core.processors import allowed_processors

pytestmark = pytest.mark.tools

PARAMS: dict[str, int | str] = {"n": 8, "bits": 30, "limbs": 1, "batch": 1}
PAGE = """# Figures

<!-- table: cpu-product -->
<!-- end: cpu-product -->

Between.

<!-- table: cpu-ntt -->
<!-- end: cpu-ntt -->
"""


class Card:
    """A device on which every call takes a microsecond; in each tenth sample it takes four."""

    warm_up_ns, total_ns = timing.WARM_UP_NS, timing.TOTAL_NS

    def __init__(self) -> None:
        self.samples = self.rests = 0

    def rest(self) -> None:
        self.rests += 1

    def elapsed(self, run: Callable[[], Any], loops: int) -> float:
        run()
        self.samples += 1
        return loops * (4000.0 if self.samples % 10 == 0 else 1000.0)

    def machine(self) -> Machine:
        return {"kind": "gpu", "name": "A Card, 80 GB", "clock_ghz": 1.98}


def squares(**changes: Any) -> Case:
    """Squaring 0..7, by NumPy."""
    x = np.arange(8, dtype=np.uint64)
    case = Case(
        op="product",
        library="NumPy",
        params=PARAMS,
        run=lambda: x * x,
        verify=lambda c: c.tolist() == [i * i for i in range(8)],
        work=8,
    )
    return dataclasses.replace(case, **changes)


def test_measure_rests_or_loads_the_device_first():
    rested, loaded = Card(), Card()
    measure(squares(), rested)
    measure(squares(load_ns=1e9), loaded)
    assert rested.rests == loaded.rests == 1
    assert loaded.samples > 2500 + rested.samples  # a second of samples of 256 to 1024 us


def row(**changes: Any) -> Row:
    """A row as if measured on some CPU."""
    machine: dict[str, str | int | float] = {
        "kind": "cpu",
        "name": "Some CPU",
        "cores": 1,
        "clock_ghz": 4.0,
        "clock_source": "test",
        "isa": "portable",
    }
    measured = measure(squares(), Card())
    own: dict[str, Any] = {"machine": machine, "commit": "c0ffee", "dirty": False, **changes}
    return dataclasses.replace(measured, **own)


def test_measure_of_a_wrong_result_raises() -> None:
    card = Card()
    with pytest.raises(Unverified, match="wrong"):
        measure(squares(verify=lambda _: False), card)
    assert card.samples == 0


def test_measure_of_a_changing_result_raises() -> None:
    x = np.arange(8, dtype=np.uint64)

    def twice_in_place() -> Any:
        return np.multiply(x, 2, out=x)

    with pytest.raises(Unverified, match="changed"):
        measure(squares(run=twice_in_place, verify=lambda c: c[1] == 2), Card())


def test_row_has_every_field() -> None:
    measured = measure(squares(), packages=("numpy", "no-such-distribution"))
    assert measured.q1 <= measured.median <= measured.q3
    assert measured.samples >= timing.SAMPLES
    assert measured.ps_per_coefficient == pytest.approx(1000 * measured.median / 8, abs=20)
    assert measured.unit == "ns"
    assert measured.verified is True
    assert set(measured.versions) == {"python", "numpy", "polygpu"}
    machine = measured.machine
    assert set(machine) == {"kind", "name", "cores", "clock_ghz", "clock_source", "isa"}
    assert machine["isa"]
    assert measured.commit


def test_statistics_come_from_the_timer() -> None:
    measured = measure(squares(), Card())
    assert (measured.median, measured.q1, measured.q3) == (1000, 1000, 1000)
    assert measured.ps_per_coefficient == 125_000
    assert measured.loops == 256  # the least power of two whose sample takes 200 us
    assert measured.loops * measured.median * measured.samples < timing.TOTAL_NS
    assert measured.machine["kind"] == "gpu"


def test_digest_depends_only_on_the_values() -> None:
    x = np.array([[0, 1], [2**31, 7]], dtype=np.uint64)
    expected = hashlib.sha256(struct.pack("<4Q", 0, 1, 2**31, 7)).hexdigest()[:16]
    for same in (x, x.astype(np.uint32), x.astype(object), x.ravel(), np.asfortranarray(x)):
        assert timing.digest(same) == expected
    assert timing.digest(x.T) != expected


def test_record_writes_json_lines(tmp_path: Path) -> None:
    first, second = (measure(squares(op=op), Card()) for op in ("product", "ntt"))
    paths = {record(first, tmp_path), record(second, tmp_path)}
    assert paths == {tmp_path / f"{first.date[:10]}-a-card-80-gb.jsonl"}
    lines = paths.pop().read_text().splitlines()
    assert [json.loads(line)["op"] for line in lines] == ["product", "ntt"]
    assert harness.rows(tmp_path) == [first, second]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_and_dirty_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    checkout = harness.checkout.__wrapped__
    assert checkout() == ("unknown", None)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=first")
    commit, dirty = checkout()
    assert len(commit) == 40
    assert dirty is False
    results = tmp_path / "benchmarks" / "results" / "day.jsonl"
    results.parent.mkdir(parents=True)
    results.touch()
    assert checkout() == (commit, False)
    (tmp_path / "code.py").touch()
    assert checkout() == (commit, True)


def test_report_is_idempotent_and_detects_edits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for library, median in (("python-flint", 5000.0), ("polygpu", 50.0)):
        record(row(library=library, median=median), tmp_path)
    run = ["--results", str(tmp_path), str(page)]

    assert report.main(["--check", *run]) == 1
    assert page.read_text() == PAGE
    assert report.main(run) == 0
    written = page.read_text()
    assert "| 8 | 0.0500 (100x) | 5.00 (1.00x) |" in written
    assert "Some CPU" in written
    assert "commit c0ffee" in written
    assert "Between." in written
    assert report.main(run) == 0
    assert page.read_text() == written
    assert report.main(["--check", *run]) == 0

    page.write_text(written.replace("100x", "200x"))
    capsys.readouterr()
    assert report.main(["--check", *run]) == 1
    assert str(page) in capsys.readouterr().out


def test_benchmark_modules_have_no_cyclic_imports() -> None:
    folder = Path(report.__file__).parent
    imports = {
        path.stem: {
            name
            for found in re.findall(r"^ *from \.(\w*) import (\([^)]*\)|.*)", path.read_text(), re.MULTILINE)
            for name in ([found[0]] if found[0] else re.findall(r"\w+", found[1]))
        }
        for path in folder.glob("*.py")
    }
    while imports:
        ends = {module for module, targets in imports.items() if not targets & set(imports)}
        assert ends, imports
        imports = {module: targets for module, targets in imports.items() if module not in ends}


def test_prune_keeps_the_rows_of_tables(tmp_path: Path) -> None:
    shutil.copytree(report.RESULTS, tmp_path / "results")
    assert report.prune(tmp_path / "results") == 0, "python -m benchmarks.report --prune removes the others"
    old, new = row(date="2026-01-01T00:00:00+00:00"), row(date="2026-01-02T00:00:00+00:00")
    for one in (old, new, dataclasses.replace(new, op="no table has this")):
        record(one, tmp_path)
    assert report.prune(tmp_path) == 2
    assert report.read_rows(tmp_path) == [new]


def test_report_shows_the_newest_row_and_marks_dirty_trees() -> None:
    old = row(date="2026-01-01T00:00:00+00:00", median=1000.0)
    new = dataclasses.replace(old, date="2026-01-02T00:00:00+00:00", median=2000.0, dirty=True)
    wrong = dataclasses.replace(new, date="2026-01-03T00:00:00+00:00", verified=False)
    elsewhere = dataclasses.replace(old, machine={**old.machine, "name": "Another CPU"})
    assert report.newest([old, elsewhere, new, wrong]) == [elsewhere, new]
    text = report.rewrite(PAGE, report.newest([old, new, wrong]))
    assert "| 8 | 2.00 |" in text
    assert "2026-01-02 at commit c0ffee with uncommitted changes" in text
    assert "2026-01-01" not in text


def test_compare_lists_what_is_slower_beyond_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of rows in both files those count that are slower by 10 % and whose quartiles do not overlap."""

    def saved(name: str, medians: dict[str, float]) -> Path:
        for op, median in medians.items():
            path = record(row(op=op, median=median, q1=median - 1, q3=median + 1), tmp_path / name)
        return path

    old = saved("old", {"faster": 100, "equal": 100, "slower": 100, "slightly": 100, "noisy": 100, "gone": 1})
    new = saved("new", {"faster": 50, "equal": 101, "slower": 150, "slightly": 109, "added": 1})
    record(row(op="noisy", median=130.0, q1=90.0, q3=200.0), new.parent)
    assert compare.main([str(old), str(new)]) == 1
    shown = capsys.readouterr().out
    assert (
        re.findall(r"ns  (\w+) ", shown) == ["slower"]
        and "rows in both files: 5; slower by at least 10 %: 1" in shown
    )
    assert compare.main([str(old), str(new), "--least", "5", "--all"]) == 1
    shown = capsys.readouterr().out
    ratios = re.findall(r"^ *(\d\.\d\d) .* ns  (\w+) ", shown, re.M)
    assert ratios == [
        ("1.50", "slower"),
        ("1.30", "noisy"),
        ("1.09", "slightly"),
        ("1.01", "equal"),
        ("0.50", "faster"),
    ]
    assert "slower by at least 5 %: 2" in shown
    assert compare.main([str(new), str(new)]) == 0 and "10 %: 0" in capsys.readouterr().out


def test_report_raises_for_unknown_or_unclosed_tables() -> None:
    with pytest.raises(ValueError, match="gpu-nothing"):
        report.rewrite("<!-- table: gpu-nothing -->\n<!-- end: gpu-nothing -->\n", [])
    with pytest.raises(ValueError, match="no end"):
        report.rewrite("<!-- table: cpu-ntt -->\n<!-- end: cpu-product -->\n", [])


@pytest.mark.parametrize("bits", cpu.PRIME_BITS)
def test_oracle_evaluations_match_the_definition(bits: int) -> None:
    w = polynomials.Workload(16, bits)
    expected = [
        sum(int(x) * pow(w.psi, (2 * k + 1) * j, w.q) for j, x in enumerate(w.a)) % w.q
        for k in polynomials.bit_reversal(16).tolist()
    ]
    assert polynomials.evaluations(w.a, w.psi, w.q).tolist() == expected
    right = product_by_definition(w.a, w.b, w.q)
    assert w.is_product(right)
    wrong = right.copy()
    wrong[3] ^= 1
    assert not w.is_product(wrong)
    not_canonical = right.astype(object)
    not_canonical[3] += w.q
    assert not w.is_product(not_canonical)


@pytest.mark.parametrize("bits", cpu.PRIME_BITS)
def test_fft_splitting_is_exact_at_the_largest_coefficients(bits: int) -> None:
    w = polynomials.Workload(64, bits)
    a = np.full(64, w.q - 1, dtype=np.uint64)
    for b in (a, w.b):
        expected = product_by_definition(a, b, w.q)
        assert cpu.fft_product(a, b, w.q).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", cpu.PRECISIONS)
def test_verification_rejects_wrong_ffts(dtype: str) -> None:
    w = cpu.Batch(dtype)
    right = np.fft.fft(w.x)
    assert w.is_transform(right)
    assert not w.is_transform(right.conj())
    assert not w.is_transform(right.astype("complex64" if dtype == "complex128" else "complex128"))
    wrong = right.copy()
    wrong[-1, 5] *= 1 + 64 * np.finfo(dtype).eps
    assert not w.is_transform(wrong)


def test_report_tables_of_ffts() -> None:
    page = "<!-- table: cpu-fft -->\n<!-- end: cpu-fft -->\n"
    rows = [
        row(op="fft64", library=library, median=median, params={"n": 64, "batch": 1000, "dtype": dtype})
        for library, dtype, median in (
            ("scipy.fft", "complex128", 120_000.0),
            ("polygpu", "complex128", 30_000.0),
            ("scipy.fft", "complex64", 80_000.0),
            ("polygpu", "complex64", 16_000.0),
            ("numpy.fft", "complex64", 160_000.0),
        )
    ]
    text = report.rewrite(page, [*rows, row(op="ntt")])
    assert "batches of 1000" in text
    assert "| library | complex64 | complex128 |" in text
    assert "| polygpu | 16.0 (5.00x) | 30.0 (4.00x) |\n| scipy.fft | 80.0 (1.00x) |" in text
    assert "| numpy.fft | 160 (0.500x) |  |" in text
    assert "Nothing has been measured yet." in report.rewrite(page, [row(op="ntt")])
    assert report.rewrite(PAGE, rows).count("Nothing has been measured yet.") == 2


def test_report_tables_of_matrix_products() -> None:
    page = "<!-- table: cpu-matmul -->\n<!-- end: cpu-matmul -->\n"
    rows = [
        row(op="matmul", library=library, median=median, params=PARAMS | {"n": n, "bits": bits})
        for library, median, n, bits in (
            ("polygpu", 2e6, 128, 30),
            ("python-flint", 9e6, 128, 30),
            ("polygpu", 3e8, 1024, 60),
        )
    ]
    text = report.rewrite(page, [*rows, row(op="ntt")])
    assert "| 128 | 2.00 (4.50x) | 9.00 (1.00x) |" in text and "| 1024 | 300 |" in text
    assert "**30-bit prime: product of N x N matrices, ms" in text
    assert report.rewrite(PAGE, rows).count("Nothing has been measured yet.") == 2


@pytest.mark.parametrize("bits", cpu.MATRIX_PRIMES)
def test_verification_rejects_wrong_matrix_products(bits: int) -> None:
    """One wrong entry is not sampled by itself, and one is right modulo q but not canonical."""
    product = cpu.Square(16, bits).product
    q, (a, b) = cpu.MATRIX_PRIMES[bits], (x[0].astype(object) for x in (product.a, product.b))
    right = a.dot(b) % q
    seen = {(i, j) for _, i, j in zip(*(x.tolist() for x in product.places), strict=True)}
    assert len(seen) == 64 and max(map(np.max, (a, b))) < q
    unseen = next(at for at in np.ndindex(right.shape) if at not in seen)
    dtype = product.a.dtype
    for at in (unseen, min(seen)):
        wrong, above = right.copy(), right.copy()
        wrong[at] = (wrong[at] + 1) % q
        above[at] += q
        told = [product.holds(product.values(c.astype(dtype))) for c in (right, wrong, above)]
        assert told == [True, False, False]


@pytest.mark.parametrize("q", [2, 3, 12289, 2**31 - 1, 2**32, 2**60 - 93])
def test_random_residues(q: int) -> None:
    x = residues(np.random.default_rng(1), q, (3, 5000))
    assert x.dtype == (np.uint32 if q <= 2**32 else np.uint64)
    assert 0.99 * q <= int(x.max()) + 1 <= q and int(x.min()) < 0.01 * q


def test_quick_run_of_all_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "QUICK", (16,))
    monkeypatch.setattr(cpu, "QUICK_MATRICES", (24,))
    hurry(monkeypatch)
    cpu.main(["--quick", "--only", "libraries", "--out", str(tmp_path)])
    rows = harness.rows(tmp_path)
    assert {r.op for r in rows if r.library == "polygpu"} == {"product", "ntt", "intt", "fft64", "matmul"}
    batches = [r for r in rows if r.op == "fft64"]
    assert {(r.library, r.params["dtype"]) for r in batches} >= {
        (library, dtype) for library in ("polygpu", "numpy.fft") for dtype in cpu.PRECISIONS
    }
    matrices = [r for r in rows if r.op == "matmul"]
    assert {(r.library, r.params["bits"]) for r in matrices} >= {
        ("polygpu", bits) for bits in cpu.MATRIX_PRIMES
    }
    assert len({(r.params["bits"], r.digest) for r in matrices}) == len(cpu.MATRIX_PRIMES)
    rows = [r for r in rows if r.op not in ("fft64", "matmul")]
    assert {r.params["bits"] for r in rows} == set(cpu.PRIME_BITS)
    digests = {(r.op, r.params["bits"], r.digest) for r in rows}
    assert len(digests) == 3 * len(cpu.PRIME_BITS)  # one for each op and prime, in any library
    lines = capsys.readouterr().out.splitlines()
    assert any("30-bit prime: NTT" in line for line in lines)


def test_absent_libraries_are_reported_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "QUICK", (16,))
    monkeypatch.setattr(cpu, "LIBRARIES", (("no_such_module", cpu.flint_cases),))
    monkeypatch.setattr(cpu, "BATCH_LIBRARIES", ())
    monkeypatch.setattr(cpu, "SQUARE_LIBRARIES", ())
    cpu.main(["--quick", "--only", "libraries", "--out", str(tmp_path)])
    assert "no_such_module: not installed, skipped" in capsys.readouterr().out


@pytest.mark.parametrize("bits", cpu.PRIME_BITS)
def test_numba_is_right_at_the_largest_coefficients(bits: int) -> None:
    pytest.importorskip("numba")
    w = polynomials.Workload(64, bits)
    w.__dict__["a"] = np.full(64, w.q - 1, dtype=np.uint64)
    for case in cpu.numba_cases(w):
        assert case.verify(case.values(case.run())), case


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time only as long as a figure needs."""
    monkeypatch.setattr(harness.WallClock, "warm_up_ns", 0)
    monkeypatch.setattr(harness.WallClock, "total_ns", 0)
    monkeypatch.setattr(timing, "SAMPLE_NS", 1)


def test_on_cores_restores_cores_and_threads_after_an_error() -> None:
    pg._backends.get_backend("cpu")
    before = allowed_processors(), _cpu.num_threads()
    with pytest.raises(ZeroDivisionError), harness.on_cores(1):
        assert (allowed_processors(), _cpu.num_threads()) == (1, 1)
        raise ZeroDivisionError
    assert (allowed_processors(), _cpu.num_threads()) == before


# ---- between bases of moduli, integers and samples ----

FEW = conversions.Sizes(
    degree=16,
    limbs=6,
    special=3,
    sources=(3, 4),
    read=16,
    written=16,
    samples=(8, 3),
    point=64,
    inverted=7,
    bfv=16,
    passes=2,
)
CONVERSION_PAGE = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in conversions.KINDS)


def notices(case: Case) -> bool:
    """Whether the result is right, and refused when it is wrong in one of three places."""
    right = case.values(case.run()).copy()
    assert case.verify(right), case
    for at in {0, right.size // 3, right.size - 1}:
        wrong = right.copy()
        wrong.reshape(-1)[at] ^= 1
        if case.verify(wrong):
            return False
    return True


def test_verification_rejects_wrong_conversions_and_samples() -> None:
    cases = list(conversions.cpu_cases(FEW))
    assert all(map(notices, cases))
    beside = {line.beside for line in conversions.CPU_LINES} - {""}
    assert {case.op for case in cases} == {line.op for line in conversions.CPU_LINES} | beside


@needs_compiler
@pytest.mark.parametrize("bits", gpu.PRIME_BITS)
def test_verification_of_conversions_in_cuda_graphs(bits: int) -> None:
    with use("simulated") as device, pg.device("cpu"):
        cases = [*conversions.gpu_cases(device, bits, FEW)]
        cases += conversions.sampler_cases(device, FEW, few=True)
        assert all(map(notices, cases))
        assert all(case.calls == conversions.GRAPH_CALLS for case in cases[:-3])
    words = {case.params["word"] for case in cases[:-3]}
    assert words == {{30: "u32", 50: "f64", 60: "u64"}[bits]}
    beside = {line.beside for line in conversions.GPU_LINES} - {""}
    assert {case.op for case in cases} == {line.op for line in conversions.GPU_LINES} | beside


def test_quick_run_and_table_of_conversions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conversions, "QUICK", FEW)
    hurry(monkeypatch)
    cpu.main(["--quick", "--only", "conversions", "--out", str(tmp_path)])
    rows = harness.rows(tmp_path)
    assert {r.params["run"] for r in rows} == {1, 2}
    assert {r.op for r in rows} <= conversions.OPS and len(rows) == len(
        {str(r.params) + r.op + r.library for r in rows}
    )
    assert all(r.machine["cores"] == 1 for r in rows)
    inverses = [r for r in rows if r.op == "poly.inverse"]
    assert {r.library for r in inverses} == {"polygpu", "python-flint"} and len(
        {r.digest for r in inverses}
    ) == 1
    text = report.rewrite(CONVERSION_PAGE, rows)
    for line in conversions.CPU_LINES:
        if line.only.get("limbs", 3) == 3:  # those of other sizes were not measured
            assert f"| {line.work} | N = " in text, line
    assert "Between bases of moduli" in capsys.readouterr().out
    assert report.rewrite(PAGE, rows).count("Nothing has been measured yet.") == 2


# ---- the ways in ----

FEW_WAYS = ways_in.Sizes(lists=(4, 8), large=4, limbs=3, rings=(1, 2), inverted=4, passes=2)


def test_verification_rejects_wrong_input_conversions() -> None:
    cases = list(ways_in.cases(FEW_WAYS))
    assert all(map(notices, cases))
    beside = {line.beside for line in ways_in.LINES} - {""}
    assert {case.op for case in cases} == {line.op for line in ways_in.LINES} | beside


def test_quick_run_and_table_of_input_conversions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ways_in, "QUICK", FEW_WAYS)
    hurry(monkeypatch)
    cpu.main(["--quick", "--only", "ways-in", "--out", str(tmp_path)])
    rows = harness.rows(tmp_path)
    assert {r.params["run"] for r in rows} == {1, 2} and all(r.machine["cores"] == 1 for r in rows)
    lists = [r for r in rows if r.op == "ring(nested list)"]
    assert {r.library for r in lists} == {"polygpu", "numpy"} and len({r.digest for r in lists}) == 1
    text = report.rewrite("<!-- table: cpu-ways-in -->\n<!-- end: cpu-ways-in -->\n", rows)
    assert all(f"| {line.work} | N = " in text for line in ways_in.LINES)
    assert "The ways in" in capsys.readouterr().out


# ---- key switches and gadgets ----

FEW_LATTICE = lattice.Sizes(
    rotation=(lattice.Shape(32, 4, 2, 2, 50),),
    switches=(lattice.Shape(16, 3, 1, 1, 30),),
    products=(1, 3),
    bootstraps=(),
    encoded=32,
    matrices=((lattice.Shape(32, 4, 2, 2, 50), 4, 2),),
    passes=2,
)
LATTICE_PAGE = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in lattice.KINDS)


@needs_compiler
@pytest.mark.parametrize("on", ["cpu", "simulated"])
def test_verification_rejects_wrong_key_switches_and_products(
    on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice, "MOST_CALLS", 2)
    with use(on) as device, pg.device("cpu"):
        cases = [case for group in lattice.cases(device, FEW_LATTICE) for case in group()]
        assert all(notices(case) for case in cases if case.params["batch"] == 1)
        assert all(case.verify(case.values(case.run())) for case in cases)
        if on == "simulated":
            lines = {line.op for line in lattice.GPU_LINES} | {line.beside for line in lattice.GPU_LINES} - {
                ""
            }
            assert {case.op for case in cases} == lines - {"bootstrap"}
            assert {case.calls for case in cases if case.op == "rotation"} == {lattice.MOST_CALLS}


def test_verification_decrypts_bootstraps() -> None:
    (case,) = lattice.bootstrap_cases("cpu", 4)
    right = case.values(case.run())
    assert case.verify(right)
    assert not case.verify(right[::-1])


def test_quick_run_and_table_of_ckks_bootstraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    assert bootstrap.main(["--quick", "--preset", "wide", "--results", str(tmp_path)]) == 0
    rows = harness.rows(tmp_path)
    for row in rows:  # as large as those of the lines
        row.params["n"] = 2**16
    text = report.rewrite("<!-- table: cpu-bootstrap -->\n<!-- end: cpu-bootstrap -->\n", rows)
    for work in ("CKKS bootstrap", "ModRaise", "CoeffToSlot", "EvalMod", "SlotToCoeff"):
        assert f"| {work} | N = 2^16, 23 + 6 limbs; 308 bits of log2 Q left" in text
    assert "its transforms alone, " in text and "keys and matrices copied, " in text
    monkeypatch.setitem(bootstrap.LEAST_BITS, "wide", 40.0)
    with pytest.raises(harness.Unverified, match="bits of the worst slot"):
        next(bootstrap.cases("wide", 10, "cpu"))


def test_quick_run_and_table_of_tfhe_bootstraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    assert tfhe.main(["--quick", "--results", str(tmp_path)]) == 0
    monkeypatch.setitem(tfhe.SETS, "quick", tfhe.QUICK)
    text = report.rewrite("<!-- table: cpu-tfhe -->\n<!-- end: cpu-tfhe -->\n", harness.rows(tmp_path))
    for name, cores in product(("key switch", "blind rotation", "bootstrap"), (1, 2)):
        assert f"| {name} | quick | {cores} | 2 | " in text
    for case in tfhe.cases("quick", 3, "cpu", 1):
        right = case.values(case.run())
        assert case.verify(right) and not case.verify(right + right.dtype.type(1 << 60)), case.op


def test_quick_run_and_table_of_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    assert packing.main(["--quick", "--results", str(tmp_path)]) == 0
    text = report.rewrite("<!-- table: cpu-packing -->\n<!-- end: cpu-packing -->\n", harness.rows(tmp_path))
    for name in packing.OPS:
        assert re.search(
            rf"\| {re.escape(name)} \| N = 64, \d \+ 1 limbs of 28 bits.* \| 2 \| .* ms \| \d", text
        )
    for case in packing.cases(packing.QUICK, "cpu", 1):
        right = case.values(case.run())
        assert case.verify(right) and not case.verify(right ^ right.dtype.type(1 << 26)), case.op


def test_quick_run_and_table_of_ring_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    assert kinds.main(["--quick", "--results", str(tmp_path)]) == 0
    text = report.rewrite("<!-- table: cpu-kinds -->\n<!-- end: cpu-kinds -->\n", harness.rows(tmp_path))
    for name in kinds.OPS.values():
        assert re.search(rf"\| {name} \| 64 (\| [\d.]+ \([\d.]+\) ){{{len(kinds.BITS)}}}\|", text)
    for case in kinds.cases(kinds.QUICK, "cpu", 1):
        right = case.values(case.run())
        assert case.verify(right) and not case.verify(right ^ right.dtype.type(1)), case.op


def test_quick_run_and_table_of_pir_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    assert retrieval.main(["--answers", "--quick", "--results", str(tmp_path)]) == 0
    text = report.rewrite("<!-- table: cpu-bytes -->\n<!-- end: cpu-bytes -->\n", harness.rows(tmp_path))
    assert re.search(r"\| 1 MiB \| packed \| .* \| \d+% \| 50% \| (yes|no) \|", text)


def test_quick_run_and_table_of_byte_matrix_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(retrieval, "QUICK", (256, 512))
    monkeypatch.setattr(retrieval, "MAPPED", 512)
    monkeypatch.setattr(retrieval, "ROWS", 256)
    assert retrieval.main(["--quick", "--results", str(tmp_path)]) == 0
    text = report.rewrite("<!-- table: cpu-bytes -->\n<!-- end: cpu-bytes -->\n", harness.rows(tmp_path))
    for cores, bits, vectors in product((1, 2), (32, 64), (1, 8, 32)):
        assert f"| 0 MiB | {cores} | 2^{bits} | {vectors} | " in text
    assert "| 80% of reading | " in text and "| 40 G products/s | " in text
    left = np.ones((8, 16), np.uint8)
    case = retrieval.product_case(left, left, 1, 2**64, {})
    right = case.values(case.run())
    assert case.verify(right) and not case.verify(right + np.uint64(1))
    case = retrieval.reading_case(left, left, {})
    assert case.verify(case.run()) and not case.verify(case.run() + np.uint64(1))


def test_transform_counts_of_a_key_switch() -> None:
    """With d = 2, l = 3 and p = 2 there are l + 2 p inverse and d (l + p) - l + 2 l forward transforms."""
    T = pg.Ring(16, pg.ntt_primes(16, bits=30, count=5))
    Q, P, s = T[:3], T[3:], T.ternary(seed=1)
    key = pg.lattice.switch_key(s, s * s, ring=Q, special=P, limbs_per_digit=2)
    with bootstrap.counting() as work:
        pg.lattice.key_switch(Q.random(4, seed=2).ntt(), key)
    assert (work.back, work.forth) == (4 * 7, 4 * 13) and work.nbytes == key.nbytes


def test_quick_run_and_table_of_key_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "QUICK", FEW_LATTICE)
    hurry(monkeypatch)
    assert lattice.main(["--quick", "--results", str(tmp_path)]) == 0
    rows = harness.rows(tmp_path)
    assert {row.params["run"] for row in rows} == {1, 2} and all(row.machine["cores"] == 1 for row in rows)
    for row in rows:  # as long as those of the lines
        row.params.update({"n": 2**13 if row.params.get("special") == 1 else 2**15, "limbs": 4})
    text = report.rewrite(LATTICE_PAGE, rows)
    for work in ("rotation", "8 rotations, hoisted", "relinearisation", "external product", "encode"):
        assert f"| {work} | N = " in text, work
    assert "4 + 2 limbs of 50 bits" in text and "transforms alone" in text


def test_run_reports_failed_cases_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lattice, "QUICK", FEW_LATTICE)
    monkeypatch.setattr(lattice, "external", lambda ggsw, c, bits: np.zeros((1, 2, 1024), object))
    hurry(monkeypatch)
    assert lattice.main(["--quick", "--results", str(tmp_path)]) == 1
    assert "external product" in capsys.readouterr().out
    assert {row.op for row in harness.rows(tmp_path)} >= {"rotation", "encode"}


def conversion_row(op: str, ns: float, **params: int | str) -> Row:
    own: dict[str, int | str] = {"n": 2**15, "bits": 50, "limbs": 12, "to": 11, "batch": 2}
    library = str(params.pop("library", "polygpu"))
    return row(op=op, library=library, params=own | params, median=ns)


def test_report_tables_of_conversions() -> None:
    digit: dict[str, int | str] = {"limbs": 3, "to": 12, "batch": 1}
    inverse: dict[str, int | str] = {"n": 701, "bits": 2, "limbs": 1, "to": 1, "batch": 1, "q": 3}
    rows = [
        *(conversion_row("rescale", ns, run=run) for run, ns in enumerate((1.9e6, 1.7e6, 9e6), 1)),
        *(conversion_row("rescale: transforms", ns, run=run) for run, ns in enumerate((9e5, 1e6, 8e6), 1)),
        conversion_row("mod_down", 9e6, **digit),  # without its transforms
        conversion_row("convert exact", 3.0e5, **digit),
        conversion_row("convert fast", 2.5e5, **digit),
        conversion_row("convert: transforms", 1e6, **digit),
        conversion_row("convert fast", 7e5, limbs=6, to=12, batch=1),  # without the exact one
        conversion_row("poly.inverse", 5e5, **inverse),
        conversion_row("poly.inverse", 2e5, library="python-flint", **inverse),
        dataclasses.replace(
            conversion_row("ternary", 2**16 * 2.5, n=2**12, limbs=1, to=1, batch=16), work=2**16
        ),
        row(op="ntt"),
    ]
    text = report.rewrite(CONVERSION_PAGE, rows)
    (body,) = [part for part in text.split("<!-- end: cpu-conversions -->") if "rescale" in part]
    lines = [line[2:-2].split(" | ") for line in body.splitlines() if line.startswith("| ")]
    ciphertext, three = (
        "N = 2^15, 12 to 11 limbs of 50 bits, 2 polynomials",
        "N = 2^15, 3 to 12 limbs of 50 bits",
    )
    alone, evaluated, flint = (
        "transforms alone, 1.00 ms",
        "transforms if evaluated, 1.00 ms",
        "FLINT, 0.200 ms",
    )
    many, one = "N = 2^12, 1 limb, 50 bits, 16 polynomials", "N = 701, 1 limb, 2 bits"
    assert lines[2:] == [
        ["rescale of a ciphertext", ciphertext, "1.90 ms", "2.4", alone, "1.70", "1.8", "yes"],
        ["convert, exact, of a digit", three, "0.300 ms", "", evaluated, "0.300", "0.35", "yes"],
        ["convert, exact", three, "0.300 ms", "", '"fast", 0.250 ms', "1.20", "1.4", "yes"],
        ["ternary", many, "2.50 ns a value", "2", "", "", "", "no"],
        ["inverse modulo 3 and X^N - 1", one, "0.500 ms", "", flint, "2.50", "2", "no"],
    ]
    assert text.count("Nothing has been measured yet.") == 1  # on a GPU
    card = {"kind": "gpu", "name": "Some GPU", "driver": "580", "cuda": "13.0", "cupy": "14.0"}
    on_gpu = [dataclasses.replace(r, machine=card) for r in (rows[0], rows[3])]
    both = report.rewrite(CONVERSION_PAGE, [*rows, *on_gpu])
    assert f"| {ciphertext} | 1900 us |  | transforms alone, 900 us | 2.11 | 1.8 | no |" in both
    assert "Some GPU, driver 580" in both and both.count("1.90 ms") == 1


def test_figures_of_conversions_contain_only_times() -> None:
    mod_down = dataclasses.replace(gpu_row("forward", 2**16, 50, 2.9), op="mod_down")
    found = gpu.with_figures(mod_down, 2900.0)
    assert set(found.figures) == {"us_median", "us_min"} and "mod_down, f64 50 bits" in gpu.describe(found)


# ---- the GPU's part that needs no GPU ----

GPU_PAGE = """# Figures

<!-- table: gpu-ntt -->
<!-- end: gpu-ntt -->

<!-- table: gpu-summary -->
<!-- end: gpu-summary -->
"""


NAMED = "NVIDIA H100 80GB HBM3"  # goals are of a card


def gpu_row(op: str, n: int, bits: int, ps: float, **changes: Any) -> Row:
    """A row as if measured on some GPU, of a batch with 2^20 coefficients in all."""
    word = {30: "u32", 31: "u32 BabyBear", 50: "f64", 60: "u64", 64: "Goldilocks, X^N - 1"}[bits]
    params: dict[str, int | str] = {"n": n, "word": word, "bits": bits, "limbs": 1, "batch": 2**20 // n}
    params |= {"word_bytes": 4 if bits < 32 else 8} | changes.pop("params", {})
    machine: dict[str, str | int | float] = {"kind": "gpu", "name": NAMED, "driver": "580"}
    machine |= {"cuda": "13.0", "cupy": "14.0"}
    measured = dataclasses.replace(
        measure(squares(op=op, library="polygpu", params=params), Card()),
        machine=machine,
        commit="c0ffee",
        dirty=False,
        work=2**20,
        median=ps * 2**20 / 1000,
        **changes,
    )
    return gpu.with_figures(measured, 2900.0)


def test_measure_with_several_calls_per_run() -> None:
    measured = measure(squares(calls=4), Card())
    assert (measured.median, measured.minimum, measured.loops) == (250, 250, 1024)


def test_rows_without_newer_fields_are_read(tmp_path: Path) -> None:
    path = record(row(), tmp_path)
    line = json.loads(path.read_text())
    del line["minimum"], line["figures"]
    path.write_text(json.dumps(line) + "\n")
    (read,) = harness.rows(tmp_path)
    assert read.minimum is None and read.figures == {}


def test_cuda_events_enclose_only_the_timed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self) -> None:
            self.name = f"event {len(log)}"
            log.append("made")

        def record(self) -> None:
            log.append(self.name)

        def synchronize(self) -> None:
            log.append("wait")

    properties = {"name": b"A Card", "major": 9, "minor": 0, "multiProcessorCount": 132}
    properties |= {"totalGlobalMem": 80, "l2CacheSize": 50}
    cuda = SimpleNamespace(
        Event=Event,
        Device=lambda: SimpleNamespace(id=0),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 1)),
        runtime=SimpleNamespace(
            getDeviceProperties=lambda index: properties, runtimeGetVersion=lambda: 13010
        ),
        get_elapsed_time=lambda start, stop: 1.5,
    )
    monkeypatch.setattr(timing, "gpu_driver", lambda: "580")
    timer = timing.CudaEvents(cupy=SimpleNamespace(cuda=cuda, __version__="14.0"))
    log.clear()
    assert timer.elapsed(lambda: log.append("run"), 2) == 1.5e6  # ms to ns
    assert log == ["run", "event 0", "run", "run", "event 1", "wait"]
    machine = timer.machine()
    assert (machine["kind"], machine["name"], machine["cuda"]) == ("gpu", "A Card", "13.1")
    assert (machine["driver"], machine["nvrtc"], machine["l2_bytes"]) == ("580", "13.1", 50)


@pytest.mark.parametrize("dry", [0, 2, calls.ATTEMPTS])
def test_host_time_is_measured_while_the_gpu_is_busy(dry: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `dry` attempts the card has nothing left to do before the last call."""
    log: list[str] = []

    class Event:
        def record(self) -> None:
            log.append("begun")

        @property
        def done(self) -> bool:
            return log.count("begun") <= dry

    device = SimpleNamespace(synchronize=lambda: log.append("wait"))
    cuda = SimpleNamespace(Event=Event, Device=lambda: device)
    spin = SimpleNamespace(cuda=cuda, RawKernel=lambda code, name: lambda *sizes: log.append("busy"))
    monkeypatch.setitem(sys.modules, "cupy", spin)
    timer = calls.HostTime({"kind": "gpu"})
    if dry == calls.ATTEMPTS:
        with pytest.raises(Unverified, match="3 calls take longer"):
            timer.elapsed(lambda: log.append("run"), 3)
        return
    assert 0 < timer.elapsed(lambda: log.append("run"), 3) < 1e9
    attempt = ["wait", "busy", "begun", "run", "run", "run"]
    assert log == attempt * (dry + 1) + ["wait"]


def test_verification_rejects_wrong_single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = host_workload(monkeypatch, pg.ntt_primes(32, bits=30, count=2))
    for case in calls.host_cases(w):
        assert case.params["launch"] == calls.HOST and case.verify(case.values(case.run())), case
        wrong = case.run()
        q = w.ring.moduli[1]
        wrong.data[0, 1, 3] = (int(wrong.data[0, 1, 3]) + 1) % q
        assert not case.verify(case.values(wrong)), case
    monkeypatch.setattr(calls, "SUMS", (32, 50, 2, 8, 4))
    for case in calls.sum_cases("cpu"):
        right = case.values(case.run())
        wrong = right.copy()
        wrong[..., 1, 5] ^= 1
        assert case.verify(right) and not case.verify(wrong), case


@needs_compiler
def test_verification_compares_gpu_calls_with_the_cpu() -> None:
    named = []
    with use("simulated") as device, pg.device("cpu"):
        for case in verbs.cases(device, 32):
            result = case.run()
            one = result[0] if isinstance(result, list) else result
            assert not isinstance(one.data if isinstance(one, pg.Poly) else one, np.ndarray), case
            right = case.values(result)
            wrong, last = right.copy(), (-1,) * right.ndim
            wrong[last] = wrong[last] * 1.001 if wrong.dtype.kind in "fc" else wrong[last] ^ 1
            assert case.verify(right) and not case.verify(wrong), case
            assert case.params["launch"] == calls.HOST and "launches" in case.params, case
            named.append(str(case.params["verb"]))
        value = pg.Ring(4, 17)([1, 2]).to(device)
        assert verbs.launches_of(lambda: value + value, value) == 1
        assert verbs.launches_of(value.norm, value) is None  # it reads the value back
    assert len(named) == len(set(named)) and {name.partition(",")[0] for name in named} == set(VERBS)


def test_report_table_of_public_operations() -> None:
    def called(verb: str, us: float, **params: int | str) -> Row:
        own: dict[str, int | str] = {"verb": verb, "batch": 2, "limbs": 6, "launch": calls.HOST}
        return dataclasses.replace(gpu_row("verb", 4096, 50, 1.0, params=own | params), median=1000 * us)

    rows = [
        called("pg.dot", 12.01, launches=1),
        called("Poly.add", 99.9, launches=1),
        called("Poly.add", 12.0, launches=8),  # newer
        called("lattice.key_switch", 16.5, launches=11),
        called("lattice.rotate_many", 16.51, launches=11),
        called("lattice.extract", 9.5, n=4097, limbs=1),  # not captured
        called("linalg.matmul", 9.5, launches=1),
    ]
    page = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in verbs.KINDS)
    text = report.rewrite(page, [*rows, row(op="verb")])
    lines = (
        "| Poly.add | 2 x 6 x 2^12 | 8 | 12.0 | 12 | yes |",
        "| lattice.extract | 2 x 1 x 4097 |  | 9.50 | 12 | yes |",
        "| lattice.key_switch | 2 x 6 x 2^12 | 11 | 16.5 | 16.5 | yes |",
        "| lattice.rotate_many | 2 x 6 x 2^12 | 11 | 16.5 | 16.5 | no |",
        "| linalg.matmul | 2 x 6 x 2^12 | 1 | 9.50 | 12 | yes |",
        "| pg.dot | 2 x 6 x 2^12 | 1 | 12.0 | 12 | no |",
    )
    assert "\n".join(lines) in text and "99.9" not in text
    page = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in calls.KINDS)
    assert report.rewrite(page, rows).count("Nothing has been measured yet.") == len(calls.KINDS)
    assert "Poly.add" in gpu.describe(rows[1])


def test_first_products_are_measured_with_empty_and_full_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "SIZES", ((32, 50), (64, 30)))
    seen: list[str | None] = []

    def run(n: int, bits: int, kernels: str | None) -> first.First:
        seen.append(kernels)
        assert kernels is None or Path(kernels).is_dir()
        a, b = first.operands(n, bits)
        return first.First(10**9 * len(seen), (a * b).data)

    rows = [measure(case, first.Processes({"kind": "gpu", "name": "x"})) for case in first.cases(run)]
    assert [(r.params["n"], r.params["cache"]) for r in rows] == [
        (n, cache) for n in (32, 64) for cache in ("empty", "full")
    ]
    assert all(r.samples == r.loops * first.SAMPLES for r in rows)
    each = len(seen) // 4
    assert (
        seen[:each] == [None] * each
        and len(set(seen[each : 2 * each])) == 1
        and None not in seen[each : 2 * each]
    )

    def wrong(n: int, bits: int, kernels: str | None) -> first.First:
        found = run(n, bits, kernels)
        found.values[0, 7] ^= 1
        return found

    with pytest.raises(Unverified):
        measure(next(first.cases(wrong)), first.Processes({}))


def test_report_tables_of_single_calls() -> None:
    def call(op: str, n: int, us: float, bits: int = 50, **params: int | str) -> Row:
        own: dict[str, int | str] = {"batch": 1, "launch": calls.HOST} | params
        return dataclasses.replace(gpu_row(op, n, bits, 1.0, params=own), median=1000 * us)

    rows = [
        call("product", 4096, 7.5),
        call("add", 4096, 6.25),
        call("forward", 4096, 8.5, limbs=32),
        call("forward", 4096, 3.9, bits=30, launch="CUDA graph of 20"),
        call("forward", 4096, 88.8, launch="CUDA graph of 1"),  # in no table
        call("dot", 4096, 12.5, limbs=4, batch=8),
        call("linalg.matmul", 512, 9.5, bits=31),
        call("linalg.matmul", 512, 10.5, bits=31, launch=calls.BACK_TO_BACK),
        call("first product", 4096, 0.81e6, launch="first", cache="empty"),
        call("first product", 4096, 0.21e6, launch="first", cache="full"),
    ]
    page = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in calls.KINDS)
    text = report.rewrite(page, [*rows, row(op="product")])
    assert "| bits | limbs | N | a * b | a + b | ntt() |" in text
    assert "| 50 | 1 | 2^12 | 7.50 | 6.25 |  |\n| 50 | 32 | 2^12 |  |  | 8.50 |" in text
    assert "| bits | polynomials | limbs | N | ntt |" in text and "| 30 | 1 | 1 | 2^12 | 3.90 |" in text
    assert "| dot | 4 | 2^12 | 12.5 |  |\n| linalg.matmul | 1 | 2^9 | 9.50 | 10.5 |" in text
    assert "| bits | limbs | N | no kernels kept | kernels kept on disk |" in text
    assert "| 50 | 1 | 2^12 | 0.810 | 0.210 |" in text and "88.8" not in text
    assert report.rewrite(page, [row(op="ntt")]).count("Nothing has been measured yet.") == len(calls.KINDS)


def test_figures_of_single_calls_contain_only_times() -> None:
    plain = gpu_row("forward", 4096, 30, 2.9)
    host = dataclasses.replace(plain, params=plain.params | {"launch": calls.HOST})
    assert set(gpu.with_figures(host, 2900.0).figures) == {"us_median", "us_min"}
    assert "of copy" in gpu.describe(dataclasses.replace(plain, params=plain.params | {"order": "natural"}))
    assert "of copy" not in gpu.describe(gpu.with_figures(host, 2900.0))


def test_slower_product_choices_are_reported() -> None:
    def exact(q: str, method: str, auto: int, median: float) -> Row:
        return row(op="exact product", params={"n": 8, "q": q, "method": method, "auto": auto}, median=median)

    rows = [exact("2^32", "ntt", 1, 114.0), exact("2^32", "fft", 0, 100.0), exact("7", "ntt", 1, 9.0)]
    assert not list(products.slower_choices(rows))
    rows += [exact("64-bit prime", "ntt", 0, 100.0), exact("64-bit prime", "fft", 1, 150.0)]
    assert list(products.slower_choices(rows)) == [
        "n = 8, q = 64-bit prime: fft is taken, ntt is 1.50 times as fast"
    ]


@pytest.mark.parametrize("name", products.NAMES)
def test_verification_of_exact_products(name: str) -> None:
    cases = list(products.cases(256, name, "cpu"))
    assert len(cases) == 2 and sum(int(case.params["auto"]) for case in cases) == 1
    q = products.modulus(256, name)
    if name in products.PRIMES:
        assert pg.is_prime(q) and q % 512 == 1 and q.bit_length() == products.PRIMES[name]
    for case in cases:
        values = case.values(case.run())
        assert case.verify(values)
        values[0, 5] ^= 1
        assert not case.verify(values)


def test_figures_relative_to_the_copy_bandwidth() -> None:
    figures = gpu_row("forward", 4096, 30, 2.9).figures
    assert figures["ps_per_coef"] == pytest.approx(2.9)
    assert figures["eff1"] == pytest.approx(8 / 2.9 / 2.9, abs=1e-3)
    assert figures["us_median"] == pytest.approx(2.9 * 2**20 / 1e6, abs=1e-3)
    assert figures["us_min"] > 0 and figures["copy_gbps"] == 2900


def test_report_tables_of_gpu_transforms() -> None:
    rows = [
        gpu_row("forward", 4096, 30, 2.9),
        gpu_row("inverse", 4096, 30, 3.0),
        gpu_row("product", 4096, 30, 6.5),
        gpu_row("forward", 2**24, 31, 6.0),
        gpu_row("forward", 2**16, 50, 7.5),
        gpu_row("forward", 2**16, 60, 12.0, params={"limbs": 32}),  # not in these tables
        gpu_row("forward", 4096, 60, 999.0, params={"batch": 1}),
        gpu_row("fft", 4096, 60, 998.0),
        row(op="ntt"),
    ]
    text = report.rewrite(GPU_PAGE, rows)
    assert "| 2^12 | 2.90 (95%) | 3.00 (92%) | 6.50 | 10.5 (GPU-NTT) |" in text
    assert "| 2^24* | 6.00 (46%) |" in text and "* 31-bit BabyBear" in text
    assert "**50-bit prime (f64): ps per coefficient" in text and "60-bit" not in text
    assert "| 2^16 |  | 7.50 (74%), 3.45x Phantom |" in text
    assert f"{NAMED}, copy 2900 GB/s, driver 580, CUDA 13.0, CuPy 14.0; " in text
    assert "99" not in text.replace("2900", "")
    assert report.rewrite(text, rows) == text
    assert report.rewrite(PAGE, rows).count(NAMED) == 0
    assert "Nothing has been measured yet." in report.rewrite(GPU_PAGE, [row(op="ntt")])


def test_gpu_tables_show_peers_and_summarise_the_newest_card() -> None:
    later = gpu_row("forward", 2**20, 64, 9.0, params={"batch": 4}, date="2030-01-01T00:00:00+00:00")
    later = dataclasses.replace(later, machine={**later.machine, "name": "NVIDIA H200"})
    text = report.rewrite(GPU_PAGE, [gpu_row("forward", 4096, 30, 2.9), later])
    tables, _, summary = text.partition("<!-- end: gpu-ntt -->")
    assert "| 2^12 | 2.90 (95%) |  |  | 10.5 (GPU-NTT) |" in tables
    assert "**Goldilocks, X^N - 1: ps per coefficient" in tables
    assert "| 2^20 | 9.00 (61%) |  |  | 42.2 (sppark) |" in tables
    assert "| 2^20 | 9.00 (61%), 4.69x sppark |" in summary and "30-bit" not in summary
    again = gpu_row("forward", 4096, 30, 2.8, date="2031-01-01T00:00:00+00:00")
    text = report.rewrite(GPU_PAGE, [gpu_row("forward", 4096, 30, 2.9), later, again])
    assert "| 2^12 | 2.80 (99%), 3.75x GPU-NTT |" in text and "4.69x" not in text


def test_recorded_peers_use_measured_degrees() -> None:
    assert {NAMED, "NVIDIA H200"} == set(report.PEERS)
    for words in report.PEERS.values():
        assert all(2**k in gpu.DEGREES and ps > 0 for peers in words.values() for k, (ps, _) in peers.items())


@pytest.mark.parametrize("bits", gpu.PRIME_BITS)
@pytest.mark.parametrize("n", gpu.DEGREES)
def test_gpu_benchmark_primes_have_the_stated_size(n: int, bits: int) -> None:
    q = gpu.modulus(n, bits)
    assert q % (2 * n) == 1 and pg.is_prime(q)
    assert q.bit_length() == bits or (q, bits, n) == (gpu.BABYBEAR, 30, 2**24)


def host_workload(
    monkeypatch: pytest.MonkeyPatch, moduli: list[int], kind: str = "negacyclic"
) -> tuple[batches.Workload, batches.Buffers]:
    """Five polynomials and their results, on the CPU."""
    monkeypatch.setattr(batches, "DEVICE", "cpu")
    w = batches.Workload(pg.Ring(32, moduli, kind=kind), 5)
    a, b = (w.ring.random(5, seed=seed) for seed in (1, 2))
    s = batches.Buffers(a, b, a.ntt(), a.copy())
    w.__dict__["sets"] = [s]
    return w, s


def wrong_at(poly: pg.Poly, q: int, *at: int) -> pg.Poly:
    """Another value in one place."""
    other = poly.copy()
    other.data[at] = (int(other.data[at]) + 1) % q
    return other


@pytest.mark.parametrize("compared", [0, 32])
@pytest.mark.parametrize("moduli", [pg.ntt_primes(32, bits=30), pg.ntt_primes(32, bits=60, count=2)])
def test_verification_rejects_wrong_gpu_results(
    moduli: list[int], compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, s = host_workload(monkeypatch, moduli)
    monkeypatch.setattr(batches, "COMPARED", compared)
    q, limb = moduli[-1], len(moduli) - 1

    def holds(verify: Callable[..., bool], poly: pg.Poly, place: str) -> bool:
        w.__dict__["sets"] = [dataclasses.replace(s, **{place: poly})]
        return verify(w.rows(poly))

    product = s.a * s.b
    for verify, poly, place in (
        (w.is_forward, s.transform, "transform"),
        (w.is_inverse, s.a, "result"),
        (w.is_product, product, "result"),
    ):
        assert holds(verify, poly, place)
        for at in ((0, 0, 3), (4, limb, 31), (2, limb, 0), (1, limb, 7)):  # not looked at alone: 1
            assert not holds(verify, wrong_at(poly, q, *at), place)
    not_canonical = s.transform.copy()
    not_canonical.data[0, limb, 5] += q
    assert not holds(w.is_forward, not_canonical, "transform")


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
def test_verification_points_match_the_definition(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w, s = host_workload(monkeypatch, pg.ntt_primes(32, bits=50, count=2), kind)
    assert len(w.points) == 3 * 2 * 3
    for p in w.points:
        assert p.x == w.ring.eval_points(p.limb)[p.k]
        assert p.value == s.transform.data[w.picked[p.row], p.limb, p.k]
    assert [batches.reverse_bits(k, 8) for k in range(8)] == polynomials.bit_reversal(8).tolist()


def test_successive_runs_use_different_buffers() -> None:
    order: list[int] = []
    runs: list[Any] = [lambda i=i: order.append(i) for i in range(3)]
    run = batches.turns(runs)
    for _ in range(5):
        run()
    assert order == [0, 1, 2, 0, 1]
    groups = [(section, name) for section, name, _ in gpu.programme(gpu.DEGREES, 50 << 20)]
    assert len(groups) == len({name for _, name in groups})
    count = {section: sum(own == section for own, _ in groups) for section in gpu.SECTIONS}
    degrees = len(gpu.DEGREES)
    assert count == {
        "batches": 3 * (degrees + 1) + 2 * degrees + 4,
        "calls": 3 * 9 + 3,
        "verbs": 1,
        "first": 1,
        "conversions": 3 + 1,
        "cufft": 2 * degrees,
    }
    assert sum(count.values()) == len(groups)


def test_gpu_benchmark_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "absence", lambda index: "no GPU answers here")
    assert gpu.main(["--quick", "--out", str(tmp_path)]) == 1
    assert "cuda:0: no GPU answers here" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def product_by_definition(a: Any, b: Any, q: int) -> Any:
    """a * b mod (X^N + 1, q), coefficient by coefficient."""
    n = len(a)
    c = [0] * n
    for i, x in enumerate(a.tolist()):
        for j, y in enumerate(b.tolist()):
            c[(i + j) % n] += x * y if i + j < n else -x * y
    return np.array([x % q for x in c], dtype=np.uint64)


# ---- peers ----

# A peer that computes by the definition; with -DWRONG one value is wrong.
PEER = r"""
#include <stdint.h>
#include <stdlib.h>
typedef struct { uint64_t n, q, psi; } Plan;
static uint64_t mul(const Plan *p, uint64_t x, uint64_t y) { return (unsigned __int128)x * y % p->q; }
static uint64_t power(const Plan *p, uint64_t x, uint64_t e) {
    uint64_t y = 1;
    for (; e; e >>= 1, x = mul(p, x, x)) if (e & 1) y = mul(p, y, x);
    return y;
}
const char *peer_version(void) { return "1.2"; }
void *peer_plan(uint64_t n, uint64_t q, uint64_t psi, uint32_t word_bytes) {
    if (word_bytes != 8 || q >> 50) return 0;
    Plan *p = malloc(sizeof *p);
    p->n = n, p->q = q, p->psi = psi;
    return p;
}
void peer_free(void *plan) { free(plan); }
void peer_forward(const void *plan, void *out, const void *in, uint64_t count) {
    const Plan *p = plan;
    const uint64_t *x = in;
    uint64_t *y = out;
    for (; count--; x += p->n, y += p->n)
        for (uint64_t k = 0; k < p->n; ++k) {
            y[k] = 0;
            for (uint64_t j = 0; j < p->n; ++j)
                y[k] = (y[k] + mul(p, x[j], power(p, p->psi, (2 * k + 1) * j))) % p->q;
        }
}
void peer_inverse(const void *plan, void *out, const void *in, uint64_t count) {
    const Plan *p = plan;
    const uint64_t *x = in, back = power(p, p->psi, p->q - 2), scale = power(p, p->n, p->q - 2);
    uint64_t *y = out;
    for (; count--; x += p->n, y += p->n)
        for (uint64_t j = 0; j < p->n; ++j) {
            uint64_t sum = 0;
            for (uint64_t k = 0; k < p->n; ++k)
                sum = (sum + mul(p, x[k], power(p, back, (2 * k + 1) * j))) % p->q;
            y[j] = mul(p, sum, scale);
        }
}
void peer_product(const void *plan, void *out, const void *left, const void *right, uint64_t count) {
    const Plan *p = plan;
    const uint64_t *a = left, *b = right;
    uint64_t *y = out;
    for (; count--; a += p->n, b += p->n, y += p->n) {
        for (uint64_t k = 0; k < p->n; ++k) y[k] = 0;
        for (uint64_t i = 0; i < p->n; ++i)
            for (uint64_t j = 0; j < p->n; ++j) {
                const uint64_t term = mul(p, a[i], b[j]), k = (i + j) % p->n;
                y[k] = (i + j < p->n ? y[k] + term : y[k] + p->q - term) % p->q;
            }
    }
#ifdef WRONG
    y[-1] ^= 1;
#endif
}
"""


@pytest.fixture
def peer(tmp_path: Path) -> Callable[..., str]:
    def built(*flags: str) -> str:
        path = tmp_path / f"peer{len(flags)}.so"
        command = ["cc", "-shared", "-fPIC", "-O1", *flags, "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=PEER, text=True, check=True)
        return f"A peer={path}"

    return built


@pytest.fixture
def small_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "QUICK", (16,))
    monkeypatch.setattr(peers, "COEFFICIENTS", 48)
    monkeypatch.setattr(timing, "SAMPLE_NS", 1000)
    monkeypatch.setattr(harness.WallClock, "warm_up_ns", 0)
    monkeypatch.setattr(harness.WallClock, "total_ns", 0)


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@needs_cc
def test_peer_run_measures_polygpu_and_the_peer(
    peer: Callable[..., str], small_peers: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu.main(["--quick", "--only", "peers", "--peer", peer(), "--out", str(tmp_path)])
    rows = harness.rows(tmp_path)
    own = 2 * len(peers.PRIME_BITS) * len(peers.OPS)
    assert len(rows) == own + 3 * len(peers.OPS)  # the peer takes no 60 bits
    assert all(row.verified and row.params["version of A peer"] == "1.2" for row in rows)
    (table,) = peers.PeerKind().tables(rows)
    assert table.header == ("bits", "N", "kernel, ns", "A peer / kernel", "A peer / call")
    assert [line[0] for line in table.body] == ["30", "46", "50", "60"] and table.body[-1][-1] == "- / - / -"
    assert all(float(x) > 1 for x in table.body[0][3].split(" / "))  # by the definition
    assert "A peer" in capsys.readouterr().out


@needs_cc
def test_peer_calls_keep_their_operands_alive(
    peer: Callable[..., str], small_peers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rows_of = [], peers.rows_of

    def noted(*args: Any) -> Any:
        rows = rows_of(*args)
        made.append(weakref.ref(rows))
        return rows

    monkeypatch.setattr(peers, "rows_of", noted)
    cases = list(peers.Peer(peer()).cases(polynomials.Workload(16, 50)))
    assert len(made) == 4 and all(rows() is not None for rows in made)
    assert all(case.verify(case.values(case.run())) for case in cases)


@needs_cc
def test_peer_with_wrong_results_is_not_timed(
    peer: Callable[..., str], small_peers: None, tmp_path: Path
) -> None:
    with pytest.raises(harness.Unverified, match="A peer"):
        cpu.main(["--quick", "--only", "peers", "--peer", peer("-DWRONG"), "--out", str(tmp_path)])


def test_peer_table_shows_only_the_newest_run() -> None:
    params: dict[str, int | str] = {"n": 16, "bits": 50}
    old, new = (
        row(
            op="peer ntt",
            library=peers.KERNEL,
            params=params | {"run": f"2026-01-0{day}, pass 1"},
            median=day,
        )
        for day in (1, 2)
    )
    assert peers.PeerKind().rows([old, new, row()]) == [new]
    (table,) = peers.PeerKind().tables([old, new])
    assert table.body == (("50", "2^4", "0.250 / - / -"),)


def test_summary_of_peers() -> None:
    """The summary shows the faster build of each peer on the best instruction set, over all N."""

    def timed(library: str, median: float, n: int = 16, isa: str = "avx512") -> Row:
        params: dict[str, int | str] = {"n": n, "bits": 50, "run": "2026-01-01, pass 1"}
        machine = {**row().machine, "isa": isa}
        return row(op="peer ntt", library=library, params=params, median=median, machine=machine)

    own = [timed(peers.KERNEL, 4), timed(peers.CALL, 8), timed(peers.KERNEL, 2, n=32)]
    others = [timed("A:x", 6), timed("A:y", 5), timed("A:y", 4, n=32), timed("B", 2)]
    rows = peers.PeerSummaryKind().rows([*own, *others, timed(peers.KERNEL, 1, isa="avx2")])
    assert rows == [*own, *others]
    (table,) = peers.PeerSummaryKind().tables(rows)
    assert table.header == ("bits", "polygpu", "A", "B")
    assert table.body == (
        ("50", "kernel", "1.25 to 2.00, -, -", "0.50 to 0.50, -, -"),
        ("50", "call", "0.62 to 0.62, -, -", "0.25 to 0.25, -, -"),
    )
    assert peers.speedups(rows) == {"A": (1.25, 2.0), "B": (0.5, 0.5)}
    card = gpu_row("forward", 2**20, 64, 9.0, params={"batch": 4})
    card = dataclasses.replace(card, machine={**card.machine, "name": "NVIDIA H200"})
    text = report.rewrite("<!-- table: speedups -->\n<!-- end: speedups -->\n", [*rows, card])
    assert "| A | 1.2 to 2.0 | " in text and "| B | 0.5 to 0.5 | " in text
    assert "| the fastest of sppark | " in text and "Cheddar |" not in text


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("lib.so", "must be NAME=PATH"),
        ("=lib.so", "must be NAME=PATH"),
        (":gcc=lib.so", "must be NAME=PATH"),
        ("polygpu, call=lib.so", "must be NAME=PATH"),
        ("A=/nowhere.so", "nowhere"),
        ("A=libm.so.6", "peer_version"),
    ],
)
def test_invalid_peer_arguments(named: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(["--only", "peers", "--peer", named])
    assert words in capsys.readouterr().err


@needs_compiler
def test_run_on_several_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case except NCCL's gives a right result on simulated cards at small sizes."""
    for name, value in (("HUGE", 4096), ("HUGE_ROW", 16), ("PRODUCT_DEGREE", 64), ("PRODUCT_BYTES", 2048)):
        monkeypatch.setattr(distributed, name, value)
    with simulated(devices_count=2), pg.device("cpu"):
        gpus = pg.devices()
        cases = [next(distributed.exchanges(gpus, 4096))]
        for group in (
            distributed.transforms(gpus, 4096, 60),
            distributed.products(gpus, 60),
            distributed.huge(gpus),
        ):
            cases += group
        assert len(cases) == 9
        for case in cases:
            assert case.verify(case.values(case.run())), case


def test_dask_run_verifies_products(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dask.distributed")
    from benchmarks import dask as on_workers

    on_workers.main(["--log2n", "10", "--parts", "4", "--runs", "1", "--kills", "0"])
    lines = capsys.readouterr().out.splitlines()
    for place in ("on the workers", "from files into a file", "from this process and back"):
        (line,) = [line for line in lines if line.startswith(f"{place}: ")]
        assert "of one process; a worker holds" in line
    assert lines[-1] == "a worker killed in the middle: right 0 of 0 times"
