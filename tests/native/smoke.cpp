// Tests the kernels of the named instruction sets (portable if none is named) without Python. Transforms, products,
// products of matrices, random values, pointwise operations and sums of rows are compared with their definitions modulo
// q, for every slot of Isa; complex transforms are compared with their definition in long double. If something failed,
// prints it and exits with status 1.
//   c++ -std=c++17 -O2 -I cpu tests/native/smoke.cpp cpu/isa_*.cpp cpu/tables.cpp -o smoke && ./smoke
// "plant-overrun" and "plant-shift" make the mistakes that a sanitizer must see.
#include "cases.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

using namespace pg;

namespace {

std::vector<const Isa *> isas;
bool all_right = true;

// Returns the instruction sets whose `table` has the kernel `some`.
template <class K, class F> std::vector<const Isa *> isas_with(K Isa::*table, F K::*some) {
    std::vector<const Isa *> found;
    for (const Isa *isa : isas)
        if (isa->*table.*some) found.push_back(isa);
    return found;
}
// Returns the instruction sets with kernels of whole words. A set with one of these kernels has all of them.
std::vector<const Isa *> isas_of_words() { return isas_with(&Isa::integers, &IntegerKernels::widen); }

void expect(bool right, const Isa *isa, const char *what, u64 q, size_t size) {
    if (!right) std::printf("%s: wrong %s, modulus %llu, size %zu\n", isa->name, what, (unsigned long long)q, size);
    all_right &= right;
}

// Returns a * b modulo X^n + 1.
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
// Returns the residues of the polynomial x modulo all leaves.
template <class T> std::vector<T> leaves(const TransformCase<T> &of, const std::vector<T> &x) {
    const size_t leaf_size = of.row.leaf_size;
    std::vector<T> y(x.size());
    for (size_t leaf = 0; leaf < of.points; ++leaf) {
        const u64 c = of.leaf_constant(leaf);
        for (size_t i = 0; i < leaf_size; ++i) {
            u64 sum = 0;
            for (size_t j = of.points; j-- > 0;) sum = add_mod(of.m, mul_mod(of.m, sum, c), x[j * leaf_size + i]);
            y[leaf * leaf_size + i] = (T)sum;
        }
    }
    return y;
}
template <class T> void check_transform(const Slot<T> &slot, u64 q, size_t degree, size_t leaf_size, size_t block) {
    TransformCase<T> of(q, degree, leaf_size, block);
    const std::vector<T> a = residues<T>(degree, of.m), b = residues<T>(degree, of.m), expected = leaves(of, a);
    const std::vector<T> product = leaf_size == 1 ? schoolbook(a, b, of.m) : std::vector<T>();
    for (const Isa *isa : isas_with(slot.kernels, &RowKernels<T>::forward)) {
        const RowKernels<T> &kernels = isa->*slot.kernels;
        if (degree < kernels.least_degree) continue;
        std::vector<T> x(degree), y = a, z(degree);
        kernels.forward(a.data(), x.data(), of.row), kernels.forward(y.data(), y.data(), of.row);
        expect(x == expected && y == expected, isa, slot.name, q, degree);
        kernels.inverse(x.data(), z.data(), of.row), kernels.inverse(y.data(), y.data(), of.row);
        expect(z == a && y == a, isa, slot.name, q, degree);
        if (leaf_size > 1) continue;
        kernels.forward(b.data(), y.data(), of.row);
        kernels.pointwise(Op::mul, x.data(), y.data(), false, nullptr, x.data(), degree, of.m);
        kernels.inverse(x.data(), x.data(), of.row);
        expect(x == product, isa, slot.name, q, degree);
    }
}

u64 apply_one(const Modulus &m, Op op, u64 a, u64 b, u64 c) {
    switch (op) {
        case Op::add:
            return add_mod(m, a, b);
        case Op::sub:
            return sub_mod(m, a, b);
        case Op::neg:
            return neg_mod(m, a);
        case Op::mul:
            return mul_mod(m, a, b);
        default:
            return add_mod(m, mul_mod(m, a, b), c);
    }
}
template <class T> void check_pointwise(const Slot<T> &slot, u64 q, size_t n) {
    const Modulus m = make_modulus(q);
    for (Op op : {Op::add, Op::sub, Op::neg, Op::mul, Op::mul_add})
        for (bool scalar : {false, true}) {
            const std::vector<T> a = residues<T>(n, m), b = residues<T>(scalar ? 1 : n, m), c = residues<T>(n, m);
            std::vector<T> expected(n);
            for (size_t i = 0; i < n; ++i) expected[i] = (T)apply_one(m, op, a[i], b[scalar ? 0 : i], c[i]);
            for (const Isa *isa : isas_with(slot.kernels, &RowKernels<T>::pointwise)) {
                const RowKernels<T> &kernels = isa->*slot.kernels;
                std::vector<T> y(n), x = a, z = c;
                kernels.pointwise(op, a.data(), b.data(), scalar, c.data(), y.data(), n, m);
                kernels.pointwise(op, x.data(), b.data(), scalar, c.data(), x.data(), n, m);
                kernels.pointwise(op, a.data(), b.data(), scalar, z.data(), z.data(), n, m);
                expect(y == expected && x == expected && z == expected, isa, slot.name, q, n);
            }
        }
}
// Checks sums of multiples of rows.
template <class T> void check_combine(const Slot<T> &slot, u64 q, size_t terms, size_t n) {
    const Modulus m = make_modulus(q);
    // Kernels for q below 2^50 take words below 2^50, all others take any words.
    const bool below_2_50 = slot.largest && slot.largest < 1ull << 50;
    const Modulus words = make_modulus(sizeof(T) == 4 ? 1ull << 32 : below_2_50 ? 1ull << 50 : 0);
    const std::vector<T> w = residues<T>(terms, m), x = residues<T>(terms * n, words);
    std::vector<T> shoup(terms), expected(n), y(n);
    std::vector<const T *> rows(terms);
    for (size_t i = 0; i < terms; ++i) {
        rows[i] = x.data() + i * n;
        if (q) shoup[i] = (T)(sizeof(T) == 4 ? ((u64)w[i] << 32) / q : shoup_quotient(m, w[i]));
        for (size_t j = 0; j < n; ++j)
            expected[j] = (T)add_mod(m, expected[j], mul_mod(m, reduce(m, rows[i][j]), w[i]));
    }
    for (const Isa *isa : isas_with(slot.kernels, &RowKernels<T>::combine)) {
        (isa->*slot.kernels).combine(rows.data(), w.data(), shoup.data(), terms, y.data(), n, m);
        expect(y == expected, isa, slot.name, q, n);
    }
}

using Exact = std::complex<long double>;
std::vector<Exact> roots_of_unity(size_t points) {
    std::vector<Exact> roots(points);
    for (size_t k = 0; k < points; ++k) roots[k] = std::polar(1.0L, -2 * std::acos(-1.0L) * k / points);
    return roots;
}
// If a row is long, only some values are compared with the definition; the inverse must restore the whole row.
template <class T> void check_fft(FftKernels<T> Isa::*slot, size_t points, size_t rows) {
    FftCase<T> of(points, rows);
    const std::vector<Exact> roots = roots_of_unity(points);
    const size_t step = points > 256 ? points / 64 + 1 : 1;
    std::vector<Exact> sums;
    for (size_t r = 0; r < rows; ++r)
        for (size_t k = 0; k < points; k += step) {
            Exact sum = 0;
            for (size_t j = 0; j < points; ++j) sum += Exact(of.x[r * points + j]) * roots[j * k % points];
            sums.push_back(sum);
        }
    const long double allowed = 2 * std::numeric_limits<T>::epsilon();
    for (const Isa *isa : isas_with(slot, &FftKernels<T>::transform)) {
        std::vector<std::complex<T>> y = of.x, back(of.x.size());
        of.run(isa->*slot, false, of.x, of.y), of.run(isa->*slot, false, y, y);
        const bool in_place = y == of.y;
        of.run(isa->*slot, true, of.y, back), of.run(isa->*slot, true, y, y);
        long double error = 0, error_back = 0, size = 0, size_back = 0;  // sums of squares
        for (size_t i = 0, r = 0; r < rows; ++r)
            for (size_t k = 0; k < points; k += step, ++i)
                error += std::norm(Exact(of.y[r * points + k]) - sums[i]), size += std::norm(sums[i]);
        for (size_t i = 0; i < back.size(); ++i)
            error_back += std::norm(back[i] - of.x[i]), size_back += std::norm(of.x[i]);
        expect(in_place && y == back && error <= allowed * allowed * size &&
                   error_back <= 4 * allowed * allowed * size_back,
               isa, "complex FFT", sizeof(T), points);
    }
}
template <class T> void check_convolve64(FftKernels<T> Isa::*slot, size_t rows, bool shared) {
    FftCase<T> a(64, rows), b(64, shared ? 1 : rows);
    std::vector<Exact> expected(a.x.size());
    for (size_t r = 0; r < rows; ++r)
        for (size_t i = 0; i < 64; ++i)
            for (size_t j = 0; j < 64; ++j)
                expected[64 * r + (i + j) % 64] += Exact(a.x[64 * r + i]) * Exact(b.x[(shared ? 0 : 64 * r) + j]);
    for (const Isa *isa : isas_with(slot, &FftKernels<T>::transform)) {
        const FftKernels<T> &kernels = isa->*slot;
        if (shared) b.run(kernels, false, b.x, b.y);
        else b.y = b.x;
        std::vector<std::complex<T>> y = a.x;
        kernels.convolve64((const T *)y.data(), (const T *)b.y.data(), shared, (T *)y.data(), rows, a.fft);
        long double error = 0, size = 0;
        for (size_t i = 0; i < y.size(); ++i)
            error += std::norm(Exact(y[i]) - expected[i]), size += std::norm(Exact(y[i]));
        const long double allowed = 4 * std::numeric_limits<T>::epsilon();
        expect(error <= allowed * allowed * size, isa, "convolution", sizeof(T), rows);
    }
}

template <class T> void check_product(u64 q, size_t degree, size_t length, unsigned width) {
    ProductCase of(q, degree, length, width);
    std::vector<T> a = residues<T>(degree, of.m), b = residues<T>(degree, of.m), long_a = a, long_b = b;
    long_a.resize(length), long_b.resize(length);
    const std::vector<T> expected = schoolbook(long_a, long_b, of.m), square = schoolbook(long_a, long_a, of.m);
    for (const Isa *isa : isas_of_words()) {
        const ProductKernels<T> &kernels = isa->words<T>().product;
        if (length < kernels.least_length) continue;
        std::vector<T> y(length), in_place = long_a;
        kernels.multiply(a.data(), b.data(), of.scratch.data(), y.data(), of.row);
        kernels.multiply(in_place.data(), b.data(), of.scratch.data(), in_place.data(), of.row);
        expect(y == expected && in_place == expected, isa, "product by digits", q, length);
        std::vector<Complex>(of.row.digits * length / 2 * 2).swap(of.scratch);
        kernels.multiply(a.data(), a.data(), of.scratch.data(), y.data(), of.row);
        expect(y == square, isa, "square by digits", q, length);
    }
    // Sums of products with small polynomials (coefficients -1, 0 and 1); here one product is added twice.
    std::vector<T> small(degree), long_small(length);
    for (size_t i = 0; i < degree; ++i) small[i] = long_small[i] = i % 3 == 2 ? (T)of.m.last : (T)(i % 2);
    std::vector<T> sum = schoolbook(long_small, long_b, of.m);
    for (T &v : sum) v = (T)add_mod(of.m, v, v);
    ProductRow row = of.row;
    row.sums = row.digits;
    const size_t points = length / 2;
    for (const Isa *isa : isas_of_words()) {
        const ProductKernels<T> &kernels = isa->words<T>().product;
        if (length < kernels.least_length) continue;
        std::vector<Complex> x(points), matrix(row.digits * points), sums(row.digits * points);
        kernels.transform(small.data(), 1, x.data(), row);
        kernels.transform(b.data(), row.digits, matrix.data(), row);
        for (int turn = 0; turn < 2; ++turn) kernels.add_products(x.data(), matrix.data(), sums.data(), row);
        std::vector<T> y(length);
        kernels.compose(sums.data(), y.data(), row);
        expect(y == sum, isa, "sum of products by digits", q, length);
    }
}

template <class T> void check_gemm(u64 q, size_t rows, size_t inner, size_t columns, size_t points) {
    GemmCase<T> of(q, rows, inner, columns, points);
    std::vector<T> expected(of.c.size());
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j)
            for (size_t x = 0; x < of.entry; ++x) {
                u64 sum = 0;
                for (size_t t = 0; t < inner; ++t)
                    sum = add_mod(of.m, sum,
                                  mul_mod(of.m, reduce(of.m, of.a[(i * inner + t) * of.entry + x]),
                                          of.b[(t * columns + j) * of.entry + x]));
                expected[(i * columns + j) * of.entry + x] = (T)sum;
            }
    for (const Isa *isa : isas_of_words()) {
        std::fill(of.c.begin(), of.c.end(), (T)-1);
        of.run(isa->words<T>().gemm);
        expect(of.c == expected, isa, "product of matrices", q, points);
    }
}

