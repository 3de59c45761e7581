// Transforms and fused products.
//
// A launch is one pass over rows of residues: stages log_blocks ... log_blocks + LOG_LENGTH - 1 of the tree of factors
// (docs/math.md); or two passes, the second of which follows the first through the L2 cache (flow.cuh). Row r is
// residues modulo limb r % limbs. Tiles: tile.cuh. Launches: polygpu/backends/cuda.py. block: Shape::THREADS. dynamic
// shared memory: Shape::SHARED_VALUES values. grid of a pass: blocks of threads in the order of memory in x; or the
// batch in x, and in y the parts of a row that a block of threads takes, by limb. Blocks that run side by side then
// read the same twiddles.
#include "flow.cuh"
#include "tile.cuh"

struct Pass {
    const Modulus *moduli;  // by limb
    const void *twiddles;   // W::Twiddle by limb, block and entry, of the forward or the inverse transform (tables.cu)
    u64 tiles;              // transforms (COLUMNS = 1) or groups of COLUMNS of them, over all rows
    u32 limbs;
    u32 log_degree;  // values of a row: the points times the base of an incomplete transform
    u32 log_blocks;
};

// Kernels take the fields one by one: what Python passes as scalars.
#define PASS_PARAMETERS \
    const Modulus *moduli, const void *twiddles, u64 tiles, u32 limbs, u32 log_degree, u32 log_blocks
#define PASS {moduli, twiddles, tiles, limbs, log_degree, log_blocks}

// Where a thread's transform lies in memory, and its twiddles.
template <class W, class S> struct Address {
    u64 first;       // its value 0
    u32 log_stride;  // from value to value
    u32 limb;
    bool inside;
    const typename W::Twiddle *twiddles;

    PG_DEVICE Address(const Pass &pass, const Place<S> &place, u64 group) {
        const u64 tile = group * S::ROWS + place.row;
        inside = tile < pass.tiles;
        const u32 log_block = pass.log_degree - pass.log_blocks;  // values of a block
        log_stride = S::COLUMNS == 1 ? 0 : log_block - S::LOG_LENGTH;
        const u32 log_tiles = log_stride - S::LOG_COLUMNS;  // tiles of a block
        // Threads beyond the end keep the barriers company.
        const u64 block = S::COLUMNS == 1 ? (inside ? tile : 0) : (inside ? tile : 0) >> log_tiles;
        const u64 column = S::COLUMNS == 1 ? 0 : ((tile & ((1ull << log_tiles) - 1)) << S::LOG_COLUMNS) + place.column;
        first = (block << log_block) + column;
        limb = pass.limbs == 1 ? 0 : (u32)(block >> pass.log_blocks) % pass.limbs;
        const u64 node = ((u64)limb << pass.log_blocks) + (block & ((1ull << pass.log_blocks) - 1));
        twiddles = (const typename W::Twiddle *)pass.twiddles + (node << S::LOG_LENGTH);
    }
    // Value `index` of the transform in an array.
    template <class T> PG_DEVICE T *in(T *x, int index) const {
        const u32 step = S::COLUMNS == 1 ? sizeof(T) : (u32)sizeof(T) << log_stride;
        return (T *)((char *)(x + first) + (u64)(u32)index * step);
    }
    template <int ROUND, class T> PG_DEVICE T *in(T *x, const Place<S> &place, int k) const {
        const u32 step = S::COLUMNS == 1 ? sizeof(T) : (u32)sizeof(T) << log_stride;
        return (T *)((char *)in(x, place.template group_index<ROUND>(k)) +
                     (u64)(u32)place.template offset<ROUND>(k) * step);
    }
};

// How a pass reads and writes: ONCE, what nobody reads again, makes room in the L2 cache.
enum Use { AGAIN, ONCE };
template <Use USE, class T> PG_DEVICE T read(const T *p) {
    if constexpr (USE == ONCE) return __ldcs(p);
    else return *p;
}
template <Use USE, class T> PG_DEVICE void write(T *p, T x) {
    if constexpr (USE == ONCE) __stcs(p, x);
    else *p = x;
}

