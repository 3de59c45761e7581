// A tile: transforms of LENGTH values that one block of threads holds. The block computes them in rounds of up to
// LOG_VALUES stages in registers, with one exchange through shared memory between two rounds.
//
// LOG_LENGTH    stages of the pass; the transforms of a tile have 2^LOG_LENGTH values
// LOG_VALUES    stages of a round, at most; a thread holds 2^LOG_VALUES values of one transform; this
//               number is larger in long tiles than in short ones
// LOG_COLUMNS   0: the values of a transform are neighbours in memory, and a tile holds 2^LOG_ROWS transforms
//               else: the values are `stride` apart, and a tile holds 2^LOG_COLUMNS neighbouring transforms
// LOG_WIDTH     a thread works on 2^LOG_WIDTH neighbouring columns, whose values one instruction moves
#pragma once
#include "memory.cuh"
#include "word.cuh"

template <int LOG_LENGTH_, int LOG_COLUMNS_, int LOG_ROWS_, int LOG_VALUES_, int LOG_WIDTH_> struct Shape {
    static constexpr int LOG_LENGTH = LOG_LENGTH_, LOG_COLUMNS = LOG_COLUMNS_, LOG_ROWS = LOG_ROWS_;
    static constexpr int LOG_VALUES = LOG_VALUES_, LOG_WIDTH = LOG_WIDTH_;
    static constexpr int LENGTH = 1 << LOG_LENGTH, COLUMNS = 1 << LOG_COLUMNS, ROWS = 1 << LOG_ROWS;
    static constexpr int VALUES = 1 << LOG_VALUES, WIDTH = 1 << LOG_WIDTH;  // a thread holds VALUES * WIDTH values
    static constexpr int LANES = LENGTH / VALUES;                           // threads that share a transform
    static constexpr int THREADS = LANES * (COLUMNS / WIDTH) * ROWS;
    static constexpr bool SMALL = THREADS <= 256 && VALUES <= 16;
    static constexpr int LOG_BLOCK_VALUES = LOG_LENGTH + LOG_COLUMNS + LOG_ROWS;
    static constexpr int ROUNDS = (LOG_LENGTH + LOG_VALUES - 1) / LOG_VALUES;
    // The first round has the stages that remain when every other round has LOG_VALUES stages.
    static constexpr int FIRST_RADIX = LOG_LENGTH - (ROUNDS - 1) * LOG_VALUES;
    static constexpr __device__ int start(int round) { return round == 0 ? 0 : FIRST_RADIX + (round - 1) * LOG_VALUES; }
    static constexpr __device__ int radix(int round) { return round == 0 ? FIRST_RADIX : LOG_VALUES; }
    static constexpr int SHARED_VALUES = THREADS * WIDTH * (VALUES + 1);  // includes room for gaps (log_gap)
    // log2 of the stride of a round's values
    static constexpr __device__ int log_stride(int round) { return LOG_LENGTH - start(round) - radix(round); }
    // A round starts at nodes of the tree. Returns how many threads share the values below one of these nodes. The
    // indices of these threads are consecutive.
    static constexpr __device__ int sharers(int round) { return (LENGTH >> start(round)) / VALUES * (COLUMNS / WIDTH); }
    // log2 of the gap in the exchange before a round. Let run = log_stride + LOG_COLUMNS. In this round, a thread's
    // values lie 2^run words apart; in the round before, 2^(run + LOG_VALUES) words. A gap of 2^run words after every
    // 2^(run + LOG_VALUES) words keeps the threads of a warp in different banks, in both rounds. No exchange
    // precedes round 0, so log_gap(0) is log_gap(1) if ROUNDS > 1. The number ROUNDS stands for the exchange of Chunks:
    // log_gap(ROUNDS) is -1, which differs from all other results.
    static constexpr __device__ int log_gap(int round) {
        const int run = round == ROUNDS ? -1 : log_stride(round == 0 && ROUNDS > 1 ? 1 : round) + LOG_COLUMNS;
        return run < LOG_VALUES ? run : LOG_VALUES;
    }
};

