// Half precision. An operation is done in double and then rounded to a half. In double it is exact, or rounded so far
// below a half's last bit that the result is the same.
#pragma once
#include <math.h>
#include <stdint.h>

#include <type_traits>

#include "intrinsics.h"
#include "vector_types.h"

namespace sim {

// The 16 bits of the half next to x: ties to even, or towards zero.
inline uint16_t half_bits(double x, bool to_zero = false) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (x != x) return 0x7fff;
    if (isinf(x)) return sign | 0x7c00;
    int exponent = x < 0x1p-14 ? -14 : ilogb(x);
    if (exponent > 15) return sign | (to_zero ? 0x7bff : 0x7c00);
    double units = ldexp(x, 10 - exponent);  // of the last place: below 1024 if subnormal
    // A carry goes on into the exponent, up to infinity.
    return uint16_t(sign | (((exponent + 14) << 10) + int(to_zero ? trunc(units) : rint(units))));
}

inline float half_value(uint16_t bits) {
    unsigned exponent = bits >> 10 & 31, mantissa = bits & 1023;
    unsigned wide = exponent == 31 ? 0x7f800000u | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13;
    float x = exponent == 0 ? float(mantissa) * 0x1p-24f : bits_as<float>(wide);
    return bits & 0x8000 ? -x : x;
}

}  // namespace sim

struct __half_raw {
    unsigned short x;
};

struct alignas(2) __half {
    unsigned short __x;
    __half() = default;
    __half(__half_raw raw) : __x(raw.x) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
    __half(T x) : __x(sim::half_bits(double(x))) {}
    operator float() const { return sim::half_value(__x); }
    operator __half_raw() const { return {__x}; }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

// ---- conversions ----

inline __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }
inline __half __short_as_half(short bits) { return __ushort_as_half((unsigned short)bits); }
inline unsigned short __half_as_ushort(__half x) { return x.__x; }
inline short __half_as_short(__half x) { return short(x.__x); }

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __float2half_rz(float x) { return __ushort_as_half(sim::half_bits(x, true)); }
inline __half __double2half(double x) { return __half(x); }
inline __half __int2half_rn(int x) { return __half(x); }
inline __half __uint2half_rn(unsigned x) { return __half(x); }
inline float __half2float(__half x) { return x; }
inline int __half2int_rn(__half x) { return sim::saturate<int>(rintf(x)); }
inline int __half2int_rz(__half x) { return sim::saturate<int>(truncf(x)); }

inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __float2half2_rn(float x) { return {x, x}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }

// ---- arithmetic ----

inline __half __hadd(__half a, __half b) { return double(float(a)) + double(float(b)); }
inline __half __hsub(__half a, __half b) { return double(float(a)) - double(float(b)); }
inline __half __hmul(__half a, __half b) { return double(float(a)) * double(float(b)); }
inline __half __hdiv(__half a, __half b) { return double(float(a)) / double(float(b)); }
inline __half __hfma(__half a, __half b, __half c) { return double(float(a)) * double(float(b)) + double(float(c)); }
inline __half __hneg(__half a) { return __ushort_as_half(a.__x ^ 0x8000); }
inline __half __habs(__half a) { return __ushort_as_half(a.__x & 0x7fff); }
inline __half hsqrt(__half a) { return sqrt(double(float(a))); }

inline bool __heq(__half a, __half b) { return float(a) == float(b); }
inline bool __hne(__half a, __half b) { return float(a) < float(b) || float(a) > float(b); }
inline bool __hlt(__half a, __half b) { return float(a) < float(b); }
inline bool __hle(__half a, __half b) { return float(a) <= float(b); }
inline bool __hgt(__half a, __half b) { return float(a) > float(b); }
inline bool __hge(__half a, __half b) { return float(a) >= float(b); }
inline bool __hisnan(__half a) { return (a.__x & 0x7fff) > 0x7c00; }
inline int __hisinf(__half a) { return (a.__x & 0x7fff) != 0x7c00 ? 0 : a.__x == 0x7c00 ? 1 : -1; }
inline __half __hmin(__half a, __half b) { return __hisnan(b) || __hlt(a, b) ? a : b; }
inline __half __hmax(__half a, __half b) { return __hisnan(b) || __hgt(a, b) ? a : b; }

inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half2 __hneg2(__half2 a) { return {__hneg(a.x), __hneg(a.y)}; }

inline __half operator+(__half a, __half b) { return __hadd(a, b); }
inline __half operator-(__half a, __half b) { return __hsub(a, b); }
inline __half operator*(__half a, __half b) { return __hmul(a, b); }
inline __half operator/(__half a, __half b) { return __hdiv(a, b); }
inline __half operator-(__half a) { return __hneg(a); }
inline __half &operator+=(__half &a, __half b) { return a = a + b; }
inline __half &operator-=(__half &a, __half b) { return a = a - b; }
inline __half &operator*=(__half &a, __half b) { return a = a * b; }
inline __half &operator/=(__half &a, __half b) { return a = a / b; }
inline bool operator==(__half a, __half b) { return __heq(a, b); }
inline bool operator!=(__half a, __half b) { return !__heq(a, b); }
inline bool operator<(__half a, __half b) { return __hlt(a, b); }
inline bool operator<=(__half a, __half b) { return __hle(a, b); }
inline bool operator>(__half a, __half b) { return __hgt(a, b); }
inline bool operator>=(__half a, __half b) { return __hge(a, b); }
inline __half2 operator+(__half2 a, __half2 b) { return __hadd2(a, b); }
inline __half2 operator-(__half2 a, __half2 b) { return __hsub2(a, b); }
inline __half2 operator*(__half2 a, __half2 b) { return __hmul2(a, b); }
