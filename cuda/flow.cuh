// The flow of two passes in one launch: what the first leaves in the L2 cache, the second finds there.
//
// Both work on blocks of the tree, the units: on the columns of a block and on its rows, each in so many tasks. Tasks
// are taken in an order: all of the first pass of unit u, all of the second pass of unit u - lag, then those of the
// next u. They are given out by tickets. One waits only for tasks with smaller tickets, which run or have run: nothing
// locks, however few blocks of threads a card holds.
#pragma once
#include "ptx.cuh"

struct Flow {
    u32 *progress;  // the next ticket, then for each unit how many tasks of its first pass are done; 0 at the launch
    u32 units, lag;
    u32 log_first, log_second;  // log2 of the tasks of a unit
};

struct Task {
    u32 unit, part;  // part of the unit
    bool second, none;
};

// The next task of this block of threads. grid: (units + lag) * (tasks of both passes on a unit), below 2^31.
PG_DEVICE Task next_task(const Flow &flow) {
    __shared__ Task shared;
    if (threadIdx.x == 0) {
        const u32 ticket = atomicAdd(flow.progress, 1), firsts = 1u << flow.log_first;
        const u32 tasks = firsts + (1u << flow.log_second), turn = ticket / tasks, rest = ticket % tasks;
        const bool second = rest >= firsts;
        const u32 unit = turn - (second ? flow.lag : 0);  // before unit 0 it wraps
        shared = {unit, second ? rest - firsts : rest, second, unit >= flow.units};
    }
    __syncthreads();
    return shared;
}
// What a task of the first pass says at its end, and one of the second waits for.
PG_DEVICE void finish_first(const Flow &flow, const Task &task) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(flow.progress + 1 + task.unit, 1);
}
PG_DEVICE void await_first(const Flow &flow, const Task &task) {
    if (threadIdx.x == 0)
        while (load_acquire(flow.progress + 1 + task.unit) < 1u << flow.log_first) __nanosleep(32);
    __syncthreads();
}
