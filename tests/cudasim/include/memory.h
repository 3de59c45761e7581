// Loads and stores with cache hints, fences and atomics.
//
// CUDA's atomics are relaxed: alone they order nothing. They are written as relaxed host atomics, so that the
// race check sees a missing __threadfence or an ordinary access to the same word. Overloads are CUDA's own: a
// type that nvcc refuses is refused here.
#pragma once
#include <string.h>

#include <type_traits>

#include "api.h"

// ---- loads and stores ----

#define SIM_LOAD(NAME) \
    template <class T> inline T NAME(const T *p) { return *p; }
#define SIM_STORE(NAME) \
    template <class T> inline void NAME(T *p, std::common_type_t<T> value) { *p = value; }
SIM_LOAD(__ldg)
SIM_LOAD(__ldca)
SIM_LOAD(__ldcg)
SIM_LOAD(__ldcs)
SIM_LOAD(__ldlu)
SIM_LOAD(__ldcv)
SIM_STORE(__stwb)
SIM_STORE(__stcg)
SIM_STORE(__stcs)
SIM_STORE(__stwt)
#undef SIM_LOAD
#undef SIM_STORE

// ---- fences ----

inline void __threadfence_block() { sim::fence(); }
inline void __threadfence() { sim::fence(); }
inline void __threadfence_system() { sim::fence(); }

// ---- atomics ----

namespace sim {

template <class T> struct AtomicWord {
    using type = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
};
template <class T> using atomic_word = typename AtomicWord<T>::type;

// A read-modify-write by compare and swap: one way for all operations and types. With WAITS, loops may wait by it
// (exchange, compare and swap, add of 0): it then counts as a poll when it changes nothing.
template <bool WAITS, class T, class Update> inline T read_modify_write(T *p, Update update, Place place) {
    using Word = atomic_word<T>;
    auto *word = reinterpret_cast<Word *>(p);
    before_atomic(p);
    Word before = __atomic_load_n(word, __ATOMIC_RELAXED), after;
    T old;
    do {
        memcpy(&old, &before, sizeof old);
        T result = update(old);
        memcpy(&after, &result, sizeof after);
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    after_atomic(p);
    if (WAITS && after == before) poll(p, place);
    return old;
}

}  // namespace sim

#define SIM_ATOMIC(NAME, T, WAITS, RESULT)                                                  \
    inline T NAME(T *p, T value, ::sim::Place place = {}) {                                 \
        return sim::read_modify_write<WAITS>(p, [=](T old) -> T { return RESULT; }, place); \
    }
#define SIM_ATOMICS(T)                                                                                           \
    SIM_ATOMIC(atomicExch, T, true, (void(old), value))                                                          \
    SIM_ATOMIC(atomicAdd, T, true, old + value)                                                                  \
    SIM_ATOMIC(atomicMin, T, false, value < old ? value : old)                                                   \
    SIM_ATOMIC(atomicMax, T, false, old < value ? value : old)                                                   \
    SIM_ATOMIC(atomicAnd, T, false, old &value)                                                                  \
    SIM_ATOMIC(atomicOr, T, false, old | value)                                                                  \
    SIM_ATOMIC(atomicXor, T, false, old ^ value)                                                                 \
    inline T atomicCAS(T *p, T compare, T value, ::sim::Place place = {}) {                                      \
        return sim::read_modify_write<true>(p, [=](T old) -> T { return old == compare ? value : old; }, place); \
    }
SIM_ATOMICS(int)
SIM_ATOMICS(unsigned)
SIM_ATOMICS(unsigned long long)
SIM_ATOMIC(atomicMin, long long, false, value < old ? value : old)
SIM_ATOMIC(atomicMax, long long, false, old < value ? value : old)
SIM_ATOMIC(atomicSub, int, true, old - value)
SIM_ATOMIC(atomicSub, unsigned, true, old - value)
SIM_ATOMIC(atomicInc, unsigned, false, old >= value ? 0 : old + 1)
SIM_ATOMIC(atomicDec, unsigned, false, old == 0 || old > value ? value : old - 1)
SIM_ATOMIC(atomicAdd, float, false, old + value)
SIM_ATOMIC(atomicAdd, double, false, old + value)
SIM_ATOMIC(atomicExch, float, true, (void(old), value))
#undef SIM_ATOMICS
#undef SIM_ATOMIC

// ---- the order of PTX's ld.acquire, st.release, red.release and atom.acq_rel (gpu scope) ----

namespace sim {

template <class T> inline T load_acquire(const T *p, Place place = {}) {
    T value = __atomic_load_n(p, __ATOMIC_RELAXED);
    acquire(p);
    poll(p, place);
    return value;
}

template <class T> inline T load_relaxed(const T *p, Place place = {}) {
    T value = __atomic_load_n(p, __ATOMIC_RELAXED);
    after_atomic(p);
    poll(p, place);
    return value;
}

template <class T> inline void store_release(T *p, std::common_type_t<T> value) {
    release(p);
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

template <class T> inline void store_relaxed(T *p, std::common_type_t<T> value) {
    before_atomic(p);
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

template <class T> inline T atomic_add_release(T *p, std::common_type_t<T> value) {
    release(p);
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

template <class T> inline T atomic_add_acq_rel(T *p, std::common_type_t<T> value) {
    release(p);
    T old = __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
    acquire(p);
    return old;
}

}  // namespace sim

// ---- address spaces ----

inline size_t __cvta_generic_to_shared(const void *p) { return sim::shared_offset(p); }
inline void *__cvta_shared_to_generic(size_t offset) { return sim::shared_pointer(offset); }
inline size_t __cvta_generic_to_global(const void *p) { return reinterpret_cast<size_t>(p); }
inline void *__cvta_global_to_generic(size_t p) { return reinterpret_cast<void *>(p); }
inline unsigned __isShared(const void *p) { return sim::is_shared(p); }
inline unsigned __isGlobal(const void *p) { return !sim::is_shared(p); }
