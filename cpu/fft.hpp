// The complex FFT, one source for all instruction sets and precisions: Stockham's passes, decimated in frequency. A
// pass of a radix turns `stride` interleaved transforms of `length` points into stride * radix transforms of length /
// radix points. It reads x and writes
//   y[q + stride * (radix * p + j)]
//     = exp(-2 pi i * j * p / length)
//       * sum over k of exp(-2 pi i * j * k / radix) * x[q + stride * (p + k * length / radix)]
//
// P is a vector of complex values (isa_*.cpp). The real and the imaginary part of a value are neighbours.
//   T, V, WIDTH                          part, vector (with + - *), values in a vector
//   load store splat                     plain vector operations
//   swap(x)                              re and im of every value change places
//   real(x) imag(x)                      re, or im, in both places
//   fma(x, y, z) fnma(x, y, z)           x * y + z, z - x * y; in portable code with two roundings
//   fmaddsub(x, y, z)                    x * y - z for re, x * y + z for im
//   fmsubadd(x, y, z)                    x * y + z for re, x * y - z for im
//   transpose(v)                         of WIDTH vectors
#pragma once
#include <cstring>

#include "kernels.hpp"

namespace pg {
namespace {

template <class P> struct PairLanes : P {
    using T = typename P::T;
    using V = typename P::V;
    struct Twiddle {
        V re, im;  // the real or the imaginary part of a twiddle w, in both places of a value
    };
    static PG_INLINE V add_i(V x, V y) { return P::fmaddsub(x, P::splat(1), P::swap(y)); }  // x + iy
    static PG_INLINE V sub_i(V x, V y) { return P::fmsubadd(x, P::splat(1), P::swap(y)); }
    static PG_INLINE Twiddle twiddles(V w) { return {P::real(w), P::imag(w)}; }
    static PG_INLINE Twiddle broadcast(const T *w) { return {P::splat(w[0]), P::splat(w[1])}; }
    static PG_INLINE V mul(V x, const Twiddle &w) { return P::fmaddsub(x, w.re, P::swap(x) * w.im); }
    static PG_INLINE V mul_conj(V x, const Twiddle &w) { return P::fmsubadd(x, w.re, P::swap(x) * w.im); }
};

// A complex FFT of rows. The exponents of exp are negative in a forward transform, and positive if INVERSE is true.
template <class L, bool INVERSE> struct FftRows {
    using T = typename L::T;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    static constexpr size_t WIDTH = L::WIDTH;

    // x + u * y and x - u * y, where u is -i or, if INVERSE, i.
    static PG_INLINE V add_turned(V x, V y) { return INVERSE ? L::add_i(x, y) : L::sub_i(x, y); }
    static PG_INLINE V sub_turned(V x, V y) { return INVERSE ? L::sub_i(x, y) : L::add_i(x, y); }
    static PG_INLINE V twist(V x, const Twiddle &w) { return INVERSE ? L::mul_conj(x, w) : L::mul(x, w); }
    static PG_INLINE V last_factor(V x, T scale) { return INVERSE ? x * L::splat(scale) : x; }

    template <size_t RADIX> static PG_INLINE void dft(V *x) {
        if constexpr (RADIX == 2) {
            const V a = x[0], b = x[1];
            x[0] = a + b, x[1] = a - b;
        } else if constexpr (RADIX == 4) {
            const V a = x[0] + x[2], b = x[0] - x[2];
            const V c = x[1] + x[3], d = x[1] - x[3];
            x[0] = a + c, x[2] = a - c;
            x[1] = add_turned(b, d), x[3] = sub_turned(b, d);
        } else {
            const V r = L::splat((T)0.70710678118654752440);
            V even[4] = {x[0] + x[4], x[1] + x[5], x[2] + x[6], x[3] + x[7]};
            const V a = x[0] - x[4], b = x[1] - x[5], c = x[2] - x[6], d = x[3] - x[7];
            dft<4>(even);
            // With r = sqrt(1/2): r * (1 - i) * b - r * (1 + i) * d = r * ((b - d) - i * (b + d)), and so on.
            const V minus = b - d, plus = b + d;
            const V near = add_turned(minus, plus), far = sub_turned(minus, plus);
            const V ac = add_turned(a, c), ca = sub_turned(a, c);
            x[0] = even[0], x[2] = even[1], x[4] = even[2], x[6] = even[3];
            x[1] = L::fma(r, near, ac), x[5] = L::fnma(r, near, ac);
            x[3] = L::fnma(r, far, ca), x[7] = L::fma(r, far, ca);
        }
    }

    // Computes columns p ... p + WIDTH - 1 of the first pass, which has `count` columns. Afterwards v[WIDTH * b + i]
    // holds the values j = WIDTH * b ... WIDTH * b + WIDTH - 1 of column p + i.
    static PG_INLINE void columns(V *v, const T *w, size_t count, size_t p) {
        dft<8>(v);
        for (size_t j = 1; j < 8; ++j) v[j] = twist(v[j], L::twiddles(L::load(w + 2 * ((j - 1) * count + p))));
        for (size_t b = 0; b < 8; b += WIDTH) L::transpose(v + b);
    }
    static void first(const T *x, T *y, size_t length, const T *w) {
        const size_t count = length / 8;
        for (size_t p = 0; p < count; p += WIDTH) {
            V v[8];
            for (size_t k = 0; k < 8; ++k) v[k] = L::load(x + 2 * (p + k * count));
            columns(v, w, count, p);
            for (size_t i = 0; i < WIDTH; ++i)
                for (size_t b = 0; b < 8; b += WIDTH) L::store(y + 2 * (8 * (p + i) + b), v[b + i]);
        }
    }
    template <size_t RADIX> static void middle(const T *x, T *y, size_t length, size_t stride, const T *w) {
        const size_t count = length / RADIX;
        for (size_t p = 0; p < count; ++p) {
            Twiddle t[RADIX];
            for (size_t j = 1; j < RADIX; ++j) t[j] = L::broadcast(w + 2 * ((j - 1) * count + p));
            for (size_t q = 0; q < stride; q += WIDTH) {
                V v[RADIX];
                for (size_t k = 0; k < RADIX; ++k) v[k] = L::load(x + 2 * (q + stride * (p + k * count)));
                dft<RADIX>(v);
                L::store(y + 2 * (q + stride * RADIX * p), v[0]);
                for (size_t j = 1; j < RADIX; ++j) L::store(y + 2 * (q + stride * (RADIX * p + j)), twist(v[j], t[j]));
            }
        }
    }
    template <size_t RADIX> static void last(const T *x, T *y, size_t stride, T scale) {
        for (size_t q = 0; q < stride; q += WIDTH) {
            V v[RADIX];
            for (size_t k = 0; k < RADIX; ++k) v[k] = L::load(x + 2 * (q + stride * k));
            dft<RADIX>(v);
            for (size_t j = 0; j < RADIX; ++j) L::store(y + 2 * (q + stride * j), last_factor(v[j], scale));
        }
    }
    // Computes the remaining passes, on transforms of `length` points. Uses `spare` as a second buffer. x may be y or
    // spare.
    static void rest(const T *x, T *y, T *spare, size_t length, size_t stride, const Fft<T> &fft) {
        for (size_t radix; (radix = fft_radix(length)) < length; length /= radix, stride *= radix) {
            T *to = x == spare ? y : spare;
            const T *w = fft.twiddles[__builtin_ctzll(length)];
            radix == 4 ? middle<4>(x, to, length, stride, w) : middle<8>(x, to, length, stride, w);
            x = to;
        }
        const T scale = (T)1 / (T)fft.points;
        length == 2   ? last<2>(x, y, stride, scale)
        : length == 4 ? last<4>(x, y, stride, scale)
                      : last<8>(x, y, stride, scale);
    }

    static PG_INLINE auto vectors_of(const T *x) {
        return [x](size_t i) __attribute__((always_inline)) { return L::load(x + 2 * WIDTH * i); };
    }
    static PG_INLINE auto vectors_to(T *y) {
        return [y](size_t i, V v) __attribute__((always_inline)) { L::store(y + 2 * WIDTH * i, v); };
    }
    // Transforms 64 points in registers. source(i) returns vector i of the row. sink(i, value) takes vector i of the
    // result. Every source is read before the first sink is written.
    template <class Source, class Sink>
    static PG_INLINE void transform64(const T *w, const Source &source, const Sink &sink) {
        constexpr size_t PARTS = 8 / WIDTH;  // vectors for 8 values
        V between[8 * PARTS];
        for (size_t part = 0; part < PARTS; ++part) {
            V v[8];
            for (size_t k = 0; k < 8; ++k) v[k] = source(PARTS * k + part);
            columns(v, w, 8, WIDTH * part);
            for (size_t i = 0; i < WIDTH; ++i)
                for (size_t b = 0; b < PARTS; ++b) between[PARTS * (WIDTH * part + i) + b] = v[WIDTH * b + i];
        }
        for (size_t part = 0; part < PARTS; ++part) {
            V v[8];
            for (size_t k = 0; k < 8; ++k) v[k] = between[PARTS * k + part];
            dft<8>(v);
            for (size_t j = 0; j < 8; ++j) sink(PARTS * j + part, last_factor(v[j], (T)1 / 64));
        }
    }

    // gather turns WIDTH rows of n < 64 points into n vectors with one row in each lane; scatter does the opposite.
    // Missing rows are read as zeros.
    static void gather(const T *x, T *y, size_t rows, size_t n) {
        for (size_t j = 0; n >= WIDTH && j < n; j += WIDTH, y += 2 * WIDTH * WIDTH) {
            V v[WIDTH];
            for (size_t r = 0; r < WIDTH; ++r) v[r] = r < rows ? L::load(x + 2 * (n * r + j)) : L::splat(0);
            L::transpose(v);
            for (size_t i = 0; i < WIDTH; ++i) L::store(y + 2 * WIDTH * i, v[i]);
        }
        for (size_t j = 0; n < WIDTH && j < n; ++j, y += 2 * WIDTH)
            for (size_t r = 0; r < WIDTH; ++r)
                for (size_t part = 0; part < 2; ++part) y[2 * r + part] = r < rows ? x[2 * (n * r + j) + part] : 0;
    }
    static void scatter(const T *x, T *y, size_t rows, size_t n) {
        for (size_t j = 0; n >= WIDTH && j < n; j += WIDTH, x += 2 * WIDTH * WIDTH) {
            V v[WIDTH];
            for (size_t i = 0; i < WIDTH; ++i) v[i] = L::load(x + 2 * WIDTH * i);
            L::transpose(v);
            for (size_t r = 0; r < WIDTH && r < rows; ++r) L::store(y + 2 * (n * r + j), v[r]);
        }
        for (size_t j = 0; n < WIDTH && j < n; ++j, x += 2 * WIDTH)
            for (size_t r = 0; r < WIDTH && r < rows; ++r)
                for (size_t part = 0; part < 2; ++part) y[2 * (n * r + j) + part] = x[2 * r + part];
    }
    static void transform(const T *x, T *y, size_t rows, const Fft<T> &fft, T *scratch) {
        const size_t n = fft.points;
        if (n == 1) {
            std::memmove(y, x, 2 * rows * sizeof(T));
        } else if (n < 64) {
            T *a = scratch, *b = scratch + fft_scratch(n) / 2;
            for (size_t r = 0; r < rows; r += WIDTH) {
                gather(x + 2 * n * r, a, rows - r, n);
                rest(a, b, a, n, WIDTH, fft);
                scatter(b, y + 2 * n * r, rows - r, n);
            }
        } else {
            const T *w = fft.twiddles[__builtin_ctzll(n)];
            for (size_t r = 0; r < rows; ++r, x += 2 * n, y += 2 * n) {
                if (n == 64) {
                    transform64(w, vectors_of(x), vectors_to(y));
                } else {
                    first(x, scratch, n, w);
                    rest(scratch, y, scratch, n / 8, 8, fft);
                }
            }
        }
    }
};

template <class L>
void fft_rows(const typename L::T *x, typename L::T *y, size_t rows, bool inverse, const Fft<typename L::T> &fft,
              typename L::T *scratch) {
    inverse ? FftRows<L, true>::transform(x, y, rows, fft, scratch)
            : FftRows<L, false>::transform(x, y, rows, fft, scratch);
}
template <class L>
void convolve64_rows(const typename L::T *a, const typename L::T *b, bool shared, typename L::T *y, size_t rows,
                     const Fft<typename L::T> &fft) {
    using Forward = FftRows<L, false>;
    using Inverse = FftRows<L, true>;
    const auto *w = fft.twiddles[6];
    using V = typename L::V;
    for (size_t r = 0; r < rows; ++r, a += 128, b += shared ? 0 : 128, y += 128) {
        V product[64 / L::WIDTH];
        Forward::transform64(w, Forward::vectors_of(a),
                             [&](size_t i, V v) __attribute__((always_inline)) { product[i] = v; });
        const auto multiply = [&](size_t i, V v)
                                  __attribute__((always_inline)) { product[i] = L::mul(product[i], L::twiddles(v)); };
        if (!shared) Forward::transform64(w, Forward::vectors_of(b), multiply);
        else
            for (size_t i = 0; i < 64 / L::WIDTH; ++i) multiply(i, L::load(b + 2 * L::WIDTH * i));
        Inverse::transform64(
            w, [&](size_t i) __attribute__((always_inline)) { return product[i]; }, Inverse::vectors_to(y));
    }
}

template <class L> constexpr FftKernels<typename L::T> fft_kernels() { return {fft_rows<L>, convolve64_rows<L>}; }

}  // namespace
}  // namespace pg
