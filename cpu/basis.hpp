// The moduli of a ring and how their residues are stored; what works on each residue, and products of matrices.
#pragma once
#include <algorithm>
#include <vector>

#include "array.hpp"
#include "wide.hpp"

namespace pg {

class PointsProduct;

class Basis {
  public:
    // moduli: (limbs, words) little-endian; several words: one wide modulus; words of 0 stand for 2^(64 words)
    Basis(const Numbers &moduli, int storage_bits);

    bool wide() const { return moduli_.empty(); }
    bool narrow() const { return narrow_; }
    size_t rows() const { return wide() ? wide_.words() : moduli_.size(); }
    const std::vector<Modulus> &moduli() const { return moduli_; }
    const WideModulus &wide_modulus() const { return wide_; }
    // times as long as with AVX-512, about: the slowest of the moduli
    double slowness() const;

    // out = op(a, b, c), an Op of kernels.hpp; b and c may be none where it reads none
    void pointwise(int op, const Array &a, const Array &b, const Array &c, const Out &out) const;

    // out[j] = x[index[j]], negated where index[j] >= degree counts from degree
    void permute(const Array &x, const Numbers &index, const Out &out) const;

    // out = X^e x modulo X^n + 1, if negacyclic, or X^n - 1; an exponent e below the order of X for each item
    void turn(const Array &x, const Numbers &exponents, bool negacyclic, const Out &out) const;

    // out[j] = x[j] first step^j of each row; first and step: (*, rows, 1), of as many items as divide those of x,
    // which take them in turn
    void scale_by_powers(const Array &x, const Array &first, const Array &step, const Out &out) const;

    // out: residues of integers x of 1 to 8 bytes, (*batch, count <= degree); the rest of a row is zero
    void reduce_integers(const Numbers &x, const Out &out) const;

    // out (batch, m, n) = a b of any words, (batch or 1, m, k) and (batch or 1, k, n)
    void matmul(const Array &a, const Array &b, const Out &out) const;

    // out (batch, m, p, rows, points) = a b by row and point, (batch, m, k, rows, points) and (batch, k, p, rows,
    // points); the first three axes have any steps. Returns what does it again.
    PointsProduct matmul_points(const StridedArray &a, const StridedArray &b, const StridedOut &out) const;

    // out = 1 / x in the ring of the one modulus, a prime, for each item of (items, words, degree); degrees: (items,)
    // int64, of the common factor of x and X^n +- 1, 0 where x has an inverse. Items without one are unspecified.
    void invert(const Array &x, bool negacyclic, const Out &out, const Out &degrees) const;

    // Whether c = a b in the ring, at points (rows, count), canonical: the first wrong row of c, or -1.
    // A wrong product passes at one uniform point with probability (degree - 1) / q at most, for q prime.
    int64_t find_wrong_product(const Array &a, const Array &b, const Out &c, const Array &points,
                               bool negacyclic) const;

  private:
    bool narrow_;                  // words of 32 bits, else of 64
    std::vector<Modulus> moduli_;  // empty for a wide modulus
    WideModulus wide_;
};

// y[i] = x[index[i]]. Entries of a line of memory come from one line or two, which lie anywhere: they are read ahead.
template <class T, class I> void permute_row(const T *x, const I *index, T *y, size_t n) {
    constexpr size_t LINE = 64 / sizeof(T), AHEAD = 16 * LINE;
    for (size_t i = 0; i < n; i += LINE) {
        if (i + AHEAD < n) __builtin_prefetch(x + index[i + AHEAD]);
        for (size_t j = i; j < std::min(n, i + LINE); ++j) y[j] = x[index[j]];
    }
}

// y = X^e x of n entries modulo q, as Basis::turn
template <class T> void turn_row(const T *x, T *y, size_t n, u64 e, bool negacyclic, const Modulus &m);

// Basis::matmul_points for arrays that lie as those of one call, wherever they begin.
class PointsProduct {
  public:
    PointsProduct(const Basis &basis, const StridedArray &a, const StridedArray &b, const StridedOut &out);
    // of arrays with as many numbers as are read and written, in any shape
    void run(const Array &a, const Array &b, const Out &out) const;
    void run(const void *a, const void *b, void *out) const;

  private:
    // Of a matrix for each item, in entries; the entries from the first to the last, 0 where a step goes back.
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
