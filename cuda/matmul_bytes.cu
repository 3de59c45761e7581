// Exact products of a matrix of integers of 1 or 2 bytes and a matrix of words modulo q, on tensor cores (docs/math.md,
// "Products of matrices"). The left matrix is read as it lies in memory; its rows or its columns are dense. cut_words
// first cuts the words of the right matrix into bytes, called digits.
#include "matmul_tensor.cuh"
#include "ptx.cuh"

// Cuts words into digits. x: (k, n), words of L bytes. out: (L * n, pitch). Row L * j + d of `out` holds digit d of the
// words of column j of x, then zeros. SIZE: bytes of an integer of the left matrix. If SIZE is 2, digit d of each word
// w is followed by digit d of 2^8 * w mod q, the factor for the high byte of an integer. A thread computes 16 bytes of
// each of the L rows of a column. grid: n * pitch / (16 * 256). block: 256 threads.
template <class W> struct CutParameters {
    const W *x;
    unsigned char *out;
    const Modulus *moduli;
    u64 pitch;
    u32 k, n;
};
template <class W, int SIZE> __global__ void __launch_bounds__(256) cut_words(const CutParameters<W> p) {
    constexpr int L = sizeof(W), WORDS = 16 / SIZE;
    start_next(starts_early());
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x, chunk = e / p.n, column = e - chunk * p.n;
    if (16 * chunk >= p.pitch) return;
    const Modulus &m = *p.moduli;
    await_previous();
    u32 digits[L][4] = {};
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        const u64 at = chunk * WORDS + i;
        const u64 x = at < p.k ? p.x[at * p.n + column] : 0, shifted = SIZE == 2 ? mul_mod(m, reduce(m, x), 256) : 0;
#pragma unroll
        for (int d = 0; d < L; ++d) {
            digits[d][SIZE * i / 4] |= (u32)(x >> 8 * d & 255) << 8 * (SIZE * i % 4);
            if (SIZE == 2) digits[d][i / 2] |= (u32)(shifted >> 8 * d & 255) << (8 * (2 * i % 4) + 8);
        }
    }
#pragma unroll
    for (int d = 0; d < L; ++d)
        write<DEFAULT>((Chunk *)(p.out + (L * column + d) * p.pitch + 16 * chunk), pack<4>(digits[d]));
}

