// Transforms and fused products.
//
// A launch is one pass over rows of residues, or two passes (flow.cuh). A pass computes stages log_blocks ...
// log_blocks + LOG_LENGTH - 1 of the tree of factors (docs/math.md). Row r holds residues modulo limb r % limbs. Tiles:
// tile.cuh. Launches: polygpu/_backends/cuda/. block: Shape::THREADS. dynamic shared memory: Shape::SHARED_VALUES
// values.
//
// A block of threads computes some neighbouring rows, or one part of a row. The grid of a pass has one of two forms. In
// the first form, gridDim.x is the number of all blocks of threads, in the order of memory, and gridDim.y is 1. In the
// second form, gridDim.x is the number of polynomials, and gridDim.y is limbs * (parts of a row). Blocks with
// neighbouring blockIdx.x then read the same twiddles.
#include "complex.cuh"
#include "flow.cuh"
#include "goldilocks.cuh"
#include "tile.cuh"

constexpr int MAX_LIMBS = 64;  // limbs of a launch, at most
struct Tables {
    const char *of[MAX_LIMBS];  // indexed by limb: the table of the limb's prime (tables.cu)
    u16 rows[MAX_LIMBS];        // if GROUPED is true, rows[limb] is the limb's row in a polynomial
};

struct Pass {
    const Modulus *moduli;  // indexed by limb
    u64 offset;             // bytes in a table before this pass's twiddles (ordered by block and entry)
    u64 tiles;       // number of transforms (COLUMNS = 1), or of groups of COLUMNS transforms, in all rows together
    u32 limbs;       // number of limbs of this launch; all have the same word type (word.cuh)
    u32 total;       // if GROUPED is true, number of rows of a polynomial, including those of other limbs
    u32 log_degree;  // log2 of the number of values in a row; this number is points * (size of a leaf)
    u32 log_blocks;
    u32 starts_next;  // whether the next kernel may start while this one computes

    // Returns where value number `at` of this launch's rows lies in memory. If GROUPED is true, rows of other limbs lie
    // between these rows.
    template <bool GROUPED> PG_DEVICE u64 place(const Tables &tables, u64 at) const {
        if constexpr (!GROUPED) return at;
        const u32 row = (u32)(at >> log_degree), item = limbs == 1 ? row : row / limbs;
        return at + (((u64)item * total + tables.rows[row - item * limbs] - row) << log_degree);
    }
};

// Where a thread's transform lies in memory, and its twiddles.
template <class W, class S> struct Address {
    u64 first;       // where value 0 of the transform lies
    u32 log_stride;  // log2 of the distance from one value of the transform to the next
    u32 limb;
    bool inside;
    const typename W::Twiddle *twiddles;

    PG_DEVICE Address(const Pass &pass, const Tables &tables, const Place<S> &place, u64 group) {
        u64 tile = group * S::ROWS + place.row;
        inside = S::ROWS == 1 || tile < pass.tiles;
        if (!inside) tile = 0;  // threads without a tile take part in the barriers
        // log_block: log2 of the number of values in a block. log_tiles: log2 of the number of tiles in a block.
        const u32 log_block = S::COLUMNS == 1 ? S::LOG_LENGTH : pass.log_degree - pass.log_blocks;
        log_stride = log_block - S::LOG_LENGTH;
        const u32 log_tiles = S::COLUMNS == 1 ? 0 : log_stride - S::LOG_COLUMNS;
        const u64 block = tile >> log_tiles, across = tile & ((1ull << log_tiles) - 1);
        const u32 row = (u32)(block >> pass.log_blocks);
        limb = pass.limbs == 1 ? 0 : row % pass.limbs;
        first = pass.place<W::GROUPED>(tables, block << log_block) + (across << S::LOG_COLUMNS) + place.column;
        const u64 node = block & ((1ull << pass.log_blocks) - 1);
        twiddles = (const typename W::Twiddle *)(tables.of[limb] + pass.offset) + (node << S::LOG_LENGTH);
    }
    // Returns the index of the first value of a block of threads. The values of the block must be neighbours. If
    // ROWS = 1, the result is an index in memory. Otherwise it is an index among the values of this launch's rows, and
    // place_of turns it into an index in memory.
    PG_DEVICE u64 start(u64 group) const { return S::ROWS == 1 ? first : group << S::LOG_BLOCK_VALUES; }
    // Returns the address in the array x of value k of a round; the next WIDTH - 1 values belong to the next columns.
    template <int ROUND, class T> PG_DEVICE T *in(T *x, const Place<S> &place, int k) const {
        const u32 step = S::COLUMNS == 1 ? sizeof(T) : (u32)sizeof(T) << log_stride;
        char *const at = (char *)(x + first) + (u64)place.template group_index<ROUND>(k) * step;
        return (T *)(at + (u64)place.template offset<ROUND>(k) * step);
    }
    // Like `in`, for an array whose rows have 2^log_stride neighbouring values and lie `pitch` apart.
    template <int ROUND, class T> PG_DEVICE T *apart(T *x, u64 pitch, const Place<S> &place, int k) const {
        const u64 row = (first >> log_stride) + place.template group_index<ROUND>(k) + place.template offset<ROUND>(k);
        return x + row * pitch + (first & ((1ull << log_stride) - 1));
    }
};

