// AVX-512 without IFMA: the lanes of lanes_avx512.hpp, and lanes of 8 integers held in doubles.
#include "kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "lanes_avx512.hpp"
#include "make_isa.hpp"

namespace pg {
namespace {

struct Avx512dq : Vectors<Lanes32, Lanes64, Reals> {
    static constexpr const char *NAME = "avx512dq";
    static constexpr Costs COSTS = costs_avx512(0.67);
    using Floats = Pairs32;
    using Doubles = Pairs64;
    using Count = CountByBuckets;
};

}  // namespace

const Isa isa_avx512dq = make_isa<Avx512dq>();

}  // namespace pg
#else
namespace pg {
const Isa isa_avx512dq = without_kernels("avx512dq");
}
#endif
