// Basis conversion: residues modulo some moduli from residues modulo others, coefficient by coefficient (docs/math.md,
// "Conversion between bases"; polygpu/_core/plans/rns.py computes the constants).
#pragma once
#include <string>
#include <vector>

#include "array.hpp"
#include "kernels.hpp"
#include "lazy.hpp"
#include "transform.hpp"

namespace pg {

// Rows of residues in an array (*batch, count, n).
struct Residues {
    std::vector<Modulus> moduli;  // the modulus of each row
    std::vector<size_t> at;       // index of each row in the array
    size_t count = 0;             // how many rows the array has

    Residues() = default;
    Residues(const std::vector<u64> &moduli, const std::vector<size_t> &at, size_t count);
    size_t size() const { return at.size(); }
    unsigned bits() const;  // bits of the largest modulus
};

// Computes floor(sum of z_i / q_i), or another number that `way` names, from canonical residues z_i. Results are exact.
class Quotients {
  public:
    Quotients() = default;
    // way: what is computed. "none": nothing. "floor": floor(sum of z_i / q_i). "nearest": floor(sum of z_i / q_i +
    // 1/2). "counted": the number of z_i >= q_i / 2. words: (1 + rows, count), the product P of the moduli and each P /
    // q_i, little-endian.
    Quotients(const std::string &way, const std::vector<u64> &moduli, const Numbers &words);

    bool wanted() const { return way_ != Way::none; }
    size_t rows() const { return moduli_.size(); }
    // z: n residues of each row. sums: scratch memory for n numbers.
    template <class T> void find(const T *const *z, size_t n, double *sums, T *quotient) const;

  private:
    enum class Way { none, floor, nearest, counted };
    template <class T> bool reaches(const T *const *z, size_t j, u64 boundary) const;

    Way way_ = Way::none;
    std::vector<u64> moduli_, words_;  // the modulus 2^64 is held as 0
    std::vector<double> ratios_;       // 1 / q_i
    size_t count_ = 0;
    double guard_ = 0;
};

class Conversion {
  public:
    // Row j of the target is a sum of terms, each times its factor in row j of the matrix (target, terms). The terms:
    //   - y_i = x_i * inverse_i for each row of the source;
    //   - the quotient, if wanted;
    //   - if the value is scaled, two terms: the sum of the low 16 bits of all whole parts, plus the fraction; and the
    //     sum of the other bits of all whole parts (see scale());
    //   - row j of the target itself, if it accumulates;
    //   - row j of `own`, if there are such rows.
    // If there is a `transform`, it is applied to the sum of all terms but the row of `own`. `transform` has a limb for
    // each row of the target, and must outlive the object.
    Conversion(Residues source, std::vector<u64> inverses, Quotients quotients, Residues target, bool accumulates,
               const Transform *transform, Residues own, const Numbers &matrix);
    // Adds the two terms of a scaled value to each sum (see the constructor). `remainders` has a number r_i for each
    // source row i in `rows`. The whole part of row i is the integer w_i for which y_i * r_i = q_i * w_i + z_i with z_i
    // in [0, q_i). The fraction is the integer nearest to the sum of all z_i / q_i.
    void scale(std::vector<size_t> rows, std::vector<u64> remainders, Quotients fractions);

    // x (*batch, source.count, n), own (*batch, own.count, n) or none, out (*batch, target.count, n). Each array has
    // words of 32 or 64 bits.
    void run(const Array &x, const Array &own, const Out &out) const;

  private:
    // Words for the kernels, with the rows of the target as rows. w: the matrix. shoup: the Shoup quotients of w.
    template <class W> struct Factors {
        std::vector<W> w, shoup;
    };
    template <class W> void run_words(const Array &x, const Array &own, const Out &out) const;
    template <class W> void finish_rows(const Array &own, const Out &out) const;
    template <class W> const Factors<W> &factors() const;

    Residues source_, target_, own_;
    std::vector<u64> inverses_, matrix_;
    Quotients quotients_, fractions_;
    std::vector<size_t> scaled_;
    std::vector<u64> remainders_;
    bool accumulates_;
    const Transform *transform_;
    size_t terms_;
    mutable Lazy<Factors<u32>> narrow_;
    mutable Lazy<Factors<u64>> wide_;
};

}  // namespace pg
