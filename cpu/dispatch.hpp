// Chooses the instruction set and its kernels, and estimates how long their work takes.
#pragma once
#include <string>
#include <vector>

#include "kernels.hpp"

namespace pg {

std::vector<std::string> all_isas();        // the instruction sets of all machines, the best first
std::vector<std::string> supported_isas();  // the instruction sets of this CPU, the best first
std::string isa_in_use();                   // the best one, until set_isa chooses another
void set_isa(const std::string &name);

// Returns the kernels for rows of `degree` residues modulo m. T is the word that stores residues, u32 or u64. If rows
// are too short for vectors, returns the portable kernels.
template <class T> const RowKernels<T> &kernels(const Modulus &m, size_t degree);
// Returns the kernels for pointwise operations, which take rows of any length.
template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m);
// Returns the kernels for `combine`. All input words of `combine` must be below 2^bits.
template <class T> const RowKernels<T> &combine_kernels(const Modulus &m, unsigned bits);
template <class T> const WordKernels<T> &word_kernels();
template <class T> const ProductKernels<T> &product_kernels(size_t length);
const IntegerKernels &integer_kernels();
const ByteKernels &byte_kernels();
// T is float or double.
template <class T> const FftKernels<T> &fft_kernels();

// Returns the costs of the instruction set in use. All estimates of time on a core follow from these costs.
const Costs &costs();
double layer_ns(const Modulus &m, bool narrow);    // estimated time for a coefficient in one layer of a transform
double product_ns(const Modulus &m, bool narrow);  // estimated time for a product that is added to a sum
// These functions estimate seconds on one core, for moduli of at most 31 bits in 32-bit words, or at most 50 bits in
// 64-bit words. For other moduli, see Basis.
inline double seconds_products(double count) { return 1e-9 * costs().product[0] * count; }
inline double seconds_pointwise(size_t n) { return seconds_products((double)n); }
inline double seconds_sums(double terms) { return 1e-9 * costs().sum * terms; }
inline double seconds_fft(double reals) { return 1e-9 * costs().fft * reals; }
// Returns how many layers a transform has, plus one for its loads and stores.
inline double layers(size_t n) { return (double)(64 - __builtin_clzll(n | 1)); }

}  // namespace pg
