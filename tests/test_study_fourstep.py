"""Four-step transforms: every kernel on the simulated card, the run, the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import nvrtc
import pytest
from cudasim import check, simulated_cuda
from test_benchmarks import Card, row, squares
from test_studies import CHECKED, H100, ORDERS, Clock, compiled, needs_compiler

from benchmarks import harness, report
from benchmarks.studies import fourstep, kernel, ncu, runner, transforms
from benchmarks.studies.fourstep import COLUMNS, STEPS, VARIANTS, Size
from polygpu import backends

# Few and many columns, a batch; the longest rows.
SIZES = (Size(5, 11, 2), Size(9, 10, 1), Size(5, 15, 1))


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch):
    """What was made under one simulation is not that of the next."""
    cached = (fourstep.values, fourstep.after, fourstep.tables, fourstep.kernels, backends.get_backend)
    monkeypatch.setattr(kernel, "toolkit_headers", lambda: ())
    monkeypatch.setattr(fourstep, "SIZES", SIZES)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def by_definition(x: list[int], roots: list[int], q: int) -> list[int]:
    """Values of a polynomial at points."""
    found = []
    for root in roots:
        value = 0
        for coefficient in reversed(x):
            value = (value * root + coefficient) % q
        found.append(value)
    return found


def test_values_between_the_steps_are_those_of_the_definition():
    """Of columns, W, the first stages of a row and whole transforms: some of each, in Python integers."""
    size, q = Size(5, 10, 2), transforms.modulus()
    values, psi = fourstep.values(size), transforms.root(size.degree)
    n1, n2 = size.n1, size.n2
    assert pow(psi, size.degree, q) == q - 1
    shape = (size.batch, n1, n2)
    x, turned = values.x.reshape(shape), values.turned.reshape(size.batch, n2, n1)
    columns, weighted, across = (v.reshape(shape) for v in (values.columns, values.weighted, values.across))
    reverse = [int(f"{k:05b}"[::-1], 2) for k in range(n1)]
    for b, j in ((0, 0), (1, 7), (1, n2 - 1)):
        column = x[b, :, j].tolist()
        assert turned[b, j].tolist() == column
        points = by_definition(column, [pow(psi, n2 * (2 * k + 1), q) for k in reverse], q)
        assert columns[b, :, j].tolist() == points
        factors = [pow(psi, (2 * k + 1) * j, q) for k in reverse]
        assert weighted[b, :, j].tolist() == [y * w % q for y, w in zip(points, factors, strict=True)]
    omega = pow(psi, 2 * n1, q)
    for b, r, offset in ((0, 3, 0), (1, 31, 511)):
        # Modulo X^512 - z for both z with z^2 = 1.
        parts = by_definition(weighted[b, r, offset::512].tolist(), [1, pow(omega, 512, q)], q)
        assert across[b, r, offset::512].tolist() == parts
    for b, k in ((0, 0), (1, 12345), (1, size.degree - 1)):
        at = int(f"{k:015b}"[::-1], 2)
        assert [values.whole[b, at]] == by_definition(values.x[b].tolist(), [pow(psi, 2 * k + 1, q)], q)


def verdicts(cupy: Any, size: Size, chosen: Callable[[str], bool]) -> dict[str, bool]:
    """Whether entries write what they should, and lazy values are within their bound."""
    found = {}
    for group in fourstep.groups(size):
        x = cupy.asarray(group.x())
        for name, make in group.entries:
            if not chosen(name):
                continue
            entry, y = make(), cupy.full(x.shape, runner.POISON, np.uint64)
            entry.run(x, y)
            got = y.get()
            if entry.modulus is not None:
                assert entry.modulus <= int(got.max()) < 15 * entry.modulus  # Lazy60's LIMIT
                got %= np.uint64(entry.modulus)
            found[name] = np.array_equal(got, entry.expected())
            assert np.array_equal(x.get(), group.x())
    return found


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
def test_steps_and_whole_transforms(order):
    """Few columns and many; rows of 2 and of 4 parts."""
    own = {step.name for step in STEPS} | set(VARIANTS)
    with simulated_cuda(order=order, seed=5, concurrent_blocks=2) as cupy:
        for size in SIZES[:2]:
            found = verdicts(cupy, size, own.__contains__)
            assert found == dict.fromkeys(found, True) and set(found) == own


@needs_compiler
def test_the_longest_rows_and_passes_of_the_library():
    with simulated_cuda() as cupy:
        found = verdicts(cupy, SIZES[0], lambda name: name.startswith(fourstep.LIBRARY))
        assert found == {"D": True, "D, pass 1 of 2": True, "D, pass 2 of 2": True}
        found = verdicts(cupy, SIZES[2], lambda name: name.startswith("rows"))
        assert len(found) == 3 and all(found.values())


@needs_compiler
def test_the_largest_residues(monkeypatch):
    """q - 1 everywhere, at each step's input."""
    q = transforms.modulus()
    with simulated_cuda() as cupy:
        for takes in dict.fromkeys(step.takes for step in STEPS):
            fourstep.values.cache_clear()
            fourstep.after.cache_clear()
            size = SIZES[0]
            x = np.full((size.batch, size.degree), q - 1, np.uint64)
            fourstep.values(size).__dict__[takes] = x
            given = cupy.asarray(x)
            for step in (s for s in STEPS if s.takes == takes):
                entry, y = fourstep.one_step(step, size), cupy.empty_like(given)
                entry.run(given, y)
                got = y.get() % np.uint64(q) if entry.modulus else y.get()
                expected = expected_of(step, size, x)
                assert np.array_equal(got, expected), step.name