// The tiles of block `group` of a launch. LAZY_IN: not the first pass of the transform. LAZY_OUT: not the last one.
// x may be y.
template <class W, class S, bool LAZY_IN, bool LAZY_OUT, Use IN, Use OUT>
PG_DEVICE void forward_tiles(const typename W::Storage *x, typename W::Storage *y, const Pass &pass, u64 group,
                             typename W::Value *shared) {
    const Place<S> place;
    const Address<W, S> at(pass, place, group);
    const W word(pass.moduli[at.limb]);
    typename W::Storage raw[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) raw[k] = at.inside ? read<IN>(at.template in<0>(x, place, k)) : 0;
    typename W::Value values[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = W::load(raw[k], LAZY_IN);
    forward_rounds<W, S, LAZY_IN ? W::Bounds::LAZY : W::Bounds::CANONICAL>(word, values, shared, place, at.twiddles);
    typename W::Storage result[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) result[k] = LAZY_OUT ? W::store_lazy(values[k]) : word.canonical(values[k]);
    if constexpr (S::COLUMNS == 1) {  // neighbouring threads write neighbours
        spread_neighbours<S>(result, (typename W::Storage *)shared, place);
        if (at.inside)
#pragma unroll
            for (int k = 0; k < S::VALUES; ++k) write<OUT>(at.in(y, place.lane) + k * S::LANES, result[k]);
    } else if (at.inside) {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) write<OUT>(at.template in<S::ROUNDS - 1>(y, place, k), result[k]);
    }
}

// The same backwards. LAZY_IN: not the first pass. ROOT: the last one. x may be y.
template <class W, class S, bool LAZY_IN, bool ROOT, Use IN, Use OUT>
PG_DEVICE void inverse_tiles(const typename W::Storage *x, typename W::Storage *y, const Pass &pass, u64 group,
                             typename W::Value *shared) {
    const Place<S> place;
    const Address<W, S> at(pass, place, group);
    const W word(pass.moduli[at.limb]);
    typename W::Storage raw[S::VALUES];
    if constexpr (S::COLUMNS == 1) {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) raw[k] = at.inside ? read<IN>(at.in(x, place.lane) + k * S::LANES) : 0;
        gather_neighbours<S>(raw, (typename W::Storage *)shared, place);
    } else {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k)
            raw[k] = at.inside ? read<IN>(at.template in<S::ROUNDS - 1>(x, place, k)) : 0;
    }
    typename W::Value values[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = W::load(raw[k], LAZY_IN);
    inverse_rounds<W, S, ROOT, LAZY_IN ? W::Bounds::LAZY_INVERSE : W::Bounds::CANONICAL>(word, values, shared, place,
                                                                                         at.twiddles);
    if (at.inside)
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k)
            write<OUT>(at.template in<0>(y, place, k), ROOT ? word.finish(values[k]) : W::store_lazy(values[k]));
}

#define SHARED_VALUES                                       \
    extern __shared__ __align__(16) unsigned char memory[]; \
    auto *shared = (typename W::Value *)memory

// What block x of this launch's row of blocks takes.
template <class S> PG_DEVICE u64 group_of(const Pass &pass, u32 x) {
    if (gridDim.y == 1) return x;
    const u32 log_parts = pass.log_degree - S::LOG_BLOCK_VALUES, limb = blockIdx.y >> log_parts;
    return (((u64)x * pass.limbs + limb) << log_parts) + (blockIdx.y & ((1u << log_parts) - 1));
}

// Values in memory that the block `ahead` of this one will want.
template <class W, class S> PG_DEVICE void prefetch(const typename W::Storage *x, const Pass &pass, u32 ahead) {
    if (threadIdx.x || ahead == 0 || blockIdx.x + ahead >= gridDim.x || (u64)x % 16) return;
    const u64 group = group_of<S>(pass, blockIdx.x + ahead);
    if ((group + 1) << S::LOG_ROWS <= pass.tiles)
        prefetch_l2(x + (group << S::LOG_BLOCK_VALUES), sizeof(*x) << S::LOG_BLOCK_VALUES);
}