// The functions below copy values between memory and threads that hold neighbouring values. `holds` tells whether value
// `first` exists: a block of several rows may reach beyond the last row.
template <class S> PG_DEVICE bool holds(const Pass &pass, u64 first) {
    return S::ROWS == 1 || first < pass.tiles << S::LOG_LENGTH;
}
// Returns where value number `at` of the rows lies in memory. If S::ROWS = 1, `at` already is a place in memory, and is
// returned unchanged (Address::start).
template <class W, class S> PG_DEVICE u64 place_of(const Pass &pass, const Tables &tables, u64 at) {
    constexpr bool BETWEEN = W::GROUPED && S::ROWS > 1;
    return pass.place<BETWEEN>(tables, at);
}

template <class W, class S, CacheHint IN>
PG_DEVICE void read_neighbours(const typename W::Storage *x, const Pass &pass, const Tables &tables, u64 start,
                               typename W::Storage *values, void *shared) {
    using Side = Chunks<S, typename W::Storage>;
    const Side side(shared);
    const u64 first = start + side.first();
    typename Side::Chunk chunks[Side::COUNT] = {};
#pragma unroll
    for (int k = 0; k < Side::COUNT; ++k)
        if (holds<S>(pass, first + k * Side::STEP))
            chunks[k] =
                read<IN>((const typename Side::Chunk *)(x + place_of<W, S>(pass, tables, first + k * Side::STEP)));
    side.gather(chunks, values);
}
template <class W, class S, CacheHint OUT>
PG_DEVICE void write_neighbours(typename W::Storage *y, const Pass &pass, const Tables &tables, u64 start,
                                const typename W::Storage *values, void *shared) {
    using Side = Chunks<S, typename W::Storage>;
    const Side side(shared);
    const u64 first = start + side.first();
    typename Side::Chunk chunks[Side::COUNT];
    side.spread(values, chunks);
#pragma unroll
    for (int k = 0; k < Side::COUNT; ++k)
        if (holds<S>(pass, first + k * Side::STEP))
            write<OUT>((typename Side::Chunk *)(y + place_of<W, S>(pass, tables, first + k * Side::STEP)), chunks[k]);
}

// Rounds and chunks use the same shared memory. If values and residues differ in size, a warp's part of the memory for
// rounds differs from its part for chunks, so warps must wait for each other.
template <class W> PG_DEVICE void await_other_warps() {
    if constexpr (sizeof(typename W::Value) != sizeof(typename W::Storage)) __syncthreads();
}

