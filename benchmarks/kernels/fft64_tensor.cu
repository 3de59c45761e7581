// Batches of 64-point FFTs, forward, natural order, as products of matrices on tensor cores.
//
// 64 = 8 x 8, n = 8 n1 + n2 and k = k1 + 8 k2. The sums over n1 are a DFT of 8 points for each n2. The sums over n2
// are a DFT of 8 points for each k1. Between the two is a product with the twiddle w^(n2 k1). The DFT of 8 points is
// the row of their real and imaginary parts, 16 numbers, times a real 16 x 16 matrix. So each step is the product of a
// tile of 16 rows, the 8 DFTs of each of two FFTs, and this matrix. Each warp has a tile of its own.
//
// Every float is split into two operands, x = high + low SHRINK. Products of low and low, at most 2^-22 of the product
// of two floats, are left out. Where sums are rounded to nearest after every product, as in tests/test_studies.py, the
// relative L2 error for normal random input is 0.9e-7 with halves and 1.1e-7 with tf32. The stages in float (fft64.cu)
// have 0.9e-7. A card rounds the sums of tensor cores in another way.
#include <cuda_fp16.h>
#include <mma.h>

#include "fft64.cuh"

using namespace nvcuda;

struct Halves {
    using Operand = half;
    using Stored = half;
    static constexpr int K = 16, BLOCKS = 5;  // columns of an operand, blocks of a multiprocessor
    static constexpr float SHRINK = 1.0f / 2048;
    static constexpr bool SCALED = true;  // to at most about 1 before a split: halves reach from 2^-24 to 65504
    static __device__ __forceinline__ void split(float x, half &high, half &low) {
        high = __float2half_rn(x);
        low = __float2half_rn((x - __half2float(high)) * 2048);
    }
};

struct Tf32 {
    using Operand = wmma::precision::tf32;
    using Stored = float;
    static constexpr int K = 8, BLOCKS = 3;
    static constexpr float SHRINK = 1;
    static constexpr bool SCALED = false;
    static __device__ __forceinline__ void split(float x, float &high, float &low) {
        high = wmma::__float_to_tf32(x);
        low = wmma::__float_to_tf32(x - high);
    }
};

// A matrix of 16 x 16 floats, split. The 16 bytes between rows keep the rows of a fragment in different banks.
template <class S> struct SplitMatrix {
    using Stored = typename S::Stored;
    static constexpr int STRIDE = 16 + 16 / sizeof(Stored);
    struct __align__(2 * sizeof(Stored)) Pair {
        Stored re, im;
    };
    Stored high[16 * STRIDE], low[16 * STRIDE];
    __device__ __forceinline__ void set(int row, int k, float2 z) {  // columns 2 k and 2 k + 1
        Pair first, rest;
        S::split(z.x, first.re, rest.re);
        S::split(z.y, first.im, rest.im);
        *(Pair *)(high + row * STRIDE + 2 * k) = first;
        *(Pair *)(low + row * STRIDE + 2 * k) = rest;
    }
};

template <class S> struct __align__(32) Tile {
    static constexpr int STRIDE = 20;
    SplitMatrix<S> operand;
    float result[16 * STRIDE];
    __device__ __forceinline__ float2 value(int row, int k) const {
        return *(const float2 *)(result + row * STRIDE + 2 * k);
    }
};

constexpr int WARPS = 8;

