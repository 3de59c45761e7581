"""The simulator's own tests: that right kernels run right, and that each kind of mistake is reported."""

from __future__ import annotations

import random
import re
import struct
import sys
import threading

import numpy as np
import pytest

from . import check, compiler, examples, memory
from .fake_cupy import simulated_cuda as simulated
from .launch import CUDADriverError, KernelError
from .translate import translate

pytestmark = pytest.mark.tools

ORDERS = [
    {"order": "forward"},
    {"order": "reverse"},
    {"order": "random", "seed": 1},
    {"order": "random", "seed": 2, "concurrent_blocks": 4},
]
in_every_order = pytest.mark.parametrize(
    "simulated_cuda", ORDERS, indirect=True, ids=lambda o: "-".join(map(str, o.values()))
)


# ---- copies between cards ----


def test_a_copy_between_cards_waits_for_a_wait():
    """It runs once, and only when work on one of its two cards waits for it."""
    with simulated(devices_count=3) as cupy:
        with cupy.cuda.Device(1):
            source = cupy.asarray(np.arange(12, dtype=np.uint64).reshape(3, 4))
            lane = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.Device(2):
            target = cupy.zeros((3, 8), np.uint64)
        copy = cupy.cuda.runtime.memcpy2DAsync
        copy(target.data.ptr, 64, source.data.ptr + 16, 32, 16, 3, cupy.cuda.runtime.memcpyDefault, lane.ptr)
        with cupy.cuda.Device(1):
            done = lane.record()
        cupy.cuda.get_current_stream().wait_event(done)  # on a stream of a third card
        assert not target.get().any()
        with cupy.cuda.Device(2):
            cupy.cuda.get_current_stream().wait_event(done)
        expected = np.zeros((3, 8), np.uint64)
        expected[:, :2] = source.get()[:, 2:]
        assert (target.get() == expected).all()
        source.fill(0)
        done.synchronize()
        assert (target.get() == expected).all()
        with pytest.raises(RuntimeError, match="Pitch"):
            copy(target.data.ptr, 8, source.data.ptr, 32, 16, 3, cupy.cuda.runtime.memcpyDefault, lane.ptr)
        cupy.cuda.runtime.deviceEnablePeerAccess(1)
        with pytest.raises(RuntimeError, match="already"):
            cupy.cuda.runtime.deviceEnablePeerAccess(1)


# ---- right kernels ----


@in_every_order
@pytest.mark.parametrize("example", examples.RIGHT, ids=lambda f: f.__name__)
def test_example(simulated_cuda, example):
    assert example(simulated_cuda)


def test_no_memory_is_freed_while_another_thread_launches(simulated_cuda):
    """A launch that hid the memory writes its values back."""
    memory.attach_runtime(compiler.runtime())
    arrays = [simulated_cuda.zeros(4)]
    frees = threading.Thread(target=arrays.clear)
    with memory.one_at_a_time:
        frees.start()
        frees.join(0.2)
        waits = frees.is_alive()
    frees.join()
    assert waits


@in_every_order
@pytest.mark.parametrize("blocks", [1, 2, 40])
def test_chain_of_blocks(simulated_cuda, blocks):
    assert examples.chained_sum(simulated_cuda, blocks, 64)


@in_every_order
def test_blocks_that_wait_for_a_later_one_run_together(simulated_cuda):
    cupy = simulated_cuda
    out = cupy.zeros(20, np.uint32)
    kernel = examples.load(cupy, "tickets").get_function("wait_for_last")
    kernel((20,), (64,), (cupy.zeros(1, np.uint32), out))
    assert out.get().tolist() == [1] * 20


@in_every_order
def test_votes(simulated_cuda):
    cupy = simulated_cuda
    rng = np.random.default_rng(5)
    x = rng.integers(0, 2, (4, 96), dtype=np.int32)
    x[0], x[1] = 0, 1
    counts, ballots = cupy.empty(4, np.int32), cupy.empty(12, np.uint32)
    examples.load(cupy, "reduction").get_function("votes")((4,), (96,), (cupy.asarray(x), counts, ballots))
    assert counts.get().tolist() == x.sum(axis=1).tolist()
    expected = [sum(int(bit) << lane for lane, bit in enumerate(warp)) for warp in x.reshape(12, 32)]
    assert ballots.get().tolist() == expected


