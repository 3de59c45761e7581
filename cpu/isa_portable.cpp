// The kernels that every machine can run. Kernels of all other instruction sets must return the same residues.
#include "make_isa.hpp"

namespace pg {
namespace {

// Vectors of 16 bytes, one register on every 64-bit machine
template <class Real> struct Pairs {
    using T = Real;
    typedef T V __attribute__((vector_size(16)));
    static constexpr size_t WIDTH = 8 / sizeof(T);
    static PG_INLINE V load(const T *x) {
        V v;
        std::memcpy(&v, x, sizeof v);
        return v;
    }
    static PG_INLINE void store(T *x, V v) { std::memcpy(x, &v, sizeof v); }
    static PG_INLINE V splat(T x) { return x - V{}; }
    static PG_INLINE V alternate(V x) {  // -re, im
        V sign{};
        for (size_t i = 0; i < 2 * WIDTH; ++i) sign[i] = i % 2 ? 1 : -1;
        return x * sign;
    }
    template <size_t A, size_t B, size_t C, size_t D> static PG_INLINE V shuffle(V x, V y) {
#if __has_builtin(__builtin_shufflevector)
        if constexpr (WIDTH == 2) return __builtin_shufflevector(x, y, A, B, C, D);
        else return __builtin_shufflevector(x, y, A, B);
#else
        if constexpr (WIDTH == 2) return __builtin_shuffle(x, y, (int __attribute__((vector_size(16)))){A, B, C, D});
        else return __builtin_shuffle(x, y, (long __attribute__((vector_size(16)))){A, B});
#endif
    }
    static PG_INLINE V swap(V x) { return shuffle<1, 0, 3, 2>(x, x); }
    static PG_INLINE V real(V x) { return shuffle<0, 0, 2, 2>(x, x); }
    static PG_INLINE V imag(V x) { return shuffle<1, 1, 3, 3>(x, x); }
    static PG_INLINE V fmaddsub(V x, V y, V z) { return x * y + alternate(z); }
    static PG_INLINE V fmsubadd(V x, V y, V z) { return x * y - alternate(z); }
    static PG_INLINE V fma(V x, V y, V z) { return x * y + z; }
    static PG_INLINE V fnma(V x, V y, V z) { return z - x * y; }
    static PG_INLINE void transpose(V *v) {
        if constexpr (WIDTH == 2) {
            const V a = v[0], b = v[1];
            v[0] = shuffle<0, 1, 4, 5>(a, b), v[1] = shuffle<2, 3, 6, 7>(a, b);
        }
    }
};

struct Portable : Lacking {
    static constexpr const char *NAME = "portable";
    static constexpr Costs COSTS = COSTS_PORTABLE;
    using Q30 = Rows<Lazy<ScalarLanes<u32>>, ScalarLanes<u32>>;
    using Q31 = Rows<Tight<ScalarLanes<u32>>, ScalarLanes<u32>>;
    using Q32 = Rows<Strict<StrictLanes<u32>>, StrictLanes<u32>>;
    using Q50 = Rows<Lazy<RoomyLanes, 64>, ScalarLanes<u64>>;
    using Q62 = Rows<Lazy<ScalarLanes<u64>>, ScalarLanes<u64>>;
    using Q64 = Rows<Strict<StrictLanes<u64>>, StrictLanes<u64>>;
    using Floats = Pairs<float>;
    using Doubles = Pairs<double>;
    using Spectral = ScalarReals;
    using Real = ScalarReals;
    using Count = CountAll;
    using Bytes = ByteLoops;
};

}  // namespace

const Isa isa_portable = make_isa<Portable>();

}  // namespace pg
