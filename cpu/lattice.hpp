// Key switching, sums over digits of products with a key, row by row; products with gadget ciphertexts
// (polygpu/_core/plans/switch.py).
#pragma once
#include <vector>

#include "array.hpp"
#include "multiply.hpp"

namespace pg {

// out[c] = sum over j of digit[j] key[j, c], modulo each limb of a transform.
class DigitProduct {
  public:
    // own_digits, own_rows: for each limb, the digit that is the value itself modulo that limb, or `digits` where none
    // is, and the row of the evaluated value where it lies. key_rows: for each limb its row in the key, of key_total
    // rows. index: the permutation by which digits are read, n entries, or none. transformed: all digits are evaluated
    // already. With an index they must be, and no digit may be an own row. The transform must outlive the object.
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

// Products with gadget ciphertexts modulo one q, by the transform of a ring or by FFT: polygpu/_ops/gadget.py.
class GadgetProduct {
  public:
    // Digits are to the base 2^bits. A product by FFT multiplies a polynomial of such digits by one that `product`
    // splits into its own digits. At most one of transform and product is not null; it and the basis must outlive the
    // object.
    GadgetProduct(const Basis &basis, const Transform *transform, const FftProduct *product, unsigned bits,
                  unsigned levels);

    // x (*batch, 1, n), out (*batch, levels, 1, n)
    void decompose(const Array &x, const Out &out) const;
    // The spectra of a matrix, as products by FFT read them: x (*batch, 1, n), out (*batch, digits, length/2), complex
    void prepare(const Array &x, const Out &out) const;
    // out = G c, with c and out (*batch, k, 1, n) in coefficients. All items share the matrix G: (k, levels, k, 1, n),
    // evaluated, or (k, levels, k, digits, length/2), from prepare
    void multiply(const Array &ggsw, const Array &c, const Out &out) const;
    // out = c times X to the power of e_0 + sum of e_i s_i, for exponents e (*batch, 1 + count) below the order of X
    // and bits s_i, which the matrices ggsws (count, ...) hide
    void rotate(const Array &ggsws, const Array &c, const Numbers &exponents, const Out &out) const;

  private:
    // What all ciphertexts have in common.
    struct Item {
        size_t components, n;
        size_t scratch;  // bytes of scratch memory for one product
        double seconds;  // estimated, for one product
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
