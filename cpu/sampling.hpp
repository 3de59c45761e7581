// Random bytes to residues: uniform ones, and small integers that all limbs share.
#pragma once
#include <vector>

#include "basis.hpp"
#include "kernels.hpp"

namespace pg {

// A distribution of small integers (polygpu/plans/sampling.py).
class Sampler {
  public:
    // weights, thresholds: of a Gaussian; each integer takes `bytes` bytes of stream and is at most bound <= 2^62 in
    // size
    Sampler(int shape, size_t bytes, u64 parameter, u64 bound, const Numbers &weights, const Numbers &thresholds);
    Sampler(const Sampler &) = delete;

    // `count` coefficients of out, (*batch, rows, degree), from number `first` on, counted over its polynomials. Of a
    // sparse distribution whole polynomials. stream: words of their bytes.
    void draw(const Basis &basis, const Numbers &stream, size_t first, size_t count, const Out &out) const;

  private:
    u64 parameter_, bound_;
    Draw draw_;
    std::vector<u64> sorted_, buckets_;
};

// Coefficients first, first + 1, ... of out, in row `limb` (all rows of a wide modulus): numbers of one word more than
// a residue has, modulo q.
void reduce_words(const Basis &basis, const Numbers &words, size_t limb, size_t first, const Out &out);

}  // namespace pg
