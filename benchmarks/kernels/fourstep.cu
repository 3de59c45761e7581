// A forward transform of n1 n2 points in four steps (docs/studies/fourstep.md): columns of n1 points, n2 apart; a
// product with powers of w; rows of n2 points. Rows are too long for a block of threads and take two kernels, with 512
// values in a block. All kernels take batches of transforms. Values between kernels are residues, except that the two
// kernels of the rows pass lazy values. Grids: blocks in the order of memory. Twiddles of columns and of rows: by node
// of their trees.
#include "stages.cuh"

constexpr int LOG_PART = 9, PART = 1 << LOG_PART;  // values of a block in a kernel of rows

// Columns that lie one after the other in memory; their transforms are stored as columns of a matrix. block: 512
// threads for 1024 values.
template <class W, int LOG_N1>
__global__ void __launch_bounds__(512)
    columns_in_turn(const typename W::Storage *x, typename W::Storage *y, const Modulus *moduli,
                    const typename W::Twiddle *twiddles, u32 log_n2) {
    constexpr u32 N1 = 1 << LOG_N1, HALF = N1 / 2, COLUMNS = 1024 / N1;
    // For a store, a half-warp reads 16 / COLUMNS rows of each column, or one row of 16 columns. The padding puts
    // these values in 16 banks.
    constexpr u32 PITCH = N1 + (COLUMNS < 16 ? 16 / COLUMNS : 1);
    __shared__ typename W::Value values[COLUMNS * PITCH];
    const W word(moduli[0]);
    const u32 thread = threadIdx.x % HALF, column = threadIdx.x / HALF;
    const u64 first = (u64)blockIdx.x * COLUMNS;  // column of the block, counted over the batch
    typename W::Value *const own = values + column * PITCH;
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
        const u32 i = thread + k * HALF;
        own[shared_place<true>(i)] = W::load(read<DEFAULT>(x + (first + column) * N1 + i), false);
    }
    shared_stages<W, LOG_N1, 0, LOG_N1, W::Bounds::CANONICAL, true>(word, own, thread,
                                                                    Nodes<typename W::Twiddle>{twiddles, 1});
    __syncthreads();
    const u64 matrix = first >> log_n2, across = first & ((1u << log_n2) - 1);
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
        const u32 i = threadIdx.x + k * 512, row = i / COLUMNS, c = i % COLUMNS;
        write<DEFAULT>(y + (((matrix << LOG_N1) + row) << log_n2) + across + c,
                       word.canonical(values[c * PITCH + shared_place<true>(row)]));
    }
}

// Products with w^power, power < 2 n1 n2, by two factors: low[i] = w^i, high[i] = w^(i 2^log_low).
template <class W> struct Powers {
    const typename W::Twiddle *low, *high;
    u32 log_low;
    PG_DEVICE typename W::Value times(const W &word, typename W::Value x, u32 power) const {
        x = word.mul(x, read<READ_ONLY>(low + (power & ((1u << log_low) - 1))));
        return word.mul(x, read<READ_ONLY>(high + (power >> log_low)));
    }
};

// For how many threads the registers of a multiprocessor should suffice.
template <int LOG_EACH> constexpr int RESIDENT = LOG_EACH > 0 ? 1024 : 1536;

// Columns where they lie, 2^LOG_COLUMNS neighbours in a block; x may be y. PRODUCT: point k of column j is then
// multiplied by w^((2 k + 1) j). block: one thread for 2^LOG_EACH butterflies of a stage. dynamic shared memory: the
// values of the block.
template <class W, int LOG_N1, int LOG_COLUMNS, int LOG_EACH, bool PRODUCT>
__global__ void __launch_bounds__(1 << (LOG_N1 + LOG_COLUMNS - 1 - LOG_EACH),
                                  RESIDENT<LOG_EACH> >> (LOG_N1 + LOG_COLUMNS - 1 - LOG_EACH))
    columns_in_place(const typename W::Storage *x, typename W::Storage *y, const Modulus *moduli,
                     const typename W::Twiddle *twiddles, u32 log_n2, const typename W::Twiddle *low,
                     const typename W::Twiddle *high, u32 log_low) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto *const values = (typename W::Value *)memory;
    constexpr u32 COLUMNS = 1 << LOG_COLUMNS, THREADS = 1 << (LOG_N1 + LOG_COLUMNS - 1 - LOG_EACH),
                  EACH = 2 << LOG_EACH;
    const W word(moduli[0]);
    const u32 log_tiles = log_n2 - LOG_COLUMNS, column = threadIdx.x % COLUMNS;
    const u32 j = ((blockIdx.x & ((1u << log_tiles) - 1)) << LOG_COLUMNS) + column;
    const u64 first = ((u64)(blockIdx.x >> log_tiles) << (LOG_N1 + log_n2)) + j;
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        const u32 i = threadIdx.x + k * THREADS;
        values[i] = W::load(read<DEFAULT>(x + first + ((u64)(i / COLUMNS) << log_n2)), false);
    }
    // The tile is stored row after row. The first LOG_N1 stages of a transform of the whole tile pair values of the
    // same column: they are the stages of all columns.
    shared_stages<W, LOG_N1 + LOG_COLUMNS, 0, LOG_N1, W::Bounds::CANONICAL, false, LOG_EACH>(
        word, values, threadIdx.x, Nodes<typename W::Twiddle>{twiddles, 1});
    __syncthreads();
