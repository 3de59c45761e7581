// A tile: transforms of LENGTH values held by one block of threads, 16 (or 32) values a thread, in rounds of up to
// 4 (or 5) stages in registers with one exchange through shared memory between rounds.
//
// LOG_LENGTH    stages of the pass; the transforms of a tile have 2^LOG_LENGTH values
// LOG_VALUES    stages of a round; a thread holds 2^LOG_VALUES values of one transform: fewer threads for long tiles
// LOG_PADDING   shared memory has one word of padding after every 2^LOG_PADDING: threads of a warp meet different banks
// LOG_COLUMNS   0: the values of a transform are neighbours in memory, and a tile holds 2^LOG_ROWS transforms
//               else: they are `stride` apart, and a tile holds 2^LOG_COLUMNS neighbouring transforms
#pragma once
#include "word.cuh"

template <int LOG_LENGTH_, int LOG_COLUMNS_, int LOG_ROWS_, int LOG_VALUES_, int LOG_PADDING_> struct Shape {
    static constexpr int LOG_LENGTH = LOG_LENGTH_, LOG_COLUMNS = LOG_COLUMNS_, LOG_ROWS = LOG_ROWS_;
    static constexpr int LOG_VALUES = LOG_VALUES_, LOG_PADDING = LOG_PADDING_;
    static constexpr int LENGTH = 1 << LOG_LENGTH, COLUMNS = 1 << LOG_COLUMNS, ROWS = 1 << LOG_ROWS;
    static constexpr int VALUES = 1 << LOG_VALUES;  // of one transform, in one thread
    static constexpr int LANES = LENGTH / VALUES;   // threads that share a transform
    static constexpr int THREADS = LANES * COLUMNS * ROWS;
    static constexpr bool SMALL = THREADS <= 256 && VALUES <= 16;
    static constexpr int LOG_BLOCK_VALUES = LOG_LENGTH + LOG_COLUMNS + LOG_ROWS;
    static constexpr int ROUNDS = (LOG_LENGTH + LOG_VALUES - 1) / LOG_VALUES;
    // The first round takes what does not fill the others.
    static constexpr int FIRST_RADIX = LOG_LENGTH - (ROUNDS - 1) * LOG_VALUES;
    static constexpr __device__ int start(int round) { return round == 0 ? 0 : FIRST_RADIX + (round - 1) * LOG_VALUES; }
    static constexpr __device__ int radix(int round) { return round == 0 ? FIRST_RADIX : LOG_VALUES; }
    static constexpr int SHARED_VALUES = LENGTH * COLUMNS * ROWS + (LENGTH * COLUMNS * ROWS >> LOG_PADDING);
    // log2 of the stride of a round's values
    static constexpr __device__ int log_stride(int round) { return LOG_LENGTH - start(round) - radix(round); }
    // Where the values of a round are 2^run words apart, a warp takes 2^run neighbours of each of 2^(5 - run) blocks of
    // 16 * 2^run words. With a padding after every 32 words, blocks that follow each other would share banks; every
    // other one does not. That takes two warps of one tile of columns, or of one transform.
    static constexpr __device__ bool skips_blocks(int round) {
        const int run = log_stride(round) + LOG_COLUMNS;
        return LOG_PADDING == 5 && LOG_VALUES == 4 && LANES * COLUMNS >= 64 && run >= 1 && run <= 4;
    }
};

