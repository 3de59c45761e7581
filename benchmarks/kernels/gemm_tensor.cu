// C = A B on tensor cores by mma.sync: of halves, or of floats that are each split into two tf32.
//
// A split float is high + low, each with a sign and 10 bits of mantissa. Products of low and low, at most 2^-22 of the
// product of two floats, are left out. Tensor cores do not round sums to nearest. So of split floats they sum only one
// tile, and the sums of tiles are added by the usual float arithmetic.
#include "gemm_tiles.cuh"

// The place of a byte in a tile in shared memory, whose rows have BYTES bytes. Chunks of 16 bytes change their places
// by row, so that rows that are read together are in different banks: the eight rows of a matrix of ldmatrix, or
// (BY_WORDS) four rows of which 32 bytes each are read word by word.
template <int BYTES, bool BY_WORDS> PG_DEVICE int place(int row, int byte) {
    static_assert(BYTES % 64 == 0, "rows fill whole banks");
    const int key = BY_WORDS ? row % 4 * 2 : BYTES >= 128 ? row % 8 : row / 2 % 4;
    return row * BYTES + (byte ^ key * 16);
}

struct Halves {
    using Stored = unsigned short;
    static constexpr bool SPLIT = false;
    // Operands from two neighbouring groups of 8 columns of B: b[0] and b[1] of the first group, b[2] and b[3] of the
    // second.
    template <int BYTES> static PG_DEVICE void load_pair(u32 *b, const char *tile, int k, int byte) {
        const int lane = threadIdx.x % 32;
        load_matrices<true>(b, tile + place<BYTES, false>(k + lane % 16, byte + lane / 16 * 16));
    }
};

struct Floats {
    using Stored = float;
    static constexpr bool SPLIT = true;
    template <int BYTES> static PG_DEVICE void load_pair(u32 *b, const char *tile, int k, int byte) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            b[i] = *(const u32 *)(tile + place<BYTES, true>(k + t + i % 2 * 4, byte + i / 2 * 32 + g * 4));
    }
};

// The nearest tf32 of a finite float, by its bits.
PG_DEVICE u32 to_tf32(u32 bits) { return (bits + 0x1000) & ~0x1fffu; }
PG_DEVICE void split(u32 x, u32 &high, u32 &low) {
    high = to_tf32(x);
    low = to_tf32(__float_as_uint(__uint_as_float(x) - __uint_as_float(high)));
}

