// Chooses the instruction set and its kernels, and estimates how long their work takes.
#pragma once
#include <string>
#include <vector>

#include "kernels.hpp"

namespace pg {

std::vector<std::string> all_isas();        // of all machines, the best first
std::vector<std::string> supported_isas();  // those of this CPU, the best first
std::string isa_in_use();                   // the best, until set_isa names another
void set_isa(const std::string &name);

// Each T is u32 or u64, the word that stores residues. A row too short for a kernel goes to the portable one.
template <class T> const RowKernels<T> &kernels(const Modulus &m, size_t degree);
// For pointwise operations, which take rows of any length.
template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m);
// For combine, whose input words are below 2^bits.
template <class T> const RowKernels<T> &combine_kernels(const Modulus &m, unsigned bits);
template <class T> const WordKernels<T> &word_kernels();
template <class T> const ProductKernels<T> &product_kernels(size_t length);
const IntegerKernels &integer_kernels();
const ByteKernels &byte_kernels();
// T is float or double.
template <class T> const FftKernels<T> &fft_kernels();

// The one model of how long work takes on a core, by the costs of the instruction set in use. By it the library chooses
// how a ring multiplies, how many threads work, and whether the caller's lock is released.
const Costs &costs();
double layer_ns(const Modulus &m, bool narrow);    // for a coefficient in one layer of a transform
double product_ns(const Modulus &m, bool narrow);  // for a product that is added to a sum
// Of moduli with room, at most 31 or 50 bits long; Basis has those of its own moduli.
inline double seconds_products(double count) { return 1e-9 * costs().product[0] * count; }
inline double seconds_pointwise(size_t n) { return seconds_products((double)n); }
inline double seconds_sums(double terms) { return 1e-9 * costs().sum * terms; }
inline double seconds_fft(double reals) { return 1e-9 * costs().fft * reals; }
// The layers of a transform, and one for its loads and stores.
inline double layers(size_t n) { return (double)(64 - __builtin_clzll(n | 1)); }

}  // namespace pg
