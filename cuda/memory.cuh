// Neighbouring values that one load or store instruction moves, and cache hints for global memory.
#pragma once
#include "modulus.cuh"

template <class T, int COUNT> struct alignas(COUNT * sizeof(T)) Neighbours {
    T values[COUNT];
};
template <int COUNT, class T> PG_DEVICE Neighbours<T, COUNT> pack(const T *values) {
    Neighbours<T, COUNT> packed;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) packed.values[i] = values[i];
    return packed;
}
template <int COUNT, class T> PG_DEVICE void unpack(const Neighbours<T, COUNT> &packed, T *values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = packed.values[i];
}

template <int BYTES> struct Bits;
template <> struct Bits<4> {
    using Type = u32;
};
template <> struct Bits<8> {
    using Type = u64;
};
template <> struct Bits<16> {
    using Type = ulonglong2;
};

// How global memory is used. STREAM: the data is not used again, so the cache may evict it first. READ_ONLY: no thread
// writes the data during the launch.
enum CacheHint { DEFAULT, STREAM, READ_ONLY };
template <CacheHint HINT, class T> PG_DEVICE T read(const T *p) {
    using Type = typename Bits<sizeof(T)>::Type;
    const Type *from = (const Type *)p, bits = HINT == READ_ONLY ? __ldg(from) : HINT == STREAM ? __ldcs(from) : *from;
    T x;
    memcpy((void *)&x, &bits, sizeof(x));
    return x;
}
template <CacheHint HINT, class T> PG_DEVICE void write(T *p, const T &x) {
    using Type = typename Bits<sizeof(T)>::Type;
    Type bits;
    memcpy(&bits, (const void *)&x, sizeof(x));
    if constexpr (HINT == STREAM) __stcs((Type *)p, bits);
    else *(Type *)p = bits;
}
