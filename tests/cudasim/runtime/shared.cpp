// Shared memory: one arena a block, static variables first, dynamic shared memory after them.
//
// Filled with rubbish before the block starts. AddressSanitizer sees every byte that no variable owns as forbidden.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "scheduler.h"

namespace sim {

static unsigned launch_number;
static size_t static_end;    // of the variables placed so far in this launch, red zones included
static size_t static_bytes;  // without red zones: what counts against the card's limit

#ifdef CUDASIM_ADDRESS_SANITIZER
static constexpr size_t kRedZone = 64;
static constexpr size_t kStaticRegion = 2 * kStaticSharedBytes;
#else
static constexpr size_t kRedZone = 0;
static constexpr size_t kStaticRegion = kStaticSharedBytes;
#endif

static size_t arena_size() { return kStaticRegion + config().dynamic_shared + 4096; }

void begin_shared_layout() {
    launch_number++;
    static_end = static_bytes = 0;
}

void prepare_arena(BlockState &block) {
    size_t bytes = arena_size();
    if (block.arena && block.arena_bytes < bytes) {
        munmap(block.arena, block.arena_bytes);
        block.arena = nullptr;
    }
    if (!block.arena) {
        void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            perror("cudasim: no memory for a block's shared memory");
            abort();
        }
        block.arena = static_cast<char *>(memory);
        block.arena_bytes = bytes;
    }
    block.shared = block.arena;
    allow(block.arena, block.arena_bytes);
    // Not memset, which ThreadSanitizer would take for a write of the launcher.
    for (size_t i = 0; i < bytes; i += 8)
        *reinterpret_cast<volatile uint64_t *>(block.arena + i) = 0x0101010101010101u * kPoison;
    forbid(block.arena, block.arena_bytes);
    allow(block.arena + kStaticRegion, config().dynamic_shared);
}

void release_arena(BlockState &block) { allow(block.arena, block.arena_bytes); }

BlockState::~BlockState() {
    if (!arena) return;
    allow(arena, arena_bytes);
    munmap(arena, arena_bytes);
}

void *place_shared(SharedSlot &slot, size_t bytes, size_t alignment) {
    if (slot.launch != launch_number) {
        size_t start = (static_end + alignment - 1) / alignment * alignment;
        static_bytes += start - static_end + bytes;
        if (static_bytes > kStaticSharedBytes)
            fail("uses too much shared data: %zu bytes of static shared memory, 48 KiB are the limit", static_bytes);
        if (static_bytes + config().dynamic_shared > config().shared_limit)
            fail(
                "CUDA_ERROR_INVALID_VALUE: invalid argument: %zu bytes of static and %zu of dynamic shared memory, the "
                "limit is %zu",
                static_bytes, size_t(config().dynamic_shared), size_t(config().shared_limit));
        if (start + bytes + kRedZone > kStaticRegion) fail("too many small shared variables for the red zones");
        static_end = start + bytes + kRedZone;
        slot.launch = launch_number;
        slot.offset = unsigned(start);
    }
    char *place = self()->owner->shared + slot.offset;
    allow(place, bytes);
    return place;
}

void *dynamic_shared(size_t alignment) {
    if (alignment > 1024) fail("__align__(%zu) of shared memory", alignment);
    return self()->owner->shared + kStaticRegion;
}

bool is_shared(const void *pointer) {
    BlockState &block = *self()->owner;
    const char *p = static_cast<const char *>(pointer);
    return p >= block.shared && p < block.shared + arena_size();
}

size_t shared_offset(const void *pointer) {
    if (!is_shared(pointer)) fail("%p is not in this block's shared memory", pointer);
    return size_t(static_cast<const char *>(pointer) - self()->owner->shared);
}

void *shared_pointer(size_t offset) {
    if (offset >= arena_size()) fail("shared address %zu is beyond this block's shared memory", offset);
    return self()->owner->shared + offset;
}

}  // namespace sim
