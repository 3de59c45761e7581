// Products modulo q of matrices of polynomials (computed point by point), and of matrices of integers.
#include "memory.cuh"
#include "rows.cuh"
#include "sum.cuh"
#include "tensor.cuh"

template <int WIDTH, class T> PG_DEVICE Neighbours<T, WIDTH> repeated(T x) {
    Neighbours<T, WIDTH> y;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) y.values[w] = x;
    return y;
}
template <int WIDTH, class T> PG_DEVICE Neighbours<T, WIDTH> residues(const Modulus &m, Neighbours<T, WIDTH> x) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) x.values[w] = residue(m, x.values[w]);
    return x;
}

// Adds the products for one value of the inner index k to all sums of a thread.
template <class S, int TM, int TP, int WIDTH, class Items>
PG_DEVICE void add_all(S (&sums)[TM][TP][WIDTH], const Items (&x)[TM], const Items (&y)[TP]) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TP; ++j)
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) sums[i][j][w].add(x[i].values[w], y[j].values[w]);
}
template <class S, int TM, int TP, int WIDTH> PG_DEVICE void settle_all(S (&sums)[TM][TP][WIDTH], const Modulus &m) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TP; ++j)
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) sums[i][j][w].settle(m);
}

template <class S, int WIDTH>
PG_DEVICE Neighbours<typename S::Storage, WIDTH> values(const S (&sums)[WIDTH], const Modulus &m) {
    Neighbours<typename S::Storage, WIDTH> y;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) y.values[w] = sums[w].value(m);
    return y;
}

constexpr int POINTS_THREADS = 128;  // threads of a block
// Returns how many blocks a multiprocessor should hold, for the launch bound; 0: any number.
constexpr __device__ int points_blocks(int rows, int columns) { return rows * columns >= 64 ? 3 : 0; }

// out[s, i, j, e] = sum over k < length of a[s, i, k, e] * b[s, k, j, e]. e < entries runs over the points of all
// limbs. A thread holds a tile of TM * TP sums at each of WIDTH neighbouring points. The last tile of an axis ends
// where the axis ends. If two tiles overlap, the earlier tile writes the sums that they share. A block has 2^log_lanes
// threads along e, 2^log_columns along j and 2^log_rows along i; its remaining threads lie along s. grid: (blocks along
// j) * (blocks along i) * (blocks along s) * (blocks along e). Along blockIdx.x, j changes fastest, then i, s and e.
// Blocks that share operands then run together and find them in the cache. a_batch ... out_column: strides of the axes,
// in values.
//
// If INTEGERS is true, `a` is a matrix of few rows without the axis e, and the points e are the columns of the matrix
// b. Words need not be canonical. Product s is the sum over `length` values of k, beginning with k = s * length. It
// leaves out values k >= total.
template <class T> struct PointsParameters {
    const T *a, *b;
    T *out;
    const Modulus *moduli;
    i64 a_batch, a_row, a_column, b_batch, b_row, b_column, out_batch, out_row, out_column;
    u64 batch, rows, columns, total, length, points, entries;
    u32 log_lanes, log_columns, log_rows;
};
template <class S, int TM, int TP, int WIDTH, bool INTEGERS>
__global__ void __launch_bounds__(POINTS_THREADS, points_blocks(TM, TP))
    matmul_points(const PointsParameters<typename S::Storage> p) {
    auto a = p.a, b = p.b;
    auto out = p.out;
    u64 length = p.length;
    using Item = Neighbours<typename S::Storage, WIDTH>;
    const u32 log_batch = 31 - __clz(POINTS_THREADS) - p.log_lanes - p.log_columns - p.log_rows;
    const u64 row_tiles = (p.rows + TM - 1) / TM, column_tiles = (p.columns + TP - 1) / TP;
    u64 at = blockIdx.x;
    u32 thread = threadIdx.x;
    const auto block_start = [&](u64 size, u32 log_size) {  // this block's first index along the next axis
        const u64 count = ((size - 1) >> log_size) + 1, outer = quotient(at, count), block = at - outer * count;
        at = outer;
        return block << log_size;
    };
    const auto place = [&](u32 log_size) {
        const u32 index = thread & ((1u << log_size) - 1);
        thread >>= log_size;
        return index;
    };
    const u64 lane = place(p.log_lanes);
    const u64 column_tile = block_start(column_tiles, p.log_columns) + place(p.log_columns);
    const u64 row_tile = block_start(row_tiles, p.log_rows) + place(p.log_rows);
    const u64 s = block_start(p.batch, log_batch) + thread, e = ((at << p.log_lanes) + lane) * WIDTH;
    if (column_tile >= column_tiles || row_tile >= row_tiles || s >= p.batch || e >= p.entries) return;

    const u64 row = min(row_tile * TM, p.rows - TM), column = min(column_tile * TP, p.columns - TP);
    const Modulus &m = p.moduli[quotient(e, p.points)];
    a += (i64)s * p.a_batch + (i64)row * p.a_row + (INTEGERS ? 0 : e);
    b += (i64)s * p.b_batch + (i64)column * p.b_column + e;
    if (INTEGERS) length = min(length, p.total - s * length);
    S sums[TM][TP][WIDTH];
    const auto step = [&] {
        Item x[TM], y[TP];
#pragma unroll
        for (int i = 0; i < TM; ++i)
            if constexpr (INTEGERS) x[i] = repeated<WIDTH>(residue(m, __ldg(a + i * p.a_row)));
            else x[i] = read<READ_ONLY>((const Item *)(a + i * p.a_row));
#pragma unroll
        for (int j = 0; j < TP; ++j) {
            y[j] = read<READ_ONLY>((const Item *)(b + j * p.b_column));
            if constexpr (INTEGERS) y[j] = residues(m, y[j]);
        }
        a += p.a_column, b += p.b_row;
        add_all(sums, x, y);
    };
    for (u64 k = length / S::STEPS; k > 0; --k) {
#pragma unroll
        for (int i = 0; i < S::STEPS; ++i) step();
        settle_all(sums, m);
    }
    for (u64 k = length % S::STEPS; k > 0; --k) step();
    out += (i64)s * p.out_batch + (i64)row * p.out_row + (i64)column * p.out_column + e;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TP; ++j)
            if (row + i >= row_tile * TM && column + j >= column_tile * TP)
                write<DEFAULT>((Item *)(out + i * p.out_row + j * p.out_column), values(sums[i][j], m));
}