// read_round loads, and write_round stores, the values that a thread holds in round ROUND.
template <int ROUND, CacheHint IN, class S, class W, class T>
PG_DEVICE void read_round(const T *x, const Address<W, S> &at, const Place<S> &place, T *values) {
    using Item = Neighbours<T, S::WIDTH>;
    Item items[S::VALUES] = {};
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k)
        if (at.inside) items[k] = read<IN>((const Item *)at.template in<ROUND>(x, place, k));
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) unpack(items[k], values + k * S::WIDTH);
}
template <int ROUND, CacheHint OUT, bool APART = false, class S, class W, class T>
PG_DEVICE void write_round(T *y, const Address<W, S> &at, const Place<S> &place, const T *values, u64 pitch = 0) {
    if (at.inside)
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) {
            T *to;
            if constexpr (APART) to = at.template apart<ROUND>(y, pitch, place, k);
            else to = at.template in<ROUND>(y, place, k);
            write<OUT>((Neighbours<T, S::WIDTH> *)to, pack<S::WIDTH>(values + k * S::WIDTH));
        }
}

// Transforms the tiles of block `group` of a launch. LAZY_IN: whether input values are lazy, as in all passes but the
// first. LAZY_OUT: whether output values are lazy, as in all passes but the last. x and y may be the same array. If
// APART is true, a row of y gets the values that lie below one node after this pass. Rows of y lie `pitch` values
// apart.
template <class W, class S, bool LAZY_IN, bool LAZY_OUT, CacheHint IN, CacheHint OUT, bool APART = false>
PG_DEVICE void forward_tiles(const typename W::Storage *x, typename W::Storage *y, const Pass &pass,
                             const Tables &tables, u64 group, typename W::Value *shared, u64 pitch = 0) {
    constexpr int HELD = S::VALUES * S::WIDTH;
    const Place<S> place;
    const Address<W, S> at(pass, tables, place, group);
    const W word(pass.moduli[at.limb]);
    typename W::Storage raw[HELD];
    read_round<0, IN>(x, at, place, raw);
    if constexpr (HELD <= 16) start_next(pass.starts_next);  // a thread with more values has no registers to spare
    typename W::Value values[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) values[k] = W::load(raw[k], LAZY_IN);
    forward_rounds<W, S, LAZY_IN ? W::Bounds::LIMIT : W::Bounds::CANONICAL>(word, values, shared, place, at.twiddles);
#pragma unroll
    for (int k = 0; k < HELD; ++k) raw[k] = LAZY_OUT ? W::store_lazy(values[k]) : word.canonical(values[k]);
    if constexpr (S::COLUMNS == 1) {
        await_other_warps<W>();
        write_neighbours<W, S, OUT>(y, pass, tables, at.start(group), raw, shared);
    } else {
        write_round<S::ROUNDS - 1, OUT, APART>(y, at, place, raw, pitch);
    }
}

// The inverse of forward_tiles. LAZY_IN: whether this is not the first pass. ROOT: whether this is the last pass. x and
// y may be the same array.
template <class W, class S, bool LAZY_IN, bool ROOT, CacheHint IN, CacheHint OUT>
PG_DEVICE void inverse_tiles(const typename W::Storage *x, typename W::Storage *y, const Pass &pass,
                             const Tables &tables, u64 group, typename W::Value *shared) {
    constexpr int HELD = S::VALUES * S::WIDTH;
    const Place<S> place;
    const Address<W, S> at(pass, tables, place, group);
    const W word(pass.moduli[at.limb]);
    typename W::Storage raw[HELD];
    if constexpr (S::COLUMNS == 1) {
        read_neighbours<W, S, IN>(x, pass, tables, at.start(group), raw, shared);
        await_other_warps<W>();
    } else {
        read_round<S::ROUNDS - 1, IN>(x, at, place, raw);
    }
    if constexpr (HELD <= 16) start_next(pass.starts_next);  // a thread with more values has no registers to spare
    typename W::Value values[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) values[k] = W::load(raw[k], LAZY_IN);
    inverse_rounds<W, S, ROOT, LAZY_IN ? W::Bounds::LAZY_INVERSE : W::Bounds::CANONICAL>(word, values, shared, place,
                                                                                         at.twiddles);
#pragma unroll
    for (int k = 0; k < HELD; ++k) raw[k] = ROOT ? word.finish(values[k]) : W::store_lazy(values[k]);
    write_round<0, OUT>(y, at, place, raw);
}

