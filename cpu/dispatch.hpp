// Chooses the instruction set and its kernels, and estimates how long their work takes.
#pragma once
#include <string>
#include <vector>

#include "kernels.hpp"

namespace pg {

std::vector<std::string> supported_isas();  // of this CPU, the best first
std::string isa_in_use();                   // the best, until set_isa names another
void set_isa(const std::string &name);

// Each T is u32 or u64, the word that stores residues. A row too short for a kernel goes to the portable one.
template <class T> const RowKernels<T> &kernels(const Modulus &m, size_t degree);
// For pointwise operations, which take rows of any length.
template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m);
// For combine, whose input words are below 2^bits.
template <class T> const RowKernels<T> &combine_kernels(const Modulus &m, unsigned bits);
template <class T> const EstimateKernels<T> &estimate_kernels();
template <class T> const GemmKernels<T> &gemm_kernels();
const SamplingKernels &sampling_kernels_in_use();
template <class T> const ProductKernels<T> &product_kernels(size_t length);
const IntegerKernels &integer_kernels();
// T is float or double.
template <class T> const FftKernels<T> &fft_kernels();

// Estimated seconds with AVX-512. They decide how many threads work and whether the caller's lock is released.
inline double seconds_pointwise(size_t n) { return 0.3e-9 * (double)n; }
inline double seconds_products(double count) { return 0.3e-9 * count; }
inline double seconds_transform(size_t n) { return 0.12e-9 * (double)n * (double)(64 - __builtin_clzll(n | 1)); }
double isa_slowness();                                  // time relative to AVX-512, roughly; NEON counts as portable
double strict_slowness(const Modulus &m, bool narrow);  // the same for moduli of 32 bits, or of 63 and 64

}  // namespace pg
