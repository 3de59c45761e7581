// Products of ciphertexts with gadget ciphertexts modulo 2^32 or 2^64, in doubles, with rounding errors
// (polygpu/_core/plans/torus.py).
#pragma once
#include <vector>

#include "array.hpp"
#include "kernels.hpp"

namespace pg {

class TorusProduct {
  public:
    // Computes modulo X^(2 * points) + 1 and 2^modulus_bits. twiddles: `points` numbers, like the table of FftProduct.
    // roots: entry k is exp(2 pi i k / (4 * points)).
    TorusProduct(unsigned modulus_bits, unsigned bits, unsigned levels, const Lasting<Numbers> &twiddles,
                 const Numbers &roots);

    // Reorders spectra (*batch, points) from the order of the leaves to the order that the kernels read.
    void arrange(const Numbers &leaves, const Out &out) const;
    // out = G * c. c and out: (*batch, k, 1, n). G: (k, levels, k, 1, points).
    void multiply(const Numbers &ggsw, const Array &c, const Out &out) const;
    // out = c times X to the power of e_0 + sum of e_i * s_i, for exponents e (*batch, 1 + count) below 2n. ggsws:
    // (count, ...), matrices that encrypt the bits s_i. If the modulus is 2^64 and all digits together have less than
    // 32 bits, the ciphertexts are rounded to the high 32 bits of their residues.
    void rotate(const Numbers &ggsws, const Array &c, const Numbers &exponents, const Out &out) const;
    // Blind rotation with keys (groups, 2^g, k, levels, k, 1, n) in coefficients. For each group of g exponents (the
    // last may be shorter), the ciphertext is multiplied by a sum over all subsets S of the group, with the terms
    // X^(sum of e_i, i in S) * (the matrix of S).
    void rotate_by_groups(const Array &keys, const Array &c, const Numbers &exponents, const Out &out) const;

  private:
    template <class W> TorusRow row(bool halved) const;
    template <class W>
    void product(const Complex *matrix, const W *c, bool turns, size_t e, W *out, size_t components, void *room,
                 size_t ahead, const TorusRow &row) const;
    template <class W> size_t scratch(size_t components) const;
    template <class T, class W, class Steps>
    void rotate_each(const Array &c, const Numbers &exponents, const Out &out, double seconds, size_t more,
                     const Steps &steps) const;
    template <class W> void multiply_words(const Numbers &ggsw, const Array &c, const Out &out) const;
    template <class T, class W>
    void rotate_words(const Numbers &ggsws, const Array &c, const Numbers &exponents, const Out &out) const;
    template <class T, class W>
    void rotate_words_by_groups(const Array &keys, const Array &c, const Numbers &exponents, const Out &out) const;

    // inverse: twiddles of the inverse transform. twist: factors of the results. halved_twist: like twist, for words
    // with only the high half of a residue.
    struct Tables {
        std::vector<Complex> inverse, twist, halved_twist;
    };
    Tables make_tables(const Complex *roots, size_t width) const;

    unsigned modulus_bits_, bits_, levels_;
    size_t points_;
    Memory forward_;
    std::vector<Tables> tables_;  // indexed by log2 of the number of doubles in a vector
};

}  // namespace pg
