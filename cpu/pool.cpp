#include "pool.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "available.hpp"

namespace pg {
namespace {

constexpr size_t ALIGNMENT = 64;
constexpr size_t SMALLEST_KEPT = 16u << 10;  // bytes; malloc seldom returns the pages of smaller blocks
constexpr size_t LARGEST_KEPT = SIZE_MAX >> 17;
constexpr size_t ALWAYS_KEPT = 64u << 20;   // bytes that are kept without asking the system how much memory is free
constexpr size_t SHARE = 4;                 // at most 1 / SHARE of the sum of free and kept memory is kept
constexpr int64_t LOOK_PERIOD = 1000;       // ms; keep() asks the system about free memory at most once in this time
constexpr size_t LOOK_BYTES = ALWAYS_KEPT;  // make_room() asks the system after this many bytes were newly mapped
constexpr int64_t IDLE = 10'000;            // ms that an unused block is kept; mapping 1 GiB anew takes about 0.2 s
constexpr int TRIALS = 64, PATIENT_TRIALS = 1000;  // attempts to take the lock before giving up
constexpr size_t SMALLEST_MAPPED = 128u << 10;     // bytes; malloc's threshold too, until it frees a mapped block
constexpr size_t HUGE_PAGE = 2u << 20;             // bytes; blocks of at least this size ask for huge pages

// Lies directly before a block.
struct Header {
    void *allocation;
    size_t mapped;    // bytes of an allocation by mmap; 0 for one by malloc
    size_t capacity;  // usable bytes of the block
    // These fields are valid only in a kept block. older, newer: neighbours by age among all kept blocks. older_alike,
    // newer_alike: neighbours by age among kept blocks of the same capacity. since: when the block was kept, in ms.
    Header *older, *newer, *older_alike, *newer_alike;
    int64_t since;
};
constexpr size_t BEFORE = ALIGNMENT + sizeof(Header);

Header &header(void *block) { return static_cast<Header *>(block)[-1]; }

constexpr unsigned log2(size_t x) { return 8 * sizeof(long long) - 1 - (unsigned)__builtin_clzll(x); }

// Returns the size of a block for `bytes` bytes. If blocks of this size may be kept, `bytes` is rounded up by at most
// an eighth. Then a result can reuse the block of an earlier result of similar size.
size_t capacity_for(size_t bytes) {
    if (bytes < SMALLEST_KEPT || bytes > LARGEST_KEPT) return bytes;
    const size_t step = (size_t)1 << (log2(bytes) - 3);
    return (bytes + step - 1) / step * step;
}
bool may_be_kept(size_t capacity) { return capacity >= SMALLEST_KEPT && capacity <= LARGEST_KEPT + 1; }

// Returns the index of a capacity among all capacities that may be kept. There are eight such capacities from each
// power of two up to the next.
constexpr size_t class_of(size_t capacity) {
    const unsigned log = log2(capacity);
    return 8 * (log - log2(SMALLEST_KEPT)) + (capacity >> (log - 3)) % 8;
}
constexpr size_t CLASSES = class_of(LARGEST_KEPT + 1) + 1;

// AddressSanitizer only knows malloc's blocks. Here it learns which bytes of a pool's block are out of bounds: the
// bytes beyond the size asked for and, while the block is kept for later use, all its bytes.
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

// Allocates a block. Large blocks are mapped, because free() may keep memory that lies before a block in use instead of
// giving it back to the system. A block of at least one huge page begins at a multiple of the size of a huge page,
// because bytes before that multiple would lie in small pages.
template <bool ZEROS> void *fresh(size_t capacity) {
    const size_t bytes = BEFORE + capacity, spare = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    void *allocation = MAP_FAILED;
    if (capacity >= SMALLEST_MAPPED)
        allocation = mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool mapped = allocation != MAP_FAILED;
    if (!mapped) allocation = ZEROS ? std::calloc(1, bytes) : std::malloc(bytes);
    if (!allocation) return nullptr;
    uintptr_t begin = (uintptr_t)allocation;
    if (mapped && spare) begin += -begin % HUGE_PAGE;
#ifdef __linux__
    if (mapped && spare) madvise(reinterpret_cast<void *>(begin), bytes, MADV_HUGEPAGE);  // faster than small pages
#endif
    void *block = reinterpret_cast<void *>((begin + BEFORE) / ALIGNMENT * ALIGNMENT);
    Header &own = header(block);
    own.allocation = allocation, own.mapped = mapped ? bytes + spare : 0, own.capacity = capacity;
    return block;
}

void free_allocation(void *block) {
    const Header &own = header(block);
    allow(block, own.capacity);
    if (own.mapped) munmap(own.allocation, own.mapped);
    else std::free(own.allocation);
}

int64_t now() {
#ifdef CLOCK_MONOTONIC_COARSE
    constexpr clockid_t CLOCK = CLOCK_MONOTONIC_COARSE;  // its resolution of 4 ms suffices
#else
    constexpr clockid_t CLOCK = CLOCK_MONOTONIC;
#endif
    timespec time{};
    clock_gettime(CLOCK, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
}

// The kept blocks. The lock is held for a few instructions; blocks are returned to the system without the lock. After
// TRIALS attempts to take the lock, a thread goes on without kept blocks. So no thread waits for a stopped thread, and
// a child of fork() works (without reuse) even if its lock stays taken. The object is constant-initialized and
// trivially destructible, because threads may outlive all destructors.
class Kept {
  public:
    // Returns null if there is no block of that capacity.
    void *take(size_t capacity) {
        if (!try_lock()) return nullptr;
        Header *found = latest_[class_of(capacity)];  // the latest, which the caches may still hold
        if (found) remove(*found);
        unlock();
        return found ? found + 1 : nullptr;
    }
    // Keeps a block, and returns older blocks to the system to make room. Returns false if the block is not kept.
    bool keep(void *block) {
        Header &own = header(block);
        const int64_t time = now();
        if (bytes_ + own.capacity > ALWAYS_KEPT && time - looked_ >= LOOK_PERIOD) look(time, 0);
        const size_t most = bytes_ + own.capacity > ALWAYS_KEPT ? bound() : std::min(bound_.load(), ALWAYS_KEPT);
        if (own.capacity > most || !try_lock()) return false;
        Header *leaving = cut(most - own.capacity, time - idle_);
        forbid(block);
        add(own, time);
        unlock();
        return_all(leaving);
        return true;
    }
    // Returns kept blocks to the system if memory is short. Must be called before `bytes` bytes are mapped.
    void make_room(size_t bytes) {
        if (bytes_ <= ALWAYS_KEPT || (mapped_ += bytes) < LOOK_BYTES) return;
        look(now(), bytes);
        leave(bound(), now() - idle_);
    }
    void trim() {
        if (!bytes_) return;
        if (bytes_ > ALWAYS_KEPT) look(now(), 0);
        leave(bound(), now() - idle_);
    }
    // Returns all kept blocks to the system. Waits longer for the lock than the other functions, but not forever,
    // because in a child of fork() the lock may stay taken.
    void release() {
        for (int i = 0; bytes_ && i < PATIENT_TRIALS && !leave(0, 0); ++i) sched_yield();
    }
    size_t bytes() const { return bytes_; }
    int64_t idle() const { return idle_; }
    void set_bounds(size_t bytes, int64_t idle) {
        bound_ = bytes, idle_ = idle;
        leave(bytes, now() - idle);
    }

  private:
    bool try_lock() {
        for (int i = 0; i < TRIALS; ++i)
            if (!locked_.test_and_set(std::memory_order_acquire)) return true;
        return false;
    }
    void unlock() { locked_.clear(std::memory_order_release); }

    size_t bound() const { return std::min(bound_.load(), share_.load()); }
    // Asks the system how much memory is free. The caller is about to use `needed` bytes of this memory.
    void look(int64_t time, size_t needed) {
        looked_ = time, mapped_ = 0;
        const size_t available = available_memory();
        share_ = std::max(ALWAYS_KEPT, (available - std::min(available, needed) + bytes_) / SHARE);
    }

    void add(Header &own, int64_t time) {
        Header *&latest = latest_[class_of(own.capacity)];
        own.since = time;
        own.older = newest_, own.newer = nullptr, own.older_alike = latest, own.newer_alike = nullptr;
        (newest_ ? newest_->newer : oldest_) = &own;
        if (latest) latest->newer_alike = &own;
        newest_ = latest = &own;
        bytes_ += own.capacity;
    }
    void remove(const Header &own) {
        (own.older ? own.older->newer : oldest_) = own.newer;
        (own.newer ? own.newer->older : newest_) = own.older;
        if (own.older_alike) own.older_alike->newer_alike = own.newer_alike;
        (own.newer_alike ? own.newer_alike->older_alike : latest_[class_of(own.capacity)]) = own.older_alike;
        bytes_ -= own.capacity;
    }
    // Removes the oldest blocks until at most `most` bytes remain and no remaining block was added before the time
    // `since`. Returns the first removed block; `newer` leads to the others.
    Header *cut(size_t most, int64_t since) {
        Header *first = oldest_, *last = nullptr;
        while (oldest_ && (bytes_ > most || oldest_->since < since)) last = oldest_, remove(*oldest_);
        if (!last) return nullptr;
        last->newer = nullptr;
        return first;
    }
    // Frees the blocks that cut(most, since) removes. Frees nothing and returns false if another thread has the lock.
    bool leave(size_t most, int64_t since) {
        if (!try_lock()) return false;
        Header *leaving = cut(most, since);
        unlock();
        return_all(leaving);
        return true;
    }
    static void return_all(Header *leaving) {
        while (leaving) {
            Header *next = leaving->newer;
            free_allocation(leaving + 1);
            leaving = next;
        }
    }

    std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
    std::atomic<size_t> bytes_{0};
    std::atomic<size_t> bound_{SIZE_MAX}, share_{ALWAYS_KEPT};
    std::atomic<int64_t> idle_{IDLE};
    std::atomic<int64_t> looked_{-LOOK_PERIOD};  // when look() last asked the system
    std::atomic<size_t> mapped_{0};              // bytes newly mapped since look() last asked
    Header *oldest_ = nullptr, *newest_ = nullptr;
    Header *latest_[CLASSES] = {};
};
static_assert(std::is_trivially_destructible_v<Kept>);
Kept kept;

template <bool ZEROS> void *reuse(size_t bytes) {
    const size_t capacity = capacity_for(bytes);
    void *block = may_be_kept(capacity) ? kept.take(capacity) : nullptr;
    if (!block) return nullptr;
    allow(block, bytes);
    if (ZEROS) std::memset(block, 0, bytes);
    return block;
}

template <bool ZEROS> void *allocate(size_t bytes) {
    if (void *block = reuse<ZEROS>(bytes)) return block;
    const size_t capacity = capacity_for(bytes);
    if (capacity > SIZE_MAX - BEFORE - HUGE_PAGE) return nullptr;
    kept.make_room(capacity);
    void *block = fresh<ZEROS>(capacity);
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

void *pool_reuse(size_t bytes) { return reuse<false>(bytes); }

void *pool_reuse_zeros(size_t bytes) { return reuse<true>(bytes); }

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
    if (!may_be_kept(header(block).capacity) || !kept.keep(block)) free_allocation(block);
}

size_t pool_kept() { return kept.bytes(); }

void pool_release() { kept.release(); }

void pool_trim() { kept.trim(); }

void pool_set_bounds(size_t bytes, std::chrono::milliseconds idle) { kept.set_bounds(bytes, idle.count()); }

std::chrono::milliseconds pool_trim_period() {
    return std::chrono::milliseconds(std::max<int64_t>(kept.idle() / 2, 1));
}

}  // namespace pg
