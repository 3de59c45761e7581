"""Tables and figures of the studies match the recorded rows."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from test_benchmarks import row as row_of_the_cpu
from test_studies import H100

from benchmarks import harness, report
from benchmarks.studies import STUDIES, fft64, fourstep, gemm, ntt64, ntt256, transpose
from benchmarks.studies.transpose import MANY, ONE

pytestmark = pytest.mark.tools

MODULES = {"fft64": fft64, "fourstep": fourstep, "gemm": gemm, "ntt64": ntt64, "ntt256": ntt256}
MODULES |= {"transpose": transpose}
OTHER = row_of_the_cpu(op="ntt")
MACHINE = {"kind": "gpu", "name": "A Card, 80 GB", "driver": "580", "cuda": "13.0", "cupy": "14.0"}


def row(op: str, us: float, work: int, figures: dict[str, float], **params: Any) -> harness.Row:
    """A row, as if it were measured."""
    library = params.pop("library", "study")
    figures = {"us_median": us, "gbps": 1000.0, "copy_share": 0.5, "copy_gbps": 2900.0, **figures}
    changes = {"op": op, "library": library, "params": params, "work": work, "median": 1000 * us}
    return dataclasses.replace(OTHER, machine=MACHINE, figures=figures, **changes)


def pairs(text: str) -> dict[str, Any]:
    """The values by name of "name=value, name=value"; digits alone become ints."""
    found = dict(part.split("=", 1) for part in re.split(", (?=\\w+=)", text) if part)
    return {name: int(x) if x.isdigit() else x for name, x in found.items()}


def rows_of(text: str, work: Any) -> list[harness.Row]:
    """Rows of lines "op, us; parameters; figures", which go on indented; work: by the parameters."""
    found = []
    for line in text.strip().replace("\n  ", " ").splitlines():
        op_and_us, params, figures = (*line.split("; "), "")[:3]
        op, us = op_and_us.split(", ")
        named = {name: float(x) for name, x in pairs(figures).items()}
        found.append(row(op, float(us), int(work(pairs(params))), named, **pairs(params)))
    return found


def fft64_rows() -> list[harness.Row]:
    facts = "blocks=157, loop_turns=24, shared_bytes=33792, registers=23"
    text = f"""
fft64, 20; variant=A, ffts=10000, loads=coalesced; {facts}, instructions_per_thread=310, bank_conflicts=20000
fft64, 40; variant=A, ffts=10000, loads=literal; {facts}
fft64, 8; variant=B, ffts=10000, loads=coalesced; blocks=625, registers=22, error_l2=1e-7, error_max=5e-7
fft64, 40; variant=B, ffts=10000, loads=literal
fft64, 6; variant=cuFFT, ffts=10000, library=cuFFT; cufft_ratio=1, error_l2=9e-8, error_max=4e-7
fft64, 5.5; variant=copy, ffts=10000, library=CuPy
convolve64, 500; variant=fused, ffts=1048576, loads=one filter, library=polygpu; times_separate=2.5,
  error_l2=2e-7
