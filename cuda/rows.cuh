// Rows: which row and column an entry belongs to, and, with broadcasting, which row of an operand a row of the result
// takes. Divisions of 64 bits take longer than the memory: the usual divisors go without.
#pragma once
#include "modulus.cuh"

PG_DEVICE u64 quotient(u64 x, u64 y) { return y & (y - 1) ? x / y : x >> (63 - __clzll((i64)y)); }
PG_DEVICE u64 rest(u64 x, u64 y) { return y & (y - 1) ? x % y : x & (y - 1); }

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
