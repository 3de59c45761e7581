#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>

#include "signals.h"

namespace sim {

Thread *current;
Shape shape;

namespace {

// Rounds in which every thread only spins, before that counts as a deadlock.
constexpr unsigned kSpinRounds = 5000;

// A block takes over the threads and the memory of a finished one. To ThreadSanitizer that orders the two, and it sees
// no race between them. So under it the next block does not take them over, but the third one after or a later one.
#ifdef CUDASIM_THREAD_SANITIZER
constexpr size_t kKeptBlocks = 3;
constexpr size_t kMaxThreads = 6000;  // ThreadSanitizer can tell 8128 apart
#else
constexpr size_t kKeptBlocks = 1;
constexpr size_t kMaxThreads = size_t(1) << 17;  // two pages of stack each at the least
#endif

// xorshift64*: the same orders everywhere for the same seed.
struct Random {
    uint64_t state = 1;
    void seed(uint64_t value) { state = value * 0x9e3779b97f4a7c15u | 1; }
    unsigned below(unsigned bound) {
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        return unsigned((state * 0x2545f4914f6cdd1du >> 32) * bound >> 32);
    }
};

struct Launch {
    LaunchConfig config;
    void (*entry)(void **);
    void **arguments;
    uint64_t next_block = 0, blocks = 0;
    unsigned cluster_blocks = 0;       // 0: not known before the first thread has run
    std::shared_ptr<Cluster> filling;  // the cluster whose blocks are being started
    std::deque<ThreadState *> ready;
    std::vector<ThreadState *> spinning;
    std::vector<std::unique_ptr<BlockState>> resident;
    BlockState *finished = nullptr;
    bool waited = false;    // for the work before (griddepcontrol.wait)
    bool progress = false;  // did anything but spinning happen since the spinners last ran?
    Random random;
    std::string error;
};

Launch launch;
Fiber launcher;                                // run_launch(), which alone starts blocks and collects finished ones
std::deque<std::unique_ptr<BlockState>> idle;  // the longest idle first
size_t threads_alive;                          // in idle and resident blocks
char launch_end;
uint64_t clock_ticks;
struct Allocation {
    size_t bytes, guard;
    bool of_host;  // the host wrote it
};
std::map<uintptr_t, Allocation> allocations;  // by address

// Python threads may allocate while another one launches. No mutex: ThreadSanitizer would take it for an order that the
// kernel's threads have.
std::atomic_flag allocations_locked = ATOMIC_FLAG_INIT;
struct AllocationsLock {
    AllocationsLock() {
        while (allocations_locked.test_and_set(std::memory_order_acquire)) {
        }
    }
    ~AllocationsLock() { allocations_locked.clear(std::memory_order_release); }
};

bool in_one_allocation(uintptr_t start, size_t bytes) {
    AllocationsLock lock;
    auto after = allocations.upper_bound(start);
    if (after == allocations.begin()) return false;
    auto holder = std::prev(after);
    return start + bytes <= holder->first + holder->second.bytes;
}

void switch_away(ThreadState *from) {
    ThreadState *next = nullptr;
    if (!launch.ready.empty()) {
        Quiet quiet;
        if (launch.config.order == kRandom)
            std::swap(launch.ready.front(), launch.ready[launch.random.below(unsigned(launch.ready.size()))]);
        next = launch.ready.front();
        launch.ready.pop_front();
    }
    if (next == from) return;
    current = next;
    Fiber::jump(from ? from->fiber : launcher, next ? next->fiber : launcher);
}

std::string describe(const ThreadState &thread) {
    char text[256];
    const uint3 &t = thread.index, &b = thread.owner->index;
    snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)", t.x, t.y, t.z, b.x, b.y, b.z);
    return text;
}

std::string where(const ThreadState &thread) {
    std::string text = thread.doing;
    if (thread.place.file) text += " at " + std::string(thread.place.file) + ":" + std::to_string(thread.place.line);
    return text;
}

// Who waits where, for the first blocks that are stuck.
std::string report_stuck(const char *what) {
    std::string text = what;
    int blocks = 0;
    for (auto &block : launch.resident) {
        if (blocks++ == 3) break;
        std::map<std::string, std::vector<ThreadState *>> places;
        unsigned exited = 0;
        for (auto &thread : block->threads) {
            if (thread->exited) exited++;
            else places[where(*thread)].push_back(thread.get());
        }
        for (auto &place : places)
            text += "\n  " + std::to_string(place.second.size()) + " threads wait in " + place.first +
                    ", the first is " + describe(*place.second[0]);
        if (exited) text += "\n  " + std::to_string(exited) + " threads of that block have left the kernel";
    }
    return text;
}

void thread_main() {
    ThreadState *thread = self();
    BlockState *block = thread->owner;
    happens_after(&launch);
    happens_after(&block->reuse[(block->uses - 1) & 1]);
    launch.entry(launch.arguments);
    happens_before(&block->reuse[block->uses & 1]);
    {
        Quiet quiet;
        check_no_copies_left(*thread);
        thread->exited = true;
        launch.progress = true;
        block->alive--;
        leave_barriers(*thread);
        if (block->alive == 0) check_no_copies_left(*block);
    }
    happens_before(&launch_end);
    if (block->alive == 0) {
        launch.finished = block;
        current = nullptr;
        Fiber::jump(thread->fiber, launcher);
    }
    switch_away(thread);
    abort();
}

std::unique_ptr<BlockState> take_block(unsigned threads) {
    auto fits = [=](const std::unique_ptr<BlockState> &block) { return block->threads.size() == threads; };
    if (size_t(std::count_if(idle.begin(), idle.end(), fits)) >= kKeptBlocks) {
        auto found = std::find_if(idle.begin(), idle.end(), fits);
        std::unique_ptr<BlockState> block = std::move(*found);
        idle.erase(found);
        return block;
    }
    while (threads_alive + threads > kMaxThreads && !idle.empty()) {
        threads_alive -= idle.front()->threads.size();
        idle.pop_front();
    }
    threads_alive += threads;
    std::unique_ptr<BlockState> block(new BlockState);
    for (unsigned i = 0; i < threads; i++) {
        block->threads.emplace_back(new ThreadState);
        ThreadState &thread = *block->threads.back();
        thread.owner = block.get();
        thread.block = block.get();
        thread.linear = i;
        thread.lane = i % 32;
    }
    block->warps.resize((threads + 31) / 32);
    for (unsigned i = 0; i < threads; i++) block->warps[i / 32].threads[i % 32] = block->threads[i].get();
    return block;
}

void join_cluster(BlockState &block) {
    if (!launch.filling) launch.filling = std::make_shared<Cluster>();
    block.cluster = launch.filling;
    block.rank = unsigned(block.cluster->blocks.size());
    block.cluster->blocks.push_back(&block);
    block.cluster->alive += block.alive;
    block.cluster->running++;
    if (launch.cluster_blocks && block.cluster->blocks.size() == launch.cluster_blocks) launch.filling.reset();
}

void start_block() {
    Quiet quiet;
    const dim3 &size = shape.block, &grid = shape.grid;
    unsigned count = size.x * size.y * size.z;
    launch.resident.push_back(take_block(count));
    BlockState &block = *launch.resident.back();
    uint64_t number = launch.next_block++;
    block.index = {unsigned(number % grid.x), unsigned(number / grid.x % grid.y), unsigned(number / grid.x / grid.y)};
    block.alive = count;
    block.uses++;
    block.barrier = Barrier();
    for (Barrier &barrier : block.named) barrier = Barrier();
    for (unsigned w = 0; w < block.warps.size(); w++) {
        unsigned lanes = std::min(32u, count - 32 * w);
        block.warps[w].live = lanes == 32 ? ~0u : (1u << lanes) - 1;
        block.warps[w].groups.clear();
        block.warps[w].ready.clear();
    }
    prepare_arena(block);
    std::vector<ThreadState *> all;
    for (unsigned i = 0; i < count; i++) {
        ThreadState &thread = *block.threads[i];
        thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        thread.polled = nullptr;
        thread.exited = false;
        thread.doing = "its start";
        thread.place = {nullptr, 0};
        thread.fenced = false;
        thread.observed.clear();
        thread.cluster_arrived = false;
        thread.cluster_phase = 0;
        thread.fiber.prepare(thread_main);
        if (kWatched) thread.fiber.set_name(describe(thread).c_str());
        all.push_back(&thread);
    }
    join_cluster(block);
    make_ready(all);
}

void recycle(BlockState *finished) {
    auto found = std::find_if(launch.resident.begin(), launch.resident.end(),
                              [=](const std::unique_ptr<BlockState> &block) { return block.get() == finished; });
    std::unique_ptr<BlockState> block = std::move(*found);
    launch.resident.erase(found);
    for (auto &thread : block->threads) {
        if (!thread->exited) thread->fiber.give_up(&launch_end);
        thread->exited = true;
        thread->copies = CopyQueue();
        thread->bulk_copies = CopyQueue();
    }
    block->barrier_copies.clear();
    block->cluster.reset();
    release_arena(*block);
    idle.push_back(std::move(block));
}

void collect_finished() {
    Quiet quiet;
    BlockState *block = launch.finished;
    launch.finished = nullptr;
    // Until the last block of a cluster has left, the others may reach the shared memory of all.
    std::shared_ptr<Cluster> cluster = block->cluster;
    if (--cluster->running) return;
    for (BlockState *member : cluster->blocks) recycle(member);
}

bool may_start_block() {
    size_t threads = shape.block.x * shape.block.y * shape.block.z;
    return launch.next_block < launch.blocks && launch.resident.size() < launch.config.resident_blocks &&
           (launch.resident.size() + 1) * threads <= kMaxThreads;
}

void run_launch() {
    unsigned idle_rounds = 0;
    while (launch.error.empty()) {
        unsigned together = launch.cluster_blocks ? std::max(1u, launch.config.concurrent_blocks) : 1;
        if (launch.finished) collect_finished();
        bool incomplete_cluster = launch.filling && launch.cluster_blocks > 1;
        if (incomplete_cluster || (launch.resident.size() < together && may_start_block())) {
            start_block();
        } else if (!launch.ready.empty()) {
            switch_away(nullptr);
        } else if (!launch.spinning.empty() && (launch.progress || !may_start_block())) {
            idle_rounds = launch.progress ? 0 : idle_rounds + 1;
            if (idle_rounds > kSpinRounds) {
                launch.error = report_stuck("deadlock: all threads wait for what no other thread will do");
                break;
            }
            Quiet quiet;
            launch.progress = false;
            make_ready(launch.spinning);
        } else if (may_start_block()) {
            start_block();
        } else if (launch.resident.empty()) {
            break;
        } else {
            launch.error = report_stuck("deadlock: the threads that these wait for never come");
        }
    }
}

}  // namespace

