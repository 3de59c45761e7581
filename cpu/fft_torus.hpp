// Products, modulo 2^w, of polynomials of digits and polynomials given by spectra. The products are computed by complex
// transforms of n/2 points, and rounded (kernels.hpp, TorusRow; docs/math.md, "Products in doubles").
//
// The forward transform is that of fft_product.hpp. The inverse transform computes the same passes in reverse order.
// Its butterflies multiply before they add (x + w * y and x - w * y), so they need six FMAs, like the forward
// butterflies. They leave out one factor of each coefficient, the twist. At the end the coefficients are multiplied by
// the twist.
#pragma once
#include "fft_product.hpp"

namespace pg {
namespace {

template <class W, class R> struct FftTorusRow {
    using V = typename R::V;
    using I = typename R::I;
    using Words = typename R::Words;
    using Lanes = ComplexLanes<R>;
    using Butterfly = ComplexButterfly<R>;
    using Value = typename Lanes::V;
    static constexpr size_t WIDTH = R::WIDTH;

    const TorusRow &row;
    const size_t points;

    explicit FftTorusRow(const TorusRow &r) : row(r), points(r.points) {}

    // The layout of twiddles and of complex numbers in scratch memory: WIDTH real parts, then WIDTH imaginary parts.
    static PG_INLINE Value load(const Complex *x) { return Lanes::load(x); }
    // Computes one butterfly of the inverse. If TURNED, the twiddle is -i * w instead of w.
    template <bool TURNED = false> static PG_INLINE void inverse(Value &x, Value &y, const Value &w) {
        Value s;
        if constexpr (TURNED) {
            s = {R::fma(y.im, w.re, R::fma(y.re, w.im, x.re)), R::fma(y.im, w.im, R::fnma(y.re, w.re, x.im))};
        } else {
            s = Lanes::mul_add(y, w, x);
        }
        const V two = R::splat(2);
        y = {R::fms(two, x.re, s.re), R::fms(two, x.im, s.im)};
        x = s;
    }

    // ---- forward ----

    // Returns x - less as doubles, for integers x below 2^52.
    static PG_INLINE V number(I x, double less) {
        return R::sub(R::value(Words::add(x, Words::splat(0x4330000000000000))), R::splat(4503599627370496.0 + less));
    }
    // z = the spectrum of the digits. A digit is a field (see TorusRow) minus half of the base.
    void transform(const W *fields, Complex *z) const {
        transform(fields, z, [&](I x) __attribute__((always_inline)) { return number(x, row.half); });
    }
    // z = the spectrum of residues, which are centred, and rounded once when they become doubles.
    void transform_words(const W *words, Complex *z) const {
        const I low_half = Words::splat(0xffffffff);
        constexpr double HALF = 2147483648.0;
        transform(words, z, [&](I x) __attribute__((always_inline)) {
            if constexpr (sizeof(W) == 4)
                return number(R::both(Words::add(x, Words::splat(1ull << 31)), low_half), HALF);
            else {
                const V high = number(R::right(Words::add(x, Words::splat(1ull << 63)), 32), HALF);
                return R::fma(high, R::splat(4294967296.0), number(R::both(x, low_half), 0));
            }
        });
    }
    template <class Number> void transform(const W *words, Complex *z, const Number &of) const {
        for (size_t j = 0; j < points; j += WIDTH)
            Lanes::store(z + j, {of(R::load_words(words + j)), of(R::load_words(words + j + points))});
        const Complex *const w = row.forward;
        const Row<Complex> r{nullptr, {w, w}, {w, w}, points, 1, points, nullptr};
        Ntt<Butterfly, false>(r, {}).template forward<Root::none>(z, z, points, 1);
    }

    // ---- products ----

    // sum = the sum of the products of all digits with the spectra of one column of the matrix. Products are added
    // level by level. In each level, the sum begins with component `column`. step: the distance from one spectrum of
    // the column to the next, in complex numbers. ahead: the distance from this matrix to the matrix that is read next,
    // in complex numbers; 0 if no matrix follows.
    void multiply(const Complex *digits, const Complex *matrix, size_t step, unsigned levels, unsigned components,
                  unsigned column, size_t ahead, Complex *sum) const {
        for (size_t j = 0; j < points; j += WIDTH) {
            Value total{R::splat(0), R::splat(0)};
            for (unsigned level = 0; level < levels; ++level)
                for (unsigned i = 0; i < components; ++i) {
                    const unsigned from = column + i < components ? column + i : column + i - components;
                    const size_t term = from * levels + level;
                    const Complex *const factor = matrix + term * step + j;
                    if (ahead)
                        for (size_t line = 0; line < WIDTH; line += 4) __builtin_prefetch(factor + ahead + line, 0, 2);
                    total = Lanes::mul_add(load(digits + term * points + j), load(factor), total);
                }
            Lanes::store(sum + j, total);
        }
    }

    // ---- inverse ----

    template <size_t G, size_t K> static PG_INLINE void granules(Value (&u)[K], Value (&v)[K], const Complex *&w) {
        if constexpr (G < WIDTH) {
            const Value t = load(w);
            w += WIDTH;
            for (size_t k = 0; k < K; ++k) {
                inverse(u[k], v[k], t);
                Lanes::template exchange<G, true>(u[k], v[k]);
            }
            granules<2 * G>(u, v, w);
        }
    }
    template <bool WIDE, size_t K> const Complex *tail(Complex *z) const {
        const Complex *w = row.inverse;
        for (size_t j = 0; j < points; j += 2 * K * WIDTH) {
            w = row.inverse;
            Value u[K], v[K];
            for (size_t k = 0; k < K; ++k) u[k] = load(z + j + 2 * k * WIDTH), v[k] = load(z + j + (2 * k + 1) * WIDTH);
            granules<1>(u, v, w);
            const Value t = load(w);
            w += WIDTH;
            for (size_t k = 0; k < K; ++k) inverse(u[k], v[k], t);
            if constexpr (WIDE) {
                const Value t2 = load(w);
                w += WIDTH;
                for (size_t k = 0; k < K; k += 2) inverse(u[k], u[k + 1], t2), inverse<true>(v[k], v[k + 1], t2);
            }
            for (size_t k = 0; k < K; ++k)
                Lanes::store(z + j + 2 * k * WIDTH, u[k]), Lanes::store(z + j + (2 * k + 1) * WIDTH, v[k]);
        }
        return w;
    }
    // Computes two stages on 4 * half values at z. The first stage joins blocks of `half` values, the second blocks of
    // 2 * half. Calls put(i, v) for each result v with its index i.
    template <class Put> static PG_INLINE void radix4(const Complex *z, size_t half, const Complex *w, const Put &put) {
        for (size_t j = 0; j < half; j += WIDTH, w += 2 * WIDTH) {
            const Value w1 = load(w), w2 = load(w + WIDTH);
            Value v[4];
            for (size_t i = 0; i < 4; ++i) v[i] = load(z + j + i * half);
            inverse(v[0], v[1], w1), inverse(v[2], v[3], w1);
            inverse(v[0], v[2], w2), inverse<true>(v[1], v[3], w2);
            for (size_t i = 0; i < 4; ++i) put(j + i * half, v[i]);
        }
    }

    // Returns the integer nearest to x, modulo 2^w. Needs |x| < 2^(w + 50).
    static PG_INLINE I nearest(V x) {
        constexpr double ONE = sizeof(W) == 4 ? 4294967296.0 : 18446744073709551616.0;
        const V rounding = R::splat(ROUNDING);
        const auto whole = [&](V y, double unit) __attribute__((always_inline)) {  // y / unit, rounded
            return R::sub(R::fma(y, R::splat(1 / unit), rounding), rounding);
        };
        V rest = R::fnma(whole(x, ONE), R::splat(ONE), x);  // in [-2^(w - 1), 2^(w - 1)]
        if constexpr (sizeof(W) == 4) return R::bits(R::add(rest, rounding));
        else {
            const V high = whole(rest, 4294967296.0);
            rest = R::fnma(high, R::splat(4294967296.0), rest);
            const I low = Words::sub(R::bits(R::add(rest, rounding)), Words::splat(ROUNDING_BITS));
            return Words::add(R::left(R::bits(R::add(high, rounding)), 32), low);
        }
    }
    // y = the product whose spectrum is z, or y += the product if `adds`. z is overwritten.
    void finish(Complex *z, W *y, bool adds) const {
        const auto round_to = [&](W *to, V x) __attribute__((always_inline)) {
            const I value = nearest(x);
            R::store_words(to, adds ? Words::add(value, R::load_words(to)) : value);
        };
        const auto end = [&](size_t j, Value v) __attribute__((always_inline)) {
            const Value x = Lanes::mul(v, load(row.twist + j));
            round_to(y + j, x.re), round_to(y + j + points, x.im);
        };
        const bool wide = torus_is_wide(points, WIDTH);
        const Complex *w = wide ? tail<true, 2>(z) : tail<false, 1>(z);
        size_t half = (wide ? 4 : 2) * WIDTH;
        for (; 4 * half < points; w += 2 * half, half *= 4)
            for (size_t at = 0; at < points; at += 4 * half)
                radix4(z + at, half, w,
                       [&](size_t i, Value v) __attribute__((always_inline)) { Lanes::store(z + at + i, v); });
        if (half < points) radix4(z, half, w, end);
        else
            for (size_t j = 0; j < points; j += WIDTH) end(j, load(z + j));
    }
};

// fields[j] = (x_j + offset) >> shift & mask, where x = X^e * y - y if `turns`, else x = y, modulo X^n + 1 and 2^w.
// offset and mask are those of `row`; shift moves digit `level` to the lowest bits.
template <class W> void torus_fields(const W *y, bool turns, size_t e, W *fields, unsigned level, const TorusRow &row) {
    const size_t n = 2 * row.points;
    const W offset = (W)row.offset, mask = (W)row.mask;
    const unsigned shift = 8 * sizeof(W) - row.bits * (level + 1);
    if (!turns) {
        for (size_t j = 0; j < n; ++j) fields[j] = (W)((W)(y[j] + offset) >> shift) & mask;
        return;
    }
    const size_t k = e % n;
    const W first = e < n ? (W)0 - 1 : (W)1, second = e < n ? (W)1 : (W)0 - 1;  // signs for j < k, and for j >= k
    const W *const low = y + n - k, *const high = y - k;
    for (size_t j = 0; j < k; ++j) fields[j] = (W)((W)(first * low[j] - y[j] + offset) >> shift) & mask;
    for (size_t j = k; j < n; ++j) fields[j] = (W)((W)(second * high[j] - y[j] + offset) >> shift) & mask;
}

// y += X^e * x
template <class W> void torus_add_turned(const W *x, size_t e, W *y, const TorusRow &row) {
    const size_t n = 2 * row.points, k = e % n;
    const W *const low = x + n - k, *const high = x - k;
    const auto add = [&](auto &&first, auto &&second) __attribute__((always_inline)) {
        for (size_t j = 0; j < k; ++j) y[j] = first(y[j], low[j]);
        for (size_t j = k; j < n; ++j) y[j] = second(y[j], high[j]);
    };
    const auto plus = [](W a, W b) { return (W)(a + b); };
    const auto minus = [](W a, W b) { return (W)(a - b); };
    if (e < n) add(minus, plus);
    else add(plus, minus);
}

template <class W, class R> void torus_transform_words(const W *words, Complex *z, const TorusRow &row) {
    FftTorusRow<W, R>(row).transform_words(words, z);
}
template <class W, class R> void torus_transform(const W *fields, Complex *z, const TorusRow &row) {
    FftTorusRow<W, R>(row).transform(fields, z);
}
template <class R>
void torus_multiply(const Complex *digits, const Complex *matrix, size_t step, unsigned levels, unsigned components,
                    unsigned column, size_t ahead, Complex *sum, const TorusRow &row) {
    FftTorusRow<u64, R>(row).multiply(digits, matrix, step, levels, components, column, ahead, sum);
}
template <class W, class R> void torus_finish(Complex *z, W *y, bool adds, const TorusRow &row) {
    FftTorusRow<W, R>(row).finish(z, y, adds);
}
template <class W, class R> constexpr TorusKernels<W> torus_kernels() {
    return {R::WIDTH,           torus_fields<W>,     torus_transform<W, R>,      torus_multiply<R>,
            torus_finish<W, R>, torus_add_turned<W>, torus_transform_words<W, R>};
}

}  // namespace
}  // namespace pg
