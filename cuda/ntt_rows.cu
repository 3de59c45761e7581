// Transforms of some rows of each polynomial, in two passes. Each row belongs to one limb. The first pass leaves lazy
// values (word.cuh). The second pass may add multiples of rows of another array. places: for each r, row places[r] of
// each polynomial is transformed. tables[r]: the table of the prime of that row (tables.cu). offset: bytes in a table
// before the twiddles of the pass. block: Shape::THREADS threads. Dynamic shared memory: Shape::SHARED_VALUES values.
#include "ntt_rows.cuh"

// The first pass, in place. x: (items, x_rows, n). gridDim.x: (blocks of columns) * items. gridDim.y: the length of
// `places`.
struct StartParameters {
    void *x;
    const Modulus *moduli;  // moduli[r] belongs to row places[r]
    const u64 *places;
    const char *const *tables;
    u64 offset, n;
    u32 x_rows, starts_next;
};
template <class W, class C>
__global__ void __launch_bounds__(C::THREADS, C::THREADS < 768 ? 768 / C::THREADS : 1)
    start_rows(const __grid_constant__ StartParameters p) {
    using T = typename W::Storage;
    constexpr int HELD = C::VALUES * C::WIDTH, LAST = C::ROUNDS - 1;
    using Item = Neighbours<T, C::WIDTH>;
    extern __shared__ __align__(16) unsigned char memory[];
    const Place<C> place;
    const u32 r = blockIdx.y, stride = (u32)(p.n >> C::LOG_LENGTH), tiles = stride >> C::LOG_COLUMNS;
    const u32 item = blockIdx.x / tiles, column = (blockIdx.x - item * tiles) * C::COLUMNS + place.column;
    const auto *const twiddles = (const typename W::Twiddle *)(p.tables[r] + p.offset);
    const W word(p.moduli[r]);
    T *const x = (T *)p.x + ((u64)item * p.x_rows + p.places[r]) * p.n + column;
    await_previous();
    T raw[HELD];
#pragma unroll
    for (int k = 0; k < C::VALUES; ++k) {
        const u32 at = place.template group_index<0>(k) + place.template offset<0>(k);
        unpack(read<DEFAULT>((const Item *)(x + at * stride)), raw + k * C::WIDTH);
    }
    start_next(p.starts_next);
    typename W::Value values[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) values[k] = W::load(raw[k], false);
    forward_rounds<W, C, W::Bounds::CANONICAL>(word, values, (typename W::Value *)memory, place, twiddles);
#pragma unroll
    for (int k = 0; k < HELD; ++k) raw[k] = W::store_lazy(values[k]);
#pragma unroll
    for (int k = 0; k < C::VALUES; ++k) {
        const u32 at = place.template group_index<LAST>(k) + place.template offset<LAST>(k);
        write<DEFAULT>((Item *)(x + at * stride), pack<C::WIDTH>(raw + k * C::WIDTH));
    }
}

// The second pass, in place. x: (items, x_rows, n). own: (items, own_rows, n). If OWN is true, own_factors[r] times row
// own_places[r] of `own` is added to row places[r] of x. gridDim.x: (blocks of a row) * items. gridDim.y: entries of
// `places`.
struct FinishParameters {
    const void *own;
    void *x;
    const Modulus *moduli;  // moduli[r] belongs to row places[r], and so does entry r of all arrays below
    const u64 *places, *own_places, *own_factors;
    const char *const *tables;
    u64 offset, n;
    u32 own_rows, x_rows, starts_next;
};
template <class W, class R, bool OWN>
__global__ void __launch_bounds__(R::THREADS, ROWS_BLOCKS<R>) finish_rows(const __grid_constant__ FinishParameters p) {
    using T = typename W::Storage;
    using Tile = RowsTile<W, R>;
    using Chunk = typename Tile::Chunk;
    constexpr int COUNT = Tile::Side::COUNT, SIZE = Tile::Side::SIZE;
    extern __shared__ __align__(16) unsigned char memory[];
    const u32 parts = (u32)(p.n >> R::LOG_BLOCK_VALUES), item = blockIdx.x / parts, part = blockIdx.x - item * parts;
    const u32 r = blockIdx.y;
    const u64 first = (u64)part << R::LOG_BLOCK_VALUES;
    const Tile tile(memory, p.tables[r] + p.offset, part);
    const Modulus &m = p.moduli[r];
    const W word(m);
    T *const x = (T *)p.x + ((u64)item * p.x_rows + p.places[r]) * p.n + first;
    await_previous();
    T raw[R::VALUES];
#pragma unroll
    for (int k = 0; k < R::VALUES; ++k) raw[k] = x[tile.value(k)];
    Chunk chunks[COUNT], more[COUNT];
    if (OWN) {
        const T *const own = (const T *)p.own + ((u64)item * p.own_rows + p.own_places[r]) * p.n + first;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) more[k] = read<DEFAULT>((const Chunk *)(own + tile.chunk(k)));
    }
    tile.transform(word, raw, chunks);
    start_next(p.starts_next);
    const typename W::Twiddle factor = W::twiddle(m, OWN ? p.own_factors[r] : 0);
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i) {
            typename W::Value value = W::load(chunks[k].values[i], true);
            if constexpr (OWN) {  // value + factor * other: the sum of a butterfly
                typename W::Value other = W::load(more[k].values[i], false);
                word.forward(value, other, factor, relaxes<typename W::Bounds>(Tile::BOUND));
            }
            chunks[k].values[i] = word.canonical(value);
        }
        write<DEFAULT>((Chunk *)(x + tile.chunk(k)), chunks[k]);
    }
}