fft64, 300; variant=D, ffts=1048576, library=polygpu; cufft_ratio=1.02, occupancy=0.5, achieved_occupancy=0.47
"""
    return rows_of(text, lambda p: 64 * p["ffts"])


FFT64_LINES = (
    "| A | blocks | 157 | 157 | 157 | yes |",
    "| A | shared memory, KB | 33 | 33 | 33 | yes |",
    "| A | registers a thread | 40 | 23 | 23 | no |",
    "| A | instructions a thread | 200 or 396 | 310 |  | yes, ? |",
    "| B | registers a thread | 20 | 22 |  | yes, ? |",
    "| C | loop turns a thread | 12 |  |  |  |",
    "| B | times as fast as A, 10,000 FFTs | 2 to 3 | 2.50 | 1.00 | yes, no |",
    "| B | times as fast as A, 2^20 FFTs | 2 to 3 |  |  |  |",
    "| copy |  | 5.50",  # the fastest first
    "| cuFFT |  | 6.00",
    "| B | coalesced | 8.00",
    "| A | coalesced | 20.0 | 1000 | 50% |  | 157 |  | 24 | 33.0 | 23 |  |  | 310 |  | 2.0 |",
    "| D |  | 300 | 1000 | 50% | 1.02 |  |  |  |  |  | 50% | 47% |  |  |  |",
    "| one filter | polygpu, fused | 500 | 7.45 | 74% | 2.50x | 2.00e-07 |",
    "| cuFFT | 9.00e-08 | 4.00e-07 |",
)


def fourstep_rows() -> list[harness.Row]:
    """The k-th step takes k microseconds, from 1; whole transforms take half of the sum of their steps."""
    times = {name: i + 1 for i, name in enumerate((*fourstep.PARTS_OF, "D, pass 1 of 2", "D, pass 2 of 2"))}
    facts = {"blocks": 8, "threads": 256, "registers": 40, "shared_bytes": 4096, "occupancy": 0.75}
    facts |= {
        "achieved_occupancy": 0.5,
        "load_sectors": 320,
        "load_requests": 40,
        "stall_wait": 1,
        "gbps": 100,
    }
    facts |= {"stall_barrier": 2.25, "stall_long_scoreboard": 8, "stall_imc_miss": 0.5, "words_a_point": 2}
    rows = []
    for batch in (64, 1):
        size, points = {"n1": 32, "n2": 4096, "batch": batch, "takes": "x"}, batch * 2**17
        counted = facts | {"bank_conflicts": points / 100, "thread_instructions": points * 30}
        rows += [row("fourstep", us, points, counted, variant=name, **size) for name, us in times.items()]
        for variant, names in fourstep.VARIANTS.items():
            f, us = {"words_a_point": 2 * len(names), "launches": len(names)}, sum(map(times.get, names)) / 2
            rows.append(row("fourstep", us, points, f, variant=variant, **size))
    rows.append(row("fourstep", 8.5, 2**17, {"words_a_point": 4, "launches": 1}, variant="D", **size))
    text = """
fourstep passes, 9; n=65536, batch=128, variant=copy
fourstep passes, 20; n=65536, batch=128, columns=2^4 x 16, rows=2^12; taken=1,
  launches=1, column_threads=256, row_threads=512
fourstep passes, 10; n=65536, batch=128, columns=2^8 x 4, rows=2^8; taken=0,
  launches=2, column_threads=256, row_threads=512
"""
    return rows + rows_of(text, lambda p: p["n"] * p["batch"])


FOURSTEP_LINES = (
    "**2^17 = 32 x 4096 points, one transform**",
    "| transpose | A | 1.00 | 7.63 | 2.00 | 100 | 50% |",
    "| rows across, times W | A, B | 3.00 | 22.9 | 2.00 | 100 | 50% |",
    "| rows within | A, B, C | 4.00 | 30.5 | 2.00 | 100 | 50% |",
    "| D, pass 2 of 2 | D | 9.00 | 68.7 | 2.00 | 100 | 50% |",
    "**2^17 = 32 x 4096 points, 64 transforms**",
    "| A | 4 | 10.0 | 5.00 | 38.1 | 8.00 | 50% | 12% | 0.59 |",
    "| D | 1 | 17.0 | 8.50 | 64.8 | 4.00 | 50% | 25% | 1.00 |",
    "| rows within | 8 | 256 | 40 | 4.0 | 75% | 50% | 10.0 | 8.0 |  | 30.0 "
    "| long scoreboard 8.0, barrier 2.2, wait 1.0 |",
    "| 2^8 x 4 | 2^8 | 256 / 512 | 2 | 10.0 | 1.19 | 50% | 0.50 |  |",  # the fastest first
    "| 2^4 x 16 | 2^12 | 256 / 512 | 1 | 20.0 | 2.38 | 50% | 1.00 | yes |",
)


def transpose_rows() -> list[harness.Row]:
    limits = H100.limits(256, 40, 33280).items()
    facts = "blocks=512, threads=256, registers=40, shared_bytes=33280, occupancy=0.75, "
    facts += ", ".join(f"calculated_limit_{name}={limit}" for name, limit in limits)
    counted = (
        "load_sectors=8e6, load_requests=1e6, store_sectors=4e6, store_requests=5e5, bank_conflicts=8388608, "
        "dram_read_bytes=300, least_read_bytes=200, dram_write_bytes=99, least_written_bytes=100, "
        "theoretical_occupancy=0.75, achieved_occupancy=0.7, warp_latency_cycles=200, stall_barrier=50, "
        "stall_long_scoreboard=76, stall_lg_throttle=30, stall_wait=10, limit_registers=6, "
        f"limit_shared_mem=5, carved_shared_bytes={196 * 1024}, {facts}"
    )
    one, many = (f"variant=64 x 64, 256 threads, n={2**24}, of={of}" for of in (ONE, MANY))
    text = f"""
