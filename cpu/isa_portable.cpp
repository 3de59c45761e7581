// The kernels every machine can run; the others must equal them bit for bit.
#include "lanes_scalar.hpp"

namespace pg {

const Isa isa_portable{
    "portable",
    row_kernels<Lazy<ScalarLanes<u32>>, ScalarLanes<u32>>(),
    row_kernels<Tight<ScalarLanes<u32>>, ScalarLanes<u32>>(),
    row_kernels<Strict<StrictLanes<u32>>, StrictLanes<u32>>(),
    row_kernels<Lazy<ScalarLanes<u64>>, ScalarLanes<u64>>(),
    row_kernels<Lazy<ScalarLanes<u64>>, ScalarLanes<u64>>(),
    row_kernels<Strict<StrictLanes<u64>>, StrictLanes<u64>>(),
};

}  // namespace pg
