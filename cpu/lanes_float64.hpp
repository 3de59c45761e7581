// The lanes of Float64 (ntt.hpp): integers held in doubles; the bits of the doubles are stored in vectors of integers.
// These lanes are built on Reals (fft_product.hpp).
#pragma once
#include "fft_product.hpp"

namespace pg {
namespace {

// Lanes for q < 2^50: pointwise operations work on integers, transforms on doubles.
template <class R> struct LanesFloat64 : R::Words {
    using Words = typename R::Words;
    using Real = R;
    using typename Words::T;
    using typename Words::V;
    using Double = typename R::V;
    struct Twiddle {
        V w, ratio;  // w (with |w| <= q/2 in a transform), and w / q
    };
    static constexpr bool SHOUP = false;
    static constexpr double EXPONENT = 4503599627370496;  // 2^52
    const Double modulus, inverse, exponent_q;
    explicit LanesFloat64(const Modulus &m)
        : Words(m),
          modulus(R::splat((double)m.q)),
          inverse(R::splat(1 / (double)m.q)),
          exponent_q(R::splat(EXPONENT + (double)m.q)) {}

    static PG_INLINE V exponent() { return R::bits(R::splat(EXPONENT)); }
    static PG_INLINE V sum(V x, V y) { return R::bits(R::add(R::value(x), R::value(y))); }
    static PG_INLINE V difference(V x, V y) { return R::bits(R::sub(R::value(x), R::value(y))); }
    // Returns x < 2^52 as a double: the low bits of the double 2^52 + x are x.
    static PG_INLINE V number(V x) { return difference(Words::add(x, exponent()), exponent()); }
    PG_INLINE V residue(V x) const {  // needs x in (-q, q), and not -0
        return Words::sub(sum(x, R::where_negative(x, R::bits(exponent_q), exponent())), exponent());
    }
    // Returns the integer nearest to x * y.
    static PG_INLINE Double rounded_product(Double x, Double y) {
        const Double rounding = R::splat(ROUNDING);
        return R::sub(R::fma(x, y, rounding), rounding);
    }
    PG_INLINE V nearest(V x) const {
        return R::bits(R::fnma(rounded_product(R::value(x), inverse), modulus, R::value(x)));
    }
    PG_INLINE V mul_nearest(V x, const Twiddle &t) const {
        const Double y = R::value(x), w = R::value(t.w), high = R::mul(y, w), low = R::fms(y, w, high);
        return R::bits(R::add(R::fnma(rounded_product(y, R::value(t.ratio)), modulus, high), low));
    }
    PG_INLINE V mul(V x, V y) const {
        const V w = number(y);
        return residue(mul_nearest(number(x), {w, R::bits(R::mul(R::value(w), inverse))}));
    }

    // Sums of products. centred_word: x - 2^49 as a double, for x < 2^50. add_product: adds u * w to high + low. `high`
    // is a multiple of 2^50; `low` is the rest.
    static constexpr double MIDDLE = 562949953421312;                   // 2^49
    static constexpr double ABOVE = 7605903601369376408980219232256.0;  // 1.5 * 2^102: sums are multiples of 2^50
    static PG_INLINE Double centred_word(V x) {
        return R::sub(R::value(Words::add(x, exponent())), R::splat(EXPONENT + MIDDLE));
    }
    static PG_INLINE void add_product(Double &high, Double &low, Double u, Double w) {
        const Double sum = R::fma(u, w, high), part = R::sub(sum, high);
        low = R::add(low, R::fms(u, w, part)), high = sum;
    }
    // Returns high + low mod q, in [-q, q].
    PG_INLINE V settled(Double high, Double low) const {
        const V reduced = nearest(R::bits(R::sub(high, R::splat(ABOVE))));
        return nearest(R::bits(R::add(R::value(reduced), low)));
    }

    static PG_INLINE Twiddle broadcast(double w, double ratio) {
        return {R::bits(R::splat(w)), R::bits(R::splat(ratio))};
    }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const double *w, const double *ratio) {
        const auto both = Words::template expand<COUNT>((const T *)w, (const T *)ratio);
        return {both.w, both.shoup};
    }
};

}  // namespace
}  // namespace pg
