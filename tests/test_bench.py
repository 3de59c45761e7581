"""`polygpu bench` and `polygpu plot`: rows are verified, and the recorded figures match the rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from devices import needs_compiler, simulated

import polygpu as pg
from benchmarks import harness, report
from polygpu import _cpu
from polygpu._bench import bench, timing
from polygpu._bench.bench import Figures, Key
from polygpu._bench.timing import Case, Row, measure
from polygpu._core.processors import allowed_processors
from polygpu.cli import main

SPACE = "{http://www.w3.org/2000/svg}"


class Clock(timing.WallClock):
    """Every call takes a millisecond."""

    warm_up_ns = total_ns = 0.0

    def elapsed(self, run: Any, loops: int) -> float:
        run()
        return 1e6 * loops


class Card(Clock):
    """The same clock, as if of a GPU."""

    def __init__(self, rest_s: float, cupy: Any) -> None:
        super().__init__()

    def machine(self) -> timing.Machine:
        return {"kind": "gpu", "name": "A Card", "driver": "580", "cuda": "13.2"}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Degrees that take no time, timed only as long as a figure needs."""
    monkeypatch.setattr(bench, "DEGREES", (16, 64))
    monkeypatch.setattr(bench, "THREADED", ((32, 50),))
    monkeypatch.setattr(bench, "WallClock", Clock)
    monkeypatch.setattr(bench, "CudaEvents", Card)
    monkeypatch.setattr(bench, "answering", lambda: ["cpu"])


def call(*arguments: object) -> int:
    return main([str(x) for x in arguments])


