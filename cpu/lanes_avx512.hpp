// Lanes of AVX-512 (F, DQ, VL): 16 of 32 bits and 8 of 64 bits. Only for translation units compiled for AVX-512.
#pragma once
#include <immintrin.h>

#include "combine.hpp"
#include "draw.hpp"
#include "fft.hpp"
#include "gemm.hpp"
#include "integers.hpp"
#include "lanes_scalar.hpp"

namespace pg {
namespace {

// Lane indices for permutexvar and permutex2var, N lanes of type I.
template <class I, size_t N> struct alignas(64) Index {
    I lane[N];
    __m512i vector() const { return _mm512_load_si512(lane); }
};

// u holds the values with indices 0 ... N - 1, and v those with indices N ... 2 * N - 1. The value with index j gets a
// new index: j rotated left by `bits` bits. Returns the old index of each value of the new u (second = 0) or of the new
// v (second = 1). Between two stages the indices rotate by one bit. So in a stage of COUNT blocks, lane i belongs to
// block i mod COUNT, and the factors of the blocks are loaded in the order of memory. The exchange of granules
// (ntt.hpp) would need permuted factors.
template <class I, size_t N> constexpr Index<I, N> rotated(unsigned bits, size_t second) {
    Index<I, N> index{};
    for (size_t i = 0; i < N; ++i) {
        size_t from = second * N + i;
        for (unsigned k = 0; k < bits; ++k) from = from / 2 + from % 2 * N;
        index.lane[i] = (I)from;
    }
    return index;
}

// exchange and permute of ntt.hpp, for N lanes of type I. pick(u, lanes, v) returns the lanes of u and v whose indices
// are in `lanes`.
template <class Lanes, class I, size_t N> struct Interleaving {
    template <size_t, bool BACK> static PG_INLINE void exchange(__m512i &u, __m512i &v) {
        rotate<BACK ? LOG_N : 1>(u, v);
    }
    static constexpr bool PERMUTES = true;
    template <size_t G, bool BACK> static PG_INLINE void permute(__m512i &u, __m512i &v) {
        constexpr unsigned LOG_G = __builtin_ctzll(G);
        rotate<BACK ? LOG_G + 1 : LOG_N - LOG_G>(u, v);
    }

  private:
    static constexpr unsigned LOG_N = __builtin_ctzll(N);
    template <unsigned BITS> static PG_INLINE void rotate(__m512i &u, __m512i &v) {
        static constexpr auto first = rotated<I, N>(BITS, 0), second = rotated<I, N>(BITS, 1);
        const __m512i a = u, b = v;
        u = Lanes::pick(a, first.vector(), b), v = Lanes::pick(a, second.vector(), b);
    }
};

// COUNT neighbouring words, repeated until they fill a vector.
template <size_t COUNT, class T> PG_INLINE __m512i repeated(const T *x) {
    constexpr size_t BYTES = COUNT * sizeof(T);
    if constexpr (BYTES == 64) return _mm512_loadu_si512(x);
    else if constexpr (BYTES == 32) return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)x));
    else if constexpr (BYTES == 16) return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)x));
    else return _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)x));
}

struct Lanes32 : Interleaving<Lanes32, u32, 16> {
    using T = u32;
    using V = __m512i;
    struct Twiddle {
        V w, shoup, shoup_odd;
    };
    static constexpr size_t WIDTH = 16;
    static constexpr bool SHOUP = true;
    const V q, q2, barrett;
    const __m128i shift;
    explicit Lanes32(const Modulus &m)
        : q(splat((u32)m.q)),
          q2(splat((u32)(2 * m.q))),
          barrett(_mm512_set1_epi64((long long)m.barrett32)),
          shift(_mm_cvtsi32_si128((int)m.bits - 1)) {}

    static PG_INLINE V load(const T *x) { return _mm512_loadu_si512(x); }
    static PG_INLINE void store(T *x, V v) { _mm512_storeu_si512(x, v); }
    static PG_INLINE V splat(T x) { return _mm512_set1_epi32((int)x); }
    static PG_INLINE V zero() { return _mm512_setzero_si512(); }
    static PG_INLINE V add(V x, V y) { return _mm512_add_epi32(x, y); }
    static PG_INLINE V sub(V x, V y) { return _mm512_sub_epi32(x, y); }
    static PG_INLINE V reduce_once(V x, V bound) { return _mm512_min_epu32(x, _mm512_sub_epi32(x, bound)); }
    PG_INLINE V add_mod(V x, V y) const { return reduce_once(add(x, y), q); }
    PG_INLINE V sub_mod(V x, V y) const {
        V d = sub(x, y);
        return _mm512_min_epu32(d, add(d, q));
    }

