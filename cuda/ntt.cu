// Transforms and fused products.
//
// A launch is one pass over rows of residues: stages log_blocks ... log_blocks + LOG_LENGTH - 1 of the tree of factors
// (docs/math.md). Row r is residues modulo limb r % limbs. Tiles: tile.cuh. Launches: polygpu/backends/cuda.py.
// grid: tiles in x. block: Shape::THREADS. dynamic shared memory: Shape::SHARED_VALUES values.
#include "tile.cuh"

struct Pass {
    const Modulus *moduli;  // by limb
    const void *twiddles;   // W::Twiddle by limb and entry, of the forward or the inverse transform (tables.cu)
    u64 tiles;              // transforms (COLUMNS = 1) or groups of COLUMNS of them, over all rows
    u32 limbs, log_points;  // leaves of the tree: entries of one limb's table
    u32 log_degree;         // values of a row: the points times the base of an incomplete transform
    u32 log_blocks;
};

// Kernels take the fields one by one: what Python passes as scalars.
#define PASS_PARAMETERS \
    const Modulus *moduli, const void *twiddles, u64 tiles, u32 limbs, u32 log_points, u32 log_degree, u32 log_blocks
#define PASS {moduli, twiddles, tiles, limbs, log_points, log_degree, log_blocks}

// Where a thread's transform lies in memory and in the tree.
template <class W, class S, bool WHOLE> struct Address {
    u64 first;       // its value 0
    u32 log_stride;  // from value to value
    u32 limb;
    bool inside;
    Subtree<typename W::Twiddle, WHOLE> tree;

    PG_DEVICE Address(const Pass &pass, const Place<S> &place) {
        const u64 tile = (u64)blockIdx.x * S::ROWS + place.row;
        inside = tile < pass.tiles;
        const u32 log_block = pass.log_degree - pass.log_blocks;  // values of a block
        log_stride = S::COLUMNS == 1 ? 0 : log_block - S::LOG_LENGTH;
        const u32 log_tiles = log_stride - S::LOG_COLUMNS;  // tiles of a block
        // Threads beyond the end keep the barriers company.
        const u64 block = S::COLUMNS == 1 ? (inside ? tile : 0) : (inside ? tile : 0) >> log_tiles;
        const u64 column = S::COLUMNS == 1 ? 0 : ((tile & ((1ull << log_tiles) - 1)) << S::LOG_COLUMNS) + place.column;
        first = (block << log_block) + column;
        limb = pass.limbs == 1 ? 0 : (u32)(block >> pass.log_blocks) % pass.limbs;
        tree.table = (const typename W::Twiddle *)pass.twiddles + ((u64)limb << pass.log_points);
        tree.block = block & ((1ull << pass.log_blocks) - 1);
        tree.log_blocks = pass.log_blocks;
    }
    template <int ROUND> PG_DEVICE u64 of(const Place<S> &place, int k) const {
        return first + ((u64)place.template group_index<ROUND>(k) << log_stride) +
               ((u64)place.template offset<ROUND>(k) << log_stride);
    }
};

// LAZY_IN: not the first pass of the transform. LAZY_OUT: not the last one. x may be y.
template <class W, class S, bool LAZY_IN, bool LAZY_OUT>
__global__ void __launch_bounds__(S::THREADS)
    ntt_forward(const typename W::Storage *x, typename W::Storage *y, PASS_PARAMETERS) {
    const Pass pass = PASS;
    extern __shared__ __align__(16) unsigned char memory[];
    auto *shared = (typename W::Value *)memory;
    const Place<S> place;
    const Address<W, S, !LAZY_IN> at(pass, place);
    const W word(moduli[at.limb]);
    typename W::Storage raw[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) raw[k] = at.inside ? x[at.template of<0>(place, k)] : 0;
    typename W::Value values[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = W::load(raw[k], LAZY_IN);
    forward_rounds<W, S, !LAZY_IN>(word, values, shared, place, at.tree);
    typename W::Storage result[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) result[k] = LAZY_OUT ? W::store_lazy(values[k]) : word.canonical(values[k]);
    if constexpr (S::COLUMNS == 1) {  // neighbouring threads write neighbours
        spread_neighbours<S>(result, (typename W::Storage *)shared, place);
        if (at.inside)
#pragma unroll
            for (int k = 0; k < S::VALUES; ++k) y[at.first + k * S::LANES + place.lane] = result[k];
    } else if (at.inside) {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) y[at.template of<S::ROUNDS - 1>(place, k)] = result[k];
    }
}

// LAZY_IN: not the first pass. ROOT: the last one. x may be y.
template <class W, class S, bool LAZY_IN, bool ROOT>
__global__ void __launch_bounds__(S::THREADS)
    ntt_inverse(const typename W::Storage *x, typename W::Storage *y, PASS_PARAMETERS) {
    const Pass pass = PASS;
    extern __shared__ __align__(16) unsigned char memory[];
    auto *shared = (typename W::Value *)memory;
    const Place<S> place;
    const Address<W, S, ROOT> at(pass, place);
    const W word(moduli[at.limb]);
    typename W::Storage raw[S::VALUES];
    if constexpr (S::COLUMNS == 1) {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) raw[k] = at.inside ? x[at.first + k * S::LANES + place.lane] : 0;
        gather_neighbours<S>(raw, (typename W::Storage *)shared, place);
    } else {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) raw[k] = at.inside ? x[at.template of<S::ROUNDS - 1>(place, k)] : 0;
    }
    typename W::Value values[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = W::load(raw[k], LAZY_IN);
    inverse_rounds<W, S, ROOT>(word, values, shared, place, at.tree);
    if (at.inside)
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k)
            y[at.template of<0>(place, k)] = ROOT ? word.finish(values[k]) : W::store_lazy(values[k]);
}

// y = a * b in coefficients, complete transforms of one pass: forward, forward, product, inverse on values that stay
// with their threads. inverse_twiddles: as pass.twiddles, of the inverse transform. Operand row r is row
// r % rows_a of a and r % rows_b of b, which broadcasts an operand over the leading batch axis.
template <class W, class S>
__global__ void __launch_bounds__(S::THREADS)
    ntt_product(const typename W::Storage *a, const typename W::Storage *b, typename W::Storage *y, PASS_PARAMETERS,
                const void *inverse_twiddles, u64 rows_a, u64 rows_b) {
    const Pass pass = PASS;
    extern __shared__ __align__(16) unsigned char memory[];
    auto *shared = (typename W::Value *)memory;
    const Place<S> place;
    const Address<W, S, true> at(pass, place);
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
        forward_rounds<W, S, true>(word, values, shared, place, at.tree);
    }
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) left[k] = word.multiply(left[k], values[k]);
    auto inverse = at.tree;
    inverse.table += (const typename W::Twiddle *)inverse_twiddles - (const typename W::Twiddle *)twiddles;
    inverse_rounds<W, S, true>(word, left, shared, place, inverse);
    if (at.inside)
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) y[at.template of<0>(place, k)] = word.finish(left[k]);
}
