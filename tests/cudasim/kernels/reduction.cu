// Sum of n words: warps by shuffles, blocks through static shared memory, the grid by atomics.
extern "C" __global__ void __launch_bounds__(256)
    sum_words(const unsigned long long *x, int n, unsigned long long *sum) {
    __shared__ unsigned long long partial[8];
    unsigned long long s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += __ldg(x + i);
    for (int distance = 16; distance; distance /= 2) s += __shfl_down_sync(0xffffffffu, s, distance);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x < 32) {
        s = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        for (int distance = 4; distance; distance /= 2) s += __shfl_xor_sync(0xffffffffu, s, distance, 8);
        if (threadIdx.x == 0) atomicAdd(sum, s);
    }
}

// How many threads of each block, and which lanes of each warp, hold an odd number.
extern "C" __global__ void votes(const int *x, int *counts, unsigned *ballots) {
    int odd = x[blockIdx.x * blockDim.x + threadIdx.x] & 1;
    unsigned ballot = __ballot_sync(0xffffffffu, odd);
    int count = __syncthreads_count(odd);
    if (threadIdx.x % 32 == 0) ballots[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = ballot;
    if (__syncthreads_or(odd) != (count > 0) || __syncthreads_and(odd) != (count == blockDim.x)) __trap();
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}