ThreadState *self() { return static_cast<ThreadState *>(current); }

const LaunchConfig &config() { return launch.config; }

void fail(const char *format, ...) {
    Quiet quiet;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ThreadState *thread = self();
    if (!thread) {
        fprintf(stderr, "cudasim: outside of a kernel: %s\n", text);
        abort();
    }
    launch.error = text + ("\n  in " + describe(*thread));
    current = nullptr;
    Quiet::leave_all();
    Fiber::jump(thread->fiber, launcher);  // and never back
    abort();
}

void make_ready(std::vector<ThreadState *> &threads) {
    auto ascending = [](ThreadState *a, ThreadState *b) { return a->linear < b->linear; };
    auto descending = [](ThreadState *a, ThreadState *b) { return a->linear > b->linear; };
    // Threads of several blocks come here together only from clusters and from spinning. There the order within each
    // block is enough. Most often threads come in the order in which they will go on.
    if (launch.config.order == kForward) {
        if (!std::is_sorted(threads.begin(), threads.end(), ascending))
            std::stable_sort(threads.begin(), threads.end(), ascending);
    } else if (launch.config.order == kReverse) {
        if (!std::is_sorted(threads.begin(), threads.end(), descending))
            std::stable_sort(threads.begin(), threads.end(), descending);
    } else {
        for (size_t i = threads.size(); i > 1; i--)
            std::swap(threads[i - 1], threads[launch.random.below(unsigned(i))]);
    }
    launch.ready.insert(launch.ready.end(), threads.begin(), threads.end());
    threads.clear();
}

