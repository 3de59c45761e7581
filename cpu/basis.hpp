// Basis: the moduli of a ring, how their residues are stored, and the operations that need no transform.
#pragma once
#include <algorithm>
#include <vector>

#include "array.hpp"
#include "quotient.hpp"
#include "wide.hpp"

namespace pg {

class PointsProduct;

constexpr size_t LEAVES = 64;  // leaves of the transform that are multiplied together; they fit the first-level cache

class Basis {
  public:
    // moduli: (limbs, words), little-endian. If words > 1, the ring has one wide modulus of that many words. If all
    // words of a modulus are 0, it is 2^(64 * words).
    Basis(const Numbers &moduli, int storage_bits);

    bool wide() const { return moduli_.empty(); }
    bool narrow() const { return narrow_; }
    // Returns f(T()), where T is the word that stores residues.
    template <class F> decltype(auto) visit(const F &f) const { return with_word(narrow_, f); }
    size_t rows() const { return wide() ? wide_.words() : moduli_.size(); }
    const std::vector<Modulus> &moduli() const { return moduli_; }
    const WideModulus &wide_modulus() const { return wide_; }
    // These functions estimate seconds on one core for the slowest modulus. n: the number of coefficients
    // of a transform, or of residues of a pointwise operation.
    double seconds_transform(size_t n) const;
    double seconds_products(double count) const;
    double seconds_pointwise(size_t n) const { return seconds_products((double)n); }
    // These functions estimate nanoseconds on one core for a product of two polynomials. The constants are measured
    // (docs/performance.md, "How a ring multiplies"). reals: how many real numbers all complex FFTs
    // process.
    double ns_by_transform(size_t points, size_t leaf_size) const;
    double ns_by_fft(double reals) const;
    double ns_by_primes(size_t points, size_t primes) const;

    // out = op(a, b, c). op: an Op of kernels.hpp. If op does not read b or c, the operand may be none. Batch axes of
    // a, b and c may have any strides.
    void pointwise(int op, const StridedArray &a, const StridedArray &b, const StridedArray &c, const Out &out) const;

    // out[c] = constant + sum over i of factors[c, i] * operands[i], for each combination c. factors: (combinations,
    // operands, rows, 1). Operands broadcast against out[c]; their batch axes may have any strides. constant: none, or
    // (*batch, rows, 1), a residue for each row, added to the entries 0, step, 2 * step, ... of the row. If there is
    // one combination, out may be an operand.
    void combine(const std::vector<Array> &operands, const Array &factors, const Array &constant, size_t step,
                 const Out &out) const;

    // out[j] = x[index[j]], or -x[index[j] - degree] if index[j] >= degree.
    void permute(const Array &x, const Numbers &index, const Out &out) const;

    // out = X^e * x. exponents: one e for each item of x, below the order of X in the ring.
    void mul_monomial(const Array &x, const Numbers &exponents, Quotient quotient, const Out &out) const;

    // out[j] = x[j] * first * step^j for each row. first, step: (*, rows, 1), with c items each. c divides the number
    // of items of x. Item i of x uses item i % c of first and step.
    void scale_by_powers(const Array &x, const Array &first, const Array &step, const Out &out) const;

    // out: residues of integers x of 1 to 8 bytes, (*batch, count <= degree). The rest of a row is zero.
    void reduce_integers(const Numbers &x, const Out &out) const;
    // Like reduce_integers, for integers x (*batch, count <= degree, words) of several 64-bit words in two's
    // complement, the lowest word first. The basis must not have a wide modulus.
    void reduce_large_integers(const Array &x, const Out &out) const;

    // out (batch, m, n) = a * b, with a (batch or 1, m, k) and b (batch or 1, k, n). Entries of a and b may be any
    // words.
    void matmul(const Array &a, const Array &b, const Out &out) const;
    // out (1, m, n) = a * b, with a (1, m, k) and b (1, k, n). Entries of a are integers of 1 or 2 bytes. Entries of b
    // are words. The rows or the columns of a must be dense.
    void matmul_bytes(const StridedArray &a, bool is_signed, const Array &b, const Out &out) const;

    // out (batch, m, p, rows, points) = a * b for each row and point, with a (batch, m, k, rows, points) and b (batch,
    // k, p, rows, points). The first three axes may have any strides. Returns an object that repeats the product on
    // other arrays.
    PointsProduct matmul_points(const StridedArray &a, const StridedArray &b, const StridedOut &out) const;

    // out = 1 / x in the ring for each item of x (items, words, degree); the ring has one modulus, a prime. degrees:
    // (items,) int64, the degree of the common factor of x and the ring's polynomial; 0 if x has an inverse. If x has
    // no inverse, the item of out is unspecified.
    void invert(const Array &x, Quotient quotient, const Out &out, const Out &degrees) const;

    // Checks c = a * b modulo X^n - 1 or X^n + 1 at points (rows, count), canonical. Returns the index of the first
    // wrong row of c, or -1. For a wide modulus, returns the index of an item instead of a row. If q is prime, a wrong
    // product passes at one uniformly random point with a probability of at most (degree - 1) / q.
    int64_t find_wrong_product(const Array &a, const Array &b, const Out &c, const Array &points,
                               Quotient quotient) const;

  private:
    bool narrow_;                  // residues are stored in 32 bits, else in 64
    std::vector<Modulus> moduli_;  // empty for a wide modulus
    WideModulus wide_;
};

// y[i] = x[index[i]]. The entries of a cache line of y come from one or two cache lines anywhere in x. Hardware does
// not prefetch such lines, so the function does.
template <class T, class I> void permute_row(const T *x, const I *index, T *y, size_t n) {
    constexpr size_t LINE = 64 / sizeof(T), AHEAD = 16 * LINE;
    for (size_t i = 0; i < n; i += LINE) {
        if (i + AHEAD < n) __builtin_prefetch(x + index[i + AHEAD]);
        for (size_t j = i; j < std::min(n, i + LINE); ++j) y[j] = x[index[j]];
    }
}

// Repeats a call of Basis::matmul_points on arrays at other addresses, with the shapes and strides of the call.
class PointsProduct {
  public:
    PointsProduct(const Basis &basis, const StridedArray &a, const StridedArray &b, const StridedOut &out);
    // Arrays are checked for dtypes and sizes, not for shapes.
    void run(const Array &a, const Array &b, const Out &out) const;
    void run(const void *a, const void *b, void *out) const;

  private:
    // Strides of an array of matrices, in entries. reach: length in memory from the first to the last entry, in
    // entries; 0 if a stride is negative.
    struct Place {
        ptrdiff_t item, row, column;
        size_t reach;
    };
    Place place(const Array &x, size_t height, size_t width) const;
    template <class T> void run_words(const T *a, const T *b, T *out) const;

    const Basis *basis_;
    size_t batch_, m_, k_, p_, points_;
    Place a_, b_, out_;
};

}  // namespace pg
