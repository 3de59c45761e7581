#include "pool.hpp"

#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace pg {
namespace {

constexpr size_t ALIGNMENT = 64;
constexpr size_t SMALLEST_KEPT = 16u << 10;  // bytes; malloc seldom returns the pages of smaller blocks
constexpr size_t LARGEST_KEPT = 32u << 20;
constexpr size_t MOST_KEPT = 64u << 20;
constexpr size_t MOST_BLOCKS = 256;
constexpr size_t SMALLEST_MAPPED = 128u << 10;  // malloc's threshold too, until the first mapped block is freed
constexpr size_t HUGE_PAGES = 4u << 20;         // bytes; NumPy too asks for huge pages from this size on

// Lies directly before a block.
struct Header {
    void *allocation;
    size_t mapped;    // bytes of an allocation by mmap; 0 for one by malloc
    size_t capacity;  // usable bytes of the block
};
constexpr size_t BEFORE = ALIGNMENT + sizeof(Header);

Header &header(void *block) { return static_cast<Header *>(block)[-1]; }

// Sizes that may be kept are rounded up by at most an eighth, so that similar results share blocks.
size_t capacity_for(size_t bytes) {
    if (bytes < SMALLEST_KEPT || bytes > LARGEST_KEPT) return bytes;
    size_t power = SMALLEST_KEPT;
    while (power <= bytes / 2) power *= 2;
    const size_t step = power / 8;
    return (bytes + step - 1) / step * step;
}

// AddressSanitizer only knows malloc's blocks. Here it learns that two parts of a pool's block are out of bounds: what
// lies beyond the size asked for, and all of a block while it is kept.
#ifdef __SANITIZE_ADDRESS__
void allow(void *block, size_t bytes) {
    const size_t capacity = header(block).capacity;
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
    ASAN_POISON_MEMORY_REGION(static_cast<char *>(block) + bytes, capacity - bytes);
}
void forbid(void *block) { ASAN_POISON_MEMORY_REGION(block, header(block).capacity); }
#else
void allow(void *, size_t) {}
void forbid(void *) {}
#endif

// Large blocks come straight from the system. If they were malloc's, it could not return the memory before a kept one.
template <bool ZEROS> void *fresh(size_t capacity) {
    const size_t bytes = BEFORE + capacity;
    void *allocation = MAP_FAILED;
    if (capacity >= SMALLEST_MAPPED)
        allocation = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool mapped = allocation != MAP_FAILED;
#ifdef __linux__
    if (mapped && bytes >= HUGE_PAGES) madvise(allocation, bytes, MADV_HUGEPAGE);  // faster than small pages
#endif
    if (!mapped) allocation = ZEROS ? std::calloc(1, bytes) : std::malloc(bytes);
    if (!allocation) return nullptr;
    void *block = reinterpret_cast<void *>(((uintptr_t)allocation + BEFORE) / ALIGNMENT * ALIGNMENT);
    header(block) = {allocation, mapped ? bytes : 0, capacity};
    return block;
}

void free_allocation(void *block) {
    const Header &own = header(block);
    allow(block, own.capacity);
    if (own.mapped) munmap(own.allocation, own.mapped);
    else std::free(own.allocation);
}

// The kept blocks. A thread that finds the lock taken goes on without them, so that no thread waits. A child of fork()
// whose parent's other thread held the lock only forgoes reuse. The object is constant-initialized and trivially
// destructible, because threads may outlive all destructors.
class Kept {
  public:
    // Null where there is no block of that capacity.
    void *take(size_t capacity) {
        if (!try_lock()) return nullptr;
        void *block = nullptr;
        for (size_t i = count_; i-- > 0;)  // the latest first, which the caches may still hold
            if (blocks_[i].capacity == capacity) {
                block = blocks_[i].block;
                remove(i, i + 1);
                break;
            }
        unlock();
        return block;
    }
    // Keeps a block; the oldest ones give way. False: the block is still the caller's.
    bool keep(void *block, size_t capacity) {
        if (!try_lock()) return false;
        size_t old = 0, bytes = bytes_ + capacity;
        while (bytes > MOST_KEPT || count_ - old >= MOST_BLOCKS) bytes -= blocks_[old++].capacity;
        give_back(old);
        forbid(block);
        blocks_[count_++] = {block, capacity};
        bytes_ += capacity;
        unlock();
        return true;
    }
    void release() {
        if (!try_lock()) return;
        give_back(count_);
        unlock();
    }
    size_t bytes() const { return bytes_; }

  private:
    bool try_lock() { return !locked_.test_and_set(std::memory_order_acquire); }
    void unlock() { locked_.clear(std::memory_order_release); }
    void remove(size_t from, size_t to) {
        for (size_t i = from; i < to; ++i) bytes_ -= blocks_[i].capacity;
        std::copy(blocks_ + to, blocks_ + count_, blocks_ + from);
        count_ -= to - from;
    }
    // Returns the first `number` blocks, which are the oldest, to the system.
    void give_back(size_t number) {
        if (!number) return;
        for (size_t i = 0; i < number; ++i) free_allocation(blocks_[i].block);
        remove(0, number);
    }

    struct Block {
        void *block;
        size_t capacity;
    };
    std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
    std::atomic<size_t> bytes_{0};
    size_t count_ = 0;
    Block blocks_[MOST_BLOCKS] = {};  // in the order in which they came
};
static_assert(std::is_trivially_destructible_v<Kept>);
Kept kept;

bool may_be_kept(size_t capacity) { return capacity >= SMALLEST_KEPT && capacity <= LARGEST_KEPT; }

template <bool ZEROS> void *allocate(size_t bytes) {
    const size_t capacity = capacity_for(bytes);
    if (capacity > SIZE_MAX - BEFORE) return nullptr;
    void *block = may_be_kept(capacity) ? kept.take(capacity) : nullptr;
    if (block) {
        allow(block, bytes);
        if (ZEROS) std::memset(block, 0, bytes);
        return block;
    }
    block = fresh<ZEROS>(capacity);
    if (!block && pool_kept()) {
        kept.release();
        block = fresh<ZEROS>(capacity);
    }
    if (!block) return nullptr;
    allow(block, bytes);
    return block;
}

}  // namespace

void *pool_allocate(size_t bytes) { return allocate<false>(bytes); }

void *pool_allocate_zeros(size_t bytes) { return allocate<true>(bytes); }

void *pool_reallocate(void *block, size_t bytes) {
    void *moved = pool_allocate(bytes);
    if (moved && block) {
        allow(block, header(block).capacity);
        std::memcpy(moved, block, std::min(bytes, header(block).capacity));
        pool_free(block);
    }
    return moved;
}

void pool_free(void *block) {
    if (!block) return;
    const size_t capacity = header(block).capacity;
    if (!may_be_kept(capacity) || !kept.keep(block, capacity)) free_allocation(block);
}

size_t pool_kept() { return kept.bytes(); }

void pool_release() { kept.release(); }

}  // namespace pg
