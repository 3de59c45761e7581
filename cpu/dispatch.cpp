#include "dispatch.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace pg {
namespace {

const Isa *const ISAS[] = {&isa_avx512, &isa_avx512dq, &isa_avx2, &isa_neon, &isa_portable};  // the best first

bool supported(const Isa &isa) {
    if (!isa.name) return false;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512dq =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (&isa == &isa_avx512) return avx512dq && __builtin_cpu_supports("avx512ifma");
    if (&isa == &isa_avx512dq) return avx512dq;
    if (&isa == &isa_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return &isa == &isa_portable || &isa == &isa_neon;  // code compiled for NEON runs on machines with NEON
}

const Isa *best_isa() {
    return *std::find_if(std::begin(ISAS), std::end(ISAS), [](const Isa *isa) { return supported(*isa); });
}
std::atomic<const Isa *> current_isa{best_isa()};

const Isa &current() { return *current_isa.load(std::memory_order_relaxed); }

// The kernels of the instruction set in use, or the portable ones where its function `some` is null.
template <class K, class F> const K &kernels_of(K Isa::*table, F K::*some) {
    const K &fast = current().*table;
    return fast.*some ? fast : isa_portable.*table;
}

const RowKernels<u32> &slot(const Isa &isa, const Modulus &m, u32) {
    return m.bits <= 30 ? isa.q30 : m.bits <= 31 ? isa.q31 : isa.q32;
}
const RowKernels<u64> &slot(const Isa &isa, const Modulus &m, u64) {
    if (m.bits <= 46 && isa.q46.forward) return isa.q46;  // else q50 serves
    if (m.bits <= 50) return isa.q50;
    if (m.bits <= 60 && isa.q60.forward) return isa.q60;
    if (m.q == GOLDILOCKS && isa.goldilocks.forward) return isa.goldilocks;
    return m.bits <= 62 ? isa.q62 : isa.q64;
}
const ProductKernels<u32> &slot(const Isa &isa, u32) { return isa.product32; }
const ProductKernels<u64> &slot(const Isa &isa, u64) { return isa.product64; }

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Isa *isa : ISAS)
        if (supported(*isa)) names.push_back(isa->name);
    return names;
}

std::string isa_in_use() { return current_isa.load()->name; }

void set_isa(const std::string &name) {
    for (const Isa *isa : ISAS)
        if (supported(*isa) && name == isa->name) {
            current_isa = isa;
            return;
        }
    throw std::invalid_argument("this CPU has no " + name);
}

template <class T> const RowKernels<T> &kernels(const Modulus &m, size_t degree) {
    const RowKernels<T> &fast = slot(current(), m, T());
    return fast.forward && degree >= fast.least_degree ? fast : slot(isa_portable, m, T());
}
template const RowKernels<u32> &kernels(const Modulus &, size_t);
template const RowKernels<u64> &kernels(const Modulus &, size_t);

template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m) { return kernels<T>(m, ~(size_t)0); }
template const RowKernels<u32> &pointwise_kernels(const Modulus &);
template const RowKernels<u64> &pointwise_kernels(const Modulus &);

template <class T> const RowKernels<T> &combine_kernels(const Modulus &m, unsigned bits) {
    Modulus larger = m;  // kernels for larger moduli serve smaller ones too; those of q62 take any words
    if (m.bits <= 62 && sizeof(T) == 8) larger.bits = bits > 62 ? 62 : bits;
    const RowKernels<T> &fast = slot(current(), larger, T());
    return fast.combine ? fast : slot(isa_portable, larger, T());
}
template const RowKernels<u32> &combine_kernels(const Modulus &, unsigned);
template const RowKernels<u64> &combine_kernels(const Modulus &, unsigned);

template <class T> const EstimateKernels<T> &estimate_kernels() {
    if constexpr (sizeof(T) == 4) return kernels_of(&Isa::estimate32, &EstimateKernels<T>::add_ratios);
    else return kernels_of(&Isa::estimate64, &EstimateKernels<T>::add_ratios);
}
template const EstimateKernels<u32> &estimate_kernels();
template const EstimateKernels<u64> &estimate_kernels();

template <class T> const ProductKernels<T> &product_kernels(size_t length) {
    const ProductKernels<T> &fast = slot(current(), T());
    return fast.multiply && length >= fast.least_length ? fast : slot(isa_portable, T());
}
template const ProductKernels<u32> &product_kernels(size_t);
template const ProductKernels<u64> &product_kernels(size_t);

template <class T> const GemmKernels<T> &gemm_kernels() {
    if constexpr (sizeof(T) == 4) return kernels_of(&Isa::gemm32, &GemmKernels<T>::multiply);
    else return kernels_of(&Isa::gemm64, &GemmKernels<T>::multiply);
}
template const GemmKernels<u32> &gemm_kernels();
template const GemmKernels<u64> &gemm_kernels();

const SamplingKernels &sampling_kernels_in_use() { return kernels_of(&Isa::sampling, &SamplingKernels::draw); }
const IntegerKernels &integer_kernels() { return kernels_of(&Isa::integers, &IntegerKernels::widen); }

template <class T> const FftKernels<T> &fft_kernels() {
    if constexpr (sizeof(T) == 4) return kernels_of(&Isa::fft_float, &FftKernels<T>::transform);
    else return kernels_of(&Isa::fft_double, &FftKernels<T>::transform);
}
template const FftKernels<float> &fft_kernels();
template const FftKernels<double> &fft_kernels();

double isa_slowness() {
    const Isa *isa = &current();
    return isa == &isa_portable || isa == &isa_neon ? 8 : isa == &isa_avx2 ? 3 : 1;
}

double strict_slowness(const Modulus &m, bool narrow) {
    const Isa &isa = current();
    const bool vectors = &isa != &isa_portable &&
                         (narrow ? slot(isa, m, u32()).forward != nullptr : slot(isa, m, u64()).forward != nullptr);
    if (!vectors) return 25;  // a division for each product
    return (narrow ? 2 : 5) * (&isa == &isa_avx2 ? 2 : 1);
}

}  // namespace pg