    static PG_INLINE Twiddle twiddle(V w, V shoup) { return {w, shoup, _mm512_srli_epi64(shoup, 32)}; }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return twiddle(splat(w), splat(shoup)); }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return twiddle(repeated<COUNT>(w), repeated<COUNT>(shoup));
    }
    static PG_INLINE V masked(V x) { return x; }
    static PG_INLINE V mul_low(V x, V y) { return _mm512_mullo_epi32(x, y); }
    static PG_INLINE V add_where_above(V x, V y, V sum, V term) {  // sum + term where x > y
        return _mm512_mask_add_epi32(sum, _mm512_cmpgt_epu32_mask(x, y), sum, term);
    }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const {
        V even = _mm512_srli_epi64(_mm512_mul_epu32(x, t.shoup), 32);
        V odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), t.shoup_odd);
        V high = _mm512_mask_blend_epi32(0xaaaa, even, odd);
        return sub(mul_low(x, t.w), mul_low(high, q));
    }
    // Returns Barrett's product of the low halves of 64-bit lanes.
    PG_INLINE V mul_even(V x, V y) const {
        V z = _mm512_mul_epu32(x, y);
        V quotient = _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srl_epi64(z, shift), barrett), 32);
        V r = _mm512_sub_epi64(z, _mm512_mul_epu32(quotient, q));
        V one_q = _mm512_srli_epi64(q, 32), two_q = _mm512_slli_epi64(one_q, 1);
        r = _mm512_min_epu64(r, _mm512_sub_epi64(r, two_q));
        return _mm512_min_epu64(r, _mm512_sub_epi64(r, one_q));
    }
    PG_INLINE V mul(V x, V y) const {
        V odd = mul_even(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32));
        return _mm512_or_si512(mul_even(x, y), _mm512_slli_epi64(odd, 32));
    }
    static PG_INLINE V pick(V u, V lanes, V v) { return _mm512_permutex2var_epi32(u, lanes, v); }
};

struct Lanes64Base : Interleaving<Lanes64Base, u64, 8> {
    using T = u64;
    using V = __m512i;
    static constexpr size_t WIDTH = 8;
    static constexpr bool SHOUP = true;
    const V q, q2;
    const __m128i low_shift;
    explicit Lanes64Base(const Modulus &m)
        : q(splat(m.q)), q2(splat(2 * m.q)), low_shift(_mm_cvtsi32_si128((int)m.bits - 2)) {}

    static PG_INLINE V load(const T *x) { return _mm512_loadu_si512(x); }
    static PG_INLINE void store(T *x, V v) { _mm512_storeu_si512(x, v); }
    static PG_INLINE V splat(T x) { return _mm512_set1_epi64((long long)x); }
    static PG_INLINE V zero() { return _mm512_setzero_si512(); }
    static PG_INLINE V add(V x, V y) { return _mm512_add_epi64(x, y); }
    static PG_INLINE V sub(V x, V y) { return _mm512_sub_epi64(x, y); }
    static PG_INLINE V reduce_once(V x, V bound) { return _mm512_min_epu64(x, _mm512_sub_epi64(x, bound)); }
    PG_INLINE V add_mod(V x, V y) const { return reduce_once(add(x, y), q); }
    PG_INLINE V sub_mod(V x, V y) const {
        V d = sub(x, y);
        return _mm512_min_epu64(d, add(d, q));
    }
    static PG_INLINE V pick(V u, V lanes, V v) { return _mm512_permutex2var_epi64(u, lanes, v); }
};

// Lanes for q < 2^62.
struct Lanes64 : Lanes64Base {
    struct Twiddle {
        V w, shoup, shoup_high;
    };
    const V barrett;
    const __m128i high_shift;
    explicit Lanes64(const Modulus &m)
        : Lanes64Base(m), barrett(splat(m.barrett64)), high_shift(_mm_cvtsi32_si128(66 - (int)m.bits)) {}