void wait_in(const char *name, Place place) {
    ThreadState *thread = self();
    thread->doing = name;
    thread->place = place;
    launch.progress = true;
    switch_away(thread);
}

void spin(const char *name, Place place) {
    ThreadState *thread = self();
    thread->doing = name;
    thread->place = place;
    {
        Quiet quiet;
        launch.spinning.push_back(thread);
    }
    switch_away(thread);
}

void poll(const volatile void *address, Place place) {
    if (current->polled != address) {
        current->polled = address;
        current->polls = 0;
        launch.progress = true;
    } else if (++current->polls >= 4) {
        spin("a loop that waits for a change in global memory", place);
    }
}

// Now that the cluster's size is known, the launcher starts the blocks that run beside this first one.
static void go_on_later() {
    ThreadState *thread = self();
    {
        Quiet quiet;
        launch.ready.push_front(thread);
    }
    current = nullptr;
    Fiber::jump(thread->fiber, launcher);
}

void enter_kernel(unsigned max_threads, unsigned cluster_blocks) {
    unsigned threads = shape.block.x * shape.block.y * shape.block.z;
    if (max_threads && threads > max_threads)
        fail(
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch: %u threads, "
            "__launch_bounds__ "
            "allow %u",
            threads, max_threads);
    if (launch.cluster_blocks) return;
    launch.cluster_blocks = std::max(1u, cluster_blocks);
    if (launch.cluster_blocks == 1) {
        launch.filling.reset();
        return go_on_later();
    }
    if (!launch.config.clusters) fail("__cluster_dims__: this card has no thread-block clusters");
    if (cluster_blocks > 8) fail("__cluster_dims__ of %u blocks: a card need not take more than 8", cluster_blocks);
    if (shape.grid.x % cluster_blocks)
        fail("CUDA_ERROR_INVALID_CLUSTER_SIZE: a grid of %u blocks is no multiple of a cluster of %u", shape.grid.x,
             cluster_blocks);
    go_on_later();
}

