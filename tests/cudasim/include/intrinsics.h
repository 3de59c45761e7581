// CUDA's arithmetic and bit intrinsics on the host.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

namespace sim {

template <class To, class From> inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

// Float to integer: out of range saturates. NaN gives the smallest signed integer; unsigned, 2^63 for 64 bits, else 0.
template <class To, class From> inline To saturate(From value) {
    constexpr To low = std::is_signed<To>::value ? To(1ull << (8 * sizeof(To) - 1)) : To(0);
    constexpr To high = To(~low);
    if (value != value) return std::is_signed<To>::value ? low : (sizeof(To) == 8 ? To(1ull << 63) : To(0));
    if (value <= From(low)) return low;
    if (value >= From(high)) return high;
    return To(value);
}

}  // namespace sim

// ---- integers ----

inline unsigned __viaddmin_u32(unsigned a, unsigned b, unsigned c) { return a + b < c ? a + b : c; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 15, byte = unsigned(bytes >> (8 * (pick & 7)) & 0xff);
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;  // the sign bit, replicated
        result |= byte << (8 * i);
    }
    return result;
}

inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += int8_t(a >> i) * int8_t(b >> i);
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += uint8_t(a >> i) * uint8_t(b >> i);
    return c;
}

// Mixed argument types follow the usual conversions, as with CUDA's overloads.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
inline std::common_type_t<A, B> min(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return y < x ? y : x;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
inline std::common_type_t<A, B> max(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x < y ? y : x;
}

// ---- floating point, round to nearest even (compiled with -ffp-contract=off) ----

inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }

inline double __ull2double_rn(unsigned long long a) { return double(a); }
inline long long __double2ll_rn(double a) { return sim::saturate<long long>(__builtin_rint(a)); }

inline long long __double_as_longlong(double a) { return sim::bits_as<long long>(a); }
inline double __longlong_as_double(long long a) { return sim::bits_as<double>(a); }
inline unsigned __float_as_uint(float a) { return sim::bits_as<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return sim::bits_as<float>(a); }
inline int __double2hiint(double a) {
    uint64_t bits;
    __builtin_memcpy(&bits, &a, sizeof bits);
    return int(bits >> 32);
}
inline double __hiloint2double(int high, int low) {
    return sim::bits_as<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
}
