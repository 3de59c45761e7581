"""The studies of 64- and 256-point transforms: kernels on the simulated card, oracles, runs and pages."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from functools import partial

import numpy as np
import nvrtc
import pytest
from cudasim import check, simulated_cuda
from test_benchmarks import Card, row, squares
from test_studies import H100, ORDERS, Clock, compiled, needs_compiler

from benchmarks import harness, report
from benchmarks.studies import kernel, ncu, ntt64, ntt256, runner, transforms
from polygpu import backends
from polygpu.backends.cuda.tiles import Card as PassCard
from polygpu.backends.cuda.tiles import Pass, flow_lag, split_passes
from polygpu.backends.reference import reverse_bits

STUDIES = {"ntt64": ntt64, "ntt256": ntt256}
CACHED = (
    backends.get_backend,
    *(ntt64.kernels, ntt64.transformed_period),
    *(ntt256.kernels, ntt256.period, ntt256.own_rows),
)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few transforms, whose kernels are those of one simulation."""
    monkeypatch.setattr(kernel, "toolkit_headers", lambda: ())
    monkeypatch.setattr(ntt64, "BLOCKS", (1, 3))
    monkeypatch.setattr(ntt64, "PERIOD", 7)
    monkeypatch.setattr(ntt64, "SWEEP", ((2, 5), (5, 8)))
    monkeypatch.setattr(ntt256, "BATCHES", (1, 2))
    monkeypatch.setattr(ntt256, "PERIOD", 2)
    for cached in CACHED:
        cached.cache_clear()
    yield
    for cached in CACHED:
        cached.cache_clear()


# ---- kernels ----


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("study", STUDIES)
def test_kernels(study, order):
    """Every variant, one block and more: all of y, where nothing may be written too."""
    seen = set()
    with simulated_cuda(order=order, seed=5, concurrent_blocks=2) as cupy:
        for group in STUDIES[study].groups():
            x = cupy.asarray(group.x())
            for entry in group.made(pytest.fail):
                y = cupy.full(x.shape, runner.POISON, np.uint64)
                entry.run(x, y)
                expected = entry.expected().reshape(x.shape)
                assert np.array_equal(y.get(), expected), (str(group), entry.variant, entry.params)
                assert entry.variant == "copy" or not np.array_equal(expected, x.get())
                seen.add(entry.variant)
    if study == "ntt64":
        own = {ntt64.own_variant(threads) for threads in (32, 256)}
        assert seen == {"copy", "polygpu", ntt64.PLAIN, ntt64.THIRD, *ntt64.STAGES, *own}
    else:
        assert seen >= {"copy", "polygpu", *ntt256.PIPELINES, *(s.variant for s in ntt256.STAGES)}


CHECKED = """
import numpy as np
from cudasim import simulated_cuda
from benchmarks.studies import kernel, ntt64, ntt256
kernel.toolkit_headers = lambda: ()
POISON, ROWS = 0xA5A5A5A5A5A5A5A5, 8
with simulated_cuda() as cupy:
    ntt64.BLOCKS, ntt64.PERIOD, ntt64.OWN_LOG_ROWS, ntt256.PERIOD = (2,), 7, (), 1
    (group,) = ntt64.groups()
    x = cupy.asarray(group.x())
    for name, make in group.entries:
        entry = make()
        y = cupy.full(x.shape, POISON, np.uint64)
        entry.run(x, y)
        assert np.array_equal(y.get(), entry.expected()), name
    first = {stage.expression: stage for stage in ntt256.STAGES}
    for stage in first.values():
        if stage.held:  # some rows of a matrix
            object.__setattr__(stage, "grid", lambda batch: (ROWS // stage.held,))
        x = cupy.asarray(ntt256.group(stage.name, 1, []).x())
        y = cupy.full(x.shape, POISON, np.uint64)
        entry = ntt256.alone(stage, 1)
        entry.run(x, y)
        expected = np.full(x.shape, POISON, np.uint64)
        rows = slice(ROWS if stage.held else None)
        at = np.s_[:, :, rows] if "AS_COLUMNS" in stage.expression else np.s_[:, rows]
        expected[at] = entry.expected()[at]
        assert np.array_equal(y.get(), expected), stage
"""