void check_global(const void *pointer, size_t bytes, const char *what, Place place) {
    if (in_one_allocation(reinterpret_cast<uintptr_t>(pointer), bytes)) return;
    fail("%s of %zu bytes at %p: not within one allocation of device memory (%s:%d)", what, bytes, pointer, place.file,
         place.line);
}

// ---- programmatic dependent launch ----

// The true contents of device memory, while they are hidden from a dependent kernel that has not waited yet.
static std::vector<std::pair<uintptr_t, std::vector<unsigned char>>> hidden;

static void hide_memory() {
    Quiet quiet;
    AllocationsLock lock;
    for (const auto &[start, allocation] : allocations) {
        if (allocation.of_host) continue;
        auto *bytes = reinterpret_cast<unsigned char *>(start);
        hidden.emplace_back(start, std::vector<unsigned char>(bytes, bytes + allocation.bytes));
        memset(bytes, kPoison, allocation.bytes);
    }
}

static void show_memory() {
    Quiet quiet;
    for (const auto &[start, bytes] : hidden) memcpy(reinterpret_cast<void *>(start), bytes.data(), bytes.size());
    hidden.clear();
}

void griddepcontrol_wait() {
    show_memory();
    launch.waited = true;
}

uint64_t clock() { return clock_ticks += 4; }

