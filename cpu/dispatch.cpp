#include "dispatch.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace pg {
namespace {

// The kernels of avx512. The kernels that avx512 lacks are taken from avx512dq.
const Isa with_ifma = completed(isa_avx512, isa_avx512dq);

struct Candidate {
    const Isa *isa;
    bool (*runs)();  // whether this CPU has the instructions
};

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512dq() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
bool has_avx512() { return has_avx512dq() && __builtin_cpu_supports("avx512ifma"); }
bool has_vnni() { return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"); }
#else
bool has_avx2() { return false; }
bool has_avx512dq() { return false; }
bool has_avx512() { return false; }
bool has_vnni() { return false; }
#endif
bool always() { return true; }  // code compiled for NEON runs on machines with NEON

// All instruction sets, the best first.
const Candidate CANDIDATES[] = {{&with_ifma, has_avx512},
                                {&isa_avx512dq, has_avx512dq},
                                {&isa_avx2, has_avx2},
                                {&isa_neon, always},
                                {&isa_portable, always}};

std::vector<const Isa *> isas(bool supported) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    std::vector<const Isa *> found;
    for (const Candidate &candidate : CANDIDATES)
        if (!supported || (candidate.isa->compiled() && candidate.runs())) found.push_back(candidate.isa);
    return found;
}
std::vector<std::string> names(const std::vector<const Isa *> &isas) {
    std::vector<std::string> found;
    for (const Isa *isa : isas) found.push_back(isa->name);
    return found;
}

std::atomic<const Isa *> current_isa{isas(true).front()};
const bool vnni = isa_avx512vnni.bytes.add && has_vnni();

const Isa &current() { return *current_isa.load(std::memory_order_relaxed); }

const RowKernels<u32> &slot(const Isa &isa, const Modulus &m, u32) {
    return m.bits <= 30 ? isa.q30 : m.bits <= 31 ? isa.q31 : isa.q32;
}
const RowKernels<u64> &slot(const Isa &isa, const Modulus &m, u64) {
    if (m.bits <= 46 && isa.q46.forward) return isa.q46;  // else q50 is used
    if (m.bits <= 50) return isa.q50;
    if (m.bits <= 60 && isa.q60.forward) return isa.q60;
    if (m.q == GOLDILOCKS && isa.goldilocks.forward) return isa.goldilocks;
    return m.bits <= 62 ? isa.q62 : isa.q64;
}
// Kinds of moduli: the indices of `layer` and `product` in Costs. ROOM: up to 31 bits in 32-bit words, or up to 50 bits
// in 64-bit words. ROOM_64: up to 62 bits in 64-bit words. STRICT_32, STRICT_64: larger moduli. SHIFTS: Goldilocks.
enum Kind { ROOM, ROOM_64, STRICT_32, STRICT_64, SHIFTS };
Kind kind_of(const Modulus &m, bool narrow) {
    if (m.q == GOLDILOCKS) return SHIFTS;
    if (narrow) return m.bits <= 31 ? ROOM : STRICT_32;
    return m.bits <= 50 ? ROOM : m.bits <= 62 ? ROOM_64 : STRICT_64;
}

}  // namespace

std::vector<std::string> all_isas() { return names(isas(false)); }
std::vector<std::string> supported_isas() { return names(isas(true)); }

std::string isa_in_use() { return current_isa.load()->name; }

void set_isa(const std::string &name) {
    for (const Isa *isa : isas(true))
        if (name == isa->name) {
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

template <class T> const WordKernels<T> &word_kernels() {
    const WordKernels<T> &fast = current().words<T>();
    return fast.reduce ? fast : isa_portable.words<T>();
}
template const WordKernels<u32> &word_kernels();
template const WordKernels<u64> &word_kernels();

template <class T> const ProductKernels<T> &product_kernels(size_t length) {
    const ProductKernels<T> &fast = word_kernels<T>().product;
    return length >= fast.least_length ? fast : isa_portable.words<T>().product;
}
template const ProductKernels<u32> &product_kernels(size_t);
template const ProductKernels<u64> &product_kernels(size_t);

const IntegerKernels &integer_kernels() {
    return current().integers.widen ? current().integers : isa_portable.integers;
}

const ByteKernels &byte_kernels() {
    const Isa &isa = current();
    const bool wide = &isa == &with_ifma || &isa == &isa_avx512dq;
    if (wide && vnni) return isa_avx512vnni.bytes;
    const Isa &own = wide ? isa_avx2 : isa;
    return own.bytes.add ? own.bytes : isa_portable.bytes;
}

template <class T> const FftKernels<T> &fft_kernels() {
    const FftKernels<T> &fast = current().fft<T>();
    return fast.transform ? fast : isa_portable.fft<T>();
}
template const FftKernels<float> &fft_kernels();
template const FftKernels<double> &fft_kernels();

const Costs &costs() { return current().costs; }
double layer_ns(const Modulus &m, bool narrow) { return costs().layer[kind_of(m, narrow)]; }
double product_ns(const Modulus &m, bool narrow) { return costs().product[kind_of(m, narrow)]; }

}  // namespace pg
