// What a kernel may ask of the simulator's runtime. Kernels and runtime are separate shared objects that
// both include this file; CUDA's own names (__syncthreads, atomicAdd, ...) are thin layers over it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "vector_types.h"

namespace sim {

// A line of the kernel's source, for reports. As the default argument `Place place = {}` it is the caller's line.
struct Place {
    const char *file;
    int line;
    constexpr Place(const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()) : file(file_), line(line_) {}
};

// ---- who am I ----

struct Block {
    uint3 index;
    char *shared;  // static shared variables from here on; dynamic shared memory follows them
};

struct Thread {
    uint3 index;
    unsigned linear, lane;
    Block *block;
    const volatile void *polled;  // see poll()
    unsigned polls;
};

struct Shape {
    dim3 grid, block;
};

extern Thread *current;  // the thread that runs now: only one ever does
extern Shape shape;

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// First statement of every kernel (the translator adds it). 0: nothing declared.
void enter_kernel(unsigned max_threads, unsigned cluster_blocks);
constexpr unsigned launch_bounds(unsigned max_threads, unsigned = 0, unsigned = 0) { return max_threads; }
constexpr unsigned cluster_dims(unsigned x, unsigned y = 1, unsigned z = 1) {
    return y == 1 && z == 1 ? x : throw "only clusters along x are simulated";
}

// ---- shared memory ----

// Where a static __shared__ variable lies: the same offset in all blocks of a launch.
struct SharedSlot {
    unsigned launch = 0;
    unsigned offset = 0;
};
void *place_shared(SharedSlot &slot, size_t bytes, size_t alignment);
void *dynamic_shared(size_t alignment);
size_t shared_offset(const void *pointer);  // the 32-bit shared address of PTX
void *shared_pointer(size_t offset);        // and back
bool is_shared(const void *pointer);

template <class T> T &shared_variable(SharedSlot &slot, size_t alignment) {
    return *static_cast<T *>(place_shared(slot, sizeof(T), alignment > alignof(T) ? alignment : alignof(T)));
}

// ---- meetings of threads ----

// Waits for all live threads of the block; returns how many came with a true predicate.
unsigned sync_block(const char *name, bool predicate, Place place);

// PTX bar.sync and bar.arrive with a thread count (ids 1 to 15).
void sync_named(unsigned id, unsigned threads, Place place = {});
void arrive_named(unsigned id, unsigned threads, Place place = {});

// One lane's part in a warp-wide operation. Every lane gets the value of lane `source`, or, with `combine`,
// the values of all lanes of the mask folded into one. With `operate`, which takes all 32 lanes, the last to
// come does the work of all.
struct WarpCall {
    const char *name;
    unsigned mask;
    Place place;
    bool orders_memory;  // __syncwarp does, shuffles and votes do not
    unsigned source;
    void (*combine)(void *accumulator, const void *value);
    unsigned bytes;
    alignas(16) unsigned char value[16];
    alignas(16) unsigned char result[16];
    void (*operate)(WarpCall *const *calls) = nullptr;
};
void meet_warp(WarpCall &call);
unsigned live_lanes();

// ---- waiting for what another block writes ----

// Lets all other threads run, and starts further blocks if they have nothing to do.
void spin(const char *name, Place place);

// To be called after a read that a loop may repeat until the value changes. From the fifth call in a row for the same
// address on, each call spins.
void poll(const volatile void *address, Place place);

// ---- memory order, seen by the race check only ----

void fence();
void before_atomic(const volatile void *address);
void after_atomic(const volatile void *address);
void acquire(const volatile void *address);
void release(const volatile void *address);

// ---- device memory ----

// Fails unless all the bytes lie in one device allocation.
void check_global(const void *pointer, size_t bytes, const char *what, Place place);

uint64_t clock();

}  // namespace sim
