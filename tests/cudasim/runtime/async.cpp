// Copies that are made when somebody waits for them, and the mbarriers that count them.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "../include/async.h"
#include "scheduler.h"

#ifdef CUDASIM_THREAD_SANITIZER
extern "C" unsigned long __tsan_atomic64_load(const volatile unsigned long *address, int order);
#endif

namespace sim {

static void check_alignment(const char *name, const void *a, const void *b, unsigned bytes, unsigned unit,
                            Place place) {
    if (reinterpret_cast<uintptr_t>(a) % unit || reinterpret_cast<uintptr_t>(b) % unit || bytes % unit)
        fail("%s of %u bytes from %p to %p: all must be multiples of %u (%s:%d)", name, bytes, b, a, unit, place.file,
             place.line);
}

static std::unique_ptr<PendingCopy> issue(void *to, const void *from, unsigned bytes, bool into_shared, Place place) {
    if (from) note_read(from, bytes);
    note_write(to, bytes);
    Quiet quiet;
    std::unique_ptr<PendingCopy> copy(new PendingCopy());
    copy->to = to;
    copy->from = from;
    copy->bytes = bytes;
    copy->into_shared = into_shared;
    copy->place = place;
    if (into_shared) {
        memset(to, kPoison, bytes);
        forbid(to, bytes);
    }
    happens_before(&copy->token);
    return copy;
}

static void make(PendingCopy &copy) {
    unsigned bytes = copy.bytes - copy.zero_bytes;
    happens_after(&copy.token);
    note_write(copy.to, copy.bytes);
    if (!copy.inline_value) note_read(copy.from, bytes);
    Quiet quiet;
    if (copy.into_shared) allow(copy.to, copy.bytes);
    if (copy.inline_value) {
        memcpy(copy.to, copy.value, copy.bytes);
        return;
    }
    memcpy(copy.to, copy.from, bytes);
    memset(static_cast<char *>(copy.to) + bytes, 0, copy.zero_bytes);
}

static void commit(CopyQueue &queue) {
    Quiet quiet;
    queue.committed.push_back(std::move(queue.open));
    queue.open.clear();
}

static void wait_until(CopyQueue &queue, size_t groups_left) {
    while (queue.committed.size() > groups_left) {
        for (auto &copy : queue.committed.front()) make(*copy);
        Quiet quiet;
        queue.committed.pop_front();
    }
}

static void check_empty(CopyQueue &queue, const char *name) {
    commit(queue);
    for (CopyGroup &group : queue.committed) {
        if (group.empty()) continue;
        const PendingCopy &copy = *group.front();
        fail("missing wait: a thread leaves the kernel with a %s of %u bytes under way, issued at %s:%d", name,
             copy.bytes, copy.place.file, copy.place.line);
    }
    queue.committed.clear();
}

void check_no_copies_left(ThreadState &thread) {
    check_empty(thread.copies, "cp.async");
    check_empty(thread.bulk_copies, "cp.async.bulk");
}

void check_no_copies_left(BlockState &block) {
    if (block.barrier_copies.empty()) return;
    const PendingCopy &copy = *block.barrier_copies.front();
    fail("missing wait: the block ends with an asynchronous copy of %u bytes under way, issued at %s:%d", copy.bytes,
         copy.place.file, copy.place.line);
}

// ---- cp.async ----

void async_copy(void *shared, const void *global, unsigned bytes, unsigned source_bytes, Place place) {
    if (bytes != 4 && bytes != 8 && bytes != 16) fail("cp.async of %u bytes (%s:%d)", bytes, place.file, place.line);
    if (source_bytes > bytes) fail("cp.async of %u bytes from %u (%s:%d)", bytes, source_bytes, place.file, place.line);
    check_alignment("cp.async", shared, global, bytes, bytes, place);
    if (!is_shared(shared)) fail("cp.async to %p, not shared memory (%s:%d)", shared, place.file, place.line);
    if (source_bytes) check_global(global, source_bytes, "cp.async", place);
    auto copy = issue(shared, source_bytes ? global : nullptr, bytes, true, place);
    copy->zero_bytes = bytes - source_bytes;
    Quiet quiet;
    self()->copies.open.push_back(std::move(copy));
}

void async_commit() { commit(self()->copies); }
void async_wait(unsigned groups_left) { wait_until(self()->copies, groups_left); }
void async_wait_all() {
    commit(self()->copies);
    wait_until(self()->copies, 0);
}

// ---- mbarriers ----

namespace {

// The 64 bits of an mbarrier. Its phase completes when no arrival and no byte is outstanding.
struct Word {
    uint64_t tag : 8;
    uint64_t phase : 1;
    uint64_t expected : 16;
    uint64_t pending : 16;
    int64_t bytes : 23;
};
constexpr uint64_t kTag = 0x6d;
static_assert(sizeof(Word) == 8, "");

void store(uint64_t *barrier, const Word &word) { __builtin_memcpy(barrier, &word, sizeof word); }

Word load(uint64_t *barrier, const char *name, Place place) {
    Word word;
#ifdef CUDASIM_THREAD_SANITIZER
    // An atomic access: it races with an initialisation that no barrier separates from it.
    __tsan_atomic64_load(reinterpret_cast<unsigned long *>(barrier), __ATOMIC_RELAXED);
#endif
    __builtin_memcpy(&word, barrier, sizeof word);
    if (word.tag != kTag)
        fail("%s: the mbarrier at %p was not initialised (%s:%d)", name, (void *)barrier, place.file, place.line);
    return word;
}

void settle(uint64_t *barrier, Word word) {
    if (word.pending == 0 && word.bytes == 0) {
        word.phase ^= 1;
        word.pending = word.expected;
    }
    store(barrier, word);
}

// The block in whose shared memory the barrier lies: this one, or another of the cluster.
BlockState &home_of(const void *pointer, const char *name, Place place) {
    const char *p = static_cast<const char *>(pointer);
    for (BlockState *block : self()->owner->cluster->blocks)
        if (p >= block->arena && p < block->arena + block->arena_bytes) return *block;
    fail("%s: %p is not in the shared memory of this cluster (%s:%d)", name, pointer, place.file, place.line);
}

void make_copies_of(uint64_t *barrier, Place place) {
    auto &copies = home_of(barrier, "mbarrier", place).barrier_copies;
    for (size_t i = 0; i < copies.size();) {
        if (copies[i]->barrier != barrier) {
            i++;
            continue;
        }
        PendingCopy &copy = *copies[i];
        make(copy);
        happens_before(barrier);
        Word word = load(barrier, "complete_tx", place);
        word.bytes -= int64_t(copy.bytes);
        settle(barrier, word);
        Quiet quiet;
        copies.erase(copies.begin() + long(i));
    }
}

void arrive(uint64_t *barrier, unsigned count, unsigned bytes, const char *name, Place place) {
    Word word = load(barrier, name, place);
    if (count > word.pending)
        fail("%s: %u arrivals, the phase of the mbarrier expects %u more (%s:%d)", name, count, unsigned(word.pending),
             place.file, place.line);
    happens_before(barrier);
    word.bytes += int64_t(bytes);
    word.pending -= count;
    settle(barrier, word);
}

}  // namespace

void mbarrier_init(uint64_t *barrier, unsigned count, Place place) {
    home_of(barrier, "mbarrier.init", place);
    if (count == 0 || count > 0xffff) fail("mbarrier.init with a count of %u (%s:%d)", count, place.file, place.line);
    note_write(barrier, sizeof *barrier);
    store(barrier, Word{kTag, 0, count, count, 0});
}

void mbarrier_invalidate(uint64_t *barrier, Place place) {
    load(barrier, "mbarrier.inval", place);
    note_write(barrier, sizeof *barrier);
    *barrier = 0;
}

void mbarrier_arrive(uint64_t *barrier, unsigned count, Place place) {
    arrive(barrier, count, 0, "mbarrier.arrive", place);
}
void mbarrier_expect_tx(uint64_t *barrier, unsigned bytes, Place place) {
    arrive(barrier, 0, bytes, "mbarrier.expect_tx", place);
}
void mbarrier_arrive_expect_tx(uint64_t *barrier, unsigned bytes, Place place) {
    arrive(barrier, 1, bytes, "mbarrier.arrive.expect_tx", place);
}

bool mbarrier_test_wait_parity(uint64_t *barrier, unsigned parity, Place place) {
    make_copies_of(barrier, place);
    if (load(barrier, "mbarrier.test_wait", place).phase == (parity & 1)) return false;
    happens_after(barrier);
    return true;
}

bool mbarrier_try_wait_parity(uint64_t *barrier, unsigned parity, Place place) {
    if (mbarrier_test_wait_parity(barrier, parity, place)) return true;
    spin("mbarrier.try_wait", place);
    return mbarrier_test_wait_parity(barrier, parity, place);
}

// ---- cp.async.bulk, st.async ----

void bulk_load(void *shared, const void *global, unsigned bytes, uint64_t *barrier, Place place) {
    check_alignment("cp.async.bulk", shared, global, bytes, 16, place);
    check_global(global, bytes, "cp.async.bulk", place);
    BlockState &home = home_of(barrier, "cp.async.bulk", place);
    if (&home_of(shared, "cp.async.bulk", place) != &home)
        fail("cp.async.bulk: destination and mbarrier lie in different blocks (%s:%d)", place.file, place.line);
    load(barrier, "cp.async.bulk", place);
    auto copy = issue(shared, global, bytes, true, place);
    copy->barrier = barrier;
    Quiet quiet;
    home.barrier_copies.push_back(std::move(copy));
}

void bulk_store(void *global, const void *shared, unsigned bytes, Place place) {
    check_alignment("cp.async.bulk", global, shared, bytes, 16, place);
    check_global(global, bytes, "cp.async.bulk", place);
    if (!is_shared(shared)) fail("cp.async.bulk from %p, not shared memory (%s:%d)", shared, place.file, place.line);
    auto copy = issue(global, shared, bytes, false, place);
    Quiet quiet;
    self()->bulk_copies.open.push_back(std::move(copy));
}

void bulk_commit() { commit(self()->bulk_copies); }
void bulk_wait(unsigned groups_left) { wait_until(self()->bulk_copies, groups_left); }

void store_async(void *shared, const void *value, unsigned bytes, uint64_t *barrier, Place place) {
    BlockState &home = home_of(barrier, "st.async", place);
    if (&home_of(shared, "st.async", place) != &home)
        fail("st.async: destination and mbarrier lie in different blocks (%s:%d)", place.file, place.line);
    auto copy = issue(shared, nullptr, bytes, true, place);
    Quiet quiet;
    memcpy(copy->value, value, bytes);
    copy->inline_value = true;
    copy->barrier = barrier;
    home.barrier_copies.push_back(std::move(copy));
}

}  // namespace sim

