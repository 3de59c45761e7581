// Transposes of matrices of 8-byte words through shared memory, alone and with a product on the way.
#include "memory.cuh"
#include "word.cuh"

// Matrices of (rows, columns) by tiles of 16 x 16, one value in a thread. Shared memory serves 8-byte words to half a
// warp at once. A half-warp reads a column of the tile; without padding of the rows its values lie in one bank.
constexpr u32 TILE = 16;
template <bool PADDED>
__global__ void __launch_bounds__(TILE *TILE) transpose_batch(const u64 *x, u64 *y, u32 rows, u32 columns) {
    constexpr u32 STRIDE = TILE + PADDED;
    __shared__ u64 tile[TILE * STRIDE];
    const u32 matrix = blockIdx.z * rows * columns, row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    tile[threadIdx.y * STRIDE + threadIdx.x] = x[matrix + (row + threadIdx.y) * columns + column + threadIdx.x];
    __syncthreads();
    y[matrix + (column + threadIdx.y) * rows + row + threadIdx.x] = tile[threadIdx.x * STRIDE + threadIdx.y];
}

// What a value is multiplied by: nothing; a residue of its own, from a table as large as the array; a residue that
// values at the same place of all matrices share.
enum Factors { NO_FACTORS, OWN_FACTORS, SHARED_FACTORS };

// Matrices of 64 x 64 values that follow each other in memory. A block has COLUMNS columns of one matrix.
constexpr u32 SIDE = 64;
template <u32 COLUMNS, u32 THREADS, Factors FACTORS, bool PADDED>
__global__ void __launch_bounds__(THREADS, FACTORS == NO_FACTORS ? 0 : 1024 / THREADS)
    transpose_small(const u64 *x, u64 *y, const u64 *factors, const Modulus *modulus) {
    constexpr u32 STRIDE = COLUMNS + PADDED, VALUES = SIDE * COLUMNS / THREADS;
    __shared__ u64 tile[SIDE * STRIDE];
    const u32 t = threadIdx.x, matrix = blockIdx.y * (SIDE * SIDE), first = blockIdx.x * COLUMNS;

    const u32 row = t / COLUMNS, column = t % COLUMNS, from = row * SIDE + first + column;
    constexpr u32 DOWN = THREADS / COLUMNS;
    u64 values[VALUES];
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) values[k] = x[matrix + from + k * DOWN * SIDE];
    if constexpr (FACTORS != NO_FACTORS) {
        const u64 *own = factors + (FACTORS == OWN_FACTORS ? matrix : 0) + from;
#pragma unroll
        for (u32 k = 0; k < VALUES; ++k) {
            const u64 w = FACTORS == OWN_FACTORS ? own[k * DOWN * SIDE] : read<READ_ONLY>(own + k * DOWN * SIDE);
            values[k] = barrett_product(*modulus, values[k], w);
        }
    }
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) tile[(row + k * DOWN) * STRIDE + column] = values[k];
    __syncthreads();

    u64 *to = y + matrix + (first + t / SIDE) * SIDE + t % SIDE;
    const u64 *own = tile + t % SIDE * STRIDE + t / SIDE;
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) to[k * THREADS] = own[k * (THREADS / SIDE)];
}

// A tile of ROWS x COLUMNS words. Loads and stores move pairs, 16 bytes. A thread loads two neighbours from each of
// two neighbouring rows, and stores two neighbours of a column.
template <u32 ROWS_, u32 COLUMNS_, u32 THREADS_> struct Pairs {
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, THREADS = THREADS_;
    static constexpr u32 ACROSS = COLUMNS / 2, DOWN = THREADS / ACROSS;           // threads across and down the tile
    static constexpr u32 STEPS = ROWS / (2 * DOWN);                               // squares of 2 x 2 words of a thread
    static constexpr u32 LENGTH = ROWS / 2, STORES = COLUMNS * LENGTH / THREADS;  // pairs of a column; of a thread
    static_assert(STEPS * DOWN * 2 == ROWS && STORES * THREADS == COLUMNS * LENGTH && LENGTH >= 8, "");
    using Pair = Neighbours<u64, 2>;

    // The place of pair k of a column in shared memory. The eight threads that are served at once write pair k of
    // every second column, or read neighbouring pairs of one column. In both cases the pairs are in different banks.
    static PG_DEVICE u32 place(u32 column, u32 k) { return column * LENGTH + (k ^ (column >> 1 & 7)); }
};