    static PG_INLINE V upper(V x) { return _mm512_srli_epi64(x, 32); }
    static PG_INLINE V raised(V x) { return _mm512_slli_epi64(x, 32); }
    static PG_INLINE Twiddle twiddle(V w, V shoup) { return {w, shoup, upper(shoup)}; }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return twiddle(splat(w), splat(shoup)); }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return twiddle(repeated<COUNT>(w), repeated<COUNT>(shoup));
    }
    static PG_INLINE V high_product(V x, V y, V y_high) {
        V x_high = upper(x);
        V middle = add(_mm512_mul_epu32(x_high, y), upper(_mm512_mul_epu32(x, y)));
        V second = add(_mm512_mul_epu32(x, y_high), _mm512_and_si512(middle, splat(0xffffffffu)));
        return add(add(_mm512_mul_epu32(x_high, y_high), upper(middle)), upper(second));
    }
    // Returns the high word of the product x * y, or up to 2 less.
    static PG_INLINE V rough_high_product(V x, V y, V y_high) {
        V x_high = upper(x);
        return add(add(_mm512_mul_epu32(x_high, y_high), upper(_mm512_mul_epu32(x_high, y))),
                   upper(_mm512_mul_epu32(x, y_high)));
    }
    PG_INLINE V remainder(V low, V quotient) const { return sub(low, _mm512_mullo_epi64(quotient, q)); }
    PG_INLINE V relax(V x) const { return reduce_once(x, q2); }  // needs x < 4q
    static PG_INLINE V masked(V x) { return x; }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const {
        return remainder(_mm512_mullo_epi64(x, t.w), high_product(x, t.shoup, t.shoup_high));
    }
    PG_INLINE V mul_rough(V x, const Twiddle &t) const {
        V r = remainder(_mm512_mullo_epi64(x, t.w), rough_high_product(x, t.shoup, t.shoup_high));
        asm("" : "+v"(r));  // keeps r one value; else the compiler puts both its terms into each sum with r
        return r;
    }
    PG_INLINE V mul(V x, V y) const {
        V low = _mm512_mullo_epi64(x, y), high = high_product(x, y, upper(y));
        V t = _mm512_or_si512(_mm512_sll_epi64(high, high_shift), _mm512_srl_epi64(low, low_shift));
        V r = remainder(low, high_product(t, barrett, upper(barrett)));
        return reduce_once(reduce_once(r, q2), q);
    }
};

// Transposes the 4 x 4 matrix whose rows are the vectors v[0], v[STEP], v[2 * STEP] and v[3 * STEP], and whose entries
// are quarters of vectors.
template <size_t STEP> PG_INLINE void transpose_quarters(__m512d *v) {
    const __m512d a = v[0], b = v[STEP], c = v[2 * STEP], d = v[3 * STEP];
    const __m512d ab = _mm512_shuffle_f64x2(a, b, 0x44), cd = _mm512_shuffle_f64x2(c, d, 0x44);
    const __m512d ab_high = _mm512_shuffle_f64x2(a, b, 0xee), cd_high = _mm512_shuffle_f64x2(c, d, 0xee);
    v[0] = _mm512_shuffle_f64x2(ab, cd, 0x88), v[STEP] = _mm512_shuffle_f64x2(ab, cd, 0xdd);
    v[2 * STEP] = _mm512_shuffle_f64x2(ab_high, cd_high, 0x88);
    v[3 * STEP] = _mm512_shuffle_f64x2(ab_high, cd_high, 0xdd);
}

struct Pairs32 {
    using T = float;
    using V = __m512;
    static constexpr size_t WIDTH = 8;
    static PG_INLINE V load(const T *x) { return _mm512_loadu_ps(x); }
    static PG_INLINE void store(T *x, V v) { _mm512_storeu_ps(x, v); }
    static PG_INLINE V splat(T x) { return _mm512_set1_ps(x); }
    static PG_INLINE V swap(V x) { return _mm512_permute_ps(x, 0xb1); }
    static PG_INLINE V real(V x) { return _mm512_moveldup_ps(x); }
    static PG_INLINE V imag(V x) { return _mm512_movehdup_ps(x); }
    static PG_INLINE V fmaddsub(V x, V y, V z) { return _mm512_fmaddsub_ps(x, y, z); }
    static PG_INLINE V fmsubadd(V x, V y, V z) { return _mm512_fmsubadd_ps(x, y, z); }
    static PG_INLINE V fma(V x, V y, V z) { return _mm512_fmadd_ps(x, y, z); }
    static PG_INLINE V fnma(V x, V y, V z) { return _mm512_fnmadd_ps(x, y, z); }
    static PG_INLINE void transpose(V *v) {
        __m512d u[8];
        for (size_t i = 0; i < 8; i += 2) {
            const __m512d a = _mm512_castps_pd(v[i]), b = _mm512_castps_pd(v[i + 1]);
            u[i] = _mm512_unpacklo_pd(a, b), u[i + 1] = _mm512_unpackhi_pd(a, b);
        }
        transpose_quarters<2>(u), transpose_quarters<2>(u + 1);
        for (size_t i = 0; i < 8; ++i) v[i] = _mm512_castpd_ps(u[i]);
    }
};

