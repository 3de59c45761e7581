// Instructions without a name in CUDA C++. The simulator of the tests has twins of them.
#pragma once
#include "modulus.cuh"

// What others wrote before their add_release is seen after this, by the whole block after a barrier.
PG_DEVICE u32 load_acquire(const u32 *p) {
#ifdef PG_SIMULATOR
    return sim::load_acquire(p);
#else
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
#endif
}
PG_DEVICE void add_release(u32 *p, u32 value) {
#ifdef PG_SIMULATOR
    sim::atomic_add_release(p, value);
#else
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
#endif
}

// Into the L2 cache, on cards that have the instruction; p and bytes: multiples of 16.
PG_DEVICE void prefetch_l2(const void *p, u32 bytes) {
#ifdef PG_SIMULATOR
    sim::bulk_prefetch_l2(p, bytes);
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}
