// AVX2 with FMA: 8 lanes of 32 bits, 4 lanes of 64 bits.
#include "make_isa.hpp"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace pg {
namespace {

PG_INLINE __m256i load256(const void *x) { return _mm256_loadu_si256((const __m256i *)x); }
PG_INLINE void store256(void *x, __m256i v) { _mm256_storeu_si256((__m256i *)x, v); }

// 64-bit unsigned x >= bound ? x - bound : x
PG_INLINE __m256i reduce_once_64(__m256i x, __m256i bound) {
    const __m256i sign = _mm256_set1_epi64x((long long)(1ull << 63));
    __m256i below = _mm256_cmpgt_epi64(_mm256_xor_si256(bound, sign), _mm256_xor_si256(x, sign));
    return _mm256_sub_epi64(x, _mm256_andnot_si256(below, bound));
}

struct Lanes32 {
    using T = u32;
    using V = __m256i;
    struct Twiddle {
        V w, shoup, shoup_odd;
    };
    static constexpr size_t WIDTH = 8;
    static constexpr bool PERMUTES = false, SHOUP = true;
    const V q, q2, barrett;
    const __m128i shift;
    explicit Lanes32(const Modulus &m)
        : q(_mm256_set1_epi32((int)m.q)),
          q2(_mm256_set1_epi32((int)(2 * m.q))),
          barrett(_mm256_set1_epi64x((long long)m.barrett32)),
          shift(_mm_cvtsi32_si128((int)m.bits - 1)) {}

    static PG_INLINE V load(const T *x) { return load256(x); }
    static PG_INLINE void store(T *x, V v) { store256(x, v); }
    static PG_INLINE V splat(T x) { return _mm256_set1_epi32((int)x); }
    static PG_INLINE V zero() { return _mm256_setzero_si256(); }
    static PG_INLINE V add(V x, V y) { return _mm256_add_epi32(x, y); }
    static PG_INLINE V sub(V x, V y) { return _mm256_sub_epi32(x, y); }
    static PG_INLINE V reduce_once(V x, V bound) { return _mm256_min_epu32(x, _mm256_sub_epi32(x, bound)); }
    PG_INLINE V add_mod(V x, V y) const { return reduce_once(add(x, y), q); }
    PG_INLINE V sub_mod(V x, V y) const {
        V d = sub(x, y);
        return _mm256_min_epu32(d, add(d, q));
    }

    static PG_INLINE Twiddle twiddle(V w, V shoup) { return {w, shoup, _mm256_srli_epi64(shoup, 32)}; }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return twiddle(splat(w), splat(shoup)); }
    template <size_t COUNT> static PG_INLINE V expand(const T *x) {
        if constexpr (COUNT == 8) return load(x);
        else if constexpr (COUNT == 4)
            return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)x)),
                                               _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        else
            return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)x)),
                                               _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return twiddle(expand<COUNT>(w), expand<COUNT>(shoup));
    }
    static PG_INLINE V masked(V x) { return x; }
    static PG_INLINE V mul_low(V x, V y) { return _mm256_mullo_epi32(x, y); }
    static PG_INLINE V add_where_above(V x, V y, V sum, V term) {  // sum + term where x > y
        const V not_above = _mm256_cmpeq_epi32(_mm256_min_epu32(x, y), x);
        return add(sum, _mm256_andnot_si256(not_above, term));
    }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const {
        V even = _mm256_srli_epi64(_mm256_mul_epu32(x, t.shoup), 32);
        V odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), t.shoup_odd);
        V high = _mm256_blend_epi32(even, odd, 0xaa);
        return sub(mul_low(x, t.w), mul_low(high, q));
    }
    // Returns the products modulo q of the low halves of 64-bit lanes, by Barrett reduction.
    PG_INLINE V mul_even(V x, V y) const {
        V z = _mm256_mul_epu32(x, y);
        V quotient = _mm256_srli_epi64(_mm256_mul_epu32(_mm256_srl_epi64(z, shift), barrett), 32);
        V r = _mm256_sub_epi64(z, _mm256_mul_epu32(quotient, q));
        V one_q = _mm256_srli_epi64(q, 32);
        return reduce_once_64(reduce_once_64(r, _mm256_slli_epi64(one_q, 1)), one_q);
    }
    PG_INLINE V mul(V x, V y) const {
        V odd = mul_even(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
        return _mm256_or_si256(mul_even(x, y), _mm256_slli_epi64(odd, 32));
    }
    template <size_t G, bool> static PG_INLINE void exchange(V &u, V &v) {
        V a = u, b = v;
        if constexpr (G == 4) {
            u = _mm256_permute2x128_si256(a, b, 0x20), v = _mm256_permute2x128_si256(a, b, 0x31);
        } else if constexpr (G == 2) {
            u = _mm256_unpacklo_epi64(a, b), v = _mm256_unpackhi_epi64(a, b);
        } else {
            u = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
            v = _mm256_blend_epi32(_mm256_srli_epi64(a, 32), b, 0xaa);
        }
    }
};

