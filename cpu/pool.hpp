// Memory of results: blocks that begin at a multiple of 64 bytes, the size of a cache line and of a vector of AVX-512.
// A large block that is freed is kept for the next result of its size. Otherwise the system would have to map its pages
// anew, which takes several times as long as a sum of such results.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace pg {

// Like malloc, calloc, realloc and free, for blocks of this pool; any thread may call them. They return null if the
// system has no memory even after all kept blocks were returned to it.
void *pool_allocate(size_t bytes);
void *pool_allocate_zeros(size_t bytes);
void *pool_reallocate(void *block, size_t bytes);
void pool_free(void *block);

// These functions return a kept block, and never take new memory: they return null if no block of that size is kept.
void *pool_reuse(size_t bytes);
void *pool_reuse_zeros(size_t bytes);

// Returns how many bytes of freed blocks are kept. Blocks below 16 KiB are not kept. The bytes are at most a quarter of
// the memory that is free or kept, or 64 MiB if that is more, and within the bound of pool_set_bounds.
size_t pool_kept();
// Returns the kept blocks to the system.
void pool_release();
// Returns two kinds of kept blocks to the system: the blocks that were kept for longer than `idle` (see
// pool_set_bounds); and the oldest blocks, if more bytes are kept than pool_kept() allows.
void pool_trim();

// Keeps at most `bytes` bytes, and no block for longer than `idle`.
void pool_set_bounds(size_t bytes, std::chrono::milliseconds idle);
// Returns the time between two calls of pool_trim() by a thread that has nothing else to do.
std::chrono::milliseconds pool_trim_period();

}  // namespace pg
