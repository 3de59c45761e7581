"""polygpu bench and plot: rows that are verified, figures that follow from rows, and do not go stale."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from devices import needs_compiler, simulated

import polygpu as pg
from benchmarks import harness, report
from polygpu import _cpu
from polygpu._bench import bench, timing
from polygpu._bench.bench import Figures, Key
from polygpu._bench.timing import Case, Row, measure
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


def test_rows_of_the_cpu(
    tiny: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, threads: Any
) -> None:
    threads(3)
    before = harness.cores()
    assert call("bench", "--json", "--out", tmp_path / "rows") == 0
    assert (harness.cores(), _cpu.num_threads()) == (before, 3)
    facts = json.loads(capsys.readouterr().out)
    found = [(r["op"], r["params"]["n"], r["params"]["bits"], r["params"]["batch"]) for r in facts["rows"]]
    single = [(op, n, bits, 1) for n in (16, 64) for bits in (30, 50, 60) for op in bench.OPS]
    assert found == single + [(op, 32, 50, 24) for op in bench.OPS]
    for r in facts["rows"]:
        assert r["verified"] and r["work"] == r["params"]["n"] * r["params"]["batch"] and r["median"] == 1e6
        assert pg.is_prime(r["params"]["q"]) and r["params"]["q"] % (2 * r["params"]["n"]) == 1
        assert r["machine"]["cores"] == (1 if r["params"]["batch"] == 1 else before)
    kept = bench.rows_of(str(tmp_path / "rows"))
    assert [dataclasses.asdict(r) for r in kept] == facts["rows"]
    own = {m.kind: m for m in bench.figures(kept)}
    assert set(own) == {"cpu", "threads"} and "3 threads" in own["threads"].about
    assert own["cpu"].ps == {Key(op, bits, n): pytest.approx(1e9 / n) for op, n, bits, _ in single}
    assert facts["recorded"] == json.loads(bench.as_json(bench.recorded()))


def test_rows_are_added_to_a_file(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows"
    first = row(date="2020-01-01T00:00:00+00:00")
    path.write_text(bench.line_of(first))
    assert call("bench", "--out", path) == 0
    out, error = capsys.readouterr()
    assert bench.rows_of(str(path))[0] == first and len(path.read_text().splitlines()) > 18
    assert [p.name for p in tmp_path.iterdir()] == ["rows"]
    assert "product, N = 64, 60 bits: 1000 us" in error
    assert "one core, one polynomial: us a call" in out and "in brackets: A's time over theirs" in out
    name = timing.cpu_name()
    assert f"A  {name} (yours): one core" in out and "B  AMD EPYC" in out


@needs_compiler
def test_rows_of_a_card(
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
def test_wrong_results_are_not_timed(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """Only the method of this name is wrong, in every residue of its result."""
    real = getattr(pg.Poly, wrong)

    def spoilt(self: pg.Poly, *operands: Any, out: Any = None) -> pg.Poly:
        y: pg.Poly = real(self, *operands, out=out).copy()
        y.data[..., :] ^= 1
        return y

    monkeypatch.setattr(pg.Poly, wrong, spoilt)
    assert call("bench", "--json") == 1
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("polygpu bench: ") and "the result is wrong" in error


def test_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> list[str]:
        raise pg.BackendUnavailable("none")

    monkeypatch.setattr(bench, "gpu_names", none)
    assert bench.answering() == ["cpu"]
    monkeypatch.setattr(bench, "gpu_names", lambda: ["cuda:0", "cuda:1"])
    assert bench.answering() == ["cpu", "cuda:0", "cuda:1"]
    for name, message in (("tpu", "must be 'cpu'"), ("reference", "takes hours")):
        assert call("bench", "--device", name) == 2
        assert message in capsys.readouterr().err


# ---- figures of rows ----


def test_which_rows_count() -> None:
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


def test_recorded_figures_are_those_of_the_rows() -> None:
    """Here the figures are found in the files again, in another way."""
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


def test_recorded_figures_cannot_go_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_figures_are_read_as_they_were_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines = [
        Figures('A "CPU", <b>', "cpu", "one core", {Key("ntt", 30, 8): 1.5, Key("product", 60, 16): 2.0}),
        Figures("ГПУ", "gpu", "", {}),
    ]
    path = tmp_path / "recorded.json"
    path.write_text(bench.as_json(machines), encoding="utf-8")
    monkeypatch.setattr(bench, "_RECORDED", str(path))
    assert bench.recorded() == machines


BAD = {
    "no JSON": "x\n",
    "no object": "[1]\n",
    "a number": "3\n",
    "another object": '{"schema": 1}\n',
    "a deep one": "[" * 100_000 + "\n",
    "params of a list": json.dumps({**dataclasses.asdict(row()), "params": []}),
    "no time": json.dumps({**dataclasses.asdict(row()), "median": 0}),
    "a time of text": json.dumps({**dataclasses.asdict(row()), "median": "fast"}),
    "no time at all": json.dumps({**dataclasses.asdict(row()), "median": float("nan")}),
    "no clock": json.dumps({**dataclasses.asdict(row()), "machine": {"kind": "cpu", "name": "x"}}),
    "no degree": json.dumps(dataclasses.asdict(row(params={"n": "many"}))),
    "a degree of 0": json.dumps(dataclasses.asdict(row(params={"n": 0}))),
    "an empty line": bench.line_of(row()) + "\n",
    "a negative time": bench.line_of(row(median=-1.0)),
    "an infinite time": bench.line_of(row(median=float("inf"))),
    "a time beyond doubles": bench.line_of(row(median=10**400)),
    "a time that is true": bench.line_of(row(median=True)),
    "a time in a text": bench.line_of(row(median="8.0")),
    "a time that is nearly 0": bench.line_of(row(median=1e-300)),
    "a time that is nearly infinite": bench.line_of(row(median=1e308)),
    "work in a text": bench.line_of(row(work="8")),
    "work beyond doubles": bench.line_of(row(work=10**400)),
    "negative work": bench.line_of(row(work=-8)),
    "half a polynomial": bench.line_of(row(params={"n": 8.5})),
    "a degree in a text": bench.line_of(row(params={"n": "8"})),
    "a degree of NaN": bench.line_of(row(params={"n": float("nan")})),
    "an infinite batch": bench.line_of(row(params={"batch": float("inf")})),
    "bits in a list": bench.line_of(row(params={"bits": [50]})),
    "an operation in a list": bench.line_of(row(op=["ntt"])),
    "a date of numbers": bench.line_of(row(date=2026)),
    "verified by a word": bench.line_of(row(verified="no")),
    "a machine without a kind": bench.line_of(row(machine={"name": "x", "isa": "avx2", "clock_ghz": 1.0})),
    "a machine whose name is a list": bench.line_of(row(machine={**row().machine, "name": ["x"]})),
    "a clock of NaN": bench.line_of(row(machine={**row().machine, "clock_ghz": float("nan")})),
    "a card without a driver": bench.line_of(
        row(op="forward", machine={"kind": "gpu", "name": "x"}, params={"launch": "plain", "batch": 2})
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", [("plot",), ("bench", "--out")])
def test_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: tuple[str, ...]
) -> None:
    path = tmp_path / "rows"
    path.write_text(BAD[name])
    assert call(*command, path) == 2
    out, error = capsys.readouterr()
    number = 2 if name == "an empty line" else 1
    assert out == "" and path.read_text() == BAD[name]
    assert f"line {number} is no row of a measurement" in error and "polygpu bench --out FILE" in error


ODD = {
    "a field of a later version": {**dataclasses.asdict(row()), "energy": 1},
    "a field that later came": {k: v for k, v in dataclasses.asdict(row()).items() if k != "figures"},
    "a time that rounds to 0": dataclasses.asdict(row(median=1e-5)),
    "a long time": dataclasses.asdict(row(median=1e14)),
    "a name that steers terminals": dataclasses.asdict(
        row(machine={**row().machine, "name": "\x1b[2J\0\n<&"})
    ),
    "a name that UTF-8 has not": dataclasses.asdict(row(machine={**row().machine, "name": "\ud800 é"})),
    "an instruction set that is a list": dataclasses.asdict(row(machine={**row().machine, "isa": []})),
    "a large degree": dataclasses.asdict(row(params={"n": 2**61, "bits": 60000})),
    "no date": dataclasses.asdict(row(date="")),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_are_drawn(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a plain row of another machine."""
    path, figure = tmp_path / "rows", tmp_path / "x.svg"
    other = row(machine={**row().machine, "name": "Another"}, median=2.0)
    path.write_text(json.dumps(ODD[name]) + "\n" + bench.line_of(other))
    assert call("plot", path, "--op", "ntt") == 0
    text = capsys.readouterr().out
    assert "Another (yours)" in text and text.replace("\n", "").isprintable() and "█" in text
    assert call("plot", path, "--op", "ntt", "--json") == 0
    boards = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [board["yours"] for board in boards] == [2]
    assert all(ps > 0 for m in boards[0]["machines"] for *_, cells in m["ps"] for _, ps in cells)
    assert call("plot", path, "--op", "ntt", "-o", figure) == 0
    circles = ElementTree.parse(figure).getroot().iter(f"{SPACE}circle")
    assert sum(circle.get("r") == "3" for circle in circles) == 2