#ifdef CUDASIM_THREAD_SANITIZER
// g++ reports volatile accesses apart (--param tsan-distinguish-volatile=1). CUDA code spins on volatile words that
// others write: they are relaxed atomics here, and such a loop lets the other threads run.
extern "C" {
unsigned char __tsan_atomic8_load(const volatile unsigned char *address, int order);
unsigned short __tsan_atomic16_load(const volatile unsigned short *address, int order);
unsigned __tsan_atomic32_load(const volatile unsigned *address, int order);
unsigned char __tsan_atomic8_fetch_or(volatile unsigned char *address, unsigned char value, int order);
unsigned short __tsan_atomic16_fetch_or(volatile unsigned short *address, unsigned short value, int order);
unsigned __tsan_atomic32_fetch_or(volatile unsigned *address, unsigned value, int order);
unsigned long __tsan_atomic64_fetch_or(volatile unsigned long *address, unsigned long value, int order);

#define SIM_VOLATILE(BYTES, BITS, T)                                                    \
    void __tsan_volatile_read##BYTES(void *address) {                                   \
        __tsan_atomic##BITS##_load(static_cast<T *>(address), __ATOMIC_RELAXED);        \
        sim::after_atomic(address);                                                     \
        sim::poll(address, {"a volatile read", 0});                                     \
    }                                                                                   \
    void __tsan_volatile_write##BYTES(void *address) {                                  \
        sim::before_atomic(address);                                                    \
        __tsan_atomic##BITS##_fetch_or(static_cast<T *>(address), 0, __ATOMIC_RELAXED); \
    }
SIM_VOLATILE(1, 8, unsigned char)
SIM_VOLATILE(2, 16, unsigned short)
SIM_VOLATILE(4, 32, unsigned)
SIM_VOLATILE(8, 64, unsigned long)
void __tsan_volatile_read16(void *address) { sim::note_read(address, 16); }
void __tsan_volatile_write16(void *address) { sim::note_write(address, 16); }
}
#endif
