// Exact arithmetic modulo one q, 2 <= q <= 2^64: the constants of a modulus and the scalar operations.
//
// This header is compiled once per instruction set. So every function has internal linkage: otherwise the linker would
// keep only one copy of an inline function, and some machines might not be able to run this copy.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pg {

using u32 = uint32_t;
using u64 = uint64_t;
using i64 = int64_t;
using u128 = unsigned __int128;

struct Reciprocal {
    u64 d, v;  // divisor with its top bit set, floor((2^128 - 1) / d) - 2^64
};

struct Modulus {
    u64 q;             // 0 stands for 2^64
    u64 last;          // q - 1
    unsigned bits;     // 2^(bits-1) <= q < 2^bits
    unsigned shift;    // q << shift has its top bit set
    Reciprocal recip;  // the reciprocal of q << shift
    // Quotient constants of docs/math.md, "Barrett's product". Each is 0 if q is not below the bound beside it.
    u64 barrett64;  // floor(2^(bits+62) / q), q < 2^62
    u64 barrett52;  // floor(2^(bits+50) / q), q < 2^50
    u64 barrett32;  // min(floor(2^(bits+31) / q), 2^32 - 1), q < 2^31
};

constexpr u64 GOLDILOCKS = 0xffffffff00000001;  // 2^64 - 2^32 + 1

namespace {

// Whether a call's result is no longer wanted: the caller was interrupted, or a row failed.
inline bool stopped(const int *stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED); }

inline u64 mul_hi(u64 x, u64 y) { return (u64)((u128)x * y >> 64); }

inline Reciprocal reciprocal(u64 d) { return {d, (u64)(~(u128)0 / d)}; }

// Divides high * 2^64 + low by d. Returns the quotient. Needs high < d.
// Source: Moeller & Granlund 2011, "Improved division by invariant integers", algorithm 4.
inline u64 divide(const Reciprocal &by, u64 high, u64 low, u64 &remainder) {
    u128 estimate = (u128)by.v * high + (((u128)high << 64) | low);
    u64 quotient = (u64)(estimate >> 64) + 1, r = low - quotient * by.d;
    if (r > (u64)estimate) --quotient, r += by.d;
    if (r >= by.d) ++quotient, r -= by.d;
    remainder = r;
    return quotient;
}

inline Modulus make_modulus(u64 q) {
    Modulus m{};
    m.q = q;
    m.last = q - 1;
    if (q == 0) {
        m.bits = 65;
        return m;
    }
    m.shift = (unsigned)__builtin_clzll(q);
    m.bits = 64 - m.shift;
    m.recip = reciprocal(q << m.shift);
    if (m.bits <= 62) m.barrett64 = (u64)(((u128)1 << (m.bits + 62)) / q);
    if (m.bits <= 50) m.barrett52 = (u64)(((u128)1 << (m.bits + 50)) / q);
    if (m.bits <= 31) {
        m.barrett32 = ((u64)1 << (m.bits + 31)) / q;
        if (m.barrett32 >> 32) m.barrett32 = 0xffffffffu;
    }
    return m;
}

// (high * 2^64 + low) mod q. Needs high < q.
inline u64 reduce(const Modulus &m, u64 high, u64 low) {
    if (m.q == 0) return low;
    u64 r;
    divide(m.recip, m.shift ? high << m.shift | low >> (64 - m.shift) : high, low << m.shift, r);
    return r >> m.shift;
}
inline u64 reduce(const Modulus &m, u64 x) { return reduce(m, 0, x); }

// The functions below take and return canonical residues, in [0, q).
inline u64 add_mod(const Modulus &m, u64 x, u64 y) {
    u64 s = x + y;
    return (s < x || s > m.last) ? s - m.q : s;
}
inline u64 sub_mod(const Modulus &m, u64 x, u64 y) { return x >= y ? x - y : x - y + m.q; }
inline u64 neg_mod(const Modulus &m, u64 x) { return x ? m.q - x : 0; }
inline u64 mul_mod(const Modulus &m, u64 x, u64 y) {
    u128 z = (u128)x * y;
    return reduce(m, (u64)(z >> 64), (u64)z);
}
inline u64 pow_mod(const Modulus &m, u64 x, u64 exponent) {
    u64 y = reduce(m, 1);
    for (; exponent; exponent >>= 1, x = mul_mod(m, x, x))
        if (exponent & 1) y = mul_mod(m, y, x);
    return y;
}
// floor(w * 2^64 / q), the quotient of Shoup's product. Needs w < q.
inline u64 shoup_quotient(const Modulus &m, u64 w) {
    u64 r;
    return divide(m.recip, w << m.shift, 0, r);
}

}  // namespace
}  // namespace pg
