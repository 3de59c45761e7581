// One modulus on the device: its constants, and exact arithmetic for any q up to 2^64.
// The algorithms are those of cpu/modulus.hpp; docs/math.md has the proofs. _backends/cuda/launch.py fills Modulus.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

#define PG_DEVICE __device__ __forceinline__

struct Modulus {
    u64 q;           // 0 stands for 2^64
    u64 last;        // q - 1
    u64 divisor;     // q << shift, whose top bit is set
    u64 reciprocal;  // floor((2^128 - 1) / divisor) - 2^64
    u64 barrett64;   // floor(2^(bits+62) / q) for q < 2^62, else 0
    u64 inverse64;   // floor(2^64 / q) for q > 1, else 0
    double inverse;  // 1 / q, rounded
    u32 bits;        // 2^(bits-1) <= q < 2^bits; 65 for 2^64
    u32 shift;
    // For q < 2^31: q, -q, 2q and -2q modulo 2^32; for q < 2^62: 2q, 3q, 6q and -q modulo 2^64. Kernels load each of
    // these numbers. If a compiler knew their relation to q, it would recompute them again and again.
    u32 q32, minus_q32, q2_32, minus_q2_32;
    u64 q2, q3, q6, minus_q;
    u64 power64, power64_quotient;  // 2^64 mod q, floor(2^64 * power64 / q)
};

// Divides high * 2^64 + low by m.divisor = q << shift. Returns the quotient. Needs high < m.divisor.
// Source: Moeller & Granlund 2011, algorithm 4.
PG_DEVICE u64 divide(const Modulus &m, u64 high, u64 low, u64 &remainder) {
    u64 product_low = m.reciprocal * high, quotient = __umul64hi(m.reciprocal, high);
    u64 estimate = product_low + low;
    quotient += high + (estimate < low) + 1;
    u64 r = low - quotient * m.divisor;
    if (r > estimate) --quotient, r += m.divisor;
    if (r >= m.divisor) ++quotient, r -= m.divisor;
    remainder = r;
    return quotient;
}

// Returns (high * 2^64 + low) mod q. Needs high < q.
PG_DEVICE u64 reduce(const Modulus &m, u64 high, u64 low) {
    if (m.q == 0) return low;
    u64 r;
    divide(m, m.shift ? high << m.shift | low >> (64 - m.shift) : high, low << m.shift, r);
    return r >> m.shift;
}
PG_DEVICE u64 reduce(const Modulus &m, u64 x) { return reduce(m, 0, x); }

// The next four functions take and return canonical residues, in [0, q).
PG_DEVICE u64 add_mod(const Modulus &m, u64 x, u64 y) {
    u64 s = x + y;
    return (s < x || s > m.last) ? s - m.q : s;
}
PG_DEVICE u64 sub_mod(const Modulus &m, u64 x, u64 y) { return x >= y ? x - y : x - y + m.q; }
PG_DEVICE u64 neg_mod(const Modulus &m, u64 x) { return x ? m.q - x : 0; }
PG_DEVICE u64 mul_mod(const Modulus &m, u64 x, u64 y) { return reduce(m, __umul64hi(x, y), x * y); }

// Returns floor(w * 2^64 / q), the quotient of Shoup's product. Needs w < q.
PG_DEVICE u64 shoup_quotient(const Modulus &m, u64 w) {
    u64 r;
    return divide(m, w << m.shift, 0, r);
}

// Returns x * y modulo p = 2^64 - 2^32 + 1. Modulo p, 2^64 = 2^32 - 1 and 2^96 = -1. So if x * y = low + h_0 * 2^64 +
// h_1 * 2^96, then x * y is congruent to low + (2^32 - 1) * h_0 - h_1. A borrow is corrected by subtracting 2^32 - 1, a
// carry by adding 2^32 - 1. Neither correction wraps again.
constexpr u64 GOLDILOCKS = 0xffffffff00000001, GOLDILOCKS_WRAP = 0xffffffff;
PG_DEVICE u64 goldilocks_product(u64 x, u64 y) {
    const u64 low = x * y, high = __umul64hi(x, y), h1 = high >> 32, h0 = (u32)high * GOLDILOCKS_WRAP;
    u64 r = low - h1;
    if (low < h1) r -= GOLDILOCKS_WRAP;
    r += h0;
    if (r < h0) r += GOLDILOCKS_WRAP;
    return r >= GOLDILOCKS ? r - GOLDILOCKS : r;
}

// Barrett's product for q < 2^62 (docs/math.md). The estimated quotient is exact or up to 2 too small.
PG_DEVICE u64 barrett_product(const Modulus &m, u64 x, u64 y) {
    u64 low = x * y, high = __umul64hi(x, y);
    u32 right = m.bits - 2, left = 64 - right;
    u64 t = (right ? high << left : 0) | low >> right;  // if q < 4, high is 0
    u64 r = low - __umul64hi(t, m.barrett64) * m.q;
    r = min(r, r - 2 * m.q);
    return min(r, r - m.q);
}