// block: 32 * WARPS threads. A warp steps through the FFTs two by two, by the whole grid at a time.
template <class S>
__global__ void __launch_bounds__(32 * WARPS, S::BLOCKS) fft64_tensor(const float2 *x, float2 *y, int ffts) {
    using A = wmma::fragment<wmma::matrix_a, 16, 16, S::K, typename S::Operand, wmma::row_major>;
    using B = wmma::fragment<wmma::matrix_b, 16, 16, S::K, typename S::Operand, wmma::row_major>;
    using C = wmma::fragment<wmma::accumulator, 16, 16, S::K, float>;
    constexpr int STRIDE = SplitMatrix<S>::STRIDE;
    __shared__ __align__(32) SplitMatrix<S> dft;
    __shared__ __align__(32) Tile<S> tiles[WARPS];
    if (threadIdx.x < 128) {
        const int row = threadIdx.x / 8, k = threadIdx.x % 8;
        const float2 w = root(8 * (row / 2) * k % 64);
        dft.set(row, k, row % 2 ? make_float2(-w.y, w.x) : w);
    }
    __syncthreads();
    B high[16 / S::K], low[16 / S::K];
#pragma unroll
    for (int k = 0; k < 16 / S::K; ++k) {
        wmma::load_matrix_sync(high[k], dft.high + k * S::K * STRIDE, STRIDE);
        wmma::load_matrix_sync(low[k], dft.low + k * S::K * STRIDE, STRIDE);
    }

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Tile<S> &tile = tiles[warp];
    const auto multiply = [&] {
        __syncwarp();
        constexpr bool ONE_SUM = S::SHRINK == 1;
        C sum, apart;
        C &small = ONE_SUM ? sum : apart;
        wmma::fill_fragment(sum, 0.0f);
        wmma::fill_fragment(apart, 0.0f);
#pragma unroll
        for (int k = 0; k < 16 / S::K; ++k) {
            A a, rest;
            wmma::load_matrix_sync(a, tile.operand.high + k * S::K, STRIDE);
            wmma::load_matrix_sync(rest, tile.operand.low + k * S::K, STRIDE);
            wmma::mma_sync(small, rest, high[k], small);
            wmma::mma_sync(small, a, low[k], small);
            wmma::mma_sync(sum, a, high[k], sum);
        }
#pragma unroll
        for (int i = 0; i < sum.num_elements && !ONE_SUM; ++i) sum.x[i] += small.x[i] * S::SHRINK;
        wmma::store_matrix_sync(tile.result, sum, Tile<S>::STRIDE, wmma::mem_row_major);
        __syncwarp();
    };

    // A lane has the points lane and lane + 32 of each of two FFTs. They are 8 a + b, with the same b and two values
    // of a.
    const int b = lane % 8;
    float2 twiddles[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) twiddles[i] = root((lane / 8 + 4 * i) * b);
    for (int first = 2 * (blockIdx.x * WARPS + warp); first < ffts; first += 2 * WARPS * gridDim.x) {
        float2 values[4];
        float grow[2] = {1, 1};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool there = first + i / 2 < ffts;
            values[i] = there ? x[64 * size_t(first) + 32 * i + lane] : make_float2(0, 0);
        }
        if (S::SCALED) {
#pragma unroll
            for (int fft = 0; fft < 2; ++fft) {
                const float2 p = values[2 * fft], q = values[2 * fft + 1];
                const float most = fmaxf(fmaxf(fabsf(p.x), fabsf(p.y)), fmaxf(fabsf(q.x), fabsf(q.y)));
                // The power of two above the largest part, limited so that its inverse is a normal float.
                const unsigned exponent = min(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23, 252u);
                const float shrink = __uint_as_float((253 - exponent) << 23);
                grow[fft] = __uint_as_float((exponent + 1) << 23);
#pragma unroll
                for (int i = 2 * fft; i < 2 * fft + 2; ++i)
                    values[i] = make_float2(values[i].x * shrink, values[i].y * shrink);
            }
        }
        // values[i] belongs to FFT i / 2. (a, b) is (n1, n2) on input, (k1, n2) after the first product and (k2, k1)
        // at the end.
        const auto a = [&](int i) { return lane / 8 + 4 * (i % 2); };
#pragma unroll
        for (int i = 0; i < 4; ++i) tile.operand.set(8 * (i / 2) + b, a(i), values[i]);
        multiply();
        constexpr float DOWN = S::SCALED ? 1.0f / 16 : 1;  // sums of 8 points of parts up to 1 are below 16
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 value = times(tile.value(8 * (i / 2) + b, a(i)), twiddles[i % 2]);
            tile.operand.set(8 * (i / 2) + a(i), b, make_float2(value.x * DOWN, value.y * DOWN));
        }
        multiply();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 value = tile.value(8 * (i / 2) + b, a(i));
            const float again = S::SCALED ? 16 * grow[i / 2] : 1;
            if (first + i / 2 < ffts)
                y[64 * size_t(first) + 32 * i + lane] = make_float2(value.x * again, value.y * again);
        }
        __syncwarp();
    }
}