#pragma unroll 4
    for (u32 k = 0; k < EACH; ++k) {
        const u32 i = threadIdx.x + k * THREADS, row = i / COLUMNS;
        typename W::Value value = values[i];
        if constexpr (PRODUCT)
            value = Powers<W>{low, high, log_low}.times(word, value, (2 * (__brev(row) >> (32 - LOG_N1)) + 1) * j);
        write<DEFAULT>(y + first + ((u64)row << log_n2), word.canonical(value));
    }
}

// The first stages of rows of 2^LOG_N2 values. They leave transforms of parts of 512 neighbours. Results are lazy; x
// may be y. A block takes the same neighbours of every part, 512 values in all. TABLE: values are first multiplied by
// `factors`, which has an entry for each value of a transform of 2^log_points. block: 256 threads.
template <class W, int LOG_N2, bool TABLE>
__global__ void __launch_bounds__(PART / 2, 2048 / (PART / 2))
    rows_across(const typename W::Storage *x, typename W::Storage *y, const Modulus *moduli,
                const typename W::Twiddle *twiddles, const u64 *factors, u32 log_points) {
    constexpr int LOG_PARTS = LOG_N2 - LOG_PART, LOG_NEIGHBOURS = LOG_PART - LOG_PARTS;
    constexpr u32 NEIGHBOURS = 1 << LOG_NEIGHBOURS;
    __shared__ typename W::Value values[PART];
    const W word(moduli[0]);
    const u32 tile = blockIdx.x & ((1 << LOG_PARTS) - 1);
    const u64 row = (u64)(blockIdx.x >> LOG_PARTS) << LOG_N2;
    u64 at[2];
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
        const u32 i = threadIdx.x + k * PART / 2;
        at[k] = row + (i / NEIGHBOURS << LOG_PART) + (tile << LOG_NEIGHBOURS) + i % NEIGHBOURS;
        u64 value = read<DEFAULT>(x + at[k]);
        if constexpr (TABLE)
            value = barrett_product(moduli[0], value, read<READ_ONLY>(factors + (at[k] & ((1ull << log_points) - 1))));
        values[shared_place<true>(i)] = W::load(value, false);
    }
    shared_stages<W, LOG_PART, 0, LOG_PARTS, W::Bounds::CANONICAL, true>(word, values, threadIdx.x,
                                                                         Nodes<typename W::Twiddle>{twiddles, 1});
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < 2; ++k)
        write<DEFAULT>(y + at[k], W::store_lazy(values[shared_place<true>(threadIdx.x + k * PART / 2)]));
}

// The last 9 stages of rows: transforms of 512 neighbours, which are lazy on input; x may be y. block: 256 threads.
template <class W, int LOG_N2>
__global__ void __launch_bounds__(PART / 2, 2048 / (PART / 2))
    rows_within(const typename W::Storage *x, typename W::Storage *y, const Modulus *moduli,
                const typename W::Twiddle *twiddles) {
    constexpr u32 PARTS = 1 << (LOG_N2 - LOG_PART);
    __shared__ typename W::Value values[PART];
    const W word(moduli[0]);
    const u64 first = (u64)blockIdx.x << LOG_PART;
#pragma unroll
    for (u32 i = threadIdx.x; i < PART; i += PART / 2)
        values[shared_place<true>(i)] = W::load(read<DEFAULT>(x + first + i), true);
    const Nodes<typename W::Twiddle> below = {twiddles, PARTS + blockIdx.x % PARTS};
    shared_stages<W, LOG_PART, 0, LOG_PART, W::Bounds::LIMIT, true>(word, values, threadIdx.x, below);
    __syncthreads();
#pragma unroll
    for (u32 i = threadIdx.x; i < PART; i += PART / 2)
        write<DEFAULT>(y + first + i, word.canonical(values[shared_place<true>(i)]));
}