def test_races():
    if reason := check.missing("thread"):
        pytest.skip(f"thread sanitizer: {reason}")
    checked = check.run_code("thread", CHECKED, environment={"PYTHONPATH": str(harness.ROOT)})
    assert checked.clean, checked


def test_kernels_compile():
    """Without spills; those through shared memory fill a multiprocessor's warps, as the note's do."""
    names = [*map(ntt64.expression, ntt64.STAGES), ntt64.REGISTERS]
    usages = compiled("ntt64.cu", names)
    assert all(usages[name].spilled == 0 for name in names)
    assert {H100.occupancy(128, usages[name].registers, 2048) for name in names[:-1]} == {1}
    few = usages[ntt64.REGISTERS].registers
    assert H100.occupancy(32, few, 2048) == 0.5
    assert H100.occupancy(32, few, ntt64.THIRD_BYTES) == 21 / 64
    own = [stage for stage in ntt256.STAGES if stage.held]
    usages = compiled("ntt256.cu", list(dict.fromkeys(stage.expression for stage in own)))
    for stage in own:
        usage = usages[stage.expression]
        assert usage.spilled == 0
        assert H100.occupancy(stage.block[0], usage.registers, 8 * (stage.held * 256 + 16)) == 1


def test_shapes_of_the_sweep_compile(monkeypatch):
    """The smallest and the largest blocks; what polygpu takes by itself is among the shapes."""
    monkeypatch.undo()
    shapes = [Pass(0, 6, 0, k + v - 6, v) for v, k in ntt64.SWEEP]
    assert {one.threads for one in shapes} == {32, 64, 128, 256} and len(shapes) == 16
    assert ntt64.taken() in [tuple(ntt64.shape_of(one).values()) for one in shapes]
    if nvrtc.library_path() is None:
        pytest.skip("NVRTC is not installed")
    shapes = [one for one in shapes if one.threads in (32, 256)]
    names = [f"ntt_forward<{transforms.WORD}, {one.shape}, false, false>" for one in shapes]
    usages = nvrtc.Compiler().compile("ntt.cu", names, 90)
    for one, name in zip(shapes, names, strict=True):
        assert H100.resident(one.threads, usages[name].registers, 8 * one.shared_values) >= 2


# ---- oracles ----


def by_definition(x: list[int], k: int) -> int:
    """Value k, in natural order, of the negacyclic transform."""
    q, psi = transforms.modulus(), transforms.root(len(x))
    point, found = pow(psi, 2 * k + 1, q), 0
    for value in reversed(x):
        found = (found * point + value) % q
    return found


def test_the_oracle_of_64_points():
    """By definition, with the largest residue among the values; ablations in words of their own."""
    x, right = ntt64.values(3), ntt64.expected(ntt64.WHOLE, 3)
    assert x.max() == transforms.modulus() - 1 and x.shape == right.shape == (12, 64)
    for which in (0, 5, 11):
        values = x[which].tolist()
        assert [by_definition(values, reverse_bits(i, 64)) for i in range(64)] == right[which].tolist()
    butterflies, shared = ntt64.expected(ntt64.BUTTERFLIES, 3), ntt64.expected(ntt64.SHARED, 3)
    for i in range(64):
        assert (butterflies[:, i] == x[:, i ^ 63]).all() and (shared[:, i] == x[:, i ^ 32]).all()


def test_the_network_with_one_twiddle():
    """Result i is the sum of values n, times w for each bit of n, and -1 where i has that bit too."""
    x, q, w = ntt64.first_period(), transforms.modulus(), ntt64.one_twiddle()
    right = ntt64.network(x)
    for values, found in zip(x.tolist(), right.tolist(), strict=True):
        for i in (0, 1, 38, 63):
            terms = (v * w ** bin(n).count("1") * (-1) ** bin(n & i).count("1") for n, v in enumerate(values))
            assert sum(terms) % q == found[i]


