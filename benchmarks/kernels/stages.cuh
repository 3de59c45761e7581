// Radix-2 stages through shared memory, one butterfly in a thread. cuda/tile.cuh does the same stages in registers.
#pragma once
#include "tile.cuh"

// Where value i of a transform lies. Shared memory serves 8-byte words to half a warp at once, from 16 banks. If value
// i lies at place i, bits 0 to 3 of i choose the bank. In a stage whose butterflies are fewer than 16 values apart,
// the 16 threads differ in bit 4 and in three of these bits, so two threads meet in each bank. Swizzled, a value with
// bit 4 set has bits 0 to 3 flipped. Then the 16 values are in 16 banks, whichever bit is the same for all.
template <bool SWIZZLED> PG_DEVICE u32 shared_place(u32 i) { return SWIZZLED ? i ^ (i >> 4 & 1) * 15 : i; }

// Twiddles by node of the tree of factors (docs/math.md), for the nodes below node `root`. Stage s, counted from that
// node, has 2^s blocks.
template <class Twiddle> struct Nodes {
    const Twiddle *table;
    u32 root;
    PG_DEVICE Twiddle operator()(int stage, u32 block) const {
        return read<READ_ONLY>(table + ((root << stage) + block));
    }
};

// Stages FIRST ... LAST - 1 of transforms of 2^LOG_POINTS values. The threads of a transform follow each other, and
// each does 2^LOG_EACH butterflies of a stage. There is a barrier before each stage and none after the last. BOUND, in
// the unit of W::Bounds: of the values that enter.
template <class W, int LOG_POINTS, int FIRST, int LAST, int BOUND, bool SWIZZLED, int LOG_EACH = 0, class Twiddles>
PG_DEVICE void shared_stages(const W &word, typename W::Value *values, u32 thread, const Twiddles &twiddles) {
    if constexpr (FIRST < LAST) {
        using Bounds = typename W::Bounds;
        constexpr int LOG_HALF = LOG_POINTS - 1 - FIRST, LOG_THREADS = LOG_POINTS - 1 - LOG_EACH;
        typename W::Twiddle t = twiddles(FIRST, thread >> LOG_HALF);
        synchronise<1 << LOG_THREADS>();
#pragma unroll
        for (u32 k = 0; k < 1 << LOG_EACH; ++k) {
            const u32 butterfly = thread + (k << LOG_THREADS), block = butterfly >> LOG_HALF;
            const u32 low = (block << LOG_HALF) + butterfly;
            if (k > 0) t = twiddles(FIRST, block);
            typename W::Value &x = values[shared_place<SWIZZLED>(low)];
            typename W::Value &y = values[shared_place<SWIZZLED>(low + (1 << LOG_HALF))];
            typename W::Value a = x, b = y;
            word.forward(a, b, t, relaxes<Bounds>(BOUND));
            x = a, y = b;
        }
        shared_stages<W, LOG_POINTS, FIRST + 1, LAST, forward_bound<Bounds>(BOUND, 1), SWIZZLED, LOG_EACH>(
            word, values, thread, twiddles);
    }
}
