// The portable kernels without Python, for machines that are only cross-compiled for: transforms, products, products
// of matrices and pointwise operations of every word against schoolbook, the complex FFT against its definition.
// Prints what failed; exits 1 then.
//   c++ -std=c++17 -O2 -I cpu tests/native/smoke.cpp cpu/isa_portable.cpp cpu/tables.cpp -o smoke && ./smoke
#include <cmath>
#include <complex>
#include <cstdio>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "tables.hpp"

using namespace pg;

namespace {

u64 state = 1;
u64 random_below(const Modulus &m) {  // xorshift64*; the largest residue every fourth time
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    u64 x = state * 2685821657736338717u;
    return x % 4 == 0 ? m.last : reduce(m, x);
}

template <class T> std::vector<T> schoolbook(const std::vector<T> &a, const std::vector<T> &b, const Modulus &m) {
    const size_t n = a.size();
    std::vector<T> c(n, 0);
    for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j) {
            const u64 p = mul_mod(m, a[i], b[j]);
            T &to = c[(i + j) % n];
            to = (T)(i + j < n ? add_mod(m, to, p) : sub_mod(m, to, p));
        }
    return c;
}

// psi: of order 2 * degree mod q
template <class T> bool check(const RowKernels<T> &kernels, u64 q, u64 psi, size_t degree) {
    const Modulus m = make_modulus(q);
    std::vector<T> forward(2 * degree), inverse(2 * degree), a(degree), b(degree), x(degree), y(degree);
    fill_twiddles<T>(q, psi, true, degree, forward.data(), forward.data() + degree, inverse.data(),
                     inverse.data() + degree);
    const int stop = 0;
    const Row<T> row{&m, forward.data(), forward.data() + degree, inverse.data(), inverse.data() + degree, degree, 1,
                     64, &stop};
    for (T &v : a) v = (T)random_below(m);
    for (T &v : b) v = (T)random_below(m);
    const std::vector<T> expected = schoolbook(a, b, m);
    kernels.forward(a.data(), x.data(), row);
    kernels.forward(b.data(), y.data(), row);
    kernels.pointwise(Op::mul, x.data(), y.data(), false, nullptr, x.data(), degree, m);
    kernels.inverse(x.data(), x.data(), row);
    const bool ok = x == expected;
    if (!ok) std::printf("wrong product mod %llu, degree %zu\n", (unsigned long long)q, degree);
    return ok;
}

// The least element of order 2 * degree mod the prime q.
u64 root(u64 q, u64 degree) {
    const Modulus m = make_modulus(q);
    for (u64 x = 2;; ++x) {
        const u64 psi = pow_mod(m, x, (q - 1) / (2 * degree));
        if (pow_mod(m, psi, degree) == q - 1) return psi;
    }
}

template <class T> bool check_fft(const FftKernels<T> &kernels, size_t points) {
    const size_t rows = 3;
    const Modulus range = make_modulus(2001);
    std::vector<std::complex<T>> x(rows * points), y(x.size()), back(x.size());
    for (auto &v : x) v = {(T)random_below(range) - 1000, (T)random_below(range) - 1000};
    std::vector<T> scratch(fft_scratch(points));
    const Fft<T> fft = make_fft<T>(points);
    kernels.transform((const T *)x.data(), (T *)y.data(), rows, false, fft, scratch.data());
    kernels.transform((const T *)y.data(), (T *)back.data(), rows, true, fft, scratch.data());

    using Exact = std::complex<long double>;
    std::vector<Exact> roots(points);
    for (size_t k = 0; k < points; ++k) roots[k] = std::polar(1.0L, -2 * std::acos(-1.0L) * k / points);
    long double error = 0, error_back = 0, size = 0;  // squares, of the transform and of its inverse
    for (size_t r = 0; r < rows; ++r)
        for (size_t k = 0; k < points; ++k) {
            Exact sum = 0;
            for (size_t j = 0; j < points; ++j) sum += Exact(x[r * points + j]) * roots[j * k % points];
            error += std::norm(Exact(y[r * points + k]) - sum), size += std::norm(sum);
            error_back += std::norm(back[r * points + k] - x[r * points + k]) * points;
        }
    const long double allowed = 2 * std::numeric_limits<T>::epsilon();
    const bool ok = std::sqrt(error / size) < allowed && std::sqrt(error_back / size) < 2 * allowed;
    if (!ok) std::printf("wrong complex FFT of %zu points, %zu bytes a value\n", points, 2 * sizeof(T));
    return ok;
}

