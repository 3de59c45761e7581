// Inputs of kernels, in heap memory of exactly the size that a kernel may touch.
#pragma once
#include <cmath>
#include <complex>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "tables.hpp"

namespace pg {
namespace {

u64 random_word() {  // xorshift64*
    static u64 state = 1;
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717u;
}
u64 random_below(const Modulus &m) {  // the largest residue every fourth time
    const u64 x = random_word();
    return x % 4 == 0 ? m.last : reduce(m, x);
}
template <class T> std::vector<T> residues(size_t n, const Modulus &m) {
    std::vector<T> x(n);
    for (T &v : x) v = (T)random_below(m);
    return x;
}

bool is_prime(u64 q) {  // Miller and Rabin's test, with bases that suffice for q < 2^64
    const Modulus m = make_modulus(q);
    const int twos = __builtin_ctzll(m.last);
    for (u64 base : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}) {
        if (q % base == 0) return q == base;
        u64 x = pow_mod(m, base, m.last >> twos);
        bool passed = x == 1;
        for (int i = 0; i < twos; ++i, x = mul_mod(m, x, x)) passed |= x == m.last;
        if (!passed) return false;
    }
    return true;
}
// Returns the largest prime q <= bound with q = 1 mod `order`.
u64 prime_below(u64 bound, u64 order) {
    u64 q = (bound - 1) / order * order + 1;
    while (!is_prime(q)) q -= order;
    return q;
}
// Returns an element of order 2 * points modulo the prime q: x^((q - 1) / (2 * points)), for the least x such that this
// power has that order.
u64 negacyclic_root(u64 q, u64 points) {
    const Modulus m = make_modulus(q);
    for (u64 x = 2;; ++x) {
        const u64 psi = pow_mod(m, x, m.last / (2 * points));
        if (pow_mod(m, psi, points) == m.last) return psi;
    }
}

// The kernels for all q <= largest, where 0 stands for 2^64. If `alone`, they are for q = largest only.
template <class T> struct Slot {
    const char *name;
    RowKernels<T> Isa::*kernels;
    u64 largest;
    bool alone = false;
};
constexpr Slot<u32> SLOTS32[] = {
    {"q30", &Isa::q30, (1ull << 30) - 1}, {"q31", &Isa::q31, (1ull << 31) - 1}, {"q32", &Isa::q32, 1ull << 32}};
constexpr Slot<u64> SLOTS64[] = {{"q46", &Isa::q46, (1ull << 46) - 1},
                                 {"q50", &Isa::q50, (1ull << 50) - 1},
                                 {"q60", &Isa::q60, (1ull << 60) - 1},
                                 {"q62", &Isa::q62, (1ull << 62) - 1},
                                 {"q64", &Isa::q64, 0},
                                 {"goldilocks", &Isa::goldilocks, GOLDILOCKS, true}};
// Calls f for every slot.
template <class F> void for_each_slot(const F &f) {
    for (const auto &slot : SLOTS32) f(slot);
    for (const auto &slot : SLOTS64) f(slot);
}

template <class T> struct TransformCase {
    const Modulus m;
    const size_t points;
    const int stop = 0;
    std::vector<T> forward, inverse;
    std::vector<double> numbers;
    Row<T> row;
    TransformCase(u64 q, size_t degree, size_t leaf_size, size_t block)
        : m(make_modulus(q)), points(degree / leaf_size), forward(2 * points), inverse(2 * points) {
        T *const f = forward.data(), *const i = inverse.data();
        fill_twiddles<T>(q, negacyclic_root(q, points), Quotient::negacyclic, points, f, f + points, i, i + points);
        row = {&m, {f, f + points}, {i, i + points}, degree, leaf_size, block, &stop, Quotient::negacyclic};
        if constexpr (sizeof(T) == 8)
            if (m.bits <= 50) {  // for the kernels on doubles
                numbers.resize(4 * points);
                double *to = numbers.data();
                for (Twiddles<T> *table : {&row.forward, &row.inverse}) {
                    fill_numbers(m, table->w, points, to, to + points);
                    table->number = to, table->ratio = to + points, to += 2 * points;
                }
            }
    }
    TransformCase(const TransformCase &) = delete;
    u64 leaf_constant(size_t leaf) const {  // c of X^leaf_size - c
        const u64 w = forward[points / 2 + leaf / 2];
        return leaf % 2 ? neg_mod(m, w) : w;
    }
};

// Digits have `width` bits. Node k of the tree over the complex numbers splits X^2t - exp(2 pi i constant[k]).
struct ProductCase {
    const Modulus m;
    const int stop = 0;
    std::vector<Complex> twiddles, scratch;
    std::vector<u64> weight, shoup;
    ProductRow row;
    ProductCase(u64 q, size_t degree, size_t length, unsigned width)
        : m(make_modulus(q)), twiddles(length / 2, {1, 0}), weight(MAX_SUMS), shoup(MAX_SUMS) {
        std::vector<double> constant(length);
        constant[1] = 0.25;
        for (size_t k = 1; k < length / 2; ++k) {
            const double turn = constant[k] / 2;
            constant[2 * k] = turn, constant[2 * k + 1] = turn + 0.5;
            twiddles[k] = {std::cos(2 * M_PI * turn), std::sin(2 * M_PI * turn)};
        }
        const unsigned bits = 64 - (unsigned)__builtin_clzll(m.last | 1), digits = (bits + width - 1) / width;
        const unsigned bound = 2 * width - 2 + 64 - (unsigned)__builtin_clzll((digits * degree - 1) | 1);
        const unsigned group = 1 + (60 - bound) / width;
        for (unsigned i = 0; i < MAX_SUMS; ++i) {
            weight[i] = pow_mod(m, reduce(m, 2), width * group * i);
            shoup[i] = m.bits <= 62 ? shoup_quotient(m, weight[i]) : 0;
        }
        scratch.resize(digits * length);
        const unsigned sums = (m.q & m.last) == 0 ? digits : 2 * digits - 1;
        row = {&m, twiddles.data(), degree, length, 64, digits, width, sums, group, weight.data(), shoup.data(), &stop};
    }
    ProductCase(const ProductCase &) = delete;
};

// A product of two matrices. If points > 0, an entry is a row of `points` residues.
template <class T> struct GemmCase {
    const Modulus m;
    const size_t rows, inner, columns, points, entry;
    const int stop = 0;
    std::vector<T> a, b, c;
    std::vector<u64> scratch;
    MatrixProduct<T> product;
    GemmCase(u64 q, size_t rows, size_t inner, size_t columns, size_t points)
        : m(make_modulus(q)), rows(rows), inner(inner), columns(columns), points(points), entry(points ? points : 1) {
        a = residues<T>(rows * inner * entry, m), b = residues<T>(inner * columns * entry, m);
        if (!points)  // a may hold any words, not only residues
            for (T &v : a) v = (T)random_word();
        c.resize(rows * columns * entry);
        scratch.resize(points ? gemm_points_scratch(rows, inner, columns) : GEMM_SCRATCH);
        const auto step = [&](size_t entries) { return (ptrdiff_t)(entries * entry); };
        product = {&m,
                   rows,
                   inner,
                   columns,
                   {a.data(), step(inner), step(1)},
                   {b.data(), step(columns), step(1)},
                   {c.data(), step(columns), step(1)},
                   &stop};
    }
    GemmCase(const GemmCase &) = delete;
    void run(const GemmKernels<T> &kernels) {
        if (points) kernels.multiply_points(product, points, scratch.data());
        else kernels.multiply(product, scratch.data());
    }
};

template <class T> struct FftCase {
    const Fft<T> fft;
    std::vector<std::complex<T>> x, y;
    std::vector<T> scratch;
    FftCase(size_t points, size_t rows)
        : fft(make_fft<T>(points)), x(rows * points), y(x.size()), scratch(fft_scratch(points)) {
        const Modulus range = make_modulus(2001);
        for (auto &v : x) v = {(T)random_below(range) - 1000, (T)random_below(range) - 1000};
    }
    void run(const FftKernels<T> &kernels, bool inverse, const std::vector<std::complex<T>> &from,
             std::vector<std::complex<T>> &to) {
        kernels.transform((const T *)from.data(), (T *)to.data(), from.size() / fft.points, inverse, fft,
                          scratch.data());
    }
};

// Returns the instruction set with this name, or null if this program was compiled without it.
const Isa *isa_of(const std::string &name) {
    static const Isa with_ifma = completed(isa_avx512, isa_avx512dq);
    for (const Isa *isa : {&isa_portable, &isa_neon, &isa_avx2, &isa_avx512dq, &with_ifma})
        if (isa->compiled() && name == isa->name) return isa;
    return nullptr;
}

}  // namespace
}  // namespace pg