#define SHARED_VALUES                                       \
    extern __shared__ __align__(16) unsigned char memory[]; \
    auto *shared = (typename W::Value *)memory

// Returns the index of the group of tiles that block x of this row of the grid computes.
template <class S> PG_DEVICE u64 group_of(const Pass &pass, u32 x) {
    if (gridDim.y == 1) return x;
    const u32 log_parts = pass.log_degree - S::LOG_BLOCK_VALUES, limb = blockIdx.y >> log_parts;
    return (((u64)x * pass.limbs + limb) << log_parts) + (blockIdx.y & ((1u << log_parts) - 1));
}

// Prefetches into the L2 cache the values that block blockIdx.x + ahead will read, if they lie within the first `rows`
// rows. These values must lie side by side in memory: `ahead` must be 0 if rows of other limbs lie between the rows of
// a block.
template <class W, class S>
PG_DEVICE void prefetch(const typename W::Storage *x, const Pass &pass, const Tables &tables, u64 rows, u32 ahead) {
    if (S::COLUMNS > 1 || threadIdx.x || ahead == 0 || blockIdx.x + ahead >= gridDim.x || (u64)x % 16) return;
    const u64 first = pass.place<W::GROUPED>(tables, group_of<S>(pass, blockIdx.x + ahead) << S::LOG_BLOCK_VALUES);
    if (first + (1ull << S::LOG_BLOCK_VALUES) <= rows << pass.log_degree)
        prefetch_l2(x + first, sizeof(*x) << S::LOG_BLOCK_VALUES);
}

// The cache hint of kernels of one pass: STREAM for tiles of 128 KB or more, which fill a multiprocessor's shared
// memory.
template <class W, class S>
constexpr CacheHint TILES = sizeof(typename W::Storage) << S::LOG_BLOCK_VALUES < 1 << 17 ? DEFAULT : STREAM;
// How many blocks of threads a multiprocessor should hold. W::BLOCKS is for blocks of 256 threads, with up to 16 values
// per thread.
template <class W, class S>
constexpr int BLOCKS =
    (sizeof(typename W::Storage) == 8 && S::VALUES > 16 ? (W::BLOCKS + 1) / 2 : W::BLOCKS) * 256 / S::THREADS;
template <class T> struct PassParameters {
    const T *x;
    T *y;
    Pass pass;
    u64 rows;   // rows of x, including those of other limbs
    u32 ahead;  // a block prefetches the values that the block `ahead` blocks later will read; 0: no prefetch
    Tables tables;
    u64 pitch;  // if APART: distance between rows of y, in values
};
template <class W, class S, bool LAZY_IN, bool LAZY_OUT, bool APART = false>
__global__ void __launch_bounds__(S::THREADS, (BLOCKS<W, S>))
    ntt_forward(const __grid_constant__ PassParameters<typename W::Storage> p) {
    SHARED_VALUES;
    await_previous();
    prefetch<W, S>(p.x, p.pass, p.tables, p.rows, p.ahead);
    forward_tiles<W, S, LAZY_IN, LAZY_OUT, TILES<W, S>, TILES<W, S>, APART>(
        p.x, p.y, p.pass, p.tables, group_of<S>(p.pass, blockIdx.x), shared, p.pitch);
}
template <class W, class S, bool LAZY_IN, bool ROOT>
__global__ void __launch_bounds__(S::THREADS, (BLOCKS<W, S>))
    ntt_inverse(const __grid_constant__ PassParameters<typename W::Storage> p) {
    SHARED_VALUES;
    await_previous();
    prefetch<W, S>(p.x, p.pass, p.tables, p.rows, p.ahead);
    inverse_tiles<W, S, LAZY_IN, ROOT, TILES<W, S>, TILES<W, S>>(p.x, p.y, p.pass, p.tables,
                                                                 group_of<S>(p.pass, blockIdx.x), shared);
}