transpose, 90; variant=copy, n={2**24}; copy_share=1
transpose, 3.25; variant=Transpose Batch, n={2**17}, conflicts=with; copy_share=0.6
transpose, 2.5; variant=Transpose Batch, n={2**17}, conflicts=without; copy_share=0.8
transpose, 120; variant=Transpose Batch, n={2**24}, conflicts=with; copy_share=0.75
transpose, 150; variant=small_transpose_4096_W, n={2**24}, conflicts=without; copy_share=0.9, {counted}
transpose, 95; {one}, twiddles=without, tiles=8; copy_share=0.95, {facts}
transpose, 104.5; {one}, twiddles=with, tiles=8; copy_share=0.86, {facts}, registers=76,
  warp_instructions=33554432
transpose, 96; {many}, twiddles=without, tiles=1; copy_share=0.94, {facts}
"""
    return rows_of(text, lambda p: p["n"])


TRANSPOSE_LINES = (
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
    "**Pairs of words, 2^24 words, one matrix**",
    "| 64 x 64, 256 threads | 8 | 512 | 76 | 32.5 | 75% | 64.0 | 95.0 | 95% | 104 | 86% | +10% |",
    "**Pairs of words, 2^24 words, matrices of 64 x 64**",
    "| 64 x 64, 256 threads | 1 |  |  |  |  |  | 96.0 | 94% |  |  |  |",
)


def ntt64_rows() -> list[harness.Row]:
    stalls = (
        "stall_wait=1.04, stall_math_pipe_throttle=2.5, stall_drain=0, stall_barrier=0.5, stall_sleeping=0.4"
    )
    facts = "threads=32, registers=64, shared_bytes=9984, occupancy=0.3281"
    shape = "registers=80, shared_bytes=34816, occupancy=0.375"
    text = f"""
ntt64, 10; variant=conflicts, blocks=512; achieved_occupancy=0.7, occupancy=1, bank_conflicts=65536
ntt64, 8; variant=no conflicts, blocks=512; theoretical_occupancy=0.99, occupancy=1, bank_conflicts=0,
  {stalls}
ntt64, 4; variant={ntt64.SHARED}, blocks=512
ntt64, 200; variant=no conflicts, blocks=65536
ntt64, 100; variant=without butterflies, blocks=65536
ntt64, 90; variant=copy, blocks=65536
ntt64, 6; variant={ntt64.THIRD}, blocks=512; {facts}, store_sectors=320,
  store_requests=10, bank_conflicts=8192
ntt64, 5; variant={ntt64.OWN}, 256 a block, blocks=512; threads=256, shared_bytes=18432
ntt64 shape, 150; variant=polygpu, transforms=262144, values=16, threads=256; {shape}
ntt64 shape, 100; variant=polygpu, transforms=262144, values=8, threads=64; {shape}
ntt64 shape, 90; variant=copy, transforms=262144
"""
    return rows_of(text, lambda p: 64 * p.get("transforms", 4 * p.get("blocks", 0)))


NTT64_LINES = (
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
    f"| {ntt64.BUTTERFLIES} | 65536 x 4 | 825 | 650 | 79% | 200 | 100 | 50% |",
    f"| {ntt64.SHARED} | 512 x 4 | 10.1 | 1.92 | 19% | 8.00 | 4.00 | 50% |",
    "| conflicts | the note |  |  |  | 33.33% |  | 13.4 |  |  | 21.99% |  |  |  |  |",
    "| conflicts, more shared memory | here | 32 | 9.75 | 64 | 33% |  | 6.00 |  |  |  |  | 4.0 |  | 32.0",
    "| polygpu, 256 a block | here | 256 | 18.00 |  |  |  | 5.00 |",
    "| 8 | 64* | 100 | 5.96 | 50% | 80 | 34.00 | 38% |",
    "| 16 | 256 | 150 |",
)


def ntt256_rows() -> list[harness.Row]:
    facts = "blocks=64, threads=512, registers=32, shared_bytes=8320, occupancy=1, bank_conflicts=512"
    text = f"""