template <class S> struct Place {  // where the first of a thread's WIDTH transforms lies in the tile
    u32 lane, column, row;
    PG_DEVICE Place() {  // if ROWS = 1, all threads belong to one row, and no remainder is needed
        const u32 t = threadIdx.x;
        constexpr u32 ACROSS = S::COLUMNS / S::WIDTH;
        column = t % ACROSS * S::WIDTH;
        lane = S::ROWS == 1 ? t / ACROSS : t / ACROSS % S::LANES;
        row = S::ROWS == 1 ? 0 : t / (ACROSS * S::LANES);
    }
    // In a round, value k of a thread has the index group_index(k) + offset(k) in its transform. A group is 2^RADIX
    // values that are transformed together. group_index(k) is the index of the first value of the group of value k.
    template <int ROUND> PG_DEVICE u32 group_index(int k) const {
        constexpr int RADIX = S::radix(ROUND), LOG_H = S::log_stride(ROUND);
        const u32 group = lane + S::LANES * (k >> RADIX);
        return (group >> LOG_H << (LOG_H + RADIX)) + (group & ((1 << LOG_H) - 1));
    }
    template <int ROUND> static constexpr __device__ u32 offset(int k) {
        return (k & ((1 << S::radix(ROUND)) - 1)) << S::log_stride(ROUND);
    }
    // The index of the block to which value k belongs, among the 2^start(ROUND) blocks at the start of a round.
    template <int ROUND> PG_DEVICE u32 block(int k) const {
        return ROUND == 0 ? 0 : (lane + S::LANES * (k >> S::radix(ROUND))) >> S::log_stride(ROUND);
    }
    // Returns the place in shared memory of value k of a round, for an exchange that leaves a gap of 2^LOG_GAP words
    // after every 2^LOG_BLOCK values. group_index and offset have no bit in common, so their gaps are computed apart.
    // The compiler can then fold the offset into the address.
    template <int ROUND, int LOG_GAP> PG_DEVICE u32 shared(int k) const {
        const u32 at = (row * S::LENGTH + group_index<ROUND>(k)) * S::COLUMNS + column;
        const u32 more = offset<ROUND>(k) * S::COLUMNS;
        constexpr int LOG_BLOCK = LOG_GAP + S::LOG_VALUES;
        return at + (at >> LOG_BLOCK << LOG_GAP) + (more + (more >> LOG_BLOCK << LOG_GAP));
    }
};

// The twiddles that a pass needs below one node of the tree: 2^LOG_LENGTH entries. Entry 1 belongs to the node itself.
// A round starts at the 2^START nodes of stage START. `b` is the index of one of these nodes, and this struct reads the
// twiddles that the round needs below node b. Twiddle 1 is that of node b itself; it is entry 2^START + b. Stage s of
// the round has 2^s nodes below node b, and twiddle 2^s + i is that of node i of them. The other twiddles lie in units
// of 16 bytes: a unit holds twiddles E and E + 1, E even, or one twiddle if a twiddle has 16 bytes. The units with the
// same index lie side by side, in the order of their nodes b, so threads at neighbouring nodes read neighbouring units
// (tables.cu).
template <class Twiddle, int START> struct Twiddles {
    static constexpr int SIZE = 16 / sizeof(Twiddle);
    using Unit = Neighbours<Twiddle, SIZE>;
    const Twiddle *table;
    u32 b;
    PG_DEVICE Twiddle operator[](u32 entry) const {
        if (entry == 1) return table[(1 << START) + b];
        return read<READ_ONLY>((const Unit *)table + (entry / SIZE << START) + b).values[entry % SIZE];
    }
};

