// A flow runs two passes of a transform in one launch. The second pass then finds the results of the first pass in the
// L2 cache.
//
// A unit is the values below one node of the tree of factors. One pass transforms the columns of a unit, the other pass
// its rows. Each pass has several tasks on a unit. Tickets number the tasks, for u = 0, 1, ...: all tasks of the first
// pass on unit u, then all tasks of the second pass on unit u - lag. A block of threads draws the next ticket. A task
// waits only for tasks with smaller tickets, and these are running or done. So there cannot be a deadlock, even if few
// blocks run at a time.
#pragma once
#include "ptx.cuh"

struct Flow {
    // progress[0]: the next ticket. progress[1 + u]: how many tasks of the first pass on unit u are done. All numbers
    // are 0 at the launch.
    u32 *progress;
    u32 units, lag;
    u32 log_first, log_second;  // log2 of the number of tasks that each pass has on a unit
};

struct Task {
    u32 unit, part;  // part: index of the task among those of its pass on the unit
    // second: whether the task belongs to the second pass. none: whether the unit does not exist; the task is then
    // empty.
    bool second, none;
};

// Draws a ticket and returns the task of this block of threads. grid: (units + lag) * (tasks of both passes on a unit),
// less than 2^31.
PG_DEVICE Task next_task(const Flow &flow) {
    __shared__ Task shared;
    if (threadIdx.x == 0) {
        const u32 ticket = atomicAdd(flow.progress, 1), firsts = 1u << flow.log_first;
        const u32 tasks = firsts + (1u << flow.log_second), turn = ticket / tasks, rest = ticket % tasks;
        const bool second = rest >= firsts;
        const u32 unit = turn - (second ? flow.lag : 0);  // wraps if it would be negative; `none` is then true
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
