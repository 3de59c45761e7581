// A forward transform of n1 n2 points in four steps (docs/studies/fourstep.md): columns of n1 points, n2 apart; a
// product with w; rows of n2 points, which are too long for a block of threads and take two kernels, of 512 values a
// block. All kernels take batches of transforms, and take and give residues, except those between the halves of the
// rows. Grids: blocks in the order of memory. Twiddles of columns and of rows: by node of their trees.
#include "stages.cuh"

constexpr int LOG_PART = 9, PART = 1 << LOG_PART;  // values of a block in a kernel of rows

// Columns that lie one after the other; their transforms are stored as columns. block: 512 threads for 1024 values.
template <class W, int LOG_N1>
__global__ void __launch_bounds__(512)
    columns_in_turn(const typename W::Storage *x, typename W::Storage *y, const Modulus *moduli,
                    const typename W::Twiddle *twiddles, u32 log_n2) {
    constexpr u32 N1 = 1 << LOG_N1, HALF = N1 / 2, COLUMNS = 1024 / N1;
    // Stored are 16 neighbouring banks at a time, of so many columns.
    constexpr u32 PITCH = N1 + (COLUMNS < 16 ? 16 / COLUMNS : 1);
    __shared__ typename W::Value values[COLUMNS * PITCH];
    const W word(moduli[0]);
    const u32 thread = threadIdx.x % HALF, column = threadIdx.x / HALF;
    const u64 first = (u64)blockIdx.x * COLUMNS;  // column of the block, over the batch
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

// w to some power below 2n, of two factors: low[i] = w^i, high[i] = w^(i 2^log_low).
template <class W> struct Powers {
    const typename W::Twiddle *low, *high;
    u32 log_low;
    PG_DEVICE typename W::Value times(const W &word, typename W::Value x, u32 power) const {
        x = word.mul(x, read<READ_ONLY>(low + (power & ((1u << log_low) - 1))));
        return word.mul(x, read<READ_ONLY>(high + (power >> log_low)));
    }
};

// Threads of a multiprocessor that registers should allow.
template <int LOG_EACH> constexpr int RESIDENT = LOG_EACH > 0 ? 1024 : 1536;

// Columns where they lie, 2^LOG_COLUMNS neighbours a block; x may be y. PRODUCT: and their product with w^((2 k + 1) j)
// in column j, for point k. block: a thread for 2^LOG_EACH butterflies. dynamic shared memory: the values of the block.
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
    // The first stages of a transform of the whole tile split it as its columns are split: by its rows.
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

// The first stages of rows of 2^LOG_N2, until what is left are parts of 512 neighbours; results are lazy; x may be y.
// A block takes as many neighbours of each part as make 512. TABLE: values are multiplied by `factors`, an entry for
// each of a transform of 2^log_points. block: 256 threads.
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

// The last 9 stages: of 512 neighbours, lazy values; x may be y. block: 256 threads.
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
