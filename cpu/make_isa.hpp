// The table of an instruction set's kernels, made from its lanes.
#pragma once
#include "bytes.hpp"
#include "combine.hpp"
#include "draw.hpp"
#include "fft.hpp"
#include "fft_torus.hpp"
#include "gemm.hpp"
#include "integers.hpp"
#include "lanes_float64.hpp"
#include "lanes_scalar.hpp"
#include "lanes_strict.hpp"

namespace pg {
namespace {

// The kernels for rows of residues, with the butterflies of class B. For the parameters see row_kernels.
template <class B, class Rest, Sums SUM = SUMS<B>, class C = typename B::Lanes> struct Rows {
    static constexpr auto kernels() { return row_kernels<B, Rest, SUM, C>(); }
};
// Stands for kernels that an instruction set lacks.
struct None {};

// The base of the structs that describe instruction sets. A struct has NAME, COSTS and types:
//   Q30 ... Goldilocks   kernels of rows, by size of modulus
//   Floats, Doubles      lanes of complex numbers
//   Spectral             lanes of real numbers, for products by FFT
//   Real                 lanes of real numbers, for all other sums and products
//   Count                how Gaussian sampling counts thresholds
//   Bytes                lanes of bytes
// If a type is None, the set lacks the kernels. The structs are in anonymous namespaces, one in each file, so that the
// linker cannot mix the code of two sets.
struct Lacking {
    using Q30 = None;
    using Q31 = None;
    using Q32 = None;
    using Q46 = None;
    using Q50 = None;
    using Q60 = None;
    using Q62 = None;
    using Q64 = None;
    using Goldilocks = None;
    using Floats = None;
    using Doubles = None;
    using Spectral = None;
    using Real = None;
    using Bytes = None;
};

constexpr Costs COSTS_PORTABLE{5.0, 1.9, {0.7, 0.7, 2.5, 4.3, 4.3}, {2.2, 2.7, 3.5, 3.2, 3.2}, 16};
constexpr Costs costs_avx512(double sum) {
    return {1.45, sum, {0.09, 0.2, 0.17, 0.45, 0.37}, {0.35, 0.9, 0.8, 1.6, 0.9}, 32};
}

// The types that make_isa() reads from an instruction set. They are made from Words32 and Words64 (lanes of residues)
// and R (lanes of doubles and integers).
template <class Words32, class Words64, class R> struct Vectors : Lacking {
    using Q30 = Rows<Lazy<Words32>, ScalarLanes<u32>>;
    using Q31 = Rows<Tight<Words32>, ScalarLanes<u32>>;
    using Q32 = Rows<Strict<StrictLanes32<Words32, R>>, StrictLanes<u32>, Sums::none>;
    using Q50 = Rows<Float64<LanesFloat64<R>>, ScalarLanes<u64>, Sums::doubles>;
    using Q60 = Rows<Lazy<Words64, 16>, ScalarLanes<u64>>;
    using Q62 = Rows<Lazy<Words64>, ScalarLanes<u64>>;
    using Q64 = Rows<Strict<StrictLanes64<R>>, StrictLanes<u64>, Sums::none>;
    using Goldilocks = Rows<Strict<GoldilocksLanes<R>>, StrictLanes<u64>, Sums::none>;
    using Spectral = R;
    using Real = R;
};

template <class T, class S, class R> constexpr WordKernels<T> make_words() {
    WordKernels<T> words{{},
                         {},
                         gemm_kernels<T, R>(),
                         estimate_kernels<T>(),
                         reduce_pairs<T, R>,
                         reduce_small<T, R>,
                         reduce_row<R, ScalarReals, T>,
                         compare<T>,
                         compose_row<R, T>,
                         decompose_row<R, ScalarReals, T>};
    if constexpr (!std::is_same_v<S, None>)
        words.product = product_kernels<T, S>(), words.torus = torus_kernels<T, S>();
    return words;
}

template <class Row, class K> constexpr void set_rows(K &kernels) {
    if constexpr (!std::is_same_v<Row, None>) kernels = Row::kernels();
}

template <class Set> constexpr Isa make_isa() {
    Isa isa{};
    isa.name = Set::NAME, isa.costs = Set::COSTS;
    set_rows<typename Set::Q30>(isa.q30), set_rows<typename Set::Q31>(isa.q31), set_rows<typename Set::Q32>(isa.q32);
    set_rows<typename Set::Q46>(isa.q46), set_rows<typename Set::Q50>(isa.q50), set_rows<typename Set::Q60>(isa.q60);
    set_rows<typename Set::Q62>(isa.q62), set_rows<typename Set::Q64>(isa.q64);
    set_rows<typename Set::Goldilocks>(isa.goldilocks);
    if constexpr (!std::is_same_v<typename Set::Floats, None>) {
        isa.fft_float = fft_kernels<PairLanes<typename Set::Floats>>();
        isa.fft_double = fft_kernels<PairLanes<typename Set::Doubles>>();
    }
    if constexpr (!std::is_same_v<typename Set::Real, None>) {
        using S = typename Set::Spectral;
        using R = typename Set::Real;
        isa.words32 = make_words<u32, S, R>(), isa.words64 = make_words<u64, S, R>();
        isa.integers = {widen, join_digits, make_sizes, add_squares<R>, draw_small<typename Set::Count>};
    }
    if constexpr (!std::is_same_v<typename Set::Bytes, None>) isa.bytes = byte_kernels<typename Set::Bytes>();
    return isa;
}

}  // namespace
}  // namespace pg