def test_rows_that_give_no_figure_are_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows"
    for text, message in {
        "": "no row of a transform or product",
        "\n".join(['{"schema": 2}', '{"schema": null}']): "no row of a transform or product",
        bench.line_of(row(machine={"kind": "tpu", "name": "x"})): "no row of a transform or product",
        bench.line_of(row(unit="s")): "no row of a transform or product",
        bench.line_of(row(op="peer add", library="polygpu, call")): "no row of a transform or product",
        bench.line_of(row()): "no row is of the operation product. --op ntt draws others.",
    }.items():
        path.write_text(text)
        for more in ([], ["-o", tmp_path / "x.svg"]):
            assert call("plot", path, *more) == 2
            out, error = capsys.readouterr()
            assert out == "" and message in error and error.count("\n") == 1
    assert not (tmp_path / "x.svg").exists()


def test_bench_keeps_what_a_file_holds(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other versions, and rows that another process adds while this one measures."""
    path = tmp_path / "rows"
    before = '{"schema": 2, "of": "a later version"}\n' + json.dumps({**dataclasses.asdict(row()), "more": 1})
    path.write_text(before)
    meanwhile = bench.line_of(row(op="intt"))

    def measured(devices: Any, told: Any) -> list[Row]:
        with path.open("a") as file:
            file.write("\n" + meanwhile)
        return [row(op="product")]

    monkeypatch.setattr(bench, "measure_here", measured)
    assert call("bench", "--out", path) == 0
    lines = path.read_text().splitlines()
    assert lines[:3] == [*before.splitlines(), meanwhile.strip()] and json.loads(lines[3])["op"] == "product"
    assert [r.op for r in bench.rows_of(str(path))] == ["ntt", "intt", "product"]


def test_files_that_cannot_be_read_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    other = tmp_path / "other"
    other.write_text(bench.line_of(row(op="add")))
    for arguments, message in (
        (("plot", tmp_path / "none"), "none: no such file"),
        (("plot", tmp_path / "a\0b"), "null byte"),
        (("plot", tmp_path / "\ud800"), "surrogates"),
        (("plot", binary), "binary: no text"),
        (("plot", other), "other: no row of a transform"),
        (("plot", "-o", tmp_path / "none" / "x.svg"), "there is no folder"),
        (("bench", "--out", tmp_path / "none" / "rows"), "there is no folder"),
        (("bench", "--out", "/dev/null"), "no regular file"),
    ):
        assert call(*arguments) == 2
        out, error = capsys.readouterr()
        assert out == "" and message in error and error.count("\n") == 1, error


# ---- plots ----


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Of a CPU, twice as slow a coefficient at the larger degree, and of a GPU, as fast at both."""
    path = tmp_path / "rows"
    name = "Mine & <yours>"
    with path.open("w") as file:
        for i, n in enumerate((2**12, 2**14)):
            for op in bench.OPS:
                params = {"n": n, "bits": 50}
                cpu = row(op=op, params=params, work=n, median=n * 2.0**i)
                file.write(bench.line_of(dataclasses.replace(cpu, machine={**cpu.machine, "name": name})))
                gpu = {**params, "launch": "plain", "batch": 2}
                card = {**GPU, "name": "A GPU"}
                told = {"ntt": "forward", "intt": "inverse"}.get(op, op)
                file.write(
                    bench.line_of(row(op=told, params=gpu, machine=card, work=2 * n, median=2 * n * 0.004))
                )
    return path


def test_bars_of_text(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert call("plot", rows, "--op", "ntt") == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 100 for line in out.splitlines())
    parts = out.split("\n\n")
    assert [part.splitlines()[0] for part in parts if part.strip()] == [
        "ntt, one core, one polynomial: ns a coefficient, shorter is faster",
        "ntt, GPU, batches: ps a coefficient, shorter is faster",
    ]
    bars = re.findall(r"^ *(2\^\d+)? +([A-D]) (█+) ([\d.]+)$", parts[0], re.MULTILINE)
    machines = [{(n, b): ps for (op, b, n), ps in m.ps.items() if op == "ntt"} for m in bench.recorded()]
    values = [float(value) for _, _, _, value in bars]
    cpus = machines[: sum(m.kind == "cpu" for m in bench.recorded())]
    expected = [x for n, own in ((2**12, 1), (2**14, 2)) for x in (own, *(m[n, 50] / 1000 for m in cpus))]
    assert values == pytest.approx(expected, rel=0.01)
    assert [letter for _, letter, _, _ in bars] == ["A", "B", "C", "D"] * 2
    longest = max(values)
    for _, _, bar, value in bars:
        assert len(bar) == pytest.approx(46 * float(value) / longest, abs=1)
    assert "A  Mine & <yours> (yours): one core, avx2" in out
    assert "A  A GPU (yours): driver 580" in out and "NVIDIA H200" in out


def test_bars_of_ascii(rows: Path) -> None:
    board = bench.boards(bench.figures(bench.rows_of(str(rows))), [])[0]
    lines = bench.bars(board, "product", 40, "#")
    assert lines[1:] == ["50 bits", "  2^12  A ######## 1.00", "  2^14  A ################ 2.00"]


def test_recorded_machines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plot") == 0
    out = capsys.readouterr().out
    assert "(yours)" not in out and "AMD EPYC" in out and "NVIDIA H200" in out
    assert set(re.findall(r"^(\d+) bits$", out, re.MULTILINE)) == {"30", "50", "60"}


def test_an_svg(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.svg"
    path.write_text("old")
    assert call("plot", rows, "-o", path) == 0 and capsys.readouterr().out == ""
    root = ElementTree.parse(path).getroot()
    width, height = (float(x) for x in root.attrib["viewBox"].split()[2:])
    words = [node.text for node in root.iter(f"{SPACE}text")]
    assert "A  Mine & <yours> (yours): one core, avx2, 4.00 to 4.00 GHz" in [w[:59] for w in words if w]
    panels = list(root.iter(f"{SPACE}g"))
    assert len(panels) == 2  # 50 bits, of the CPU and of the GPU
    for panel, mine in zip(panels, ((1.0, 2.0), (4.0, 4.0)), strict=True):
        dots = [x for x in panel.iter(f"{SPACE}circle") if x.get("r") == "3"]
        at = [(float(x.attrib["cx"]), float(x.attrib["cy"])) for x in dots]
        assert len(at) == 2 and at[0][0] < at[1][0] and all(0 < x < width and 0 < y < height for x, y in at)
        assert at[0][1] > at[1][1] if mine[1] > mine[0] else at[0][1] == at[1][1]  # up is slower
        assert {x.get("fill") for x in dots} == {bench.COLOURS[0]}
        others = [x for x in panel.iter(f"{SPACE}circle") if x.get("r") == "2"]
        assert others and bench.COLOURS[0] not in {x.get("fill") for x in others}
    assert call("plot", "--op", "intt", "-o", path) == 0
    assert len(list(ElementTree.parse(path).getroot().iter(f"{SPACE}g"))) == 6


def test_plot_as_json(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plot", rows, "--json") == 0
    boards = json.loads(capsys.readouterr().out)
    assert [(b["kind"], b["yours"]) for b in boards] == [("cpu", 1), ("gpu", 1)]
    assert boards[0]["machines"][0]["ps"][0] == ["intt", 50, [[4096, 1000.0], [16384, 2000.0]]]


def test_a_table_of_figures() -> None:
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
