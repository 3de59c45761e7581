// From residues to integers: the Chinese remainder theorem.
#pragma once
#include <vector>

#include "basis.hpp"
#include "kernels.hpp"

namespace pg {

struct Worker;

// Every call takes canonical residues x (*batch, rows, n) and computes the integers that x represents. The integers are
// in [0, Q) or, if `centered`, in [-Q/2, Q/2).
class Composition {
  public:
    // The basis must outlive the object. polygpu/_core/plans/crt.py makes the tables. A wide modulus needs no tables.
    // words: number of 64-bit words for an integer in (-Q, Q), in two's complement. inverse: 1 / (Q / q_i) mod q_i for
    // each limb. terms, modulus: see SumWords. m: the least number of first limbs whose product is Q or at least 2^65.
    // prefix_inverse: (m, m), entry (i, j) is 1 / q_j mod q_i for j < i. bounds: (2, 2, m). Axis 0: `centered` false,
    // true. Axis 1: `most`, `least` of MixedWords.
    Composition(const Basis &basis, size_t words, const Numbers &inverse, const Numbers &terms, const Numbers &modulus,
                const Numbers &prefix_inverse, const Numbers &bounds);

    // Writes the integers to out (*batch, n, words), as words of 64 bits.
    void to_words(const Array &x, bool centered, const Out &out) const;
    // Writes the integers to out (*batch, n), int64. Returns the index of the first integer that does not fit, or -1.
    int64_t to_int64(const Array &x, bool centered, const Out &out) const;
    // Writes the doubles nearest to the integers, with ties to even, to out (*batch, n). If an integer is too large,
    // its double is an infinity.
    void to_float64(const Array &x, bool centered, const Out &out) const;
    // Writes a norm of the centred integers x of each item to out (*batch, length).
    //   p = 0: the largest |x|, length = words
    //   p = 1: the sum of |x|, length = words + 1
    //   p = 2: the sum of x^2, length = 2 * words + 1
    void norm(const Array &x, int p, const Out &out) const;

  private:
    // Cuts the items into parts. For each part, calls use = make(number of the part, item), then use(digits, first,
    // count) for all blocks of the part. A block has the integers first ... first + count - 1 of the item. Digit d
    // (SumWords) of integer first + j is digits[d * count + j]. products: estimated work for a residue, in modular
    // products.
    template <class Make> void run(const Array &x, bool centered, double products, const Make &make) const;
    template <class T, class Use>
    void compose(const T *x, size_t n, size_t begin, size_t end, bool centered, const Worker &worker, Use &use) const;
    template <class Use>
    void compose_wide(const u64 *x, size_t n, size_t begin, size_t end, bool centered, const Worker &worker,
                      Use &use) const;
    // Writes integer j to y[j] for begin <= j < end. Returns the first j whose integer does not fit, or -1.
    template <class T>
    int64_t fit(const T *x, size_t n, size_t begin, size_t end, bool centered, const Worker &worker, u64 *y) const;
    size_t items(const Array &x) const;
    SumWords sums(bool centered) const;

    const Basis &basis_;
    size_t words_, digits_, prefix_ = 0;
    bool narrow_ = true;
    std::vector<u64> inverse_, terms_, modulus_, prefix_inverse_, bounds_;
    std::vector<u64> halves_[2], zero_, radix_;  // halves_: digits of floor(Q / 2) and of Q - floor(Q / 2)
    std::vector<double> reciprocal_;
    u64 prefix_product_ = 1;  // the product of the first m moduli (prefix_), modulo 2^64
};

}  // namespace pg
