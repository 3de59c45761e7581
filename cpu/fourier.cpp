#include "fourier.hpp"

#include <algorithm>
#include <complex>

#include "dispatch.hpp"
#include "tables.hpp"
#include "threads.hpp"

namespace pg {
namespace {

// Checks that x has `rows` rows of `points` complex numbers with parts of type T, and returns its data.
template <class T, class A> auto *complex_rows(const A &x, size_t rows, size_t points) {
    require(x.ndim() == 2 && x.template hold<std::complex<T>>(), "fft: (rows, points) of one complex dtype");
    require(x.shape(0) == rows && x.shape(1) == points, "fft: shapes differ");
    return x.data();
}

template <class F> void dispatch_precision(const Out &out, const F &run) {
    if (out.hold<std::complex<float>>()) run(float());
    else if (out.hold<std::complex<double>>()) run(double());
    else throw std::invalid_argument("fft: complex64 or complex128");
}

// Calls body(first row, number of rows, worker) for blocks of rows. A block has about 8192 values, enough work for a
// thread.
template <class F> void for_rows_of(size_t rows, size_t points, double transforms, const F &body) {
    const size_t piece = std::max<size_t>(1, 8192 / points), pieces = (rows + piece - 1) / piece;
    for_each_row(pieces, transforms * seconds_fft(2 * (double)(points * piece)),
                 [&](size_t i, const Worker &worker) { body(i * piece, std::min(piece, rows - i * piece), worker); });
}

}  // namespace

void fft(const Numbers &x, const Out &out, bool inverse) {
    dispatch_precision(out, [&](auto precision) {
        using T = decltype(precision);
        require(out.ndim() == 2, "fft: (rows, points)");
        const size_t rows = out.shape(0), points = out.shape(1);
        require(points > 0 && (points & (points - 1)) == 0 && points <= FFT_MAX_POINTS,
                "fft: points must be a power of two, at most 4096");
        const T *from = (const T *)complex_rows<T>(x, rows, points);
        T *to = (T *)complex_rows<T>(out, rows, points);
        const Fft<T> plan = make_fft<T>(points);
        const FftKernels<T> &kernels = fft_kernels<T>();
        for_rows_of(rows, points, 1, [&](size_t first, size_t count, const Worker &worker) {
            T *scratch = (T *)worker.scratch(fft_scratch(points) * sizeof(T));
            const size_t at = 2 * points * first;
            kernels.transform(from + at, to + at, count, inverse, plan, scratch);
        });
    });
}

void convolve64(const Numbers &a, const Numbers &b, const Out &out) {
    dispatch_precision(out, [&](auto precision) {
        using T = decltype(precision);
        require(out.ndim() == 2 && b.ndim() == 2, "fft: (rows, points)");
        const size_t rows = out.shape(0);
        const bool shared = b.shape(0) == 1;
        const T *x = (const T *)complex_rows<T>(a, rows, 64), *y = (const T *)complex_rows<T>(b, shared ? 1 : rows, 64);
        T *to = (T *)complex_rows<T>(out, rows, 64);
        const Fft<T> plan = make_fft<T>(64);
        const FftKernels<T> &kernels = fft_kernels<T>();
        alignas(64) T filter[128];
        if (shared) kernels.transform(y, filter, 1, false, plan, nullptr);
        for_rows_of(rows, 64, shared ? 2 : 3, [&](size_t first, size_t count, const Worker &) {
            const size_t at = 128 * first;
            kernels.convolve64(x + at, shared ? filter : y + at, shared, to + at, count, plan);
        });
    });
}

}  // namespace pg