struct Pairs64 {
    using T = double;
    using V = __m512d;
    static constexpr size_t WIDTH = 4;
    static PG_INLINE V load(const T *x) { return _mm512_loadu_pd(x); }
    static PG_INLINE void store(T *x, V v) { _mm512_storeu_pd(x, v); }
    static PG_INLINE V splat(T x) { return _mm512_set1_pd(x); }
    static PG_INLINE V swap(V x) { return _mm512_permute_pd(x, 0x55); }
    static PG_INLINE V real(V x) { return _mm512_movedup_pd(x); }
    static PG_INLINE V imag(V x) { return _mm512_permute_pd(x, 0xff); }
    static PG_INLINE V fmaddsub(V x, V y, V z) { return _mm512_fmaddsub_pd(x, y, z); }
    static PG_INLINE V fmsubadd(V x, V y, V z) { return _mm512_fmsubadd_pd(x, y, z); }
    static PG_INLINE V fma(V x, V y, V z) { return _mm512_fmadd_pd(x, y, z); }
    static PG_INLINE V fnma(V x, V y, V z) { return _mm512_fnmadd_pd(x, y, z); }
    static PG_INLINE void transpose(V *v) { transpose_quarters<1>(v); }
};

// Lane indices that pick the real (part = 0) or imaginary parts (part = 1) of complex numbers, each `times` times.
constexpr Index<u64, 8> parts(size_t part, size_t times) {
    Index<u64, 8> index{};
    for (size_t i = 0; i < 8; ++i) index.lane[i] = 2 * (i / times) + part;
    return index;
}

struct Reals {
    using V = __m512d;
    using I = __m512i;
    using Words = Lanes64;
    static constexpr size_t WIDTH = 8, REGISTERS = 32;
    static constexpr bool FUSED = true, MULTIPLIER52 = false;
    static PG_INLINE V fma(V x, V y, V z) { return _mm512_fmadd_pd(x, y, z); }
    static PG_INLINE V fms(V x, V y, V z) { return _mm512_fmsub_pd(x, y, z); }
    static PG_INLINE V fnma(V x, V y, V z) { return _mm512_fnmadd_pd(x, y, z); }
    static PG_INLINE V load(const double *x) { return _mm512_loadu_pd(x); }
    static PG_INLINE void store(double *x, V v) { _mm512_storeu_pd(x, v); }
    static PG_INLINE V splat(double x) { return _mm512_set1_pd(x); }
    static PG_INLINE V add(V x, V y) { return _mm512_add_pd(x, y); }
    static PG_INLINE V sub(V x, V y) { return _mm512_sub_pd(x, y); }
    static PG_INLINE V mul(V x, V y) { return _mm512_mul_pd(x, y); }
    template <size_t COUNT> static PG_INLINE void expand(const double *x, V &re, V &im) {
        static constexpr auto reals = parts(0, 8 / COUNT), imaginaries = parts(1, 8 / COUNT);
        if constexpr (COUNT == 8) {
            V a = load(x), b = load(x + 8);
            re = _mm512_permutex2var_pd(a, reals.vector(), b), im = _mm512_permutex2var_pd(a, imaginaries.vector(), b);
        } else {
            V a = COUNT == 4 ? load(x) : _mm512_castpd256_pd512(_mm256_loadu_pd(x));
            re = _mm512_permutexvar_pd(reals.vector(), a), im = _mm512_permutexvar_pd(imaginaries.vector(), a);
        }
    }
    template <size_t G> static PG_INLINE void exchange(V &u, V &v) {
        V a = u, b = v;
        if constexpr (G == 4) {
            u = _mm512_shuffle_f64x2(a, b, 0x44), v = _mm512_shuffle_f64x2(a, b, 0xee);
        } else if constexpr (G == 2) {
            static constexpr Index<u64, 8> first{{0, 1, 8, 9, 4, 5, 12, 13}}, second{{2, 3, 10, 11, 6, 7, 14, 15}};
            u = _mm512_permutex2var_pd(a, first.vector(), b);
            v = _mm512_permutex2var_pd(a, second.vector(), b);
        } else {
            u = _mm512_unpacklo_pd(a, b), v = _mm512_unpackhi_pd(a, b);
        }
    }

