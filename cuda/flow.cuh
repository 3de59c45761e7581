// A flow: two passes of a transform in one launch. The second pass finds in the L2 cache what the first has written.
//
// A unit is a block of the tree. One pass works on its columns, the other on its rows, each in several tasks. Blocks of
// threads draw tickets for tasks, in this order: all tasks of the first pass on unit u, all tasks of the second pass on
// unit u - lag, then the same for the next u. A task waits only for tasks with smaller tickets, which are running or
// done. So there cannot be a deadlock, however few blocks of threads a card holds.
#pragma once
#include "ptx.cuh"

struct Flow {
    u32 *progress;  // the next ticket, then for each unit how many tasks of its first pass are done; 0 at the launch
    u32 units, lag;
    u32 log_first, log_second;  // log2 of the tasks of each pass on a unit
};

struct Task {
    u32 unit, part;     // part: of the unit
    bool second, none;  // second: of the second pass; none: the unit does not exist
};

// The next task of this block of threads. grid: (units + lag) * (tasks of both passes on a unit), below 2^31.
PG_DEVICE Task next_task(const Flow &flow) {
    __shared__ Task shared;
    if (threadIdx.x == 0) {
        const u32 ticket = atomicAdd(flow.progress, 1), firsts = 1u << flow.log_first;
        const u32 tasks = firsts + (1u << flow.log_second), turn = ticket / tasks, rest = ticket % tasks;
        const bool second = rest >= firsts;
        const u32 unit = turn - (second ? flow.lag : 0);  // below unit 0 it wraps, and is `none`
        shared = {unit, second ? rest - firsts : rest, second, unit >= flow.units};
    }
    __syncthreads();
    return shared;
}
// A task of the first pass calls finish_first at its end. A task of the second pass calls await_first before it reads.
PG_DEVICE void finish_first(const Flow &flow, const Task &task) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(flow.progress + 1 + task.unit, 1);
}
PG_DEVICE void await_first(const Flow &flow, const Task &task) {
    if (threadIdx.x == 0)
        while (load_acquire(flow.progress + 1 + task.unit) < 1u << flow.log_first) __nanosleep(32);
    __syncthreads();
}