// Shared memory holds the operands for STEPS values of the inner index k. One value of k is called a step. Operands are
// copied for DEPTH steps at a time. Each step has EDGE rows of a and EDGE columns of b.
template <class T, int TILE, int WIDTH> struct PointsStages {
    static constexpr int STAGES = 3, DEPTH = 4, STEPS = STAGES * DEPTH, EDGE = 2 * TILE;
    static constexpr int LANES = 32, POINTS = LANES * WIDTH, CHUNK = 16 / sizeof(T);  // CHUNK: points of one copy
    static_assert(EDGE * POINTS == POINTS_THREADS * CHUNK, "a thread copies a chunk of either operand for each step");
};

// Computes the sums of matmul_points with blocks of 2 x 2 warps. The warps of a block have the same points. A thread
// has TILE x TILE sums at each of its points. While the warps multiply operands, the operands for the next values of k
// are copied. Values outside of the operands are read as 0. Arrays begin at multiples of 16 bytes (a chunk). Their
// strides and `entries` are multiples of a chunk. grid: (columns / EDGE) * (rows / EDGE) * batch * (entries / POINTS),
// each quotient rounded up. Along blockIdx.x, columns change fastest, then rows, the batch and points. The launch bound
// asks for three blocks per multiprocessor, or two if words have 64 bits.
template <class T> struct StagedParameters {
    const T *a, *b;
    T *out;
    const Modulus *moduli;
    i64 a_batch, a_row, a_column, b_batch, b_row, b_column, out_batch, out_row, out_column;
    u64 batch, rows, columns, points, entries;
    u32 length;
};
template <class S, int TILE, int WIDTH>
__global__ void __launch_bounds__(POINTS_THREADS, sizeof(typename S::Storage) == 8 ? 2 : 3)
    matmul_points_staged(const StagedParameters<typename S::Storage> p) {
    auto a = p.a, b = p.b;
    auto out = p.out;
    using T = typename S::Storage;
    using Item = Neighbours<T, WIDTH>;
    using Stages = PointsStages<T, TILE, WIDTH>;
    __shared__ alignas(16) T memory[Stages::STEPS][2][Stages::EDGE][Stages::POINTS];
    const u64 column_blocks = (p.columns - 1) / Stages::EDGE + 1, row_blocks = (p.rows - 1) / Stages::EDGE + 1;
    const u64 in_column = quotient(blockIdx.x, column_blocks), product = quotient(in_column, row_blocks);
    const u64 block_column = (blockIdx.x - in_column * column_blocks) * Stages::EDGE;
    const u64 block_row = (in_column - product * row_blocks) * Stages::EDGE;
    const u64 of_points = quotient(product, p.batch), s = product - of_points * p.batch;
    const u64 block_e = of_points * Stages::POINTS;

    const u32 own = threadIdx.x * Stages::CHUNK / Stages::POINTS;
    const u32 own_point = threadIdx.x * Stages::CHUNK % Stages::POINTS;
    const bool in_entries = block_e + own_point < p.entries;
    const u32 a_length = in_entries && block_row + own < p.rows ? p.length : 0;
    const u32 b_length = in_entries && block_column + own < p.columns ? p.length : 0;
    a += (i64)s * p.a_batch + (i64)(block_row + own) * p.a_row + block_e + own_point;
    b += (i64)s * p.b_batch + (i64)(block_column + own) * p.b_column + block_e + own_point;
    const auto fetch = [&](u32 k) {
        const u32 at = k % Stages::STEPS;
        if (k < p.length)
#pragma unroll
            for (int l = 0; l < Stages::DEPTH; ++l) {
                copy_async<16>(&memory[at + l][0][own][own_point], a, k + l < a_length ? 16 : 0);
                copy_async<16>(&memory[at + l][1][own][own_point], b, k + l < b_length ? 16 : 0);
                a += p.a_column, b += p.b_row;
            }
        end_copies();
    };
    constexpr u32 AHEAD = Stages::STEPS - Stages::DEPTH;
#pragma unroll
    for (u32 k = 0; k < AHEAD; k += Stages::DEPTH) fetch(k);

    const u32 warp = threadIdx.x / Stages::LANES, lane = threadIdx.x % Stages::LANES;
    const u32 first_row = warp / 2 * TILE, first_column = warp % 2 * TILE;
    const u64 row = block_row + first_row, column = block_column + first_column, e = block_e + lane * WIDTH;
    const u32 own_rows = row < p.rows && e < p.entries ? (u32)min(p.rows - row, (u64)TILE) : 0;
    const u32 own_columns = column < p.columns ? (u32)min(p.columns - column, (u64)TILE) : 0;
    out += (i64)s * p.out_batch + (i64)row * p.out_row + (i64)column * p.out_column + e;
    const Modulus &m = p.moduli[(u32)quotient(min(e, p.entries - 1), p.points)];
    S sums[TILE][TILE][WIDTH];
    for (u32 k = 0; k < p.length; k += S::STEPS) {
        if (k % Stages::DEPTH == 0) {
            await_copies<Stages::STAGES - 2>();
            __syncthreads();
            fetch(k + AHEAD);
        }
        const u32 at = k % Stages::STEPS;
#pragma unroll
        for (int step = 0; step < S::STEPS; ++step) {
            Item x[TILE], y[TILE];
#pragma unroll
            for (int i = 0; i < TILE; ++i) {
                x[i] = *(const Item *)&memory[at + step][0][first_row + i][lane * WIDTH];
                y[i] = *(const Item *)&memory[at + step][1][first_column + i][lane * WIDTH];
            }
            add_all(sums, x, y);
        }
        settle_all(sums, m);
    }
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j)
            if (i < own_rows && j < own_columns)
                write<DEFAULT>((Item *)(out + i * p.out_row + j * p.out_column), values(sums[i][j], m));
}