def rows_of(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def row(**changes: Any) -> Row:
    """A row as if measured on some CPU, of 8 coefficients in 1 ms."""
    x = np.arange(8)
    case = Case("ntt", "polygpu", {"n": 8, "bits": 50, "limbs": 1, "batch": 1}, lambda: x, lambda _: True, 8)
    made = measure(case, Clock())
    machine = {"kind": "cpu", "name": "Some CPU", "cores": 1, "clock_ghz": 4.0, "isa": "avx2"}
    params = {**case.params, **changes.pop("params", {})}
    return dataclasses.replace(made, **{"machine": machine, "params": params, **changes})


GPU = {"kind": "gpu", "name": "A GPU", "driver": "580", "cuda": "13.2"}

# ---- what is measured ----


def test_bench_of_the_cpu(
    tiny: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, threads: Any
) -> None:
    threads(3)
    before = allowed_processors()
    assert call("bench", "--json", "--out", tmp_path / "rows") == 0
    assert (allowed_processors(), _cpu.num_threads()) == (before, 3)
    facts = json.loads(capsys.readouterr().out)
    found = [(r["op"], r["params"]["n"], r["params"]["bits"], r["params"]["batch"]) for r in facts["rows"]]
    single = [(op, n, bits, 1) for n in (16, 64) for bits in (30, 50, 60) for op in bench.OPS]
    assert found == single + [(op, 32, 50, 24) for op in bench.OPS]
    for r in facts["rows"]:
        assert r["verified"] and r["work"] == r["params"]["n"] * r["params"]["batch"] and r["median"] == 1e6
        assert pg.is_prime(r["params"]["q"]) and r["params"]["q"] % (2 * r["params"]["n"]) == 1
        assert r["machine"]["cores"] == (1 if r["params"]["batch"] == 1 else before)
    kept = rows_of(tmp_path / "rows")
    assert [dataclasses.asdict(r) for r in kept] == facts["rows"]
    own = {m.kind: m for m in bench.figures(kept)}
    assert set(own) == {"cpu", "threads"} and "3 threads" in own["threads"].about
    assert own["cpu"].ps == {Key(op, bits, n): pytest.approx(1e9 / n) for op, n, bits, _ in single}
    assert facts["recorded"] == json.loads(bench.as_json(bench.recorded()))


def test_bench_appends_rows_to_a_file(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows"
    first = row(date="2020-01-01T00:00:00+00:00")
    path.write_text(bench.line_of(first))
    assert call("bench", "--out", path) == 0
    out, error = capsys.readouterr()
    assert rows_of(path)[0] == first and len(path.read_text().splitlines()) > 18
    assert [p.name for p in tmp_path.iterdir()] == ["rows"]
    assert "product, N = 64, 60 bits: 1000 us" in error
    assert "one core, one polynomial: us a call" in out and "in brackets: A's time over theirs" in out
    name = timing.cpu_name()
    assert f"A  {name} (yours): one core" in out and "B  AMD EPYC" in out


@needs_compiler
def test_bench_of_a_simulated_gpu(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "DEGREES", (16,))
    with simulated() as cupy:
        monkeypatch.setattr(type(cupy.cuda.Device(0)), "mem_info", (16 * 512, 1 << 20), raising=False)
        assert call("bench", "--json", "--device", "cuda") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(r["op"], r["params"]["bits"]) for r in rows] == [
        (op, bits) for bits in (30, 50, 60) for op in ("forward", "inverse", "product")
    ]
    assert {r["params"]["batch"] for r in rows} == {8, 4} and rows[0]["params"]["device"] == "cuda:0"
    (own,) = bench.figures(Row(**r) for r in rows)
    assert own.kind == "gpu" and set(own.ps) == {Key(op, b, 16) for op in bench.OPS for b in (30, 50, 60)}


@pytest.mark.parametrize("wrong", ["ntt", "intt", "mul"])
def test_bench_does_not_time_wrong_results(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """Only the method `wrong` is faulty: every residue of its result is wrong."""
    real = getattr(pg.Poly, wrong)

    def spoilt(self: pg.Poly, *operands: Any, out: Any = None) -> pg.Poly:
        y: pg.Poly = real(self, *operands, out=out).copy()
        y.data[..., :] ^= 1
        return y

    monkeypatch.setattr(pg.Poly, wrong, spoilt)
    assert call("bench", "--json") == 1
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("polygpu bench: ") and " is wrong, so it is not timed" in error


def test_available_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> list[str]:
        raise pg.errors.BackendUnavailable("none")

    monkeypatch.setattr(bench, "gpu_names", none)
    assert bench.answering() == ["cpu"]
    monkeypatch.setattr(bench, "gpu_names", lambda: ["cuda:0", "cuda:1"])
    assert bench.answering() == ["cpu", "cuda:0", "cuda:1"]
    for name, message in (("tpu", "must be 'cpu'"), ("reference", "would take hours")):
        assert call("bench", "--device", name) == 2
        assert message in capsys.readouterr().err


# ---- figures of rows ----


def test_figures_select_the_newest_rows() -> None:
    def ps(*rows: Row) -> dict[tuple[str, str], dict[Key, float]]:
        return {(m.kind, m.name): dict(m.ps) for m in bench.figures(rows)}

    key = Key("ntt", 50, 8)
    cpu = "cpu", "Some CPU"
    old, new = row(date="2020-01-01", median=1.0), row(date="2021-01-01", median=8.0)
    assert ps(old, new) == ps(new, old) == {cpu: {key: 1000.0}}
    passes = [
        row(
            op="peer ntt",
            library="polygpu, call",
            median=8.0 * t,
            params={"run": f"{run}, pass {i}"},
            date=run,
        )
        for run, times in (("2021", (1, 2, 9)), ("2022", (3, 4, 8)))
        for i, t in enumerate(times)
    ]
    assert ps(*passes) == {cpu: {key: 4000.0}}
    slow = dataclasses.replace(new, machine={**new.machine, "isa": "portable"}, date="2023", median=99.0)
    assert ps(new, slow) == {cpu: {key: 1000.0}}
    threaded = row(params={"threads": 4, "batch": 4}, work=32, median=8.0)
    assert ps(threaded) == {("threads", "Some CPU"): {key: 250.0}}
    card = row(machine=GPU, op="inverse", params={"launch": "plain", "batch": 4}, work=32, median=8.0)
    assert ps(card) == {("gpu", "A GPU"): {Key("intt", 50, 8): 250.0}}
    for ignored in (
        row(verified=False),
        row(params={"limbs": 2}),
        row(params={"batch": 4}),
        row(op="Poly.mul"),
        row(library="numba"),
        row(op="peer ntt", library="polygpu, kernel"),
        *(
            dataclasses.replace(card, params={**card.params, **more})
            for more in ({"launch": "host"}, {"load_s": "1.5"}, {"batch": 1}, {"word": "Goldilocks, X^N - 1"})
        ),
        dataclasses.replace(card, op="add"),
        dataclasses.replace(card, library="CuPy"),
        dataclasses.replace(card, params={"limbs": 1}),
    ):
        assert ps(ignored) == {}, ignored


def lines_of_the_repository() -> list[dict[str, Any]]:
    files = (harness.ROOT / "benchmarks" / "results").glob("*.jsonl")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_recorded_figures_match_the_rows() -> None:
    """The figures are computed again from the files, in another way."""
    rows = lines_of_the_repository()
    machines = {(m.kind, m.name): m.ps for m in bench.recorded()}
    assert {kind for kind, _ in machines} == {"cpu", "gpu"} and len(machines) >= 5

    def told(x: dict[str, Any]) -> float:
        return float(1000 * x["median"] / x["work"])

    plain = [
        x
        for x in rows
        if x["machine"]["name"] == "NVIDIA H200"
        and (x["op"], x["library"], x["params"].get("launch")) == ("forward", "polygpu", "plain")
        and (x["params"]["n"], x["params"]["bits"], x["params"]["limbs"]) == (4096, 30, 1)
        and x["params"]["batch"] > 1
        and "load_s" not in x["params"]
    ]
    newest = max(plain, key=lambda x: x["date"])
    assert machines["gpu", "NVIDIA H200"]["ntt", 30, 4096] == pytest.approx(told(newest), abs=0.01)
    name = "AMD EPYC (family 25, model 17)"
    calls = [
        x
        for x in rows
        if (x["machine"]["name"], x["op"], x["library"]) == (name, "peer product", "polygpu, call")
        and (x["params"]["n"], x["params"]["bits"], x["machine"]["isa"]) == (16384, 60, "avx512")
    ]
    last = max(x["params"]["run"].split(",")[0] for x in calls)
    passes = [told(x) for x in calls if x["params"]["run"].startswith(last)]
    assert len(passes) == 3
    assert machines["cpu", name]["product", 60, 16384] == pytest.approx(median(passes), abs=0.01)


def test_report_check_detects_stale_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.RECORDED in report.PAGES and report.RECORDED.is_file()
    assert report.main(["--check", str(report.RECORDED)]) == 0, "run python -m benchmarks.report"
    stale = tmp_path / "recorded.json"
    stale.write_text(report.RECORDED.read_text().replace("0", "1", 1))
    run = [str(stale), "--figures", str(tmp_path / "docs")]
    (tmp_path / "docs" / "studies").mkdir(parents=True)
    assert report.main(["--check", *run]) == 1
    assert f"{stale}: differs from the results" in capsys.readouterr().out
    assert report.main(run) == 0
    assert stale.read_text() == report.RECORDED.read_text()


def test_figures_json_round_trip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines = [
        Figures('A "CPU", <b>', "cpu", "one core", {Key("ntt", 30, 8): 1.5, Key("product", 60, 16): 2.0}),
        Figures("ГПУ", "gpu", "", {}),
    ]
    path = tmp_path / "recorded.json"
    path.write_text(bench.as_json(machines), encoding="utf-8")
    monkeypatch.setattr(bench, "_RECORDED", str(path))
    assert bench.recorded() == machines


def test_bench_with_an_unwritable_output_fails_before_measuring(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure_here", lambda devices, told: pytest.fail("it measures"))
    for path in (tmp_path, tmp_path / "none" / "rows"):
        assert call("bench", "--out", path) == 2
        out, error = capsys.readouterr()
        assert out == "" and str(path) in error and error.count("\n") == 1


def test_table_of_figures() -> None:
    own = [Figures("x", "cpu", "", {Key("product", 50, 4096): 2000.0, Key("ntt", 60, 4096): 1000.0})]
    others = [Figures("y", "cpu", "", {Key("product", 50, 4096): 1000.0, Key("ntt", 30, 4096): 1.0})]
    (board,) = bench.boards(own, [*others, Figures("z", "gpu", "", {Key("ntt", 30, 8): 1.0})])
    _, head, body = bench.table(board)
    assert head == ("", "", "N", "A", "B")
    assert body == [
        ("ntt", "60 bits", "2^12", "4.10", ""),
        ("product", "50 bits", "2^12", "8.19", "4.10 (2.00x)"),
    ]
    assert board.legend() == ["A  x (yours): ", "B  y: "]