// Checks the residues of numbers of two words, with extreme ones among them, and of integers up to several bounds.
template <class T> void check_reductions(u64 q, size_t n) {
    const Modulus m = make_modulus(q), any = make_modulus(0);
    std::vector<u64> x = residues<u64>(2 * n, any);
    if (n > 4) x[1] = ~(u64)0, x[0] = ~(u64)0, x[3] = m.last, x[2] = ~(u64)0, x[5] = q, x[4] = 0;
    std::vector<T> expected(n), small(n);
    for (size_t i = 0; i < n; ++i) expected[i] = (T)reduce(m, q ? x[2 * i + 1] % q : 0, x[2 * i]);
    for (u64 bound : {(u64)1, (u64)3, (u64)1 << 30, (u64)1 << 62}) {
        std::vector<i64> v(n);
        for (size_t i = 0; i < n; ++i) {
            v[i] = i < 2 ? (i64)bound : (i64)(x[i] % (bound + 1));
            if (i % 2) v[i] = -v[i];
            const u64 size = reduce(m, (u64)(v[i] < 0 ? -v[i] : v[i]));
            small[i] = (T)(v[i] < 0 ? neg_mod(m, size) : size);
        }
        for (const Isa *isa : isas_of_words()) {
            std::vector<T> y(n);
            isa->words<T>().reduce_small(v.data(), y.data(), n, m, bound);
            expect(y == small, isa, "residues of small integers", q, n);
        }
    }
    for (const Isa *isa : isas_of_words()) {
        std::vector<T> y(n);
        isa->words<T>().reduce_pairs(x.data(), y.data(), n, m);
        expect(y == expected, isa, "residues of two words", q, n);
    }
}
i64 drawn(const Draw &draw, const unsigned char *x) {
    u64 w = 0;
    std::memcpy(&w, x, std::min<size_t>(draw.bytes, 8));
    const u64 ones = (u64)1 << draw.parameter;
    switch (draw.shape) {
        case DrawShape::ternary:
            return (i64)((u128)w * 3 >> 64) - 1;
        case DrawShape::binomial:
            return __builtin_popcountll(w & (ones - 1)) - __builtin_popcountll(w >> draw.parameter & (ones - 1));
        case DrawShape::tuniform:
            return (i64)((((u128)(w & (4 * (u128)ones - 1)) + 1) >> 1) - ones);
        default:
            i64 sum = 0;
            for (size_t term = 0; term < draw.terms; ++term) {
                std::memcpy(&w, x + 8 * term, 8);
                const i64 size = std::upper_bound(draw.sorted, draw.sorted + draw.thresholds, w >> 1) - draw.sorted;
                sum += draw.weights[term] * (w & 1 ? -size : size);
            }
            return sum;
    }
}
void check_draw(const Draw &draw, size_t n) {
    std::vector<unsigned char> x(n * draw.bytes);
    const std::vector<u64> words = residues<u64>(x.size() / 8 + 1, make_modulus(0));
    std::memcpy(x.data(), words.data(), x.size());
    if (x.size() >= 16) std::memset(x.data(), 255, 8), std::memset(x.data() + 8, 0, 8);
    std::vector<i64> expected(n);
    for (size_t i = 0; i < n; ++i) expected[i] = drawn(draw, x.data() + i * draw.bytes);
    for (const Isa *isa : isas_of_words()) {
        std::vector<i64> v(n);
        isa->integers.draw(x.data(), v.data(), n, draw);
        expect(v == expected, isa, "small integers", (u64)draw.shape, n);
    }
}
void check_draws() {
    for (size_t n : {1, 7, 64, 100}) {
        check_draw({DrawShape::ternary, 8, 0, 0, 0, {}, nullptr, 0, nullptr}, n);
        for (unsigned eta : {1, 4, 5, 8, 16, 21, 32})
            check_draw({DrawShape::binomial,
                        eta <= 4    ? 1u
                        : eta <= 8  ? 2u
                        : eta <= 16 ? 4u
                                    : 8u,
                        eta,
                        0,
                        0,
                        {},
                        nullptr,
                        0,
                        nullptr},
                       n);
        for (unsigned b : {0, 6, 7, 14, 30, 31, 62})
            check_draw({DrawShape::tuniform,
                        b <= 6    ? 1u
                        : b <= 14 ? 2u
                        : b <= 30 ? 4u
                                  : 8u,
                        b,
                        0,
                        0,
                        {},
                        nullptr,
                        0,
                        nullptr},
                       n);
        for (size_t count : {1, 15, 16, 17, 31, 200, 511}) {
            std::vector<u64> sorted = residues<u64>(count, make_modulus((u64)1 << 63));
            std::sort(sorted.begin(), sorted.end());
            const size_t cells = count / 16 + 1;
            std::vector<u64> buckets(16 * cells, ~(u64)0);
            for (size_t j = 0; j < count; ++j) buckets[j % cells * 16 + j / cells] = sorted[j];
            for (size_t terms : {1, 2, 4})
                check_draw({DrawShape::gaussian,
                            8 * terms,
                            0,
                            terms,
                            count,
                            {1, 3, 7, 21},
                            sorted.data(),
                            cells - 1,
                            buckets.data()},
                           n);
        }
    }
}

