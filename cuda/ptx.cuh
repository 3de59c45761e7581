// Instructions without a name in CUDA C++. If PG_SIMULATOR is defined, functions of the tests' simulator do the same.
#pragma once
#include "modulus.cuh"

// If the load returns the result of an add_release, this thread sees all that was written before the add_release. After
// a barrier, the other threads of its block see the same.
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

// Programmatic dependent launch, on cards that have it. The next kernel on the stream starts when all blocks of this
// kernel have called start_next(true) or ended. The next kernel must call await_previous() before it reads or writes
// memory that kernels write. Before this call, it may read what the host wrote. A kernel of more than EARLY_BLOCKS
// blocks does not start early, because each of its blocks would wait for hundreds of cycles.
constexpr u32 EARLY_BLOCKS = 1 << 13;
PG_DEVICE bool starts_early() { return (u64)gridDim.x * gridDim.y <= EARLY_BLOCKS; }
PG_DEVICE void start_next(bool now) {
#ifdef PG_SIMULATOR
    if (now) sim::griddepcontrol_launch_dependents();
#elif __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred now;\n"
        "setp.ne.u32 now, %0, 0;\n"
        "@now griddepcontrol.launch_dependents;\n"
        "}" ::"r"((u32)now));
#endif
}
PG_DEVICE void await_previous() {
#ifdef PG_SIMULATOR
    if (starts_early()) sim::griddepcontrol_wait();
#elif __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred early;\n"
        "setp.ne.u32 early, %0, 0;\n"
        "@early griddepcontrol.wait;\n"
        "}" ::"r"((u32)starts_early())
        : "memory");
#endif
}

// Prefetches into the L2 cache, on cards that have the instruction; p and bytes: multiples of 16.
PG_DEVICE void prefetch_l2(const void *p, u32 bytes) {
#ifdef PG_SIMULATOR
    sim::bulk_prefetch_l2(p, bytes);
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// A barrier for some of the warps of a block. threads: the number of threads of these warps. id: 1 to 15.
PG_DEVICE void synchronise_named(u32 id, u32 threads) {
#ifdef PG_SIMULATOR
    sim::sync_named(id, threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// Adds `value` to *p, a number in shared memory, and returns the previous *p. A thread that sees the sum also sees what
// the other threads of the block wrote before they added.
PG_DEVICE u32 add_in_block(u32 *p, u32 value) {
#ifdef PG_SIMULATOR
    return sim::atomic_add_acq_rel(p, value);
#else
    u32 before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"((u32)__cvta_generic_to_shared(p)), "r"(value)
                 : "memory");
    return before;
#endif
}

// Bulk copies from global to shared memory, on cards of compute capability 9.0. One thread starts a copy. An mbarrier
// counts the bytes that arrive. The parity of its phases alternates, beginning with 0. A phase ends when one thread has
// called expect_bytes(barrier, bytes), and `bytes` bytes have arrived.
PG_DEVICE void start_barrier(u64 *barrier) {
#ifdef PG_SIMULATOR
    sim::mbarrier_init((uint64_t *)barrier, 1);
#elif __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(barrier)) : "memory");
#endif
}
PG_DEVICE void end_barrier_starts() {
#ifdef PG_SIMULATOR
    sim::fence_mbarrier_init();
#elif __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Arrives at a barrier. The barrier's phase then ends when `bytes` bytes have been copied.
PG_DEVICE void expect_bytes(u64 *barrier, u32 bytes) {
#ifdef PG_SIMULATOR
    sim::mbarrier_arrive_expect_tx((uint64_t *)barrier, bytes);
#elif __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(barrier)),
                 "r"(bytes)
                 : "memory");
#endif
}
PG_DEVICE void copy_bulk(void *shared, const void *global, u32 bytes, u64 *barrier) {
#ifdef PG_SIMULATOR
    sim::bulk_load(shared, global, bytes, (uint64_t *)barrier);
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (u32)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(bytes), "r"((u32)__cvta_generic_to_shared(barrier))
                 : "memory");
#endif
}
// Call this after this thread has read shared memory, and before a barrier after which another thread starts copies to
// that memory. Without this call, the copies may overwrite values that are still being read.
PG_DEVICE void finish_before_copies() {
#ifdef PG_SIMULATOR
    sim::fence_proxy_async();
#elif __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
PG_DEVICE void await_bulk(u64 *barrier, u32 phase) {
#ifdef PG_SIMULATOR
    sim::mbarrier_wait_parity((uint64_t *)barrier, phase);
#elif __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN_%=;\n"
        "}" ::"r"((u32)__cvta_generic_to_shared(barrier)),
        "r"(phase)
        : "memory");
#endif
}

// A barrier for all blocks of a cluster (compute capability 9.0). The blocks of a cluster run at the same time and can
// write to each other's shared memory.
PG_DEVICE void synchronise_cluster() {
#ifdef PG_SIMULATOR
    sim::cluster_arrive(), sim::cluster_wait();
#elif __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
struct OtherBlock {  // another block of the cluster
    u32 distance;    // from an address in this block's shared memory to the corresponding address in the other block's
    PG_DEVICE OtherBlock(const void *shared, u32 rank) {  // shared: any address in this block's shared memory
#ifdef PG_SIMULATOR
        distance = rank;
#elif __CUDA_ARCH__ >= 900
        const u32 here = (u32)__cvta_generic_to_shared(shared);
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(distance) : "r"(here), "r"(rank));
        distance -= here;  // addresses contain the rank of their block
#endif
    }
    // Stores 16 bytes at the place in the other block's shared memory that corresponds to p. The mbarrier of the other
    // block that corresponds to `barrier` counts the bytes.
    template <class T> PG_DEVICE void store(T *p, const T &value, u64 *barrier) const {
        static_assert(sizeof(T) == 16, "one store");
#ifdef PG_SIMULATOR
        sim::store_async(sim::map_shared(p, distance), value, sim::map_shared((uint64_t *)barrier, distance));
#elif __CUDA_ARCH__ >= 900
        const ulonglong2 words = *(const ulonglong2 *)&value;
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(
                         (u32)__cvta_generic_to_shared(p) + distance),
                     "l"(words.x), "l"(words.y), "r"((u32)__cvta_generic_to_shared(barrier) + distance)
                     : "memory");
#endif
    }
};