// Two passes in one launch (a flow, see flow.cuh): the last two of a forward transform, or the first two of an inverse
// transform. A unit is the values below one node of the tree of factors. pass.log_blocks: log2 of the number of units
// in a row. pass.tiles: the number of units in all rows. COLUMNS, ROWS: the shapes of the passes. grid: see next_task
// in flow.cuh.
template <class T> struct FlowParameters {
    const T *x;
    T *y;
    u32 *progress;    // see Flow (flow.cuh)
    Pass pass;        // pass.offset: bytes before the twiddles of the columns in a table
    u64 rows_offset;  // bytes before the twiddles of the rows in a table
    u32 lag;
    Tables tables;
};
template <class COLUMNS, class ROWS> struct TwoPasses {
    static_assert(COLUMNS::THREADS == ROWS::THREADS, "one launch, one size of blocks");
    Pass columns, rows;
    u32 log_columns, log_rows;  // log2 of the number of tasks that each pass has on a unit

    PG_DEVICE TwoPasses(const Pass &pass, u64 rows_offset) : columns(pass), rows(pass) {
        const u32 log_unit = pass.log_degree - pass.log_blocks;
        columns.tiles = pass.tiles << (log_unit - COLUMNS::LOG_LENGTH - COLUMNS::LOG_COLUMNS);
        rows.tiles = pass.tiles << (log_unit - ROWS::LOG_LENGTH - ROWS::LOG_COLUMNS);
        rows.log_blocks = pass.log_blocks + COLUMNS::LOG_LENGTH;
        rows.offset = rows_offset;
        columns.starts_next = rows.starts_next = 0;
        log_columns = log_unit - COLUMNS::LOG_BLOCK_VALUES, log_rows = log_unit - ROWS::LOG_BLOCK_VALUES;
    }
    // Units are ordered as the blocks of a pass are: the batch index changes fastest, then the block of a row, then the
    // limb.
    PG_DEVICE u64 group(const Task &task, u32 units, u32 log_tasks) const {
        u64 block = task.unit;
        if (const u32 places = columns.limbs << columns.log_blocks; places > 1) {
            const u32 batch = units / places, place = task.unit / batch, log_blocks = columns.log_blocks;
            const u64 row = (u64)(task.unit % batch) * columns.limbs + (place >> log_blocks);
            block = (row << log_blocks) + (place & ((1u << log_blocks) - 1));
        }
        return (block << log_tasks) + task.part;
    }
};
template <class W, class COLUMNS, class ROWS, bool LAZY_IN>
__global__ void __launch_bounds__(COLUMNS::THREADS, (BLOCKS<W, COLUMNS>))
    ntt_forward_flow(const __grid_constant__ FlowParameters<typename W::Storage> p) {
    SHARED_VALUES;
    await_previous();
    const TwoPasses<COLUMNS, ROWS> two(p.pass, p.rows_offset);
    const Flow flow = {p.progress, (u32)p.pass.tiles, p.lag, two.log_columns, two.log_rows};
    const Task task = next_task(flow);
    if (task.none) return;
    if (!task.second) {
        const u64 group = two.group(task, flow.units, two.log_columns);
        forward_tiles<W, COLUMNS, LAZY_IN, true, STREAM, DEFAULT>(p.x, p.y, two.columns, p.tables, group, shared);
        finish_first(flow, task);
    } else {
        const u64 group = two.group(task, flow.units, two.log_rows);
        await_first(flow, task);
        forward_tiles<W, ROWS, true, false, DEFAULT, STREAM>(p.y, p.y, two.rows, p.tables, group, shared);
    }
}
template <class W, class COLUMNS, class ROWS, bool ROOT>
__global__ void __launch_bounds__(COLUMNS::THREADS, (BLOCKS<W, COLUMNS>))
    ntt_inverse_flow(const __grid_constant__ FlowParameters<typename W::Storage> p) {
    SHARED_VALUES;
    await_previous();
    const TwoPasses<COLUMNS, ROWS> two(p.pass, p.rows_offset);
    const Flow flow = {p.progress, (u32)p.pass.tiles, p.lag, two.log_rows, two.log_columns};
    const Task task = next_task(flow);
    if (task.none) return;
    if (!task.second) {
        const u64 group = two.group(task, flow.units, two.log_rows);
        inverse_tiles<W, ROWS, false, false, STREAM, DEFAULT>(p.x, p.y, two.rows, p.tables, group, shared);
        finish_first(flow, task);
    } else {
        const u64 group = two.group(task, flow.units, two.log_columns);
        await_first(flow, task);
        inverse_tiles<W, COLUMNS, true, ROOT, DEFAULT, STREAM>(p.y, p.y, two.columns, p.tables, group, shared);
    }
}

