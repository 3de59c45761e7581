// The second pass of transforms of two passes. A block of threads transforms neighbouring values of a row. A thread
// then holds results in chunks of 16 bytes, in the layout of coalesced accesses (Chunks in tile.cuh). The same kernel
// can go on with the results.
#pragma once
#include "tile.cuh"

// W: a word whose values and residues have the same size. R: the shape of the pass. Dynamic shared memory begins with
// R::SHARED_VALUES values.
template <class W, class R> struct RowsTile {
    using T = typename W::Storage;
    using Side = Chunks<R, T>;
    using Chunk = typename Side::Chunk;
    // The bound of the results.
    static constexpr int BOUND = forward_bound<typename W::Bounds>(W::Bounds::LIMIT, R::LOG_LENGTH);
    static_assert(R::COLUMNS == 1 && sizeof(typename W::Value) == sizeof(T), "neighbours, in the same memory");
    const Place<R> place;
    const Side side;
    typename W::Value *const shared;
    const typename W::Twiddle *const twiddles;

    // table: the twiddles of the pass. part: index of this block of threads among those of its row.
    PG_DEVICE RowsTile(void *memory, const char *table, u32 part)
        : side(memory),
          shared((typename W::Value *)memory),
          twiddles((const typename W::Twiddle *)table + ((u64)(part * R::ROWS + place.row) << R::LOG_LENGTH)) {}

    // Places among the values of the block. chunk(k): the place of this thread's chunk k. value(k): the place of value
    // k that the thread reads in its first round.
    PG_DEVICE u32 chunk(int k) const { return side.first() + k * Side::STEP; }
    PG_DEVICE u32 value(int k) const {
        return place.row * R::LENGTH + place.template group_index<0>(k) + place.template offset<0>(k);
    }
    // Transforms lazy values into the lazy values `chunks`. raw[k] belongs at the place value(k). Call this only when
    // no thread of the row still uses the shared memory.
    PG_DEVICE void transform(const W &word, const T *raw, Chunk *chunks) const {
        typename W::Value values[R::VALUES];
#pragma unroll
        for (int k = 0; k < R::VALUES; ++k) values[k] = W::load(raw[k], true);
        forward_rounds<W, R, W::Bounds::LIMIT>(word, values, shared, place, twiddles);
        T lazy[R::VALUES];
#pragma unroll
        for (int k = 0; k < R::VALUES; ++k) lazy[k] = W::store_lazy(values[k]);
        side.spread(lazy, chunks);
    }
    // Computes the first pass of the inverse transforms. chunks: lazy values up to the bound FROM. raw[k]: the result,
    // a lazy value, which belongs at the place value(k). inverse: this thread's twiddles of this pass.
    template <int FROM>
    PG_DEVICE void inverse(const W &word, const Chunk *chunks, T *raw, const typename W::Twiddle *inverse) const {
        synchronise<R::sharers(0)>();
        side.gather(chunks, raw);
        typename W::Value values[R::VALUES];
#pragma unroll
        for (int k = 0; k < R::VALUES; ++k) values[k] = W::load(raw[k], true);
        inverse_rounds<W, R, false, FROM>(word, values, shared, place, inverse);
#pragma unroll
        for (int k = 0; k < R::VALUES; ++k) raw[k] = W::store_lazy(values[k]);
    }
};
// How many blocks of threads a multiprocessor should hold.
template <class R> constexpr int ROWS_BLOCKS = R::THREADS < 512 ? 512 / R::THREADS : 1;
