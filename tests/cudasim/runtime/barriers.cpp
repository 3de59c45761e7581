// Where threads meet: barriers of blocks and clusters, warp-wide operations.
#include <stdio.h>
#include <string.h>

#include "scheduler.h"

namespace sim {

// ---- blocks ----

static void release_waiting(Barrier &barrier) {
    make_ready(barrier.waiting);
    barrier.arrived = 0;
    barrier.generation++;
}

static void complete(Barrier &barrier) {
    ThreadState *first = barrier.waiting[0];
    unsigned votes = 0;
    for (ThreadState *thread : barrier.waiting) {
        votes += thread->predicate;
        if (thread->place.line != first->place.line || strcmp(thread->place.file, first->place.file) != 0)
            fail("divergent barrier: thread %u waits in %s at %s:%d, thread %u of the same block in %s at %s:%d",
                 first->linear, first->doing, first->place.file, first->place.line, thread->linear, thread->doing,
                 thread->place.file, thread->place.line);
    }
    for (ThreadState *thread : barrier.waiting) thread->votes = votes;
    release_waiting(barrier);
}

unsigned sync_block(const char *name, bool predicate, Place place) {
    ThreadState *thread = self();
    Barrier &barrier = thread->owner->barrier;
    const char *token = &barrier.tokens[barrier.generation & 1];
    happens_before(token);
    thread->fenced = false;
    thread->predicate = predicate;
    thread->doing = name;
    thread->place = place;
    {
        Quiet quiet;
        barrier.waiting.push_back(thread);
        if (++barrier.arrived == thread->owner->alive) complete(barrier);
    }
    wait_in(name, place);
    happens_after(token);
    return thread->votes;
}

static void arrive_at(unsigned id, unsigned threads, bool waits, const char *name, Place place) {
    ThreadState *thread = self();
    if (id < 1 || id > 15 || threads == 0 || threads % 32 != 0)
        fail("%s: barrier %u for %u threads: ids are 1 to 15, counts multiples of 32 (%s:%d)", name, id, threads,
             place.file, place.line);
    Barrier &barrier = thread->owner->named[id];
    const char *token = &barrier.tokens[barrier.generation & 1];
    happens_before(token);
    thread->fenced = false;
    {
        Quiet quiet;
        if (waits) barrier.waiting.push_back(thread);
        if (++barrier.arrived >= threads) release_waiting(barrier);
    }
    if (!waits) return;
    wait_in(name, place);
    happens_after(token);
}

void sync_named(unsigned id, unsigned threads, Place place) { arrive_at(id, threads, true, "bar.sync", place); }
void arrive_named(unsigned id, unsigned threads, Place place) { arrive_at(id, threads, false, "bar.arrive", place); }

// ---- warps ----

static void complete(Warp &warp, size_t number) {
    Warp::Group group = warp.groups[number];
    warp.groups.erase(warp.groups.begin() + long(number));
    unsigned lanes = group.arrived;
    WarpCall *first = warp.calls[__builtin_ctz(lanes)];
    alignas(16) unsigned char folded[16];
    if (first->operate && lanes != ~0u)
        fail("%s takes a whole warp: only the lanes %08x are there (%s:%d)", first->name, lanes, first->place.file,
             first->place.line);
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        unsigned lane = unsigned(__builtin_ctz(rest));
        WarpCall &call = *warp.calls[lane];
        // On sm_70 and later lanes may reach __syncwarp at different places; all else is one instruction for all.
        bool together = call.orders_memory || call.place.line == first->place.line;
        if (strcmp(call.name, first->name) != 0 || !together)
            fail("divergent warp: lane %d is in %s at %s:%d, lane %u in %s at %s:%d", __builtin_ctz(lanes), first->name,
                 first->place.file, first->place.line, lane, call.name, call.place.file, call.place.line);
        if (call.combine) {
            if (&call == first) memcpy(folded, call.value, call.bytes);
            else call.combine(folded, call.value);
        } else if (call.operate) {
            continue;
        } else if (!(lanes >> call.source & 1)) {
            fail("%s: lane %u reads lane %u, which takes no part (mask %08x) at %s:%d", call.name, lane, call.source,
                 call.mask, call.place.file, call.place.line);
        } else {
            memcpy(call.result, warp.calls[call.source]->value, call.bytes);
        }
    }
    if (first->operate) first->operate(warp.calls);
    if (first->combine)
        for (unsigned rest = lanes; rest; rest &= rest - 1)
            memcpy(warp.calls[__builtin_ctz(rest)]->result, folded, first->bytes);
    for (unsigned rest = lanes; rest; rest &= rest - 1) warp.ready.push_back(warp.threads[__builtin_ctz(rest)]);
    make_ready(warp.ready);
}