ntt256, 2; stage=transpose, batch=1, variant=16 x 16 tiles
ntt256, 3; stage=columns, batch=1, variant=1 a block, transposed by value
ntt256, 5; stage=rows, batch=1, variant=1 a block
ntt256, 4; stage=columns, batch=1, variant=4 a block; {facts}, store_sectors=80, store_requests=10
ntt256, 2.5; stage=second transpose, batch=1, variant=16 x 16 tiles
ntt256, 6; stage=rows, batch=1, variant=4 a block
ntt256, 9; stage=whole, batch=1, variant=original
ntt256, 4.5; stage=whole, batch=1, variant=polygpu
ntt256, 100; stage=whole, batch=256, variant=original
"""
    return rows_of(text, lambda p: 2**16 * p["batch"])


NTT256_LINES = (
    "| original | 3.97 + 9.63 + 12.1 | 25.7 | 1.00 | 2.00 + 3.00 + 5.00 | 10.0 | 1.00 | 9.00 | 2.00 |",
    "| 4 a block, separate | 4.06 + 11.5 + 4.19 + 13.2 | 33.0 | 1.28 | 2.00 + 4.00 + 2.50 + 6.00 | 14.5",
    "| 4 a block, fused | 3.90 + 14.1 + 13.0 | 31.0 | 1.21 | 2.00 + ? + 6.00 |  |  |  |  |  |",
    "| polygpu |  |  |  |  |  |  | 4.50 | 1.00 | 50% |",
    "**256 transforms of 2^16**",
    "| original |  |  |  | 100 |  | 50% |",
    "| columns | 4 a block | 4.00 | 50% | 64 | 512 | 8.1 | 32 | 100% |  |  | 2.0 |  | 8.0 |",
)


FIRST_SHAPES = [k.shape for k in gemm.SHAPES if k.variant == "pipeline"][:2]


def gemm_rows() -> list[harness.Row]:
    first, second = FIRST_SHAPES
    sizes, thin = "batch=1, m=4096, k=4096, n=4096", "batch=1, m=64, k=4096, n=4096"
    poly = "batch=1, m=64, k=64, n=64, degree=4096, limbs=4, bits=30"
    text = f"""