// relaxes: whether a forward stage must relax the values that it does not multiply by a twiddle. forward_bound: the
// bound of values after `stages` stages. bound: the bound of the values that enter.
template <class Bounds> constexpr __device__ bool relaxes(int bound) {
    return bound + Bounds::multiplied(bound) > Bounds::LIMIT;
}
template <class Bounds> constexpr __device__ int forward_bound(int bound, int stages) {
    for (; stages > 0; --stages) bound = (relaxes<Bounds>(bound) ? Bounds::RELAXED : bound) + Bounds::multiplied(bound);
    return bound;
}
// Returns the bound of one value after `stages` inverse stages of a round. value: index of the value in its group. If
// bit i of the index is 1, stage i left a product; else a sum. A sum is relaxed if it could exceed LAZY_INVERSE.
template <class Bounds> constexpr __device__ int inverse_bound(int bound, int stages, int value) {
    for (; stages > 0; --stages, value >>= 1) {
        const int sum = 2 * bound > Bounds::LAZY_INVERSE ? Bounds::RELAXED : 2 * bound;
        bound = value & 1 ? Bounds::multiplied(2 * bound) : sum;
    }
    return bound;
}
// Returns which sums must be relaxed (reduced to at most Bounds::RELAXED) in the inverse stage that follows the first
// `stages` stages of a round. The result is a mask: bit k stands for value k.
template <class Bounds> constexpr __device__ u32 relaxed_sums(int bound, int stages) {
    u32 mask = 0;
    for (int value = 0; value < 1 << stages; ++value)
        mask |= (u32)(2 * inverse_bound<Bounds>(bound, stages, value) > Bounds::LAZY_INVERSE) << value;
    return mask;
}
// The largest bound of all values of a group after `stages` inverse stages.
template <class Bounds> constexpr __device__ int inverse_bound(int bound, int stages) {
    int largest = 0;
    for (int value = 0; value < 1 << stages; ++value) {
        const int one = inverse_bound<Bounds>(bound, stages, value);
        largest = one > largest ? one : largest;
    }
    return largest;
}

// Computes stage STAGE of a round and the stages after it, on one group of 2^RADIX values in each of WIDTH neighbouring
// transforms. The round has RADIX stages. The recursion is over compile-time stages, so that every value stays in a
// register. BOUND: the bound, in the unit of W::Bounds, of the values that enter this stage. In inverse_stages, BOUND
// is the bound of the values that enter the round.
template <class W, int RADIX, int WIDTH, int BOUND, int STAGE = 0, class Round>
PG_DEVICE void forward_stages(const W &word, typename W::Value *values, const Round &twiddles) {
    static_assert(BOUND <= W::Bounds::LIMIT, "values have outgrown their word");
    constexpr bool REDUCE = relaxes<typename W::Bounds>(BOUND);
    constexpr int HALF = WIDTH << (RADIX - 1 - STAGE);
#pragma unroll
    for (int i = 0; i < 1 << STAGE; ++i) {
        const typename W::Twiddle t = twiddles[(1 << STAGE) + i];
#pragma unroll
        for (int k = 0; k < HALF; ++k) {
            auto &x = values[2 * HALF * i + k], &y = values[2 * HALF * i + k + HALF];
            if constexpr (HAS_ROOT<W> && STAGE == 0 && BOUND == W::Bounds::CANONICAL) word.forward_root(x, y, t);
            else word.forward(x, y, t, REDUCE);
        }
    }
    if constexpr (STAGE + 1 < RADIX)
        forward_stages<W, RADIX, WIDTH, forward_bound<typename W::Bounds>(BOUND, 1), STAGE + 1>(word, values, twiddles);
}
// The inverse of forward_stages. ROOT: whether stage 0 is the root of the whole tree. scale: entry 0 of the root's
// table.
template <class W, int RADIX, int WIDTH, bool ROOT, int BOUND, int STAGE = RADIX - 1, class Round>
PG_DEVICE void inverse_stages(const W &word, typename W::Value *values, const Round &twiddles,
                              const typename W::Twiddle &scale) {
    constexpr int DONE = RADIX - 1 - STAGE, HALF = WIDTH << DONE;
    static_assert(inverse_bound<typename W::Bounds>(BOUND, DONE) <= W::Bounds::LAZY_INVERSE,
                  "values have outgrown their word");
    constexpr u32 RELAXED = relaxed_sums<typename W::Bounds>(BOUND, DONE);
#pragma unroll
    for (int i = 0; i < 1 << STAGE; ++i) {
        const typename W::Twiddle t = twiddles[(1 << STAGE) + i];
#pragma unroll
        for (int k = 0; k < HALF; ++k) {
            auto &x = values[2 * HALF * i + k], &y = values[2 * HALF * i + k + HALF];
            if constexpr (ROOT && STAGE == 0) word.inverse_root(x, y, scale, t);
            else word.inverse(x, y, t, RELAXED >> k / WIDTH & 1);
        }
    }
    if constexpr (STAGE > 0) inverse_stages<W, RADIX, WIDTH, ROOT, BOUND, STAGE - 1>(word, values, twiddles, scale);
}