// How a block reads its part of the left matrix. If SIZE is 0, each row is contiguous in memory. Else each column is
// contiguous, and integers have SIZE bytes.
template <class Tile, int SIZE> struct LeftBytes : Tile {
    static constexpr int ROWS = Tile::ROWS, DOWN = Tile::DOWN;
    // LENGTH: the number of chunks of a column in this tile. COUNT: the number of columns of a stage.
    static constexpr int LENGTH = SIZE * ROWS / 16, COUNT = Tile::DEPTH / SIZE;
    static_assert(DOWN % 2 == 0, "a lane takes four neighbouring rows");

    // Returns the place in shared memory of one chunk of a column, counted in chunks. The places are chosen so that the
    // lanes of a warp read different banks. Of every 32 rows, a lane reads rows 4 * (lane / 4) to 4 * (lane / 4) + 3.
    // It reads these rows in 4 / SIZE neighbouring columns, beginning with a multiple of 4 / SIZE.
    static PG_DEVICE int place(int column, int chunk) {
        return column * LENGTH + (chunk ^ column / (4 / SIZE) % 4 * 2);
    }
    PG_DEVICE int row_of(int i, int h) const {
        return this->row + 32 * (i / 2) + 4 * (this->lane / 4) + 2 * (i % 2) + h;
    }
    PG_DEVICE void load(u32 (&a)[DOWN][4], const Chunk *left, int step) const {
        const int first = this->row + this->lane / 4 * 4, depth = 16 * step + this->lane % 4 * 4;
#pragma unroll
        for (int pair = 0; pair < DOWN / 2; ++pair)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int byte = SIZE * (first + 32 * pair), column = (depth + 16 * half) / SIZE;
                u32 w[4];
                if constexpr (SIZE == 1) {
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        w[i] = ((const u32 *)(left + place(column + i, byte / 16)))[byte % 16 / 4];
                    transpose_bytes(w);
                } else {
                    using Two = Neighbours<u32, 2>;
                    Two x[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        x[i] = ((const Two *)(left + place(column + i, byte / 16)))[byte % 16 / 8];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        w[i] = __byte_perm(x[0].values[i / 2], x[1].values[i / 2], i % 2 ? 0x7632 : 0x5410);
                }
#pragma unroll
                for (int r = 0; r < 4; ++r) a[2 * pair + r / 2][2 * half + r % 2] = w[r];
            }
    }
    // Only `rows` rows and `bytes` bytes of depth exist. Columns beyond this depth may be filled with any values: they
    // are multiplied by digits that are 0.
    template <int BYTES>
    static PG_DEVICE void fetch(Chunk *to, const unsigned char *from, u64 stride, int rows, int bytes) {
        Tile::template fetch_chunks<COUNT, LENGTH, BYTES>(to, from, stride, bytes / SIZE, SIZE * rows, place);
    }
};
template <class Tile> struct LeftBytes<Tile, 0> : Tile {
    PG_DEVICE void load(u32 (&a)[Tile::DOWN][4], const Chunk *left, int step) const { this->load_rows(a, left, step); }
    template <int BYTES>
    static PG_DEVICE void fetch(Chunk *to, const unsigned char *from, u64 stride, int rows, int bytes) {
        Tile::template fetch<Tile::ROWS, BYTES>(to, from, stride, rows, bytes);
    }
};

// x: (rows, n). y: (sums, n). Row i of y is the sum modulo q of rows i * part to (i + 1) * part - 1 of x. gridDim.x: n
// / 32. gridDim.y: rows of y. block: 256 threads, 8 for each of 32 columns.
template <class W> struct SumRowsParameters {
    const W *x;
    W *y;
    const Modulus *moduli;
    u32 rows, n, part;
};
template <class W> __global__ void __launch_bounds__(256) sum_rows(const SumRowsParameters<W> p) {
    __shared__ u64 sums[8][32];
    start_next(starts_early());
    const Modulus &m = *p.moduli;
    const u32 lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane, down = threadIdx.x / 32;
    const u32 end = min(p.rows, (blockIdx.y + 1) * p.part);
    u64 sum = 0;
    await_previous();
    if (column < p.n)
        for (u32 row = blockIdx.y * p.part + down; row < end; row += 8)
            sum = add_mod(m, sum, reduce(m, p.x[(u64)row * p.n + column]));
    sums[down][lane] = sum;
    __syncthreads();
    if (down || column >= p.n) return;
    for (u32 i = 1; i < 8; ++i) sum = add_mod(m, sum, sums[i][lane]);
    p.y[(u64)blockIdx.y * p.n + column] = (W)sum;
}