gemm, 50; variant=FP32, n=1024, library=cuBLAS
gemm, 10; variant=TF32, n=1024, library=cuBLAS; error_l2=3e-4
gemm, 200; variant=8 x 4 entries, n=1024
gemm, 80; variant=pipeline, n=1024; blocks=64, threads=256, registers=128, shared_bytes=33792, occupancy=0.25
gemm, 400; variant=WMMA, n=2048; error_l2=3e-4, error_max=1e-3
gemm, 25; variant=FP16, n=2048, library=cuBLAS
gemm, 50; variant=mma.sync, n=2048
gemm shape, 82; variant=pipeline, n=1024, shape={first}
gemm shape, 80; variant=pipeline, n=1024, shape={second}
gemm shape, 500; variant=pipeline, n=2048, shape={first}
gemm shape, 400; variant=pipeline, n=2048, shape={second}
matmul, 250; q=2^31 - 1, batch=1, m=1024, k=1024, n=1024, way=integer; tmodmul=4.294967296, taken=0
matmul, 20000; q=2^31 - 1, {sizes}, way=integer; tmodmul=3.4359738368, taken=0
matmul, 2000; q=2^31 - 1, {sizes}, way=residues; tmodmul=34.359738368, taken=1, int8_tops=619
matmul, 2100; q=2^31 - 1, {sizes}, way=matmul; tmodmul=32.72356, taken=1, int8_tops=589
matmul, 6500; q=2^60 - 93, {sizes}, way=matmul; tmodmul=10.57223, taken=1
matmul, 100; {sizes}, way=cuBLAS int8; int8_tops=1374
matmul shape, 2000; q=2^60 - 93, {thin}, way=integer; tmodmul=0.536870912, taken=0
matmul shape, 1000; q=2^60 - 93, {thin}, way=residues; tmodmul=1.073741824, taken=0
matmul shape, 1300; q=2^60 - 93, {thin}, way=digits; tmodmul=0.825955, taken=1
matmul shape, 2000; q=2^31 - 1, {thin}, way=integer; tmodmul=0.536870912, taken=1
matmul points, 1000; {poly}, way=evaluated; tmodmul=4.3
matmul points, 12000; {poly}, way=sum of products; tmodmul=0.4
matmul points, 3000; {poly.replace("m=64", "m=1").replace(" n=64", " n=1")}, way=evaluated; tmodmul=1.4
toeplitz, 1000; q=2^31 - 1, degree=64, way=ntt; ps=90
toeplitz, 1000; q=2^31 - 1, degree=64, way=fft; ps=24
toeplitz, 1000; q=2^31 - 1, degree=64, way=matrix; ps=10.6
toeplitz, 1000; q=2^31 - 1, degree=64, way=auto; ps=10.7
toeplitz, 1000; q=2^32, degree=64, way=fft; ps=30
"""
    rows = rows_of(text, lambda p: p.get("n", 1) ** 2)
    for r in rows:
        n, us = r.params.get("n", 1), r.median / 1000
        tflops = 2e-6 * n**3 / us
        rates = {"ms_mean": us / 900, "ms_median": us / 1000, "tflops": tflops, "peak_share": tflops / 50}
        r.figures.update(
            rates
            | {"gbps": 12e-3 * n**2 / us, "error_l2": 3e-7, "error_max": 2e-6}
            | r.figures
            | {"gbps": 12e-3 * n**2 / us}
        )
    return rows


GEMM_LINES = (
    "| 1024 | Shared-memory | 0.77 | 2.78 | 2.79 | 16.3 | 16.3 | 15% | 0.222 | 10.7 | 26.8 | 42.9 |",
    "| 2048 | Shared-memory | 3.43 | 5.01 | 5.01 | 14.7 | 14.7 | 27% |  |  |  |  |",
    "| 2048 | Tensor Core (FP16) | 3.35 | 5.12 | 5.13 | 10 | 10.0 | 28% | 0.444 | 42.9 | 344 | 687 |",
    "| 4096 | Shared-memory | 21.23 | 6.47 | 6.47 | 9.48 | 9.48 | 35% |  |  |  |  |",
    "| 4096 | Tensor Core (FP16) | 18.18 | 7.56 | 7.56 | 7.38 | 7.38 | 41% |  |  |  |  |",
    "| 8 x 4 entries | 0.2222",
    "| pipeline | 0.08889 | 0.08 | 26.8 | 157 | 54% | 62% | 64 | 256 | 128 | 33.0 | 25% |",
    "| cuBLAS TF32 | 0.01111 | 0.01 | 215 | 1258 | 429% | 100% |  |  |  |  |  |",
    "| mma.sync | 0.05556 | 0.05 | 344 | 1007 | 687% | 50% |  |  |  |  |  |",
    f"| pipeline | {FIRST_SHAPES[0]} | 26.2 | 34.4 |",
    f"| pipeline | {FIRST_SHAPES[1]} | 26.8* | 42.9* |",
    "| cuBLAS TF32 | 3.00e-04 | 2.00e-06 |",
    "**q = 2^31 - 1, N x N by N x N**",
    "| 4096 | integer | 20.0 | 3.44 |  | 0.800x |  |",
    "| 4096 | residues | 2.00 | 34.4 | 619 | 8.00x |  |",
    "| 4096 | matmul (residues) | 2.10 | 32.7 | 589 | 7.62x | 25 / 35 |",
    "| 4096 | cuBLAS int8 | 0.100 |  | 1374 |  |  |",
    "**q = 2^60 - 93, N x N by N x N**",
    "| 4096 | matmul | 6.50 | 10.6 |  |  | 10 / 20 |",
    "| 64 x 4096 by 4096 x 4096 | 2^60 - 93 | 2.00 | 1.30 | 1.00 | 1.07 | residues | digits | 1.30 |",
    "| 64 x 4096 by 4096 x 4096 | 2^31 - 1 | 2.00 |  |  | 0.537 | integer | integer | 1.00 |",
    "| 64 x 64 by 64 x 64 | 4096, 4 of 30 bits | 1.00 |  | 12.0 | 4.30 | 12.0x | 5x |",
    "| 1 dot products of 64 | 4096, 4 of 30 bits | 3.00 |  |  | 1.40 |  |  |",
    "| 64 |  | 30.0 |  |  | fft |",  # in the order of the study
    "| 64 | 90.0 | 24.0 | 10.6 | 10.7 | matrix |",
)
PAGES = {
    "fft64": (fft64_rows, FFT64_LINES),
    "fourstep": (fourstep_rows, FOURSTEP_LINES),
    "gemm": (gemm_rows, GEMM_LINES),
    "ntt64": (ntt64_rows, NTT64_LINES),
    "ntt256": (ntt256_rows, NTT256_LINES),
    "transpose": (transpose_rows, TRANSPOSE_LINES),
}


@pytest.mark.parametrize("study", PAGES)
def test_tables_of_the_page_match_the_rows(study):
    """Table lines are in the order of the page."""
    make, lines = PAGES[study]
    kinds, rows, path = MODULES[study].KINDS, make(), harness.ROOT / "docs" / "studies" / f"{study}.md"
    names = re.findall("<!-- table: (.*) -->", path.read_text())
    assert sorted(names) == sorted(kinds) and path in report.PAGES
    page = "".join(f"<!-- table: {name} -->\n<!-- end: {name} -->\n" for name in names)
    text, at = report.rewrite(page, [*rows, OTHER]), 0
    for line in lines:
        assert line in text[at:], line
        at = text.index(line, at)
    assert report.rewrite(text, rows) == text
    assert text.count("A Card, 80 GB, ") == len(kinds) and "Nothing has been measured" not in text
    assert report.rewrite(page, [OTHER]).count("Nothing has been measured yet.") == len(kinds)


FIGURES = {
    "fourstep": (
        *("2^17 = 32 x 4096 points, one transform", "A", "76.3, whole 38.1", "D", "129.7, whole 64.8"),
        *("2^17 = 32 x 4096 points, 64 transforms", "C"),
    ),
    "transpose": (
        *("The note's kernels, bank conflicts", "Transpose Batch, with", "75%", f"Pairs of words, {ONE}"),
        *("64 x 64, 256 threads, 8 a block, twiddles", "86%", f"Pairs of words, {MANY}", "copy"),
    ),
    "ntt64": ("the note", "825 us", "here", "without butterflies", "100 us", "whole"),
    "ntt64-shapes": ("8 values a thread", "64 threads a block (taken)", "50%", "16 values a thread", "copy"),
    "ntt256": (
        "the note",
        "original",
        "25.7",
        "here",
        "4 a block, separate",
        "14.5",
        "polygpu, whole",
        "4.50",
    ),
    "ntt256-batch": (),  # its stages have no rows
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure_matches_the_rows(name):
    """The words of the figure are in order."""
    study, words = name.partition("-")[0], FIGURES[name]
    kind, draw = MODULES[study].FIGURES[f"studies/{name}.svg"]
    assert report.FIGURES[f"studies/{name}.svg"] == (kind, draw)
    assert f"]({name}.svg)" in (harness.ROOT / "docs" / "studies" / f"{study}.md").read_text()
    svg = report.drawn(kind, draw, PAGES[study][0]())
    assert (svg is None) == (not words) and report.drawn(kind, draw, []) is None
    found = iter(
        node.text for node in ElementTree.fromstring(svg or "<svg/>").iter("{http://www.w3.org/2000/svg}text")
    )
    assert all(word in found for word in words)


def test_figure_omits_incomplete_rows():
    """Transforms that lack a step or a row are omitted, and so are other sizes."""
    kind, draw = fourstep.FIGURES["studies/fourstep.svg"]
    rows = fourstep_rows()
    assert report.drawn(kind, draw, rows).count(", whole") == 7  # no D of the batch
    rows = [r for r in rows if r.params.get("variant") != "columns in place" or r.params["batch"] > 1]
    assert report.drawn(kind, draw, rows).count(", whole") == 6  # no B of one transform
    kind, draw = transpose.FIGURES["studies/transpose.svg"]
    assert "60%" not in report.drawn(kind, draw, transpose_rows())


def test_held_expectations():
    """A value holds within a quarter of an expected value or range."""
    assert fft64.held(30, "40") and fft64.held(50, "40") and not fft64.held(29.9, "40")
    assert fft64.held(1.5, "2 to 3") and fft64.held(3.75, "2 to 3") and not fft64.held(1.4, "2 to 3")
    assert fft64.held(0, "0") and not fft64.held(1, "0")
    assert fft64.held(396, "200 or 396") and not fft64.held(50.1, "40") and not fft64.held(270, "200 or 396")


def test_blocks_in_carved_shared_memory():
    facts = {"threads": 1024, "registers": 18, "shared_bytes": 16384, "carved_shared_bytes": 64 * 1024}
    assert transpose.blocks_in_carved(row("transpose", 1, 1, facts)) == "3"
    facts |= {"shared_bytes": 32768, "carved_shared_bytes": 132 * 1024}
    assert transpose.blocks_in_carved(row("transpose", 1, 1, facts)) == "4"


def test_every_study_has_a_page():
    pages = {path.stem for path in report.PAGES if path.parent == harness.ROOT / "docs" / "studies"}
    assert pages == set(STUDIES) == set(MODULES) == set(PAGES)