void meet_warp(WarpCall &call) {
    ThreadState *thread = self();
    Warp &warp = thread->owner->warps[thread->linear / 32];
    unsigned lane = 1u << thread->lane;
    if (!(call.mask & lane))
        fail("%s: lane %u is not in its own mask %08x (%s:%d)", call.name, thread->lane, call.mask, call.place.file,
             call.place.line);
    const char *token;
    {
        Quiet quiet;
        size_t number = 0;
        while (number < warp.groups.size() && warp.groups[number].mask != call.mask) number++;
        if (number == warp.groups.size()) warp.groups.push_back({call.mask, 0, warp.next_token++ % 64});
        Warp::Group &group = warp.groups[number];
        token = &warp.tokens[group.token];
        if (call.orders_memory) happens_before(token);
        group.arrived |= lane;
        warp.calls[thread->lane] = &call;
        if (group.arrived == (group.mask & warp.live)) complete(warp, number);
    }
    wait_in(call.name, call.place);
    if (call.orders_memory) happens_after(token);
}

unsigned live_lanes() {
    ThreadState *thread = self();
    return thread->owner->warps[thread->linear / 32].live;
}

void leave_barriers(ThreadState &thread) {
    BlockState &block = *thread.owner;
    Warp &warp = block.warps[thread.linear / 32];
    warp.live &= ~(1u << thread.lane);
    for (size_t i = 0; i < warp.groups.size();) {
        if (warp.groups[i].arrived == (warp.groups[i].mask & warp.live)) complete(warp, i);  // which erases group i
        else ++i;
    }
    if (block.barrier.arrived && block.barrier.arrived == block.alive) complete(block.barrier);
    cluster_leave(thread);
}

// ---- clusters ----

unsigned cluster_rank() { return self()->owner->rank; }
unsigned cluster_blocks() { return unsigned(self()->owner->cluster->blocks.size()); }

static void complete_if_all(Cluster &cluster) {
    if (cluster.arrived == 0 || cluster.arrived != cluster.alive) return;
    cluster.arrived = 0;
    cluster.phase++;
    make_ready(cluster.waiting);
}

void cluster_arrive(Place place) {
    ThreadState *thread = self();
    Cluster &cluster = *thread->owner->cluster;
    if (thread->cluster_arrived) fail("cluster_arrive twice without cluster_wait (%s:%d)", place.file, place.line);
    thread->cluster_arrived = true;
    thread->cluster_phase = cluster.phase;
    thread->fenced = false;
    happens_before(&cluster.tokens[cluster.phase & 1]);
    Quiet quiet;
    cluster.arrived++;
    complete_if_all(cluster);
}

void cluster_wait(Place place) {
    ThreadState *thread = self();
    Cluster &cluster = *thread->owner->cluster;
    if (!thread->cluster_arrived) fail("cluster_wait without cluster_arrive (%s:%d)", place.file, place.line);
    thread->cluster_arrived = false;
    if (cluster.phase == thread->cluster_phase) {
        {
            Quiet quiet;
            cluster.waiting.push_back(thread);
        }
        wait_in("cluster_wait", place);
    }
    happens_after(&cluster.tokens[thread->cluster_phase & 1]);
}

void cluster_leave(ThreadState &thread) {
    Cluster &cluster = *thread.owner->cluster;
    cluster.alive--;
    if (thread.cluster_arrived && thread.cluster_phase == cluster.phase) cluster.arrived--;
    complete_if_all(cluster);
}

void *map_shared(const void *shared, unsigned rank, Place place) {
    BlockState &block = *self()->owner;
    const char *pointer = static_cast<const char *>(shared);
    if (!is_shared(pointer))
        fail("map_shared: %p is not in this block's shared memory (%s:%d)", shared, place.file, place.line);
    if (rank >= block.cluster->blocks.size())
        fail("map_shared: rank %u of a cluster of %zu blocks (%s:%d)", rank, block.cluster->blocks.size(), place.file,
             place.line);
    BlockState &target = *block.cluster->blocks[rank];
    if (target.alive == 0)
        fail("map_shared: block of rank %u has left the kernel (%s:%d)", rank, place.file, place.line);
    return target.shared + (pointer - block.shared);
}

}  // namespace sim