// Lanes for q < 2^62.
struct Lanes64 {
    using T = u64;
    using V = __m256i;
    struct Twiddle {
        V w, w_high, shoup, shoup_high;
    };
    static constexpr size_t WIDTH = 4;
    static constexpr bool PERMUTES = false, SHOUP = true;
    const V q, q2, q_high, barrett;
    const __m128i low_shift, high_shift;
    explicit Lanes64(const Modulus &m)
        : q(splat(m.q)),
          q2(splat(2 * m.q)),
          q_high(splat(m.q >> 32)),
          barrett(splat(m.barrett64)),
          low_shift(_mm_cvtsi32_si128((int)m.bits - 2)),
          high_shift(_mm_cvtsi32_si128(66 - (int)m.bits)) {}

    static PG_INLINE V load(const T *x) { return load256(x); }
    static PG_INLINE void store(T *x, V v) { store256(x, v); }
    static PG_INLINE V splat(T x) { return _mm256_set1_epi64x((long long)x); }
    static PG_INLINE V zero() { return _mm256_setzero_si256(); }
    static PG_INLINE V add(V x, V y) { return _mm256_add_epi64(x, y); }
    static PG_INLINE V sub(V x, V y) { return _mm256_sub_epi64(x, y); }
    static PG_INLINE V upper(V x) { return _mm256_srli_epi64(x, 32); }
    static PG_INLINE V raised(V x) { return _mm256_slli_epi64(x, 32); }
    static PG_INLINE V reduce_once(V x, V bound) { return reduce_once_64(x, bound); }
    PG_INLINE V add_mod(V x, V y) const { return reduce_once(add(x, y), q); }
    PG_INLINE V sub_mod(V x, V y) const {  // operands are below 2^62: a negative difference has its sign bit set
        V d = sub(x, y);
        return add(d, _mm256_and_si256(_mm256_cmpgt_epi64(zero(), d), q));
    }