// y = a * b in coefficients, by complete transforms of one pass. Both operands are transformed together, as two columns
// with the same twiddles. Then each thread multiplies the values that it holds, and the inverse transform begins.
// Dynamic shared memory: 2 * Shape::SHARED_VALUES values. Grid: as for one pass (group_of).
template <class T> struct ProductParameters {
    const T *a, *b;
    T *y;
    Pass pass;           // pass.offset: that of the forward transform
    u64 inverse_offset;  // bytes before the twiddles of the inverse in a table
    u32 rows_a, rows_b;  // row r of y uses row r % rows_a of a and row r % rows_b of b: both can be broadcast
    u32 ahead;           // see PassParameters
    Tables tables;
};
template <class W, class S>
__global__ void __launch_bounds__(S::THREADS, S::SMALL ? W::PRODUCT_BLOCKS : 0)
    ntt_product(const __grid_constant__ ProductParameters<typename W::Storage> p) {
    using Both = Shape<S::LOG_LENGTH, 1, S::LOG_ROWS, S::LOG_VALUES, 1>;
    SHARED_VALUES;
    await_previous();
    prefetch<W, S>(p.a, p.pass, p.tables, p.rows_a, p.ahead);
    prefetch<W, S>(p.b, p.pass, p.tables, p.rows_b, p.ahead);
    const Place<S> place;
    const Address<W, S> at(p.pass, p.tables, place, group_of<S>(p.pass, blockIdx.x));
    const W word(p.pass.moduli[at.limb]);
    const u32 row = (u32)(at.first / S::LENGTH);
    Address<W, S> from = at;
    typename W::Storage left[S::VALUES], right[S::VALUES];
    from.first = (u64)(row < p.rows_a ? row : row % p.rows_a) * S::LENGTH;
    read_round<0, DEFAULT>(p.a, from, place, left);
    from.first = (u64)(row < p.rows_b ? row : row % p.rows_b) * S::LENGTH;
    read_round<0, DEFAULT>(p.b, from, place, right);
    typename W::Value both[2 * S::VALUES], values[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k)
        both[2 * k] = W::load(left[k], false), both[2 * k + 1] = W::load(right[k], false);
    forward_rounds<W, Both, W::Bounds::CANONICAL>(word, both, shared, Place<Both>(), at.twiddles);
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = word.multiply(both[2 * k], both[2 * k + 1]);
    __syncthreads();  // the inverse lays out shared memory differently: all threads must have read the forward layout
    start_next(p.pass.starts_next);
    const char *const inverse = (const char *)at.twiddles + (p.inverse_offset - p.pass.offset);
    inverse_rounds<W, S, true, W::Bounds::PRODUCT>(word, values, shared, place, (const typename W::Twiddle *)inverse);
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) left[k] = word.finish(values[k]);
    write_round<0, DEFAULT>(p.y, at, place, left);
}
