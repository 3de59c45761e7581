// Memory of results: blocks that begin at a multiple of 64 bytes, a cache line and a vector of AVX-512. A large
// block that is freed is kept for the next result of its size: the system would have to map its pages anew, which
// takes several times as long as a sum of such results.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace pg {

// Like malloc, calloc, realloc and free, for blocks of this pool; any thread may call them. Null if the system has
// no memory even after all kept blocks were returned to it.
void *pool_allocate(size_t bytes);
void *pool_allocate_zeros(size_t bytes);
void *pool_reallocate(void *block, size_t bytes);
void pool_free(void *block);

// A block that is kept, which takes no new memory; null if there is none of that size.
void *pool_reuse(size_t bytes);
void *pool_reuse_zeros(size_t bytes);

// Bytes of freed blocks of at least 16 KiB that are kept. They are at most a quarter of the memory that is free or
// kept, and 64 MiB in any case, unless the bound is lower.
size_t pool_kept();
// Returns the kept blocks to the system.
void pool_release();
// Returns the blocks that nobody has used for a while, and what exceeds the bounds by now.
void pool_trim();

// Keep at most `bytes`, and no block for longer than `idle`.
void pool_set_bounds(size_t bytes, std::chrono::milliseconds idle);
// How often a thread that has nothing else to do calls pool_trim().
std::chrono::milliseconds pool_trim_period();

}  // namespace pg
