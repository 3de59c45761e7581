// C = A B in float: from a kernel that reads both factors of every product from global memory to a pipeline of tiles.
#include "gemm_tiles.cuh"

constexpr int NAIVE = 16;  // rows and columns of a block; a thread has one entry

__global__ void __launch_bounds__(NAIVE *NAIVE) gemm_naive(const float *a, const float *b, float *c, int n) {
    const int row = blockIdx.y * NAIVE + threadIdx.x / NAIVE, column = blockIdx.x * NAIVE + threadIdx.x % NAIVE;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[size_t(row) * n + k] * b[size_t(k) * n + column];
    c[size_t(row) * n + column] = sum;
}

// Tiles of 64 x 64 x TILE_K. A thread has ROWS x COLUMNS entries; the COLUMNS entries of a row are neighbours. Two
// stages of TILE_K = 64 would take 64 KB without the padding. A block has only 48 KB unless the launch asks for more,
// so TILE_K is 32.
template <int TILE_K, int STAGES, int ROWS, int COLUMNS>
__global__ void __launch_bounds__(64 * 64 / (ROWS * COLUMNS))
    gemm_shared(const float *a, const float *b, float *c, int n) {
    constexpr int ACROSS = 64 / COLUMNS, DOWN = 64 / ROWS;
    using Tiles = Staged<float, 64, 64, TILE_K, STAGES, ACROSS * DOWN>;
    __shared__ __align__(16) Tiles tiles;
    const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS * COLUMNS;
    float sums[ROWS][COLUMNS] = {};
    tiles.each(a + size_t(blockIdx.y) * 64 * n, b + blockIdx.x * 64, n, [&](const float *left, const float *right) {
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float x[ROWS], y[COLUMNS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) x[i] = left[(row + i * DOWN) * Tiles::A_STRIDE + k];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) y[j] = right[k * Tiles::B_STRIDE + column + j];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) sums[i][j] += x[i] * y[j];
        }
    });
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            c[size_t(blockIdx.y * 64 + row + i * DOWN) * n + blockIdx.x * 64 + column + j] = sums[i][j];
}

// A warp is 4 x 8 threads with ROWS x COLUMNS entries each. The entries of a thread are groups of 4 x 4, which are 16
// rows or 32 columns apart. A is transposed while it is copied, so that a thread reads both operands of a step in
// chunks of 16 bytes. Bit 0 of a lane's number chooses a row, bits 1 to 3 choose the column: a half-warp reads 2
// chunks of A and 8 chunks of B, in different banks.
template <int TILE_M, int TILE_N, int TILE_K, int ROWS, int COLUMNS, int STAGES> struct Pipelined {
    static constexpr int WARPS_DOWN = TILE_M / (4 * ROWS), WARPS_ACROSS = TILE_N / (8 * COLUMNS);
    static constexpr int THREADS = 32 * WARPS_DOWN * WARPS_ACROSS;
    static constexpr int BLOCKS = (ROWS * COLUMNS > 64 ? 256 : 512) / THREADS;  // of a multiprocessor, by registers
    // The 8 x 4 elements of A that a warp copies at once go to different banks.
    static constexpr int A_STRIDE = TILE_M + 4, B_PLACE = TILE_K * A_STRIDE, STAGE = B_PLACE + TILE_K * TILE_N;
    using Four = Neighbours<float, 4>;
    struct Fragment {
        Four a[ROWS / 4], b[COLUMNS / 4];
    };

    static PG_DEVICE void multiply(const float *a, const float *b, float *c, int n, float *shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int row = warp / WARPS_ACROSS * (4 * ROWS) + (lane % 2 + lane / 16 * 2) * 4;
        const int column = warp % WARPS_ACROSS * (8 * COLUMNS) + lane / 2 % 8 * 4;
        const size_t first_row = size_t(blockIdx.y) * TILE_M, first_column = size_t(blockIdx.x) * TILE_N;

        constexpr int DOWN = THREADS / 8, ACROSS = TILE_N / 4, B_ROWS = THREADS / ACROSS;
        static_assert(TILE_M % DOWN == 0 && TILE_K % B_ROWS == 0 && B_ROWS, "threads that have nothing to copy");
        const int a_k = threadIdx.x % 8, a_row = threadIdx.x / 8;
        const int b_k = threadIdx.x / ACROSS, b_column = threadIdx.x % ACROSS * 4;
        a += (first_row + a_row) * n + a_k;
        b += size_t(b_k) * n + first_column + b_column;
        const auto copy = [&](int tile, int stage) {
            float *to = shared + stage * STAGE;
#pragma unroll
            for (int i = 0; i < TILE_M; i += DOWN)
#pragma unroll
                for (int k = 0; k < TILE_K; k += 8)
                    copy_async<4>(to + (a_k + k) * A_STRIDE + a_row + i, a + size_t(i) * n + tile * TILE_K + k);
            to += B_PLACE;
#pragma unroll
            for (int k = 0; k < TILE_K; k += B_ROWS)
                copy_async<16>(to + (b_k + k) * TILE_N + b_column, b + size_t(tile * TILE_K + k) * n);
        };
        const auto load = [&](Fragment &fragment, int stage, int k) {
            const float *from = shared + stage * STAGE;
#pragma unroll
            for (int i = 0; i < ROWS / 4; ++i) fragment.a[i] = *(const Four *)(from + k * A_STRIDE + row + 16 * i);
            from += B_PLACE;
#pragma unroll
            for (int j = 0; j < COLUMNS / 4; ++j) fragment.b[j] = *(const Four *)(from + k * TILE_N + column + 32 * j);
        };
        float sums[ROWS][COLUMNS] = {};
        const auto multiply_step = [&](const Fragment &fragment, int) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j)
                    sums[i][j] += fragment.a[i / 4].values[i % 4] * fragment.b[j / 4].values[j % 4];
        };
        pipeline<STAGES, TILE_K, Fragment>(n / TILE_K, copy, load, multiply_step);
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 4)
                *(Four *)(c + (first_row + row + i / 4 * 16 + i % 4) * n + first_column + column + j * 8) =
                    pack<4>(&sums[i][j]);
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    gemm_pipelined(const float *a, const float *b, float *c, int n) {
    extern __shared__ __align__(16) float shared[];
    P::multiply(a, b, c, n, shared);
}