void acquire(const volatile void *address) { happens_after(address); }
void release(const volatile void *address) { happens_before(address); }

// A fence and then a relaxed atomic release what was written before the fence. A relaxed atomic that reads from that
// one, and then a fence, acquire it (PTX memory model, "release pattern" and "acquire pattern"). A barrier between
// fence and atomic breaks the pattern: the thread that does the atomic needs a fence of its own.
void fence() {
    if (!kWatched) return;
    ThreadState *thread = self();
    thread->fenced = true;
    for (const volatile void *address : thread->observed) happens_after(address);
    thread->observed.clear();
    thread->fiber.fence();
}

void before_atomic(const volatile void *address) {
    if (kWatched && self()->fenced) self()->fiber.release_fenced(address);
}

void after_atomic(const volatile void *address) {
    if (!kWatched) return;
    Quiet quiet;
    auto &observed = self()->observed;
    if (std::find(observed.begin(), observed.end(), address) == observed.end()) observed.push_back(address);
}

}  // namespace sim

// ---- what Python calls ----

extern "C" {

// Device memory between two guard zones. The bytes themselves may be empty.
void sim_register_memory(uintptr_t start, size_t bytes, size_t guard) {
    sim::AllocationsLock lock;
    sim::allocations[start] = {bytes, guard, false};
    sim::forbid(reinterpret_cast<void *>(start - guard), guard);
    sim::forbid(reinterpret_cast<void *>(start + bytes), guard);
}
void sim_written_by_host(uintptr_t start) {
    sim::AllocationsLock lock;
    sim::allocations.at(start).of_host = true;
}
void sim_forget_memory(uintptr_t start) {
    sim::AllocationsLock lock;
    auto found = sim::allocations.find(start);
    sim::allow(reinterpret_cast<void *>(start - found->second.guard), found->second.bytes + 2 * found->second.guard);
    sim::allocations.erase(found);
}

// The start of an allocation with another byte than this in a guard zone, or 0.
uintptr_t sim_find_damage(unsigned char guard_byte) {
    sim::AllocationsLock lock;
    for (const auto &[start, allocation] : sim::allocations) {
        const unsigned char *const before = reinterpret_cast<unsigned char *>(start - allocation.guard);
        const unsigned char *const after = reinterpret_cast<unsigned char *>(start + allocation.bytes);
        for (const unsigned char *const zone : {before, after})
            if (*zone != guard_byte || memcmp(zone, zone + 1, allocation.guard - 1)) return start;
    }
    return 0;
}

// 0, or 1 with the reason in `error`.
int sim_launch(const sim::LaunchConfig *config, void (*entry)(void **), void **arguments, char *error,
               size_t error_bytes) {
    using namespace sim;
    launcher.adopt_caller();
    Quiet::leave_all();
    launch = Launch();
    launch.config = *config;
    launch.entry = entry;
    launch.arguments = arguments;
    launch.random.seed(config->seed);
    shape.grid = {config->grid[0], config->grid[1], config->grid[2]};
    shape.block = {config->block[0], config->block[1], config->block[2]};
    launch.blocks = uint64_t(shape.grid.x) * shape.grid.y * shape.grid.z;
    begin_shared_layout();
    if (config->dependent) hide_memory();
    happens_before(&launch);
    {
        SignalWatch watch;
        run_launch();
    }
    show_memory();
    if (config->dependent && !launch.waited && launch.error.empty())
        launch.error = "launched before the work before it has ended, and no thread waits (griddepcontrol.wait)";
    while (!launch.resident.empty()) recycle(launch.resident.back().get());  // after an error
    happens_after(&launch_end);
    fflush(stdout);
    snprintf(error, error_bytes, "%s", launch.error.c_str());
    return !launch.error.empty();
}
}