def test_what_is_written_without_global_memory():
    """One number, there and nowhere else; it lies in the first block, and repeats where the values do."""
    right = ntt64.expected(ntt64.GLOBAL, 3)
    written = np.argwhere(right != runner.POISON)
    assert written.tolist() == [[2, 37]] and right[2, 37] < transforms.modulus()
    large = ntt64.expected(ntt64.GLOBAL, 512)
    assert np.argwhere(large != runner.POISON).tolist() == [[2, 37], [1026, 37]]
    assert (2**16 - 1) * 0x5851F42D4C9 < 2**59 < transforms.modulus()


def test_the_four_steps():
    """Stage by stage they lead to the transform itself, of which two values are checked by definition."""
    found = ntt256.period()
    assert np.array_equal(found[ntt256.ROWS], found[ntt256.WHOLE])
    values = found[""].reshape(2, -1)[1].tolist()
    whole = found[ntt256.WHOLE].reshape(2, -1)[1]
    for k in (0, 54321):
        assert by_definition(values, k) == whole[reverse_bits(k, 2**16)]
    assert ntt256.array(ntt256.ROWS, 3).shape == (3, 256, 256)
    for stage, before in ((ntt256.TRANSPOSE, ""), (ntt256.DEFAULT, ntt256.COLUMNS)):
        assert np.array_equal(found[stage], found[before].transpose(0, 2, 1))


def test_what_polygpu_takes():
    """Two passes of 8 stages for one transform, and a flow for the batch that is measured."""
    card = nvrtc.CARDS[90]
    few = split_passes(2**16, 1, 8, card, True)
    assert [one.log_length for one in few] == [8, 8]
    columns, last = split_passes(2**16, 1, 8, card)
    assert flow_lag(columns, last, 16, 256, transforms.WORD, card) > 0
    for few, shape in ((False, (4, 256)), (True, (3, 64))):
        assert (transforms.taken(256, few).log_values, transforms.taken(256, few).threads) == shape
        assert split_passes(256, 1, 8, PassCard((7, 5), 64 << 10), few) == (transforms.taken(256, few),)


# ---- runs ----


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(harness, "SAMPLE_NS", 1000)
    monkeypatch.setattr(harness, "SAMPLES", 3)
    monkeypatch.setattr(Clock, "total_ns", 0)
    monkeypatch.setattr(Clock, "warm_up_ns", 0)
    monkeypatch.setattr(ntt64, "SWEEP", ((4, 8),))
    monkeypatch.setattr(ntt64, "OWN_LOG_ROWS", (2,))
    monkeypatch.setattr(ntt256, "BATCHES", (1,))
    monkeypatch.setattr(ntt64, "BLOCKS", (1, 2))


@needs_compiler
@pytest.mark.parametrize("study", STUDIES)
def test_a_whole_run(study, tmp_path, monkeypatch, quick, capsys):
    """A row for each entry, counted where it is one kernel; rows make the page."""
    module = STUDIES[study]

    def counted(name: str, kernels: list[str]) -> list[ncu.Counted]:
        assert name == study and len(kernels) == len(list(module.launches()))
        return [ncu.Counted(k, {"launch__registers_per_thread": 32}) for k in kernels]

    monkeypatch.setattr(ncu, "count", counted)
    with simulated_cuda():
        groups = module.groups()
        assert module.main(tmp_path, Clock()) == 0
    said = capsys.readouterr().out
    assert "FAILED" not in said and "skipped" not in said
    rows = harness.rows(tmp_path)
    assert len(rows) == sum(1 + len(group.entries) for group in groups)
    assert len({(r.op, *sorted(map(str, r.params.items()))) for r in rows}) == len(rows)
    for r in rows:
        assert r.verified and r.figures["us_median"] > 0
        one = r.params.get("stage") != ntt256.WHOLE and r.params["variant"] != "copy"
        assert ("counted_registers" in r.figures) == one
    page = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in module.KINDS)
    assert "Nothing has been measured" not in report.rewrite(page, rows)
    for name, (kind, draw) in module.FIGURES.items():
        svg = report.drawn(kind, draw, rows)
        assert svg is None if "batch" in name else ET.fromstring(svg).tag.endswith("svg")  # a batch of one