    static PG_INLINE I bits(V x) { return _mm512_castpd_si512(x); }
    static PG_INLINE V value(I x) { return _mm512_castsi512_pd(x); }
    static PG_INLINE I load_words(const u32 *x) {
        return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)x));
    }
    static PG_INLINE I load_words(const u64 *x) { return _mm512_loadu_si512(x); }
    static PG_INLINE void store_words(u32 *x, I v) { _mm256_storeu_si256((__m256i *)x, _mm512_cvtepi64_epi32(v)); }
    static PG_INLINE void store_words(u64 *x, I v) { _mm512_storeu_si512(x, v); }
    static PG_INLINE I mul_halves(I x, I y) { return _mm512_mul_epu32(x, y); }
    static PG_INLINE I mul_high(I x, I y, I y_high) { return Words::high_product(x, y, y_high); }
    static PG_INLINE I mul_low(I x, I y, I) { return _mm512_mullo_epi64(x, y); }
    static PG_INLINE I where_negative(I x, I y, I other = _mm512_setzero_si512()) {
        return _mm512_mask_mov_epi64(other, _mm512_movepi64_mask(x), y);
    }
    static PG_INLINE I both(I x, I y) { return _mm512_and_si512(x, y); }
    static PG_INLINE I left(I x, unsigned count) { return _mm512_sll_epi64(x, _mm_cvtsi32_si128((int)count)); }
    static PG_INLINE I right(I x, unsigned count) { return _mm512_srl_epi64(x, _mm_cvtsi32_si128((int)count)); }
    static PG_INLINE I right_signed(I x, unsigned count) { return _mm512_sra_epi64(x, _mm_cvtsi32_si128((int)count)); }
    static PG_INLINE I mul_low(I x, I y) { return _mm512_mullo_epi64(x, y); }
    static PG_INLINE I mul_high(I x, I y) { return Words::high_product(x, y, Words::upper(y)); }
    static PG_INLINE I add_where_above(I x, I y, I sum, I term) {  // sum + term where x > y
        return _mm512_mask_add_epi64(sum, _mm512_cmpgt_epu64_mask(x, y), sum, term);
    }
    static PG_INLINE I centred(I x, I half, I q) {
        return _mm512_mask_sub_epi64(x, _mm512_cmpgt_epu64_mask(x, half), x, q);
    }
};

// Counts the thresholds that are at most u, like CountAll (draw.hpp), but in two steps. First, comparisons with the
// ends of 15 buckets find the bucket of u. Then u is compared with the thresholds of the bucket, which permutations
// pick. Addresses and work are the same for every u.
struct CountByBuckets {
    static PG_INLINE void count(const i64 *u, i64 *counts, const Draw &draw) {
        constexpr size_t VECTORS = 4;
        const __m512i one = _mm512_set1_epi64(1), step = _mm512_set1_epi64((long long)draw.bucket + 1);
        const u64 *const ends = draw.buckets + 16 * draw.bucket;
        __m512i x[VECTORS], bucket[VECTORS], sum[VECTORS];
        for (size_t at = 0; at < DRAW_BLOCK; at += 8 * VECTORS) {
            for (size_t k = 0; k < VECTORS; ++k)
                x[k] = _mm512_loadu_si512(u + at + 8 * k), bucket[k] = _mm512_setzero_si512();
            for (size_t b = 0; b < 15; ++b) {
                const __m512i end = _mm512_set1_epi64((long long)ends[b]);
                for (size_t k = 0; k < VECTORS; ++k)
                    bucket[k] = _mm512_mask_add_epi64(bucket[k], _mm512_cmpge_epu64_mask(x[k], end), bucket[k], one);
            }
            for (size_t k = 0; k < VECTORS; ++k) sum[k] = _mm512_mullo_epi64(bucket[k], step);
            for (size_t i = 0; i < draw.bucket; ++i) {
                const __m512i low = _mm512_loadu_si512(draw.buckets + 16 * i);
                const __m512i high = _mm512_loadu_si512(draw.buckets + 16 * i + 8);
                for (size_t k = 0; k < VECTORS; ++k) {
                    const __m512i threshold = _mm512_permutex2var_epi64(low, bucket[k], high);
                    sum[k] = _mm512_mask_add_epi64(sum[k], _mm512_cmpge_epu64_mask(x[k], threshold), sum[k], one);
                }
            }
            for (size_t k = 0; k < VECTORS; ++k) _mm512_storeu_si512(counts + at + 8 * k, sum[k]);
        }
    }
};

}  // namespace
}  // namespace pg
