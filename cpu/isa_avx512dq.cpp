// AVX-512 without IFMA: the lanes of AVX-512, and 8 integers in doubles.
#include "kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "lanes_avx512.hpp"
#include "lanes_float64.hpp"
#include "lanes_strict.hpp"

namespace pg {

const Isa isa_avx512dq{
    "avx512dq",
    row_kernels<Lazy<Lanes32>, ScalarLanes<u32>>(),
    row_kernels<Tight<Lanes32>, ScalarLanes<u32>>(),
    row_kernels<Strict<StrictLanes32<Lanes32, Reals>>, StrictLanes<u32>, Sums::none>(),
    {},
    row_kernels<Float64<LanesFloat64<Reals>>, ScalarLanes<u64>, Sums::lazy, Lanes64>(),
    row_kernels<Lazy<Lanes64, 16>, ScalarLanes<u64>>(),
    row_kernels<Lazy<Lanes64>, ScalarLanes<u64>>(),
    row_kernels<Strict<StrictLanes64<Reals>>, StrictLanes<u64>, Sums::none>(),
    row_kernels<Strict<GoldilocksLanes<Reals>>, StrictLanes<u64>, Sums::none>(),
    fft_kernels<PairLanes<Pairs32>>(),
    fft_kernels<PairLanes<Pairs64>>(),
    product_kernels<u32, Reals>(),
    product_kernels<u64, Reals>(),
    gemm_kernels<u32, Reals>(),
    gemm_kernels<u64, Reals>(),
    estimate_kernels<u32>(),
    estimate_kernels<u64>(),
    sampling_kernels<Reals, CountByBuckets>(),
    integer_kernels<Reals, ScalarReals>(),
};

}  // namespace pg
#else
namespace pg {
const Isa isa_avx512dq{};
}
#endif