    static PG_INLINE Twiddle twiddle(V w, V shoup) { return {w, upper(w), shoup, upper(shoup)}; }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return twiddle(splat(w), splat(shoup)); }
    template <size_t COUNT> static PG_INLINE V expand(const T *x) {
        if constexpr (COUNT == 4) return load(x);
        else return _mm256_permute4x64_epi64(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)x)), 0x50);
    }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return twiddle(expand<COUNT>(w), expand<COUNT>(shoup));
    }
    static PG_INLINE V low_product(V x, V x_high, V y, V y_high) {
        V cross = add(_mm256_mul_epu32(x_high, y), _mm256_mul_epu32(x, y_high));
        return add(_mm256_mul_epu32(x, y), _mm256_slli_epi64(cross, 32));
    }
    static PG_INLINE V high_product(V x, V x_high, V y, V y_high) {
        const V mask = splat(0xffffffffu);
        V middle = add(_mm256_mul_epu32(x_high, y), upper(_mm256_mul_epu32(x, y)));
        V second = add(_mm256_mul_epu32(x, y_high), _mm256_and_si256(middle, mask));
        return add(add(_mm256_mul_epu32(x_high, y_high), upper(middle)), upper(second));
    }
    // Returns the high word of the product x * y, or up to 2 less.
    static PG_INLINE V rough_high_product(V x, V x_high, V y, V y_high) {
        return add(add(_mm256_mul_epu32(x_high, y_high), upper(_mm256_mul_epu32(x_high, y))),
                   upper(_mm256_mul_epu32(x, y_high)));
    }
    PG_INLINE V relax(V x) const { return reduce_once(x, q2); }  // needs x < 4q
    static PG_INLINE V masked(V x) { return x; }
    PG_INLINE V mul_rough(V x, const Twiddle &t) const {
        V x_high = upper(x), h = rough_high_product(x, x_high, t.shoup, t.shoup_high);
        return sub(low_product(x, x_high, t.w, t.w_high), low_product(h, upper(h), q, q_high));
    }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const {
        V x_high = upper(x), h = high_product(x, x_high, t.shoup, t.shoup_high);
        return sub(low_product(x, x_high, t.w, t.w_high), low_product(h, upper(h), q, q_high));
    }
    PG_INLINE V mul(V x, V y) const {
        V x_high = upper(x), y_high = upper(y);
        V low = low_product(x, x_high, y, y_high), high = high_product(x, x_high, y, y_high);
        V t = _mm256_or_si256(_mm256_sll_epi64(high, high_shift), _mm256_srl_epi64(low, low_shift));
        V e = high_product(t, upper(t), barrett, upper(barrett));
        V r = sub(low, low_product(e, upper(e), q, q_high));
        return reduce_once(reduce_once(r, q2), q);
    }
    template <size_t G, bool> static PG_INLINE void exchange(V &u, V &v) {
        V a = u, b = v;
        if constexpr (G == 2) u = _mm256_permute2x128_si256(a, b, 0x20), v = _mm256_permute2x128_si256(a, b, 0x31);
        else u = _mm256_unpacklo_epi64(a, b), v = _mm256_unpackhi_epi64(a, b);
    }
};

