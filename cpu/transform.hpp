// The transform of all limbs of a ring, and products by it.
#pragma once
#include <cstring>
#include <vector>

#include "basis.hpp"
#include "kernels.hpp"
#include "lazy.hpp"
#include "threads.hpp"

namespace pg {

// The tables of a prime, which the transforms of all rings with that prime share.
class PrimeTables {
  public:
    // forward, inverse: (2, points), twiddles and their Shoup quotients (tables.hpp)
    PrimeTables(u64 modulus, const Lasting<Array> &forward, const Lasting<Array> &inverse);

    size_t points() const { return points_; }
    size_t word_bytes() const { return word_bytes_; }
    // numbers: whether kernels read the twiddles as doubles
    template <class T> Twiddles<T> forward(bool numbers) const { return twiddles<T>(0, numbers); }
    template <class T> Twiddles<T> inverse(bool numbers) const { return twiddles<T>(1, numbers); }

  private:
    template <class T> Twiddles<T> twiddles(int direction, bool numbers) const;
    const double *numbers() const;

    u64 modulus_;
    size_t points_, word_bytes_;
    Memory tables_[2];  // forward, inverse
    mutable Lazy<std::vector<double>> numbers_;
};

class Transform {
  public:
    // tables: one for each limb. They and the basis must outlive the transform.
    Transform(const Basis &basis, size_t degree, size_t leaf_size, size_t block, Quotient quotient,
              const std::vector<const PrimeTables *> &tables);

    // Transforms one row for each limb, beginning with row `first`; arrays may have more rows.
    void ntt(const Array &x, const Out &out, size_t first) const;
    void intt(const Array &x, const Out &out, size_t first) const;
    // Multiplies polynomials in coefficients: transforms, products and the inverse transform, row by row.
    void multiply(const Array &a, const Array &b, const Out &out) const;
    // Multiplies transformed operands, modulo the leaves, for any leaf_size.
    void multiply_eval(const Array &a, const Array &b, const Out &out) const;

    const Basis &basis() const { return basis_; }
    size_t degree() const { return degree_; }
    Quotient quotient() const { return quotient_; }

    // Transforms rows modulo one limb. y may be x.
    template <class T> struct LimbRow : Row<T> {
        const RowKernels<T> *kernels;
        void ntt(const T *x, T *y) const { run<true>(x, y); }
        void intt(const T *x, T *y) const { run<false>(x, y); }

      private:
        template <bool FORWARD> void run(const T *x, T *y) const;
    };
    template <class T> LimbRow<T> row(size_t limb, const Worker &worker) const;
    // Computes y = a * b in coefficients, for one row modulo one limb. The transformed operands go to `left` and
    // `right`, which may be a and b themselves. A square, a = b, leaves `right` untouched. y may be any of the other
    // arrays.
    template <class T>
    void multiply_row(const T *a, const T *b, T *left, T *right, T *y, size_t limb, const Worker &worker) const;

  private:
    template <class T, size_t SIZE>
    void multiply_leaves(const T *a, const T *b, T *y, size_t leaf, size_t some, const Row<T> &r) const;
    template <class T> void multiply_eval_row(const T *a, const T *b, T *y, const Row<T> &r) const;
    template <class T, bool FORWARD> void run(const Array &x, const Out &out, size_t first) const;
    template <class T, bool TRANSFORMED> void product(const Array &a, const Array &b, const Out &out) const;

    const Basis &basis_;
    size_t degree_, leaf_size_, points_, block_;
    Quotient quotient_;
    std::vector<const PrimeTables *> tables_;
};

}  // namespace pg
