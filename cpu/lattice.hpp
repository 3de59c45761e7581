// Key switching: sums over digits of products with a key, row by row (polygpu/plans/lattice.py).
#pragma once
#include <vector>

#include "array.hpp"
#include "multiply.hpp"

namespace pg {

// out[c] = sum over j of digit[j] key[j, c], modulo each limb of a transform.
class DigitProduct {
  public:
    // Of each limb: the digit that row `own_rows` of the evaluated value is modulo it, or `digits` where there is none;
    // its row in the key, of key_total. index: the order in which digits are read, n entries, or none. transformed:
    // digits are evaluated already; where there is an index they must be, and none is own. The transform must live as
    // long.
    DigitProduct(const Transform &transform, size_t digits, std::vector<size_t> own_digits,
                 std::vector<size_t> own_rows, size_t own_total, std::vector<size_t> key_rows, size_t key_total,
                 bool transformed, const Numbers &index);

    // digits (*batch, digits, limbs, n), own (*batch, own_total, n) or none, key (digits or more, 2, key_total, n),
    // out (*batch, 2, limbs, n)
    void run(const Array &digits, const Array &own, const Array &key, const Out &out) const;

  private:
    template <class T> void run_words(const Array &digits, const Array &own, const Array &key, const Out &out) const;

    const Transform &transform_;
    size_t digits_;
    std::vector<size_t> own_digits_, own_rows_;
    size_t own_total_;
    std::vector<size_t> key_rows_;
    size_t key_total_;
    bool transformed_;
    std::vector<u32> index_;
};

// Products with gadget ciphertexts modulo one q, by the transform of a ring or by FFT: polygpu/ops/gadget.py.
class GadgetProduct {
  public:
    // Digits to the base 2^bits; a product by FFT is that of a polynomial of such digits with one of the product's.
    // The basis and what multiplies, of which one at most is not null, must live as long.
    GadgetProduct(const Basis &basis, const Transform *transform, const FftProduct *product, unsigned bits,
                  unsigned levels);

    // x (*batch, 1, n), out (*batch, levels, 1, n)
    void decompose(const Array &x, const Out &out) const;
    // Matrices as products by FFT take them: x (*batch, 1, n), out (*batch, digits, length/2), complex
    void prepare(const Array &x, const Out &out) const;
    // out = G c, of coefficients c and out (*batch, k, 1, n) and for every item G (k, levels, k, 1, n), evaluated, or
    // (k, levels, k, digits, length/2)
    void multiply(const Array &ggsw, const Array &c, const Out &out) const;
    // out = c times X to the power of e_0 + sum of e_i s_i, of exponents (*batch, 1 + count) below the order of X, and
    // matrices G_i of s_i, (count, ...)
    void rotate(const Array &ggsws, const Array &c, const Numbers &exponents, const Out &out) const;

  private:
    // What all ciphertexts have in common.
    struct Item {
        size_t components, n;
        size_t scratch;  // bytes that a product computes in
        double seconds;  // that it takes
    };
    template <class T> void decompose_words(const Array &x, const Out &out) const;
    template <class T> void prepare_words(const Array &x, const Out &out) const;
    template <class T> void multiply_words(const Array &ggsw, const Array &c, const Out &out) const;
    template <class T>
    void rotate_words(const Array &ggsws, const Array &c, const Numbers &exponents, const Out &out) const;
    template <class T> Item item_of(const Array &c, const Out &out, const Array &ggsws, size_t count) const;
    size_t spectra() const;
    template <class T>
    void multiply_item(const void *ggsws, size_t index, const T *c, T *out, const Item &item, void *room,
                       const Worker &worker) const;
    template <class T>
    void transform_product(const T *ggsw, const T *c, T *out, size_t components, T *room, const Worker &worker) const;
    template <class T>
    void fft_product(const Complex *ggsw, const T *c, T *out, size_t components, Complex *room,
                     const Worker &worker) const;

    const Basis &basis_;
    const Transform *transform_;
    const FftProduct *product_;
    Gadget gadget_;
};

}  // namespace pg