// The stages of a round on all values of a thread. Goldilocks has rounds of its own (goldilocks.cuh).
template <class W> struct Rounds {
    template <class S, int ROUND, int BOUND>
    static PG_DEVICE void forward(const W &word, typename W::Value *values, const Place<S> &place,
                                  const typename W::Twiddle *twiddles) {
        constexpr int RADIX = S::radix(ROUND);
#pragma unroll
        for (int group = 0; group < S::VALUES; group += 1 << RADIX)
            forward_stages<W, RADIX, S::WIDTH, BOUND>(
                word, values + group * S::WIDTH,
                Twiddles<typename W::Twiddle, S::start(ROUND)>{twiddles, place.template block<ROUND>(group)});
    }
    template <class S, int ROUND, bool ROOT, int BOUND>
    static PG_DEVICE void inverse(const W &word, typename W::Value *values, const Place<S> &place,
                                  const typename W::Twiddle *twiddles) {
        constexpr int RADIX = S::radix(ROUND);
        constexpr bool LAST = ROOT && ROUND == 0;
        const typename W::Twiddle scale = LAST ? twiddles[0] : typename W::Twiddle();
#pragma unroll
        for (int group = 0; group < S::VALUES; group += 1 << RADIX)
            inverse_stages<W, RADIX, S::WIDTH, LAST, BOUND>(
                word, values + group * S::WIDTH,
                Twiddles<typename W::Twiddle, S::start(ROUND)>{twiddles, place.template block<ROUND>(group)}, scale);
    }
};

// A barrier for THREADS threads with consecutive indices.
template <int THREADS> PG_DEVICE void synchronise() {
    if constexpr (THREADS <= 32) __syncwarp();
    else __syncthreads();
}

// Moves values through shared memory, from their places in round FROM to those in round TO. If this exchange has the
// same gap (log_gap) as the previous one, a thread writes only to places that the thread itself has read. If the gap
// differs, a thread writes to places that other threads have read, namely the threads with which it shares a node in
// round FROM (sharers). So it first waits for these threads.
template <class S, int FROM, int TO, class V> PG_DEVICE void exchange(V *values, V *shared, const Place<S> &place) {
    constexpr int LATER = FROM < TO ? TO : FROM, LOG_GAP = S::log_gap(LATER);
    if constexpr (S::log_gap(FROM) != S::log_gap(FROM + 1)) synchronise<S::sharers(FROM)>();
    using Item = Neighbours<V, S::WIDTH>;
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k)
        *(Item *)(shared + place.template shared<FROM, LOG_GAP>(k)) = pack<S::WIDTH>(values + k * S::WIDTH);
    synchronise<S::sharers(LATER - 1)>();
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k)
        unpack(*(const Item *)(shared + place.template shared<TO, LOG_GAP>(k)), values + k * S::WIDTH);
}

