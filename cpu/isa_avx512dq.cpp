// AVX-512 without IFMA: the lanes of AVX-512, and 8 integers in doubles.
#include "kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "lanes_avx512.hpp"

namespace pg {
namespace {

// q < 2^50: pointwise on integers, transforms on doubles, in the bits of a vector.
struct LanesFloat64 : Lanes64 {
    struct Twiddle {
        V w, ratio;  // w, |w| <= q/2 in a transform, and w / q
    };
    static constexpr bool SHOUP = false;
    static constexpr double EXPONENT = 4503599627370496;  // 2^52
    const __m512d modulus, inverse, exponent_q;
    explicit LanesFloat64(const Modulus &m)
        : Lanes64(m),
          modulus(_mm512_set1_pd((double)m.q)),
          inverse(_mm512_set1_pd(1 / (double)m.q)),
          exponent_q(_mm512_set1_pd(EXPONENT + (double)m.q)) {}

    static PG_INLINE __m512d value(V x) { return _mm512_castsi512_pd(x); }
    static PG_INLINE V bits(__m512d x) { return _mm512_castpd_si512(x); }
    static PG_INLINE V sum(V x, V y) { return bits(_mm512_add_pd(value(x), value(y))); }
    static PG_INLINE V difference(V x, V y) { return bits(_mm512_sub_pd(value(x), value(y))); }
    // x < 2^52 are the low bits of 2^52 + x
    static PG_INLINE V number(V x) {
        const __m512d exponent = _mm512_set1_pd(EXPONENT);
        return bits(_mm512_sub_pd(value(_mm512_or_si512(x, bits(exponent))), exponent));
    }
    PG_INLINE V residue(V x) const {  // of x in (-q, q), not -0
        const __m512d exponent = _mm512_set1_pd(EXPONENT);
        return _mm512_xor_si512(
            bits(_mm512_add_pd(value(x), _mm512_mask_mov_pd(exponent, _mm512_movepi64_mask(x), exponent_q))),
            bits(exponent));
    }
    // the integer nearest to x y
    static PG_INLINE __m512d rounded_product(__m512d x, __m512d y) {
        const __m512d rounding = _mm512_set1_pd(ROUNDING);
        return _mm512_sub_pd(_mm512_fmadd_pd(x, y, rounding), rounding);
    }
    PG_INLINE V nearest(V x) const {
        return bits(_mm512_fnmadd_pd(rounded_product(value(x), inverse), modulus, value(x)));
    }
    PG_INLINE V mul_nearest(V x, const Twiddle &t) const {
        const __m512d y = value(x), w = value(t.w), high = _mm512_mul_pd(y, w), low = _mm512_fmsub_pd(y, w, high);
        return bits(_mm512_add_pd(_mm512_fnmadd_pd(rounded_product(y, value(t.ratio)), modulus, high), low));
    }
    PG_INLINE V mul(V x, V y) const {
        const V w = number(y);
        return residue(mul_nearest(number(x), {w, bits(_mm512_mul_pd(value(w), inverse))}));
    }

    static PG_INLINE Twiddle broadcast(double w, double ratio) {
        return {bits(_mm512_set1_pd(w)), bits(_mm512_set1_pd(ratio))};
    }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const double *w, const double *ratio) {
        return {repeated<COUNT>((const T *)w), repeated<COUNT>((const T *)ratio)};
    }
};

}  // namespace

const Isa isa_avx512dq{
    "avx512dq",
    row_kernels<Lazy<Lanes32>, ScalarLanes<u32>>(),
    row_kernels<Tight<Lanes32>, ScalarLanes<u32>>(),
    strict_kernels<StrictLanes32, StrictLanes<u32>>(),
    {},
    row_kernels<Float64<LanesFloat64>, ScalarLanes<u64>, Sums::lazy, Lanes64>(),
    row_kernels<Lazy<Lanes64, 16>, ScalarLanes<u64>>(),
    row_kernels<Lazy<Lanes64>, ScalarLanes<u64>>(),
    strict_kernels<StrictLanes64, StrictLanes<u64>>(),
    fft_kernels<PairLanes<Pairs32>>(),
    fft_kernels<PairLanes<Pairs64>>(),
    product_kernels<u32, Reals>(),
    product_kernels<u64, Reals>(),
    gemm_kernels<u32, Reals>(),
    gemm_kernels<u64, Reals>(),
    estimate_kernels<u32>(),
    estimate_kernels<u64>(),
    sampling_kernels<Reals, CountByBuckets>(),
    integer_kernels<Reals, ScalarReals>(),
};

}  // namespace pg
#else
namespace pg {
const Isa isa_avx512dq{};
}
#endif
