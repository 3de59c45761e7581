// Tables of twiddles and searches for roots, in exact scalar arithmetic; twiddles of the complex FFT.
#pragma once
#include "array.hpp"
#include "quotient.hpp"

namespace pg {

// Twiddles of a transform of `points` = 2^e >= 2 points, by node of the tree of factors (kernels.hpp). If `root` has
// the order 2 * points (negacyclic), w[2^d + i] = root^(bit reversal of 2^d + i in e bits). If it has the order
// `points` (cyclic), w[2^d + i] = root^(bit reversal of i in e - 1 bits). If it has the order 3 * points (trinomial),
// see docs/math.md and quotient.hpp. Entry 0 of the forward table is 1. Entries 0 and 1 of the inverse table contain
// the factor 1/points.
template <class T>
void fill_twiddles(u64 q, u64 root, Quotient quotient, size_t points, T *forward, T *forward_shoup, T *inverse,
                   T *inverse_shoup);

// Like fill_twiddles, but fills arrays (2, points) of 32-bit or 64-bit words with twiddles, then their Shoup quotients.
void fill_twiddle_tables(u64 q, u64 root, Quotient quotient, const Out &forward, const Out &inverse);

// Writes number[i] in [-q/2, q/2], congruent to w[i] modulo q, and ratio[i] = number[i] / q. Needs w[i] < q < 2^50.
void fill_numbers(const Modulus &m, const u64 *w, size_t points, double *number, double *ratio);

// Returns the smallest generator of the group that `root` generates. order: the order of this group.
u64 smallest_generator(u64 q, u64 root, u64 order);

// Returns the tables for rows of `points` = 2^k <= FFT_MAX_POINTS. They are made at the first use and kept.
template <class T> Fft<T> make_fft(size_t points);

}  // namespace pg