def expected_of(step: fourstep.Step, size: Size, x: np.ndarray) -> np.ndarray:
    """A step's result for any x, through those of Values that lead from its own input."""
    values = fourstep.values(size)
    if step.takes == "turned":
        values.__dict__["x"] = np.ascontiguousarray(x.reshape(-1, size.n2, size.n1).swapaxes(1, 2)).reshape(
            x.shape
        )
    if step.takes == "across":  # rows, each by its part of the tree
        q, omega = transforms.modulus(), pow(transforms.root(size.degree), 2 * size.n1, transforms.modulus())
        rows = np.full((1, size.n2), 0, np.uint64)
        for part in range(size.parts):
            # a(X) mod X^512 - z is all q - 1: its values at the 512 roots of z.
            index = int(f"{part:0{size.log_n2 - 9}b}"[::-1], 2)
            for i in range(512):
                root = pow(omega, index + size.parts * int(f"{i:09b}"[::-1], 2), q)
                total = 512 if root == 1 else (pow(root, 512, q) - 1) * pow(root - 1, -1, q)
                rows[0, 512 * part + i] = -total % q
        return np.broadcast_to(rows, (size.batch, size.n1, size.n2)).reshape(x.shape)
    return getattr(values, step.gives)


def test_races():
    """None in the kernels but the transpose, seen elsewhere; one where stages do not wait for each other."""
    if reason := check.missing("thread"):
        pytest.skip(f"thread sanitizer: {reason}")
    steps = """
from benchmarks.studies import transforms
from benchmarks.studies.fourstep import COLUMNS, STEPS, Size, launch, tables
few, many = Size(5, 10, 1), Size(9, 5, 1)
def run(plan):
    made = [(launch(step, size), size) for step, size in plan]
    functions = kernel.load("fourstep.cu", [one.expression for one, _ in made])
    for one, size in made:
        x = cupy.asarray(transforms.residues(size.degree))
        constants = one.arguments(tables(size.log_n1, size.log_n2, 0))
        function, arguments = functions[one.expression], (x, cupy.empty_like(x), *constants)
        function.max_dynamic_shared_size_bytes = one.dynamic_bytes
        function(one.grid, one.block, arguments, shared_mem=one.dynamic_bytes)
"""
    right = check.run_code(
        "thread",
        CHECKED
        + steps
        + """
with simulated_cuda() as cupy:
    run([*((step, few) for step in STEPS[1:]), *((step, many) for step in STEPS if step.part == "columns")])
""",
        environment={"PYTHONPATH": str(harness.ROOT)},
    )
    assert right.clean, right
    wrong = check.run_code(
        "thread",
        CHECKED
        + steps
        + """
import pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as folder, simulated_cuda() as cupy:
    kernel.KERNELS = pathlib.Path(shutil.copytree(kernel.KERNELS, folder, dirs_exist_ok=True))
    header = kernel.KERNELS / "stages.cuh"
    text = header.read_text()
    assert text.count("synchronise<1 << LOG_THREADS>();") == 1
    header.write_text(text.replace("synchronise<1 << LOG_THREADS>();", ""))
    run([(COLUMNS, few)])
""",
        environment={"PYTHONPATH": str(harness.ROOT)},
    )
    assert wrong.returncode == 0, wrong
    assert any("data race" in text and "columns_in_place" in text for text in wrong.reports), wrong


