"""The study of transposes: its kernels on the simulated card, its run, its page."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import numpy as np
import pytest
from cudasim import check, simulated_cuda
from test_benchmarks import Card, row, squares
from test_studies import ORDERS, Clock, _own_headers, compiled, needs_compiler  # noqa: F401  (a fixture)

from benchmarks import harness, report
from benchmarks.studies import kernel, ncu, transforms, transpose
from benchmarks.studies.runner import POISON
from benchmarks.studies.transpose import MANY, ONE, WITH, WITHOUT

SMALL = (transpose.Size((32, 256), (64, 128)), transpose.Size((64, 256), (256, 64)))
H100 = kernel.Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 * 1024)


@pytest.fixture(autouse=True)
def _own_kernels():
    """Those of one simulation are not those of the next."""
    transpose.kernels.cache_clear()
    yield
    transpose.kernels.cache_clear()


@pytest.fixture
def several_tiles(monkeypatch):
    """Sizes that take milliseconds, at which blocks have more tiles than one."""
    monkeypatch.setattr(transpose, "SIZES", SMALL)
    monkeypatch.setattr(transpose, "LEAST_BLOCKS", 1)


def by_definition(size: transpose.Size, entry) -> np.ndarray:
    """What a kernel must write, one Python int at a time."""
    q, n = transforms.modulus(), size.n
    x = [int(v) for v in transforms.residues(n)]
    p = entry.params
    rows, columns = size.batch if entry.variant == transpose.BATCH else size.matrix(str(p.get("of", MANY)))
    if entry.variant == "small_transpose_4096_W":
        w = transforms.root(n, "cyclic")
        x = [v * pow(w, (i // 4096) * (i % 4096), q) % q for i, v in enumerate(x)]
    elif entry.variant == "small_transpose_mult_4096" or p.get("twiddles") == WITH:
        w = transforms.root(rows * columns, "cyclic")
        x = [v * pow(w, i // columns % rows * (i % columns), q) % q for i, v in enumerate(x)]
    y = np.empty(n, np.uint64)
    for i, v in enumerate(x):
        matrix, i = divmod(i, rows * columns)
        y[matrix * rows * columns + i % columns * rows + i // columns] = v
    return y


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
def test_kernels(order, several_tiles):
    """Every kernel, in the orders of threads; what lies beside its result stays."""
    seen = set()
    with simulated_cuda(order=order, seed=5, concurrent_blocks=2) as cupy:
        for size, group in zip(transpose.SIZES, transpose.groups(), strict=True):
            x = cupy.asarray(group.x())
            for _, make in group.entries:
                entry = make()
                y = cupy.full(size.n + 64, POISON, np.uint64)
                entry.run(x, y[: size.n])
                seen.add((entry.variant, *sorted(entry.params.items())))
                assert np.array_equal(y.get()[: size.n], entry.expected()), (entry.variant, entry.params)
                assert (y.get()[size.n :] == POISON).all()
    assert {dict(p for p in key[1:]).get("tiles", 0) for key in seen} == {0, 1, 2, 4, 8}
    assert {key[0] for key in seen} == {
        *transpose.NOTE,
        *(s.variant for of in (ONE, MANY) for s in transpose.SHAPES[of]),
    }


def test_expected_results_are_the_definition(several_tiles):
    """What kernels are compared with comes from arrays; this, from single Python ints. One of each kind."""
    with simulated_cuda():
        for size, group in zip(transpose.SIZES, transpose.groups(), strict=True):
            found = {}
            for _, make in group.entries:
                entry = make()
                found[entry.variant.startswith("small"), entry.variant, str(entry.params.get("of"))] = entry
            assert len(found) >= 6
            for entry in found.values():
                assert np.array_equal(entry.expected(), by_definition(size, entry))


CHECKED = """
import pathlib, shutil, tempfile
import numpy as np
from cudasim import simulated_cuda
from benchmarks.studies import kernel, transpose
kernel.toolkit_headers = lambda: ()
transpose.SIZES, transpose.LEAST_BLOCKS = (transpose.Size((32, 256), (128, 64)),), 1
ONE, MANY = transpose.SHAPES
shapes = (transpose.Pairs(64, 64, 256, 2), transpose.Pairs(32, 32, 128, 2))
transpose.SHAPES = {ONE: shapes, MANY: shapes[:1]}
"""


def test_races():
    """None in any kernel; one where a tile is written before all have read the one before."""
    if reason := check.missing("thread"):
        pytest.skip(f"thread sanitizer: {reason}")
    environment = {"PYTHONPATH": str(harness.ROOT)}
    right = check.run_code(
        "thread",
        CHECKED
        + """
