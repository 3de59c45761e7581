// Rows: which row and column an entry belongs to, where points go under X -> X^g, and, with broadcasting, which row of
// an operand a row of the result takes. Divisions of 64 bits take longer than the memory: the usual divisors go
// without.
#pragma once
#include "modulus.cuh"

PG_DEVICE u64 quotient(u64 x, u64 y) { return y & (y - 1) ? x / y : x >> (63 - __clzll((i64)y)); }
PG_DEVICE u64 rest(u64 x, u64 y) { return y & (y - 1) ? x % y : x & (y - 1); }

PG_DEVICE u64 reversed_bits(u64 x, u32 bits) { return bits ? __brevll(x) >> (64 - bits) : 0; }
// Of n values at points in bit-reversed order the one whose exponent is the multiplier times that of value j, modulo
// the order of X: n, or 2n with odd exponents.
PG_DEVICE u64 permuted_point(u64 j, u64 n, u64 order, u64 multiplier) {
    const u32 bits = 63 - __clzll((i64)n), twice = order != n;
    const u64 exponent = ((reversed_bits(j, bits) << twice) + twice) * multiplier & (order - 1);
    return reversed_bits(exponent >> twice, bits);
}

constexpr int MAX_AXES = 6;  // of a batch; the innermost last

// How the operands' batch axes broadcast. A dense operand has the result's rows, and needs no layout.
struct Layout {
    u64 shape[MAX_AXES];    // of the batch
    u64 step[3][MAX_AXES];  // of each operand: its rows from index to index of an axis, 0 where it broadcasts

    PG_DEVICE u64 row(int operand, u64 row, u32 limbs) const {
        u64 at = rest(row, limbs), batch = quotient(row, limbs);
#pragma unroll
        for (int axis = MAX_AXES - 1; axis >= 0; --axis) {
            at += batch % shape[axis] * step[operand][axis];
            batch /= shape[axis];
        }
        return at;
    }
};