SHIPPED = fourstep.SIZES  # as imported


def test_kernels_compile():
    """Without spills, with half of a multiprocessor's threads or more, in the shared memory there is."""
    made = {x.expression: x for size in SHIPPED for x in (fourstep.launch(step, size) for step in STEPS[1:])}
    for expression, usage in compiled("fourstep.cu", list(made)).items():
        one = made[expression]
        assert usage.spilled == 0, expression
        assert H100.occupancy(one.threads, usage.registers, one.dynamic_bytes) >= 0.5, expression
    assert fourstep.launch(COLUMNS, Size(9, 15, 1)).dynamic_bytes == 512 * 128 <= nvrtc.CARDS[90].shared_bytes


def test_shapes_of_two_passes():
    """The library's own first, then about a dozen others that the card can launch, each once."""
    for log_points in fourstep.LOG_POINTS:
        shapes = fourstep.shapes(log_points, nvrtc.CARDS[90])
        assert 12 <= len(shapes) == len(set(shapes)) <= 16
        assert shapes[0] == backends.cuda.tiles.split_passes(1 << log_points, 1, 8, nvrtc.CARDS[90])
        for columns, rows in shapes:
            assert columns.log_length + rows.log_length == log_points
            assert (columns.log_blocks, rows.log_blocks) == (0, columns.log_length)
            assert all(32 <= p.threads <= 512 for p in (columns, rows))
        widths = {columns.log_columns for columns, _ in shapes}
        assert widths == {2, 3, 4}
        assert len({columns.log_length for columns, _ in shapes}) >= 3


# ---- the run ----


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(fourstep, "SIZES", SIZES[:1])
    monkeypatch.setattr(fourstep, "LOG_POINTS", (16,))
    monkeypatch.setattr(fourstep, "BATCH_BYTES", 2 << 19)
    shapes = fourstep.shapes
    monkeypatch.setattr(fourstep, "shapes", lambda n, card: shapes(n, card)[:3])  # of the same lengths
    monkeypatch.setattr(harness, "SAMPLE_NS", 1000)
    monkeypatch.setattr(harness, "SAMPLES", 3)
    monkeypatch.setattr(Clock, "total_ns", 0)
    monkeypatch.setattr(Clock, "warm_up_ns", 0)


def counted(study: str, kernels: list[str]) -> list[ncu.Counted]:
    assert study == "fourstep" and len(kernels) == len(list(fourstep.launches()))
    counters = {ncu.FIGURES["bank_conflicts"]: 65.0, ncu.STALLED.format("barrier"): 2.5}
    return [ncu.Counted(k, counters) for k in kernels]


