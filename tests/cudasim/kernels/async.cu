// Asynchronous copies of all kinds. Where these kernels call the simulator, a real kernel has PTX.
typedef unsigned long long u64;

// Reverses each run of 128 words. A block of threads has two runs, and copies them in two groups, one to each buffer.
extern "C" __global__ void reverse_by_groups(const unsigned *in, unsigned *out) {
    __shared__ __align__(16) unsigned buffer[2][128];
    unsigned t = threadIdx.x;
    const unsigned *source = in + 256 * blockIdx.x;
    for (int half = 0; half < 2; half++) {
        sim::async_copy(&buffer[half][t], source + 128 * half + t, 4);
        sim::async_commit();
    }
    for (int half = 0; half < 2; half++) {
#ifndef WITHOUT_WAIT
        half == 0 ? sim::async_wait(1) : sim::async_wait(0);
#endif
        __syncthreads();
        out[256 * blockIdx.x + 128 * half + t] = buffer[half][127 - t];
    }
#ifdef WITHOUT_WAIT
    sim::async_wait_all();
#endif
}

// A persistent block: it fetches one tile after the other by a bulk copy and adds it up.
extern "C" __global__ void sum_tiles(const u64 *in, int tiles, u64 *sums) {
    extern __shared__ __align__(128) unsigned char memory[];
    u64 *tile = reinterpret_cast<u64 *>(memory);
    u64 *arrived = tile + 64;
    unsigned phase = 0;
    if (threadIdx.x == 0) sim::mbarrier_init((uint64_t *)arrived, 1);
    __syncthreads();
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        if (threadIdx.x == 0) {
            sim::mbarrier_arrive_expect_tx((uint64_t *)arrived, 512);
            sim::bulk_load(tile, in + 64 * i, 512, (uint64_t *)arrived);
        }
        sim::mbarrier_wait_parity((uint64_t *)arrived, phase);
        phase ^= 1;
        u64 s = tile[threadIdx.x] + tile[threadIdx.x + 32];
        for (int distance = 16; distance; distance /= 2) s += __shfl_xor_sync(0xffffffffu, s, distance);
        if (threadIdx.x == 0) sums[i] = s;
        __syncthreads();
    }
}

// Shared memory to global in bulk.
extern "C" __global__ void store_tile(u64 *out) {
    __shared__ __align__(16) u64 tile[64];
    tile[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
    sim::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        sim::bulk_store(out + 64 * blockIdx.x, tile, sizeof tile);
        sim::bulk_commit();
#ifndef WITHOUT_WAIT
        sim::bulk_wait(0);
#endif
    }
}

extern "C" __global__ void prefetch(const u64 *in, int words) {
    if (threadIdx.x == 0) sim::bulk_prefetch_l2(in, words * sizeof(u64));
}
