// Copies entries between arrays of any strides. Entries may be broadcast, or converted to another integer type. A row
// has the entries that differ only in their index along the last axis. A block of threads copies 2^log_width entries of
// each of 256 / 2^log_width rows at a time. A thread copies one entry: up to 16 bytes that are neighbours in both
// arrays, or one number that it converts. gridDim.x: n / 2^log_width. gridDim.y: rows / (256 / 2^log_width), at most
// 65535. If there are more rows, a block copies several such groups of rows. block: 256 threads.
#include "ptx.cuh"
#include "rows.cuh"

struct CopyParameters {
    const void *x;
    void *y;
    // n: length of the last axis. x_step, y_step: distance, in entries, from one index of that axis to the next, modulo
    // 2^64.
    u64 n, rows, x_step, y_step;
    u64 shape[MAX_AXES], x_steps[MAX_AXES], y_steps[MAX_AXES];  // the axes other than the last, in order
    u32 log_width;
};
template <class S, class T> __global__ void __launch_bounds__(256) copy_entries(const CopyParameters p) {
    start_next(starts_early());
    const u64 j = ((u64)blockIdx.x << p.log_width) + (threadIdx.x & ((1u << p.log_width) - 1));
    if (j >= p.n) return;
    const u32 together = 256u >> p.log_width;
    await_previous();
    for (u64 row = (u64)blockIdx.y * together + (threadIdx.x >> p.log_width); row < p.rows;
         row += (u64)gridDim.y * together) {
        u64 from = j * p.x_step, to = j * p.y_step, outer = row;
        for (int axis = MAX_AXES - 1; axis >= 0 && outer; --axis) {
            const u64 next = quotient(outer, p.shape[axis]), i = outer - next * p.shape[axis];
            from += i * p.x_steps[axis], to += i * p.y_steps[axis];
            outer = next;
        }
        ((T *)p.y)[to] = (T)((const S *)p.x)[from];
    }
}

// Copies items of n entries each. If SCATTER is false, item index[i] of x is copied to item i of y; else item i of x is
// copied to item index[i] of y. gridDim.x: n / 256. gridDim.y: items, at most 65535. If there are more items, a block
// copies parts of several items. block: 256 threads.
struct ItemsParameters {
    const void *x;
    const u64 *index;
    void *y;
    u64 n, items;
};
template <class T, bool SCATTER> __global__ void __launch_bounds__(256) copy_items(const ItemsParameters p) {
    start_next(starts_early());
    const u64 j = (u64)blockIdx.x * 256 + threadIdx.x;
    if (j >= p.n) return;
    await_previous();
    for (u64 i = blockIdx.y; i < p.items; i += gridDim.y) {
        const u64 from = SCATTER ? i : p.index[i], to = SCATTER ? p.index[i] : i;
        ((T *)p.y)[to * p.n + j] = ((const T *)p.x)[from * p.n + j];
    }
}