@needs_compiler
def test_a_whole_run(tmp_path, small, monkeypatch, capsys):
    monkeypatch.setattr(ncu, "count", counted)
    with simulated_cuda():
        assert fourstep.main(tmp_path, Clock()) == 0
    assert "FAILED" not in (said := capsys.readouterr().out) and "skipped" not in said
    rows = harness.rows(tmp_path)
    cells = fourstep.KINDS["fourstep-whole"].cells(rows)
    (size,) = fourstep.sizes_of(cells)
    assert size == SIZES[0]
    own = fourstep.own(cells, size)
    names = {step.name for step in STEPS} | {*VARIANTS, "D", "D, pass 1 of 2", "D, pass 2 of 2"}
    assert {name for name in own if not name.startswith("copy")} == names
    for name in names:
        f = own[name].figures
        assert own[name].verified and own[name].work == size.points
        assert ("bank_conflicts" in f) == (name not in (*VARIANTS, "D"))  # single kernels are counted
        assert f["copy_share"] == pytest.approx(f["words_a_point"] / 2, rel=1e-3)  # of a clock that says so
    assert [own[v].figures["launches"] for v in (*VARIANTS, "D")] == [4, 3, 3, 2]
    # W is read once for both transforms of the batch; small tables come to it.
    for variant, words in (("A", 8.5), ("B", 6.5), ("C", 6)):
        assert words < own[variant].figures["words_a_point"] < words + 0.15
    shapes = [r for r in rows if r.op == fourstep.PASSES_OP and r.library == "polygpu"]
    assert [r.params["columns"] for r in shapes] == [f"2^4 x {w}, 16 a thread" for w in (16, 4, 8)]
    assert [r.figures["taken"] for r in shapes] == [1, 0, 0] and {r.work for r in shapes} == {2 << 16}


@needs_compiler
def test_wrong_results_are_not_timed(tmp_path, small, monkeypatch, capsys):
    """One value off, in what is lazy and in whole transforms."""
    monkeypatch.setattr(fourstep, "PARTS", {"steps": fourstep.steps})
    monkeypatch.setattr(ncu, "count", counted)
    values = fourstep.values(SIZES[0])
    for name in ("across", "whole"):
        off = getattr(values, name).copy()
        off[1, 5] ^= np.uint64(1)
        values.__dict__[name] = off
    with simulated_cuda():
        assert fourstep.main(tmp_path, Clock()) == 1
    said = capsys.readouterr().out
    rows = {str(r.params["variant"]) for r in harness.rows(tmp_path)}
    right = {"copy", "D, pass 1 of 2", "transpose"} | {s.name for s in STEPS if s.part == "columns"}
    assert rows == right and said.count("FAILED") == 8


# ---- the page ----

PAGE = "\n".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in fourstep.KINDS)


def made_up(op: str, us: float, params: dict[str, Any], **figures: float) -> harness.Row:
    n = int(params.get("n1", 1)) * int(params.get("n2", 1)) * int(params.get("n", 1)) * int(params["batch"])
    measured = harness.measure(squares(op=op, library="polygpu", params=params, work=n), Card())
    figures = {"us_median": us, "gbps": 100.0, "copy_gbps": 200.0, "copy_share": 0.5} | figures
    machine = {**Clock().machine(), "kind": "gpu"}
    return dataclasses.replace(
        measured, machine=machine, commit="c0ffee", dirty=False, median=1000 * us, figures=figures
    )


def rows_of(size: Size) -> list[harness.Row]:
    """The k-th step takes k microseconds, from 1; whole ones take half of the sum."""
    names = [*(step.name for step in STEPS), "D, pass 1 of 2", "D, pass 2 of 2"]
    times = {name: float(i + 1) for i, name in enumerate(names)}
    rows = [
        made_up(
            "fourstep",
            us,
            size.params | {"takes": "x", "variant": name},
            words_a_point=2.0,
            blocks=8,
            threads=256,
            registers=40,
            shared_bytes=4096,
            occupancy=0.75,
            achieved_occupancy=0.5,
            bank_conflicts=size.points / 100,
            load_sectors=320.0,
            load_requests=40.0,
            thread_instructions=size.points * 30.0,
            stall_wait=1.0,
            stall_barrier=2.25,
            stall_long_scoreboard=8.0,
            stall_imc_miss=0.5,
        )
        for name, us in times.items()
    ]
    for variant, steps in VARIANTS.items():
        total = sum(times[step.name] for step in steps) / 2
        rows.append(
            made_up(
                "fourstep",
                total,
                size.params | {"takes": "x", "variant": variant},
                words_a_point=2.0 * len(steps),
                launches=len(steps),
            )
        )
    rows.append(
        made_up("fourstep", 8.5, size.params | {"takes": "x", "variant": "D"}, words_a_point=4.0, launches=1)
    )
    return rows


