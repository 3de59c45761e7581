// Complex numbers in the layout of complex64 and complex128 arrays.
#pragma once
#include "memory.cuh"
#include "word.cuh"

template <class Real> struct alignas(2 * sizeof(Real)) Complex {
    Real re, im;
};

template <class R> PG_DEVICE Complex<R> operator+(Complex<R> x, Complex<R> y) { return {x.re + y.re, x.im + y.im}; }
template <class R> PG_DEVICE Complex<R> operator-(Complex<R> x, Complex<R> y) { return {x.re - y.re, x.im - y.im}; }
template <class R> PG_DEVICE Complex<R> operator*(Complex<R> x, Complex<R> y) {
    return {fma(x.re, y.re, -(x.im * y.im)), fma(x.re, y.im, x.im * y.re)};
}
template <class R> PG_DEVICE Complex<R> multiply_add(Complex<R> x, Complex<R> y, Complex<R> z) {  // x * y + z
    return {fma(-x.im, y.im, fma(x.re, y.re, z.re)), fma(x.im, y.re, fma(x.re, y.im, z.im))};
}
template <class R> PG_DEVICE Complex<R> operator*(Complex<R> x, R scale) { return {x.re * scale, x.im * scale}; }
template <class R> PG_DEVICE Complex<R> swapped(Complex<R> x) { return {x.im, x.re}; }  // i times the conjugate of x
template <class R> PG_DEVICE Complex<R> by_minus_i(Complex<R> x) { return {x.im, -x.re}; }

// Returns the integer nearest to x, modulo 2^32 or 2^64 (the range of T). Needs |x| < 2^(bits of T + 50).
template <class T> PG_DEVICE T nearest_word(double x) {
    constexpr double ONE = sizeof(T) == 4 ? 0x1p32 : 0x1p64;
    const double rest = fma(-rint(x / ONE), ONE, x);
    if constexpr (sizeof(T) == 4) return (T)__double2ll_rn(rest);
    const double high = rint(rest * 0x1p-32), low = fma(-high, 0x1p32, rest);
    return (T)((u64)__double2ll_rn(high) << 32) + (T)__double2ll_rn(low);
}

// The word (word.cuh) for transforms of complex numbers. Rounding errors: docs/math.md, "Products by FFT". The inverse
// transform leaves out the factor 1 / points.
struct Complex128 {
    using Storage = Complex<double>;
    using Value = Complex<double>;
    using Twiddle = Complex<double>;
    using Bounds = Canonical;
    static constexpr bool GROUPED = false;
    static constexpr int BLOCKS = 2, PRODUCT_BLOCKS = 0;
    PG_DEVICE explicit Complex128(const Modulus &) {}

    static PG_DEVICE Value load(Storage x, bool /*lazy*/) { return x; }
    static PG_DEVICE Storage store_lazy(Value x) { return x; }
    PG_DEVICE Storage canonical(Value x) const { return x; }
    PG_DEVICE Storage finish(Value x) const { return x; }
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool /*reduce*/) const {
        const Value s = multiply_add(y, t, x);
        y = {fma(2., x.re, -s.re), fma(2., x.im, -s.im)}, x = s;
    }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool /*reduce*/) const {
        const Value d = x - y;
        x = x + y, y = d * Twiddle{t.re, -t.im};
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle /*scale*/, Twiddle t) const { inverse(x, y, t, false); }
};
