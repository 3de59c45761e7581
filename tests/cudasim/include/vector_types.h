// CUDA's built-in vector types, with CUDA's alignment.
#pragma once

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define SIM_VECTOR_TYPES(T, NAME)                                                  \
    struct alignas(sizeof(T)) NAME##1 { T x; };                                    \
    struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                             \
    struct alignas(sizeof(T) >= 4 ? 16 : 4 * sizeof(T)) NAME##4 { T x, y, z, w; }; \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                             \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                     \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SIM_VECTOR_TYPES(signed char, char)
SIM_VECTOR_TYPES(unsigned char, uchar)
SIM_VECTOR_TYPES(short, short)
SIM_VECTOR_TYPES(unsigned short, ushort)
SIM_VECTOR_TYPES(int, int)
SIM_VECTOR_TYPES(unsigned, uint)
SIM_VECTOR_TYPES(long, long)
SIM_VECTOR_TYPES(unsigned long, ulong)
SIM_VECTOR_TYPES(long long, longlong)
SIM_VECTOR_TYPES(unsigned long long, ulonglong)
SIM_VECTOR_TYPES(float, float)
SIM_VECTOR_TYPES(double, double)
#undef SIM_VECTOR_TYPES

inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
