// Host twins of PTX that has no CUDA C++ name: what the branches under `#ifdef PG_SIMULATOR` call.
//
// A copy is DELAYED until something waits for it, as late as a card may make it. Until then its destination
// holds rubbish (and is off limits in the address-sanitizer build), so a missing wait shows. The source is read
// at the wait too, so overwriting it early shows as well.
#pragma once
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "api.h"

namespace sim {

// ---- cp.async: each thread waits for its own copies ----

// bytes 4, 8 or 16; the last bytes - source_bytes are set to zero (PTX's src-size).
void async_copy(void *shared, const void *global, unsigned bytes, unsigned source_bytes, Place place = {});
inline void async_copy(void *shared, const void *global, unsigned bytes, Place place = {}) {
    async_copy(shared, global, bytes, bytes, place);
}
void async_commit();                    // cp.async.commit_group
void async_wait(unsigned groups_left);  // cp.async.wait_group N
void async_wait_all();                  // cp.async.wait_all

// ---- mbarrier objects in shared memory ----

void mbarrier_init(uint64_t *barrier, unsigned count, Place place = {});
void mbarrier_invalidate(uint64_t *barrier, Place place = {});
void mbarrier_arrive(uint64_t *barrier, unsigned count = 1, Place place = {});
void mbarrier_expect_tx(uint64_t *barrier, unsigned bytes, Place place = {});
void mbarrier_arrive_expect_tx(uint64_t *barrier, unsigned bytes, Place place = {});
// Has the phase of this parity completed? try_wait lets others run before it answers no.
bool mbarrier_test_wait_parity(uint64_t *barrier, unsigned parity, Place place = {});
bool mbarrier_try_wait_parity(uint64_t *barrier, unsigned parity, Place place = {});
inline void mbarrier_wait_parity(uint64_t *barrier, unsigned parity, Place place = {}) {
    while (!mbarrier_try_wait_parity(barrier, parity, place)) {
    }
}

// ---- cp.async.bulk and st.async: complete_tx on an mbarrier, or bulk groups ----

// global to shared (also of another block of the cluster), completing on an mbarrier beside the destination
void bulk_load(void *shared, const void *global, unsigned bytes, uint64_t *barrier, Place place = {});
// shared to global, in bulk groups of the issuing thread
void bulk_store(void *global, const void *shared, unsigned bytes, Place place = {});
void bulk_commit();                    // cp.async.bulk.commit_group
void bulk_wait(unsigned groups_left);  // cp.async.bulk.wait_group N, and .read

void store_async(void *shared, const void *value, unsigned bytes, uint64_t *barrier, Place place);
template <class T>
inline void store_async(T *shared, std::common_type_t<T> value, uint64_t *barrier, Place place = {}) {
    store_async(shared, &value, sizeof(T), barrier, place);
}

inline void fence_proxy_async() {}
inline void fence_mbarrier_init() {}

// ---- prefetch: nothing to do but to check the addresses ----

inline void prefetch_l2(const void *global, size_t bytes = 1, Place place = {}) {
    check_global(global, bytes, "prefetch", place);
}
inline void bulk_prefetch_l2(const void *global, size_t bytes, Place place = {}) {
    check_global(global, bytes, "cp.async.bulk.prefetch.L2", place);
    if (reinterpret_cast<uintptr_t>(global) % 16 || bytes % 16)
        fail("cp.async.bulk.prefetch.L2 of %zu bytes at %p needs multiples of 16 (%s:%d)", bytes, global, place.file,
             place.line);
}

// ---- programmatic dependent launch ----

// Until the first wait of a dependent launch, device memory that the host has not written holds rubbish, and what the
// kernel writes there is lost.
void griddepcontrol_wait();
inline void griddepcontrol_launch_dependents() {}

// ---- thread-block clusters (kernels with __cluster_dims__) ----

unsigned cluster_rank();
unsigned cluster_blocks();
void cluster_arrive(Place place = {});  // barrier.cluster.arrive.release
void cluster_wait(Place place = {});    // barrier.cluster.wait.acquire
void *map_shared(const void *shared, unsigned rank, Place place);
// The same variable in the shared memory of another block of the cluster (mapa).
template <class T> inline T *map_shared(T *shared, unsigned rank, Place place = {}) {
    return static_cast<T *>(map_shared(static_cast<const void *>(shared), rank, place));
}

}  // namespace sim