template <class T> void check_slot(const Slot<T> &slot) {
    for (size_t degree : {2, 4, 8, 16, 32, 64, 256, 512})
        for (size_t leaf_size : {1, 2, 4, 8})
            if (degree >= 2 * leaf_size)
                for (size_t block : {(size_t)64, degree})
                    if (block <= degree)
                        check_transform(slot, prime_below(slot.largest ? slot.largest : ~(u64)0, 1024), degree,
                                        leaf_size, block);
    check_transform(slot, prime_below(slot.largest ? slot.largest : ~(u64)0, 8192), 4096, 1, 2048);
    const u64 largest = slot.largest, half = largest ? largest / 2 + 1 : (u64)1 << 63;
    // q = 2^bits - k with k^2 just below 2^bits, so that 2^(2 bits) / q = 2^bits + k + k^2 / q. Barrett's constant cuts
    // off the last term, which is almost 1. With 31, 50 and 62 bits some quotients are then 2 too small (docs/math.md)
    const u64 short_by_2 = largest + 2 - (u64)std::sqrt((double)largest);
    std::vector<u64> moduli{largest};
    if (!slot.alone) {
        check_transform(slot, 12289, 512, 1, 64), check_transform(slot, 17, 8, 1, 8);
        moduli = {2, 3, 4, half, short_by_2, largest - 1, largest};
    }
    for (u64 q : moduli)
        for (size_t n : {1, 7, 8, 15, 16, 17, 37}) {
            check_pointwise(slot, q, n);
            for (size_t terms : {1, 7, 8, 20}) check_combine(slot, q, terms, n);
        }
}
template <class T> void check_ffts(FftKernels<T> Isa::*slot) {
    for (size_t points = 1; points <= FFT_MAX_POINTS; points *= 2)
        for (size_t rows : {1, 3, 9})
            if (points * rows <= FFT_MAX_POINTS) check_fft(slot, points, rows);
    for (size_t rows : {1, 3})
        for (bool shared : {false, true}) check_convolve64(slot, rows, shared);
}
template <class T> void check_products(std::vector<u64> moduli) {
    for (u64 q : moduli) {
        for (size_t length : {2, 4, 8, 16, 32, 64, 512}) check_product<T>(q, length, length, 16);
        check_product<T>(q, 37, 128, 16), check_product<T>(q, 61, 128, 8 + sizeof(T) / 8);
    }
}
template <class T> void check_gemms(std::vector<u64> moduli) {
    for (u64 q : moduli) {
        for (size_t points : {1, 3, 8, 40}) check_gemm<T>(q, 5, 300, 7, points), check_gemm<T>(q, 10, 20, 9, points);
        if (q > (u64)1 << 62 || q == 0) continue;
        check_gemm<T>(q, 1, 1, 1, 0), check_gemm<T>(q, 5, 300, 7, 0), check_gemm<T>(q, 3, 257, 1, 0);
        check_gemm<T>(q, 9, 520, GEMM_COLUMNS, 0);
    }
}

