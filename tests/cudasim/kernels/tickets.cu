// Blocks that wait for each other through flags in global memory.

// A chain: every block adds its own sum to that of the block before it. Block numbers are tickets, so that a block
// waits only for blocks that run already.
extern "C" __global__ void chained_sum(const unsigned *x, unsigned *prefix, unsigned *ticket, unsigned *ready) {
    __shared__ unsigned number, sum;
    if (threadIdx.x == 0) {
        number = atomicAdd(ticket, 1u);
        sum = 0;
    }
    __syncthreads();
    atomicAdd(&sum, x[number * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned before = 0;
        if (number > 0) {
            volatile unsigned *flag = ready + number - 1;
            while (*flag == 0) __nanosleep(64);
            __threadfence();
            before = prefix[number - 1];
        }
        prefix[number] = before + sum;
#ifndef WITHOUT_FENCE
        __threadfence();
#endif
        atomicExch(ready + number, 1u);
    }
}

// Every block waits for a flag of the last one: all of them must run together.
extern "C" __global__ void wait_for_last(unsigned *flag, unsigned *out) {
    if (blockIdx.x == gridDim.x - 1) {
        if (threadIdx.x == 0) {
            out[blockIdx.x] = 1;
            sim::store_release(flag, 1u);
        }
    } else if (threadIdx.x == 0) {
        while (sim::load_acquire(flag) == 0) {
        }
        out[blockIdx.x] = out[gridDim.x - 1];
    }
}

// Nobody ever sets the flag.
extern "C" __global__ void wait_forever(unsigned *flag) {
    while (atomicAdd(flag, 0u) == 0) __nanosleep(10);
}
