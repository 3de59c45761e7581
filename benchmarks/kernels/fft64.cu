// Batches of 64-point FFTs, forward, natural order, in radix-2 stages through shared memory. threadIdx.x is the number
// of the FFT in the block. threadIdx.y is the first point that a thread works on; its other points are LANES apart.
//
// FFTS, LANES  FFTs of a block, threads of an FFT
// UNROLLED     the loops over a thread's points are unrolled
// COALESCED    the block moves its FFTs from and to memory in the order in which they lie there; else each thread moves
//              its own points, and neighbouring threads are a whole FFT apart
// MENDED       In the lab note, the threads of both points of a butterfly compute it and write both results in place,
//              with no barrier between: a race. Mended, only the thread of the lower point computes it. (Each thread
//              could also write its own point after a barrier. Then a loop over several points would have to keep all
//              its results over the barrier.)
#include "fft64.cuh"

template <int FFTS, int LANES, bool UNROLLED, bool COALESCED, bool MENDED>
__global__ void __launch_bounds__(FFTS *LANES) fft64_stages(const float2 *x, float2 *y, int ffts) {
    constexpr int POINTS = 64 / LANES, UNROLL = UNROLLED ? POINTS : 1;
    __shared__ float2 rows[FFTS][66];
    const int first = blockIdx.x * FFTS, count = min(FFTS, ffts - first);
    const int start = COALESCED ? threadIdx.y * FFTS + threadIdx.x : threadIdx.x * 64 + threadIdx.y;
    constexpr int APART = COALESCED ? FFTS * LANES : LANES;
    x += 64 * size_t(first);
    y += 64 * size_t(first);

#pragma unroll(UNROLL)
    for (int i = 0; i < POINTS; ++i) {
        const int at = start + i * APART;
        if (at / 64 < count) rows[at / 64][__brev(at % 64) >> 26] = x[at];
    }

    float2 *row = rows[threadIdx.x];
#pragma unroll
    for (int step = 1; step < 64; step *= 2) {
        __syncthreads();
#pragma unroll(UNROLL)
        for (int i = 0; i < POINTS; ++i) {
            const int point = threadIdx.y + i * LANES;
            if (MENDED && point & step) continue;
            float2 &low = row[point & ~step], &high = row[point | step];
            const float2 a = low, b = step == 1 ? high : times(high, ROOTS[point % step * (32 / step)]);
            low = make_float2(a.x + b.x, a.y + b.y);
            high = make_float2(a.x - b.x, a.y - b.y);
        }
    }
    __syncthreads();

#pragma unroll(UNROLL)
    for (int i = 0; i < POINTS; ++i) {
        const int at = start + i * APART;
        if (at / 64 < count) y[at] = rows[at / 64][at % 64];
    }
}
