// Runs each kernel of transforms, products and pointwise operations once, for the instruction sets that are named.
// Callgrind counts the instructions of each run. It writes the count under a name that consists of the instruction set,
// the kernel, the size, and the work by which ../core.py divides the count.
#include <valgrind/callgrind.h>

#include <cstdio>

#include "cases.hpp"

using namespace pg;

namespace {

constexpr size_t DEGREE = 4096, BLOCK = 2048;  // one stage works on two blocks, all others on one

template <class F> void count(const Isa *isa, const std::string &kernel, size_t size, size_t work, const F &run) {
    char name[128];
    std::snprintf(name, sizeof name, "%s %s %zu %zu", isa->name, kernel.c_str(), size, work);
    CALLGRIND_ZERO_STATS;
    run();
    CALLGRIND_DUMP_STATS_AT(name);
}

size_t levels(size_t n) { return (size_t)__builtin_ctzll(n); }

template <class T> void count_slot(const Isa *isa, const Slot<T> &slot) {
    const RowKernels<T> &kernels = isa->*slot.kernels;
    if (!kernels.forward) return;
    const std::string name = slot.name;
    const u64 q = prime_below(slot.largest ? slot.largest : ~(u64)0, 2 * DEGREE);
    for (size_t leaf_size : {1, 4}) {
        TransformCase<T> of(q, DEGREE, leaf_size, BLOCK);
        const size_t butterflies = DEGREE / 2 * levels(of.points);
        std::vector<T> x = residues<T>(DEGREE, of.m);
        const std::string leaves = leaf_size == 1 ? "" : "-leaf" + std::to_string(leaf_size);
        count(isa, name + "-forward" + leaves, DEGREE, butterflies,
              [&] { kernels.forward(x.data(), x.data(), of.row); });
        count(isa, name + "-inverse" + leaves, DEGREE, butterflies,
              [&] { kernels.inverse(x.data(), x.data(), of.row); });
    }
    const Modulus m = make_modulus(q);
    const std::vector<T> a = residues<T>(DEGREE, m), b = residues<T>(DEGREE, m);
    std::vector<T> y(DEGREE);
    const std::pair<const char *, Op> ops[] = {
        {"-add", Op::add}, {"-sub", Op::sub}, {"-neg", Op::neg}, {"-mul", Op::mul}, {"-mul_add", Op::mul_add}};
    for (const auto &[suffix, op] : ops)
        count(isa, name + suffix, DEGREE, DEGREE,
              [&, op = op] { kernels.pointwise(op, a.data(), b.data(), false, a.data(), y.data(), DEGREE, m); });
}
template <class T> void count_ffts(const Isa *isa, const std::string &name, const FftKernels<T> &kernels) {
    if (!kernels.transform) return;
    for (size_t points : {16, 64, 1024, 4096}) {
        FftCase<T> of(points, 4096 / points);
        for (bool inverse : {false, true})
            count(isa, name + (inverse ? "-inverse" : "-forward"), points, 4096 * levels(points),
                  [&] { of.run(kernels, inverse, of.x, of.y); });
    }
    FftCase<T> of(64, 16);
    const T *const x = (const T *)of.x.data();
    count(isa, name + "-convolve", 64, 16 * 64, [&] { kernels.convolve64(x, x, false, (T *)of.y.data(), 16, of.fft); });
}
template <class T>
void count_products(const Isa *isa, const std::string &name, const ProductKernels<T> &kernels, u64 q, unsigned width) {
    if (!kernels.multiply) return;
    ProductCase of(q, DEGREE, DEGREE, width);
    const std::vector<T> a = residues<T>(DEGREE, of.m), b = residues<T>(DEGREE, of.m);
    std::vector<T> y(DEGREE);
    count(isa, name, DEGREE, DEGREE,
          [&] { kernels.multiply(a.data(), b.data(), of.scratch.data(), y.data(), of.row); });
}
template <class T> void count_gemms(const Isa *isa, const std::string &name, const GemmKernels<T> &kernels, u64 q) {
    if (!kernels.multiply) return;
    const size_t shapes[][4] = {{32, 256, 64, 0}, {64, 256, 1, 0}, {2, 32, 2, 128}, {16, 16, 16, 128}};
    for (const auto &[rows, inner, columns, points] : shapes) {
        GemmCase<T> of(q, rows, inner, columns, points);
        count(isa,
              name + (points         ? "-points"
                      : columns == 1 ? "-column"
                                     : "-matrix"),
              rows, rows * inner * columns * of.entry, [&] { of.run(kernels); });
    }
}

}  // namespace

int main(int count, char **names) {
    for (int i = 1; i < count; ++i) {
        const Isa *isa = isa_of(names[i]);
        if (!isa) return 2;
        for_each_slot([&](const auto &slot) { count_slot(isa, slot); });
        count_ffts(isa, "float", isa->fft_float), count_ffts(isa, "double", isa->fft_double);
        count_products(isa, "product-short", isa->words32.product, 4294967291, 16);
        count_products(isa, "product-lazy", isa->words64.product, 1152921504606846883, 15);
        count_products(isa, "product-long", isa->words64.product, 18446744073709551557u, 16);
        count_products(isa, "product-power", isa->words64.product, 0, 16);
        count_gemms(isa, "gemm31", isa->words32.gemm, 2147483647),
            count_gemms(isa, "gemm62", isa->words64.gemm, (u64)1 << 62);
    }
}