template <class Operand, int TILE_M, int TILE_N, int TILE_K, int WARP_M, int WARP_N, int STAGES> struct Tensor {
    using Stored = typename Operand::Stored;
    static constexpr int WARPS_ACROSS = TILE_N / WARP_N, THREADS = 32 * (TILE_M / WARP_M) * WARPS_ACROSS;
    static constexpr int SUMS = WARP_M * WARP_N / 32 * (Operand::SPLIT ? 2 : 1);                // registers of a thread
    static constexpr int BLOCKS = (SUMS > 64 ? 256 : 384) / THREADS;                            // of a multiprocessor
    static constexpr int A_BYTES = TILE_K * sizeof(Stored), B_BYTES = TILE_N * sizeof(Stored);  // of a row
    static constexpr int B_PLACE = TILE_M * A_BYTES, STAGE = B_PLACE + TILE_K * B_BYTES;
    static constexpr int ROWS = WARP_M / 16, COLUMNS = WARP_N / 8;
    static constexpr int STEP = 32 / sizeof(Stored), STEPS = TILE_K / STEP;
    struct Fragment {
        u32 a[ROWS][4], b[COLUMNS][2];
    };

    // Copies a tile of HEIGHT rows of BYTES bytes, from rows n elements apart.
    template <int HEIGHT, int BYTES, bool BY_WORDS> static PG_DEVICE void copy(char *to, const Stored *from, int n) {
        constexpr int ACROSS = BYTES / 16, DOWN = THREADS / ACROSS;
        static_assert(DOWN && HEIGHT % DOWN == 0, "threads that have nothing to copy");
        const int row = threadIdx.x / ACROSS, chunk = threadIdx.x % ACROSS;
        from += size_t(row) * n + chunk * (16 / sizeof(Stored));
#pragma unroll
        for (int i = 0; i < HEIGHT; i += DOWN)
            copy_async<16>(to + place<BYTES, BY_WORDS>(row + i, chunk * 16), from + size_t(i) * n);
    }

    // Calls work(i, j) for each row and column of fragments.
    template <class Work> static PG_DEVICE void each(Work &&work) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) work(i, j);
    }

    static PG_DEVICE void multiply(const Stored *a, const Stored *b, float *c, int n, char *shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int row = warp / WARPS_ACROSS * WARP_M, column = warp % WARPS_ACROSS * WARP_N;
        const size_t first_row = size_t(blockIdx.y) * TILE_M, first_column = size_t(blockIdx.x) * TILE_N;
        a += first_row * n;
        b += first_column;
        const auto copy_tile = [&](int tile, int stage) {
            char *to = shared + stage * STAGE;
            copy<TILE_M, A_BYTES, false>(to, a + tile * TILE_K, n);
            copy<TILE_K, B_BYTES, Operand::SPLIT>(to + B_PLACE, b + size_t(tile) * TILE_K * n, n);
        };
        const auto load = [&](Fragment &fragment, int stage, int step) {
            const char *from = shared + stage * STAGE;
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const int at = place<A_BYTES, false>(row + 16 * i + lane % 16, 32 * step + lane / 16 * 16);
                load_matrices<>(fragment.a[i], from + at);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2)
                Operand::template load_pair<B_BYTES>(fragment.b[j], from + B_PLACE, STEP * step,
                                                     (column + 8 * j) * sizeof(Stored));
        };
        float sums[ROWS][COLUMNS][4] = {};
        float tile_sums[Operand::SPLIT ? ROWS : 1][COLUMNS][4] = {};
        const auto multiply_step = [&](const Fragment &fragment, int step) {
            if constexpr (Operand::SPLIT) {
                Fragment high, low;
#pragma unroll
                for (int i = 0; i < ROWS * 4; ++i)
                    split(fragment.a[i / 4][i % 4], high.a[i / 4][i % 4], low.a[i / 4][i % 4]);
#pragma unroll
                for (int j = 0; j < COLUMNS * 2; ++j)
                    split(fragment.b[j / 2][j % 2], high.b[j / 2][j % 2], low.b[j / 2][j % 2]);
                each([&](int i, int j) { multiply_add<Tf32>(tile_sums[i][j], low.a[i], high.b[j]); });
                each([&](int i, int j) { multiply_add<Tf32>(tile_sums[i][j], high.a[i], low.b[j]); });
                each([&](int i, int j) { multiply_add<Tf32>(tile_sums[i][j], high.a[i], high.b[j]); });
                if (step == STEPS - 1)
                    each([&](int i, int j) {
#pragma unroll
                        for (int k = 0; k < 4; ++k) sums[i][j][k] += tile_sums[i][j][k], tile_sums[i][j][k] = 0;
                    });
            } else {
                each([&](int i, int j) { multiply_add<Half>(sums[i][j], fragment.a[i], fragment.b[j]); });
            }
        };
        pipeline<STAGES, STEPS, Fragment>(n / TILE_K, copy_tile, load, multiply_step);
        c += (first_row + row + lane / 4) * n + first_column + column + lane % 4 * 2;
        each([&](int i, int j) {
            *(float2 *)(c + size_t(16 * i) * n + 8 * j) = make_float2(sums[i][j][0], sums[i][j][1]);
            *(float2 *)(c + size_t(16 * i + 8) * n + 8 * j) = make_float2(sums[i][j][2], sums[i][j][3]);
        });
    }
};

template <class T>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    gemm_tensor(const typename T::Stored *a, const typename T::Stored *b, float *c, int n) {
    extern __shared__ __align__(16) char shared[];
    T::multiply(a, b, c, n, shared);
}