struct Pairs32 {
    using T = float;
    using V = __m256;
    static constexpr size_t WIDTH = 4;
    static PG_INLINE V load(const T *x) { return _mm256_loadu_ps(x); }
    static PG_INLINE void store(T *x, V v) { _mm256_storeu_ps(x, v); }
    static PG_INLINE V splat(T x) { return _mm256_set1_ps(x); }
    static PG_INLINE V swap(V x) { return _mm256_permute_ps(x, 0xb1); }
    static PG_INLINE V real(V x) { return _mm256_moveldup_ps(x); }
    static PG_INLINE V imag(V x) { return _mm256_movehdup_ps(x); }
    static PG_INLINE V fmaddsub(V x, V y, V z) { return _mm256_fmaddsub_ps(x, y, z); }
    static PG_INLINE V fmsubadd(V x, V y, V z) { return _mm256_fmsubadd_ps(x, y, z); }
    static PG_INLINE V fma(V x, V y, V z) { return _mm256_fmadd_ps(x, y, z); }
    static PG_INLINE V fnma(V x, V y, V z) { return _mm256_fnmadd_ps(x, y, z); }
    static PG_INLINE void transpose(V *v) {
        for (size_t i = 0; i < 4; i += 2) {
            const __m256d a = _mm256_castps_pd(v[i]), b = _mm256_castps_pd(v[i + 1]);
            v[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), v[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
        for (size_t i = 0; i < 2; ++i) {
            const V a = v[i], b = v[i + 2];
            v[i] = _mm256_permute2f128_ps(a, b, 0x20), v[i + 2] = _mm256_permute2f128_ps(a, b, 0x31);
        }
    }
};

struct Pairs64 {
    using T = double;
    using V = __m256d;
    static constexpr size_t WIDTH = 2;
    static PG_INLINE V load(const T *x) { return _mm256_loadu_pd(x); }
    static PG_INLINE void store(T *x, V v) { _mm256_storeu_pd(x, v); }
    static PG_INLINE V splat(T x) { return _mm256_set1_pd(x); }
    static PG_INLINE V swap(V x) { return _mm256_permute_pd(x, 0x5); }
    static PG_INLINE V real(V x) { return _mm256_movedup_pd(x); }
    static PG_INLINE V imag(V x) { return _mm256_permute_pd(x, 0xf); }
    static PG_INLINE V fmaddsub(V x, V y, V z) { return _mm256_fmaddsub_pd(x, y, z); }
    static PG_INLINE V fmsubadd(V x, V y, V z) { return _mm256_fmsubadd_pd(x, y, z); }
    static PG_INLINE V fma(V x, V y, V z) { return _mm256_fmadd_pd(x, y, z); }
    static PG_INLINE V fnma(V x, V y, V z) { return _mm256_fnmadd_pd(x, y, z); }
    static PG_INLINE void transpose(V *v) {
        const V a = v[0], b = v[1];
        v[0] = _mm256_permute2f128_pd(a, b, 0x20), v[1] = _mm256_permute2f128_pd(a, b, 0x31);
    }
};

struct Reals {
    using V = __m256d;
    using I = __m256i;
    using Words = Lanes64;
    static constexpr size_t WIDTH = 4, REGISTERS = 16;
    static constexpr bool FUSED = true, MULTIPLIER52 = false;
    static PG_INLINE V fma(V x, V y, V z) { return _mm256_fmadd_pd(x, y, z); }
    static PG_INLINE V fms(V x, V y, V z) { return _mm256_fmsub_pd(x, y, z); }
    static PG_INLINE V fnma(V x, V y, V z) { return _mm256_fnmadd_pd(x, y, z); }
    static PG_INLINE V load(const double *x) { return _mm256_loadu_pd(x); }
    static PG_INLINE void store(double *x, V v) { _mm256_storeu_pd(x, v); }
    static PG_INLINE V splat(double x) { return _mm256_set1_pd(x); }
    static PG_INLINE V add(V x, V y) { return _mm256_add_pd(x, y); }
    static PG_INLINE V sub(V x, V y) { return _mm256_sub_pd(x, y); }
    static PG_INLINE V mul(V x, V y) { return _mm256_mul_pd(x, y); }
    template <size_t COUNT> static PG_INLINE void expand(const double *x, V &re, V &im) {
        if constexpr (COUNT == 4) {
            V a = load(x), b = load(x + 4);
            re = _mm256_permute4x64_pd(_mm256_unpacklo_pd(a, b), 0xd8);
            im = _mm256_permute4x64_pd(_mm256_unpackhi_pd(a, b), 0xd8);
        } else {
            V a = load(x);
            re = _mm256_movedup_pd(a), im = _mm256_permute_pd(a, 0xf);
        }
    }
    template <size_t G> static PG_INLINE void exchange(V &u, V &v) {
        V a = u, b = v;
        if constexpr (G == 2) u = _mm256_permute2f128_pd(a, b, 0x20), v = _mm256_permute2f128_pd(a, b, 0x31);
        else u = _mm256_unpacklo_pd(a, b), v = _mm256_unpackhi_pd(a, b);
    }

    static PG_INLINE I bits(V x) { return _mm256_castpd_si256(x); }
    static PG_INLINE V value(I x) { return _mm256_castsi256_pd(x); }
    static PG_INLINE I load_words(const u32 *x) { return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)x)); }
    static PG_INLINE I load_words(const u64 *x) { return load256(x); }
    static PG_INLINE void store_words(u32 *x, I v) {
        I low = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
        _mm_storeu_si128((__m128i *)x, _mm256_castsi256_si128(low));
    }
    static PG_INLINE void store_words(u64 *x, I v) { store256(x, v); }
    static PG_INLINE I mul_halves(I x, I y) { return _mm256_mul_epu32(x, y); }
    static PG_INLINE I mul_high(I x, I y, I y_high) { return Words::high_product(x, Words::upper(x), y, y_high); }
    static PG_INLINE I mul_low(I x, I y, I y_high) { return Words::low_product(x, Words::upper(x), y, y_high); }
    static PG_INLINE I where_negative(I x, I y, I other = _mm256_setzero_si256()) {
        return bits(_mm256_blendv_pd(value(other), value(y), value(x)));
    }
    static PG_INLINE I both(I x, I y) { return _mm256_and_si256(x, y); }
    static PG_INLINE I left(I x, unsigned count) { return _mm256_sll_epi64(x, _mm_cvtsi32_si128((int)count)); }
    static PG_INLINE I right(I x, unsigned count) { return _mm256_srl_epi64(x, _mm_cvtsi32_si128((int)count)); }
    static PG_INLINE I right_signed(I x, unsigned count) {  // the logical shift of x + 2^63, minus that of 2^63
        const I sign = _mm256_set1_epi64x((long long)(1ull << 63));
        return _mm256_sub_epi64(right(_mm256_xor_si256(x, sign), count), right(sign, count));
    }
    static PG_INLINE I mul_low(I x, I y) { return Words::low_product(x, Words::upper(x), y, Words::upper(y)); }
    static PG_INLINE I mul_high(I x, I y) { return Words::high_product(x, Words::upper(x), y, Words::upper(y)); }
    static PG_INLINE I add_where_above(I x, I y, I sum, I term) {  // sum + term where x > y
        const I sign = _mm256_set1_epi64x((long long)(1ull << 63));
        const I above = _mm256_cmpgt_epi64(_mm256_xor_si256(x, sign), _mm256_xor_si256(y, sign));
        return _mm256_add_epi64(sum, _mm256_and_si256(above, term));
    }
    static PG_INLINE I centred(I x, I half, I q) {
        const I sign = _mm256_set1_epi64x((long long)(1ull << 63));
        I above = _mm256_cmpgt_epi64(_mm256_xor_si256(x, sign), _mm256_xor_si256(half, sign));
        return _mm256_sub_epi64(x, _mm256_and_si256(above, q));
    }
};

