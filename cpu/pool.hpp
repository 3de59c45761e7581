// Memory of results: blocks that begin at a multiple of 64 bytes, a cache line and a vector of AVX-512. A large
// block that is freed is kept for the next result of its size: the system would have to map its pages anew, which
// takes several times as long as a sum of such results.
#pragma once
#include <cstddef>

namespace pg {

// Like malloc, calloc, realloc and free, for blocks of this pool; any thread may call them. Null where the system has
// no memory even after all kept blocks were returned to it.
void *pool_allocate(size_t bytes);
void *pool_allocate_zeros(size_t bytes);
void *pool_reallocate(void *block, size_t bytes);
void pool_free(void *block);

// Bytes of freed blocks that are kept: at most 64 MiB, in at most 256 blocks of 16 KiB to 32 MiB.
size_t pool_kept();
// Returns the kept blocks to the system.
void pool_release();

}  // namespace pg