// Digits of 16 bits; node k of the tree over the complex numbers splits X^2t - exp(2 pi i constant).
template <class T> bool check_product(const ProductKernels<T> &kernels, u64 q, size_t degree) {
    const Modulus m = make_modulus(q);
    const unsigned digits = sizeof(T) / 2, group = 2;
    std::vector<double> constant(degree);
    std::vector<Complex> twiddles(degree / 2, {1, 0}), scratch(digits * degree);
    constant[1] = 0.25;
    for (size_t k = 1; k < degree / 2; ++k) {
        const double turn = constant[k] / 2;
        constant[2 * k] = turn, constant[2 * k + 1] = turn + 0.5;
        twiddles[k] = {std::cos(2 * M_PI * turn), std::sin(2 * M_PI * turn)};
    }
    u64 weight[MAX_SUMS], shoup[MAX_SUMS];
    for (unsigned i = 0; i < MAX_SUMS; ++i) {
        weight[i] = pow_mod(m, reduce(m, 2), 16 * group * i);
        shoup[i] = m.bits <= 62 ? shoup_quotient(m, weight[i]) : 0;
    }
    const bool power_of_two = (m.q & m.last) == 0;
    const unsigned sums = power_of_two ? digits : 2 * digits - 1;
    const int stop = 0;
    const ProductRow row{&m, twiddles.data(), degree, degree, 64, digits, 16, sums, group, weight, shoup, &stop};
    std::vector<T> a(degree), b(degree), x(degree);
    for (T &v : a) v = (T)random_below(m);
    for (T &v : b) v = (T)random_below(m);
    kernels.multiply(a.data(), b.data(), scratch.data(), x.data(), row);
    const bool ok = x == schoolbook(a, b, m);
    if (!ok) std::printf("wrong product by digits mod %llu, degree %zu\n", (unsigned long long)q, degree);
    return ok;
}

// A matrix by another modulo q, or of rows of `points` entries, point by point.
template <class T> bool check_gemm(const GemmKernels<T> &kernels, u64 q, size_t points) {
    const Modulus m = make_modulus(q);
    const size_t rows = 5, inner = 300, columns = 7, row = points ? points : 1;
    const int stop = 0;
    std::vector<T> a(rows * inner * row), b(inner * columns * row), c(rows * columns * row), expected(c.size());
    std::vector<u64> scratch(points ? gemm_points_scratch(rows, inner, columns) : GEMM_SCRATCH);
    for (T &v : a) v = (T)random_below(m);
    for (T &v : b) v = (T)random_below(m);
    const auto step = [&](size_t entries) { return (ptrdiff_t)(entries * row); };
    const MatrixProduct<T> product{&m,
                                   rows,
                                   inner,
                                   columns,
                                   {a.data(), step(inner), step(1)},
                                   {b.data(), step(columns), step(1)},
                                   {c.data(), step(columns), step(1)},
                                   &stop};
    if (points) kernels.multiply_points(product, points, scratch.data());
    else kernels.multiply(product, scratch.data());
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j)
            for (size_t x = 0; x < row; ++x) {
                u64 sum = 0;
                for (size_t t = 0; t < inner; ++t)
                    sum = add_mod(m, sum, mul_mod(m, a[(i * inner + t) * row + x], b[(t * columns + j) * row + x]));
                expected[(i * columns + j) * row + x] = (T)sum;
            }
    const bool ok = c == expected;
    if (!ok) std::printf("wrong product of matrices mod %llu, %zu points\n", (unsigned long long)q, points);
    return ok;
}

}  // namespace

int main() {
    bool ok = true;
    for (size_t degree : {2, 8, 64, 256, 512}) {  // primes 1 mod 1024, just under each word's bound
        ok &= check<u32>(isa_portable.q30, 1073738753, root(1073738753, degree), degree);
        ok &= check<u32>(isa_portable.q31, 2147473409, root(2147473409, degree), degree);
        ok &= check<u32>(isa_portable.q32, 4294957057, root(4294957057, degree), degree);
        ok &= check<u64>(isa_portable.q62, 4611686018427366401, root(4611686018427366401, degree), degree);
        ok &= check<u64>(isa_portable.q64, 18446744069414584321u, root(18446744069414584321u, degree), degree);
    }
    for (size_t points : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
        ok &= check_fft<float>(isa_portable.fft_float, points);
        ok &= check_fft<double>(isa_portable.fft_double, points);
    }
    for (size_t degree : {2, 4, 64, 512}) {
        for (u64 q : {(u64)3, (u64)4294967291}) ok &= check_product<u32>(isa_portable.product32, q, degree);
        ok &= check_product<u32>(isa_portable.product32, (u64)1 << 32, degree);
        for (u64 q : {(u64)2305843009213693951, (u64)18446744073709551557u, (u64)0})  // 0: 2^64
            ok &= check_product<u64>(isa_portable.product64, q, degree);
    }
    for (size_t points : {0, 1, 3, 40}) {
        for (u64 q : {(u64)3, (u64)2147483647, (u64)4294967291}) ok &= check_gemm<u32>(isa_portable.gemm32, q, points);
        for (u64 q : {(u64)2305843009213693951, (u64)1 << 62}) ok &= check_gemm<u64>(isa_portable.gemm64, q, points);
    }
    ok &= check_gemm<u64>(isa_portable.gemm64, 0, 40);
    std::puts(ok ? "ok" : "failed");
    return ok ? 0 : 1;
}