// x * y + z * w modulo 2^64, as one chain of multiply-adds. Compilers would compute both products and then add them.
PG_DEVICE u64 sum_of_products(u64 x, u64 y, u64 z, u64 w) {
#ifdef PG_SIMULATOR
    return x * y + z * w;
#else
    u64 sum;
    asm("{\n"
        ".reg .u32 x0, x1, y0, y1, z0, z1, w0, w1, s0, s1;\n"
        ".reg .u64 s;\n"
        "mov.b64 {x0, x1}, %1;\n"
        "mov.b64 {y0, y1}, %2;\n"
        "mov.b64 {z0, z1}, %3;\n"
        "mov.b64 {w0, w1}, %4;\n"
        "mul.wide.u32 s, x0, y0;\n"
        "mad.wide.u32 s, z0, w0, s;\n"
        "mov.b64 {s0, s1}, s;\n"
        "mad.lo.u32 s1, x0, y1, s1;\n"
        "mad.lo.u32 s1, x1, y0, s1;\n"
        "mad.lo.u32 s1, z0, w1, s1;\n"
        "mad.lo.u32 s1, z1, w0, s1;\n"
        "mov.b64 %0, {s0, s1};\n"
        "}"
        : "=l"(sum)
        : "l"(x), "l"(y), "l"(z), "l"(w));
    return sum;
#endif
}

// The high half of x * y, or one less, because the carry from the product of the low words is left out.
PG_DEVICE u64 high_product_or_less(u64 x, u64 y) {
#ifdef PG_SIMULATOR
    const u32 x0 = (u32)x, x1 = (u32)(x >> 32), y0 = (u32)y, y1 = (u32)(y >> 32);
    const u64 a = (u64)x0 * y1, b = (u64)x1 * y0 + (u32)a;
    return (u64)x1 * y1 + (a >> 32) + (b >> 32);
#else
    u64 high;
    asm("{\n"
        ".reg .u32 x0, x1, y0, y1, a0, a1, b0, b1, c0, c1;\n"
        ".reg .u64 a, b, c;\n"
        "mov.b64 {x0, x1}, %1;\n"
        "mov.b64 {y0, y1}, %2;\n"
        "mul.wide.u32 a, x0, y1;\n"
        "mov.b64 {a0, a1}, a;\n"
        "mov.b64 c, {a0, 0};\n"
        "mad.wide.u32 b, x1, y0, c;\n"
        "mov.b64 {b0, b1}, b;\n"
        "mov.b64 c, {a1, 0};\n"
        "mad.wide.u32 c, x1, y1, c;\n"
        "mov.b64 {c0, c1}, c;\n"
        "add.cc.u32 c0, c0, b1;\n"
        "addc.u32 c1, c1, 0;\n"
        "mov.b64 %0, {c0, c1};\n"
        "}"
        : "=l"(high)
        : "l"(x), "l"(y));
    return high;
#endif
}

// sum += x * y. In C++, compilers would extend x and y to 64 bits and also multiply the high halves, which are zero.
PG_DEVICE void add_product(u64 &sum, u32 x, u32 y) {
#ifdef PG_SIMULATOR
    sum += (u64)x * y;
#else
    asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(sum) : "r"(x), "r"(y));
#endif
}
// sum += x * y; carries are added to `high`.
PG_DEVICE void add_product(u64 &sum, u32 &high, u32 x, u32 y) {
#ifdef PG_SIMULATOR
    const u64 product = (u64)x * y;
    sum += product, high += sum < product;
#else
    asm("{\n"
        ".reg .u32 s0, s1;\n"
        "mov.b64 {s0, s1}, %0;\n"
        "mad.lo.cc.u32 s0, %2, %3, s0;\n"
        "madc.hi.cc.u32 s1, %2, %3, s1;\n"
        "addc.u32 %1, %1, 0;\n"
        "mov.b64 %0, {s0, s1};\n"
        "}"
        : "+l"(sum), "+r"(high)
        : "r"(x), "r"(y));
#endif
}
// Adds x * y + z * w * 2^64 to the 160-bit number (high, middle, low).
PG_DEVICE void add_products(u64 &low, u64 &middle, u32 &high, u32 x, u32 y, u32 z, u32 w) {
#ifdef PG_SIMULATOR
    u32 carry = 0;
    add_product(low, carry, x, y);
    middle += carry, high += middle < carry;
    add_product(middle, high, z, w);
#else
    asm("{\n"
        ".reg .u32 s0, s1, s2, s3;\n"
        "mov.b64 {s0, s1}, %0;\n"
        "mov.b64 {s2, s3}, %1;\n"
        "mad.lo.cc.u32 s0, %3, %4, s0;\n"
        "madc.hi.cc.u32 s1, %3, %4, s1;\n"
        "madc.lo.cc.u32 s2, %5, %6, s2;\n"
        "madc.hi.cc.u32 s3, %5, %6, s3;\n"
        "addc.u32 %2, %2, 0;\n"
        "mov.b64 %0, {s0, s1};\n"
        "mov.b64 %1, {s2, s3};\n"
        "}"
        : "+l"(low), "+l"(middle), "+r"(high)
        : "r"(x), "r"(y), "r"(z), "r"(w));
#endif
}
