// Exact products by complex transforms of digits (kernels.hpp, ProductRow), one source for all instruction sets.
//
// Reals is a vector of doubles (lanes_scalar.hpp, isa_avx2.cpp, lanes_avx512.hpp):
//   V, I, WIDTH                      vector, vector of as many 64-bit integers, doubles in a vector
//   Words                            the Lanes (ntt.hpp) with vectors I, for moduli below 2^62
//   FUSED                            fma rounds once
//   fma fms fnma(x, y, z)            x * y + z, x * y - z, z - x * y
//   load store splat add sub mul     plain vector operations
//   expand<COUNT>(x, re, im)         parts of COUNT neighbouring complex numbers, each WIDTH / COUNT times
//   exchange<G>(u, v)                as exchange of Lanes, for granules of G doubles
//   bits(V), value(I)                the same bits as I, or as V
//   load_words, store_words          integers from and to words of 32 or 64 bits; a store keeps the low bits
//   both left right right_signed     bitwise and; shifts
//   centred(x, half, q)              x > half ? x - q : x, unsigned
#pragma once
#include "ntt.hpp"

namespace pg {
namespace {

// The lanes of complex numbers for Ntt (ntt.hpp). In scratch memory, WIDTH numbers are stored as WIDTH real parts, then
// WIDTH imaginary parts. Twiddles are stored as pairs of a real and an imaginary part.
//
// Rounding, with u = 2^-53. If FUSED, a butterfly computes x + w * y by two FMAs for each part, and then 2x - (x + w *
// y) by one. The product w * y has a relative error of at most 2u. If not FUSED, w * y is computed first, with a
// relative error of at most sqrt(5) * u, and then added to x. Inverse butterflies add and subtract, then multiply the
// difference by the conjugate of w.
template <class R> struct ComplexLanes {
    using T = Complex;
    struct V {
        typename R::V re, im;
    };
    using Twiddle = V;
    static constexpr size_t WIDTH = R::WIDTH;

    static PG_INLINE V load(const T *x) { return {R::load(&x->re), R::load(&x->re + WIDTH)}; }
    static PG_INLINE void store(T *x, V v) { R::store(&x->re, v.re), R::store(&x->re + WIDTH, v.im); }
    static PG_INLINE V add(V x, V y) { return {R::add(x.re, y.re), R::add(x.im, y.im)}; }
    static PG_INLINE V sub(V x, V y) { return {R::sub(x.re, y.re), R::sub(x.im, y.im)}; }
    static PG_INLINE V mul(V x, V y) {
        return {R::fnma(x.im, y.im, R::mul(x.re, y.re)), R::fma(x.im, y.re, R::mul(x.re, y.im))};
    }
    static PG_INLINE V mul_conjugate(V x, V y) {
        return {R::fma(x.im, y.im, R::mul(x.re, y.re)), R::fnma(x.re, y.im, R::mul(x.im, y.re))};
    }
    // Returns z + x * y; the products of real numbers are added one after the other.
    static PG_INLINE V mul_add(V x, V y, V z) {
        return {R::fnma(x.im, y.im, R::fma(x.re, y.re, z.re)), R::fma(x.im, y.re, R::fma(x.re, y.im, z.im))};
    }

    static PG_INLINE Twiddle broadcast(T w, T) { return {R::splat(w.re), R::splat(w.im)}; }
    template <size_t COUNT> static PG_INLINE Twiddle expand(const T *w, const T *) {
        Twiddle t;
        R::template expand<COUNT>(&w->re, t.re, t.im);
        return t;
    }
    template <size_t G, bool> static PG_INLINE void exchange(V &u, V &v) {
        R::template exchange<G>(u.re, v.re);
        R::template exchange<G>(u.im, v.im);
    }
};

template <class R> struct ComplexButterfly {
    using Lanes = ComplexLanes<R>;
    using V = typename Lanes::V;
    using Twiddle = typename Lanes::Twiddle;
    static constexpr bool NUMBERS = false;
    static constexpr size_t PAIRS = 1, COLUMNS = 1;
    const Lanes lanes;

    template <Leg = Leg::kept> PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        if constexpr (R::FUSED) {
            const auto two = R::splat(2);
            V s = Lanes::mul_add(y, w, x);
            y = {R::fms(two, x.re, s.re), R::fms(two, x.im, s.im)};
            x = s;
        } else {
            V u = x, t = Lanes::mul(y, w);
            x = Lanes::add(u, t);
            y = Lanes::sub(u, t);
        }
    }
    PG_INLINE V canonical(V x) const { return x; }
    template <Sum = Sum::last> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V d = Lanes::sub(x, y);
        x = Lanes::add(x, y);
        y = Lanes::mul_conjugate(d, w);
    }
    // Leaves out the factor 1/points. Later `sum` multiplies by 1/points, exactly, because points is a power of two.
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &, const Twiddle &w) const { inverse(x, y, w); }
};

