// Kernels with one deliberate mistake each, which the simulator must report.

// Neighbours exchange words without a barrier between writing and reading.
extern "C" __global__ void race_in_block(unsigned *out) {
    __shared__ unsigned words[64];
    words[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = words[63 - threadIdx.x];
}

// No card since 2017 runs the lanes of a warp in lockstep.
extern "C" __global__ void missing_syncwarp(unsigned *out) {
    __shared__ unsigned words[32];
    words[threadIdx.x] = threadIdx.x;
#ifdef CORRECT
    __syncwarp();
#endif
    out[threadIdx.x] = words[31 - threadIdx.x];
}

// Two blocks add to one word without atomics.
extern "C" __global__ void race_between_blocks(unsigned *out) {
    if (threadIdx.x == 0) out[0] += 1;
}

// Writes words + 1 words: one more than the launch asked for.
extern "C" __global__ void overrun_dynamic(unsigned *out, int words) {
    extern __shared__ unsigned memory[];
    for (int i = threadIdx.x; i <= words; i += blockDim.x) memory[i] = i;
    __syncthreads();
    out[threadIdx.x] = memory[threadIdx.x];
}

extern "C" __global__ void overrun_static(unsigned *out, int words) {
    __shared__ unsigned first[32];
    __shared__ unsigned second[32];
    first[threadIdx.x] = second[threadIdx.x] = 0;
    __syncthreads();
    first[threadIdx.x + words] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = second[threadIdx.x];
}

extern "C" __global__ void overrun_global(unsigned *out, int offset) { out[int(threadIdx.x) + offset] = threadIdx.x; }

// Half of the block waits at one barrier, half at another.
extern "C" __global__ void divergent_barrier(unsigned *out) {
    if (threadIdx.x < 32) {
        out[threadIdx.x] = 1;
        __syncthreads();
    } else {
        out[threadIdx.x] = 2;
        __syncthreads();
    }
}

// Half of a warp waits for all its lanes, while the other half waits at a barrier of the block.
extern "C" __global__ void deadlock(unsigned *out) {
    if (threadIdx.x < 16) __syncwarp();
    else __syncthreads();
    out[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void shuffle_from_outside(unsigned *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, threadIdx.x, 16);
}

extern "C" __global__ void failed_assertion(int n) { assert(threadIdx.x < n); }

extern "C" __global__ void wild_pointer(unsigned *out) { out[(1ull << 36) + threadIdx.x] = 1; }

// A recursion deeper than the simulator's stack of a CUDA thread.
__device__ __noinline__ unsigned deep(unsigned depth, volatile unsigned *sink) {
    volatile unsigned local[256];
    local[depth % 256] = depth;
    return depth == 0 ? local[0] : deep(depth - 1, local) + local[depth % 256];
}
extern "C" __global__ void stack_overflow(unsigned *out) { out[threadIdx.x] = deep(100000, out); }

extern "C" __global__ void division_by_zero(unsigned *out) { out[threadIdx.x] = 1000 / out[threadIdx.x]; }

// A vector load from an address that is no multiple of the vector's size.
extern "C" __global__ void misaligned(uint4 *out) {
    __shared__ __align__(16) unsigned words[64];
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 8) out[threadIdx.x] = *reinterpret_cast<uint4 *>(words + 4 * threadIdx.x + 1);
}