def test_integer_intrinsics(simulated_cuda):
    cupy = simulated_cuda
    rng = random.Random(7)
    edges = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    pairs = [(a, b) for a in edges for b in edges]
    pairs += [(rng.getrandbits(64), rng.getrandbits(64)) for _ in range(400)]
    a, b = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    out = cupy.empty((len(pairs), 16), np.uint64)
    kernel = examples.load(cupy, "arithmetic").get_function("integer_intrinsics")
    kernel((-(-len(pairs) // 128),), (128,), (cupy.asarray(a), cupy.asarray(b), out, np.int32(len(pairs))))

    def signed(x, bits):
        return x - (1 << bits) if x >> (bits - 1) else x

    def reverse(x, bits):
        return int(format(x, f"0{bits}b")[::-1], 2)

    def first_set(x):
        return (x & -x).bit_length()

    for (x, y), row in zip(pairs, out.get().tolist(), strict=True):
        x32, y32 = x % 2**32, y % 2**32
        joined = y32 << 32 | x32
        expected = [
            x * y >> 64,
            (signed(x, 64) * signed(y, 64) >> 64) % 2**64,
            x32 * y32 >> 32,
            (signed(x32, 32) * signed(y32, 32) >> 32) % 2**32,
            64 - x.bit_length(),
            32 - x32.bit_length(),
            reverse(x, 64),
            reverse(x32, 32),
            x.bit_count() + 100 * x32.bit_count(),
            first_set(x) + 100 * first_set(x32),
            (joined << (y32 % 32) >> 32) % 2**32,
            (joined >> (y32 % 32)) % 2**32,
            min(x, y),
            max(signed(x, 64), signed(y, 64)) % 2**64,
            int.from_bytes(bytes(joined >> (8 * i) & 255 for i in (7, 5, 3, 1)), "little"),
            x32 << 32 | y32,
        ]
        assert row == expected, (x, y)


def test_exact_product_by_fused_multiply(simulated_cuda):
    cupy = simulated_cuda
    rng = random.Random(3)
    pairs = [(rng.getrandbits(50), rng.getrandbits(50)) for _ in range(126)] + [
        (2**50 - 1, 2**50 - 1),
        (0, 5),
    ]
    a, b = (cupy.asarray(np.array(column, np.uint64)) for column in zip(*pairs, strict=True))
    high, low = cupy.empty(128, np.int64), cupy.empty(128, np.int64)
    examples.load(cupy, "arithmetic").get_function("exact_product")((1,), (128,), (a, b, high, low))
    for (x, y), h, rest in zip(pairs, high.get(), low.get(), strict=True):
        assert int(struct.unpack("d", struct.pack("q", h))[0]) + int(rest) == x * y


def test_bulk_store_and_prefetch(simulated_cuda):
    cupy = simulated_cuda
    module = examples.load(cupy, "async")
    out = cupy.empty(128, np.uint64)
    module.get_function("store_tile")((2,), (64,), (out,))
    assert out.get().tolist() == [1000 * block + i for block in range(2) for i in range(64)]
    module.get_function("prefetch")((1,), (32,), (out, np.int32(128)))
    with pytest.raises(KernelError, match="not within one allocation of device memory"):
        module.get_function("prefetch")((1,), (32,), (out, np.int32(130)))


# ---- tensor cores ----


def halves():
    """Values of every size, ties, the last below infinity, subnormals; bit patterns of all halves."""
    rng = np.random.default_rng(9)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        ties = every + (np.nextafter(every.astype(np.float16), np.float16(np.inf)) - every) / 2
    spread = (rng.standard_normal(2**16) * 2.0 ** rng.integers(-30, 20, 2**16)).astype(np.float32)
    values = np.concatenate([every, ties, np.nextafter(ties, np.float32(0)), spread])
    return np.concatenate([values, np.array([65519.99, 65520, 1e30, -np.inf], np.float32)])


def same_halves(got, expected):
    """Bit for bit; a NaN is a NaN."""
    a, b = got.view(np.float16), expected
    return bool((np.isnan(a) == np.isnan(b)).all()) and bool(
        (got == expected.view(np.uint16))[~np.isnan(b)].all()
    )


def test_conversions_of_halves(simulated_cuda):
    cupy = simulated_cuda
    x = halves()
    bits = np.resize(np.arange(2**16, dtype=np.uint16), x.size)
    nearest, to_zero = cupy.empty(x.size, np.uint16), cupy.empty(x.size, np.uint16)
    widened = cupy.empty(x.size, np.float32)
    kernel = examples.load(cupy, "matrices").get_function("half_conversions")
    arguments = (cupy.asarray(x), nearest, to_zero, cupy.asarray(bits), widened, np.int32(x.size))
    kernel((-(-x.size // 256),), (256,), arguments)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
        assert same_halves(nearest.get(), expected)
        too_far = np.abs(expected) > np.abs(x)
        expected[too_far] = np.nextafter(expected[too_far], np.float16(0))
        assert same_halves(to_zero.get(), expected)
    assert np.array_equal(widened.get(), bits.view(np.float16).astype(np.float32), equal_nan=True)


def test_arithmetic_of_halves(simulated_cuda):
    cupy = simulated_cuda
    rng = np.random.default_rng(10)
    x, y = rng.integers(0, 2**16, (2, 2**14), dtype=np.uint16)
    x[: 2**12] = x[: 2**12] & 0x83FF  # subnormals
    out = cupy.empty((x.size, 8), np.uint16)
    kernel = examples.load(cupy, "matrices").get_function("half_arithmetic")
    kernel((x.size // 128,), (128,), (cupy.asarray(x), cupy.asarray(y), out, np.int32(x.size)))
    a, b = x.view(np.float16), y.view(np.float16)
    with np.errstate(all="ignore"):
        fused = (a.astype(np.float64) * b + a).astype(np.float16)
        expected = np.stack([a + b, a - b, a * b, a / b, fused, a * b, b * b, -a], axis=1)
    for column in range(8):
        assert same_halves(out.get()[:, column].copy(), expected[:, column].copy()), column


LAYOUTS = (("row", "row"), ("col", "row"), ("row", "col"))
PRODUCTS = {  # operands, sums, M, N, K; and what the operands are stored as
    ("half", "float", 16, 16, 16): np.float16,
    ("half", "half", 16, 16, 16): np.float16,
    ("half", "float", 32, 8, 16): np.float16,
    ("half", "float", 8, 32, 16): np.float16,
    ("wmma::precision::tf32", "float", 16, 16, 8): np.float32,
    ("signed char", "int", 16, 16, 16): np.int8,
    ("unsigned char", "int", 16, 16, 16): np.uint8,
}


def product_of(case, layout_a, layout_b):
    stored = {"wmma::precision::tf32": "float"}.get(case[0], case[0])
    layouts = f"wmma::{layout_a}_major, wmma::{layout_b}_major"
    return f"multiply<{', '.join(map(str, case))}, {layouts}, {stored}>"


def load_products(cupy, *defines):
    names = tuple(product_of(case, *layouts) for case in PRODUCTS for layouts in LAYOUTS)
    return examples.load(cupy, "matrices", names=names, defines=defines)


def to_tf32(x):
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@in_every_order
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_matrix_products(simulated_cuda, case):
    """The kernel computes 2 (a b + c), with a and b stored by rows or by columns, and c by columns."""
    cupy = simulated_cuda
    operand, result, m, n, k = case
    stored = PRODUCTS[case]
    rng = np.random.default_rng(11)
    if np.dtype(stored).kind == "f":
        a, b = rng.standard_normal((m, k)).astype(stored), rng.standard_normal((k, n)).astype(stored)
        c = rng.standard_normal((m, n)).astype(np.float16 if result == "half" else np.float32)
        exact = [x if operand == "half" else to_tf32(x) for x in (a, b)]
        sums = c.astype(np.float32)  # in the order of the products, rounded at each
        for i in range(k):
            sums = sums + exact[0][:, i, None].astype(np.float32) * exact[1][i].astype(np.float32)
        expected = sums.astype(c.dtype) * c.dtype.type(2)
    else:
        limits = np.iinfo(stored)
        a = rng.integers(limits.min, limits.max, (m, k), stored, endpoint=True)
        b = rng.integers(limits.min, limits.max, (k, n), stored, endpoint=True)
        c = rng.integers(-(2**20), 2**20, (m, n), np.int32)
        expected = 2 * (a.astype(np.int32) @ b.astype(np.int32) + c)
    module = load_products(cupy)
    for layouts in LAYOUTS:
        kernel = module.get_function(product_of(case, *layouts))
        out = cupy.empty((m, n), c.dtype)
        stores = [x if layout == "row" else x.T.copy() for x, layout in zip((a, b), layouts, strict=True)]
        kernel((1,), (32,), (*map(cupy.asarray, stores), cupy.asarray(c.T.copy()), out))
        assert np.array_equal(out.get(), expected)


def test_the_place_of_an_element_means_nothing(simulated_cuda):
    cupy = simulated_cuda
    c = np.arange(256, dtype=np.float32)
    out = cupy.zeros(256, np.float32)
    examples.load(cupy, "matrices").get_function("relies_on_lanes")((1,), (32,), (cupy.asarray(c), out))
    assert sorted(out.get()) == c.tolist() and (out.get() != c).sum() > 200


@in_every_order
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_a_warp", r"load_matrix_sync takes a whole warp: only the lanes 0000ffff"),
        ("two_matrices", "names another matrix than lane 0"),
        ("misaligned_matrix", "it must begin at a multiple of 32 bytes"),
        ("divergent_product", r"divergent warp: .* mma_sync at \S*matrices.cu:\d+, lane \d+ in mma_sync"),
    ],
)
def test_faults_of_matrices(simulated_cuda, name, message):
    cupy = simulated_cuda
    kernel = examples.load(cupy, "matrices").get_function(name)
    with pytest.raises(KernelError, match=message):
        kernel((1,), (32,), (cupy.zeros(512, np.float16), cupy.zeros(256, np.float32)))
    assert examples.sum_words(cupy)


def test_floats_that_are_no_tf32(simulated_cuda):
    cupy = simulated_cuda
    name = product_of(("wmma::precision::tf32", "float", 16, 16, 8), "row", "row")
    kernel = load_products(cupy, "NOT_ROUNDED").get_function(name)
    a, b, c = (cupy.full(256, value, np.float32) for value in (1.5, 0.1, 0))
    with pytest.raises(KernelError, match=r"mma_sync: 0.1\d* has more than tf32's 10 bits"):
        kernel((1,), (32,), (a, b, c, c))
    kernel((1,), (32,), (b, a, c, c))


FRAGMENTS = {"s8": np.int8, "u8": np.uint8, "f16": np.float16, "tf32": np.float32}


@in_every_order
@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments(simulated_cuda, name):
    cupy, dtype = simulated_cuda, np.dtype(FRAGMENTS[name])
    rng, k = np.random.default_rng(5), 32 // dtype.itemsize
    if dtype.kind == "f":
        a, b = (rng.integers(-8, 8, (size, k)).astype(dtype) for size in (16, 8))
        c = rng.integers(-8, 8, (16, 8)).astype(np.float32)
    else:
        limits = np.iinfo(dtype)
        a, b = (rng.integers(limits.min, limits.max, (size, k), dtype, endpoint=True) for size in (16, 8))
        c = rng.integers(-(2**20), 2**20, (16, 8), np.int32)
    words = [cupy.asarray(x.view(np.uint32)) for x in (a, b)]
    out = cupy.asarray(c)
    examples.load(cupy, "fragments").get_function(f"multiply_{name}")((1,), (32,), (*words, out))
    assert np.array_equal(out.get(), a.astype(c.dtype) @ b.astype(c.dtype).T + c)


def test_transposed_fragment(simulated_cuda):
    cupy = simulated_cuda
    x = np.arange(64, dtype=np.uint16).reshape(8, 8)
    out = cupy.zeros(32, np.uint32)
    kernel = examples.load(cupy, "fragments").get_function("transpose_halves")
    kernel((1,), (32,), (cupy.asarray(x.view(np.uint32)), out))
    assert np.array_equal(out.get().view(np.uint16).reshape(8, 8), x.T)


def test_faults_of_fragments(simulated_cuda):
    cupy = simulated_cuda
    module = examples.load(cupy, "fragments")
    with pytest.raises(KernelError, match="must begin at a multiple of 16 bytes of shared memory"):
        module.get_function("misaligned_row")((1,), (32,), (cupy.zeros(32, np.uint32),))
    a, b, c = (
        cupy.full(n, value, np.uint32)
        for n, value in ((128, 0x01010101), (64, 0x01010101), (128, 2**31 - 32))
    )
    kernel = module.get_function("multiply_s8")
    with pytest.raises(KernelError, match=r"a sum of 2.1.*e.09 leaves 32 bits"):
        kernel((1,), (32,), (a, b, c.view(np.int32)))


# ---- launches that a card refuses ----


def transpose_kernel(cupy):
    return examples.load(cupy, "transpose", names=("transpose<u32, 32>",)).get_function("transpose<u32, 32>")


def test_number_and_kind_of_arguments(simulated_cuda):
    cupy = simulated_cuda
    kernel = transpose_kernel(cupy)
    x, n = cupy.zeros((32, 32), np.uint32), np.int32(32)
    kernel((1,), (32, 8), (x, x.copy(), n, n))
    with pytest.raises(TypeError, match="3 arguments, the kernel takes 4"):
        kernel((1,), (32, 8), (x, x, n))
    with pytest.raises(TypeError, match=r"argument 2 \(builtins.int\) is passed as an integer of 8 bytes"):
        kernel((1,), (32, 8), (x, x, 32, n))
    with pytest.raises(TypeError, match=r"argument 3 .* a floating-point number of 4 bytes"):
        kernel((1,), (32, 8), (x, x, n, np.float32(32)))
    with pytest.raises(TypeError, match=r"argument 2 .* a pointer"):
        kernel((1,), (32, 8), (x, x, x, n))
    with pytest.raises(TypeError, match=r"argument 1 \(numpy.ndarray\)"):
        kernel((1,), (32, 8), (x, np.zeros(1, np.uint64), n, n))
    with pytest.raises(TypeError, match="Unsupported type"):
        kernel((1,), (32, 8), (x, "x", n, n))
    kernel((1,), (32, 8), (x, x.data.ptr, n, n))
    with pytest.raises(KernelError, match="is no address of living device memory"):
        kernel((1,), (32, 8), (x, 4096, n, n))


def test_shape_of_a_launch(simulated_cuda):
    cupy = simulated_cuda
    kernel = transpose_kernel(cupy)
    arguments = (cupy.zeros((32, 32), np.uint32), cupy.zeros((32, 32), np.uint32), np.int32(32), np.int32(32))
    for grid, block in (
        ((1,), (1025,)),
        ((1,), (32, 33)),
        ((0,), (32, 8)),
        ((1, 65536), (32, 8)),
        ((1,), (8, 1, 65)),
    ):
        with pytest.raises(CUDADriverError, match="CUDA_ERROR_INVALID_VALUE"):
            kernel(grid, block, arguments)
    with pytest.raises(CUDADriverError, match="288 threads, __launch_bounds__ allow 256"):
        kernel((1,), (32, 9), arguments)
    with pytest.raises(TypeError, match="must be a tuple"):
        kernel(1, (32, 8), arguments)


@pytest.mark.parametrize(
    ("simulated_cuda", "most"),
    [({"card": "h100"}, 227), ({"card": "rtx3090"}, 99), ({"card": "t4"}, 64)],
    indirect=["simulated_cuda"],
    ids=["h100", "rtx3090", "t4"],
)
def test_dynamic_shared_memory(simulated_cuda, most):
    cupy = simulated_cuda
    assert cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] == most * 1024
    assert cupy.cuda.runtime.getDeviceProperties(0)["sharedMemPerBlockOptin"] == most * 1024
    kernel = examples.load(cupy, "faults").get_function("overrun_dynamic")

    def run(size):
        kernel((1,), (64,), (cupy.zeros(64, np.uint32), np.int32(63)), shared_mem=size)

    run(48 * 1024)
    with pytest.raises(CUDADriverError, match="max_dynamic_shared_size_bytes is 49152"):
        run(48 * 1024 + 1)
    kernel.max_dynamic_shared_size_bytes = most * 1024
    run(most * 1024)
    with pytest.raises(CUDADriverError, match="INVALID_VALUE"):
        kernel.max_dynamic_shared_size_bytes = most * 1024 + 1


def test_static_and_dynamic_shared_memory_together(simulated_cuda):
    kernel = transpose_kernel(simulated_cuda)  # 4224 bytes of static shared memory
    x, n = simulated_cuda.zeros((32, 32), np.uint32), np.int32(32)
    kernel((1,), (32, 8), (x, x.copy(), n, n), shared_mem=48 * 1024 - 4224)
    with pytest.raises(CUDADriverError, match="4224 bytes of static"):
        kernel((1,), (32, 8), (x, x.copy(), n, n), shared_mem=48 * 1024 - 4223)


@pytest.mark.parametrize("simulated_cuda", [{"card": "t4"}], indirect=True)
def test_old_cards_have_no_clusters(simulated_cuda):
    with pytest.raises(KernelError, match="no thread-block clusters"):
        examples.exchange(simulated_cuda)


def test_clusters_divide_the_grid(simulated_cuda):
    kernel = examples.load(simulated_cuda, "cluster").get_function("exchange_async")
    with pytest.raises(CUDADriverError, match="INVALID_CLUSTER_SIZE"):
        kernel((6,), (32,), (simulated_cuda.zeros(8, np.uint32),))


# ---- kernels with a mistake ----


@in_every_order
@pytest.mark.parametrize(
    ("name", "block", "message"),
    [
        ("divergent_barrier", 64, r"divergent barrier: .*faults.cu:\d+"),
        ("deadlock", 64, r"deadlock(.|\n)*16 threads wait in __syncwarp at \S*faults.cu:\d+"),
        ("shuffle_from_outside", 32, "lane 0 reads lane 16, which takes no part"),
        ("wild_pointer", 64, "illegal address"),
        ("stack_overflow", 64, "the stack of a CUDA thread overflowed"),
        ("division_by_zero", 64, "integer division by zero"),
        ("misaligned", 64, "misaligned address"),
    ],
)
def test_fault(simulated_cuda, name, block, message):
    if compiler.sanitizer() and name in ("wild_pointer", "stack_overflow", "division_by_zero", "misaligned"):
        pytest.skip("faults belong to the sanitizer")
    with pytest.raises(KernelError, match=message):
        examples.fault(simulated_cuda, name, 1, block)
    assert examples.sum_words(simulated_cuda)  # and the simulator goes on


def test_assertion(simulated_cuda):
    kernel = examples.load(simulated_cuda, "faults").get_function("failed_assertion")
    with pytest.raises(KernelError, match=r"faults.cu:\d+: assertion `threadIdx.x < n` failed"):
        kernel((1,), (64,), (np.int32(60),))


def test_waiting_for_nothing_is_a_deadlock(simulated_cuda):
    kernel = examples.load(simulated_cuda, "tickets").get_function("wait_forever")
    with pytest.raises(KernelError, match="deadlock: all threads wait"):
        kernel((3,), (64,), (simulated_cuda.zeros(1, np.uint32),))


@pytest.mark.parametrize(("offset", "where"), [(64, "256 to 511"), (-2, "-8 to -1")])
def test_write_outside_of_an_array(simulated_cuda, offset, where):
    if compiler.sanitizer() == "address":
        pytest.skip("AddressSanitizer reports it where it happens")
    with pytest.raises(memory.GuardError, match=f"an allocation of 256 bytes: at byte offsets {where}"):
        examples.fault(simulated_cuda, "overrun_global", 1, 64, np.int32(offset))


def test_missing_wait_for_a_copy(simulated_cuda):
    cupy = simulated_cuda
    assert not examples.reverse_by_groups(cupy, "WITHOUT_WAIT")  # waits, but after reading
    store = examples.load(cupy, "async", defines=("WITHOUT_WAIT",)).get_function("store_tile")
    with pytest.raises(KernelError, match=r"missing wait: .* cp.async.bulk of 512 bytes .*async.cu:\d+"):
        store((1,), (64,), (cupy.empty(64, np.uint64),))


def test_races_depend_on_the_order():
    """Without the barrier some values are wrong, and the order of the threads says which."""
    right = []
    for order in ORDERS:
        with simulated(**order) as cupy:
            right.append(examples.fault(cupy, "race_in_block").tolist() == list(range(63, -1, -1)))
    assert not all(right)


# ---- compiling ----


def test_errors_name_the_source_line(simulated_cuda):
    code = '#line 7 "wrong.cu"\nextern "C" __global__ void k(int *x) {\n    x[0] = undefined_name;\n}\n'
    with pytest.raises(simulated_cuda.cuda.compiler.CompileException, match=r"wrong.cu:8.*undefined_name"):
        simulated_cuda.RawModule(code=code).compile()


def test_only_extern_c_kernels_have_plain_names(simulated_cuda):
    module = simulated_cuda.RawModule(code="__global__ void mangled(int *x) { x[0] = 1; }")
    with pytest.raises(CUDADriverError, match="named symbol not found: mangled"):
        module.get_function("mangled")


@pytest.mark.parametrize("simulated_cuda", [{"card": "rtx3090"}], indirect=True)
def test_options_and_architecture(simulated_cuda, tmp_path):
    cupy = simulated_cuda
    (tmp_path / "scale.cuh").write_text("__device__ constexpr int scale = FACTOR;\n")
    code = """
        #include "scale.cuh"
        extern "C" { __global__ void k(int *x) { x[0] = scale; x[1] = __CUDA_ARCH__; } }
    """
    out = cupy.empty(2, np.int32)
    for factor in (3, 4):
        options = ("-std=c++14", f"-I{tmp_path}", f"-DFACTOR={factor}", "--use_fast_math", "-arch=sm_86")
        cupy.RawModule(code=code, options=options).get_function("k")((1,), (1,), (out,))
        assert out.get().tolist() == [factor, 860]
    (tmp_path / "scale.cuh").write_text("__device__ constexpr int scale = 10 * FACTOR;\n")
    cupy.RawKernel(code, "k", options)((1,), (1,), (out,))
    assert int(out[0]) == 40  # an edited header is seen


def test_a_lane_that_leaves_frees_every_group_that_lacks_only_this_lane(simulated_cuda):
    cupy = simulated_cuda
    code = """
        extern "C" __global__ void k(unsigned *x) {
            const unsigned lane = threadIdx.x;
            if (lane == 0) __syncwarp(0b101);
            if (lane == 1) __syncwarp(0b110);
            if (lane < 2) __syncwarp(0b011);  // each waits for the other
            x[lane] = lane + 1;
        }
    """
    out = cupy.zeros(3, np.uint32)
    cupy.RawKernel(code, "k")((1,), (3,), (out,))
    assert out.get().tolist() == [1, 2, 3]


def test_constants_and_structs(simulated_cuda):
    cupy = simulated_cuda
    code = """
        struct Scale { unsigned long long factor; int shift; };
        __constant__ unsigned table[4] = {1, 2, 3, 4};
        extern "C" __global__ void k(unsigned long long *x, Scale s) {
            x[threadIdx.x] = (table[threadIdx.x] * s.factor) << s.shift;
        }
    """
    module = cupy.RawModule(code=code)
    scale = np.zeros((), np.dtype([("factor", np.uint64), ("shift", np.int32)], align=True))
    scale["factor"], scale["shift"] = 5, 1
    out = cupy.empty(4, np.uint64)
    module.get_function("k")((1,), (4,), (out, scale))
    assert out.get().tolist() == [10, 20, 30, 40]


def test_translation_keeps_lines():
    text = (
        '# 1 "a.cu"\nextern "C" __global__ void\n__launch_bounds__(1 << 8,\n 2) f(int *x) {\n'
        "  __shared__ int a[2],\n  b;\n}\nint z;\n"
    )
    translated, kernels = translate(text)
    assert kernels == ["f"]
    assert translated.count("\n") == text.count("\n")
    assert translated.split("\n")[7] == "int z;"


def test_uninitialised_memory_is_poisoned(simulated_cuda):
    cupy = simulated_cuda
    assert int(cupy.empty(1, np.uint32)[0]) == 0xA5A5A5A5
    code = """
        extern "C" __global__ void k(unsigned *x) {
            __shared__ unsigned fixed;
            extern __shared__ unsigned dynamic[];
            x[0] = fixed;
            x[1] = dynamic[0];
        }
    """
    out = cupy.zeros(2, np.uint32)
    cupy.RawKernel(code, "k")((1,), (1,), (out,), shared_mem=4)
    assert out.get().tolist() == [0xA5A5A5A5] * 2


# ---- arrays, streams, devices ----


def test_arrays(simulated_cuda):
    cupy = simulated_cuda
    host = np.arange(24, dtype=np.uint64).reshape(2, 3, 4)
    x = cupy.asarray(host)
    assert isinstance(x, cupy.ndarray) and not isinstance(x, np.ndarray)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.strides) == (
        (2, 3, 4),
        np.uint64,
        3,
        24,
        192,
        host.strides,
    )
    assert x.data.ptr % 512 == 0 and x[1].data.ptr == x.data.ptr + 96
    view = x[:, 1:, ::2]
    assert not view.flags.c_contiguous and cupy.shares_memory(view, x)
    assert cupy.ascontiguousarray(view).flags.c_contiguous
    view[...] = 7
    host[:, 1:, ::2] = 7
    assert np.array_equal(x.get(), host) and bool((x == cupy.asarray(host)).all())
    assert np.array_equal(cupy.asnumpy(cupy.moveaxis(x, 0, -1)), np.moveaxis(host, 0, -1))
    assert cupy.shares_memory(cupy.broadcast_to(x[0], (5, 3, 4)), x)
    assert np.array_equal((x * 3 + cupy.where(x > 5, x, 1)).get(), host * 3 + np.where(host > 5, host, 1))
    assert cupy.concatenate([x, x]).shape == (4, 3, 4) and cupy.stack([x, x]).shape == (2, 2, 3, 4)
    assert cupy.from_dlpack(x).data.ptr == x.data.ptr and x.__dlpack_device__() == (2, 0)
    assert x.__cuda_array_interface__["data"] == (x.data.ptr, False)
    assert x[0, 0, 0].shape == () and int(x[1, 0, 3]) == 15 and len(x) == 2


def test_host_and_device_do_not_mix(simulated_cuda):
    cupy = simulated_cuda
    x, host = cupy.zeros(4), np.zeros(4)
    for mix in (lambda: x + host, lambda: host + x, lambda: np.add(host, x), lambda: cupy.add(x, host)):
        with pytest.raises(TypeError):
            mix()
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError):
        x[:] = host
    assert (np.float64(2) * (x + 1)).get().tolist() == [2, 2, 2, 2]


def test_graphs_record_launches(simulated_cuda):
    cupy = simulated_cuda
    kernel = examples.load(cupy, "reduction").get_function("sum_words")
    x, total = cupy.arange(256, dtype=np.uint64), cupy.zeros(1, np.uint64)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        total.fill(0)
        kernel((1,), (256,), (x, np.int32(256), total))
        with pytest.raises(RuntimeError, match="capturing"):
            total.get()
        graph = stream.end_capture()
    assert int(total[0]) == 0
    x += np.uint64(1)
    for _ in range(2):
        graph.launch(stream)
        assert int(total[0]) == 255 * 128 + 256


def test_several_devices():
    with simulated("rtx3090", devices_count=2) as cupy:
        assert cupy.cuda.runtime.getDeviceCount() == 2 and cupy.cuda.Device(1).compute_capability == "86"
        with cupy.cuda.Device(1):
            x = cupy.zeros(4, np.uint64)
            assert cupy.cuda.Device().id == 1
        assert x.device.id == 1 and cupy.zeros(1).device.id == 0
        with pytest.raises(ValueError, match="array device = 1"):
            _ = x + x
        with pytest.raises(KernelError, match="argument 0 lies on device 1"):
            examples.load(cupy, "reduction").get_function("sum_words")((1,), (256,), (x, np.int32(4), x))
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
            cupy.cuda.Device(2).use()


def test_import_cupy_is_undone():
    before = sys.modules.get("cupy")
    with simulated() as cupy:
        import cupy as imported
        from cupy.cuda import runtime

        assert imported is cupy and runtime is cupy.cuda.runtime
        with pytest.raises(AttributeError, match="no 'no_such_thing'"):
            _ = cupy.no_such_thing
    assert sys.modules.get("cupy") is before


# ---- under the sanitizers ----

PREAMBLE = "import numpy as np\nfrom cudasim import examples, simulated_cuda\n"


@pytest.fixture
def run_checked(request):
    """Runs Python code under the sanitizer that the test is marked with."""
    if reason := check.missing(request.param):
        pytest.skip(f"{request.param} sanitizer: {reason}")
    return lambda code: check.run_code(request.param, PREAMBLE + code)


def under(sanitizer):
    run = pytest.mark.parametrize("run_checked", [sanitizer], indirect=True)
    return lambda test: pytest.mark.sanitized(run(test))


def reported_in(result, function):
    return [report for report in result.reports if re.search(rf"#0 (0x\w+ in )?{function}\b", report)]


@under("thread")
def test_races_are_reported(run_checked):
    result = run_checked("""
with simulated_cuda() as cupy:
    examples.fault(cupy, "race_in_block")
    examples.fault(cupy, "missing_syncwarp", 1, 32)
    examples.fault(cupy, "race_between_blocks", 2, 32)
    examples.chained_sum(cupy, 8, 64, "WITHOUT_FENCE")
    examples.square(cupy)
    try:
        examples.reverse_by_groups(cupy, "WITHOUT_WAIT")
    except Exception as error:
        print(error)
""")
    assert result.returncode == 0, result.output
    for function in (
        "race_in_block",
        "missing_syncwarp",
        "race_between_blocks",
        "chained_sum",
        "reverse_by_groups",
    ):
        assert reported_in(result, function), f"{function}: {result}"
    assert any("square_in_shared" in report for report in result.reports), result
    assert "faults.cu:6" in reported_in(result, "race_in_block")[0]
    assert "of block (1,0,0)" in reported_in(result, "race_between_blocks")[0]


@under("thread")
def test_right_kernels_have_no_races(run_checked):
    result = run_checked("""
for keywords in {}, {"order": "random", "concurrent_blocks": 3}:
    with simulated_cuda(**keywords) as cupy:
        for run in examples.sum_words, examples.reverse_by_groups, examples.sum_tiles, examples.exchange:
            assert run(cupy), run
        assert examples.chained_sum(cupy, 12, 64)
        examples.fault(cupy, "missing_syncwarp", 1, 32, defines=("CORRECT",))
        assert examples.square(cupy, "CORRECT")
""")
    assert result.clean, result


@under("address")
def test_bad_addresses_are_reported(run_checked):
    result = run_checked("""
with simulated_cuda() as cupy:
    for run in examples.reverse_by_groups, examples.sum_tiles, examples.exchange:
        assert run(cupy), run
    print("right")
    examples.fault(cupy, "overrun_dynamic", 1, 32, np.int32(32))
    examples.fault(cupy, "overrun_static", 1, 32, np.int32(1))
    examples.fault(cupy, "overrun_global", 1, 64, np.int32(1))
    try:
        examples.reverse_by_groups(cupy, "WITHOUT_WAIT")
    except Exception as error:
        print(error)
    examples.fault(cupy, "misaligned", 1, 64)
""")
    assert "right" in result.output, result
    for function in (
        "overrun_dynamic",
        "overrun_static",
        "overrun_global",
        "reverse_by_groups",
        "misaligned",
    ):
        assert reported_in(result, function), f"{function}: {result}"
    assert "faults.cu:" in reported_in(result, "overrun_dynamic")[0]
    assert not reported_in(result, "sum_tiles")