void plant_overrun() {
    TransformCase<u32> of(12289, 64, 1, 64);
    const std::vector<u32> x = residues<u32>(64, of.m);
    std::vector<u32> y(63);
    isas.back()->q30.forward(x.data(), y.data(), of.row);
}
// Checks the residues of signed and of unsigned words, up to several bounds.
template <class T> void check_integers(u64 q, size_t n) {
    const Modulus m = make_modulus(q);
    for (bool is_signed : {false, true})
        for (u64 bound : {~(u64)0, (u64)1 << 40, m.last, (u64)5}) {
            std::vector<u64> x(n), unused(n);
            for (u64 &v : x) {
                v = random_word() & bound;
                if (is_signed) v = (int64_t)v < 0 ? v : v & ~((u64)1 << 63), v = random_word() & 1 ? 0 - v : v;
            }
            std::vector<T> expected(n), y(n);
            for (size_t i = 0; i < n; ++i) {
                const bool negative = is_signed && (int64_t)x[i] < 0;
                const u64 r = reduce(m, negative ? 0 - x[i] : x[i]);
                expected[i] = (T)(negative ? neg_mod(m, r) : r);
            }
            for (const Isa *isa : isas_of_words()) {
                const u64 extent = isa->integers.widen(x.data(), 8, is_signed, unused.data(), n);
                isa->words<T>().reduce(x.data(), is_signed, extent, y.data(), n, m);
                expect(y == expected, isa, "residues of integers", q, n);
            }
        }
}
u64 digit_of(u64 q, u64 x, unsigned bits, unsigned levels, unsigned level) {
    const u128 modulus = q ? q : (u128)1 << 64, power = (u128)1 << (bits * levels);
    u128 quotient = 0, rest = 0;  // those of x * power by q, computed bit by bit, since power may be 2^64
    for (unsigned i = 64; i-- > 0;) {
        rest = 2 * rest + (x >> i & 1 ? power % modulus : 0), quotient *= 2;
        if (x >> i & 1) quotient += power / modulus;
        while (rest >= modulus) rest -= modulus, ++quotient;
    }
    u64 y = (u64)(quotient + (2 * rest >= modulus));
    for (unsigned i = levels; i-- > level;) {  // from the least significant digit up
        const u64 mask = ((u64)2 << (bits - 1)) - 1, low = y & mask, middle = (u64)1 << (bits - 1);
        if (i == level) return low < middle ? low : low - middle - middle + q;
        y = (bits < 64 ? y >> bits : 0) + (low >= middle);
    }
    return 0;
}
template <class T> void check_decompose(u64 q, unsigned bits, unsigned levels, size_t n) {
    const Modulus m = make_modulus(q);
    const Gadget gadget = make_gadget(q, bits, levels, 8 * sizeof(T));
    const std::vector<T> x = residues<T>(n, m);
    std::vector<T> expected(n * levels);
    for (size_t j = 0; j < n; ++j)
        for (unsigned i = 0; i < levels; ++i) expected[i * n + j] = (T)digit_of(q, x[j], bits, levels, i);
    for (const Isa *isa : isas_of_words()) {
        std::vector<T> y(n * levels);
        isa->words<T>().decompose(x.data(), y.data(), n, gadget);
        expect(y == expected, isa, "digits", q, n);
    }
}
// Checks `compose`, and sums of squares of its results: every instruction set must agree with the portable one.
template <class T> void check_sums(u64 below, size_t count, size_t digits, size_t n) {
    std::vector<T> y(count * n);
    for (T &v : y) v = (T)(random_word() % below);
    std::vector<u64> terms((count + 1) * digits), modulus(digits), zero(digits, 0);
    for (u64 &t : terms) t = random_word() & SumWords::MASK;
    for (u64 &t : modulus) t = random_word() & SumWords::MASK;
    const std::vector<double> inverse(count, 1 / (double)below);
    const SumWords m{count,       digits,         1,       terms.data(), inverse.data(),       modulus.data(),
                     zero.data(), modulus.data(), 0x1p-40, true,         below <= (u64)1 << 52};
    std::vector<u64> expected, sums, x(digits * n), scratch(2 * n + count + 2 + digits), square(2 * digits + 1);
    std::vector<const Isa *> compared = isas_of_words();
    compared.insert(compared.begin(), &isa_portable);
    for (const Isa *isa : compared) {
        std::fill(x.begin(), x.end(), ~(u64)0);  // so that words that are not written show
        isa->words<T>().compose(y.data(), m, x.data(), n, scratch.data());
        if (isa == &isa_portable) expected = x;
        expect(x == expected, isa, "sum of words", below, n);
        isa->integers.make_sizes(x.data(), digits, n, scratch.data());
        std::fill(square.begin(), square.end(), 0);
        isa->integers.add_squares(x.data(), digits, n, square.data());
        if (isa == &isa_portable) sums = square;
        expect(square == sums, isa, "sum of squares", below, n);
    }
}

