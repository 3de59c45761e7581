// Chooses the instruction set and its kernels, and estimates how long their work takes.
#pragma once
#include <string>
#include <vector>

#include "kernels.hpp"

namespace pg {

std::vector<std::string> all_isas();        // those of all machines, the best first
std::vector<std::string> supported_isas();  // those of this CPU, the best first
std::string isa_in_use();                   // the best, until set_isa names another
void set_isa(const std::string &name);

// T is u32 or u64, the word that stores residues. Rows that are too short for a kernel use the portable one.
template <class T> const RowKernels<T> &kernels(const Modulus &m, size_t degree);
// Kernels for pointwise operations, which take rows of any length.
template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m);
// Kernels for `combine`, whose input words are below 2^bits.
template <class T> const RowKernels<T> &combine_kernels(const Modulus &m, unsigned bits);
template <class T> const WordKernels<T> &word_kernels();
template <class T> const ProductKernels<T> &product_kernels(size_t length);
const IntegerKernels &integer_kernels();
const ByteKernels &byte_kernels();
// T is float or double.
template <class T> const FftKernels<T> &fft_kernels();

// The library's only model of how long work takes on a core: the costs of the instruction set in use. It decides how a
// ring multiplies, how many threads work, and whether the caller's lock is released.
const Costs &costs();
double layer_ns(const Modulus &m, bool narrow);    // estimated time for a coefficient in one layer of a transform
double product_ns(const Modulus &m, bool narrow);  // estimated time for a product that is added to a sum
// Estimated seconds of work modulo moduli of at most 31 bits in words of 32, or 50 bits in words of 64. Basis has the
// same functions for its own moduli.
inline double seconds_products(double count) { return 1e-9 * costs().product[0] * count; }
inline double seconds_pointwise(size_t n) { return seconds_products((double)n); }
inline double seconds_sums(double terms) { return 1e-9 * costs().sum * terms; }
inline double seconds_fft(double reals) { return 1e-9 * costs().fft * reals; }
// The layers of a transform, plus one for its loads and stores.
inline double layers(size_t n) { return (double)(64 - __builtin_clzll(n | 1)); }

}  // namespace pg