template <class S> struct Place {  // a thread's transform inside the tile
    int lane, column, row;
    PG_DEVICE Place() {
        const int t = threadIdx.x;
        column = t % S::COLUMNS;
        lane = t / S::COLUMNS % S::LANES;
        row = t / (S::COLUMNS * S::LANES);
    }
    // Lane bits LOW to HIGH - 1 choose a block within a warp, bit HIGH the warp: that one becomes the lowest of them.
    template <int ROUND> PG_DEVICE int lane_in() const {
        if constexpr (S::skips_blocks(ROUND)) {
            constexpr int LOW = S::log_stride(ROUND), HIGH = 5 - S::LOG_COLUMNS;
            constexpr int TOP = 1 << HIGH, REST = TOP - (1 << LOW);
            return (lane & ~(TOP | REST)) | (lane & REST) << 1 | (lane & TOP) >> (HIGH - LOW);
        } else return lane;
    }
    // Index inside the transform of value k in a round: that of the first value of its group, and `offset` more.
    template <int ROUND> PG_DEVICE int group_index(int k) const {
        constexpr int RADIX = S::radix(ROUND), LOG_H = S::log_stride(ROUND);
        const int group = lane_in<ROUND>() + S::LANES * (k >> RADIX);
        return (group >> LOG_H << (LOG_H + RADIX)) + (group & ((1 << LOG_H) - 1));
    }
    template <int ROUND> static constexpr __device__ int offset(int k) {
        return (k & ((1 << S::radix(ROUND)) - 1)) << S::log_stride(ROUND);
    }
    // Which of the 2^START blocks of that round value k belongs to.
    template <int ROUND> PG_DEVICE int block(int k) const {
        return (lane_in<ROUND>() + S::LANES * (k >> S::radix(ROUND))) >> S::log_stride(ROUND);
    }
    // Place in shared memory of index + offset. The padding of the sum is the sum of the paddings for all offsets used
    // here, which lets the compiler fold the offset: no bit is set in both.
    PG_DEVICE int shared(int index, int offset) const {
        const int at = (row * S::LENGTH + index) * S::COLUMNS + column, more = offset * S::COLUMNS;
        return at + (at >> S::LOG_PADDING) + (more + (more >> S::LOG_PADDING));
    }
    template <int ROUND> PG_DEVICE int shared_of(int k) const {
        return shared(group_index<ROUND>(k), offset<ROUND>(k));
    }
};

// The twiddles that a pass needs below one node of the tree: 2^LOG_LENGTH of them, that of the node itself at 1. A
// round that starts at stage START takes, at the b-th of the 2^START nodes there, the twiddles E = 2^stage + i of node
// i of each stage below: entry (E << START) + b. Threads at neighbouring nodes read neighbours (tables.cu).
template <class Twiddle, int START> struct Twiddles {
    const Twiddle *at;
    PG_DEVICE Twiddle operator[](u32 entry) const { return at[entry << START]; }
};

// One stage of a round of RADIX stages on one group of 2^RADIX values, and the stages after it. The recursion is over
// compile-time stages, so that every value stays in a register.
template <class W, int RADIX, int STAGE = 0, class Round>
PG_DEVICE void forward_stages(const W &word, typename W::Value *values, const Round &twiddles) {
    constexpr int HALF = 1 << (RADIX - 1 - STAGE);
#pragma unroll
    for (int i = 0; i < 1 << STAGE; ++i) {
        const typename W::Twiddle t = twiddles[(1 << STAGE) + i];
#pragma unroll
        for (int k = 0; k < HALF; ++k) word.forward(values[2 * HALF * i + k], values[2 * HALF * i + k + HALF], t);
    }
    if constexpr (STAGE + 1 < RADIX) forward_stages<W, RADIX, STAGE + 1>(word, values, twiddles);
}
// The same stages backwards. ROOT: stage 0 is the root of the whole tree; scale: entry 0 of its table. BOUND: of the
// values that enter the stage.
template <class W, int RADIX, bool ROOT, int BOUND, int STAGE = RADIX - 1, class Round>
PG_DEVICE void inverse_stages(const W &word, typename W::Value *values, const Round &twiddles,
                              const typename W::Twiddle &scale) {
    constexpr int AFTER = W::Bounds::after_inverse(BOUND);
    constexpr int HALF = 1 << (RADIX - 1 - STAGE);
#pragma unroll
    for (int i = 0; i < 1 << STAGE; ++i) {
        const typename W::Twiddle t = twiddles[(1 << STAGE) + i];
#pragma unroll
        for (int k = 0; k < HALF; ++k) {
            auto &x = values[2 * HALF * i + k], &y = values[2 * HALF * i + k + HALF];
            if constexpr (ROOT && STAGE == 0) word.inverse_root(x, y, scale, t);
            else word.inverse(x, y, t, AFTER < 2 * BOUND);
        }
    }
    if constexpr (STAGE > 0) inverse_stages<W, RADIX, ROOT, AFTER, STAGE - 1>(word, values, twiddles, scale);
}

