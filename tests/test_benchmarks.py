"""Nothing wrong is timed, rows are complete, and the tables follow the rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cpu, harness, report
from benchmarks.harness import Case, Machine, Row, Unverified, measure, record

PARAMS: dict[str, int | str] = {"n": 8, "bits": 30, "limbs": 1, "batch": 1}
PAGE = """# Figures

<!-- table: cpu-product -->
<!-- end: cpu-product -->

Between.

<!-- table: cpu-ntt -->
<!-- end: cpu-ntt -->
"""


class Card:
    """A device whose every call takes a microsecond, except each tenth sample of four."""

    def __init__(self) -> None:
        self.samples = 0

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
    return dataclasses.replace(measured, machine=machine, commit="c0ffee", dirty=False, **changes)


def test_wrong_result_is_not_timed() -> None:
    card = Card()
    with pytest.raises(Unverified, match="wrong"):
        measure(squares(verify=lambda _: False), card)
    assert card.samples == 0


def test_result_that_does_not_repeat_is_refused() -> None:
    x = np.arange(8, dtype=np.uint64)

    def twice_in_place() -> Any:
        return np.multiply(x, 2, out=x)

    with pytest.raises(Unverified, match="changed"):
        measure(squares(run=twice_in_place, verify=lambda c: c[1] == 2), Card())


def test_row_has_every_field() -> None:
    measured = measure(squares(), packages=("numpy", "no-such-distribution"))
    assert measured.q1 <= measured.median <= measured.q3
    assert measured.samples >= harness.SAMPLES
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
    assert measured.loops * measured.median * measured.samples < harness.TOTAL_NS
    assert measured.machine["kind"] == "gpu"


def test_digest_is_of_the_values_alone() -> None:
    x = np.array([[0, 1], [2**31, 7]], dtype=np.uint64)
    expected = hashlib.sha256(struct.pack("<4Q", 0, 1, 2**31, 7)).hexdigest()[:16]
    for same in (x, x.astype(np.uint32), x.astype(object), x.ravel(), np.asfortranarray(x)):
        assert harness.digest(same) == expected
    assert harness.digest(x.T) != expected


def test_rows_are_lines_of_json(tmp_path: Path) -> None:
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


def test_report_is_idempotent_and_notices_an_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_newest_row_counts_and_a_dirty_tree_shows() -> None:
    old = row(date="2026-01-01T00:00:00+00:00", median=1000.0)
    new = dataclasses.replace(old, date="2026-01-02T00:00:00+00:00", median=2000.0, dirty=True)
    wrong = dataclasses.replace(new, date="2026-01-03T00:00:00+00:00", verified=False)
    elsewhere = dataclasses.replace(old, machine={**old.machine, "name": "Another CPU"})
    assert report.newest([old, elsewhere, new, wrong]) == [elsewhere, new]
    text = report.rewrite(PAGE, report.newest([old, new, wrong]))
    assert "| 8 | 2.00 |" in text
    assert "2026-01-02 at commit c0ffee with uncommitted changes" in text
    assert "2026-01-01" not in text


def test_report_refuses_an_unknown_table_and_one_without_end() -> None:
    with pytest.raises(ValueError, match="gpu-nothing"):
        report.rewrite("<!-- table: gpu-nothing -->\n<!-- end: gpu-nothing -->\n", [])
    with pytest.raises(ValueError, match="no end"):
        report.rewrite("<!-- table: cpu-ntt -->\n<!-- end: cpu-product -->\n", [])


@pytest.mark.parametrize("bits", cpu.PRIME_BITS)
def test_the_oracle_is_the_definition(bits: int) -> None:
    w = cpu.Workload(16, bits)
    expected = [
        sum(int(x) * pow(w.psi, (2 * k + 1) * j, w.q) for j, x in enumerate(w.a)) % w.q
        for k in cpu.bit_reversal(16).tolist()
    ]
    assert cpu.evaluations(w.a, w.psi, w.q).tolist() == expected
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
    w = cpu.Workload(64, bits)
    a = np.full(64, w.q - 1, dtype=np.uint64)
    for b in (a, w.b):
        expected = product_by_definition(a, b, w.q)
        assert cpu.fft_product(a, b, w.q).tolist() == expected.tolist()


def test_libraries_agree_and_a_whole_run_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "QUICK", (16,))
    monkeypatch.setattr(harness, "TOTAL_NS", 0)
    monkeypatch.setattr(harness, "WARM_UP_NS", 0)
    cpu.main(["--quick", "--out", str(tmp_path)])
    rows = harness.rows(tmp_path)
    assert {r.op for r in rows if r.library == "polygpu"} == {"product", "ntt", "intt"}
    assert {r.params["bits"] for r in rows} == set(cpu.PRIME_BITS)
    digests = {(r.op, r.params["bits"], r.digest) for r in rows}
    assert len(digests) == 3 * len(cpu.PRIME_BITS)  # one for each op and prime, in any library
    assert "polygpu" in capsys.readouterr().out


def test_absent_libraries_are_skipped_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu, "QUICK", (16,))
    monkeypatch.setattr(cpu, "LIBRARIES", (("no_such_module", cpu.flint_cases),))
    cpu.main(["--quick", "--out", str(tmp_path)])
    assert "no_such_module: not installed, skipped" in capsys.readouterr().out


def product_by_definition(a: Any, b: Any, q: int) -> Any:
    """a * b mod (X^N + 1, q), coefficient by coefficient."""
    n = len(a)
    c = [0] * n
    for i, x in enumerate(a.tolist()):
        for j, y in enumerate(b.tolist()):
            c[(i + j) % n] += x * y if i + j < n else -x * y
    return np.array([x % q for x in c], dtype=np.uint64)