with simulated_cuda() as cupy:
    (group,) = transpose.groups()
    x = cupy.asarray(group.x())
    for _, make in group.entries:
        entry, y = make(), cupy.empty_like(x)
        entry.run(x, y)
        assert np.array_equal(y.get(), entry.expected())
""",
        environment=environment,
    )
    assert right.clean, right
    wrong = check.run_code(
        "thread",
        CHECKED
        + """
with tempfile.TemporaryDirectory() as folder, simulated_cuda() as cupy:
    kernel.KERNELS = pathlib.Path(shutil.copytree(kernel.KERNELS, folder, dirs_exist_ok=True))
    source = kernel.KERNELS / "transpose.cu"
    text = source.read_text()
    barrier = "if (done) __syncthreads();"
    assert text.count(barrier) == 1
    source.write_text(text.replace(barrier, ""))
    transpose.SMALL, transpose.SHAPES = (), {ONE: shapes[:1]}
    (group,) = transpose.groups()
    x = cupy.asarray(group.x())
    group.entries[-1][1]().run(x, cupy.empty_like(x))
""",
        environment=environment,
    )
    assert wrong.returncode == 0, wrong
    assert any("data race" in text and "transpose_pairs" in text for text in wrong.reports), wrong


def launched():
    """Expressions of all kernels, and threads of their blocks."""
    found = {f"transpose_batch<{flag}>": 256 for flag in ("false", "true")}
    found |= {s.expression(padded): s.threads for s in transpose.SMALL for padded in (False, True)}
    shapes = ((of, s) for of, shapes in transpose.SHAPES.items() for s in shapes)
    return found | {s.expression(of, flag): s.threads for of, s in shapes for flag in (False, True)}


def test_kernels_compile():
    """Without spills, and with the blocks on a multiprocessor of which the page speaks."""
    usages = compiled("transpose.cu", list(launched()))
    for expression, threads in launched().items():
        usage = usages[expression]
        assert usage.spilled == 0, expression
        assert H100.limits(threads, usage.registers, 0)["registers"] >= max(2, 512 // threads), expression

    def blocks(of: transpose.Small) -> int:
        shared = transpose.SIDE * (of.columns + 1) * transforms.WORD_BYTES
        return H100.resident(of.threads, usages[of.expression(True)].registers, shared)

    assert [blocks(small) for small in transpose.SMALL] == [4, 4, 6, 4, 2]


def test_limits():
    """Those of the page, each of which is the least somewhere."""
    assert H100.limits(256, 40, 33280) == {"registers": 6, "shared_mem": 6, "warps": 8, "blocks": 32}
    assert H100.limits(1024, 18, 16896) == {"registers": 2, "shared_mem": 13, "warps": 2, "blocks": 32}
    assert H100.limits(256, 64, 33280)["registers"] == 4
    for threads, registers, shared in ((256, 64, 33280), (32, 16, 20 * 1024), (1024, 18, 16896), (32, 16, 0)):
        assert H100.resident(threads, registers, shared) == min(
            H100.limits(threads, registers, shared).values()
        )
    carved = {"threads": 1024.0, "registers": 18.0, "shared_bytes": 16384.0}
    assert transpose.blocks_of(64 * 1024, carved) == 3
    assert transpose.blocks_of(132 * 1024, carved | {"shared_bytes": 32768.0}) == 4


@pytest.mark.parametrize("n", [2**12, 2**17, 2**24])
def test_two_tables_have_all_powers(n):
    log_low, low, high = transpose.halves(n)
    q, w = transforms.modulus(), transforms.root(n, "cyclic")
    assert len(low) * len(high) == n and len(low) == 1 << log_low and len(low) / len(high) in (1, 2)
    for exponent in (0, 1, len(low) - 1, len(low), n // 2 + 5, n - 1):
        a, b = low[exponent % len(low)], high[exponent >> log_low]
        assert int(a[0]) * int(b[0]) % q == pow(w, exponent, q)
        assert all(int(t[1]) == (int(t[0]) << 64) // q for t in (a, b))


def test_blocks_of_the_real_sizes():
    """The tiles of all blocks are the matrix; blocks have several where that leaves enough of them."""
    for size in transpose.SIZES:
        assert size.n in (2**17, 2**24) and size.n in transpose.NOTE[transpose.BATCH]
        for of, shapes in transpose.SHAPES.items():
            grids = [shape.grid(of, size) for shape in shapes]
            for shape, (across, down, tiles) in zip(shapes, grids, strict=True):
                assert across * down * tiles * shape.rows * shape.columns == size.n
                assert tiles == 1 or across * down >= transpose.LEAST_BLOCKS
                assert tiles == (shape.tiles if size.n == 2**24 else 1)
    assert [len(list(transpose.entries(size))) for size in transpose.SIZES] == [12 + 16, 12 + 24]


# ---- the run ----


@pytest.fixture
def quick(monkeypatch, several_tiles):
    monkeypatch.setattr(transpose, "SIZES", SMALL[:1])
    monkeypatch.setattr(
        transpose, "SHAPES", {ONE: transpose.SHAPES[ONE][-1:], MANY: transpose.SHAPES[MANY][1:2]}
    )
    monkeypatch.setattr(harness, "SAMPLE_NS", 1000)
    monkeypatch.setattr(Clock, "total_ns", 0)
    monkeypatch.setattr(Clock, "warm_up_ns", 0)


@needs_compiler
def test_a_whole_run(tmp_path, quick, monkeypatch):
    def counted(study: str, kernels: list[str]) -> list[ncu.Counted]:
        assert study == "transpose" and len(kernels) == len(list(transpose.launches())) == 16
        assert set(kernels) == {"transpose_batch", "transpose_small", "transpose_pairs"}
        return [ncu.Counted(k, {"smsp__inst_executed.sum": 1000.0 + i}) for i, k in enumerate(kernels)]

    monkeypatch.setattr(ncu, "count", counted)
    with simulated_cuda():
        assert transpose.main(tmp_path, Clock()) == 0
    rows = harness.rows(tmp_path)
    assert len({transpose.cell(r) for r in rows}) == len(rows) == 17
    copied, *own = rows
    assert (copied.library, copied.params["variant"]) == ("CuPy", "copy")
    n = SMALL[0].n
    for i, r in enumerate(own):
        f, words = r.figures, 3 if r.params["variant"] == "small_transpose_4096_W" else 2
        assert r.verified and r.work == r.params["n"] == n and f["warp_instructions"] == 1000 + i
        assert f["least_read_bytes"] == 8 * n * (words - 1) and f["least_written_bytes"] == 8 * n
        assert f["copy_share"] == words / 2  # of a clock that always says the same
        assert f["blocks"] * f["threads"] <= n
        assert {f"calculated_limit_{name}" for name in ncu.LIMITS} < set(f)


@needs_compiler
def test_wrong_results_are_not_timed(tmp_path, quick, monkeypatch, capsys):
    """Of kernels whose results are expected to differ in their last word; the copy is right."""
    right = transpose.expected

    def wrong(*args):
        y = right(*args).copy()
        y[-1] ^= 1
        return y

    monkeypatch.setattr(transpose, "expected", wrong)
    monkeypatch.setattr(transpose, "SMALL", transpose.SMALL[:1])

    def uncounted(*_):
        raise ncu.Uncounted("there is no ncu")

    monkeypatch.setattr(ncu, "count", uncounted)
    with simulated_cuda():
        assert transpose.main(tmp_path, Clock()) == 1
    assert [r.params["variant"] for r in harness.rows(tmp_path)] == ["copy"]
    said = capsys.readouterr().out
    assert said.count("FAILED") == 8 and "no counters: there is no ncu" in said


# ---- the page ----

PAGE = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in transpose.KINDS)
FACTS = {"blocks": 512, "threads": 256, "registers": 40, "shared_bytes": 33280, "occupancy": 0.75}
FACTS |= {f"calculated_limit_{name}": limit for name, limit in H100.limits(256, 40, 33280).items()}


def made_up(variant: str, us: float, share: float, n: int = 2**24, figures=None, **params) -> harness.Row:
    params = {"n": n, "variant": variant, **params}
    measured = harness.measure(squares(op="transpose", library="study", params=params), Card())
    figures = {"us_median": us, "gbps": 1000.0, "copy_gbps": 2900.0, "copy_share": share} | (figures or {})
    machine = {**Clock().machine(), "kind": "gpu"}
    return dataclasses.replace(
        measured, machine=machine, commit="c0ffee", dirty=False, median=1000 * us, work=n, figures=figures
    )


ROWS = [
    made_up("copy", 90, 1.0),
    made_up("Transpose Batch", 3.25, 0.6, 2**17, conflicts=WITH),
    made_up("Transpose Batch", 2.5, 0.8, 2**17, conflicts=WITHOUT),
    made_up("Transpose Batch", 120, 0.75, conflicts=WITH),
    made_up(
        "small_transpose_4096_W",
        150,
        0.9,
        conflicts=WITHOUT,
        figures={
            **FACTS,
            "load_sectors": 8e6,
            "load_requests": 1e6,
            "store_sectors": 4e6,
            "store_requests": 5e5,
            "bank_conflicts": 2**23,
            "dram_read_bytes": 300.0,
            "least_read_bytes": 200.0,
            "dram_write_bytes": 99.0,
            "least_written_bytes": 100.0,
            "theoretical_occupancy": 0.75,
            "achieved_occupancy": 0.7,
            "warp_latency_cycles": 200.0,
            "stall_long_scoreboard": 76.0,
            "stall_barrier": 50.0,
            "stall_lg_throttle": 30.0,
            "stall_wait": 10.0,
            "limit_registers": 6.0,
            "limit_shared_mem": 5.0,
            "carved_shared_bytes": 196.0 * 1024,
        },
    ),
    made_up("64 x 64, 256 threads", 95, 0.95, of=ONE, twiddles=WITHOUT, tiles=8, figures=FACTS),
    made_up(
        "64 x 64, 256 threads",
        104.5,
        0.86,
        of=ONE,
        twiddles=WITH,
        tiles=8,
        figures=FACTS | {"registers": 76, "warp_instructions": 2.0**25},
    ),
    made_up("64 x 64, 256 threads", 96, 0.94, of=MANY, twiddles=WITHOUT, tiles=1, figures=FACTS),
]


def test_the_page_follows_the_rows():
    text = report.rewrite(PAGE, [*ROWS, row(op="ntt")])
    for line in (
        "| Transpose Batch | 8.53 | 3.25 | 60% | 6.50 | 2.50 | 80% | 660 | 120 | 75% | 700 |  |  |",
        "| small_transpose_4096_W | 9.89 |  |  | 9.09 |  |  | 970 |  |  | 970 | 150 | 90% |",
        "| small_transpose_4096_v3 |  |  |  |  |  |  |  |  |  | 650 |  |  |",
        "| Transpose Batch | 1.31 | 1.30 | 0.943 |  |",
        "| Transpose Batch, with conflicts | 75% |  |  |  |  |  |  |  |  |  |  |",
        "| small_transpose_4096_W, without conflicts | 90% | 8.0 | 8.0 | 0.50 | 1.50 | 0.99 | 75% | 70% "
        "| 200.0 | 38% | barrier 25%, lg_throttle 15% |",
        "| small_transpose_4096_W, without conflicts | 256 | 40 | 32.5 | 6 (6) | 6 (5) | 8 | 32 "
        "| registers, shared | 196 | 5 | 75% | 75% |",
        f"| 64 x 64, 256 threads, {ONE}, without twiddles | 256 | 40 |",
        "| 64 x 64, 256 threads | 8 | 512 | 76 | 32.5 | 75% | 64.0 | 95.0 | 95% | 104 | 86% | +10% |",
        "| 64 x 64, 256 threads | 1 |  |  |  |  |  | 96.0 | 94% |  |  |  |",
    ):
        assert line in text, line
    assert "**Pairs of words, 2^24 words, one matrix**" in text
    assert "**Pairs of words, 2^24 words, matrices of 64 x 64**" in text
    assert report.rewrite(text, ROWS) == text
    assert report.rewrite(PAGE, [row(op="ntt")]).count("Nothing has been measured yet.") == 4


def test_the_figure_follows_the_rows():
    kind, draw = report.FIGURES["studies/transpose.svg"]
    text = report.drawn(kind, draw, ROWS)
    root = ElementTree.fromstring(text)
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("copy") == 1 and "2^24 words" in words[0]
    assert "64 x 64, 256 threads, 8 a block, twiddles" in words and "86%" in words
    assert words.index("The note's kernels, bank conflicts") < words.index("Transpose Batch, with")
    assert words.index(f"Pairs of words, {ONE}") < words.index(f"Pairs of words, {MANY}")
    assert "60%" not in words  # of another size
