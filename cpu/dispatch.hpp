// Which instruction set and which of its kernels serve, and how long their work takes.
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
// Pointwise loops finish rows of any length themselves.
template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m);
// For combine, of words that are below 2^bits.
template <class T> const RowKernels<T> &combine_kernels(const Modulus &m, unsigned bits);
template <class T> const EstimateKernels<T> &estimate_kernels();
template <class T> const GemmKernels<T> &gemm_kernels();
const SamplingKernels &sampling_kernels_in_use();
template <class T> const ProductKernels<T> &product_kernels(size_t length);
const IntegerKernels &integer_kernels();
// T is float or double.
template <class T> const FftKernels<T> &fft_kernels();

// Estimates in seconds, with AVX-512, for the number of threads and for whether the caller's lock is given away.
inline double seconds_pointwise(size_t n) { return 0.3e-9 * (double)n; }
inline double seconds_products(double count) { return 0.3e-9 * count; }
inline double seconds_transform(size_t n) { return 0.12e-9 * (double)n * (double)(64 - __builtin_clzll(n | 1)); }
double isa_slowness();                                  // times as long as with AVX-512, about; NEON as portable
double strict_slowness(const Modulus &m, bool narrow);  // the same for moduli of 32 or of 63 and 64 bits

}  // namespace pg