// Computes round ROUND and the rounds after it. BOUND: bound of the values that enter round ROUND.
template <class W, class S, int BOUND, int ROUND = 0>
PG_DEVICE void forward_rounds(const W &word, typename W::Value *values, typename W::Value *shared,
                              const Place<S> &place, const typename W::Twiddle *twiddles) {
    Rounds<W>::template forward<S, ROUND, BOUND>(word, values, place, twiddles);
    if constexpr (ROUND + 1 < S::ROUNDS) {
        constexpr int AFTER = forward_bound<typename W::Bounds>(BOUND, S::radix(ROUND));
        exchange<S, ROUND, ROUND + 1>(values, shared, place);
        forward_rounds<W, S, AFTER, ROUND + 1>(word, values, shared, place, twiddles);
    }
}
// Computes the inverse rounds ROUND, ROUND - 1, ..., 0. ROOT: whether the last stage of round 0 is at the root of the
// tree of factors.
template <class W, class S, bool ROOT, int BOUND, int ROUND = S::ROUNDS - 1>
PG_DEVICE void inverse_rounds(const W &word, typename W::Value *values, typename W::Value *shared,
                              const Place<S> &place, const typename W::Twiddle *twiddles) {
    Rounds<W>::template inverse<S, ROUND, ROOT, BOUND>(word, values, place, twiddles);
    if constexpr (ROUND > 0) {
        constexpr int AFTER = inverse_bound<typename W::Bounds>(BOUND, S::radix(ROUND));
        exchange<S, ROUND, ROUND - 1>(values, shared, place);
        inverse_rounds<W, S, ROOT, AFTER, ROUND - 1>(word, values, shared, place, twiddles);
    }
}

// Moves values between the layout of rounds and that of coalesced accesses, for tiles without columns. After the last
// round, a thread holds neighbouring values. For coalesced accesses, neighbouring threads must hold neighbouring chunks
// of 16 bytes. Each warp exchanges chunks on its own, in its part of shared memory. The lowest bits of a chunk's index
// are changed: the 8 threads that are served at once then use different banks.
template <class S, class T> struct Chunks {
    static constexpr int BYTES = S::VALUES * sizeof(T) < 16 ? S::VALUES * sizeof(T) : 16;
    static constexpr int SIZE = BYTES / sizeof(T), COUNT = S::VALUES / SIZE;  // values of a chunk, chunks of a thread
    static constexpr int WARP = 32, STEP = WARP * SIZE;  // STEP: values from one chunk of a thread to its next
    static_assert(S::THREADS % WARP == 0, "warps exchange chunks");
    using Chunk = Neighbours<T, SIZE>;
    Chunk *const shared;  // the warp's part of shared memory
    const u32 thread;     // index of the thread in its warp
    PG_DEVICE explicit Chunks(void *memory)
        : shared((Chunk *)((T *)memory + threadIdx.x / WARP * (WARP * (S::VALUES + 1)))), thread(threadIdx.x % WARP) {}

    // Returns the index of the first value of this thread's first chunk among all values of the block of threads.
    PG_DEVICE u32 first() const { return (threadIdx.x / WARP * (WARP * COUNT) + thread) * SIZE; }
    // own(k): place in shared memory of chunk k in the layout of rounds. moved(k): place of chunk k in the layout of
    // coalesced accesses. 8 chunks cover all banks once.
    static constexpr int ROW = COUNT > 8 ? COUNT : 8, MASK = (COUNT > 8 ? 8 : COUNT) - 1;
    PG_DEVICE u32 own(int k) const { return thread * COUNT + (k ^ (thread * COUNT / ROW & MASK)); }
    PG_DEVICE u32 moved(int k) const { return k * WARP + (thread ^ ((thread / ROW ^ k * (WARP / ROW)) & MASK)); }
    // spread turns this thread's values into the chunks that it moves to memory; gather does the opposite.
    PG_DEVICE void spread(const T *values, Chunk *chunks) const {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < COUNT; ++k) shared[own(k)] = pack<SIZE>(values + k * SIZE);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < COUNT; ++k) chunks[k] = shared[moved(k)];
    }
    PG_DEVICE void gather(const Chunk *chunks, T *values) const {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) shared[moved(k)] = chunks[k];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < COUNT; ++k) unpack(shared[own(k)], values + k * SIZE);
    }
};
