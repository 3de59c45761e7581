// Transforms of 256 points, as rows of 256 x 256 matrices. Two such steps are a transform of 2^16 points. The
// transposes between them are in transpose.cu.
#include "stages.cuh"

// How the transformed rows of a matrix are stored.
//   AS_ROWS             as rows
//   AS_COLUMNS          as columns; each thread writes its two values
//   AS_COLUMNS_AT_ONCE  as columns; neighbouring threads write the ROWS neighbours of a block
enum Store { AS_ROWS, AS_COLUMNS, AS_COLUMNS_AT_ONCE };

// Rows of 256 x 256 matrices, natural order to bit-reversed. A row has 128 threads with two values each; a thread does
// one butterfly in each stage. block: ROWS transforms; grid: blocks. twiddles: by node, of a negacyclic or a cyclic
// tree. TWIDDLED: each value is first multiplied by the entry of `factors` at its place. All matrices share `factors`.
template <int ROWS, Store STORE, bool TWIDDLED>
__global__ void __launch_bounds__(128 * ROWS, 16 / ROWS)
    ntt256(const u64 *x, u64 *y, const Modulus *modulus, const Lazy60::Twiddle *twiddles, const u64 *factors) {
    using W = Lazy60;
    // The padding puts the same place of different rows in different banks: columns are read so.
    __shared__ u64 values[ROWS][256 + (ROWS > 1 ? 16 / ROWS : 0)];
    const u32 thread = threadIdx.x % 128, row = threadIdx.x / 128;
    const u32 first_row = blockIdx.x * ROWS, in_matrix = (first_row + row) % 256;  // a row's number
    const u64 matrix = (u64)(first_row / 256) << 16;
    const W word(*modulus);
    u64 *const shared = values[row];

    u64 held[2];
#pragma unroll
    for (u32 k = 0; k < 2; ++k) held[k] = x[matrix + in_matrix * 256 + thread + 128 * k];
    if constexpr (TWIDDLED)
#pragma unroll
        for (u32 k = 0; k < 2; ++k)
            held[k] =
                barrett_product(*modulus, held[k], read<READ_ONLY>(factors + (in_matrix * 256 + thread + 128 * k)));
#pragma unroll
    for (u32 k = 0; k < 2; ++k) shared[shared_place<true>(thread + 128 * k)] = held[k];

    shared_stages<W, 8, 0, 8, W::Bounds::CANONICAL, true>(word, shared, thread, Nodes<W::Twiddle>{twiddles, 1});
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
        if constexpr (STORE == AS_COLUMNS_AT_ONCE) {
            const u32 value = threadIdx.x + 128 * ROWS * k, column = value % ROWS, place = value / ROWS;
            y[matrix + place * 256 + first_row % 256 + column] =
                word.canonical(values[column][shared_place<true>(place)]);
        } else {
            const u32 place = thread + 128 * k;
            y[matrix + (STORE == AS_ROWS ? in_matrix * 256 + place : place * 256 + in_matrix)] =
                word.canonical(shared[shared_place<true>(place)]);
        }
    }
}