// One pass. Threads of 32 values want room for a block less. A tile that fills a multiprocessor's memory is read and
// written past the caches.
template <class W, class S>
constexpr Use TILES = sizeof(typename W::Storage) << S::LOG_BLOCK_VALUES < 1 << 17 ? AGAIN : ONCE;
template <class W, class S, bool LAZY_IN, bool LAZY_OUT>
__global__ void __launch_bounds__(S::THREADS, (W::BLOCKS - (S::VALUES > 16)) * 256 / S::THREADS)
    ntt_forward(const typename W::Storage *x, typename W::Storage *y, PASS_PARAMETERS, u32 ahead) {
    SHARED_VALUES;
    const Pass pass = PASS;
    if (S::COLUMNS == 1) prefetch<W, S>(x, pass, ahead);
    forward_tiles<W, S, LAZY_IN, LAZY_OUT, TILES<W, S>, TILES<W, S>>(x, y, pass, group_of<S>(pass, blockIdx.x), shared);
}
template <class W, class S, bool LAZY_IN, bool ROOT>
__global__ void __launch_bounds__(S::THREADS, (W::BLOCKS - (S::VALUES > 16)) * 256 / S::THREADS)
    ntt_inverse(const typename W::Storage *x, typename W::Storage *y, PASS_PARAMETERS, u32 ahead) {
    SHARED_VALUES;
    const Pass pass = PASS;
    if (S::COLUMNS == 1) prefetch<W, S>(x, pass, ahead);
    inverse_tiles<W, S, LAZY_IN, ROOT, TILES<W, S>, TILES<W, S>>(x, y, pass, group_of<S>(pass, blockIdx.x), shared);
}

// The last two passes of a forward transform and the first two of an inverse one, as a flow; log_blocks is that of its
// units, tiles their number. COLUMNS, ROWS: the shapes of the passes, with the same number of threads. grid: flow.cuh.
#define FLOW_PARAMETERS const void *row_twiddles, u32 *progress, u32 lag
template <class COLUMNS, class ROWS> struct TwoPasses {
    static_assert(COLUMNS::THREADS == ROWS::THREADS, "one launch, one size of blocks");
    Pass columns, rows;
    u32 log_columns, log_rows;  // log2 of the tasks of a unit

    PG_DEVICE TwoPasses(const Pass &pass, const void *row_twiddles) : columns(pass), rows(pass) {
        const u32 log_unit = pass.log_degree - pass.log_blocks;
        columns.tiles = pass.tiles << (log_unit - COLUMNS::LOG_LENGTH - COLUMNS::LOG_COLUMNS);
        rows.tiles = pass.tiles << (log_unit - ROWS::LOG_LENGTH - ROWS::LOG_COLUMNS);
        rows.log_blocks = pass.log_blocks + COLUMNS::LOG_LENGTH;
        rows.twiddles = row_twiddles;
        log_columns = log_unit - COLUMNS::LOG_BLOCK_VALUES, log_rows = log_unit - ROWS::LOG_BLOCK_VALUES;
    }
    // Units follow each other over the batch, then over the blocks of a row, then over limbs, as blocks of a pass do.
    PG_DEVICE u64 group(const Task &task, u64 units, u32 log_tasks) const {
        const u64 places = (u64)columns.limbs << columns.log_blocks, batch = units / places;
        const u64 place = task.unit / batch, row = task.unit % batch * columns.limbs + (place >> columns.log_blocks);
        const u64 block = (row << columns.log_blocks) + (place & ((1ull << columns.log_blocks) - 1));
        return (block << log_tasks) + task.part;
    }
};
template <class W, class COLUMNS, class ROWS, bool LAZY_IN>
__global__ void __launch_bounds__(COLUMNS::THREADS, W::BLOCKS * 256 / COLUMNS::THREADS)
    ntt_forward_flow(const typename W::Storage *x, typename W::Storage *y, PASS_PARAMETERS, FLOW_PARAMETERS) {
    SHARED_VALUES;
    const TwoPasses<COLUMNS, ROWS> two(PASS, row_twiddles);
    const Flow flow = {progress, tiles, lag, two.log_columns, two.log_rows};
    const Task task = next_task(flow);
    if (task.none) return;
    if (!task.second) {
        const u64 group = two.group(task, tiles, two.log_columns);
        forward_tiles<W, COLUMNS, LAZY_IN, true, ONCE, AGAIN>(x, y, two.columns, group, shared);
        finish_first(flow, task);
    } else {
        const u64 group = two.group(task, tiles, two.log_rows);
        await_first(flow, task);
        forward_tiles<W, ROWS, true, false, AGAIN, ONCE>(y, y, two.rows, group, shared);
    }
}
template <class W, class COLUMNS, class ROWS, bool ROOT>
__global__ void __launch_bounds__(COLUMNS::THREADS, W::BLOCKS * 256 / COLUMNS::THREADS)
    ntt_inverse_flow(const typename W::Storage *x, typename W::Storage *y, PASS_PARAMETERS, FLOW_PARAMETERS) {
    SHARED_VALUES;
    const TwoPasses<COLUMNS, ROWS> two(PASS, row_twiddles);
    const Flow flow = {progress, tiles, lag, two.log_rows, two.log_columns};
    const Task task = next_task(flow);
    if (task.none) return;
    if (!task.second) {
        const u64 group = two.group(task, tiles, two.log_rows);
        inverse_tiles<W, ROWS, false, false, ONCE, AGAIN>(x, y, two.rows, group, shared);
        finish_first(flow, task);
    } else {
        const u64 group = two.group(task, tiles, two.log_columns);
        await_first(flow, task);
        inverse_tiles<W, COLUMNS, true, ROOT, AGAIN, ONCE>(y, y, two.columns, group, shared);
    }
}

