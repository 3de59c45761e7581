// Key switching (sums over digits of products with a key), row by row, and products with gadget ciphertexts
// (polygpu/_core/plans/switch.py).
#pragma once
#include <vector>

#include "array.hpp"
#include "multiply.hpp"

namespace pg {

// out[c] = sum over j of digit[j] * key[j, c], modulo each limb of a transform.
class DigitProduct {
  public:
    // The transform must outlive the object. own_digits, own_rows and key_rows have an entry for each limb. own_digits:
    // index of the digit that equals the decomposed value modulo the limb; `digits` if no digit does. own_rows: index
    // of the row of `own` (see run) that contains the evaluated digit. key_rows: index of the row of the key.
    // key_total: number of rows of the key. transformed: whether all digits are evaluated.
    DigitProduct(const Transform &transform, size_t digits, std::vector<size_t> own_digits,
                 std::vector<size_t> own_rows, size_t own_total, std::vector<size_t> key_rows, size_t key_total,
                 bool transformed);

    // digits (*batch, digits, limbs, n), own (*batch, own_total, n) or none, key (at least digits, 2, key_total, n),
    // out (*batch, 2, limbs, n).
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
};

// The order in which an automorphism reads the entries of an evaluated row.
class Order {
  public:
    // index: int64, a permutation of 0 ... n - 1
    explicit Order(const Numbers &index);

    size_t size() const { return index_.size(); }
    // y = the entries of the row x in this order.
    template <class T> void apply(const T *x, T *y) const;

  private:
    bool is_identity_ = true;
    std::vector<u32> index_;
};

// out[g] = sum over terms t of weight_(g, t) * rho_t(sum over j of digit[j] * key_t[j] + (f * more[0], 0)), modulo each
// limb. A term without a key is weight_(g, t) * rho_t(f * more). rho_t: the automorphism of term t. f: the factor of
// the limb. more: a value of two components.
class RotatedSums {
  public:
    struct Term {
        const Order *order;            // the order in which the term's automorphism reads a row
        std::vector<size_t> key_rows;  // row of the key for each limb (key_total rows); empty without a key
        size_t key_total;
    };

    // Transform and orders must outlive the object. factors and more_rows have an entry for each limb. factors:
    // multiplier of `more`. more_rows: index of the row of `more`. more_total: number of rows of `more`. turned:
    // whether automorphisms are applied to the sums (else to the digits). split: whether each term has its own digits
    // and its own `more`. places: (results, terms), index of the weight, or -1 if the term does not belong to the
    // result.
    RotatedSums(const Transform &transform, size_t digits, std::vector<Term> terms, std::vector<u64> factors,
                std::vector<size_t> more_rows, size_t more_total, bool turned, bool split,
                std::vector<std::vector<i64>> places);

    // digits: ([keys,] *batch, digits, limbs, n), or none if no term has a key. more: ([terms,] *batch, 2, more_total,
    // n). The axes in brackets exist only if `split` is true: one entry for each term that has a key, and one for each
    // term. weights: (count, limbs, n), or none if all weights are 1. out: (results, *batch, 2, limbs, n). keys: for
    // each term that has a key, an array (at least digits, 2, key_total, n).
    void run(const Array &digits, const Array &more, const Array &weights, const Out &out,
             const std::vector<Array> &keys) const;

  private:
    template <class T> struct Call;
    bool starts(size_t result, size_t term) const;  // whether the term is the first of the result
    template <class T>
    void run_words(const Array &digits, const Array &more, const Array &weights, const Out &out,
                   const std::vector<Array> &keys) const;
    template <class T> void run_row(const Call<T> &call, size_t item, size_t limb, const Worker &worker) const;
    template <class T>
    void add_term(const Call<T> &call, size_t item, size_t limb, size_t term, const T *x, size_t step) const;

    const Transform &transform_;
    size_t digits_;
    std::vector<Term> terms_;
    std::vector<u64> factors_;
    std::vector<size_t> more_rows_;
    size_t more_total_;
    bool turned_, split_;
    std::vector<std::vector<i64>> places_;
    size_t keyed_ = 0, weights_ = 0, places_taken_ = 0;  // terms with a key; weights; places that are not -1
};

// Products with gadget ciphertexts modulo one q, by the transform of a ring or by FFT (see polygpu/_ops/gadget.py).
class GadgetProduct {
  public:
    // Digits are to the base 2^bits. transform, product: at most one is not null. All objects passed must outlive this
    // object.
    GadgetProduct(const Basis &basis, const Transform *transform, const FftProduct *product, unsigned bits,
                  unsigned levels);

    // Writes the digits of x (*batch, 1, n) to out (*batch, levels, 1, n).
    void decompose(const Array &x, const Out &out) const;
    // For products by FFT: writes the spectra of a matrix x (*batch, 1, n) to out (*batch, digits, length/2), complex.
    void prepare(const Array &x, const Out &out) const;
    // out = G * c, with c and out (*batch, k, 1, n) in coefficients. All items share the matrix G: (k, levels, k, 1,
    // n), evaluated, or (k, levels, k, digits, length/2), made by `prepare`.
    void multiply(const Array &ggsw, const Array &c, const Out &out) const;
    // out = c times X to the power of e_0 + sum of e_i * s_i, for exponents e (*batch, 1 + count) below the order of X.
    // ggsws: (count, ...), matrices that encrypt the bits s_i.
    void rotate(const Array &ggsws, const Array &c, const Numbers &exponents, const Out &out) const;

  private:
    // Sizes and costs of the product with one ciphertext.
    struct Item {
        size_t components, n;
        size_t scratch;  // bytes of scratch memory for one product
        double seconds;  // estimated time of one product
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