@needs_compiler
@pytest.mark.parametrize(
    ("study", "wrong"), [("ntt64", ntt64.BUTTERFLIES), ("ntt64", ntt64.GLOBAL), ("ntt256", "4 a block")]
)
def test_wrong_results_are_not_timed(study, wrong, tmp_path, monkeypatch, quick, capsys):
    """Of a kernel that writes one value more."""
    module = STUDIES[study]
    monkeypatch.setattr(ncu, "find", lambda: None)
    made = runner.Group.made

    def spoilt(self: runner.Group, say):
        def run(x, y, entry):
            entry.run(x, y)
            y[-1, -1:] = 5

        own = [entry for entry in made(self, say) if entry.variant == wrong]
        return [dataclasses.replace(entry, run=partial(run, entry=entry)) for entry in own]

    monkeypatch.setattr(runner.Group, "made", spoilt)
    with simulated_cuda():
        assert module.main(tmp_path, Clock()) == 1
    assert f"{wrong} {{}}: FAILED" in capsys.readouterr().out
    assert harness.rows(tmp_path) == []


# ---- pages ----


def study_row(op: str, us: float, figures: dict[str, float], **params: int | str) -> harness.Row:
    """A row as if measured."""
    measured = harness.measure(squares(op=op, library="study", params=params), Card())
    machine = {**Clock().machine(), "kind": "gpu"}
    figures = {"us_median": us, "copy_share": 0.5, "copy_gbps": 2900.0} | figures
    return dataclasses.replace(
        measured, machine=machine, commit="c0ffee", dirty=False, median=1000 * us, figures=figures
    )


def pages_of(module, rows):
    page = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in module.KINDS)
    text = report.rewrite(page, rows)
    assert report.rewrite(text, rows) == text
    assert report.rewrite(page, [row(op="ntt")]).count("Nothing has been measured yet.") == len(module.KINDS)
    return text


def test_the_page_of_64_points_follows_the_rows():
    def own(us: float, variant: str, blocks: int = 512, **figures: float) -> harness.Row:
        return study_row("ntt64", us, figures, blocks=blocks, transforms=4 * blocks, variant=variant)

    def shape(us: float, values: int, threads: int) -> harness.Row:
        figures = {"registers": 80, "shared_bytes": 34816, "occupancy": 0.375}
        params = {"transforms": 262144, "values": values, "threads": threads, "variant": "polygpu"}
        return study_row("ntt64 shape", us, figures, **params)

    facts = {"threads": 32, "registers": 64, "shared_bytes": 9984, "occupancy": 0.3281}
    stalled = {"stall_wait": 1.04, "stall_math_pipe_throttle": 2.5, "stall_drain": 0, "stall_barrier": 0.5}
    stalled["stall_sleeping"] = 0.4
    rows = [
        own(10, ntt64.CONFLICTS, achieved_occupancy=0.7, occupancy=1, bank_conflicts=2048 * 32),
        own(8, ntt64.WHOLE, theoretical_occupancy=0.99, occupancy=1, bank_conflicts=0, **stalled),
        own(4, ntt64.SHARED),
        own(200, ntt64.WHOLE, 65536),
        own(100, ntt64.BUTTERFLIES, 65536),
        own(90, "copy", 65536),
        own(6, ntt64.THIRD, **facts, store_sectors=320, store_requests=10, bank_conflicts=2048 * 4),
        own(5, ntt64.own_variant(256), threads=256, shared_bytes=18432),
        shape(150, 16, 256),
        shape(100, 8, 64),
        study_row("ntt64 shape", 90, {}, transforms=262144, variant="copy"),
        row(op="ntt"),
    ]
    text = pages_of(ntt64, rows)
    for line in (
        "| time, us | the note | 3.39 | 3.52 | 11.1 | 10.1 | 856 | 825 |",
        "| time, us | here |  |  | 10.0 | 8.00 |  | 200 |",
        "| time by that with conflicts | the note |  | 1.04 |  | 0.92 |  | 0.96 |",
        "| time by that with conflicts | here |  |  |  | 0.80 |  |  |",
        "| achieved occupancy | the note | 8.28% | 8.23% | 72.70% | 71.82% | 94.64% | 95.28% |",
        "| achieved occupancy | here |  |  | 70.00% |  |  |  |",
        "| theoretical occupancy | here |  |  | 100% | 99% |  |  |",
        "| bank conflicts a transform | here |  |  | 32.0 | 0.0 |  |  |",
        "| stalls, cycles an instruction | here |  |  |  | math pipe throttle 2.5, wait 1.0, barrier 0.5 |",
        f"| {ntt64.GLOBAL} | 65536 x 4 | 825 |  |  | 200 |  |  |",
        f"| {ntt64.SHARED} | 512 x 4 | 10.1 | 1.92 | 19% | 8.00 | 4.00 | 50% |",
        f"| {ntt64.BUTTERFLIES} | 65536 x 4 | 825 | 650 | 79% | 200 | 100 | 50% |",
        "| conflicts | the note |  |  |  | 33.33% |  | 13.4 |  |  | 21.99% |  |  |  |  |",
        "| conflicts, more shared memory | here | 32 | 9.75 | 64 | 33% |  | 6.00 |  |  |  |  | 4.0 |  | 32.0",
        "| polygpu, 256 a block | here | 256 | 18.00 |  |  |  | 5.00 |",
        "| 16 | 256 | 150 |",
        "| 8 | 64* | 100 | 12500000 | 50% | 80 | 34.00 | 38% |",
    ):
        assert line in text, line
    assert text.index("| 8 | 64* |") < text.index("| 16 | 256 |")
    for name, (kind, draw) in ntt64.FIGURES.items():
        svg = report.drawn(kind, draw, rows)
        assert ET.fromstring(svg).tag.endswith("svg") and report.FIGURES[name] == (kind, draw)
    assert ">100 us<" in ntt64.ablation_bars(ntt64.KINDS["ntt64-note"].cells(rows))


