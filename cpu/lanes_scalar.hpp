// Lanes of one residue: for the portable kernels, and for the end of a row that does not fill a vector.
#pragma once
#include <cstring>

#include "fft_product.hpp"
#include "ntt.hpp"

namespace pg {
namespace {

template <class Word> struct ScalarBase {
    using T = Word;
    using V = Word;
    struct Twiddle {
        T w, shoup;
    };
    static constexpr size_t WIDTH = 1;
    static constexpr bool PERMUTES = false;
    static PG_INLINE V load(const T *x) { return *x; }
    static PG_INLINE void store(T *x, V v) { *x = v; }
    static PG_INLINE V splat(T x) { return x; }
    static PG_INLINE V zero() { return 0; }
    static PG_INLINE V add(V x, V y) { return (V)(x + y); }
    static PG_INLINE V sub(V x, V y) { return (V)(x - y); }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return {w, shoup}; }
};

// Lanes for q < 2^31 (u32) or q < 2^62 (u64).
template <class Word> struct ScalarLanes : ScalarBase<Word> {
    using T = Word;
    using typename ScalarBase<Word>::Twiddle;
    static constexpr bool NARROW = sizeof(T) == 4, SHOUP = true;
    const Modulus &m;
    const T q, q2;
    explicit ScalarLanes(const Modulus &modulus) : m(modulus), q((T)modulus.q), q2((T)(2 * modulus.q)) {}

    static PG_INLINE T reduce_once(T x, T bound) { return x >= bound ? x - bound : x; }
    PG_INLINE T add_mod(T x, T y) const { return reduce_once(x + y, q); }
    PG_INLINE T sub_mod(T x, T y) const { return x >= y ? x - y : x - y + q; }
    PG_INLINE T relax(T x) const { return reduce_once(x, q2); }  // needs x < 4q
    static PG_INLINE T masked(T x) { return x; }
    PG_INLINE T mul_lazy(T x, const Twiddle &t) const {
        if constexpr (NARROW) return (T)(x * t.w - (T)((u64)x * t.shoup >> 32) * q);
        else return x * t.w - mul_hi(x, t.shoup) * q;
    }
    // Barrett's product (docs/math.md). The estimated quotient is exact or up to 2 too small.
    PG_INLINE T mul(T x, T y) const {
        u64 r;
        if constexpr (NARROW) {
            u64 z = (u64)x * y;
            r = z - ((z >> (m.bits - 1)) * m.barrett32 >> 32) * q;
        } else {
            u128 z = (u128)x * y;
            r = (u64)z - mul_hi((u64)(z >> (m.bits - 2)), m.barrett64) * q;
        }
        u64 two_q = 2 * m.q;
        r = r >= two_q ? r - two_q : r;
        return (T)(r >= q ? r - q : r);
    }
};

// Lanes for q < 2^58, so that a lane has room for all values up to 64q.
struct RoomyLanes : ScalarLanes<u64> {
    const Twiddle one;
    explicit RoomyLanes(const Modulus &modulus) : ScalarLanes(modulus), one{1, shoup_quotient(modulus, 1)} {}
    PG_INLINE u64 relax(u64 x) const { return mul_lazy(x, one); }  // for any x
};

// Lanes for any q up to 2^32 (u32) or 2^64 (u64).
template <class Word> struct StrictLanes : ScalarBase<Word> {
    using T = Word;
    static constexpr bool SHOUP = false;
    const Modulus &m;
    explicit StrictLanes(const Modulus &modulus) : m(modulus) {}
    PG_INLINE T add_mod(T x, T y) const { return (T)pg::add_mod(m, x, y); }
    PG_INLINE T sub_mod(T x, T y) const { return (T)pg::sub_mod(m, x, y); }
    PG_INLINE T mul(T x, T y) const { return (T)mul_mod(m, x, y); }
    PG_INLINE T mul(T x, const typename ScalarBase<Word>::Twiddle &t) const { return mul(x, t.w); }
};

struct ScalarReals {
    using V = double;
    using I = u64;
    using Words = ScalarLanes<u64>;
    static constexpr size_t WIDTH = 1, REGISTERS = 16;
    static constexpr bool MULTIPLIER52 = false;
#if defined(__FP_FAST_FMA)
    static constexpr bool FUSED = true;
    static PG_INLINE V fma(V x, V y, V z) { return __builtin_fma(x, y, z); }
#else
    static constexpr bool FUSED = false;
    static PG_INLINE V fma(V x, V y, V z) { return x * y + z; }
#endif
    static PG_INLINE V fms(V x, V y, V z) { return fma(x, y, -z); }
    static PG_INLINE V fnma(V x, V y, V z) { return fma(-x, y, z); }
    static PG_INLINE V load(const double *x) { return *x; }
    static PG_INLINE void store(double *x, V v) { *x = v; }
    static PG_INLINE V splat(double x) { return x; }
    static PG_INLINE V add(V x, V y) { return x + y; }
    static PG_INLINE V sub(V x, V y) { return x - y; }
    static PG_INLINE V mul(V x, V y) { return x * y; }

    static PG_INLINE I bits(V x) {
        I y;
        std::memcpy(&y, &x, sizeof y);
        return y;
    }
    static PG_INLINE V value(I x) {
        V y;
        std::memcpy(&y, &x, sizeof y);
        return y;
    }
    template <class T> static PG_INLINE I load_words(const T *x) { return *x; }
    template <class T> static PG_INLINE void store_words(T *x, I v) { *x = (T)v; }
    static PG_INLINE I mul_halves(I x, I y) { return (u64)(u32)x * (u32)y; }
    static PG_INLINE I mul_high(I x, I y, I) { return pg::mul_hi(x, y); }
    static PG_INLINE I mul_low(I x, I y, I) { return x * y; }
    static PG_INLINE I mul_low(I x, I y) { return x * y; }
    static PG_INLINE I where_negative(I x, I y, I other = 0) { return (int64_t)x < 0 ? y : other; }
    static PG_INLINE I both(I x, I y) { return x & y; }
    static PG_INLINE I left(I x, unsigned count) { return x << count; }
    static PG_INLINE I right(I x, unsigned count) { return x >> count; }
    static PG_INLINE I right_signed(I x, unsigned count) { return (I)((int64_t)x >> count); }
    static PG_INLINE I centred(I x, I half, I q) { return x > half ? x - q : x; }
};

}  // namespace
}  // namespace pg
