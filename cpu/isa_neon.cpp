// NEON: 4 lanes of 32 bits, 2 lanes of 64 bits. Only rows of residues, and products of bytes, have kernels here.
#include "make_isa.hpp"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>

namespace pg {
namespace {

// These functions read the bits of a vector as lanes of 32 or of 64 bits.
PG_INLINE uint32x4_t words32(uint64x2_t x) { return vreinterpretq_u32_u64(x); }
PG_INLINE uint64x2_t words64(uint32x4_t x) { return vreinterpretq_u64_u32(x); }

// 64-bit unsigned x >= bound ? x - bound : x
PG_INLINE uint64x2_t reduce_once_64(uint64x2_t x, uint64x2_t bound) {
    return vsubq_u64(x, vandq_u64(vcgeq_u64(x, bound), bound));
}

struct Lanes32 {
    using T = u32;
    using V = uint32x4_t;
    struct Twiddle {
        V w, shoup;
    };
    static constexpr size_t WIDTH = 4;
    static constexpr bool PERMUTES = false, SHOUP = true;
    const V q, q2, barrett;
    const uint64x2_t q2_wide;  // 2 * q in lanes of 64 bits
    const int64x2_t shift;     // negative, because it shifts to the right
    explicit Lanes32(const Modulus &m)
        : q(splat((u32)m.q)),
          q2(splat((u32)(2 * m.q))),
          barrett(splat((u32)m.barrett32)),
          q2_wide(vdupq_n_u64(2 * m.q)),
          shift(vdupq_n_s64(1 - (int)m.bits)) {}

    static PG_INLINE V load(const T *x) { return vld1q_u32(x); }
    static PG_INLINE void store(T *x, V v) { vst1q_u32(x, v); }
    static PG_INLINE V splat(T x) { return vdupq_n_u32(x); }
    static PG_INLINE V zero() { return splat(0); }
    static PG_INLINE V add(V x, V y) { return vaddq_u32(x, y); }
    static PG_INLINE V sub(V x, V y) { return vsubq_u32(x, y); }
    static PG_INLINE V reduce_once(V x, V bound) { return vminq_u32(x, sub(x, bound)); }
    PG_INLINE V add_mod(V x, V y) const { return reduce_once(add(x, y), q); }
    PG_INLINE V sub_mod(V x, V y) const {
        V d = sub(x, y);
        return vminq_u32(d, add(d, q));
    }