def test_the_page_follows_the_rows():
    passes = {"n": 2**16, "batch": 128}
    figures = {"column_threads": 256, "row_threads": 512}
    rows = [
        *rows_of(Size(5, 12, 1)),
        *rows_of(Size(5, 12, 64))[:-1],
        made_up("fourstep passes", 9, passes | {"variant": "copy"}),
        made_up(
            "fourstep passes",
            20,
            passes | {"variant": "passes", "columns": "2^4 x 16", "rows": "2^12"},
            **figures,
            taken=1,
            launches=1,
        ),
        made_up(
            "fourstep passes",
            10,
            passes | {"variant": "passes", "columns": "2^8 x 4", "rows": "2^8"},
            **figures,
            taken=0,
            launches=2,
        ),
        row(op="ntt"),
    ]
    text = report.rewrite(PAGE, rows)
    for line in (
        "**2^17 = 32 x 4096 points, one transform**",
        "| transpose | A | 1.00 | 7.63 | 2.00 | 100 | 50% |",
        "| rows across, times W | A, B | 3.00 | 22.9 | 2.00 | 100 | 50% |",
        "| rows within | A, B, C | 4.00 | 30.5 | 2.00 | 100 | 50% |",
        "| D, pass 2 of 2 | D | 9.00 | 68.7 | 2.00 | 100 | 50% |",
        "| A | 4 | 10.0 | 5.00 | 38.1 | 8.00 | 50% | 12% | 0.59 |",
        "| D | 1 | 17.0 | 8.50 | 64.8 | 4.00 | 50% | 25% | 1.00 |",
        "| rows within | 8 | 256 | 40 | 4.0 | 75% | 50% | 10.0 | 8.0 |  | 30.0 "
        "| long scoreboard 8.0, barrier 2.2, wait 1.0 |",
        "| 2^8 x 4 | 2^8 | 256 / 512 | 2 | 10.0 | 1.19 | 50% | 0.50 |  |",
        "| 2^4 x 16 | 2^12 | 256 / 512 | 1 | 20.0 | 2.38 | 50% | 1.00 | yes |",
    ):
        assert line in text, line
    assert text.index("one transform**") < text.index("64 transforms**")
    assert text.index("| 2^8 x 4 |") < text.index("| 2^4 x 16 |")  # the fastest first
    assert report.rewrite(text, rows) == text


def test_the_figure_follows_the_rows():
    kind, draw = fourstep.FIGURES["studies/fourstep.svg"]
    assert report.drawn(kind, draw, []) is None
    rows = [*rows_of(Size(5, 12, 1)), *rows_of(Size(5, 12, 64))[:-1]]
    svg = report.drawn(kind, draw, rows)
    assert svg is not None
    for words in (
        "2^17 = 32 x 4096 points, 64 transforms",
        "76.3, whole 38.1",  # A: 10 us for 2^17 points
        "transpose",
        "rows across",
        "pass",
    ):
        assert words in svg, words
    assert svg.count(", whole") == 7  # the D of the second has none
    missing = [r for r in rows_of(Size(5, 12, 1)) if r.params["variant"] != COLUMNS.name]
    assert report.drawn(kind, draw, missing).count(", whole") == 3  # no B


def test_the_page_has_all_tables():
    page = (harness.ROOT / "docs" / "studies" / "fourstep.md").read_text()
    assert all(f"<!-- table: {name} -->" in page for name in fourstep.KINDS)
    assert "](fourstep.svg)" in page