// The stages of a round on all values of a thread.
template <class W, class S, int ROUND>
PG_DEVICE void forward_round(const W &word, typename W::Value *values, const Place<S> &place,
                             const typename W::Twiddle *twiddles) {
    constexpr int RADIX = S::radix(ROUND);
#pragma unroll
    for (int group = 0; group < S::VALUES; group += 1 << RADIX)
        forward_stages<W, RADIX>(
            word, values + group,
            Twiddles<typename W::Twiddle, S::start(ROUND)>{twiddles + place.template block<ROUND>(group)});
}
template <class W, class S, int ROUND, bool ROOT, int BOUND>
PG_DEVICE void inverse_round(const W &word, typename W::Value *values, const Place<S> &place,
                             const typename W::Twiddle *twiddles) {
    constexpr int RADIX = S::radix(ROUND);
    constexpr bool LAST = ROOT && ROUND == 0;
    const typename W::Twiddle scale = LAST ? twiddles[0] : typename W::Twiddle();
#pragma unroll
    for (int group = 0; group < S::VALUES; group += 1 << RADIX)
        inverse_stages<W, RADIX, LAST, BOUND>(
            word, values + group,
            Twiddles<typename W::Twiddle, S::start(ROUND)>{twiddles + place.template block<ROUND>(group)}, scale);
}

// Values leave one round's places and enter the next one's. A thread writes where it has read before, so one barrier
// between writing and reading suffices, from the second exchange of a pass on too.
template <class S, int FROM, int TO, class V> PG_DEVICE void exchange(V *values, V *shared, const Place<S> &place) {
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) shared[place.template shared_of<FROM>(k)] = values[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = shared[place.template shared_of<TO>(k)];
}

// BOUND: of the values that enter the round. Before they outgrow what a butterfly takes they are relaxed.
template <class W, class S, int BOUND, int ROUND = 0>
PG_DEVICE void forward_rounds(const W &word, typename W::Value *values, typename W::Value *shared,
                              const Place<S> &place, const typename W::Twiddle *twiddles) {
    using Bounds = typename W::Bounds;
    constexpr int GROWTH = Bounds::GROWTH * S::radix(ROUND), MOST = Bounds::LIMIT + Bounds::GROWTH;  // after the round
    constexpr bool RELAX = BOUND + GROWTH > MOST;
    constexpr int AFTER = (RELAX ? Bounds::RELAXED : BOUND) + GROWTH;
    static_assert(AFTER <= MOST && AFTER <= Bounds::LAZY, "a round has more stages than its word has room for");
    if (RELAX) {
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) values[k] = word.relax(values[k]);
    }
    forward_round<W, S, ROUND>(word, values, place, twiddles);
    if constexpr (ROUND + 1 < S::ROUNDS) {
        exchange<S, ROUND, ROUND + 1>(values, shared, place);
        forward_rounds<W, S, AFTER, ROUND + 1>(word, values, shared, place, twiddles);
    }
}
template <class Bounds> constexpr __device__ int inverse_bound(int bound, int stages) {
    return stages == 0 ? bound : inverse_bound<Bounds>(Bounds::after_inverse(bound), stages - 1);
}
// ROOT: the last stage is that of the root.
template <class W, class S, bool ROOT, int BOUND, int ROUND = S::ROUNDS - 1>
PG_DEVICE void inverse_rounds(const W &word, typename W::Value *values, typename W::Value *shared,
                              const Place<S> &place, const typename W::Twiddle *twiddles) {
    inverse_round<W, S, ROUND, ROOT, BOUND>(word, values, place, twiddles);
    if constexpr (ROUND > 0) {
        constexpr int AFTER = inverse_bound<typename W::Bounds>(BOUND, S::radix(ROUND));
        exchange<S, ROUND, ROUND - 1>(values, shared, place);
        inverse_rounds<W, S, ROOT, AFTER, ROUND - 1>(word, values, shared, place, twiddles);
    }
}

// Between the layout of the last round, where a thread holds neighbours, and that of neighbouring threads.
template <class S, class V> PG_DEVICE void spread_neighbours(V *values, V *shared, const Place<S> &place) {
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) shared[place.template shared_of<S::ROUNDS - 1>(k)] = values[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = shared[place.shared(place.lane, k * S::LANES)];
}
template <class S, class V> PG_DEVICE void gather_neighbours(V *values, V *shared, const Place<S> &place) {
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) shared[place.shared(place.lane, k * S::LANES)] = values[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) values[k] = shared[place.template shared_of<S::ROUNDS - 1>(k)];
}