// If |x| is at most 2^51, the low bits of the double x + 1.5 * 2^52 are the integer nearest to x. Sums of products of
// digits are that small.
constexpr double ROUNDING = 6755399441055744.0;
constexpr u64 ROUNDING_BITS = 0x4338000000000000;

template <class T, class R> struct FftProductRow {
    using V = typename R::V;
    using I = typename R::I;
    using Words = typename R::Words;
    using Lanes = ComplexLanes<R>;
    using Transform = Ntt<ComplexButterfly<R>, false>;
    static constexpr size_t WIDTH = R::WIDTH;

    const ProductRow &row;
    const Modulus &m;
    const size_t points;

    explicit FftProductRow(const ProductRow &r) : row(r), m(*r.modulus), points(r.length / 2) {}

    // Returns WIDTH residues, beginning with x[j]; beyond the degree they are 0.
    PG_INLINE I residues(const T *x, size_t j) const {
        if (j + WIDTH <= row.degree) return R::load_words(x + j);
        T edge[WIDTH] = {};
        for (size_t i = 0; j + i < row.degree; ++i) edge[i] = x[j + i];
        return R::load_words(edge);
    }
    // Writes the digits of WIDTH residues to rows z, z + 2 * points, ... A digit is the low `width` bits of what
    // remains, read as a signed number; the last digit is all that remains.
    PG_INLINE void split_vector(I x, unsigned digits, double *z) const {
        const I one = Words::splat(1), rounding = Words::splat(ROUNDING_BITS);
        const unsigned unused = 64 - row.width;
        x = R::centred(x, Words::splat(m.last / 2), Words::splat(m.q));
        for (unsigned i = 0; i < digits; ++i, z += 2 * points) {
            I digit = x;
            if (i + 1 < digits) {
                digit = R::right_signed(R::left(x, unused), unused);
                x = Words::add(R::right_signed(x, row.width), R::both(R::right(x, row.width - 1), one));
            }
            R::store(z, R::sub(R::value(Words::add(digit, rounding)), R::splat(ROUNDING)));
        }
    }
    // Complex number j of a row consists of the digits of coefficients j (real part) and j + points (imaginary part).
    void split(const T *x, unsigned digits, Complex *z) const {
        for (size_t j = 0; j < points; j += WIDTH) {
            split_vector(residues(x, j), digits, &z[j].re);
            split_vector(residues(x, j + points), digits, &z[j].re + WIDTH);
        }
    }
    // Complex twiddles have no Shoup quotients, and their inverses are their conjugates. So one table replaces all four
    // tables of a Row.
    Row<Complex> rows() const {
        const Complex *const w = row.twiddles;
        return {nullptr, {w, w}, {w, w}, points, 1, row.block, row.stop};
    }
    void transform(const T *x, unsigned digits, Complex *z) const {
        split(x, digits, z);
        const Row<Complex> r = rows();
        for (unsigned i = 0; points > 1 && i < digits && !stopped(row.stop); ++i)
            Transform(r, {}).template forward<Root::none>(z + i * points, z + i * points, points, 1);
    }
    void add_products(const Complex *x, const Complex *y, Complex *sums) const {
        for (size_t j = 0; j < points; j += WIDTH) {
            const typename Lanes::V factor = Lanes::load(x + j);
            for (size_t at = j, k = 0; k < row.sums; ++k, at += points)
                Lanes::store(sums + at, Lanes::mul_add(factor, Lanes::load(y + at), Lanes::load(sums + at)));
        }
    }

    // Row k of z becomes the sum over i of row i times row DIGITS + k - i or, if `square`, row k - i. A real or
    // imaginary part is the sum of at most 2 * DIGITS products, which are added one after the other.
    template <unsigned DIGITS> void convolve(Complex *z, bool square) const {
        const Complex *right = square ? z : z + DIGITS * points;
        for (size_t j = 0; j < points; j += WIDTH) {
            typename Lanes::V a[DIGITS], b[DIGITS];
            for (unsigned i = 0; i < DIGITS; ++i) {
                a[i] = Lanes::load(z + i * points + j);
                b[i] = Lanes::load(right + i * points + j);
            }
#pragma GCC unroll 16
            for (unsigned k = 0; k < 2 * DIGITS - 1; ++k) {
                if (k == row.sums) break;
                const unsigned first = k < DIGITS ? 0 : k - DIGITS + 1, last = k < DIGITS ? k : DIGITS - 1;
                typename Lanes::V c = Lanes::mul(a[first], b[k - first]);
#pragma GCC unroll 8
                for (unsigned i = first + 1; i <= last; ++i) c = Lanes::mul_add(a[i], b[k - i], c);
                Lanes::store(z + k * points + j, c);
            }
        }
    }
    template <unsigned DIGITS = 1> void convolve_digits(Complex *z, bool square) const {
        if constexpr (DIGITS <= MAX_DIGITS) {
            if (row.digits == DIGITS) convolve<DIGITS>(z, square);
            else convolve_digits<DIGITS + 1>(z, square);
        }
    }

    // Returns sum k, which lies at z[k * 2 * points], as an integer in the low bits of a double. The product with scale
    // = 1/points is exact.
    PG_INLINE I sum(const double *z, unsigned k, V scale) const {
        return R::bits(R::fma(R::load(z + 2 * points * k), scale, R::splat(ROUNDING)));
    }
    // Returns the total of a group of sums: sum k has the weight 2^(width * (k - first)). The total is in (-2^61,
    // 2^61).
    PG_INLINE I group(const double *z, unsigned first, V scale) const {
        const unsigned end = first + row.group < row.sums ? first + row.group : row.sums;
        I total = Words::zero();
        for (unsigned k = end; k-- > first;)
            total = Words::add(R::left(total, row.width), Words::sub(sum(z, k, scale), Words::splat(ROUNDING_BITS)));
        return total;
    }
    // Calls compute(z, y) for every vector of coefficients.
    template <class F> PG_INLINE void for_each_vector(const Complex *z, T *y, const F &compute) const {
        for (size_t j = 0; j < points; j += WIDTH) {
            compute(&z[j].re, y + j);
            compute(&z[j].re + WIDTH, y + j + points);
        }
    }
    // For q = 2^e, which divides 2^64. So sums are taken modulo 2^64: shifts drop the bits that are too high.
    void compose_power_of_two(const Complex *z, T *y, V scale) const {
        u64 rounding = 0;
        for (unsigned k = 0; k < row.sums; ++k) rounding -= ROUNDING_BITS << k * row.width;
        const I start = Words::splat(rounding), mask = Words::splat(m.last);
        for_each_vector(z, y, [&](const double *from, T *to) {
            I total = start;
            for (unsigned k = 0; k < row.sums; ++k)
                total = Words::add(total, R::left(sum(from, k, scale), k * row.width));
            R::store_words(to, R::both(total, mask));
        });
    }
    // For q < 2^32: Horner's rule in doubles. With the next sum v, |v| <= 2^51, a step replaces the remainder r by r *
    // 2^width + v - quotient * q. The quotient is below 2^50 and off by less than 0.7, so |r| < 0.7 * q. Therefore r *
    // 2^width is exact, and r * 2^width - quotient * q is an integer below 2^52.
    void compose_short(const Complex *z, T *y, V scale) const {
        const V q = R::splat((double)m.q), inverse = R::splat(1 / (double)m.q), rounding = R::splat(ROUNDING);
        const V weight = R::splat((double)(1ull << row.width)), lift = R::splat(ROUNDING + (double)m.q);
        const Words words(m);
        for_each_vector(z, y, [&](const double *from, T *to) {
            V r = R::splat(0);
            for (unsigned k = row.sums; k-- > 0;) {
                V v = R::sub(R::value(sum(from, k, scale)), rounding), u = R::mul(r, weight);
                V quotient = R::sub(R::fma(R::add(u, v), inverse, rounding), rounding);
                r = R::add(R::fnma(quotient, q, u), v);
            }
            I lifted = Words::sub(R::bits(R::add(r, lift)), Words::splat(ROUNDING_BITS));  // in (0, 2q)
            R::store_words(to, words.reduce_once(lifted, words.q));
        });
    }
    // For q < 2^62: adds up the totals of all groups, each times its weight. First a multiple of q in [2^62, 2^63) is
    // added to each total, which makes the total positive and below 2^64. Each product is in [0, 2q), and so is the
    // result before its last reduction.
    void compose_lazy(const Complex *z, T *y, V scale) const {
        const Words words(m);
        const I lift = Words::splat(m.q << (63 - m.bits));
        typename Words::Twiddle weights[MAX_SUMS];
        const unsigned groups = (row.sums + row.group - 1) / row.group;
        for (unsigned g = 0; g < groups; ++g) weights[g] = words.broadcast(row.weight[g], row.shoup[g]);
        for_each_vector(z, y, [&](const double *from, T *to) {
            I total = Words::zero();
            for (unsigned g = 0; g < groups; ++g) {
                I lifted = Words::add(group(from, g * row.group, scale), lift);
                total = words.reduce_once(Words::add(total, words.mul_lazy(lifted, weights[g])), words.q2);
            }
            R::store_words(to, words.reduce_once(total, words.q));
        });
    }
    // For 2^62 < q < 2^64. The total of a group, plus 2^61, is in [0, 2^62). Multiply four such numbers by their
    // weights, and add the products to a residue. This sum is below 2^64 * q, so one division reduces it. `start` makes
    // up for the added 2^61.
    void compose_long(const Complex *z, T *y, V scale) const {
        constexpr u64 LIFT = 1ull << 61;
        const unsigned groups = (row.sums + row.group - 1) / row.group;
        u64 lifted = 0;
        for (unsigned g = 0; g < groups; ++g) lifted = add_mod(m, lifted, row.weight[g]);
        const u64 start = neg_mod(m, mul_mod(m, lifted, LIFT));
        for_each_vector(z, y, [&](const double *from, T *to) {
            u64 terms[MAX_SUMS][WIDTH];
            for (unsigned g = 0; g < groups; ++g)
                Words::store(terms[g], Words::add(group(from, g * row.group, scale), Words::splat(LIFT)));
            for (size_t i = 0; i < WIDTH; ++i) {
                u128 total = start;
                for (unsigned g = 0; g < groups; ++g) {
                    if (g && g % 4 == 0) total = reduce(m, (u64)(total >> 64), (u64)total);
                    total += (u128)terms[g][i] * row.weight[g];
                }
                to[i] = (T)reduce(m, (u64)(total >> 64), (u64)total);
            }
        });
    }

    void multiply(const T *a, const T *b, Complex *z, T *y) const {
        transform(a, row.digits, z);
        if (a != b) transform(b, row.digits, z + row.digits * points);
        convolve_digits(z, a == b);
        compose(z, y);
    }
    void compose(Complex *z, T *y) const {
        const Row<Complex> r = rows();
        for (unsigned k = 0; points > 1 && k < row.sums && !stopped(row.stop); ++k)
            Transform(r, {}).template inverse<Root::binomial>(z + k * points, z + k * points, points, 1);
        const V scale = R::splat(1 / (double)points);
        if ((m.q & m.last) == 0) compose_power_of_two(z, y, scale);
        else if (R::FUSED && m.bits <= 32) compose_short(z, y, scale);
        else if (m.bits <= 62) compose_lazy(z, y, scale);
        else compose_long(z, y, scale);
    }
};

template <class T, class R> void product_row(const T *a, const T *b, Complex *z, T *y, const ProductRow &row) {
    FftProductRow<T, R>(row).multiply(a, b, z, y);
}
template <class T, class R> void transform_digits(const T *x, unsigned digits, Complex *z, const ProductRow &row) {
    FftProductRow<T, R>(row).transform(x, digits, z);
}
template <class T, class R> void add_spectra(const Complex *x, const Complex *y, Complex *sums, const ProductRow &row) {
    FftProductRow<T, R>(row).add_products(x, y, sums);
}
template <class T, class R> void compose_sums(Complex *sums, T *y, const ProductRow &row) {
    FftProductRow<T, R>(row).compose(sums, y);
}
template <class T, class R> constexpr ProductKernels<T> product_kernels() {
    return {product_row<T, R>, transform_digits<T, R>, add_spectra<T, R>, compose_sums<T, R>, 4 * R::WIDTH};
}

}  // namespace
}  // namespace pg