def test_the_page_of_256_points_follows_the_rows():
    def own(us: float, stage: str, variant: str, batch: int = 1, **figures: float) -> harness.Row:
        return study_row("ntt256", us, figures, stage=stage, batch=batch, variant=variant)

    facts = {"blocks": 64, "threads": 512, "registers": 32, "shared_bytes": 8320, "occupancy": 1}
    rows = [
        own(2, "transpose", "16 x 16 tiles"),
        own(3, "columns", "1 a block, transposed by value"),
        own(5, "rows", "1 a block"),
        own(4, "columns", "4 a block", **facts, store_sectors=80, store_requests=10, bank_conflicts=512),
        own(2.5, "second transpose", "16 x 16 tiles"),
        own(6, "rows", "4 a block"),
        own(9, "whole", "original"),
        own(4.5, "whole", "polygpu"),
        own(100, "whole", "original", 256),
        row(op="ntt"),
    ]
    text = pages_of(ntt256, rows)
    for line in (
        "| original | 3.97 + 9.63 + 12.1 | 25.7 | 1.00 | 2.00 + 3.00 + 5.00 | 10.0 | 1.00 | 9.00 | 2.00 |",
        "| 4 a block, separate | 4.06 + 11.5 + 4.19 + 13.2 | 33.0 | 1.28 | 2.00 + 4.00 + 2.50 + 6.00 | 14.5",
        "| 4 a block, fused | 3.90 + 14.1 + 13.0 | 31.0 | 1.21 | 2.00 + ? + 6.00 |  |  |  |  |  |",
        "| polygpu |  |  |  |  |  |  | 4.50 | 1.00 | 50% |",
        "**256 transforms of 2^16**",
        "| original |  |  |  | 100 |  | 50% |",
        "| columns | 4 a block | 4.00 | 50% | 64 | 512 | 8.1 | 32 | 100% |  |  | 2.0 |  | 8.0 |",
    ):
        assert line in text, line
    assert "| whole |" not in text
    for name, (kind, draw) in ntt256.FIGURES.items():
        svg = report.drawn(kind, draw, rows)
        assert report.FIGURES[name] == (kind, draw)
        assert svg is None if "batch" in name else ET.fromstring(svg).tag.endswith("svg")  # no stages of it
    assert ">14.5<" in ntt256.stage_bars(1, ntt256.KINDS["ntt256-time"].cells(rows))
