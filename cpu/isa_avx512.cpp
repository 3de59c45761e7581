// AVX-512 with IFMA: the lanes of AVX-512, and 8 lanes that multiply with the 52-bit multiplier.
#include "kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512IFMA__)
#include "lanes_avx512.hpp"
#include "make_isa.hpp"

namespace pg {
namespace {

// Lanes for q < 2^50. Lazy values stay below 2^52. The multiplier reads only the low 52 bits of a lane, so the bits
// above them may be anything. Quotients have the scale 2^52.
struct Lanes52 : Lanes64Base {
    struct Twiddle {
        V w, shoup;
    };
    const V minus_q, mask, inverse, barrett;
    const __m128i high_shift;
    explicit Lanes52(const Modulus &m)
        : Lanes64Base(m),
          minus_q(splat((1ull << 52) - m.q)),
          mask(splat((1ull << 52) - 1)),
          inverse(splat((1ull << 52) / m.q)),
          barrett(splat(m.barrett52)),
          high_shift(_mm_cvtsi32_si128(54 - (int)m.bits)) {}

    static PG_INLINE Twiddle broadcast(T w, T shoup) { return {splat(w), _mm512_srli_epi64(splat(shoup), 12)}; }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return {repeated<COUNT>(w), _mm512_srli_epi64(repeated<COUNT>(shoup), 12)};
    }
    // x * y - quotient * q, in the low 52 bits
    PG_INLINE V remainder(V x, V y, V quotient) const {
        return _mm512_madd52lo_epu64(_mm512_madd52lo_epu64(zero(), x, y), quotient, minus_q);
    }
    PG_INLINE V mul_lazy(V x, const Twiddle &t) const {
        return remainder(x, t.w, _mm512_madd52hi_epu64(zero(), x, t.shoup));
    }
    PG_INLINE V relax(V x) const {  // for any x
        return _mm512_madd52lo_epu64(x, _mm512_madd52hi_epu64(zero(), x, inverse), minus_q);
    }
    PG_INLINE V masked(V x) const { return _mm512_and_si512(x, mask); }
    PG_INLINE V mul(V x, V y) const {
        V low = _mm512_madd52lo_epu64(zero(), x, y), high = _mm512_madd52hi_epu64(zero(), x, y);
        V t = _mm512_or_si512(_mm512_sll_epi64(high, high_shift), _mm512_srl_epi64(low, low_shift));
        V r = masked(remainder(x, y, _mm512_madd52hi_epu64(zero(), t, barrett)));
        return reduce_once(reduce_once(r, q2), q);
    }
};

// Lanes52 for combine_halves.
struct Lanes52Sums : Lanes52 {
    const Twiddle power;
    explicit Lanes52Sums(const Modulus &m) : Lanes52(m), power(twiddle(m, reduce(m, 1ull << 52))) {}

    static PG_INLINE Twiddle twiddle(const Modulus &m, T w) { return broadcast(w, shoup_quotient(m, w)); }
    static PG_INLINE V mul_add_low(V z, V x, V y) { return _mm512_madd52lo_epu64(z, x, y); }
    static PG_INLINE V mul_add_high(V z, V x, V y) { return _mm512_madd52hi_epu64(z, x, y); }
    static PG_INLINE V above52(V x) { return _mm512_srli_epi64(x, 52); }
    // Returns low + 2^52 * high modulo q, in [0, q). `low` may be any number. high + floor(low / 2^52) must be below
    // 2^52.
    PG_INLINE V residue(V low, V high) const {
        const V sum = add(mul_lazy(add(high, above52(low)), power), relax(masked(low)));
        return reduce_once(reduce_once(masked(sum), q2), q);
    }
};

struct Reals52 : Reals {
    using Lanes52 = Lanes52Sums;
    static constexpr bool MULTIPLIER52 = true;
    static const Isa &rest() { return isa_avx512dq; }
    static PG_INLINE I mul_add_low(I z, I x, I y) { return _mm512_madd52lo_epu64(z, x, y); }
    static PG_INLINE I mul_add_high(I z, I x, I y) { return _mm512_madd52hi_epu64(z, x, y); }
};

// The kernels that IFMA makes faster. All others are taken from avx512dq (see `completed`).
struct Avx512 : Lacking {
    static constexpr const char *NAME = "avx512";
    static constexpr Costs COSTS = costs_avx512(0.35);
    using Count = CountByBuckets;
    using Q46 = Rows<Lazy<Lanes52, 64>, ScalarLanes<u64>, Sums::halves, Lanes52Sums>;
    using Q50 = Rows<Lazy<Lanes52>, ScalarLanes<u64>, Sums::halves, Lanes52Sums>;
    using Real = Reals52;
};

}  // namespace

const Isa isa_avx512 = make_isa<Avx512>();

}  // namespace pg
#else
namespace pg {
const Isa isa_avx512 = without_kernels("avx512");
}
#endif
