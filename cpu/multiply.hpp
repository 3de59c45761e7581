// Exact products of polynomials modulo any q, for rings that have no complete transform, or whose transform is slower.
#pragma once
#include <vector>

#include "transform.hpp"
#include "wide.hpp"

namespace pg {

// Products modulo any q. Enough auxiliary primes give the exact product over the integers, which is then reduced.
class Auxiliary {
  public:
    // transform: a transform modulo the auxiliary primes. Either its degree and polynomial are those of the ring, or it
    // is cyclic and long enough for linear products. Basis and transform must outlive the object.
    Auxiliary(const Basis &basis, const Transform &transform, size_t degree, Quotient quotient);

    void multiply(const Array &a, const Array &b, const Out &out) const;

  private:
    size_t limb_count() const { return basis_.wide() ? 1 : basis_.rows(); }
    size_t words() const { return basis_.wide() ? basis_.rows() : 1; }  // words of a residue
    void compose(const u64 *digits, size_t limb, u64 *value, u64 *scratch) const;
    std::vector<u64> reduced_product(size_t limb) const;
    template <class T> bool upper_half(size_t limb, const T *x, size_t stride) const;
    template <class T> void spread(const T *x, size_t limb, u64 *y, const Worker &worker) const;
    template <class T> void gather(const u64 *x, size_t limb, T *y, const Worker &worker) const;
    void signed_value(const u64 *x, size_t limb, u64 *digits, u64 *value, u64 *scratch) const;
    void combine(size_t limb, u64 *x, const u64 *y, bool negative) const;
    template <class T> void run(const Array &a, const Array &b, const Out &out) const;

    const Basis &basis_;
    const Transform &transform_;
    size_t degree_;
    Quotient quotient_;
    MixedRadix radix_;
    std::vector<u64> q_mod_p_;        // q of a limb modulo a prime: [prime * limbs + limb]
    std::vector<u64> product_mod_q_;  // the product of the primes modulo each limb, in words
};

// Products modulo any q. The product over the integers is computed by complex transforms of digits, and then reduced.
class FftProduct {
  public:
    // The basis must outlive the object. length: the degree if the ring's polynomial is X^degree + 1 and degree is a
    // power of two; else at least 2 * degree - 1, for linear products. digits, width, sums: see ProductRow
    // (kernels.hpp). table: length/2 twiddles (ProductRow). terms: 0 for multiply(). If terms > 0, use only row() and
    // compose_row(), for sums of `terms` products; in each product, one factor has a single digit of `bits` bits.
    FftProduct(const Basis &basis, size_t degree, size_t length, Quotient quotient, unsigned digits, unsigned width,
               unsigned sums, const Lasting<Numbers> &table, unsigned terms, unsigned bits);

    void multiply(const Array &a, const Array &b, const Out &out) const;

    size_t degree() const { return degree_; }
    size_t length() const { return length_; }
    Quotient quotient() const { return quotient_; }
    // Returns the ProductRow of a limb. Kernels take it as an argument.
    ProductRow row(size_t limb, const Worker &worker) const;
    // y = the residues of sums of products; the sums are overwritten. room: memory for `length` residues, needed only
    // if length is not the degree.
    template <class T> void compose_row(Complex *sums, T *room, T *y, const ProductRow &row) const;

  private:
    template <class T> void run(const Array &a, const Array &b, const Out &out) const;

    const Basis &basis_;
    size_t degree_, length_;
    Quotient quotient_;
    unsigned digits_, width_, sums_, group_;
    std::vector<u64> weights_, shoup_;  // both are indexed by limb * MAX_SUMS + group
    Memory table_;
};

}  // namespace pg