// Checks products of rows of bytes with vectors of digits, many of which are extreme. Rows have unaligned addresses.
void check_bytes(size_t height, size_t length, size_t count, bool flips) {
    const std::vector<const Isa *> with = isas_with(&Isa::bytes, &ByteKernels::add);
    const size_t row_step = length + 3, vector_step = (length + 63) / 64 * 64;
    std::vector<unsigned char> rows(height * row_step + 1);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 5 ? (unsigned char)random_word() : 255;
    for (const Isa *isa : with) {
        const int half = 1 << (isa->bytes.digit_bits - 1);
        std::vector<signed char> vectors(count * vector_step, 0);
        std::vector<i64> sums(height * count, 7), expected = sums;
        for (size_t v = 0; v < count; ++v)
            for (size_t k = 0; k < length; ++k) {
                const int digit = (k + v) % 3 ? -half : (int)(random_word() % (2 * half)) - half;
                vectors[v * vector_step + k] = (signed char)digit;
            }
        for (size_t r = 0; r < height; ++r)
            for (size_t v = 0; v < count; ++v)
                for (size_t k = 0; k < length; ++k) {
                    const int byte = rows[1 + r * row_step + k] ^ (flips && k % 2 ? 0x80 : 0);
                    expected[r * count + v] += byte * vectors[v * vector_step + k];
                }
        isa->bytes.add({rows.data() + 1, (ptrdiff_t)row_step, height, length, flips ? 0x8000800080008000u : 0,
                        vectors.data(), vector_step, count, sums.data()});
        expect(sums == expected, isa, "products of bytes", height, length);
    }
}

