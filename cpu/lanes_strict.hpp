// Lanes of Strict (ntt.hpp), for moduli that may fill a whole lane: values are canonical after every operation. These
// lanes are built on Reals (fft_product.hpp).
#pragma once
#include "fft_product.hpp"

namespace pg {
namespace {

// Returns 1 / q modulo 2^64 for odd q, by Newton's iteration.
constexpr u64 inverse_of_odd(u64 q) {
    u64 x = q;  // correct in the low three bits; each step doubles the number of correct bits
    for (int i = 0; i < 5; ++i) x *= 2 - q * x;
    return x;
}

// Multiplies lane by lane; used if q is even.
template <class L> typename L::V mul_each(const Modulus &m, typename L::V x, typename L::V y) {
    alignas(64) typename L::T a[L::WIDTH], b[L::WIDTH];
    L::store(a, x), L::store(b, y);
    for (size_t i = 0; i < L::WIDTH; ++i) a[i] = (typename L::T)mul_mod(m, a[i], b[i]);
    return L::load(a);
}

// The product x * y in two words.
template <class R> struct WholeProduct {
    typename R::I low, high;
};
template <class R> PG_INLINE WholeProduct<R> whole_product(typename R::I x, typename R::I y, typename R::I y_high) {
    using Words = typename R::Words;
    const auto mask = Words::splat(0xffffffff), x_high = Words::upper(x), first = R::mul_halves(x, y);
    const auto middle = Words::add(R::mul_halves(x_high, y), Words::upper(first));
    const auto second = Words::add(R::mul_halves(x, y_high), R::both(middle, mask));
    const auto third = Words::add(R::mul_halves(x_high, y_high), Words::upper(middle));
    return {Words::add(Words::raised(second), R::both(first, mask)), Words::add(third, Words::upper(second))};
}

// Any q up to 2^64. Modulo an odd q, products are those of Montgomery. The constants of a twiddle w follow from its
// Shoup quotient w', since w * 2^64 = w' * q + (w * 2^64 mod q) (docs/math.md, "Lazy ranges", on Strict).
template <class R> struct StrictLanes64 : R::Words {
    using Words = typename R::Words;
    using typename Words::T;
    using typename Words::V;
    using Words::q;
    struct Twiddle {
        V w, w_high, minus_shoup, minus_shoup_high;  // for a twiddle t: t * 2^64 mod q; minus the Shoup quotient of t
    };
    static constexpr bool SHOUP = false;
    const Modulus &m;
    const V q_high, inverse;  // inverse: 1 / q mod 2^64
    const Twiddle radix;      // 2^64 mod q
    explicit StrictLanes64(const Modulus &modulus)
        : Words(modulus),
          m(modulus),
          q_high(Words::upper(q)),
          inverse(Words::splat(inverse_of_odd(modulus.q))),
          radix(power_of_radix()) {}

    PG_INLINE V add_mod(V x, V y) const { return sub_mod(x, Words::sub(q, y)); }
    PG_INLINE V sub_mod(V x, V y) const { return R::add_where_above(y, x, Words::sub(x, y), q); }

    PG_INLINE Twiddle twiddle(V shoup) const {
        const V minus = Words::sub(Words::zero(), shoup), w = R::mul_low(minus, q, q_high);
        return {w, Words::upper(w), minus, Words::upper(minus)};
    }
    PG_INLINE Twiddle broadcast(T, T shoup) const { return twiddle(Words::splat(shoup)); }
    template <size_t COUNT> PG_INLINE Twiddle expand(const T *w, const T *shoup) const {
        return twiddle(Words::template expand<COUNT>(w, shoup).shoup);
    }
    // Returns the difference, modulo q, of the high words of two products that have the same low word.
    PG_INLINE V difference(V high, V low_times_inverse) const {
        return sub_mod(high, R::mul_high(low_times_inverse, q, q_high));
    }
    PG_INLINE V mul(V x, const Twiddle &t) const {
        return difference(R::mul_high(x, t.w, t.w_high), R::mul_low(x, t.minus_shoup, t.minus_shoup_high));
    }
    PG_INLINE V mul(V x, V y) const {
        if (m.q == 0) return R::mul_low(x, y);
        if (m.q % 2 == 0) return mul_each<Words>(m, x, y);
        const auto z = whole_product<R>(x, y, Words::upper(y));
        return mul(difference(z.high, R::mul_low(z.low, inverse)), radix);
    }

  private:
    Twiddle power_of_radix() const { return twiddle(Words::splat(m.q % 2 ? shoup_quotient(m, reduce(m, 1, 0)) : 0)); }
};

// The prime 2^64 - 2^32 + 1: 2^64 = 2^32 - 1 and 2^96 = -1 modulo q.
template <class R> struct GoldilocksLanes : R::Words {
    using Words = typename R::Words;
    using typename Words::T;
    using typename Words::V;
    struct Twiddle {
        V w, w_high;
    };
    static constexpr bool SHOUP = false;
    static constexpr T MINUS_Q = 0xffffffff;  // modulo 2^64
    using Words::Words;

    static PG_INLINE Twiddle twiddle(V w) { return {w, Words::upper(w)}; }
    static PG_INLINE Twiddle broadcast(T w, T) { return twiddle(Words::splat(w)); }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        return twiddle(Words::template expand<COUNT>(w, shoup).w);
    }
    // x - y modulo q. Needs y - x <= q.
    static PG_INLINE V sub_mod(V x, V y) {
        return R::add_where_above(y, x, Words::sub(x, y), Words::splat(GOLDILOCKS));
    }
    static PG_INLINE V add_mod(V x, V y) { return sub_mod(x, Words::sub(Words::splat(GOLDILOCKS), y)); }

