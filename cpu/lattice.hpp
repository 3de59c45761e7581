// Key switching: sums over digits of products with a key, row by row (polygpu/plans/lattice.py).
#pragma once
#include <vector>

#include "array.hpp"
#include "transform.hpp"

namespace pg {

// out[c] = sum over j of digit[j] key[j, c], modulo each limb of a transform.
class DigitProduct {
  public:
    // Of each limb: the digit that row `own_rows` of the evaluated value is modulo it, or `digits` where there is none;
    // its row in the key, of key_total. index: the order in which digits are read, n entries, or none. transformed:
    // digits are evaluated already. The transform must live as long.
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

}  // namespace pg