// Digits of 7 bits, because sums of two products must fit 16 bits.
struct ByteLanes {
    using V = __m256i;
    static constexpr size_t WIDTH = 32, ROWS = 2;
    static constexpr unsigned DIGIT_BITS = 7;
    static PG_INLINE V splat(u64 x) { return _mm256_set1_epi64x((long long)x); }
    static PG_INLINE V load(const unsigned char *x) { return load256(x); }
    static PG_INLINE V load_first(const unsigned char *x, size_t count) {
        unsigned char bytes[WIDTH] = {};
        std::memcpy(bytes, x, count);
        return load256(bytes);
    }
    static PG_INLINE V flip(V x, V pattern) { return _mm256_xor_si256(x, pattern); }
    static PG_INLINE V add_products(V sum, V bytes, V digits) {
        const V pairs = _mm256_maddubs_epi16(bytes, digits);
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static PG_INLINE void sum(const V *x, int *y) {
        const V both = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
        _mm_storeu_si128((__m128i *)y, _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
    }
};

struct Avx2 : Vectors<Lanes32, Lanes64, Reals> {
    static constexpr const char *NAME = "avx2";
    static constexpr Costs COSTS{1.7, 1.0, {0.12, 0.4, 0.27, 0.76, 0.71}, {0.55, 1.7, 1.2, 2.9, 1.2}, 16};
    using Floats = Pairs32;
    using Doubles = Pairs64;
    using Count = CountAll;
    using Bytes = ByteLanes;
};

}  // namespace

const Isa isa_avx2 = make_isa<Avx2>();

}  // namespace pg
#else
namespace pg {
const Isa isa_avx2 = without_kernels("avx2");
}
#endif
