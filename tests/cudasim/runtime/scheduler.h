// Blocks, threads and the order in which they run. One thread runs at a time, until it waits for others.
#pragma once
#include <stdint.h>

#include <deque>
#include <memory>
#include <vector>

#include "../include/api.h"
#include "fiber.h"

namespace sim {

// Filled in by Python (launch.py has the same fields).
struct LaunchConfig {
    unsigned grid[3], block[3];
    uint64_t dynamic_shared;     // bytes
    uint64_t shared_limit;       // static and dynamic together
    unsigned order;              // Order
    unsigned concurrent_blocks;  // started together; more start only while all others wait by spinning
    unsigned resident_blocks;    // the card holds no more at a time
    unsigned clusters;           // does the card have clusters?
    unsigned dependent;          // may start before the work before it on the stream has ended
    uint64_t seed;
};
enum Order : unsigned { kForward, kReverse, kRandom };

struct BlockState;

// A copy that was issued and not yet made.
struct PendingCopy {
    void *to;
    const void *from;
    unsigned bytes, zero_bytes;
    unsigned char value[16];  // of store_async, which has no source in memory
    bool inline_value;
    bool into_shared;
    uint64_t *barrier;
    Place place;
    char token;  // ThreadSanitizer's name for "issued before made"
};
using CopyGroup = std::vector<std::unique_ptr<PendingCopy>>;

// The open group and the committed ones of one thread.
struct CopyQueue {
    CopyGroup open;
    std::deque<CopyGroup> committed;
};

struct ThreadState : Thread {
    Fiber fiber;
    BlockState *owner = nullptr;
    bool exited = false;
    const char *doing = nullptr;
    Place place = {nullptr, 0};
    bool predicate = false;  // brought to a block barrier
    unsigned votes = 0;      // what that barrier gave back
    unsigned cluster_phase = 0;
    bool cluster_arrived = false;
    CopyQueue copies, bulk_copies;
    // For the race check: was there a fence since the last barrier, and where were atomics since the last fence?
    bool fenced = false;
    std::vector<const volatile void *> observed;
};

struct Barrier {
    unsigned arrived = 0, generation = 0;
    std::vector<ThreadState *> waiting;
    char tokens[2];  // by parity of the generation: nobody is two barriers ahead
};

struct Warp {
    struct Group {  // lanes that wait with the same mask
        unsigned mask, arrived, token;
    };
    unsigned live = 0;
    unsigned next_token = 0;
    std::vector<Group> groups;
    std::vector<ThreadState *> ready;  // of the group that is complete
    WarpCall *calls[32];
    ThreadState *threads[32];
    char tokens[64];  // taken in turn by the groups
};

// The blocks of a cluster share a barrier and read each other's shared memory.
struct Cluster {
    std::vector<BlockState *> blocks;
    unsigned arrived = 0, alive = 0, phase = 0;
    std::vector<ThreadState *> waiting;
    char tokens[2];
    unsigned running = 0;
};

struct BlockState : Block {
    std::vector<std::unique_ptr<ThreadState>> threads;
    std::vector<Warp> warps;
    Barrier barrier;
    Barrier named[16];
    std::shared_ptr<Cluster> cluster;
    unsigned rank = 0;
    unsigned alive = 0;
    char *arena = nullptr;
    size_t arena_bytes = 0;
    // Tokens, taken in turn: what a block did happens before what the next block with its threads and memory does.
    unsigned uses = 0;
    char reuse[2];
    std::vector<std::unique_ptr<PendingCopy>> barrier_copies;  // complete on an mbarrier of this block

    ~BlockState();
};

ThreadState *self();

// ---- scheduler.cpp ----
void wait_in(const char *name, Place place);           // until somebody makes this thread ready
void make_ready(std::vector<ThreadState *> &threads);  // in the order of the launch; empties the list
const LaunchConfig &config();

// ---- barriers.cpp ----
void leave_barriers(ThreadState &thread);  // at its exit: others may wait for it no longer
void cluster_leave(ThreadState &thread);

// ---- shared.cpp ----
constexpr size_t kStaticSharedBytes = 48 << 10;
void begin_shared_layout();
void prepare_arena(BlockState &block);
void release_arena(BlockState &block);
constexpr unsigned char kPoison = 0xa5;

// ---- async.cpp ----
void check_no_copies_left(ThreadState &thread);
void check_no_copies_left(BlockState &block);

}  // namespace sim