// One matrix of (rows, columns); WHOLE: many matrices of one tile each. A block has `tiles` tiles, one after the
// other: down the columns of the matrix or, WHOLE, from matrix to matrix. It loads a tile while it stores the one
// before.
//
// TWIDDLED: entry (i, j) is multiplied by w^(i j), i < rows, j < columns, w of order rows * columns. `low` has w^e for
// e < 2^log_low, `high` has w^e for the multiples e of 2^log_low. A thread has two columns j and the rows i + r of a
// tile; the offsets r are the same for all threads. It keeps w^(i j) and multiplies it by w^(ROWS j) from tile to tile
// of one matrix. The block computes w^(r j) once.
template <class W, class S, bool WHOLE, bool TWIDDLED>
__global__ void __launch_bounds__(S::THREADS)
    transpose_pairs(const u64 *x, u64 *y, u32 rows, u32 columns, u32 tiles, const typename W::Twiddle *low,
                    const typename W::Twiddle *high, u32 log_low, const Modulus *modulus) {
    using Pair = typename S::Pair;
    using Twiddle = typename W::Twiddle;
    constexpr u32 OFFSETS = TWIDDLED ? 2 * S::STEPS : 0;  // of rows of a thread
    __shared__ __align__(16) Pair tile[S::COLUMNS * S::LENGTH];
    __shared__ __align__(16) Twiddle powers[OFFSETS * S::COLUMNS + !TWIDDLED];
    if (WHOLE) rows = S::ROWS, columns = S::COLUMNS;
    const u32 t = threadIdx.x, across = t % S::ACROSS, down = t / S::ACROSS, k = t % S::LENGTH, c = t / S::LENGTH;
    const u32 first_tile = blockIdx.y * tiles, column = blockIdx.x * S::COLUMNS;
    const u32 next_x = S::ROWS * columns, next_y = WHOLE ? S::ROWS * S::COLUMNS : S::ROWS;
    x += first_tile * next_x + 2 * down * columns + column + 2 * across;
    y += first_tile * next_y + (column + c) * rows + 2 * k;

    Pair values[2 * S::STEPS];  // rows 2 DOWN step + {0, 1} below the thread's first
    const auto load = [&] {
#pragma unroll
        for (u32 i = 0; i < 2 * S::STEPS; ++i)
            values[i] = read<STREAM>((const Pair *)(x + (i / 2 * 2 * S::DOWN + i % 2) * columns));
    };
    load();

    const W word(*modulus);
    const auto power = [&](u32 exponent) {
        const u32 rest = exponent & ((1 << log_low) - 1);
        return W::twiddle(*modulus, word.canonical(word.mul(read<READ_ONLY>(low + rest).w,
                                                            read<READ_ONLY>(high + (exponent >> log_low)))));
    };
    Twiddle own[2];
    if constexpr (TWIDDLED) {
        // Offset 0 needs no power: its place holds w^(ROWS j), which leads to the next tile. Even columns come before
        // odd ones.
        for (u32 i = t; i < OFFSETS * S::COLUMNS; i += S::THREADS) {
            const u32 o = i / S::COLUMNS, offset = o ? o / 2 * 2 * S::DOWN + o % 2 : WHOLE ? 0 : S::ROWS;
            powers[i] = power(offset * (column + i % S::ACROSS * 2 + i / S::ACROSS % 2));
        }
        const u32 row = (WHOLE ? 0 : first_tile * S::ROWS) + 2 * down;
#pragma unroll
        for (u32 p = 0; p < 2; ++p) own[p] = power(row * (column + 2 * across + p));
        __syncthreads();
    }

    for (u32 done = 0;;) {
        if constexpr (TWIDDLED) {
#pragma unroll
            for (u32 i = 0; i < 2 * S::STEPS; ++i)
#pragma unroll
                for (u32 p = 0; p < 2; ++p) {
                    u64 &value = values[i].values[p];
                    if (i) value = word.mul(value, powers[i * S::COLUMNS + p * S::ACROSS + across]);
                    value = word.canonical(word.mul(value, own[p]));
                }
        }
        if (done) __syncthreads();
#pragma unroll
        for (u32 i = 0; i < S::STEPS; ++i)
#pragma unroll
            for (u32 p = 0; p < 2; ++p)
                tile[S::place(2 * across + p, down + i * S::DOWN)] = {values[2 * i].values[p],
                                                                      values[2 * i + 1].values[p]};
        __syncthreads();
        if (++done < tiles) x += next_x, load();
#pragma unroll
        for (u32 i = 0; i < S::STORES; ++i) {
            constexpr u32 STEP = S::THREADS / S::LENGTH;
            write<STREAM>((Pair *)(y + i * STEP * rows), tile[S::place(c + i * STEP, k)]);
        }
        if (done == tiles) return;
        y += next_y;
        if constexpr (TWIDDLED && !WHOLE)
#pragma unroll
            for (u32 p = 0; p < 2; ++p)
                own[p] = W::twiddle(*modulus, word.canonical(word.mul(own[p].w, powers[p * S::ACROSS + across])));
    }
}
