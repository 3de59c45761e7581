// Turns random bytes into residues: uniform residues, or residues of small integers. All limbs of a coefficient get
// residues of the same small integer.
#pragma once
#include <vector>

#include "basis.hpp"
#include "kernels.hpp"

namespace pg {

// A distribution of small integers (polygpu/_core/plans/sampling.py).
class Sampler {
  public:
    // weights, thresholds: only for a Gaussian (see Draw in kernels.hpp). bytes: bytes of the stream for each integer.
    // bound: the largest absolute value of an integer, at most 2^62.
    Sampler(int shape, size_t bytes, u64 parameter, u64 bound, const Numbers &weights, const Numbers &thresholds);
    Sampler(const Sampler &) = delete;

    // Draws `count` coefficients of out (*batch, rows, degree), beginning with coefficient `first`, counted through all
    // polynomials. A sparse distribution draws whole polynomials, so `first` and `count` must be multiples of the
    // degree. stream: the random bytes of these coefficients, as 64-bit words.
    void draw(const Basis &basis, const Numbers &stream, size_t first, size_t count, const Out &out) const;

  private:
    u64 parameter_, bound_;
    Draw draw_;
    std::vector<u64> sorted_, buckets_;
};

// Reduces numbers modulo q, and writes them to coefficients first, first + 1, ... of `out`: to row `limb`, or to all
// rows if q is wide. words: the numbers, of 2 words each, or of rows + 1 words each if q is wide.
void reduce_words(const Basis &basis, const Numbers &words, size_t limb, size_t first, const Out &out);

}  // namespace pg
