"""Runs the example kernels of kernels/: for the tests in this process and for those under a sanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

KERNELS = Path(__file__).resolve().parent / "kernels"


def load(cupy: Any, name: str, *, defines: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Any:
    path = KERNELS / f"{name}.cu"
    code = f'#line 1 "{path}"\n{path.read_text()}'
    options = ("-std=c++17", *(f"-D{define}" for define in defines))
    return cupy.RawModule(code=code, options=options, name_expressions=names or None)


def chained_sum(cupy: Any, blocks: int, threads: int, *defines: str) -> bool:
    kernel = load(cupy, "tickets", defines=defines).get_function("chained_sum")
    x = cupy.arange(blocks * threads, dtype=np.uint32)
    prefix, ready = cupy.zeros(blocks, np.uint32), cupy.zeros(blocks, np.uint32)
    kernel((blocks,), (threads,), (x, prefix, cupy.zeros(1, np.uint32), ready))
    return bool(np.array_equal(prefix.get(), x.get().reshape(blocks, threads).sum(axis=1).cumsum()))


def reverse_by_groups(cupy: Any, *defines: str) -> bool:
    kernel = load(cupy, "async", defines=defines).get_function("reverse_by_groups")
    x = cupy.arange(512, dtype=np.uint32)
    out = cupy.empty_like(x)
    kernel((2,), (128,), (x, out))
    return bool(np.array_equal(out.get().reshape(4, 128), x.get().reshape(4, 128)[:, ::-1]))


def sum_tiles(cupy: Any, *defines: str) -> bool:
    kernel = load(cupy, "async", defines=defines).get_function("sum_tiles")
    x = cupy.arange(640, dtype=np.uint64)
    sums = cupy.empty(10, np.uint64)
    kernel((3,), (32,), (x, np.int32(10), sums), shared_mem=64 * 8 + 8)
    return bool(np.array_equal(sums.get(), x.get().reshape(10, 64).sum(axis=1)))


def exchange(cupy: Any) -> bool:
    module = load(cupy, "cluster", names=("exchange<4>",))
    expected = [
        sum(100 * (4 * cluster + i) + rank for i in range(4)) for cluster in range(2) for rank in range(4)
    ]
    right = True
    for name in ("exchange<4>", "exchange_async"):
        out = cupy.empty(8, np.uint32)
        module.get_function(name)((8,), (32,), (out,))
        right &= out.get().tolist() == expected
    return right


def transpose(cupy: Any) -> bool:
    module = load(cupy, "transpose", names=("transpose<u32, 32>", "transpose<double, 16>"))
    right = True
    for name, dtype, tile in (
        ("transpose<u32, 32>", np.uint32, 32),
        ("transpose<double, 16>", np.float64, 16),
    ):
        x = cupy.arange(70 * 100, dtype=dtype).reshape(70, 100)
        out = cupy.empty((100, 70), dtype)
        grid = (-(-100 // tile), -(-70 // tile))
        module.get_function(name)(grid, (tile, 8), (out, x, np.int32(100), np.int32(70)))
        right &= np.array_equal(out.get(), x.get().T)
    return right


def sum_words(cupy: Any) -> bool:
    kernel = load(cupy, "reduction").get_function("sum_words")
    x = cupy.arange(10_007, dtype=np.uint64)
    total = cupy.zeros(1, np.uint64)
    kernel((3,), (128,), (x, np.int32(x.size), total))
    return int(total[0]) == 10_007 * 10_006 // 2


def square(cupy: Any, *defines: str) -> bool:
    kernel = load(cupy, "matrices", defines=defines).get_function("square_in_shared")
    a = np.arange(256, dtype=np.float16).reshape(16, 16) % 13
    out = cupy.empty((16, 16), np.float32)
    kernel((1,), (32,), (cupy.asarray(a), out))
    return bool(np.array_equal(out.get(), a.astype(np.float32) @ a.astype(np.float32)))


RIGHT = (sum_words, transpose, reverse_by_groups, sum_tiles, exchange)


def fault(
    cupy: Any, name: str, grid: int = 1, block: int = 64, *more: Any, defines: tuple[str, ...] = ()
) -> Any:
    """Run a kernel of faults.cu on 64 words, with 128 bytes of dynamic shared memory; returns the words."""
    out = cupy.zeros(64, np.uint32)
    load(cupy, "faults", defines=defines).get_function(name)((grid,), (block,), (out, *more), shared_mem=128)
    return out.get()