    static PG_INLINE Twiddle broadcast(T w, T shoup) { return {splat(w), splat(shoup)}; }
    template <size_t COUNT> static PG_INLINE V expand(const T *x) {
        if constexpr (COUNT == 4) return load(x);
        else {
            const V two = vcombine_u32(vld1_u32(x), vdup_n_u32(0));
            return vzip1q_u32(two, two);
        }
    }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return {expand<COUNT>(w), expand<COUNT>(shoup)};
    }
    static PG_INLINE V masked(V x) { return x; }
    // Products x * y in the first two lanes (mul_first), and in the last two lanes (mul_last).
    static PG_INLINE uint64x2_t mul_first(V x, V y) { return vmull_u32(vget_low_u32(x), vget_low_u32(y)); }
    static PG_INLINE uint64x2_t mul_last(V x, V y) { return vmull_high_u32(x, y); }
    static PG_INLINE V low_words(uint64x2_t first, uint64x2_t last) {
        return vuzp1q_u32(words32(first), words32(last));
    }
    static PG_INLINE V high_words(uint64x2_t first, uint64x2_t last) {
        return vuzp2q_u32(words32(first), words32(last));
    }
    static PG_INLINE V high_product(V x, V y) { return high_words(mul_first(x, y), mul_last(x, y)); }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const {
        return vmlsq_u32(vmulq_u32(x, t.w), high_product(x, t.shoup), q);
    }
    PG_INLINE V mul(V x, V y) const {
        uint64x2_t first = mul_first(x, y), last = mul_last(x, y);
        V quotient = high_product(low_words(vshlq_u64(first, shift), vshlq_u64(last, shift)), barrett);
        first = reduce_once_64(vsubq_u64(first, mul_first(quotient, q)), q2_wide);
        last = reduce_once_64(vsubq_u64(last, mul_last(quotient, q)), q2_wide);
        return reduce_once(low_words(first, last), q);
    }
    template <size_t G, bool> static PG_INLINE void exchange(V &u, V &v) {
        V a = u, b = v;
        if constexpr (G == 2) {
            u = words32(vzip1q_u64(words64(a), words64(b))), v = words32(vzip2q_u64(words64(a), words64(b)));
        } else {
            u = vtrn1q_u32(a, b), v = vtrn2q_u32(a, b);
        }
    }
};

// Lanes for q < 2^60.
struct Lanes64 {
    using T = u64;
    using V = uint64x2_t;
    struct Factor {  // the low and the high 32 bits of each lane, and the lanes with their halves swapped
        uint32x2_t low, high;
        uint32x4_t swapped;
    };
    struct Twiddle {
        Factor w, shoup;
    };
    static constexpr size_t WIDTH = 2;
    static constexpr bool PERMUTES = false, SHOUP = true;
    const V q, q2;
    const Factor by_q, barrett;
    const int64x2_t low_shift, high_shift;  // negative, because it shifts to the right
    explicit Lanes64(const Modulus &m)
        : q(splat(m.q)),
          q2(splat(2 * m.q)),
          by_q(factor(q)),
          barrett(factor(splat(m.barrett64))),
          low_shift(vdupq_n_s64(2 - (int)m.bits)),
          high_shift(vdupq_n_s64(66 - (int)m.bits)) {}

    static PG_INLINE V load(const T *x) { return vld1q_u64(x); }
    static PG_INLINE void store(T *x, V v) { vst1q_u64(x, v); }
    static PG_INLINE V splat(T x) { return vdupq_n_u64(x); }
    static PG_INLINE V zero() { return splat(0); }
    static PG_INLINE V add(V x, V y) { return vaddq_u64(x, y); }
    static PG_INLINE V sub(V x, V y) { return vsubq_u64(x, y); }
    static PG_INLINE V reduce_once(V x, V bound) { return reduce_once_64(x, bound); }
    PG_INLINE V add_mod(V x, V y) const { return reduce_once(add(x, y), q); }
    PG_INLINE V sub_mod(V x, V y) const { return add(sub(x, y), vandq_u64(vcltq_u64(x, y), q)); }

    static PG_INLINE uint32x2_t lower(V x) { return vmovn_u64(x); }
    static PG_INLINE uint32x2_t upper(V x) { return vshrn_n_u64(x, 32); }
    static PG_INLINE Factor factor(V y) { return {lower(y), upper(y), vrev64q_u32(words32(y))}; }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return {factor(splat(w)), factor(splat(shoup))}; }
    template <size_t> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return {factor(load(w)), factor(load(shoup))};
    }
    static PG_INLINE V add_upper(V x, V y) { return vsraq_n_u64(x, y, 32); }
    static PG_INLINE V high_product(V x, const Factor &y) {
        V middle = add_upper(vmull_u32(upper(x), y.low), vmull_u32(lower(x), y.low));
        V second = vmlal_u32(vandq_u64(middle, splat(0xffffffffu)), lower(x), y.high);
        return add_upper(add_upper(vmull_u32(upper(x), y.high), middle), second);
    }
    // Returns the high word of the product x * y, or up to 2 less.
    static PG_INLINE V rough_high_product(V x, const Factor &y) {
        return add_upper(add_upper(vmull_u32(upper(x), y.high), vmull_u32(upper(x), y.low)),
                         vmull_u32(lower(x), y.high));
    }
    // cross: the two products of a low half and a high half, for each lane
    static PG_INLINE V low_product(uint32x4_t cross, V x, const Factor &y) {
        return vmlal_u32(vshlq_n_u64(vpaddlq_u32(cross), 32), lower(x), y.low);
    }
    static PG_INLINE V low_product(V x, const Factor &y) { return low_product(vmulq_u32(words32(x), y.swapped), x, y); }
    PG_INLINE V remainder(V x, const Factor &y, V quotient) const {  // x * y - quotient * q
        uint32x4_t cross = vmlsq_u32(vmulq_u32(words32(x), y.swapped), words32(quotient), by_q.swapped);
        return vmlsl_u32(low_product(cross, x, y), lower(quotient), by_q.low);
    }
    static PG_INLINE V masked(V x) { return x; }
    PG_INLINE V mul_rough(V x, const Twiddle &t) const { return remainder(x, t.w, rough_high_product(x, t.shoup)); }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const { return remainder(x, t.w, high_product(x, t.shoup)); }
    PG_INLINE V mul(V x, V y) const {
        const Factor by_y = factor(y);
        V low = low_product(x, by_y), high = high_product(x, by_y);
        V t = vorrq_u64(vshlq_u64(high, high_shift), vshlq_u64(low, low_shift));
        V r = sub(low, low_product(high_product(t, barrett), by_q));
        return reduce_once(reduce_once(r, q2), q);
    }
    template <size_t, bool> static PG_INLINE void exchange(V &u, V &v) {
        V a = u, b = v;
        u = vzip1q_u64(a, b), v = vzip2q_u64(a, b);
    }
};

