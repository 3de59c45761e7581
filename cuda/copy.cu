// Copies entries between arrays of any strides; x may be broadcast. An entry is one number that is converted from type
// S to type T, or a unit of up to 16 bytes that is moved unchanged. A row is the entries along the last axis. A block
// copies 2^log_width entries of each of R rows, where R = 256 / 2^log_width. gridDim.x: n / 2^log_width. gridDim.y:
// rows / R, at most 65535. If there are more rows, a block copies several groups of R rows. block: 256 threads.
#include "ptx.cuh"
#include "rows.cuh"

struct CopyParameters {
    const void *x;
    void *y;
    // n: length of the last axis. x_step, y_step: the strides of the last axis, in entries, modulo 2^64.
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

// Copies items of n entries: y[i] = x[index[i]], or y[index[i]] = x[i] if SCATTER is true. gridDim.x: n / 256.
// gridDim.y: items, at most 65535. If there are more items, a block copies parts of several items. block: 256 threads.
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
