// C = A B of halves, summed in float, through CUDA's wmma. Tiles of 64 x 64 x 32; a warp has 32 x 32 entries of C.
#include <cuda_fp16.h>
#include <mma.h>

#include "gemm_tiles.cuh"

using namespace nvcuda;

constexpr int TILE = 64, TILE_K = 32, STAGES = 2, SIDE = 16, WARPS = 4;

__global__ void __launch_bounds__(32 * WARPS) gemm_wmma(const half *a, const half *b, float *c, int n) {
    using A = wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, half, wmma::row_major>;
    using B = wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, half, wmma::row_major>;
    using C = wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float>;
    using Tiles = Staged<half, TILE, TILE, TILE_K, STAGES, 32 * WARPS>;
    __shared__ __align__(32) Tiles tiles;
    const int warp = threadIdx.x / 32, row = warp / 2 * (2 * SIDE), column = warp % 2 * (2 * SIDE);
    C sums[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) wmma::fill_fragment(sums[i / 2][i % 2], 0.0f);
    tiles.each(a + size_t(blockIdx.y) * TILE * n, b + blockIdx.x * TILE, n, [&](const half *left, const half *right) {
#pragma unroll
        for (int k = 0; k < TILE_K; k += SIDE) {
            A x[2];
            B y[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(x[i], left + (row + i * SIDE) * Tiles::A_STRIDE + k, Tiles::A_STRIDE);
                wmma::load_matrix_sync(y[i], right + k * Tiles::B_STRIDE + column + i * SIDE, Tiles::B_STRIDE);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) wmma::mma_sync(sums[i / 2][i % 2], x[i / 2], y[i % 2], sums[i / 2][i % 2]);
        }
    });
    c += size_t(blockIdx.y * TILE + row) * n + blockIdx.x * TILE + column;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        wmma::store_matrix_sync(c + size_t(i / 2 * SIDE) * n + i % 2 * SIDE, sums[i / 2][i % 2], n,
                                wmma::mem_row_major);
}
