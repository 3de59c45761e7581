// Tensor cores and halves. `multiply`, by one warp: d = 2 (a b + c).
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

template <class T, class D, int M, int N, int K, class LayoutA, class LayoutB, class Stored>
__global__ void multiply(const Stored *a, const Stored *b, const D *c, D *d) {
    wmma::fragment<wmma::matrix_a, M, N, K, T, LayoutA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LayoutB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, D> sum, twice;
    wmma::load_matrix_sync(fa, a, std::is_same<LayoutA, wmma::row_major>::value ? K : M);
    wmma::load_matrix_sync(fb, b, std::is_same<LayoutB, wmma::row_major>::value ? N : K);
    wmma::load_matrix_sync(sum, c, M, wmma::mem_col_major);
    if constexpr (std::is_same<T, wmma::precision::tf32>::value) {
        for (int i = 0; i < fa.num_elements; i++) fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
#ifndef NOT_ROUNDED
        for (int i = 0; i < fb.num_elements; i++) fb.x[i] = wmma::__float_to_tf32(fb.x[i]);
#endif
    }
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::fill_fragment(twice, D(0));
    for (int i = 0; i < sum.num_elements; i++) twice.x[i] = sum.x[i] + sum.x[i];
    wmma::store_matrix_sync(d, twice, N, wmma::mem_row_major);
}

using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major>;
using Right = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major>;

// Takes the place of an element for granted, as mma.sync's layout in PTX would have it.
extern "C" __global__ void relies_on_lanes(const float *c, float *out) {
    Sum sum;
    wmma::load_matrix_sync(sum, c, 16, wmma::mem_row_major);
    for (int i = 0; i < 8; i++) {
        int row = threadIdx.x / 4 + i / 2 % 2 * 8, column = threadIdx.x % 4 * 2 + i % 2 + i / 4 * 8;
        out[16 * row + column] = sum.x[i];
    }
}

extern "C" __global__ void half_a_warp(const half *a, float *out) {
    Left fa;
    if (threadIdx.x < 16) wmma::load_matrix_sync(fa, a, 16);
}

extern "C" __global__ void two_matrices(const half *a, float *out) {
    Left fa;
    wmma::load_matrix_sync(fa, a + threadIdx.x / 16 * 256, 16);
}

extern "C" __global__ void misaligned_matrix(const half *a, float *out) {
    Left fa;
    wmma::load_matrix_sync(fa, a + 8, 16);
}

extern "C" __global__ void divergent_product(const half *a, float *out) {
    Left fa;
    Right fb;
    Sum sum;
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, a, 16);
    wmma::fill_fragment(sum, 0.0f);
    if (threadIdx.x < 16)
        wmma::mma_sync(sum, fa, fb, sum);
    else
        wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
}

// Without CORRECT, lanes load what other lanes wrote with no __syncwarp between.
extern "C" __global__ void square_in_shared(const half *a, float *out) {
    __shared__ __align__(32) half tile[256];
    Left fa;
    Right fb;
    Sum sum;
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[i];
#ifdef CORRECT
    __syncwarp();
#endif
    wmma::load_matrix_sync(fa, tile, 16);
    wmma::load_matrix_sync(fb, tile, 16);
    wmma::fill_fragment(sum, 0.0f);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
}

extern "C" __global__ void half_arithmetic(const unsigned short *x, const unsigned short *y, unsigned short *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    half a = __ushort_as_half(x[i]), b = __ushort_as_half(y[i]);
    half2 pair = __hmul2(make_half2(a, b), make_half2(b, b));
    half results[] = {a + b, a - b, a * b, a / b, __hfma(a, b, a), __low2half(pair), __high2half(pair), -a};
    for (int k = 0; k < 8; k++) out[8 * i + k] = __half_as_ushort(results[k]);
}

extern "C" __global__ void half_conversions(const float *x, unsigned short *nearest, unsigned short *to_zero,
                                            const unsigned short *bits, float *widened, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    nearest[i] = __half_as_ushort(__float2half_rn(x[i]));
    to_zero[i] = __half_as_ushort(__float2half_rz(x[i]));
    widened[i] = __half22float2(__halves2half2(__ushort_as_half(bits[i]), half(0))).x;
}