// y = a * b in coefficients, complete transforms of one pass: forward, forward, product, inverse on values that stay
// with their threads. inverse_twiddles: as pass.twiddles, of the inverse transform. Operand row r is row
// r % rows_a of a and r % rows_b of b, which broadcasts an operand over the leading batch axis.
template <class W, class S>
__global__ void __launch_bounds__(S::THREADS, S::SMALL ? W::PRODUCT_BLOCKS : 0)
    ntt_product(const typename W::Storage *a, const typename W::Storage *b, typename W::Storage *y, PASS_PARAMETERS,
                const void *inverse_twiddles, u64 rows_a, u64 rows_b) {
    SHARED_VALUES;
    const Pass pass = PASS;
    const Place<S> place;
    const Address<W, S> at(pass, place, group_of<S>(pass, blockIdx.x));
    const W word(moduli[at.limb]);
    const u64 row = at.first / S::LENGTH;
    typename W::Value left[S::VALUES], values[S::VALUES];
#pragma unroll 1  // one copy of the code for both operands: two would not fit the instruction cache
    for (int operand = 0; operand < 2; ++operand) {
        if (operand) {
            __syncthreads();  // the last exchange of the first operand has been read
#pragma unroll
            for (int k = 0; k < S::VALUES; ++k) left[k] = values[k];
        }
        const typename W::Storage *x = operand ? b + row % rows_b * S::LENGTH : a + row % rows_a * S::LENGTH;
        // Threads without a row read what nobody writes, and drop it: row 0 may be the result's already.
        if (!at.inside) x = (const typename W::Storage *)twiddles;
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k)
            values[k] = W::load(x[place.template group_index<0>(k) + place.template offset<0>(k)], false);
        forward_rounds<W, S, W::Bounds::CANONICAL>(word, values, shared, place, at.twiddles);
    }
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) left[k] = word.multiply(left[k], values[k]);
    const u64 entries = at.twiddles - (const typename W::Twiddle *)twiddles;  // before this limb's
    inverse_rounds<W, S, true, W::Bounds::PRODUCT>(word, left, shared, place,
                                                   (const typename W::Twiddle *)inverse_twiddles + entries);
    if (at.inside)
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) *at.template in<0>(y, place, k) = word.finish(left[k]);
}