    static PG_INLINE V mul(V x, const Twiddle &t) {
        const auto z = whole_product<R>(x, t.w, t.w_high);
        return reduce(z.low, z.high);
    }
    static PG_INLINE V mul(V x, V y) { return mul(x, twiddle(y)); }

  private:
    // low + 2^64 * high is congruent to low - floor(high / 2^32) + (high mod 2^32) * (2^32 - 1). The difference is
    // above -2^32, and the sum at most 2^65 - 2^33, so that neither correction wraps again (docs/math.md, "Lazy
    // ranges", on Goldilocks).
    static PG_INLINE V reduce(V low, V high) {
        const V minus_q = Words::splat(MINUS_Q), difference = sub_mod(low, Words::upper(high));
        const V term = R::mul_halves(high, minus_q), sum = Words::add(difference, term);
        const V r = R::add_where_above(term, sum, sum, minus_q);
        return R::add_where_above(r, Words::splat(GOLDILOCKS - 1), r, minus_q);
    }
};

// Any q up to 2^32. Products are computed in lanes of 64 bits: first those of the residues in even places, then those
// in odd places. L: lanes of 32 bits.
template <class L, class R> struct StrictLanes32 : L {
    using Words = typename R::Words;
    using L::q;
    using typename L::T;
    using typename L::V;
    struct Twiddle {
        V w, shoup, w_odd, shoup_odd;
    };
    static constexpr bool SHOUP = false;
    const Modulus &m;
    const V q_wide, inverse;  // q in lanes of 64 bits, 1 / q mod 2^32
    const Twiddle radix;      // 2^32 mod q
    explicit StrictLanes32(const Modulus &modulus)
        : L(modulus),
          m(modulus),
          q_wide(Words::splat(modulus.q)),
          inverse(L::splat((u32)inverse_of_odd(modulus.q))),
          radix(power_of_radix()) {}

    PG_INLINE V add_mod(V x, V y) const { return sub_mod(x, L::sub(q, y)); }
    PG_INLINE V sub_mod(V x, V y) const { return L::add_where_above(y, x, L::sub(x, y), q); }

    static PG_INLINE V odd(V x) { return Words::upper(x); }
    static PG_INLINE V join(V even, V odd) { return Words::add(even, Words::raised(odd)); }  // both below 2^32
    static PG_INLINE Twiddle twiddle(V w, V shoup) { return {w, shoup, odd(w), odd(shoup)}; }
    static PG_INLINE Twiddle broadcast(T w, T shoup) { return twiddle(L::splat(w), L::splat(shoup)); }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *shoup) {
        const auto t = L::template expand<COUNT>(w, shoup);
        return twiddle(t.w, t.shoup);
    }
    PG_INLINE V mul_even(V x, V w, V shoup) const {
        const V h = odd(R::mul_halves(x, shoup));
        return Words::reduce_once(Words::sub(R::mul_halves(x, w), R::mul_halves(h, q_wide)), q_wide);
    }
    PG_INLINE V mul(V x, const Twiddle &t) const {
        return join(mul_even(x, t.w, t.shoup), mul_even(odd(x), t.w_odd, t.shoup_odd));
    }
    PG_INLINE V montgomery(V x, V y) const {  // for residues in even places: x * y / 2^32 mod q
        const V z = R::mul_halves(x, y), h = R::mul_halves(R::mul_halves(z, inverse), q_wide);
        return R::add_where_above(odd(h), odd(z), Words::sub(odd(z), odd(h)), q_wide);
    }
    PG_INLINE V mul(V x, V y) const {
        if (m.q == 1ull << 32) return L::mul_low(x, y);
        if (m.q % 2 == 0) return mul_each<L>(m, x, y);
        return mul(join(montgomery(x, y), montgomery(odd(x), odd(y))), radix);
    }

  private:
    Twiddle power_of_radix() const {
        const u64 w = reduce(m, 1ull << 32);
        return broadcast((u32)w, (u32)((w << 32) / m.q));
    }
};

}  // namespace
}  // namespace pg