// Bytes and digits are widened to 16 bits: each byte once for all vectors of a tile, and each digit once for all rows.
struct ByteLanes {
    using V = uint8x16_t;  // 16 bytes, or the bits of 4 sums of 32 bits
    static constexpr size_t WIDTH = 16, ROWS = 4;
    static constexpr unsigned DIGIT_BITS = 8;
    static PG_INLINE V splat(u64 x) { return vreinterpretq_u8_u64(vdupq_n_u64(x)); }
    static PG_INLINE V load(const unsigned char *x) { return vld1q_u8(x); }
    static PG_INLINE V load_first(const unsigned char *x, size_t count) {
        unsigned char bytes[WIDTH] = {};
        std::memcpy(bytes, x, count);
        return load(bytes);
    }
    static PG_INLINE V flip(V x, V pattern) { return veorq_u8(x, pattern); }
    static PG_INLINE V add_products(V sum, V bytes, V digits) {
        const int8x16_t y = vreinterpretq_s8_u8(digits);
        const int16x8_t x0 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))), y0 = vmovl_s8(vget_low_s8(y));
        const int16x8_t x1 = vreinterpretq_s16_u16(vmovl_high_u8(bytes)), y1 = vmovl_high_s8(y);
        int32x4_t total = vreinterpretq_s32_u8(sum);
        total = vmlal_high_s16(vmlal_s16(total, vget_low_s16(x0), vget_low_s16(y0)), x0, y0);
        total = vmlal_high_s16(vmlal_s16(total, vget_low_s16(x1), vget_low_s16(y1)), x1, y1);
        return vreinterpretq_u8_s32(total);
    }
    static PG_INLINE void sum(const V *x, int *y) {
        int32x4_t z[4];
        for (int i = 0; i < 4; ++i) z[i] = vreinterpretq_s32_u8(x[i]);
        vst1q_s32(y, vpaddq_s32(vpaddq_s32(z[0], z[1]), vpaddq_s32(z[2], z[3])));
    }
};

struct Neon : Lacking {
    static constexpr const char *NAME = "neon";
    static constexpr Costs COSTS = COSTS_PORTABLE;  // not measured
    using Q30 = Rows<Lazy<Lanes32>, ScalarLanes<u32>>;
    using Q31 = Rows<Tight<Lanes32>, ScalarLanes<u32>>;
    using Q60 = Rows<Lazy<Lanes64, 16>, ScalarLanes<u64>>;
    using Bytes = ByteLanes;
};

}  // namespace

const Isa isa_neon = make_isa<Neon>();

}  // namespace pg
#else
namespace pg {
const Isa isa_neon = without_kernels("neon");
}
#endif
