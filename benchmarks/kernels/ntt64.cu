// Negacyclic transforms of 64 residues, natural order to bit-reversed. An array holds fewer than 2^26 transforms.
// Their number is a multiple of the transforms of a block.
#include "stages.cuh"

// What an ablation leaves out.
//   GLOBAL       global memory and the table of twiddles; only results that equal `number` are stored
//   TWIDDLES     the table of twiddles: all butterflies have one twiddle
//   BUTTERFLIES  the arithmetic of the butterflies, and the table: each butterfly exchanges its two values
//   SHARED       the same and shared memory: one exchange of values in registers is left
enum Without { NOTHING, GLOBAL, TWIDDLES, BUTTERFLIES, SHARED };

// A butterfly that exchanges its two values, unchanged.
struct Swap : Lazy60 {
    PG_DEVICE explicit Swap(const Modulus &modulus) : Lazy60(modulus) {}
    PG_DEVICE void forward(Value &x, Value &y, Twiddle /*t*/, bool /*reduce*/) const {
        const Value low = x;
        x = y, y = low;
    }
    PG_DEVICE Storage canonical(Value x) const { return x; }
};
template <Without> struct WordWithout {
    using Type = Lazy60;
};
template <> struct WordWithout<BUTTERFLIES> {
    using Type = Swap;
};
template <> struct WordWithout<SHARED> {
    using Type = Swap;
};

struct OneTwiddle {
    Lazy60::Twiddle twiddle;
    PG_DEVICE Lazy60::Twiddle operator()(int /*stage*/, u32 /*block*/) const { return twiddle; }
};
template <Without WITHOUT> PG_DEVICE auto twiddles_without(const Lazy60::Twiddle *table, Lazy60::Twiddle one) {
    if constexpr (WITHOUT == NOTHING) return Nodes<Lazy60::Twiddle>{table, 1};
    else return OneTwiddle{one};
}

// Values for the kernel that reads none: below 2^59, with period 2^16.
PG_DEVICE u64 hashed(u32 index) { return (u64)(index & 0xFFFF) * 0x5851F42D4C9ull; }

// 32 threads for a transform; a thread does one butterfly in each stage. block: 4 transforms; grid: blocks.
//
// twiddles        by node
// q, inverse64    of the modulus, for the kernel that does not read it
// w, shoup        the only twiddle of a kernel that reads none
// number          without global memory, results that equal it are stored; it depends on the launch, so that the
//                 compiler keeps all computations
template <Without WITHOUT, bool SWIZZLED>
__global__ void __launch_bounds__(128, 16)
    ntt64_shared(const u64 *x, u64 *y, const Modulus *modulus, const Lazy60::Twiddle *twiddles, u64 q, u64 inverse64,
                 u64 w, u64 shoup, u64 number) {
    using W = typename WordWithout<WITHOUT>::Type;
    __shared__ u64 values[4][64];
    const u32 thread = threadIdx.x % 32, row = threadIdx.x / 32;
    const u32 low = (blockIdx.x * 4 + row) * 64 + thread, high = low + 32;
    u64 a = WITHOUT == GLOBAL ? hashed(low) : x[low], b = WITHOUT == GLOBAL ? hashed(high) : x[high];

    Modulus own = {};
    if constexpr (WITHOUT == GLOBAL) {
        own.q = q, own.minus_q = 0 - q, own.q2 = 2 * q, own.q3 = 3 * q, own.q6 = 6 * q;
        own.inverse64 = inverse64;
    }
    const W word(WITHOUT == GLOBAL ? own : *modulus);
    if constexpr (WITHOUT == SHARED) {
        word.forward(a, b, {w, shoup}, false);
    } else {
        u64 *const shared = values[row];
        u64 &first = shared[shared_place<SWIZZLED>(thread)], &second = shared[shared_place<SWIZZLED>(thread + 32)];
        first = a, second = b;
        shared_stages<W, 6, 0, 6, W::Bounds::CANONICAL, SWIZZLED>(
            word, shared, thread, twiddles_without<WITHOUT>(twiddles, Lazy60::Twiddle{w, shoup}));
        synchronise<32>();
        a = word.canonical(first), b = word.canonical(second);
    }
    if (WITHOUT != GLOBAL || a == number) y[low] = a;
    if (WITHOUT != GLOBAL || b == number) y[high] = b;
}

// 8 threads for a transform, 8 values in a thread: two rounds of three stages in registers (tile.cuh). Nothing is done
// against bank conflicts: values lie in shared memory in the order of their numbers. Nothing is done for coalesced
// accesses: each thread reads and writes its own values. block: 8 << LOG_ROWS threads; dynamic shared memory:
// 64 << LOG_ROWS values or more.
template <int LOG_ROWS> struct Plain : Shape<6, 0, LOG_ROWS, 3, 0> {
    static constexpr __device__ int log_gap(int /*round*/) { return 24; }  // a gap after 2^27 values: never
};
template <int LOG_ROWS>
__global__ void __launch_bounds__(8 << LOG_ROWS)
    ntt64_registers(const u64 *x, u64 *y, const Modulus *modulus, const Lazy60::Twiddle *twiddles) {
    using S = Plain<LOG_ROWS>;
    extern __shared__ __align__(16) unsigned char memory[];
    const Place<S> place;
    const Lazy60 word(*modulus);
    const u32 first = (blockIdx.x * S::ROWS + place.row) * S::LENGTH;
    u64 values[S::VALUES];
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k)
        values[k] = x[first + place.template group_index<0>(k) + place.template offset<0>(k)];
    forward_rounds<Lazy60, S, Lazy60::Bounds::CANONICAL>(word, values, (u64 *)memory, place, twiddles);
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k)
        y[first + place.template group_index<1>(k) + place.template offset<1>(k)] = word.canonical(values[k]);
}
