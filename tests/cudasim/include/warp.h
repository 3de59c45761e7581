// Barriers of blocks and warps, shuffles and votes.
#pragma once
#include <string.h>

#include <type_traits>

#include "api.h"

// ---- blocks ----

inline void __syncthreads(::sim::Place place = {}) { sim::sync_block("__syncthreads", false, place); }
inline int __syncthreads_count(int predicate, ::sim::Place place = {}) {
    return int(sim::sync_block("__syncthreads_count", predicate != 0, place));
}
inline int __syncthreads_or(int predicate, ::sim::Place place = {}) {
    return sim::sync_block("__syncthreads_or", predicate != 0, place) != 0;
}
inline int __syncthreads_and(int predicate, ::sim::Place place = {}) {
    return sim::sync_block("__syncthreads_and", predicate == 0, place) == 0;
}

inline void __nanosleep(unsigned, ::sim::Place place = {}) { sim::spin("__nanosleep", place); }

// ---- warps ----

inline void __syncwarp(unsigned mask = 0xffffffffu, ::sim::Place place = {}) {
    sim::WarpCall call = {"__syncwarp", mask, place, true, sim::current->lane, nullptr, 0, {}, {}};
    sim::meet_warp(call);
}
namespace sim {

// All lanes at one place; the last to come operates on what all brought.
inline void meet_whole_warp(const char *name, const void *value, unsigned bytes, void (*operate)(WarpCall *const *),
                            Place place) {
    WarpCall call = {name, ~0u, place, false, 0, nullptr, bytes, {}, {}, operate};
    memcpy(call.value, value, bytes);
    meet_warp(call);
}

}  // namespace sim

inline unsigned __activemask() { return sim::live_lanes(); }

namespace sim {

template <class T> inline T shuffle(const char *name, unsigned mask, T value, unsigned source, Place place) {
    static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "CUDA shuffles 4 and 8-byte numbers");
    WarpCall call = {name, mask, place, false, source, nullptr, sizeof(T), {}, {}};
    memcpy(call.value, &value, sizeof value);
    meet_warp(call);
    memcpy(&value, call.result, sizeof value);
    return value;
}

template <class T, class Combine> inline T reduce(const char *name, unsigned mask, T value, Combine, Place place) {
    WarpCall call = {name, mask, place, false, 0, nullptr, sizeof(T), {}, {}};
    call.combine = [](void *accumulator, const void *other) {
        T a, b;
        memcpy(&a, accumulator, sizeof a);
        memcpy(&b, other, sizeof b);
        a = Combine()(a, b);
        memcpy(accumulator, &a, sizeof a);
    };
    memcpy(call.value, &value, sizeof value);
    meet_warp(call);
    memcpy(&value, call.result, sizeof value);
    return value;
}

struct Add {
    template <class T> T operator()(T a, T b) const { return a + b; }
};
struct Min {
    template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Max {
    template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};
struct And {
    template <class T> T operator()(T a, T b) const { return a & b; }
};
struct Or {
    template <class T> T operator()(T a, T b) const { return a | b; }
};
struct Xor {
    template <class T> T operator()(T a, T b) const { return a ^ b; }
};

// First lane of this lane's segment of `width` lanes.
inline unsigned segment(int width) { return current->lane & ~unsigned(width - 1); }

}  // namespace sim

template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, ::sim::Place place = {}) {
    return sim::shuffle("__shfl_sync", mask, value, sim::segment(width) + (unsigned(source) & unsigned(width - 1)),
                        place);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, ::sim::Place place = {}) {
    unsigned lane = sim::current->lane, source = lane ^ unsigned(lane_mask);
    bool inside = source < sim::segment(width) + unsigned(width);
    return sim::shuffle("__shfl_xor_sync", mask, value, inside ? source : lane, place);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, ::sim::Place place = {}) {
    unsigned lane = sim::current->lane;
    bool inside = lane >= sim::segment(width) + delta;
    return sim::shuffle("__shfl_up_sync", mask, value, inside ? lane - delta : lane, place);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, ::sim::Place place = {}) {
    unsigned lane = sim::current->lane;
    bool inside = lane + delta < sim::segment(width) + unsigned(width);
    return sim::shuffle("__shfl_down_sync", mask, value, inside ? lane + delta : lane, place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, ::sim::Place place = {}) {
    return sim::reduce("__ballot_sync", mask, predicate ? 1u << sim::current->lane : 0u, sim::Or(), place);
}
inline int __any_sync(unsigned mask, int predicate, ::sim::Place place = {}) {
    return sim::reduce("__any_sync", mask, unsigned(predicate != 0), sim::Or(), place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, ::sim::Place place = {}) {
    return sim::reduce("__all_sync", mask, unsigned(predicate != 0), sim::And(), place) != 0;
}

#define SIM_WARP_REDUCE(NAME, OPERATION, T)                          \
    inline T NAME(unsigned mask, T value, ::sim::Place place = {}) { \
        return sim::reduce(#NAME, mask, value, OPERATION(), place);  \
    }
SIM_WARP_REDUCE(__reduce_add_sync, sim::Add, unsigned)
SIM_WARP_REDUCE(__reduce_add_sync, sim::Add, int)
SIM_WARP_REDUCE(__reduce_min_sync, sim::Min, unsigned)
SIM_WARP_REDUCE(__reduce_min_sync, sim::Min, int)
SIM_WARP_REDUCE(__reduce_max_sync, sim::Max, unsigned)
SIM_WARP_REDUCE(__reduce_max_sync, sim::Max, int)
SIM_WARP_REDUCE(__reduce_and_sync, sim::And, unsigned)
SIM_WARP_REDUCE(__reduce_or_sync, sim::Or, unsigned)
SIM_WARP_REDUCE(__reduce_xor_sync, sim::Xor, unsigned)
#undef SIM_WARP_REDUCE