// A block of 16 x 16 threads with TILE x TILE sums each. The block reads DEPTH values of k at a time.
template <class T, int TILE> struct IntegerTile {
    static constexpr int SIDE = 16, THREADS = SIDE * SIDE, EDGE = SIDE * TILE;  // EDGE: rows or columns of outputs
    static constexpr int DEPTH = TILE == 1 ? 16 : 8, MOVED = EDGE * DEPTH / THREADS;  // MOVED: words a thread copies
    static constexpr int MOST = 16 / sizeof(T), VECTOR = TILE < MOST ? TILE : MOST;   // VECTOR: neighbouring sums
    static constexpr int PITCH = EDGE + MOST;
    // Returns the row of outputs to which sum i of a thread belongs. index: the thread's row in the block of threads.
    // Columns of outputs are found in the same way.
    static constexpr __device__ u32 place(u32 index, int i) {
        return i / VECTOR * (SIDE * VECTOR) + index * VECTOR + i % VECTOR;
    }
};

// out[s] = a[s] * b[s] for matrices of words. Words need not be canonical. A step is DEPTH values of k. Shared memory
// holds the residues of one step, with those of `a` transposed. While a block works on a step, it reads the words of
// the next step. Words outside of the operands are read as 0. a_batch, b_batch: words from one matrix to the next, or 0
// if all products share one matrix. a_row: words from one row of `a` to the next. Product s is the sum over `length`
// values of k, beginning with k = s * length. It leaves out values k >= total. grid: (columns / EDGE) * (rows / EDGE) *
// batch, each quotient rounded up, where EDGE is 16 * TILE. Along blockIdx.x, columns change fastest, then rows, then
// the batch.
template <class T> struct IntegerParameters {
    const T *a, *b;
    T *out;
    const Modulus *moduli;
    u64 a_batch, a_row, b_batch, rows, columns, total, length;
};
template <class S, int TILE>
__global__ void __launch_bounds__(256) matmul_integer(const IntegerParameters<typename S::Storage> p) {
    auto a = p.a, b = p.b;
    auto out = p.out;
    u64 length = p.length;
    using T = typename S::Storage;
    using Tile = IntegerTile<T, TILE>;
    using Item = Neighbours<T, Tile::VECTOR>;
    __shared__ alignas(16) T shared_a[2][Tile::DEPTH][Tile::PITCH], shared_b[2][Tile::DEPTH][Tile::PITCH];
    const Modulus &m = *p.moduli;
    const u64 column_tiles = (p.columns + Tile::EDGE - 1) / Tile::EDGE,
              row_tiles = (p.rows + Tile::EDGE - 1) / Tile::EDGE;
    const u64 at = quotient(blockIdx.x, column_tiles), batch = quotient(at, row_tiles);
    const u64 row = (at - batch * row_tiles) * Tile::EDGE, column = (blockIdx.x - at * column_tiles) * Tile::EDGE;
    a += batch * p.a_batch, b += batch * p.b_batch, out += batch * p.rows * p.columns;
    length = min(length, p.total - batch * length);

    // Neighbouring threads read neighbouring words of a row.
    const u32 own_k = threadIdx.x % Tile::DEPTH, own_row = threadIdx.x / Tile::DEPTH;
    const u32 b_column = threadIdx.x % Tile::EDGE, b_k = threadIdx.x / Tile::EDGE;
    constexpr u32 A_STEP = Tile::THREADS / Tile::DEPTH, B_STEP = Tile::THREADS / Tile::EDGE;
    const u32 rows_left = (u32)min(p.rows - row, (u64)Tile::EDGE);
    const bool in_columns = column + b_column < p.columns;
    a += (row + own_row) * p.a_row + own_k, b += b_k * p.columns + column + b_column;
    T next_a[Tile::MOVED], next_b[Tile::MOVED];
    const auto fetch = [&](u64 k) {
        const u32 left = (u32)min(length - k, (u64)Tile::DEPTH);
#pragma unroll
        for (int i = 0; i < Tile::MOVED; ++i) {
            next_a[i] = own_row + i * A_STEP < rows_left && own_k < left ? a[i * A_STEP * p.a_row] : 0;
            next_b[i] = b_k + i * B_STEP < left && in_columns ? b[i * B_STEP * p.columns] : 0;
        }
        a += Tile::DEPTH, b += Tile::DEPTH * p.columns;
    };
    const auto put = [&](u32 buffer) {
#pragma unroll
        for (int i = 0; i < Tile::MOVED; ++i) {
            shared_a[buffer][own_k][own_row + i * A_STEP] = residue(m, next_a[i]);
            shared_b[buffer][b_k + i * B_STEP][b_column] = residue(m, next_b[i]);
        }
    };
    const u32 tx = threadIdx.x % Tile::SIDE, ty = threadIdx.x / Tile::SIDE;
    S sums[TILE][TILE][1];
    u32 buffer = 0;
    if (length > 0) fetch(0), put(0);
    __syncthreads();
    for (u64 k = 0; k < length; k += Tile::DEPTH, buffer ^= 1) {
        const bool more = k + Tile::DEPTH < length;
        if (more) fetch(k + Tile::DEPTH);
#pragma unroll
        for (int l = 0; l < Tile::DEPTH; ++l) {
            Neighbours<T, 1> x[TILE], y[TILE];
#pragma unroll
            for (int c = 0; c < TILE / Tile::VECTOR; ++c) {
                const u32 first = c * Tile::VECTOR;
                unpack(*(const Item *)&shared_a[buffer][l][Tile::place(ty, first)], &x[first].values[0]);
                unpack(*(const Item *)&shared_b[buffer][l][Tile::place(tx, first)], &y[first].values[0]);
            }
            add_all(sums, x, y);
            if ((l + 1) % S::STEPS == 0) settle_all(sums, m);
        }
        if (more) put(buffer ^ 1);  // all threads read that buffer before the last barrier
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const u64 r = row + Tile::place(ty, i), c = column + Tile::place(tx, j);
            if (r < p.rows && c < p.columns) out[r * p.columns + c] = sums[i][j][0].value(m);
        }
}