void plant_shift() {
    Modulus m = make_modulus(12289);
    m.bits = 80;
    std::vector<u32> x = residues<u32>(1, m);
    isa_portable.q30.pointwise(Op::mul, x.data(), x.data(), false, nullptr, x.data(), 1, m);
}

}  // namespace

int main(int count, char **names) {
    const std::string last = names[count - 1];
    for (int i = 1; i < count; ++i)
        if (const Isa *isa = isa_of(names[i])) isas.push_back(isa);
    if (isas.empty()) isas.push_back(&isa_portable);
    if (last == "plant-overrun") plant_overrun();
    else if (last == "plant-shift") plant_shift();
    else if (count > 1 && isas.back() != isa_of(last)) return std::printf("no instruction set %s\n", last.c_str()), 2;
    for_each_slot([](const auto &slot) { check_slot(slot); });
    check_ffts(&Isa::fft_float), check_ffts(&Isa::fft_double);
    for (size_t n : {1, 7, 16, 37}) {
        for (u64 q : {2, 3, 12289, 2147483647}) check_reductions<u32>(q, n), check_reductions<u64>(q, n);
        check_reductions<u32>((u64)1 << 32, n), check_reductions<u32>(4294967291, n);
        for (unsigned bits : {46, 50, 61, 62, 63})
            check_reductions<u64>(((u64)1 << bits) - 1, n), check_reductions<u64>((u64)1 << bits, n);
        check_reductions<u64>(18446744073709551557u, n), check_reductions<u64>(0, n);
    }
    check_draws();
    for (size_t height : {1, 4, 5})
        for (size_t length : {1, 15, 16, 63, 64, 65, 200, (int)BYTES_AT_ONCE})
            for (size_t count : {1, 2, 3, 4, 5, 8}) check_bytes(height, length, count, count % 2);
    check_products<u32>({3, (u64)1 << 31, 4294967291, (u64)1 << 32});
    check_products<u64>({3, (u64)1 << 61, 4611686018427387847, 9223372036854775837u, 18446744073709551557u, 0});
    check_gemms<u32>({3, 2147483647, (u64)1 << 31, 4294967291, (u64)1 << 32});
    check_gemms<u64>(
        {3, 4503599627370449, 4503599627370517, 4611686018427387847, (u64)1 << 62, 18446744073709551557u, 0});
    for (size_t n : {1, 7, 8, 33, 256}) {
        for (u64 q : {(u64)2, (u64)3, (u64)12289, (u64)2147483647, (u64)4294967291, (u64)1 << 32})
            check_integers<u32>(q, n);
        for (u64 q : {(u64)3, (u64)1 << 50, (u64)4611686018427387847, ((u64)1 << 63) - 25, (u64)1 << 63,
                      (u64)18446744073709551557u, (u64)0})
            check_integers<u64>(q, n);
        for (u64 q : {(u64)12289, (u64)2147483647, (u64)4294967291, (u64)1 << 32})
            check_decompose<u32>(q, 4, 3, n), check_decompose<u32>(q, 13, 1, n), check_decompose<u32>(q, 1, 13, n);
        check_decompose<u32>((u64)1 << 32, 8, 4, n);
        for (u64 q : {(u64)1 << 50, (u64)4611686018427387847, ((u64)1 << 63) - 25, (u64)18446744073709551557u, (u64)0})
            check_decompose<u64>(q, 10, 3, n), check_decompose<u64>(q, 50, 1, n), check_decompose<u64>(q, 7, 7, n);
        check_decompose<u64>(0, 64, 1, n), check_decompose<u64>(0, 8, 8, n);
        check_sums<u32>((u64)1 << 30, 5, 4, n), check_sums<u64>((u64)1 << 50, 12, 12, n);
        check_sums<u64>((u64)1 << 60, 3, 4, n), check_sums<u64>((u64)1 << 50, 1, 2, n);
    }
    std::puts(all_right ? "ok" : "failed");
    return all_right ? 0 : 1;
}