// out: (parts, m, n). out[part] = left * right, summed over one part of the depth. The depth is the inner dimension, in
// bytes. Parts have at most 2^15 bytes, so sums of products stay below 2^31. If integers are signed, the mask `flip`
// flips their sign bits. A flip adds `half` to an integer. So the kernel subtracts `half` times the sum of the words
// from each result. sums: (parts, n), the sums of the words of each part and column. gridDim.x: (m / ROWS) * (L * n /
// COLUMNS), both rounded up, where L is sizeof(W). gridDim.y: parts.
template <class W> struct BytesParameters {
    const unsigned char *left, *right;
    const W *sums;
    W *out;
    const Modulus *moduli;
    // stride: bytes from one dense row or column of the left matrix to the next. pitch: bytes of a row of digits.
    u64 stride, pitch, half;
    u32 m, n, k, part, flip;  // k, part: in bytes
};
template <class W, int ROWS, int COLUMNS, int WARP_ROWS, int WARP_COLUMNS, int STAGES, int BYTES, int SIZE>
__global__ void __launch_bounds__(32 * (ROWS / WARP_ROWS) * (COLUMNS / WARP_COLUMNS))
    gemm_bytes(const BytesParameters<W> p) {
    constexpr int L = sizeof(W);
    using Block = GemmTile<ROWS, COLUMNS, WARP_ROWS, WARP_COLUMNS, 128>;
    using Tile = LeftBytes<Block, SIZE>;
    constexpr int LEFT = ROWS * Tile::CHUNKS, RIGHT = COLUMNS * Tile::CHUNKS;
    extern __shared__ Chunk memory[];
    Chunk *const lefts = memory, *const rights = memory + STAGES * LEFT;
    const Modulus &modulus = *p.moduli;
    const Tile tile;
    const u32 across = (L * p.n + COLUMNS - 1) / COLUMNS;
    const u32 first_column = blockIdx.x % across * (COLUMNS / L), first_row = blockIdx.x / across * ROWS;
    const u32 begin = blockIdx.y * p.part, depth = min(p.part, p.k - begin);
    const int rows = (int)min(p.m - first_row, (u32)ROWS), columns = (int)min(p.n - first_column, (u32)(COLUMNS / L));
    const int stages = (int)((depth + Tile::DEPTH - 1) / Tile::DEPTH);
    const unsigned char *const left = SIZE
                                          ? p.left + (u64)(begin / (SIZE ? SIZE : 1)) * p.stride + (u64)SIZE * first_row
                                          : p.left + first_row * p.stride + begin;
    const u64 step = SIZE ? (u64)(Tile::DEPTH / (SIZE ? SIZE : 1)) * p.stride : Tile::DEPTH;
    const unsigned char *const right = p.right + (u64)L * first_column * p.pitch + begin;
    start_next(starts_early());
    await_previous();
    const auto fetch = [&](int stage) {
        if (stage < stages) {
            const int at = stage % STAGES;
            Tile::template fetch<BYTES>(lefts + at * LEFT, left + stage * step, p.stride, rows,
                                        (int)depth - stage * Tile::DEPTH);
            Block::template fetch<COLUMNS, 16>(rights + at * RIGHT, right + stage * Tile::DEPTH, p.pitch, L * columns,
                                               Tile::DEPTH);
        }
        end_copies();
    };
    i32 sums[Tile::DOWN][Tile::ACROSS][4] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);
    for (int stage = 0; stage < stages; ++stage) {
        await_copies<STAGES - 2>();
        __syncthreads();
        fetch(stage + STAGES - 1);
        const Chunk *const bytes = lefts + stage % STAGES * LEFT;
        const auto load = [&](auto &a, int chunk) {
            tile.load(a, bytes, chunk);
#pragma unroll
            for (int i = 0; i < Tile::DOWN; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) a[i][j] ^= p.flip;
        };
        tile.multiply(sums, load, rights + stage % STAGES * RIGHT);
    }
    W *const out = p.out + ((u64)blockIdx.y * p.m + first_row) * p.n + first_column;
#pragma unroll
    for (int i = 0; i < Tile::DOWN; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = tile.row_of(i, h), column = tile.column_of() / L;
#pragma unroll
            for (int e = 0; e < Tile::RUN / L; ++e) {
                i32 x[L];
#pragma unroll
                for (int j = 0; j < L; ++j) x[j] = sums[i][(L * e + j) / 2][2 * h + j % 2];
                if (row >= rows || column + e >= columns) continue;
                u64 value = compose_digits<W>(modulus, x);
                if (p.flip) {
                    const u64 sum = p.sums[(u64)blockIdx.y * p.n + first_column + column + e];
                    value = sub_mod(modulus, value, mul_mod(modulus, sum, p.half));
                }
                out[(u64)row * p.n + column + e] = (W)value;
            }
        }
    }
}