constexpr int NARROW_THREADS = 256;  // threads of a block

// out[s] = a[s] * b[s] for matrices of words, where s counts the matrices of a batch, or the parts of the sum of one
// product. Words need not be canonical. out has at most N columns. b is stored transposed. Rows of `a` and b have
// `pitch` words. 2^log_lanes threads share ROWS rows of the result. Each of these threads sums over its own values of
// k, WIDTH neighbours at a time. Product s is the sum over all k with s * length
// <= k < min((s + 1) * length, total). grid: (blocks of rows) * batch. Along blockIdx.x, rows change fastest.
template <class T> struct NarrowParameters {
    const T *a, *b;
    T *out;
    const Modulus *moduli;
    u64 a_batch, b_batch, pitch, rows, columns, total, length;
    u32 log_lanes;
};
template <class S, int N, int WIDTH>
__global__ void __launch_bounds__(NARROW_THREADS) matmul_narrow(const NarrowParameters<typename S::Storage> p) {
    auto a = p.a, b = p.b;
    auto out = p.out;
    u64 length = p.length;
    using T = typename S::Storage;
    using Item = Neighbours<T, WIDTH>;
    constexpr int ROWS = N > 4 ? 2 : 4, WARPS = NARROW_THREADS / 32;
    __shared__ T of_warps[WARPS][ROWS * N];
    const Modulus &m = *p.moduli;
    const u32 lanes = 1u << p.log_lanes, lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> p.log_lanes;
    const u64 rows_of_block = ROWS * (NARROW_THREADS >> p.log_lanes), row_blocks = (p.rows - 1) / rows_of_block + 1;
    const u64 batch = quotient(blockIdx.x, row_blocks), first = (blockIdx.x - batch * row_blocks) * rows_of_block;
    const u64 row = first + group * ROWS;
    length = min(length, p.total - batch * length);
    a += batch * p.a_batch, b += batch * p.b_batch, out += batch * p.rows * p.columns;
    S sums[ROWS][N][1];
    for (u64 k = lane * WIDTH; k < length; k += lanes * WIDTH) {
        Item x[ROWS], y[N];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            x[i] = residues(m, read<READ_ONLY>((const Item *)(a + min(row + i, p.rows - 1) * p.pitch + k)));
#pragma unroll
        for (int j = 0; j < N; ++j)
            y[j] = residues(m, read<READ_ONLY>((const Item *)(b + min((u64)j, p.columns - 1) * p.pitch + k)));
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < N; ++j) sums[i][j][0].add(x[i].values[w], y[j].values[w]);
            if ((w + 1) % S::STEPS == 0 || w + 1 == WIDTH) settle_all(sums, m);
        }
    }
    T values[ROWS * N];
#pragma unroll
    for (int i = 0; i < ROWS * N; ++i) {
        values[i] = sums[i / N][i % N][0].value(m);
        for (u32 d = 1; d < min(lanes, 32u); d *= 2)
            values[i] = (T)add_mod(m, values[i], __shfl_xor_sync(~0u, values[i], d));
    }
    if (lanes <= 32) {
#pragma unroll
        for (int i = 0; i < ROWS * N; ++i)
            if (lane == 0 && row + i / N < p.rows && i % N < p.columns)
                out[(row + i / N) * p.columns + i % N] = values[i];
        return;
    }
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int i = 0; i < ROWS * N; ++i) of_warps[threadIdx.x / 32][i] = values[i];
    __syncthreads();
    const u32 warps = lanes / 32, i = threadIdx.x % (ROWS * N), of_group = threadIdx.x / (ROWS * N);
    const u64 r = first + of_group * ROWS + i / N;
    if (of_group * warps >= WARPS || r >= p.rows || i % N >= p.columns) return;
    u64 value = 0;
    for (u32 w = 0; w < warps; ++w) value = add_mod(m, value, of_warps[of_group * warps + w][i]);
    out[r * p.columns + i % N] = (T)value;
}
